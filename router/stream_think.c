/* The way of one choice's text: what is shown of it goes through a parser of thoughts, and what is none to that of calls. */
#include <string.h>

#include "router/stream_internal.h"

static bool splits(const fg_choice *choice)
{
    return choice->stream->request.thoughts.split;
}

static void on_thought(void *ctx, const char *text, size_t length)
{
    fg_choice *choice = ctx;
    if (!choice->stream->request.thoughts.hidden) {
        fg_buf_append(&choice->think.text, text, length);
    }
}

static void on_text(void *ctx, const char *text, size_t length)
{
    fg_buf_append(fg_choice_answer(ctx), text, length);
}

void fg_choice_think_init(fg_choice *choice, size_t text_bytes)
{
    fg_choice_think *think = &choice->think;
    fg_think_events events = { .on_thought = on_thought, .on_text = on_text, .ctx = choice };
    fg_think_parse_init(&think->parse, choice->stream->request.thoughts.opened, &events);
    fg_buf_init(&think->shown, 0);
    fg_buf_init(&think->text, text_bytes);
}

void fg_choice_think_deinit(fg_choice *choice)
{
    fg_buf_deinit(&choice->think.shown);
    fg_buf_deinit(&choice->think.text);
}

fg_buf *fg_choice_shown(fg_choice *choice)
{
    return splits(choice) ? &choice->think.shown : fg_choice_answer(choice);
}

void fg_choice_take(fg_choice *choice)
{
    fg_buf *shown = &choice->think.shown;
    if (splits(choice) && !shown->failed) {
        fg_think_parse_push(&choice->think.parse, shown->data, shown->size);
        fg_buf_clear(shown);
    }
    fg_choice_tools_take(choice);
}

void fg_choice_end(fg_choice *choice)
{
    if (splits(choice)) {
        fg_think_parse_finish(&choice->think.parse);
        fg_choice_tools_take(choice);
    }
    fg_choice_tools_end(choice);
}

/* The name of a token that has no text; NULL: it has one. */
static const char *name_of(const fg_choice *choice, uint32_t id, size_t *length_out)
{
    const fg_tokenizer *tokenizer = choice->stream->owner->options.tokenizer;
    (void)fg_tokenizer_piece(tokenizer, id, false, length_out);
    return *length_out > 0 ? NULL : fg_tokenizer_piece(tokenizer, id, true, length_out);
}

bool fg_choice_wants(const fg_choice *choice, uint32_t id)
{
    size_t length;
    if (!splits(choice) && choice->tools.parse == NULL) {
        return false;
    }
    const char *name = name_of(choice, id, &length);
    fg_think_place place = choice->think.parse.place;
    bool over = place == FG_THINK_BEHIND || place == FG_THINK_NONE;
    return name != NULL && (fg_choice_tools_want(choice, name, length) ||
                            (splits(choice) && !over && fg_think_parse_knows(name, length)));
}

void fg_choice_take_token(fg_choice *choice, uint32_t id)
{
    size_t length;
    const char *name = name_of(choice, id, &length);
    bool taken = splits(choice) && fg_think_parse_token(&choice->think.parse, name, length);
    fg_choice_tools_take(choice);
    if (!taken) {
        fg_choice_tools_token(choice, name, length);
    }
}

void fg_choice_think_count(fg_choice *choice, fg_think_place before)
{
    fg_think_place now = choice->think.parse.place;
    if (splits(choice) && (before == FG_THINK_BEFORE || before == FG_THINK_INSIDE) &&
        (now == FG_THINK_INSIDE || now == FG_THINK_BEHIND)) {
        choice->think.tokens = choice->completion_tokens;
    }
}

bool fg_choice_think_failed(const fg_choice *choice)
{
    return choice->think.shown.failed || choice->think.text.failed;
}
