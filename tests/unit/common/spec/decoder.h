/*
 * decoder - plain and speculative decoding through an engine, with block tables from a pool, as a worker
 * does it: what the parts of common/spec must look like together.
 */
#ifndef FORGE_TESTS_UNIT_COMMON_SPEC_DECODER_H
#define FORGE_TESTS_UNIT_COMMON_SPEC_DECODER_H

#include "common/engine/engine_sim.h"
#include "common/kv/table.h"
#include "common/spec/lookahead.h"
#include "common/engine/runner.h"
#include "tests/support/test.h"

enum {
    WORLD_SEQS = 8,
    WORLD_TOKENS = 128, /* of a sequence */
    WORLD_BLOCK_SIZE = 4,
    WORLD_SEQ_BLOCKS = WORLD_TOKENS / WORLD_BLOCK_SIZE,
    WORLD_BLOCKS = WORLD_SEQS * WORLD_SEQ_BLOCKS,
};

/* An engine and the pool of its blocks. */
typedef struct world {
    const char *name;
    fg_engine *engine;
    fg_pool *pool;
    uint32_t vocab_size;
    uint64_t forwards; /* steps run */
    fg_runner runner;  /* of a model; else no engine is open in it */
    void *bytes;       /* of the model file; may be NULL */
    uint8_t *sim_arena;
} world;

/* Simulated; models with random weights; the one of the corpus. Fewer when FORGE_CORPUS is not set. */
enum { WORLD_SIM, WORLD_F32, WORLD_Q8, WORLD_STORIES, WORLD_KINDS };
bool world_open(world *w, int kind); /* false: not to be had */
void world_close(world *w);          /* no block may be in use */
/* Begins the step and waits for its end. */
void world_step(world *w, fg_step *step);

/* Drafts for a sequence: the most it may, the answer how many. `after` is called after each round. */
struct decoder_seq;
typedef struct drafter {
    uint32_t (*draft)(void *ctx, const struct decoder_seq *seq, uint32_t max, uint32_t *draft_out);
    void (*after)(void *ctx, const struct decoder_seq *seq); /* may be NULL */
    void *ctx;
} drafter;

/* What plain decoding gives: tokens from the prompt on, and at each number of tokens the blocks held. */
typedef struct plain {
    uint32_t tokens[WORLD_TOKENS];
    uint64_t digests[WORLD_TOKENS]; /* of the row that chose token i */
    uint32_t blocks[WORLD_TOKENS + 1];
} plain;

typedef struct decoder_seq {
    uint32_t tokens[WORLD_TOKENS];
    uint64_t digests[WORLD_TOKENS];
    uint32_t prompt_count, count, total; /* tokens: of the prompt, now, at the end */
    uint32_t choice;
    fg_sampling sampling;
    fg_lookahead lookahead;
    drafter drafter;
    const plain *plain; /* what it must be, checked after each round */
    fg_ends ends;

    bool ended;
    uint32_t rounds, drafted, accepted, rejections;
    uint32_t full_rounds;     /* all drafted tokens accepted, and a bonus token after them */
    uint32_t blocks_returned; /* by rollback */
    uint32_t cut_rounds; /* an accepted token ended the sequence, others were drafted after it */
    uint32_t drafts_max; /* most drafted at once */

    fg_table table;
    uint32_t blocks[WORLD_SEQ_BLOCKS];
    uint32_t draft_count;
    uint32_t choices[FG_LOOKAHEAD_MAX + 1];
    uint64_t row_digests[FG_LOOKAHEAD_MAX + 1];
} decoder_seq;

/* Prompt number `index`, 10 to 20 tokens. */
uint32_t world_prompt(const world *w, uint32_t index, uint32_t *tokens_out);
/* A new sequence of that prompt; `total` tokens in the end. */
void decoder_init(const world *w, decoder_seq *seq, uint32_t prompt, uint32_t total);

/* One token at a time, without end tokens; the sequence is as it was. */
void decoder_plain(world *w, const decoder_seq *seq, plain *plain_out);
/* All sequences together to their ends: prompts in one step, then one step per round. After each round
 * tokens, digests and number of blocks are compared with plain decoding, and memory must not be taken.
 * Returns the number of steps after the prompts'. */
uint32_t decoder_run(world *w, decoder_seq *seqs, uint32_t count);

/* drafters.c. All but none need seq->plain. */
drafter draft_ngram(void);     /* runs of up to 3 */
drafter draft_nothing(void);   /* plain decoding, one round per token */
drafter draft_oracle(void);    /* always right */
drafter draft_adversary(void); /* always wrong */
typedef struct mixture {
    uint64_t state;
    uint32_t right_of_100;
} mixture;
drafter draft_mixture(mixture *m);
/* A draft model: greedy, with an engine, table and KV of its own. Checks its rollback too. */
typedef struct model_draft {
    world *world;
    fg_table table;
    uint32_t blocks[WORLD_SEQ_BLOCKS];
    uint32_t kv_count; /* tokens in its KV */
} model_draft;
void model_draft_open(model_draft *m, world *w);
void model_draft_close(model_draft *m);
drafter draft_model(model_draft *m);

#endif
