/* A layout on the device, and everything that belongs to it: what each kernel planned for it,
 * and all memory that these plans took, which is freed together with the layout. */
#ifndef SMALLWORLD_KERNELS_CUDA_DEVICE_LAYOUT_H
#define SMALLWORLD_KERNELS_CUDA_DEVICE_LAYOUT_H

#include "device/device.h"
#include "plan/plan.h"

enum { MOST_KERNELS = 16 /* rows of products/dispatch.cu */ };

/* A block of memory that is freed with the layout. */
typedef struct layout_block {
    void *block;
    bool on_device;
} layout_block;

struct device_layout {
    layout host;              /* its tables point to device memory */
    void *plan[MOST_KERNELS]; /* by row of the dispatch table; NULL: not planned */
    struct hub_plan *hubs;    /* of gates that read hubs; or NULL */
    layout_block *blocks;
    int block_count, block_room;
    size_t bytes; /* of those on the device */
};

/* Plans for a layout on this GPU. */
typedef struct cuda_planner {
    planner of; /* first: a cuda_planner is a planner */
    backend *be;
    device_layout *device;
} cuda_planner;

cuda_planner layout_planner(backend *be, device_layout *device);

/* Device memory, and zeroed host memory, of `bytes` bytes. Both belong to the layout. */
void *layout_device_block(backend *be, device_layout *device, size_t bytes);
void *layout_host_block(device_layout *device, size_t bytes);

device_layout *cuda_layout_create(backend *be, const layout *l);
void cuda_layout_free(backend *be, device_layout *device);
size_t cuda_layout_bytes(const device_layout *device);

/* A table of taps, with both maps on the device. */
tap_table *cuda_taps_create(backend *be, const tap_table *host);
void cuda_taps_free(backend *be, tap_table *on_device);

#endif
