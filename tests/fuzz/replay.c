/* Runs a fuzz target without libFuzzer, built by any compiler:
 *
 *     fuzz_TARGET [FILE|FOLDER...]
 *
 * Every file given is an input, and so are the target's own seeds; then each of them cut at some
 * places and with some bytes changed, and some inputs of random bytes, always the same. */
#include "fuzz.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DAMAGES = 16, RANDOM = 1000, LONGEST = 128 };

static size_t tried;

/* Copies the input to exactly as many bytes, so that a sanitizer sees reads past its end. */
static void run(const uint8_t *bytes, size_t size) {
    uint8_t *exact = malloc(size ? size : 1);
    if (!exact) abort();
    memcpy(exact, bytes, size);
    LLVMFuzzerTestOneInput(exact, size);
    free(exact);
    tried++;
}

static void run_damaged(uint8_t *bytes, size_t size) {
    run(bytes, size);
    for (size_t i = 0; i < DAMAGES && size > 0; i++) {
        const size_t at = (2 * i + 1) * size / (2 * DAMAGES);
        run(bytes, at);
        bytes[at] ^= (uint8_t)(1 << i % 8);
        run(bytes, size);
        bytes[at] ^= (uint8_t)(1 << i % 8);
    }
}

static void run_file(const char *path) {
    struct stat status;
    if (stat(path, &status) != 0) {
        perror(path);
        exit(1);
    }
    if (S_ISDIR(status.st_mode)) {
        struct dirent **names;
        const int count = scandir(path, &names, NULL, alphasort);
        for (int i = 0; i < count; i++) {
            char *inner = NULL;
            if (names[i]->d_name[0] != '.' &&
                asprintf(&inner, "%s/%s", path, names[i]->d_name) > 0) {
                run_file(inner);
            }
            free(inner);
            free(names[i]);
        }
        if (count >= 0) free(names);
        return;
    }
    size_t size;
    uint8_t *bytes = scratch_read(path, &size);
    run_damaged(bytes, size);
    free(bytes);
}

/* By SplitMix64 (Steele, Lea, Flood 2014). */
static void run_random(void) {
    uint64_t state = 1;
    for (int i = 0; i < RANDOM; i++) {
        uint8_t bytes[LONGEST];
        for (int k = 0; k < LONGEST; k++) {
            uint64_t z = state += 0x9E3779B97F4A7C15u;
            z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
            bytes[k] = (uint8_t)((z ^ (z >> 27)) * 0x94D049BB133111EBu >> 33);
        }
        run(bytes, bytes[0] % LONGEST);
        run(bytes, LONGEST);
    }
}

int main(int argc, char **argv) {
    /* On a disk, most of the time would go to writing inputs. */
    if (access("/dev/shm", W_OK) == 0) setenv("TMPDIR", "/dev/shm", 0);
    if (LLVMFuzzerInitialize(&argc, &argv) != 0) return 1;
    for (int i = 0; i < seed_count; i++) run_damaged(seeds[i].bytes, seeds[i].size);
    for (int i = 1; i < argc; i++) run_file(argv[i]);
    run_random();
    printf("%zu inputs\n", tried);
    return 0;
}
