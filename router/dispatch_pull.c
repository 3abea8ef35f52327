/* Before a prompt is computed: blocks of its prefix that another worker has go to its prefill worker, over the link, as a
 * hand-over of their own. The worker lets the prompt wait for them (fg_prefix_expect); whatever goes wrong, it computes them. */
#include "router/dispatch_internal.h"

/* Longer than predicted by that, and the prompt is computed instead. */
#define GRACE_NS (1000ull * 1000 * 1000)
enum { SLOWER = 8 };

static fg_wire_params params_of(const fg_job *job)
{
    fg_wire_params params = { .top_p = 1, .max_tokens = 1, .pull = true };
    params.salt_low = job->input.params.salt_low;
    params.salt_high = job->input.params.salt_high;
    params.priority = job->input.params.priority;
    return params;
}

static uint32_t token_count(const fg_job *job)
{
    return job->pull.blocks * job->pull.to->block_size;
}

void fg_dispatch_plan_pull(fg_dispatch *dispatch, fg_job *job, const fg_place_choice *choice)
{
    if (choice->pull_blocks > 0) {
        job->pull = (fg_pull){ .from = fg_registry_at(dispatch->registry, choice->pull_from),
                               .blocks = choice->pull_blocks,
                               .predicted_ns = choice->pull_ns };
    }
}

void fg_dispatch_begin_pull(fg_dispatch *dispatch, fg_job *job)
{
    fg_pull *pull = &job->pull;
    if (pull->from == NULL) {
        return;
    }
    pull->to = job->prefill;
    pull->attempt = job->attempt | FG_PULL_ATTEMPT;
    pull->until_ns = fg_dispatch_now(dispatch) + GRACE_NS + SLOWER * pull->predicted_ns;
    fg_msg msg = { .kind = FG_MSG_RESERVE, .request = job->id, .attempt = pull->attempt };
    msg.reserve.writer = (fg_wire_peer){ .name = pull->from->name, .epoch = pull->from->epoch };
    msg.reserve.tokens = job->input.tokens;
    msg.reserve.token_count = token_count(job);
    msg.reserve.sampling = params_of(job);
    if (fg_dispatch_send(dispatch, pull->to, &msg) != FG_OK) {
        *pull = (fg_pull){ .from = NULL }; /* nobody knows of it */
        return;
    }
    dispatch->stats.pulls++;
}

static void cancel(fg_dispatch *dispatch, fg_reg_worker *worker, uint64_t request, uint32_t attempt)
{
    if (worker != NULL) {
        fg_msg msg = { .kind = FG_MSG_CANCEL, .request = request, .attempt = attempt };
        fg_dispatch_send(dispatch, worker, &msg);
    }
}

void fg_dispatch_end_pull(fg_dispatch *dispatch, fg_job *job)
{
    fg_pull pull = job->pull;
    job->pull = (fg_pull){ .from = NULL };
    if (pull.attempt == 0) {
        return; /* nobody was asked */
    }
    cancel(dispatch, pull.to, job->id, pull.attempt);
    cancel(dispatch, pull.from, job->id, pull.attempt);
}

void fg_dispatch_lose_pulls(fg_dispatch *dispatch, const fg_reg_worker *worker)
{
    for (fg_job *job = dispatch->jobs; job != NULL; job = job->next) {
        if (job->pull.from == worker || job->pull.to == worker) {
            job->pull.from = job->pull.from == worker ? NULL : job->pull.from;
            job->pull.to = job->pull.to == worker ? NULL : job->pull.to;
            fg_dispatch_end_pull(dispatch, job);
        }
    }
}

static void on_ticket(fg_dispatch *dispatch, fg_job *job, const fg_msg *msg)
{
    fg_pull *pull = &job->pull;
    if (!msg->ticket.granted) {
        *pull = (fg_pull){ .from = NULL };
        return;
    }
    pull->missing = msg->ticket.block_count;
    fg_msg out = { .kind = FG_MSG_PREFILL, .request = job->id, .attempt = pull->attempt };
    out.prefill.tokens = job->input.tokens;
    out.prefill.token_count = token_count(job);
    out.prefill.sampling = params_of(job);
    out.prefill.has_ticket = true;
    out.prefill.target = (fg_wire_peer){ .name = pull->to->name, .epoch = pull->to->epoch };
    out.prefill.ticket = msg->ticket.ticket;
    out.prefill.first_block = msg->ticket.first_block;
    out.prefill.blocks = msg->ticket.blocks;
    out.prefill.block_count = msg->ticket.block_count;
    if (fg_dispatch_send(dispatch, pull->from, &out) != FG_OK) {
        pull->from = NULL;
        fg_dispatch_end_pull(dispatch, job);
    }
}

static void on_done(fg_dispatch *dispatch, fg_job *job, const fg_reg_worker *worker,
                    const fg_msg *msg)
{
    fg_pull *pull = &job->pull;
    bool receiver = worker == pull->to;
    *(receiver ? &pull->to : &pull->from) = NULL;
    if (msg->done.finish != FG_FINISH_HANDED_OVER) {
        fg_dispatch_end_pull(dispatch, job);
    } else if (receiver) {
        job->record.pulled_blocks = pull->missing;
        dispatch->stats.pulled_blocks += pull->missing;
        *pull = (fg_pull){ .from = NULL }; /* the sender ends it by itself */
    }
}

void fg_dispatch_on_pull(fg_dispatch *dispatch, fg_reg_worker *worker, const fg_msg *msg)
{
    fg_job *job = fg_map_get(dispatch->by_id, msg->request);
    bool known = job != NULL && job->pull.attempt == msg->attempt &&
                 (job->pull.from == worker || job->pull.to == worker);
    if (msg->kind == FG_MSG_TICKET && known && job->pull.to == worker && job->pull.from != NULL) {
        on_ticket(dispatch, job, msg);
    } else if (msg->kind == FG_MSG_TICKET && msg->ticket.granted) {
        cancel(dispatch, worker, msg->request, msg->attempt); /* nobody will use these blocks */
    } else if (msg->kind == FG_MSG_DONE && known) {
        on_done(dispatch, job, worker, msg);
    }
    dispatch->stats.stale_dropped += !known && msg->kind == FG_MSG_TICKET;
}
