#include "cli/batch.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/args.h"
#include "cli/batch_child.h"
#include "cli/batch_lines.h"
#include "cli/batch_out.h"
#include "cli/batch_pace.h"
#include "cli/client.h"
#include "common/base/clock.h"
#include "common/base/limits.h"
#include "common/base/mem.h"
#include "common/conf/options.h"
#include "common/net/loop.h"

enum {
    HEALTH_S = 120,
    HEALTH_PAUSE_MS = 20,
    LOOK_MS = 200, /* how long a signal or the end of our server may go unseen */
    PROGRESS_TTY_S = 1,
    PROGRESS_S = 10,
    SYNC_S = 1,
    REFUSED_MAX_S = 900, /* 429 for so long: somebody else has the server to himself */
    /* So many requests in a row have tried as often as they may, and nobody answered: the rest would
     * wait as long in vain. */
    GONE_AFTER = 8,
};
#define SECOND_NS 1000000000ull

typedef struct config {
    const char *model, *url, *api_key;
    uint32_t concurrency, retries, timeout_s;
} config;

#define AT(member) .offset = offsetof(config, member)

static const fg_option options[] = {
    { .name = "model",
      .type = FG_OPTION_STRING,
      .group = "Who answers",
      .value_name = "PATH",
      AT(model),
      .help =
          "Starts `forge serve` with this model, a GGUF file or a Hugging Face folder, on a free "
          "port of this machine, for as long as the batch runs. Flags behind -- are for it." },
    { .name = "url",
      .type = FG_OPTION_STRING,
      .group = "Who answers",
      .value_name = "URL",
      AT(url),
      .help = "Asks a server that is running, such as http://127.0.0.1:8080: a standalone Forge or "
              "the router of a cluster." },
    { .name = "api-key",
      .type = FG_OPTION_STRING,
      .group = "Who answers",
      .value_name = "KEY",
      AT(api_key),
      .help = "The key that the server wants. FORGE_API_KEY in the environment keeps it out of the "
              "list of processes." },
    { .name = "concurrency",
      .type = FG_OPTION_U32,
      .default_text = "64",
      .min = 1,
      .max = FG_LIMIT_LIVE_REQUESTS,
      .group = "How",
      AT(concurrency),
      .help =
          "Requests in flight at a time. When the server has too many (429), fewer are sent for "
          "a while." },
    { .name = "retries",
      .type = FG_OPTION_U32,
      .default_text = "8",
      .min = 0,
      .max = 1000,
      .group = "How",
      AT(retries),
      .help = "How often a request is sent again after a broken connection or the status 502, 503 "
              "or 504, with pauses from a quarter of a second to half a minute." },
    { .name = "timeout-seconds",
      .type = FG_OPTION_U32,
      .default_text = "3600",
      .min = 1,
      .max = 1000000,
      .group = "How",
      AT(timeout_s),
      .help = "The longest that one request may take before it counts as a broken connection." },
};

const fg_conf_spec fg_batch_spec = {
    .command = "forge batch",
    .intro =
        "Answers a file of requests, many at a time, and writes each answer as it comes.\n\n"
        "  forge batch --model FILE in.jsonl out.jsonl           with a server of its own\n"
        "  forge batch --url http://HOST:8080 in.jsonl out.jsonl with one that is running\n"
        "  forge batch --model FILE in.jsonl out.jsonl -- --threads 4    flags for `forge "
        "serve`\n\n"
        "Each line of in.jsonl is one request (the file may also be one JSON array of them):\n"
        "  {\"custom_id\":\"a1\",\"method\":\"POST\",\"url\":\"/v1/chat/completions\",\n"
        "   \"body\":{\"model\":\"m\",\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]}}\n"
        "Each line of out.jsonl is one answer, in the order of completion:\n"
        "  {\"id\":\"batch_req_...\",\"custom_id\":\"a1\",\"error\":null,\n"
        "   \"response\":{\"status_code\":200,\"request_id\":\"...\",\"body\":{...}}}\n\n"
        "Run it again with the same files after an interruption, even kill -9: what out.jsonl has\n"
        "is not asked again. \"-\" is standard input or output; a run into \"-\" starts anew.\n\n"
        "Exit code: 0 every request has an answer (an error status is one too), 1 some have none\n"
        "yet, 2 bad flags or a bad file: then nothing was sent.",
    .options = options,
    .option_count = sizeof options / sizeof options[0],
};

typedef enum job_state { FREE = 0, READY, SENT } job_state;

/* A request on its way, again and again until it has an answer. */
typedef struct job {
    job_state state;
    size_t index; /* in `lines` */
    uint32_t tries;
    uint64_t not_before_ns;
    uint64_t trouble_ns; /* the first time that it got no answer; 0: never */
} job;

typedef struct batch {
    config config;
    fg_args args;
    fg_lines lines;
    fg_answers answers;
    fg_child child;
    fg_client *client;
    fg_pace pace;
    fg_clock clock;
    job *jobs;
    size_t next; /* the first request that no job had yet */
    size_t skipped, done, refused, failed;
    uint32_t failed_in_a_row; /* since the latest answer */
    uint64_t started_ns, shown_ns, synced_ns;
    fg_buf url, body;
    size_t base_bytes;       /* of `url`: the server's address */
    uint64_t quiet_until_ns; /* trouble is told now and then, not for each request */
    int health; /* of our own server: the status of the latest look; 0: no answer yet, -1: none */
    fg_status ended; /* not FG_OK: nothing more is sent; `err` says why */
    fg_error err;
} batch;

static volatile sig_atomic_t interrupted;

static void on_signal(int signal)
{
    interrupted = signal;
}

static void stop(batch *b, fg_status status, const char *text)
{
    if (b->ended == FG_OK) {
        b->ended = fg_fail(&b->err, status, "%s", text);
    }
}

/* ---- words on the way ---- */

static double seconds_since(const batch *b, uint64_t ns)
{
    return (double)(fg_clock_now_ns(&b->clock) - ns) / 1e9;
}

static double tokens_per_second(const batch *b)
{
    double s = seconds_since(b, b->started_ns);
    return s > 0 ? (double)b->answers.completion_tokens / s : 0;
}

static void show_progress(batch *b)
{
    bool terminal = isatty(STDERR_FILENO) == 1;
    uint64_t now = fg_clock_now_ns(&b->clock);
    if (now - b->shown_ns < (terminal ? PROGRESS_TTY_S : PROGRESS_S) * SECOND_NS) {
        return;
    }
    b->shown_ns = now;
    fprintf(stderr, "%sforge batch: %zu of %zu answered, %u in flight, %.1f tokens/s%s",
            terminal ? "\r\033[K" : "", b->skipped + b->done, b->lines.count, b->pace.inflight,
            tokens_per_second(b), terminal ? "" : "\n");
}

static void say(const char *text)
{
    fprintf(stderr, "%sforge batch: %s\n", isatty(STDERR_FILENO) == 1 ? "\r\033[K" : "", text);
}

static void show_end(const batch *b)
{
    char text[400];
    if (b->ended != FG_OK) {
        say(b->err.text);
    }
    size_t open = b->lines.count - b->skipped - b->done - b->failed;
    int size = snprintf(text, sizeof text, "%zu done", b->done);
    if (b->refused > 0) {
        size += snprintf(text + size, sizeof text - (size_t)size, " (%zu with an error status)",
                         b->refused);
    }
    snprintf(text + size, sizeof text - (size_t)size,
             ", %zu failed, %zu skipped; %" PRIu64 " + %" PRIu64 " tokens, %.1f tokens/s, %.1f s",
             b->failed + open, b->skipped, b->answers.prompt_tokens, b->answers.completion_tokens,
             tokens_per_second(b), seconds_since(b, b->started_ns));
    say(text);
    if (b->failed + open > 0 && b->answers.file) {
        say("run the same command again for those that failed");
    }
}

/* ---- requests and answers ---- */

static void give_up(batch *b, job *j, const char *why)
{
    char text[FG_ERROR_TEXT_MAX];
    if (b->ended == FG_OK) {
        snprintf(text, sizeof text, "no answer to \"%.60s\": %.200s",
                 fg_lines_id(&b->lines, j->index), why);
        say(text);
    }
    b->failed++;
    b->failed_in_a_row++;
    if (b->failed_in_a_row >= GONE_AFTER) {
        snprintf(text, sizeof text, "nobody answers at %.200s, giving up", b->url.data);
        stop(b, FG_PEER_LOST, text);
    }
    j->state = FREE;
}

static void try_again(batch *b, job *j, const fg_client_answer *answer)
{
    char why[FG_ERROR_TEXT_MAX];
    uint64_t now = fg_clock_now_ns(&b->clock);
    bool too_many = answer->status == 429;
    if (answer->status == 0) {
        snprintf(why, sizeof why, "%.200s", answer->problem);
    } else {
        snprintf(why, sizeof why, "status %d", answer->status);
    }
    j->trouble_ns = j->trouble_ns == 0 ? now : j->trouble_ns;
    j->state = READY;
    if (too_many) {
        j->not_before_ns = fg_pace_refused(&b->pace, answer->retry_after_s, now);
    } else {
        fg_pace_lost(&b->pace);
        j->tries++;
        uint64_t pause = fg_pace_delay_ns(j->tries);
        uint64_t asked = (uint64_t)answer->retry_after_s * SECOND_NS;
        uint64_t longest = fg_pace_delay_ns(UINT32_MAX);
        asked = asked < longest ? asked : longest;
        j->not_before_ns = now + (pause > asked ? pause : asked);
    }
    bool tried_enough =
        too_many ? now - j->trouble_ns > REFUSED_MAX_S * SECOND_NS : j->tries > b->config.retries;
    if (tried_enough) {
        give_up(b, j, why);
    } else if (!too_many && now >= b->quiet_until_ns) {
        b->quiet_until_ns = now + PROGRESS_S * SECOND_NS;
        char text[FG_ERROR_TEXT_MAX];
        snprintf(text, sizeof text, "%.200s: trying again", why);
        say(text);
    }
}

/* A mistake that all requests share, such as the model's name, should be seen at once. */
static void show_first_error(batch *b, const job *j, const fg_client_answer *answer)
{
    char text[FG_ERROR_TEXT_MAX];
    b->refused++;
    if (b->refused == 1) {
        snprintf(text, sizeof text, "\"%.60s\" was answered with status %d: %.200s",
                 fg_lines_id(&b->lines, j->index), answer->status, answer->body);
        text[strcspn(text, "\r\n")] = '\0';
        say(text);
    }
}

/* Every request would be answered so; the answers that are there stay, for another try. */
static void refused_key(batch *b, job *j, const fg_client_answer *answer)
{
    j->state = FREE;
    char text[FG_ERROR_TEXT_MAX];
    snprintf(text, sizeof text, "status %d%s", answer->status, fg_client_advice(answer->status));
    stop(b, FG_BAD_INPUT, text);
}

static void on_end(void *ctx, void *user, const fg_client_answer *answer)
{
    batch *b = ctx;
    job *j = user;
    if (j == NULL) {
        b->health = answer->status == 0 ? -1 : answer->status;
        return;
    }
    switch (answer->status) {
    case 0:
    case 429:
    case 502:
    case 503:
    case 504:
        try_again(b, j, answer);
        return;
    case 401:
    case 403:
        refused_key(b, j, answer);
        return;
    default:
        break;
    }
    fg_pace_answered(&b->pace);
    b->failed_in_a_row = 0;
    j->state = FREE;
    fg_error err = { 0 };
    if (b->ended == FG_OK &&
        fg_answers_write(&b->answers, fg_lines_id(&b->lines, j->index), answer, &err) != FG_OK) {
        stop(b, FG_BROKEN, err.text);
    } else if (b->ended == FG_OK) {
        b->done++;
        if (answer->status >= 400) {
            show_first_error(b, j, answer);
        }
    }
}

static fg_status send_job(batch *b, job *j, fg_error *err)
{
    b->url.size = b->base_bytes;
    fg_buf_clear(&b->body);
    fg_status status = fg_lines_request(&b->lines, j->index, &b->url, &b->body, err);
    if (status == FG_OK) {
        status = fg_client_send(b->client, b->url.data, b->body.data, b->body.size, j, err);
    }
    b->url.size = b->base_bytes;
    b->url.data[b->base_bytes] = '\0';
    if (status == FG_OK) {
        fg_pace_sent(&b->pace);
        j->state = SENT;
    }
    return status;
}

/* Gives a free job the next request that has no answer yet. */
static void load_job(batch *b, job *j)
{
    while (b->next < b->lines.count && b->lines.items[b->next].done) {
        b->next++;
    }
    if (b->next < b->lines.count) {
        *j = (job){ .state = READY, .index = b->next++ };
    }
}

/* Sends what may be sent. Returns how many requests are under way or waiting to be. */
static size_t work(batch *b)
{
    size_t busy = 0;
    uint64_t now = fg_clock_now_ns(&b->clock);
    for (uint32_t i = 0; i < b->config.concurrency; i++) {
        job *j = &b->jobs[i];
        if (j->state == FREE) {
            load_job(b, j);
        }
        if (j->state == READY && now >= j->not_before_ns && fg_pace_may_send(&b->pace, now)) {
            fg_error err = { 0 };
            fg_status status = send_job(b, j, &err);
            if (status != FG_OK) {
                stop(b, status, err.text);
            }
        }
        busy += j->state != FREE;
    }
    return busy;
}

static void run(batch *b)
{
    while (b->ended == FG_OK && work(b) > 0) {
        fg_error err = { 0 };
        fg_status status = fg_client_wait(b->client, LOOK_MS, &err);
        uint64_t now = fg_clock_now_ns(&b->clock);
        if (status == FG_OK && now - b->synced_ns >= SYNC_S * SECOND_NS) {
            b->synced_ns = now;
            status = fg_answers_sync(&b->answers, &err);
        }
        if (status != FG_OK) {
            stop(b, status, err.text);
        } else if (interrupted != 0) {
            stop(b, FG_CANCELLED, "interrupted");
        } else if (b->config.url == NULL && !fg_child_runs(&b->child)) {
            stop(b, FG_PEER_LOST, "the server that this batch had started has ended");
        }
        show_progress(b);
    }
    fg_error err = { 0 };
    if (fg_answers_sync(&b->answers, &err) != FG_OK) {
        stop(b, FG_BROKEN, err.text);
    }
}

/* ---- start and end ---- */

/* A flag beats the environment also where it means the other of the two. */
static fg_status read_config(batch *b, const fg_args *args, fg_conf_asked *asked, fg_error *err)
{
    config given = { 0 };
    fg_conf_input input = { .argc = args->flag_count, .argv = args->flags };
    fg_status status = fg_conf_parse(&fg_batch_spec, &input, &given, asked, err);
    if (status != FG_OK || asked->help) {
        return status;
    }
    if (given.model != NULL && given.url != NULL) {
        return fg_fail(err, FG_BAD_INPUT, "--model starts a server, --url names one: give one");
    }
    input.environment = args->environment;
    status = fg_conf_parse(&fg_batch_spec, &input, &b->config, asked, err);
    b->config.model = given.url != NULL ? NULL : b->config.model;
    b->config.url = given.model != NULL || b->config.model != NULL ? NULL : b->config.url;
    return status;
}

static fg_status check_args(batch *b, fg_error *err)
{
    const fg_args *args = &b->args;
    if (args->word_count != 2) {
        return fg_fail(err, FG_BAD_INPUT,
                       "%s: forge batch [flags] IN.jsonl OUT.jsonl (see forge batch --help)",
                       args->word_count < 2 ? "two files are needed" : "too many files");
    }
    if (b->config.model == NULL && b->config.url == NULL) {
        return fg_fail(err, FG_BAD_INPUT, "who answers? --model FILE or --url URL");
    }
    if (b->config.url != NULL && args->passed_count > 0) {
        return fg_fail(err, FG_BAD_INPUT,
                       "flags behind -- are for a server that --model starts; --url has its own");
    }
    for (int i = 0; i < args->passed_count; i++) {
        if (strncmp(args->passed[i], "--mode", 6) == 0 &&
            (args->passed[i][6] == '\0' || args->passed[i][6] == '=')) {
            return fg_fail(err, FG_BAD_INPUT,
                           "--mode behind --: a batch starts one standalone server; for a cluster "
                           "start it first and give its router as --url");
        }
    }
    return b->config.url == NULL ? FG_OK : fg_client_check_url(b->config.url, err);
}

static fg_status load(batch *b, fg_error *err)
{
    const char *in = b->args.words[0];
    bool standard = strcmp(in, "-") == 0;
    int fd = standard ? STDIN_FILENO : open(in, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return fg_fail(err, FG_BAD_INPUT, "%s: %s", in, strerror(errno));
    }
    fg_lines_resumed resumed = { 0 };
    fg_status status = fg_lines_load(&b->lines, fd, standard ? "standard input" : in, err);
    if (status == FG_OK) {
        status = fg_answers_open(&b->answers, b->args.words[1], fd, &b->lines, &resumed, err);
    }
    if (!standard) {
        close(fd);
    }
    if (status != FG_OK) {
        return status;
    }
    b->skipped = b->lines.done_count;
    if (!b->answers.file) {
        say("the answers go to a stream: if this run is cut short, the next one starts anew");
    }
    if (resumed.torn_bytes > 0) {
        say("the last answer was torn: it is asked for again");
    }
    if (resumed.foreign > 0) {
        fprintf(stderr, "forge batch: %s: %" PRIu64 " answers are of other requests and stay\n",
                b->args.words[1], resumed.foreign);
    }
    return FG_OK;
}

/* The server's address without what the lines bring themselves. */
static fg_status set_base(batch *b, const char *url, fg_error *err)
{
    size_t length = strlen(url);
    while (length > 0 && url[length - 1] == '/') {
        length--;
    }
    if (length > 3 && strncmp(url + length - 3, "/v1", 3) == 0) {
        length -= 3;
    }
    b->base_bytes = length;
    return fg_buf_append(&b->url, url, length) ? FG_OK : fg_fail(err, FG_AGAIN, "out of memory");
}

static fg_status open_server(batch *b, const char *const *environment, fg_error *err)
{
    if (b->config.url != NULL) {
        return set_base(b, b->config.url, err);
    }
    fg_args inherited = { 0 };
    fg_status status =
        fg_args_split(&fg_serve_spec, &fg_batch_spec, 0, NULL, environment, &inherited, err);
    if (status != FG_OK) {
        return status;
    }
    fg_child_options child_options = {
        .model = b->config.model,
        .flags = b->args.passed,
        .flag_count = b->args.passed_count,
        .environment = inherited.environment,
        .stop = &interrupted,
    };
    status = fg_child_start(&child_options, &b->child, err);
    fg_args_free(&inherited);
    return status != FG_OK ? status : set_base(b, b->child.url, err);
}

/* A server listens a moment before it can work. */
static fg_status wait_for_health(batch *b, fg_error *err)
{
    uint64_t deadline = fg_clock_now_ns(&b->clock) + HEALTH_S * SECOND_NS;
    fg_status status = FG_OK;
    char url[FG_CHILD_URL_MAX + 16];
    snprintf(url, sizeof url, "%s/health", b->child.url);
    bool asked = false;
    while (status == FG_OK && b->health != 200) {
        if (interrupted != 0) {
            return fg_fail(err, FG_CANCELLED, "interrupted");
        }
        if (!fg_child_runs(&b->child) || fg_clock_now_ns(&b->clock) > deadline) {
            return fg_fail(err, FG_BROKEN, "the server does not become ready");
        }
        if (!asked || b->health != 0) {
            asked = true;
            b->health = 0;
            status = fg_client_send(b->client, url, NULL, 0, NULL, err);
        }
        status = status != FG_OK ? status : fg_client_wait(b->client, LOOK_MS, err);
        if (status == FG_OK && b->health != 0 && b->health != 200) {
            status = fg_client_wait(b->client, HEALTH_PAUSE_MS, err);
        }
    }
    return status;
}

static fg_status open_batch(batch *b, const char *const *environment, fg_error *err)
{
    fg_status status = open_server(b, environment, err);
    if (status != FG_OK) {
        return status;
    }
    fg_client_options client_options = {
        .max = b->config.concurrency,
        .timeout_s = b->config.timeout_s,
        .api_key = b->config.api_key,
        .on_end = on_end,
        .ctx = b,
    };
    status = fg_client_create(&client_options, &b->client, err);
    b->jobs = fg_mem_array(b->config.concurrency, sizeof *b->jobs);
    if (status == FG_OK && b->jobs == NULL) {
        status = fg_fail(err, FG_AGAIN, "out of memory");
    }
    fg_pace_init(&b->pace, b->config.concurrency);
    if (status == FG_OK && b->config.url == NULL) {
        status = wait_for_health(b, err);
    }
    return status;
}

static void close_batch(batch *b)
{
    fg_client_destroy(b->client);
    fg_child_stop(&b->child);
    fg_answers_close(&b->answers);
    fg_lines_free(&b->lines);
    fg_args_free(&b->args);
    fg_buf_deinit(&b->url);
    fg_buf_deinit(&b->body);
    fg_mem_free(b->jobs);
    fg_mem_free(b);
}

static void set_signals(void)
{
    struct sigaction action = { .sa_handler = on_signal };
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    if (!fg_loop_hangup_ignored()) {
        sigaction(SIGHUP, &action, NULL);
    }
    action.sa_handler = SIG_IGN; /* a reader that went away is an error of write */
    sigaction(SIGPIPE, &action, NULL);
}

/* Everything after the flags. The exit code. */
static int do_batch(batch *b, const char *const *environment, fg_error *err)
{
    fg_status status = check_args(b, err);
    status = status != FG_OK ? status : load(b, err);
    if (status != FG_OK) {
        fprintf(stderr, "forge batch: %s\n", err->text);
        return status == FG_BAD_INPUT ? 2 : 1;
    }
    bool work_left = b->skipped < b->lines.count;
    status = work_left ? open_batch(b, environment, err) : FG_OK;
    b->started_ns = b->shown_ns = b->synced_ns = fg_clock_now_ns(&b->clock);
    if (status == FG_BAD_INPUT) {
        fprintf(stderr, "forge batch: %s\n", err->text);
        return 2;
    }
    if (status != FG_OK) {
        stop(b, status, err->text);
    } else if (work_left) {
        run(b);
    }
    show_end(b);
    return b->skipped + b->done == b->lines.count ? 0 : 1;
}

int fg_batch_main(int argc, const char *const *argv, const char *const *environment)
{
    fg_error err = { 0 };
    fg_conf_asked asked = { 0 };
    batch *b = fg_mem_alloc(sizeof *b);
    if (b == NULL) {
        fprintf(stderr, "forge batch: out of memory\n");
        return 1;
    }
    b->clock = fg_clock_real();
    b->child.out = -1;
    b->answers.fd = -1;
    set_signals();
    fg_status status =
        fg_args_split(&fg_batch_spec, &fg_serve_spec, argc, argv, environment, &b->args, &err);
    status = status != FG_OK ? status : read_config(b, &b->args, &asked, &err);
    int code;
    if (status != FG_OK) {
        fprintf(stderr, "forge batch: %s\n", err.text);
        code = status == FG_BAD_INPUT ? 2 : 1;
    } else if (asked.help) {
        code = fg_args_print_help(&fg_batch_spec, asked.help_word);
    } else {
        code = do_batch(b, environment, &err);
    }
    close_batch(b);
    return code;
}
