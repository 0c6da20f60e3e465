/* Matrices of bits: rows of 64-bit words, as graphs grow in. */
#ifndef SMALLWORLD_GRAPH_BITS_H
#define SMALLWORLD_GRAPH_BITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The words of a row of `columns` bits. */
static inline size_t bits_words(int columns) {
    return ((size_t)columns + 63) / 64;
}

static inline void bits_set(uint64_t *bits, size_t words, int row, int column) {
    bits[(size_t)row * words + (size_t)column / 64] |= 1ull << column % 64;
}

static inline bool bits_get(const uint64_t *bits, size_t words, int row, int column) {
    return bits[(size_t)row * words + (size_t)column / 64] >> column % 64 & 1;
}

#endif
