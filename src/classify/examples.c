#include "classify/examples.h"

#include "core/log.h"
#include "core/memory.h"
#include "data/classes.h"
#include "probe/dataset.h"

#include <inttypes.h>
#include <stdlib.h>

static const double test_share = 0.2; /* without files for testing */

/* Finds the classes of labelled documents, in the order in which a probe has them. */
static bool find_classes(class_names *k, const corpus *c, const char *path, error *err) {
    const size_t found = classes_find(k, c, NULL);
    if (found == 0) {
        return error_set(
            err,
            "%s: found no label: expected a table (.csv, .jsonl, or .tsv with lines "
            "LABEL<TAB>TEXT), fastText's lines (.ft.txt), or a folder with a folder of "
            "files for each class",
            path);
    }
    if (found > MOST_CLASSES) {
        return error_set(err, "%s: more than %d different labels", path, MOST_CLASSES);
    }
    return found >= 2 ||
           error_set(err, "%s: expected documents of two classes or more, found one", path);
}

/* Finds the class of each document. */
static bool find_class(labelled *p, const class_names *k, const char *path, const char *train,
                       error *err) {
    char room[16];
    p->class = mem_alloc(p->texts->count, sizeof *p->class);
    const char *unknown = classes_number(k, p->texts, p->class, room);
    return !unknown ||
           error_set(err, "%s: label '%s' is not among those of %s", path, unknown, train);
}

/* Names what no error will speak of: documents without a label, and classes without a test. */
static void say_what_lacks(const examples *e) {
    bool tested[DATASET_MAX_CLASSES] = {false};
    if (e->unlabelled > 0) log_line("%zu documents have no label", e->unlabelled);
    for (size_t i = 0; i < e->test.texts->count; i++) tested[e->test.class[i]] = true;
    for (int k = 0; k < e->classes.count; k++) {
        if (tested[k]) continue;
        log_warning("class '%s' is not among the test documents, so no error is measured of it",
                    e->classes.name[k]);
    }
}

/* The labelled documents, of which there must be some; NULL if there are none. */
static corpus *labelled_of(const corpus *c, const char *path, size_t *dropped, error *err) {
    bool *wanted = mem_alloc(c->count, sizeof *wanted);
    for (size_t i = 0; i < c->count; i++) {
        wanted[i] = document_has_label(&c->documents[i]);
        *dropped += !wanted[i];
    }
    corpus *part = corpus_part(c, wanted, true);
    free(wanted);
    if (part->count > 0) return part;
    corpus_free(part);
    error_set(err,
              "%s: expected labelled documents, of which some can be for training and others for "
              "testing",
              path);
    return NULL;
}

bool examples_read(examples *e, const example_files *from, corpus_options how, bool balanced,
                   error *err) {
    char *files[2] = {(char *)(uintptr_t)from->train, (char *)(uintptr_t)from->text};
    char *test = (char *)(uintptr_t)from->test;
    const char *tested = test ? test : from->train;
    how.class_folders = true;
    how.labelled_files = 1;
    *e = (examples){.text = corpus_read(files, from->text ? 2 : 1, &how, err)};
    if (!e->text) return false;
    const size_t rare = classes_drop_rare(e->text, (size_t)from->drop_rare);
    if (rare > 0) {
        log_line("%s: %zu documents of classes with fewer than %" PRId64 " lose their label",
                 from->train, rare, from->drop_rare);
    }
    if (!find_classes(&e->classes, e->text, from->train, err)) return false;
    corpus *tests = test ? corpus_read(&test, 1, &how, err) : corpus_split(e->text, 0, test_share);
    if (!tests) return false;
    if (from->drop_rare > 0) classes_drop_others(&e->classes, tests);
    const size_t shared = corpus_drop(e->text, tests);
    if (shared > 0 && test) {
        log_line("%s: %zu documents that stand in %s too are left out", from->train, shared, test);
    }
    e->train.texts = labelled_of(e->text, from->train, &e->unlabelled, err);
    if (e->train.texts) e->test.texts = labelled_of(tests, tested, &e->unlabelled, err);
    corpus_free(tests);
    if (!e->train.texts || !e->test.texts ||
        !find_class(&e->train, &e->classes, from->train, from->train, err) ||
        !find_class(&e->test, &e->classes, tested, from->train, err)) {
        return false;
    }
    if (balanced) {
        e->weight = mem_alloc((size_t)e->classes.count, sizeof *e->weight);
        classes_balance(e->train.class, e->train.texts->count, e->classes.count, e->weight);
    }
    say_what_lacks(e);
    return true;
}

bool examples_hold_out(examples *e, const char *path, error *err) {
    const corpus *c = e->train.texts;
    uint64_t *group = mem_alloc(c->count, sizeof *group);
    for (size_t i = 0; i < c->count; i++) group[i] = c->documents[i].hash;
    e->is_held = mem_alloc(c->count, sizeof *e->is_held);
    const int lacking =
        split_by_group(e->train.class, group, c->count, e->classes.count, 0, e->is_held);
    free(group);
    if (lacking >= 0) {
        return error_set(err,
                         "%s: expected at least two different documents of each class beside those "
                         "for testing; class '%s' has fewer: --drop-rare N leaves out classes of "
                         "fewer than N",
                         path, e->classes.name[lacking]);
    }
    e->held.texts = corpus_part(c, e->is_held, true);
    return find_class(&e->held, &e->classes, path, path, err);
}

static void free_labelled(labelled *p) {
    corpus_free(p->texts);
    free(p->class);
}

void examples_free(examples *e) {
    classes_free(&e->classes);
    free_labelled(&e->test);
    free_labelled(&e->held);
    free_labelled(&e->train);
    corpus_free(e->text);
    free(e->is_held);
    free(e->weight);
}
