/* Sums over ranks, part by part through what the ranks exchange: added up by every rank, in the
 * ranks' order. */
#include "cpu.h"

void CPU(sum_ranks)(backend *be, size_t count, void *values) {
    enum { PART = RANKS_EXCHANGE / sizeof(real) };
    FLUSH_DENORMALS(be);
    real *x = values;
    for (size_t done = 0; done < count; done += PART) {
        const size_t part = count - done < PART ? count - done : PART;
        ranks_exchange(be->ranks, x + done, part * sizeof *x);
        memcpy(x + done, ranks_part(be->ranks, 0), part * sizeof *x);
        for (int k = 1; k < be->ranks->count; k++) {
            const real *theirs = ranks_part(be->ranks, k);
            for (size_t i = 0; i < part; i++) x[done + i] += theirs[i];
        }
    }
}
