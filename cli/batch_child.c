#include "cli/batch_child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/mem.h"

enum {
    START_S = 900, /* a large model from a slow disk */
    STOP_S = 15,
    LOOK_MS = 200,
    OUTPUT_BYTES = 2048,
    FIXED_FLAGS = 10,
    BAD_FLAGS = 2, /* the exit code of a start that was refused */
};
#define SECOND_NS 1000000000ull

/* Runs in the child. */
static void become_server(const fg_child_options *options, const char *const *words, int out,
                          pid_t parent)
{
    static const int handled[] = { SIGINT, SIGTERM, SIGPIPE };
    for (size_t i = 0; i < sizeof handled / sizeof handled[0]; i++) {
        signal(handled[i], SIG_DFL);
    }
    /* The parent may have died before the first line took effect. */
    if (prctl(PR_SET_PDEATHSIG, SIGTERM) != 0 || getppid() != parent || dup2(out, 1) < 0) {
        _exit(1);
    }
    /* execve changes no word; its type is older than const. */
    const char *program = options->program == NULL ? "/proc/self/exe" : options->program;
    execve(program, (char *const *)(uintptr_t)words,
           (char *const *)(uintptr_t)options->environment);
    fprintf(stderr, "forge batch: cannot start %s: %s\n", program, strerror(errno));
    _exit(1);
}

static fg_status spawn(const fg_child_options *options, const char *const *words, fg_child *child,
                       fg_error *err)
{
    int ends[2];
    pid_t parent = getpid();
    if (pipe2(ends, O_CLOEXEC) != 0) {
        return fg_fail(err, FG_BROKEN, "cannot make a pipe: %s", strerror(errno));
    }
    child->pid = fork();
    if (child->pid == 0) {
        become_server(options, words, ends[1], parent);
    }
    close(ends[1]);
    child->out = ends[0];
    if (child->pid < 0) {
        child->pid = 0;
        return fg_fail(err, FG_BROKEN, "cannot start a process: %s", strerror(errno));
    }
    return FG_OK;
}

/* What stands between "listening http=" and the next space. */
static bool find_url(const char *output, char *url_out)
{
    static const char word[] = "listening http=";
    const char *begin = strstr(output, word);
    if (begin == NULL) {
        return false;
    }
    begin += sizeof word - 1;
    size_t length = strcspn(begin, " \n");
    if (begin[length] == '\0' || length >= FG_CHILD_URL_MAX) {
        return false; /* the rest is still to come */
    }
    memcpy(url_out, begin, length);
    url_out[length] = '\0';
    return true;
}

/* Its output has ended, so it has, or is about to. */
static fg_status explain_end(fg_child *child, fg_error *err)
{
    int state = 0;
    waitpid(child->pid, &state, 0);
    child->pid = 0;
    if (WIFEXITED(state) && WEXITSTATUS(state) == BAD_FLAGS) {
        return fg_fail(err, FG_BAD_INPUT, "the server did not start, see above");
    }
    return fg_fail(err, FG_BROKEN, "the server ended at its start (%s %d)",
                   WIFSIGNALED(state) ? "signal" : "exit code",
                   WIFSIGNALED(state) ? WTERMSIG(state) : WEXITSTATUS(state));
}

static fg_status wait_for_url(const fg_child_options *options, fg_child *child, fg_error *err)
{
    char output[OUTPUT_BYTES] = "";
    size_t size = 0;
    fg_clock clock = fg_clock_real();
    uint64_t deadline = fg_clock_now_ns(&clock) + START_S * SECOND_NS;
    while (!find_url(output, child->url)) {
        if (options->stop != NULL && *options->stop != 0) {
            return fg_fail(err, FG_CANCELLED, "interrupted");
        }
        if (fg_clock_now_ns(&clock) > deadline || size == sizeof output - 1) {
            return fg_fail(err, FG_TIMEOUT, "the server does not say where it listens");
        }
        struct pollfd look = { .fd = child->out, .events = POLLIN };
        if (poll(&look, 1, LOOK_MS) <= 0) {
            continue;
        }
        ssize_t got = read(child->out, output + size, sizeof output - 1 - size);
        if (got == 0) {
            return explain_end(child, err);
        }
        size += got > 0 ? (size_t)got : 0;
        output[size] = '\0';
    }
    return FG_OK;
}

fg_status fg_child_start(const fg_child_options *options, fg_child *child_out, fg_error *err)
{
    *child_out = (fg_child){ .out = -1 };
    const char **words = fg_mem_array(FIXED_FLAGS + (size_t)options->flag_count + 1, sizeof *words);
    if (words == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for the server's flags");
    }
    /* The caller's flags come last, so that they win. */
    const char *fixed[FIXED_FLAGS] = {
        "forge",     "serve",  "--model", options->model, "--host",
        "127.0.0.1", "--port", "0",       "--log-level",  "warn",
    };
    memcpy(words, fixed, sizeof fixed);
    for (int i = 0; i < options->flag_count; i++) {
        words[FIXED_FLAGS + i] = options->flags[i];
    }
    fg_status status = spawn(options, words, child_out, err);
    fg_mem_free(words);
    if (status == FG_OK) {
        status = wait_for_url(options, child_out, err);
    }
    if (status != FG_OK) {
        fg_child_stop(child_out);
    }
    return status;
}

bool fg_child_runs(const fg_child *child)
{
    siginfo_t info = { 0 };
    return child->pid != 0 &&
           waitid(P_PID, (id_t)child->pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid == 0;
}

void fg_child_stop(fg_child *child)
{
    fg_clock clock = fg_clock_real();
    uint64_t deadline = fg_clock_now_ns(&clock) + STOP_S * SECOND_NS;
    if (child->pid != 0) {
        kill(child->pid, SIGTERM);
        while (fg_child_runs(child)) {
            char rest[256];
            struct pollfd look = { .fd = child->out, .events = POLLIN };
            if (fg_clock_now_ns(&clock) > deadline) {
                kill(child->pid, SIGKILL);
                break;
            }
            /* Its output ends with it; a poll that is ready for that would return at once for ever,
             * so what comes then is the wait itself. */
            if (poll(&look, 1, LOOK_MS) > 0 && read(child->out, rest, sizeof rest) == 0) {
                break;
            }
        }
        waitpid(child->pid, NULL, 0);
        child->pid = 0;
    }
    if (child->out >= 0) {
        close(child->out);
        child->out = -1;
    }
}
