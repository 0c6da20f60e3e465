/* The warps of hubs.cu that multiply, make the gates of their cells, and finish the hubs of columns
 * that their thread block owns. */
#ifndef SMALLWORLD_KERNELS_CUDA_CELL_HUBS_CONSUMER_CUH
#define SMALLWORLD_KERNELS_CUDA_CELL_HUBS_CONSUMER_CUH

#include "cell/hubs_gates.cuh"

/* The hub of a part's vector of 16 bytes: as a product's sums lie in a thread, of which four
 * neighbours so store 64 bytes. w: of its four words; each has this hub and the next one. */
static __device__ inline int hub_of(int vector, int w) {
    return vector / 8 * KC + (vector / 4 % 2 * 4 + w) * 8 + vector % 4 * 2;
}

template <typename S, bool BACK> struct hub_consumer : hub_gates<S::U, S::GROUPS> {
    typedef hub_gates<S::U, S::GROUPS> gates;
    static const int U = S::U, J = gates::J, PAIRS = gates::PAIRS;
    using gates::column, gates::first, gates::group, gates::lane, gates::p, gates::thread;
    static const int ROWS = BACK ? HUB_GATES * J : J; /* eights of rows of what is multiplied */
    uint32_t base;
    char *shared;
    hub_barriers<BACK> &b;
    int streamed = 0, v_done = 0; /* uses of W that does not stay; the slot of V to release next */
    float hub_dgain[VECTOR] = {}, hub_dbias[VECTOR] = {}; /* backward */

    __device__ hub_consumer(const hub_arguments &p_, uint32_t base_, char *shared_,
                            hub_barriers<BACK> &b_)
        : gates(p_, base_ + S::X, shared_ + S::BIAS, blockIdx.x, gridDim.x), base(base_),
          shared(shared_), b(b_) {}

    __device__ void sync() const {
        gates::sync_groups();
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
        const size_t column_of_all = (size_t)blockIdx.x * MOST_COLUMNS + column;
        uint4 *to = (uint4 *)p.parts + column_of_all * p.chunks * 8;
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
        const int byte = p.bytes[(size_t)t * p.columns + n];
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
        return row * p.columns + n;
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
        const uint4 *from = (const uint4 *)p.parts + (size_t)n * vectors + thread % vectors;
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

    /* Where V h of a column's hubs is kept for backward, in the order [column][hub]. */
    __device__ uint32_t *kept_hubs(int t, int n, int w) const {
        const size_t column = (size_t)t * p.columns + n;
        return (uint32_t *)(p.hub_raw + column * p.hubs + hub_of(thread, w));
    }

    __device__ float *kept_sums(int t) const {
        return kept_statistics(p.sums + (size_t)t * sums_gate(p.columns), p.columns);
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

    /* The gates of a step; see make_gates. */
    __device__ __forceinline__ void run_gates(int t, float (&c)[U / 2], uint32_t (&h)[J * 2]) {
        float sum[HUB_GATES * U / 2] = {};
        uint4 entry[J][2];
        const int2 bytes = this->bytes_of(t);
#pragma unroll
        for (int j = 0; j < J; j++) this->load_gates_entries(bytes, j, entry[j]);
        const uint32_t dropped = p.dropout_threshold > 0 ? this->draw_dropout(t) : 0;
        multiply_w(sum, t);
#pragma unroll
        for (int j = 0; j < J; j++) {
            this->make_gates(j, t, sum, entry[j], dropped, c + j * 4, h + j * 2);
        }
    }

    __device__ void run_forward() {
        float c[U / 2];
        uint32_t h[J * 2];
#pragma unroll
        for (int k = 0; k < U / 2; k += 2) {
            h[k / 2] = pack(to_float(p.h[this->place_of(k)]), to_float(p.h[this->place_of(k + 1)]));
            c[k] = p.c[this->place_of(k)];
            c[k + 1] = p.c[this->place_of(k + 1)];
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
            this->store_h(t + 1, h);
#pragma unroll
            for (int j = 0; j < J; j++) this->store_c(t + 1, j, c + j * 4);
        }
    }

    /* Has the L2 fetch what the gates of a step will read. */
    __device__ __forceinline__ void fetch_ahead(int t) const {
        if (thread % GROUP) return;
        prefetch(this->c_of(t), U / 8 * GROUP * sizeof(float4));
        if (p.columns > MOST_COLUMNS) return;
        prefetch(this->z_of(t, 0, 0), HUB_GATES * U * BOX * sizeof(bf16));
        if (group) return;
        prefetch(p.dh + ((size_t)t * p.hidden + first) * p.columns, U * p.columns * sizeof(bf16));
    }

    /* The gates of a step backward: from dh, V' dv or what is given included, and the c of the
     * step, which becomes the one before, to dz and the next dc. */
    __device__ __forceinline__ void run_gates_backward(int t, int round, bool asked,
                                                       float (&c)[U / 2], float (&dc)[U / 2],
                                                       uint32_t (&dz)[PAIRS]) {
        float sum[U / 2];
        typename gates::gates_inputs in[J];
        typename gates::gates_factors
            factors[J]; /* found while chunks are multiplied, and the next ones come */
        uint32_t dropped = 0;
        const int chunks = round < 0 ? 0 : p.chunks;
#pragma unroll
        for (int j = 0; j < J; j++) this->load_inputs(t, j, in[j]);
#pragma unroll
        for (int k = 0; k < U / 2; k++) {
            sum[k] = to_float(p.dh[(size_t)t * p.hidden * p.columns + this->place_of(k)]);
            if (asked) sum[k] += to_float(p.dx[this->place_of(k)]);
        }
        if (p.dropout_threshold > 0) dropped = this->draw_dropout(t);
#pragma unroll
        for (int j = 0; j < J; j++) {
            auto find = [&] {
                this->template find_factors<true>(in[j], j, dropped, c, factors[j]);
            };
            if (j < chunks) {
                multiply_v_chunk(sum, round, j, find);
            } else {
                find();
            }
        }
        if (round >= 0) multiply_v(sum, round, min(J, chunks));
#pragma unroll
        for (int j = 0; j < J; j++) this->differentiate(j, sum, factors[j], dc, dz);
    }

    /* Stores the gradients of the gates' biases, and this thread block's of the hubs' gains. */
    __device__ void store_sums() {
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
        this->store_biases((float *)(shared + S::X), p.dbias, false);
    }

    __device__ void run_backward() {
        const float *last = p.c + (size_t)p.steps * p.hidden * p.columns;
        float c[U / 2], dc[U / 2];
        uint32_t dz[PAIRS];
#pragma unroll
        for (int k = 0; k < U / 2; k++) {
            c[k] = last[this->place_of(k)];
            dc[k] = p.later ? p.dc[this->place_of(k)] : 0;
        }
#pragma unroll 1
        for (int t = p.steps - 1; t >= 0; t--) {
            const bool start = t == p.steps - 1;
            run_gates_backward(t, p.steps - 2 - t, start && p.later, c, dc, dz);
            if (t > 1) fetch_ahead(t - 1);
            leave_parts(dz);
            this->store_gradients(t, dz);
            finish_hubs_backward(t, p.steps - 1 - t);
        }
        if (p.earlier) {
            float sum[U / 2] = {};
            multiply_v(sum, p.steps - 1, 0);
#pragma unroll
            for (int k = 0; k < U / 2; k++) {
                p.dx[this->place_of(k)] = from_float<bf16>(sum[k]);
                p.dc[this->place_of(k)] = dc[k];
            }
        }
        store_sums();
    }
};

#endif
