/* A probe in one file, PREFIX.probe.safetensors: all that applying it to documents of the same
 * model needs.
 *
 *   weights    float64 [models][units + 1], the intercept last, for features as they are
 *   deviation  float64 [units] of the features it was fitted on
 *
 * Metadata: format "smallworld", kind "probe", version, state, pool and model (of the features;
 * model is the checkpoint's checksum; all three empty where the features do not say), C, error,
 * documents, scale, multinomial, classes, and class.0, class.1 ...: their names. Two classes have
 * one model, whose positive side is class.1; more have one model each, the logits of a softmax.
 *
 * The class head of a model that was trained with labels is a probe too, on its last h. */
#ifndef SMALLWORLD_PROBE_SAVED_H
#define SMALLWORLD_PROBE_SAVED_H

#include "core/safetensors.h"
#include "probe/origin.h"

typedef struct saved_probe {
    safetensors file; /* the open file, which holds the arrays */
    origin origin;
    int classes, models;
    const char *name[MOST_CLASSES];
    size_t units;
    const double *weights, *deviation;
    double cost, error;
    double *head;      /* what `weights` and `deviation` are of a model's class head; else NULL */
    double scale;      /* of margins: log-odds are scale x margin, calibrated on validation data */
    int64_t documents; /* number of documents of the error */
} saved_probe;

bool saved_write(const saved_probe *p, const char *path, error *err);
/* Opens a probe's file, or a model's with a class head. */
bool saved_open(saved_probe *p, const char *path, error *err);
void saved_close(saved_probe *p);

/* Refuses a probe of another number of features, or on features of another checkpoint. */
bool saved_check(const saved_probe *p, int64_t units, const char *checksum, const char *path,
                 error *err);

/* The `count` units of a model of `hidden` units that weigh most, largest first: by the largest
 * |weight x deviation| over the probe's models and over the pools that a unit's features are of.
 * Leaves out units whose weights are all 0. Returns the number of units found. */
int saved_top_units(const saved_probe *p, int64_t hidden, size_t *units, int count);

/* Computes the probability [classes] of each class for a document with features x [units]. Returns
 * the class of the largest margin. */
int saved_apply(const saved_probe *p, const float *x, double *probability);

#endif
