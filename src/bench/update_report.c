#include "bench/grid.h"
#include "bench/update.h"

#include "core/log.h"

#include <math.h>

static const char *const arena_keys[PLAN_ARENAS] = {"weights", "optimiser", "activations",
                                                    "tables"};

static double bytes_of_update(const update_results *r) {
    return (double)r->batch * (double)r->bptt;
}

static double floor_of(const update_results *r, double parts[TIME_PARTS]) {
    return update_floor_seconds(&r->floor, &r->ceilings, r->math, parts);
}

static double bytes_per_second(const update_results *r) {
    return bytes_of_update(r) / r->update;
}

static double floor_share(const update_results *r) {
    return floor_of(r, NULL) / r->update;
}

/* At 6 operations for each parameter and byte. */
static double tflops(const update_results *r) {
    return 6 * (double)r->parameters * bytes_per_second(r) * 1e-12;
}

/* The microseconds of a step in one direction, and their floor including the waits of the
 * chain. */
static double step_time(const update_results *r, time_part part) {
    return r->parts[part] / (double)r->bptt * 1e6;
}

static double step_floor(const update_results *r, time_part part) {
    return update_floor_chain(&r->floor, &r->ceilings, r->math, part) / (double)r->bptt * 1e6;
}

static double peak_memory(const update_results *r) {
    double total = 0;
    for (int a = 0; a < PLAN_ARENAS; a++) total += (double)r->memory[a];
    return total;
}

void update_explain(const update_results *r, FILE *out) {
    update_floor_print(&r->floor, &r->ceilings, r->math, out);
    if (r->kernels) fprintf(out, "%s\n", r->kernels);
}

static void text_parts(const update_results *r, FILE *out) {
    double floors[TIME_PARTS], floor = floor_of(r, floors);
    fprintf(out, "%-18s %10s %8s %10s\n", "", "ms", "share", "floor ms");
    for (int part = 0; part < TIME_PARTS; part++) {
        if (part == TIME_RECOMPUTE && r->segments == 1) continue;
        fprintf(out, "%-18s %10.3f %6.1f %% %10.3f\n",
                part == TIME_WEIGHT_GRADIENT ? "weight gradient" : time_part_names[part],
                r->parts[part] * 1e3, 100 * r->parts[part] / r->update, floors[part] * 1e3);
    }
    fprintf(out, "%-18s %10.3f %8s %10.3f\n\n", "update", r->update * 1e3, "", floor * 1e3);
}

/* Explains a part that is faster than its floor: a ceiling was measured too low, because the
 * machine had other work. */
static void text_impossible(const update_results *r, FILE *out) {
    double floors[TIME_PARTS];
    floor_of(r, floors);
    for (int part = 0; part < TIME_PARTS; part++) {
        if (r->parts[part] >= floors[part]) continue;
        fprintf(out, "%s is faster than its floor: a ceiling was measured too low\n",
                time_part_names[part]);
    }
}

static void text_steps(const update_results *r, FILE *out) {
    static const time_part parts[] = {TIME_FORWARD, TIME_BACKWARD};
    fputs("a step:", out);
    for (int i = 0; i < 2; i++) {
        double time = step_time(r, parts[i]), least = step_floor(r, parts[i]);
        fprintf(out, "%s %s %.1f us, floor %.1f (%.0f %%)", i ? "," : "", time_part_names[parts[i]],
                time, least, 100 * least / time);
    }
    if (r->ceilings.exchange > 0) fprintf(out, "; %d waits each way", r->floor.waits);
    fputc('\n', out);
}

/* The share of the floor, which is the operations at the measured rate. */
static double product_share(const update_results *r, bench_product product) {
    return r->product_operations / r->ceilings.rate[r->math] / r->products[product];
}

static void text_products(const update_results *r, FILE *out) {
    if (isnan(r->products[PRODUCT_FPROP])) return;
    fputs("its recurrent products alone, a step:", out);
    for (int product = 0; product < PRODUCTS; product++) {
        fprintf(out, "%s %s %.1f us (%.0f %% of the floor)", product ? "," : "",
                bench_product_names[product], r->products[product] * 1e6,
                100 * product_share(r, (bench_product)product));
    }
    fputc('\n', out);
}

void update_text(const update_results *r, FILE *out) {
    char text[160];
    fprintf(out, "%s, %s\n%s\nmeasured: %s\n", r->device, math_names[r->math], r->description,
            ceilings_text(&r->ceilings, text));
    fprintf(out, "memory:");
    for (int a = 0; a < PLAN_ARENAS; a++) {
        fprintf(out, " %s %s,", arena_keys[a], log_bytes(text, (double)r->memory[a]));
    }
    fprintf(out, " at most %s\n\n", log_bytes(text, peak_memory(r)));
    text_parts(r, out);
    fprintf(out, "training        %12.0f bytes/s\n", bytes_per_second(r));
    fprintf(out, "scoring         %12.0f bytes/s\n", bytes_of_update(r) / r->forward);
    fprintf(out, "%.3g TFLOP/s at 6 operations a parameter and byte; %.0f %% of the floor\n",
            tflops(r), 100 * floor_share(r));
    text_impossible(r, out);
    text_steps(r, out);
    text_products(r, out);
}

static void json_steps(const update_results *r, json_writer *w) {
    static const time_part parts[] = {TIME_FORWARD, TIME_BACKWARD};
    json_object_begin(w, "step");
    json_integer(w, "waits", r->floor.waits);
    for (int i = 0; i < 2; i++) {
        char key[48];
        snprintf(key, sizeof key, "%s_us", time_part_names[parts[i]]);
        json_number(w, key, step_time(r, parts[i]));
        snprintf(key, sizeof key, "%s_floor_us", time_part_names[parts[i]]);
        json_number(w, key, step_floor(r, parts[i]));
    }
    json_object_end(w);
}

void update_json(const update_results *r, FILE *out) {
    json_writer w = {out, false};
    double floors[TIME_PARTS], floor = floor_of(r, floors);
    json_object_begin(&w, NULL);
    json_string(&w, "device", r->device);
    json_string(&w, "precision", math_names[r->math]);
    json_string(&w, "model", r->description);
    json_integer(&w, "hidden", r->hidden);
    json_integer(&w, "parameters", r->parameters);
    json_integer(&w, "batch", r->batch);
    json_integer(&w, "bptt", r->bptt);
    json_integer(&w, "segments", r->segments);
    json_number(&w, "bytes_per_second", bytes_per_second(r));
    json_number(&w, "ms_per_update", r->update * 1e3);
    json_object_begin(&w, "parts_ms");
    for (int part = 0; part < TIME_PARTS; part++) {
        json_number(&w, time_part_names[part], r->parts[part] * 1e3);
    }
    json_object_end(&w);
    json_number(&w, "forward_bytes_per_second", bytes_of_update(r) / r->forward);
    json_number(&w, "tflops", tflops(r));
    json_number(&w, "floor_ms", floor * 1e3);
    json_object_begin(&w, "floor_parts_ms");
    for (int part = 0; part < TIME_PARTS; part++) {
        json_number(&w, time_part_names[part], floors[part] * 1e3);
    }
    json_object_end(&w);
    json_number(&w, "floor_share", floor_share(r));
    json_steps(r, &w);
    for (int product = 0; product < PRODUCTS; product++) {
        char key[32];
        snprintf(key, sizeof key, "%s_us", bench_product_names[product]);
        json_number(&w, key, r->products[product] * 1e6);
    }
    json_number(&w, "peak_memory", peak_memory(r));
    json_object_begin(&w, "memory");
    for (int a = 0; a < PLAN_ARENAS; a++) {
        json_integer(&w, arena_keys[a], (int64_t)r->memory[a]);
    }
    json_object_end(&w);
    ceilings_json(&r->ceilings, &w);
    json_object_end(&w);
    fputc('\n', out);
}
