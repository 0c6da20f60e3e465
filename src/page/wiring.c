#include "page/wiring.h"

#include "core/base64.h"
#include "core/json.h"
#include "core/memory.h"
#include "core/png.h"
#include "page/assets.h"
#include "page/chart.h"
#include "page/html.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    RING = 480,  /* side of the pictures of ring and matrix */
    OUTER = 212, /* radius of the ring of nodes, and of the ring in its middle */
    INNER = 85,
    EASY_NODES = 128,    /* with more nodes, the matrix shows more than the ring and comes first */
    MOST_LISTED = 60000, /* blocks of all stages that are listed for the page's script */
    ALL_EDGES = 12000,   /* limit of edges drawn, over all stages */
    SHADES = 6,          /* number of shades of edges, by weight */
    MOST_CIRCLES = 1500, /* with more nodes, the ring is a line without circles */
    MOST_PIXELS = 1024,  /* largest side of a matrix's picture; smaller if there are several */
    LEAST_SIDE = 90,     /* of a matrix's picture */
    MOST_BARS = 48
};

/* ------------------------------------------------------------------------------------ norms */

/* Sums a dense pattern, which is stored as one block, by pairs of nodes. */
static void add_dense(const float *weight, const graph *p, int64_t block, int gates, double *sums) {
    const int64_t rows = p->nodes * block, columns = p->inputs * block;
    for (int g = 0; g < gates; g++) {
        for (int64_t i = 0; i < rows; i++) {
            for (int64_t j = 0; j < columns; j++) {
                double value = weight[(g * rows + i) * columns + j];
                sums[i / block * p->inputs + j / block] += value * value;
            }
        }
    }
}

void wiring_measure(wiring *w, const checkpoint *c) {
    int64_t block = w->config->block;
    int stages = model_stages(w->config);
    for (int s = 0; s < stages; s++) {
        const graph *g = w->graphs[s];
        int gates = model_stage_gates(w->config, s);
        int64_t blocks = graph_blocks(g), of_block = gates * block * block;
        char name[16], path[48];
        snprintf(path, sizeof path, "cell.%s.weight", model_stage_name(w->config, s, name));
        const tensor *t = safetensors_find(&c->file, path);
        if (!t || t->type != TENSOR_F32 || tensor_bytes(t) != (size_t)(blocks * of_block) * 4) {
            continue;
        }
        const float *weight = t->data;
        double *sums = mem_alloc((size_t)blocks, sizeof *sums);
        if (t->shape[0] == 1 && blocks > 1) {
            add_dense(weight, g, block, gates, sums);
        } else {
            for (int64_t k = 0; k < blocks; k++) {
                for (int64_t i = 0; i < of_block; i++) {
                    double value = weight[k * of_block + i];
                    sums[k] += value * value;
                }
            }
        }
        w->norms[s] = mem_alloc((size_t)blocks, sizeof *w->norms[s]);
        for (int64_t k = 0; k < blocks; k++) w->norms[s][k] = (float)sqrt(sums[k]);
        free(sums);
    }
}

void wiring_free(wiring *w) {
    for (int s = 0; s < CELL_MAX_STAGES; s++) {
        free(w->norms[s]);
        w->norms[s] = NULL;
    }
}

/* ------------------------------------------------------------------------------------- ring */

/* Finds the nodes to draw in the middle: a core, or those with three times the usual number of
 * neighbours. */
static bool *find_middle(const model_config *config, const graph *g, const graph_metrics *m,
                         int *count) {
    bool *middle = mem_alloc((size_t)g->nodes, sizeof *middle);
    *count = 0;
    for (int i = 0; i < g->nodes; i++) {
        int degree = g->start[i + 1] - g->start[i] - 1;
        middle[i] =
            config->graph == GRAPH_CORE_PERIPHERY ? i < m->core : degree >= 3 * m->degree_mean;
        *count += middle[i];
    }
    if (*count == g->nodes) {
        memset(middle, 0, (size_t)g->nodes * sizeof *middle);
        *count = 0;
    }
    return middle;
}

typedef struct point {
    double x, y;
} point;

/* Places nodes clockwise from the top, in order. Those of the middle have an inner ring. */
static point *place_nodes(const graph *g, const bool *middle, int inside) {
    point *at = mem_alloc((size_t)g->nodes, sizeof *at);
    int number[2] = {0, 0}, count[2] = {g->nodes - inside, inside};
    for (int i = 0; i < g->nodes; i++) {
        int k = middle[i];
        double angle = 2 * M_PI * number[k]++ / count[k], radius = k ? INNER : OUTER;
        if (k && inside == 1) radius = 0;
        at[i] = (point){RING / 2.0 + radius * sin(angle), RING / 2.0 - radius * cos(angle)};
    }
    return at;
}

typedef struct edge {
    int from, to;
    float weight;
} edge;

static int heavier(const void *a, const void *b) {
    const edge *x = a, *y = b;
    if (x->weight != y->weight) return x->weight < y->weight ? 1 : -1;
    if (x->from != y->from) return x->from - y->from;
    return x->to - y->to;
}

/* Returns the index of block (i, j), or -1. */
static int find_block(const graph *g, int i, int j) {
    int low = g->start[i], high = g->start[i + 1];
    while (low < high) {
        int middle = (low + high) / 2;
        if (g->column[middle] < j) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low < g->start[i + 1] && g->column[low] == j ? low : -1;
}

/* Lists the edges between distinct nodes, with both directions as one edge, heaviest first. Without
 * weights they are spread evenly, so that any first part of the list represents the whole. */
static edge *list_edges(const graph *g, const float *norms, size_t *count) {
    edge *edges = mem_alloc((size_t)graph_blocks(g) + 1, sizeof *edges);
    *count = 0;
    for (int i = 0; i < g->nodes; i++) {
        for (int k = g->start[i]; k < g->start[i + 1]; k++) {
            int j = g->column[k], back = find_block(g, j, i);
            if (i == j || (back >= 0 && j < i)) continue;
            edge *e = &edges[(*count)++];
            *e = (edge){i, j, 0};
            if (norms) {
                float other = back >= 0 ? norms[back] : 0;
                e->weight = sqrtf(norms[k] * norms[k] + other * other);
            } else {
                e->weight = (float)((uint32_t)(*count) * 2654435761u >> 8);
            }
        }
    }
    qsort(edges, *count, sizeof *edges, heavier);
    return edges;
}

/* Draws the lightest edges first, so that the heaviest are on top. */
static void write_edges(FILE *out, const point *at, const edge *edges, size_t count,
                        bool weighted) {
    int shades = weighted ? SHADES : 1;
    for (int s = shades - 1; s >= 0; s--) {
        size_t from = count * (size_t)s / (size_t)shades;
        size_t to = count * ((size_t)s + 1) / (size_t)shades;
        double opacity = fmax(0.05, fmin(0.6, 500.0 / (double)(count + 1)));
        if (weighted) opacity = fmin(1, opacity * (s == 0 ? 5 : 2.5 / (s + 0.5)));
        if (from == to) continue;
        fprintf(out,
                "<path class=\"edges\" fill=\"none\" stroke=\"var(--c0)\" stroke-width=\"%.1f\" "
                "stroke-opacity=\"%.3f\" d=\"",
                weighted && s == 0 ? 1.2 : 0.8, opacity);
        for (size_t k = from; k < to; k++) {
            point a = at[edges[k].from], b = at[edges[k].to];
            fprintf(out, "M%.0f %.0fL%.0f %.0f", a.x, a.y, b.x, b.y);
        }
        fputs("\"/>\n", out);
    }
}

static void write_nodes(FILE *out, const graph *g, const point *at, const bool *middle) {
    if (g->nodes > MOST_CIRCLES) {
        fprintf(out, "<circle class=\"axis\" cx=\"%d\" cy=\"%d\" r=\"%d\"/>\n", RING / 2, RING / 2,
                OUTER);
        return;
    }
    double radius = fmax(1, fmin(7, 350.0 / g->nodes));
    for (int i = 0; i < g->nodes; i++) {
        fprintf(out,
                "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\" fill=\"var(--c%d)\">"
                "<title>node %d: reads %d others</title></circle>\n",
                at[i].x, at[i].y, middle[i] ? fmax(3, radius) : radius, middle[i], i,
                g->start[i + 1] - g->start[i] - 1);
    }
}

/* Numbers some of the nodes, about sixteen of either ring, outside of it. */
static void write_numbers(FILE *out, const graph *g, const point *at, const bool *middle) {
    int count[2] = {0, 0}, number[2] = {0, 0};
    for (int i = 0; i < g->nodes; i++) count[middle[i]]++;
    for (int i = 0; i < g->nodes; i++) {
        const int k = middle[i], every = (count[k] + 15) / 16;
        if (number[k]++ % every) continue;
        const double far = (k ? INNER : OUTER) + 16.0, near = k ? INNER : OUTER;
        const double x = RING / 2.0 + (at[i].x - RING / 2.0) * far / near;
        const double y = RING / 2.0 + (at[i].y - RING / 2.0) * far / near;
        fprintf(out,
                "<text class=\"node\" x=\"%.0f\" y=\"%.0f\" text-anchor=\"middle\">%d</text>\n", x,
                y + 4, i);
    }
}

static void begin_picture(FILE *out, const char *place, int width, int height) {
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"chart\"%s width=\"%d\" "
            "height=\"%d\" viewBox=\"0 0 %d %d\" role=\"img\" aria-label=\"",
            place, width, height, width, height);
}

/* Draws at most `most` edges. Returns the number of all edges. */
static size_t write_ring(FILE *out, const wiring *w, int stage, const graph_metrics *m, size_t most,
                         const char *place) {
    const graph *g = w->graphs[stage];
    int inside;
    size_t count;
    bool *middle = find_middle(w->config, g, m, &inside);
    point *at = place_nodes(g, middle, inside);
    edge *edges = list_edges(g, w->norms[stage], &count);
    begin_picture(out, place, RING, RING);
    fprintf(out, "%d nodes on a ring%s, joined by %zu edges\">\n", g->nodes,
            inside ? ", the core or those of most neighbours in the middle" : "", count);
    write_edges(out, at, edges, count < most ? count : most, w->norms[stage] != NULL);
    write_nodes(out, g, at, middle);
    write_numbers(out, g, at, middle);
    fputs("</svg>\n", out);
    free(edges);
    free(at);
    free(middle);
    return count;
}

/* ------------------------------------------------------------------------------- histograms */

static void write_degrees(FILE *out, const graph *g, const graph_metrics *m, const char *place) {
    double bars[MOST_BARS] = {0};
    int step = (m->degree_max - m->degree_min) / MOST_BARS + 1;
    for (int i = 0; i < g->nodes; i++) {
        bars[(g->start[i + 1] - g->start[i] - graph_is_square(g) - m->degree_min) / step]++;
    }
    bar_chart c = {"Nodes by how many others they read",       "others read", "nodes", bars,
                   (m->degree_max - m->degree_min) / step + 1, m->degree_min, step};
    chart_write_bars(out, &c, place);
}

static void write_paths(FILE *out, const graph_metrics *m, const char *place) {
    double bars[METRICS_MAX_STEPS], before = 1.0 / m->nodes, others = 1 - before;
    for (int k = 0; k < m->steps; k++) {
        bars[k] = others > 0 ? 100 * (m->reach[k] - before) / others : 0;
        before = m->reach[k];
    }
    bar_chart c = {
        "Ordered pairs of nodes by shortest path", "steps", "% of pairs", bars, m->steps, 1, 1};
    chart_write_bars(out, &c, place);
}

/* ----------------------------------------------------------------------------------- matrix */

static int compare_floats(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Returns the norm that is drawn black: 99 % of blocks have a smaller one. */
static float full_norm(const float *norms, size_t count) {
    float *sorted = mem_alloc(count, sizeof *sorted);
    memcpy(sorted, norms, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, compare_floats);
    float full = sorted[(count - 1) * 99 / 100];
    if (!(full > 0)) full = sorted[count - 1];
    free(sorted);
    return full > 0 ? full : 1;
}

/* Computes the darkness of blocks. If there are more nodes than pixels, a pixel is the mean of its
 * blocks. */
static uint8_t *shade_matrix(const graph *g, const float *norms, int stages, int *width,
                             int *height) {
    int most = stages == 1 ? MOST_PIXELS : stages <= 4 ? MOST_PIXELS / 2 : MOST_PIXELS / 4;
    *width = g->inputs < most ? g->inputs : most;
    *height = g->nodes < most ? g->nodes : most;
    size_t pixels = (size_t)*width * (size_t)*height;
    double *dark = mem_alloc(pixels, sizeof *dark);
    float full = norms ? full_norm(norms, (size_t)graph_blocks(g)) : 1;
    double across = (double)*width / g->inputs, down = (double)*height / g->nodes;
    for (int i = 0; i < g->nodes; i++) {
        for (int k = g->start[i]; k < g->start[i + 1]; k++) {
            size_t x = (size_t)(g->column[k] * across), y = (size_t)(i * down);
            /* A block is visible even if its weights are small. */
            dark[y * (size_t)*width + x] += norms ? 0.15 + 0.85 * fmin(1, norms[k] / full) : 1;
        }
    }
    uint8_t *grey = mem_alloc(pixels, 1);
    double darkest = 1;
    if (across < 1 || down < 1) { /* make the darkest pixel black */
        for (size_t p = 0; p < pixels; p++) darkest = fmax(darkest, dark[p]);
    }
    for (size_t p = 0; p < pixels; p++) grey[p] = (uint8_t)(255 - lround(255 * dark[p] / darkest));
    free(dark);
    return grey;
}

/* The distance of an axis's ticks: the smallest of 1, 2, 5, 10 ... with at most `most` of them. */
static int tick_distance(int nodes, int most) {
    int every = 1;
    while (nodes / every > most) {
        int digit = every;
        while (digit >= 10) digit /= 10;
        every = digit == 2 ? every / 2 * 5 : every * 2;
    }
    return every;
}

/* A side is as long as it has nodes, beside the longer one, but long enough to be seen. */
static int side_of(int nodes, int other, int inside) {
    const int length = nodes < other ? inside * nodes / other : inside;
    return length < LEAST_SIDE ? LEAST_SIDE : length;
}

static void write_matrix(FILE *out, const wiring *w, int stage, const char *place) {
    enum { FIRST = 58, LAST = RING - 12, INSIDE = LAST - FIRST, DOWN = 28, TICK = 50 };
    int columns, rows;
    size_t size;
    const graph *g = w->graphs[stage];
    const int width = side_of(g->inputs, g->nodes, INSIDE);
    const int height = side_of(g->nodes, g->inputs, INSIDE);
    uint8_t *grey = shade_matrix(g, w->norms[stage], model_stages(w->config), &columns, &rows);
    uint8_t *png = png_encode(grey, columns, rows, &size);
    begin_picture(out, place, RING, RING - INSIDE + height);
    fprintf(out,
            "Matrix of %d x %d blocks, of which %d are there\">\n<text class=\"title\" x=\"%d\" "
            "y=\"16\">The matrix of blocks</text>\n<image class=\"matrix\" x=\"%d\" y=\"%d\" "
            "width=\"%d\" height=\"%d\" preserveAspectRatio=\"none\" "
            "href=\"data:image/png;base64,",
            g->nodes, g->inputs, graph_blocks(g), FIRST, FIRST, DOWN, width, height);
    base64_write(out, png, size);
    fprintf(out, "\"/>\n<rect class=\"axis\" x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\"/>\n",
            FIRST, DOWN, width, height);
    const int across = tick_distance(g->inputs, width / TICK);
    const int down = tick_distance(g->nodes, (height + TICK - 1) / TICK);
    for (int j = 0; j < g->inputs; j += across) {
        fprintf(out, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%d</text>",
                FIRST + (j + 0.5) * width / g->inputs, DOWN + height + 16, j);
    }
    for (int i = 0; i < g->nodes; i += down) {
        fprintf(out, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%d</text>\n", FIRST - 6,
                DOWN + (i + 0.5) * height / g->nodes + 4, i);
    }
    fprintf(out,
            "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">input node</text>\n"
            "<text transform=\"translate(13 %d) rotate(-90)\" text-anchor=\"middle\">output node"
            "</text>\n</svg>\n",
            FIRST + width / 2, DOWN + height + 34, DOWN + height / 2);
    free(png);
    free(grey);
}

/* ------------------------------------------------------------------------------------ pages */

static void write_paths_of(FILE *out, const graph_metrics *m) {
    fprintf(out,
            "A node reads %.1f others (%d to %d). Clustering %.3f; shortest paths have %.2f steps "
            "on average, %d at most.",
            m->degree_mean, m->degree_min, m->degree_max, m->clustering, m->path_mean, m->path_max);
    if (m->components > 1) fprintf(out, " It is in %d parts.", m->components);
}

static void write_facts(FILE *out, const wiring *w, const graph_metrics *m) {
    char blocks[32];
    const bool square = m->nodes == m->inputs;
    fprintf(out, "<p>%d node%s of %lld units", m->nodes, m->nodes > 1 ? "s" : "",
            (long long)w->config->block);
    if (!square) fprintf(out, ", which read %d others", m->inputs);
    fprintf(out, "; %s blocks, %.2f %% of all. ", html_count(blocks, m->blocks), 100 * m->density);
    if (square) {
        write_paths_of(out, m);
    } else {
        fprintf(out, "A node reads %.1f (%d to %d) and is read by %d to %d.", m->degree_mean,
                m->degree_min, m->degree_max, m->out_degree_min, m->out_degree_max);
    }
    fputs("</p>\n", out);
}

static void write_ring_figure(FILE *out, const wiring *w, int s, const graph_metrics *m,
                              size_t most) {
    char drawn[32], all[32], place[24];
    snprintf(place, sizeof place, " id=\"ring%d\"", s);
    fputs("<figure>\n", out);
    size_t edges = write_ring(out, w, s, m, most, place);
    fputs("<figcaption>A line joins two nodes of which one reads the other. Point at a node, or "
          "choose one by the arrow keys, to see which.",
          out);
    if (w->norms[s]) fputs(" The larger the norm of its blocks, the stronger the line.", out);
    if (edges > most) {
        fprintf(out, " %s of %s are drawn%s.", html_count(drawn, (int64_t)most),
                html_count(all, (int64_t)edges), w->norms[s] ? ", the largest" : "");
    }
    fputs("</figcaption>\n</figure>\n", out);
}

static void write_matrix_figure(FILE *out, const wiring *w, int s) {
    fputs("<figure>\n", out);
    write_matrix(out, w, s, "");
    fprintf(out, "<figcaption>A row reads a column where a block is%s.</figcaption>\n</figure>\n",
            w->norms[s] ? "; the larger its norm, the stronger its mark" : "");
}

/* Lists what each node reads, for wiring_js, if the rings have circles and the lists are short. */
static void write_lists(FILE *out, const wiring *w) {
    int stages = model_stages(w->config), blocks = 0;
    for (int s = 0; s < stages; s++) blocks += graph_blocks(w->graphs[s]);
    if (blocks > MOST_LISTED || w->graphs[0]->nodes > MOST_CIRCLES) return;
    char *text;
    size_t size;
    FILE *stream = mem_stream(&text, &size);
    json_writer j = {stream, false};
    json_array_begin(&j, NULL);
    for (int s = 0; s < stages; s++) {
        const graph *g = w->graphs[s];
        char id[16];
        if (!graph_is_square(g)) continue; /* it has no ring */
        snprintf(id, sizeof id, "ring%d", s);
        json_object_begin(&j, NULL);
        json_string(&j, "id", id);
        json_array_begin(&j, "reads");
        for (int i = 0; i < g->nodes; i++) {
            json_array_begin(&j, NULL);
            for (int k = g->start[i]; k < g->start[i + 1]; k++) {
                if (g->column[k] != i) json_integer(&j, NULL, g->column[k]);
            }
            json_array_end(&j);
        }
        json_array_end(&j);
        json_object_end(&j);
    }
    json_array_end(&j);
    mem_stream_end(stream);
    html_json(out, "wiring", text, size);
    free(text);
}

/* ------------------------------------------------------------------------------------- hubs */

enum { HUB_LINES = 6000, HUB_MARGIN = 20 }; /* lines of both sides; at the pictures' edges */

/* The height at which one of so many nodes is drawn. */
static double level(int node, int nodes) {
    return HUB_MARGIN + (RING - 2 * HUB_MARGIN) * (node + 0.5) / nodes;
}

/* Lines from what is read, at `from`, to what reads it; of many every so manyth. */
static void write_reads(FILE *out, const graph *g, double from, double to) {
    const int blocks = graph_blocks(g), step = (2 * blocks + HUB_LINES - 1) / HUB_LINES;
    fputs(
        "<path style=\"fill: none; stroke: var(--c2); stroke-width: .5; stroke-opacity: .35\" d=\"",
        out);
    for (int i = 0; i < g->nodes; i++) {
        for (int k = g->start[i]; k < g->start[i + 1]; k++) {
            if (k % step) continue;
            fprintf(out, "M%.0f %.1fL%.0f %.1f", from, level(g->column[k], g->inputs), to,
                    level(i, g->nodes));
        }
    }
    fputs("\"/>\n", out);
}

static void write_column(FILE *out, int nodes, double x, int colour) {
    const double radius = fmax(0.7, fmin(5, 150.0 / nodes));
    for (int i = 0; i < nodes; i++) {
        fprintf(out, "<circle cx=\"%.0f\" cy=\"%.1f\" r=\"%.1f\" fill=\"var(--c%d)\"/>\n", x,
                level(i, nodes), radius, colour);
    }
}

/* The cells of a layer, its hubs, and the cells again, with a line where a node is read. */
static void write_hubs_figure(FILE *out, const wiring *w, int layer) {
    const graph *read = NULL, *write = NULL;
    for (int s = 0; s < model_stages(w->config); s++) {
        const stage_place at = model_stage_place(w->config, s);
        const graph *g = w->graphs[s];
        if (at.layer != layer || at.stage < 0 || graph_is_square(g)) continue;
        *(g->nodes < g->inputs ? &read : &write) = g;
    }
    if (!read || !write) return;
    const double x[] = {HUB_MARGIN, RING / 2.0, RING - HUB_MARGIN};
    fputs("<figure>\n", out);
    begin_picture(out, "", RING, RING);
    fprintf(out, "%d nodes of cells, %d of hubs, and the cells a step later\">\n", write->nodes,
            read->nodes);
    write_reads(out, read, x[0], x[1]);
    write_reads(out, write, x[1], x[2]);
    write_column(out, write->nodes, x[0], 0);
    write_column(out, read->nodes, x[1], 1);
    write_column(out, write->nodes, x[2], 0);
    fprintf(out,
            "</svg>\n<figcaption>From left to right: the cells, %d nodes of %lld units; the hubs, "
            "which keep nothing from step to step, %d nodes; and the cells a step later. A line "
            "leads from a node to one that reads it.</figcaption>\n</figure>\n",
            write->nodes, (long long)w->config->block, read->nodes);
}

/* What the cells of a layer read of each other through its hubs. */
static void write_cells(FILE *out, const wiring *w, int layer) {
    graph_metrics m;
    graph *cells = model_cells_graph(w->config, w->graphs, layer);
    graph_measure(cells, &m);
    fputs("<h3>Cells through hubs</h3>\n<p>In one step of the text a node of cells reads others "
          "through the hubs. ",
          out);
    write_paths_of(out, &m);
    fputs("</p>\n<div class=\"charts\">\n", out);
    write_hubs_figure(out, w, layer);
    fputs("<figure>\n", out);
    write_degrees(out, cells, &m, "");
    fputs("</figure>\n<figure>\n", out);
    write_paths(out, &m, "");
    fputs("</figure>\n</div>\n", out);
    graph_free(cells);
}

void wiring_write(FILE *out, const wiring *w) {
    int stages = model_stages(w->config);
    size_t most = ALL_EDGES / (size_t)stages;
    for (int y = 0; w->config->hubs && y < w->config->layers; y++) write_cells(out, w, y);
    for (int s = 0; s < stages; s++) {
        graph_metrics m;
        char name[16];
        const bool square = graph_is_square(w->graphs[s]);
        graph_measure(w->graphs[s], &m);
        if (stages > 1) {
            fprintf(out, "<h3>Pattern of %s</h3>\n", model_stage_name(w->config, s, name));
        }
        write_facts(out, w, &m);
        fputs("<div class=\"charts\">\n", out);
        const bool matrix_first = !square || w->graphs[s]->nodes > EASY_NODES;
        const bool all = m.density == 1 && !w->norms[s] && !square; /* a black rectangle */
        if (matrix_first && !all) write_matrix_figure(out, w, s);
        if (square) write_ring_figure(out, w, s, &m, most);
        if (!matrix_first) write_matrix_figure(out, w, s);
        fputs("<figure>\n", out);
        write_degrees(out, w->graphs[s], &m, "");
        if (square) {
            fputs("</figure>\n<figure>\n", out);
            write_paths(out, &m, "");
        }
        fputs("</figure>\n</div>\n", out);
    }
    write_lists(out, w);
}

bool wiring_write_page(const wiring *w, const char *source, const char *path, error *err) {
    static const char *const scripts[] = {wiring_js};
    file_writer writer;
    if (!file_begin(&writer, path, err)) return false;
    char *title = mem_format("The wiring of %s", source);
    html_begin(writer.stream, title, 0);
    wiring_write(writer.stream, w);
    html_end(writer.stream, scripts, 1);
    free(title);
    return file_commit(&writer, err);
}

bool wiring_write_svg(const wiring *w, int stage, const char *path, error *err) {
    file_writer writer;
    graph_metrics m;
    char place[48];
    const bool square = graph_is_square(w->graphs[stage]);
    int width = square ? 2 * RING : RING, height = RING + CHART_HEIGHT;
    if (!file_begin(&writer, path, err)) return false;
    FILE *out = writer.stream;
    graph_measure(w->graphs[stage], &m);
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"chart\" width=\"%d\" height=\"%d\" "
            "viewBox=\"0 0 %d %d\">\n<style>\n%s</style>\n<rect width=\"%d\" height=\"%d\" "
            "fill=\"var(--paper)\"/>\n",
            width, height, width, height, chart_css, width, height);
    if (square) write_ring(out, w, stage, &m, ALL_EDGES, "");
    snprintf(place, sizeof place, " x=\"%d\"", width - RING);
    write_matrix(out, w, stage, place);
    snprintf(place, sizeof place, " y=\"%d\"", RING);
    write_degrees(out, w->graphs[stage], &m, place);
    snprintf(place, sizeof place, " x=\"%d\" y=\"%d\"", RING, RING);
    if (square) write_paths(out, &m, place);
    fputs("</svg>\n", out);
    return file_commit(&writer, err);
}
