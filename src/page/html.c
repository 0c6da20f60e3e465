#include "page/html.h"

#include "core/memory.h"
#include "core/utf8.h"
#include "page/assets.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
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

/* ------------------------------------------------------------------------------------ tables */

html_table html_table_begin(FILE *out, const char *id, const char *label, const char *const *heads,
                            int columns) {
    fprintf(out,
            "<div class=\"wide\" tabindex=\"0\" role=\"group\" aria-label=\"%s\"><table "
            "id=\"%s\">\n%s",
            label, id, heads ? "<thead><tr>" : "");
    for (int i = 0; heads && i < columns; i++) {
        fputs("<th scope=\"col\">", out);
        html_text(out, heads[i]);
        fputs("</th>", out);
    }
    fputs(heads ? "</tr></thead>\n<tbody>\n" : "<tbody>\n", out);
    return (html_table){out, columns, 0};
}

static void end_cell(html_table *t, const char *tag) {
    fputs(tag, t->out);
    t->next = (t->next + 1) % t->columns;
    if (t->next == 0) fputs("</tr>\n", t->out);
}

void html_cell(html_table *t, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    char *text = mem_format_list(format, arguments);
    va_end(arguments);
    const bool first = t->next == 0;
    fputs(first ? "<tr><th scope=\"row\">" : "<td>", t->out);
    html_text(t->out, text);
    end_cell(t, first ? "</th>" : "</td>");
    free(text);
}

void html_number(html_table *t, const char *format, double value) {
    char text[32];
    fputs("<td class=\"number\">", t->out);
    if (!isnan(value) && format) fprintf(t->out, format, value);
    if (!isnan(value) && !format) fputs(html_count(text, (int64_t)value), t->out);
    end_cell(t, "</td>");
}

void html_table_end(html_table *t) {
    fputs("</tbody>\n</table></div>\n", t->out);
}
