/* The three products of a backend against those of a more trusted one (pair.h), on random shapes
 * and patterns, with all outputs poisoned first. */
#include "products.h"

#include <stdio.h>

static void check_products(precision precision) {
    pair p = open_pair(precision);
    random_restart(3);
    static const int blocks[] = {8, 16, 32, 64, 128};
    /* Wgrad takes multiples of it. */
    const int unit = wgrad_multiple(p.be) / p.be->product_multiple;
    const int columns[] = {1, 3, unit, 2 * unit, 17, unit, 3 * unit};
    for (size_t b = 0; b < sizeof blocks / sizeof blocks[0]; b++) {
        for (int gates = 1; gates <= 4; gates += gates == 1 ? 2 : 1) {
            for (int i = 0; i < 7; i++) {
                const shape s = {.nodes = blocks[b] > 32 ? 6 : 11,
                                 .block = blocks[b],
                                 .gates = gates,
                                 .columns = columns[i],
                                 .steps = i < 5 ? 1 : 3,
                                 .share = 0.1 + 0.5 * random_uniform(),
                                 .hubs = i != 2};
                check_shapes(&p, &s, 1);
            }
        }
    }
    close_pair(&p);
}

static void test_products_fp32(void **state) {
    (void)state;
    check_products(FP32);
}

static void test_products_bf16(void **state) {
    (void)state;
    check_products(BF16);
}

/* Shapes for which a GPU has special kernels. There fprop and dgrad take multiples of 32 columns,
 * and wgrad of bf16 takes multiples of 64, so it is left out for odd multiples of 32. The CPU, with
 * which the GPU is compared, computes them there. */
static void check_gpu_shapes_in(precision precision, uint64_t seed, const shape *shapes,
                                size_t count) {
    if (!test_device_is_cuda()) skip();
    pair p = open_pair(precision);
    random_restart(seed);
    check_shapes(&p, shapes, count);
    close_pair(&p);
}

static void check_gpu_shapes(uint64_t seed, const shape *shapes, size_t count) {
    check_gpu_shapes_in(BF16, seed, shapes, count);
}

/* wgrad of one gate with more blocks than a GPU computes at a time. Thread blocks then have several
 * tasks: full ones, the last one of a row group, and shares of the columns. Dense patterns are
 * computed in pairs of tiles, sparse ones in single tiles. The last shapes have few blocks and more
 * depth than shared memory holds. */
static void test_many_blocks(void **state) {
    (void)state;
    // clang-format off
    static const shape shapes[] = {
        {.reason = "a dense pattern: pairs of tiles, three tasks for each thread block",
         .nodes = 132, .block = 32, .gates = 1, .columns = 6, .share = 0.75, .hubs = true},
        {.reason = "a sparse pattern: single tiles in two batches a task, fewer tasks than "
                   "multiprocessors",
         .nodes = 310, .block = 32, .gates = 1, .columns = 6, .share = 0.02, .hubs = true},
        {.reason = "three batches a task, the most there are",
         .nodes = 200, .block = 32, .gates = 1, .columns = 6, .share = 0.1, .hubs = true},
        {.reason = "blocks of 64: four tiles each, in two batches a task",
         .nodes = 100, .block = 64, .gates = 1, .columns = 6, .share = 0.1},
        {.reason = "few tiles of little in common, and 11 steps: more depth than the rings hold",
         .nodes = 40, .block = 32, .gates = 1, .columns = 4, .steps = 11,
         .share = 0.3, .hubs = true},
        {.reason = "single tiles in two tasks a thread block, over six steps",
         .nodes = 150, .block = 32, .gates = 1, .columns = 2, .steps = 6, .share = 0.3},
        {.reason = "blocks of 64 in pairs, over six steps",
         .nodes = 65, .block = 64, .gates = 1, .columns = 2, .steps = 6,
         .share = 0.5, .hubs = true},
        {.reason = "fewer tasks than multiprocessors, of one input each, and a depth of 1,152",
         .nodes = 12, .block = 64, .gates = 1, .columns = 18, .steps = 2,
         .share = 0.3, .hubs = true},
        {.reason = "pairs over five steps of few columns",
         .nodes = 80, .block = 32, .gates = 1, .columns = 2, .steps = 5,
         .share = 0.5, .hubs = true},
    };
    // clang-format on
    check_gpu_shapes(10, shapes, sizeof shapes / sizeof shapes[0]);
}

/* wgrad of few columns: more tiles than warps, or fewer; several steps; rows of a node's gates;
 * larger blocks. */
static void test_few_columns(void **state) {
    (void)state;
    // clang-format off
    static const shape shapes[] = {
        {.reason = "three batches a task at the fewest columns",
         .nodes = 132, .block = 32, .gates = 1, .columns = 2, .share = 0.3, .hubs = true},
        {.reason = "rows of eight tiles a task, no hub",
         .nodes = 130, .block = 32, .gates = 1, .columns = 4, .share = 0.1},
        {.reason = "as few tiles as blocks, each a task by itself",
         .nodes = 15, .block = 32, .gates = 1, .columns = 2, .share = 0.2, .hubs = true},
        {.reason = "blocks of 64 over two steps",
         .nodes = 50, .block = 64, .gates = 1, .columns = 2, .steps = 2, .share = 0.1},
        {.reason = "blocks of 128, whose rows are one tile each",
         .nodes = 12, .block = 128, .gates = 1, .columns = 2, .share = 0.3, .hubs = true},
        {.reason = "four gates in blocks of 32: a node's rows are one tile",
         .nodes = 33, .block = 32, .gates = GATES, .columns = 4, .share = 0.1, .hubs = true},
        {.reason = "four gates in blocks of 64: a node's rows are two tiles",
         .nodes = 11, .block = 64, .gates = GATES, .columns = 2, .share = 0.3, .hubs = true},
        {.reason = "two batches a task over two steps",
         .nodes = 150, .block = 32, .gates = 1, .columns = 2, .steps = 2,
         .share = 0.1, .hubs = true},
    };
    // clang-format on
    check_gpu_shapes(17, shapes, sizeof shapes / sizeof shapes[0]);
}

/* Coupled gates, whose rows are no power of two, in blocks of each size; dense. */
static void test_three_gates(void **state) {
    (void)state;
    // clang-format off
    static const shape shapes[] = {
        {.reason = "blocks of 8: two tiles of rows, the last half empty",
         .nodes = 33, .block = 8, .gates = COUPLED_GATES, .columns = 4, .share = 0.2, .hubs = true},
        {.reason = "blocks of 16 over several steps",
         .nodes = 21, .block = 16, .gates = COUPLED_GATES, .columns = 3, .steps = 3, .share = 0.2},
        {.reason = "blocks of 32: a panel in each third of a block",
         .nodes = 33, .block = 32, .gates = COUPLED_GATES, .columns = 4, .share = .1, .hubs = true},
        {.reason = "blocks of 64, more columns than a tile",
         .nodes = 11, .block = 64, .gates = COUPLED_GATES, .columns = 10, .share = 0.3},
        {.reason = "blocks of 128",
         .nodes = 12, .block = 128, .gates = COUPLED_GATES, .columns = 4, .share = .25,
         .hubs = true},
        {.reason = "two tiles of 128 columns, of nodes whose lists are cut between thread blocks",
         .nodes = 71, .block = 32, .gates = COUPLED_GATES, .columns = 8, .share = 0.15},
        {.reason = "blocks of 32 over several steps, more columns than stages",
         .nodes = 90, .block = 32, .gates = COUPLED_GATES, .columns = 34, .share = 0.02,
         .hubs = true},
        {.reason = "lists of like nodes, shared by many thread blocks; two groups of rows",
         .nodes = 42, .block = 64, .gates = COUPLED_GATES, .columns = 4, .steps = 3, .share = 0.6},
        {.reason = "a hub's list, which several thread blocks share",
         .nodes = 60, .block = 64, .gates = COUPLED_GATES, .columns = 4, .share = 0.1,
         .hubs = true},
        {.reason = "long lists of large blocks, and more columns than a tile",
         .nodes = 13, .block = 128, .gates = COUPLED_GATES, .columns = 20, .share = 0.95,
         .hubs = true},
    };
    // clang-format on
    check_gpu_shapes(18, shapes, sizeof shapes / sizeof shapes[0]);
}

/* dgrad of four gates. Thread blocks have as many nodes as they can, whole or neighbouring ones;
 * share a hub's list; or compute several tiles of columns in turn, of which the last is not full.
 * fprop has more tiles than there are thread blocks. */
static void test_many_gates(void **state) {
    (void)state;
    // clang-format off
    static const shape shapes[] = {
        {.reason = "hubs of a sparse pattern: a list lies in a hundred parts; several parts a "
                   "thread block",
         .nodes = 700, .block = 32, .gates = GATES, .columns = 2, .share = 0.001, .hubs = true},
        {.reason = "whole nodes, five to a part, more parts than multiprocessors",
         .nodes = 700, .block = 32, .gates = GATES, .columns = 4, .share = 0.002},
        {.reason = "hubs' lists, and a second tile of columns that is not full",
         .nodes = 40, .block = 32, .gates = GATES, .columns = 10, .share = 0.1, .hubs = true},
        {.reason = "blocks of 64, more nodes than parts of three have room for at once",
         .nodes = 410, .block = 64, .gates = GATES, .columns = 2, .share = 0.001},
        {.reason = "blocks of 64 and three tiles of columns, the last half empty",
         .nodes = 40, .block = 64, .gates = GATES, .columns = 10, .share = 0.02, .hubs = true},
        {.reason = "blocks of 128 in parts of two nodes, more parts than multiprocessors",
         .nodes = 270, .block = 128, .gates = GATES, .columns = 2, .share = 0.001},
        {.reason = "blocks of 128 and two tiles of columns, the last half empty",
         .nodes = 20, .block = 128, .gates = GATES, .columns = 6, .share = 0.1, .hubs = true},
        {.reason = "a hub's list in thirty parts, one full tile of 256 columns",
         .nodes = 60, .block = 32, .gates = GATES, .columns = 8, .share = 0.05, .hubs = true},
        {.reason = "224 columns, no multiple of 64, which the portable kernel takes",
         .nodes = 60, .block = 32, .gates = GATES, .columns = 7, .share = 0.03},
        {.reason = "160 columns and hubs, which the portable kernel takes",
         .nodes = 150, .block = 32, .gates = GATES, .columns = 5, .share = 0.005, .hubs = true},
        {.reason = "blocks of 128 whose lists are cut evenly",
         .nodes = 24, .block = 128, .gates = GATES, .columns = 4, .share = 0.25, .hubs = true},
        {.reason = "blocks of 64 whose lists are cut evenly, with hubs",
         .nodes = 60, .block = 64, .gates = GATES, .columns = 4, .share = 0.1, .hubs = true},
        {.reason = "whole nodes of 128, nearly all blocks there, five tiles",
         .nodes = 13, .block = 128, .gates = GATES, .columns = 20, .share = 0.95, .hubs = true},
        {.reason = "blocks of 64 without hubs, cut evenly: a list lies in two parts",
         .nodes = 300, .block = 64, .gates = GATES, .columns = 4, .share = 0.01},
        {.reason = "blocks of 128 without hubs, cut evenly: a list lies in three parts",
         .nodes = 150, .block = 128, .gates = GATES, .columns = 4, .share = 0.02},
        {.reason = "even parts of five tiles, the last group of which is not full",
         .nodes = 90, .block = 32, .gates = GATES, .columns = 34, .share = 0.02, .hubs = true},
        {.reason = "whole nodes and five tiles, the last of 64 columns",
         .nodes = 130, .block = 32, .gates = GATES, .columns = 34, .share = 0.01},
        {.reason = "whole nodes of 64, five tiles of 128 columns",
         .nodes = 60, .block = 64, .gates = GATES, .columns = 20, .share = 0.1, .hubs = true},
    };
    // clang-format on
    check_gpu_shapes(11, shapes, sizeof shapes / sizeof shapes[0]);
}

/* fprop and dgrad of one gate and many columns. Thread blocks compute several tiles or none;
 * columns end anywhere in a tile; lists are longer than a kernel's ring; hubs' lists are split; and
 * there are so many nodes that neighbours in a list are far apart. */
static void test_many_columns(void **state) {
    (void)state;
    // clang-format off
    static const shape shapes[] = {
        {.reason = "four tiles of columns, which end within the last; the second turn has but four"
                   " tiles",
         .nodes = 200, .block = 32, .gates = 1, .columns = 25, .share = 0.01, .hubs = true},
        {.reason = "small parts, two thread blocks a multiprocessor, with hubs whose lists are "
                   "cut",
         .nodes = 300, .block = 32, .gates = 1, .columns = 4, .share = 0.01, .hubs = true},
        {.reason = "lists so long that they are cut, although there is no hub; columns end within "
                   "a box",
         .nodes = 90, .block = 32, .gates = 1, .columns = 5, .share = 0.3},
        {.reason = "two full tiles of 256 columns, and hubs whose lists are cut",
         .nodes = 96, .block = 32, .gates = 1, .columns = 16, .share = 0.1, .hubs = true},
        {.reason = "blocks of 64 in three nodes a part; columns end within the fourth tile",
         .nodes = 102, .block = 64, .gates = 1, .columns = 25, .share = 0.01, .hubs = true},
        {.reason = "blocks of 64, fewer tiles than multiprocessors; columns end within a box",
         .nodes = 24, .block = 64, .gates = 1, .columns = 13, .share = 0.3},
        {.reason = "blocks of 128, a node a part; columns end within the fourth tile",
         .nodes = 34, .block = 128, .gates = 1, .columns = 25, .share = 0.03, .hubs = true},
        {.reason = "blocks of 128 and the fewest columns: tiles of 128",
         .nodes = 12, .block = 128, .gates = 1, .columns = 4, .share = 0.3},
        {.reason = "sources so far apart that a list's entry takes several steps to one",
         .nodes = 1300, .block = 32, .gates = 1, .columns = 4, .share = 0.0007},
        {.reason = "long lists and 128 columns: two thread blocks share each part",
         .nodes = 160, .block = 32, .gates = 1, .columns = 4, .share = 0.5, .hubs = true},
        {.reason = "two thread blocks share each part, of 256 columns that end within the tile",
         .nodes = 120, .block = 32, .gates = 1, .columns = 6, .share = 0.7},
        {.reason = "more small parts than multiprocessors, with hubs",
         .nodes = 395, .block = 32, .gates = 1, .columns = 4, .share = 0.005, .hubs = true},
        {.reason = "long lists in five tiles of columns, whole parts, half a box in the last tile",
         .nodes = 120, .block = 32, .gates = 1, .columns = 33, .share = 0.7},
        {.reason = "small parts with hubs, in two tiles of 128 columns",
         .nodes = 300, .block = 32, .gates = 1, .columns = 8, .share = 0.01, .hubs = true},
        {.reason = "small parts with hubs, in four tiles, of which the last ends within a box",
         .nodes = 300, .block = 32, .gates = 1, .columns = 15, .share = 0.02, .hubs = true},
        {.reason = "small parts with hubs, more of them than the GPU runs at once, in four full "
                   "tiles",
         .nodes = 395, .block = 32, .gates = 1, .columns = 16, .share = 0.005, .hubs = true},
        {.reason = "blocks of 64 with hubs, two tiles of columns",
         .nodes = 150, .block = 64, .gates = 1, .columns = 16, .share = 0.02, .hubs = true},
        {.reason = "blocks of 128 with hubs in tiles of 128 columns, the last not full",
         .nodes = 80, .block = 128, .gates = 1, .columns = 15, .share = 0.05, .hubs = true},
        {.reason = "hubs of whole parts at 128 columns, lists of medium length",
         .nodes = 150, .block = 32, .gates = 1, .columns = 4, .share = 0.19, .hubs = true},
        {.reason = "blocks of 64 with hubs at 128 columns",
         .nodes = 150, .block = 64, .gates = 1, .columns = 4, .share = 0.02, .hubs = true},
        {.reason = "blocks of 128 with hubs at 256 columns",
         .nodes = 80, .block = 128, .gates = 1, .columns = 8, .share = 0.05, .hubs = true},
    };
    // clang-format on
    check_gpu_shapes(13, shapes, sizeof shapes / sizeof shapes[0]);
}

/* fprop and dgrad of blocks of 8 and 16 and many columns. There are as many thread blocks as tiles,
 * or shares of tiles, or both; columns end anywhere in a tile, or within a group of 64; parts and
 * stages are full, or hold one node or source. */
static void test_small_blocks(void **state) {
    (void)state;
    // clang-format off
    static const shape shapes[] = {
        {.reason = "blocks of 8, 17 parts of long lists: all of them are shared",
         .nodes = 400, .block = 8, .gates = 1, .columns = 4, .share = 0.3, .hubs = true},
        {.reason = "columns that end inside of 64, which TMA brings box by box",
         .nodes = 600, .block = 8, .gates = 1, .columns = 5, .share = 0.05},
        {.reason = "blocks of 8, six tiles of 256 columns: whole turns, then shares of the rest",
         .nodes = 600, .block = 8, .gates = 1, .columns = 48, .share = 0.01, .hubs = true},
        {.reason = "half of all blocks there, 256 columns",
         .nodes = 300, .block = 8, .gates = 1, .columns = 8, .share = 0.5, .hubs = true},
        {.reason = "a last part of a single node, and columns that end within a tile",
         .nodes = 49, .block = 8, .gates = 1, .columns = 25, .share = 0.02, .hubs = true},
        {.reason = "one part, nearly full, for all columns",
         .nodes = 24, .block = 8, .gates = 1, .columns = 16, .share = 0.9},
        {.reason = "four gates as nodes for fprop, as sources for dgrad; columns in two boxes",
         .nodes = 150, .block = 8, .gates = GATES, .columns = 6, .share = 0.1, .hubs = true},
        {.reason = "four gates of a sparse pattern: stages that hold few blocks",
         .nodes = 300, .block = 8, .gates = GATES, .columns = 4, .share = 0.02},
        {.reason = "four gates, two parts of dgrad, columns that end inside of 64",
         .nodes = 25, .block = 8, .gates = GATES, .columns = 21, .share = 0.3, .hubs = true},
        {.reason = "blocks of 16, 28 parts of long lists: all of them are shared",
         .nodes = 330, .block = 16, .gates = 1, .columns = 4, .share = 0.4, .hubs = true},
        {.reason = "blocks of 16, columns that end inside of 64",
         .nodes = 200, .block = 16, .gates = 1, .columns = 9, .share = 0.5, .hubs = true},
        {.reason = "blocks of 16, 29 parts in six tiles: more than multiprocessors",
         .nodes = 340, .block = 16, .gates = 1, .columns = 46, .share = 0.01},
        {.reason = "a last part of a single node of 16",
         .nodes = 25, .block = 16, .gates = 1, .columns = 18, .share = 0.05, .hubs = true},
        {.reason = "four gates in blocks of 16, columns that end inside of 64",
         .nodes = 70, .block = 16, .gates = GATES, .columns = 13, .share = 0.3, .hubs = true},
        {.reason = "four gates in blocks of 16, sparse, the fewest columns",
         .nodes = 120, .block = 16, .gates = GATES, .columns = 4, .share = 0.05},
        {.reason = "four gates in blocks of 16, nearly full",
         .nodes = 13, .block = 16, .gates = GATES, .columns = 24, .share = 0.9, .hubs = true},
    };
    // clang-format on
    check_gpu_shapes(15, shapes, sizeof shapes / sizeof shapes[0]);
}

/* wgrad of blocks of 8 and 16, one gate and four. Thread blocks have several tasks; row groups are
 * as large as they may be, or a single row split among tasks; inputs fill a stage; there are more
 * steps than stages. Some patterns are so full that everything is multiplied, and end within a
 * tile. */
static void test_small_gradients(void **state) {
    (void)state;
    // clang-format off
    static const shape shapes[] = {
        {.reason = "blocks of 8: two tasks a thread block, of as many strips as there may be",
         .nodes = 700, .block = 8, .gates = 1, .columns = 2, .share = 0.2, .hubs = true},
        {.reason = "three tasks a thread block of a sparse pattern, with hubs",
         .nodes = 1500, .block = 8, .gates = 1, .columns = 2, .share = 0.01, .hubs = true},
        {.reason = "two tasks a thread block over three steps",
         .nodes = 900, .block = 8, .gates = 1, .columns = 4, .steps = 3, .share = 0.03},
        {.reason = "more steps than the ring has stages",
         .nodes = 400, .block = 8, .gates = 1, .columns = 6, .steps = 5,
         .share = 0.1, .hubs = true},
        {.reason = "as sparse as it gets: tasks of few strips",
         .nodes = 1100, .block = 8, .gates = 1, .columns = 2, .share = 0.002},
        {.reason = "few tasks, nine steps",
         .nodes = 61, .block = 8, .gates = 1, .columns = 4, .steps = 9,
         .share = 0.15, .hubs = true},
        {.reason = "more than half of all blocks: operands of neighbours come in large boxes",
         .nodes = 300, .block = 8, .gates = 1, .columns = 2, .steps = 2,
         .share = 0.6, .hubs = true},
        {.reason = "nearly full: warps have as many strips as they may",
         .nodes = 299, .block = 8, .gates = 1, .columns = 4, .share = 0.95},
        {.reason = "four gates in blocks of 8",
         .nodes = 200, .block = 8, .gates = GATES, .columns = 2, .steps = 2,
         .share = 0.1, .hubs = true},
        {.reason = "four gates in blocks of 8, more than half of all there",
         .nodes = 131, .block = 8, .gates = GATES, .columns = 4, .share = 0.6, .hubs = true},
        {.reason = "blocks of 16: three tasks a thread block",
         .nodes = 400, .block = 16, .gates = 1, .columns = 2, .share = 0.2, .hubs = true},
        {.reason = "blocks of 16, sparse: two tasks a thread block",
         .nodes = 700, .block = 16, .gates = 1, .columns = 2, .share = 0.02, .hubs = true},
        {.reason = "panels of 32 columns with twice the operands, which this plan prefers",
         .nodes = 500, .block = 16, .gates = 1, .columns = 4, .steps = 3, .share = 0.05},
        {.reason = "blocks of 16, more steps than the ring has stages",
         .nodes = 41, .block = 16, .gates = 1, .columns = 6, .steps = 7,
         .share = 0.2, .hubs = true},
        {.reason = "blocks of 16, most of them there: operands come in large boxes",
         .nodes = 150, .block = 16, .gates = 1, .columns = 2, .steps = 2,
         .share = 0.8, .hubs = true},
        {.reason = "blocks of 16, nearly full",
         .nodes = 133, .block = 16, .gates = 1, .columns = 4, .share = 0.95},
        {.reason = "four gates in blocks of 16 over three steps",
         .nodes = 90, .block = 16, .gates = GATES, .columns = 2, .steps = 3,
         .share = 0.1, .hubs = true},
        {.reason = "four gates in blocks of 16, nearly full",
         .nodes = 65, .block = 16, .gates = GATES, .columns = 2, .share = 0.95, .hubs = true},
    };
    // clang-format on
    check_gpu_shapes(17, shapes, sizeof shapes / sizeof shapes[0]);
}

/* Few columns. Lists are so long that the thread blocks of a cluster share them, two or more to a
 * list; the last shapes have short lists. */
static void test_long_lists(void **state) {
    (void)state;
    // clang-format off
    static const shape shapes[] = {
        {.reason = "blocks of 8: a hub's list in two parts",
         .nodes = 300, .block = 8, .gates = 1, .columns = 1, .share = 0.005, .hubs = true},
        {.reason = "four gates in blocks of 8: dgrad's hub in four parts",
         .nodes = 150, .block = 8, .gates = GATES, .columns = 1, .share = 0.01, .hubs = true},
        {.reason = "blocks of 8 and 64 columns, no list shared",
         .nodes = 200, .block = 8, .gates = 1, .columns = 2, .share = 0.02, .hubs = true},
        {.reason = "blocks of 8 and 128 columns",
         .nodes = 170, .block = 8, .gates = 1, .columns = 4, .share = 0.01, .hubs = true},
        {.reason = "blocks of 16: a hub's list in two parts",
         .nodes = 140, .block = 16, .gates = 1, .columns = 1, .share = 0.02, .hubs = true},
        {.reason = "blocks of 16 and 64 columns",
         .nodes = 90, .block = 16, .gates = 1, .columns = 2, .share = 0.1, .hubs = true},
        {.reason = "blocks of 16 and 96 columns",
         .nodes = 100, .block = 16, .gates = 1, .columns = 3, .share = 0.02, .hubs = true},
        {.reason = "blocks of 16 and 128 columns",
         .nodes = 50, .block = 16, .gates = 1, .columns = 4, .share = 0.05, .hubs = true},
        {.reason = "blocks of 32: a hub's list in four parts, as many as a cluster has",
         .nodes = 140, .block = 32, .gates = 1, .columns = 1, .share = 0.01, .hubs = true},
        {.reason = "blocks of 32 and 64 columns, a hub's list in four parts",
         .nodes = 40, .block = 32, .gates = 1, .columns = 2, .share = 0.3, .hubs = true},
        {.reason = "128 columns, which Hopper's gather takes in small parts",
         .nodes = 70, .block = 32, .gates = 1, .columns = 4, .share = 0.02, .hubs = true},
        {.reason = "blocks of 32: a hub's list in two parts",
         .nodes = 30, .block = 32, .gates = 1, .columns = 1, .share = 0.1, .hubs = true},
        {.reason = "four gates in blocks of 64: two tasks a gate's node, lists in four parts",
         .nodes = 20, .block = 64, .gates = GATES, .columns = 1, .share = 0.1, .hubs = true},
        {.reason = "blocks of 128: four tasks a node, lists in four parts",
         .nodes = 20, .block = 128, .gates = 1, .columns = 2, .share = 0.1, .hubs = true},
        {.reason = "short lists, none shared",
         .nodes = 300, .block = 32, .gates = 1, .columns = 2, .share = 0.01},
        {.reason = "short lists of blocks of 64, none shared",
         .nodes = 70, .block = 64, .gates = 1, .columns = 2, .share = 0.02},
    };
    // clang-format on
    pair p = open_pair(BF16);
    random_restart(12);
    check_shapes(&p, shapes, sizeof shapes / sizeof shapes[0]);
    close_pair(&p);
}

/* Symmetric patterns with hubs. fprop and dgrad share tables for these. */
static void test_symmetric_patterns(void **state) {
    (void)state;
    static const struct {
        int nodes, block;
        double density;
    } patterns[] = {{400, 8, 0.02}, {200, 16, 0.05}, {130, 32, 0.06}, {40, 64, 0.2}};
    pair p = open_pair(BF16);
    random_restart(16);
    for (int i = 0; i < 4; i++) {
        graph_options hubs = {
            .kind = GRAPH_BARABASI_ALBERT, .density = patterns[i].density, .seed = 1};
        layout *l = pattern_layout(&hubs, patterns[i].nodes, patterns[i].block, 1);
        assert_true(layout_is_symmetric(l));
        for (int units = 1; units <= 8; units *= 2) {
            check_layout(&p, l, units * p.be->product_multiple, 1, "a symmetric pattern");
        }
        layout_free(l);
    }
    close_pair(&p);
}

/* Thread blocks share activations. Parts have several nodes or one; there are more of
 * them than run at a time, or some are empty; lists are longer than the ring; columns end within a
 * tile, or fill many; larger blocks and gates are cut into pieces. */
static void test_shared_activations(void **state) {
    (void)state;
    // clang-format off
    static const shape shapes[] = {
        {.reason = "short lists, no hub: parts of a few nodes, nearly as many as multiprocessors",
         .nodes = 400, .block = 32, .gates = 1, .columns = 4, .share = 0.02},
        {.reason = "hubs, and columns that end within a tile of 128",
         .nodes = 420, .block = 32, .gates = 1, .columns = 5, .share = 0.01, .hubs = true},
        {.reason = "few parts of long lists, three tiles of columns",
         .nodes = 90, .block = 32, .gates = 1, .columns = 9, .share = 0.4, .hubs = true},
        {.reason = "four gates, whose rows are nodes with equal lists",
         .nodes = 60, .block = 32, .gates = GATES, .columns = 4, .share = 0.1, .hubs = true},
        {.reason = "blocks of 64 in pieces of 32; four tiles, the last of 32 columns",
         .nodes = 40, .block = 64, .gates = 1, .columns = 13, .share = 0.2},
        {.reason = "four gates in blocks of 128, columns that end within a tile",
         .nodes = 20, .block = 128, .gates = GATES, .columns = 5, .share = 0.2, .hubs = true},
        {.reason = "lists of one source, and parts without any",
         .nodes = 1300, .block = 32, .gates = 1, .columns = 4, .share = 0.0007},
        {.reason = "64 columns of short lists, which the portable kernel takes",
         .nodes = 400, .block = 32, .gates = 1, .columns = 2, .share = 0.02},
        {.reason = "64 columns with hubs",
         .nodes = 420, .block = 32, .gates = 1, .columns = 2, .share = 0.01, .hubs = true},
        {.reason = "64 columns of long lists",
         .nodes = 90, .block = 32, .gates = 1, .columns = 2, .share = 0.4, .hubs = true},
        {.reason = "64 columns of four gates",
         .nodes = 60, .block = 32, .gates = GATES, .columns = 2, .share = 0.1, .hubs = true},
        {.reason = "64 columns of blocks of 64",
         .nodes = 40, .block = 64, .gates = 1, .columns = 2, .share = 0.2},
        {.reason = "64 columns of four gates in blocks of 128",
         .nodes = 20, .block = 128, .gates = GATES, .columns = 2, .share = 0.2, .hubs = true},
        {.reason = "four tiles: thread blocks make one after the other",
         .nodes = 400, .block = 32, .gates = 1, .columns = 15, .share = 0.02, .hubs = true},
        {.reason = "few parts in four full tiles, fewer than multiprocessors",
         .nodes = 90, .block = 32, .gates = 1, .columns = 16, .share = 0.4, .hubs = true},
        {.reason = "blocks of 64 in three tiles, of which the last ends within",
         .nodes = 40, .block = 64, .gates = 1, .columns = 11, .share = 0.2, .hubs = true},
        {.reason = "more parts than multiprocessors, of lists shorter than a window",
         .nodes = 800, .block = 32, .gates = 1, .columns = 8, .share = 0.002},
    };
    // clang-format on
    check_gpu_shapes_in(BF16, 14, shapes, sizeof shapes / sizeof shapes[0]);
}

/* fp32 with lists longer than a warp reads at a time, gates and several steps; wgrad of so many
 * tiles that each warp has several. */
static void test_plain_tiles(void **state) {
    (void)state;
    // clang-format off
    static const shape shapes[] = {
        {.reason = "lists longer than a warp looks up at a time, of hubs",
         .nodes = 300, .block = 32, .gates = 1, .columns = 1, .share = 0.1, .hubs = true},
        {.reason = "lists longer than a warp looks up at a time, columns that end within a tile",
         .nodes = 90, .block = 32, .gates = 1, .columns = 5, .share = 0.4},
        {.reason = "four gates",
         .nodes = 60, .block = 32, .gates = GATES, .columns = 1, .share = 0.2, .hubs = true},
        {.reason = "three steps at once",
         .nodes = 40, .block = 32, .gates = 1, .columns = 1, .steps = 3, .share = 0.2},
        {.reason = "blocks of 64, wgrad of two tiles a row",
         .nodes = 60, .block = 64, .gates = 1, .columns = 2, .share = 0.3, .hubs = true},
        {.reason = "four gates in blocks of 128 over three steps",
         .nodes = 20, .block = 128, .gates = GATES, .columns = 3, .steps = 3,
         .share = 0.2, .hubs = true},
        {.reason = "more columns than a slab has",
         .nodes = 80, .block = 32, .gates = 1, .columns = 18, .steps = 2,
         .share = 0.1, .hubs = true},
        {.reason = "wgrad of so many tiles that warps have some each",
         .nodes = 130, .block = 32, .gates = 1, .columns = 2, .steps = 2,
         .share = 0.4, .hubs = true},
        {.reason = "blocks of 64 over two steps, columns that end within a tile",
         .nodes = 100, .block = 64, .gates = 1, .columns = 3, .steps = 2, .share = 0.2},
    };
    // clang-format on
    check_gpu_shapes_in(FP32, 15, shapes, sizeof shapes / sizeof shapes[0]);
}

static void test_gate_products(void **state) {
    (void)state;
    check_gpu_shapes(11, gate_shapes, GATE_SHAPES);
}

/* A small world, whose neighbouring rows are alike; its tables keep the nodes' own order. */
static void test_small_world(void **state) {
    (void)state;
    if (!test_device_is_cuda()) skip();
    pair p = open_pair(BF16);
    random_restart(14);
    graph_options ring = {.kind = GRAPH_WATTS_STROGATZ, .density = 0.08, .rewire = 0.1, .seed = 1};
    layout *l = pattern_layout(&ring, 181, 32, GATES);
    for (int units = 2; units <= 3; units++) {
        check_layout(&p, l, units * p.be->column_multiple, 1, "four gates of a small world");
    }
    layout_free(l);
    close_pair(&p);
}

static void test_dense_products(void **state) {
    (void)state;
    for (int i = 0; i < 2; i++) {
        pair p = open_pair((const precision[]){FP32, BF16}[i]);
        int unit = p.be->column_multiple;
        random_restart(4);
        layout *square = layout_dense(40, 40, 4, 1), *wide = layout_dense(256, 328, 1, 1);
        layout *strided = layout_dense(256, 24, 1, 3);
        layout *odd = layout_dense(333, 205, 1, 1), *tiny = layout_dense(3, 5, 1, 2);
        check_layout(&p, square, unit, 3, "dense gates");
        check_layout(&p, wide, 2 * unit, 2, "dense head");
        check_layout(&p, wide, unit, 1, "dense head");
        check_layout(&p, strided, unit, 2, "dense head with a stride");
        if (p.be->precision == FP32) { /* features have any number of rows and units */
            check_layout(&p, odd, 3 * unit, 2, "dense, odd sides");
            check_layout(&p, tiny, unit, 5, "dense, smaller than a tile");
        }
        if (p.be->precision == BF16) { /* more tiles than a GPU computes at a time */
            layout *wider = layout_dense(256, 9224, 1, 1);
            check_layout(&p, wider, unit, 2, "wide dense head");
            layout_free(wider);
        }
        layout_free(square);
        layout_free(wide);
        layout_free(strided);
        layout_free(odd);
        layout_free(tiny);
        close_pair(&p);
    }
}

/* Rectangles of a few nodes, of one in either direction too: none of them is a dense matrix. */
static void test_few_nodes(void **state) {
    (void)state;
    for (precision how = FP32; how <= BF16; how++) {
        pair p = open_pair(how);
        random_restart(23);
        for (int i = 0; i < 60; i++) {
            const int out = 1 + i % 6, in = 1 + (int)random_below(6);
            const int block = 8 << random_below(5), columns = 1 + (int)random_below(4);
            int32_t pairs[36][2];
            int count = 0;
            for (int k = 0; k < out * in; k++) {
                if (count > 0 && random_uniform() < 0.4) continue;
                pairs[count][0] = k / in;
                pairs[count++][1] = k % in;
            }
            layout *l = layout_pairs(out, in, (const int32_t(*)[2])pairs, count, block, 0);
            assert_false(layout_is_dense(l));
            char name[80];
            snprintf(name, sizeof name, "%d x %d nodes of %d", out, in, block);
            check_layout(&p, l, columns * p.be->product_multiple, 1, name);
            layout_free(l);
        }
        close_pair(&p);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products_fp32),      cmocka_unit_test(test_products_bf16),
        cmocka_unit_test(test_many_blocks),        cmocka_unit_test(test_few_columns),
        cmocka_unit_test(test_three_gates),        cmocka_unit_test(test_many_gates),
        cmocka_unit_test(test_many_columns),       cmocka_unit_test(test_small_blocks),
        cmocka_unit_test(test_small_gradients),    cmocka_unit_test(test_long_lists),
        cmocka_unit_test(test_symmetric_patterns), cmocka_unit_test(test_shared_activations),
        cmocka_unit_test(test_plain_tiles),        cmocka_unit_test(test_gate_products),
        cmocka_unit_test(test_small_world),        cmocka_unit_test(test_dense_products),
        cmocka_unit_test(test_few_nodes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
