/* libsmallworld: models that `smallworld train` made, and the block-sparse product by itself.
 *
 *     smallworld_model *m = smallworld_load("runs/quickstart/last.safetensors", NULL);
 *     if (!m) fprintf(stderr, "%s\n", smallworld_error());
 *
 * A function that can fail returns false or NULL and leaves a line of text in smallworld_error(). A
 * model or a product is used by one thread at a time; different ones by different threads. Where
 * the host's memory runs out, the process ends with a message, as the program does. */
#ifndef SMALLWORLD_H
#define SMALLWORLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SMALLWORLD_API __attribute__((visibility("default")))

/* "0.1.0" */
SMALLWORLD_API const char *smallworld_version(void);

/* Why this thread's last call failed; "" if none did. Valid until its next failure. */
SMALLWORLD_API const char *smallworld_error(void);

/* Where to compute. NULL in place of a pointer to one, or a member that is NULL or 0, is the
 * default. */
typedef struct smallworld_options {
    const char *device; /* "auto" (default: a GPU if there is one), "cpu" or "cuda" */
    const char
        *precision; /* "auto" (default: bf16 on a GPU, else fp32), "fp32", "tf32" or "bf16" */
    int threads;    /* of the CPU; 0: all processors */
    int streams;    /* texts read side by side; 0: 32 */
} smallworld_options;

/* ------------------------------------------------------------------------------------ models */

typedef struct smallworld_model smallworld_model;

/* A checkpoint such as last.safetensors. Free it with smallworld_free, which takes NULL too. */
SMALLWORLD_API smallworld_model *smallworld_load(const char *checkpoint,
                                                 const smallworld_options *options);
SMALLWORLD_API void smallworld_free(smallworld_model *m);

SMALLWORLD_API int smallworld_units(const smallworld_model *m); /* width of its states */
SMALLWORLD_API int64_t smallworld_parameters(const smallworld_model *m);
SMALLWORLD_API const char *smallworld_device(const smallworld_model *m); /* for people */

/* Texts are bytes, text i of lengths[i] of them, each read from a zero state. What a model was
 * trained on as documents ("LABEL<TAB>TEXT") was framed as "\n " + text + " ", line breaks inside
 * made spaces; smallworld_frame does this, and what else the checkpoint was trained with. `framed`
 * has room for length + 3 bytes; returns how many it takes. */
SMALLWORLD_API size_t smallworld_frame(const smallworld_model *m, const uint8_t *text,
                                       size_t length, uint8_t *framed);

/* Bits of every byte given those before it, text after text: bits has as many numbers as all texts
 * have bytes, the first of each text NaN, since nothing predicts it. */
SMALLWORLD_API bool smallworld_score(smallworld_model *m, const uint8_t *const *texts,
                                     const size_t *lengths, size_t count, float *bits);

typedef enum smallworld_state { SMALLWORLD_CELL, SMALLWORLD_HIDDEN } smallworld_state;
typedef enum smallworld_pool { SMALLWORLD_LAST, SMALLWORLD_MEAN, SMALLWORLD_MAX } smallworld_pool;

/* The state after every byte, text after text: states [all bytes][units]. */
SMALLWORLD_API bool smallworld_states(smallworld_model *m, const uint8_t *const *texts,
                                      const size_t *lengths, size_t count, smallworld_state state,
                                      float *states);

/* The state after the last byte, or its mean or largest value over the bytes: features
 * [count][units], as `smallworld features` exports them. */
SMALLWORLD_API bool smallworld_features(smallworld_model *m, const uint8_t *const *texts,
                                        const size_t *lengths, size_t count, smallworld_state state,
                                        smallworld_pool pool, float *features);

/* Writes `count` bytes that follow `prompt` (length at least 1; documents start with "\n ") to
 * `text`. temperature 0: the likeliest byte, always. top_k: draw among so many likeliest bytes, 0:
 * among all. top_p: draw among the likeliest bytes that reach this probability, 1: among all. The
 * first call reads the checkpoint's file once more. */
SMALLWORLD_API bool smallworld_generate(smallworld_model *m, const uint8_t *prompt, size_t length,
                                        size_t count, double temperature, int top_k, double top_p,
                                        uint64_t seed, uint8_t *text);

/* ----------------------------------------------------------------------------------- products
 *
 * W is square, of nodes x nodes blocks of block x block, of which `count` are there. Weights are
 * [count][block][block], in the order of `blocks`; activations [features][columns], features being
 * nodes * block. Pointers are the device's, of memory aligned to 16 bytes, and must not overlap.
 *
 *   fprop   y = W x
 *   dgrad   dx = W' dy
 *   wgrad   dW = dy x', on the blocks that are there, float32
 *
 * All other arrays are float32, or with bf16 on a GPU bfloat16; sums are in float32. */

typedef struct smallworld_product smallworld_product;

/* `blocks`: (output node, input node), ascending, without repeats, and with every node's own block.
 * block: 8, 16, 32, 64 or 128. NULL where they do not fit. */
SMALLWORLD_API smallworld_product *smallworld_product_create(int nodes, int block,
                                                             const int32_t (*blocks)[2], int count,
                                                             const smallworld_options *options);
SMALLWORLD_API void smallworld_product_free(smallworld_product *p);

SMALLWORLD_API bool smallworld_product_on_gpu(const smallworld_product *p);
SMALLWORLD_API int smallworld_product_element_size(const smallworld_product *p); /* 4, or 2: bf16 */

/* What `columns` is a multiple of: in fprop and dgrad, and in wgrad. */
SMALLWORLD_API int smallworld_product_columns(const smallworld_product *p);
SMALLWORLD_API int smallworld_product_wgrad_columns(const smallworld_product *p);

/* On a GPU `stream` is a cudaStream_t of the device's primary context, NULL the default stream, and
 * the call returns before the product is made; the stream must exist until the product is used on
 * another or freed. An error of the GPU may be reported by a later call. On the CPU `stream` is
 * ignored. */
SMALLWORLD_API bool smallworld_fprop(smallworld_product *p, const void *w, const void *x, void *y,
                                     int columns, void *stream);
SMALLWORLD_API bool smallworld_dgrad(smallworld_product *p, const void *w, const void *dy, void *dx,
                                     int columns, void *stream);
SMALLWORLD_API bool smallworld_wgrad(smallworld_product *p, const void *dy, const void *x,
                                     float *dw, int columns, void *stream);

/* Waits for all that was issued, and reports errors of the GPU. */
SMALLWORLD_API bool smallworld_product_wait(smallworld_product *p);

#ifdef __cplusplus
}
#endif

#endif
