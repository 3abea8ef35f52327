/*
 * placement - where a request goes. Pure: a snapshot of the workers goes in, a choice comes out; owns
 * nothing, allocates nothing, and knows no time but the times it is given.
 *
 * A request is served in one of two ways. SPLIT: one worker prefills, hands its KV blocks over, another
 * one decodes. WHOLE: one worker does both. Roles say what a worker is meant for and may change at any
 * time; `can` says what it is able to do. Which ways are allowed follows from both and from the split
 * mode; docs/ROUTING.md has the table. Among the allowed ways that have room the policy picks: by
 * predicted time (`cost`), or by one of the plain rules kept for comparison.
 *
 * Workers are over-committed on purpose: blocks for the answer are the worker's own affair, which lets
 * its sequences share and preempt. So a decode worker has room when the prompt fits beside the prompts
 * that were placed there, with one block to begin the answer in, and says "busy" when that was too
 * much. A worker meant for both keeps a waiting line of its own, as long as its batch, and its blocks
 * are not counted at all. What can never fit is judged by prompt and longest answer.
 */
#ifndef FORGE_ROUTER_PLACEMENT_H
#define FORGE_ROUTER_PLACEMENT_H

#include <stdbool.h>
#include <stdint.h>

#include "router/places.h"
#include "router/speed.h"

/* A worker that does both has its batch and as many again in its own waiting line. */
enum { FG_PLACE_LINE = 2 };

/* What a worker is able to do, whatever it is meant for. */
enum {
    FG_PLACE_CAN_WHOLE = 1, /* both phases of one request */
    FG_PLACE_CAN_LINK = 2,  /* hand over blocks, and receive them */
};

typedef enum fg_place_policy {
    FG_PLACE_COST,         /* least predicted time */
    FG_PLACE_CACHE_ONLY,   /* longest cached prefix, whatever waits there */
    FG_PLACE_LEAST_LOADED, /* fewest prompt tokens ahead; fewest live sequences */
    FG_PLACE_ROUND_ROBIN,  /* by request.turn */
    FG_PLACE_TWO_CHOICES,  /* the less loaded of two drawn by request.dice */
} fg_place_policy;

typedef enum fg_place_split {
    FG_PLACE_AUTO,    /* per request, whatever is predicted to be better */
    FG_PLACE_ALWAYS,  /* by role: only a worker meant for both does both */
    FG_PLACE_UNSPLIT, /* every worker with any role does both */
} fg_place_split;

typedef struct fg_place_options {
    fg_place_policy policy;
    fg_place_split split;
    /* A prompt's own computing counts this much more than once: work that a cache would have saved is
     * taken from those who come later. Another worker must be faster by that margin before a prefix
     * leaves its holder. */
    double affinity;
    /* A prompt beside running streams stops each of them for its time; so much of that counts. */
    double interference;
    /* A prompt in line delays those who come after it; so much of that counts for each that waits. */
    double backlog;
    /* Time spent on the answer, ours and what we add to others', against time to first token. */
    double answer_weight;
    /* Blocks that the prefill worker lacks are sent there by one that has them, where computing them takes so many
     * times longer; 0: never. */
    double pull;
} fg_place_options;

typedef struct fg_place_worker {
    uint32_t roles; /* FG_ROLE_*; 0 (draining, stuck): place nothing here */
    uint32_t can;   /* FG_PLACE_CAN_* */
    uint32_t block_count, block_size, context_max, max_seqs;
    uint32_t prefills, decodes; /* placed there and not ended */
    uint64_t prefill_tokens;
    uint64_t placed;         /* requests ever placed there: equals take turns */
    uint32_t blocks_used;    /* of placed requests' prompts, or in quarantine */
    bool full;               /* it said so: no sequence is placed there */
    const fg_speed *speed;   /* NULL: nothing is known */
    double queue_ns;         /* predicted prefill ahead; 0: from prefill_tokens */
    uint64_t kv_tokens;      /* of its running sequences; 0: not known */
    const fg_places *places; /* who it decodes for; NULL: not known */
    /* Of its time, what computing prompts took lately, 0 to 1; 0: not known, which is taken for half.
     * Read only where a worker is meant for prompts alone. */
    double prompt_share;
} fg_place_worker;

/* Leading blocks of the prompt that a worker has. */
typedef struct fg_place_hit {
    uint32_t device_blocks;
    uint32_t tier_blocks; /* on the device or in the host tier: never fewer */
} fg_place_hit;

typedef struct fg_place_request {
    uint32_t prompt_tokens;
    uint32_t total_tokens;    /* prompt and the longest answer */
    uint32_t answer_tokens;   /* expected; 0: not known */
    const fg_place_hit *hits; /* one per worker; NULL: none */
    uint32_t session;         /* 1 + the worker that served this session last; 0: none */
    double heat;              /* other requests now under way that share this prefix */
    uint32_t waiting;         /* others that wait in the router */
    uint64_t turn;            /* counts decisions, for round robin */
    uint64_t dice;            /* random, for two choices */
} fg_place_request;

typedef enum fg_place_verdict {
    FG_PLACE_OK,
    FG_PLACE_WAIT,   /* no room now */
    FG_PLACE_NEVER,  /* no worker could ever hold it */
    FG_PLACE_NOBODY, /* a phase has no worker */
} fg_place_verdict;

typedef enum fg_place_kind { FG_PLACE_SPLIT, FG_PLACE_WHOLE } fg_place_kind;

/* Where the predicted time goes, in ns. */
typedef struct fg_place_why {
    double queue;   /* prompts ahead of it */
    double prefill; /* of what is not cached */
    double restore; /* from the host tier */
    double exposed; /* hand-over that computing does not cover */
    double wait;    /* for a place in the batch, and blocks */
    double answer;  /* its own decoding */
    double others;  /* what it adds to everybody else's time */
    double cost; /* what was compared, weights included; may be below zero for a session's worker */
} fg_place_why;

typedef struct fg_place_choice {
    uint32_t prefill, decode; /* indices into the snapshot; equal: one worker for both */
    fg_place_kind kind;
    uint32_t hit_prefill, hit_decode; /* leading blocks expected on the device */
    uint32_t hit_full; /* the most on a worker that could compute it, had it room; `cost` only */
    uint64_t ttft_ns, itl_ns; /* predicted, from now */
    fg_place_why why;
    uint32_t pull_from,
        pull_blocks; /* who sends the prefill worker leading blocks first, up to how many; 0: nobody does */
    uint64_t pull_ns; /* predicted for that */
} fg_place_choice;

/* A predicted time as a number: a claim that is a lie can stretch one beyond what 64 bits hold. */
static inline uint64_t fg_place_whole_ns(double ns)
{
    return ns > 0 ? (ns < 1e18 ? (uint64_t)ns : (uint64_t)1e18) : 0;
}

fg_place_options fg_place_defaults(void);

/* Fills the choice's pull_*: the worker from which the rest of the prefix comes to the chosen prefill worker sooner than that
 * computes it. */
void fg_place_pull(const fg_place_options *options, const fg_place_worker *workers, uint32_t count,
                   const fg_place_request *request, fg_place_choice *choice);

/* At most FG_LIMIT_WORKERS workers. The choice is written for FG_PLACE_OK only. */
fg_place_verdict fg_place_pick(const fg_place_options *options, const fg_place_worker *workers,
                               uint32_t count, const fg_place_request *request,
                               fg_place_choice *choice_out);

/* What is predicted for a request for which fg_place_pick knows no room now, when `ahead` others wait for room before it: it
 * goes where its cost is least then. False: for some worker nobody knows when it will have room. */
bool fg_place_foretell(const fg_place_options *options, const fg_place_worker *workers,
                       uint32_t count, const fg_place_request *request, uint32_t ahead,
                       fg_place_choice *choice_out);

/* Requests like this one that the workers have room for when nobody else is there; each worker is counted alone, so
 * there are never more. */
uint64_t fg_place_capacity(const fg_place_options *options, const fg_place_worker *workers,
                           uint32_t count, const fg_place_request *request);

/* What fg_place_pick would say about this way, whether or not it is allowed: for tests and
 * /debug/state. */
void fg_place_predict(const fg_place_options *options, const fg_place_worker *workers,
                      uint32_t count, const fg_place_request *request,
                      fg_place_choice *choice_in_out);

/* "cost", "cache-only", ... */
const char *fg_place_policy_name(fg_place_policy policy);

#endif
