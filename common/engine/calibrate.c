#include "common/engine/calibrate.h"

#include <string.h>
#include <time.h>

#include "common/base/clock.h"

enum {
    ROWS_MAX = 4,
    CHUNK = 16,
    CHUNK_LARGE = 4,
    FAR = 512, /* where a chunk attends to much */
    BLOCKS_MAX = FAR + CHUNK,
    COPIES = 8,
    TOKENS = CHUNK + ROWS_MAX, /* a sequence's begin with another one */
};

/* A token of a prompt costs about so much of a step of one token, which waits for memory. */
#define PROMPT_SHARE 4

/* A step of one token that takes longer is a large model's: an eighth of a gigabyte and more. */
#define LARGE_NS (15ull * 1000 * 1000)

/* One step's shape: so many sequences of so many tokens behind a position. Sequence i has the arena's blocks
 * from i on, so that no two write one slot; nobody looks at what comes out. */
typedef struct shape {
    uint32_t rows, tokens, position;
} shape;

static bool fits(const fg_calibrate_options *o, const shape *s)
{
    uint32_t end = s->position + s->tokens;
    uint32_t blocks = fg_kv_blocks_for(end, o->layout.block_size);
    return blocks + s->rows <= o->block_count + 1 && blocks <= BLOCKS_MAX &&
           end <= o->limits.context_max && s->rows <= o->limits.step_seqs_max &&
           s->rows * s->tokens <= o->limits.step_tokens_max;
}

static fg_status run_step(const fg_calibrate_options *o, fg_step *step, fg_error *err)
{
    fg_status status = fg_engine_begin(o->engine, step, err);
    while (status == FG_OK && fg_engine_poll(o->engine) == NULL) {
        nanosleep(&(struct timespec){ .tv_nsec = 20000 }, NULL);
    }
    return status;
}

static fg_status run(const fg_calibrate_options *o, const shape *s, uint64_t *took_out,
                     fg_error *err)
{
    uint32_t tokens[TOKENS], blocks[BLOCKS_MAX + ROWS_MAX];
    fg_step_seq seqs[ROWS_MAX];
    for (uint32_t i = 0; i < TOKENS; i++) {
        tokens[i] = (uint32_t)((uint64_t)o->vocab_size * i / TOKENS);
    }
    for (uint32_t i = 0; i < BLOCKS_MAX + ROWS_MAX; i++) {
        blocks[i] = i;
    }
    for (uint32_t i = 0; i < s->rows; i++) {
        seqs[i] = (fg_step_seq){ .tokens = tokens + i,
                                 .token_count = s->tokens,
                                 .first_position = s->position,
                                 .block_ids = blocks + i,
                                 .block_count = fg_kv_blocks_for(s->position + s->tokens,
                                                                 o->layout.block_size),
                                 .sample = true };
    }
    fg_step step = { .seqs = seqs, .seq_count = s->rows };
    fg_status status = run_step(o, &step, err);
    *took_out = step.compute_ns_out;
    return status == FG_OK ? FG_OK : FG_BROKEN;
}

/* Where the host has no blocks: copies within the device, and a digest, which waits for them. */
static uint64_t device_copy_time(const fg_calibrate_options *o)
{
    fg_error err;
    fg_step_copy copies[COPIES];
    fg_step_digest digest = { .block_id = 0 };
    for (uint32_t i = 0; i < COPIES; i++) {
        copies[i] = (fg_step_copy){ .kind = FG_COPY_BLOCK, .to = 1 + i % (o->block_count - 1) };
    }
    fg_step step = {
        .copies = copies, .copy_count = COPIES, .digests = &digest, .digest_count = 1
    };
    uint64_t took = 0;
    for (int turn = 0; turn < 2; turn++) { /* the first one warms up */
        if (run_step(o, &step, &err) != FG_OK) {
            return 0;
        }
        took = step.compute_ns_out;
    }
    return took / COPIES > 0 ? took / COPIES : 1;
}

static uint64_t copy_time(const fg_calibrate_options *o)
{
    if (o->block_count < 2) {
        return 0;
    }
    if (o->arena == NULL) {
        return device_copy_time(o);
    }
    fg_clock clock = fg_clock_real();
    char *arena = o->arena;
    uint64_t from = fg_clock_now_ns(&clock);
    for (uint32_t i = 0; i < COPIES; i++) {
        size_t at = (1 + i % (o->block_count - 1)) * o->layout.block_bytes;
        memcpy(arena + at, arena, o->layout.block_bytes);
    }
    uint64_t each = (fg_clock_now_ns(&clock) - from) / COPIES;
    return each > 0 ? each : 1;
}

static uint64_t above(uint64_t value, uint64_t base)
{
    return value > base ? value - base : 0;
}

/* What a prompt's tokens cost, from a step of `chunk` of them; needs c->step_ns_base. */
static void judge_prompt(fg_calibration *c, uint64_t near_ns, uint64_t far_ns, uint32_t chunk)
{
    if (near_ns == 0) {
        return;
    }
    /* A prompt's step has what every step has, and its tokens. */
    c->prefill_ns_base = c->step_ns_base < near_ns / 2 ? c->step_ns_base : near_ns / 2;
    c->prefill_ns_per_token = (near_ns - c->prefill_ns_base) / chunk;
    if (far_ns > 0) {
        c->prefill_ps_per_kv = above(far_ns, near_ns) * 1000 / (FAR * chunk);
    }
}

fg_status fg_engine_calibrate(const fg_calibrate_options *o, fg_calibration *out, fg_error *err)
{
    enum { WARM, NEAR, ONE, ROWS, FAR_OFF, SHAPES };
    /* The first one warms up: it is not counted. Then by weight: where time runs out, on a slow or busy
     * machine, a prompt's speed is known and the rest is guessed. */
    shape shapes[SHAPES] = {
        { 1, 1, 0 }, { 1, CHUNK, 0 }, { 1, 1, 0 }, { ROWS_MAX, 1, 0 }, { 1, CHUNK, FAR }
    };
    uint64_t took[SHAPES] = { 0 }, spent = 0;
    for (int i = 0; i < SHAPES && spent < o->budget_ns; i++) {
        if (!fits(o, &shapes[i])) {
            continue;
        }
        fg_status status = run(o, &shapes[i], &took[i], err);
        if (status != FG_OK) {
            return status;
        }
        spent += i == WARM ? 0 : took[i];
        if (i == WARM && took[WARM] > LARGE_NS) {
            /* A large model: somebody waits for its first token, and few tokens are long enough to be
             * timed. What a warm-up costs beside the step itself is lost in it. */
            spent = o->is_alone ? o->budget_ns : o->budget_ns - 1;
            shapes[NEAR].tokens = CHUNK_LARGE;
        }
    }
    fg_calibration c = { .copy_ns_per_block = copy_time(o) };
    if (took[ROWS] > 0) {
        c.step_ns_per_row = above(took[ROWS], took[ONE]) / (ROWS_MAX - 1);
    }
    c.step_ns_base = above(took[ONE] > 0 ? took[ONE] : took[WARM], c.step_ns_per_row);
    judge_prompt(&c, took[NEAR], took[FAR_OFF], shapes[NEAR].tokens);
    if (took[NEAR] == 0 && o->is_alone) {
        c.prefill_ns_base = c.step_ns_base - c.step_ns_base / PROMPT_SHARE;
        c.prefill_ns_per_token = c.step_ns_base / PROMPT_SHARE;
    }
    *out = c;
    return FG_OK;
}
