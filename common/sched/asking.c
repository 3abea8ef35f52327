#include "common/sched/asking.h"

#include <math.h>

enum {
    /* Guesses that a sequence's own record is weighed against, as many as these of all sequences' record. */
    OTHERS_WEIGHT = 8,
    /* Before anybody has shown anything: three in five are right. */
    PRIOR_SEEN = 10,
    PRIOR_RIGHT = 6,
    SEQ_SEEN_MAX = 64, /* counts are halved then */
    ALL_SEEN_MAX = 256,
    ROWS_MAX = 64, /* guesses of a step that are weighed */
    CATCH_UP_MIN = 16,
    CATCH_UP_MAX = 4096,
};
/* What is asked for is to be worth more than this: a step behind such a one can't be planned while it runs. */
#define GAIN_MIN 1.03
/* Of a step's time, what catching up may add to it. */
#define CATCH_UP_SHARE 0.5
/* Of all time, what goes into guesses that are not expected to pay; of the time since the last of them; what is saved for
 * them (a long text is to be caught up with first), and what there is before anything is known. */
#define TRIAL_SHARE    0.01
#define TRIAL_PACE     0.05
#define TRIAL_MAX_NS   1e9
#define TRIAL_FIRST_NS 50e6

void fg_asking_init(fg_asking *asking)
{
    *asking = (fg_asking){ .credit_ns = TRIAL_FIRST_NS, .quiet_ns = TRIAL_MAX_NS };
    fg_cost_init(&asking->cost, 0);
}

uint32_t fg_asking_odds(const fg_asking *asking, fg_asking_record record)
{
    const fg_asking_record *all = &asking->record;
    double others = (double)(all->right + PRIOR_RIGHT) / (all->seen + PRIOR_SEEN);
    double odds = (record.right + others * OTHERS_WEIGHT) / (record.seen + OTHERS_WEIGHT);
    return (uint32_t)(odds * FG_ODDS_ONE);
}

static void note(fg_asking_record *record, bool right, uint32_t seen_max)
{
    if (record->seen >= seen_max) {
        record->seen /= 2;
        record->right /= 2;
    }
    record->seen++;
    record->right += right;
}

void fg_asking_note(fg_asking *asking, fg_asking_record *record, bool right)
{
    note(record, right, SEQ_SEEN_MAX);
    note(&asking->record, right, ALL_SEEN_MAX);
}

static double step_ns(const fg_asking *asking, uint32_t rows)
{
    return fg_cost_predict(&asking->cost, &(fg_cost_step){ .decode_rows = rows });
}

static double catch_up_ns(const fg_asking *asking, uint32_t tokens)
{
    return tokens == 0
               ? 0
               : fg_cost_predict(&asking->cost, &(fg_cost_step){ .prefill_tokens = tokens });
}

/* Guesses of a step, the likeliest first, and what comes of them. */
typedef struct weighed {
    const fg_asking *asking;
    fg_asking_seq *seqs;
    uint32_t count;
    uint32_t depths[FG_LOOKAHEAD_MAX]; /* sequences that have so many guesses, and one more */
    double tokens;
    uint64_t kv_tokens;
} weighed;

/* False: nobody could have another one. */
static bool add_likeliest(weighed *w)
{
    fg_asking_seq *best = NULL;
    double best_odds = 0;
    for (uint32_t i = 0; i < w->count; i++) {
        fg_asking_seq *seq = &w->seqs[i];
        if (seq->wanted < seq->limit && seq->next > best_odds) {
            best = seq;
            best_odds = seq->next;
        }
    }
    if (best == NULL) {
        return false;
    }
    best->next *= best->each;
    w->depths[best->wanted++]++;
    w->tokens += best_odds;
    w->kv_tokens += best->slots;
    return true;
}

static double drafting_ns(const weighed *w)
{
    double ns = 0;
    for (uint32_t depth = 0; depth < FG_LOOKAHEAD_MAX && w->depths[depth] > 0; depth++) {
        ns += step_ns(w->asking, w->depths[depth]);
    }
    return ns;
}

static weighed begin(const fg_asking *asking, fg_asking_seq *seqs, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        seqs[i].wanted = 0;
        seqs[i].each = (double)fg_asking_odds(asking, seqs[i].record) / FG_ODDS_ONE;
        seqs[i].next = seqs[i].each;
    }
    return (weighed){ .asking = asking, .seqs = seqs, .count = count, .tokens = count };
}

/* Sets what makes a token cheapest, and returns the ns that each is cheaper by; 0: nothing is. */
static double weigh(const fg_asking *asking, const fg_cost *target, fg_asking_seq *seqs,
                    uint32_t count)
{
    fg_cost_step plain = { .decode_rows = count };
    for (uint32_t i = 0; i < count; i++) {
        plain.kv_tokens += seqs[i].slots;
    }
    double alone = fg_cost_rows_at_least(target, &plain, 0, 0) / count;
    double least = alone / GAIN_MIN;
    uint32_t best = 0;
    weighed w = begin(asking, seqs, count);
    for (uint32_t rows = 1; rows <= ROWS_MAX && add_likeliest(&w); rows++) {
        double ns = fg_cost_rows_at_least(target, &plain, rows, w.kv_tokens) + drafting_ns(&w);
        if (ns / w.tokens < least) {
            least = ns / w.tokens;
            best = rows;
        }
    }
    w = begin(asking, seqs, count);
    for (; best > 0; best--) {
        add_likeliest(&w);
    }
    return w.tokens > count ? alone - least : 0;
}

/* Whether what the sequence is behind comes back while its answer goes on. */
static bool is_worth_catching_up(const fg_asking *asking, const fg_asking_seq *seq, double gain_ns)
{
    return seq->behind <= FG_ASKING_NEAR ||
           catch_up_ns(asking, seq->behind) < gain_ns * seq->likely_left;
}

/* A single guess of somebody who has none, where there is credit for it: returns the ns that it is expected to take now.
 * Whoever is far behind is caught up with `piece` tokens at a time. */
static double try_one(fg_asking *asking, fg_asking_seq *seqs, uint32_t count, uint32_t piece)
{
    for (uint32_t i = 0; i < count; i++) {
        fg_asking_seq *seq = &seqs[(asking->turn + i) % count];
        uint32_t far = seq->behind > FG_ASKING_NEAR ? seq->behind : 0;
        double ns = catch_up_ns(asking, far < piece ? far : piece) + step_ns(asking, 1);
        if (seq->wanted == 0 && seq->limit > 0 && ns <= asking->quiet_ns * TRIAL_PACE &&
            catch_up_ns(asking, far) + step_ns(asking, 1) <= asking->credit_ns) {
            seq->wanted = 1;
            asking->turn += i + 1;
            asking->quiet_ns = 0;
            return ns;
        }
    }
    return 0;
}

/* Tokens that those who are far behind are caught up with in a step; 0: nobody is. */
static uint32_t piece_of(const fg_asking *asking, const fg_cost *target, const fg_asking_seq *seqs,
                         uint32_t count)
{
    fg_cost_step plain = { .decode_rows = count };
    bool any = false;
    for (uint32_t i = 0; i < count; i++) {
        plain.kv_tokens += seqs[i].slots;
        any = any || seqs[i].behind > FG_ASKING_NEAR;
    }
    if (!any) {
        return 0;
    }
    double room = fg_cost_rows_at_least(target, &plain, 0, 0) * CATCH_UP_SHARE;
    fg_cost_step none = { 0 };
    uint32_t most = fg_cost_chunk(&asking->cost, &none, (uint64_t)room, CATCH_UP_MAX);
    return most > CATCH_UP_MIN ? most : CATCH_UP_MIN;
}

fg_asking_plan fg_asking_choose(fg_asking *asking, const fg_cost *target, fg_asking_seq *seqs,
                                uint32_t count)
{
    fg_asking_plan plan = { 0 };
    if (count == 0) {
        return plan;
    }
    double gain_ns = weigh(asking, target, seqs, count);
    bool any = false;
    for (uint32_t i = 0; i < count; i++) {
        fg_asking_seq *seq = &seqs[i];
        seq->wanted = is_worth_catching_up(asking, seq, gain_ns) ? seq->wanted : 0;
        any = any || seq->wanted > 0;
    }
    /* Whose guesses were wrong gets no more of them while others' pay, and may get better. */
    plan.catch_up_max = piece_of(asking, target, seqs, count);
    double tried_ns = try_one(asking, seqs, count, plan.catch_up_max);
    plan.is_trial = !any && tried_ns > 0;
    asking->credit_ns -= any ? tried_ns : 0;
    return plan;
}

void fg_asking_learn(fg_asking *asking, const fg_asking_did *did)
{
    asking->quiet_ns += (double)did->step_ns;
    asking->credit_ns += (double)did->step_ns * TRIAL_SHARE;
    asking->credit_ns -= did->was_trial ? (double)did->ns : 0;
    asking->credit_ns = fmin(asking->credit_ns, TRIAL_MAX_NS);
    if (did->caught > 0) {
        fg_cost_learn(&asking->cost, &(fg_cost_step){ .prefill_tokens = did->caught },
                      did->catch_ns);
    }
    if (did->steps > 0) {
        uint32_t rows = (did->rows + did->steps - 1) / did->steps;
        fg_cost_learn(&asking->cost, &(fg_cost_step){ .decode_rows = rows },
                      (did->ns - did->catch_ns) / did->steps);
    }
}
