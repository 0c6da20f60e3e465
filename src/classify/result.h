/* What a job leaves in its folder: the classifier, results.json and index.html. */
#ifndef SMALLWORLD_CLASSIFY_RESULT_H
#define SMALLWORLD_CLASSIFY_RESULT_H

#include "classify/job.h"

/* After ways_choose. The classifier is whole before its results and its page are written. */
bool result_write(job *j, error *err);

#endif
