/*
 * placement_internal - what the files of placement share: which ways are allowed and have room, and
 * what a way costs. Nobody else includes it. Pure, like all of placement.
 */
#ifndef FORGE_ROUTER_PLACEMENT_INTERNAL_H
#define FORGE_ROUTER_PLACEMENT_INTERNAL_H

#include "router/placement.h"

#define FG_PLACE_NONE UINT32_MAX

/* One decision. */
typedef struct fg_place_task {
    const fg_place_options *options;
    const fg_place_worker *workers;
    uint32_t count;
    const fg_place_request *request;
    uint32_t roles;         /* of all workers together */
    double doubt_token_ns;  /* workers whose speed is only claimed are not faster */
    uint64_t shared_tokens; /* of the prompt, cached somewhere */
    uint32_t prefill_count; /* workers that are meant for prompts */
    bool later;             /* it is about the time when there will be room */
    uint32_t ahead;         /* then: others that get room at the same worker before it */
} fg_place_task;

/* What a worker may be: a side of some split, or the one worker for both. */
enum { FG_PLACE_AS_PREFILL = 1, FG_PLACE_AS_DECODE = 2, FG_PLACE_AS_WHOLE = 4 };

/* Allowed by roles, capabilities and split mode, and long enough for the request; no word on room. */
uint32_t fg_place_may(const fg_place_task *task, uint32_t worker);
/* Those of `ways` that have room now. */
uint32_t fg_place_with_room(const fg_place_task *task, uint32_t worker, uint32_t ways);
/* Blocks with which a sequence begins where it decodes. */
uint32_t fg_place_first_blocks(const fg_place_worker *worker, const fg_place_request *request);
/* Whether two workers, each of which may be its side, may be so for one request. */
bool fg_place_may_pair(const fg_place_task *task, uint32_t prefill, uint32_t decode);

/* Both return false when no allowed way has room. Only prefill, decode and kind are written. */
bool fg_place_pick_cost(const fg_place_task *task, fg_place_choice *choice_out);
bool fg_place_pick_plain(const fg_place_task *task, fg_place_choice *choice_out);

/* What is looked up once over all workers: doubt and sharing. */
void fg_place_survey(fg_place_task *task);
/* Fills in what is predicted for choice->prefill, decode and kind. */
void fg_place_explain(const fg_place_task *task, fg_place_choice *choice);

#endif
