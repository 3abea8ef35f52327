/* Predicted time. Each worker is looked at once for what it would cost as the prefill side, as the decode
 * side, and for both; pairs are then formed from the few best prefill sides and every decode side. */
#include "router/placement_internal.h"

#include <math.h>

#include "common/base/limits.h"
#include "common/kv/layout.h"
#include "proto/wire.h"

enum {
    BEST_COUNT = 4, /* prefill sides of which pairs are formed */
    CHUNK = 512,    /* tokens; what a worker computes at once, give or take */
    ANSWER_GUESS = 128,
    ANSWER_CAP = 4096, /* longer expectations say no more */
    BOTH = FG_ROLE_PREFILL | FG_ROLE_DECODE,
    COMPUTES = FG_PLACE_AS_PREFILL | FG_PLACE_AS_WHOLE, /* the prompt */
};

/* Prompts will come to a worker that is meant for prompts only, however idle it is now. */
#define PROMPTS_SHARE 0.5
/* A worker that had no time for anything else may have some soon. */
#define PROMPTS_SHARE_MAX 0.9
/* While no worker's speed is proven, one that claims to be this many times faster than the mean is not
 * believed. */
#define CLAIM_MAX 4.0
/* What a session's last worker is worth, as a share of computing the whole prompt. */
#define SESSION_SHARE 0.1
/* Costs that differ by less than rounding are equal. */
#define TIE 1e-9

/* No NaN comes here: the library's functions, which mind it, are calls. */
static double larger(double a, double b)
{
    return a > b ? a : b;
}

static double smaller(double a, double b)
{
    return a < b ? a : b;
}

static const fg_speed *speed_of(const fg_place_worker *worker)
{
    static const fg_speed unknown = { .prefill = { 1e6, 1e6, 100 },
                                      .step = { 2e7, 2e6, 100 },
                                      .push = { 1e6, 1e5, 0 },
                                      .restore_ns_per_block = 1e5,
                                      .correction = 1 };
    return worker->speed != NULL ? worker->speed : &unknown;
}

/* How much of the prompt others have asked for before. */
static uint64_t shared_tokens(const fg_place_task *task)
{
    uint64_t most = 0;
    for (uint32_t i = 0; task->request->hits != NULL && i < task->count; i++) {
        uint64_t tokens =
            (uint64_t)task->request->hits[i].device_blocks * task->workers[i].block_size;
        most = task->workers[i].roles != 0 && tokens > most ? tokens : most;
    }
    return most < task->request->prompt_tokens ? most : task->request->prompt_tokens;
}

/* A claim attracts until it is disproved. So a worker whose prompts have not been seen yet is not
 * believed to be faster than the fastest that has been seen. */
static double believable_token_ns(const fg_place_task *task)
{
    double proven = INFINITY, claims = 0;
    uint32_t claim_count = 0;
    for (uint32_t i = 0; i < task->count; i++) {
        const fg_place_worker *w = &task->workers[i];
        if (w->roles == 0) {
            continue;
        }
        const fg_speed *speed = speed_of(w);
        if (fg_speed_is_proven(speed)) {
            proven = smaller(proven, speed->prefill[1]);
        } else {
            claims += speed->prefill[1];
            claim_count++;
        }
    }
    if (isfinite(proven)) {
        return proven;
    }
    return claim_count > 0 ? claims / claim_count / CLAIM_MAX : 0;
}

void fg_place_survey(fg_place_task *task)
{
    task->doubt_token_ns = believable_token_ns(task);
    task->shared_tokens = shared_tokens(task);
    task->prefill_count = 0;
    for (uint32_t i = 0; i < task->count; i++) {
        task->prefill_count += (task->workers[i].roles & FG_ROLE_PREFILL) != 0;
    }
}

/* ---- one worker ---- */

/* What is the same for all ways through one worker. */
typedef struct view {
    const fg_place_worker *worker;
    const fg_speed *speed;
    uint32_t blocks; /* of the prompt, here */
    uint32_t hit;    /* of these, on the device */
    uint32_t answer; /* tokens */
    double slow;     /* its prompts take so many times longer: rows that run beside, doubt */
    double queue, prefill, restore; /* ns */
    double step;                    /* ns, with this request in it */
} view;

static uint32_t answer_of(const fg_place_request *request)
{
    uint32_t most = request->total_tokens > request->prompt_tokens
                        ? request->total_tokens - request->prompt_tokens
                        : 1;
    uint32_t guess = request->answer_tokens > 0 ? request->answer_tokens : ANSWER_GUESS;
    guess = guess < ANSWER_CAP ? guess : ANSWER_CAP;
    return guess < most ? guess : most;
}

/* The last token of a prompt is always computed, cached or not. */
static uint32_t cached_tokens(const view *v, const fg_place_request *request, uint32_t blocks)
{
    uint64_t tokens = (uint64_t)blocks * v->worker->block_size;
    uint32_t most = request->prompt_tokens > 0 ? request->prompt_tokens - 1 : 0;
    return tokens < most ? (uint32_t)tokens : most;
}

/* The uncached tail: behind the device's blocks, or behind the host tier's as well when bringing those
 * back is quicker than computing them. */
static void set_prefill(const fg_place_request *request, const fg_place_hit *hit, view *v)
{
    uint32_t total = hit->tier_blocks < v->blocks ? hit->tier_blocks : v->blocks;
    uint32_t near = cached_tokens(v, request, v->hit);
    v->prefill = v->slow * fg_speed_prefill_ns(v->speed, near, request->prompt_tokens - near);
    v->restore = 0;
    if (total > v->hit) {
        uint32_t far = cached_tokens(v, request, total);
        double restore = (total - v->hit) * v->speed->restore_ns_per_block;
        double rest = v->slow * fg_speed_prefill_ns(v->speed, far, request->prompt_tokens - far);
        if (restore + rest < v->prefill) {
            v->prefill = rest;
            v->restore = restore;
        }
    }
}

static view look_at(const fg_place_task *task, uint32_t index)
{
    const fg_place_request *request = task->request;
    const fg_place_worker *w = &task->workers[index];
    const fg_place_hit none = { 0, 0 };
    const fg_place_hit *hit = request->hits != NULL ? &request->hits[index] : &none;
    view v = { .worker = w, .speed = speed_of(w), .answer = answer_of(request) };
    v.blocks = fg_kv_blocks_for(request->prompt_tokens, w->block_size);
    v.hit = hit->device_blocks < v.blocks ? hit->device_blocks : v.blocks;
    double token_ns = v.speed->prefill[1];
    v.slow = 1 + w->decodes * v.speed->step[1] / (CHUNK * token_ns);
    if (!fg_speed_is_proven(v.speed)) {
        v.slow *= larger(1, task->doubt_token_ns / token_ns);
    }
    v.slow *= v.speed->correction;
    v.queue = v.slow * (w->queue_ns > 0 ? w->queue_ns : token_ns * (double)w->prefill_tokens);
    set_prefill(request, hit, &v);
    v.step = fg_speed_step_ns(v.speed, w->decodes + 1, w->kv_tokens + request->prompt_tokens);
    return v;
}

static double session_gain(const fg_place_task *task, uint32_t index, const view *v)
{
    const fg_place_request *request = task->request;
    return request->session == index + 1
               ? SESSION_SHARE * v->slow * fg_speed_prefill_ns(v->speed, 0, request->prompt_tokens)
               : 0;
}

/* What computing this prompt adds to everybody else's time: streams that run on the worker stop for it,
 * and a line is as long for those who come as for this one. */
static double delay_of_others(const fg_place_task *task, const view *v)
{
    const fg_place_options *o = task->options;
    return v->prefill * (o->interference * v->worker->decodes + o->backlog * v->worker->prefills);
}

static double affinity(const fg_place_task *task)
{
    return task->options->affinity / (1 + larger(task->request->heat, 0));
}

/* To the first token. A prefix that many want now is worth a second copy: its holder keeps less of an
 * advantage. */
static double prefill_cost(const fg_place_task *task, const view *v)
{
    double own = v->prefill + v->restore;
    return v->queue + own * (1 + affinity(task)) + delay_of_others(task, v);
}

/* What one more row adds to the steps of those that run, over the whole answer. */
static double row_burden(const view *v)
{
    return (double)v->answer * v->worker->decodes * v->speed->step[1];
}

/* A shared prefix that is sent to a worker without it takes the room of another one there: that is worth
 * what computing it is. */
static double copy_cost(const fg_place_task *task, const view *v)
{
    uint64_t here = (uint64_t)v->hit * v->worker->block_size;
    return task->shared_tokens > here ? affinity(task) * v->slow * v->speed->prefill[1] *
                                            (double)(task->shared_tokens - here)
                                      : 0;
}

/* An answer's own time. On a worker that is meant for prompts, its steps wait for those that will come in
 * between. Elsewhere that is left out: prompts come to all of them, and to count what came lately would
 * drive requests away from where their prefix is. */
static double answer_time(const view *v)
{
    double share = 0;
    if (v->worker->roles == FG_ROLE_PREFILL) {
        double seen = v->worker->prompt_share;
        share = seen > 0 ? smaller(seen, PROMPTS_SHARE_MAX) : PROMPTS_SHARE;
    }
    return v->answer * v->step / (1 - share);
}

/* A pair is asked no earlier than its prompt can begin: those who wait for that wait in the router, where
 * no worker's line shows them. So much of them as is this worker's share waits for this prompt as well, if
 * they wait for prefill at all: nobody waits for a worker that is free. */
static double delay_of_waiting(const fg_place_task *task, const view *v)
{
    if (task->request->waiting == 0 || v->queue <= 0) {
        return 0;
    }
    double share = (double)task->request->waiting / task->prefill_count;
    return task->options->backlog * v->prefill * share * v->queue / (v->queue + v->prefill);
}

/* Its places and blocks come free as fast as answers like this one's would end. */
static double batches_before(const view *v, uint64_t blocks)
{
    const fg_place_worker *w = v->worker;
    double batches = 0;
    if (w->decodes >= w->max_seqs) {
        batches = (w->decodes - w->max_seqs + 1.0) / w->max_seqs;
    }
    if (blocks > w->block_count) {
        batches = larger(batches, (double)(blocks - w->block_count) / w->block_count);
    }
    return batches;
}

/* How many of those who are there must end first. Who waits there counts like who runs: whoever ends first of
 * them all makes room. */
static uint64_t ends_before(const fg_place_task *task, const view *v, uint64_t blocks)
{
    const fg_place_worker *w = v->worker;
    uint64_t placed = (uint64_t)w->decodes + task->ahead;
    uint64_t ends = placed >= w->max_seqs ? placed - w->max_seqs + 1 : 0;
    double each = larger(1, (double)w->blocks_used / w->places->holders);
    double missing = (double)blocks + each * task->ahead - w->block_count;
    return missing > 0 ? (uint64_t)larger((double)ends, ceil(missing / each)) : ends;
}

/* For a place in the batch, and blocks: how long those who have them go on. */
static double slot_wait(const fg_place_task *task, const view *v)
{
    const fg_place_worker *w = v->worker;
    uint64_t blocks = (uint64_t)w->blocks_used + fg_place_first_blocks(w, task->request);
    double steps = w->places == NULL || w->places->holders == 0
                       ? batches_before(v, blocks) * v->answer
                       : fg_places_steps(w->places, ends_before(task, v, blocks), v->answer);
    return steps > 0 ? steps * fg_speed_step_ns(v->speed, w->max_seqs, w->kv_tokens) : 0;
}

/* From the second token on; the prompts that wait there run beside it. Now it has a place at once. */
static double decode_cost(const fg_place_task *task, const view *v)
{
    return task->options->answer_weight * (answer_time(v) + row_burden(v)) + v->queue +
           copy_cost(task, v) + (task->later ? slot_wait(task, v) : 0);
}

/* What its rows add to others' time: on a worker with prompts in line, those wait for them as well. */
static double whole_burden(const view *v)
{
    double steps = smaller(v->answer, v->queue / (CHUNK * v->speed->prefill[1]));
    return row_burden(v) + v->worker->prefills * steps * v->speed->step[1];
}

static double whole_cost(const fg_place_task *task, uint32_t index, const view *v)
{
    return prefill_cost(task, v) + slot_wait(task, v) +
           task->options->answer_weight * (answer_time(v) + whole_burden(v)) -
           session_gain(task, index, v);
}

/* ---- pairs ---- */

typedef struct prefill_side {
    uint32_t index;
    double cost, compute; /* compute: what pushes can hide behind */
    double rank;          /* the cost, with a push of which all but the last chunk is hidden */
    const fg_speed *speed;
} prefill_side;

static uint32_t last_blocks(const fg_place_worker *decode)
{
    return CHUNK / decode->block_size + 1;
}

static double exposed_between(const fg_speed *speed, double compute, const fg_place_worker *decode,
                              uint32_t missing)
{
    /* The block that the prompt ends in is never shared: something always travels. */
    missing = missing > 0 ? missing : 1;
    return fg_speed_exposed_ns(speed, missing, last_blocks(decode), compute);
}

/* Kept in order of rank, then of turns. */
static void keep_best(const fg_place_task *task, prefill_side *best, uint32_t *count,
                      const prefill_side *side)
{
    uint32_t at = *count;
    while (at > 0 &&
           (side->cost < best[at - 1].cost ||
            (side->cost == best[at - 1].cost &&
             task->workers[side->index].placed < task->workers[best[at - 1].index].placed))) {
        at--;
    }
    if (at >= BEST_COUNT) {
        return;
    }
    *count += *count < BEST_COUNT;
    for (uint32_t i = *count - 1; i > at; i--) {
        best[i] = best[i - 1];
    }
    best[at] = *side;
}

typedef struct found {
    double cost;
    uint32_t prefill, decode;
} found;

/* Less, or equal and its turn. */
static void offer(const fg_place_task *task, found *best, const found *way)
{
    bool better = best->prefill == FG_PLACE_NONE;
    if (!better) {
        double margin = TIE * larger(fabs(best->cost), 1);
        const fg_place_worker *w = task->workers;
        better = way->cost < best->cost - margin;
        if (!better && way->cost <= best->cost + margin) {
            uint64_t a = w[way->prefill].placed, b = w[best->prefill].placed;
            better = a != b ? a < b : w[way->decode].placed < w[best->decode].placed;
        }
    }
    if (better) {
        *best = *way;
    }
}

typedef struct decode_side {
    uint32_t index, missing;
    double cost;
} decode_side;

/* By role alone, mixed workers hand over to pure ones only: they must not crowd out the others. */
enum { ANYBODY, MIXED, LISTS };

typedef struct sides {
    prefill_side prefill[LISTS][BEST_COUNT];
    uint32_t prefill_count[LISTS];
    decode_side decode[FG_LIMIT_WORKERS];
    uint32_t decode_count;
} sides;

static void pair_up(const fg_place_task *task, const sides *s, uint32_t list, found *best)
{
    const fg_place_worker *workers = task->workers;
    for (uint32_t p = 0; p < s->prefill_count[list]; p++) {
        const prefill_side *prefill = &s->prefill[list][p];
        for (uint32_t d = 0; d < s->decode_count; d++) {
            const decode_side *decode = &s->decode[d];
            double least = prefill->cost + decode->cost;
            if ((best->prefill != FG_PLACE_NONE && least > best->cost) ||
                prefill->index == decode->index ||
                (list == MIXED && workers[decode->index].roles == BOTH)) {
                continue;
            }
            found way = { least + exposed_between(prefill->speed, prefill->compute,
                                                  &workers[decode->index], decode->missing),
                          prefill->index, decode->index };
            offer(task, best, &way);
        }
    }
}

bool fg_place_pick_cost(const fg_place_task *task, fg_place_choice *choice_out)
{
    sides s;
    s.prefill_count[ANYBODY] = s.prefill_count[MIXED] = s.decode_count = 0;
    found best = { 0, FG_PLACE_NONE, FG_PLACE_NONE };
    bool is_always = task->options->split == FG_PLACE_ALWAYS;
    uint32_t full = 0;
    for (uint32_t i = 0; i < task->count; i++) {
        uint32_t may = fg_place_may(task, i);
        uint32_t ways = task->later || may == 0 ? may : fg_place_with_room(task, i, may);
        if ((may & COMPUTES) != 0 && (ways & COMPUTES) == 0 && task->request->hits != NULL) {
            uint32_t hit = task->request->hits[i].device_blocks;
            full = hit > full ? hit : full;
        }
        if (ways == 0) {
            continue;
        }
        view v = look_at(task, i);
        double gain = session_gain(task, i, &v);
        if (ways & FG_PLACE_AS_WHOLE) {
            found way = { whole_cost(task, i, &v), i, i };
            offer(task, &best, &way);
        }
        if (ways & FG_PLACE_AS_PREFILL) {
            prefill_side side = { .index = i, .compute = v.prefill, .speed = v.speed };
            side.cost = prefill_cost(task, &v) + delay_of_waiting(task, &v) - gain;
            side.rank = side.cost + exposed_between(v.speed, INFINITY, v.worker, v.blocks);
            uint32_t list = is_always && v.worker->roles == BOTH ? MIXED : ANYBODY;
            keep_best(task, s.prefill[list], &s.prefill_count[list], &side);
        }
        if (ways & FG_PLACE_AS_DECODE) {
            s.decode[s.decode_count++] =
                (decode_side){ i, v.blocks - v.hit, decode_cost(task, &v) - gain };
        }
    }
    pair_up(task, &s, ANYBODY, &best);
    pair_up(task, &s, MIXED, &best);
    if (best.prefill == FG_PLACE_NONE) {
        return false;
    }
    choice_out->prefill = best.prefill;
    choice_out->decode = best.decode;
    choice_out->hit_full = full;
    choice_out->kind = best.prefill == best.decode ? FG_PLACE_WHOLE : FG_PLACE_SPLIT;
    return true;
}

/* ---- telling ---- */

void fg_place_explain(const fg_place_task *task, fg_place_choice *choice)
{
    view p = look_at(task, choice->prefill), d = look_at(task, choice->decode);
    bool whole = choice->kind == FG_PLACE_WHOLE;
    double weight = task->options->answer_weight;
    double beside = delay_of_others(task, &p);
    fg_place_why why = { .queue = p.queue, .prefill = p.prefill, .restore = p.restore };
    if (whole) {
        why.wait = slot_wait(task, &p);
        why.answer = answer_time(&p);
        why.others = beside + weight * whole_burden(&p);
        why.cost = whole_cost(task, choice->prefill, &p);
    } else {
        why.exposed = exposed_between(p.speed, p.prefill, d.worker, d.blocks - d.hit);
        why.wait = slot_wait(task, &d);
        why.answer = answer_time(&d) + d.queue;
        why.others = beside + delay_of_waiting(task, &p) + weight * row_burden(&d);
        why.cost = prefill_cost(task, &p) + delay_of_waiting(task, &p) + why.exposed +
                   decode_cost(task, &d) - session_gain(task, choice->prefill, &p) -
                   session_gain(task, choice->decode, &d);
    }
    choice->why = why;
    choice->hit_prefill = p.hit;
    choice->hit_decode = d.hit;
    choice->ttft_ns = fg_place_whole_ns(why.queue + why.restore + why.prefill + why.wait);
    choice->itl_ns = fg_place_whole_ns(why.answer / d.answer);
}
