#include "probe/cholesky.h"

#include <math.h>

/* to -= factor from */
static void subtract(double *to, const double *from, double factor, size_t count) {
    for (size_t c = 0; c < count; c++) to[c] -= factor * from[c];
}

static void divide(double *row, double by, size_t count) {
    for (size_t c = 0; c < count; c++) row[c] /= by;
}

bool cholesky_factor(double *a, size_t n) {
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j <= i; j++) {
            double sum = a[i * n + j];
            for (size_t k = 0; k < j; k++) sum -= a[i * n + k] * a[j * n + k];
            if (i == j && !(sum > 0)) return false;
            a[i * n + j] = i == j ? sqrt(sum) : sum / a[j * n + j];
        }
    }
    return true;
}

void cholesky_forward(const double *r, size_t n, double *x, size_t columns) {
    for (size_t i = 0; i < n; i++) {
        double *row = x + i * columns;
        for (size_t k = 0; k < i; k++) subtract(row, x + k * columns, r[i * n + k], columns);
        divide(row, r[i * n + i], columns);
    }
}

void cholesky_backward(const double *r, size_t n, double *x, size_t columns) {
    for (size_t i = n; i-- > 0;) {
        double *row = x + i * columns;
        for (size_t k = i + 1; k < n; k++) subtract(row, x + k * columns, r[k * n + i], columns);
        divide(row, r[i * n + i], columns);
    }
}
