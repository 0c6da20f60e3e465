/* The tables of fprop_gates: its tiles of 128 rows, and the sources of each. */
#include "products/hopper/fprop_gates.cuh"

void *fprop_gates_plan(backend *be, device_layout *device, const layout *l) {
    fprop_gates_tables *made = layout_plan<fprop_gates_tables>(device);
    const int parts = l->out_block / UNITS,
              tiles = l->out_nodes * parts; /* parts: tiles of a node */
    fprop_gates_source *source = host_array<fprop_gates_source>((size_t)l->blocks * parts + 1);
    made->host_tile = (fprop_gates_tile *)layout_host_block(device, ((size_t)tiles + 1) *
                                                                        sizeof *made->host_tile);
    for (int number = 0; number < tiles; number++) {
        const int first = l->row_start[number / parts], end = l->row_start[number / parts + 1];
        made->empty_rows |= first == end;
        if (first == end) continue;
        made->host_tile[made->count++] = {made->sources, number};
        for (int k = first; k < end; k++) {
            source[made->sources++] = {l->row_column[k], k * parts + number % parts};
        }
    }
    made->host_tile[made->count].first = made->sources;
    made->source = layout_table(be, device, source, (size_t)made->sources + 1);
    made->tile = layout_table(be, device, made->host_tile, (size_t)made->count + 1);
    const size_t blocks = (size_t)max(16, min(cuda_of(be)->processors, (int)MOST_PARTS));
    made->partial =
        partial_sums_create(be, device, "fprop_gates", 2 * blocks, TILE_ROWS / 2 * MOST_COLUMNS);
    free(source);
    return made;
}
