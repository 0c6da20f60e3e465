/* A product with a block-sparse W, as the kernels that walk its blocks see it. */
#ifndef SMALLWORLD_KERNELS_CUDA_PRODUCTS_PORTABLE_PRODUCT_CUH
#define SMALLWORLD_KERNELS_CUDA_PRODUCTS_PORTABLE_PRODUCT_CUH

#include "products/products.h"

/* What an operation works on, as its kernel needs it. */
typedef struct product {
    const void *left, *right; /* W and x; W and dy; dy and x */
    void *out;
    const int *start, *other, *block; /* tables of the row or column that a tile belongs to */
    size_t right_step, out_step;      /* elements between steps */
    size_t left_step;
    int columns, steps;
    int taps;             /* of a block, as in a convolution; else 1 */
    const int *positions; /* [steps][taps] the step of `right` that a tap reads, of wgrad with the
                             step of `left`; -1: none. NULL: its own */
    int b, log_b, gates, rows; /* rows: gates b */
    int real;                  /* the result is fp32 */
    int overlap; /* `left` may be read before the kernel before ends; see cuda_weights_change */
} product;

/* The groups of a row's blocks that wgrad makes together, as wide as WGRAD_COLUMNS. */
enum { WGRAD_COLUMNS = 128 };

/* The product that a call asks for. `tiles`: of fprop and dgrad the nodes that they make, of
 * wgrad the groups of blocks. */
static inline product product_of(backend *be, const device_layout *device, const void *plan,
                                 const product_call *c, int *tiles) {
    const layout *l = &device->host;
    const size_t rows = layout_rows(l) * c->columns, inputs = layout_inputs(l) * c->columns;
    product p = {};
    p.left = c->left;
    p.right = c->right;
    p.out = c->out;
    p.columns = c->columns;
    p.steps = c->steps;
    p.taps = max(l->taps, 1);
    if (c->taps) p.positions = c->op == DGRAD ? c->taps->target : c->taps->source;
    p.b = l->in_block;
    p.log_b = log2_of(p.b);
    p.gates = l->gates;
    p.rows = l->gates * p.b;
    p.real = c->type == REAL;
    p.overlap = c->op != WGRAD && cuda_of(be)->hopper && cuda_of(be)->weights_settled;
    if (c->op == FPROP) {
        p.start = l->row_start;
        p.other = l->row_column;
        p.right_step = inputs;
        p.out_step = rows;
        *tiles = l->out_nodes;
    } else if (c->op == DGRAD) {
        p.start = l->column_start;
        p.other = l->column_row;
        p.block = l->column_block;
        p.right_step = rows;
        p.out_step = inputs;
        *tiles = l->in_nodes;
    } else {
        const row_groups *t = (const row_groups *)plan;
        p.start = t->first;
        p.block = t->row;
        p.other = l->row_column;
        p.left_step = rows;
        p.right_step = inputs;
        *tiles = t->count;
    }
    return p;
}

/* The number of the block that has row k of its gates' rows, which dgrad sums over. */
static __device__ inline int block_with(const product &p, int k) {
    const int node = k >> p.log_b;
    if (p.gates == COUPLED_GATES) return node / COUPLED_GATES;
    return p.gates == GATES ? node / GATES : node;
}

/* The step of `right` that a tap reads; -1: none. */
static __device__ inline int step_read(const product &p, int step, int tap) {
    return p.positions ? p.positions[step * p.taps + tap] : step;
}

#endif
