#include "router/queue.h"

#include "common/base/limits.h"
#include "common/base/mem.h"
#include "router/queue_internal.h"

_Static_assert(FG_QUEUE_COST_MAX == FG_LIMIT_CONTEXT_TOKENS,
               "an item costs at most a whole context");

/* ---- creation ---- */

fg_status fg_queue_create(const fg_queue_options *options, fg_queue **queue_out, fg_error *err)
{
    uint32_t live_max = options->live_max;
    if (live_max == 0 || live_max > 1u << 24 || options->ahead_max > FG_QUEUE_AHEAD_MAX) {
        return fg_fail(err, FG_BAD_INPUT, "a queue of %u requests, %u aside, is out of range",
                       live_max, options->ahead_max);
    }
    uint32_t bucket_count = 1;
    while (bucket_count < 2 * live_max) {
        bucket_count *= 2;
    }
    fg_queue *queue = fg_mem_alloc(sizeof *queue);
    fg_queue_flow *flows = fg_mem_array(live_max, sizeof *flows);
    fg_queue_flow **buckets = fg_mem_array(bucket_count, sizeof *buckets);
    if (queue == NULL || flows == NULL || buckets == NULL) {
        fg_mem_free(queue);
        fg_mem_free(flows);
        fg_mem_free(buckets);
        return fg_fail(err, FG_AGAIN, "out of memory for the queue");
    }
    queue->options = *options;
    queue->flows = flows;
    queue->buckets = buckets;
    queue->bucket_mask = bucket_count - 1;
    queue->by_give_up.before = fg_queue_give_up_before;
    for (uint32_t level = 0; level < FG_QUEUE_LEVELS; level++) {
        queue->levels[level].by_tag.before = fg_queue_flow_tag_before;
        queue->levels[level].by_rank.before = fg_queue_flow_rank_before;
    }
    for (uint32_t i = live_max; i > 0; i--) {
        flows[i - 1].next = queue->free;
        queue->free = &flows[i - 1];
    }
    *queue_out = queue;
    return FG_OK;
}

void fg_queue_destroy(fg_queue *queue)
{
    if (queue != NULL) {
        fg_mem_free(queue->flows);
        fg_mem_free(queue->buckets);
        fg_mem_free(queue);
    }
}

/* ---- items in and out of the line ---- */

static uint64_t *class_tokens(fg_queue *queue, const fg_queue_item *item)
{
    return &queue->class_tokens[item->priority + 1];
}

/* Its flow is detached. */
static void enter(fg_queue *queue, fg_queue_item *item)
{
    fg_queue_flow *flow = item->flow;
    queue->weights += flow->requests == 0 ? flow->weight : 0;
    flow->requests++;
    flow->tokens += item->tokens;
    flow->cost += item->cost;
    queue->load.requests++;
    queue->load.tokens += item->tokens;
    queue->load.cost += item->cost;
    *class_tokens(queue, item) += item->tokens;
    item->place = FG_QUEUE_LINE;
    fg_queue_heap_add(&flow->items, &item->by_rank);
    if (item->give_up_ns != 0) {
        fg_queue_heap_add(&queue->by_give_up, &item->by_give_up);
    }
}

static void leave_aside(fg_queue *queue, const fg_queue_item *item)
{
    uint32_t at = 0;
    while (queue->aside[at] != item) {
        at++;
    }
    queue->aside_count--;
    for (; at < queue->aside_count; at++) {
        queue->aside[at] = queue->aside[at + 1];
    }
}

/* Its flow is detached; it is in line or aside. */
static void leave(fg_queue *queue, fg_queue_item *item)
{
    fg_queue_flow *flow = item->flow;
    if (item->place == FG_QUEUE_LINE) {
        fg_queue_heap_remove(&flow->items, &item->by_rank);
    } else {
        leave_aside(queue, item);
    }
    if (item->give_up_ns != 0) {
        fg_queue_heap_remove(&queue->by_give_up, &item->by_give_up);
    }
    flow->requests--;
    flow->tokens -= item->tokens;
    flow->cost -= item->cost;
    queue->weights -= flow->requests == 0 ? flow->weight : 0;
    queue->load.requests--;
    queue->load.tokens -= item->tokens;
    queue->load.cost -= item->cost;
    *class_tokens(queue, item) -= item->tokens;
}

static bool has_room(const fg_queue *queue, const fg_queue_item *item)
{
    const fg_queue_options *o = &queue->options;
    const fg_queue_load *load = &queue->load;
    if (load->requests >= o->requests_max || load->requests + load->running >= o->live_max ||
        item->tokens > o->tokens_max || load->tokens > o->tokens_max - item->tokens) {
        return false;
    }
    fg_queue_load own;
    fg_queue_tenant_get(queue, item->tenant, &own);
    uint64_t tokens_max = o->tenant_tokens_max;
    return (o->tenant_requests_max == 0 || own.requests < o->tenant_requests_max) &&
           (tokens_max == 0 ||
            (item->tokens <= tokens_max && own.tokens <= tokens_max - item->tokens));
}

fg_status fg_queue_push(fg_queue *queue, fg_queue_item *item)
{
    FG_ASSERT(item->place == FG_QUEUE_OUT && item->priority >= -1 && item->priority <= 1);
    if (!has_room(queue, item)) {
        return FG_AGAIN;
    }
    fg_queue_flow *flow = fg_queue_need_flow(queue, item->tenant);
    item->rank = fg_sched_rank(item->queued_ns, item->priority);
    item->passed = 0;
    item->charged = 0;
    item->flow = flow;
    fg_queue_detach(queue, flow);
    enter(queue, item);
    fg_queue_attach(queue, flow);
    return FG_OK;
}

void fg_queue_put_back(fg_queue *queue, fg_queue_item *item)
{
    FG_ASSERT(item->place == FG_QUEUE_RUNNING);
    fg_queue_flow *flow = item->flow;
    fg_queue_detach(queue, flow);
    flow->running--;
    queue->load.running--;
    if (flow->level == FG_QUEUE_NO_LEVEL) {
        /* Idle since: it stands before who is served now, by its own cost and no more. */
        fg_queue_stand_at(queue, flow, item->level);
    }
    flow->tags[item->level] -= item->charged;
    item->charged = 0;
    enter(queue, item);
    fg_queue_attach(queue, flow);
}

/* ---- who is next ---- */

static bool is_late(const fg_queue *queue, const fg_queue_item *item)
{
    return item->rank <= queue->now_ns && queue->now_ns - item->rank >= FG_QUEUE_LATE_NS;
}

/* Of those who may go, the item of the smallest rank, when that is late; else NULL. */
static fg_queue_item *latest(const fg_queue *queue)
{
    const fg_queue_node *node = queue->levels[0].by_rank.root; /* late ones are at level 0 */
    fg_queue_item *item = node != NULL ? fg_queue_first_of(FLOW_OF(node, by_rank)) : NULL;
    return item != NULL && is_late(queue, item) ? item : NULL;
}

fg_queue_item *fg_queue_peek(fg_queue *queue, uint64_t now_ns)
{
    queue->now_ns = now_ns > queue->now_ns ? now_ns : queue->now_ns;
    fg_queue_promote(queue);
    if (queue->takes_since_late + 1 >= FG_QUEUE_LATE_EVERY) {
        fg_queue_item *late = latest(queue);
        if (late != NULL) {
            return late;
        }
    }
    for (uint32_t level = 0; level < FG_QUEUE_LEVELS; level++) {
        const fg_queue_node *node = queue->levels[level].by_tag.root;
        if (node != NULL) {
            return fg_queue_first_of(FLOW_OF(node, by_tag));
        }
    }
    return NULL;
}

bool fg_queue_skip(fg_queue *queue, fg_queue_item *item)
{
    return item->passed < queue->options.pass_max &&
           fg_queue_hold(queue, item, queue->options.ahead_max);
}

bool fg_queue_hold(fg_queue *queue, fg_queue_item *item, uint32_t most)
{
    fg_queue_flow *flow = item->flow;
    FG_ASSERT(item->place == FG_QUEUE_LINE && flow->attached && fg_queue_first_of(flow) == item);
    if (queue->aside_count >= (most < FG_QUEUE_AHEAD_MAX ? most : FG_QUEUE_AHEAD_MAX)) {
        return false;
    }
    fg_queue_detach(queue, flow);
    fg_queue_heap_remove(&flow->items, &item->by_rank);
    item->place = FG_QUEUE_ASIDE;
    queue->aside[queue->aside_count++] = item;
    fg_queue_attach(queue, flow);
    return true;
}

void fg_queue_rewind(fg_queue *queue)
{
    while (queue->aside_count > 0) {
        fg_queue_item *item = queue->aside[--queue->aside_count];
        fg_queue_detach(queue, item->flow);
        item->place = FG_QUEUE_LINE;
        fg_queue_heap_add(&item->flow->items, &item->by_rank);
        fg_queue_attach(queue, item->flow);
    }
}

/* Sets the flow's tag forward, but no further from now than one largest item reaches. */
static uint64_t charge(fg_queue *queue, fg_queue_flow *flow, uint32_t level, uint64_t step)
{
    uint64_t before = flow->tags[level];
    uint64_t end = queue->levels[level].now + fg_queue_tag_step(flow, FG_QUEUE_COST_MAX);
    uint64_t after = before + step < end ? before + step : end;
    flow->tags[level] = after > before ? after : before;
    return flow->tags[level] - before;
}

void fg_queue_take(fg_queue *queue, fg_queue_item *item)
{
    fg_queue_flow *flow = item->flow;
    FG_ASSERT(item->place == FG_QUEUE_LINE && flow->attached && fg_queue_first_of(flow) == item);
    const fg_queue_item *late = latest(queue);
    queue->takes_since_late = late == NULL || late == item ? 0 : queue->takes_since_late + 1;
    fg_queue_level *line = &queue->levels[flow->level];
    const fg_queue_flow *smallest = FLOW_OF(line->by_tag.root, by_tag);
    uint64_t tag = smallest->tags[flow->level];
    line->now = tag > line->now ? tag : line->now;
    item->level = flow->level;
    fg_queue_detach(queue, flow);
    leave(queue, item);
    item->charged = charge(queue, flow, item->level, fg_queue_tag_step(flow, item->cost));
    item->place = FG_QUEUE_RUNNING;
    flow->running++;
    queue->load.running++;
    fg_queue_attach(queue, flow);
    for (uint32_t i = 0; i < queue->aside_count; i++) {
        queue->aside[i]->passed++;
    }
}

static void settle(fg_queue *queue, const fg_queue_item *item, uint64_t served_cost)
{
    fg_queue_flow *flow = item->flow;
    uint64_t step = fg_queue_tag_step(flow, served_cost);
    if (step >= item->charged) {
        charge(queue, flow, item->level, step - item->charged);
    } else {
        flow->tags[item->level] -= item->charged - step;
    }
}

void fg_queue_remove(fg_queue *queue, fg_queue_item *item, uint64_t served_cost)
{
    fg_queue_flow *flow = item->flow;
    if (item->place == FG_QUEUE_OUT) {
        return;
    }
    fg_queue_detach(queue, flow);
    if (item->place == FG_QUEUE_RUNNING) {
        flow->running--;
        queue->load.running--;
        settle(queue, item, served_cost);
    } else {
        leave(queue, item);
    }
    item->place = FG_QUEUE_OUT;
    item->flow = NULL;
    fg_queue_attach(queue, flow);
    fg_queue_rest(queue, flow);
}

fg_queue_item *fg_queue_hopeless(const fg_queue *queue, uint64_t now_ns)
{
    const fg_queue_node *node = queue->by_give_up.root;
    fg_queue_item *item = node != NULL ? ITEM_OF(node, by_give_up) : NULL;
    return item != NULL && item->give_up_ns <= now_ns ? item : NULL;
}

/* ---- questions ---- */

void fg_queue_load_get(const fg_queue *queue, fg_queue_load *load_out)
{
    *load_out = queue->load;
}

void fg_queue_tenant_get(const fg_queue *queue, uint64_t tenant, fg_queue_load *load_out)
{
    const fg_queue_flow *flow = fg_queue_find_flow(queue, tenant);
    *load_out = flow == NULL ? (fg_queue_load){ 0 }
                             : (fg_queue_load){ .requests = flow->requests,
                                                .tokens = flow->tokens,
                                                .cost = flow->cost,
                                                .running = flow->running };
}

double fg_queue_share(const fg_queue *queue, uint64_t tenant)
{
    const fg_queue_flow *flow = fg_queue_find_flow(queue, tenant);
    uint64_t weight = flow != NULL ? flow->weight : 1;
    uint64_t others = queue->weights - (flow != NULL && flow->requests > 0 ? weight : 0);
    return (double)weight / (double)(weight + others);
}

uint64_t fg_queue_tokens_ahead(const fg_queue *queue, uint64_t tenant, int32_t priority,
                               uint32_t cost)
{
    fg_queue_load own;
    fg_queue_tenant_get(queue, tenant, &own);
    uint64_t tokens = 0;
    for (int32_t class = 0; class <= priority + 1 && class < FG_QUEUE_CLASSES; class ++) {
        tokens += queue->class_tokens[class];
    }
    /* While a tenant gets its own cost served, all together get that over its share. */
    double meanwhile = (double)(own.cost + cost) / fg_queue_share(queue, tenant) - cost;
    double all = (double)queue->load.cost;
    return meanwhile >= all ? tokens : (uint64_t)((double)tokens * meanwhile / all);
}

/* ---- the recount ---- */

static void check_flow(const fg_queue *queue, const fg_queue_flow *flow, fg_queue_load *sums)
{
    uint32_t aside = 0;
    uint64_t tokens = 0, cost = 0;
    for (uint32_t i = 0; i < queue->aside_count; i++) {
        const fg_queue_item *item = queue->aside[i];
        FG_ASSERT(item->place == FG_QUEUE_ASIDE);
        aside += item->flow == flow;
        tokens += item->flow == flow ? item->tokens : 0;
        cost += item->flow == flow ? item->cost : 0;
    }
    for (const fg_queue_node *node = fg_queue_heap_next(&flow->items, NULL); node != NULL;
         node = fg_queue_heap_next(&flow->items, node)) {
        const fg_queue_item *item = ITEM_OF(node, by_rank);
        FG_ASSERT(item->place == FG_QUEUE_LINE && item->flow == flow && item->charged == 0);
        FG_ASSERT(item->rank == fg_sched_rank(item->queued_ns, item->priority));
        tokens += item->tokens;
        cost += item->cost;
    }
    FG_ASSERT(fg_queue_heap_check(&flow->items) + aside == flow->requests);
    FG_ASSERT(tokens == flow->tokens && cost == flow->cost);
    FG_ASSERT(flow->attached == (flow->items.root != NULL && !fg_queue_is_capped(queue, flow)));
    bool waits = flow->requests > 0 && !fg_queue_is_capped(queue, flow);
    FG_ASSERT((flow->level < FG_QUEUE_LEVELS) == waits);
    for (uint32_t level = 0; level < FG_QUEUE_LEVELS; level++) {
        FG_ASSERT(flow->tags[level] <=
                  queue->levels[level].now + fg_queue_tag_step(flow, FG_QUEUE_COST_MAX));
    }
    FG_ASSERT(fg_queue_find_flow(queue, flow->tenant) == flow);
    sums->requests += flow->requests;
    sums->tokens += flow->tokens;
    sums->cost += flow->cost;
    sums->running += flow->running;
}

static uint32_t check_level(const fg_queue *queue, uint32_t level)
{
    const fg_queue_level *line = &queue->levels[level];
    size_t count = fg_queue_heap_check(&line->by_tag);
    FG_ASSERT(fg_queue_heap_check(&line->by_rank) == count);
    for (const fg_queue_node *node = fg_queue_heap_next(&line->by_tag, NULL); node != NULL;
         node = fg_queue_heap_next(&line->by_tag, node)) {
        FG_ASSERT(FLOW_OF(node, by_tag)->attached && FLOW_OF(node, by_tag)->level == level);
    }
    return (uint32_t)count;
}

void fg_queue_check(const fg_queue *queue)
{
    fg_queue_load sums = { 0 };
    uint64_t weights = 0;
    uint32_t attached = 0, active = 0, idle = 0;
    for (const fg_queue_flow *flow = queue->active.first; flow != NULL; flow = flow->next) {
        check_flow(queue, flow, &sums);
        FG_ASSERT(flow->requests + flow->running > 0);
        active++;
        attached += flow->attached;
        weights += flow->requests > 0 ? flow->weight : 0;
    }
    for (const fg_queue_flow *flow = queue->idle.first; flow != NULL; flow = flow->next) {
        check_flow(queue, flow, &sums);
        FG_ASSERT(flow->requests + flow->running == 0);
        idle++;
    }
    FG_ASSERT(active == queue->active.count && idle == queue->idle.count);
    FG_ASSERT((queue->free == NULL) == (active + idle == queue->options.live_max));
    FG_ASSERT(sums.requests == queue->load.requests && sums.tokens == queue->load.tokens);
    FG_ASSERT(sums.cost == queue->load.cost && sums.running == queue->load.running);
    FG_ASSERT(weights == queue->weights);
    FG_ASSERT(queue->class_tokens[0] + queue->class_tokens[1] + queue->class_tokens[2] ==
              queue->load.tokens);
    for (uint32_t level = 0; level < FG_QUEUE_LEVELS; level++) {
        attached -= check_level(queue, level);
    }
    FG_ASSERT(attached == 0);
    FG_ASSERT(queue->load.requests + queue->load.running <= queue->options.live_max);
}
