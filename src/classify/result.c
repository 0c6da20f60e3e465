#include "classify/result.h"

#include "classify/classifier.h"
#include "classify/model_ways.h"
#include "core/file.h"
#include "core/memory.h"
#include "core/utf8.h"

#include <stdlib.h>

enum {
    MISTAKES = 20,
    SHOWN = 4, /* mistakes that are coloured */
    SHOWN_BYTES = 8000,
    SHOWN_UNITS = 8
};

/* Copies the model and the probe to where predict finds them; a tuned model has its own. */
static bool keep_parts(job *j, error *err) {
    if (j->ways.partner == BY_NGRAMS) {
        j->model_name = mem_string("");
        j->probe_name = mem_string("");
        return true;
    }
    if (j->ways.partner == BY_TUNED) {
        j->model_name = classifier_keep(j->how->out, "model", &j->tuned.checkpoint.file, err);
        if (j->model_name) j->probe_name = mem_string(j->model_name);
        return j->model_name != NULL;
    }
    char *path = job_features_path(j, "probe.probe.safetensors");
    saved_probe probe;
    if (saved_open(&probe, path, err)) {
        j->probe_name = classifier_keep(j->how->out, "probe", &probe.file, err);
        saved_close(&probe);
    }
    free(path);
    if (!j->probe_name) return false;
    j->model_name = classifier_keep(j->how->out, "model", &j->loaded.checkpoint.file, err);
    return j->model_name != NULL;
}

static bool save(const job *j, error *err) {
    classifier c = {.ngrams = j->ngrams,
                    .classes = j->examples.classes.count,
                    .share = ways_saved_share(&j->ways),
                    .checkpoint = j->model_name,
                    .probe = j->probe_name,
                    .text_column = j->how->text_column ? j->how->text_column : "",
                    .label_column = j->how->label_column ? j->how->label_column : "",
                    .html_entities = j->loaded.checkpoint.options.data.reading.html_entities};
    for (int k = 0; k < c.classes; k++) c.name[k] = j->examples.classes.name[k];
    if (!classifier_write(&c, j->how->out, err)) return false;
    classifier_clean(&c, j->how->out, j->earlier,
                     j->how->given ? j->loaded.checkpoint.file.path : NULL);
    return true;
}

/* Opens what was written, as predict will. */
static bool check(const job *j, error *err) {
    classifier c;
    if (!classifier_open(&c, j->how->out, err)) return false;
    const bool whole = classifier_check(&c, j->how->out, err);
    classifier_close(&c);
    return whole;
}

/* Reads the first mistakes as the probe sees them. */
static bool read_mistakes(job *j, const mistake *list, int count, corpus *some, saved_probe *probe,
                          reading *r, error *err) {
    size_t units[SHOWN_UNITS];
    uint64_t bytes = 0;
    *some = *j->examples.test.texts;
    some->documents = mem_alloc(SHOWN, sizeof *some->documents);
    some->count = 0;
    for (int i = 0; i < count && some->count < SHOWN; i++) {
        const document *d = &j->examples.test.texts->documents[list[i].document];
        if (bytes + d->length > SHOWN_BYTES) continue;
        bytes += d->length;
        some->documents[some->count++] = *d;
    }
    some->size = bytes;
    if (some->count == 0) return true;
    const loaded_model *of = j->ways.partner == BY_TUNED ? &j->tuned : &j->loaded;
    const int chosen =
        show_choose_units(NULL, probe, of->checkpoint.options.model.hidden, units, SHOWN_UNITS);
    const bool coloured = probe->classes <= SHOW_MAX_CLASSES;
    const reading_options how = {.state = probe->origin.state,
                                 .units = chosen ? units : NULL,
                                 .count = chosen ? chosen : SHOWN_UNITS,
                                 .pools = probe->origin.pools,
                                 .models = coloured ? probe->models : 0,
                                 .weights = coloured ? probe->weights : NULL};
    return reading_run(of->m, some, &how, r, err);
}

static bool write_page(job *j, error *err) {
    contender list[1 + WAYS];
    mistake *mistakes;
    corpus some = {.count = 0};
    saved_probe probe = {0};
    reading read = {0};
    char *path = mem_format("%s/%s", j->how->out, j->probe_name);
    char *page = mem_format("%s/index.html", j->how->out), *folder = utf8_shell_path(j->how->out);
    char *title = mem_format("Classes of %s", j->how->files.train);
    char *command = mem_format("smallworld predict %s --text FILE", folder);
    size_t *confusion = ways_confusion(&j->ways, j->examples.classes.count, j->examples.test.class);
    const bool by_model = j->ways.partner != BY_NGRAMS;
    const outcome o = job_outcome(j);
    outcome_list(&o, list);
    const int count = outcome_mistakes(&o, &mistakes, MISTAKES);
    bool done = !by_model || (saved_open(&probe, path, err) &&
                              read_mistakes(j, mistakes, count, &some, &probe, &read, err));
    if (done) {
        const bool coloured = probe.classes <= SHOW_MAX_CLASSES;
        const show_part show = {&some, &read, coloured ? &probe : NULL, NULL, NULL};
        const classified c = {.title = title,
                              .contenders = list,
                              .contender_count = 1 + WAYS,
                              .p_value = j->ways.p_value,
                              .train = j->examples.train.texts->count,
                              .test = j->examples.test.texts->count,
                              .unlabelled = j->examples.unlabelled,
                              .classes = j->examples.classes.count,
                              .names = j->examples.classes.name,
                              .confusion = confusion,
                              .texts = j->examples.test.texts,
                              .mistakes = mistakes,
                              .mistake_count = count,
                              .command = command,
                              .show = some.count > 0 ? &show : NULL};
        done = classified_write_page(&c, page, err);
    }
    free(some.documents);
    reading_free(&read);
    if (by_model) saved_close(&probe);
    free(mistakes);
    free(confusion);
    free(command);
    free(title);
    free(folder);
    free(page);
    free(path);
    return done;
}

static bool write_results(const job *j, error *err) {
    char *path = mem_format("%s/results.json", j->how->out);
    file_writer writer;
    bool done = file_begin(&writer, path, err);
    if (done) {
        const outcome o = job_outcome(j);
        outcome_json(&o, writer.stream);
        done = file_commit(&writer, err);
    }
    free(path);
    return done;
}

bool result_write(job *j, error *err) {
    return keep_parts(j, err) && save(j, err) && check(j, err) && write_results(j, err) &&
           write_page(j, err);
}
