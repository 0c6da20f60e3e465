#include "page/show.h"

#include "core/json.h"
#include "core/memory.h"
#include "page/html.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    BINS = 40,
    PAGE_BYTES = 1700000 /* limit of the data; leaves room for the rest of the page */
};

/* ---------------------------------------------------------------------------------- classes */

typedef struct classes {
    int count;
    int32_t label[SHOW_MAX_CLASSES]; /* ascending */
} classes;

/* Finds the classes. Returns false if there are more than fit. */
static bool find_classes(const dataset *d, classes *found) {
    *found = (classes){0};
    for (size_t i = 0; i < d->rows; i++) {
        int32_t label = d->label[i];
        int at = 0;
        if (label == UNLABELLED) continue;
        while (at < found->count && found->label[at] < label) at++;
        if (at < found->count && found->label[at] == label) continue;
        if (found->count == SHOW_MAX_CLASSES) return false;
        memmove(found->label + at + 1, found->label + at,
                (size_t)(found->count - at) * sizeof *found->label);
        found->label[at] = label;
        found->count++;
    }
    return true;
}

static int class_of(const classes *all, int32_t label) {
    for (int k = 0; k < all->count; k++) {
        if (all->label[k] == label) return k;
    }
    return -1;
}

static bool check_labelled(const dataset *d, const origin *o, const char *prefix,
                           const show_model *model, error *err) {
    const saved_probe *p = model->probe;
    const int64_t pools = o->known ? o->pools.count : 1;
    char ours[ORIGIN_POOLS_TEXT], theirs[ORIGIN_POOLS_TEXT];
    classes all;
    if (!find_classes(d, &all)) {
        return error_set(err, "%s: more than %d labels", d->labels_path, SHOW_MAX_CLASSES);
    }
    if ((int64_t)d->units != model->hidden * pools) {
        return error_set(err, "%s: %zu units, but the checkpoint has %" PRId64, d->features_path,
                         d->units, model->hidden * pools);
    }
    if (o->known && o->state != model->state) {
        return error_set(err, "%s.json: features of the %s state, but the page shows the %s state",
                         prefix, origin_state_name(o->state), origin_state_name(model->state));
    }
    if (!p) return true;
    if (o->known && p->origin.known &&
        strcmp(origin_pools_text(&o->pools, ours), origin_pools_text(&p->origin.pools, theirs)) !=
            0) {
        return error_set(err, "%s.json: features of --pool %s, but the probe was fitted on %s",
                         prefix, ours, theirs);
    }
    return d->units == p->units || error_set(err, "%s: %zu features, but the probe is on %zu",
                                             d->features_path, d->units, p->units);
}

bool show_open(dataset *labelled, origin *o, const char *prefix, const show_model *model,
               error *err) {
    if (!origin_check(prefix, model->checksum, err) || !dataset_open(labelled, prefix, err)) {
        return false;
    }
    if (origin_read(o, prefix, err) && check_labelled(labelled, o, prefix, model, err)) return true;
    origin_free(o);
    dataset_close(labelled);
    return false;
}

/* ------------------------------------------------------------------------------------ tracks */

/* A value for each byte, by which text can be coloured, and the values of labelled documents to
 * compare it with. */
typedef struct track {
    char name[96];
    const char *kind;
    const float *values; /* the value of byte p is values[p * stride] */
    size_t stride, unit;
} track;

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Returns the largest absolute value. `full` receives the one with full colour, which exceeds 99 %
 * of all. */
static double largest_of(const track *t, size_t bytes, double *full) {
    double *sizes = mem_alloc(bytes, sizeof *sizes), largest = 1;
    size_t count = 0;
    for (size_t p = 0; p < bytes; p++) {
        double size = fabs((double)t->values[p * t->stride]);
        if (!isnan(size)) sizes[count++] = size;
    }
    qsort(sizes, count, sizeof *sizes, compare_doubles);
    if (count > 0 && sizes[count - 1] > 0) largest = sizes[count - 1];
    *full = count > 0 ? sizes[(count - 1) * 99 / 100] : 0;
    if (!(*full > 0)) *full = largest;
    free(sizes);
    return largest;
}

typedef struct labelled_value {
    double value;
    int class;
} labelled_value;

static int compare_values(const void *a, const void *b) {
    double x = ((const labelled_value *)a)->value, y = ((const labelled_value *)b)->value;
    return (x > y) - (x < y);
}

/* Returns the error in per cent of the best threshold between two classes. Sorts the values. */
static double threshold_error(labelled_value *all, size_t count) {
    size_t second = 0, below[2] = {0, 0}, best = count;
    qsort(all, count, sizeof *all, compare_values);
    for (size_t i = 0; i < count; i++) second += all[i].class == 1;
    for (size_t i = 0; i <= count; i++) {
        bool between = i == 0 || i == count || all[i].value > all[i - 1].value;
        /* With class 0 below the threshold and class 1 above. */
        size_t wrong = below[1] + (count - second - below[0]);
        if (between && wrong < best) best = wrong;
        if (between && count - wrong < best) best = count - wrong;
        if (i < count) below[all[i].class]++;
    }
    return 100 * (double)best / (double)count;
}

/* Returns the probe's margin on a labelled document, or a unit's first feature. */
static double final_value(const show_part *part, const track *t, size_t row) {
    const dataset *d = part->labelled;
    const float *x = d->x + row * d->units;
    if (strcmp(t->kind, "probe") != 0) return x[t->unit];
    double margin = part->probe->weights[d->units];
    for (size_t u = 0; u < d->units; u++) margin += part->probe->weights[u] * x[u];
    return margin;
}

/* Describes the values that a histogram counts. The caller frees the text. */
static char *subject_of(const show_part *part, const track *t) {
    static const char *const texts[POOL_KINDS] = {
        [POOL_LAST] = "%s at the end of each labelled document",
        [POOL_MEAN] = "mean of %s over each labelled document",
        [POOL_MAX] = "largest value of %s in each labelled document"};
    const origin *o = part->origin;
    if (strcmp(t->kind, "probe") == 0) return mem_format("%s, of each labelled document", t->name);
    const pooling kind = o->known ? o->pools.kinds[0] : POOL_LAST;
    return mem_format(texts[kind], t->name);
}

static void write_histogram(json_writer *w, const show_part *part, const classes *all,
                            const track *t) {
    const dataset *d = part->labelled;
    labelled_value *values = mem_alloc(d->rows, sizeof *values);
    size_t count = 0, counts[SHOW_MAX_CLASSES][BINS] = {0};
    double least = INFINITY, most = -INFINITY;
    for (size_t i = 0; i < d->rows; i++) {
        int class = class_of(all, d->label[i]);
        if (class < 0) continue;
        double value = final_value(part, t, i);
        values[count++] = (labelled_value){value, class};
        least = fmin(least, value);
        most = fmax(most, value);
    }
    if (!(most > least)) most = least + 1;
    for (size_t i = 0; i < count; i++) {
        int bin = (int)(BINS * (values[i].value - least) / (most - least));
        counts[values[i].class][bin < BINS ? bin : BINS - 1]++;
    }
    char *subject = subject_of(part, t);
    json_object_begin(w, "histogram");
    json_string(w, "subject", subject);
    free(subject);
    json_number(w, "least", least);
    json_number(w, "most", most);
    json_number(w, "error", all->count == 2 ? threshold_error(values, count) : NAN);
    json_array_begin(w, "counts");
    for (int k = 0; k < all->count; k++) {
        json_array_begin(w, NULL);
        for (int b = 0; b < BINS; b++) json_integer(w, NULL, (int64_t)counts[k][b]);
        json_array_end(w);
    }
    json_array_end(w);
    json_object_end(w);
    free(values);
}

/* ------------------------------------------------------------------------------------- data */

static void base64_member(json_writer *w, const char *key, const void *bytes, size_t count) {
    char *text;
    size_t size;
    FILE *out = mem_stream(&text, &size);
    html_base64(out, bytes, count);
    mem_stream_end(out);
    json_string(w, key, text);
    free(text);
}

/* Writes values as 16-bit multiples of scale / 32767, little-endian. -32768 means none. */
static void write_track(json_writer *w, const show_part *part, const classes *all, const track *t) {
    size_t bytes = part->reading->bytes;
    double full, scale = largest_of(t, bytes, &full);
    uint8_t *stored = mem_alloc(bytes, 2);
    for (size_t p = 0; p < bytes; p++) {
        double value = t->values[p * t->stride];
        uint16_t bits = isnan(value) ? 0x8000 : (uint16_t)lround(value / scale * 32767);
        stored[2 * p] = (uint8_t)bits;
        stored[2 * p + 1] = (uint8_t)(bits >> 8);
    }
    json_object_begin(w, NULL);
    json_string(w, "name", t->name);
    json_string(w, "kind", t->kind);
    json_number(w, "scale", scale);
    json_number(w, "full", full);
    base64_member(w, "values", stored, 2 * bytes);
    if (part->labelled && all->count > 0 && strcmp(t->kind, "surprise") != 0) {
        write_histogram(w, part, all, t);
    }
    json_object_end(w);
    free(stored);
}

static void write_tracks(json_writer *w, const show_part *part, const classes *all) {
    const reading *r = part->reading;
    json_array_begin(w, "tracks");
    if (r->margin) {
        track t = {.kind = "probe", .values = r->margin, .stride = 1};
        snprintf(t.name, sizeof t.name, "probe: score of %.64s", part->probe->name[1]);
        write_track(w, part, all, &t);
    }
    for (int k = 0; k < r->count; k++) {
        track t = {.kind = "unit",
                   .values = r->states + k,
                   .stride = (size_t)r->count,
                   .unit = r->units[k]};
        snprintf(t.name, sizeof t.name, "unit %zu", r->units[k]);
        write_track(w, part, all, &t);
    }
    track t = {
        .name = "surprise: bits a byte", .kind = "surprise", .values = r->surprise, .stride = 1};
    write_track(w, part, all, &t);
    json_array_end(w);
}

static void write_label(json_writer *w, const char *key, char *const *names, int32_t label) {
    char text[16];
    snprintf(text, sizeof text, "%d", label);
    json_string(w, key, names && label >= 0 ? names[label] : text);
}

static void write_documents(json_writer *w, const corpus *c) {
    size_t at = 0;
    json_array_begin(w, "documents");
    for (size_t i = 0; i < c->count; i++) {
        const document *d = &c->documents[i];
        bool labelled = !d->raw && d->label != UNLABELLED;
        json_object_begin(w, NULL);
        json_integer(w, "start", (int64_t)at);
        json_integer(w, "length", (int64_t)d->length);
        if (labelled) {
            write_label(w, "label", c->names, d->label);
        } else {
            json_number(w, "label", NAN);
        }
        json_object_end(w);
        at += d->length;
    }
    json_array_end(w);
}

static void write_data(FILE *out, const show_part *part) {
    const reading *r = part->reading;
    const corpus *c = part->texts;
    classes all = {0};
    if (part->labelled) find_classes(part->labelled, &all);
    char *text;
    size_t size, at = 0;
    FILE *stream = mem_stream(&text, &size);
    json_writer w = {stream, false};
    json_object_begin(&w, NULL);
    write_documents(&w, c);
    uint8_t *bytes = mem_alloc(r->bytes, 1);
    for (size_t i = 0; i < c->count; i++) {
        memcpy(bytes + at, c->bytes + c->documents[i].offset, c->documents[i].length);
        at += c->documents[i].length;
    }
    base64_member(&w, "bytes", bytes, r->bytes);
    free(bytes);
    json_integer(&w, "nexts", READING_NEXT);
    base64_member(&w, "next", r->next, r->bytes * READING_NEXT * sizeof *r->next);
    if (part->probe) json_string(&w, "positive", part->probe->name[1]);
    json_array_begin(&w, "classes");
    for (int k = 0; k < all.count; k++) {
        write_label(&w, NULL, part->origin->names, all.label[k]);
    }
    json_array_end(&w);
    write_tracks(&w, part, &all);
    json_object_end(&w);
    mem_stream_end(stream);
    html_json(out, "reading", text, size);
    free(text);
}

/* ------------------------------------------------------------------------------------- page */

int64_t show_most_bytes(int units, bool probe) {
    double a_byte = 1 + sizeof(next_byte) * READING_NEXT + 2 * (units + 1 + probe);
    return (int64_t)(PAGE_BYTES / (a_byte * 4 / 3));
}

void show_write(FILE *out, const show_part *part) {
    fputs("<section aria-labelledby=\"texts\">\n<h2 id=\"texts\">Text, byte by byte</h2>\n"
          "<noscript><p>Colouring the text needs JavaScript.</p></noscript>\n"
          "<div class=\"controls\"><label>Colour by<select id=\"track\"></select></label>"
          "<div class=\"scale\" id=\"scale\"></div></div>\n",
          out);
    if (part->labelled) fputs("<figure id=\"histogram\"></figure>\n", out);
    fputs("<p class=\"quiet\" id=\"keys\">Point at a character, or move to a text with Tab and "
          "through it with the arrow keys, Home and End. A state is the one after the byte; "
          "orange is above zero, blue below; one value in a hundred is beyond the scale.</p>\n"
          "<div id=\"documents\"></div>\n"
          "<div class=\"readout\" id=\"readout\" role=\"status\" aria-live=\"polite\">"
          "<p>No byte chosen yet.</p></div>\n</section>\n",
          out);
    write_data(out, part);
}
