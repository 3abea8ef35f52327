#include "tests/sim/hunt.h"

#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"

/* A world takes milliseconds, with sanitizers tens of them. BATCH: so many share one child. */
enum { BATCH = 64, HANGS_MS = 60 * 1000, LOG_BYTES_MAX = 64 * 1024 };

/* What parent and child both see. */
typedef struct shared {
    uint64_t seed; /* the world that runs, or ran last */
    fg_sim_report report;
    fg_sim_report sum; /* of those that ended */
} shared;

typedef struct child {
    pid_t pid;
    int alive; /* reads end of file when the child has ended */
    FILE *log; /* its standard error */
    shared *shared;
} child;

static fg_status open_child(child *c, fg_error *err)
{
    *c = (child){ .pid = -1, .alive = -1 };
    c->log = tmpfile();
    c->shared =
        mmap(NULL, sizeof *c->shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (c->shared == MAP_FAILED || c->log == NULL) {
        return fg_fail(err, FG_AGAIN, "no memory or no temporary file for a child process");
    }
    return FG_OK;
}

static void close_child(child *c)
{
    if (c->shared != MAP_FAILED) {
        munmap(c->shared, sizeof *c->shared);
    }
    if (c->log != NULL) {
        fclose(c->log);
    }
}

__attribute__((noreturn)) static void be_child(child *c, const fg_sim_options *options,
                                               uint64_t count)
{
    dup2(fileno(c->log), STDERR_FILENO);
    signal(SIGABRT, SIG_DFL);
    signal(SIGPIPE, SIG_IGN); /* that nobody reads on breaks no rule */
    fg_sim_options each = *options;
    if (each.history != NULL) {
        setvbuf(each.history, NULL, _IOLBF, 0); /* an abort writes nothing out */
    }
    for (uint64_t i = 0; i < count; i++) {
        each.seed = options->seed + i;
        c->shared->seed = each.seed;
        fg_sim_run(&each, &c->shared->report);
        fg_sim_report_add(&c->shared->sum, &c->shared->report);
    }
    if (each.history != NULL) {
        fflush(each.history);
    }
    _exit(0);
}

static fg_status start_child(child *c, const fg_sim_options *options, uint64_t count, fg_error *err)
{
    int ends[2];
    if (pipe(ends) != 0) {
        return fg_fail(err, FG_AGAIN, "no pipe to a child process");
    }
    fflush(NULL); /* or both would write it out */
    rewind(c->log);
    if (ftruncate(fileno(c->log), 0) != 0) {
        close(ends[0]);
        close(ends[1]);
        return fg_fail(err, FG_AGAIN, "no temporary file for a child process");
    }
    memset(c->shared, 0, sizeof *c->shared);
    c->shared->seed = options->seed;
    c->pid = fork();
    if (c->pid == 0) {
        close(ends[0]);
        be_child(c, options, count);
    }
    close(ends[1]);
    c->alive = ends[0];
    if (c->pid < 0) {
        close(c->alive);
        return fg_fail(err, FG_AGAIN, "no child process to be had");
    }
    return FG_OK;
}

/* Waits until the child ends, or the world that it is in takes too long. False: it was killed. */
static bool wait_for_child(child *c, int *status_out)
{
    uint64_t seed = c->shared->seed;
    bool in_time = true;
    struct pollfd end = { .fd = c->alive, .events = POLLIN };
    while (in_time && poll(&end, 1, HANGS_MS) == 0) {
        in_time = c->shared->seed != seed;
        seed = c->shared->seed;
    }
    if (!in_time) {
        kill(c->pid, SIGKILL);
    }
    close(c->alive);
    waitpid(c->pid, status_out, 0);
    return in_time;
}

static void copy_line(const char *from, char *to, size_t to_bytes)
{
    size_t length = strcspn(from, "\n");
    length = length < to_bytes - 1 ? length : to_bytes - 1;
    memcpy(to, from, length);
    to[length] = '\0';
}

static void find_place(fg_sim_failure *failure)
{
    const char *end = strstr(failure->reason, ": ");
    size_t length = end != NULL ? (size_t)(end - failure->reason) : strlen(failure->reason);
    length = length < sizeof failure->place - 1 ? length : sizeof failure->place - 1;
    memcpy(failure->place, failure->reason, length);
    failure->place[length] = '\0';
}

/* What an assertion or a sanitizer wrote, else how the process ended. */
static void explain(const child *c, bool in_time, int status, fg_sim_failure *failure)
{
    static const char bug[] = "forge: bug at ", error[] = "ERROR: ";
    char *text = calloc(1, LOG_BYTES_MAX + 1);
    const char *found = NULL;
    size_t skip = sizeof bug - 1;
    if (text != NULL) {
        rewind(c->log);
        size_t size = fread(text, 1, LOG_BYTES_MAX, c->log);
        text[size] = '\0';
        found = strstr(text, bug);
        if (found == NULL) {
            found = strstr(text, error);
            skip = sizeof error - 1;
        }
    }
    if (!in_time) {
        snprintf(failure->reason, sizeof failure->reason, "hangs: the world does not end");
    } else if (found != NULL) {
        found += skip;
        while (strncmp(found, "../", 3) == 0) {
            found += 3;
        }
        copy_line(found, failure->reason, sizeof failure->reason);
    } else if (WIFSIGNALED(status)) {
        snprintf(failure->reason, sizeof failure->reason, "ended by signal %d", WTERMSIG(status));
    } else {
        snprintf(failure->reason, sizeof failure->reason, "ended with exit code %d",
                 WEXITSTATUS(status));
    }
    free(text);
    find_place(failure);
}

/* Runs `count` worlds in the child. *failed_out: not all; the failure says which seed. */
static fg_status run_child(child *c, const fg_sim_options *options, uint64_t count,
                           bool *failed_out, fg_sim_failure *failure, fg_error *err)
{
    fg_status status = start_child(c, options, count, err);
    if (status != FG_OK) {
        return status;
    }
    int how = 0;
    bool in_time = wait_for_child(c, &how);
    *failed_out = !in_time || !WIFEXITED(how) || WEXITSTATUS(how) != 0;
    if (*failed_out) {
        failure->options = *options;
        failure->options.seed = c->shared->seed;
        failure->report = c->shared->report;
        explain(c, in_time, how, failure);
    }
    return FG_OK;
}

fg_status fg_sim_hunt(const fg_sim_hunt_options *options, fg_sim_report *sum_out,
                      uint64_t *failed_out, fg_error *err)
{
    child c;
    uint64_t done = 0;
    *sum_out = (fg_sim_report){ 0 };
    *failed_out = 0;
    fg_status status = open_child(&c, err);
    while (status == FG_OK && done < options->count && *failed_out < options->failures_max) {
        uint64_t left = options->count - done, count = left < BATCH ? left : BATCH;
        fg_sim_options world = options->world;
        world.seed += done;
        bool failed = false;
        fg_sim_failure failure = { 0 };
        status = run_child(&c, &world, count, &failed, &failure, err);
        if (status != FG_OK) {
            break;
        }
        fg_sim_report_add(sum_out, &c.shared->sum);
        done += failed ? failure.options.seed - world.seed + 1 : count;
        if (failed) {
            ++*failed_out;
            options->on_failure(options->ctx, &failure);
        }
        options->on_progress(options->ctx, sum_out, *failed_out);
    }
    close_child(&c);
    return status;
}

static void copy_log(FILE *from, FILE *to)
{
    char piece[4096];
    size_t size;
    rewind(from);
    while ((size = fread(piece, 1, sizeof piece, from)) > 0) {
        fwrite(piece, 1, size, to);
    }
}

fg_status fg_sim_try(const fg_sim_options *options, FILE *log, fg_sim_report *report_out,
                     bool *failed_out, fg_sim_failure *failure_out, fg_error *err)
{
    child c;
    fg_status status = open_child(&c, err);
    if (status == FG_OK) {
        status = run_child(&c, options, 1, failed_out, failure_out, err);
    }
    if (status == FG_OK) {
        *report_out = c.shared->report;
        if (log != NULL) {
            copy_log(c.log, log);
        }
    }
    close_child(&c);
    return status;
}

/* ---- smaller ---- */

typedef struct shrinker {
    fg_sim_failure *best;
    fg_clock clock;
    uint64_t end_ns;
    uint32_t tried;
} shrinker;

/* Whether this world fails in the same place; then it is the best one. */
static bool attempt(shrinker *s, const fg_sim_options *options)
{
    fg_sim_failure failure = { 0 };
    fg_sim_report report;
    bool failed = false;
    fg_error err;
    if (fg_clock_now_ns(&s->clock) >= s->end_ns) {
        return false;
    }
    s->tried++;
    if (fg_sim_try(options, NULL, &report, &failed, &failure, &err) != FG_OK || !failed ||
        strcmp(failure.place, s->best->place) != 0) {
        return false;
    }
    *s->best = failure;
    return true;
}

static bool shrink_faults(shrinker *s)
{
    bool any = false;
    fg_sim_options options = s->best->options;
    for (uint32_t kind = 0; kind < FG_SIM_FAULT_COUNT; kind++) {
        /* Those that did not happen at first: their going changes nothing. */
        options.faults &= s->best->report.faults[kind] == 0 ? ~(1u << kind) : UINT32_MAX;
    }
    any = options.faults != s->best->options.faults && attempt(s, &options);
    for (uint32_t kind = 0; kind < FG_SIM_FAULT_COUNT; kind++) {
        options = s->best->options;
        options.faults &= ~(1u << kind);
        any = (options.faults != s->best->options.faults && attempt(s, &options)) || any;
    }
    return any;
}

/* Halves first, then single ones. */
static bool shrink_requests(shrinker *s)
{
    bool any = false;
    for (uint32_t size = FG_SIM_REQUESTS_MAX / 2; size > 0; size /= 2) {
        for (uint32_t from = 0; from < FG_SIM_REQUESTS_MAX; from += size) {
            fg_sim_options options = s->best->options;
            options.requests &= ~(((1ull << size) - 1) << from);
            options.requests &= (1ull << FG_SIM_REQUESTS_MAX) - 1;
            if ((s->best->options.requests & ((1ull << FG_SIM_REQUESTS_MAX) - 1)) !=
                options.requests) {
                any = attempt(s, &options) || any;
            }
        }
    }
    return any;
}

/* The first of a row of smaller values, from the smallest, with which it still fails. */
static bool shrink_number(shrinker *s, uint32_t fg_sim_options_offset, const uint32_t *values,
                          uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        fg_sim_options options = s->best->options;
        uint32_t *number = (uint32_t *)((char *)&options + fg_sim_options_offset);
        if (values[i] >= *number) {
            return false;
        }
        *number = values[i];
        if (attempt(s, &options)) {
            return true;
        }
    }
    return false;
}

uint32_t fg_sim_shrink(fg_sim_failure *failure, uint32_t limit_ms)
{
    static const uint32_t workers[] = { 1, 2, 3, 4 };
    static const uint32_t routers[] = { 1 };
    static const uint32_t tokens[] = { 1, 4, 8, 16, 32, 64, 128 };
    static const uint32_t times[] = { 60, 100, 150, 200, 300, 400, 600, 800, 1000, 1200 };
    shrinker s = { .best = failure, .clock = fg_clock_real() };
    s.end_ns = fg_clock_now_ns(&s.clock) + limit_ms * 1000000ull;
    failure->options.history = NULL;
    bool any = true;
    while (any && fg_clock_now_ns(&s.clock) < s.end_ns) {
        any = shrink_faults(&s);
        any = shrink_requests(&s) || any;
        any = shrink_number(&s, offsetof(fg_sim_options, routers_max), routers, 1) || any;
        any = shrink_number(&s, offsetof(fg_sim_options, workers_max), workers, 4) || any;
        any = shrink_number(&s, offsetof(fg_sim_options, faults_until_ms), times, 10) || any;
        any = shrink_number(&s, offsetof(fg_sim_options, prompt_max), tokens, 7) || any;
        any = shrink_number(&s, offsetof(fg_sim_options, answer_max), tokens, 7) || any;
    }
    return s.tried;
}

/* ---- the command ---- */

typedef struct writer {
    char *at;
    size_t left;
} writer;

__attribute__((format(printf, 2, 3))) static void put(writer *to, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int length = vsnprintf(to->at, to->left, format, args);
    va_end(args);
    size_t used = length < 0 ? 0 : (size_t)length < to->left ? (size_t)length : to->left - 1;
    to->at += used;
    to->left -= used;
}

static void put_requests(writer *to, uint64_t requests)
{
    const char *separator = " --requests ";
    for (uint32_t i = 0; i < FG_SIM_REQUESTS_MAX; i++) {
        uint32_t last = i;
        while (last < FG_SIM_REQUESTS_MAX && (requests >> last & 1)) {
            last++;
        }
        if (last == i) {
            continue;
        }
        put(to, last - i > 1 ? "%s%u-%u" : "%s%u", separator, i, last - 1);
        separator = ",";
        i = last;
    }
}

static void put_faults(writer *to, const fg_sim_options *options)
{
    uint32_t listed = options->forced ? options->faults : FG_SIM_FAULTS_ALL & ~options->faults;
    const char *separator = options->forced ? " --fault " : " --no-fault ";
    if (!options->forced && options->faults == 0) {
        put(to, " --no-fault all");
        return;
    }
    for (uint32_t kind = 0; kind < FG_SIM_FAULT_COUNT; kind++) {
        if (listed >> kind & 1) {
            put(to, "%s%s", separator, fg_sim_fault_name((fg_sim_fault)kind));
            separator = ",";
        }
    }
}

void fg_sim_command(const fg_sim_options *options, char out[FG_SIM_COMMAND_MAX])
{
    fg_sim_options plain = fg_sim_options_default(options->seed);
    uint64_t all = (1ull << FG_SIM_REQUESTS_MAX) - 1;
    writer to = { out, FG_SIM_COMMAND_MAX };
    put(&to, "forge sim --seed %llu", (unsigned long long)options->seed);
    if ((options->requests & all) != all) {
        put_requests(&to, options->requests);
    }
    if (options->workers_max != plain.workers_max) {
        put(&to, " --workers %u", options->workers_max);
    }
    if (options->routers_max != plain.routers_max) {
        put(&to, " --routers %u", options->routers_max);
    }
    put_faults(&to, options);
    if (options->faults_until_ms != plain.faults_until_ms) {
        put(&to, " --faults-until %u", options->faults_until_ms);
    }
    if (options->prompt_max != plain.prompt_max) {
        put(&to, " --prompt-max %u", options->prompt_max);
    }
    if (options->answer_max != plain.answer_max) {
        put(&to, " --answer-max %u", options->answer_max);
    }
    if (options->until != 0) {
        put(&to, " --until %llu", (unsigned long long)options->until);
    }
}
