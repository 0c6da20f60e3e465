/* 8-bit greyscale PNG files (ISO/IEC 15948), compressed by zlib. */
#ifndef SMALLWORLD_CORE_PNG_H
#define SMALLWORLD_CORE_PNG_H

#include <stddef.h>
#include <stdint.h>

/* `pixels` [height][width], 0 black, at most 2^30 of them. Returns a whole file of `size` bytes,
 * which the caller frees. */
uint8_t *png_encode(const uint8_t *pixels, int width, int height, size_t *size);

#endif
