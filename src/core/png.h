/* 8-bit greyscale PNG files (ISO/IEC 15948), compressed by zlib. */
#ifndef SMALLWORLD_CORE_PNG_H
#define SMALLWORLD_CORE_PNG_H

#include "core/error.h"

#include <stddef.h>
#include <stdint.h>

/* A whole file in memory that the caller frees; `name` is for the error. */
uint8_t *png_encode(const char *name, const uint8_t *pixels, int width, int height, size_t *size,
                    error *err);

/* `pixels` [height][width], 0 black. Written atomically. */
bool png_write(const char *path, const uint8_t *pixels, int width, int height, error *err);

#endif
