/* The link's news, for the sequence of a ticket. */
#include "common/worker/worker_internal.h"

void fg_worker_do_commit(fg_worker *worker, const fg_link_commit *commit)
{
    fg_seq *seq = fg_map_get(worker->by_ticket, commit->ticket);
    if (seq == NULL || seq->state != FG_SEQ_EXPECTING) {
        worker->stats.stale_dropped++;
        return;
    }
    worker->options.decode->on_commit(worker, seq, commit);
    fg_worker_run(worker);
}

/* The link is done with a ticket that this side (or a loss) has ended. */
static void link_closed(fg_worker *worker, uint64_t ticket, fg_seq_side side, const char *why)
{
    fg_seq *seq = fg_map_get(worker->by_ticket, ticket);
    if (seq == NULL || seq->side != side) {
        worker->stats.stale_dropped++;
        return;
    }
    fg_worker_release_ticket(worker, seq);
    if (seq->state != FG_SEQ_CLOSING) {
        fg_worker_end(worker, seq, FG_FINISH_ERROR, why);
    } else {
        fg_worker_settle(worker, seq);
    }
    fg_worker_run(worker);
}

void fg_worker_do_fenced(fg_worker *worker, uint64_t ticket)
{
    link_closed(worker, ticket, FG_SIDE_RECEIVER, "the prefill worker stopped sending");
}

void fg_worker_do_drained(fg_worker *worker, uint64_t ticket)
{
    link_closed(worker, ticket, FG_SIDE_SENDER, "the decode worker stopped receiving");
}

void fg_worker_do_answer(fg_worker *worker, uint64_t ticket, const uint32_t *bad,
                         uint32_t bad_count)
{
    fg_seq *seq = fg_map_get(worker->by_ticket, ticket);
    if (seq == NULL || seq->side != FG_SIDE_SENDER) {
        worker->stats.stale_dropped++;
        return;
    }
    if (seq->state == FG_SEQ_CLOSING) {
        if (bad_count == 0) { /* accepted while this side was ending: the ticket is closed */
            fg_worker_release_ticket(worker, seq);
            fg_worker_settle(worker, seq);
        }
        return;
    }
    worker->options.prefill->on_answer(worker, seq, bad, bad_count);
    fg_worker_run(worker);
}
