#include "router/dispatch_internal.h"

#include <string.h>

#include "common/kv/layout.h"
#include "common/sched/sched.h"

/* ---- the queue ---- */

static bool sooner(const fg_job *a, const fg_job *b)
{
    return a->rank != b->rank ? a->rank < b->rank : (int64_t)(a->id - b->id) < 0;
}

void fg_dispatch_enqueue(fg_dispatch *dispatch, fg_job *job)
{
    FG_ASSERT(!job->in_queue);
    job->in_queue = true;
    job->rank = fg_sched_rank(job->record.created_ns, job->input.params.priority);
    fg_job *last = dispatch->queue_last;
    fg_job **at = last != NULL && sooner(last, job) ? &last->queue_next : &dispatch->queue;
    while (*at != NULL && sooner(*at, job)) {
        at = &(*at)->queue_next;
    }
    job->queue_next = *at;
    *at = job;
    if (job->queue_next == NULL) {
        dispatch->queue_last = job;
    }
    dispatch->stats.queued++;
    dispatch->queued_tokens += job->input.token_count;
}

void fg_dispatch_dequeue(fg_dispatch *dispatch, fg_job *job)
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

void fg_dispatch_check_queue(const fg_dispatch *dispatch)
{
    uint32_t count = 0;
    uint64_t tokens = 0;
    const fg_job *last = NULL;
    for (const fg_job *job = dispatch->queue; job != NULL; job = job->queue_next) {
        FG_ASSERT(job->in_queue && job->prefill == NULL && job->decode == NULL);
        FG_ASSERT(last == NULL || sooner(last, job), "the queue is out of order");
        count++;
        tokens += job->input.token_count;
        last = job;
    }
    FG_ASSERT(last == dispatch->queue_last && count == dispatch->stats.queued);
    FG_ASSERT(tokens == dispatch->queued_tokens);
}

/* ---- placing ---- */

/* What the prompts placed there take, and what nobody can use; a report cannot push it beyond what there
 * is. */
static uint32_t blocks_used(const fg_reg_worker *worker)
{
    uint64_t used = worker->decode_blocks + worker->load.quarantined;
    return used < worker->block_count ? (uint32_t)used : worker->block_count;
}

static uint32_t take_snapshot(const fg_dispatch *dispatch)
{
    uint32_t count = fg_registry_count(dispatch->registry);
    for (uint32_t i = 0; i < count; i++) {
        const fg_reg_worker *w = fg_registry_at(dispatch->registry, i);
        bool both = w->roles == (FG_ROLE_PREFILL | FG_ROLE_DECODE);
        uint32_t can = FG_PLACE_CAN_LINK | (both ? FG_PLACE_CAN_WHOLE : 0);
        dispatch->snapshot[i] = (fg_place_worker){ .roles = w->draining ? 0 : w->roles,
                                                   .can = can,
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

fg_place_verdict fg_dispatch_place(const fg_dispatch *dispatch, uint32_t prompt_tokens,
                                   uint32_t total_tokens, fg_place_choice *choice_out)
{
    fg_place_request request = { .prompt_tokens = prompt_tokens, .total_tokens = total_tokens };
    fg_place_options options = fg_place_defaults();
    options.policy = FG_PLACE_LEAST_LOADED;
    options.split = FG_PLACE_ALWAYS;
    uint32_t count = take_snapshot(dispatch);
    return fg_place_pick(&options, dispatch->snapshot, count, &request, choice_out);
}

static void book(fg_job *job, fg_reg_worker *prefill, fg_reg_worker *decode)
{
    job->prefill = prefill;
    job->decode = decode;
    prefill->prefills++;
    prefill->placed++;
    decode->placed += decode != prefill;
    prefill->prefill_tokens += job->input.token_count;
    job->need_blocks = fg_kv_blocks_for(job->input.token_count, decode->block_size);
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

void fg_dispatch_make_local(fg_job *job)
{
    fg_dispatch_release_prefill(job);
    job->prefill = job->decode;
    job->prefill->prefills++;
    job->prefill->prefill_tokens += job->input.token_count;
    memcpy(job->record.prefill, job->record.decode, sizeof job->record.prefill);
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
        if (fg_dispatch_place(dispatch, job->input.token_count, total, &choice) != FG_PLACE_OK) {
            return; /* nobody overtakes the first; the queue's deadline bounds the wait */
        }
        fg_dispatch_dequeue(dispatch, job);
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
    fg_dispatch_set_state(dispatch, job, FG_LIFE_QUEUED);
    job->attempt++; /* each placement has its own number: late answers to this one are told apart */
    fg_dispatch_enqueue(dispatch, job);
    if (fg_dispatch_now(dispatch) >= job->deadline_ns) {
        fg_dispatch_end(dispatch, job, FG_FINISH_ERROR, FG_TIMEOUT, "no worker had room in time");
    }
}
