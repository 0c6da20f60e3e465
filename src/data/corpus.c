#include "data/corpus.h"

#include "core/file.h"
#include "core/memory.h"
#include "core/stop.h"
#include "core/utf8.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#ifdef SMALLWORLD_XZ
#include <lzma.h>
#endif

enum {
    CHUNK = 1 << 17,       /* bytes read at a time */
    MAX_LINE = 64 << 20,   /* longest document in bytes */
    FREE_BYTES = 64 << 20, /* content of a gzip that is allowed at any ratio */
    MAX_RATIO = 256        /* largest ratio of further content to size; of text it is 2 to 10 */
};

/* ------------------------------------------------------------------------------------- hash
 * 64-bit FNV-1a (Fowler, Noll, Vo), a byte at a time so that the order of bytes in a word does not
 * matter, then the finalizer of splitmix64 (Steele, Lea, Flood 2014), which spreads it evenly over
 * all bits. It decides splits: to change it is to change every split there is. */

static const uint64_t hash_start = 0xcbf29ce484222325;

static uint64_t hash_bytes(uint64_t hash, const uint8_t *bytes, size_t count) {
    for (size_t i = 0; i < count; i++) hash = (hash ^ bytes[i]) * 0x100000001b3;
    return hash;
}

static uint64_t hash_end(uint64_t hash) {
    hash = (hash ^ hash >> 30) * 0xbf58476d1ce4e5b9;
    hash = (hash ^ hash >> 27) * 0x94d049bb133111eb;
    return hash ^ hash >> 31;
}

/* ----------------------------------------------------------------------------------- source
 * A file's bytes, decompressed if it is a gzip of one or more members. What follows the last member
 * must be another one: padding and other trailing bytes are refused, as damage would be. */

typedef struct source {
    const char *path;
    int file;              /* descriptor; -1: none */
    bool waits;            /* whether it is not a regular file, so that reading may have to wait */
    bool gzip, xz, end;    /* end: past the last member */
    uint64_t taken, given; /* bytes read from the file; bytes of content returned */
    z_stream z;            /* other files use its input and output sides too */
#ifdef SMALLWORLD_XZ
    lzma_stream lzma;
#endif
    uint8_t input[CHUNK];
} source;

/* Reads more of the file into the input buffer. Fails on a signal, see core/stop.h. */
static bool refill(source *s, error *err) {
    memmove(s->input, s->z.next_in, s->z.avail_in);
    s->z.next_in = s->input;
    while (s->z.avail_in < CHUNK) {
        if (s->waits ? !stop_wait_readable(s->file, err) : !stop_check(err)) return false;
        ssize_t count = read(s->file, s->input + s->z.avail_in, CHUNK - s->z.avail_in);
        if (count < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (count < 0) return error_system(err, "read", s->path);
        if (count == 0) break;
        s->z.avail_in += (unsigned)count;
        s->taken += (uint64_t)count;
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
    return s->xz || error_set(err, "%s: cannot start liblzma", s->path);
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
        return error_set(err, "%s: xz cut short: the file ends before its data does", s->path);
    }
    if (status == LZMA_MEMLIMIT_ERROR) {
        return error_set(err, "%s: xz that takes more than 1 GiB to read", s->path);
    }
    return error_set(err, "%s: corrupt xz", s->path);
}
#else
static bool begin_xz(source *s, error *err) {
    return error_set(err, "%s: an xz file, and this program was built without liblzma", s->path);
}

static void end_xz(source *s) {
    (void)s;
}

static bool inflate_xz(source *s, error *err) {
    return begin_xz(s, err);
}
#endif

static void source_close(source *s) {
    if (s->xz) end_xz(s);
    if (s->file >= 0) close(s->file);
    if (s->gzip) inflateEnd(&s->z);
}

/* Opens a file. `s` must be zeroed. The caller calls source_close even if this fails. */
static bool source_open(source *s, const char *path, error *err) {
    const bool standard = strcmp(path, "-") == 0;
    struct stat status;
    s->path = standard ? "standard input" : path;
    /* O_NONBLOCK: do not wait for a pipe's writer */
    s->file = open(standard ? "/dev/stdin" : path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    s->z.next_in = s->input;
    if (s->file < 0 || fstat(s->file, &status) != 0) return error_system(err, "open", s->path);
    s->waits = !S_ISREG(status.st_mode);
    if (!refill(s, err)) return false;
    if (s->z.avail_in == 0) return error_set(err, "%s: empty", s->path);
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

static bool next_member(source *s, error *err) {
    if (s->z.avail_in == 0 && !refill(s, err)) return false;
    s->end = s->z.avail_in == 0;
    if (s->end) return true;
    if (!at_magic(s)) {
        return error_set(err, "%s: corrupt gzip: other bytes follow its end", s->path);
    }
    inflateReset(&s->z);
    return true;
}

/* Reads up to `room` bytes. `*count` is 0 only at the end. */
static bool source_read(source *s, uint8_t *out, size_t room, size_t *count, error *err) {
    z_stream *z = &s->z;
    if (!s->gzip && !s->xz) {
        if (z->avail_in == 0 && !refill(s, err)) return false;
        *count = z->avail_in < room ? z->avail_in : room;
        memcpy(out, z->next_in, *count);
        z->next_in += *count;
        z->avail_in -= (unsigned)*count;
        return true;
    }
    z->next_out = out;
    z->avail_out = room < 1u << 30 ? (unsigned)room : 1u << 30;
    while (z->avail_out > 0 && !s->end) {
        if (z->avail_in == 0 && !refill(s, err)) return false;
        if (s->xz) {
            if (!inflate_xz(s, err)) return false;
            continue;
        }
        if (z->avail_in == 0) {
            return error_set(err, "%s: gzip cut short: the file ends before its data does",
                             s->path);
        }
        int status = inflate(z, Z_NO_FLUSH);
        if (status == Z_STREAM_END) {
            if (!next_member(s, err)) return false;
        } else if (status != Z_OK) {
            return error_set(err, "%s: corrupt gzip: %s", s->path,
                             z->msg ? z->msg : zError(status));
        }
    }
    *count = (size_t)(z->next_out - out);
    s->given += *count;
    if (s->given > FREE_BYTES && s->given / MAX_RATIO > s->taken) {
        return error_set(err, "%s: %s of more than %d times its size, which no text is", s->path,
                         s->xz ? "xz" : "gzip", MAX_RATIO);
    }
    return true;
}

/* ------------------------------------------------------------------------------------ spool */

struct spool {
    uint8_t *bytes;
    uint64_t size;
    int users;
};

static void spool_release(spool *s) {
    if (!s || --s->users > 0) return;
    if (s->size > 0) {
        file_unguard(s->bytes);
        munmap(s->bytes, s->size);
    }
    free(s);
}

/* The state of reading a corpus. Its size is that of the spool so far. */
typedef struct reading {
    corpus *corpus;
    size_t capacity; /* of the array of documents */
    bool html_entities;
    bool labelled;      /* whether it is known if labels are names or integers */
    const char *folder; /* of the spool */
    FILE *spool;
} reading;

static bool spool_failed(const reading *r, error *err) {
    return error_set(err, "cannot write the spool file in %s: %s; TMPDIR can name another folder",
                     r->folder, strerror(errno));
}

static bool spool_begin(reading *r, error *err) {
    r->folder = file_scratch_folder();
    int file = open(r->folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600); /* a file without a name */
    if (file < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL)) {
        char *path = mem_format("%s/smallworld-XXXXXX",
                                r->folder); /* for file systems without unnamed files */
        file = mkostemp(path, O_CLOEXEC);
        if (file >= 0) unlink(path);
        free(path);
    }
    if (file >= 0) r->spool = fdopen(file, "w+b");
    if (file >= 0 && !r->spool) close(file);
    return r->spool || spool_failed(r, err);
}

static bool spool_write(reading *r, const void *bytes, size_t count, error *err) {
    if (fwrite(bytes, 1, count, r->spool) != count) return spool_failed(r, err);
    r->corpus->size += count;
    return true;
}

/* Maps the spool and closes its file: some file systems report a full disk only on closing. */
static bool spool_finish(reading *r, error *err) {
    corpus *c = r->corpus;
    c->spool = mem_alloc(1, sizeof *c->spool);
    *c->spool = (spool){.users = 1};
    void *bytes = NULL;
    bool written = fflush(r->spool) == 0;
    if (written && c->size > 0) {
        bytes = mmap(NULL, c->size, PROT_READ, MAP_SHARED, fileno(r->spool), 0);
        written = bytes != MAP_FAILED;
        if (written) {
            *c->spool = (spool){bytes, c->size, 1};
            file_guard(bytes, c->size, r->folder);
        }
    }
    if (!written) spool_failed(r, err);
    if (fclose(r->spool) != 0 && written) written = spool_failed(r, err);
    r->spool = NULL;
    c->bytes = c->spool->bytes;
    return written;
}

/* --------------------------------------------------------------------------------- entities */

static const struct {
    const char *name;
    uint32_t code;
} entities[] = {{"&amp;", '&'},  {"&lt;", '<'},    {"&gt;", '>'},
                {"&quot;", '"'}, {"&apos;", '\''}, {"&nbsp;", 0xa0}};

static int digit_value(uint8_t byte) {
    if (byte >= '0' && byte <= '9') return byte - '0';
    byte |= 'a' ^ 'A';
    return byte >= 'a' && byte <= 'f' ? byte - 'a' + 10 : 16;
}

/* The length of "&#N;" or "&#xN;" at `text`. Returns 0 if there is none or if N is not a character.
 */
static size_t number_at(const uint8_t *text, size_t length, uint32_t *code) {
    if (length < 3 || text[1] != '#') return 0;
    bool hexadecimal = text[2] == 'x' || text[2] == 'X';
    size_t i = hexadecimal ? 3 : 2;
    int base = hexadecimal ? 16 : 10;
    *code = 0;
    for (; i < length && digit_value(text[i]) < base && *code <= 0x10ffff; i++) {
        *code = *code * (uint32_t)base + (uint32_t)digit_value(text[i]);
    }
    bool character = *code > 0 && *code <= 0x10ffff && (*code < 0xd800 || *code > 0xdfff);
    return character && i < length && text[i] == ';' ? i + 1 : 0;
}

static size_t entity_at(const uint8_t *text, size_t length, uint32_t *code) {
    for (size_t i = 0; i < sizeof entities / sizeof entities[0]; i++) {
        size_t size = strlen(entities[i].name);
        if (size <= length && memcmp(text, entities[i].name, size) == 0) {
            *code = entities[i].code;
            return size;
        }
    }
    return number_at(text, length, code);
}

static size_t put_utf8(uint8_t *out, uint32_t code) {
    int more = code < 0x80 ? 0 : code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    static const uint8_t lead[] = {0, 0xc0, 0xe0, 0xf0};
    out[0] = (uint8_t)(lead[more] | code >> 6 * more);
    for (int i = 1; i <= more; i++) out[i] = (uint8_t)(0x80 | (code >> 6 * (more - i) & 0x3f));
    return (size_t)more + 1;
}

/* Decodes entities once, in place, and returns the new length. No entity is shorter than its UTF-8.
 * Incomplete entities stay as they are. */
static size_t decode_entities(uint8_t *text, size_t length) {
    size_t out = 0, in = 0;
    while (in < length) {
        uint8_t *found = memchr(text + in, '&', length - in);
        size_t plain = found ? (size_t)(found - text) - in : length - in;
        memmove(text + out, text + in, plain);
        out += plain;
        in += plain;
        if (!found) break;
        uint32_t code;
        size_t size = entity_at(text + in, length - in, &code);
        out += put_utf8(text + out, size ? code : '&');
        in += size ? size : 1;
    }
    return out;
}

/* ---------------------------------------------------------------------------------- reading */

static document *append(corpus *c, size_t *capacity) {
    c->documents = mem_grow(c->documents, capacity, c->count + 1, sizeof *c->documents);
    return &c->documents[c->count++];
}

static bool parse_label(const uint8_t *text, size_t length, int32_t *label) {
    const int64_t limit = (int64_t)INT32_MAX + 1;
    size_t sign = length > 0 && (text[0] == '-' || text[0] == '+');
    int64_t value = 0;
    for (size_t i = sign; i < length; i++) {
        if (text[i] < '0' || text[i] > '9' || value > limit) return false;
        value = 10 * value + (text[i] - '0');
    }
    if (sign && text[0] == '-') value = -value;
    *label = (int32_t)value;
    return length > sign && value == *label;
}

/* The first few bytes as text for a message. */
static const char *shown(const uint8_t *bytes, size_t length, char *text, size_t size) {
    size_t i = 0;
    for (; i < length && i + 1 < size; i++) {
        text[i] = (char)(bytes[i] >= ' ' && bytes[i] <= '~' ? bytes[i] : '?');
    }
    text[i] = '\0';
    return text;
}

size_t corpus_clean(uint8_t *text, size_t length, const corpus_options *options) {
    if (options->html_entities) length = decode_entities(text, length);
    for (size_t i = 0; i < length; i++) {
        if (text[i] == '\r' || text[i] == '\n') text[i] = ' ';
    }
    return length;
}

/* Whether a label is a name: short text that begins like a word. */
static bool is_name(const uint8_t *text, size_t length) {
    if (length == 0 || length > CORPUS_NAME_BYTES || !utf8_valid(text, length)) return false;
    for (size_t i = 0; i < length; i++) {
        if (text[i] < ' ' || text[i] == 0x7F) return false;
    }
    uint8_t letter = text[0] | 0x20;
    return (letter >= 'a' && letter <= 'z') || text[0] == '_' || text[0] >= 0x80;
}

/* The number of a name, in the order of first occurrence. Adds new names. Returns -1 if there are
 * too many. */
static int32_t number_name(corpus *c, const uint8_t *text, size_t length) {
    for (int k = 0; k < c->name_count; k++) {
        if (strlen(c->names[k]) == length && memcmp(c->names[k], text, length) == 0) return k;
    }
    if (c->name_count == CORPUS_MAX_NAMES) return -1;
    c->names = mem_resize(c->names, (size_t)c->name_count + 1, sizeof *c->names);
    c->names[c->name_count] = mem_format("%.*s", (int)length, (const char *)text);
    return c->name_count++;
}

/* Reads a label. The first labelled document decides whether labels are names or integers. */
static bool read_label(reading *r, const char *path, uint64_t number, const uint8_t *text,
                       size_t length, int32_t *label, error *err) {
    corpus *c = r->corpus;
    char got[24];
    bool integer = parse_label(text, length, label), name = is_name(text, length);
    if (integer && *label == -1) return true;
    bool names = r->labelled ? c->names != NULL : name;
    r->labelled = true;
    if (names && name) {
        *label = number_name(c, text, length);
        return *label >= 0 || error_set(err, "%s:%" PRIu64 ": more than %d different labels", path,
                                        number, CORPUS_MAX_NAMES);
    }
    if (!names && integer) return true;
    shown(text, length, got, sizeof got);
    if (!names) {
        return error_set(err, "%s:%" PRIu64 ": expected a 32-bit integer as label, got '%s'", path,
                         number, got);
    }
    return error_set(err, "%s:%" PRIu64 ": expected a name as label, like '%s', or -1, got '%s'",
                     path, number, c->names[0], got);
}

static int compare_names(const void *a, const void *b, void *names) {
    char *const *all = names;
    return strcmp(all[*(const int32_t *)a], all[*(const int32_t *)b]);
}

/* Renumbers names in alphabetical order, so that equal sets of names have equal numbers. */
static void sort_names(corpus *c) {
    int32_t order[CORPUS_MAX_NAMES], number[CORPUS_MAX_NAMES];
    char *sorted[CORPUS_MAX_NAMES];
    for (int k = 0; k < c->name_count; k++) order[k] = k;
    qsort_r(order, (size_t)c->name_count, sizeof *order, compare_names, c->names);
    for (int k = 0; k < c->name_count; k++) {
        sorted[k] = c->names[order[k]];
        number[order[k]] = k;
    }
    for (int k = 0; k < c->name_count; k++) c->names[k] = sorted[k];
    for (size_t i = 0; c->names && i < c->count; i++) {
        document *d = &c->documents[i];
        if (!d->raw && d->label >= 0) d->label = number[d->label];
    }
}

/* Adds the document on one line. Changes the line. */
static bool add_line(reading *r, const char *path, uint64_t number, uint8_t *line, size_t length,
                     error *err) {
    uint8_t *tab = memchr(line, '\t', length);
    if (!tab) {
        return error_set(err, "%s:%" PRIu64 ": expected LABEL<TAB>TEXT, found no tab", path,
                         number);
    }
    document d = {.offset = r->corpus->size};
    if (!read_label(r, path, number, line, (size_t)(tab - line), &d.label, err)) return false;
    uint8_t *text = tab + 1;
    length -= (size_t)(text - line);
    d.hash = hash_end(hash_bytes(hash_start, text, length));
    length = corpus_clean(text, length, &(corpus_options){r->html_entities});
    d.length = 2 + length + 1;
    *append(r->corpus, &r->capacity) = d;
    return spool_write(r, "\n ", 2, err) && spool_write(r, text, length, err) &&
           spool_write(r, " ", 1, err);
}

/* Reads a file by lines, with a buffer that grows to the longest line. */
typedef struct lines {
    source *source;
    uint8_t *buffer;
    size_t capacity, begin, end; /* bytes not yet returned: [begin, end) */
    uint8_t *text;               /* the current line without its end; NULL after the last line */
    size_t length;
    uint64_t number; /* the current line's number, from 1 */
} lines;

static bool next_line(lines *l, error *err) {
    for (size_t scanned = 0;;) {
        size_t left = l->end - l->begin;
        uint8_t *start = l->buffer ? l->buffer + l->begin : NULL; /* NULL before the first read */
        uint8_t *newline = left > scanned ? memchr(start + scanned, '\n', left - scanned) : NULL;
        if (newline) {
            l->text = start;
            l->length = (size_t)(newline - start);
            l->begin += l->length + 1;
            if (l->length > 0 && newline[-1] == '\r') l->length--;
            return true;
        }
        if (left > MAX_LINE) {
            return error_set(err, "%s:%" PRIu64 ": a line of more than %d bytes", l->source->path,
                             l->number, MAX_LINE);
        }
        if (l->begin > 0) memmove(l->buffer, start, left);
        l->buffer = mem_grow(l->buffer, &l->capacity, left + CHUNK, 1);
        size_t room = l->capacity - left, count = 0;
        if (!source_read(l->source, l->buffer + left, room, &count, err)) return false;
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

static bool read_documents(reading *r, source *s, error *err) {
    lines l = {.source = s};
    bool read;
    for (l.number = 1; (read = next_line(&l, err)) && l.text; l.number++) {
        if (l.number == 1 && l.length >= 3 && memcmp(l.text, "\xEF\xBB\xBF", 3) == 0) {
            l.text += 3; /* UTF-8's byte order mark */
            l.length -= 3;
        }
        read = add_line(r, s->path, l.number, l.text, l.length, err);
        if (!read) break;
    }
    free(l.buffer);
    return read;
}

static bool read_raw(reading *r, source *s, error *err) {
    document d = {.offset = r->corpus->size, .hash = hash_start, .raw = 1};
    uint8_t *bytes = mem_alloc(CHUNK, 1);
    size_t count = 0;
    bool read;
    while ((read = source_read(s, bytes, CHUNK, &count, err)) && count > 0) {
        d.hash = hash_bytes(d.hash, bytes, count);
        read = spool_write(r, bytes, count, err);
        if (!read) break;
    }
    free(bytes);
    d.hash = hash_end(d.hash);
    d.length = r->corpus->size - d.offset;
    *append(r->corpus, &r->capacity) = d;
    return read;
}

/* Whether a file that is not compressed begins with LABEL<TAB>. */
static bool begins_with_label(const source *s) {
    const uint8_t *next = s->z.next_in, *end = next + s->z.avail_in;
    if (end - next >= 3 && memcmp(next, "\xEF\xBB\xBF", 3) == 0) next += 3;
    if (next < end && *next == '-') next++;
    const uint8_t *digits = next;
    while (next < end && *next >= '0' && *next <= '9') next++;
    return !s->gzip && !s->xz && next > digits && next < end && *next == '\t';
}

static bool read_file(reading *r, const char *path, error *err) {
    uint64_t before = r->corpus->size;
    source *s = mem_alloc(1, sizeof *s);
    s->file = -1;
    bool read = source_open(s, path, err);
    if (read &&
        (strcmp(path, "-") == 0 ? begins_with_label(s)
                                : file_ends_in(path, ".tsv") || file_ends_in(path, ".tsv.gz") ||
                                      file_ends_in(path, ".tsv.xz"))) {
        read = read_documents(r, s, err);
    } else if (read) {
        read = read_raw(r, s, err);
    }
    const char *name = s->path;
    source_close(s);
    free(s);
    if (read && r->corpus->size == before) read = error_set(err, "%s: empty", name);
    return read;
}

/* ------------------------------------------------------------------------- folders and lists */

enum { MOST_NESTED = 16 };

static bool read_path(reading *r, const char *path, int depth, error *err);

static int is_shown(const struct dirent *entry) {
    return entry->d_name[0] != '.';
}

static int by_bytes(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name); /* in any locale */
}

static bool read_folder(reading *r, const char *folder, int depth, error *err) {
    struct dirent **entries;
    const int count = scandir(folder, &entries, is_shown, by_bytes);
    if (count < 0) return error_system(err, "read", folder);
    bool read = count > 0 || error_set(err, "%s: expected a folder with files, found none", folder);
    for (int i = 0; i < count; i++) {
        char *path = mem_format("%s/%s", folder, entries[i]->d_name);
        read = read && read_path(r, path, depth + 1, err);
        free(path);
        free(entries[i]);
    }
    free(entries);
    return read;
}

/* A file that a list names, relative to the list's own folder. */
static bool read_listed(reading *r, const char *list, const char *name, int depth, error *err) {
    const char *slash = strrchr(list, '/');
    const int folder = *name != '/' && slash ? (int)(slash - list) + 1 : 0;
    char *path = mem_format("%.*s%s", folder, list, name);
    const bool read = read_path(r, path, depth + 1, err);
    free(path);
    return read;
}

static bool read_list(reading *r, const char *list, int depth, error *err) {
    FILE *in = fopen(list, "re");
    if (!in) return error_system(err, "open", list);
    char *line = NULL;
    size_t room = 0, files = 0;
    ssize_t length;
    bool read = true;
    while (read && (length = getline(&line, &room, in)) > 0) {
        while (length > 0 && strchr("\r\n", line[length - 1])) line[--length] = '\0';
        if (length == 0) continue;
        read = read_listed(r, list, line, depth, err);
        files++;
    }
    if (read && ferror(in)) read = error_system(err, "read", list);
    if (read && files == 0)
        read = error_set(err, "%s: expected a file on each line, found none", list);
    free(line);
    fclose(in);
    return read;
}

static bool read_path(reading *r, const char *path, int depth, error *err) {
    if (depth > MOST_NESTED) {
        return error_set(err, "%s: folders and lists more than %d deep", path, MOST_NESTED);
    }
    if (strcmp(path, "-") != 0 && file_is_folder(path)) return read_folder(r, path, depth, err);
    if (file_ends_in(path, ".list")) return read_list(r, path, depth, err);
    return read_file(r, path, err);
}

corpus *corpus_read(char *const *files, int count, const corpus_options *options, error *err) {
    reading r = {.corpus = mem_alloc(1, sizeof *r.corpus), .html_entities = options->html_entities};
    bool read = spool_begin(&r, err);
    for (int i = 0; i < count && read; i++) read = read_path(&r, files[i], 0, err);
    if (read && r.corpus->count > UINT32_MAX)
        read = error_set(err, "expected fewer than 2^32 documents");
    if (read) read = spool_finish(&r, err);
    if (r.spool) fclose(r.spool);
    if (!read) {
        corpus_free(r.corpus);
        return NULL;
    }
    r.corpus->documents = mem_resize(r.corpus->documents, r.corpus->count, sizeof(document));
    sort_names(r.corpus);
    return r.corpus;
}

void corpus_free(corpus *c) {
    if (!c) return;
    spool_release(c->spool);
    for (int k = 0; k < c->name_count; k++) free(c->names[k]);
    free(c->names);
    free(c->documents);
    free(c);
}

/* Combines the documents' hashes. Both parts of a split raw text have the hash of the whole, so
 * their places count too. */
int64_t corpus_hash(const corpus *c) {
    uint64_t hash = hash_start;
    for (size_t i = 0; i < c->count; i++) {
        const document *d = &c->documents[i];
        const uint64_t words[] = {d->hash, d->length, d->offset};
        for (size_t w = 0; w < sizeof words / sizeof words[0]; w++) {
            for (int byte = 0; byte < 8; byte++) {
                const uint8_t one = (uint8_t)(words[w] >> 8 * byte);
                hash = hash_bytes(hash, &one, 1);
            }
        }
    }
    return (int64_t)(hash_end(hash) >> 1);
}

/* -------------------------------------------------------------------------------- selection */

static int compare_hashes(const void *a, const void *b) {
    const uint64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

int64_t corpus_exclude(corpus *c, char *const *files, int count, const corpus_options *options,
                       error *err) {
    corpus *other = corpus_read(files, count, options, err);
    if (!other) return -1;
    uint64_t *hashes = mem_alloc(other->count, sizeof *hashes);
    for (size_t i = 0; i < other->count; i++) hashes[i] = other->documents[i].hash;
    qsort(hashes, other->count, sizeof *hashes, compare_hashes);
    size_t kept = 0, before = c->count;
    for (size_t i = 0; i < before; i++) {
        document d = c->documents[i];
        if (bsearch(&d.hash, hashes, other->count, sizeof *hashes, compare_hashes)) {
            c->size -= d.length;
        } else {
            c->documents[kept++] = d;
        }
    }
    c->count = kept;
    free(hashes);
    corpus_free(other);
    return (int64_t)(before - kept);
}

/* The number of bytes at the end of a document that move to the new corpus: some of a raw text, all
 * or none of other documents. */
static uint64_t bytes_to_move(const document *d, double fraction) {
    if (d->raw) return (uint64_t)((double)d->length * fraction);
    return (double)(d->hash >> 11) * 0x1p-53 < fraction ? d->length : 0;
}

/* Both parts of a raw text keep the hash of the whole, so that excluding the text drops both. */
corpus *corpus_split(corpus *c, double fraction) {
    corpus *part = mem_alloc(1, sizeof *part);
    *part = (corpus){.spool = c->spool, .bytes = c->bytes};
    part->spool->users++;
    size_t kept = 0, capacity = 0;
    for (size_t i = 0; i < c->count; i++) {
        document rest = c->documents[i], moved = rest;
        moved.length = bytes_to_move(&rest, fraction);
        rest.length -= moved.length;
        moved.offset += rest.length;
        if (moved.length > 0) *append(part, &capacity) = moved;
        if (rest.length > 0) c->documents[kept++] = rest;
        part->size += moved.length;
    }
    c->count = kept;
    c->size -= part->size;
    return part;
}
