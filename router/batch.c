#include "router/batch.h"

#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "router/batch_internal.h"
#include "router/tracing.h"

/* Lines that one pump reads and starts: their texts are tokenized here, and others wait meanwhile. */
enum { STARTS_PER_PUMP = 16 };

#define TRY_AGAIN_NS    (50ull * 1000 * 1000)         /* while the queue is full */
#define NO_ROOM_EVER_NS (600ull * 1000 * 1000 * 1000) /* as long as a request may be queued */

typedef struct fg_batch fg_batch;

static uint64_t now_of(const fg_batch *batch)
{
    return fg_clock_now_ns(&batch->owner->options.clock);
}

fg_status fg_batches_create(const fg_batches_options *options, fg_batches **batches_out,
                            fg_error *err)
{
    fg_batches *batches = fg_mem_alloc(sizeof *batches);
    if (batches == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for the batches");
    }
    batches->options = *options;
    if (batches->options.answer_max == 0) {
        batches->options.answer_max = FG_LIMIT_BATCH_BYTES;
    }
    *batches_out = batches;
    return FG_OK;
}

static void drop_request(fg_batch *batch)
{
    if (batch->request_read) {
        fg_arena_destroy(batch->request.arena);
        batch->request_read = false;
    }
}

static void free_batch(fg_batch *batch)
{
    for (uint32_t i = 0; i < batch->line_count; i++) {
        fg_line *line = &batch->lines[i];
        if (line->state == FG_LINE_RUNNING) {
            fg_stream_cancel(line->stream);
        }
        fg_mem_free(line->answer);
    }
    drop_request(batch);
    fg_mem_free(batch->lines);
    fg_json_destroy(batch->json);
    fg_buf_deinit(&batch->scratch);
    fg_mem_free(batch);
}

static void unlink_batch(fg_batch *batch)
{
    fg_batch **at = &batch->owner->first;
    while (*at != batch) {
        at = &(*at)->next;
    }
    *at = batch->next;
    batch->owner->count--;
}

void fg_batches_destroy(fg_batches *batches)
{
    if (batches == NULL) {
        return;
    }
    while (batches->first != NULL) {
        fg_batch *batch = batches->first;
        unlink_batch(batch);
        free_batch(batch);
    }
    fg_mem_free(batches);
}

fg_status fg_batch_open(fg_batches *batches, fg_http_exchange *exchange, const char *route,
                        const char *name, const char *body, size_t body_bytes,
                        fg_api_error *error_out)
{
    if (batches->count >= FG_LIMIT_BATCHES) {
        return fg_api_refuse(error_out, FG_AGAIN, 429, NULL, "overloaded",
                             "%u batches are running already", batches->count);
    }
    fg_batch *batch = fg_mem_alloc(sizeof *batch);
    if (batch == NULL) {
        return fg_api_refuse(error_out, FG_AGAIN, 503, NULL, NULL, "out of memory for the batch");
    }
    batch->owner = batches;
    batch->exchange = exchange;
    batch->route = route;
    snprintf(batch->name, sizeof batch->name, "%s", name);
    fg_buf_init(&batch->scratch, 0);
    batch->progress_ns = batch->started_ns = now_of(batch);
    fg_status status =
        fg_api_parse_json(body, body_bytes, FG_LIMIT_JSON_VALUES, &batch->json, error_out);
    if (status == FG_OK) {
        status = fg_lines_read(batch, error_out);
    }
    if (status != FG_OK) {
        free_batch(batch);
        return status;
    }
    batch->next = batches->first;
    batches->first = batch;
    batches->count++;
    fg_info("batch", "event=begin batch=%s lines=%u", batch->name, batch->line_count);
    batches->options.on_news(batches->options.ctx);
    return FG_OK;
}

void fg_batch_trace(fg_batches *batches, const fg_http_exchange *exchange,
                    const fg_request_trace *trace)
{
    for (fg_batch *batch = batches->first; batch != NULL; batch = batch->next) {
        if (batch->exchange == exchange) {
            batch->trace = *trace;
            batch->trace.state = NULL; /* it lies in the request's head, which goes first */
        }
    }
}

void fg_batch_caller(fg_batches *batches, const fg_http_exchange *exchange, const char *caller)
{
    for (fg_batch *batch = batches->first; batch != NULL; batch = batch->next) {
        if (batch->exchange == exchange) {
            snprintf(batch->caller, sizeof batch->caller, "%s", caller);
        }
    }
}

static void trace_end(const fg_batch *batch, int http_status)
{
    fg_tracing_end end = { .route = batch->route,
                           .id = batch->name,
                           .began_ns = batch->started_ns,
                           .ended_ns = now_of(batch),
                           .http_status = http_status };
    fg_tracing_end_request(batch->owner->options.spans, &batch->trace, &end);
}

bool fg_batches_gone(fg_batches *batches, fg_http_exchange *exchange)
{
    for (fg_batch *batch = batches->first; batch != NULL; batch = batch->next) {
        if (batch->exchange == exchange) {
            fg_info("batch", "event=client_gone batch=%s done=%u", batch->name, batch->done_count);
            fg_meter_http(batches->options.meter, batch->route, 499);
            trace_end(batch, 499);
            unlink_batch(batch);
            free_batch(batch);
            return true;
        }
    }
    return false;
}

/* The sink of a line's stream. */
static void on_reply(void *ctx, int http_status, uint32_t wait_s, const char *body,
                     size_t body_bytes)
{
    fg_line *line = ctx;
    fg_batch *batch = line->batch;
    batch->running_choices -= line->choice_count;
    batch->progress_ns = now_of(batch);
    batch->try_at_ns = 0;
    fg_line_finish(line, http_status, body, body_bytes);
    batch->owner->options.on_news(batch->owner->options.ctx);
}

/* Reads the request of the next line, once. */
static fg_status read_request(fg_batch *batch, fg_line *line, fg_api_error *error_out)
{
    if (batch->request_read) {
        return FG_OK;
    }
    fg_api_server server;
    fg_api_call call;
    batch->owner->options.on_call(batch->owner->options.ctx, line->kind, &server, &call);
    call.caller = batch->caller;
    snprintf(line->request_id, sizeof line->request_id, "%s", call.id);
    fg_arena *arena = fg_arena_create(FG_API_ARENA_BYTES);
    if (arena == NULL) {
        return fg_api_refuse(error_out, FG_AGAIN, 503, NULL, NULL, "out of memory");
    }
    fg_status status =
        fg_api_read(&server, line->kind, line->body, &call, arena, &batch->request, error_out);
    fg_request_trace trace;
    fg_tracing_begin_line(batch->owner->options.spans, &batch->trace, &trace);
    if (status == FG_OK && fg_tracing_apply(&trace, &batch->request) != FG_OK) {
        status = fg_api_refuse(error_out, FG_AGAIN, 503, NULL, NULL, "out of memory");
    }
    if (status == FG_OK && batch->request.stream) {
        status = fg_api_refuse(error_out, FG_BAD_INPUT, 400, "stream", "invalid_value",
                               "a line of a batch cannot be streamed");
    }
    if (status != FG_OK) {
        fg_arena_destroy(arena);
        return status;
    }
    line->choice_count = batch->request.choice_count;
    batch->request_read = true;
    return FG_OK;
}

/* True when waiting can help a line that dispatch had no room for. */
static bool may_wait(const fg_batch *batch, const fg_api_error *error)
{
    if (error->http_status != 429 || fg_streams_count(batch->owner->options.streams) == 0) {
        return false; /* with nobody else there, there is never more room */
    }
    return batch->running_choices > 0 || now_of(batch) - batch->progress_ns < NO_ROOM_EVER_NS;
}

/* False when the line waits for room. */
static bool start_line(fg_batch *batch, fg_line *line)
{
    fg_api_error error;
    fg_stream_sink sink = { .reply = on_reply, .ctx = line };
    fg_status status = read_request(batch, line, &error);
    if (status == FG_OK) {
        status = fg_stream_open_to(batch->owner->options.streams, &sink, &batch->request,
                                   &line->stream, &error);
        if (status == FG_OK) {
            batch->request_read = false; /* the stream's now */
            batch->running_choices += line->choice_count;
            batch->progress_ns = now_of(batch);
            line->state = FG_LINE_RUNNING;
            return true;
        }
        if (status == FG_AGAIN && may_wait(batch, &error)) {
            return false;
        }
    }
    drop_request(batch);
    fg_line_refuse(line, &error);
    return true;
}

static void start_lines(fg_batch *batch)
{
    uint32_t looked_at = 0;
    if (batch->blocked && now_of(batch) < batch->try_at_ns) {
        return;
    }
    batch->blocked = false;
    while (batch->next_line < batch->line_count &&
           batch->running_choices < FG_LIMIT_BATCH_RUNNING) {
        fg_line *line = &batch->lines[batch->next_line];
        if (line->state == FG_LINE_WAITING) {
            if (looked_at++ == STARTS_PER_PUMP) {
                batch->owner->options.on_news(batch->owner->options.ctx);
                return;
            }
            if (!start_line(batch, line)) {
                batch->blocked = true;
                batch->try_at_ns = now_of(batch) + TRY_AGAIN_NS;
                return;
            }
        }
        batch->next_line++;
    }
}

static void answer(fg_batch *batch)
{
    fg_batches *batches = batch->owner;
    fg_buf out;
    fg_buf_init(&out, 0);
    fg_lines_render(batch, &out);
    unlink_batch(batch); /* the exchange is dead as soon as it is answered */
    fg_info("batch", "event=end batch=%s lines=%u bytes=%zu", batch->name, batch->line_count,
            out.size);
    trace_end(batch, out.failed ? 503 : 200);
    if (out.failed) {
        fg_api_error error;
        fg_api_refuse(&error, FG_AGAIN, 503, NULL, NULL, "out of memory for the batch's answer");
        fg_stream_reply_error(batches->options.streams, batch->exchange, batch->route, &error);
    } else {
        fg_meter_http(batches->options.meter, batch->route, 200);
        fg_http_reply(batch->exchange, 200, "application/json", out.data, out.size);
    }
    fg_buf_deinit(&out);
    free_batch(batch);
}

void fg_batches_pump(fg_batches *batches)
{
    for (fg_batch *batch = batches->first, *next; batch != NULL; batch = next) {
        next = batch->next;
        start_lines(batch);
        if (batch->done_count == batch->line_count) {
            answer(batch);
        }
    }
}

bool fg_batches_blocked(const fg_batches *batches)
{
    for (const fg_batch *batch = batches->first; batch != NULL; batch = batch->next) {
        if (batch->blocked) {
            return true;
        }
    }
    return false;
}

uint32_t fg_batches_count(const fg_batches *batches)
{
    return batches->count;
}
