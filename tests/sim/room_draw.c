#include "tests/sim/room_internal.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/dtype.h"

static uint32_t pick(room *r, const uint32_t *choices, uint32_t count)
{
    return choices[room_below(r, count)];
}

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* ---- the worker ---- */

static void draw_policies(room *r)
{
    fg_sched_limits *limits = &r->limits;
    limits->order = room_chance(r, 7000) ? FG_DECODE_FIRST : FG_PREFILL_FIRST;
    limits->victim = (fg_sched_victim)room_below(r, 3);
    limits->preemption = (fg_sched_preemption)room_below(r, 3);
    limits->admission = room_chance(r, 8000) ? FG_ADMIT_WATERMARK : FG_ADMIT_NO_EVICT;
    limits->watermark_blocks = (uint32_t)room_below(r, 4) * r->block_count / 20;
    limits->skip_max = room_chance(r, 6000) ? 0 : (uint32_t)room_below(r, 5);
    limits->step_target_ns = room_chance(r, 7000) ? 0 : 1 + room_below(r, 20 * ROOM_MS);
    limits->draft = (fg_sched_draft)room_below(r, 3);
    limits->draft_max = room_chance(r, 3000) ? 0 : 1 + (uint32_t)room_below(r, FG_LOOKAHEAD_MAX);
    r->overlap = room_chance(r, 6000);
    r->cache = room_chance(r, 7500);
}

static void draw_systems(room *r)
{
    for (uint32_t i = 0; i < ROOM_SYSTEMS; i++) {
        uint32_t count = 1 + (uint32_t)room_below(r, r->context_max / 2);
        r->system_counts[i] = count;
        r->systems[i] = calloc(count, sizeof *r->systems[i]);
        FG_ASSERT(r->systems[i] != NULL);
        for (uint32_t j = 0; j < count; j++) {
            r->systems[i][j] = (uint32_t)room_below(r, r->vocab_size);
        }
    }
}

void room_draw_worker(room *r)
{
    static const uint32_t sizes[] = { 1, 2, 4, 4, 16, 16 };
    bool pressure = r->options.pressure;
    fg_error err;
    uint32_t block_size = pressure ? 4 : pick(r, sizes, sizeof sizes / sizeof *sizes);
    fg_status status = fg_kv_layout_init(&r->layout, 1, 1, 2, block_size, FG_F32, &err);
    FG_ASSERT(status == FG_OK, "%s", err.text);
    r->block_count =
        room_chance(r, 2500) ? 2 + (uint32_t)room_below(r, 6) : 2 + (uint32_t)room_below(r, 79);
    r->slot_count = room_chance(r, 3500) ? 0 : 1 + (uint32_t)room_below(r, 2 * r->block_count);
    uint32_t capacity = room_capacity(r);
    r->context_max = smaller(ROOM_TOKENS_MAX, larger(8, capacity + capacity / 2));
    fg_sched_limits *limits = &r->limits;
    limits->block_size = block_size;
    limits->seqs_max = 1 + (uint32_t)room_below(r, 24);
    limits->step_tokens_max = limits->seqs_max + (uint32_t)room_below(r, 64);
    limits->chunk_tokens_max = 1 + (uint32_t)room_below(r, 64);
    draw_policies(r);
    /* In few tokens texts repeat, and what is guessed to follow is right now and then. */
    r->vocab_size = room_chance(r, 5000) ? 50 : 5 + (uint32_t)room_below(r, 8);
    r->quick = pressure || room_chance(r, 2000);
    r->live_target = 1 + (uint32_t)room_below(r, room_chance(r, 5000) ? 8 : 60);
    r->check_one_in = r->quick ? 64 : 1;
    r->any_faults = !pressure && room_chance(r, 6000);
    r->cancel = pressure ? 0 : (uint32_t)room_below(r, 400);
    r->clear = r->any_faults ? (uint32_t)room_below(r, 40) : 0;
    r->lose = r->any_faults && room_chance(r, 5000) ? (uint32_t)room_below(r, 20) : 0;
    r->flip = r->any_faults && room_chance(r, 5000) ? (uint32_t)room_below(r, 500) : 0;
    r->jump = room_chance(r, 5000) ? (uint32_t)room_below(r, 10) : 0;
    r->request_max =
        r->options.requests > 0 ? r->options.requests : 100 + (uint32_t)room_below(r, 200);
    if (pressure) {
        r->block_count = 24;
        r->slot_count = r->slot_count > 0 ? 40 : 0;
        r->context_max = 80;
        r->live_target = 200;
        r->cache = true;
        limits->admission = FG_ADMIT_WATERMARK;
    }
    draw_systems(r);
}

/* ---- requests ---- */

static void append(room *r, room_request *q, const uint32_t *tokens, uint32_t count)
{
    count = smaller(count, r->context_max - 1 - q->prompt_count);
    memcpy(q->tokens + q->prompt_count, tokens, count * sizeof *tokens);
    q->prompt_count += count;
}

/* Few different tokens, so that branches meet again and again. */
static void append_random(room *r, room_request *q, uint32_t count, uint32_t variety)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t token = (uint32_t)room_below(r, variety);
        append(r, q, &token, 1);
    }
}

static void draw_prompt(room *r, room_request *q)
{
    const room_request *old = r->sent > 0 ? &r->requests[room_below(r, r->sent)] : NULL;
    uint32_t kind = (uint32_t)room_below(r, 100);
    if (old != NULL && kind < 25) { /* the same again */
        append(r, q, old->tokens, old->prompt_count);
    } else if (old != NULL && kind < 45) { /* the next turn of a chat, or another branch of one */
        append(r, q, old->tokens, old->count);
        append_random(r, q, 1 + (uint32_t)room_below(r, 8), r->vocab_size);
    } else if (kind < 80) {
        uint32_t system = (uint32_t)room_below(r, ROOM_SYSTEMS);
        append(r, q, r->systems[system], r->system_counts[system]);
        append_random(r, q, (uint32_t)room_below(r, 6), 2);
    } else {
        append_random(r, q, (uint32_t)room_below(r, r->context_max / 2), r->vocab_size);
    }
    if (q->prompt_count == 0 || room_chance(r, 200)) {
        append_random(r, q, 1 + (uint32_t)room_below(r, r->context_max), r->vocab_size);
    }
}

static void draw_params(room *r, room_request *q)
{
    static const uint32_t modes[] = { FG_CACHE_AUTO,  FG_CACHE_AUTO,   FG_CACHE_AUTO, FG_CACHE_AUTO,
                                      FG_CACHE_AUTO,  FG_CACHE_AUTO,   FG_CACHE_AUTO, FG_CACHE_AUTO,
                                      FG_CACHE_FORCE, FG_CACHE_DISABLE };
    uint32_t left = r->context_max - q->prompt_count;
    bool long_one = room_chance(r, r->options.pressure ? 0 : 200);
    uint32_t most = long_one ? left : smaller(left, 1 + (uint32_t)room_below(r, 40));
    q->params = (fg_wire_params){ .top_p = 1.0f,
                                  .max_tokens = 1 + (uint32_t)room_below(r, most),
                                  .ignore_eos = room_chance(r, 5000),
                                  .want_digests = room_chance(r, 2500),
                                  .priority = (int32_t)room_below(r, 3) - 1 };
    if (long_one) {
        q->params.max_tokens = left;
    }
    if (room_chance(r, 2000)) {
        q->params.presence_penalty = 0.5f; /* the engine sees the history */
    }
    if (room_chance(r, 2000)) {
        q->params.want_logprobs = 1 + (uint32_t)room_below(r, 4);
    }
    if (room_chance(r, 5000)) {
        q->params.temperature = 0.8f;
        q->params.seed = fg_rng_next(&r->rng);
    }
    if (!r->options.pressure) {
        q->params.cache_mode = modes[room_below(r, sizeof modes / sizeof *modes)];
        if (!r->cache && q->params.cache_mode == FG_CACHE_FORCE && room_chance(r, 9000)) {
            q->params.cache_mode = FG_CACHE_AUTO; /* all of them are refused: a few will do */
        }
        q->params.pin_ms = room_chance(r, 500) ? (uint32_t)room_below(r, 2000) : 0;
        q->params.salt_low = room_chance(r, 1000) ? 1 + room_below(r, 2) : 0;
    }
    if (room_chance(r, 1500) && q->params.cache_mode != FG_CACHE_FORCE) {
        q->params.want_scores = 1 + (uint32_t)room_below(r, 4);
    }
    if (room_chance(r, 500)) {
        q->params.want_embedding = true;
        q->params.max_tokens = 1;
    }
}

/* As the worker must see it: what can never run is refused at once. */
static bool never_fits(const room *r, const room_request *q)
{
    return q->prompt_count > room_capacity(r) ||
           q->prompt_count + q->params.max_tokens > r->context_max;
}

static room_request *fresh(room *r, uint32_t index)
{
    room_request *q = &r->requests[index];
    *q = (room_request){ .id = index + 1, .attempt = 1 + (uint32_t)room_below(r, 3) };
    q->tokens = calloc(r->context_max + 1, sizeof *q->tokens);
    FG_ASSERT(q->tokens != NULL);
    return q;
}

uint32_t room_draw_requests(room *r)
{
    uint32_t left = r->request_max - r->sent, count = 1;
    if (room_chance(r, 1500)) {
        count = smaller(left, 2 + (uint32_t)room_below(r, 4));
    }
    room_request *first = fresh(r, r->sent);
    draw_prompt(r, first);
    draw_params(r, first);
    if (!r->options.pressure && room_chance(r, 100) && !first->params.want_embedding) {
        first->params.max_tokens = r->context_max; /* with the prompt, one too many at least */
    }
    first->params.family = count > 1 ? first->id : 0;
    for (uint32_t i = 0; i < count; i++) {
        room_request *q = first;
        if (i > 0) {
            q = fresh(r, r->sent + i);
            append(r, q, first->tokens, first->prompt_count);
            q->params = first->params;
            q->params.seed = fg_rng_next(&r->rng);
        }
        q->count = q->prompt_count;
        q->never_fits = never_fits(r, q);
    }
    return count;
}
