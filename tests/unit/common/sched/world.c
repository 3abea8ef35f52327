#include "tests/unit/common/sched/world.h"

#include <string.h>

#include "common/base/hash.h"
#include "tests/support/test.h"
#include "tests/unit/common/sched/plan_check.h"

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static uint32_t blocks_for(const world *w, uint32_t tokens)
{
    return (tokens + w->limits.block_size - 1) / w->limits.block_size;
}

void world_init(world *w, uint32_t blocks, uint32_t block_size)
{
    memset(w, 0, sizeof *w);
    w->limits = (fg_sched_limits){
        .step_tokens_max = 4096, .chunk_tokens_max = 4096, .seqs_max = 16, .block_size = block_size
    };
    w->blocks = blocks;
    w->free = blocks;
}

/* The last chosen token is never stored. */
static uint32_t need_all(const world *w, const world_request *r)
{
    return blocks_for(w, r->prompt + r->output_max - 1);
}

uint32_t world_add(world *w, uint32_t prompt, uint32_t output_max)
{
    return world_add_with(w, prompt, output_max, -1);
}

/* Preempted ones first, by arrival; then by rank. */
static bool waits_before(const world *w, uint32_t a, uint32_t b)
{
    const world_request *x = &w->requests[a], *y = &w->requests[b];
    if (x->preempted != y->preempted) {
        return x->preempted;
    }
    return !x->preempted && x->rank != y->rank ? x->rank < y->rank : a < b;
}

static void enqueue(world *w, uint32_t request)
{
    uint32_t at = w->waiting_count++;
    for (; at > 0 && waits_before(w, request, w->waiting[at - 1]); at--) {
        w->waiting[at] = w->waiting[at - 1];
    }
    w->waiting[at] = request;
    w->requests[request].state = WAITING;
}

uint32_t world_add_with(world *w, uint32_t prompt, uint32_t output_max, int32_t priority)
{
    world_request *r = &w->requests[w->request_count];
    cr_assert(w->request_count < WORLD_REQUESTS_MAX, "the world is full");
    *r = (world_request){ .prompt = prompt,
                          .output_max = output_max,
                          .priority = priority,
                          .rank = fg_sched_rank(w->now_ns, priority) };
    bool all = w->limits.admission == FG_ADMIT_NO_EVICT;
    if ((all ? need_all(w, r) : blocks_for(w, prompt)) > w->blocks) {
        return UINT32_MAX;
    }
    enqueue(w, w->request_count);
    return w->request_count++;
}

static fg_sched_seq seq_of(const world *w, uint32_t request)
{
    const world_request *r = &w->requests[request];
    uint32_t left = r->prompt + r->output - r->computed;
    return (fg_sched_seq){ .arrival = request,
                           .tokens_left = left,
                           .decoding = r->output > 0 && left == 1,
                           .slots_used = r->computed,
                           .blocks = r->blocks,
                           .promised = r->promised,
                           .frees = r->blocks + r->promised,
                           .output_tokens = r->output,
                           .redo_tokens = w->cache_keeps ? 1 : r->computed };
}

static fg_sched_wait wait_of(const world *w, uint32_t request)
{
    const world_request *r = &w->requests[request];
    uint32_t tokens = r->prompt + r->output;
    bool kept = w->cache_keeps && r->preempted && r->output > 0 && !r->swapped;
    uint32_t need = blocks_for(w, tokens), all = need_all(w, r);
    return (fg_sched_wait){ .tokens_left = kept ? 1 : tokens - r->computed,
                            .need = need,
                            .need_all = need > all ? need : all,
                            .decoding = kept,
                            .restores = r->swapped };
}

static void let_go(world *w, world_request *r)
{
    w->free += r->blocks + r->promised;
    r->blocks = 0;
    r->promised = 0;
}

static void end(world *w, uint32_t request)
{
    world_request *r = &w->requests[request];
    cr_assert(r->state == RUNNING, "request %u ends twice", request);
    let_go(w, r);
    r->state = ENDED;
    r->ended_step = w->step;
    w->ended_count++;
}

static void apply_victims(world *w)
{
    for (uint32_t k = 0; k < w->plan.victim_count; k++) {
        uint32_t request = w->running[w->plan.victims[k].seq];
        world_request *r = &w->requests[request];
        cr_assert(r->admitted_step < w->step, "request %u is evicted as it comes", request);
        if (w->plan.victims[k].swap) {
            cr_assert(r->blocks <= w->tier_free, "the tier is full");
            w->tier_free -= r->blocks;
            r->swapped = true;
            r->swaps++;
        } else {
            r->computed = 0;
        }
        let_go(w, r);
        r->preempted = true;
        r->preemptions++;
        r->preempted_step = w->step;
        enqueue(w, request);
    }
}

/* `line` holds the waiting ones as the plan saw them. */
static void apply_admits(world *w, const uint32_t *line)
{
    for (uint32_t k = 0; k < w->plan.admit_count; k++) {
        uint32_t request = line[w->plan.admits[k]], at = 0;
        world_request *r = &w->requests[request];
        const fg_sched_wait *wait = &w->waits[w->plan.admits[k]];
        uint32_t takes = w->limits.admission == FG_ADMIT_NO_EVICT ? wait->need_all : wait->need;
        cr_assert(takes <= w->free, "step %llu: admitted without blocks",
                  (unsigned long long)w->step);
        w->free -= takes;
        r->promised = takes;
        if (r->swapped || wait->tokens_left < r->prompt + r->output - r->computed) {
            r->computed = r->swapped ? r->computed : r->prompt + r->output - 1;
            r->blocks = blocks_for(w, r->computed);
            r->promised -= r->blocks;
            w->tier_free += r->swapped ? r->blocks : 0;
        }
        r->swapped = false;
        r->preempted = false;
        r->state = RUNNING;
        r->admits++;
        r->admitted_step = w->step;
        while (w->waiting[at] != request) {
            at++;
        }
        w->waiting_count--;
        memmove(&w->waiting[at], &w->waiting[at + 1], (w->waiting_count - at) * sizeof *w->waiting);
        w->running[w->running_count++] = request;
    }
}

static void apply_item(world *w, uint32_t request, const fg_plan_item *item)
{
    world_request *r = &w->requests[request];
    uint32_t more = blocks_for(w, r->computed + item->token_count) - r->blocks;
    uint32_t promised = smaller(more, r->promised);
    r->promised -= promised;
    cr_assert(more - promised <= w->free, "step %llu: out of blocks in the middle of a step",
              (unsigned long long)w->step);
    w->free -= more - promised;
    r->blocks += more;
    r->computed += item->token_count;
    r->computed_total += item->token_count;
    if (item->sample) {
        cr_assert_eq(r->computed, r->prompt + r->output, "request %u samples too early", request);
        r->output++;
        if (r->output == r->output_max || r->output == r->stop_after) {
            end(w, request);
        }
    }
}

static void recount(const world *w)
{
    uint32_t held = 0;
    for (uint32_t i = 0; i < w->running_count; i++) {
        const world_request *r = &w->requests[w->running[i]];
        held += r->blocks + r->promised;
        /* Never more than a block's slots less one lie idle in what it took (R25). */
        cr_assert(r->blocks * w->limits.block_size - r->computed < w->limits.block_size,
                  "request %u wastes slots", w->running[i]);
    }
    cr_assert_eq(held + w->free, w->blocks, "step %llu: %u held and %u free of %u",
                 (unsigned long long)w->step, held, w->free, w->blocks);
}

static void make_plan(world *w, uint32_t wait_count)
{
    fg_sched_input in = { .limits = &w->limits,
                          .cost = w->cost,
                          .seqs = w->seqs,
                          .seq_count = w->running_count,
                          .waits = w->waits,
                          .wait_count = wait_count,
                          .available = w->free,
                          .tier_available = w->tier_free,
                          .may_preempt = true };
    for (uint32_t i = 0; i < w->running_count; i++) {
        w->seqs[i] = seq_of(w, w->running[i]);
    }
    w->plan = (fg_sched_plan){ .items = w->items, .victims = w->victims, .admits = w->admits };
    fg_sched_plan_step(&in, &w->plan);
    const char *wrong = check_plan(&in, &w->plan);
    cr_assert(wrong == NULL, "step %llu: %s", (unsigned long long)w->step, wrong);
    for (uint32_t k = 0; k < w->plan.item_count; k++) {
        uint64_t x = (uint64_t)w->items[k].seq << 32 | w->items[k].token_count;
        w->hash = fg_hash_mix(w->hash ^ x);
    }
    for (uint32_t k = 0; k < w->plan.victim_count; k++) {
        w->hash = fg_hash_mix(w->hash ^ (w->victims[k].seq + 77));
    }
}

bool world_step(world *w)
{
    static uint32_t line[WORLD_WAITS_MAX];
    uint32_t wait_count = smaller(w->waiting_count, WORLD_WAITS_MAX), kept = 0;
    w->step++;
    w->now_ns += 1000000000;
    for (uint32_t i = 0; i < wait_count; i++) {
        line[i] = w->waiting[i];
        w->waits[i] = wait_of(w, line[i]);
    }
    make_plan(w, wait_count);
    apply_victims(w);
    apply_admits(w, line);
    for (uint32_t k = 0; k < w->plan.item_count; k++) {
        w->item_of[k] = w->running[w->items[k].seq];
        apply_item(w, w->item_of[k], &w->items[k]);
    }
    if (w->plan.at_capacity != UINT32_MAX) {
        uint32_t request = w->running[w->plan.at_capacity];
        w->requests[request].at_capacity = true;
        end(w, request);
    }
    for (uint32_t i = 0; i < w->running_count; i++) {
        if (w->requests[w->running[i]].state == RUNNING) {
            w->running[kept++] = w->running[i];
        }
    }
    w->running_count = kept;
    recount(w);
    return w->plan.item_count + w->plan.victim_count + w->plan.admit_count > 0 ||
           w->plan.at_capacity != UINT32_MAX;
}

void world_run(world *w, uint64_t steps_max)
{
    for (uint64_t i = 0; world_step(w); i++) {
        cr_assert(i < steps_max, "still not done after %llu steps", (unsigned long long)steps_max);
    }
    cr_assert_eq(w->ended_count, w->request_count, "%u of %u ended", w->ended_count,
                 w->request_count);
    cr_assert_eq(w->free, w->blocks);
}

uint32_t world_tokens_of(const world *w, uint32_t request)
{
    for (uint32_t k = 0; k < w->plan.item_count; k++) {
        if (w->item_of[k] == request) {
            return w->items[k].token_count;
        }
    }
    return 0;
}
