#include "router/placement.h"

#include "common/kv/layout.h"
#include "proto/wire.h"

#define NONE UINT32_MAX

static bool can_hold(const fg_place_worker *worker, uint32_t tokens)
{
    return tokens <= worker->context_max &&
           fg_kv_blocks_for(tokens, worker->block_size) <= worker->block_count;
}

static bool has_room(const fg_place_worker *worker, uint32_t tokens)
{
    uint32_t need = fg_kv_blocks_for(tokens, worker->block_size);
    return can_hold(worker, tokens) && !worker->full && worker->decodes < worker->max_seqs &&
           worker->blocks_used <= worker->block_count &&
           need <= worker->block_count - worker->blocks_used;
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

/* A worker with the decode role only is never asked to prefill, and the other way round; one with both
 * serves either side. */
fg_place_verdict fg_place_pick(const fg_place_worker *workers, uint32_t count,
                               const fg_place_request *request, fg_place_choice *choice_out)
{
    bool any_prefill = false, any_decode = false, fits_prefill = false, fits_decode = false;
    uint32_t prefill = NONE, decode = NONE;
    for (uint32_t i = 0; i < count; i++) {
        const fg_place_worker *w = &workers[i];
        if (w->roles & FG_ROLE_PREFILL) {
            any_prefill = true;
            bool fits = can_hold(w, request->total_tokens);
            fits_prefill = fits_prefill || fits;
            if (fits && w->prefills < w->max_seqs &&
                (prefill == NONE || less_prefill(w, &workers[prefill]))) {
                prefill = i;
            }
        }
        if (w->roles & FG_ROLE_DECODE) {
            any_decode = true;
            fits_decode = fits_decode || can_hold(w, request->total_tokens);
            if (has_room(w, request->total_tokens) &&
                (decode == NONE || less_decode(w, &workers[decode]))) {
                decode = i;
            }
        }
    }
    if (!any_prefill || !any_decode) {
        return FG_PLACE_NOBODY;
    }
    if (!fits_prefill || !fits_decode) {
        return FG_PLACE_NEVER;
    }
    if (prefill == NONE || decode == NONE) {
        return FG_PLACE_WAIT;
    }
    bool both = (workers[decode].roles & FG_ROLE_PREFILL) != 0;
    bool prefill_is_pure = (workers[prefill].roles & FG_ROLE_DECODE) == 0;
    /* Between workers that can do both, moving KV gains nothing: the decode side does all of it. */
    *choice_out = (fg_place_choice){ .prefill = both && !prefill_is_pure ? decode : prefill,
                                     .decode = decode };
    return FG_PLACE_OK;
}
