/* The tables of wgrad by the portable kernels: groups of neighbouring blocks of a row, as many as a
 * tile is wide, so that one tile of dy serves them all. */
#include "products/kernels.h"
#include "products/portable/product.cuh"

void *portable_wgrad_plan(backend *be, device_layout *device, const layout *l) {
    portable_wgrad_tables *made = layout_plan<portable_wgrad_tables>(device);
    const int group = WGRAD_COLUMNS / l->in_block;
    int *first = host_array<int>((size_t)l->blocks + 1), *row = host_array<int>((size_t)l->blocks);
    for (int i = 0; i < l->out_nodes; i++) {
        const int end = l->row_start[i + 1];
        for (int k = l->row_start[i]; k < end; k += group) first[made->tiles++] = k;
        for (int k = l->row_start[i]; k < end; k++) row[k] = i;
    }
    first[made->tiles] = l->blocks;
    made->first = layout_table(be, device, first, (size_t)made->tiles + 1);
    made->row = layout_table(be, device, row, (size_t)l->blocks);
    free(first);
    free(row);
    return made;
}
