/* What a table of confusions says of each class. */
#ifndef SMALLWORLD_CLASSIFY_SCORES_H
#define SMALLWORLD_CLASSIFY_SCORES_H

#include <stddef.h>

/* Of a class: its documents, and the shares 0 to 1. Precision is NaN if nothing was said to be of
 * the class, recall and F1 are NaN without documents of it. */
typedef struct class_score {
    size_t documents;
    double precision, recall, f1;
} class_score;

/* confusion [classes][classes]: true class, said class. */
class_score score_class(const size_t *confusion, int classes, int class);

/* The mean F1 of the classes that have documents. */
double score_macro_f1(const size_t *confusion, int classes);

/* Documents of a class that were said to be of another one. */
typedef struct mix_up {
    int class, said;
    size_t documents;
} mix_up;

/* The commonest mix-ups, at most `most`; of equals the first. Returns their number. */
enum { MIX_UPS = 10 /* that people are shown */ };
int score_mix_ups(const size_t *confusion, int classes, mix_up *list, int most);

#endif
