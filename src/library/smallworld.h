/* libsmallworld: models that `smallworld train` made, and the block-sparse product by itself.
 *
 *     smallworld_model *m = smallworld_load("runs/quickstart/last.safetensors", NULL);
 *     if (!m) fprintf(stderr, "%s\n", smallworld_error());
 *
 * A function that can fail returns false or NULL and leaves a line of text in smallworld_error().
 * Threads may share a model or a product: its calls run one after another. Free it when none runs.
 * After a fork the child may use the library only if the parent had used it with threads = 1, or
 * not at all; else calls fail. An argument that must not be NULL, or that is out of range, is
 * such a failure; functions that return a number give 0 for a NULL model or product. Where the
 * host's memory runs out, the process ends with a message, as the program does. */
#ifndef SMALLWORLD_H
#define SMALLWORLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SMALLWORLD_API __attribute__((visibility("default")))

/* "0.2.0" */
SMALLWORLD_API const char *smallworld_version(void);

/* Returns the reason for this thread's last failure, or "". It is valid until the next failure. */
SMALLWORLD_API const char *smallworld_error(void);

/* Sets a function that long calls of models ask from time to time, from the thread that called,
 * whether to stop: they then fail with "interrupted". NULL, the default: they do not ask. */
SMALLWORLD_API void smallworld_on_wait(bool (*stop)(void));

/* Where to compute. NULL in place of the struct, or a member that is NULL or 0, means the default.
 */
typedef struct smallworld_options {
    const char *device;    /* "auto" (default: a GPU if there is one), "cpu" or "cuda" */
    const char *precision; /* "auto" (default: bf16 on a GPU, else fp32), "fp32", "bf16" */
    int threads;           /* CPU threads; 0: $OMP_NUM_THREADS, else one for each processor */
    int streams;           /* texts read side by side; 0: 32 */
} smallworld_options;

/* ------------------------------------------------------------------------------------ models */

typedef struct smallworld_model smallworld_model;

/* Loads a checkpoint, such as last.safetensors. Free it with smallworld_free, which accepts NULL.
 */
SMALLWORLD_API smallworld_model *smallworld_load(const char *checkpoint,
                                                 const smallworld_options *options);
SMALLWORLD_API void smallworld_free(smallworld_model *m);

SMALLWORLD_API int smallworld_units(const smallworld_model *m); /* width of its states */
SMALLWORLD_API int64_t smallworld_parameters(const smallworld_model *m);
SMALLWORLD_API const char *
smallworld_device(const smallworld_model *m); /* description for people */

/* Text i has lengths[i] bytes and is read from a zero state. In training, documents
 * ("LABEL<TAB>TEXT") were framed as "\n " + text + " ", with line breaks inside made spaces.
 * smallworld_frame frames a text in the same way and applies the checkpoint's other text options.
 * `framed` has room for length + 3 bytes. Returns the length of the framed text, or 0 if an
 * argument is NULL. */
SMALLWORLD_API size_t smallworld_frame(const smallworld_model *m, const uint8_t *text,
                                       size_t length, uint8_t *framed);

/* Computes the bits of every byte given the bytes before it, text after text. `bits` has one number
 * for each byte of all texts. It is NaN for the first byte of each text, which nothing predicts. */
SMALLWORLD_API bool smallworld_score(smallworld_model *m, const uint8_t *const *texts,
                                     const size_t *lengths, size_t count, float *bits);

typedef enum smallworld_state { SMALLWORLD_CELL, SMALLWORLD_HIDDEN } smallworld_state;
typedef enum smallworld_pool { SMALLWORLD_LAST, SMALLWORLD_MEAN, SMALLWORLD_MAX } smallworld_pool;

/* Computes the state after every byte, text after text: states [all bytes][units]. */
SMALLWORLD_API bool smallworld_states(smallworld_model *m, const uint8_t *const *texts,
                                      const size_t *lengths, size_t count, smallworld_state state,
                                      float *states);

/* Computes the state after the last byte, or its mean or largest value over all bytes: features
 * [count][units], as `smallworld features` exports them. */
SMALLWORLD_API bool smallworld_features(smallworld_model *m, const uint8_t *const *texts,
                                        const size_t *lengths, size_t count, smallworld_state state,
                                        smallworld_pool pool, float *features);

/* A probe that `smallworld probe --out` saved, for the model on whose features it was fitted; other
 * models are refused. NULL: the model's own class head, if it was trained with labels. Free it,
 * with smallworld_probe_free, before its model. */
typedef struct smallworld_probe smallworld_probe;
SMALLWORLD_API smallworld_probe *smallworld_probe_load(smallworld_model *m, const char *path);
SMALLWORLD_API void smallworld_probe_free(smallworld_probe *p);
SMALLWORLD_API int smallworld_probe_classes(const smallworld_probe *p);
SMALLWORLD_API const char *smallworld_probe_class(const smallworld_probe *p, int k); /* its name */

/* Computes the probability of each class, text after text: probability [count][classes]. */
SMALLWORLD_API bool smallworld_predict(smallworld_probe *p, const uint8_t *const *texts,
                                       const size_t *lengths, size_t count, double *probability);

/* Writes `count` bytes that follow `prompt` to `text`. The prompt has at least one byte; documents
 * start with "\n ". temperature 0 always takes the likeliest byte. top_k draws among this many
 * likeliest bytes, 0 among all. top_p draws among the fewest likeliest bytes that reach this
 * probability, 1 among all. */
SMALLWORLD_API bool smallworld_generate(smallworld_model *m, const uint8_t *prompt, size_t length,
                                        size_t count, double temperature, int top_k, double top_p,
                                        uint64_t seed, uint8_t *text);

/* --------------------------------------------------------------------- products, convolutions
 *
 * W is square, of nodes x nodes blocks of block x block, of which `count` are there. Weights are
 * [count][block][block], in the order of `blocks`; activations [features][columns], features being
 * nodes * block. Pointers are the device's, of memory aligned to 16 bytes; the result must not
 * overlap the operands.
 *
 *   fprop   y = W x
 *   dgrad   dx = W' dy
 *   wgrad   dW = dy x', on the blocks that are there, float32
 *
 * All other arrays are float32, or with bf16 on a GPU bfloat16; sums are in float32. */

typedef struct smallworld_product smallworld_product;

/* Makes a product. `blocks` holds (output node, input node), ascending, without repeats, and with
 * every node's own block. `block` is 8, 16, 32, 64 or 128. Returns NULL if the arguments are not
 * valid. */
SMALLWORLD_API smallworld_product *smallworld_product_create(int nodes, int block,
                                                             const int32_t (*blocks)[2], int count,
                                                             const smallworld_options *options);
SMALLWORLD_API void smallworld_product_free(smallworld_product *p);

SMALLWORLD_API bool smallworld_product_on_gpu(const smallworld_product *p);
SMALLWORLD_API int smallworld_product_element_size(const smallworld_product *p); /* 4, or 2: bf16 */

/* Multiples of these numbers of columns, in fprop and dgrad, and in wgrad, are computed without a
 * copy; others pass through padded copies of the activations. */
SMALLWORLD_API int smallworld_product_columns(const smallworld_product *p);
SMALLWORLD_API int smallworld_product_wgrad_columns(const smallworld_product *p);

/* On a GPU `stream` is a cudaStream_t of the device's primary context, or NULL for the default
 * stream. The call returns before the product is computed. The stream must exist until the product
 * is used on another stream or freed. A later call may report an error of the GPU. On the CPU
 * `stream` is ignored. */
SMALLWORLD_API bool smallworld_fprop(smallworld_product *p, const void *w, const void *x, void *y,
                                     int columns, void *stream);
SMALLWORLD_API bool smallworld_dgrad(smallworld_product *p, const void *w, const void *dy, void *dx,
                                     int columns, void *stream);
SMALLWORLD_API bool smallworld_wgrad(smallworld_product *p, const void *dy, const void *x,
                                     float *dw, int columns, void *stream);

/* y [columns][rows] = the transpose of x [rows][columns], in the product's elements: for callers
 * whose samples are rows. Both numbers are multiples of 8. */
SMALLWORLD_API bool smallworld_transpose(smallworld_product *p, const void *x, int rows,
                                         int columns, void *y, void *stream);

/* A convolution, or with shape NULL a plain product, of a rectangular pattern: out_nodes x in_nodes
 * blocks, of which any may be there, and rows and columns without blocks. It is a product as above,
 * for the same functions, but
 *
 *   x, dx  [positions of the input][in_nodes * block][columns]
 *   y, dy  [positions of the output][out_nodes * block][columns]
 *   w, dw  [count][taps][block][block]
 *
 * with columns for images: the images of a pixel lie together. Positions are rows by columns of
 * an image; a signal is an image of one row. Tap (f, g) at output (r, c) reads the input at
 *
 *   (r stride[0] + f dilation[0] - pad[0][0],  c stride[1] + g dilation[1] - pad[1][0])
 *
 * or zero outside the image, so that other pads before and after make shifted, causal filters.
 * dgrad is the transposed convolution. Taps are in the order of the filter's rows. */
typedef struct smallworld_conv_shape {
    int in[2], filter[2], stride[2], dilation[2];
    int pad[2][2]; /* zeros before and after, of rows and of columns */
} smallworld_conv_shape;

SMALLWORLD_API smallworld_product *smallworld_conv_create(int out_nodes, int in_nodes, int block,
                                                          const int32_t (*blocks)[2], int count,
                                                          const smallworld_conv_shape *shape,
                                                          const smallworld_options *options);

/* Sets the size of the output, rows and columns; fails if the shape makes none. */
SMALLWORLD_API bool smallworld_conv_out(const smallworld_conv_shape *shape, int out[2]);

/* Waits for all issued products and reports errors of the GPU. */
SMALLWORLD_API bool smallworld_product_wait(smallworld_product *p);

#ifdef __cplusplus
}
#endif

#endif
