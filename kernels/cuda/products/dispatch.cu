/* Which kernel makes a product: the first row of this table that is for the GPU and the precision,
 * that fits the layout, and that takes and prefers the call. SMALLWORLD_KERNEL=name has all
 * products with a block-sparse W made by the kernel of that name, where it has such a product,
 * whether it is preferred or not; SMALLWORLD_PORTABLE=1 leaves out the kernels for Hopper.
 *
 *   fprop  y_i   = sum over blocks (i, j)  W_ij  x_j
 *   dgrad  dx_j  = sum over blocks (i, j)  W_ij' dy_i
 *   wgrad  dW_ij = sum over steps          dy_i[t] x_j[t]'
 *
 * A new kernel needs a row here, its functions in kernels.h, and a test by its name in
 * tests/test_dispatch.c. */
#include "products/kernels.h"

#include <stdio.h>
#include <string.h>

/* ------------------------------------------------------------------------- conditions
 *
 * What a kernel needs of a layout, and what it takes or prefers of calls: each with the words in
 * which `bench train --explain` says that it does not hold. */

typedef struct layout_condition {
    const char *needs;
    bool (*holds)(const layout *l);
} layout_condition;

typedef struct call_condition {
    const char *needs;
    kernel_takes *holds;
} call_condition;

static bool is_sparse(const layout *l) {
    return !layout_is_dense(l);
}

/* Coupled gates have the portable kernels alone in blocks below 32, and for few columns. */
static bool is_sparse_uncoupled(const layout *l) {
    return is_sparse(l) && l->gates != COUPLED_GATES;
}

/* TMA's boxes begin at multiples of 16 bytes. */
static bool is_dense_even(const layout *l) {
    return layout_is_dense(l) && l->in_block % 2 == 0;
}

/* Hopper's kernels for blocks of 32 to 128 store a node's number in 15 bits; a node has a number
 * for each gate, and in a convolution for each tap. */
static bool has_blocks_from_32(const layout *l) {
    const int most = (1 << 15) / max(l->taps, 1);
    return is_sparse(l) && l->in_block >= 32 && l->in_nodes <= most &&
           l->out_nodes * l->gates <= most;
}

/* The lists number rows and columns of tiles of 32 x 32 in 16 bits. */
static bool has_one_gate(const layout *l) {
    const int most = (1 << 16) / max(l->taps, 1), across = l->in_block / 32;
    return has_blocks_from_32(l) && l->gates == 1 && l->in_nodes * across <= most &&
           l->out_nodes * across <= most;
}

static bool has_many_rows(const layout *l) {
    return has_blocks_from_32(l) && (l->gates > 1 || l->in_block == 128);
}

/* Blocks have numbers of 24 bits, nodes with their gates of 16. */
static bool has_small_blocks(const layout *l) {
    return is_sparse_uncoupled(l) && l->in_block < 32 &&
           (long long)l->blocks * l->gates < 1 << 24 && l->in_nodes * l->gates < 0xFFFF &&
           l->out_nodes * l->gates < 0xFFFF;
}

/* One step, as in a recurrence, with a result of operands. */
static bool is_one_step(const product_call *c) {
    return c->steps == 1 && c->type == OPERAND;
}

static bool takes_one_step_from_128(const device_layout *, const void *, const product_call *c) {
    return is_one_step(c) && c->columns >= 128;
}

/* Up to 64 columns of one gate few_columns is faster; in blocks of 32, up to 96 columns, which
 * gather takes but does not prefer. */
static bool gather_takes(const device_layout *device, const void *, const product_call *c) {
    if (c->taps) return true;
    return is_one_step(c) && (device->host.gates == 1 ? c->columns > 64 : c->columns % 64 == 0);
}

static bool gather_prefers(const device_layout *device, const void *, const product_call *c) {
    const layout *l = &device->host;
    return c->taps || l->gates > 1 || c->columns > 96 || l->in_block > 32;
}

static bool takes_one_step(const device_layout *, const void *, const product_call *c) {
    return is_one_step(c);
}

/* With more columns, sharing tiles pays. */
static bool few_columns_prefers(const device_layout *device, const void *, const product_call *c) {
    return c->columns <= (device->host.gates == 1 ? 128 : 32);
}

/* One step without a stride needs no packing for cuBLAS. */
static bool needs_steps_packed(const device_layout *device, const void *, const product_call *c) {
    return c->steps > 1 || device->host.in_stride > 1;
}

// clang-format off
static const layout_condition
    dense =              {"a dense W", layout_is_dense},
    dense_even =         {"a dense W with an even number of columns", is_dense_even},
    sparse =             {"a block-sparse W", is_sparse},
    sparse_uncoupled =   {"a block-sparse W of one or four gates", is_sparse_uncoupled},
    blocks_from_32 =     {"blocks from 32 on", has_blocks_from_32},
    one_gate =           {"one gate in blocks from 32 on", has_one_gate},
    many_rows =          {"several gates in blocks from 32 on, or blocks of 128", has_many_rows},
    blocks_of_8_and_16 = {"one or four gates in blocks of 8 or 16", has_small_blocks};

static const call_condition
    all_calls =          {"", NULL},
    one_step_from_128 =  {"one step of 128 columns or more", takes_one_step_from_128},
    gather_calls =       {"one step: one gate from 96 columns, all else by 64", gather_takes},
    from_128 =           {"128 columns, or 96 of larger blocks", gather_prefers},
    one_step =           {"one step", takes_one_step},
    up_to_128 =          {"at most 128 columns of one gate, 32 of four", few_columns_prefers},
    much_work =          {"four gates, or more columns or blocks", small_blocks_prefers},
    needs_packing =      {"several steps, or a stride, to pack", needs_steps_packed};
// clang-format on

/* ------------------------------------------------------------------------------- table */

typedef enum gpu { ANY_GPU, HOPPER } gpu; /* ANY_GPU: from sm_80 on */

#define ONLY(which) (1u << (which))

typedef struct product_kernel {
    const char *name;
    unsigned operations;
    enum gpu gpu;
    unsigned precisions;
    const layout_condition *fits;
    const call_condition *takes, *prefers;
    kernel_plan *plan; /* NULL: it needs no tables */
    kernel_run *run;
} product_kernel;

/* TAPS: the same of convolutions. */
enum { F = ONLY(FPROP), D = ONLY(DGRAD), W = ONLY(WGRAD), TAPS = 8 };
enum { IN_FP32 = ONLY(FP32), IN_BF16 = ONLY(BF16), IN_ANY = IN_FP32 | IN_BF16 };

// clang-format off
/* {name, products, GPU, precisions,
 *      fits, takes, prefers, plan, run} */
static const product_kernel kernels[] = {
    {"wgrad_gates",         W,         HOPPER,  IN_BF16,
        &dense_even,         &all_calls,         &needs_packing,
        NULL,                    wgrad_gates_run},
    {"cublas",              F | D | W, ANY_GPU, IN_ANY,
        &dense,              &all_calls,         &all_calls,
        NULL,                    cublas_run},
    {"gather",              F | D | TAPS, HOPPER, IN_BF16,
        &blocks_from_32,     &gather_calls,      &from_128,
        gather_plan,             gather_run},
    {"wgrad_gates",         W,         HOPPER,  IN_BF16,
        &many_rows,          &all_calls,         &all_calls,
        wgrad_gates_plan,        wgrad_gates_run},
    {"wgrad_one_gate",      W | TAPS,  HOPPER,  IN_BF16,
        &one_gate,           &all_calls,         &all_calls,
        wgrad_one_gate_plan,     wgrad_one_gate_run},
    {"small_blocks",        F | D,     HOPPER,  IN_BF16,
        &blocks_of_8_and_16, &one_step_from_128, &much_work,
        small_blocks_plan,       small_blocks_run},
    {"wgrad_small_blocks",  W,         HOPPER,  IN_BF16,
        &blocks_of_8_and_16, &all_calls,         &all_calls,
        wgrad_small_blocks_plan, wgrad_small_blocks_run},
    {"few_columns",         F | D,     ANY_GPU, IN_BF16,
        &sparse_uncoupled,   &one_step,          &up_to_128,
        few_columns_plan,        few_columns_run},
    {"portable_bf16",       F | D | TAPS, ANY_GPU, IN_BF16,
        &sparse,             &all_calls,         &all_calls,
        portable_bf16_plan,      portable_bf16_run},
    {"portable_bf16",       W | TAPS,  ANY_GPU, IN_BF16,
        &sparse,             &all_calls,         &all_calls,
        portable_wgrad_plan,     portable_bf16_run},
    {"portable_fp32",       F | D | W | TAPS, ANY_GPU, IN_FP32,
        &sparse,             &all_calls,         &all_calls,
        portable_wgrad_plan,     portable_fp32_run},
};
// clang-format on

enum { KERNELS = sizeof kernels / sizeof kernels[0] };
static_assert((int)KERNELS <= (int)MOST_KERNELS, "a layout has a plan for each");

/* ------------------------------------------------------------------------------- choice */

static bool serves(const backend *be, const product_kernel *k) {
    return (k->gpu == ANY_GPU || cuda_of(be)->hopper) && k->precisions & ONLY(be->precision);
}

/* Whether a product of this kind with this W must be computed by the kernel that was forced. */
static bool is_forced(const backend *be, const layout *l, operation op) {
    const char *name = cuda_of(be)->kernel;
    for (int i = 0; name && is_sparse(l) && i < KERNELS; i++) {
        if (!strcmp(kernels[i].name, name) && kernels[i].operations & ONLY(op)) return true;
    }
    return false;
}

static bool is_named(const backend *be, const product_kernel *k) {
    return !strcmp(k->name, cuda_of(be)->kernel);
}

static bool holds(const call_condition *condition, const device_layout *device, const void *plan,
                  const product_call *c) {
    return !condition->holds || condition->holds(device, plan, c);
}

/* What row i lacks to compute this product; NULL: it computes it, unless a row above does. */
static const char *lacks(const backend *be, const device_layout *device, const product_call *c,
                         int i) {
    const product_kernel *k = &kernels[i];
    const layout *l = &device->host;
    const void *plan = device->plan[i];
    const bool forced = is_forced(be, l, c->op);
    if (!(k->operations & ONLY(c->op))) return "another product";
    if (!serves(be, k)) return "another GPU or precision";
    if (c->taps && !(k->operations & TAPS)) return "a product that is no convolution";
    if (!k->fits->holds(l)) return k->fits->needs;
    if (forced && !is_named(be, k)) return "its name in SMALLWORLD_KERNEL";
    if (k->plan && !plan) return "to be forced before the layout is made";
    if (!holds(k->takes, device, plan, c)) return k->takes->needs;
    return forced || holds(k->prefers, device, plan, c) ? NULL : k->prefers->needs;
}

/* The row that computes this product; KERNELS if the kernel that was forced does not take it. */
static int find_kernel(const backend *be, const device_layout *device, const product_call *c) {
    int i = 0;
    while (i < KERNELS && lacks(be, device, c, i)) i++;
    return i;
}

void products_plan(backend *be, device_layout *device, const layout *l) {
    cuda_planner gpu = layout_planner(be, device);
    for (int op = FPROP; op <= WGRAD; op++) {
        const bool forced = is_forced(be, l, (operation)op);
        for (int i = 0; i < KERNELS; i++) {
            const product_kernel *k = &kernels[i];
            if (!(k->operations & ONLY(op)) || !serves(be, k) || !k->fits->holds(l)) continue;
            if (forced && !is_named(be, k)) continue;
            if (l->taps && !(k->operations & TAPS)) continue;
            if (k->plan && !device->plan[i]) device->plan[i] = k->plan(&gpu.of, l);
            if (k->takes == &all_calls && k->prefers == &all_calls) break; /* none goes past it */
        }
    }
}

static const char *const operation_names[] = {"fprop", "dgrad", "wgrad"};

/* The names of all kernels that serve the backend, as a list. */
static const char *list_kernels(const backend *be, char *text, size_t room) {
    size_t used = 0;
    for (int i = 0; i < KERNELS; i++) {
        if (!serves(be, &kernels[i])) continue;
        if (i > 0 && !strcmp(kernels[i].name, kernels[i - 1].name)) continue;
        used +=
            (size_t)snprintf(text + used, room - used, "%s%s", used ? ", " : "", kernels[i].name);
    }
    return text;
}

bool products_force(backend *be, const char *name, error *err) {
    char names[400];
    cuda_of(be)->kernel = NULL;
    if (!name || !*name) return true;
    for (int i = 0; i < KERNELS; i++) {
        if (!serves(be, &kernels[i]) || strcmp(kernels[i].name, name)) continue;
        cuda_of(be)->kernel = kernels[i].name;
        return true;
    }
    return error_set(err, "kernel \"%s\": not one for %s on this GPU; there are %s", name,
                     precision_name(be->precision), list_kernels(be, names, sizeof names));
}

static bool refuse(const backend *be, const layout *l, const product_call *c, error *err) {
    char names[400], who[80] = "no kernel takes";
    if (is_forced(be, l, c->op)) {
        const char *name = cuda_of(be)->kernel;
        snprintf(who, sizeof who, "kernel %s does not take", name);
    }
    return error_set(err,
                     "%s %s of %d gates in blocks of %d, %d columns and %d steps; there are %s",
                     who, operation_names[c->op], l->gates, l->in_block, c->columns, c->steps,
                     list_kernels(be, names, sizeof names));
}

const char *product_kernel_name(backend *be, const device_layout *device, const product_call *c,
                                error *err) {
    const int i = find_kernel(be, device, c);
    if (i == KERNELS) refuse(be, &device->host, c, err);
    return i == KERNELS ? NULL : kernels[i].name;
}

/* Tells, once for each kind of product, which row computes it, and what the rows above lack. */
static void explain_product(backend *be, const device_layout *device, const product_call *c,
                            int chosen) {
    const layout *l = &device->host;
    char text[1200], shape[64];
    snprintf(shape, sizeof shape, is_sparse(l) ? "blocks of %d" : "dense, %d columns of W",
             l->in_block);
    int used = snprintf(text, sizeof text, "%s, %d gate%s, %s, %d columns, %d step%s: %s\n",
                        operation_names[c->op], l->gates, l->gates > 1 ? "s" : "", shape,
                        c->columns, c->steps, c->steps > 1 ? "s" : "", kernels[chosen].name);
    for (int i = 0; i < chosen; i++) {
        const bool other = !(kernels[i].operations & ONLY(c->op)) || !serves(be, &kernels[i]);
        if (other || used >= (int)sizeof text) continue;
        used += snprintf(text + used, sizeof text - (size_t)used, "    not %s, which needs %s\n",
                         kernels[i].name, lacks(be, device, c, i));
    }
    cuda_explain(be, text);
}

/* --------------------------------------------------------------------------- operations */

static void make_product(backend *be, const device_layout *device, const product_call *c) {
    const layout *l = &device->host;
    const int i = find_kernel(be, device, c);
    error err;
    /* The contract's: no box of columns is in part. */
    if (c->op == WGRAD && !c->taps && c->columns % wgrad_multiple(be)) abort();
    if (i == KERNELS) {
        refuse(be, l, c, &err);
        cuda_fail(be, "%s", err.text);
        return;
    }
    if (cuda_of(be)->explained) explain_product(be, device, c, i);
    kernels[i].run(be, device, device->plan[i], c);
    cuda_launched(be, operation_names[c->op]);
}

static void fprop(backend *be, const device_layout *device, const void *w, const void *x, int steps,
                  int columns, void *y, element type) {
    product_call c = {FPROP, steps, columns, type, w, x, y};
    if (be->precision != BF16) c.type = OPERAND;
    make_product(be, device, &c);
}

static void dgrad(backend *be, const device_layout *device, const void *w, const void *dy,
                  int steps, int columns, void *dx, element type) {
    product_call c = {DGRAD, steps, columns, type, w, dy, dx};
    if (be->precision != BF16) c.type = OPERAND;
    make_product(be, device, &c);
}

static void wgrad(backend *be, const device_layout *device, const void *dy, const void *x,
                  int steps, int columns, void *dw, void *workspace) {
    const product_call c = {WGRAD, steps, columns, REAL, dy, x, dw, workspace};
    make_product(be, device, &c);
}

static void conv_fprop(backend *be, const device_layout *device, const tap_table *taps,
                       const void *w, const void *x, int columns, void *y) {
    const product_call c = {FPROP, taps->out_positions, columns, OPERAND, w, x, y, NULL, taps};
    make_product(be, device, &c);
}

static void conv_dgrad(backend *be, const device_layout *device, const tap_table *taps,
                       const void *w, const void *dy, int columns, void *dx) {
    const product_call c = {DGRAD, taps->in_positions, columns, OPERAND, w, dy, dx, NULL, taps};
    make_product(be, device, &c);
}

static void conv_wgrad(backend *be, const device_layout *device, const tap_table *taps,
                       const void *dy, const void *x, int columns, void *dw) {
    const product_call c = {WGRAD, taps->out_positions, columns, REAL, dy, x, dw, NULL, taps};
    make_product(be, device, &c);
}

/* cuBLAS sums over one dimension, so operands of several steps, or with a stride, are packed first;
 * see pack_steps in cublas.cu. */
static size_t wgrad_workspace(backend *be, const layout *l, int steps, int columns) {
    device_layout device = {*l};
    const product_call c = {WGRAD, steps, columns, REAL};
    if (is_sparse(l) || kernels[find_kernel(be, &device, &c)].run != cublas_run) return 0;
    if (steps == 1 && l->in_stride == 1) return 0;
    return be->operand_size * (layout_rows(l) + (size_t)l->in_block) * (size_t)steps *
           (size_t)columns;
}

const product_operations cuda_products = {
    .fprop = fprop,
    .dgrad = dgrad,
    .wgrad = wgrad,
    .conv_fprop = conv_fprop,
    .conv_dgrad = conv_dgrad,
    .conv_wgrad = conv_wgrad,
    .wgrad_workspace = wgrad_workspace,
};
