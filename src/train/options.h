/* The options of a run: the structs that a config file, `--set` and flags fill, and the table of
 * their keys. */
#ifndef SMALLWORLD_TRAIN_OPTIONS_H
#define SMALLWORLD_TRAIN_OPTIONS_H

#include "core/config.h"
#include "core/safetensors.h"
#include "data/classes.h"
#include "model/model.h"

typedef enum device_choice { DEVICE_AUTO, DEVICE_CPU, DEVICE_CUDA } device_choice;
typedef enum precision_choice { PRECISION_AUTO, PRECISION_FP32, PRECISION_BF16 } precision_choice;
typedef enum optimizer_choice { OPTIMIZER_ADAM, OPTIMIZER_MUON } optimizer_choice;
typedef enum lr_schedule { SCHEDULE_LINEAR, SCHEDULE_COSINE, SCHEDULE_CONSTANT } lr_schedule;

#define DEVICES    "auto cpu cuda"
#define PRECISIONS "auto fp32 bf16"
#define OPTIMIZERS "adam muon"
#define SCHEDULES  "linear cosine constant"

enum { CLASS_WEIGHT_NONE, CLASS_WEIGHT_BALANCED };
#define CLASS_WEIGHTS "none balanced"

enum { STREAM_GROUP = 4 }; /* streams that share draws of dropout; no rank has fewer */

typedef struct run_options {
    int device, precision; /* device_choice, precision_choice */
    int64_t threads;       /* 0: one for each processor */
    ranks *ranks;          /* the processes that share the run, or NULL; no key of the config */
} run_options;

typedef struct data_options {
    config_list train, valid, exclude;
    double valid_fraction;
    corpus_options reading; /* how documents are read */

    /* No keys: text that is read already, in place of files. The run frees it. */
    corpus *given_train, *given_valid;
} data_options;

typedef struct train_options {
    int64_t batch, bptt, recompute;
    int64_t steps; /* limits of the run; 0 means none */
    double epochs, minutes;
    int optimizer; /* optimizer_choice */
    double lr, lr_final, lr_head, muon_lr, muon_momentum;
    int schedule; /* lr_schedule */
    int64_t warmup;
    double beta1, beta2, epsilon, weight_decay, input_decay, clip, average;
    double text_weight, label_weight; /* of the losses; label_weight 0: no class head */
    int class_weight;                 /* of CLASS_WEIGHTS */
    int64_t log_every, valid_every, valid_bytes;
    double checkpoint_minutes;
    char *init;
} train_options;

typedef struct options {
    config config; /* records where each value was set */
    run_options run;
    data_options data;
    model_config model;
    double parameters; /* the target that width or density were computed for; 0: none */
    train_options train;
    class_names classes; /* that a model learns, as many as model.classes; no key: they come with
                            the text, or the checkpoint */
} options;

extern const config_key option_keys[];
extern const int option_count;

/* The first line of every config.yaml that a run writes. */
#define RUN_CONFIG_HEAD                                                                            \
    "# The resolved config of the run in this folder, written by smallworld train.\n"

/* Sets all defaults. options_free frees the strings and lists. */
void options_begin(options *o);
void options_free(options *o);

/* Loads a config file, applies the `--set` assignments, and checks keys against each other.
 * Relative file names in the config are looked up in the current folder first, then in the config's
 * own folder. */
bool options_load(options *o, const char *file, char *const *assignments, int count, error *err);
bool options_check(options *o, error *err);

/* Like model_graphs, but its error also says where the key was set. */
bool options_graphs(const options *o, graph *graphs[CELL_MAX_STAGES], error *err);

/* What a model is made for that is trained. */
model_use options_use(const options *o);

/* The first function writes the model's keys to `entries`, which has room for `option_count`, and
 * returns their number. The second one reads them back. */
int options_to_metadata(const options *o, metadata *entries);
bool options_from_metadata(options *o, const safetensors *file, error *err);

/* The first key of the cell or its patterns in which two models differ, or NULL. */
const char *options_other_structure(const options *ours, const options *theirs);

/* Makes the backend that `run` asks for, of the same kind on all ranks, but does not join them. For
 * device auto, a warning on stderr says why a GPU that seems to exist is not used. Returns NULL
 * only for device cuda, or where ranks differ. */
backend *options_backend(const run_options *run, error *err);

#endif
