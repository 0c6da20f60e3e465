/* Products one after another. Each must see the results of the one before, and equal products must
 * give equal bits. */
#include "products.h"

#include "bench.h"
#include "core/memory.h"

#include <stdio.h>
#include <stdlib.h>

/* Each product reads what the one before wrote, and weights that were just rounded. Kernels that
 * start before the previous one has ended must still see all of it. The recording is replayed
 * several times. */
enum { CHAIN = 24 };

typedef struct chain {
    backend *be;
    const device_layout *layout;
    void *real[2]; /* of the first and the second half */
    void *weights, *x[CHAIN + 1];
    size_t count;
    int columns;
} chain;

static void issue_product(const chain *c, int i) {
    backend *be = c->be;
    if (i % (CHAIN / 2) == 0) be->update->round(be, c->count, c->real[i / (CHAIN / 2)], c->weights);
    if (i % 2 == 0) {
        be->products->fprop(be, c->layout, c->weights, c->x[i], 1, c->columns, c->x[i + 1],
                            OPERAND);
    } else {
        be->products->dgrad(be, c->layout, c->weights, c->x[i], 1, c->columns, c->x[i + 1],
                            OPERAND);
    }
}

static void issue_chain(void *argument) {
    for (int i = 0; i < CHAIN; i++) issue_product(argument, i);
}

static void check_chain(precision precision, int block, int multiple) {
    pair p = open_pair(precision);
    random_restart(12);
    graph *g = nasty_graph(40, 0.1, true);
    layout *l = layout_from_graph(g, block, 1);
    int columns = multiple * p.be->product_multiple;
    size_t count = layout_weights(l), plane = layout_rows(l) * (size_t)columns;
    double *w[] = {random_values(count, -0.3, 0.3), random_values(count, -0.3, 0.3)};
    double *x = random_values(plane, -1, 1), *result[2][CHAIN];
    for (int side = 0; side < 2; side++) {
        backend *be = side ? p.trusted : p.be;
        device_layout *d = be->memory->layout_create(be, l);
        chain c = {.be = be, .layout = d, .count = count, .columns = columns};
        for (int i = 0; i < 2; i++) c.real[i] = put(be, w[i], count, REAL);
        c.weights = put_poison(be, count, OPERAND);
        c.x[0] = put(be, x, plane, OPERAND);
        for (int i = 1; i <= CHAIN; i++) c.x[i] = put_poison(be, plane, OPERAND);
        if (!side) {
            recording *recorded = be->memory->record(be, issue_chain, &c);
            for (int i = 0; i < 3; i++) be->memory->replay(be, recorded);
            be->memory->recording_free(be, recorded);
        }
        for (int i = 0; i < CHAIN; i++) {
            if (side && i > 0) { /* continue from the other side's result */
                void *found = put(be, result[0][i - 1], plane, OPERAND);
                be->memory->copy(be, c.x[i], found, plane * be->operand_size);
                be->memory->release(be, found);
            }
            if (side) issue_product(&c, i);
            result[side][i] = get(be, c.x[i + 1], plane, OPERAND);
        }
        for (int i = 0; i < 2; i++) be->memory->release(be, c.real[i]);
        be->memory->release(be, c.weights);
        for (int i = 0; i <= CHAIN; i++) be->memory->release(be, c.x[i]);
        be->memory->layout_free(be, d);
    }
    for (int i = 0; i < CHAIN; i++) {
        char text[80];
        snprintf(text, sizeof text, "product %d of a chain, block %d, %d columns", i, block,
                 columns);
        assert_close(&p, text, result[0][i], result[1][i], plane);
        free(result[0][i]);
        free(result[1][i]);
    }
    free(w[0]);
    free(w[1]);
    free(x);
    layout_free(l);
    graph_free(g);
    close_pair(&p);
}

static void test_chain(void **state) {
    (void)state;
    check_chain(BF16, 8, 1);
    check_chain(BF16, 32, 1);
    check_chain(BF16, 32, 4);
    check_chain(FP32, 8, 1);
    check_chain(FP32, 32, 1);
}

/* dgrad gives the same bits at every call, at a model's size, where parts of a row pass on partial
 * sums. Before loads were fenced, about one call in thirty read other data there. */
static void test_repeated_dgrad(void **state) {
    (void)state;
    if (!test_device_is_cuda()) skip();
    backend *be = test_backend(BF16);
    graph_options ring = {
        .kind = GRAPH_WATTS_STROGATZ, .density = 0.0665, .rewire = 0.1, .seed = 1};
    layout *l = pattern_layout(&ring, 288, 64, GATES);
    device_layout *device = be->memory->layout_create(be, l);
    enum { COLUMNS = 256, TIMES = 300 };
    size_t weights = layout_weights(l), units = layout_inputs(l), rows = layout_rows(l);
    void *w = be->memory->allocate(be, weights * be->operand_size);
    void *dy = be->memory->allocate(be, rows * COLUMNS * be->operand_size);
    void *dx = be->memory->allocate(be, units * COLUMNS * be->operand_size);
    void *sums = be->memory->allocate(be, units * be->real_size);
    float *first = mem_alloc(units, sizeof *first), *again = mem_alloc(units, sizeof *again);
    be->bench->randomise(be, w, weights, 1);
    be->bench->randomise(be, dy, rows * COLUMNS, 2);
    for (int i = 0; i < TIMES; i++) {
        be->products->dgrad(be, device, w, dy, 1, COLUMNS, dx, OPERAND);
        be->update->row_sums(be, dx, 1, (int)units, COLUMNS, sums);
        be->memory->download(be, i ? again : first, sums, units * sizeof *first);
        if (i) assert_memory_equal(again, first, units * sizeof *first);
    }
    void *arrays[] = {w, dy, dx, sums};
    release_all(be, arrays, sizeof arrays / sizeof arrays[0]);
    free(first);
    free(again);
    be->memory->layout_free(be, device);
    layout_free(l);
    be->memory->destroy(be);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chain),
        cmocka_unit_test(test_repeated_dgrad),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
