/* safetensors files of any program. */
#include "fuzz.h"

#include "core/safetensors.h"

#include <stdlib.h>
#include <string.h>

static const char *path;

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    static const double data[24] = {1, 2, 3};
    const tensor tensors[] = {
        {"doubles", TENSOR_F64, 1, {3}, data},        {"floats", TENSOR_F32, 2, {2, 3}, data},
        {"integers", TENSOR_I32, 3, {1, 2, 2}, data}, {"bytes", TENSOR_U8, 1, {5}, data},
        {"nothing", TENSOR_U8, 2, {0, 7}, data},
    };
    const metadata entries[] = {{"format", "test"}, {"escapes", "\"\\\n\té"}};
    error err;
    path = scratch_path("input.safetensors");
    require(safetensors_write(path, tensors, 5, entries, 2, &err), err.text);
    add_seed(path);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    safetensors file;
    error err;
    scratch_write(path, data, size);
    if (!safetensors_open(&file, path, &err)) {
        require(strncmp(err.text, path, strlen(path)) == 0, "an error that does not name the file");
        return 0;
    }
    size_t total = 0;
    for (int i = 0; i < file.tensor_count; i++) {
        const tensor *t = &file.tensors[i];
        touch(t->data, tensor_bytes(t));
        total += tensor_bytes(t);
        require(safetensors_find(&file, t->name) == t, "a tensor that is not found by its name");
    }
    require(total <= size, "tensors larger than the file");
    for (int i = 0; i < file.entry_count; i++) {
        require(safetensors_metadata(&file, file.entries[i].key) != NULL, "metadata not found");
    }
    safetensors_close(&file);
    return 0;
}
