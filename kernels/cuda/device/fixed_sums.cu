/* Layer norm's sums of products that do not add them themselves:
 *
 *   sums [step][gate][0, 1][column] += sum over units of y, y^2
 *
 * Floor: y once. fixed_sums.cuh says how sums are stored. */
#include "device/fixed_sums.h"

#include "device/fixed_sums.cuh"
#include "device/ptx.cuh"

size_t cuda_sums_bytes(backend *be, int gates, int columns) {
    (void)be;
    return gates * sums_gate(columns) * sizeof(fixed);
}

void cuda_zero_sums(backend *be, void *sums, int gates, int columns) {
    be->zero(be, sums, cuda_sums_bytes(be, gates, columns));
}

template <typename T>
static __global__ void sums_kernel(const T *y, int nodes, int gates, int block, int columns,
                                   fixed *sums) {
    __shared__ float parts[SUM_LANES][2][SUM_COLUMNS];
    int column = threadIdx.x % SUM_COLUMNS, part = threadIdx.x / SUM_COLUMNS;
    int n = blockIdx.y * SUM_COLUMNS + column, gate = blockIdx.z % gates, t = blockIdx.z / gates;
    int units = nodes * block, first = blockIdx.x * SUM_ROWS;
    int last = min(first + SUM_ROWS, units);
    float total = 0, square = 0;
    y += (size_t)t * gates * units * columns;
    for (int unit = first + part; unit < last; unit += SUM_LANES) {
        size_t row = (size_t)(unit / block * gates + gate) * block + unit % block;
        float value = to_float(y[row * columns + n]);
        total += value;
        square += value * value;
    }
    parts[part][0][column] = total;
    parts[part][1][column] = square;
    __syncthreads();
    if (part) return;
    for (int i = 1; i < SUM_LANES; i++) {
        total += parts[i][0][column];
        square += parts[i][1][column];
    }
    fixed *to = sums + blockIdx.z * sums_gate(columns);
    add_fixed(to, columns, 0, n, total, SCALE_SUM);
    add_fixed(to, columns, 1, n, square, SCALE_SQUARE);
}

template <typename T>
static void run_sums(backend *be, const layout *l, const void *y, int steps, int columns,
                     void *sums) {
    int units = l->out_nodes * l->out_block;
    dim3 grid((units + SUM_ROWS - 1) / SUM_ROWS, columns / SUM_COLUMNS, l->gates * steps);
    sums_kernel<T><<<grid, SUM_COLUMNS * SUM_LANES, 0, cuda_of(be)->stream>>>(
        (const T *)y, l->out_nodes, l->gates, l->out_block, columns, (fixed *)sums);
    cuda_launched(be, "column sums");
}

void cuda_column_sums(backend *be, const layout *l, const void *y, int steps, int columns,
                      void *sums) {
    DISPATCH(be, run_sums, be, l, y, steps, columns, sums);
}
