#include "cli/trace_merge.h"

#include <string.h>

#include "common/base/fault.h"
#include "common/base/json.h"
#include "tests/support/test.h"

#define TRACE(events) "{\"traceEvents\":[" events "]}"
#define STEP(pid)     "{\"ph\":\"X\",\"pid\":" pid ",\"tid\":1,\"name\":\"s\",\"ts\":12.345,\"dur\":1}"

static fg_status add(fg_trace_merge *merge, const char *label, const char *text, fg_error *err)
{
    return fg_trace_merge_add(merge, label, text, strlen(text), err);
}

static fg_json *render(fg_trace_merge *merge)
{
    fg_buf out;
    fg_json *json = NULL;
    fg_error err = { 0 };
    fg_buf_init(&out, 0);
    cr_assert(fg_trace_merge_render(merge, &out));
    cr_assert_eq(fg_json_parse(out.data, out.size, &json, &err), FG_OK, "%s: %s", err.text,
                 out.data);
    fg_buf_deinit(&out);
    return json;
}

/* The process of the index-th event with this phase; -1 when there is none. */
static int64_t process_of(const fg_json *json, const char *phase, size_t index)
{
    const fg_json_node *events = fg_json_get(fg_json_root(json), "traceEvents");
    for (size_t i = 0; i < fg_json_size(events); i++) {
        const fg_json_node *event = fg_json_at(events, i);
        int64_t pid = -1;
        if (strcmp(fg_json_string(fg_json_get(event, "ph"), NULL), phase) == 0 && index-- == 0) {
            fg_json_integer(fg_json_get(event, "pid"), &pid);
            return pid;
        }
    }
    return -1;
}

Test(trace_merge, events_of_all_are_there)
{
    fg_trace_merge *merge = fg_trace_merge_create();
    fg_error err = { 0 };
    cr_assert_eq(add(merge, "http://a", TRACE(STEP("10") "," STEP("11")), &err), FG_OK, "%s",
                 err.text);
    cr_assert_eq(add(merge, "http://\"b\"", TRACE(STEP("12")), &err), FG_OK, "%s", err.text);
    cr_assert_eq(add(merge, "http://idle", TRACE(""), &err), FG_OK, "%s", err.text);
    fg_json *json = render(merge);
    const fg_json_node *events = fg_json_get(fg_json_root(json), "traceEvents");
    cr_assert_eq(fg_json_size(events), 6u, "three steps, and a label for each process");
    for (size_t i = 0; i < 3; i++) {
        cr_assert_eq(process_of(json, "X", i), (int64_t)(10 + i));
        cr_assert_eq(process_of(json, "M", i), (int64_t)(10 + i));
    }
    double ts = 0;
    fg_json_number(fg_json_get(fg_json_at(events, 1), "ts"), &ts);
    cr_assert_eq(ts, 12.345);
    fg_json_destroy(json);
    fg_trace_merge_destroy(merge);
}

Test(trace_merge, equal_numbers_of_different_hosts_are_parted)
{
    fg_trace_merge *merge = fg_trace_merge_create();
    fg_error err = { 0 };
    for (int i = 0; i < 3; i++) {
        cr_assert_eq(add(merge, "http://x", TRACE(STEP("1") "," STEP("1") "," STEP("2")), &err),
                     FG_OK, "%s", err.text);
    }
    fg_json *json = render(merge);
    for (size_t i = 0; i < 3; i++) {
        int64_t first = process_of(json, "X", 3 * i);
        int64_t other = process_of(json, "X", 3 * i + 2);
        cr_assert_eq(process_of(json, "X", 3 * i + 1), first, "one process stays one");
        cr_assert_neq(first, other);
        for (size_t k = 0; k < i; k++) {
            cr_assert_neq(process_of(json, "X", 3 * k), first);
            cr_assert_neq(process_of(json, "X", 3 * k + 2), first);
            cr_assert_neq(process_of(json, "X", 3 * k + 2), other);
        }
    }
    cr_assert_eq(process_of(json, "X", 0), 1);
    fg_json_destroy(json);
    fg_trace_merge_destroy(merge);
}

Test(trace_merge, refuses_what_is_no_trace_and_stays_whole)
{
    static const struct {
        const char *text, *words;
    } rows[] = {
        { "", "no JSON" },
        { "<html>", "no JSON" },
        { "{\"traceEvents\":[", "no JSON" },
        { "[]", "no trace" },
        { "{\"status\":\"ok\"}", "no trace" },
        { "{\"traceEvents\":{}}", "no trace" },
        { TRACE(STEP("1") ",3"), "no event" },
        { TRACE(STEP("1") ",{}"), "no event" },
        { TRACE(STEP("7") ",{\"ph\":\"X\",\"pid\":\"x\"}"), "no process" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fg_trace_merge *merge = fg_trace_merge_create();
        fg_error err = { 0 };
        cr_assert_eq(add(merge, "a", TRACE(STEP("7")), &err), FG_OK);
        cr_assert_eq(add(merge, "b", rows[i].text, &err), FG_BAD_INPUT, "row %zu", i);
        cr_assert_not_null(strstr(err.text, rows[i].words), "row %zu: %s", i, err.text);
        cr_assert_eq(add(merge, "c", TRACE(STEP("8")), &err), FG_OK);
        fg_json *json = render(merge);
        cr_assert_eq(fg_json_size(fg_json_get(fg_json_root(json), "traceEvents")), 4u, "row %zu",
                     i);
        fg_json_destroy(json);
        fg_trace_merge_destroy(merge);
    }
}

Test(trace_merge, nothing_is_a_picture_too)
{
    fg_trace_merge *merge = fg_trace_merge_create();
    fg_json *json = render(merge);
    cr_assert_eq(fg_json_size(fg_json_get(fg_json_root(json), "traceEvents")), 0u);
    fg_json_destroy(json);
    fg_trace_merge_destroy(merge);
    fg_trace_merge_destroy(NULL);
}

static bool merge_two(void *ctx)
{
    fg_trace_merge *merge = fg_trace_merge_create();
    if (merge == NULL) {
        return false;
    }
    fg_buf out;
    fg_buf_init(&out, 0);
    bool fine = add(merge, "a", TRACE(STEP("7")), NULL) == FG_OK &&
                add(merge, "b", TRACE(STEP("7")), NULL) == FG_OK &&
                fg_trace_merge_render(merge, &out);
    fg_buf_deinit(&out);
    fg_trace_merge_destroy(merge);
    return fine;
}

Test(trace_merge, survives_every_failed_allocation)
{
    cr_assert(fg_fault_each(merge_two, NULL) > 5);
}
