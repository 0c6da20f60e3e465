#include "classify/classifier.h"

#include "core/file.h"
#include "core/memory.h"
#include "core/number.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CLASSIFIER_VERSION "2"

enum { FIXED_ENTRIES = 12 };

bool classifier_write(const classifier *c, const char *folder, error *err) {
    const ngrams *g = &c->ngrams;
    metadata *entries = mem_alloc(FIXED_ENTRIES + (size_t)c->classes, sizeof *entries);
    int count = 0;
    metadata_add(entries, &count, "format", "smallworld");
    metadata_add(entries, &count, "version", CLASSIFIER_VERSION);
    metadata_add(entries, &count, "kind", "classifier");
    metadata_add(entries, &count, "checkpoint", c->checkpoint);
    metadata_add(entries, &count, "probe", c->probe);
    metadata_add(entries, &count, "html_entities", c->html_entities ? "true" : "false");
    metadata_add(entries, &count, "text_column", c->text_column);
    metadata_add(entries, &count, "label_column", c->label_column);
    metadata_add_number(entries, &count, "share", c->share);
    metadata_add_number(entries, &count, "C", g->cost);
    metadata_add_number(entries, &count, "scale", g->scale);
    metadata_add_classes(entries, &count, c->name, c->classes);
    const tensor tensors[] = {{"intercepts", TENSOR_F64, 1, {g->functions}, g->intercepts},
                              {"bucket", TENSOR_I32, 1, {g->count}, g->bucket},
                              {"idf", TENSOR_F32, 1, {g->count}, g->idf},
                              {"weights", TENSOR_F32, 2, {g->count, g->functions}, g->weights}};
    char *path = mem_format("%s/" CLASSIFIER_FILE, folder);
    const bool written = safetensors_write(path, tensors, 4, entries, count, err);
    free(path);
    free(entries);
    return written;
}

static const char *ending_of(const char *kind) {
    return strcmp(kind, "probe") == 0 ? ".probe.safetensors" : ".safetensors";
}

/* Whether a file has the content of one that is mapped. */
static bool has_content(const char *path, const file_map *map) {
    file_map there;
    error ignored;
    if (!file_exists(path) || !file_map_open(&there, path, &ignored)) return false;
    const bool same = there.size == map->size && memcmp(there.bytes, map->bytes, map->size) == 0;
    file_map_close(&there);
    return same;
}

char *classifier_keep(const char *folder, const char *kind, const safetensors *file, error *err) {
    const file_map *map = &file->map;
    char *name = mem_format("%s-%s%s", kind, safetensors_entry(file, "checksum"), ending_of(kind));
    char *path = mem_format("%s/%s", folder, name);
    const bool kept =
        has_content(path, map) || file_write_whole(folder, name, map->bytes, map->size, err);
    free(path);
    if (kept) return name;
    free(name);
    return NULL;
}

/* Whether a name is one that classifier_keep gives. */
static bool is_kept(const char *name, const char *kind) {
    enum { DIGITS = 8 };
    const size_t begin = strlen(kind);
    return strncmp(name, kind, begin) == 0 && name[begin] == '-' &&
           strspn(name + begin + 1, "0123456789abcdef") == DIGITS &&
           strcmp(name + begin + 1 + DIGITS, ending_of(kind)) == 0;
}

void classifier_clean(const classifier *c, const char *folder, char *const earlier[2],
                      const char *given) {
    for (int i = 0; i < 2; i++) {
        const char *name = earlier[i];
        if (!name || strcmp(name, c->checkpoint) == 0 || strcmp(name, c->probe) == 0) continue;
        if (!is_kept(name, i ? "probe" : "model")) continue;
        char *path = mem_format("%s/%s", folder, name);
        if (!given || !file_is_same(path, given)) unlink(path);
        free(path);
    }
}

bool classifier_check_name(const safetensors *file, error *err) {
    const char *slash = strrchr(file->path, '/'), *name = slash ? slash + 1 : file->path;
    const char *sum = safetensors_entry(file, "checksum");
    if (!is_kept(name, "model") && !is_kept(name, "probe")) return true;
    return strncmp(strchr(name, '-') + 1, sum, 8) == 0 ||
           error_set(err, "%s: expected the file of this name's checksum, found one of %s",
                     file->path, sum);
}

static bool check_part(const char *folder, const char *name, error *err) {
    char *path = mem_format("%s/%s", folder, name);
    safetensors file;
    bool whole = safetensors_open(&file, path, err);
    if (whole) {
        whole = classifier_check_name(&file, err);
        safetensors_close(&file);
    }
    free(path);
    return whole;
}

bool classifier_check(const classifier *c, const char *folder, error *err) {
    if (!*c->checkpoint) return true;
    const bool tuned = strcmp(c->probe, c->checkpoint) == 0;
    return check_part(folder, c->checkpoint, err) && (tuned || check_part(folder, c->probe, err));
}

static const char *entry(const classifier *c, const char *key) {
    return safetensors_entry(&c->file, key);
}

/* The tensor of this type and shape; `columns` is 0 for a vector. */
static const void *find(const classifier *c, const char *name, tensor_type type, int64_t rows,
                        int64_t columns) {
    const tensor *t = safetensors_find(&c->file, name);
    if (!t || t->type != type || t->dimensions != (columns ? 2 : 1) || t->shape[0] != rows) {
        return NULL;
    }
    return columns && t->shape[1] != columns ? NULL : t->data;
}

static bool are_finite(const float *x, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        if (!isfinite(x[i])) return false;
    }
    return true;
}

static bool check_ngrams(const ngrams *g) {
    for (int64_t i = 0; i < g->count; i++) {
        if (g->bucket[i] < (i ? g->bucket[i - 1] + 1 : 0) || g->bucket[i] >= NGRAM_BUCKETS) {
            return false;
        }
    }
    for (int f = 0; f < g->functions; f++) {
        if (!isfinite(g->intercepts[f])) return false;
    }
    return are_finite(g->idf, g->count) && are_finite(g->weights, g->functions * g->count);
}

static bool is_below(const char *path) {
    return path[0] != '/' && !strstr(path, "..");
}

/* Whether sizes agree, every number is one and finite, and the checkpoint lies in the folder. */
static bool parse(classifier *c) {
    ngrams *g = &c->ngrams;
    const tensor *buckets = safetensors_find(&c->file, "bucket");
    c->classes = safetensors_classes(&c->file, c->name);
    if (!buckets || buckets->dimensions != 1 || c->classes == 0) return false;
    g->functions = c->classes == 2 ? 1 : c->classes;
    g->count = buckets->shape[0];
    g->bucket = find(c, "bucket", TENSOR_I32, g->count, 0);
    g->idf = find(c, "idf", TENSOR_F32, g->count, 0);
    g->weights = find(c, "weights", TENSOR_F32, g->count, g->functions);
    g->intercepts = find(c, "intercepts", TENSOR_F64, g->functions, 0);
    if (g->count < 1 || g->count > NGRAM_BUCKETS || !g->bucket || !g->idf || !g->weights ||
        !g->intercepts || !check_ngrams(g)) {
        return false;
    }
    c->checkpoint = entry(c, "checkpoint");
    c->probe = entry(c, "probe");
    c->text_column = entry(c, "text_column");
    c->label_column = entry(c, "label_column");
    c->html_entities = strcmp(entry(c, "html_entities"), "true") == 0;
    return number_real(entry(c, "C"), &g->cost) && number_real(entry(c, "scale"), &g->scale) &&
           g->scale > 0 && number_real(entry(c, "share"), &c->share) && c->share >= 0 &&
           c->share <= 1 && is_below(c->checkpoint) && is_below(c->probe);
}

bool classifier_open(classifier *c, const char *folder, error *err) {
    char *path = mem_format("%s/" CLASSIFIER_FILE, folder);
    *c = (classifier){0};
    bool opened = safetensors_open(&c->file, path, err);
    if (opened) {
        opened = safetensors_is(&c->file, "classifier", CLASSIFIER_VERSION,
                                "a classifier; smallworld classify writes one", err) &&
                 (parse(c) || error_set(err, "%s: corrupt: its tensors or classes disagree", path));
        if (!opened) classifier_close(c);
    }
    free(path);
    return opened;
}

void classifier_close(classifier *c) {
    safetensors_close(&c->file);
}

int classifier_join(int classes, const double *by_ngrams, const double *by_features, double share,
                    double *probability) {
    double total = 0, most = -INFINITY;
    int best = 0;
    for (int k = 0; k < classes; k++) {
        double sum = 0; /* `probability` may be one of the two */
        if (share < 1) sum += (1 - share) * log(fmax(by_ngrams[k], 1e-300));
        if (share > 0) sum += share * log(fmax(by_features[k], 1e-300));
        probability[k] = sum;
        if (sum > most) {
            most = sum;
            best = k;
        }
    }
    for (int k = 0; k < classes; k++) total += probability[k] = exp(probability[k] - most);
    for (int k = 0; k < classes; k++) probability[k] /= total;
    return best;
}
