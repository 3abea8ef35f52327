#include "common/model/think_parse.h"

#include <string.h>

#include "common/base/buf.h"
#include "tests/support/test.h"

/* What was told, as one text: (thought)text. Neighbours of one kind join. */
typedef struct log {
    fg_buf text;
    char last; /* 't': inside of a thought */
} log;

static void close_thought(log *l)
{
    fg_buf_puts(&l->text, l->last == 't' ? ")" : "");
    l->last = 0;
}

static void on_thought(void *ctx, const char *text, size_t length)
{
    log *l = ctx;
    cr_assert_gt(length, 0);
    fg_buf_puts(&l->text, l->last == 't' ? "" : "(");
    fg_buf_append(&l->text, text, length);
    l->last = 't';
}

static void on_text(void *ctx, const char *text, size_t length)
{
    cr_assert_gt(length, 0);
    close_thought(ctx);
    fg_buf_append(&((log *)ctx)->text, text, length);
}

static void begin(fg_think_parse *parse, bool inside, log *l)
{
    fg_think_events events = { on_thought, on_text, l };
    *l = (log){ 0 };
    fg_buf_init(&l->text, 0);
    fg_buf_puts(&l->text, "");
    fg_think_parse_init(parse, inside, &events);
}

/* A text in which \1...\2 is a control token's name. One of the answer is told as {name}. */
static void push(fg_think_parse *parse, const char *text, size_t length, log *l)
{
    while (length > 0) {
        const char *token = memchr(text, '\1', length);
        size_t before = token == NULL ? length : (size_t)(token - text);
        fg_think_parse_push(parse, text, before);
        text += before;
        length -= before;
        if (length > 0) {
            size_t size = (size_t)((const char *)memchr(text, '\2', length) - text);
            if (!fg_think_parse_token(parse, text + 1, size - 1)) {
                cr_assert(!fg_think_parse_knows(text + 1, size - 1));
                close_thought(l);
                fg_buf_printf(&l->text, "{%.*s}", (int)size - 1, text + 1);
            }
            text += size + 1;
            length -= size + 1;
        }
    }
}

#define T        "<think>"
#define E        "</think>"
#define TOKEN(t) "\1" t "\2"
#define OTHER    TOKEN("<tool_call>")
#define UMLAUT   "\xC3\xBC\xE4\xB8\xAD\xF0\x9F\x98\x80"

static const struct {
    const char *name;
    bool inside;
    const char *text;
    const char *want;
    fg_think_place place; /* where it is in the end */
} cases[] = {
    { "nothing", false, "", "", FG_THINK_NONE },
    { "a text", false, "Hello <b>you</b>", "Hello <b>you</b>", FG_THINK_NONE },
    { "white space alone", false, " \n", " \n", FG_THINK_NONE },
    { "white space before a text", false, "\n\n x", "\n\n x", FG_THINK_NONE },
    { "a thought", false, T "\nLet me see.\n" E "\n\nHello.\n", "(Let me see.)Hello.\n",
      FG_THINK_BEHIND },
    { "without white space", false, T "a" E "b", "(a)b", FG_THINK_BEHIND },
    { "white space before the mark", false, " \n" T "a" E "b", "(a)b", FG_THINK_BEHIND },
    { "white space inside", false, T " \r\n\ta \n b\n\n\tc \n" E "x", "(a \n b\n\n\tc)x",
      FG_THINK_BEHIND },
    { "spaces behind the line ends", false, T "a" E "\r\n\n  b\n", "(a)  b\n", FG_THINK_BEHIND },
    { "nothing thought", false, T E "b", "b", FG_THINK_BEHIND },
    { "white space thought", false, T "\n\n" E "\n\nb", "b", FG_THINK_BEHIND },
    { "nothing answered", false, T "a" E "\n\n", "(a)", FG_THINK_BEHIND },
    { "never closed", false, T "a b\n c", "(a b\n c)", FG_THINK_INSIDE },
    { "never closed, white space last", false, T "a \n", "(a \n)", FG_THINK_INSIDE },
    { "cut in the end mark", false, T "a \n</thin", "(a \n</thin)", FG_THINK_INSIDE },
    { "cut in the first mark", false, " <thi", " <thi", FG_THINK_NONE },
    { "cut behind the first mark", false, T, "", FG_THINK_INSIDE },
    { "half a mark first", false, "\n<thin> x", "\n<thin> x", FG_THINK_NONE },
    { "half a mark, then a whole one", false, "<thi" T "a" E, "<thi" T "a" E, FG_THINK_NONE },
    { "half marks inside", false, T "a </thin </ < " E "b", "(a </thin </ <)b", FG_THINK_BEHIND },
    { "a mark in half a mark", false, T "a </thi" E "b", "(a </thi)b", FG_THINK_BEHIND },
    { "a mark later", false, "Use " T "a" E ".", "Use " T "a" E ".", FG_THINK_NONE },
    { "marks in the answer", false, T "a" E "b" T "c" E, "(a)b" T "c" E, FG_THINK_BEHIND },
    { "a mark right behind", false, T "a" E "\n" T "b" E, "(a)" T "b" E, FG_THINK_BEHIND },
    { "the first mark twice", false, T T "a" E "b", "(" T "a)b", FG_THINK_BEHIND },
    { "an end mark alone", false, "a" E "b", "a" E "b", FG_THINK_NONE },
    { "an end mark first", false, E "b", E "b", FG_THINK_NONE },
    { "another case", false, "<THINK>a</THINK>", "<THINK>a</THINK>", FG_THINK_NONE },
    { "UTF-8", false, T UMLAUT " \n" E UMLAUT, "(" UMLAUT ")" UMLAUT, FG_THINK_BEHIND },
    { "UTF-8 beside half marks", false, T UMLAUT "<" UMLAUT "</" UMLAUT E "<" UMLAUT,
      "(" UMLAUT "<" UMLAUT "</" UMLAUT ")<" UMLAUT, FG_THINK_BEHIND },

    { "opened: nothing", true, "", "", FG_THINK_INSIDE },
    { "opened", true, "\na b" E "\n\nc", "(a b)c", FG_THINK_BEHIND },
    { "opened, the mark again", true, "\n" T "\na" E "b", "(a)b", FG_THINK_BEHIND },
    { "opened, the mark too late", true, "a" T "b" E "c", "(a" T "b)c", FG_THINK_BEHIND },
    { "opened, the mark a third time", true, T T "a" E, "(" T "a)", FG_THINK_BEHIND },
    { "opened, half the mark", true, " <thi" E "b", "(<thi)b", FG_THINK_BEHIND },
    { "opened and closed at once", true, E "b", "b", FG_THINK_BEHIND },
    { "opened, never closed", true, " a\n", "(a\n)", FG_THINK_INSIDE },

    { "tokens", false, TOKEN(T) "\na\n" TOKEN(E) "\n\nb", "(a)b", FG_THINK_BEHIND },
    { "a token, then a text", false, TOKEN(T) "a" E "b", "(a)b", FG_THINK_BEHIND },
    { "a text, then a token", false, T "a" TOKEN(E) "b", "(a)b", FG_THINK_BEHIND },
    { "an end token behind half a mark", false, T "a </thi" TOKEN(E) "b", "(a </thi)b",
      FG_THINK_BEHIND },
    { "a token behind white space", false, " " TOKEN(T) "a" TOKEN(E), "(a)", FG_THINK_BEHIND },
    { "a token behind half a mark", false, "<th" TOKEN(T) "a" E, "<tha" E, FG_THINK_NONE },
    { "a token later", false, "a" TOKEN(T) "b" TOKEN(E) "c", "abc", FG_THINK_NONE },
    { "an end token first", false, TOKEN(E) "b", "b", FG_THINK_NONE },
    { "the first token twice", false, TOKEN(T) TOKEN(T) "a" TOKEN(E) "b", "(a)b", FG_THINK_BEHIND },
    { "tokens in the answer", false, T "a" E "b" TOKEN(T) "c" TOKEN(E) "d", "(a)bcd",
      FG_THINK_BEHIND },
    { "opened, the token again", true, TOKEN(T) T "a" TOKEN(E) "b", "(" T "a)b", FG_THINK_BEHIND },
    { "another token first", false, " " OTHER "a", " {<tool_call>}a", FG_THINK_NONE },
    { "another token inside", false, T "a" OTHER " " E "b", "(a)b", FG_THINK_BEHIND },
    { "line ends behind another token", false, T "a" E "\n" OTHER "\nb", "(a){<tool_call>}\nb",
      FG_THINK_BEHIND },
    { "another token behind", false, T "a" E "\n" OTHER "b", "(a){<tool_call>}b", FG_THINK_BEHIND },
};

enum { CASE_COUNT = sizeof cases / sizeof cases[0] };

/* The case in pieces that end at `cut`, or behind every byte. Tokens stay whole. */
static void expect(size_t index, size_t cut, bool every)
{
    log l;
    fg_think_parse parse;
    const char *text = cases[index].text;
    size_t length = strlen(text);
    size_t from = 0;
    bool token = false;
    begin(&parse, cases[index].inside, &l);
    for (size_t at = 0; at < length; at++) {
        token = text[at] == '\1' || (token && text[at] != '\2');
        if (!token && (every || at + 1 == cut || at + 1 == length)) {
            push(&parse, text + from, at + 1 - from, &l);
            from = at + 1;
        }
    }
    fg_think_parse_finish(&parse);
    close_thought(&l);
    cr_assert_str_eq(l.text.data, cases[index].want, "%s, cut at %zu: %s\nwant %s",
                     cases[index].name, every ? 0 : cut, l.text.data, cases[index].want);
    cr_assert_eq(parse.place, cases[index].place, "%s: %d", cases[index].name, parse.place);
    fg_buf_deinit(&l.text);
}

Test(think_parse, tells_the_same_wherever_the_text_is_cut)
{
    for (size_t i = 0; i < CASE_COUNT; i++) {
        for (size_t cut = 0; cut <= strlen(cases[i].text); cut++) {
            expect(i, cut, false);
        }
        expect(i, 0, true);
    }
}

Test(think_parse, tells_a_thought_as_it_is_written)
{
    static const struct {
        const char *text, *told;
    } steps[] = {
        { "\n<thi", "" },          { "nk>", "" },           { "\n", "" },
        { "Let", "(Let" },         { " ", "(Let" },         { "me", "(Let me" },
        { "\n<", "(Let me" },      { "b", "(Let me\n<b" },  { "\n</think", "(Let me\n<b" },
        { ">", "(Let me\n<b" },    { "\n", "(Let me\n<b" }, { "So", "(Let me\n<b)So" },
        { " ", "(Let me\n<b)So " }
    };
    log l;
    fg_think_parse parse;
    begin(&parse, false, &l);
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        push(&parse, steps[i].text, strlen(steps[i].text), &l);
        cr_assert_str_eq(l.text.data, steps[i].told, "%zu: %s", i, l.text.data);
    }
    fg_buf_deinit(&l.text);
}

/* White space that has no end is told, but for what a mark may stand beside; the same in one piece and byte by byte. */
Test(think_parse, holds_back_no_more_than_it_says)
{
    for (int way = 0; way < 4; way++) {
        log l;
        fg_think_parse parse;
        bool inside = way / 2 == 1;
        static const char flood[3 * FG_THINK_HELD_MAX + 7];
        fg_buf text = { 0 };
        for (size_t i = 0; i < sizeof flood; i++) {
            fg_buf_putc(&text, i % 5 == 0 ? '\n' : ' ');
        }
        begin(&parse, inside, &l);
        push(&parse, "x", inside ? 1 : 0, &l);
        size_t before = l.text.size;
        for (size_t at = 0; at < text.size;) {
            size_t piece = way % 2 == 0 ? text.size : 1;
            push(&parse, text.data + at, piece, &l);
            at += piece;
            cr_assert_leq(at - (l.text.size - before), FG_THINK_HELD_MAX);
        }
        push(&parse, inside ? E : T "a" E, inside ? sizeof E - 1 : sizeof T E, &l);
        fg_think_parse_finish(&parse);
        close_thought(&l);
        if (inside) {
            /* What came last was beside the mark. */
            cr_assert_eq(l.text.size, 2 + 3 * FG_THINK_HELD_MAX + 1);
            cr_assert_eq(memcmp(l.text.data + 2, text.data, 3 * FG_THINK_HELD_MAX), 0);
        } else {
            cr_assert_eq(l.text.size, text.size + sizeof T E, "too much white space is an answer");
            cr_assert_eq(memcmp(l.text.data, text.data, text.size), 0);
        }
        fg_buf_deinit(&text);
        fg_buf_deinit(&l.text);
    }
}

Test(think_parse, a_prompt_says_where_an_answer_begins)
{
    static const struct {
        const char *prompt;
        bool opened;
        size_t mark_at;
    } prompts[] = {
        { "", false, 0 },
        { "think>", false, 0 },
        { T, true, 0 },
        { "a" T, true, 1 },
        { "<|im_start|>assistant\n" T "\n", true, 22 },
        { T " \r\n\t", true, 0 },
        { T "\n\n" E "\n\n", false, 0 },
        { T E, false, 0 },
        { T ".", false, 0 },
        { "<|im_start|>assistant\n", false, 0 },
        { "\n\n", false, 0 },
    };
    for (size_t i = 0; i < sizeof prompts / sizeof prompts[0]; i++) {
        size_t mark_at = 0;
        bool opened = fg_think_opened(prompts[i].prompt, strlen(prompts[i].prompt), &mark_at);
        cr_assert_eq(opened, prompts[i].opened, "%s", prompts[i].prompt);
        cr_assert(!opened || mark_at == prompts[i].mark_at, "%s", prompts[i].prompt);
    }
}

Test(think_parse, a_template_that_names_a_mark_knows_thoughts)
{
    static const struct {
        const char *source;
        bool known;
    } sources[] = {
        { "", false },
        { "{{ messages }}", false },
        { "/think and /no_think", false },
        { "{{ '<think>\\n' }}", true },
        { "{% if '</think>' in content %}", true },
        { "<thinking>", false },
        { "[THINK]", false },
    };
    for (size_t i = 0; i < sizeof sources / sizeof sources[0]; i++) {
        cr_assert_eq(fg_think_known(sources[i].source, strlen(sources[i].source)), sources[i].known,
                     "%s", sources[i].source);
    }
}
