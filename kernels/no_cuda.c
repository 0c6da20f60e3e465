/* Stands in for kernels/cuda where the program is built without a CUDA toolkit. */
#include "ops.h"

#include <unistd.h>

backend *backend_cuda(precision precision, int gpu, error *err) {
    (void)precision, (void)gpu;
    error_set(err, "device cuda: this program was built without CUDA (12.8 or later)");
    return NULL;
}

const char *backend_nccl_version(char text[NCCL_TEXT]) {
    (void)text;
    return "this program was built without CUDA";
}

/* NVIDIA's driver is loaded. */
bool backend_cuda_expected(void) {
    return access("/dev/nvidiactl", F_OK) == 0;
}
