#include "core/png.h"

#include "core/file.h"
#include "core/memory.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

static void store(uint8_t *bytes, uint32_t value) {
    for (int i = 0; i < 4; i++) bytes[i] = (uint8_t)(value >> (24 - 8 * i));
}

/* Length, type, data, and the CRC-32 of the last two. */
static bool write_chunk(file_writer *writer, const char *type, const uint8_t *data, uint32_t length,
                        error *err) {
    uint8_t head[8], tail[4];
    store(head, length);
    memcpy(head + 4, type, 4);
    store(tail, (uint32_t)crc32(crc32(0, head + 4, 4), data, length));
    return file_write(writer, head, sizeof head, err) && file_write(writer, data, length, err) &&
           file_write(writer, tail, sizeof tail, err);
}

static bool write_file(const char *path, int width, int height, const uint8_t *compressed,
                       uint32_t length, error *err) {
    static const uint8_t signature[8] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
    uint8_t header[13] = {0}; /* then: 8 bits, grey, deflate, the usual filters, not interlaced */
    store(header, (uint32_t)width);
    store(header + 4, (uint32_t)height);
    header[8] = 8;

    file_writer writer;
    if (!file_begin(&writer, path, err)) return false;
    if (file_write(&writer, signature, sizeof signature, err) &&
        write_chunk(&writer, "IHDR", header, sizeof header, err) &&
        write_chunk(&writer, "IDAT", compressed, length, err) &&
        write_chunk(&writer, "IEND", header, 0, err)) {
        return file_commit(&writer, err);
    }
    file_abort(&writer);
    return false;
}

bool png_write(const char *path, const uint8_t *pixels, int width, int height, error *err) {
    /* A line begins with its filter; 0: none. */
    size_t line = (size_t)width + 1, size = line * (size_t)height;
    if (width < 1 || height < 1 || compressBound(size) > INT32_MAX) {
        return error_set(err, "%s: cannot write an image of %d x %d pixels", path, width, height);
    }
    uint8_t *lines = mem_alloc(size, 1);
    for (size_t y = 0; y < (size_t)height; y++) {
        memcpy(lines + y * line + 1, pixels + y * (size_t)width, (size_t)width);
    }
    uLongf length = compressBound(size);
    uint8_t *compressed = mem_alloc(length, 1);
    bool written = compress2(compressed, &length, lines, size, Z_DEFAULT_COMPRESSION) == Z_OK;
    if (written) {
        written = write_file(path, width, height, compressed, (uint32_t)length, err);
    } else {
        error_set(err, "%s: cannot compress the image", path);
    }
    free(lines);
    free(compressed);
    return written;
}
