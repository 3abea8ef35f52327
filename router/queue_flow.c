#include "router/queue_internal.h"

#include <string.h>

#include "common/base/hash.h"

/* ---- orders ---- */

static bool item_before(const fg_queue_item *a, const fg_queue_item *b)
{
    return a->rank != b->rank ? a->rank < b->rank : (int64_t)(a->id - b->id) < 0;
}

static bool rank_before(const fg_queue_node *a, const fg_queue_node *b)
{
    return item_before(ITEM_OF(a, by_rank), ITEM_OF(b, by_rank));
}

bool fg_queue_give_up_before(const fg_queue_node *a, const fg_queue_node *b)
{
    const fg_queue_item *x = ITEM_OF(a, by_give_up), *y = ITEM_OF(b, by_give_up);
    return x->give_up_ns != y->give_up_ns ? x->give_up_ns < y->give_up_ns
                                          : (int64_t)(x->id - y->id) < 0;
}

fg_queue_item *fg_queue_first_of(const fg_queue_flow *flow)
{
    return flow->items.root != NULL ? ITEM_OF(flow->items.root, by_rank) : NULL;
}

bool fg_queue_flow_rank_before(const fg_queue_node *a, const fg_queue_node *b)
{
    return item_before(fg_queue_first_of(FLOW_OF(a, by_rank)),
                       fg_queue_first_of(FLOW_OF(b, by_rank)));
}

bool fg_queue_flow_tag_before(const fg_queue_node *a, const fg_queue_node *b)
{
    const fg_queue_flow *x = FLOW_OF(a, by_tag), *y = FLOW_OF(b, by_tag);
    uint64_t x_tag = x->tags[x->level], y_tag = y->tags[y->level];
    return x_tag != y_tag ? x_tag < y_tag : item_before(fg_queue_first_of(x), fg_queue_first_of(y));
}

static uint32_t level_of(uint64_t rank, uint64_t now_ns)
{
    return rank <= now_ns ? 0 : rank - now_ns <= FG_SCHED_AGE_NS ? 1 : 2;
}

/* ---- flows in and out of their level ---- */

uint64_t fg_queue_tag_step(const fg_queue_flow *flow, uint64_t cost)
{
    cost = cost < FG_QUEUE_COST_MAX ? cost : FG_QUEUE_COST_MAX;
    return (cost * FG_QUEUE_WEIGHT_MAX + flow->weight - 1) / flow->weight;
}

void fg_queue_stand_at(fg_queue *queue, fg_queue_flow *flow, uint32_t level)
{
    if (flow->level != level) {
        uint64_t now = queue->levels[level].now;
        flow->tags[level] = flow->tags[level] > now ? flow->tags[level] : now;
        flow->level = level;
    }
}

void fg_queue_detach(fg_queue *queue, fg_queue_flow *flow)
{
    if (flow->attached) {
        fg_queue_level *line = &queue->levels[flow->level];
        fg_queue_heap_remove(&line->by_tag, &flow->by_tag);
        fg_queue_heap_remove(&line->by_rank, &flow->by_rank);
        flow->attached = false;
    }
}

bool fg_queue_is_capped(const fg_queue *queue, const fg_queue_flow *flow)
{
    uint32_t max = queue->options.tenant_running_max;
    return max > 0 && flow->running >= max;
}

/* Of a flow's items that are aside, the one that was next. */
static const fg_queue_item *first_aside(const fg_queue *queue, const fg_queue_flow *flow)
{
    uint32_t at = 0;
    while (queue->aside[at]->flow != flow) {
        at++;
    }
    return queue->aside[at];
}

void fg_queue_attach(fg_queue *queue, fg_queue_flow *flow)
{
    const fg_queue_item *first = fg_queue_first_of(flow);
    if (flow->requests == 0 || fg_queue_is_capped(queue, flow)) {
        flow->level = FG_QUEUE_NO_LEVEL; /* what it misses meanwhile is not made up */
    } else if (first != NULL) {
        fg_queue_stand_at(queue, flow, level_of(first->rank, queue->now_ns));
        fg_queue_heap_add(&queue->levels[flow->level].by_tag, &flow->by_tag);
        fg_queue_heap_add(&queue->levels[flow->level].by_rank, &flow->by_rank);
        flow->attached = true;
    } else if (flow->level == FG_QUEUE_NO_LEVEL) {
        /* Its cap held it while all that it has was aside: it waits again from now on. */
        first = first_aside(queue, flow);
        fg_queue_stand_at(queue, flow, level_of(first->rank, queue->now_ns));
    }
}

void fg_queue_promote(fg_queue *queue)
{
    for (uint32_t level = 1; level < FG_QUEUE_LEVELS; level++) {
        fg_queue_node *oldest;
        while ((oldest = queue->levels[level].by_rank.root) != NULL) {
            fg_queue_flow *flow = FLOW_OF(oldest, by_rank);
            if (level_of(fg_queue_first_of(flow)->rank, queue->now_ns) >= level) {
                break;
            }
            fg_queue_detach(queue, flow);
            fg_queue_attach(queue, flow);
        }
    }
}

/* ---- records of tenants ---- */

static fg_queue_flow **bucket_of(const fg_queue *queue, uint64_t tenant)
{
    return &queue->buckets[(uint32_t)fg_hash_mix(tenant) & queue->bucket_mask];
}

fg_queue_flow *fg_queue_find_flow(const fg_queue *queue, uint64_t tenant)
{
    fg_queue_flow *flow = *bucket_of(queue, tenant);
    while (flow != NULL && flow->tenant != tenant) {
        flow = flow->next_in_bucket;
    }
    return flow;
}

static void unlink_flow(fg_queue_flows *list, fg_queue_flow *flow)
{
    *(flow->previous != NULL ? &flow->previous->next : &list->first) = flow->next;
    *(flow->next != NULL ? &flow->next->previous : &list->last) = flow->previous;
    flow->next = flow->previous = NULL;
    list->count--;
}

static void link_last(fg_queue_flows *list, fg_queue_flow *flow)
{
    flow->previous = list->last;
    *(list->last != NULL ? &list->last->next : &list->first) = flow;
    list->last = flow;
    list->count++;
}

static void drop_flow(fg_queue *queue, fg_queue_flow *flow)
{
    fg_queue_flow **at = bucket_of(queue, flow->tenant);
    while (*at != flow) {
        at = &(*at)->next_in_bucket;
    }
    *at = flow->next_in_bucket;
    *flow = (fg_queue_flow){ .next = queue->free };
    queue->free = flow;
}

void fg_queue_rest(fg_queue *queue, fg_queue_flow *flow)
{
    if (flow->requests + flow->running > 0) {
        return;
    }
    unlink_flow(&queue->active, flow);
    bool owes = false;
    for (uint32_t level = 0; level < FG_QUEUE_LEVELS; level++) {
        owes = owes || flow->tags[level] > queue->levels[level].now;
    }
    if (!owes) {
        drop_flow(queue, flow);
        return;
    }
    link_last(&queue->idle, flow);
}

fg_queue_flow *fg_queue_need_flow(fg_queue *queue, uint64_t tenant)
{
    fg_queue_flow *flow = fg_queue_find_flow(queue, tenant);
    if (flow != NULL && flow->requests + flow->running > 0) {
        return flow;
    }
    if (flow != NULL) {
        unlink_flow(&queue->idle, flow);
    } else {
        if (queue->free == NULL) {
            fg_queue_flow *oldest = queue->idle.first;
            unlink_flow(&queue->idle, oldest);
            drop_flow(queue, oldest);
        }
        flow = queue->free;
        queue->free = flow->next;
        fg_queue_flow **bucket = bucket_of(queue, tenant);
        *flow = (fg_queue_flow){ .tenant = tenant, .next_in_bucket = *bucket };
        *bucket = flow;
        flow->items.before = rank_before;
    }
    link_last(&queue->active, flow);
    flow->level = FG_QUEUE_NO_LEVEL;
    uint32_t weight =
        queue->options.weight_of != NULL ? queue->options.weight_of(queue->options.ctx, tenant) : 1;
    flow->weight = weight < 1 ? 1 : weight > FG_QUEUE_WEIGHT_MAX ? FG_QUEUE_WEIGHT_MAX : weight;
    return flow;
}

/* ---- what is remembered while nobody is here ---- */

void fg_queue_memory_get(const fg_queue *queue, fg_queue_memory *memory_out)
{
    *memory_out =
        (fg_queue_memory){ .now_ns = queue->now_ns, .takes_since_late = queue->takes_since_late };
    for (uint32_t level = 0; level < FG_QUEUE_LEVELS; level++) {
        memory_out->level_now[level] = queue->levels[level].now;
    }
}

bool fg_queue_debt_next(const fg_queue *queue, const fg_queue_flow **at, fg_queue_debt *debt_out)
{
    *at = *at == NULL ? queue->idle.first : (*at)->next;
    if (*at == NULL) {
        return false;
    }
    debt_out->tenant = (*at)->tenant;
    memcpy(debt_out->tags, (*at)->tags, sizeof debt_out->tags);
    return true;
}

void fg_queue_tell_memory(fg_queue *queue, const fg_queue_memory *memory)
{
    queue->now_ns = memory->now_ns;
    queue->takes_since_late = memory->takes_since_late;
    for (uint32_t level = 0; level < FG_QUEUE_LEVELS; level++) {
        queue->levels[level].now = memory->level_now[level];
    }
}

void fg_queue_tell_debt(fg_queue *queue, const fg_queue_debt *debt)
{
    fg_queue_flow *flow = fg_queue_need_flow(queue, debt->tenant);
    memcpy(flow->tags, debt->tags, sizeof flow->tags);
    fg_queue_rest(queue, flow);
}
