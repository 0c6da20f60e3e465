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

/* Also of more values than one exchange carries. */
static void test_sum(void **state) {
    (void)state;
    enum { MOST = 2 * RANKS_EXCHANGE / sizeof(double) + 5 };
    static const size_t counts[] = {0, 1, 69, 4421, MOST};
    char *all = mem_alloc(3, RANKS_EXCHANGE);
    ranks r = {.count = 3, .stride = RANKS_EXCHANGE, .exchange = echo, .all = all};
    double *values = mem_alloc(MOST, sizeof *values);
    for (size_t k = 0; k < sizeof counts / sizeof counts[0]; k++) {
        for (size_t i = 0; i < MOST; i++) values[i] = (double)i;
        ranks_sum(&r, values, counts[k]);
        for (size_t i = 0; i < MOST; i++) {
            assert_true(values[i] == (double)(i < counts[k] ? 3 * i : i));
        }
    }
    ranks_sum(NULL, values, MOST);
    assert_true(values[MOST - 1] == 3.0 * (MOST - 1));
    free(values);
    free(all);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_sum)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
