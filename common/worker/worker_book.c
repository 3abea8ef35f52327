/* A step has ended: its results go into the books, and its sequences move on. */
#include "common/worker/worker_internal.h"

#include "common/base/log.h"

/* Tokens in one frame: with all that may be told of each of them it is as long as a frame may be. */
enum { FRAME_TOKENS = 32768 };

/* For whoever asked; the log says more. */
#define BROKEN "the model's output is not a number here: its file may be damaged"
/* From one line about that to the next. */
#define BROKEN_SAID_NS (60ull * 1000 * 1000 * 1000)

/* Books one chosen token; the sequence's end, if this is it, is left in seq->finish. */
static void emit(fg_worker *worker, fg_seq *seq, uint32_t token, uint64_t digest,
                 const fg_logprobs *logprobs)
{
    uint32_t index = fg_seq_generated(seq);
    seq->tokens[seq->token_count++] = token;
    worker->stats.generated_tokens++;
    if (!seq->params.ignore_eos && worker->options.is_end(worker->options.ctx, token)) {
        seq->finish = FG_FINISH_STOP;
    } else if (seq->token_count == seq->token_max) {
        seq->finish = FG_FINISH_LENGTH;
    }
    if (index > 0) {
        if (worker->tokens_router != NULL) {
            worker->tokens_router[worker->tokens_out_count] = seq->router;
        }
        worker->tokens_out[worker->tokens_out_count++] = (fg_wire_token){ .request = seq->request,
                                                                          .attempt = seq->attempt,
                                                                          .index = index,
                                                                          .id = token,
                                                                          .digest = digest,
                                                                          .logprobs = logprobs };
        return;
    }
    seq->first_token = token;
    seq->first_digest = digest;
    seq->computed_ns = fg_worker_now_ns(worker);
    fg_msg msg = { .kind = FG_MSG_FIRST, .request = seq->request, .attempt = seq->attempt };
    msg.first.id = token;
    msg.first.digest = digest;
    msg.first.logprobs = logprobs;
    msg.first.queue_ns = seq->started_ns - seq->queued_ns;
    msg.first.compute_ns = seq->computed_ns - seq->started_ns;
    msg.first.cached_tokens = seq->cached_tokens;
    msg.first.chunks = seq->chunks;
    msg.first.share_ns = seq->share_ns;
    msg.first.embedding = seq->embedding;
    msg.first.embedding_count = seq->embedding != NULL ? worker->options.embedding_length : 0;
    fg_worker_send(worker, seq->router, &msg);
}

/* The model's output is NaN or infinite here, whatever worker computes it: the request ends. A damaged file may do that to
 * every request, so not each of them gets a line. */
static void break_off(fg_worker *worker, fg_seq *seq)
{
    uint64_t now = fg_worker_now_ns(worker);
    seq->finish = FG_FINISH_ERROR;
    seq->broken = true;
    worker->stats.broken++;
    if (worker->broken_said_ns != 0 && now - worker->broken_said_ns < BROKEN_SAID_NS) {
        return;
    }
    worker->broken_said_ns = now;
    fg_err(
        "worker",
        "event=model_broken req=%llx position=%u requests=%llu why=\"the model's output is NaN or "
        "infinite: its file is damaged, or its numbers overflow\" do=\"compare the file's checksum "
        "with that of its source\"",
        (unsigned long long)seq->request, seq->computed, (unsigned long long)worker->stats.broken);
}

static void book_digests(fg_worker_frame *frame)
{
    for (uint32_t i = 0; i < frame->step.digest_count; i++) {
        fg_seq *seq = frame->digest_owners[i].seq;
        uint32_t index = frame->digest_owners[i].index;
        uint64_t digest = frame->digests[i].digest_out;
        if (seq->side == FG_SIDE_SENDER) {
            seq->digests[index] = digest;
        } else if (seq->digests[index] != digest) {
            seq->bad[seq->bad_count++] = index;
        }
        seq->digested = index + 1;
    }
}

/* Prompts that are computed by one step share its time: each of them taken for all of it would make a
 * worker look as many times slower as it has prompts in a step. What answers in the same step cost is the
 * prompts' as well: on a worker that has both it is always so. */
static double ns_per_prompt_token(const fg_worker_frame *frame)
{
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < frame->step.seq_count; i++) {
        const fg_seq *seq = frame->item_seqs[i];
        tokens += seq->computed < seq->prompt_count ? frame->items[i].token_count : 0;
    }
    uint64_t took = frame->step.compute_ns_out - frame->step.copy_ns_out;
    return tokens > 0 ? (double)took / (double)tokens : 0;
}

/* What the step chose for the sequence. */
static void book_choices(fg_worker *worker, fg_worker_frame *frame, fg_seq *seq,
                         const fg_step_seq *item)
{
    seq->pending = seq->item == item ? 0 : seq->pending;
    if (item->sample_rows > 0) {
        uint32_t count = fg_worker_settle_drafts(worker, seq, item);
        frame->trace.accepted += count > 0 ? count - 1 : 0;
        for (uint32_t i = 0; i < count; i++) {
            emit(worker, seq, seq->choices[i], item->digests_out != NULL ? item->digests_out[i] : 0,
                 item->logprobs_out != NULL ? &item->logprobs_out[i] : NULL);
        }
    } else if (item->broken_out) {
        break_off(worker, seq);
    } else {
        fg_worker_note_guess(worker, seq, item->token_out);
        emit(worker, seq, item->token_out, item->digest_out, item->logprobs_out);
    }
}

static void book_items(fg_worker *worker, fg_worker_frame *frame)
{
    double token_ns = ns_per_prompt_token(frame);
    uint32_t guessers = 0;
    worker->tokens_out_count = 0;
    for (uint32_t i = 0; i < frame->step.seq_count; i++) {
        fg_seq *seq = frame->item_seqs[i];
        const fg_step_seq *item = &frame->items[i];
        seq->steps--;
        if (item->twin_arena != NULL) {
            fg_worker_link_release(worker, seq);
        }
        worker->drafting -= item->sample_rows > 0;
        if (seq->state == FG_SEQ_CLOSING) {
            worker->stats.discarded_tokens += item->token_count;
            continue;
        }
        if (seq->computed < seq->prompt_count) {
            worker->stats.prompt_tokens += item->token_count;
            worker->stats.chunks++;
            seq->share_ns += (uint64_t)(token_ns * item->token_count);
        }
        seq->computed += item->token_count;
        if (item->scores_out.count > 0 && !item->broken_out) {
            fg_worker_book_scores(worker, seq, item);
        }
        if (item->broken_out && !item->sample) {
            break_off(worker, seq);
        } else if (item->sample) {
            book_choices(worker, frame, seq, item);
            worker->guessers[guessers++] = seq;
        }
        fg_worker_publish(worker, seq);
    }
    fg_worker_guess(worker, worker->guessers, guessers);
}

/* The blocks that are kept before the tokens: whoever has seen an answer's end and asks on finds them. */
static void tell_one(fg_worker *worker, uint32_t router, const fg_wire_token *tokens,
                     uint32_t count)
{
    fg_worker_news_tell(worker, router);
    for (uint32_t at = 0; at < count; at += FRAME_TOKENS) {
        uint32_t left = count - at;
        fg_msg msg = { .kind = FG_MSG_TOKENS };
        msg.tokens.tokens = tokens + at;
        msg.tokens.count = left < FRAME_TOKENS ? left : FRAME_TOKENS;
        fg_worker_send(worker, router, &msg);
    }
}

static void tell(fg_worker *worker)
{
    if (worker->router_count == 1) {
        tell_one(worker, 0, worker->tokens_out, worker->tokens_out_count);
        return;
    }
    for (uint32_t i = 0; i < worker->router_count; i++) {
        uint32_t count = 0;
        for (uint32_t j = 0; j < worker->tokens_out_count; j++) {
            if (worker->tokens_router[j] == i) {
                worker->tokens_share[count++] = worker->tokens_out[j];
            }
        }
        tell_one(worker, i, worker->tokens_share, count);
    }
}

static void book_copies(fg_worker *worker, fg_worker_frame *frame)
{
    fg_tier *tier = worker->options.tier;
    for (uint32_t i = 0; i < frame->step.copy_count; i++) {
        const fg_step_copy *copy = &frame->copies[i];
        const fg_worker_copy *owner = &frame->copy_owners[i];
        bool back = owner->why == FG_COPY_RESTORE || owner->why == FG_COPY_FETCH;
        if (back && !fg_tier_verify(tier, copy->from, copy->digest_out)) {
            owner->seq->damaged = true;
            worker->stats.damaged_blocks++;
            fg_warn("worker", "event=tier_damaged slot=%u", copy->from);
        }
        switch (owner->why) {
        case FG_COPY_FORK:
            break;
        case FG_COPY_SWAP:
        case FG_COPY_STORE:
            fg_tier_filled(tier, copy->to, copy->digest_out);
            break;
        case FG_COPY_RESTORE:
            fg_tier_give(tier, copy->from);
            break;
        case FG_COPY_FETCH:
            fg_tier_unlock(tier, copy->from);
            break;
        }
    }
    if (frame->step.copy_count > 0) {
        fg_cost_learn_copy(&worker->cost,
                           frame->step.copy_count * worker->options.layout.block_bytes,
                           frame->step.copy_ns_out);
    }
}

/* What came back from the tier is whole, or all of it is computed again. */
static void end_restore(fg_worker *worker, fg_seq *seq)
{
    if (seq->damaged) {
        seq->damaged = false;
        fg_worker_unexpect(worker, seq);
        fg_worker_shrink(worker, seq, 0);
        fg_pool_unpromise(worker->pool, seq->table.promised);
        seq->table.promised = 0;
        seq->computed = seq->planned = seq->published = seq->restored = 0;
        fg_worker_set_state(worker, seq, FG_SEQ_PREEMPTED);
        return;
    }
    seq->computed = seq->restored;
    seq->restored = 0;
    fg_worker_publish(worker, seq);
    fg_worker_set_state(worker, seq, FG_SEQ_RUNNING);
}

static void book_moving(fg_worker *worker, fg_worker_frame *frame)
{
    for (uint32_t i = 0; i < frame->moving_count; i++) {
        fg_seq *seq = frame->moving[i].seq;
        seq->steps--;
        if (seq->state == FG_SEQ_CLOSING) {
            fg_worker_settle(worker, seq);
        } else if (frame->moving[i].back) {
            end_restore(worker, seq);
        }
    }
}

/* After the results are booked: ends, hand-overs, and sequences that only waited for the step. */
static void move_on(fg_worker *worker, fg_worker_frame *frame)
{
    for (uint32_t i = 0; i < frame->step.seq_count; i++) {
        fg_seq *seq = frame->item_seqs[i];
        if (seq->state == FG_SEQ_CLOSING) {
            fg_worker_settle(worker, seq);
        } else if (seq->finish != FG_FINISH_NONE) {
            frame->trace.finished++;
            fg_worker_end(worker, seq, seq->finish, seq->broken ? BROKEN : "");
        } else if (seq->side == FG_SIDE_SENDER) {
            worker->options.prefill->on_computed(worker, seq);
        }
    }
    for (uint32_t i = 0; i < frame->step.digest_count; i++) {
        const fg_worker_digest *owner = &frame->digest_owners[i];
        fg_seq *seq = owner->seq;
        /* Those without an item may have been touched by nobody since; a sequence's digests lie
         * together, and the last of them speaks for it. */
        bool last = i + 1 == frame->step.digest_count || frame->digest_owners[i + 1].seq != seq;
        if (!owner->alone || !last) {
            continue;
        }
        seq->steps--;
        if (seq->state == FG_SEQ_CLOSING) {
            fg_worker_settle(worker, seq);
        } else if (seq->state == FG_SEQ_HANDING) {
            worker->options.prefill->on_pump(worker, seq);
        } else if (seq->state == FG_SEQ_CHECKING && seq->digested == seq->ticket_blocks) {
            worker->options.decode->on_checked(worker, seq);
        }
    }
}

static void trace(fg_worker *worker, fg_worker_frame *frame)
{
    if (worker->options.trace == NULL && worker->options.on_step == NULL) {
        return;
    }
    fg_trace_step *step = &frame->trace;
    fg_pool_stats pool;
    fg_pool_stats_get(worker->pool, &pool);
    step->ended_ns = fg_worker_now_ns(worker);
    uint64_t took = frame->step.compute_ns_out;
    step->asked = frame->step.ask_count;
    step->draft_us = (uint32_t)(frame->step.drafted_out.ns / 1000);
    step->began_ns = frame->step.began_ns_out;
    if (step->began_ns == 0) {
        step->began_ns = step->ended_ns > took ? step->ended_ns - took : 0;
    }
    step->running = worker->running.count;
    step->waiting = worker->waiting.count + worker->preempted.count;
    step->blocks_total = pool.total;
    step->blocks_free = pool.free;
    step->blocks_cached = pool.cached;
    step->blocks_held = pool.held + pool.pinned;
    uint32_t references = 0;
    for (const fg_seq *seq = worker->running.first; seq != NULL; seq = seq->next) {
        step->unused_slots += seq->table.count * seq->table.block_size - seq->planned;
        references += seq->table.count;
    }
    step->saved_blocks = references > step->blocks_held ? references - step->blocks_held : 0;
    fg_trace_add_step(worker->options.trace, step);
    if (worker->options.on_step != NULL) {
        worker->options.on_step(worker->options.ctx, step);
    }
}

void fg_worker_book(fg_worker *worker, fg_worker_frame *frame)
{
    worker->stats.steps++;
    worker->stats.busy_ns += frame->step.compute_ns_out + frame->step.drafted_out.ns;
    uint64_t computing = frame->step.compute_ns_out - frame->step.copy_ns_out;
    /* What a prompt's rows cost that say something is no prompt's usual cost. */
    if (frame->step.seq_count > 0 && frame->scores.count == 0) {
        fg_cost_learn(&worker->cost, &frame->cost, computing);
    }
    book_copies(worker, frame);
    book_digests(frame);
    for (uint32_t i = 0; i < frame->released_count; i++) {
        fg_pool_unref(worker->pool, frame->released[i]);
    }
    frame->released_count = 0;
    fg_worker_book_asks(worker, frame);
    book_items(worker, frame);
    book_moving(worker, frame);
    tell(worker);
    move_on(worker, frame);
    trace(worker, frame);
    worker->load_dirty = true;
}

void fg_worker_do_engine(fg_worker *worker)
{
    fg_step *step;
    while (worker->in_flight > 0 && (step = fg_engine_poll(worker->options.engine)) != NULL) {
        fg_worker_frame *frame = &worker->frames[worker->first_frame];
        FG_ASSERT(&frame->step == step);
        worker->first_frame = (worker->first_frame + 1) % FG_WORKER_FRAMES;
        worker->in_flight--;
        fg_worker_note_step(worker, frame);
        fg_worker_book(worker, frame);
    }
    fg_worker_run(worker);
    fg_worker_news_flush(worker);
}
