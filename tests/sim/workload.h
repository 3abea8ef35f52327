/*
 * workload - the requests of a trace: when each one came, how long its prompt and its answer were, and
 * which prompts begin alike. Owned by whoever read it. Parsing is pure.
 *
 * Two forms are read, told apart by the first character that is not blank:
 *   JSON lines (Mooncake): {"timestamp": ms, "input_length": n, "output_length": n, "hash_ids": [...]};
 *     an id names 512 tokens of the prompt, the last one what is left; equal ids are equal tokens
 *   CSV (Azure): a heading, then arrival,prompt,answer; arrival is "2023-11-16 18:17:03.97" or seconds.
 *     Nothing is known of the texts: no two prompts share anything
 * A file ending in .xz is unpacked as it is read.
 */
#ifndef FORGE_TESTS_SIM_WORKLOAD_H
#define FORGE_TESTS_SIM_WORKLOAD_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

enum { FG_WORKLOAD_BLOCK_TOKENS = 512 };
#define FG_WORKLOAD_REQUESTS_MAX (1u << 20)
#define FG_WORKLOAD_TEXT_BYTES   (512u * 1024u * 1024u) /* unpacked */

typedef struct fg_workload_request {
    uint64_t arrival_ns;                   /* since the first one */
    uint32_t prompt_tokens, output_tokens; /* both above 0 */
    uint32_t first_id, id_count;           /* in ids; 0: its tokens are its own */
} fg_workload_request;

typedef struct fg_workload {
    fg_workload_request *requests; /* in order of arrival; equals in order of the file */
    uint32_t count;
    uint64_t *ids;
    uint32_t id_count;
    uint64_t prompt_tokens, output_tokens; /* sums */
    uint64_t
        known_tokens; /* of prompts: in blocks that an earlier request began with as well, so what a
                              cache without end would have found */
} fg_workload;

/* At most `count_max` requests are taken, in order of the file. FG_BAD_INPUT names the line. */
fg_status fg_workload_parse(const char *text, size_t size_bytes, uint32_t count_max,
                            fg_workload *workload_out, fg_error *err);
fg_status fg_workload_read(const char *path, uint32_t count_max, fg_workload *workload_out,
                           fg_error *err);
/* No trace: requests that are drawn, a function of `text` and `seed`. "key=value" parted by ",", all of
 * them optional; docs/SIMULATOR.md has the table. FG_BAD_INPUT names the key. */
fg_status fg_workload_draw(const char *text, uint64_t seed, fg_workload *workload_out,
                           fg_error *err);
void fg_workload_free(fg_workload *workload);

/* Writes the prompt of request `index`, prompt_tokens ids below `vocab_size`: a function of the ids of
 * its blocks (or of its index) and the seed. */
void fg_workload_tokens(const fg_workload *workload, uint32_t index, uint64_t seed,
                        uint32_t vocab_size, uint32_t *tokens_out);

#endif
