/* Products with a dense W, through cuBLAS; but for wgrad in bf16 on Hopper, see products/hopper/wgrad_dense.cu. Its
 * matrices are column-major, so what we call Y [rows][columns] = W X it sees as Y' = X' W'. Floor: 2
 * rows inputs columns operations. */
#include "backend.h"

static cudaDataType operand_type(const backend *be) {
    return be->precision == BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

static cublasComputeType_t compute_type(const backend *be) {
    return be->precision == TF32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

void dense_fprop(backend *be, const layout *l, const void *w, const void *x, int steps, int columns,
                 void *y, element type, void *sums) {
    const float one = 1, zero = 0;
    int rows = (int)layout_rows(l), depth = l->in_block, stride = columns * l->in_stride;
    cudaDataType from = operand_type(be), to = type == REAL ? CUDA_R_32F : from;
    cublasStatus_t status = cublasGemmStridedBatchedEx(
        cuda_of(be)->blas, CUBLAS_OP_N, CUBLAS_OP_N, columns, rows, depth, &one, x, from, stride,
        (long long)layout_inputs(l) * columns, w, from, depth, 0, &zero, y, to, columns,
        (long long)rows * columns, steps, compute_type(be), CUBLAS_GEMM_DEFAULT);
    cuda_blas_ok(be, status, "dense fprop");
    if (!sums) return;
    cuda_zero_sums(be, sums, l->gates * steps, columns);
    cuda_column_sums(be, l, y, steps, columns, sums);
}

void dense_dgrad(backend *be, const layout *l, const void *w, const void *dy, int steps,
                 int columns, void *dx, element type) {
    const float one = 1, zero = 0;
    int depth = (int)layout_rows(l), rows = l->in_block, stride = columns * l->in_stride;
    size_t inputs = layout_inputs(l) * (size_t)columns;
    cudaDataType from = operand_type(be), to = type == REAL ? CUDA_R_32F : from;
    if (l->in_stride > 1) {
        be->zero(be, dx, inputs * steps * (type == REAL ? be->real_size : be->operand_size));
    }
    cublasStatus_t status = cublasGemmStridedBatchedEx(
        cuda_of(be)->blas, CUBLAS_OP_N, CUBLAS_OP_T, columns, rows, depth, &one, dy, from, columns,
        (long long)depth * columns, w, from, rows, 0, &zero, dx, to, stride, (long long)inputs,
        steps, compute_type(be), CUBLAS_GEMM_DEFAULT);
    cuda_blas_ok(be, status, "dense dgrad");
}

/* [steps][rows with a stride][columns] -> [rows][steps * columns], so that one product sums over
 * all steps. A row is `pieces` of 16 bytes; a thread copies one of them at STEPS_AT_ONCE steps, so
 * that as many loads are under way. */
enum { PACK_THREADS = 256, STEPS_AT_ONCE = 4 };

static __global__ void __launch_bounds__(PACK_THREADS)
    pack_kernel(const uint4 *x, int steps, int rows, int stride, int pieces, uint4 *packed) {
    size_t i = (size_t)blockIdx.x * PACK_THREADS + threadIdx.x, row = i / pieces,
           piece = i % pieces;
    int t0 = blockIdx.y * STEPS_AT_ONCE, count = min(steps - t0, (int)STEPS_AT_ONCE);
    if (row >= rows) return;
    uint4 value[STEPS_AT_ONCE];
#pragma unroll
    for (int k = 0; k < STEPS_AT_ONCE; k++) {
        if (k < count)
            value[k] = __ldcs(x + ((t0 + k) * (size_t)rows + row) * stride * pieces + piece);
    }
#pragma unroll
    for (int k = 0; k < STEPS_AT_ONCE; k++) {
        if (k < count) packed[(row * steps + t0 + k) * pieces + piece] = value[k];
    }
}

static const void *pack_steps(backend *be, const void *x, int steps, int rows, int stride,
                              int columns, void *packed) {
    if (steps == 1 && stride == 1) return x;
    int pieces = (int)(columns * be->operand_size / sizeof(uint4));
    dim3 grid((unsigned)(((size_t)rows * pieces + PACK_THREADS - 1) / PACK_THREADS),
              (steps + STEPS_AT_ONCE - 1) / STEPS_AT_ONCE);
    pack_kernel<<<grid, PACK_THREADS, 0, cuda_of(be)->stream>>>((const uint4 *)x, steps, rows,
                                                                stride, pieces, (uint4 *)packed);
    cuda_launched(be, "pack");
    return packed;
}

size_t cuda_wgrad_workspace(backend *be, const layout *l, int steps, int columns) {
    if (!layout_is_dense(l) || wgrad_dense_takes(be, l, steps)) return 0;
    return be->operand_size * (layout_rows(l) + (size_t)l->in_block) * (size_t)steps *
           (size_t)columns;
}

void dense_wgrad(backend *be, const layout *l, const void *dy, const void *x, int steps,
                 int columns, void *dw, void *workspace) {
    const float one = 1, zero = 0;
    int rows = (int)layout_rows(l), width = l->in_block, depth = steps * columns;
    if (wgrad_dense_takes(be, l, steps)) {
        wgrad_dense_run(be, l, dy, x, steps, columns, dw);
        return;
    }
    char *second = (char *)workspace + (size_t)rows * depth * be->operand_size;
    dy = pack_steps(be, dy, steps, rows, 1, columns, workspace);
    x = pack_steps(be, x, steps, width, l->in_stride, columns, second);
    cudaDataType from = operand_type(be);
    cublasStatus_t status = cublasGemmEx(cuda_of(be)->blas, CUBLAS_OP_T, CUBLAS_OP_N, width, rows,
                                         depth, &one, x, from, depth, dy, from, depth, &zero, dw,
                                         CUDA_R_32F, width, compute_type(be), CUBLAS_GEMM_DEFAULT);
    cuda_blas_ok(be, status, "dense wgrad");
}
