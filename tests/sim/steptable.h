/*
 * steptable - how long a step of a simulated worker takes, and a hand-over's block: a few numbers, taken
 * from a measurement or assumed. A value. Pure.
 *
 *   step = base + prompt tokens * token + (token, KV slot that it attends to) pairs * pair
 *               + answers * row + KV slots that they attend to * kv + copied blocks * copy
 *
 * `base` is the larger of the two bases when a step has both kinds of work: weights are read once.
 */
#ifndef FORGE_TESTS_SIM_STEPTABLE_H
#define FORGE_TESTS_SIM_STEPTABLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/engine/engine.h"

enum { FG_STEPTABLE_NAME_BYTES = 48, FG_STEPTABLE_NOTE_BYTES = 160 };

/* Times in nanoseconds. */
typedef struct fg_steptable {
    char name[FG_STEPTABLE_NAME_BYTES];
    char note[FG_STEPTABLE_NOTE_BYTES]; /* where the numbers come from */
    double prefill_base, prefill_token, prefill_pair;
    double decode_base, decode_row, decode_kv;
    double copy_block;
    double push_block, push_token; /* a block takes push_block + block size * push_token */
    double message;                /* from one process to another, any message */
    double kv_token_bytes;         /* for what a push weighs */
} fg_steptable;

/* NULL after the last one. */
const fg_steptable *fg_steptable_built_in(size_t index);
const fg_steptable *fg_steptable_find(const char *name);

/* Lines "name value", the names as in the example of docs/SIMULATOR.md; "#" begins a comment. What is not
 * given is 0, but a table needs one of the two bases and both costs per token. FG_BAD_INPUT names the
 * line. */
fg_status fg_steptable_parse(const char *text, size_t size_bytes, fg_steptable *table_out,
                             fg_error *err);
/* The name of a built-in table, else that of a file. */
fg_status fg_steptable_open(const char *name, fg_steptable *table_out, fg_error *err);

uint64_t fg_steptable_step_ns(const fg_steptable *table, const fg_step *step);
uint64_t fg_steptable_push_ns(const fg_steptable *table, uint32_t block_size);

#endif
