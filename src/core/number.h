/* Reads numbers from untrusted text. The whole text must be one decimal number, without blanks,
 * hexadecimal digits or names such as "inf". */
#ifndef SMALLWORLD_CORE_NUMBER_H
#define SMALLWORLD_CORE_NUMBER_H

#include <stdbool.h>
#include <stdint.h>

/* If they return false, both leave `*value` unchanged. */
bool number_integer(const char *text, int64_t *value);
bool number_real(const char *text, double *value); /* finite */

#endif
