#include "tests/sim/fleet_report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"

static const double quantiles[FG_FLEET_QUANTILES] = { 0.5, 0.9, 0.99 };
static const char *const outcome_names[FG_FLEET_OUTCOMES] = {
    "open", "finished", "queue_full", "too_long", "no_worker", "failed",
};

/* ---- summing up ---- */

static int by_value(const void *left, const void *right)
{
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static void take_quantiles(double *values, size_t count, double *out)
{
    qsort(values, count, sizeof *values, by_value);
    for (int i = 0; i < FG_FLEET_QUANTILES; i++) {
        size_t rank = (size_t)ceil(quantiles[i] * (double)count);
        out[i] = count == 0 ? 0 : values[rank == 0 ? 0 : rank - 1];
    }
}

static double mean_gap_s(const fg_fleet_row *row)
{
    return row->output_tokens < 2
               ? 0
               : (double)row->gap_sum_ns / 1e9 / (double)(row->output_tokens - 1);
}

static bool is_good(const fg_fleet_row *row, const fg_fleet_slo *slo)
{
    return row->outcome == FG_FLEET_FINISHED &&
           (slo->ttft_ms <= 0 || (double)row->ttft_ns / 1e6 <= slo->ttft_ms) &&
           (slo->itl_ms <= 0 || mean_gap_s(row) * 1e3 <= slo->itl_ms);
}

typedef double row_value(const fg_fleet_row *row);

static double ttft_of(const fg_fleet_row *row)
{
    return (double)row->ttft_ns / 1e9;
}

static double e2e_of(const fg_fleet_row *row)
{
    return (double)row->e2e_ns / 1e9;
}

static double queued_of(const fg_fleet_row *row)
{
    return (double)row->queued_ns / 1e9;
}

/* Seen against predicted, from the last placing to the first token. */
static double calibration_of(const fg_fleet_row *row)
{
    double waited = (double)row->ttft_ns - (double)row->queued_ns;
    return row->predicted_ns == 0 ? 1 : waited / (double)row->predicted_ns;
}

static double mean_of(const fg_fleet_result *result, row_value *value)
{
    double sum = 0, count = 0;
    for (uint32_t i = 0; i < result->row_count; i++) {
        if (result->rows[i].outcome == FG_FLEET_FINISHED) {
            sum += value(&result->rows[i]);
            count++;
        }
    }
    return count > 0 ? sum / count : 0;
}

/* Of finished requests with at least so many tokens. */
static void quantiles_of(const fg_fleet_result *result, row_value *value, uint32_t tokens_min,
                         double *scratch, double *out)
{
    size_t count = 0;
    for (uint32_t i = 0; i < result->row_count; i++) {
        const fg_fleet_row *row = &result->rows[i];
        if (row->outcome == FG_FLEET_FINISHED && row->output_tokens >= tokens_min) {
            scratch[count++] = value(row);
        }
    }
    take_quantiles(scratch, count, out);
}

static void sum_up_routing(const fg_fleet_result *result, double *scratch, fg_fleet_summary *s)
{
    double finished = s->finished > 0 ? s->finished * 1e9 : 1;
    s->ttft_mean = mean_of(result, ttft_of);
    s->e2e_mean = mean_of(result, e2e_of);
    s->split_share = result->placed > 0 ? (double)result->placed_split / (double)result->placed : 0;
    s->hit_expected = (double)result->hit_blocks_expected;
    s->hit_found = (double)result->hit_blocks_found;
    s->circles = (double)result->circles_avoided;
    s->held = (double)result->held;
    s->given_up = (double)result->given_up;
    s->resyncs = (double)result->resyncs;
    s->known_blocks = (double)result->known_blocks;
    s->known_wrong = (double)result->known_wrong;
    quantiles_of(result, calibration_of, 1, scratch, s->calibration);
    s->calibration_mean = mean_of(result, calibration_of);
    s->why_queue = result->why.queue / finished;
    s->why_prefill = (result->why.prefill + result->why.restore) / finished;
    s->why_exposed = result->why.exposed / finished;
    s->why_wait = result->why.wait / finished;
    s->why_answer = result->why.answer / finished;
    s->why_others = result->why.others / finished;
}

fg_status fg_fleet_summarise(const fg_fleet_result *result, const fg_workload *workload,
                             const fg_steptable *steps, const fg_fleet_slo *slo,
                             fg_fleet_summary *summary_out, fg_error *err)
{
    double *scratch = fg_mem_array(result->row_count, sizeof *scratch);
    if (scratch == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for the summary");
    }
    double span_s = (double)result->span_ns / 1e9, good = 0;
    for (uint32_t i = 0; i < result->row_count; i++) {
        good += is_good(&result->rows[i], slo);
    }
    double per_s = span_s > 0 ? 1 / span_s : 0;
    fg_fleet_summary s = {
        .requests = result->row_count,
        .finished = (double)result->counts[FG_FLEET_FINISHED],
        .full = (double)result->counts[FG_FLEET_FULL],
        .too_long = (double)result->counts[FG_FLEET_TOO_LONG],
        .nobody = (double)result->counts[FG_FLEET_NOBODY],
        .failed = (double)result->counts[FG_FLEET_FAILED],
        .good_share = good / result->row_count,
        .good_rate = good * per_s,
        .prompt_rate = (double)result->prompt_tokens * per_s,
        .output_rate = (double)result->output_tokens * per_s,
        .hit_rate = result->prompt_tokens == 0
                        ? 0
                        : (double)result->cached_tokens / (double)result->prompt_tokens,
        .hit_rate_most = (double)workload->known_tokens / (double)workload->prompt_tokens,
        .preemptions = (double)result->preemptions,
        .evictions = (double)result->evictions,
        .retried = (double)result->retried,
        .pushed_bytes =
            (double)result->pushed_blocks * result->setup.block_size * steps->kv_token_bytes,
        .queue_peak = result->queue_peak,
        .span_s = span_s,
    };
    quantiles_of(result, ttft_of, 1, scratch, s.ttft);
    quantiles_of(result, e2e_of, 1, scratch, s.e2e);
    quantiles_of(result, queued_of, 1, scratch, s.queued);
    quantiles_of(result, mean_gap_s, 2, scratch, s.tpot);
    for (int i = 0; i < FG_FLEET_QUANTILES; i++) {
        s.itl[i] = (double)fg_tally_quantile(&result->gaps, quantiles[i]) / 1e9;
    }
    for (int role = 0; role < FG_FLEET_ROLES; role++) {
        s.busy[role] = result->setup.workers[role] == 0 ? -1 : result->busy[role];
    }
    sum_up_routing(result, scratch, &s);
    fg_mem_free(scratch);
    *summary_out = s;
    return FG_OK;
}

/* ---- a table ---- */

typedef enum cell_kind { CELL_ONE, CELL_QUANTILES } cell_kind;

typedef struct line {
    const char *label; /* of the table */
    const char *key;   /* of the JSON */
    cell_kind kind;
    size_t offset;
    double scale; /* for the table */
    int decimals;
    bool optional; /* left out of the table when all runs have 0 or less */
} line;

#define AT(member) offsetof(fg_fleet_summary, member)
static const line lines[] = {
    { "requests", "requests", CELL_ONE, AT(requests), 1, 0, false },
    { "  finished", "finished", CELL_ONE, AT(finished), 1, 0, false },
    { "  refused: queue full (429)", "refused_queue_full", CELL_ONE, AT(full), 1, 0, true },
    { "  refused: too long (400)", "refused_too_long", CELL_ONE, AT(too_long), 1, 0, true },
    { "  refused: no worker (503)", "refused_no_worker", CELL_ONE, AT(nobody), 1, 0, true },
    { "  failed", "failed", CELL_ONE, AT(failed), 1, 0, true },
    { "TTFT s        p50 p90 p99", "ttft_s", CELL_QUANTILES, AT(ttft), 1, 3, false },
    { "TTFT s        mean", "ttft_mean_s", CELL_ONE, AT(ttft_mean), 1, 3, false },
    { "ITL ms        p50 p90 p99", "itl_s", CELL_QUANTILES, AT(itl), 1e3, 1, false },
    { "mean ITL ms   p50 p90 p99", "tpot_s", CELL_QUANTILES, AT(tpot), 1e3, 1, false },
    { "end to end s  p50 p90 p99", "e2e_s", CELL_QUANTILES, AT(e2e), 1, 2, false },
    { "end to end s  mean", "e2e_mean_s", CELL_ONE, AT(e2e_mean), 1, 3, false },
    { "router queue s p50 p90 p99", "queued_s", CELL_QUANTILES, AT(queued), 1, 3, false },
    { "goodput %", "good_share", CELL_ONE, AT(good_share), 100, 1, false },
    { "goodput requests/s", "good_per_s", CELL_ONE, AT(good_rate), 1, 3, false },
    { "prompt tokens/s", "prompt_tokens_per_s", CELL_ONE, AT(prompt_rate), 1, 0, false },
    { "output tokens/s", "output_tokens_per_s", CELL_ONE, AT(output_rate), 1, 0, false },
    { "hit rate %", "hit_rate", CELL_ONE, AT(hit_rate), 100, 1, false },
    { "  of at most %", "hit_rate_most", CELL_ONE, AT(hit_rate_most), 100, 1, false },
    { "cached blocks evicted", "evictions", CELL_ONE, AT(evictions), 1, 0, true },
    { "preemptions", "preemptions", CELL_ONE, AT(preemptions), 1, 0, false },
    { "retried", "retried", CELL_ONE, AT(retried), 1, 0, true },
    { "pushed GB", "pushed_bytes", CELL_ONE, AT(pushed_bytes), 1e-9, 2, false },
    { "busy %  prefill", "busy_prefill", CELL_ONE, AT(busy[FG_FLEET_PREFILL]), 100, 1, true },
    { "busy %  decode", "busy_decode", CELL_ONE, AT(busy[FG_FLEET_DECODE]), 100, 1, true },
    { "busy %  both", "busy_both", CELL_ONE, AT(busy[FG_FLEET_BOTH]), 100, 1, true },
    { "split %", "split_share", CELL_ONE, AT(split_share), 100, 1, false },
    { "hit blocks    expected", "hit_blocks_expected", CELL_ONE, AT(hit_expected), 1, 0, false },
    { "              found", "hit_blocks_found", CELL_ONE, AT(hit_found), 1, 0, false },
    { "cached blocks at the end", "cached_blocks", CELL_ONE, AT(known_blocks), 1, 0, false },
    { "  the router knew wrong", "cached_blocks_wrong", CELL_ONE, AT(known_wrong), 1, 0, false },
    { "seen / predicted TTFT  mean", "ttft_ratio_mean", CELL_ONE, AT(calibration_mean), 1, 2,
      false },
    { "              p50 p90 p99", "ttft_ratio", CELL_QUANTILES, AT(calibration), 1, 2, false },
    { "predicted s   queue", "why_queue_s", CELL_ONE, AT(why_queue), 1, 3, false },
    { "              prefill", "why_prefill_s", CELL_ONE, AT(why_prefill), 1, 3, false },
    { "              hand-over", "why_exposed_s", CELL_ONE, AT(why_exposed), 1, 3, false },
    { "              wait", "why_wait_s", CELL_ONE, AT(why_wait), 1, 3, true },
    { "              answer", "why_answer_s", CELL_ONE, AT(why_answer), 1, 3, false },
    { "              others'", "why_others_s", CELL_ONE, AT(why_others), 1, 3, false },
    { "circles avoided", "circles_avoided", CELL_ONE, AT(circles), 1, 0, true },
    { "held back", "held", CELL_ONE, AT(held), 1, 0, true },
    { "given up", "given_up", CELL_ONE, AT(given_up), 1, 0, true },
    { "caches told again", "resyncs", CELL_ONE, AT(resyncs), 1, 0, true },
    { "router queue peak", "queue_peak", CELL_ONE, AT(queue_peak), 1, 0, false },
    { "simulated s", "span_s", CELL_ONE, AT(span_s), 1, 1, false },
};
enum { LINES = sizeof lines / sizeof *lines, CELL_BYTES = 64, LABEL_WIDTH = 28 };

static double number_at(const fg_fleet_summary *summary, size_t offset, int index)
{
    double value;
    memcpy(&value, (const char *)summary + offset + (size_t)index * sizeof value, sizeof value);
    return value;
}

static void write_cell(const line *l, const fg_fleet_summary *summary, char *cell)
{
    size_t used = 0;
    int count = l->kind == CELL_QUANTILES ? FG_FLEET_QUANTILES : 1;
    if (count == 1 && number_at(summary, l->offset, 0) < 0) {
        snprintf(cell, CELL_BYTES, "-");
        return;
    }
    for (int i = 0; i < count; i++) {
        used += (size_t)snprintf(cell + used, CELL_BYTES - used, "%s%.*f", i == 0 ? "" : " ",
                                 l->decimals, number_at(summary, l->offset, i) * l->scale);
        used = used < CELL_BYTES ? used : CELL_BYTES - 1;
    }
}

static bool is_shown(const line *l, const fg_fleet_run_report *runs, size_t count)
{
    bool shown = !l->optional;
    for (size_t i = 0; i < count; i++) {
        shown = shown || number_at(&runs[i].summary, l->offset, 0) > 0;
    }
    return shown;
}

static int column_width(const fg_fleet_run_report *run)
{
    size_t width = strlen(run->label);
    for (int i = 0; i < LINES; i++) {
        char cell[CELL_BYTES];
        write_cell(&lines[i], &run->summary, cell);
        width = strlen(cell) > width ? strlen(cell) : width;
    }
    return (int)width;
}

bool fg_fleet_render_table(const fg_fleet_run_report *runs, size_t count, const fg_fleet_slo *slo,
                           fg_buf *out)
{
    fg_buf_printf(out, "%-*s", LABEL_WIDTH, "");
    for (size_t i = 0; i < count; i++) {
        fg_buf_printf(out, "  %*s", column_width(&runs[i]), runs[i].label);
    }
    fg_buf_putc(out, '\n');
    for (int l = 0; l < LINES; l++) {
        if (!is_shown(&lines[l], runs, count)) {
            continue;
        }
        fg_buf_printf(out, "%-*s", LABEL_WIDTH, lines[l].label);
        for (size_t i = 0; i < count; i++) {
            char cell[CELL_BYTES];
            write_cell(&lines[l], &runs[i].summary, cell);
            fg_buf_printf(out, "  %*s", column_width(&runs[i]), cell);
        }
        fg_buf_putc(out, '\n');
    }
    fg_buf_printf(out, "goodput: TTFT <= %g ms and a mean ITL <= %g ms (0: not asked)\n",
                  slo->ttft_ms, slo->itl_ms);
    return !out->failed;
}

/* ---- JSON and CSV ---- */

static void render_summary(const fg_fleet_summary *summary, fg_buf *out)
{
    for (int i = 0; i < LINES; i++) {
        fg_buf_printf(out, "%s\"%s\":", i == 0 ? "" : ",", lines[i].key);
        if (lines[i].kind == CELL_QUANTILES) {
            fg_buf_printf(out, "{\"p50\":%.9g,\"p90\":%.9g,\"p99\":%.9g}",
                          number_at(summary, lines[i].offset, 0),
                          number_at(summary, lines[i].offset, 1),
                          number_at(summary, lines[i].offset, 2));
        } else if (number_at(summary, lines[i].offset, 0) < 0) {
            fg_buf_puts(out, "null");
        } else {
            fg_buf_printf(out, "%.12g", number_at(summary, lines[i].offset, 0));
        }
    }
}

static void render_samples(const fg_fleet_result *result, fg_buf *out)
{
    for (uint32_t i = 0; i < result->sample_count; i++) {
        const fg_fleet_sample *s = &result->samples[i];
        fg_buf_printf(out, "%s[%.3f,%u,%u,%u,%.4f,%.4f,%.4f,%.4f]", i == 0 ? "" : ",",
                      (double)s->at_ns / 1e9, s->queued, s->running, s->waiting, (double)s->busy[0],
                      (double)s->busy[1], (double)s->busy[2], (double)s->blocks_used);
    }
}

bool fg_fleet_render_json(const fg_fleet_run_report *runs, size_t count, const char *head,
                          fg_buf *out)
{
    fg_buf_printf(out, "{%s\"runs\":[", head);
    for (size_t i = 0; i < count; i++) {
        const fg_fleet_setup *setup = &runs[i].result->setup;
        fg_buf_printf(out, "%s\n{\"label\":\"", i == 0 ? "" : ",");
        fg_buf_json_escape(out, runs[i].label, strlen(runs[i].label));
        fg_buf_printf(out, "\",\"prefill\":%u,\"decode\":%u,\"both\":%u,\"summary\":{",
                      setup->workers[FG_FLEET_PREFILL], setup->workers[FG_FLEET_DECODE],
                      setup->workers[FG_FLEET_BOTH]);
        render_summary(&runs[i].summary, out);
        fg_buf_puts(out, "},\n\"sample_columns\":[\"s\",\"queued\",\"running\",\"waiting\","
                         "\"busy_prefill\",\"busy_decode\",\"busy_both\",\"blocks_used\"],"
                         "\"samples\":[");
        render_samples(runs[i].result, out);
        fg_buf_puts(out, "]}");
    }
    fg_buf_puts(out, "\n]}\n");
    return !out->failed;
}

bool fg_fleet_render_csv(const fg_fleet_run_report *runs, size_t count, const fg_workload *workload,
                         fg_buf *out)
{
    fg_buf_puts(out, "run,request,arrival_s,prompt_tokens,output_tokens,outcome,ttft_s,e2e_s,"
                     "queued_s,mean_itl_s,max_itl_s,cached_tokens,preemptions,split,predicted_s\n");
    for (size_t r = 0; r < count; r++) {
        const fg_fleet_result *result = runs[r].result;
        for (uint32_t i = 0; i < result->row_count && !out->failed; i++) {
            const fg_fleet_row *row = &result->rows[i];
            fg_buf_printf(out, "%s,%u,%.6f,%u,%u,%s,%.6f,%.6f,%.6f,%.6f,%.6f,%u,%u,%d,%.6f\n",
                          runs[r].label, i, (double)row->arrival_ns / 1e9,
                          workload->requests[i].prompt_tokens, row->output_tokens,
                          outcome_names[row->outcome], ttft_of(row), e2e_of(row), queued_of(row),
                          mean_gap_s(row), (double)row->gap_max_ns / 1e9, row->cached_tokens,
                          row->preemptions, row->split, (double)row->predicted_ns / 1e9);
        }
    }
    return !out->failed;
}
