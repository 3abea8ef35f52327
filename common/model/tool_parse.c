#include "common/model/tool_parse.h"

#include <string.h>

#include "common/base/buf.h"
#include "common/base/json.h"
#include "common/base/mem.h"
#include "common/model/json_walk.h"

enum { NAME_MAX = 256, MARKERS_MAX = 3 };

/* Markers begin with the same character, which stands nowhere else in them: a marker that breaks off is text up to the
 * character that does not belong, and nothing in it can begin another one. */
typedef struct form {
    const char *begins[MARKERS_MAX - 1];
    const char *end; /* behind the calls; NULL: none. It may be absent */
    bool bare;       /* an answer that begins with `{` may be a call */
} form;

static const form forms[] = {
    [FG_TOOLS_HERMES] = { { "<tool_call>" }, "</tool_call>", false },
    [FG_TOOLS_LLAMA] = { { "<|python_tag|>" }, NULL, true },
    [FG_TOOLS_MISTRAL] = { { "[TOOL_CALLS]" }, NULL, false },
    [FG_TOOLS_GRANITE] = { { "<|tool_call|>", "<tool_call>" }, "<|/tool_call|>", false },
};

typedef enum place {
    AT_START,    /* of the answer: white space so far */
    IN_TEXT,     /* nothing is held */
    IN_MARKER,   /* what is held ends with the beginning of one */
    AT_VALUE,    /* behind a marker: an object, or a list of them */
    IN_LIST,     /* between the objects of a list */
    IN_OBJECT,   /* which may become a call, or is one whose arguments are being written */
    BEHIND_CALL, /* in the rest of an object that is a call */
    BEHIND,      /* an object or list: more of them, an end marker, a begin marker or text */
} place;

typedef enum member { OTHER, NAME, ARGUMENTS } member;

/* Where something lies in what is held. */
typedef struct span {
    size_t start, end;
} span;

struct fg_tool_parse {
    const form *form;
    const fg_tool_name *names;
    size_t name_count;
    fg_tool_events events;
    place place;
    place before; /* of IN_MARKER: where the marker began */
    fg_buf held;
    size_t marker_at; /* in held */
    bool in_region;   /* behind a begin marker, or in a bare object */
    bool bare;        /* no marker was there */
    bool any;         /* the region has had a call */
    bool in_list;

    fg_json_walk walk;
    member member;
    size_t key_at;
    span name, arguments;
    char arguments_first; /* 0: none yet */
    bool named;           /* name.end is known */
    bool open;            /* told as a call, its arguments are being written */
    fg_buf fragment;      /* of arguments, not yet told */
    bool failed;
};

static bool contains(const char *text, size_t length, const char *part)
{
    return length > 0 && memmem(text, length, part, strlen(part)) != NULL;
}

fg_tool_dialect fg_tool_dialect_of(const char *source, size_t length)
{
    /* Qwen3-Coder and GLM write XML inside the same tags; newer Mistral models have no list. */
    static const struct {
        const char *has, *has_too, *has_not[2];
        fg_tool_dialect dialect;
    } marks[] = {
        { "<tool_call>", "arguments", { "<function=", "<arg_key>" }, FG_TOOLS_HERMES },
        { "[TOOL_CALLS]", "", { "[ARGS]", NULL }, FG_TOOLS_MISTRAL },
        { "<|tool_call|>", "", { NULL, NULL }, FG_TOOLS_GRANITE },
        { "<|python_tag|>", "\"parameters\"", { NULL, NULL }, FG_TOOLS_LLAMA },
        { "{\"name\": function name, \"parameters\":", "", { NULL, NULL }, FG_TOOLS_LLAMA },
    };
    for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++) {
        bool fits =
            contains(source, length, marks[i].has) && contains(source, length, marks[i].has_too);
        for (size_t j = 0; j < 2 && fits && marks[i].has_not[j] != NULL; j++) {
            fits = !contains(source, length, marks[i].has_not[j]);
        }
        if (fits) {
            return marks[i].dialect;
        }
    }
    return FG_TOOLS_UNKNOWN;
}

static void enter_region(fg_tool_parse *p, bool bare)
{
    p->in_region = true;
    p->in_list = false;
    p->any = false;
    p->bare = bare;
    p->place = AT_VALUE;
}

fg_tool_writing fg_tool_writing_of(fg_tool_dialect dialect, bool marker_is_text)
{
    fg_tool_writing writing = { .open = "",
                                .name = "{\"name\": \"",
                                .arguments = "\", \"arguments\": ",
                                .end = "}",
                                .between = "\n",
                                .close = "",
                                .unmarked = true };
    if (dialect == FG_TOOLS_LLAMA) {
        writing.arguments = "\", \"parameters\": ";
        writing.between = "; ";
        writing.unmarked = false; /* it needs none */
    } else if (dialect != FG_TOOLS_HERMES) {
        writing.open = "[";
        writing.between = ", ";
        writing.close = "]";
    } else if (marker_is_text) {
        writing.open = "<tool_call>\n";
        writing.between = "\n</tool_call>\n<tool_call>\n";
        writing.close = "\n</tool_call>";
        writing.unmarked = false;
    }
    return writing;
}

const char *fg_tool_marker(fg_tool_dialect dialect)
{
    return forms[dialect].begins[0];
}

fg_status fg_tool_parse_create(fg_tool_dialect dialect, bool unmarked, const fg_tool_name *names,
                               size_t count, const fg_tool_events *events,
                               fg_tool_parse **parse_out, fg_error *err)
{
    FG_ASSERT(dialect > FG_TOOLS_UNKNOWN && dialect <= FG_TOOLS_GRANITE, "no dialect to be read");
    fg_tool_parse *p = fg_mem_alloc(sizeof *p);
    if (p == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for tool calls");
    }
    p->form = &forms[dialect];
    p->names = names;
    p->name_count = count;
    p->events = *events;
    fg_buf_init(&p->held, 0);
    fg_buf_init(&p->fragment, 0);
    if (unmarked) {
        enter_region(p, false);
    }
    *parse_out = p;
    return FG_OK;
}

void fg_tool_parse_destroy(fg_tool_parse *p)
{
    if (p == NULL) {
        return;
    }
    fg_buf_deinit(&p->held);
    fg_buf_deinit(&p->fragment);
    fg_mem_free(p);
}

bool fg_tool_parse_failed(const fg_tool_parse *p)
{
    return p->failed;
}

/* ---- what is told ---- */

static void hold(fg_tool_parse *p, char c)
{
    p->failed = !fg_buf_putc(&p->held, c) || p->failed;
}

static void tell_text(fg_tool_parse *p, const char *text, size_t length)
{
    if (length > 0) {
        p->events.on_text(p->events.ctx, text, length);
    }
}

/* What was held is no call. */
static void release(fg_tool_parse *p)
{
    tell_text(p, p->held.data, p->held.size);
    fg_buf_clear(&p->held);
    p->place = IN_TEXT;
    p->in_region = false;
}

static void tell_fragment(fg_tool_parse *p)
{
    if (p->fragment.size > 0) {
        p->events.on_arguments(p->events.ctx, p->fragment.data, p->fragment.size);
        fg_buf_clear(&p->fragment);
    }
}

static void add_argument_byte(fg_tool_parse *p, char c, bool in_string)
{
    char raw = c;
    bool added = in_string && (unsigned char)c < 0x20 ? fg_buf_json_escape(&p->fragment, &raw, 1)
                                                      : fg_buf_putc(&p->fragment, c);
    p->failed = !added || p->failed;
}

static void end_call(fg_tool_parse *p, bool whole)
{
    tell_fragment(p);
    p->events.on_call_end(p->events.ctx, whole);
    p->open = false;
}

/* ---- an object that may be a call ---- */

/* The text of a JSON string that was held, with its quotes; NULL: it is none, or there is no memory. */
static const char *decode(fg_tool_parse *p, span where, fg_json **json_out, size_t *length_out)
{
    fg_buf list;
    fg_error err;
    const char *text = NULL;
    fg_buf_init(&list, 0);
    fg_buf_putc(&list, '[');
    fg_buf_append(&list, p->held.data + where.start, where.end - where.start);
    fg_buf_putc(&list, ']');
    fg_status status = list.failed ? FG_AGAIN : fg_json_parse(list.data, list.size, json_out, &err);
    if (status == FG_OK) {
        text = fg_json_string(fg_json_at(fg_json_root(*json_out), 0), length_out);
    }
    p->failed = p->failed || status == FG_AGAIN;
    fg_buf_deinit(&list);
    return text;
}

static bool is_shown(const fg_tool_parse *p, const char *name, size_t length)
{
    for (size_t i = 0; i < p->name_count; i++) {
        if (p->names[i].length == length && memcmp(p->names[i].text, name, length) == 0) {
            return true;
        }
    }
    return false;
}

/* Tells the call, if its name can be one. What was held is its form from now on. */
static bool begin_call(fg_tool_parse *p)
{
    fg_json *json = NULL;
    size_t length = 0;
    const char *name = p->named ? decode(p, p->name, &json, &length) : NULL;
    bool good =
        name != NULL && length > 0 && length <= NAME_MAX && (!p->bare || is_shown(p, name, length));
    if (good) {
        p->events.on_call(p->events.ctx, name, length);
        p->any = true;
    }
    fg_json_destroy(json);
    return good;
}

/* Arguments that were written as a JSON text in a string. */
static bool call_with_text(fg_tool_parse *p)
{
    fg_json *outer = NULL;
    fg_json *inner = NULL;
    fg_error err;
    size_t length = 0;
    const char *text = decode(p, p->arguments, &outer, &length);
    fg_status status = text == NULL ? FG_BAD_INPUT : fg_json_parse(text, length, &inner, &err);
    p->failed = p->failed || status == FG_AGAIN;
    bool good = status == FG_OK && fg_json_is(fg_json_root(inner), FG_JSON_OBJECT) && begin_call(p);
    if (good) {
        p->events.on_arguments(p->events.ctx, text, length);
        end_call(p, true);
    }
    fg_json_destroy(inner);
    fg_json_destroy(outer);
    return good;
}

/* An object is complete and was not told yet: its arguments came first, are no object, or are absent. */
static bool call_at_once(fg_tool_parse *p)
{
    if (p->arguments_first == '"') {
        return call_with_text(p);
    }
    if ((p->arguments_first != '{' && p->arguments_first != 'n' && p->arguments_first != 0) ||
        !begin_call(p)) {
        return false;
    }
    if (p->arguments_first == '{') {
        fg_json_walk walk;
        fg_json_walk_init(&walk);
        for (size_t i = p->arguments.start; i < p->arguments.end; i++) {
            add_argument_byte(p, p->held.data[i], fg_json_walk_in_string(&walk));
            (void)fg_json_walk_push(&walk, p->held.data[i]);
        }
    } else {
        p->failed = !fg_buf_puts(&p->fragment, "{}") || p->failed;
    }
    end_call(p, true);
    return true;
}

static member member_of(const fg_tool_parse *p)
{
    static const struct {
        const char *key;
        member member;
    } keys[] = { { "name", NAME }, { "arguments", ARGUMENTS }, { "parameters", ARGUMENTS } };
    const char *key = p->held.data + p->key_at + 1;
    size_t length = p->held.size - p->key_at - 2;
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        if (length == strlen(keys[i].key) && memcmp(key, keys[i].key, length) == 0) {
            return keys[i].member;
        }
    }
    return OTHER;
}

static void begin_object(fg_tool_parse *p)
{
    fg_json_walk_init(&p->walk);
    (void)fg_json_walk_push(&p->walk, '{');
    hold(p, '{');
    p->member = OTHER;
    p->arguments_first = 0;
    p->named = false;
    p->open = false;
    p->place = IN_OBJECT;
}

/* A call's object is over, or what went wrong in it begins. */
static void leave_object(fg_tool_parse *p)
{
    fg_buf_clear(&p->held);
    p->place = p->in_list ? IN_LIST : BEHIND;
}

/* The first byte of a member's value was held. */
static void begin_member(fg_tool_parse *p, char c)
{
    size_t at = p->held.size - 1;
    if (p->member == NAME) {
        p->named = false;
        p->name.start = at;
        p->member = c == '"' ? NAME : OTHER;
    } else if (p->member == ARGUMENTS) {
        p->arguments.start = at;
        p->arguments_first = c;
        if (c != '{' || !p->named) {
            return;
        }
        if (begin_call(p)) {
            p->open = true;
            fg_buf_clear(&p->held);
            add_argument_byte(p, c, false);
        } else {
            release(p);
        }
    }
}

static void end_member(fg_tool_parse *p)
{
    if (p->member == NAME) {
        p->name.end = p->held.size;
        p->named = true;
    } else if (p->member == ARGUMENTS) {
        p->arguments.end = p->held.size;
    }
}

/* ---- where a byte goes; each answers whether it was taken, or is to be looked at again in another place ---- */

static bool is_space(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* The end marker was there. */
static void leave_region(fg_tool_parse *p)
{
    if (!p->any) {
        release(p);
        return;
    }
    fg_buf_clear(&p->held);
    p->in_region = false;
    p->place = BEHIND;
}

static void begin_marker(fg_tool_parse *p, char c)
{
    p->before = p->place;
    p->marker_at = p->held.size;
    p->place = IN_MARKER;
    hold(p, c);
}

static bool to_start(fg_tool_parse *p, char c)
{
    if (is_space(c)) {
        hold(p, c);
    } else if (c == p->form->begins[0][0]) {
        begin_marker(p, c);
    } else if (c == '{' && p->form->bare) {
        enter_region(p, true);
        begin_object(p);
    } else {
        release(p);
        return false;
    }
    return true;
}

static bool to_marker(fg_tool_parse *p, char c)
{
    const char *markers[MARKERS_MAX] = { p->form->begins[0], p->form->begins[1],
                                         p->before == BEHIND && p->in_region ? p->form->end
                                                                             : NULL };
    hold(p, c);
    size_t length = p->held.size - p->marker_at;
    for (size_t i = 0; i < MARKERS_MAX && !p->failed; i++) {
        if (markers[i] == NULL || strncmp(markers[i], p->held.data + p->marker_at, length) != 0) {
            continue;
        }
        if (markers[i][length] != '\0') {
            return true;
        }
        if (i == MARKERS_MAX - 1) {
            leave_region(p);
        } else {
            enter_region(p, false);
        }
        return true;
    }
    p->held.size -= p->held.size > 0;
    release(p);
    return false;
}

static bool to_value(fg_tool_parse *p, char c)
{
    if (c == '{') {
        begin_object(p);
    } else if (c == '[') {
        p->in_list = true;
        p->place = IN_LIST;
        hold(p, c);
    } else if (is_space(c)) {
        hold(p, c);
    } else {
        release(p);
        return false;
    }
    return true;
}

static bool to_list(fg_tool_parse *p, char c)
{
    if (c == '{') {
        begin_object(p);
        return true;
    }
    if (!is_space(c) && c != ',' && c != ']') {
        release(p);
        return false;
    }
    if (!p->any) {
        hold(p, c);
    }
    if (c == ']') {
        p->in_list = false;
        p->place = BEHIND;
    }
    return true;
}

static bool to_object(fg_tool_parse *p, char c)
{
    bool in_string = fg_json_walk_in_string(&p->walk);
    fg_json_step step = fg_json_walk_push(&p->walk, c);
    if (step == FG_JSON_STEP_BAD) {
        if (p->open) {
            end_call(p, false);
            p->in_list = false;
            leave_object(p);
        } else {
            release(p);
        }
        return false;
    }
    if (p->open) {
        add_argument_byte(p, c, in_string);
        if (step == FG_JSON_STEP_VALUE_END) {
            end_call(p, true);
            p->place = BEHIND_CALL;
        }
        return true;
    }
    hold(p, c);
    if (step == FG_JSON_STEP_KEY_BEGIN) {
        p->key_at = p->held.size - 1;
    } else if (step == FG_JSON_STEP_KEY_END) {
        member found = member_of(p);
        p->member = found == ARGUMENTS && p->arguments_first != 0 ? OTHER : found;
    } else if (step == FG_JSON_STEP_VALUE_BEGIN) {
        begin_member(p, c);
    } else if (step == FG_JSON_STEP_VALUE_END) {
        end_member(p);
    } else if (step == FG_JSON_STEP_DONE) {
        if (call_at_once(p)) {
            leave_object(p);
        } else {
            release(p);
        }
    }
    return true;
}

static bool to_rest(fg_tool_parse *p, char c)
{
    fg_json_step step = fg_json_walk_push(&p->walk, c);
    if (step == FG_JSON_STEP_BAD) {
        p->in_list = false;
        leave_object(p);
        return false;
    }
    if (step == FG_JSON_STEP_DONE) {
        leave_object(p);
    }
    return true;
}

static bool to_behind(fg_tool_parse *p, char c)
{
    if (is_space(c) || (c == ';' && p->form->bare)) {
        hold(p, c);
    } else if (c == p->form->begins[0][0]) {
        begin_marker(p, c);
    } else if (c == '{' && p->in_region) {
        begin_object(p);
    } else {
        release(p);
        return false;
    }
    return true;
}

static bool take(fg_tool_parse *p, char c)
{
    switch (p->place) {
    case AT_START:
        return to_start(p, c);
    case IN_MARKER:
        return to_marker(p, c);
    case AT_VALUE:
        return to_value(p, c);
    case IN_LIST:
        return to_list(p, c);
    case IN_OBJECT:
        return to_object(p, c);
    case BEHIND_CALL:
        return to_rest(p, c);
    case BEHIND:
        return to_behind(p, c);
    default:
        begin_marker(p, c);
        return true;
    }
}

void fg_tool_parse_push(fg_tool_parse *p, const char *text, size_t length)
{
    char first = p->form->begins[0][0];
    size_t at = 0;
    while (at < length && !p->failed) {
        if (p->place == IN_TEXT) {
            const char *next = memchr(text + at, first, length - at);
            size_t end = next == NULL ? length : (size_t)(next - text);
            tell_text(p, text + at, end - at);
            at = end;
            if (at == length) {
                break;
            }
        }
        at += take(p, text[at]);
        if (p->held.size > FG_TOOL_HELD_MAX) {
            release(p);
        }
    }
    tell_fragment(p);
}

static bool is_end(const fg_tool_parse *p, const char *name, size_t length)
{
    const char *end = p->form->end;
    return end != NULL && strlen(end) == length && memcmp(end, name, length) == 0;
}

bool fg_tool_parse_knows(const fg_tool_parse *p, const char *name, size_t length)
{
    for (size_t i = 0; i < MARKERS_MAX - 1; i++) {
        const char *begin = p->form->begins[i];
        if (begin != NULL && strlen(begin) == length && memcmp(begin, name, length) == 0) {
            return true;
        }
    }
    return is_end(p, name, length);
}

void fg_tool_parse_token(fg_tool_parse *p, const char *name, size_t length)
{
    bool behind = p->place == BEHIND_CALL ||
                  ((p->place == IN_LIST || p->place == BEHIND) && p->any) ||
                  (p->place == IN_OBJECT && p->open);
    if (p->place == IN_OBJECT && p->open) {
        end_call(p, false);
    }
    if (behind && p->place != BEHIND) {
        fg_buf_clear(&p->held);
    }
    if (!is_end(p, name, length)) {
        if (!behind && p->place != AT_START) {
            release(p);
        }
        enter_region(p, false);
    } else if (behind) {
        leave_region(p);
    } else {
        release(p);
    }
}

/* Whether the end marker has begun behind a call. */
static bool is_ending(const fg_tool_parse *p)
{
    const char *end = p->form->end;
    return p->place == IN_MARKER && p->before == BEHIND && p->in_region && p->any && end != NULL &&
           strncmp(end, p->held.data + p->marker_at, p->held.size - p->marker_at) == 0;
}

void fg_tool_parse_finish(fg_tool_parse *p)
{
    if (p->place == IN_OBJECT && p->open) {
        end_call(p, false);
    } else if (((p->place == BEHIND || p->place == IN_LIST) && p->any) || is_ending(p)) {
        fg_buf_clear(&p->held);
    }
    release(p);
}
