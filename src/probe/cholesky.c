#include "probe/cholesky.h"

#include <math.h>

bool cholesky(double *a, int n) {
    for (int i = 0; i < n; i++) {
        for (int j = 0; j <= i; j++) {
            double sum = a[i * n + j];
            for (int k = 0; k < j; k++) sum -= a[i * n + k] * a[j * n + k];
            if (i != j) {
                a[i * n + j] = sum / a[j * n + j];
            } else if (sum > 0) {
                a[i * n + i] = sqrt(sum);
            } else {
                return false;
            }
        }
    }
    return true;
}

void cholesky_forward(const double *r, int n, double *x, size_t columns) {
    for (int i = 0; i < n; i++) {
        double *to = x + (size_t)i * columns;
        for (int k = 0; k < i; k++) {
            const double *from = x + (size_t)k * columns, factor = r[i * n + k];
            for (size_t c = 0; c < columns; c++) to[c] -= factor * from[c];
        }
        for (size_t c = 0; c < columns; c++) to[c] /= r[i * n + i];
    }
}

void cholesky_backward(const double *r, int n, double *x, size_t columns) {
    for (int i = n - 1; i >= 0; i--) {
        double *to = x + (size_t)i * columns;
        for (int k = i + 1; k < n; k++) {
            const double *from = x + (size_t)k * columns, factor = r[k * n + i];
            for (size_t c = 0; c < columns; c++) to[c] -= factor * from[c];
        }
        for (size_t c = 0; c < columns; c++) to[c] /= r[i * n + i];
    }
}
