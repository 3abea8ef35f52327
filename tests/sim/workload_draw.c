#include "tests/sim/workload.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/limits.h"
#include "common/base/mem.h"
#include "common/base/rng.h"

enum { PREFIXES_MAX = 4096, PREFIX_IDS_MAX = 4096 };

/* All numbers; whole ones are cut. */
typedef struct load {
    double requests, rate;                     /* rate: a second, as a Poisson process */
    double prefixes, prefix_tokens, zipf, hot; /* hot: percent that take the first prefix */
    double tail_tokens, answer_tokens, spread; /* spread: percent up and down, evenly */
    double long_share, long_tokens, long_answer;
} load;

static const load usual = {
    .requests = 2000,
    .rate = 10,
    .prefixes = 64,
    .prefix_tokens = 4096,
    .zipf = 1,
    .tail_tokens = 256,
    .answer_tokens = 128,
    .spread = 50,
    .long_tokens = 8192,
    .long_answer = 16,
};

#define AT(member) offsetof(load, member)
static const struct {
    const char *name;
    size_t offset;
    double low, high;
} keys[] = {
    { "requests", AT(requests), 1, FG_WORKLOAD_REQUESTS_MAX },
    { "rate", AT(rate), 1e-3, 1e6 },
    { "prefixes", AT(prefixes), 1, PREFIXES_MAX },
    { "prefix-tokens", AT(prefix_tokens), 0, (double)PREFIX_IDS_MAX *FG_WORKLOAD_BLOCK_TOKENS },
    { "zipf", AT(zipf), 0, 10 },
    { "hot", AT(hot), 0, 100 },
    { "tail-tokens", AT(tail_tokens), 1, 1e6 },
    { "answer-tokens", AT(answer_tokens), 1, 1e6 },
    { "spread", AT(spread), 0, 100 },
    { "long", AT(long_share), 0, 100 },
    { "long-tokens", AT(long_tokens), 1, 1e6 },
    { "long-answer", AT(long_answer), 1, 1e6 },
};
enum { KEYS = sizeof keys / sizeof *keys };

static fg_status read_pair(const char *pair, size_t size, load *load_out, fg_error *err)
{
    char text[64];
    if (size < sizeof text) {
        memcpy(text, pair, size);
        text[size] = '\0';
        size_t length = strcspn(text, "=");
        for (size_t i = 0; i < KEYS; i++) {
            if (strlen(keys[i].name) != length || memcmp(keys[i].name, text, length) != 0) {
                continue;
            }
            const char *digits = text + length + (text[length] == '=');
            char *end;
            double value = strtod(digits, &end);
            if (digits[0] < '0' || digits[0] > '9' || *end != '\0' || !(value >= keys[i].low) ||
                value > keys[i].high) {
                return fg_fail(err, FG_BAD_INPUT, "--synthetic: %s must be a number of %g to %g",
                               keys[i].name, keys[i].low, keys[i].high);
            }
            memcpy((char *)load_out + keys[i].offset, &value, sizeof value);
            return FG_OK;
        }
    }
    return fg_fail(err, FG_BAD_INPUT, "--synthetic: \"%.*s\" is none of its keys",
                   (int)(size < 60 ? size : 60), pair);
}

/* Above 0 and at most 1. */
static double draw_share(fg_rng *rng)
{
    return ((double)(fg_rng_next(rng) >> 11) + 1) / 9007199254740992.0;
}

static uint32_t draw_length(fg_rng *rng, double mean, double spread)
{
    double factor = 1 + spread / 100 * (2 * draw_share(rng) - 1);
    double length = floor(mean * factor);
    double most = FG_LIMIT_CONTEXT_TOKENS;
    return length < 1 ? 1 : length > most ? (uint32_t)most : (uint32_t)length;
}

/* The k-th prefix has weight 1 / k^zipf. */
static uint32_t draw_prefix(fg_rng *rng, const load *l, const double *sums)
{
    uint32_t count = (uint32_t)l->prefixes;
    bool hot = draw_share(rng) * 100 <= l->hot;
    double at = draw_share(rng) * sums[count - 1];
    uint32_t prefix = 0;
    while (!hot && prefix + 1 < count && sums[prefix] < at) {
        prefix++;
    }
    return prefix;
}

typedef struct drawing {
    load load;
    fg_rng rng;
    double sums[PREFIXES_MAX];
    bool seen[PREFIXES_MAX];
    uint32_t prefix_ids;
    double at_s;
} drawing;

static void draw_one(drawing *d, fg_workload *w)
{
    const load *l = &d->load;
    fg_workload_request *r = &w->requests[w->count];
    d->at_s += w->count == 0 ? 0 : -log(draw_share(&d->rng)) / l->rate;
    bool is_long = draw_share(&d->rng) * 100 <= l->long_share;
    uint32_t prefix = draw_prefix(&d->rng, l, d->sums), ids = is_long ? 0 : d->prefix_ids;
    uint32_t own =
        draw_length(&d->rng, is_long ? l->long_tokens : l->tail_tokens, is_long ? 0 : l->spread);
    r->arrival_ns = (uint64_t)(d->at_s * 1e9);
    r->prompt_tokens = ids * FG_WORKLOAD_BLOCK_TOKENS + own;
    r->output_tokens = draw_length(&d->rng, is_long ? l->long_answer : l->answer_tokens, l->spread);
    r->first_id = w->id_count;
    r->id_count = (r->prompt_tokens + FG_WORKLOAD_BLOCK_TOKENS - 1) / FG_WORKLOAD_BLOCK_TOKENS;
    for (uint32_t i = 0; i < r->id_count; i++) {
        /* A prefix's ids are small; those of one request alone have its number above. */
        w->ids[w->id_count++] =
            i < ids ? (uint64_t)prefix * PREFIX_IDS_MAX + i : (uint64_t)(w->count + 1) << 32 | i;
    }
    w->known_tokens += d->seen[prefix] ? (uint64_t)ids * FG_WORKLOAD_BLOCK_TOKENS : 0;
    d->seen[prefix] = d->seen[prefix] || !is_long;
    w->prompt_tokens += r->prompt_tokens;
    w->output_tokens += r->output_tokens;
    w->count++;
}

static fg_status draw_all(drawing *d, fg_workload *workload_out, fg_error *err)
{
    const load *l = &d->load;
    d->prefix_ids = (uint32_t)l->prefix_tokens / FG_WORKLOAD_BLOCK_TOKENS;
    double sum = 0, longest = l->tail_tokens * 2 + d->prefix_ids * (double)FG_WORKLOAD_BLOCK_TOKENS;
    for (uint32_t i = 0; i < (uint32_t)l->prefixes; i++) {
        d->sums[i] = sum += pow(i + 1.0, -l->zipf);
    }
    longest = longest > l->long_tokens ? longest : l->long_tokens;
    double ids = l->requests * (longest / FG_WORKLOAD_BLOCK_TOKENS + 1);
    if (longest > FG_LIMIT_CONTEXT_TOKENS || ids > UINT32_MAX / 2) {
        return fg_fail(err, FG_BAD_INPUT, "--synthetic: these are more tokens than fit");
    }
    fg_workload w = { .requests = fg_mem_array((size_t)l->requests, sizeof *w.requests),
                      .ids = fg_mem_array((size_t)ids, sizeof *w.ids) };
    if (w.requests == NULL || w.ids == NULL) {
        fg_workload_free(&w);
        return fg_fail(err, FG_AGAIN, "out of memory for the requests");
    }
    while (w.count < (uint32_t)l->requests) {
        draw_one(d, &w);
    }
    *workload_out = w;
    return FG_OK;
}

fg_status fg_workload_draw(const char *text, uint64_t seed, fg_workload *workload_out,
                           fg_error *err)
{
    drawing *d = fg_mem_alloc(sizeof *d);
    if (d == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for the requests");
    }
    d->load = usual;
    d->rng.state = seed;
    fg_status status = FG_OK;
    while (status == FG_OK && *text != '\0') {
        size_t size = strcspn(text, ",");
        status = read_pair(text, size, &d->load, err);
        text += size + (text[size] == ',');
    }
    status = status != FG_OK ? status : draw_all(d, workload_out, err);
    fg_mem_free(d);
    return status;
}
