/*
 * Pictures of a fleet's run: columns of block characters for a terminal, and a small SVG.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "tests/sim/fleet_report.h"

/* ---- what is drawn ---- */

typedef double sample_value(const fg_fleet_sample *sample);

static double queued_of(const fg_fleet_sample *sample)
{
    return sample->queued;
}

static double running_of(const fg_fleet_sample *sample)
{
    return sample->running;
}

static double waiting_of(const fg_fleet_sample *sample)
{
    return sample->waiting;
}

static double prefill_of(const fg_fleet_sample *sample)
{
    return (double)sample->busy[FG_FLEET_PREFILL] * 100;
}

static double decode_of(const fg_fleet_sample *sample)
{
    return (double)sample->busy[FG_FLEET_DECODE] * 100;
}

static double both_of(const fg_fleet_sample *sample)
{
    return (double)sample->busy[FG_FLEET_BOTH] * 100;
}

static double blocks_of(const fg_fleet_sample *sample)
{
    return (double)sample->blocks_used * 100;
}

typedef struct series {
    const char *title;
    sample_value *value;
    double top; /* of the axis; 0: the largest value */
    int role;   /* only where there are such workers; -1: always */
} series;

static const series all_series[] = {
    { "waiting in the router", queued_of, 0, -1 },
    { "waiting at workers", waiting_of, 0, -1 },
    { "running", running_of, 0, -1 },
    { "busy % prefill", prefill_of, 100, FG_FLEET_PREFILL },
    { "busy % decode", decode_of, 100, FG_FLEET_DECODE },
    { "busy % both", both_of, 100, FG_FLEET_BOTH },
    { "blocks in use %", blocks_of, 100, -1 },
};
enum { SERIES = sizeof all_series / sizeof *all_series };

static bool has_series(const series *s, const fg_fleet_result *result)
{
    return s->role < 0 || result->setup.workers[s->role] > 0;
}

/* ---- terminal ---- */

enum { COLUMNS = 52, TITLE = 23 };

static void render_columns(const double *values, double top, fg_buf *out)
{
    static const char *const levels[] = { " ", "▁", "▂", "▃", "▄", "▅", "▆", "▇", "█" };
    for (int i = 0; i < COLUMNS; i++) {
        double part = top > 0 ? values[i] / top * 8 : 0;
        int level = values[i] <= 0 ? 0 : (int)ceil(part);
        fg_buf_puts(out, levels[level < 0 ? 0 : level > 8 ? 8 : level]);
    }
}

/* The highest sample that falls into each column. */
static double columns_of(const fg_fleet_result *result, sample_value *value, double *columns_out)
{
    double top = 0;
    const fg_fleet_sample *samples = result->samples;
    double span = (double)samples[result->sample_count - 1].at_ns;
    memset(columns_out, 0, COLUMNS * sizeof *columns_out);
    for (uint32_t i = 0; i < result->sample_count; i++) {
        double place = span > 0 ? (double)samples[i].at_ns / span * COLUMNS : 0;
        int column = place < COLUMNS ? (int)place : COLUMNS - 1;
        double v = value(&samples[i]);
        columns_out[column] = v > columns_out[column] ? v : columns_out[column];
        top = v > top ? v : top;
    }
    return top;
}

static void render_latencies(const char *title, const fg_tally *tally, fg_buf *out)
{
    double columns[COLUMNS] = { 0 }, top = 0;
    double low = log((double)(tally->low > 0 ? tally->low : 1));
    double high = log((double)(tally->high > 1 ? tally->high : 2));
    for (uint32_t i = 0; i < FG_TALLY_COLUMNS; i++) {
        if (tally->columns[i] == 0) {
            continue;
        }
        double value = log((double)(fg_tally_column_end(i) > 0 ? fg_tally_column_end(i) : 1));
        double place = high > low ? (value - low) / (high - low) * COLUMNS : 0;
        int column = place < 0 ? 0 : place < COLUMNS ? (int)place : COLUMNS - 1;
        columns[column] += (double)tally->columns[i];
        top = columns[column] > top ? columns[column] : top;
    }
    fg_buf_printf(out, "%-*s|", TITLE, title);
    render_columns(columns, top, out);
    fg_buf_printf(out, "| %.4g to %.4g s, log\n", (double)tally->low / 1e9,
                  (double)tally->high / 1e9);
}

static void tally_first_tokens(const fg_fleet_result *result, fg_tally *tally)
{
    memset(tally, 0, sizeof *tally);
    for (uint32_t i = 0; i < result->row_count; i++) {
        if (result->rows[i].outcome == FG_FLEET_FINISHED) {
            fg_tally_add(tally, result->rows[i].ttft_ns);
        }
    }
}

bool fg_fleet_render_terminal(const fg_fleet_run_report *run, fg_buf *out)
{
    const fg_fleet_result *result = run->result;
    fg_tally *ttft = fg_mem_alloc(sizeof *ttft);
    if (ttft == NULL) {
        return false;
    }
    tally_first_tokens(result, ttft);
    fg_buf_printf(out, "%s, over %.0f simulated seconds\n", run->label,
                  (double)result->samples[result->sample_count - 1].at_ns / 1e9);
    for (int i = 0; i < SERIES; i++) {
        double columns[COLUMNS];
        if (has_series(&all_series[i], result)) {
            double top = columns_of(result, all_series[i].value, columns);
            fg_buf_printf(out, "%-*s|", TITLE, all_series[i].title);
            render_columns(columns, all_series[i].top > 0 ? all_series[i].top : top, out);
            fg_buf_printf(out, "| most %.0f\n", top);
        }
    }
    if (ttft->count > 0) {
        render_latencies("TTFT, requests", ttft, out);
    }
    if (result->gaps.count > 0) {
        render_latencies("ITL, tokens", &result->gaps, out);
    }
    fg_mem_free(ttft);
    return !out->failed;
}

/* ---- SVG ---- */

enum { WIDTH = 440, HEIGHT = 150, LEFT = 52, TOP = 26, GAP_X = 24, GAP_Y = 62, PANELS_ACROSS = 2 };
static const char *const colours[] = { "#1b6ca8", "#d1495b", "#2e8b57",
                                       "#8d5fb3", "#c98a1b", "#5b6770" };
enum { COLOURS = sizeof colours / sizeof *colours };

typedef struct panel {
    double x, y; /* of its plot area */
    double low, high, top;
    bool logarithmic; /* across */
} panel;

static double across(const panel *p, double value)
{
    double low = p->logarithmic ? log(p->low) : p->low;
    double high = p->logarithmic ? log(p->high) : p->high;
    double at = p->logarithmic ? log(value < p->low ? p->low : value) : value;
    return p->x + (high > low ? (at - low) / (high - low) : 0) * WIDTH;
}

static double up(const panel *p, double value)
{
    return p->y + HEIGHT - (p->top > 0 ? value / p->top : 0) * HEIGHT;
}

static panel begin_panel(int index, const char *title, fg_buf *out)
{
    panel p = { .x = LEFT + index % PANELS_ACROSS * (WIDTH + LEFT + GAP_X),
                .y = 40 + TOP + index / PANELS_ACROSS * (HEIGHT + GAP_Y) };
    fg_buf_printf(out, "<text x=\"%.0f\" y=\"%.0f\" class=\"t\">%s</text>\n", p.x, p.y - 8, title);
    fg_buf_printf(out, "<rect x=\"%.0f\" y=\"%.0f\" width=\"%d\" height=\"%d\" class=\"f\"/>\n",
                  p.x, p.y, WIDTH, HEIGHT);
    return p;
}

static void end_panel(const panel *p, const char *unit, fg_buf *out)
{
    for (int i = 0; i <= 4; i++) {
        double part = i / 4.0;
        double value = p->logarithmic ? exp(log(p->low) + part * (log(p->high) - log(p->low)))
                                      : p->low + part * (p->high - p->low);
        fg_buf_printf(out,
                      "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"middle\">%.3g %s</text>"
                      "<line x1=\"%.1f\" x2=\"%.1f\" y1=\"%.1f\" y2=\"%.1f\" class=\"g\"/>\n",
                      p->x + part * WIDTH, p->y + HEIGHT + 15, value, unit, p->x + part * WIDTH,
                      p->x + part * WIDTH, p->y, p->y + HEIGHT);
    }
    fg_buf_printf(out,
                  "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">%.4g</text>"
                  "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"end\">0</text>\n",
                  p->x - 5, p->y + 10, p->top, p->x - 5, p->y + HEIGHT);
}

static void begin_line(size_t run, fg_buf *out)
{
    fg_buf_printf(out, "<polyline fill=\"none\" stroke=\"%s\" stroke-width=\"1.4\" points=\"",
                  colours[run % COLOURS]);
}

static void draw_series(const fg_fleet_run_report *runs, size_t count, const series *s, int index,
                        fg_buf *out)
{
    panel p = begin_panel(index, s->title, out);
    p.top = s->top;
    for (size_t r = 0; r < count; r++) {
        const fg_fleet_result *result = runs[r].result;
        for (uint32_t i = 0; i < result->sample_count; i++) {
            double at = (double)result->samples[i].at_ns / 1e9;
            p.high = at > p.high ? at : p.high;
            double value = s->value(&result->samples[i]);
            p.top = s->top == 0 && value > p.top ? value : p.top;
        }
    }
    for (size_t r = 0; r < count; r++) {
        const fg_fleet_result *result = runs[r].result;
        if (!has_series(s, result)) {
            continue;
        }
        begin_line(r, out);
        for (uint32_t i = 0; i < result->sample_count; i++) {
            fg_buf_printf(out, "%.1f,%.1f ", across(&p, (double)result->samples[i].at_ns / 1e9),
                          up(&p, s->value(&result->samples[i])));
        }
        fg_buf_puts(out, "\"/>\n");
    }
    end_panel(&p, "s", out);
}

static void draw_distribution(const fg_tally *tallies, size_t count, const char *title, int index,
                              fg_buf *out)
{
    panel p = begin_panel(index, title, out);
    p.logarithmic = true;
    p.top = 100;
    p.low = 1e9;
    for (size_t r = 0; r < count; r++) {
        if (tallies[r].count > 0) {
            double low = (double)tallies[r].low / 1e9, high = (double)tallies[r].high / 1e9;
            low = low > 1e-6 ? low : 1e-6;
            p.low = low < p.low ? low : p.low;
            p.high = high > p.high ? high : p.high;
        }
    }
    p.low = p.low < 1e9 ? p.low : 1e-3;
    p.high = p.high > p.low ? p.high : p.low * 10;
    for (size_t r = 0; r < count; r++) {
        uint64_t seen = 0;
        begin_line(r, out);
        for (uint32_t i = 0; i < FG_TALLY_COLUMNS && tallies[r].count > 0; i++) {
            if (tallies[r].columns[i] > 0) {
                double at = (double)fg_tally_column_end(i) / 1e9;
                seen += tallies[r].columns[i];
                fg_buf_printf(out, "%.1f,%.1f ", across(&p, at < p.high ? at : p.high),
                              up(&p, 100.0 * (double)seen / (double)tallies[r].count));
            }
        }
        fg_buf_puts(out, "\"/>\n");
    }
    end_panel(&p, "s", out);
}

static void draw_legend(const fg_fleet_run_report *runs, size_t count, fg_buf *out)
{
    double x = LEFT;
    for (size_t r = 0; r < count; r++) {
        fg_buf_printf(out,
                      "<rect x=\"%.0f\" y=\"14\" width=\"12\" height=\"12\" fill=\"%s\"/>"
                      "<text x=\"%.0f\" y=\"24\">",
                      x, colours[r % COLOURS], x + 17);
        for (const char *c = runs[r].label; *c != '\0'; c++) {
            fg_buf_puts(out, *c == '<' ? "&lt;" : *c == '&' ? "&amp;" : "");
            if (*c != '<' && *c != '&') {
                fg_buf_putc(out, *c);
            }
        }
        fg_buf_puts(out, "</text>\n");
        x += 40 + 7 * (double)strlen(runs[r].label);
    }
}

bool fg_fleet_render_svg(const fg_fleet_run_report *runs, size_t count, fg_buf *out)
{
    fg_tally *tallies = fg_mem_array(2 * count, sizeof *tallies);
    if (tallies == NULL) {
        return false;
    }
    int panels = 2;
    for (int i = 0; i < SERIES; i++) {
        bool any = false;
        for (size_t r = 0; r < count; r++) {
            any = any || has_series(&all_series[i], runs[r].result);
        }
        panels += any;
    }
    int rows = (panels + PANELS_ACROSS - 1) / PANELS_ACROSS;
    int width = PANELS_ACROSS * (LEFT + WIDTH + GAP_X), height = 50 + rows * (HEIGHT + GAP_Y);
    fg_buf_printf(out,
                  "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %d\" width=\"%d\" "
                  "height=\"%d\">\n<style>text{font:11px sans-serif;fill:#333}.t{font-weight:bold}"
                  ".f{fill:#fafafa;stroke:#bbb}.g{stroke:#e4e4e4}</style>\n"
                  "<rect width=\"100%%\" height=\"100%%\" fill=\"#fff\"/>\n",
                  width, height, width, height);
    draw_legend(runs, count, out);
    for (size_t r = 0; r < count; r++) {
        tally_first_tokens(runs[r].result, &tallies[r]);
        tallies[count + r] = runs[r].result->gaps;
    }
    draw_distribution(tallies, count, "TTFT: % of requests within", 0, out);
    draw_distribution(tallies + count, count, "ITL: % of tokens within", 1, out);
    fg_mem_free(tallies);
    int index = 2;
    for (int i = 0; i < SERIES; i++) {
        bool any = false;
        for (size_t r = 0; r < count; r++) {
            any = any || has_series(&all_series[i], runs[r].result);
        }
        if (any) {
            draw_series(runs, count, &all_series[i], index++, out);
        }
    }
    fg_buf_puts(out, "</svg>\n");
    return !out->failed;
}
