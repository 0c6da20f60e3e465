#include "bench/conv.h"

#include "core/memory.h"
#include "core/philox.h"

#include <math.h>
#include <stdlib.h>

/* ---------------------------------------------------------------------------------- patterns */

/* Draws `most` of the numbers below `count`, ascending, to `chosen`. */
static void draw_nodes(philox_stream *random, int count, int most, int32_t *chosen) {
    for (int j = 0, left = most; left > 0; j++) {
        if ((int)philox_below(random, (uint64_t)(count - j)) >= left) continue;
        chosen[most - left--] = j;
    }
}

static layout *draw_layout(const conv_options *o, double density) {
    const int nodes = o->features / o->block;
    const double wanted = round(density * nodes * nodes);
    const int count = wanted < 1 ? 1 : (int)wanted;
    int32_t(*pairs)[2] = mem_alloc((size_t)count, sizeof *pairs);
    int32_t *chosen = mem_alloc((size_t)nodes, sizeof *chosen);
    philox_stream random = philox_start(1, PHILOX_GRAPH, 0, 0);
    for (int i = 0, made = 0; i < nodes; i++) {
        const int row = (int)((int64_t)count * (i + 1) / nodes) - made;
        draw_nodes(&random, nodes, row, chosen);
        for (int k = 0; k < row; k++, made++) {
            pairs[made][0] = i;
            pairs[made][1] = chosen[k];
        }
    }
    layout *l = layout_pairs(nodes, nodes, (const int32_t(*)[2])pairs, count, o->block,
                             conv_positions(o->shape.filter));
    free(chosen);
    free(pairs);
    return l;
}

/* ------------------------------------------------------------------------------------ timing */

typedef struct job {
    backend *be;
    const device_layout *layout;
    const tap_table *taps;
    bench_product product;
    int images;
    void *w, *x, *y, *dw; /* x serves as dx too, and y as dy */
} job;

static void issue(void *argument, int set) {
    (void)set;
    const job *j = argument;
    backend *be = j->be;
    switch (j->product) {
    case PRODUCT_FPROP: be->conv_fprop(be, j->layout, j->taps, j->w, j->x, j->images, j->y); return;
    case PRODUCT_DGRAD: be->conv_dgrad(be, j->layout, j->taps, j->w, j->y, j->images, j->x); return;
    default: be->conv_wgrad(be, j->layout, j->taps, j->y, j->x, j->images, j->dw);
    }
}

static bool allocate(backend *be, void **array, size_t count, size_t size, error *err) {
    *array = be->allocate(be, count * size);
    return *array || error_set(err, "not enough memory on %s for %zu bytes of operands", be->device,
                               count * size);
}

/* Each product begins with fresh operands, since a result takes an operand's place. */
static bool time_row(job *j, const conv_options *o, const layout *l, conv_row *row, error *err) {
    backend *be = j->be;
    const bench_math math = bench_precisions[o->precision].math;
    const size_t columns = (size_t)o->images, weights = layout_weights(l);
    const size_t inputs = layout_inputs(l) * columns * (size_t)j->taps->in_positions;
    const size_t outputs = layout_rows(l) * columns * (size_t)j->taps->out_positions;
    bool done = allocate(be, &j->w, weights, be->operand_size, err) &&
                allocate(be, &j->x, inputs, be->operand_size, err) &&
                allocate(be, &j->y, outputs, be->operand_size, err) &&
                allocate(be, &j->dw, weights, be->real_size, err);
    row->density = (double)l->blocks / ((double)l->out_nodes * (double)l->in_nodes);
    for (int product = 0; product < PRODUCTS && done; product++) {
        be->bench->randomise(be, j->w, math, weights, 1);
        be->bench->randomise(be, j->x, math, inputs, 2);
        be->bench->randomise(be, j->y, math, outputs, 3);
        j->product = (bench_product)product;
        done = time_operation(be, &o->how, issue, j, 1, &row->seconds[product], err);
    }
    void *const arrays[] = {j->w, j->x, j->y, j->dw};
    for (int i = 0; i < 4; i++) {
        if (arrays[i]) be->release(be, arrays[i]);
    }
    return done;
}

bool conv_measure(const conv_options *o, conv_results *results, error *err) {
    *results = (conv_results){.count = 0};
    backend *be = backend_cuda(bench_precisions[o->precision].precision, 0, err);
    if (!be) return false;
    const int multiple = be->product_multiple;
    tap_table *host = taps_of(&o->shape), *taps = be->taps_create(be, host);
    bool done =
        o->images % multiple == 0 ||
        error_usage(err, "--images: expected a multiple of %d, got %d", multiple, o->images);
    done = done && ceilings_measure(be, &results->ceilings, err);
    snprintf(results->device, sizeof results->device, "%s", be->device);
    const double operations = 2.0 * o->features * o->features * conv_positions(o->shape.filter) *
                              conv_positions(o->shape.out) * o->images;
    results->dense = operations / results->ceilings.rate[bench_precisions[o->precision].math];
    for (int i = 0; i < o->density_count && done; i++) {
        layout *l = draw_layout(o, o->densities[i]);
        device_layout *device = be->layout_create(be, l);
        job j = {.be = be, .layout = device, .taps = taps, .images = o->images};
        done = time_row(&j, o, l, &results->rows[results->count++], err);
        be->layout_free(be, device);
        layout_free(l);
    }
    be->taps_free(be, taps);
    taps_free(host);
    be->destroy(be);
    return done;
}

/* ------------------------------------------------------------------------------------ reports */

void conv_text(const conv_options *o, const conv_results *results, FILE *out) {
    char text[160];
    fprintf(out,
            "%s, %s; %d features in blocks of %d, %d x %d filter, %d x %d pixels, %d images\n"
            "measured: %s\ndense, at the measured rate: %.0f us\n\n%8s",
            results->device, bench_precisions[o->precision].name, o->features, o->block,
            o->shape.filter[0], o->shape.filter[1], o->shape.in[0], o->shape.in[1], o->images,
            ceilings_text(&results->ceilings, text), results->dense * 1e6, "density");
    for (int k = 0; k < PRODUCTS; k++) fprintf(out, " %9s %8s", bench_product_names[k], "of dense");
    fputc('\n', out);
    for (int i = 0; i < results->count; i++) {
        const conv_row *row = &results->rows[i];
        fprintf(out, "%8.4f", row->density);
        for (int k = 0; k < PRODUCTS; k++) {
            fprintf(out, " %6.0f us %8.3f", row->seconds[k] * 1e6,
                    row->seconds[k] / results->dense);
        }
        fputc('\n', out);
    }
}

void conv_json(const conv_options *o, const conv_results *results, FILE *out) {
    json_writer w = {out, false};
    json_object_begin(&w, NULL);
    json_string(&w, "device", results->device);
    json_string(&w, "precision", bench_precisions[o->precision].name);
    json_integer(&w, "features", o->features);
    json_integer(&w, "block", o->block);
    json_integer(&w, "filter", o->shape.filter[0]);
    json_integer(&w, "size", o->shape.in[0]);
    json_integer(&w, "images", o->images);
    ceilings_json(&results->ceilings, &w);
    json_number(&w, "dense_us", results->dense * 1e6);
    json_array_begin(&w, "rows");
    for (int i = 0; i < results->count; i++) {
        json_object_begin(&w, NULL);
        json_number(&w, "density", results->rows[i].density);
        for (int k = 0; k < PRODUCTS; k++) {
            char name[16];
            snprintf(name, sizeof name, "%s_us", bench_product_names[k]);
            json_number(&w, name, results->rows[i].seconds[k] * 1e6);
        }
        json_object_end(&w);
    }
    json_array_end(&w);
    json_object_end(&w);
    fputc('\n', out);
}
