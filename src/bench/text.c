#include "bench/text.h"

#include "core/file.h"
#include "core/memory.h"
#include "core/philox.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WORD = 5, SENTENCE = 14 }; /* mean letters of a word, and words of a sentence */

/* Each letter as often as in about a hundred letters of English text. */
static const char letters[] = "eeeeeeeeeeeeettttttttttaaaaaaaaaooooooooiiiiiiinnnnnnnsssssssrrrrrr"
                              "hhhhhhllllldddduuucccmmmfffwwggyyppbbvk";

/* Writes letters in words and sentences. The writer is either inside a word or after one. */
typedef struct prose {
    philox_stream random;
    bool capital, space;
} prose;

static char next_letter(prose *p) {
    uint64_t draw = philox_next(&p->random);
    bool ends = !p->space && (draw >> 32) % (WORD + 1) == 0;
    if (ends) {
        p->space = true;
        if ((draw >> 48) % SENTENCE == 0) {
            p->capital = true;
            return '.';
        }
        return ' ';
    }
    if (p->capital && p->space) { /* the space after a full stop */
        p->space = false;
        return ' ';
    }
    char letter = letters[(uint32_t)draw % (sizeof letters - 1)];
    if (p->capital) letter = (char)(letter - 'a' + 'A');
    p->capital = p->space = false;
    return letter;
}

/* ------------------------------------------------------------------------------------- files */

/* A temporary file that is read back as a corpus and then removed. */
typedef struct scratch {
    char *path;
    FILE *out;
} scratch;

static bool scratch_open(scratch *s, const char *ending, error *err) {
    s->path = mem_format("%s/smallworld-bench-XXXXXX%s", file_scratch_folder(), ending);
    int file = mkstemps(s->path, (int)strlen(ending));
    s->out = file >= 0 ? fdopen(file, "wb") : NULL;
    if (s->out) return true;
    error_system(err, "write", s->path);
    if (file >= 0) {
        close(file);
        unlink(s->path);
    }
    free(s->path);
    return false;
}

static corpus *scratch_read(scratch *s, error *err) {
    corpus_options how = {0};
    corpus *c = NULL;
    bool written = !ferror(s->out);
    if (fclose(s->out) != 0 || !written) {
        error_system(err, "write", s->path);
    } else {
        c = corpus_read(&s->path, 1, &how, err);
    }
    unlink(s->path);
    free(s->path);
    return c;
}

corpus *text_corpus(text_kind kind, uint64_t bytes, error *err) {
    scratch s;
    prose p = {philox_start(1, PHILOX_BENCH, 1, 0), true, false};
    if (!scratch_open(&s, ".txt", err)) return NULL;
    const bool english = kind == TEXT_ENGLISH;
    for (uint64_t i = 0; i < bytes; i++) {
        fputc(english ? next_letter(&p) : ' ' + (int)(philox_next(&p.random) % 224), s.out);
    }
    return scratch_read(&s, err);
}

/* Draws by Box and Muller's method. */
static double normal(philox_stream *random) {
    double radius = sqrt(-2 * log(1 - philox_uniform(random)));
    return radius * cos(2 * M_PI * philox_uniform(random));
}

static int ascending(const void *a, const void *b) {
    return *(const int *)a - *(const int *)b;
}

static int *draw_lengths(int count, double mean) {
    const double deviation = 0.65;
    philox_stream random = philox_start(1, PHILOX_BENCH, 3, 0);
    int *lengths = mem_alloc((size_t)count, sizeof *lengths);
    for (int i = 0; i < count; i++) {
        double length = mean * exp(deviation * normal(&random) - deviation * deviation / 2);
        lengths[i] = (int)fmin(fmax(length, 1), 6 * mean);
    }
    qsort(lengths, (size_t)count, sizeof *lengths, ascending);
    return lengths;
}

corpus *text_documents(int count, int batch, int groups, double mean, error *err) {
    scratch s;
    prose p = {philox_start(1, PHILOX_BENCH, 2, 0), true, false};
    if (!scratch_open(&s, ".tsv", err)) return NULL;
    int all = count / batch > groups ? count / batch : groups;
    int *lengths = draw_lengths(all * batch, mean);
    for (int i = 0; i < groups; i++) {
        int group = (int)((double)all * (i + 0.5) / groups);
        for (int k = group * batch; k < (group + 1) * batch; k++) {
            fprintf(s.out, "%d\t", k % 2);
            for (int n = 0; n < lengths[k]; n++) fputc(next_letter(&p), s.out);
            fputc('\n', s.out);
        }
    }
    free(lengths);
    return scratch_read(&s, err);
}
