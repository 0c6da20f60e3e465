#include "page/html.h"

#include "core/utf8.h"
#include "page/assets.h"

#include <inttypes.h>
#include <string.h>

/* ------------------------------------------------------------------------------------- text */

static const char replacement[] = "\xEF\xBF\xBD";

void html_text(FILE *out, const char *text) {
    for (size_t left = strlen(text); left > 0;) {
        size_t length = utf8_length((const uint8_t *)text, left);
        uint8_t byte = (uint8_t)*text;
        const bool kept = byte == '\n' || byte == '\t';
        if (length == 0 || (!kept && utf8_is_control(utf8_code((const uint8_t *)text, length)))) {
            fputs(replacement, out);
            if (length == 0) length = 1;
        } else if (strchr("&<>\"'", byte)) {
            fprintf(out, "&#%d;", byte);
        } else {
            fwrite(text, 1, length, out);
        }
        text += length;
        left -= length;
    }
}

const char *html_count(char *text, int64_t value) {
    char digits[24];
    int length = snprintf(digits, sizeof digits, "%" PRId64, value), at = 0;
    for (int i = 0; i < length; i++) {
        if (i > 0 && digits[i - 1] != '-' && (length - i) % 3 == 0) text[at++] = ',';
        text[at++] = digits[i];
    }
    text[at] = '\0';
    return text;
}

/* ------------------------------------------------------------------------------------- data */

void html_json(FILE *out, const char *id, const char *json, size_t length) {
    fprintf(out, "<script type=\"application/json\" id=\"%s\">", id);
    while (length > 0) {
        size_t size = utf8_length((const uint8_t *)json, length);
        if (size == 0) {
            fputs(replacement, out);
            size = 1;
        } else if (*json == '<') {
            fputs("\\u003c", out);
        } else {
            fwrite(json, 1, size, out);
        }
        json += size;
        length -= size;
    }
    fputs("</script>\n", out);
}

/* ------------------------------------------------------------------------------------ frame */

void html_begin(FILE *out, const char *title, int reload) {
    fputs("<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
          "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src "
          "'unsafe-inline'; script-src 'unsafe-inline'; img-src data:\">\n"
          "<meta name=\"color-scheme\" content=\"light dark\">\n"
          "<meta name=\"generator\" content=\"smallworld " SMALLWORLD_VERSION "\">\n",
          out);
    if (reload > 0) fprintf(out, "<meta http-equiv=\"refresh\" content=\"%d\">\n", reload);
    fputs("<link rel=\"icon\" href=\"data:,\">\n<title>", out);
    html_text(out, title);
    fprintf(out, "</title>\n<style>\n%s%s</style>\n</head>\n<body>\n<main>\n<h1>", chart_css,
            page_css);
    html_text(out, title);
    fputs("</h1>\n", out);
}

void html_end(FILE *out, const char *const *scripts, int count) {
    fputs("</main>\n", out);
    for (int i = 0; i < count; i++) fprintf(out, "<script>\n%s</script>\n", scripts[i]);
    fputs("</body>\n</html>\n", out);
}
