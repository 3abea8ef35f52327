#include "common/engine/engine_sim.h"

#include <stdio.h>
#include <string.h>

#include "common/base/dtype.h"
#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/engine/engine_internal.h"

/* What a sequence knows before its first token. */
#define EMPTY_CONTEXT 0x466F7267652D5349u
/* One answer in this many is the end token, so that simulated requests end by themselves too. */
enum { EOS_ODDS = 64 };

typedef struct sim_engine {
    fg_engine base;
    fg_engine_sim_options options;
    fg_engine_bounds bounds;
    fg_step *step; /* given and not yet polled */
    bool done;
    uint64_t bad_slots;
} sim_engine;

static uint64_t slot_hash(uint64_t context, uint32_t token, uint32_t position)
{
    return fg_hash_mix(fg_hash_mix(context ^ token) + position);
}

/* What is known after one more slot. */
static uint64_t extend(uint64_t context, uint64_t hash)
{
    return fg_hash_mix(context ^ hash) + hash;
}

static fg_engine_sim_answer answer_of(uint64_t context, uint32_t vocab_size, uint32_t eos_token,
                                      const fg_sampling *sampling, uint32_t choice)
{
    uint64_t seed = sampling->temperature > 0.0f ? fg_hash_mix(sampling->seed) + choice : 0;
    uint64_t drawn = fg_hash_mix(context ^ seed);
    fg_engine_sim_answer answer = { .token = (uint32_t)((drawn >> 8) % vocab_size),
                                    .digest = fg_hash_mix(context) };
    if (eos_token != UINT32_MAX && drawn % EOS_ODDS == 0) {
        answer.token = eos_token;
    }
    return answer;
}

/* Word `offset` of a part ((layer, K or V, head)) of a slot that holds `hash`; the very first is the
 * hash itself. */
static uint64_t slot_word(uint64_t hash, uint32_t part, size_t offset)
{
    return part == 0 && offset == 0 ? hash : fg_hash_mix(hash + part + ((uint64_t)offset << 32));
}

static void expand(uint64_t hash, uint32_t part, uint8_t *bytes, size_t size_bytes)
{
    for (size_t i = 0; i < size_bytes; i += sizeof(uint64_t)) {
        uint64_t word = slot_word(hash, part, i);
        size_t left = size_bytes - i;
        memcpy(bytes + i, &word, left < sizeof word ? left : sizeof word);
    }
}

static uint8_t *slot_part(const sim_engine *engine, const uint32_t *block_ids, uint32_t position,
                          uint32_t part)
{
    const fg_kv_layout *layout = &engine->options.layout;
    size_t slot_bytes = (size_t)layout->head_dim * layout->element_bytes;
    uint8_t *block = (uint8_t *)engine->options.arena +
                     block_ids[position / layout->block_size] * layout->block_bytes;
    return block + part * layout->head_bytes + position % layout->block_size * slot_bytes;
}

static uint32_t part_count(const fg_kv_layout *layout)
{
    return layout->layer_count * 2 * layout->kv_head_count;
}

static void write_slot(const sim_engine *engine, const uint32_t *block_ids, uint32_t position,
                       uint64_t hash)
{
    const fg_kv_layout *layout = &engine->options.layout;
    for (uint32_t part = 0; part < part_count(layout); part++) {
        expand(hash, part, slot_part(engine, block_ids, position, part),
               (size_t)layout->head_dim * layout->element_bytes);
    }
}

/* The hash in a slot. Damage anywhere in the slot changes what is returned. */
static uint64_t read_slot(sim_engine *engine, const uint32_t *block_ids, uint32_t position)
{
    const fg_kv_layout *layout = &engine->options.layout;
    size_t slot_bytes = (size_t)layout->head_dim * layout->element_bytes;
    uint64_t hash;
    memcpy(&hash, slot_part(engine, block_ids, position, 0), sizeof hash);
    uint64_t damage = 0;
    for (uint32_t part = 0; part < part_count(layout); part++) {
        const uint8_t *bytes = slot_part(engine, block_ids, position, part);
        for (size_t i = 0; i < slot_bytes; i += sizeof hash) {
            uint64_t want = slot_word(hash, part, i);
            size_t left = slot_bytes - i;
            if (memcmp(bytes + i, &want, left < sizeof want ? left : sizeof want) != 0) {
                damage = fg_hash_mix(damage + part + i + 1);
            }
        }
    }
    engine->bad_slots += damage != 0;
    return hash ^ damage;
}

/* Reads everything before the sequence's first token, as attention would: one wrong slot anywhere
 * changes the result. */
static uint64_t read_context(sim_engine *engine, const fg_step_seq *seq)
{
    uint64_t context = EMPTY_CONTEXT;
    for (uint32_t position = 0; position < seq->first_position; position++) {
        context = extend(context, read_slot(engine, seq->block_ids, position));
    }
    return context;
}

static void run_seq(sim_engine *engine, fg_step_seq *seq)
{
    uint64_t context = read_context(engine, seq);
    for (uint32_t i = 0; i < seq->token_count; i++) {
        uint32_t position = seq->first_position + i;
        uint64_t hash = slot_hash(context, seq->tokens[i], position);
        write_slot(engine, seq->block_ids, position, hash);
        context = extend(context, hash);
    }
    const fg_engine_sim_options *options = &engine->options;
    fg_engine_sim_answer answer =
        answer_of(context, options->vocab_size, options->eos_token, &seq->sampling, seq->choice);
    if (seq->sample) {
        seq->token_out = answer.token;
    }
    if (seq->want_digest) {
        seq->digest_out = answer.digest;
    }
}

static void run_step(sim_engine *engine)
{
    fg_step *step = engine->step;
    for (uint32_t i = 0; i < step->seq_count; i++) {
        run_seq(engine, &step->seqs[i]);
    }
    size_t block_bytes = engine->options.layout.block_bytes;
    for (uint32_t i = 0; i < step->digest_count; i++) {
        const uint8_t *arena = engine->options.arena;
        step->digests[i].digest_out =
            fg_hash64(arena + step->digests[i].block_id * block_bytes, block_bytes, 0);
    }
    step->compute_ns_out = 0;
    engine->done = true;
    if (engine->options.on_done != NULL) {
        engine->options.on_done(engine->options.ctx);
    }
}

static fg_status sim_begin(fg_engine *base, fg_step *step, fg_error *err)
{
    sim_engine *engine = (sim_engine *)base;
    if (engine->step != NULL) {
        return fg_fail(err, FG_AGAIN, "a step is in flight");
    }
    fg_status status = fg_engine_check_step(&engine->bounds, step, err);
    if (status != FG_OK) {
        return status;
    }
    for (uint32_t i = 0; i < step->seq_count; i++) {
        if (step->seqs[i].logits_out != NULL) {
            return fg_fail(err, FG_BAD_INPUT, "the simulated engine has no logits");
        }
    }
    engine->step = step;
    engine->done = false;
    if (!engine->options.manual) {
        run_step(engine);
    }
    return FG_OK;
}

static bool sim_poll(fg_engine *base)
{
    sim_engine *engine = (sim_engine *)base;
    if (engine->step == NULL || !engine->done) {
        return false;
    }
    engine->step = NULL;
    return true;
}

static void sim_close(fg_engine *base)
{
    fg_mem_free(base);
}

static const fg_engine_ops sim_ops = {
    .begin = sim_begin,
    .poll = sim_poll,
    .close = sim_close,
};

fg_status fg_engine_open_sim(const fg_engine_sim_options *options, fg_engine **engine_out,
                             fg_error *err)
{
    const fg_kv_layout *layout = &options->layout;
    if (options->vocab_size == 0 || layout->head_dim * layout->element_bytes < sizeof(uint64_t)) {
        return fg_fail(err, FG_BAD_INPUT,
                       "the simulated engine needs a vocabulary and heads of at least 8 bytes");
    }
    sim_engine *engine = fg_mem_alloc(sizeof *engine);
    if (engine == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for the engine");
    }
    engine->base.ops = &sim_ops;
    engine->options = *options;
    engine->bounds = (fg_engine_bounds){ .limits = options->limits,
                                         .vocab_size = options->vocab_size,
                                         .block_size = layout->block_size,
                                         .block_count = options->block_count };
    snprintf(engine->base.numerics_class, sizeof engine->base.numerics_class, "sim/k1/kv-%s/tp1",
             fg_dtype_name(layout->dtype));
    *engine_out = &engine->base;
    return FG_OK;
}

bool fg_engine_sim_complete(fg_engine *base)
{
    sim_engine *engine = (sim_engine *)base;
    if (engine->step == NULL || engine->done) {
        return false;
    }
    run_step(engine);
    return true;
}

uint64_t fg_engine_sim_bad_slots(const fg_engine *base)
{
    return ((const sim_engine *)base)->bad_slots;
}

fg_engine_sim_answer fg_engine_sim_expected(const uint32_t *tokens, uint32_t token_count,
                                            uint32_t vocab_size, uint32_t eos_token,
                                            const fg_sampling *sampling, uint32_t choice)
{
    uint64_t context = EMPTY_CONTEXT;
    for (uint32_t i = 0; i < token_count; i++) {
        context = extend(context, slot_hash(context, tokens[i], i));
    }
    return answer_of(context, vocab_size, eos_token, sampling, choice);
}
