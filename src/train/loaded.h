/* A saved model as commands use it: the checkpoint, its backend, and room for what it reads. */
#ifndef SMALLWORLD_TRAIN_LOADED_H
#define SMALLWORLD_TRAIN_LOADED_H

#include "train/checkpoint.h"

/* What a user gave instead of a config's or checkpoint's device, precision, minibatch and threads,
 * as text, or NULL; and the processes that share the work, or NULL. */
typedef struct overrides {
    const char *device, *precision, *batch, *threads;
    ranks *ranks;
} overrides;

/* Sets the options that were given. */
bool overrides_apply(const overrides *given, options *o, error *err);

/* The backend for a probe: of this process alone, in fp32, whatever precision the device prefers.
 * NULL on failure. */
backend *overrides_backend(const overrides *given, error *err);

/* A checkpoint with the options applied, its backend and its model. The caller frees it with
 * loaded_free. */
typedef struct loaded_model {
    checkpoint checkpoint;
    model_use use;    /* of the model that loaded_make makes: inference unless set */
    bool batch_given; /* whether --batch was given */
    backend *be;
    model *m;
} loaded_model;

/* Upper limits of the text that a model will read: streams, and bytes over all streams. */
typedef struct text_limits {
    int64_t streams, bytes;
} text_limits;

extern const text_limits any_text;

/* loaded_open opens the checkpoint; loaded_make makes the backend and the model. With `batch` or
 * `steps` 0 they are as in training, but limited by the text's size, and by 4 GiB plus 16 times the
 * file's size for activations, because a checkpoint may come from a stranger. If loaded_make fails,
 * the caller frees all by loaded_free. */
bool loaded_open(loaded_model *loaded, const char *path, const overrides *given, error *err);
bool loaded_make(loaded_model *loaded, int batch, int steps, text_limits text, error *err);

/* Does both, for any text. */
bool loaded_load(loaded_model *loaded, const char *path, const overrides *given, int batch,
                 int steps, error *err);
void loaded_free(loaded_model *loaded);

#endif
