#include "tests/sim/fleet.h"

#include <stdio.h>
#include <string.h>

#include "common/base/fault.h"
#include "common/base/json.h"
#include "common/base/log.h"
#include "tests/sim/fleet_internal.h"
#include "tests/sim/fleet_report.h"
#include "tests/support/test.h"

#define MS 1000000ull

static const fg_steptable steps = { .name = "test",
                                    .prefill_base = 2e6,
                                    .prefill_token = 20000,
                                    .decode_base = 5e6,
                                    .decode_row = 10000,
                                    .push_token = 1000,
                                    .message = 50000,
                                    .kv_token_bytes = 1000 };
static const fg_fleet_slo slo = { .ttft_ms = 1000, .itl_ms = 50 };

static fg_fleet_setup setup_of(uint32_t prefill, uint32_t decode, uint32_t both)
{
    return (fg_fleet_setup){ .workers = { prefill, decode, both },
                             .kv_blocks = 2000,
                             .block_size = 16,
                             .max_seqs = 16,
                             .prefill_chunk_size = 512,
                             .max_batch_tokens = 2048,
                             .step_ms = 100,
                             .local_prefill_tokens = 128,
                             .queue_limit = 16,
                             .split = FG_PLACE_ALWAYS,
                             .residency_mb = 1,
                             .prefix_cache = true,
                             .overlap = true };
}

static fg_fleet_result *run(const fg_fleet_setup *setup, const fg_workload *w, uint64_t seed)
{
    fg_fleet_options options = {
        .setup = *setup, .workload = w, .steps = &steps, .speedup = 1, .seed = seed
    };
    fg_fleet_result *result = NULL;
    fg_error err = { 0 };
    fg_log_set_level(FG_LOG_OFF);
    cr_assert_eq(fg_fleet_run(&options, &result, &err), FG_OK, "%s", err.text);
    return result;
}

static fg_workload workload_of(const char *text)
{
    fg_workload w;
    fg_error err = { 0 };
    cr_assert_eq(fg_workload_parse(text, strlen(text), 1000, &w, &err), FG_OK, "%s", err.text);
    return w;
}

static fg_workload tiny(void)
{
    fg_workload w;
    fg_error err = { 0 };
    cr_assert_eq(fg_workload_read(SIM_DATA "/tiny.jsonl", 1000, &w, &err), FG_OK, "%s", err.text);
    return w;
}

/* What waits for a timer waits for 10 ms at the most. */
Test(fleet, one_request_alone_takes_what_the_table_says)
{
    static const struct {
        uint32_t prefill, decode, both;
        uint64_t messages; /* before the first token */
    } cases[] = { { 0, 0, 1, 2 }, { 1, 1, 0, 4 } };
    fg_workload w = workload_of("0,1000,11\n");
    for (size_t i = 0; i < 2; i++) {
        fg_fleet_setup setup = setup_of(cases[i].prefill, cases[i].decode, cases[i].both);
        fg_fleet_result *r = run(&setup, &w, 1);
        const fg_fleet_row *row = &r->rows[0];
        uint64_t compute_ns = 2 * 2 * MS + 1000 * 20000ull;
        uint64_t want_ns = compute_ns + cases[i].messages * 50000;
        cr_assert(row->ttft_ns >= want_ns && row->ttft_ns < want_ns + 10 * MS, "%llu",
                  (unsigned long long)row->ttft_ns);
        cr_assert_eq(fg_tally_quantile(&r->gaps, 0.5) / 100000, 50, "5.0 ms a token");
        cr_assert_eq(row->output_tokens, 11);
        cr_assert_eq(r->gaps.count, 10);
        cr_assert_eq(r->pushed_blocks, cases[i].both ? 0 : 63);
        cr_assert(row->e2e_ns >= row->ttft_ns + 10 * 5010000ull);
        fg_fleet_result_free(r);
    }
    fg_workload_free(&w);
}

Test(fleet, nothing_is_lost_and_nothing_counted_twice)
{
    static const uint32_t shapes[][3] = {
        { 0, 0, 1 }, { 0, 0, 3 }, { 1, 1, 0 }, { 2, 3, 0 }, { 1, 1, 1 }
    };
    fg_workload w = tiny();
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        fg_fleet_setup setup = setup_of(shapes[i][0], shapes[i][1], shapes[i][2]);
        fg_fleet_result *r = run(&setup, &w, 3);
        uint64_t gap_sum_ns = 0, outputs = 0;
        cr_assert_eq(r->counts[FG_FLEET_FINISHED], w.count, "shape %zu", i);
        for (uint32_t k = 0; k < w.count; k++) {
            const fg_fleet_row *row = &r->rows[k];
            cr_assert_eq(row->output_tokens, w.requests[k].output_tokens);
            cr_assert_eq(row->arrival_ns, w.requests[k].arrival_ns);
            cr_assert(row->cached_tokens < w.requests[k].prompt_tokens);
            cr_assert(row->ttft_ns > 0 && row->ttft_ns + row->gap_sum_ns <= row->e2e_ns);
            gap_sum_ns += row->gap_sum_ns;
            outputs += row->output_tokens;
        }
        cr_assert_eq(r->gaps.count, w.output_tokens - w.count);
        cr_assert((uint64_t)r->gaps.sum == gap_sum_ns);
        cr_assert(outputs == w.output_tokens && r->output_tokens == outputs);
        cr_assert_eq(r->prompt_tokens, w.prompt_tokens);
        cr_assert(r->known_blocks > 0 && r->known_wrong == 0, "shape %zu", i);
        cr_assert_eq(r->placed, w.count);
        cr_assert(shapes[i][2] > 0 || r->placed_split == w.count);
        if (shapes[i][2] == 1 && shapes[i][0] == 0) {
            cr_assert_eq(r->computed_tokens + r->cached_tokens, w.prompt_tokens);
            cr_assert(r->cached_tokens > 3000 && r->cached_tokens <= w.known_tokens);
        }
        for (int role = 0; role < FG_FLEET_ROLES; role++) {
            cr_assert((r->busy[role] > 0) == (shapes[i][role] > 0) || shapes[i][2] == 1);
            cr_assert(r->busy[role] <= 1);
        }
        fg_fleet_result_free(r);
    }
    fg_workload_free(&w);
}

static void render_all(const fg_fleet_result *result, const fg_workload *w, fg_buf *out)
{
    fg_error err = { 0 };
    fg_fleet_run_report report = { .label = "a<b", .result = result };
    cr_assert_eq(fg_fleet_summarise(result, w, &steps, &slo, &report.summary, &err), FG_OK);
    cr_assert(fg_fleet_render_table(&report, 1, &slo, out));
    cr_assert(fg_fleet_render_json(&report, 1, "\"x\":1,", out));
    cr_assert(fg_fleet_render_csv(&report, 1, w, out));
    cr_assert(fg_fleet_render_terminal(&report, out));
    cr_assert(fg_fleet_render_svg(&report, 1, out));
}

/* Every pair of policy and mode serves the same requests, on workers that can do both whatever they are
 * meant for. */
Test(fleet, every_policy_serves_everything)
{
    static const uint32_t shapes[][3] = { { 0, 0, 2 }, { 1, 2, 0 }, { 1, 1, 1 } };
    fg_workload w = tiny();
    for (uint32_t routing = FG_PLACE_COST; routing <= FG_PLACE_TWO_CHOICES; routing++) {
        for (uint32_t split = FG_PLACE_AUTO; split <= FG_PLACE_UNSPLIT; split++) {
            for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
                fg_fleet_setup setup = setup_of(shapes[i][0], shapes[i][1], shapes[i][2]);
                setup.routing = routing;
                setup.split = split;
                fg_fleet_result *r = run(&setup, &w, 3);
                uint64_t rows_split = 0;
                for (uint32_t k = 0; k < w.count; k++) {
                    cr_assert(r->rows[k].predicted_ns > 0);
                    rows_split += r->rows[k].split;
                }
                cr_assert_eq(r->counts[FG_FLEET_FINISHED], w.count);
                cr_assert_eq(r->known_wrong, 0);
                cr_assert_eq(rows_split, r->placed_split);
                cr_assert(split != FG_PLACE_UNSPLIT || (rows_split == 0 && r->pushed_blocks == 0));
                cr_assert((rows_split == 0) == (r->pushed_blocks == 0));
                fg_fleet_result_free(r);
            }
        }
    }
    fg_workload_free(&w);
}

Test(fleet, a_shared_prefix_is_found_by_cost_and_missed_in_turns)
{
    fg_workload w;
    fg_error err = { 0 };
    cr_assert_eq(fg_workload_draw("requests=120,rate=20,prefixes=8,prefix-tokens=2048,zipf=0,"
                                  "tail-tokens=32,answer-tokens=8",
                                  1, &w, &err),
                 FG_OK, "%s", err.text);
    uint64_t found[2];
    for (uint32_t i = 0; i < 2; i++) {
        fg_fleet_setup setup = setup_of(0, 0, 4);
        setup.kv_blocks = 500; /* three prefixes */
        setup.routing = i == 0 ? FG_PLACE_COST : FG_PLACE_ROUND_ROBIN;
        fg_fleet_result *r = run(&setup, &w, 1);
        cr_assert_eq(r->counts[FG_FLEET_FINISHED], w.count);
        found[i] = r->hit_blocks_found;
        fg_fleet_result_free(r);
    }
    cr_assert(found[0] > 2 * found[1], "%llu, %llu", (unsigned long long)found[0],
              (unsigned long long)found[1]);
    fg_workload_free(&w);
}

Test(fleet, a_slow_worker_is_slower_than_it_says)
{
    fg_workload w = workload_of("0,1000,11\n");
    fg_fleet_setup setup = setup_of(0, 0, 1);
    fg_fleet_result *fine = run(&setup, &w, 1);
    setup.slow = 1;
    setup.slow_percent = 300;
    fg_fleet_result *slow = run(&setup, &w, 1);
    cr_assert_eq(slow->rows[0].predicted_ns, fine->rows[0].predicted_ns);
    cr_assert(slow->rows[0].ttft_ns > 2 * fine->rows[0].ttft_ns);
    fg_fleet_result_free(fine);
    fg_fleet_result_free(slow);
    fg_workload_free(&w);
}

/* Prompts that are computed by one step share its time: a worker is not slow because it does eight at once,
 * and so those who come one at a time are not predicted to take eight times as long. */
Test(fleet, prompts_side_by_side_are_not_each_taken_for_the_whole_step)
{
    char text[20000];
    size_t used = 0;
    for (uint32_t burst = 0; burst < 40; burst++) {
        for (uint32_t i = 0; i < 8; i++) {
            used += (size_t)snprintf(text + used, sizeof text - used, "%u,%u,2\n", burst, 250 + i);
        }
    }
    fg_workload w = workload_of(text);
    fg_fleet_setup setup = setup_of(1, 1, 0);
    fg_fleet_options options = {
        .setup = setup, .workload = &w, .steps = &steps, .speedup = 1, .seed = 1
    };
    static fg_fleet fleet;
    fg_error err = { 0 };
    fg_log_set_level(FG_LOG_OFF);
    cr_assert_eq(fg_fleet_open(&options, &fleet, &err), FG_OK, "%s", err.text);
    while (fleet.ended < w.count) {
        cr_assert(fg_timeline_step(&fleet.timeline));
    }
    const fg_reg_worker *p = fg_registry_by_name(fg_dispatch_registry(fleet.dispatch), "w0");
    double ns = fg_speed_prefill_ns(&p->pace, 0, 250);
    cr_assert(ns > 4e6 && ns < 9e6, "7 ms alone, 5 ms beside six others, not %g", ns);
    fg_fleet_close(&fleet);
    fg_workload_free(&w);
}

/* The first result lives on, so that the second run has other addresses. */
Test(fleet, equal_runs_give_equal_bytes)
{
    fg_workload w = tiny();
    fg_fleet_setup setup = setup_of(1, 2, 0);
    fg_fleet_result *results[3];
    fg_buf texts[3];
    for (int i = 0; i < 3; i++) {
        results[i] = run(&setup, &w, i == 2 ? 9 : 5);
        fg_buf_init(&texts[i], 0);
        render_all(results[i], &w, &texts[i]);
    }
    cr_assert_eq(texts[0].size, texts[1].size);
    cr_assert(memcmp(texts[0].data, texts[1].data, texts[0].size) == 0);
    cr_assert_eq(results[0]->events, results[1]->events);
    cr_assert(memcmp(results[0]->rows, results[1]->rows, w.count * sizeof(fg_fleet_row)) == 0);
    cr_assert(strstr(texts[2].data, "nan") == NULL && strstr(texts[2].data, "inf") == NULL);
    for (int i = 0; i < 3; i++) {
        fg_buf_deinit(&texts[i]);
        fg_fleet_result_free(results[i]);
    }
    fg_workload_free(&w);
}

Test(fleet, summary_is_the_sum_of_its_rows)
{
    fg_workload w = tiny();
    fg_fleet_setup setup = setup_of(0, 0, 1);
    fg_fleet_result *r = run(&setup, &w, 1);
    fg_fleet_run_report report = { .label = "one", .result = r };
    fg_error err;
    fg_buf text;
    fg_json *json;
    fg_fleet_slo none = { 0 }, hard = { .ttft_ms = 0.001 };
    cr_assert_eq(fg_fleet_summarise(r, &w, &steps, &hard, &report.summary, &err), FG_OK);
    cr_assert(report.summary.good_share == 0);
    cr_assert_eq(fg_fleet_summarise(r, &w, &steps, &none, &report.summary, &err), FG_OK);
    cr_assert(report.summary.good_share == 1 && report.summary.finished == 8);
    cr_assert(report.summary.ttft[0] <= report.summary.ttft[1] &&
              report.summary.ttft[1] <= report.summary.ttft[2]);
    cr_assert(report.summary.busy[FG_FLEET_PREFILL] < 0 && report.summary.busy[FG_FLEET_BOTH] > 0);
    fg_buf_init(&text, 0);
    cr_assert(fg_fleet_render_json(&report, 1, "", &text));
    cr_assert_eq(fg_json_parse(text.data, text.size, &json, &err), FG_OK, "%s", err.text);
    fg_json_destroy(json);
    fg_buf_deinit(&text);
    fg_fleet_result_free(r);
    fg_workload_free(&w);
}

Test(fleet, what_no_worker_can_hold_is_refused_and_so_is_a_full_queue)
{
    fg_workload w =
        workload_of("0,40000,5\n0,100,5\n0,100,5\n0,100,5\n0,100,5\n0,100,5\n0,100,5\n");
    fg_fleet_setup setup = setup_of(1, 1, 0);
    setup.max_seqs = 1;
    setup.queue_limit = 2;
    fg_fleet_result *r = run(&setup, &w, 1);
    cr_assert_eq(r->rows[0].outcome, FG_FLEET_TOO_LONG);
    cr_assert_eq(r->counts[FG_FLEET_TOO_LONG], 1);
    cr_assert(r->counts[FG_FLEET_FULL] > 0 && r->counts[FG_FLEET_FINISHED] > 0);
    cr_assert_eq(r->counts[FG_FLEET_FULL] + r->counts[FG_FLEET_FINISHED], 6);
    cr_assert_eq(r->queue_peak, 2);
    fg_fleet_result_free(r);
    fg_workload_free(&w);
}

Test(fleet, impossible_clusters_are_refused)
{
    static const struct {
        uint32_t prefill, decode, both;
        const char *want;
    } cases[] = {
        { 0, 0, 0, "--both" },
        { 3, 0, 0, "--decode" },
        { 0, 3, 0, "--prefill" },
        { 200, 100, 0, "300 workers; a router takes 256" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fg_fleet_setup setup = setup_of(cases[i].prefill, cases[i].decode, cases[i].both);
        fg_error err = { 0 };
        cr_assert_eq(fg_fleet_check(&setup, &err), FG_BAD_INPUT);
        cr_assert(strstr(err.text, cases[i].want) != NULL, "%s", err.text);
    }
    fg_fleet_setup setup = setup_of(0, 0, 1);
    setup.block_size = 12;
    fg_error err = { 0 };
    cr_assert_eq(fg_fleet_check(&setup, &err), FG_BAD_INPUT);
    cr_assert_eq(fg_fleet_check(&(fg_fleet_setup){ .workers = { 0, 0, 1 } }, &err), FG_BAD_INPUT);
}

/* Closing takes memory too, and news of a bus in memory must not fail: only opening is tried. */
Test(fleet, opening_survives_every_failed_allocation)
{
    fg_workload w = { .requests = &(fg_workload_request){ .prompt_tokens = 9, .output_tokens = 1 },
                      .count = 1 };
    fg_fleet_options options = {
        .setup = setup_of(1, 1, 1), .workload = &w, .steps = &steps, .speedup = 1
    };
    static fg_fleet fleet;
    bool fired = true;
    uint64_t nth = 0;
    fg_log_set_level(FG_LOG_OFF);
    while (fired) {
        fg_error err = { 0 };
        fg_fault_arm(++nth);
        fg_status status = fg_fleet_open(&options, &fleet, &err);
        fired = fg_fault_fired();
        fg_fault_arm(0);
        cr_assert_eq(status, fired ? FG_AGAIN : FG_OK, "%llu: %s", (unsigned long long)nth,
                     err.text);
        if (status == FG_OK) {
            fg_fleet_close(&fleet);
        }
    }
    cr_assert(nth > 30, "%llu", (unsigned long long)nth);
}
