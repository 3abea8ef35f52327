/*
 * fleet_report - what a run of a fleet comes to: a summary, a table of several runs side by side, JSON, CSV
 * and pictures. Pure: results go in, text comes out; equal results give equal bytes.
 */
#ifndef FORGE_TESTS_SIM_FLEET_REPORT_H
#define FORGE_TESTS_SIM_FLEET_REPORT_H

#include "common/base/buf.h"
#include "tests/sim/fleet.h"

/* What a client would call good: the first token within ttft, and the mean time from token to token within
 * itl. 0: not asked for. */
typedef struct fg_fleet_slo {
    double ttft_ms, itl_ms;
} fg_fleet_slo;

enum { FG_FLEET_QUANTILES = 3 }; /* 50, 90, 99 % */

/* Seconds, shares of 1 and counts. Latencies are those of finished requests; a refused one is never good. */
typedef struct fg_fleet_summary {
    double requests, finished, full, too_long, nobody, failed;
    double ttft[FG_FLEET_QUANTILES], e2e[FG_FLEET_QUANTILES], queued[FG_FLEET_QUANTILES];
    double itl[FG_FLEET_QUANTILES]; /* from token to token, over all tokens */
    double
        tpot[FG_FLEET_QUANTILES]; /* a request's mean of it, over requests of two tokens and more */
    double good_share, good_rate;
    double prompt_rate, output_rate; /* tokens a second, over the span */
    double hit_rate,
        hit_rate_most; /* of prompt tokens; what a cache without end would have found */
    double preemptions, evictions, retried, pushed_bytes;
    double busy[FG_FLEET_ROLES]; /* negative: no such worker */
    double queue_peak, span_s;
    double ttft_mean, e2e_mean;
    double split_share, hit_expected, hit_found; /* the latter in blocks, of prompts computed */
    double circles, held, given_up, resyncs;
    double known_blocks,
        known_wrong; /* cached blocks at the end; those the router was wrong about */
    double calibration[FG_FLEET_QUANTILES]; /* seen / predicted, from placing to first token */
    double calibration_mean;
    double why_queue, why_prefill, why_exposed, why_wait, why_answer,
        why_others; /* means, seconds */
} fg_fleet_summary;

typedef struct fg_fleet_run_report {
    const char *label; /* "prefill=8 decode=8" */
    const fg_fleet_result *result;
    fg_fleet_summary summary;
} fg_fleet_run_report;

/* FG_AGAIN: out of memory. */
fg_status fg_fleet_summarise(const fg_fleet_result *result, const fg_workload *workload,
                             const fg_steptable *steps, const fg_fleet_slo *slo,
                             fg_fleet_summary *summary_out, fg_error *err);

/* A line for each number, a column for each run. */
bool fg_fleet_render_table(const fg_fleet_run_report *runs, size_t count, const fg_fleet_slo *slo,
                           fg_buf *out);
/* One object; `head` is text of members that come first, "" or with a comma at its end. */
bool fg_fleet_render_json(const fg_fleet_run_report *runs, size_t count, const char *head,
                          fg_buf *out);
/* A heading and a line for each request of each run. */
bool fg_fleet_render_csv(const fg_fleet_run_report *runs, size_t count, const fg_workload *workload,
                         fg_buf *out);

/* fleet_plot.c: queue, running and busy over time, latencies as columns; UTF-8 text of 78 columns. */
bool fg_fleet_render_terminal(const fg_fleet_run_report *run, fg_buf *out);
/* A drawing of all runs: distributions of TTFT and ITL, queue, running, busy and blocks over time. */
bool fg_fleet_render_svg(const fg_fleet_run_report *runs, size_t count, fg_buf *out);

#endif
