/* Labels as a second target: a class head learns what documents are, is validated on whole
 * documents, is kept with its names, and is a probe that says the same. */
#include "runs.h"

#include "core/memory.h"
#include "probe/features.h"
#include "probe/saved.h"
#include "train/labels.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static char *labelled, *unseen; /* text with labels to train on, and more of it */

static const char *const usual[] = {"the", "cat", "dog", "sat", "ran", "on", "a", "mat"};

/* Documents whose class is the one word that no other class has, somewhere among usual ones; each
 * `every`-th has no label. */
static void write_classes(const char *path, const char *const *class, int classes, int count,
                          int every, uint64_t seed) {
    FILE *out = fopen(path, "wb");
    assert_non_null(out);
    random_restart(seed);
    for (int i = 0; i < count; i++) {
        const char *mine = class[random_below((uint64_t)classes)];
        const uint64_t words = 4 + random_below(5), place = random_below(words);
        fprintf(out, "%s\t", every && i % every == 0 ? "-1" : mine);
        for (uint64_t n = 0; n < words; n++) {
            fprintf(out, "%s ", n == place ? mine : usual[random_below(8)]);
        }
        fputc('\n', out);
    }
    assert_int_equal(fclose(out), 0);
}

static int write_labelled(void **state) {
    static const char *const two[] = {"good", "bad"};
    if (write_files(state)) return 1;
    labelled = path_of("labelled.tsv");
    unseen = path_of("unseen.tsv");
    write_classes(labelled, two, 2, 400, 7, 3);
    write_classes(unseen, two, 2, 60, 0, 4);
    return 0;
}

static char *settings(const char *more) {
    return mem_format("data.train=%s data.valid=%s model.cell=mlstm model.norm=weight "
                      "model.degree=null model.graph=dense train.label_weight=1 train.lr=0.01 %s",
                      labelled, unseen, more);
}

static void run_labelled(const char *name, train_start start, const char *more) {
    char *all = settings(more);
    run(name, start, all);
    free(all);
}

static void assert_refused(const char *more, const char *expected) {
    char *all = settings(more);
    assert_run_fails("refused", TRAIN_OVERWRITE, all, expected);
    free(all);
}

/* ---------------------------------------------------------------------------------- learning */

typedef struct answers {
    const saved_probe *probe;
    const corpus *c;
    const double *weight; /* [classes] of a document by its class, or NULL */
    double wrong, loss, all;
    double close; /* weight of documents with two classes that rounding may exchange */
} answers;

static void take(void *argument, size_t document, const float *row) {
    answers *a = argument;
    double probability[MOST_CLASSES];
    char room[16];
    const int said = saved_apply(a->probe, row, probability);
    const char *label = corpus_label(a->c, document, room);
    int rivals = 0;
    for (int k = 0; k < a->probe->classes; k++) {
        rivals += k != said && probability[k] > probability[said] - 5e-3;
    }
    for (int k = 0; k < a->probe->classes; k++) {
        if (strcmp(a->probe->name[k], label) != 0) continue;
        const double weight = a->weight ? a->weight[k] : 1;
        if (k != said) a->wrong += weight;
        if (rivals) a->close += weight;
        a->loss -= weight * log(probability[k]);
        a->all += weight;
    }
}

/* What the class head says as a probe on features must be what validation found. */
static void check_probe(const char *name, char *text, const double *weight) {
    loaded l;
    saved_probe probe;
    error err;
    load(&l, name, 16, FEATURES_STEPS);
    if (!saved_open(&probe, run_file(name, "last.safetensors"), &err)) fail_msg("%s", err.text);
    assert_true(saved_check(&probe, l.m->config.hidden, checkpoint_checksum(&l.c), "", &err));
    corpus *c = read_corpus(text);
    answers a = {.probe = &probe, .c = c, .weight = weight};
    const feature_options how = {.state = probe.origin.state, .pools = probe.origin.pools};
    if (!features_each(l.m, c, &how, take, &a, &err)) fail_msg("%s", err.text);
    const double rounding = weight ? 1e-6 : 1e-9; /* weights are floats where a model reads them */
    assert_true(a.close < 0.1 * a.all);
    assert_true(fabs(a.wrong / a.all - metric(name, "valid_label_error", true)) <
                a.close / a.all + rounding);
    assert_true(fabs(a.loss / a.all - metric(name, "valid_label_loss", true)) < 2e-3);
    corpus_free(c);
    saved_close(&probe);
    unload(&l);
}

static void test_learning(void **state) {
    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        const char *more = kind ? "train.steps=300 train.valid_every=100 model.output_stride=2"
                                : "train.steps=300 train.valid_every=100 model.layers=2 "
                                  "train.recompute=2 model.coupled_gates=true";
        run_labelled("learns", TRAIN_OVERWRITE, more);
        assert_true(metric("learns", "label_loss", false) > 0.6);
        assert_true(metric("learns", "valid_label_error", true) < 0.1);
        assert_true(metric("learns", "valid_label_loss", true) < 0.3);
        check_probe("learns", unseen, NULL);
    }
}

/* More classes than a logistic function tells apart; their labels are numbers. */
static void test_many_classes(void **state) {
    (void)state;
    static const char *const three[] = {"10", "9", "200"};
    char *text = path_of("three.tsv"), *more = path_of("more.tsv");
    write_classes(text, three, 3, 500, 0, 5);
    write_classes(more, three, 3, 50, 0, 6);
    char *all =
        mem_format("data.train=%s data.valid=%s train.steps=600 train.valid_every=300", text, more);
    run_labelled("three", TRAIN_OVERWRITE, all);
    assert_true(metric("three", "valid_label_error", true) < 0.2);
    check_probe("three", more, NULL);
    safetensors file;
    const char *name[MOST_CLASSES];
    open_run(&file, "three", "best.safetensors");
    assert_int_equal(safetensors_classes(&file, name), 3);
    assert_string_equal(name[0], "9"); /* in the order of numbers */
    assert_string_equal(name[1], "10");
    assert_string_equal(name[2], "200");
    safetensors_close(&file);
    free(all);
}

/* About a quarter of the documents weighs as much as the rest, in training and in validation. */
static void test_class_weight(void **state) {
    (void)state;
    static const char *const four[] = {"good", "good", "good", "bad"};
    char *text = path_of("four.tsv");
    double errors[2], weight[2] = {0}; /* of bad; of good */
    write_classes(text, four, 4, 400, 0, 7);
    corpus *c = read_corpus(text);
    for (size_t i = 0; i < c->count; i++) weight[*corpus_label(c, i, NULL) == 'g'] += 1;
    for (int k = 0; k < 2; k++) weight[k] = (double)c->count / (2 * weight[k]);
    corpus_free(c);
    for (int balanced = 0; balanced < 2; balanced++) {
        char *all =
            mem_format("data.train=%s train.steps=80 train.valid_every=80 train.class_weight=%s",
                       text, balanced ? "balanced" : "none");
        run_labelled("weighs", TRAIN_OVERWRITE, all);
        check_probe("weighs", unseen, balanced ? weight : NULL);
        errors[balanced] = metric("weighs", "valid_label_error", true);
        free(all);
    }
    assert_true(errors[1] < errors[0]); /* the rare class is found */
}

/* best.safetensors goes by the labels' errors, and where these are level by their loss. */
static void test_best(void **state) {
    (void)state;
    run_labelled("best", TRAIN_OVERWRITE,
                 "train.steps=200 train.valid_every=10 train.log_every=10 train.text_weight=0 "
                 "train.label_weight=10 train.lr=1 train.warmup=200");
    size_t size;
    char *text = read_run_file("best", "metrics.jsonl", &size);
    double least = INFINITY, fewest = INFINITY, step = 0, loss, wrong;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        assert_true(find_number(line, "valid_label_loss", &loss));
        assert_true(find_number(line, "valid_label_error", &wrong));
        if (wrong > fewest || (wrong == fewest && loss >= least)) continue;
        least = loss;
        fewest = wrong;
        assert_true(find_number(line, "step", &step));
    }
    assert_true(step < 200); /* the rate rises until learning undoes itself */
    safetensors file;
    open_run(&file, "best", "best.safetensors");
    assert_true(strtod(safetensors_metadata(&file, "step"), NULL) == step);
    safetensors_close(&file);
    free(text);
}

/* ------------------------------------------------------------------------- resuming, starting */

static void test_resume(void **state) {
    (void)state;
    static const char *const kinds[] = {"train.recompute=2 model.dropout=0.2",
                                        "run.precision=bf16 train.text_weight=0.5"};
    for (int kind = 0; kind < 2; kind++) {
        run_labelled("whole", TRAIN_OVERWRITE, kinds[kind]);
        signal_step = 10; /* between two lines of metrics */
        run_labelled("stopped", TRAIN_OVERWRITE, kinds[kind]);
        run_labelled("stopped", TRAIN_RESUME, kinds[kind]);
        assert_same_run("whole", "stopped");
    }
    /* Other labels of the same text. */
    size_t size;
    char *text = read_text(labelled, &size), *changed = path_of("changed.tsv");
    FILE *out = fopen(changed, "wb");
    fputs(strncmp(text, "-1", 2) == 0 ? "good" : "-1", out); /* of the first document */
    const char *rest = strchr(text, '\t');
    const size_t left = size - (size_t)(rest - text);
    assert_int_equal(fwrite(rest, 1, left, out), left);
    assert_int_equal(fclose(out), 0);
    signal_step = 10;
    run_labelled("stopped", TRAIN_OVERWRITE, "");
    assert_int_equal(rename(changed, labelled), 0);
    char *all = settings("");
    assert_run_fails("stopped", TRAIN_RESUME, all, "trained with other labels");
    free(all);
    free(text);
    assert_int_equal(write_labelled(state), 0);
}

static const tensor *tensor_of(safetensors *file, const char *name, const char *which) {
    open_run(file, name, "last.safetensors");
    const tensor *t = safetensors_find(file, which);
    assert_non_null(t);
    return t;
}

/* The largest difference of two tensors of a shape; NULL: zeros. Averages are rounded. */
static double far_apart(const tensor *a, const tensor *b) {
    const float *x = a ? a->data : NULL, *y = b->data;
    double most = 0;
    if (a) assert_int_equal(tensor_bytes(a), tensor_bytes(b));
    for (size_t i = 0; i < tensor_bytes(b) / sizeof *y; i++) {
        most = fmax(most, fabs((x ? (double)x[i] : 0) - (double)y[i]));
    }
    return most;
}

/* A model of text gets a head; one of the same classes keeps its head, and of others gets a new
 * one; without labels the head goes. */
static void test_init(void **state) {
    (void)state;
    static const char frozen[] = "train.steps=1 train.lr=1e-30 train.warmup=0";
    run_labelled("text", TRAIN_OVERWRITE, "train.label_weight=0 train.steps=60");
    run_labelled("learns", TRAIN_OVERWRITE, "train.steps=60");
    safetensors before, after;
    for (int kind = 0; kind < 2; kind++) {
        const char *source = kind ? "learns" : "text";
        char *more = mem_format("%s train.init=%s", frozen, run_file(source, "last.safetensors"));
        run_labelled("started", TRAIN_OVERWRITE, more);
        free(more);
        const tensor *t = tensor_of(&before, source, "head.weight");
        assert_true(far_apart(t, tensor_of(&after, "started", "head.weight")) < 1e-6);
        const tensor *head = safetensors_find(&after, "class.weight");
        if (kind) assert_true(far_apart(safetensors_find(&before, "class.weight"), head) < 1e-6);
        assert_true(far_apart(NULL, head) < 1e-6 || kind);
        assert_true(far_apart(NULL, head) > 1e-3 || !kind);
        safetensors_close(&before);
        safetensors_close(&after);
    }
    static const char *const others[] = {"north", "south", "west"};
    char *text = path_of("others.tsv"), *more = path_of("others2.tsv");
    write_classes(text, others, 3, 200, 0, 8);
    write_classes(more, others, 3, 40, 0, 9);
    char *all = mem_format("%s train.init=%s data.train=%s data.valid=%s", frozen,
                           run_file("learns", "last.safetensors"), text, more);
    run_labelled("started", TRAIN_OVERWRITE, all);
    assert_int_equal(tensor_of(&after, "started", "class.weight")->shape[0], 3);
    safetensors_close(&after);
    free(all);
    all = mem_format("%s train.label_weight=0 train.init=%s", frozen,
                     run_file("learns", "last.safetensors"));
    run_labelled("started", TRAIN_OVERWRITE, all);
    open_run(&after, "started", "last.safetensors");
    assert_null(safetensors_find(&after, "class.weight"));
    assert_null(safetensors_metadata(&after, "classes"));
    safetensors_close(&after);
    free(all);
    error err;
    saved_probe probe;
    assert_false(saved_open(&probe, run_file("started", "last.safetensors"), &err));
    assert_non_null(strstr(err.text, "a model without classes"));
}

/* --------------------------------------------------------------------------------- held out */

/* Without data.valid, a tenth of the labelled documents is held out, and fewer of the others. */
static void test_held_out(void **state) {
    (void)state;
    corpus *c = read_corpus(labelled);
    const size_t all = c->count;
    size_t of[2][2] = {{0}};
    corpus *part = corpus_split(c, 0.01, LABELS_HELD_OUT);
    for (int side = 0; side < 2; side++) {
        const corpus *half = side ? part : c;
        for (size_t i = 0; i < half->count; i++) {
            of[side][half->documents[i].label != LABEL_NONE]++;
        }
    }
    assert_int_equal(of[0][0] + of[0][1] + of[1][0] + of[1][1], all);
    assert_in_range(of[1][1], 20, 52);
    assert_in_range(of[1][0], 0, 4);
    options o;
    error err;
    options_begin(&o);
    assert_true(labels_find(&o, c, part, true, &err));
    assert_int_equal(o.model.classes, 2);
    assert_string_equal(o.classes.name[0], "bad");
    for (size_t i = 0; i < c->count; i++) {
        char room[16];
        const char *label = corpus_label(c, i, room);
        const int class = c->classes[i];
        if (label) assert_string_equal(o.classes.name[class], label);
        if (!label) assert_int_equal(class, -1);
    }
    const int64_t hash = labels_hash(&o, c);
    c->classes[3] = (int16_t)(c->classes[3] == 1 ? 0 : 1);
    assert_true(labels_hash(&o, c) != hash && hash >= 0);
    options_free(&o);
    corpus_free(part);
    corpus_free(c);
}

/* A class whose only documents were held out is one of them all the same. */
static void test_held_out_class(void **state) {
    (void)state;
    static const char *const names[] = {"a", "b", "c"};
    char *path = path_of("three.tsv"), room[16];
    write_classes(path, names, 3, 60, 0, 7);
    corpus *c = read_corpus(path);
    bool *chosen = mem_alloc(c->count, sizeof *chosen);
    for (size_t i = 0; i < c->count; i++) chosen[i] = strcmp(corpus_label(c, i, room), "b") == 0;
    corpus *rest = corpus_part(c, chosen, false), *part = corpus_part(c, chosen, true);
    for (int is_share = 0; is_share < 2; is_share++) {
        options o;
        error err;
        options_begin(&o);
        assert_true(labels_find(&o, rest, part, is_share, &err) == is_share);
        assert_int_equal(o.model.classes, is_share ? 3 : 2);
        if (is_share) assert_int_equal(part->classes[0], 1);
        options_free(&o);
    }
    free(chosen);
    corpus_free(rest);
    corpus_free(part);
    corpus_free(c);
}

static void test_refused(void **state) {
    (void)state;
    static const char *const one[] = {"good"}, *const others[] = {"good", "odd"};
    char *single = path_of("one.tsv"), *strange = path_of("strange.tsv");
    write_classes(single, one, 1, 300, 0, 5);
    write_classes(strange, others, 2, 30, 0, 6);
    char *more = mem_format("data.train=%s data.valid=%s", single, single);
    assert_refused(more, "2 to 256 different labels for train.label_weight, found 1");
    free(more);
    more = mem_format("data.valid=%s", strange);
    assert_refused(more, "no document of data.train has its label 'odd'");
    free(more);
    options o;
    error err;
    char *const nothing[] = {"train.text_weight=0"};
    options_begin(&o);
    assert_true(config_assign(&o.config, nothing[0], &err));
    assert_false(options_check(&o, &err));
    assert_non_null(strstr(err.text, "train.text_weight"));
    options_free(&o);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_learning), TEST(test_many_classes),   TEST(test_class_weight),
        TEST(test_best),     TEST(test_resume),         TEST(test_init),
        TEST(test_held_out), TEST(test_held_out_class), TEST(test_refused),
    };
    return cmocka_run_group_tests(tests, write_labelled, NULL);
}
