#include "graph/layout.h"

#include "core/memory.h"
#include "graph/graph.h"

#include <stdlib.h>
#include <string.h>

static layout *new_layout(int out_nodes, int in_nodes, int blocks) {
    layout *l = mem_alloc(1, sizeof *l);
    l->out_nodes = out_nodes;
    l->in_nodes = in_nodes;
    l->blocks = blocks;
    l->gates = l->in_stride = 1;
    l->row_start = mem_alloc((size_t)out_nodes + 1, sizeof(int));
    l->row_column = mem_alloc((size_t)blocks, sizeof(int));
    l->column_start = mem_alloc((size_t)in_nodes + 1, sizeof(int));
    l->column_row = mem_alloc((size_t)blocks, sizeof(int));
    l->column_block = mem_alloc((size_t)blocks, sizeof(int));
    return l;
}

/* Makes the columns' tables from the rows' tables. */
static void transpose(layout *l) {
    for (int k = 0; k < l->blocks; k++) l->column_start[l->row_column[k] + 1]++;
    for (int j = 0; j < l->in_nodes; j++) l->column_start[j + 1] += l->column_start[j];
    size_t bytes = (size_t)l->in_nodes * sizeof(int);
    int *next = mem_alloc((size_t)l->in_nodes, sizeof(int));
    memcpy(next, l->column_start, bytes);
    for (int i = 0; i < l->out_nodes; i++) {
        for (int k = l->row_start[i]; k < l->row_start[i + 1]; k++) {
            int place = next[l->row_column[k]]++;
            l->column_row[place] = i;
            l->column_block[place] = k;
        }
    }
    free(next);
}

layout *layout_from_graph(const graph *g, int block, int gates) {
    const int64_t all = (int64_t)g->nodes * g->inputs;
    if (graph_blocks(g) < all) return layout_blocks(g, block, gates);
    return layout_dense(g->nodes * block, g->inputs * block, gates, 1);
}

layout *layout_blocks(const graph *g, int block, int gates) {
    int blocks = graph_blocks(g);
    layout *l = new_layout(g->nodes, g->inputs, blocks);
    l->out_block = l->in_block = block;
    l->gates = gates;
    memcpy(l->row_start, g->start, ((size_t)g->nodes + 1) * sizeof(int));
    memcpy(l->row_column, g->column, (size_t)blocks * sizeof(int));
    transpose(l);
    return l;
}

layout *layout_pairs(int out_nodes, int in_nodes, const int32_t (*pairs)[2], int count, int block,
                     int taps) {
    layout *l = new_layout(out_nodes, in_nodes, count);
    l->out_block = l->in_block = block;
    l->taps = taps;
    for (int k = 0; k < count; k++) {
        l->row_start[pairs[k][0] + 1]++;
        l->row_column[k] = pairs[k][1];
    }
    for (int i = 0; i < out_nodes; i++) l->row_start[i + 1] += l->row_start[i];
    transpose(l);
    return l;
}

layout *layout_dense(int rows, int columns, int gates, int in_stride) {
    layout *l = new_layout(1, 1, 1);
    l->dense = true;
    l->out_block = rows;
    l->in_block = columns;
    l->gates = gates;
    l->in_stride = in_stride;
    l->row_start[1] = 1;
    transpose(l);
    return l;
}

bool layout_is_symmetric(const layout *l) {
    return l->out_nodes == l->in_nodes &&
           memcmp(l->row_start, l->column_start, ((size_t)l->out_nodes + 1) * sizeof(int)) == 0 &&
           memcmp(l->row_column, l->column_row, (size_t)l->blocks * sizeof(int)) == 0;
}

void layout_free(layout *l) {
    if (!l) return;
    free(l->row_start);
    free(l->row_column);
    free(l->column_start);
    free(l->column_row);
    free(l->column_block);
    free(l);
}
