/*
 * bench_handover [ROUNDS] - what one hand-over exposes between two processes, in microseconds from the
 * first push of its last chunk to the receiver's acknowledgement, by the number of blocks of that chunk.
 * "first": the first hand-over of two links that have just met and then rested, median over ROUNDS fresh
 * pairs; "later": into blocks that were never written before, and "again": into blocks that were; once
 * with pushes out of the blue, once prepared while a prompt would be computed (fg_link_prepare). Beside it, a memcpy of as many cold bytes. Both ends sleep on their loops when there is nothing to do.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "common/net/loop.h"
#include "tests/bench/link/bench.h"

enum {
    BLOCK_BYTES = 368640, /* SmolLM2, f16 */
    BLOCKS_MAX = 64,
    ARENA_BLOCKS = 512,
    ROUNDS_MAX = 31,
    REST_MS = 150, /* between the introduction and the first push */
};

typedef struct end {
    fg_link *link;
    fg_loop *loop;
    uint32_t peer;
    uint64_t answered;
} end;

static void on_commit(void *ctx, const fg_link_commit *commit)
{
    end *e = ctx;
    must(fg_link_answer(e->link, commit->ticket, NULL, 0) == FG_OK, "answer");
}

static void on_answer(void *ctx, uint64_t ticket, const uint32_t *bad, uint32_t bad_count)
{
    end *e = ctx;
    e->answered++;
}

static void on_ended(void *ctx, uint64_t ticket)
{
}

static void on_drained(void *ctx, uint64_t ticket, fg_status why)
{
}

static void open_end(end *e, const char *transport, int in, int out)
{
    fg_error err = { 0 };
    *e = (end){ 0 };
    must(fg_loop_create(&e->loop, &err) == FG_OK, "loop");
    fg_link_options options = {
        .block_bytes = BLOCK_BYTES,
        .block_count = ARENA_BLOCKS,
        .transport = transport,
        .host = "127.0.0.1",
        .loop = e->loop,
        .events = { on_commit, on_ended, on_answer, on_drained, e },
    };
    must(fg_link_open_ucx(&options, &e->link, &err) == FG_OK, err.text);
    /* A worker has computed long before: its own pages are there. */
    memset(fg_link_arena(e->link), 1, (size_t)ARENA_BLOCKS * BLOCK_BYTES);
    e->peer = meet_peer(e->link, in, out);
}

static void on_timer(void *ctx)
{
    *(bool *)ctx = true;
}

static void rest(end *e)
{
    bool over = false;
    fg_timer *timer;
    must(fg_timer_start(e->loop, REST_MS, 0, on_timer, &over, &timer) == FG_OK, "timer");
    while (!over) {
        fg_loop_run_once(e->loop, true);
    }
    fg_timer_close(timer);
}

static void fill(uint32_t *blocks, uint32_t first, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        blocks[i] = first + i * 2; /* no two touch */
    }
}

/* Opens the tickets that the sender asks for, until it is killed. */
static void receiver(const char *transport, int in, int out)
{
    end e;
    fg_error err;
    uint32_t blocks[BLOCKS_MAX];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    open_end(&e, transport, in, out);
    rest(&e);
    for (uint64_t ticket = 1;; ticket++) {
        uint32_t ask[2];
        read_all(in, ask, sizeof ask);
        fill(blocks, ask[0], ask[1]);
        must(fg_link_expect(e.link, e.peer, ticket, blocks, ask[1], &err) == FG_OK, "expect");
        write_all(out, "e", 1);
        fg_link_stats stats;
        do {
            fg_loop_run_once(e.loop, true);
            fg_link_stats_get(e.link, &stats);
        } while (stats.tickets_open > 0);
        fg_loop_run_once(e.loop, false); /* the answer leaves */
    }
}

typedef struct pipes {
    int in, out;
} pipes;

static double hand_over(end *e, const pipes *at, uint64_t ticket, uint32_t first, uint32_t count,
                        bool prepared)
{
    uint32_t ask[2] = { first, count }, blocks[BLOCKS_MAX];
    uint64_t digests[BLOCKS_MAX] = { 0 };
    char ready;
    write_all(at->out, ask, sizeof ask);
    read_all(at->in, &ready, 1);
    fill(blocks, first, count);
    if (prepared) { /* and the prompt is computed meanwhile */
        fg_link_prepare(e->link, e->peer, blocks, count);
        rest(e);
    }
    fg_link_commit commit = { .ticket = ticket, .block_count = count, .digests = digests };
    uint64_t start = now_ns();
    must(fg_link_push(e->link, e->peer, ticket, 0, blocks, blocks, count) == FG_OK, "push");
    must(fg_link_commit_ticket(e->link, e->peer, &commit) == FG_OK, "commit");
    while (e->answered < ticket) {
        fg_loop_run_once(e->loop, true);
    }
    return 1e-3 * (double)(now_ns() - start);
}

/* One fresh pair of processes: its first hand-over, the next into fresh blocks, and once more into those. */
static void fresh_pair(const char *transport, uint32_t count, bool prepared, double *took)
{
    int down[2], up[2];
    must(pipe(down) == 0 && pipe(up) == 0, "pipe");
    fflush(stdout);
    pid_t child = fork();
    must(child >= 0, "fork");
    if (child == 0) {
        receiver(transport, down[0], up[1]);
    }
    end e;
    open_end(&e, transport, up[0], down[1]);
    rest(&e);
    pipes at = { up[0], down[1] };
    took[0] = hand_over(&e, &at, 1, 0, count, prepared);
    took[1] = hand_over(&e, &at, 2, 2 * BLOCKS_MAX, count, prepared);
    took[2] = hand_over(&e, &at, 3, 2 * BLOCKS_MAX, count, false);
    fg_link_close(e.link);
    fg_loop_destroy(e.loop);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    for (int i = 0; i < 2; i++) {
        close(down[i]);
        close(up[i]);
    }
}

static double probe_memcpy(uint32_t count)
{
    static char *from, *to;
    size_t size = (size_t)ARENA_BLOCKS * BLOCK_BYTES;
    if (from == NULL) {
        from = fg_mem_map(size);
        to = fg_mem_map(size);
        must(from != NULL && to != NULL, "memory");
        memset(from, 1, size);
        memset(to, 2, size);
    }
    uint32_t blocks[BLOCKS_MAX];
    fill(blocks, 0, count);
    uint64_t start = now_ns();
    for (uint32_t i = 0; i < count; i++) {
        memcpy(to + (size_t)blocks[i] * BLOCK_BYTES, from + (size_t)blocks[i] * BLOCK_BYTES,
               BLOCK_BYTES);
        __asm__ volatile("" ::"r"(to) : "memory");
    }
    double took = 1e-3 * (double)(now_ns() - start);
    memset(from + size / 2, 3, size / 2); /* what was copied is cold again */
    return took;
}

static void run_line(const char *transport, uint32_t count, int rounds)
{
    double took[6][ROUNDS_MAX], copy[ROUNDS_MAX];
    for (int r = 0; r < rounds; r++) {
        double one[6];
        fresh_pair(transport, count, false, one);
        fresh_pair(transport, count, true, one + 3);
        copy[r] = probe_memcpy(count);
        for (int i = 0; i < 6; i++) {
            took[i][r] = one[i];
        }
    }
    printf("%-6u %-9s", count, transport);
    for (int i = 0; i < 6; i++) {
        printf(" %8.0f", median(took[i], rounds));
    }
    printf(" %8.0f\n", median(copy, rounds));
    fflush(stdout);
}

int main(int argc, char **argv)
{
    static const uint32_t counts[] = { 1, 4, 16, 32, 64 };
    static const char *const transports[] = { "shm", "tcp" };
    int rounds = argc > 1 ? atoi(argv[1]) : 7;
    must(rounds >= 1 && rounds <= ROUNDS_MAX, "reading ROUNDS (1 to 31)");
    printf(
        "One hand-over, blocks of %d bytes, us from first push to acknowledgement, medians of %d\n",
        BLOCK_BYTES, rounds);
    printf("%-16s %26s %26s\n", "", "the push comes unprepared", "prepared");
    printf("%-6s %-9s", "blocks", "transport");
    for (int i = 0; i < 2; i++) {
        printf(" %8s %8s %8s", "first", "later", "again");
    }
    printf(" %8s\n", "memcpy");
    for (size_t c = 0; c < sizeof counts / sizeof counts[0]; c++) {
        for (int t = 0; t < 2; t++) {
            run_line(transports[t], counts[c], rounds);
        }
    }
    return 0;
}
