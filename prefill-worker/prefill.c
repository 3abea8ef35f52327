#include "prefill-worker/prefill.h"

#include <string.h>

#include "common/base/log.h"

enum {
    PUSH_BLOCKS_MAX = 64, /* per call of the link, so that one sequence does not fill its queue */
    RETRIES_MAX = 3,
};

static void fail(fg_worker *worker, fg_seq *seq, const char *why)
{
    fg_worker_end(worker, seq, FG_FINISH_ERROR, why);
}

/* The link refused a push or commit: it is broken, or the receiver has fenced this ticket. */
static void fail_push(fg_worker *worker, fg_seq *seq, fg_status status)
{
    uint32_t peer = seq->peer;
    fail(worker, seq, "no link to the decode worker");
    if (status == FG_PEER_LOST) {
        fg_worker_note_broken(worker, peer);
    }
}

/* Pushes again what the receiver found damaged. False: not all of it yet, or the sequence has ended. */
static bool push_bad(fg_worker *worker, fg_seq *seq)
{
    while (seq->bad_count > 0) {
        uint32_t index = seq->bad[seq->bad_count - 1];
        fg_status status = fg_worker_link_push(worker, seq, index, 1);
        if (status == FG_AGAIN) {
            return false;
        }
        if (status != FG_OK) {
            fail_push(worker, seq, status);
            return false;
        }
        seq->bad_count--;
    }
    return true;
}

/* Whole blocks that were computed in the receiver's memory need no push. Of a last one that is not full the rest is not
 * the same there as here, and its digest covers all of it. */
static void skip_direct(fg_worker *worker, fg_seq *seq)
{
    uint32_t whole = seq->prompt_count / fg_worker_config(worker)->layout.block_size;
    uint32_t until = whole > seq->ticket_first ? whole - seq->ticket_first : 0;
    until = until < seq->digested ? until : seq->digested;
    if (seq->pushed >= seq->direct_from && seq->pushed < until) {
        fg_worker_count_direct(worker, until - seq->pushed);
        seq->pushed = until;
    }
}

static void prefill_on_pump(fg_worker *worker, fg_seq *seq)
{
    if (!seq->ticket_open || seq->aborting || seq->committed) {
        return;
    }
    while (seq->pushed < seq->digested) {
        skip_direct(worker, seq);
        uint32_t until = seq->pushed < seq->direct_from ? seq->direct_from : seq->digested;
        uint32_t count = (until < seq->digested ? until : seq->digested) - seq->pushed;
        if (count == 0) {
            break;
        }
        count = count < PUSH_BLOCKS_MAX ? count : PUSH_BLOCKS_MAX;
        fg_status status = fg_worker_link_push(worker, seq, seq->pushed, count);
        if (status == FG_AGAIN) {
            return; /* the next tick tries again */
        }
        if (status != FG_OK) {
            fail_push(worker, seq, status);
            return;
        }
        seq->pushed += count;
    }
    if (seq->state != FG_SEQ_HANDING || seq->pushed < seq->ticket_blocks ||
        !push_bad(worker, seq)) {
        return;
    }
    fg_status status = fg_worker_link_commit(worker, seq);
    if (status == FG_OK) {
        seq->committed = true;
    } else if (status != FG_AGAIN) {
        fail_push(worker, seq, status);
    }
}

static void prefill_on_computed(fg_worker *worker, fg_seq *seq)
{
    if (seq->computed == seq->prompt_count) {
        seq->last_blocks = seq->ticket_blocks - seq->pushed;
        fg_worker_set_state(worker, seq, FG_SEQ_HANDING);
    }
    prefill_on_pump(worker, seq);
}

static void prefill_on_answer(fg_worker *worker, fg_seq *seq, const uint32_t *bad,
                              uint32_t bad_count)
{
    if (bad_count == 0) {
        fg_msg msg = { .kind = FG_MSG_PUSHED, .request = seq->request, .attempt = seq->attempt };
        msg.pushed.blocks = seq->ticket_blocks;
        msg.pushed.bytes =
            (uint64_t)seq->ticket_blocks * fg_worker_config(worker)->layout.block_bytes;
        msg.pushed.transport = fg_worker_link_transport(worker, seq->peer);
        msg.pushed.exposed_ns = fg_worker_now_ns(worker) - seq->computed_ns;
        msg.pushed.retries = seq->retries;
        if (seq->retries == 0 && !seq->params.pull) {
            fg_worker_learn_push(worker, seq->last_blocks, msg.pushed.exposed_ns);
        }
        fg_worker_send(worker, seq->router, &msg);
        fg_worker_release_ticket(worker, seq);
        fg_worker_end(worker, seq, FG_FINISH_HANDED_OVER, "");
        return;
    }
    seq->retries++;
    fg_warn("prefill", "event=push_again req=%llx bad_blocks=%u try=%u",
            (unsigned long long)seq->request, bad_count, seq->retries);
    if (seq->retries > RETRIES_MAX) {
        fail(worker, seq, "KV blocks arrived damaged again and again");
        return;
    }
    bool known = bad_count <= seq->ticket_blocks;
    for (uint32_t i = 0; known && i < bad_count; i++) {
        known = bad[i] < seq->ticket_blocks;
        seq->bad[i] = bad[i];
    }
    if (!known) {
        fail(worker, seq, "the decode worker named blocks that were never sent");
        return;
    }
    seq->bad_count = bad_count;
    seq->committed = false;
    prefill_on_pump(worker, seq);
}

const fg_handover *fg_prefill_policy(void)
{
    static const fg_handover policy = { .on_computed = prefill_on_computed,
                                        .on_pump = prefill_on_pump,
                                        .on_answer = prefill_on_answer };
    return &policy;
}
