/*
 * room_internal - what the files of the room share.
 *
 *   room.c        the run: events, waiting for the end, what must hold then
 *   room_draw.c   what a seed draws: the worker, the requests
 *   room_judge.c  what the worker says, against what it has to say
 *   room_spy.c    what the worker has the engine do
 *   room_news.c   what the worker tells about its cache
 */
#ifndef FORGE_TESTS_SIM_ROOM_INTERNAL_H
#define FORGE_TESTS_SIM_ROOM_INTERNAL_H

#include "common/base/arena.h"
#include "common/base/rng.h"
#include "tests/sim/room.h"
#include "tests/sim/room_spy.h"
#include "tests/sim/sim_draft.h"

enum {
    ROOM_EOS = 3,
    ROOM_SYSTEMS = 4,      /* system prompts that many requests share */
    ROOM_TOKENS_MAX = 400, /* of one sequence */
};
#define ROOM_MS 1000000ull

typedef enum room_state {
    ROOM_UNSENT,
    ROOM_LIVE,
    ROOM_DONE,
    ROOM_CANCELLED,
    ROOM_LOST, /* with the router's connection */
} room_state;

typedef struct room_request {
    uint64_t id;
    uint32_t attempt;
    uint32_t *tokens; /* prompt, then the answer */
    uint32_t prompt_count, count;
    fg_wire_params params;
    room_state state;
    bool never_fits; /* refused at once */
    bool started;
    uint32_t scored; /* tokens of its prompt that something was said of */
    uint64_t queued_ns, started_ns;
} room_request;

typedef struct room {
    room_options options;
    room_report report;
    fg_rng rng;
    uint64_t now_ns;

    /* What the seed drew. */
    fg_kv_layout layout;
    uint32_t vocab_size;
    fg_sched_limits limits;
    uint32_t block_count, slot_count, context_max;
    bool overlap, cache, quick, any_faults;
    uint32_t live_target;                     /* arrivals come until so many are live */
    uint32_t check_one_in;                    /* events */
    uint32_t cancel, clear, lose, flip, jump; /* per ten thousand events */
    uint32_t *systems[ROOM_SYSTEMS];
    uint32_t system_counts[ROOM_SYSTEMS];

    room_request *requests;
    uint32_t request_max, sent, live;
    uint32_t *order; /* of the live ones: indices, unordered */

    void *arena;
    fg_tier *tier;
    fg_engine *engine;
    fg_sim_draft *draft; /* NULL: none */
    room_spy spy;
    fg_worker *worker;
    fg_arena *inbox;
    fg_trace *trace;
    uint64_t secret, epoch;
    bool giving_up;         /* fg_worker_abort_all is at work */
    bool wants_up;          /* the worker has connected again; the connection is not up yet */
    uint64_t quiet_steps;   /* since the last token */
    uint64_t flips_pending; /* damage was done that may show */
    struct fg_map *told[2]; /* keys that the worker has told of: in the pool, in the tier */
    uint64_t news_sequence;
    bool told_all; /* all that there was has been told, once, since the last reset */
} room;

static inline uint64_t room_below(room *r, uint64_t bound)
{
    return fg_rng_below(&r->rng, bound);
}

static inline bool room_chance(room *r, uint32_t per_ten_thousand)
{
    return room_below(r, 10000) < per_ten_thousand;
}

/* Tokens that all blocks together hold. */
static inline uint32_t room_capacity(const room *r)
{
    return r->block_count * r->layout.block_size;
}

/* room_draw.c */
void room_draw_worker(room *r);
/* Fills the next 1 to 5 unsent requests (a family); returns how many. */
uint32_t room_draw_requests(room *r);

/* room_judge.c */
fg_status room_hear(void *ctx, uint32_t router, const void *bytes, size_t size_bytes);
/* A request is not live any more. */
void room_retire(room *r, room_request *request, room_state state);
/* Nobody was admitted before somebody who stood before him in the line. */
void room_judge_order(room *r);

/* room_news.c */
void room_news_open(room *r);
void room_news_close(room *r);
void room_hear_news(room *r, const fg_msg *msg);
/* All that it told, taken together, is what it has. */
void room_judge_news(room *r);
/* A token or an answer's end has come: the blocks that it made were told of before. */
void room_judge_told(room *r);

#endif
