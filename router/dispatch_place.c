/* Where a request goes, what is booked there for it, and its first message. */
#include "router/dispatch_internal.h"

#include <string.h>

#include "common/kv/layout.h"

enum { BOTH = FG_ROLE_PREFILL | FG_ROLE_DECODE, CIRCLE_TRIES = 8 };

/* ---- choosing ---- */

/* What the prompts placed there take, and what nobody can use; a report cannot push it beyond what there
 * is. */
static uint32_t blocks_used(const fg_reg_worker *worker)
{
    uint64_t used = worker->decode_blocks + worker->load.quarantined;
    return used < worker->block_count ? (uint32_t)used : worker->block_count;
}

/* Predicted computing of the prompts that are ahead there. The first of them is under way: what it has
 * had already is taken off, but no more than an even share. */
static double queue_ns(const fg_reg_worker *worker, uint64_t now)
{
    if (worker->ahead == 0) {
        return 0;
    }
    double share = worker->ahead_ns / worker->ahead;
    double passed = (double)(now - worker->ahead_since_ns);
    return worker->ahead_ns - (passed < share ? passed : share);
}

static fg_place_worker view(const fg_reg_worker *w, uint64_t now)
{
    uint32_t can = (w->able == BOTH ? FG_PLACE_CAN_WHOLE : 0u) |
                   (w->link_record_bytes > 0 ? FG_PLACE_CAN_LINK : 0u);
    return (fg_place_worker){ .roles = w->draining || w->stalled ? 0 : w->roles,
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
                              .full = w->full,
                              .speed = &w->pace,
                              .queue_ns = queue_ns(w, now),
                              .kv_tokens = w->context_tokens,
                              .places = &w->places,
                              .prompt_share = fg_dispatch_prompt_share(w, now) };
}

static uint32_t take_snapshot(fg_dispatch *dispatch)
{
    uint64_t now = fg_dispatch_now(dispatch);
    uint32_t count = fg_registry_count(dispatch->registry);
    for (uint32_t i = 0; i < count; i++) {
        const fg_reg_worker *w = fg_registry_at(dispatch->registry, i);
        dispatch->snapshot[i] = view(w, now);
        dispatch->index_of[w->peer] = i;
    }
    return count;
}

uint32_t fg_dispatch_expected_answer(const fg_dispatch *dispatch, uint32_t max_tokens)
{
    double mean = dispatch->mean_answer;
    return mean > 0 && mean < max_tokens ? (uint32_t)mean + 1 : max_tokens;
}

uint32_t fg_dispatch_sure_answer(const fg_dispatch *dispatch, const fg_wire_params *params)
{
    return params->ignore_eos ? params->max_tokens
                              : fg_dispatch_expected_answer(dispatch, params->max_tokens);
}

/* Whether reservations of `from` wait, over whatever many others, for the prefill of `to`. */
static bool waits_for(const fg_dispatch *dispatch, uint32_t from, uint32_t to)
{
    bool seen[FG_LIMIT_WORKERS] = { false };
    uint32_t line[FG_LIMIT_WORKERS], count = 0;
    line[count++] = from;
    seen[from] = true;
    for (uint32_t next = 0; next < count; next++) {
        if (line[next] == to) {
            return true;
        }
        for (uint32_t i = 0; i < fg_registry_count(dispatch->registry); i++) {
            uint32_t peer = fg_registry_at(dispatch->registry, i)->peer;
            if (dispatch->waits[line[next]][peer] > 0 && !seen[peer]) {
                seen[peer] = true;
                line[count++] = peer;
            }
        }
    }
    return false;
}

/* A reservation holds blocks of D until P has computed the prompt, and P may need blocks for that. If, over
 * live splits, P's own reservations wait for D, all of them could wait for ever: such a pair is not made. */
static bool closes_circle(const fg_dispatch *dispatch, const fg_place_choice *choice)
{
    const fg_reg_worker *prefill = fg_registry_at(dispatch->registry, choice->prefill);
    const fg_reg_worker *decode = fg_registry_at(dispatch->registry, choice->decode);
    return prefill != decode && prefill->reservations > 0 &&
           waits_for(dispatch, prefill->peer, decode->peer);
}

/* The best place from which no circle of waits can come. */
static fg_place_verdict pick(fg_dispatch *dispatch, uint32_t count, const fg_place_request *request,
                             fg_place_choice *choice_out)
{
    for (uint32_t tries = 0;; tries++) {
        fg_place_verdict verdict =
            fg_place_pick(&dispatch->options.place, dispatch->snapshot, count, request, choice_out);
        if (verdict != FG_PLACE_OK) {
            return tries == 0 ? verdict : FG_PLACE_WAIT;
        }
        if (!closes_circle(dispatch, choice_out)) {
            return FG_PLACE_OK;
        }
        if (tries == CIRCLE_TRIES) {
            return FG_PLACE_WAIT;
        }
        dispatch->stats.circles_avoided++;
        dispatch->snapshot[choice_out->prefill].can &= ~(uint32_t)FG_PLACE_CAN_LINK;
    }
}

fg_place_verdict fg_dispatch_choose(fg_dispatch *dispatch, fg_job *job, fg_place_choice *choice_out)
{
    /* The clock itself: within a call the dispatcher's own time stands still. */
    const fg_clock *clock = &dispatch->options.clock;
    uint64_t began = fg_clock_now_ns(clock);
    fg_dispatch_name_blocks(dispatch, job);
    uint64_t named = fg_clock_now_ns(clock);
    uint32_t count = take_snapshot(dispatch);
    uint32_t most = job->input.params.max_tokens;
    fg_place_request request = { .prompt_tokens = job->input.token_count,
                                 .total_tokens = job->input.token_count + most,
                                 .answer_tokens = fg_dispatch_expected_answer(dispatch, most),
                                 .hits = fg_dispatch_hits(dispatch, job, count),
                                 .heat = fg_dispatch_heat(dispatch, job),
                                 .waiting = dispatch->stats.queued,
                                 .turn = dispatch->stats.placed,
                                 .dice = fg_rng_next(&dispatch->dice) };
    dispatch->asked = request;
    uint64_t looked = fg_clock_now_ns(clock);
    fg_place_verdict verdict = pick(dispatch, count, &request, choice_out);
    if (verdict == FG_PLACE_OK) {
        fg_place_pull(&dispatch->options.place, dispatch->snapshot, count, &request, choice_out);
    }
    dispatch->stats.decisions++;
    dispatch->stats.hash_ns += named - began;
    dispatch->stats.lookup_ns += looked - named;
    dispatch->stats.score_ns += fg_clock_now_ns(clock) - looked;
    return verdict;
}

bool fg_dispatch_foretell(fg_dispatch *dispatch, uint32_t ahead, fg_place_choice *choice_out)
{
    return fg_place_foretell(&dispatch->options.place, dispatch->snapshot,
                             fg_registry_count(dispatch->registry), &dispatch->asked, ahead,
                             choice_out);
}

uint64_t fg_dispatch_capacity(fg_dispatch *dispatch, const fg_dispatch_job *job)
{
    fg_place_request request = { .prompt_tokens = job->token_count,
                                 .total_tokens = job->token_count + job->params.max_tokens };
    uint32_t count = take_snapshot(dispatch);
    return fg_place_capacity(&dispatch->options.place, dispatch->snapshot, count, &request);
}

/* ---- booking ---- */

/* Until the prompt is computed or given up, decode's reservation waits for prefill. */
static void book_wait(fg_dispatch *dispatch, fg_job *job)
{
    if (job->prefill != job->decode) {
        job->waits = true;
        job->waits_by = job->decode->peer;
        job->waits_for = job->prefill->peer;
        job->decode->reservations++;
        dispatch->waits[job->waits_by][job->waits_for]++;
    }
}

static void release_wait(fg_dispatch *dispatch, fg_job *job)
{
    if (job->waits) {
        job->waits = false;
        dispatch->waits[job->waits_by][job->waits_for]--;
        job->decode->reservations--;
    }
}

static void book_ahead(fg_dispatch *dispatch, fg_job *job, uint32_t hit_blocks)
{
    fg_reg_worker *worker = job->prefill;
    uint32_t cached = hit_blocks * worker->block_size;
    uint32_t tokens = job->input.token_count - (cached < job->input.token_count ? cached : 0);
    job->before_tokens = worker->prefill_tokens;
    job->ahead_tokens = tokens;
    job->ahead_ns = fg_speed_prefill_ns(&worker->pace, job->input.token_count - tokens, tokens);
    if (worker->ahead++ == 0) {
        worker->ahead_since_ns = fg_dispatch_now(dispatch);
    }
    worker->prefill_tokens += tokens;
    worker->ahead_ns += job->ahead_ns;
}

void fg_dispatch_release_ahead(fg_dispatch *dispatch, fg_job *job)
{
    fg_reg_worker *worker = job->prefill;
    release_wait(dispatch, job);
    if (worker == NULL || job->ahead_tokens == 0) {
        return;
    }
    worker->prefill_tokens -= job->ahead_tokens;
    worker->ahead--;
    worker->ahead_ns = worker->ahead == 0 ? 0 : worker->ahead_ns - job->ahead_ns;
    worker->ahead_since_ns = fg_dispatch_now(dispatch);
    job->ahead_tokens = 0;
}

static void book(fg_dispatch *dispatch, fg_job *job, const fg_place_choice *choice)
{
    fg_reg_worker *prefill = fg_registry_at(dispatch->registry, choice->prefill);
    fg_reg_worker *decode = fg_registry_at(dispatch->registry, choice->decode);
    job->prefill = prefill;
    job->decode = decode;
    prefill->prefills++;
    prefill->placed++;
    decode->placed += decode != prefill;
    book_ahead(dispatch, job, choice->hit_prefill);
    job->need_blocks = fg_kv_blocks_for(job->input.token_count, decode->block_size);
    job->context_tokens = job->input.token_count;
    job->left_tokens = fg_dispatch_sure_answer(dispatch, &job->input.params);
    fg_places_take(&decode->places, job->left_tokens);
    decode->decodes++;
    decode->decode_blocks += job->need_blocks;
    decode->context_tokens += job->context_tokens;
    book_wait(dispatch, job);
}

void fg_dispatch_release_prefill(fg_dispatch *dispatch, fg_job *job)
{
    if (job->prefill != NULL) {
        fg_dispatch_release_ahead(dispatch, job);
        job->prefill->prefills--;
        job->prefill = NULL;
    }
}

void fg_dispatch_release_decode(fg_dispatch *dispatch, fg_job *job)
{
    if (job->decode != NULL) {
        release_wait(dispatch, job);
        fg_places_give(&job->decode->places, job->left_tokens);
        job->decode->decodes--;
        job->decode->decode_blocks -= job->need_blocks;
        job->decode->context_tokens -= job->context_tokens;
        job->decode = NULL;
    }
}

void fg_dispatch_make_local(fg_dispatch *dispatch, fg_job *job)
{
    fg_dispatch_end_pull(dispatch, job);
    fg_dispatch_release_prefill(dispatch, job);
    job->prefill = job->decode;
    job->prefill->prefills++;
    book_ahead(dispatch, job, 0);
    memcpy(job->record.prefill, job->record.decode, sizeof job->record.prefill);
}

/* ---- sending off ---- */

/* What a client has of the answer already: whoever says it again is the quicker for knowing it. Without memory for it
 * nobody is told. Until the next call. */
static const uint32_t *said(fg_dispatch *dispatch, const fg_job *job, uint32_t *count_out)
{
    uint32_t count = fg_journal_count(job->journal);
    fg_buf_clear(&dispatch->said);
    uint32_t *ids = count > 0 ? (void *)fg_buf_reserve(&dispatch->said, count * sizeof *ids) : NULL;
    *count_out = ids != NULL ? count : 0;
    if (ids != NULL) {
        fg_journal_ids(job->journal, ids);
    }
    return ids;
}

/* RESERVE to the decode worker, or PREFILL where one does both. */
static fg_status launch(fg_dispatch *dispatch, fg_job *job)
{
    fg_msg msg = { .request = job->id, .attempt = job->attempt };
    if (job->prefill == job->decode) {
        msg.kind = FG_MSG_PREFILL;
        msg.prefill.tokens = job->input.tokens;
        msg.prefill.token_count = job->input.token_count;
        msg.prefill.said = said(dispatch, job, &msg.prefill.said_count);
        msg.prefill.sampling = fg_dispatch_params(job);
        return fg_dispatch_send(dispatch, job->prefill, &msg);
    }
    msg.kind = FG_MSG_RESERVE;
    msg.reserve.writer.name = job->prefill->name;
    msg.reserve.writer.epoch = job->prefill->epoch;
    msg.reserve.tokens = job->input.tokens;
    msg.reserve.token_count = job->input.token_count;
    msg.reserve.said = said(dispatch, job, &msg.reserve.said_count);
    msg.reserve.sampling = fg_dispatch_params(job);
    return fg_dispatch_send(dispatch, job->decode, &msg);
}

bool fg_dispatch_send_off(fg_dispatch *dispatch, fg_job *job, const fg_place_choice *choice)
{
    book(dispatch, job, choice);
    fg_reg_worker *prefill = job->prefill, *decode = job->decode;
    fg_job_record *record = &job->record;
    memcpy(record->prefill, prefill->name, sizeof record->prefill);
    memcpy(record->decode, decode->name, sizeof record->decode);
    record->placed_ns = fg_dispatch_now(dispatch);
    record->predicted_ttft_ns = choice->ttft_ns;
    record->why = choice->why;
    record->correction = prefill->pace.correction;
    record->split = prefill != decode;
    record->predicted_hit_blocks = choice->hit_prefill;
    dispatch->stats.placed++;
    dispatch->stats.placed_split += prefill != decode;
    job->held_since_ns = 0;
    dispatch->stats.prefix_waits +=
        job->elsewhere_since_ns != 0 && job->elsewhere_since_ns < record->placed_ns;
    job->elsewhere_since_ns = 0;
    fg_dispatch_set_state(dispatch, job, prefill == decode ? FG_LIFE_PREFILLING : FG_LIFE_RESERVED);
    fg_dispatch_plan_pull(dispatch, job, choice);
    if (prefill == decode) {
        fg_dispatch_begin_pull(dispatch, job);
    }
    if (launch(dispatch, job) != FG_OK) {
        decode->full = true; /* its queue of frames is; its next report clears this */
        return false;
    }
    fg_dispatch_foresee(dispatch, job);
    return true;
}
