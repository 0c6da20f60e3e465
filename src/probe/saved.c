#include "probe/saved.h"

#include "core/json.h"
#include "core/memory.h"
#include "core/number.h"
#include "probe/calibration.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PROBE_VERSION "1"

enum { FIXED_ENTRIES = 13 };

/* ---------------------------------------------------------------------------------- writing */

bool saved_write(const saved_probe *p, const char *path, error *err) {
    metadata *entries = mem_alloc(FIXED_ENTRIES + (size_t)p->classes, sizeof *entries);
    int count = 0;
    char text[32];
    bool known = p->origin.known;
    char pools[ORIGIN_POOLS_TEXT];
    metadata_add(entries, &count, "format", "smallworld");
    metadata_add(entries, &count, "version", PROBE_VERSION);
    metadata_add(entries, &count, "kind", "probe");
    metadata_add(entries, &count, "state", known ? origin_state_name(p->origin.state) : "");
    metadata_add(entries, &count, "pool", known ? origin_pools_text(&p->origin.pools, pools) : "");
    metadata_add(entries, &count, "model", known ? p->origin.model : "");
    metadata_add_number(entries, &count, "C", p->cost);
    metadata_add_number(entries, &count, "scale", p->scale);
    metadata_add_number(entries, &count, "error", p->error);
    snprintf(text, sizeof text, "%" PRId64, p->documents);
    metadata_add(entries, &count, "documents", text);
    if (p->models > 1) metadata_add(entries, &count, "multinomial", "true");
    metadata_add_classes(entries, &count, p->name, p->classes);
    const tensor tensors[] = {
        {"weights", TENSOR_F64, 2, {p->models, (int64_t)p->units + 1}, p->weights},
        {"deviation", TENSOR_F64, 1, {(int64_t)p->units}, p->deviation}};
    bool written = safetensors_write(path, tensors, 2, entries, count, err);
    free(entries);
    return written;
}

/* ---------------------------------------------------------------------------------- reading */

static const char *entry(const saved_probe *p, const char *key) {
    return safetensors_entry(&p->file, key);
}

static bool all_finite(const double *values, size_t count) {
    for (size_t i = 0; i < count; i++) {
        if (!isfinite(values[i])) return false;
    }
    return true;
}

/* Whether the sizes of tensors and classes agree and every number is one and finite. */
static bool parse(saved_probe *p) {
    const tensor *weights = safetensors_find(&p->file, "weights");
    const tensor *deviation = safetensors_find(&p->file, "deviation");
    if (!weights || !deviation || weights->type != TENSOR_F64 || weights->dimensions != 2 ||
        deviation->type != TENSOR_F64 || deviation->dimensions != 1 || deviation->shape[0] < 1 ||
        weights->shape[1] != deviation->shape[0] + 1) {
        return false;
    }
    p->classes = safetensors_classes(&p->file, p->name);
    if (p->classes == 0) return false;
    p->models = p->classes == 2 ? 1 : p->classes;
    if (weights->shape[0] != p->models) return false;
    p->units = (size_t)deviation->shape[0];
    p->weights = weights->data;
    p->deviation = deviation->data;
    if (!all_finite(p->weights, (size_t)p->models * (p->units + 1)) ||
        !all_finite(p->deviation, p->units)) {
        return false;
    }
    if (!number_real(entry(p, "C"), &p->cost) || !number_real(entry(p, "error"), &p->error) ||
        !number_integer(entry(p, "documents"), &p->documents)) {
        return false;
    }
    const bool multinomial = strcmp(entry(p, "multinomial"), "true") == 0;
    if (multinomial != (p->models > 1) || !number_real(entry(p, "scale"), &p->scale) ||
        !(p->scale > 0)) {
        return false;
    }
    p->origin.known = *entry(p, "state") != '\0';
    snprintf(p->origin.model, sizeof p->origin.model, "%.15s", entry(p, "model"));
    return !p->origin.known || (origin_parse_state(entry(p, "state"), &p->origin.state) &&
                                origin_parse_pools(entry(p, "pool"), &p->origin.pools));
}

/* Adds the function of a class, times `sign`, to one [units + 1]; the head reads every stride-th
 * unit. */
static void add_function(const float *weight, size_t read, size_t stride, float bias, double sign,
                         double *function, size_t units) {
    for (size_t u = 0; u < read; u++) function[u * stride] += sign * weight[u];
    function[units] += sign * bias;
}

/* Makes a probe of a model's class head. Of two classes the difference decides. */
static bool parse_class_head(saved_probe *p) {
    const tensor *weight = safetensors_find(&p->file, "class.weight");
    const tensor *bias = safetensors_find(&p->file, "class.bias");
    int64_t hidden, stride;
    p->classes = safetensors_classes(&p->file, p->name);
    if (!weight || !bias || weight->type != TENSOR_F32 || bias->type != TENSOR_F32 ||
        weight->dimensions != 2 || bias->dimensions != 1 || p->classes == 0 ||
        weight->shape[0] != p->classes || bias->shape[0] != p->classes ||
        !number_integer(entry(p, "model.hidden"), &hidden) ||
        !number_integer(entry(p, "model.output_stride"), &stride) || stride < 1 || hidden < 1 ||
        weight->shape[1] != hidden / stride) {
        return false;
    }
    const size_t read = (size_t)weight->shape[1];
    p->units = (size_t)hidden;
    p->models = p->classes == 2 ? 1 : p->classes;
    p->scale = 1;
    p->error = NAN;
    const size_t functions = (size_t)p->models * (p->units + 1);
    p->head = mem_alloc(functions + p->units, sizeof *p->head);
    for (int k = 0; k < p->classes; k++) {
        double *function = p->head + (p->models == 1 ? 0 : (size_t)k * (p->units + 1));
        add_function((const float *)weight->data + (size_t)k * read, read, (size_t)stride,
                     ((const float *)bias->data)[k], p->models == 1 && k == 0 ? -1 : 1, function,
                     p->units);
    }
    for (size_t u = 0; u < p->units; u++) p->head[functions + u] = 1;
    p->weights = p->head;
    p->deviation = p->head + functions;
    p->origin = (struct origin){
        .known = true, .state = FEATURE_HIDDEN, .pools = {.count = 1, .kinds = {POOL_LAST}}};
    snprintf(p->origin.model, sizeof p->origin.model, "%.15s", entry(p, "checksum"));
    return all_finite(p->weights, functions);
}

bool saved_open(saved_probe *p, const char *path, error *err) {
    *p = (saved_probe){0};
    if (!safetensors_open(&p->file, path, err)) return false;
    const bool is_model = strcmp(entry(p, "kind"), "model") == 0;
    if (is_model && !safetensors_metadata(&p->file, "classes")) {
        error_set(
            err,
            "%s: not a probe, but a model without classes; expected one that was trained with "
            "train.label_weight, or a probe of smallworld probe --out PREFIX",
            path);
        saved_close(p);
        return false;
    }
    const bool opened = safetensors_is(&p->file, is_model ? "model" : "probe", PROBE_VERSION,
                                       "a probe; smallworld probe --out PREFIX writes one", err) &&
                        ((is_model ? parse_class_head(p) : parse(p)) ||
                         error_set(err, "%s: corrupt: its tensors or classes disagree", path));
    if (!opened) saved_close(p);
    return opened;
}

void saved_close(saved_probe *p) {
    free(p->head);
    safetensors_close(&p->file);
}

bool saved_check(const saved_probe *p, int64_t units, const char *checksum, const char *path,
                 error *err) {
    if ((int64_t)p->units != units) {
        return error_set(err, "%s: a probe on %zu units; the checkpoint has %" PRId64, path,
                         p->units, units);
    }
    if (p->origin.known && checksum && strcmp(p->origin.model, checksum) != 0) {
        return error_set(err,
                         "%s: fitted on features of another checkpoint (checksum %s; this one's is "
                         "%s)",
                         path, p->origin.model, checksum);
    }
    return true;
}

static double feature_size(const saved_probe *p, size_t feature) {
    double largest = 0;
    for (int k = 0; k < p->models; k++) {
        largest = fmax(largest, fabs(p->weights[(size_t)k * (p->units + 1) + feature]));
    }
    return largest * p->deviation[feature];
}

static double unit_size(const saved_probe *p, size_t hidden, size_t unit) {
    double largest = 0;
    for (size_t f = unit; f < p->units; f += hidden) largest = fmax(largest, feature_size(p, f));
    return largest;
}

int saved_top_units(const saved_probe *p, int64_t hidden, size_t *units, int count) {
    const size_t all = (size_t)hidden;
    int found = 0;
    for (size_t u = 0; u < all; u++) {
        double size = unit_size(p, all, u);
        if (!(size > 0)) continue;
        int at = found;
        while (at > 0 && unit_size(p, all, units[at - 1]) < size) at--;
        if (at == count) continue;
        if (found < count) found++;
        memmove(units + at + 1, units + at, (size_t)(found - 1 - at) * sizeof *units);
        units[at] = u;
    }
    return found;
}

int saved_apply(const saved_probe *p, const float *x, double *probability) {
    double margin[MOST_CLASSES];
    for (int k = 0; k < p->models; k++) {
        const double *w = p->weights + (size_t)k * (p->units + 1);
        margin[k] = w[p->units];
        for (size_t u = 0; u < p->units; u++) margin[k] += w[u] * x[u];
    }
    margin_probabilities(margin, p->models, true, p->scale, probability);
    return margin_class(margin, p->models);
}
