#include "common/engine/head.h"

#include <string.h>

#include "common/base/hash.h"
#include "common/base/highest.h"
#include "common/base/mem.h"
#include "common/engine/engine_internal.h"

/* Rows of logits held at a time; a device with memory of its own holds more: each part of the head ends with a wait. */
enum { HEAD_ROWS = 16, DEVICE_HEAD_ROWS = 256 };

fg_status fg_head_open(fg_head *head, fg_device *device, fg_device_stream *stream, fg_tp *tp,
                       uint32_t vocab_size, uint32_t step_rows_max, fg_error *err)
{
    uint32_t most = fg_device_is_host(device) ? HEAD_ROWS : DEVICE_HEAD_ROWS;
    uint32_t thread_count = fg_device_thread_count(device);
    *head = (fg_head){ .device = device,
                       .stream = stream,
                       .is_host = fg_device_is_host(device),
                       .tp = tp,
                       .part = fg_tp_part_of(tp, vocab_size, FG_TP_PANEL),
                       .vocab_size = vocab_size,
                       .rows_max = most };
    if (!head->is_host && step_rows_max < most) {
        head->rows_max = step_rows_max;
    }
    if (tp != NULL && head->rows_max > FG_TP_HEAD_ROWS) {
        head->rows_max = FG_TP_HEAD_ROWS;
    }
    head->samplers = fg_mem_array(thread_count, sizeof *head->samplers);
    head->shapers = fg_mem_array(thread_count, sizeof *head->shapers);
    head->allowed_words = ((size_t)vocab_size + 63) / 64;
    head->allowed = fg_mem_array(head->rows_max, head->allowed_words * sizeof *head->allowed);
    head->is_held = fg_mem_array(head->rows_max, sizeof *head->is_held);
    bool made = head->samplers != NULL && head->shapers != NULL && head->allowed != NULL &&
                head->is_held != NULL;
    for (uint32_t i = 0; made && i < thread_count; i++) {
        head->samplers[i] = fg_sampler_create(vocab_size);
        head->shapers[i] = fg_shaper_create(vocab_size);
        made = head->samplers[i] != NULL && head->shapers[i] != NULL;
    }
    return made ? FG_OK : fg_fail(err, FG_AGAIN, "out of memory for the forward pass");
}

void fg_head_close(fg_head *head)
{
    bool made = head->samplers != NULL && head->shapers != NULL;
    uint32_t thread_count = made ? fg_device_thread_count(head->device) : 0;
    for (uint32_t i = 0; i < thread_count; i++) {
        fg_sampler_destroy(head->samplers[i]);
        fg_shaper_destroy(head->shapers[i]);
    }
    fg_mem_free(head->samplers);
    fg_mem_free(head->shapers);
    fg_mem_free(head->allowed);
    fg_mem_free(head->is_held);
    head->samplers = NULL;
    head->shapers = NULL;
    head->allowed = NULL;
    head->is_held = NULL;
}

/* How many of the item's tokens there are from the one at `position` on. */
static uint32_t tokens_from(const fg_step_seq *seq, uint32_t position)
{
    return seq->first_position + seq->token_count - position;
}

/* The choice after the token at `position`. */
static void take_token(fg_step_seq *seq, uint32_t position, uint32_t token)
{
    if (seq->sample_rows > 0) {
        seq->tokens_out[seq->sample_rows - tokens_from(seq, position)] = token;
    }
    /* The last row comes last, and stays. */
    seq->token_out = token;
}

static fg_step_seq *seq_of(const fg_head_part *part, uint32_t row)
{
    return &part->step->seqs[part->head->seqs[part->first + row]];
}

static uint32_t position_of(const fg_head_part *part, uint32_t row)
{
    return part->positions[part->head->row_ids[part->first + row]];
}

/* Rows of which nothing is wanted but a token. */
static bool wants_token(const fg_step_seq *seq)
{
    return seq->sample && !seq->want_digest && seq->digests_out == NULL &&
           seq->logits_out == NULL && seq->shape == NULL && seq->constraint == NULL &&
           seq->logprobs_out == NULL && seq->embedding_out == NULL;
}

static bool wants_highest(const fg_step_seq *seq)
{
    return wants_token(seq) && !(seq->sampling.temperature > 0.0f);
}

/* A row that speaks of a token that was given; nothing is chosen from it. */
static bool is_scored(const fg_head_part *part, uint32_t row)
{
    return fg_step_seq_is_scored(seq_of(part, row), position_of(part, row));
}

/* Whether fg_op_choose is to choose from its rows. */
static bool is_chosen_there(const fg_head *head, const fg_step_seq *seq)
{
    return !head->is_host && head->tp == NULL && wants_token(seq);
}

/* Whether the host sees the row's logits. */
static bool is_seen(const fg_head_part *part, uint32_t row)
{
    return part->kind == FG_HEAD_LOGITS ||
           (part->kind == FG_HEAD_CHOOSE &&
            (is_scored(part, row) || !is_chosen_there(part->head, seq_of(part, row))));
}

/* Whether the device has left the row to the host. Once its operations have ended. */
static bool is_left(const fg_head_part *part, uint32_t row)
{
    return part->kind == FG_HEAD_CHOOSE && part->head->wanted[row].wanted != 0 &&
           part->head->choices[row] == FG_CHOICE_NONE;
}

/* Rows after those of the part pad it, or are of no part. */
static void fill_wanted(const fg_head_part *part)
{
    fg_head *head = part->head;
    memset(head->wanted, 0, head->rows_max * sizeof *head->wanted);
    for (uint32_t row = 0; row < part->rows; row++) {
        const fg_step_seq *seq = seq_of(part, row);
        head->wanted[row] = (fg_choice_row){ .seed = seq->sampling.seed,
                                             .choice = seq->choice,
                                             .position = position_of(part, row) + 1,
                                             .temperature = seq->sampling.temperature,
                                             .top_p = seq->sampling.top_p,
                                             .min_p = seq->sampling.min_p,
                                             .top_k = seq->sampling.top_k,
                                             .wanted = !is_seen(part, row) };
    }
}

fg_head_part fg_head_part_from(fg_head *head, fg_step *step, const uint32_t *positions,
                               uint32_t first, uint32_t head_count)
{
    uint32_t left = head_count - first;
    fg_head_part part = { .head = head,
                          .step = step,
                          .positions = positions,
                          .first = first,
                          .rows = left < head->rows_max ? left : head->rows_max };
    bool highest = true, chosen = false;
    for (uint32_t row = 0; row < part.rows; row++) {
        const fg_step_seq *seq = seq_of(&part, row);
        bool scored = is_scored(&part, row);
        highest = highest && !scored && wants_highest(seq);
        chosen = chosen || (!scored && is_chosen_there(head, seq));
    }
    part.kind = highest ? FG_HEAD_HIGHEST : chosen ? FG_HEAD_CHOOSE : FG_HEAD_LOGITS;
    if (part.kind == FG_HEAD_CHOOSE) {
        fill_wanted(&part);
    }
    return part;
}

/* The highest of all ranks' highest, the first of equal ones. */
static void merge_highest(const fg_head *head, uint32_t rows)
{
    const fg_tp_memory *common = fg_tp_memory_of(head->tp);
    for (uint32_t row = 0; row < rows; row++) {
        uint32_t best = 0;
        for (uint32_t rank = 1; rank < fg_tp_size(head->tp); rank++) {
            best = common->tops[rank][row] > common->tops[best][row] ? rank : best;
        }
        head->choices[row] = common->choices[best][row];
        head->tops[row] = common->tops[best][row];
    }
}

static void run_highest(const fg_head *head, const fg_panels *weight, const fg_activations *normed,
                        uint32_t rows)
{
    fg_op_highest(head->stream, weight, normed, rows, head->choices, head->tops);
    if (head->tp == NULL) {
        return;
    }
    const fg_tp_memory *common = fg_tp_memory_of(head->tp);
    uint32_t rank = fg_tp_rank(head->tp);
    fg_tp_wait_device(head->tp, head->stream, fg_device_event_record(head->stream));
    for (uint32_t row = 0; row < rows; row++) {
        common->choices[rank][row] = head->choices[row] + head->part.first;
        common->tops[rank][row] = head->tops[row];
    }
    fg_tp_meet(head->tp);
    merge_highest(head, rows);
}

/* Everybody's logits to where the host looks at them. */
static void gather_logits(const fg_head *head, uint32_t rows)
{
    fg_tp_columns columns = { .common = head->logits_host,
                              .all = head->is_host ? NULL : head->logits,
                              .columns = head->vocab_size,
                              .part = head->part,
                              .for_host = true };
    fg_tp_gather(head->tp, head->stream, &columns, rows);
}

void fg_head_run(const fg_head *head, const fg_panels *weight, const fg_activations *normed,
                 uint32_t rows, fg_head_kind kind)
{
    fg_linear linear = { .weight = *weight,
                         .out = head->logits + head->part.first,
                         .out_stride = head->vocab_size };
    fg_choose choose = { .logits = head->logits,
                         .columns = head->vocab_size,
                         .wanted = head->wanted,
                         .choices = head->choices,
                         .tops = head->tops };
    fg_op_finite(head->stream, normed->values, normed->columns, rows, head->finite);
    if (kind == FG_HEAD_HIGHEST) {
        run_highest(head, weight, normed, rows);
        return;
    }
    fg_op_linear(head->stream, &linear, 1, normed, rows);
    gather_logits(head, rows);
    if (kind == FG_HEAD_CHOOSE) {
        fg_op_choose(head->stream, &choose, rows);
    }
}

/* Which tokens the rows of a part are held to. One after the other: rows share automata. */
static void hold_rows(const fg_head_part *part)
{
    const fg_head *head = part->head;
    for (uint32_t row = 0; row < part->rows; row++) {
        const fg_step_seq *seq = seq_of(part, row);
        head->is_held[row] = seq->sample && seq->constraint != NULL && !is_scored(part, row);
        if (head->is_held[row]) {
            fg_constraint_mask(seq->constraint, seq, position_of(part, row),
                               head->allowed + row * head->allowed_words);
        }
    }
}

/* The row of the token at `position` as its choice is to see it. */
static const float *shaped(const fg_head_part *part, uint32_t row, const float *logits,
                           uint32_t member)
{
    static const fg_shape nothing = { .bias_count = 0 };
    const fg_head *head = part->head;
    const fg_step_seq *seq = seq_of(part, row);
    uint32_t position = position_of(part, row);
    const uint64_t *allowed = head->is_held[row] ? head->allowed + row * head->allowed_words : NULL;
    if (seq->shape == NULL && allowed == NULL) {
        return logits;
    }
    const fg_shape *shape = seq->shape != NULL ? seq->shape : &nothing;
    fg_history history = { .tokens = seq->history,
                           .count = seq->first_position,
                           .more = seq->follows != NULL ? &seq->follows->token_out : seq->tokens,
                           .more_count = position + 1 - seq->first_position,
                           .prompt_count = seq->prompt_count };
    return fg_shaper_apply(head->shapers[member], logits, shape, &history, allowed);
}

/* One row of logits: a choice from it takes some of the time of a small model's step, so threads share the rows. */
static void take_logits(void *ctx, uint32_t row, uint32_t member)
{
    fg_head_part *part = ctx;
    fg_head *head = part->head;
    fg_step_seq *seq = seq_of(part, row);
    if (!is_seen(part, row) && !is_left(part, row)) {
        return;
    }
    uint32_t position = position_of(part, row);
    const float *logits = head->logits_host + (size_t)row * head->vocab_size;
    size_t row_bytes = head->vocab_size * sizeof(float);
    if (is_scored(part, row)) {
        head->tops[row] = fg_highest(logits, head->vocab_size);
        fg_step_seq_score(seq, position, logits, head->vocab_size);
        return;
    }
    uint32_t left = tokens_from(seq, position);
    uint32_t index = fg_step_seq_head_rows(seq) - left;
    if (seq->sample) {
        const float *seen = shaped(part, row, logits, member);
        head->choices[row] = fg_sampler_pick(head->samplers[member], seen, &seq->sampling,
                                             seq->choice, position + 1);
        head->tops[row] = logits[head->choices[row]];
    }
    if (seq->sample && seq->logprobs_out != NULL) {
        fg_logprobs_of(logits, head->vocab_size, head->choices[row], seq->likely_count,
                       &seq->logprobs_out[index]);
    }
    if (seq->sample_rows > 0 && seq->digests_out != NULL) {
        seq->digests_out[index] = fg_hash64(logits, row_bytes, 0);
    }
    if (seq->want_digest && left == 1) {
        seq->digest_out = fg_hash64(logits, row_bytes, 0);
    }
    if (seq->logits_out != NULL) {
        memcpy(seq->logits_out + (size_t)index * head->vocab_size, logits, row_bytes);
    }
}

/* Whether a row's state is an item's embedding. */
static bool is_embedding(const fg_head_part *part, uint32_t row)
{
    const fg_step_seq *seq = seq_of(part, row);
    return seq->embedding_out != NULL && tokens_from(seq, position_of(part, row)) == 1;
}

/* Has the states that somebody wants copied to the host, as bring_logits does. */
static void bring_states(const fg_head_part *part)
{
    const fg_head *head = part->head;
    for (uint32_t row = 0; row < part->rows && !head->is_host; row++) {
        size_t at = (size_t)row * head->state_length;
        if (is_embedding(part, row)) {
            fg_device_copy(head->stream, head->states_host + at, head->states + at,
                           head->state_length * sizeof(float));
        }
    }
}

/* Whether a row's choice means nothing. A NaN in the state may be lost on its way through a product of integers, and a
 * head may overflow from a state that is fine: so both ends are looked at. */
static bool is_broken(const fg_head *head, uint32_t row)
{
    return !fg_all_finite(&head->tops[row], 1) || head->finite[row] == 0;
}

/* Has the logits of some rows copied to the host, those that follow each other together; whether there were any. */
static bool bring_logits(const fg_head_part *part,
                         bool (*is_wanted)(const fg_head_part *part, uint32_t row))
{
    const fg_head *head = part->head;
    bool any = false;
    bool there = head->is_host || head->tp != NULL; /* ranks have gathered them */
    for (uint32_t row = 0; row < part->rows && !there;) {
        uint32_t count = 0;
        while (row + count < part->rows && is_wanted(part, row + count)) {
            count++;
        }
        if (count > 0) {
            size_t at = (size_t)row * head->vocab_size;
            fg_device_copy(head->stream, head->logits_host + at, head->logits + at,
                           (size_t)count * head->vocab_size * sizeof(float));
            any = true;
        }
        row += count + 1; /* the one after them is not wanted */
    }
    return any;
}

bool fg_head_is_chosen_there(const fg_head_part *part)
{
    for (uint32_t row = 0; row < part->rows; row++) {
        if (is_seen(part, row)) {
            return false;
        }
    }
    return true;
}

fg_device_event fg_head_bring(const fg_head_part *part)
{
    (void)bring_logits(part, is_seen);
    bring_states(part);
    return fg_device_event_record(part->head->stream);
}

bool fg_head_take(fg_head_part *part, fg_device_event end)
{
    fg_head *head = part->head;
    fg_tp_wait_device(head->tp, head->stream, end);
    bool left = bring_logits(part, is_left);
    if (left) {
        fg_device_event_wait(head->stream, fg_device_event_record(head->stream));
    }
    if (part->kind != FG_HEAD_HIGHEST) {
        hold_rows(part);
        fg_device_share_work(head->stream, part->rows, take_logits, part);
    }
    for (uint32_t row = 0; row < part->rows; row++) {
        fg_step_seq *seq = seq_of(part, row);
        if (is_scored(part, row)) {
            seq->broken_out |= is_broken(head, row);
        } else if (seq->sample) {
            take_token(seq, position_of(part, row), head->choices[row]);
            seq->broken_out |= is_broken(head, row);
            if (is_embedding(part, row)) {
                const float *states = head->is_host ? head->states : head->states_host;
                memcpy(seq->embedding_out, states + (size_t)row * head->state_length,
                       head->state_length * sizeof(float));
            }
        }
    }
    return left;
}
