/* Measures a graph's small-world properties. */
#ifndef SMALLWORLD_GRAPH_METRICS_H
#define SMALLWORLD_GRAPH_METRICS_H

#include "graph/graph.h"

enum { METRICS_MAX_STEPS = 16 };

typedef struct graph_metrics {
    int nodes, inputs, blocks;
    double density; /* blocks / (nodes inputs) */
    /* Neighbours of a node without itself: nodes that it reads, and nodes that read it. The means
     * are equal. */
    int degree_min, degree_max, out_degree_min, out_degree_max;
    double degree_mean;
    int core; /* number of first nodes that are all joined in both directions */
    /* The mean over nodes of the share of a node's pairs of neighbours that are themselves joined,
     * 0 where there are fewer than two (Watts, Strogatz 1998); edges count in either direction. */
    double clustering;
    /* Over ordered pairs of distinct nodes with a path from input to output: the mean and largest
     * number of steps on a shortest path; and the share of ordered pairs that have none. */
    double path_mean;
    int path_max;
    double unreachable;
    int components; /* parts without an edge between them, in either direction */
    /* reach[k]: the mean share of nodes that a node's signal has reached after k + 1 steps, itself
     * included; `steps` entries, up to where it stops growing. */
    int steps;
    double reach[METRICS_MAX_STEPS];
} graph_metrics;

/* Of a rectangle only what stands above `core`, and the components. */
void graph_measure(const graph *g, graph_metrics *metrics);

/* Finds only the number of components, which is cheap. */
int graph_components(const graph *g);

#endif
