#include "train/schedule.h"

#include <math.h>

int64_t schedule_limit(const train_options *t, uint64_t epoch_updates) {
    int64_t limit = t->steps > 0 ? t->steps : INT64_MAX;
    if (t->epochs > 0) {
        double updates = fmax(1, round(t->epochs * (double)epoch_updates));
        if (updates < (double)limit) limit = (int64_t)updates;
    }
    return limit;
}

int64_t schedule_fit(const train_options *t, const schedule_times *each, double left) {
    double update = each->update + each->validation / (double)t->valid_every;
    update += each->saving * fmin(1, update / (t->checkpoint_minutes * 60));
    return (int64_t)(fmax(0, left - each->validation - each->saving) / update);
}

double schedule_lr(const train_options *t, int64_t step, int64_t total) {
    if (step < t->warmup) return t->lr * (double)(step + 1) / (double)t->warmup;
    if (t->schedule == SCHEDULE_CONSTANT || total == INT64_MAX || total <= t->warmup) return t->lr;
    double done = fmin(1, (double)(step - t->warmup) / (double)(total - t->warmup));
    double left = t->schedule == SCHEDULE_COSINE ? (1 + cos(M_PI * done)) / 2 : 1 - done;
    return t->lr * (t->lr_final + (1 - t->lr_final) * left);
}
