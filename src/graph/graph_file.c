#include "graph/graph_file.h"

#include "core/file.h"
#include "core/npy.h"

#include <stdlib.h>
#include <string.h>

/* What a file's edges become. */
typedef struct edges {
    const char *path;
    int nodes, inputs;
    uint64_t *joined;
} edges;

static void add_edge(edges *e, int output, int input) {
    bits_set(e->joined, bits_words(e->inputs), output, input);
}

static const char *skip_blanks(const char *next, const char *stop) {
    while (next < stop && (*next == ' ' || *next == '\t' || *next == '\r')) next++;
    return next;
}

/* Reads a decimal number below `count` and moves `*next` past it. Returns -1 if there is none. */
static int read_node(const char **next, const char *stop, int count) {
    int node = -1;
    for (; *next < stop && **next >= '0' && **next <= '9'; (*next)++) {
        node = (node < 0 ? 0 : node * 10) + **next - '0';
        if (node >= count) return -1;
    }
    return node;
}

/* Reads the edge on a line that is not blank. */
static bool read_edge(const edges *e, const char *next, const char *stop, int *output, int *input) {
    *output = read_node(&next, stop, e->nodes);
    next = skip_blanks(next, stop);
    *input = read_node(&next, stop, e->inputs);
    return *output >= 0 && *input >= 0 && skip_blanks(next, stop) == stop;
}

static bool refuse_edge(const edges *e, int line, error *err) {
    if (e->nodes == e->inputs) {
        return error_set(err, "%s:%d: expected an edge, \"OUTPUT INPUT\", of nodes from 0 to %d",
                         e->path, line, e->nodes - 1);
    }
    return error_set(err,
                     "%s:%d: expected an edge, \"OUTPUT INPUT\", of outputs from 0 to %d and "
                     "inputs from 0 to %d",
                     e->path, line, e->nodes - 1, e->inputs - 1);
}

static bool read_list(edges *e, error *err) {
    file_map map;
    if (!file_map_open(&map, e->path, err)) return false;
    const char *next = (const char *)map.bytes, *end = next + map.size;
    bool done = true, any = false;
    for (int line = 1; done && next < end; line++) {
        const char *newline = memchr(next, '\n', (size_t)(end - next));
        const char *stop = newline ? newline : end;
        const char *comment = memchr(next, '#', (size_t)(stop - next));
        if (comment) stop = comment;
        next = skip_blanks(next, stop);
        if (next < stop) {
            int output, input;
            done = read_edge(e, next, stop, &output, &input) || refuse_edge(e, line, err);
            if (done) add_edge(e, output, input);
            any = true;
        }
        next = newline ? newline + 1 : end;
    }
    if (done && !any) {
        done = error_set(err, "%s: expected lines \"OUTPUT INPUT\", found no edge", e->path);
    }
    file_map_close(&map);
    return done;
}

static bool read_mask(edges *e, error *err) {
    npy mask;
    if (!npy_open(&mask, e->path, err)) return false;
    bool done = true, any = false;
    if (!strchr("biu", mask.type[1])) {
        done = error_set(err, "%s: expected integers or booleans, got %s", e->path, mask.type);
    } else if (mask.rows != e->nodes || mask.columns != e->inputs) {
        done = error_set(err,
                         "%s: expected a mask of %d x %d nodes (model.hidden / model.block%s), "
                         "got %lld x %lld",
                         e->path, e->nodes, e->inputs,
                         e->nodes == e->inputs ? "" : " x model.hubs / model.block",
                         (long long)mask.rows, (long long)mask.columns);
    } else {
        const uint8_t *value = mask.data;
        const int width = atoi(mask.type + 2);
        for (int i = 0; i < e->nodes; i++) {
            for (int j = 0; j < e->inputs; j++, value += width) {
                bool set = false; /* any byte but 0 counts, so the byte order does not matter */
                for (int byte = 0; byte < width; byte++) set |= value[byte] != 0;
                if (set) add_edge(e, i, j);
                any |= set;
            }
        }
        if (!any) {
            done = error_set(err, "%s: expected a mask with edges, all of it is 0", e->path);
        }
    }
    npy_close(&mask);
    return done;
}

bool graph_file_read(const char *path, int nodes, int inputs, uint64_t *joined, error *err) {
    if (!path || !*path) {
        return error_key(err, "model.graph_file", "expected a file, since model.graph is file");
    }
    edges e = {path, nodes, inputs, joined};
    return file_ends_in(path, ".npy") ? read_mask(&e, err) : read_list(&e, err);
}
