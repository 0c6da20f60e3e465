/* The gates of a cell backward, with layer norm. The equations stand in ops.h, those of layer
 * norm's gradient in kernels/cpu/stages.c; how units and columns are shared out, in gates.cuh.
 *
 * Floor, in bytes a unit and stream (bf16): 8 raw, 4 c, 8 dc, 4 dh and dx, and 8 for the gradient
 * at raw. Besides, the input table's entries, and the sums of their gradients, see
 * gates_table_gradient.cuh.
 *
 * Layer norm's gradient needs two sums over all units of each gate and column. Backward therefore
 * runs as one thread block a multiprocessor, all at the same time, and takes the spans in turn,
 * since one span's raw and dpre fit on the chip: each thread block adds its part to the span's
 * sums, and when they have all parts, finishes the span's gradients. Meanwhile it begins with the
 * next span. raw and dpre of as many units as fit stay in shared memory; those of the rest come
 * again from the L2. At 18,432 units and 512 columns on an H200 a step so reads and writes 400 MB
 * of memory, 80 MB less than with all columns at once.
 *
 * At 128 columns a step takes 38 us there. The gradients at norm's result take 23 of them, which
 * memory bounds; then 6 pass until the sums have arrived; the gradients at raw take 8, where a
 * plain copy of what they write takes 7. While a warp waits for the sums, its registers are free,
 * and it fetches six units from the L2 ahead.
 *
 * Loads and stores tell the L2 what to evict first, namely dpre and what backward reads for the
 * last time, and what last, namely dc, where it fits. A unit's raw is fetched as soon as that of
 * the unit before is unpacked, and a finished unit is stored after the next one's loads. What did
 * not help, and where its time goes: docs/kernels/cell.md. */
#include "cell/gates.cuh"
#include "cell/gates_table_gradient.cuh"

enum {
    BACKWARD_WARPS = 12,
    BACKWARD_THREADS = BACKWARD_WARPS * 32,
    HELD_SPANS = 2,   /* whose statistics are kept: this one and the next */
    EARLY_ROUNDS = 2, /* of the next span, computed while the sums arrive */
    LASTING_SHARE = 5 /* dc is kept in the L2 from step to step if it is at most a fifth of it */
};

template <typename T, int VEC> struct backward_inputs {
    gate_inputs<T, VEC> gates;
    packet<T, VEC> dh, dx; /* dx: dL/dh from the later step, or 0 */
    packet<float, VEC> dc;

    __device__ void fetch_state(const view<T> &v, int unit, int n) {
        const uint32_t at = state_row(v, unit) + n;
        load_packet_once(gates.c, v.c_before + at);
        load_packet(dc, v.dc + at);
        load_packet_once(dh, v.dh + at);
    }

    __device__ void fetch_dx(const view<T> &v, int unit, int n) {
        if (v.asked) load_packet_once(dx, v.dx + (state_row(v, unit) + n));
    }
};

/* What shared memory keeps of a unit until layer norm's sums are known; dpre_place says how dpre
 * lies. */
template <typename T, int VEC> struct alignas(16) kept_unit {
    T raw[GATES][32 * VEC], dpre[GATES * 32 * VEC];
};

/* The index of a lane's columns of a gate in a unit's dpre in shared memory. */
template <typename T, int VEC> static __device__ inline int dpre_place(int round, int gate) {
    if (sizeof(T) == 2) return quad_place<VEC>(round, gate);
    return (gate * 32 + threadIdx.x % 32) * VEC;
}

/* The warp's number; the compiler knows that it is the same in all lanes. */
static __device__ inline int warp_index() {
    return __shfl_sync(~0u, threadIdx.x / 32, 0);
}

/* The thread block's arrays in shared memory, its units and the warp's. */
template <typename T, int VEC> struct backward_arrays {
    float *st;                   /* [HELD_SPANS][GATES][2][SPAN] */
    float *features;             /* [BACKWARD_WARPS][K][SPAN]: the warps' sums over their units */
    float *means;                /* [K][SPAN]: over all units */
    float *gains;                /* [units][gains of the gates, biases] */
    float *units;                /* [units][K]: sums over columns, of dpre and dpre times value */
    kept_unit<T, VEC> *kept;     /* [BACKWARD_WARPS][v.kept] */
    column_text<32 * VEC> *text; /* [HELD_SPANS]; only where a table is summed */
    int first, last, leader, rounds; /* leader: the warp's first unit; rounds: how many it has */

    static const int SPAN = 32 * VEC,
                     STEP = PAIR * BACKWARD_WARPS; /* from pair to pair of a warp */

    static size_t bytes(const view<T> &v) {
        size_t floats = K * SPAN * (HELD_SPANS + BACKWARD_WARPS + 1) + 2 * (size_t)K * v.units;
        return floats * sizeof(float) + HELD_SPANS * sizeof(column_text<SPAN>) +
               BACKWARD_WARPS * v.kept * sizeof(kept_unit<T, VEC>);
    }

    __device__ backward_arrays(const view<T> &v, float *shared) {
        const int warp = warp_index();
        st = shared;
        features = st + HELD_SPANS * K * SPAN;
        means = features + BACKWARD_WARPS * K * SPAN;
        gains = means + K * SPAN;
        units = gains + K * v.units;
        text = (column_text<SPAN> *)(units + K * v.units);
        kept = (kept_unit<T, VEC> *)(text + HELD_SPANS) + warp * v.kept;
        first = blockIdx.x * v.units;
        last = min(first + v.units, v.width);
        leader = first + warp * PAIR;
        const int units_left = max(last - leader, 0);
        rounds = units_left / STEP * PAIR + min(units_left % STEP, (int)PAIR);
    }

    /* The index of a round's unit among the warp's kept units; outside 0 ... v.kept - 1 it is not
     * kept. The first rounds of a span never are, since the span before still needs the room. */
    static __device__ int place(int round) {
        return round - EARLY_ROUNDS;
    }

    __device__ int unit(int round) const {
        return leader + round / PAIR * STEP + round % PAIR;
    }

    /* Where a round's dpre lies until it is added to the table's sums: where the unit is kept, else
     * where the warp's features will be. Lanes may ask for different rounds, so this must not
     * shuffle as warp_index does. */
    __device__ T *staged(const view<T> &v, int round) const {
        const int at = place(round);
        T *here = (T *)(features + threadIdx.x / 32 * K * SPAN) + round % QUAD * GATES * SPAN;
        return (unsigned)at < (unsigned)v.kept ? kept[at].dpre : here;
    }

    /* The address of this lane's columns of a unit's dpre, of its first gate, in global memory, and
     * the distance to the next gate's. */
    static __device__ T *dpre_row(const view<T> &v, int unit, int span) {
        const uint32_t column = threadIdx.x % 32 * VEC;
        const uint32_t row = v.scratch ? (span % HELD_SPANS * v.width + unit) * v.gates * SPAN
                                       : unit_row(v, unit) + span * SPAN;
        return v.dpre + (row + column);
    }

    static __device__ uint32_t dpre_gate(const view<T> &v) {
        return v.scratch ? SPAN : v.gate_rows;
    }

    /* The sums of one gate in a span; each span's are contiguous. */
    static __device__ fixed *gate_sums(const view<T> &v, int span, int gate) {
        return v.dsums + (size_t)(span * GATES + gate) * sums_gate(SPAN);
    }

    __device__ float *statistics_of(int span) const {
        return st + span % HELD_SPANS * K * SPAN;
    }

    /* They may be read after copy_wait<0> and a barrier. */
    __device__ void fetch_statistics(const view<T> &v, int span) const {
        for (int i = threadIdx.x; i < K * SPAN / 4; i += blockDim.x) {
            const int k = i / (SPAN / 4), n = span * SPAN + i % (SPAN / 4) * 4;
            float *to = statistics_of(span) + i * 4;
            if (v.layer_norm) {
                fixed *sums = v.sums + k / 2 * sums_gate(v.columns);
                copy_async(shared_address(to),
                           kept_statistics(sums, v.columns) + k % 2 * v.columns + n);
            } else {
                *(float4 *)to = k % 2 ? make_float4(1, 1, 1, 1) : make_float4(0, 0, 0, 0);
            }
        }
        if (v.table_sums) {
            const char *from = (const char *)((const column_text<SPAN> *)v.texts + span);
            const uint32_t to = shared_address(&text[span % HELD_SPANS]);
            for (int i = threadIdx.x * 16; i < (int)sizeof *text; i += BACKWARD_THREADS * 16) {
                copy_async_whole(to + i, from + i);
            }
        }
        copy_commit();
    }

    /* Waits until all thread blocks have added their parts, and stores the means. One lane of each
     * warp polls, for the last sum that it needs. If all lanes polled, they would read as much out
     * of the L2 as the gradients do, and backward would take 2 % longer. */
    __device__ void hold_means(const view<T> &v, int span) const {
        const int EACH = (K * SPAN + BACKWARD_THREADS - 1) / BACKWARD_THREADS;
        const int last = min(threadIdx.x + (EACH - 1) * BACKWARD_THREADS, K * SPAN - 1);
        fixed sum[EACH];
        patience p;
        while (threadIdx.x % 32 == 31) {
            sum[0] = fetch_counted(gate_sums(v, span, last / SPAN / 2), SPAN, last / SPAN % 2,
                                   last % SPAN);
            if (parts_of(sum[0]) == gridDim.x) break;
            __nanosleep(20);
            p.lose(v.stuck);
        }
        __syncwarp();
        for (bool all = false; !all;) {
            all = true;
#pragma unroll
            for (int k = 0; k < EACH; k++) {
                const int i = min(threadIdx.x + k * BACKWARD_THREADS, K * SPAN - 1);
                sum[k] =
                    fetch_counted(gate_sums(v, span, i / SPAN / 2), SPAN, i / SPAN % 2, i % SPAN);
            }
#pragma unroll
            for (int k = 0; k < EACH; k++) all = all && parts_of(sum[k]) == gridDim.x;
            if (!all) p.lose(v.stuck);
        }
#pragma unroll
        for (int k = 0; k < EACH; k++) {
            const int i = min(threadIdx.x + k * BACKWARD_THREADS, K * SPAN - 1);
            means[i] = decode_counted(sum[k], gate_sums(v, span, i / SPAN / 2), SPAN, i / SPAN % 2,
                                      i % SPAN) /
                       v.width;
        }
    }

    /* Writes the warp's dpre that only shared memory holds so far to global memory, where it is
     * kept for all steps. */
    __device__ void store_dpre(const view<T> &v, int span) const {
        if (v.scratch) return;
        const int LANE = 16 / sizeof(T); /* elements that a lane moves at a time */
        const int lane = threadIdx.x % 32, count = min(v.kept, rounds - EARLY_ROUNDS);
#pragma unroll 2
        for (int place = 0; place < count; place++) {
            T *row = v.dpre + unit_row(v, unit(EARLY_ROUNDS + place)) + span * SPAN;
#pragma unroll
            for (int i = lane * LANE; i < GATES * SPAN; i += 32 * LANE) {
                const uint4 dpre = *(const uint4 *)(kept[place].dpre + i);
                if (i / SPAN < v.first) continue;
                __stcs((uint4 *)(row + (i / SPAN - v.first) * v.gate_rows + i % SPAN), dpre);
            }
        }
    }
};

/* Adds one span's sums over the thread block's units, with gains as scale_gains made them, to the
 * totals. */
template <typename T, int VEC>
static __device__ void add_features(const view<T> &v, const backward_arrays<T, VEC> &a, int span,
                                    const float (&part)[K][VEC]) {
    const int SPAN = 32 * VEC, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < K; i++) {
        store_shared(a.features + (warp * K + i) * SPAN + lane * VEC, part[i]);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < K * SPAN; i += BACKWARD_THREADS) {
        const int value = i / SPAN, column = i % SPAN;
        const float inverse = 1 / slope<T>(value / 2 == GATE_U ? GATE_U : GATE_I);
        float total = 0;
        for (int w = 0; w < BACKWARD_WARPS; w++) total += a.features[w * K * SPAN + i];
        add_counted(a.gate_sums(v, span, value / 2), SPAN, value % 2, column, total * inverse);
    }
}

template <typename T> static __device__ inline float tanh_(float x) {
    return squash_tanh<T>(slope<T>(GATE_U) * x);
}

template <typename T, int VEC>
static __device__ inline void squash(const float (&z)[GATES][VEC], bool coupled,
                                     gate_values<VEC> &q) {
#pragma unroll
    for (int i = 0; i < VEC; i++) {
        q.f[i] = squash_sigmoid<T>(z[GATE_F][i]);
        q.i[i] = coupled ? 1 - q.f[i] : squash_sigmoid<T>(z[GATE_I][i]);
        q.o[i] = squash_sigmoid<T>(z[GATE_O][i]);
        q.u[i] = squash_tanh<T>(z[GATE_U][i]);
    }
}

/* The gradients at norm's result and at c of one unit, from the values of its gates. */
template <typename T, int VEC>
static __device__ inline void differentiate(const view<T> &v, const backward_inputs<T, VEC> &in,
                                            const gate_values<VEC> &q, float (&d)[GATES][VEC],
                                            float (&dc)[VEC]) {
#pragma unroll
    for (int i = 0; i < VEC; i++) {
        float before = in.gates.c.value(i), gradient = in.dh.value(i) + in.dx.value(i);
        float squashed = tanh_<T>(q.f[i] * before + q.i[i] * q.u[i]); /* as forward made it */
        float by_o = gradient * q.o[i], o = by_o * squashed;
        float state = in.dc.value(i) + by_o - o * squashed;
        float by_i = state * q.i[i], i_u = by_i * q.u[i], by_f = state * q.f[i];
        float f = by_f * (v.first > 0 ? before - q.u[i] : before);
        d[GATE_I][i] = v.first > 0 ? 0 : i_u - i_u * q.i[i];
        d[GATE_F][i] = f - f * q.f[i];
        d[GATE_O][i] = o - o * q.o[i];
        d[GATE_U][i] = by_i - i_u * q.u[i];
        dc[i] = by_f;
        if (v.dropout_threshold > 0) d[GATE_U][i] *= q.dropout[i];
    }
}

/* Adds the thread block's sums over columns to the gradients of gains and biases, which no other
 * thread block adds to. */
template <typename T>
static __device__ void add_units(const view<T> &v, int first, int count, const float *units) {
    for (int i = threadIdx.x; i < count * K; i += BACKWARD_THREADS) {
        const int unit = i % count, gate = i / count % GATES, which = i / count / GATES;
        const float sum = units[(unit * GATES + gate) * 2 + which];
        float *to = which ? v.dgain : v.dbias;
        if (!to || gate < v.first) continue;
        to += (gate - v.first) * v.width + first + unit;
        if (v.start) {
            *to = sum;
        } else {
            atomicAdd(to, sum); /* not waited for */
        }
    }
}

/* A lane's inputs for finishing the gradient of a unit. */
template <typename T, int VEC> struct finished_unit {
    packet<T, VEC> raw[GATES], dpre[GATES];

    __device__ void fetch(const view<T> &v, const backward_arrays<T, VEC> &a, int span, int round) {
        const int column = threadIdx.x % 32 * VEC, place = a.place(round), unit = a.unit(round);
        if ((unsigned)place < (unsigned)v.kept) {
            const kept_unit<T, VEC> *keep = a.kept + place;
#pragma unroll
            for (int gate = 0; gate < GATES; gate++) {
                load_packet(raw[gate], keep->raw[gate] + column);
                load_packet(dpre[gate], keep->dpre + dpre_place<T, VEC>(round, gate));
            }
        } else {
            const uint32_t raw_row = unit_row(v, unit) + span * 32 * VEC + column;
            const T *dpre_row = a.dpre_row(v, unit, span);
            const uint32_t dpre_gate = a.dpre_gate(v);
#pragma unroll
            for (int gate = 0; gate < GATES; gate++) {
                raw[gate] = dpre[gate] = packet<T, VEC>();
                if (!has_gate(v, gate)) continue;
                load_packet(raw[gate], v.raw + (raw_row + (gate - v.first) * v.gate_rows));
                load_packet(dpre[gate], dpre_row + (gate - v.first) * dpre_gate);
            }
        }
    }
};

/* The factors that finish the gradients of a lane's columns in one span. */
template <typename T, int VEC> struct finish_factors {
    float scale[GATES][VEC], shift[GATES][VEC], slant[GATES][VEC];

    /* st, means: from this lane's columns on. */
    __device__ finish_factors(const float *st, const float *means) {
        const int SPAN = 32 * VEC;
#pragma unroll
        for (int gate = 0; gate < GATES; gate++) {
            statistics<VEC> of(st, SPAN, gate);
            float mean[VEC], product[VEC];
            load(mean, means + gate * 2 * SPAN);
            load(product, means + (gate * 2 + 1) * SPAN);
#pragma unroll
            for (int i = 0; i < VEC; i++) {
                scale[gate][i] = of.scale[i];
                shift[gate][i] = of.scale[i] * (mean[i] + product[i] * of.shift[i]);
                slant[gate][i] = of.scale[i] * of.scale[i] * product[i];
            }
        }
    }

    /* gains: the unit's, as scale_gains made them. to: where its raw is, from this lane's
     * columns on. */
    __device__ void finish(const view<T> &v, const finished_unit<T, VEC> &in, const float *gains,
                           uint32_t to) const {
        const float4 gain4 = *(const float4 *)gains;
        const float gain[GATES] = {gain4.x, gain4.y, gain4.z, gain4.w};
#pragma unroll
        for (int gate = 0; gate < GATES; gate++) {
            const float of = gain[gate] * (1 / slope<T>(gate));
            float draw[VEC];
#pragma unroll
            for (int i = 0; i < VEC; i++) {
                draw[i] = of * in.dpre[gate].value(i) * scale[gate][i] -
                          (slant[gate][i] * in.raw[gate].value(i) + shift[gate][i]);
            }
            if (has_gate(v, gate)) store(v.raw + (to + (gate - v.first) * v.gate_rows), draw);
        }
    }
};

/* Layer norm's gradient at raw for one span, once its sums are known:
 *
 *   scale (gain dpre - mean - value product) = scale gain dpre - (slant raw + shift)
 *
 * Before it waits for the sums, a warp fetches AHEAD units: the first rounds, which shared memory
 * does not keep, if AHEAD has room for them, and the last ones. It also fetches the first unit of
 * the loop. The loop fetches each unit before it stores the previous one, since a load after that
 * store would wait for it. */
template <int AHEAD, typename T, int VEC>
static __device__ __forceinline__ void finish_gradient(const view<T> &v,
                                                       const backward_arrays<T, VEC> &a, int span) {
    const int FIRST = AHEAD > EARLY_ROUNDS ? EARLY_ROUNDS : 0;
    const int column = threadIdx.x % 32 * VEC, n = span * 32 * VEC + column;
    const bool enough = a.rounds >= AHEAD;
    const int last = a.rounds - 1 - (enough ? AHEAD - FIRST : 0), end = enough ? FIRST : 0;
    finished_unit<T, VEC> ahead[AHEAD > 0 ? AHEAD : 1], next;
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        if (!enough) break;
        ahead[i].fetch(v, a, span, i < FIRST ? i : a.rounds - 1 - (i - FIRST));
    }
    if (last >= end) next.fetch(v, a, span, last);
    a.hold_means(v, span);
    __syncthreads();
    const finish_factors<T, VEC> factors(a.statistics_of(span) + column, a.means + column);
    __syncthreads(); /* what these came from may be overwritten */
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        const int round = i < FIRST ? i : a.rounds - 1 - (i - FIRST), unit = a.unit(round);
        if (!enough) break;
        factors.finish(v, ahead[i], a.gains + (unit - a.first) * K, unit_row(v, unit) + n);
    }
#pragma unroll 2
    for (int round = last; round >= end; round--) {
        const int unit = a.unit(round);
        const finished_unit<T, VEC> in = next;
        if (round > end) next.fetch(v, a, span, round - 1);
        factors.finish(v, in, a.gains + (unit - a.first) * K, unit_row(v, unit) + n);
    }
}

/* A warp's state: the inputs of its next unit, and sums over the span's units so far. */
template <typename T, int VEC> struct backward_state {
    backward_inputs<T, VEC> in;
    float part[K][VEC];
    uint32_t bytes, bytes_after; /* of the lane's columns in this span, and in the next */

    __device__ void start_part() {
#pragma unroll
        for (int i = 0; i < K * VEC; i++) part[i / VEC][i % VEC] = 0;
    }

    /* Moves on to the bytes of the next span, once all rounds of this one have begun. */
    __device__ void turn_bytes(const view<T> &v, int span) {
        const int after = (span + 2) * 32 * VEC;
        bytes = bytes_after;
        if (after < v.columns) {
            bytes_after = load_bytes<VEC>(v.bytes + after + threadIdx.x % 32 * VEC);
        }
    }
};

/* Adds dpre of a quad's units, the last of which is that of `round`, to the table's sums. */
template <int VEC>
static __device__ __forceinline__ void
add_quad(const view<bf16> &v, const backward_arrays<bf16, VEC> &a, int span, int round) {
    const int first = round - round % QUAD, lane = threadIdx.x % 32;
    const int rows_of = min(first + lane % 8 / 2, round), sums_of = min(first + lane % 4, round);
    float *to = v.table_sums + (size_t)a.unit(sums_of) / PAIR * VOCABULARY * PAIR_VALUES +
                a.unit(sums_of) % PAIR * GATES;
    add_by_byte(a.text[span % HELD_SPANS], a.staged(v, rows_of), round - first + 1, to);
}

/* Computes the gradients at norm's results in the rounds from `from` to `to` of a span. After the
 * span's last round the next span's first unit is being fetched. */
template <bool NORM, bool TABLE, typename T, int VEC>
static __device__ __forceinline__ void
gates_gradient(const view<T> &v, const backward_arrays<T, VEC> &a, backward_state<T, VEC> &s,
               int span, int from, int to) {
    const int SPAN = 32 * VEC, lane = threadIdx.x % 32, n = span * SPAN + lane * VEC;
    const uint32_t dpre_gate = a.dpre_gate(v);
#pragma unroll 1
    for (int round = from; round < to; round++) {
        const int unit = a.unit(round), place = a.place(round);
        const bool done = round + 1 == a.rounds, more = !done || n + SPAN < v.columns;
        const int after = done ? a.leader : a.unit(round + 1), n_after = done ? n + SPAN : n;
        const bool kept = NORM && (unsigned)place < (unsigned)v.kept;
        const float *gains = a.gains + (unit - a.first) * K;
        gate_values<VEC> q;
        float z[GATES][VEC], d[GATES][VEC], dc[VEC], unit_sums[K];
        if (kept) {
#pragma unroll
            for (int gate = 0; gate < GATES; gate++) {
                store_shared(a.kept[place].raw[gate] + lane * VEC, s.in.gates.raw[gate]);
            }
        }
        q.take_raw(s.in.gates);
        if (more) s.in.gates.fetch_raw(v, after, n_after);
        preactivate(v, a.statistics_of(span) + lane * VEC, gains, s.in.gates, unit, n, q, z);
        if (more) s.in.gates.fetch_entries(v, after, done ? s.bytes_after : s.bytes);
        squash<T>(z, v.first > 0, q);
        differentiate(v, s.in, q, d, dc);
        if (more) {
            s.in.fetch_state(v, after, n_after);
            s.in.fetch_dx(v, after, n_after);
        }
        float *dc_at = v.dc + (state_row(v, unit) + n);
        v.lasting ? store_lasting(dc_at, dc) : store(dc_at, dc);
        T *dpre = a.dpre_row(v, unit, span), *staged = a.staged(v, round);
#pragma unroll
        for (int gate = 0; gate < GATES; gate++) {
            packet<T, VEC> rounded;
            pack(rounded, d[gate]);
            if (kept || TABLE) {
                store_shared(staged + dpre_place<T, VEC>(round, gate), rounded);
            }
            if (!kept && has_gate(v, gate)) {
                store_packet(dpre + (gate - v.first) * dpre_gate, rounded);
            }
#pragma unroll
            for (int i = 0; i < VEC; i++) {
                const float value = q.value[gate][i], weighted = gains[gate] * d[gate][i];
                float *of = unit_sums + gate * 2; /* assigned first, which saves an addition */
                of[0] = i > 0 ? of[0] + d[gate][i] : d[gate][i];
                of[1] = i > 0 ? of[1] + d[gate][i] * value : d[gate][i] * value;
                s.part[gate * 2][i] += weighted;
                s.part[gate * 2 + 1][i] += weighted * value;
            }
        }
        warp_sums(unit_sums);
        if (lane % (32 / K) == 0) a.units[(unit - a.first) * K + lane / (32 / K)] += unit_sums[0];
        if constexpr (TABLE) {
            if (round % QUAD == QUAD - 1 || done) {
                __syncwarp();
                add_quad(v, a, span, round);
            }
        }
    }
}

/* NORM: with layer norm. TABLE: the input table's gradient is summed here. */
template <typename T, int VEC, bool NORM, bool TABLE>
static __global__ void __launch_bounds__(BACKWARD_THREADS, 1)
    gates_backward(const __grid_constant__ view<T> v) {
    const int SPAN = 32 * VEC, column = threadIdx.x % 32 * VEC, spans = v.columns / SPAN;
    extern __shared__ __align__(16) float shared[];
    const backward_arrays<T, VEC> a(v, shared);
    const int early = NORM ? min(EARLY_ROUNDS, a.rounds) : 0;
    backward_state<T, VEC> s;
    fetch_gains(v, a.first, a.last - a.first, a.gains);
    a.fetch_statistics(v, 0);
    for (int i = threadIdx.x; i < v.units * K; i += BACKWARD_THREADS) a.units[i] = 0;
    s.bytes_after = load_bytes<VEC>(v.bytes + column);
    s.turn_bytes(v, -1);
    if (a.rounds > 0) {
        s.in.gates.fetch_raw(v, a.leader, column);
        s.in.gates.fetch_entries(v, a.leader, s.bytes);
        s.in.fetch_state(v, a.leader, column);
    }
    scale_gains<T>(a.last - a.first, a.gains);
    __syncthreads();
    wait_for_earlier();
    let_next_start();
    s.in.dx = packet<T, VEC>();
    if (a.rounds > 0) s.in.fetch_dx(v, a.leader, column);
    s.start_part();
    /* Each span takes two phases: the rest of its rounds, then the first rounds of the next
     * span. */
#pragma unroll 1
    for (int phase = 0; phase < 2 * spans - 1; phase++) {
        const int span = phase / 2, ahead = phase % 2, begun = phase > 0 ? early : 0;
        if (!ahead && span + 1 < spans) a.fetch_statistics(v, span + 1);
        gates_gradient<NORM, TABLE>(v, a, s, span + ahead, ahead ? 0 : begun,
                                    ahead ? early : a.rounds);
        if (!ahead) {
            copy_wait<0>();
            s.turn_bytes(v, span);
            if (NORM) {
                add_features(v, a, span, s.part);
                s.start_part();
                if (TABLE) __syncthreads(); /* features are staged dpre from here on */
                a.store_dpre(v, span);
            } else {
                __syncthreads();
            }
        } else if (NORM) {
            finish_gradient<0>(v, a, span);
        }
    }
    add_units(v, a.first, a.last - a.first, a.units);
    if (NORM) finish_gradient<sizeof(T) == 2 ? 5 : 0>(v, a, spans - 1); /* registers are free */
}

/* ------------------------------------------------------------------------------------ launch */

/* One thread block on each multiprocessor, as they wait for each other. */
template <typename T, int VEC, bool NORM, bool TABLE>
static void launch_backward(backend *be, view<T> v, bool early) {
    typedef backward_arrays<T, VEC> arrays;
    cuda_backend *cuda = cuda_of(be);
    size_t rest = arrays::bytes(v), round = BACKWARD_WARPS * sizeof(kept_unit<T, VEC>);
    if (NORM && rest < cuda->shared_limit) {
        int rounds = (v.units + arrays::STEP - 1) / arrays::STEP * PAIR;
        v.kept = min((int)((cuda->shared_limit - rest) / round), max(rounds - EARLY_ROUNDS, 0));
    }
    v.stuck = cuda_stuck_word(be, "gates_backward");
    v.lasting = (size_t)v.width * v.columns * sizeof *v.dc <= cuda->l2_bytes / LASTING_SHARE;
    cuda_launch_together(be, "gates_backward", !v.start && early,
                         gates_backward<T, VEC, NORM, TABLE>, (v.width + v.units - 1) / v.units,
                         BACKWARD_THREADS, arrays::bytes(v), v);
}

template <typename T, int VEC>
static void launch_spans(backend *be, const cell *c, int t, view<T> v, bool early) {
    if (v.table_sums) {
        if (v.start) cuda_start_table_sums(be, c, 32 * VEC);
        v.texts = (const column_text<32 * VEC> *)c->workspace + t * v.columns / (32 * VEC);
        const bool TABLE = sizeof(T) == 2; /* fp32's tables are not summed */
        v.layer_norm ? launch_backward<T, VEC, true, TABLE>(be, v, early)
                     : launch_backward<T, VEC, false, TABLE>(be, v, early);
    } else {
        v.layer_norm ? launch_backward<T, VEC, true, false>(be, v, early)
                     : launch_backward<T, VEC, false, false>(be, v, early);
    }
}

/* Spans have 128 columns where shared memory has room for the sums of a thread block's units, else
 * 64. */
template <typename T> static void run_backward(backend *be, const cell *c, int t, bool early) {
    const cuda_backend *cuda = cuda_of(be);
    const int most = min(cuda->processors, (int)COUNTED_PARTS);
    view<T> v = view_step<T>(be, c, c->stages - 1, t);
    v.units = ((v.width + most - 1) / most + PAIR - 1) / PAIR * PAIR;
    if (v.columns % 128 == 0 && backward_arrays<T, 4>::bytes(v) <= cuda->shared_limit) {
        launch_spans<T, 4>(be, c, t, v, early);
    } else {
        launch_spans<T, 2>(be, c, t, v, early);
    }
}

/* The last step follows the kernel that computed the gradient at h, so it does not start early. */
void gates_backward_run(backend *be, const cell *c, int t, bool early) {
    DISPATCH(be, run_backward, be, c, t, early);
}

void cuda_gates_backward(backend *be, const cell *c, int t) {
    stage_zero_sums(be, c, c->stages - 1, t, true);
    gates_backward_run(be, c, t, false);
}
