/* From the margins of a linear classifier to the probabilities of its classes. Two classes have one
 * function, whose sign decides; more have one each, the largest of which decides: those of one
 * class against the rest, or if `multinomial` the logits of a softmax. */
#ifndef SMALLWORLD_PROBE_CALIBRATION_H
#define SMALLWORLD_PROBE_CALIBRATION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The class that margins [functions] decide for. A margin of 0 between two gives the first. */
int margin_class(const double *margin, int functions);

/* Converts margins [functions] to the probabilities of the classes. Of two that is the logistic
 * function of scale x margin; of more, the softmax of these, or each one's logistic function over
 * the sum of all. */
void margin_probabilities(const double *margin, int functions, bool multinomial, double scale,
                          double *probability);

/* Finds the scale at which the classes [rows] of rows that were not fitted are likeliest: margin
 * [rows][functions]. So that separated classes do not make it infinite, each row counts as having a
 * small chance of the other classes, as in Platt's "Probabilistic outputs for support vector
 * machines" (1999): of n rows of a class, one in n + 2. */
double calibrate(const double *margin, const int16_t *class, size_t rows, int functions,
                 bool multinomial);

#endif
