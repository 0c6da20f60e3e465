/* The parts of small_blocks: nodes of like sources, as many as a tile has units for, the union of
 * their sources in stages, and the blocks that each stage has. */
#include "plan/small_blocks.h"
#include "core/memory.h"
#include "plan/node_lists.h"

#include <stdlib.h>
#include <string.h>

/* Fprop's or dgrad's lists, of which the kernel sees gates as nodes of their own, or as sources. */
typedef struct small_lists {
    const layout *l;
    bool forward;
    node_lists of;
} small_lists;

/* The union of the sources of nodes `order[0 .. count)`: in seen, which of these have a block. */
static int unite(const node_lists *l, const int *order, int count, uint32_t *seen) {
    int sources = 0;
    memset(seen, 0, (size_t)l->sources * sizeof *seen);
    for (int i = 0; i < count; i++) {
        for (int k = l->begin[order[i]]; k < l->end[order[i]]; k++) {
            sources += !seen[l->other[k]];
            seen[l->other[k]] |= 1u << i;
        }
    }
    return sources;
}

typedef struct small_group { /* nodes that make a part */
    int first, count, sources;
} small_group;

static int by_sources(const void *one, const void *two) {
    const small_group *a = one, *b = two;
    return a->sources != b->sources ? b->sources - a->sources : a->first - b->first;
}

/* What is made on the host, and how much of it so far. */
typedef struct small_tables {
    int b, stages, entries;
    int *stage;
    uint16_t *node, *source;
    uint8_t *has;
    uint32_t *list, *entry;
} small_tables;

static void end_stage(small_tables *t, int first) {
    t->list[t->stages++] = (uint32_t)first << PLACE_BITS | (uint32_t)(t->entries - first);
}

/* A part's stages, from its union of sources. Nodes and sources with gates stand for several, next
 * to each other; `at`: how far each node's list has been walked. */
static void build_part(small_tables *t, const small_lists *s, const int *order, int count,
                       const uint32_t *seen, int *at) {
    const layout *l = s->l;
    const int depth = DEPTH / t->b, nodes = SMALL_UNITS / t->b, gates = l->gates;
    const int node_gates = s->forward ? gates : 1, source_gates = s->forward ? 1 : gates;
    int in = 0, first = t->entries; /* of the latest stage: its sources, its first entry */
    for (int i = 0; i < count; i++) at[i] = s->of.begin[order[i]];
    for (int j = 0; j < s->of.sources; j++) {
        if (!seen[j]) continue;
        for (int g = 0; g < source_gates; g++) {
            for (int i = 0; i < count; i++) {
                if (!(seen[j] >> i & 1)) continue;
                const int block = s->forward ? at[i] : l->column_block[at[i]];
                for (int n = 0; n < node_gates; n++) {
                    const int slot = i * node_gates + n;
                    const uint32_t number = (uint32_t)(block * gates + (s->forward ? n : g));
                    t->has[t->stages * nodes + slot] |= (uint8_t)(1 << in);
                    t->entry[t->entries++] = number << PLACE_BITS | (uint32_t)(in * nodes + slot);
                }
            }
            t->source[t->stages * depth + in] = (uint16_t)(j * source_gates + g);
            if (++in == depth) {
                end_stage(t, first);
                first = t->entries;
                in = 0;
            }
        }
        for (int i = 0; i < count; i++) at[i] += seen[j] >> i & 1;
    }
    if (in) end_stage(t, first);
}

static void build_small(planner *gpu, small_blocks_parts *made, const small_lists *s, int b) {
    const int nodes = s->of.nodes, gates = s->l->gates, depth = DEPTH / b;
    const int node_gates = s->forward ? gates : 1, source_gates = s->forward ? 1 : gates;
    const int slots = SMALL_UNITS / b, together = slots / node_gates;
    const int parts = (nodes + together - 1) / together;
    int *order = mem_alloc((size_t)nodes, sizeof *order);
    order_nodes(&s->of, together, order);

    uint32_t *seen = mem_alloc((size_t)s->of.sources, sizeof *seen);
    small_group *group = mem_alloc((size_t)parts, sizeof *group);
    size_t stages = 0;
    for (int i = 0; i < parts; i++) {
        group[i].first = i * together;
        group[i].count = min(together, nodes - i * together);
        group[i].sources = unite(&s->of, order + group[i].first, group[i].count, seen);
        stages += (size_t)max(1, (group[i].sources * source_gates + depth - 1) / depth);
    }
    qsort(group, (size_t)parts, sizeof *group, by_sources);

    const size_t entries = (size_t)s->l->blocks * (size_t)gates;
    small_tables t = {.b = b};
    t.stage = gpu->host(gpu, ((size_t)parts + 1) * sizeof *t.stage);
    t.list = mem_alloc(stages, sizeof *t.list);
    t.node = mem_alloc((size_t)parts * (size_t)slots, sizeof *t.node);
    t.source = mem_alloc(stages * (size_t)depth, sizeof *t.source);
    t.has = mem_alloc(stages * (size_t)slots, sizeof *t.has);
    t.entry = mem_alloc(entries + 1, sizeof *t.entry);
    memset(t.node, 0xFF, (size_t)parts * (size_t)slots * sizeof *t.node);
    memset(t.source, 0xFF, stages * (size_t)depth * sizeof *t.source);
    for (int i = 0; i < parts; i++) {
        const int *members = order + group[i].first, before = t.stages;
        int at[SMALL_UNITS / 8];
        for (int k = 0; k < group[i].count * node_gates; k++) {
            t.node[i * slots + k] =
                (uint16_t)(members[k / node_gates] * node_gates + k % node_gates);
        }
        unite(&s->of, members, group[i].count, seen);
        build_part(&t, s, members, group[i].count, seen, at);
        if (t.stages == before) end_stage(&t, t.entries); /* every part has a stage */
        t.stage[i + 1] = t.stages;
    }

    made->count = parts;
    made->stages = t.stages;
    made->host_stage = t.stage;
    made->stage = PLAN_TABLE(gpu, t.stage, ((size_t)parts + 1));
    made->list = PLAN_TABLE(gpu, t.list, (size_t)t.stages);
    made->node = PLAN_TABLE(gpu, t.node, (size_t)parts * (size_t)slots);
    made->source = PLAN_TABLE(gpu, t.source, (size_t)t.stages * (size_t)depth);
    made->has = PLAN_TABLE(gpu, t.has, (size_t)t.stages * (size_t)slots);
    made->entry = PLAN_TABLE(gpu, t.entry, entries);
    free(order);
    free(seen);
    free(group);
    free(t.list);
    free(t.node);
    free(t.source);
    free(t.has);
    free(t.entry);
}

void *small_blocks_plan(planner *gpu, const layout *l) {
    small_blocks_tables *tables = gpu->host(gpu, sizeof(small_blocks_tables));
    const small_lists rows = {l, true, row_lists(l)}, columns = {l, false, column_lists(l)};
    build_small(gpu, &tables->forward, &rows, l->in_block);
    build_small(gpu, &tables->backward, &columns, l->in_block);
    tables->partial = gpu->partial(gpu, "small_blocks", (size_t)gpu->processors, SMALL_UNITS * 256);
    return tables;
}
