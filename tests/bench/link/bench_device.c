/*
 * bench_device [--device cuda:0] [--transport auto] [--rounds N] [--quick] - KV hand-over between two processes on one
 * device, GB/s of blocks: straight from device memory to device memory, and by way of a mirror in host memory, over sizes
 * of blocks and runs of neighbours.
 *
 *   push       64 blocks at a time, from the first push to the receiver's answer; nothing is digested or copied
 *   hand-over  the same with all that an engine's step does to such blocks on both sides: digests, and with a mirror
 *              the copies to and from it. Every digest is compared
 *   first      the first push after the two have met and prepared, in ms
 *
 * Beside them the copy probe: as many bytes copied within the device (bytes counted once). Sender and receiver are
 * processes of their own, which this one starts and which see no device before.
 */
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "common/engine/kv_memory.h"
#include "common/net/loop.h"
#include "kernels/device.h"
#include "tests/bench/link/bench.h"

enum {
    TICKET_BLOCKS = 64,
    ARENA_BLOCKS = 2 * TICKET_BLOCKS + 2,
    ROUNDS_MAX = 31,
    PUSH_TICKETS = 4, /* one after the other, in a round of pushes */
};

static const size_t sizes[] = { 128 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20 };
static const uint32_t runs[] = { 1, 8, 64 };
enum { SIZES = sizeof sizes / sizeof *sizes, RUNS = sizeof runs / sizeof *runs };

typedef struct wishes {
    const char *device, *transport;
    int rounds;
    bool quick;
} wishes;

typedef struct side {
    const wishes *settings;
    bool mirror, receives;
    int in, out;
    fg_loop *loop;
    fg_device *device;
    fg_device_stream *stream;
    size_t block_bytes;
    void *arena; /* in device memory; NULL: the engine's memory takes it */
    fg_kv_memory memory;
    fg_link *link;
    uint32_t peer;
    uint64_t answered, bad;
    bool digests; /* of the round that runs: a commit's are checked */
    uint32_t run;
    uint64_t ticket;
} side;

/* Runs of neighbours with a block between two of them. */
static void list_blocks(uint32_t run, uint32_t *blocks)
{
    for (uint32_t i = 0; i < TICKET_BLOCKS; i++) {
        blocks[i] = i + i / run;
    }
}

static void digest(side *s, bool arrived, fg_step_digest *digests)
{
    uint32_t blocks[TICKET_BLOCKS];
    list_blocks(s->run, blocks);
    for (uint32_t i = 0; i < TICKET_BLOCKS; i++) {
        digests[i] = (fg_step_digest){ .block_id = blocks[i], .arrived = arrived };
    }
    fg_kv_memory_digest(&s->memory, digests, TICKET_BLOCKS);
}

/* --- events of the link --- */

static void on_commit(void *ctx, const fg_link_commit *commit)
{
    side *s = ctx;
    if (s->digests) {
        fg_step_digest arrived[TICKET_BLOCKS];
        digest(s, true, arrived);
        for (uint32_t i = 0; i < TICKET_BLOCKS; i++) {
            s->bad += arrived[i].digest_out != commit->digests[i];
        }
    }
    must(s->bad == 0, "comparing digests");
    must(fg_link_answer(s->link, commit->ticket, NULL, 0) == FG_OK, "answer");
    s->answered++;
}

static void on_answer(void *ctx, uint64_t ticket, const uint32_t *bad, uint32_t bad_count)
{
    ((side *)ctx)->answered++;
}

static void on_fenced(void *ctx, uint64_t ticket)
{
    must(false, "keeping the link");
}

static void on_drained(void *ctx, uint64_t ticket, fg_status why)
{
    must(false, "keeping the link");
}

/* --- a size of blocks --- */

static void fill(side *s)
{
    uint8_t *host = fg_mem_map(s->block_bytes);
    must(host != NULL, "memory");
    for (uint32_t block = 0; block < ARENA_BLOCKS; block++) {
        for (size_t i = 0; i < s->block_bytes; i += 8) {
            uint64_t word = (i + 1) * (block + 7 + 1000 * s->receives) * 0x9E3779B97F4A7C15u;
            memcpy(host + i, &word, 8);
        }
        fg_device_copy(s->stream, (uint8_t *)s->memory.arena + block * s->block_bytes, host,
                       s->block_bytes);
        fg_device_event_wait(s->stream, fg_device_event_record(s->stream));
    }
    fg_mem_unmap(host, s->block_bytes);
}

static void open_size(side *s, size_t block_bytes)
{
    fg_error err = { 0 };
    s->block_bytes = block_bytes;
    s->answered = 0;
    s->ticket = 0;
    size_t arena_bytes = (ARENA_BLOCKS + FG_LINK_SPARE_BLOCKS) * block_bytes;
    s->arena = s->mirror ? NULL : fg_device_alloc(s->device, FG_MEMORY_DEVICE, arena_bytes);
    must(s->mirror || s->arena != NULL, "device memory");
    fg_link_memory kind = s->mirror                                            ? FG_LINK_OWN
                          : fg_device_memory_reach(s->device) == FG_REACH_CUDA ? FG_LINK_DEVICE
                                                                               : FG_LINK_LENT;
    fg_link_options options = {
        .block_bytes = block_bytes,
        .block_count = ARENA_BLOCKS,
        .memory_kind = kind,
        .memory = s->arena,
        .transport = s->settings->transport,
        .host = "127.0.0.1",
        .loop = s->loop,
        .events = { on_commit, on_fenced, on_answer, on_drained, s },
    };
    if (fg_link_open_ucx(&options, &s->link, &err) != FG_OK) {
        fprintf(stderr, "bench_device: %s\n", err.text);
        exit(1);
    }
    fg_engine_options engine = { .layout = { .block_bytes = block_bytes },
                                 .arena = s->mirror ? fg_link_arena(s->link) : NULL,
                                 .device_arena = s->arena,
                                 .block_count = ARENA_BLOCKS,
                                 .arena_is_shared = true };
    must(fg_kv_memory_open(&engine, s->device, s->stream, NULL, (fg_tp_part){ 0 }, &s->memory,
                           &err) == FG_OK,
         err.text);
    fill(s);
    s->peer = meet_peer(s->link, s->in, s->out);
}

static void close_size(side *s)
{
    fg_kv_memory_close(&s->memory);
    fg_link_close(s->link);
    if (s->arena != NULL) {
        fg_device_free(s->device, FG_MEMORY_DEVICE, s->arena,
                       (ARENA_BLOCKS + FG_LINK_SPARE_BLOCKS) * s->block_bytes);
    }
}

/* --- a round --- */

static void expect(side *s, uint32_t tickets)
{
    uint32_t blocks[TICKET_BLOCKS];
    fg_error err = { 0 };
    list_blocks(s->run, blocks);
    for (uint32_t t = 0; t < tickets; t++) {
        must(fg_link_expect(s->link, s->peer, s->ticket++, blocks, TICKET_BLOCKS, &err) == FG_OK,
             err.text);
    }
}

/* One ticket, until it is answered. */
static void hand_over(side *s)
{
    uint32_t blocks[TICKET_BLOCKS];
    fg_step_digest made[TICKET_BLOCKS];
    uint64_t digests[TICKET_BLOCKS] = { 0 };
    list_blocks(s->run, blocks);
    if (s->digests) {
        digest(s, false, made);
        for (uint32_t i = 0; i < TICKET_BLOCKS; i++) {
            digests[i] = made[i].digest_out;
        }
    }
    uint32_t each = (uint32_t)((16u << 20) / s->block_bytes);
    each = each < s->run ? s->run : each / s->run * s->run;
    for (uint32_t from = 0; from < TICKET_BLOCKS; from += each) {
        uint32_t count = TICKET_BLOCKS - from < each ? TICKET_BLOCKS - from : each;
        fg_status status;
        while ((status = fg_link_push(s->link, s->peer, s->ticket, from, blocks + from,
                                      blocks + from, count)) == FG_AGAIN) {
            fg_loop_run_once(s->loop, true);
        }
        must(status == FG_OK, "push");
    }
    const fg_link_commit commit = { .ticket = s->ticket++,
                                    .block_count = TICKET_BLOCKS,
                                    .digests = digests };
    must(fg_link_commit_ticket(s->link, s->peer, &commit) == FG_OK, "commit");
    uint64_t want = s->answered + 1;
    while (s->answered < want) {
        fg_loop_run_once(s->loop, true);
    }
}

/* Both sides do this in step: one byte says that the receiver is ready. Seconds, at the sender. */
static double run_round(side *s, uint32_t run, bool digests, uint32_t tickets)
{
    char ready = 'r';
    s->run = run;
    s->digests = digests;
    if (s->receives) {
        uint64_t want = s->answered + tickets;
        expect(s, tickets);
        write_all(s->out, &ready, 1);
        while (s->answered < want) {
            fg_loop_run_once(s->loop, true);
        }
        return 0;
    }
    read_all(s->in, &ready, 1);
    double start = now();
    for (uint32_t t = 0; t < tickets; t++) {
        hand_over(s);
    }
    return now() - start;
}

/* What a worker does at PREFILL, and then nothing for a while. */
static double first_push(side *s)
{
    if (!s->receives) {
        uint32_t blocks[TICKET_BLOCKS];
        list_blocks(1, blocks);
        fg_link_prepare(s->link, s->peer, blocks, TICKET_BLOCKS);
        for (double end = now() + 0.2; now() < end;) {
            fg_loop_run_once(s->loop, false);
        }
    }
    return run_round(s, 1, false, 1);
}

static double copy_probe(side *s)
{
    double rate[5];
    size_t bytes = (size_t)TICKET_BLOCKS * s->block_bytes;
    uint8_t *at = s->memory.arena;
    for (int r = 0; r < 5; r++) {
        double start = now();
        fg_device_copy(s->stream, at + bytes, at, bytes);
        fg_device_event_wait(s->stream, fg_device_event_record(s->stream));
        rate[r] = (double)bytes / (now() - start) / 1e9;
    }
    return median(rate, 5);
}

static void run_size(side *s)
{
    double push[ROUNDS_MAX], whole[ROUNDS_MAX];
    double first = first_push(s);
    double bytes = (double)TICKET_BLOCKS * (double)s->block_bytes;
    for (uint32_t i = 0; i < RUNS; i++) {
        run_round(s, runs[i], true, 1); /* warms up */
        for (int r = 0; r < s->settings->rounds; r++) {
            push[r] = PUSH_TICKETS * bytes / run_round(s, runs[i], false, PUSH_TICKETS) / 1e9;
            whole[r] = bytes / run_round(s, runs[i], true, 1) / 1e9;
        }
        if (!s->receives) {
            double rate = median(push, s->settings->rounds);
            double all = median(whole, s->settings->rounds);
            printf("%-8s %-14s %5zu %4u %9.2f %10.2f %9.3f", s->mirror ? "mirror" : "device",
                   fg_link_transport(s->link, s->peer), s->block_bytes >> 10, runs[i], rate, all,
                   bytes / all / 1e6);
            printf(i == 0 ? " %8.3f %8.1f\n" : "\n", first * 1e3, copy_probe(s));
            fflush(stdout);
        }
    }
}

static int run_side(const wishes *settings, bool mirror, bool receives, int in, int out)
{
    side s = { .settings = settings, .mirror = mirror, .receives = receives, .in = in, .out = out };
    fg_error err = { 0 };
    const fg_device_options options = { .kind = settings->device, .thread_count = 1 };
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    must(fg_loop_create(&s.loop, &err) == FG_OK, "loop");
    if (fg_device_open(&options, &s.device, &err) != FG_OK ||
        fg_device_stream_open(s.device, &s.stream, &err) != FG_OK) {
        fprintf(stderr, "bench_device: %s\n", err.text);
        return 77;
    }
    fg_device_bind_thread(s.device);
    for (uint32_t i = 0; i < (settings->quick ? 2 : SIZES); i++) {
        open_size(&s, sizes[i]);
        run_size(&s);
        /* The sender is the first to leave: the receiver's memory is still there, then. */
        char over = 'o';
        if (receives) {
            read_all(in, &over, 1);
            close_size(&s);
        } else {
            close_size(&s);
            write_all(out, &over, 1);
        }
    }
    fg_device_stream_close(s.stream);
    fg_device_close(s.device);
    fg_loop_destroy(s.loop);
    return 0;
}

/* Both processes begin anew, so that no device is inherited. */
static int run_way(char **argv, const char *way)
{
    int down[2], up[2], worst = 0;
    must(pipe(down) == 0 && pipe(up) == 0, "pipe");
    fflush(stdout);
    pid_t pids[2];
    for (int i = 0; i < 2; i++) {
        pids[i] = fork();
        must(pids[i] >= 0, "fork");
        if (pids[i] == 0) {
            char role[64];
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            snprintf(role, sizeof role, "%s:%d:%d:%d", way, i, i == 0 ? up[0] : down[0],
                     i == 0 ? down[1] : up[1]);
            close(i == 0 ? up[1] : down[1]);
            close(i == 0 ? down[0] : up[0]);
            setenv("BENCH_DEVICE_ROLE", role, 1);
            execv("/proc/self/exe", argv);
            _exit(127);
        }
    }
    for (int i = 0; i < 2; i++) {
        close(down[i]);
        close(up[i]);
    }
    for (int i = 0; i < 2; i++) {
        int status = 0;
        waitpid(pids[i], &status, 0);
        int code = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
        worst = worst != 0 ? worst : code;
    }
    return worst;
}

int main(int argc, char **argv)
{
    wishes settings = { .device = "cuda:0", .transport = "auto", .rounds = 5 };
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--quick") == 0) {
            settings.quick = true;
        } else if (i + 1 < argc && strcmp(argv[i], "--device") == 0) {
            settings.device = argv[++i];
        } else if (i + 1 < argc && strcmp(argv[i], "--transport") == 0) {
            settings.transport = argv[++i];
        } else if (i + 1 < argc && strcmp(argv[i], "--rounds") == 0) {
            settings.rounds = atoi(argv[++i]);
        } else {
            fprintf(stderr, "bench_device [--device cuda:0] [--transport auto] [--rounds N] "
                            "[--quick]\n");
            return 2;
        }
    }
    must(settings.rounds >= 1 && settings.rounds <= ROUNDS_MAX, "reading --rounds (1 to 31)");
    const char *role = getenv("BENCH_DEVICE_ROLE");
    char way[16];
    int receives, in, out;
    if (role != NULL && sscanf(role, "%15[a-z]:%d:%d:%d", way, &receives, &in, &out) == 4) {
        return run_side(&settings, strcmp(way, "mirror") == 0, receives != 0, in, out);
    }
    printf("%-8s %-14s %5s %4s %9s %10s %9s %8s %8s\n", "way", "transport", "KiB", "run", "push",
           "hand-over", "ms", "first ms", "copy");
    int device = run_way(argv, "device"), mirror = run_way(argv, "mirror");
    return device != 0 ? device : mirror;
}
