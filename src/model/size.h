/* The number of a model's parameters before it is made, and the model of a given number. */
#ifndef SMALLWORLD_MODEL_SIZE_H
#define SMALLWORLD_MODEL_SIZE_H

#include "model/model.h"

/* The trained scalars of a model whose graph has the config's degree or density. */
double model_parameter_count(const model_config *config);

/* Sets config->hidden to the width whose number of parameters is nearest to `parameters`, at the
 * config's degree, density or, with graph: dense, all blocks. */
bool model_match_width(model_config *config, double parameters, error *err);

/* The same of config->hubs, at the config's width. */
bool model_match_hubs(model_config *config, double parameters, error *err);

/* Sets config->density to the one whose number of parameters is nearest, at the config's width. */
bool model_match_density(model_config *config, double parameters, error *err);

#endif
