#include "train/labels.h"

#include "core/memory.h"

#include <stdlib.h>
#include <string.h>

static bool number_documents(const options *o, corpus *c, error *err) {
    char room[16];
    free(c->classes);
    c->classes = mem_alloc(c->count, sizeof *c->classes);
    const char *unknown = classes_number(&o->classes, c, c->classes, room);
    return !unknown ||
           error_set(err, "data.valid: no document of data.train has its label '%s'", unknown);
}

static void give_weights(corpus *c, const double *weight, size_t classes) {
    free(c->class_weights);
    c->class_weights = mem_alloc(classes, sizeof *weight);
    memcpy(c->class_weights, weight, classes * sizeof *weight);
}

bool labels_find(options *o, corpus *train, corpus *valid, bool is_share, error *err) {
    const size_t found = classes_find(&o->classes, train, is_share ? valid : NULL);
    o->model.classes = o->classes.count;
    if (o->classes.count == 0) {
        return error_set(err,
                         "data.train: expected documents with 2 to %d different labels for "
                         "train.label_weight, found %s%zu",
                         MOST_CLASSES, found > MOST_CLASSES ? "at least " : "", found);
    }
    if (!number_documents(o, train, err) || (valid && !number_documents(o, valid, err))) {
        return false;
    }
    if (o->train.class_weight == CLASS_WEIGHT_BALANCED) {
        double weight[MOST_CLASSES];
        classes_balance(train->classes, train->count, o->classes.count, weight);
        for (int k = 0; k < o->classes.count; k++) {
            if (weight[k] > 0) continue;
            return error_key(err, "train.class_weight",
                             "balanced has no meaning for class '%s', all documents of which are "
                             "held out",
                             o->classes.name[k]);
        }
        give_weights(train, weight, (size_t)o->classes.count);
        if (valid) give_weights(valid, weight, (size_t)o->classes.count);
    }
    return true;
}

size_t labels_count(const corpus *c) {
    size_t count = 0;
    for (size_t i = 0; c && c->classes && i < c->count; i++) count += c->classes[i] >= 0;
    return count;
}

int64_t labels_hash(const options *o, const corpus *c) {
    uint64_t hash = hash_start;
    for (int k = 0; k < o->classes.count; k++) {
        const char *name = o->classes.name[k];
        hash = hash_bytes(hash, (const uint8_t *)name, strlen(name) + 1);
    }
    for (size_t i = 0; c->classes && i < c->count; i++) {
        const uint64_t class = (uint64_t)(c->classes[i] + 1);
        hash = hash_words(hash, &class, 1);
    }
    return (int64_t)(hash_end(hash) >> 1);
}
