#include "tests/bench/placement/model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/rng.h"
#include "common/sched/cost.h"
#include "proto/wire.h"

enum { BLOCK = 16, CHUNK = 512, SEQS = 64, BLOCKS = 65536, NONE = -1 };

/* A mid-sized accelerator with a model of some billion weights. */
static const fg_speed_claim truth = { .prefill_ns_base = 6e6,
                                      .prefill_ns_per_token = 60e3,
                                      .prefill_ns_per_kv = 2,
                                      .step_ns_base = 12e6,
                                      .step_ns_per_row = 0.3e6,
                                      .push_ns_per_block = 0.15e6 };
#define STEP_NS_PER_KV 20.0
#define PUSH_NS_BASE   2e6
#define SHARE_S        5.0

typedef struct request {
    uint32_t group, prompt, answer, hit; /* tokens; hit: found at the prefill worker */
    uint32_t computed, made;
    int prefill, decode, next; /* next: in a list of the worker's or the router's */
    double arrived, placed, started, first, ended, predicted, queue_share;
    uint64_t ahead;
    bool handed;
} request;

typedef struct worker {
    uint32_t roles;
    double slow;
    int line, line_last; /* prompts */
    int rows[4 * SEQS];
    uint32_t row_count, whole_count;
    double cached_at[MODEL_GROUPS_MAX]; /* last use; 0: not cached */
    uint32_t cached;
    bool busy, chunked;
    double step_ns;
    /* What the router counts. */
    fg_speed speed;
    uint32_t prefills, decodes;
    uint64_t prefill_tokens, placed, blocks_used, kv_tokens;
    double queue_ns;
    double prompt_s, prompt_at; /* computing seen lately, fading with SHARE_S */
} worker;

typedef struct event {
    double at;
    uint64_t order;
    int kind, index;
} event;

enum { ARRIVAL, STEP, HANDED };

typedef struct model {
    const model_load *load;
    fg_place_options options;
    fg_rng rng;
    request *requests;
    worker workers[MODEL_WORKERS_MAX];
    event *heap;
    uint32_t heap_count, started, ended;
    int queue, queue_last; /* at the router */
    uint64_t order, turn, hits, prompts, computed, whole;
    double now;
} model;

/* ---- events ---- */

static bool sooner(const event *a, const event *b)
{
    return a->at != b->at ? a->at < b->at : a->order < b->order;
}

static void post(model *m, double at, int kind, int index)
{
    event e = { at, m->order++, kind, index };
    uint32_t i = m->heap_count++;
    while (i > 0 && sooner(&e, &m->heap[(i - 1) / 2])) {
        m->heap[i] = m->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    m->heap[i] = e;
}

static event next_event(model *m)
{
    event top = m->heap[0], last = m->heap[--m->heap_count];
    uint32_t i = 0;
    for (;;) {
        uint32_t child = 2 * i + 1;
        if (child >= m->heap_count) {
            break;
        }
        child += child + 1 < m->heap_count && sooner(&m->heap[child + 1], &m->heap[child]);
        if (!sooner(&m->heap[child], &last)) {
            break;
        }
        m->heap[i] = m->heap[child];
        i = child;
    }
    m->heap[i] = last;
    return top;
}

static double draw(model *m)
{
    return ((double)(fg_rng_next(&m->rng) >> 11) + 1) / 9007199254740993.0;
}

static uint32_t around(model *m, uint32_t mean)
{
    return mean / 2 + (uint32_t)fg_rng_below(&m->rng, mean + 1);
}

static void push_back(model *m, int *first, int *last, int index)
{
    m->requests[index].next = NONE;
    if (*first == NONE) {
        *first = index;
    } else {
        m->requests[*last].next = index;
    }
    *last = index;
}

/* ---- caches ---- */

static uint32_t cached_tokens(const model *m, const worker *w, const request *r)
{
    return m->load->groups > 0 && w->cached_at[r->group] > 0 ? m->load->prefix_tokens : 0;
}

static void keep_prefix(model *m, worker *w, const request *r)
{
    if (m->load->groups == 0) {
        return;
    }
    w->cached += w->cached_at[r->group] == 0;
    w->cached_at[r->group] = m->now + 1;
    while (w->cached > m->load->cache_groups) {
        uint32_t oldest = 0;
        for (uint32_t g = 0; g < m->load->groups; g++) {
            if (w->cached_at[g] > 0 &&
                (w->cached_at[oldest] == 0 || w->cached_at[g] < w->cached_at[oldest])) {
                oldest = g;
            }
        }
        w->cached_at[oldest] = 0;
        w->cached--;
    }
}

/* The router's view of how busy prompts keep a worker. */
static double prompt_share(const model *m, const worker *w)
{
    double fresh = m->now < SHARE_S ? fmax(m->now, 0.1) : SHARE_S;
    double share = w->prompt_s * exp(-(m->now - w->prompt_at) / SHARE_S) / fresh;
    return share > 0.001 ? share : 0.001;
}

static void note_prompt(const model *m, worker *w, double compute_s)
{
    w->prompt_s = w->prompt_s * exp(-(m->now - w->prompt_at) / SHARE_S) + compute_s;
    w->prompt_at = m->now;
}

/* ---- a worker's steps ---- */

static void begin_step(model *m, int index)
{
    worker *w = &m->workers[index];
    if (w->busy || (w->line == NONE && w->row_count == 0)) {
        return;
    }
    uint64_t kv = 0;
    for (uint32_t i = 0; i < w->row_count; i++) {
        const request *r = &m->requests[w->rows[i]];
        kv += r->prompt + r->made;
    }
    double ns = w->row_count > 0 ? truth.step_ns_base + truth.step_ns_per_row * w->row_count +
                                       STEP_NS_PER_KV * (double)kv
                                 : 0;
    uint32_t left = CHUNK;
    /* One that stays here needs a place in the batch. */
    for (int i = w->line; i != NONE && left > 0; i = m->requests[i].next) {
        request *r = &m->requests[i];
        bool stays = r->prefill == r->decode;
        if (r->started < 0 && stays && w->whole_count + w->row_count >= SEQS) {
            break;
        }
        if (r->started < 0) {
            r->started = m->now;
            r->hit = cached_tokens(m, w, r);
            r->computed = r->hit;
            w->whole_count += stays;
            m->hits += r->hit;
            m->prompts += r->prompt;
        }
        uint32_t part = r->prompt - r->computed < left ? r->prompt - r->computed : left;
        ns += truth.prefill_ns_per_token * part +
              truth.prefill_ns_per_kv * (double)fg_cost_chunk_kv(r->computed, part);
        r->computed += part;
        left -= part;
        m->computed += part;
    }
    w->chunked = left < CHUNK;
    if (w->chunked && w->row_count == 0) {
        ns += truth.prefill_ns_base;
    }
    if (!w->chunked && w->row_count == 0) {
        return;
    }
    w->busy = true;
    w->step_ns = ns * w->slow;
    post(m, m->now + w->step_ns / 1e9, STEP, index);
}

static void end_request(model *m, int index)
{
    request *r = &m->requests[index];
    worker *w = &m->workers[r->decode];
    r->ended = m->now;
    w->decodes--;
    w->blocks_used -= r->prompt / BLOCK + 1;
    w->kv_tokens -= r->prompt;
    m->ended++;
    if (m->load->concurrency > 0 && m->started < m->load->requests) {
        post(m, m->now, ARRIVAL, (int)m->started++);
    }
}

static void join_batch(model *m, int index)
{
    request *r = &m->requests[index];
    worker *w = &m->workers[r->decode];
    if (r->prefill != r->decode) {
        keep_prefix(m, w, r);
    }
    w->rows[w->row_count++] = index;
}

static void end_prompt(model *m, worker *w, int index)
{
    request *r = &m->requests[index];
    keep_prefix(m, w, r);
    r->first = m->now;
    r->made = 1;
    w->prefills--;
    w->prefill_tokens -= r->prompt;
    w->queue_ns -= r->queue_share;
    fg_speed_first first = { .position = r->hit,
                             .tokens = r->prompt - r->hit,
                             .ahead_tokens = r->ahead,
                             .queue_ns = (uint64_t)((r->started - r->placed) * 1e9),
                             .compute_ns = (uint64_t)((m->now - r->started) * 1e9),
                             .seen_ns = (uint64_t)((m->now - r->placed) * 1e9),
                             .predicted_ns = (uint64_t)r->predicted };
    fg_speed_learn_first(&w->speed, &first);
    note_prompt(m, w, m->now - r->started);
    if (r->prefill == r->decode) {
        w->whole_count--;
        join_batch(m, index);
        return;
    }
    worker *d = &m->workers[r->decode];
    uint32_t blocks = (r->prompt - cached_tokens(m, d, r)) / BLOCK + 1;
    uint32_t last = blocks < CHUNK / BLOCK + 1 ? blocks : CHUNK / BLOCK + 1;
    double compute = (m->now - r->started) * 1e9;
    double late = blocks * truth.push_ns_per_block - compute;
    double exposed = PUSH_NS_BASE + fmax(last * truth.push_ns_per_block, late);
    fg_speed_learn_push(&w->speed, blocks, last, compute, (uint64_t)exposed);
    post(m, m->now + exposed / 1e9, HANDED, index);
}

static void end_step(model *m, int index)
{
    worker *w = &m->workers[index];
    w->busy = false;
    uint32_t rows = w->row_count, kept = 0;
    uint64_t kv = 0;
    for (uint32_t i = 0; i < rows; i++) {
        request *r = &m->requests[w->rows[i]];
        kv += r->prompt + r->made;
        if (++r->made >= r->answer) {
            end_request(m, w->rows[i]);
        } else {
            w->rows[kept++] = w->rows[i];
        }
    }
    w->row_count = kept;
    if (!w->chunked) {
        fg_speed_learn_step(&w->speed, rows, kv, (uint64_t)w->step_ns);
    }
    while (w->line != NONE && m->requests[w->line].computed == m->requests[w->line].prompt &&
           m->requests[w->line].started >= 0) {
        int done = w->line;
        w->line = m->requests[done].next;
        end_prompt(m, w, done);
    }
}

/* ---- the router ---- */

static bool place(model *m, int index)
{
    request *r = &m->requests[index];
    fg_place_worker workers[MODEL_WORKERS_MAX];
    fg_place_hit hits[MODEL_WORKERS_MAX];
    for (uint32_t i = 0; i < m->load->workers; i++) {
        const worker *w = &m->workers[i];
        workers[i] = (fg_place_worker){ .roles = w->roles,
                                        .can = FG_PLACE_CAN_WHOLE | FG_PLACE_CAN_LINK,
                                        .block_count = BLOCKS,
                                        .block_size = BLOCK,
                                        .context_max = 65536,
                                        .max_seqs = SEQS,
                                        .prefills = w->prefills,
                                        .decodes = w->decodes,
                                        .prefill_tokens = w->prefill_tokens,
                                        .placed = w->placed,
                                        .blocks_used = (uint32_t)w->blocks_used,
                                        .speed = &w->speed,
                                        .queue_ns = w->queue_ns,
                                        .kv_tokens = w->kv_tokens,
                                        .prompt_share = prompt_share(m, w) };
        uint32_t cached = cached_tokens(m, w, r) / BLOCK;
        hits[i] = (fg_place_hit){ cached, cached };
    }
    fg_place_request ask = { .prompt_tokens = r->prompt,
                             .total_tokens = r->prompt + 2 * m->load->answer_tokens,
                             .answer_tokens = m->load->answer_tokens,
                             .hits = hits,
                             .turn = m->turn++,
                             .dice = fg_rng_next(&m->rng) };
    fg_place_choice choice;
    if (fg_place_pick(&m->options, workers, m->load->workers, &ask, &choice) != FG_PLACE_OK) {
        return false;
    }
    worker *p = &m->workers[choice.prefill], *d = &m->workers[choice.decode];
    r->prefill = (int)choice.prefill;
    r->decode = (int)choice.decode;
    r->placed = m->now;
    r->predicted = (double)choice.ttft_ns;
    r->ahead = p->prefill_tokens;
    r->queue_share = fg_speed_prefill_ns(&p->speed, choice.hit_prefill * BLOCK,
                                         r->prompt - choice.hit_prefill * BLOCK);
    p->queue_ns += r->queue_share;
    p->prefills++;
    p->prefill_tokens += r->prompt;
    p->placed++;
    d->placed += p != d;
    d->decodes++;
    d->blocks_used += r->prompt / BLOCK + 1;
    d->kv_tokens += r->prompt;
    m->whole += p == d;
    push_back(m, &p->line, &p->line_last, index);
    return true;
}

static void pump(model *m)
{
    while (m->queue != NONE) {
        int next = m->requests[m->queue].next;
        if (!place(m, m->queue)) {
            break;
        }
        m->queue = next;
    }
    for (uint32_t i = 0; i < m->load->workers; i++) {
        begin_step(m, (int)i);
    }
}

/* ---- a run ---- */

static void draw_request(model *m, request *r)
{
    const model_load *load = m->load;
    bool hot = fg_rng_below(&m->rng, 100) < load->hot_percent;
    *r = (request){ .started = -1, .prefill = NONE, .decode = NONE };
    r->group = hot ? 0 : (uint32_t)fg_rng_below(&m->rng, load->groups);
    r->prompt = load->prefix_tokens + around(m, load->tail_tokens);
    r->answer = 1 + around(m, load->answer_tokens);
}

static void set_up(model *m)
{
    const model_load *load = m->load;
    double at = 0;
    m->queue = NONE;
    for (uint32_t i = 0; i < load->workers; i++) {
        worker *w = &m->workers[i];
        w->roles = load->mixed                 ? FG_ROLE_PREFILL | FG_ROLE_DECODE
                   : i < load->prefill_workers ? FG_ROLE_PREFILL
                                               : FG_ROLE_DECODE;
        w->slow = i == load->workers - 1 && load->slow_last > 0 ? load->slow_last : 1;
        w->line = NONE;
        fg_speed_init(&w->speed, &truth); /* the slow one claims to be as fast as the others */
    }
    for (uint32_t i = 0; i < load->requests; i++) {
        draw_request(m, &m->requests[i]);
        if (load->concurrency == 0) {
            at += -log(draw(m)) / load->rate;
            post(m, at, ARRIVAL, (int)i);
        } else if (i < load->concurrency) {
            post(m, 0.001 * i, ARRIVAL, (int)i);
            m->started++;
        }
    }
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Good: the first token within four idle prefills and a fifth of a second, the others not more than 2.5
 * times as far apart as on an idle worker. */
static bool is_good(const request *r, double ttft, double itl)
{
    fg_speed idle;
    fg_speed_init(&idle, &truth);
    double limit = 0.2e9 + 4 * fg_speed_prefill_ns(&idle, 0, r->prompt);
    return ttft * 1e9 <= limit && itl * 1e9 <= 2.5 * (truth.step_ns_base + truth.step_ns_per_row);
}

static model_result judge(model *m)
{
    uint32_t count = m->load->requests;
    double *ttfts = calloc(count, sizeof *ttfts);
    model_result result = { .seconds = m->now, .tokens_computed = m->computed };
    for (uint32_t i = 0; i < count; i++) {
        const request *r = &m->requests[i];
        double itl = (r->ended - r->first) / (r->answer > 1 ? r->answer - 1 : 1);
        ttfts[i] = r->first - r->arrived;
        result.ttft_mean += ttfts[i] / count;
        result.itl_mean += itl / count;
        result.latency_mean += (r->ended - r->arrived) / count;
        result.good_per_s += is_good(r, ttfts[i], itl) / m->now;
    }
    qsort(ttfts, count, sizeof *ttfts, by_value);
    result.ttft_p99 = ttfts[count * 99 / 100];
    result.requests_per_s = count / m->now;
    result.hit_share = (double)m->hits / (double)m->prompts;
    result.whole_share = (double)m->whole / count;
    free(ttfts);
    return result;
}

model_result model_run(const model_load *load, const fg_place_options *options)
{
    model *m = calloc(1, sizeof *m);
    m->load = load;
    m->options = *options;
    m->rng.state = load->seed;
    m->requests = calloc(load->requests, sizeof *m->requests);
    m->heap = calloc(load->requests + 4 * MODEL_WORKERS_MAX + load->requests, sizeof *m->heap);
    set_up(m);
    while (m->ended < load->requests && m->heap_count > 0) {
        event e = next_event(m);
        m->now = e.at;
        if (e.kind == ARRIVAL) {
            m->requests[e.index].arrived = m->now;
            push_back(m, &m->queue, &m->queue_last, e.index);
        } else if (e.kind == STEP) {
            end_step(m, e.index);
        } else {
            join_batch(m, e.index);
        }
        pump(m);
    }
    model_result result = judge(m);
    if (m->ended < load->requests) {
        fprintf(stderr, "model: %u of %u requests ended\n", m->ended, load->requests);
    }
    free(m->heap);
    free(m->requests);
    free(m);
    return result;
}

double model_capacity(const model_load *load)
{
    fg_speed idle;
    fg_speed_init(&idle, &truth);
    uint32_t prompt = load->prefix_tokens + load->tail_tokens;
    double rows = 16, step = truth.step_ns_base + rows * truth.step_ns_per_row +
                             rows * STEP_NS_PER_KV * prompt;
    double each = fg_speed_prefill_ns(&idle, 0, prompt) + load->answer_tokens * step / rows;
    return load->workers * 1e9 / each;
}
