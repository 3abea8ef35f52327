/* Speculation in a worker's steps: what may follow a sequence's last token is looked up in its own text, and computed with
 * it, so that one step can bring several tokens. A guess stays only where it is the token that the step chose, so no answer
 * shows any of this. Or a draft model was asked (worker_ask.c), whose guesses are taken where they are right more often. What always holds between steps: `guess_count` tokens behind the known ones may follow them, and no
 * guess is an end token. */
#include "common/worker/worker_internal.h"

#include <string.h>

#include "common/spec/verdict.h"
#include "common/worker/worker_records.h"

/* Runs that are looked up. How much a short one says is judged by its odds. */
static const fg_ngram_runs runs = { .min = 1, .max = FG_NGRAM_MAX };
/* Tokens that are looked through, the last ones, for every token chosen: 0.3 ns each, 4 where nearly all begin a run. */
enum { LOOK_BACK_MAX = 1 << 15 };

/* One more than a step may have: the first of them may be chosen before the others can be computed. */
static uint32_t guesses_max(const fg_worker *worker, const fg_seq *seq)
{
    const fg_sched_limits *limits = &worker->options.limits;
    uint32_t left = seq->token_max - seq->token_count;
    /* A sender's answer goes on elsewhere. */
    if (limits->draft_max == 0 || limits->chunk_tokens_max < 2 || seq->plain || left < 2 ||
        seq->side == FG_SIDE_SENDER || seq->finish != FG_FINISH_NONE) {
        return 0;
    }
    return limits->draft_max + 1 < left ? limits->draft_max + 1 : left;
}

/* What an earlier worker said next, if all so far was what it said. */
static uint32_t said(fg_seq *seq, uint32_t most, uint32_t *guesses)
{
    uint32_t at = fg_seq_generated(seq);
    if (at > 0 && at <= seq->said_count && seq->said[at - 1] != guesses[-1]) {
        seq->said_count = 0;
    }
    uint32_t left = seq->said_count > at ? seq->said_count - at : 0;
    uint32_t count = left < most ? left : most;
    if (count > 0) {
        memcpy(guesses, seq->said + at, count * sizeof *guesses);
    }
    return count;
}

/* What its text says, if that is to be asked and says more than the draft model does. */
static uint32_t look_up(const fg_worker *worker, fg_seq *seq, uint32_t drafted, uint32_t most,
                        uint32_t *guesses)
{
    uint32_t back = seq->token_count < LOOK_BACK_MAX ? seq->token_count : LOOK_BACK_MAX;
    uint32_t count = worker->options.draft_alone ? 0
                                                 : fg_ngram_draft(guesses - back, back, runs, most,
                                                                  guesses, &seq->guess_run);
    drafted = drafted < most ? drafted : most;
    if (drafted > 0 && (count == 0 || fg_odds_of(&seq->odds, seq->guess_run) <
                                          fg_asking_odds(&worker->asking, seq->draft.record))) {
        memcpy(guesses, seq->draft.guesses, drafted * sizeof *guesses);
        seq->guess_run = FG_RUN_DRAFT;
        count = drafted;
    }
    return count;
}

static void guess(const fg_worker *worker, fg_seq *seq, const fg_work_guess *told)
{
    uint32_t most = guesses_max(worker, seq);
    uint32_t *guesses = seq->tokens + seq->token_count;
    uint32_t drafted = seq->draft.count;
    seq->guess_count = seq->guess_run = seq->draft.count = 0;
    if (most == 0) {
        return;
    }
    if (told != NULL) {
        bool sound = told->run > 0 && told->run <= FG_RUN_DRAFT && told->count <= most;
        seq->guess_count = sound ? told->count : 0;
        seq->guess_run = sound ? told->run : 0;
        memset(guesses, 0, seq->guess_count * sizeof *guesses);
        return;
    }
    uint32_t count = said(seq, most, guesses);
    if (count > 0) {
        seq->guess_run = FG_RUN_SAID;
    } else {
        count = look_up(worker, seq, drafted, most, guesses);
    }
    while (seq->guess_count < count &&
           !worker->options.is_end(worker->options.ctx, guesses[seq->guess_count])) {
        seq->guess_count++;
    }
}

void fg_worker_guess(fg_worker *worker, fg_seq *const *seqs, uint32_t count)
{
    if (worker->options.limits.draft_max == 0) {
        return;
    }
    const fg_work_guess *told = fg_worker_told_guesses(worker, count);
    bool any = false;
    for (uint32_t i = 0; i < count; i++) {
        guess(worker, seqs[i], told != NULL ? &told[i] : NULL);
        worker->guesses[i] = (fg_work_guess){ .count = (uint8_t)seqs[i]->guess_count,
                                              .run = (uint8_t)seqs[i]->guess_run };
        any = any || seqs[i]->guess_count > 0;
    }
    if (any) {
        fg_flight_note(worker->options.flight, FG_WORK_GUESS, worker->guesses,
                       count * sizeof *worker->guesses);
    }
}

/* Of the guess behind so many others. */
static uint32_t odds_of(const fg_worker *worker, const fg_seq *seq, uint32_t behind)
{
    switch (seq->guess_run) {
    case FG_RUN_SAID:
        return FG_ODDS_ONE;
    case FG_RUN_DRAFT:
        return fg_asking_odds(&worker->asking, seq->draft.record);
    default:
        return fg_odds_of(&seq->odds, seq->guess_run + behind);
    }
}

static void note_odds(fg_worker *worker, fg_seq *seq, uint32_t behind, bool right)
{
    if (seq->guess_run == FG_RUN_DRAFT) {
        fg_asking_note(&worker->asking, &seq->draft.record, right);
    } else if (seq->guess_run != FG_RUN_SAID) { /* that tells nothing of the text */
        fg_odds_note(&seq->odds, seq->guess_run + behind, right);
    }
}

void fg_worker_offer_drafts(const fg_worker *worker, const fg_seq *seq, fg_sched_seq *out)
{
    const fg_sched_limits *limits = &worker->options.limits;
    uint32_t known = seq->token_count + seq->pending;
    uint32_t guesses = seq->guess_count > seq->pending ? seq->guess_count - seq->pending : 0;
    fg_lookahead lookahead = seq->lookahead;
    if (guesses == 0 || seq->plain || known >= seq->token_max) {
        return;
    }
    lookahead.fixed = limits->draft == FG_DRAFT_ADAPTIVE ? 0 : limits->draft_max;
    uint32_t most = fg_lookahead_next(&lookahead, seq->token_max - known);
    most = most < limits->draft_max ? most : limits->draft_max;
    out->drafts = guesses < most ? guesses : most;
    uint32_t odds = seq->pending > 0 ? odds_of(worker, seq, 0) : FG_ODDS_ONE;
    for (uint32_t i = 0; i < out->drafts; i++) {
        odds = odds * odds_of(worker, seq, seq->pending + i) / FG_ODDS_ONE;
        out->odds[i] = (uint16_t)odds;
    }
}

uint32_t fg_worker_fit_drafts(fg_worker *worker, fg_seq *seq, uint32_t after, uint32_t count)
{
    uint32_t blocks = fg_kv_blocks_for(after + count, seq->table.block_size);
    bool fits = fg_staging_room(worker->staging) >= blocks &&
                fg_table_grow(&seq->table, worker->pool, after + count, NULL) == FG_OK;
    return fits ? count : 0;
}

void fg_worker_add_drafts(fg_worker *worker, fg_seq *seq, fg_step_seq *item, uint32_t count)
{
    if (count == 0) {
        return;
    }
    FG_ASSERT(item->tokens + item->token_count == seq->tokens + seq->token_count &&
              count <= seq->guess_count && seq->pending == 0);
    item->token_count += count;
    item->sample_rows = count + 1;
    item->tokens_out = seq->choices;
    item->digests_out = item->want_digest ? seq->choice_digests : NULL;
    item->want_digest = false;
    seq->drafted = count;
    worker->drafting++;
    worker->stats.drafts++;
    worker->stats.drafted_tokens += count;
    worker->stats.model_drafted_tokens += seq->guess_run == FG_RUN_DRAFT ? count : 0;
}

void fg_worker_note_guess(fg_worker *worker, fg_seq *seq, uint32_t token)
{
    if (seq->guess_count > 0) {
        bool right = token == seq->tokens[seq->token_count];
        fg_lookahead_note_seen(&seq->lookahead, right);
        note_odds(worker, seq, 0, right);
    }
}

static fg_verdict verdict_of(const fg_seq *seq)
{
    static const fg_ends none = { .is_end = NULL }; /* no guess is one */
    return fg_verdict_exact(seq->tokens + seq->token_count, seq->drafted, seq->choices, &none);
}

uint32_t fg_worker_accepted(const fg_seq *seq)
{
    return verdict_of(seq).accepted;
}

static void note_verdict(fg_worker *worker, fg_seq *seq, const fg_verdict *verdict)
{
    fg_lookahead_note(&seq->lookahead, verdict);
    for (uint32_t i = 0; i < verdict->accepted; i++) {
        note_odds(worker, seq, i, true);
    }
    if (verdict->rejected) {
        note_odds(worker, seq, verdict->accepted, false);
    }
}

/* Blocks that hold nothing but guesses that were wrong. */
static void roll_back(fg_worker *worker, fg_seq *seq)
{
    uint32_t had = seq->table.count;
    fg_worker_shrink(worker, seq, fg_kv_blocks_for(seq->planned, seq->table.block_size));
    if (worker->options.limits.admission == FG_ADMIT_NO_EVICT && seq->table.count < had) {
        /* They were set aside for it, and are again. */
        uint32_t more =
            fg_worker_blocks_aside(worker, seq) - seq->table.count - seq->table.promised;
        fg_status status = fg_pool_promise(worker->pool, more);
        FG_ASSERT(status == FG_OK, "req %llx: %u blocks that were just given back are gone",
                  (unsigned long long)seq->request, more);
        seq->table.promised += more;
    }
}

uint32_t fg_worker_settle_drafts(fg_worker *worker, fg_seq *seq, const fg_step_seq *item)
{
    fg_verdict verdict = verdict_of(seq);
    uint32_t wrong = item->token_count - 1 - verdict.accepted;
    if (item->broken_out) {
        seq->plain = true; /* the token before the guesses goes again, alone */
        wrong = item->token_count;
        verdict = (fg_verdict){ 0 };
    } else {
        note_verdict(worker, seq, &verdict);
        worker->stats.accepted_tokens += verdict.accepted;
        worker->stats.model_accepted_tokens +=
            seq->guess_run == FG_RUN_DRAFT ? verdict.accepted : 0;
    }
    seq->computed = seq->planned = seq->planned - wrong;
    seq->drafted = seq->guess_count = 0;
    roll_back(worker, seq);
    return verdict.emitted;
}
