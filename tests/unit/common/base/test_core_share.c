#include "common/base/core_share.h"

#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/fault.h"
#include "common/base/rng.h"
#include "tests/support/test.h"

/* ---- the rule ---- */

enum { CLAIMS_MAX = 6 };

static const struct {
    const char *name;
    uint32_t cores, count;
    fg_core_claim claims[CLAIMS_MAX];
    uint32_t widths[CLAIMS_MAX];
} rules[] = {
    { "room for all", 8, 2, { { 2, 0 }, { 6, 0 } }, { 2, 6 } },
    { "two of a kind", 2, 2, { { 2, 0 }, { 2, 0 } }, { 1, 1 } },
    { "the modest keep what they want", 8, 3, { { 1, 0 }, { 8, 0 }, { 8, 0 } }, { 1, 4, 3 } },
    { "in two rounds", 10, 4, { { 9, 0 }, { 1, 0 }, { 3, 0 }, { 9, 0 } }, { 3, 1, 3, 3 } },
    { "the rest by rank", 3, 2, { { 3, 1 }, { 3, 0 } }, { 1, 2 } },
    { "then by place", 5, 3, { { 5, 1 }, { 5, 1 }, { 5, 0 } }, { 2, 1, 2 } },
    { "more processes than cores", 2, 3, { { 2, 0 }, { 2, 0 }, { 2, 0 } }, { 1, 1, 1 } },
    { "no cores at all", 0, 2, { { 2, 0 }, { 2, 0 } }, { 1, 1 } },
    { "wants nothing", 2, 2, { { 0, 0 }, { 2, 0 } }, { 1, 2 } },
    { "wants everything", 4, 2, { { UINT32_MAX, 0 }, { 4, 0 } }, { 2, 2 } },
    { "alone", 2, 1, { { 4, 0 } }, { 2 } },
};

Test(core_share, cores_are_shared_fairly)
{
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        for (uint32_t self = 0; self < rules[i].count; self++) {
            uint32_t width =
                fg_core_share_fair(rules[i].claims, rules[i].count, self, rules[i].cores);
            cr_assert_eq(width, rules[i].widths[self], "%s: claim %u got %u", rules[i].name, self,
                         width);
        }
    }
}

/* For any claims: nobody gets more than it wants while another has less than it, and no core is left. */
Test(core_share, any_claims_are_shared_fairly)
{
    fg_rng rng = { .state = 1 };
    for (int round = 0; round < 3000; round++) {
        fg_core_claim claims[12];
        uint32_t widths[12];
        uint32_t count = 1 + (uint32_t)fg_rng_below(&rng, 12);
        uint32_t cores = count + (uint32_t)fg_rng_below(&rng, 60);
        uint32_t wanted = 0, given = 0;
        for (uint32_t i = 0; i < count; i++) {
            claims[i] = (fg_core_claim){ .threads = 1 + (uint32_t)fg_rng_below(&rng, 16),
                                         .rank = (uint32_t)fg_rng_below(&rng, 3) };
            wanted += claims[i].threads;
        }
        for (uint32_t i = 0; i < count; i++) {
            widths[i] = fg_core_share_fair(claims, count, i, cores);
            given += widths[i];
            cr_assert(widths[i] >= 1 && widths[i] <= claims[i].threads);
        }
        cr_assert_eq(given, wanted < cores ? wanted : cores);
        for (uint32_t i = 0; i < count; i++) {
            for (uint32_t j = 0; j < count; j++) {
                cr_assert(widths[i] <= widths[j] + 1 || widths[j] == claims[j].threads);
            }
        }
    }
}

/* ---- entries ---- */

typedef struct room {
    char directory[64];
    char path[128];
    _Atomic uint64_t *now_ns; /* shared with forked processes */
    uint32_t looks;           /* of this process at the clock */
    fg_clock clock;
    cpu_set_t cpus;
} room;

static uint64_t read_now(void *ctx)
{
    room *r = ctx;
    r->looks++;
    return atomic_load(r->now_ns);
}

static void set_up(room *r)
{
    memset(r, 0, sizeof *r);
    snprintf(r->directory, sizeof r->directory, "/tmp/fg_core_share_XXXXXX");
    cr_assert_not_null(mkdtemp(r->directory));
    snprintf(r->path, sizeof r->path, "%s/forge-cores-%u-v1", r->directory, (unsigned)geteuid());
    r->now_ns =
        mmap(NULL, sizeof *r->now_ns, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    cr_assert(r->now_ns != MAP_FAILED);
    atomic_store(r->now_ns, 1000000000u);
    r->clock = (fg_clock){ .now_ns = read_now, .ctx = r };
    CPU_SET(0, &r->cpus);
    CPU_SET(1, &r->cpus);
}

static void tear_down(room *r)
{
    unlink(r->path);
    rmdir(r->directory);
    munmap(r->now_ns, sizeof *r->now_ns);
}

static void pass_us(room *r, uint64_t time_us)
{
    atomic_fetch_add(r->now_ns, time_us * 1000);
}

static fg_core_share *join_with(room *r, const cpu_set_t *cpus, uint32_t threads, uint32_t cores)
{
    fg_core_share_options options = { .directory = r->directory,
                                      .cpus = cpus,
                                      .cores = cores,
                                      .threads = threads,
                                      .clock = &r->clock };
    fg_core_share *share = NULL;
    fg_error err = { 0 };
    cr_assert_eq(fg_core_share_open(&options, &share, &err), FG_OK, "%s", err.text);
    return share;
}

static fg_core_share *join(room *r)
{
    return join_with(r, &r->cpus, 2, 2);
}

Test(core_share, alone_all_threads_compute)
{
    room r;
    set_up(&r);
    fg_core_share *share = join_with(&r, &r.cpus, 4, 2);
    for (int step = 0; step < 3; step++) {
        fg_core_share_begin(share);
        cr_assert_eq(fg_core_share_width(share), 4);
        pass_us(&r, 40000);
        cr_assert_eq(fg_core_share_width(share), 4);
        fg_core_share_end(share);
    }
    cr_assert_eq(fg_core_share_shared_steps(share), 0);
    cr_assert_eq(fg_core_share_last_width(share), 4);
    fg_core_share_close(share);
    fg_core_share_close(NULL);
    tear_down(&r);
}

Test(core_share, who_computes_counts_until_a_moment_after)
{
    room r;
    set_up(&r);
    fg_core_share *a = join(&r), *b = join(&r);
    fg_core_share_begin(a);
    cr_assert_eq(fg_core_share_width(a), 2, "the other one has not begun");
    fg_core_share_begin(b);
    cr_assert_eq(fg_core_share_width(b), 1);
    cr_assert_eq(fg_core_share_width(a), 1);
    fg_core_share_end(b);
    pass_us(&r, FG_CORE_SHARE_PAUSE_US - 1);
    cr_assert_eq(fg_core_share_width(a), 1, "between two steps");
    fg_core_share_begin(b);
    fg_core_share_end(b);
    pass_us(&r, FG_CORE_SHARE_PAUSE_US - 1);
    cr_assert_eq(fg_core_share_width(a), 1, "after another step");
    pass_us(&r, 1);
    cr_assert_eq(fg_core_share_width(a), 2, "at rest");
    cr_assert_eq(fg_core_share_last_width(a), 2);
    cr_assert_eq(fg_core_share_shared_steps(a), 1);
    fg_core_share_close(a);
    fg_core_share_close(b);
    tear_down(&r);
}

/* Also when it has begun before, on all threads: it looks again as soon as somebody computes. */
Test(core_share, who_works_on_in_quiet_notices_at_once)
{
    room r;
    set_up(&r);
    fg_core_share *a = join(&r), *b = join(&r);
    fg_core_share_begin(a);
    for (int piece = 0; piece < 1000; piece++) {
        pass_us(&r, 3000);
        cr_assert_eq(fg_core_share_width(a), 2);
        if (piece % 50 == 49) {
            fg_core_share_begin(b);
            cr_assert_eq(fg_core_share_width(b), 1, "piece %d: a gives signs of life", piece);
            cr_assert_eq(fg_core_share_width(a), 1, "piece %d", piece);
            fg_core_share_end(b);
            cr_assert_eq(fg_core_share_width(a), 1, "piece %d: just ended", piece);
        }
    }
    fg_core_share_close(a);
    fg_core_share_close(b);
    tear_down(&r);
}

Test(core_share, who_is_silent_stops_counting_and_may_come_back)
{
    room r;
    set_up(&r);
    fg_core_share *a = join(&r), *b = join(&r);
    fg_core_share_begin(a);
    fg_core_share_begin(b);
    pass_us(&r, FG_CORE_SHARE_SILENT_US - 1);
    cr_assert_eq(fg_core_share_width(a), 1);
    pass_us(&r, 1);
    cr_assert_eq(fg_core_share_width(a), 2);
    cr_assert_eq(fg_core_share_width(b), 1, "a piece ended after all");
    cr_assert_eq(fg_core_share_width(a), 1);
    fg_core_share_close(b);
    cr_assert_eq(fg_core_share_width(a), 2, "gone at once");
    fg_core_share_close(a);
    tear_down(&r);
}

static const struct {
    const char *name;
    uint16_t first[2], second[2]; /* processors, from .. to */
    uint32_t threads[2], widths[2];
} masks[] = {
    { "apart", { 0, 3 }, { 4, 7 }, { 4, 4 }, { 4, 4 } },
    { "the same", { 0, 7 }, { 0, 7 }, { 8, 8 }, { 4, 4 } },
    { "one processor in common", { 0, 3 }, { 3, 6 }, { 4, 4 }, { 3, 3 } },
    { "few inside many", { 0, 7 }, { 0, 1 }, { 8, 2 }, { 6, 1 } },
    { "beyond the first word", { 62, 65 }, { 64, 67 }, { 4, 4 }, { 2, 2 } },
    { "the last ones", { 1020, 1023 }, { 1020, 1023 }, { 3, 3 }, { 2, 2 } },
};

Test(core_share, only_those_on_the_same_processors_count)
{
    for (size_t i = 0; i < sizeof masks / sizeof masks[0]; i++) {
        room r;
        set_up(&r);
        fg_core_share *shares[2];
        for (int which = 0; which < 2; which++) {
            const uint16_t *range = which == 0 ? masks[i].first : masks[i].second;
            cpu_set_t cpus;
            CPU_ZERO(&cpus);
            for (size_t cpu = range[0]; cpu <= range[1]; cpu++) {
                CPU_SET(cpu, &cpus);
            }
            shares[which] =
                join_with(&r, &cpus, masks[i].threads[which], (uint32_t)CPU_COUNT(&cpus));
            fg_core_share_begin(shares[which]);
        }
        for (int which = 0; which < 2; which++) {
            uint32_t width = fg_core_share_width(shares[which]);
            cr_assert_eq(width, masks[i].widths[which], "%s: %u", masks[i].name, width);
        }
        fg_core_share_close(shares[0]);
        fg_core_share_close(shares[1]);
        tear_down(&r);
    }
}

Test(core_share, a_full_file_is_refused_until_one_leaves)
{
    room r;
    set_up(&r);
    fg_core_share *shares[FG_CORE_SHARE_ENTRIES];
    for (int i = 0; i < FG_CORE_SHARE_ENTRIES; i++) {
        shares[i] = join(&r);
        fg_core_share_begin(shares[i]);
    }
    fg_core_share_options options = {
        .directory = r.directory, .cpus = &r.cpus, .cores = 2, .threads = 2
    };
    fg_core_share *share = NULL;
    fg_error err;
    cr_assert_eq(fg_core_share_open(&options, &share, &err), FG_AGAIN);
    cr_assert_null(share);
    cr_assert_eq(fg_core_share_width(shares[63]), 1);
    fg_core_share_close(shares[40]);
    shares[40] = join(&r);
    for (int i = 0; i < FG_CORE_SHARE_ENTRIES; i++) {
        fg_core_share_close(shares[i]);
    }
    tear_down(&r);
}

/* ---- processes ---- */

/* A process that computes until it is killed, or its test has failed; returns when it has begun. */
static pid_t start_computing(room *r)
{
    pid_t parent = getpid();
    int pipes[2];
    cr_assert_eq(pipe(pipes), 0);
    pid_t pid = fork();
    cr_assert(pid >= 0);
    if (pid == 0) {
        fg_core_share *share = join(r);
        fg_core_share_begin(share);
        if (write(pipes[1], "!", 1) != 1) {
            _exit(1);
        }
        while (getppid() == parent) {
            fg_core_share_width(share);
            sched_yield();
        }
        _exit(1);
    }
    char byte;
    cr_assert_eq(read(pipes[0], &byte, 1), 1);
    close(pipes[0]);
    close(pipes[1]);
    return pid;
}

static void end_process(pid_t pid)
{
    kill(pid, SIGKILL);
    cr_assert_eq(waitpid(pid, NULL, 0), pid);
}

static void await_width(fg_core_share *share, uint32_t width)
{
    while (fg_core_share_width(share) != width) {
        sched_yield();
    }
}

Test(core_share, a_killed_process_gives_its_cores_and_its_entry_back)
{
    room r;
    set_up(&r);
    fg_core_share *share = join(&r);
    fg_core_share_begin(share);
    for (int round = 0; round < FG_CORE_SHARE_ENTRIES + 6; round++) {
        pid_t pid = start_computing(&r);
        cr_assert_eq(fg_core_share_width(share), 1);
        end_process(pid);
        pass_us(&r, FG_CORE_SHARE_SILENT_US);
        cr_assert_eq(fg_core_share_width(share), 2);
    }
    fg_core_share_close(share);
    tear_down(&r);
}

/* How often the clock is looked at during so many pieces of a step. */
static uint32_t looks_of_a_step(room *r, fg_core_share *share)
{
    pass_us(r, 200000); /* whoever is silent is, and it is time to look who is dead */
    fg_core_share_begin(share);
    r->looks = 0;
    for (int piece = 0; piece < 90; piece++) {
        cr_assert_eq(fg_core_share_width(share), 2);
    }
    uint32_t looks = r->looks;
    fg_core_share_end(share);
    return looks;
}

Test(core_share, whoever_died_while_it_computed_is_forgotten)
{
    room r;
    set_up(&r);
    fg_core_share *share = join(&r), *rests = join(&r);
    uint32_t quiet = looks_of_a_step(&r, share);
    cr_assert(quiet <= 10, "%u of 90", quiet);
    for (int round = 0; round < 3; round++) {
        pid_t first = start_computing(&r), second = start_computing(&r);
        int status;
        kill(first, SIGSTOP);
        kill(second, SIGSTOP);
        cr_assert_eq(waitpid(first, &status, WUNTRACED), first);
        cr_assert_eq(waitpid(second, &status, WUNTRACED), second);
        cr_assert_eq(looks_of_a_step(&r, share), 90u, "they may go on at any moment");
        kill(second, SIGCONT);
        fg_core_share_begin(share);
        await_width(share, 1);
        end_process(first);
        end_process(second);
        cr_assert_eq(looks_of_a_step(&r, share), quiet, "round %d", round);
    }
    fg_core_share_close(rests);
    fg_core_share_close(share);
    tear_down(&r);
}

Test(core_share, a_stopped_process_counts_again_when_it_goes_on)
{
    room r;
    set_up(&r);
    fg_core_share *share = join(&r);
    fg_core_share_begin(share);
    pid_t pid = start_computing(&r);
    for (int round = 0; round < 5; round++) {
        int status;
        kill(pid, SIGSTOP);
        cr_assert_eq(waitpid(pid, &status, WUNTRACED), pid);
        pass_us(&r, FG_CORE_SHARE_SILENT_US);
        cr_assert_eq(fg_core_share_width(share), 2);
        kill(pid, SIGCONT);
        await_width(share, 1);
    }
    end_process(pid);
    fg_core_share_close(share);
    tear_down(&r);
}

Test(core_share, three_processes_have_one_core_each)
{
    room r;
    set_up(&r);
    cpu_set_t cpus = r.cpus;
    CPU_SET(2, &cpus);
    fg_core_share *share = join_with(&r, &cpus, 3, 3);
    fg_core_share_begin(share);
    pid_t pids[2] = { start_computing(&r), start_computing(&r) };
    cr_assert_eq(fg_core_share_width(share), 1);
    end_process(pids[0]);
    end_process(pids[1]);
    fg_core_share_close(share);
    tear_down(&r);
}

/* ---- what else may lie there ---- */

static void fill_file(room *r, uint64_t seed, int fixed)
{
    int file = open(r->path, O_RDWR | O_CLOEXEC);
    cr_assert(file >= 0);
    struct stat facts;
    cr_assert_eq(fstat(file, &facts), 0);
    uint8_t *bytes = malloc((size_t)facts.st_size);
    for (off_t i = 0; i < facts.st_size; i++) {
        bytes[i] = fixed >= 0 ? (uint8_t)fixed : (uint8_t)fg_hash_mix(seed + (uint64_t)i);
    }
    cr_assert_eq(pwrite(file, bytes, (size_t)facts.st_size, 0), facts.st_size);
    free(bytes);
    close(file);
}

Test(core_share, any_bytes_give_a_width_that_can_be)
{
    static const int fixed[] = { 0x00, 0xFF, 0x01, 0x7F, 0x80, -1 };
    room r;
    set_up(&r);
    fg_core_share *a = join(&r), *b = join(&r);
    for (int round = 0; round < 200; round++) {
        fill_file(&r, (uint64_t)round, fixed[round % 6]);
        uint32_t width = fg_core_share_width(b);
        cr_assert(width == 1 || width == 2, "round %d: %u", round, width);
        fg_core_share_begin(a);
        width = fg_core_share_width(a);
        cr_assert(width == 1 || width == 2, "round %d: %u", round, width);
        fg_core_share_end(a);
    }
    fg_core_share_close(b);
    fill_file(&r, 0, 0xFF);
    fg_core_share *c = join(&r);
    fg_core_share_begin(c);
    cr_assert(fg_core_share_width(c) <= 2);
    fg_core_share_close(c);
    fg_core_share_close(a);
    tear_down(&r);
}

static void make_short(const char *path)
{
    int file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    cr_assert(file >= 0 && write(file, "x", 1) == 1);
    close(file);
}

static void make_readable(const char *path)
{
    int file = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    cr_assert(file >= 0 && fchmod(file, 0644) == 0);
    close(file);
}

static void make_link(const char *path)
{
    cr_assert_eq(symlink("/dev/null", path), 0);
}

static void make_fifo(const char *path)
{
    cr_assert_eq(mkfifo(path, 0600), 0);
}

static const struct {
    const char *name;
    void (*make)(const char *path);
    const char *why;
} bad_files[] = {
    { "another size", make_short, "has 1 bytes" },
    { "others may read it", make_readable, "not a file of this user alone" },
    { "a symbolic link", make_link, "symbolic links" },
    { "a fifo", make_fifo, "not a file of this user alone" },
};

static void expect_refused(const char *directory, const char *why, const char *name)
{
    cpu_set_t cpus;
    CPU_ZERO(&cpus);
    fg_core_share_options options = { .directory = directory, .cpus = &cpus };
    fg_core_share *share = NULL;
    fg_error err;
    cr_assert_eq(fg_core_share_open(&options, &share, &err), FG_BAD_INPUT, "%s", name);
    cr_assert_null(share);
    cr_assert(strstr(err.text, why) != NULL, "%s: %s", name, err.text);
}

Test(core_share, a_file_that_is_not_ours_is_refused)
{
    for (size_t i = 0; i < sizeof bad_files / sizeof bad_files[0]; i++) {
        room r;
        set_up(&r);
        bad_files[i].make(r.path);
        expect_refused(r.directory, bad_files[i].why, bad_files[i].name);
        tear_down(&r);
    }
    expect_refused("/nowhere/at/all", "No such file", "no directory");
    expect_refused("/dev/null", "Not a directory", "a file");
    char *long_name = malloc(5000);
    memset(long_name, 'a', 4999);
    long_name[4999] = '\0';
    expect_refused(long_name, "too long", "a long name");
    free(long_name);
}

static bool open_and_close(void *ctx)
{
    room *r = ctx;
    fg_core_share_options options = { .directory = r->directory, .cpus = &r->cpus };
    fg_core_share *share;
    if (fg_core_share_open(&options, &share, NULL) != FG_OK) {
        return false;
    }
    fg_core_share_close(share);
    return true;
}

Test(core_share, survives_every_failure_while_opening)
{
    room r;
    set_up(&r);
    cr_assert_eq(fg_fault_each(open_and_close, &r), 2);
    tear_down(&r);
}
