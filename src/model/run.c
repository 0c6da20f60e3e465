#include "model/internal.h"

#include "core/memory.h"
#include "core/philox.h"

#include <stdlib.h>

/* ---------------------------------------------------------------------------------------- input */

void model_set_text(model *m, const uint8_t *bytes, const int16_t *targets) {
    size_t positions = (size_t)m->steps * (size_t)m->columns;
    m->be->memory->upload(m->be, m->bytes, bytes, positions);
    if (targets) m->be->memory->upload(m->be, m->targets, targets, positions * sizeof *targets);
}

void model_set_labels(model *m, const int16_t *classes, const float *weights) {
    backend *be = m->be;
    const label_arrays *to = &m->labels;
    const size_t positions = (size_t)m->steps * (size_t)m->columns;
    if (!to->classes) return;
    if (!classes) { /* any class, of no weight */
        be->memory->zero(be, to->classes, positions * sizeof *classes);
        be->memory->zero(be, to->weights, positions * be->real_size);
        return;
    }
    be->memory->upload(be, to->classes, classes, positions * sizeof *classes);
    if (be->real_size == sizeof *weights) {
        be->memory->upload(be, to->weights, weights, positions * sizeof *weights);
        return;
    }
    double *wide = mem_alloc(positions, sizeof *wide);
    for (size_t i = 0; i < positions; i++) wide[i] = weights[i];
    be->memory->upload(be, to->weights, wide, positions * sizeof *wide);
    free(wide);
}

void model_set_first_stream(model *m, int first) {
    m->first_stream = first;
    for (int y = 0; y < m->layers; y++) m->layer[y].cell.dropout.first_stream = (uint32_t)first;
}

void model_drop_input(const model *m, uint64_t update, uint8_t *bytes) {
    const dropout d = dropout_with(m->config.input_dropout, (uint64_t)m->config.seed);
    if (d.threshold == 0) return;
    for (int t = 0; t < m->steps; t++) {
        uint8_t *step = bytes + (size_t)t * (size_t)m->columns;
        for (int n = 0; n < m->columns; n += 4) {
            philox_block block = philox(d.seed, (uint32_t)t, (uint32_t)(m->first_stream + n) / 4,
                                        (uint32_t)update, PHILOX_PURPOSE(PHILOX_INPUT, 0));
            for (int i = 0; i < 4 && n + i < m->columns; i++) {
                if (block.word[i] < d.threshold) step[n + i] = DROPPED_BYTE;
            }
        }
    }
}

/* ------------------------------------------------------------------------- forward and backward */

model_wgrad model_wgrad_of(const model *m, int stage) {
    stage_place at = model_stage_place(&m->config, stage);
    const struct stage *g = m->layer[at.layer].cell.stage;
    if (at.stage == STAGE_BELOW) {
        return (model_wgrad){stage_raw_gradient(g), model_state_after(m, at.layer - 1, 1).h};
    }
    const void *x = at.stage ? g[at.stage - 1].out : m->layer[at.layer].cell.h;
    return (model_wgrad){stage_raw_gradient(&g[at.stage]), x};
}

/* A layer's cell over segment k. */
static cell segment_of(const model *m, int layer, int k) {
    cell c = m->layer[layer].cell;
    int left = m->steps - k * c.steps;
    c.first_step = k * c.steps;
    if (c.steps > left) c.steps = left;
    c.bytes = m->bytes + (size_t)c.first_step * (size_t)m->columns;
    c.has_earlier_steps = k > 0;
    c.has_later_steps = k < m->segments - 1;
    return c;
}

/* Makes the states after segment k those before the next one. */
static void carry_state(model *m, int k) {
    model_carry_state(m, segment_of(m, 0, k).steps);
}

/* The place of the saved states that segment k begins with. */
static void *border(const model *m, int k) {
    return (char *)m->borders + (size_t)k * model_state_bytes(m);
}

/* A layer's outputs h[1] ... h[steps], which the layer above reads, or the head. */
static void *output_of(const model *m, int layer) {
    return model_state_after(m, layer, 1).h;
}

static void forward_table(model *m, model_layer *y) {
    backend *be = m->be;
    bool deep = m->config.cell == CELL_DEEP;
    for (int w = 0; w < TABLE_WIDTHS; w++) {
        const input_tables *in = &y->inputs[w];
        if (!in->projected) continue;
        be->products->fprop(be, m->projection_devices[w], model_operand_address(m, in->projection),
                            model_operand_address(m, y->embedding), 1, VOCABULARY, in->projected,
                            OPERAND);
    }
    for (int i = 0; deep && i < 2; i++) be->cell->activate(be, &y->tables[i], 0, 0);
    be->cell->prepare_entries(be, &y->cell);
}

void model_prepare_tables(model *m) {
    for (int y = 0; y < m->layers; y++) forward_table(m, &m->layer[y]);
}

/* Runs the layers over segment k. Without `keep`, only h and c of each step are kept. */
static void forward_layers(model *m, int k, bool keep, bool training) {
    backend *be = m->be;
    for (int y = 0; y < m->layers; y++) {
        cell c = segment_of(m, y, k);
        c.keep = keep;
        if (!training) c.dropout.threshold = 0;
        if (y > 0) {
            int s = model_below_stage(&m->config, y);
            be->products->fprop(be, m->devices[s],
                                model_operand_address(m, m->stage_parameters[s].weight),
                                output_of(m, y - 1), c.steps, c.columns, m->below, OPERAND);
        }
        be->cell->forward(be, &c);
    }
}

static void forward_logits(model *m, const cell *c) {
    m->be->products->fprop(m->be, m->head_device, model_operand_address(m, m->head_weight),
                           output_of(m, m->layers - 1), c->steps, m->columns, m->logits, REAL);
}

static void forward_head(model *m, const cell *c, void *dlogits) {
    backend *be = m->be;
    const label_arrays *labels = &m->labels;
    const size_t from = (size_t)c->first_step * (size_t)m->columns, reals = from * be->real_size;
    const softmax_loss text = {.steps = c->steps,
                               .columns = m->columns,
                               .rows = m->head_rows,
                               .classes = VOCABULARY,
                               .logits = m->logits,
                               .bias = model_value_address(m, m->head_bias),
                               .targets = m->targets + from,
                               .scale = m->text_weight,
                               .losses = (char *)m->losses + reals,
                               .dlogits = dlogits};
    forward_logits(m, c);
    be->update->softmax_cross_entropy(be, &text);
    if (!labels->classes) return;
    softmax_loss class = text;
    class.first = VOCABULARY;
    class.classes = (int)m->config.classes;
    class.bias = model_value_address(m, m->class_bias);
    class.targets = labels->classes + from;
    class.weights = (char *)labels->weights + reals;
    class.scale = m->label_weight;
    class.losses = (char *)labels->losses + reals;
    class.wrong = (char *)labels->wrong + reals;
    be->update->softmax_cross_entropy(be, &class);
}

/* Adds up the losses of all steps. */
static void sum_losses(model *m, update_report *report) {
    const size_t positions = (size_t)m->steps * (size_t)m->columns;
    const label_arrays *labels = &m->labels;
    m->be->update->sum(m->be, m->losses, positions, &report->loss);
    if (!labels->classes) return;
    m->be->update->sum(m->be, labels->losses, positions, &report->label_loss);
    m->be->update->sum(m->be, labels->weights, positions, &report->label_weight);
    m->be->update->sum(m->be, labels->wrong, positions, &report->label_wrong);
}

static void backward_table(model *m, model_layer *y) {
    backend *be = m->be;
    const bool deep = m->config.cell == CELL_DEEP;
    void *dembedding = model_gradient_address(m, y->embedding);
    bool first = true;
    for (int i = 0; deep && i < 2; i++) be->cell->activate_backward(be, &y->tables[i], 0, 0);
    for (int w = 0; w < TABLE_WIDTHS; w++) {
        const input_tables *in = &y->inputs[w];
        if (!in->projected) continue;
        const void *gradient = deep ? stage_raw_gradient(&y->tables[0].stage[0]) : in->dprojected;
        be->products->wgrad(be, m->projection_devices[w], gradient,
                            model_operand_address(m, y->embedding), 1, VOCABULARY,
                            model_gradient_address(m, in->projection), y->cell.workspace);
        be->products->dgrad(be, m->projection_devices[w], model_operand_address(m, in->projection),
                            gradient, 1, VOCABULARY, first ? dembedding : m->dembedding, REAL);
        if (!first) {
            be->update->add(be, (size_t)m->config.embedding * VOCABULARY, dembedding,
                            m->dembedding);
        }
        first = false;
    }
}

static void backward_head(model *m, const cell *c) {
    backend *be = m->be;
    be->update->row_sums(be, m->dlogits, c->steps, m->head_rows, m->columns,
                         model_gradient_address(m, m->head_bias));
    be->products->wgrad(be, m->head_device, m->dlogits, output_of(m, m->layers - 1), c->steps,
                        m->columns, model_gradient_address(m, m->head_weight), c->workspace);
    be->products->dgrad(be, m->head_device, model_operand_address(m, m->head_weight), m->dlogits,
                        c->steps, m->columns, c->dh, OPERAND);
}

/* Computes the gradient of the h of the layer below. */
static void backward_below(model *m, int layer, const cell *c) {
    int s = model_below_stage(&m->config, layer), weight = m->stage_parameters[s].weight;
    m->be->products->dgrad(m->be, m->devices[s], model_operand_address(m, weight),
                           model_wgrad_of(m, s).dy, c->steps, c->columns, c->dh, OPERAND);
}

/* Runs the cells over segment k as outside training: without dropout, keeping only h and c of each
 * step. */
static void run_segment(model *m, int k, bool head) {
    forward_layers(m, k, false, false);
    if (head) {
        const cell c = segment_of(m, 0, k);
        forward_head(m, &c, NULL);
    }
    carry_state(m, k);
}

void model_run(model *m) {
    model_prepare_tables(m);
    for (int k = 0; k < m->segments; k++) run_segment(m, k, false);
}

void model_forward(model *m) {
    model_prepare_tables(m);
    for (int k = 0; k < m->segments; k++) run_segment(m, k, true);
    sum_losses(m, m->evaluation);
}

void model_generate(model *m, sampling *state, uint8_t *text, int count) {
    for (int i = 0; i < count; i++) {
        run_segment(m, 0, false);
        forward_logits(m, &m->layer[0].cell);
        m->be->update->sample(m->be, m->logits, model_value_address(m, m->head_bias), m->batch,
                              m->columns, state, text, m->bytes);
    }
}

/* ----------------------------------------------------------------------------------- the update */

static void recompute_segment(model *m, int k) {
    model_begin_with_state(m, border(m, k));
    model_prepare_tables(m); /* the backward pass of their layer norm overwrote them */
    forward_layers(m, k, true, true);
}

static void head_of_segment(model *m, int k) {
    cell c = segment_of(m, 0, k);
    model_bind_gradients(m, k == m->segments - 1 ? m->gradient : m->share);
    forward_head(m, &c, m->dlogits);
    backward_head(m, &c);
    if (k == 0) sum_losses(m, m->report);
}

static void stage_wgrad(model *m, int s, const cell *c) {
    const model_wgrad in = model_wgrad_of(m, s);
    m->be->products->wgrad(m->be, m->devices[s], in.dy, in.x, c->steps, c->columns,
                           model_gradient_address(m, m->stage_parameters[s].weight), c->workspace);
}

static void backward_weights(model *m, int k) {
    const cell c = segment_of(m, 0, k);
    for (int s = 0; s < model_stages(&m->config); s++) stage_wgrad(m, s, &c);
    if (m->into == m->share) m->be->update->add(m->be, m->parameters.total, m->gradient, m->share);
}

static void backward_segment(model *m, int k) {
    for (int y = m->layers - 1; y >= 0; y--) {
        cell c = segment_of(m, y, k);
        m->be->cell->backward(m->be, &c);
        if (y > 0) backward_below(m, y, &c);
        backward_table(m, &m->layer[y]);
    }
    backward_weights(m, k);
    if (m->segments == 1) {
        carry_state(m, k);
    } else if (k == 0) {
        model_begin_with_state(m, m->carry);
    }
}

/* Of an update that is timed, a mark before each part. */
static void begin_part(model *m, update_part part) {
    if (!m->timing) return;
    m->timing->part[m->timing->count] = part;
    m->be->memory->mark(m->be, m->timing->count++);
}

/* Forward over all segments, then head and backward from the last one to the first. Only the last
 * segment keeps its activations; of the others h and c remain, until the next one reuses their
 * memory, so they are computed again. */
static void compute_gradient(model *m) {
    const int last = m->segments - 1;
    for (int k = 0; k <= last; k++) {
        begin_part(m, UPDATE_FORWARD);
        if (k == 0) model_prepare_tables(m);
        if (k < last) model_keep_state(m, 0, border(m, k));
        forward_layers(m, k, k == last, true);
        if (k < last) {
            carry_state(m, k);
        } else if (k > 0) { /* saved, as running the others again overwrites it */
            model_keep_state(m, segment_of(m, 0, k).steps, m->carry);
        }
    }
    for (int k = last; k >= 0; k--) {
        if (k < last) {
            begin_part(m, UPDATE_RECOMPUTE);
            recompute_segment(m, k);
        }
        begin_part(m, UPDATE_HEAD);
        head_of_segment(m, k);
        begin_part(m, UPDATE_BACKWARD);
        backward_segment(m, k);
    }
}

/* Where the optimiser leaves bf16 copies of the weights; the weights themselves: nowhere. */
static void *rounded_weights(const model *m) {
    return m->be->precision == BF16 ? m->operands : m->weights;
}

/* After the optimiser: the operands that are no bf16 copies. */
static void remake_operands(model *m) {
    if (m->rounded && m->be->precision != BF16) {
        m->be->update->round(m->be, m->parameters.total, m->weights, m->rounded);
    }
    model_norm_rows(m);
}

/* The dense weights of stages, after Adam has gone past them. */
static void step_muon(model *m, int s) {
    const backend *be = m->be;
    const int weight = m->stage_parameters[s].weight;
    const muon_matrix w = {
        .rows = (int)layout_rows(m->layouts[s]),
        .columns = m->layouts[s]->in_block,
        .square = m->squares[s],
        .weights = model_address(m, m->weights, be->real_size, weight),
        .momentum = model_address(m, m->moment1, be->real_size, weight),
        .average = model_address(m, m->average, be->real_size, weight),
        .gradient = model_address(m, m->gradient, be->real_size, weight),
        .operands = model_address(m, rounded_weights(m), be->operand_size, weight),
        .workspace = m->layer[0].cell.workspace,
    };
    muon_step(m->be, &w, m->arguments, m->report);
}

void model_update(model *m) {
    if (m->timing) m->timing->count = 0;
    compute_gradient(m);
    if (m->be->ranks) m->be->update->sum_ranks(m->be, m->parameters.total, m->gradient);
    begin_part(m, UPDATE_OPTIMISER);
    model_norm_rows_backward(m);
    m->be->update->adam(m->be, m->parameters.total, m->weights, m->gradient, m->moment1, m->moment2,
                        m->average, rounded_weights(m), m->groups, m->arguments, m->report);
    for (int s = 0; s < model_stages(&m->config); s++) {
        if (m->squares[s]) step_muon(m, s);
    }
    remake_operands(m);
    if (m->timing) m->be->memory->mark(m->be, m->timing->count);
}

void model_gradient(model *m) {
    compute_gradient(m);
    model_norm_rows_backward(m);
}

void model_adapt(model *m) {
    model_gradient(m);
    m->be->update->adapt(m->be, m->parameters.total, m->weights, m->gradient, m->average,
                         m->moment2, rounded_weights(m), m->arguments);
    remake_operands(m);
}
