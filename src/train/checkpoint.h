/* Checkpoints: the model alone, which is all that eval, features and generate need, and a run's
 * state, which is what resuming needs. Both are safetensors files (core/safetensors.h), written
 * atomically and verified when read. Neither records a host or a path; the model records no time.
 *
 * MODEL.safetensors. Metadata: format "smallworld", kind "model", version, framing, step, and the
 * model's config keys ("model.hidden" ...); of a model with a class head also classes, class.0,
 * class.1 ...: their names. Tensors, float32: the averaged weights by the names and
 * shapes in model/model.h; int32: "pattern.STAGE" [blocks][2], each block's output and input node,
 * in the order of the weights' blocks.
 *
 * last.state. Kind "state". Tensors, float32: weights, moment1, moment2, average, each an arena in
 * the parameter table's order; h, c [layers * hidden][batch]; and the patterns. Metadata: the
 * precision that was in force, and the run_state below. */
#ifndef SMALLWORLD_TRAIN_CHECKPOINT_H
#define SMALLWORLD_TRAIN_CHECKPOINT_H

#include "train/options.h"

#define CHECKPOINT_VERSION "1"
#define FRAMING            "\\n TEXT " /* how a document is framed, with C escapes */

/* Which tasks after the last update are still to be done. */
enum pending { PENDING_NOTHING, PENDING_ALL, PENDING_METRICS };

/* The position of a run between two updates. */
typedef struct run_state {
    int64_t step;         /* updates done */
    int64_t train_bytes;  /* size of the training text */
    int64_t train_text;   /* corpus_hash of the training text */
    int64_t train_labels; /* labels_hash of the training text, or 0 */
    int64_t valid_text;   /* corpus_hash of the validation text, or 0 */
    int64_t valid_labels; /* labels_hash of it, or 0 */
    int64_t total;        /* updates that fit into train.minutes, as planned last; INT64_MAX
                              until known */
    double seconds;       /* time spent on updates */
    double elapsed;       /* time since the first update, validation and saving included; in older
                              states that lack it, `seconds` */
    double minutes;       /* train.minutes when `total` was found, or 0 */
    double loss;          /* sum in nats since the last line of metrics */
    double label_loss;    /* likewise of the classes, weighted */
    double label_weight;  /* the sum of these weights */
    int64_t loss_updates; /* updates since then */
    double gradient_norm; /* of the last update; NaN before the first */
    double valid_bpc;     /* of the last validation; NaN before the first */
    double best_bpc;      /* of the best validation; NaN before the first */
    double valid_label_loss, valid_label_error; /* like valid_bpc, of the documents' classes */
    double best_label_loss, best_label_error;   /* like best_bpc */
    int64_t best_step;     /* the step of the best validation; 0 before the first */
    int64_t metrics_bytes; /* the length of metrics.jsonl */
    int64_t pending;       /* of enum pending */
    bool validated;        /* whether there was a validation since the last line of metrics */
    bool finished;
} run_state;

/* Writes a model file of these values, an arena; of NULL: in training of the moving average of the
 * weights, otherwise of the weights. */
bool checkpoint_save_model(const model *m, const float *values, const options *o, int64_t step,
                           const char *path, error *err);

/* An open model file, or the last.safetensors of a run folder, with its options (defaults where it
 * records none) and its patterns. */
typedef struct checkpoint {
    safetensors file;
    options options;
    graph *graphs[CELL_MAX_STAGES]; /* NULL once a model owns it */
} checkpoint;

bool checkpoint_open(checkpoint *c, const char *path, error *err);

/* The model file that a path stands for: itself, or last.safetensors in a folder, which must be
 * there. The caller frees it. */
char *checkpoint_file(const char *path, error *err);
void checkpoint_close(checkpoint *c);

/* Makes the model and loads its weights. May be called again for another one. */
model *checkpoint_model(checkpoint *c, backend *be, int batch, int steps, model_use use,
                        error *err);

/* The number of updates that the file records. */
int64_t checkpoint_step(const checkpoint *c);

/* The file's checksum, eight hexadecimal digits, which identifies the model. */
const char *checkpoint_checksum(const checkpoint *c);

/* Refuses tensors with numbers that are not finite. */
bool checkpoint_check_weights(const checkpoint *c, error *err);

/* Loads the weights into an existing model, for train.init. A class head is loaded if it is of the
 * same classes, else it begins as zeros. The error names the first tensor whose shape differs. */
bool checkpoint_load_weights(const checkpoint *c, model *m, const class_names *classes, error *err);

/* Saves a state. It holds the streams of all ranks of the model's backend, so every rank must call
 * this. Rank 0 writes the file. Any number of ranks may load it. */
bool checkpoint_save_state(const model *m, const run_state *state, const char *path, error *err);

/* The first function opens a state and checks its numbers; the caller closes it with
 * safetensors_close. The second one reads the patterns of a model of `config`, which the caller
 * owns. The third one loads the rest into that model. They refuse the state of another model and of
 * another precision. */
bool checkpoint_open_state(safetensors *file, run_state *state, const char *path, error *err);
bool checkpoint_state_graphs(const safetensors *file, const model_config *config,
                             graph *graphs[CELL_MAX_STAGES], error *err);
bool checkpoint_load_state(const safetensors *file, model *m, error *err);

#endif
