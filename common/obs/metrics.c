#include "common/obs/metrics.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/base/status.h"

enum { LABELS_BYTES_MAX = 1024 };

typedef enum metric_type { COUNTER, GAUGE, HISTOGRAM } metric_type;

struct fg_metric {
    metric_type type;
    const char *name;
    const char *help;
    char *labels;         /* `a="b",c="d"`, escaped; NULL: none */
    fg_metric *sibling;   /* next series of the same name, in order of registration */
    bool leads;           /* first of its name */
    const double *bounds; /* histogram only, as the rest */
    size_t bound_count;
    uint64_t *buckets; /* bound_count + 1, not cumulated */
    uint64_t observed;
    double value; /* counter, gauge; a histogram's sum */
};

struct fg_metrics {
    fg_metric *series;
    uint32_t count;
    uint32_t max;
    bool failed;
};

fg_metrics *fg_metrics_create(uint32_t series_max)
{
    fg_metrics *metrics = fg_mem_alloc(sizeof *metrics);
    if (metrics == NULL) {
        return NULL;
    }
    metrics->series = fg_mem_array(series_max, sizeof *metrics->series);
    if (metrics->series == NULL) {
        fg_mem_free(metrics);
        return NULL;
    }
    metrics->max = series_max;
    return metrics;
}

void fg_metrics_destroy(fg_metrics *metrics)
{
    if (metrics == NULL) {
        return;
    }
    for (uint32_t i = 0; i < metrics->count; i++) {
        fg_mem_free(metrics->series[i].labels);
        fg_mem_free(metrics->series[i].buckets);
    }
    fg_mem_free(metrics->series);
    fg_mem_free(metrics);
}

bool fg_metrics_ok(const fg_metrics *metrics)
{
    return !metrics->failed;
}

static bool is_name(const char *name)
{
    for (size_t i = 0; name[i] != '\0'; i++) {
        char c = name[i];
        bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
        if (!letter && !(i > 0 && c >= '0' && c <= '9')) {
            return false;
        }
    }
    return name[0] != '\0';
}

/* `a="b",c="d"` with the value's backslashes, quotes and newlines escaped; NULL: out of memory. */
static char *render_labels(const fg_metric_label *labels)
{
    fg_buf text;
    fg_buf_init(&text, LABELS_BYTES_MAX);
    for (size_t i = 0; i < FG_METRIC_LABELS_MAX && labels[i].name != NULL; i++) {
        FG_ASSERT(is_name(labels[i].name), "label %s", labels[i].name);
        fg_buf_printf(&text, "%s%s=\"", i == 0 ? "" : ",", labels[i].name);
        for (const char *at = labels[i].value; *at != '\0'; at++) {
            if (*at == '\n') {
                fg_buf_puts(&text, "\\n");
            } else {
                if (*at == '\\' || *at == '"') {
                    fg_buf_putc(&text, '\\');
                }
                fg_buf_putc(&text, *at);
            }
        }
        fg_buf_putc(&text, '"');
    }
    if (text.failed) {
        fg_buf_deinit(&text);
        return NULL;
    }
    return text.data;
}

static bool same_labels(const fg_metric *a, const fg_metric *b)
{
    return strcmp(a->labels == NULL ? "" : a->labels, b->labels == NULL ? "" : b->labels) == 0;
}

/* Takes a place in the table and hooks it behind the series of the same name. */
static fg_metric *add_series(fg_metrics *metrics, metric_type type, const fg_metric_spec *spec)
{
    FG_ASSERT(is_name(spec->name), "metric %s", spec->name);
    if (metrics->count == metrics->max) {
        metrics->failed = true;
        return NULL;
    }
    fg_metric *metric = &metrics->series[metrics->count];
    *metric = (fg_metric){ .type = type, .name = spec->name, .help = spec->help, .leads = true };
    if (spec->labels[0].name != NULL) {
        metric->labels = render_labels(spec->labels);
        if (metric->labels == NULL) {
            metrics->failed = true;
            return NULL;
        }
    }
    fg_metric *last = NULL;
    for (uint32_t i = 0; i < metrics->count; i++) {
        fg_metric *other = &metrics->series[i];
        if (strcmp(other->name, spec->name) == 0) {
            FG_ASSERT(other->type == type && !same_labels(other, metric),
                      "metric %s{%s} is registered twice", spec->name,
                      metric->labels == NULL ? "" : metric->labels);
            last = other;
        }
    }
    if (last != NULL) {
        last->sibling = metric;
        metric->leads = false;
    }
    metrics->count++;
    return metric;
}

fg_metric *fg_metrics_counter(fg_metrics *metrics, const fg_metric_spec *spec)
{
    size_t length = strlen(spec->name);
    FG_ASSERT(length > 6 && strcmp(spec->name + length - 6, "_total") == 0,
              "counter %s does not end in _total", spec->name);
    return add_series(metrics, COUNTER, spec);
}

fg_metric *fg_metrics_gauge(fg_metrics *metrics, const fg_metric_spec *spec)
{
    return add_series(metrics, GAUGE, spec);
}

fg_metric *fg_metrics_histogram(fg_metrics *metrics, const fg_metric_spec *spec,
                                const double *bounds, size_t bound_count)
{
    for (size_t i = 0; i < bound_count; i++) {
        FG_ASSERT(isfinite(bounds[i]) && (i == 0 || bounds[i] > bounds[i - 1]),
                  "bounds of %s do not rise", spec->name);
    }
    uint64_t *buckets = fg_mem_array(bound_count + 1, sizeof *buckets);
    fg_metric *metric = buckets == NULL ? NULL : add_series(metrics, HISTOGRAM, spec);
    if (metric == NULL) {
        fg_mem_free(buckets);
        metrics->failed = true;
        return NULL;
    }
    metric->bounds = bounds;
    metric->bound_count = bound_count;
    metric->buckets = buckets;
    return metric;
}

void fg_metric_add(fg_metric *metric, double amount)
{
    if (metric == NULL) {
        return;
    }
    FG_ASSERT(metric->type != HISTOGRAM && (metric->type == GAUGE || amount >= 0),
              "%s cannot add %g", metric->name, amount);
    metric->value += amount;
}

void fg_metric_set(fg_metric *gauge, double value)
{
    if (gauge == NULL) {
        return;
    }
    FG_ASSERT(gauge->type == GAUGE, "%s is no gauge", gauge->name);
    gauge->value = value;
}

void fg_metric_observe(fg_metric *histogram, double value)
{
    if (histogram == NULL || isnan(value)) {
        return;
    }
    FG_ASSERT(histogram->type == HISTOGRAM, "%s is no histogram", histogram->name);
    /* The first bound that is not below the value; bucket bounds are inclusive. */
    size_t low = 0;
    size_t high = histogram->bound_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (histogram->bounds[middle] < value) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    histogram->buckets[low]++;
    histogram->observed++;
    histogram->value += value;
}

double fg_metric_value(const fg_metric *metric)
{
    if (metric == NULL) {
        return 0;
    }
    return metric->type == HISTOGRAM ? (double)metric->observed : metric->value;
}

/* The shortest decimal that reads back as the same double. */
static void append_number(double value, fg_buf *out)
{
    char text[40];
    if (isnan(value) || isinf(value)) {
        fg_buf_puts(out, isnan(value) ? "NaN" : value > 0 ? "+Inf" : "-Inf");
        return;
    }
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value) {
            break;
        }
    }
    fg_buf_puts(out, text);
}

static void append_help(const char *help, fg_buf *out)
{
    for (; *help != '\0'; help++) {
        if (*help == '\n') {
            fg_buf_puts(out, "\\n");
        } else {
            if (*help == '\\') {
                fg_buf_putc(out, '\\');
            }
            fg_buf_putc(out, *help);
        }
    }
}

/* `forge:name_suffix{labels} ` */
static void append_key(const fg_metric *metric, const char *suffix, fg_buf *out)
{
    fg_buf_printf(out, "forge:%s%s", metric->name, suffix);
    if (metric->labels != NULL) {
        fg_buf_printf(out, "{%s}", metric->labels);
    }
    fg_buf_putc(out, ' ');
}

static void append_histogram(const fg_metric *metric, fg_buf *out)
{
    uint64_t cumulated = 0;
    for (size_t i = 0; i <= metric->bound_count; i++) {
        cumulated += metric->buckets[i];
        fg_buf_printf(out, "forge:%s_bucket{%s%sle=\"", metric->name,
                      metric->labels == NULL ? "" : metric->labels,
                      metric->labels == NULL ? "" : ",");
        append_number(i == metric->bound_count ? (double)INFINITY : metric->bounds[i], out);
        fg_buf_printf(out, "\"} %llu\n", (unsigned long long)cumulated);
    }
    append_key(metric, "_sum", out);
    append_number(metric->value, out);
    fg_buf_putc(out, '\n');
    append_key(metric, "_count", out);
    fg_buf_printf(out, "%llu\n", (unsigned long long)metric->observed);
}

bool fg_metrics_render(const fg_metrics *metrics, fg_buf *out)
{
    static const char *const types[] = { "counter", "gauge", "histogram" };
    for (uint32_t i = 0; i < metrics->count; i++) {
        const fg_metric *metric = &metrics->series[i];
        if (!metric->leads) {
            continue;
        }
        fg_buf_printf(out, "# HELP forge:%s ", metric->name);
        append_help(metric->help, out);
        fg_buf_printf(out, "\n# TYPE forge:%s %s\n", metric->name, types[metric->type]);
        for (; metric != NULL; metric = metric->sibling) {
            if (metric->type == HISTOGRAM) {
                append_histogram(metric, out);
            } else {
                append_key(metric, "", out);
                append_number(metric->value, out);
                fg_buf_putc(out, '\n');
            }
        }
    }
    return !out->failed;
}

/* The buckets of vLLM's metrics of the same names, so that existing dashboards keep their shape;
 * the inter-token ones begin lower because a hand-over gap of a few milliseconds must be seen. */
fg_metric_bounds fg_metric_bounds_first_token(void)
{
    static const double bounds[] = { 0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1,
                                     0.25,  0.5,   0.75, 1,    2.5,  5,    7.5,  10,
                                     20,    40,    80,   160,  640,  2560 };
    return (fg_metric_bounds){ bounds, sizeof bounds / sizeof bounds[0] };
}

fg_metric_bounds fg_metric_bounds_inter_token(void)
{
    static const double bounds[] = { 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1,
                                     0.15,  0.2,    0.3,   0.4,  0.5,   0.75, 1,     2.5,
                                     5,     7.5,    10,    20,   40,    80 };
    return (fg_metric_bounds){ bounds, sizeof bounds / sizeof bounds[0] };
}

fg_metric_bounds fg_metric_bounds_request(void)
{
    static const double bounds[] = { 0.3, 0.5, 0.8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                     30,  40,  50,  60, 120, 240, 480, 960, 1920, 7680 };
    return (fg_metric_bounds){ bounds, sizeof bounds / sizeof bounds[0] };
}
