#include "data/files.h"

#include "core/file.h"
#include "core/log.h"
#include "core/memory.h"
#include "core/overwrite.h"
#include "core/stop.h"
#include "core/utf8.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#ifdef SMALLWORLD_XZ
#include <lzma.h>
#endif

/* ------------------------------------------------------------------------------ bytes and lines */

enum {
    FREE_BYTES = 64 << 20, /* content of a gzip that is allowed at any ratio */
    MAX_RATIO = 256        /* largest ratio of further content to size; of text it is 2 to 10 */
};

/* ----------------------------------------------------------------------------------- source
 * A file's bytes, decompressed if it is a gzip of one or more members. What follows the last member
 * must be zeros, as gzip itself allows: other trailing bytes are refused, as damage would be. */

struct source {
    const char *path;      /* "-" for standard input */
    int file;              /* descriptor; -1: none */
    bool waits;            /* whether it is not a regular file, so that reading may have to wait */
    bool gzip, xz, end;    /* end: past the last member */
    uint64_t taken, given; /* bytes read from the file; bytes of content returned */
    z_stream z;            /* other files use its input and output sides too */
#ifdef SMALLWORLD_XZ
    lzma_stream lzma;
#endif
    uint8_t input[SOURCE_CHUNK];
};

const char *source_name(const source *s) {
    return strcmp(s->path, "-") == 0 ? "standard input" : s->path;
}

static bool is_plain(const source *s) {
    return !s->gzip && !s->xz;
}

static bool open_file(source *s, error *err) {
    /* O_NONBLOCK: do not wait for a pipe's writer */
    s->file =
        open(strcmp(s->path, "-") == 0 ? "/dev/stdin" : s->path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (s->file < 0) return error_system(err, "open", source_name(s));
    overwrite_note_input(s->file);
    return true;
}

/* Reads more of the file into the input buffer. Fails where reading is to stop. */
static bool refill(source *s, error *err) {
    memmove(s->input, s->z.next_in, s->z.avail_in);
    s->z.next_in = s->input;
    while (s->z.avail_in < SOURCE_CHUNK) {
        if (!(s->waits ? stop_wait_readable(s->file, err) : stop_check(err))) return false;
        ssize_t count = read(s->file, s->input + s->z.avail_in, SOURCE_CHUNK - s->z.avail_in);
        if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (count < 0) return error_system(err, "read", source_name(s));
        if (count == 0) break;
        s->z.avail_in += (unsigned)count;
        s->taken += (uint64_t)count;
        if (s->waits && memchr(s->input, '\n', s->z.avail_in)) break; /* a line need not wait */
    }
    return true;
}

/* Whether the input goes on with gzip's two magic bytes, or with the first one if no more is there.
 */
static bool at_magic(const source *s) {
    return memcmp(s->z.next_in, "\x1f\x8b", s->z.avail_in < 2 ? s->z.avail_in : 2) == 0;
}

static bool at_xz_magic(const source *s) {
    return s->z.avail_in >= 6 && memcmp(s->z.next_in,
                                        "\xfd"
                                        "7zXZ",
                                        6) == 0;
}

#ifdef SMALLWORLD_XZ
static bool begin_xz(source *s, error *err) {
    const uint64_t memory = (uint64_t)1 << 30; /* xz -9 takes 65 MiB */
    s->xz = lzma_stream_decoder(&s->lzma, memory, LZMA_CONCATENATED) == LZMA_OK;
    return s->xz || error_set(err, "%s: cannot start liblzma", source_name(s));
}

static void end_xz(source *s) {
    lzma_end(&s->lzma);
}

/* Advances z's input and output sides, and sets `end`. */
static bool inflate_xz(source *s, error *err) {
    lzma_stream *l = &s->lzma;
    z_stream *z = &s->z;
    const bool last = z->avail_in == 0; /* the file has no more */
    l->next_in = z->next_in;
    l->avail_in = z->avail_in;
    l->next_out = z->next_out;
    l->avail_out = z->avail_out;
    const lzma_ret status = lzma_code(l, last ? LZMA_FINISH : LZMA_RUN);
    z->next_in += z->avail_in - l->avail_in;
    z->avail_in = (unsigned)l->avail_in;
    z->next_out = l->next_out;
    z->avail_out = (unsigned)l->avail_out;
    s->end = status == LZMA_STREAM_END;
    if (s->end || status == LZMA_OK) return true;
    if (status == LZMA_BUF_ERROR && last) {
        return error_set(err, "%s: xz cut short, or other bytes follow its end", source_name(s));
    }
    if (status == LZMA_MEMLIMIT_ERROR) {
        return error_set(err, "%s: xz that takes more than 1 GiB to read", source_name(s));
    }
    return error_set(err, "%s: corrupt xz", source_name(s));
}

#else
static bool begin_xz(source *s, error *err) {
    return error_set(err, "%s: an xz file, and this program was built without liblzma",
                     source_name(s));
}

static void end_xz(source *s) {
    (void)s;
}

static bool inflate_xz(source *s, error *err) {
    return begin_xz(s, err);
}
#endif

void source_close(source *s) {
    if (!s) return;
    if (s->xz) end_xz(s);
    if (s->file >= 0) close(s->file);
    if (s->gzip) inflateEnd(&s->z);
    free(s);
}

static bool begin(source *s, error *err) {
    const char *path = s->path;
    struct stat opened;
    s->z.next_in = s->input;
    if (!open_file(s, err)) return false;
    if (fstat(s->file, &opened) != 0) return error_system(err, "open", source_name(s));
    s->waits = !S_ISREG(opened.st_mode);
    if (!refill(s, err)) return false;
    if (s->z.avail_in == 0) return error_set(err, "%s: empty", source_name(s));
    if (S_ISCHR(opened.st_mode) && !isatty(s->file)) { /* /dev/zero has no end */
        return error_set(err, "%s: expected a file or a pipe, found a device", source_name(s));
    }
    if (at_xz_magic(s)) return begin_xz(s, err);
    if (!at_magic(s)) {
        const char *kind = file_ends_in(path, ".gz")   ? "gz"
                           : file_ends_in(path, ".xz") ? "xz"
                                                       : NULL;
        return !kind || error_set(err, "%s: not a%s file, though its name ends in .%s", path,
                                  *kind == 'g' ? " gzip" : "n xz", kind);
    }
    s->gzip = inflateInit2(&s->z, 16 + MAX_WBITS) == Z_OK; /* 16: with gzip's header and checks */
    return s->gzip || error_set(err, "%s: cannot start zlib", path);
}

source *source_open(const char *path, error *err) {
    source *s = mem_alloc(1, sizeof *s);
    s->path = path;
    s->file = -1;
    if (begin(s, err)) return s;
    source_close(s);
    return NULL;
}

static bool cut_short(const source *s, error *err) {
    return error_set(err, "%s: gzip cut short: the file ends before its data does", source_name(s));
}

static bool next_member(source *s, error *err) {
    if (s->z.avail_in == 0 && !refill(s, err)) return false;
    while (s->z.avail_in > 0 && *s->z.next_in == 0) { /* padding, as of tapes */
        s->z.next_in++;
        s->z.avail_in--;
        if (s->z.avail_in == 0 && !refill(s, err)) return false;
    }
    s->end = s->z.avail_in == 0;
    if (s->end) return true;
    if (!at_magic(s)) {
        return error_set(err, "%s: corrupt gzip: other bytes follow its end", source_name(s));
    }
    inflateReset2(&s->z, 16 + MAX_WBITS);
    return true;
}

static bool read_gzip(source *s, error *err) {
    z_stream *z = &s->z;
    while (z->avail_out > 0 && !s->end) {
        if (z->avail_in == 0 && !refill(s, err)) return false;
        if (z->avail_in == 0) return cut_short(s, err);
        const int status = inflate(z, Z_NO_FLUSH);
        if (status == Z_STREAM_END) {
            if (!next_member(s, err)) return false;
        } else if (status != Z_OK) {
            return error_set(err, "%s: corrupt gzip: %s", source_name(s),
                             z->msg ? z->msg : zError(status));
        }
    }
    return true;
}

static bool read_xz(source *s, error *err) {
    while (s->z.avail_out > 0 && !s->end) {
        if (s->z.avail_in == 0 && !refill(s, err)) return false;
        if (!inflate_xz(s, err)) return false;
    }
    return true;
}

bool source_read(source *s, uint8_t *out, size_t room, size_t *count, error *err) {
    z_stream *z = &s->z;
    if (is_plain(s)) {
        if (z->avail_in == 0 && !refill(s, err)) return false;
        *count = z->avail_in < room ? z->avail_in : room;
        memcpy(out, z->next_in, *count);
        z->next_in += *count;
        z->avail_in -= (unsigned)*count;
        s->given += *count;
        return true;
    }
    z->next_out = out;
    z->avail_out = room < 1u << 30 ? (unsigned)room : 1u << 30;
    if (!(s->gzip ? read_gzip(s, err) : read_xz(s, err))) return false;
    *count = (size_t)(z->next_out - out);
    s->given += *count;
    if (s->given > FREE_BYTES && s->given / MAX_RATIO > s->taken) {
        return error_set(err, "%s: %s of more than %d times its size, which no text is",
                         source_name(s), s->xz ? "xz" : "gzip", MAX_RATIO);
    }
    return true;
}

bool source_begins_with_label(const source *s) {
    const uint8_t *next = s->z.next_in, *end = next + s->z.avail_in;
    next += utf8_mark_length(next, (size_t)(end - next));
    if (next < end && *next == '-') next++;
    const uint8_t *digits = next;
    while (next < end && *next >= '0' && *next <= '9') next++;
    return is_plain(s) && next > digits && next < end && *next == '\t';
}

/* ------------------------------------------------------------------------------------ lines */

bool source_waits(const source *s) {
    return s->waits;
}

bool lines_waiting(const lines *l) {
    return memchr(l->buffer + l->begin, l->mark, l->end - l->begin) != NULL;
}

/* What ends lines of a text: CR where there is no LF, and a tab, as of a document, after a CR. */
static uint8_t line_mark(const uint8_t *text, size_t size) {
    const uint8_t *cr = memchr(text, '\r', size);
    const bool old =
        cr && !memchr(text, '\n', size) && memchr(cr, '\t', size - (size_t)(cr - text));
    return old ? '\r' : '\n';
}

bool lines_next(lines *l, error *err) {
    for (size_t scanned = 0;;) {
        size_t left = l->end - l->begin;
        uint8_t *start = l->buffer ? l->buffer + l->begin : NULL; /* NULL before the first read */
        uint8_t *newline = left > scanned ? memchr(start + scanned, l->mark, left - scanned) : NULL;
        if (newline) {
            l->text = start;
            l->length = (size_t)(newline - start);
            l->begin += l->length + 1;
            if (l->length > 0 && newline[-1] == '\r') l->length--;
            return true;
        }
        if (left > SOURCE_LONGEST) {
            return error_set(err, "%s:%" PRIu64 ": a line of more than %d bytes",
                             source_name(l->source), l->number, SOURCE_LONGEST);
        }
        if (l->begin > 0) memmove(l->buffer, start, left);
        l->buffer = mem_grow(l->buffer, &l->capacity, left + SOURCE_CHUNK, 1);
        size_t room = l->capacity - left, count = 0;
        if (!source_read(l->source, l->buffer + left, room, &count, err)) return false;
        if (!l->mark && !source_check_utf8(l->source, l->buffer, count, err)) return false;
        if (!l->mark) l->mark = line_mark(l->buffer, count);
        scanned = left;
        l->begin = 0;
        l->end = left + count;
        if (count == 0) { /* the last line has no line end */
            l->text = left > 0 ? l->buffer : NULL;
            l->length = l->begin = left;
            return true;
        }
    }
}

double source_xz_bytes(const uint8_t *text, uint64_t size) {
#ifdef SMALLWORLD_XZ
    enum { PRESET = 6 };
    if (size > SOURCE_LONGEST) return NAN;
    const size_t room = lzma_stream_buffer_bound((size_t)size);
    uint8_t *out = mem_alloc(room, 1);
    size_t used = 0;
    const lzma_ret status = lzma_easy_buffer_encode(PRESET, LZMA_CHECK_CRC64, NULL, text,
                                                    (size_t)size, out, &used, room);
    free(out);
    if (status == LZMA_MEM_ERROR) mem_give_up(lzma_easy_encoder_memusage(PRESET), 1);
    return status == LZMA_OK ? (double)used : NAN;
#else
    (void)text;
    (void)size;
    return NAN;
#endif
}

/* ---------------------------------------------------------------------------------------- kinds */

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

/* What converts it, for messages. */
#define UTF16_WAY_OUT "`iconv -f UTF-16 -t UTF-8` converts it"

/* Latin letters have every second byte 0. */
static bool is_utf16(const uint8_t *head, size_t count) {
    size_t zeros[2] = {0, 0};
    if (count >= 2 && (memcmp(head, "\xFF\xFE", 2) == 0 || memcmp(head, "\xFE\xFF", 2) == 0)) {
        return true;
    }
    if (count > MOST_BYTES) count = MOST_BYTES;
    for (size_t i = 0; i < count; i++) zeros[i % 2] += head[i] == 0;
    return (zeros[0] > count / 4 || zeros[1] > count / 4) && zeros[0] + zeros[1] < count * 5 / 8;
}

bool source_check_utf8(const source *s, const uint8_t *read, size_t count, error *err) {
    return s->given != count || !is_utf16(read, count) ||
           error_set(err, "%s: UTF-16 text: expected UTF-8 (" UTF16_WAY_OUT ")", source_name(s));
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
    if (is_utf16(head, count)) return utf16;
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        if (count > kinds[k].length && memcmp(head, kinds[k].magic, kinds[k].length) == 0) {
            return kinds[k].name;
        }
    }
    if (is_json_array(head, count))
        return "a JSON array, whose texts a .json gives if its first object has one";
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

/* ---------------------------------------------------------------------------------------- names */

typedef struct each {
    paths_visit *visit;
    void *data;
} each;

enum { MOST_NESTED = 16 };

static bool visit_path(each *e, const char *path, int depth, error *err);

static int is_shown(const struct dirent *entry) {
    return entry->d_name[0] != '.';
}

static int by_bytes(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name); /* in any locale */
}

/* A folder's pipes and sockets would be waited for without a word. */
static bool check_entry(const char *path, error *err) {
    struct stat status;
    if (stat(path, &status) != 0) return error_system(err, "read", path);
    return S_ISREG(status.st_mode) || S_ISDIR(status.st_mode) ||
           error_set(err, "%s: expected a file or a folder, found a pipe or a device", path);
}

static bool visit_folder(each *e, const char *folder, int depth, error *err) {
    struct dirent **entries;
    const int count = scandir(folder, &entries, is_shown, by_bytes);
    if (count < 0) return error_system(err, "read", folder);
    bool read = count > 0 || error_set(err, "%s: expected a folder with files, found none", folder);
    for (int i = 0; i < count; i++) {
        char *path = mem_format("%s/%s", folder, entries[i]->d_name);
        read = read && check_entry(path, err) && visit_path(e, path, depth + 1, err);
        free(path);
        free(entries[i]);
    }
    free(entries);
    return read;
}

/* A file that a list names, relative to the list's own folder. */
static bool visit_listed(each *e, const char *list, const char *name, int depth, error *err) {
    const char *slash = strrchr(list, '/');
    const int folder = *name != '/' && slash ? (int)(slash - list) + 1 : 0;
    char *path = mem_format("%.*s%s", folder, list, name);
    const bool read = visit_path(e, path, depth + 1, err);
    free(path);
    return read;
}

static bool visit_list(each *e, const char *list, int depth, error *err) {
    FILE *in = fopen(list, "re");
    if (!in) return error_system(err, "open", list);
    overwrite_note_input(fileno(in));
    char *line = NULL;
    size_t room = 0, files = 0;
    ssize_t length;
    bool read = true;
    while (read && (length = getline(&line, &room, in)) > 0) {
        if (memchr(line, '\0', (size_t)length)) {
            read = error_set(err, "%s: expected names of files, found a NUL byte", list);
            break;
        }
        while (length > 0 && strchr("\r\n", line[length - 1])) line[--length] = '\0';
        if (length == 0) continue;
        read = visit_listed(e, list, line, depth, err);
        files++;
    }
    if (read && ferror(in)) read = error_system(err, "read", list);
    if (read && files == 0)
        read = error_set(err, "%s: expected a file on each line, found none", list);
    free(line);
    fclose(in);
    return read;
}

static bool visit_path(each *e, const char *path, int depth, error *err) {
    if (depth > MOST_NESTED) {
        return error_set(err, "%s: folders and lists more than %d deep", path, MOST_NESTED);
    }
    if (strcmp(path, "-") != 0 && file_is_folder(path)) return visit_folder(e, path, depth, err);
    if (file_ends_in(path, ".list")) return visit_list(e, path, depth, err);
    return e->visit(e->data, path, err);
}

bool paths_each(char *const *paths, int count, paths_visit *visit, void *data, error *err) {
    each e = {visit, data};
    for (int i = 0; i < count; i++) {
        if (!visit_path(&e, paths[i], 0, err)) return false;
    }
    return true;
}

bool paths_read_input(const char *const *paths, int count) {
    for (int i = 0; i < count; i++) {
        if (paths[i] && strcmp(paths[i], "-") == 0) return true;
    }
    return false;
}

bool paths_has_folders(const char *path) {
    DIR *folder = file_is_folder(path) ? opendir(path) : NULL;
    bool found = false;
    for (struct dirent *entry; folder && !found && (entry = readdir(folder));) {
        char *name = mem_format("%s/%s", path, entry->d_name);
        found = is_shown(entry) && file_is_folder(name);
        free(name);
    }
    if (folder) closedir(folder);
    return found;
}

bool paths_is_lines(const char *path) {
    return file_ends_in(path, ".tsv") || file_ends_in(path, ".tsv.gz") ||
           file_ends_in(path, ".tsv.xz");
}
