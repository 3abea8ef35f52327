#include "tests/unit/common/worker/rig.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/dtype.h"
#include "common/base/log.h"
#include "common/base/hash.h"
#include "common/engine/drafter.h"
#include "common/engine/engine_sim.h"
#include "common/worker/worker_records.h"
#include "tests/support/test.h"

static rig_request *live(rig *r, uint64_t id)
{
    cr_assert(id < RIG_REQUESTS_MAX && r->requests[id].sent, "request %llu was never sent",
              (unsigned long long)id);
    rig_request *request = &r->requests[id];
    cr_assert(!request->done && !request->cancelled, "request %llu has ended",
              (unsigned long long)id);
    return request;
}

const char rig_letters[RIG_VOCAB + 1] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWX";

static const char *token_text(void *ctx, uint32_t token, size_t *length_out)
{
    *length_out = 1;
    return &rig_letters[token];
}

static bool is_end(void *ctx, uint32_t token)
{
    const rig *r = ctx;
    cr_assert_not_null(r->worker, "asked before there is a worker");
    return token == (r->ends_at > 0 ? r->ends_at : r->options.eos);
}

const char *rig_text(const rig_request *request)
{
    static char text[RIG_TOKENS_MAX + 1];
    uint32_t count = request->count - request->prompt_count;
    for (uint32_t i = 0; i < count; i++) {
        text[i] = rig_letters[request->tokens[request->prompt_count + i]];
    }
    text[count] = '\0';
    return text;
}

/* A grammar of the request's own, walked from its first token each time. */
static void hold(rig *r, rig_request *request)
{
    fg_error err = { 0 };
    const fg_wire_params *params = &request->params;
    if (params->grammar_kind == FG_GRAMMAR_NONE) {
        return;
    }
    if (r->lexicon == NULL) {
        cr_assert_eq(fg_lexicon_create(r->options.vocab, token_text, is_end, r, &r->lexicon, &err),
                     FG_OK, "%s", err.text);
    }
    cr_assert_eq(fg_grammar_compile((fg_grammar_kind)params->grammar_kind, params->grammar,
                                    params->grammar_bytes, &request->grammar, &err),
                 FG_OK, "%s", err.text);
    cr_assert_eq(fg_automaton_create(request->grammar, r->lexicon, 0, &request->automaton, &err),
                 FG_OK);
}

static uint32_t held(const rig *r, const rig_request *request, const uint32_t *tokens,
                     uint32_t count, uint32_t token)
{
    fg_automaton *automaton = request->automaton;
    if (automaton == NULL) {
        return token;
    }
    fg_state state = fg_automaton_start(automaton);
    for (uint32_t i = request->prompt_count; i < count; i++) {
        state = fg_automaton_take(automaton, state, tokens[i]);
    }
    const uint64_t *allowed = fg_automaton_mask(automaton, state);
    cr_assert_not_null(allowed, "an answer that is none of the grammar's");
    return fg_engine_sim_held(token, allowed, r->options.vocab);
}

static fg_engine_sim_answer next_token(const rig *r, const rig_request *request,
                                       const uint32_t *tokens, uint32_t count)
{
    fg_sampling sampling = { .temperature = request->params.temperature,
                             .top_p = request->params.top_p,
                             .seed = request->params.seed };
    fg_engine_sim_answer answer =
        fg_engine_sim_expected(tokens, count, r->options.vocab, r->options.eos, &sampling, 0);
    answer.token = held(r, request, tokens, count, answer.token);
    return answer;
}

static void hear_token(rig *r, uint64_t id, uint32_t index, uint32_t token)
{
    rig_request *request = live(r, id);
    cr_assert_eq(index, request->count - request->prompt_count);
    fg_engine_sim_answer want = next_token(r, request, request->tokens, request->count);
    cr_assert_eq(token, want.token, "request %llu: token %u is %u instead of %u",
                 (unsigned long long)id, index, token, want.token);
    request->tokens[request->count++] = token;
}

/* Each once and in order, and as if the prompt were computed token by token. */
static void hear_scores(rig *r, const fg_msg *msg)
{
    rig_request *request = live(r, msg->request);
    const fg_scores *told = &msg->scores.scores;
    float chosen;
    uint32_t rank;
    fg_likely likely[FG_LOGPROBS_MAX];
    fg_scores want = {
        .chosen = &chosen, .ranks = &rank, .likely = likely, .likely_count = told->likely_count
    };
    cr_assert(!request->started && request->params.want_scores == told->likely_count + 1);
    cr_assert_eq(msg->scores.first, request->scored + 1);
    for (uint32_t i = 0; i < told->count; i++) {
        uint32_t at = msg->scores.first + i;
        cr_assert(at < request->prompt_count);
        fg_sampling greedy = { 0 };
        fg_engine_sim_answer answer = fg_engine_sim_expected(request->tokens, at, r->options.vocab,
                                                             r->options.eos, &greedy, 0);
        fg_engine_sim_score(answer, r->options.vocab, request->tokens[at], 0, &want);
        cr_assert(told->chosen[i] == chosen && told->ranks[i] == rank &&
                      memcmp(told->likely + (size_t)i * told->likely_count, likely,
                             told->likely_count * sizeof *likely) == 0,
                  "request %llu: token %u of its prompt", (unsigned long long)msg->request, at);
    }
    request->scored += told->count;
}

static void hear_first(rig *r, const fg_msg *msg)
{
    rig_request *request = live(r, msg->request);
    cr_assert(!request->started);
    cr_assert_eq(request->scored, request->params.want_scores > 0 ? request->prompt_count - 1 : 0);
    request->started = true;
    request->cached_tokens = msg->first.cached_tokens;
    request->chunks = msg->first.chunks;
    request->queue_ns = msg->first.queue_ns;
    hear_token(r, msg->request, 0, msg->first.id);
}

static void hear_done(rig *r, const fg_msg *msg)
{
    rig_request *request = live(r, msg->request);
    cr_assert_eq(msg->done.generated, request->count - request->prompt_count);
    request->done = true;
    request->refused = msg->done.refused;
    request->broken = msg->done.broken;
    request->finish = msg->done.finish;
    request->preemptions = msg->done.preemptions;
}

static fg_status hear(void *ctx, uint32_t router, const void *bytes, size_t size_bytes)
{
    rig *r = ctx;
    fg_msg msg;
    fg_error err = { 0 };
    fg_arena_reset(r->inbox);
    cr_assert_eq(fg_wire_decode(bytes, size_bytes, r->inbox, &msg, &err), FG_OK, "%s", err.text);
    r->heard++;
    if (msg.kind == FG_MSG_SCORES) {
        hear_scores(r, &msg);
    } else if (msg.kind == FG_MSG_FIRST) {
        hear_first(r, &msg);
    } else if (msg.kind == FG_MSG_DONE) {
        hear_done(r, &msg);
    }
    for (uint32_t i = 0; msg.kind == FG_MSG_TOKENS && i < msg.tokens.count; i++) {
        const fg_wire_token *token = &msg.tokens.tokens[i];
        hear_token(r, token->request, token->index, token->id);
    }
    return FG_OK;
}

static void reconnect(void *ctx, uint32_t router, uint64_t epoch)
{
}

static bool is_broken(void *ctx, const fg_step_seq *seq)
{
    const rig *r = ctx;
    uint32_t breaks_at = r->options.breaks_at;
    return breaks_at > 0 && seq->first_position + seq->token_count >= breaks_at;
}

/* The draft model's step: its own answer, or another one. */
static uint64_t run_draft(void *ctx, fg_step *step)
{
    rig *r = ctx;
    fg_error err = { 0 };
    cr_assert_eq(fg_engine_begin(r->draft_engine, step, &err), FG_OK, "%s", err.text);
    cr_assert(fg_engine_poll(r->draft_engine) == step);
    r->draft_steps++;
    for (uint32_t i = 0; i < step->seq_count; i++) {
        fg_step_seq *item = &step->seqs[i];
        bool mixed = fg_hash_mix(item->first_position * 31u + item->token_out) % 3 == 0;
        if (r->options.draft == RIG_DRAFT_WRONG || (r->options.draft == RIG_DRAFT_MIXED && mixed)) {
            item->token_out = (item->token_out + 1) % r->options.vocab;
        }
        r->draft_rows += item->token_count;
    }
    return r->options.draft_ns;
}

static void open_drafter(rig *r)
{
    fg_error err = { 0 };
    rig_options *options = &r->options;
    uint32_t context = options->draft_context > 0 ? options->draft_context : RIG_TOKENS_MAX;
    uint32_t blocks = options->draft_blocks > 0
                          ? options->draft_blocks
                          : options->seqs * fg_kv_blocks_for(context, options->block_size);
    options->draft_context = context;
    options->draft_blocks = blocks;
    r->draft_arena = calloc(blocks, r->layout.block_bytes);
    fg_engine_sim_options engine = { .layout = r->layout,
                                     .arena = r->draft_arena,
                                     .block_count = blocks,
                                     .limits = { FG_DRAFTER_CHUNK, options->seqs, context },
                                     .vocab_size = options->vocab,
                                     .eos_token = options->eos };
    cr_assert_eq(fg_engine_open_sim(&engine, &r->draft_engine, &err), FG_OK, "%s", err.text);
    fg_drafter_options drafter = { .place_count = options->seqs,
                                   .context_max = context,
                                   .block_size = options->block_size,
                                   .block_count = blocks,
                                   .vocab_size = options->vocab,
                                   .run = run_draft,
                                   .ctx = r };
    cr_assert_eq(fg_drafter_create(&drafter, &r->drafter, &err), FG_OK, "%s", err.text);
}

static void close_drafter(rig *r)
{
    fg_pool_stats stats;
    if (r->drafter != NULL) {
        fg_drafter_check(r->drafter, &stats);
        cr_assert_eq(fg_engine_sim_bad_slots(r->draft_engine), 0u);
        fg_drafter_destroy(r->drafter);
        fg_engine_close(r->draft_engine);
    }
    free(r->draft_arena);
}

static void open_engine(rig *r)
{
    fg_error err = { 0 };
    const rig_options *options = &r->options;
    cr_assert_eq(fg_kv_layout_init(&r->layout, 1, 1, 8, options->block_size, FG_F16, &err), FG_OK);
    r->arena = calloc(options->blocks, r->layout.block_bytes);
    if (options->slots > 0) {
        fg_tier_options tier = { .block_bytes = r->layout.block_bytes,
                                 .block_count = options->slots,
                                 .block_size = options->block_size };
        cr_assert_eq(fg_tier_open(&tier, &r->tier, &err), FG_OK, "%s", err.text);
    }
    if (options->draft != RIG_NO_DRAFT) {
        open_drafter(r);
    }
    fg_engine_sim_options engine = { .layout = r->layout,
                                     .drafter = r->drafter,
                                     .draft_ns = options->draft_ns,
                                     .step_ns = { .base = 1000000, .decode_row = 100000 },
                                     .arena = r->arena,
                                     .block_count = options->blocks,
                                     .tier_arena = r->tier != NULL ? fg_tier_arena(r->tier) : NULL,
                                     .tier_block_count = options->slots,
                                     .limits = { options->step_tokens, options->seqs,
                                                 RIG_TOKENS_MAX },
                                     .vocab_size = r->options.vocab,
                                     .eos_token = options->eos,
                                     .manual = true,
                                     .is_broken = is_broken,
                                     .ctx = r };
    cr_assert_eq(fg_engine_open_sim(&engine, &r->engine, &err), FG_OK, "%s", err.text);
}

static void open_flight(rig *r, fg_worker_options *worker)
{
    fg_error err = { 0 };
    fg_work_options preface = fg_work_put_options(worker);
    fg_flight_options flight = { .bytes = r->options.flight_bytes,
                                 .shape = fg_work_shape(),
                                 .process = "rig",
                                 .directory = "/tmp",
                                 .preface = &preface,
                                 .preface_bytes = sizeof preface };
    cr_assert_eq(fg_flight_create(&flight, &r->flight, &err), FG_OK, "%s", err.text);
    worker->flight = r->flight;
}

void rig_open(rig *r, const rig_options *options)
{
    *r = (rig){ .options = *options, .now_ns = 1000000000u };
    r->options.seqs = options->seqs > 0 ? options->seqs : 4;
    r->options.step_tokens = options->step_tokens > 0 ? options->step_tokens : 64;
    r->options.chunk = options->chunk > 0 ? options->chunk : 64;
    r->options.vocab = options->vocab > 0 ? options->vocab : RIG_VOCAB;
    r->options.eos = options->eos > 0 ? options->eos : RIG_NO_EOS;
    r->inbox = fg_arena_create(1 << 20);
    fg_log_set_level(FG_LOG_OFF);
    open_engine(r);
    fg_worker_options worker = { .name = "rig",
                                 .epoch = 1,
                                 .roles = FG_ROLE_PREFILL | FG_ROLE_DECODE,
                                 .clock = fg_clock_manual(&r->now_ns),
                                 .engine = r->engine,
                                 .layout = r->layout,
                                 .block_count = options->blocks,
                                 .context_max = RIG_TOKENS_MAX,
                                 .vocab_size = r->options.vocab,
                                 .embedding_length = FG_ENGINE_SIM_EMBEDDING,
                                 .draft_context = r->drafter != NULL ? r->options.draft_context : 0,
                                 .draft_alone = options->draft_alone,
                                 .limits = options->policies,
                                 .overlap = options->overlap,
                                 .prefix_cache = !options->no_cache,
                                 .tier = r->tier,
                                 .spans = options->spans,
                                 .is_end = is_end,
                                 .token_text = token_text,
                                 .send = hear,
                                 .reconnect = reconnect,
                                 .ctx = r };
    worker.limits.step_tokens_max = r->options.step_tokens;
    worker.limits.chunk_tokens_max = r->options.chunk;
    worker.limits.seqs_max = r->options.seqs;
    worker.limits.block_size = options->block_size;
    fg_error err = { 0 };
    if (options->flight_bytes > 0) {
        open_flight(r, &worker);
    }
    cr_assert_eq(fg_worker_create(&worker, &r->worker, &err), FG_OK, "%s", err.text);
    fg_worker_on_up(r->worker, 0);
    rig_give(
        r, &(fg_msg){ .kind = FG_MSG_WELCOME, .welcome = { .router_epoch = 1, .lease_ms = 800 } });
    cr_assert(fg_worker_joined(r->worker));
}

void rig_close(rig *r)
{
    fg_worker_stats stats = rig_stats(r);
    cr_assert(fg_worker_idle(r->worker));
    cr_assert_eq(rig_available(r), r->options.blocks);
    cr_assert_eq(stats.closing, 0u);
    cr_assert_eq(stats.leaked_blocks, 0u);
    cr_assert_eq(stats.tier.swapped, 0u);
    cr_assert_eq(fg_engine_sim_bad_slots(r->engine), 0u);
    fg_worker_check(r->worker);
    fg_worker_destroy(r->worker);
    fg_flight_destroy(r->flight);
    fg_engine_close(r->engine);
    close_drafter(r);
    fg_tier_close(r->tier);
    fg_arena_destroy(r->inbox);
    for (uint32_t id = 0; id < RIG_REQUESTS_MAX; id++) {
        fg_automaton_destroy(r->requests[id].automaton);
        fg_grammar_destroy(r->requests[id].grammar);
    }
    fg_lexicon_destroy(r->lexicon);
    free(r->arena);
}

fg_wire_params rig_greedy(uint32_t max_tokens)
{
    return (fg_wire_params){ .top_p = 1.0f, .max_tokens = max_tokens };
}

static void check(rig *r)
{
    if (!r->unchecked) {
        fg_worker_check(r->worker);
    }
}

void rig_give(rig *r, const fg_msg *msg)
{
    fg_buf frame;
    fg_buf_init(&frame, 0);
    cr_assert(fg_wire_encode(msg, &frame));
    r->now_ns += 1000;
    fg_worker_on_frame(r->worker, 0, frame.data, frame.size);
    fg_buf_deinit(&frame);
    check(r);
}

rig_request *rig_send(rig *r, uint64_t id, const uint32_t *prompt, uint32_t prompt_count,
                      const fg_wire_params *params)
{
    return rig_send_said(r, id, prompt, prompt_count, params, NULL, 0);
}

rig_request *rig_send_said(rig *r, uint64_t id, const uint32_t *prompt, uint32_t prompt_count,
                           const fg_wire_params *params, const uint32_t *said, uint32_t said_count)
{
    cr_assert(id > 0 && id < RIG_REQUESTS_MAX);
    rig_request *request = &r->requests[id];
    cr_assert(!request->sent || request->done || request->cancelled);
    uint32_t attempt = request->attempt + 1;
    fg_automaton_destroy(request->automaton);
    fg_grammar_destroy(request->grammar);
    *request = (rig_request){ .attempt = attempt,
                              .prompt_count = prompt_count,
                              .count = prompt_count,
                              .params = *params,
                              .sent = true };
    memcpy(request->tokens, prompt, prompt_count * sizeof *prompt);
    hold(r, request);
    fg_msg msg = { .kind = FG_MSG_PREFILL, .request = id, .attempt = attempt };
    msg.prefill.tokens = request->tokens;
    msg.prefill.token_count = prompt_count;
    msg.prefill.said = said;
    msg.prefill.said_count = said_count;
    msg.prefill.sampling = *params;
    rig_give(r, &msg);
    return request;
}

rig_request *rig_ask(rig *r, uint64_t id, uint32_t first, uint32_t prompt_count,
                     uint32_t max_tokens)
{
    uint32_t prompt[RIG_TOKENS_MAX];
    for (uint32_t i = 0; i < prompt_count; i++) {
        prompt[i] = (first + i) % r->options.vocab;
    }
    fg_wire_params params = rig_greedy(max_tokens);
    return rig_send(r, id, prompt, prompt_count, &params);
}

void rig_cancel(rig *r, uint64_t id)
{
    rig_request *request = live(r, id);
    request->cancelled = true;
    rig_give(r, &(fg_msg){ .kind = FG_MSG_CANCEL, .request = id, .attempt = request->attempt });
}

void rig_clear(rig *r)
{
    rig_give(r, &(fg_msg){ .kind = FG_MSG_CLEAR });
}

bool rig_step(rig *r)
{
    bool did = fg_engine_sim_complete(r->engine);
    r->now_ns += 1000;
    fg_worker_on_engine(r->worker);
    check(r);
    return did;
}

void rig_run(rig *r)
{
    for (uint32_t steps = 0; rig_step(r); steps++) {
        cr_assert(steps < 100000, "this never ends");
    }
    cr_assert(fg_worker_idle(r->worker), "somebody waits, and nothing is in flight");
}

void rig_run_until_started(rig *r, uint64_t id)
{
    while (!r->requests[id].started) {
        cr_assert(rig_step(r), "request %llu never starts", (unsigned long long)id);
    }
}

void rig_alone(const rig *r, const rig_request *request, uint32_t *tokens_out, uint32_t count)
{
    uint32_t tokens[RIG_TOKENS_MAX];
    memcpy(tokens, request->tokens, request->prompt_count * sizeof *tokens);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t known = request->prompt_count + i;
        tokens[known] = next_token(r, request, tokens, known).token;
        tokens_out[i] = tokens[known];
    }
}

fg_worker_stats rig_stats(const rig *r)
{
    fg_worker_stats stats;
    fg_worker_stats_get(r->worker, &stats);
    return stats;
}

uint32_t rig_available(const rig *r)
{
    fg_worker_stats stats = rig_stats(r);
    return stats.pool.free + stats.pool.cached - stats.pool.promised;
}
