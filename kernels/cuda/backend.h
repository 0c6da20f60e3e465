/* The CUDA backend's own header: its state, and what its files share. Only this folder knows CUDA.
 *
 * One stream holds all work, so operations run in the order they are issued. A failed call is
 * remembered, the first of them wins, and `finish` reports it; nothing is replayed after that. */
#ifndef SMALLWORLD_KERNELS_CUDA_BACKEND_H
#define SMALLWORLD_KERNELS_CUDA_BACKEND_H

extern "C" {
#include "ops.h"
}

#include <cublas_v2.h>
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_runtime.h>

typedef __nv_bfloat16 bf16;

enum {
    COLUMN_MULTIPLE = 64,
    PRODUCT_MULTIPLE = 32, /* columns of a single product */
    STAGING_SLOTS = 32,
    STAGING_BYTES = 512 << 10, /* a slot; larger uploads take several */
    REDUCTION_BLOCKS = 1024,   /* partial sums of a reduction over an arena */
    WGRAD_COLUMNS = 128,       /* columns of W that a wgrad tile spans */
    PARTIAL_FLOATS = 8 << 20,  /* of all slots; a tile of 128 x 32 or more takes one */
    PARTIAL_SLOTS = PARTIAL_FLOATS / (128 * 32)
};

typedef CUresult (*PFN_encode_map)(CUtensorMap *map, CUtensorMapDataType type, uint32_t rank,
                                   void *base, const uint64_t *extent, const uint64_t *stride,
                                   const uint32_t *box, const uint32_t *element_stride,
                                   CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                   CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill);

/* What Adam needs, made once an update by one thread. */
typedef struct adam_factors {
    float scale, step, correction, beta1, beta2, epsilon, average;
    float kept; /* of a weight that decays */
    int apply;
} adam_factors;

typedef struct cuda_backend {
    backend table;       /* first: a cuda_backend is a backend */
    cudaStream_t stream; /* what is issued goes here: own_stream, or the caller's */
    cudaStream_t own_stream;
    cudaEvent_t handed_over; /* marks where one stream's work ends and another's goes on */
    cublasHandle_t blas;
    void *blas_workspace;
    int processors;
    bool hopper;          /* the GPU and this build have sm_90a's instructions */
    bool weights_settled; /* see cuda_weights_change */
    PFN_encode_map encode_map;
    float *partial_sums; /* [PARTIAL_FLOATS]: sums that thread blocks hand on */
    int *partial_full;   /* [PARTIAL_SLOTS]: whether they are there */
    size_t shared_limit; /* bytes of shared memory that a thread block may have */
    size_t l2_bytes;     /* of the L2 */
    bool sums_are_zero;  /* by a cell's sequence, at once for all steps */
    double *partial;     /* [REDUCTION_BLOCKS] */
    adam_factors *factors;
    char *staging; /* pinned, STAGING_SLOTS x STAGING_BYTES */
    cudaEvent_t staged[STAGING_SLOTS];
    int next_slot;
    size_t table_bytes; /* of all layouts made so far */
    cudaEvent_t *marks; /* [mark_count]; NULL until first used */
    int mark_count;
    char failure[256];               /* the first error, or "" */
    unsigned long long *chain_words; /* [CHAIN_WORDS]: see cell/stage_chain.cu */
    bool stages_whole;               /* in this sequence, see cell/stages.cu */
} cuda_backend;

/* Work for Hopper's dgrad_gates: parts of the nodes it makes, and the union of their sources.
 * Either nodes are whole, in an order of likeness; or their lists, one after another, are cut into
 * equal parts, of which the first node may begin in an earlier part and the last continue in the
 * next. Cut for one tile of columns, for two, for four, and for more. */
enum { PART_NODES = 5, DGRAD_GATES_CUTS = 4 }; /* PART_NODES: at most */

typedef struct dgrad_gates_part {
    int first, block;               /* its sources; their blocks */
    int first_part;                 /* where the first node's list begins */
    uint16_t count;                 /* of sources */
    unsigned char nodes, continues; /* continues: whether the last one's list goes on */
    uint16_t node[PART_NODES];
} dgrad_gates_part;

typedef struct dgrad_gates_parts {
    int count, span; /* span: the most parts that one node's list lies in */
    bool whole;      /* whether nodes are */
    dgrad_gates_part *part;
    uint32_t *source; /* its node, and in the low PART_NODES bits who has a block for it */
    int *block;       /* as they are used */
} dgrad_gates_parts;

/* Work for Hopper's fprop_gates: tiles of 128 rows, those that have blocks, and what each reads. */
typedef struct fprop_gates_source {
    int node, block; /* block: the tile's part of it */
} fprop_gates_source;

typedef struct fprop_gates_tile {
    int first, number; /* first: of its sources */
} fprop_gates_tile;

typedef struct fprop_gates_tables {
    int count, sources; /* count: of tiles */
    fprop_gates_source *source;
    fprop_gates_tile *tile;      /* [count + 1] */
    fprop_gates_tile *host_tile; /* the same, on the host */
} fprop_gates_tables;

/* Work for Hopper's wgrad_one_gate and wgrad_one_gate_pairs: tasks, each of a few rows of the pattern in
 * tiles of EDGE x EDGE, whose tiles are made in batches. A tile's position is that of its block in
 * the row's list; NO_TILE: none. */
enum { EDGE = 32, SAMPLED_BATCHES = 3 };

typedef struct sampled_task {
    int first; /* where its list begins: of its rows, then of each batch's inputs */
    uint16_t rows, inputs[SAMPLED_BATCHES];
} sampled_task;

typedef struct sampled_slot {
    uint16_t position;
    unsigned char row, column; /* which of the task's rows, of its batch's inputs */
} sampled_slot;

typedef struct sampled_pair {
    uint16_t position[2];
    uint16_t place; /* the two rows and the column, 5 bits each */
} sampled_pair;

typedef struct wgrad_one_gate_tables {
    int tasks, batches; /* batches: of a task of single tiles; 0: tasks are of pairs */
    int rows, inputs;   /* the most that a task, a batch has */
    int row_tiles;      /* of the operand tiles in shared memory */
    sampled_task *task;
    uint16_t *tile;     /* the tasks' lists */
    sampled_slot *slot; /* [tasks][batches][warps][tiles of a warp] */
    sampled_pair *pair; /* [tasks][warpgroups][pairs of one] */
} wgrad_one_gate_tables;

/* Work for products/portable/few_columns.cu: a node's list of entries, or a share of it, and up to 32 rows of the
 * result. */
typedef struct alignas(16) few_columns_task {
    int first, row, count; /* its first entry; of the result; entries */
    int log_parts;         /* of the list's parts; < 0: this is no task */
} few_columns_task;

typedef struct few_columns_tasks {
    int count, cluster; /* cluster: how many tasks are one */
    int depth;          /* of k, the mean of a task */
    few_columns_task *task;
} few_columns_tasks;

/* Work for Hopper's one_gate: parts of the output nodes, whose results a thread block makes
 * together, and the union of their sources. The nodes are cut in several ways: for up to half of
 * 256 columns, for 256, for 512, and for more. Where thread blocks share a part, each has an entry of
 * its own for its share of the sources. */
enum { ONE_GATE_NODES = 6, ONE_GATE_CUTS = 4 };

/* How far its node is from that of the source before it (from 0 for a part's first), and in the low
 * bits which of the part's nodes have a block for it. Longer ways are gone in several steps, to
 * sources that no node has a block for. */
typedef uint16_t one_gate_source;

typedef struct one_gate_parts {
    int count;           /* of whole parts */
    short slots, shares; /* the most nodes of a part; thread blocks that share one */
    short boxes;         /* of 64 columns, that a warpgroup makes */
    bool hubs;           /* whose lists are cut */
    void *part;          /* packed_part of as many slots */
    one_gate_source *source;
} one_gate_parts;

/* Work for Hopper's hopper_tf32: a share of the sources of a part of the output nodes, in pieces
 * of 32. */
enum { TF32_NODES = 6, TF32_CUTS = 2 };

typedef struct tf32_part {
    int first, count; /* sources */
    int block;        /* the first of theirs */
    int nodes, node[TF32_NODES];
} tf32_part;

/* Its node, and in the low bits which of the part's nodes have a block for it. */
typedef uint32_t tf32_source;

typedef struct tf32_parts {
    int count;            /* of whole parts */
    short window, blocks; /* how far apart the shares' first sources, and their blocks, begin */
    tf32_part *part;
    tf32_source *source;
    uint32_t *block; /* where the sources' blocks lie in W */
} tf32_parts;

/* Work for Hopper's small_blocks: parts of 192 units of the result, from long to short, each with
 * the union of its nodes' sources in stages. Gates of four count as nodes (fprop) or sources
 * (dgrad) of their own. */
enum { SMALL_UNITS = 192 };

typedef struct small_blocks_parts {
    int count, stages; /* stages: of all parts together */
    int *stage;        /* [count + 1] a part's first stage */
    int *host_stage;   /* the same, on the host */
    uint32_t *list;    /* [stages] its entries: the first of them, and in 8 bits how many */
    uint16_t *node;    /* [count][192 / b]; 0xFFFF: none */
    uint16_t *source;  /* [stages][64 / b]; 0xFFFF: none */
    uint8_t *has;      /* [stages][192 / b] for which of these sources a node has a block */
    uint32_t *entry;   /* [blocks] as they are used: a block's number, and in 8 bits its place */
} small_blocks_parts;

/* Of a row of small blocks, 256 units of columns: which blocks there are, and the first of them. */
typedef struct deep_span {
    int first;
    uint32_t mask;
} deep_span;

/* Work for Hopper's wgrad_small_blocks: tasks, each of some rows of blocks and some columns, whose operands
 * come in boxes of one of them or of LARGE_BOX that are neighbours, and the strips of b rows x 16 units
 * of dW that a thread block makes from them: a block of 16, or up to two of 8. A block's position is
 * that in its row's list. */
enum { LARGE_BOX = 8, NO_POSITION = 0xFFFF };
#define NO_BLOCK (~0u)

typedef struct strip_task {
    int first, slot;   /* where its list of boxes begins, and its strips */
    uint16_t boxes[4]; /* large and single ones of rows, then of columns */
    uint16_t slots, unused;
} strip_task;

typedef struct strip_tables {
    int tasks;
    int tiles, slots; /* the most operand tiles of 8 rows that a task has, strips that a warp has */
    int panel;        /* columns of a stage */
    strip_task *task;
    uint16_t *box;      /* the tasks' lists: a box's first row or column */
    uint32_t *place;    /* of each strip: which of the task's rows, and which two tiles of its
                         * columns; a byte each */
    uint16_t *position; /* of its blocks: one, or two */
} strip_tables;

enum { RUN_BLOCKS = 8 }; /* see products/hopper/wgrad_runs.cuh */

/* Work for cell/stage_chain.cu: nodes that a thread block makes for 32 columns, from a list of their blocks one
 * after another, and tasks, some for each node. */
enum {
    CHAIN_STAGES = 8, /* internal ones, at most */
    CHAIN_NODES = 10, /* of a part, at most */
    CHAIN_SLOTS = 76, /* for its blocks */
    CHAIN_CUTS = 2,   /* for 64 columns, and for 128 */
    CHAIN_PARTS = 256 /* of all column slices */
};

typedef struct chain_part {
    uint32_t first[CHAIN_NODES]; /* of the layout's list of a node */
    uint16_t nodes, node[CHAIN_NODES];
    uint16_t slot[CHAIN_NODES + 1], task[CHAIN_NODES + 1]; /* where a node's begin */
    uint16_t unused;                                       /* to whole words */
} chain_part;

enum { CHAIN_WORDS = CHAIN_PARTS * 65 /* sums of 32 columns, and a flag */ };

typedef struct chain_parts {
    int count, slots; /* slots: the most blocks of a part; count 0: they do not fit */
    chain_part *part;
} chain_parts;

struct device_layout {
    layout host;     /* its tables point to device memory */
    int *block_row;  /* [blocks] the output node of block k; NULL where nothing reads it */
    int *tile_block; /* [tiles + 1] wgrad: the first block of each group of a row's blocks */
    int tiles;
    few_columns_tasks few_columns_rows, few_columns_columns;
    fprop_gates_tables rows;
    bool empty_rows; /* which fprop_gates does not reach */
    dgrad_gates_parts transposed[DGRAD_GATES_CUTS];
    one_gate_parts one_gate_forward[ONE_GATE_CUTS], one_gate_backward[ONE_GATE_CUTS];
    tf32_parts tf32_forward[TF32_CUTS], tf32_backward[TF32_CUTS];
    small_blocks_parts small_forward, small_backward;
    int *deep_start; /* [deep_tiles + 1] as tile_block, for wgrad_gates */
    int deep_tiles;
    wgrad_one_gate_tables sampled;
    strip_tables strips;
    deep_span *deep_spans;
    uint16_t *run_row; /* [blocks / RUN_BLOCKS + 1] the output node of every such block */

    chain_parts chain_forward[CHAIN_CUTS], chain_backward[CHAIN_CUTS];
    float *unit_sums; /* see cell/stage_chain.cu */
};

struct recording {
    cudaGraph_t graph;
    cudaGraphExec_t executable;
};

static inline cuda_backend *cuda_of(backend *be) {
    return (cuda_backend *)be;
}

static inline int log2_of(int power) {
    int log = 0;
    while (1 << log < power) log++;
    return log;
}

/* Remembers a failure; returns whether all is well so far. */
bool cuda_ok(backend *be, cudaError_t status, const char *what);
bool cuda_blas_ok(backend *be, cublasStatus_t status, const char *what);

/* Before a launch with `bytes` of dynamic shared memory: sets the kernel's limit if it must. */
void cuda_allow_shared(backend *be, const void *kernel, size_t bytes);

/* A launch in clusters of so many thread blocks. EARLY, of a kernel that calls wait_for_earlier:
 * where the GPU can, it begins while the kernel before it ends. */
template <typename... P>
static inline void cuda_launch_clusters(backend *be, const char *what, bool early, int cluster,
                                        void (*kernel)(P...), dim3 grid, int threads, size_t shared,
                                        P... arguments) {
    cudaLaunchAttribute attribute[2] = {};
    cudaLaunchConfig_t config = {};
    if (early && cuda_of(be)->hopper) {
        cudaLaunchAttribute *next = &attribute[config.numAttrs++];
        next->id = cudaLaunchAttributeProgrammaticStreamSerialization;
        next->val.programmaticStreamSerializationAllowed = 1;
    }
    if (cluster > 1) {
        cudaLaunchAttribute *next = &attribute[config.numAttrs++];
        next->id = cudaLaunchAttributeClusterDimension;
        next->val.clusterDim = {(unsigned)cluster, 1, 1};
    }
    config.gridDim = grid;
    config.blockDim = threads;
    config.dynamicSmemBytes = shared;
    config.stream = cuda_of(be)->stream;
    config.attrs = attribute;
    cuda_allow_shared(be, (const void *)kernel, shared);
    cuda_ok(be, cudaLaunchKernelEx(&config, kernel, arguments...), what);
}

/* The same of thread blocks by themselves. */
template <typename... P>
static inline void cuda_launch(backend *be, const char *what, bool early, void (*kernel)(P...),
                               dim3 grid, int threads, size_t shared, P... arguments) {
    cuda_launch_clusters(be, what, early, 1, kernel, grid, threads, shared, arguments...);
}

/* Before anything is issued that writes what products may read as weights. A product that overlaps
 * with the kernel before reads its weights without waiting for that kernel: it may do so once
 * another product has waited for all that was issued before. */
static inline void cuda_weights_change(backend *be) {
    cuda_of(be)->weights_settled = false;
}

/* After a launch. */
static inline void cuda_launched(backend *be, const char *what) {
    cuda_ok(be, cudaGetLastError(), what);
}

/* ------------------------------------------------------------------------ layer norm's sums
 *
 * Sums over features come from many thread blocks. So that they do not depend on the order these
 * finish in, each block's part is turned into 64-bit fixed point and added by integer atomics: a
 * part of ordinary size to a fine sum, a large one to a coarse sum, 2^24 times coarser, so that
 * either keeps at least fp32's precision. `coarse` says whether that one is in use. What does not
 * even fit there, and NaN, raises `broken`, which makes the statistics NaN. Per gate:
 *
 *     int64 [which sum: 2][fine, coarse][columns]; int64 coarse, broken
 *     float [- mean / deviation, 1 / deviation][columns], which forward leaves for backward */

typedef unsigned long long fixed;

/* Whole spans of 64 columns, so that backward may keep the sums of each by themselves. */
static __host__ __device__ inline size_t sums_gate(int columns) {
    return (size_t)((columns + 63) / 64) * (64 * 5 + 2);
}

/* Forward: sums of raw and of its square. Backward: sums of gain dpre and of that times v. */
#define SCALE_SUM    0x1p28f
#define SCALE_SQUARE 0x1p20f
#define SCALE_DSUM   0x1p34f
#define FIXED_LIMIT  0x1p47f /* of a part: 2^16 parts cannot overflow 2^63 */
#define COARSER      0x1p-24f

static __device__ inline void add_fixed(fixed *sums, int columns, int which, int column,
                                        float value, float scale) {
    fixed *fine = sums + (size_t)which * 2 * columns + column;
    float scaled = value * scale;
    if (fabsf(scaled) < FIXED_LIMIT) {
        atomicAdd(fine, (fixed)__float2ll_rn(scaled));
    } else if (fabsf(scaled * COARSER) < FIXED_LIMIT) {
        atomicAdd(fine + columns, (fixed)__float2ll_rn(scaled * COARSER));
        atomicOr(&sums[(size_t)columns * 4], 1ull);
    } else {
        atomicOr(&sums[(size_t)columns * 4 + 1], 1ull);
    }
}

/* One sum as it lies in memory. Fetch all that are needed before the first is decoded: then they
 * come together. */
typedef struct fixed_sum {
    fixed fine, is_coarse, broken;
    const fixed *coarse;
} fixed_sum;

static __device__ inline fixed_sum fetch_fixed(const fixed *sums, int columns, int which,
                                               int column) {
    const fixed *fine = sums + (size_t)which * 2 * columns + column;
    const fixed *flags = sums + (size_t)columns * 4;
    fixed_sum s = {fine[0], flags[0], flags[1], fine + columns};
    return s;
}

static __device__ inline float decode_fixed(const fixed_sum &s, float scale) {
    if (s.broken) return __int_as_float(0x7FC00000);
    if (!s.is_coarse) return (float)(long long)s.fine / scale;
    return (float)((double)(long long)s.fine / scale +
                   (double)(long long)*s.coarse / ((double)scale * COARSER));
}

/* Where a gate keeps its statistics: [- mean / deviation, 1 / deviation][columns]. */
static __device__ inline float *kept_statistics(fixed *sums, int columns) {
    return (float *)(sums + (size_t)columns * 4 + 2);
}

/* Sums of kernels that need them at once: every thread block of a grid adds one part to each, at
 * about the same time, and then needs them all. A fine sum counts its parts, so it is read until
 * they are all there, which takes neither a barrier nor a second way to the L2:
 *
 *     48 bits of the sum, 8 of how many parts went elsewhere, 8 of how many there are
 *
 * The grid has no more thread blocks than there are multiprocessors, so that all run at once. */
enum { COUNTED_PARTS = 255 };
#define COUNTED_LIMIT   0x1p38f /* of a fine part, and of a coarse one: */
#define COARSE_LIMIT    0x1p54f
#define COUNTED_COARSER 0x1p-15f

static __device__ inline void add_counted(fixed *sums, int columns, int which, int column,
                                          float value, float scale = SCALE_DSUM) {
    fixed *fine = sums + (size_t)which * 2 * columns + column;
    float scaled = value * scale, coarse = scaled * COUNTED_COARSER;
    if (fabsf(scaled) < COUNTED_LIMIT) {
        atomicAdd(fine, ((fixed)__float2ll_rn(scaled) << 16) + 1);
        return;
    }
    if (fabsf(coarse) < COARSE_LIMIT) {
        atomicAdd(fine + columns, (fixed)__float2ll_rn(coarse));
    } else {
        atomicOr(&sums[(size_t)columns * 4 + 1], 1ull);
    }
    __threadfence();
    atomicAdd(fine, (1 << 8) + 1);
}

static __device__ inline fixed fetch_counted(const fixed *sums, int columns, int which,
                                             int column) {
    return *(const volatile fixed *)(sums + (size_t)which * 2 * columns + column);
}

static __device__ inline unsigned parts_of(fixed sum) {
    return sum & 255;
}

/* A sum whose parts are all there. */
static __device__ inline float decode_counted(fixed sum, const fixed *sums, int columns, int which,
                                              int column, float scale = SCALE_DSUM) {
    const long long fine = (long long)sum >> 16;
    if ((sum >> 8 & 255) == 0) return (float)fine / scale;
    __threadfence();
    if (*(const volatile fixed *)(sums + (size_t)columns * 4 + 1)) {
        return __int_as_float(0x7FC00000);
    }
    const long long coarse = (long long)fetch_counted(sums + columns, columns, which, column);
    return (float)((double)fine / scale + (double)coarse / ((double)scale * COUNTED_COARSER));
}

/* ------------------------------------------------------------------------------- the operations */

void cuda_fprop(backend *be, const device_layout *l, const void *w, const void *x, int steps,
                int columns, void *y, element type, void *sums);
void cuda_dgrad(backend *be, const device_layout *l, const void *w, const void *dy, int steps,
                int columns, void *dx, element type);
void cuda_wgrad(backend *be, const device_layout *l, const void *dy, const void *x, int steps,
                int columns, void *dw, void *workspace);

/* Hopper's kernels, for layouts that fit; fprop and dgrad of one step, and of columns that they
 * take. That a tensor could not be described to TMA is remembered as a failure. */
bool hopper_compiled(void); /* whether this build has their code */
bool hopper_fits(const backend *be, const layout *l);
bool hopper_takes(const backend *be, const layout *l, int columns);
void hopper_create(backend *be, device_layout *device, const layout *l);
void hopper_fprop(backend *be, const device_layout *l, const void *w, const void *x, int columns,
                  void *y, void *sums);
void hopper_dgrad(backend *be, const device_layout *l, const void *w, const void *dy, int columns,
                  void *dx);

/* wgrad of bf16 and tf32. */
bool hopper_fits_wgrad(const backend *be, const layout *l);
void hopper_create_wgrad(backend *be, device_layout *device, const layout *l);
void hopper_wgrad(backend *be, const device_layout *l, const void *dy, const void *x, int steps,
                  int columns, void *dw);

/* wgrad in true fp32 on Hopper; see products/hopper/wgrad_fp32.cu. */
bool wgrad_fp32_fits(const backend *be, const layout *l);
bool wgrad_fp32_takes(const backend *be, const layout *l, int steps, int columns);
void wgrad_fp32_run(backend *be, const device_layout *l, const void *dy, const void *x, int steps,
                    int columns, void *dw);

/* For both. */
void runs_create(backend *be, device_layout *device, const layout *l);

/* fprop and dgrad of one step in tf32 on Hopper; as above. */
bool hopper_tf32_fits(const backend *be, const layout *l);
bool hopper_tf32_takes(const device_layout *l, int columns, bool forward);
void hopper_tf32_plan(backend *be, device_layout *device, const layout *l);
void hopper_tf32_fprop(backend *be, const device_layout *device, const void *w, const void *x,
                       int columns, void *y);
void hopper_tf32_dgrad(backend *be, const device_layout *device, const void *w, const void *dy,
                       int columns, void *dx);

/* fprop and dgrad of blocks of 8 and 16 on Hopper; see products/hopper/small_blocks.cu. They return as above. */
bool small_blocks_fits(const backend *be, const layout *l);
void small_blocks_plan(backend *be, device_layout *device, const layout *l);
bool small_blocks_takes(const device_layout *l, int columns, bool forward);
void small_blocks_fprop(backend *be, const device_layout *l, const void *w, const void *x,
                        int columns, void *y);
void small_blocks_dgrad(backend *be, const device_layout *l, const void *w, const void *dy,
                        int columns, void *dx);

/* wgrad of the same; see products/hopper/wgrad_small_blocks.cu. */
void wgrad_small_blocks_plan(backend *be, device_layout *device, const layout *l);
void wgrad_small_blocks_run(backend *be, const device_layout *device, const void *dy, const void *x,
                            int steps, int columns, void *dw);

/* The gradient of a stage's table from that at its entries; see cell/table_gradient_hopper.cu. */
bool table_gradient_hopper_takes(const backend *be, const stage *g);
void table_gradient_hopper_run(backend *be, const cell *c, int s, const void *gradient);

/* The cell's sequences where its internal stages are one kernel a step; see cell/stage_chain.cu. */
void stage_chain_plan(backend *be, device_layout *device, const layout *l);
bool stage_chain_takes(backend *be, const cell *c);
void stage_chain_cell_forward(backend *be, const cell *c);
void stage_chain_cell_backward(backend *be, const cell *c);

/* Few columns, one step, without layer norm's sums; see products/portable/few_columns.cu. */
void few_columns_plan(backend *be, device_layout *device, const layout *l);
bool few_columns_takes(const backend *be, const layout *l, int columns);
void few_columns_fprop(backend *be, const device_layout *l, const void *w, const void *x,
                       int columns, void *y);
void few_columns_dgrad(backend *be, const device_layout *l, const void *w, const void *dy,
                       int columns, void *dx);

/* A table copied to the device. */
void *cuda_table(backend *be, const void *table, size_t bytes);
int *cuda_block_rows(backend *be, const layout *l); /* [blocks] the output node of each */

/* wgrad of a dense layout in bf16, of several steps or of inputs with a stride; see
 * products/hopper/wgrad_dense.cu. */
bool wgrad_dense_takes(const backend *be, const layout *l, int steps);
void wgrad_dense_run(backend *be, const layout *l, const void *dy, const void *x, int steps,
                     int columns, void *dw);

/* Dense layouts, else through cuBLAS. */
void dense_fprop(backend *be, const layout *l, const void *w, const void *x, int steps, int columns,
                 void *y, element type, void *sums);
void dense_dgrad(backend *be, const layout *l, const void *w, const void *dy, int steps,
                 int columns, void *dx, element type);
void dense_wgrad(backend *be, const layout *l, const void *dy, const void *x, int steps,
                 int columns, void *dw, void *workspace);
size_t cuda_wgrad_workspace(backend *be, const layout *l, int steps, int columns);

/* Layer norm's sums of y as stored, where the product did not make them; sums are zero before. */
void cuda_column_sums(backend *be, const layout *l, const void *y, int steps, int columns,
                      void *sums);
size_t cuda_sums_bytes(backend *be, int gates, int columns);
void cuda_zero_sums(backend *be, void *sums, int gates, int columns);
void cuda_cell_forward(backend *be, const cell *c);
void cuda_cell_backward(backend *be, const cell *c);
void cuda_prepare_entries(backend *be, const cell *c);
void cuda_activate(backend *be, const cell *c, int s, int t);
void cuda_activate_backward(backend *be, const cell *c, int s, int t);
void cuda_gates(backend *be, const cell *c, int t);
void cuda_gates_backward(backend *be, const cell *c, int t);
void cuda_norm_backward(backend *be, const cell *c, int s, int t);
void cuda_table_backward(backend *be, const cell *c, int s);

void cuda_softmax_cross_entropy(backend *be, const void *logits, const void *bias,
                                const int16_t *targets, int steps, int columns, void *losses,
                                void *dlogits);
void cuda_sample(backend *be, const void *logits, const void *bias, int streams, int columns,
                 sampling *state, uint8_t *text, uint8_t *bytes);
void cuda_row_sums(backend *be, const void *x, int steps, int rows, int columns, void *out);
void cuda_add(backend *be, size_t count, void *total, const void *x);
void cuda_sum(backend *be, const void *x, size_t count, double *out);
void cuda_pool(backend *be, const void *x, element type, int steps, int rows, int columns,
               const int32_t *first, const int32_t *last, pooling how, void *out);
void cuda_adam(backend *be, size_t count, void *weights, const void *gradient, void *moment1,
               void *moment2, void *average, void *operands, const uint8_t *decays,
               const update_arguments *arguments, update_report *report);
void cuda_round(backend *be, size_t count, const void *weights, void *operands);

/* For benchmarks, see bench/bench.cu. */
void cuda_mark(backend *be, int number);
double cuda_elapsed(backend *be, int from, int to);
extern const bench_tools cuda_bench_tools;

/* ------------------------------------------------------------------------------------- types */

static __device__ inline float to_float(float x) {
    return x;
}

static __device__ inline float to_float(bf16 x) {
    return __bfloat162float(x);
}

template <typename T> static __device__ inline T from_float(float x);

template <> __device__ inline float from_float<float>(float x) {
    return x;
}

template <> __device__ inline bf16 from_float<bf16>(float x) {
    return __float2bfloat16_rn(x);
}

/* Calls a template with the operand's type: DISPATCH(be, function, arguments). */
#define DISPATCH(be, function, ...)                                                                \
    ((be)->precision == BF16 ? function<bf16>(__VA_ARGS__) : function<float>(__VA_ARGS__))

#endif
