#include "device/layout.h"

extern "C" {
#include "core/memory.h"
}

static void keep(device_layout *device, void *block, bool on_device) {
    if (device->block_count == device->block_room) {
        device->block_room = max(32, 2 * device->block_room);
        device->blocks = (layout_block *)mem_resize(device->blocks, (size_t)device->block_room,
                                                    sizeof *device->blocks);
    }
    device->blocks[device->block_count++] = {block, on_device};
}

static void *allocate(backend *be, size_t bytes, const char *what) {
    void *block = be->memory->allocate(be, bytes);
    if (!block) cuda_ok(be, cudaErrorMemoryAllocation, what);
    return block;
}

void *layout_device_block(backend *be, device_layout *device, size_t bytes) {
    void *block = allocate(be, bytes, "layout");
    if (!block) return NULL;
    device->bytes += bytes;
    keep(device, block, true);
    return block;
}

void *layout_host_block(device_layout *device, size_t bytes) {
    void *block = mem_alloc(1, bytes);
    keep(device, block, false);
    return block;
}

static void *plan_host(planner *gpu, size_t bytes) {
    return layout_host_block(((cuda_planner *)gpu)->device, bytes);
}

static void *plan_table(planner *gpu, const void *table, size_t bytes) {
    const cuda_planner *own = (const cuda_planner *)gpu;
    void *copied = layout_device_block(own->be, own->device, bytes);
    if (copied && table) own->be->memory->upload(own->be, copied, table, bytes);
    return copied;
}

static partial_sums plan_partial(planner *gpu, const char *kernel, size_t slots, size_t floats) {
    const cuda_planner *own = (const cuda_planner *)gpu;
    partial_sums p = {(float *)plan_table(gpu, NULL, slots * floats * sizeof(float)),
                      (int *)plan_table(gpu, NULL, slots * sizeof(int)),
                      cuda_stuck_word(own->be, kernel)};
    if (p.full) own->be->memory->zero(own->be, p.full, slots * sizeof *p.full);
    return p;
}

cuda_planner layout_planner(backend *be, device_layout *device) {
    const cuda_backend *cuda = cuda_of(be);
    return {{cuda->processors, cuda->hopper, plan_host, plan_table, plan_partial}, be, device};
}

/* A copy of a layout's table. */
static int *copy_table(planner *gpu, const int *table, int count) {
    return (int *)plan_table(gpu, table, (size_t)count * sizeof *table);
}

device_layout *cuda_layout_create(backend *be, const layout *l) {
    device_layout *device = (device_layout *)mem_alloc(1, sizeof *device);
    layout *host = &device->host;
    *host = *l;
    if (layout_is_dense(l)) {
        host->row_start = host->row_column = NULL;
        host->column_start = host->column_row = host->column_block = NULL;
    } else {
        cuda_planner gpu = layout_planner(be, device);
        host->row_start = copy_table(&gpu.of, l->row_start, l->out_nodes + 1);
        host->row_column = copy_table(&gpu.of, l->row_column, l->blocks);
        host->column_start = host->row_start;
        host->column_row = host->row_column;
        if (!layout_is_symmetric(l)) {
            host->column_start = copy_table(&gpu.of, l->column_start, l->in_nodes + 1);
            host->column_row = copy_table(&gpu.of, l->column_row, l->blocks);
        }
        host->column_block = copy_table(&gpu.of, l->column_block, l->blocks);
    }
    return device;
}

size_t cuda_layout_bytes(const device_layout *device) {
    return device->bytes;
}

void cuda_layout_free(backend *be, device_layout *device) {
    if (!device) return;
    for (int i = 0; i < device->block_count; i++) {
        if (device->blocks[i].on_device) {
            be->memory->release(be, device->blocks[i].block);
        } else {
            free(device->blocks[i].block);
        }
    }
    free(device->blocks);
    free(device);
}

static int *copy_map(backend *be, const int *map, int positions, int taps) {
    const size_t bytes = (size_t)positions * (size_t)taps * sizeof *map;
    void *copied = allocate(be, bytes, "a convolution's taps");
    if (copied) be->memory->upload(be, copied, map, bytes);
    return (int *)copied;
}

tap_table *cuda_taps_create(backend *be, const tap_table *host) {
    tap_table *made = (tap_table *)mem_alloc(1, sizeof *made);
    *made = *host;
    made->source = copy_map(be, host->source, host->out_positions, host->taps);
    made->target = copy_map(be, host->target, host->in_positions, host->taps);
    return made;
}

void cuda_taps_free(backend *be, tap_table *on_device) {
    if (!on_device) return;
    be->memory->release(be, on_device->source);
    be->memory->release(be, on_device->target);
    free(on_device);
}
