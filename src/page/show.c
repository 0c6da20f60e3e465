#include "page/show.h"

#include "core/json.h"
#include "core/memory.h"
#include "core/utf8.h"
#include "page/assets.h"
#include "page/html.h"
#include "probe/dataset.h"

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

/* A label's name or, without one, its number, for which `text` has room. */
static const char *label_text(char *const *names, int32_t label, char text[16]) {
    snprintf(text, 16, "%d", label);
    return names && label >= 0 ? names[label] : text;
}

/* The class of each row, [rows]; the caller frees it. */
static int16_t *classes_of_rows(const dataset *d, const classes *all) {
    int16_t *class = mem_alloc(d->rows, sizeof *class);
    for (size_t i = 0; i < d->rows; i++) class[i] = (int16_t)class_of(all, d->label[i]);
    return class;
}

int show_choose_units(const dataset *labelled, const saved_probe *probe, int64_t hidden,
                      size_t *units, int count) {
    classes all = {0};
    if (!labelled || !find_classes(labelled, &all) || all.count != 2) {
        return probe ? saved_top_units(probe, hidden, units, count) : 0;
    }
    int16_t *class = classes_of_rows(labelled, &all);
    const int found = separation_rank(labelled, class, (size_t)hidden, units, count);
    free(class);
    return found;
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
    size_t stride;
    size_t function;           /* a probe's */
    separation split;          /* of a unit, if there are labelled documents of two classes */
    const char *above, *below; /* what large and small values speak for, or NULL */
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

/* Returns the value of a labelled document that a track's histogram counts: the margin of one of
 * the probe's functions, or a unit's feature. */
static double final_value(const show_part *part, const track *t, size_t row) {
    const dataset *d = part->labelled;
    const float *x = d->x + row * d->units;
    if (strcmp(t->kind, "probe") != 0) return x[t->split.feature];
    const double *weights = part->probe->weights + t->function * (d->units + 1);
    double margin = weights[d->units];
    for (size_t u = 0; u < d->units; u++) margin += weights[u] * x[u];
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
    if (!o->known) return mem_format(texts[POOL_LAST], t->name);
    /* Features of one pooling after the other. */
    const size_t pool = t->split.feature * (size_t)o->pools.count / part->labelled->units;
    return mem_format(texts[o->pools.kinds[pool]], t->name);
}

static void write_histogram(json_writer *w, const show_part *part, const classes *all,
                            const track *t) {
    const dataset *d = part->labelled;
    const bool probe = strcmp(t->kind, "probe") == 0, two = all->count == 2;
    double *values = mem_alloc(d->rows, sizeof *values);
    int16_t *class = classes_of_rows(d, all);
    size_t count = 0, wrong = 0, counts[SHOW_MAX_CLASSES][BINS] = {0};
    double least = INFINITY, most = -INFINITY;
    for (size_t i = 0; i < d->rows; i++) {
        if (class[i] < 0) continue;
        values[i] = final_value(part, t, i);
        count++;
        wrong += (values[i] > 0) != (class[i] == 1);
        least = fmin(least, values[i]);
        most = fmax(most, values[i]);
    }
    if (!(most > least)) most = least + 1;
    for (size_t i = 0; i < d->rows; i++) {
        if (class[i] < 0) continue;
        const int bin = (int)(BINS * (values[i] - least) / (most - least));
        counts[class[i]][bin < BINS ? bin : BINS - 1]++;
    }
    char *subject = subject_of(part, t);
    json_object_begin(w, "histogram");
    json_string(w, "subject", subject);
    free(subject);
    json_number(w, "least", least);
    json_number(w, "most", most);
    json_number(w, "threshold", !two ? NAN : probe ? 0 : t->split.threshold);
    json_number(w, "error",
                !two    ? NAN
                : probe ? 100 * (double)wrong / (double)count
                        : t->split.error);
    json_array_begin(w, "counts");
    for (int k = 0; k < all->count; k++) {
        json_array_begin(w, NULL);
        for (int b = 0; b < BINS; b++) json_integer(w, NULL, (int64_t)counts[k][b]);
        json_array_end(w);
    }
    json_array_end(w);
    json_object_end(w);
    free(class);
    free(values);
}

/* ------------------------------------------------------------------------------------- data */

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
    if (t->above) json_string(w, "above", t->above);
    if (t->below) json_string(w, "below", t->below);
    json_base64(w, "values", stored, 2 * bytes);
    if (part->labelled && all->count > 0 && strcmp(t->kind, "surprise") != 0) {
        write_histogram(w, part, all, t);
    }
    json_object_end(w);
    free(stored);
}

/* Finds the better of a unit's features for telling two classes apart. */
static separation split_of(const show_part *part, const int16_t *class, size_t unit) {
    const origin *o = part->origin;
    const size_t units = part->labelled->units, pools = o->known ? (size_t)o->pools.count : 1;
    separation best = {.error = INFINITY};
    for (size_t f = unit; f < units; f += units / pools) {
        const separation s = separation_find(part->labelled, class, f);
        if (s.error < best.error) best = s;
    }
    return best;
}

/* Everything that text can be coloured by, and the classes of the labelled documents. */
typedef struct tracks {
    track *list;
    int count;
    classes all;
    char *names[SHOW_MAX_CLASSES];
} tracks;

static void add_units(tracks *made, const show_part *part) {
    const reading *r = part->reading;
    const bool two = part->labelled && made->all.count == 2;
    int16_t *class = two ? classes_of_rows(part->labelled, &made->all) : NULL;
    for (int k = 0; k < r->count; k++) {
        track *t = &made->list[made->count++];
        *t = (track){.kind = "unit", .values = r->states + k, .stride = (size_t)r->count};
        snprintf(t->name, sizeof t->name, "unit %zu", r->units[k]);
        t->split.feature = r->units[k];
        if (two) {
            t->split = split_of(part, class, r->units[k]);
            t->above = made->names[t->split.above];
            t->below = made->names[!t->split.above];
        }
    }
    free(class);
}

static void add_scores(tracks *made, const show_part *part) {
    const reading *r = part->reading;
    const saved_probe *p = part->probe;
    for (int k = 0; r->margin && k < r->models; k++) {
        track *t = &made->list[made->count++];
        *t = (track){.kind = "probe",
                     .values = r->margin + k,
                     .stride = (size_t)r->models,
                     .function = (size_t)k,
                     .above = p->name[p->classes == 2 ? 1 : k],
                     .below = p->classes == 2 ? p->name[0] : "others"};
        snprintf(t->name, sizeof t->name, "probe: score of %.64s", t->above);
    }
}

/* The unit that separates the labels best comes first; without labels, the probe. */
static tracks tracks_make(const show_part *part) {
    const reading *r = part->reading;
    tracks made = {.list = mem_alloc((size_t)r->count + (size_t)r->models + 1, sizeof *made.list)};
    if (part->labelled) find_classes(part->labelled, &made.all);
    for (int k = 0; k < made.all.count; k++) {
        char text[16];
        made.names[k] = mem_string(label_text(part->origin->names, made.all.label[k], text));
    }
    const bool units_first = part->labelled && made.all.count == 2;
    if (!units_first) add_scores(&made, part);
    add_units(&made, part);
    if (units_first) add_scores(&made, part);
    made.list[made.count++] = (track){
        .name = "surprise: bits a byte", .kind = "surprise", .values = r->surprise, .stride = 1};
    return made;
}

static void tracks_free(tracks *made) {
    for (int k = 0; k < made->all.count; k++) free(made->names[k]);
    free(made->list);
}

static void write_documents(json_writer *w, const corpus *c) {
    size_t at = 0;
    json_array_begin(w, "documents");
    for (size_t i = 0; i < c->count; i++) {
        const document *d = &c->documents[i];
        bool labelled = document_has_label(d);
        json_object_begin(w, NULL);
        json_integer(w, "start", (int64_t)at);
        json_integer(w, "length", (int64_t)d->length);
        if (labelled) {
            char text[16];
            json_string(w, "label", label_text(c->names, d->label, text));
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
    tracks made = tracks_make(part);
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
    json_base64(&w, "bytes", bytes, r->bytes);
    free(bytes);
    json_integer(&w, "nexts", READING_NEXT);
    json_base64(&w, "next", (const uint8_t *)r->next, r->bytes * READING_NEXT * sizeof *r->next);
    json_number(&w, "scale", part->probe ? part->probe->scale : 1);
    json_array_begin(&w, "classes");
    for (int k = 0; k < made.all.count; k++) json_string(&w, NULL, made.names[k]);
    json_array_end(&w);
    json_array_begin(&w, "tracks");
    for (int k = 0; k < made.count; k++) write_track(&w, part, &made.all, &made.list[k]);
    json_array_end(&w);
    json_object_end(&w);
    tracks_free(&made);
    mem_stream_end(stream);
    html_json(out, "reading", text, size);
    free(text);
}

/* ---------------------------------------------------------------------------------- picture */

enum { COLUMNS = 84, ADVANCE = 9, LINE = 26, MARGIN = 12, SHADES = 20 };

/* Writes one line of text, `count` bytes from position `at` on, above boxes of its colours.
 * `turned`: large values speak for the first label. */
static void svg_line(FILE *out, const track *t, const uint8_t *bytes, size_t at, size_t count,
                     double full, bool turned, int y) {
    const double centre = strcmp(t->kind, "unit") == 0 ? t->split.threshold : 0;
    int column = 0, from = 0, shade = 0;
    char *shown = mem_alloc(count + 1, 4);
    for (size_t i = 0, used = 0; i <= count;) {
        size_t length = i < count ? utf8_length(bytes + i, count - i) : 1;
        if (length == 0) length = 1;
        int here = 0;
        if (i < count) {
            const double value = t->values[(at + i + length - 1) * t->stride] - centre;
            here = (int)lround(SHADES * fmax(-1, fmin(1, (turned ? -value : value) / full)));
            const bool plain =
                bytes[i] >= ' ' && bytes[i] != 0x7F && (bytes[i] < 0x80 || length > 1);
            if (plain) memcpy(shown + used, bytes + i, length);
            if (!plain) shown[used] = ' ';
            used += plain ? length : 1;
        }
        if (here != shade || i == count) {
            if (shade != 0) {
                fprintf(out,
                        "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" "
                        "fill=\"var(--%s)\" fill-opacity=\"%.2f\"/>\n",
                        MARGIN + from * ADVANCE, y, (column - from) * ADVANCE, LINE - 2,
                        shade < 0 ? "low" : "high", abs(shade) / (double)SHADES);
            }
            from = column;
            shade = here;
        }
        i += length;
        column++;
    }
    fprintf(out, "<text class=\"mono\" xml:space=\"preserve\" x=\"%d\" y=\"%d\" textLength=\"%d\">",
            MARGIN, y + 17, (column - 1) * ADVANCE);
    html_text(out, shown);
    fputs("</text>\n", out);
    free(shown);
}

/* The number of bytes of the next line: at most COLUMNS, up to the end of a word if there is
 * one. */
static size_t line_length(const uint8_t *text, size_t left) {
    if (left <= COLUMNS) return left;
    size_t length = COLUMNS;
    while (length > 0 && text[length - 1] != ' ') length--;
    if (length > 0) return length;
    for (length = COLUMNS; length > 1 && (text[length] & 0xC0) == 0x80;) length--;
    return length;
}

void show_svg(FILE *out, const show_part *part) {
    const corpus *c = part->texts;
    tracks made = tracks_make(part);
    const track *t = &made.list[0];
    const bool turned = t->above && made.all.count == 2 && t->above == made.names[0];
    double full;
    char *body;
    size_t size, start = 0;
    int y = MARGIN;
    FILE *lines = mem_stream(&body, &size);
    largest_of(t, part->reading->bytes, &full);
    for (size_t i = 0; i < c->count; i++, y += LINE / 2) {
        const document *d = &c->documents[i];
        const uint8_t *text = c->bytes + d->offset;
        size_t at = d->raw || d->length < DOCUMENT_FRAME ? 0 : 2; /* "\n " frames a document */
        while (at < d->length) {
            const size_t count = line_length(text + at, d->length - at);
            svg_line(lines, t, text + at, start + at, count, full, turned, y);
            at += count;
            y += LINE;
        }
        start += d->length;
    }
    mem_stream_end(lines);
    const int width = 2 * MARGIN + COLUMNS * ADVANCE;
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d "
            "%d\" class=\"chart\">\n<style>%s.chart .mono { font: 15px ui-monospace, "
            "monospace; }</style>\n<rect width=\"100%%\" height=\"100%%\" fill=\"var(--paper)\"/>\n"
            "<title>",
            width, y + 2 * MARGIN, width, y + 2 * MARGIN, chart_css);
    html_text(out, t->name);
    fputs("</title>\n", out);
    fwrite(body, 1, size, out);
    free(body);
    fprintf(out, "<text x=\"%d\" y=\"%d\">", MARGIN, y + MARGIN);
    char *subject = part->labelled ? subject_of(part, t) : mem_string(t->name);
    html_text(out, subject);
    if (made.all.count == 2) fprintf(out, ": one threshold errs on %.2f %%", t->split.error);
    fputs("</text>\n</svg>\n", out);
    free(subject);
    tracks_free(&made);
}

/* ------------------------------------------------------------------------------------- page */

int64_t show_most_bytes(int units, int functions) {
    double a_byte = 1 + sizeof(next_byte) * READING_NEXT + 2 * (units + 1 + functions);
    return (int64_t)(PAGE_BYTES / (a_byte * 4 / 3));
}

void show_write(FILE *out, const show_part *part) {
    fputs("<section aria-labelledby=\"texts\">\n<h2 id=\"texts\">Text, byte by byte</h2>\n"
          "<noscript><p>Colouring the text needs JavaScript.</p></noscript>\n"
          "<div class=\"controls\"><label>Colour by<select id=\"track\"></select></label>"
          "<div class=\"scale\" id=\"scale\"></div></div>\n",
          out);
    if (part->labelled) fputs("<figure id=\"histogram\"></figure>\n", out);
    fputs("<div id=\"documents\"></div>\n"
          "<p class=\"quiet\" id=\"keys\">Point at a character, or move to a text with Tab and "
          "through it with the arrow keys, Home and End. A state is the one after the byte; a "
          "probe's score is that of the text up to the end of the word; one value in a hundred is "
          "beyond the scale.</p>\n"
          "<div class=\"readout\" id=\"readout\" role=\"status\" aria-live=\"polite\">"
          "<p>No byte chosen yet.</p></div>\n</section>\n",
          out);
    write_data(out, part);
}
