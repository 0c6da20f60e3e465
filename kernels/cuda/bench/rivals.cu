/* What our products are held against: cuBLAS with a dense W, and cuSPARSE with W in its blocked-ELL
 * format. Each runs as a user would call it, with a workspace set aside before.
 *
 * cuSPARSE's blocked-ELL product of fp32 is off by 2.6e-4, as operands rounded to tf32 make it, so
 * it is left out there. Its BSR product took 3 to 20 times as long as blocked-ELL (bf16, blocks of
 * 32, 32 to 512 columns, at 1ae7565), and is left out everywhere.
 *
 * cuSPARSE is loaded at run time, so that the program neither needs it nor pays for it at start. */
#include "bench/rivals.h"
#include "device/device.h"
#include "device/layout.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined __has_include
#if __has_include(<cusparse.h>)
#include <cusparse.h>
#define HAS_CUSPARSE 1
#endif
#endif

struct rival {
    backend *be;
    bench_library library;
    bench_product product;
    bench_math math;
    bool by_column;
    int rows, inputs, columns; /* of W, and of the activations */

    /* cuSPARSE's matrix, for dgrad already transposed. blocked-ELL pads every row to `longest`. */
    int block, block_rows, block_columns, blocks, longest;
    int *index; /* on the device, [block_rows][longest], -1: no block */
    void *buffer;
};

static cudaDataType operand_type(const rival *r) {
    return r->math == MATH_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

/* ------------------------------------------------------------------------------------- cuBLAS
 *
 * Row-major matrices are cuBLAS's, transposed. Either order of the activations is offered, since
 * which one is faster depends on the shape. */

static bool run_cublas(const rival *r, const void *left, const void *right, void *out, error *err) {
    const float one = 1, zero = 0;
    const cublasOperation_t plain = CUBLAS_OP_N, turned = CUBLAS_OP_T;
    const cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
    cudaDataType from = operand_type(r), to = r->product == PRODUCT_WGRAD ? CUDA_R_32F : from;
    int rows = r->rows, inputs = r->inputs, n = r->columns;
    /* out' [m x k] = a [m x depth] b [depth x k], as cuBLAS sees them */
    const void *a = left, *b = right;
    cublasOperation_t turn_a = plain, turn_b = plain;
    int m = 0, k = 0, depth = 0, lead_a = 0, lead_b = 0;
    if (r->product == PRODUCT_WGRAD) { /* dW' [inputs x rows] = x dy' */
        a = right, b = left;
        m = inputs, k = rows, depth = n;
        turn_a = r->by_column ? plain : turned;
        turn_b = r->by_column ? turned : plain;
        lead_a = r->by_column ? inputs : n;
        lead_b = r->by_column ? rows : n;
    } else {
        bool forward = r->product == PRODUCT_FPROP;
        int from_rows = forward ? inputs : rows, to_rows = forward ? rows : inputs;
        depth = from_rows;
        if (r->by_column) { /* y' [to x n] = W x' */
            m = to_rows, k = n;
            turn_a = forward ? turned : plain;
            lead_a = inputs, lead_b = from_rows;
        } else { /* y' [n x to] = x' W' */
            a = right, b = left;
            m = n, k = to_rows;
            turn_b = forward ? plain : turned;
            lead_a = n, lead_b = inputs;
        }
    }
    cublasStatus_t status =
        cublasGemmEx(cuda_of(r->be)->blas, turn_a, turn_b, m, k, depth, &one, a, from, lead_a, b,
                     from, lead_b, &zero, out, to, m, compute, CUBLAS_GEMM_DEFAULT);
    if (status == CUBLAS_STATUS_SUCCESS) return true;
    return error_set(err, "cuBLAS: %s", cublasGetStatusString(status));
}

/* ----------------------------------------------------------------------------------- cuSPARSE */

#ifdef HAS_CUSPARSE

/* The functions used, by name. */
#define FUNCTIONS(F)                                                                               \
    F(cusparseCreate)                                                                              \
    F(cusparseSetStream)                                                                           \
    F(cusparseGetErrorString)                                                                      \
    F(cusparseCreateBlockedEll)                                                                    \
    F(cusparseCreateDnMat)                                                                         \
    F(cusparseDestroySpMat)                                                                        \
    F(cusparseDestroyDnMat)                                                                        \
    F(cusparseSpMM_bufferSize)                                                                     \
    F(cusparseSpMM)

#define MEMBER(name) decltype(&name) name##_;
static struct {
    bool tried;
    char failure[256];
    cusparseHandle_t handle;
    FUNCTIONS(MEMBER)
} sparse;
#undef MEMBER

/* libcusparse, by its own name or beside libcublas. */
static void *open_library(const char *name) {
    void *file = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    void *neighbour = dlsym(RTLD_DEFAULT, "cublasCreate_v2");
    Dl_info info;
    if (file || !neighbour || !dladdr(neighbour, &info) || !info.dli_fname) return file;
    const char *slash = strrchr(info.dli_fname, '/');
    char path[1024];
    if (!slash) return NULL;
    snprintf(path, sizeof path, "%.*s/%s", (int)(slash - info.dli_fname), info.dli_fname, name);
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

/* Loads the library once in a process; it is never closed. */
static void load_library(void) {
    char name[32];
    sparse.tried = true;
    snprintf(name, sizeof name, "libcusparse.so.%d", CUSPARSE_VER_MAJOR);
    void *file = open_library(name);
    if (!file) {
        const char *why = dlerror();
        snprintf(sparse.failure, sizeof sparse.failure, "not found: %s", why ? why : name);
        return;
    }
#define LOAD(name)                                                                                 \
    sparse.name##_ = (decltype(sparse.name##_))dlsym(file, #name);                                 \
    if (!sparse.name##_) {                                                                         \
        snprintf(sparse.failure, sizeof sparse.failure, "it lacks %s", #name);                     \
        return;                                                                                    \
    }
    FUNCTIONS(LOAD)
#undef LOAD
    cusparseStatus_t status = sparse.cusparseCreate_(&sparse.handle);
    if (status != CUSPARSE_STATUS_SUCCESS) {
        snprintf(sparse.failure, sizeof sparse.failure, "%s",
                 sparse.cusparseGetErrorString_(status));
    }
}

static bool sparse_ok(cusparseStatus_t status, error *err) {
    if (status == CUSPARSE_STATUS_SUCCESS) return true;
    return error_set(err, "cuSPARSE: %s", sparse.cusparseGetErrorString_(status));
}

/* The block-rows of the matrix that SpMM multiplies with: W's, one a node and gate, or W's columns.
 */
static bool build_table(rival *r, const layout *l, error *err) {
    const bool forward = r->product == PRODUCT_FPROP;
    const int gates = l->gates, nodes = forward ? l->out_nodes : l->in_nodes;
    const int copies = forward ? gates : 1,
              entries = forward ? 1 : gates; /* of a list, of a block */
    const int *start = forward ? l->row_start : l->column_start;
    const int *other = forward ? l->row_column : l->column_row;
    r->block = l->in_block;
    r->block_rows = nodes * copies;
    r->block_columns = forward ? l->in_nodes : l->out_nodes * gates;
    r->blocks = l->blocks * gates;
    for (int i = 0; i < nodes; i++) {
        r->longest = max(r->longest, (start[i + 1] - start[i]) * entries);
    }
    const size_t places = (size_t)r->block_rows * (size_t)r->longest;
    int *index = host_array<int>(places);
    for (size_t i = 0; i < places; i++) index[i] = -1;
    for (int row = 0; row < r->block_rows; row++) {
        int *to = index + (size_t)row * (size_t)r->longest;
        for (int k = start[row / copies]; k < start[row / copies + 1]; k++) {
            for (int e = 0; e < entries; e++) *to++ = other[k] * entries + e;
        }
    }
    r->index = (int *)r->be->allocate(r->be, places * sizeof *index);
    if (r->index) r->be->upload(r->be, r->index, index, places * sizeof *index);
    free(index);
    return r->index || error_set(err, "cuSPARSE: no memory for its table");
}

static bool describe_sparse(const rival *r, const void *values, cusparseSpMatDescr_t *matrix,
                            error *err) {
    int64_t b = r->block, rows = r->block_rows, columns = r->block_columns;
    return sparse_ok(sparse.cusparseCreateBlockedEll_(
                         matrix, rows * b, columns * b, b, r->longest * b, r->index, (void *)values,
                         CUSPARSE_INDEX_32I, CUSPARSE_INDEX_BASE_ZERO, operand_type(r)),
                     err);
}

static bool describe_dense(const rival *r, int64_t rows, const void *values,
                           cusparseDnMatDescr_t *matrix, error *err) {
    int64_t lead = r->by_column ? rows : r->columns;
    return sparse_ok(
        sparse.cusparseCreateDnMat_(matrix, rows, r->columns, lead, (void *)values, operand_type(r),
                                    r->by_column ? CUSPARSE_ORDER_COL : CUSPARSE_ORDER_ROW),
        err);
}

static bool multiply(rival *r, cusparseSpMatDescr_t w, cusparseDnMatDescr_t x,
                     cusparseDnMatDescr_t y, error *err) {
    const float one = 1, zero = 0;
    const cusparseOperation_t plain = CUSPARSE_OPERATION_NON_TRANSPOSE;
    if (!sparse_ok(sparse.cusparseSetStream_(sparse.handle, cuda_of(r->be)->stream), err)) {
        return false;
    }
    if (!r->buffer) {
        size_t bytes = 0;
        if (!sparse_ok(sparse.cusparseSpMM_bufferSize_(sparse.handle, plain, plain, &one, w, x,
                                                       &zero, y, CUDA_R_32F,
                                                       CUSPARSE_SPMM_ALG_DEFAULT, &bytes),
                       err)) {
            return false;
        }
        r->buffer = r->be->allocate(r->be, bytes);
        if (!r->buffer) return error_set(err, "cuSPARSE: no memory for its workspace");
    }
    return sparse_ok(sparse.cusparseSpMM_(sparse.handle, plain, plain, &one, w, x, &zero, y,
                                          CUDA_R_32F, CUSPARSE_SPMM_ALG_DEFAULT, r->buffer),
                     err);
}

static bool run_sparse(rival *r, const void *left, const void *right, void *out, error *err) {
    cusparseSpMatDescr_t w = NULL;
    cusparseDnMatDescr_t x = NULL, y = NULL;
    int64_t b = r->block;
    bool done = describe_sparse(r, left, &w, err) &&
                describe_dense(r, r->block_columns * b, right, &x, err) &&
                describe_dense(r, r->block_rows * b, out, &y, err) && multiply(r, w, x, y, err);
    if (y) sparse.cusparseDestroyDnMat_(y);
    if (x) sparse.cusparseDestroyDnMat_(x);
    if (w) sparse.cusparseDestroySpMat_(w);
    return done;
}

static bool prepare_sparse(rival *r, const layout *l, error *err) {
    if (r->product == PRODUCT_WGRAD) {
        return error_set(err, "cuSPARSE has no product of two dense matrices in this format");
    }
    if (r->math == MATH_FP32) {
        return error_set(err, "cuSPARSE's blocked-ELL rounds fp32 to tf32");
    }
    if (!sparse.tried) load_library();
    if (*sparse.failure) return error_set(err, "cuSPARSE: %s", sparse.failure);
    if (!build_table(r, l, err)) return false;
    if (4 * rival_weights(r) > 5 * (size_t)r->blocks * r->block * r->block) {
        return error_set(err, "blocked-ELL would be more than a fifth padding");
    }
    return true;
}

#else

static bool run_sparse(rival *, const void *, const void *, void *, error *err) {
    return error_set(err, "cuSPARSE: this program was built without its header");
}

static bool prepare_sparse(rival *, const layout *, error *err) {
    return error_set(err, "cuSPARSE: this program was built without its header");
}

#endif

/* ------------------------------------------------------------------------------------- either */

rival *rival_create(backend *be, bench_library library, const bench_problem *problem, error *err) {
    rival *r = (rival *)calloc(1, sizeof *r);
    if (!r) abort();
    r->be = be;
    r->library = library;
    r->product = problem->product;
    r->math = problem->math;
    r->by_column = problem->by_column;
    r->columns = problem->columns;
    r->rows = (int)layout_rows(problem->layout);
    r->inputs = (int)layout_inputs(problem->layout);
    if (library == LIBRARY_CUBLAS || prepare_sparse(r, problem->layout, err)) return r;
    rival_free(r);
    return NULL;
}

size_t rival_weights(const rival *r) {
    if (r->library == LIBRARY_CUBLAS) return (size_t)r->rows * (size_t)r->inputs;
    return (size_t)r->block * (size_t)r->block * (size_t)r->block_rows * (size_t)r->longest;
}

bool rival_run(rival *r, const void *left, const void *right, void *out, error *err) {
    if (r->library == LIBRARY_CUBLAS) return run_cublas(r, left, right, out, err);
    return run_sparse(r, left, right, out, err);
}

void rival_free(rival *r) {
    if (!r) return;
    if (r->index) r->be->release(r->be, r->index);
    if (r->buffer) r->be->release(r->be, r->buffer);
    free(r);
}
