#include "cli/json_text.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void put_string(const char *text, size_t length, fg_buf *out)
{
    fg_buf_putc(out, '"');
    fg_buf_json_escape(out, text, length);
    fg_buf_putc(out, '"');
}

/* The shortest of the forms that read back as the same number. */
static void put_real(double value, fg_buf *out)
{
    char text[40];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value) {
            break;
        }
    }
    fg_buf_puts(out, text);
    if (strpbrk(text, ".e") == NULL) {
        fg_buf_puts(out, ".0"); /* 1.0 and 1 are different types to some readers */
    }
}

static void put_object(const fg_json_node *node, fg_buf *out)
{
    void *cursor = NULL;
    const char *key = NULL;
    const char *between = "";
    const fg_json_node *member;
    fg_buf_putc(out, '{');
    while ((member = fg_json_next(node, &cursor, &key)) != NULL) {
        fg_buf_puts(out, between);
        put_string(key, strlen(key), out);
        fg_buf_putc(out, ':');
        fg_json_text_write(member, out);
        between = ",";
    }
    fg_buf_putc(out, '}');
}

/* Recursion ends: the parser took at most FG_LIMIT_JSON_DEPTH levels. */
bool fg_json_text_write(const fg_json_node *node, fg_buf *out)
{
    int64_t integer = 0;
    double real = 0;
    bool truth = false;
    size_t length = 0;
    switch (fg_json_type_of(node)) {
    case FG_JSON_OBJECT:
        put_object(node, out);
        break;
    case FG_JSON_ARRAY:
        fg_buf_putc(out, '[');
        for (size_t i = 0; i < fg_json_size(node); i++) {
            fg_buf_puts(out, i == 0 ? "" : ",");
            fg_json_text_write(fg_json_at(node, i), out);
        }
        fg_buf_putc(out, ']');
        break;
    case FG_JSON_STRING: {
        const char *text = fg_json_string(node, &length);
        put_string(text, length, out);
        break;
    }
    case FG_JSON_INTEGER:
        fg_json_integer(node, &integer);
        fg_buf_printf(out, "%" PRId64, integer);
        break;
    case FG_JSON_REAL:
        fg_json_number(node, &real);
        put_real(real, out);
        break;
    case FG_JSON_BOOL:
        fg_json_bool(node, &truth);
        fg_buf_puts(out, truth ? "true" : "false");
        break;
    default:
        fg_buf_puts(out, "null");
        break;
    }
    return !out->failed;
}
