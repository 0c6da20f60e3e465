/* safetensors files (https://github.com/huggingface/safetensors): an 8-byte length, a JSON header
 * of tensors and of string metadata, then the tensors' bytes without gaps.
 *
 * Ours carry metadata `checksum`: the CRC-32 of the whole file, in eight hexadecimal digits, taken
 * with those digits as zeros. The same content always gives the same bytes. */
#ifndef SMALLWORLD_CORE_SAFETENSORS_H
#define SMALLWORLD_CORE_SAFETENSORS_H

#include "core/file.h"

enum { TENSOR_MAX_DIMENSIONS = 5 };

/* Limits of a file, so that an untrusted file takes neither much time nor memory. Our files have a
 * hundredth of them. */
enum {
    SAFETENSORS_MAX_HEADER = 1 << 20, /* bytes */
    SAFETENSORS_MAX_TENSORS = 1024,
    SAFETENSORS_MAX_ENTRIES =
        1024 /* of metadata, each with a key and a value that fit `metadata` */
};

typedef enum tensor_type { TENSOR_F32, TENSOR_F64, TENSOR_I32, TENSOR_U8 } tensor_type;

typedef struct tensor {
    char name[64];
    tensor_type type;
    int dimensions;
    int64_t shape[TENSOR_MAX_DIMENSIONS];
    const void *data; /* C order */
} tensor;

typedef struct metadata {
    char key[64], value[256];
} metadata;

size_t tensor_bytes(const tensor *t);

/* Add an entry to a list that has room for it. */
void metadata_add(metadata *entries, int *count, const char *key, const char *value);
void metadata_add_number(metadata *entries, int *count, const char *key, double value);

/* The names of classes, as the entries classes, class.0, class.1 ... */
enum { MOST_CLASSES = 256 };
void metadata_add_classes(metadata *entries, int *count, const char *const *name, int classes);

/* Writes a file atomically (core/file.h), and reads it back before it replaces an earlier file.
 * Adds `checksum` to the metadata. */
bool safetensors_write(const char *path, const tensor *tensors, int tensor_count,
                       const metadata *entries, int entry_count, error *err);

/* A mapped file. Tensors point into the map and live until safetensors_close. */
typedef struct safetensors {
    file_map map;
    char *path;
    tensor *tensors;
    int tensor_count;
    metadata *entries;
    int entry_count;
} safetensors;

/* Opens a file. Refuses a bad header, tensors out of bounds or not aligned to their elements,
 * missing or extra bytes, and a wrong checksum if the metadata has one. */
bool safetensors_open(safetensors *file, const char *path, error *err);
void safetensors_close(safetensors *file);

const tensor *safetensors_find(const safetensors *file, const char *name); /* NULL if absent */
const char *safetensors_metadata(const safetensors *file, const char *key);
const char *safetensors_entry(const safetensors *file, const char *key); /* "" if absent */

/* The number of classes, whose names [MOST_CLASSES] point into the file; 0 if there are less than
 * two or if some are missing. */
int safetensors_classes(const safetensors *file, const char **name);

/* Refuses a file that is not of this kind and version. `what` ends the message "not ...". */
bool safetensors_is(const safetensors *file, const char *kind, const char *version,
                    const char *what, error *err);

#endif
