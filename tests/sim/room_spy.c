#include "tests/sim/room_spy.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SPY_COPY UINT32_MAX

/* Items of one sequence point into one array of tokens, whatever the step. */
static const uint32_t *identity(const fg_step_seq *item)
{
    return item->tokens - item->first_position;
}

static uint32_t table_blocks(const room_spy *spy, const fg_step_seq *item)
{
    uint32_t end = item->first_position + item->token_count;
    return fg_kv_blocks_for(end, spy->limits.block_size);
}

static void judge_size(const room_spy *spy, const fg_step *step)
{
    FG_ASSERT(step->seq_count + step->copy_count + step->digest_count > 0,
              "a step that does nothing");
    FG_ASSERT(step->seq_count <= spy->limits.seqs_max);
    uint32_t tokens = 0;
    for (uint32_t i = 0; i < step->seq_count; i++) {
        const fg_step_seq *item = &step->seqs[i];
        tokens += item->token_count;
        FG_ASSERT(item->token_count <= spy->limits.chunk_tokens_max, "a chunk of %u tokens",
                  item->token_count);
        for (uint32_t j = 0; j < i; j++) {
            FG_ASSERT(identity(&step->seqs[j]) != identity(item),
                      "one sequence is twice in a step");
        }
    }
    FG_ASSERT(tokens <= spy->limits.step_tokens_max, "a step of %u tokens", tokens);
}

/* Copies run before the items, so an item may write a block that a copy has read; but what a copy has
 * filled is only written on by the sequence that it was filled for, which is told by the answers. */
static void mark_writers(room_spy *spy, const fg_step *step)
{
    memset(spy->writers, 0, spy->block_count * sizeof *spy->writers);
    for (uint32_t i = 0; i < step->copy_count; i++) {
        const fg_step_copy *copy = &step->copies[i];
        if (copy->kind != FG_COPY_OUT) {
            FG_ASSERT(spy->writers[copy->to] == 0, "block %u is filled by two copies", copy->to);
            spy->writers[copy->to] = SPY_COPY;
        }
    }
    for (uint32_t i = 0; i < step->seq_count; i++) {
        const fg_step_seq *item = &step->seqs[i];
        for (uint32_t b = item->first_position / spy->limits.block_size;
             b < table_blocks(spy, item); b++) {
            uint32_t block = item->block_ids[b];
            FG_ASSERT(spy->writers[block] == 0 || spy->writers[block] == SPY_COPY,
                      "block %u has two writers", block);
            spy->writers[block] = i + 1;
        }
    }
}

static void judge_tables(room_spy *spy, const fg_step *step)
{
    for (uint32_t i = 0; i < step->seq_count; i++) {
        const fg_step_seq *item = &step->seqs[i];
        spy->stamp++;
        for (uint32_t b = 0; b < table_blocks(spy, item); b++) {
            uint32_t block = item->block_ids[b], writer = spy->writers[block];
            FG_ASSERT(spy->seen[block] != spy->stamp, "block %u is twice in a table", block);
            spy->seen[block] = spy->stamp;
            FG_ASSERT(writer == 0 || writer == SPY_COPY || writer == i + 1,
                      "block %u is read by one sequence and written by another", block);
        }
    }
}

/* Steps run in order, so nothing is lost when a block changes hands too early; but a block whose reader
 * has not ended is not free, and an engine with two streams would show it. */
static void judge_against(const room_spy *spy, const fg_step *step, const fg_step *before)
{
    for (uint32_t i = 0; i < before->seq_count; i++) {
        const fg_step_seq *item = &before->seqs[i];
        for (uint32_t b = 0; b < table_blocks(spy, item); b++) {
            uint32_t block = item->block_ids[b], writer = spy->writers[block];
            bool own = writer > 0 && writer != SPY_COPY &&
                       identity(&step->seqs[writer - 1]) == identity(item);
            FG_ASSERT(writer == 0 || own,
                      "block %u is written anew while a step in flight reads it", block);
        }
    }
    for (uint32_t i = 0; i < before->digest_count; i++) {
        FG_ASSERT(spy->writers[before->digests[i].block_id] == 0,
                  "block %u is written anew while a step in flight digests it",
                  before->digests[i].block_id);
    }
}

/* The other way round: what a step in flight still writes is complete for nobody but its sequence. Here
 * again the order of steps would hide it. */
static void judge_complete(room_spy *spy, const fg_step *step, const fg_step *before)
{
    memset(spy->writers, 0, spy->block_count * sizeof *spy->writers);
    for (uint32_t i = 0; i < before->copy_count; i++) {
        if (before->copies[i].kind == FG_COPY_IN) {
            spy->writers[before->copies[i].to] = SPY_COPY;
        }
    }
    for (uint32_t i = 0; i < before->seq_count; i++) {
        const fg_step_seq *item = &before->seqs[i];
        for (uint32_t b = item->first_position / spy->limits.block_size;
             b < table_blocks(spy, item); b++) {
            spy->writers[item->block_ids[b]] = i + 1;
        }
    }
    for (uint32_t i = 0; i < step->seq_count; i++) {
        const fg_step_seq *item = &step->seqs[i];
        for (uint32_t b = 0; b < table_blocks(spy, item); b++) {
            uint32_t writer = spy->writers[item->block_ids[b]];
            bool own = writer > 0 && writer != SPY_COPY &&
                       identity(&before->seqs[writer - 1]) == identity(item);
            FG_ASSERT(writer == 0 || own, "block %u is read while a step in flight still fills it",
                      item->block_ids[b]);
        }
    }
}

static void judge_slots(room_spy *spy, const fg_step *step)
{
    memset(spy->slot_writers, 0, spy->slot_count * sizeof *spy->slot_writers);
    for (uint32_t i = 0; i < step->copy_count; i++) {
        const fg_step_copy *copy = &step->copies[i];
        if (copy->kind == FG_COPY_OUT) {
            FG_ASSERT(spy->slot_writers[copy->to] == 0, "slot %u is filled twice", copy->to);
            spy->slot_writers[copy->to] = i + 1;
        }
    }
    for (uint32_t s = 0; s <= spy->in_flight; s++) {
        const fg_step *other = s == spy->in_flight ? step : spy->steps[s];
        for (uint32_t i = 0; i < other->copy_count; i++) {
            const fg_step_copy *copy = &other->copies[i];
            uint32_t slot = copy->kind == FG_COPY_IN    ? copy->from
                            : copy->kind == FG_COPY_OUT ? copy->to
                                                        : UINT32_MAX;
            bool itself = other == step && copy->kind == FG_COPY_OUT;
            FG_ASSERT(slot == UINT32_MAX || itself || spy->slot_writers[slot] == 0,
                      "slot %u is filled while a copy of it is under way", slot);
        }
    }
}

static void print_step(const room_spy *spy, const fg_step *step)
{
    static const char *const names[] = { "copy", "out", "in" };
    fprintf(stderr, "  step %llu, %u in flight:", (unsigned long long)spy->begun, spy->in_flight);
    for (uint32_t i = 0; i < step->copy_count; i++) {
        const fg_step_copy *copy = &step->copies[i];
        fprintf(stderr, " %s %u->%u", names[copy->kind], copy->from, copy->to);
    }
    for (uint32_t i = 0; i < step->seq_count; i++) {
        const fg_step_seq *item = &step->seqs[i];
        fprintf(stderr, "\n    %p%s %u+%u%s in", (const void *)identity(item),
                item->follows != NULL ? " follows" : "", item->first_position, item->token_count,
                item->sample ? " samples" : "");
        for (uint32_t b = 0; b < table_blocks(spy, item); b++) {
            fprintf(stderr, " %u", item->block_ids[b]);
        }
    }
    fprintf(stderr, "\n");
}

static fg_status spy_begin(fg_engine *engine, fg_step *step, fg_error *err)
{
    room_spy *spy = (room_spy *)engine;
    fg_status status = fg_engine_begin(spy->inner, step, err);
    if (status != FG_OK) {
        return status; /* the worker asserts */
    }
    if (spy->verbose) {
        print_step(spy, step);
    }
    judge_size(spy, step);
    mark_writers(spy, step);
    judge_tables(spy, step);
    judge_slots(spy, step);
    for (uint32_t i = 0; i < spy->in_flight; i++) {
        judge_against(spy, step, spy->steps[i]);
    }
    for (uint32_t i = 0; i < spy->in_flight; i++) {
        judge_complete(spy, step, spy->steps[i]);
    }
    spy->begun++;
    spy->ahead += spy->in_flight > 0;
    spy->steps[spy->in_flight++] = step;
    return FG_OK;
}

static fg_step *spy_poll(fg_engine *engine)
{
    room_spy *spy = (room_spy *)engine;
    fg_step *step = fg_engine_poll(spy->inner);
    if (step != NULL) {
        FG_ASSERT(spy->in_flight > 0 && spy->steps[0] == step);
        memmove(spy->steps, spy->steps + 1, --spy->in_flight * sizeof *spy->steps);
    }
    return step;
}

static void spy_close(fg_engine *engine)
{
}

void room_spy_init(room_spy *spy, fg_engine *inner, const fg_sched_limits *limits,
                   uint32_t block_count, uint32_t slot_count)
{
    static const fg_engine_ops ops = { .begin = spy_begin, .poll = spy_poll, .close = spy_close };
    *spy = (room_spy){ .base = *inner,
                       .inner = inner,
                       .limits = *limits,
                       .block_count = block_count,
                       .slot_count = slot_count };
    spy->base.ops = &ops;
    spy->writers = calloc(block_count, sizeof *spy->writers);
    spy->seen = calloc(block_count, sizeof *spy->seen);
    spy->slot_writers = calloc(slot_count + 1, sizeof *spy->slot_writers);
    FG_ASSERT(spy->writers != NULL && spy->seen != NULL && spy->slot_writers != NULL);
}

void room_spy_deinit(room_spy *spy)
{
    free(spy->writers);
    free(spy->seen);
    free(spy->slot_writers);
}
