#include "classify/scores.h"

#include <math.h>
#include <string.h>

class_score score_class(const size_t *confusion, int classes, int class) {
    const size_t all = (size_t)classes, at = (size_t) class;
    const size_t right = confusion[at * all + at];
    size_t documents = 0, said = 0;
    for (size_t k = 0; k < all; k++) {
        documents += confusion[at * all + k];
        said += confusion[k * all + at];
    }
    class_score s = {documents, NAN, NAN, NAN};
    if (said > 0) s.precision = (double)right / (double)said;
    if (documents == 0) return s;
    s.recall = (double)right / (double)documents;
    s.f1 = 2 * (double)right / (double)(documents + said);
    return s;
}

double score_macro_f1(const size_t *confusion, int classes) {
    double sum = 0;
    int counted = 0;
    for (int k = 0; k < classes; k++) {
        const class_score s = score_class(confusion, classes, k);
        if (s.documents == 0) continue;
        sum += s.f1;
        counted++;
    }
    return sum / counted;
}

int score_mix_ups(const size_t *confusion, int classes, mix_up *list, int most) {
    int count = 0;
    for (int i = 0; i < classes; i++) {
        for (int k = 0; k < classes; k++) {
            const size_t documents = confusion[(size_t)i * (size_t)classes + (size_t)k];
            if (i == k || documents == 0) continue;
            int at = count;
            while (at > 0 && list[at - 1].documents < documents) at--;
            if (at == most) continue;
            if (count < most) count++;
            memmove(list + at + 1, list + at, (size_t)(count - 1 - at) * sizeof *list);
            list[at] = (mix_up){i, k, documents};
        }
    }
    return count;
}
