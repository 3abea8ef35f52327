#include "common/grammar/grammar.h"

#include <stdlib.h>
#include <string.h>

#include "tests/unit/common/grammar/rig.h"

#define MOST 24

typedef struct matching {
    fg_grammar_kind kind;
    const char *text;
    const char *yes[MOST];
    const char *no[MOST];
} matching;

static const matching regexes[] = {
    { FG_GRAMMAR_REGEX, "abc", { "abc" }, { "", "ab", "abcd", "abd" } },
    { FG_GRAMMAR_REGEX, "", { "" }, { "a" } },
    { FG_GRAMMAR_REGEX, "^a|b$", { "a", "b" }, { "ab", "" } },
    { FG_GRAMMAR_REGEX, "a*b+c?", { "b", "aab", "bbbc" }, { "", "a", "ac", "bcc" } },
    { FG_GRAMMAR_REGEX, "(ab){2,3}", { "abab", "ababab" }, { "ab", "abababab", "aba" } },
    { FG_GRAMMAR_REGEX, "x{3}", { "xxx" }, { "xx", "xxxx" } },
    { FG_GRAMMAR_REGEX, "x{2,}", { "xx", "xxxxxx" }, { "x", "" } },
    { FG_GRAMMAR_REGEX, "x{0}y", { "y" }, { "xy" } },
    { FG_GRAMMAR_REGEX, "a+?b", { "ab", "aab" }, { "b" } },
    { FG_GRAMMAR_REGEX, "a{,2}", { "a{,2}" }, { "", "a", "aa" } },
    { FG_GRAMMAR_REGEX, "[a-c0-9_-]+", { "a", "b9_-" }, { "d", "", "A" } },
    { FG_GRAMMAR_REGEX,
      "[^a-z]",
      { "A", "0", "\xc3\xa9", "\xe2\x82\xac", "\xf0\x9f\x98\x80" },
      { "a", "z", "\xc3", "AB", "\xed\xa0\x80", "\xc0\x80", "\xf4\x90\x80\x80", "\x80" } },
    { FG_GRAMMAR_REGEX,
      ".",
      { "a", "\xc3\xa9", "\xf0\x9f\x98\x80", "\t" },
      { "\n", "\r", "", "\xe2\x80\xa8", "\xff" } },
    { FG_GRAMMAR_REGEX, "\\d{4}-\\d\\d", { "2026-11" }, { "2026-1", "2026/11", "\xd9\xa3" } },
    { FG_GRAMMAR_REGEX, "\\w+\\s\\W\\S\\D", { "a_1 -xy" }, { "a_1 ax", "a_1 - y" } },
    { FG_GRAMMAR_REGEX, "[\\d\\-x]+", { "1-x" }, { "y" } },
    { FG_GRAMMAR_REGEX,
      "\\u00e9\\x41\\n\\t\\.\\/",
      { "\xc3\xa9"
        "A\n\t./" },
      { "eA\n\t./" } },
    { FG_GRAMMAR_REGEX,
      "\\uD83D\\uDE00|\\u{1F601}",
      { "\xf0\x9f\x98\x80", "\xf0\x9f\x98\x81" },
      { "\xf0\x9f\x98\x82" } },
    { FG_GRAMMAR_REGEX,
      "[\xc3\xa0-\xe2\x82\xac]+",
      { "\xc3\xa9", "\xe2\x82\xac", "\xe0\xa4\x85" },
      { "a", "\xe2\x82\xad", "\xc3\x9f" } },
    { FG_GRAMMAR_REGEX, "(a|b(c|d)*)*", { "", "abcdcab" }, { "c" } },
    { FG_GRAMMAR_REGEX, "(?:a|)(?<name>b)(?P<n2>c)", { "abc", "bc" }, { "ab" } },
    { FG_GRAMMAR_REGEX, "(a*)*b", { "b", "aab" }, { "a" } },
    { FG_GRAMMAR_REGEX, "(a?){50}", { "", "a", "aaaaaaaaaa" }, { "b" } },
};

static const matching choices[] = {
    { FG_GRAMMAR_CHOICE,
      "[\"yes\",\"no\",\"not\",\"yes\",\"\\u00e9\"]",
      { "yes", "no", "not", "\xc3\xa9" },
      { "", "y", "n", "nott", "yesno" } },
    { FG_GRAMMAR_CHOICE, "[\"\",\"a\"]", { "", "a" }, { "aa" } },
    { FG_GRAMMAR_CHOICE,
      "[\"a\",\"ab\",\"abc\",\"b\"]",
      { "a", "ab", "abc", "b" },
      { "", "ac", "bc" } },
};

static const matching gbnfs[] = {
    { FG_GRAMMAR_GBNF,
      "root ::= \"a\" b | [x-z]+ # comment\nb ::= \"b\"{2,3}",
      { "abb", "abbb", "xyz" },
      { "ab", "abbbb", "", "xa" } },
    { FG_GRAMMAR_GBNF,
      "root  ::= (expr \"=\" ws term \"\\n\")+\nexpr  ::= term ([-+*/] term)*\n"
      "term  ::= ident | num | \"(\" ws expr \")\" ws\nident ::= [a-z] [a-z0-9_]* ws\n"
      "num   ::= [0-9]+ ws\nws    ::= [ \\t\\n]*",
      { "a+1=2\n", "(x *3) = y\n1=1\n" },
      { "a+=2\n", "a+1=2", "(x=1\n" } },
    { FG_GRAMMAR_GBNF,
      "root ::= \"(\" root? \")\"",
      { "()", "((()))" },
      { "", "(", "(()", "())" } },
    { FG_GRAMMAR_GBNF,
      "root ::= \"a\" root \"b\" | \"a\" root \"c\" | \"\"",
      { "", "ab", "aaaaaabcbcbc", "aacb" },
      { "a", "abb", "aab" } },
    { FG_GRAMMAR_GBNF,
      "root ::=\n  \"\\x41\\u00e9\\U0001F600\\\"\\\\\"\n  | [^a-z\\]] .\n",
      { "A\xc3\xa9\xf0\x9f\x98\x80\"\\", "A\n", "1\xc3\xa9" },
      { "a1", "]1", "A" } },
    { FG_GRAMMAR_GBNF, "root ::= x*\nx ::= y?\ny ::= \"a\"", { "", "a", "aaa" }, { "b" } },
};

static void check_matching(const fg_lexicon *bytes, const matching *m)
{
    fg_grammar *grammar = grammar_of(m->kind, m->text);
    fg_automaton *a = automaton_of(grammar, bytes);
    for (int wanted = 0; wanted < 2; wanted++) {
        const char *const *texts = wanted ? m->yes : m->no;
        for (int i = 0; i < MOST && texts[i] != NULL; i++) {
            fg_state state =
                fg_automaton_feed(a, fg_automaton_start(a), texts[i], strlen(texts[i]));
            cr_assert_eq(fg_automaton_may_end(a, state), wanted, "%s %s \"%s\"", m->text,
                         wanted ? "refuses" : "takes", texts[i]);
        }
    }
    fg_automaton_destroy(a);
    fg_grammar_destroy(grammar);
}

#define CHECK_ALL(table)                                                                           \
    do {                                                                                           \
        fg_lexicon *bytes = lexicon_of(NULL);                                                      \
        for (size_t i = 0; i < sizeof(table) / sizeof((table)[0]); i++) {                          \
            check_matching(bytes, &(table)[i]);                                                    \
        }                                                                                          \
        fg_lexicon_destroy(bytes);                                                                 \
    } while (0)

Test(grammar, regexes_match_whole_texts)
{
    CHECK_ALL(regexes);
}

Test(grammar, choices_are_exact)
{
    CHECK_ALL(choices);
}

Test(grammar, gbnf_matches)
{
    CHECK_ALL(gbnfs);
}

/* What is refused, and what the reason contains. */
static const struct {
    fg_grammar_kind kind;
    const char *text;
    const char *why;
} refused[] = {
    { FG_GRAMMAR_REGEX, "a)b", "closes nothing at byte 1" },
    { FG_GRAMMAR_REGEX, "(a", "a group without its end at byte 0" },
    { FG_GRAMMAR_REGEX, "ab[c", "a class without its end at byte 2" },
    { FG_GRAMMAR_REGEX, "[]", "an empty class" },
    { FG_GRAMMAR_REGEX, "[z-a]", "a range that ends before it begins" },
    { FG_GRAMMAR_REGEX, "[a-\\d]", "a class is no end of a range" },
    { FG_GRAMMAR_REGEX, "[[:alpha:]]", "not supported" },
    { FG_GRAMMAR_REGEX, "*a", "nothing to repeat at byte 0" },
    { FG_GRAMMAR_REGEX, "a**", "a repetition of a repetition at byte 2" },
    { FG_GRAMMAR_REGEX, "a++", "a repetition of a repetition" },
    { FG_GRAMMAR_REGEX, "a{3,2}", "most is below its least" },
    { FG_GRAMMAR_REGEX, "a{70000}", "too many repetitions" },
    { FG_GRAMMAR_REGEX, "a{60000}b{60000}c{60000}d{60000}e{60000}", "too large" },
    { FG_GRAMMAR_REGEX, "a^b", "^ and $ are supported at the ends only at byte 1" },
    { FG_GRAMMAR_REGEX, "(^a)", "^ and $" },
    { FG_GRAMMAR_REGEX, "\\bword", "assertions" },
    { FG_GRAMMAR_REGEX, "(a)\\1", "references to groups" },
    { FG_GRAMMAR_REGEX, "(?!a)", "are not supported at byte 0" },
    { FG_GRAMMAR_REGEX, "(?<=a)b", "are not supported" },
    { FG_GRAMMAR_REGEX, "(?i)a", "are not supported" },
    { FG_GRAMMAR_REGEX, "\\p{L}", "an escape that is not supported" },
    { FG_GRAMMAR_REGEX, "\\u12", "four hexadecimal digits" },
    { FG_GRAMMAR_REGEX, "\\ud800", "half of a surrogate pair" },
    { FG_GRAMMAR_REGEX, "a\\", "a lone backslash" },
    { FG_GRAMMAR_REGEX, "\xff", "not valid UTF-8" },
    { FG_GRAMMAR_CHOICE, "[]", "at least one" },
    { FG_GRAMMAR_CHOICE, "{}", "an array of strings" },
    { FG_GRAMMAR_CHOICE, "[\"a\",1]", "[1]: a choice is a string" },
    { FG_GRAMMAR_GBNF, "", "there is no rule \"root\"" },
    { FG_GRAMMAR_GBNF, "root ::= b", "rule \"b\", which line 1 calls, is not defined" },
    { FG_GRAMMAR_GBNF, "root ::= \"a\"\nroot ::= \"b\"", "defined before in line 2" },
    { FG_GRAMMAR_GBNF, "root ::= root \"a\" | \"b\"", "left recursion: rule \"root\"" },
    { FG_GRAMMAR_GBNF, "root ::= e root \"a\" | \"b\"\ne ::= \"\"", "left recursion" },
    { FG_GRAMMAR_GBNF, "root ::= x\nx ::= y | \"b\"\ny ::= x", "left recursion" },
    { FG_GRAMMAR_GBNF, "root ::= \"a\" root", "no text can be" },
    { FG_GRAMMAR_GBNF, "root ::= \"a", "a literal without its end in line 1" },
    { FG_GRAMMAR_GBNF, "\nroot ::= [a", "a class without its end in line 2" },
    { FG_GRAMMAR_GBNF, "root ::= (\"a\"", "a group without its end" },
    { FG_GRAMMAR_GBNF, "root ::= \"a\"{2,1}", "a repetition is" },
    { FG_GRAMMAR_GBNF, "root ::= \"\\q\"", "an escape that is not known" },
    { FG_GRAMMAR_GBNF, "root = \"a\"", "no rule (a name and ::=) begins in line 1" },
    { FG_GRAMMAR_GBNF, "root ::= \"a\" )", "no rule" },
    { FG_GRAMMAR_GBNF, "root ::= $", "no part of a rule" },
    { FG_GRAMMAR_NONE, "", "no kind" },
};

Test(grammar, what_is_refused_says_where_and_why)
{
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        fg_grammar *grammar = NULL;
        fg_error err = { 0 };
        cr_assert_eq(fg_grammar_compile(refused[i].kind, refused[i].text, strlen(refused[i].text),
                                        &grammar, &err),
                     FG_BAD_INPUT, "%s", refused[i].text);
        cr_assert_null(grammar);
        cr_assert_not_null(strstr(err.text, refused[i].why), "%s: \"%s\"", refused[i].text,
                           err.text);
    }
}

Test(grammar, too_long_texts_are_refused)
{
    fg_grammar *grammar = NULL;
    char *text = (char *)calloc(1, FG_GRAMMAR_TEXT_MAX + 1);
    memset(text, 'a', FG_GRAMMAR_TEXT_MAX + 1);
    cr_assert_eq(
        fg_grammar_compile(FG_GRAMMAR_REGEX, text, FG_GRAMMAR_TEXT_MAX + 1, &grammar, NULL),
        FG_BAD_INPUT);
    cr_assert_eq(fg_grammar_compile(FG_GRAMMAR_REGEX, text, 100000, &grammar, NULL), FG_OK);
    fg_grammar_destroy(grammar);
    memset(text, '(', FG_GRAMMAR_TEXT_MAX);
    cr_assert_eq(fg_grammar_compile(FG_GRAMMAR_REGEX, text, 100000, &grammar, NULL), FG_BAD_INPUT);
    cr_assert_eq(fg_grammar_compile(FG_GRAMMAR_SCHEMA, text, 100000, &grammar, NULL), FG_BAD_INPUT);
    free(text);
}
