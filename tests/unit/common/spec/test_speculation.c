/* Speculation through an engine. decoder_run compares every round with plain decoding: tokens, digests of
 * the logits rows, number of blocks, and that no memory was taken. */
#include <string.h>

#include "common/base/rng.h"
#include "tests/unit/common/spec/decoder.h"

enum { TOTAL = 72 };

static const fg_sampling samplings[] = {
    { .top_p = 1.0f },
    { .temperature = 0.7f, .top_p = 1.0f, .seed = 21 },
    { .temperature = 1.1f, .top_p = 0.9f, .top_k = 40, .min_p = 0.02f, .seed = 22 },
};
enum { SAMPLINGS = sizeof samplings / sizeof samplings[0] };

static void on_each(void (*fn)(world *w))
{
    for (int kind = 0; kind < WORLD_KINDS; kind++) {
        static world w;
        if (world_open(&w, kind)) {
            fn(&w);
            world_close(&w);
        }
    }
}

/* A sequence with what plain decoding gives for it. */
static void make(world *w, decoder_seq *seq, plain *p, uint32_t prompt, fg_sampling sampling)
{
    decoder_init(w, seq, prompt, TOTAL);
    seq->sampling = sampling;
    decoder_plain(w, seq, p);
    seq->plain = p;
}

static uint32_t left_to_emit(const decoder_seq *seq)
{
    return seq->total - seq->prompt_count - 1;
}

static void every_draft(world *w)
{
    static const uint32_t fixed[] = { 0, 1, 3, FG_LOOKAHEAD_MAX };
    for (uint32_t s = 0; s < SAMPLINGS; s++) {
        static decoder_seq fresh;
        static plain p;
        make(w, &fresh, &p, s, samplings[s]);
        mixture even = { .state = 77 + s, .right_of_100 = 60 };
        const drafter drafters[] = { draft_nothing(), draft_ngram(), draft_oracle(),
                                     draft_adversary(), draft_mixture(&even) };
        for (size_t d = 0; d < sizeof drafters / sizeof drafters[0]; d++) {
            for (uint32_t f = 0; f < sizeof fixed / sizeof fixed[0]; f++) {
                static decoder_seq seq;
                seq = fresh;
                fg_table_init(&seq.table, seq.blocks, WORLD_SEQ_BLOCKS, WORLD_BLOCK_SIZE);
                seq.drafter = drafters[d];
                seq.lookahead.fixed = fixed[f];
                uint64_t before = w->forwards;
                uint32_t steps = decoder_run(w, &seq, 1);
                cr_assert_eq(seq.count, TOTAL, "%s: drafter %zu, %u ahead", w->name, d, fixed[f]);
                cr_assert_eq(steps, seq.rounds, "one forward for each round");
                cr_assert_eq(w->forwards - before, steps + 1, "and one for the prompt");
                cr_assert_eq(seq.rounds + seq.accepted, left_to_emit(&seq),
                             "a round emits what it accepts and one token more");
            }
        }
    }
}

Test(speculation, speculative_output_matches_plain_target_decoding)
{
    on_each(every_draft);
}

static void all_wrong(world *w)
{
    for (uint32_t s = 0; s < SAMPLINGS; s++) {
        static decoder_seq seq;
        static plain p;
        make(w, &seq, &p, 10 + s, samplings[s]);
        seq.drafter = draft_adversary();
        decoder_run(w, &seq, 1);
        cr_assert_eq(seq.accepted, 0);
        cr_assert_eq(seq.rounds, left_to_emit(&seq), "one token of the target's per round");
        cr_assert_eq(seq.rejections, seq.rounds - 1, "the last round has room for no draft");
        cr_assert(seq.blocks_returned > 0, "drafts reached into blocks that were given back");
        cr_assert_eq(seq.drafts_max, FG_LOOKAHEAD_DEFAULT);
        cr_assert_eq(fg_lookahead_next(&seq.lookahead, 100), 1, "the draft is trusted no more");
    }
}

Test(speculation, rejection_falls_back_to_a_target_token)
{
    on_each(all_wrong);
}

static void all_right(world *w)
{
    for (uint32_t fixed = 0; fixed <= FG_LOOKAHEAD_MAX; fixed++) {
        static decoder_seq seq;
        static plain p;
        make(w, &seq, &p, 20, samplings[fixed % SAMPLINGS]);
        seq.drafter = draft_oracle();
        seq.lookahead.fixed = fixed;
        decoder_run(w, &seq, 1);
        uint32_t tokens = left_to_emit(&seq);
        cr_assert_eq(seq.rejections, 0);
        cr_assert_eq(seq.accepted, seq.drafted);
        cr_assert_eq(seq.rounds + seq.accepted, tokens, "a bonus token in each round");
        if (fixed > 0) {
            cr_assert_eq(seq.rounds, (tokens + fixed) / (fixed + 1), "%u tokens a round",
                         fixed + 1);
        } else {
            cr_assert_eq(seq.drafts_max, FG_LOOKAHEAD_MAX, "the draft is trusted fully");
            cr_assert_eq(seq.rounds, 1 + (tokens - 5 + 8) / 9, "5 tokens, then 9 a round");
        }
        cr_assert(seq.full_rounds + 1 >= seq.rounds, "only the last may have no draft");
    }
}

Test(speculation, full_acceptance_emits_bonus_token)
{
    on_each(all_right);
}

static double rate(const decoder_seq *seq)
{
    return (double)seq->accepted / (seq->accepted + seq->rejections);
}

/* Target and draft are the same model, each with its own cache. */
static void drafted_by_itself(int kind, fg_sampling sampling, double least, double most)
{
    static world target, draft;
    if (!world_open(&target, kind) || !world_open(&draft, kind)) {
        return;
    }
    static decoder_seq seq;
    static plain p;
    model_draft m;
    model_draft_open(&m, &draft);
    make(&target, &seq, &p, 3, sampling);
    seq.drafter = draft_model(&m);
    uint64_t before = target.forwards;
    decoder_run(&target, &seq, 1);
    cr_log_info("%s drafts for itself, temperature %.1f: %.2f accepted, %u rounds for %u tokens",
                target.name, (double)sampling.temperature, rate(&seq), seq.rounds,
                left_to_emit(&seq));
    cr_assert_eq(target.forwards - before, seq.rounds + 1);
    cr_assert(rate(&seq) >= least && rate(&seq) <= most, "%s: %.2f", target.name, rate(&seq));
    model_draft_close(&m);
    world_close(&target);
    world_close(&draft);
}

static void mostly_right(world *w)
{
    static const uint32_t percents[] = { 50, 75, 90 };
    for (uint32_t i = 0; i < 3; i++) {
        static decoder_seq seqs[WORLD_SEQS];
        static plain plains[WORLD_SEQS];
        mixture m = { .state = 5, .right_of_100 = percents[i] };
        uint32_t accepted = 0, looked = 0;
        for (uint32_t s = 0; s < WORLD_SEQS; s++) {
            make(w, &seqs[s], &plains[s], 30 + s, samplings[s % SAMPLINGS]);
            seqs[s].drafter = draft_mixture(&m);
        }
        uint32_t steps = decoder_run(w, seqs, WORLD_SEQS);
        for (uint32_t s = 0; s < WORLD_SEQS; s++) {
            accepted += seqs[s].accepted;
            looked += seqs[s].accepted + seqs[s].rejections;
            cr_assert(seqs[s].rounds <= steps);
        }
        double got = (double)accepted / looked, want = percents[i] / 100.0;
        cr_assert(got > want - 0.12 && got < want + 0.12, "%s: %.2f of %.2f", w->name, got, want);
    }
}

Test(speculation, a_good_draft_yields_a_high_acceptance_rate)
{
    for (int kind = 0; kind < WORLD_KINDS; kind++) {
        drafted_by_itself(kind, samplings[0], 1.0, 1.0);
    }
    /* The most likely token is not always the one drawn. */
    drafted_by_itself(WORLD_STORIES, samplings[1], 0.3, 0.95);
    on_each(mostly_right);
}

/* Rounds for eight stories, whose prompts are told once, or begin a second time. */
static uint32_t ngram_rounds(world *w, bool twice)
{
    static decoder_seq seqs[WORLD_SEQS];
    static plain plains[WORLD_SEQS];
    uint32_t rounds = 0, accepted = 0, looked = 0;
    for (uint32_t i = 0; i < WORLD_SEQS; i++) {
        decoder_seq *seq = &seqs[i];
        decoder_init(w, seq, i % 4, WORLD_TOKENS);
        uint32_t once = seq->count - 1; /* without the token that begins a text */
        while (twice && seq->count < 2 * once - 3) {
            seq->tokens[seq->count] = seq->tokens[seq->count - once];
            seq->count++;
        }
        seq->prompt_count = seq->count;
        seq->total = seq->count + 28;
        seq->sampling.temperature = 0.6f * (float)(1 + i / 4);
        decoder_plain(w, seq, &plains[i]);
        seq->plain = &plains[i];
        seq->drafter = draft_ngram();
    }
    decoder_run(w, seqs, WORLD_SEQS);
    for (uint32_t i = 0; i < WORLD_SEQS; i++) {
        rounds += seqs[i].rounds;
        accepted += seqs[i].accepted;
        looked += seqs[i].accepted + seqs[i].rejections;
    }
    cr_log_info("n-gram drafts, prompt %s: %u rounds for %u tokens, %u of %u accepted",
                twice ? "repeated" : "told once", rounds, 27 * WORLD_SEQS, accepted, looked);
    return rounds;
}

Test(speculation, ngram_drafts_win_on_copy_heavy_prompts)
{
    static world w;
    if (!world_open(&w, WORLD_STORIES)) {
        cr_skip("FORGE_CORPUS is not set\n");
    }
    uint32_t once = ngram_rounds(&w, false), twice = ngram_rounds(&w, true);
    cr_assert(twice + 10 < once, "%u rounds, %u", twice, once);
    world_close(&w);
}

/* Eight sequences that differ in everything, in one batch. */
static void make_batch(world *w, decoder_seq *seqs, plain *plains, mixture *mixtures)
{
    for (uint32_t i = 0; i < WORLD_SEQS; i++) {
        fg_sampling sampling = samplings[i % SAMPLINGS];
        sampling.seed += i;
        decoder_init(w, &seqs[i], i, TOTAL - 3 * i);
        seqs[i].sampling = sampling;
        seqs[i].choice = i / 2;
        decoder_plain(w, &seqs[i], &plains[i]);
        seqs[i].plain = &plains[i];
        mixtures[i] = (mixture){ .state = i, .right_of_100 = 10 * i + 25 };
        const drafter drafters[] = { draft_mixture(&mixtures[i]), draft_nothing(), draft_oracle(),
                                     draft_ngram(), draft_adversary() };
        seqs[i].drafter = drafters[i % 5];
        seqs[i].lookahead.fixed = i < 2 ? 0 : i + 1;
    }
}

static void batch_of_eight(world *w)
{
    static decoder_seq seqs[WORLD_SEQS];
    static plain plains[WORLD_SEQS];
    mixture mixtures[WORLD_SEQS];
    make_batch(w, seqs, plains, mixtures);
    uint64_t before = w->forwards;
    uint32_t steps = decoder_run(w, seqs, WORLD_SEQS);
    uint32_t most = 0;
    for (uint32_t i = 0; i < WORLD_SEQS; i++) {
        cr_assert_eq(seqs[i].count, seqs[i].total);
        most = seqs[i].rounds > most ? seqs[i].rounds : most;
    }
    cr_assert_eq(steps, most, "one forward for the rounds of all");
    cr_assert_eq(w->forwards - before, steps + 1);
}

Test(speculation, a_batch_with_mixed_lookahead_equals_plain_decoding)
{
    on_each(batch_of_eight);
}

typedef struct one_end {
    uint32_t token;
} one_end;

static bool is_that(void *ctx, uint32_t token)
{
    return token == ((const one_end *)ctx)->token;
}

static uint32_t first_of(const plain *p, uint32_t from, uint32_t token)
{
    while (from < TOTAL && p->tokens[from] != token) {
        from++;
    }
    return from;
}

/* Any token may be the one that ends: with an oracle it lies inside the accepted run, at its end, or is
 * the bonus; with an adversary it is the correction. */
static void ends_everywhere(world *w)
{
    static decoder_seq fresh, seq;
    static plain p;
    uint32_t cut = 0, bonus = 0;
    make(w, &fresh, &p, 41, samplings[1]);
    for (uint32_t at = fresh.prompt_count; at < TOTAL; at += 3) {
        for (int right = 0; right < 2; right++) {
            one_end end = { .token = p.tokens[at] };
            seq = fresh;
            fg_table_init(&seq.table, seq.blocks, WORLD_SEQ_BLOCKS, WORLD_BLOCK_SIZE);
            seq.drafter = right == 1 ? draft_oracle() : draft_adversary();
            seq.lookahead.fixed = 5;
            seq.ends = (fg_ends){ .is_end = is_that, .ctx = &end };
            decoder_run(w, &seq, 1);
            uint32_t last = first_of(&p, seq.prompt_count, end.token);
            cr_assert(seq.ended);
            cr_assert_eq(seq.count, last + 1, "%s: ended at %u, not %u", w->name, seq.count, last);
            cut += seq.cut_rounds;
            bonus += seq.full_rounds > 0 && (last - seq.prompt_count) % 6 == 0;
        }
    }
    cr_assert(cut > 0, "%s: an end token inside an accepted run", w->name);
    cr_assert(bonus > 0, "%s: an end token as bonus", w->name);
}

Test(speculation, an_end_token_in_the_accepted_run_or_as_bonus_stops)
{
    on_each(ends_everywhere);
}
