/* Philox4x32-10, a counter-based random number generator: Salmon, Moraes, Dror, Shaw, "Parallel
 * random numbers: as easy as 1, 2, 3" (SC 2011). A number is a pure function of (key, counter), so
 * the CPU and the GPU draw the same numbers, in any order, on every machine.
 *
 * Everything random in the program draws from here. The key is the run's seed; the counter's last
 * word holds the purpose in its top byte, so that no two purposes share a number. */
#ifndef SMALLWORLD_CORE_PHILOX_H
#define SMALLWORLD_CORE_PHILOX_H

#include <stdint.h>

typedef struct philox_block {
    uint32_t word[4];
} philox_block;

static inline philox_block philox(uint64_t key, uint32_t c0, uint32_t c1, uint32_t c2,
                                  uint32_t c3) {
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = 0xD2511F53ull * c0, p1 = 0xCD9E8D57ull * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    philox_block block = {{c0, c1, c2, c3}};
    return block;
}

/* The purposes. Counter words 0-2 belong to the purpose; word 3 is (purpose << 24) | detail. */
enum {
    PHILOX_GRAPH = 1,    /* (draw low, draw high, 0), detail: pattern number */
    PHILOX_INIT = 2,     /* (element low, element high, 0), detail: parameter number */
    PHILOX_SHUFFLE = 3,  /* (draw low, draw high, epoch) */
    PHILOX_DROPOUT = 4,  /* (unit, stream / 4, update), detail: time step */
    PHILOX_SPLIT = 5,    /* (draw low, draw high, class) */
    PHILOX_GENERATE = 6, /* (draw low, draw high, 0) */
    PHILOX_BENCH = 7,
    PHILOX_TEST = 8,
    PHILOX_PROBE = 9,  /* (draw low, draw high, 0) */
    PHILOX_PRUNE = 10, /* (draw low, draw high, step), detail: stage */
    PHILOX_INPUT = 11, /* (time step, stream / 4, update) */
    PHILOX_SVM = 12    /* (draw low, draw high, pass) */
};

#define PHILOX_PURPOSE(purpose, detail) (((uint32_t)(purpose) << 24) | (uint32_t)(detail))

/* A sequence of draws for one purpose, for code that runs on the host in a fixed order. */
typedef struct philox_stream {
    uint64_t key, draw;
    uint32_t c2, c3;
} philox_stream;

static inline philox_stream philox_start(uint64_t key, int purpose, uint32_t detail, uint32_t c2) {
    philox_stream stream = {key, 0, c2, PHILOX_PURPOSE(purpose, detail)};
    return stream;
}

static inline uint64_t philox_next(philox_stream *stream) {
    philox_block block = philox(stream->key, (uint32_t)stream->draw, (uint32_t)(stream->draw >> 32),
                                stream->c2, stream->c3);
    stream->draw++;
    return (uint64_t)block.word[1] << 32 | block.word[0];
}

/* Uniform in [0, bound), without bias: draws that fall in the incomplete last interval are
 * redone. */
static inline uint64_t philox_below(philox_stream *stream, uint64_t bound) {
    uint64_t tail = (UINT64_MAX % bound + 1) % bound, value;
    do value = philox_next(stream);
    while (value > UINT64_MAX - tail);
    return value % bound;
}

/* Uniform in [0, 1), a multiple of 2^-53. */
static inline double philox_uniform(philox_stream *stream) {
    return (double)(philox_next(stream) >> 11) * 0x1p-53;
}

#endif
