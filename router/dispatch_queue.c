#include "router/dispatch_internal.h"

#include <stddef.h>

#include "common/kv/layout.h"

enum {
    PASS_MAX = 16,  /* how often one that does not fit is passed by others that do */
    HELD_ASIDE = 8, /* that wait for their prefill while others are looked at */
    /* A prefix is waited for that is a fourth of what would be computed without it: so many may pass, and it takes
     * no longer than computing so many times. */
    SAVED_SHARE = 4,
    PREFIX_PASS_MAX = 48,
    PREFIX_PATIENCE = 4,
};
/* RESERVE, TICKET and PREFILL take a millisecond; a prediction may be off by a step or two. */
#define LEAD_NS     (200ull * 1000 * 1000)
#define HELD_MAX_NS (2000ull * 1000 * 1000)

/* ---- the queue ---- */

fg_status fg_dispatch_create_queue(fg_dispatch *dispatch, fg_error *err)
{
    const fg_admit_limits *limits = &dispatch->options.limits;
    fg_queue_options options = { .requests_max = limits->queued_max,
                                 .tokens_max = limits->queued_tokens_max,
                                 .live_max = limits->live_max,
                                 .tenant_requests_max = limits->tenant_queued_max,
                                 .tenant_tokens_max = limits->tenant_queued_tokens_max,
                                 .tenant_running_max = dispatch->options.tenant_running_max,
                                 .weight_of = dispatch->options.weight_of,
                                 .ctx = dispatch->options.weight_ctx,
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

void fg_dispatch_enqueue(fg_dispatch *dispatch, fg_job *job)
{
    if (job->item.place == FG_QUEUE_RUNNING) {
        fg_queue_put_back(dispatch->queue, &job->item);
    } else {
        job->item = (fg_queue_item){ .id = job->id,
                                     .tenant = job->input.tenant,
                                     .queued_ns = job->record.created_ns,
                                     .priority = job->input.params.priority,
                                     .give_up_ns = job->give_up_ns,
                                     .tokens = job->input.token_count,
                                     .cost = job->cost };
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

/* What a tenant is charged with at first: the end settles it. */
static uint32_t expected_cost(const fg_dispatch *dispatch, const fg_job *job,
                              const fg_place_choice *choice)
{
    uint32_t prompt = job->input.token_count, cached = 0;
    if (choice != NULL) {
        uint32_t block_size = fg_registry_at(dispatch->registry, choice->prefill)->block_size;
        cached = choice->hit_prefill * block_size;
    }
    return prompt - (cached < prompt ? cached : prompt) +
           fg_dispatch_expected_answer(dispatch, job->input.params.max_tokens);
}

fg_admit_load fg_dispatch_load(const fg_dispatch *dispatch)
{
    fg_queue_load all;
    fg_queue_load_get(dispatch->queue, &all);
    return (fg_admit_load){ .queued = all.requests,
                            .queued_tokens = all.tokens,
                            .live = dispatch->stats.live,
                            .ended_per_second = dispatch->ended_rate.per_second,
                            .prompt_tokens_per_second = dispatch->prompt_rate.per_second };
}

static bool is_promised(const fg_dispatch_job *input)
{
    return input->slo.ttft_ns > 0 || input->slo.itl_ns > 0 || input->deadline_ns > 0;
}

/* Of those who wait, as many as have the tokens that go first. */
static uint32_t requests_ahead(const fg_admit_load *load)
{
    return load->queued_tokens == 0 ? 0
                                    : (uint32_t)((double)load->queued * (double)load->tokens_ahead /
                                                 (double)load->queued_tokens);
}

/* Two workers make room for it at the same time, one does so one after the other. */
static void predict(const fg_place_choice *choice, fg_admit_request *request)
{
    const fg_place_why *why = &choice->why;
    bool whole = choice->kind == FG_PLACE_WHOLE;
    double start = whole ? why->queue + why->wait : why->queue > why->wait ? why->queue : why->wait;
    request->start_ns = fg_place_whole_ns(start);
    request->prefill_ns = fg_place_whole_ns(why->prefill + why->restore + why->exposed);
    request->itl_ns = choice->itl_ns;
}

fg_status fg_dispatch_admit(fg_dispatch *dispatch, fg_job *job, const fg_place_choice *choice,
                            fg_error *err)
{
    const fg_dispatch_job *input = &job->input;
    fg_queue_load own;
    job->cost = expected_cost(dispatch, job, choice);
    fg_queue_tenant_get(dispatch->queue, input->tenant, &own);
    fg_admit_load load = fg_dispatch_load(dispatch);
    load.tokens_ahead =
        fg_queue_tokens_ahead(dispatch->queue, input->tenant, input->params.priority, job->cost);
    load.tenant_queued = own.requests;
    load.tenant_queued_tokens = own.tokens;
    load.tenant_share = fg_queue_share(dispatch->queue, input->tenant);
    fg_admit_request request = { .prompt_tokens = input->token_count,
                                 .output_tokens = fg_dispatch_sure_answer(dispatch, &input->params),
                                 .start_ns = FG_ADMIT_UNKNOWN,
                                 .prefill_ns = FG_ADMIT_UNKNOWN,
                                 .itl_ns = FG_ADMIT_UNKNOWN,
                                 .slo = input->slo,
                                 .deadline_ns = input->deadline_ns };
    fg_place_choice later;
    if (choice == NULL && is_promised(input) &&
        fg_dispatch_foretell(dispatch, requests_ahead(&load), &later)) {
        choice = &later;
        if (later.why.wait > later.why.queue) {
            load.tokens_ahead = 0; /* they are in the wait for a place */
        }
    }
    if (choice != NULL) {
        predict(choice, &request);
    }
    fg_admit_verdict verdict;
    fg_admit_judge(&request, &load, &dispatch->options.limits, &verdict);
    if (verdict.reason == FG_ADMIT_OK) {
        job->give_up_ns = fg_admit_give_up_ns(&request, job->record.created_ns);
        return FG_OK;
    }
    dispatch->stats.refused[verdict.reason]++;
    dispatch->refused_s = verdict.retry_after_s;
    return fg_fail(err, FG_AGAIN, "%s (%u requests wait)", fg_admit_reason_text(verdict.reason),
                   load.queued);
}

uint64_t fg_dispatch_tokens_max(const fg_dispatch *dispatch)
{
    const fg_admit_limits *limits = &dispatch->options.limits;
    uint64_t own = limits->tenant_queued_tokens_max, all = limits->queued_tokens_max;
    return own > 0 && own < all ? own : all;
}

/* Each is in the line first, if only for a moment. */
uint64_t fg_dispatch_at_once(fg_dispatch *dispatch, const fg_dispatch_job *job)
{
    if (!fg_dispatch_all_joined(dispatch)) {
        return UINT64_MAX;
    }
    const fg_admit_limits *limits = &dispatch->options.limits;
    uint32_t own = limits->tenant_queued_max, running = dispatch->options.tenant_running_max;
    uint64_t line = own > 0 && own < limits->queued_max ? own : limits->queued_max;
    uint64_t by_tokens = fg_dispatch_tokens_max(dispatch) / job->token_count;
    uint64_t placed = fg_dispatch_capacity(dispatch, job);
    line = by_tokens < line ? by_tokens : line;
    placed = running > 0 && running < placed ? running : placed;
    return line == 0 ? 0 : line + placed < limits->live_max ? line + placed : limits->live_max;
}

void fg_dispatch_end_late(fg_dispatch *dispatch)
{
    fg_queue_item *item;
    while ((item = fg_queue_hopeless(dispatch->queue, fg_dispatch_now(dispatch))) != NULL) {
        dispatch->stats.given_up++;
        fg_dispatch_end(dispatch, job_of(item), FG_FINISH_ERROR, FG_AGAIN,
                        "it waited too long to be answered in its time");
    }
}

void fg_dispatch_check_queue(const fg_dispatch *dispatch)
{
    fg_queue_load load;
    fg_queue_check(dispatch->queue);
    fg_queue_load_get(dispatch->queue, &load);
    FG_ASSERT(load.requests == dispatch->stats.queued);
    FG_ASSERT(load.requests + load.running == dispatch->stats.live);
}

/* ---- taking from it ---- */

/* A quarter of its blocks and places is free behind this one: a reservation that idles there costs nobody
 * anything, and to hold requests back would only hide the line that they wait in from those who come after
 * them, and cost time when the prediction of that line was too long. */
static bool is_ample(const fg_dispatch *dispatch, const fg_job *job, const fg_place_choice *choice)
{
    const fg_reg_worker *decode = fg_registry_at(dispatch->registry, choice->decode);
    uint64_t blocks = decode->decode_blocks + decode->load.quarantined +
                      fg_kv_blocks_for(job->input.token_count, decode->block_size);
    return (decode->decodes + 1ull) * 4 <= decode->max_seqs * 3ull &&
           blocks * 4 <= decode->block_count * 3ull;
}

/* A pair is asked when its prompt is about to begin, so that decode's blocks do not idle until then. */
static bool is_early(fg_dispatch *dispatch, fg_job *job, const fg_place_choice *choice)
{
    uint64_t now = fg_dispatch_now(dispatch), again;
    fg_admit_times times = { .unsplit = choice->kind == FG_PLACE_WHOLE,
                             .ample = is_ample(dispatch, job, choice),
                             .prefill_free_ns = fg_place_whole_ns(choice->why.queue),
                             .lead_ns = LEAD_NS,
                             .held_ns = job->held_since_ns == 0 ? 0 : now - job->held_since_ns,
                             .held_max_ns = HELD_MAX_NS };
    if (fg_admit_hold(&times, &again) == FG_ADMIT_PLACE) {
        return false;
    }
    dispatch->stats.held += job->held_since_ns == 0;
    job->held_since_ns = job->held_since_ns == 0 ? now : job->held_since_ns;
    return true;
}

/* Waiting would put what was promised at risk: predictions may be off by half. */
static bool is_pressed(const fg_job *job, const fg_place_choice *choice, uint64_t now)
{
    double start = (double)now + 2 * (choice->why.queue + choice->why.wait);
    return job->give_up_ns != 0 && start >= (double)job->give_up_ns;
}

/* Whoever has its prefix has no room, and where there is room it would compute that again: better it goes
 * later, and one of those behind it whose prefix is there now. */
static bool is_elsewhere(fg_dispatch *dispatch, fg_job *job, const fg_place_choice *choice)
{
    uint64_t now = fg_dispatch_now(dispatch);
    if (choice->hit_full <= choice->hit_prefill) {
        return false;
    }
    uint32_t size = fg_registry_at(dispatch->registry, choice->prefill)->block_size;
    uint64_t saved = (uint64_t)(choice->hit_full - choice->hit_prefill) * size;
    uint64_t computed = job->input.token_count - (uint64_t)choice->hit_prefill * size;
    if (saved * SAVED_SHARE < computed || job->item.passed >= PREFIX_PASS_MAX ||
        is_pressed(job, choice, now)) {
        return false;
    }
    job->elsewhere_since_ns = job->elsewhere_since_ns == 0 ? now : job->elsewhere_since_ns;
    return (double)(now - job->elsewhere_since_ns) < PREFIX_PATIENCE * choice->why.prefill;
}

/* What is ahead there takes less time than its own prompt: if nobody came, the worker would soon have nothing to
 * compute. */
static bool would_idle(const fg_place_choice *choice)
{
    return choice->why.queue <= choice->why.prefill;
}

/* False: its worker takes no frames, and it is back in the queue. */
static bool start_at(fg_dispatch *dispatch, fg_job *job, const fg_place_choice *choice)
{
    fg_queue_take(dispatch->queue, &job->item);
    count_queued(dispatch);
    if (fg_dispatch_send_off(dispatch, job, choice)) {
        return true;
    }
    fg_queue_rewind(dispatch->queue);
    fg_dispatch_requeue(dispatch, job);
    return false;
}

void fg_dispatch_first_try(fg_dispatch *dispatch, fg_job *job, const fg_place_choice *choice)
{
    if (fg_dispatch_head(dispatch) == job && !is_elsewhere(dispatch, job, choice) &&
        !is_early(dispatch, job, choice)) {
        start_at(dispatch, job, choice);
    } else {
        fg_dispatch_pump(dispatch);
    }
}

/* Through the queue from its head on. `patient`: those whose prefix is elsewhere are passed even if a worker would
 * idle; *passed_out says whether any was. False: a worker takes no frames. */
static bool walk(fg_dispatch *dispatch, bool patient, bool *passed_out)
{
    fg_job *job;
    while ((job = fg_dispatch_head(dispatch)) != NULL) {
        if (fg_dispatch_now(dispatch) < job->pause_until_ns) {
            if (!fg_queue_hold(dispatch->queue, &job->item, FG_QUEUE_AHEAD_MAX)) {
                break;
            }
            continue;
        }
        fg_place_choice choice;
        fg_place_verdict verdict = fg_dispatch_choose(dispatch, job, &choice);
        if (verdict == FG_PLACE_OK && is_elsewhere(dispatch, job, &choice) &&
            (patient || !would_idle(&choice))) {
            *passed_out = *passed_out || would_idle(&choice);
            if (!fg_queue_hold(dispatch->queue, &job->item, FG_QUEUE_AHEAD_MAX)) {
                break;
            }
            continue;
        }
        if (verdict == FG_PLACE_OK && is_early(dispatch, job, &choice)) {
            /* Those behind it may go to workers that have nothing to do. */
            if (!fg_queue_hold(dispatch->queue, &job->item, HELD_ASIDE)) {
                break;
            }
            continue;
        }
        if (verdict == FG_PLACE_OK && !start_at(dispatch, job, &choice)) {
            return false;
        }
        /* A smaller one may have room; the bound on passes, and the queue's deadline, bound the wait. */
        if (verdict != FG_PLACE_OK &&
            (verdict != FG_PLACE_WAIT || !fg_queue_skip(dispatch->queue, &job->item))) {
            break;
        }
    }
    fg_queue_rewind(dispatch->queue);
    return true;
}

void fg_dispatch_pump(fg_dispatch *dispatch)
{
    bool passed = false;
    if (walk(dispatch, true, &passed) && passed) {
        walk(dispatch, false, &passed); /* nobody behind them wants that place: it is theirs */
    }
}

void fg_dispatch_requeue(fg_dispatch *dispatch, fg_job *job)
{
    fg_dispatch_end_pull(dispatch, job);
    fg_dispatch_release_prefill(dispatch, job);
    fg_dispatch_release_decode(dispatch, job);
    fg_dispatch_set_state(dispatch, job, FG_LIFE_QUEUED);
    job->attempt++; /* each placement has its own number: late answers to this one are told apart */
    fg_dispatch_enqueue(dispatch, job);
    if (fg_dispatch_now(dispatch) >= job->deadline_ns) {
        fg_dispatch_end(dispatch, job, FG_FINISH_ERROR, FG_TIMEOUT, "no worker had room in time");
    }
}
