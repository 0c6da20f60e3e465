#include "arrays.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void array_build(buffer *b, const char *type, int64_t rows, int64_t columns) {
    static const char *const types[] = {"<f4", "<i4", "|u1", "|b1",  "<f8", ">f4", "<i8", "<i2",
                                        "|O",  "|V0", "<f0", "<f99", "<U7", "",    "%s",  "|S16"};
    static const char *const orders[] = {"False", "True", "0", "Falsetto"};
    char shape[128], header[512];
    const int64_t bytes = rows * (columns ? columns : 1) * atoi(type + 2);
    if (draw_once_in(4)) type = types[draw(sizeof types / sizeof types[0])];
    if (draw_once_in(4)) rows = draw_integer();
    if (draw_once_in(4)) columns = draw_integer();
    switch (draw(12)) {
    case 0: snprintf(shape, sizeof shape, "()"); break;
    case 1:
        snprintf(shape, sizeof shape, "(%lld, %lld, 1)", (long long)rows, (long long)columns);
        break;
    case 2: snprintf(shape, sizeof shape, "%s", draw_once_in(2) ? "" : "(1, 2"); break;
    case 3: snprintf(shape, sizeof shape, "(%.60s, %lld)", draw_text(), (long long)columns); break;
    default:
        if (columns > 0) {
            snprintf(shape, sizeof shape, "(%lld, %lld)", (long long)rows, (long long)columns);
        } else {
            snprintf(shape, sizeof shape, "(%lld,)", (long long)rows);
        }
    }
    const char *order = draw_once_in(8) ? orders[draw(4)] : orders[0];
    const char *const formats[] = {
        "{'descr': '%s', 'fortran_order': %s, 'shape': %s, }",
        "{'descr': '%s', 'fortran_order': %s, 'shape': %s",
        "{\"descr\": \"%s\", \"fortran_order\": %s, \"shape\": %s}",
    };
    const char *format = formats[draw_once_in(8) ? draw(3) : 0];
    int used = snprintf(header, sizeof header - 80, format, type, order, shape);
    if (used > (int)sizeof header - 81) used = sizeof header - 81;
    const uint8_t version = draw_once_in(8) ? (uint8_t)draw(5) : 1;
    const int preamble = version > 1 ? 12 : 10;
    const int padding = draw_once_in(8) ? (int)draw(64) : 63 - (preamble + used) % 64;
    memset(header + used, ' ', (size_t)padding);
    header[used + padding] = '\n';
    size_t length = (size_t)used + (size_t)padding + 1;
    size_t stated = draw_once_in(16) ? (size_t)draw_integer() : length;
    buffer_add(b, "\x93NUMPY", 6);
    buffer_add(b, &(uint8_t[]){version, 0}, 2);
    for (int i = 0; i < preamble - 8; i++) buffer_add(b, &(uint8_t){(uint8_t)(stated >> 8 * i)}, 1);
    buffer_add(b, header, length);
    int64_t elements = bytes;
    if (draw_once_in(4)) elements += (int64_t)draw(9) - 4;
    for (int64_t i = 0; i < elements; i++) {
        buffer_add(b, &(uint8_t){draw_once_in(2) ? 0 : (uint8_t)draw(256)}, 1);
    }
}
