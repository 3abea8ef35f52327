#include "common/engine/engine_sim.h"

#include <string.h>

#include "common/base/dtype.h"
#include "common/base/fault.h"
#include "common/base/hash.h"
#include "tests/support/test.h"

enum { BLOCKS = 16, BLOCK_SIZE = 4, VOCAB = 1000, CONTEXT = 48, TOKENS = 20 };

typedef struct sim {
    fg_engine *engine;
    fg_engine_sim_options options;
    uint8_t arena[BLOCKS * 1024];
    uint32_t done_count;
} sim;

static void on_done(void *ctx)
{
    ((sim *)ctx)->done_count++;
}

static void open_sim(sim *s, bool manual)
{
    memset(s, 0, sizeof *s);
    memset(s->arena, 0xA5, sizeof s->arena);
    s->options = (fg_engine_sim_options){
        .arena = s->arena,
        .block_count = BLOCKS,
        .limits = { .step_tokens_max = 32, .step_seqs_max = 4, .context_max = CONTEXT },
        .vocab_size = VOCAB,
        .eos_token = 2,
        .manual = manual,
        .on_done = on_done,
        .ctx = s,
    };
    cr_assert_eq(fg_kv_layout_init(&s->options.layout, 2, 1, 8, BLOCK_SIZE, FG_F16, NULL), FG_OK);
    cr_assert(s->options.layout.block_bytes * BLOCKS <= sizeof s->arena);
    fg_error err = { 0 };
    cr_assert_eq(fg_engine_open_sim(&s->options, &s->engine, &err), FG_OK, "%s", err.text);
}

static fg_step_seq make_seq(const uint32_t *tokens, uint32_t first, uint32_t count,
                            const uint32_t *block_ids)
{
    return (fg_step_seq){ .tokens = tokens + first,
                          .token_count = count,
                          .first_position = first,
                          .block_ids = block_ids,
                          .block_count = CONTEXT / BLOCK_SIZE,
                          .sample = true,
                          .want_digest = true };
}

static const uint32_t table_a[] = { 3, 1, 4, 0, 5, 9, 2, 6, 8, 7, 10, 11 };
static const uint32_t table_b[] = { 12, 13, 14, 15, 0, 0, 0, 0, 0, 0, 0, 0 };

static void fill_tokens(uint32_t *tokens, uint64_t seed)
{
    for (uint32_t i = 0; i < TOKENS; i++) {
        tokens[i] = (uint32_t)(fg_hash_mix(seed + i) % VOCAB);
    }
}

/* Runs tokens in chunks; returns the last part. */
static fg_step_seq run(sim *s, const uint32_t *tokens, uint32_t count, uint32_t chunk)
{
    fg_step_seq seq = { 0 };
    for (uint32_t at = 0; at < count; at += chunk) {
        seq = make_seq(tokens, at, count - at < chunk ? count - at : chunk, table_a);
        fg_step step = { .seqs = &seq, .seq_count = 1 };
        cr_assert_eq(fg_engine_begin(s->engine, &step, NULL), FG_OK);
        cr_assert(fg_engine_poll(s->engine));
    }
    return seq;
}

Test(engine_sim, any_chunking_gives_the_expected_answer)
{
    uint32_t tokens[TOKENS];
    fill_tokens(tokens, 1);
    for (uint32_t chunk = 1; chunk <= TOKENS; chunk++) {
        sim s;
        open_sim(&s, false);
        fg_step_seq seq = run(&s, tokens, TOKENS, chunk);
        fg_engine_sim_answer want =
            fg_engine_sim_expected(tokens, TOKENS, VOCAB, 2, &seq.sampling, 0);
        cr_assert_eq(seq.token_out, want.token);
        cr_assert_eq(seq.digest_out, want.digest);
        cr_assert_eq(fg_engine_sim_bad_slots(s.engine), 0);
        fg_engine_close(s.engine);
    }
}

Test(engine_sim, any_damage_to_what_was_written_changes_the_answer)
{
    uint32_t tokens[TOKENS];
    fill_tokens(tokens, 2);
    sim s;
    open_sim(&s, false);
    run(&s, tokens, TOKENS - 1, 5);
    fg_engine_sim_answer want =
        fg_engine_sim_expected(tokens, TOKENS, VOCAB, 2, &(fg_sampling){ 0 }, 0);
    /* Every byte of the blocks that the first 19 slots fill; the slots after them are not read. */
    size_t block_bytes = s.options.layout.block_bytes;
    for (uint32_t i = 0; i < (TOKENS - 1) / BLOCK_SIZE; i++) {
        for (size_t byte = 0; byte < block_bytes; byte++) {
            uint8_t *victim = &s.arena[table_a[i] * block_bytes + byte];
            *victim ^= 0x10;
            fg_step_seq seq = make_seq(tokens, TOKENS - 1, 1, table_a);
            fg_step step = { .seqs = &seq, .seq_count = 1 };
            cr_assert_eq(fg_engine_begin(s.engine, &step, NULL), FG_OK);
            cr_assert(fg_engine_poll(s.engine));
            cr_assert_neq(seq.digest_out, want.digest, "block %u byte %zu", i, byte);
            *victim ^= 0x10;
        }
    }
    cr_assert(fg_engine_sim_bad_slots(s.engine) > 0);
    fg_engine_close(s.engine);
}

Test(engine_sim, a_block_of_another_sequence_changes_the_answer)
{
    uint32_t tokens[2][TOKENS];
    fill_tokens(tokens[0], 3);
    fill_tokens(tokens[1], 4);
    sim s;
    open_sim(&s, false);
    run(&s, tokens[0], TOKENS - 1, TOKENS);
    fg_step_seq other = make_seq(tokens[1], 0, 16, table_b);
    fg_step step = { .seqs = &other, .seq_count = 1 };
    cr_assert_eq(fg_engine_begin(s.engine, &step, NULL), FG_OK);
    cr_assert(fg_engine_poll(s.engine));
    uint32_t mixed[CONTEXT / BLOCK_SIZE];
    memcpy(mixed, table_a, sizeof mixed);
    mixed[1] = table_b[1]; /* whole and at the right place, but a stranger's */
    fg_step_seq seq = make_seq(tokens[0], TOKENS - 1, 1, mixed);
    step.seqs = &seq;
    cr_assert_eq(fg_engine_begin(s.engine, &step, NULL), FG_OK);
    cr_assert(fg_engine_poll(s.engine));
    cr_assert_neq(seq.digest_out,
                  fg_engine_sim_expected(tokens[0], TOKENS, VOCAB, 2, &seq.sampling, 0).digest);
    cr_assert_eq(fg_engine_sim_bad_slots(s.engine), 0, "no slot is torn");
    fg_engine_close(s.engine);
}

Test(engine_sim, manual_steps_end_when_told)
{
    uint32_t tokens[TOKENS];
    fill_tokens(tokens, 5);
    sim s;
    open_sim(&s, true);
    fg_step_seq seqs[3] = { make_seq(tokens, 0, 4, table_a), make_seq(tokens, 4, 2, table_a),
                            make_seq(tokens, 6, 1, table_a) };
    fg_step_digest digest = { .block_id = table_a[0] };
    fg_step steps[3] = {
        { .seqs = &seqs[0], .seq_count = 1, .digests = &digest, .digest_count = 1 },
        { .seqs = &seqs[1], .seq_count = 1 },
        { .seqs = &seqs[2], .seq_count = 1 },
    };
    cr_assert(!fg_engine_sim_complete(s.engine), "nothing is in flight");
    cr_assert_eq(fg_engine_begin(s.engine, &steps[0], NULL), FG_OK);
    cr_assert_eq(fg_engine_begin(s.engine, &steps[1], NULL), FG_OK);
    cr_assert_eq(fg_engine_begin(s.engine, &steps[2], NULL), FG_AGAIN);
    cr_assert_null(fg_engine_poll(s.engine));
    cr_assert_eq(s.done_count, 0);
    cr_assert(fg_engine_sim_complete(s.engine));
    cr_assert_eq(s.done_count, 1);
    cr_assert_eq(fg_engine_begin(s.engine, &steps[2], NULL), FG_AGAIN, "not polled yet");
    cr_assert(fg_engine_poll(s.engine) == &steps[0], "the oldest");
    cr_assert_null(fg_engine_poll(s.engine), "the other one still runs");
    cr_assert_eq(fg_engine_begin(s.engine, &steps[2], NULL), FG_OK);
    cr_assert(fg_engine_sim_complete(s.engine));
    cr_assert(fg_engine_sim_complete(s.engine));
    cr_assert(!fg_engine_sim_complete(s.engine));
    cr_assert_eq(s.done_count, 3);
    cr_assert(fg_engine_poll(s.engine) == &steps[1]);
    cr_assert(fg_engine_poll(s.engine) == &steps[2]);
    cr_assert_null(fg_engine_poll(s.engine));
    cr_assert_eq(seqs[2].digest_out,
                 fg_engine_sim_expected(tokens, 7, VOCAB, 2, &seqs[2].sampling, 0).digest);
    size_t block_bytes = s.options.layout.block_bytes;
    cr_assert_eq(digest.digest_out, fg_hash64(s.arena + table_a[0] * block_bytes, block_bytes, 0));
    fg_engine_close(s.engine);
}

Test(engine_sim, steps_end_at_once_when_not_manual)
{
    uint32_t tokens[TOKENS];
    fill_tokens(tokens, 7);
    sim s;
    open_sim(&s, false);
    fg_step_seq seqs[2] = { make_seq(tokens, 0, 4, table_a), make_seq(tokens, 4, 1, table_a) };
    seqs[1].follows = &seqs[0];
    seqs[1].tokens = NULL;
    fg_step steps[3] = { { .seqs = &seqs[0], .seq_count = 1 },
                         { .seqs = &seqs[1], .seq_count = 1 },
                         { .seq_count = 0 } };
    cr_assert_eq(fg_engine_begin(s.engine, &steps[0], NULL), FG_OK);
    cr_assert_eq(fg_engine_begin(s.engine, &steps[1], NULL), FG_OK);
    cr_assert_eq(fg_engine_begin(s.engine, &steps[2], NULL), FG_AGAIN);
    cr_assert(!fg_engine_sim_complete(s.engine));
    cr_assert_eq(s.done_count, 2);
    cr_assert(fg_engine_poll(s.engine) == &steps[0]);
    cr_assert(fg_engine_poll(s.engine) == &steps[1]);
    tokens[4] = seqs[0].token_out;
    cr_assert_eq(seqs[1].digest_out,
                 fg_engine_sim_expected(tokens, 5, VOCAB, 2, &seqs[1].sampling, 0).digest);
    fg_engine_close(s.engine);
}

/* Opens the engine again, with options that a test has changed. */
static void reopen(sim *s)
{
    fg_engine_close(s->engine);
    fg_error err = { 0 };
    cr_assert_eq(fg_engine_open_sim(&s->options, &s->engine, &err), FG_OK, "%s", err.text);
}

Test(engine_sim, quick_gives_the_same_answers)
{
    uint32_t tokens[TOKENS];
    fill_tokens(tokens, 8);
    for (uint32_t chunk = 1; chunk <= TOKENS; chunk++) {
        sim s;
        open_sim(&s, false);
        s.options.quick = true;
        reopen(&s);
        fg_step_seq seq = run(&s, tokens, TOKENS, chunk);
        fg_engine_sim_answer want =
            fg_engine_sim_expected(tokens, TOKENS, VOCAB, 2, &seq.sampling, 0);
        cr_assert_eq(seq.token_out, want.token, "chunk %u", chunk);
        cr_assert_eq(seq.digest_out, want.digest, "chunk %u", chunk);
        fg_engine_close(s.engine);
    }
}

Test(engine_sim, quick_sees_a_wrong_block_before_its_token)
{
    uint32_t tokens[TOKENS];
    fill_tokens(tokens, 9);
    sim s;
    open_sim(&s, false);
    s.options.quick = true;
    reopen(&s);
    run(&s, tokens, TOKENS - 1, TOKENS);
    uint32_t mixed[CONTEXT / BLOCK_SIZE];
    memcpy(mixed, table_a, sizeof mixed);
    mixed[(TOKENS - 2) / BLOCK_SIZE] = table_a[1]; /* whole, but of another place */
    fg_step_seq seq = make_seq(tokens, TOKENS - 1, 1, mixed);
    fg_step step = { .seqs = &seq, .seq_count = 1 };
    cr_assert_eq(fg_engine_begin(s.engine, &step, NULL), FG_OK);
    cr_assert(fg_engine_poll(s.engine) == &step);
    cr_assert_neq(seq.digest_out,
                  fg_engine_sim_expected(tokens, TOKENS, VOCAB, 2, &seq.sampling, 0).digest);
    fg_engine_close(s.engine);
}

Test(engine_sim, simulated_time_is_the_sum_of_its_parts)
{
    static const struct {
        const char *name;
        uint32_t prefill, rows, copies;
        uint64_t want;
    } cases[] = {
        { "empty", 0, 0, 0, 1000 },
        { "prefill", 7, 0, 0, 1070 },
        { "rows", 0, 2, 0, 1600 },
        { "copies", 0, 0, 3, 16000 },
        { "all of it", 5, 2, 1, 1650 + 5000 },
    };
    uint32_t tokens[TOKENS];
    fill_tokens(tokens, 10);
    sim s;
    open_sim(&s, true);
    s.options.step_ns = (fg_engine_sim_ns){
        .base = 1000, .prefill_token = 10, .decode_row = 300, .copied_block = 5000
    };
    reopen(&s);
    cr_assert_eq(fg_engine_sim_due_ns(s.engine), UINT64_MAX, "nothing is in flight");
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fg_step_seq seqs[3] = { make_seq(tokens, 0, 1, table_a), make_seq(tokens, 0, 1, table_b),
                                make_seq(tokens, 1, cases[i].prefill, table_a) };
        fg_step_copy copies[3];
        for (int j = 0; j < 3; j++) {
            copies[j] = (fg_step_copy){ .kind = FG_COPY_BLOCK, .from = 0, .to = 1 };
        }
        fg_step step = { .copies = copies,
                         .copy_count = cases[i].copies,
                         .seqs = cases[i].rows > 0 ? seqs : seqs + 2,
                         .seq_count = cases[i].rows + (cases[i].prefill > 0) };
        fg_step after = { .seq_count = 0 };
        cr_assert_eq(fg_engine_begin(s.engine, &step, NULL), FG_OK);
        cr_assert_eq(fg_engine_begin(s.engine, &after, NULL), FG_OK);
        cr_assert_eq(fg_engine_sim_due_ns(s.engine), cases[i].want, "%s", cases[i].name);
        cr_assert(fg_engine_sim_complete(s.engine));
        cr_assert_eq(fg_engine_sim_due_ns(s.engine), 1000, "now the one behind it");
        cr_assert(fg_engine_sim_complete(s.engine));
        cr_assert_eq(fg_engine_sim_due_ns(s.engine), UINT64_MAX);
        cr_assert(fg_engine_poll(s.engine) == &step);
        cr_assert(fg_engine_poll(s.engine) == &after);
        cr_assert_eq(step.compute_ns_out, cases[i].want, "%s", cases[i].name);
        cr_assert_eq(step.copy_ns_out, cases[i].copies * 5000, "%s", cases[i].name);
    }
    fg_engine_close(s.engine);
}

Test(engine_sim, seed_and_choice_matter_only_when_sampling)
{
    uint32_t tokens[TOKENS];
    fill_tokens(tokens, 6);
    fg_sampling greedy[2] = { { .seed = 1 }, { .seed = 2 } };
    fg_sampling warm[2] = { { .temperature = 1.0f, .seed = 1 },
                            { .temperature = 1.0f, .seed = 2 } };
    cr_assert_eq(fg_engine_sim_expected(tokens, TOKENS, 1 << 20, UINT32_MAX, &greedy[0], 0).token,
                 fg_engine_sim_expected(tokens, TOKENS, 1 << 20, UINT32_MAX, &greedy[1], 3).token);
    cr_assert_neq(fg_engine_sim_expected(tokens, TOKENS, 1 << 20, UINT32_MAX, &warm[0], 0).token,
                  fg_engine_sim_expected(tokens, TOKENS, 1 << 20, UINT32_MAX, &warm[1], 0).token);
    cr_assert_neq(fg_engine_sim_expected(tokens, TOKENS, 1 << 20, UINT32_MAX, &warm[0], 0).token,
                  fg_engine_sim_expected(tokens, TOKENS, 1 << 20, UINT32_MAX, &warm[0], 1).token);
}

/* The checks that both engines share. */
Test(engine, refuses_steps_beyond_limits_or_with_strange_ids)
{
    static const struct {
        const char *name;
        uint32_t token, token_count, first_position, block_count, block_id, seq_count, digest_block;
        const char *want;
    } cases[] = {
        { "no tokens", 1, 0, 0, 12, 3, 1, 0, "no tokens" },
        { "token id", VOCAB, 1, 0, 12, 3, 1, 0, "vocabulary" },
        { "context", 1, 2, CONTEXT - 1, 12, 3, 1, 0, "beyond" },
        { "position overflow", 1, 2, UINT32_MAX, 12, 3, 1, 0, "beyond" },
        { "step tokens", 1, 33, 0, 12, 3, 1, 0, "33 tokens" },
        { "step sequences", 1, 1, 0, 12, 3, 5, 0, "5 sequences" },
        { "too few blocks", 1, 5, 0, 1, 3, 1, 0, "needs 2" },
        { "block id", 1, 1, 0, 12, BLOCKS, 1, 0, "names block" },
        { "digest block", 1, 1, 0, 12, 3, 1, BLOCKS, "digest" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        sim s;
        open_sim(&s, false);
        uint32_t tokens[40];
        uint32_t block_ids[12];
        for (int j = 0; j < 40; j++) {
            tokens[j] = cases[i].token;
        }
        for (int j = 0; j < 12; j++) {
            block_ids[j] = cases[i].block_id;
        }
        fg_step_seq seqs[5];
        for (int j = 0; j < 5; j++) {
            seqs[j] = (fg_step_seq){ .tokens = tokens,
                                     .token_count = cases[i].token_count,
                                     .first_position = cases[i].first_position,
                                     .block_ids = block_ids,
                                     .block_count = cases[i].block_count };
        }
        fg_step_digest digest = { .block_id = cases[i].digest_block };
        fg_step step = {
            .seqs = seqs, .seq_count = cases[i].seq_count, .digests = &digest, .digest_count = 1
        };
        fg_error err = { 0 };
        cr_assert_eq(fg_engine_begin(s.engine, &step, &err), FG_BAD_INPUT, "%s", cases[i].name);
        cr_assert_not_null(strstr(err.text, cases[i].want), "%s: %s", cases[i].name, err.text);
        cr_assert(!fg_engine_poll(s.engine), "%s: nothing was started", cases[i].name);
        fg_engine_close(s.engine);
    }
}

Test(engine, refuses_choices_without_tokens_or_a_place)
{
    static uint32_t out[3];
    static const struct {
        const char *name;
        uint32_t sample_rows, token_count;
        bool sample;
        uint32_t *tokens_out;
        const char *want; /* NULL: allowed */
    } cases[] = {
        { "as before", 0, 3, true, NULL, NULL },
        { "one", 1, 3, true, out, NULL },
        { "all", 3, 3, true, out, NULL },
        { "more than tokens", 4, 3, true, out, "4 choices after 3 tokens" },
        { "very many", UINT32_MAX, 3, true, out, "choices after 3 tokens" },
        { "nowhere to put them", 2, 3, true, NULL, "no array for its 2" },
        { "without sampling", 2, 3, false, out, "does not sample" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        sim s;
        open_sim(&s, false);
        uint32_t tokens[TOKENS];
        fill_tokens(tokens, 14);
        fg_step_seq seq = make_seq(tokens, 0, cases[i].token_count, table_a);
        seq.sample = cases[i].sample;
        seq.sample_rows = cases[i].sample_rows;
        seq.tokens_out = cases[i].tokens_out;
        fg_step step = { .seqs = &seq, .seq_count = 1 };
        fg_error err = { 0 };
        fg_status want = cases[i].want == NULL ? FG_OK : FG_BAD_INPUT;
        cr_assert_eq(fg_engine_begin(s.engine, &step, &err), want, "%s", cases[i].name);
        cr_assert(want == FG_OK || strstr(err.text, cases[i].want) != NULL, "%s: %s", cases[i].name,
                  err.text);
        cr_assert_eq(fg_engine_poll(s.engine) == &step, want == FG_OK, "%s", cases[i].name);
        fg_engine_close(s.engine);
    }
}

Test(engine_sim, chooses_after_each_of_the_last_rows)
{
    uint32_t tokens[TOKENS];
    fill_tokens(tokens, 15);
    const fg_sampling sampling = { .temperature = 1.0f, .top_p = 1.0f, .seed = 3 };
    for (uint32_t n = 1; n <= 5; n++) {
        sim s;
        open_sim(&s, false);
        uint32_t chosen[6] = { 0 };
        uint64_t digests[6] = { 0 };
        run(&s, tokens, TOKENS - 5, 7);
        fg_step_seq seq = make_seq(tokens, TOKENS - 5, 5, table_a);
        seq.sampling = sampling;
        seq.choice = 2;
        seq.sample_rows = n;
        seq.tokens_out = chosen;
        seq.digests_out = digests;
        fg_step step = { .seqs = &seq, .seq_count = 1 };
        cr_assert_eq(fg_engine_begin(s.engine, &step, NULL), FG_OK);
        cr_assert(fg_engine_poll(s.engine));
        for (uint32_t i = 0; i < n; i++) {
            fg_engine_sim_answer want =
                fg_engine_sim_expected(tokens, TOKENS - n + 1 + i, VOCAB, 2, &sampling, 2);
            cr_assert_eq(chosen[i], want.token, "%u of %u", i, n);
            cr_assert_eq(digests[i], want.digest, "%u of %u", i, n);
        }
        cr_assert(chosen[n] == 0 && digests[n] == 0, "nothing behind");
        cr_assert_eq(seq.token_out, chosen[n - 1]);
        cr_assert_eq(seq.digest_out, digests[n - 1]);
        fg_engine_close(s.engine);
    }
}

enum { TIER_BLOCKS = 5 };

Test(engine, refuses_copies_with_strange_ids)
{
    static const struct {
        const char *name;
        bool tier;
        fg_step_copy copy;
        const char *want; /* NULL: allowed */
    } cases[] = {
        { "block to block", false, { FG_COPY_BLOCK, 0, BLOCKS - 1, 0 }, NULL },
        { "block out", true, { FG_COPY_OUT, BLOCKS - 1, TIER_BLOCKS - 1, 0 }, NULL },
        { "block in", true, { FG_COPY_IN, TIER_BLOCKS - 1, BLOCKS - 1, 0 }, NULL },
        { "same number in both", true, { FG_COPY_IN, 2, 2, 0 }, NULL },
        { "from block", false, { FG_COPY_BLOCK, BLOCKS, 0, 0 }, "reads block 16 of 16" },
        { "to block", false, { FG_COPY_BLOCK, 0, BLOCKS, 0 }, "writes block 16 of 16" },
        { "onto itself", false, { FG_COPY_BLOCK, 3, 3, 0 }, "onto itself" },
        { "out of a strange block", true, { FG_COPY_OUT, UINT32_MAX, 0, 0 }, "reads block" },
        { "out to a strange slot", true, { FG_COPY_OUT, 0, TIER_BLOCKS, 0 }, "writes slot 5 of 5" },
        { "in of a strange slot", true, { FG_COPY_IN, TIER_BLOCKS, 0, 0 }, "reads slot 5 of 5" },
        { "in to a strange block", true, { FG_COPY_IN, 0, BLOCKS, 0 }, "writes block" },
        { "out without a tier", false, { FG_COPY_OUT, 0, 0, 0 }, "there is none" },
        { "in without a tier", false, { FG_COPY_IN, 0, 0, 0 }, "there is none" },
        { "unknown kind", true, { (fg_copy_kind)7, 0, 1, 0 }, "kind" },
    };
    static uint8_t tier[TIER_BLOCKS * 1024];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        sim s;
        open_sim(&s, false);
        s.options.tier_arena = cases[i].tier ? tier : NULL;
        s.options.tier_block_count = TIER_BLOCKS; /* means nothing without an arena */
        reopen(&s);
        fg_step_copy copies[2] = { { FG_COPY_BLOCK, 0, 1, 0 }, cases[i].copy };
        fg_step step = { .copies = copies, .copy_count = 2 };
        fg_error err = { 0 };
        fg_status want = cases[i].want == NULL ? FG_OK : FG_BAD_INPUT;
        cr_assert_eq(fg_engine_begin(s.engine, &step, &err), want, "%s", cases[i].name);
        if (cases[i].want != NULL) {
            cr_assert_not_null(strstr(err.text, cases[i].want), "%s: %s", cases[i].name, err.text);
            cr_assert_null(fg_engine_poll(s.engine), "%s: nothing was started", cases[i].name);
            cr_assert_eq(s.arena[1 * s.options.layout.block_bytes], 0xA5);
        }
        fg_engine_close(s.engine);
    }
}

Test(engine, refuses_to_follow_what_is_not_an_item_of_the_step_before)
{
    uint32_t tokens[TOKENS];
    fill_tokens(tokens, 11);
    fg_step_seq older = make_seq(tokens, 0, 4, table_a);
    fg_step_seq before[4] = { make_seq(tokens, 0, 4, table_a), make_seq(tokens, 0, 4, table_b),
                              make_seq(tokens, 0, 4, table_b), make_seq(tokens, 0, 4, table_b) };
    uint32_t choices[2];
    before[1].sample = false;
    for (uint32_t i = 2; i < 4; i++) {
        before[i].sample_rows = i - 1;
        before[i].tokens_out = choices;
    }
    fg_step_seq item[2] = { make_seq(tokens, 4, 1, table_a), make_seq(tokens, 4, 1, table_a) };
    const struct {
        const char *name;
        const fg_step_seq *follows;
        uint32_t token_count;
        const char *want; /* NULL: allowed */
    } cases[] = {
        { "an item of the step before", &before[0], 1, NULL },
        { "two tokens", &before[0], 2, "follows with 2 tokens" },
        { "no tokens", &before[0], 0, "no tokens" },
        { "an item that does not sample", &before[1], 1, "does not follow" },
        { "an item of one choice", &before[2], 1, NULL },
        { "an item of two choices", &before[3], 1, "does not follow" },
        { "beyond the items", before + 4, 1, "does not follow" },
        { "an item of an older step", &older, 1, "does not follow" },
        { "an item of this step", &item[0], 1, "does not follow" },
        { "inside an item", (const fg_step_seq *)(const void *)&before[0].sampling, 1,
          "does not follow" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        sim s;
        open_sim(&s, false);
        fg_step first = { .seqs = &older, .seq_count = 1 };
        cr_assert_eq(fg_engine_begin(s.engine, &first, NULL), FG_OK);
        cr_assert(fg_engine_poll(s.engine) == &first);
        fg_step second = { .seqs = before, .seq_count = 4 };
        cr_assert_eq(fg_engine_begin(s.engine, &second, NULL), FG_OK);
        item[1].follows = cases[i].follows;
        item[1].token_count = cases[i].token_count;
        fg_step third = { .seqs = item, .seq_count = 2 };
        fg_error err = { 0 };
        fg_status want = cases[i].want == NULL ? FG_OK : FG_BAD_INPUT;
        cr_assert_eq(fg_engine_begin(s.engine, &third, &err), want, "%s: %s", cases[i].name,
                     err.text);
        if (cases[i].want != NULL) {
            cr_assert_not_null(strstr(err.text, cases[i].want), "%s: %s", cases[i].name, err.text);
        }
        cr_assert(fg_engine_poll(s.engine) == &second);
        cr_assert_eq(fg_engine_poll(s.engine) == NULL, cases[i].want != NULL, "%s", cases[i].name);
        fg_engine_close(s.engine);
    }
}

Test(engine, follows_nothing_in_its_first_step_nor_in_an_array_used_again)
{
    uint32_t tokens[TOKENS];
    fill_tokens(tokens, 12);
    sim s;
    open_sim(&s, false);
    fg_step_seq seqs[2] = { make_seq(tokens, 0, 1, table_a), make_seq(tokens, 1, 1, table_a) };
    fg_step step = { .seqs = seqs, .seq_count = 2 };
    seqs[1].follows = &seqs[0];
    cr_assert_eq(fg_engine_begin(s.engine, &step, NULL), FG_BAD_INPUT, "the first step");
    seqs[1].follows = NULL;
    cr_assert_eq(fg_engine_begin(s.engine, &step, NULL), FG_OK);
    cr_assert(fg_engine_poll(s.engine) == &step);
    seqs[1].follows = &seqs[0];
    cr_assert_eq(fg_engine_begin(s.engine, &step, NULL), FG_BAD_INPUT, "the same array");
    fg_engine_close(s.engine);
}

static bool open_and_close(void *ctx)
{
    fg_engine *engine;
    if (fg_engine_open_sim(ctx, &engine, NULL) != FG_OK) {
        return false;
    }
    fg_engine_close(engine);
    return true;
}

Test(engine_sim, refuses_heads_too_small_and_survives_failed_allocation)
{
    sim s;
    open_sim(&s, false);
    cr_assert_eq(fg_fault_each(open_and_close, &s.options), 1);
    fg_engine *engine;
    fg_engine_sim_options options = s.options;
    options.layout.head_dim = 2;
    cr_assert_eq(fg_engine_open_sim(&options, &engine, NULL), FG_BAD_INPUT);
    options = s.options;
    options.vocab_size = 0;
    cr_assert_eq(fg_engine_open_sim(&options, &engine, NULL), FG_BAD_INPUT);
    fg_engine_close(s.engine);
}
