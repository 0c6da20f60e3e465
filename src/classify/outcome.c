#include "classify/outcome.h"

#include "classify/predictions.h"
#include "core/json.h"
#include "core/memory.h"
#include "probe/dataset.h"

#include <math.h>
#include <stdlib.h>

static double deviation(double error, size_t rows) {
    return sqrt(error * (100 - error) / (double)rows);
}

/* The error on the documents held out by which the way was chosen, where classes weigh alike if
 * they are to. */
static double valid_error(const outcome *o, const way *of) {
    const labelled *held = &o->examples->held;
    double all = 0;
    for (size_t i = 0; i < held->texts->count; i++) {
        all += class_weight(o->examples->weight, held->class[i]);
    }
    return 100 * predictions_cost(&of->valid, held->class, o->examples->weight) / all;
}

/* The error of always answering the commonest class of the training documents. */
static double commonest_error(const outcome *o) {
    const labelled *train = &o->examples->train, *test = &o->examples->test;
    size_t of[DATASET_MAX_CLASSES] = {0}, wrong = 0;
    int most = 0;
    for (size_t i = 0; i < train->texts->count; i++) of[train->class[i]]++;
    for (int k = 1; k < o->examples->classes.count; k++) most = of[k] > of[most] ? k : most;
    for (size_t i = 0; i < test->texts->count; i++) wrong += test->class[i] != most;
    return 100 * (double)wrong / (double)test->texts->count;
}

void outcome_list(const outcome *o, contender list[1 + WAYS]) {
    const size_t rows = o->examples->test.texts->count;
    const double commonest = commonest_error(o);
    list[0] = (contender){
        "always the commonest class", commonest, deviation(commonest, rows), NAN, NAN, false};
    for (int k = 0; k < WAYS; k++) {
        const way *of = &o->ways->of[k];
        const double error = of->tried ? predictions_error(&of->tested) : NAN;
        const double valid = of->tried ? valid_error(o, of) : NAN;
        list[1 + k] = (contender){way_names[k],
                                  error,
                                  deviation(error, rows),
                                  valid,
                                  of->tried && k < BY_BOTH ? of->seconds : NAN,
                                  k == o->ways->chosen};
    }
}

/* What the chosen way makes of each class, and what it mixes up. */
static void write_scores(const outcome *o, json_writer *j) {
    size_t *confusion =
        ways_confusion(o->ways, o->examples->classes.count, o->examples->test.class);
    mix_up mixed[MIX_UPS];
    const int count = score_mix_ups(confusion, o->examples->classes.count, mixed, MIX_UPS);
    json_number(j, "macro_f1", score_macro_f1(confusion, o->examples->classes.count));
    json_array_begin(j, "classes");
    for (int k = 0; k < o->examples->classes.count; k++) {
        const class_score s = score_class(confusion, o->examples->classes.count, k);
        json_object_begin(j, NULL);
        json_string(j, "class", o->examples->classes.name[k]);
        json_integer(j, "documents", (int64_t)s.documents);
        json_number(j, "precision", s.precision);
        json_number(j, "recall", s.recall);
        json_number(j, "f1", s.f1);
        json_object_end(j);
    }
    json_array_end(j);
    json_array_begin(j, "mixed_up");
    for (int i = 0; i < count; i++) {
        json_object_begin(j, NULL);
        json_string(j, "class", o->examples->classes.name[mixed[i].class]);
        json_string(j, "said", o->examples->classes.name[mixed[i].said]);
        json_integer(j, "documents", (int64_t)mixed[i].documents);
        json_object_end(j);
    }
    json_array_end(j);
    free(confusion);
}

void outcome_json(const outcome *o, FILE *out) {
    static const char *const keys[] = {"commonest_error", "ngram_error", "features_error",
                                       "tuned_error", "both_error"};
    contender list[1 + WAYS];
    json_writer j = {out, false};
    outcome_list(o, list);
    json_object_begin(&j, NULL);
    for (int i = 0; i < 1 + WAYS; i++) json_number(&j, keys[i], list[i].error);
    json_object_begin(&j, "standard_error");
    for (int i = 0; i < 1 + WAYS; i++) json_number(&j, keys[i], list[i].deviation);
    json_object_end(&j);
    json_object_begin(&j, "valid_error");
    for (int i = 1; i < 1 + WAYS; i++) json_number(&j, keys[i], list[i].valid_error);
    json_object_end(&j);
    json_object_begin(&j, "seconds");
    for (int i = 1; i < WAYS; i++) json_number(&j, keys[i], list[i].seconds);
    json_object_end(&j);
    json_number(&j, "C", o->cost);
    json_integer(&j, "passes", o->passes);
    json_integer(&j, "text_steps", o->text_steps);
    json_integer(&j, "tuning_steps", o->tuning_steps);
    json_string(&j, "class_weight", o->balanced ? "balanced" : "none");
    json_string(&j, "chosen", way_names[o->ways->chosen]);
    json_string(&j, "joined", way_names[o->ways->partner]);
    json_number(&j, "share_of_model", o->ways->share);
    json_number(&j, "p_value", o->ways->p_value);
    json_array_begin(&j, "class_names");
    for (int k = 0; k < o->examples->classes.count; k++)
        json_string(&j, NULL, o->examples->classes.name[k]);
    json_array_end(&j);
    write_scores(o, &j);
    json_integer(&j, "train_documents", (int64_t)o->examples->train.texts->count);
    json_integer(&j, "test_documents", (int64_t)o->examples->test.texts->count);
    json_string(&j, "classifier", o->folder);
    json_object_end(&j);
    fputc('\n', out);
}

void outcome_text(const outcome *o, FILE *out) {
    contender list[1 + WAYS];
    outcome_list(o, list);
    fprintf(out, "%-28s%12s%16s%20s%10s\n", "classed by", "error, %", "standard error",
            o->balanced ? "balanced valid., %" : "validation error, %", "seconds");
    for (int i = 0; i < 1 + WAYS; i++) {
        if (isnan(list[i].error)) {
            fprintf(out, "%-28s%12s\n", list[i].name, "not tried");
            continue;
        }
        fprintf(out, "%-28s%12.2f%16.2f", list[i].name, list[i].error, list[i].deviation);
        if (!isnan(list[i].valid_error)) fprintf(out, "%20.2f", list[i].valid_error);
        if (!isnan(list[i].seconds)) fprintf(out, "%10.0f", list[i].seconds);
        fprintf(out, "%s\n", list[i].chosen ? "  saved" : "");
    }
    if (!isnan(o->ways->p_value))
        fprintf(out, "saved against n-grams: p = %.2g\n", o->ways->p_value);
}

static int by_probability(const void *a, const void *b) {
    const mistake *x = a, *y = b;
    return (x->probability < y->probability) - (x->probability > y->probability);
}

int outcome_mistakes(const outcome *o, mistake **list, int most) {
    const predictions *of = &o->ways->of[o->ways->chosen].tested;
    int count = 0;
    *list = mem_alloc(of->wrong + 1, sizeof **list);
    for (size_t i = 0; i < of->rows; i++) {
        const int said = of->said[i];
        if (said == o->examples->test.class[i]) continue;
        const double probability =
            of->probability[i * (size_t)o->examples->classes.count + (size_t)said];
        (*list)[count++] = (mistake){i, o->examples->test.class[i], said, probability};
    }
    qsort(*list, (size_t)count, sizeof **list, by_probability);
    return count < most ? count : most;
}
