/*
 * What must hold, and where it is looked at:
 *   every token is what the request alone gives; tokens in order, once      room_judge.c, at each message
 *   one end for each request, none for a cancelled one, nothing after it    room_judge.c
 *   who stands first in the line is admitted first                          room_judge.c, in the end
 *   no block with two writers or freed under a reader; no idle step         room_spy.c, at each step
 *   pool, table references, promises, lists, tier: recounted                after each event (fg_worker_check)
 *   while somebody is live, the engine works                                after each event
 *   steps bring tokens                                                      after each step
 *   in the end nothing is held, promised, locked, swapped or expected       finish()
 *
 * Bugs that were planted, one at a time, each gone again, and the first seed that found it (of 1, 2, ...):
 *
 *   free before copy: copies run after the items that reuse the blocks      2    another token than alone
 *   a fork without its copy                                             3  another token than alone
 *   forgotten unlock of a slot that was fetched                         2  slots missing in the end
 *   forgotten unpin of a ticket's block (no tickets here)               1  sim_test: not at rest
 *   LRU evicts a referenced block, and the books agree                  2  a block is twice in a table
 *   lost wake-up: nothing is planned after a step was booked            1  live, and nothing in flight
 *   publish before the KV is complete                                   6  read while a step fills it
 *   match not capped at n-1                                             2  live, and nothing in flight
 *   remap frees a block that a launched step reads                      6  written while a step reads it
 *   swapped slot given back twice                                       4  recount
 *   swapped slot given back at launch, not when the copy has ended      4  recount
 *   a cancelled victim keeps its slots                                 17  recount
 *   end token found late: the token after it is told                    1  a token after the end
 *   end token found late: finishes twice                                1  live, and nothing in flight
 *   admit before reserving decode slots                                 3  a plan without blocks
 *   digest of the tier not verified; a damaged restore goes on         13  another token than alone
 *   expected key never unexpected, at the end                           3  live, and nothing in flight
 *   expected key never unexpected, at a preemption                     17  live, and nothing in flight
 *   a restored sequence runs before its blocks are back                 2  read while a step fills it
 *   a preemption leaks its promise                                      4  recount
 *   fresh ones at the front of the line; priorities ignored             2  one was overtaken
 *   salts share                                                         2  a hit that nobody computed
 *   nobody ends at capacity                                             1  live, and nothing in flight
 *   a wrong guess's KV counts as computed                               1  live, and nothing in flight
 *   blocks of wrong guesses are kept                                    1  recount
 *   blocks of wrong guesses are not set aside again                     1  recount
 *   the next step is planned before guesses are judged                  1  engine refuses
 *   an end token is guessed                                             7  a token after the end
 *   digests of a step's last row for all its tokens                     1  another digest than alone
 *
 * And two that nobody had planted: block tables of a step in flight were overwritten by plans that came
 * to nothing (seed 23, 49), and a chunk of a prompt whose hit had been evicted by an admission of the same
 * plan chose a token at its end (49, 14).
 */
#include "tests/sim/room_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/log.h"
#include "common/engine/engine_sim.h"

/* ---- the worker and what it stands on ---- */

static bool is_end(void *ctx, uint32_t token)
{
    return token == ROOM_EOS;
}

static void reconnect(void *ctx, uint32_t router, uint64_t epoch)
{
    room *r = ctx;
    FG_ASSERT(epoch > r->epoch, "the epoch must grow");
    r->epoch = epoch;
    r->wants_up = true;
}

static void open_engine(room *r)
{
    fg_error err;
    if (r->slot_count > 0) {
        fg_tier_options tier = { .block_bytes = r->layout.block_bytes,
                                 .block_count = r->slot_count,
                                 .block_size = r->layout.block_size };
        fg_status status = fg_tier_open(&tier, &r->tier, &err);
        FG_ASSERT(status == FG_OK, "%s", err.text);
    }
    r->arena = calloc(r->block_count, r->layout.block_bytes);
    FG_ASSERT(r->arena != NULL);
    fg_engine_sim_options options = {
        .layout = r->layout,
        .arena = r->arena,
        .block_count = r->block_count,
        .tier_arena = r->tier == NULL ? NULL : fg_tier_arena(r->tier),
        .tier_block_count = r->slot_count,
        .limits = { r->limits.step_tokens_max, r->limits.seqs_max, r->context_max },
        .vocab_size = r->vocab_size,
        .eos_token = ROOM_EOS,
        .manual = true,
        .quick = r->quick,
        .step_ns = { .base = 100000,
                     .prefill_token = 50000,
                     .decode_row = 80000,
                     .copied_block = 1000 },
        .draft_ns = 20000,
    };
    /* Beside what the seed draws otherwise, so that old seeds are the same rooms. */
    uint64_t drawn = fg_hash_mix(r->options.seed ^ 0xD12AF7);
    r->draft = drawn % 5 < 2 ? fg_sim_draft_open(&options, drawn) : NULL;
    options.drafter = fg_sim_draft_drafter(r->draft);
    fg_status status = fg_engine_open_sim(&options, &r->engine, &err);
    FG_ASSERT(status == FG_OK, "%s", err.text);
    room_spy_init(&r->spy, r->engine, &r->limits, r->block_count, r->slot_count);
    r->spy.verbose = r->options.verbose;
}

static void open_room(room *r, const room_options *options)
{
    *r = (room){ .options = *options, .now_ns = 1, .epoch = 1 };
    r->rng.state = fg_hash_mix(options->seed);
    room_draw_worker(r);
    open_engine(r);
    r->inbox = fg_arena_create(1 << 22);
    r->trace = room_chance(r, 5000) ? fg_trace_create("room", 64, 64) : NULL;
    r->requests = calloc(r->request_max, sizeof *r->requests);
    r->order = calloc(r->request_max, sizeof *r->order);
    FG_ASSERT(r->inbox != NULL && r->requests != NULL && r->order != NULL);
    r->secret = fg_rng_next(&r->rng);
    fg_worker_options worker = { .name = "room",
                                 .epoch = r->epoch,
                                 .roles = FG_ROLE_PREFILL | FG_ROLE_DECODE,
                                 .clock = fg_clock_manual(&r->now_ns),
                                 .engine = &r->spy.base,
                                 .layout = r->layout,
                                 .block_count = r->block_count,
                                 .context_max = r->context_max,
                                 .vocab_size = r->vocab_size,
                                 .embedding_length = FG_ENGINE_SIM_EMBEDDING,
                                 .draft_context = fg_sim_draft_context(r->draft),
                                 .draft_alone = options->seed % 4 == 0,
                                 .limits = r->limits,
                                 .overlap = r->overlap,
                                 .prefix_cache = r->cache,
                                 .tier = r->tier,
                                 .trace = r->trace,
                                 .is_end = is_end,
                                 .send = room_hear,
                                 .reconnect = reconnect,
                                 .ctx = r };
    fg_error err;
    room_news_open(r);
    fg_status status = fg_worker_create(&worker, &r->worker, &err);
    FG_ASSERT(status == FG_OK, "%s", err.text);
    if (options->verbose) {
        fprintf(
            stderr,
            "seed %llu: %u blocks of %u, %u slots, context %u, %u seqs, %u tokens, chunk %u, "
            "order %d victim %d preemption %d admission %d watermark %u skip %u, draft %d up to "
            "%u, overlap %d cache %d quick %d, %u requests, %u live\n",
            (unsigned long long)options->seed, r->block_count, r->layout.block_size, r->slot_count,
            r->context_max, r->limits.seqs_max, r->limits.step_tokens_max,
            r->limits.chunk_tokens_max, (int)r->limits.order, (int)r->limits.victim,
            (int)r->limits.preemption, (int)r->limits.admission, r->limits.watermark_blocks,
            r->limits.skip_max, (int)r->limits.draft, r->limits.draft_max, r->overlap, r->cache,
            r->quick, r->request_max, r->live_target);
    }
}

static void close_room(room *r)
{
    fg_worker_destroy(r->worker);
    room_news_close(r);
    room_spy_deinit(&r->spy);
    fg_engine_close(r->engine);
    fg_sim_draft_close(r->draft);
    fg_tier_close(r->tier);
    fg_trace_destroy(r->trace);
    fg_arena_destroy(r->inbox);
    for (uint32_t i = 0; i < r->sent; i++) {
        free(r->requests[i].tokens);
    }
    for (uint32_t i = 0; i < ROOM_SYSTEMS; i++) {
        free(r->systems[i]);
    }
    free(r->requests);
    free(r->order);
    free(r->arena);
}

/* ---- after each event ---- */

static void say(const room *r, const char *event, uint64_t about)
{
    if (r->options.verbose) {
        fprintf(stderr, "%14.6f %s %llu\n", (double)r->now_ns / 1e9, event,
                (unsigned long long)about);
    }
}

/* Live requests and an idle engine: nothing will ever wake this worker again, for it has no other
 * events to wait for. (A request that waits for another one's prefix is no exception: that one runs.) */
static void check_awake(const room *r)
{
    fg_worker_stats stats;
    fg_worker_stats_get(r->worker, &stats);
    FG_ASSERT(r->live == 0 || r->spy.in_flight > 0,
              "%u requests live (%u running, %u waiting, %u of them preempted), nothing in flight",
              r->live, stats.running, stats.waiting, stats.preempted);
    FG_ASSERT(stats.running + stats.waiting == r->live, "%u running and %u waiting, %u are live",
              stats.running, stats.waiting, r->live);
    FG_ASSERT(stats.closing == 0 || r->spy.in_flight > 0, "%u sequences never close",
              stats.closing);
    FG_ASSERT(r->overlap || r->spy.in_flight <= 1);
}

static void after(room *r)
{
    r->report.events++;
    check_awake(r);
    if (r->check_one_in == 1 || room_below(r, r->check_one_in) == 0) {
        fg_worker_check(r->worker);
        r->report.recounts++;
    }
}

/* ---- events ---- */

static void give(room *r, const fg_msg *msg)
{
    fg_buf frame;
    fg_buf_init(&frame, 0);
    bool encoded = fg_wire_encode(msg, &frame);
    FG_ASSERT(encoded);
    fg_worker_on_frame(r->worker, 0, frame.data, frame.size);
    fg_buf_deinit(&frame);
}

enum { SAID_MAX = 40 };

/* One in five was begun by a worker that is gone; one in three of these is not what had been said. Returns how many
 * tokens follow its prompt in `tokens`. */
static uint32_t make_said(room *r, const room_request *q, uint32_t *tokens)
{
    fg_sampling sampling = { .temperature = q->params.temperature,
                             .top_p = q->params.top_p,
                             .seed = q->params.seed };
    uint32_t most = q->params.max_tokens < SAID_MAX ? q->params.max_tokens : SAID_MAX;
    uint32_t count = room_chance(r, 2000) ? (uint32_t)room_below(r, most + 1) : 0;
    memcpy(tokens, q->tokens, q->prompt_count * sizeof *tokens);
    for (uint32_t i = q->prompt_count; i < q->prompt_count + count; i++) {
        tokens[i] = fg_engine_sim_expected(tokens, i, r->vocab_size, ROOM_EOS, &sampling, 0).token;
    }
    if (count > 0 && room_chance(r, 3333)) {
        tokens[q->prompt_count + room_below(r, count)] = (uint32_t)room_below(r, r->vocab_size);
    }
    return count;
}

static void send_request(room *r, room_request *q)
{
    fg_msg msg = { .kind = FG_MSG_PREFILL, .request = q->id, .attempt = q->attempt };
    uint32_t *tokens = calloc(q->prompt_count + SAID_MAX, sizeof *tokens);
    FG_ASSERT(tokens != NULL);
    msg.prefill.said_count = make_said(r, q, tokens);
    msg.prefill.said = tokens + q->prompt_count;
    msg.prefill.tokens = q->tokens;
    msg.prefill.token_count = q->prompt_count;
    msg.prefill.sampling = q->params;
    give(r, &msg);
    free(tokens);
}

static void arrive(room *r)
{
    uint32_t count = room_draw_requests(r);
    for (uint32_t i = 0; i < count; i++) {
        room_request *q = &r->requests[r->sent];
        r->order[r->live++] = r->sent++;
        r->report.requests++;
        q->state = ROOM_LIVE;
        q->queued_ns = r->now_ns;
        say(r, "arrives", q->id);
        send_request(r, q);
        after(r);
        if (room_chance(r, 100)) { /* doubled on its way */
            send_request(r, q);
            after(r);
        }
    }
}

static void cancel(room *r)
{
    fg_msg msg = { .kind = FG_MSG_CANCEL, .request = r->sent + 7, .attempt = 1 };
    if (r->live > 0) {
        room_request *q = &r->requests[r->order[room_below(r, r->live)]];
        msg.request = q->id;
        msg.attempt = q->attempt;
        r->report.cancelled++;
        *(q->started ? &r->report.cancelled_running : &r->report.cancelled_waiting) += 1;
        room_retire(r, q, ROOM_CANCELLED);
        say(r, "cancelled", q->id);
    }
    give(r, &msg);
    after(r);
    if (room_chance(r, 1000)) {
        give(r, &msg);
        after(r);
    }
}

static void join(room *r)
{
    r->wants_up = false;
    say(r, "joins", r->epoch);
    fg_worker_on_up(r->worker, 0);
    r->secret += room_chance(r, 2000);
    fg_msg msg = { .kind = FG_MSG_WELCOME };
    msg.welcome.router_epoch = 1;
    msg.welcome.lease_ms = 2000;
    msg.welcome.cache_key_low = r->secret;
    give(r, &msg);
    FG_ASSERT(fg_worker_joined(r->worker));
    after(r);
}

static void lose_router(room *r)
{
    say(r, "router lost", r->live);
    r->report.losses++;
    while (r->live > 0) {
        r->report.lost++;
        room_retire(r, &r->requests[r->order[0]], ROOM_LOST);
    }
    fg_worker_on_down(r->worker, 0);
    after(r);
}

static void clear_cache(room *r)
{
    say(r, "clear", 0);
    r->report.clears++;
    give(r, &(fg_msg){ .kind = FG_MSG_CLEAR });
    after(r);
}

/* A bit of host memory turns. */
static void damage(room *r)
{
    if (r->tier == NULL) {
        return;
    }
    uint64_t bit = room_below(r, (uint64_t)r->slot_count * r->layout.block_bytes * 8);
    ((uint8_t *)fg_tier_arena(r->tier))[bit / 8] ^= (uint8_t)(1u << bit % 8);
    r->report.flips++;
    say(r, "damage", bit / 8 / r->layout.block_bytes);
}

/* One step ends or, where two are in flight, perhaps both before the worker looks. */
static void end_step(room *r)
{
    if (!fg_engine_sim_complete(r->engine)) {
        return;
    }
    r->report.steps++;
    /* All that is live may have to be computed anew, in steps of one token, before the next comes. */
    uint64_t most = 64 + 4ull * r->context_max * (r->live + 1);
    FG_ASSERT(++r->quiet_steps <= most, "%llu steps without a token",
              (unsigned long long)r->quiet_steps);
    if (room_chance(r, 2000) && fg_engine_sim_complete(r->engine)) {
        r->report.steps++;
    }
    fg_worker_on_engine(r->worker);
    after(r);
}

static void tick(room *r)
{
    fg_worker_tick(r->worker);
    after(r);
}

static void pass_time(room *r)
{
    static const uint64_t jumps_s[] = { 1, 11, 25, 31, 1600 };
    r->now_ns += 1 + room_below(r, 200000);
    if (room_chance(r, r->jump)) {
        r->now_ns += jumps_s[room_below(r, sizeof jumps_s / sizeof *jumps_s)] * 1000 * ROOM_MS;
        say(r, "much later", 0);
    }
}

static void miss_news(room *r)
{
    give(r, &(fg_msg){ .kind = FG_MSG_RESYNC });
    after(r);
}

static void some_event(room *r)
{
    pass_time(r);
    if (!fg_worker_joined(r->worker)) {
        if (r->wants_up) {
            join(r);
            return;
        }
        r->now_ns += 100 * ROOM_MS;
        tick(r);
        end_step(r);
        return;
    }
    if (r->sent < r->request_max && r->live < r->live_target && room_chance(r, 4000)) {
        arrive(r);
    } else if (room_chance(r, r->cancel)) {
        cancel(r);
    } else if (room_chance(r, r->clear)) {
        clear_cache(r);
    } else if (room_chance(r, r->lose)) {
        lose_router(r);
    } else if (room_chance(r, r->flip)) {
        damage(r);
    } else if (room_chance(r, 300)) {
        tick(r);
    } else if (room_chance(r, 10)) {
        miss_news(r);
    } else if (room_chance(r, 50)) {
        room_judge_news(r);
        after(r);
    } else if (room_chance(r, 100)) {
        fg_worker_on_engine(r->worker); /* woken for nothing */
        after(r);
    } else {
        end_step(r);
    }
}

/* ---- the end ---- */

static void drain(room *r)
{
    while (r->live > 0 || r->spy.in_flight > 0) {
        pass_time(r);
        end_step(r);
    }
    FG_ASSERT(fg_worker_idle(r->worker));
    r->now_ns += 2000 * ROOM_MS; /* no pin lasts longer */
    fg_worker_tick(r->worker);
}

/* The end of a process that has waited long enough. */
static void give_up(room *r)
{
    say(r, "all is given up", r->live);
    r->giving_up = true;
    fg_worker_abort_all(r->worker, "enough");
    FG_ASSERT(r->live == 0);
    after(r);
    r->giving_up = false;
}

static void check_empty(room *r)
{
    fg_worker_stats stats;
    fg_worker_check(r->worker);
    fg_worker_stats_get(r->worker, &stats);
    const fg_pool_stats *pool = &stats.pool;
    FG_ASSERT(pool->held + pool->pinned + pool->quarantined + pool->promised == 0,
              "%u held, %u pinned, %u quarantined, %u promised in the end", pool->held,
              pool->pinned, pool->quarantined, pool->promised);
    FG_ASSERT(stats.running + stats.waiting + stats.preempted + stats.closing == 0);
    FG_ASSERT(r->cache || pool->cached == 0);
    FG_ASSERT(stats.tier.swapped == 0, "%u slots are swapped in the end", stats.tier.swapped);
    FG_ASSERT(r->tier == NULL || fg_tier_available(r->tier) == r->slot_count,
              "%u of %u slots can be had in the end", fg_tier_available(r->tier), r->slot_count);
    FG_ASSERT(fg_engine_sim_bad_slots(r->engine) == 0, "%llu torn slots were read",
              (unsigned long long)fg_engine_sim_bad_slots(r->engine));
    FG_ASSERT(stats.damaged_blocks == 0 || r->report.flips > 0, "%llu blocks came back damaged",
              (unsigned long long)stats.damaged_blocks);
    FG_ASSERT(r->limits.admission != FG_ADMIT_NO_EVICT || stats.preemptions == 0,
              "%llu preemptions where nobody is to be evicted",
              (unsigned long long)stats.preemptions);
    FG_ASSERT(stats.preemptions == 0 || r->limits.preemption != FG_PREEMPT_RECOMPUTE ||
              stats.swapped_blocks == 0);
}

/* Old prompts once more, one after the other: whoever is alone waits for nobody's prefix, or else a key
 * is still expected that nobody computes. */
static void check_expectations(room *r)
{
    fg_worker_stats before, now;
    fg_worker_stats_get(r->worker, &before);
    for (uint32_t i = 0; i < 16 && r->request_max > r->sent; i++) {
        uint32_t count = room_draw_requests(r);
        for (uint32_t j = 1; j < count; j++) {
            free(r->requests[r->sent + j].tokens); /* the first of a family will do */
        }
        room_request *q = &r->requests[r->sent];
        q->params.family = 0;
        r->order[r->live++] = r->sent++;
        q->state = ROOM_LIVE;
        q->queued_ns = r->now_ns;
        r->report.requests++;
        send_request(r, q);
        after(r);
        drain(r);
        fg_worker_stats_get(r->worker, &now);
        FG_ASSERT(now.deferrals == before.deferrals, "request %llu is alone and waits for a prefix",
                  (unsigned long long)q->id);
    }
}

static void take_stats(room *r)
{
    fg_worker_stats stats;
    fg_worker_stats_get(r->worker, &stats);
    room_report *report = &r->report;
    report->steps_ahead = r->spy.ahead;
    report->hit_tokens = stats.cache_hit_tokens;
    report->tier_hit_tokens = stats.tier_hit_tokens;
    report->forks = stats.forks;
    report->copied = stats.copied_blocks;
    report->remapped = stats.remapped_blocks;
    report->deferrals = stats.deferrals;
    report->evictions = stats.pool.evictions;
    report->preemptions = stats.preemptions;
    report->swapped = stats.swapped_blocks;
    report->restored = stats.restored_blocks;
    report->damaged = stats.damaged_blocks;
    report->discarded = stats.discarded_tokens;
    report->drafted = stats.drafted_tokens;
    report->accepted = stats.accepted_tokens;
    report->model_drafted = stats.model_drafted_tokens;
    report->model_accepted = stats.model_accepted_tokens;
}

static void finish(room *r)
{
    if (r->any_faults && room_chance(r, 2000)) {
        give_up(r);
    }
    while (!fg_worker_joined(r->worker) || r->live > 0) {
        some_event(r);
    }
    drain(r);
    check_empty(r);
    r->lose = r->flip = r->cancel = 0;
    check_expectations(r);
    check_empty(r);
    room_judge_news(r);
    room_judge_order(r);
    take_stats(r);
    fg_worker_clear_cache(r->worker);
    fg_worker_check(r->worker);
    fg_worker_stats stats;
    fg_worker_stats_get(r->worker, &stats);
    room_judge_news(r);
    FG_ASSERT(stats.pool.free == r->block_count && stats.tier.stored == 0 &&
                  stats.prefix.entries == 0,
              "something is left in a cleared cache");
}

void room_run(const room_options *options, room_report *report_out)
{
    room r;
    open_room(&r, options);
    join(&r);
    /* The last sixteen are for the questions at the end. */
    uint32_t all = r.request_max;
    r.request_max = all > 16 ? all - 16 : all;
    while (r.sent < r.request_max) {
        some_event(&r);
    }
    r.request_max = all;
    uint32_t target = r.live_target;
    r.live_target = 0;
    finish(&r);
    r.live_target = target;
    *report_out = r.report;
    close_room(&r);
}

void room_add(room_report *sum, const room_report *report)
{
    uint64_t *to = (uint64_t *)sum;
    const uint64_t *from = (const uint64_t *)report;
    for (size_t i = 0; i < sizeof *sum / sizeof *to; i++) {
        to[i] += from[i];
    }
}
