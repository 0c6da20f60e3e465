/* The library's boundary: functions called with pointers that are valid or NULL, and with numbers
 * of any size. Whatever is refused leaves a message; whatever is not must work. */
#include "fuzz.h"
#include "models.h"

#include "library/smallworld.h"
#include "train/checkpoint.h"

#include <stdlib.h>
#include <string.h>

enum { TEXTS = 3, LENGTH = 12, NODES = 2, BLOCK = 8, FEATURES = NODES * BLOCK, MOST_COLUMNS = 32 };

static smallworld_model *loaded;
static smallworld_product *product;
static float *memory; /* room for every result */

enum { ROOM = 1 << 16 };

static void release(void) {
    smallworld_free(loaded);
    smallworld_product_free(product);
    free(memory);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    (void)argc;
    (void)argv;
    static const int32_t blocks[][2] = {{0, 0}, {0, 1}, {1, 1}};
    const smallworld_options how = {.device = "cpu", .threads = 1, .streams = 2};
    const char *path = scratch_path("model.safetensors");
    error err;
    options o;
    tiny_options(&o, "lstm");
    backend *be = options_backend(&o.run, &err);
    model *m = tiny_model(be, &o);
    require(checkpoint_save_model(m, &o, 7, path, &err), err.text);
    model_free(m);
    be->destroy(be);
    options_free(&o);
    loaded = smallworld_load(path, &how);
    product = smallworld_product_create(NODES, BLOCK, blocks, 3, &how);
    require(loaded && product, smallworld_error());
    memory = aligned_alloc(64, ROOM * sizeof *memory);
    for (int i = 0; i < ROOM; i++) memory[i] = 0.25F;
    atexit(release);
    return 0;
}

/* The arguments of a call, from the input's bytes; 0 where it has no more. */
typedef struct arguments {
    const uint8_t *data;
    size_t left;
} arguments;

static uint8_t next(arguments *a) {
    if (a->left == 0) return 0;
    a->left--;
    return *a->data++;
}

/* The pointer, or now and then NULL. */
static void *maybe(arguments *a, void *pointer) {
    return next(a) % 8 == 7 ? NULL : pointer;
}

/* A small number, or one at which arithmetic often goes wrong. */
static int64_t number(arguments *a) {
    static const int64_t odd[] = {-1, INT32_MIN, INT32_MAX, INT64_MIN, INT64_MAX, (int64_t)1 << 32};
    const uint8_t byte = next(a);
    return byte >= 250 ? odd[byte - 250] : byte;
}

static void check(bool done) {
    require(done || *smallworld_error(), "a failure without a reason");
}

static void call_texts(arguments *a, int function) {
    static const uint8_t text[LENGTH] = "\n Some text ";
    const uint8_t *texts[TEXTS];
    size_t lengths[TEXTS], count = next(a) % (TEXTS + 1);
    for (int i = 0; i < TEXTS; i++) {
        texts[i] = maybe(a, (void *)(uintptr_t)text);
        lengths[i] = next(a) % (LENGTH + 1);
    }
    smallworld_model *m = maybe(a, loaded);
    const uint8_t *const *given = maybe(a, texts);
    const size_t *sizes = maybe(a, lengths);
    const smallworld_state state = (smallworld_state)(next(a) % 4);
    const smallworld_pool pool = (smallworld_pool)(next(a) % 5);
    float *out = maybe(a, memory);
    switch (function) {
    case 0: check(smallworld_score(m, given, sizes, count, out)); return;
    case 1: check(smallworld_states(m, given, sizes, count, state, out)); return;
    default: check(smallworld_features(m, given, sizes, count, state, pool, out)); return;
    }
}

static void call_product(arguments *a, int function) {
    float *arrays[3];
    for (int i = 0; i < 3; i++) {
        arrays[i] = maybe(a, memory + (i * (ROOM / 3) + next(a) % 8 * 4) % ROOM);
        if (next(a) % 16 == 15 && arrays[i]) arrays[i]++; /* not aligned */
        if (next(a) % 16 == 15) arrays[i] = arrays[0];    /* overlapping */
    }
    int64_t columns = number(a);
    if (columns > MOST_COLUMNS && columns < INT32_MAX) columns = MOST_COLUMNS;
    smallworld_product *p = maybe(a, product);
    const int given = (int)columns;
    switch (function) {
    case 0: check(smallworld_fprop(p, arrays[0], arrays[1], arrays[2], given, NULL)); return;
    case 1: check(smallworld_dgrad(p, arrays[0], arrays[1], arrays[2], given, NULL)); return;
    default: check(smallworld_wgrad(p, arrays[0], arrays[1], arrays[2], given, NULL)); return;
    }
}

static void call_create(arguments *a) {
    int32_t blocks[8][2];
    for (int i = 0; i < 8; i++) {
        for (int k = 0; k < 2; k++) blocks[i][k] = (int32_t)number(a);
    }
    const char *const names[] = {NULL, "cpu", "", "x\x1b", "fp32", "bf16", "auto"};
    const smallworld_options how = {"cpu", names[next(a) % (sizeof names / sizeof *names)],
                                    (int)(number(a) % 4 - 1), 1};
    int64_t count = number(a);
    if (count > 8 && count < INT32_MAX) count = 8; /* as many as there are */
    if (count > 8 || count < 0) count = -1;
    const int nodes = (int)(next(a) % 4), block = (int)number(a);
    smallworld_product *p = smallworld_product_create(
        nodes, block, (const int32_t(*)[2])maybe(a, blocks), (int)count, maybe(a, (void *)&how));
    check(p != NULL);
    smallworld_product_free(p);
}

static void call_writing(arguments *a) {
    uint8_t text[64];
    const int64_t count = number(a), length = number(a) % 12;
    const double temperature = (double)number(a) / 8, top_p = (double)number(a) / 128;
    const size_t most = count < 0 || count > (int64_t)sizeof text ? sizeof text : (size_t)count;
    const size_t asked = next(a) % 16 == 15 ? SIZE_MAX : most;
    check(smallworld_generate(maybe(a, loaded), maybe(a, (void *)(uintptr_t) "\n Some text "),
                              length < 0 ? SIZE_MAX : (size_t)length, asked, temperature,
                              (int)number(a), top_p, (uint64_t)number(a), maybe(a, text)));
    smallworld_model *m = maybe(a, loaded);
    const size_t size = next(a) % 32;
    const size_t framed = smallworld_frame(m, maybe(a, memory), size, maybe(a, text));
    require(framed <= size + 3, "a framed text longer than its room");
    touch(smallworld_device(m), strlen(smallworld_device(m)));
    require((m != NULL) == (smallworld_units(m) > 0 && smallworld_parameters(m) > 0), "a size");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    arguments a = {data, size};
    while (a.left > 0) {
        const int function = next(&a) % 8;
        if (function < 3) {
            call_texts(&a, function);
        } else if (function < 6) {
            call_product(&a, function - 3);
        } else if (function == 6) {
            call_create(&a);
        } else {
            call_writing(&a);
        }
    }
    return 0;
}
