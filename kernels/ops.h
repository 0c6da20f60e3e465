/* The contract between the model and the hardware: every operation the model needs, as four tables
 * of functions. `cpu` and `cuda` implement it; nothing above this header knows which one runs.
 *
 * Data. Activations are feature-major, [feature][column], and sequences are
 * [step][feature][column]; a column is one stream of the minibatch. `columns` is a multiple of
 * `column_multiple`. The columns that pad a minibatch are streams like the others, but their
 * targets are negative, so that nothing scores them.
 *
 * Types. `real` holds master weights, cell states, statistics and gradients of weights; it has 4
 * bytes, or 8 in the reference. `operand` holds what products read: bf16 in precision BF16, else
 * real. The CPU backend keeps bf16 values, rounded to nearest even, in 4 bytes. An operand is
 * rounded when it is stored, and every later operation reads the rounded value.
 *
 * Order. Operations run one after another in the order in which they are issued. On a GPU, issuing
 * returns at once; `download` and `finish` wait. The same operations on the same data give the same
 * bits. */
#ifndef SMALLWORLD_KERNELS_OPS_H
#define SMALLWORLD_KERNELS_OPS_H

#include "core/error.h"
#include "core/ranks.h"
#include "graph/layout.h"
#include "graph/taps.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum {
    VOCABULARY = 256, /* bytes */
    DECAY_GROUP = 256 /* neighbouring weights that share flags, see adam */
};

enum { GROUP_DECAYS = 1, GROUP_OF_MUON = 2, GROUP_OF_INPUT = 4, GROUP_OF_HEAD = 8 };

typedef enum precision { FP32, BF16, FP64 } precision;
typedef enum element { REAL, OPERAND } element;

typedef struct backend backend;
typedef struct device_layout device_layout; /* a backend's copy of a layout */
typedef struct recording recording;         /* a fixed sequence of operations */
typedef struct bench_tools bench_tools;     /* see bench.h */

/* ------------------------------------------------------------------------------------ cell
 *
 * A cell is a chain of stages, applied to h once per byte; the last one makes the gates.
 *
 *   internal stage   y = act(combine(norm(W x) , table[byte])), or act(norm(W x table[byte]))
 *   gate stage       z_g = norm_g(W_g x) + table_g[byte] + b_g   for g in i f o u
 *                    c' = sigmoid(z_f) c + sigmoid(z_i) tanh(dropout(z_u))
 *                    h' = sigmoid(z_o) tanh(c')
 *
 * where norm(v) = gain (v - mean) / sqrt(variance + 1e-6) + bias over the features of one column
 * (Ba, Kiros, Hinton 2016). Without layer norm, gain and normalisation are left out; a W with
 * weight norm is made before, see norm_rows. combine adds the table's entry, multiplies by it, or
 * does nothing. Rows of W x are in the layout's order; everything else is in the order of units.
 *
 * Coupled gates (Greff et al. 2015) are the three f o u, and 1 - sigmoid(z_f) stands for
 * sigmoid(z_i).
 *
 * In a cell above another one, the first stage's W x is W h + U h_below, where `below` holds the
 * second product of all steps; raw is their sum, rounded.
 *
 *   lstm   gates only, with an added table                   (Hochreiter, Schmidhuber 1997)
 *   mlstm  one multiplying stage, then the gates              (Krause et al. 2016); narrower than
 *          the cell, its units are the factors of Sutskever, Martens and Hinton (2011)
 *   deep   multiply, add and relu, relu ..., then the gates   (Gray et al. 2017) */

enum { CELL_MAX_STAGES = 17, GATES = 4, COUPLED_GATES = 3 };
enum { GATE_I, GATE_F, GATE_O, GATE_U };

typedef enum table_use { TABLE_NONE, TABLE_ADD, TABLE_MULTIPLY } table_use;

typedef struct stage {
    const device_layout *layout;
    int units; /* width of what it makes: cell.hidden of the gates, of internal stages any */
    int block; /* the layout's out_block */
    int gates; /* 1; in the last stage GATES or COUPLED_GATES */
    bool layer_norm, relu;
    bool norm_last; /* of a table that multiplies: W x is multiplied before norm */
    enum table_use table_use;
    int table_stride; /* the table feeds units 0, table_stride, 2 table_stride ... only */

    const void *weight; /* operand, see layout.h */
    const void *gain;   /* real [gates][units]; NULL without layer norm */
    const void *bias;   /* real [gates][units], or NULL */
    const void *table;  /* operand [gates][units / table_stride][VOCABULARY], or NULL */

    /* With cell.keep these have every step, else only the latest. A backend whose cell_forward and
     * cell_backward are kernels of their own may keep in raw what its backward reads instead. */
    void *raw; /* operand [steps][gates * units][columns]: W x; with norm_last times the table's
                  entries. With layer norm, backward overwrites it with the gradient at W x */
    void *out; /* operand [steps][units][columns]: y; NULL for the gates */

    void *sums; /* [steps] x sums_bytes: per gate and column, the sums of raw and of its square; of
                   the last stage as of GATES */

    /* For backward; all NULL without training. Gradients of weights are sums over steps and
     * columns. */
    void *dpre;   /* operand, like raw: the gradient at norm's result. Unless keeps_dpre, it is
                     scratch for one step; of gates without layer norm it may be raw itself */
    void *dentry; /* operand, like raw, for a multiplying table: the gradient at its entries; with
                     norm_last W x until then */
    void *dsums;  /* [steps] x sums_bytes: per gate and column, the sums of gain dpre and of that
                     times the normalised raw */
    void *dgain, *dbias; /* real, like gain, bias */
    void *dtable;        /* operand, like table */
} stage;

/* How the table's entries are combined with norm's result. */
static inline table_use use_after_norm(const stage *g) {
    return g->norm_last ? TABLE_NONE : g->table_use;
}

static inline bool makes_gates(const stage *g) {
    return g->gates > 1;
}

/* The first of the gates i f o u that the last stage makes. */
static inline int first_gate(const stage *g) {
    return GATES - g->gates;
}

/* Dropout of the update u (Srivastava et al. 2014). A unit, stream and step has one draw of 32
 * bits, a function of the seed, the update and these three numbers (core/philox.h): below
 * `threshold` the update is 0, else it is multiplied by `scale`. A threshold of 0 turns dropout
 * off. */
typedef struct dropout {
    uint32_t threshold; /* probability x 2^32 */
    double scale;       /* 1 / (1 - probability) */
    uint64_t seed;
    uint32_t first_stream; /* the number of the stream in column 0; a multiple of 4 */
} dropout;

static inline dropout dropout_with(double probability, uint64_t seed) {
    dropout d = {(uint32_t)(probability * 4294967296.0), 1 / (1 - probability), seed, 0};
    return d;
}

typedef struct cell {
    int hidden, columns, steps;
    int first_step; /* the number of step 0 within its update: part of dropout's counter */
    bool keep;      /* keep every step's activations, for backward */

    /* Backward of one segment of an update. With later steps, whose backward is done, dx and dc
     * hold the gradients at the last h and c; without, those are zero. With earlier steps,
     * cell_backward leaves the gradients at h[0] and c[0] in dx and dc. */
    bool has_later_steps, has_earlier_steps;

    int stages;
    struct stage stage[CELL_MAX_STAGES];
    const uint8_t *bytes; /* [steps][columns] */
    const void *below;    /* operand [steps][rows of the first stage][columns], or NULL */
    void *h;              /* operand [steps + 1][hidden][columns]; the caller sets h[0] */
    void *c;              /* real, likewise; with keep, what lies between the first and the last
                             may be in the backend's own order */
    void *dh;             /* operand [steps][hidden][columns]: the head's gradient at h[1] ... */
    void *dx; /* operand [widest stage, or hidden][columns]: the gradient at a stage's input */
    void *dc; /* real [hidden][columns]: the gradient at c */
    void *workspace; /* wgrad_workspace bytes */
    void *entries; /* operand, hidden / table_stride x VOCABULARY x GATES: the gates' table, if they
                      have one, in the order of the backend's prepare_entries; coupled gates have
                      zeros for i */
    struct dropout dropout;
    const struct update_arguments *arguments; /* on the device; dropout reads the update's number */
} cell;

/* The gradient at W x, which dgrad and wgrad read, once a step's backward is done. */
static inline void *stage_raw_gradient(const stage *s) {
    return s->layer_norm ? s->raw : s->dpre;
}

/* --------------------------------------------------------------------------------- updates */

/* What changes from one update to the next; uploaded before each. */
typedef struct update_arguments {
    double learning_rate, head_learning_rate, beta1, beta2, epsilon;
    double muon_learning_rate, muon_momentum;
    double clip;           /* the largest gradient norm; 0: none */
    double gradient_scale; /* 1 / predicted bytes: turns the sum of gradients into their mean */
    double average;        /* the decay of the moving average of the weights */
    double weight_decay;   /* decoupled (Loshchilov, Hutter 2019): weights that decay lose their
                              learning rate * weight_decay of themselves */
    double input_decay;    /* likewise, of what makes the cell's input */
    uint64_t update;       /* from 0 */
} update_arguments;

/* What an update leaves behind; the trainer reads it when it logs. */
typedef struct update_report {
    double loss;          /* nats, summed over predicted bytes since the report was zeroed */
    double label_loss;    /* nats, weighted, of the classes of labelled documents, likewise */
    double label_weight;  /* the sum of these weights */
    double label_wrong;   /* of those where another class was likelier */
    double gradient_norm; /* of the mean gradient, before clipping, in the last update */
    double failed;        /* 1 + the number of the first update whose loss or gradient was not
                             finite; 0 if there was none */
} update_report;

/* Where the generation of text stands. Draw k of stream n is number k of the Philox stream with the
 * seed as its key, purpose PHILOX_GENERATE and n as the counter's third word. */
typedef struct sampling {
    double temperature; /* 0: the likeliest byte, the lowest of equals */
    double top_p; /* draw among the likeliest bytes that reach this share of what top_k leaves */
    int top_k;    /* draw among so many likeliest bytes; 0: all */
    uint64_t seed;
    uint64_t position; /* of the byte that was read last */
    uint64_t prompt;   /* bytes of text that are given, at least 1; draw 0 follows them */
} sampling;

/* A softmax over `classes` of the rows of logits, from row `first` on, and its targets. */
typedef struct softmax_loss {
    int steps, columns;
    int rows; /* of logits and dlogits, in each step */
    int first, classes;
    const void *logits;     /* real [steps][rows][columns] */
    const void *bias;       /* real [classes] */
    const int16_t *targets; /* [steps][columns]; negative: not scored */
    const void *weights;    /* real [steps][columns], of the losses; NULL: 1 */
    double scale;           /* of the gradient, not of the loss */
    void *losses;           /* real [steps][columns] */
    void *wrong;            /* likewise; or NULL */
    void *dlogits;          /* operand, like logits; or NULL */
} softmax_loss;

typedef enum pooling { POOL_LAST, POOL_MEAN, POOL_MAX } pooling;

/* Added to the square of a row's length. */
#define WEIGHT_NORM_EPSILON 1e-6

/* What norm_rows norms: the rows of W, or of the two W whose products are added, together. */
typedef struct normed_rows {
    int count; /* of W */
    const device_layout *layout[2];
    const void *weight[2]; /* real */
    const void *gain;      /* real [gates][units] */
} normed_rows;

/* A dense W and its parts of the arenas, for Muon. The shorter side and the longer one are padded
 * to multiples of column_multiple where they are multiplied. */
typedef struct muon_matrix {
    int rows, columns;                  /* gates are rows one after another */
    const device_layout *square;        /* layout_dense of the padded shorter side, each way */
    void *weights, *momentum, *average; /* real [rows][columns] */
    void *gradient;                     /* real; what it holds is lost */
    void *operands;                     /* operand [rows][columns]; or `weights` */
    void *workspace;                    /* muon_workspace bytes */
} muon_matrix;

/* ---------------------------------------------------------------------------- convolutions
 *
 * A convolution is a product at each position of its output, where tap t of a block reads the input
 * at another position, or nothing:
 *
 *   y[p] = sum over t  W_t x[source[p][t]]      x operand [in_positions][inputs][columns]
 *
 * Columns are images. So filters, strides, dilation and padding of any number of dimensions are all
 * in this table (graph/taps.h), and the sums over taps are those over blocks of a product. */

/* --------------------------------------------------------------------------------- backend */

/* The most that a model may ask of a backend, whose kernels may count in 32 bits. The model checks
 * it before it plans its memory. */
typedef struct backend_limits {
    size_t step_values; /* gates x hidden x columns: of W x, in a step */
    size_t positions;   /* steps x columns */
    size_t weight_rows; /* blocks x gates x out_block: of one W's blocks */
    size_t steps;       /* of a sequence */
} backend_limits;

/* What is done with the device's memory, and when. */
typedef struct memory_operations {
    /* allocate returns NULL if there is not enough. upload returns once `source` may be
     * overwritten, download once `target` is filled. */
    void *(*allocate)(backend *be, size_t bytes);
    void (*release)(backend *be, void *block);
    void (*zero)(backend *be, void *block, size_t bytes);
    void (*copy)(backend *be, void *target, const void *source, size_t bytes);
    /* Copies `rows` rows of `bytes` bytes, which begin every `target_pitch` and `source_pitch`
     * bytes. */
    void (*copy_rows)(backend *be, void *target, size_t target_pitch, const void *source,
                      size_t source_pitch, size_t bytes, size_t rows);
    /* target [columns][rows] = the transpose of source [rows][columns], of operands; both are
     * multiples of 8. */
    void (*transpose)(backend *be, void *target, const void *source, int rows, int columns);
    void (*upload)(backend *be, void *target, const void *source, size_t bytes);
    void (*download)(backend *be, void *target, const void *source, size_t bytes);

    /* Waits until all issued operations are done. Fails with the device's first error, if any. */
    bool (*finish)(backend *be, error *err);

    /* record keeps the operations that issue(argument) issues, without running them; replay runs
     * them. */
    recording *(*record)(backend *be, void (*issue)(void *argument), void *argument);
    void (*replay)(backend *be, recording *r);
    void (*recording_free)(backend *be, recording *r);

    /* mark notes the device's time once everything issued before it is done; in a recording, at
     * each replay. elapsed waits for the marks and returns the seconds from mark `from` to mark
     * `to`. Numbers of marks start at 0. */
    void (*mark)(backend *be, int number);
    double (*elapsed)(backend *be, int from, int to);

    device_layout *(*layout_create)(backend *be, const layout *l);
    void (*layout_free)(backend *be, device_layout *l);
    size_t (*layout_bytes)(const device_layout *l); /* what it takes of the device's memory */

    tap_table *(*taps_create)(backend *be, const tap_table *host);
    void (*taps_free)(backend *be, tap_table *on_device);

    /* Issues what follows to the caller's stream, a cudaStream_t or NULL for the default one, in
     * order with what was issued before; the stream must exist until another is used. Memory may
     * have changed in the meantime. Fails with the first error of the device so far. NULL: no
     * GPU. */
    bool (*use_stream)(backend *be, void *stream, error *err);

    void (*destroy)(backend *be);
} memory_operations;

/* What is done with W. */
typedef struct product_operations {
    /* Products of a block-sparse W over `steps` independent steps.
     *   fprop   y[t] = W x[t]         x operand [steps][inputs][columns]; y of type `type`
     *                                 [steps][rows][columns]
     *   dgrad   dx[t] = W' dy[t]      dy operand, dx of type `type`, 0 in rows that a stride skips
     *   wgrad   dW = sum_t dy[t] x[t]' on the non-zero blocks; dW real. `workspace` has
     *                                 wgrad_workspace bytes; it may be NULL if that is 0 */
    void (*fprop)(backend *be, const device_layout *l, const void *w, const void *x, int steps,
                  int columns, void *y, element type);
    void (*dgrad)(backend *be, const device_layout *l, const void *w, const void *dy, int steps,
                  int columns, void *dx, element type);
    void (*wgrad)(backend *be, const device_layout *l, const void *dy, const void *x, int steps,
                  int columns, void *dw, void *workspace);
    /* Convolutions of a layout with as many taps; `on_device` is what taps_create made of `host`.
     *   fprop   y[p] = sum_t W_t x[source[p][t]]      y operand [out_positions][rows][columns]
     *   dgrad   dx[q] = sum_t W_t' dy[target[q][t]]
     *   wgrad   dW_t = sum_p dy[p] x[source[p][t]]'   dW real */
    void (*conv_fprop)(backend *be, const device_layout *l, const tap_table *on_device,
                       const void *w, const void *x, int columns, void *y);
    void (*conv_dgrad)(backend *be, const device_layout *l, const tap_table *on_device,
                       const void *w, const void *dy, int columns, void *dx);
    void (*conv_wgrad)(backend *be, const device_layout *l, const tap_table *on_device,
                       const void *dy, const void *x, int columns, void *dw);

    size_t (*wgrad_workspace)(backend *be, const layout *l, int steps, int columns);
} product_operations;

typedef struct cell_operations {
    /* forward and backward: the cell over its whole sequence. The others: its parts; stage s and
     * step t count from 0.
     *   prepare_entries    the gates' table -> entries; called after each change of the table,
     *                      before any of the others
     *   activate           raw[t] -> sums[t], out[t]
     *   activate_backward  the gradient at out[t] in dx, raw, sums -> dsums[t], dentry[t], and the
     *                      gradient at W x: with layer norm in raw[t], else in dpre[t]; adds to
     *                      dgain and dbias, which the last step sets
     *   gates              raw[t], c[t] -> sums[t], c[t+1], h[t+1]
     *   gates_backward     dh[t] + dx (dx is left out at the last step unless has_later_steps),
     *                      dc, raw, sums -> dpre[t] if it is kept, dsums[t], dc, and the gradient
     *                      at W x likewise; adds to dgain and dbias
     *   table_backward     dpre or dentry of all steps -> dtable, summed by byte
     * backward fills every dgain, dbias and dtable. The gradients of the weights are left to
     * the caller: wgrad of each stage's stage_raw_gradient and the input of its product. Gradients
     * stop at h[0] and c[0] unless has_earlier_steps. */
    void (*forward)(backend *be, const cell *c);
    void (*backward)(backend *be, const cell *c);
    void (*prepare_entries)(backend *be, const cell *c);
    void (*activate)(backend *be, const cell *c, int s, int t);
    void (*activate_backward)(backend *be, const cell *c, int s, int t);
    void (*gates)(backend *be, const cell *c, int t);
    void (*gates_backward)(backend *be, const cell *c, int t);
    void (*table_backward)(backend *be, const cell *c, int s);

    /* y += x, both operand [rows of l][columns]. */
    void (*add_rows)(backend *be, const device_layout *l, const void *x, int columns, void *y);
    size_t (*sums_bytes)(backend *be, int gates, int columns); /* of one step */
} cell_operations;

/* From the head's logits to the next weights. */
typedef struct update_operations {
    /* For each step and column, loss = -weight log softmax(logits + bias)[target], with the natural
     * logarithm; `wrong`, the weight where another class is likelier, or as likely and before it,
     * else 0; and the gradient of scale x loss. All are 0 where the target is negative, and so is
     * the gradient of the rows past the classes, of which there may be as many as make
     * VOCABULARY. */
    void (*softmax_cross_entropy)(backend *be, const softmax_loss *s);

    /* Finds the next byte, text[position + 1], of each of the first `streams` columns. Within the
     * prompt it is given; after it, it is drawn from softmax((logits + bias) / temperature) and
     * stored. Copies the byte to `bytes`, the cell's next input, and advances the position. logits
     * real [VOCABULARY][columns]; bias real [VOCABULARY]; text [position][streams] */
    void (*sample)(backend *be, const void *logits, const void *bias, int streams, int columns,
                   sampling *state, uint8_t *text, uint8_t *bytes);

    /* out[r] = sum over steps and columns of x[t][r]; x operand, out real. */
    void (*row_sums)(backend *be, const void *x, int steps, int rows, int columns, void *out);

    /* total += x; both real [count]. */
    void (*add)(backend *be, size_t count, void *total, const void *x);

    /* *out += sum of x; x real [count], out double. */
    void (*sum)(backend *be, const void *x, size_t count, double *out);

    /* Features of documents. For each column, combines `out` (double [rows][columns]) with x[t] of
     * the steps first <= t < last: keeps the latest, adds, or keeps the largest. x of type
     * `type`. */
    void (*pool)(backend *be, const void *x, element type, int steps, int rows, int columns,
                 const int32_t *first, const int32_t *last, pooling how, void *out);

    /* Weight norm (Salimans, Kingma 2016). With s = 1 / sqrt(w . w + epsilon) of a row w, with all
     * its blocks in all W,
     *   norm_rows            operand <- gain s w
     *   norm_rows_backward   from the gradient d at that, dgain <- s w . d, and in place of it
     *                        d <- gain s (d - s dgain w)
     * so a row of zeros stays zeros and has a gradient. operand, gradient: one for each W; real but
     * operand. */
    void (*norm_rows)(backend *be, const normed_rows *w, void *const operand[2]);
    void (*norm_rows_backward)(backend *be, const normed_rows *w, void *const gradient[2],
                               void *dgain);

    /* One step of Adam (Kingma, Ba 2014) with the norm of the gradient clipped, decoupled weight
     * decay, and the moving average; then `operands`, unless it is `weights` itself. All real but
     * operands, [count]. `groups` [count / DECAY_GROUP, rounded up] has the flags of each group of
     * weights: GROUP_DECAYS by weight_decay; GROUP_OF_INPUT by input_decay; GROUP_OF_HEAD at
     * head_learning_rate in place of learning_rate; GROUP_OF_MUON of those that count in the norm
     * but stay as they are, and where these are the last groups, moment2 may end before them.
     * NULL: none. If the loss or the gradient is not finite, or was not in an update since `report`
     * was zeroed, only the report changes. */
    void (*adam)(backend *be, size_t count, void *weights, const void *gradient, void *moment1,
                 void *moment2, void *average, void *operands, const uint8_t *groups,
                 const update_arguments *arguments, update_report *report);

    /* The parts of Muon's step that are not products, see muon.c; after Adam, whose report they
     * read: if it has failed, nothing changes.
     *   muon_direction   with d the mean gradient, momentum <- muon_momentum momentum + d, and
     *                    direction, operand [padded shorter side][padded longer side], <- d +
     *                    muon_momentum momentum over its Frobenius norm, zeros where it is padded
     *   muon_polynomial  p <- 3.4445 I - 4.7750 a + 2.0315 a_squared, all operand [side][side]
     *   muon_apply       weights <- weights - muon_learning_rate (0.2 sqrt(longer side) direction +
     *                    weight_decay weights), then average and operands as Adam does */
    void (*muon_direction)(backend *be, const muon_matrix *w, const update_arguments *arguments,
                           const update_report *report, void *direction);
    void (*muon_polynomial)(backend *be, int side, const void *a, const void *a_squared, void *p);
    void (*muon_apply)(backend *be, const muon_matrix *w, const void *direction,
                       const update_arguments *arguments, const update_report *report);

    /* One step of dynamic evaluation (Krause, Kahembwe, Murray, Renals 2018): with g the mean
     * gradient, squares += (1 - average) (g g - squares), then weights -= learning_rate g /
     * (sqrt(squares) + epsilon) + weight_decay (weights - trained), then `operands`, unless it is
     * `weights` itself. Squares of average 1 stay, whatever g is. All real but operands,
     * [count]. */
    void (*adapt)(backend *be, size_t count, void *weights, const void *gradient,
                  const void *trained, void *squares, void *operands,
                  const update_arguments *arguments);

    /* Data parallel: every rank has a model of its own, with the same weights, and some of the
     * streams. join connects the backends of all ranks, each of which calls it once, and sets
     * `ranks`, which must outlive the backend. After it, sum_ranks makes of each rank's real
     * values[count] their sum over the ranks, in an order that depends on the number of ranks and
     * `count` alone: the same bits on every rank. It may be recorded. The ranks wait for each
     * other, so it comes after all that is issued before it. */
    bool (*join)(backend *be, struct ranks *ranks, error *err);
    void (*sum_ranks)(backend *be, size_t count, void *values);

    /* real -> operand */
    void (*round)(backend *be, size_t count, const void *weights, void *operands);
} update_operations;

/* What a backend can do, and what it is. */
struct backend {
    const memory_operations *memory;
    const product_operations *products;
    const cell_operations *cell;
    const update_operations *update;
    const bench_tools *bench; /* NULL without a GPU */

    const char *name;    /* "cpu" or "cuda" */
    char device[96];     /* for people */
    const char *kernels; /* those that a GPU gets, for people; NULL: of a CPU */
    enum precision precision;
    size_t real_size, operand_size; /* bytes */
    int column_multiple;
    int product_multiple; /* of the columns of fprop, dgrad and convolutions */
    size_t available;     /* bytes that were free when the backend was made */
    backend_limits limits;
    struct ranks *ranks; /* NULL before join */
};

/* Whether its arrays are on a GPU; else the host reads them where they are. */
static inline bool backend_on_gpu(const backend *be) {
    return strcmp(be->name, "cuda") == 0;
}

/* What the columns of wgrad are a multiple of. */
static inline int wgrad_multiple(const backend *be) {
    return be->precision == BF16 ? be->column_multiple : be->product_multiple;
}

/* Whether dpre has all steps after backward, since it is the gradient at W x or at what an added
 * table's gradient is summed from; else it is scratch. */
static inline bool keeps_dpre(const stage *g) {
    return !g->layer_norm || g->table_use == TABLE_ADD;
}

/* The CPU backend; never NULL. `threads` 0 means at most as many as OpenMP takes, $OMP_NUM_THREADS
 * or one for each processor: each replay takes the number that was fastest lately. The reference
 * computes in double and is built only for the tests. */
backend *backend_cpu(precision precision, int threads);
backend *backend_cpu_reference(int threads);

/* On the GPU of this number on this host. NULL, with the reason, where there is none or the program
 * was built without CUDA. */
backend *backend_cuda(precision precision, int gpu, error *err);

enum { NCCL_TEXT = 160 };

/* The version of NCCL that joins GPUs, or why it cannot be used. */
const char *backend_nccl_version(char text[NCCL_TEXT]);

/* Whether this machine seems to have a GPU. If it does, why backend_cuda failed is worth saying. */
bool backend_cuda_expected(void);

/* "fp32", "bf16" or "fp64". */
const char *precision_name(precision precision);

/* The cell over its sequence, step after step; see kernels/cell.c. `own` has what is done between
 * products. */
void cell_forward_steps(backend *be, const cell *c, const cell_operations *own);
void cell_backward_steps(backend *be, const cell *c, const cell_operations *own);

/* One step of Muon (Jordan 2024) for a dense W, after Adam's; see kernels/muon.c. muon_side is the
 * padded shorter side. */
void muon_step(backend *be, const muon_matrix *w, const update_arguments *arguments,
               const update_report *report);
int muon_side(const backend *be, int rows, int columns);
size_t muon_workspace(backend *be, int rows, int columns);

#endif
