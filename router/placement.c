#include "router/placement.h"

#include "common/kv/layout.h"
#include "proto/wire.h"

#define NONE UINT32_MAX

static bool is_pure(const fg_place_worker *prefill)
{
    return (prefill->roles & FG_ROLE_DECODE) == 0;
}

static bool can_hold(const fg_place_worker *worker, uint32_t tokens)
{
    return tokens <= worker->context_max &&
           fg_kv_blocks_for(tokens, worker->block_size) <= worker->block_count;
}

/* Where a hand-over goes. The block beyond the prompt is the answer's first, unless prompt and answer
 * need no further one: what can_hold lets in must have room in an empty worker. */
static bool has_room(const fg_place_worker *worker, const fg_place_request *request)
{
    uint32_t begin = fg_kv_blocks_for(request->prompt_tokens, worker->block_size) + 1;
    uint32_t all = fg_kv_blocks_for(request->total_tokens, worker->block_size);
    return worker->decodes < worker->max_seqs && worker->blocks_used <= worker->block_count &&
           (begin < all ? begin : all) <= worker->block_count - worker->blocks_used;
}

/* Where a worker does all: its batch, and as many again in its line. */
static bool has_line(const fg_place_worker *worker, uint32_t placed)
{
    return placed < FG_PLACE_LINE * worker->max_seqs;
}

static bool takes_prefill(const fg_place_worker *worker)
{
    return is_pure(worker) ? worker->prefills < worker->max_seqs
                           : has_line(worker, worker->prefills);
}

static bool takes_decode(const fg_place_worker *worker, const fg_place_request *request,
                         bool unsplit)
{
    return can_hold(worker, request->total_tokens) && !worker->full &&
           (unsplit ? has_line(worker, worker->decodes) : has_room(worker, request));
}

static bool less_prefill(const fg_place_worker *a, const fg_place_worker *b)
{
    if (a->prefill_tokens != b->prefill_tokens) {
        return a->prefill_tokens < b->prefill_tokens;
    }
    return a->prefills != b->prefills ? a->prefills < b->prefills : a->placed < b->placed;
}

static bool less_decode(const fg_place_worker *a, const fg_place_worker *b)
{
    return a->decodes != b->decodes ? a->decodes < b->decodes : a->placed < b->placed;
}

static uint32_t pick_prefill(const fg_place_worker *workers, uint32_t count,
                             const fg_place_request *request)
{
    uint32_t best = NONE;
    for (uint32_t i = 0; i < count; i++) {
        const fg_place_worker *w = &workers[i];
        if ((w->roles & FG_ROLE_PREFILL) && can_hold(w, request->total_tokens) &&
            takes_prefill(w) && (best == NONE || less_prefill(w, &workers[best]))) {
            best = i;
        }
    }
    return best;
}

/* Between workers that can do both, moving KV gains nothing: the decode side does all of it, unless a
 * pure prefill worker was picked. */
static bool does_all(const fg_place_worker *decode, const fg_place_worker *prefill)
{
    return (decode->roles & FG_ROLE_PREFILL) != 0 && !is_pure(prefill);
}

static uint32_t pick_decode(const fg_place_worker *workers, uint32_t count,
                            const fg_place_request *request, const fg_place_worker *prefill)
{
    uint32_t best = NONE;
    for (uint32_t i = 0; i < count; i++) {
        const fg_place_worker *w = &workers[i];
        if ((w->roles & FG_ROLE_DECODE) && takes_decode(w, request, does_all(w, prefill)) &&
            (best == NONE || less_decode(w, &workers[best]))) {
            best = i;
        }
    }
    return best;
}

/* A worker with the decode role only is never asked to prefill, and the other way round; one with both
 * serves either side. */
fg_place_verdict fg_place_pick(const fg_place_worker *workers, uint32_t count,
                               const fg_place_request *request, fg_place_choice *choice_out)
{
    uint32_t roles = 0, fitting = 0;
    for (uint32_t i = 0; i < count; i++) {
        roles |= workers[i].roles;
        fitting |= can_hold(&workers[i], request->total_tokens) ? workers[i].roles : 0;
    }
    if (roles != (FG_ROLE_PREFILL | FG_ROLE_DECODE)) {
        return FG_PLACE_NOBODY;
    }
    if (fitting != (FG_ROLE_PREFILL | FG_ROLE_DECODE)) {
        return FG_PLACE_NEVER;
    }
    uint32_t prefill = pick_prefill(workers, count, request);
    if (prefill == NONE) {
        return FG_PLACE_WAIT;
    }
    uint32_t decode = pick_decode(workers, count, request, &workers[prefill]);
    if (decode == NONE) {
        return FG_PLACE_WAIT;
    }
    bool all = does_all(&workers[decode], &workers[prefill]);
    *choice_out = (fg_place_choice){ .prefill = all ? decode : prefill, .decode = decode };
    return FG_PLACE_OK;
}
