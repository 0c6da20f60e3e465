/* The warps of hubs.cu that multiply, make the gates of their cells, and finish the hubs of columns
 * that their thread block owns. */
#ifndef SMALLWORLD_KERNELS_CUDA_CELL_HUBS_CONSUMER_CUH
#define SMALLWORLD_KERNELS_CUDA_CELL_HUBS_CONSUMER_CUH

#include "cell/hubs.cuh"

#include <cuda_fp16.h>

/* The hub of a part's vector of 16 bytes: as a product's sums lie in a thread, of which four
 * neighbours so store 64 bytes. w: of its four words; each has this hub and the next one. */
static __device__ inline int hub_of(int vector, int w) {
    return vector / 8 * KC + (vector / 4 % 2 * 4 + w) * 8 + vector % 4 * 2;
}

static __device__ inline float low(uint32_t two) {
    return __uint_as_float(two << 16);
}

static __device__ inline float high(uint32_t two) {
    return __uint_as_float(two & 0xFFFF0000u);
}

static __device__ inline float rounded(float x) {
    return to_float(from_float<bf16>(x));
}

template <typename S, bool BACK> struct hub_consumer {
    static const int U = S::U, J = U / 8, PAIRS = HUB_GATES * J * 2; /* of z or dz */
    static const int ROWS = BACK ? HUB_GATES * J : J; /* eights of rows of what is multiplied */
    const hub_arguments &p;
    uint32_t base;
    char *shared;
    hub_barriers<BACK> &b;
    int thread, group, warp, lane; /* thread: of all consumers; warp: of the group */
    int first, column;             /* the first cell; this thread's first column of a launch */
    int streamed = 0, v_done = 0;  /* uses of W that does not stay; the slot of V to release next */
    float hub_dgain[VECTOR] = {}, hub_dbias[VECTOR] = {}; /* backward */
    float dbias[HUB_GATES] = {};                          /* likewise, of half of the columns */

    __device__ hub_consumer(const hub_arguments &p_, uint32_t base_, char *shared_,
                            hub_barriers<BACK> &b_)
        : p(p_), base(base_), shared(shared_), b(b_) {
        thread = threadIdx.x;
        group = __shfl_sync(~0u, threadIdx.x / GROUP, 0);
        warp = thread % GROUP / 32;
        lane = thread % 32;
        first = blockIdx.x * U;
        column = group * BOX + warp * 16 + lane / 4;
    }

    __device__ void sync() const {
        group_sync(1, S::THREADS);
    }

    __device__ void sync_half() const {
        group_sync(2 + group, GROUP);
    }

    /* Cells are numbered in a thread as sums lie: [J][half of the columns][neighbour]. */
    __device__ int cell_of(int k) const {
        return first + k / 4 * 8 + lane % 4 * 2 + k % 2;
    }

    __device__ size_t place_of(int k) const {
        return (size_t)cell_of(k) * p.columns + p.first_column + column + k / 2 % 2 * 8;
    }

    /* One of two slots of x for this group to stage rows in. */
    __device__ uint32_t slot(int i) const {
        return base + S::X + (group * 2 + i) * TILE_BYTES;
    }

    /* The group's i-th chunk of round r, see x_use. */
    __device__ x_use x_of(int r, int i) const {
        return x_use(b.x, (r * p.chunks + i) * S::GROUPS + group, p.x_slots);
    }

    /* Where W's chunk i is, once it is there. Without a branch, which products under way would not
     * survive. */
    __device__ __forceinline__ uint32_t await_w(int i) const {
        const bool stays = i < p.held;
        barrier_wait(stays ? b.held : b.w_full, stays ? 0 : streamed % 2);
        return stays ? base + S::W + i * S::W_BYTES : base + S::V;
    }

    __device__ __forceinline__ void release_w(int i) {
        const bool stays = i < p.held;
        barrier_arrive_warp_if(b.w_empty, !stays);
        streamed += !stays;
    }

    /* One chunk of multiply_w. Returns the use of x. */
    __device__ __forceinline__ x_use start_w(float (&sum)[HUB_GATES * U / 2], int round, int i) {
        const x_use x = x_of(round, i);
        const uint32_t w = await_w(chunk_of<BACK>(p, i)), from = x.template address<S>(base);
        barrier_wait(x.full, x.parity);
        product_fence();
#pragma unroll
        for (int k = 0; k < KC; k += 16) {
            warpgroup_multiply<0, 0>(sum, matrix_descriptor(from + k * 2, SWIZZLE_128, 16, 1024),
                                     matrix_descriptor(w + k * 2, SWIZZLE_128, 16, 1024));
        }
        product_commit();
        return x;
    }

    /* sum [64 columns][rows] += x' W' of a group's columns, over all hubs. */
    __device__ __forceinline__ void multiply_w(float (&sum)[HUB_GATES * U / 2], int round) {
        const int streamed_chunks = p.chunks - p.held;
        uint32_t before = 0;
#pragma unroll 1
        for (int i = 0; i < streamed_chunks; i++) {
            const x_use x = start_w(sum, round, i);
            product_wait<0>();
            barrier_arrive_warp(x.empty());
            release_w(p.held);
        }
#pragma unroll 1
        for (int i = streamed_chunks; i < p.chunks; i++) {
            const x_use x = start_w(sum, round, i);
            product_wait<1>();
            barrier_arrive_warp_if(before, i > streamed_chunks);
            before = x.empty();
        }
        product_wait<0>();
        barrier_arrive_warp(before);
        barrier_arrive_warp(b.x_done);
    }

    /* One chunk of multiply_v; `meanwhile` is called while it is multiplied. ptxas would make a
     * product of few rows wait for each of its steps if the next chunk's began before its end. */
    template <typename F>
    __device__ __forceinline__ void multiply_v_chunk(float (&sum)[U / 2], int round, int i,
                                                     F meanwhile) {
        const x_use x = x_of(round, i);
        const uint32_t v = base + S::V + b.v.at * TILE_BYTES;
        const uint32_t from = x.template address<S>(base);
        b.v.wait_full();
        barrier_wait(x.full, x.parity);
        product_fence();
#pragma unroll
        for (int k = 0; k < KC; k += 16) {
            warpgroup_multiply<0, 1>(
                sum, matrix_descriptor(from + k * 2, SWIZZLE_128, 16, 1024),
                matrix_descriptor(v + k * BOX_ROW, SWIZZLE_128, TILE_BYTES, 1024));
        }
        product_commit();
        meanwhile();
        product_wait<0>();
        barrier_arrive_warp(x.empty());
        b.v.release(b.v.at);
        b.v.next();
    }

    /* sum [64 columns][U] += x' V from chunk `first` on. */
    __device__ __forceinline__ void multiply_v(float (&sum)[U / 2], int round, int first) {
#pragma unroll 1
        for (int i = first; i < p.chunks; i++) multiply_v_chunk(sum, round, i, [] {});
        barrier_arrive_warp(b.v_done);
    }

    /* sum [64 columns][K * 2] = rows' W of weights whose rows lie 128 bytes apart, or forward of
     * columns of V. `leading`: from 64 hubs to the next. */
    template <int K>
    __device__ __forceinline__ void multiply_rows(const uint32_t (&rows)[ROWS * 2], uint32_t of,
                                                  int leading, float (&sum)[K]) const {
        product_fence();
#pragma unroll
        for (int k = 0; k < ROWS; k += 2) {
            const bool two = k + 1 < ROWS;
            const uint32_t a[4] = {rows[k * 2], rows[k * 2 + 1], two ? rows[(k + two) * 2] : 0,
                                   two ? rows[(k + two) * 2 + 1] : 0};
            const uint64_t w = BACK ? matrix_descriptor(of + k * 1024, SWIZZLE_128, leading, 1024)
                                    : matrix_descriptor(of + k * 16, SWIZZLE_128, 16, 1024);
            if (k == 0) warpgroup_multiply<BACK, false>(sum, a, w);
            if (k > 0) warpgroup_multiply<BACK, true>(sum, a, w);
        }
        product_commit();
    }

    /* Begins a chunk of leave_parts. */
    __device__ __forceinline__ void start_part(const uint32_t (&rows)[ROWS * 2], int i,
                                               float (&sum)[KC / 2]) {
        uint32_t of;
        if (BACK) {
            of = await_w(i);
        } else {
            of = v_slot<S>(base, b.v.at);
            b.v.wait_full();
            b.v.next();
        }
        multiply_rows(rows, of, TILE_BYTES, sum);
    }

    __device__ __forceinline__ void store_part(uint4 *to, int i, const float *sum) const {
#pragma unroll
        for (int half = 0; half < 2; half++) {
#pragma unroll
            for (int j = 0; j < 8; j += 4) {
                const float *s = sum + j * 4 + half * 2;
                const uint4 four = make_uint4(pack(s[0], s[1]), pack(s[4], s[5]), pack(s[8], s[9]),
                                              pack(s[12], s[13]));
                __stcg(to + (half * 8 * p.chunks + i) * 8 + j + lane % 4, four);
            }
        }
    }

    /* Stores it, once its product is done. */
    __device__ __forceinline__ void finish_part(uint4 *to, int i, const float (&sum)[KC / 2]) {
        if (BACK) {
            release_w(i);
        } else {
            b.v.release(v_done);
            v_done = v_done + 1 == b.SLOTS ? 0 : v_done + 1;
        }
        store_part(to, i, sum);
    }

    /* Backward: leaves the parts of chunks that lie side by side, WIDE at once, since a product's
     * operand in registers should serve as many as it can. Returns the number of chunks done. */
    __device__ __forceinline__ int leave_wide_parts(const uint32_t (&rows)[ROWS * 2], uint4 *to) {
        const bool beside = p.held == S::MOST_HELD && p.chunks == p.held + 1;
        const int last = p.held + beside;
        int i = 0;
#pragma unroll 1
        for (; i + WIDE <= last; i += WIDE) {
            float sum[WIDE * KC / 2];
            await_w(i);
            await_w(i + WIDE - 1);
            multiply_rows(rows, base + S::W + i * S::W_BYTES, S::W_BYTES, sum);
            product_wait<0>();
            release_w(i + WIDE - 1);
#pragma unroll
            for (int k = 0; k < WIDE; k++) store_part(to, i + k, sum + k * KC / 2);
        }
        return i;
    }

    /* Leaves this thread block's part of V h or W' dz for all hubs, and says so. `rows`: pairs of
     * neighbouring rows, [ROWS][half of the columns]. */
    __device__ __forceinline__ void leave_parts(const uint32_t (&rows)[ROWS * 2]) {
        uint4 *to = p.parts + ((size_t)blockIdx.x * MOST_COLUMNS + column) * p.chunks * 8;
        float one[KC / 2], two[KC / 2];
        int i = 0;
        if (BACK) i = leave_wide_parts(rows, to);
#pragma unroll 1
        for (; i + 1 < (BACK ? p.held : p.chunks); i += 2) {
            start_part(rows, i, one);
            start_part(rows, i + 1, two);
            product_wait<1>();
            finish_part(to, i, one);
            product_wait<0>();
            finish_part(to, i + 1, two);
        }
#pragma unroll 1
        for (; i < p.chunks; i++) {
            start_part(rows, i, one);
            product_wait<0>();
            finish_part(to, i, one);
        }
        if (!BACK) barrier_arrive_warp(b.v_done);
        sync();
        if (thread == 0) count_up(counter_of(p.counters, COUNT_PARTS, 0));
        __syncwarp();
    }

    /* ------------------------------------------------------------------------ a column's hubs */

    __device__ bool has_hub(int w) const {
        return hub_of(thread, w) < p.hubs;
    }

    /* The table's entries of a column's byte. */
    __device__ void load_entries(int t, int n, uint32_t (&to)[4]) const {
        const int byte = p.bytes[(size_t)t * p.columns + p.first_column + n];
#pragma unroll
        for (int w = 0; w < 4; w++) {
            const bf16 *from = p.hub_table + (size_t)byte * p.hubs + hub_of(thread, w);
            to[w] = has_hub(w) ? *(const uint32_t *)from : 0;
        }
    }

    __device__ void load_floats(const float *from, float otherwise, float (&to)[VECTOR]) const {
#pragma unroll
        for (int i = 0; i < VECTOR; i++) {
            const bool has = from && has_hub(i / 2);
            to[i] = has ? from[hub_of(thread, i / 2) + i % 2] : otherwise;
        }
    }

    /* Of arrays [step][hub][columns]. */
    __device__ size_t kept_place(int n, int t, int i) const {
        const size_t row = (size_t)t * p.hubs + hub_of(thread, i / 2) + i % 2;
        return row * p.columns + p.first_column + n;
    }

    __device__ __forceinline__ void store_column(bf16 *to, int n, const float (&x)[VECTOR],
                                                 bool mine) const {
#pragma unroll
        for (int w = 0; w < 4; w++) {
            if (!mine || !has_hub(w)) continue;
            *(uint32_t *)(to + (size_t)n * p.hubs + hub_of(thread, w)) =
                pack(x[2 * w], x[2 * w + 1]);
        }
    }

    /* Adds up the parts of a column. The threads that have hubs then have their sums. */
    __device__ __forceinline__ void add_parts(int n, float (&x)[VECTOR]) const {
        const int vectors = p.chunks * 8, of = thread / vectors, shares = S::THREADS / vectors;
        const uint4 *from = p.parts + (size_t)n * vectors + thread % vectors;
        const int blocks = of < shares ? gridDim.x : 0;
#pragma unroll
        for (int i = 0; i < VECTOR; i++) x[i] = 0;
#pragma unroll 1
        for (int s = of; s < blocks; s += PARTS_AHEAD * shares) {
            uint4 more[PARTS_AHEAD];
#pragma unroll
            for (int k = 0; k < PARTS_AHEAD; k++) {
                const int part = s + k * shares;
                more[k] = make_uint4(0, 0, 0, 0);
                if (part < blocks) {
                    more[k] = __ldcg(from + (size_t)part * MOST_COLUMNS * vectors);
                }
            }
#pragma unroll
            for (int k = 0; k < PARTS_AHEAD; k++) {
                const uint32_t words[4] = {more[k].x, more[k].y, more[k].z, more[k].w};
#pragma unroll
                for (int w = 0; w < 4; w++) {
                    x[2 * w] += low(words[w]);
                    x[2 * w + 1] += high(words[w]);
                }
            }
        }
        /* where x will be */
        float4 *scratch = (float4 *)(shared + S::X);
        if (of > 0 && of < shares) {
            scratch[thread * 2] = make_float4(x[0], x[1], x[2], x[3]);
            scratch[thread * 2 + 1] = make_float4(x[4], x[5], x[6], x[7]);
        }
        sync();
        if (of == 0) {
            for (int k = 1; k < shares; k++) {
                const float4 one = scratch[(thread + k * vectors) * 2];
                const float4 two = scratch[(thread + k * vectors) * 2 + 1];
                const float more[VECTOR] = {one.x, one.y, one.z, one.w, two.x, two.y, two.z, two.w};
#pragma unroll
                for (int i = 0; i < VECTOR; i++) x[i] += more[i];
            }
        }
    }

    /* Two sums over all consumers. */
    __device__ __forceinline__ void add_threads(float &one, float &two) const {
        float2 *scratch = (float2 *)(shared + S::SCRATCH);
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
            one += __shfl_xor_sync(~0u, one, step);
            two += __shfl_xor_sync(~0u, two, step);
        }
        if (lane == 0) scratch[thread / 32] = make_float2(one, two);
        sync();
        one = two = 0;
#pragma unroll
        for (int i = 0; i < S::GROUPS * 4; i++) {
            one += scratch[i].x;
            two += scratch[i].y;
        }
    }

    /* Gives all others a column of m or dv. */
    __device__ __forceinline__ void publish(int n, const float (&x)[VECTOR], bool mine) {
        store_column(p.exchange, n, x, mine);
        global_fence();
        sync();
        if (thread == 0) count_up(counter_of(p.counters, COUNT_COLUMNS, n / BOX));
        __syncwarp();
    }

    /* Where V h of a column's hubs is kept for backward: in the order [column][hub], but in the
     * places of this launch's columns alone, as backward stores gradients in these. */
    __device__ uint32_t *kept_hubs(int t, int n, int w) const {
        const int width = S::GROUPS * BOX, at = n * p.hubs + hub_of(thread, w);
        const size_t row = (size_t)t * p.hubs + at / width;
        return (uint32_t *)(p.hub_raw + row * p.columns + p.first_column + at % width);
    }

    __device__ float *kept_sums(int t) const {
        return kept_statistics(p.sums + (size_t)t * sums_gate(p.columns), p.columns) +
               p.first_column;
    }

    /* m of the columns that this thread block owns, at step t. */
    __device__ __forceinline__ void finish_hubs(int t) {
        const bool mine = thread < p.chunks * 8;
        sync(); /* what was staged has been read */
        if (p.keep && t > 0) barrier_wait(b.kept, (t - 1) % 2);
        for (int n = blockIdx.x; n < S::GROUPS * BOX; n += gridDim.x) {
            float x[VECTOR], v[VECTOR] = {}, y[VECTOR] = {}, gain[VECTOR], bias[VECTOR];
            float total = 0, square = 0, shift = 0, scale = 1;
            uint32_t entry[4] = {};
            if (mine) {
                load_entries(t, n, entry);
                load_floats(p.hub_gain, 1, gain);
                load_floats(p.hub_bias, 0, bias);
            }
            await_parts(t);
            add_parts(n, x);
            if (mine) {
#pragma unroll
                for (int i = 0; i < VECTOR; i++) {
                    const float from = i % 2 ? high(entry[i / 2]) : low(entry[i / 2]);
                    if (p.below && has_hub(i / 2)) x[i] += to_float(p.below[kept_place(n, t, i)]);
                    v[i] = rounded(x[i]);
                    x[i] = p.norm_last ? rounded(v[i] * from) : v[i];
                    total += x[i];
                    square += x[i] * x[i];
                }
            }
            if (p.norm) {
                add_threads(total, square);
                find_statistics(total / p.hubs, square / p.hubs, shift, scale);
                if (thread == 0) {
                    kept_sums(t)[n] = shift;
                    kept_sums(t)[p.columns + n] = scale;
                }
            }
            if (mine) {
#pragma unroll
                for (int i = 0; i < VECTOR; i++) {
                    const float from = i % 2 ? high(entry[i / 2]) : low(entry[i / 2]);
                    y[i] = gain[i] * (x[i] * scale + shift) + bias[i];
                    if (!p.norm_last) y[i] *= from;
                }
            }
            publish(n, y, mine);
#pragma unroll
            for (int w = 0; w < 4; w++) {
                if (!p.keep || !mine || !has_hub(w)) continue;
                *kept_hubs(t, n, w) = pack(v[2 * w], v[2 * w + 1]);
            }
        }
        if (thread == 0) barrier_arrive(b.x_free);
        __syncwarp();
    }

    /* dv of the columns that this thread block owns; kernels/cpu/stages.c has the equations. */
    __device__ __forceinline__ void finish_hubs_backward(int t, int round) {
        const bool mine = thread < p.chunks * 8;
        sync(); /* what was staged has been read */
        if (round > 0) barrier_wait(b.kept, (round - 1) % 2);
        for (int n = blockIdx.x; n < S::GROUPS * BOX; n += gridDim.x) {
            float d[VECTOR] = {}, raw[VECTOR], v[VECTOR] = {}, gain[VECTOR], bias[VECTOR];
            float mean = 0, product = 0, shift = 0, scale = 1;
            uint32_t entry[4] = {}, kept[4] = {};
            if (mine) {
                load_entries(t, n, entry);
#pragma unroll
                for (int w = 0; w < 4; w++) kept[w] = has_hub(w) ? *kept_hubs(t, n, w) : 0;
                load_floats(p.hub_gain, 1, gain);
                load_floats(p.hub_bias, 0, bias);
                if (p.norm) {
                    shift = kept_sums(t)[n];
                    scale = kept_sums(t)[p.columns + n];
                }
            }
            await_parts(round);
            add_parts(n, d);
            if (mine) {
#pragma unroll
                for (int i = 0; i < VECTOR; i++) {
                    const float from = i % 2 ? high(entry[i / 2]) : low(entry[i / 2]);
                    v[i] = i % 2 ? high(kept[i / 2]) : low(kept[i / 2]);
                    raw[i] = (p.norm_last ? rounded(v[i] * from) : v[i]) * scale + shift;
                    d[i] = rounded(d[i]);
                    if (!p.norm_last) {
                        v[i] = d[i] * (gain[i] * raw[i] + bias[i]);
                        d[i] = rounded(d[i] * from);
                    }
                    if (!has_hub(i / 2)) continue;
                    hub_dbias[i] += d[i];
                    hub_dgain[i] += d[i] * raw[i];
                    mean += gain[i] * d[i];
                    product += gain[i] * d[i] * raw[i];
                }
            }
            if (p.norm) add_threads(mean, product);
            mean /= p.hubs;
            product /= p.hubs;
            if (mine) {
#pragma unroll
                for (int i = 0; i < VECTOR; i++) {
                    const float from = i % 2 ? high(entry[i / 2]) : low(entry[i / 2]);
                    if (p.norm) d[i] = (gain[i] * d[i] - mean - raw[i] * product) * scale;
                    if (p.norm_last) {
                        d[i] = rounded(d[i]);
                        v[i] *= d[i];
                        d[i] *= from;
                    }
                }
            }
            store_column(p.aside, n, v, mine);
            publish(n, d, mine);
        }
        if (thread == 0) barrier_arrive(b.x_free);
        __syncwarp();
    }

    /* Waits for all thread blocks' parts. */
    __device__ __forceinline__ void await_parts(int round) {
        if (thread == 0) {
            await_count(counter_of(p.counters, COUNT_PARTS, 0), (round + 1) * gridDim.x, p.stuck);
        }
        sync();
    }

    /* ----------------------------------------------------------------------------- the gates */

    /* Which of this thread's updates are dropped, a bit for each. */
    __device__ uint32_t draw_dropout(int t) const {
        uint32_t dropped = 0;
#pragma unroll
        for (int k = 0; k < U / 2; k++) {
            const int n = p.first_column + column + k / 2 % 2 * 8, which = n % 4;
            const uint4 four = philox_draw(
                p.dropout_seed, (uint32_t)cell_of(k), (p.dropout_stream + (uint32_t)n) / 4,
                (uint32_t)p.arguments->update, PHILOX_PURPOSE(PHILOX_DROPOUT, p.first_step + t));
            const uint32_t one = which % 2 ? four.y : four.x, two = which % 2 ? four.w : four.z;
            if ((which < 2 ? one : two) < p.dropout_threshold) dropped |= 1u << k;
        }
        return dropped;
    }

    /* What dropout multiplies an update by. */
    __device__ float kept_share(uint32_t dropped, int k) const {
        if (p.dropout_threshold == 0) return 1;
        return dropped >> k & 1 ? 0 : p.dropout_scale;
    }

    /* Where c of a step is kept for backward, after the first step and before the last; in vectors
     * of four. */
    __device__ float4 *c_of(int t) const {
        const size_t box = (size_t)t * (p.columns / BOX) + p.first_column / BOX + group;
        return (float4 *)p.c + (box * gridDim.x + blockIdx.x) * (U / 8) * GROUP + thread % GROUP;
    }

    /* Where a thread keeps eight cells' arguments of a gate, see hub_places. */
    __device__ uint2 *z_of(int t, int gate, int j) const {
        const int own = thread % GROUP, in_row = BOX / 4;
        const hub_places &z = p.z;
        bf16 *step = t == 0 ? z.first : z.second + (size_t)(t - 1) * z.step;
        return (uint2 *)(step + blockIdx.x * z.block + group * z.group + gate * z.gate +
                         j * 8 * z.row + own / in_row * z.row + own % in_row * 4);
    }

    /* Stages rows of a group's columns, pairs of neighbours as leave_parts has them, in a slot of
     * its x, for TMA to store. */
    __device__ __forceinline__ void stage(uint32_t to, const uint32_t *pair) const {
        const int chunk = warp * 2 + lane / 8 % 2;
        to += lane % 8 * BOX_ROW + (chunk ^ (lane % 8)) * 16;
#pragma unroll
        for (int j = 0; j < J * 2; j += 4) {
            const int other = j + 4 <= J * 2 ? 2 : 0; /* the last eight rows once more */
            const uint32_t four[4] = {pair[j], pair[j + 1], pair[j + other], pair[j + other + 1]};
            store_matrices_transposed(to + (j + lane / 16 * other) / 2 * 8 * BOX_ROW, four);
        }
        shared_fence();
    }

    /* The gates of a step; h as pairs of neighbouring cells, [J][half of the columns]. */
    __device__ __forceinline__ void run_gates(int t, float (&c)[U / 2], uint32_t (&h)[J * 2]) {
        const float4 *biases = (const float4 *)(shared + S::BIAS);
        const uint8_t *text = p.bytes + (size_t)t * p.columns + p.first_column + column;
        const int byte[2] = {text[0], text[8]};
        float sum[HUB_GATES * U / 2] = {};
        uint4 entry[J][2];
        uint32_t dropped = 0;
#pragma unroll
        for (int k = 0; k < J * 2; k++) {
            entry[k / 2][k % 2] = make_uint4(0, 0, 0, 0);
            if (!p.gates_table) continue;
            const size_t at = (size_t)byte[k % 2] * p.hidden + cell_of(k / 2 * 4);
            entry[k / 2][k % 2] = *(const uint4 *)(p.gates_table + at * GATES);
        }
        if (p.dropout_threshold > 0) dropped = draw_dropout(t);
        multiply_w(sum, t);
#pragma unroll
        for (int j = 0; j < J; j++) {
            uint32_t z[HUB_GATES][2];
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const uint4 e = entry[j][half];
                float x[2][GATES], y[2];
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const int k = (j * 2 + half) * 2 + i;
                    const float4 bias = biases[cell_of(k) - first];
                    const uint32_t one = i ? e.z : e.x, two = i ? e.w : e.y;
                    const float from[HUB_GATES] = {high(one), low(two), high(two)};
                    const float own[HUB_GATES] = {bias.x, bias.y, bias.z};
#pragma unroll
                    for (int gate = 0; gate < HUB_GATES; gate++) {
                        x[i][gate + 1] =
                            sum[(gate * J + j) * 4 + half * 2 + i] + from[gate] + own[gate];
                    }
                }
#pragma unroll
                for (int gate = 0; gate < HUB_GATES; gate++) {
                    z[gate][half] = pack(x[0][gate + 1], x[1][gate + 1]);
                }
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const int k = (j * 2 + half) * 2 + i;
#pragma unroll
                    for (int gate = 1; gate < GATES; gate++) x[i][gate] *= slope<bf16>(gate);
                    x[i][GATE_U] *= kept_share(dropped, k);
                    y[i] = update_cell<bf16>(x[i], c[k], true);
                }
                h[j * 2 + half] = pack(y[0], y[1]);
            }
            if (!p.keep) continue;
#pragma unroll
            for (int gate = 0; gate < HUB_GATES; gate++) {
                __stcs(z_of(t, gate, j), make_uint2(z[gate][0], z[gate][1]));
            }
        }
    }

    __device__ __forceinline__ void store_state(int t, const float (&c)[U / 2],
                                                const uint32_t (&h)[J * 2]) {
        stage(slot(0), h);
        sync_half();
        if (thread % GROUP == 0) {
            tensor_store(&p.out, slot(0), p.first_column + group * BOX, t * p.hidden + first);
            store_commit();
            store_wait<0>();
        }
        __syncwarp();
        if (p.keep && t < p.steps) {
#pragma unroll
            for (int k = 0; k < U / 2; k += 4) {
                __stcs(c_of(t) + k / 4 * GROUP, make_float4(c[k], c[k + 1], c[k + 2], c[k + 3]));
            }
            return;
        }
        float *to = p.c + (size_t)t * p.hidden * p.columns;
#pragma unroll
        for (int k = 0; k < U / 2; k++) __stcs(to + place_of(k), c[k]);
    }

    __device__ void run_forward() {
        float c[U / 2];
        uint32_t h[J * 2];
#pragma unroll
        for (int k = 0; k < U / 2; k += 2) {
            h[k / 2] = pack(to_float(p.h[place_of(k)]), to_float(p.h[place_of(k + 1)]));
            c[k] = p.c[place_of(k)];
            c[k + 1] = p.c[place_of(k + 1)];
        }
        leave_parts(h);
#pragma unroll 1
        for (int t = 0; t < p.steps; t++) {
            finish_hubs(t);
            run_gates(t, c, h);
            if (t + 1 < p.steps) {
                leave_parts(h);
            } else {
                sync(); /* all have multiplied, so slots of x are free */
            }
            store_state(t + 1, c, h);
        }
    }

    /* Has the L2 fetch what the gates of a step will read. */
    __device__ __forceinline__ void fetch_ahead(int t) const {
        if (thread % GROUP) return;
        prefetch(c_of(t), U / 8 * GROUP * sizeof(float4));
        if (p.columns > MOST_COLUMNS) return;
        prefetch(z_of(t, 0, 0), HUB_GATES * U * BOX * sizeof(bf16));
        if (group) return;
        prefetch(p.dh + ((size_t)t * p.hidden + first) * p.columns, U * p.columns * sizeof(bf16));
    }

    /* What backward reads of eight cells: the gates' arguments and c before the step. */
    struct gates_inputs {
        uint2 z[HUB_GATES];
        float before[4];
    };

    /* What it makes of these before it has the gradient at h. With n = dc + dh h[0], the gradient
     * at c: dz = n h[2], dh h[1], n h[3] of f, o, u, and the next dc is n f. Numbers of about 1 at
     * most, in fp16, whose rounding is an eighth of that of dz. */
    struct gates_factors {
        __half2 h[4][2]; /* of h[0] and h[1], then of h[2] and h[3] */
        float f[4];
    };

    __device__ __forceinline__ void load_inputs(int t, int j, gates_inputs &in) const {
#pragma unroll
        for (int gate = 0; gate < HUB_GATES; gate++) {
            in.z[gate] = __ldcs(z_of(t, gate, j));
        }
        if (t > 0) {
            const float4 four = __ldcs(c_of(t) + j * GROUP);
            in.before[0] = four.x;
            in.before[1] = four.y;
            in.before[2] = four.z;
            in.before[3] = four.w;
        }
#pragma unroll
        for (int k = 0; k < 4; k++) {
            if (t == 0) in.before[k] = p.c[place_of(j * 4 + k)];
        }
    }

    /* The factors of eight cells, from the c of the step, which becomes the one before. */
    __device__ __forceinline__ void find_factors(const gates_inputs &in, int j, uint32_t dropped,
                                                 float (&c)[U / 2], gates_factors &to) const {
#pragma unroll
        for (int own = 0; own < 4; own++) {
            const int k = j * 4 + own;
            float x[HUB_GATES];
#pragma unroll
            for (int gate = 0; gate < HUB_GATES; gate++) {
                const uint32_t two = own / 2 ? in.z[gate].y : in.z[gate].x;
                x[gate] = (own % 2 ? high(two) : low(two)) * slope<bf16>(gate + 1);
            }
            const float share = kept_share(dropped, k);
            const float f = squash_sigmoid<bf16>(x[0]), o = squash_sigmoid<bf16>(x[1]);
            const float u = squash_tanh<bf16>(x[2] * share);
            const float of_c = squash_tanh<bf16>(slope<bf16>(GATE_U) * c[k]);
            c[k] = in.before[own];
            to.f[own] = f;
            to.h[own][0] = __floats2half2_rn(o * (1 - of_c * of_c), of_c * o * (1 - o));
            to.h[own][1] =
                __floats2half2_rn((c[k] - u) * f * (1 - f), (1 - f) * (1 - u * u) * share);
        }
    }

    /* The gates of a step backward: from dh, V' dv or what is given included, and the c of the
     * step, which becomes the one before, to dz and the next dc. */
    __device__ __forceinline__ void run_gates_backward(int t, int round, bool asked,
                                                       float (&c)[U / 2], float (&dc)[U / 2],
                                                       uint32_t (&dz)[PAIRS]) {
        float sum[U / 2];
        gates_inputs in[J];
        gates_factors factors[J]; /* found while chunks are multiplied, and the next ones come */
        uint32_t dropped = 0;
        const int chunks = round < 0 ? 0 : p.chunks;
#pragma unroll
        for (int j = 0; j < J; j++) load_inputs(t, j, in[j]);
#pragma unroll
        for (int k = 0; k < U / 2; k++) {
            sum[k] = to_float(p.dh[(size_t)t * p.hidden * p.columns + place_of(k)]);
            if (asked) sum[k] += to_float(p.dx[place_of(k)]);
        }
        if (p.dropout_threshold > 0) dropped = draw_dropout(t);
#pragma unroll
        for (int j = 0; j < J; j++) {
            auto find = [&] { find_factors(in[j], j, dropped, c, factors[j]); };
            if (j < chunks) {
                multiply_v_chunk(sum, round, j, find);
            } else {
                find();
            }
        }
        if (round >= 0) multiply_v(sum, round, min(J, chunks));
#pragma unroll
        for (int j = 0; j < J; j++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                float d[HUB_GATES][2];
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    const int k = (j * 2 + half) * 2 + i, own = half * 2 + i;
                    const float2 one = __half22float2(factors[j].h[own][0]);
                    const float2 two = __half22float2(factors[j].h[own][1]);
                    const float of_next = dc[k] + sum[k] * one.x;
                    d[0][i] = of_next * two.x;
                    d[1][i] = sum[k] * one.y;
                    d[2][i] = of_next * two.y;
                    dc[k] = of_next * factors[j].f[own];
                }
#pragma unroll
                for (int gate = 0; gate < HUB_GATES; gate++) {
                    dz[(gate * J + j) * 2 + half] = pack(d[gate][0], d[gate][1]);
                }
            }
        }
    }

    /* Stores dz for the gradients of weights and tables, and adds it to those of biases: a thread
     * has a row's half of the group's columns. */
    __device__ __forceinline__ void store_gradients(int t, const uint32_t (&dz)[PAIRS]) {
        const int row = thread % GROUP / 2, half = thread % 2;
#pragma unroll
        for (int gate = 0; gate < HUB_GATES; gate++) {
            const uint32_t at = slot(gate % 2);
            if (gate >= 2) {
                if (thread % GROUP == 0) store_wait<0>();
                sync_half();
            }
            stage(at, dz + gate * J * 2);
            sync_half();
            if (thread % GROUP == 0) {
                tensor_store(&p.out, at, p.first_column + group * BOX,
                             (t * HUB_GATES + gate) * p.hidden + first);
                store_commit();
            }
            __syncwarp();
            float total = 0;
            for (int i = 0; row < U && i < 4; i++) {
                const uint4 eight =
                    shared_words(at + row * BOX_ROW + half * 64 + (i + row) % 4 * 16);
                const uint32_t words[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
                for (int w = 0; w < 4; w++) total += low(words[w]) + high(words[w]);
            }
            dbias[gate] += total;
        }
        if (thread % GROUP == 0) store_wait<0>();
        __syncwarp();
    }

    /* Stores the gradients of the gates' biases, and this thread block's of the hubs' gains. */
    __device__ void store_sums() {
        float *scratch = (float *)(shared + S::X);
        const int row = thread % GROUP / 2;
        if (thread < p.chunks * 8) {
            float *to = p.gradients + (size_t)blockIdx.x * 2 * MOST_CHUNKS * KC;
#pragma unroll
            for (int i = 0; i < VECTOR; i++) {
                const int hub = hub_of(thread, i / 2) + i % 2;
                to[hub] = hub_dgain[i];
                to[MOST_CHUNKS * KC + hub] = hub_dbias[i];
            }
        }
        sync();
#pragma unroll
        for (int gate = 0; gate < HUB_GATES; gate++) {
            dbias[gate] += __shfl_xor_sync(~0u, dbias[gate], 1);
            if (group) scratch[gate * 64 + row] = dbias[gate];
        }
        sync();
        if (group || row >= U || thread % 2 || !p.dbias) return;
#pragma unroll
        for (int gate = 0; gate < HUB_GATES; gate++) {
            float *to = p.dbias + (size_t)gate * p.hidden + first + row;
            if (S::GROUPS > 1) dbias[gate] += scratch[gate * 64 + row];
            *to = dbias[gate] + (p.first_column ? *to : 0);
        }
    }

    __device__ void run_backward() {
        const float *last = p.c + (size_t)p.steps * p.hidden * p.columns;
        float c[U / 2], dc[U / 2];
        uint32_t dz[PAIRS];
#pragma unroll
        for (int k = 0; k < U / 2; k++) {
            c[k] = last[place_of(k)];
            dc[k] = p.later ? p.dc[place_of(k)] : 0;
        }
#pragma unroll 1
        for (int t = p.steps - 1; t >= 0; t--) {
            const bool start = t == p.steps - 1;
            run_gates_backward(t, p.steps - 2 - t, start && p.later, c, dc, dz);
            if (t > 1) fetch_ahead(t - 1);
            leave_parts(dz);
            store_gradients(t, dz);
            finish_hubs_backward(t, p.steps - 1 - t);
        }
        if (p.earlier) {
            float sum[U / 2] = {};
            multiply_v(sum, p.steps - 1, 0);
#pragma unroll
            for (int k = 0; k < U / 2; k++) {
                p.dx[place_of(k)] = from_float<bf16>(sum[k]);
                p.dc[place_of(k)] = dc[k];
            }
        }
        store_sums();
    }
};

#endif
