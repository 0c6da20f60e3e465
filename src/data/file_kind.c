#include "data/file_kind.h"

#include "core/log.h"

#include <stdatomic.h>
#include <string.h>

enum { MOST_BYTES = 4096 }; /* that are looked at */

static const struct {
    const char *magic;
    size_t length;
    const char *name;
} kinds[] = {
    {"PK\x03\x04", 4, "a ZIP archive"},
    {"%PDF-", 5, "a PDF document"},
    {"\x1F\x8B", 2, "a gzip file"},
    {"\xFD"
     "7zXZ",
     5, "an xz file"},
    {"BZh", 3, "a bzip2 file"},
    {"\x28\xB5\x2F\xFD", 4, "a Zstandard file"},
    {"7z\xBC\xAF\x27\x1C", 6, "a 7z archive"},
    {"Rar!", 4, "a RAR archive"},
    {"\x89PNG", 4, "a PNG image"},
    {"\xFF\xD8\xFF", 3, "a JPEG image"},
    {"\x7F"
     "ELF",
     4, "a program"},
    {"\xD0\xCF\x11\xE0", 4, "an old Office document"},
    {"SQLite format 3", 15, "a SQLite database"},
    {"{\\rtf", 5, "an RTF document"},
    {"PAR1", 4, "a Parquet file"},
    {"\x93NUMPY", 6, "a NumPy array"},
};

static const char utf16[] = "UTF-16 text";

/* Latin letters have every second byte 0. */
bool file_is_utf16(const uint8_t *head, size_t count) {
    size_t zeros[2] = {0, 0};
    if (count >= 2 && (memcmp(head, "\xFF\xFE", 2) == 0 || memcmp(head, "\xFE\xFF", 2) == 0)) {
        return true;
    }
    if (count > MOST_BYTES) count = MOST_BYTES;
    for (size_t i = 0; i < count; i++) zeros[i % 2] += head[i] == 0;
    return (zeros[0] > count / 4 || zeros[1] > count / 4) && zeros[0] + zeros[1] < count * 5 / 8;
}

/* Whether the text begins an array of objects. */
static bool is_json_array(const uint8_t *head, size_t count) {
    size_t at = 0;
    while (at < count && strchr(" \t\r\n", head[at])) at++;
    if (at == count || head[at++] != '[') return false;
    while (at < count && strchr(" \t\r\n", head[at])) at++;
    return at < count && head[at] == '{';
}

const char *file_kind(const uint8_t *head, size_t count) {
    if (count > MOST_BYTES) count = MOST_BYTES;
    if (file_is_utf16(head, count)) return utf16;
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        if (count > kinds[k].length && memcmp(head, kinds[k].magic, kinds[k].length) == 0) {
            return kinds[k].name;
        }
    }
    if (is_json_array(head, count)) return "a JSON array, where each line is to be an object";
    if (count > 262 && memcmp(head + 257, "ustar", 5) == 0) return "a tar archive";
    size_t controls = 0;
    for (size_t i = 0; i < count; i++) {
        const bool usual = head[i] && strchr("\t\n\r\f\x1B", head[i]);
        controls += (head[i] < ' ' && !usual) || head[i] == 0x7F;
    }
    return controls > count / 32 ? "binary data" : NULL;
}

void file_kind_warn(const char *name, const char *kind) {
    static atomic_flag warned = ATOMIC_FLAG_INIT;
    if (atomic_flag_test_and_set(&warned)) return;
    log_warning("%s looks like %s; a model of it learns its bytes, not its text%s", name, kind,
                kind == utf16 ? " (" UTF16_WAY_OUT ")" : "");
}
