/* The gradient of the gates' input table in bf16, summed step by step: dpre need not be kept for
 * it. See gates_table_gradient.cu. */
#ifndef SMALLWORLD_KERNELS_CUDA_CELL_GATES_TABLE_GRADIENT_CUH
#define SMALLWORLD_KERNELS_CUDA_CELL_GATES_TABLE_GRADIENT_CUH

#include "cell/one_hot.cuh"
#include "device/ptx.cuh"

enum {
    PAIR = 2,                   /* neighbouring units, whose sums of a byte lie together */
    PAIR_VALUES = PAIR * GATES, /* of a byte */
    QUAD = 4,                   /* units that are summed together: two pairs */
    BYTES_AT_ONCE = 48          /* that occur in a span: most texts have no more */
};

/* The text of a span of columns. `label` has the bytes that occur, ascending, and 0 after them. */
template <int SPAN> struct alignas(16) column_text {
    uint32_t pair[SPAN / 2]; /* labels of neighbours, those that a lane takes at once together */
    uint16_t label[VOCABULARY];
    int count; /* of bytes that occur */
};

/* The index of the pair of columns 2 i and 2 i + 1. */
static __device__ inline int pair_place(int i) {
    const int sixteen = i / 8, quad = i % 4, half = i / 4 % 2;
    return (sixteen * 4 + quad) * 2 + half;
}

/* Where a lane's VEC columns of a gate lie among those of a unit, so that tensor cores may read two
 * gates of a quad's units at once; in elements. */
template <int VEC> static __device__ inline int quad_place(int unit, int gate) {
    const int lane = threadIdx.x % 32, chunk = lane * VEC / 8;
    return gate * 32 * VEC + (chunk ^ (unit % QUAD * 2 + gate % 2)) * 8 + lane * VEC % 8;
}

/* Adds the columns of a span, in the rows of a quad's units, to the sums of their bytes. `mine`:
 * the rows of the quad's unit lane % 8 / 2, gate by gate as quad_place says; any rows for a unit
 * beyond `units`. `to`: the sums of the quad's unit lane % 4. No other warp adds to these sums
 * before this warp has synchronised. */
template <int SPAN>
static __device__ __forceinline__ void add_by_byte(const column_text<SPAN> &text, const bf16 *mine,
                                                   int units, float *to) {
    const int MATRICES = BYTES_AT_ONCE / 16;
    const int lane = threadIdx.x % 32, quad = lane % 4, row = lane % 8, count = text.count;
    /* Of a load's four matrices, the first two are gates 0 and 1 of 16 columns, then 2 and 3. */
    const uint32_t from = shared_address(mine + (lane / 16 * 2 + row % 2) * SPAN);
#pragma unroll 1
    for (int first = 0; first < count; first += BYTES_AT_ONCE) {
        uint32_t member[MATRICES * 2];
        float sum[MATRICES][2][4] = {};
#pragma unroll
        for (int i = 0; i < MATRICES * 2; i++) {
            member[i] = text.label[first + i * 8 + lane / 4] * 0x10001u;
        }
#pragma unroll
        for (int k = 0; k < SPAN / 16; k++) {
            const uint2 columns = *(const uint2 *)&text.pair[(k * 4 + quad) * 2];
            uint32_t rows[4];
            load_matrices(rows, from + ((k * 2 + lane / 8 % 2) ^ row) * 16);
#pragma unroll
            for (int i = 0; i < MATRICES; i++) {
                const uint32_t hot[4] = {
                    equal(columns.x, member[i * 2]), equal(columns.x, member[i * 2 + 1]),
                    equal(columns.y, member[i * 2]), equal(columns.y, member[i * 2 + 1])};
                multiply_add(sum[i][0], hot, rows[0], rows[1]);
                multiply_add(sum[i][1], hot, rows[2], rows[3]);
            }
        }
#pragma unroll
        for (int i = 0; i < MATRICES * 2; i++) {
            if (first + i * 8 + lane / 4 >= count || quad >= units) continue;
            const float(&s)[2][4] = sum[i / 2];
            const int at = i % 2 * 2;
            add_four(to + member[i] % 256 * PAIR_VALUES, s[0][at], s[0][at + 1], s[1][at],
                     s[1][at + 1]);
        }
    }
    __syncwarp(); /* the rows may be overwritten */
}

/* Call it before a sequence's first step backward. It writes the texts of all spans of columns to
 * cell.workspace, where gates_backward reads them, and zeroes the sums. */
void cuda_start_table_sums(backend *be, const cell *c, int span);

/* Call it after the last step; it writes the table's gradient. */
void cuda_finish_table_sums(backend *be, const cell *c);

#endif
