#include "decode-worker/decode.h"

#include <string.h>

#include "common/base/log.h"

/* What is missing of the prompt is short enough to be computed here: no other worker is needed. */
static bool is_local(fg_worker *worker, const fg_seq *seq, uint32_t cached_blocks)
{
    const fg_worker_options *config = fg_worker_config(worker);
    uint32_t cached = cached_blocks * config->layout.block_size;
    return cached > 0 && seq->prompt_count - cached <= config->local_prefill_max;
}

static void take_over(fg_worker *worker, fg_seq *seq)
{
    fg_msg answer = { .kind = FG_MSG_TICKET, .request = seq->request, .attempt = seq->attempt };
    answer.ticket.granted = true;
    answer.ticket.local = true;
    fg_worker_send(worker, seq->router, &answer);
    fg_worker_set_state(worker, seq, FG_SEQ_WAITING);
}

static void answer_ticket(fg_worker *worker, const fg_seq *seq)
{
    fg_msg answer = { .kind = FG_MSG_TICKET, .request = seq->request, .attempt = seq->attempt };
    answer.ticket.granted = true;
    answer.ticket.ticket = seq->ticket;
    answer.ticket.first_block = seq->ticket_first;
    answer.ticket.blocks = seq->table.blocks + seq->ticket_first;
    answer.ticket.block_count = seq->ticket_blocks;
    fg_worker_send(worker, seq->router, &answer);
}

static void decode_on_reserve(fg_worker *worker, const fg_msg *msg)
{
    uint32_t peer =
        fg_worker_find_peer(worker, msg->reserve.writer.name, msg->reserve.writer.epoch);
    if (!fg_worker_can_receive(worker)) {
        fg_worker_send_busy(worker, msg->request, msg->attempt);
        return;
    }
    fg_seq *seq = fg_worker_add_seq(worker, msg, msg->reserve.tokens, msg->reserve.token_count,
                                    &msg->reserve.sampling);
    if (seq == NULL) {
        return;
    }
    fg_seq_foretell(seq, msg->reserve.said, msg->reserve.said_count);
    /* None of a prompt whose rows have to say something. */
    uint32_t cached = fg_worker_cached_blocks(worker, seq);
    if (!seq->params.pull && is_local(worker, seq, cached)) {
        take_over(worker, seq);
        return;
    }
    seq->scored = seq->scores_planned = seq->prompt_count; /* the other worker tells it */
    fg_status status = fg_worker_hold_blocks(worker, seq);
    fg_seq_ticket ticket = { .side = FG_SIDE_RECEIVER,
                             .peer = peer,
                             .ticket = fg_worker_next_ticket(worker),
                             .first_block = seq->published,
                             .block_count = seq->table.count - seq->published };
    if (status != FG_OK || !fg_seq_open_ticket(seq, &ticket) ||
        !fg_worker_bind_ticket(worker, seq)) {
        fg_worker_end(worker, seq, FG_FINISH_CANCELLED, "");
        fg_worker_send_busy(worker, msg->request, msg->attempt);
        return;
    }
    fg_error err;
    status = FG_PEER_LOST;
    if (peer != FG_LINK_PEER_NONE) {
        status = fg_worker_link_expect(worker, seq, &err);
    }
    if (status != FG_OK) {
        /* Only a full link is a matter of waiting. Where the one to the writer is gone, another try may go elsewhere, and
         * this link is opened anew. */
        fg_worker_release_ticket(worker, seq);
        fg_worker_end(worker, seq, status == FG_AGAIN ? FG_FINISH_CANCELLED : FG_FINISH_ERROR,
                      status == FG_PEER_LOST ? "no link to the prefill worker"
                                             : "the link takes no such ticket");
        if (status == FG_PEER_LOST) {
            fg_worker_note_broken(worker, peer);
        } else if (status == FG_AGAIN) {
            fg_worker_send_busy(worker, msg->request, msg->attempt);
        }
        return;
    }
    fg_worker_set_state(worker, seq, FG_SEQ_EXPECTING);
    if (seq->params.pull) {
        seq->computed = seq->planned = seq->published * seq->table.block_size;
        fg_worker_expect(worker, seq); /* whoever comes with this prefix waits for it */
    }
    answer_ticket(worker, seq);
}

static void decode_on_commit(fg_worker *worker, fg_seq *seq, const fg_link_commit *commit)
{
    /* A first token that is also the last one is never handed over. */
    if (commit->block_count != seq->ticket_blocks ||
        (seq->params.max_tokens < 2 && !seq->params.pull) ||
        commit->first_token >= fg_worker_config(worker)->vocab_size) {
        fg_worker_end(worker, seq, FG_FINISH_ERROR, "the prefill worker's commit does not fit");
        return;
    }
    memcpy(seq->digests, commit->digests, seq->ticket_blocks * sizeof *seq->digests);
    seq->first_token = commit->first_token;
    seq->first_digest = commit->first_digest;
    seq->digested = 0;
    seq->digest_planned = 0;
    seq->bad_count = 0;
    fg_worker_set_state(worker, seq, FG_SEQ_CHECKING);
}

static void decode_on_checked(fg_worker *worker, fg_seq *seq)
{
    fg_status status = fg_worker_link_answer(worker, seq);
    if (status != FG_OK) {
        fg_worker_end(worker, seq, FG_FINISH_ERROR, "the prefill worker was lost");
        return;
    }
    if (seq->bad_count > 0) {
        seq->retries++;
        fg_warn("decode", "event=digest_mismatch req=%llx bad_blocks=%u of=%u",
                (unsigned long long)seq->request, seq->bad_count, seq->ticket_blocks);
        fg_worker_set_state(worker, seq, FG_SEQ_EXPECTING);
        return;
    }
    fg_worker_release_ticket(worker, seq);
    seq->computed = seq->prompt_count;
    seq->planned = seq->prompt_count;
    if (seq->params.pull) {
        fg_worker_publish(worker, seq);
        fg_worker_end(worker, seq, FG_FINISH_HANDED_OVER, "");
        return;
    }
    seq->tokens[seq->token_count++] = seq->first_token;
    fg_worker_guess(worker, &seq, 1);
    fg_worker_publish(worker, seq);
    fg_worker_set_state(worker, seq, FG_SEQ_RUNNING);
}

const fg_handover *fg_decode_policy(void)
{
    static const fg_handover policy = { .on_reserve = decode_on_reserve,
                                        .on_commit = decode_on_commit,
                                        .on_checked = decode_on_checked };
    return &policy;
}
