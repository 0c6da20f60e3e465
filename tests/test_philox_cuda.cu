/* The GPU draws cuRAND's numbers, the CPU those of core/philox.h: they are equal bit for bit, with
 * cuRAND's code running on the host, and on the GPU where there is one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include "cuda/device/philox.cuh"

extern "C" {
#include <cmocka.h>
}

enum { DRAWS = 4096, THREADS = 256 };

/* Key and counter of draw i: small numbers, then numbers that use every bit. */
static __host__ __device__ uint4 draw(uint32_t i) {
    if (i < 16) return philox_draw(i, i % 2, i / 2 % 2, i / 4 % 2, i / 8);
    const uint64_t key = 0x9E3779B97F4A7C15ull * i;
    return philox_draw(key, ~i, 0x85EBCA6Bu * i, 0xC2B2AE35u * i, PHILOX_PURPOSE(PHILOX_TEST, i));
}

static philox_block expected_draw(uint32_t i) {
    if (i < 16) return philox(i, i % 2, i / 2 % 2, i / 4 % 2, i / 8);
    const uint64_t key = 0x9E3779B97F4A7C15ull * i;
    return philox(key, ~i, 0x85EBCA6Bu * i, 0xC2B2AE35u * i, PHILOX_PURPOSE(PHILOX_TEST, i));
}

static __global__ void draw_kernel(uint4 *out) {
    const uint32_t i = blockIdx.x * THREADS + threadIdx.x;
    out[i] = draw(i);
}

static void assert_equal_draws(const uint4 *drawn) {
    for (uint32_t i = 0; i < DRAWS; i++) {
        const philox_block expected = expected_draw(i);
        const uint32_t word[4] = {drawn[i].x, drawn[i].y, drawn[i].z, drawn[i].w};
        assert_memory_equal(word, expected.word, sizeof word);
    }
}

static void test_on_the_host(void **state) {
    (void)state;
    static uint4 drawn[DRAWS];
    for (uint32_t i = 0; i < DRAWS; i++) drawn[i] = draw(i);
    assert_equal_draws(drawn);
}

static void test_on_the_gpu(void **state) {
    (void)state;
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) skip();
    static uint4 drawn[DRAWS];
    uint4 *out = NULL;
    assert_int_equal(cudaMalloc((void **)&out, sizeof drawn), cudaSuccess);
    draw_kernel<<<DRAWS / THREADS, THREADS>>>(out);
    assert_int_equal(cudaMemcpy(drawn, out, sizeof drawn, cudaMemcpyDeviceToHost), cudaSuccess);
    cudaFree(out);
    assert_equal_draws(drawn);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_on_the_host),
        cmocka_unit_test(test_on_the_gpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
