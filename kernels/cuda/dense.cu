/* Products with a dense W, through cuBLAS. Its matrices are column-major, so what we call
 * Y [rows][columns] = W X it sees as Y' = X' W'. Floor: 2 rows inputs columns operations. */
#include "cuda.h"

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
 * all steps. */
template <typename T>
static __global__ void pack(const T *x, int steps, int rows, int stride, int columns, T *packed) {
    size_t row = blockIdx.x, t = blockIdx.y;
    const T *from = x + (t * rows + row) * stride * columns;
    T *to = packed + (row * steps + t) * columns;
    for (int n = threadIdx.x; n < columns; n += blockDim.x) to[n] = from[n];
}

template <typename T>
static const void *pack_steps(backend *be, const void *x, int steps, int rows, int stride,
                              int columns, void *packed) {
    if (steps == 1 && stride == 1) return x;
    int threads = columns < 256 ? columns : 256;
    pack<T><<<dim3(rows, steps), threads, 0, cuda_of(be)->stream>>>((const T *)x, steps, rows,
                                                                    stride, columns, (T *)packed);
    cuda_launched(be, "pack");
    return packed;
}

size_t cuda_wgrad_workspace(backend *be, const layout *l, int steps, int columns) {
    if (!layout_is_dense(l)) return 0;
    return be->operand_size * (layout_rows(l) + (size_t)l->in_block) * (size_t)steps *
           (size_t)columns;
}

void dense_wgrad(backend *be, const layout *l, const void *dy, const void *x, int steps,
                 int columns, void *dw, void *workspace) {
    const float one = 1, zero = 0;
    int rows = (int)layout_rows(l), width = l->in_block, depth = steps * columns;
    char *second = (char *)workspace + (size_t)rows * depth * be->operand_size;
    dy = DISPATCH(be, pack_steps, be, dy, steps, rows, 1, columns, workspace);
    x = DISPATCH(be, pack_steps, be, x, steps, width, l->in_stride, columns, second);
    cudaDataType from = operand_type(be);
    cublasStatus_t status = cublasGemmEx(cuda_of(be)->blas, CUBLAS_OP_T, CUBLAS_OP_N, width, rows,
                                         depth, &one, x, from, depth, dy, from, depth, &zero, dw,
                                         CUDA_R_32F, width, compute_type(be), CUBLAS_GEMM_DEFAULT);
    cuda_blas_ok(be, status, "dense wgrad");
}
