#include "tests/sim/room_internal.h"

#include <stdlib.h>
#include <string.h>

#include "common/engine/engine_sim.h"

static room_request *find(room *r, const char *what, uint64_t id, uint32_t attempt)
{
    FG_ASSERT(id >= 1 && id <= r->sent, "%s for request %llu, which was never sent", what,
              (unsigned long long)id);
    room_request *q = &r->requests[id - 1];
    FG_ASSERT(q->attempt == attempt, "%s for an attempt that was never made", what);
    FG_ASSERT(q->state == ROOM_LIVE, "%s for request %llu, which has ended (%d)", what,
              (unsigned long long)id, (int)q->state);
    return q;
}

void room_retire(room *r, room_request *q, room_state state)
{
    q->state = state;
    for (uint32_t i = 0; i < r->live; i++) {
        if (&r->requests[r->order[i]] == q) {
            r->order[i] = r->order[--r->live];
            return;
        }
    }
    FG_ASSERT(false, "not live");
}

static bool has_end(const room_request *q)
{
    uint32_t generated = q->count - q->prompt_count;
    return generated == q->params.max_tokens ||
           (generated > 0 && !q->params.ignore_eos && q->tokens[q->count - 1] == ROOM_EOS);
}

/* They came where they were asked for, and are those of the answer. */
static void judge_logprobs(const room *r, const room_request *q, fg_engine_sim_answer answer,
                           const fg_logprobs *logprobs)
{
    uint32_t wanted = q->params.want_logprobs;
    FG_ASSERT((logprobs != NULL) == (wanted > 0), "request %llu", (unsigned long long)q->id);
    if (wanted > 0) {
        fg_logprobs want = fg_engine_sim_logprobs(answer, r->vocab_size, wanted - 1);
        FG_ASSERT(memcmp(&want, logprobs, sizeof want) == 0, "request %llu: logprobs of token %u",
                  (unsigned long long)q->id, answer.token);
    }
}

static void hear_token(room *r, room_request *q, uint32_t index, uint32_t id, uint64_t digest,
                       const fg_logprobs *logprobs)
{
    FG_ASSERT(index == q->count - q->prompt_count, "request %llu: token %u instead of %u",
              (unsigned long long)q->id, index, q->count - q->prompt_count);
    FG_ASSERT(!has_end(q), "request %llu: a token after its end", (unsigned long long)q->id);
    fg_sampling sampling = { .temperature = q->params.temperature,
                             .top_p = q->params.top_p,
                             .seed = q->params.seed };
    fg_engine_sim_answer want =
        fg_engine_sim_expected(q->tokens, q->count, r->vocab_size, ROOM_EOS, &sampling, 0);
    FG_ASSERT(id == want.token, "request %llu: token %u is %u, alone it would be %u",
              (unsigned long long)q->id, index, id, want.token);
    FG_ASSERT(digest == (q->params.want_digests ? want.digest : 0));
    judge_logprobs(r, q, want, logprobs);
    q->tokens[q->count++] = id;
    r->report.tokens++;
    r->quiet_steps = 0;
}

/* Cached tokens were computed for somebody who may share them: equal tokens, and an equal salt. */
static bool is_honest_hit(const room *r, const room_request *q, uint32_t cached)
{
    for (uint32_t i = 0; i < r->sent; i++) {
        const room_request *other = &r->requests[i];
        if (other != q && other->count >= cached && other->params.cache_mode != FG_CACHE_DISABLE &&
            other->params.salt_low == q->params.salt_low &&
            memcmp(other->tokens, q->tokens, cached * sizeof *q->tokens) == 0) {
            return true;
        }
    }
    return false;
}

/* Of each token of the prompt but the first once, in order, and as if the prompt were computed token by token. */
static void hear_scores(room *r, const fg_msg *msg)
{
    room_request *q = find(r, "SCORES", msg->request, msg->attempt);
    const fg_scores *told = &msg->scores.scores;
    float chosen;
    uint32_t rank;
    fg_likely likely[FG_LOGPROBS_MAX];
    fg_scores want = {
        .chosen = &chosen, .ranks = &rank, .likely = likely, .likely_count = told->likely_count
    };
    FG_ASSERT(!q->started && q->params.want_scores == told->likely_count + 1 &&
                  msg->scores.first == q->scored + 1 &&
                  msg->scores.first + told->count <= q->prompt_count,
              "request %llu: scores from %u on", (unsigned long long)q->id, msg->scores.first);
    for (uint32_t i = 0; i < told->count; i++) {
        uint32_t at = msg->scores.first + i;
        const fg_sampling greedy = { .temperature = 0 };
        fg_engine_sim_answer answer =
            fg_engine_sim_expected(q->tokens, at, r->vocab_size, ROOM_EOS, &greedy, 0);
        fg_engine_sim_score(answer, r->vocab_size, q->tokens[at], 0, &want);
        FG_ASSERT(told->chosen[i] == chosen && told->ranks[i] == rank &&
                      memcmp(told->likely + (size_t)i * told->likely_count, likely,
                             told->likely_count * sizeof *likely) == 0,
                  "request %llu: token %u of its prompt", (unsigned long long)q->id, at);
    }
    q->scored += told->count;
    r->quiet_steps = 0;
}

/* As if the prompt were computed token by token. */
static void judge_embedding(const room *r, const room_request *q, const fg_msg *msg)
{
    float want[FG_ENGINE_SIM_EMBEDDING];
    uint32_t count = q->params.want_embedding ? FG_ENGINE_SIM_EMBEDDING : 0;
    fg_sampling sampling = { .temperature = q->params.temperature,
                             .top_p = q->params.top_p,
                             .seed = q->params.seed };
    fg_engine_sim_embedding(
        fg_engine_sim_expected(q->tokens, q->prompt_count, r->vocab_size, ROOM_EOS, &sampling, 0),
        want);
    FG_ASSERT(msg->first.embedding_count == count &&
                  (count == 0 || memcmp(msg->first.embedding, want, sizeof want) == 0),
              "request %llu: its embedding", (unsigned long long)q->id);
}

static void hear_first(room *r, const fg_msg *msg)
{
    room_request *q = find(r, "FIRST", msg->request, msg->attempt);
    q->started = true;
    FG_ASSERT(q->scored == (q->params.want_scores > 0 ? q->prompt_count - 1 : 0),
              "request %llu: %u scores of %u tokens", (unsigned long long)q->id, q->scored,
              q->prompt_count);
    FG_ASSERT(q->scored == 0 || msg->first.cached_tokens == 0, "rows that were not computed spoke");
    judge_embedding(r, q, msg);
    q->started_ns = q->queued_ns + msg->first.queue_ns;
    uint32_t cached = msg->first.cached_tokens;
    bool may_hit = r->cache && q->params.cache_mode != FG_CACHE_DISABLE;
    FG_ASSERT(may_hit || cached == 0, "%u cached tokens of request %llu without a cache", cached,
              (unsigned long long)q->id);
    FG_ASSERT(cached < q->prompt_count, "nothing was left to compute");
    FG_ASSERT(cached % r->layout.block_size == 0 || cached == q->prompt_count - 1);
    FG_ASSERT(q->params.cache_mode != FG_CACHE_FORCE || cached > 0, "a forced hit of nothing");
    FG_ASSERT(cached == 0 || r->options.pressure || is_honest_hit(r, q, cached),
              "request %llu: nobody computed those %u tokens for it", (unsigned long long)q->id,
              cached);
    FG_ASSERT(q->started_ns <= r->now_ns);
    hear_token(r, q, 0, msg->first.id, msg->first.digest, msg->first.logprobs);
}

static void hear_done(room *r, const fg_msg *msg)
{
    room_request *q = find(r, "DONE", msg->request, msg->attempt);
    uint32_t generated = q->count - q->prompt_count;
    FG_ASSERT(msg->done.generated == generated, "DONE says %u tokens of %u", msg->done.generated,
              generated);
    if (msg->done.finish != FG_FINISH_ERROR) {
        room_judge_told(r);
    }
    bool stopped = generated > 0 && !q->params.ignore_eos && q->tokens[q->count - 1] == ROOM_EOS;
    switch (msg->done.finish) {
    case FG_FINISH_STOP:
        FG_ASSERT(stopped, "request %llu stopped without an end token", (unsigned long long)q->id);
        r->report.finished++;
        break;
    case FG_FINISH_LENGTH:
        FG_ASSERT(!stopped);
        if (generated <
            q->params.max_tokens) { /* it has every block there is, and needs one more */
            FG_ASSERT(q->count == room_capacity(r) + 1,
                      "request %llu: cut off after %u of %u slots", (unsigned long long)q->id,
                      q->count, room_capacity(r));
            r->report.at_capacity++;
        }
        r->report.finished++;
        break;
    case FG_FINISH_ERROR:
        FG_ASSERT(generated == 0 || r->giving_up);
        FG_ASSERT(r->giving_up || q->never_fits ||
                      (q->params.cache_mode == FG_CACHE_FORCE && msg->done.refused),
                  "request %llu: %s", (unsigned long long)q->id, msg->done.text);
        *(r->giving_up ? &r->report.aborted : &r->report.refused) += 1;
        break;
    default:
        FG_ASSERT(false, "request %llu: DONE with %d", (unsigned long long)q->id,
                  (int)msg->done.finish);
    }
    FG_ASSERT(!q->never_fits || msg->done.finish == FG_FINISH_ERROR);
    room_retire(r, q, ROOM_DONE);
}

fg_status room_hear(void *ctx, uint32_t router, const void *bytes, size_t size_bytes)
{
    room *r = ctx;
    fg_msg msg;
    fg_error err;
    fg_arena_reset(r->inbox);
    fg_status status = fg_wire_decode(bytes, size_bytes, r->inbox, &msg, &err);
    FG_ASSERT(status == FG_OK, "%s", err.text);
    switch (msg.kind) {
    case FG_MSG_SCORES:
        hear_scores(r, &msg);
        break;
    case FG_MSG_FIRST:
        hear_first(r, &msg);
        break;
    case FG_MSG_TOKENS:
        room_judge_told(r);
        for (uint32_t i = 0; i < msg.tokens.count; i++) {
            const fg_wire_token *token = &msg.tokens.tokens[i];
            hear_token(r, find(r, "TOKENS", token->request, token->attempt), token->index,
                       token->id, token->digest, token->logprobs);
        }
        break;
    case FG_MSG_DONE:
        hear_done(r, &msg);
        break;
    case FG_MSG_NEWS:
        room_hear_news(r, &msg);
        break;
    default:
        FG_ASSERT(msg.kind == FG_MSG_HELLO || msg.kind == FG_MSG_LOAD, "a %s message",
                  fg_msg_name(msg.kind));
    }
    return FG_OK;
}

/* ---- first come, first served ---- */

/* Whether the line may have passed it by: it waited for a prefix that somebody computed. */
static bool may_be_deferred(const room *r, const room_request *q)
{
    return r->cache && q->params.cache_mode != FG_CACHE_DISABLE;
}

static bool stands_before(const room_request *a, const room_request *b)
{
    uint64_t x = fg_sched_rank(a->queued_ns, a->params.priority);
    uint64_t y = fg_sched_rank(b->queued_ns, b->params.priority);
    return x != y ? x < y : a->id < b->id;
}

void room_judge_order(room *r)
{
    if (r->limits.skip_max > 0 || r->sent > 2000) {
        return;
    }
    for (uint32_t i = 0; i < r->sent; i++) {
        const room_request *a = &r->requests[i];
        if (!a->started || may_be_deferred(r, a)) {
            continue;
        }
        for (uint32_t j = 0; j < r->sent; j++) {
            const room_request *b = &r->requests[j];
            bool overtook = b->started && b->started_ns > a->queued_ns &&
                            b->started_ns < a->started_ns && stands_before(a, b);
            FG_ASSERT(!overtook, "request %llu was admitted before %llu, which stood before it",
                      (unsigned long long)b->id, (unsigned long long)a->id);
            r->report.orders_checked++;
        }
    }
}
