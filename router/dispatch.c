#include "router/dispatch_internal.h"

#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/kv/layout.h"

enum { ATTEMPTS_MAX = 3 };
#define NOBODY_GRACE_NS (3000ull * 1000 * 1000)
#define OWN_PAUSE_NS    (500ull * 1000 * 1000) /* five times the slowest beat of fg_dispatch_tick */

/* How long a request may stay in a state; DECODING counts from its newest token. */
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
        return 120 * 1000;
    }
}

uint64_t fg_dispatch_now(const fg_dispatch *dispatch)
{
    return fg_clock_now_ns(&dispatch->options.clock);
}

static void extend(fg_dispatch *dispatch, fg_job *job)
{
    /* A request that is placed again and again still waits in one queue: its time there is one. */
    bool queued = job->life.state == FG_LIFE_QUEUED;
    uint64_t from = queued ? job->record.created_ns : fg_dispatch_now(dispatch);
    job->deadline_ns = from + state_limit_ms(job->life.state) * 1000000u;
}

void fg_dispatch_set_state(fg_dispatch *dispatch, fg_job *job, fg_life_state state)
{
    fg_error err;
    fg_status status = fg_life_move(&job->life, state, fg_dispatch_now(dispatch), &err);
    FG_ASSERT(status == FG_OK, "%s", err.text);
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
    dispatch->next_id = fg_hash_mix(options->router_epoch);
    fg_buf_init(&dispatch->out, FG_LIMIT_FRAME_BYTES);
    fg_registry_options registry = { .fingerprint = options->fingerprint,
                                     .lease_ns = (uint64_t)options->lease_ms * 1000000u };
    fg_status status = fg_registry_create(&registry, &dispatch->registry, err);
    if (status == FG_OK) {
        dispatch->by_id = fg_map_create(FG_LIMIT_LIVE_REQUESTS);
        dispatch->inbox = fg_arena_create(FG_LIMIT_FRAME_ARENA_BYTES);
        dispatch->snapshot = fg_mem_array(FG_LIMIT_WORKERS, sizeof *dispatch->snapshot);
        dispatch->identities = fg_mem_array(FG_LIMIT_WORKERS, sizeof *dispatch->identities);
        if (dispatch->by_id == NULL || dispatch->identities == NULL || dispatch->inbox == NULL ||
            dispatch->snapshot == NULL) {
            status = fg_fail(err, FG_AGAIN, "out of memory for the dispatcher's tables");
        }
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
    fg_registry_destroy(dispatch->registry);
    fg_map_destroy(dispatch->by_id);
    fg_arena_destroy(dispatch->inbox);
    fg_mem_free(dispatch->snapshot);
    fg_mem_free(dispatch->identities);
    fg_buf_deinit(&dispatch->out);
    fg_mem_free(dispatch);
}

/* ---- the queue ---- */

static void enqueue(fg_dispatch *dispatch, fg_job *job, bool at_head)
{
    FG_ASSERT(!job->in_queue);
    job->in_queue = true;
    if (at_head) {
        job->queue_next = dispatch->queue;
        dispatch->queue = job;
        if (dispatch->queue_last == NULL) {
            dispatch->queue_last = job;
        }
    } else {
        job->queue_next = NULL;
        if (dispatch->queue_last != NULL) {
            dispatch->queue_last->queue_next = job;
        } else {
            dispatch->queue = job;
        }
        dispatch->queue_last = job;
    }
    dispatch->stats.queued++;
    dispatch->queued_tokens += job->input.token_count;
}

static void dequeue(fg_dispatch *dispatch, fg_job *job)
{
    if (!job->in_queue) {
        return;
    }
    fg_job *previous = NULL;
    fg_job **at = &dispatch->queue;
    while (*at != job) {
        previous = *at;
        at = &previous->queue_next;
    }
    *at = job->queue_next;
    if (dispatch->queue_last == job) {
        dispatch->queue_last = previous;
    }
    job->in_queue = false;
    dispatch->stats.queued--;
    dispatch->queued_tokens -= job->input.token_count;
}

/* What is promised there, and what nobody can use; a report cannot push it beyond what there is. */
static uint32_t blocks_used(const fg_reg_worker *worker)
{
    uint64_t used = (uint64_t)worker->decode_blocks + worker->load.quarantined;
    return used < worker->block_count ? (uint32_t)used : worker->block_count;
}

static uint32_t take_snapshot(const fg_dispatch *dispatch)
{
    uint32_t count = fg_registry_count(dispatch->registry);
    for (uint32_t i = 0; i < count; i++) {
        const fg_reg_worker *w = fg_registry_at(dispatch->registry, i);
        dispatch->snapshot[i] = (fg_place_worker){ .roles = w->draining ? 0 : w->roles,
                                                   .block_count = w->block_count,
                                                   .block_size = w->block_size,
                                                   .context_max = w->context_max,
                                                   .max_seqs = w->max_seqs,
                                                   .prefills = w->prefills,
                                                   .decodes = w->decodes,
                                                   .prefill_tokens = w->prefill_tokens,
                                                   .placed = w->placed,
                                                   .blocks_used = blocks_used(w),
                                                   .full = w->full };
    }
    return count;
}

static fg_place_verdict place(const fg_dispatch *dispatch, uint32_t prompt_tokens,
                              uint32_t total_tokens, fg_place_choice *choice)
{
    fg_place_request request = { .prompt_tokens = prompt_tokens, .total_tokens = total_tokens };
    uint32_t count = take_snapshot(dispatch);
    return fg_place_pick(dispatch->snapshot, count, &request, choice);
}

static void book(fg_job *job, fg_reg_worker *prefill, fg_reg_worker *decode)
{
    job->prefill = prefill;
    job->decode = decode;
    prefill->prefills++;
    prefill->placed++;
    decode->placed += decode != prefill;
    prefill->prefill_tokens += job->input.token_count;
    job->need_blocks =
        fg_kv_blocks_for(job->input.token_count + job->input.params.max_tokens, decode->block_size);
    decode->decodes++;
    decode->decode_blocks += job->need_blocks;
}

void fg_dispatch_release_prefill(fg_job *job)
{
    if (job->prefill != NULL) {
        job->prefill->prefills--;
        job->prefill->prefill_tokens -= job->input.token_count;
        job->prefill = NULL;
    }
}

void fg_dispatch_release_decode(fg_job *job)
{
    if (job->decode != NULL) {
        job->decode->decodes--;
        job->decode->decode_blocks -= job->need_blocks;
        job->decode = NULL;
    }
}

/* Sends a placed job on its way: RESERVE to the decode worker, or PREFILL where one does both. */
static fg_status launch(fg_dispatch *dispatch, fg_job *job)
{
    fg_msg msg = { .request = job->id, .attempt = job->attempt };
    if (job->prefill == job->decode) {
        msg.kind = FG_MSG_PREFILL;
        msg.prefill.tokens = job->input.tokens;
        msg.prefill.token_count = job->input.token_count;
        msg.prefill.sampling = job->input.params;
        return fg_dispatch_send(dispatch, job->prefill, &msg);
    }
    msg.kind = FG_MSG_RESERVE;
    msg.reserve.writer.name = job->prefill->name;
    msg.reserve.writer.epoch = job->prefill->epoch;
    msg.reserve.tokens = job->input.tokens;
    msg.reserve.token_count = job->input.token_count;
    msg.reserve.sampling = job->input.params;
    return fg_dispatch_send(dispatch, job->decode, &msg);
}

void fg_dispatch_pump(fg_dispatch *dispatch)
{
    while (dispatch->queue != NULL) {
        fg_job *job = dispatch->queue;
        fg_place_choice choice;
        uint32_t total = job->input.token_count + job->input.params.max_tokens;
        if (place(dispatch, job->input.token_count, total, &choice) != FG_PLACE_OK) {
            return; /* first come, first served; the queue's deadline bounds the wait */
        }
        dequeue(dispatch, job);
        fg_reg_worker *prefill = fg_registry_at(dispatch->registry, choice.prefill);
        fg_reg_worker *decode = fg_registry_at(dispatch->registry, choice.decode);
        book(job, prefill, decode);
        memcpy(job->record.prefill, prefill->name, sizeof job->record.prefill);
        memcpy(job->record.decode, decode->name, sizeof job->record.decode);
        job->record.placed_ns = fg_dispatch_now(dispatch);
        fg_dispatch_set_state(dispatch, job,
                              prefill == decode ? FG_LIFE_PREFILLING : FG_LIFE_RESERVED);
        if (launch(dispatch, job) != FG_OK) {
            decode->full = true; /* its queue of frames is; its next report clears this */
            fg_dispatch_requeue(dispatch, job);
            return;
        }
    }
}

void fg_dispatch_requeue(fg_dispatch *dispatch, fg_job *job)
{
    fg_dispatch_release_prefill(job);
    fg_dispatch_release_decode(job);
    job->attempt++; /* each placement has its own number: late answers to this one are told apart */
    fg_dispatch_set_state(dispatch, job, FG_LIFE_QUEUED);
    enqueue(dispatch, job, true);
    if (fg_dispatch_now(dispatch) >= job->deadline_ns) {
        fg_dispatch_end(dispatch, job, FG_FINISH_ERROR, FG_TIMEOUT, "no worker had room in time",
                        false);
    }
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
    cancel_at(dispatch, job, job->prefill);
    if (job->decode != job->prefill) {
        cancel_at(dispatch, job, job->decode);
    }
    fg_dispatch_release_prefill(job);
    fg_dispatch_release_decode(job);
}

void fg_dispatch_end(fg_dispatch *dispatch, fg_job *job, fg_finish finish, fg_status status,
                     const char *text, bool silent)
{
    dequeue(dispatch, job);
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
    }
    job->record.finish = finish;
    job->record.attempts = job->attempt;
    job->record.completion_tokens = fg_journal_count(job->journal);
    dispatch->recent[dispatch->recent_count++ % FG_RECENT_MAX] = job->record;
    fg_map_remove(dispatch->by_id, job->id);
    *(job->previous != NULL ? &job->previous->next : &dispatch->jobs) = job->next;
    *(job->next != NULL ? &job->next->previous : &dispatch->jobs_last) = job->previous;
    dispatch->stats.live--;
    fg_dispatch_sink sink = job->input.sink;
    free_job(job);
    if (!silent) {
        sink.on_end(sink.ctx, finish, status, text);
    }
}

void fg_dispatch_retry(fg_dispatch *dispatch, fg_job *job, fg_status status, const char *text)
{
    if (job->in_queue) {
        return;
    }
    if (fg_journal_count(job->journal) > 0 || job->failures + 1 >= ATTEMPTS_MAX) {
        fg_dispatch_end(dispatch, job, FG_FINISH_ERROR, status, text, false);
        return;
    }
    leave_workers(dispatch, job);
    job->attempt++;
    job->failures++;
    job->done_known = false;
    dispatch->stats.retried++;
    fg_dispatch_set_state(dispatch, job, FG_LIFE_QUEUED);
    enqueue(dispatch, job, true);
}

void fg_dispatch_deliver(fg_dispatch *dispatch, fg_job *job)
{
    uint32_t index, id;
    uint64_t digest;
    uint64_t now = fg_dispatch_now(dispatch);
    bool any = false;
    /* The sink may cancel this request from inside on_token: look it up anew each time. */
    uint64_t job_id = job->id;
    while (fg_journal_read(job->journal, &index, &id, &digest)) {
        any = true;
        fg_job_record *record = &job->record;
        *(index == 0   ? &record->first_ns
          : index == 1 ? &record->second_ns
                       : &record->last_ns) = now;
        record->last_ns = now;
        job->input.sink.on_token(job->input.sink.ctx, index, id, digest);
        if (fg_map_get(dispatch->by_id, job_id) != job) {
            return;
        }
    }
    if (any) {
        extend(dispatch, job);
    }
    if (job->done_known && fg_journal_count(job->journal) >= job->done_generated) {
        fg_dispatch_end(dispatch, job, job->done_finish, FG_OK, "", false);
    }
}

fg_status fg_dispatch_start(fg_dispatch *dispatch, const fg_dispatch_job *input, uint64_t *id_out,
                            fg_error *err)
{
    fg_place_choice choice;
    uint64_t total = (uint64_t)input->token_count + input->params.max_tokens;
    if (input->token_count == 0 || input->params.max_tokens == 0 ||
        total > FG_LIMIT_CONTEXT_TOKENS) {
        return fg_fail(err, FG_BAD_INPUT, "%llu tokens (prompt and max_tokens) are out of range",
                       (unsigned long long)total);
    }
    fg_place_verdict verdict = place(dispatch, input->token_count, (uint32_t)total, &choice);
    if (verdict == FG_PLACE_NEVER) {
        return fg_fail(err, FG_BAD_INPUT,
                       "prompt (%u tokens) and max_tokens (%u) exceed what any "
                       "worker can hold (%u tokens)",
                       input->token_count, input->params.max_tokens,
                       fg_dispatch_context_max(dispatch));
    }
    if (verdict == FG_PLACE_NOBODY || !fg_dispatch_ready(dispatch)) {
        return fg_fail(err, FG_PEER_LOST, "no worker is ready for this request");
    }
    fg_admit_load load = { .queued = dispatch->stats.queued,
                           .queued_tokens = dispatch->queued_tokens,
                           .live = dispatch->stats.live };
    if (fg_admit_offer(&load, &dispatch->options.limits, input->token_count) != FG_OK) {
        return fg_fail(err, FG_AGAIN, "the queue is full (%u requests wait)", load.queued);
    }
    fg_job *job = fg_mem_alloc(sizeof *job);
    fg_journal *journal = fg_journal_begin(input->params.max_tokens);
    uint64_t id = ++dispatch->next_id;
    if (job == NULL || journal == NULL || fg_map_put(dispatch->by_id, id, job) != FG_OK) {
        fg_journal_end(journal);
        fg_mem_free(job);
        return fg_fail(err, FG_AGAIN, "router is out of memory");
    }
    job->id = id;
    job->attempt = 1;
    job->input = *input;
    job->journal = journal;
    job->record.id = id;
    job->record.prompt_tokens = input->token_count;
    job->record.created_ns = fg_dispatch_now(dispatch);
    fg_life_init(&job->life, job->record.created_ns);
    extend(dispatch, job);
    job->previous = dispatch->jobs_last;
    *(dispatch->jobs_last != NULL ? &dispatch->jobs_last->next : &dispatch->jobs) = job;
    dispatch->jobs_last = job;
    dispatch->stats.live++;
    dispatch->stats.started++;
    enqueue(dispatch, job, false);
    *id_out = id;
    fg_dispatch_pump(dispatch);
    return FG_OK;
}

void fg_dispatch_cancel(fg_dispatch *dispatch, uint64_t id, fg_finish reason)
{
    fg_job *job = fg_map_get(dispatch->by_id, id);
    if (job != NULL) {
        fg_dispatch_end(dispatch, job, reason, FG_CANCELLED, "", true);
    }
}

/* ---- questions ---- */

static bool all_joined(const fg_dispatch *dispatch, const char *const *names, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (fg_registry_by_name(dispatch->registry, names[i]) == NULL) {
            return false;
        }
    }
    return true;
}

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
    fg_admit_load load = { .queued = dispatch->stats.queued,
                           .ended_per_second = dispatch->ended_rate };
    return fg_admit_retry_after(&load);
}

void fg_dispatch_stats_get(const fg_dispatch *dispatch, fg_dispatch_stats *stats_out)
{
    *stats_out = dispatch->stats;
}

const fg_registry *fg_dispatch_registry(const fg_dispatch *dispatch)
{
    return dispatch->registry;
}

/* ---- time ---- */

static void measure_rate(fg_dispatch *dispatch, uint64_t now)
{
    uint64_t since = now - dispatch->rate_at_ns;
    if (since < 1000000000u) {
        return;
    }
    uint64_t ended = dispatch->stats.finished + dispatch->stats.failed + dispatch->stats.cancelled;
    double rate = (double)(ended - dispatch->ended_seen) * 1e9 / (double)since;
    dispatch->ended_rate = dispatch->ended_rate * 0.8 + rate * 0.2;
    dispatch->ended_seen = ended;
    dispatch->rate_at_ns = now;
}

/* A queue that no worker can take is not kept waiting: new requests get 503 at once, and so do these,
 * after a grace in which a restarted worker may join. */
static void end_hopeless(fg_dispatch *dispatch, uint64_t now)
{
    fg_place_choice choice;
    fg_job *head = dispatch->queue;
    fg_place_verdict verdict = FG_PLACE_OK;
    if (head != NULL) {
        verdict = place(dispatch, head->input.token_count,
                        head->input.token_count + head->input.params.max_tokens, &choice);
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
        fg_dispatch_end(dispatch, dispatch->queue, FG_FINISH_ERROR, FG_PEER_LOST,
                        "no worker is left that could take this request", false);
    } while (verdict == FG_PLACE_NOBODY && dispatch->queue != NULL);
}

void fg_dispatch_abort_all(fg_dispatch *dispatch, const char *why)
{
    while (dispatch->jobs != NULL) {
        fg_dispatch_end(dispatch, dispatch->jobs, FG_FINISH_ERROR, FG_PEER_LOST, why, false);
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
    for (uint32_t i = 0; i < fg_registry_count(dispatch->registry); i++) {
        fg_reg_worker *worker = fg_registry_at(dispatch->registry, i);
        fg_registry_seen(worker, worker->seen_ns + gap < now ? worker->seen_ns + gap : now);
    }
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
}

void fg_dispatch_tick(fg_dispatch *dispatch)
{
    uint64_t now = fg_dispatch_now(dispatch);
    forgive_own_pause(dispatch, now);
    lose_the_silent(dispatch, now);
    dispatch->was_complete =
        dispatch->was_complete || (all_joined(dispatch, dispatch->options.wait_for_prefill,
                                              dispatch->options.wait_for_prefill_count) &&
                                   all_joined(dispatch, dispatch->options.wait_for_decode,
                                              dispatch->options.wait_for_decode_count));
    fg_job *next;
    for (fg_job *job = dispatch->jobs; job != NULL; job = next) {
        next = job->next;
        if (now < job->deadline_ns) {
            continue;
        }
        char text[96];
        snprintf(text, sizeof text, "no progress in state %s", fg_life_name(job->life.state));
        fg_dispatch_end(dispatch, job, FG_FINISH_ERROR, FG_TIMEOUT, text, false);
    }
    measure_rate(dispatch, now);
    fg_dispatch_pump(dispatch);
    end_hopeless(dispatch, now);
}

void fg_dispatch_check(const fg_dispatch *dispatch)
{
    uint32_t live = 0, queued = 0;
    for (const fg_job *job = dispatch->jobs; job != NULL; job = job->next) {
        live++;
        queued += job->in_queue;
        FG_ASSERT(fg_map_get(dispatch->by_id, job->id) == job);
        FG_ASSERT(job->in_queue == (job->life.state == FG_LIFE_QUEUED));
    }
    FG_ASSERT(live == dispatch->stats.live && queued == dispatch->stats.queued);
    FG_ASSERT(fg_map_count(dispatch->by_id) == live);
    for (uint32_t i = 0; i < fg_registry_count(dispatch->registry); i++) {
        const fg_reg_worker *w = fg_registry_at(dispatch->registry, i);
        uint32_t prefills = 0, decodes = 0;
        for (const fg_job *job = dispatch->jobs; job != NULL; job = job->next) {
            prefills += job->prefill == w;
            decodes += job->decode == w;
        }
        FG_ASSERT(prefills == w->prefills && decodes == w->decodes);
    }
}
