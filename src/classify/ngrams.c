#include "classify/ngrams.h"

#include "classify/svm.h"
#include "core/clock.h"
#include "core/log.h"
#include "core/memory.h"
#include "data/classes.h"
#include "probe/calibration.h"

#include <inttypes.h>
#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

enum {
    HALF = NGRAM_BUCKETS / 2, /* words hash to the first half, pieces to the second */
    SHORTEST = 2,
    LONGEST = 5, /* bytes of a piece */
    COSTS = 5,
    CHUNKS = 64,         /* of documents, which threads share */
    MOST_NODES = 1 << 28 /* features of all documents that are fitted: 2 GiB */
};

/* The largest difference of violations that ends a fit, as LIBLINEAR has it. */
static const double tolerance = 0.1;

static const double costs[COSTS] = {0.03, 0.1, 0.3, 1, 3};
enum { FIRST_COST = 1 };

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

/* The features that occur in a corpus, the commonest first, so that their weights lie together. */
typedef struct vocabulary {
    int32_t *feature; /* [NGRAM_BUCKETS] its number, or -1 */
    int32_t *bucket;  /* [count] */
    float *idf;       /* [count] */
    int64_t count;
} vocabulary;

static int commonest_first(const void *a, const void *b, void *documents_) {
    const int32_t *documents = documents_, i = *(const int32_t *)a, j = *(const int32_t *)b;
    if (documents[i] != documents[j]) return documents[i] < documents[j] ? 1 : -1;
    return (i > j) - (i < j);
}

static void find_vocabulary(vocabulary *v, const corpus *c, const int16_t *class) {
    int32_t *documents = mem_alloc(NGRAM_BUCKETS, sizeof *documents);
    int64_t rows = 0;
#pragma omp parallel reduction(+ : rows)
    {
        counts k;
        int32_t *own = mem_alloc(NGRAM_BUCKETS, sizeof *own);
        counts_begin(&k);
#pragma omp for schedule(dynamic, 64)
        for (size_t i = 0; i < c->count; i++) {
            size_t length;
            const uint8_t *text = corpus_text(c, i, &length);
            if (class[i] < 0) continue;
            count_document(&k, text, length);
            for (int j = 0; j < k.distinct; j++) own[k.seen[j]]++;
            rows++;
        }
#pragma omp critical
        for (int32_t b = 0; b < NGRAM_BUCKETS; b++) documents[b] += own[b];
        counts_end(&k);
        free(own);
    }
    v->feature = mem_alloc(NGRAM_BUCKETS, sizeof *v->feature);
    v->bucket = mem_alloc(NGRAM_BUCKETS, sizeof *v->bucket);
    v->idf = mem_alloc(NGRAM_BUCKETS, sizeof *v->idf);
    v->count = 0;
    for (int32_t b = 0; b < NGRAM_BUCKETS; b++) {
        v->feature[b] = -1;
        if (documents[b] > 1) v->bucket[v->count++] = b;
    }
    qsort_r(v->bucket, (size_t)v->count, sizeof *v->bucket, commonest_first, documents);
    for (int32_t j = 0; j < v->count; j++) {
        v->feature[v->bucket[j]] = j;
        v->idf[j] = (float)log(1 + (double)rows / documents[v->bucket[j]]);
    }
    free(documents);
}

/* Features and their values, of one row after the other. */
typedef struct node_list {
    int32_t *feature;
    float *value;
    size_t used, room, value_room;
} node_list;

/* Adds a counted document's features, as often as they occur. */
static void add_features(node_list *to, const counts *k, const int32_t *feature) {
    const size_t most = to->used + (size_t)k->distinct;
    to->feature = mem_grow(to->feature, &to->room, most, sizeof *to->feature);
    to->value = mem_grow(to->value, &to->value_room, most, sizeof *to->value);
    for (int i = 0; i < k->distinct; i++) {
        const int32_t bucket = k->seen[i];
        if (feature[bucket] < 0) continue;
        to->feature[to->used] = feature[bucket];
        to->value[to->used++] = (float)(1 + log(k->count[bucket]));
    }
}

/* Weighs a row's features, and gives its words, and its pieces, their length. */
static void weigh_row(const int32_t *feature, float *value, size_t count, const int32_t *bucket,
                      const float *idf) {
    double square[2] = {0}, scale[2];
    for (size_t j = 0; j < count; j++) {
        value[j] *= idf[feature[j]];
        square[bucket[feature[j]] / HALF] += (double)value[j] * value[j];
    }
    for (int half = 0; half < 2; half++)
        scale[half] = square[half] > 0 ? sqrt(0.5 / square[half]) : 0;
    for (size_t j = 0; j < count; j++) value[j] *= (float)scale[bucket[feature[j]] / HALF];
}

/* Makes the row of a document: its features by their numbers, weighed. */
static void read_row(node_list *row, counts *k, const int32_t *number, const int32_t *bucket,
                     const float *idf, const uint8_t *text, size_t length) {
    count_document(k, text, length);
    row->used = 0;
    add_features(row, k, number);
    weigh_row(row->feature, row->value, row->used, bucket, idf);
}

/* --------------------------------------------------------------------------------------- fit */

/* The rows of a chunk of documents. */
typedef struct chunk {
    node_list nodes;
    size_t *end; /* of each row in these */
    int16_t *class;
    bool *held;
    int count;
} chunk;

static void make_chunk(chunk *to, counts *k, const vocabulary *v, const corpus *c, size_t first,
                       size_t last, const int16_t *class, const bool *held) {
    const size_t count = last - first;
    *to = (chunk){.end = mem_alloc(count + 1, sizeof *to->end),
                  .class = mem_alloc(count + 1, sizeof *to->class),
                  .held = mem_alloc(count + 1, sizeof *to->held)};
    for (size_t i = first; i < last; i++) {
        size_t length;
        const uint8_t *text = corpus_text(c, i, &length);
        if (class[i] < 0) continue;
        count_document(k, text, length);
        add_features(&to->nodes, k, v->feature);
        to->class[to->count] = class[i];
        to->held[to->count] = held[i];
        to->end[to->count++] = to->nodes.used;
    }
}

/* Puts the chunks one after the other. Those after MOST_NODES are not fitted, but for their held
 * rows. */
static void join_chunks(svm_rows *r, chunk *from) {
    size_t nodes = 0, rows = 0, left_out = 0;
    for (int i = 0; i < CHUNKS; i++) nodes += from[i].nodes.used, rows += (size_t)from[i].count;
    r->start = mem_alloc(rows + 1, sizeof *r->start);
    r->class = mem_alloc(rows + 1, sizeof *r->class);
    r->held = mem_alloc(rows + 1, sizeof *r->held);
    r->feature = mem_alloc(nodes + SVM_ROOM, sizeof *r->feature);
    r->value = mem_alloc(nodes + 1, sizeof *r->value);
    size_t used = 0;
    for (int i = 0; i < CHUNKS; i++) {
        const chunk *k = &from[i];
        for (int row = 0; row < k->count; row++) {
            const size_t begin = row ? k->end[row - 1] : 0, count = k->end[row] - begin;
            if (used > MOST_NODES && !k->held[row]) {
                left_out++;
                continue;
            }
            memcpy(r->feature + used, k->nodes.feature + begin, count * sizeof *r->feature);
            memcpy(r->value + used, k->nodes.value + begin, count * sizeof *r->value);
            r->class[r->count] = k->class[row];
            r->held[r->count++] = k->held[row];
            r->start[r->count] = used += count;
        }
        free(k->nodes.feature);
        free(k->nodes.value);
        free(k->end);
        free(k->class);
        free(k->held);
    }
    if (left_out > 0) log_warning("n-grams are fitted without the last %zu documents", left_out);
}

/* The rows of the corpus. Their features' values are as often as these occur. */
static void make_rows(svm_rows *r, const vocabulary *v, const corpus *c, const int16_t *class,
                      const bool *held) {
    chunk chunks[CHUNKS];
    *r = (svm_rows){0};
#pragma omp parallel
    {
        counts k;
        counts_begin(&k);
#pragma omp for schedule(dynamic)
        for (size_t i = 0; i < CHUNKS; i++) {
            make_chunk(&chunks[i], &k, v, c, c->count * i / CHUNKS, c->count * (i + 1) / CHUNKS,
                       class, held);
        }
        counts_end(&k);
    }
    join_chunks(r, chunks);
}

/* How much each feature tells of one of two classes [features]: the log ratio, without its sign, of
 * its share of all features of a class and of its share in the other class. Counted are the rows
 * that are not held, and one more of each class. */
static double *find_ratios(const svm_rows *r, int64_t features) {
    int32_t(*has)[2] = mem_alloc((size_t)features, sizeof *has);
    double *ratio = mem_alloc((size_t)features, sizeof *ratio);
    double all[2] = {(double)features, (double)features};
    for (int i = 0; i < r->count; i++) {
        if (r->held[i]) continue;
        for (size_t j = r->start[i]; j < r->start[i + 1]; j++) has[r->feature[j]][r->class[i]]++;
        all[r->class[i]] += (double)(r->start[i + 1] - r->start[i]);
    }
    for (int64_t j = 0; j < features; j++) {
        ratio[j] = fabs(log((1 + has[j][1]) / all[1] / ((1 + has[j][0]) / all[0])));
    }
    free(has);
    return ratio;
}

/* Weighs features by idf and, of two classes, by their ratios. */
static void weigh_rows(svm_rows *r, const vocabulary *v, int classes) {
    double *ratio = classes == 2 ? find_ratios(r, v->count) : NULL;
    for (int64_t j = 0; ratio && j < v->count; j++) v->idf[j] *= (float)ratio[j];
#pragma omp parallel for
    for (int i = 0; i < r->count; i++) {
        const size_t begin = r->start[i];
        weigh_row(r->feature + begin, r->value + begin, r->start[i + 1] - begin, v->bucket, v->idf);
    }
    free(ratio);
}

static void free_rows(svm_rows *r) {
    free(r->feature);
    free(r->value);
    free(r->start);
    free(r->class);
    free(r->held);
}

/* A search for C. */
typedef struct search {
    svm machine;
    int16_t *class; /* [held] of the rows that are held */
    size_t held;
    double least, latest;  /* the least error by weight; seconds of the latest try */
    double *margin, *best; /* [held][functions] of the latest C and of the best */
    float *kept;           /* the machine's weights for the best, where time may run out */
    double deadline, end;  /* when the search, and all, should be done */
} search;

static size_t machine_size(const svm *m) {
    return (size_t)m->blocks * (size_t)m->lanes * (size_t)(m->features + 1) * sizeof *m->w;
}

/* The share of the held rows, by their weight, that the margins do not class. */
static double error_of(const search *s, const double *margin) {
    const int functions = s->machine.functions;
    double wrong = 0, all = 0;
    for (size_t i = 0; i < s->held; i++) {
        const double weight = class_weight(s->machine.weight, s->class[i]);
        all += weight;
        if (margin_class(margin + i * (size_t)functions, functions) != s->class[i]) wrong += weight;
    }
    return wrong / all;
}

/* Fits with one C on the rows that are not held. Whether it is the best so far, which of equal ones
 * is the smallest. */
static bool try_cost(ngrams *g, search *s, double cost) {
    const svm_rows *r = s->machine.rows;
    const double began = clock_seconds();
    char time[32];
    const int passes = svm_fit(&s->machine, cost, false, tolerance, s->deadline);
    double *to = s->margin;
    for (int i = 0; i < r->count; i++) {
        if (!r->held[i]) continue;
        const size_t begin = r->start[i];
        svm_margins(&s->machine, r->feature + begin, r->value + begin, r->start[i + 1] - begin, to);
        to += g->functions;
    }
    const double error = error_of(s, s->margin);
    const bool best = error < s->least || (error == s->least && cost < g->cost);
    s->latest = clock_seconds() - began;
    log_line("n-grams, C = %g: validation error %.2f %%, %d passes in %s%s", cost, 100 * error,
             abs(passes), log_duration(time, s->latest), passes < 0 ? ", cut short" : "");
    if (best) {
        double *before = s->best;
        s->best = s->margin;
        s->margin = before;
        s->least = error;
        g->cost = cost;
        if (s->kept) memcpy(s->kept, s->machine.w, machine_size(&s->machine));
    }
    return best;
}

/* Whether there is time for another try, about as long as the latest, and the fit on all rows. */
static bool has_time(const search *s) {
    return clock_seconds() + 2.5 * s->latest < s->deadline;
}

/* Chooses C upwards, from one that is soon fitted, until two are no better; then downwards if none
 * was. The margins of the chosen fit on held rows go to `best_margin`. */
static void choose_cost(ngrams *g, search *s, double **best_margin) {
    const svm_rows *r = s->machine.rows;
    s->class = mem_alloc((size_t)r->count + 1, sizeof *s->class);
    for (int i = 0; i < r->count; i++) {
        if (r->held[i]) s->class[s->held++] = r->class[i];
    }
    const size_t each = s->held * (size_t)g->functions + 1;
    s->margin = mem_alloc(each, sizeof *s->margin);
    s->best = mem_alloc(each, sizeof *s->best);
    if (isfinite(s->end)) s->kept = mem_alloc(machine_size(&s->machine), 1);
    int k = FIRST_COST;
    try_cost(g, s, costs[k]);
    for (int worse = 0; ++k < COSTS && worse < 2 && has_time(s);) {
        worse = try_cost(g, s, costs[k]) ? 0 : worse + 1;
    }
    for (k = FIRST_COST; g->cost == costs[k] && k > 0 && has_time(s); k--) {
        try_cost(g, s, costs[k - 1]);
    }
    g->scale = calibrate(s->best, s->class, s->held, g->functions, false);
    *best_margin = s->best;
    free(s->margin);
    free(s->class);
}

/* Fits the chosen C on all rows, or keeps its fit on those that are not held if no time is left. */
static void fit_chosen(ngrams *g, search *s) {
    svm *m = &s->machine;
    if (clock_seconds() + 0.5 * s->latest < s->end) {
        g->passes = abs(svm_fit(m, g->cost, true, tolerance, s->end));
    } else {
        log_line("n-grams: without the documents that C was chosen by, as no time is left");
        memcpy(m->w, s->kept, machine_size(m));
    }
}

/* Takes the machine's weights, in the order of buckets. */
static void take_weights(ngrams *g, const svm *m, const vocabulary *v) {
    const size_t count = (size_t)g->count;
    float *weights = mem_alloc((size_t)g->functions * count, sizeof *weights);
    float *idf = mem_alloc(count, sizeof *idf), *by_feature = mem_alloc(count, sizeof *by_feature);
    int32_t *bucket = mem_alloc(count, sizeof *bucket);
    double *intercepts = mem_alloc((size_t)g->functions, sizeof *intercepts);
    size_t used = 0;
    for (int32_t b = 0; b < NGRAM_BUCKETS; b++) {
        if (v->feature[b] < 0) continue;
        bucket[used] = b;
        idf[used++] = v->idf[v->feature[b]];
    }
    for (int f = 0; f < g->functions; f++) {
        float *to = weights + f;
        intercepts[f] = svm_weights(m, f, by_feature);
        for (size_t j = 0; j < count; j++, to += g->functions)
            *to = by_feature[v->feature[bucket[j]]];
    }
    free(by_feature);
    g->bucket = bucket;
    g->idf = idf;
    g->weights = weights;
    g->intercepts = intercepts;
}

/* The margins [documents][functions] of a corpus, whose classes lie side by side in the machine. */
static double *margins_of(const svm *m, const vocabulary *v, const corpus *c) {
    double *margin = mem_alloc(c->count * (size_t)m->functions, sizeof *margin);
#pragma omp parallel
    {
        counts k;
        node_list row = {0};
        counts_begin(&k);
#pragma omp for schedule(dynamic, 16)
        for (size_t i = 0; i < c->count; i++) {
            size_t length;
            const uint8_t *text = corpus_text(c, i, &length);
            read_row(&row, &k, v->feature, v->bucket, v->idf, text, length);
            svm_margins(m, row.feature, row.value, row.used, margin + i * (size_t)m->functions);
        }
        free(row.feature);
        free(row.value);
        counts_end(&k);
    }
    return margin;
}

/* Of the seconds, for the search, and for all fits. */
static const double search_share = 0.6, fits_share = 0.95;

bool ngrams_fit(ngrams *g, const corpus *c, const int16_t *class, int classes, const double *weight,
                const bool *held, const corpus *test, double seconds, double **valid_margin,
                double **test_margin, error *err) {
    const double began = clock_seconds();
    vocabulary v;
    svm_rows r;
    find_vocabulary(&v, c, class);
    *g = (ngrams){.functions = classes == 2 ? 1 : classes, .count = v.count};
    const bool found = v.count > 0;
    if (found) {
        make_rows(&r, &v, c, class, held);
        weigh_rows(&r, &v, classes);
        log_line("n-grams: %d documents, %" PRId64 " features, %.1f s", r.count, v.count,
                 clock_seconds() - began);
        search s = {.machine = svm_begin(&r, v.count, g->functions, weight),
                    .least = INFINITY,
                    .deadline = began + search_share * seconds,
                    .end = began + fits_share * seconds};
        choose_cost(g, &s, valid_margin);
        fit_chosen(g, &s);
        if (test) *test_margin = margins_of(&s.machine, &v, test);
        take_weights(g, &s.machine, &v);
        svm_end(&s.machine);
        free(s.kept);
        free_rows(&r);
    }
    free(v.feature);
    free(v.bucket);
    free(v.idf);
    if (found) return true;
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
    free(r->row.feature);
    free(r->row.value);
    free(r->feature);
    free(r);
}

void ngram_reader_apply(ngram_reader *r, const uint8_t *text, size_t length, double *margin) {
    const ngrams *g = r->g;
    const node_list *row = &r->row;
    read_row(&r->row, &r->counts, r->feature, g->bucket, g->idf, text, length);
    memcpy(margin, g->intercepts, (size_t)g->functions * sizeof *margin);
    for (size_t j = 0; j < row->used; j++) {
        const float *weights = g->weights + (int64_t)row->feature[j] * g->functions;
        for (int f = 0; f < g->functions; f++) margin[f] += (double)weights[f] * row->value[j];
    }
}
