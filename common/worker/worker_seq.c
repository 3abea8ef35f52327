/* The life of a worker's sequences: how they come in, hold blocks and tickets, and end; and the recount
 * of all that. */
#include "common/worker/worker_internal.h"

#include <string.h>

#include "common/base/hash.h"
#include "common/base/mem.h"

#define ALL_ROUTERS UINT32_MAX

/* Routers number their requests on their own. */
static uint64_t request_key(uint32_t router, uint64_t request, uint32_t attempt)
{
    return fg_hash_mix(fg_hash_mix(request) ^ attempt ^ (uint64_t)router << 32);
}

fg_seq *fg_worker_find_request(fg_worker *worker, uint64_t request, uint32_t attempt)
{
    return fg_map_get(worker->by_request, request_key(worker->hearing, request, attempt));
}

static bool has_ended(const fg_worker *worker, uint64_t key)
{
    for (uint32_t i = 0; i < FG_WORKER_ENDED_MAX; i++) {
        if (worker->ended[i] == key) {
            return true;
        }
    }
    return false;
}

static void note_ended(fg_worker *worker, uint64_t key)
{
    worker->ended[worker->ended_next++ % FG_WORKER_ENDED_MAX] = key;
}

void fg_worker_send_done(fg_worker *worker, const fg_msg *about, fg_finish finish, const char *text)
{
    fg_msg msg = { .kind = FG_MSG_DONE, .request = about->request, .attempt = about->attempt };
    msg.done.finish = finish;
    msg.done.text = text;
    fg_worker_send(worker, worker->hearing, &msg);
}

/* Why a sequence can never run here; NULL when it can. One that cannot reach its last token, because
 * there are not so many blocks, runs, and ends when it has them all. */
static const char *misfit(const fg_worker *worker, const uint32_t *tokens, uint32_t token_count,
                          const fg_wire_params *params)
{
    const fg_worker_options *options = &worker->options;
    if (token_count == 0 || params->max_tokens == 0) {
        return "empty prompt or max_tokens 0";
    }
    if ((uint64_t)token_count + params->max_tokens > options->context_max) {
        return "prompt and max_tokens exceed this worker's context";
    }
    if (fg_kv_blocks_for(token_count, options->layout.block_size) > options->block_count) {
        return "the prompt exceeds this worker's KV blocks";
    }
    for (uint32_t i = 0; i < token_count; i++) {
        if (tokens[i] >= options->vocab_size) {
            return "token id outside of the vocabulary";
        }
    }
    for (uint32_t i = 0; i < params->bias_count; i++) {
        if (params->biases[i].id >= options->vocab_size) {
            return "token id outside of the vocabulary";
        }
    }
    return NULL;
}

/* The model's end tokens, when somebody first needs them: at the worker's start its tokenizer may still be read. */
static bool find_ends(fg_worker *worker)
{
    const fg_worker_options *options = &worker->options;
    if (worker->ends != NULL) {
        return true;
    }
    worker->end_count = 0;
    for (uint32_t id = 0; id < options->vocab_size; id++) {
        worker->end_count += options->is_end(options->ctx, id);
    }
    worker->ends = fg_mem_array(worker->end_count + 1, sizeof *worker->ends);
    for (uint32_t id = 0, at = 0; worker->ends != NULL && at < worker->end_count; id++) {
        if (options->is_end(options->ctx, id)) {
            worker->ends[at++] = id;
        }
    }
    return worker->ends != NULL;
}

/* A sequence with all that its request asks for. NULL: `err` says why not. */
static fg_seq *make_seq(fg_worker *worker, const fg_msg *msg, const uint32_t *tokens,
                        uint32_t token_count, const fg_wire_params *params, fg_error *err)
{
    fg_seq *seq = fg_seq_create(msg->request, msg->attempt, tokens, token_count, params,
                                worker->options.layout.block_size);
    fg_status status = fg_fail(err, FG_AGAIN, "worker is out of memory");
    bool known = (params->min_tokens == 0 || find_ends(worker)) &&
                 (params->want_scores == 0 || fg_worker_scores_ready(worker));
    if (seq != NULL && params->want_embedding) {
        seq->embedding =
            fg_arena_array(seq->arena, worker->options.embedding_length, sizeof *seq->embedding);
        known = known && seq->embedding != NULL;
    }
    if (seq != NULL && known && fg_seq_shape(seq, worker->ends, worker->end_count)) {
        status = fg_worker_take_grammar(worker, seq, params, err);
    }
    if (status == FG_OK) {
        status = fg_map_put(worker->by_request,
                            request_key(worker->hearing, msg->request, msg->attempt), seq);
    }
    if (status != FG_OK && seq != NULL) {
        fg_worker_give_grammar(worker, seq);
        fg_seq_destroy(seq);
    }
    return status == FG_OK ? seq : NULL;
}

fg_seq *fg_worker_add_seq(fg_worker *worker, const fg_msg *msg, const uint32_t *tokens,
                          uint32_t token_count, const fg_wire_params *params)
{
    uint64_t key = request_key(worker->hearing, msg->request, msg->attempt);
    fg_seq *seq = NULL;
    if (fg_map_get(worker->by_request, key) != NULL || has_ended(worker, key)) {
        worker->stats.stale_dropped++; /* a doubled message: the first one stands */
        return NULL;
    }
    fg_error err;
    const char *why = misfit(worker, tokens, token_count, params);
    if (why == NULL) {
        seq = make_seq(worker, msg, tokens, token_count, params, &err);
        why = seq == NULL ? err.text : NULL;
    }
    if (why != NULL) {
        note_ended(worker, key);
        fg_worker_send_done(worker, msg, FG_FINISH_ERROR, why);
        return NULL;
    }
    seq->router = worker->hearing;
    seq->arrival = ++worker->next_arrival;
    seq->queued_ns = fg_worker_now_ns(worker);
    seq->started_ns = 0;
    seq->since_ns = seq->queued_ns;
    seq->rank = fg_sched_rank(seq->queued_ns, params->priority);
    fg_worker_first_keys(worker, seq);
    worker->load_dirty = true;
    return seq;
}

void fg_worker_trace_state(fg_worker *worker, fg_seq *seq)
{
    uint64_t now = fg_worker_now_ns(worker);
    fg_trace_span span = { .request = seq->request,
                           .attempt = seq->attempt,
                           .at_worker = true,
                           .state = fg_seq_state_name(seq->state),
                           .began_ns = seq->since_ns,
                           .ended_ns = now,
                           .tokens = seq->token_count };
    if (seq->list != NULL) { /* else it has just been made */
        fg_worker_add_spans(worker, seq, now);
    }
    if (seq->list != NULL && now > seq->since_ns) { /* what took no time is not drawn */
        fg_trace_add_span(worker->options.trace, &span);
    }
    seq->since_ns = now;
}

void fg_worker_set_state(fg_worker *worker, fg_seq *seq, fg_seq_state state)
{
    fg_worker_trace_state(worker, seq);
    seq->state = state;
    fg_seq_unlink(seq);
    switch (state) {
    case FG_SEQ_WAITING:
        fg_seq_insert_by_rank(&worker->waiting, seq);
        break;
    case FG_SEQ_PREEMPTED:
        fg_seq_insert_by_arrival(&worker->preempted, seq);
        break;
    case FG_SEQ_RUNNING:
        fg_seq_append(&worker->running, seq);
        break;
    case FG_SEQ_CLOSING:
        fg_seq_append(&worker->closing, seq);
        break;
    default:
        fg_seq_append(&worker->others, seq);
        break;
    }
}

/* ---- tickets and blocks ---- */

void fg_worker_pin(fg_worker *worker, const fg_seq *seq, uint32_t from)
{
    uint32_t first = from > seq->ticket_first ? from : seq->ticket_first;
    for (uint32_t i = first; seq->ticket_open && i < seq->table.count; i++) {
        fg_pool_pin(worker->pool, seq->table.blocks[i]);
    }
}

bool fg_worker_bind_ticket(fg_worker *worker, fg_seq *seq)
{
    if (fg_map_get(worker->by_ticket, seq->ticket) != NULL ||
        fg_map_put(worker->by_ticket, seq->ticket, seq) != FG_OK) {
        return false;
    }
    seq->ticket_open = true;
    fg_worker_pin(worker, seq, 0);
    return true;
}

void fg_worker_release_ticket(fg_worker *worker, fg_seq *seq)
{
    FG_ASSERT(seq->ticket_open);
    fg_map_remove(worker->by_ticket, seq->ticket);
    seq->ticket_open = false;
    for (uint32_t i = seq->ticket_first; i < seq->table.count; i++) {
        fg_pool_unpin(worker->pool, seq->table.blocks[i]);
    }
    worker->load_dirty = true;
}

/* The newest step that may read blocks: the one being built, or the last one launched. */
static fg_worker_frame *newest_frame(fg_worker *worker)
{
    if (worker->building != NULL) {
        return worker->building;
    }
    uint32_t last = worker->first_frame + worker->in_flight - 1;
    return worker->in_flight == 0 ? NULL : &worker->frames[last % FG_WORKER_FRAMES];
}

static void copy_block(void *ctx, uint32_t from_block, uint32_t to_block)
{
    fg_worker *worker = ctx;
    fg_step_copy copy = { .kind = FG_COPY_BLOCK, .from = from_block, .to = to_block };
    fg_worker_add_copy(worker, &copy, &(fg_worker_copy){ .why = FG_COPY_FORK });
    worker->stats.copied_blocks++;
}

static void release_block(void *ctx, uint32_t block_id)
{
    fg_worker *worker = ctx;
    fg_worker_frame *frame = newest_frame(worker);
    if (frame == NULL) {
        fg_pool_unref(worker->pool, block_id);
        return;
    }
    FG_ASSERT(frame->released_count < worker->released_max);
    frame->released[frame->released_count++] = block_id;
}

fg_table_ops fg_worker_table_ops(fg_worker *worker)
{
    return (fg_table_ops){ .copy = copy_block, .release = release_block, .ctx = worker };
}

void fg_worker_shrink(fg_worker *worker, fg_seq *seq, uint32_t block_count)
{
    uint32_t keep = block_count > seq->ticket_first ? block_count : seq->ticket_first;
    for (uint32_t i = seq->table.count; seq->ticket_open && i > keep; i--) {
        fg_pool_unpin(worker->pool, seq->table.blocks[i - 1]);
    }
    /* A copy of the step being built may be about them, and they are its own then. Else a restore has failed: no step under
     * way works on them, and many may let a long prefix go that they shared, more than `released` has room for. */
    fg_table_ops ops = fg_worker_table_ops(worker);
    fg_table_truncate(&seq->table, worker->pool, block_count * seq->table.block_size,
                      worker->building != NULL ? &ops : NULL);
}

static void give_blocks(fg_worker *worker, fg_seq *seq)
{
    if (seq->given) {
        return;
    }
    seq->given = true;
    fg_worker_unexpect(worker, seq);
    for (uint32_t i = 0; i < seq->slot_count; i++) {
        fg_tier_give(worker->options.tier, seq->slots[i]);
    }
    seq->slot_count = 0;
    /* The table's ids stay known while the ticket is open: they are unpinned when it closes. */
    fg_pool_unpromise(worker->pool, seq->table.promised);
    seq->table.promised = 0;
    for (uint32_t i = seq->table.count; i > 0; i--) {
        fg_pool_unref(worker->pool, seq->table.blocks[i - 1]);
    }
    worker->load_dirty = true;
}

void fg_worker_settle(fg_worker *worker, fg_seq *seq)
{
    FG_ASSERT(seq->state == FG_SEQ_CLOSING);
    if (seq->steps > 0) {
        return;
    }
    give_blocks(worker, seq);
    if (!seq->ticket_open) {
        fg_seq_unlink(seq);
        fg_worker_give_grammar(worker, seq);
        fg_seq_destroy(seq);
    }
}

void fg_worker_end(fg_worker *worker, fg_seq *seq, fg_finish finish, const char *text)
{
    FG_ASSERT(seq->state != FG_SEQ_CLOSING);
    if (finish != FG_FINISH_CANCELLED) {
        fg_msg msg = { .kind = FG_MSG_DONE, .request = seq->request, .attempt = seq->attempt };
        msg.done.finish = finish;
        msg.done.text = text;
        msg.done.generated = fg_seq_generated(seq);
        msg.done.preemptions = seq->preemptions;
        msg.done.refused = finish == FG_FINISH_ERROR && seq->params.cache_mode == FG_CACHE_FORCE &&
                           strncmp(text, "prefix cache", 12) == 0;
        msg.done.broken = finish == FG_FINISH_ERROR && seq->broken;
        fg_worker_send(worker, seq->router, &msg);
    }
    uint64_t key = request_key(seq->router, seq->request, seq->attempt);
    fg_map_remove(worker->by_request, key);
    note_ended(worker, key);
    fg_worker_unexpect(worker, seq);
    fg_worker_forget_draft(worker, seq);
    fg_worker_set_state(worker, seq, FG_SEQ_CLOSING);
    if (seq->ticket_open && !seq->aborting) {
        seq->aborting = true;
        if (seq->side == FG_SIDE_SENDER) {
            fg_worker_link_abort(worker, seq);
            if (seq->pushed == 0 && seq->direct_from == UINT32_MAX) {
                /* The link never saw this ticket, reads nothing, and (where the receiver has fenced
                 * it already) may have no more to say about it. */
                fg_worker_release_ticket(worker, seq);
            }
        } else {
            seq->fence_begun_ns = fg_worker_now_ns(worker);
            seq->fence_asked_ns = seq->fence_begun_ns;
            fg_worker_link_fence(worker, seq);
        }
    }
    fg_worker_settle(worker, seq);
}

/* Those of one router, or of all. */
static void end_those(fg_worker *worker, uint32_t router, fg_finish finish, const char *why)
{
    fg_seq_list *lists[] = { &worker->preempted, &worker->waiting, &worker->running,
                             &worker->others };
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        fg_seq *next;
        for (fg_seq *seq = lists[i]->first; seq != NULL; seq = next) {
            next = seq->next;
            if (router == ALL_ROUTERS || seq->router == router) {
                fg_worker_end(worker, seq, finish, why);
            }
        }
    }
}

void fg_worker_end_all(fg_worker *worker, fg_finish finish, const char *why)
{
    end_those(worker, ALL_ROUTERS, finish, why);
}

void fg_worker_cancel_of(fg_worker *worker, uint32_t router)
{
    end_those(worker, router, FG_FINISH_CANCELLED, "");
}

bool fg_worker_can_receive(const fg_worker *worker)
{
    uint32_t used = worker->running.count;
    for (const fg_seq *seq = worker->others.first; seq != NULL; seq = seq->next) {
        used += seq->state != FG_SEQ_HANDING; /* which has computed all it will */
    }
    for (uint32_t i = 0; i < worker->in_flight; i++) {
        if (worker->frames[(worker->first_frame + i) % FG_WORKER_FRAMES].swaps > 0) {
            return false;
        }
    }
    return used < worker->options.limits.seqs_max;
}

bool fg_worker_is_arriving(const fg_worker *worker, uint32_t block_id)
{
    for (const fg_seq *seq = worker->others.first; seq != NULL; seq = seq->next) {
        bool arrives = seq->side == FG_SIDE_RECEIVER && seq->ticket_open;
        for (uint32_t i = seq->ticket_first; arrives && i < seq->table.count; i++) {
            if (seq->table.blocks[i] == block_id) {
                return true;
            }
        }
    }
    return false;
}

/* ---- the recount ---- */

static void count_table(fg_worker *worker, const fg_seq *seq, uint32_t *promised, uint32_t *swapped)
{
    *promised += seq->table.promised;
    *swapped += seq->slot_count;
    for (uint32_t i = 0; !seq->given && i < seq->table.count; i++) {
        worker->recount[seq->table.blocks[i]]++;
    }
}

static void count_list(fg_worker *worker, const fg_seq_list *list, uint32_t *promised,
                       uint32_t *swapped)
{
    uint32_t count = 0;
    for (const fg_seq *seq = list->first; seq != NULL; seq = seq->next) {
        FG_ASSERT((list == &worker->closing) == (seq->state == FG_SEQ_CLOSING));
        FG_ASSERT((list == &worker->running) == (seq->state == FG_SEQ_RUNNING));
        FG_ASSERT(seq->computed <= seq->planned && seq->pending <= 1);
        FG_ASSERT(seq->given || seq->planned <= seq->table.count * seq->table.block_size,
                  "%u tokens planned in %u blocks", seq->planned, seq->table.count);
        bool decodes = seq->state == FG_SEQ_RUNNING && seq->planned > seq->prompt_count &&
                       seq->token_count + seq->pending <= seq->planned + 1;
        /* The block of a token that found no room in its step may be there already. */
        FG_ASSERT(!decodes ||
                      seq->table.count <= fg_kv_blocks_for(seq->planned + 1, seq->table.block_size),
                  "%u blocks for %u tokens", seq->table.count, seq->planned);
        FG_ASSERT(seq->slot_count == 0 || seq->state == FG_SEQ_PREEMPTED ||
                  seq->state == FG_SEQ_CLOSING);
        count_table(worker, seq, promised, swapped);
        count++;
    }
    FG_ASSERT(count == list->count);
}

void fg_worker_check(fg_worker *worker)
{
    fg_pool_check(worker->pool);
    fg_prefix_check(worker->prefix);
    fg_pool_stats pool;
    fg_pool_stats_get(worker->pool, &pool);
    memset(worker->recount, 0, worker->options.block_count * sizeof *worker->recount);
    const fg_seq_list *lists[] = { &worker->preempted, &worker->waiting, &worker->running,
                                   &worker->others, &worker->closing };
    uint32_t promised = 0, swapped = 0;
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++) {
        count_list(worker, lists[i], &promised, &swapped);
    }
    for (uint32_t i = 0; i < worker->in_flight; i++) {
        const fg_worker_frame *frame =
            &worker->frames[(worker->first_frame + i) % FG_WORKER_FRAMES];
        for (uint32_t j = 0; j < frame->released_count; j++) {
            worker->recount[frame->released[j]]++;
        }
        for (uint32_t j = 0; j < frame->step.copy_count; j++) {
            swapped += frame->copy_owners[j].why == FG_COPY_RESTORE;
        }
    }
    fg_worker_recount_pins(worker, worker->recount);
    FG_ASSERT(promised == pool.promised, "promised %u, sequences hold %u", pool.promised, promised);
    for (uint32_t i = 0; i < worker->options.block_count; i++) {
        FG_ASSERT(worker->recount[i] == fg_pool_refs(worker->pool, i),
                  "block %u has %u references, %u are explained", i, fg_pool_refs(worker->pool, i),
                  worker->recount[i]);
    }
    if (worker->options.tier != NULL) {
        fg_tier_stats tier;
        fg_tier_check(worker->options.tier);
        fg_tier_stats_get(worker->options.tier, &tier);
        FG_ASSERT(swapped == tier.swapped, "%u slots are swapped, sequences explain %u",
                  tier.swapped, swapped);
    }
}
