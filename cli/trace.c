#include "cli/trace.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "cli/args.h"
#include "cli/client.h"
#include "cli/trace_merge.h"
#include "common/conf/options.h"

enum { TIMEOUT_S = 30, WAIT_MS = 200 };

typedef struct trace_config {
    const char *out, *api_key;
} trace_config;

static const fg_option options[] = {
    { .name = "out",
      .type = FG_OPTION_STRING,
      .default_text = "forge-trace.json",
      .group = "Output",
      .value_name = "FILE",
      .offset = offsetof(trace_config, out),
      .help = "Where the picture goes; \"-\" is standard output." },
    { .name = "api-key",
      .type = FG_OPTION_STRING,
      .group = "Input",
      .value_name = "KEY",
      .offset = offsetof(trace_config, api_key),
      .help =
          "The key that the processes want; it must open admin. FORGE_API_KEY in the environment "
          "keeps it out of the list of processes." },
};

const fg_conf_spec fg_trace_spec = {
    .command = "forge trace",
    .intro =
        "Draws what one process or a whole cluster did lately: every step of every worker, with\n"
        "its batch, its blocks and its queue, and the life of every request.\n\n"
        "  forge trace http://127.0.0.1:8080                     one process\n"
        "  forge trace --out run.json :8080 :9001 :9002          a router and its workers, which\n"
        "                                                        were started with "
        "--status-port\n\n"
        "Open the file at https://ui.perfetto.dev or in chrome://tracing; nothing is uploaded.\n"
        "A request has the same number (req=...) in all processes and in the logs. Processes of\n"
        "one host share one clock; those of another host lie beside it.",
    .options = options,
    .option_count = sizeof options / sizeof options[0],
};

/* What a fetch brought. */
typedef struct fetched {
    int status;
    fg_buf body;
    char problem[FG_ERROR_TEXT_MAX];
    bool ended;
} fetched;

static void on_end(void *ctx, void *user, const fg_client_answer *answer)
{
    fetched *f = user;
    f->status = answer->status;
    f->ended = true;
    snprintf(f->problem, sizeof f->problem, "%s", answer->problem);
    fg_buf_append(&f->body, answer->body, answer->body_bytes);
}

/* ":8080" is a port of this machine; a trailing slash is none of the path. */
static bool make_url(const char *given, const char *path, fg_buf *out)
{
    size_t length = strlen(given);
    while (length > 0 && given[length - 1] == '/') {
        length--;
    }
    fg_buf_clear(out);
    fg_buf_puts(out, strstr(given, "://") == NULL ? "http://" : "");
    fg_buf_puts(out, given[0] == ':' ? "127.0.0.1" : "");
    fg_buf_append(out, given, length);
    return fg_buf_puts(out, path);
}

static fg_status explain(const fetched *f, fg_error *err)
{
    if (f->status == 0) {
        return fg_fail(err, FG_PEER_LOST, "nobody answers: %s", f->problem);
    }
    if (f->status == 404) {
        return fg_fail(err, FG_BAD_INPUT,
                       "it has no /debug/trace (status 404): not a Forge, or an older one");
    }
    return f->status == 200
               ? FG_OK
               : fg_fail(err, FG_BAD_INPUT, "status %d%s", f->status, fg_client_advice(f->status));
}

static fg_status fetch(fg_client *client, const char *name, const char *url, fg_trace_merge *merge,
                       fg_error *err)
{
    fetched f = { 0 };
    fg_buf_init(&f.body, 0);
    fg_status status = fg_client_send(client, url, NULL, 0, &f, err);
    while (status == FG_OK && !f.ended) {
        status = fg_client_wait(client, WAIT_MS, err);
    }
    if (status == FG_OK) {
        status = f.body.failed ? fg_fail(err, FG_AGAIN, "out of memory") : explain(&f, err);
    }
    if (status == FG_OK) {
        status = fg_trace_merge_add(merge, name, f.body.data == NULL ? "" : f.body.data,
                                    f.body.size, err);
    }
    fg_buf_deinit(&f.body);
    return status;
}

static fg_status write_out(const char *name, const fg_buf *text, fg_error *err)
{
    bool standard = strcmp(name, "-") == 0;
    FILE *file = standard ? stdout : fopen(name, "w");
    if (file == NULL) {
        return fg_fail(err, FG_BAD_INPUT, "%s: %s", name, strerror(errno));
    }
    bool fine = fwrite(text->data, 1, text->size, file) == text->size;
    fine = (standard ? fflush(file) : fclose(file)) == 0 && fine;
    return fine ? FG_OK : fg_fail(err, FG_BROKEN, "%s: %s", name, strerror(errno));
}

/* Returns how many of the processes are in the picture. */
static int fetch_all(const fg_args *args, const char *api_key, fg_trace_merge *merge, fg_error *err)
{
    fg_client *client = NULL;
    int count = 0;
    fg_client_options client_options = {
        .max = 1, .timeout_s = TIMEOUT_S, .api_key = api_key, .on_end = on_end
    };
    if (fg_client_create(&client_options, &client, err) != FG_OK) {
        fprintf(stderr, "forge trace: %s\n", err->text);
        return 0;
    }
    fg_buf url;
    fg_buf_init(&url, 0);
    for (int i = 0; i < args->word_count; i++) {
        fg_status status = make_url(args->words[i], "/debug/trace", &url)
                               ? FG_OK
                               : fg_fail(err, FG_AGAIN, "out of memory");
        status = status != FG_OK ? status : fetch(client, args->words[i], url.data, merge, err);
        if (status == FG_OK) {
            count++;
        } else {
            fprintf(stderr, "forge trace: %s: %s\n", args->words[i], err->text);
        }
    }
    fg_buf_deinit(&url);
    fg_client_destroy(client);
    return count;
}

static int do_trace(const fg_args *args, const trace_config *config, fg_error *err)
{
    fg_trace_merge *merge = fg_trace_merge_create();
    fg_buf text;
    fg_buf_init(&text, 0);
    int count = merge == NULL ? 0 : fetch_all(args, config->api_key, merge, err);
    int code = count == args->word_count ? 0 : 1;
    if (count > 0 && !fg_trace_merge_render(merge, &text)) {
        fprintf(stderr, "forge trace: out of memory\n");
        code = 1;
    } else if (count > 0 && write_out(config->out, &text, err) != FG_OK) {
        fprintf(stderr, "forge trace: %s\n", err->text);
        code = 1;
    } else if (count > 0) {
        fprintf(stderr, "forge trace: %d of %d processes, %zu KiB in %s%s\n", count,
                args->word_count, (text.size + 1023) / 1024,
                strcmp(config->out, "-") == 0 ? "standard output" : config->out,
                strcmp(config->out, "-") == 0 ? "" : ": open it at https://ui.perfetto.dev");
    }
    fg_buf_deinit(&text);
    fg_trace_merge_destroy(merge);
    return code;
}

static fg_status check_words(const fg_args *args, fg_error *err)
{
    if (args->word_count == 0 || args->passed_count > 0) {
        return fg_fail(err, FG_BAD_INPUT,
                       "name the processes: forge trace [--out FILE] URL... (see forge trace "
                       "--help)");
    }
    fg_buf url;
    fg_buf_init(&url, 0);
    fg_status status = FG_OK;
    for (int i = 0; status == FG_OK && i < args->word_count; i++) {
        status = make_url(args->words[i], "", &url) ? fg_client_check_url(url.data, err)
                                                    : fg_fail(err, FG_AGAIN, "out of memory");
    }
    fg_buf_deinit(&url);
    return status;
}

int fg_trace_main(int argc, const char *const *argv, const char *const *environment)
{
    fg_args args = { 0 };
    fg_error err = { 0 };
    fg_conf_asked asked = { 0 };
    trace_config config = { 0 };
    int code;
    fg_status status =
        fg_args_split(&fg_trace_spec, &fg_serve_spec, argc, argv, environment, &args, &err);
    if (status == FG_OK) {
        fg_conf_input input = { .argc = args.flag_count,
                                .argv = args.flags,
                                .environment = args.environment };
        status = fg_conf_parse(&fg_trace_spec, &input, &config, &asked, &err);
    }
    if (status == FG_OK && asked.help) {
        code = fg_args_print_help(&fg_trace_spec, asked.help_word);
    } else if (status != FG_OK || (status = check_words(&args, &err)) != FG_OK) {
        fprintf(stderr, "forge trace: %s\n", err.text);
        code = status == FG_BAD_INPUT ? 2 : 1;
    } else {
        code = do_trace(&args, &config, &err);
    }
    fg_args_free(&args);
    return code;
}
