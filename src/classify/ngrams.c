#include "classify/ngrams.h"

#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "data/classes.h"
#include "probe/calibration.h"

#include <linear.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    HALF = NGRAM_BUCKETS / 2, /* words hash to the first half, pieces to the second */
    SHORTEST = 2,
    LONGEST = 5, /* bytes of a piece */
    COSTS = 5,
    MOST_NODES = 1 << 28 /* features of all documents that are fitted: 4 GiB in LIBLINEAR's form */
};

/* LIBLINEAR's. At its default of 0.01, C = 128 had up to 0.2 points of validation error more or
 * less on SST and on reviews of IMDB; from 1e-4 to 1e-5 no error moved. */
static const double TOLERANCE = 1e-4;

static const double costs[COSTS] = {0.5, 2, 8, 32, 128};

/* --------------------------------------------------------------------------------- documents */

/* How often each bucket occurs in a document. */
typedef struct counts {
    uint16_t *count; /* [NGRAM_BUCKETS] */
    int32_t *seen;   /* [NGRAM_BUCKETS] those that occur */
    int distinct;
} counts;

static void counts_begin(counts *k) {
    k->count = mem_alloc(NGRAM_BUCKETS, sizeof *k->count);
    k->seen = mem_alloc(NGRAM_BUCKETS, sizeof *k->seen);
    k->distinct = 0;
}

static void counts_end(counts *k) {
    free(k->count);
    free(k->seen);
}

static void counts_clear(counts *k) {
    for (int i = 0; i < k->distinct; i++) k->count[k->seen[i]] = 0;
    k->distinct = 0;
}

static void add(counts *k, uint64_t hash, int half) {
    hash *= 0x9E3779B97F4A7C15; /* spreads it over the upper bits */
    const int32_t bucket = half * HALF + (int32_t)(hash >> 40) % HALF;
    if (k->count[bucket] == 0) k->seen[k->distinct++] = bucket;
    if (k->count[bucket] < UINT16_MAX) k->count[bucket]++;
}

static bool in_word(uint8_t byte) {
    const uint8_t lower = byte | 0x20;
    return byte > 127 || (lower >= 'a' && lower <= 'z') || (byte >= '0' && byte <= '9') ||
           byte == '\'';
}

/* Adds a document's words and pairs of words. */
static void add_words(counts *k, const uint8_t *text, size_t length) {
    uint64_t before = 0;
    for (size_t i = 0; i < length; i++) {
        if (!in_word(text[i])) continue;
        uint64_t word = hash_start;
        for (; i < length && in_word(text[i]); i++) {
            const uint8_t byte = text[i] >= 'A' && text[i] <= 'Z' ? text[i] | 0x20 : text[i];
            word = hash_bytes(word, &byte, 1);
        }
        add(k, word, 0);
        if (before) add(k, hash_bytes(word, (const uint8_t *)&before, sizeof before), 0);
        before = word;
    }
}

static void count_document(counts *k, const uint8_t *text, size_t length) {
    if (length > NGRAM_BYTES) length = NGRAM_BYTES;
    counts_clear(k);
    add_words(k, text, length);
    for (size_t i = 0; i < length; i++) {
        uint64_t piece = hash_start;
        for (size_t n = 1; n <= LONGEST && i + n <= length; n++) {
            piece = hash_bytes(piece, text + i + n - 1, 1);
            if (n >= SHORTEST) add(k, piece, 1);
        }
    }
}

/* The features that occur in a corpus. */
typedef struct vocabulary {
    int32_t *feature; /* [NGRAM_BUCKETS] its number, or -1 */
    int32_t *bucket;  /* [count] */
    float *idf;       /* [count] */
    int64_t count;
} vocabulary;

static void find_vocabulary(vocabulary *v, counts *k, const corpus *c, const int16_t *class) {
    int32_t *documents = mem_alloc(NGRAM_BUCKETS, sizeof *documents);
    int64_t rows = 0;
    for (size_t i = 0; i < c->count; i++) {
        size_t length;
        const uint8_t *text = corpus_text(c, i, &length);
        if (class[i] < 0) continue;
        count_document(k, text, length);
        for (int j = 0; j < k->distinct; j++) documents[k->seen[j]]++;
        rows++;
    }
    v->feature = mem_alloc(NGRAM_BUCKETS, sizeof *v->feature);
    v->bucket = mem_alloc(NGRAM_BUCKETS, sizeof *v->bucket);
    v->idf = mem_alloc(NGRAM_BUCKETS, sizeof *v->idf);
    v->count = 0;
    for (int32_t b = 0; b < NGRAM_BUCKETS; b++) {
        v->feature[b] = documents[b] > 1 ? (int32_t)v->count : -1;
        if (documents[b] < 2) continue;
        v->bucket[v->count] = b;
        v->idf[v->count++] = (float)log(1 + (double)rows / documents[b]);
    }
    free(documents);
}

/* Rows of features in LIBLINEAR's form. */
typedef struct node_list {
    struct feature_node *nodes;
    size_t used, room;
} node_list;

static void add_node(node_list *to, int64_t feature, double value) {
    to->nodes = mem_grow(to->nodes, &to->room, to->used + 1, sizeof *to->nodes);
    to->nodes[to->used++] = (struct feature_node){(int)feature + 1, value};
}

/* Ends a row, by the feature of the intercept, which is always 1, and a mark. */
static void end_row(node_list *to, int64_t features) {
    add_node(to, features, 1);
    add_node(to, -2, 0);
}

/* Adds a counted document's features, as often as they occur. */
static void add_features(node_list *to, const counts *k, const int32_t *feature) {
    for (int i = 0; i < k->distinct; i++) {
        const int32_t bucket = k->seen[i];
        if (feature[bucket] >= 0) add_node(to, feature[bucket], 1 + log(k->count[bucket]));
    }
}

/* Weighs a row's features, and gives its words, and its pieces, their length. */
static void weigh_row(struct feature_node *row, int64_t features, const int32_t *bucket,
                      const float *idf) {
    double square[2] = {0};
    struct feature_node *x;
    for (x = row; x->index <= features; x++) {
        x->value *= (double)idf[x->index - 1];
        square[bucket[x->index - 1] / HALF] += x->value * x->value;
    }
    for (x = row; x->index <= features; x++) {
        const double of = square[bucket[x->index - 1] / HALF];
        if (of > 0) x->value *= sqrt(0.5 / of);
    }
}

/* --------------------------------------------------------------------------------------- fit */

/* The rows of the corpus. */
typedef struct rows {
    node_list all;
    size_t *start;  /* [count] */
    int16_t *class; /* [count] */
    bool *held;     /* [count] */
    int count;
    const double *weight; /* [classes] or NULL */
} rows;

/* Their features' values are as often as these occur. */
static void make_rows(rows *r, counts *k, const vocabulary *v, const corpus *c,
                      const int16_t *class, const bool *held) {
    *r = (rows){.start = mem_alloc(c->count, sizeof *r->start),
                .class = mem_alloc(c->count, sizeof *r->class),
                .held = mem_alloc(c->count, sizeof *r->held)};
    for (size_t i = 0; i < c->count; i++) {
        size_t length;
        const uint8_t *text = corpus_text(c, i, &length);
        if (class[i] < 0) continue;
        if (r->all.used > MOST_NODES && !held[i]) continue;
        count_document(k, text, length);
        r->start[r->count] = r->all.used;
        r->class[r->count] = class[i];
        r->held[r->count++] = held[i];
        add_features(&r->all, k, v->feature);
        end_row(&r->all, v->count);
    }
    if (r->all.used > MOST_NODES)
        log_warning("n-grams are fitted on the first %d documents", r->count);
}

/* How much each feature tells of a class [features]: the log ratio, without its sign, of its share
 * of all features of a class and of its share in all other classes together, for the class where
 * that is largest. Counted are the rows that are not held, and one more of each class. */
static double *find_ratios(const rows *r, int64_t features, int classes) {
    const size_t wide = (size_t)classes;
    int32_t *has = mem_alloc((size_t)features * wide, sizeof *has);
    double *ratio = mem_alloc((size_t)features, sizeof *ratio);
    double *all = mem_alloc(wide, sizeof *all), total = 0;
    for (int i = 0; i < r->count; i++) {
        const struct feature_node *x = r->all.nodes + r->start[i];
        for (; !r->held[i] && x->index <= features; x++) {
            has[(size_t)(x->index - 1) * wide + (size_t)r->class[i]]++;
            all[r->class[i]]++;
        }
    }
    for (int k = 0; k < classes; k++) total += all[k] += (double)features;
    for (int64_t j = 0; j < features; j++) {
        const int32_t *of = has + (size_t)j * wide;
        double sum = classes;
        for (int k = 0; k < classes; k++) sum += of[k];
        for (int k = 0; k < classes; k++) {
            const double here = (1 + of[k]) / all[k], there = (sum - 1 - of[k]) / (total - all[k]);
            ratio[j] = fmax(ratio[j], fabs(log(here / there)));
        }
    }
    free(all);
    free(has);
    return ratio;
}

/* Weighs features by idf and by their ratios. */
static void weigh_rows(rows *r, const vocabulary *v, int classes) {
    double *ratio = find_ratios(r, v->count, classes);
    for (int64_t j = 0; j < v->count; j++) v->idf[j] *= (float)ratio[j];
    for (int i = 0; i < r->count; i++) {
        weigh_row(r->all.nodes + r->start[i], v->count, v->bucket, v->idf);
    }
    free(ratio);
}

static void free_rows(rows *r) {
    free(r->all.nodes);
    free(r->start);
    free(r->class);
    free(r->held);
}

static void say_nothing(const char *text) {
    (void)text;
}

/* Fits one function on all rows, or on those that are not held: w [features + 1]. */
static void fit_function(const rows *r, int64_t features, bool all, int positive, double cost,
                         double *w) {
    double *sign = mem_alloc((size_t)r->count, sizeof *sign);
    struct feature_node **x = mem_alloc((size_t)r->count, sizeof *x);
    struct problem problem = {.n = (int)features + 1, .y = sign, .x = x, .bias = 1};
    int side_of[2] = {-1, 1}, count[2] = {0};
    double weight[2] = {0}; /* of a row of the other classes, on average, and of this one */
    for (int i = 0; i < r->count; i++) {
        if (r->held[i] && !all) continue;
        const int is = r->class[i] == positive;
        count[is]++;
        weight[is] += class_weight(r->weight, r->class[i]);
        sign[problem.l] = side_of[is];
        x[problem.l++] = r->all.nodes + r->start[i];
    }
    for (int is = 0; is < 2; is++) weight[is] /= fmax(count[is], 1);
    struct parameter how = {.solver_type = L2R_LR,
                            .eps = TOLERANCE,
                            .C = cost,
                            .nr_weight = 2,
                            .weight_label = side_of,
                            .weight = weight};
    struct model *fitted = train(&problem, &how);
    const int side = fitted->label[0]; /* on which its margins are positive */
    for (int64_t j = 0; j <= features; j++) w[j] = side * fitted->w[j];
    free_and_destroy_model(&fitted);
    free(sign);
    free(x);
}

/* The class for which a function is positive. */
static int positive_class(const ngrams *g, int function) {
    return g->functions == 1 ? 1 : function;
}

static double margin_of(const struct feature_node *x, const double *w) {
    double margin = 0;
    for (; x->index >= 0; x++) margin += w[x->index - 1] * x->value;
    return margin;
}

/* The functions of all classes. */
typedef struct fit {
    float *weights;     /* [functions][features] */
    double *intercepts; /* [functions] */
} fit;

static fit fit_begin(const ngrams *g) {
    return (fit){mem_alloc((size_t)(g->functions * g->count), sizeof(float)),
                 mem_alloc((size_t)g->functions, sizeof(double))};
}

static void fit_end(fit *f) {
    free(f->weights);
    free(f->intercepts);
}

static void fit_take(fit *f, const ngrams *g, int function, const double *w) {
    for (int64_t j = 0; j < g->count; j++) f->weights[function * g->count + j] = (float)w[j];
    f->intercepts[function] = w[g->count];
}

/* Fits a function with one C on the rows that are not held, gives the margins of those that are,
 * margin [held rows][functions], and leaves it in `kept` unless that is NULL. */
static void try_function(const rows *r, const ngrams *g, int function, double cost, double *margin,
                         fit *kept) {
    double *w = mem_alloc((size_t)g->count + 1, sizeof *w), *to = margin + function;
    fit_function(r, g->count, false, positive_class(g, function), cost, w);
    if (kept) fit_take(kept, g, function, w);
    for (int i = 0; i < r->count; i++) {
        if (!r->held[i]) continue;
        *to = margin_of(r->all.nodes + r->start[i], w);
        to += g->functions;
    }
    free(w);
}

/* A search for C. */
typedef struct search {
    const rows *r;
    int16_t *class; /* [held] of the rows that are held */
    size_t held;
    double least;
    double *margin, *best;        /* [COSTS][held][functions], and those of the best C */
    fit kept;                     /* of the best C, where one C is tried after the other */
    double deadline, end, latest; /* when the search, and all, should be done; seconds of a try */
} search;

/* Tries `count` values of C from number k on, side by side, of which those after two that are no
 * better do not count. Of one value, the fit is kept if it is the best. Whether the last one is the
 * best. */
static bool try_costs(ngrams *g, search *s, int k, int count) {
    const size_t functions = (size_t)g->functions, each = s->held * functions;
    const double began = clock_seconds();
    bool best = false;
    fit tried = count == 1 ? fit_begin(g) : (fit){NULL, NULL};
#pragma omp parallel for schedule(dynamic)
    for (int i = 0; i < count * g->functions; i++) {
        const int cost = k + i / g->functions;
        try_function(s->r, g, i % g->functions, costs[cost], s->margin + (size_t)cost * each,
                     count == 1 ? &tried : NULL);
    }
    s->latest = (clock_seconds() - began) / count;
    for (int cost = k, worse = 0; cost < k + count && worse < 2; cost++, worse++) {
        const double *of = s->margin + (size_t)cost * each;
        double wrong = 0, all = 0;
        for (size_t i = 0; i < s->held; i++) {
            const double weight = class_weight(s->r->weight, s->class[i]);
            all += weight;
            if (margin_class(of + i * functions, g->functions) != s->class[i]) wrong += weight;
        }
        log_line("n-grams, C = %g: validation error %.2f %%", costs[cost], 100 * wrong / all);
        best = wrong < s->least || (wrong == s->least && costs[cost] < g->cost);
        if (!best) continue;
        worse = -1;
        s->least = wrong;
        g->cost = costs[cost];
        s->best = s->margin + (size_t)cost * each;
        const fit before = s->kept;
        s->kept = tried;
        tried = before;
    }
    fit_end(&tried);
    return best;
}

/* Whether there is time for another try, about as long as the latest, and the fit on all rows. */
static bool has_time(const search *s) {
    return clock_seconds() + 2.5 * s->latest < s->deadline;
}

/* Tries C from the middle on, upwards, or downwards if the next is no better. */
static void climb(ngrams *g, search *s) {
    const int middle = COSTS / 2;
    int k = middle;
    try_costs(g, s, k, 1);
    while (k + 1 < COSTS && has_time(s) && try_costs(g, s, k + 1, 1)) k++;
    if (k > middle) return;
    while (k > 0 && has_time(s) && try_costs(g, s, k - 1, 1)) k--;
}

/* Chooses C. Of one function all values are tried at once, for threads to share; of several, which
 * they share too, as few as it takes. The smallest wins ties. The margins of the chosen fit on held
 * rows go to `best_margin`. */
static void choose_cost(ngrams *g, search *s, double **best_margin) {
    const rows *r = s->r;
    s->class = mem_alloc((size_t)r->count, sizeof *s->class);
    for (int i = 0; i < r->count; i++) {
        if (r->held[i]) s->class[s->held++] = r->class[i];
    }
    const size_t each = s->held * (size_t)g->functions;
    s->best = s->margin = mem_alloc(COSTS * each, sizeof *s->margin);
    if (g->functions == 1) {
        try_costs(g, s, 0, COSTS);
    } else {
        climb(g, s);
    }
    g->scale = calibrate(s->best, s->class, s->held, g->functions, false);
    memmove(s->margin, s->best, each * sizeof *s->margin);
    *best_margin = s->margin;
    free(s->class);
}

/* Fits the chosen C on all rows, or keeps its fit on those that are not held if no time is left. */
static void fit_chosen(ngrams *g, search *s) {
    const bool in_time = clock_seconds() + 1.25 * s->latest < s->end;
    if (in_time || !s->kept.weights) {
        fit_end(&s->kept);
        s->kept = fit_begin(g);
#pragma omp parallel for schedule(dynamic)
        for (int f = 0; f < g->functions; f++) {
            double *w = mem_alloc((size_t)g->count + 1, sizeof *w);
            fit_function(s->r, g->count, true, positive_class(g, f), g->cost, w);
            fit_take(&s->kept, g, f, w);
            free(w);
        }
    } else {
        log_line("n-grams: without the documents that C was chosen by, as no time is left");
    }
    g->weights = s->kept.weights;
    g->intercepts = s->kept.intercepts;
}

/* Of the seconds, for the search: a model needs the others. */
static const double search_share = 0.5;

bool ngrams_fit(ngrams *g, const corpus *c, const int16_t *class, int classes, const double *weight,
                const bool *held, double seconds, double **valid_margin, error *err) {
    const double began = clock_seconds();
    vocabulary v;
    counts k;
    rows r;
    counts_begin(&k);
    find_vocabulary(&v, &k, c, class);
    *g = (ngrams){classes == 2 ? 1 : classes, v.count, v.bucket, v.idf, NULL, NULL, 0, 0};
    const bool found = v.count > 0;
    if (found) {
        set_print_string_function(say_nothing);
        make_rows(&r, &k, &v, c, class, held);
        weigh_rows(&r, &v, classes);
        r.weight = weight;
        search s = {.r = &r,
                    .least = INFINITY,
                    .deadline = began + search_share * seconds,
                    .end = began + seconds};
        choose_cost(g, &s, valid_margin);
        fit_chosen(g, &s);
        free_rows(&r);
    }
    free(v.feature);
    counts_end(&k);
    if (found) return true;
    ngrams_free(g);
    return error_set(err, "the documents have no word or piece of text in common");
}

void ngrams_free(ngrams *g) {
    free((void *)(uintptr_t)g->bucket);
    free((void *)(uintptr_t)g->idf);
    free((void *)(uintptr_t)g->weights);
    free((void *)(uintptr_t)g->intercepts);
    *g = (ngrams){0};
}

/* ------------------------------------------------------------------------------------- apply */

struct ngram_reader {
    const ngrams *g;
    int32_t *feature; /* [NGRAM_BUCKETS] its number, or -1 */
    counts counts;
    node_list row; /* of this document */
};

ngram_reader *ngram_reader_create(const ngrams *g) {
    ngram_reader *r = mem_alloc(1, sizeof *r);
    r->g = g;
    r->feature = mem_alloc(NGRAM_BUCKETS, sizeof *r->feature);
    memset(r->feature, 0xFF, NGRAM_BUCKETS * sizeof *r->feature);
    for (int64_t j = 0; j < g->count; j++) r->feature[g->bucket[j]] = (int32_t)j;
    counts_begin(&r->counts);
    return r;
}

void ngram_reader_free(ngram_reader *r) {
    if (!r) return;
    counts_end(&r->counts);
    free(r->row.nodes);
    free(r->feature);
    free(r);
}

void ngram_reader_apply(ngram_reader *r, const uint8_t *text, size_t length, double *margin) {
    const ngrams *g = r->g;
    count_document(&r->counts, text, length);
    r->row.used = 0;
    add_features(&r->row, &r->counts, r->feature);
    end_row(&r->row, g->count);
    weigh_row(r->row.nodes, g->count, g->bucket, g->idf);
    for (int f = 0; f < g->functions; f++) {
        const float *weights = g->weights + f * g->count;
        margin[f] = g->intercepts[f];
        for (const struct feature_node *x = r->row.nodes; x->index <= g->count; x++) {
            margin[f] += (double)weights[x->index - 1] * x->value;
        }
    }
}
