/*
 * top_model - what `forge top` knows of a cluster: one reading of GET /metrics and GET /debug/state, and
 * what changed since an earlier one. Pure but for the JSON document, which does not outlive a call.
 *
 * Tolerant: a field that is missing is 0 (or unknown: NAN, where 0 would lie), one of the wrong type is
 * missing, names are cut to their limit, and rows beyond the limits are only counted.
 */
#ifndef FORGE_CLI_TOP_MODEL_H
#define FORGE_CLI_TOP_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/limits.h"
#include "common/base/status.h"

enum {
    FG_TOP_WORKERS_MAX = FG_LIMIT_WORKERS,
    FG_TOP_STREAMS_MAX = 256, /* rows that are kept of the requests in flight */
    FG_TOP_BUCKETS_MAX = 32,
    FG_TOP_NAME_BYTES = FG_LIMIT_NAME_BYTES + 1,
    FG_TOP_WORD_BYTES = 24,
};

typedef struct fg_top_worker {
    char name[FG_TOP_NAME_BYTES], role[FG_TOP_WORD_BYTES];
    double epoch;
    bool draining;
    uint32_t running, waiting;
    double total, free, cached, held, pinned, quarantined; /* blocks */
    double steps, busy_ms, silent_ms, query_tokens, hit_tokens;
    /* Since the earlier reading; NAN: unknown. */
    double steps_per_s, busy_share, hit_share;
} fg_top_worker;

typedef struct fg_top_stream {
    char id[FG_TOP_WORD_BYTES], state[FG_TOP_WORD_BYTES];
    char prefill[FG_TOP_NAME_BYTES], decode[FG_TOP_NAME_BYTES], owner[FG_TOP_NAME_BYTES];
    double age_ms, in_state_ms;
    uint32_t prompt_tokens, tokens;
} fg_top_stream;

/* Counts of observations up to each bound, summed up as the page has them. */
typedef struct fg_top_histogram {
    double bounds[FG_TOP_BUCKETS_MAX], counts[FG_TOP_BUCKETS_MAX];
    uint32_t count;
} fg_top_histogram;

typedef struct fg_top_sample {
    uint64_t at_ns;
    /* /metrics */
    double running, queued, ended, failed, refused_429, prompt_tokens, generated_tokens;
    double kv_blocks, kv_usage;
    fg_top_histogram first_token, inter_token;
    uint64_t refused_lines;
    /* /debug/state */
    double uptime_ms, queued_tokens, oldest_queued_ms; /* NAN: an older server */
    bool ready;
    fg_top_worker workers[FG_TOP_WORKERS_MAX];
    uint32_t worker_count, worker_total;
    fg_top_stream streams[FG_TOP_STREAMS_MAX];
    uint32_t stream_count, stream_total;
    /* Since the earlier reading; NAN: unknown. */
    double requests_per_s, prompt_per_s, generated_per_s;
    double first_p50_s, first_p95_s, inter_p50_s, inter_p95_s;
    double failed_since, refused_since;
} fg_top_sample;

void fg_top_read_metrics(const char *text, size_t length, fg_top_sample *sample);
/* FG_BAD_INPUT: no JSON object; FG_AGAIN: out of memory. The sample's metrics stay. */
fg_status fg_top_read_state(const char *text, size_t length, fg_top_sample *sample, fg_error *err);
/* Fills what changed since `before` (NULL: nothing is known of earlier; percentiles are since the start).
 * A server that began anew in between has no rates this time. */
void fg_top_compare(const fg_top_sample *before, fg_top_sample *now);
/* The value below which `share` of the observations between the two lie; NAN without one. */
double fg_top_quantile(const fg_top_histogram *before, const fg_top_histogram *now, double share);

/* One JSON object, on one line. */
bool fg_top_render_json(const fg_top_sample *sample, const char *url, fg_buf *out);

#endif
