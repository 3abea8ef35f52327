#include "common/obs/spans.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/fault.h"
#include "common/base/json.h"
#include "common/base/log.h"
#include "tests/support/test.h"

/* A folder of this test's own. */
typedef struct place {
    char folder[64], file[96], old[104];
} place;

static place make_place(void)
{
    place p;
    snprintf(p.folder, sizeof p.folder, "/tmp/forge-spans-XXXXXX");
    cr_assert_not_null(mkdtemp(p.folder));
    snprintf(p.file, sizeof p.file, "%s/p0.jsonl", p.folder);
    snprintf(p.old, sizeof p.old, "%s.1", p.file);
    fg_log_set_level(FG_LOG_OFF);
    return p;
}

static void drop_place(const place *p)
{
    unlink(p->file);
    unlink(p->old);
    cr_assert_eq(rmdir(p->folder), 0, "files of other names");
}

static fg_spans_options options_at(const char *path)
{
    return (fg_spans_options){ .path = path,
                               .file_bytes_max = 1u << 20,
                               .sample = 1,
                               .process = { .instance = "p0", .role = "prefill", .pid = 1 },
                               .rng = { .state = 77 } };
}

static fg_spans *open_spans(const fg_spans_options *options)
{
    fg_error err = { 0 };
    fg_spans *spans = NULL;
    cr_assert_eq(fg_spans_open(options, &spans, &err), FG_OK, "%s", err.text);
    return spans;
}

static void add(fg_spans *spans, const char *name)
{
    fg_otlp_span span = { .trace_low = 1, .id = fg_spans_draw(spans), .name = name };
    fg_spans_add(spans, &span);
}

/* Lines of a file, each of which must be JSON, and their spans; -1: there is no file. */
static int count_lines(const char *path, int *spans_out)
{
    FILE *file = fopen(path, "r");
    if (file == NULL) {
        return -1;
    }
    char *line = NULL;
    size_t room = 0;
    ssize_t length;
    int lines = 0;
    *spans_out = 0;
    while ((length = getline(&line, &room, file)) > 0) {
        fg_json *json;
        fg_error err = { 0 };
        cr_assert_eq(fg_json_parse(line, (size_t)length, &json, &err), FG_OK, "%s", err.text);
        const fg_json_node *at = fg_json_at(fg_json_get(fg_json_root(json), "resourceSpans"), 0);
        at = fg_json_at(fg_json_get(at, "scopeSpans"), 0);
        *spans_out += (int)fg_json_size(fg_json_get(at, "spans"));
        fg_json_destroy(json);
        lines++;
    }
    free(line);
    fclose(file);
    return lines;
}

Test(spans, a_flush_is_a_line_and_close_writes_the_rest)
{
    place p = make_place();
    int count;
    fg_spans_options options = options_at(p.file);
    fg_spans *spans = open_spans(&options);
    fg_spans_flush(spans);
    cr_assert_eq(count_lines(p.file, &count), 0, "nothing to say, nothing written");
    add(spans, "a");
    add(spans, "b");
    fg_spans_flush(spans);
    add(spans, "c");
    cr_assert(count_lines(p.file, &count) == 1 && count == 2);
    fg_spans_close(spans);
    cr_assert(count_lines(p.file, &count) == 2 && count == 3);
    spans = open_spans(&options); /* a restart goes on in the same file */
    add(spans, "d");
    fg_spans_close(spans);
    cr_assert(count_lines(p.file, &count) == 3 && count == 4);
    drop_place(&p);
}

Test(spans, a_folder_gets_a_file_named_after_the_process)
{
    place p = make_place();
    int count;
    char slashed[80];
    snprintf(slashed, sizeof slashed, "%s/", p.folder);
    const char *const names[] = { p.folder, slashed };
    for (int i = 0; i < 2; i++) {
        fg_spans_options options = options_at(names[i]);
        fg_spans *spans = open_spans(&options);
        add(spans, "a");
        fg_spans_close(spans);
        cr_assert_eq(count_lines(p.file, &count), i + 1);
    }
    drop_place(&p);
}

Test(spans, a_full_file_gives_way_and_two_are_kept)
{
    place p = make_place();
    int count;
    fg_spans_stats stats;
    fg_spans_options options = options_at(p.file);
    options.file_bytes_max = 2000;
    fg_spans *spans = open_spans(&options);
    for (int i = 0; i < 50; i++) {
        struct stat found;
        add(spans, "a span");
        fg_spans_flush(spans);
        cr_assert(stat(p.file, &found) == 0 && found.st_size <= 2000);
        cr_assert(stat(p.old, &found) != 0 || found.st_size <= 2000);
    }
    fg_spans_stats_get(spans, &stats);
    cr_assert(stats.lines == 50 && stats.dropped == 0 && stats.rotations > 5);
    fg_spans_close(spans);
    cr_assert(count_lines(p.file, &count) > 0 && count_lines(p.old, &count) > 1);
    drop_place(&p);
}

Test(spans, a_full_buffer_drops_and_the_line_stays_whole)
{
    place p = make_place();
    int count;
    fg_spans_stats stats;
    fg_spans_options options = options_at(p.file);
    fg_spans *spans = open_spans(&options);
    for (int i = 0; i < 5000; i++) {
        add(spans, "a name of some length, so that it is soon full");
    }
    fg_spans_stats_get(spans, &stats);
    cr_assert(stats.dropped > 0 && stats.added + stats.dropped == 5000);
    fg_spans_flush(spans);
    cr_assert(count_lines(p.file, &count) == 1 && (uint64_t)count == stats.added);
    add(spans, "b");
    fg_spans_close(spans);
    cr_assert(count_lines(p.file, &count) == 2 && (uint64_t)count == stats.added + 1);
    drop_place(&p);
}

/* Whatever room (it takes 8 bytes) is left behind the last span, the end of the line fits. */
Test(spans, a_line_of_any_length_has_its_end)
{
    static const char padding[] =
        "................................................................"
        "................................................................"
        "................................................................"
        "................................................................";
    for (size_t shift = 0; shift < sizeof padding; shift += 5) {
        place p = make_place();
        int count;
        fg_spans_stats stats = { 0 };
        fg_spans_options options = options_at(p.file);
        fg_spans *spans = open_spans(&options);
        add(spans, padding + shift);
        while (stats.dropped == 0) {
            add(spans, "a");
            fg_spans_stats_get(spans, &stats);
        }
        fg_spans_close(spans);
        cr_assert(count_lines(p.file, &count) == 1 && (uint64_t)count == stats.added, "%zu", shift);
        drop_place(&p);
    }
}

/* A pipe whose reader stopped takes no more: spans are dropped, nothing waits, lines stay whole. */
Test(spans, a_reader_that_stops_costs_spans_and_nothing_else)
{
    place p = make_place();
    fg_spans_stats stats;
    cr_assert_eq(mkfifo(p.file, 0600), 0);
    fg_spans_options options = options_at(p.file);
    fg_error err = { 0 };
    fg_spans *spans = NULL;
    cr_assert_eq(fg_spans_open(&options, &spans, &err), FG_BAD_INPUT, "a pipe without a reader");
    int reader = open(p.file, O_RDONLY | O_NONBLOCK);
    spans = open_spans(&options);
    for (int i = 0; i < 20000; i++) {
        add(spans, "a name of some length, so that it is soon full");
        if (i % 100 == 0) {
            fg_spans_flush(spans);
        }
    }
    fg_spans_stats_get(spans, &stats);
    cr_assert(stats.dropped > 0 && stats.added > 0);
    fg_spans_close(spans);
    /* What got through is whole up to the last line, which the end of the process cut. */
    static char text[1 << 17];
    ssize_t size = 0, got;
    while ((got = read(reader, text + size, sizeof text - 1 - (size_t)size)) > 0) {
        size += got;
    }
    char *line = text;
    for (char *end; (end = memchr(line, '\n', (size_t)(text + size - line))) != NULL;
         line = end + 1) {
        fg_json *json;
        cr_assert_eq(fg_json_parse(line, (size_t)(end - line), &json, &err), FG_OK, "%s", err.text);
        fg_json_destroy(json);
    }
    close(reader);
    drop_place(&p);
}

Test(spans, a_place_that_cannot_be_written_is_a_bad_start)
{
    fg_error err = { 0 };
    fg_spans *spans = NULL;
    fg_spans_options options = options_at("/nowhere/at/all.jsonl");
    cr_assert_eq(fg_spans_open(&options, &spans, &err), FG_BAD_INPUT);
    cr_assert_not_null(strstr(err.text, "/nowhere/at/all.jsonl"));
    cr_assert_null(spans);
}

Test(spans, the_sample_is_a_share)
{
    place p = make_place();
    static const double shares[] = { 0, 0.1, 1 };
    for (int i = 0; i < 3; i++) {
        fg_spans_options options = options_at(p.file);
        options.sample = shares[i];
        fg_spans *spans = open_spans(&options);
        int taken = 0;
        for (int j = 0; j < 10000; j++) {
            taken += fg_spans_sample(spans);
        }
        cr_assert(taken >= shares[i] * 10000 - 150 && taken <= shares[i] * 10000 + 150, "%d",
                  taken);
        fg_spans_close(spans);
    }
    drop_place(&p);
}

Test(spans, nobody_looking_costs_nothing)
{
    fg_spans_stats stats;
    fg_otlp_span span = { 0 };
    fg_spans_add(NULL, &span);
    fg_spans_flush(NULL);
    fg_spans_close(NULL);
    fg_spans_stats_get(NULL, &stats);
    cr_assert(fg_spans_draw(NULL) == 0 && !fg_spans_sample(NULL) && stats.added == 0);
}

static bool try_open(void *ctx)
{
    fg_error err;
    fg_spans *spans = NULL;
    fg_spans_options options = options_at(ctx);
    if (fg_spans_open(&options, &spans, &err) != FG_OK) {
        return false;
    }
    fg_spans_close(spans);
    return true;
}

Test(spans, every_allocation_may_fail)
{
    place p = make_place();
    cr_assert(fg_fault_each(try_open, p.folder) > 3);
    drop_place(&p);
}
