#include "tests/unit/common/sched/plan_check.h"

#include <stdlib.h>
#include <string.h>

/* What the plan says about each running sequence. */
typedef struct seen {
    uint32_t tokens[2 * CHECK_SEQS_MAX]; /* admitted ones behind the running ones */
    bool victim[CHECK_SEQS_MAX];
    uint32_t total_tokens;
    uint32_t
        dropped; /* guesses left out, at most: for want of a block, while chunks had been cut for them */
} seen;

static bool can_run(const fg_sched_seq *seq)
{
    return !seq->stopped && seq->tokens_left > 0;
}

static uint64_t room_of(const fg_sched_input *in, const fg_sched_seq *seq)
{
    return (uint64_t)(seq->blocks + seq->promised) * in->limits->block_size;
}

static uint32_t asks(const fg_sched_input *in, const fg_sched_seq *seq)
{
    return can_run(seq) && seq->decoding && room_of(in, seq) < seq->slots_used + 1ull ? 1 : 0;
}

static const char *check_items(const fg_sched_input *in, const fg_sched_plan *plan, seen *s)
{
    for (uint32_t k = 0; k < plan->item_count; k++) {
        const fg_plan_item *item = &plan->items[k];
        if (item->seq >= in->seq_count + plan->admit_count) {
            return "an item of nobody";
        }
        if (s->tokens[item->seq] > 0) {
            return "two items of one sequence";
        }
        if (item->token_count == 0) {
            return "an item without tokens";
        }
        s->tokens[item->seq] = item->token_count;
        s->total_tokens += item->token_count;
        s->dropped +=
            item->seq < in->seq_count ? in->seqs[item->seq].drafts - item->draft_count : 0;
        bool fresh = item->seq >= in->seq_count;
        const fg_sched_wait *wait =
            fresh ? &in->waits[plan->admits[item->seq - in->seq_count]] : NULL;
        const fg_sched_seq *seq = fresh ? NULL : &in->seqs[item->seq];
        uint32_t left = fresh ? wait->tokens_left : seq->tokens_left;
        bool decoding = fresh ? wait->decoding : seq->decoding;
        uint32_t known = item->token_count - item->draft_count;
        if (item->draft_count >= item->token_count) {
            return "guesses behind nothing";
        }
        if (known > left || item->token_count > in->limits->chunk_tokens_max) {
            return "a chunk that is too long";
        }
        if (item->sample != (known == left) || (decoding && known != 1)) {
            return "samples in the middle, or not at the end";
        }
        if (fresh && wait->restores) {
            return "runs before its blocks are back";
        }
        if (!fresh && (!can_run(seq) || s->victim[item->seq])) {
            return "runs though it cannot";
        }
        if (!fresh && seq->slots_used + (uint64_t)known >
                          room_of(in, seq) + (uint64_t)asks(in, seq) * in->limits->block_size) {
            return "writes beyond its blocks";
        }
    }
    return s->total_tokens > in->limits->step_tokens_max ? "over the token budget" : NULL;
}

static bool goes_before(const fg_sched_input *in, uint32_t a, uint32_t b)
{
    const fg_sched_seq *x = &in->seqs[a], *y = &in->seqs[b];
    if (in->limits->victim == FG_VICTIM_LAST_ADMITTED) {
        return a > b;
    }
    uint32_t p = in->limits->victim == FG_VICTIM_CHEAPEST ? x->redo_tokens : x->output_tokens;
    uint32_t q = in->limits->victim == FG_VICTIM_CHEAPEST ? y->redo_tokens : y->output_tokens;
    if (p != q) {
        return p < q;
    }
    return x->arrival != y->arrival ? x->arrival > y->arrival : a > b;
}

/* Chooses victims again, one scan each. */
static const char *check_victims(const fg_sched_input *in, const fg_sched_plan *plan, seen *s)
{
    static bool gone[CHECK_SEQS_MAX];
    uint64_t asked = 0, available = in->available;
    uint32_t tier = in->tier_available, left = 0, count = 0;
    memset(gone, 0, sizeof gone);
    for (uint32_t i = 0; i < in->seq_count; i++) {
        asked += asks(in, &in->seqs[i]);
        gone[i] = in->seqs[i].fixed || !in->may_preempt;
        left += !gone[i];
    }
    for (; asked > available && left > 0; left--) {
        uint32_t best = UINT32_MAX;
        for (uint32_t i = 0; i < in->seq_count; i++) {
            best = !gone[i] && (best == UINT32_MAX || goes_before(in, i, best)) ? i : best;
        }
        const fg_sched_seq *seq = &in->seqs[best];
        gone[best] = true;
        bool alone = asks(in, seq) == asked;
        bool spared = alone && (left == 1 || in->limits->victim == FG_VICTIM_LAST_ADMITTED);
        if (spared || (asks(in, seq) == 0 && seq->frees == 0)) {
            continue;
        }
        if (count == plan->victim_count || plan->victims[count].seq != best) {
            return "not the victim that the policy wants";
        }
        bool room = seq->blocks > 0 && seq->blocks <= tier;
        bool swap = in->limits->preemption == FG_PREEMPT_SWAP ||
                    (in->limits->preemption == FG_PREEMPT_AUTO && in->cost != NULL &&
                     fg_cost_swap_is_cheaper(in->cost, seq->blocks, seq->redo_tokens));
        if (plan->victims[count].swap != (swap && room)) {
            return "swapped, or computed again, where the other was due";
        }
        tier -= swap && room ? seq->blocks : 0;
        s->victim[best] = true;
        asked -= asks(in, seq);
        available += seq->frees;
        count++;
    }
    return count != plan->victim_count ? "a victim too many" : NULL;
}

/* Who decodes, who stands still, who ends. *left_out gets the blocks that nobody asked for; *enough_out
 * whether all who asked got theirs. */
static const char *check_blocks(const fg_sched_input *in, const fg_sched_plan *plan, const seen *s,
                                uint64_t *left_out, bool *enough_out)
{
    uint64_t available = in->available, asked = 0, given = 0, last_given = 0;
    uint64_t first_still = UINT64_MAX;
    bool stuck = false;
    bool budget_gone = s->total_tokens == in->limits->step_tokens_max;
    bool may_miss = in->limits->order == FG_PREFILL_FIRST && budget_gone;
    for (uint32_t k = 0; k < plan->victim_count; k++) {
        available += in->seqs[plan->victims[k].seq].frees;
    }
    for (uint32_t i = 0; i < in->seq_count; i++) {
        const fg_sched_seq *seq = &in->seqs[i];
        if (s->victim[i] || !can_run(seq)) {
            continue;
        }
        bool waits = s->tokens[i] == 0;
        asked += asks(in, seq);
        if (asks(in, seq) && !waits) {
            given++;
            last_given = seq->arrival > last_given ? seq->arrival : last_given;
        } else if (asks(in, seq)) {
            first_still = seq->arrival < first_still ? seq->arrival : first_still;
        } else if (waits && seq->decoding && !may_miss) {
            return "a decoding sequence with a free slot stands still";
        } else if (waits && !seq->decoding) {
            stuck = stuck || room_of(in, seq) <= seq->slots_used;
        }
    }
    bool enough = asked <= available;
    if (given > available) {
        return "gives blocks that are not there";
    }
    if (!may_miss && (given < (enough ? asked : available) || last_given > first_still)) {
        return "stands still though there is a block, or a later one got it";
    }
    if (enough ? plan->short_of_blocks && !stuck : !plan->short_of_blocks) {
        return "short_of_blocks is wrong";
    }
    bool ends = in->may_preempt && in->seq_count == 1 && !in->seqs[0].fixed &&
                asks(in, &in->seqs[0]) && in->available == 0 && in->elsewhere == 0;
    if (plan->at_capacity != (ends ? 0 : UINT32_MAX)) {
        return "at_capacity is wrong";
    }
    *left_out = enough ? available - asked : 0;
    *enough_out = enough;
    return NULL;
}

static const char *check_admits(const fg_sched_input *in, const fg_sched_plan *plan, const seen *s,
                                uint64_t available, bool enough)
{
    const fg_sched_limits *limits = in->limits;
    uint64_t used = (uint64_t)in->seq_count + in->slots_reserved, soon = 0, over = 0;
    uint32_t done = 0;
    bool misfit = false, blocked = plan->victim_count > 0 || !enough;
    for (uint32_t i = 0; i < in->seq_count; i++) {
        const fg_sched_seq *seq = &in->seqs[i];
        uint64_t room = room_of(in, seq) + (uint64_t)asks(in, seq) * limits->block_size;
        soon += can_run(seq) && seq->decoding && room == seq->slots_used + 1ull;
    }
    if (plan->admit_count > 0 && blocked) {
        return "admits while somebody is preempted or stands still";
    }
    if (plan->admit_count > 0 && used + plan->admit_count > limits->seqs_max) {
        return "admits more than --max-seqs";
    }
    for (uint32_t i = 0; i < in->wait_count && !blocked; i++) {
        const fg_sched_wait *wait = &in->waits[i];
        bool taken = done < plan->admit_count && plan->admits[done] == i;
        bool alone = in->seq_count == 0 && done == 0 && in->elsewhere == 0;
        uint64_t takes = limits->admission == FG_ADMIT_NO_EVICT ? wait->need_all : wait->need;
        uint64_t spare = limits->admission == FG_ADMIT_NO_EVICT
                             ? 0
                             : soon + (alone ? 0 : limits->watermark_blocks);
        bool fits = takes + spare <= available;
        bool place = used + done < limits->seqs_max && !(misfit && over == limits->skip_max);
        if (taken && (!fits || wait->deferred || !place)) {
            return "admits what does not fit, is deferred, or overtakes too many";
        }
        if (taken) {
            if (!wait->restores && s->tokens[in->seq_count + done] == 0) {
                return "admits somebody who gets no token";
            }
            available -= takes;
            over += misfit;
            done++;
        } else if (!wait->deferred && fits && place) {
            /* Only a step without a token left for it may leave it outside, and the line stops. */
            bool tokens = s->total_tokens + s->dropped < limits->step_tokens_max &&
                          (limits->order == FG_PREFILL_FIRST || limits->step_target_ns == 0 ||
                           in->cost == NULL || wait->decoding);
            return tokens || wait->restores   ? "somebody who fits stays outside"
                   : done < plan->admit_count ? "overtakes one that waits for tokens"
                                              : NULL;
        } else if (!wait->deferred && !fits) {
            misfit = true;
        }
    }
    return done != plan->admit_count ? "admits are out of order" : NULL;
}

/* Whether a chunk that ended its prompt would fill so many blocks that it is to be cut. */
static bool ends_long(const fg_sched_input *in, uint32_t position, uint32_t left)
{
    uint32_t size = in->limits->block_size;
    uint32_t blocks = (position + left + size - 1) / size - position / size;
    if (in->limits->last_chunk == FG_LAST_CHUNK_WHOLE || blocks <= FG_SCHED_LAST_BLOCKS) {
        return false;
    }
    return in->limits->last_chunk == FG_LAST_CHUNK_SHORT ||
           (in->cost != NULL &&
            (blocks - FG_SCHED_LAST_BLOCKS) * fg_cost_push_block(in->cost) > in->cost->weights[0]);
}

/* Prompts that leave end short where that pays, and only they. *cut_out: this chunk was cut for it. */
static const char *check_end(const fg_sched_input *in, const fg_sched_plan *plan,
                             const fg_plan_item *item, bool *cut_out)
{
    bool fresh = item->seq >= in->seq_count;
    const fg_sched_wait *wait = fresh ? &in->waits[plan->admits[item->seq - in->seq_count]] : NULL;
    const fg_sched_seq *seq = fresh ? NULL : &in->seqs[item->seq];
    uint32_t position = fresh ? 0 : seq->slots_used, size = in->limits->block_size;
    uint32_t left = fresh ? wait->tokens_left : seq->tokens_left;
    uint32_t rest = left - item->token_count;
    bool to_be_cut = (fresh ? wait->leaves : seq->leaves) && ends_long(in, position, left);
    *cut_out = to_be_cut && (position + item->token_count) % size == 0 && rest > size &&
               rest <= FG_SCHED_LAST_BLOCKS * size;
    return to_be_cut && rest == 0 ? "a prompt that leaves ends with many blocks" : NULL;
}

/* The step target holds, and half-prefilled ones come first, in order. */
static const char *check_chunks(const fg_sched_input *in, const fg_sched_plan *plan, const seen *s)
{
    const fg_sched_limits *limits = in->limits;
    fg_cost_step step = { 0 }, answers = { 0 };
    uint32_t rows = 0;
    bool left_out = false;
    bool timed = limits->order == FG_DECODE_FIRST && limits->step_target_ns > 0 && in->cost != NULL;
    for (uint32_t k = 0; k < plan->item_count; k++) {
        const fg_plan_item *item = &plan->items[k];
        bool fresh = item->seq >= in->seq_count;
        if (fresh ? in->waits[plan->admits[item->seq - in->seq_count]].decoding
                  : in->seqs[item->seq].decoding) {
            uint64_t slots = fresh ? 0 : in->seqs[item->seq].slots_used;
            rows += item->token_count;
            step.kv_tokens += fresh ? 0 : fg_cost_chunk_kv((uint32_t)slots, item->token_count);
            answers.kv_tokens += fresh ? 0 : fg_cost_chunk_kv((uint32_t)slots, item->token_count);
            continue;
        }
        uint64_t most =
            fresh ? UINT64_MAX : room_of(in, &in->seqs[item->seq]) - in->seqs[item->seq].slots_used;
        bool cut;
        const char *wrong = check_end(in, plan, item, &cut);
        if (wrong != NULL) {
            return wrong;
        }
        if (!timed && !cut && !item->sample && item->token_count < limits->chunk_tokens_max &&
            item->token_count < most && s->total_tokens + s->dropped < limits->step_tokens_max) {
            return "a chunk is too short";
        }
        step.decode_rows = rows; /* rows behind the last chunk were not known yet */
        uint32_t position = fresh ? 0 : in->seqs[item->seq].slots_used;
        step.prefill_tokens += item->token_count;
        step.kv_tokens += fg_cost_chunk_kv(position, item->token_count);
    }
    answers.decode_rows = step.decode_rows;
    double target = (double)limits->step_target_ns;
    double least = timed ? fg_cost_predict(in->cost, &answers) + target / 4 : 0;
    if (timed && step.decode_rows > 0 && step.prefill_tokens > 1 &&
        fg_cost_predict(in->cost, &step) > 1.000001 * (least > target ? least : target) + 1) {
        return "the step takes longer than its target";
    }
    for (uint32_t i = 0; i < in->seq_count; i++) {
        const fg_sched_seq *seq = &in->seqs[i];
        if (!can_run(seq) || seq->decoding || s->victim[i] || room_of(in, seq) <= seq->slots_used) {
            continue;
        }
        if (s->tokens[i] > 0 && left_out) {
            return "a later chunk comes first";
        }
        left_out = left_out || s->tokens[i] == 0;
    }
    if (left_out && step.prefill_tokens == 0 && s->total_tokens < limits->step_tokens_max) {
        return "no prompt gets on";
    }
    for (uint32_t k = 0; k < plan->admit_count && left_out; k++) {
        const fg_sched_wait *wait = &in->waits[plan->admits[k]];
        if (!wait->decoding && !wait->restores) {
            return "a fresh one overtakes a half-prefilled one";
        }
    }
    return NULL;
}

/* One guess that may be looked at. */
typedef struct guess {
    uint32_t item, odds;
    uint64_t kv_tokens;
} guess;

static int likelier_first(const void *a, const void *b)
{
    const guess *x = a, *y = b;
    if (x->odds != y->odds) {
        return x->odds > y->odds ? -1 : 1;
    }
    if (x->item != y->item) {
        return x->item < y->item ? -1 : 1;
    }
    return x->kv_tokens < y->kv_tokens ? -1 : x->kv_tokens > y->kv_tokens;
}

/* How many guesses each item should have, all of them sorted; `most` in all. */
static void want_guesses(const fg_sched_input *in, const fg_sched_plan *plan,
                         const fg_cost_step *plain, uint32_t most, uint32_t *want)
{
    static guess guesses[CHECK_SEQS_MAX * FG_LOOKAHEAD_MAX];
    uint32_t count = 0, best = 0;
    for (uint32_t k = 0; k < plan->item_count; k++) {
        uint32_t at = plan->items[k].seq;
        bool decodes = at < in->seq_count && in->seqs[at].decoding;
        for (uint32_t i = 0; decodes && i < in->seqs[at].drafts; i++) {
            bool hopeless = in->limits->draft == FG_DRAFT_PAYS && in->seqs[at].odds[i] == 0;
            if (i + 1 < in->limits->chunk_tokens_max && !hopeless) {
                guesses[count++] =
                    (guess){ k, in->seqs[at].odds[i], in->seqs[at].slots_used + 2ull + i };
            }
        }
        want[k] = 0;
    }
    if (in->limits->draft != FG_DRAFT_PAYS) {
        for (uint32_t i = 0; i < count && i < most; i++) {
            want[guesses[i].item]++;
        }
        return;
    }
    if (in->cost == NULL || plain->decode_rows == 0) {
        return;
    }
    qsort(guesses, count, sizeof *guesses, likelier_first);
    most = most < 64 ? most : 64;
    double tokens = plain->decode_rows;
    double least = fg_cost_rows_at_least(in->cost, plain, 0, 0) / tokens / 1.02;
    uint64_t kv_tokens = 0;
    for (uint32_t i = 0; i < count && i < most; i++) {
        tokens += (double)guesses[i].odds / FG_ODDS_ONE;
        kv_tokens += guesses[i].kv_tokens;
        double each = fg_cost_rows_at_least(in->cost, plain, i + 1, kv_tokens) / tokens;
        if (each < least) {
            least = each;
            best = i + 1;
        }
    }
    for (uint32_t i = 0; i < best; i++) {
        want[guesses[i].item]++;
    }
}

/* Blocks that a sequence's guesses need beyond those that it has, or asked for. */
static uint64_t blocks_for(const fg_sched_input *in, const fg_sched_seq *seq, uint32_t drafts)
{
    uint64_t room = room_of(in, seq) + (uint64_t)asks(in, seq) * in->limits->block_size;
    uint64_t end = seq->slots_used + 1ull + drafts;
    return end > room ? (end - room + in->limits->block_size - 1) / in->limits->block_size : 0;
}

/* Guesses: only where they may be, as many as are worth it, out of what nobody else wants. `left`: blocks that
 * running sequences left. */
static const char *check_drafts(const fg_sched_input *in, const fg_sched_plan *plan, uint64_t left,
                                bool enough)
{
    static uint32_t want[2 * CHECK_SEQS_MAX];
    fg_cost_step plain = { 0 };
    uint64_t used = 0;
    uint32_t chunks = 0;
    bool none = in->limits->draft_max == 0 || plan->victim_count > 0 || !enough, waits = false;
    for (uint32_t i = 0; i < plan->admit_count; i++) {
        const fg_sched_wait *wait = &in->waits[plan->admits[i]];
        left -= in->limits->admission == FG_ADMIT_NO_EVICT ? wait->need_all : wait->need;
    }
    for (uint32_t k = 0; k < plan->item_count; k++) {
        const fg_plan_item *item = &plan->items[k];
        bool decodes = item->seq < in->seq_count && in->seqs[item->seq].decoding;
        plain.decode_rows += decodes;
        plain.kv_tokens += decodes ? in->seqs[item->seq].slots_used + 1ull : 0;
        chunks += decodes ? 0 : item->token_count;
    }
    chunks = in->limits->order == FG_PREFILL_FIRST ? chunks : 0;
    uint32_t half = (in->limits->step_tokens_max - plain.decode_rows - chunks) / 2;
    want_guesses(in, plan, &plain, half, want);
    for (uint32_t k = 0; k < plan->item_count; k++) {
        const fg_plan_item *item = &plan->items[k];
        bool decodes = item->seq < in->seq_count && in->seqs[item->seq].decoding;
        if (item->draft_count > 0 && (!decodes || none || in->seqs[item->seq].unsaid)) {
            return "guesses where there may be none";
        }
        if (!decodes || none) {
            continue;
        }
        const fg_sched_seq *seq = &in->seqs[item->seq];
        used += blocks_for(in, seq, item->draft_count);
        waits = waits || (seq->unsaid && want[k] > 0);
        if (item->draft_count > want[k]) {
            return "guesses that are not worth it";
        }
        bool no_block = blocks_for(in, seq, want[k]) > 0 && used >= left;
        if (item->draft_count < want[k] && !seq->unsaid && !no_block) {
            return "too few guesses";
        }
    }
    if (used > left) {
        return "guesses take blocks that are not there";
    }
    return plan->drafts_wait != waits ? "drafts_wait is wrong" : NULL;
}

/* A step does nothing only when nothing can be done. */
static const char *check_progress(const fg_sched_input *in, const fg_sched_plan *plan)
{
    if (plan->item_count > 0 || plan->victim_count > 0 || plan->admit_count > 0 ||
        plan->at_capacity != UINT32_MAX) {
        return NULL;
    }
    for (uint32_t i = 0; i < in->seq_count; i++) {
        const fg_sched_seq *seq = &in->seqs[i];
        bool asker = asks(in, seq) > 0;
        if (can_run(seq) && !(asker && in->available == 0) &&
            (asker || room_of(in, seq) > seq->slots_used)) {
            return "does nothing while somebody could run";
        }
        if (asker && in->may_preempt && !seq->fixed && in->seq_count == 1 && in->elsewhere == 0) {
            return "hangs at capacity";
        }
    }
    return NULL;
}

const char *check_plan(const fg_sched_input *in, const fg_sched_plan *plan)
{
    static seen s;
    uint64_t available = 0;
    bool enough = false;
    memset(&s, 0, sizeof s);
    const char *wrong = check_victims(in, plan, &s);
    wrong = wrong != NULL ? wrong : check_items(in, plan, &s);
    wrong = wrong != NULL ? wrong : check_blocks(in, plan, &s, &available, &enough);
    wrong = wrong != NULL ? wrong : check_admits(in, plan, &s, available, enough);
    wrong = wrong != NULL ? wrong : check_drafts(in, plan, available, enough);
    wrong = wrong != NULL ? wrong : check_chunks(in, plan, &s);
    return wrong != NULL ? wrong : check_progress(in, plan);
}
