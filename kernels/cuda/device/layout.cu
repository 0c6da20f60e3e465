#include "device/layout.h"

static void keep(device_layout *device, void *block, bool on_device) {
    if (device->block_count == device->block_room) {
        device->block_room = max(32, 2 * device->block_room);
        device->blocks = (layout_block *)realloc(device->blocks, (size_t)device->block_room *
                                                                     sizeof *device->blocks);
        if (!device->blocks) abort();
    }
    device->blocks[device->block_count++] = {block, on_device};
}

void *layout_device_block(backend *be, device_layout *device, size_t bytes) {
    void *block = be->allocate(be, bytes);
    if (!block) {
        cuda_ok(be, cudaErrorMemoryAllocation, "layout");
        return NULL;
    }
    device->bytes += bytes;
    keep(device, block, true);
    return block;
}

void *layout_host_block(device_layout *device, size_t bytes) {
    void *block = host_array<char>(bytes);
    keep(device, block, false);
    return block;
}

device_layout *cuda_layout_create(backend *be, const layout *l) {
    device_layout *device = host_array<device_layout>(1);
    layout *host = &device->host;
    *host = *l;
    if (layout_is_dense(l)) {
        host->row_start = host->row_column = NULL;
        host->column_start = host->column_row = host->column_block = NULL;
    } else {
        const size_t blocks = (size_t)l->blocks;
        host->row_start = layout_table(be, device, l->row_start, (size_t)l->out_nodes + 1);
        host->row_column = layout_table(be, device, l->row_column, blocks);
        host->column_start = host->row_start;
        host->column_row = host->row_column;
        if (!layout_is_symmetric(l)) {
            host->column_start = layout_table(be, device, l->column_start, (size_t)l->in_nodes + 1);
            host->column_row = layout_table(be, device, l->column_row, blocks);
        }
        host->column_block = layout_table(be, device, l->column_block, blocks);
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
            be->release(be, device->blocks[i].block);
        } else {
            free(device->blocks[i].block);
        }
    }
    free(device->blocks);
    free(device);
}

static int *copy_map(backend *be, const int *map, int positions, int taps) {
    const size_t bytes = (size_t)positions * (size_t)taps * sizeof *map;
    void *copied = be->allocate(be, bytes);
    if (!copied) {
        cuda_ok(be, cudaErrorMemoryAllocation, "a convolution's taps");
        return NULL;
    }
    be->upload(be, copied, map, bytes);
    return (int *)copied;
}

tap_table *cuda_taps_create(backend *be, const tap_table *host) {
    tap_table *made = host_array<tap_table>(1);
    *made = *host;
    made->source = copy_map(be, host->source, host->out_positions, host->taps);
    made->target = copy_map(be, host->target, host->in_positions, host->taps);
    return made;
}

void cuda_taps_free(backend *be, tap_table *on_device) {
    if (!on_device) return;
    be->release(be, on_device->source);
    be->release(be, on_device->target);
    free(on_device);
}
