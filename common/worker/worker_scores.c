/* What the model says of a prompt's own tokens: asked of the steps that compute it, and told to the router as they end. */
#include "common/worker/worker_internal.h"

#include "common/base/mem.h"

bool fg_worker_scores_ready(fg_worker *worker)
{
    uint32_t rows = worker->options.limits.step_tokens_max;
    for (uint32_t i = 0; i < FG_WORKER_FRAMES; i++) {
        fg_scores *scores = &worker->frames[i].scores;
        if (scores->chosen == NULL) {
            scores->chosen = fg_mem_array(rows, sizeof *scores->chosen);
        }
        if (scores->ranks == NULL) {
            scores->ranks = fg_mem_array(rows, sizeof *scores->ranks);
        }
        if (scores->likely == NULL) {
            scores->likely = fg_mem_array(rows, FG_LOGPROBS_MAX * sizeof *scores->likely);
        }
        if (scores->chosen == NULL || scores->ranks == NULL || scores->likely == NULL) {
            return false;
        }
    }
    return true;
}

void fg_worker_scores_destroy(fg_worker *worker)
{
    for (uint32_t i = 0; i < FG_WORKER_FRAMES; i++) {
        fg_mem_free(worker->frames[i].scores.chosen);
        fg_mem_free(worker->frames[i].scores.ranks);
        fg_mem_free(worker->frames[i].scores.likely);
    }
}

void fg_worker_ask_scores(fg_worker *worker, fg_seq *seq, fg_step_seq *item)
{
    fg_worker_frame *frame = worker->building;
    uint32_t until = item->first_position + item->token_count;
    if (seq->params.want_scores == 0 || seq->scores_planned + 1 >= seq->prompt_count) {
        return;
    }
    /* The last row's is the answer's first token. */
    until = until < seq->prompt_count ? until : seq->prompt_count - 1;
    if (until <= seq->scores_planned) {
        return; /* computed again, for it lost its blocks */
    }
    FG_ASSERT(seq->scores_planned >= item->first_position, "req %llx: rows that nobody was told of",
              (unsigned long long)seq->request);
    fg_scores *all = &frame->scores;
    item->scores_first = seq->scores_planned - item->first_position;
    item->scores_out = (fg_scores){ .chosen = all->chosen + all->count,
                                    .ranks = all->ranks + all->count,
                                    .likely = all->likely + frame->likely_used,
                                    .count = until - seq->scores_planned,
                                    .likely_count = seq->params.want_scores - 1 };
    seq->scores_planned = until;
    all->count += item->scores_out.count;
    frame->likely_used += (size_t)item->scores_out.count * item->scores_out.likely_count;
    FG_ASSERT(all->count <= worker->options.limits.step_tokens_max);
}

void fg_worker_book_scores(fg_worker *worker, fg_seq *seq, const fg_step_seq *item)
{
    const fg_scores *all = &item->scores_out;
    for (uint32_t at = 0; at < all->count; at += FG_WIRE_SCORES_MAX) {
        uint32_t left = all->count - at;
        fg_msg msg = { .kind = FG_MSG_SCORES, .request = seq->request, .attempt = seq->attempt };
        msg.scores.first = item->first_position + item->scores_first + at + 1;
        msg.scores.scores =
            (fg_scores){ .chosen = all->chosen + at,
                         .ranks = all->ranks + at,
                         .likely = all->likely + (size_t)at * all->likely_count,
                         .count = left < FG_WIRE_SCORES_MAX ? left : FG_WIRE_SCORES_MAX,
                         .likely_count = all->likely_count };
        fg_worker_send(worker, seq->router, &msg);
    }
    seq->scored += all->count;
}
