/* Several processes that compute one model (tp.h): every bit is that of one, whatever they are given. */
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/dtype.h"
#include "common/base/fault.h"
#include "common/base/hash.h"
#include "common/base/mem.h"
#include "common/base/thread.h"
#include "common/engine/runner.h"
#include "common/engine/tp.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/test.h"
#include "tests/unit/common/engine/apart.h"

enum { CONTEXT = 64, SEQS = 20, STEP_ROWS = 400, APART_ROWS = 120, BLOCKS = SEQS * CONTEXT / 16 };

/* Where ranks compute. Devices have memory of their own; their operations are the CPU's. */
typedef enum place {
    ON_CPU,
    ON_DEVICES,        /* that meet in the host's memory */
    ON_JOINED_DEVICES, /* that have a communicator */
} place;

/* Which allocation of a rank is to fail; 0: none. */
static uint64_t rank_fault;
static pid_t newest_rank;

/* A child that is this program, at this place. */
static fg_status start_child(void *ctx, uint32_t rank, int region_fd, int arena_fd, pid_t *pid_out,
                             fg_error *err)
{
    *pid_out = fork();
    if (*pid_out == 0) {
        if (ctx != NULL) {
            _exit(*(int *)ctx); /* one that does not even begin */
        }
        fg_fault_arm(rank_fault);
        _exit(fg_tp_follow(region_fd, arena_fd, rank));
    }
    newest_rank = *pid_out;
    return *pid_out > 0 ? FG_OK : fg_fail(err, FG_AGAIN, "fork: %s", strerror(errno));
}

static void write_model(const fg_tiny_llama *model, char *path)
{
    size_t size_bytes;
    void *bytes = fg_gguf_build_tiny_llama(model, &size_bytes);
    strcpy(path, "/tmp/forge-ranks-XXXXXX");
    int fd = mkstemp(path);
    cr_assert(fd >= 0 && write(fd, bytes, size_bytes) == (ssize_t)size_bytes);
    close(fd);
    free(bytes);
}

static fg_status open_by(fg_tp_way way, bool apart, const char *path, uint32_t ranks,
                         uint32_t threads, fg_runner *runner, fg_error *err)
{
    static const char *const devices[] = { "cuda:0", "cuda:0", "cuda:0,cuda:0",
                                           "cuda:0,cuda:0,cuda:0", "cuda:0,cuda:0,cuda:0,cuda:0" };
    setenv("FORGE_CUDA_PLUGIN", APART_PLUGIN, 1);
    const fg_tp_options tp = {
        .size = ranks, .start = start_child, .way = way, .devices = apart ? devices[ranks] : NULL
    };
    fg_runner_options options = { .path = path,
                                  .context_max = CONTEXT,
                                  .seqs_max = SEQS,
                                  .step_tokens_max = apart ? APART_ROWS : STEP_ROWS,
                                  .thread_count = threads,
                                  .kv_dtype = FG_BF16,
                                  .device = apart ? "cuda:0" : NULL,
                                  .tp = &tp };
    return fg_runner_open(&options, runner, err);
}

static fg_status open_on(place where, const char *path, uint32_t ranks, uint32_t threads,
                         fg_runner *runner, fg_error *err)
{
    fg_tp_way way = where == ON_CPU       ? FG_TP_WAY_AUTO
                    : where == ON_DEVICES ? FG_TP_WAY_HOST
                                          : FG_TP_WAY_NCCL;
    setenv("APART_COMM", "0", 1);
    return open_by(way, where != ON_CPU, path, ranks, threads, runner, err);
}

static fg_status open_with(const char *path, uint32_t ranks, uint32_t threads, fg_runner *runner,
                           fg_error *err)
{
    return open_on(ON_CPU, path, ranks, threads, runner, err);
}

typedef struct pair {
    char path[64];
    fg_runner runners[2]; /* one process, and several */
} pair;

static void open_pair(const fg_tiny_llama *model, place where, uint32_t ranks, uint32_t threads,
                      pair *p)
{
    fg_error err = { 0 };
    write_model(model, p->path);
    cr_assert_eq(open_on(where, p->path, ranks, threads, &p->runners[1], &err), FG_OK, "%s",
                 err.text);
    cr_assert_eq(fg_engine_started(p->runners[1].engine).rank_count, ranks);
    cr_assert_eq(open_with(p->path, 1, threads, &p->runners[0], &err), FG_OK, "%s", err.text);
}

static void close_pair(pair *p)
{
    fg_runner_close(&p->runners[0]);
    fg_runner_close(&p->runners[1]);
    unlink(p->path);
    cr_assert_eq(waitpid(-1, NULL, WNOHANG), -1, "a rank is left");
}

/* What a step's items are to do beyond running their tokens. */
typedef struct wish {
    const char *name;
    uint32_t seqs, each; /* sequences, tokens of each; 0: as many as a step may have */
    bool sample, digest, logits, rows;
    bool
        tail; /* only those of the head's second part want a digest: one part is chosen from, one is seen */
    float temperature;
} wish;

static const wish wishes[] = {
    { "one row, nothing", 1, 1, .sample = false },
    { "one row, greedy", 1, 1, .sample = true },
    { "one row, drawn", 1, 1, .sample = true, .temperature = 0.9f },
    { "many rows, greedy", SEQS, 1, .sample = true },
    { "many rows, drawn", SEQS, 2, .sample = true, .temperature = 0.8f },
    { "many rows, seen", SEQS, 1, .sample = true, .digest = true },
    { "many rows, some seen", SEQS, 1, .sample = true, .tail = true },
    { "prompts in two tiles", SEQS, 0, .sample = true, .digest = true },
    { "prompts without choices", SEQS, 0, .sample = false },
    { "several choices each", 5, 9, .sample = true, .rows = true },
    { "several choices each, seen", 5, 9, .sample = true, .rows = true, .digest = true },
    { "logits", 3, 4, .sample = true, .logits = true },
};

/* What comes of one step. */
typedef struct outcome {
    fg_step_seq items[SEQS];
    fg_step_digest digests[SEQS];
    uint32_t tokens[SEQS][STEP_ROWS];
    uint64_t row_digests[SEQS][STEP_ROWS];
    float *logits;
} outcome;

static void run(const fg_runner *runner, const wish *w, const uint32_t *tokens, uint32_t position,
                outcome *o)
{
    fg_error err = { 0 };
    size_t vocab_size = runner->hparams.vocab_size;
    memset(o, 0, sizeof *o);
    o->logits = fg_mem_array(w->seqs * vocab_size, sizeof(float));
    for (uint32_t i = 0; i < w->seqs; i++) {
        fg_step_seq *item = &o->items[i];
        *item = fg_runner_seq(runner, i, tokens + i * CONTEXT + position, position, w->each);
        item->sample = w->sample;
        item->want_digest = w->digest || (w->tail && i >= FG_TP_HEAD_ROWS);
        item->sampling.temperature = w->temperature;
        item->sampling.seed = i;
        item->logits_out = w->logits ? o->logits + i * vocab_size : NULL;
        if (w->rows) {
            item->sample_rows = w->each;
            item->tokens_out = o->tokens[i];
            item->digests_out = w->digest ? o->row_digests[i] : NULL;
            item->want_digest = false;
        }
        o->digests[i] = (fg_step_digest){ .block_id = item->block_ids[position / 16] };
    }
    fg_step step = {
        .seqs = o->items, .seq_count = w->seqs, .digests = o->digests, .digest_count = w->seqs
    };
    cr_assert_eq(fg_runner_step((fg_runner *)runner, &step, &err), FG_OK, "%s", err.text);
}

static void run_both(pair *p, const wish *w, const uint32_t *tokens, uint32_t position,
                     const char *what)
{
    static outcome o[2];
    for (int r = 0; r < 2; r++) {
        run(&p->runners[r], w, tokens, position, &o[r]);
    }
    for (uint32_t i = 0; i < w->seqs; i++) {
        cr_assert_eq(o[1].items[i].token_out, o[0].items[i].token_out, "%s: %s, token of %u", what,
                     w->name, i);
        cr_assert_eq(o[1].items[i].digest_out, o[0].items[i].digest_out, "%s: %s, logits of %u",
                     what, w->name, i);
        cr_assert_eq(o[1].items[i].broken_out, o[0].items[i].broken_out);
        cr_assert_eq(o[1].digests[i].digest_out, o[0].digests[i].digest_out, "%s: %s, block of %u",
                     what, w->name, i);
    }
    cr_assert_eq(memcmp(o[0].tokens, o[1].tokens, sizeof o[0].tokens), 0, "%s: %s", what, w->name);
    cr_assert_eq(memcmp(o[0].row_digests, o[1].row_digests, sizeof o[0].row_digests), 0, "%s: %s",
                 what, w->name);
    size_t bytes = w->seqs * (size_t)p->runners[0].hparams.vocab_size * sizeof(float);
    cr_assert_eq(memcmp(o[0].logits, o[1].logits, bytes), 0, "%s: %s", what, w->name);
    fg_mem_free(o[0].logits);
    fg_mem_free(o[1].logits);
}

/* Models that are cut evenly, unevenly, in the middle of panels, and with every kind of vector. */
static const struct {
    const char *name;
    uint32_t ranks, threads;
    place where; /* against one CPU */
    fg_tiny_llama model;
} models[] = {
    { "llama f32 by 2", 2, 1, false, { .seed = 1, .weight_type = FG_F32 } },
    { "llama bf16 by 2, two threads each", 2, 2, false, { .seed = 2, .weight_type = FG_BF16 } },
    { "llama q8_0 by 3, unevenly",
      3,
      1,
      false,
      { .seed = 3, .weight_type = FG_Q8_0, .head_count = 10, .kv_head_count = 5, .head_dim = 32 } },
    { "llama q4_k by 2",
      2,
      1,
      false,
      { .seed = 4, .weight_type = FG_Q4_K, .separate_output = true } },
    { "qwen2 q4_0 by 2: biases",
      2,
      1,
      false,
      { .seed = 5, .weight_type = FG_Q4_0, .arch = FG_TINY_QWEN2 } },
    { "phi3 q4_0 by 2: rows of one tensor",
      2,
      1,
      false,
      { .seed = 21, .weight_type = FG_Q4_0, .arch = FG_TINY_PHI3 } },
    { "granite bf16 by 2: scales",
      2,
      1,
      false,
      { .seed = 22, .weight_type = FG_BF16, .arch = FG_TINY_GRANITE } },
    { "gemma3 q8_0 by 2: norms behind the halves of layers",
      2,
      1,
      false,
      { .seed = 23, .weight_type = FG_Q8_0, .arch = FG_TINY_GEMMA3 } },
    { "qwen3moe q4_0 by 2: experts, unevenly",
      2,
      1,
      false,
      { .seed = 23, .weight_type = FG_Q4_0, .arch = FG_TINY_QWEN3MOE, .ffn_length = 96 } },
    { "qwen2moe f32 by 2: an expert for all",
      2,
      1,
      false,
      { .seed = 25, .weight_type = FG_F32, .arch = FG_TINY_QWEN2MOE } },
    { "qwen2moe q8_0 by 2, two threads each: an expert for all, unevenly",
      2,
      2,
      false,
      { .seed = 26, .weight_type = FG_Q8_0, .arch = FG_TINY_QWEN2MOE, .ffn_length = 96 } },
    { "mixtral bf16 by 2, two threads each: experts",
      2,
      2,
      false,
      { .seed = 24, .weight_type = FG_BF16, .arch = FG_TINY_MIXTRAL } },
    { "qwen3 q8_0 by 2: norms of heads",
      2,
      1,
      false,
      { .seed = 6, .weight_type = FG_Q8_0, .arch = FG_TINY_QWEN3 } },
    { "llama f32 by 4: heads in the middle of panels",
      4,
      1,
      false,
      { .seed = 7,
        .weight_type = FG_F32,
        .head_count = 4,
        .kv_head_count = 4,
        .head_dim = 8,
        .ffn_length = 172,
        .embedding_length = 64 } },
    { "llama q8_0 by 2 devices", 2, 1, ON_DEVICES, { .seed = 12, .weight_type = FG_Q8_0 } },
    { "qwen2 bf16 by 3 devices, unevenly",
      3,
      1,
      ON_DEVICES,
      { .seed = 13,
        .weight_type = FG_BF16,
        .arch = FG_TINY_QWEN2,
        .head_count = 10,
        .kv_head_count = 5,
        .head_dim = 32 } },
    { "llama q8_0 by 2 joined devices",
      2,
      1,
      ON_JOINED_DEVICES,
      { .seed = 14, .weight_type = FG_Q8_0 } },
    { "qwen2 bf16 by 3 joined devices, unevenly",
      3,
      1,
      ON_JOINED_DEVICES,
      { .seed = 15,
        .weight_type = FG_BF16,
        .arch = FG_TINY_QWEN2,
        .head_count = 10,
        .kv_head_count = 5,
        .head_dim = 32 } },
    { "llama f32 by 4 joined devices: heads in the middle of panels",
      4,
      1,
      ON_JOINED_DEVICES,
      { .seed = 16,
        .weight_type = FG_F32,
        .head_count = 4,
        .kv_head_count = 4,
        .head_dim = 8,
        .ffn_length = 172,
        .embedding_length = 64 } },
};

static uint32_t counted(const char *name)
{
    return *(uint32_t *)fg_in_apart(APART_PLUGIN, name);
}

Test(engine_ranks, many_processes_give_the_bits_of_one)
{
    static uint32_t tokens[SEQS * CONTEXT];
    /* A device that rank 0 has to ask more than once. */
    setenv("FORGE_CUDA_PLUGIN", APART_PLUGIN, 1);
    *(uint32_t *)fg_in_apart(APART_PLUGIN, "apart_patience") = 3;
    for (size_t m = 0; m < sizeof models / sizeof models[0]; m++) {
        pair p;
        bool joined = models[m].where == ON_JOINED_DEVICES;
        uint32_t gathered = counted("apart_gathered"), replayed = counted("apart_replayed");
        open_pair(&models[m].model, models[m].where, models[m].ranks, models[m].threads, &p);
        for (uint32_t i = 0; i < SEQS * CONTEXT; i++) {
            tokens[i] = (uint32_t)(fg_hash_mix(m * 100000 + i) % p.runners[0].hparams.vocab_size);
        }
        uint32_t position = 0;
        for (size_t i = 0; i < sizeof wishes / sizeof wishes[0]; i++) {
            wish w = wishes[i];
            uint32_t most = (models[m].where != ON_CPU ? APART_ROWS : STEP_ROWS) / SEQS;
            w.each = w.each == 0 || w.each > most ? most : w.each;
            const wish all = { .name = "what comes before", .seqs = SEQS, .each = w.each };
            position = position + w.each <= CONTEXT ? position : 0;
            run_both(&p, &w, tokens, position, models[m].name);
            if (w.seqs < SEQS) {
                run_both(&p, &all, tokens, position, models[m].name);
            }
            position += w.each;
        }
        cr_assert_eq(counted("apart_gathered") > gathered, joined, "%s", models[m].name);
        cr_assert_eq(counted("apart_replayed") > replayed, joined, "%s", models[m].name);
        close_pair(&p);
    }
}

/* --- how they gather --- */

static const struct {
    const char *name;
    const char *comm; /* APART_COMM */
    fg_tp_way way;
    bool apart;
    const char *refused; /* NULL: it is not */
    bool joined;
} gatherings[] = {
    { "wanted and there", "0", FG_TP_WAY_NCCL, true, NULL, true },
    { "there", "0", FG_TP_WAY_AUTO, true, NULL, true },
    { "there, but not wanted", "0", FG_TP_WAY_HOST, true, NULL, false },
    { "not there", NULL, FG_TP_WAY_AUTO, true, NULL, false },
    { "one rank cannot", "1", FG_TP_WAY_AUTO, true, NULL, false },
    { "wanted and not there", NULL, FG_TP_WAY_NCCL, true, "no communicators are wanted", false },
    { "wanted, but one rank cannot", "1", FG_TP_WAY_NCCL, true, "rank 1: it was told", false },
    { "wanted on a CPU", "0", FG_TP_WAY_NCCL, false, "on a CPU", false },
    { "a CPU", "0", FG_TP_WAY_AUTO, false, NULL, false },
};

Test(engine_ranks, all_ranks_gather_the_same_way_or_not_at_all)
{
    const fg_tiny_llama model = { .seed = 17 };
    char path[64];
    uint32_t token = 0;
    const uint32_t tokens[] = { 1, 2, 3 };
    write_model(&model, path);
    setenv("FORGE_CUDA_PLUGIN", APART_PLUGIN, 1);
    for (size_t i = 0; i < sizeof gatherings / sizeof gatherings[0]; i++) {
        fg_error err = { 0 };
        fg_runner runner;
        uint32_t gathered = counted("apart_gathered");
        if (gatherings[i].comm != NULL) {
            setenv("APART_COMM", gatherings[i].comm, 1);
        } else {
            unsetenv("APART_COMM");
        }
        fg_status status =
            open_by(gatherings[i].way, gatherings[i].apart, path, 2, 1, &runner, &err);
        if (gatherings[i].refused != NULL) {
            cr_assert_eq(status, FG_BAD_INPUT, "%s", gatherings[i].name);
            cr_assert_not_null(strstr(err.text, gatherings[i].refused), "%s", err.text);
        } else {
            cr_assert_eq(status, FG_OK, "%s: %s", gatherings[i].name, err.text);
            fg_step_seq item = fg_runner_seq(&runner, 0, tokens, 0, 3);
            item.sample = true;
            fg_step step = { .seqs = &item, .seq_count = 1 };
            cr_assert_eq(fg_runner_step(&runner, &step, &err), FG_OK, "%s", err.text);
            token = i == 0 ? item.token_out : token;
            cr_assert_eq(item.token_out, token, "%s", gatherings[i].name);
            cr_assert_eq(counted("apart_gathered") > gathered, gatherings[i].joined, "%s",
                         gatherings[i].name);
            fg_runner_close(&runner);
        }
        cr_assert_eq(waitpid(-1, NULL, WNOHANG), -1, "%s: a rank is left", gatherings[i].name);
    }
    unlink(path);
}

/* --- which device is whose --- */

static const struct {
    const char *devices;
    uint32_t size;
    const char *want[3]; /* NULL: refused */
    uint32_t different;
} device_rows[] = {
    { NULL, 2, { "cpu", "cpu" }, 1 },
    { "cpu", 3, { "cpu", "cpu", "cpu" }, 1 },
    { "cuda", 2, { "cuda:0", "cuda:1" }, 2 },
    { "cuda", 1, { "cuda" }, 1 },
    { "cuda:3", 1, { "cuda:3" }, 1 },
    { "cuda:3", 3, { "cuda:3", "cuda:4", "cuda:5" }, 3 },
    { "cuda:1,cuda:0", 2, { "cuda:1", "cuda:0" }, 2 },
    { "cuda:2,cuda:2,cuda:7", 3, { "cuda:2", "cuda:2", "cuda:7" }, 2 },
    { "cuda:+1", 2, { "cuda:+1", "cuda:+1" }, 1 }, /* as it is: no device has that name */
    { "cuda:", 2, { "cuda:", "cuda:" }, 1 },
    { "cuda:99999999999", 2, { "cuda:99999999999", "cuda:99999999999" }, 1 },
    { "cuda:0,cuda:1", 1, { NULL }, 0 },
    { "cuda:0,cuda:1", 3, { NULL }, 0 },
    { "cuda:0,", 2, { "cuda:0", "" }, 2 },
};

Test(engine_ranks, every_rank_has_its_device)
{
    for (size_t i = 0; i < sizeof device_rows / sizeof device_rows[0]; i++) {
        const char *devices = device_rows[i].devices == NULL ? "none" : device_rows[i].devices;
        for (uint32_t rank = 0; rank < device_rows[i].size; rank++) {
            char device[FG_TP_DEVICE_MAX];
            fg_error err;
            const char *want = device_rows[i].want[rank];
            fg_status status =
                fg_tp_device(device_rows[i].devices, device_rows[i].size, rank, device, &err);
            if (device_rows[i].want[0] == NULL) {
                cr_assert_eq(status, FG_BAD_INPUT, "%s", devices);
                cr_assert_not_null(strstr(err.text, "one device for each of"), "%s", err.text);
                continue;
            }
            cr_assert_eq(status, FG_OK, "%s: %s", devices, err.text);
            cr_assert_str_eq(device, want, "%s, rank %u: %s", devices, rank, device);
        }
        cr_assert_eq(fg_tp_device_count(device_rows[i].devices, device_rows[i].size),
                     device_rows[i].different, "%s", devices);
    }
}

/* --- what cannot be --- */

static const struct {
    const char *name;
    uint32_t ranks;
    const char *word;
} refused[] = {
    { "more than the KV heads", 3, "2 KV heads" },
    { "far too many", 100, "at most 2" },
};

Test(engine_ranks, what_cannot_be_cut_is_refused)
{
    const fg_tiny_llama model = { .seed = 8 };
    char path[64];
    write_model(&model, path);
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        fg_error err = { 0 };
        fg_runner runner;
        cr_assert_eq(open_with(path, refused[i].ranks, 1, &runner, &err), FG_BAD_INPUT, "%s",
                     refused[i].name);
        cr_assert_not_null(strstr(err.text, refused[i].word), "%s", err.text);
    }
    unlink(path);
}

Test(engine_ranks, a_rank_that_cannot_begin_is_said)
{
    const fg_tiny_llama model = { .seed = 9 };
    char path[64];
    int code = 3;
    fg_error err = { 0 };
    fg_runner runner;
    write_model(&model, path);
    const fg_tp_options tp = { .size = 2, .start = start_child, .ctx = &code };
    fg_runner_options options = { .path = path, .kv_dtype = FG_F32, .tp = &tp };
    cr_assert_eq(fg_runner_open(&options, &runner, &err), FG_AGAIN);
    cr_assert_not_null(strstr(err.text, "rank 1 ended"), "%s", err.text);
    unlink(path);
    cr_assert_eq(waitpid(-1, NULL, WNOHANG), -1, "a rank is left");
}

typedef struct
try {
    place where;
    char path[64];
}
try;

static bool try_open(void *ctx)
{
    const try *t = ctx;
    fg_runner runner;
    fg_error err = { 0 };
    fg_status status = open_on(t->where, t->path, 2, 1, &runner, &err);
    uint64_t left = fg_fault_hold();
    if (status == FG_OK) {
        fg_runner_close(&runner);
    } else {
        cr_assert_eq(status, FG_AGAIN, "%s", err.text);
        cr_assert_neq(err.text[0], '\0');
    }
    cr_assert_eq(waitpid(-1, NULL, WNOHANG), -1, "a rank is left");
    fg_fault_resume(left);
    return status == FG_OK;
}

Test(engine_ranks, every_allocation_may_fail)
{
    const fg_tiny_llama model = { .seed = 11, .arch = FG_TINY_GEMMA3 };
    try t = { .where = ON_CPU };
    write_model(&model, t.path);
    int failures = fg_fault_each(try_open, &t);
    cr_assert(failures > 20, "of rank 0: %d", failures);
    for (rank_fault = 1; !try_open(&t); rank_fault++) {
        cr_assert(rank_fault < 1000);
    }
    cr_assert(rank_fault > 20, "of rank 1: %llu", (unsigned long long)rank_fault);
    rank_fault = 0;
    unlink(t.path);
}

/* The device's side, which takes the communicator's memory, has a countdown of its own. */
Test(engine_ranks, every_allocation_of_a_joined_device_may_fail)
{
    const fg_tiny_llama model = { .seed = 18 };
    try t = { .where = ON_JOINED_DEVICES };
    write_model(&model, t.path);
    int (*each_of_device)(bool (*attempt)(void *ctx), void *ctx);
    setenv("FORGE_CUDA_PLUGIN", APART_PLUGIN, 1);
    *(void **)&each_of_device = fg_in_apart(APART_PLUGIN, "apart_fault_each");
    int failures = each_of_device(try_open, &t);
    cr_assert(failures > 20, "%d", failures);
    unlink(t.path);
}

/* As a server's main loop does, which a device's gathering does not stop. */
static void *look_at(void *engine)
{
    for (;;) {
        fg_engine_look(engine);
        sched_yield();
    }
    return NULL;
}

/* A process of its own that runs steps until its rank is killed: how it ended. */
static int run_until_killed(place where, const char *path, int signal)
{
    pid_t leader = fork();
    if (leader == 0) {
        fg_runner runner;
        const uint32_t tokens[] = { 1, 2, 3 };
        pthread_t looker;
        if (open_on(where, path, 2, 1, &runner, NULL) != FG_OK ||
            !fg_thread_start(&looker, look_at, runner.engine)) {
            _exit(90);
        }
        fg_step_seq item = fg_runner_seq(&runner, 0, tokens, 0, 3);
        fg_step step = { .seqs = &item, .seq_count = 1 };
        fg_runner_step(&runner, &step, NULL);
        if (kill(newest_rank, signal) != 0) {
            _exit(91);
        }
        for (int i = 0; i < 1000; i++) {
            fg_runner_step(&runner, &step, NULL);
        }
        _exit(92);
    }
    int how = 0;
    cr_assert_eq(waitpid(leader, &how, 0), leader);
    return how;
}

Test(engine_ranks, a_rank_that_dies_ends_its_worker)
{
    const fg_tiny_llama model = { .seed = 10 };
    char path[64];
    write_model(&model, path);
    for (place where = ON_CPU; where <= ON_JOINED_DEVICES; where++) {
        int how = run_until_killed(where, path, SIGKILL);
        cr_assert(WIFEXITED(how) && WEXITSTATUS(how) == 1, "%d: %x", where, how);
    }
    unlink(path);
}

/* A step that does not end, since a gathering in it has failed. */
Test(engine_ranks, a_device_that_cannot_gather_any_more_ends_its_worker)
{
    const fg_tiny_llama model = { .seed = 19 };
    char path[64];
    int how = 0;
    write_model(&model, path);
    pid_t leader = fork();
    if (leader == 0) {
        fg_runner runner;
        const uint32_t tokens[] = { 1, 2, 3 };
        if (open_on(ON_JOINED_DEVICES, path, 2, 1, &runner, NULL) != FG_OK) {
            _exit(90);
        }
        *(uint32_t *)fg_in_apart(APART_PLUGIN, "apart_patience") = UINT32_MAX;
        *(bool *)fg_in_apart(APART_PLUGIN, "apart_comm_is_broken") = true;
        fg_step_seq item = fg_runner_seq(&runner, 0, tokens, 0, 3);
        fg_step step = { .seqs = &item, .seq_count = 1 };
        fg_runner_step(&runner, &step, NULL);
        _exit(92);
    }
    cr_assert_eq(waitpid(leader, &how, 0), leader);
    cr_assert(WIFEXITED(how) && WEXITSTATUS(how) == 1, "%x", how);
    unlink(path);
}
