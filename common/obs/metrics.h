/*
 * metrics - counters, gauges and histograms in Prometheus' text exposition format 0.0.4, all named
 * `forge:...`. Owned by the loop thread: no locks; another thread's numbers reach it by message.
 *
 * Everything is registered at start, up to a fixed number of series; updates allocate nothing. A
 * failed registration returns NULL and is remembered (fg_metrics_ok), and updating NULL does
 * nothing, so a user registers all of its series and checks once. Series live as long as the
 * registry.
 */
#ifndef FORGE_COMMON_OBS_METRICS_H
#define FORGE_COMMON_OBS_METRICS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"

typedef struct fg_metrics fg_metrics; /* the registry */
typedef struct fg_metric fg_metric;   /* one series: a name with fixed label values */

enum { FG_METRIC_LABELS_MAX = 4 };

typedef struct fg_metric_label {
    const char *name;  /* [a-zA-Z_][a-zA-Z0-9_]*; NULL ends the list */
    const char *value; /* any UTF-8; copied */
} fg_metric_label;

typedef struct fg_metric_spec {
    const char
        *name; /* without `forge:`; a counter's ends in _total, times are in _seconds. Static. */
    const char *help; /* one line. Static. */
    fg_metric_label labels[FG_METRIC_LABELS_MAX];
} fg_metric_spec;

/* NULL when out of memory. */
fg_metrics *fg_metrics_create(uint32_t series_max);
void fg_metrics_destroy(fg_metrics *metrics);
/* False once a registration found no room or no memory. */
bool fg_metrics_ok(const fg_metrics *metrics);

/* Series of one name are of one type and differ in their label values; anything else is a bug. */
fg_metric *fg_metrics_counter(fg_metrics *metrics, const fg_metric_spec *spec);
fg_metric *fg_metrics_gauge(fg_metrics *metrics, const fg_metric_spec *spec);
/* `bounds`: upper bounds of the buckets, rising, finite, static; +Inf is added. */
fg_metric *fg_metrics_histogram(fg_metrics *metrics, const fg_metric_spec *spec,
                                const double *bounds, size_t bound_count);

/* Counter: `amount` is not negative. Gauge: any. */
void fg_metric_add(fg_metric *metric, double amount);
void fg_metric_set(fg_metric *gauge, double value);
/* Histogram: O(log buckets); a NaN is dropped. */
void fg_metric_observe(fg_metric *histogram, double value);
/* The value; of a histogram, the number of observations. */
double fg_metric_value(const fg_metric *metric);

/* Appends the whole exposition. False when `out` cannot grow. */
bool fg_metrics_render(const fg_metrics *metrics, fg_buf *out);

/* Bucket bounds in seconds that dashboards of this field expect. */
typedef struct fg_metric_bounds {
    const double *values;
    size_t count;
} fg_metric_bounds;
fg_metric_bounds fg_metric_bounds_first_token(void);
fg_metric_bounds fg_metric_bounds_inter_token(void);
fg_metric_bounds fg_metric_bounds_request(void);

#endif
