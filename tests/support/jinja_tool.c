/*
 * jinja_tool - renders templates for test programs in other languages.
 *
 * Standard input: a template and a JSON object with its variables, again and again. Standard output, for each: "ok"
 * or "refused" (the template), "failed" (the rendering); the rendered text, or what is wrong; and of a
 * rendered text where a client's own words lie in it: "start length" pairs. A text is a 32-bit
 * little-endian length and its bytes, on both sides. All strings and keys of the object are a client's.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/mem.h"
#include "common/jinja/jinja.h"
#include "tests/support/text_pipe.h"

enum { RUN_BYTES_MAX = 1 << 28, RUN_STEPS_MAX = 50000000 };
/* 1 January 2026, noon. */
enum { NOW_S = 1767268800 };

__attribute__((noreturn)) static void die(const char *what)
{
    fg_pipe_die("jinja_tool", what);
}

static void write_answer(const char *kind, const char *text, size_t length, const fg_buf *spans)
{
    fg_pipe_write(kind, strlen(kind));
    fg_pipe_write(text, length);
    fg_pipe_write(spans == NULL || spans->size == 0 ? "" : spans->data,
                  spans == NULL ? 0 : spans->size);
}

static void render(const fg_jinja *template, const fg_json *json)
{
    fg_jinja_run *run = fg_jinja_run_create(RUN_BYTES_MAX, RUN_STEPS_MAX, NOW_S);
    const fg_jinja_piece *pieces;
    size_t count;
    fg_error err = { 0 };
    if (run == NULL) {
        die("out of memory");
    }
    if (fg_jinja_render(template, run, fg_jinja_json(run, fg_json_root(json)), &pieces, &count,
                        &err) != FG_OK) {
        write_answer("failed", err.text, strlen(err.text), NULL);
        fg_jinja_run_destroy(run);
        return;
    }
    fg_buf text;
    fg_buf spans;
    fg_buf_init(&text, 0);
    fg_buf_init(&spans, 0);
    for (size_t i = 0; i < count; i++) {
        if (pieces[i].of_client) {
            fg_buf_printf(&spans, "%zu %zu ", text.size, pieces[i].length);
        }
        fg_buf_append(&text, pieces[i].text, pieces[i].length);
    }
    write_answer("ok", text.size == 0 ? "" : text.data, text.size, &spans);
    fg_buf_deinit(&spans);
    fg_buf_deinit(&text);
    fg_jinja_run_destroy(run);
}

int main(void)
{
    size_t source_length;
    size_t json_length;
    for (char *source; (source = fg_pipe_read("jinja_tool", &source_length)) != NULL;
         fg_mem_free(source)) {
        char *text = fg_pipe_read("jinja_tool", &json_length);
        fg_json *json = NULL;
        fg_jinja *template = NULL;
        fg_error err = { 0 };
        if (text == NULL || fg_json_parse(text, json_length, &json, &err) != FG_OK) {
            die(text == NULL ? "no variables" : err.text);
        }
        if (fg_jinja_compile(source, source_length, &template, &err) != FG_OK) {
            write_answer("refused", err.text, strlen(err.text), NULL);
        } else {
            render(template, json);
        }
        fg_jinja_destroy(template);
        fg_json_destroy(json);
        fg_mem_free(text);
    }
    return 0;
}
