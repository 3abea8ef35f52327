/*
 * bench_link [ROUNDS] - KV push between two processes, GB/s: scattered blocks of a KV cache, from the
 * first push to the last acknowledgement, over shared memory and over TCP on loopback, both ends
 * asleep on their loops when there is nothing to do. Beside each, in the same minute, what the machine
 * can do: memcpy of as many cold bytes, and a plain loopback socket with 1 MiB writes.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "common/net/loop.h"
#include "tests/bench/link/bench.h"

enum {
    TOTAL_BYTES = 256 << 20,
    TICKET_BLOCKS = 32, /* a prompt of 512 tokens */
    ROUNDS_MAX = 31,
    WRITE_BYTES = 1 << 20,
};

/* --- probes --- */

static double probe_memcpy(size_t block_bytes, int rounds)
{
    double rate[ROUNDS_MAX];
    char *from = fg_mem_map(TOTAL_BYTES), *to = fg_mem_map(TOTAL_BYTES);
    must(from != NULL && to != NULL, "memory");
    memset(from, 1, TOTAL_BYTES);
    memset(to, 2, TOTAL_BYTES);
    for (int r = 0; r < rounds; r++) {
        double start = now();
        for (size_t at = 0; at + block_bytes <= TOTAL_BYTES; at += block_bytes) {
            memcpy(to + at, from + at, block_bytes);
            __asm__ volatile("" ::"r"(to + at) : "memory");
        }
        rate[r] = TOTAL_BYTES / (now() - start) / 1e9;
    }
    fg_mem_unmap(from, TOTAL_BYTES);
    fg_mem_unmap(to, TOTAL_BYTES);
    return median(rate, rounds);
}

static double probe_socket(int rounds)
{
    double rate[ROUNDS_MAX];
    struct sockaddr_in at = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
    socklen_t length = sizeof at;
    int door = socket(AF_INET, SOCK_STREAM, 0);
    must(door >= 0 && bind(door, (struct sockaddr *)&at, sizeof at) == 0 && listen(door, 1) == 0 &&
             getsockname(door, (struct sockaddr *)&at, &length) == 0,
         "socket");
    char *memory = fg_mem_map(TOTAL_BYTES);
    must(memory != NULL, "memory");
    memset(memory, 3, TOTAL_BYTES);
    fflush(stdout);
    pid_t child = fork();
    must(child >= 0, "fork");
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        int out = socket(AF_INET, SOCK_STREAM, 0);
        must(connect(out, (struct sockaddr *)&at, sizeof at) == 0, "connect");
        for (int r = 0; r < rounds; r++) {
            read_all(out, memory, TOTAL_BYTES);
            write_all(out, "k", 1);
        }
        _exit(0);
    }
    int in = accept(door, NULL, NULL);
    must(in >= 0, "accept");
    for (int r = 0; r < rounds; r++) {
        char ok;
        double start = now();
        for (size_t put = 0; put < TOTAL_BYTES; put += WRITE_BYTES) {
            write_all(in, memory + put, WRITE_BYTES);
        }
        read_all(in, &ok, 1);
        rate[r] = TOTAL_BYTES / (now() - start) / 1e9;
    }
    close(in);
    close(door);
    waitpid(child, NULL, 0);
    fg_mem_unmap(memory, TOTAL_BYTES);
    return median(rate, rounds);
}

/* --- the link --- */

typedef struct bench {
    fg_link *link;
    fg_loop *loop;
    uint32_t peer;
    uint32_t block_count; /* of the arena, a multiple of TICKET_BLOCKS */
    uint64_t answered;
} bench;

static void on_commit(void *ctx, const fg_link_commit *commit)
{
    bench *b = ctx;
    must(fg_link_answer(b->link, commit->ticket, NULL, 0) == FG_OK, "answer");
}

static void on_answer(void *ctx, uint64_t ticket, const uint32_t *bad, uint32_t bad_count)
{
    bench *b = ctx;
    b->answered++;
}

static void on_ended(void *ctx, uint64_t ticket)
{
}

static void on_drained(void *ctx, uint64_t ticket, fg_status why)
{
}

/* No two neighbours of a ticket touch, as in a cache that has been in use. */
static void ticket_blocks(const bench *b, uint32_t ticket_index, uint32_t *blocks)
{
    uint32_t stride = b->block_count / TICKET_BLOCKS;
    for (uint32_t i = 0; i < TICKET_BLOCKS; i++) {
        blocks[i] = ticket_index % stride + i * stride;
    }
}

static void open_bench(bench *b, const char *transport, size_t block_bytes, int in, int out)
{
    fg_error err = { 0 };
    *b = (bench){ .block_count =
                      (uint32_t)(TOTAL_BYTES / block_bytes) / TICKET_BLOCKS * TICKET_BLOCKS };
    must(fg_loop_create(&b->loop, &err) == FG_OK, "loop");
    fg_link_options options = {
        .block_bytes = block_bytes,
        .block_count = b->block_count,
        .transport = transport,
        .host = "127.0.0.1",
        .loop = b->loop,
        .events = { on_commit, on_ended, on_answer, on_drained, b },
    };
    if (fg_link_open_ucx(&options, &b->link, &err) != FG_OK) {
        fprintf(stderr, "bench_link: %s\n", err.text);
        exit(1);
    }
    memset(fg_link_arena(b->link), 1, (size_t)b->block_count * block_bytes);
    b->peer = meet_peer(b->link, in, out);
}

/* Expects every ticket of every round in advance, then serves until it is killed. */
static void receiver(const char *transport, size_t block_bytes, int rounds, int in, int out)
{
    bench b;
    fg_error err;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    open_bench(&b, transport, block_bytes, in, out);
    uint32_t tickets = b.block_count / TICKET_BLOCKS, blocks[TICKET_BLOCKS];
    for (int r = 0; r < rounds; r++) {
        for (uint32_t t = 0; t < tickets; t++) {
            ticket_blocks(&b, t + 7, blocks);
            must(fg_link_expect(b.link, b.peer, (uint64_t)r * tickets + t, blocks, TICKET_BLOCKS,
                                &err) == FG_OK,
                 "expect");
        }
        write_all(out, "e", 1);
        uint64_t open = 1;
        while (open > 0) {
            fg_link_stats stats;
            fg_loop_run_once(b.loop, true);
            fg_link_stats_get(b.link, &stats);
            open = stats.tickets_open;
        }
    }
    for (;;) {
        fg_loop_run_once(b.loop, true);
    }
}

static double run_round(bench *b, uint64_t first_ticket)
{
    uint32_t tickets = b->block_count / TICKET_BLOCKS;
    uint32_t source[TICKET_BLOCKS], target[TICKET_BLOCKS];
    uint64_t digests[TICKET_BLOCKS] = { 0 };
    double start = now();
    for (uint32_t t = 0; t < tickets; t++) {
        fg_link_commit commit = {
            .ticket = first_ticket + t,
            .block_count = TICKET_BLOCKS,
            .digests = digests,
        };
        ticket_blocks(b, t, source);
        ticket_blocks(b, t + 7, target);
        fg_status status;
        while ((status = fg_link_push(b->link, b->peer, first_ticket + t, 0, source, target,
                                      TICKET_BLOCKS)) == FG_AGAIN) {
            fg_loop_run_once(b->loop, true);
        }
        must(status == FG_OK, "push");
        must(fg_link_commit_ticket(b->link, b->peer, &commit) == FG_OK, "commit");
        fg_loop_run_once(b->loop, false);
    }
    while (b->answered < first_ticket + tickets) {
        fg_loop_run_once(b->loop, true);
    }
    return now() - start;
}

static double push_rate(const char *transport, size_t block_bytes, int rounds, char *chosen,
                        size_t chosen_bytes)
{
    double rate[ROUNDS_MAX];
    int down[2], up[2];
    must(pipe(down) == 0 && pipe(up) == 0, "pipe");
    fflush(stdout);
    pid_t child = fork();
    must(child >= 0, "fork");
    if (child == 0) {
        receiver(transport, block_bytes, rounds + 1, down[0], up[1]);
    }
    bench b;
    open_bench(&b, transport, block_bytes, up[0], down[1]);
    uint32_t tickets = b.block_count / TICKET_BLOCKS;
    for (int r = 0; r <= rounds; r++) {
        char ready;
        read_all(up[0], &ready, 1);
        double seconds = run_round(&b, (uint64_t)r * tickets);
        if (r > 0) { /* the first warms up */
            rate[r - 1] = (double)b.block_count * (double)block_bytes / seconds / 1e9;
        }
    }
    snprintf(chosen, chosen_bytes, "%s", fg_link_transport(b.link, b.peer));
    fg_link_close(b.link);
    fg_loop_destroy(b.loop);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    for (int i = 0; i < 2; i++) {
        close(down[i]);
        close(up[i]);
    }
    return median(rate, rounds);
}

int main(int argc, char **argv)
{
    static const size_t sizes[] = { 65536, 368640, 1 << 20 }; /* the middle one: SmolLM2, f16 */
    int rounds = argc > 1 ? atoi(argv[1]) : 5;
    must(rounds >= 1 && rounds <= ROUNDS_MAX, "reading ROUNDS (1 to 31)");
    double socket_rate = probe_socket(rounds);
    printf("KV push, %d MiB a round, median of %d rounds, GB/s\n", TOTAL_BYTES >> 20, rounds);
    printf("%-10s %-14s %8s %8s %12s\n", "block", "transport", "push", "memcpy", "raw socket");
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        double copy_rate = probe_memcpy(sizes[i], rounds);
        static const char *const transports[] = { "shm", "tcp" };
        for (int t = 0; t < 2; t++) {
            char chosen[64];
            double rate = push_rate(transports[t], sizes[i], rounds, chosen, sizeof chosen);
            printf("%-10zu %-14s %8.2f %8.2f %12.2f\n", sizes[i], chosen, rate, copy_rate,
                   socket_rate);
        }
    }
    return 0;
}
