#include "bench/report.h"

#include <math.h>
#include <string.h>

static const char *pattern_name(const matmul_row *row) {
    return bench_patterns[row->cell.pattern].name;
}

/* ------------------------------------------------------------------------------------- text */

static bool same_table(const grid_cell *a, const grid_cell *b) {
    return a->precision == b->precision && a->product == b->product && a->gates == b->gates &&
           a->pattern == b->pattern && a->block == b->block && a->columns == b->columns;
}

/* Returns the largest ratio of a layout's tables to its weights, in bytes, in the table that starts
 * at row `first`. */
static double largest_table_share(const matmul_results *results, size_t first) {
    const matmul_row *row = results->rows;
    double share = 0;
    for (size_t i = first; i < results->count && same_table(&row[i].cell, &row[first].cell); i++) {
        share = fmax(share, row[i].table_bytes / row[i].weight_bytes);
    }
    return share;
}

static void print_head(const matmul_results *results, size_t first, FILE *out) {
    const matmul_row *row = &results->rows[first];
    const grid_cell *c = &row->cell;
    fprintf(out, "\n%s %s, %d gate%s, %s, block %d, N = %d", bench_precisions[c->precision].name,
            bench_product_names[c->product], c->gates, c->gates == 1 ? "" : "s", pattern_name(row),
            c->block, c->columns);
    if (row->padded != c->columns) fprintf(out, " (ours padded to %d)", row->padded);
    fprintf(out, "; layouts' tables: at most %.1f %% of the weights; microseconds\n",
            100 * largest_table_share(results, first));
    fprintf(out, "%8s %8s %9s %9s %7s %9s | %8s %8s %8s %8s %6s  %-10s %s\n", "density", "blocks",
            "ours", "cuBLAS", "x", "ELL", "memory", "arith.", "L2", "floor", "share", "held by",
            "kernel");
}

/* Prints microseconds right-aligned, or "-" if there are none. */
static void print_time(FILE *out, int width, double seconds) {
    if (isnan(seconds)) {
        fprintf(out, " %*s", width, "-");
    } else {
        fprintf(out, " %*.*f", width, seconds < 1e-2 ? 1 : 0, seconds * 1e6);
    }
}

static void print_row(const matmul_results *results, const matmul_row *row, FILE *out) {
    fprintf(out, "%8.4f %8d", row->density, row->blocks);
    print_time(out, 9, row->ours);
    print_time(out, 9, row->library[LIBRARY_CUBLAS]);
    fprintf(out, " %7.2f", row->library[LIBRARY_CUBLAS] / row->ours);
    print_time(out, 9, row->library[LIBRARY_CUSPARSE]);
    fputs(" |", out);
    print_time(out, 8, row->parts[LIMIT_MEMORY]);
    print_time(out, 8, row->parts[LIMIT_ARITHMETIC]);
    print_time(out, 8, row->parts[LIMIT_CACHE]);
    print_time(out, 8, row->floor);
    fprintf(out, " %4.0f %%  %-10s %s\n", 100 * row->floor / row->ours, matmul_limit(results, row),
            row->kernel);
}

void report_text(const matmul_results *results, FILE *out) {
    char text[160];
    fprintf(out, "%s; %d units; operands rotated through more than twice the L2\nmeasured: %s\n",
            results->device, results->units, ceilings_text(&results->ceilings, text));
    fputs("floor: the larger of memory and arithmetic, and an empty graph node; L2: what must be "
          "gathered from it\n",
          out);
    for (size_t i = 0; i < results->count; i++) {
        const matmul_row *row = &results->rows[i];
        if (i == 0 || !same_table(&row->cell, &row[-1].cell)) print_head(results, i, out);
        print_row(results, row, out);
    }
    fprintf(out, "\n%zu cells in %.0f s\n", results->count, results->seconds);
}

/* ----------------------------------------------------------------------------------- fields */

/* A row's numbers by name. NAN means none. */
typedef struct field {
    const char *name;
    double value;
} field;

enum { FIELDS = 20 };

static void fields_of(const matmul_row *row, field fields[FIELDS]) {
    const grid_cell *c = &row->cell;
    double cublas = row->library[LIBRARY_CUBLAS];
    const field all[FIELDS] = {
        {"gates", c->gates},
        {"block", c->block},
        {"columns", c->columns},
        {"padded_columns", row->padded},
        {"density", row->density},
        {"blocks", row->blocks},
        {"ours_us", row->ours * 1e6},
        {"cublas_us", cublas * 1e6},
        {"blocked_ell_us", row->library[LIBRARY_CUSPARSE] * 1e6},
        {"speedup", cublas / row->ours},
        {"memory_us", row->parts[LIMIT_MEMORY] * 1e6},
        {"arithmetic_us", row->parts[LIMIT_ARITHMETIC] * 1e6},
        {"l2_us", row->parts[LIMIT_CACHE] * 1e6},
        {"floor_us", row->floor * 1e6},
        {"share", row->floor / row->ours},
        {"tflops", row->operations / row->ours * 1e-12},
        {"weight_bytes", row->weight_bytes},
        {"table_bytes", row->table_bytes},
        {"table_share", row->table_bytes / row->weight_bytes},
        {"asked_density", c->density},
    };
    memcpy(fields, all, sizeof all);
}

void report_json(const matmul_results *results, FILE *out) {
    json_writer w = {out, false};
    json_object_begin(&w, NULL);
    json_string(&w, "device", results->device);
    json_integer(&w, "units", results->units);
    ceilings_json(&results->ceilings, &w);
    json_array_begin(&w, "rows");
    for (size_t i = 0; i < results->count; i++) {
        const matmul_row *row = &results->rows[i];
        field fields[FIELDS];
        fields_of(row, fields);
        json_object_begin(&w, NULL);
        json_string(&w, "precision", bench_precisions[row->cell.precision].name);
        json_string(&w, "product", bench_product_names[row->cell.product]);
        json_string(&w, "pattern", pattern_name(row));
        for (int k = 0; k < FIELDS; k++) json_number(&w, fields[k].name, fields[k].value);
        json_string(&w, "held_by", matmul_limit(results, row));
        json_string(&w, "kernel", row->kernel);
        json_object_end(&w);
    }
    json_array_end(&w);
    json_number(&w, "seconds", results->seconds);
    json_object_end(&w);
    fputc('\n', out);
}
