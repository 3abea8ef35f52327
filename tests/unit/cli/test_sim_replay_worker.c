/* A worker is played with, and what its flight recorder kept is run again: `forge sim --replay`. */
#include <string.h>

#include "common/worker/worker_records.h"
#include "tests/support/test.h"
#include "tests/unit/cli/replay_bench.h"
#include "tests/unit/common/worker/rig.h"

enum { BLOCK = 4 };

static const rig_options small = {
    .blocks = 24, .block_size = BLOCK, .slots = 12, .flight_bytes = 1 << 20, .overlap = true
};

static void open_small(rig *r, size_t flight_bytes)
{
    rig_options options = small;
    options.flight_bytes = flight_bytes;
    options.policies.preemption = FG_PREEMPT_SWAP;
    rig_open(r, &options);
}

/* Runs to the end; whatever lies in the tier is changed between any two steps. */
static void damage_what_is_swapped(rig *r)
{
    while (rig_step(r)) {
        memset(fg_tier_arena(r->tier), 0xA5, r->options.slots * r->layout.block_bytes);
    }
    cr_assert(rig_stats(r).damaged_blocks > 0);
}

/* One of everything that a worker without a link lives through: shared prefixes, choices that fork, a pin, blocks
 * that come back from the tier, preemption, cancels, refusals, bad frames, time. */
static void live(rig *r)
{
    static const fg_msg welcome = { .kind = FG_MSG_WELCOME,
                                    .welcome = { .router_epoch = 1,
                                                 .lease_ms = 800,
                                                 .cache_key_low = 0xC0FFEEC0FFEE,
                                                 .cache_key_high = 0xBEEFBEEFBEEF } };
    uint32_t prompt[24];
    rig_give(r, &welcome);
    fg_worker_tick(r->worker);
    rig_ask(r, 1, 1, 20, 9);
    rig_run(r);
    rig_ask(r, 2, 1, 20, 6); /* what the first one left */
    fg_wire_params params = rig_greedy(5);
    params.family = 77;
    params.pin_ms = 50;
    params.salt_low = 0x5EC2E75A17;
    for (uint32_t i = 0; i < 22; i++) {
        prompt[i] = 7 + i;
    }
    rig_send(r, 3, prompt, 22, &params);
    rig_send(r, 4, prompt, 22, &params);
    rig_run(r);
    for (uint64_t id = 5; id < 9; id++) { /* more than there is room for */
        rig_ask(r, id, (uint32_t)id * 3, 21, 14);
    }
    rig_step(r);
    rig_cancel(r, 6);
    damage_what_is_swapped(r);
    prompt[3] = RIG_VOCAB + 5;
    rig_send(r, 9, prompt, 22, &params);
    fg_worker_on_frame(r->worker, 0, "nonsense", 8);
    rig_give(r, &(fg_msg){ .kind = FG_MSG_TOKENS });
    rig_give(r, &(fg_msg){ .kind = FG_MSG_RESYNC });
    r->now_ns += 100000000u;
    fg_worker_tick(r->worker);
    rig_clear(r);
    rig_ask(r, 10, 1, 20, 3);
    rig_step(r);
    fg_worker_drain(r->worker);
    fg_worker_abort_all(r->worker, "enough");
    rig_run(r);
    fg_worker_tick(r->worker);
    fg_worker_clear_cache(r->worker);
}

static void leave(rig *r)
{
    fg_worker_on_down(r->worker, 0);
    r->now_ns += 2000000000u;
    fg_worker_tick(r->worker);
    rig_close(r);
}

Test(sim_replay_worker, a_session_runs_the_same)
{
    rig r;
    open_small(&r, 1 << 20);
    live(&r);
    fg_worker_stats stats = rig_stats(&r);
    cr_assert(stats.preemptions > 0 && stats.restored_blocks > 0 && stats.forks > 0 &&
                  stats.cache_hit_tokens > 0,
              "%llu preemptions, %llu restored, %llu forks, %llu hits",
              (unsigned long long)stats.preemptions, (unsigned long long)stats.restored_blocks,
              (unsigned long long)stats.forks, (unsigned long long)stats.cache_hit_tokens);
    fg_buf bytes = replay_kept(r.flight);
    fg_replay_progress progress = replay_run(&bytes);
    cr_assert(progress.ended && !progress.differs, "call %llu: %s",
              (unsigned long long)progress.calls, progress.text);
    cr_assert_eq(progress.records, replay_parsed(&bytes).records);
    cr_assert_eq(progress.starts, 10u);
    cr_assert_eq(replay_code(&bytes), 0);
    fg_buf_deinit(&bytes);
    leave(&r);
}

Test(sim_replay_worker, each_prefix_of_a_session_runs_the_same)
{
    rig r;
    open_small(&r, 1 << 20);
    live(&r);
    fg_buf bytes = replay_kept(r.flight);
    replay_each_prefix(&bytes);
    fg_buf_deinit(&bytes);
    leave(&r);
}

Test(sim_replay_worker, a_record_keeps_no_secret)
{
    rig r;
    open_small(&r, 1 << 20);
    live(&r);
    fg_buf bytes = replay_kept(r.flight);
    const uint64_t salt = 0x5EC2E75A17, key_low = 0xC0FFEEC0FFEE, key_high = 0xBEEFBEEFBEEF;
    const uint32_t words[] = { 1, 2, 3, 4, 5, 6 };
    const unsigned char varints[] = { 1, 2, 3, 4, 5, 6 };
    cr_assert(!replay_contains(&bytes, &salt, 5), "a salt");
    cr_assert(!replay_contains(&bytes, &key_low, 6) && !replay_contains(&bytes, &key_high, 6),
              "the cache key");
    cr_assert(!replay_contains(&bytes, words, sizeof words) &&
                  !replay_contains(&bytes, varints, sizeof varints),
              "a prompt");
    const rig_request *first = &r.requests[2];
    cr_assert(!replay_contains(&bytes, first->tokens + first->prompt_count, 5 * sizeof(uint32_t)),
              "an answer");
    cr_assert(replay_contains(&bytes, "rig", 3), "the name is there");
    fg_buf_deinit(&bytes);
    leave(&r);
}

Test(sim_replay_worker, a_record_that_begins_at_rest_runs_the_same)
{
    rig r;
    uint32_t rests = 0;
    open_small(&r, 32 << 10);
    for (uint32_t i = 0; i < 200; i++) {
        fg_wire_params params = rig_greedy(6);
        params.pin_ms = i % 7 == 0 ? 2 : 0;
        uint32_t prompt[20];
        for (uint32_t j = 0; j < 20; j++) {
            prompt[j] = (i % 9 + j) % RIG_VOCAB;
        }
        rig_send(&r, 1 + i % 2, prompt, 20, &params);
        rig_run(&r);
        r.now_ns += 1000000u;
        fg_worker_tick(r.worker);
        fg_worker_tick(r.worker);
        if (i % 10 == 9) {
            fg_buf bytes = replay_kept(r.flight);
            fg_flight_file file = replay_parsed(&bytes);
            cr_assert(file.can_run);
            rests += file.header->chunks[file.first].kind == FG_FLIGHT_REST;
            fg_replay_progress progress = replay_run(&bytes);
            cr_assert(progress.ended, "%u: %s", i, progress.text);
            fg_buf_deinit(&bytes);
        }
    }
    cr_assert_gt(rests, 5u);
    leave(&r);
}

/* Guesses follow from tokens, which no record has; and who leaves while two steps work on it has them looked at once
 * more. */
Test(sim_replay_worker, a_record_with_guesses_runs_the_same)
{
    static const struct {
        fg_sched_draft draft;
        uint32_t eos;
        bool ignore_eos;
        rig_drafts model;
    } ways[] = {
        { FG_DRAFT_PAYS, 0, false, RIG_NO_DRAFT },    { FG_DRAFT_FIXED, 0, false, RIG_NO_DRAFT },
        { FG_DRAFT_FIXED, 1, false, RIG_NO_DRAFT },   { FG_DRAFT_ADAPTIVE, 1, true, RIG_NO_DRAFT },
        { FG_DRAFT_PAYS, 0, false, RIG_DRAFT_RIGHT }, { FG_DRAFT_PAYS, 1, false, RIG_DRAFT_MIXED },
        { FG_DRAFT_PAYS, 0, false, RIG_DRAFT_WRONG }, { FG_DRAFT_FIXED, 1, true, RIG_DRAFT_MIXED }
    };
    for (size_t way = 0; way < sizeof ways / sizeof ways[0]; way++) {
        static rig r;
        rig_open(&r, &(rig_options){ .blocks = 60,
                                     .block_size = 4,
                                     .vocab = 3,
                                     .eos = ways[way].eos,
                                     .overlap = true,
                                     .draft = ways[way].model,
                                     .draft_ns = 50000,
                                     .draft_alone = way == 4,
                                     .flight_bytes = 1 << 20,
                                     .policies = { .draft = ways[way].draft, .draft_max = 8 } });
        for (uint64_t round = 0; round < 24; round++) {
            for (uint64_t id = 1; id <= 4; id++) {
                uint32_t prompt[8];
                fg_wire_params params = rig_greedy(24);
                params.ignore_eos = ways[way].ignore_eos;
                for (uint32_t j = 0; j < 8; j++) {
                    prompt[j] = (uint32_t)(round * id + j * j) % 3;
                }
                rig_send(&r, id, prompt, 3 + (uint32_t)(round + id) % 6, &params);
            }
            for (uint64_t i = 0; i < 2 + round; i++) {
                rig_step(&r);
            }
            if (!r.requests[1 + round % 4].done) {
                rig_cancel(&r, 1 + round % 4);
            }
            rig_run(&r);
        }
        cr_assert(rig_stats(&r).accepted_tokens > 0 &&
                  (ways[way].model != RIG_NO_DRAFT || rig_stats(&r).discarded_tokens > 0));
        fg_buf bytes = replay_kept(r.flight);
        fg_replay_progress progress = replay_run(&bytes);
        cr_assert(progress.ended && !progress.differs, "way %zu: %s", way, progress.text);
        fg_buf_deinit(&bytes);
        rig_close(&r);
    }
}

/* ---- another life than then ---- */

static fg_work_options *options_in(fg_buf *bytes)
{
    return (fg_work_options *)(bytes->data + sizeof(fg_flight_header));
}

static void other_frame(fg_buf *bytes)
{
    ((fg_work_sent *)replay_find(bytes, FG_WORK_SENT))->hash ^= 1;
}

static void other_step(fg_buf *bytes)
{
    ((fg_work_began *)replay_find(bytes, FG_WORK_BEGAN))->hash ^= 1;
}

static void longer_prompt(fg_buf *bytes)
{
    fg_flight_file file = replay_parsed(bytes);
    fg_flight *scan;
    const fg_flight_record *record;
    cr_assert_eq(fg_flight_check(&file, &scan, NULL), FG_OK);
    while ((record = fg_flight_peek(scan)) != NULL) {
        fg_work_frame *frame = (fg_work_frame *)fg_flight_bytes(record);
        if (record->kind == FG_WORK_FRAME && frame->token_count > 0) {
            frame->token_count++;
            break;
        }
        fg_flight_skip(scan);
    }
    cr_assert_not_null(record);
    fg_flight_destroy(scan);
}

static void end_token(fg_buf *bytes)
{
    fg_work_step *step = replay_find(bytes, FG_WORK_STEP);
    *(unsigned char *)(step + 1) = 1;
}

static void slower_step(fg_buf *bytes)
{
    ((fg_work_step *)replay_find(bytes, FG_WORK_STEP))->compute_ns += 1000;
}

static void other_keys(fg_buf *bytes)
{
    fg_work_prompt *prompt = replay_find(bytes, FG_WORK_PROMPT);
    ((fg_digest128 *)(prompt + 1))->low ^= 1;
}

static void fewer_blocks(fg_buf *bytes)
{
    options_in(bytes)->block_count--;
}

static void no_overlap(fg_buf *bytes)
{
    options_in(bytes)->overlap = 0;
}

static void nonsense_step(fg_buf *bytes)
{
    ((fg_work_step *)replay_find(bytes, FG_WORK_STEP))->item_count++;
}

static void nonsense_asks(fg_buf *bytes)
{
    ((fg_work_step *)replay_find(bytes, FG_WORK_STEP))->ask_count++;
}

static void nonsense_draft(fg_buf *bytes)
{
    options_in(bytes)->draft_context = UINT32_MAX;
}

static void nonsense_blocks(fg_buf *bytes)
{
    options_in(bytes)->block_count = UINT32_MAX;
}

static void nonsense_size(fg_buf *bytes)
{
    options_in(bytes)->layout.block_size = 3;
}

static void nonsense_frame(fg_buf *bytes)
{
    fg_work_frame *frame = replay_find(bytes, FG_WORK_FRAME);
    *(unsigned char *)(frame + 1) = 0xFF;
}

static void out_of_order(fg_buf *bytes)
{
    ((fg_flight_header *)bytes->data)->chunks[1].kind = FG_FLIGHT_REST;
}

Test(sim_replay_worker, what_is_not_as_then_is_told)
{
    static const replay_case cases[] = {
        { "another frame", other_frame, 1 },
        { "another step", other_step, 1 },
        { "a longer prompt", longer_prompt, 1 },
        { "an end token", end_token, 1 },
        { "a slower step", slower_step, 1 },
        { "other keys", other_keys, 1 },
        { "fewer blocks", fewer_blocks, 1 },
        { "no second step in flight", no_overlap, 1 },
        { "then it crashed", replay_end_inside, 1 },
        { "a step of another size", nonsense_step, 2 },
        { "asks that are not there", nonsense_asks, 2 },
        { "a draft model with too long a context", nonsense_draft, 2 },
        { "more blocks than can be", nonsense_blocks, 2 },
        { "a block size that cannot be", nonsense_size, 2 },
        { "a frame that cannot be read", nonsense_frame, 2 },
        { "a beginning that is not there", out_of_order, 2 },
    };
    rig r;
    open_small(&r, 1 << 20);
    live(&r);
    replay_check_cases(r.flight, cases, sizeof cases / sizeof *cases);
    leave(&r);
}
