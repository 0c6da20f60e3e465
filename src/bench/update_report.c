#include "bench/update.h"

#include "core/log.h"

#include <math.h>

static const char *const arena_keys[PLAN_ARENAS] = {"weights", "optimiser", "activations"};

static double bytes_of_update(const update_results *r) {
    return (double)r->batch * (double)r->bptt;
}

static double floor_of(const update_results *r, double parts[TIME_PARTS]) {
    return update_floor_seconds(&r->floor, &r->ceilings, r->math, parts);
}

double update_bytes_per_second(const update_results *r) {
    return bytes_of_update(r) / r->update;
}

double update_floor_share(const update_results *r) {
    return floor_of(r, NULL) / r->update;
}

double update_tflops(const update_results *r) {
    return 6 * (double)r->parameters * update_bytes_per_second(r) * 1e-12;
}

static double peak_memory(const update_results *r) {
    double total = 0;
    for (int a = 0; a < PLAN_ARENAS; a++) total += (double)r->memory[a];
    return total;
}

void update_explain(const update_results *r, FILE *out) {
    update_floor_print(&r->floor, &r->ceilings, r->math, out);
}

void update_text(const update_results *r, FILE *out) {
    char text[160];
    double floors[TIME_PARTS], floor = floor_of(r, floors);
    fprintf(out, "%s, %s\n%s\nmeasured: %s\n", r->device, math_names[r->math], r->description,
            ceilings_text(&r->ceilings, text));
    fprintf(out, "memory:");
    for (int a = 0; a < PLAN_ARENAS; a++) {
        fprintf(out, " %s %s,", arena_keys[a], log_bytes(text, (double)r->memory[a]));
    }
    fprintf(out, " at most %s\n\n%-18s %10s %8s %10s\n", log_bytes(text, peak_memory(r)), "", "ms",
            "share", "floor ms");
    for (int part = 0; part < TIME_PARTS; part++) {
        fprintf(out, "%-18s %10.3f %6.1f %% %10.3f\n",
                part == TIME_WEIGHT_GRADIENT ? "weight gradient" : time_part_names[part],
                r->parts[part] * 1e3, 100 * r->parts[part] / r->update, floors[part] * 1e3);
    }
    fprintf(out, "%-18s %10.3f %6.1f %%\n", "idle", r->idle * 1e3, 100 * r->idle / r->update);
    fprintf(out, "%-18s %10.3f %8s %10.3f\n\n", "update", r->update * 1e3, "", floor * 1e3);
    fprintf(out, "training        %12.0f bytes/s (%.0f on random bytes)\n",
            update_bytes_per_second(r), bytes_of_update(r) / r->random_update);
    fprintf(out, "scoring         %12.0f bytes/s\n", bytes_of_update(r) / r->forward);
    fprintf(out, "features        %12.0f bytes/s\n", r->features_rate);
    fprintf(out, "%.3g TFLOP/s at 6 operations a parameter and byte; %.0f %% of the floor\n",
            update_tflops(r), 100 * update_floor_share(r));
    fprintf(out, "the first update ended %.2f s after the start, besides %.2f s for the text\n",
            r->startup, r->indexing);
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
    json_number(&w, "bytes_per_second", update_bytes_per_second(r));
    json_number(&w, "random_bytes_per_second", bytes_of_update(r) / r->random_update);
    json_number(&w, "ms_per_update", r->update * 1e3);
    json_object_begin(&w, "parts_ms");
    for (int part = 0; part < TIME_PARTS; part++) {
        json_number(&w, time_part_names[part], r->parts[part] * 1e3);
    }
    json_number(&w, "idle", r->idle * 1e3);
    json_object_end(&w);
    json_number(&w, "forward_bytes_per_second", bytes_of_update(r) / r->forward);
    json_number(&w, "features_bytes_per_second", r->features_rate);
    json_number(&w, "tflops", update_tflops(r));
    json_number(&w, "floor_ms", floor * 1e3);
    json_object_begin(&w, "floor_parts_ms");
    for (int part = 0; part < TIME_PARTS; part++) {
        json_number(&w, time_part_names[part], floors[part] * 1e3);
    }
    json_object_end(&w);
    json_number(&w, "floor_share", update_floor_share(r));
    json_number(&w, "peak_memory", peak_memory(r));
    json_object_begin(&w, "memory");
    for (int a = 0; a < PLAN_ARENAS; a++) {
        json_integer(&w, arena_keys[a], (int64_t)r->memory[a]);
    }
    json_object_end(&w);
    json_number(&w, "startup_seconds", r->startup);
    json_number(&w, "indexing_seconds", r->indexing);
    ceilings_json(&r->ceilings, &w);
    json_object_end(&w);
    fputc('\n', out);
}
