/* cuBLAS's functions under their own names. They load the library when a GPU backend first calls
 * one: linked to the program, its 360,000 relocations would make every start ten times as long, and
 * a machine without a GPU would need it. The library is never closed. */
#include <cublas_v2.h>

#include <dlfcn.h>

#define TEXT_(x) #x
#define TEXT(x)  TEXT_(x)
#define LIBRARY  "libcublas.so." TEXT(CUBLAS_VER_MAJOR)

/* The address of a function, or NULL. */
static void *find(const char *name) {
    static void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_GLOBAL);
    return library ? dlsym(library, name) : NULL;
}

/* Calls cuBLAS's function of that name, which takes what its caller here takes. */
template <typename... Arguments>
static cublasStatus_t call(const char *name, Arguments... arguments) {
    cublasStatus_t (*function)(Arguments...) = (cublasStatus_t(*)(Arguments...))find(name);
    return function ? function(arguments...) : CUBLAS_STATUS_NOT_INITIALIZED;
}

extern "C" {

cublasStatus_t cublasCreate_v2(cublasHandle_t *handle) {
    return call("cublasCreate_v2", handle);
}

cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
    return call("cublasDestroy_v2", handle);
}

cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
    return call("cublasSetStream_v2", handle, stream);
}

cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t handle, void *workspace, size_t size) {
    return call("cublasSetWorkspace_v2", handle, workspace, size);
}

const char *cublasGetStatusString(cublasStatus_t status) {
    const char *(*function)(cublasStatus_t) =
        (const char *(*)(cublasStatus_t))find("cublasGetStatusString");
    return function ? function(status) : LIBRARY " cannot be loaded";
}

cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t turn_a,
                            cublasOperation_t turn_b, int m, int n, int k, const void *alpha,
                            const void *a, cudaDataType a_type, int lda, const void *b,
                            cudaDataType b_type, int ldb, const void *beta, void *c,
                            cudaDataType c_type, int ldc, cublasComputeType_t type,
                            cublasGemmAlgo_t algorithm) {
    return call("cublasGemmEx", handle, turn_a, turn_b, m, n, k, alpha, a, a_type, lda, b, b_type,
                ldb, beta, c, c_type, ldc, type, algorithm);
}

cublasStatus_t cublasGemmStridedBatchedEx(
    cublasHandle_t handle, cublasOperation_t turn_a, cublasOperation_t turn_b, int m, int n, int k,
    const void *alpha, const void *a, cudaDataType a_type, int lda, long long a_step, const void *b,
    cudaDataType b_type, int ldb, long long b_step, const void *beta, void *c, cudaDataType c_type,
    int ldc, long long c_step, int count, cublasComputeType_t type, cublasGemmAlgo_t algorithm) {
    return call("cublasGemmStridedBatchedEx", handle, turn_a, turn_b, m, n, k, alpha, a, a_type,
                lda, a_step, b, b_type, ldb, b_step, beta, c, c_type, ldc, c_step, count, type,
                algorithm);
}
}
