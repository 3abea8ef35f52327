#include "common/obs/trace.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/base/fault.h"
#include "common/base/json.h"
#include "tests/support/test.h"

enum { PID = 4711 };

/* What a reader sees: the parsed picture. */
typedef struct picture {
    fg_buf text;
    fg_json *json;
    const fg_json_node *events;
} picture;

static picture render(const fg_trace *trace)
{
    picture p = { 0 };
    fg_error err = { 0 };
    fg_buf_init(&p.text, 0);
    cr_assert(fg_trace_render(trace, PID, &p.text));
    cr_assert_eq(fg_json_parse(p.text.data, p.text.size, &p.json, &err), FG_OK, "%s in %s",
                 err.text, p.text.data);
    p.events = fg_json_get(fg_json_root(p.json), "traceEvents");
    cr_assert(fg_json_is(p.events, FG_JSON_ARRAY));
    return p;
}

static void end(picture *p)
{
    fg_json_destroy(p->json);
    fg_buf_deinit(&p->text);
}

static bool is(const fg_json_node *object, const char *key, const char *text)
{
    const char *have = fg_json_string(fg_json_get(object, key), NULL);
    return have != NULL && strcmp(have, text) == 0;
}

static double number(const fg_json_node *object, const char *key)
{
    double value = NAN;
    cr_assert(fg_json_number(fg_json_get(object, key), &value), "no number %s", key);
    return value;
}

static double arg(const fg_json_node *event, const char *key)
{
    return number(fg_json_get(event, "args"), key);
}

/* The index-th event of this phase and category or name (NULL: any); NULL when there is none. */
static const fg_json_node *find(const picture *p, const char *phase, const char *category,
                                const char *name, size_t index)
{
    for (size_t i = 0; i < fg_json_size(p->events); i++) {
        const fg_json_node *event = fg_json_at(p->events, i);
        if (is(event, "ph", phase) && (category == NULL || is(event, "cat", category)) &&
            (name == NULL || is(event, "name", name)) && index-- == 0) {
            return event;
        }
    }
    return NULL;
}

static size_t count(const picture *p, const char *phase, const char *category, const char *name)
{
    size_t n = 0;
    while (find(p, phase, category, name, n) != NULL) {
        n++;
    }
    return n;
}

/* What every event has: viewers drop those that lack one of these. */
static void check_shape(const picture *p)
{
    for (size_t i = 0; i < fg_json_size(p->events); i++) {
        const fg_json_node *event = fg_json_at(p->events, i);
        const char *phase = fg_json_string(fg_json_get(event, "ph"), NULL);
        cr_assert(phase != NULL && strlen(phase) == 1 && strchr("MXC", *phase) != NULL);
        cr_assert(fg_json_is(fg_json_get(event, "name"), FG_JSON_STRING));
        cr_assert(fg_json_is(fg_json_get(event, "args"), FG_JSON_OBJECT));
        cr_assert_eq(number(event, "pid"), PID);
        cr_assert(number(event, "tid") >= 0);
        cr_assert(*phase == 'M' || number(event, "ts") >= 0);
        cr_assert(*phase != 'X' || number(event, "dur") >= 0);
    }
}

static fg_trace_step step_at(uint64_t number_, uint64_t began_ns, uint64_t ended_ns)
{
    return (fg_trace_step){ .number = number_,
                            .planned_ns = began_ns,
                            .began_ns = began_ns,
                            .ended_ns = ended_ns,
                            .decode_rows = 1 };
}

Test(trace, an_empty_one_names_its_process)
{
    fg_trace *trace = fg_trace_create("decode-0", 4, 4);
    picture p = render(trace);
    check_shape(&p);
    cr_assert_eq(fg_json_size(p.events), 1u);
    const fg_json_node *name = find(&p, "M", NULL, "process_name", 0);
    cr_assert(is(fg_json_get(name, "args"), "name", "decode-0"));
    end(&p);
    fg_trace_destroy(trace);
}

/* Every number is another one. */
static const fg_trace_step full_step = {
    .number = 18446744073u,
    .planned_ns = 1000000001,
    .began_ns = 1000250002,
    .ended_ns = 1003000009,
    .decode_rows = 2,
    .chunks = 3,
    .prefill_tokens = 4,
    .copies = 5,
    .drafted = 17,
    .asked = 4,
    .draft_us = 977,
    .accepted = 18,
    .running = 6,
    .waiting = 7,
    .admitted = 8,
    .preempted = 9,
    .swapped = 10,
    .resumed = 11,
    .finished = 12,
    .blocks_total = 100,
    .blocks_free = 13,
    .blocks_cached = 14,
    .blocks_held = 15,
    .unused_slots = 16,
    .saved_blocks = UINT32_MAX,
};

Test(trace, a_step_shows_every_number)
{
    fg_trace *trace = fg_trace_create("w", 4, 4);
    fg_trace_add_step(trace, &full_step);
    picture p = render(trace);
    check_shape(&p);
    const fg_json_node *slice = find(&p, "X", "step", NULL, 0);
    cr_assert(is(slice, "name", "prefill+decode"));
    cr_assert_eq(number(slice, "ts"), 1000250.002);
    cr_assert_eq(number(slice, "dur"), 2750.007);
    const struct {
        const char *name;
        double value;
    } args[] = {
        { "number", 18446744073.0 },
        { "waited_us", 250.001 },
        { "booked_us", 2750.007 },
        { "decode_rows", 2 },
        { "chunks", 3 },
        { "prefill_tokens", 4 },
        { "copies", 5 },
        { "drafted", 17 },
        { "asked", 4 },
        { "draft_us", 977 },
        { "accepted", 18 },
        { "running", 6 },
        { "waiting", 7 },
        { "admitted", 8 },
        { "preempted", 9 },
        { "swapped", 10 },
        { "resumed", 11 },
        { "finished", 12 },
        { "blocks_total", 100 },
        { "blocks_free", 13 },
        { "blocks_cached", 14 },
        { "blocks_held", 15 },
        { "unused_slots", 16 },
        { "saved_blocks", 4294967295.0 },
    };
    for (size_t i = 0; i < sizeof args / sizeof *args; i++) {
        cr_assert_eq(arg(slice, args[i].name), args[i].value, "%s", args[i].name);
    }
    cr_assert_eq(fg_json_size(fg_json_get(slice, "args")), sizeof args / sizeof *args);
    end(&p);
    fg_trace_destroy(trace);
}

Test(trace, counters_show_blocks_batch_and_queue)
{
    fg_trace *trace = fg_trace_create("w", 4, 4);
    fg_trace_add_step(trace, &full_step);
    picture p = render(trace);
    const fg_json_node *blocks = find(&p, "C", NULL, "KV blocks", 0);
    cr_assert_eq(number(blocks, "ts"), 1003000.009);
    cr_assert_eq(arg(blocks, "free") + arg(blocks, "cached") + arg(blocks, "held") +
                     arg(blocks, "other"),
                 100);
    cr_assert_eq(arg(blocks, "other"), 100 - 13 - 14 - 15);
    const fg_json_node *requests = find(&p, "C", NULL, "requests", 0);
    cr_assert_eq(arg(requests, "running"), 6);
    cr_assert_eq(arg(requests, "waiting"), 7);
    const fg_json_node *batch = find(&p, "C", NULL, "batch", 0);
    cr_assert_eq(number(batch, "ts"), 1000250.002);
    cr_assert_eq(arg(batch, "decode rows"), 2);
    cr_assert_eq(arg(batch, "prefill tokens"), 4);
    end(&p);
    fg_trace_destroy(trace);
}

Test(trace, a_step_is_named_for_what_it_computed)
{
    static const struct {
        uint32_t decode_rows, chunks;
        const char *name;
    } rows[] = { { 3, 0, "decode" }, { 0, 2, "prefill" }, { 1, 1, "prefill+decode" } };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fg_trace *trace = fg_trace_create("w", 1, 0);
        fg_trace_step step = step_at(1, 10, 20);
        step.decode_rows = rows[i].decode_rows;
        step.chunks = rows[i].chunks;
        fg_trace_add_step(trace, &step);
        picture p = render(trace);
        cr_assert(is(find(&p, "X", "step", NULL, 0), "name", rows[i].name), "%s", rows[i].name);
        end(&p);
        fg_trace_destroy(trace);
    }
}

Test(trace, slices_of_steps_that_overlap_do_not)
{
    static const struct {
        const char *name;
        uint64_t began_ns, ended_ns, next_began_ns;
        double dur;
    } rows[] = {
        { "apart", 1000, 5000, 6000, 4.0 },
        { "booked while the next computes", 1000, 5000, 3500, 2.5 },
        { "touching", 1000, 5000, 5000, 4.0 },
        { "a clock that went back", 5000, 1000, 6000, 0.0 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fg_trace *trace = fg_trace_create("w", 4, 0);
        fg_trace_step first = step_at(1, rows[i].began_ns, rows[i].ended_ns);
        fg_trace_step next = step_at(2, rows[i].next_began_ns, rows[i].next_began_ns + 100);
        fg_trace_add_step(trace, &first);
        fg_trace_add_step(trace, &next);
        picture p = render(trace);
        check_shape(&p);
        cr_assert_eq(number(find(&p, "X", "step", NULL, 0), "dur"), rows[i].dur, "%s",
                     rows[i].name);
        end(&p);
        fg_trace_destroy(trace);
    }
}

Test(trace, the_batch_falls_to_zero_in_a_pause_only)
{
    fg_trace *trace = fg_trace_create("w", 4, 0);
    fg_trace_step steps[] = { step_at(1, 1000, 2000), step_at(2, 3000, 4000),
                              step_at(3, 50000000, 50001000) };
    for (size_t i = 0; i < 3; i++) {
        fg_trace_add_step(trace, &steps[i]);
    }
    picture p = render(trace);
    static const struct {
        double ts, rows;
    } want[] = { { 1, 1 }, { 3, 1 }, { 4, 0 }, { 50000, 1 }, { 50001, 0 } };
    cr_assert_eq(count(&p, "C", NULL, "batch"), 5u);
    for (size_t i = 0; i < 5; i++) {
        const fg_json_node *batch = find(&p, "C", NULL, "batch", i);
        cr_assert_eq(number(batch, "ts"), want[i].ts, "%zu", i);
        cr_assert_eq(arg(batch, "decode rows"), want[i].rows, "%zu", i);
    }
    end(&p);
    fg_trace_destroy(trace);
}

Test(trace, a_request_has_one_row_with_its_stretches)
{
    fg_trace *trace = fg_trace_create("router", 0, 8);
    const fg_trace_span spans[] = {
        { .request = 0xABCDEF0123456789u, .state = "queued", .began_ns = 1000, .ended_ns = 2500 },
        { .request = 7, .state = "queued", .began_ns = 1100, .ended_ns = 1200 },
        { .request = 0xABCDEF0123456789u,
          .attempt = 2,
          .state = "decoding",
          .began_ns = 2500,
          .ended_ns = 9001,
          .tokens = 33 },
    };
    for (size_t i = 0; i < 3; i++) {
        fg_trace_add_span(trace, &spans[i]);
    }
    picture p = render(trace);
    check_shape(&p);
    cr_assert_eq(count(&p, "X", "request", NULL), 3u);
    cr_assert_eq(count(&p, "M", NULL, "thread_name"), 2u, "one name for each row");
    const fg_json_node *queued = find(&p, "X", "request", NULL, 0);
    const fg_json_node *foreign = find(&p, "X", "request", NULL, 1);
    const fg_json_node *decoding = find(&p, "X", "request", "decoding", 0);
    const fg_json_node *row = find(&p, "M", NULL, "thread_name", 0);
    cr_assert_eq(number(queued, "tid"), number(decoding, "tid"));
    cr_assert_neq(number(queued, "tid"), number(foreign, "tid"));
    cr_assert_eq(number(queued, "tid"), number(row, "tid"));
    cr_assert(is(fg_json_get(row, "args"), "name", "req=abcdef0123456789"));
    cr_assert_eq(number(decoding, "ts"), 2.5);
    cr_assert_eq(number(decoding, "dur"), 6.501);
    cr_assert_eq(arg(decoding, "attempt"), 2);
    cr_assert_eq(arg(decoding, "tokens"), 33);
    cr_assert(is(fg_json_get(decoding, "args"), "request", "abcdef0123456789"));
    end(&p);
    /* A second picture begins anew. */
    p = render(trace);
    cr_assert_eq(count(&p, "M", NULL, "thread_name"), 2u);
    end(&p);
    fg_trace_destroy(trace);
}

Test(trace, full_rings_keep_the_newest)
{
    static const uint32_t sizes[] = { 1, 2, 3, 5, 16 };
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
        uint32_t max = sizes[s];
        fg_trace *trace = fg_trace_create("w", max, max);
        for (uint64_t added = 1; added <= 3 * max + 1; added++) {
            fg_trace_step step = step_at(added, added * 1000, added * 1000 + 10);
            fg_trace_span span = { .request = added, .state = "x", .began_ns = added * 1000 };
            fg_trace_add_step(trace, &step);
            fg_trace_add_span(trace, &span);
            picture p = render(trace);
            uint64_t have = added < max ? added : max;
            cr_assert_eq(count(&p, "X", "step", NULL), have);
            cr_assert_eq(count(&p, "X", "request", NULL), have);
            for (uint64_t i = 0; i < have; i++) {
                cr_assert_eq(arg(find(&p, "X", "step", NULL, i), "number"),
                             (double)(added - have + 1 + i), "oldest first");
                cr_assert_eq(number(find(&p, "X", "request", NULL, i), "ts"),
                             (double)(added - have + 1 + i));
            }
            end(&p);
        }
        fg_trace_destroy(trace);
    }
}

Test(trace, rings_without_places_take_nothing)
{
    fg_trace *trace = fg_trace_create("w", 0, 0);
    fg_trace_step step = step_at(1, 1, 2);
    fg_trace_span span = { .request = 1, .state = "x" };
    fg_trace_add_step(trace, &step);
    fg_trace_add_span(trace, &span);
    picture p = render(trace);
    cr_assert_eq(fg_json_size(p.events), 1u);
    end(&p);
    fg_trace_destroy(trace);
}

Test(trace, no_trace_is_a_quiet_one)
{
    fg_trace_step step = step_at(1, 1, 2);
    fg_trace_span span = { .request = 1, .state = "x" };
    fg_trace_add_step(NULL, &step);
    fg_trace_add_span(NULL, &span);
    picture p = render(NULL);
    cr_assert_eq(fg_json_size(p.events), 0u);
    end(&p);
    fg_trace_destroy(NULL);
}

Test(trace, any_process_name_is_valid_json)
{
    static const struct {
        const char *given, *shown;
    } rows[] = {
        { "", "" },
        { "a \"b\" \\ c", "a \"b\" \\ c" },
        { "tab\tline\nend\x01", "tab\tline\nend\x01" },
        { "gr\xC3\xBC\xC3\x9F", "gr\xC3\xBC\xC3\x9F" },
        { "bad\xFFutf", "bad\xEF\xBF\xBDutf" },
        { "\"}}]}", "\"}}]}" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fg_trace *trace = fg_trace_create(rows[i].given, 1, 1);
        fg_trace_add_span(trace, &(fg_trace_span){ .request = 1, .state = rows[i].given });
        picture p = render(trace);
        const fg_json_node *name = find(&p, "M", NULL, "process_name", 0);
        cr_assert(is(fg_json_get(name, "args"), "name", rows[i].shown), "row %zu", i);
        cr_assert(is(find(&p, "X", "request", NULL, 0), "name", rows[i].shown), "row %zu", i);
        end(&p);
        fg_trace_destroy(trace);
    }
}

Test(trace, a_full_buffer_is_false)
{
    fg_trace *trace = fg_trace_create("w", 1, 1);
    fg_buf out;
    fg_buf_init(&out, 40);
    cr_assert(!fg_trace_render(trace, PID, &out));
    fg_buf_deinit(&out);
    fg_trace_destroy(trace);
}

static bool build(void *ctx)
{
    fg_trace *trace = fg_trace_create("w", 3, 3);
    bool made = trace != NULL;
    fg_trace_destroy(trace);
    return made;
}

Test(trace, survives_every_failed_allocation)
{
    cr_assert_eq(fg_fault_each(build, NULL), 5);
}

static bool draw(void *ctx)
{
    fg_buf out;
    fg_buf_init(&out, 0);
    bool drawn = fg_trace_render(ctx, PID, &out);
    fg_buf_deinit(&out);
    return drawn;
}

Test(trace, adding_allocates_nothing_and_drawing_may_fail)
{
    fg_trace *trace = fg_trace_create("w", 3, 3);
    fg_fault_arm(1);
    for (uint64_t i = 0; i < 10; i++) {
        fg_trace_step step = step_at(i, i, i + 1);
        fg_trace_span span = { .request = i, .state = "x" };
        fg_trace_add_step(trace, &step);
        fg_trace_add_span(trace, &span);
    }
    cr_assert(!fg_fault_fired());
    fg_fault_arm(0);
    cr_assert(fg_fault_each(draw, trace) > 1);
    fg_trace_destroy(trace);
}
