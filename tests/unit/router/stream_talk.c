#include "tests/unit/router/stream_talk.h"

#include <string.h>

#include "tests/support/test.h"

enum { MARK = SMALL_BPE_COUNT, MARK_END };

static void on_news(void *ctx)
{
    (void)ctx;
}

void stream_talk_open(stream_talk *w, const char *chat_template, const char *const controls[2])
{
    fg_error err = { 0 };
    *w = (stream_talk){ .now_ns = 1 };
    tiny_model_open_as(&w->model, chat_template, controls, 2);
    fake_dispatch_reset();
    fg_streams_options options = { .tokenizer = w->model.tokenizer,
                                   .dispatch = fake_dispatch_handle(),
                                   .clock = fg_clock_manual(&w->now_ns),
                                   .on_news = on_news,
                                   .ctx = w };
    cr_assert_eq(fg_streams_create(&options, &w->streams, &err), FG_OK, "%s", err.text);
    fake_exchange_init(&w->exchanges[0]);
    fake_exchange_init(&w->exchanges[1]);
}

void stream_talk_close(stream_talk *w)
{
    fg_streams_destroy(w->streams);
    cr_assert_eq(fake_running_count(), 0);
    fake_exchange_deinit(&w->exchanges[0]);
    fake_exchange_deinit(&w->exchanges[1]);
    tiny_model_close(&w->model);
}

fg_status stream_talk_ask(stream_talk *w, int index, const char *body, fg_api_error *error)
{
    fg_api_server server = { .tokenizer = w->model.tokenizer,
                             .chat = w->model.chat,
                             .model_name = "tiny",
                             .context_max = 200000,
                             .max_tokens_default = 100000 };
    fg_api_call call = { .id = "id", .seed = 1 };
    fg_arena *arena = fg_arena_create(FG_API_ARENA_BYTES);
    fg_request request;
    if (arena == NULL) {
        return FG_AGAIN;
    }
    fg_status status =
        fg_api_parse(&server, FG_API_CHAT, body, strlen(body), &call, arena, &request, error);
    if (status == FG_OK) {
        status = fg_stream_open(w->streams, &w->exchanges[index], "/v1/chat/completions", &request,
                                error);
    }
    if (status != FG_OK) {
        fg_arena_destroy(arena);
    }
    return status;
}

void stream_talk_must_ask(stream_talk *w, int index, const char *body)
{
    fg_api_error error;
    cr_assert_eq(stream_talk_ask(w, index, body, &error), FG_OK, "%s", error.text);
}

void stream_talk_send(uint32_t job, const char *text)
{
    for (; *text != '\0'; text++) {
        fake_token(job, *text == '\1' ? MARK : *text == '\2' ? MARK_END : (unsigned char)*text, 0);
    }
}

void stream_talk_answer(stream_talk *w, const char *text, fg_finish finish, bool flush_each)
{
    for (; *text != '\0'; text++) {
        const char one[2] = { *text, '\0' };
        if (fake_dispatch_state.jobs[0].running) {
            stream_talk_send(0, one);
        }
        if (flush_each) {
            fg_streams_flush(w->streams);
        }
    }
    if (finish != FG_FINISH_NONE) {
        fake_end(0, finish, FG_OK, NULL);
    }
    fg_streams_flush(w->streams);
}

const char *stream_talk_body(const stream_talk *w, int index)
{
    return w->exchanges[index].body.data == NULL ? "" : w->exchanges[index].body.data;
}

/* Appends what stands in quotes at `at`, still escaped. */
static void join(fg_buf *out, const char *at)
{
    const char *end = at;
    while (*end != '"') {
        end += *end == '\\' ? 2 : 1;
    }
    fg_buf_append(out, at, (size_t)(end - at));
}

void stream_talk_tell(const char *body, fg_buf *out)
{
    static const struct {
        const char *key;
        char kind;
    } keys[] = { { "\"reasoning_content\":\"", 't' },
                 { "\"content\":\"", 'c' },
                 { "\"name\":\"", 'n' },
                 { "\"arguments\":\"", 'a' },
                 { "\"id\":\"call_", 'i' },
                 { "\"finish_reason\":\"", 'f' } };
    fg_buf thought = { 0 };
    fg_buf content = { 0 };
    fg_buf calls = { 0 };
    fg_buf finish = { 0 };
    for (const char *at = body; *at != '\0'; at++) {
        for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
            size_t length = strlen(keys[i].key);
            if (strncmp(at, keys[i].key, length) == 0) {
                char kind = keys[i].kind;
                fg_buf_puts(&calls, kind == 'i' ? "[" : kind == 'n' ? " " : "");
                join(kind == 't'   ? &thought
                     : kind == 'c' ? &content
                     : kind == 'f' ? &finish
                                   : &calls,
                     at + length);
                fg_buf_puts(&calls, kind == 'n' ? " " : "");
            }
        }
    }
    fg_buf_clear(out);
    if (thought.size > 0) {
        fg_buf_printf(out, "(%s)", thought.data);
    }
    fg_buf_append(out, content.data, content.size);
    fg_buf_append(out, calls.data, calls.size);
    fg_buf_printf(out, " %s", finish.data == NULL ? "" : finish.data);
    fg_buf_deinit(&thought);
    fg_buf_deinit(&content);
    fg_buf_deinit(&calls);
    fg_buf_deinit(&finish);
}

void stream_talk_forget_ids(fg_buf *told)
{
    static const char digits[] = "0123456789abcdef";
    for (char *at = told->data; (at = strchr(at, '[')) != NULL; at++) {
        cr_assert_eq(strspn(at + 1, digits), 24, "%s", told->data);
        memmove(at + 1, at + 25, strlen(at + 25) + 1);
    }
}
