/*
 * The processes of routers, and their clients: each of them knows its answer beforehand and wants it token by
 * token, in order, once, and one end.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/fault.h"
#include "common/engine/engine_sim.h"
#include "tests/sim/world_internal.h"

bool fg_sim_planted;

bool sim_request_live(const sim_request *r)
{
    return r->started && !r->ended && !r->cancelled;
}

bool sim_request_open(const sim_request *r)
{
    return !r->left_out && !r->ended && !r->cancelled && !r->refused;
}

/* ---- the routers ---- */

static const char *peer_name(const sim_router *router, uint32_t peer)
{
    const fg_reg_worker *worker = fg_registry_by_peer(fg_dispatch_registry(router->dispatch), peer);
    return worker != NULL ? worker->name : "?";
}

static fg_status router_send(void *ctx, uint32_t peer, const void *bytes, size_t size_bytes)
{
    const sim_router *router = ctx;
    sim_world *w = router->world;
    const char *to = peer_name(router, peer);
    sim_note_frame(w, router->process.name, "sends", to, bytes, size_bytes);
    sim_worker *s = sim_worker_named(w, to);
    if (s != NULL && sim_queue_full(w, s, SIM_TO_CLIENT)) {
        return FG_AGAIN;
    }
    return fg_bus_send(router->bus, peer, bytes, size_bytes);
}

static void router_drop(void *ctx, uint32_t peer)
{
    const sim_router *router = ctx;
    uint64_t left = fg_fault_hold();
    fg_bus_drop(router->bus, peer);
    fg_fault_resume(left);
}

static void router_up(void *ctx, uint32_t peer, const char *identity)
{
    sim_router *router = ctx;
    sim_note(router->world, router->process.name, "up", "peer=%s", identity);
    sim_enter(router->world, &router->process);
    fg_dispatch_on_up(router->dispatch, peer, identity);
    sim_leave(router->world, &router->process);
}

static void router_frame(void *ctx, uint32_t peer, const void *bytes, size_t size_bytes)
{
    sim_router *router = ctx;
    sim_note_frame(router->world, router->process.name, "got", peer_name(router, peer), bytes,
                   size_bytes);
    sim_enter(router->world, &router->process);
    fg_dispatch_on_frame(router->dispatch, peer, bytes, size_bytes);
    sim_leave(router->world, &router->process);
}

static void router_down(void *ctx, uint32_t peer)
{
    sim_router *router = ctx;
    sim_note(router->world, router->process.name, "down", "peer=%s", peer_name(router, peer));
    sim_enter(router->world, &router->process);
    fg_dispatch_on_down(router->dispatch, peer);
    sim_leave(router->world, &router->process);
}

bool sim_router_hears(const sim_router *router)
{
    return router->dispatch != NULL && router->process.frozen_until_ns <= sim_now(router->world);
}

/* Alone each process names blocks with a secret of its own; several have one, as with --cache-key-file. */
static fg_digest128 draw_key(const sim_world *w, fg_rng *rng)
{
    uint64_t own = fg_rng_next(rng);
    return (fg_digest128){ w->router_count > 1 ? fg_hash_mix(w->options.seed) : own, 77 };
}

void sim_start_router(sim_router *router)
{
    sim_world *w = router->world;
    fg_error err;
    fg_bus_events events = {
        .on_up = router_up, .on_frame = router_frame, .on_down = router_down, .ctx = router
    };
    fg_status status = fg_bus_listen_mem(router->hub, &events, &router->bus, &err);
    FG_ASSERT(status == FG_OK, "%s", err.text);
    router->process = (sim_process){ .clock_ns = sim_now(w) };
    snprintf(router->process.name, sizeof router->process.name, "router%s",
             router->index == 0 ? "" : "1");
    fg_rng rng = sim_rng(w, SIM_STREAM_ROUTER, router->index, router->life++);
    fg_rng shape = sim_rng(w, SIM_STREAM_SHAPE, 5, 0);
    fg_place_options place = fg_place_defaults();
    place.policy = (fg_place_policy)sim_below(&shape, FG_PLACE_TWO_CHOICES + 1);
    place.split = (fg_place_split)sim_below(&shape, FG_PLACE_UNSPLIT + 1);
    if (sim_chance(&shape,
                   250)) { /* whoever computes beside others is to be avoided: all is split */
        place.policy = FG_PLACE_COST;
        place.split = FG_PLACE_AUTO;
        place.interference = 1000;
    }
    place.pull = sim_chance(&shape, 500) ? 1e-9 : 0;
    fg_dispatch_options dispatch = {
        .place = place,
        .queue_ahead = (uint32_t)sim_below(&shape, 5),
        .residency_bytes = FG_RESIDENCY_BYTES_MIN,
        .clock = fg_clock_manual(&router->process.clock_ns),
        .fingerprint = { 11, 22 },
        .router_epoch = fg_rng_next(&rng),
        .cache_key = draw_key(w, &rng),
        .lease_ms = SIM_LEASE_MS,
        .limits = { .queued_max = 24, .queued_tokens_max = 100000, .live_max = 1000 },
        .send = router_send,
        .drop = router_drop,
        .ctx = router,
    };
    dispatch.flight = router->flight = sim_open_flight(w, &dispatch);
    status = fg_dispatch_create(&dispatch, &router->dispatch, &err);
    FG_ASSERT(status == FG_OK, "%s", err.text);
    sim_note(w, router->process.name, "starts", "life=%llu", (unsigned long long)router->life);
}

void sim_build_routers(sim_world *w)
{
    /* Beside what a seed draws otherwise, so that old seeds are the same worlds. */
    bool two = fg_hash_mix(w->options.seed ^ 0x726F757465727331) % 3 == 0;
    w->router_count = two && w->options.routers_max > 1 ? 2 : 1;
    w->report->two_routers += w->router_count > 1;
    for (uint32_t i = 0; i < w->router_count; i++) {
        sim_router *router = &w->routers[i];
        fg_bus_hub_options bus = { .defer = sim_defer_frame, .ctx = router };
        fg_error err;
        router->world = w;
        router->index = i;
        fg_status status = fg_bus_hub_create(&bus, &router->hub, &err);
        FG_ASSERT(status == FG_OK, "%s", err.text);
        sim_start_router(router);
    }
}

void sim_close_router(sim_router *router)
{
    sim_world *w = router->world;
    fg_dispatch_stats stats;
    if (router->dispatch == NULL) {
        return;
    }
    fg_dispatch_stats_get(router->dispatch, &stats);
    w->router_stats.finished += stats.finished;
    w->router_stats.failed += stats.failed;
    w->router_stats.cancelled += stats.cancelled;
    w->router_stats.retried += stats.retried;
    w->report->split += stats.placed_split;
    w->report->pulls += stats.pulls;
    w->report->pulled += stats.pulled_blocks;
    w->report->circles_avoided += stats.circles_avoided;
    w->report->resyncs += stats.resyncs;
    w->report->held += stats.held;
    w->router_stats.push_retries += stats.push_retries;
    w->router_stats.stale_dropped += stats.stale_dropped;
    fg_dispatch_destroy(router->dispatch);
    fg_bus_close(router->bus);
    router->dispatch = NULL;
    sim_close_flight(w, router->flight);
    router->flight = NULL;
}

/* ---- clients ---- */

static void on_token(void *ctx, uint32_t index, uint32_t id, uint64_t digest,
                     const fg_logprobs *logprobs)
{
    sim_request *r = ctx;
    sim_world *w = r->world;
    FG_ASSERT(!r->ended && !r->cancelled, "a token after the end");
    FG_ASSERT(r->scored == (r->job.params.want_scores > 0 ? r->prompt_count - 1 : 0),
              "request %u: a token after %u scores", r->index, r->scored);
    FG_ASSERT(r->embedded == r->job.params.want_embedding, "request %u: a token, embedded %d",
              r->index, r->embedded);
    FG_ASSERT(index == r->count - r->prompt_count, "token %u came as number %u", index,
              r->count - r->prompt_count);
    fg_sampling sampling = { .temperature = r->job.params.temperature,
                             .top_p = 1.0f,
                             .seed = r->job.params.seed };
    fg_engine_sim_answer want =
        fg_engine_sim_expected(r->tokens, r->count, w->vocab_size, SIM_EOS, &sampling, 0);
    FG_ASSERT(id == want.token && digest == want.digest,
              "request %u, token %u: another answer than alone (%u, not %u)", r->index, index, id,
              want.token);
    uint32_t likely = r->job.params.want_logprobs;
    /* There may have been no memory for them, now or when they came. */
    bool lost = logprobs == NULL && (fg_fault_fired() || w->report->faults[FG_SIM_ALLOC] > 0);
    FG_ASSERT(lost || (logprobs != NULL) == (likely > 0), "request %u, token %u", r->index, index);
    if (likely > 0 && !lost) {
        fg_logprobs told = fg_engine_sim_logprobs(want, w->vocab_size, likely - 1);
        FG_ASSERT(memcmp(&told, logprobs, sizeof told) == 0, "request %u, token %u: logprobs",
                  r->index, index);
    }
    FG_ASSERT(!fg_sim_planted || w->cuts == 0 || r->prompt_count < 6, "planted, request %u",
              r->index);
    r->tokens[r->count++] = id;
    w->report->tokens++;
    w->progress_ns = sim_now(w);
    sim_note(w, "client", "token", "request=%u index=%u id=%u", r->index, index, id);
}

/* Each once and in order, whoever was lost meanwhile. */
static void on_scores(void *ctx, uint32_t first, const fg_scores *scores)
{
    sim_request *r = ctx;
    sim_world *w = r->world;
    float chosen;
    uint32_t rank;
    fg_likely likely[FG_LOGPROBS_MAX];
    fg_scores want = {
        .chosen = &chosen, .ranks = &rank, .likely = likely, .likely_count = scores->likely_count
    };
    FG_ASSERT(!r->ended && !r->cancelled && first == r->scored + 1 && r->count == r->prompt_count &&
                  scores->likely_count + 1 == r->job.params.want_scores,
              "request %u: scores from %u on", r->index, first);
    for (uint32_t i = 0; i < scores->count; i++) {
        const fg_sampling greedy = { .temperature = 0 };
        fg_engine_sim_answer answer =
            fg_engine_sim_expected(r->tokens, first + i, w->vocab_size, SIM_EOS, &greedy, 0);
        fg_engine_sim_score(answer, w->vocab_size, r->tokens[first + i], 0, &want);
        FG_ASSERT(scores->chosen[i] == chosen && scores->ranks[i] == rank &&
                      memcmp(scores->likely + (size_t)i * scores->likely_count, likely,
                             scores->likely_count * sizeof *likely) == 0,
                  "request %u: token %u of its prompt", r->index, first + i);
    }
    r->scored += scores->count;
    w->progress_ns = sim_now(w);
    sim_note(w, "client", "scores", "request=%u first=%u count=%u", r->index, first, scores->count);
}

/* Once, whoever was lost meanwhile. */
static void on_embedding(void *ctx, const float *embedding, uint32_t count)
{
    sim_request *r = ctx;
    sim_world *w = r->world;
    float want[FG_ENGINE_SIM_EMBEDDING];
    fg_sampling sampling = { .temperature = r->job.params.temperature,
                             .top_p = 1.0f,
                             .seed = r->job.params.seed };
    fg_engine_sim_embedding(
        fg_engine_sim_expected(r->tokens, r->prompt_count, w->vocab_size, SIM_EOS, &sampling, 0),
        want);
    FG_ASSERT(!r->ended && !r->cancelled && !r->embedded && r->count == r->prompt_count &&
                  r->job.params.want_embedding,
              "request %u: an embedding", r->index);
    FG_ASSERT(count == FG_ENGINE_SIM_EMBEDDING && memcmp(embedding, want, sizeof want) == 0,
              "request %u: another embedding than alone", r->index);
    r->embedded = true;
    sim_note(w, "client", "embedding", "request=%u", r->index);
}

static void check_end(const sim_request *r, fg_finish finish, fg_status status, const char *text)
{
    uint32_t generated = r->count - r->prompt_count;
    if (finish == FG_FINISH_STOP) {
        FG_ASSERT(generated > 0 && r->tokens[r->count - 1] == SIM_EOS, "request %u", r->index);
    } else if (finish == FG_FINISH_LENGTH) {
        FG_ASSERT(generated == r->job.params.max_tokens, "request %u ended with %u tokens of %u",
                  r->index, generated, r->job.params.max_tokens);
    } else {
        bool asked_for = r->job.params.cache_mode == FG_CACHE_FORCE && status == FG_BAD_INPUT;
        FG_ASSERT(finish == FG_FINISH_ERROR && (r->world->may_fail || asked_for),
                  "request %u failed without a fault: %s", r->index, text);
    }
}

static void on_end(void *ctx, fg_finish finish, fg_status status, const char *text,
                   const fg_dispatch_report *report)
{
    sim_request *r = ctx;
    sim_world *w = r->world;
    FG_ASSERT(!r->ended && !r->cancelled, "request %u ended twice", r->index);
    r->ended = true;
    r->finish = finish;
    w->progress_ns = sim_now(w);
    w->settled_ns = sim_now(w);
    sim_note(w, "client", "end", "request=%u finish=%d status=%s tokens=%u attempts=%u why=\"%s\"",
             r->index, (int)finish, fg_status_name(status), r->count - r->prompt_count,
             report->attempts, text);
    check_end(r, finish, status, text);
}

/* What is in front of the routers sends it to the next one. */
static void come_again(sim_request *r, const sim_event *e)
{
    sim_event later = *e;
    r->router = (r->router + 1) % r->world->router_count;
    later.index = SIM_ROUTER + r->router;
    later.at_ns = sim_now(r->world) + 100 * SIM_MS + sim_below(&r->rng, 200 * SIM_MS);
    sim_push(r->world, &later);
}

static void fire_start(void *ctx, const sim_event *e)
{
    sim_world *w = ctx;
    sim_request *r = &w->requests[(uintptr_t)e->arg];
    fg_error err;
    if (sim_postponed(w, e)) {
        return;
    }
    sim_router *router = &w->routers[r->router];
    if (router->dispatch == NULL) {
        come_again(r, e);
        return;
    }
    sim_enter(w, &router->process);
    fg_status status = fg_dispatch_start(router->dispatch, &r->job, &r->id, &err);
    sim_leave(w, &router->process);
    r->started = status == FG_OK;
    r->shown_attempt = 0;
    sim_note(w, "client", "start", "request=%u req=%016llx prompt=%u max=%u status=%s", r->index,
             (unsigned long long)(r->started ? r->id : 0), r->prompt_count,
             r->job.params.max_tokens, fg_status_name(status));
    if (status == FG_AGAIN || status == FG_PEER_LOST) {
        come_again(r, e); /* as an honest client does */
    } else if (status != FG_OK) {
        r->refused = true;
    } else {
        w->progress_ns = sim_now(w);
    }
}

static void fire_cancel(void *ctx, const sim_event *e)
{
    sim_world *w = ctx;
    sim_request *r = &w->requests[(uintptr_t)e->arg];
    sim_router *router = &w->routers[r->router];
    sim_event now = *e;
    now.index = SIM_ROUTER + r->router;
    if (!sim_request_live(r) || sim_postponed(w, &now)) {
        return;
    }
    sim_note(w, "client", "cancel", "request=%u", r->index);
    r->cancelled = true;
    w->settled_ns = sim_now(w);
    sim_enter(w, &router->process);
    bool known = fg_dispatch_cancel(router->dispatch, r->id, FG_FINISH_CANCELLED, NULL);
    sim_leave(w, &router->process);
    FG_ASSERT(known, "request %u was forgotten before its end", r->index);
}

void sim_stop_router(sim_router *router)
{
    sim_world *w = router->world;
    sim_close_router(router);
    for (uint32_t i = 0; i < w->request_count; i++) {
        sim_request *r = &w->requests[i];
        if (sim_request_live(r) && r->router == router->index) {
            w->report->again++;
            r->started = false;
            r->count = r->prompt_count;
            r->scored = 0;
            r->embedded = false;
            come_again(r, &(sim_event){ .fire = fire_start, .arg = (void *)(uintptr_t)i });
        }
    }
}

/* Most prompts begin like another one; some are the same. */
static void draw_prompt(sim_world *w, sim_request *r)
{
    fg_rng *rng = &r->rng;
    uint32_t shared = 0;
    if (r->index > 0 && sim_chance(rng, 600)) {
        const sim_request *other = &w->requests[sim_below(rng, r->index)];
        shared = sim_chance(rng, 300) ? other->prompt_count
                                      : (uint32_t)sim_below(rng, other->prompt_count + 1);
        shared = shared < r->prompt_count ? shared : r->prompt_count;
        memcpy(r->tokens, other->tokens, shared * sizeof *r->tokens);
        if (shared == other->prompt_count && sim_chance(rng, 500)) {
            r->prompt_count = shared;
        }
    }
    for (uint32_t i = shared; i < r->prompt_count; i++) {
        r->tokens[i] = (uint32_t)sim_below(rng, w->vocab_size);
    }
}

static uint32_t at_most(uint32_t value, uint32_t max)
{
    return value < max ? value : max;
}

static void make_request(sim_world *w, uint32_t index)
{
    sim_request *r = &w->requests[index];
    r->world = w;
    r->index = index;
    r->rng = sim_rng(w, SIM_STREAM_REQUEST, index, 0);
    fg_rng *rng = &r->rng;
    uint32_t longest = !w->burst && sim_chance(rng, 200) ? 300 : 60;
    r->prompt_count = 1 + (uint32_t)sim_below(rng, longest);
    uint32_t max_tokens = 1 + (uint32_t)sim_below(rng, 40);
    r->tokens = calloc(r->prompt_count + max_tokens, sizeof *r->tokens);
    FG_ASSERT(r->tokens != NULL);
    draw_prompt(w, r);
    bool odd_mode = sim_chance(rng, 100), salted = sim_chance(rng, 100);
    bool in_family = sim_chance(rng, 300), greedy = sim_chance(rng, 500);
    r->job = (fg_dispatch_job){
        .tokens = r->tokens,
        .params = { .temperature = greedy ? 0.0f : 1.0f,
                    .top_p = 1.0f,
                    .seed = fg_rng_next(rng) >> 1,
                    .max_tokens = at_most(max_tokens, w->options.answer_max),
                    .want_digests = true,
                    .presence_penalty = sim_chance(rng, 200) ? 0.5f : 0.0f,
                    .want_logprobs = sim_chance(rng, 200) ? 1 + (uint32_t)sim_below(rng, 4) : 0,
                    .priority = (int32_t)sim_below(rng, 3) - 1,
                    .cache_mode = odd_mode ? (uint32_t)sim_below(rng, 3) : FG_CACHE_AUTO,
                    .pin_ms = sim_chance(rng, 150) ? (uint32_t)sim_below(rng, 2000) : 0,
                    .salt_low = salted ? 1 + sim_below(rng, 2) : 0,
                    .family = in_family ? 1 + sim_below(rng, 3) : 0 },
        .sink = { .on_token = on_token,
                  .on_scores = on_scores,
                  .on_embedding = on_embedding,
                  .on_end = on_end,
                  .ctx = r },
        .tenant = sim_below(rng, 4),
    };
    uint64_t at = sim_below(rng, 600 * SIM_MS);
    at = w->burst ? 300 * SIM_MS + at % (20 * SIM_MS) : at;
    bool cancels = sim_chance(rng, 200);
    uint64_t cancel_at = at + sim_below(rng, 500 * SIM_MS);
    if (sim_chance(rng, 200) && r->job.params.cache_mode != FG_CACHE_FORCE) {
        r->job.params.want_scores = 1 + (uint32_t)sim_below(rng, 4);
    }
    if (sim_chance(rng, 100)) {
        r->job.params.want_embedding = true;
        r->job.params.max_tokens = 1;
    }
    r->left_out = (w->options.requests >> index & 1) == 0;
    if (r->left_out) {
        return;
    }
    r->router = (uint32_t)(fg_hash_mix(w->options.seed ^ index) % w->router_count);
    sim_event e = { .at_ns = at,
                    .fire = fire_start,
                    .arg = (void *)(uintptr_t)index,
                    .index = SIM_ROUTER + r->router };
    sim_push(w, &e);
    if (cancels) {
        e.at_ns = cancel_at;
        e.fire = fire_cancel;
        sim_push(w, &e);
    }
}

void sim_make_requests(sim_world *w)
{
    fg_rng rng = sim_rng(w, SIM_STREAM_SHAPE, 1, 0);
    w->request_count = 4 + (uint32_t)sim_below(&rng, FG_SIM_REQUESTS_MAX - 4);
    for (uint32_t i = 0; i < w->request_count; i++) {
        make_request(w, i);
    }
    /* Only now: a prompt that is cut short does not shorten those that begin like it. */
    for (uint32_t i = 0; i < w->request_count; i++) {
        sim_request *r = &w->requests[i];
        r->prompt_count = at_most(r->prompt_count, w->options.prompt_max);
        r->job.token_count = r->prompt_count;
        r->count = r->prompt_count;
    }
}
