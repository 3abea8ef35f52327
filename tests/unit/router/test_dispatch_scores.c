/* What workers say of prompts: each position once, in order, and before the first token. */
#include <string.h>

#include "tests/support/test.h"
#include "tests/unit/router/dispatch_bench.h"

enum { PROMPT = 9, Q = 12 };

typedef struct heard {
    bench b;
    uint32_t next; /* position that comes next */
    uint32_t calls;
    float chosen[PROMPT];
    uint64_t id;
} heard;

static void on_scores(void *ctx, uint32_t first, const fg_scores *scores)
{
    heard *h = ctx;
    cr_assert(first == h->next && scores->count > 0 && first + scores->count <= PROMPT);
    cr_assert_eq(h->b.token_count, 0u);
    for (uint32_t i = 0; i < scores->count; i++) {
        h->chosen[first + i] = scores->chosen[i];
        cr_assert(scores->ranks[i] == first + i && scores->likely[i].id == first + i);
    }
    h->next += scores->count;
    h->calls++;
}

/* The pair, and a request that asks for scores and one likely token of each. */
static void open_asked(heard *h)
{
    static const uint32_t tokens[PROMPT] = { 5, 6 };
    *h = (heard){ .next = 1 };
    bench_open(&h->b);
    bench_join_pair(&h->b);
    bench_join(&h->b, Q, "q", FG_ROLE_PREFILL);
    h->b.sent_count = 0;
    fg_dispatch_job job = { .tokens = tokens,
                            .token_count = PROMPT,
                            .params = { .top_p = 1, .max_tokens = 3, .want_scores = 2 },
                            .sink = bench_sink(&h->b) };
    job.sink.ctx = h; /* the bench comes first in it */
    job.sink.on_scores = on_scores;
    cr_assert_eq(fg_dispatch_start(h->b.dispatch, &job, &h->id, NULL), FG_OK);
    bench_ticket(&h->b, h->id, 1);
}

static void say(heard *h, uint32_t peer, uint32_t attempt, uint32_t first, uint32_t count)
{
    float chosen[PROMPT];
    uint32_t ranks[PROMPT];
    fg_likely likely[PROMPT];
    fg_msg msg = { .kind = FG_MSG_SCORES, .request = h->id, .attempt = attempt };
    for (uint32_t i = 0; i < count; i++) {
        chosen[i] = -(float)(first + i) - (float)peer / 100;
        ranks[i] = first + i;
        likely[i] = (fg_likely){ first + i, -1 };
    }
    msg.scores.first = first;
    msg.scores.scores = (fg_scores){
        .chosen = chosen, .ranks = ranks, .likely = likely, .count = count, .likely_count = 1
    };
    bench_give(&h->b, peer, &msg);
}

static uint32_t worker_of(const heard *h)
{
    return bench_sent(&h->b, P, FG_MSG_PREFILL) != NULL ? P : Q;
}

static uint64_t stale(const heard *h)
{
    fg_dispatch_stats stats;
    fg_dispatch_stats_get(h->b.dispatch, &stats);
    return stats.stale_dropped;
}

static void first_token(heard *h, uint32_t peer, uint32_t attempt)
{
    fg_msg msg = { .kind = FG_MSG_FIRST, .request = h->id, .attempt = attempt };
    msg.first.id = 7;
    bench_give(&h->b, peer, &msg);
}

Test(dispatch_scores, come_in_order_and_before_the_first_token)
{
    heard h;
    open_asked(&h);
    uint32_t worker = worker_of(&h);
    cr_assert_eq(bench_sent(&h.b, worker, FG_MSG_PREFILL)->prefill.sampling.want_scores, 2u);
    say(&h, worker, 1, 1, 3);
    say(&h, worker, 1, 4, 5);
    first_token(&h, worker, 1);
    cr_assert(h.next == PROMPT && h.calls == 2 && h.b.token_count == 1);
    bench_close(&h.b);
}

Test(dispatch_scores, doubles_holes_and_strangers_are_dropped)
{
    static const struct {
        uint32_t attempt, first, count;
        bool stranger;
    } bad[] = {
        { 2, 4, 1, false }, /* another attempt */
        { 1, 5, 1, false }, /* a hole */
        { 1, 4, 6, false }, /* more than there are */
        { 1, 4, 1, true },  /* who decodes it */
    };
    heard h;
    open_asked(&h);
    uint32_t worker = worker_of(&h);
    say(&h, worker, 1, 1, 3);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        uint64_t before = stale(&h);
        say(&h, bad[i].stranger ? D : worker, bad[i].attempt, bad[i].first, bad[i].count);
        cr_assert(h.next == 4 && stale(&h) == before + 1, "case %zu", i);
    }
    say(&h, worker, 1, 2, 2); /* a double of a part */
    say(&h, worker, 1, 2, 4); /* and with more behind it */
    cr_assert(h.next == 6 && h.calls == 2);
    say(&h, worker, 1, 6, 3);
    first_token(&h, worker, 1);
    cr_assert_eq(h.b.token_count, 1u);
    say(&h, worker, 1, 1, 3); /* after the fact */
    cr_assert_eq(h.next, (uint32_t)PROMPT);
    bench_close(&h.b);
}

/* Of a lost worker's positions the next one tells only the rest; when all are known it is not asked. */
Test(dispatch_scores, another_attempt_tells_what_is_missing)
{
    for (uint32_t known = 0; known < PROMPT; known++) {
        heard h;
        open_asked(&h);
        uint32_t worker = worker_of(&h), other = worker == P ? Q : P;
        if (known > 0) {
            say(&h, worker, 1, 1, known);
        }
        h.b.sent_count = 0;
        fg_dispatch_on_down(h.b.dispatch, worker);
        fg_dispatch_tick(h.b.dispatch);
        bench_ticket(&h.b, h.id, 2);
        const fg_msg *again = bench_sent(&h.b, other, FG_MSG_PREFILL);
        cr_assert_not_null(again);
        bool all = known == PROMPT - 1;
        cr_assert_eq(again->prefill.sampling.want_scores, all ? 0u : 2u);
        if (!all) {
            say(&h, other, 2, 1, 5);
            say(&h, other, 2, 6, 3);
        }
        first_token(&h, other, 2);
        cr_assert(h.next == PROMPT && h.b.token_count == 1, "%u known", known);
        for (uint32_t i = 1; i < PROMPT; i++) {
            float by = (float)(i <= known ? worker : other) / 100;
            cr_assert(h.chosen[i] == -(float)i - by, "%u known: position %u", known, i);
        }
        bench_close(&h.b);
    }
}

Test(dispatch_scores, a_worker_that_leaves_some_out_has_failed)
{
    heard h;
    open_asked(&h);
    uint32_t worker = worker_of(&h);
    say(&h, worker, 1, 1, 3);
    first_token(&h, worker, 1);
    fg_dispatch_stats stats;
    fg_dispatch_stats_get(h.b.dispatch, &stats);
    cr_assert(h.b.token_count == 0 && h.b.end_count == 0 && stats.retried == 1);
    bench_close(&h.b);
}

/* A decode worker has no say in it. */
Test(dispatch_scores, a_first_token_without_what_comes_before_it_is_dropped)
{
    heard h;
    open_asked(&h);
    uint32_t worker = worker_of(&h);
    say(&h, worker, 1, 1, 3);
    uint64_t before = stale(&h);
    bench_token(&h.b, h.id, 0, 7);
    cr_assert(h.b.token_count == 0 && stale(&h) == before + 1);
    say(&h, worker, 1, 4, 5);
    first_token(&h, worker, 1);
    cr_assert(h.next == PROMPT && h.b.token_count == 1);
    bench_close(&h.b);
}

/* ---- embeddings ---- */

typedef struct embedded {
    bench b;
    uint32_t calls;
    float first;
    uint64_t id;
} embedded;

static void on_embedding(void *ctx, const float *embedding, uint32_t count)
{
    embedded *e = ctx;
    cr_assert(count == 4 && e->b.token_count == 0);
    e->first = embedding[0];
    e->calls++;
}

static void open_embedded(embedded *e)
{
    static const uint32_t tokens[PROMPT] = { 5, 6 };
    *e = (embedded){ .calls = 0 };
    bench_open(&e->b);
    bench_join_pair(&e->b);
    bench_join(&e->b, Q, "q", FG_ROLE_PREFILL);
    e->b.sent_count = 0;
    fg_dispatch_job job = { .tokens = tokens,
                            .token_count = PROMPT,
                            .params = { .top_p = 1, .max_tokens = 1, .want_embedding = true },
                            .sink = bench_sink(&e->b) };
    job.sink.ctx = e; /* the bench comes first in it */
    job.sink.on_embedding = on_embedding;
    cr_assert_eq(fg_dispatch_start(e->b.dispatch, &job, &e->id, NULL), FG_OK);
    bench_ticket(&e->b, e->id, 1);
}

static void give_first(embedded *e, uint32_t peer, uint32_t attempt, uint32_t count)
{
    const float embedding[4] = { (float)peer, 1, 2, 3 };
    fg_msg msg = { .kind = FG_MSG_FIRST, .request = e->id, .attempt = attempt };
    msg.first.id = 7;
    msg.first.embedding = embedding;
    msg.first.embedding_count = count;
    bench_give(&e->b, peer, &msg);
}

static uint32_t who_prefills(const embedded *e)
{
    return bench_sent(&e->b, P, FG_MSG_PREFILL) != NULL ? P : Q;
}

Test(dispatch_scores, an_embedding_comes_before_the_first_token)
{
    embedded e;
    open_embedded(&e);
    uint32_t worker = who_prefills(&e);
    cr_assert(bench_sent(&e.b, worker, FG_MSG_PREFILL)->prefill.sampling.want_embedding);
    give_first(&e, worker, 2, 4); /* another attempt */
    cr_assert_eq(e.calls, 0u);
    give_first(&e, worker, 1, 4);
    give_first(&e, worker, 1, 4); /* a double */
    cr_assert(e.calls == 1 && e.first == (float)worker && e.b.token_count == 1);
    bench_close(&e.b);
}

/* Whoever computes the prompt again says the same, and is heard where nobody was before. */
Test(dispatch_scores, an_embedding_is_told_once)
{
    for (int told = 0; told < 2; told++) {
        embedded e;
        open_embedded(&e);
        uint32_t worker = who_prefills(&e), other = worker == P ? Q : P;
        if (told) {
            give_first(&e, worker, 1, 4);
        }
        e.b.sent_count = 0;
        fg_dispatch_on_down(e.b.dispatch, worker);
        fg_dispatch_tick(e.b.dispatch);
        bench_ticket(&e.b, e.id, 2);
        cr_assert_not_null(bench_sent(&e.b, other, FG_MSG_PREFILL));
        give_first(&e, other, 2, 4);
        cr_assert(e.calls == 1 && e.first == (float)(told ? worker : other) && e.b.token_count == 1,
                  "told %d: %u calls", told, e.calls);
        bench_close(&e.b);
    }
}

Test(dispatch_scores, a_worker_that_leaves_the_embedding_out_has_failed)
{
    embedded e;
    open_embedded(&e);
    give_first(&e, who_prefills(&e), 1, 0);
    fg_dispatch_stats stats;
    fg_dispatch_stats_get(e.b.dispatch, &stats);
    cr_assert(e.b.token_count == 0 && e.b.end_count == 0 && stats.retried == 1 && e.calls == 0);
    bench_close(&e.b);
}

Test(dispatch_scores, a_first_token_before_the_embedding_is_dropped)
{
    embedded e;
    open_embedded(&e);
    bench_token(&e.b, e.id, 0, 7);
    cr_assert(e.b.token_count == 0 && e.b.end_count == 0);
    give_first(&e, who_prefills(&e), 1, 4);
    cr_assert(e.calls == 1 && e.b.token_count == 1);
    bench_close(&e.b);
}

/* What requests are expected to answer does not follow from those that answer nothing. */
Test(dispatch_scores, embeddings_teach_no_length_of_answers)
{
    embedded e;
    uint64_t id;
    fg_buf text;
    open_embedded(&e);
    uint32_t embeds = who_prefills(&e);
    fg_buf_init(&text, 0);
    give_first(&e, embeds, 1, 4);
    bench_done(&e.b, embeds, e.id, FG_FINISH_LENGTH, 1);
    e.b.sent_count = 0;
    e.b.token_count = 0; /* the next one counts its own */
    cr_assert_eq(bench_start(&e.b, 5, 2, &id), FG_OK);
    bench_ticket(&e.b, id, 1);
    uint32_t worker = bench_sent(&e.b, P, FG_MSG_PREFILL) != NULL ? P : Q;
    fg_msg msg = { .kind = FG_MSG_FIRST, .request = id, .attempt = 1 };
    bench_give(&e.b, worker, &msg);
    bench_token(&e.b, id, 1, 8);
    bench_done(&e.b, D, id, FG_FINISH_LENGTH, 2);
    cr_assert_eq(e.b.end_count, 2u);
    cr_assert(fg_dispatch_render_state(e.b.dispatch, &text));
    cr_assert_not_null(strstr(text.data, "\"mean_answer_tokens\":2.0"), "%s", text.data);
    fg_buf_deinit(&text);
    bench_close(&e.b);
}
