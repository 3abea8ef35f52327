/* A worker's next step: the snapshot that the scheduler sees, and what its plan does to the sequences. */
#include "common/worker/worker_internal.h"

#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/worker/worker_records.h"

/* A step with prompt chunks that takes longer than this is not queued behind a running one: whoever
 * comes in meanwhile would have to wait for it, and the pause it saves is far shorter. */
#define AHEAD_CHUNK_NS (20ull * 1000 * 1000)

enum { COPIES_MAX = 65536, STAGED_MAX = 1 << 20 };

/* ---- memory ---- */

static bool create_frame(const fg_worker *worker, fg_worker_frame *frame)
{
    frame->items = fg_mem_array(worker->item_max, sizeof *frame->items);
    frame->item_seqs = fg_mem_array(worker->item_max, sizeof *frame->item_seqs);
    frame->digests = fg_mem_array(worker->digest_max, sizeof *frame->digests);
    frame->digest_owners = fg_mem_array(worker->digest_max, sizeof *frame->digest_owners);
    frame->copies = fg_mem_array(worker->copy_max, sizeof *frame->copies);
    frame->copy_owners = fg_mem_array(worker->copy_max, sizeof *frame->copy_owners);
    frame->released = fg_mem_array(worker->released_max, sizeof *frame->released);
    frame->moving = fg_mem_array(2 * (size_t)worker->item_max, sizeof *frame->moving);
    if (worker->options.draft_context > 0) {
        frame->asks = fg_mem_array(worker->item_max, sizeof *frame->asks);
        frame->ask_seqs = fg_mem_array(worker->item_max, sizeof *frame->ask_seqs);
        if (frame->asks == NULL || frame->ask_seqs == NULL) {
            return false;
        }
    }
    return frame->items != NULL && frame->item_seqs != NULL && frame->digests != NULL &&
           frame->digest_owners != NULL && frame->copies != NULL && frame->copy_owners != NULL &&
           frame->released != NULL && frame->moving != NULL;
}

static void destroy_frame(fg_worker_frame *frame)
{
    fg_mem_free(frame->items);
    fg_mem_free(frame->item_seqs);
    fg_mem_free(frame->digests);
    fg_mem_free(frame->digest_owners);
    fg_mem_free(frame->copies);
    fg_mem_free(frame->copy_owners);
    fg_mem_free(frame->released);
    fg_mem_free(frame->moving);
    fg_mem_free(frame->asks);
    fg_mem_free(frame->ask_seqs);
}

static void size_arrays(fg_worker *worker)
{
    const fg_worker_options *options = &worker->options;
    uint32_t seqs = options->limits.seqs_max;
    worker->item_max = seqs;
    /* Every block that a full step can complete (a chunk may end one block, fill some, and leave the
     * last one of its prompt), and some room for checking arrivals and for blocks from the cache. */
    worker->digest_max =
        options->limits.step_tokens_max / options->layout.block_size + 2 * seqs + 1024;
    uint64_t copies = 2 * (uint64_t)options->block_count + seqs;
    worker->copy_max = options->tier == NULL ? seqs
                       : copies < COPIES_MAX ? (uint32_t)copies
                                             : COPIES_MAX;
    worker->released_max = options->block_count + 2 * seqs + 2 * worker->copy_max;
}

fg_status fg_worker_plan_create(fg_worker *worker, fg_error *err)
{
    const fg_worker_options *options = &worker->options;
    size_arrays(worker);
    bool ok = true;
    for (uint32_t i = 0; i < FG_WORKER_FRAMES; i++) {
        ok = create_frame(worker, &worker->frames[i]) && ok;
    }
    /* Block tables of a whole step; where that would be a lot of memory, of one whole context. */
    uint32_t context_blocks = fg_kv_blocks_for(options->context_max, options->layout.block_size);
    uint64_t staged = (uint64_t)options->limits.seqs_max * context_blocks;
    staged = staged < STAGED_MAX ? staged : STAGED_MAX;
    staged = staged < context_blocks ? context_blocks : staged;
    worker->staging = fg_staging_create(FG_WORKER_FRAMES, (uint32_t)staged);
    worker->snapshot = fg_mem_array(worker->item_max, sizeof *worker->snapshot);
    worker->snapshot_seqs = fg_mem_array(worker->item_max, sizeof *worker->snapshot_seqs);
    worker->plan.items = fg_mem_array(worker->item_max, sizeof *worker->plan.items);
    worker->plan.victims = fg_mem_array(worker->item_max, sizeof *worker->plan.victims);
    worker->plan.admits = fg_mem_array(worker->item_max, sizeof *worker->plan.admits);
    worker->admitted = fg_mem_array(worker->item_max, sizeof *worker->admitted);
    worker->scratch = fg_mem_array(options->block_count, sizeof *worker->scratch);
    worker->recount = fg_mem_array(options->block_count, sizeof *worker->recount);
    worker->tokens_out = fg_mem_array((size_t)worker->item_max * (1 + options->limits.draft_max),
                                      sizeof *worker->tokens_out);
    if (worker->router_count > 1) {
        size_t tokens_max = (size_t)worker->item_max * (1 + options->limits.draft_max);
        worker->tokens_router = fg_mem_array(tokens_max, sizeof *worker->tokens_router);
        worker->tokens_share = fg_mem_array(tokens_max, sizeof *worker->tokens_share);
    }
    worker->guessers = fg_mem_array(worker->item_max, sizeof *worker->guessers);
    worker->guesses = fg_mem_array(worker->item_max, sizeof *worker->guesses);
    if (options->draft_context > 0) {
        worker->places = fg_mem_array(worker->item_max, sizeof *worker->places);
        worker->asking_seqs = fg_mem_array(worker->item_max, sizeof *worker->asking_seqs);
        ok = ok && worker->places != NULL && worker->asking_seqs != NULL;
    }
    fg_cost_init(&worker->cost, options->layout.block_bytes);
    fg_asking_init(&worker->asking);
    if (!ok || worker->staging == NULL || worker->snapshot == NULL ||
        worker->snapshot_seqs == NULL || worker->plan.items == NULL ||
        worker->plan.victims == NULL || worker->plan.admits == NULL || worker->admitted == NULL ||
        worker->scratch == NULL || worker->recount == NULL || worker->tokens_out == NULL ||
        (worker->router_count > 1 &&
         (worker->tokens_router == NULL || worker->tokens_share == NULL)) ||
        worker->guessers == NULL || worker->guesses == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for the step's arrays");
    }
    return FG_OK;
}

void fg_worker_plan_destroy(fg_worker *worker)
{
    fg_worker_scores_destroy(worker);
    for (uint32_t i = 0; i < FG_WORKER_FRAMES; i++) {
        destroy_frame(&worker->frames[i]);
    }
    fg_staging_destroy(worker->staging);
    fg_mem_free(worker->snapshot);
    fg_mem_free(worker->snapshot_seqs);
    fg_mem_free(worker->plan.items);
    fg_mem_free(worker->plan.victims);
    fg_mem_free(worker->plan.admits);
    fg_mem_free(worker->admitted);
    fg_mem_free(worker->scratch);
    fg_mem_free(worker->recount);
    fg_mem_free(worker->tokens_out);
    fg_mem_free(worker->tokens_router);
    fg_mem_free(worker->tokens_share);
    fg_mem_free(worker->guessers);
    fg_mem_free(worker->guesses);
    fg_mem_free(worker->places);
    fg_mem_free(worker->asking_seqs);
}

/* ---- the snapshot ---- */

static uint32_t blocks_it_frees(const fg_worker *worker, const fg_seq *seq)
{
    uint32_t count = seq->table.promised;
    for (uint32_t i = 0; i < seq->table.count; i++) {
        count += fg_pool_refs(worker->pool, seq->table.blocks[i]) == 1;
    }
    return count;
}

static void describe(const fg_worker *worker, const fg_seq *seq, bool tight, fg_sched_seq *out)
{
    uint32_t known = seq->token_count + seq->pending;
    /* A sender's answer goes on elsewhere; another token here would write into its last block. */
    bool ends = seq->finish != FG_FINISH_NONE || (seq->pending > 0 && known == seq->token_max) ||
                (seq->side == FG_SIDE_SENDER && seq->planned == seq->prompt_count);
    uint32_t saved = seq->published * seq->table.block_size;
    *out =
        (fg_sched_seq){ .arrival = seq->arrival,
                        .tokens_left = known - seq->planned,
                        .decoding = seq->planned >= seq->prompt_count && known == seq->planned + 1,
                        .fixed = seq->steps > 0 || seq->ticket_open,
                        .stopped = ends,
                        .leaves = seq->side == FG_SIDE_SENDER,
                        .unsaid = seq->pending > 0,
                        .slots_used = seq->planned,
                        .blocks = seq->table.count,
                        .promised = seq->table.promised,
                        .frees = tight ? blocks_it_frees(worker, seq) : 0,
                        .output_tokens = fg_seq_generated(seq),
                        .redo_tokens = seq->computed > saved ? seq->computed - saved : 0 };
    if (out->decoding && !ends) {
        fg_worker_offer_drafts(worker, seq, out);
    }
}

/* Offers a waiting sequence to the plan. False: nobody behind it can be admitted now. */
static bool offer(fg_worker *worker, fg_seq *seq, uint32_t available)
{
    uint32_t block_size = seq->table.block_size;
    uint32_t known = seq->restored;
    fg_sched_wait wait = { .restores = seq->slot_count > 0, .leaves = seq->side == FG_SIDE_SENDER };
    fg_worker_hit hit = { 0 };
    if (seq->slot_count == 0) {
        fg_worker_match(worker, seq, &hit);
        if (fg_worker_should_defer(worker, seq, &hit)) {
            return true; /* it waits for somebody's prefix, and holds up nobody */
        }
        if (seq->params.cache_mode == FG_CACHE_FORCE && seq->started_ns == 0 &&
            hit.blocks + hit.tier_blocks == 0) {
            fg_worker_end(worker, seq, FG_FINISH_ERROR,
                          "prefix cache: no block of this prompt is cached on the worker that "
                          "would compute it, and the request asks for that");
            return true;
        }
        known = hit.fork_of != NULL ? seq->prompt_count - 1
                                    : (hit.blocks + hit.tier_blocks) * block_size;
        wait.restores = hit.tier_blocks > 0 && hit.fork_of == NULL;
    }
    wait.tokens_left = seq->token_count - known;
    wait.decoding = known >= seq->prompt_count && wait.tokens_left == 1;
    wait.need = fg_kv_blocks_for(seq->token_count, block_size) - hit.blocks + hit.idle_blocks;
    wait.need_all = fg_worker_blocks_aside(worker, seq) - hit.blocks + hit.idle_blocks;
    worker->hits[worker->wait_count] = hit;
    worker->waits[worker->wait_count] = wait;
    worker->wait_seqs[worker->wait_count++] = seq;
    return wait.need <= available || worker->limits_now.skip_max > 0;
}

/* The first of a line, as far as one plan may look. */
static bool offer_list(fg_worker *worker, fg_seq_list *list, uint32_t available)
{
    uint32_t looked = 0;
    fg_seq *next;
    for (fg_seq *seq = list->first; seq != NULL; seq = next) {
        next = seq->next;
        if (worker->wait_count == FG_WORKER_WAITS_MAX || looked++ == FG_WORKER_LOOKS_MAX ||
            !offer(worker, seq, available)) {
            return false;
        }
    }
    return true;
}

static void take_snapshot(fg_worker *worker, fg_sched_input *input)
{
    uint32_t available = fg_pool_available(worker->pool);
    bool tight = worker->in_flight == 0 && available < worker->running.count;
    uint32_t count = 0, reserved = 0;
    for (fg_seq *seq = worker->running.first; seq != NULL; seq = seq->next) {
        FG_ASSERT(count < worker->item_max);
        worker->snapshot_seqs[count] = seq;
        describe(worker, seq, tight, &worker->snapshot[count++]);
    }
    for (const fg_seq *seq = worker->others.first; seq != NULL; seq = seq->next) {
        reserved += seq->state != FG_SEQ_HANDING;
    }
    /* Nobody passes those that were preempted. */
    worker->limits_now = worker->options.limits;
    if (worker->preempted.count > 0) {
        worker->limits_now.skip_max = 0;
    }
    worker->wait_count = 0;
    worker->plans++;
    if (count + reserved < worker->options.limits.seqs_max &&
        offer_list(worker, &worker->preempted, available)) {
        offer_list(worker, &worker->waiting, available);
    }
    *input = (fg_sched_input){
        .limits = &worker->limits_now,
        .cost = &worker->cost,
        .seqs = worker->snapshot,
        .seq_count = count,
        .waits = worker->waits,
        .wait_count = worker->wait_count,
        .slots_reserved = reserved,
        .available = available,
        .tier_available =
            worker->options.tier != NULL ? fg_tier_available(worker->options.tier) : 0,
        .elsewhere = worker->others.count + worker->closing.count + worker->in_flight,
        .may_preempt = worker->in_flight == 0,
    };
}

/* ---- preempting ---- */

bool fg_worker_copy_room(const fg_worker *worker, uint32_t count)
{
    return worker->building != NULL &&
           count <= worker->copy_max - worker->building->step.copy_count;
}

void fg_worker_add_copy(fg_worker *worker, const fg_step_copy *copy, const fg_worker_copy *owner)
{
    fg_worker_frame *frame = worker->building;
    FG_ASSERT(frame != NULL && frame->step.copy_count < worker->copy_max);
    uint32_t at = frame->step.copy_count++;
    frame->copies[at] = *copy;
    frame->copy_owners[at] = *owner;
}

static void add_moving(fg_worker_frame *frame, fg_seq *seq, bool back)
{
    frame->moving[frame->moving_count++] = (fg_worker_moving){ .seq = seq, .back = back };
    seq->steps++;
}

/* Orders the copies of a victim's blocks into the tier. False: there is no room for them. */
static bool swap_out(fg_worker *worker, fg_seq *seq)
{
    uint32_t count = fg_kv_blocks_for(seq->computed, seq->table.block_size);
    if (count == 0 || worker->options.tier == NULL || !fg_worker_copy_room(worker, count) ||
        fg_tier_take(worker->options.tier, count, seq->slots) != FG_OK) {
        return false;
    }
    for (uint32_t i = 0; i < count; i++) {
        fg_step_copy copy = { .kind = FG_COPY_OUT,
                              .from = seq->table.blocks[i],
                              .to = seq->slots[i] };
        fg_worker_add_copy(worker, &copy, &(fg_worker_copy){ .why = FG_COPY_SWAP });
    }
    seq->slot_count = count;
    seq->restored = seq->computed;
    worker->building->swaps += count;
    worker->stats.swapped_blocks += count;
    add_moving(worker->building, seq, false);
    return true;
}

static void preempt(fg_worker *worker, const fg_plan_victim *victim)
{
    fg_seq *seq = worker->snapshot_seqs[victim->seq];
    FG_ASSERT(seq->steps == 0 && !seq->ticket_open && seq->state == FG_SEQ_RUNNING);
    bool swapped = victim->swap && swap_out(worker, seq);
    fg_debug("worker", "event=preempted req=%llx computed=%u by=%s",
             (unsigned long long)seq->request, seq->computed, swapped ? "swap" : "recompute");
    fg_worker_unexpect(worker, seq);
    fg_table_clear(&seq->table, worker->pool, NULL);
    seq->computed = seq->planned = seq->published = 0;
    FG_ASSERT(seq->scores_planned == seq->scored);
    seq->item = NULL;
    fg_worker_forget_draft(worker, seq);
    seq->preemptions++;
    worker->stats.preemptions++;
    worker->building->trace.preempted++;
    worker->building->trace.swapped += swapped;
    fg_worker_set_state(worker, seq, FG_SEQ_PREEMPTED);
}

/* ---- admitting ---- */

/* A swapped victim's blocks come back into fresh ones. */
static bool swap_in(fg_worker *worker, fg_seq *seq)
{
    uint32_t need = fg_worker_blocks_aside(worker, seq);
    if (!fg_worker_copy_room(worker, seq->slot_count) ||
        fg_pool_promise(worker->pool, need) != FG_OK) {
        return false;
    }
    seq->table.promised = need;
    fg_worker_grow_for_copies(worker, seq, seq->slot_count);
    for (uint32_t i = 0; i < seq->slot_count; i++) {
        fg_step_copy copy = { .kind = FG_COPY_IN,
                              .from = seq->slots[i],
                              .to = seq->table.blocks[i] };
        fg_worker_add_copy(worker, &copy,
                           &(fg_worker_copy){ .why = FG_COPY_RESTORE, .seq = seq, .index = i });
    }
    worker->stats.restored_blocks += seq->slot_count;
    seq->slot_count = 0; /* the frame has them now */
    seq->planned = seq->restored;
    return true;
}

static void count_hit(fg_worker *worker, fg_seq *seq, uint32_t from_tier)
{
    seq->cached_tokens = seq->planned;
    worker->stats.cache_query_tokens += seq->prompt_count;
    worker->stats.cache_hit_tokens += seq->planned;
    worker->stats.tier_hit_tokens += from_tier;
}

static fg_seq *admit(fg_worker *worker, uint32_t index)
{
    fg_seq *seq = worker->wait_seqs[index];
    if (seq->slot_count > 0) {
        if (!swap_in(worker, seq)) {
            return NULL;
        }
    } else if (!fg_worker_take_hit(worker, seq, &worker->hits[index])) {
        return NULL;
    }
    if (seq->params.cache_mode == FG_CACHE_FORCE && seq->started_ns == 0 && seq->planned == 0) {
        /* An admission before it evicted what it insists on: the next plan refuses it. */
        fg_worker_shrink(worker, seq, 0);
        fg_pool_unpromise(worker->pool, seq->table.promised);
        seq->table.promised = 0;
        return NULL;
    }
    if (seq->started_ns == 0) {
        seq->started_ns = fg_worker_now_ns(worker);
        seq->share_ns = 0;
        count_hit(worker, seq, seq->restored > seq->computed ? seq->restored - seq->computed : 0);
    }
    worker->building->trace.admitted++;
    worker->building->trace.resumed += seq->state == FG_SEQ_PREEMPTED;
    fg_worker_expect(worker, seq);
    if (seq->restored > seq->computed) {
        add_moving(worker->building, seq, true);
        fg_worker_set_state(worker, seq, FG_SEQ_RESTORING);
        return NULL; /* it runs from the next step on */
    }
    fg_worker_set_state(worker, seq, FG_SEQ_RUNNING);
    return seq;
}

/* ---- building the step ---- */

static void want_digests(fg_worker *worker, fg_seq *seq, uint32_t until, bool alone)
{
    fg_worker_frame *frame = worker->building;
    bool any = false;
    while (seq->digest_planned < until && frame->step.digest_count < worker->digest_max) {
        uint32_t index = seq->digest_planned++;
        uint32_t at = frame->step.digest_count++;
        frame->digests[at] =
            (fg_step_digest){ .block_id = seq->table.blocks[seq->ticket_first + index],
                              .arrived = seq->state == FG_SEQ_CHECKING };
        frame->digest_owners[at] = (fg_worker_digest){ .seq = seq, .index = index, .alone = alone };
        any = true;
    }
    seq->steps += any && alone;
}

/* Ticket blocks of a sender that are complete once `planned` tokens are computed. */
static uint32_t complete_ticket_blocks(const fg_seq *seq)
{
    uint32_t blocks = seq->planned == seq->prompt_count ? seq->ticket_first + seq->ticket_blocks
                                                        : seq->planned / seq->table.block_size;
    return blocks > seq->ticket_first ? blocks - seq->ticket_first : 0;
}

static void add_cost(fg_cost_step *cost, const fg_step_seq *item, bool decoding)
{
    uint64_t count = item->token_count;
    cost->decode_rows += decoding ? item->token_count : 0;
    cost->prefill_tokens += decoding ? 0 : item->token_count;
    cost->kv_tokens += count * item->first_position + count * (count + 1) / 2;
}

static void grow(fg_worker *worker, fg_seq *seq, uint32_t token_count)
{
    uint32_t had = seq->table.count;
    fg_status status = fg_table_grow(&seq->table, worker->pool, token_count, NULL);
    FG_ASSERT(status == FG_OK, "req %llx: a plan without blocks for %u tokens",
              (unsigned long long)seq->request, token_count);
    fg_worker_pin(worker, seq, had);
}

/* A sender's chunk is computed straight into the receiver's blocks as well, where they are in reach: those that begin
 * with it or later need no push then. */
static void compute_there(fg_worker *worker, fg_seq *seq, fg_step_seq *item)
{
    void *arena = NULL;
    if (worker->options.zero_copy && seq->side == FG_SIDE_SENDER && seq->ticket_open &&
        !seq->aborting) {
        arena = fg_worker_link_hold(worker, seq);
    }
    if (arena == NULL) {
        return;
    }
    if (seq->direct_from == UINT32_MAX) {
        uint32_t first = fg_kv_blocks_for(item->first_position, seq->table.block_size);
        seq->direct_from = first > seq->ticket_first ? first - seq->ticket_first : 0;
    }
    item->twin_arena = arena;
    item->twin_ids = seq->target_blocks;
    item->twin_first = seq->ticket_first;
}

static void add_item(fg_worker *worker, fg_seq *seq, const fg_plan_item *planned)
{
    fg_worker_frame *frame = worker->building;
    /* The plan was made for the hit that was offered. Another admission may have evicted a part of it
     * since, and more is left to compute then. */
    uint32_t left = seq->token_count + seq->pending - seq->planned;
    uint32_t wanted = planned->token_count - planned->draft_count;
    uint32_t token_count = wanted < left ? wanted : left;
    bool sample = token_count == left;
    uint32_t after = seq->planned + token_count;
    grow(worker, seq, after);
    uint32_t drafts = planned->draft_count > 0 && sample
                          ? fg_worker_fit_drafts(worker, seq, after, planned->draft_count)
                          : 0;
    after += drafts;
    uint32_t blocks = fg_kv_blocks_for(after, seq->table.block_size);
    const uint32_t *staged = fg_staging_copy(worker->staging, seq->table.blocks, blocks);
    if (staged == NULL) {
        return; /* the tables of this step are full: it goes with the next */
    }
    bool decoding = seq->planned >= seq->prompt_count && left == 1;
    uint32_t at = frame->step.seq_count++;
    fg_step_seq *item = &frame->items[at];
    frame->item_seqs[at] = seq;
    *item = (fg_step_seq){
        .tokens = seq->tokens + seq->planned,
        .follows = seq->pending > 0 ? seq->item : NULL,
        .token_count = token_count,
        .first_position = seq->planned,
        .block_ids = staged,
        .block_count = blocks,
        .sample = sample,
        .want_digest = sample && seq->params.want_digests,
        .sampling = { .temperature = seq->params.temperature,
                      .top_p = seq->params.top_p,
                      .min_p = seq->params.min_p,
                      .top_k = seq->params.top_k,
                      .seed = seq->params.seed },
        .shape = seq->shape,
        .constraint = seq->grammar != NULL ? &seq->constraint : NULL,
        .history = seq->tokens,
        .prompt_count = seq->prompt_count,
        .logprobs_out = sample ? fg_seq_next_logprobs(seq) : NULL,
        .likely_count = seq->params.want_logprobs > 0 ? seq->params.want_logprobs - 1 : 0,
        .embedding_out = sample ? seq->embedding : NULL,
    };
    fg_worker_add_drafts(worker, seq, item, drafts);
    fg_worker_ask_scores(worker, seq, item);
    compute_there(worker, seq, item);
    add_cost(&frame->cost, item, decoding);
    frame->trace.decode_rows += decoding;
    frame->trace.drafted += drafts;
    frame->trace.chunks += !decoding;
    seq->chunks += !decoding && fg_seq_generated(seq) == 0;
    seq->item = item;
    seq->planned = after;
    seq->pending += sample && item->follows == NULL;
    seq->steps++;
    if (seq->side == FG_SIDE_SENDER) {
        want_digests(worker, seq, complete_ticket_blocks(seq), false);
    }
}

static void add_checks(fg_worker *worker)
{
    for (fg_seq *seq = worker->others.first; seq != NULL; seq = seq->next) {
        if (seq->state == FG_SEQ_CHECKING || seq->state == FG_SEQ_HANDING) {
            want_digests(worker, seq, seq->ticket_blocks, true);
        }
    }
}

static void begin_frame(fg_worker *worker)
{
    uint32_t at = (worker->first_frame + worker->in_flight) % FG_WORKER_FRAMES;
    fg_worker_frame *frame = &worker->frames[at];
    worker->building = frame;
    frame->step = (fg_step){ .copies = frame->copies,
                             .seqs = frame->items,
                             .digests = frame->digests,
                             .asks = frame->asks };
    frame->swaps = frame->released_count = frame->moving_count = 0;
    frame->scores.count = 0;
    frame->likely_used = 0;
    frame->cost = (fg_cost_step){ 0 };
    frame->trace = (fg_trace_step){ .planned_ns = fg_worker_now_ns(worker) };
}

/* What the plan does to the sequences. True: blocks may have come back that it did not count on. */
static bool apply(fg_worker *worker, const fg_sched_plan *plan, uint32_t seq_count)
{
    for (uint32_t i = 0; i < plan->victim_count; i++) {
        preempt(worker, &plan->victims[i]);
    }
    if (plan->at_capacity != UINT32_MAX) {
        fg_seq *seq = worker->snapshot_seqs[plan->at_capacity];
        fg_warn("worker", "event=at_capacity req=%llx tokens=%u", (unsigned long long)seq->request,
                seq->token_count);
        fg_worker_end(worker, seq, FG_FINISH_LENGTH, "");
    }
    /* Those that run get their blocks before anybody enters: an admission may need more than the plan
     * thought (another one evicted what it would have found), and is put off then. */
    for (uint32_t i = 0; i < plan->item_count; i++) {
        if (plan->items[i].seq < seq_count) {
            fg_seq *seq = worker->snapshot_seqs[plan->items[i].seq];
            uint32_t known = plan->items[i].token_count - plan->items[i].draft_count;
            grow(worker, seq, seq->planned + known);
        }
    }
    for (uint32_t i = 0; i < plan->admit_count; i++) {
        worker->admitted[i] = admit(worker, plan->admits[i]);
    }
    for (uint32_t i = 0; i < plan->item_count; i++) {
        uint32_t index = plan->items[i].seq;
        fg_seq *seq =
            index < seq_count ? worker->snapshot_seqs[index] : worker->admitted[index - seq_count];
        if (seq != NULL) {
            add_item(worker, seq, &plan->items[i]);
        }
    }
    add_checks(worker);
    fg_worker_ask(worker);
    return plan->at_capacity != UINT32_MAX || plan->victim_count > 0;
}

/* Whether a plan made while a step runs is better made again when it has ended. */
static bool better_later(const fg_worker *worker, const fg_sched_plan *plan)
{
    if (worker->in_flight == 0) {
        return false;
    }
    fg_cost_step cost = { 0 };
    for (uint32_t i = 0; i < plan->item_count; i++) {
        const fg_plan_item *item = &plan->items[i];
        bool fresh = item->seq >= worker->running.count;
        bool decoding = !fresh && worker->snapshot[item->seq].decoding;
        cost.decode_rows += decoding ? item->token_count : 0;
        cost.prefill_tokens += decoding ? 0 : item->token_count;
    }
    return plan->short_of_blocks || plan->drafts_wait ||
           (cost.prefill_tokens > 0 && fg_cost_predict(&worker->cost, &cost) > AHEAD_CHUNK_NS);
}

/* Every block that a copy of this step reads or writes keeps a reference until the step has ended: its
 * owner may be cancelled before the engine comes to it, and the next one may be a remote writer. (A swapped
 * victim's blocks are wanted in this very step; fg_worker_can_receive keeps remote writers off those.) */
static void hold_copied(fg_worker *worker, fg_worker_frame *frame)
{
    for (uint32_t i = 0; i < frame->step.copy_count; i++) {
        const fg_step_copy *copy = &frame->copies[i];
        if (frame->copy_owners[i].why == FG_COPY_SWAP) {
            continue;
        }
        if (copy->kind != FG_COPY_IN) {
            fg_pool_ref(worker->pool, copy->from);
            frame->released[frame->released_count++] = copy->from;
        }
        if (copy->kind != FG_COPY_OUT) {
            fg_pool_ref(worker->pool, copy->to);
            frame->released[frame->released_count++] = copy->to;
        }
    }
    FG_ASSERT(frame->released_count <= worker->released_max);
}

/* Somebody stands still, would be thrown out or cut off, or is not let in, for want of blocks. */
static bool is_short(const fg_sched_plan *plan)
{
    return plan->short_of_blocks || plan->victim_count > 0 || plan->at_capacity != UINT32_MAX ||
           (plan->kept_out && plan->admit_count == 0);
}

typedef enum launched { NOTHING, LAUNCHED, PLAN_AGAIN } launched;

static launched launch(fg_worker *worker)
{
    fg_sched_input input;
    if (worker->drafting > 0) {
        return NOTHING; /* where those sequences stand is known when their step has ended */
    }
    take_snapshot(worker, &input);
    fg_sched_plan_step(&input, &worker->plan);
    if (is_short(&worker->plan) && fg_worker_yield_pin(worker)) {
        return PLAN_AGAIN;
    }
    if (better_later(worker, &worker->plan)) {
        return NOTHING;
    }
    begin_frame(worker);
    fg_worker_frame *frame = worker->building;
    bool freed = apply(worker, &worker->plan, input.seq_count);
    worker->building = NULL;
    fg_step *step = &frame->step;
    if (step->seq_count == 0 && step->digest_count == 0 && step->copy_count == 0) {
        FG_ASSERT(frame->released_count == 0 && frame->moving_count == 0);
        return freed ? PLAN_AGAIN : NOTHING;
    }
    hold_copied(worker, frame);
    fg_error err;
    frame->trace.number = ++worker->step_number;
    frame->trace.prefill_tokens = frame->cost.prefill_tokens;
    frame->trace.copies = step->copy_count;
    fg_worker_note_began(worker, frame);
    fg_status status = fg_engine_begin(worker->options.engine, step, &err);
    FG_ASSERT(status == FG_OK, "engine refused a plan: %s", err.text);
    fg_staging_turn(worker->staging); /* this step keeps its area until it was booked */
    worker->in_flight++;
    worker->load_dirty = true;
    return LAUNCHED;
}

void fg_worker_run(fg_worker *worker)
{
    uint32_t depth = worker->options.overlap ? FG_ENGINE_STEPS_MAX : 1;
    while (worker->in_flight < depth && launch(worker) != NOTHING) {
    }
}
