/* What is built on an exchange between ranks. */
#include "support.h"

#include "core/memory.h"
#include "core/ranks.h"

#include <stdlib.h>
#include <string.h>

/* Three ranks that all have what this one has. */
static bool echo(ranks *r, const void *mine, size_t bytes) {
    assert_true(bytes <= RANKS_EXCHANGE);
    for (int k = 0; k < r->count; k++) memcpy((char *)r->all + (size_t)k * r->stride, mine, bytes);
    return true;
}

static ranks *three(void) {
    ranks *r = mem_alloc(1, sizeof *r);
    *r = (ranks){.count = 3, .stride = RANKS_EXCHANGE, .exchange = echo};
    r->all = mem_alloc(3, RANKS_EXCHANGE);
    return r;
}

static void free_three(ranks *r) {
    free((char *)r->all);
    free(r);
}

/* Also of more values than one exchange carries. */
static void test_sum(void **state) {
    (void)state;
    enum { MOST = 2 * RANKS_EXCHANGE / sizeof(double) + 5 };
    ranks *r = three();
    double *values = mem_alloc(MOST, sizeof *values);
    for (size_t count = 0; count <= MOST; count = count ? count * 64 + 5 : 1) {
        for (size_t i = 0; i < MOST; i++) values[i] = (double)i;
        ranks_sum(r, values, count);
        for (size_t i = 0; i < MOST; i++) assert_true(values[i] == (double)(i < count ? 3 * i : i));
    }
    for (size_t i = 0; i < MOST; i++) values[i] = (double)i;
    ranks_sum(r, values, MOST);
    assert_true(values[MOST - 1] == 3.0 * (MOST - 1));
    ranks_sum(NULL, values, MOST);
    assert_true(values[MOST - 1] == 3.0 * (MOST - 1));
    free(values);
    free_three(r);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sum)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
