#include "router/dispatch_internal.h"

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

/* ---- taking from it ---- */

void fg_dispatch_pump(fg_dispatch *dispatch)
{
    while (dispatch->queue != NULL) {
        fg_job *job = dispatch->queue;
        fg_place_choice choice;
        if (fg_dispatch_choose(dispatch, job, &choice) != FG_PLACE_OK) {
            return; /* nobody overtakes the first; the queue's deadline bounds the wait */
        }
        fg_dispatch_dequeue(dispatch, job);
        if (!fg_dispatch_send_off(dispatch, job, &choice)) {
            return;
        }
    }
}

void fg_dispatch_requeue(fg_dispatch *dispatch, fg_job *job)
{
    fg_dispatch_release_prefill(dispatch, job);
    fg_dispatch_release_decode(job);
    fg_dispatch_set_state(dispatch, job, FG_LIFE_QUEUED);
    job->attempt++; /* each placement has its own number: late answers to this one are told apart */
    fg_dispatch_enqueue(dispatch, job);
    if (fg_dispatch_now(dispatch) >= job->deadline_ns) {
        fg_dispatch_end(dispatch, job, FG_FINISH_ERROR, FG_TIMEOUT, "no worker had room in time");
    }
}
