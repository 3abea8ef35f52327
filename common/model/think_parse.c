#include "common/model/think_parse.h"

#include <string.h>

static const char OPEN[] = "<think>";
static const char CLOSE[] = "</think>";

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

bool fg_think_known(const char *source, size_t length)
{
    return length > 0 && (memmem(source, length, OPEN, sizeof OPEN - 1) != NULL ||
                          memmem(source, length, CLOSE, sizeof CLOSE - 1) != NULL);
}

bool fg_think_opened(const char *prompt, size_t length, size_t *mark_at_out)
{
    while (length > 0 && is_space(prompt[length - 1])) {
        length--;
    }
    if (length < sizeof OPEN - 1) {
        return false;
    }
    *mark_at_out = length - (sizeof OPEN - 1);
    return memcmp(prompt + *mark_at_out, OPEN, sizeof OPEN - 1) == 0;
}

void fg_think_parse_init(fg_think_parse *p, bool inside, const fg_think_events *events)
{
    *p = (fg_think_parse){ .events = *events,
                           .place = inside ? FG_THINK_INSIDE : FG_THINK_BEFORE,
                           .may_open = inside,
                           .fresh = true };
}

/* ---- what is told ---- */

static void tell(fg_think_parse *p, const char *text, size_t length)
{
    if (length == 0) {
        return;
    }
    if (p->place == FG_THINK_INSIDE) {
        p->events.on_thought(p->events.ctx, text, length);
    } else {
        p->events.on_text(p->events.ctx, text, length);
    }
    p->fresh = false;
    p->may_open = false;
}

static void forget(fg_think_parse *p)
{
    p->space_count = 0;
    p->matched = 0;
}

/* What was held is beside no mark, and no mark. */
static void release(fg_think_parse *p)
{
    p->place = p->place == FG_THINK_BEFORE ? FG_THINK_NONE : p->place;
    tell(p, p->spaces, p->space_count);
    tell(p, p->mark, p->matched);
    forget(p);
}

static void enter(fg_think_parse *p, fg_think_place place)
{
    forget(p);
    p->place = place;
    p->may_open = false;
    p->fresh = true;
}

/* ---- where a byte goes ---- */

/* Whether `c` goes on with a mark that may stand here. */
static bool grow(fg_think_parse *p, char c)
{
    const char *marks[] = { p->place == FG_THINK_BEFORE || p->may_open ? OPEN : NULL,
                            p->place == FG_THINK_INSIDE ? CLOSE : NULL };
    for (size_t i = 0; i < 2; i++) {
        const char *mark = marks[i];
        if (mark != NULL && (p->matched == 0 || strncmp(mark, p->mark, p->matched) == 0) &&
            mark[p->matched] == c) {
            p->mark = mark;
            p->matched++;
            return true;
        }
    }
    return false;
}

static void hold_space(fg_think_parse *p, char c)
{
    if (p->place == FG_THINK_INSIDE && p->fresh) {
        return; /* beside the first mark */
    }
    if (p->space_count == FG_THINK_HELD_MAX) {
        release(p);
    }
    if (p->place == FG_THINK_NONE) {
        tell(p, &c, 1);
    } else {
        p->spaces[p->space_count++] = c;
    }
}

/* BEFORE or INSIDE. False: what was held is shown, and the byte is to be looked at again. */
static bool take(fg_think_parse *p, char c)
{
    if (grow(p, c)) {
        if (p->mark[p->matched] == '\0') {
            enter(p, p->mark == OPEN ? FG_THINK_INSIDE : FG_THINK_BEHIND);
        }
        return true;
    }
    if (p->matched > 0) {
        release(p);
        return false;
    }
    if (is_space(c)) {
        hold_space(p, c);
        return true;
    }
    release(p);
    tell(p, &c, 1);
    return true;
}

/* The bytes of a thought up to the next one that may have to be held. */
static size_t plain_length(const char *text, size_t length)
{
    size_t at = 0;
    while (at < length && !is_space(text[at]) && text[at] != OPEN[0]) {
        at++;
    }
    return at;
}

void fg_think_parse_push(fg_think_parse *p, const char *text, size_t length)
{
    size_t at = 0;
    if (length == 0) {
        return;
    }
    while (at < length && (p->place == FG_THINK_BEFORE || p->place == FG_THINK_INSIDE)) {
        size_t plain = 0;
        if (p->place == FG_THINK_INSIDE && p->matched == 0) {
            plain = plain_length(text + at, length - at);
        }
        if (plain > 0) {
            release(p);
            tell(p, text + at, plain);
            at += plain;
        } else {
            at += take(p, text[at]);
        }
    }
    while (at < length && p->place == FG_THINK_BEHIND && p->fresh &&
           (text[at] == '\n' || text[at] == '\r')) {
        at++;
    }
    tell(p, text + at, length - at);
}

static bool is_mark(const char *mark, const char *name, size_t length)
{
    return strlen(mark) == length && memcmp(mark, name, length) == 0;
}

bool fg_think_parse_knows(const char *name, size_t length)
{
    return is_mark(OPEN, name, length) || is_mark(CLOSE, name, length);
}

bool fg_think_parse_token(fg_think_parse *p, const char *name, size_t length)
{
    bool inside = p->place == FG_THINK_INSIDE;
    if (p->matched > 0) {
        release(p); /* half a mark is none */
    }
    if (inside && is_mark(CLOSE, name, length)) {
        enter(p, FG_THINK_BEHIND);
    } else if (p->place == FG_THINK_BEFORE && is_mark(OPEN, name, length)) {
        enter(p, FG_THINK_INSIDE);
    } else if (inside) {
        p->may_open = false;
    } else {
        release(p);
        p->fresh = p->fresh && fg_think_parse_knows(name, length);
    }
    return inside || fg_think_parse_knows(name, length);
}

void fg_think_parse_finish(fg_think_parse *p)
{
    release(p);
}
