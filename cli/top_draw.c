#include "cli/top_draw.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/utf8.h"

enum {
    LINE_MAX_BYTES = 512,
    BRIEF_HEIGHT = 13, /* below it, two lines of numbers are enough */
};

/* ---- text ---- */

typedef struct span {
    uint32_t from, to;
} span;

static bool inside(uint32_t code, const span *spans, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (code >= spans[i].from && code <= spans[i].to) {
            return true;
        }
    }
    return false;
}

/* Columns of a character; 0: it is not shown as it is (controls, what joins or turns others around). */
static uint32_t width_of(uint32_t code)
{
    static const span hidden[] = {
        { 0, 0x1F },        { 0x7F, 0xA0 },       { 0xAD, 0xAD },       { 0x300, 0x36F },
        { 0x483, 0x489 },   { 0x591, 0x5BD },     { 0x610, 0x61A },     { 0x61C, 0x61C },
        { 0x64B, 0x65F },   { 0x180B, 0x180F },   { 0x1AB0, 0x1AFF },   { 0x1DC0, 0x1DFF },
        { 0x200B, 0x200F }, { 0x2028, 0x202E },   { 0x2060, 0x206F },   { 0x20D0, 0x20FF },
        { 0xD800, 0xF8FF }, { 0xFE00, 0xFE0F },   { 0xFE20, 0xFE2F },   { 0xFEFF, 0xFEFF },
        { 0xFFF0, 0xFFFF }, { 0x1D165, 0x1D1AD }, { 0x1F3FB, 0x1F3FF }, { 0xE0000, 0x10FFFF },
    };
    static const span wide[] = {
        { 0x1100, 0x115F }, { 0x231A, 0x231B }, { 0x23E9, 0x23F3 },   { 0x2614, 0x2615 },
        { 0x26A1, 0x26A1 }, { 0x2705, 0x2705 }, { 0x2728, 0x2728 },   { 0x2E80, 0xA4CF },
        { 0xA960, 0xA97F }, { 0xAC00, 0xD7A3 }, { 0xF900, 0xFAFF },   { 0xFE30, 0xFE6F },
        { 0xFF00, 0xFF60 }, { 0xFFE0, 0xFFE6 }, { 0x1F300, 0x1FAFF }, { 0x20000, 0x3FFFD },
    };
    if (inside(code, hidden, sizeof hidden / sizeof hidden[0])) {
        return 0;
    }
    return inside(code, wide, sizeof wide / sizeof wide[0]) ? 2 : 1;
}

uint32_t fg_top_put_text(fg_buf *out, const char *text, uint32_t columns)
{
    uint32_t used = 0;
    size_t length = strlen(text);
    for (size_t at = 0; at < length && used < columns;) {
        uint32_t code = 0;
        size_t bytes = fg_utf8_decode(text + at, length - at, &code);
        uint32_t width = bytes == 0 ? 0 : width_of(code);
        if (used + width > columns) {
            break; /* it would be cut in two */
        }
        if (width == 0) {
            fg_buf_putc(out, '?');
        } else {
            fg_buf_append(out, text + at, bytes);
        }
        used += width == 0 ? 1 : width;
        at += bytes == 0 ? 1 : bytes;
    }
    return used;
}

static void put_blanks(fg_buf *out, uint32_t count)
{
    while (count-- > 0) {
        fg_buf_putc(out, ' ');
    }
}

/* ---- a page ---- */

typedef struct page {
    fg_buf *out;
    uint32_t width, lines_left; /* UINT32_MAX: no end */
} page;

static bool has_room(const page *p)
{
    return p->lines_left > 0;
}

/* Ends a line: what a cell was padded with at its end is of no use. */
static void end_line(page *p, size_t began)
{
    fg_buf *out = p->out;
    while (out->size > began && out->data[out->size - 1] == ' ') {
        out->data[--out->size] = '\0';
    }
    fg_buf_putc(out, '\n');
    p->lines_left -= p->lines_left == UINT32_MAX ? 0 : 1;
}

static void put_line(page *p, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void put_line(page *p, const char *format, ...)
{
    char line[LINE_MAX_BYTES];
    va_list args;
    if (!has_room(p)) {
        return;
    }
    va_start(args, format);
    vsnprintf(line, sizeof line, format, args);
    va_end(args);
    size_t began = p->out->size;
    fg_top_put_text(p->out, line, p->width);
    end_line(p, began);
}

/* One cell of a table. */
typedef struct column {
    const char *title;
    uint32_t width;
    bool right; /* numbers */
    bool shown;
} column;

/* The columns that come first in `order` get their place as long as there is room. */
static void choose_columns(column *columns, size_t count, const uint8_t *order, uint32_t width)
{
    uint32_t used = 0;
    for (size_t i = 0; i < count; i++) {
        column *c = &columns[order[i]];
        uint32_t need = c->width + (used > 0 ? 1 : 0);
        c->shown = used + need <= width;
        used += c->shown ? need : 0;
    }
    /* Where not even the first fits, it is cut. */
    column *first = &columns[order[0]];
    if (used == 0) {
        first->shown = true;
        first->width = width;
    }
}

static void put_row(page *p, const column *columns, size_t count, char (*cells)[LINE_MAX_BYTES])
{
    size_t began = p->out->size;
    bool first = true;
    for (size_t i = 0; i < count; i++) {
        const column *c = &columns[i];
        if (!c->shown) {
            continue;
        }
        put_blanks(p->out, first ? 0 : 1);
        first = false;
        const char *text = cells == NULL ? c->title : cells[i];
        size_t at = p->out->size;
        uint32_t used = fg_top_put_text(p->out, text, c->width);
        if (c->right && used < c->width && !p->out->failed) {
            p->out->size = at;
            put_blanks(p->out, c->width - used);
            fg_top_put_text(p->out, text, c->width);
        } else {
            put_blanks(p->out, c->width - used);
        }
    }
    end_line(p, began);
}

/* ---- words for numbers ---- */

typedef struct word {
    char text[24];
} word;

/* Three digits and a unit, or "-" for what is unknown. */
static word number_word(double value)
{
    static const char *const units[] = { "", "k", "M", "G", "T", "P" };
    word w = { "-" };
    size_t unit = 0;
    if (!isfinite(value)) {
        return w;
    }
    while (fabs(value) >= 999.5 && unit + 1 < sizeof units / sizeof units[0]) {
        value /= 1000;
        unit++;
    }
    bool whole = value == floor(value) || fabs(value) >= 99.95;
    snprintf(w.text, sizeof w.text, "%.*f%s",
             whole                             ? 0
             : fabs(value) < 9.995 && unit > 0 ? 2
                                               : 1,
             value > 1e15 ? 1e15 : value, units[unit]);
    return w;
}

static word share_word(double share)
{
    word w = { "-" };
    if (isfinite(share)) {
        double percent = share < 0 ? 0 : share > 1 ? 100 : share * 100;
        snprintf(w.text, sizeof w.text, "%.0f%%", percent);
    }
    return w;
}

static word time_word(double ms)
{
    word w = { "-" };
    if (!isfinite(ms) || ms < 0) {
        return w;
    }
    double s = ms / 1000;
    if (s < 0.0995) {
        snprintf(w.text, sizeof w.text, ms < 9.95 ? "%.1fms" : "%.0fms", ms);
    } else if (s < 1) {
        snprintf(w.text, sizeof w.text, "%.0fms", ms);
    } else if (s < 99.95) {
        snprintf(w.text, sizeof w.text, "%.1fs", s);
    } else if (s < 3600) {
        snprintf(w.text, sizeof w.text, "%.0fm%02.0fs", floor(s / 60), floor(fmod(s, 60)));
    } else if (s < 360000) {
        snprintf(w.text, sizeof w.text, "%.0fh%02.0fm", floor(s / 3600), floor(fmod(s / 60, 60)));
    } else {
        snprintf(w.text, sizeof w.text, "%.0fd", s / 86400 > 1e6 ? 1e6 : floor(s / 86400));
    }
    return w;
}

/* ---- the parts ---- */

static void put_head(page *p, const fg_top_sample *s, const fg_top_view *view)
{
    if (view->problem != NULL) {
        put_line(p, "forge top  AWAY, asked again in %u s: %s", view->retry_s, view->problem);
    } else {
        put_line(p, "forge top  %s%s  up %s  %s",
                 s == NULL  ? "waiting"
                 : s->ready ? "ready"
                            : "not ready",
                 view->paused ? " (paused)" : "", time_word(s == NULL ? NAN : s->uptime_ms).text,
                 view->url);
    }
    if (s == NULL) {
        return;
    }
    put_line(p, "requests  running %s  queued %s  %s/s  429 %s  failed %s",
             number_word(s->running).text, number_word(s->queued).text,
             number_word(s->requests_per_s).text, number_word(s->refused_429).text,
             number_word(s->failed).text);
    if (view->height != 0 && view->height < BRIEF_HEIGHT) {
        return; /* the rows say more */
    }
    put_line(p, "tokens/s  in %s  out %s  kv %s of %s blocks in use",
             number_word(s->prompt_per_s).text, number_word(s->generated_per_s).text,
             share_word(s->kv_usage).text, number_word(s->kv_blocks).text);
    put_line(p, "latency   ttft p50 %s p95 %s  itl p50 %s p95 %s",
             time_word(s->first_p50_s * 1000).text, time_word(s->first_p95_s * 1000).text,
             time_word(s->inter_p50_s * 1000).text, time_word(s->inter_p95_s * 1000).text);
    put_line(p, "queue     %s requests  %s tokens  oldest %s", number_word(s->queued).text,
             number_word(s->queued_tokens).text, time_word(s->oldest_queued_ms).text);
}

/* '#' in use, '=' cached, '.' free. A part that is there shows, as far as there is room. */
static void make_bar(const fg_top_worker *w, uint32_t width, char *out)
{
    double all = w->total > 0 ? w->total : 1;
    double used = w->total - w->free - w->cached;
    used = used < 0 ? 0 : used;
    uint32_t places = width > 2 ? width - 2 : 0;
    uint32_t in_use = (uint32_t)fmin(places, ceil(used / all * places));
    uint32_t cached = (uint32_t)fmin(places - in_use, ceil(w->cached / all * places));
    uint32_t at = 0;
    out[at++] = '[';
    for (uint32_t i = 0; i < places; i++) {
        out[at++] = (char)(i < in_use ? '#' : i < in_use + cached ? '=' : '.');
    }
    out[at++] = ']';
    out[at] = '\0';
}

static double key_of(const fg_top_worker *w, fg_top_sort sort)
{
    switch (sort) {
    case FG_TOP_BY_BUSY:
        return isfinite(w->busy_share) ? w->busy_share : -1;
    case FG_TOP_BY_RUNNING:
        return (double)w->running + w->waiting;
    case FG_TOP_BY_BLOCKS:
        return w->total - w->free - w->cached;
    default:
        return 0;
    }
}

/* qsort has no place for the order: it is sorted by one key after the other instead. */
typedef struct ranked {
    double key;
    const char *name;
    const fg_top_worker *worker;
} ranked;

static int compare_ranked(const void *left, const void *right)
{
    const ranked *a = left, *b = right;
    return a->key != b->key ? (a->key > b->key ? -1 : 1) : strcmp(a->name, b->name);
}

enum { W_NAME, W_ROLE, W_STATE, W_RUN, W_WAIT, W_BAR, W_HIT, W_STEPS, W_BUSY, W_SEEN, W_COUNT };

static void put_worker(page *p, const column *columns, const fg_top_worker *w)
{
    static const double late_ms = 1000;
    char cells[W_COUNT][LINE_MAX_BYTES];
    const char *state = w->draining ? "draining" : w->silent_ms > late_ms ? "silent" : "up";
    snprintf(cells[W_NAME], LINE_MAX_BYTES, "%s", w->name);
    snprintf(cells[W_ROLE], LINE_MAX_BYTES, "%s", w->role);
    snprintf(cells[W_STATE], LINE_MAX_BYTES, "%s", state);
    snprintf(cells[W_RUN], LINE_MAX_BYTES, "%s", number_word(w->running).text);
    snprintf(cells[W_WAIT], LINE_MAX_BYTES, "%s", number_word(w->waiting).text);
    make_bar(w, columns[W_BAR].width, cells[W_BAR]);
    snprintf(cells[W_HIT], LINE_MAX_BYTES, "%s", share_word(w->hit_share).text);
    snprintf(cells[W_STEPS], LINE_MAX_BYTES, "%s", number_word(w->steps_per_s).text);
    snprintf(cells[W_BUSY], LINE_MAX_BYTES, "%s", share_word(w->busy_share).text);
    snprintf(cells[W_SEEN], LINE_MAX_BYTES, "%s", time_word(w->silent_ms).text);
    put_row(p, columns, W_COUNT, cells);
}

static void put_more(page *p, uint32_t count, const char *what)
{
    if (count > 0) {
        put_line(p, "  and %u more %s", count, what);
    }
}

static uint32_t between(uint32_t least, uint32_t value, uint32_t most)
{
    return value < least ? least : value > most ? most : value;
}

/* `lines` for title, rows and what is left out. */
static void put_workers(page *p, const fg_top_sample *s, const fg_top_view *view, uint32_t lines)
{
    /* Who stays when it gets narrow: name, load, blocks, and then the rest. */
    static const uint8_t order[] = { W_NAME, W_RUN,  W_WAIT,  W_STATE, W_BAR,
                                     W_BUSY, W_ROLE, W_STEPS, W_HIT,   W_SEEN };
    ranked rows[FG_TOP_WORKERS_MAX];
    uint32_t width = p->width;
    column columns[W_COUNT] = {
        [W_NAME] = { "WORKER", between(8, width / 7, 32), false, false },
        [W_ROLE] = { "ROLE", 7, false, false },
        [W_STATE] = { "STATE", 8, false, false },
        [W_RUN] = { "RUN", 4, true, false },
        [W_WAIT] = { "WAIT", 4, true, false },
        [W_BAR] = { "BLOCKS", between(10, width / 6, 60), false, false },
        [W_HIT] = { "HIT", 4, true, false },
        [W_STEPS] = { "STEPS/S", 7, true, false },
        [W_BUSY] = { "BUSY", 4, true, false },
        [W_SEEN] = { "SEEN", 6, true, false },
    };
    if (lines == 0 || !has_room(p)) {
        return;
    }
    choose_columns(columns, W_COUNT, order, width);
    put_row(p, columns, W_COUNT, NULL);
    for (uint32_t i = 0; i < s->worker_count; i++) {
        const fg_top_worker *w = &s->workers[i];
        rows[i] = (ranked){ .key = key_of(w, view->sort), .name = w->name, .worker = w };
    }
    qsort(rows, s->worker_count, sizeof rows[0], compare_ranked);
    uint32_t shown = s->worker_total < lines ? s->worker_total : lines >= 2 ? lines - 2 : 0;
    shown = shown < s->worker_count ? shown : s->worker_count;
    for (uint32_t i = 0; i < shown && has_room(p); i++) {
        put_worker(p, columns, rows[i].worker);
    }
    put_more(p, lines > shown + 1 ? s->worker_total - shown : 0, "workers");
}

enum { S_ID, S_STATE, S_AGE, S_IN, S_PROMPT, S_TOKENS, S_PREFILL, S_DECODE, S_COUNT };

static void put_stream(page *p, const column *columns, const fg_top_stream *s)
{
    char cells[S_COUNT][LINE_MAX_BYTES];
    snprintf(cells[S_ID], LINE_MAX_BYTES, "%s", s->id);
    snprintf(cells[S_STATE], LINE_MAX_BYTES, "%s", s->state);
    snprintf(cells[S_AGE], LINE_MAX_BYTES, "%s", time_word(s->age_ms).text);
    snprintf(cells[S_IN], LINE_MAX_BYTES, "%s", time_word(s->in_state_ms).text);
    snprintf(cells[S_PROMPT], LINE_MAX_BYTES, "%u", s->prompt_tokens);
    snprintf(cells[S_TOKENS], LINE_MAX_BYTES, "%u", s->tokens);
    snprintf(cells[S_PREFILL], LINE_MAX_BYTES, "%s", s->prefill[0] == '\0' ? "-" : s->prefill);
    snprintf(cells[S_DECODE], LINE_MAX_BYTES, "%s", s->decode[0] == '\0' ? "-" : s->decode);
    put_row(p, columns, S_COUNT, cells);
}

/* The oldest first, as the server lists them. */
static void put_streams(page *p, const fg_top_sample *s, uint32_t lines)
{
    static const uint8_t order[] = { S_ID,      S_TOKENS, S_AGE, S_STATE,
                                     S_PREFILL, S_DECODE, S_IN,  S_PROMPT };
    uint32_t name = between(8, p->width / 7, 32);
    column columns[S_COUNT] = {
        [S_ID] = { "REQUEST", 16, false, false },
        [S_STATE] = { "STATE", 12, false, false },
        [S_AGE] = { "AGE", 6, true, false },
        [S_IN] = { "IN", 6, true, false },
        [S_PROMPT] = { "PROMPT", 7, true, false },
        [S_TOKENS] = { "TOKENS", 6, true, false },
        [S_PREFILL] = { "PREFILL", name, false, false },
        [S_DECODE] = { "DECODE", name, false, false },
    };
    if (lines == 0 || !has_room(p)) {
        return;
    }
    choose_columns(columns, S_COUNT, order, p->width);
    put_row(p, columns, S_COUNT, NULL);
    uint32_t shown = s->stream_total < lines ? s->stream_total : lines >= 2 ? lines - 2 : 0;
    shown = shown < s->stream_count ? shown : s->stream_count;
    for (uint32_t i = 0; i < shown && has_room(p); i++) {
        put_stream(p, columns, &s->streams[i]);
    }
    put_more(p, lines > shown + 1 ? s->stream_total - shown : 0, "requests");
}

static void put_help(page *p)
{
    static const char *const lines[] = {
        "q  leave    p  pause    s  sort the workers    ?  this",
        "",
        "BLOCKS   # in use   = cached, given up when needed   . free",
        "HIT      prompt tokens found in the worker's prefix cache, since it started",
        "BUSY     share of the time that its engine computed",
        "SEEN     since the worker last spoke",
        "IN       since the request entered its state",
        "ttft     from an accepted request to its first token",
        "itl      from one token to the next",
    };
    for (size_t i = 0; i < sizeof lines / sizeof lines[0]; i++) {
        put_line(p, "%s", lines[i]);
    }
}

static void put_tables(page *p, const fg_top_sample *s, const fg_top_view *view)
{
    bool endless = p->lines_left == UINT32_MAX;
    uint32_t gaps = endless || p->lines_left >= 12 ? 1 : 0;
    if (gaps > 0) {
        put_line(p, "%s", "");
    }
    /* The workers get what they need up to half; the requests the rest, and what was not needed. */
    uint32_t left = endless ? UINT32_MAX / 2 : p->lines_left - gaps;
    uint32_t streams_need = s->stream_total + 1, workers_need = s->worker_total + 1;
    uint32_t most = left > streams_need ? left - streams_need : 0;
    most = most > left / 2 ? most : left / 2;
    uint32_t worker_lines = workers_need < most ? workers_need : most;
    put_workers(p, s, view, worker_lines);
    if (gaps > 0) {
        put_line(p, "%s", "");
    }
    put_streams(p, s, endless ? UINT32_MAX / 2 : p->lines_left);
}

const char *fg_top_sort_name(fg_top_sort sort)
{
    static const char *const names[] = { "name", "busy", "running", "blocks" };
    return (unsigned)sort < FG_TOP_SORT_COUNT ? names[sort] : "name";
}

bool fg_top_draw(const fg_top_sample *sample, const fg_top_view *view, fg_buf *out)
{
    page p = { .out = out,
               .width = view->width,
               .lines_left = view->height == 0 ? UINT32_MAX : view->height };
    bool keys = view->keys && view->height >= 8;
    if (view->width == 0) {
        return true;
    }
    p.lines_left -= keys ? 1 : 0;
    put_head(&p, sample, view);
    if (view->help) {
        put_help(&p);
    } else if (sample != NULL && has_room(&p)) {
        put_tables(&p, sample, view);
    }
    if (keys) {
        while (has_room(&p)) {
            put_line(&p, "%s", "");
        }
        p.lines_left = 1;
        put_line(&p, "q quit  p %s  s sort (%s)  ? help", view->paused ? "go on" : "pause",
                 fg_top_sort_name(view->sort));
    }
    return !out->failed;
}
