#include "cli/start.h"

#include <stdio.h>
#include <string.h>

#include "common/base/log.h"
#include "common/engine/weight_store.h"

static const char *const phase_names[FG_START_PHASES] = {
    "model", "tokenizer", "fingerprint", "router", "kv", "weights", "calibrate", "other",
};

fg_start fg_start_now(void)
{
    fg_start start = { .clock = fg_clock_real() };
    start.began_ns = start.lap_ns = fg_clock_now_ns(&start.clock);
    return start;
}

void fg_start_lap(fg_start *start, fg_start_phase phase)
{
    if (start != NULL) {
        uint64_t now_ns = fg_clock_now_ns(&start->clock);
        start->spent_ns[phase] += now_ns - start->lap_ns;
        start->lap_ns = now_ns;
    }
}

static const char *origin_name(fg_weight_origin origin)
{
    static const char *const names[] = { "packed", "packed-to-sidecar", "sidecar", "device" };
    return names[origin];
}

/* What the weights were mapped by. Less than a huge page at each end is no mixture. */
static const char *pages_name(const fg_weight_report *report)
{
    return report->huge_bytes == 0                                              ? "4k"
           : report->huge_bytes + (uint64_t)2 * FG_PIECE_BYTES >= report->bytes ? "2m"
                                                                                : "mixed";
}

static void tell_choice(const fg_engine *engine, uint32_t kv_dtype, fg_metrics *metrics)
{
    fg_engine_start chosen = fg_engine_started(engine);
    const fg_weight_report *weights = chosen.weights;
    if (weights == NULL) {
        return;
    }
    fg_info("serve",
            "event=chosen isa=%s threads=%u kv=%s device=%s ranks=%u weights=%s mib=%llu pages=%s "
            "check_ms=%.0f "
            "pack_ms=%.0f sync_ms=%.0f%s%s%s",
            chosen.isa, chosen.thread_count * chosen.rank_count, fg_dtype_name(kv_dtype),
            chosen.device, chosen.rank_count, origin_name(weights->origin),
            (unsigned long long)(weights->bytes >> 20), pages_name(weights),
            (double)weights->check_ns / 1e6, (double)weights->pack_ns / 1e6,
            (double)weights->sync_ns / 1e6, weights->path[0] != '\0' ? " sidecar=\"" : "",
            weights->path, weights->path[0] != '\0' ? "\"" : "");
    fg_metric *bytes = fg_metrics_gauge(
        metrics, &(fg_metric_spec){ .name = "weights_bytes",
                                    .help = "Packed weights, by where they came from",
                                    .labels = { { "origin", origin_name(weights->origin) },
                                                { "pages", pages_name(weights) } } });
    fg_metric_set(bytes, (double)weights->bytes);
}

void fg_start_tell(fg_start *start, const fg_engine *engine, uint32_t kv_dtype, fg_metrics *metrics)
{
    char text[256];
    size_t length = 0;
    fg_start_lap(start, FG_START_OTHER);
    for (int i = 0; i < FG_START_PHASES; i++) {
        double seconds = (double)start->spent_ns[i] / 1e9;
        length += (size_t)snprintf(text + length, sizeof text - length, " %s=%.1f", phase_names[i],
                                   seconds * 1e3);
        FG_ASSERT(length < sizeof text);
        fg_metric *spent = fg_metrics_gauge(
            metrics, &(fg_metric_spec){ .name = "start_seconds",
                                        .help = "What the start of this process went into",
                                        .labels = { { "phase", phase_names[i] } } });
        fg_metric_set(spent, seconds);
    }
    fg_info("serve", "event=start_ms total=%.1f%s", (double)(start->lap_ns - start->began_ns) / 1e6,
            text);
    if (engine != NULL) {
        tell_choice(engine, kv_dtype, metrics);
    }
}
