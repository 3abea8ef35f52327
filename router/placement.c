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

/* Where a hand-over goes. The block beyond the prompt is the answer's first, unless prompt and answer
 * need no further one: what can_hold lets in must have room in an empty worker. */
static bool has_room(const fg_place_worker *worker, const fg_place_request *request)
{
    uint32_t begin = fg_kv_blocks_for(request->prompt_tokens, worker->block_size) + 1;
    uint32_t all = fg_kv_blocks_for(request->total_tokens, worker->block_size);
    return worker->decodes < worker->max_seqs && worker->blocks_used <= worker->block_count &&
           (begin < all ? begin : all) <= worker->block_count - worker->blocks_used;
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

/* ---- what is allowed ---- */

static bool may_be_side(const fg_place_task *task, uint32_t index, uint32_t role)
{
    const fg_place_worker *w = &task->workers[index];
    return task->options->split != FG_PLACE_UNSPLIT && (w->roles & role) != 0 &&
           (w->can & FG_PLACE_CAN_LINK) != 0 && can_hold(w, task->request->total_tokens);
}

bool fg_place_may_prefill(const fg_place_task *task, uint32_t worker)
{
    return may_be_side(task, worker, FG_ROLE_PREFILL);
}

bool fg_place_may_decode(const fg_place_task *task, uint32_t worker)
{
    return may_be_side(task, worker, FG_ROLE_DECODE);
}

/* By role alone, moving KV between two workers that are meant for both gains nothing. */
bool fg_place_may_split(const fg_place_task *task, uint32_t prefill, uint32_t decode)
{
    bool mixed = task->workers[prefill].roles == BOTH && task->workers[decode].roles == BOTH;
    return prefill != decode && !(mixed && task->options->split == FG_PLACE_ALWAYS) &&
           fg_place_may_prefill(task, prefill) && fg_place_may_decode(task, decode);
}

/* A worker that is meant for prompts only keeps the decoding of one when that is better; it does not
 * stand in for a decode role that nobody has. */
bool fg_place_may_whole(const fg_place_task *task, uint32_t worker)
{
    const fg_place_worker *w = &task->workers[worker];
    bool meant = w->roles != 0;
    if (task->options->split == FG_PLACE_ALWAYS) {
        meant = w->roles == BOTH;
    } else if (task->options->split == FG_PLACE_AUTO) {
        meant = meant && (task->roles & FG_ROLE_DECODE) != 0;
    }
    return meant && (w->can & FG_PLACE_CAN_WHOLE) != 0 && can_hold(w, task->request->total_tokens);
}

/* ---- what has room ---- */

bool fg_place_has_prefill(const fg_place_task *task, uint32_t worker)
{
    const fg_place_worker *w = &task->workers[worker];
    return w->roles == BOTH ? has_line(w, w->prefills) : w->prefills < w->max_seqs;
}

bool fg_place_has_decode(const fg_place_task *task, uint32_t worker)
{
    const fg_place_worker *w = &task->workers[worker];
    return !w->full && has_room(w, task->request);
}

bool fg_place_has_whole(const fg_place_task *task, uint32_t worker)
{
    const fg_place_worker *w = &task->workers[worker];
    if (w->full) {
        return false;
    }
    if (is_mixed(task, w)) {
        return has_line(w, w->decodes) && has_line(w, w->prefills);
    }
    return w->prefills < w->max_seqs && has_room(w, task->request);
}

/* ---- the verdict ---- */

/* Whether some way is allowed, of those that can hold the request. Two workers for a split need not be
 * looked for pair by pair: what stands between two that may is only that they are one, or, by role, both
 * mixed. */
static bool any_way(const fg_place_task *task)
{
    uint32_t prefill = FG_PLACE_NONE, decode = FG_PLACE_NONE;
    for (uint32_t i = 0; i < task->count; i++) {
        if (fg_place_may_whole(task, i)) {
            return true;
        }
        bool mixed = task->workers[i].roles == BOTH;
        if (fg_place_may_prefill(task, i)) {
            if (decode != FG_PLACE_NONE && fg_place_may_split(task, i, decode)) {
                return true;
            }
            prefill = prefill == FG_PLACE_NONE || !mixed ? i : prefill;
        }
        if (fg_place_may_decode(task, i)) {
            if (prefill != FG_PLACE_NONE && fg_place_may_split(task, prefill, i)) {
                return true;
            }
            decode = decode == FG_PLACE_NONE || !mixed ? i : decode;
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
    fg_place_task task = { options, workers, count, request, 0, 0 };
    for (uint32_t i = 0; i < count; i++) {
        task.roles |= workers[i].roles;
    }
    fg_place_doubt(&task);
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
                               .affinity = 0.5,
                               .interference = 1,
                               .answer_weight = 1 };
}

const char *fg_place_policy_name(fg_place_policy policy)
{
    static const char *const names[] = { "cost", "cache-only", "least-loaded", "round-robin",
                                         "two-choices" };
    return names[policy];
}

const char *fg_place_split_name(fg_place_split split)
{
    static const char *const names[] = { "auto", "always", "never" };
    return names[split];
}
