/* The gradient of an input table: by row and byte, the sum over steps and columns where that byte
 * stands.
 *
 *   dtable [row][byte] = sum over positions p with bytes[p] = byte of D [row][p];  p: step, column
 *
 * A lane has a row, whose sums lie in shared memory so that no two lanes share a bank, and adds up
 * its positions in order. On Hopper, table_gradient_hopper.cu does bf16. */
#include "cell/cell.h"

enum { ROWS = 32, AHEAD = 4 /* loads of 16 bytes that are under way together */ };

/* What the kernel needs of a stage. Row r of the table is row source_row(r) of a gradient. */
typedef struct table_view {
    const void *gradient;
    const uint8_t *bytes;
    void *dtable;
    int rows, entries, gates, block, units, stride, columns, steps;
} table_view;

static __device__ inline size_t source_row(const table_view &v, int row) {
    const int gate = row / v.entries, unit = row % v.entries * v.stride;
    return (size_t)(unit / v.block * v.gates + gate) * v.block + unit % v.block;
}

template <typename T>
static __global__ void __launch_bounds__(ROWS)
    table_gradient(const __grid_constant__ table_view v) {
    enum { PIECE = 16 / sizeof(T), SPAN = AHEAD * PIECE };
    __shared__ float sums[VOCABULARY][ROWS + 1];
    const int lane = threadIdx.x, first = blockIdx.x * ROWS;
    const size_t step = (size_t)v.gates * v.units * v.columns;
    const T *row = (const T *)v.gradient + source_row(v, min(first + lane, v.rows - 1)) * v.columns;
    for (int byte = 0; byte < VOCABULARY; byte++) sums[byte][lane] = 0;
    for (int t = 0; t < v.steps; t++, row += step) {
        const uint8_t *text = v.bytes + (size_t)t * v.columns;
        for (int n = 0; n < v.columns; n += SPAN) {
            alignas(16) T value[SPAN];
#pragma unroll
            for (int k = 0; k < SPAN; k += PIECE) {
                if (n + k < v.columns) *(uint4 *)(value + k) = *(const uint4 *)(row + n + k);
            }
#pragma unroll
            for (int k = 0; k < SPAN; k++) {
                if (n + k < v.columns) sums[text[n + k]][lane] += to_float(value[k]);
            }
        }
    }
    __syncwarp();
    for (int r = 0; r < min((int)ROWS, v.rows - first); r++) {
        T *out = (T *)v.dtable + (size_t)(first + r) * VOCABULARY;
        for (int byte = lane; byte < VOCABULARY; byte += ROWS) {
            out[byte] = from_float<T>(sums[byte][r]);
        }
    }
}

template <typename T> static void run_table(backend *be, const table_view &v) {
    table_gradient<T><<<(v.rows + ROWS - 1) / ROWS, ROWS, 0, cuda_of(be)->stream>>>(v);
}

void cuda_table_backward(backend *be, const cell *c, int s) {
    const stage *g = &c->stage[s];
    const void *gradient = g->table_use == TABLE_MULTIPLY ? g->dentry : g->dpre;
    const bool hopper = table_gradient_hopper_takes(be, g);
    if (cuda_of(be)->explained) {
        cuda_explain(be, hopper ? "gradient of a table: table_gradient_hopper\n"
                                : "gradient of a table: table_gradient\n"
                                  "    not table_gradient_hopper, which needs Hopper, bf16 and "
                                  "blocks of whole strides\n");
    }
    if (hopper) {
        table_gradient_hopper_run(be, c, s, gradient);
    } else {
        table_view v = {gradient, c->bytes, g->dtable};
        v.entries = g->units / g->table_stride;
        v.rows = g->gates * v.entries;
        v.gates = g->gates;
        v.block = g->block;
        v.units = g->units;
        v.stride = g->table_stride;
        v.columns = c->columns;
        v.steps = c->steps;
        DISPATCH(be, run_table, be, v);
    }
    cuda_launched(be, "table_backward");
}
