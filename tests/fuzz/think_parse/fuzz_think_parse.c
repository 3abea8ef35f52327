/*
 * Any answer: whole, byte by byte and in pieces it tells what one sees who looks at all of it at once: all of it once and
 * in its order, but for the marks and white space beside them, a thought before all text.
 *
 * The first byte says whether the prompt has opened the thought, the second one where pieces end. Bytes 1 and 2 stand for
 * the marks as control tokens, byte 3 for another one.
 */
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/status.h"
#include "common/model/think_parse.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes);

static const char *const marks[] = { "<think>", "</think>", "<tool_call>" };

typedef struct log {
    fg_buf thought, text; /* a token of the text is byte 3 */
} log;

static void on_thought(void *ctx, const char *text, size_t length)
{
    log *l = ctx;
    FG_ASSERT(length > 0 && l->text.size == 0, "a thought behind text");
    fg_buf_append(&l->thought, text, length);
}

static void on_text(void *ctx, const char *text, size_t length)
{
    log *l = ctx;
    FG_ASSERT(length > 0);
    fg_buf_append(&l->text, text, length);
}

static fg_think_place run(bool inside, const char *text, size_t size, size_t piece, log *l)
{
    fg_think_events events = { on_thought, on_text, l };
    fg_think_parse parse;
    fg_think_parse_init(&parse, inside, &events);
    size_t from = 0;
    for (size_t at = 0; at < size; at++) {
        if (text[at] >= 1 && text[at] <= 3) {
            const char *name = marks[text[at] - 1];
            fg_think_parse_push(&parse, text + from, at - from);
            if (!fg_think_parse_token(&parse, name, strlen(name))) {
                FG_ASSERT(text[at] == 3 && parse.place != FG_THINK_BEFORE, "a mark of the answer");
                fg_buf_putc(&l->text, 3);
            }
            from = at + 1;
        } else if (at + 1 == size || at + 1 - from == piece) {
            fg_think_parse_push(&parse, text + from, at + 1 - from);
            from = at + 1;
            FG_ASSERT(parse.space_count <= FG_THINK_HELD_MAX && parse.matched < 8);
        }
    }
    fg_think_parse_finish(&parse);
    FG_ASSERT(parse.place != FG_THINK_BEFORE, "an answer that has not begun");
    return parse.place;
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* Whether mark `index` stands here, as text or as a token; its length there. */
static bool is_mark(int index, const char *at, const char *end, size_t *length_out)
{
    size_t length = strlen(marks[index]);
    *length_out = 1;
    if (at < end && *at == index + 1) {
        return true;
    }
    *length_out = length;
    return (size_t)(end - at) >= length && memcmp(at, marks[index], length) == 0;
}

/* What has to come out, by looking at all of it at once. */
static fg_think_place judge(bool inside, const char *at, const char *end, log *want)
{
    const char *start = at;
    size_t length = 0;
    while (at < end && is_space(*at)) {
        at++;
    }
    bool marked = is_mark(0, at, end, &length) && (inside || at - start <= FG_THINK_HELD_MAX);
    at = marked ? at + length : start;
    bool thinks = inside || marked;
    bool closed = false;
    for (; thinks && at < end && !(closed = is_mark(1, at, end, &length)); at++) {
        bool token = *at == 1 || *at == 3;
        if (!token && (want->thought.size > 0 || !is_space(*at))) {
            fg_buf_putc(&want->thought, *at);
        }
    }
    size_t spaces = 0;
    while (spaces < want->thought.size &&
           is_space(want->thought.data[want->thought.size - 1 - spaces])) {
        spaces++;
    }
    if (closed) {
        want->thought.size -= spaces == 0 ? 0 : (spaces - 1) % FG_THINK_HELD_MAX + 1;
        for (at += length; at < end && strchr("\n\r\1\2", *at) != NULL && *at != '\0'; at++) {
        }
    }
    for (; at < end; at++) {
        if (*at != 1 && *at != 2) {
            fg_buf_putc(&want->text, *at);
        }
    }
    return closed ? FG_THINK_BEHIND : thinks ? FG_THINK_INSIDE : FG_THINK_NONE;
}

static bool same(const fg_buf *a, const fg_buf *b)
{
    return a->size == b->size && (a->size == 0 || memcmp(a->data, b->data, a->size) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes)
{
    if (size_bytes < 2) {
        return 0;
    }
    bool inside = bytes[0] % 2 == 1;
    const char *text = (const char *)bytes + 2;
    size_t size = size_bytes - 2;
    size_t pieces[] = { SIZE_MAX, 1, bytes[1] + 2u };
    log want = { 0 };
    fg_think_place place = judge(inside, text, text + size, &want);
    for (int i = 0; i < 3; i++) {
        log have = { 0 };
        FG_ASSERT(run(inside, text, size, pieces[i], &have) == place, "another place");
        FG_ASSERT(same(&have.thought, &want.thought), "another thought");
        FG_ASSERT(same(&have.text, &want.text), "another text");
        fg_buf_deinit(&have.thought);
        fg_buf_deinit(&have.text);
    }
    fg_buf_deinit(&want.thought);
    fg_buf_deinit(&want.text);
    return 0;
}
