#include "decode-worker/decode.h"

#include <string.h>

#include "common/base/log.h"

/* Holds all blocks that the request may ever need; FG_AGAIN when they are not there now. */
static fg_status hold_blocks(fg_worker *worker, fg_seq *seq)
{
    uint32_t block_size = fg_worker_config(worker)->layout.block_size;
    if (fg_pool_promise(fg_worker_pool(worker), seq->block_max) != FG_OK) {
        return FG_AGAIN;
    }
    seq->promised = seq->block_max;
    seq->block_count = fg_kv_blocks_for(seq->prompt_count, block_size);
    fg_pool_take_promised(fg_worker_pool(worker), seq->block_count, seq->blocks);
    seq->promised -= seq->block_count;
    return FG_OK;
}

static void decode_on_reserve(fg_worker *worker, const fg_msg *msg)
{
    uint32_t peer =
        fg_worker_find_peer(worker, msg->reserve.writer.name, msg->reserve.writer.epoch);
    if (fg_worker_slots_used(worker) >= fg_worker_config(worker)->limits.seqs_max) {
        fg_worker_send_busy(worker, msg->request, msg->attempt);
        return;
    }
    fg_seq *seq = fg_worker_add_seq(worker, msg, msg->reserve.tokens, msg->reserve.token_count,
                                    &msg->reserve.sampling);
    if (seq == NULL) {
        return;
    }
    uint64_t ticket = fg_worker_next_ticket(worker);
    if (hold_blocks(worker, seq) != FG_OK ||
        !fg_seq_open_ticket(seq, FG_SIDE_RECEIVER, peer, ticket, seq->block_count) ||
        !fg_worker_bind_ticket(worker, seq)) {
        fg_worker_end(worker, seq, FG_FINISH_CANCELLED, "");
        fg_worker_send_busy(worker, msg->request, msg->attempt);
        return;
    }
    fg_error err;
    fg_status status = FG_PEER_LOST;
    if (peer != FG_LINK_PEER_NONE) {
        status = fg_link_expect(fg_worker_link(worker), peer, ticket, seq->blocks, seq->block_count,
                                &err);
    }
    if (status != FG_OK) {
        /* Not a matter of waiting when the link to the writer is gone: another try may go elsewhere,
         * and this link is opened anew. */
        fg_worker_release_ticket(worker, seq);
        bool lost = status == FG_PEER_LOST;
        fg_worker_end(worker, seq, lost ? FG_FINISH_ERROR : FG_FINISH_CANCELLED,
                      "no link to the prefill worker");
        if (lost) {
            fg_worker_note_broken(worker, peer);
        } else {
            fg_worker_send_busy(worker, msg->request, msg->attempt);
        }
        return;
    }
    fg_worker_set_state(worker, seq, FG_SEQ_EXPECTING);
    fg_msg answer = { .kind = FG_MSG_TICKET, .request = seq->request, .attempt = seq->attempt };
    answer.ticket.granted = true;
    answer.ticket.ticket = ticket;
    answer.ticket.blocks = seq->blocks;
    answer.ticket.block_count = seq->block_count;
    fg_worker_send(worker, &answer);
}

static void decode_on_commit(fg_worker *worker, fg_seq *seq, const fg_link_commit *commit)
{
    /* A first token that is also the last one is never handed over. */
    if (commit->block_count != seq->ticket_blocks || seq->params.max_tokens < 2 ||
        commit->first_token >= fg_worker_config(worker)->vocab_size) {
        fg_worker_end(worker, seq, FG_FINISH_ERROR, "the prefill worker's commit does not fit");
        return;
    }
    memcpy(seq->digests, commit->digests, seq->ticket_blocks * sizeof *seq->digests);
    seq->first_token = commit->first_token;
    seq->first_digest = commit->first_digest;
    seq->digested = 0;
    seq->bad_count = 0;
    fg_worker_set_state(worker, seq, FG_SEQ_CHECKING);
}

static void decode_on_checked(fg_worker *worker, fg_seq *seq)
{
    fg_status status =
        fg_link_answer(fg_worker_link(worker), seq->ticket, seq->bad, seq->bad_count);
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
    seq->tokens[seq->token_count++] = seq->first_token;
    fg_worker_set_state(worker, seq, FG_SEQ_RUNNING);
}

const fg_handover *fg_decode_policy(void)
{
    static const fg_handover policy = { .on_reserve = decode_on_reserve,
                                        .on_commit = decode_on_commit,
                                        .on_checked = decode_on_checked };
    return &policy;
}
