#include "cli/top_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/promtext.h"
#include "common/base/json.h"

/* ---- metrics ---- */

/* A page may say anything; what is no number of things counts as nothing. */
static double sane(double value)
{
    return isfinite(value) && value > 0 ? value : 0;
}

static void add_bucket(const fg_prom_sample *sample, fg_top_histogram *histogram)
{
    char bound[32];
    if (histogram->count == FG_TOP_BUCKETS_MAX ||
        !fg_prom_label(sample, "le", bound, sizeof bound)) {
        return;
    }
    char *end;
    double value = strcmp(bound, "+Inf") == 0 ? INFINITY : strtod(bound, &end);
    uint32_t last = histogram->count;
    if (isnan(value) || (last > 0 && !(value > histogram->bounds[last - 1]))) {
        return; /* bounds rise; another order is none of ours */
    }
    histogram->bounds[last] = value;
    histogram->counts[last] = sane(sample->value);
    histogram->count++;
}

static bool label_is(const fg_prom_sample *sample, const char *label, const char *value)
{
    char have[32];
    return fg_prom_label(sample, label, have, sizeof have) && strcmp(have, value) == 0;
}

void fg_top_read_metrics(const char *text, size_t length, fg_top_sample *sample)
{
    const struct {
        const char *name;
        double *value;
    } plain[] = {
        { "forge:num_requests_running", &sample->running },
        { "forge:num_requests_waiting", &sample->queued },
        { "forge:prompt_tokens_total", &sample->prompt_tokens },
        { "forge:generation_tokens_total", &sample->generated_tokens },
        { "forge:kv_blocks", &sample->kv_blocks },
        { "forge:kv_cache_usage_perc", &sample->kv_usage },
    };
    fg_prom_reader reader = fg_prom_open(text, length);
    fg_prom_sample one;
    while (fg_prom_next(&reader, &one)) {
        for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++) {
            if (fg_prom_is(&one, plain[i].name)) {
                *plain[i].value = sane(one.value);
            }
        }
        if (fg_prom_is(&one, "forge:request_end_total")) {
            sample->ended += sane(one.value);
            sample->failed += label_is(&one, "reason", "error") ? sane(one.value) : 0;
        } else if (fg_prom_is(&one, "forge:http_requests_total")) {
            sample->refused_429 += label_is(&one, "code", "429") ? sane(one.value) : 0;
        } else if (fg_prom_is(&one, "forge:time_to_first_token_seconds_bucket")) {
            add_bucket(&one, &sample->first_token);
        } else if (fg_prom_is(&one, "forge:inter_token_latency_seconds_bucket")) {
            add_bucket(&one, &sample->inter_token);
        }
    }
    sample->refused_lines = reader.refused;
}

/* ---- state ---- */

static double number_of(const fg_json_node *object, const char *key, double absent)
{
    double value;
    return fg_json_number(fg_json_get(object, key), &value) && isfinite(value) ? value : absent;
}

static uint32_t count_of(const fg_json_node *object, const char *key)
{
    double value = number_of(object, key, 0);
    return value < 0 ? 0 : value > UINT32_MAX ? UINT32_MAX : (uint32_t)value;
}

static void text_of(const fg_json_node *object, const char *key, char *out, size_t capacity)
{
    const char *text = fg_json_string(fg_json_get(object, key), NULL);
    snprintf(out, capacity, "%s", text == NULL ? "" : text);
}

static void read_worker(const fg_json_node *node, fg_top_worker *w)
{
    const fg_json_node *blocks = fg_json_get(node, "blocks");
    text_of(node, "name", w->name, sizeof w->name);
    text_of(node, "role", w->role, sizeof w->role);
    w->draining = false;
    fg_json_bool(fg_json_get(node, "draining"), &w->draining);
    w->epoch = number_of(node, "epoch", 0);
    w->running = count_of(node, "running");
    w->waiting = count_of(node, "waiting");
    w->total = sane(number_of(blocks, "total", 0));
    w->free = sane(number_of(blocks, "free", 0));
    w->cached = sane(number_of(blocks, "cached", 0));
    w->held = sane(number_of(blocks, "held", 0));
    w->pinned = sane(number_of(blocks, "pinned", 0));
    w->quarantined = sane(number_of(blocks, "quarantined", 0));
    w->steps = number_of(node, "steps", 0);
    w->busy_ms = number_of(node, "busy_ms", 0);
    w->silent_ms = number_of(node, "silent_ms", NAN);
    w->query_tokens = number_of(node, "query_tokens", NAN);
    w->hit_tokens = number_of(node, "hit_tokens", NAN);
}

static void read_stream(const fg_json_node *node, fg_top_stream *s)
{
    text_of(node, "id", s->id, sizeof s->id);
    text_of(node, "state", s->state, sizeof s->state);
    text_of(node, "prefill", s->prefill, sizeof s->prefill);
    text_of(node, "decode", s->decode, sizeof s->decode);
    text_of(node, "owner", s->owner, sizeof s->owner);
    s->age_ms = number_of(node, "age_ms", NAN);
    s->in_state_ms = number_of(node, "in_state_ms", NAN);
    s->prompt_tokens = count_of(node, "prompt_tokens");
    s->tokens = count_of(node, "tokens");
}

static uint32_t at_most(size_t count, uint32_t max)
{
    return count < max ? (uint32_t)count : max;
}

fg_status fg_top_read_state(const char *text, size_t length, fg_top_sample *sample, fg_error *err)
{
    fg_json *json;
    fg_status status = fg_json_parse(text, length, &json, err);
    if (status != FG_OK) {
        return status;
    }
    const fg_json_node *root = fg_json_root(json);
    if (!fg_json_is(root, FG_JSON_OBJECT)) {
        fg_json_destroy(json);
        return fg_fail(err, FG_BAD_INPUT, "the state is no JSON object");
    }
    const fg_json_node *router = fg_json_get(root, "router"), *queue = fg_json_get(root, "queue");
    const fg_json_node *workers = fg_json_get(root, "workers");
    const fg_json_node *requests = fg_json_get(root, "requests");
    sample->uptime_ms = number_of(router, "uptime_ms", NAN);
    sample->ready = fg_json_is(workers, FG_JSON_ARRAY) && fg_json_size(workers) > 0;
    fg_json_bool(fg_json_get(router, "ready"), &sample->ready);
    sample->queued_tokens = number_of(queue, "tokens", NAN);
    sample->oldest_queued_ms = number_of(queue, "oldest_ms", NAN);
    bool listed = fg_json_is(workers, FG_JSON_ARRAY);
    sample->worker_total = listed ? at_most(fg_json_size(workers), UINT32_MAX) : 0;
    sample->worker_count = at_most(sample->worker_total, FG_TOP_WORKERS_MAX);
    for (uint32_t i = 0; i < sample->worker_count; i++) {
        read_worker(fg_json_at(workers, i), &sample->workers[i]);
    }
    listed = fg_json_is(requests, FG_JSON_ARRAY);
    sample->stream_total = listed ? at_most(fg_json_size(requests), UINT32_MAX) : 0;
    sample->stream_count = at_most(sample->stream_total, FG_TOP_STREAMS_MAX);
    for (uint32_t i = 0; i < sample->stream_count; i++) {
        read_stream(fg_json_at(requests, i), &sample->streams[i]);
    }
    fg_json_destroy(json);
    return FG_OK;
}

/* ---- change ---- */

/* A counter per second; one that fell belongs to a process that began anew. */
static double rate(double before, double now, double seconds)
{
    return now >= before && seconds > 0 ? (now - before) / seconds : NAN;
}

double fg_top_quantile(const fg_top_histogram *before, const fg_top_histogram *now, double share)
{
    bool alike = before != NULL && before->count == now->count &&
                 memcmp(before->bounds, now->bounds, now->count * sizeof now->bounds[0]) == 0;
    double counts[FG_TOP_BUCKETS_MAX];
    for (uint32_t i = 0; i < now->count; i++) {
        counts[i] = now->counts[i] - (alike ? before->counts[i] : 0);
        if (counts[i] < 0 || (i > 0 && counts[i] < counts[i - 1])) {
            return NAN;
        }
    }
    double all = now->count == 0 ? 0 : counts[now->count - 1];
    if (!(all > 0)) {
        return NAN;
    }
    double rank = share * all, below = 0, from = 0;
    for (uint32_t i = 0; i < now->count; i++) {
        if (counts[i] >= rank && counts[i] > below) {
            /* Of the last bucket nothing is known but where it begins. */
            double to = now->bounds[i];
            return isinf(to) ? from : from + (to - from) * (rank - below) / (counts[i] - below);
        }
        below = counts[i];
        from = now->bounds[i];
    }
    return NAN;
}

static void compare_worker(const fg_top_sample *before, double seconds, fg_top_worker *w)
{
    const fg_top_worker *old = NULL;
    for (uint32_t i = 0; before != NULL && i < before->worker_count; i++) {
        const fg_top_worker *other = &before->workers[i];
        bool same = strcmp(other->name, w->name) == 0 && other->epoch == w->epoch;
        old = same ? other : old;
    }
    w->steps_per_s = w->busy_share = NAN;
    w->hit_share = w->query_tokens > 0 ? w->hit_tokens / w->query_tokens : NAN;
    if (old != NULL) {
        w->steps_per_s = rate(old->steps, w->steps, seconds);
        w->busy_share = rate(old->busy_ms, w->busy_ms, seconds * 1000);
        w->busy_share = w->busy_share > 1 ? 1 : w->busy_share;
    }
}

void fg_top_compare(const fg_top_sample *before, fg_top_sample *now)
{
    static fg_top_sample nothing; /* zeros, never written; const, it would lie in the file */
    double seconds = before == NULL ? 0 : (double)(now->at_ns - before->at_ns) / 1e9;
    bool anew = before != NULL &&
                (now->uptime_ms < before->uptime_ms || now->prompt_tokens < before->prompt_tokens ||
                 now->ended < before->ended);
    const fg_top_sample *since = before == NULL || anew ? &nothing : before;
    seconds = anew ? 0 : seconds;
    now->requests_per_s = rate(since->ended, now->ended, seconds);
    now->prompt_per_s = rate(since->prompt_tokens, now->prompt_tokens, seconds);
    now->generated_per_s = rate(since->generated_tokens, now->generated_tokens, seconds);
    now->failed_since = now->failed - since->failed;
    now->refused_since = now->refused_429 - since->refused_429;
    now->first_p50_s = fg_top_quantile(&since->first_token, &now->first_token, 0.5);
    now->first_p95_s = fg_top_quantile(&since->first_token, &now->first_token, 0.95);
    now->inter_p50_s = fg_top_quantile(&since->inter_token, &now->inter_token, 0.5);
    now->inter_p95_s = fg_top_quantile(&since->inter_token, &now->inter_token, 0.95);
    for (uint32_t i = 0; i < now->worker_count; i++) {
        compare_worker(anew ? NULL : before, seconds, &now->workers[i]);
    }
}

/* ---- JSON ---- */

/* What is unknown is null. */
static void put_number(fg_buf *out, const char *name, double value)
{
    if (isfinite(value)) {
        fg_buf_printf(out, "\"%s\":%.12g", name, value);
    } else {
        fg_buf_printf(out, "\"%s\":null", name);
    }
}

typedef struct named {
    const char *name;
    double value;
} named;

static void put_numbers(fg_buf *out, const named *numbers, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        fg_buf_puts(out, ",");
        put_number(out, numbers[i].name, numbers[i].value);
    }
}

static void put_text(fg_buf *out, const char *name, const char *text)
{
    fg_buf_printf(out, "\"%s\":\"", name);
    fg_buf_json_escape(out, text, strlen(text));
    fg_buf_putc(out, '"');
}

static void put_worker(fg_buf *out, const fg_top_worker *w)
{
    const named numbers[] = {
        { "running", w->running },       { "waiting", w->waiting },
        { "blocks_total", w->total },    { "blocks_free", w->free },
        { "blocks_cached", w->cached },  { "blocks_held", w->held },
        { "blocks_pinned", w->pinned },  { "blocks_quarantined", w->quarantined },
        { "hit_share", w->hit_share },   { "steps_per_s", w->steps_per_s },
        { "busy_share", w->busy_share }, { "silent_ms", w->silent_ms },
    };
    fg_buf_putc(out, '{');
    put_text(out, "name", w->name);
    fg_buf_putc(out, ',');
    put_text(out, "role", w->role);
    fg_buf_printf(out, ",\"draining\":%s", w->draining ? "true" : "false");
    put_numbers(out, numbers, sizeof numbers / sizeof numbers[0]);
    fg_buf_putc(out, '}');
}

static void put_stream(fg_buf *out, const fg_top_stream *s)
{
    const struct {
        const char *name, *text;
    } texts[] = { { "id", s->id },
                  { "state", s->state },
                  { "prefill", s->prefill },
                  { "decode", s->decode },
                  { "owner", s->owner } };
    const named numbers[] = { { "age_ms", s->age_ms },
                              { "in_state_ms", s->in_state_ms },
                              { "prompt_tokens", s->prompt_tokens },
                              { "tokens", s->tokens } };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        fg_buf_putc(out, i == 0 ? '{' : ',');
        put_text(out, texts[i].name, texts[i].text);
    }
    put_numbers(out, numbers, sizeof numbers / sizeof numbers[0]);
    fg_buf_putc(out, '}');
}

bool fg_top_render_json(const fg_top_sample *s, const char *url, fg_buf *out)
{
    const named numbers[] = {
        { "uptime_ms", s->uptime_ms },
        { "running", s->running },
        { "queued", s->queued },
        { "queued_tokens", s->queued_tokens },
        { "oldest_queued_ms", s->oldest_queued_ms },
        { "requests_per_s", s->requests_per_s },
        { "prompt_tokens_per_s", s->prompt_per_s },
        { "generated_tokens_per_s", s->generated_per_s },
        { "ttft_p50_s", s->first_p50_s },
        { "ttft_p95_s", s->first_p95_s },
        { "itl_p50_s", s->inter_p50_s },
        { "itl_p95_s", s->inter_p95_s },
        { "ended", s->ended },
        { "failed", s->failed },
        { "refused_429", s->refused_429 },
        { "kv_blocks", s->kv_blocks },
        { "kv_usage", s->kv_usage },
        { "streams_total", s->stream_total },
    };
    fg_buf_putc(out, '{');
    put_text(out, "url", url);
    fg_buf_printf(out, ",\"ready\":%s", s->ready ? "true" : "false");
    put_numbers(out, numbers, sizeof numbers / sizeof numbers[0]);
    fg_buf_puts(out, ",\"workers\":[");
    for (uint32_t i = 0; i < s->worker_count; i++) {
        fg_buf_puts(out, i > 0 ? "," : "");
        put_worker(out, &s->workers[i]);
    }
    fg_buf_puts(out, "],\"streams\":[");
    for (uint32_t i = 0; i < s->stream_count; i++) {
        fg_buf_puts(out, i > 0 ? "," : "");
        put_stream(out, &s->streams[i]);
    }
    return fg_buf_puts(out, "]}\n") && !out->failed;
}
