/* The loss, reductions, pooling and the update, see ops.h. */
#ifndef SMALLWORLD_KERNELS_CUDA_TRAINING_TRAINING_H
#define SMALLWORLD_KERNELS_CUDA_TRAINING_TRAINING_H

#include "device/device.h"

/* What Adam needs, made once an update by one thread. */
typedef struct adam_factors {
    float scale, step, head_step, correction, beta1, beta2, epsilon, average;
    float kept, input_kept; /* of weights that decay */
    int apply;
} adam_factors;

extern const update_operations cuda_update; /* see adam.cu */

void cuda_softmax_cross_entropy(backend *be, const softmax_loss *s);
void cuda_sample(backend *be, const void *logits, const void *bias, int streams, int columns,
                 sampling *state, uint8_t *text, uint8_t *bytes);
void cuda_norm_rows(backend *be, const normed_rows *w, void *const operand[2]);
void cuda_norm_rows_backward(backend *be, const normed_rows *w, void *const gradient[2],
                             void *dgain);
void cuda_row_sums(backend *be, const void *x, int steps, int rows, int columns, void *out);
void cuda_add(backend *be, size_t count, void *total, const void *x);
void cuda_sum(backend *be, const void *x, size_t count, double *out);

/* Leaves partial sums of x, or of its square, in cuda_backend.partial; returns their number. */
int cuda_partials(backend *be, const void *x, size_t count, bool square);

void cuda_pool(backend *be, const void *x, element type, int steps, int rows, int columns,
               const int32_t *first, const int32_t *last, pooling how, void *out);
void cuda_adam(backend *be, size_t count, void *weights, const void *gradient, void *moment1,
               void *moment2, void *average, void *operands, const uint8_t *groups,
               const update_arguments *arguments, update_report *report);
void cuda_muon_direction(backend *be, const muon_matrix *w, const update_arguments *arguments,
                         const update_report *report, void *direction);
void cuda_muon_polynomial(backend *be, int side, const void *a, const void *a_squared, void *p);
void cuda_muon_apply(backend *be, const muon_matrix *w, const void *direction,
                     const update_arguments *arguments, const update_report *report);
void cuda_adapt(backend *be, size_t count, void *weights, const void *gradient, const void *trained,
                void *squares, void *operands, const update_arguments *arguments);
void cuda_round(backend *be, size_t count, const void *weights, void *operands);

/* Sums over ranks by NCCL; cuda_leave ends its part, if it was joined. */
bool cuda_join(backend *be, ranks *ranks, error *err);
void cuda_sum_ranks(backend *be, size_t count, void *values);
void cuda_leave(backend *be);

#endif
