/* The tasks of wgrad_one_gate: which tiles of dW a thread block makes together.
 *
 * Tasks are cut from groups of neighbouring rows. A group's columns are sorted by their number of
 * tiles. Tasks that take columns in this order have few rows or few columns, so they need the
 * fewest operands in all, but the last tasks have the most. If columns are dealt out to the tasks
 * in turn instead, each batch has about as many inputs as any other, and no multiprocessor gets
 * more than its share. In patterns of neighbours this takes hardly more operands.
 *
 * The plan tries several sizes of groups, both ways, several sizes of tasks, and one to three
 * batches to a task, and takes what should be the fastest. */
#include "plan/wgrad_one_gate.h"
#include "core/memory.h"

#include <math.h>
#include <stdlib.h>

enum { MOST_GROUP = 16 /* rows a task may have */ };

/* The pattern in tiles: row r has tiles start[r] <= k < start[r + 1]. */
typedef struct tile_lists {
    int rows, columns;
    int *start, *column, *position; /* position: of the tile's block in its row's list */
} tile_lists;

typedef struct tile_column {
    int column;
    unsigned mask; /* bit r: there is a tile in the group's row r */
} tile_column;

/* The columns of each group of `rows` neighbouring rows. */
typedef struct column_groups {
    int rows, count;
    int *start; /* [count + 1] */
    tile_column *columns;
} column_groups;

/* How tasks are cut, and the tasks that were cut; without tables they are only counted. */
typedef struct wgrad_one_gate_cut {
    int batches;       /* of a task */
    int group, target; /* rows of a group; tiles of a task, at most */
    bool dealt;        /* whether columns are dealt out in turn */
    double cost;
    int tasks, listed;       /* listed: operand tiles of all */
    int rows, inputs;        /* the most of a task, of a batch */
    unsigned char *operands; /* by each task */
    sampled_task *task;
    uint16_t *tile;
    sampled_slot *slot;
} wgrad_one_gate_cut;

static tile_lists list_tiles(const layout *l) {
    const int across = l->in_block / EDGE, down = l->gates * across;
    const int taps =
        max(l->taps, 1); /* of a convolution each is a block, and reads a node of its own */
    const size_t tiles = (size_t)l->blocks * taps * across * down;
    tile_lists t = {.rows = l->out_nodes * down, .columns = l->in_nodes * taps * across};
    t.start = mem_alloc((size_t)t.rows + 1, sizeof *t.start);
    t.column = mem_alloc(tiles, sizeof *t.column);
    t.position = mem_alloc(tiles, sizeof *t.position);
    for (int r = 0, made = 0; r < t.rows; r++) {
        const int first = l->row_start[r / down], count = l->row_start[r / down + 1] - first;
        for (int k = 0; k < count * taps; k++) {
            for (int c = 0; c < across; c++, made++) {
                const int node = l->row_column[first + k / taps] * taps + k % taps;
                t.column[made] = node * across + c;
                t.position[made] = k;
            }
        }
        t.start[r + 1] = made;
    }
    return t;
}

/* ------------------------------------------------------------------------------------ columns */

static int by_count(const void *one, const void *two) {
    const tile_column *a = one, *b = two;
    int more = __builtin_popcount(b->mask) - __builtin_popcount(a->mask);
    if (more) return more;
    if (a->mask != b->mask) return a->mask < b->mask ? -1 : 1;
    return a->column - b->column;
}

/* Collects each group's columns, and sorts them by their number of tiles. */
static column_groups group_columns(const tile_lists *l, int rows) {
    column_groups g = {.rows = rows, .count = (l->rows + rows - 1) / rows};
    unsigned *mask = mem_alloc((size_t)l->columns, sizeof *mask);
    g.start = mem_alloc((size_t)g.count + 1, sizeof *g.start);
    g.columns = mem_alloc((size_t)l->start[l->rows], sizeof *g.columns);
    for (int i = 0; i < g.count; i++) {
        tile_column *columns = g.columns + g.start[i];
        int made = 0;
        for (int r = i * rows; r < min((i + 1) * rows, l->rows); r++) {
            for (int k = l->start[r]; k < l->start[r + 1]; k++) {
                const int c = l->column[k];
                if (mask[c] == 0) columns[made++].column = c;
                mask[c] |= 1u << (r - i * rows);
            }
        }
        for (int c = 0; c < made; c++) {
            columns[c].mask = mask[columns[c].column];
            mask[columns[c].column] = 0;
        }
        qsort(columns, (size_t)made, sizeof *columns, by_count);
        g.start[i + 1] = g.start[i] + made;
    }
    free(mask);
    return g;
}

/* Deals columns out to `hands` hands in turn; with one hand, copies them. */
static void deal_columns(tile_column *to, const tile_column *columns, int count, int hands) {
    for (int hand = 0, made = 0; hand < hands; hand++) {
        for (int c = hand; c < count; c += hands) to[made++] = columns[c];
    }
}

/* Takes up to *room tiles from the columns into `taken`: whole columns, then a part of one. Returns
 * how many columns; lowers *room. */
static int take_columns(tile_column *columns, int count, int most, int *room, tile_column *taken) {
    int made = 0, part = -1;
    for (int i = 0; *room > 0 && i < count && made < most; i++) {
        const int tiles = __builtin_popcount(columns[i].mask);
        if (tiles > *room) part = i;
        if (tiles == 0 || tiles > *room) continue;
        taken[made++] = columns[i];
        columns[i].mask = 0;
        *room -= tiles;
    }
    if (*room == 0 || made == most || part < 0) return made;
    taken[made] = (tile_column){columns[part].column, 0};
    for (int tiles = *room; tiles > 0; tiles--) {
        const unsigned lowest = columns[part].mask & -columns[part].mask;
        taken[made].mask |= lowest;
        columns[part].mask ^= lowest;
    }
    *room = 0;
    return made + 1;
}

/* -------------------------------------------------------------------------------------- tasks */

/* A batch to be dealt out to warps. */
typedef struct batch {
    int row0;      /* the group's first row */
    unsigned rows; /* that the task has */
    const tile_column *taken;
    int count;
} batch;

static int position_of(const tile_lists *l, int row, int column) {
    int k = l->start[row];
    while (l->column[k] != column) k++;
    return l->position[k];
}

/* Which of a task's rows. */
static int place_of(unsigned rows, int row) {
    return __builtin_popcount(rows & ((1u << row) - 1));
}

/* Row by row. */
static void deal_slots(const tile_lists *l, const batch *b, sampled_slot *slot) {
    sampled_slot list[BATCH];
    int made = 0;
    for (int r = 0; r < MOST_GROUP; r++) {
        for (int q = 0; q < b->count; q++) {
            if (!(b->taken[q].mask >> r & 1)) continue;
            const int position = position_of(l, b->row0 + r, b->taken[q].column);
            list[made++] = (sampled_slot){(uint16_t)position, (unsigned char)place_of(b->rows, r),
                                          (unsigned char)q};
        }
    }
    for (int w = 0; w < CONSUMER_WARPS; w++) {
        const int from = made * w / CONSUMER_WARPS, past = made * (w + 1) / CONSUMER_WARPS;
        for (int s = 0; s < SLOTS; s++) {
            sampled_slot none = {NO_TILE, past > from ? list[past - 1].row : (unsigned char)0, 0};
            slot[w * SLOTS + s] = from + s < past ? list[from + s] : none;
        }
    }
}

/* Makes a task of at most `room` tiles; returns how many it has. */
static int cut_task(wgrad_one_gate_cut *p, const tile_lists *l, int row0, tile_column *columns,
                    int count, int room) {
    const int batches = p->batches;
    const int most = min((TILES - 2 * p->group) / max(2, batches), BATCH);
    tile_column taken[SAMPLED_BATCHES][BATCH];
    sampled_task task = {.first = p->listed};
    unsigned rows = 0;
    int made = 0, listed = 0;
    for (int h = 0; h < batches; h++) {
        const int wanted = room * (h + 1) / batches - room * h / batches;
        int left = wanted;
        task.inputs[h] = (uint16_t)take_columns(columns, count, most, &left, taken[h]);
        for (int q = 0; q < task.inputs[h]; q++) rows |= taken[h][q].mask;
        made += wanted - left;
        listed += task.inputs[h];
        p->inputs = max(p->inputs, task.inputs[h]);
    }
    task.rows = (uint16_t)__builtin_popcount(rows);
    listed += task.rows;
    p->rows = max(p->rows, task.rows);
    if (p->task) {
        p->task[p->tasks] = task;
        uint16_t *tile = p->tile + p->listed;
        for (unsigned left = rows; left; left &= left - 1) {
            *tile++ = (uint16_t)(row0 + __builtin_ctz(left));
        }
        for (int h = 0; h < batches; h++) {
            const batch b = {row0, rows, taken[h], task.inputs[h]};
            const size_t at = ((size_t)p->tasks * batches + h) * BATCH;
            for (int q = 0; q < b.count; q++) *tile++ = (uint16_t)taken[h][q].column;
            deal_slots(l, &b, p->slot + at);
        }
    }
    p->operands[p->tasks++] = (unsigned char)listed;
    p->listed += listed;
    return made;
}

static void cut_tasks(wgrad_one_gate_cut *p, const tile_lists *l, const column_groups *g) {
    const int full = p->batches * BATCH;
    tile_column *columns = mem_alloc((size_t)l->columns, sizeof *columns);
    p->tasks = p->listed = p->rows = p->inputs = 0;
    for (int i = 0; i < g->count; i++) {
        const tile_column *sorted = g->columns + g->start[i];
        int count = g->start[i + 1] - g->start[i], left = 0;
        for (int c = 0; c < count; c++) left += __builtin_popcount(sorted[c].mask);
        int tasks = (left + p->target - 1) / p->target;
        deal_columns(columns, sorted, count, p->dealt ? tasks * p->batches : 1);
        for (tile_column *first = columns; left > 0; tasks--) {
            while (first->mask == 0) first++, count--;
            const int even = (left + max(tasks, 1) - 1) / max(tasks, 1);
            const int room = min(even, tasks > 1 ? full : p->target);
            left -= cut_task(p, l, i * g->rows, first, count, room);
        }
    }
    free(columns);
}

/* --------------------------------------------------------------------------------------- plans */

/* How long a task takes, in units of a multiprocessor's time for one operand tile from L2, at about
 * 8.5 TB/s for all. Loads overlap multiplications; where both take equally long, together they take
 * a fifth more than one. The more rows a task has, the fewer of a warp's tiles share a row. If a
 * task is one batch and shared memory holds two of its panels, but not three, the panels come too
 * late. The formula fits what was measured on an H200 to about 15 %. */
static double task_cost(const wgrad_one_gate_cut *p, int operands) {
    const double multiply = p->batches * BATCH * 0.6 * (1 + p->group / 200.0);
    const double loads = (double)operands * operands;
    const bool late = p->batches == 1 && 3 * (p->rows + p->inputs) > TILES;
    return (late ? 1.12 : 1) * sqrt(sqrt(loads * loads + pow(multiply, 4)));
}

/* The plan's time: halfway between the average multiprocessor's and the busiest one's, as those
 * that end early leave more of the L2 to the others. */
static double plan_cost(const wgrad_one_gate_cut *p, int processors) {
    const double turn = 1;
    double sum = 0, most = 0;
    for (int processor = 0; processor < processors; processor++) {
        double cost = 0;
        for (int i = processor; i < p->tasks; i += processors) {
            cost += task_cost(p, p->operands[i]) + turn;
        }
        sum += cost;
        most = fmax(most, cost);
    }
    return (sum / processors + most) / 2;
}

/* Tries tasks of such a size that they fill whole rounds of all multiprocessors, or one round more,
 * each with some slack, since no group's tiles divide evenly. Returns the best of these and
 * `best`. */
static wgrad_one_gate_cut try_targets(wgrad_one_gate_cut plan, const wgrad_one_gate_cut *best,
                                      const tile_lists *l, const column_groups *g, int processors) {
    const int full = plan.batches * BATCH, tiles = l->start[l->rows];
    wgrad_one_gate_cut better = *best;
    const int rounds = tiles / (full * processors) + 1;
    for (int attempt = 0; attempt < 6 && plan.target < full; attempt++) {
        const int tasks = (rounds + attempt / 3) * processors;
        const double even = (double)tiles / tasks;
        const int target = min(full, (int)(even * (1 + 0.04 * (attempt % 3)) + 1));
        if (target == plan.target) continue;
        plan.target = target;
        cut_tasks(&plan, l, g);
        plan.cost = plan_cost(&plan, processors);
        if (better.tasks == 0 || plan.cost < better.cost) better = plan;
    }
    return better;
}

/* Tries all groups, batches and orders. */
static wgrad_one_gate_cut choose_plan(const tile_lists *l, int processors,
                                      unsigned char *operands) {
    static const int groups[] = {2, 4, 6, 8, 12, 16};
    wgrad_one_gate_cut best = {0};
    for (size_t i = 0; i < sizeof groups / sizeof groups[0]; i++) {
        const column_groups g = group_columns(l, groups[i]);
        for (int batches = 1; batches <= SAMPLED_BATCHES; batches++) {
            for (int dealt = 0; dealt < 2; dealt++) {
                const wgrad_one_gate_cut plan = {
                    .batches = batches, .group = g.rows, .dealt = dealt, .operands = operands};
                best = try_targets(plan, &best, l, &g, processors);
            }
        }
        free(g.start);
        free(g.columns);
    }
    return best;
}

/* How many of the operand tiles in shared memory are for rows. */
static int share_tiles(const wgrad_one_gate_cut *p) {
    const int panels = TILES / max(1, p->rows + p->batches * p->inputs);
    return max(2, min(panels, RING_BATCHES)) * p->rows;
}

/* A convolution has few tiles, and sums over many positions. The positions are split if tasks of
 * full size would leave multiprocessors idle. */
static int splits_of(size_t tiles, int processors) {
    const double tasks = ceil(1.2 * (double)tiles / (SAMPLED_BATCHES * BATCH));
    return max(1, min((int)(processors / tasks), 64));
}

void *wgrad_one_gate_plan(planner *gpu, const layout *l) {
    wgrad_one_gate_tables *t = gpu->host(gpu, sizeof(wgrad_one_gate_tables));
    tile_lists lists = list_tiles(l);
    const size_t tiles = (size_t)lists.start[lists.rows];
    if (tiles == 0) return t;
    unsigned char *operands = mem_alloc(tiles, sizeof *operands);
    t->splits = l->taps ? splits_of(tiles, gpu->processors) : 1;
    if (t->splits > 1) {
        const size_t bytes = (size_t)t->splits * layout_weights(l) * sizeof(float);
        t->partial = gpu->table(gpu, NULL, bytes);
    }
    wgrad_one_gate_cut p = choose_plan(&lists, gpu->processors / t->splits, operands);
    const size_t tasks = (size_t)p.tasks, listed = (size_t)p.listed;
    const size_t slots = tasks * p.batches * BATCH;
    p.task = mem_alloc(tasks, sizeof *p.task);
    p.tile = mem_alloc(listed, sizeof *p.tile);
    p.slot = mem_alloc(slots, sizeof *p.slot);
    column_groups groups = group_columns(&lists, p.group);
    cut_tasks(&p, &lists, &groups);
    t->tasks = p.tasks;
    t->batches = p.batches;
    t->rows = p.rows;
    t->inputs = p.inputs;
    t->row_tiles = share_tiles(&p);
    t->task = PLAN_TABLE(gpu, p.task, tasks);
    t->tile = PLAN_TABLE(gpu, p.tile, listed);
    t->slot = PLAN_TABLE(gpu, p.slot, slots);
    void *tables[] = {lists.start, lists.column, lists.position, p.task,        p.tile,
                      p.slot,      operands,     groups.start,   groups.columns};
    for (size_t i = 0; i < sizeof tables / sizeof tables[0]; i++) free(tables[i]);
    return t;
}
