/* The calls of tools in one choice: what is shown of it and no thought goes through a parser, and comes out as text and as calls. */
#include <string.h>

#include "common/base/utf8.h"
#include "router/stream_internal.h"

static fg_api_call_part *last_part(fg_choice_tools *tools)
{
    return (fg_api_call_part *)(void *)(tools->parts.data + tools->parts.size) - 1;
}

static void on_text(void *ctx, const char *text, size_t length)
{
    fg_choice *choice = ctx;
    if (choice->finish == FG_FINISH_NONE) {
        fg_buf_append(&choice->text, text, length);
    }
}

static void on_call(void *ctx, const char *name, size_t length)
{
    fg_choice *choice = ctx;
    fg_choice_tools *tools = &choice->tools;
    fg_api_call_part part = { .index = tools->begun, .name_length = (uint32_t)length };
    if (choice->finish == FG_FINISH_NONE) {
        tools->begun++;
        fg_buf_append(&tools->parts, &part, sizeof part);
        fg_buf_append(&tools->text, name, length);
    }
}

static void on_arguments(void *ctx, const char *text, size_t length)
{
    fg_choice *choice = ctx;
    fg_choice_tools *tools = &choice->tools;
    fg_api_call_part part = { .index = tools->begun - 1 };
    if (choice->finish != FG_FINISH_NONE) {
        return;
    }
    /* What went before may have been written. */
    if (tools->parts.size > 0 || fg_buf_append(&tools->parts, &part, sizeof part)) {
        if (fg_buf_append(&tools->text, text, length)) {
            last_part(tools)->arguments_length += length;
        }
    }
}

static void on_call_end(void *ctx, bool whole)
{
    fg_choice *choice = ctx;
    if (choice->finish == FG_FINISH_NONE) {
        choice->tools.whole += whole;
        if (choice->stream->request.tools.single) {
            choice->finish = FG_FINISH_STOP; /* as if a stop string stood here */
        }
    }
}

fg_status fg_choice_tools_init(fg_choice *choice, size_t text_bytes, fg_error *err)
{
    const fg_request_tools *of = &choice->stream->request.tools;
    fg_choice_tools *tools = &choice->tools;
    fg_tool_events events = { .on_text = on_text,
                              .on_call = on_call,
                              .on_arguments = on_arguments,
                              .on_call_end = on_call_end,
                              .ctx = choice };
    /* A control character in arguments becomes six, and a call was more text than its part takes. A reader's share is a
     * bound all the same. */
    size_t share = FG_LIMIT_STREAM_BYTES / choice->stream->request.choice_count;
    size_t limit = 8 * text_bytes;
    limit = choice->stream->request.stream && limit > share ? share : limit;
    fg_buf_init(&tools->shown, 0);
    fg_buf_init(&tools->parts, limit);
    fg_buf_init(&tools->text, limit);
    return of->dialect == FG_TOOLS_NONE
               ? FG_OK
               : fg_tool_parse_create(of->dialect, of->unmarked, of->names, of->count, &events,
                                      &tools->parse, err);
}

void fg_choice_tools_deinit(fg_choice *choice)
{
    fg_choice_tools *tools = &choice->tools;
    fg_tool_parse_destroy(tools->parse);
    fg_buf_deinit(&tools->shown);
    fg_buf_deinit(&tools->parts);
    fg_buf_deinit(&tools->text);
}

fg_buf *fg_choice_answer(fg_choice *choice)
{
    return choice->tools.parse == NULL ? &choice->text : &choice->tools.shown;
}

bool fg_choice_tools_want(const fg_choice *choice, const char *name, size_t length)
{
    return choice->tools.parse != NULL && fg_tool_parse_knows(choice->tools.parse, name, length);
}

void fg_choice_tools_token(fg_choice *choice, const char *name, size_t length)
{
    if (fg_choice_tools_want(choice, name, length)) {
        fg_tool_parse_token(choice->tools.parse, name, length);
    }
}

void fg_choice_tools_take(fg_choice *choice)
{
    fg_choice_tools *tools = &choice->tools;
    if (tools->parse == NULL) {
        return;
    }
    fg_tool_parse_push(tools->parse, tools->shown.data, tools->shown.size);
    if (!tools->shown.failed) {
        fg_buf_clear(&tools->shown);
    }
}

void fg_choice_tools_end(fg_choice *choice)
{
    if (choice->tools.parse != NULL) {
        fg_tool_parse_finish(choice->tools.parse);
    }
}

bool fg_choice_tools_failed(const fg_choice *choice)
{
    const fg_choice_tools *tools = &choice->tools;
    return tools->parse != NULL && (fg_tool_parse_failed(tools->parse) || tools->shown.failed ||
                                    tools->parts.failed || tools->text.failed);
}

fg_api_calls fg_choice_tools_calls(const fg_choice *choice)
{
    const fg_choice_tools *tools = &choice->tools;
    return (fg_api_calls){ .parts = (const fg_api_call_part *)(const void *)tools->parts.data,
                           .count = tools->parts.size / sizeof(fg_api_call_part),
                           .text = tools->text.data };
}

fg_api_calls fg_choice_tools_next(const fg_choice *choice, size_t bytes_max, fg_api_call_part *part)
{
    fg_api_calls all = fg_choice_tools_calls(choice);
    *part = all.parts[0];
    if (part->arguments_length > bytes_max) {
        const char *arguments = all.text + part->name_length;
        part->arguments_length = bytes_max;
        while (part->arguments_length > bytes_max - 4 &&
               (arguments[part->arguments_length] & 0xC0) == 0x80) {
            part->arguments_length--;
        }
    }
    return (fg_api_calls){ .parts = part, .count = 1, .text = all.text };
}

void fg_choice_tools_book(fg_choice *choice, const fg_api_call_part *part)
{
    fg_choice_tools *tools = &choice->tools;
    fg_api_call_part *first = (fg_api_call_part *)(void *)tools->parts.data;
    first->name_length -= part->name_length;
    first->arguments_length -= part->arguments_length;
    if (first->arguments_length == 0) {
        fg_buf_consume(&tools->parts, sizeof *first);
    }
    fg_buf_consume(&tools->text, part->name_length + part->arguments_length);
}
