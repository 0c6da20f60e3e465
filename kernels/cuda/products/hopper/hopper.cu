/* The three products on Hopper (sm_90a): blocks of 32, 64 and 128 in bf16, and their wgrad in tf32
 * too, by TMA and tensor cores.
 *
 * Floors are those of products/portable/bf16.cu. What these kernels add is width: producer warps run ahead with
 * bulk copies through a ring of stages in shared memory, so that 64 KB and more are on their way
 * into each multiprocessor, and two warpgroups multiply what has arrived. Each product has a file:
 *
 *   fprop_gates        fprop of four gates: M = 128, the gates of 32 units; N = columns. A stage
 *                       is one block's weights (A) and the activation tile it gathers (B).
 *   dgrad_gates  dgrad of four gates: M = columns, N = the units of one node. With
 *                       activations as A, one gathered tile serves all of a part's nodes,
 *                       neighbours or of like sources, whose sums stay in registers while the
 *                       union of their sources goes by once.
 *   one_gate        fprop and dgrad of one gate, from 128 columns on: the same with more
 *                       columns and nodes a thread block, and nodes in an order of likeness.
 *   one_gate_split_run      the same of up to 512 columns and blocks of 32, where two thread blocks
 *                       share a part's sources, or parts are small.
 *   wgrad_gates        wgrad of four gates, or blocks of 128: M = 128 rows of dy, N = up to 256
 *                       units of x; K = columns and steps.
 *   wgrad_few_columns     wgrad of few columns: M = N = 32, K = up to four panels of 128 bytes.
 *   wgrad_one_gate_pairs      wgrad of one gate, blocks of 32 and 64: tiles of 32 x 32, two of a column
 *                       of W to a product.
 *   wgrad_one_gate     the same by mma.sync, of patterns whose tiles have few partners.
 *
 * wgrad_small_blocks.cu has wgrad of blocks of 8 and 16; where nearly all of W is there, wgrad_gates.
 *
 * tf32.cu and fp32.cu have fprop and dgrad of operands of 4 bytes, and
 * wgrad_fp32.cu wgrad in true fp32;
 * cell/table_gradient_hopper.cu, besides, has the gradient of an input table, a product with one-hot columns;
 * wgrad_dense.cu wgrad of dense layers; small_blocks.cu fprop and dgrad of blocks of 8 and 16.
 *
 * products/portable/few_columns.cu has fprop and dgrad of one gate with fewer columns, and of four gates with 32;
 * products/portable/bf16.cu what is left: several steps at once, results in fp32, four gates with 96 columns and
 * the like.
 *
 * What holds the first two, at 18,432 units, block 32, 22,064 blocks of four gates and 128 columns
 * on an H200: fprop_gates brings 361 MB into the multiprocessors in 60 us, half of it cold;
 * dgrad_gates brings 427 MB in 63 us, and when that took 74, 70 were left without its
 * multiplications. So loads set the pace, at about 6 TB/s, not arithmetic. Clusters of two thread
 * blocks that share activation tiles by multicast move less and took longer (146 us for fprop and
 * 116 for dgrad, when the kernels without them took 80 and 94): each stage then waits for the slower
 * of two.
 *
 * Operands are described to wgmma where they lie, or go through ldmatrix into registers, which
 * turns them over where it must: nothing is transposed in memory. */
#include "products/hopper/hopper.cuh"

bool hopper_fits_wgrad(const backend *be, const layout *l) {
    const int most =
        1 << 15; /* nodes, by the way from one to the next in a one_gate_source, and by the
                                 numbers of tiles in a task */
    return cuda_of((backend *)(uintptr_t)be)->hopper &&
           (be->precision == BF16 || be->precision == TF32) && l->in_block >= 32 &&
           l->in_nodes <= most && l->out_nodes <= most && !layout_is_dense(l);
}

bool hopper_fits(const backend *be, const layout *l) {
    return be->precision == BF16 && hopper_fits_wgrad(be, l);
}

bool hopper_takes(const backend *be, const layout *l, int columns) {
    return hopper_fits(be, l) &&
           (l->gates == GATES ? columns % COLUMN_MULTIPLE == 0 : columns >= ONE_GATE_LEAST);
}

/* Whether a node's rows fill wgrad_gates's tiles. */
static bool is_deep(const layout *l) {
    return l->gates * l->in_block % 128 == 0;
}

void hopper_create(backend *be, device_layout *device, const layout *l) {
    if (l->gates == GATES) {
        fprop_gates_plan(be, device, l);
        dgrad_gates_plan(be, device, l);
    } else {
        one_gate_plan(be, device, l);
    }
    for (int i = 0; i < l->out_nodes; i++) {
        device->empty_rows |= l->row_start[i] == l->row_start[i + 1];
    }
}

void hopper_create_wgrad(backend *be, device_layout *device, const layout *l) {
    if (is_deep(l)) {
        wgrad_gates_plan(be, device, l);
    } else {
        wgrad_one_gate_plan(be, device, l);
    }
}

void hopper_fprop(backend *be, const device_layout *device, const void *w, const void *x,
                  int columns, void *y, void *sums) {
    const layout *l = &device->host;
    if (l->gates == GATES) {
        fprop_gates_run(be, device, w, x, columns, y, sums);
    } else {
        one_gate_fprop(be, device, w, x, columns, y);
        if (sums) cuda_column_sums(be, l, y, 1, columns, sums);
    }
}

void hopper_dgrad(backend *be, const device_layout *device, const void *w, const void *dy,
                  int columns, void *dx) {
    if (device->host.gates == GATES) {
        dgrad_gates_run(be, device, w, dy, columns, dx);
    } else {
        one_gate_dgrad(be, device, w, dy, columns, dx);
    }
}

void hopper_wgrad(backend *be, const device_layout *device, const void *dy, const void *x,
                  int steps, int columns, void *dw) {
    if (wgrad_few_columns_takes(be, device, steps, columns)) {
        wgrad_few_columns_run(be, device, dy, x, steps, columns, dw);
    } else if (is_deep(&device->host)) {
        wgrad_gates_run(be, device, dy, x, steps, columns, dw);
    } else {
        wgrad_one_gate_run(be, device, dy, x, steps, columns, dw);
    }
}
