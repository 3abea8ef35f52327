#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/top_draw.h"
#include "cli/top_model.h"
#include "common/base/json.h"
#include "common/base/utf8.h"
#include "tests/support/test.h"
#include "tests/unit/cli/top_golden.h"

#define SECOND 1000000000ull

/* Too large for a stack. */
static fg_top_sample before, now;

static void read_metrics(fg_top_sample *sample, const char *text)
{
    memset(sample, 0, sizeof *sample);
    fg_top_read_metrics(text, strlen(text), sample);
}

static void read_state(fg_top_sample *sample, const char *text)
{
    fg_error err = { 0 };
    cr_assert_eq(fg_top_read_state(text, strlen(text), sample, &err), FG_OK, "%s", err.text);
}

#define METRICS(ended, failed, tokens, fast, all)                                                  \
    "forge:num_requests_running 3\nforge:num_requests_waiting 2\n"                                 \
    "forge:request_end_total{reason=\"stop\"} " ended "\n"                                         \
    "forge:request_end_total{reason=\"error\"} " failed "\n"                                       \
    "forge:http_requests_total{route=\"/v1/completions\",code=\"200\"} 50\n"                       \
    "forge:http_requests_total{route=\"/v1/completions\",code=\"429\"} 3\n"                        \
    "forge:http_requests_total{route=\"/v1/chat/completions\",code=\"429\"} 4\n"                   \
    "forge:prompt_tokens_total 1000\nforge:generation_tokens_total " tokens "\n"                   \
    "forge:kv_blocks 2048\nforge:kv_cache_usage_perc 0.25\n"                                       \
    "forge:time_to_first_token_seconds_bucket{le=\"0.1\"} " fast "\n"                              \
    "forge:time_to_first_token_seconds_bucket{le=\"0.2\"} " all "\n"                               \
    "forge:time_to_first_token_seconds_bucket{le=\"+Inf\"} " all "\n"                              \
    "forge:inter_token_latency_seconds_bucket{le=\"0.01\"} 100\n"                                  \
    "forge:inter_token_latency_seconds_bucket{le=\"+Inf\"} 100\n"

#define WORKER(name, role, free, cached, steps, busy, extra)                                       \
    "{\"name\":\"" name "\",\"role\":\"" role "\",\"epoch\":7,\"blocks\":{\"total\":1024,"         \
    "\"free\":" free ",\"cached\":" cached ",\"held\":5,\"pinned\":0,\"quarantined\":0},"          \
    "\"running\":2,\"waiting\":1,\"steps\":" steps ",\"busy_ms\":" busy ",\"silent_ms\":120" extra \
    "}"
#define STREAM(id, state, prefill, decode, age)                                                    \
    "{\"id\":\"" id "\",\"state\":\"" state "\",\"prefill\":\"" prefill "\",\"decode\":\"" decode  \
    "\",\"owner\":\"" prefill "\",\"age_ms\":" age ",\"in_state_ms\":40,\"prompt_tokens\":300,"    \
    "\"tokens\":12}"
#define STATE(steps, busy)                                                                                                            \
    "{\"router\":{\"uptime_ms\":3723000,\"ready\":true,\"live\":3},"                                                                  \
    "\"queue\":{\"requests\":2,\"tokens\":640,\"oldest_ms\":1500},\"workers\":[" WORKER(                                              \
        "prefill-0", "prefill", "1000", "20", steps, busy,                                                                            \
        ",\"draining\":true") "," WORKER("decode-1", "decode", "100", "500", steps, busy,                                             \
                                         ",\"query_tokens\":1000,\"hit_"                                                              \
                                         "tokens\":710") "," WORKER("decode-0", "decode", "1024",                                     \
                                                                    "0", steps, "100",                                                \
                                                                    "") "],"                                                          \
                                                                        "\"req"                                                       \
                                                                        "uests"                                                       \
                                                                        "\":"                                                         \
                                                                        "[" STREAM(                                                   \
                                                                            "00000000000000a1",                                       \
                                                                            "decoding", "",                                           \
                                                                            "decode-1",                                               \
                                                                            "12345") "," STREAM("00000000000000a2",                   \
                                                                                                "prefilling",                         \
                                                                                                "prefill-0",                          \
                                                                                                "decode-0",                           \
                                                                                                "800") "," STREAM("00000000000000a3", \
                                                                                                                  "queued",           \
                                                                                                                  "",                 \
                                                                                                                  "",                 \
                                                                                                                  "90") "],\"recent\":[]}"

/* Two readings, two seconds apart. */
static void take_two(void)
{
    read_metrics(&before, METRICS("10", "1", "4000", "5", "5"));
    read_state(&before, STATE("500", "100"));
    before.at_ns = SECOND;
    read_metrics(&now, METRICS("15", "2", "5000", "5", "25"));
    read_state(&now, STATE("900", "1600"));
    now.at_ns = 3 * SECOND;
    now.uptime_ms += 2000;
    fg_top_compare(&before, &now);
}

static bool near(double have, double want)
{
    return fabs(have - want) < 1e-9;
}

Test(top, rates_and_percentiles_are_of_the_time_between)
{
    take_two();
    cr_assert(near(now.requests_per_s, 3), "%g", now.requests_per_s);
    cr_assert(near(now.generated_per_s, 500) && near(now.prompt_per_s, 0));
    cr_assert(near(now.refused_429, 7) && near(now.failed, 2) && near(now.failed_since, 1));
    /* Of 20 new first tokens all took 0.1 to 0.2 s. */
    cr_assert(near(now.first_p50_s, 0.15) && near(now.first_p95_s, 0.195), "%g", now.first_p50_s);
    cr_assert(isnan(now.inter_p50_s), "no token came");
    const fg_top_worker *prefill = &now.workers[0], *decode = &now.workers[1];
    cr_assert(near(prefill->steps_per_s, 200) && near(prefill->busy_share, 0.75));
    cr_assert(prefill->draining && !decode->draining);
    cr_assert(isnan(prefill->hit_share) && near(decode->hit_share, 0.71));
    cr_assert(now.ready && now.stream_count == 3 && near(now.oldest_queued_ms, 1500));
}

Test(top, what_is_not_known_is_not_zero)
{
    take_two();
    fg_top_compare(NULL, &now);
    cr_assert(isnan(now.requests_per_s) && isnan(now.workers[0].steps_per_s));
    cr_assert(near(now.inter_p50_s, 0.005), "since the start");
    take_two();
    now.uptime_ms = 5; /* the server began anew */
    fg_top_compare(&before, &now);
    cr_assert(isnan(now.requests_per_s) && isnan(now.workers[1].busy_share));
    take_two();
    now.workers[1].epoch = 8; /* one of its workers did */
    fg_top_compare(&before, &now);
    cr_assert(isnan(now.workers[1].steps_per_s) && near(now.workers[0].steps_per_s, 200));
    take_two();
    now.at_ns = before.at_ns;
    fg_top_compare(&before, &now);
    cr_assert(isnan(now.requests_per_s), "no time has passed");
}

static const struct {
    const char *name, *text;
    fg_status status;
    uint32_t workers, streams;
} states[] = {
    { "nothing", "", FG_BAD_INPUT, 0, 0 },
    { "cut off", "{\"workers\":[{\"name\":\"a\"", FG_BAD_INPUT, 0, 0 },
    { "no JSON", "<html>", FG_BAD_INPUT, 0, 0 },
    { "an array", "[]", FG_BAD_INPUT, 0, 0 },
    { "a number", "7", FG_BAD_INPUT, 0, 0 },
    { "deep", "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
      FG_BAD_INPUT, 0, 0 },
    { "an empty object", "{}", FG_OK, 0, 0 },
    { "other types", "{\"workers\":7,\"requests\":\"x\",\"router\":[],\"queue\":null}", FG_OK, 0,
      0 },
    { "rows of other types", "{\"workers\":[1,null,[]],\"requests\":[\"x\"]}", FG_OK, 3, 1 },
    { "fields of other types",
      "{\"workers\":[{\"name\":7,\"blocks\":[],\"running\":\"x\",\"steps\":null}]}", FG_OK, 1, 0 },
    { "numbers out of range",
      "{\"workers\":[{\"name\":\"a\",\"running\":-5,\"waiting\":1e300,\"blocks\":{\"total\":-1}}]}",
      FG_OK, 1, 0 },
};

Test(top, a_state_of_any_shape_is_read_or_refused)
{
    for (size_t i = 0; i < sizeof states / sizeof states[0]; i++) {
        fg_error err = { 0 };
        fg_buf out;
        memset(&now, 0, sizeof now);
        fg_status status = fg_top_read_state(states[i].text, strlen(states[i].text), &now, &err);
        cr_assert_eq(status, states[i].status, "%s: %s", states[i].name, err.text);
        cr_assert_eq(now.worker_count, states[i].workers, "%s", states[i].name);
        cr_assert_eq(now.stream_count, states[i].streams, "%s", states[i].name);
        fg_top_compare(NULL, &now);
        fg_buf_init(&out, 0);
        cr_assert(fg_top_draw(&now, &(fg_top_view){ .width = 80, .height = 24, .url = "" }, &out));
        fg_buf_deinit(&out);
    }
    cr_assert(now.workers[0].running == 0 && now.workers[0].waiting == UINT32_MAX &&
              now.workers[0].total == 0);
}

Test(top, metrics_of_any_shape_are_read)
{
    read_metrics(&now, "forge:num_requests_running NaN\nforge:num_requests_waiting -3\n"
                       "forge:prompt_tokens_total +Inf\nforge:kv_blocks 1e300\n"
                       "forge:time_to_first_token_seconds_bucket{le=\"0.2\"} 5\n"
                       "forge:time_to_first_token_seconds_bucket{le=\"0.1\"} 9\n"
                       "forge:time_to_first_token_seconds_bucket{le=\"x\"} 9\n"
                       "forge:time_to_first_token_seconds_bucket{le=\"+Inf\"} 1\n"
                       "forge:time_to_first_token_seconds_bucket 9\nnonsense\n");
    cr_assert(now.running == 0 && now.queued == 0 && now.prompt_tokens == 0);
    cr_assert(now.first_token.count == 2 && now.refused_lines == 1);
    fg_top_compare(NULL, &now);
    cr_assert(isnan(now.first_p50_s), "counts that fall are no histogram");
    fg_buf text;
    fg_buf_init(&text, 0);
    for (int i = 0; i < 1000; i++) {
        fg_buf_printf(&text, "forge:inter_token_latency_seconds_bucket{le=\"%d\"} %d\n", i, i);
    }
    read_metrics(&now, text.data);
    cr_assert_eq(now.inter_token.count, (uint32_t)FG_TOP_BUCKETS_MAX);
    fg_buf_deinit(&text);
}

/* Columns of a line by another count: every character of the tables is one column here. */
static size_t columns_of(const char *line, size_t length)
{
    size_t columns = 0;
    for (size_t at = 0; at < length; columns++) {
        size_t bytes = fg_utf8_length(line + at, length - at);
        cr_assert(bytes > 0, "half a character");
        cr_assert((unsigned char)line[at] >= 0x20 && line[at] != 0x7F, "a control character");
        at += bytes;
    }
    return columns;
}

static void check_page(const char *text, size_t size, uint32_t width, uint32_t height)
{
    uint32_t lines = 0;
    for (const char *at = text, *end = text + size; at < end; lines++) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        cr_assert_not_null(stop, "a line without an end");
        cr_assert(columns_of(at, (size_t)(stop - at)) <= width, "%u wide: %.*s", width,
                  (int)(stop - at), at);
        at = stop + 1;
    }
    cr_assert(height == 0 || lines <= height, "%u lines of %u", lines, height);
}

Test(top, screens_of_all_sizes_are_as_kept)
{
    take_two();
    for (size_t i = 0; i < sizeof goldens / sizeof goldens[0]; i++) {
        fg_buf out;
        fg_buf_init(&out, 0);
        fg_top_view view = goldens[i].view;
        view.url = "http://127.0.0.1:8080";
        cr_assert(fg_top_draw(goldens[i].blank ? NULL : &now, &view, &out));
        cr_assert_str_eq(out.data == NULL ? "" : out.data, goldens[i].want, "%s:\n%s",
                         goldens[i].name, out.data);
        check_page(out.data == NULL ? "" : out.data, out.size, view.width, view.height);
        fg_buf_deinit(&out);
    }
}

Test(top, every_size_keeps_its_bounds)
{
    take_two();
    for (uint32_t width = 0; width < 260; width += width < 90 ? 1 : 17) {
        for (uint32_t height = 1; height < 60; height += height < 26 ? 1 : 9) {
            for (int i = 0; i < 4; i++) {
                fg_buf out;
                fg_buf_init(&out, 0);
                fg_top_view view = { .width = width,
                                     .height = height,
                                     .url = "http://h",
                                     .sort = (fg_top_sort)i,
                                     .help = i == 1,
                                     .paused = i == 2,
                                     .keys = i != 3,
                                     .problem = i == 3 ? "connection refused" : NULL };
                cr_assert(fg_top_draw(&now, &view, &out));
                check_page(out.data == NULL ? "" : out.data, out.size, width, height);
                fg_buf_deinit(&out);
            }
        }
    }
}

/* Many rows: the page says how many it leaves out, and they add up. */
Test(top, rows_that_do_not_fit_are_counted)
{
    take_two();
    now.worker_total = now.worker_count = 40;
    now.stream_total = 1000;
    now.stream_count = 100;
    for (uint32_t i = 0; i < 100; i++) {
        snprintf(now.workers[i].name, sizeof now.workers[i].name, "worker-%02u", i);
        snprintf(now.streams[i].id, sizeof now.streams[i].id, "id-%02u", i);
    }
    for (uint32_t height = 10; height < 60; height++) {
        fg_buf out;
        fg_buf_init(&out, 0);
        cr_assert(
            fg_top_draw(&now, &(fg_top_view){ .width = 80, .height = height, .url = "" }, &out));
        unsigned shown[2] = { 0, 0 }, more[2] = { 0, 0 };
        for (char *at = out.data; (at = strstr(at, "worker-")) != NULL; at++) {
            shown[0]++;
        }
        for (char *at = out.data; (at = strstr(at, "id-")) != NULL; at++) {
            shown[1]++;
        }
        for (char *at = out.data; (at = strstr(at, "  and ")) != NULL; at++) {
            unsigned count = 0;
            char what[16] = "";
            cr_assert_eq(sscanf(at, "  and %u more %15s", &count, what), 2);
            more[strcmp(what, "requests") == 0] = count;
        }
        cr_assert(shown[0] + more[0] == 40 && shown[1] + more[1] == 1000,
                  "height %u: %u + %u workers, %u + %u requests", height, shown[0], more[0],
                  shown[1], more[1]);
        fg_buf_deinit(&out);
    }
}

static const struct {
    const char *name, *text;
    uint32_t columns;
    const char *want;
    uint32_t used;
} texts[] = {
    { "plain", "abc", 5, "abc", 3 },
    { "cut", "abcdef", 3, "abc", 3 },
    { "no room", "abc", 0, "", 0 },
    { "beyond ASCII", "gr\xC3\xBC\xC3\x9F", 4, "gr\xC3\xBC\xC3\x9F", 4 },
    { "cut between characters", "\xC3\xBC\xC3\x9F", 1, "\xC3\xBC", 1 },
    { "two columns each", "\xE6\x97\xA5\xE6\x9C\xAC", 4, "\xE6\x97\xA5\xE6\x9C\xAC", 4 },
    { "half of a wide one", "\xE6\x97\xA5\xE6\x9C\xAC", 3, "\xE6\x97\xA5", 2 },
    { "an escape sequence", "\x1b[2Ja", 9, "?[2Ja", 5 },
    { "controls", "a\n\r\t\x07z\x7F", 9, "a????z?", 7 },
    { "C1 controls",
      "\xC2\x9B"
      "2J",
      9, "?2J", 3 },
    { "no UTF-8", "a\xFF\xC3z", 9, "a??z", 4 },
    { "right to left", "a\xE2\x80\xAEz", 9, "a?z", 3 },
    { "a combining mark", "e\xCC\x81", 9, "e?", 2 },
    { "nothing wide", "a\xE2\x80\x8Bz", 9, "a?z", 3 },
};

Test(top, texts_of_others_cannot_steer_the_terminal)
{
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        fg_buf out;
        fg_buf_init(&out, 0);
        fg_buf_puts(&out, "");
        cr_assert_eq(fg_top_put_text(&out, texts[i].text, texts[i].columns), texts[i].used, "%s",
                     texts[i].name);
        cr_assert_str_eq(out.data, texts[i].want, "%s", texts[i].name);
        fg_buf_deinit(&out);
    }
}

Test(top, hostile_names_stay_in_their_cells)
{
    take_two();
    snprintf(now.workers[0].name, sizeof now.workers[0].name, "\x1b]0;owned\x07\n%%s");
    snprintf(now.workers[0].role, sizeof now.workers[0].role, "\xFF\xFE");
    snprintf(now.streams[0].state, sizeof now.streams[0].state, "x\ny");
    fg_buf out;
    fg_buf_init(&out, 0);
    fg_top_view view = {
        .width = 80, .height = 24, .url = "http://\x1b[31m", .problem = "\x1b[2J"
    };
    cr_assert(fg_top_draw(&now, &view, &out));
    check_page(out.data, out.size, 80, 24);
    cr_assert_null(strchr(out.data, 0x1b));
    fg_buf_deinit(&out);
}

Test(top, json_is_one_line_that_a_strict_reader_takes)
{
    fg_json *json;
    fg_error err = { 0 };
    fg_buf out;
    take_two();
    snprintf(now.workers[0].name, sizeof now.workers[0].name, "\"\xFF\n");
    fg_buf_init(&out, 0);
    cr_assert(fg_top_render_json(&now, "http://\"", &out));
    cr_assert_eq(strchr(out.data, '\n'), out.data + out.size - 1);
    cr_assert_eq(fg_json_parse(out.data, out.size, &json, &err), FG_OK, "%s", err.text);
    const fg_json_node *root = fg_json_root(json);
    double value;
    cr_assert(fg_json_number(fg_json_get(root, "requests_per_s"), &value) && near(value, 3));
    cr_assert(fg_json_is(fg_json_get(root, "itl_p50_s"), FG_JSON_NULL), "unknown is null");
    const fg_json_node *workers = fg_json_get(root, "workers");
    cr_assert_eq(fg_json_size(workers), 3u);
    cr_assert(fg_json_number(fg_json_get(fg_json_at(workers, 1), "busy_share"), &value) &&
              near(value, 0.75));
    cr_assert_eq(fg_json_size(fg_json_get(root, "streams")), 3u);
    fg_json_destroy(json);
    fg_buf_deinit(&out);
}
