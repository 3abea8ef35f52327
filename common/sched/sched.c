#include "common/sched/sched.h"

#include "common/sched/sched_internal.h"

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

fg_status fg_sched_check(const fg_sched_limits *limits, fg_error *err)
{
    if (limits->step_tokens_max == 0) {
        return fg_fail(err, FG_BAD_INPUT, "--max-batch-tokens must be at least 1");
    }
    if (limits->chunk_tokens_max == 0) {
        return fg_fail(err, FG_BAD_INPUT, "--prefill-chunk-size must be at least 1");
    }
    if (limits->seqs_max == 0) {
        return fg_fail(err, FG_BAD_INPUT, "--max-seqs must be at least 1");
    }
    if (limits->block_size == 0 || (limits->block_size & (limits->block_size - 1)) != 0) {
        return fg_fail(err, FG_BAD_INPUT, "--block-size %u is not a power of two",
                       limits->block_size);
    }
    if (limits->step_tokens_max < limits->seqs_max) {
        return fg_fail(err, FG_BAD_INPUT,
                       "--max-batch-tokens %u is less than --max-seqs %u: not every sequence could "
                       "get its token in a step",
                       limits->step_tokens_max, limits->seqs_max);
    }
    if ((unsigned)limits->order > FG_PREFILL_FIRST) {
        return fg_fail(err, FG_BAD_INPUT, "--schedule: no such order");
    }
    if ((unsigned)limits->victim > FG_VICTIM_CHEAPEST) {
        return fg_fail(err, FG_BAD_INPUT, "--victim: no such policy");
    }
    if ((unsigned)limits->preemption > FG_PREEMPT_AUTO) {
        return fg_fail(err, FG_BAD_INPUT, "--preemption: no such way");
    }
    if ((unsigned)limits->last_chunk > FG_LAST_CHUNK_WHOLE) {
        return fg_fail(err, FG_BAD_INPUT, "--last-chunk: no such way");
    }
    if ((unsigned)limits->draft > FG_DRAFT_FIXED) {
        return fg_fail(err, FG_BAD_INPUT, "--draft-length: no such way");
    }
    if (limits->draft_max > FG_LOOKAHEAD_MAX) {
        return fg_fail(err, FG_BAD_INPUT, "--draft-max must be at most %d", FG_LOOKAHEAD_MAX);
    }
    if ((unsigned)limits->admission > FG_ADMIT_NO_EVICT) {
        return fg_fail(err, FG_BAD_INPUT, "--admission: no such policy");
    }
    return FG_OK;
}

static bool runs(const fg_draft *draft, uint32_t at)
{
    return fg_draft_can_run(&draft->in->seqs[at]) &&
           (draft->marks == NULL || draft->marks[at] == FG_DRAFT_RUNS);
}

static void add_item(fg_draft *draft, uint32_t seq, uint32_t token_count, bool sample)
{
    draft->plan->items[draft->plan->item_count++] =
        (fg_plan_item){ .seq = seq, .token_count = token_count, .sample = sample };
    draft->tokens_left -= token_count;
}

/* Every decoding sequence has its slot before the step begins, or somebody else has to give way. */
static void reserve(fg_draft *draft)
{
    const fg_sched_input *in = draft->in;
    uint32_t asked = 0;
    for (uint32_t i = 0; i < in->seq_count; i++) {
        const fg_sched_seq *seq = &in->seqs[i];
        if (!seq->decoding || !fg_draft_can_run(seq)) {
            continue;
        }
        uint64_t room = fg_draft_room(in->limits, seq), slots = seq->slots_used + 1ull;
        bool asks = slots > room;
        asked += asks;
        draft->soon += slots == room + (asks ? in->limits->block_size : 0);
    }
    if (asked > draft->available) {
        fg_draft_make_room(draft, asked);
    } else {
        draft->available -= asked;
    }
}

/* Among the rows of a step that are weighed, at most so many guesses. */
enum { DRAFT_ROWS_MAX = 64 };
/* Guesses are to make a token cheaper by more than what they cost beside the step: the step after it cannot be planned
 * while it runs. */
#define DRAFT_GAIN_MIN 1.02

static uint32_t drafts_of(const fg_draft *draft, const fg_sched_seq *seq)
{
    return smaller(seq->drafts, draft->in->limits->chunk_tokens_max - 1);
}

/* The item whose next guess is the likeliest; NULL: nobody has another one. */
static fg_plan_item *likeliest(const fg_draft *draft, uint32_t first_item)
{
    fg_plan_item *best = NULL;
    uint32_t best_odds = 0;
    for (uint32_t i = first_item; i < draft->plan->item_count; i++) {
        fg_plan_item *item = &draft->plan->items[i];
        const fg_sched_seq *seq = &draft->in->seqs[item->seq];
        if (item->draft_count < drafts_of(draft, seq) && seq->odds[item->draft_count] > best_odds) {
            best = item;
            best_odds = seq->odds[item->draft_count];
        }
    }
    return best;
}

static void forget_drafts(const fg_draft *draft, uint32_t first_item)
{
    for (uint32_t i = first_item; i < draft->plan->item_count; i++) {
        draft->plan->items[i].draft_count = 0;
    }
}

/* How many guesses, the likeliest first, make a token of the step cheapest. */
static uint32_t worth(const fg_draft *draft, uint32_t first_item, uint32_t most)
{
    const fg_sched_input *in = draft->in;
    fg_cost_step plain = { .decode_rows = draft->plan->item_count - first_item };
    for (uint32_t i = first_item; i < draft->plan->item_count; i++) {
        plain.kv_tokens += in->seqs[draft->plan->items[i].seq].slots_used + 1ull;
    }
    double tokens = plain.decode_rows;
    double least = fg_cost_rows_at_least(in->cost, &plain, 0, 0) / tokens / DRAFT_GAIN_MIN;
    uint32_t best = 0;
    uint64_t kv_tokens = 0;
    for (uint32_t rows = 1; rows <= smaller(most, DRAFT_ROWS_MAX); rows++) {
        fg_plan_item *item = likeliest(draft, first_item);
        if (item == NULL) {
            break;
        }
        const fg_sched_seq *seq = &in->seqs[item->seq];
        tokens += seq->odds[item->draft_count] / (double)FG_ODDS_ONE;
        kv_tokens += seq->slots_used + 2ull + item->draft_count++;
        double each = fg_cost_rows_at_least(in->cost, &plain, rows, kv_tokens) / tokens;
        best = each < least ? rows : best;
        least = each < least ? each : least;
    }
    forget_drafts(draft, first_item);
    return best;
}

/* Each item's draft_count becomes what it would have, also where that cannot be yet. */
static void choose_drafts(fg_draft *draft, uint32_t first_item, uint32_t most)
{
    fg_sched_plan *plan = draft->plan;
    if (draft->in->limits->draft == FG_DRAFT_PAYS) {
        uint32_t count = draft->in->cost != NULL ? worth(draft, first_item, most) : 0;
        for (; count > 0; count--) {
            likeliest(draft, first_item)->draft_count++;
        }
        return;
    }
    for (uint32_t i = first_item; i < plan->item_count; i++) {
        plan->items[i].draft_count =
            smaller(most, drafts_of(draft, &draft->in->seqs[plan->items[i].seq]));
        most -= plan->items[i].draft_count;
    }
}

/* Guesses get half of what is left of the budget when everybody who decodes has his token: prompts get the rest. Where
 * blocks are short, there are none. */
static void add_drafts(fg_draft *draft, uint32_t first_item)
{
    const fg_sched_input *in = draft->in;
    fg_sched_plan *plan = draft->plan;
    if (in->limits->draft_max == 0 || draft->marks != NULL || plan->item_count == first_item) {
        return;
    }
    choose_drafts(draft, first_item, draft->tokens_left / 2);
    for (uint32_t i = first_item; i < plan->item_count; i++) {
        fg_plan_item *item = &plan->items[i];
        const fg_sched_seq *seq = &in->seqs[item->seq];
        if (seq->unsaid) {
            plan->drafts_wait = plan->drafts_wait || item->draft_count > 0;
            item->draft_count = 0;
        }
        item->token_count += item->draft_count;
        draft->tokens_left -= item->draft_count;
        draft->cost.decode_rows += item->draft_count;
        draft->cost.kv_tokens += fg_cost_chunk_kv(seq->slots_used + 1, item->draft_count);
    }
}

/* When everybody else has his blocks: drafts that have no slots are left out. */
static void fit_drafts(fg_draft *draft)
{
    const fg_sched_input *in = draft->in;
    for (uint32_t i = 0; i < draft->plan->item_count; i++) {
        fg_plan_item *item = &draft->plan->items[i];
        if (item->draft_count == 0) {
            continue;
        }
        const fg_sched_seq *seq = &in->seqs[item->seq];
        uint64_t room = fg_draft_room(in->limits, seq), size = in->limits->block_size;
        uint64_t end = seq->slots_used + 1ull; /* what the token itself needs is there */
        room += room < end ? size : 0;
        uint64_t wanted = end + item->draft_count;
        uint64_t more = wanted > room ? (wanted - room + size - 1) / size : 0;
        if (more > draft->available) {
            more = draft->available;
            item->draft_count = (uint32_t)(room + more * size - end);
            item->token_count = 1 + item->draft_count;
        }
        draft->available -= (uint32_t)more;
    }
}

static void add_decodes(fg_draft *draft)
{
    const fg_sched_input *in = draft->in;
    uint32_t first_item = draft->plan->item_count;
    for (uint32_t i = 0; i < in->seq_count && draft->tokens_left > 0; i++) {
        if (in->seqs[i].decoding && runs(draft, i)) {
            add_item(draft, i, 1, true);
            draft->cost.decode_rows++;
            draft->cost.kv_tokens += in->seqs[i].slots_used + 1ull;
        }
    }
    add_drafts(draft, first_item);
}

/* The time that this step may take. Prompts get a quarter of the target even where running answers alone
 * take longer than all of it, else they would crawl, a token a step. */
static uint64_t time_of(const fg_draft *draft)
{
    double target = (double)draft->in->limits->step_target_ns;
    double least = fg_cost_predict(draft->in->cost, &draft->cost) + target / 4;
    return (uint64_t)(least > target ? least : target);
}

/* How many of the next `left` tokens of a prompt, `position` tokens being there, fit into this step. All
 * chunks share its time; the first of them gets one token at least. */
static uint32_t chunk_of(fg_draft *draft, uint32_t position, uint32_t left)
{
    const fg_sched_limits *limits = draft->in->limits;
    uint32_t most = smaller(left, smaller(limits->chunk_tokens_max, draft->tokens_left));
    if (most == 0 || draft->chunks_full || !draft->timed || draft->cost.decode_rows == 0) {
        return draft->chunks_full ? 0 : most;
    }
    if (!draft->chunked) {
        draft->time_ns = time_of(draft);
    } else {
        fg_cost_step one = draft->cost;
        one.prefill_tokens++;
        one.kv_tokens += fg_cost_chunk_kv(position, 1);
        if (fg_cost_predict(draft->in->cost, &one) > (double)draft->time_ns) {
            draft->chunks_full = true;
            return 0;
        }
    }
    return fg_cost_chunk_at(draft->in->cost, &draft->cost, position, draft->time_ns, most);
}

/* The chunk of `token_count` tokens behind `position` would end a prompt that leaves. Its blocks travel
 * when it has been computed; all but the last few go with the chunk before, when that is worth the step
 * that it takes more. What the tokens cost is the same in one chunk or two. */
static uint32_t shortened(const fg_draft *draft, uint32_t position, uint32_t token_count)
{
    const fg_sched_input *in = draft->in;
    uint32_t size = in->limits->block_size;
    uint64_t end = (uint64_t)position + token_count;
    uint64_t end_blocks = (end + size - 1) / size, now = end_blocks - position / size;
    if (in->limits->last_chunk == FG_LAST_CHUNK_WHOLE || now <= FG_SCHED_LAST_BLOCKS) {
        return token_count;
    }
    if (in->limits->last_chunk == FG_LAST_CHUNK_AUTO &&
        (in->cost == NULL || !fg_cost_push_is_dearer(in->cost, now - FG_SCHED_LAST_BLOCKS))) {
        return token_count;
    }
    return (uint32_t)((end_blocks - FG_SCHED_LAST_BLOCKS) * size - position);
}

static void add_chunk(fg_draft *draft, uint32_t seq, uint32_t position, uint32_t left,
                      uint32_t token_count)
{
    add_item(draft, seq, token_count, token_count == left);
    draft->cost.prefill_tokens += token_count;
    draft->cost.kv_tokens += fg_cost_chunk_kv(position, token_count);
    draft->chunked = true;
}

static void add_running_chunks(fg_draft *draft)
{
    const fg_sched_input *in = draft->in;
    for (uint32_t i = 0; i < in->seq_count && draft->tokens_left > 0; i++) {
        const fg_sched_seq *seq = &in->seqs[i];
        if (seq->decoding || !runs(draft, i)) {
            continue;
        }
        /* Admission promised all blocks of the prompt; the cap only keeps a slip from becoming a write
         * into somebody's block. */
        uint64_t room = fg_draft_room(in->limits, seq);
        if (room <= seq->slots_used) {
            draft->plan->short_of_blocks = true;
            continue;
        }
        uint64_t free_slots = room - seq->slots_used;
        uint32_t most = free_slots < seq->tokens_left ? (uint32_t)free_slots : seq->tokens_left;
        uint32_t token_count = chunk_of(draft, seq->slots_used, most);
        if (token_count == 0) {
            return;
        }
        if (seq->leaves && token_count == seq->tokens_left) {
            token_count = shortened(draft, seq->slots_used, token_count);
        }
        add_chunk(draft, i, seq->slots_used, seq->tokens_left, token_count);
    }
}

/* Blocks that this one takes out of the available ones when it is admitted; false: it does not fit. */
static bool fits(const fg_draft *draft, const fg_sched_wait *wait, uint32_t *takes_out)
{
    const fg_sched_input *in = draft->in;
    if (in->limits->admission == FG_ADMIT_NO_EVICT) {
        *takes_out = wait->need_all;
        return wait->need_all <= draft->available;
    }
    /* Alone, it may have everything, else one that is nearly as large as the pool would wait for ever. */
    bool alone = in->seq_count == 0 && draft->plan->admit_count == 0 && in->elsewhere == 0;
    uint64_t spare = (uint64_t)draft->soon + (alone ? 0 : in->limits->watermark_blocks);
    *takes_out = wait->need;
    return wait->need + spare <= draft->available;
}

/* Admits in order, and gives the admitted their tokens. Nobody enters who would get none in this step:
 * his blocks would lie idle while somebody else may need them. */
static void admit(fg_draft *draft, bool chunks_added)
{
    const fg_sched_input *in = draft->in;
    fg_sched_plan *plan = draft->plan;
    uint64_t used = (uint64_t)in->seq_count + in->slots_reserved;
    uint32_t room = used < in->limits->seqs_max ? in->limits->seqs_max - (uint32_t)used : 0;
    uint32_t passes_left = UINT32_MAX; /* more that may enter; bounded by the first misfit */
    for (uint32_t i = 0; i < in->wait_count && plan->admit_count < room && passes_left > 0; i++) {
        const fg_sched_wait *wait = &in->waits[i];
        uint32_t takes = 0, token_count = 0;
        if (wait->deferred) {
            continue;
        }
        if (!fits(draft, wait, &takes)) {
            plan->kept_out = true;
            passes_left = smaller(passes_left, in->limits->skip_max);
            continue;
        }
        bool is_chunk = !wait->restores && !wait->decoding;
        if (is_chunk && !chunks_added) { /* half-prefilled ones come before fresh ones */
            add_running_chunks(draft);
            chunks_added = true;
        }
        if (!wait->restores) {
            token_count =
                is_chunk ? chunk_of(draft, 0, wait->tokens_left) : smaller(1, draft->tokens_left);
            if (token_count == 0) {
                break;
            }
            /* What it finds in the cache is whole blocks, so counting from there gives the same ones. */
            if (is_chunk && wait->leaves && token_count == wait->tokens_left) {
                token_count = shortened(draft, 0, token_count);
            }
        }
        uint32_t seq = in->seq_count + plan->admit_count;
        plan->admits[plan->admit_count++] = i;
        draft->available -= takes;
        passes_left -= passes_left != UINT32_MAX;
        if (is_chunk) {
            add_chunk(draft, seq, 0, wait->tokens_left, token_count);
        } else if (token_count > 0) {
            add_item(draft, seq, 1, true);
            draft->cost.decode_rows++;
        }
    }
    if (!chunks_added) {
        add_running_chunks(draft);
    }
}

void fg_sched_plan_step(const fg_sched_input *input, fg_sched_plan *plan)
{
    const fg_sched_limits *limits = input->limits;
    FG_ASSERT(input->seq_count <= limits->seqs_max, "%u sequences run, %u may", input->seq_count,
              limits->seqs_max);
    bool decode_first = limits->order == FG_DECODE_FIRST;
    fg_draft draft = {
        .in = input,
        .plan = plan,
        .available = input->available,
        .tokens_left = limits->step_tokens_max,
        .timed = decode_first && limits->step_target_ns > 0 && input->cost != NULL,
    };
    plan->item_count = 0;
    plan->victim_count = 0;
    plan->admit_count = 0;
    plan->at_capacity = UINT32_MAX;
    plan->short_of_blocks = false;
    plan->kept_out = false;
    plan->drafts_wait = false;

    reserve(&draft);
    if (decode_first) {
        add_decodes(&draft);
    } else {
        add_running_chunks(&draft);
    }
    if (draft.marks == NULL) {
        admit(&draft, !decode_first);
    } else if (decode_first) {
        add_running_chunks(&draft);
    }
    if (!decode_first) {
        add_decodes(&draft);
    }
    fit_drafts(&draft);
}
