#include "common/engine/engine.h"

#include "common/engine/engine_internal.h"

static fg_status check_seq(const fg_engine_bounds *bounds, const fg_step_seq *seq, uint32_t index,
                           fg_error *err)
{
    uint64_t end = (uint64_t)seq->first_position + seq->token_count;
    if (seq->token_count == 0) {
        return fg_fail(err, FG_BAD_INPUT, "step sequence %u has no tokens", index);
    }
    if (end > bounds->limits.context_max) {
        return fg_fail(err, FG_BAD_INPUT, "step sequence %u ends at position %llu, beyond %u",
                       index, (unsigned long long)end, bounds->limits.context_max);
    }
    uint64_t needed = (end + bounds->block_size - 1) / bounds->block_size;
    if (seq->block_count < needed) {
        return fg_fail(err, FG_BAD_INPUT, "step sequence %u has %u blocks and needs %llu", index,
                       seq->block_count, (unsigned long long)needed);
    }
    for (uint32_t i = 0; i < needed; i++) {
        if (seq->block_ids[i] >= bounds->block_count) {
            return fg_fail(err, FG_BAD_INPUT, "step sequence %u names block %u of %u", index,
                           seq->block_ids[i], bounds->block_count);
        }
    }
    for (uint32_t i = 0; i < seq->token_count; i++) {
        if (seq->tokens[i] >= bounds->vocab_size) {
            return fg_fail(err, FG_BAD_INPUT, "step sequence %u has token %u of a vocabulary of %u",
                           index, seq->tokens[i], bounds->vocab_size);
        }
    }
    return FG_OK;
}

fg_status fg_engine_check_step(const fg_engine_bounds *bounds, const fg_step *step, fg_error *err)
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
    for (uint32_t i = 0; i < step->seq_count; i++) {
        fg_status status = check_seq(bounds, &step->seqs[i], i, err);
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
    return FG_OK;
}

fg_status fg_engine_begin(fg_engine *engine, fg_step *step, fg_error *err)
{
    return engine->ops->begin(engine, step, err);
}

bool fg_engine_poll(fg_engine *engine)
{
    return engine->ops->poll(engine);
}

void fg_engine_close(fg_engine *engine)
{
    if (engine != NULL) {
        engine->ops->close(engine);
    }
}

const char *fg_engine_numerics_class(const fg_engine *engine)
{
    return engine->numerics_class;
}
