#include "common/model/json_walk.h"

#include <stddef.h>
#include <string.h>

#include "common/base/limits.h"

enum {
    AT_VALUE,
    AT_VALUE_OR_END, /* behind `[` */
    AT_KEY,
    AT_KEY_OR_END, /* behind `{` */
    AT_COLON,
    AT_NEXT, /* behind a value */
    IN_STRING,
    IN_ESCAPE,
    IN_HEX,
    IN_WORD,
    IN_NUMBER,
};

/* What of a number came last. */
enum { MINUS, ZERO, DIGITS, POINT, FRACTION, EXPONENT, SIGN, EXPONENT_DIGITS };

_Static_assert(FG_LIMIT_JSON_DEPTH <= 64, "a level is a bit");

void fg_json_walk_init(fg_json_walk *walk)
{
    *walk = (fg_json_walk){ .state = AT_VALUE };
}

bool fg_json_walk_in_string(const fg_json_walk *walk)
{
    return walk->state == IN_STRING || walk->state == IN_ESCAPE || walk->state == IN_HEX;
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* Opens a level, at its first byte. */
static fg_json_step open_level(fg_json_walk *walk, bool object)
{
    if (walk->depth == FG_LIMIT_JSON_DEPTH) {
        return FG_JSON_STEP_BAD;
    }
    uint64_t bit = (uint64_t)1 << walk->depth;
    walk->objects = object ? walk->objects | bit : walk->objects & ~bit;
    walk->depth++;
    walk->state = object ? AT_KEY_OR_END : AT_VALUE_OR_END;
    return walk->depth == 2 ? FG_JSON_STEP_VALUE_BEGIN : FG_JSON_STEP_INSIDE;
}

static fg_json_step close_level(fg_json_walk *walk)
{
    walk->depth--;
    walk->state = AT_NEXT;
    return walk->depth == 0   ? FG_JSON_STEP_DONE
           : walk->depth == 1 ? FG_JSON_STEP_VALUE_END
                              : FG_JSON_STEP_INSIDE;
}

static fg_json_step begin_string(fg_json_walk *walk, bool key)
{
    walk->state = IN_STRING;
    walk->in_key = key;
    return walk->depth > 1 ? FG_JSON_STEP_INSIDE
           : key           ? FG_JSON_STEP_KEY_BEGIN
                           : FG_JSON_STEP_VALUE_BEGIN;
}

static fg_json_step begin_value(fg_json_walk *walk, char c)
{
    if (walk->depth == 0 && c != '{') {
        return FG_JSON_STEP_BAD;
    }
    switch (c) {
    case '{':
        return open_level(walk, true);
    case '[':
        return open_level(walk, false);
    case '"':
        return begin_string(walk, false);
    case 't':
        walk->word = "rue";
        break;
    case 'f':
        walk->word = "alse";
        break;
    case 'n':
        walk->word = "ull";
        break;
    default:
        if (c != '-' && !is_digit(c)) {
            return FG_JSON_STEP_BAD;
        }
        walk->word = NULL;
        walk->part = c == '-' ? MINUS : c == '0' ? ZERO : DIGITS;
        break;
    }
    walk->state = walk->word != NULL ? IN_WORD : IN_NUMBER;
    return walk->depth == 1 ? FG_JSON_STEP_VALUE_BEGIN : FG_JSON_STEP_INSIDE;
}

static fg_json_step in_string(fg_json_walk *walk, char c)
{
    if (walk->state == IN_ESCAPE) {
        walk->part = 4;
        walk->state = c == 'u' ? IN_HEX : IN_STRING;
        return c != '\0' && strchr("\"\\/bfnrtu", c) != NULL ? FG_JSON_STEP_INSIDE
                                                             : FG_JSON_STEP_BAD;
    }
    if (walk->state == IN_HEX) {
        walk->state = --walk->part == 0 ? IN_STRING : IN_HEX;
        return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F') ? FG_JSON_STEP_INSIDE
                                                                               : FG_JSON_STEP_BAD;
    }
    if (c == '\\') {
        walk->state = IN_ESCAPE;
    } else if (c == '"') {
        walk->state = walk->in_key ? AT_COLON : AT_NEXT;
        if (walk->depth == 1) {
            return walk->in_key ? FG_JSON_STEP_KEY_END : FG_JSON_STEP_VALUE_END;
        }
    }
    return FG_JSON_STEP_INSIDE;
}

/* Whether a number goes on with `c`. */
static bool number_goes_on(fg_json_walk *walk, char c)
{
    uint8_t part = walk->part;
    if (is_digit(c)) {
        static const uint8_t next[] = { [MINUS] = DIGITS,
                                        [DIGITS] = DIGITS,
                                        [POINT] = FRACTION,
                                        [FRACTION] = FRACTION,
                                        [EXPONENT] = EXPONENT_DIGITS,
                                        [SIGN] = EXPONENT_DIGITS,
                                        [EXPONENT_DIGITS] = EXPONENT_DIGITS };
        walk->part = part == MINUS && c == '0' ? ZERO : next[part];
        return part != ZERO;
    }
    bool whole = part == ZERO || part == DIGITS;
    if (c == '.' && whole) {
        walk->part = POINT;
        return true;
    }
    if ((c == 'e' || c == 'E') && (whole || part == FRACTION)) {
        walk->part = EXPONENT;
        return true;
    }
    if ((c == '+' || c == '-') && part == EXPONENT) {
        walk->part = SIGN;
        return true;
    }
    return false;
}

static bool number_may_end(const fg_json_walk *walk)
{
    return walk->part == ZERO || walk->part == DIGITS || walk->part == FRACTION ||
           walk->part == EXPONENT_DIGITS;
}

static fg_json_step behind_value(fg_json_walk *walk, char c)
{
    bool object = (walk->objects >> (walk->depth - 1) & 1) != 0;
    if (c == ',') {
        walk->state = object ? AT_KEY : AT_VALUE;
        return FG_JSON_STEP_INSIDE;
    }
    return c == (object ? '}' : ']') ? close_level(walk) : FG_JSON_STEP_BAD;
}

fg_json_step fg_json_walk_push(fg_json_walk *walk, char c)
{
    if (fg_json_walk_in_string(walk)) {
        return in_string(walk, c);
    }
    if (walk->state == IN_WORD) {
        if (*walk->word++ != c) {
            return FG_JSON_STEP_BAD;
        }
        walk->state = *walk->word == '\0' ? AT_NEXT : IN_WORD;
        return FG_JSON_STEP_INSIDE;
    }
    if (walk->state == IN_NUMBER) {
        if (number_goes_on(walk, c)) {
            return FG_JSON_STEP_INSIDE;
        }
        if (!number_may_end(walk)) {
            return FG_JSON_STEP_BAD;
        }
        walk->state = AT_NEXT;
    }
    if (is_space(c)) {
        return walk->depth == 0 ? FG_JSON_STEP_BAD : FG_JSON_STEP_INSIDE;
    }
    switch (walk->state) {
    case AT_VALUE_OR_END:
        return c == ']' ? close_level(walk) : begin_value(walk, c);
    case AT_VALUE:
        return begin_value(walk, c);
    case AT_KEY_OR_END:
        if (c == '}') {
            return close_level(walk);
        }
        return c == '"' ? begin_string(walk, true) : FG_JSON_STEP_BAD;
    case AT_KEY:
        return c == '"' ? begin_string(walk, true) : FG_JSON_STEP_BAD;
    case AT_COLON:
        walk->state = AT_VALUE;
        return c == ':' ? FG_JSON_STEP_INSIDE : FG_JSON_STEP_BAD;
    default:
        return walk->depth == 0 ? FG_JSON_STEP_BAD : behind_value(walk, c);
    }
}
