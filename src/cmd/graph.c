/* smallworld graph: describe and draw the graphs of a model. */
#include "cmd/cli.h"
#include "core/file.h"
#include "core/memory.h"
#include "page/wiring.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct arguments {
    const char *source, *svg, *html, *edges;
    config_list assignments;
    bool json;
} arguments;

static const cli_row rows[] = {
    {CLI_ARGUMENT, NULL, "CONFIG or CHECKPOINT", .offset = offsetof(arguments, source),
     "a CONFIG.yaml or CHECKPOINT.safetensors"},
    CLI_SET(offsetof(arguments, assignments)),
    {CLI_TEXT, "svg", "FILE", .offset = offsetof(arguments, svg),
     "Draw the ring with its chords, the matrix, and histograms of degrees and path lengths; "
     "with several patterns, their numbers are added to FILE's name"},
    {CLI_TEXT, "html", "FILE", .offset = offsetof(arguments, html),
     "Write a page, FILE, with the same drawings; the edges of a checkpoint are shaded by their "
     "weights"},
    {CLI_PREFIX, "edges", "PREFIX", .offset = offsetof(arguments, edges),
     "Write each pattern to PREFIX.NUMBER.txt, with a line OUTPUT INPUT for each block"},
    CLI_JSON(offsetof(arguments, json)),
};

/* The number of trained scalars in the weights of a pattern. */
static int64_t pattern_parameters(const model_config *config, int stage, int blocks) {
    int gates = model_stage_gates(config, stage);
    return (int64_t)gates * blocks * config->block * config->block;
}

/* A ring has first nodes that are all joined, too, but no core. */
static bool has_core(const model_config *config) {
    return config->graph == GRAPH_CORE_PERIPHERY || config->graph == GRAPH_FILE;
}

static void print_square(const graph_metrics *g) {
    printf("  clustering  %.4f\n", g->clustering);
    printf("  path length mean %.3f, longest %d", g->path_mean, g->path_max);
    if (g->components > 1) printf("; %d parts", g->components);
    if (g->unreachable > 0) printf("; %.1f %% of pairs not joined", 100 * g->unreachable);
    printf("\n  reach      ");
    for (int k = 0; k < g->steps; k++) printf(" %d: %.1f %%", k + 1, 100 * g->reach[k]);
    printf("\n");
}

static void print_text(const model_config *config, int stage, const graph_metrics *g) {
    char name[16];
    const bool square = g->nodes == g->inputs;
    printf("%s: %d nodes of %lld units", model_stage_name(config, stage, name), g->nodes,
           (long long)config->block);
    if (!square) printf(" that read %d others", g->inputs);
    printf(", %d blocks (density %.4f), %lld parameters\n", g->blocks, g->density,
           (long long)pattern_parameters(config, stage, g->blocks));
    if (square && has_core(config)) printf("  core        %d nodes\n", g->core);
    printf("  inputs      min %d, mean %.2f, max %d\n", g->degree_min, g->degree_mean,
           g->degree_max);
    printf("  outputs     min %d, mean %.2f, max %d\n", g->out_degree_min,
           g->degree_mean * g->nodes / g->inputs, g->out_degree_max);
    if (square) print_square(g);
}

static void print_metrics(json_writer *w, const graph_metrics *g, bool core) {
    json_number(w, "density", g->density);
    json_integer(w, "degree_min", g->degree_min);
    json_number(w, "degree_mean", g->degree_mean);
    json_integer(w, "degree_max", g->degree_max);
    json_integer(w, "out_degree_min", g->out_degree_min);
    json_integer(w, "out_degree_max", g->out_degree_max);
    json_number(w, "core", core ? g->core : NAN);
    const bool square = g->nodes == g->inputs; /* NaN: null */
    json_number(w, "clustering", square ? g->clustering : NAN);
    json_number(w, "path_mean", square ? g->path_mean : NAN);
    json_number(w, "path_max", square ? g->path_max : NAN);
    json_number(w, "unreachable", square ? g->unreachable : NAN);
    json_integer(w, "components", g->components);
    json_array_begin(w, "reach");
    for (int k = 0; k < g->steps; k++) json_number(w, NULL, g->reach[k]);
    json_array_end(w);
}

static void print_json(json_writer *w, const model_config *config, int stage,
                       const graph_metrics *g) {
    char name[16];
    json_object_begin(w, NULL);
    json_string(w, "pattern", model_stage_name(config, stage, name));
    json_integer(w, "nodes", g->nodes);
    json_integer(w, "inputs", g->inputs);
    json_integer(w, "blocks", g->blocks);
    json_integer(w, "parameters", pattern_parameters(config, stage, g->blocks));
    print_metrics(w, g, has_core(config));
    json_object_end(w);
}

/* What cells read of each other through the hubs, of each layer. */
static void print_cells(json_writer *w, const model_config *config, graph *const *graphs) {
    if (w) json_array_begin(w, "cells");
    for (int y = 0; y < config->layers; y++) {
        graph_metrics m;
        graph *cells = model_cells_graph(config, graphs, y);
        graph_measure(cells, &m);
        if (w) {
            json_object_begin(w, NULL);
            json_integer(w, "nodes", m.nodes);
            print_metrics(w, &m, false);
            json_object_end(w);
        } else {
            printf("cells through hubs: %d nodes, each of which reads %d to %d others in a step\n",
                   m.nodes, m.degree_min, m.degree_max);
            print_square(&m);
        }
        graph_free(cells);
    }
    if (w) json_array_end(w);
}

static bool write_edges(const graph *g, const char *prefix, int number, error *err) {
    char *path = mem_format("%s.%d.txt", prefix, number);
    file_writer writer;
    bool written = file_begin(&writer, path, err);
    if (written) {
        for (int i = 0; i < g->nodes; i++) {
            for (int k = g->start[i]; k < g->start[i + 1]; k++) {
                fprintf(writer.stream, "%d %d\n", i, g->column[k]);
            }
        }
        written = file_commit(&writer, err);
    }
    free(path);
    return written;
}

/* Returns the name of a stage's picture. The caller frees it. */
static char *picture_path(const model_config *config, int stage, const char *path) {
    char name[16];
    if (model_stages(config) == 1) return mem_string(path);
    size_t stem = strlen(path) - (file_ends_in(path, ".svg") ? strlen(".svg") : 0);
    return mem_format("%.*s.%s.svg", (int)stem, path, model_stage_name(config, stage, name));
}

/* Draws the wiring. `c` is NULL for a config, which has no trained weights. */
static bool draw_wiring(const arguments *a, const model_config *config, graph *const *graphs,
                        const checkpoint *c, error *err) {
    wiring w = {.config = config, .graphs = graphs};
    bool drawn = true;
    if (!a->svg && !a->html) return true;
    if (c) wiring_measure(&w, c);
    for (int s = 0; a->svg && drawn && s < model_stages(config); s++) {
        char *path = picture_path(config, s, a->svg);
        drawn = wiring_write_svg(&w, s, path, err);
        free(path);
    }
    if (drawn && a->html) drawn = wiring_write_page(&w, a->source, a->html, err);
    wiring_free(&w);
    return drawn;
}

static bool describe(const arguments *a, const model_config *config, graph *const *graphs,
                     const checkpoint *c, error *err) {
    if (!draw_wiring(a, config, graphs, c, err)) return false;
    for (int s = 0; s < model_stages(config); s++) {
        if (a->edges && !write_edges(graphs[s], a->edges, s, err)) return false;
    }
    json_writer w = {stdout, false};
    graph_metrics g;
    if (a->json) {
        json_object_begin(&w, NULL);
        json_array_begin(&w, "patterns");
    }
    for (int s = 0; s < model_stages(config); s++) {
        graph_measure(graphs[s], &g);
        if (a->json) {
            print_json(&w, config, s, &g);
        } else {
            print_text(config, s, &g);
        }
    }
    if (a->json) json_array_end(&w);
    if (config->hubs) print_cells(a->json ? &w : NULL, config, graphs);
    if (a->json) {
        json_object_end(&w);
        putchar('\n');
    }
    return true;
}

static bool describe_checkpoint(const arguments *a, error *err) {
    checkpoint c;
    if (a->assignments.count) {
        return error_usage(err, "--set %s: %s is a checkpoint, whose graphs are made",
                           a->assignments.items[0], a->source);
    }
    if (!checkpoint_open(&c, a->source, err)) return false;
    bool done = describe(a, &c.options.model, c.graphs, &c, err);
    checkpoint_close(&c);
    return done;
}

static bool describe_config(const arguments *a, error *err) {
    options o;
    graph *graphs[CELL_MAX_STAGES] = {0};
    options_begin(&o);
    bool done = options_load(&o, a->source, a->assignments.items, a->assignments.count, err) &&
                options_graphs(&o, graphs, err);
    if (done) {
        done = describe(a, &o.model, graphs, NULL, err);
        for (int s = 0; s < model_stages(&o.model); s++) graph_free(graphs[s]);
    }
    options_free(&o);
    return done;
}

int cmd_graph(int argc, char **argv) {
    static const cli_command command = {
        "CONFIG|CHECKPOINT",
        "Describe the graph of each pattern of a model: blocks, degrees, clustering, path lengths, "
        "and the share of nodes that a unit's signal has reached after 1, 2, 3 ... steps."
        "\vExample:\n  smallworld graph configs/quickstart.yaml --svg pattern.svg",
        CLI_ROWS(rows), NULL, NULL};
    arguments a = {0};
    cli_parse(&command, argc, argv, &a);
    error err;
    const bool is_checkpoint = file_ends_in(a.source, ".safetensors") || file_is_folder(a.source);
    bool done = is_checkpoint ? describe_checkpoint(&a, &err) : describe_config(&a, &err);
    free(a.assignments.items);
    return done ? STATUS_OK : cli_fail(&err, "graph");
}
