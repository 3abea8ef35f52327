#include "router/dispatch_internal.h"

#include <stddef.h>
#include <string.h>

#include "common/kv/layout.h"

enum {
    PASS_MAX = 16, /* how often one that does not fit is passed by others that do */
    OUTPUT_EXPECTED_MAX = 256,
};

/* ---- the queue ---- */

fg_status fg_dispatch_create_queue(fg_dispatch *dispatch, fg_error *err)
{
    const fg_admit_limits *limits = &dispatch->options.limits;
    fg_queue_options options = { .requests_max = limits->queued_max,
                                 .tokens_max = limits->queued_tokens_max,
                                 .live_max = limits->live_max,
                                 .tenant_requests_max = limits->tenant_queued_max,
                                 .tenant_tokens_max = limits->tenant_queued_tokens_max,
                                 .ahead_max = dispatch->options.queue_ahead,
                                 .pass_max = PASS_MAX };
    return fg_queue_create(&options, &dispatch->queue, err);
}

static fg_job *job_of(fg_queue_item *item)
{
    return item != NULL ? (fg_job *)((char *)item - offsetof(fg_job, item)) : NULL;
}

bool fg_dispatch_waits(const fg_job *job)
{
    return job->item.place == FG_QUEUE_LINE || job->item.place == FG_QUEUE_ASIDE;
}

fg_job *fg_dispatch_head(fg_dispatch *dispatch)
{
    return job_of(fg_queue_peek(dispatch->queue, fg_dispatch_now(dispatch)));
}

static void count_queued(fg_dispatch *dispatch)
{
    fg_queue_load load;
    fg_queue_load_get(dispatch->queue, &load);
    dispatch->stats.queued = load.requests;
}

/* What it is expected to take: few answers are as long as they may be. The end settles it. */
static uint32_t expected_cost(const fg_dispatch_job *input)
{
    uint32_t output = input->params.max_tokens;
    return input->token_count + (output < OUTPUT_EXPECTED_MAX ? output : OUTPUT_EXPECTED_MAX);
}

void fg_dispatch_enqueue(fg_dispatch *dispatch, fg_job *job)
{
    if (job->item.place == FG_QUEUE_RUNNING) {
        fg_queue_put_back(dispatch->queue, &job->item);
    } else {
        job->item = (fg_queue_item){ .id = job->id,
                                     .tenant = job->input.tenant,
                                     .queued_ns = job->record.created_ns,
                                     .priority = job->input.params.priority,
                                     .tokens = job->input.token_count,
                                     .cost = expected_cost(&job->input) };
        fg_status status = fg_queue_push(dispatch->queue, &job->item);
        FG_ASSERT(status == FG_OK, "admit and queue have the same bounds");
    }
    count_queued(dispatch);
}

void fg_dispatch_dequeue(fg_dispatch *dispatch, fg_job *job)
{
    uint32_t output = fg_journal_count(job->journal);
    uint64_t served = output > 0 ? (uint64_t)job->computed_tokens + output : job->item.cost;
    fg_queue_remove(dispatch->queue, &job->item, served);
    count_queued(dispatch);
}

fg_status fg_dispatch_admit(fg_dispatch *dispatch, const fg_dispatch_job *input, fg_error *err)
{
    fg_queue_load all, own;
    fg_queue_load_get(dispatch->queue, &all);
    fg_queue_tenant_get(dispatch->queue, input->tenant, &own);
    fg_admit_load load = { .queued = all.requests,
                           .queued_tokens = all.tokens,
                           .live = dispatch->stats.live,
                           .ended_per_second = dispatch->ended_rate,
                           .prompt_tokens_per_second = dispatch->prompt_rate,
                           .tenant_queued = own.requests,
                           .tenant_queued_tokens = own.tokens,
                           .tenant_share = fg_queue_share(dispatch->queue, input->tenant) };
    fg_admit_request request = { .prompt_tokens = input->token_count,
                                 .output_tokens = input->params.max_tokens,
                                 .start_ns = FG_ADMIT_UNKNOWN,
                                 .prefill_ns = FG_ADMIT_UNKNOWN,
                                 .itl_ns = FG_ADMIT_UNKNOWN };
    fg_admit_verdict verdict;
    fg_admit_judge(&request, &load, &dispatch->options.limits, &verdict);
    if (verdict.reason == FG_ADMIT_OK) {
        return FG_OK;
    }
    dispatch->retry_after_s = verdict.retry_after_s;
    return fg_fail(err, FG_AGAIN, "%s (%u requests wait)", fg_admit_reason_text(verdict.reason),
                   load.queued);
}

void fg_dispatch_check_queue(const fg_dispatch *dispatch)
{
    fg_queue_load load;
    fg_queue_check(dispatch->queue);
    fg_queue_load_get(dispatch->queue, &load);
    FG_ASSERT(load.requests == dispatch->stats.queued);
    FG_ASSERT(load.requests + load.running == dispatch->stats.live);
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

fg_place_verdict fg_dispatch_place(const fg_dispatch *dispatch, uint32_t prompt_tokens,
                                   uint32_t total_tokens, fg_place_choice *choice_out)
{
    fg_place_request request = { .prompt_tokens = prompt_tokens, .total_tokens = total_tokens };
    uint32_t count = take_snapshot(dispatch);
    return fg_place_pick(dispatch->snapshot, count, &request, choice_out);
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

/* False: its worker takes no frames, and it is back in the queue. */
static bool start_at(fg_dispatch *dispatch, fg_job *job, const fg_place_choice *choice)
{
    fg_queue_take(dispatch->queue, &job->item);
    count_queued(dispatch);
    fg_reg_worker *prefill = fg_registry_at(dispatch->registry, choice->prefill);
    fg_reg_worker *decode = fg_registry_at(dispatch->registry, choice->decode);
    book(job, prefill, decode);
    memcpy(job->record.prefill, prefill->name, sizeof job->record.prefill);
    memcpy(job->record.decode, decode->name, sizeof job->record.decode);
    job->record.placed_ns = fg_dispatch_now(dispatch);
    fg_dispatch_set_state(dispatch, job, prefill == decode ? FG_LIFE_PREFILLING : FG_LIFE_RESERVED);
    if (launch(dispatch, job) == FG_OK) {
        return true;
    }
    decode->full = true; /* its queue of frames is; its next report clears this */
    fg_queue_rewind(dispatch->queue);
    fg_dispatch_requeue(dispatch, job);
    return false;
}

void fg_dispatch_pump(fg_dispatch *dispatch)
{
    fg_job *job;
    while ((job = fg_dispatch_head(dispatch)) != NULL) {
        fg_place_choice choice;
        uint32_t total = job->input.token_count + job->input.params.max_tokens;
        fg_place_verdict verdict =
            fg_dispatch_place(dispatch, job->input.token_count, total, &choice);
        if (verdict == FG_PLACE_OK && !start_at(dispatch, job, &choice)) {
            return;
        }
        /* A smaller one may have room; the bound on passes, and the queue's deadline, bound the wait. */
        if (verdict != FG_PLACE_OK &&
            (verdict != FG_PLACE_WAIT || !fg_queue_skip(dispatch->queue, &job->item))) {
            break;
        }
    }
    fg_queue_rewind(dispatch->queue);
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
