#include "core/safetensors.h"

#include "core/json.h"
#include "core/memory.h"
#include "core/number.h"

#include <cjson/cJSON.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum { PREFIX = 8, DIGITS = 8 };

static const struct {
    const char *name;
    size_t bytes;
} types[] = {[TENSOR_F32] = {"F32", 4},
             [TENSOR_F64] = {"F64", 8},
             [TENSOR_I32] = {"I32", 4},
             [TENSOR_U8] = {"U8", 1}};

static const char checksum_key[] = "\"checksum\": \"";

size_t tensor_bytes(const tensor *t) {
    size_t bytes = types[t->type].bytes;
    for (int d = 0; d < t->dimensions; d++) bytes *= (size_t)t->shape[d];
    return bytes;
}

/* zlib's crc32 takes at most 4 GiB at a time. */
static unsigned long crc(unsigned long so_far, const void *bytes, size_t count) {
    const unsigned char *next = bytes;
    while (count > 0) {
        size_t part = count < (1u << 30) ? count : (1u << 30);
        so_far = crc32(so_far, next, (unsigned)part);
        next += part;
        count -= part;
    }
    return so_far;
}

/* ---------------------------------------------------------------------------------- writing */

/* The 8-byte length and the header, padded with spaces so that the tensors start 8-byte aligned. */
static char *build_header(const tensor *tensors, int tensor_count, const metadata *entries,
                          int entry_count, size_t *size) {
    char *text;
    FILE *out = mem_stream(&text, size);
    json_writer w = {out, false};
    fwrite("\0\0\0\0\0\0\0", 1, PREFIX, out);
    json_object_begin(&w, NULL);
    json_object_begin(&w, "__metadata__");
    json_string(&w, "checksum", "00000000");
    for (int i = 0; i < entry_count; i++) json_string(&w, entries[i].key, entries[i].value);
    json_object_end(&w);
    size_t offset = 0;
    for (const tensor *t = tensors; t < tensors + tensor_count; t++) {
        json_object_begin(&w, t->name);
        json_string(&w, "dtype", types[t->type].name);
        json_array_begin(&w, "shape");
        for (int d = 0; d < t->dimensions; d++) json_integer(&w, NULL, t->shape[d]);
        json_array_end(&w);
        json_array_begin(&w, "data_offsets");
        json_integer(&w, NULL, (int64_t)offset);
        offset += tensor_bytes(t);
        json_integer(&w, NULL, (int64_t)offset);
        json_array_end(&w);
        json_object_end(&w);
    }
    json_object_end(&w);
    fflush(out);
    for (size_t odd = *size % 8; odd > 0 && odd < 8; odd++) fputc(' ', out);
    mem_stream_end(out);
    uint64_t length = *size - PREFIX;
    for (int i = 0; i < PREFIX; i++) text[i] = (char)(length >> 8 * i & 255);
    return text;
}

/* Where the checksum's digits stand in a header of `size` bytes, or NULL. */
static char *checksum_digits(const char *header, size_t size) {
    char *found = memmem(header, size, checksum_key, sizeof checksum_key - 1);
    if (!found || found + sizeof checksum_key - 1 + DIGITS > header + size) return NULL;
    return found + sizeof checksum_key - 1;
}

/* Reads back from the disk what was written, before it replaces a file that is whole. */
static bool verify(file_writer *writer, error *err) {
    safetensors copy;
    error reason;
    if (!file_flush(writer, err)) return false;
    posix_fadvise(fileno(writer->stream), 0, 0, POSIX_FADV_DONTNEED);
    if (safetensors_open(&copy, writer->temporary, &reason)) {
        safetensors_close(&copy);
        return true;
    }
    return error_set(err, "cannot write %s: what was written reads as: %s", writer->path,
                     reason.text);
}

bool safetensors_write(const char *path, const tensor *tensors, int tensor_count,
                       const metadata *entries, int entry_count, error *err) {
    size_t size;
    char *header = build_header(tensors, tensor_count, entries, entry_count, &size);
    unsigned long sum = crc(0, header, size);
    for (int i = 0; i < tensor_count; i++) {
        sum = crc(sum, tensors[i].data, tensor_bytes(&tensors[i]));
    }
    char digits[DIGITS + 1];
    snprintf(digits, sizeof digits, "%08lx", sum);
    memcpy(checksum_digits(header, size), digits, DIGITS);

    file_writer writer;
    bool written = file_begin(&writer, path, err);
    if (written) {
        written = file_write(&writer, header, size, err);
        for (int i = 0; i < tensor_count && written; i++) {
            written = file_write(&writer, tensors[i].data, tensor_bytes(&tensors[i]), err);
        }
        if (written && verify(&writer, err)) {
            written = file_commit(&writer, err);
        } else {
            written = false;
            file_abort(&writer);
        }
    }
    free(header);
    return written;
}

/* ---------------------------------------------------------------------------------- reading */

/* A whole number from 0 on. */
static bool read_length(const cJSON *value, int64_t *length) {
    const double number = cJSON_IsNumber(value) ? value->valuedouble : -1;
    if (!(number >= 0 && number <= 0x1p53 && number == floor(number))) return false;
    *length = (int64_t)number;
    return true;
}

/* One tensor; its bytes must follow the last one's directly, at `*end` of `size`. */
static bool read_tensor(const cJSON *object, tensor *t, const uint8_t *data, uint64_t *end,
                        uint64_t size) {
    const cJSON *type = cJSON_GetObjectItemCaseSensitive(object, "dtype"), *length;
    const cJSON *shape = cJSON_GetObjectItemCaseSensitive(object, "shape");
    const cJSON *range = cJSON_GetObjectItemCaseSensitive(object, "data_offsets");
    enum { TYPES = sizeof types / sizeof types[0] };
    int64_t from, to;
    uint64_t elements = 1, bytes;
    size_t i = 0;
    if (!cJSON_IsObject(object) || cJSON_GetArraySize(object) != 3 || !cJSON_IsString(type) ||
        !cJSON_IsArray(shape) || !cJSON_IsArray(range) || cJSON_GetArraySize(range) != 2) {
        return false;
    }
    while (i < TYPES && strcmp(type->valuestring, types[i].name) != 0) i++;
    if (i == TYPES) return false;
    t->type = (tensor_type)i;
    cJSON_ArrayForEach(length, shape) {
        if (t->dimensions == TENSOR_MAX_DIMENSIONS ||
            !read_length(length, &t->shape[t->dimensions]) ||
            __builtin_mul_overflow(elements, (uint64_t)t->shape[t->dimensions++], &elements)) {
            return false;
        }
    }
    if (!read_length(range->child, &from) || !read_length(range->child->next, &to) ||
        (uint64_t)from != *end ||
        __builtin_mul_overflow(elements, (uint64_t)types[t->type].bytes, &bytes) ||
        bytes > size - *end || (uint64_t)to != *end + bytes) {
        return false;
    }
    t->data = data + *end;
    *end += bytes;
    return (uintptr_t)t->data % types[t->type].bytes == 0;
}

/* Copies a string that fits. */
static bool copy_text(char *target, size_t room, const char *text) {
    const size_t length = text ? strlen(text) : room;
    if (length >= room) return false;
    memcpy(target, text, length + 1);
    return true;
}

static bool read_metadata(const cJSON *object, safetensors *file) {
    const cJSON *member;
    size_t capacity = 0;
    if (!cJSON_IsObject(object)) return false;
    cJSON_ArrayForEach(member, object) {
        metadata entry;
        const size_t count = (size_t)file->entry_count;
        if (count == SAFETENSORS_MAX_ENTRIES || safetensors_metadata(file, member->string) ||
            !copy_text(entry.key, sizeof entry.key, member->string) ||
            !copy_text(entry.value, sizeof entry.value, cJSON_GetStringValue(member))) {
            return false;
        }
        file->entries = mem_grow(file->entries, &capacity, count + 1, sizeof entry);
        file->entries[file->entry_count++] = entry;
    }
    return true;
}

/* Members that are given twice are refused. */
static bool read_header(safetensors *file, const cJSON *header, const uint8_t *data, uint64_t size,
                        uint64_t *end) {
    const cJSON *member;
    size_t capacity = 0;
    *end = 0;
    if (!cJSON_IsObject(header)) return false;
    cJSON_ArrayForEach(member, header) {
        tensor t = {0};
        if (strcmp(member->string, "__metadata__") == 0) {
            if (file->entry_count > 0 || !read_metadata(member, file)) return false;
            continue;
        }
        const size_t count = (size_t)file->tensor_count;
        if (count == SAFETENSORS_MAX_TENSORS || safetensors_find(file, member->string) ||
            !copy_text(t.name, sizeof t.name, member->string) ||
            !read_tensor(member, &t, data, end, size)) {
            return false;
        }
        file->tensors = mem_grow(file->tensors, &capacity, count + 1, sizeof t);
        file->tensors[file->tensor_count++] = t;
    }
    return true;
}

static bool checksum_holds(const safetensors *file, size_t header_size) {
#ifdef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION
    return true; /* tests/fuzz: hardly any changed input would get further */
#endif
    const char *stated = safetensors_metadata(file, "checksum");
    if (!stated) return true; /* another program's file: its own format says what it is */
    const char *bytes = (const char *)file->map.bytes;
    const char *digits = checksum_digits(bytes, header_size);
    if (!digits) return false;
    size_t before = (size_t)(digits - bytes);
    unsigned long sum = crc(0, bytes, before);
    sum = crc(sum, "00000000", DIGITS);
    sum = crc(sum, digits + DIGITS, file->map.size - before - DIGITS);
    char expected[DIGITS + 1];
    snprintf(expected, sizeof expected, "%08lx", sum);
    return strcmp(expected, stated) == 0;
}

static bool check(safetensors *file, error *err) {
    const uint8_t *bytes = file->map.bytes;
    size_t size = file->map.size;
    uint64_t length = 0, end;
    if (size < PREFIX + 2) {
        return error_set(err, "%s: not a safetensors file: only %zu bytes", file->path, size);
    }
    for (int i = 0; i < PREFIX; i++) length |= (uint64_t)bytes[i] << 8 * i;
    if (bytes[PREFIX] != '{') return error_set(err, "%s: not a safetensors file", file->path);
    if (length > SAFETENSORS_MAX_HEADER) {
        return error_set(err, "%s: a header of %llu bytes; at most %d are read", file->path,
                         (unsigned long long)length, SAFETENSORS_MAX_HEADER);
    }
    if (length > size - PREFIX) {
        return error_set(err, "%s: truncated: its header has %llu bytes, the file only %zu",
                         file->path, (unsigned long long)length, size);
    }
    const uint8_t *data = bytes + PREFIX + length;
    uint64_t data_size = size - PREFIX - length;
    cJSON *header = cJSON_ParseWithLength((const char *)bytes + PREFIX, length);
    const bool describes = read_header(file, header, data, data_size, &end);
    cJSON_Delete(header);
    if (!describes) {
        return error_set(err,
                         "%s: truncated or corrupt: its header does not describe its %zu bytes",
                         file->path, size);
    }
    if (end != data_size) {
        return error_set(err, "%s: corrupt: %llu bytes of tensors, %llu expected", file->path,
                         (unsigned long long)data_size, (unsigned long long)end);
    }
    if (!checksum_holds(file, PREFIX + length)) {
        return error_set(err, "%s: corrupt: its checksum does not match its content", file->path);
    }
    return true;
}

bool safetensors_open(safetensors *file, const char *path, error *err) {
    *file = (safetensors){.path = mem_string(path)};
    if (file_map_open(&file->map, path, err) && check(file, err)) return true;
    safetensors_close(file);
    return false;
}

void safetensors_close(safetensors *file) {
    file_map_close(&file->map);
    free(file->path);
    free(file->tensors);
    free(file->entries);
    *file = (safetensors){0};
}

const tensor *safetensors_find(const safetensors *file, const char *name) {
    for (int i = 0; i < file->tensor_count; i++) {
        if (strcmp(file->tensors[i].name, name) == 0) return &file->tensors[i];
    }
    return NULL;
}

const char *safetensors_metadata(const safetensors *file, const char *key) {
    for (int i = 0; i < file->entry_count; i++) {
        if (strcmp(file->entries[i].key, key) == 0) return file->entries[i].value;
    }
    return NULL;
}

void metadata_add(metadata *entries, int *count, const char *key, const char *value) {
    metadata *entry = &entries[(*count)++];
    snprintf(entry->key, sizeof entry->key, "%s", key);
    snprintf(entry->value, sizeof entry->value, "%s", value);
}

void metadata_add_number(metadata *entries, int *count, const char *key, double value) {
    char text[32];
    number_format(text, value);
    metadata_add(entries, count, key, text);
}

void metadata_add_classes(metadata *entries, int *count, const char *const *name, int classes) {
    char key[24];
    metadata_add_number(entries, count, "classes", classes);
    for (int i = 0; i < classes; i++) {
        snprintf(key, sizeof key, "class.%d", i);
        metadata_add(entries, count, key, name[i]);
    }
}

const char *safetensors_entry(const safetensors *file, const char *key) {
    const char *value = safetensors_metadata(file, key);
    return value ? value : "";
}

int safetensors_classes(const safetensors *file, const char **name) {
    int64_t classes;
    if (!number_integer(safetensors_entry(file, "classes"), &classes) || classes < 2 ||
        classes > MOST_CLASSES) {
        return 0;
    }
    for (int i = 0; i < classes; i++) {
        char key[24];
        snprintf(key, sizeof key, "class.%d", i);
        name[i] = safetensors_metadata(file, key);
        if (!name[i]) return 0;
    }
    return (int)classes;
}

bool safetensors_is(const safetensors *file, const char *kind, const char *version,
                    const char *what, error *err) {
    const char *found = safetensors_entry(file, "version");
    if (strcmp(safetensors_entry(file, "format"), "smallworld") != 0 ||
        strcmp(safetensors_entry(file, "kind"), kind) != 0) {
        return error_set(err, "%s: not %s", file->path, what);
    }
    return strcmp(found, version) == 0 ||
           error_set(err, "%s: has format version %s, but this program reads version %s",
                     file->path, found, version);
}
