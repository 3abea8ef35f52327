#include "common/engine/engine_sim.h"

#include <stdio.h>
#include <string.h>

#include "common/base/dtype.h"
#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/engine/drafter.h"
#include "common/engine/engine_internal.h"

/* What a sequence knows before its first token. */
#define EMPTY_CONTEXT 0x466F7267652D5349u
/* One answer in this many is the end token, so that simulated requests end by themselves too. */
enum { EOS_ODDS = 64 };

typedef struct sim_engine {
    fg_engine base;
    fg_engine_sim_options options;
    fg_engine_bounds bounds;
    /* Step n lies at n % FG_ENGINE_STEPS_MAX; polled <= ended <= begun. */
    fg_step *steps[FG_ENGINE_STEPS_MAX];
    uint64_t begun, ended, polled;
    fg_engine_items before;
    uint64_t bad_slots;
    uint64_t allowed[]; /* tokens that may be chosen, a bit each */
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

static uint8_t *part_of(const fg_kv_layout *layout, uint8_t *block, uint32_t position,
                        uint32_t part)
{
    size_t slot_bytes = (size_t)layout->head_dim * layout->element_bytes;
    return block + part * layout->head_bytes + position % layout->block_size * slot_bytes;
}

static uint8_t *block_of(const sim_engine *engine, const uint32_t *block_ids, uint32_t position)
{
    const fg_kv_layout *layout = &engine->options.layout;
    return (uint8_t *)engine->options.arena +
           block_ids[position / layout->block_size] * layout->block_bytes;
}

static uint8_t *slot_part(const sim_engine *engine, const uint32_t *block_ids, uint32_t position,
                          uint32_t part)
{
    return part_of(&engine->options.layout, block_of(engine, block_ids, position), position, part);
}

static uint32_t part_count(const fg_kv_layout *layout)
{
    return layout->layer_count * 2 * layout->kv_head_count;
}

/* `context`: what is known after it; all that a quick slot says. */
static void write_slot(const sim_engine *engine, uint8_t *block, uint32_t position, uint64_t hash,
                       uint64_t context)
{
    const fg_kv_layout *layout = &engine->options.layout;
    if (engine->options.quick) {
        memcpy(part_of(layout, block, position, 0), &context, sizeof context);
        return;
    }
    for (uint32_t part = 0; part < part_count(layout); part++) {
        expand(hash, part, part_of(layout, block, position, part),
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
            uint64_t seen = want;
            if (left >= sizeof seen) { /* of a known length: no call */
                memcpy(&seen, bytes + i, sizeof seen);
            } else {
                memcpy(&seen, bytes + i, left);
            }
            if (seen != want) {
                damage = fg_hash_mix(damage + part + i + 1);
            }
        }
    }
    engine->bad_slots += damage != 0;
    return hash ^ damage;
}

/* What is known before the sequence's first token. Reads every slot before it, as attention would: one
 * wrong slot anywhere changes the result. Quick: the last of them says it. */
static uint64_t read_context(sim_engine *engine, const fg_step_seq *seq)
{
    uint64_t context = EMPTY_CONTEXT;
    if (engine->options.quick && seq->first_position > 0) {
        memcpy(&context, slot_part(engine, seq->block_ids, seq->first_position - 1, 0),
               sizeof context);
        return context;
    }
    for (uint32_t position = 0; position < seq->first_position; position++) {
        context = extend(context, read_slot(engine, seq->block_ids, position));
    }
    return context;
}

/* A history other than what the slots hold changes the answer, as it would change a model's. */
static uint64_t with_history(const fg_step_seq *seq, uint32_t index, uint64_t context)
{
    uint64_t told = EMPTY_CONTEXT;
    for (uint32_t i = 0; i < seq->first_position; i++) {
        told = extend(told, slot_hash(told, seq->history[i], i));
    }
    for (uint32_t i = 0; i <= index; i++) {
        uint32_t token = fg_step_seq_token(seq, i);
        told = extend(told, slot_hash(told, token, seq->first_position + i));
    }
    return told == context ? context : fg_hash_mix(context ^ told);
}

fg_logprobs fg_engine_sim_logprobs(fg_engine_sim_answer answer, uint32_t vocab_size, uint32_t count)
{
    fg_logprobs logprobs = { .chosen = -(float)(answer.digest % 1000) / 100.0f, .count = count };
    for (uint32_t i = 0; i < count; i++) {
        logprobs.likely[i] = (fg_likely){ .id = (answer.token + i) % vocab_size,
                                          .logprob = logprobs.chosen - (float)i };
    }
    return logprobs;
}

void fg_engine_sim_score(fg_engine_sim_answer answer, uint32_t vocab_size, uint32_t token,
                         uint32_t at, const fg_scores *scores)
{
    fg_logprobs said = fg_engine_sim_logprobs(answer, vocab_size, scores->likely_count);
    scores->chosen[at] = said.chosen - (float)(token % 7);
    scores->ranks[at] = 1 + token % 5;
    memcpy(scores->likely + (size_t)at * scores->likely_count, said.likely,
           scores->likely_count * sizeof *scores->likely);
}

void fg_engine_sim_embedding(fg_engine_sim_answer answer, float *embedding)
{
    for (uint32_t i = 0; i < FG_ENGINE_SIM_EMBEDDING; i++) {
        embedding[i] = (float)(fg_hash_mix(answer.digest + i) % 1024) / 512.0f - 1.0f;
    }
}

uint32_t fg_engine_sim_held(uint32_t token, const uint64_t *allowed, uint32_t vocab_size)
{
    for (uint32_t i = 0; i < vocab_size; i++) {
        uint32_t id = (token + i) % vocab_size;
        if ((allowed[id / 64] >> id % 64 & 1) != 0) {
            return id;
        }
    }
    return token;
}

/* The same answer whatever the request's seed is. */
static void take_score(sim_engine *engine, fg_step_seq *seq, uint32_t position, uint64_t context)
{
    const fg_sampling greedy = { .temperature = 0 };
    fg_engine_sim_answer answer =
        answer_of(context, engine->options.vocab_size, engine->options.eos_token, &greedy, 0);
    fg_engine_sim_score(answer, engine->options.vocab_size, seq->history[position + 1],
                        position - seq->first_position - seq->scores_first, &seq->scores_out);
}

/* What the row of token `index` answers, when somebody asked. */
static void take_answer(sim_engine *engine, fg_step_seq *seq, uint32_t index, uint64_t context)
{
    uint32_t left = seq->token_count - index;
    if (fg_step_seq_is_scored(seq, seq->first_position + index)) {
        take_score(engine, seq, seq->first_position + index, context);
    }
    if (left > fg_step_seq_head_rows(seq)) {
        return;
    }
    if (seq->shape != NULL) {
        context = with_history(seq, index, context);
    }
    fg_engine_sim_answer answer = answer_of(context, engine->options.vocab_size,
                                            engine->options.eos_token, &seq->sampling, seq->choice);
    if (seq->sample && seq->constraint != NULL) {
        fg_constraint_mask(seq->constraint, seq, seq->first_position + index, engine->allowed);
        answer.token =
            fg_engine_sim_held(answer.token, engine->allowed, engine->options.vocab_size);
    }
    if (seq->logprobs_out != NULL) {
        seq->logprobs_out[fg_step_seq_head_rows(seq) - left] =
            fg_engine_sim_logprobs(answer, engine->options.vocab_size, seq->likely_count);
    }
    if (seq->sample_rows > 0) {
        seq->tokens_out[seq->sample_rows - left] = answer.token;
    }
    if (seq->sample_rows > 0 && seq->digests_out != NULL) {
        seq->digests_out[seq->sample_rows - left] = answer.digest;
    }
    if (left == 1 && seq->sample) {
        seq->token_out = answer.token;
    }
    if (left == 1 && seq->embedding_out != NULL) {
        fg_engine_sim_embedding(answer, seq->embedding_out);
    }
    if (left == 1 && seq->want_digest) {
        seq->digest_out = answer.digest;
    }
}

static void run_seq(sim_engine *engine, fg_step_seq *seq)
{
    uint64_t context = read_context(engine, seq);
    seq->broken_out = seq->sample && engine->options.is_broken != NULL &&
                      engine->options.is_broken(engine->options.ctx, seq);
    for (uint32_t i = 0; i < seq->token_count; i++) {
        uint32_t position = seq->first_position + i;
        uint64_t hash = slot_hash(context, fg_step_seq_token(seq, i), position);
        context = extend(context, hash);
        uint8_t *twin = fg_step_seq_twin(seq, &engine->options.layout, position);
        write_slot(engine, block_of(engine, seq->block_ids, position), position, hash, context);
        if (twin != NULL) {
            write_slot(engine, twin, position, hash, context);
        }
        take_answer(engine, seq, i, context);
    }
}

static uint8_t *block_at(const sim_engine *engine, void *arena, uint32_t index)
{
    return (uint8_t *)arena + index * engine->options.layout.block_bytes;
}

static void run_copy(sim_engine *engine, fg_step_copy *copy)
{
    const fg_engine_sim_options *options = &engine->options;
    size_t block_bytes = options->layout.block_bytes;
    bool in = copy->kind == FG_COPY_IN;
    bool out = copy->kind == FG_COPY_OUT;
    uint8_t *from = block_at(engine, in ? options->tier_arena : options->arena, copy->from);
    uint8_t *to = block_at(engine, out ? options->tier_arena : options->arena, copy->to);
    memcpy(to, from, block_bytes);
    if (in || out) {
        copy->digest_out = fg_hash64(in ? to : from, block_bytes, 0);
    }
}

static uint64_t step_ns(const sim_engine *engine, const fg_step *step)
{
    const fg_engine_sim_ns *each = &engine->options.step_ns;
    if (engine->options.step_time_ns != NULL) {
        return engine->options.step_time_ns(engine->options.ctx, step);
    }
    uint64_t ns = each->base + step->copy_count * each->copied_block;
    for (uint32_t i = 0; i < step->seq_count; i++) {
        uint32_t count = step->seqs[i].token_count;
        bool decodes = count == 1 || step->seqs[i].sample_rows == count;
        ns += count * (decodes ? each->decode_row : each->prefill_token);
    }
    return ns;
}

/* What its asks add. */
static uint64_t draft_ns(const sim_engine *engine, const fg_step *step)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < step->ask_count; i++) {
        most = step->asks[i].wanted > most ? step->asks[i].wanted : most;
    }
    return most * engine->options.draft_ns;
}

/* Runs the oldest step that has not ended. */
static void run_step(sim_engine *engine)
{
    fg_step *step = engine->steps[engine->ended % FG_ENGINE_STEPS_MAX];
    for (uint32_t i = 0; i < step->copy_count; i++) {
        run_copy(engine, &step->copies[i]);
    }
    for (uint32_t i = 0; i < step->seq_count; i++) {
        run_seq(engine, &step->seqs[i]);
    }
    for (uint32_t i = 0; i < step->digest_count; i++) {
        step->digests[i].digest_out =
            fg_hash64(block_at(engine, engine->options.arena, step->digests[i].block_id),
                      engine->options.layout.block_bytes, 0);
    }
    step->compute_ns_out = step_ns(engine, step);
    step->copy_ns_out = step->copy_count * engine->options.step_ns.copied_block;
    step->drafted_out = (fg_step_drafted){ 0 };
    if (step->ask_count > 0) {
        fg_drafter_round(engine->options.drafter, step);
        step->drafted_out.ns = draft_ns(engine, step);
        step->drafted_out.catch_ns = 0;
    }
    engine->ended++;
    if (engine->options.on_done != NULL) {
        engine->options.on_done(engine->options.ctx);
    }
}

static fg_status sim_begin(fg_engine *base, fg_step *step, fg_error *err)
{
    sim_engine *engine = (sim_engine *)base;
    if (engine->begun - engine->polled == FG_ENGINE_STEPS_MAX) {
        return fg_fail(err, FG_AGAIN, "%d steps are in flight", FG_ENGINE_STEPS_MAX);
    }
    fg_status status = fg_engine_check_step(&engine->bounds, &engine->before, step, err);
    if (status != FG_OK) {
        return status;
    }
    for (uint32_t i = 0; i < step->seq_count; i++) {
        if (step->seqs[i].logits_out != NULL) {
            return fg_fail(err, FG_BAD_INPUT, "the simulated engine has no logits");
        }
    }
    engine->before = (fg_engine_items){ .seqs = step->seqs, .count = step->seq_count };
    engine->steps[engine->begun++ % FG_ENGINE_STEPS_MAX] = step;
    if (!engine->options.manual) {
        run_step(engine);
    }
    return FG_OK;
}

static fg_step *sim_poll(fg_engine *base)
{
    sim_engine *engine = (sim_engine *)base;
    if (engine->ended == engine->polled) {
        return NULL;
    }
    return engine->steps[engine->polled++ % FG_ENGINE_STEPS_MAX];
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
    size_t words = ((size_t)options->vocab_size + 63) / 64;
    sim_engine *engine = fg_mem_alloc(sizeof *engine + words * sizeof *engine->allowed);
    if (engine == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for the engine");
    }
    engine->base.ops = &sim_ops;
    engine->options = *options;
    engine->bounds =
        (fg_engine_bounds){ .limits = options->limits,
                            .vocab_size = options->vocab_size,
                            .block_size = layout->block_size,
                            .block_count = options->block_count,
                            .tier_block_count =
                                options->tier_arena == NULL ? 0 : options->tier_block_count,
                            .can_draft = options->drafter != NULL };
    snprintf(engine->base.numerics_class, sizeof engine->base.numerics_class, "sim/k1/kv-%s/tp1",
             fg_dtype_name(layout->dtype));
    *engine_out = &engine->base;
    return FG_OK;
}

bool fg_engine_sim_complete(fg_engine *base)
{
    sim_engine *engine = (sim_engine *)base;
    if (engine->ended == engine->begun) {
        return false;
    }
    run_step(engine);
    return true;
}

uint64_t fg_engine_sim_due_ns(const fg_engine *base)
{
    const sim_engine *engine = (const sim_engine *)base;
    if (engine->ended == engine->begun) {
        return UINT64_MAX;
    }
    const fg_step *step = engine->steps[engine->ended % FG_ENGINE_STEPS_MAX];
    return step_ns(engine, step) + draft_ns(engine, step);
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
