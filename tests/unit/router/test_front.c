#include "router/front.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/fault.h"
#include "common/net/api_keys.h"
#include "common/net/loop.h"
#include "router/meter.h"
#include "tests/support/test.h"
#include "tests/unit/router/fakes.h"
#include "tests/unit/router/tiny_model.h"

typedef struct world {
    tiny_model model;
    fg_loop *loop;
    fg_metrics *metrics;
    fg_front *front;
    fg_http_exchange exchange;
} world;

static int64_t fixed_time(void *ctx)
{
    return 1700000000;
}

static fg_front_options options_of(world *w, const char *host)
{
    return (fg_front_options){
        .loop = w->loop,
        .host = host,
        .tokenizer = w->model.tokenizer,
        .chat = w->model.chat,
        .dispatch = fake_dispatch_handle(),
        .metrics = w->metrics,
        .served_model_name = "org/tiny",
        .system_fingerprint = "fp",
        .context_max = 2000,
        .rng = { .state = 1 },
        .clock = fg_clock_real(),
        .unix_time = fixed_time,
    };
}

static void open_world(world *w)
{
    fg_error err = { 0 };
    *w = (world){ 0 };
    tiny_model_open(&w->model);
    fake_dispatch_reset();
    fake_exchange_init(&w->exchange);
    w->metrics = fg_metrics_create(FG_METER_SERIES_MAX);
    cr_assert_eq(fg_loop_create(&w->loop, &err), FG_OK, "%s", err.text);
    fg_front_options options = options_of(w, "127.0.0.1");
    cr_assert_eq(fg_front_create(&options, &w->front, &err), FG_OK, "%s", err.text);
}

static void close_world(world *w)
{
    fg_front_destroy(w->front);
    cr_assert_eq(fake_running_count(), 0);
    while (fg_loop_run_once(w->loop, false)) {
    }
    fg_loop_destroy(w->loop);
    fake_exchange_deinit(&w->exchange);
    fg_metrics_destroy(w->metrics);
    tiny_model_close(&w->model);
}

static void send(world *w, const char *method, const char *path, const char *content_type,
                 const char *body)
{
    fg_http_request request = {
        .method = method,
        .path = path,
        .query = "",
        .body = body,
        .body_bytes = strlen(body),
    };
    fake_exchange_deinit(&w->exchange);
    fake_exchange_init(&w->exchange);
    w->exchange.content_type = content_type;
    fake_http_handler.on_request(fake_http_handler.ctx, &w->exchange, &request);
}

static bool says(const world *w, const char *text)
{
    return w->exchange.body.data != NULL && strstr(w->exchange.body.data, text) != NULL;
}

static bool has_header(const world *w, const char *text)
{
    return w->exchange.headers.data != NULL && strstr(w->exchange.headers.data, text) != NULL;
}

static const struct route_case {
    const char *method, *path, *type, *body;
    int status;
    const char *says;
} route_cases[] = {
    { "GET", "/health", NULL, "", 200, "{\"status\":\"ok\"}" },
    { "HEAD", "/health", NULL, "", 200, "" },
    { "GET", "/live", NULL, "", 200, "{\"status\":\"ok\"}" },
    { "GET", "/metrics", NULL, "", 200, "# TYPE forge:num_requests_running gauge" },
    { "GET", "/debug/state", NULL, "", 200, "{\"workers\":[],\"requests\":[]}" },
    { "GET", "/debug/trace", NULL, "", 404, "keeps no trace" },
    { "POST", "/debug/trace", NULL, "", 405, "POST is not allowed" },
    { "GET", "/forge/v1/cache/stats", NULL, "", 200, "{\"workers\":[],\"total\":{}}" },
    { "POST", "/forge/v1/cache/stats", NULL, "", 405, "POST is not allowed" },
    { "POST", "/forge/v1/cache/clear", NULL, "", 200, "{\"cleared_workers\":3}" },
    { "POST", "/forge/v1/admin/role", NULL, "{\"worker\":\"w1\",\"role\":\"both\"}", 200,
      "{\"worker\":\"w1\",\"role\":\"both\",\"was\":\"decode\"}" },
    { "POST", "/forge/v1/admin/role", NULL, "{\"worker\":\"w9\",\"role\":\"both\"}", 404, "w9" },
    { "POST", "/forge/v1/admin/role", NULL, "{\"worker\":\"w1\",\"role\":\"king\"}", 400,
      "\"param\":\"role\"" },
    { "POST", "/forge/v1/admin/role", NULL, "{\"worker\":\"w1\",\"role\":3}", 400,
      "\"param\":\"role\"" },
    { "POST", "/forge/v1/admin/role", NULL, "{\"role\":\"both\"}", 400, "\"param\":\"worker\"" },
    { "POST", "/forge/v1/admin/role", NULL, "[]", 400, "must be a JSON object" },
    { "POST", "/forge/v1/admin/role", NULL, "{", 400, "not valid JSON" },
    { "GET", "/forge/v1/admin/role", NULL, "", 405, "GET is not allowed" },
    { "POST", "/reset_prefix_cache", NULL, "", 200, "{\"cleared_workers\":3}" },
    { "POST", "/flush_cache", NULL, "", 200, "{\"cleared_workers\":3}" },
    { "GET", "/forge/v1/cache/clear", NULL, "", 405, "GET is not allowed" },
    { "GET", "/flush_cache", NULL, "", 405, "GET is not allowed" },
    { "GET", "/reset_prefix_cache", NULL, "", 405, "GET is not allowed" },
    { "GET", "/forge/v1/batch", NULL, "", 405, "GET is not allowed" },
    { "POST", "/forge/v1/batch", "text/plain", "[]", 415, "application/json" },
    { "POST", "/forge/v1/batch", NULL, "", 400, "not valid JSON" },
    { "POST", "/forge/v1/batch", NULL, "[]", 400, "1 to 10000 lines" },
    { "POST", "/tokenize", "application/json", "{\"prompt\":\"a\"}", 200,
      "{\"count\":1,\"max_model_len\":1000,\"tokens\":[97],\"token_strs\":null}" },
    { "POST", "/tokenize", NULL, "{}", 400, "\"param\":\"prompt\"" },
    { "POST", "/tokenize", "text/plain", "{}", 415, "application/json" },
    { "GET", "/tokenize", NULL, "", 405, "GET is not allowed" },
    { "POST", "/detokenize", NULL, "{\"tokens\":[97]}", 200,
      "{\"prompt\":\"a\",\"content\":\"a\"}" },
    { "POST", "/detokenize", NULL, "{\"tokens\":[99999]}", 400, "\"param\":\"tokens\"" },
    { "POST", "/detokenize", NULL, "{\"tokens\":[],\"model\":\"x\"}", 404, "model_not_found" },
    { "GET", "/v1/models", NULL, "", 200,
      "{\"object\":\"list\",\"data\":[{\"id\":\"org/tiny\",\"object\":\"model\",\"created\":"
      "1700000000,\"owned_by\":\"forge\",\"max_model_len\":1000}]}" },
    { "GET", "/v1/models/org/tiny", NULL, "", 200, "{\"id\":\"org/tiny\"," },
    { "GET", "/v1/models/other", NULL, "", 404, "\"code\":\"model_not_found\"" },
    { "GET", "/v1/models/", NULL, "", 404, "\"type\":\"not_found_error\"" },
    { "GET", "/", NULL, "", 404, "no such route: GET /" },
    { "GET", "/healthz", NULL, "", 404, "no such route" },
    { "GET", "/HEALTH", NULL, "", 404, "no such route" },
    { "POST", "/health", NULL, "", 405, "POST is not allowed" },
    { "GET", "/v1/completions", NULL, "", 405, "GET is not allowed" },
    { "DELETE", "/v1/models/org/tiny", NULL, "", 405, "DELETE" },
    { "POST", "/v1/completions", "text/plain", "{}", 415, "application/json" },
    { "POST", "/v1/completions", "application/jsonx", "{}", 415, "application/json" },
    { "POST", "/v1/completions", NULL, "{}", 400, "\"param\":\"prompt\"" },
    { "POST", "/v1/completions", "Application/JSON; charset=utf-8", "{}", 400,
      "\"param\":\"prompt\"" },
    { "POST", "/v1/chat/completions", "application/json", "{", 400, "not valid JSON" },
};

Test(front, every_route_answers_or_refuses)
{
    world w;
    open_world(&w);
    fake_dispatch_state.workers = 3;
    for (size_t i = 0; i < sizeof route_cases / sizeof route_cases[0]; i++) {
        const struct route_case *it = &route_cases[i];
        send(&w, it->method, it->path, it->type, it->body);
        cr_assert_eq(w.exchange.status, it->status, "%s %s: %d", it->method, it->path,
                     w.exchange.status);
        cr_assert(w.exchange.ended);
        cr_assert(says(&w, it->says), "%s %s: %s", it->method, it->path, w.exchange.body.data);
    }
    cr_assert_eq(fake_dispatch_state.clear_count, 3, "a refused clear clears nothing");
    send(&w, "PUT", "/health", NULL, "");
    cr_assert(has_header(&w, "allow: GET, HEAD\n"));
    send(&w, "PUT", "/v1/completions", NULL, "");
    cr_assert(has_header(&w, "allow: POST\n"));
    send(&w, "GET", "/metrics", NULL, "");
    cr_assert_str_eq(w.exchange.reply_type, "text/plain; version=0.0.4; charset=utf-8");
    close_world(&w);
}

/* All answers that /metrics counts under this status; -1: of any. */
static double answers(const world *w, int status)
{
    static const char name[] = "forge:http_requests_total{";
    fg_buf text;
    double sum = 0;
    char code[16];
    snprintf(code, sizeof code, "code=\"%d\"", status);
    fg_buf_init(&text, 0);
    cr_assert(fg_metrics_render(w->metrics, &text));
    fg_buf_putc(&text, '\0');
    for (const char *at = text.data; (at = strstr(at, name)) != NULL;) {
        const char *end = strchr(at, '}');
        const char *found = strstr(at, code);
        sum += status < 0 || (found != NULL && found < end) ? strtod(end + 1, NULL) : 0;
        at = end;
    }
    fg_buf_deinit(&text);
    return sum;
}

Test(front, each_answer_is_counted_once)
{
    static const struct route_case more[] = {
        { "GET", "/debug/flight", NULL, "", 404, "" },
        { "POST", "/flush_cache", "cross-site", "", 403, "" },
        { "POST", "/v1/completions", "cross-site", "{}", 403, "" },
        { "POST", "/forge/v1/batch", "cross-site", "[]", 403, "" },
        { "POST", "/forge/v1/admin/role", "cross-site", "{}", 403, "" },
    };
    static const int refused[] = { 400, 401, 408, 413, 414, 415, 417, 431, 501, 503, 505 };
    size_t count = sizeof route_cases / sizeof route_cases[0];
    world w;
    open_world(&w);
    fake_dispatch_state.workers = 3;
    for (size_t i = 0; i < count + sizeof more / sizeof more[0]; i++) {
        const struct route_case *it = i < count ? &route_cases[i] : &more[i - count];
        double all = answers(&w, -1), same = answers(&w, it->status);
        if (it->status == 403) {
            fg_http_request request = { .method = it->method, .path = it->path, .body = "" };
            fake_exchange_deinit(&w.exchange);
            fake_exchange_init(&w.exchange);
            w.exchange.fetch_site = it->type;
            fake_http_handler.on_request(fake_http_handler.ctx, &w.exchange, &request);
        } else {
            send(&w, it->method, it->path, it->type, it->body);
        }
        cr_assert_eq(w.exchange.status, it->status);
        cr_assert(answers(&w, -1) == all + 1 && answers(&w, it->status) == same + 1, "%s %s: %d",
                  it->method, it->path, it->status);
    }
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        double all = answers(&w, -1), same = answers(&w, refused[i]);
        fake_http_handler.on_refused(fake_http_handler.ctx, refused[i]);
        cr_assert(answers(&w, -1) == all + 1 && answers(&w, refused[i]) == same + 1, "refused: %d",
                  refused[i]);
    }
    close_world(&w);
}

Test(front, another_sites_page_cannot_post)
{
    static const struct {
        const char *site, *method, *path;
        int status;
    } cases[] = {
        { "cross-site", "POST", "/flush_cache", 403 },
        { "cross-site", "POST", "/forge/v1/admin/role", 403 },
        { "cross-site", "POST", "/v1/completions", 403 },
        { "cross-site", "GET", "/health", 200 },
        { "same-site", "POST", "/flush_cache", 200 },
        { "same-origin", "POST", "/flush_cache", 200 },
        { "none", "POST", "/flush_cache", 200 },
    };
    world w;
    open_world(&w);
    fake_dispatch_state.workers = 1;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fg_http_request request = {
            .method = cases[i].method, .path = cases[i].path, .query = "", .body = ""
        };
        fake_exchange_deinit(&w.exchange);
        fake_exchange_init(&w.exchange);
        w.exchange.fetch_site = cases[i].site;
        fake_http_handler.on_request(fake_http_handler.ctx, &w.exchange, &request);
        cr_assert_eq(w.exchange.status, cases[i].status, "%s %s: %d", cases[i].site, cases[i].path,
                     w.exchange.status);
    }
    cr_assert_eq(fake_dispatch_state.clear_count, 3);
    close_world(&w);
}

/* Every route that there is, and one that is not; what each key opens. */
static const struct scope_case {
    const char *method, *path;
    const char *letters; /* of scopes that open it: i, m, a; "": nobody is asked */
} scope_cases[] = {
    { "POST", "/v1/chat/completions", "i" },
    { "POST", "/v1/completions", "i" },
    { "POST", "/forge/v1/batch", "i" },
    { "GET", "/forge/v1/cache/stats", "m" },
    { "POST", "/forge/v1/cache/clear", "a" },
    { "POST", "/forge/v1/admin/role", "a" },
    { "POST", "/reset_prefix_cache", "a" },
    { "POST", "/flush_cache", "a" },
    { "POST", "/tokenize", "i" },
    { "POST", "/detokenize", "i" },
    { "GET", "/v1/models", "i" },
    { "GET", "/v1/models/org/tiny", "i" },
    { "GET", "/health", "" },
    { "GET", "/live", "" },
    { "GET", "/metrics", "m" },
    { "GET", "/debug/state", "m" },
    { "GET", "/debug/trace", "a" },
    { "GET", "/debug/flight", "a" },
    { "GET", "/nowhere", "ima" },
    { "DELETE", "/v1/models", "i" },
};

/* Digests of the keys "infer", "metrics" and "admin", and of "gone", whose last day was before this test's. */
static const char key_lines[] =
    "key b323a37bda8027ee6676833ae807a31bd5c17781693b307906ad667a99131e48 team-i infer\n"
    "key 1d3208fb4b2b7f64d770038e830cbf943b1086e4b7ee9a4c1bd2f5ef2fe29181 team-m metrics\n"
    "key 1aa66b393b8ab47d2489de43016f5f39ca8c2412737c6cdc5f7bc33de2f6dbed team-a admin\n"
    "key 664a578d76b8aac7f50d566523d70ef02bc8dd995b9217777aaa0d8ed6748535 team-g all until "
    "2001-01-01\n";

static void send_with_key(world *w, const struct scope_case *it, const char *authorization)
{
    fg_http_request request = {
        .method = it->method, .path = it->path, .query = "", .body = "{}", .body_bytes = 2
    };
    fake_exchange_deinit(&w->exchange);
    fake_exchange_init(&w->exchange);
    w->exchange.authorization = authorization;
    bool wanted = fake_http_handler.wants_body(fake_http_handler.ctx, &request, authorization);
    fake_http_handler.on_request(fake_http_handler.ctx, &w->exchange, &request);
    bool let_in = w->exchange.status != 401 && w->exchange.status != 403;
    cr_assert_eq(wanted, let_in, "%s: a body that is not read is not waited for", it->path);
}

static fg_api_keys *open_keys(char *path)
{
    fg_api_keys *keys = NULL;
    fg_error err = { 0 };
    int fd = mkstemp(path);
    cr_assert(fd >= 0 && write(fd, key_lines, sizeof key_lines - 1) == sizeof key_lines - 1);
    close(fd);
    fg_api_keys_options options = { .file = path, .key = "plain" };
    cr_assert_eq(fg_api_keys_open(&options, &keys, &err), FG_OK, "%s", err.text);
    cr_assert_eq(fg_api_keys_count(keys), 5);
    unlink(path);
    return keys;
}

Test(front, each_route_wants_a_key_that_opens_it)
{
    static const struct {
        const char *authorization;
        char letter; /* *: opens all, 0: none */
    } keys[] = {
        { NULL, 0 },
        { "", 0 },
        { "Bearer ", 0 },
        { "Bearer", 0 },
        { "infer", 0 },
        { "Basic infer", 0 },
        { "Bearer wrong", 0 },
        { "Bearer gone", 0 },
        { "Bearer infe", 0 },
        { "Bearer infer x", 0 },
        { "Bearer infer", 'i' },
        { "bearer   infer", 'i' },
        { "Bearer metrics", 'm' },
        { "BEARER admin", 'a' },
        { "Bearer plain", '*' },
    };
    char path[] = "/tmp/forge-front-keys-XXXXXX";
    fg_error err = { 0 };
    world w;
    open_world(&w);
    fg_front_destroy(w.front);
    fg_api_keys *held = open_keys(path);
    fg_front_options options = options_of(&w, "127.0.0.1");
    options.api_keys = held;
    options.metrics = NULL;
    cr_assert_eq(fg_front_create(&options, &w.front, &err), FG_OK, "%s", err.text);
    fake_dispatch_state.workers = 1;
    for (size_t i = 0; i < sizeof scope_cases / sizeof scope_cases[0]; i++) {
        const struct scope_case *it = &scope_cases[i];
        for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++) {
            bool open = it->letters[0] == '\0' || keys[k].letter == '*' ||
                        (keys[k].letter != 0 && strchr(it->letters, keys[k].letter) != NULL);
            send_with_key(&w, it, keys[k].authorization);
            int want = keys[k].letter == 0 ? 401 : 403;
            if (open) {
                cr_assert(w.exchange.status != 401 && w.exchange.status != 403, "%s with %s: %d",
                          it->path, keys[k].authorization, w.exchange.status);
            } else {
                cr_assert_eq(w.exchange.status, want, "%s with %s: %d", it->path,
                             keys[k].authorization, w.exchange.status);
                cr_assert_eq(has_header(&w, "www-authenticate: Bearer"), want == 401);
                cr_assert(says(&w, want == 401 ? "\"code\":\"invalid_api_key\""
                                               : "\"code\":\"insufficient_scope\""));
            }
        }
    }
    close_world(&w);
    fg_api_keys_close(held);
}

Test(front, health_follows_the_workers_and_live_does_not)
{
    world w;
    open_world(&w);
    fake_dispatch_state.ready = false;
    send(&w, "GET", "/health", NULL, "");
    cr_assert_eq(w.exchange.status, 503);
    cr_assert(has_header(&w, "retry-after: 7\n"));
    cr_assert(says(&w, "\"code\":\"no_worker\""));
    send(&w, "GET", "/live", NULL, "");
    cr_assert_eq(w.exchange.status, 200);
    fake_dispatch_state.ready = true;
    send(&w, "GET", "/health", NULL, "");
    cr_assert_eq(w.exchange.status, 200);
    close_world(&w);
}

Test(front, a_request_runs_from_the_door_to_its_answer)
{
    world w;
    open_world(&w);
    send(&w, "POST", "/v1/completions", "application/json", "{\"prompt\":\"hi\"}");
    cr_assert_eq(w.exchange.status, 0);
    cr_assert_eq(fake_dispatch_state.jobs[0].job.params.max_tokens, 512);
    fake_token(0, 'o', 0);
    fake_token(0, 'k', 0);
    fake_end(0, FG_FINISH_LENGTH, FG_OK, NULL);
    cr_assert_eq(w.exchange.status, 0, "nothing is written from inside dispatch's callback");
    for (int turn = 0; turn < 100 && w.exchange.status == 0; turn++) {
        fg_loop_run_once(w.loop, true);
    }
    cr_assert_eq(w.exchange.status, 200);
    cr_assert(says(&w, "\"text\":\"ok\""));
    const char *id = strstr(w.exchange.headers.data, "x-request-id: cmpl-");
    cr_assert_not_null(id);
    cr_assert(strncmp(w.exchange.body.data + strlen("{\"id\":\""), id + strlen("x-request-id: "),
                      37) == 0,
              "%s", w.exchange.body.data);
    close_world(&w);
}

Test(front, every_request_gets_its_own_id_and_seed)
{
    world w;
    open_world(&w);
    send(&w, "POST", "/v1/completions", NULL, "{\"prompt\":\"hi\"}");
    fake_http_handler.on_gone(fake_http_handler.ctx, &w.exchange);
    send(&w, "POST", "/v1/completions", NULL, "{\"prompt\":\"hi\"}");
    fake_http_handler.on_gone(fake_http_handler.ctx, &w.exchange);
    cr_assert_eq(fake_dispatch_state.job_count, 2);
    cr_assert_neq(fake_dispatch_state.jobs[0].job.params.seed,
                  fake_dispatch_state.jobs[1].job.params.seed);
    cr_assert_eq(fake_dispatch_state.jobs[0].cancelled, FG_FINISH_CANCELLED);
    close_world(&w);
}

Test(front, a_full_cluster_is_429_and_an_empty_one_503)
{
    world w;
    open_world(&w);
    fake_dispatch_state.start_status = FG_AGAIN;
    fake_dispatch_state.start_text = "the queue is full";
    send(&w, "POST", "/v1/completions", NULL, "{\"prompt\":\"hi\"}");
    cr_assert_eq(w.exchange.status, 429);
    cr_assert(has_header(&w, "retry-after: 7\n") && has_header(&w, "x-request-id: "));
    fake_dispatch_state.start_status = FG_PEER_LOST;
    fake_dispatch_state.context_max = 0;
    send(&w, "POST", "/v1/completions", NULL, "{\"prompt\":\"hi\"}");
    cr_assert_eq(w.exchange.status, 503);
    close_world(&w);
}

Test(front, draining_refuses_new_requests_and_finishes_old_ones)
{
    world w;
    open_world(&w);
    send(&w, "POST", "/v1/completions", NULL, "{\"prompt\":\"hi\"}");
    fg_http_request request = { "GET", "/health", "", "", 0 };
    fg_front_drain(w.front);
    cr_assert(!fake_http_draining, "probes still get their answers");
    cr_assert_eq(fg_front_busy_count(w.front), 1);
    fg_http_exchange fresh;
    fake_exchange_init(&fresh);
    fake_http_handler.on_request(fake_http_handler.ctx, &fresh, &request);
    cr_assert_eq(fresh.status, 503);
    fake_exchange_deinit(&fresh);
    fake_exchange_init(&fresh);
    request = (fg_http_request){ "POST", "/v1/completions", "", "{\"prompt\":\"x\"}", 14 };
    fake_http_handler.on_request(fake_http_handler.ctx, &fresh, &request);
    cr_assert_eq(fresh.status, 503);
    fake_exchange_deinit(&fresh);
    fake_end(0, FG_FINISH_STOP, FG_OK, NULL);
    for (int turn = 0; turn < 100 && w.exchange.status == 0; turn++) {
        fg_loop_run_once(w.loop, true);
    }
    cr_assert_eq(w.exchange.status, 200);
    close_world(&w);
}

Test(front, a_slow_reader_is_tried_again_until_it_reads)
{
    world w;
    open_world(&w);
    send(&w, "POST", "/v1/completions", NULL, "{\"prompt\":\"hi\",\"stream\":true}");
    w.exchange.write_status = FG_AGAIN;
    fake_token(0, 'a', 0);
    fake_end(0, FG_FINISH_STOP, FG_OK, NULL);
    for (int turn = 0; turn < 3; turn++) {
        fg_loop_run_once(w.loop, true);
    }
    cr_assert(w.exchange.streaming && !w.exchange.ended);
    w.exchange.write_status = FG_OK;
    for (int turn = 0; turn < 1000 && !w.exchange.ended; turn++) {
        fg_loop_run_once(w.loop, true);
    }
    cr_assert(w.exchange.ended && says(&w, "data: [DONE]"));
    close_world(&w);
}

#define LINE(id, more)                                                                             \
    "{\"custom_id\":\"" id "\",\"method\":\"POST\",\"url\":\"/v1/completions\","                   \
    "\"body\":{\"prompt\":\"hi\"" more "}}"

static void turn_until_answered(world *w)
{
    for (int turn = 0; turn < 1000 && w->exchange.status == 0; turn++) {
        fg_loop_run_once(w->loop, true);
    }
}

Test(front, a_batch_runs_from_the_door_to_its_answer)
{
    world w;
    open_world(&w);
    send(&w, "POST", "/forge/v1/batch", "application/json",
         "{\"requests\":[" LINE("a", "") "," LINE("b", ",\"n\":0") "," LINE("c", "") "]}");
    for (int turn = 0; turn < 100 && fake_running_count() < 2; turn++) {
        fg_loop_run_once(w.loop, true);
    }
    cr_assert_eq(fake_running_count(), 2);
    cr_assert_neq(fake_dispatch_state.jobs[0].job.params.seed,
                  fake_dispatch_state.jobs[1].job.params.seed);
    fake_token(1, 'c', 0);
    fake_end(1, FG_FINISH_LENGTH, FG_OK, NULL);
    fake_token(0, 'a', 0);
    fake_end(0, FG_FINISH_LENGTH, FG_OK, NULL);
    turn_until_answered(&w);
    cr_assert_eq(w.exchange.status, 200);
    cr_assert(has_header(&w, "x-request-id: "));
    const char *a =
        strstr(w.exchange.body.data, "\"custom_id\":\"a\",\"response\":{\"status_code\":200,"
                                     "\"request_id\":\"cmpl-");
    const char *b =
        strstr(w.exchange.body.data, "\"custom_id\":\"b\",\"response\":{\"status_code\":400,");
    const char *c =
        strstr(w.exchange.body.data, "\"custom_id\":\"c\",\"response\":{\"status_code\":200,");
    cr_assert(a != NULL && b > a && c > b, "%s", w.exchange.body.data);
    close_world(&w);
}

Test(front, a_batch_waits_for_room_by_itself)
{
    world w;
    open_world(&w);
    send(&w, "POST", "/v1/completions", NULL, "{\"prompt\":\"x\"}");
    fg_http_exchange first = w.exchange;
    fake_exchange_init(&w.exchange);
    fg_http_exchange batch;
    fake_exchange_init(&batch);
    const char *body = "[" LINE("a", "") "]";
    fg_http_request request = { "POST", "/forge/v1/batch", "", body, strlen(body) };
    fake_dispatch_state.start_status = FG_AGAIN;
    fake_dispatch_state.start_text = "the queue is full";
    fake_http_handler.on_request(fake_http_handler.ctx, &batch, &request);
    for (int turn = 0; turn < 3; turn++) {
        fg_loop_run_once(w.loop, true);
    }
    cr_assert_eq(batch.status, 0);
    fake_dispatch_state.start_status = FG_OK;
    for (int turn = 0; turn < 1000 && fake_dispatch_state.job_count < 2; turn++) {
        fg_loop_run_once(w.loop, true);
    }
    cr_assert_eq(fake_dispatch_state.job_count, 2, "the timer tried again");
    fake_http_handler.on_gone(fake_http_handler.ctx, &batch);
    cr_assert_eq(fake_dispatch_state.jobs[1].cancelled, FG_FINISH_CANCELLED);
    cr_assert(fake_dispatch_state.jobs[0].running);
    fake_exchange_deinit(&batch);
    fake_exchange_deinit(&first);
    close_world(&w);
}

Test(front, a_trace_is_shown_where_there_is_one)
{
    world w;
    fg_error err = { 0 };
    fg_front *front = NULL;
    open_world(&w);
    fg_metrics *own = fg_metrics_create(FG_METER_SERIES_MAX);
    fg_trace *trace = fg_trace_create("router", 4, 4);
    fg_front_options options = options_of(&w, "127.0.0.1");
    options.metrics = own;
    options.trace = trace;
    cr_assert_eq(fg_front_create(&options, &front, &err), FG_OK, "%s", err.text);
    send(&w, "GET", "/debug/trace", NULL, "");
    cr_assert_eq(w.exchange.status, 200);
    cr_assert(says(&w, "{\"traceEvents\":["), "%s", w.exchange.body.data);
    fg_front_destroy(front);
    fg_trace_destroy(trace);
    fg_metrics_destroy(own);
    close_world(&w);
}

Test(front, draining_refuses_a_batch)
{
    world w;
    open_world(&w);
    fg_front_drain(w.front);
    send(&w, "POST", "/forge/v1/batch", NULL, "[" LINE("a", "") "]");
    cr_assert_eq(w.exchange.status, 503);
    close_world(&w);
}

Test(front, a_bad_address_is_refused)
{
    world w;
    fg_error err = { 0 };
    fg_front *front = NULL;
    open_world(&w);
    fg_metrics *own = fg_metrics_create(FG_METER_SERIES_MAX);
    fg_front_options options = options_of(&w, "nowhere");
    options.metrics = own;
    cr_assert_eq(fg_front_create(&options, &front, &err), FG_BAD_INPUT);
    cr_assert_null(front);
    cr_assert_str_eq(err.text, "cannot bind nowhere");
    fg_metrics_destroy(own);
    close_world(&w);
}

static bool create_under_faults(void *ctx)
{
    world *w = ctx;
    fg_error err = { 0 };
    fg_front *front = NULL;
    bool ok = false;
    fg_front_options options = options_of(w, "127.0.0.1");
    options.metrics = fg_metrics_create(FG_METER_SERIES_MAX);
    if (options.metrics != NULL) {
        ok = fg_front_create(&options, &front, &err) == FG_OK;
        if (ok) {
            fg_front_destroy(front);
        }
    }
    while (fg_loop_run_once(w->loop, false)) {
    }
    fg_metrics_destroy(options.metrics);
    return ok;
}

Test(front, every_failed_allocation_is_refused)
{
    world w;
    open_world(&w);
    fg_front_destroy(w.front);
    w.front = NULL;
    cr_assert(fg_fault_each(create_under_faults, &w) > 0);
    close_world(&w);
}
