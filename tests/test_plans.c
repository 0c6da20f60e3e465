/* The plans of a GPU's products, without a GPU: on random patterns each of them has every block of
 * the layout once, at its place, and no more in a part than its kernel has room for. */
#include "pair.h"

#include "core/memory.h"
#include "graph/graph.h"
#include "plan/few_columns.h"
#include "plan/gather.h"
#include "plan/small_blocks.h"
#include "plan/wgrad_one_gate.h"
#include "plan/wgrad_small_blocks.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_TABLES = 128, PROCESSORS = 132, CASES = 24 };

/* A planner whose tables stay on the host. */
typedef struct host_planner {
    planner of;
    void *table[MOST_TABLES];
    size_t bytes[MOST_TABLES];
    int tables;
    size_t partial; /* floats of the latest partial sums */
} host_planner;

static void *keep(planner *p, const void *table, size_t bytes) {
    host_planner *own = (host_planner *)p;
    assert_true(own->tables < MOST_TABLES);
    char *copy = mem_alloc(bytes + 1, 1);
    if (table) memcpy(copy, table, bytes);
    own->table[own->tables] = copy;
    own->bytes[own->tables++] = bytes;
    return copy;
}

static void *keep_zeros(planner *p, size_t bytes) {
    return keep(p, NULL, bytes);
}

static partial_sums keep_partial(planner *p, const char *kernel, size_t slots, size_t floats) {
    (void)kernel;
    ((host_planner *)p)->partial = slots * floats;
    return (partial_sums){0};
}

/* Asserts that a table has elements `first` to `end` - 1. */
static void assert_within(const host_planner *p, const void *table, size_t size, long first,
                          long end) {
    for (int i = 0; i < p->tables; i++) {
        if (p->table[i] != table) continue;
        assert_true(0 <= first && first <= end && (size_t)end * size <= p->bytes[i]);
        return;
    }
    fail_msg("not a table of the plan");
}

#define WITHIN(p, table, first, end) assert_within(p, table, sizeof *(table), first, end)

/* What a plan is to have: for each block, as its kernel numbers them, the node that it is part of
 * and the source that it is multiplied by; and whether it was met. */
typedef struct expected {
    int blocks;
    int *node, *source;
    char *met;
} expected;

/* What a product's plan is to have. Its kernel may see each node of the layout as `nodes_of` nodes,
 * one for each gate, or each source as `sources_of`, one for each gate or tap. A block of the
 * layout then counts as that many, numbered one after another. */
static expected expect(const layout *l, bool forward, int nodes_of, int sources_of) {
    const int each = nodes_of * sources_of, blocks = l->blocks * each;
    expected e = {blocks, mem_alloc((size_t)blocks, sizeof(int)),
                  mem_alloc((size_t)blocks, sizeof(int)), mem_alloc((size_t)blocks, 1)};
    for (int row = 0; row < l->out_nodes; row++) {
        for (int k = l->row_start[row]; k < l->row_start[row + 1]; k++) {
            const int node = forward ? row : l->row_column[k];
            const int source = forward ? l->row_column[k] : row;
            for (int i = 0; i < each; i++) {
                e.node[k * each + i] = node * nodes_of + (nodes_of > 1 ? i : 0);
                e.source[k * each + i] = source * sources_of + (sources_of > 1 ? i : 0);
            }
        }
    }
    return e;
}

static void meet(expected *e, int block, int node, int source) {
    assert_in_range(block, 0, e->blocks - 1);
    assert_int_equal(e->node[block], node);
    assert_int_equal(e->source[block], source);
    assert_int_equal(e->met[block]++, 0);
}

static void assert_all_met(expected *e) {
    for (int i = 0; i < e->blocks; i++) assert_int_equal(e->met[i], 1);
    free(e->node);
    free(e->source);
    free(e->met);
}

/* ------------------------------------------------------------------------------------ patterns */

/* A random pattern of blocks, symmetric or not, with lists of any length; with taps that of a
 * convolution. */
static layout *random_layout(int block, int gates, int taps) {
    const int most = (int)(8000 / block * (0.05 + random_uniform()));
    const int out = 6 + (int)random_below((uint64_t)most),
              in = 6 + (int)random_below((uint64_t)most);
    const double share = 0.002 + 0.9 * random_uniform() * (random_below(3) ? random_uniform() : 1);
    layout *l;
    if (taps == 0 && random_uniform() < 0.5) {
        graph *g = nasty_graph(out, share, random_uniform() < 0.5);
        l = layout_blocks(g, block, gates);
        graph_free(g);
    } else {
        int32_t(*pairs)[2] = mem_alloc((size_t)out * (size_t)in, sizeof *pairs);
        int count = 0;
        for (int i = 0; i < out; i++) {
            for (int j = 0; j < in; j++) {
                if (random_uniform() >= share && (i || j)) continue;
                pairs[count][0] = i;
                pairs[count++][1] = j;
            }
        }
        l = layout_pairs(out, in, pairs, count, block, taps);
        l->gates = gates;
        free(pairs);
    }
    return l;
}

/* Calls `check` with plans of random layouts, for GPUs with many and with few multiprocessors. */
static void check_plans(kernel_plan *plan, const int *blocks, const int (*shapes)[2], int count,
                        void (*check)(host_planner *, const layout *, void *)) {
    random_restart(20);
    for (int i = 0; i < CASES; i++) {
        const int *shape = shapes[random_below((uint64_t)count)];
        layout *l = random_layout(blocks[i % 2], shape[0], shape[1]);
        host_planner p = {
            .of = {i % 3 ? PROCESSORS : 20, i % 4 > 0, keep_zeros, keep, keep_partial}};
        check(&p, l, plan(&p.of, l));
        for (int k = 0; k < p.tables; k++) free(p.table[k]);
        layout_free(l);
    }
}

/* -------------------------------------------------------------------------------------- gather */

static int gather_ways[3]; /* how many cuts were even, of whole nodes, shared */

static void check_gather_cut(const host_planner *p, const layout *l, bool forward, int cut,
                             const gather_parts *made) {
    const int nodes_of = forward ? l->gates : 1, sources_of = max(l->taps, 1);
    const int gates = forward ? 1 : l->gates; /* that a block of the plan stands for */
    const int boxes = boxes_of_cut(l->in_block, gates, cut);
    const int most = l->taps ? nodes_of_taps(l->in_block)
                             : nodes_of_part(l->in_block, gates, made->shared ? 1 : boxes);
    expected e = expect(l, forward, nodes_of, sources_of);
    WITHIN(p, made->part, 0, made->count);
    for (int i = 0; i < made->count; i++) {
        const gather_part *part = &made->part[i];
        assert_in_range(part->nodes, 1, most);
        WITHIN(p, made->source, part->first, part->first + part->count + 1);
        for (int k = part->first, at = part->block; k < part->first + part->count; k++) {
            const uint32_t source = made->source[k];
            assert_true((source & ((1u << PART_NODES) - 1)) < 1u << part->nodes);
            for (int m = 0; m < part->nodes; m++) {
                if (!(source >> m & 1)) continue;
                WITHIN(p, made->block, at, at + LOOK_UP);
                meet(&e, made->block[at++], part->node[m], (int)(source >> PART_NODES));
            }
        }
        if (made->shared) { /* all parts run at once, and those of a node lie side by side */
            assert_in_range(part->shares, 1, MOST_SHARES);
            assert_in_range(part->share, 0, part->shares - 1);
            assert_true(made->count <= p->of.processors);
        } else if (!made->whole) { /* the parts before have sums of the first node alone */
            assert_in_range(i - part->first_part, 0, made->span - 1);
            for (int k = part->first_part; k < i; k++) {
                const gather_part *before = &made->part[k];
                assert_true(before->continues);
                assert_int_equal(before->node[before->nodes - 1], part->node[0]);
            }
        }
    }
    if (!made->whole) {
        assert_true((size_t)made->span * (size_t)l->in_block * (size_t)boxes * 2 * BOX <=
                    p->partial);
    }
    assert_all_met(&e);
    gather_ways[made->whole + made->shared]++;
}

static void check_gather(host_planner *p, const layout *l, void *plan) {
    const gather_tables *t = plan;
    for (int cut = l->taps ? GATHER_CUTS - 1 : 0; cut < GATHER_CUTS; cut++) {
        check_gather_cut(p, l, true, cut, &t->forward.cut[cut]);
        check_gather_cut(p, l, false, cut, &t->backward.cut[cut]);
    }
}

static void test_gather(void **state) {
    static const int blocks[] = {32, 64}, shapes[][2] = {{1, 0}, {3, 0}, {4, 0}, {1, 9}};
    (void)state;
    check_plans(gather_plan, blocks, shapes, 4, check_gather);
    for (int way = 0; way < 3; way++) assert_true(gather_ways[way] > 0);
}

/* -------------------------------------------------------------------------------- small blocks */

static void check_small_parts(const host_planner *p, const layout *l, bool forward,
                              const small_blocks_parts *made) {
    const int slots = SMALL_UNITS / l->in_block, depth = DEPTH / l->in_block;
    expected e = expect(l, forward, forward ? l->gates : 1, forward ? 1 : l->gates);
    WITHIN(p, made->stage, 0, made->count + 1);
    assert_memory_equal(made->stage, made->host_stage, ((size_t)made->count + 1) * sizeof(int));
    assert_int_equal(made->stage[made->count], made->stages);
    for (int part = 0; part < made->count; part++) {
        const uint16_t *node = made->node + part * slots;
        WITHIN(p, made->node, part * slots, (part + 1) * slots);
        assert_true(made->stage[part] < made->stage[part + 1]);
        for (int stage = made->stage[part]; stage < made->stage[part + 1]; stage++) {
            const uint16_t *source = made->source + stage * depth;
            const uint8_t *has = made->has + stage * slots;
            const int first = (int)(made->list[stage] >> PLACE_BITS);
            const int count = (int)(made->list[stage] & ((1u << PLACE_BITS) - 1));
            int bits = 0;
            WITHIN(p, made->entry, first, first + count);
            WITHIN(p, made->has, stage * slots, (stage + 1) * slots);
            for (int k = first; k < first + count; k++) {
                const int place = (int)(made->entry[k] & ((1u << PLACE_BITS) - 1));
                const int in = place / slots, slot = place % slots;
                assert_true(has[slot] >> in & 1);
                meet(&e, (int)(made->entry[k] >> PLACE_BITS), node[slot], source[in]);
            }
            for (int slot = 0; slot < slots; slot++) bits += __builtin_popcount(has[slot]);
            assert_int_equal(bits, count);
        }
    }
    assert_all_met(&e);
}

static void check_small_blocks(host_planner *p, const layout *l, void *plan) {
    const small_blocks_tables *t = plan;
    check_small_parts(p, l, true, &t->forward);
    check_small_parts(p, l, false, &t->backward);
}

static void test_small_blocks(void **state) {
    static const int blocks[] = {8, 16}, shapes[][2] = {{1, 0}, {4, 0}};
    (void)state;
    check_plans(small_blocks_plan, blocks, shapes, 2, check_small_blocks);
}

/* --------------------------------------------------------------------------------- few columns */

static void check_tasks(const host_planner *p, const few_columns_tasks *made, const int *start,
                        int nodes, int tiles, int units) {
    const int lists = nodes * tiles;
    int *met = mem_alloc((size_t)lists, sizeof *met); /* entries of each list */
    WITHIN(p, made->task, 0, made->count);
    assert_int_equal(made->count % made->cluster, 0);
    for (int i = 0; i < made->count; i++) {
        const few_columns_task *task = &made->task[i];
        if (task->log_parts < 0) continue;
        const int list = task->row / units, parts = 1 << task->log_parts;
        assert_in_range(list, 0, lists - 1);
        assert_true(parts <= made->cluster && parts <= MOST_PARTS);
        assert_int_equal(task->row % units, 0);
        assert_int_equal(task->first, start[list / tiles] + met[list]);
        /* The tasks of a list lie side by side within a cluster. */
        assert_int_equal(made->task[i / parts * parts].row, task->row);
        assert_int_equal(made->task[(i / parts + 1) * parts - 1].row, task->row);
        met[list] += task->count;
    }
    for (int i = 0; i < lists; i++) {
        assert_int_equal(met[i], start[i / tiles + 1] - start[i / tiles]);
    }
    free(met);
}

static void check_few_columns(host_planner *p, const layout *l, void *plan) {
    const few_columns_tables *t = plan;
    const int units = min(l->in_block, MOST_UNITS), parts = l->in_block / units;
    check_tasks(p, &t->rows, l->row_start, l->out_nodes, l->gates * parts, units);
    check_tasks(p, &t->columns, l->column_start, l->in_nodes, parts, units);
    assert_true(p->of.clusters || (t->rows.cluster == 1 && t->columns.cluster == 1));
}

static void test_few_columns(void **state) {
    static const int blocks[] = {16, 64}, shapes[][2] = {{1, 0}, {4, 0}};
    (void)state;
    check_plans(few_columns_plan, blocks, shapes, 2, check_few_columns);
}

/* --------------------------------------------------------------------------------------- wgrad */

static void check_one_gate(host_planner *p, const layout *l, void *plan) {
    const wgrad_one_gate_tables *t = plan;
    const int side = l->in_block / EDGE, taps = max(l->taps, 1);
    char *met = mem_alloc((size_t)l->blocks * (size_t)(taps * side * side), 1);
    int made = 0;
    assert_true(t->row_tiles >= t->rows && TILES - t->row_tiles >= t->inputs);
    for (int i = 0; i < t->tasks; i++) {
        const sampled_task *task = &t->task[i];
        int inputs = task->first + task->rows;
        assert_in_range(task->rows, 1, t->rows);
        for (int batch = 0; batch < t->batches; batch++, inputs += task->inputs[batch - 1]) {
            assert_in_range(task->inputs[batch], 0, t->inputs);
            WITHIN(p, t->tile, inputs, inputs + task->inputs[batch]);
            for (int k = 0; k < BATCH; k++) {
                const int at = (i * t->batches + batch) * BATCH + k;
                WITHIN(p, t->slot, at, at + 1);
                const sampled_slot *slot = &t->slot[at];
                if (slot->position == NO_TILE) continue;
                assert_true(slot->row < task->rows && slot->column < task->inputs[batch]);
                const int row = t->tile[task->first + slot->row];
                const int column = t->tile[inputs + slot->column];
                const int block = l->row_start[row / side] + slot->position / taps;
                assert_in_range(block, l->row_start[row / side], l->row_start[row / side + 1] - 1);
                assert_int_equal(column / side,
                                 l->row_column[block] * taps + slot->position % taps);
                const int tap = block * taps + slot->position % taps;
                assert_int_equal(met[(tap * side + row % side) * side + column % side]++, 0);
                made++;
            }
        }
    }
    assert_int_equal(made, l->blocks * taps * side * side);
    free(met);
}

static void test_wgrad_one_gate(void **state) {
    static const int blocks[] = {32, 64}, shapes[][2] = {{1, 0}, {1, 9}};
    (void)state;
    check_plans(wgrad_one_gate_plan, blocks, shapes, 2, check_one_gate);
}

/* The rows or columns of a task, by their place in shared memory. Returns how many boxes they
 * take. */
static int unpack_boxes(const uint16_t *box, const uint16_t boxes[2], int *at, int *places) {
    *places = 0;
    for (int i = 0; i < boxes[0] + boxes[1]; i++) {
        for (int k = 0; k < (i < boxes[0] ? LARGE_BOX : 1); k++) at[(*places)++] = box[i] + k;
    }
    return boxes[0] + boxes[1];
}

static void check_strips(host_planner *p, const layout *l, void *plan) {
    const strip_tables *t = plan;
    const int b = l->in_block, per_strip = 16 / b, halves = b / 8;
    char *met = mem_alloc((size_t)(l->blocks * l->gates), 1);
    assert_true(t->slots <= strip_slots(b) && (t->panel == 64 || t->panel == 32));
    assert_true(2 * t->tiles <= STRIP_TILES * 64 / t->panel); /* two stages have room */
    for (int i = 0; i < t->tasks; i++) {
        const strip_task *task = &t->task[i];
        int row[STRIP_BOXES * LARGE_BOX], column[STRIP_BOXES * LARGE_BOX], rows, columns;
        const uint16_t *box = t->box + task->first;
        const int row_boxes = unpack_boxes(box, task->boxes, row, &rows);
        const int boxes =
            row_boxes + unpack_boxes(box + row_boxes, task->boxes + 2, column, &columns);
        WITHIN(p, t->box, task->first, task->first + boxes);
        assert_true(boxes <= STRIP_BOXES && (rows + columns) * halves <= t->tiles);
        assert_true(task->slots <= STRIP_WARPS * t->slots);
        WITHIN(p, t->place, task->slot, task->slot + task->slots);
        for (int s = task->slot; s < task->slot + task->slots; s++) {
            const int place = (int)(t->place[s] & 0xFF);
            assert_true(place < rows);
            for (int k = 0; k < per_strip; k++) {
                const int position = t->position[s * per_strip + k];
                if (position == NO_POSITION) continue;
                const int node = row[place] / l->gates, block = l->row_start[node] + position;
                const int tile = (int)(t->place[s] >> (8 + 8 * k) & 0xFF);
                assert_in_range(block, l->row_start[node], l->row_start[node + 1] - 1);
                assert_true(tile / halves < columns);
                assert_int_equal(column[tile / halves], l->row_column[block]);
                assert_int_equal(met[block * l->gates + row[place] % l->gates]++, 0);
            }
        }
    }
    for (int i = 0; i < l->blocks * l->gates; i++) assert_int_equal(met[i], 1);
    free(met);
}

static void test_wgrad_small_blocks(void **state) {
    static const int blocks[] = {8, 16}, shapes[][2] = {{1, 0}, {4, 0}};
    (void)state;
    check_plans(wgrad_small_blocks_plan, blocks, shapes, 2, check_strips);
}

enum { WIDTH = 128 };

static void *plan_rows(planner *p, const layout *l) {
    return row_groups_plan(p, l, WIDTH);
}

static void check_groups(host_planner *p, const layout *l, void *plan) {
    const row_groups *g = plan;
    WITHIN(p, g->first, 0, g->count + 1);
    assert_int_equal(g->first[0], 0);
    assert_int_equal(g->first[g->count], l->blocks);
    for (int i = 0; i < g->count; i++) {
        assert_in_range(g->first[i + 1] - g->first[i], 1, WIDTH / l->in_block);
        assert_int_equal(g->row[g->first[i]], g->row[g->first[i + 1] - 1]);
    }
    for (int i = 0; i < l->out_nodes; i++) {
        for (int k = l->row_start[i]; k < l->row_start[i + 1]; k++) assert_int_equal(g->row[k], i);
    }
}

static void test_row_groups(void **state) {
    static const int blocks[] = {8, 32}, shapes[][2] = {{1, 0}, {4, 0}};
    (void)state;
    check_plans(plan_rows, blocks, shapes, 2, check_groups);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gather),
        cmocka_unit_test(test_small_blocks),
        cmocka_unit_test(test_few_columns),
        cmocka_unit_test(test_wgrad_one_gate),
        cmocka_unit_test(test_wgrad_small_blocks),
        cmocka_unit_test(test_row_groups),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
