/* Training runs for tests. Runs are small, each in a subfolder of the temporary folder. A test can
 * read what their files hold, and can disturb a run while it trains. */
#ifndef SMALLWORLD_TESTS_RUNS_H
#define SMALLWORLD_TESTS_RUNS_H

#include "support.h"

#include "core/safetensors.h"
#include "data/corpus.h"
#include "train/checkpoint.h"
#include "train/trainer.h"

/* The update (from 0) during whose preparation SIGTERM is sent, and the update whose learning rate
 * is NaN; -1: none. `signal_first` sends SIGINT before the first update. */
extern int64_t signal_step, spoil_step;
extern bool signal_first;

/* The runs' data, which write_files makes. It is the setup of a group of tests, and exits if the
 * device under test is missing. */
extern char *train_file, *valid_file;
int write_files(void **state);

/* The setup of each test. */
int reset_interventions(void **state);
#define TEST(function) cmocka_unit_test_setup(function, reset_interventions)

/* Writes sentences of a few words, so that there is something to learn. 60 documents make 26
 * updates an epoch. */
void write_documents(const char *path, int count, uint64_t seed);

/* A small config with `settings` on top, separated by spaces. The caller frees the options. */
void begin_options(options *o, const char *settings);

/* Each trains in the subfolder `name` with these settings. Fails the test if training fails, or if
 * it does not, or its error does not contain `expected`. */
train_result run(const char *name, train_start start, const char *settings);
void assert_run_fails(const char *name, train_start start, const char *settings,
                      const char *expected);

/* The path of a run's file, and its content, which the caller frees. */
char *run_file(const char *name, const char *file);
char *read_run_file(const char *name, const char *file, size_t *size);

/* Compare a file of two runs, and all files: metrics and states but for the times in them. */
bool same_file(const char *one, const char *other, const char *file);
void assert_same_run(const char *one, const char *other);

void open_run(safetensors *file, const char *name, const char *which);
bool same_tensor(const tensor *a, const tensor *b);

/* Whether a line of metrics.jsonl has a number (NaN: null); that of the last line or the first. */
bool find_number(const char *line, const char *key, double *value);
double metric(const char *name, const char *key, bool last);

/* A run's last model. */
typedef struct loaded {
    checkpoint c;
    backend *be;
    model *m;
} loaded;

void load(loaded *l, const char *name, int batch, int steps); /* for inference */
void load_for(loaded *l, const char *name, int batch, int steps, model_use use);
void unload(loaded *l);
corpus *read_corpus(char *path);

#endif
