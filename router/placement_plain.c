/* The rules kept for comparison: each ranks the workers of one side without predicting anything. */
#include "router/placement_internal.h"

#include "proto/wire.h"

typedef enum side { PREFILL, DECODE, ALL } side;

/* Which workers a pick may take: a prefill worker to start with, the decode side for a known prefill
 * worker, the prefill side for a known decode worker, or one for both. */
typedef struct wanted {
    side side;
    uint32_t prefill, decode; /* FG_PLACE_NONE: not known yet */
} wanted;

static bool is_pure(const fg_place_worker *worker)
{
    return worker->roles == FG_ROLE_PREFILL || worker->roles == FG_ROLE_DECODE;
}

static bool has_way(const fg_place_task *task, uint32_t worker, uint32_t way)
{
    uint32_t ways = fg_place_may(task, worker) & way;
    return ways != 0 && fg_place_with_room(task, worker, ways) != 0;
}

/* Between workers that are meant for both, moving KV gains nothing: the decode side does all of it. */
static bool does_all(const fg_place_task *task, uint32_t prefill, uint32_t decode)
{
    return prefill == decode ||
           (!is_pure(&task->workers[decode]) && !is_pure(&task->workers[prefill]));
}

/* One that is meant for both and cannot hand over starts what it will do alone. */
static bool takes_prefill(const fg_place_task *task, uint32_t worker, uint32_t decode)
{
    if (decode != FG_PLACE_NONE) {
        return has_way(task, worker, FG_PLACE_AS_PREFILL) &&
               fg_place_may_pair(task, worker, decode);
    }
    return has_way(task, worker, FG_PLACE_AS_PREFILL) ||
           (!is_pure(&task->workers[worker]) && has_way(task, worker, FG_PLACE_AS_WHOLE));
}

static bool takes_decode(const fg_place_task *task, uint32_t worker, uint32_t prefill)
{
    if (prefill != FG_PLACE_NONE && does_all(task, prefill, worker)) {
        return !is_pure(&task->workers[worker]) && has_way(task, worker, FG_PLACE_AS_WHOLE);
    }
    return has_way(task, worker, FG_PLACE_AS_DECODE) &&
           (prefill == FG_PLACE_NONE || (fg_place_may(task, prefill) & FG_PLACE_AS_PREFILL));
}

static bool takes(const fg_place_task *task, const wanted *want, uint32_t worker)
{
    switch (want->side) {
    case PREFILL:
        return takes_prefill(task, worker, want->decode);
    case DECODE:
        return takes_decode(task, worker, want->prefill);
    default:
        return has_way(task, worker, FG_PLACE_AS_WHOLE);
    }
}

/* ---- the rules ---- */

static bool is_less_loaded(const fg_place_task *task, side which, uint32_t left, uint32_t right)
{
    const fg_place_worker *a = &task->workers[left], *b = &task->workers[right];
    if (which == PREFILL && a->prefill_tokens != b->prefill_tokens) {
        return a->prefill_tokens < b->prefill_tokens;
    }
    if (which == PREFILL && a->prefills != b->prefills) {
        return a->prefills < b->prefills;
    }
    if (which != PREFILL && a->decodes != b->decodes) {
        return a->decodes < b->decodes;
    }
    return a->placed < b->placed;
}

static bool has_more_cached(const fg_place_task *task, uint32_t left, uint32_t right)
{
    const fg_place_hit none = { 0, 0 }, *hits = task->request->hits;
    const fg_place_hit *a = hits != NULL ? &hits[left] : &none;
    const fg_place_hit *b = hits != NULL ? &hits[right] : &none;
    if (a->device_blocks != b->device_blocks) {
        return a->device_blocks > b->device_blocks;
    }
    if (a->tier_blocks != b->tier_blocks) {
        return a->tier_blocks > b->tier_blocks;
    }
    return task->workers[left].placed < task->workers[right].placed;
}

static uint32_t pick_best(const fg_place_task *task, const wanted *want)
{
    uint32_t best = FG_PLACE_NONE;
    for (uint32_t i = 0; i < task->count; i++) {
        if (takes(task, want, i) &&
            (best == FG_PLACE_NONE || (task->options->policy == FG_PLACE_CACHE_ONLY
                                           ? has_more_cached(task, i, best)
                                           : is_less_loaded(task, want->side, i, best)))) {
            best = i;
        }
    }
    return best;
}

/* The `nth` of those that may be taken, or NONE. */
static uint32_t pick_nth(const fg_place_task *task, const wanted *want, uint64_t nth)
{
    for (uint32_t i = 0; i < task->count; i++) {
        if (takes(task, want, i) && nth-- == 0) {
            return i;
        }
    }
    return FG_PLACE_NONE;
}

static uint32_t pick(const fg_place_task *task, const wanted *want)
{
    if (task->options->policy == FG_PLACE_CACHE_ONLY ||
        task->options->policy == FG_PLACE_LEAST_LOADED) {
        return pick_best(task, want);
    }
    uint32_t count = 0;
    for (uint32_t i = 0; i < task->count; i++) {
        count += takes(task, want, i);
    }
    if (count == 0) {
        return FG_PLACE_NONE;
    }
    if (task->options->policy == FG_PLACE_ROUND_ROBIN) {
        return pick_nth(task, want, task->request->turn % count);
    }
    /* Two different ones where there are two; each side of a request reads its own part of the dice. */
    uint64_t dice = task->request->dice >> (want->side == DECODE ? 32 : 0);
    uint64_t first = (dice & 0xFFFF) % count;
    uint64_t second = count > 1 ? (first + 1 + (dice >> 16 & 0xFFFF) % (count - 1)) % count : first;
    uint32_t a = pick_nth(task, want, first), b = pick_nth(task, want, second);
    return is_less_loaded(task, want->side, b, a) ? b : a;
}

static bool choose(const fg_place_task *task, uint32_t prefill, uint32_t decode,
                   fg_place_choice *choice)
{
    bool all = does_all(task, prefill, decode);
    choice->prefill = all ? decode : prefill;
    choice->decode = decode;
    choice->kind = all ? FG_PLACE_WHOLE : FG_PLACE_SPLIT;
    return true;
}

/* Prefill first, then decode; when that leads nowhere, one worker for both; then decode first. */
bool fg_place_pick_plain(const fg_place_task *task, fg_place_choice *choice_out)
{
    wanted prefill_first = { PREFILL, FG_PLACE_NONE, FG_PLACE_NONE };
    uint32_t prefill = FG_PLACE_NONE;
    if (task->options->split != FG_PLACE_UNSPLIT) {
        prefill = pick(task, &prefill_first);
    }
    if (prefill != FG_PLACE_NONE) {
        wanted then = { DECODE, prefill, FG_PLACE_NONE };
        uint32_t decode = pick(task, &then);
        if (decode != FG_PLACE_NONE) {
            return choose(task, prefill, decode, choice_out);
        }
    }
    wanted whole = { ALL, FG_PLACE_NONE, FG_PLACE_NONE };
    uint32_t worker = pick(task, &whole);
    if (worker != FG_PLACE_NONE) {
        choice_out->prefill = choice_out->decode = worker;
        choice_out->kind = FG_PLACE_WHOLE;
        return true;
    }
    wanted decode_first = { DECODE, FG_PLACE_NONE, FG_PLACE_NONE };
    uint32_t decode = pick(task, &decode_first);
    if (decode == FG_PLACE_NONE) {
        return false;
    }
    wanted then = { PREFILL, FG_PLACE_NONE, decode };
    prefill = pick(task, &then);
    if (prefill == FG_PLACE_NONE) {
        return false;
    }
    choice_out->prefill = prefill;
    choice_out->decode = decode;
    choice_out->kind = FG_PLACE_SPLIT;
    return true;
}
