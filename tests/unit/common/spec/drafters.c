#include "common/base/rng.h"
#include "common/spec/ngram.h"
#include "tests/unit/common/spec/decoder.h"

static uint32_t ngram(void *ctx, const decoder_seq *seq, uint32_t max, uint32_t *draft_out)
{
    return fg_ngram_draft(seq->tokens, seq->count, (fg_ngram_runs){ 1, 3 }, max, draft_out, NULL);
}

static uint32_t nothing(void *ctx, const decoder_seq *seq, uint32_t max, uint32_t *draft_out)
{
    return 0;
}

static uint32_t oracle(void *ctx, const decoder_seq *seq, uint32_t max, uint32_t *draft_out)
{
    for (uint32_t i = 0; i < max; i++) {
        draft_out[i] = seq->plain->tokens[seq->count + i];
    }
    return max;
}

/* Which world's vocabulary: any token but the right one, small enough for all of them. */
static uint32_t wrong(uint32_t token)
{
    return token == 5 ? 6 : 5;
}

static uint32_t adversary(void *ctx, const decoder_seq *seq, uint32_t max, uint32_t *draft_out)
{
    for (uint32_t i = 0; i < max; i++) {
        draft_out[i] = wrong(seq->plain->tokens[seq->count + i]);
    }
    return max;
}

static uint32_t mixed(void *ctx, const decoder_seq *seq, uint32_t max, uint32_t *draft_out)
{
    mixture *m = ctx;
    fg_rng rng = { .state = m->state };
    for (uint32_t i = 0; i < max; i++) {
        uint32_t right = seq->plain->tokens[seq->count + i];
        draft_out[i] = fg_rng_below(&rng, 100) < m->right_of_100 ? right : wrong(right);
    }
    m->state = rng.state;
    return max;
}

drafter draft_ngram(void)
{
    return (drafter){ .draft = ngram };
}

drafter draft_nothing(void)
{
    return (drafter){ .draft = nothing };
}

drafter draft_oracle(void)
{
    return (drafter){ .draft = oracle };
}

drafter draft_adversary(void)
{
    return (drafter){ .draft = adversary };
}

drafter draft_mixture(mixture *m)
{
    return (drafter){ .draft = mixed, .ctx = m };
}

void model_draft_open(model_draft *m, world *w)
{
    *m = (model_draft){ .world = w };
    fg_table_init(&m->table, m->blocks, WORLD_SEQ_BLOCKS, WORLD_BLOCK_SIZE);
}

void model_draft_close(model_draft *m)
{
    fg_table_clear(&m->table, m->world->pool, NULL);
}

/* What its KV lacks of the sequence in the first step, one drafted token in each one after it. */
static uint32_t by_model(void *ctx, const decoder_seq *seq, uint32_t max, uint32_t *draft_out)
{
    model_draft *m = ctx;
    for (uint32_t i = 0; i < max; i++) {
        uint32_t end = seq->count + i;
        cr_assert_eq(fg_table_grow(&m->table, m->world->pool, end, NULL), FG_OK);
        fg_step_seq item = { .tokens = i == 0 ? seq->tokens + m->kv_count : &draft_out[i - 1],
                             .first_position = m->kv_count,
                             .token_count = end - m->kv_count,
                             .block_ids = m->table.blocks,
                             .block_count = m->table.count,
                             .sample = true };
        fg_step step = { .seqs = &item, .seq_count = 1 };
        world_step(m->world, &step);
        draft_out[i] = item.token_out;
        m->kv_count = end;
    }
    return max;
}

/* The draft's own cache forgets what the target did not accept. */
static void roll_back(void *ctx, const decoder_seq *seq)
{
    model_draft *m = ctx;
    m->kv_count = m->kv_count < seq->count - 1 ? m->kv_count : seq->count - 1;
    fg_table_truncate(&m->table, m->world->pool, m->kv_count, NULL);
    cr_assert(m->table.count <= seq->plain->blocks[seq->count], "the draft holds no more blocks");
}

drafter draft_model(model_draft *m)
{
    return (drafter){ .draft = by_model, .after = roll_back, .ctx = m };
}
