/* `forge sim --replay FILE`. The record is run in a child process, since what it shows may be a crash. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cli/args.h"
#include "cli/sim.h"
#include "common/base/log.h"
#include "common/conf/options.h"
#include "tests/sim/replay.h"

#define FILE_BYTES_MAX ((size_t)5 << 30) /* beyond the largest --flight-recorder-mb */

typedef struct replay_config {
    const char *replay;
    bool quiet;
} replay_config;

static const fg_option options[] = {
    { .name = "replay",
      .type = FG_OPTION_STRING,
      .group = "Replay",
      .value_name = "FILE",
      .offset = offsetof(replay_config, replay),
      .help = "A flight record of a router or worker: forge-flight-NAME-PID.bin, or what GET "
              "/debug/flight "
              "returned." },
    { .name = "quiet",
      .type = FG_OPTION_BOOL,
      .default_text = "false",
      .group = "Replay",
      .offset = offsetof(replay_config, quiet),
      .help = "Prints the verdict and no history." },
};

static const fg_conf_spec spec = {
    .command = "forge sim",
    .intro =
        "Runs a flight record again: the calls that a router's dispatcher or a worker got, at the\n"
        "times of then, on the code of this program. What that does must be what was done then.\n\n"
        "  kill -USR2 PID                    a router or worker writes its record\n"
        "  forge sim --replay forge-flight-router-PID.bin\n\n"
        "Exit code 0: the same; 1: the first difference is printed, or it crashed again; 2: bad\n"
        "flags, or a file that cannot be run. docs/SIMULATOR.md says what is in a record.",
    .options = options,
    .option_count = sizeof options / sizeof options[0],
};

typedef struct mapped {
    void *bytes;
    size_t size;
} mapped;

static fg_status map_file(const char *name, mapped *file_out, fg_error *err)
{
    struct stat about;
    int file = open(name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) {
        return fg_fail(err, FG_BAD_INPUT, "--replay %s: %s", name, strerror(errno));
    }
    fg_status status = FG_OK;
    if (fstat(file, &about) != 0 || !S_ISREG(about.st_mode)) {
        status = fg_fail(err, FG_BAD_INPUT, "--replay %s: it is no regular file", name);
    } else if (about.st_size == 0 || (uint64_t)about.st_size > FILE_BYTES_MAX) {
        status = fg_fail(err, FG_BAD_INPUT, "--replay %s: it is no flight record", name);
    } else {
        file_out->size = (size_t)about.st_size;
        file_out->bytes = mmap(NULL, file_out->size, PROT_READ, MAP_PRIVATE, file, 0);
        if (file_out->bytes == MAP_FAILED) {
            file_out->bytes = NULL;
            status = fg_fail(err, FG_BAD_INPUT, "--replay %s: %s", name, strerror(errno));
        }
    }
    close(file);
    return status;
}

/* In the child. */
static int run(const replay_config *config, const fg_flight_file *file,
               fg_replay_progress *progress)
{
    fg_error err;
    fg_replay_options with = { .history = config->quiet ? NULL : stdout, .progress = progress };
    fg_status status = fg_replay_run(file, &with, &err);
    fflush(stdout);
    if (status != FG_OK) {
        fprintf(stderr, "forge sim: --replay %s: %s\n", config->replay, err.text);
        return 2;
    }
    return 0;
}

static void print_place(const fg_flight_file *file, const fg_replay_progress *progress)
{
    printf("in call %" PRIu64 " (%s), after %" PRIu64 " records, at %.6f s", progress->calls,
           fg_replay_name(file, progress->kind), progress->records,
           (double)(progress->now_ns - progress->began_ns) / 1e9);
}

/* The child ended by a signal. */
static int judge_crash(const fg_flight_file *file, const fg_replay_progress *progress, int number)
{
    const fg_flight_header *then = file->header;
    bool as_then = then->signal == (uint32_t)number && then->inside != 0 && progress->last;
    printf("crashed by signal %d ", number);
    print_place(file, progress);
    printf(as_then ? ": as the process did then\n" : ": then it did not\n");
    return 1;
}

static int judge(const fg_flight_file *file, const fg_replay_progress *progress)
{
    const fg_flight_header *then = file->header;
    if (progress->differs) {
        printf("different ");
        print_place(file, progress);
        printf(": %s\n", progress->text);
        if (then->signal != 0 && then->inside != 0 && progress->last) {
            printf("then the process ended by signal %u in this call\n", then->signal);
        }
        return 1;
    }
    if (then->signal != 0 && then->inside != 0) {
        printf("different ");
        print_place(file, progress);
        printf(": then the process ended by signal %u; now the call returned\n", then->signal);
        return 1;
    }
    printf("same: %" PRIu64 " calls in %.3f s, %" PRIu64 " requests, %" PRIu64
           " frames sent, %" PRIu64 " records\n",
           progress->calls, (double)(progress->now_ns - progress->began_ns) / 1e9, progress->starts,
           progress->sent, progress->records);
    if (then->signal != 0) {
        printf("the process ended by signal %u, but not while its %s was at work\n", then->signal,
               fg_replay_is_worker(file) ? "worker" : "dispatcher");
    }
    return 0;
}

static int in_child(const replay_config *config, const fg_flight_file *file)
{
    fg_replay_progress *progress =
        mmap(NULL, sizeof *progress, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (progress == MAP_FAILED) {
        fprintf(stderr, "forge sim: out of memory\n");
        return 2;
    }
    fflush(stdout);
    pid_t child = fork();
    if (child == 0) {
        signal(SIGPIPE, SIG_IGN); /* that nobody reads on breaks nothing */
        _exit(run(config, file, progress));
    }
    int ended = 0;
    while (child > 0 && waitpid(child, &ended, 0) < 0 && errno == EINTR) {
    }
    if (child < 0) {
        fprintf(stderr, "forge sim: no process to run it in: %s\n", strerror(errno));
        return 2;
    }
    if (WIFSIGNALED(ended)) {
        return judge_crash(file, progress, WTERMSIG(ended));
    }
    return WEXITSTATUS(ended) != 0 ? WEXITSTATUS(ended) : judge(file, progress);
}

static fg_status open_record(const replay_config *config, mapped *bytes, fg_flight_file *file,
                             fg_error *err)
{
    fg_error why;
    if (config->replay == NULL || config->replay[0] == '\0') {
        return fg_fail(
            err, FG_BAD_INPUT,
            "--replay wants a file: `kill -USR2 PID` makes a router or worker write one");
    }
    fg_status status = map_file(config->replay, bytes, err);
    if (status != FG_OK) {
        return status;
    }
    status = fg_replay_parse(bytes->bytes, bytes->size, file, &why);
    if (status == FG_OK && !file->can_run) {
        status = fg_fail(&why, FG_BAD_INPUT,
                         "its beginning was overwritten while requests ran all the time: give "
                         "it more --flight-recorder-mb");
    }
    return status == FG_OK ? FG_OK
                           : fg_fail(err, status, "--replay %s: %s", config->replay, why.text);
}

static void print_head(const fg_flight_file *file)
{
    const fg_flight_header *header = file->header;
    bool start = header->chunks[file->first].kind == FG_FLIGHT_START;
    printf("%s pid=%" PRIu64 " from=%s records=%" PRIu64, header->process, header->pid,
           start ? "start" : "rest", file->records);
    if (header->signal != 0) {
        printf(" signal=%u", header->signal);
    }
    printf("\n");
}

int fg_cli_sim_replay(int argc, const char *const *argv, const char *const *environment)
{
    fg_args args = { 0 };
    fg_error err = { 0 };
    fg_conf_asked asked = { 0 };
    replay_config config = { 0 };
    mapped bytes = { 0 };
    fg_flight_file file;
    int code = 2;
    fg_status status = fg_args_split(&spec, &fg_serve_spec, argc, argv, environment, &args, &err);
    if (status == FG_OK && args.word_count > 0) {
        status = fg_fail(&err, FG_BAD_INPUT, "\"%s\" means nothing here: --replay takes one file",
                         args.words[0]);
    }
    if (status == FG_OK) {
        fg_conf_input input = { .argc = args.flag_count, .argv = args.flags };
        status = fg_conf_parse(&spec, &input, &config, &asked, &err);
    }
    if (status == FG_OK && asked.help) {
        code = fg_args_print_help(&spec, asked.help_word);
        fg_args_free(&args);
        return code;
    }
    fg_log_set_level(FG_LOG_OFF);
    status = status != FG_OK ? status : open_record(&config, &bytes, &file, &err);
    if (status != FG_OK) {
        fprintf(stderr, "forge sim: %s\n", err.text);
    } else {
        print_head(&file);
        code = in_child(&config, &file);
    }
    if (bytes.bytes != NULL) {
        munmap(bytes.bytes, bytes.size);
    }
    fg_args_free(&args);
    return code;
}
