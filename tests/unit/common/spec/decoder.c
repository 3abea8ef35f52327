#include "tests/unit/common/spec/decoder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/dtype.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/model/tokenizer.h"
#include "tests/support/gguf_builder.h"

enum { SIM_VOCAB = 300, SIM_EOS = 7, STEP_TOKENS = 512 };

static void open_sim(world *w)
{
    fg_engine_sim_options options = { .block_count = WORLD_BLOCKS,
                                      .limits = { .step_tokens_max = STEP_TOKENS,
                                                  .step_seqs_max = WORLD_SEQS,
                                                  .context_max = WORLD_TOKENS },
                                      .vocab_size = SIM_VOCAB,
                                      .eos_token = SIM_EOS };
    fg_error err = { 0 };
    cr_assert_eq(fg_kv_layout_init(&options.layout, 1, 1, 4, WORLD_BLOCK_SIZE, FG_F16, &err),
                 FG_OK);
    w->sim_arena = fg_mem_array(WORLD_BLOCKS, options.layout.block_bytes);
    cr_assert_not_null(w->sim_arena);
    options.arena = w->sim_arena;
    cr_assert_eq(fg_engine_open_sim(&options, &w->engine, &err), FG_OK, "%s", err.text);
    w->vocab_size = SIM_VOCAB;
}

static void open_runner(world *w, fg_runner_options options)
{
    options.context_max = WORLD_TOKENS;
    options.seqs_max = WORLD_SEQS;
    options.step_tokens_max = STEP_TOKENS;
    options.block_size = WORLD_BLOCK_SIZE;
    options.kv_dtype = FG_F16;
    fg_error err = { 0 };
    cr_assert_eq(fg_runner_open(&options, &w->runner, &err), FG_OK, "%s", err.text);
    cr_assert_eq(w->runner.block_count, WORLD_BLOCKS);
    w->engine = w->runner.engine;
    w->vocab_size = w->runner.hparams.vocab_size;
}

static void open_tiny(world *w, const fg_tiny_llama *model)
{
    size_t size_bytes;
    w->bytes = fg_gguf_build_tiny_llama(model, &size_bytes);
    open_runner(w, (fg_runner_options){ .bytes = w->bytes, .size_bytes = size_bytes });
}

bool world_open(world *w, int kind)
{
    static const char *const names[WORLD_KINDS] = { "sim", "f32", "q8_0", "stories260K" };
    *w = (world){ .name = names[kind] };
    const char *corpus = getenv("FORGE_CORPUS");
    char path[4096];
    switch (kind) {
    case WORLD_SIM:
        open_sim(w);
        break;
    case WORLD_F32:
        open_tiny(w, &(fg_tiny_llama){ .seed = 31, .weight_type = FG_F32 });
        break;
    case WORLD_Q8:
        open_tiny(w,
                  &(fg_tiny_llama){ .seed = 32, .weight_type = FG_Q8_0, .separate_output = true });
        break;
    default:
        if (corpus == NULL) {
            return false;
        }
        snprintf(path, sizeof path, "%s/models/stories260K-f32.gguf", corpus);
        open_runner(w, (fg_runner_options){ .path = path });
    }
    fg_error err = { 0 };
    cr_assert_eq(fg_pool_create(WORLD_BLOCKS, &w->pool, &err), FG_OK, "%s", err.text);
    return true;
}

void world_close(world *w)
{
    fg_pool_check(w->pool);
    fg_pool_destroy(w->pool, false);
    if (w->sim_arena != NULL) {
        cr_assert_eq(fg_engine_sim_bad_slots(w->engine), 0, "torn slots were read");
        fg_engine_close(w->engine);
        fg_mem_free(w->sim_arena);
    } else {
        fg_runner_close(&w->runner);
    }
    free(w->bytes);
}

void world_step(world *w, fg_step *step)
{
    fg_error err = { 0 };
    if (w->sim_arena == NULL) {
        cr_assert_eq(fg_runner_step(&w->runner, step, &err), FG_OK, "%s", err.text);
    } else {
        cr_assert_eq(fg_engine_begin(w->engine, step, &err), FG_OK, "%s", err.text);
        cr_assert(fg_engine_poll(w->engine) == step);
    }
    w->forwards++;
}

static const char *const texts[] = {
    "Once upon a time, there was a little girl named Lily. She",
    "Tom had a big red ball. He",
    "One day, a cat saw a bird in the tree. The cat wanted",
    "Lily and Tom went to the",
};

uint32_t world_prompt(const world *w, uint32_t index, uint32_t *tokens_out)
{
    enum { COUNT_MAX = 20, TEXTS = sizeof texts / sizeof texts[0] };
    if (strcmp(w->name, "stories260K") == 0) {
        fg_error err = { 0 };
        fg_tokenizer *tokenizer;
        cr_assert_eq(fg_tokenizer_open(w->runner.weights, &tokenizer, &err), FG_OK, "%s", err.text);
        size_t count;
        uint32_t tokens[WORLD_TOKENS];
        const char *text = texts[index % TEXTS];
        cr_assert_eq(fg_tokenizer_encode(tokenizer, text, strlen(text),
                                         (fg_encode_options){ .add_bos = true }, tokens,
                                         WORLD_TOKENS, &count, &err),
                     FG_OK, "%s", err.text);
        fg_tokenizer_close(tokenizer);
        count = count < COUNT_MAX ? count : COUNT_MAX;
        memcpy(tokens_out, tokens, count * sizeof *tokens);
        return (uint32_t)count;
    }
    fg_rng rng = { .state = index };
    uint32_t count = 10 + (uint32_t)fg_rng_below(&rng, COUNT_MAX - 9);
    for (uint32_t i = 0; i < count; i++) {
        tokens_out[i] = (uint32_t)fg_rng_below(&rng, w->vocab_size);
    }
    return count;
}

void decoder_init(const world *w, decoder_seq *seq, uint32_t prompt, uint32_t total)
{
    *seq = (decoder_seq){ .total = total, .sampling = { .top_p = 1.0f } };
    cr_assert(total <= WORLD_TOKENS);
    seq->prompt_count = world_prompt(w, prompt, seq->tokens);
    seq->count = seq->prompt_count;
    fg_table_init(&seq->table, seq->blocks, WORLD_SEQ_BLOCKS, WORLD_BLOCK_SIZE);
}

/* The item that runs tokens first .. end and chooses what comes after the last. */
static fg_step_seq make_item(const decoder_seq *seq, fg_table *table, uint32_t first, uint32_t end,
                             fg_pool *pool)
{
    cr_assert_eq(fg_table_grow(table, pool, end, NULL), FG_OK);
    return (fg_step_seq){ .tokens = seq->tokens + first,
                          .first_position = first,
                          .token_count = end - first,
                          .block_ids = table->blocks,
                          .block_count = table->count,
                          .sample = true,
                          .want_digest = true,
                          .choice = seq->choice,
                          .sampling = seq->sampling };
}

void decoder_plain(world *w, const decoder_seq *seq, plain *plain_out)
{
    decoder_seq own = *seq;
    fg_table_init(&own.table, own.blocks, WORLD_SEQ_BLOCKS, WORLD_BLOCK_SIZE);
    memset(plain_out, 0, sizeof *plain_out);
    for (uint32_t first = 0; own.count < own.total; first = own.count - 1) {
        fg_step_seq item = make_item(&own, &own.table, first, own.count, w->pool);
        fg_step step = { .seqs = &item, .seq_count = 1 };
        world_step(w, &step);
        plain_out->digests[own.count] = item.digest_out;
        own.tokens[own.count++] = item.token_out;
        plain_out->blocks[own.count] = own.table.count;
    }
    memcpy(plain_out->tokens, own.tokens, sizeof own.tokens);
    fg_table_clear(&own.table, w->pool, NULL);
}

/* Compares everything with plain decoding. */
static void check(const world *w, const decoder_seq *seq)
{
    const plain *want = seq->plain;
    for (uint32_t i = seq->prompt_count; i < seq->count; i++) {
        cr_assert_eq(seq->tokens[i], want->tokens[i], "%s: token %u is %u, plain %u", w->name, i,
                     seq->tokens[i], want->tokens[i]);
        cr_assert_eq(seq->digests[i], want->digests[i], "%s: the row of token %u", w->name, i);
    }
    cr_assert_eq(seq->table.count, want->blocks[seq->count],
                 "%s: %u blocks for %u tokens, plain %u", w->name, seq->table.count, seq->count,
                 want->blocks[seq->count]);
}

static bool is_live(const decoder_seq *seq)
{
    return !seq->ended && seq->count < seq->total;
}

static void take_first(world *w, decoder_seq *seq, const fg_step_seq *item)
{
    seq->digests[seq->count] = item->digest_out;
    seq->tokens[seq->count++] = item->token_out;
    seq->ended = fg_ends_has(&seq->ends, item->token_out);
    check(w, seq);
}

/* Drafts; the drafted tokens lie right behind the sequence's own. */
static fg_step_seq begin_round(world *w, decoder_seq *seq)
{
    uint32_t most = fg_lookahead_next(&seq->lookahead, seq->total - seq->count);
    seq->draft_count = seq->drafter.draft(seq->drafter.ctx, seq, most, seq->tokens + seq->count);
    cr_assert(seq->draft_count <= most);
    uint32_t first = seq->count - 1;
    fg_step_seq item = make_item(seq, &seq->table, first, seq->count + seq->draft_count, w->pool);
    item.sample_rows = item.token_count;
    item.tokens_out = seq->choices;
    item.digests_out = seq->row_digests;
    return item;
}

static void count_round(decoder_seq *seq, const fg_verdict *verdict)
{
    seq->rounds++;
    seq->drafted += seq->draft_count;
    seq->accepted += verdict->accepted;
    seq->rejections += verdict->rejected;
    seq->full_rounds += seq->draft_count > 0 && verdict->emitted == seq->draft_count + 1 &&
                        verdict->accepted == seq->draft_count;
    seq->cut_rounds += verdict->ended && verdict->accepted == verdict->emitted &&
                       verdict->accepted < seq->draft_count;
    seq->drafts_max = seq->draft_count > seq->drafts_max ? seq->draft_count : seq->drafts_max;
}

static void end_round(world *w, decoder_seq *seq, const fg_step_seq *item)
{
    uint32_t *behind = seq->tokens + seq->count;
    fg_verdict verdict = fg_verdict_exact(behind, seq->draft_count, seq->choices, &seq->ends);
    cr_assert(verdict.emitted >= 1, "a round emits at least one token");
    cr_assert_eq(item->token_out, seq->choices[seq->draft_count], "the last choice");
    cr_assert_eq(item->digest_out, seq->row_digests[seq->draft_count], "the last row");
    memcpy(behind, seq->choices, verdict.emitted * sizeof *behind);
    memcpy(seq->digests + seq->count, seq->row_digests, verdict.emitted * sizeof *seq->digests);
    seq->count += verdict.emitted;
    seq->ended = verdict.ended;
    uint32_t before = seq->table.count;
    fg_table_truncate(&seq->table, w->pool, seq->count - 1, NULL);
    seq->blocks_returned += before - seq->table.count;
    fg_lookahead_note(&seq->lookahead, &verdict);
    count_round(seq, &verdict);
    if (seq->drafter.after != NULL) {
        seq->drafter.after(seq->drafter.ctx, seq);
    }
    check(w, seq);
}

static void run_prompts(world *w, decoder_seq *seqs, uint32_t count)
{
    fg_step_seq items[WORLD_SEQS];
    fg_step step = { .seqs = items, .seq_count = count };
    for (uint32_t i = 0; i < count; i++) {
        items[i] = make_item(&seqs[i], &seqs[i].table, 0, seqs[i].count, w->pool);
    }
    world_step(w, &step);
    for (uint32_t i = 0; i < count; i++) {
        take_first(w, &seqs[i], &items[i]);
    }
}

uint32_t decoder_run(world *w, decoder_seq *seqs, uint32_t count)
{
    run_prompts(w, seqs, count);
    uint64_t memory = fg_mem_count();
    for (uint32_t steps = 0;; steps++) {
        fg_step_seq items[WORLD_SEQS];
        decoder_seq *owners[WORLD_SEQS];
        fg_step step = { .seqs = items };
        uint32_t held = 0;
        for (uint32_t i = 0; i < count; i++) {
            if (is_live(&seqs[i])) {
                owners[step.seq_count] = &seqs[i];
                items[step.seq_count++] = begin_round(w, &seqs[i]);
            }
        }
        if (step.seq_count == 0) {
            cr_assert_eq(fg_mem_count(), memory, "%s: rounds took memory", w->name);
            for (uint32_t i = 0; i < count; i++) {
                fg_table_clear(&seqs[i].table, w->pool, NULL);
            }
            return steps;
        }
        world_step(w, &step);
        for (uint32_t i = 0; i < step.seq_count; i++) {
            end_round(w, owners[i], &items[i]);
        }
        for (uint32_t i = 0; i < count; i++) {
            held += seqs[i].table.count;
        }
        fg_pool_stats stats;
        fg_pool_stats_get(w->pool, &stats);
        cr_assert_eq(stats.held, held, "%s: %u blocks held, %u in tables", w->name, stats.held,
                     held);
    }
}
