/*
 * queue_internal - what queue.c (items: who comes, goes, is next) and queue_flow.c (tenants: where they
 * stand and what they owe) share. Private to router/queue.
 */
#ifndef FORGE_ROUTER_QUEUE_INTERNAL_H
#define FORGE_ROUTER_QUEUE_INTERNAL_H

#include <stddef.h>

#include "router/queue.h"

enum { FG_QUEUE_NO_LEVEL = FG_QUEUE_LEVELS, FG_QUEUE_CLASSES = 3 };

/*
 * A tenant's record, in one of three lists: active (it has something in line or running), idle, oldest
 * first, while its tags say something, or free. Idle ones are reused when no free one is left.
 */
struct fg_queue_flow {
    uint64_t tenant;
    uint32_t weight;
    uint32_t level; /* where it waits, also while a walk has set all of it aside; or NO_LEVEL */
    bool attached;  /* in the two heaps of its level */
    uint32_t requests, running;
    uint64_t tokens, cost;          /* of `requests` */
    uint64_t tags[FG_QUEUE_LEVELS]; /* cost served there / weight; WEIGHT_MAX is one token */
    fg_queue_heap items;            /* in line, by rank */
    fg_queue_node by_tag, by_rank;
    fg_queue_flow *next_in_bucket;
    fg_queue_flow *next, *previous; /* in its list; `next` alone in the free one */
};

typedef struct fg_queue_level {
    fg_queue_heap by_tag, by_rank; /* flows that may go */
    uint64_t now; /* the level's virtual time: the greatest tag that was the smallest at a take */
} fg_queue_level;

typedef struct fg_queue_flows {
    fg_queue_flow *first, *last;
    uint32_t count;
} fg_queue_flows;

struct fg_queue {
    fg_queue_options options;
    uint64_t now_ns;
    fg_queue_level levels[FG_QUEUE_LEVELS];
    fg_queue_heap by_give_up;
    fg_queue_item *aside[FG_QUEUE_AHEAD_MAX];
    uint32_t aside_count;
    uint32_t takes_since_late; /* while somebody is late */
    fg_queue_load load;
    uint64_t class_tokens[FG_QUEUE_CLASSES];
    uint64_t weights;            /* of the tenants with something in line */
    fg_queue_flow *flows, *free; /* all of them; the first free one */
    fg_queue_flows active, idle;
    fg_queue_flow **buckets;
    uint32_t bucket_mask;
};

#define ITEM_OF(node, member) ((fg_queue_item *)((char *)(node)-offsetof(fg_queue_item, member)))
#define FLOW_OF(node, member) ((fg_queue_flow *)((char *)(node)-offsetof(fg_queue_flow, member)))

bool fg_queue_give_up_before(const fg_queue_node *a, const fg_queue_node *b);
bool fg_queue_flow_rank_before(const fg_queue_node *a, const fg_queue_node *b);
bool fg_queue_flow_tag_before(const fg_queue_node *a, const fg_queue_node *b);
/* NULL: nothing of it is in line. */
fg_queue_item *fg_queue_first_of(const fg_queue_flow *flow);
/* What a cost adds to its tag. */
uint64_t fg_queue_tag_step(const fg_queue_flow *flow, uint64_t cost);
bool fg_queue_is_capped(const fg_queue *queue, const fg_queue_flow *flow);
/* It waits at this level from now on, if it did not before. */
void fg_queue_stand_at(fg_queue *queue, fg_queue_flow *flow, uint32_t level);
/* Before anything changes that its place depends on, and after it. */
void fg_queue_detach(fg_queue *queue, fg_queue_flow *flow);
void fg_queue_attach(fg_queue *queue, fg_queue_flow *flow);
/* Flows whose first item has aged into a better level go there. Each item makes a flow move at most
 * twice. */
void fg_queue_promote(fg_queue *queue);
/* NULL: nothing is known of that tenant. */
fg_queue_flow *fg_queue_find_flow(const fg_queue *queue, uint64_t tenant);
/* The tenant's record, which an item will be put into. There is one: each record in use has an item, and
 * there are as many records as items may be. */
fg_queue_flow *fg_queue_need_flow(fg_queue *queue, uint64_t tenant);
/* Keeps a record of a tenant that has nothing here any more only when a fresh one would say less. */
void fg_queue_rest(fg_queue *queue, fg_queue_flow *flow);

#endif
