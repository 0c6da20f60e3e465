/* The tiles of wgrad_gates: blocks of a row side by side, as many as fill a tile, or fewer so
 * that all tiles of a row are of nearly equal size. */
#include "products/hopper/wgrad_gates.cuh"

void *wgrad_gates_plan(backend *be, device_layout *device, const layout *l) {
    wgrad_gates_tables *made = layout_plan<wgrad_gates_tables>(device);
    const int most = WGRAD_GATES_UNITS / l->in_block;
    int *first = host_array<int>((size_t)l->blocks + 1), *row = host_array<int>((size_t)l->blocks);
    for (int i = 0; i < l->out_nodes; i++) {
        const int from = l->row_start[i], count = l->row_start[i + 1] - from;
        const int parts = (count + most - 1) / most;
        for (int part = 0; part < parts; part++) first[made->tiles++] = from + count * part / parts;
        for (int k = 0; k < count; k++) row[from + k] = i;
    }
    first[made->tiles] = l->blocks;
    made->first = layout_table(be, device, first, (size_t)made->tiles + 1);
    made->row = layout_table(be, device, row, (size_t)l->blocks);
    free(first);
    free(row);
    return made;
}
