/* Asks of a draft model: at the end of a step the engine lets it guess what follows the tokens that the step has chosen
 * (engine/drafter.h), for those sequences and as many tokens as are worth it (sched/asking.h). The guesses come with the
 * step, so they are there before the next one is planned, and are judged like any others (worker_draft.c). */
#include "common/worker/worker_internal.h"

/* An answer is expected to go on for so many tokens at least. */
enum { LIKELY_LEFT_MIN = 16 };
/* Where the number of guesses is fixed, what the draft model may catch up with in a step. */
enum { CATCH_UP_TOKENS = 256 };

void fg_worker_forget_draft(fg_worker *worker, fg_seq *seq)
{
    if (seq->draft.place > 0) {
        worker->places[seq->draft.place - 1] = false;
    }
    seq->draft.place = seq->draft.known = seq->draft.count = 0;
}

/* The lowest that is free, so that one sequence after the other has the same: the next turn of a talk finds its
 * beginning there. False: none is, as sequences that have just ended may still be in a step. */
static bool take_place(fg_worker *worker, fg_seq *seq)
{
    for (uint32_t i = 0; seq->draft.place == 0 && i < worker->item_max; i++) {
        if (!worker->places[i]) {
            worker->places[i] = true;
            seq->draft.place = i + 1;
        }
    }
    return seq->draft.place > 0;
}

/* What the text says, or an earlier worker has said, is likelier to be right, and costs nothing. */
static bool has_better(const fg_worker *worker, const fg_seq *seq)
{
    if (seq->guess_count == 0 || seq->guess_run == FG_RUN_DRAFT) {
        return false;
    }
    return seq->guess_run == FG_RUN_SAID || fg_odds_of(&seq->odds, seq->guess_run) >=
                                                fg_asking_odds(&worker->asking, seq->draft.record);
}

/* How many guesses may follow what its item chooses. */
static uint32_t limit_of(const fg_worker *worker, const fg_seq *seq, const fg_step_seq *item)
{
    const fg_sched_limits *limits = &worker->options.limits;
    if (!item->sample || seq->side == FG_SIDE_SENDER || seq->plain ||
        item->first_position < seq->prompt_count || limits->chunk_tokens_max < 2 ||
        has_better(worker, seq)) {
        return 0;
    }
    /* Known tokens if its own guesses are right; a step that is to end the answer needs no others. */
    uint32_t most = item->first_position + item->token_count + 2;
    uint32_t end = seq->token_max < worker->options.draft_context ? seq->token_max
                                                                  : worker->options.draft_context;
    uint32_t left = end > most ? end - most : 0;
    return left < limits->draft_max ? left : limits->draft_max;
}

static void describe(const fg_worker *worker, const fg_seq *seq, const fg_step_seq *item,
                     fg_asking_seq *out)
{
    uint32_t generated = fg_seq_generated(seq), left = seq->token_max - seq->token_count;
    uint32_t likely = generated > LIKELY_LEFT_MIN ? generated : LIKELY_LEFT_MIN;
    uint32_t known = item->first_position + 2; /* at least */
    *out = (fg_asking_seq){ .record = seq->draft.record,
                            .limit = limit_of(worker, seq, item),
                            .behind = known > seq->draft.known ? known - seq->draft.known : 0,
                            .slots = known,
                            .likely_left = likely < left ? likely : left };
}

static void want_fixed(const fg_worker *worker, const fg_seq *seq, fg_asking_seq *asking)
{
    fg_lookahead lookahead = seq->lookahead;
    const fg_sched_limits *limits = &worker->options.limits;
    lookahead.fixed = limits->draft == FG_DRAFT_ADAPTIVE ? 0 : limits->draft_max;
    uint32_t most = fg_lookahead_next(&lookahead, asking->limit + 1);
    asking->wanted = most < asking->limit ? most : asking->limit;
}

void fg_worker_ask(fg_worker *worker)
{
    fg_worker_frame *frame = worker->building;
    fg_step *step = &frame->step;
    uint32_t count = 0;
    if (worker->options.draft_context == 0 || worker->options.limits.draft_max == 0) {
        return;
    }
    for (uint32_t i = 0; i < step->seq_count; i++) {
        fg_seq *seq = frame->item_seqs[i];
        if (frame->items[i].first_position >= seq->prompt_count && frame->items[i].sample) {
            fg_asking_seq *asking = &worker->asking_seqs[count];
            describe(worker, seq, &frame->items[i], asking);
            want_fixed(worker, seq, asking);
            frame->ask_seqs[count] = seq;
            frame->asks[count++].item = i;
        }
    }
    fg_asking_plan plan = { .catch_up_max = CATCH_UP_TOKENS };
    if (worker->options.limits.draft == FG_DRAFT_PAYS) {
        plan = fg_asking_choose(&worker->asking, &worker->cost, worker->asking_seqs, count);
    }
    for (uint32_t i = 0; i < count; i++) {
        fg_seq *seq = frame->ask_seqs[i];
        uint32_t wanted = worker->asking_seqs[i].wanted, at = step->ask_count;
        if (wanted == 0 || !take_place(worker, seq)) {
            continue;
        }
        frame->ask_seqs[at] = seq;
        frame->asks[at] = (fg_step_ask){ .item = frame->asks[i].item,
                                         .place = seq->draft.place - 1,
                                         .wanted = wanted,
                                         .guesses_out = seq->draft.guesses };
        step->ask_count++;
    }
    step->catch_up_max = plan.catch_up_max;
    frame->is_trial = plan.is_trial;
    worker->drafting += step->ask_count;
}

void fg_worker_book_asks(fg_worker *worker, const fg_worker_frame *frame)
{
    const fg_step *step = &frame->step;
    const fg_step_drafted *drafted = &step->drafted_out;
    worker->drafting -= step->ask_count;
    for (uint32_t i = 0; i < step->ask_count; i++) {
        fg_seq_draft *draft = &frame->ask_seqs[i]->draft;
        if (draft->place == step->asks[i].place + 1) { /* else it was forgotten meanwhile */
            draft->known = step->asks[i].known_out;
            draft->count = step->asks[i].count_out;
        }
    }
    worker->stats.draft_ns += drafted->ns;
    worker->stats.draft_steps += drafted->steps;
    worker->stats.draft_caught_tokens += drafted->caught;
    fg_asking_did did = { .step_ns = step->compute_ns_out,
                          .ns = drafted->ns,
                          .catch_ns = drafted->catch_ns,
                          .steps = drafted->steps,
                          .rows = drafted->rows,
                          .caught = drafted->caught,
                          .was_trial = frame->is_trial };
    if (worker->options.draft_context > 0) {
        fg_asking_learn(&worker->asking, &did);
    }
}
