#include "common/engine/engine.h"

#include "common/base/dtype.h"
#include "common/engine/engine_internal.h"
#include "common/spec/lookahead.h"
#include "kernels/device.h"
#include "kernels/ops.h"

/* Where an item's tokens come from. */
static fg_status check_tokens(const fg_engine_bounds *bounds, const fg_engine_items *before,
                              const fg_step_seq *seq, uint32_t index, fg_error *err)
{
    if (seq->follows != NULL) {
        if (seq->token_count != 1) {
            return fg_fail(err, FG_BAD_INPUT, "step sequence %u follows with %u tokens, not one",
                           index, seq->token_count);
        }
        /* As numbers: an item that is gone may be anywhere. */
        uintptr_t at = (uintptr_t)seq->follows - (uintptr_t)before->seqs;
        if (before->seqs == NULL || at % sizeof *seq != 0 || at / sizeof *seq >= before->count ||
            !seq->follows->sample || seq->follows->sample_rows > 1) {
            return fg_fail(err, FG_BAD_INPUT,
                           "step sequence %u does not follow an item of the step before that has "
                           "one choice",
                           index);
        }
        return FG_OK;
    }
    for (uint32_t i = 0; i < seq->token_count; i++) {
        if (seq->tokens[i] >= bounds->vocab_size) {
            return fg_fail(err, FG_BAD_INPUT, "step sequence %u has token %u of a vocabulary of %u",
                           index, seq->tokens[i], bounds->vocab_size);
        }
    }
    return FG_OK;
}

/* Where its choices go. */
static fg_status check_choices(const fg_step_seq *seq, uint32_t index, fg_error *err)
{
    if (seq->embedding_out != NULL && (!seq->sample || seq->sample_rows > 1)) {
        return fg_fail(err, FG_BAD_INPUT,
                       "step sequence %u wants an embedding and has not one choice", index);
    }
    if (seq->sample_rows == 0) {
        return FG_OK;
    }
    if (!seq->sample) {
        return fg_fail(err, FG_BAD_INPUT, "step sequence %u wants %u choices and does not sample",
                       index, seq->sample_rows);
    }
    if (seq->sample_rows > seq->token_count) {
        return fg_fail(err, FG_BAD_INPUT, "step sequence %u wants %u choices after %u tokens",
                       index, seq->sample_rows, seq->token_count);
    }
    if (seq->tokens_out == NULL) {
        return fg_fail(err, FG_BAD_INPUT, "step sequence %u has no array for its %u choices", index,
                       seq->sample_rows);
    }
    return FG_OK;
}

/* Which of its rows speak of tokens that it was given. */
static fg_status check_scores(const fg_engine_bounds *bounds, const fg_step_seq *seq,
                              uint32_t index, fg_error *err)
{
    const fg_scores *scores = &seq->scores_out;
    uint64_t end = (uint64_t)seq->scores_first + scores->count;
    if (scores->count == 0) {
        return FG_OK;
    }
    if (end + fg_step_seq_head_rows(seq) > seq->token_count) {
        return fg_fail(err, FG_BAD_INPUT, "step sequence %u wants scores of %u rows from %u of %u",
                       index, scores->count, seq->scores_first, seq->token_count);
    }
    if (seq->history == NULL || scores->chosen == NULL || scores->ranks == NULL ||
        (scores->likely_count > 0 && scores->likely == NULL) ||
        scores->likely_count > FG_LOGPROBS_MAX) {
        return fg_fail(err, FG_BAD_INPUT, "step sequence %u has no room for its scores", index);
    }
    for (uint32_t i = 0; i < scores->count; i++) {
        if (seq->history[seq->first_position + seq->scores_first + i + 1] >= bounds->vocab_size) {
            return fg_fail(err, FG_BAD_INPUT, "step sequence %u wants the score of no token",
                           index);
        }
    }
    return FG_OK;
}

static uint32_t larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

/* A long context has hundreds of blocks, in every step: four chains of comparisons, none waiting for
 * another, take a third of the time of one. */
static uint32_t highest_of(const uint32_t *ids, uint32_t count)
{
    uint32_t a = 0, b = 0, c = 0, d = 0, i = 0;
    for (; count - i >= 4; i += 4) {
        a = larger(a, ids[i]);
        b = larger(b, ids[i + 1]);
        c = larger(c, ids[i + 2]);
        d = larger(d, ids[i + 3]);
    }
    for (; i < count; i++) {
        a = larger(a, ids[i]);
    }
    return larger(larger(a, b), larger(c, d));
}

static fg_status check_seq(const fg_engine_bounds *bounds, const fg_engine_items *before,
                           const fg_step_seq *seq, uint32_t index, fg_error *err)
{
    uint64_t end = (uint64_t)seq->first_position + seq->token_count;
    if (seq->token_count == 0) {
        return fg_fail(err, FG_BAD_INPUT, "step sequence %u has no tokens", index);
    }
    if (end > bounds->limits.context_max) {
        return fg_fail(err, FG_BAD_INPUT, "step sequence %u ends at position %llu, beyond %u",
                       index, (unsigned long long)end, bounds->limits.context_max);
    }
    if (seq->twin_arena != NULL && bounds->no_twins) {
        return fg_fail(err, FG_BAD_INPUT,
                       "step sequence %u writes to another worker's memory, which this device does "
                       "not reach",
                       index);
    }
    uint64_t needed = (end + bounds->block_size - 1) / bounds->block_size;
    if (seq->block_count < needed) {
        return fg_fail(err, FG_BAD_INPUT, "step sequence %u has %u blocks and needs %llu", index,
                       seq->block_count, (unsigned long long)needed);
    }
    uint32_t highest = highest_of(seq->block_ids, (uint32_t)needed);
    if (highest >= bounds->block_count) {
        return fg_fail(err, FG_BAD_INPUT, "step sequence %u names block %u of %u", index, highest,
                       bounds->block_count);
    }
    fg_status status = check_choices(seq, index, err);
    if (status == FG_OK) {
        status = check_scores(bounds, seq, index, err);
    }
    return status == FG_OK ? check_tokens(bounds, before, seq, index, err) : status;
}

static fg_status check_copy(const fg_engine_bounds *bounds, const fg_step_copy *copy,
                            uint32_t index, fg_error *err)
{
    bool from_tier = copy->kind == FG_COPY_IN;
    bool to_tier = copy->kind == FG_COPY_OUT;
    if (copy->kind != FG_COPY_BLOCK && !from_tier && !to_tier) {
        return fg_fail(err, FG_BAD_INPUT, "copy %u is of no known kind (%d)", index,
                       (int)copy->kind);
    }
    if ((from_tier || to_tier) && bounds->tier_block_count == 0) {
        return fg_fail(err, FG_BAD_INPUT, "copy %u wants the tier, and there is none", index);
    }
    uint32_t from_count = from_tier ? bounds->tier_block_count : bounds->block_count;
    uint32_t to_count = to_tier ? bounds->tier_block_count : bounds->block_count;
    if (copy->from >= from_count) {
        return fg_fail(err, FG_BAD_INPUT, "copy %u reads %s %u of %u", index,
                       from_tier ? "slot" : "block", copy->from, from_count);
    }
    if (copy->to >= to_count) {
        return fg_fail(err, FG_BAD_INPUT, "copy %u writes %s %u of %u", index,
                       to_tier ? "slot" : "block", copy->to, to_count);
    }
    if (copy->kind == FG_COPY_BLOCK && copy->from == copy->to) {
        return fg_fail(err, FG_BAD_INPUT, "copy %u writes block %u onto itself", index, copy->to);
    }
    return FG_OK;
}

static fg_status check_ask(const fg_engine_bounds *bounds, const fg_step *step, uint32_t index,
                           fg_error *err)
{
    const fg_step_ask *ask = &step->asks[index];
    if (!bounds->can_draft) {
        return fg_fail(err, FG_BAD_INPUT, "ask %u of a draft model, and there is none", index);
    }
    if (ask->item >= step->seq_count || !step->seqs[ask->item].sample ||
        step->seqs[ask->item].history == NULL) {
        return fg_fail(err, FG_BAD_INPUT, "ask %u is about no item that samples and has a history",
                       index);
    }
    if (ask->place >= bounds->limits.step_seqs_max) {
        return fg_fail(err, FG_BAD_INPUT, "ask %u has place %u of %u", index, ask->place,
                       bounds->limits.step_seqs_max);
    }
    if (ask->wanted == 0 || ask->wanted > FG_LOOKAHEAD_MAX || ask->guesses_out == NULL) {
        return fg_fail(err, FG_BAD_INPUT, "ask %u wants %u guesses, or has no array for them",
                       index, ask->wanted);
    }
    return FG_OK;
}

fg_status fg_engine_check_step(const fg_engine_bounds *bounds, const fg_engine_items *before,
                               const fg_step *step, fg_error *err)
{
    if (step->seq_count > bounds->limits.step_seqs_max) {
        return fg_fail(err, FG_BAD_INPUT, "a step of %u sequences, the limit is %u",
                       step->seq_count, bounds->limits.step_seqs_max);
    }
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < step->seq_count; i++) {
        tokens += step->seqs[i].token_count;
    }
    if (tokens > bounds->limits.step_tokens_max) {
        return fg_fail(err, FG_BAD_INPUT, "a step of %llu tokens, the limit is %u",
                       (unsigned long long)tokens, bounds->limits.step_tokens_max);
    }
    /* An array that is used again holds this step's items now. */
    static const fg_engine_items none = { .count = 0 };
    before = before->seqs == step->seqs ? &none : before;
    for (uint32_t i = 0; i < step->seq_count; i++) {
        fg_status status = check_seq(bounds, before, &step->seqs[i], i, err);
        if (status != FG_OK) {
            return status;
        }
    }
    for (uint32_t i = 0; i < step->copy_count; i++) {
        fg_status status = check_copy(bounds, &step->copies[i], i, err);
        if (status != FG_OK) {
            return status;
        }
    }
    for (uint32_t i = 0; i < step->digest_count; i++) {
        if (step->digests[i].block_id >= bounds->block_count) {
            return fg_fail(err, FG_BAD_INPUT, "a digest of block %u of %u",
                           step->digests[i].block_id, bounds->block_count);
        }
    }
    fg_status status = FG_OK;
    for (uint32_t i = 0; i < step->ask_count && status == FG_OK; i++) {
        status = check_ask(bounds, step, i, err);
    }
    return status;
}

uint32_t fg_engine_kv_dtype(const char *device, uint32_t asked, const fg_hparams *hparams)
{
    return asked != FG_DTYPE_AUTO           ? asked
           : fg_device_kind_is_host(device) ? hparams->kv_dtype
                                            : (uint32_t)FG_BF16;
}

fg_status fg_engine_check_kv(const char *device, uint32_t kv_dtype, uint32_t block_size,
                             fg_error *err)
{
    if (fg_device_kind_is_host(device)) {
        return FG_OK;
    }
    if (kv_dtype != FG_BF16) {
        return fg_fail(err, FG_BAD_INPUT,
                       "--kv-dtype %s is not computed by --device %s: use auto or bf16",
                       fg_dtype_name(kv_dtype), device);
    }
    if (block_size < FG_KV_PIECE) {
        return fg_fail(err, FG_BAD_INPUT,
                       "--block-size %u is too small for --device %s: use %u or more", block_size,
                       device, (uint32_t)FG_KV_PIECE);
    }
    return FG_OK;
}

fg_status fg_engine_begin(fg_engine *engine, fg_step *step, fg_error *err)
{
    return engine->ops->begin(engine, step, err);
}

fg_step *fg_engine_poll(fg_engine *engine)
{
    return engine->ops->poll(engine);
}

void fg_engine_close(fg_engine *engine)
{
    if (engine != NULL) {
        engine->ops->close(engine);
    }
}

fg_engine_start fg_engine_started(const fg_engine *engine)
{
    return engine->start;
}

void fg_engine_look(fg_engine *engine)
{
    if (engine->ops->look != NULL) {
        engine->ops->look(engine);
    }
}

const char *fg_engine_numerics_class(const fg_engine *engine)
{
    return engine->numerics_class;
}
