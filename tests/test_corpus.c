/* Corpora: what is read from files, and what is left out of it. */
#include "core/memory.h"
#include "corpora.h"
#include "data/files.h"
#include "support.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Where corpora keep their text. */
static int make_spool(void **state) {
    (void)state;
    if (mkdir(path_of("spool"), 0777) != 0) return -1;
    return setenv("TMPDIR", path_of("spool"), 1);
}

static const corpus_options decoding = {.html_entities = true};

/* Reads a TSV with this content. */
static corpus *read_tsv(const corpus_options *options, const char *text) {
    const char *name = "given.tsv";
    write_text(path_of(name), text);
    return read_files(options, 1, &name);
}

static void assert_refused(const char *name, const char *expected) {
    error err = {0};
    char *file = path_of(name);
    assert_null(corpus_read(&file, 1, &plain_text, &err));
    if (!strstr(err.text, file) || !strstr(err.text, expected)) {
        fail_msg("expected %s and '%s' in: %s", file, expected, err.text);
    }
    assert_int_equal(err.status, STATUS_FAILED);
}

static void assert_tsv_refused(const char *text, const char *expected) {
    write_text(path_of("wrong.tsv"), text);
    assert_refused("wrong.tsv", expected);
}

static void assert_document(const corpus *c, size_t i, int32_t label, const void *bytes,
                            size_t size) {
    assert_in_range(i, 0, c->count - 1);
    const document *d = &c->documents[i];
    assert_int_equal(d->label, label);
    assert_int_equal(d->length, size);
    assert_memory_equal(c->bytes + d->offset, bytes, size);
}

/* A document of a TSV as text. It holds no NUL. */
static void assert_text(const corpus *c, size_t i, int32_t label, const char *framed) {
    assert_document(c, i, label, framed, strlen(framed));
    assert_int_equal(c->documents[i].raw, 0);
}

/* Asserts that the sizes add up and that documents keep their order and do not overlap. */
static void assert_consistent(const corpus *c) {
    uint64_t size = 0, end = 0;
    for (size_t i = 0; i < c->count; i++) {
        assert_true(c->documents[i].offset >= end);
        end = c->documents[i].offset + c->documents[i].length;
        size += c->documents[i].length;
    }
    assert_int_equal(c->size, size);
}

static int files_in(const char *name) {
    DIR *listing = opendir(path_of(name));
    assert_non_null(listing);
    int count = 0;
    for (struct dirent *entry; (entry = readdir(listing));) count += entry->d_name[0] != '.';
    closedir(listing);
    return count;
}

/* ------------------------------------------------------------------------------------- reading */

static void test_framing(void **state) {
    (void)state;
    corpus *c =
        read_tsv(&plain_text, "1\tgood\n-1\tbad\r\n0\ta\rb\r\r\n7\t\n3\tx\ty &lt;\n2\tno end");
    assert_int_equal(c->count, 6);
    assert_text(c, 0, 1, "\n good ");
    assert_text(c, 1, -1, "\n bad ");
    assert_text(c, 2, 0, "\n a b  ");
    assert_text(c, 3, 7, "\n  ");
    assert_text(c, 4, 3, "\n x\ty &lt; ");
    assert_text(c, 5, 2, "\n no end ");
    assert_consistent(c);
    corpus_free(c);

    c = read_tsv(&plain_text, "-2147483648\t\r\n2147483647\tz\r");
    assert_text(c, 0, INT32_MIN, "\n  ");
    assert_text(c, 1, INT32_MAX, "\n z  "); /* without a line feed the CR belongs to the text */
    corpus_free(c);

    static const char odd[] = "4\t\0\xff\xc3\n5\t\xfe\0\n";
    write_bytes(path_of("odd.tsv"), odd, sizeof odd - 1);
    c = read_one("odd.tsv");
    assert_int_equal(c->count, 2);
    assert_document(c, 0, 4, "\n \0\xff\xc3 ", 6);
    assert_document(c, 1, 5, "\n \xfe\0 ", 5);
    corpus_free(c);
}

/* A byte order mark of UTF-8 before the first line is no part of it; elsewhere it is text. */
static void test_byte_order_mark(void **state) {
    (void)state;
    corpus *c = read_tsv(&plain_text, "\xEF\xBB\xBF"
                                      "1\tone\n0\t\xEF\xBB\xBFtwo\n");
    assert_int_equal(c->count, 2);
    assert_text(c, 0, 1, "\n one ");
    assert_text(c, 1, 0, "\n \xEF\xBB\xBFtwo ");
    corpus_free(c);
    assert_tsv_refused("1\tone\n\xEF\xBB\xBF"
                       "0\ttwo\n",
                       "wrong.tsv:2");
}

static void test_long_line(void **state) {
    (void)state;
    size_t length = 5 << 20;
    buffer file = {0};
    buffer_add_text(&file, "1\tbefore\n2\t");
    uint8_t *text = mem_alloc(length, 1);
    memset(text, 'x', length);
    text[length - 1] = 'y';
    buffer_add(&file, text, length);
    buffer_add_text(&file, "\r\n3\tafter\n");
    write_bytes(path_of("long.tsv"), file.bytes, file.size);
    corpus *c = read_one("long.tsv");
    assert_int_equal(c->count, 3);
    assert_text(c, 0, 1, "\n before ");
    assert_int_equal(c->documents[1].length, length + 3);
    assert_memory_equal(c->bytes + c->documents[1].offset + 2, text, length);
    assert_text(c, 2, 3, "\n after ");
    write_bytes(path_of("long.txt"), text, length);
    corpus *raw = read_one("long.txt");
    assert_document(raw, 0, 0, text, length);
    assert_true(raw->documents[0].hash == c->documents[1].hash);
    corpus_free(raw);
    corpus_free(c);
    free(file.bytes);
    free(text);
}

/* Lines that end before, at and after the end of a chunk. */
static void test_line_at_chunk_end(void **state) {
    (void)state;
    size_t chunk = 1 << 17;
    char *line = mem_alloc(chunk + 3, 1);
    for (size_t length = chunk - 4; length < chunk + 3; length++) {
        memset(line, 'x', length);
        line[0] = '1';
        line[1] = '\t';
        for (int ending = 0; ending < 2; ending++) {
            buffer file = {0};
            buffer_add(&file, line, length);
            buffer_add_text(&file, ending ? "\r\n2\ta\r\n" : "\n2\ta\n");
            write_bytes(path_of("chunk.tsv"), file.bytes, file.size);
            corpus *c = read_one("chunk.tsv");
            assert_int_equal(c->count, 2);
            assert_int_equal(c->documents[0].length, length - 2 + 3);
            assert_int_equal(c->bytes[c->documents[0].length - 2], 'x');
            assert_text(c, 1, 2, "\n a ");
            corpus_free(c);
            free(file.bytes);
        }
    }
    free(line);
}

static void test_raw_text(void **state) {
    (void)state;
    static const char text[] = "\r\nno\tframing &amp;\r\0\xff";
    const char *names[] = {"a.txt", "b.tsv", "c.txt.gz"};
    write_bytes(path_of("a.txt"), text, sizeof text - 1);
    write_text(path_of("b.tsv"), "1\tone\n");
    buffer zipped = {0};
    buffer_add_gzip(&zipped, text, sizeof text - 1);
    write_bytes(path_of("c.txt.gz"), zipped.bytes, zipped.size);
    free(zipped.bytes);
    corpus *c = read_files(&decoding, 3, names);
    assert_int_equal(c->count, 3);
    assert_document(c, 0, 0, text, sizeof text - 1);
    assert_text(c, 1, 1, "\n one ");
    assert_document(c, 2, 0, text, sizeof text - 1);
    assert_int_equal(c->documents[0].raw, 1);
    assert_int_equal(c->documents[2].raw, 1);
    assert_true(c->documents[0].hash == c->documents[2].hash);
    assert_consistent(c);
    corpus_free(c);
}

/* Splits depend on these values: they must never change. */
static void test_hash(void **state) {
    (void)state;
    corpus *c = read_tsv(&decoding, "0\t\n1\ta\r\n2\tfoobar\n3\t&#65;\n4\tA\n");
    assert_true(c->documents[0].hash == 0xf52a15e9a9b5e89b);
    assert_true(c->documents[1].hash == 0x02c0bdbf481420f8);
    assert_true(c->documents[2].hash == 0x404da9e3b74078c2);
    assert_text(c, 3, 3, "\n A ");
    assert_true(c->documents[3].hash != c->documents[4].hash); /* computed before decoding */
    corpus_free(c);
    write_text(path_of("hash.txt"), "foobar");
    c = read_one("hash.txt");
    assert_true(c->documents[0].hash == 0x404da9e3b74078c2);
    corpus_free(c);
}

static void test_entities(void **state) {
    (void)state;
    static const struct {
        const char *text, *decoded;
    } cases[] = {
        {"&amp;&lt;&gt;&quot;&apos;", "&<>\"'"},
        {"a&nbsp;b", "a\xc2\xa0"
                     "b"},
        {"&#65;&#x41;&#X4a;&#x4A;", "AAJJ"},
        {"&#128;&#2047;&#x800;", "\xc2\x80\xdf\xbf\xe0\xa0\x80"},
        {"&#65535;&#x10000;&#1114111;", "\xef\xbf\xbf\xf0\x90\x80\x80\xf4\x8f\xbf\xbf"},
        {"&#0000000000000065;", "A"},
        {"&#10;x&#13;y&#xA;", " x y "},
        {"&amp;lt;", "&lt;"},
        {"&&lt;&", "&<&"},
        {"a & b &", "a & b &"},
        {"&lt &LT; &foo; &; &am", "&lt &LT; &foo; &; &am"},
        {"&#; &#x; &#x &# &#1", "&#; &#x; &#x &# &#1"},
        {"&#0; &#xd800; &#xDFFF; &#1114112;", "&#0; &#xd800; &#xDFFF; &#1114112;"},
        {"&#99999999999999999999;", "&#99999999999999999999;"},
        {"&#4294967361; &#x100000041;", "&#4294967361; &#x100000041;"}, /* 2^32 + 65 */
        {"&#-5; &# 5; &#5f; &#xg;", "&#-5; &# 5; &#5f; &#xg;"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *line = mem_format("9\t%s\n", cases[i].text);
        char *framed = mem_format("\n %s ", cases[i].decoded);
        char *kept = mem_format("\n %s ", cases[i].text);
        corpus *c = read_tsv(&decoding, line);
        assert_text(c, 0, 9, framed);
        corpus_free(c);
        c = read_tsv(&plain_text, line);
        assert_text(c, 0, 9, kept);
        corpus_free(c);
        free(line);
        free(framed);
        free(kept);
    }
    /* The buffer holds "t;" after the end of the text. */
    corpus *c = read_tsv(&decoding, "1\tzzt;\n2\t&l");
    assert_text(c, 1, 2, "\n &l ");
    corpus_free(c);
}

static void test_wrong_lines(void **state) {
    (void)state;
    assert_tsv_refused("1\tfine\nno tab here\n", ".tsv:2: expected LABEL<TAB>TEXT, found no tab");
    assert_tsv_refused("1\ta\n2\tb\n3", ".tsv:3: expected LABEL<TAB>TEXT");
    assert_tsv_refused("\n\n", ".tsv: empty");
    assert_tsv_refused("1\ta\n\tb\n",
                       ".tsv:2: expected a label of at most 255 bytes of text in UTF-8, got 0: ''");
    assert_tsv_refused("\x1b[1m\xff\tx\n", "got 5: '?[1m?'");
}

/* Labels are integers if all are; else all are names, as they are written, in any order. */
static void test_any_label(void **state) {
    (void)state;
    static const struct {
        const char *label, *read;
    } cases[] = {
        {"7", "7"},
        {"4 stars", "4 stars"},
        {"0.5", "0.5"},
        {"1st", "1st"},
        {"b-c", "b-c"},
        {" x ", "x"},
        {"+", "+"},
        {"-2147483648", "-2147483648"},
        {"-12", "-12"},
        {"2147483648", "2147483648"},
        {"5.00", "5.00"},
        {"5", "5"},
        {"007", "007"},
        {"+1", "+1"},
        {"-0", "-0"},
        {"00", "00"},
        {"7", "7"},
        {"1 label that would fill the whole screen", "1 label that would fill the whole screen"},
    };
    enum { CASES = sizeof cases / sizeof cases[0] };
    for (int first = 0; first < CASES; first++) {
        char *text = mem_string("-1\tnone\n");
        for (int i = 0; i < CASES; i++) {
            char *longer = mem_format("%s%s\tx\n", text, cases[(first + i) % CASES].label);
            free(text);
            text = longer;
        }
        corpus *c = read_tsv(&plain_text, text);
        char room[16];
        assert_null(corpus_label(c, 0, room));
        for (int i = 0; i < CASES; i++) {
            assert_string_equal(corpus_label(c, (size_t)i + 1, room),
                                cases[(first + i) % CASES].read);
        }
        assert_int_equal(c->name_count, CASES - 1);
        corpus_free(c);
        free(text);
    }
}

/* 5.0 and 5 are one label where all are whole numbers, some written in either way. */
static void test_whole_labels(void **state) {
    (void)state;
    static const struct {
        const char *text, *labels;
    } cases[] = {
        {"5.0\ta\n5\tb\n7\tc\n", "5 5 7"},
        {"7\ta\n5\tb\n5.00\tc\n", "7 5 5"},
        {"5.0\ta\n7.0\tb\n", "5.0 7.0"},
        {"05\ta\n5.0\tb\n5\tc\n", "05 5.0 5"},
        {"-5.0\ta\n5.0\tb\n5\tc\n", "-5.0 5.0 5"},
        {"x\ta\n5.0\tb\n5\tc\n", "x 5.0 5"},
        {"01\ta\n1\tb\nx\tc\n", "01 1 x"},
        {"x\ta\n01\tb\n1\tc\n", "x 01 1"},
        {"5.\ta\n5\tb\n", "5. 5"},
        {"01067\ta\n1067\tb\n", "01067 1067"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        corpus *c = read_tsv(&plain_text, cases[i].text);
        char labels[64] = "", room[16];
        for (size_t k = 0; k < c->count; k++) {
            strcat(strcat(labels, k ? " " : ""), corpus_label(c, k, room));
        }
        assert_string_equal(labels, cases[i].labels);
        corpus_free(c);
    }
}

/* Tables of every kind: a .tsv is one if its first row names columns, with a table's quotes and
 * labels. */
static void test_tables(void **state) {
    (void)state;
    static const struct {
        const char *name, *text, *first, *last; /* the file, and two of its texts */
        const char *labels;                     /* of the first and the last document */
        size_t count;
    } cases[] = {
        {"a.tsv", "sentence\tlabel\na film\t1\n\nb \"c\" d\t0.0\n", "a film", "b \"c\" d", "1 0",
         2},
        {"a.tsv", "labels\ttext\nx\tone\ny\ttwo\n", "one", "two", "x y", 2},
        {"a.tsv",
         "id\tsentiment\treview\n\"7_8\"\t1\t\"He \"\"said\"\"\tso.\"\n\"9\"\t0\t\"A \\\"b\\\"\"\n"
         "\"10\"\t0\t\"Last.\"\n",
         "He \"said\"\tso.", "Last.", "1 0", 3},
        {"a.tsv", "y\ttext\r-1\ta\r1\tb\r", "a", "b", "-1 1", 2},
        {"a.tsv", "text\temotion\r\none\t\r\ntwo\tjoy\r\n", "one", "two", "none joy", 2},
        {"a.tsv", "1\tone\r0\ttwo", "one", "two", "1 0", 2}, /* no table, of lines that end in CR */
        {"a.tsv", "1\tone\n\n2.0\t\"two\"\n-1\tthree\n-1\tlast\n", "one", "last", "1 none", 4},
        {"a.tsv", "y\ttext\r\n1\t\"one\r\ntwo\"\r\n0\t\"a\nb\"\r\n", "one  two", "a b", "1 0", 2},
        {"a.tsv", "review\tone word\n1\ttwo\n", "one word", "two", "review 1", 2}, /* no header */
        /* A quote that does not end on its line is text where a line within is a row. */
        {"a.tsv", "label\ttext\n1\t\"so\n0\tit \"goes\"\n1\tlast\"\n", "\"so", "last\"", "1 1", 3},
        {"a.tsv", "text\tlabel\n\"so\t1\n\"it goes\"\t0\nlast\"\t1\n", "\"so", "last\"", "1 1", 3},
        {"a.tsv", "label\ttext\n1\t\"open\n0\tlast", "\"open", "last", "1 0", 2},
        {"a.tsv", "label\ttext\n1\ta\n0\t\"b \"\"c", "a", "\"b \"\"c", "1 0", 2},
        {"a.tsv", "text\tlabel\n\"two\nlines\"\t1\nlast\t0\n", "two lines", "last", "1 0", 2},
        {"a.tsv", "id\ttext\tlabel\n7\t\"two\n\nmore\"\t1\n8\tlast\t0\n", "two  more", "last",
         "1 0", 2},
        {"a.tsv", "label\ttext\n1\t\"a\\\"\"\n0\t\"b\" c\"\n", "a\\\"", "b\" c", "1 0", 2},
        {"a.csv",
         "\xEF\xBB\xBFid,Review,class\r\n0,\"very, \"\"good\"\"\",pos\r\n1,\"two\nlines\",neg\r\n",
         "very, \"good\"", "two lines", "pos neg", 2},
        {"a.csv", "label;text\nx;a, b\ny;\"c;d\"\n", "a, b", "c;d", "x y", 2},
        {"a.csv", "sep=;\ntext;label\n5\" wide;-1\n\"a;b\";0\n", "5\" wide", "a;b", "-1 0", 2},
        {"a.csv", "stars,content\n5.0,fine\n,open\n1.0,poor\n,last\n", "fine", "last", "5.0 none",
         4},
        /* Of two columns that may be the text, the likelier one, wherever it stands. */
        {"a.csv", "text,label,content\nthe text,1,x\n", "the text", "the text", "1 1", 1},
        {"a.csv", "content,label,text\nx,1,the text\n", "the text", "the text", "1 1", 1},
        {"a.jsonl",
         "{\"overall\": \"x\", \"label\": \"a\", \"text\": \"one\", \"more\": [1, {\"text\": "
         "2}]}\n\n"
         "{\"label\": \"b\", \"text\": \"two\\nlines\"}\n",
         "one", "two lines", "a b", 2},
        {"a.json",
         "{\"reviewText\": \"one\", \"label\": -1}\n{\"reviewText\": \"two\", \"label\": 1}\n",
         "one", "two", "-1 1", 2},
        {"a.json",
         "\xEF\xBB\xBF [\n  {\"text\": \"}],\",\n   \"label\": 1.0} , "
         "{\"label\": \"a\\\"\", \"text\": \"two\\nlines\"}\n]\n",
         "}],", "two lines", "1.0 a\"", 2},
        {"a.jsonl",
         "{\"stars\": 5.0, \"content\": \"fine\"}\n{\"content\": \"open\"}\n{\"stars\": 1, "
         "\"content\": \"poor\"}\n",
         "fine", "poor", "5 1", 3},
        {"a.json", "{\"text\": null}\n{\"text\": \"a\", \"label\": 1}\n", "a", "a", "1 1", 1},
        {"a.json", "[5, {\"text\": \"a\"}]", "[5, {\"text\": \"a\"}]", "[5, {\"text\": \"a\"}]",
         "none none", 1},
        /* What is mended, or left out. */
        {"a.jsonl",
         "{\"text\": \"a\\ud83d!\"}\n{\"text\": null}\n{\"id\": 3}\n{\"text\": "
         "\"\\ud83d\\ud83d\\ude00\"}\n",
         "a\xEF\xBF\xBD!", "\xEF\xBF\xBD\xF0\x9F\x98\x80", "none none", 2},
        {"a.ft.txt", "__label__pos one\ntwo __label__neg\n", "one", "two", "pos neg", 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_text(path_of(cases[i].name), cases[i].text);
        corpus *c = read_one(cases[i].name);
        const size_t ends[2] = {0, c->count - 1};
        char labels[64] = "", number[16];
        assert_int_equal(c->count, cases[i].count);
        for (int k = 0; k < 2; k++) {
            size_t length;
            const uint8_t *text = corpus_text(c, ends[k], &length);
            const char *expected = k ? cases[i].last : cases[i].first;
            const char *label = corpus_label(c, ends[k], number);
            assert_int_equal(length, strlen(expected));
            assert_memory_equal(text, expected, length);
            strcat(strcat(labels, k ? " " : ""), label ? label : "none");
        }
        assert_string_equal(labels, cases[i].labels);
        corpus_free(c);
    }
}

static void test_wrong_tables(void **state) {
    (void)state;
    static const char *const cases[][3] = {
        {"w.csv", "a,b\n1,2\n",
         ":1: expected the names of columns, one of them text, review, sentence, content or the "
         "like, found a, b"},
        {"w.csv", "text,label\nx,1\nx,1,2\n",
         ":3: expected 2 columns as in the first row, found 3"},
        {"w.csv", "text,label\n\"x,1\n", ":2: expected a closing quote"},
        {"w.csv", "text,label\n", ": empty"},
        {"w.jsonl", "[1]\n", ":1: expected a JSON object"},
        {"w.json", "[{\"text\": \"a\"}, 1]", ":2: expected a JSON object"},
        {"w.json", "[{\"text\": \"a\"} x {\"text\": \"a\"}]", ":2: expected a comma or ]"},
        {"w.json", "[{\"text\": \"a\"}]\n{}", ":2: expected nothing after the array's ]"},
        {"w.json", "[{\"text\": \"a\"},\n{\"text\": \"b", ":2: expected ] at the end"},
        {"w.jsonl", "{\"text\": \"a\"} {\"text\": \"b\"}\n", ":1: expected one JSON object"},
        {"w.jsonl", "{\"text\": \"\\\\u0000\"}\n{\"text\": \"a\\u0000b\"}\n",
         ":2: expected no zero"},
        {"w.jsonl", "{\"txt\": \"a\"}\n{\"txt\": \"b\"}\n", ":1: expected a string text"},
        {"w.jsonl", "{\"text\": \"x\"}\n{\"text\": 1}\n", ":2: expected a string text, review,"},
        {"w.jsonl", "{\"text\": \"x\", \"label\": [1]}\n",
         ":1: expected a name or a number as label"},
        {"w.jsonl", "{\"text\": \"x\", \"label\": \"a\\tb\"}\n",
         ":1: expected a label without tabs"},
        {"w.ft.txt", "__label__a b\nno label\n", ":2: expected a word __label__NAME"},
        {"w.ft.txt", "__label__a b\n__label__a b __label__c\n",
         ":2: expected one word __label__NAME, found several"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_text(path_of(cases[i][0]), cases[i][1]);
        assert_refused(cases[i][0], cases[i][2]);
    }
    write_bytes(path_of("w.jsonl"), "{\"text\": \"a\0b\"}\n", 15);
    assert_refused("w.jsonl", ":1: expected no zero byte");
    for (int k = 0; k < 3; k++) { /* without a mark */
        const char *name = (const char *const[]){"w.csv", "w.tsv", "w.jsonl"}[k];
        write_bytes(path_of(name), "1\0\t\0t\0e\0x\0t\0\n\0{\0}\0", 18);
        assert_refused(name, "UTF-16 text: expected UTF-8 (`iconv");
    }
}

static void test_names(void **state) {
    (void)state;
    const corpus_options options = {0};
    corpus *c = read_tsv(&options, "-1\tnone\ngood\ta\n\xc3\xbc"
                                   "bel\tb\n_x\tc\ngood\td\n");
    assert_int_equal(c->name_count, 3);
    assert_string_equal(c->names[0], "_x");
    assert_string_equal(c->names[1], "good");
    assert_string_equal(c->names[2], "\xc3\xbc"
                                     "bel");
    assert_text(c, 0, -1, "\n none ");
    assert_text(c, 1, 1, "\n a ");
    assert_text(c, 2, 2, "\n b ");
    assert_text(c, 3, 0, "\n c ");
    assert_text(c, 4, 1, "\n d ");
    corpus *half = corpus_split(c, 0.5, 0.5); /* the names stay with the first part */
    assert_int_equal(c->count + half->count, 5);
    corpus_free(half);
    corpus_free(c);
    c = read_tsv(&options, "-1\ta\n7\tb\n");
    assert_null(c->names);
    corpus_free(c);
    assert_tsv_refused("good\ta\n\tb\n", ".tsv:2: expected a label of at most 255 bytes");
    assert_tsv_refused("good\ta\nb\xff\tb\n", "got 2: 'b?'");
    char name[CORPUS_NAME_BYTES + 4];
    memset(name, 'a', sizeof name);
    memcpy(name + CORPUS_NAME_BYTES, "\tb\n", 4);
    c = read_tsv(&options, name);
    assert_int_equal(strlen(c->names[0]), CORPUS_NAME_BYTES);
    corpus_free(c);
    memcpy(name + CORPUS_NAME_BYTES, "a\tb", 4);
    name[sizeof name - 1] = '\0';
    assert_tsv_refused(name,
                       "expected a label of at most 255 bytes of text in UTF-8, got 256: 'aaa");
}

static void test_unreadable(void **state) {
    (void)state;
    assert_refused("spool", "expected a folder with files, found none");
    write_text(path_of("empty.txt"), "");
    write_text(path_of("empty.tsv"), "");
    write_text(path_of("empty.tsv.gz"), "");
    assert_refused("empty.txt", ": empty");
    assert_refused("empty.tsv", ": empty");
    assert_refused("empty.tsv.gz", ": empty");
    buffer nothing = {0};
    buffer_add_gzip(&nothing, "", 0);
    write_bytes(path_of("nothing.txt.gz"), nothing.bytes, nothing.size);
    write_bytes(path_of("nothing.tsv.gz"), nothing.bytes, nothing.size);
    assert_refused("nothing.txt.gz", ": empty");
    assert_refused("nothing.tsv.gz", ": empty");
    free(nothing.bytes);
    write_text(path_of("good.txt"), "x");
    char *files[] = {path_of("good.txt"), path_of("absent.txt")};
    error err = {0};
    assert_null(corpus_read(files, 2, &plain_text, &err));
    assert_contains(err.text, files[1]);
    corpus *none = corpus_read(files, 0, &plain_text, &err);
    assert_non_null(none);
    assert_int_equal(none->count + none->size, 0);
    corpus_free(none);
    corpus_free(NULL);
}

static void test_spool(void **state) {
    (void)state;
    write_random("spooled.tsv", 2000, 2000, NULL);
    corpus *c = read_one("spooled.tsv");
    assert_int_equal(files_in("spool"), 0); /* the file is unlinked at once */
    corpus_free(c);

    char *file = path_of("spooled.tsv");
    error err = {0};
    setenv("TMPDIR", path_of("absent"), 1);
    assert_null(corpus_read(&file, 1, &plain_text, &err));
    assert_contains(err.text, path_of("absent"));
    setenv("TMPDIR", "", 1);
    c = corpus_read(&file, 1, &plain_text, &err);
    setenv("TMPDIR", path_of("spool"), 1);
    assert_non_null(c);
    corpus_free(c);
}

/* ---------------------------------------------------------------------------------------- gzip */

static const char two_lines[] = "1\tfirst document, first document\n0\tsecond\n";

static void assert_two_lines(const corpus *c) {
    assert_int_equal(c->count, 2);
    assert_text(c, 0, 1, "\n first document, first document ");
    assert_text(c, 1, 0, "\n second ");
}

static void test_gzip(void **state) {
    (void)state;
    buffer zipped = {0};
    buffer_add_gzip(&zipped, two_lines, sizeof two_lines - 1);
    /* The content decides, not the name. */
    static const char *names[] = {"zipped.tsv.gz", "zipped.tsv"};
    for (int i = 0; i < 2; i++) {
        write_bytes(path_of(names[i]), zipped.bytes, zipped.size);
        corpus *c = read_one(names[i]);
        assert_two_lines(c);
        corpus_free(c);
    }
    zipped.bytes[zipped.size - 8] ^= 1;
    write_bytes(path_of("crc.tsv.gz"), zipped.bytes, zipped.size);
    assert_refused("crc.tsv.gz", "corrupt gzip: incorrect data check");
    free(zipped.bytes);
    write_text(path_of("text.tsv.gz"), two_lines);
    assert_refused("text.tsv.gz", "not a gzip file, though its name ends in .gz");
}

static void test_gzip_members(void **state) {
    (void)state;
    buffer zipped = {0};
    buffer_add_gzip(&zipped, two_lines, 10); /* in the midst of a line */
    size_t first = zipped.size;
    buffer_add_gzip(&zipped, "", 0);
    size_t second = zipped.size;
    buffer_add_gzip(&zipped, two_lines + 10, sizeof two_lines - 1 - 10);
    write_bytes(path_of("members.tsv.gz"), zipped.bytes, zipped.size);
    corpus *c = read_one("members.tsv.gz");
    assert_two_lines(c);
    corpus_free(c);

    for (size_t size = 1; size < zipped.size; size++) { /* cut short at every byte */
        write_bytes(path_of("cut.tsv.gz"), zipped.bytes, size);
        write_bytes(path_of("cut.raw"), zipped.bytes, size);
        /* Only whole members are left, so nothing shows that some are missing. */
        if (size == first || size == second) {
            c = read_one("cut.tsv.gz");
            assert_text(c, 0, 1, "\n first do ");
            corpus_free(c);
        } else {
            assert_refused("cut.tsv.gz", "gzip cut short");
            assert_refused("cut.raw", "gzip cut short");
        }
    }

    static const char *tails[] = {"garbage", "\n", "\x1f\x8c"};
    for (int i = 0; i < 3; i++) {
        buffer longer = {0};
        buffer_add(&longer, zipped.bytes, zipped.size);
        buffer_add_text(&longer, tails[i]);
        write_bytes(path_of("longer.tsv.gz"), longer.bytes, longer.size);
        assert_refused("longer.tsv.gz", "other bytes follow its end");
        free(longer.bytes);
    }
    for (int zeros = 1; zeros < 300000; zeros *= 40) { /* padding, also of more than a chunk */
        while (zipped.size % 300000 < (size_t)zeros) buffer_add(&zipped, "\0", 1);
        write_bytes(path_of("longer.tsv.gz"), zipped.bytes, zipped.size);
        c = read_one("longer.tsv.gz");
        assert_two_lines(c);
        corpus_free(c);
    }
    buffer_add_text(&zipped, "x");
    write_bytes(path_of("longer.tsv.gz"), zipped.bytes, zipped.size);
    assert_refused("longer.tsv.gz", "other bytes follow its end");
    free(zipped.bytes);
}

/* The text is so long that members, chunks and windows end at different places. */
static void test_gzip_long(void **state) {
    (void)state;
    buffer framed = {0}, zipped = {0}, file = {0};
    write_random("source.tsv", 1500, 800, &framed);
    FILE *in = fopen(path_of("source.tsv"), "rb");
    uint8_t bytes[70001];
    for (size_t count; (count = fread(bytes, 1, sizeof bytes, in)) > 0;) {
        buffer_add(&file, bytes, count);
        buffer_add_gzip(&zipped, bytes, count);
    }
    fclose(in);
    write_bytes(path_of("long.tsv.gz"), zipped.bytes, zipped.size);
    corpus *c = read_one("long.tsv.gz");
    assert_int_equal(c->size, framed.size);
    assert_memory_equal(c->bytes, framed.bytes, framed.size);
    corpus_free(c);
    write_bytes(path_of("long.gz"), zipped.bytes, zipped.size);
    c = read_one("long.gz");
    assert_document(c, 0, 0, file.bytes, file.size);
    corpus_free(c);
    write_bytes(path_of("long.tsv.gz"), zipped.bytes, zipped.size / 2);
    assert_refused("long.tsv.gz", "gzip cut short");
    free(framed.bytes);
    free(zipped.bytes);
    free(file.bytes);
}

/* ----------------------------------------------------------------------------------- selection */

static void test_exclude(void **state) {
    (void)state;
    write_text(path_of("test.tsv"), "1\tseen\r\n0\ttwice\n0\ttwice\n1\t&lt;\n");
    write_text(path_of("test.txt"), "a raw text");
    write_text(path_of("train.tsv"),
               "0\tfirst\n0\tseen\n1\ttwice\n-1\ttwice\n0\tseen \n0\t<\n0\t&lt;\n");
    write_text(path_of("same.txt"), "a raw text");
    write_text(path_of("other.txt"), "another raw text");
    char *files[] = {path_of("test.tsv"), path_of("test.txt"), path_of("absent.tsv")};
    const char *names[] = {"train.tsv", "same.txt", "other.txt"};
    error err = {0};
    corpus *c = read_files(&decoding, 3, names);
    assert_int_equal(corpus_exclude(c, files, 3, &decoding, &err), -1);
    assert_contains(err.text, files[2]);
    assert_int_equal(c->count, 9);

    assert_int_equal(corpus_exclude(c, files, 2, &decoding, &err), 5);
    assert_int_equal(c->count, 4);
    assert_text(c, 0, 0, "\n first ");
    assert_text(c, 1, 0, "\n seen  ");
    assert_text(c, 2, 0, "\n < "); /* the file holds other bytes that read as the same text */
    assert_document(c, 3, 0, "another raw text", 16);
    assert_consistent(c);
    assert_int_equal(corpus_exclude(c, files, 2, &plain_text, &err), 0);
    assert_int_equal(corpus_exclude(c, files, 0, &plain_text, &err), 0);
    char *rest[] = {path_of("train.tsv"), path_of("other.txt")};
    assert_int_equal(corpus_exclude(c, rest, 2, &plain_text, &err), 4);
    assert_int_equal(c->count, 0);
    assert_int_equal(c->size, 0);
    corpus_free(c);
}

static void test_split(void **state) {
    (void)state;
    enum { COUNT = 10000 };
    write_random("split.tsv", COUNT, 60, NULL);
    corpus *c = read_one("split.tsv"), *again = read_one("split.tsv");
    uint64_t size = c->size;
    corpus *part = corpus_split(c, 0.1, 0.1), *part_again = corpus_split(again, 0.1, 0.1);
    assert_in_range(part->count, 850, 1150); /* 5 standard deviations */
    assert_int_equal(part->count + c->count, COUNT);
    assert_int_equal(part->size + c->size, size);
    assert_consistent(c);
    assert_consistent(part);
    assert_int_equal(part->count, part_again->count);
    size_t next = 0; /* both parts keep the order, and no document is lost: the labels count up */
    for (size_t i = 0, j = 0; next < COUNT; next++) {
        if (i < part->count && part->documents[i].label == (int32_t)next) {
            assert_true((double)part->documents[i].hash < 0.1 * 0x1p64);
            assert_int_equal(part_again->documents[i].label, next);
            i++;
        } else {
            assert_in_range(j, 0, c->count - 1);
            assert_int_equal(c->documents[j].label, next);
            assert_true((double)c->documents[j].hash >= 0.1 * 0x1p64);
            j++;
        }
    }
    corpus_free(again);

    /* a larger fraction includes the documents of a smaller one; the spool lives as long as its
     * last user */
    corpus_free(c);
    corpus *deeper = corpus_split(part, 0.05, 0.05);
    assert_in_range(deeper->count, 350, 650);
    corpus_free(part);
    size_t count = deeper->count;
    corpus *all = corpus_split(deeper, 1, 1), *none = corpus_split(all, 0, 0);
    assert_int_equal(deeper->count, 0);
    assert_int_equal(deeper->size, 0);
    assert_int_equal(all->count, count);
    assert_int_equal(none->count, 0);
    corpus_free(deeper);
    corpus_free(none);
    for (size_t i = 0; i < count; i++) {
        assert_memory_equal(all->bytes + all->documents[i].offset, "\n ", 2);
    }
    corpus_free(all);
    corpus_free(part_again);
}

static void test_split_repeats(void **state) {
    (void)state;
    buffer file = {0};
    for (int i = 0; i < 2000; i++) {
        char line[64];
        snprintf(line, sizeof line, "%d\ttext %d\n", i, i % 100);
        buffer_add_text(&file, line);
    }
    write_bytes(path_of("repeats.tsv"), file.bytes, file.size);
    free(file.bytes);
    corpus *c = read_one("repeats.tsv"), *part = corpus_split(c, 0.5, 0.5);
    int side[100] = {0};
    for (size_t i = 0; i < c->count; i++) side[c->documents[i].label % 100]++;
    for (size_t i = 0; i < part->count; i++) side[part->documents[i].label % 100] -= 100;
    int moved = 0;
    for (int i = 0; i < 100; i++) {
        assert_true(side[i] == 20 || side[i] == -2000);
        moved += side[i] < 0;
    }
    assert_in_range(moved, 25, 75);
    corpus_free(c);
    corpus_free(part);
}

static void test_split_raw_text(void **state) {
    (void)state;
    const char *names[] = {"one.txt", "short.txt", "two.txt"};
    write_text(path_of("one.txt"), "0123456789");
    write_text(path_of("short.txt"), "abc");
    write_text(path_of("two.txt"), "ABCDEFGHIJ");
    corpus *c = read_files(&plain_text, 3, names), *part = corpus_split(c, 0.25, 0.25);
    assert_int_equal(c->count, 3);
    assert_int_equal(part->count, 2);
    assert_document(c, 0, 0, "01234567", 8);
    assert_document(c, 1, 0, "abc", 3);
    assert_document(c, 2, 0, "ABCDEFGH", 8);
    assert_document(part, 0, 0, "89", 2);
    assert_document(part, 1, 0, "IJ", 2);
    assert_int_equal(part->documents[0].raw, 1);
    assert_consistent(c);
    assert_consistent(part);
    corpus_free(part);
    part = corpus_split(c, 1, 1);
    assert_int_equal(c->count, 0);
    assert_int_equal(part->count, 3);
    assert_document(part, 2, 0, "ABCDEFGH", 8);
    corpus_free(c);
    corpus_free(part);
}

/* Of two columns of a name the first counts; blanks after a label do not; and a quote inside of an
 * unquoted field is text, also after a backslash. */
static void test_commas(void **state) {
    (void)state;
    const char *name = "given.csv", *const labels[] = {"a", "a", "b"};
    write_text(path_of(name), "label,text,label\na ,x\\\"\",b\na,y,b\n\"b  \",z,a\n");
    corpus *c = read_files(&plain_text, 1, &name);
    assert_int_equal(c->count, 3);
    for (size_t i = 0; i < 3; i++) {
        char room[16];
        assert_string_equal(corpus_label(c, i, room), labels[i]);
    }
    size_t length;
    const uint8_t *text = corpus_text(c, 0, &length);
    assert_int_equal(length, 4);
    assert_memory_equal(text, "x\\\"\"", 4);
    corpus_free(c);
    /* A label of blanks is none; a line may end behind a backslash and two quotes: a quote. */
    write_text(path_of(name), "label,text\n\"  \",x\na,\"y\\\"\"\nz\"\n");
    c = read_files(&plain_text, 1, &name);
    char room[16];
    assert_int_equal(c->count, 2);
    assert_null(corpus_label(c, 0, room));
    text = corpus_text(c, 1, &length);
    assert_int_equal(length, 5);
    assert_memory_equal(text, "y\\\" z", 5);
    corpus_free(c);
}

/* Labels of JSON that are numbers are named with all their digits. */
static void test_numbers_as_labels(void **state) {
    (void)state;
    const char *name = "given.jsonl";
    const char *const labels[] = {"9007199254740993", "9007199254740992", "1234568.0", "1e-1",
                                  "-2"};
    write_text(path_of(name),
               "{\"text\": \"a\", \"label\": 9007199254740993}\n"
               "{\"a\": {\"b\": [1, \"}\\\"]\"]}, \"label\" : 9007199254740992 , \"text\": \"b\"}\n"
               "{\"text\": \"b\", \"label\":1234568.0}\n"
               "{\"text\": \"c\", \"x\": [], \"label\": 1e-1}\n"
               "{\"text\": \"d\", \"y\\\"\": null, \"label\": -2, \"z\": 3}\n");
    corpus *c = read_files(&plain_text, 1, &name);
    assert_int_equal(c->count, 5);
    for (size_t i = 0; i < 5; i++) {
        char room[16];
        assert_string_equal(corpus_label(c, i, room), labels[i]);
    }
    corpus_free(c);
}

/* A file without a column that is named is refused, whatever its kind. */
static void test_named_columns(void **state) {
    (void)state;
    static const struct {
        const char *name, *text;
    } cases[] = {
        {"n.json", "{\"reviewText\": \"a\"}\n"}, {"n.jsonl", "{\"reviewText\": \"a\"}\n"},
        {"n.tsv", "id\treviewText\n7\tgood\n"},  {"m.tsv", "7\tgood\n"},
        {"n.csv", "id,reviewText\n7,good\n"},    {"n.txt", "good\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *path = path_of(cases[i].name);
        error err;
        write_text(path, cases[i].text);
        for (int label = 0; label < 2; label++) {
            const corpus_options named = {.text_column = label ? NULL : "revewText",
                                          .label_column = label ? "revewText" : NULL};
            assert_null(corpus_read(&path, 1, &named, &err));
            assert_non_null(strstr(err.text, cases[i].name));
            assert_non_null(strstr(err.text, "revewText"));
        }
        const corpus_options text_alone = {.text_column = "body", .labelled_files = 1};
        char *both[] = {path_of("b.csv"), path_of("n.txt")};
        write_text(both[0], "label,body\n1,x\n");
        if (strcmp(cases[i].name, "n.txt") != 0) continue;
        corpus *c = corpus_read(both, 2, &text_alone, &err); /* more text may be raw */
        assert_non_null(c);
        corpus_free(c);
    }
}

/* Tables of more than 64 MiB whose rows are short; fields over the reader's chunks. */
static void test_large_tables(void **state) {
    (void)state;
    enum { ROWS = 700, BYTES = 100000 };
    const char *const names[] = {"large.csv", "large.tsv", "large.json"};
    char *field = mem_alloc(BYTES + 1, 1);
    memset(field, 'x', BYTES);
    for (int i = 0; i < 3; i++) {
        const char separator = i == 1 ? '\t' : ',';
        FILE *out = fopen(path_of(names[i]), "w");
        assert_non_null(out);
        if (i < 2) fprintf(out, "label%ctext\n", separator);
        for (int row = 0; row < ROWS; row++) {
            field[row * 37 % BYTES] = row % 2 ? '\n' : ' ';
            if (i == 2) fprintf(out, "%c{\"label\": %d, \"text\":", row ? ',' : '[', row % 3);
            if (i < 2) fprintf(out, "%d%c", row % 3, separator);
            fprintf(out, "\"%s%s\"%s\n", field, i == 1 && row % 2 ? "\\\"" : "", i < 2 ? "" : "}");
        }
        if (i == 2) fprintf(out, "]");
        fclose(out);
        memset(field, 'x', BYTES);
        corpus *c = read_files(&plain_text, 1, &names[i]);
        assert_int_equal(c->count, ROWS);
        for (size_t row = 0; row < ROWS; row++) {
            size_t length;
            const uint8_t *text = corpus_text(c, row, &length);
            assert_int_equal(length, i == 1 && row % 2 ? BYTES + 2 : BYTES);
            assert_int_equal(text[row * 37 % BYTES], ' ');
        }
        corpus_free(c);
        unlink(path_of(names[i]));
    }
    free(field);
}

static void check_kind(const void *head, size_t count, const char *expected) {
    const char *found = file_kind(head, count);
    if (!found && !expected) return;
    if (!found || !expected || strstr(found, expected) != found) {
        fail_msg("%s, expected %s", found ? found : "text", expected ? expected : "text");
    }
}

/* What is no text is called by its name; text is not, with accents, controls or a list in it. */
static void test_file_kinds(void **state) {
    (void)state;
    char head[1024];
    check_kind("PK\x03\x04 and more", 12, "a ZIP archive");
    check_kind("PAR1 and more", 12, "a Parquet file");
    check_kind("\xFF\xFEh\0i\0", 6, "UTF-16");
    check_kind("\xFE\xFF\0h\0i", 6, "UTF-16");
    check_kind(" [ \n {\"text\": 1}]", 16, "a JSON array");
    check_kind("[1, 2]", 6, NULL);
    check_kind("{\"text\": [{}]}", 14, NULL);
    check_kind("caf\xC3\xA9 \xE2\x98\x95\t\r\n", 12, NULL);
    for (int order = 0; order < 2; order++) { /* without a mark */
        for (int i = 0; i < 1024; i++) head[i] = (char)(i % 2 == order ? 'a' + i % 26 : 0);
        check_kind(head, sizeof head, "UTF-16");
    }
    memset(head, 0, sizeof head);
    check_kind(head, sizeof head, "binary data");
    /* One control byte in 16, and one in 64. */
    for (int i = 0; i < 1024; i++) head[i] = (char)(i % 16 ? 'a' + i % 26 : 1);
    check_kind(head, sizeof head, "binary data");
    for (int i = 0; i < 1024; i++) head[i] = (char)(i % 64 ? 'a' + i % 26 : 1);
    check_kind(head, sizeof head, NULL);
    memset(head, 'a', sizeof head);
    memcpy(head + 257, "ustar", 5);
    check_kind(head, sizeof head, "a tar archive");
}

int main(void) {
    alarm(300); /* a test that hangs ends all tests */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_commas),
        cmocka_unit_test(test_file_kinds),
        cmocka_unit_test(test_numbers_as_labels),
        cmocka_unit_test(test_framing),
        cmocka_unit_test(test_byte_order_mark),
        cmocka_unit_test(test_long_line),
        cmocka_unit_test(test_line_at_chunk_end),
        cmocka_unit_test(test_raw_text),
        cmocka_unit_test(test_hash),
        cmocka_unit_test(test_entities),
        cmocka_unit_test(test_wrong_lines),
        cmocka_unit_test(test_any_label),
        cmocka_unit_test(test_whole_labels),
        cmocka_unit_test(test_named_columns),
        cmocka_unit_test(test_large_tables),
        cmocka_unit_test(test_tables),
        cmocka_unit_test(test_wrong_tables),
        cmocka_unit_test(test_unreadable),
        cmocka_unit_test(test_spool),
        cmocka_unit_test(test_gzip),
        cmocka_unit_test(test_gzip_members),
        cmocka_unit_test(test_gzip_long),
        cmocka_unit_test(test_exclude),
        cmocka_unit_test(test_split),
        cmocka_unit_test(test_split_repeats),
        cmocka_unit_test(test_split_raw_text),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, make_spool, NULL);
}
