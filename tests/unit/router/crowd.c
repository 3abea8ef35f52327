#include "tests/unit/router/crowd.h"

#include <stdio.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/base/status.h"

crowd the_crowd;

static void on_news(void *ctx)
{
    the_crowd.news++;
}

static fg_api_server server(void)
{
    return (fg_api_server){
        .tokenizer = the_crowd.model.tokenizer,
        .chat = the_crowd.model.chat,
        .model_name = "tiny",
        .context_max = 100000,
        .max_tokens_default = 1000,
        .embedding_length = CROWD_EMBEDDING,
        .pooling = the_crowd.pooling,
    };
}

static void on_call(void *ctx, fg_api_kind kind, fg_api_server *server_out, fg_api_call *call_out)
{
    *server_out = server();
    *call_out = (fg_api_call){ .id = "id", .created_s = 5, .seed = 1000 };
    the_crowd.calls++;
}

void crowd_open(void)
{
    fg_error err = { 0 };
    the_crowd = (crowd){ .room = CROWD_JOBS_MAX,
                         .at_once = CROWD_JOBS_MAX,
                         .now_ns = 1,
                         .answer_max = the_crowd.answer_max,
                         .gathered_max = the_crowd.gathered_max };
    tiny_model_open(&the_crowd.model);
    the_crowd.jobs = fg_mem_array(CROWD_JOBS_MAX, sizeof(crowd_job));
    the_crowd.metrics = fg_metrics_create(FG_METER_SERIES_MAX);
    FG_ASSERT(fg_meter_create(the_crowd.metrics, &the_crowd.meter, &err) == FG_OK);
    fg_streams_options streams = {
        .tokenizer = the_crowd.model.tokenizer,
        .dispatch = (fg_dispatch *)(void *)&the_crowd,
        .meter = the_crowd.meter,
        .clock = fg_clock_manual(&the_crowd.now_ns),
        .gathered_bytes_max = the_crowd.gathered_max,
        .on_news = on_news,
    };
    FG_ASSERT(fg_streams_create(&streams, &the_crowd.streams, &err) == FG_OK, "%s", err.text);
    fg_batches_options batches = {
        .streams = the_crowd.streams,
        .meter = the_crowd.meter,
        .clock = fg_clock_manual(&the_crowd.now_ns),
        .on_call = on_call,
        .on_news = on_news,
        .answer_max = the_crowd.answer_max,
    };
    FG_ASSERT(fg_batches_create(&batches, &the_crowd.batches, &err) == FG_OK, "%s", err.text);
}

void crowd_close(void)
{
    fg_batches_destroy(the_crowd.batches);
    fg_streams_destroy(the_crowd.streams);
    FG_ASSERT(the_crowd.running == 0, "%u jobs still run", the_crowd.running);
    for (int i = 0; i < CROWD_EXCHANGES; i++) {
        fg_buf_deinit(&the_crowd.exchanges[i].headers);
        fg_buf_deinit(&the_crowd.exchanges[i].body);
    }
    fg_meter_destroy(the_crowd.meter);
    fg_metrics_destroy(the_crowd.metrics);
    fg_mem_free(the_crowd.jobs);
    tiny_model_close(&the_crowd.model);
}

fg_status crowd_request(int exchange, fg_api_kind kind, const char *body, uint64_t seed,
                        fg_api_error *error_out)
{
    fg_api_server it = server();
    fg_api_call call = { .id = "id", .created_s = 5, .seed = seed };
    fg_arena *arena = fg_arena_create(FG_API_ARENA_BYTES);
    if (arena == NULL) {
        return FG_AGAIN;
    }
    fg_request request;
    fg_status status =
        fg_api_parse(&it, kind, body, strlen(body), &call, arena, &request, error_out);
    if (status == FG_OK) {
        status = fg_stream_open(the_crowd.streams, &the_crowd.exchanges[exchange],
                                "/v1/completions", &request, error_out);
    }
    if (status != FG_OK) {
        fg_arena_destroy(arena);
    }
    return status;
}

void crowd_must_request(int exchange, fg_api_kind kind, const char *body, uint64_t seed)
{
    fg_api_error error;
    FG_ASSERT(crowd_request(exchange, kind, body, seed, &error) == FG_OK, "%s", error.text);
}

const char *crowd_body(int exchange)
{
    const fg_buf *body = &the_crowd.exchanges[exchange].body;
    return body->data == NULL ? "" : body->data;
}

void crowd_token(uint32_t job, uint32_t id)
{
    crowd_job *it = &the_crowd.jobs[job];
    FG_ASSERT(it->running, "a token for a dead request");
    fg_logprobs said = { .chosen = -0.5f };
    for (; said.count + 1 < it->job.params.want_logprobs; said.count++) {
        said.likely[said.count] = (fg_likely){ 'x' + said.count, -1.0f };
    }
    the_crowd.inside = true;
    it->job.sink.on_token(it->job.sink.ctx, it->sent++, id, id,
                          it->job.params.want_logprobs > 0 ? &said : NULL);
    the_crowd.inside = false;
}

void crowd_scores(uint32_t job, uint32_t from, uint32_t until)
{
    crowd_job *it = &the_crowd.jobs[job];
    FG_ASSERT(it->running && it->job.params.want_scores > 0 && it->sent == 0, "nobody asked");
    for (uint32_t i = from; i < until; i++) {
        float chosen = -(float)i;
        uint32_t rank = i;
        fg_likely likely[FG_LOGPROBS_MAX];
        for (uint32_t k = 0; k < FG_LOGPROBS_MAX; k++) {
            likely[k] = (fg_likely){ 'x' + k, -1.0f };
        }
        fg_scores one = { .chosen = &chosen,
                          .ranks = &rank,
                          .likely = likely,
                          .count = 1,
                          .likely_count = it->job.params.want_scores - 1 };
        the_crowd.inside = true;
        it->job.sink.on_scores(it->job.sink.ctx, i, &one);
        the_crowd.inside = false;
    }
}

void crowd_end(uint32_t job, fg_finish finish, fg_status status, const char *text)
{
    crowd_job *it = &the_crowd.jobs[job];
    FG_ASSERT(it->running, "an end for a dead request");
    it->running = false;
    the_crowd.running--;
    fg_dispatch_report report = the_crowd.report;
    report.prompt_tokens = it->job.token_count;
    the_crowd.inside = true;
    it->job.sink.on_end(it->job.sink.ctx, finish, status, text, &report);
    the_crowd.inside = false;
}

void crowd_embedding(const uint32_t *tokens, uint32_t count, float *out)
{
    uint64_t hash = fg_hash64(tokens, count * sizeof *tokens, 3);
    for (uint32_t i = 0; i < CROWD_EMBEDDING; i++) {
        out[i] = (float)(fg_hash_mix(hash + i) % 2001) / 100.0f - 10.0f;
    }
}

void crowd_finish(uint32_t job)
{
    const fg_dispatch_job *it = &the_crowd.jobs[job].job;
    if (it->params.want_embedding) {
        float embedding[CROWD_EMBEDDING];
        crowd_embedding(it->tokens, it->token_count, embedding);
        the_crowd.inside = true;
        it->sink.on_embedding(it->sink.ctx, embedding, CROWD_EMBEDDING);
        the_crowd.inside = false;
        crowd_token(job, 'a');
        crowd_end(job, FG_FINISH_LENGTH, FG_OK, NULL);
        return;
    }
    uint64_t prompt = fg_hash64(it->tokens, it->token_count * sizeof *it->tokens, it->params.seed);
    while (the_crowd.jobs[job].sent < CROWD_TOKENS) {
        uint32_t index = the_crowd.jobs[job].sent;
        crowd_token(job, 'a' + (uint32_t)(fg_hash_mix(prompt + index) % 26));
    }
    crowd_end(job, FG_FINISH_LENGTH, FG_OK, NULL);
}

void crowd_turn(uint32_t count)
{
    for (uint32_t i = 0; i < the_crowd.job_count && count > 0; i++) {
        if (the_crowd.jobs[i].running) {
            crowd_finish(i);
            count--;
        }
    }
    fg_streams_flush(the_crowd.streams);
    fg_batches_pump(the_crowd.batches);
}

fg_status fg_dispatch_start(fg_dispatch *dispatch, const fg_dispatch_job *job, uint64_t *id_out,
                            fg_error *err)
{
    FG_ASSERT(!the_crowd.inside, "dispatch entered from its own callback");
    if (the_crowd.start_status != FG_OK) {
        return fg_fail(err, the_crowd.start_status, "not now");
    }
    if (the_crowd.running >= the_crowd.room) {
        the_crowd.refused++;
        return fg_fail(err, FG_AGAIN, "the queue is full");
    }
    FG_ASSERT(the_crowd.job_count < CROWD_JOBS_MAX, "too many jobs");
    the_crowd.jobs[the_crowd.job_count++] = (crowd_job){ .running = true, .job = *job };
    the_crowd.running++;
    *id_out = the_crowd.job_count;
    return FG_OK;
}

bool fg_dispatch_cancel(fg_dispatch *dispatch, uint64_t id, fg_finish reason,
                        fg_dispatch_report *report_out)
{
    FG_ASSERT(!the_crowd.inside, "dispatch entered from its own callback");
    FG_ASSERT(id >= 1 && id <= the_crowd.job_count, "an unknown request");
    FG_ASSERT(reason == FG_FINISH_STOP || reason == FG_FINISH_CANCELLED, "a strange reason");
    crowd_job *it = &the_crowd.jobs[id - 1];
    FG_ASSERT(it->running, "a dead request was cancelled");
    it->running = false;
    it->cancelled = reason;
    the_crowd.running--;
    if (report_out != NULL) {
        *report_out = the_crowd.report;
    }
    return true;
}

uint32_t fg_dispatch_retry_after(const fg_dispatch *dispatch)
{
    return 7;
}

uint64_t fg_dispatch_at_once(fg_dispatch *dispatch, const fg_dispatch_job *job)
{
    return the_crowd.at_once;
}

uint32_t fg_dispatch_refused_s(const fg_dispatch *dispatch)
{
    return 0;
}

void fg_http_set_user(fg_http_exchange *exchange, void *user)
{
    FG_ASSERT(!exchange->ended, "a dead exchange was touched");
    exchange->user = user;
}

void *fg_http_user(const fg_http_exchange *exchange)
{
    FG_ASSERT(!exchange->ended, "a dead exchange was touched");
    return exchange->user;
}

void fg_http_add_header(fg_http_exchange *exchange, const char *name, const char *value)
{
    FG_ASSERT(!exchange->ended && !exchange->streaming, "a header after the status");
    fg_buf_printf(&exchange->headers, "%s: %s\n", name, value);
}

void fg_http_reply(fg_http_exchange *exchange, int status, const char *content_type,
                   const void *body, size_t body_bytes)
{
    FG_ASSERT(!exchange->ended && !exchange->streaming, "answered twice");
    exchange->status = status;
    exchange->ended = true;
    fg_buf_append(&exchange->body, body, body_bytes);
}

void fg_http_stream_begin(fg_http_exchange *exchange, int status, const char *content_type)
{
    FG_ASSERT(!exchange->ended && !exchange->streaming, "answered twice");
    exchange->status = status;
    exchange->streaming = true;
}

fg_status fg_http_stream_write(fg_http_exchange *exchange, const void *bytes, size_t size_bytes)
{
    FG_ASSERT(!exchange->ended && exchange->streaming, "a write outside a stream");
    if (exchange->write_status == FG_OK) {
        exchange->write_count++;
        fg_buf_append(&exchange->body, bytes, size_bytes);
    }
    return exchange->write_status;
}

void fg_http_stream_end(fg_http_exchange *exchange)
{
    FG_ASSERT(!exchange->ended && exchange->streaming, "an end outside a stream");
    exchange->ended = true;
}
