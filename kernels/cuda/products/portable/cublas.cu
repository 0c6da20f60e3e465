/* Products with a dense W, through cuBLAS. Its matrices are column-major, so what we call Y
 * [rows][columns] = W X it sees as Y' = X' W'. Floor: 2 rows inputs columns operations. */
#include "products/kernels.h"

static cudaDataType operand_type(const backend *be) {
    return be->precision == BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

static void fprop(backend *be, const layout *l, const product_call *c) {
    const float one = 1, zero = 0;
    int rows = (int)layout_rows(l), depth = l->in_block, stride = c->columns * l->in_stride;
    cudaDataType from = operand_type(be), to = c->type == REAL ? CUDA_R_32F : from;
    cublasStatus_t status = cublasGemmStridedBatchedEx(
        cuda_of(be)->blas, CUBLAS_OP_N, CUBLAS_OP_N, c->columns, rows, depth, &one, c->right, from,
        stride, (long long)layout_inputs(l) * c->columns, c->left, from, depth, 0, &zero, c->out,
        to, c->columns, (long long)rows * c->columns, c->steps, CUBLAS_COMPUTE_32F,
        CUBLAS_GEMM_DEFAULT);
    cuda_blas_ok(be, status, "dense fprop");
}

static void dgrad(backend *be, const layout *l, const product_call *c) {
    const float one = 1, zero = 0;
    int depth = (int)layout_rows(l), rows = l->in_block, stride = c->columns * l->in_stride;
    size_t inputs = layout_inputs(l) * (size_t)c->columns;
    cudaDataType from = operand_type(be), to = c->type == REAL ? CUDA_R_32F : from;
    if (l->in_stride > 1) {
        be->memory->zero(be, c->out,
                         inputs * c->steps * (c->type == REAL ? be->real_size : be->operand_size));
    }
    cublasStatus_t status = cublasGemmStridedBatchedEx(
        cuda_of(be)->blas, CUBLAS_OP_N, CUBLAS_OP_T, c->columns, rows, depth, &one, c->right, from,
        c->columns, (long long)depth * c->columns, c->left, from, rows, 0, &zero, c->out, to,
        stride, (long long)inputs, c->steps, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
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

static void wgrad(backend *be, const layout *l, const product_call *c) {
    const float one = 1, zero = 0;
    int rows = (int)layout_rows(l), width = l->in_block, depth = c->steps * c->columns;
    char *second = (char *)c->workspace + (size_t)rows * depth * be->operand_size;
    const void *dy = pack_steps(be, c->left, c->steps, rows, 1, c->columns, c->workspace);
    const void *x = pack_steps(be, c->right, c->steps, width, l->in_stride, c->columns, second);
    cudaDataType from = operand_type(be);
    cublasStatus_t status = cublasGemmEx(
        cuda_of(be)->blas, CUBLAS_OP_T, CUBLAS_OP_N, width, rows, depth, &one, x, from, depth, dy,
        from, depth, &zero, c->out, CUDA_R_32F, width, CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT);
    cuda_blas_ok(be, status, "dense wgrad");
}

void cublas_run(backend *be, const device_layout *device, const void *, const product_call *c) {
    if (c->op == FPROP) fprop(be, &device->host, c);
    if (c->op == DGRAD) dgrad(be, &device->host, c);
    if (c->op == WGRAD) wgrad(be, &device->host, c);
}
