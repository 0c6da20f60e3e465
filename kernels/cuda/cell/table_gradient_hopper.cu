/* table_gradient_hopper: the gradient of an input table on Hopper, as a product with a one-hot
 * matrix.
 *
 *   dtable' [256 bytes][64 rows] = sum over boxes of  H [256][64 columns]  D' [64 columns][64 rows]
 *
 * A box is 64 columns of a step; H has a 1 where a column's byte is, else 0; D [step][row][column]
 * is the gradient at the table's entries, in bf16. Products by 1 and 0 are exact, sums in fp32.
 *
 * Floor: D once, 18.9 MB a step at 73,728 rows and 128 columns. H, as A, is never stored: a byte is
 * made a number in bf16, and one comparison of two such pairs makes a register. D, as B, is
 * multiplied where it lies. So the multiprocessors read nothing but D and the bytes, and each once.
 *
 * Products with all 256 bytes would take 512 operations for each number of D: 0.9 ms for 128 steps
 * at 700 TFLOP/s, where reading D takes 0.56 ms at 4.3 TB/s. But text seldom has all bytes. They
 * are divided into four groups of 64, and a group's product is left out for boxes in which none of
 * its bytes occurs. Two groups are ASCII, one for each of two warpgroups; the other two hold what
 * else UTF-8 needs.
 *
 * A thread block has 64 rows, so that two of them share a multiprocessor and one loads while the
 * other begins or ends. The sums of all bytes stay in registers until all of D is read.
 *
 * On an H200, 128 steps of 73,728 rows: 637 us on IMDB's reviews at 128 columns and 2,450 at 512,
 * of which loads alone take 589 and 2,290; on random bytes 1,063 and 4,181. What did not help:
 * docs/kernels/cell.md.
 *
 * A gradient that is not finite makes NaN of its row of the table, not of one entry only. */
#include "cell/cell.h"
#include "products/hopper/hopper.cuh"

enum {
    MEMBERS = 64, /* bytes of a group */
    GROUPS = VOCABULARY / MEMBERS,
    HELD = GROUPS / 2, /* groups of a warpgroup: every second one */
    TABLE_ROWS = 64,
    TABLE_SLOTS = 6,
    SPAN = CONSUMERS * 16 / BOX, /* boxes whose text is read at once */
    TILE = TABLE_ROWS * BOX_ROW,
    RESULT_ROW = VOCABULARY * 2 + 16 /* bytes; an access more: no two in the same banks */
};

enum {
    TABLE_BARRIERS = TABLE_SLOTS * TILE,
    TABLE_BYTES = TABLE_BARRIERS + TABLE_SLOTS * 16 + 1024
};

static_assert(TABLE_ROWS * RESULT_ROW <= TABLE_BARRIERS, "the result fits where the tiles were");

/* The text of a span of boxes. */
typedef struct alignas(16) span_text {
    uint32_t pair[SPAN][BOX / 2]; /* of neighbours; pair i of a box is at i % 4 * 8 + i / 4 */
    uint32_t groups[SPAN];        /* bit g: the box has bytes of group g */
} span_text;

typedef struct table_arguments {
    const uint8_t *bytes; /* of all boxes */
    bf16 *dtable;
    int boxes, step_boxes; /* of all steps, of one */
    int rows;              /* of D that are read: every stride-th */
    int entries;           /* of the table's rows of a gate, and of these those of a block */
    int block_entries;
    int gates;
} table_arguments;

/* A byte as a number in bf16, no two the same, none of them 0 or a NaN. */
static __device__ inline uint32_t label(uint32_t byte) {
    return 0x3F00 | byte;
}

static __device__ inline uint32_t label_pair(uint32_t one, uint32_t two) {
    return label(one) | label(two) << 16;
}

/* 1 or 0 for each of the two labels of `x`: whether it equals that of `y`. */
static __device__ inline uint32_t equal(uint32_t x, uint32_t y) {
    __nv_bfloat162 same = __heq2(*(__nv_bfloat162 *)&x, *(__nv_bfloat162 *)&y);
    return *(uint32_t *)&same;
}

/* Each thread reads 16 bytes of the span that begins at box `first`. */
static __device__ inline void read_text(const table_arguments &p, int first, span_text *text) {
    const int box = threadIdx.x / 4, quarter = threadIdx.x % 4;
    uint4 bytes = make_uint4(0, 0, 0, 0);
    if (first + box < p.boxes) bytes = ((const uint4 *)p.bytes)[first * 4 + threadIdx.x];
    const uint32_t four[4] = {bytes.x, bytes.y, bytes.z, bytes.w};
    uint32_t groups = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint32_t half = four[i / 2] >> i % 2 * 16, one = half % 256, two = half / 256 % 256;
        text->pair[box][i % 4 * 8 + quarter * 2 + i / 4] = label_pair(one, two);
        groups |= 1u << one / MEMBERS | 1u << two / MEMBERS;
    }
    groups |= __shfl_xor_sync(~0u, groups, 1);
    groups |= __shfl_xor_sync(~0u, groups, 2);
    if (quarter == 0) text->groups[box] = groups;
}

/* Adds a box's part to the sums of one group, half of the columns at a time, since registers have
 * room for no more. A lane holds two neighbouring columns of every eight of the one-hot matrix, in
 * the rows of two bytes: `member`, a pair of equal labels, and the byte 8 further. */
static __device__ inline void multiply_box(float (&sum)[TABLE_ROWS / 2],
                                           const uint32_t (&pair)[BOX / 2], uint32_t member,
                                           uint32_t tile) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint4 four = *(const uint4 *)&pair[threadIdx.x % 4 * 8 + half * 4];
        const uint32_t columns[4] = {four.x, four.y, four.z, four.w};
        uint32_t hot[2][4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            hot[i / 2][i % 2 * 2] = equal(columns[i], member);
            hot[i / 2][i % 2 * 2 + 1] = equal(columns[i], member + 0x00080008u);
        }
        product_fence();
#pragma unroll
        for (int k = 0; k < 2; k++) {
            uint32_t rows = tile + half * 64 + k * 32;
            warpgroup_multiply<0>(sum, hot[k], matrix_descriptor(rows, SWIZZLE_128, 16, 1024));
        }
        product_commit();
        product_wait<0>();
    }
}

static __device__ inline void sum_boxes(const table_arguments &p, cursor<TABLE_SLOTS> &ring,
                                        uint32_t tiles, span_text *text,
                                        float (&sum)[HELD][TABLE_ROWS / 2]) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warpgroup = warp / 4;
    const int member = warpgroup * MEMBERS + warp % 4 * 16 + lane / 4;
    for (int number = 0; number < p.boxes; number++, ring.next()) {
        const int box = number % SPAN;
        if (box == 0) {
            group_sync(1, CONSUMERS); /* all have read the last span */
            read_text(p, number, text);
            group_sync(1, CONSUMERS);
        }
        const uint32_t groups = text->groups[box] >> warpgroup;
        ring.wait_full();
#pragma unroll
        for (int h = 0; h < HELD; h++) {
            const int byte = member + h * 2 * MEMBERS;
            if (groups >> h * 2 & 1) {
                multiply_box(sum[h], text->pair[box], label_pair(byte, byte),
                             tiles + ring.at * TILE);
            }
        }
        ring.release(ring.at);
    }
}

/* Transposes the sums in shared memory and writes whole rows of the table. */
static __device__ inline void store_table(const table_arguments &p, char *result,
                                          const float (&sum)[HELD][TABLE_ROWS / 2]) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warpgroup = warp / 4;
    group_sync(1, CONSUMERS); /* all have multiplied */
#pragma unroll
    for (int h = 0; h < HELD; h++) {
        const int byte = (h * 2 + warpgroup) * MEMBERS + warp % 4 * 16 + lane / 8 % 2 * 8;
#pragma unroll
        for (int j = 0; j < TABLE_ROWS / 8; j += 2) {
            const float *d = &sum[h][j * 4];
            uint32_t r[4] = {pack(d[0], d[1]), pack(d[2], d[3]), pack(d[4], d[5]),
                             pack(d[6], d[7])};
            const int row = (j + lane / 16) * 8 + lane % 8;
            store_matrices_transposed(shared_address(result) + row * RESULT_ROW + byte * 2, r);
        }
    }
    group_sync(1, CONSUMERS);
    for (int r = warp; r < TABLE_ROWS; r += CONSUMER_WARPS) {
        const int row = blockIdx.x * TABLE_ROWS + r;
        if (row >= p.rows) return;
        const int part = row / p.block_entries, gate = part % p.gates;
        const int entry = part / p.gates * p.block_entries + row % p.block_entries;
        uint4 *to = (uint4 *)(p.dtable + (size_t)(gate * p.entries + entry) * VOCABULARY);
        to[lane] = ((const uint4 *)(result + r * RESULT_ROW))[lane];
    }
}

static __global__ void __launch_bounds__(THREADS, 2)
    table_gradient_hopper(const __grid_constant__ CUtensorMap d_map,
                          const __grid_constant__ table_arguments p) {
#if ON_HOPPER
    extern __shared__ char unaligned[];
    __shared__ span_text text;
    char *tiles = aligned_tiles(unaligned);
    const uint32_t base = shared_address(tiles);
    cursor<TABLE_SLOTS> ring;
    ring.create(base + TABLE_BARRIERS);
    barrier_init_done();
    __syncthreads();

    if (threadIdx.x >= CONSUMERS) { /* the producer */
        registers_shrink<32>();
        if (threadIdx.x != CONSUMERS) return;
        for (int number = 0; number < p.boxes; number++, ring.next()) {
            ring.wait_empty();
            uint32_t barrier = ring.announce(TILE);
            tensor_load(base + ring.at * TILE, &d_map, barrier, number % p.step_boxes * BOX,
                        blockIdx.x * TABLE_ROWS, number / p.step_boxes);
        }
        return;
    }
    registers_grow<104>();
    float sum[HELD][TABLE_ROWS / 2] = {};
    sum_boxes(p, ring, base, &text, sum);
    store_table(p, tiles, sum);
#endif
}

bool table_gradient_hopper_takes(const backend *be, const stage *g) {
    return cuda_of(be)->hopper && be->precision == BF16 &&
           (g->gates == 1 ? g->units : g->block) % g->table_stride == 0;
}

void table_gradient_hopper_run(backend *be, const cell *c, int s, const void *gradient) {
    const stage *g = &c->stage[s];
    table_arguments p = {};
    p.bytes = c->bytes;
    p.dtable = (bf16 *)g->dtable;
    p.step_boxes = c->columns / BOX;
    p.boxes = c->steps * p.step_boxes;
    p.gates = g->gates;
    p.entries = g->units / g->table_stride;
    p.block_entries = g->gates == 1 ? p.entries : g->block / g->table_stride;
    p.rows = g->gates * p.entries;
    const uint64_t row_bytes = (uint64_t)c->columns * sizeof(bf16);
    const uint64_t extent[] = {(uint64_t)c->columns, (uint64_t)p.rows, (uint64_t)c->steps};
    const uint64_t stride[] = {row_bytes * g->table_stride, row_bytes * g->gates * g->units};
    const uint32_t box[] = {BOX, TABLE_ROWS, 1};
    CUtensorMap map;
    if (!make_map(be, &map, gradient, 3, extent, stride, box, CU_TENSOR_MAP_SWIZZLE_128B)) {
        return;
    }
    cuda_allow_shared(be, (const void *)table_gradient_hopper, TABLE_BYTES);
    table_gradient_hopper<<<(p.rows + TABLE_ROWS - 1) / TABLE_ROWS, THREADS, TABLE_BYTES,
                            cuda_of(be)->stream>>>(map, p);
}
