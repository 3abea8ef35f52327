#include "common/worker/worker_internal.h"

#include "common/base/log.h"
#include "common/base/mem.h"

fg_status fg_worker_step_create(fg_worker *worker, fg_error *err)
{
    const fg_sched_limits *limits = &worker->options.limits;
    worker->item_max = limits->seqs_max;
    /* Every block that a full step can complete (a chunk may end one block, fill some, and leave the
     * last one of its prompt), and some room for checking arrivals. */
    worker->digest_max =
        limits->step_tokens_max / worker->options.layout.block_size + 2 * limits->seqs_max + 256;
    worker->items = fg_mem_array(worker->item_max, sizeof *worker->items);
    worker->item_seqs = fg_mem_array(worker->item_max, sizeof *worker->item_seqs);
    worker->digests = fg_mem_array(worker->digest_max, sizeof *worker->digests);
    worker->digest_owners = fg_mem_array(worker->digest_max, sizeof *worker->digest_owners);
    worker->snapshot = fg_mem_array(worker->item_max, sizeof *worker->snapshot);
    worker->snapshot_seqs = fg_mem_array(worker->item_max, sizeof *worker->snapshot_seqs);
    worker->plan = fg_mem_array(worker->item_max, sizeof *worker->plan);
    worker->needs = fg_mem_array(worker->item_max, sizeof *worker->needs);
    worker->tokens_out = fg_mem_array(worker->item_max, sizeof *worker->tokens_out);
    if (worker->items == NULL || worker->item_seqs == NULL || worker->digests == NULL ||
        worker->digest_owners == NULL || worker->snapshot == NULL ||
        worker->snapshot_seqs == NULL || worker->plan == NULL || worker->needs == NULL ||
        worker->tokens_out == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for the step's arrays");
    }
    return FG_OK;
}

void fg_worker_step_destroy(fg_worker *worker)
{
    fg_mem_free(worker->items);
    fg_mem_free(worker->item_seqs);
    fg_mem_free(worker->digests);
    fg_mem_free(worker->digest_owners);
    fg_mem_free(worker->snapshot);
    fg_mem_free(worker->snapshot_seqs);
    fg_mem_free(worker->plan);
    fg_mem_free(worker->needs);
    fg_mem_free(worker->tokens_out);
}

static void admit(fg_worker *worker)
{
    uint32_t count = 0;
    for (fg_seq *seq = worker->waiting.first; seq != NULL && count < worker->item_max;
         seq = seq->next) {
        worker->needs[count++] = fg_worker_need(worker, seq);
    }
    fg_pool_stats pool;
    fg_pool_stats_get(worker->pool, &pool);
    uint32_t admitted = fg_sched_admit(&worker->options.limits, fg_worker_slots_used(worker),
                                       pool.free - pool.promised, worker->needs, count);
    for (uint32_t i = 0; i < admitted; i++) {
        fg_seq *seq = worker->waiting.first;
        fg_status status = fg_pool_promise(worker->pool, worker->needs[i]);
        FG_ASSERT(status == FG_OK);
        seq->promised = worker->needs[i];
        seq->started_ns = fg_worker_now_ns(worker);
        fg_worker_set_state(worker, seq, FG_SEQ_RUNNING);
    }
}

/* Takes the blocks that `token_count` more tokens need, from the sequence's promise. */
static void grow(fg_worker *worker, fg_seq *seq, uint32_t token_count)
{
    uint32_t need =
        fg_kv_blocks_for(seq->computed + token_count, worker->options.layout.block_size);
    if (need <= seq->block_count) {
        return;
    }
    uint32_t more = need - seq->block_count;
    FG_ASSERT(more <= seq->promised, "req %llu needs %u blocks, has %u promised",
              (unsigned long long)seq->request, more, seq->promised);
    uint32_t *fresh = seq->blocks + seq->block_count;
    fg_pool_take_promised(worker->pool, more, fresh);
    seq->promised -= more;
    seq->block_count += more;
    for (uint32_t i = 0; i < more && seq->ticket_open; i++) {
        fg_pool_pin(worker->pool, fresh[i]);
    }
}

static void want_digests(fg_worker *worker, fg_seq *seq, uint32_t from, uint32_t until)
{
    for (uint32_t i = from; i < until && worker->step.digest_count < worker->digest_max; i++) {
        uint32_t at = worker->step.digest_count++;
        worker->digests[at].block_id = seq->blocks[i];
        worker->digest_owners[at] =
            (fg_worker_digest){ .seq = seq, .index = i, .receiver = seq->side == FG_SIDE_RECEIVER };
        seq->in_step = true;
    }
}

static void add_item(fg_worker *worker, const fg_plan_item *item)
{
    fg_seq *seq = worker->snapshot_seqs[item->seq];
    grow(worker, seq, item->token_count);
    uint32_t at = worker->step.seq_count++;
    worker->item_seqs[at] = seq;
    worker->items[at] = (fg_step_seq){
        .tokens = seq->tokens + seq->computed,
        .token_count = item->token_count,
        .first_position = seq->computed,
        .block_ids = seq->blocks,
        .block_count = seq->block_count,
        .sample = item->sample,
        .want_digest = item->sample && seq->params.want_digests,
        .sampling = { .temperature = seq->params.temperature,
                      .top_p = seq->params.top_p,
                      .min_p = seq->params.min_p,
                      .top_k = seq->params.top_k,
                      .seed = seq->params.seed },
    };
    seq->in_step = true;
    if (seq->side == FG_SIDE_SENDER) {
        uint32_t after = seq->computed + item->token_count;
        uint32_t complete = after == seq->prompt_count ? seq->ticket_blocks
                                                       : after / worker->options.layout.block_size;
        want_digests(worker, seq, seq->digested, complete);
    }
}

void fg_worker_run(fg_worker *worker)
{
    if (worker->stepping) {
        return;
    }
    admit(worker);
    uint32_t count = 0;
    for (fg_seq *seq = worker->running.first; seq != NULL; seq = seq->next) {
        FG_ASSERT(count < worker->item_max);
        worker->snapshot_seqs[count] = seq;
        worker->snapshot[count++].prompt_left =
            seq->computed < seq->prompt_count ? seq->prompt_count - seq->computed : 0;
    }
    worker->step = (fg_step){ .seqs = worker->items, .digests = worker->digests };
    uint32_t planned =
        fg_sched_plan(&worker->options.limits, worker->snapshot, count, worker->plan);
    for (uint32_t i = 0; i < planned; i++) {
        add_item(worker, &worker->plan[i]);
    }
    for (fg_seq *seq = worker->others.first; seq != NULL; seq = seq->next) {
        if (seq->state == FG_SEQ_CHECKING) {
            want_digests(worker, seq, seq->digested, seq->ticket_blocks);
        }
    }
    if (worker->step.seq_count == 0 && worker->step.digest_count == 0) {
        return;
    }
    fg_error err;
    fg_status status = fg_engine_begin(worker->options.engine, &worker->step, &err);
    FG_ASSERT(status == FG_OK, "engine refused a plan: %s", err.text);
    worker->stepping = true;
    worker->load_dirty = true;
}

/* Books one chosen token; the sequence's end, if this is it, is left in seq->finish. */
static void emit(fg_worker *worker, fg_seq *seq, const fg_step_seq *item)
{
    uint32_t index = fg_seq_generated(seq);
    seq->tokens[seq->token_count++] = item->token_out;
    worker->stats.generated_tokens++;
    if (!seq->params.ignore_eos && worker->options.is_end(worker->options.ctx, item->token_out)) {
        seq->finish = FG_FINISH_STOP;
    } else if (seq->token_count == seq->token_max) {
        seq->finish = FG_FINISH_LENGTH;
    }
    if (index > 0) {
        worker->tokens_out[worker->tokens_out_count++] =
            (fg_wire_token){ .request = seq->request,
                             .attempt = seq->attempt,
                             .index = index,
                             .id = item->token_out,
                             .digest = item->digest_out };
        return;
    }
    seq->first_token = item->token_out;
    seq->first_digest = item->digest_out;
    seq->computed_ns = fg_worker_now_ns(worker);
    fg_msg msg = { .kind = FG_MSG_FIRST, .request = seq->request, .attempt = seq->attempt };
    msg.first.id = item->token_out;
    msg.first.digest = item->digest_out;
    msg.first.queue_ns = seq->started_ns - seq->queued_ns;
    msg.first.compute_ns = seq->computed_ns - seq->started_ns;
    fg_worker_send(worker, &msg);
}

static void book_digests(fg_worker *worker)
{
    for (uint32_t i = 0; i < worker->step.digest_count; i++) {
        fg_seq *seq = worker->digest_owners[i].seq;
        uint32_t index = worker->digest_owners[i].index;
        uint64_t digest = worker->digests[i].digest_out;
        seq->in_step = false;
        if (seq->side == FG_SIDE_SENDER) {
            seq->digests[index] = digest;
        } else if (seq->digests[index] != digest) {
            seq->bad[seq->bad_count++] = index;
        }
        seq->digested = index + 1;
    }
}

static void book_items(fg_worker *worker)
{
    worker->tokens_out_count = 0;
    for (uint32_t i = 0; i < worker->step.seq_count; i++) {
        fg_seq *seq = worker->item_seqs[i];
        const fg_step_seq *item = &worker->items[i];
        seq->in_step = false;
        if (seq->computed < seq->prompt_count) {
            worker->stats.prompt_tokens += item->token_count;
        }
        seq->computed += item->token_count;
        if (seq->state != FG_SEQ_CLOSING && item->sample) {
            emit(worker, seq, item);
        }
    }
    if (worker->tokens_out_count > 0) {
        fg_msg msg = { .kind = FG_MSG_TOKENS };
        msg.tokens.tokens = worker->tokens_out;
        msg.tokens.count = worker->tokens_out_count;
        fg_worker_send(worker, &msg);
    }
}

/* After the step's results are booked: ends, hand-overs, and sequences that only waited for the step. */
static void move_on(fg_worker *worker)
{
    for (uint32_t i = 0; i < worker->step.seq_count; i++) {
        fg_seq *seq = worker->item_seqs[i];
        if (seq->state == FG_SEQ_CLOSING) {
            fg_worker_settle(worker, seq);
        } else if (seq->finish != FG_FINISH_NONE) {
            fg_worker_end(worker, seq, seq->finish, "");
        } else if (seq->side == FG_SIDE_SENDER) {
            worker->options.prefill->on_computed(worker, seq);
        }
    }
    for (uint32_t i = 0; i < worker->step.digest_count; i++) {
        fg_seq *seq = worker->digest_owners[i].seq;
        /* A sequence's digests lie together; only the last of them speaks for it. */
        bool last = i + 1 == worker->step.digest_count || worker->digest_owners[i + 1].seq != seq;
        if (!last || !worker->digest_owners[i].receiver) {
            continue;
        }
        if (seq->state == FG_SEQ_CLOSING) {
            fg_worker_settle(worker, seq);
        } else if (seq->state == FG_SEQ_CHECKING && seq->digested == seq->ticket_blocks) {
            worker->options.decode->on_checked(worker, seq);
        }
    }
}

void fg_worker_on_engine(fg_worker *worker)
{
    if (worker->stepping && fg_engine_poll(worker->options.engine)) {
        worker->stepping = false;
        worker->stats.steps++;
        worker->stats.busy_ns += worker->step.compute_ns_out;
        book_digests(worker);
        book_items(worker);
        move_on(worker);
        worker->load_dirty = true;
    }
    fg_worker_run(worker);
}
