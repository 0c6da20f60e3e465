#include "train/options.h"

#include "core/file.h"
#include "core/integer.h"
#include "core/log.h"
#include "core/memory.h"
#include "data/files.h"
#include "graph/graph.h"
#include "model/size.h"

#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* clang-format off */
#define AT(member) offsetof(options, member)
#define R CONFIG_RESUMABLE
#define M CONFIG_IN_MODEL
#define L CONFIG_LATER
#define S (CONFIG_IN_MODEL | CONFIG_STRUCTURE)

enum { MAX_HIDDEN = 1 << 20, MAX_COUNT = 1 << 16, MAX_THREADS = 1024 };

/* path, type, offset, default, minimum, maximum, choices, help, flags */
const config_key option_keys[] = {
    {"run.seed", CONFIG_INTEGER, AT(model.seed), "1", 0, HUGE_VAL, NULL,
     "seed of the graphs, the initial weights, the order of the data and dropout", M},
    {"run.device", CONFIG_CHOICE, AT(run.device), "auto", 0, 0, DEVICES,
     "processor that computes; auto takes the GPU if there is one that works, else the CPU", R},
    {"run.precision", CONFIG_CHOICE, AT(run.precision), "auto", 0, 0, PRECISIONS,
     "number format of the products' operands; auto is bf16 on a GPU and fp32 on the CPU", R},
    {"run.threads", CONFIG_INTEGER, AT(run.threads), "0", 0, MAX_THREADS, NULL,
     "threads of the CPU backend; 0 means $OMP_NUM_THREADS or, without it, as many as are fastest, "
     "up to one for each processor", R},

    {"data.train", CONFIG_LIST, AT(data.train), NULL, 0, 0, NULL,
     "files to train on, folders of them, or .list files, which name one a line; " PATHS_LINES
     " files hold one document a line, LABEL<TAB>TEXT, .csv and .jsonl files one a row, and any "
     "other file is raw text; required", 0},
    {"data.valid", CONFIG_LIST, AT(data.valid), NULL, 0, 0, NULL,
     "files to validate on; if there are none, data.valid_fraction of the training text is split "
     "off", 0},
    {"data.valid_fraction", CONFIG_NUMBER, AT(data.valid_fraction), "0.01", 0, 1, NULL,
     "share of the training documents that is split off for validation, chosen by a hash of their"
     " text; of raw text, its end", CONFIG_BELOW_MAXIMUM},
    {"data.exclude", CONFIG_LIST, AT(data.exclude), NULL, 0, 0, NULL,
     "files of documents that must not be trained or validated on; documents with the same text "
     "are left out", 0},
    {"data.html_entities", CONFIG_BOOLEAN, AT(data.reading.html_entities), "false", 0, 0, NULL,
     "whether HTML entities in documents are decoded", M},
    {"data.text_column", CONFIG_STRING, AT(data.reading.text_column), NULL, 0, 0, NULL,
     "column of a table that holds the texts; unset, it is found by usual names: text, review ...",
     0},
    {"data.label_column", CONFIG_STRING, AT(data.reading.label_column), NULL, 0, 0, NULL,
     "column of a table that holds the labels; unset, it is found by usual names: label, class ...",
     0},
    {"data.class_folders", CONFIG_BOOLEAN, AT(data.reading.class_folders), "false", 0, 0, NULL,
     "whether the files in a folder are documents, each of the class that its folder is named "
     "after, and no raw text", 0},
    {"data.cache", CONFIG_STRING, AT(data.reading.cache), NULL, 0, 0, NULL,
     "folder on whose disk the text lies unpacked while it is used; unset, $TMPDIR or /var/tmp", R},

    {"model.cell", CONFIG_CHOICE, AT(model.cell), "lstm", 0, 0, CELL_KINDS,
     "recurrent cell: an LSTM, a multiplicative LSTM, or the deep cell with several products for "
     "each byte", S},
    {"model.internal_steps", CONFIG_INTEGER, AT(model.internal_steps), "2", 2, CELL_MAX_STAGES - 1,
     NULL,
     "number of products that the deep cell computes for each byte before its gates", S},
    {"model.layers", CONFIG_INTEGER, AT(model.layers), "1", 1, MAX_LAYERS, NULL,
     "number of layers, each a cell of its own that also reads the hidden state of the layer below",
     S | L},
    {"model.hidden", CONFIG_INTEGER, AT(model.hidden), "1024", 8, MAX_HIDDEN, NULL,
     "number of hidden units of a layer; a multiple of model.block", S},
    {"model.hubs", CONFIG_INTEGER, AT(model.hubs), "0", 0, MAX_HIDDEN, NULL,
     "number of hubs, stateless units through which the cells of an mlstm or deep cell speak with "
     "each other: the width of its internal stages, a multiple of model.block and of "
     "model.input_stride, at most model.hidden; 0 means as many as that. They pay from a million "
     "or so parameters on", S | L},
    {"model.block", CONFIG_INTEGER, AT(model.block), "32", 8, 128, NULL,
     "side of a block of weights in units, which is the size of a node of the graph: 8, 16, 32, "
     "64 or 128", S},
    {"model.embedding", CONFIG_INTEGER, AT(model.embedding), "64", 1, 4096, NULL,
     "number of features of a byte's embedding", M},
    {"model.graph", CONFIG_CHOICE, AT(model.graph), "core_periphery", 0, 0, GRAPH_KINDS,
     "graph that says which blocks of the recurrent weights exist", S},
    {"model.graph_file", CONFIG_STRING, AT(model.graph_file), NULL, 0, 0, NULL,
     "file with the graph for model.graph: file, an edge list or a .npy mask [output block][input"
     " block]; with model.hubs [cells' block][hubs' block], and hubs read the cells that read "
     "them", 0},
    {"model.degree", CONFIG_INTEGER, AT(model.degree), NULL, 1, GRAPH_MAX_NODES, NULL,
     "mean number of neighbours of a node, itself not counted; sets the graph's size instead of "
     "model.density", S},
    {"model.density", CONFIG_NUMBER, AT(model.density), NULL, 0, 1, NULL,
     "share of all blocks that exist, self-blocks included; 0.1 if model.degree is unset too",
     S | CONFIG_ABOVE_MINIMUM},
    {"model.rewire", CONFIG_NUMBER, AT(model.rewire), "0.1", 0, 1, NULL,
     "probability that an edge of a Watts–Strogatz graph is rewired", S},
    {"model.core", CONFIG_NUMBER, AT(model.core), "0", 0, 1, NULL,
     "share of the nodes that form the core of a core_periphery graph, where each is joined to "
     "every other; 0 gives it half of the blocks but the self-blocks", S | L},
    {"model.core_reads", CONFIG_NUMBER, AT(model.core_reads), "0.05", 0, 1, NULL,
     "share of the blocks outside the core, self-blocks not counted, "
     "through which core nodes read periphery nodes", S | L},
    {"model.periphery_reads", CONFIG_NUMBER, AT(model.periphery_reads), "0.75", 0, 1, NULL,
     "share of the same blocks through which periphery nodes read core nodes; the "
     "remaining blocks join periphery nodes to each other", S | L},
    {"model.periphery", CONFIG_CHOICE, AT(model.periphery), "random", 0, 0, PERIPHERY_KINDS,
     "graph that joins the periphery nodes of a core_periphery graph", S | L},
    {"model.parameters", CONFIG_NUMBER, AT(parameters), NULL, 0, 1e15, NULL,
     "number of trained parameters to aim for; finds model.hidden if model.density or "
     "model.degree is set or the graph is dense, else model.density; with model.hubs and "
     "model.hidden it finds model.hubs anew; the run's config.yaml holds what was found",
     CONFIG_ABOVE_MINIMUM},
    {"model.norm", CONFIG_CHOICE, AT(model.norm), "layer", 0, 0, NORM_KINDS,
     "what is normalised: the rows of the gates' weights (weight norm), and internal steps over "
     "their units; both gates and internal steps over their units (layer norm); or nothing", S},
    {"model.coupled_gates", CONFIG_BOOLEAN, AT(model.coupled_gates), "false", 0, 0, NULL,
     "whether the input gate is 1 minus the forget gate, which leaves three gates", S | L},
    {"model.input_stride", CONFIG_INTEGER, AT(model.input_stride), "1", 1, MAX_HIDDEN, NULL,
     "distance between the units that the input feeds; 1 feeds every unit", M},
    {"model.output_stride", CONFIG_INTEGER, AT(model.output_stride), "1", 1, MAX_HIDDEN, NULL,
     "distance between the units that the head reads; 1 reads every unit", M},
    {"model.dropout", CONFIG_NUMBER, AT(model.dropout), "0", 0, 1, NULL,
     "probability that a unit's update u is dropped in training", M | CONFIG_BELOW_MAXIMUM},
    {"model.input_dropout", CONFIG_NUMBER, AT(model.input_dropout), "0", 0, 1, NULL,
     "probability that a byte of the input is dropped in training: byte 0 is read in its place",
     M | CONFIG_BELOW_MAXIMUM | L},
    {"model.init_input", CONFIG_NUMBER, AT(model.init_input), "1", 0, 1e3, NULL,
     "standard deviation of the input's initial embedding, and so of what a byte adds to a unit",
     M | L | CONFIG_ABOVE_MINIMUM},
    {"model.init_noise", CONFIG_NUMBER, AT(model.init_noise), "0", 0, 1e3, NULL,
     "standard deviation of the initial recurrent weights outside self-blocks, which start as the"
     " identity", M},
    {"model.init_gain", CONFIG_NUMBER, AT(model.init_gain), "1", 0, 1e3, NULL,
     "initial gain of the gates with model.norm: weight", M | L | CONFIG_ABOVE_MINIMUM},
    {"model.forget_bias", CONFIG_NUMBER, AT(model.forget_bias), "1", -1e3, 1e3, NULL,
     "initial bias of the forget gate", M},

    {"train.batch", CONFIG_INTEGER, AT(train.batch), "64", 1, MAX_COUNT, NULL,
     "number of streams of text that are read side by side", M},
    {"train.bptt", CONFIG_INTEGER, AT(train.bptt), "128", 1, MAX_COUNT, NULL,
     "number of bytes of each stream in an update, through which gradients flow back", M},
    {"train.recompute", CONFIG_INTEGER, AT(train.recompute), "1", 1, MAX_COUNT, NULL,
     "number of segments that an update's bytes are cut into; with more than one, only one "
     "segment's activations are kept at a time, and forward runs twice", 0},
    {"train.steps", CONFIG_INTEGER, AT(train.steps), NULL, 1, 1e12, NULL,
     "number of updates after which the run ends; the first limit that is reached ends it", R},
    {"train.epochs", CONFIG_NUMBER, AT(train.epochs), NULL, 0, 1e6, NULL,
     "number of passes over the training text after which the run ends; 1 if no limit is set",
     R | CONFIG_ABOVE_MINIMUM},
    {"train.minutes", CONFIG_NUMBER, AT(train.minutes), NULL, 0, 1e6, NULL,
     "minutes after which the run ends, from the first update on; the number of updates that fit"
     " is found again and again", R | CONFIG_ABOVE_MINIMUM},
    {"train.optimizer", CONFIG_CHOICE, AT(train.optimizer), "adam", 0, 0, OPTIMIZERS,
     "what trains the dense recurrent weights: Adam, or Muon, whose steps are the momentum made "
     "orthogonal; Adam trains all other weights", 0},
    {"train.lr", CONFIG_NUMBER, AT(train.lr), "0.002", 0, 1e3, NULL,
     "largest learning rate of Adam", CONFIG_ABOVE_MINIMUM},
    {"train.muon_lr", CONFIG_NUMBER, AT(train.muon_lr), "0.018", 0, 1e3, NULL,
     "largest learning rate of Muon, which rises and falls as train.lr does",
     CONFIG_ABOVE_MINIMUM},
    {"train.muon_momentum", CONFIG_NUMBER, AT(train.muon_momentum), "0.8", 0, 0.999999, NULL,
     "decay of Muon's momentum", 0},
    {"train.lr_final", CONFIG_NUMBER, AT(train.lr_final), "0", 0, 1, NULL,
     "learning rate to which the decay would come one update after the last, as a share of "
     "train.lr", 0},
    {"train.lr_head", CONFIG_NUMBER, AT(train.lr_head), "1", 0, 1e3, NULL,
     "learning rate of head.weight, as a multiple of the others'", 0},
    {"train.schedule", CONFIG_CHOICE, AT(train.schedule), "linear", 0, 0, SCHEDULES,
     "shape of the learning rate's decay after warm-up", 0},
    {"train.warmup", CONFIG_INTEGER, AT(train.warmup), "100", 0, 1e9, NULL,
     "number of updates over which the learning rate rises from 0", 0},
    {"train.beta1", CONFIG_NUMBER, AT(train.beta1), "0.9", 0, 0.999999, NULL,
     "decay of Adam's first moment", 0},
    {"train.beta2", CONFIG_NUMBER, AT(train.beta2), "0.98", 0, 0.999999, NULL,
     "decay of Adam's second moment", 0},
    {"train.epsilon", CONFIG_NUMBER, AT(train.epsilon), "1e-8", 1e-30, 1, NULL,
     "constant that Adam adds to the root of the second moment", 0},
    {"train.weight_decay", CONFIG_NUMBER, AT(train.weight_decay), "0", 0, 1e3, NULL,
     "decoupled weight decay: in each update the recurrent weights lose the learning rate times "
     "this share of themselves", 0},
    {"train.input_decay", CONFIG_NUMBER, AT(train.input_decay), "0", 0, 1e3, NULL,
     "decoupled weight decay of the input's embedding and projections", 0},
    {"train.clip", CONFIG_NUMBER, AT(train.clip), "1", 0, 1e9, NULL,
     "largest norm of the gradient, to which a larger one is scaled down; 0 turns clipping off", 0},
    {"train.average", CONFIG_NUMBER, AT(train.average), "0.999", 0, 1, NULL,
     "decay of the moving average of the weights, which is what is evaluated and saved",
     CONFIG_BELOW_MAXIMUM},
    {"train.text_weight", CONFIG_NUMBER, AT(train.text_weight), "1", 0, 1e3, NULL,
     "weight of the text's loss, that of predicting each next byte", 0},
    {"train.label_weight", CONFIG_NUMBER, AT(train.label_weight), "0", 0, 1e3, NULL,
     "weight of the labels' loss: at every byte of a document with a label, the more the later it "
     "is, the model is asked for the label too; it then learns to classify, and a tenth of these "
     "documents is held out; 0 makes nothing of labels", 0},
    {"train.class_weight", CONFIG_CHOICE, AT(train.class_weight), "none", 0, 0, CLASS_WEIGHTS,
     "whether documents of a rare class weigh more in the labels' loss, also in validation, so "
     "that all classes count alike (balanced)", 0},
    {"train.log_every", CONFIG_INTEGER, AT(train.log_every), "50", 1, 1e9, NULL,
     "number of updates between two lines of metrics.jsonl", R},
    {"train.valid_every", CONFIG_INTEGER, AT(train.valid_every), "1000", 1, 1e9, NULL,
     "number of updates between two validations; the run ends with one too", R},
    {"train.valid_bytes", CONFIG_INTEGER, AT(train.valid_bytes), "1000000", 0, 1e15, NULL,
     "number of bytes of validation text that are scored, from its beginning; 0 scores all", 0},
    {"train.checkpoint_minutes", CONFIG_NUMBER, AT(train.checkpoint_minutes), "10", 0, 1e6, NULL,
     "minutes between two saves, also of the best model; what a killed run loses at most",
     R | CONFIG_ABOVE_MINIMUM},
    {"train.init", CONFIG_STRING, AT(train.init), NULL, 0, 0, NULL,
     "checkpoint whose weights the run starts from", 0},
};const int option_count = sizeof option_keys / sizeof option_keys[0];
/* clang-format on */

/* --------------------------------------------------------------------------------- lifetime */

void options_begin(options *o) {
    memset(o, 0, sizeof *o);
    config_begin(&o->config, option_keys, option_count, o);
}

void options_free(options *o) {
    classes_free(&o->classes);
    config_end(&o->config);
}

/* Replaces a file name in a config by that of a file beside the config, if only the latter exists.
 */
static void look_beside(const char *config, char **name) {
    const char *slash = strrchr(config, '/');
    if (!slash || !**name || **name == '/' || file_exists(*name)) return;
    char *beside = mem_format("%.*s/%s", (int)(slash - config), config, *name);
    if (file_exists(beside)) {
        free(*name);
        *name = beside;
    } else {
        free(beside);
    }
}

static void look_beside_config(options *o, const char *config) {
    config_list *lists[] = {&o->data.train, &o->data.valid, &o->data.exclude};
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < lists[i]->count; k++) look_beside(config, &lists[i]->items[k]);
    }
    look_beside(config, &o->model.graph_file);
    look_beside(config, &o->train.init);
}

bool options_load(options *o, const char *file, char *const *assignments, int count, error *err) {
    if (!config_load(&o->config, file, err)) return false;
    look_beside_config(o, file);
    for (int i = 0; i < count; i++) {
        if (!config_assign(&o->config, assignments[i], err)) return false;
    }
    return options_check(o, err);
}

/* ----------------------------------------------------------------------------------- checks */

/* With `--set model.graph=dense`, drops the size that the config gives for another kind of graph,
 * so that this one assignment makes a config's dense twin. */
static void drop_size(config *c) {
    static const char *const keys[] = {"model.degree", "model.density"};
    for (int i = 0; i < 2; i++) {
        if (!config_is_assigned(c, keys[i])) config_unset(c, keys[i]);
    }
}

/* Cells and hubs are joined densely unless the config says otherwise. */
static bool check_hubs(options *o, error *err) {
    config *c = &o->config;
    model_config *m = &o->model;
    if (m->hubs == 0) return true;
    if (m->cell == CELL_LSTM) {
        return config_refuse(c, err, "model.hubs",
                             "has no meaning for model.cell: lstm, which has no internal stage");
    }
    if (!config_is_set(c, "model.graph")) m->graph = GRAPH_DENSE;
    if (m->graph != GRAPH_DENSE && m->graph != GRAPH_RANDOM && m->graph != GRAPH_WATTS_STROGATZ &&
        m->graph != GRAPH_FILE) {
        return config_refuse(c, err, "model.graph",
                             "expected dense, random, watts_strogatz or file with model.hubs");
    }
    if (m->degree && (m->graph == GRAPH_RANDOM || m->graph == GRAPH_WATTS_STROGATZ)) {
        return config_refuse(c, err, "model.degree",
                             "has no meaning with model.hubs; expected model.density");
    }
    return true;
}

static bool check_graph(options *o, error *err) {
    config *c = &o->config;
    model_config *m = &o->model;
    bool sized = m->graph != GRAPH_DENSE && m->graph != GRAPH_FILE;
    if (!sized && config_is_assigned(c, "model.graph")) drop_size(&o->config);
    const char *size = m->degree ? "model.degree" : "model.density";
    if (m->degree && m->density > 0) {
        return config_refuse(c, err, "model.density",
                             "set model.degree or model.density, not both");
    }
    if (!sized && (m->degree || m->density > 0)) {
        return config_refuse(c, err, size, "has no meaning for model.graph: %s",
                             m->graph == GRAPH_DENSE ? "dense" : "file");
    }
    if (m->graph == GRAPH_FILE && *m->graph_file == '\0') {
        return config_refuse(c, err, "model.graph", "file: expected model.graph_file to name it");
    }
    if (m->graph != GRAPH_FILE && *m->graph_file) {
        return config_refuse(c, err, "model.graph_file",
                             "has a meaning only for model.graph: file");
    }
    bool found = o->parameters > 0; /* by match_parameters */
    if (sized && !found && !m->degree && m->density == 0) m->density = 0.1;
    return true;
}

/* Finds the width or density that gives model.parameters parameters, and sets it. */
static bool match_parameters(options *o, error *err) {
    config *c = &o->config;
    model_config *m = &o->model;
    if (o->parameters == 0) return true;
    if (m->graph == GRAPH_FILE) {
        return config_refuse(c, err, "model.parameters", "has no meaning for model.graph: file");
    }
    const char *size = m->degree ? "model.degree" : "model.density";
    bool sized = m->graph != GRAPH_DENSE && (m->degree || m->density > 0);
    if (sized && m->hubs == 0 && config_is_set(c, "model.hidden")) {
        return config_refuse(c, err, "model.parameters",
                             "expected model.hidden or %s to be left open, but both are set", size);
    }
    error reason;
    double parameters = o->parameters;
    bool width = sized || m->graph == GRAPH_DENSE;
    bool hubs = m->hubs > 0 && config_is_set(c, "model.hidden");
    if (hubs && m->graph != GRAPH_DENSE && m->density == 0) m->density = 0.1;
    if (!(hubs    ? model_match_hubs
          : width ? model_match_width
                  : model_match_density)(m, parameters, &reason)) {
        return config_refuse(c, err, "model.parameters", "%s", error_message(&reason));
    }
    config_unset(c, "model.parameters");
    return true;
}

static bool check_block(const options *o, error *err) {
    long long block = o->model.block;
    if ((block & (block - 1)) == 0) return true;
    return config_refuse(&o->config, err, "model.block", "expected 8, 16, 32, 64 or 128, got %lld",
                         block);
}

/* Checks the layers before the model's size is computed. */
static bool check_layers(const options *o, error *err) {
    int most = model_most_layers(&o->model);
    if (o->model.layers <= most) return true;
    return config_refuse(&o->config, err, "model.layers",
                         "expected at most %d with this cell, which has %d patterns then, got %lld",
                         most, CELL_MAX_STAGES, (long long)o->model.layers);
}

static bool check_model(const options *o, error *err) {
    const config *c = &o->config;
    const model_config *m = &o->model;
    long long hidden = m->hidden, block = m->block;
    if (m->hubs > hidden || m->hubs % block || m->hubs % m->input_stride) {
        return config_refuse(c, err, "model.hubs",
                             "expected a multiple of model.block %lld and model.input_stride %lld, "
                             "at most model.hidden %lld, got %lld",
                             block, (long long)m->input_stride, hidden, (long long)m->hubs);
    }
    if (hidden % block) {
        return config_refuse(c, err, "model.hidden",
                             "expected a multiple of model.block %lld, got %lld", block, hidden);
    }
    if (hidden / block > GRAPH_MAX_NODES) {
        return config_refuse(c, err, "model.hidden", "expected at most %d blocks of %lld, got %lld",
                             GRAPH_MAX_NODES, block, hidden / block);
    }
    if (hidden % m->input_stride) {
        return config_refuse(c, err, "model.input_stride",
                             "expected a divisor of model.hidden %lld", hidden);
    }
    if (hidden % m->output_stride) {
        return config_refuse(c, err, "model.output_stride",
                             "expected a divisor of model.hidden %lld", hidden);
    }
    return true;
}

static bool check_files(options *o, error *err) {
    const config_list *lists[] = {&o->data.train, &o->data.valid, &o->data.exclude};
    static const char *const keys[] = {"data.train", "data.valid", "data.exclude"};
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < lists[i]->count; k++) {
            if (*lists[i]->items[k]) continue;
            return config_refuse(&o->config, err, keys[i], "expected names of files, got ''");
        }
    }
    return true;
}

static bool check_losses(const options *o, error *err) {
    const train_options *t = &o->train;
    if (t->label_weight > 0 || t->text_weight > 0) return true;
    return config_refuse(&o->config, err, "train.text_weight",
                         "expected above 0, or train.label_weight above 0");
}

bool options_check(options *o, error *err) {
    train_options *t = &o->train;
    if (!check_files(o, err)) return false;
    if (!check_block(o, err) || !check_hubs(o, err) || !check_graph(o, err)) return false;
    if (!check_layers(o, err) || !match_parameters(o, err)) return false;
    if (!check_model(o, err)) return false;
    if (o->data.valid.count && config_is_set(&o->config, "data.valid_fraction") &&
        o->data.valid_fraction > 0) {
        return config_refuse(&o->config, err, "data.valid_fraction",
                             "cannot be set together with data.valid");
    }
    if (o->data.valid.count) o->data.valid_fraction = 0;
    if (t->valid_bytes == 1) {
        return config_refuse(&o->config, err, "train.valid_bytes",
                             "expected 0 or at least 2, of which one is predicted, got 1");
    }
    if (t->recompute > t->bptt) {
        return config_refuse(&o->config, err, "train.recompute",
                             "expected at most train.bptt = %lld, got %lld", (long long)t->bptt,
                             (long long)t->recompute);
    }
    if (!check_losses(o, err)) return false;
    if (t->steps == 0 && t->epochs == 0 && t->minutes == 0) t->epochs = 1;
    return true;
}

bool options_graphs(const options *o, graph *graphs[CELL_MAX_STAGES], error *err) {
    if (model_graphs(&o->model, graphs, err)) return true;
    error reason = *err;
    return *reason.key != '\0' &&
           config_refuse(&o->config, err, reason.key, "%s", error_message(&reason));
}

model_use options_use(const options *o) {
    return o->train.optimizer == OPTIMIZER_MUON ? MODEL_MUON : MODEL_TRAINING;
}

/* --------------------------------------------------------------------------------- metadata */

int options_to_metadata(const options *o, metadata *entries) {
    int count = 0;
    for (int i = 0; i < option_count; i++) {
        if (!(option_keys[i].flags & CONFIG_IN_MODEL)) continue;
        metadata *entry = &entries[count++];
        char *text = config_text(&o->config, &option_keys[i]);
        snprintf(entry->key, sizeof entry->key, "%s", option_keys[i].path);
        snprintf(entry->value, sizeof entry->value, "%s", text);
        free(text);
    }
    return count;
}

const char *options_other_structure(const options *ours, const options *theirs) {
    for (int i = 0; i < option_count; i++) {
        if (!(option_keys[i].flags & CONFIG_STRUCTURE)) continue;
        char *mine = config_text(&ours->config, &option_keys[i]);
        char *other = config_text(&theirs->config, &option_keys[i]);
        const bool same = strcmp(mine, other) == 0;
        free(mine);
        free(other);
        if (!same) return option_keys[i].path;
    }
    return NULL;
}

bool options_from_metadata(options *o, const safetensors *file, error *err) {
    for (int i = 0; i < option_count; i++) {
        const config_key *key = &option_keys[i];
        if (!(key->flags & CONFIG_IN_MODEL)) continue;
        const char *text = safetensors_metadata(file, key->path);
        if (!text && key->flags & CONFIG_LATER) continue; /* the file is older than the key */
        if (!text) return error_set(err, "%s: its metadata has no %s", file->path, key->path);
        if (!config_set(&o->config, key->path, text, file->path, err)) return false;
    }
    /* Checkpoints hold the patterns as tensors, so the file's name is not recorded. */
    if (o->model.graph == GRAPH_FILE) {
        return config_set(&o->config, "model.graph_file", "(in the checkpoint)", file->path, err) &&
               options_check(o, err);
    }
    return options_check(o, err);
}

/* Ranks that mpirun has bound to processors of their own need not share them. */
static int threads_of_rank(const ranks *r) {
    const int processors = omp_get_num_procs();
    if (!r || processors < sysconf(_SC_NPROCESSORS_ONLN)) return 0;
    return (int)integer_max(1, processors / r->local_count);
}

/* Ranks compute alike, or their results would differ. */
static backend *same_kind(backend *be, ranks *r, error *err) {
    if (!be || !r) return be;
    const int64_t kind = backend_on_gpu(be) << 8 | (int)be->precision;
    if (ranks_same(r, kind, "its device or precision", err)) return be;
    be->memory->destroy(be);
    return NULL;
}

backend *options_backend(const run_options *run, error *err) {
    static const precision named[] = {
        [PRECISION_AUTO] = FP32, [PRECISION_FP32] = FP32, [PRECISION_BF16] = BF16};
    precision wanted = named[run->precision];
    static int usual; /* $OMP_NUM_THREADS, or the number of processors */
    if (usual == 0) usual = (int)integer_min(MAX_THREADS, omp_get_max_threads());
    int threads = (int)run->threads;
    if (threads == 0 && getenv("OMP_NUM_THREADS")) threads = usual;
    /* Work on the host outside the backend, such as first weights and the probe, uses as many
     * threads. */
    const int share = threads_of_rank(run->ranks);
    omp_set_num_threads(threads > 0 ? threads : share > 0 ? share : usual);
    if (run->device != DEVICE_CPU) {
        precision on_gpu = run->precision == PRECISION_AUTO ? BF16 : wanted;
        backend *be = backend_cuda(on_gpu, run->ranks ? run->ranks->gpu : 0, err);
        if (be || run->device == DEVICE_CUDA) return same_kind(be, run->ranks, err);
        if (backend_cuda_expected() && run->ranks) return NULL; /* others may have found one */
        if (backend_cuda_expected()) log_warning("%s; running on the CPU instead", err->text);
    }
    return same_kind(backend_cpu(wanted, threads), run->ranks, err);
}
