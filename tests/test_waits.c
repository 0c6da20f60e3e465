/* Thread blocks that wait for something that never happens. After seconds the GPU reports an error,
 * which names the kernel. The error ends all work on the device, so this program has no other test.
 */
#include "support.h"

#include "bench.h"

#include <string.h>
#include <time.h>

/* In the exchange, each thread block waits until all words have passed the value that its own word
 * had at first. The first word is far behind the others. */
static void test_wait_ends(void **state) {
    (void)state;
    if (!test_device_is_cuda()) skip();
    backend *be = test_backend(FP32);
    uint32_t words[EXCHANGE_BYTES / sizeof(uint32_t)] = {0};
    for (size_t i = 1; i < sizeof words / sizeof *words; i++) words[i] = 1 << 30;
    void *on_device = be->memory->allocate(be, sizeof words);
    assert_non_null(on_device);
    be->memory->upload(be, on_device, words, sizeof words);
    error err;
    assert_true(be->memory->finish(be, &err));

    const time_t start = time(NULL);
    be->bench->exchange(be, on_device, 1);
    assert_false(be->memory->finish(be, &err));
    assert_string_equal(
        err.text, "GPU: exchange: a thread block waited for seconds for others that never came");
    assert_true(time(NULL) - start < 120);
    assert_false(be->memory->finish(be, &err)); /* and again */
    be->memory->destroy(be);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_wait_ends)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
