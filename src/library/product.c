#include "library/internal.h"

#include "core/memory.h"
#include "graph/graph.h"
#include "graph/taps.h"

#include <stdlib.h>

struct smallworld_product {
    backend *be;
    layout *layout;
    device_layout *device;
    tap_table *taps; /* the backend's, of a convolution; else NULL */
    void *workspace; /* workspace of wgrad; grows */
    size_t workspace_size;
};

static bool check_sizes(const char *name, int nodes, int block, error *err) {
    if (nodes < 1 || nodes > GRAPH_MAX_NODES) {
        return error_set(err, "%s: expected 1 to %d, got %d", name, GRAPH_MAX_NODES, nodes);
    }
    return (block >= 8 && block <= 128 && (block & (block - 1)) == 0) ||
           error_set(err, "block: expected 8, 16, 32, 64 or 128, got %d", block);
}

/* The pattern of a square product, which has every node's own block. */
static layout *square_layout(int nodes, int block, const int32_t (*blocks)[2], int count,
                             error *err) {
    if (!library_needs(blocks, "blocks", err) || !check_sizes("nodes", nodes, block, err)) {
        return NULL;
    }
    if (count < nodes) {
        error_set(err, "blocks: expected every node's own, %d, got %d blocks", nodes, count);
        return NULL;
    }
    graph *g = graph_from_blocks(nodes, blocks, count, err);
    layout *l = g ? layout_blocks(g, block, 1) : NULL;
    if (g) graph_free(g);
    return l;
}

/* A rectangular pattern. */
static layout *pair_layout(int out_nodes, int in_nodes, int block, const int32_t (*blocks)[2],
                           int count, int taps, error *err) {
    if (!library_needs(blocks, "blocks", err) || !check_sizes("out_nodes", out_nodes, block, err) ||
        !check_sizes("in_nodes", in_nodes, block, err)) {
        return NULL;
    }
    const int most = taps ? GRAPH_MAX_BLOCKS / taps : GRAPH_MAX_BLOCKS;
    if (count < 1 || count > most) {
        error_set(err, "blocks: expected 1 to %d with so many taps, got %d", most, count);
        return NULL;
    }
    if (!graph_check_pairs(out_nodes, in_nodes, blocks, count, err)) return NULL;
    return layout_pairs(out_nodes, in_nodes, blocks, count, block, taps);
}

/* Opens the backend for the layout and, of a convolution, the taps. */
static bool open_product(smallworld_product *p, const tap_table *taps,
                         const smallworld_options *given, error *err) {
    options o;
    options_begin(&o);
    if (library_options(&o, given, err)) p->be = options_backend(&o.run, err);
    options_free(&o);
    if (!p->be) return false;
    if (!p->be->use_stream && p->be->precision == BF16) {
        return error_set(err, "precision bf16: products on the CPU are fp32");
    }
    p->device = p->be->layout_create(p->be, p->layout);
    if (taps) p->taps = p->be->taps_create(p->be, taps);
    return p->be->finish(p->be, err);
}

static smallworld_product *made_product(smallworld_product *p, bool done, const error *err) {
    if (done) return p;
    library_fail(err);
    smallworld_product_free(p);
    return NULL;
}

smallworld_product *smallworld_product_create(int nodes, int block, const int32_t (*blocks)[2],
                                              int count, const smallworld_options *options) {
    error err;
    smallworld_product *p = mem_alloc(1, sizeof *p);
    p->layout = square_layout(nodes, block, blocks, count, &err);
    return made_product(p, p->layout && open_product(p, NULL, options, &err), &err);
}

static bool finish_shape(conv_shape *s, const smallworld_conv_shape *given, error *err) {
    for (int i = 0; i < 2; i++) {
        s->in[i] = given->in[i];
        s->filter[i] = given->filter[i];
        s->stride[i] = given->stride[i];
        s->dilation[i] = given->dilation[i];
        s->pad[i][0] = given->pad[i][0];
        s->pad[i][1] = given->pad[i][1];
    }
    return conv_shape_finish(s, err);
}

bool smallworld_conv_out(const smallworld_conv_shape *shape, int out[2]) {
    error err;
    conv_shape s;
    if (!library_needs(shape, "shape", &err) || !library_needs(out, "out", &err) ||
        !finish_shape(&s, shape, &err)) {
        return library_fail(&err);
    }
    out[0] = s.out[0];
    out[1] = s.out[1];
    return true;
}

smallworld_product *smallworld_conv_create(int out_nodes, int in_nodes, int block,
                                           const int32_t (*blocks)[2], int count,
                                           const smallworld_conv_shape *shape,
                                           const smallworld_options *options) {
    error err;
    conv_shape s;
    smallworld_product *p = mem_alloc(1, sizeof *p);
    bool done = !shape || finish_shape(&s, shape, &err);
    if (done) {
        const int taps = shape ? conv_positions(s.filter) : 0;
        p->layout = pair_layout(out_nodes, in_nodes, block, blocks, count, taps, &err);
        done = p->layout != NULL;
    }
    tap_table *taps = done && shape ? taps_of(&s) : NULL;
    done = done && open_product(p, taps, options, &err);
    taps_free(taps);
    return made_product(p, done, &err);
}

void smallworld_product_free(smallworld_product *p) {
    if (!p) return;
    if (p->be) {
        error ignored;
        p->be->finish(p->be, &ignored);
        if (p->workspace) p->be->release(p->be, p->workspace);
        p->be->taps_free(p->be, p->taps);
        p->be->layout_free(p->be, p->device);
        p->be->destroy(p->be);
    }
    layout_free(p->layout);
    free(p);
}

bool smallworld_product_on_gpu(const smallworld_product *p) {
    return p && p->be->use_stream != NULL;
}

int smallworld_product_element_size(const smallworld_product *p) {
    return p ? (int)p->be->operand_size : 0;
}

int smallworld_product_columns(const smallworld_product *p) {
    return p ? p->be->product_multiple : 0;
}

int smallworld_product_wgrad_columns(const smallworld_product *p) {
    if (!p) return 0;
    return p->taps ? p->be->product_multiple : wgrad_multiple(p->be);
}

/* An array of a product. */
typedef struct array {
    const char *name;
    const void *pointer;
    size_t bytes;
} array;

static bool overlap(const array *a, const array *b) {
    const uintptr_t first = (uintptr_t)a->pointer, second = (uintptr_t)b->pointer;
    return first < second + b->bytes && second < first + a->bytes;
}

static size_t positions(const smallworld_product *p, bool in) {
    return !p->taps ? 1 : (size_t)(in ? p->taps->in_positions : p->taps->out_positions);
}

/* Checks a product's columns and its arrays, two operands and the result, and selects its
 * stream. */
static bool begin(smallworld_product *p, const array arrays[3], int columns, int multiple,
                  void *stream, error *err) {
    const backend_limits *most = &p->be->limits;
    if (columns < 1 || columns % multiple) {
        return error_set(err, "columns: expected a multiple of %d, got %d", multiple, columns);
    }
    const size_t rows = layout_rows(p->layout), inputs = layout_inputs(p->layout);
    const size_t out = positions(p, false), in = positions(p, true), steps = in > out ? in : out;
    if (steps > most->steps || (size_t)columns > most->positions / steps ||
        (rows > inputs ? rows : inputs) > most->step_values / (size_t)columns) {
        return error_set(err, "columns: too many for %s, got %d at %zu positions", p->be->device,
                         columns, steps);
    }
    for (int i = 0; i < 3; i++) {
        if (!library_needs(arrays[i].pointer, arrays[i].name, err)) return false;
        if ((uintptr_t)arrays[i].pointer % 16) {
            return error_set(err, "%s: expected memory aligned to 16 bytes", arrays[i].name);
        }
        if (i < 2 && overlap(&arrays[i], &arrays[2])) {
            return error_set(err, "%s: expected memory that %s does not overlap", arrays[2].name,
                             arrays[i].name);
        }
    }
    return !p->be->use_stream || p->be->use_stream(p->be, stream, err);
}

static size_t weight_bytes(const smallworld_product *p, size_t element) {
    return layout_weights(p->layout) * element;
}

/* Of x and dx, `in`, or of y and dy. */
static size_t activation_bytes(const smallworld_product *p, bool in, int columns) {
    const size_t rows = in ? layout_inputs(p->layout) : layout_rows(p->layout);
    return rows * positions(p, in) * (columns > 0 ? (size_t)columns : 0) * p->be->operand_size;
}

/* What fprop and dgrad check, an operand and a result beside w, under their own names. */
static bool begin_product(smallworld_product *p, const void *w, bool forward, const void *x,
                          void *y, int columns, void *stream, error *err) {
    if (!library_needs(p, "product", err)) return false;
    const array arrays[] = {{"w", w, weight_bytes(p, p->be->operand_size)},
                            {forward ? "x" : "dy", x, activation_bytes(p, forward, columns)},
                            {forward ? "y" : "dx", y, activation_bytes(p, !forward, columns)}};
    return begin(p, arrays, columns, p->be->product_multiple, stream, err);
}

bool smallworld_fprop(smallworld_product *p, const void *w, const void *x, void *y, int columns,
                      void *stream) {
    error err;
    if (!begin_product(p, w, true, x, y, columns, stream, &err)) return library_fail(&err);
    if (p->taps) {
        p->be->conv_fprop(p->be, p->device, p->taps, w, x, columns, y);
    } else {
        p->be->fprop(p->be, p->device, w, x, 1, columns, y, OPERAND, NULL);
    }
    return true;
}

bool smallworld_dgrad(smallworld_product *p, const void *w, const void *dy, void *dx, int columns,
                      void *stream) {
    error err;
    if (!begin_product(p, w, false, dy, dx, columns, stream, &err)) return library_fail(&err);
    if (p->taps) {
        p->be->conv_dgrad(p->be, p->device, p->taps, w, dy, columns, dx);
    } else {
        p->be->dgrad(p->be, p->device, w, dy, 1, columns, dx, OPERAND);
    }
    return true;
}

/* Makes the workspace larger, after the last use of the smaller one has ended. */
static bool grow_workspace(smallworld_product *p, size_t bytes, error *err) {
    if (bytes <= p->workspace_size) return true;
    if (!p->be->finish(p->be, err)) return false;
    if (p->workspace) p->be->release(p->be, p->workspace);
    p->workspace = p->be->allocate(p->be, bytes);
    p->workspace_size = p->workspace ? bytes : 0;
    return p->workspace ||
           error_set(err, "wgrad: not enough memory for %zu bytes of workspace", bytes);
}

bool smallworld_wgrad(smallworld_product *p, const void *dy, const void *x, float *dw, int columns,
                      void *stream) {
    error err;
    if (!library_needs(p, "product", &err)) return library_fail(&err);
    const array arrays[] = {{"dy", dy, activation_bytes(p, false, columns)},
                            {"x", x, activation_bytes(p, true, columns)},
                            {"dw", dw, weight_bytes(p, sizeof *dw)}};
    if (!begin(p, arrays, columns, smallworld_product_wgrad_columns(p), stream, &err) ||
        !grow_workspace(p, p->taps ? 0 : p->be->wgrad_workspace(p->be, p->layout, 1, columns),
                        &err)) {
        return library_fail(&err);
    }
    if (p->taps) {
        p->be->conv_wgrad(p->be, p->device, p->taps, dy, x, columns, dw);
    } else {
        p->be->wgrad(p->be, p->device, dy, x, 1, columns, dw, p->workspace);
    }
    return true;
}

bool smallworld_product_wait(smallworld_product *p) {
    error err;
    return (library_needs(p, "product", &err) && p->be->finish(p->be, &err)) || library_fail(&err);
}
