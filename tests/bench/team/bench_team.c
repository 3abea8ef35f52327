/*
 * bench_team [THREADS] [SECONDS]: what the team costs.
 *
 *   join      nanoseconds of a run whose pieces do nothing, members warm
 *   wake      the same after the members fell asleep
 *   shared    join with a core share: nobody else has one; `beside`: one other has, and rests
 *   step      a step of OPS operations, alone; then with a process that spins on one core (on the last
 *             and on the first core that this process may use). `share` is what was got of the fair
 *             share: with half of one core of n gone, n - 0.5 of n cores are left.
 */
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/core_share.h"
#include "common/base/team.h"

enum { JOINS = 200000, WAKES = 200, OPS = 200, ROUNDS_MAX = 4000 };

static uint64_t now_ns(void)
{
    fg_clock clock = fg_clock_real();
    return fg_clock_now_ns(&clock);
}

static void nothing(void *ctx, uint32_t piece, uint32_t member)
{
}

/* Arithmetic that stays in registers, so that time is the core's alone. */
static void work(uint32_t loops)
{
    volatile uint64_t sink;
    uint64_t x = loops;
    for (uint32_t i = 0; i < loops; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
    }
    sink = x;
    (void)sink;
}

static void work_piece(void *ctx, uint32_t piece, uint32_t member)
{
    work(*(const uint32_t *)ctx);
}

static void bench_join(fg_team *team, const char *what, uint32_t pieces)
{
    double best = 1e18;
    for (int round = 0; round < 5; round++) {
        uint64_t start = now_ns();
        for (int i = 0; i < JOINS / 5; i++) {
            fg_team_for(team, pieces, nothing, NULL);
        }
        double each = (double)(now_ns() - start) / (JOINS / 5);
        best = each < best ? each : best;
    }
    printf("%-6s %4u pieces  %8.0f ns\n", what, pieces, best);
}

static int by_value(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static void bench_wake(fg_team *team, uint32_t pieces)
{
    static uint64_t took[WAKES];
    for (int i = 0; i < WAKES; i++) {
        nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
        uint64_t start = now_ns();
        fg_team_for(team, pieces, nothing, NULL);
        took[i] = now_ns() - start;
    }
    qsort(took, WAKES, sizeof took[0], by_value);
    printf("wake   %4u pieces  %8.0f ns median, %.0f ns p90\n", pieces, (double)took[WAKES / 2],
           (double)took[WAKES * 9 / 10]);
}

/* At the start: the team narrows its threads' own sets when it was robbed. */
static cpu_set_t allowed;

typedef struct times {
    double mean, median, p90;
} times;

static void bench_shared(fg_team *team, uint32_t threads)
{
    char directory[] = "/tmp/bench_team_XXXXXX";
    char path[128];
    fg_core_share_options options = {
        .directory = directory, .cpus = &allowed, .cores = threads, .threads = threads
    };
    fg_core_share *own = NULL, *other = NULL;
    if (mkdtemp(directory) == NULL || fg_core_share_open(&options, &own, NULL) != FG_OK) {
        return;
    }
    fg_team_follow(team, fg_core_share_width, own);
    bench_join(team, "shared", 8);
    bench_join(team, "shared", 64);
    if (fg_core_share_open(&options, &other, NULL) == FG_OK) {
        bench_join(team, "beside", 8);
        bench_join(team, "beside", 64);
    }
    fg_team_follow(team, NULL, NULL);
    fg_core_share_close(other);
    fg_core_share_close(own);
    snprintf(path, sizeof path, "%s/forge-cores-%u-v1", directory, (unsigned)geteuid());
    unlink(path);
    rmdir(directory);
}

/* A step: OPS operations with 1 us of the caller's own work between them. */
static times bench_step(fg_team *team, uint32_t pieces, uint32_t loops, uint32_t loops_us,
                        double seconds)
{
    static uint64_t took[ROUNDS_MAX];
    uint64_t begin = now_ns(), last = begin;
    size_t count = 0;
    while (count < ROUNDS_MAX && (count < 10 || (double)(last - begin) < seconds * 1e9)) {
        for (int op = 0; op < OPS; op++) {
            work(loops_us);
            fg_team_for(team, pieces, work_piece, &loops);
        }
        uint64_t now = now_ns();
        took[count++] = now - last;
        last = now;
    }
    double mean = (double)(last - begin) / (double)count / 1e6;
    qsort(took, count, sizeof took[0], by_value);
    return (times){ mean, (double)took[count / 2] / 1e6, (double)took[count * 9 / 10] / 1e6 };
}

/* A process that spins on `cpu` until it is killed. */
static pid_t start_thief(int cpu)
{
    pid_t pid = fork();
    if (pid == 0) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET((size_t)cpu, &set);
        if (sched_setaffinity(0, sizeof set, &set) != 0) {
            _exit(1);
        }
        for (;;) {
            work(1000000);
        }
    }
    return pid;
}

static void stop_thief(pid_t pid)
{
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
}

static void bench_stolen(fg_team *team, uint32_t pieces, uint32_t piece_us, uint32_t loops_us,
                         double seconds)
{
    uint32_t loops = loops_us * piece_us;
    double threads = fg_team_size(team);
    times alone = bench_step(team, pieces, loops, loops_us, seconds);
    printf("step   %4u pieces of %3u us  %8.3f ms mean, %.3f median, %.3f p90 (ideal %.3f)\n",
           pieces, piece_us, alone.mean, alone.median, alone.p90,
           OPS * (1e-3 + pieces * piece_us / threads * 1e-3));
    int cpus[CPU_SETSIZE];
    int count = 0;
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET((size_t)cpu, &allowed)) {
            cpus[count++] = cpu;
        }
    }
    double fair = alone.mean * count / (count - 0.5);
    for (int which = 0; which < 2; which++) {
        int cpu = which == 0 ? cpus[count - 1] : cpus[0];
        pid_t thief = start_thief(cpu);
        times t = bench_step(team, pieces, loops, loops_us, seconds);
        stop_thief(thief);
        printf("  cpu %d half stolen        %8.3f ms mean, %.3f median, %.3f p90, share %.2f\n",
               cpu, t.mean, t.median, t.p90, fair / t.mean);
    }
}

int main(int argc, char **argv)
{
    uint32_t threads = argc > 1 ? (uint32_t)atoi(argv[1]) : 2;
    double seconds = argc > 2 ? atof(argv[2]) : 1;
    sched_getaffinity(0, sizeof allowed, &allowed);
    fg_team *team;
    fg_error err = { 0 };
    if (fg_team_create(threads, NULL, &team, &err) != FG_OK) {
        fprintf(stderr, "bench_team: %s\n", err.text);
        return 1;
    }
    uint64_t best = UINT64_MAX;
    for (int i = 0; i < 20; i++) {
        uint64_t start = now_ns();
        work(1000000);
        uint64_t took = now_ns() - start;
        best = took < best ? took : best;
    }
    uint32_t loops_us = (uint32_t)(1e9 / (double)best);
    static const uint32_t counts[] = { 1, 2, 4, 8, 64 };
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        bench_join(team, "join", counts[i]);
    }
    bench_shared(team, threads);
    bench_wake(team, 2);
    static const struct {
        uint32_t pieces, piece_us;
    } shapes[] = { { 8, 5 }, { 8, 20 }, { 16, 50 } };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        bench_stolen(team, shapes[i].pieces, shapes[i].piece_us, loops_us, seconds);
    }
    fg_team_destroy(team);
    return 0;
}
