/* The tasks of wgrad_small_blocks: which strips of dW a thread block makes together.
 *
 * A task has the blocks of a few neighbouring rows in some columns. It loads each row and column
 * once, so it should have about as many rows as columns: a group of rows is cut along its columns,
 * in their order, into tasks of about equally many strips. Hence operands come in boxes of
 * neighbours, and patterns of neighbours need few of them. The plan tries how many tasks a group is
 * cut into, how many strips a task has, and whether it loads 64 columns at a time or, with twice
 * the operands, 32, and takes what should be the fastest. */
#include "plan/wgrad_small_blocks.h"
#include "core/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ROWS = 128 /* that a group has */ };

/* A row of the pattern, where gates count as separate rows. Its blocks are first[r] <= k < past[r]
 * of `column`. */
typedef struct strip_lists {
    int b, rows, columns;
    int *first, *past;
    const int *column;
    char *seen; /* [columns] for columns_of */
} strip_lists;

/* What a task's time depends on. */
typedef struct strip_size {
    int rows, tiles, strips; /* tiles: of 8 rows of operands */
} strip_size;

typedef struct strip_plan {
    int cuts, target; /* tasks of a group; strips of a task, about */
    int panel, room;  /* columns of a stage; blocks' rows of operands that it has room for */
    double cost;
    int tasks, listed, strips;
    int tiles, slots; /* the most of a task, of a warp */
    strip_size *size; /* of each task; without the tables that follow it is only counted */
    strip_task *task;
    uint16_t *box, *position;
    uint32_t *place;
} strip_plan;

static strip_lists list_rows(const layout *l) {
    strip_lists s = {.b = l->in_block, .rows = l->out_nodes * l->gates, .columns = l->in_nodes};
    s.first = mem_alloc((size_t)s.rows, sizeof *s.first);
    s.past = mem_alloc((size_t)s.rows, sizeof *s.past);
    s.column = l->row_column;
    s.seen = mem_alloc((size_t)l->in_nodes, sizeof *s.seen);
    for (int r = 0; r < s.rows; r++) {
        s.first[r] = l->row_start[r / l->gates];
        s.past[r] = l->row_start[r / l->gates + 1];
    }
    return s;
}

/* The number of strips of `blocks` blocks of a row. */
static int strips_of(const strip_lists *l, int blocks) {
    return l->b == 8 ? (blocks + 1) / 2 : blocks;
}

/* ---------------------------------------------------------------------------------------- tasks */

/* A group's rows, and how far tasks have come in their lists. */
typedef struct strip_group {
    int row, rows;
    int at[MOST_ROWS];
} strip_group;

/* A task's share of the group: an interval of each row's list. */
typedef struct strip_share {
    int strips, inputs, rows;
    int column[STRIP_BOXES];
    int from[MOST_ROWS], past[MOST_ROWS];
} strip_share;

/* Adds columns until there are `wanted` strips, or no room for more. */
static strip_share take_share(const strip_lists *l, strip_group *g, int wanted, int room) {
    strip_share s;
    const int most = STRIP_WARPS * strip_slots(l->b);
    s.strips = s.inputs = s.rows = 0;
    memcpy(s.from, g->at, sizeof s.from);
    int *at = g->at;
    while (s.strips < wanted) {
        int column = l->columns, more = 0, rows = s.rows;
        for (int r = 0; r < g->rows; r++) {
            if (at[r] < l->past[g->row + r]) column = min(column, l->column[at[r]]);
        }
        if (column == l->columns) break;
        for (int r = 0; r < g->rows; r++) {
            if (at[r] == l->past[g->row + r] || l->column[at[r]] != column) continue;
            const int blocks = at[r] - s.from[r];
            more += strips_of(l, blocks + 1) - strips_of(l, blocks);
            rows += blocks == 0;
        }
        if (s.strips + more > most || rows + s.inputs + 1 > room) break;
        for (int r = 0; r < g->rows; r++) {
            at[r] += at[r] < l->past[g->row + r] && l->column[at[r]] == column;
        }
        s.column[s.inputs++] = column;
        s.strips += more;
        s.rows = rows;
    }
    memcpy(s.past, g->at, sizeof s.past);
    return s;
}

/* Makes boxes of rows or columns; neighbours share large boxes. place[i] is the place of
 * the i-th. */
static void cut_boxes(const int *list, int count, uint16_t *boxes, uint16_t **box, int *place) {
    int lone[STRIP_BOXES], large = 0, single = 0;
    for (int i = 0; i < count;) {
        if (i + LARGE_BOX <= count && list[i + LARGE_BOX - 1] == list[i] + LARGE_BOX - 1) {
            *(*box)++ = (uint16_t)list[i];
            for (int k = 0; k < LARGE_BOX; k++) place[i++] = large * LARGE_BOX + k;
            large++;
        } else {
            lone[single++] = i++;
        }
    }
    for (int i = 0; i < single; i++) {
        *(*box)++ = (uint16_t)list[lone[i]];
        place[lone[i]] = large * LARGE_BOX + i;
    }
    boxes[0] = (uint16_t)large;
    boxes[1] = (uint16_t)single;
}

/* Writes a task's lists. Returns the number of its boxes. */
static int list_share(const strip_plan *p, const strip_lists *l, const strip_group *g,
                      const strip_share *s, strip_task *task) {
    uint16_t *box = p->box + p->listed;
    uint32_t *place = p->place + p->strips;
    uint16_t *position = p->position + (size_t)p->strips * (16 / l->b);
    int rows[MOST_ROWS], row_place[MOST_ROWS], input_place[STRIP_BOXES], used = 0;
    for (int r = 0; r < g->rows; r++) {
        if (s->past[r] > s->from[r]) rows[used++] = g->row + r;
    }
    cut_boxes(rows, used, task->boxes, &box, row_place);
    cut_boxes(s->column, s->inputs, task->boxes + 2, &box, input_place);
    for (int i = 0; i < used; i++) {
        const int r = rows[i] - g->row, first = l->first[rows[i]], past = s->past[r];
        for (int k = s->from[r], q = 0; k < past; k++) {
            while (s->column[q] != l->column[k]) q++;
            const uint32_t row = (uint32_t)row_place[i], input = (uint32_t)input_place[q];
            *position++ = (uint16_t)(k - first);
            if (l->b == 16) {
                *place++ = row | input * 2 << 8 | (input * 2 + 1) << 16;
            } else if ((k - s->from[r]) % 2) {
                place[-1] = (place[-1] & 0xFFFF) | input << 16;
            } else {
                *place++ = row | input << 8 | input << 16;
                if (k + 1 == past) *position++ = NO_POSITION;
            }
        }
    }
    return task->boxes[0] + task->boxes[1] + task->boxes[2] + task->boxes[3];
}

static void add_task(strip_plan *p, const strip_lists *l, const strip_group *g,
                     const strip_share *s) {
    const strip_size size = {s->rows, (s->rows + s->inputs) * (l->b / 8), s->strips};
    int boxes = s->rows + s->inputs; /* at most */
    if (p->task) {
        strip_task *task = &p->task[p->tasks];
        *task = (strip_task){.first = p->listed, .slot = p->strips, .slots = (uint16_t)s->strips};
        boxes = list_share(p, l, g, s, task);
    }
    p->size[p->tasks++] = size;
    p->listed += boxes;
    p->strips += s->strips;
    p->tiles = max(p->tiles, size.tiles);
    p->slots = max(p->slots, (s->strips + STRIP_WARPS - 1) / STRIP_WARPS);
}

/* The number of columns in which a group's rows have blocks. */
static int columns_of(const strip_lists *l, const strip_group *g) {
    int columns = 0;
    memset(l->seen, 0, (size_t)l->columns);
    for (int r = g->row; r < g->row + g->rows; r++) {
        for (int k = l->first[r]; k < l->past[r]; k++) {
            columns += !l->seen[l->column[k]];
            l->seen[l->column[k]] = 1;
        }
    }
    return columns;
}

/* Makes groups of as many rows as `cuts` tasks can compute, at least one row. */
static void cut_strips(strip_plan *p, const strip_lists *l) {
    const int most = min(MOST_ROWS, p->room / 2);
    p->tasks = p->listed = p->strips = p->tiles = p->slots = 0;
    strip_group g = {0};
    for (g.row = 0; g.row < l->rows; g.row += g.rows) {
        int strips = 0;
        for (g.rows = 0; g.rows < min(most, l->rows - g.row); g.rows++) {
            const int r = g.row + g.rows, more = strips_of(l, l->past[r] - l->first[r]);
            if (g.rows > 0 && strips + more > p->cuts * p->target) break;
            strips += more;
            g.at[g.rows] = l->first[r];
        }
        const int across = p->room - g.rows, columns = columns_of(l, &g);
        int tasks = max((strips + p->target - 1) / p->target, (columns + across - 1) / across);
        for (; strips > 0; tasks--) {
            const int parts = max(1, tasks);
            const strip_share s = take_share(l, &g, (strips + parts - 1) / parts, p->room);
            add_task(p, l, &g, &s);
            strips = 0;
            for (int r = 0; r < g.rows; r++) strips += strips_of(l, l->past[g.row + r] - g.at[r]);
        }
    }
}

/* ---------------------------------------------------------------------------------------- plans
 * Times are in cycles of a multiprocessor for 64 columns, and fit what 380 plans took on an H200 to
 * 4 %. */

/* The time of a strip, whose fragments come from shared memory. */
static double strip_time(const strip_lists *l) {
    return l->b == 8 ? 18.8 : 21.2;
}

/* The number of strips that a warp multiplies in a kernel for `most`. */
static int multiplied(const strip_lists *l, int strips, int most) {
    if (most <= FEW_STRIPS) return FEW_STRIPS;
    if (most <= SOME_STRIPS) return SOME_STRIPS;
    const int each = (strips + STRIP_WARPS - 1) / STRIP_WARPS;
    return l->b == 8 ? (each + STRIP_STEP - 1) / STRIP_STEP * STRIP_STEP : strip_slots(l->b);
}

/* Loads and multiplications go on side by side, and then there is the wait from stage to stage.
 * Rows of 32 columns come at two thirds of the rate. Each row of a task, and each warp, begins
 * with dy's fragments. */
static double task_time(const strip_plan *p, const strip_lists *l, const strip_size *s) {
    const int strips = STRIP_WARPS * multiplied(l, s->strips, p->slots);
    const double loads = (p->panel == 64 ? 19.4 : 29) * s->tiles;
    const double products = strips * strip_time(l) + 0.5 * (s->rows + STRIP_WARPS) * l->b;
    return pow(pow(loads, 8) + pow(products, 8), 0.125) + 590;
}

/* The plan's time: nearly the busiest multiprocessor's, to which the others leave more of the
 * L2. */
static double plan_cost(const strip_plan *p, const strip_lists *l, int processors) {
    double sum = 0, most = 0;
    for (int processor = 0; processor < processors; processor++) {
        double cost = 0;
        for (int i = processor; i < p->tasks; i += processors) cost += task_time(p, l, &p->size[i]);
        sum += cost;
        most = fmax(most, cost);
    }
    return 0.1 * sum / processors + 0.9 * most;
}

static int count_strips(const strip_lists *l) {
    int strips = 0;
    for (int r = 0; r < l->rows; r++) strips += strips_of(l, l->past[r] - l->first[r]);
    return strips;
}

/* Tasks for whole rounds of all multiprocessors, and one more, with some room as no group's strips
 * divide evenly. */
static strip_plan choose_plan(const strip_lists *l, int processors, strip_size *size) {
    static const int cuts[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32};
    const int most = STRIP_WARPS * strip_slots(l->b), strips = count_strips(l);
    const int rounds = strips / (most * processors) + 1;
    strip_plan best = {0};
    for (size_t i = 0; i < sizeof cuts / sizeof cuts[0] * 2; i++) {
        for (int attempt = 0; attempt < 4; attempt++) {
            const int tasks = (rounds + attempt / 2) * processors;
            const double even = (double)strips / tasks;
            const int target = (int)(even * (1.01 + 0.05 * (attempt % 2)) + 1);
            strip_plan plan = {.cuts = cuts[i / 2], .target = min(target, most)};
            plan.panel = i % 2 ? 32 : 64;
            plan.room = STRIP_TILES / (i % 2 ? 1 : 2) / (l->b / 8); /* for two stages */
            plan.size = size;
            cut_strips(&plan, l);
            plan.cost = plan_cost(&plan, l, processors);
            if (best.tasks == 0 || plan.cost < best.cost) best = plan;
        }
    }
    return best;
}

static void create_tasks(planner *gpu, strip_tables *t, const strip_lists *l, int blocks) {
    strip_size *size = mem_alloc((size_t)blocks, sizeof *size);
    strip_plan p = choose_plan(l, gpu->processors, size);
    const size_t tasks = (size_t)p.tasks, strips = (size_t)p.strips;
    const size_t positions = strips * (size_t)(16 / l->b);
    p.task = mem_alloc(tasks, sizeof *p.task);
    p.box = mem_alloc((size_t)p.listed, sizeof *p.box);
    p.place = mem_alloc(strips, sizeof *p.place);
    p.position = mem_alloc(positions, sizeof *p.position);
    cut_strips(&p, l);
    t->tasks = p.tasks;
    t->tiles = p.tiles;
    t->slots = p.slots;
    t->panel = p.panel;
    t->task = PLAN_TABLE(gpu, p.task, tasks);
    t->box = PLAN_TABLE(gpu, p.box, (size_t)p.listed);
    t->place = PLAN_TABLE(gpu, p.place, strips);
    t->position = PLAN_TABLE(gpu, p.position, positions);
    free(p.task);
    free(p.box);
    free(p.place);
    free(p.position);
    free(size);
}

void *wgrad_small_blocks_plan(planner *gpu, const layout *l) {
    strip_tables *made = gpu->host(gpu, sizeof(strip_tables));
    strip_lists lists = list_rows(l);
    if (l->blocks > 0) create_tasks(gpu, made, &lists, l->blocks * l->gates);
    free(lists.first);
    free(lists.past);
    free(lists.seen);
    return made;
}
