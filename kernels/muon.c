/* Muon (Jordan 2024): the momentum of a matrix, made orthogonal by five Newton-Schulz iterations
 *
 *     X <- P X,   P = a I + b A + c A^2,   A = X X'      (a, b, c) = (3.4445, -4.7750, 2.0315)
 *
 * which bring its singular values, at most 1 at first, to between 0.7 and 1.2. The step has the
 * scale of Moonlight (arXiv 2502.16982): a root mean square of 0.2, as Adam's is about.
 *
 * X has the shorter side as its rows. All A and P are polynomials of the first A, so they commute,
 * and the iterations run on squares alone:
 *
 *     Q <- P Q,   A <- P A P
 *
 * X is read only for the first A and for the last Q X. In bf16 what A loses of small singular
 * values grows by a^2 with each iteration, so after two of them X is made, and A anew. Operations:
 * 8 S^2 L + 28 S^3 for sides S <= L, where iterations on X take 20 S^2 L + 10 S^3. */
#include "ops.h"

enum { FIRST_LEG = 2, SECOND_LEG = 3 };

static int padded(const backend *be, int side) {
    return (side + be->column_multiple - 1) / be->column_multiple * be->column_multiple;
}

int muon_side(const backend *be, int rows, int columns) {
    return padded(be, rows < columns ? rows : columns);
}

static int long_side(const backend *be, int rows, int columns) {
    return padded(be, rows < columns ? columns : rows);
}

/* The parts of the workspace; those of squares have `side` each way. */
typedef struct buffers {
    char *x, *y;          /* operand [side][length] */
    char *a, *p, *q, *pq; /* operand, squares */
    char *sums;           /* real, a square */
    char *wgrad;          /* its workspace */
    size_t bytes;
} buffers;

static char *take(buffers *b, char *base, size_t bytes) {
    char *at = base + b->bytes;
    b->bytes += (bytes + 255) / 256 * 256;
    return at;
}

static buffers divide(backend *be, int rows, int columns, char *base) {
    const int side = muon_side(be, rows, columns), length = long_side(be, rows, columns);
    const size_t square = (size_t)side * (size_t)side, all = (size_t)side * (size_t)length;
    layout *l = layout_dense(side, side, 1, 1);
    buffers b = {0};
    b.x = take(&b, base, all * be->operand_size);
    b.y = take(&b, base, all * be->operand_size);
    b.a = take(&b, base, square * be->operand_size);
    b.p = take(&b, base, square * be->operand_size);
    b.q = take(&b, base, square * be->operand_size);
    b.pq = take(&b, base, square * be->operand_size);
    b.sums = take(&b, base, square * be->real_size);
    b.wgrad = take(&b, base, be->products->wgrad_workspace(be, l, 1, length));
    layout_free(l);
    return b;
}

size_t muon_workspace(backend *be, int rows, int columns) {
    return divide(be, rows, columns, NULL).bytes;
}

/* y <- x after some iterations. */
static void iterate(backend *be, const muon_matrix *w, buffers b, int iterations, const char *x,
                    char *y) {
    const int side = muon_side(be, w->rows, w->columns);
    const int length = long_side(be, w->rows, w->columns);
    be->products->wgrad(be, w->square, x, x, 1, length, b.sums, b.wgrad);
    be->update->round(be, (size_t)side * (size_t)side, b.sums, b.a);
    for (int i = 0; i < iterations; i++) {
        char *p = i == 0 ? b.q : b.p; /* the first Q is P */
        be->products->fprop(be, w->square, b.a, b.a, 1, side, b.pq, OPERAND);
        be->update->muon_polynomial(be, side, b.a, b.pq, p);
        if (i > 0) {
            be->products->fprop(be, w->square, b.p, b.q, 1, side, b.pq, OPERAND);
            char *next = b.pq;
            b.pq = b.q;
            b.q = next;
        }
        if (i == iterations - 1) break;
        be->products->fprop(be, w->square, b.a, p, 1, side, b.pq, OPERAND);
        be->products->fprop(be, w->square, p, b.pq, 1, side, b.a, OPERAND);
    }
    be->products->fprop(be, w->square, b.q, x, 1, length, y, OPERAND);
}

void muon_step(backend *be, const muon_matrix *w, const update_arguments *arguments,
               const update_report *report) {
    const buffers b = divide(be, w->rows, w->columns, w->workspace);
    be->update->muon_direction(be, w, arguments, report, b.x);
    iterate(be, w, b, FIRST_LEG, b.x, b.y);
    iterate(be, w, b, SECOND_LEG, b.y, b.x);
    be->update->muon_apply(be, w, b.x, arguments, report);
}
