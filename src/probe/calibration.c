#include "probe/calibration.h"

#include "probe/dataset.h"

#include <math.h>

int margin_class(const double *margin, int functions) {
    int best = 0;
    if (functions == 1) return margin[0] > 0;
    for (int k = 1; k < functions; k++) {
        if (margin[k] > margin[best]) best = k;
    }
    return best;
}

void margin_probabilities(const double *margin, int functions, bool multinomial, double scale,
                          double *probability) {
    multinomial = multinomial && functions > 1;
    const double most = multinomial ? margin[margin_class(margin, functions)] : 0;
    double total = 0;
    for (int k = 0; k < functions; k++) {
        probability[k] =
            multinomial ? exp(scale * (margin[k] - most)) : 1 / (1 + exp(-scale * margin[k]));
        total += probability[k];
    }
    if (functions == 1) {
        probability[1] = probability[0];
        probability[0] = 1 - probability[1];
        return;
    }
    for (int k = 0; k < functions; k++) {
        probability[k] = total > 0 ? probability[k] / total : 1.0 / functions;
    }
}

double calibrate(const double *margin, const int16_t *class, size_t rows, int functions,
                 bool multinomial) {
    const int classes = functions == 1 ? 2 : functions;
    size_t of_class[DATASET_MAX_CLASSES] = {0};
    for (size_t i = 0; i < rows; i++) of_class[class[i]]++;
    double best = 1, least = INFINITY;
    for (int step = -48; step <= 32; step++) {
        const double scale = exp2(step / 8.0);
        double loss = 0;
        for (size_t i = 0; i < rows; i++) {
            double probability[DATASET_MAX_CLASSES];
            margin_probabilities(margin + i * (size_t)functions, functions, multinomial, scale,
                                 probability);
            const double other = 1 / ((double)of_class[class[i]] + 2);
            for (int k = 0; k < classes; k++) {
                const double share = k == class[i] ? 1 - other : other / (classes - 1);
                loss -= share * log(fmax(probability[k], 1e-300));
            }
        }
        if (loss < least) {
            least = loss;
            best = scale;
        }
    }
    return best;
}
