/* The model: bytes in, the next byte's distribution out. An embedding and its projections make the
 * input tables; a recurrent cell of block-sparse stages (kernels/ops.h) runs over the sequence; a
 * dense head turns h into 256 logits.
 *
 *   table = projection . embedding          [tables][hidden / input_stride][256]
 *   h, c  = cell(table[byte], h, c)         for each of `steps` bytes, in `batch` streams
 *   loss  = -log softmax(head . h + bias)[next byte]
 *
 * There may be several layers of cells, each with embedding, tables, patterns and state of its own.
 * A layer above the first one reads h of the layer below, of the same byte, in addition to its own
 * h of the byte before: its first stage's W h becomes W h + U h_below, U block-sparse too. The head
 * reads h of the last layer. The layers run one after another over a whole segment of steps, so U
 * h_below is one product over all of them.
 *
 * With hubs, the internal stages of the mlstm and of the deep cell are narrower than the cell: P
 * units, through which all cells speak with each other.
 *
 * Parameters, in the arena's order; E embedding, H hidden, P hubs or H, S input_stride, O
 * output_stride:
 *   input.embedding   [E][256]
 *   input.projection  [tables][H / S][E]    lstm: i f o u; mlstm: m i f o u; deep: m a; without i
 *                                           if gates are coupled
 *   input.hubs.projection [tables][P / S][E]    with hubs, m, or m and a, which then are not above
 *   input.multiply.gain, .bias; input.add.gain, .bias  [P / S]     deep: the tables' layer norm
 *   cell.stepK.weight [blocks][block][block], .gain [P], .bias [P]  mlstm: K = 0, no bias; deep
 *   cell.gates.weight [blocks][G][block][block], .gain [G][H], .bias [G][H]  G: 4, coupled 3
 *   for each further layer L = 2, 3 ...: the same again, named input.layerL... and cell.layerL...,
 *   with cell.layerL.below.weight, U, before the other stages; its shape is that of the first one
 *   head.weight       [256][H / O], head.bias [256]
 *   class.weight      [K][H / O], class.bias [K]    with K classes
 * There are no gains without a norm. A dense pattern has one block of the whole size, outputs by
 * inputs.
 *
 * With weight norm the gates' products read gain w / |w| in place of each row w of their W, made
 * once an update, and have no layer norm; internal stages and the tables of the deep cell have
 * layer norm, the first stage of what the byte's table has multiplied: m = LN(W h table[byte]), so
 * that what the gates read has the same size for every byte. Where an lstm reads the layer below, w
 * is the row of W and that of U together.
 *
 * With classes, a second linear head reads the same units of h. In training its rows are computed
 * with those of the first, and after every byte of a labelled document it is asked for the
 * document's class: -log softmax(class.weight h + bias)[class], times the weight of the place.
 *
 * Training keeps the activations of every step for backward. If they need too much memory, the
 * steps are cut into `segments` (Chen et al. 2016). Forward then keeps only the state at each
 * segment's start, and all activations of the last segment. From the last segment to the first,
 * backward runs after the segment has been run forward again, now keeping its activations. The
 * gradient at a segment's first state is passed to the segment before it, so gradients flow as far
 * as without segments, and every h, c and loss is the same to the last bit. The gradient is summed
 * by segments, in another order, so it is the same up to rounding. */
#ifndef SMALLWORLD_MODEL_MODEL_H
#define SMALLWORLD_MODEL_MODEL_H

#include "graph/graph.h"
#include "model/parameters.h"
#include "model/plan.h"
#include "ops.h"

typedef enum cell_kind { CELL_LSTM, CELL_MLSTM, CELL_DEEP } cell_kind;

#define CELL_KINDS "lstm mlstm deep"

/* What is normed at the gates; see above. */
typedef enum norm_kind { NORM_WEIGHT, NORM_LAYER, NORM_NONE } norm_kind;

#define NORM_KINDS "weight layer none"

typedef struct model_config {
    int cell; /* cell_kind */
    int64_t internal_steps, layers;
    int64_t hidden, hubs, block, embedding; /* hubs 0: internal stages are as wide as hidden */
    int64_t input_stride, output_stride;
    int graph; /* graph_kind */
    int64_t degree;
    double density, rewire;
    double core, core_reads, periphery_reads; /* of graph: core_periphery */
    int periphery;                            /* index into PERIPHERY_KINDS */
    char *graph_file;
    int norm; /* norm_kind */
    bool coupled_gates;
    double dropout, input_dropout, init_input, init_noise, init_gain, forget_bias;
    int64_t seed;
    int64_t classes; /* of labelled documents, 0: none; no key: the names come with the text */
} model_config;

/* The number of patterns: one for each stage of the cells of all layers, and, before the stages of
 * each further layer, one for what it reads of the layer below. At most CELL_MAX_STAGES. They are
 * called stages here, and numbered through all layers. */
int model_stages(const model_config *config);

/* The layers that CELL_MAX_STAGES has room for with this cell. */
int model_most_layers(const model_config *config);

/* Where a stage belongs: its layer, from 0, and its number in that layer's cell, or STAGE_BELOW. */
enum { STAGE_BELOW = -1 };

typedef struct stage_place {
    int layer, stage;
} stage_place;

stage_place model_stage_place(const model_config *config, int stage);

/* The gates of a cell: GATES or COUPLED_GATES. */
int model_gates(const model_config *config);

/* 1, or model_gates for the stages that make the gates' sums. */
int model_stage_gates(const model_config *config, int stage);

/* The nodes of a stage's pattern, blocks of the units that it makes and of those that it reads. */
int model_stage_nodes(const model_config *config, int stage);
int model_stage_inputs(const model_config *config, int stage);

/* A layer's input tables, each the embedding projected for one gate or stage, are of two widths
 * with hubs: the number of those of each. Without hubs, all are TABLES_OF_CELLS. */
typedef enum table_width { TABLES_OF_CELLS, TABLES_OF_HUBS, TABLE_WIDTHS } table_width;
int model_tables(const model_config *config, table_width width);

/* The graph of each stage, made from the config; the caller frees them. */
bool model_graphs(const model_config *config, graph *graphs[CELL_MAX_STAGES], error *err);

/* What the cells of a layer read of each other in one step, through its hubs. The caller frees
 * it. */
graph *model_cells_graph(const model_config *config, graph *const *graphs, int layer);

/* "step0", ..., "gates"; "layer2.below", "layer2.step0" ...: the name of a stage, as in parameters'
 * names. */
const char *model_stage_name(const model_config *config, int stage, char name[16]);

typedef enum model_use {
    MODEL_INFERENCE, /* weights alone */
    MODEL_TRAINING,  /* also gradients, moments, the moving average, every step's activations */
    MODEL_MUON       /* the same, and dense weights of stages are trained by Muon */
} model_use;

/* The numbers of a stage's parameters in the table; -1 for what it does not have. */
typedef struct stage_parameters {
    int weight, gain, bias;
} stage_parameters;

/* CELL_MAX_STAGES patterns are those of so many layers of one stage. */
enum { MAX_LAYERS = (CELL_MAX_STAGES + 1) / 2 };

/* The tables of one width. All is NULL where there are none. */
typedef struct input_tables {
    int projection;   /* its number in the parameter table */
    void *projected;  /* operand [tables][units][256]: projection . embedding */
    void *dprojected; /* operand: its gradient */
} input_tables;

typedef struct model_layer {
    int embedding; /* its number in the parameter table */
    input_tables inputs[TABLE_WIDTHS];
    stage_parameters table_parameters[2];
    cell cell;      /* h, c, and everything stages need, of one segment */
    cell tables[2]; /* deep: the layer norms of M and A, as cells of one stage */
} model_layer;

/* The classes of labelled documents, in training with classes; else all is NULL. */
typedef struct label_arrays {
    int16_t *classes;     /* [steps][columns]; negative: none */
    void *weights;        /* real, likewise */
    void *losses, *wrong; /* real, likewise; see softmax_loss */
} label_arrays;

/* The parts of an update. The head counts both directions; backward is the rest of the gradient. */
typedef enum update_part {
    UPDATE_FORWARD,
    UPDATE_RECOMPUTE, /* forward again */
    UPDATE_HEAD,
    UPDATE_BACKWARD,
    UPDATE_OPTIMISER,
    UPDATE_PARTS
} update_part;

/* Of an update, a part after each mark of the backend: part k lies between marks k and k + 1. Each
 * segment has up to four, and the optimiser one. */
#define UPDATE_MOST_PARTS(segments) (4 * (size_t)(segments) + 1)

typedef struct update_timing {
    update_part *part; /* [UPDATE_MOST_PARTS] */
    int count;
} update_timing;

typedef struct model {
    backend *be;
    model_config config;
    model_use use;
    int batch, columns, steps;   /* streams; streams padded for the backend; bytes a call */
    int first_stream;            /* of the minibatch of all ranks */
    int segments, segment_steps; /* the last segment may be shorter */
    int layers;

    graph *graphs[CELL_MAX_STAGES];
    layout *layouts[CELL_MAX_STAGES], *projection_layouts[TABLE_WIDTHS], *head_layout;
    device_layout *devices[CELL_MAX_STAGES], *projection_devices[TABLE_WIDTHS], *head_device;
    device_layout *squares[CELL_MAX_STAGES]; /* of Muon's products; NULL of stages that Adam has */
    parameter_table parameters;
    int head_weight, head_bias;   /* their numbers in the table */
    int class_weight, class_bias; /* likewise; in the arena they follow those of the head */
    int head_rows;                /* of logits: the bytes, in training also the classes */
    stage_parameters stage_parameters[CELL_MAX_STAGES];
    plan plan;

    /* Arenas, real, with the parameters where the table has them; `operands` is what products read:
     * `weights` (or `average`) itself unless the precision is BF16 or rows are normed. moment2 ends
     * before the weights that Muon trains, which have none. */
    void *weights, *operands, *gradient, *moment1, *moment2, *average;
    size_t second_moments; /* elements of moment2 */
    uint8_t *groups;       /* flags of adam in ops.h: the recurrent weights decay, or are Muon's */
    void *share;           /* the gradient of one segment; NULL if there is only one segment */
    void *into;            /* the arena that backward fills: gradient or share */
    void *rounded;         /* the copies that operands are; or NULL */
    const void *bound;     /* the arena that forward reads: weights or average */

    /* Inputs and results of a call, on the device. */
    uint8_t *bytes;   /* [steps][columns] */
    int16_t *targets; /* [steps][columns]; negative: not scored */
    void *losses;     /* real [steps][columns], nats */
    void *logits;     /* real [a segment's steps][head_rows][columns], without the head's bias */
    void *dlogits;    /* operand */
    label_arrays labels;
    double text_weight, label_weight; /* of the two losses in the gradient; 1, 1 at first */
    update_arguments *arguments;
    update_report *report, *evaluation; /* of training; of forward without it */
    update_timing *timing; /* where an update is timed, set before it is recorded; else NULL */

    model_layer layer[MAX_LAYERS];
    void *below; /* operand [segment_steps][rows of a first stage][columns]: U h_below of the layer
                      that runs */
    void *carry; /* the state that is saved during an evaluation, and, with segments, the state
                      that an update ends with */
    void *borders; /* [segments - 1] the states at the start of all segments but the last */
    uint8_t *no_bytes;
    void *dembedding; /* real [E][256]: the share of the second width's tables, with hubs */
} model;

/* Makes a model without values of its parameters. `graphs` come from a checkpoint and belong to the
 * model from then on; NULL makes them from the config. `segments`, at most `steps`, is met as
 * nearly as whole steps allow. NULL if the model does not fit into the backend's memory. */
model *model_create(backend *be, const model_config *config, graph *const *graphs, int batch,
                    int steps, int segments, model_use use, error *err);
void model_free(model *m);

/* The arenas that a run resumes from, of `count` elements; the weights are the first. */
enum { MODEL_KEPT = 4 };
typedef struct kept_arena {
    const char *name;
    void *values;
    size_t count;
} kept_arena;
kept_arena model_kept(const model *m, int i);

/* Sets the arenas `weights` and, in training, `average` from host floats, and the rest to zero. */
void model_load(model *m, const float *weights);
void model_initialise(model *m);

/* `count` elements of an arena from the `first`, as floats the caller frees. */
float *model_download(const model *m, const void *arena, size_t first, size_t count);

/* What wgrad of a stage reads, over the steps of the first segment, once backward is done: the
 * gradient at its product's rows, and the product's input. */
typedef struct model_wgrad {
    const void *dy, *x;
} model_wgrad;

model_wgrad model_wgrad_of(const model *m, int stage);

/* Whether Muon trains any weights, and the mean length of the rows of those of a stage. */
bool model_uses_muon(const model *m);
double model_row_length(const model *m, int stage);

/* The number of blocks over the number of places for them, over all stages. */
double model_density(const model *m);

/* Makes a model of the strongest blocks of this one, by the Euclidean norm of their weights as
 * products read them, all gates together. A stage keeps as many as make up `density`, and at least
 * its self-blocks, which are never removed; ties are broken at random, by the model's seed. Other
 * weights stay; gains of normed rows change so that products read the same. The caller frees it. */
model *model_prune(const model *m, double density, error *err);

/* Chooses the arena that forward reads: the weights or their moving average. */
void model_use_weights(model *m);
void model_use_average(model *m);

/* Uploads the input of a call, [steps][columns]: the bytes to read and, unless NULL, the bytes that
 * are to be predicted, negative where nothing is scored. */
void model_set_text(model *m, const uint8_t *bytes, const int16_t *targets);

/* In training with classes: uploads the class of the document that each byte belongs to, negative
 * where it has none, and the weight of its loss; both [steps][columns]. NULL: none has a class. */
void model_set_labels(model *m, const int16_t *classes, const float *weights);

/* The streams of this model are those from `first` on, a multiple of 4, of a minibatch that ranks
 * share: what dropout draws for a stream does not depend on the rank that has it. Before the model
 * is recorded. */
void model_set_first_stream(model *m, int first);

/* Dropout of the input: each of the `bytes` [steps][columns] of update number `update` becomes
 * DROPPED_BYTE with probability config.input_dropout. To be called on the host, in training, before
 * model_set_text, so that every backend reads the same bytes. */
enum { DROPPED_BYTE = 0 };
void model_drop_input(const model *m, uint64_t update, uint8_t *bytes);

/* The carried state of all streams. Training saves it before an evaluation and restores it
 * after. */
void model_zero_state(model *m);
void model_save_state(model *m);
void model_restore_state(model *m);

typedef enum model_state_kind { MODEL_H /* operand */, MODEL_C /* real */ } model_state_kind;

/* Where a call's state of the last layer after `step` steps lies on the device, [hidden][columns];
 * step 0 is the carried state. With segments, steps of the last one. */
void *model_state(const model *m, model_state_kind kind, int step);

/* The carried state of the real streams as floats on the host, [layers][hidden][batch], and back. A
 * backend in double is not supported. */
void model_copy_state(const model *m, model_state_kind kind, float *values);
void model_set_state(model *m, model_state_kind kind, const float *values);

/* Operations to be recorded or issued. They read m->bytes, m->targets and the state at h[0], c[0],
 * and leave the last state there.
 *   run       the cell alone: h and c of every step (of the last segment)
 *   forward   also logits and losses; adds the losses to m->evaluation
 *   update    forward, backward and one step of Adam, or of Muon for the weights that it trains, by
 *             m->arguments; likewise with m->report
 *   gradient  update without the optimiser, for tests
 *   adapt     update by one step of dynamic evaluation in place of Adam: the moving average holds
 *             the trained weights, moment2 the mean squares of the gradient */
void model_run(model *m);
void model_forward(model *m);

/* Generation, of a model with one step: model_prepare_tables once for the weights that are bound,
 * then model_generate for the next `count` bytes. It reads m->bytes, and leaves the last byte there
 * and all in `text`; see backend.sample. `state` and `text` are on the device. */
void model_prepare_tables(model *m);
void model_generate(model *m, sampling *state, uint8_t *text, int count);

void model_gradient(model *m);
void model_update(model *m);
void model_adapt(model *m);

/* Sets the weights to their moving average, between updates. */
void model_return_to_average(model *m);

#endif
