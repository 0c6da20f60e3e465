#include "library/internal.h"

#include "core/memory.h"
#include "graph/graph.h"
#include "graph/taps.h"

#include <limits.h>
#include <pthread.h>
#include <stdlib.h>

/* Memory of the device that grows. */
typedef struct growing {
    void *memory;
    size_t size;
} growing;

struct smallworld_product {
    pthread_mutex_t lock;
    backend *be;
    layout *layout;
    device_layout *device;
    tap_table *taps;   /* the backend's, of a convolution; else NULL */
    growing workspace; /* of wgrad */
    growing padding;   /* copies whose columns are a multiple of the backend's */
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

/* Which positions taps read, if that fits into memory. */
static bool make_taps(smallworld_product *p, const conv_shape *s, error *err) {
    const double positions = (double)conv_positions(s->in) + conv_positions(s->out);
    const double bytes = positions * conv_positions(s->filter) * sizeof(int);
    if (bytes > 0.25 * (double)p->be->available) {
        return error_set(err,
                         "size: %.3g MB of tables for %d taps of %d pixels, more than a quarter of "
                         "the memory that is free",
                         bytes / 1e6, conv_positions(s->filter), conv_positions(s->in));
    }
    tap_table *taps = taps_of(s);
    p->taps = p->be->memory->taps_create(p->be, taps);
    taps_free(taps);
    return true;
}

/* Opens the backend for the layout and, of a convolution, the taps. */
static bool open_product(smallworld_product *p, const conv_shape *shape,
                         const smallworld_options *given, error *err) {
    options o;
    options_begin(&o);
    if (library_options(&o, given, err)) p->be = library_backend(&o, err);
    options_free(&o);
    if (!p->be) return false;
    if (!p->be->memory->use_stream && p->be->precision == BF16) {
        return error_set(err, "precision bf16: products on the CPU are fp32");
    }
    p->device = p->be->memory->layout_create(p->be, p->layout);
    return (!shape || make_taps(p, shape, err)) && p->be->memory->finish(p->be, err);
}

static smallworld_product *new_product(void) {
    smallworld_product *p = mem_alloc(1, sizeof *p);
    pthread_mutex_init(&p->lock, NULL);
    return p;
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
    smallworld_product *p = new_product();
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
    smallworld_product *p = new_product();
    bool done = !shape || finish_shape(&s, shape, &err);
    if (done) {
        const int taps = shape ? conv_positions(s.filter) : 0;
        p->layout = pair_layout(out_nodes, in_nodes, block, blocks, count, taps, &err);
        done = p->layout != NULL;
    }
    done = done && open_product(p, shape ? &s : NULL, options, &err);
    return made_product(p, done, &err);
}

void smallworld_product_free(smallworld_product *p) {
    if (!p) return;
    if (p->be) {
        error ignored;
        p->be->memory->finish(p->be, &ignored);
        if (p->workspace.memory) p->be->memory->release(p->be, p->workspace.memory);
        if (p->padding.memory) p->be->memory->release(p->be, p->padding.memory);
        p->be->memory->taps_free(p->be, p->taps);
        p->be->memory->layout_free(p->be, p->device);
        p->be->memory->destroy(p->be);
    }
    layout_free(p->layout);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

bool smallworld_product_on_gpu(const smallworld_product *p) {
    return p && p->be->memory->use_stream != NULL;
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

/* An array of a product: `rows` rows of one element a column, or weights, which have no columns. */
typedef struct array {
    const char *name;
    void *pointer;
    size_t rows, element;
    size_t bytes; /* of all of it */
} array;

/* A call: result = first second. */
typedef struct call {
    enum { CALL_FPROP, CALL_DGRAD, CALL_WGRAD } op;
    array first, second, result;
    int columns, padded; /* `padded`: the next multiple that the backend takes */
} call;

static bool overlap(const array *a, const array *b) {
    const uintptr_t first = (uintptr_t)a->pointer, second = (uintptr_t)b->pointer;
    return first < second + b->bytes && second < first + a->bytes;
}

static size_t positions(const smallworld_product *p, bool in) {
    return !p->taps ? 1 : (size_t)(in ? p->taps->in_positions : p->taps->out_positions);
}

static array weights(const smallworld_product *p, const char *name, const void *w, size_t element) {
    return (array){name, (void *)(uintptr_t)w, 0, element, layout_weights(p->layout) * element};
}

/* x or dx, `in`, or y or dy. */
static array activations(const smallworld_product *p, const char *name, bool in, const void *x,
                         int columns) {
    const size_t rows = (in ? layout_inputs(p->layout) : layout_rows(p->layout)) * positions(p, in);
    const size_t element = p->be->operand_size, width = columns > 0 ? (size_t)columns : 0;
    return (array){name, (void *)(uintptr_t)x, rows, element, rows * width * element};
}

/* The last array is the result. */
static bool check_arrays(const array *const *arrays, int count, error *err) {
    const array *result = arrays[count - 1];
    for (int i = 0; i < count; i++) {
        if (!library_needs(arrays[i]->pointer, arrays[i]->name, err)) return false;
        if ((uintptr_t)arrays[i]->pointer % 16) {
            return error_set(err, "%s: expected memory aligned to 16 bytes", arrays[i]->name);
        }
        if (i + 1 < count && overlap(arrays[i], result)) {
            return error_set(err, "%s: expected memory that %s does not overlap", result->name,
                             arrays[i]->name);
        }
    }
    return true;
}

/* Checks a product's columns and its arrays, and selects its stream. */
static bool begin(smallworld_product *p, call *c, int multiple, void *stream, error *err) {
    const backend_limits *most = &p->be->limits;
    if (c->columns < 1) {
        return error_set(err, "columns: expected at least 1, got %d", c->columns);
    }
    const size_t padded =
        ((size_t)c->columns + (size_t)multiple - 1) / (size_t)multiple * (size_t)multiple;
    const size_t rows = layout_rows(p->layout), inputs = layout_inputs(p->layout);
    const size_t out = positions(p, false), in = positions(p, true), steps = in > out ? in : out;
    if (padded > INT_MAX || steps > most->steps || padded > most->positions / steps ||
        (rows > inputs ? rows : inputs) > most->step_values / padded) {
        return error_set(err, "columns: too many for %s, got %d at %zu positions", p->be->device,
                         c->columns, steps);
    }
    c->padded = (int)padded;
    const array *const arrays[] = {&c->first, &c->second, &c->result};
    if (!check_arrays(arrays, 3, err)) return false;
    return !p->be->memory->use_stream || p->be->memory->use_stream(p->be, stream, err);
}

/* Makes a block of memory larger, after the last use of the smaller one has ended. */
static bool grow(smallworld_product *p, growing *block, size_t bytes, error *err) {
    if (bytes <= block->size) return true;
    if (!p->be->memory->finish(p->be, err)) return false;
    if (block->memory) p->be->memory->release(p->be, block->memory);
    block->memory = p->be->memory->allocate(p->be, bytes);
    block->size = block->memory ? bytes : 0;
    return block->memory || error_set(err, "not enough memory for %zu bytes of workspace", bytes);
}

static size_t padded_bytes(const array *a, int padded) {
    const size_t bytes = a->rows * (size_t)padded * a->element;
    return (bytes + 255) / 256 * 256;
}

/* The columns that the backend wants beside the caller's are zeros. */
static void *pad(smallworld_product *p, const array *a, const call *c, char **room, bool copy) {
    if (a->rows == 0) return a->pointer;
    char *at = *room;
    const size_t width = (size_t)c->columns * a->element, pitch = (size_t)c->padded * a->element;
    *room += padded_bytes(a, c->padded);
    if (copy) {
        p->be->memory->zero(p->be, at, pitch * a->rows);
        p->be->memory->copy_rows(p->be, at, pitch, a->pointer, width, width, a->rows);
    }
    return at;
}

static void compute(smallworld_product *p, const call *c, const void *a, const void *b, void *out) {
    backend *be = p->be;
    const int columns = c->padded;
    switch (c->op) {
    case CALL_FPROP:
        if (p->taps) {
            be->products->conv_fprop(be, p->device, p->taps, a, b, columns, out);
        } else {
            be->products->fprop(be, p->device, a, b, 1, columns, out, OPERAND);
        }
        break;
    case CALL_DGRAD:
        if (p->taps) {
            be->products->conv_dgrad(be, p->device, p->taps, a, b, columns, out);
        } else {
            be->products->dgrad(be, p->device, a, b, 1, columns, out, OPERAND);
        }
        break;
    case CALL_WGRAD:
        if (p->taps) {
            be->products->conv_wgrad(be, p->device, p->taps, a, b, columns, out);
        } else {
            be->products->wgrad(be, p->device, a, b, 1, columns, out, p->workspace.memory);
        }
        break;
    }
}

/* Columns that are no multiple of the backend's pass through copies that are. */
static bool multiply(smallworld_product *p, call *c, int multiple, void *stream, error *err) {
    if (!begin(p, c, multiple, stream, err)) return false;
    const bool sums = c->op == CALL_WGRAD && !p->taps;
    if (sums && !grow(p, &p->workspace,
                      p->be->products->wgrad_workspace(p->be, p->layout, 1, c->padded), err)) {
        return false;
    }
    if (c->padded == c->columns) {
        compute(p, c, c->first.pointer, c->second.pointer, c->result.pointer);
        return true;
    }
    const size_t bytes = padded_bytes(&c->first, c->padded) + padded_bytes(&c->second, c->padded) +
                         padded_bytes(&c->result, c->padded);
    if (!grow(p, &p->padding, bytes, err)) return false;
    char *room = p->padding.memory;
    const void *a = pad(p, &c->first, c, &room, true), *b = pad(p, &c->second, c, &room, true);
    void *out = pad(p, &c->result, c, &room, false);
    compute(p, c, a, b, out);
    if (out != c->result.pointer) {
        const size_t width = (size_t)c->columns * c->result.element;
        p->be->memory->copy_rows(p->be, c->result.pointer, width, out,
                                 (size_t)c->padded * c->result.element, width, c->result.rows);
    }
    return true;
}

static bool transpose(smallworld_product *p, const array *x, const array *y, int rows, int columns,
                      void *stream, error *err) {
    const array *const arrays[] = {x, y};
    if (rows < 8 || columns < 8 || rows % 8 || columns % 8) {
        return error_set(err, "rows, columns: expected multiples of 8, got %d and %d", rows,
                         columns);
    }
    if (!check_arrays(arrays, 2, err)) return false;
    if (p->be->memory->use_stream && !p->be->memory->use_stream(p->be, stream, err)) return false;
    p->be->memory->transpose(p->be, y->pointer, x->pointer, rows, columns);
    return true;
}

bool smallworld_transpose(smallworld_product *p, const void *x, int rows, int columns, void *y,
                          void *stream) {
    error err;
    if (!library_needs(p, "product", &err)) return library_fail(&err);
    const size_t element = p->be->operand_size;
    const size_t bytes = rows > 0 && columns > 0 ? (size_t)rows * (size_t)columns * element : 0;
    const array from = {"x", (void *)(uintptr_t)x, 0, element, bytes};
    const array to = {"y", y, 0, element, bytes};
    pthread_mutex_lock(&p->lock);
    const bool done = library_here(&err) && transpose(p, &from, &to, rows, columns, stream, &err);
    pthread_mutex_unlock(&p->lock);
    return done || library_fail(&err);
}

/* What all three do, one thread at a time. */
static bool run(smallworld_product *p, call *c, int multiple, void *stream) {
    error err;
    pthread_mutex_lock(&p->lock);
    const bool done = library_here(&err) && multiply(p, c, multiple, stream, &err);
    pthread_mutex_unlock(&p->lock);
    return done || library_fail(&err);
}

static bool needs_product(const smallworld_product *p) {
    error err;
    return library_needs(p, "product", &err) || library_fail(&err);
}

bool smallworld_fprop(smallworld_product *p, const void *w, const void *x, void *y, int columns,
                      void *stream) {
    if (!needs_product(p)) return false;
    call c = {CALL_FPROP,
              weights(p, "w", w, p->be->operand_size),
              activations(p, "x", true, x, columns),
              activations(p, "y", false, y, columns),
              columns,
              0};
    return run(p, &c, p->be->product_multiple, stream);
}

bool smallworld_dgrad(smallworld_product *p, const void *w, const void *dy, void *dx, int columns,
                      void *stream) {
    if (!needs_product(p)) return false;
    call c = {CALL_DGRAD,
              weights(p, "w", w, p->be->operand_size),
              activations(p, "dy", false, dy, columns),
              activations(p, "dx", true, dx, columns),
              columns,
              0};
    return run(p, &c, p->be->product_multiple, stream);
}

bool smallworld_wgrad(smallworld_product *p, const void *dy, const void *x, float *dw, int columns,
                      void *stream) {
    if (!needs_product(p)) return false;
    call c = {CALL_WGRAD,
              activations(p, "dy", false, dy, columns),
              activations(p, "x", true, x, columns),
              weights(p, "dw", dw, sizeof *dw),
              columns,
              0};
    return run(p, &c, smallworld_product_wgrad_columns(p), stream);
}

bool smallworld_product_wait(smallworld_product *p) {
    error err;
    return (library_needs(p, "product", &err) && p->be->memory->finish(p->be, &err)) ||
           library_fail(&err);
}
