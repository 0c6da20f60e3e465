/* The parts of stage_chain.cu: which nodes a thread block makes, forward and backward, and how
 * many of its warps share a node's blocks. */
#include "cell/stage_chain.cuh"
#include "products/node_lists.h"

/* Deals nodes out to parts of about equally many blocks: those with most blocks first, each to the
 * part that has fewest. Returns false if they do not fit. */
static bool deal_nodes(const node_lists *l, int parts, chain_part *part) {
    int *order = host_array<int>((size_t)l->nodes);
    int *degree = host_array<int>((size_t)l->nodes);
    bool fits = true;
    for (int i = 0; i < l->nodes; i++) {
        degree[i] = l->end[i] - l->begin[i];
        int at = i;
        for (; at > 0 && degree[order[at - 1]] < degree[i]; at--) order[at] = order[at - 1];
        order[at] = i;
    }
    for (int i = 0; i < l->nodes && fits; i++) {
        chain_part *least = NULL;
        for (int k = 0; k < parts; k++) {
            if (part[k].nodes == CHAIN_NODES) continue;
            if (!least || part[k].slot[part[k].nodes] < least->slot[least->nodes]) least = &part[k];
        }
        fits = least && least->slot[least->nodes] + degree[order[i]] <= CHAIN_SLOTS;
        if (!fits) break;
        least->first[least->nodes] = (uint32_t)l->begin[order[i]];
        least->node[least->nodes++] = (uint16_t)order[i];
        least->slot[least->nodes] = (uint16_t)(least->slot[least->nodes - 1] + degree[order[i]]);
    }
    free(order);
    free(degree);
    return fits;
}

/* Gives each node a task, and each further task to the node with most blocks per task. */
static void deal_tasks(chain_part *part) {
    int tasks[CHAIN_NODES], used = part->nodes;
    for (int i = 0; i < part->nodes; i++) tasks[i] = 1;
    for (; part->nodes && used < WARPS; used++) {
        int most = 0;
        for (int i = 1; i < part->nodes; i++) {
            const int mine = part->slot[i + 1] - part->slot[i];
            const int other = part->slot[most + 1] - part->slot[most];
            if (mine * tasks[most] > other * tasks[i]) most = i;
        }
        tasks[most]++;
    }
    for (int i = 0; i < part->nodes; i++) part->task[i + 1] = (uint16_t)(part->task[i] + tasks[i]);
}

static void build_side(backend *be, device_layout *device, chain_parts *made, const node_lists *l,
                       int columns) {
    const int slices = columns / SLICE;
    const int most =
        min(min(cuda_of(be)->processors, CHAIN_PARTS) / slices, PARTS_OF_WARP * READERS);
    const int parts = min(l->nodes, most);
    chain_part *part = host_array<chain_part>((size_t)parts);
    if (deal_nodes(l, parts, part)) {
        for (int i = 0; i < parts; i++) {
            deal_tasks(&part[i]);
            made->slots = max(made->slots, (int)part[i].slot[part[i].nodes]);
        }
        made->count = parts;
        made->part = layout_table(be, device, part, (size_t)parts);
    }
    free(part);
}

stage_chain_tables *stage_chain_plan(backend *be, device_layout *device, const layout *l) {
    if (be->precision != BF16 || l->gates != 1 || l->in_block != UNITS || layout_is_dense(l) ||
        l->in_nodes != l->out_nodes || l->in_nodes > 0xFFFF)
        return NULL;
    stage_chain_tables *made = layout_plan<stage_chain_tables>(device);
    const node_lists rows = row_lists(l), columns = column_lists(l);
    for (int i = CHAIN_CUTS - 1; i >= 0; i--) { /* 64 columns are only used where 128 fit, too */
        const int cut = (i + 1) * COLUMN_MULTIPLE;
        build_side(be, device, &made->forward[i], &rows, cut);
        if (!made->forward[i].count) break;
        made->backward[i] = made->forward[i];
        if (layout_is_symmetric(l)) continue;
        made->backward[i] = {};
        build_side(be, device, &made->backward[i], &columns, cut);
    }
    if (!made->forward[CHAIN_CUTS - 1].count) return NULL;
    const size_t slices = CHAIN_CUTS * COLUMN_MULTIPLE / SLICE;
    made->words =
        (unsigned long long *)layout_device_block(be, device, CHAIN_WORDS * sizeof *made->words);
    made->unit_sums = (float *)layout_device_block(
        be, device, slices * 2 * layout_inputs(l) * sizeof *made->unit_sums);
    return made;
}
