#include "tests/unit/router/fakes.h"

#include <stdio.h>
#include <string.h>

#include "common/base/status.h"

fake_dispatch fake_dispatch_state;
fg_http_handler fake_http_handler;
bool fake_http_draining;
bool fake_http_closed;

void fake_dispatch_reset(void)
{
    fake_dispatch_state = (fake_dispatch){ .ready = true, .context_max = 1000, .retry_after = 7 };
    fake_http_draining = false;
    fake_http_closed = false;
}

fg_dispatch *fake_dispatch_handle(void)
{
    return (fg_dispatch *)(void *)&fake_dispatch_state;
}

void fake_token(uint32_t job, uint32_t id, uint64_t digest)
{
    fake_job *it = &fake_dispatch_state.jobs[job];
    FG_ASSERT(it->running, "a token for a dead request");
    fake_dispatch_state.inside = true;
    it->job.sink.on_token(it->job.sink.ctx, it->sent++, id, digest, NULL);
    fake_dispatch_state.inside = false;
}

void fake_end(uint32_t job, fg_finish finish, fg_status status, const char *text)
{
    fake_job *it = &fake_dispatch_state.jobs[job];
    FG_ASSERT(it->running, "an end for a dead request");
    it->running = false;
    fake_dispatch_state.inside = true;
    fg_dispatch_report report = fake_dispatch_state.report;
    report.prompt_tokens = it->job.token_count;
    report.attempts = report.attempts == 0 ? 1 : report.attempts;
    it->job.sink.on_end(it->job.sink.ctx, finish, status, text, &report);
    fake_dispatch_state.inside = false;
}

uint32_t fake_running_count(void)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < fake_dispatch_state.job_count; i++) {
        count += fake_dispatch_state.jobs[i].running;
    }
    return count;
}

fg_status fg_dispatch_start(fg_dispatch *dispatch, const fg_dispatch_job *job, uint64_t *id_out,
                            fg_error *err)
{
    FG_ASSERT(!fake_dispatch_state.inside, "dispatch entered from its own callback");
    if (fake_dispatch_state.start_status != FG_OK) {
        return fg_fail(err, fake_dispatch_state.start_status, "%s", fake_dispatch_state.start_text);
    }
    FG_ASSERT(fake_dispatch_state.job_count < FAKE_JOBS_MAX, "too many jobs for the fake");
    fake_job *it = &fake_dispatch_state.jobs[fake_dispatch_state.job_count++];
    *it = (fake_job){ .running = true, .job = *job };
    *id_out = fake_dispatch_state.job_count;
    return FG_OK;
}

bool fg_dispatch_cancel(fg_dispatch *dispatch, uint64_t id, fg_finish reason,
                        fg_dispatch_report *report_out)
{
    FG_ASSERT(!fake_dispatch_state.inside, "dispatch entered from its own callback");
    FG_ASSERT(id >= 1 && id <= fake_dispatch_state.job_count, "an unknown request");
    fake_job *it = &fake_dispatch_state.jobs[id - 1];
    FG_ASSERT(it->running, "a dead request was cancelled");
    it->running = false;
    it->cancelled = reason;
    return true;
}

bool fg_dispatch_ready(const fg_dispatch *dispatch)
{
    return fake_dispatch_state.ready;
}

uint32_t fg_dispatch_context_max(const fg_dispatch *dispatch)
{
    return fake_dispatch_state.context_max;
}

uint32_t fg_dispatch_retry_after(const fg_dispatch *dispatch)
{
    return fake_dispatch_state.retry_after;
}

uint64_t fg_dispatch_at_once(fg_dispatch *dispatch, const fg_dispatch_job *job)
{
    return fake_dispatch_state.at_once;
}

uint32_t fg_dispatch_refused_s(const fg_dispatch *dispatch)
{
    return fake_dispatch_state.refused_s;
}

bool fg_dispatch_render_state(const fg_dispatch *dispatch, fg_buf *out)
{
    return fg_buf_puts(out, "{\"workers\":[],\"requests\":[]}");
}

fg_status fg_dispatch_set_role(fg_dispatch *dispatch, const char *name, uint32_t roles,
                               uint32_t *was_out, fg_error *err)
{
    if (strcmp(name, "w1") != 0) {
        return fg_fail(err, FG_PEER_LOST, "no worker named %s", name);
    }
    *was_out = FG_ROLE_DECODE;
    return FG_OK;
}

const char *fg_dispatch_role_name(uint32_t roles)
{
    return roles == FG_ROLE_PREFILL ? "prefill" : roles == FG_ROLE_DECODE ? "decode" : "both";
}

uint32_t fg_dispatch_clear_cache(fg_dispatch *dispatch)
{
    FG_ASSERT(!fake_dispatch_state.inside, "dispatch entered from its own callback");
    fake_dispatch_state.clear_count++;
    return fake_dispatch_state.workers;
}

bool fg_dispatch_render_cache(const fg_dispatch *dispatch, fg_buf *out)
{
    return fg_buf_puts(out, "{\"workers\":[],\"total\":{}}");
}

void fake_exchange_init(fg_http_exchange *exchange)
{
    *exchange = (fg_http_exchange){ .content_type = "application/json" };
}

void fake_exchange_deinit(fg_http_exchange *exchange)
{
    fg_buf_deinit(&exchange->headers);
    fg_buf_deinit(&exchange->body);
}

fg_status fg_http_listen(struct fg_loop *loop, const char *host, uint16_t port,
                         const fg_http_limits *limits, const fg_http_handler *handler,
                         fg_http_server **server_out, fg_error *err)
{
    if (strcmp(host, "nowhere") == 0) {
        return fg_fail(err, FG_BAD_INPUT, "cannot bind %s", host);
    }
    fake_http_handler = *handler;
    *server_out = (fg_http_server *)(void *)&fake_http_handler;
    return FG_OK;
}

uint16_t fg_http_port(const fg_http_server *server)
{
    return 4242;
}

uint64_t fg_http_refused_count(const fg_http_server *server)
{
    return 0;
}

void fg_http_drain(fg_http_server *server)
{
    fake_http_draining = true;
}

void fg_http_close(fg_http_server *server)
{
    fake_http_closed = true;
}

uint32_t fg_http_exchange_count(const fg_http_server *server)
{
    return fake_running_count();
}

const char *fg_http_header(const fg_http_exchange *exchange, const char *name)
{
    return strcmp(name, "content-type") == 0     ? exchange->content_type
           : strcmp(name, "sec-fetch-site") == 0 ? exchange->fetch_site
           : strcmp(name, "authorization") == 0  ? exchange->authorization
                                                 : NULL;
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
    FG_ASSERT(!exchange->ended && !exchange->streaming && exchange->status == 0,
              "a header after the status");
    fg_buf_printf(&exchange->headers, "%s: %s\n", name, value);
}

void fg_http_reply(fg_http_exchange *exchange, int status, const char *content_type,
                   const void *body, size_t body_bytes)
{
    FG_ASSERT(!exchange->ended && !exchange->streaming, "answered twice");
    exchange->status = status;
    exchange->ended = true;
    snprintf(exchange->reply_type, sizeof exchange->reply_type, "%s", content_type);
    fg_buf_append(&exchange->body, body, body_bytes);
}

void fg_http_stream_begin(fg_http_exchange *exchange, int status, const char *content_type)
{
    FG_ASSERT(!exchange->ended && !exchange->streaming, "answered twice");
    exchange->status = status;
    exchange->streaming = true;
    snprintf(exchange->reply_type, sizeof exchange->reply_type, "%s", content_type);
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

size_t fg_http_stream_queued(const fg_http_exchange *exchange)
{
    return 0;
}
