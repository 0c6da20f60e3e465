/* What of Muon's step is no product, see kernels/muon.c. Floor: 42 bytes a weight, where Adam takes
 * 40, and of the products their operations. */
#include "training/reduce.cuh"

enum { TILE = 32, TILE_ROWS = 8 };

static __global__ void muon_momentum(size_t count, float *gradient, float *momentum,
                                     const update_arguments *a, const update_report *report) {
    const size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    const float kept = (float)a->muon_momentum;
    if (i >= count || report->failed != 0) return;
    const float d = (float)a->gradient_scale * gradient[i], m = kept * momentum[i] + d;
    momentum[i] = m;
    gradient[i] = d + kept * m;
}

/* W [rows][columns] and an operand [lines][length], which is it or, where `tall`, its transpose,
 * padded. A thread block has a tile of the operand. */
typedef struct matrix_view {
    int rows, columns, lines, length;
    bool tall;
} matrix_view;

/* Calls visit(row, column, line, place) for what a thread has of the block's tile, with neighbours
 * along W's rows. */
template <typename F> static __device__ void for_tile(const matrix_view &w, F visit) {
    for (int i = threadIdx.y; i < TILE; i += TILE_ROWS) {
        const int a = i, b = threadIdx.x; /* b runs along the rows of W */
        const int line = blockIdx.y * TILE + (w.tall ? b : a);
        const int place = blockIdx.x * TILE + (w.tall ? a : b);
        visit(w.tall ? place : line, w.tall ? line : place, w.tall ? b : a, w.tall ? a : b);
    }
}

/* direction <- W / (its norm + 1e-7), of which `partial` are the squares; zeros where padded. */
template <typename T>
static __global__ void muon_spread(matrix_view w, const float *from, const double *partial,
                                   int count, T *direction, const update_report *report) {
    __shared__ float tile[TILE][TILE + 1];
    __shared__ float inverse;
    double sum = 0;
    if (report->failed != 0) return;
    if (threadIdx.y == 0) {
        for (int i = threadIdx.x; i < count; i += TILE) sum += partial[i];
        for (int half = TILE / 2; half > 0; half /= 2) sum += __shfl_xor_sync(~0u, sum, half);
        if (threadIdx.x == 0) inverse = (float)(1 / (sqrt(sum) + 1e-7));
    }
    for_tile(w, [&](int row, int column, int line, int place) {
        const bool there = row < w.rows && column < w.columns;
        tile[line][place] = there ? from[(size_t)row * w.columns + column] : 0;
    });
    __syncthreads();
    for (int i = threadIdx.y; i < TILE; i += TILE_ROWS) {
        const int line = blockIdx.y * TILE + i, place = blockIdx.x * TILE + threadIdx.x;
        direction[(size_t)line * w.length + place] = from_float<T>(inverse * tile[i][threadIdx.x]);
    }
}

template <typename T>
static __global__ void muon_polynomial(int side, const T *a, const T *a_squared, T *p) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= side * side) return;
    const float even = i % (side + 1) == 0 ? 3.4445f : 0.f;
    p[i] = from_float<T>(even - 4.7750f * to_float(a[i]) + 2.0315f * to_float(a_squared[i]));
}

template <typename T>
static __global__ void muon_apply(matrix_view w, float *weights, const T *direction, float *average,
                                  bf16 *operands, const update_arguments *a,
                                  const update_report *report) {
    __shared__ float tile[TILE][TILE + 1];
    const float rate = (float)a->muon_learning_rate, decay = (float)a->average;
    const float step = (float)(a->muon_learning_rate * 0.2 * sqrt((double)max(w.rows, w.columns)));
    const float kept = 1 - rate * (float)a->weight_decay;
    if (report->failed != 0) return;
    for (int i = threadIdx.y; i < TILE; i += TILE_ROWS) {
        const int line = blockIdx.y * TILE + i, place = blockIdx.x * TILE + threadIdx.x;
        tile[i][threadIdx.x] = to_float(direction[(size_t)line * w.length + place]);
    }
    __syncthreads();
    for_tile(w, [&](int row, int column, int line, int place) {
        if (row >= w.rows || column >= w.columns) return;
        const size_t at = (size_t)row * w.columns + column;
        const float v = kept * weights[at] - step * tile[line][place];
        weights[at] = v;
        average[at] = decay * average[at] + (1 - decay) * v;
        if (operands) operands[at] = __float2bfloat16_rn(v);
    });
}

static matrix_view view_of(backend *be, const muon_matrix *w) {
    const int multiple = be->column_multiple, longer = max(w->rows, w->columns);
    return {w->rows, w->columns, muon_side(be, w->rows, w->columns),
            (longer + multiple - 1) / multiple * multiple, w->rows > w->columns};
}

static_assert(COLUMN_MULTIPLE % TILE == 0, "what is padded is whole tiles");

static dim3 tiles_of(const matrix_view &v) {
    return dim3(v.length / TILE, v.lines / TILE);
}

void cuda_muon_direction(backend *be, const muon_matrix *w, const update_arguments *arguments,
                         const update_report *report, void *direction) {
    const size_t all = (size_t)w->rows * w->columns;
    const matrix_view v = view_of(be, w);
    cudaStream_t stream = cuda_of(be)->stream;
    muon_momentum<<<(unsigned)((all + 255) / 256), 256, 0, stream>>>(
        all, (float *)w->gradient, (float *)w->momentum, arguments, report);
    const int count = cuda_partials(be, w->gradient, all, true);
    const double *partial = cuda_of(be)->partial;
    const float *from = (const float *)w->gradient;
    if (be->precision == BF16) {
        muon_spread<<<tiles_of(v), dim3(TILE, TILE_ROWS), 0, stream>>>(v, from, partial, count,
                                                                       (bf16 *)direction, report);
    } else {
        muon_spread<<<tiles_of(v), dim3(TILE, TILE_ROWS), 0, stream>>>(v, from, partial, count,
                                                                       (float *)direction, report);
    }
    cuda_launched(be, "muon_direction");
}

void cuda_muon_polynomial(backend *be, int side, const void *a, const void *a_squared, void *p) {
    const unsigned blocks = ((unsigned)side * side + 255) / 256;
    cudaStream_t stream = cuda_of(be)->stream;
    if (be->precision == BF16) {
        muon_polynomial<<<blocks, 256, 0, stream>>>(side, (const bf16 *)a, (const bf16 *)a_squared,
                                                    (bf16 *)p);
    } else {
        muon_polynomial<<<blocks, 256, 0, stream>>>(side, (const float *)a,
                                                    (const float *)a_squared, (float *)p);
    }
    cuda_launched(be, "muon_polynomial");
}

void cuda_muon_apply(backend *be, const muon_matrix *w, const void *direction,
                     const update_arguments *arguments, const update_report *report) {
    const matrix_view v = view_of(be, w);
    cudaStream_t stream = cuda_of(be)->stream;
    bf16 *operands = w->operands == w->weights ? NULL : (bf16 *)w->operands;
    cuda_weights_change(be);
    if (be->precision == BF16) {
        muon_apply<<<tiles_of(v), dim3(TILE, TILE_ROWS), 0, stream>>>(
            v, (float *)w->weights, (const bf16 *)direction, (float *)w->average, operands,
            arguments, report);
    } else {
        muon_apply<<<tiles_of(v), dim3(TILE, TILE_ROWS), 0, stream>>>(
            v, (float *)w->weights, (const float *)direction, (float *)w->average, operands,
            arguments, report);
    }
    cuda_launched(be, "muon_apply");
}
