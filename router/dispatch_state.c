#include "router/dispatch_internal.h"

#include <string.h>

/* What a worker reports may be any number; readers of JSON take up to 2^63 - 1. */
static unsigned long long shown(uint64_t value)
{
    return value < INT64_MAX ? value : INT64_MAX;
}

static double ms_between(uint64_t from_ns, uint64_t to_ns)
{
    return to_ns > from_ns ? (double)(to_ns - from_ns) / 1e6 : 0.0;
}

const char *fg_dispatch_role_name(uint32_t roles)
{
    return roles == FG_ROLE_PREFILL ? "prefill" : roles == FG_ROLE_DECODE ? "decode" : "both";
}

/* A worker chooses its name, within printable characters: a quote may be among them. */
static void put_text(fg_buf *out, const char *before, const char *text)
{
    fg_buf_puts(out, before);
    fg_buf_json_escape(out, text, strlen(text));
}

static void render_worker(const fg_dispatch *dispatch, const fg_reg_worker *w, fg_buf *out)
{
    fg_buf_puts(out, "{\"name\":\"");
    fg_buf_json_escape(out, w->name, strlen(w->name));
    fg_buf_printf(
        out,
        "\",\"role\":\"%s\",\"epoch\":%llu,\"pid\":%llu,"
        "\"blocks\":{\"total\":%u,\"free\":%u,\"cached\":%u,\"held\":%u,\"pinned\":%u,"
        "\"quarantined\":%u},\"running\":%u,\"waiting\":%u,\"steps\":%llu,"
        "\"busy_ms\":%.1f,\"known_blocks\":%llu,\"draining\":%s,\"stalled\":%s,\"silent_ms\":%.0f,"
        "\"query_tokens\":%llu,\"hit_tokens\":%llu}",
        fg_dispatch_role_name(w->roles), shown(w->epoch), shown(w->pid), w->load.total,
        w->load.free, w->load.cached, w->load.held, w->load.pinned, w->load.quarantined,
        w->load.running, w->load.waiting, shown(w->load.steps), (double)w->load.busy_ns / 1e6,
        shown(fg_residency_slot_blocks(dispatch->residency, w->peer, FG_TIER_DEVICE)),
        w->draining ? "true" : "false", w->stalled ? "true" : "false",
        ms_between(w->seen_ns, fg_dispatch_now(dispatch)), shown(w->load.cache_query_tokens),
        shown(w->load.cache_hit_tokens));
}

static const char *finish_name(fg_finish finish)
{
    switch (finish) {
    case FG_FINISH_STOP:
        return "stop";
    case FG_FINISH_LENGTH:
        return "length";
    case FG_FINISH_CANCELLED:
        return "cancelled";
    default:
        return "error";
    }
}

static void render_record(const fg_job_record *r, fg_buf *out)
{
    /* Mean time between tokens, from the first; the hand-over gap is first to second. */
    double itl = r->completion_tokens > 1
                     ? ms_between(r->first_ns, r->last_ns) / (r->completion_tokens - 1)
                     : 0.0;
    fg_buf_printf(out, "{\"id\":\"%016llx\"", (unsigned long long)r->id);
    put_text(out, ",\"prefill\":\"", r->prefill);
    put_text(out, "\",\"decode\":\"", r->decode);
    fg_buf_printf(out, "\",\"kv_blocks\":%u,\"kv_bytes\":%llu", r->kv_blocks, shown(r->kv_bytes));
    put_text(out, ",\"transport\":\"", r->transport);
    fg_buf_printf(
        out,
        "\",\"push_retries\":%u,\"push_exposed_ms\":%.3f,\"queue_ms\":%.3f,"
        "\"prefill_queue_ms\":%.3f,\"prefill_ms\":%.3f,\"ttft_ms\":%.3f,"
        "\"handover_gap_ms\":%.3f,\"itl_ms\":%.3f,\"e2e_ms\":%.3f,"
        "\"prompt_tokens\":%u,\"completion_tokens\":%u,\"cached_tokens\":%u,\"pulled_blocks\":%u,"
        "\"chunks\":%u,"
        "\"preemptions\":%u,\"attempts\":%u,\"predicted_ttft_ms\":%.3f,\"expected_hit_blocks\":%u,"
        "\"finish\":\"%s\"}",
        r->push_retries, (double)r->push_exposed_ns / 1e6, ms_between(r->created_ns, r->placed_ns),
        (double)r->prefill_queue_ns / 1e6, (double)r->prefill_compute_ns / 1e6,
        ms_between(r->created_ns, r->first_ns), ms_between(r->first_ns, r->second_ns), itl,
        ms_between(r->created_ns, r->last_ns), r->prompt_tokens, r->completion_tokens,
        r->cached_tokens, r->pulled_blocks, r->chunks, r->preemptions, r->attempts,
        (double)r->predicted_ttft_ns / 1e6, r->predicted_hit_blocks, finish_name(r->finish));
}

static void render_refusals(const fg_dispatch *dispatch, fg_buf *out)
{
    uint64_t ever = dispatch->stats.refused_joins;
    fg_buf_puts(out, "],\"refused_workers\":[");
    for (uint64_t i = 0; i < ever && i < FG_REFUSALS_MAX; i++) {
        const fg_refusal *refusal = &dispatch->refusals[(ever - 1 - i) % FG_REFUSALS_MAX];
        fg_buf_puts(out, i > 0 ? ",{\"name\":\"" : "{\"name\":\"");
        fg_buf_json_escape(out, refusal->name, strlen(refusal->name));
        fg_buf_puts(out, "\",\"why\":\"");
        fg_buf_json_escape(out, refusal->why, strlen(refusal->why));
        fg_buf_printf(out, "\",\"ago_ms\":%.0f}",
                      ms_between(refusal->at_ns, fg_dispatch_now(dispatch)));
    }
}

/* Who has to move next for the request to leave its state. */
static const char *owner_of(const fg_job *job)
{
    bool at_prefill =
        job->life.state == FG_LIFE_PREFILLING || job->life.state == FG_LIFE_TRANSFERRING;
    const fg_reg_worker *worker = at_prefill ? job->prefill : job->decode;
    return worker != NULL ? worker->name : "router";
}

static void render_job(const fg_dispatch *dispatch, const fg_job *job, fg_buf *out)
{
    uint64_t now = fg_dispatch_now(dispatch);
    fg_buf_printf(out, "{\"id\":\"%016llx\",\"state\":\"%s\",\"age_ms\":%.0f,\"attempt\":%u",
                  (unsigned long long)job->id, fg_life_name(job->life.state),
                  ms_between(job->record.created_ns, now), job->attempt);
    put_text(out, ",\"prefill\":\"", job->prefill != NULL ? job->prefill->name : "");
    put_text(out, "\",\"decode\":\"", job->decode != NULL ? job->decode->name : "");
    fg_buf_printf(out,
                  "\",\"tokens\":%u,\"priority\":%d,\"cached_tokens\":%u,\"chunks\":%u,"
                  "\"preemptions\":%u,\"prompt_tokens\":%u",
                  fg_journal_count(job->journal), job->input.params.priority,
                  job->record.cached_tokens, job->record.chunks, job->record.preemptions,
                  job->input.token_count);
    put_text(out, ",\"owner\":\"", owner_of(job));
    fg_buf_printf(out, "\",\"in_state_ms\":%.0f,\"deadline_ms\":%.0f}",
                  ms_between(job->life.entered_at_ns[job->life.state], now),
                  ms_between(now, job->deadline_ns));
}

static void render_router(const fg_dispatch *dispatch, fg_buf *out)
{
    uint64_t now = fg_dispatch_now(dispatch), oldest = 0;
    fg_queue_load load;
    fg_queue_load_get(dispatch->queue, &load);
    for (const fg_job *job = dispatch->jobs; job != NULL && oldest == 0; job = job->next) {
        oldest = fg_dispatch_waits(job) ? job->record.created_ns : 0;
    }
    fg_buf_printf(out,
                  "\"router\":{\"uptime_ms\":%.0f,\"ready\":%s,\"live\":%u,"
                  "\"mean_answer_tokens\":%.1f},"
                  "\"queue\":{\"requests\":%u,\"tokens\":%llu,\"oldest_ms\":%.0f},",
                  ms_between(dispatch->created_ns, now),
                  fg_dispatch_ready(dispatch) ? "true" : "false", dispatch->stats.live,
                  dispatch->mean_answer, load.requests, shown(load.tokens),
                  oldest == 0 ? 0.0 : ms_between(oldest, now));
}

bool fg_dispatch_render_state(const fg_dispatch *dispatch, fg_buf *out)
{
    fg_buf_putc(out, '{');
    render_router(dispatch, out);
    fg_buf_puts(out, "\"workers\":[");
    for (uint32_t i = 0; i < fg_registry_count(dispatch->registry); i++) {
        fg_buf_puts(out, i > 0 ? "," : "");
        render_worker(dispatch, fg_registry_at(dispatch->registry, i), out);
    }
    render_refusals(dispatch, out);
    fg_buf_puts(out, "],\"requests\":[");
    for (const fg_job *job = dispatch->jobs; job != NULL; job = job->next) {
        fg_buf_puts(out, job == dispatch->jobs ? "" : ",");
        render_job(dispatch, job, out);
    }
    fg_buf_puts(out, "],\"recent\":[");
    uint32_t kept = dispatch->recent_count < FG_RECENT_MAX ? dispatch->recent_count : FG_RECENT_MAX;
    for (uint32_t i = 0; i < kept; i++) {
        fg_buf_puts(out, i > 0 ? "," : "");
        render_record(&dispatch->recent[(dispatch->recent_count - 1 - i) % FG_RECENT_MAX], out);
    }
    const fg_dispatch_stats *s = &dispatch->stats;
    fg_buf_printf(out,
                  "],\"counters\":{\"started\":%llu,\"finished\":%llu,\"failed\":%llu,"
                  "\"cancelled\":%llu,\"retried\":%llu,\"said_again\":%llu,\"workers_lost\":%llu,"
                  "\"workers_stuck\":%llu,"
                  "\"frames_refused\":%llu,\"stale_dropped\":%llu,\"refused_joins\":%llu,"
                  "\"pushed_blocks\":%llu,\"pushed_bytes\":%llu,\"push_retries\":%llu}}",
                  shown(s->started), shown(s->finished), shown(s->failed), shown(s->cancelled),
                  shown(s->retried), shown(s->said_again), shown(s->workers_lost),
                  shown(s->workers_stuck), shown(s->frames_refused), shown(s->stale_dropped),
                  shown(s->refused_joins), shown(s->pushed_blocks), shown(s->pushed_bytes),
                  shown(s->push_retries));
    return !out->failed;
}

/* ---- the cache ---- */

/* The numbers of one worker, or the sums of all: wider than a report's, so that sums fit. */
typedef struct cache_row {
    uint64_t total, free, cached, held, pinned, quarantined;
    uint64_t query_tokens, hit_tokens;
    uint64_t evicted, preemptions, swapped, restored, tier;
} cache_row;

static void add_load(cache_row *row, const fg_wire_load *load)
{
    row->total += load->total;
    row->free += load->free;
    row->cached += load->cached;
    row->held += load->held;
    row->pinned += load->pinned;
    row->quarantined += load->quarantined;
    row->query_tokens += load->cache_query_tokens;
    row->hit_tokens += load->cache_hit_tokens;
    row->evicted += load->evicted_blocks;
    row->preemptions += load->preemptions;
    row->swapped += load->swapped_blocks;
    row->restored += load->restored_blocks;
    row->tier += load->tier_blocks;
}

static void put_number(fg_buf *out, const char *name, uint64_t value)
{
    fg_buf_printf(out, "\"%s\":%llu", name, shown(value));
}

/* The members of a row's object, without its braces. */
static void render_row(const cache_row *row, fg_buf *out)
{
    double rate =
        row->query_tokens == 0 ? 0.0 : (double)row->hit_tokens / (double)row->query_tokens;
    const struct {
        const char *name;
        uint64_t value;
    } blocks[] = { { "total", row->total },   { "free", row->free },
                   { "cached", row->cached }, { "held", row->held },
                   { "pinned", row->pinned }, { "quarantined", row->quarantined } },
      counts[] = { { "evicted_blocks", row->evicted },
                   { "preemptions", row->preemptions },
                   { "swapped_blocks", row->swapped },
                   { "restored_blocks", row->restored },
                   { "tier_blocks", row->tier } };
    fg_buf_puts(out, "\"blocks\":{");
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) {
        fg_buf_puts(out, i > 0 ? "," : "");
        put_number(out, blocks[i].name, blocks[i].value);
    }
    fg_buf_puts(out, "},");
    put_number(out, "query_tokens", row->query_tokens);
    fg_buf_puts(out, ",");
    put_number(out, "hit_tokens", row->hit_tokens);
    fg_buf_printf(out, ",\"hit_rate\":%.4f", rate);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        fg_buf_puts(out, ",");
        put_number(out, counts[i].name, counts[i].value);
    }
}

bool fg_dispatch_render_cache(const fg_dispatch *dispatch, fg_buf *out)
{
    cache_row total = { 0 };
    fg_buf_puts(out, "{\"workers\":[");
    for (uint32_t i = 0; i < fg_registry_count(dispatch->registry); i++) {
        const fg_reg_worker *w = fg_registry_at(dispatch->registry, i);
        cache_row row = { 0 };
        add_load(&row, &w->load);
        add_load(&total, &w->load);
        fg_buf_puts(out, i > 0 ? ",{\"name\":\"" : "{\"name\":\"");
        fg_buf_json_escape(out, w->name, strlen(w->name));
        fg_buf_printf(out, "\",\"roles\":\"%s\",", fg_dispatch_role_name(w->roles));
        render_row(&row, out);
        fg_buf_puts(out, "}");
    }
    fg_buf_puts(out, "],\"total\":{");
    render_row(&total, out);
    fg_buf_puts(out, "}}");
    return !out->failed;
}
