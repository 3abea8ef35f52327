/* The copies of a step, on the model and on its stand-in in both modes. */
#include <stdlib.h>

#include "common/base/hash.h"
#include "tests/support/gguf_builder.h"
#include "tests/unit/common/engine/rig.h"

enum { CONTEXT = 64, BLOCK_SIZE = 16, TABLE = CONTEXT / BLOCK_SIZE };

/* An engine and its memory, whichever it is. */
typedef struct world {
    const char *name;
    driver *driver;
    size_t block_bytes;
    uint8_t *arena;
    uint8_t *tier;
    uint32_t vocab_size;
} world;

typedef void (*world_fn)(const world *w);

static void on_sim(const char *name, bool quick, world_fn fn)
{
    static sim_rig rig;
    sim_rig_open(&rig, quick);
    world w = { .name = name,
                .driver = &rig.driver,
                .block_bytes = rig.layout.block_bytes,
                .arena = rig.arena,
                .tier = rig.tier,
                .vocab_size = SIM_VOCAB };
    fn(&w);
    cr_assert_eq(fg_engine_sim_bad_slots(rig.driver.engine), 0, "%s", name);
    fg_engine_close(rig.driver.engine);
}

static void on_model(world_fn fn)
{
    static const fg_tiny_llama model = { .seed = 8, .weight_type = FG_F32 };
    size_t size_bytes;
    void *bytes = fg_gguf_build_tiny_llama(&model, &size_bytes);
    fg_runner_options options = { .bytes = bytes,
                                  .size_bytes = size_bytes,
                                  .context_max = CONTEXT,
                                  .seqs_max = RIG_SEQS,
                                  .kv_dtype = FG_F16 };
    model_rig rig;
    model_rig_open(&rig, &options);
    world w = { .name = "model",
                .driver = &rig.driver,
                .block_bytes = rig.runner.layout.block_bytes,
                .arena = rig.runner.arena,
                .tier = rig.tier,
                .vocab_size = rig.runner.hparams.vocab_size };
    fn(&w);
    model_rig_close(&rig);
    free(bytes);
}

static void on_each(world_fn fn)
{
    on_sim("sim", false, fn);
    on_sim("quick sim", true, fn);
    on_model(fn);
}

static void make_tokens(const world *w, uint64_t seed, uint32_t *tokens)
{
    for (uint32_t i = 0; i < CONTEXT; i++) {
        tokens[i] = (uint32_t)(fg_hash_mix(seed * 1000 + i) % w->vocab_size);
    }
}

static fg_step_seq part(const uint32_t *tokens, uint32_t first, uint32_t count,
                        const uint32_t *table)
{
    return (fg_step_seq){ .tokens = tokens + first,
                          .token_count = count,
                          .first_position = first,
                          .block_ids = table,
                          .block_count = TABLE,
                          .sample = true,
                          .want_digest = true };
}

static uint64_t digest_of(const world *w, const uint8_t *arena, uint32_t index)
{
    return fg_hash64(arena + index * w->block_bytes, w->block_bytes, 0);
}

/* What `count` tokens must give, run at once in blocks that nobody else uses. */
static uint64_t answer(const world *w, const uint32_t *tokens, uint32_t count)
{
    static const uint32_t table[TABLE] = { 12, 13, 14, 15 };
    fg_step_seq seq = part(tokens, 0, count, table);
    fg_step step = { .seqs = &seq, .seq_count = 1 };
    rig_step(w->driver, &step);
    return seq.digest_out;
}

static void copy_on_write(const world *w)
{
    static const uint32_t table[TABLE] = { 3, 1, 0, 2 };
    static const uint32_t forked[TABLE] = { 3, 5, 6, 7 };
    uint32_t tokens[CONTEXT];
    uint32_t others[CONTEXT];
    make_tokens(w, 1, tokens);
    make_tokens(w, 2, others);
    memcpy(others, tokens, 20 * sizeof tokens[0]);
    uint64_t want = answer(w, tokens, 24);
    uint64_t want_other = answer(w, others, 24);
    fg_step_seq first = part(tokens, 0, 20, table);
    fg_step_digest before = { .block_id = 1 };
    fg_step one = { .seqs = &first, .seq_count = 1, .digests = &before, .digest_count = 1 };
    /* Begun while the first step may still write the block that is copied. */
    fg_step_copy copy = { .kind = FG_COPY_BLOCK, .from = 1, .to = 5 };
    fg_step_seq second = part(others, 20, 4, forked);
    fg_step_digest after[2] = { { .block_id = 1 }, { .block_id = 5 } };
    fg_step two = { .copies = &copy,
                    .copy_count = 1,
                    .seqs = &second,
                    .seq_count = 1,
                    .digests = after,
                    .digest_count = 2 };
    cr_assert_eq(fg_engine_begin(w->driver->engine, &one, NULL), FG_OK);
    cr_assert_eq(fg_engine_begin(w->driver->engine, &two, NULL), FG_OK);
    cr_assert(rig_poll(w->driver) == &one);
    cr_assert(rig_poll(w->driver) == &two);
    cr_assert_eq(after[0].digest_out, before.digest_out, "%s: the source is as it was", w->name);
    cr_assert_neq(after[1].digest_out, before.digest_out, "%s: the copy was written", w->name);
    cr_assert_eq(second.digest_out, want_other, "%s: the fork", w->name);
    fg_step_seq rest = part(tokens, 20, 4, table);
    fg_step three = { .seqs = &rest, .seq_count = 1 };
    rig_step(w->driver, &three);
    cr_assert_eq(rest.digest_out, want, "%s: the source goes on", w->name);
}

Test(engine_copy, a_write_into_a_copied_block_leaves_its_source_alone)
{
    on_each(copy_on_write);
}

/* Twenty tokens out to slots 2 and 0; their blocks become somebody else's. */
static void swap_out(const world *w, const uint32_t *tokens, fg_step_copy out[2])
{
    static const uint32_t table[TABLE] = { 3, 1, 0, 2 };
    fg_step_seq seq = part(tokens, 0, 20, table);
    fg_step run = { .seqs = &seq, .seq_count = 1 };
    out[0] = (fg_step_copy){ .kind = FG_COPY_OUT, .from = 3, .to = 2 };
    out[1] = (fg_step_copy){ .kind = FG_COPY_OUT, .from = 1, .to = 0 };
    fg_step move = { .copies = out, .copy_count = 2 };
    cr_assert_eq(fg_engine_begin(w->driver->engine, &run, NULL), FG_OK);
    cr_assert_eq(fg_engine_begin(w->driver->engine, &move, NULL), FG_OK);
    cr_assert(rig_poll(w->driver) == &run);
    cr_assert(rig_poll(w->driver) == &move);
    cr_assert(move.copy_ns_out <= move.compute_ns_out);
    cr_assert_eq(out[0].digest_out, digest_of(w, w->arena, 3), "%s", w->name);
    cr_assert_eq(out[1].digest_out, digest_of(w, w->arena, 1), "%s", w->name);
    cr_assert(memcmp(w->tier + 2 * w->block_bytes, w->arena + 3 * w->block_bytes, w->block_bytes) ==
              0);
    memset(w->arena + 3 * w->block_bytes, 0xEE, w->block_bytes);
    memset(w->arena + w->block_bytes, 0xEE, w->block_bytes);
}

static void swap_round_trip(const world *w)
{
    static const uint32_t table[TABLE] = { 7, 6, 5, 4 };
    uint32_t tokens[CONTEXT];
    make_tokens(w, 3, tokens);
    uint64_t want = answer(w, tokens, 24);
    fg_step_copy out[2];
    swap_out(w, tokens, out);
    fg_step_copy in[2] = { { .kind = FG_COPY_IN, .from = 2, .to = 7 },
                           { .kind = FG_COPY_IN, .from = 0, .to = 6 } };
    fg_step_seq seq = part(tokens, 20, 4, table);
    fg_step step = { .copies = in, .copy_count = 2, .seqs = &seq, .seq_count = 1 };
    rig_step(w->driver, &step);
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(in[i].digest_out, out[i].digest_out, "%s: what went in comes out", w->name);
    }
    cr_assert_eq(digest_of(w, w->arena, 7), out[0].digest_out, "%s: bit-exact", w->name);
    cr_assert_eq(seq.digest_out, want, "%s: copies come before sequences", w->name);
}

Test(engine_copy, a_swap_round_trip_is_bit_exact)
{
    on_each(swap_round_trip);
}

static void damaged_slot(const world *w)
{
    uint32_t tokens[CONTEXT];
    make_tokens(w, 4, tokens);
    fg_step_copy out[2];
    swap_out(w, tokens, out);
    for (size_t at = 0; at < w->block_bytes; at += 1 + w->block_bytes / 16) {
        w->tier[at] ^= 0x40; /* slot 0 */
        fg_step_copy in[2] = { { .kind = FG_COPY_IN, .from = 2, .to = 7 },
                               { .kind = FG_COPY_IN, .from = 0, .to = 6 } };
        fg_step step = { .copies = in, .copy_count = 2 };
        rig_step(w->driver, &step);
        cr_assert_eq(in[0].digest_out, out[0].digest_out, "%s: untouched", w->name);
        cr_assert_neq(in[1].digest_out, out[1].digest_out, "%s: byte %zu", w->name, at);
        w->tier[at] ^= 0x40;
    }
}

Test(engine_copy, a_damaged_slot_shows_in_the_digest)
{
    on_each(damaged_slot);
}

static void in_order(const world *w)
{
    for (uint32_t i = 0; i < 4; i++) {
        memset(w->arena + i * w->block_bytes, (int)i + 1, w->block_bytes);
    }
    /* Block 0 makes a round through the tier and back over itself: each copy reads the one before. */
    fg_step_copy copies[] = { { .kind = FG_COPY_OUT, .from = 0, .to = 1 },
                              { .kind = FG_COPY_BLOCK, .from = 3, .to = 0 },
                              { .kind = FG_COPY_IN, .from = 1, .to = 2 },
                              { .kind = FG_COPY_OUT, .from = 0, .to = 1 },
                              { .kind = FG_COPY_BLOCK, .from = 2, .to = 3 } };
    fg_step step = { .copies = copies, .copy_count = 5 };
    rig_step(w->driver, &step);
    static const uint8_t want[4] = { 4, 2, 1, 1 };
    for (uint32_t i = 0; i < 4; i++) {
        cr_assert_eq(w->arena[i * w->block_bytes], want[i], "%s: block %u", w->name, i);
        cr_assert_eq(w->arena[(i + 1) * w->block_bytes - 1], want[i], "%s: block %u", w->name, i);
    }
    cr_assert_eq(w->tier[w->block_bytes], 4, "%s", w->name);
}

Test(engine_copy, copies_run_in_the_order_of_the_list)
{
    on_each(in_order);
}
