#include "library/internal.h"

#include "core/memory.h"
#include "graph/graph.h"

#include <stdlib.h>

struct smallworld_product {
    backend *be;
    layout *layout;
    device_layout *device;
    void *workspace; /* workspace of wgrad; grows */
    size_t workspace_size;
};

static bool check_pattern(int nodes, int block, int count, error *err) {
    if (nodes < 1 || nodes > GRAPH_MAX_NODES) {
        return error_set(err, "nodes: expected 1 to %d, got %d", GRAPH_MAX_NODES, nodes);
    }
    if (block < 8 || block > 128 || (block & (block - 1)) != 0) {
        return error_set(err, "block: expected 8, 16, 32, 64 or 128, got %d", block);
    }
    return count >= nodes ||
           error_set(err, "blocks: expected every node's own, %d, got %d blocks", nodes, count);
}

static bool create(smallworld_product *p, int nodes, int block, const int32_t (*blocks)[2],
                   int count, const smallworld_options *given, error *err) {
    if (!library_needs(blocks, "blocks", err)) return false;
    if (!check_pattern(nodes, block, count, err)) return false;
    graph *g = graph_from_blocks(nodes, blocks, count, err);
    if (!g) return false;
    options o;
    options_begin(&o);
    bool done = library_options(&o, given, err);
    if (done) p->be = options_backend(&o.run, err);
    options_free(&o);
    if (p->be && !p->be->use_stream && p->be->precision == BF16) {
        done = error_set(err, "precision bf16: products on the CPU are fp32");
    } else if (p->be) {
        p->layout = layout_blocks(g, block, 1);
        p->device = p->be->layout_create(p->be, p->layout);
        done = p->be->finish(p->be, err);
    }
    graph_free(g);
    return done && p->be;
}

smallworld_product *smallworld_product_create(int nodes, int block, const int32_t (*blocks)[2],
                                              int count, const smallworld_options *options) {
    error err;
    smallworld_product *p = mem_alloc(1, sizeof *p);
    if (create(p, nodes, block, blocks, count, options, &err)) return p;
    library_fail(&err);
    smallworld_product_free(p);
    return NULL;
}

void smallworld_product_free(smallworld_product *p) {
    if (!p) return;
    if (p->be) {
        error ignored;
        p->be->finish(p->be, &ignored);
        if (p->workspace) p->be->release(p->be, p->workspace);
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
    return p ? wgrad_multiple(p->be) : 0;
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

/* Checks a product's columns and its arrays, two operands and the result, and selects its
 * stream. */
static bool begin(smallworld_product *p, const array arrays[3], int columns, int multiple,
                  void *stream, error *err) {
    const backend_limits *most = &p->be->limits;
    if (columns < 1 || columns % multiple) {
        return error_set(err, "columns: expected a multiple of %d, got %d", multiple, columns);
    }
    if ((size_t)columns > most->positions ||
        layout_rows(p->layout) > most->step_values / (size_t)columns) {
        return error_set(err, "columns: too many for %s, got %d", p->be->device, columns);
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

static size_t activation_bytes(const smallworld_product *p, int columns) {
    return layout_rows(p->layout) * (columns > 0 ? (size_t)columns : 0) * p->be->operand_size;
}

/* What fprop and dgrad check: y = W x, under their own names. */
static bool begin_product(smallworld_product *p, const void *w, const char *x_name, const void *x,
                          const char *y_name, void *y, int columns, void *stream, error *err) {
    if (!library_needs(p, "product", err)) return false;
    const array arrays[] = {{"w", w, weight_bytes(p, p->be->operand_size)},
                            {x_name, x, activation_bytes(p, columns)},
                            {y_name, y, activation_bytes(p, columns)}};
    return begin(p, arrays, columns, p->be->product_multiple, stream, err);
}

bool smallworld_fprop(smallworld_product *p, const void *w, const void *x, void *y, int columns,
                      void *stream) {
    error err;
    if (!begin_product(p, w, "x", x, "y", y, columns, stream, &err)) return library_fail(&err);
    p->be->fprop(p->be, p->device, w, x, 1, columns, y, OPERAND, NULL);
    return true;
}

bool smallworld_dgrad(smallworld_product *p, const void *w, const void *dy, void *dx, int columns,
                      void *stream) {
    error err;
    if (!begin_product(p, w, "dy", dy, "dx", dx, columns, stream, &err)) return library_fail(&err);
    p->be->dgrad(p->be, p->device, w, dy, 1, columns, dx, OPERAND);
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
    const array arrays[] = {{"dy", dy, activation_bytes(p, columns)},
                            {"x", x, activation_bytes(p, columns)},
                            {"dw", dw, weight_bytes(p, sizeof *dw)}};
    if (!begin(p, arrays, columns, wgrad_multiple(p->be), stream, &err) ||
        !grow_workspace(p, p->be->wgrad_workspace(p->be, p->layout, 1, columns), &err)) {
        return library_fail(&err);
    }
    p->be->wgrad(p->be, p->device, dy, x, 1, columns, dw, p->workspace);
    return true;
}

bool smallworld_product_wait(smallworld_product *p) {
    error err;
    return (library_needs(p, "product", &err) && p->be->finish(p->be, &err)) || library_fail(&err);
}
