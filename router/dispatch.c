#include "router/dispatch_internal.h"

#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "router/tracing.h"

enum { LOSSES_MAX = 3, FAILURES_MAX = 10, ANSWERS = 32 /* recent ones, for the mean */ };
#define RESIDENCY_BYTES ((size_t)64 << 20)
/* One try after the other would be over before the router has heard who has died, and all of them before two
 * workers whose link is broken have made another one. */
#define FAILED_TWICE_PAUSE_NS (250ull * 1000 * 1000)
#define FAILED_OFTEN_PAUSE_NS (1000ull * 1000 * 1000)
#define NOBODY_GRACE_NS       (3000ull * 1000 * 1000)
#define OWN_PAUSE_NS          (500ull * 1000 * 1000) /* five times the slowest beat of fg_dispatch_tick */

/* How long a request may stay in a state; DECODING counts from its newest token. PREFILLING includes the
 * time in the worker's own line, and DECODING the time that a preempted one waits to come back. */
static uint64_t state_limit_ms(fg_life_state state)
{
    switch (state) {
    case FG_LIFE_QUEUED:
        return 600 * 1000;
    case FG_LIFE_RESERVED:
        return 600 * 1000;
    case FG_LIFE_PREFILLING:
        return 600 * 1000;
    case FG_LIFE_TRANSFERRING:
        return 60 * 1000;
    default:
        return 600 * 1000;
    }
}

static void extend(fg_dispatch *dispatch, fg_job *job)
{
    /* A request that is placed again and again still waits in one queue: its time there is one. */
    bool queued = job->life.state == FG_LIFE_QUEUED;
    uint64_t from = queued ? job->waits_from_ns : fg_dispatch_now(dispatch);
    job->deadline_ns = from + state_limit_ms(job->life.state) * 1000000u;
}

/* The stretch that ends now, as a span: each visit of a state is one, with the attempt that it belongs
 * to. */
static void trace_stretch(fg_dispatch *dispatch, const fg_job *job, uint64_t now)
{
    fg_life_state state = job->life.state;
    fg_trace_span span = { .request = job->id,
                           .attempt = job->attempt,
                           .state = fg_life_name(state),
                           .began_ns = job->life.entered_at_ns[state],
                           .ended_ns = now,
                           .tokens = state == FG_LIFE_PREFILLING
                                         ? job->computed_tokens
                                         : fg_journal_count(job->journal) - job->state_tokens };
    fg_trace_add_span(dispatch->options.trace, &span);
    fg_tracing_stretch(dispatch->options.spans, job, now, span.tokens);
}

void fg_dispatch_set_state(fg_dispatch *dispatch, fg_job *job, fg_life_state state)
{
    fg_error err;
    uint64_t now = fg_dispatch_now(dispatch);
    trace_stretch(dispatch, job, now);
    fg_status status = fg_life_move(&job->life, state, now, &err);
    FG_ASSERT(status == FG_OK, "%s", err.text);
    job->state_tokens = fg_journal_count(job->journal);
    extend(dispatch, job);
}

/* ---- creation ---- */

fg_status fg_dispatch_create(const fg_dispatch_options *options, fg_dispatch **dispatch_out,
                             fg_error *err)
{
    fg_dispatch *dispatch = fg_mem_alloc(sizeof *dispatch);
    if (dispatch == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for the dispatcher");
    }
    dispatch->options = *options;
    dispatch->created_ns = fg_clock_now_ns(&options->clock);
    dispatch->next_id = fg_hash_mix(options->router_epoch);
    dispatch->dice.state = options->router_epoch;
    fg_buf_init(&dispatch->out, FG_LIMIT_FRAME_BYTES);
    fg_buf_init(&dispatch->plain, FG_LIMIT_FRAME_BYTES);
    fg_buf_init(&dispatch->said, FG_LIMIT_CONTEXT_TOKENS * sizeof(uint32_t));
    fg_registry_options registry = { .fingerprint = options->fingerprint,
                                     .lease_ns = (uint64_t)options->lease_ms * 1000000u,
                                     .stuck_ns = (uint64_t)options->stuck_ms * 1000000u };
    fg_status status = fg_registry_create(&registry, &dispatch->registry, err);
    if (status == FG_OK) {
        dispatch->by_id = fg_map_create(FG_LIMIT_LIVE_REQUESTS);
        dispatch->inbox = fg_arena_create(FG_LIMIT_FRAME_ARENA_BYTES);
        dispatch->snapshot = fg_mem_array(FG_LIMIT_WORKERS, sizeof *dispatch->snapshot);
        dispatch->found = fg_mem_array(FG_LIMIT_WORKERS, sizeof *dispatch->found);
        dispatch->hits = fg_mem_array(FG_LIMIT_WORKERS, sizeof *dispatch->hits);
        dispatch->waits = fg_mem_array(FG_LIMIT_WORKERS, sizeof *dispatch->waits);
        dispatch->identities = fg_mem_array(FG_LIMIT_WORKERS, sizeof *dispatch->identities);
        if (dispatch->by_id == NULL || dispatch->identities == NULL || dispatch->inbox == NULL ||
            dispatch->snapshot == NULL || dispatch->found == NULL || dispatch->hits == NULL ||
            dispatch->waits == NULL) {
            status = fg_fail(err, FG_AGAIN, "out of memory for the dispatcher's tables");
        } else {
            status = fg_dispatch_create_queue(dispatch, err);
        }
    }
    if (status == FG_OK) {
        size_t bytes = options->residency_bytes;
        fg_residency_options residency = { .bytes_max = bytes != 0 ? bytes : RESIDENCY_BYTES,
                                           .slot_count = FG_LIMIT_WORKERS,
                                           .seed = fg_hash_mix(options->router_epoch) };
        status = fg_residency_create(&residency, &dispatch->residency, err);
    }
    if (status != FG_OK) {
        fg_dispatch_destroy(dispatch);
        return status;
    }
    *dispatch_out = dispatch;
    return FG_OK;
}

static void free_job(fg_job *job)
{
    fg_journal_end(job->journal);
    fg_mem_free(job->keys);
    fg_mem_free(job);
}

void fg_dispatch_destroy(fg_dispatch *dispatch)
{
    if (dispatch == NULL) {
        return;
    }
    while (dispatch->jobs != NULL) {
        fg_job *job = dispatch->jobs;
        dispatch->jobs = job->next;
        free_job(job);
    }
    fg_queue_destroy(dispatch->queue);
    fg_registry_destroy(dispatch->registry);
    fg_map_destroy(dispatch->by_id);
    fg_arena_destroy(dispatch->inbox);
    fg_residency_destroy(dispatch->residency);
    fg_mem_free(dispatch->snapshot);
    fg_mem_free(dispatch->found);
    fg_mem_free(dispatch->hits);
    fg_mem_free(dispatch->waits);
    fg_mem_free(dispatch->identities);
    fg_buf_deinit(&dispatch->out);
    fg_buf_deinit(&dispatch->plain);
    fg_buf_deinit(&dispatch->said);
    fg_mem_free(dispatch);
}

/* ---- the life of a request ---- */

static void cancel_at(fg_dispatch *dispatch, const fg_job *job, fg_reg_worker *worker)
{
    if (worker != NULL) {
        fg_msg msg = { .kind = FG_MSG_CANCEL, .request = job->id, .attempt = job->attempt };
        fg_dispatch_send(dispatch, worker, &msg);
    }
}

static void leave_workers(fg_dispatch *dispatch, fg_job *job)
{
    fg_dispatch_end_pull(dispatch, job);
    cancel_at(dispatch, job, job->prefill);
    if (job->decode != job->prefill) {
        cancel_at(dispatch, job, job->decode);
    }
    fg_dispatch_release_prefill(dispatch, job);
    fg_dispatch_release_decode(dispatch, job);
}

static fg_dispatch_report report_of(const fg_job *job, uint64_t now)
{
    const fg_job_record *record = &job->record;
    const uint64_t *spent = job->life.spent_ns;
    return (fg_dispatch_report){
        .prompt_tokens = record->prompt_tokens,
        .cached_tokens = record->cached_tokens,
        .chunks = record->chunks,
        .preemptions = record->preemptions,
        .attempts = record->attempts,
        .queued_ns = spent[FG_LIFE_QUEUED],
        .reserved_ns = spent[FG_LIFE_RESERVED],
        .prefilling_ns = spent[FG_LIFE_PREFILLING],
        .transferring_ns = spent[FG_LIFE_TRANSFERRING],
        .decoding_ns = spent[FG_LIFE_DECODING],
        .reserved = job->life.entered_at_ns[FG_LIFE_RESERVED] != 0,
        .transferred = job->life.entered_at_ns[FG_LIFE_TRANSFERRING] != 0,
        .worker_queue_ns = record->prefill_queue_ns,
        .worker_compute_ns = record->prefill_compute_ns,
        .first_token_ns = record->first_ns == 0 ? 0 : record->first_ns - record->created_ns,
        .total_ns = now - record->created_ns,
        .predicted_ttft_ns = record->predicted_ttft_ns,
        .why = record->why,
        .split = record->split,
    };
}

static void note_answer(fg_dispatch *dispatch, uint32_t tokens)
{
    double mean = dispatch->mean_answer;
    dispatch->mean_answer = mean == 0 ? tokens : mean + (tokens - mean) / ANSWERS;
}

/* The request leaves the books; its owner is told by the caller, or knows. */
static fg_dispatch_report close_job(fg_dispatch *dispatch, fg_job *job, fg_finish finish,
                                    const char *text)
{
    fg_dispatch_dequeue(dispatch, job);
    leave_workers(dispatch, job);
    bool cancelled = finish == FG_FINISH_CANCELLED;
    fg_dispatch_set_state(dispatch, job,
                          cancelled                   ? FG_LIFE_CANCELLED
                          : finish == FG_FINISH_ERROR ? FG_LIFE_FAILED
                                                      : FG_LIFE_FINISHED);
    if (finish == FG_FINISH_ERROR) {
        dispatch->stats.failed++;
        fg_warn("dispatch", "event=failed req=%016llx why=\"%s\"", (unsigned long long)job->id,
                text);
    } else if (cancelled) {
        dispatch->stats.cancelled++;
    } else {
        dispatch->stats.finished++;
        if (!job->input.params.want_embedding) { /* whose one token says nothing of answers */
            note_answer(dispatch, fg_journal_count(job->journal));
        }
    }
    job->record.finish = finish;
    job->record.attempts = job->attempt;
    job->record.completion_tokens = fg_journal_count(job->journal);
    fg_tracing_end_job(dispatch->options.spans, job, fg_dispatch_now(dispatch),
                       finish == FG_FINISH_ERROR ? text : NULL);
    dispatch->recent[dispatch->recent_count++ % FG_RECENT_MAX] = job->record;
    fg_map_remove(dispatch->by_id, job->id);
    *(job->previous != NULL ? &job->previous->next : &dispatch->jobs) = job->next;
    *(job->next != NULL ? &job->next->previous : &dispatch->jobs_last) = job->previous;
    uint64_t now = fg_dispatch_now(dispatch);
    if (--dispatch->stats.live == 0) {
        dispatch->served_ns += now - dispatch->served_from_ns;
    }
    fg_dispatch_report report = report_of(job, now);
    free_job(job);
    return report;
}

void fg_dispatch_end(fg_dispatch *dispatch, fg_job *job, fg_finish finish, fg_status status,
                     const char *text)
{
    fg_dispatch_sink sink = job->input.sink;
    fg_dispatch_note_end(dispatch, job, finish, status);
    fg_dispatch_report report = close_job(dispatch, job, finish, text);
    dispatch->sunken++;
    sink.on_end(sink.ctx, finish, status, text, &report);
}

void fg_dispatch_retry(fg_dispatch *dispatch, fg_job *job, fg_status status, const char *text)
{
    if (fg_dispatch_waits(job)) {
        return;
    }
    job->failures++;
    if (job->losses >= LOSSES_MAX || job->failures >= FAILURES_MAX) {
        fg_dispatch_end(dispatch, job, FG_FINISH_ERROR, status, text);
        return;
    }
    leave_workers(dispatch, job);
    fg_journal_again(job->journal);
    if (fg_journal_count(job->journal) > 0) { /* its first token came in time; it waits anew */
        job->give_up_ns = job->item.give_up_ns = 0;
        job->waits_from_ns = fg_dispatch_now(dispatch);
    }
    fg_dispatch_set_state(dispatch, job, FG_LIFE_QUEUED);
    job->attempt++;
    if (job->failures > 1) {
        job->pause_until_ns = fg_dispatch_now(dispatch) +
                              (job->failures > 2 ? FAILED_OFTEN_PAUSE_NS : FAILED_TWICE_PAUSE_NS);
    }
    job->computed_tokens = 0;
    job->done_known = false;
    dispatch->stats.retried++;
    fg_dispatch_enqueue(dispatch, job);
}

/* Another token of it has come, the `had`-th. Who outlives what was expected of it is expected to go on for
 * as long again, if it may. */
static void count_token(fg_job *job, uint32_t had)
{
    if (job->decode == NULL) {
        return;
    }
    uint32_t left = job->left_tokens - 1, most = job->input.params.max_tokens;
    if (left == 0) {
        uint32_t may = most > had ? most - had : 1;
        left = may < had ? may : had;
    }
    fg_places_move(&job->decode->places, job->left_tokens, left);
    job->left_tokens = left;
}

fg_wire_params fg_dispatch_params(const fg_job *job)
{
    fg_wire_params params = job->input.params;
    params.want_scores = fg_job_unscored(job) > 0 ? params.want_scores : 0;
    return params;
}

void fg_dispatch_said_more(fg_dispatch *dispatch, fg_job *job)
{
    extend(dispatch, job);
}

void fg_dispatch_say_again(fg_dispatch *dispatch, fg_job *job, uint32_t index)
{
    count_token(job, index + 1);
    extend(dispatch, job);
}

void fg_dispatch_deliver(fg_dispatch *dispatch, fg_job *job)
{
    uint32_t index;
    fg_journal_token token;
    uint64_t now = fg_dispatch_now(dispatch);
    bool any = false;
    /* The sink may cancel this request from inside on_token: look it up anew each time. */
    uint64_t job_id = job->id;
    while (fg_journal_read(job->journal, &index, &token)) {
        any = true;
        count_token(job, index + 1);
        dispatch->prompt_tokens += index == 0 ? job->input.token_count : 0;
        fg_job_record *record = &job->record;
        *(index == 0   ? &record->first_ns
          : index == 1 ? &record->second_ns
                       : &record->last_ns) = now;
        record->last_ns = now;
        dispatch->sunken++;
        job->input.sink.on_token(job->input.sink.ctx, index, token.id, token.digest,
                                 token.logprobs);
        if (fg_map_get(dispatch->by_id, job_id) != job) {
            return;
        }
    }
    if (any) {
        extend(dispatch, job);
    }
    if (job->done_known && fg_journal_count(job->journal) >= job->done_generated) {
        fg_dispatch_end(dispatch, job, job->done_finish, FG_OK, "");
    }
}

static fg_job *new_job(fg_dispatch *dispatch, const fg_dispatch_job *input)
{
    fg_job *job = fg_mem_alloc(sizeof *job);
    fg_journal *journal = fg_journal_begin(input->params.max_tokens);
    uint64_t id = ++dispatch->next_id;
    if (job == NULL || journal == NULL || fg_map_put(dispatch->by_id, id, job) != FG_OK) {
        fg_journal_end(journal);
        fg_mem_free(job);
        return NULL;
    }
    job->id = id;
    job->attempt = 1;
    job->input = *input;
    job->journal = journal;
    job->record.id = id;
    job->record.prompt_tokens = input->token_count;
    job->record.created_ns = job->waits_from_ns = fg_dispatch_now(dispatch);
    fg_life_init(&job->life, job->record.created_ns);
    extend(dispatch, job);
    return job;
}

/* Where it would go, and whether it may come in at all. */
static fg_status judge(fg_dispatch *dispatch, fg_job *job, fg_place_verdict *verdict_out,
                       fg_place_choice *choice_out, fg_error *err)
{
    const fg_dispatch_job *input = &job->input;
    fg_place_verdict verdict = fg_dispatch_choose(dispatch, job, choice_out);
    *verdict_out = verdict;
    if (verdict == FG_PLACE_NEVER) {
        return fg_fail(err, FG_BAD_INPUT,
                       "prompt (%u tokens) and max_tokens (%u) exceed what any "
                       "worker can hold (%u tokens)",
                       input->token_count, input->params.max_tokens,
                       fg_dispatch_context_max(dispatch));
    }
    if (input->token_count > fg_dispatch_tokens_max(dispatch)) {
        return fg_fail(err, FG_BAD_INPUT,
                       "prompt (%u tokens) exceeds what may wait for a worker (%llu tokens, by "
                       "--queue-limit)",
                       input->token_count, (unsigned long long)fg_dispatch_tokens_max(dispatch));
    }
    if (verdict == FG_PLACE_NOBODY || !fg_dispatch_ready(dispatch)) {
        return fg_fail(err, FG_PEER_LOST, "no worker is ready for this request");
    }
    return fg_dispatch_admit(dispatch, job, verdict == FG_PLACE_OK ? choice_out : NULL, err);
}

fg_status fg_dispatch_do_start(fg_dispatch *dispatch, const fg_dispatch_job *input,
                               uint64_t *id_out, fg_error *err)
{
    fg_place_verdict verdict;
    fg_place_choice choice;
    uint64_t total = (uint64_t)input->token_count + input->params.max_tokens;
    dispatch->refused_s = 0;
    if (input->token_count == 0 || input->params.max_tokens == 0 ||
        total > FG_LIMIT_CONTEXT_TOKENS) {
        return fg_fail(err, FG_BAD_INPUT, "%llu tokens (prompt and max_tokens) are out of range",
                       (unsigned long long)total);
    }
    fg_job *job = new_job(dispatch, input);
    if (job == NULL) {
        return fg_fail(err, FG_AGAIN, "router is out of memory");
    }
    fg_status status = judge(dispatch, job, &verdict, &choice, err);
    if (status != FG_OK) {
        fg_map_remove(dispatch->by_id, job->id);
        free_job(job);
        return status;
    }
    fg_tracing_start_job(dispatch->options.spans, job);
    fg_dispatch_note_span(dispatch, job);
    job->previous = dispatch->jobs_last;
    *(dispatch->jobs_last != NULL ? &dispatch->jobs_last->next : &dispatch->jobs) = job;
    dispatch->jobs_last = job;
    if (dispatch->stats.live++ == 0) {
        dispatch->served_from_ns = fg_dispatch_now(dispatch);
    }
    dispatch->stats.started++;
    fg_dispatch_enqueue(dispatch, job);
    *id_out = job->id;
    if (verdict == FG_PLACE_OK) {
        fg_dispatch_first_try(dispatch, job, &choice);
    } else {
        fg_dispatch_pump(dispatch);
    }
    return FG_OK;
}

bool fg_dispatch_do_cancel(fg_dispatch *dispatch, uint64_t id, fg_finish reason,
                           fg_dispatch_report *report_out)
{
    fg_job *job = fg_map_get(dispatch->by_id, id);
    if (job == NULL) {
        return false;
    }
    fg_dispatch_report report = close_job(dispatch, job, reason, "");
    if (report_out != NULL) {
        *report_out = report;
    }
    return true;
}

/* ---- questions ---- */

bool fg_dispatch_ready(const fg_dispatch *dispatch)
{
    uint32_t roles = 0;
    for (uint32_t i = 0; i < fg_registry_count(dispatch->registry); i++) {
        const fg_reg_worker *worker = fg_registry_at(dispatch->registry, i);
        roles |= worker->draining ? 0 : worker->roles;
    }
    return dispatch->was_complete && roles == (FG_ROLE_PREFILL | FG_ROLE_DECODE);
}

uint32_t fg_dispatch_context_max(const fg_dispatch *dispatch)
{
    uint32_t best[2] = { 0, 0 };
    for (uint32_t i = 0; i < fg_registry_count(dispatch->registry); i++) {
        const fg_reg_worker *w = fg_registry_at(dispatch->registry, i);
        uint64_t slots = (uint64_t)w->block_count * w->block_size;
        uint32_t holds = slots < w->context_max ? (uint32_t)slots : w->context_max;
        for (uint32_t role = 0; role < 2; role++) {
            if ((w->roles >> role & 1) && holds > best[role]) {
                best[role] = holds;
            }
        }
    }
    return best[0] < best[1] ? best[0] : best[1];
}

uint32_t fg_dispatch_retry_after(const fg_dispatch *dispatch)
{
    fg_admit_load load = fg_dispatch_load(dispatch);
    return fg_admit_retry_s(&load, &dispatch->options.limits);
}

uint32_t fg_dispatch_refused_s(const fg_dispatch *dispatch)
{
    return dispatch->refused_s;
}

void fg_dispatch_stats_get(const fg_dispatch *dispatch, fg_dispatch_stats *stats_out)
{
    *stats_out = dispatch->stats;
}

const fg_residency *fg_dispatch_residency(const fg_dispatch *dispatch)
{
    return dispatch->residency;
}

const fg_registry *fg_dispatch_registry(const fg_dispatch *dispatch)
{
    return dispatch->registry;
}

/* ---- time ---- */

static void measure_rates(fg_dispatch *dispatch, uint64_t now)
{
    if (dispatch->stats.live > 0) {
        dispatch->served_ns += now - dispatch->served_from_ns;
        dispatch->served_from_ns = now;
    }
    uint64_t ended = dispatch->stats.finished + dispatch->stats.failed + dispatch->stats.cancelled;
    fg_rate_look(&dispatch->ended_rate, ended, dispatch->served_ns);
    fg_rate_look(&dispatch->prompt_rate, dispatch->prompt_tokens, dispatch->served_ns);
}

/* A queue that no worker can take is not kept waiting: new requests get 503 at once, and so do these,
 * after a grace in which a restarted worker may join. */
static void end_hopeless(fg_dispatch *dispatch, uint64_t now)
{
    fg_place_choice choice;
    fg_job *head = fg_dispatch_head(dispatch);
    fg_place_verdict verdict = FG_PLACE_OK;
    if (head != NULL) {
        verdict = fg_dispatch_choose(dispatch, head, &choice);
    }
    if (verdict != FG_PLACE_NOBODY && verdict != FG_PLACE_NEVER) {
        dispatch->nobody_since_ns = 0;
        return;
    }
    if (dispatch->nobody_since_ns == 0) {
        dispatch->nobody_since_ns = now;
    }
    if (now - dispatch->nobody_since_ns < NOBODY_GRACE_NS) {
        return;
    }
    do {
        fg_dispatch_end(dispatch, head, FG_FINISH_ERROR, FG_PEER_LOST,
                        "no worker is left that could take this request");
        head = fg_dispatch_head(dispatch);
    } while (verdict == FG_PLACE_NOBODY && head != NULL);
}

void fg_dispatch_do_abort_all(fg_dispatch *dispatch, const char *why)
{
    while (dispatch->jobs != NULL) {
        fg_dispatch_end(dispatch, dispatch->jobs, FG_FINISH_ERROR, FG_PEER_LOST, why);
    }
}

/* This process was stopped, or the whole host was: what the workers sent meanwhile waits unread, so the
 * time that passed is not theirs. */
static void forgive_own_pause(fg_dispatch *dispatch, uint64_t now)
{
    uint64_t gap = dispatch->ticked_ns == 0 ? 0 : now - dispatch->ticked_ns;
    dispatch->ticked_ns = now;
    if (gap < OWN_PAUSE_NS) {
        return;
    }
    fg_warn("dispatch", "event=own_pause ms=%llu", (unsigned long long)(gap / 1000000));
    fg_registry_forgive(dispatch->registry, gap, now);
}

static void lose_the_silent(fg_dispatch *dispatch, uint64_t now)
{
    fg_reg_worker *worker;
    while ((worker = fg_registry_expired(dispatch->registry, now)) != NULL) {
        fg_dispatch_lose(dispatch, worker, "its lease ran out");
    }
    while ((worker = fg_registry_deaf(dispatch->registry)) != NULL) {
        fg_dispatch_lose(dispatch, worker, "it takes no frames");
    }
    while ((worker = fg_registry_stuck(dispatch->registry, now)) != NULL) {
        dispatch->stats.workers_stuck++;
        fg_dispatch_lose(dispatch, worker, "it is alive but its steps do not end");
    }
}

void fg_dispatch_do_tick(fg_dispatch *dispatch)
{
    uint64_t now = fg_dispatch_now(dispatch);
    forgive_own_pause(dispatch, now);
    lose_the_silent(dispatch, now);
    fg_job *next;
    for (fg_job *job = dispatch->jobs; job != NULL; job = next) {
        next = job->next;
        if (job->pull.to != NULL && now >= job->pull.until_ns) {
            fg_dispatch_end_pull(dispatch, job);
        }
        if (now < job->deadline_ns) {
            continue;
        }
        char text[96];
        snprintf(text, sizeof text, "no progress in state %s", fg_life_name(job->life.state));
        fg_dispatch_end(dispatch, job, FG_FINISH_ERROR, FG_TIMEOUT, text);
    }
    measure_rates(dispatch, now);
    fg_dispatch_end_late(dispatch);
    fg_dispatch_pump(dispatch);
    end_hopeless(dispatch, now);
}

/* What a job says of its state must agree with the workers that it is booked at. */
static void check_job(const fg_dispatch *dispatch, const fg_job *job)
{
    fg_life_state state = job->life.state;
    FG_ASSERT(fg_map_get(dispatch->by_id, job->id) == job);
    bool waits = fg_dispatch_waits(job);
    FG_ASSERT(waits == (state == FG_LIFE_QUEUED) && !fg_life_ended(&job->life));
    FG_ASSERT(waits == (job->prefill == NULL && job->decode == NULL), "nobody will end it");
    FG_ASSERT(state != FG_LIFE_RESERVED ||
              (job->prefill != NULL && job->decode != NULL && job->prefill != job->decode));
    /* One worker for both never transfers. */
    FG_ASSERT(state != FG_LIFE_TRANSFERRING || job->prefill == NULL || job->prefill != job->decode);
    FG_ASSERT(job->record.cached_tokens <= job->input.token_count);
    const fg_pull *pull = &job->pull;
    FG_ASSERT(pull->from == NULL ||
              fg_registry_by_peer(dispatch->registry, pull->from->peer) == pull->from);
    FG_ASSERT(pull->to == NULL ||
              fg_registry_by_peer(dispatch->registry, pull->to->peer) == pull->to);
    FG_ASSERT((pull->from == NULL && pull->to == NULL) || !waits, "a pull for nobody");
}

static void check_worker(const fg_dispatch *dispatch, const fg_reg_worker *w)
{
    uint32_t prefills = 0, decodes = 0;
    uint64_t tokens = 0, blocks = 0, context = 0;
    uint32_t ahead = 0;
    fg_places places = { 0 };
    for (const fg_job *job = dispatch->jobs; job != NULL; job = job->next) {
        prefills += job->prefill == w;
        decodes += job->decode == w;
        tokens += job->prefill == w ? job->ahead_tokens : 0;
        ahead += job->prefill == w && job->ahead_tokens > 0;
        context += job->decode == w ? job->context_tokens : 0;
        blocks += job->decode == w ? job->need_blocks : 0;
        if (job->decode == w) {
            fg_places_take(&places, job->left_tokens);
        }
    }
    FG_ASSERT(memcmp(&places, &w->places, sizeof places) == 0, "%s: other places", w->name);
    FG_ASSERT(prefills == w->prefills && decodes == w->decodes);
    FG_ASSERT(tokens == w->prefill_tokens && blocks == w->decode_blocks);
    FG_ASSERT(ahead == w->ahead && context == w->context_tokens && w->ahead_ns >= 0);
    FG_ASSERT(decodes <= FG_PLACE_LINE * w->max_seqs, "%s has %u requests", w->name, decodes);
}

void fg_dispatch_check(const fg_dispatch *dispatch)
{
    uint32_t live = 0, queued = 0;
    for (const fg_job *job = dispatch->jobs; job != NULL; job = job->next) {
        live++;
        queued += fg_dispatch_waits(job);
        check_job(dispatch, job);
    }
    FG_ASSERT(live == dispatch->stats.live && queued == dispatch->stats.queued);
    FG_ASSERT(fg_map_count(dispatch->by_id) == live);
    fg_dispatch_check_queue(dispatch);
    for (uint32_t i = 0; i < fg_registry_count(dispatch->registry); i++) {
        check_worker(dispatch, fg_registry_at(dispatch->registry, i));
    }
}
