#include "router/api.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/base/hash.h"
#include "router/api_internal.h"

uint64_t fg_api_roll_digest(uint64_t rolling, uint64_t row_digest)
{
    unsigned char bytes[16];
    for (int i = 0; i < 8; i++) {
        bytes[i] = (unsigned char)(rolling >> (8 * i));
        bytes[8 + i] = (unsigned char)(row_digest >> (8 * i));
    }
    return fg_hash64(bytes, sizeof bytes, 0);
}

const char *fg_api_finish_name(fg_finish finish)
{
    FG_ASSERT(finish == FG_FINISH_STOP || finish == FG_FINISH_LENGTH, "no client sees this end");
    return finish == FG_FINISH_STOP ? "stop" : "length";
}

const char *fg_api_choice_finish_name(const fg_api_choice *choice)
{
    return choice->called && choice->finish == FG_FINISH_STOP ? "tool_calls"
                                                              : fg_api_finish_name(choice->finish);
}

static const char *type_of_status(int http_status)
{
    switch (http_status) {
    case 401:
        return "authentication_error";
    case 404:
        return "not_found_error";
    case 429:
        return "rate_limit_error";
    default:
        return http_status >= 500 ? "server_error" : "invalid_request_error";
    }
}

fg_status fg_api_refuse(fg_api_error *error_out, fg_status status, int http_status,
                        const char *param, const char *code, const char *format, ...)
{
    error_out->http_status = http_status;
    error_out->type = type_of_status(http_status);
    error_out->code = code;
    error_out->wait_s = 0;
    snprintf(error_out->param, sizeof error_out->param, "%s", param == NULL ? "" : param);
    va_list args;
    va_start(args, format);
    vsnprintf(error_out->text, sizeof error_out->text, format, args);
    va_end(args);
    return status;
}

static void put_string(fg_buf *out, const char *text, size_t length)
{
    fg_buf_putc(out, '"');
    fg_buf_json_escape(out, text, length);
    fg_buf_putc(out, '"');
}

static void put_string_or_null(fg_buf *out, const char *text)
{
    if (text == NULL) {
        fg_buf_append(out, "null", 4);
    } else {
        put_string(out, text, strlen(text));
    }
}

/* Everything in front of `choices`, which all shapes of an answer share. */
static void put_head(fg_buf *out, const fg_request *request, const char *object)
{
    fg_buf_puts(out, "{\"id\":");
    put_string_or_null(out, request->id);
    fg_buf_printf(out, ",\"object\":\"%s\",\"created\":%" PRId64 ",\"model\":", object,
                  request->created_s);
    put_string_or_null(out, request->model);
    fg_buf_puts(out, ",\"system_fingerprint\":");
    put_string_or_null(out, request->fingerprint);
}

static void put_ids(fg_buf *out, const fg_api_piece *piece)
{
    fg_buf_puts(out, "\"token_ids\":[");
    for (size_t i = 0; i < piece->token_count; i++) {
        fg_buf_printf(out, i == 0 ? "%" PRIu32 : ",%" PRIu32, piece->ids[i]);
    }
    fg_buf_putc(out, ']');
}

/* What a client asked for beyond OpenAI's shapes, at the end of a choice. */
static void put_extras(fg_buf *out, const fg_request *request, const fg_api_piece *piece)
{
    if (request->return_token_ids) {
        fg_buf_putc(out, ',');
        put_ids(out, piece);
    }
    if (request->logits_digest) {
        fg_buf_puts(out, ",\"forge\":{");
        put_ids(out, piece);
        fg_buf_puts(out, ",\"digests\":[");
        for (size_t i = 0; i < piece->token_count; i++) {
            fg_buf_printf(out, i == 0 ? "\"%016" PRIx64 "\"" : ",\"%016" PRIx64 "\"",
                          piece->digests[i]);
        }
        fg_buf_printf(out, "],\"rolling\":\"%016" PRIx64 "\"}", piece->rolling_digest);
    }
}

static void put_finish(fg_buf *out, const fg_api_choice *choice)
{
    if (choice->finish == FG_FINISH_NONE) {
        fg_buf_puts(out, ",\"finish_reason\":null");
    } else {
        fg_buf_printf(out, ",\"finish_reason\":\"%s\"", fg_api_choice_finish_name(choice));
    }
}

static void put_usage(fg_buf *out, const fg_request *request, const fg_api_usage *usage)
{
    uint64_t prompt_tokens = fg_request_prompt_tokens(request);
    fg_buf_printf(out,
                  ",\"usage\":{\"prompt_tokens\":%" PRIu64 ",\"completion_tokens\":%" PRIu64
                  ",\"total_tokens\":%" PRIu64
                  ",\"prompt_tokens_details\":{\"cached_tokens\":%" PRIu32 "}",
                  prompt_tokens, usage->completion_tokens, prompt_tokens + usage->completion_tokens,
                  usage->cached_tokens);
    if (request->thoughts.split) {
        fg_buf_printf(out, ",\"completion_tokens_details\":{\"reasoning_tokens\":%" PRIu64 "}",
                      usage->reasoning_tokens);
    }
    fg_buf_putc(out, '}');
}

/* Where the time went, in milliseconds. */
static void put_timings(fg_buf *out, const fg_dispatch_report *report)
{
    const struct {
        const char *name;
        uint64_t ns;
    } times[] = {
        { "queued_ms", report->queued_ns },
        { "reserved_ms", report->reserved_ns },
        { "prefill_ms", report->prefilling_ns },
        { "transfer_ms", report->transferring_ns },
        { "decode_ms", report->decoding_ns },
        { "worker_queue_ms", report->worker_queue_ns },
        { "worker_compute_ms", report->worker_compute_ns },
        { "first_token_ms", report->first_token_ns },
        { "total_ms", report->total_ns },
    };
    fg_buf_puts(out, ",\"timings\":{");
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++) {
        fg_buf_printf(out, "\"%s\":%.3f,", times[i].name, (double)times[i].ns / 1e6);
    }
    fg_buf_printf(out,
                  "\"cached_tokens\":%" PRIu32 ",\"chunks\":%" PRIu32 ",\"preemptions\":%" PRIu32
                  ",\"attempts\":%" PRIu32 "}",
                  report->cached_tokens, report->chunks, report->preemptions, report->attempts);
}

/* What every shape of a choice ends with, after its text. */
static void end_choice(fg_buf *out, const fg_request *request, const fg_api_choice *choice)
{
    fg_api_put_logprobs(out, request, &choice->piece);
    put_finish(out, choice);
    put_extras(out, request, &choice->piece);
    if (request->kind == FG_API_COMPLETION) {
        fg_api_put_prompt(out, request, &choice->piece);
    }
    if (choice->report != NULL && request->choice_count > 1) {
        put_timings(out, choice->report);
    }
    fg_buf_putc(out, '}');
}

/* A text, behind what is echoed of the prompt. */
static void put_text(fg_buf *out, const fg_api_piece *piece)
{
    fg_buf_putc(out, '"');
    fg_buf_json_escape(out, piece->echo, piece->echo_length);
    fg_buf_json_escape(out, piece->text, piece->text_length);
    fg_buf_putc(out, '"');
}

static void put_thought(fg_buf *out, const fg_api_piece *piece)
{
    fg_buf_puts(out, "\"reasoning_content\":");
    put_string(out, piece->thought, piece->thought_length);
}

static void put_choice(fg_buf *out, const fg_request *request, const fg_api_choice *choice)
{
    bool chat = request->kind == FG_API_CHAT;
    fg_buf_printf(out, "{\"index\":%" PRIu32 ",%s", choice->index,
                  chat ? "\"message\":{\"role\":\"assistant\",\"content\":" : "\"text\":");
    bool not_text = choice->calls.count > 0 || request->thoughts.split;
    if (not_text && choice->piece.text_length == 0) {
        fg_buf_puts(out, "null");
    } else {
        put_text(out, &choice->piece);
    }
    if (choice->piece.thought_length > 0) {
        fg_buf_putc(out, ',');
        put_thought(out, &choice->piece);
    }
    if (choice->calls.count > 0) {
        fg_buf_putc(out, ',');
        fg_api_put_calls(out, request, choice->index, &choice->calls);
    }
    if (chat) {
        fg_buf_puts(out, ",\"refusal\":null}");
    }
    end_choice(out, request, choice);
}

void fg_api_render_answer(fg_buf *out, const fg_request *request, const fg_api_choice *choices,
                          const fg_api_usage *usage)
{
    put_head(out, request, request->kind == FG_API_CHAT ? "chat.completion" : "text_completion");
    fg_buf_puts(out, ",\"choices\":[");
    for (uint32_t i = 0; i < request->choice_count; i++) {
        if (i > 0) {
            fg_buf_putc(out, ',');
        }
        put_choice(out, request, &choices[i]);
    }
    fg_buf_putc(out, ']');
    put_usage(out, request, usage);
    if (request->kind == FG_API_CHAT) { /* where vLLM has it, whose chats have one prompt */
        fg_api_put_prompt(out, request, &choices[0].piece);
    }
    if (request->choice_count == 1 && choices[0].report != NULL) {
        put_timings(out, choices[0].report);
    }
    fg_buf_putc(out, '}');
}

void fg_api_render_error(fg_buf *out, const fg_api_error *error)
{
    fg_buf_puts(out, "{\"error\":{\"message\":");
    put_string(out, error->text, strlen(error->text));
    fg_buf_puts(out, ",\"type\":");
    put_string_or_null(out, error->type);
    fg_buf_puts(out, ",\"param\":");
    put_string_or_null(out, error->param[0] == '\0' ? NULL : error->param);
    fg_buf_puts(out, ",\"code\":");
    put_string_or_null(out, error->code);
    fg_buf_puts(out, "}}");
}

void fg_api_render_model(fg_buf *out, const fg_api_server *server, int64_t created_s)
{
    fg_buf_puts(out, "{\"id\":");
    put_string_or_null(out, server->model_name);
    fg_buf_printf(out,
                  ",\"object\":\"model\",\"created\":%" PRId64
                  ",\"owned_by\":\"forge\",\"max_model_len\":%" PRIu32 "}",
                  created_s, server->context_max);
}

void fg_api_render_models(fg_buf *out, const fg_api_server *server, int64_t created_s)
{
    fg_buf_puts(out, "{\"object\":\"list\",\"data\":[");
    fg_api_render_model(out, server, created_s);
    fg_buf_puts(out, "]}");
}

static void begin_event(fg_buf *out, const fg_request *request)
{
    fg_buf_puts(out, "data: ");
    put_head(out, request,
             request->kind == FG_API_CHAT ? "chat.completion.chunk" : "text_completion");
}

/* Chunks before the usage chunk say `usage: null`, and only where a usage chunk will come: some
 * clients stumble over either where it was not asked for. */
static void end_event(fg_buf *out, const fg_request *request)
{
    fg_buf_puts(out, request->include_usage ? ",\"usage\":null}\n\n" : "}\n\n");
}

void fg_api_event_role(fg_buf *out, const fg_request *request, uint32_t index)
{
    begin_event(out, request);
    /* Where thoughts or calls may come instead of a text there is none yet. */
    bool not_text = request->tools.dialect != FG_TOOLS_NONE || request->thoughts.split;
    fg_buf_printf(out,
                  ",\"choices\":[{\"index\":%" PRIu32
                  ",\"delta\":{\"role\":\"assistant\",\"content\":%s},\"logprobs\":null,"
                  "\"finish_reason\":null}]",
                  index, not_text ? "null" : "\"\"");
    end_event(out, request);
}

void fg_api_event_choice(fg_buf *out, const fg_request *request, const fg_api_choice *choice)
{
    const fg_api_piece *piece = &choice->piece;
    begin_event(out, request);
    fg_buf_printf(out, ",\"choices\":[{\"index\":%" PRIu32 ",", choice->index);
    if (request->kind == FG_API_CHAT) {
        fg_buf_puts(out, "\"delta\":{");
        if (piece->thought_length > 0) {
            put_thought(out, piece);
        }
        if (piece->text_length > 0) {
            fg_buf_puts(out, piece->thought_length > 0 ? ",\"content\":" : "\"content\":");
            put_string(out, piece->text, piece->text_length);
        }
        fg_buf_putc(out, '}');
    } else {
        fg_buf_puts(out, "\"text\":");
        put_text(out, piece);
    }
    end_choice(out, request, choice);
    fg_buf_putc(out, ']');
    if (request->choice_count == 1 && choice->report != NULL) {
        put_timings(out, choice->report);
    }
    end_event(out, request);
}

void fg_api_event_calls(fg_buf *out, const fg_request *request, uint32_t index,
                        const fg_api_calls *calls)
{
    const char *text = calls->text;
    for (size_t i = 0; i < 2 * calls->count; i++) {
        const fg_api_call_part *part = &calls->parts[i / 2];
        size_t length = i % 2 == 0 ? part->name_length : part->arguments_length;
        if (length == 0) {
            continue;
        }
        begin_event(out, request);
        fg_buf_printf(out, ",\"choices\":[{\"index\":%" PRIu32 ",\"delta\":{", index);
        if (i % 2 == 0) {
            fg_api_put_call_name(out, request, index, part, text);
        } else {
            fg_api_put_call_arguments(out, part, text);
        }
        fg_buf_puts(out, "},\"logprobs\":null,\"finish_reason\":null}]");
        end_event(out, request);
        text += length;
    }
}

void fg_api_event_usage(fg_buf *out, const fg_request *request, const fg_api_usage *usage,
                        const fg_dispatch_report *report)
{
    begin_event(out, request);
    fg_buf_puts(out, ",\"choices\":[]");
    put_usage(out, request, usage);
    if (report != NULL) {
        put_timings(out, report);
    }
    fg_buf_puts(out, "}\n\n");
}

void fg_api_event_error(fg_buf *out, const fg_api_error *error)
{
    fg_buf_puts(out, "data: ");
    fg_api_render_error(out, error);
    fg_buf_puts(out, "\n\n");
}

void fg_api_event_done(fg_buf *out)
{
    fg_buf_puts(out, "data: [DONE]\n\n");
}
