#include "model/internal.h"

#include "core/memory.h"

#include <stdlib.h>
#include <string.h>

size_t model_plane_bytes(const model *m, size_t element) {
    return (size_t)m->config.hidden * (size_t)m->columns * element;
}

size_t model_state_bytes(const model *m) {
    size_t of_one =
        model_plane_bytes(m, m->be->operand_size) + model_plane_bytes(m, m->be->real_size);
    return (size_t)m->layers * of_one;
}

static size_t state_element(const model *m, model_state_kind kind) {
    return kind == MODEL_H ? m->be->operand_size : m->be->real_size;
}

static void *layer_state(const model *m, int layer, model_state_kind kind, int step) {
    const cell *c = &m->layer[layer].cell;
    size_t plane = model_plane_bytes(m, state_element(m, kind));
    return (char *)(kind == MODEL_H ? c->h : c->c) + (size_t)step * plane;
}

state_address model_state_after(const model *m, int layer, int step) {
    return (state_address){layer_state(m, layer, MODEL_H, step),
                           layer_state(m, layer, MODEL_C, step)};
}

void *model_state(const model *m, model_state_kind kind, int step) {
    return layer_state(m, m->layers - 1, kind, step);
}

void model_zero_state(model *m) {
    for (int y = 0; y < m->layers; y++) {
        for (model_state_kind kind = MODEL_H; kind <= MODEL_C; kind++) {
            m->be->memory->zero(m->be, layer_state(m, y, kind, 0),
                                model_plane_bytes(m, state_element(m, kind)));
        }
    }
}

void model_copy_state(const model *m, model_state_kind kind, float *values) {
    size_t hidden = (size_t)m->config.hidden, columns = (size_t)m->columns;
    size_t batch = (size_t)m->batch, size = state_element(m, kind);
    char *raw = mem_alloc(hidden * columns, size);
    for (int y = 0; y < m->layers; y++) {
        m->be->memory->download(m->be, raw, layer_state(m, y, kind, 0), hidden * columns * size);
        for (size_t u = 0; u < hidden; u++) {
            for (size_t n = 0; n < batch; n++) {
                uint32_t bits = 0;
                memcpy((char *)&bits + 4 - size, raw + (u * columns + n) * size, size);
                memcpy(&values[u * batch + n], &bits, sizeof bits);
            }
        }
        values += hidden * batch;
    }
    free(raw);
}

void model_set_state(model *m, model_state_kind kind, const float *values) {
    size_t hidden = (size_t)m->config.hidden, columns = (size_t)m->columns;
    size_t batch = (size_t)m->batch, size = state_element(m, kind);
    char *raw = mem_alloc(hidden * columns, size);
    for (int y = 0; y < m->layers; y++) {
        for (size_t u = 0; u < hidden; u++) {
            for (size_t n = 0; n < batch; n++) {
                uint32_t bits;
                memcpy(&bits, &values[u * batch + n], sizeof bits);
                if (size == 2) bits += 0x7FFF + (bits >> 16 & 1); /* to nearest even */
                memcpy(raw + (u * columns + n) * size, (char *)&bits + 4 - size, size);
            }
        }
        m->be->memory->upload(m->be, layer_state(m, y, kind, 0), raw, hidden * columns * size);
        values += hidden * batch;
    }
    free(raw);
}

/* Copies a layer's state between places of h and c. */
static void copy_state(model *m, state_address to, state_address from) {
    m->be->memory->copy(m->be, to.h, from.h, model_plane_bytes(m, m->be->operand_size));
    m->be->memory->copy(m->be, to.c, from.c, model_plane_bytes(m, m->be->real_size));
}

/* The place of a layer's state in an array of all layers' states: each one's h, then c. */
static state_address state_in(const model *m, int layer, void *array) {
    char *h = (char *)array + model_state_bytes(m) / (size_t)m->layers * (size_t)layer;
    return (state_address){h, h + model_plane_bytes(m, m->be->operand_size)};
}

void model_keep_state(model *m, int step, void *to) {
    for (int y = 0; y < m->layers; y++) {
        copy_state(m, state_in(m, y, to), model_state_after(m, y, step));
    }
}

void model_begin_with_state(model *m, void *from) {
    for (int y = 0; y < m->layers; y++) {
        copy_state(m, model_state_after(m, y, 0), state_in(m, y, from));
    }
}

void model_carry_state(model *m, int step) {
    for (int y = 0; y < m->layers; y++) {
        copy_state(m, model_state_after(m, y, 0), model_state_after(m, y, step));
    }
}

void model_save_state(model *m) {
    model_keep_state(m, 0, m->carry);
}

void model_restore_state(model *m) {
    model_begin_with_state(m, m->carry);
}
