/*
 * queue - the waiting line of the cluster: bounded, by priority, fair between tenants. Owned by the
 * dispatcher, on the loop thread. Time is an argument. Items lie in the caller's requests; after creation
 * nothing here takes memory.
 *
 *   OUT --push--> LINE --take--> RUNNING --remove--> OUT
 *                 |  ^              |
 *            skip v  | rewind      put_back: LINE, at its old place
 *                 ASIDE             remove works in every place
 *
 * Who is next (peek), at time `now`:
 *   1. An item's rank is fg_sched_rank: its arrival plus ten seconds a class. Within a tenant (its flow)
 *      the smaller rank is always first, equals by id. One tenant alone sees nothing but this order.
 *   2. An item's level is 0 when its rank has come (high ones at once, normal ones after 10 s, low ones
 *      after 20 s), 1 when it comes within 10 s, else 2. A flow stands at the level of its first item; a
 *      smaller level goes first, whoever's it is.
 *   3. Within a level, flows share by start-time fair queueing (Goyal, Vin, Cheng 1996) over cost /
 *      weight: the flow with the smaller tag is first, equal tags by rank and id. take() charges the cost
 *      to the flow's tag of that level; remove() settles it to what was really served. Between two flows
 *      that have waited at a level all the time, cost / weight served at it differs by no more than one
 *      largest item of each. A flow that comes from idleness, from another level or from its running
 *      cap begins at the tag of who is served now: no credit for time that it did not wait.
 *   4. An item whose rank came 20 s ago is late. While one is, every eighth take is the item of the
 *      smallest rank, so a late item leaves within 8 takes for each item that was before it in rank, however
 *      many new tenants come. It is charged like any other; a tag is never further than one largest item
 *      from where it would be if the flow had been idle.
 *
 * What always holds: a tenant's running cap holds its flow back and nobody else; what came back by put_back
 * is refunded; an item is passed by at most pass_max others because it did not fit; a record exists for
 * tenants that have an item here, and for idle ones only while there is room.
 */
#ifndef FORGE_ROUTER_QUEUE_H
#define FORGE_ROUTER_QUEUE_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/sched/sched.h"
#include "router/queue_heap.h"

enum {
    FG_QUEUE_LEVELS = 3,
    FG_QUEUE_LATE_EVERY = 8, /* takes, of which one is for who is late */
    FG_QUEUE_AHEAD_MAX = 16, /* items set aside at a time */
    FG_QUEUE_WEIGHT_MAX = 1024,
};
#define FG_QUEUE_LATE_NS  (2 * FG_SCHED_AGE_NS)
#define FG_QUEUE_COST_MAX (1u << 20) /* as FG_LIMIT_CONTEXT_TOKENS; greater ones count as this */

typedef enum fg_queue_place {
    FG_QUEUE_OUT = 0,
    FG_QUEUE_LINE,
    FG_QUEUE_ASIDE,
    FG_QUEUE_RUNNING
} fg_queue_place;

typedef struct fg_queue_flow fg_queue_flow;
typedef struct fg_queue fg_queue;

/* One request. The first part is the owner's, to be left alone while the queue knows it; the second the
 * queue's, zero before the first push. */
typedef struct fg_queue_item {
    uint64_t id; /* order of arrival: greater (modulo 2^64) is later */
    uint64_t tenant;
    uint64_t queued_ns;  /* arrival */
    uint64_t give_up_ns; /* from then on waiting is in vain; 0: never. May change while it runs */
    int32_t priority;    /* -1 high, 0, 1 low */
    uint32_t tokens;     /* counts towards the bounds: the prompt */
    uint32_t cost;       /* expected service: uncached prompt tokens and output tokens */

    fg_queue_place place;
    uint32_t level;  /* at which it was taken */
    uint32_t passed; /* others taken past it */
    uint64_t rank;
    uint64_t charged; /* to its flow's tag */
    fg_queue_flow *flow;
    fg_queue_node by_rank, by_give_up;
} fg_queue_item;

typedef struct fg_queue_options {
    uint32_t requests_max; /* in line, set aside ones too */
    uint64_t tokens_max;
    uint32_t live_max; /* in line and running; also the number of tenants' records */
    /* Of one tenant; 0: no cap of its own. Tenant 0 (nobody in particular) is a tenant like others. */
    uint32_t tenant_requests_max;
    uint64_t tenant_tokens_max;
    uint32_t tenant_running_max;
    uint32_t
        ahead_max; /* how many may be set aside at a time, up to FG_QUEUE_AHEAD_MAX; 0: strict */
    uint32_t pass_max; /* how often one may be passed in its life */
    /* A tenant's weight, 1..FG_QUEUE_WEIGHT_MAX (others are cut to it); NULL: 1. Asked when a tenant comes
     * from idleness. */
    uint32_t (*weight_of)(void *ctx, uint64_t tenant);
    void *ctx;
} fg_queue_options;

typedef struct fg_queue_load {
    uint32_t requests; /* in line or aside */
    uint64_t tokens, cost;
    uint32_t running;
} fg_queue_load;

/* FG_BAD_INPUT: live_max 0, or options beyond their bounds. FG_AGAIN: out of memory. */
fg_status fg_queue_create(const fg_queue_options *options, fg_queue **queue_out, fg_error *err);
/* Items that are still known are forgotten, not touched. */
void fg_queue_destroy(fg_queue *queue);

/* A newcomer. FG_AGAIN: beyond a bound of the line or of its tenant; it stays OUT. */
fg_status fg_queue_push(fg_queue *queue, fg_queue_item *item);
/* A RUNNING item could not start after all: back to its old place, refunded, whatever the bounds say. */
void fg_queue_put_back(fg_queue *queue, fg_queue_item *item);
/* The next item, or NULL when nobody may go. It stays where it is. */
fg_queue_item *fg_queue_peek(fg_queue *queue, uint64_t now_ns);
/* What peek returned has no room because of its size: it is set aside, and peek names the next. False:
 * nobody may pass it (bounds above), the walk ends here. */
bool fg_queue_skip(fg_queue *queue, fg_queue_item *item);
/* What peek returned could go, but waits for a better moment that comes by itself: it is set aside likewise,
 * with no bound on who passes it. False: `most` are aside already. */
bool fg_queue_hold(fg_queue *queue, fg_queue_item *item, uint32_t most);
/* Ends a walk: everybody aside goes back to its place. */
void fg_queue_rewind(fg_queue *queue);
/* What peek returned goes: RUNNING and charged; who is aside has been passed once more. */
void fg_queue_take(fg_queue *queue, fg_queue_item *item);
/* It leaves, from wherever it is. Nothing happens to one that is OUT. `served_cost`: what a RUNNING one
 * really took (pass item->cost when unknown); not used for others, which cost nothing. */
void fg_queue_remove(fg_queue *queue, fg_queue_item *item, uint64_t served_cost);
/* The waiting item with the earliest give_up_ns, when that has come; else NULL. Constant time. */
fg_queue_item *fg_queue_hopeless(const fg_queue *queue, uint64_t now_ns);

void fg_queue_load_get(const fg_queue *queue, fg_queue_load *load_out);
/* Zeros for a tenant that has nothing here. */
void fg_queue_tenant_get(const fg_queue *queue, uint64_t tenant, fg_queue_load *load_out);
/* Its part of the service while everybody who waits now goes on waiting, in (0, 1]. */
double fg_queue_share(const fg_queue *queue, uint64_t tenant);
/* About how many prompt tokens would go before a newcomer: those of its class and better ones, but of other
 * tenants no more than their share while its own tenant is served up to and including it. Constant time,
 * so what has aged from worse classes is not counted. */
uint64_t fg_queue_tokens_ahead(const fg_queue *queue, uint64_t tenant, int32_t priority,
                               uint32_t cost);

/* What an empty queue remembers: how far service has come, and each tenant that was served beyond its share. One
 * that is told the same goes on alike. */
typedef struct fg_queue_memory {
    uint64_t now_ns, level_now[FG_QUEUE_LEVELS];
    uint32_t takes_since_late, pad;
} fg_queue_memory;
typedef struct fg_queue_debt {
    uint64_t tenant, tags[FG_QUEUE_LEVELS];
} fg_queue_debt;
void fg_queue_memory_get(const fg_queue *queue, fg_queue_memory *memory_out);
/* Debts in the order in which they are to be told; *at is NULL at first. False: there are no more. */
bool fg_queue_debt_next(const fg_queue *queue, const fg_queue_flow **at, fg_queue_debt *debt_out);
/* To a queue that is empty: its memory first. */
void fg_queue_tell_memory(fg_queue *queue, const fg_queue_memory *memory);
void fg_queue_tell_debt(fg_queue *queue, const fg_queue_debt *debt);

/* Recounts everything; aborts on a difference (simulator, tests). */
void fg_queue_check(const fg_queue *queue);

#endif
