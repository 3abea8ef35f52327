#include "router/placement_internal.h"

#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/kv/layout.h"
#include "proto/wire.h"

enum { BOTH = FG_ROLE_PREFILL | FG_ROLE_DECODE };

static bool can_hold(const fg_place_worker *worker, uint32_t tokens)
{
    return worker->block_size > 0 && tokens <= worker->context_max &&
           fg_kv_blocks_for(tokens, worker->block_size) <= worker->block_count;
}

/* The block beyond the prompt is the answer's first, unless prompt and answer need no further one: what
 * can_hold lets in must have room in an empty worker. */
uint32_t fg_place_first_blocks(const fg_place_worker *worker, const fg_place_request *request)
{
    uint32_t begin = fg_kv_blocks_for(request->prompt_tokens, worker->block_size) + 1;
    uint32_t all = fg_kv_blocks_for(request->total_tokens, worker->block_size);
    return begin < all ? begin : all;
}

/* Where a hand-over goes. */
static bool has_room(const fg_place_worker *worker, const fg_place_request *request)
{
    return worker->decodes < worker->max_seqs && worker->blocks_used <= worker->block_count &&
           fg_place_first_blocks(worker, request) <= worker->block_count - worker->blocks_used;
}

/* Where a worker does all: its batch, and as many again in its line. */
static bool has_line(const fg_place_worker *worker, uint32_t placed)
{
    return placed < FG_PLACE_LINE * (uint64_t)worker->max_seqs;
}

/* Meant for both phases: keeps a line of its own. */
static bool is_mixed(const fg_place_task *task, const fg_place_worker *worker)
{
    return task->options->split == FG_PLACE_UNSPLIT || worker->roles == BOTH;
}

/* A worker that is meant for prompts only keeps the decoding of one when that is better; it does not
 * stand in for a decode role that nobody has. */
static bool is_meant_for_all(const fg_place_task *task, uint32_t roles)
{
    switch (task->options->split) {
    case FG_PLACE_ALWAYS:
        return roles == BOTH;
    case FG_PLACE_AUTO:
        return (task->roles & FG_ROLE_DECODE) != 0;
    default:
        return true;
    }
}

uint32_t fg_place_may(const fg_place_task *task, uint32_t worker)
{
    const fg_place_worker *w = &task->workers[worker];
    if (w->roles == 0 || !can_hold(w, task->request->total_tokens)) {
        return 0;
    }
    uint32_t ways = 0;
    if (task->options->split != FG_PLACE_UNSPLIT && (w->can & FG_PLACE_CAN_LINK) != 0) {
        ways |= w->roles & FG_ROLE_PREFILL ? FG_PLACE_AS_PREFILL : 0;
        ways |= w->roles & FG_ROLE_DECODE ? FG_PLACE_AS_DECODE : 0;
    }
    if ((w->can & FG_PLACE_CAN_WHOLE) != 0 && is_meant_for_all(task, w->roles)) {
        ways |= FG_PLACE_AS_WHOLE;
    }
    return ways;
}

/* By role alone, moving KV between two workers that are meant for both gains nothing. */
bool fg_place_may_pair(const fg_place_task *task, uint32_t prefill, uint32_t decode)
{
    bool mixed = task->workers[prefill].roles == BOTH && task->workers[decode].roles == BOTH;
    return prefill != decode && !(mixed && task->options->split == FG_PLACE_ALWAYS);
}

uint32_t fg_place_with_room(const fg_place_task *task, uint32_t worker, uint32_t ways)
{
    const fg_place_worker *w = &task->workers[worker];
    bool prefill = w->roles == BOTH ? has_line(w, w->prefills) : w->prefills < w->max_seqs;
    if (!prefill) {
        ways &= ~(uint32_t)FG_PLACE_AS_PREFILL;
    }
    if (w->full) {
        return ways & FG_PLACE_AS_PREFILL;
    }
    bool room = has_room(w, task->request);
    if (!room) {
        ways &= ~(uint32_t)FG_PLACE_AS_DECODE;
    }
    bool whole =
        is_mixed(task, w) ? has_line(w, w->decodes) && has_line(w, w->prefills) : room && prefill;
    return whole ? ways : ways & ~(uint32_t)FG_PLACE_AS_WHOLE;
}

/* ---- the verdict ---- */

/* Whether some way is allowed, of those that can hold the request. One of each side stands for all that
 * came before: a mixed worker is both sides, so whatever one that is not could pair with, it finds. */
static bool any_way(const fg_place_task *task)
{
    uint32_t prefill = FG_PLACE_NONE, decode = FG_PLACE_NONE;
    for (uint32_t i = 0; i < task->count; i++) {
        uint32_t ways = fg_place_may(task, i);
        if ((ways & FG_PLACE_AS_WHOLE) ||
            ((ways & FG_PLACE_AS_PREFILL) && decode != FG_PLACE_NONE &&
             fg_place_may_pair(task, i, decode)) ||
            ((ways & FG_PLACE_AS_DECODE) && prefill != FG_PLACE_NONE &&
             fg_place_may_pair(task, prefill, i))) {
            return true;
        }
        if ((ways & FG_PLACE_AS_PREFILL) && prefill == FG_PLACE_NONE) {
            prefill = i;
        }
        if ((ways & FG_PLACE_AS_DECODE) && decode == FG_PLACE_NONE) {
            decode = i;
        }
    }
    return false;
}

/* The same for a request of no length: whether workers for it are missing at all. */
static bool any_worker(const fg_place_task *task)
{
    fg_place_request nothing = { 0 };
    fg_place_task smallest = *task;
    smallest.request = &nothing;
    return any_way(&smallest);
}

static fg_place_task task_of(const fg_place_options *options, const fg_place_worker *workers,
                             uint32_t count, const fg_place_request *request)
{
    fg_place_task task = {
        .options = options, .workers = workers, .count = count, .request = request
    };
    for (uint32_t i = 0; i < count; i++) {
        task.roles |= workers[i].roles;
    }
    fg_place_survey(&task);
    return task;
}

fg_place_verdict fg_place_pick(const fg_place_options *options, const fg_place_worker *workers,
                               uint32_t count, const fg_place_request *request,
                               fg_place_choice *choice_out)
{
    FG_ASSERT(count <= FG_LIMIT_WORKERS);
    fg_place_task task = task_of(options, workers, count, request);
    fg_place_choice choice = { .prefill = FG_PLACE_NONE, .decode = FG_PLACE_NONE };
    bool found = options->policy == FG_PLACE_COST ? fg_place_pick_cost(&task, &choice)
                                                  : fg_place_pick_plain(&task, &choice);
    if (!found) {
        return any_way(&task)      ? FG_PLACE_WAIT
               : any_worker(&task) ? FG_PLACE_NEVER
                                   : FG_PLACE_NOBODY;
    }
    fg_place_explain(&task, &choice);
    *choice_out = choice;
    return FG_PLACE_OK;
}

/* It has places, and those who have them will end: there its room is a matter of time. A worker that says it
 * is full, or whose blocks nobody has, keeps the reason to itself. */
static bool is_foreseeable(const fg_place_worker *worker)
{
    return !worker->full && worker->max_seqs > 0 && worker->places != NULL &&
           (worker->places->holders > 0 || worker->blocks_used == 0);
}

bool fg_place_foretell(const fg_place_options *options, const fg_place_worker *workers,
                       uint32_t count, const fg_place_request *request, uint32_t ahead,
                       fg_place_choice *choice_out)
{
    fg_place_task task = task_of(options, workers, count, request);
    fg_place_choice choice = { .prefill = FG_PLACE_NONE, .decode = FG_PLACE_NONE };
    uint32_t able = 0;
    for (uint32_t i = 0; i < count; i++) {
        if ((fg_place_may(&task, i) & (FG_PLACE_AS_DECODE | FG_PLACE_AS_WHOLE)) != 0) {
            if (!is_foreseeable(&workers[i])) {
                return false;
            }
            able++;
        }
    }
    task.later = true;
    task.ahead = able > 0 ? ahead / able : 0;
    if (!fg_place_pick_cost(&task, &choice)) {
        return false;
    }
    fg_place_explain(&task, &choice);
    *choice_out = choice;
    return true;
}

static uint64_t capacity_of(const fg_place_task *task, uint32_t index)
{
    const fg_place_worker *w = &task->workers[index];
    uint32_t ways = fg_place_may(task, index);
    if ((ways & (FG_PLACE_AS_DECODE | FG_PLACE_AS_WHOLE)) == 0) {
        return 0;
    }
    if ((ways & FG_PLACE_AS_WHOLE) != 0 && is_mixed(task, w)) {
        return FG_PLACE_LINE * (uint64_t)w->max_seqs;
    }
    uint32_t each = fg_kv_blocks_for(task->request->prompt_tokens, w->block_size);
    uint32_t most = 1 + (w->block_count - fg_place_first_blocks(w, task->request)) / each;
    return most < w->max_seqs ? most : w->max_seqs;
}

uint64_t fg_place_capacity(const fg_place_options *options, const fg_place_worker *workers,
                           uint32_t count, const fg_place_request *request)
{
    fg_place_task task = task_of(options, workers, count, request);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < count; i++) {
        sum += capacity_of(&task, i);
    }
    return sum;
}

void fg_place_predict(const fg_place_options *options, const fg_place_worker *workers,
                      uint32_t count, const fg_place_request *request, fg_place_choice *choice)
{
    fg_place_task task = task_of(options, workers, count, request);
    fg_place_explain(&task, choice);
}

/* Chosen by the evaluation in tests/bench/placement. */
fg_place_options fg_place_defaults(void)
{
    return (fg_place_options){ .policy = FG_PLACE_COST,
                               .split = FG_PLACE_AUTO,
                               .affinity = 1,
                               .interference = 0.5,
                               .backlog = 2,
                               .answer_weight = 1.5 };
}

const char *fg_place_policy_name(fg_place_policy policy)
{
    static const char *const names[] = { "cost", "cache-only", "least-loaded", "round-robin",
                                         "two-choices" };
    return names[policy];
}

/* ---- from worker to worker ---- */

/* Beside what travels: four messages, and steps that have begun when the first of them comes. */
#define PULL_BASE_NS 2e6
static uint32_t usable(uint32_t blocks, const fg_place_request *request, uint32_t block_size)
{
    uint32_t most = (request->prompt_tokens - 1) / block_size; /* the last token is computed */
    return blocks < most ? blocks : most;
}

static bool can_send(const fg_place_worker *from, const fg_place_worker *to)
{
    return from != to && from->roles != 0 && (from->can & FG_PLACE_CAN_LINK) != 0 &&
           from->block_size == to->block_size && from->speed != NULL;
}

void fg_place_pull(const fg_place_options *options, const fg_place_worker *workers, uint32_t count,
                   const fg_place_request *request, fg_place_choice *choice)
{
    const fg_place_worker *to = &workers[choice->prefill];
    choice->pull_from = choice->pull_blocks = 0;
    choice->pull_ns = 0;
    if (options->pull == 0 || request->hits == NULL || (to->can & FG_PLACE_CAN_LINK) == 0 ||
        to->speed == NULL) {
        return;
    }
    const fg_place_hit *own = &request->hits[choice->prefill];
    uint32_t size = to->block_size, prompt = request->prompt_tokens;
    uint32_t have = usable(own->tier_blocks, request, size), best = have, from = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t blocks = usable(request->hits[i].device_blocks, request, size);
        if (can_send(&workers[i], to) && blocks > best) {
            best = blocks;
            from = i;
        }
    }
    if (best == have) {
        return;
    }
    const fg_place_worker *sender = &workers[from];
    uint32_t moved = best - usable(own->device_blocks, request, size);
    double saved = fg_speed_prefill_ns(to->speed, have * size, prompt - have * size) -
                   fg_speed_prefill_ns(to->speed, best * size, prompt - best * size);
    double step = fg_speed_step_ns(sender->speed, sender->decodes, sender->kv_tokens);
    double cost = PULL_BASE_NS + fg_speed_exposed_ns(sender->speed, moved, moved, 0) +
                  (sender->decodes > 0 ? step : 0);
    if (saved > options->pull * cost) {
        choice->pull_from = from;
        choice->pull_blocks = best;
        choice->pull_ns = fg_place_whole_ns(cost);
    }
}
