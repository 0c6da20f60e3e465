/* Products and convolutions of any pattern and shape, on arrays of exactly their sizes. All three
 * are of one bilinear form, dy' W x, so they must agree on its value. */
#include "fuzz.h"

#include "library/smallworld.h"

#include <math.h>
#include <stdlib.h>

enum { MOST_NODES = 6, MOST_IMAGES = 20, MOST_WORK = 1 << 21 };

/* The input's bytes; 0 where it has no more. */
typedef struct numbers {
    const uint8_t *data;
    size_t left;
} numbers;

static int next(numbers *n, int bound) {
    if (n->left == 0) return 0;
    n->left--;
    return *n->data++ % bound;
}

/* A small number, or now and then one at which arithmetic goes wrong. */
static int extent(numbers *n, int most) {
    static const int odd[] = {-1, INT32_MIN, INT32_MAX, 1 << 20};
    return next(n, 64) == 63 ? odd[next(n, 4)] : next(n, most + 1);
}

static float *draw_array(numbers *n, size_t count) {
    float *x = aligned_alloc(64, (count * sizeof *x + 63) / 64 * 64);
    require(x != NULL, "memory");
    const unsigned first = (unsigned)next(n, 256);
    for (size_t i = 0; i < count; i++) {
        x[i] = (float)(((first + i * 2654435761u) >> 7) % 17) / 8 - 1;
    }
    return x;
}

static double dot(const float *a, const float *b, size_t count) {
    double sum = 0;
    for (size_t i = 0; i < count; i++) sum += (double)a[i] * b[i];
    return sum;
}

static void check_form(smallworld_product *p, numbers *n, size_t weights, size_t inputs,
                       size_t outputs, int images) {
    float *w = draw_array(n, weights), *x = draw_array(n, inputs), *dy = draw_array(n, outputs);
    float *y = draw_array(n, outputs), *dx = draw_array(n, inputs), *dw = draw_array(n, weights);
    require(smallworld_fprop(p, w, x, y, images, NULL) &&
                smallworld_dgrad(p, w, dy, dx, images, NULL) &&
                smallworld_wgrad(p, dy, x, dw, images, NULL) && smallworld_product_wait(p),
            smallworld_error());
    const double value = dot(dy, y, outputs),
                 size = sqrt(dot(dy, dy, outputs) * dot(y, y, outputs));
    require(fabs(dot(dx, x, inputs) - value) <= 1e-4 * (1 + size), "dgrad disagrees with fprop");
    require(fabs(dot(dw, w, weights) - value) <= 1e-4 * (1 + size), "wgrad disagrees with fprop");
    float *const arrays[] = {w, x, dy, y, dx, dw};
    for (int i = 0; i < 6; i++) free(arrays[i]);
}

static smallworld_conv_shape draw_shape(numbers *n) {
    smallworld_conv_shape s;
    for (int i = 0; i < 2; i++) {
        s.in[i] = extent(n, 9);
        s.filter[i] = extent(n, 4);
        s.stride[i] = extent(n, 3);
        s.dilation[i] = extent(n, 3);
        for (int k = 0; k < 2; k++) s.pad[i][k] = extent(n, 4);
    }
    return s;
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    numbers n = {data, size};
    const smallworld_options how = {.device = "cpu", .threads = 1};
    const bool convolution = next(&n, 2), square = next(&n, 3) == 0;
    const int out = next(&n, MOST_NODES + 1), in = square ? out : next(&n, MOST_NODES + 1);
    const int block = next(&n, 16) == 15 ? extent(&n, 200) : 8 << next(&n, 3);
    const int images = 1 + next(&n, MOST_IMAGES);
    const smallworld_conv_shape shape = draw_shape(&n);
    int32_t blocks[MOST_NODES * MOST_NODES][2];
    int count = 0, positions[2] = {1, 1}, taps = 1;
    for (int k = 0; k < out * in; k++) {
        if (next(&n, 3) == 0 && !(square && k / in == k % in)) continue;
        blocks[count][0] = k / in;
        blocks[count++][1] = k % in;
    }
    const bool fits = !convolution || smallworld_conv_out(&shape, positions);
    if (convolution && fits) {
        taps = shape.filter[0] * shape.filter[1];
        const double pixels =
            (double)shape.in[0] * shape.in[1] + positions[0] * (double)positions[1];
        if (pixels * taps * count * block * block > MOST_WORK) return 0;
    }
    smallworld_product *p =
        square && !convolution
            ? smallworld_product_create(out, block, (const int32_t(*)[2])blocks, count, &how)
            : smallworld_conv_create(out, in, block, (const int32_t(*)[2])blocks, count,
                                     convolution ? &shape : NULL, &how);
    require(p || *smallworld_error(), "a failure without a reason");
    require(!p || fits, "a shape that makes no output was taken");
    if (!p) return 0;
    const size_t side = (size_t)block, columns = (size_t)images;
    const size_t pixels = convolution ? (size_t)shape.in[0] * (size_t)shape.in[1] : 1;
    check_form(p, &n, (size_t)count * (size_t)taps * side * side,
               pixels * (size_t)in * side * columns,
               (size_t)positions[0] * (size_t)positions[1] * (size_t)out * side * columns, images);
    smallworld_product_free(p);
    return 0;
}
