/* Measures how fast text that stays in its files (data/window.h) becomes minibatches. */
#ifndef SMALLWORLD_BENCH_STREAM_H
#define SMALLWORLD_BENCH_STREAM_H

#include "core/error.h"

#include <stdint.h>
#include <stdio.h>

enum { STREAM_MOST = 16 };

typedef enum stream_text { STREAM_RAW, STREAM_DOCUMENTS } stream_text;
typedef enum stream_packing { STREAM_PLAIN, STREAM_GZIP, STREAM_XZ } stream_packing;

#define STREAM_TEXTS    "raw tsv"
#define STREAM_PACKINGS "none gzip xz"

typedef struct stream_options {
    char *const *files; /* [file_count] to read instead of made-up text */
    int file_count;
    const char *folder; /* for made-up files, which stay there; NULL: temporary */
    int texts[STREAM_MOST], packings[STREAM_MOST], ranks[STREAM_MOST];
    int text_count, packing_count, ranks_count;
    double bytes;      /* of text in an epoch, by naming the same files again and again */
    double file_bytes; /* of a made-up file, unpacked */
    double seconds;    /* of a measurement; 0: an epoch */
    double window;     /* bytes of all ranks */
    int batch, bptt;
} stream_options;

typedef struct stream_row {
    int text, packing, ranks;          /* text -1: the user's files */
    double bytes;                      /* of an epoch */
    double disk;                       /* bytes of the files, each once */
    double index_bytes, index_seconds; /* bytes read once to index them, unpacked */
    double read, seconds; /* bytes in minibatches; time from the start to the last of them */
    double processor;     /* seconds of the processor, of all ranks together */
    double first;         /* seconds until the first minibatch, the slowest rank's */
    double memory;        /* peak resident bytes, all ranks together */
} stream_row;

typedef struct stream_results {
    stream_row *rows;
    int count;
    double window;
    int batch, bptt;
} stream_results;

/* Measures each text, packed in each way, read by each number of ranks, which are processes of this
 * host; a signal ends it after the current row. `progress`: on stderr. On failure the results hold
 * the rows before it. The caller frees `rows`. */
bool stream_measure(const stream_options *options, bool progress, stream_results *results,
                    error *err);

void stream_report(const stream_results *results, FILE *out);
void stream_json(const stream_results *results, FILE *out);

#endif
