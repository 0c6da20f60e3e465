/* What the files of src/model share. model.h describes the model; here are its parts:
 *   stages.c    the numbers of stages, and their graphs
 *   tensors.c   the parameters that a model has, and their addresses in an arena
 *   arrays.c    the arrays that a model requests from the plan of its memory
 *   layouts.c   the layouts of the stages' patterns, and their parts
 *   prune.c     a model of another's strongest blocks
 *   norms.c     weight norm of the gates' rows
 *   state.c     h and c between calls
 *   run.c       the operations: forward, backward and the update
 *   model.c     creation and weights */
#ifndef SMALLWORLD_MODEL_INTERNAL_H
#define SMALLWORLD_MODEL_INTERNAL_H

#include "model/model.h"

/* The number of stages of one layer's cell. */
int model_cell_stages(const model_config *config);

/* The number of the stage by which a layer above the first reads the layer below. */
int model_below_stage(const model_config *config, int layer);

/* The units of an internal stage. */
int64_t model_inner_units(const model_config *config);

/* The units that an input table has: every input_stride-th of the cells or hubs. */
int64_t model_table_units(const model_config *config, table_width width);

/* The width of the tables of internal stages. */
table_width model_inner_tables(const model_config *config);

/* The rows of the class head, with those that pad it for the products. */
int64_t model_class_rows(const model_config *config);

/* Fills the parameter table. The layouts must have been made. */
void model_add_parameters(model *m);

/* Where parameter `number` lies in an arena of elements of `size` bytes, in the operands, in the
 * arena that forward reads, and in the one that backward fills; NULL if the model has no such
 * parameter or no such arena. */
void *model_address(const model *m, const void *arena, size_t size, int number);
void *model_operand_address(const model *m, int number);
void *model_value_address(const model *m, int number);
void *model_gradient_address(const model *m, int number);

/* With weight norm: makes of the bound arena the operands of the gates' rows; turns the gradient at
 * these into that of weights and gains. */
void model_norm_rows(model *m);
void model_norm_rows_backward(model *m);

/* The Euclidean norms of a stage's rows [gates][units] in an arena, with what is added to them, as
 * norm_rows has them; NULL if they are not normed. The caller frees them. */
double *model_row_norms(const model *m, const void *arena, int stage);

/* The number of the stage whose rows are normed together with those of stage s: itself, or the
 * first stage of the layer for what that reads of the layer below; -1 if they are not normed. */
int model_normed_stage(const model *m, int s);

/* Points the cells at the arenas that forward reads, and backward at the arena that it fills. */
void model_bind_parameters(model *m);
void model_bind_gradients(model *m, void *arena);

/* The stage of a layer's cell; NULL for the one that reads the layer below, a product by itself. */
stage *model_find_stage(model *m, int s);

/* Requests every array of a model that is cut into so many segments, and counts the layouts'. */
void model_plan(model *m, int segments);

/* Adds to an error of a model that does not fit how many segments would make it fit. */
void model_suggest_segments(model *m, error *err);

/* Sets the pointers that follow from the places of the allocated arrays. */
void model_connect(model *m);

/* The layouts of the stages' graphs, on the host and on the device, and their parts; freeing also
 * frees the graphs. model_use_layouts gives them to the cells. */
void model_create_stage_layouts(model *m);
void model_free_stage_layouts(model *m);
void model_use_layouts(model *m);

/* Bytes of [hidden][columns] values of `element` bytes, and of h and c of all layers. */
size_t model_plane_bytes(const model *m, size_t element);
size_t model_state_bytes(const model *m);

/* Where a layer's state lies after `step` steps. */
typedef struct state_address {
    void *h, *c;
} state_address;

state_address model_state_after(const model *m, int layer, int step);

/* Saves the state of all layers after `step` steps, makes a saved one that before the first step,
 * and makes that after `step` steps the one before the first. Arrays have model_state_bytes. */
void model_keep_state(model *m, int step, void *to);
void model_begin_with_state(model *m, void *from);
void model_carry_state(model *m, int step);

#endif
