/* Graphs of model.graph_file. */
#ifndef SMALLWORLD_GRAPH_GRAPH_FILE_H
#define SMALLWORLD_GRAPH_GRAPH_FILE_H

#include "core/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The 64-bit words of a row of `inputs` bits. */
static inline size_t graph_file_words(int inputs) {
    return ((size_t)inputs + 63) / 64;
}

/* Sets the bits of the file's edges: bit j of row i of joined [nodes][graph_file_words(inputs)]
 * where output node i reads input node j. graph.h says what a file holds. */
bool graph_file_read(const char *path, int nodes, int inputs, uint64_t *joined, error *err);

#endif
