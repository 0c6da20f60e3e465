/* Graphs of model.graph_file. */
#ifndef SMALLWORLD_GRAPH_GRAPH_FILE_H
#define SMALLWORLD_GRAPH_GRAPH_FILE_H

#include "core/error.h"
#include "graph/bits.h"

/* Sets the bits of the file's edges: bit j of row i of joined [nodes][bits_words(inputs)]
 * where output node i reads input node j. graph.h says what a file holds. */
bool graph_file_read(const char *path, int nodes, int inputs, uint64_t *joined, error *err);

#endif
