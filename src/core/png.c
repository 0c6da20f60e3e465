#include "core/png.h"

#include "core/memory.h"

#include <stdlib.h>
#include <string.h>
#include <zlib.h>

static void store(uint8_t *bytes, uint32_t value) {
    for (int i = 0; i < 4; i++) bytes[i] = (uint8_t)(value >> (24 - 8 * i));
}

/* Length, type, data, and the CRC-32 of the last two; returns what comes after. */
static uint8_t *put_chunk(uint8_t *at, const char *type, const uint8_t *data, uint32_t length) {
    store(at, length);
    memcpy(at + 4, type, 4);
    memcpy(at + 8, data, length);
    store(at + 8 + length, (uint32_t)crc32(0, at + 4, length + 4));
    return at + 12 + length;
}

static uint8_t *put_file(int width, int height, const uint8_t *compressed, uint32_t length,
                         size_t *size) {
    static const uint8_t signature[8] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};
    uint8_t header[13] = {0}; /* then: 8 bits, grey, deflate, the usual filters, not interlaced */
    store(header, (uint32_t)width);
    store(header + 4, (uint32_t)height);
    header[8] = 8;
    *size = sizeof signature + 3 * 12 + sizeof header + length;
    uint8_t *file = mem_alloc(*size, 1), *at = file + sizeof signature;
    memcpy(file, signature, sizeof signature);
    at = put_chunk(at, "IHDR", header, sizeof header);
    at = put_chunk(at, "IDAT", compressed, length);
    put_chunk(at, "IEND", header, 0);
    return file;
}

uint8_t *png_encode(const uint8_t *pixels, int width, int height, size_t *size) {
    /* A line begins with its filter; 0: none. */
    size_t line = (size_t)width + 1, bytes = line * (size_t)height;
    uint8_t *lines = mem_alloc(bytes, 1);
    for (size_t y = 0; y < (size_t)height; y++) {
        memcpy(lines + y * line + 1, pixels + y * (size_t)width, (size_t)width);
    }
    uLongf length = compressBound(bytes);
    uint8_t *compressed = mem_alloc(length, 1);
    /* With room for all, it only fails for lack of memory. */
    if (compress2(compressed, &length, lines, bytes, Z_DEFAULT_COMPRESSION) != Z_OK) {
        mem_give_up(bytes, 1);
    }
    uint8_t *file = put_file(width, height, compressed, (uint32_t)length, size);
    free(lines);
    free(compressed);
    return file;
}
