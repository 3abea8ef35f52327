/*
 * Any answer in any dialect: it tells the same whole, byte by byte and in pieces; all of it comes out once and in its
 * order; a whole call has an object as its arguments; and no more is held back than is allowed.
 *
 * The first byte chooses the dialect, the second one where pieces end. Byte 1 stands for the begin marker as a control
 * token, byte 2 for the end marker.
 */
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/status.h"
#include "common/model/json_walk.h"
#include "common/model/tool_parse.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes);

typedef struct log {
    fg_buf all;       /* what was told, in a form that no split changes */
    fg_buf text;      /* of it, what is no call */
    fg_buf arguments; /* of the call at hand */
    bool open;
} log;

static void on_text(void *ctx, const char *text, size_t length)
{
    log *l = ctx;
    FG_ASSERT(length > 0 && !l->open, "text inside of a call");
    fg_buf_append(&l->all, text, length);
    fg_buf_append(&l->text, text, length);
}

static void on_call(void *ctx, const char *name, size_t length)
{
    log *l = ctx;
    FG_ASSERT(length > 0 && !l->open, "a call inside of a call");
    l->open = true;
    fg_buf_puts(&l->all, "\x03");
    fg_buf_append(&l->all, name, length);
    fg_buf_puts(&l->all, "\x04");
    fg_buf_clear(&l->arguments);
}

static void on_arguments(void *ctx, const char *text, size_t length)
{
    log *l = ctx;
    FG_ASSERT(length > 0 && l->open, "arguments of no call");
    fg_buf_append(&l->all, text, length);
    fg_buf_append(&l->arguments, text, length);
}

static void on_call_end(void *ctx, bool whole)
{
    log *l = ctx;
    fg_json_walk walk;
    fg_json_step step = FG_JSON_STEP_INSIDE;
    fg_json_walk_init(&walk);
    size_t at = 0;
    /* A whole JSON text in a string may have white space around it. */
    while (at < l->arguments.size && strchr(" \t\r\n", l->arguments.data[at]) != NULL) {
        at++;
    }
    for (; at < l->arguments.size && step != FG_JSON_STEP_DONE && step != FG_JSON_STEP_BAD; at++) {
        step = fg_json_walk_push(&walk, l->arguments.data[at]);
    }
    FG_ASSERT(l->open && (!whole || step == FG_JSON_STEP_DONE), "a whole call without an object");
    FG_ASSERT(whole || step != FG_JSON_STEP_DONE, "a whole object of half a call");
    fg_buf_puts(&l->all, whole ? "\x05" : "\x06");
    l->open = false;
}

static const char *const begins[] = { "<tool_call>", "<|python_tag|>", "[TOOL_CALLS]",
                                      "<|tool_call|>" };
static const char *const ends[] = { "</tool_call>", NULL, NULL, "<|/tool_call|>" };

static void run(unsigned form, bool unmarked, const char *text, size_t size, size_t piece, log *l)
{
    static const fg_tool_name names[] = { { "f", 1 } };
    fg_tool_events events = { on_text, on_call, on_arguments, on_call_end, l };
    fg_tool_parse *parse = NULL;
    FG_ASSERT(fg_tool_parse_create(FG_TOOLS_HERMES + form, unmarked, names, 1, &events, &parse,
                                   NULL) == FG_OK);
    size_t from = 0;
    for (size_t at = 0; at < size; at++) {
        const char *token = text[at] == 1 ? begins[form] : text[at] == 2 ? ends[form] : NULL;
        if (token != NULL) {
            fg_tool_parse_push(parse, text + from, at - from);
            fg_tool_parse_token(parse, token, strlen(token));
            from = at + 1;
        } else if (at + 1 == size || at + 1 - from == piece) {
            fg_tool_parse_push(parse, text + from, at + 1 - from);
            from = at + 1;
        }
    }
    fg_tool_parse_finish(parse);
    FG_ASSERT(!l->open && !fg_tool_parse_failed(parse));
    fg_tool_parse_destroy(parse);
}

/* Every byte of `part` stands in `whole`, in the same order. */
static bool is_in_order(const fg_buf *part, const char *whole, size_t size)
{
    size_t at = 0;
    for (size_t i = 0; i < part->size; i++, at++) {
        const char *found = memchr(whole + at, part->data[i], size - at);
        if (found == NULL) {
            return false;
        }
        at = (size_t)(found - whole);
    }
    return true;
}

static void close_log(log *l)
{
    fg_buf_deinit(&l->all);
    fg_buf_deinit(&l->text);
    fg_buf_deinit(&l->arguments);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes)
{
    if (size_bytes < 2) {
        return 0;
    }
    unsigned form = bytes[0] % 4;
    bool unmarked = bytes[0] / 4 % 4 == 3;
    const char *text = (const char *)bytes + 2;
    size_t size = size_bytes - 2;
    size_t pieces[] = { SIZE_MAX, 1, bytes[1] + 2u };
    log logs[3] = { 0 };
    for (int i = 0; i < 3; i++) {
        run(form, unmarked, text, size, pieces[i], &logs[i]);
        FG_ASSERT(logs[i].all.size == logs[0].all.size &&
                      (logs[0].all.size == 0 ||
                       memcmp(logs[i].all.data, logs[0].all.data, logs[0].all.size) == 0),
                  "another cut, other events");
    }
    FG_ASSERT(is_in_order(&logs[0].text, text, size), "text that was not there");
    bool called =
        memchr(logs[0].all.size == 0 ? "" : logs[0].all.data, 3, logs[0].all.size) != NULL;
    bool tokens = memchr(text, 1, size) != NULL || memchr(text, 2, size) != NULL;
    FG_ASSERT(called || tokens ||
                  (logs[0].text.size == size &&
                   (size == 0 || memcmp(logs[0].text.data, text, size) == 0)),
              "no call, and another text");
    for (int i = 0; i < 3; i++) {
        close_log(&logs[i]);
    }
    return 0;
}
