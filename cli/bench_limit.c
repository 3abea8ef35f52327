#include "cli/bench_limit.h"

#include <stdio.h>
#include <string.h>

#include "common/base/dtype.h"

enum { PROBE_MS = 100 };

double *fg_bench_macs_of(fg_bench_macs *macs, uint32_t type)
{
    return fg_dtype_block_count(type) > 1 ? &macs->int8
           : type == FG_BF16              ? &macs->bf16
                                          : &macs->floats;
}

/* Of the last layer what only rows that go on to the head need: of this matrix's products. */
static double spared_share(const char *name, const fg_hparams *hparams)
{
    uint32_t layer;
    int suffix_at = 0;
    if (sscanf(name, "blk.%5u.%n", &layer, &suffix_at) != 1 || suffix_at == 0 ||
        layer + 1 != hparams->layer_count) {
        return 0.0;
    }
    const char *suffix = name + suffix_at;
    if (strcmp(suffix, "attn_k.weight") == 0 || strcmp(suffix, "attn_v.weight") == 0) {
        return 0.0;
    }
    double heads = hparams->head_count;
    return strcmp(suffix, "attn_qkv.weight") == 0 ? heads / (heads + 2 * hparams->kv_head_count)
                                                  : 1.0;
}

fg_bench_cost fg_bench_cost_of(const fg_weights *weights, const fg_hparams *hparams)
{
    fg_bench_cost cost = { 0 };
    for (uint64_t i = 0; i < fg_weights_tensor_count(weights); i++) {
        const fg_tensor *t = fg_weights_tensor(weights, i);
        double macs = (double)t->dims[0] * (double)t->dims[1];
        cost.params += t->dims[0] * t->dims[1] * t->dims[2] * t->dims[3];
        if (t->dim_count == 3 && hparams->expert_count > 0) {
            *fg_bench_macs_of(&cost.layers, t->type) += macs * hparams->expert_used_count;
            *fg_bench_macs_of(&cost.spared, t->type) +=
                spared_share(t->name, hparams) * macs * hparams->expert_used_count;
            cost.expert_bytes += (double)t->size_bytes;
            cost.expert_share = (double)hparams->expert_used_count / hparams->expert_count;
        }
        if (t->dim_count != 2) {
            continue;
        }
        bool is_embedding = strcmp(t->name, "token_embd.weight") == 0;
        bool is_head =
            strcmp(t->name, "output.weight") == 0 || (is_embedding && hparams->tied_output);
        if (is_embedding && !is_head) {
            continue; /* a look-up */
        }
        *fg_bench_macs_of(is_head ? &cost.head : &cost.layers, t->type) += macs;
        *fg_bench_macs_of(&cost.spared, t->type) += spared_share(t->name, hparams) * macs;
        cost.weight_bytes += (double)t->size_bytes;
    }
    return cost;
}

static double rate_of(fg_peaks *peaks, fg_peak_kind kind, uint32_t thread_count,
                      uint32_t sustain_ms)
{
    return sustain_ms > 0 ? fg_peaks_sustain(peaks, kind, thread_count, sustain_ms)
                          : fg_peaks_measure(peaks, kind, thread_count, PROBE_MS);
}

fg_bench_rates fg_bench_rates_measure(fg_peaks *peaks, uint32_t thread_count,
                                      const fg_bench_cost *cost, uint32_t sustain_ms)
{
    fg_bench_rates rates = { 0 };
    rates.read = rate_of(peaks, FG_PEAK_DRAM, thread_count, sustain_ms);
    if (cost->layers.int8 + cost->head.int8 > 0.0) {
        rates.int8 = rate_of(peaks, FG_PEAK_INT8, thread_count, sustain_ms);
    }
    if (cost->layers.bf16 + cost->head.bf16 > 0.0) {
        rates.bf16 = rate_of(peaks, FG_PEAK_BF16, thread_count, sustain_ms);
    }
    bool by_floats = cost->layers.bf16 + cost->head.bf16 > 0.0 && rates.bf16 <= 0.0;
    if (by_floats || cost->layers.floats + cost->head.floats > 0.0) {
        rates.floats = rate_of(peaks, FG_PEAK_F32, thread_count, sustain_ms);
    }
    rates.bf16 = by_floats ? rates.floats : rates.bf16;
    return rates;
}

static double larger(double a, double b)
{
    return a > b ? a : b;
}

fg_bench_rates fg_bench_rates_max(fg_bench_rates a, fg_bench_rates b)
{
    return (fg_bench_rates){ .int8 = larger(a.int8, b.int8),
                             .bf16 = larger(a.bf16, b.bf16),
                             .floats = larger(a.floats, b.floats),
                             .read = larger(a.read, b.read) };
}

void fg_bench_rates_lean(fg_bench_rates *rates, const fg_bench_rates *towards, double share)
{
    rates->int8 += (towards->int8 - rates->int8) * share;
    rates->bf16 += (towards->bf16 - rates->bf16) * share;
    rates->floats += (towards->floats - rates->floats) * share;
    rates->read += (towards->read - rates->read) * share;
}

static double seconds(double amount, double rate)
{
    return rate > 0.0 ? amount / rate : 0.0;
}

/* Of the experts' bytes, for so many rows. */
static double share_read(double expert_share, double rows)
{
    double left = 1.0;
    for (double row = 0.5; row < rows && left > 1e-6; row++) {
        left *= 1.0 - expert_share;
    }
    return 1.0 - left;
}

double fg_bench_limit(const fg_bench_cost *cost, const fg_bench_work *work,
                      const fg_bench_rates *rates, const char **probe_out)
{
    fg_bench_macs layers = cost->layers, head = cost->head, spared = cost->spared;
    double rows = work->rows, head_rows = work->head_rows;
    double early =
        head_rows <= rows / 2 ? rows - head_rows : 0.0; /* rows that end in the last layer */
    double int8_s =
        seconds(rows * layers.int8 + head_rows * head.int8 - early * spared.int8, rates->int8);
    double bf16_s =
        seconds(rows * layers.bf16 + head_rows * head.bf16 - early * spared.bf16, rates->bf16);
    double float_s = seconds(rows * layers.floats + head_rows * head.floats - early * spared.floats,
                             rates->floats);
    double bytes = cost->weight_bytes;
    if (cost->expert_bytes > 0.0 && work->weight_reads > 0.0) {
        bytes += cost->expert_bytes * share_read(cost->expert_share, rows / work->weight_reads);
    }
    double read_s = seconds(work->weight_reads * bytes + work->kv_bytes, rates->read);
    if (int8_s + bf16_s + float_s < read_s) {
        *probe_out = "read";
        return read_s;
    }
    *probe_out = int8_s >= larger(bf16_s, float_s) ? "int8" : bf16_s >= float_s ? "bf16" : "float";
    return int8_s + bf16_s + float_s;
}
