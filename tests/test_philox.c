/* Random numbers: known answers, and streams that repeat. */
#include "support.h"

#include "core/philox.h"

#include <math.h>

/* Known answers of the authors' Random123 library. */
static void test_philox_answers(void **state) {
    (void)state;
    static const struct {
        uint64_t key;
        uint32_t counter[4], answer[4];
    } known[] = {
        {0, {0, 0, 0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {UINT64_MAX,
         {UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {0x299f31d0a4093822,
         {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        const uint32_t *c = known[i].counter;
        philox_block block = philox(known[i].key, c[0], c[1], c[2], c[3]);
        assert_memory_equal(block.word, known[i].answer, sizeof block.word);
    }
}

static void test_philox_streams(void **state) {
    (void)state;
    philox_stream a = philox_start(5, PHILOX_TEST, 1, 2), b = a;
    for (int i = 0; i < 100; i++) assert_int_equal(philox_next(&a), philox_next(&b));
    b = philox_start(5, PHILOX_TEST, 2, 2);
    assert_int_not_equal(philox_next(&a), philox_next(&b));

    /* philox_next returns the first two words of the block whose number is that of the draw, in
     * both halves of the counter. */
    philox_stream far = {7, 0x123456789abcdef0, 3, PHILOX_PURPOSE(PHILOX_TEST, 4)};
    philox_block block = philox(7, 0x9abcdef0, 0x12345678, 3, 8u << 24 | 4);
    assert_int_equal(philox_next(&far), (uint64_t)block.word[1] << 32 | block.word[0]);

    enum { DRAWS = 30000, SIDES = 6 };
    int seen[SIDES] = {0};
    double sum = 0;
    for (int i = 0; i < DRAWS; i++) {
        seen[philox_below(&a, SIDES)]++;
        double u = philox_uniform(&a);
        assert_true(u >= 0 && u < 1);
        sum += u;
    }
    for (int i = 0; i < SIDES; i++)
        assert_in_range(seen[i], DRAWS / SIDES - 300, DRAWS / SIDES + 300);
    assert_true(fabs(sum / DRAWS - 0.5) < 0.01);
    assert_int_equal(philox_below(&a, 1), 0);
    for (int i = 0; i < 100; i++) assert_true(philox_below(&a, UINT64_MAX) < UINT64_MAX);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_philox_answers),
        cmocka_unit_test(test_philox_streams),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
