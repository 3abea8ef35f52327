#include "cli/top.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/args.h"
#include "cli/client.h"
#include "cli/top_draw.h"
#include "cli/top_model.h"
#include "cli/top_screen.h"
#include "common/base/clock.h"
#include "common/base/mem.h"
#include "common/conf/options.h"

enum {
    TIMEOUT_S = 5,
    STEP_MS = 50,      /* keys are looked at so often */
    HISTORY = 6,       /* rates are over the last five intervals */
    AWAY_MAX_S = 16,   /* between two attempts to reach a server that is away */
    PLAIN_WIDTH = 120, /* where there is no terminal */
};

typedef struct top_config {
    const char *url, *api_key;
    double interval;
    bool once, json;
} top_config;

static const fg_option options[] = {
    { .name = "url",
      .type = FG_OPTION_STRING,
      .default_text = "http://127.0.0.1:8080",
      .group = "What is shown",
      .value_name = "URL",
      .offset = offsetof(top_config, url),
      .help = "The router, or the one process; \":8080\" is a port of this machine." },
    { .name = "api-key",
      .type = FG_OPTION_STRING,
      .group = "What is shown",
      .value_name = "KEY",
      .offset = offsetof(top_config, api_key),
      .help =
          "The key that the server wants; it must open metrics. FORGE_API_KEY in the environment "
          "keeps it out of the list of processes." },
    { .name = "interval",
      .type = FG_OPTION_FLOAT,
      .default_text = "1",
      .min = 0,
      .max = 3600,
      .group = "What is shown",
      .value_name = "S",
      .offset = offsetof(top_config, interval),
      .help = "Seconds between two readings; at least 0.1." },
    { .name = "once",
      .type = FG_OPTION_BOOL,
      .default_text = "false",
      .group = "What is shown",
      .offset = offsetof(top_config, once),
      .help = "Reads twice, one interval apart, prints once and ends; 1 when nobody answers." },
    { .name = "json",
      .type = FG_OPTION_BOOL,
      .default_text = "false",
      .group = "What is shown",
      .offset = offsetof(top_config, json),
      .help = "Prints each reading as one line of JSON." },
};

const fg_conf_spec fg_top_spec = {
    .command = "forge top",
    .intro =
        "Shows what a server or a cluster does now: requests, workers with their blocks, streams.\n"
        "\n"
        "  forge top                                    this machine's port 8080, until q\n"
        "  forge top --url http://10.0.0.5:8080 --once  once, as text\n"
        "  forge top --json --interval 10               a line every ten seconds, for scripts",
    .options = options,
    .option_count = sizeof options / sizeof options[0],
};

typedef enum page_kind { METRICS, STATE, PAGE_COUNT } page_kind;

/* One answer on its way. */
typedef struct page {
    fg_buf body;
    int status;
    bool ended;
    char problem[FG_ERROR_TEXT_MAX];
} page;

typedef struct top {
    const top_config *config;
    fg_clock clock;
    fg_client *client;
    fg_buf base, url, out;
    page pages[PAGE_COUNT];
    fg_top_sample *history; /* of HISTORY; reading n is at n % HISTORY */
    uint64_t readings;      /* good ones, ever */
    uint32_t failures;      /* since the last good one */
    char problem[FG_ERROR_TEXT_MAX];
    uint64_t next_ns; /* when to read again */
    fg_top_sort sort;
    bool paused, help, screen;
} top;

static void on_end(void *ctx, void *user, const fg_client_answer *answer)
{
    page *p = user;
    p->status = answer->status;
    p->ended = true;
    snprintf(p->problem, sizeof p->problem, "%s", answer->problem);
    fg_buf_append(&p->body, answer->body, answer->body_bytes);
}

/* ":8080" is a port of this machine; a trailing slash is none of the path. */
static bool make_base(const char *given, fg_buf *out)
{
    size_t length = strlen(given);
    while (length > 0 && given[length - 1] == '/') {
        length--;
    }
    fg_buf_puts(out, strstr(given, "://") == NULL ? "http://" : "");
    fg_buf_puts(out, given[0] == ':' ? "127.0.0.1" : "");
    return fg_buf_append(out, given, length);
}

/* ---- reading ---- */

static fg_status begin_reading(top *t, fg_error *err)
{
    static const char *const paths[] = { "/metrics", "/debug/state" };
    fg_status status = FG_OK;
    for (int i = 0; i < PAGE_COUNT; i++) {
        page *p = &t->pages[i];
        fg_buf_clear(&p->body);
        p->ended = true;
    }
    for (int i = 0; status == FG_OK && i < PAGE_COUNT; i++) {
        fg_buf_clear(&t->url);
        if (!fg_buf_append(&t->url, t->base.data, t->base.size) ||
            !fg_buf_puts(&t->url, paths[i])) {
            return fg_fail(err, FG_AGAIN, "out of memory");
        }
        status = fg_client_send(t->client, t->url.data, NULL, 0, &t->pages[i], err);
        t->pages[i].ended = status != FG_OK;
    }
    return status;
}

static bool is_reading(const top *t)
{
    return !t->pages[METRICS].ended || !t->pages[STATE].ended;
}

static fg_status check_page(const page *p, fg_error *err)
{
    if (p->status == 0) {
        return fg_fail(err, FG_PEER_LOST, "nobody answers: %s", p->problem);
    }
    if (p->status == 404) {
        return fg_fail(err, FG_BAD_INPUT, "it has no such page (status 404): no router of Forge");
    }
    if (p->status != 200) {
        return fg_fail(err, FG_BAD_INPUT, "status %d%s", p->status, fg_client_advice(p->status));
    }
    return p->body.failed ? fg_fail(err, FG_AGAIN, "out of memory") : FG_OK;
}

/* Both pages have come: a reading, or a problem to show. */
static void end_reading(top *t)
{
    fg_error err = { 0 };
    fg_top_sample *now = &t->history[t->readings % HISTORY];
    uint64_t oldest = t->readings < HISTORY ? 0 : t->readings - (HISTORY - 1);
    fg_status status = check_page(&t->pages[METRICS], &err);
    status = status != FG_OK ? status : check_page(&t->pages[STATE], &err);
    memset(now, 0, sizeof *now);
    now->at_ns = fg_clock_now_ns(&t->clock);
    if (status == FG_OK) {
        const fg_buf *text = &t->pages[METRICS].body;
        fg_top_read_metrics(text->data == NULL ? "" : text->data, text->size, now);
        text = &t->pages[STATE].body;
        status = fg_top_read_state(text->data == NULL ? "" : text->data, text->size, now, &err);
    }
    if (status != FG_OK) {
        snprintf(t->problem, sizeof t->problem, "%s", err.text);
        t->failures++;
        return;
    }
    fg_top_compare(t->readings == 0 ? NULL : &t->history[oldest % HISTORY], now);
    t->readings++;
    t->failures = 0;
}

static uint32_t away_s(const top *t)
{
    uint32_t wait = t->failures > 5 ? AWAY_MAX_S : 1u << (t->failures > 0 ? t->failures - 1 : 0);
    return wait < AWAY_MAX_S ? wait : AWAY_MAX_S;
}

static void plan_next(top *t)
{
    double wait_s = t->failures > 0 ? away_s(t) : t->config->interval;
    t->next_ns = fg_clock_now_ns(&t->clock) + (uint64_t)(wait_s * 1e9);
}

/* One reading from begin to end. */
static void read_now(top *t)
{
    fg_error err = { 0 };
    fg_status status = begin_reading(t, &err);
    while (status == FG_OK && is_reading(t)) {
        status = fg_client_wait(t->client, STEP_MS, &err);
    }
    if (status == FG_OK) {
        end_reading(t);
    } else {
        snprintf(t->problem, sizeof t->problem, "%s", err.text);
        t->failures++;
    }
    plan_next(t);
}

/* ---- showing ---- */

static const fg_top_sample *newest(const top *t)
{
    return t->readings == 0 ? NULL : &t->history[(t->readings - 1) % HISTORY];
}

static bool render(top *t, uint32_t width, uint32_t height)
{
    fg_top_view view = { .width = width,
                         .height = height,
                         .url = t->base.data,
                         .sort = t->sort,
                         .paused = t->paused,
                         .help = t->help,
                         .keys = t->screen,
                         .problem = t->failures > 0 ? t->problem : NULL,
                         .retry_s = away_s(t) };
    fg_buf_clear(&t->out);
    if (t->config->json) {
        return newest(t) == NULL || fg_top_render_json(newest(t), t->base.data, &t->out);
    }
    return fg_top_draw(newest(t), &view, &t->out);
}

static bool print(top *t)
{
    if (!render(t, PLAIN_WIDTH, 0)) {
        return false;
    }
    fwrite(t->out.data == NULL ? "" : t->out.data, 1, t->out.size, stdout);
    return fflush(stdout) == 0;
}

static void show(top *t)
{
    uint32_t width, height;
    fg_top_screen_size(&width, &height);
    if (render(t, width, height) && t->out.data != NULL) {
        fg_top_screen_show(t->out.data, t->out.size);
    }
}

/* False: the user leaves. */
static bool on_key(top *t, char key)
{
    switch (key) {
    case 'q':
    case 'Q':
    case 4: /* Ctrl-D */
        return false;
    case 'p':
        t->paused = !t->paused;
        t->next_ns = 0;
        return true;
    case 's':
        t->sort = (fg_top_sort)((t->sort + 1) % FG_TOP_SORT_COUNT);
        return true;
    case '?':
    case 'h':
        t->help = !t->help;
        return true;
    default:
        return true;
    }
}

/* Whatever is under way is looked at between two looks at the keys. */
static fg_status work(top *t, fg_error *err)
{
    fg_status status = FG_OK;
    if (is_reading(t)) {
        status = fg_client_wait(t->client, 1, err);
        if (status == FG_OK && !is_reading(t)) {
            end_reading(t);
            plan_next(t);
            show(t);
        }
    } else if (!t->paused && fg_clock_now_ns(&t->clock) >= t->next_ns) {
        status = begin_reading(t, err);
    }
    return status;
}

static int run_screen(top *t)
{
    fg_error err = { 0 };
    fg_status status = fg_top_screen_open(&err);
    t->screen = status == FG_OK;
    if (status == FG_OK) {
        show(t);
    }
    while (status == FG_OK) {
        char key = 0;
        fg_top_event event = fg_top_screen_wait(is_reading(t) ? 5 : STEP_MS, &key);
        if (event == FG_TOP_END || (event == FG_TOP_KEY && !on_key(t, key))) {
            break;
        }
        if (event != FG_TOP_NOTHING) {
            show(t);
        }
        status = work(t, &err);
    }
    fg_top_screen_close();
    if (status != FG_OK) {
        fprintf(stderr, "forge top: %s\n", err.text);
    }
    return status == FG_OK ? 0 : 1;
}

static void sleep_until(const top *t, uint64_t until_ns)
{
    uint64_t now = fg_clock_now_ns(&t->clock);
    if (until_ns > now) {
        uint64_t wait = until_ns - now;
        struct timespec time = { .tv_sec = (time_t)(wait / 1000000000u),
                                 .tv_nsec = (long)(wait % 1000000000u) };
        nanosleep(&time, NULL);
    }
}

static int run_once(top *t)
{
    for (int i = 0; i < 2; i++) {
        sleep_until(t, i == 0 ? 0 : t->next_ns);
        read_now(t);
        if (t->failures > 0) {
            fprintf(stderr, "forge top: %s: %s\n", t->base.data, t->problem);
            return 1;
        }
    }
    return print(t) ? 0 : 1;
}

/* No terminal: a screenful each time, until the reader or a signal ends it. */
static int run_plain(top *t)
{
    for (;;) {
        read_now(t);
        if (t->failures > 0) {
            fprintf(stderr, "forge top: %s: %s\n", t->base.data, t->problem);
        } else if (!print(t)) {
            return 1;
        }
        sleep_until(t, t->next_ns);
    }
}

/* ---- the command ---- */

static fg_status open_top(top *t, const top_config *config, fg_error *err)
{
    fg_client_options client = {
        .max = PAGE_COUNT, .timeout_s = TIMEOUT_S, .api_key = config->api_key, .on_end = on_end
    };
    *t = (top){ .config = config, .clock = fg_clock_real() };
    fg_buf *buffers[] = { &t->base, &t->url, &t->out, &t->pages[0].body, &t->pages[1].body };
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++) {
        fg_buf_init(buffers[i], 0);
    }
    t->pages[METRICS].ended = t->pages[STATE].ended = true;
    t->history = fg_mem_array(HISTORY, sizeof *t->history);
    if (t->history == NULL || !make_base(config->url, &t->base)) {
        return fg_fail(err, FG_AGAIN, "out of memory");
    }
    fg_status status = fg_client_check_url(t->base.data, err);
    if (status == FG_OK && config->interval < 0.1) {
        status = fg_fail(err, FG_BAD_INPUT, "--interval %g is too short: 0.1 s at least",
                         config->interval);
    }
    return status != FG_OK ? status : fg_client_create(&client, &t->client, err);
}

static void close_top(top *t)
{
    fg_client_destroy(t->client);
    fg_buf *buffers[] = { &t->base, &t->url, &t->out, &t->pages[0].body, &t->pages[1].body };
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++) {
        fg_buf_deinit(buffers[i]);
    }
    fg_mem_free(t->history);
}

static int do_top(const top_config *config)
{
    fg_error err = { 0 };
    top t;
    int code;
    fg_status status = open_top(&t, config, &err);
    if (status != FG_OK) {
        fprintf(stderr, "forge top: %s\n", err.text);
        code = status == FG_BAD_INPUT ? 2 : 1;
    } else if (config->once) {
        code = run_once(&t);
    } else {
        code = !config->json && fg_top_screen_possible() ? run_screen(&t) : run_plain(&t);
    }
    close_top(&t);
    return code;
}

int fg_top_main(int argc, const char *const *argv, const char *const *environment)
{
    fg_args args = { 0 };
    fg_error err = { 0 };
    fg_conf_asked asked = { 0 };
    top_config config = { 0 };
    int code;
    fg_status status =
        fg_args_split(&fg_top_spec, &fg_serve_spec, argc, argv, environment, &args, &err);
    if (status == FG_OK) {
        fg_conf_input input = { .argc = args.flag_count,
                                .argv = args.flags,
                                .environment = args.environment };
        status = fg_conf_parse(&fg_top_spec, &input, &config, &asked, &err);
    }
    if (status == FG_OK && asked.help) {
        code = fg_args_print_help(&fg_top_spec, asked.help_word);
    } else if (status == FG_OK && args.word_count + args.passed_count > 0) {
        fprintf(stderr, "forge top: it takes flags only: --url URL names the server\n");
        code = 2;
    } else if (status != FG_OK) {
        fprintf(stderr, "forge top: %s\n", err.text);
        code = status == FG_BAD_INPUT ? 2 : 1;
    } else {
        code = do_top(&config);
    }
    fg_args_free(&args);
    return code;
}
