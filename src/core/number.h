/* Numbers as text, whatever locale a host of the library has set. */
#ifndef SMALLWORLD_CORE_NUMBER_H
#define SMALLWORLD_CORE_NUMBER_H

#include <stdbool.h>
#include <stdint.h>

/* Read untrusted text. The whole text must be one decimal number, without blanks, hexadecimal
 * digits or names such as "inf". If they return false, both leave `*value` unchanged. */
bool number_integer(const char *text, int64_t *value);
bool number_real(const char *text, double *value); /* finite */

/* As strtod, where a number ends in a point in every locale. */
double number_scan(const char *text, char **stop);

/* The shortest decimal text that reads back as the same double; `text` holds 32 bytes. */
void number_format(char *text, double value);

#endif
