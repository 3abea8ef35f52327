#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/obs/spans.h"
#include "tests/support/test.h"
#include "tests/unit/common/worker/rig.h"

static char text[1 << 16];

static fg_spans *open_spans(char *path)
{
    fg_error err = { 0 };
    fg_spans *spans = NULL;
    close(mkstemp(path));
    fg_spans_options options = { .path = path,
                                 .file_bytes_max = 1u << 24,
                                 .process = { .instance = "w", .role = "decode" },
                                 .rng = { .state = 3 } };
    cr_assert_eq(fg_spans_open(&options, &spans, &err), FG_OK, "%s", err.text);
    return spans;
}

static void read_spans(fg_spans *spans, const char *path)
{
    fg_spans_close(spans);
    FILE *file = fopen(path, "r");
    cr_assert_not_null(file);
    size_t size = fread(text, 1, sizeof text - 1, file);
    text[size] = '\0';
    fclose(file);
    unlink(path);
}

static uint32_t count_of(const char *word)
{
    uint32_t count = 0;
    for (const char *at = text; (at = strstr(at, word)) != NULL; at++) {
        count++;
    }
    return count;
}

/* Runs what was sent to its end; every step takes a millisecond. */
static void run_slowly(rig *r)
{
    for (int i = 0; i < 1000; i++) {
        r->now_ns += 1000000;
        if (!rig_step(r)) {
            return;
        }
    }
}

static void send(rig *r, uint64_t id, uint32_t prompt, uint32_t max_tokens, bool traced)
{
    uint32_t tokens[64];
    fg_wire_params params = rig_greedy(max_tokens);
    for (uint32_t i = 0; i < prompt; i++) {
        tokens[i] = (uint32_t)(id * 7 + i) % RIG_VOCAB;
    }
    if (traced) {
        params.trace_low = 0xabc;
        params.trace_span = 0x1234;
    }
    rig_send(r, id, tokens, prompt, &params);
}

Test(worker_spans, a_request_waits_computes_and_answers)
{
    rig r;
    char path[] = "/tmp/forge-worker-spans-XXXXXX";
    fg_spans *spans = open_spans(path);
    rig_open(&r, &(rig_options){ .blocks = 64, .block_size = 4, .seqs = 1, .spans = spans });
    send(&r, 1, 9, 5, true);
    send(&r, 2, 9, 5, false); /* not traced: nothing of it */
    send(&r, 3, 9, 1, true);  /* waits, and its first token is its last */
    run_slowly(&r);
    rig_close(&r);
    read_spans(spans, path);
    cr_assert_eq(count_of("\"worker.compute\""), 2u, "%s", text);
    cr_assert_eq(count_of("\"worker.decode\""), 1u, "%s", text);
    cr_assert(count_of("\"worker.queue\"") >= 1u, "%s", text);
    cr_assert_eq(count_of("\"spanId\""),
                 count_of("\"traceId\":\"00000000000000000000000000000abc\""));
    cr_assert_eq(count_of("\"spanId\""), count_of("\"parentSpanId\":\"0000000000001234\""));
}

Test(worker_spans, a_preempted_request_shows_it)
{
    rig r;
    char path[] = "/tmp/forge-worker-spans-XXXXXX";
    fg_spans *spans = open_spans(path);
    rig_open(&r, &(rig_options){ .blocks = 12, .block_size = 4, .seqs = 4, .spans = spans });
    for (uint64_t id = 1; id <= 4; id++) {
        send(&r, id, 8, 20, true);
    }
    run_slowly(&r);
    fg_worker_stats stats = rig_stats(&r);
    rig_close(&r);
    read_spans(spans, path);
    cr_assert(stats.preemptions > 0, "nothing was preempted");
    cr_assert_eq(count_of("\"worker.preempted\""), (uint32_t)stats.preemptions, "%s", text);
}

Test(worker_spans, a_cancelled_request_ends_its_span)
{
    rig r;
    char path[] = "/tmp/forge-worker-spans-XXXXXX";
    fg_spans *spans = open_spans(path);
    rig_open(&r, &(rig_options){ .blocks = 64, .block_size = 4, .spans = spans });
    send(&r, 1, 9, 50, true);
    rig_run_until_started(&r, 1);
    r.now_ns += 1000000;
    rig_step(&r);
    rig_cancel(&r, 1);
    rig_run(&r);
    rig_close(&r);
    read_spans(spans, path);
    cr_assert_eq(count_of("\"worker.decode\""), 1u, "%s", text);
}
