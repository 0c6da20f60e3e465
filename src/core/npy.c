#include "core/npy.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { PREAMBLE = 10, ALIGNMENT = 64 }; /* magic, version, header length; data starts aligned */

static const char set_mark[] = "# of set ";

bool npy_begin(file_writer *writer, const char *path, const char *type, int64_t rows,
               int64_t columns, int64_t *start, error *err) {
    return npy_begin_in_set(writer, path, type, rows, columns, 0, start, err);
}

bool npy_begin_in_set(file_writer *writer, const char *path, const char *type, int64_t rows,
                      int64_t columns, uint64_t set, int64_t *start, error *err) {
    char shape[64], header[256];
    if (columns > 0) {
        snprintf(shape, sizeof shape, "%" PRId64 ", %" PRId64, rows, columns);
    } else {
        snprintf(shape, sizeof shape, "%" PRId64 ",", rows);
    }
    int used = snprintf(header, sizeof header,
                        "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", type, shape);
    if (set) {
        used +=
            snprintf(header + used, sizeof header - (size_t)used, "  %s%016" PRIx64, set_mark, set);
    }
    int length = (PREAMBLE + used + 1 + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT - PREAMBLE;
    memset(header + used, ' ', (size_t)(length - used));
    header[length - 1] = '\n';
    const char preamble[PREAMBLE] = {
        '\x93', 'N', 'U', 'M', 'P', 'Y', 1, 0, (char)(length & 255), (char)(length >> 8)};
    *start = PREAMBLE + length;
    if (!file_begin(writer, path, err)) return false;
    if (file_write(writer, preamble, PREAMBLE, err) &&
        file_write(writer, header, (size_t)length, err)) {
        return true;
    }
    file_abort(writer);
    return false;
}

/* The header is a Python dictionary with three known keys; we look each one up by name. */
static const char *value_of(const char *header, const char *key) {
    const char *found = strstr(header, key);
    return found ? found + strlen(key) + strspn(found + strlen(key), " :") : "";
}

static bool parse(npy *array) {
    const uint8_t *bytes = array->map.bytes;
    if (array->map.size < PREAMBLE + 2 || memcmp(bytes, "\x93NUMPY", 6) != 0) return false;
    if (bytes[6] < 1 || bytes[6] > 3) return false; /* the version: 2 and 3 have a longer length */
    size_t offset = bytes[6] == 1 ? PREAMBLE : PREAMBLE + 2;
    size_t length = (size_t)bytes[8] | (size_t)bytes[9] << 8;
    if (bytes[6] > 1) length |= (size_t)bytes[10] << 16 | (size_t)bytes[11] << 24;
    char header[1024];
    if (length >= sizeof header || offset + length > array->map.size) return false;
    memcpy(header, bytes + offset, length);
    header[length] = '\0';

    const char *set = strstr(header, set_mark);
    if (set) array->set = strtoull(set + strlen(set_mark), NULL, 16);
    long long rows = 0, columns = 0;
    int width = 0, read = 0;
    const char *shape = value_of(header, "'shape'");
    if (sscanf(shape, "(%lld, %lld)%n", &rows, &columns, &read) == 2 && read > 0) {
        if (columns < 1) return false;
    } else {
        columns = read = 0;
        if (sscanf(shape, "(%lld,)%n", &rows, &read) != 1 || read == 0) return false;
    }
    if (sscanf(value_of(header, "'descr'"), "'%7[^']'", array->type) != 1) return false;
    if (sscanf(array->type, "%*c%*c%d", &width) != 1 || width < 1 || width > 16) return false;
    if (strncmp(value_of(header, "'fortran_order'"), "False", 5) != 0) return false;
    if (rows < 0 || (offset + length) % (size_t)width) return false; /* elements lie aligned */

    int64_t count, bytes_needed;
    array->data = bytes + offset + length;
    array->rows = rows;
    array->columns = columns;
    return !__builtin_mul_overflow(rows, columns ? columns : 1, &count) &&
           !__builtin_mul_overflow(count, width, &bytes_needed) &&
           (uint64_t)bytes_needed <= array->map.size - offset - length;
}

bool npy_open(npy *array, const char *path, error *err) {
    *array = (npy){0};
    if (!file_map_open(&array->map, path, err)) return false;
    if (parse(array)) return true;
    npy_close(array);
    return error_set(err, "%s: not a whole .npy file of one or two dimensions in C order", path);
}

void npy_close(npy *array) {
    file_map_close(&array->map);
    array->data = NULL;
}
