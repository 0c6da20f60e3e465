/* Activations transposed, for callers whose samples are rows. Floor: each element once through
 * memory, and once back.
 *
 * A thread block takes a tile of 64 x 64. A lane reads 16 bytes of two neighbouring rows of bf16
 * and leaves them as words of the result's row, so that shared memory moves no half words. */
#include "products/products.h"

enum { SIDE = 64, PITCH = SIDE / 2 + 4, TURNERS = 256, PIECE = 8 };

/* Tiles are numbered along rows, in one dimension, as a grid's second one ends at 65,535. */
static __host__ __device__ inline int tiles(int count) {
    return (count + SIDE - 1) / SIDE;
}

static __device__ inline int first_row(int columns) {
    return (int)(blockIdx.x / tiles(columns)) * SIDE;
}

static __device__ inline int first_column(int columns) {
    return (int)(blockIdx.x % tiles(columns)) * SIDE;
}

static __global__ void __launch_bounds__(TURNERS)
    transpose_bf16(const uint4 *from, int rows, int columns, uint4 *to) {
    __shared__ __align__(16) uint32_t tile[SIDE][PITCH]; /* [column][two rows] */
    const int row0 = first_row(columns), column0 = first_column(columns), pieces = columns / PIECE;
    for (int i = threadIdx.x; i < SIDE / 2 * (SIDE / PIECE); i += TURNERS) {
        /* Half a warp reads a piece of 32 rows, and its other half the piece beside it. */
        const int two = i % 16 + i / 32 % 2 * 16, piece = i / 16 % 2 + i / 64 * 2;
        const int row = row0 + two * 2, column = column0 + piece * PIECE;
        if (row >= rows || column >= columns) continue;
        const uint4 *at = from + (size_t)row * pieces + column / PIECE;
        const uint4 a = __ldg(at), b = __ldg(at + pieces);
        const uint32_t upper[4] = {a.x, a.y, a.z, a.w}, lower[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
        for (int k = 0; k < 4; k++) {
            tile[piece * PIECE + 2 * k][two] = __byte_perm(upper[k], lower[k], 0x5410);
            tile[piece * PIECE + 2 * k + 1][two] = __byte_perm(upper[k], lower[k], 0x7632);
        }
    }
    __syncthreads();
    for (int i = threadIdx.x; i < SIDE * (SIDE / PIECE); i += TURNERS) {
        const int column = i / (SIDE / PIECE), piece = i % (SIDE / PIECE);
        const int row = row0 + piece * PIECE;
        if (row >= rows || column0 + column >= columns) continue;
        to[((size_t)(column0 + column) * rows + row) / PIECE] =
            *(const uint4 *)&tile[column][piece * PIECE / 2];
    }
}

static __global__ void __launch_bounds__(TURNERS)
    transpose_fp32(const float *from, int rows, int columns, float *to) {
    __shared__ float tile[SIDE][SIDE + 1]; /* [row][column] */
    const int row0 = first_row(columns), column0 = first_column(columns);
    for (int i = threadIdx.x; i < SIDE * SIDE; i += TURNERS) {
        const int row = i / SIDE, column = i % SIDE;
        if (row0 + row >= rows || column0 + column >= columns) continue;
        tile[row][column] = from[(size_t)(row0 + row) * columns + column0 + column];
    }
    __syncthreads();
    for (int i = threadIdx.x; i < SIDE * SIDE; i += TURNERS) {
        const int row = i % SIDE, column = i / SIDE;
        if (row0 + row >= rows || column0 + column >= columns) continue;
        to[(size_t)(column0 + column) * rows + row0 + row] = tile[row][column];
    }
}

void cuda_transpose(backend *be, void *target, const void *source, int rows, int columns) {
    const dim3 grid((unsigned)tiles(rows) * (unsigned)tiles(columns));
    if (be->precision == BF16) {
        cuda_launch(be, "transpose", false, transpose_bf16, grid, TURNERS, 0, (const uint4 *)source,
                    rows, columns, (uint4 *)target);
    } else {
        cuda_launch(be, "transpose", false, transpose_fp32, grid, TURNERS, 0, (const float *)source,
                    rows, columns, (float *)target);
    }
}
