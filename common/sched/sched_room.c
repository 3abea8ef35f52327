#include "common/sched/sched_internal.h"

#include <string.h>

/* Who goes first. The array is the plan's own `victims`, used as a heap, because a plan allocates
 * nothing and hundreds of victims in one step must not cost a scan each. */
typedef bool (*fg_before)(const fg_sched_seq *seqs, uint32_t a, uint32_t b);

static bool later(const fg_sched_seq *seqs, uint32_t a, uint32_t b)
{
    return seqs[a].arrival != seqs[b].arrival ? seqs[a].arrival > seqs[b].arrival : a > b;
}

static bool earlier(const fg_sched_seq *seqs, uint32_t a, uint32_t b)
{
    return later(seqs, b, a);
}

static bool fewest_output(const fg_sched_seq *seqs, uint32_t a, uint32_t b)
{
    uint32_t x = seqs[a].output_tokens, y = seqs[b].output_tokens;
    return x != y ? x < y : later(seqs, a, b);
}

static bool last_admitted(const fg_sched_seq *seqs, uint32_t a, uint32_t b)
{
    return a > b;
}

static bool cheapest(const fg_sched_seq *seqs, uint32_t a, uint32_t b)
{
    uint32_t x = seqs[a].redo_tokens, y = seqs[b].redo_tokens;
    return x != y ? x < y : later(seqs, a, b);
}

typedef struct fg_heap {
    const fg_sched_seq *seqs;
    fg_before before;
    fg_plan_victim *items;
    uint32_t count;
} fg_heap;

static void sift_down(fg_heap *heap, uint32_t at)
{
    uint32_t seq = heap->items[at].seq;
    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= heap->count) {
            break;
        }
        if (child + 1 < heap->count &&
            heap->before(heap->seqs, heap->items[child + 1].seq, heap->items[child].seq)) {
            child++;
        }
        if (!heap->before(heap->seqs, heap->items[child].seq, seq)) {
            break;
        }
        heap->items[at].seq = heap->items[child].seq;
        at = child;
    }
    heap->items[at].seq = seq;
}

static void heapify(fg_heap *heap)
{
    for (uint32_t i = heap->count / 2; i > 0; i--) {
        sift_down(heap, i - 1);
    }
}

/* What leaves lies behind the heap afterwards, the last to leave in front. */
static uint32_t pop(fg_heap *heap)
{
    uint32_t top = heap->items[0].seq;
    heap->count--;
    heap->items[0].seq = heap->items[heap->count].seq;
    heap->items[heap->count].seq = top;
    if (heap->count > 0) {
        sift_down(heap, 0);
    }
    return top;
}

/* Whether evicting this candidate would help anybody else. */
static bool is_useful(const fg_draft *draft, const fg_heap *heap, uint32_t at, uint32_t asked)
{
    const fg_sched_seq *seq = &draft->in->seqs[at];
    uint32_t own = fg_draft_asks(draft->in->limits, seq) ? 1 : 0;
    if (own == 0) {
        return seq->frees > 0;
    }
    /* The only one that asks: last-admitted never takes the requester, the others never take it when no
     * other candidate is left. It would lose its blocks and nobody would run for that. */
    return own < asked || (draft->in->limits->victim != FG_VICTIM_LAST_ADMITTED && heap->count > 1);
}

static bool goes_to_tier(const fg_draft *draft, const fg_sched_seq *seq, uint32_t tier_left)
{
    const fg_sched_input *in = draft->in;
    if (seq->blocks == 0 || seq->blocks > tier_left) {
        return false;
    }
    switch (in->limits->preemption) {
    case FG_PREEMPT_SWAP:
        return true;
    case FG_PREEMPT_AUTO:
        return in->cost != NULL && fg_cost_swap_is_cheaper(in->cost, seq->blocks, seq->redo_tokens);
    default:
        return false;
    }
}

/* Brings the victims, which lie among the candidates that left the heap, to the front in the order in
 * which they were chosen. */
static void list_victims(fg_draft *draft, uint32_t first, uint32_t end)
{
    fg_plan_victim *victims = draft->plan->victims;
    uint32_t count = 0, tier_left = draft->in->tier_available;
    for (uint32_t low = first, high = end; low + 1 < high; low++, high--) {
        fg_plan_victim other = victims[low];
        victims[low] = victims[high - 1];
        victims[high - 1] = other;
    }
    for (uint32_t i = first; i < end; i++) {
        uint32_t at = victims[i].seq;
        if (draft->marks[at] == FG_DRAFT_VICTIM) {
            const fg_sched_seq *seq = &draft->in->seqs[at];
            bool swap = goes_to_tier(draft, seq, tier_left);
            tier_left -= swap ? seq->blocks : 0;
            victims[count++] = (fg_plan_victim){ .seq = at, .swap = swap };
        }
    }
    draft->plan->victim_count = count;
}

/* Preempts until what is asked for is there or nobody useful is left; returns what is still asked. */
static uint32_t preempt(fg_draft *draft, uint32_t asked)
{
    const fg_sched_input *in = draft->in;
    fg_heap heap = { .seqs = in->seqs, .items = draft->plan->victims };
    heap.before = in->limits->victim == FG_VICTIM_LAST_ADMITTED ? last_admitted
                  : in->limits->victim == FG_VICTIM_CHEAPEST    ? cheapest
                                                                : fewest_output;
    for (uint32_t i = 0; i < in->seq_count; i++) {
        if (!in->seqs[i].fixed) {
            heap.items[heap.count++].seq = i;
        }
    }
    heapify(&heap);
    uint32_t candidates = heap.count;
    while (asked > draft->available && heap.count > 0) {
        bool useful = is_useful(draft, &heap, heap.items[0].seq, asked);
        uint32_t at = pop(&heap);
        if (useful) {
            asked -= fg_draft_asks(in->limits, &in->seqs[at]) ? 1 : 0;
            draft->available += in->seqs[at].frees;
            draft->marks[at] = FG_DRAFT_VICTIM;
        }
    }
    list_victims(draft, heap.count, candidates);
    return asked;
}

/* Nobody is left to preempt: the earliest arrivals get what there is, the others stand still. */
static void share_out(fg_draft *draft)
{
    const fg_sched_input *in = draft->in;
    fg_heap heap = { .seqs = in->seqs,
                     .before = earlier,
                     .items = draft->plan->victims + draft->plan->victim_count };
    for (uint32_t i = 0; i < in->seq_count; i++) {
        if (draft->marks[i] != FG_DRAFT_VICTIM && fg_draft_asks(in->limits, &in->seqs[i])) {
            draft->marks[i] = FG_DRAFT_STANDS;
            heap.items[heap.count++].seq = i;
        }
    }
    heapify(&heap);
    for (; draft->available > 0 && heap.count > 0; draft->available--) {
        draft->marks[pop(&heap)] = FG_DRAFT_RUNS;
    }
}

void fg_draft_make_room(fg_draft *draft, uint32_t asked)
{
    const fg_sched_input *in = draft->in;
    fg_sched_plan *plan = draft->plan;
    draft->marks = plan->admits;
    memset(draft->marks, 0, in->seq_count * sizeof *draft->marks);
    if (in->may_preempt) {
        asked = preempt(draft, asked);
    }
    if (asked <= draft->available) {
        draft->available -= asked;
        return;
    }
    share_out(draft);
    plan->short_of_blocks = true;
    /* Alone, and nothing will ever come back. A fixed one waits for its ticket, which is over some day.
     * After a victim it is too early to tell: blocks that two victims shared come back uncounted. */
    if (in->may_preempt && in->seq_count == 1 && plan->victim_count == 0 && in->elsewhere == 0 &&
        !in->seqs[0].fixed) {
        plan->at_capacity = 0;
    }
}
