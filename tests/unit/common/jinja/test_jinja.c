#include "common/jinja/jinja.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/fault.h"
#include "tests/support/test.h"

/* The variables of every case. */
static const char VARIABLES[] =
    "{\"n\":3,\"r\":0.5,\"yes\":true,\"nil\":null,\"t\":\"a<b\",\"pad\":\"  x \\n\",\"empty\":\"\","
    "\"list\":[1,2,3,4],\"words\":[\"b\",\"a\",\"c\"],\"m\":{\"k\":\"v\",\"items\":1},"
    "\"people\":[{\"name\":\"Ann\",\"age\":3},{\"name\":\"Bo\",\"age\":2}],\"uni\":"
    "\"h\\u00e9\\u20ac\"}";

typedef struct rendered {
    fg_status compiled;
    fg_status status;
    fg_buf text;
    fg_buf client; /* only what the client wrote */
    fg_error err;
} rendered;

static rendered render(const char *source, size_t bytes_max, uint64_t steps_max)
{
    rendered r = { .status = FG_OK };
    fg_jinja *template = NULL;
    fg_json *json = NULL;
    fg_buf_init(&r.text, 0);
    fg_buf_init(&r.client, 0);
    fg_buf_puts(&r.text, "");
    fg_buf_puts(&r.client, "");
    cr_assert_eq(fg_json_parse(VARIABLES, sizeof VARIABLES - 1, &json, &r.err), FG_OK);
    r.compiled = fg_jinja_compile(source, strlen(source), &template, &r.err);
    if (r.compiled == FG_OK) {
        fg_jinja_run *run = fg_jinja_run_create(bytes_max, steps_max, 0);
        const fg_jinja_piece *pieces;
        size_t count;
        r.status = fg_jinja_render(template, run, fg_jinja_json(run, fg_json_root(json)), &pieces,
                                   &count, &r.err);
        for (size_t i = 0; r.status == FG_OK && i < count; i++) {
            fg_buf_append(&r.text, pieces[i].text, pieces[i].length);
            fg_buf_append(&r.client, pieces[i].text, pieces[i].of_client ? pieces[i].length : 0);
        }
        fg_jinja_run_destroy(run);
    }
    fg_jinja_destroy(template);
    fg_json_destroy(json);
    return r;
}

static void drop(rendered *r)
{
    fg_buf_deinit(&r->text);
    fg_buf_deinit(&r->client);
}

/* What Jinja2 3.1 gives; tests/integration/jinja_vs_jinja2.py compares many more with it. */
static const struct {
    const char *name, *source, *want;
} cases[] = {
    { "text alone", "a { b } {c}", "a { b } {c}" },
    { "the last line end goes", "a\n\n", "a\n" },
    { "carriage returns", "a\r\nb\rc", "a\nb\nc" },
    { "a block's line end goes", "{% if yes %}\nx\n{% endif %}\ny", "x\ny" },
    { "a block's indentation goes", "a\n  {% if yes %}\n  x\n  {% endif %}\nb", "a\n  x\nb" },
    { "but not behind text", "a  {% if yes %}x{% endif %}", "a  x" },
    { "nor with a plus", "a\n  {%+ if yes %}x{% endif +%}\nb", "a\n  x\nb" },
    { "an output keeps its white space", "a\n  {{ n }}\nb", "a\n  3\nb" },
    { "dashes strip", "a \n {{- n -}} \n b{%- if yes -%} \n c \n{%- endif %}", "a3bc" },
    { "comments", "a{# {{ n }} #}b\n  {#- x -#}  \nc", "abc" },
    { "raw", "{% raw %}{{ n }}{% if %}{% endraw %}", "{{ n }}{% if %}" },
    { "precedence", "{{ 1 + 2 * 3 ** 2 - 8 // 3 % 5 }}", "17" },
    { "a filter binds tighter than a sum", "{{ 'a' + pad | trim + 'b' }}", "axb" },
    { "and than a sign", "{{ -3 | abs }}", "3" },
    { "concatenation", "{{ n ~ r ~ nil ~ yes }}", "30.5NoneTrue" },
    { "comparisons in a row", "{{ 1 < n <= 3 }} {{ 1 < n < 3 }}", "True False" },
    { "in", "{{ 2 in list }}{{ 'k' in m }}{{ '<' in t }}{{ 9 not in list }}", "TrueTrueTrueTrue" },
    { "and, or and not", "{{ nil or t }}{{ n and r }}{{ not n }}", "a<b0.5False" },
    { "a choice", "{{ 'a' if n == 3 else 'b' }}{{ 'c' if n == 4 }}", "a" },
    { "strings side by side", "{{ 'a' \"b\" }}", "ab" },
    { "escapes", "{{ 'a\\n\\t\\\\\\'\\x41\\u20ac\\q' }}", "a\n\t\\'A\xe2\x82\xac\\q" },
    { "division", "{{ 7 / 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7.0 // 2 }}", "3.5 -4 2 3.0" },
    { "floats", "{{ 0.1 + 0.2 }} {{ 1e16 }} {{ 1.0 }} {{ 1e-7 }} {{ 123456.75 }}",
      "0.30000000000000004 1e+16 1.0 1e-07 123456.75" },
    { "members", "{{ m.k }}{{ m['items'] }}{{ people[1].name }}{{ people[-1]['age'] }}", "v1Bo2" },
    { "what is missing", "[{{ m.zz }}{{ list[9] }}{{ zz }}]", "[]" },
    { "slices", "{{ list[1:] }}{{ list[::-1] }}{{ list[:-1] }}{{ list[-2:9] }}{{ t[1:] }}",
      "[2, 3, 4][4, 3, 2, 1][1, 2, 3][3, 4]<b" },
    { "characters, not bytes", "{{ uni | length }}{{ uni[1] }}{{ uni[::-1] }}",
      "3\xc3\xa9\xe2\x82\xac\xc3\xa9h" },
    { "a loop", "{% for x in list %}{{ loop.index }}{{ x }}{{ ',' if not loop.last }}{% endfor %}",
      "11,22,33,44" },
    { "a loop's neighbours",
      "{% for x in words %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }}{% endfor %}",
      "<b>ab<a>ca<c>" },
    { "pairs", "{% for k, v in m.items() %}{{ k }}={{ v }};{% endfor %}", "k=v;items=1;" },
    { "a loop with a condition",
      "{% for x in list if x % 2 == 0 %}{{ loop.length }}{{ x }} {% endfor %}", "22 24 " },
    { "no items", "{% for x in [] %}a{% else %}none{% endfor %}", "none" },
    { "break and continue",
      "{% for x in list %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 4 %}{% break %}"
      "{% endif %}{{ x }}{% endfor %}",
      "13" },
    { "a loop's names end with it",
      "{% set x = 0 %}{% for y in list %}{% set x = y %}{% endfor %}{{ x }}", "0" },
    { "a namespace's stay",
      "{% set ns = namespace(x=0) %}{% for y in list %}{% set ns.x = ns.x + y %}{% endfor %}{{ "
      "ns.x }}",
      "10" },
    { "a branch's names stay", "{% if yes %}{% set x = 5 %}{% endif %}{{ x }}", "5" },
    { "two at once", "{% set a, b = 1, 2 %}{{ b }}{{ a }}", "21" },
    { "a block becomes a value", "{% set a %}x{{ n }}{% endset %}{{ a | upper }}", "X3" },
    { "a macro",
      "{% macro f(a, b='d', c=none) %}{{ a }}{{ b }}{{ c }}{% endmacro %}{{ f(1) }}{{ f(1, c=2, "
      "b=3) }}",
      "1dNone132" },
    { "a macro sees names of its place",
      "{% set x = 1 %}{% macro f() %}{{ x }}{% endmacro %}{% set x = 2 %}{{ f() }}", "2" },
    { "a macro calls itself",
      "{% macro f(n) %}{{ n }}{% if n > 0 %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}",
      "3210" },
    { "a call with a body",
      "{% macro f(a) %}<{{ caller(a) }}>{% endmacro %}{% call(x) f(7) %}{{ x }}!{% endcall %}",
      "<7!>" },
    { "a call with a list", "{% macro f(a, b) %}{{ a }}{{ b }}{% endmacro %}{{ f(*words[:2]) }}",
      "ba" },
    { "a block through a filter", "{% filter upper %}a{{ t }}{% endfilter %}", "AA<B" },
    { "JSON", "{{ m | tojson }}{{ [nil, yes, r, 'a\"\\n'] | tojson }}",
      "{\"k\": \"v\", \"items\": 1}[null, true, 0.5, \"a\\\"\\n\"]" },
    { "JSON with an indent", "{{ {'a': [1, {}], 'b': []} | tojson(indent=2) }}",
      "{\n  \"a\": [\n    1,\n    {}\n  ],\n  \"b\": []\n}" },
    { "JSON's other ways",
      "{{ [uni] | tojson(ensure_ascii=true) }}{{ m | tojson(separators=(',', ':')) }}",
      "[\"h\\u00e9\\u20ac\"]{\"k\":\"v\",\"items\":1}" },
    { "as Python shows it", "{{ [t, 'it\\'s', nil, (1,), {'a': 1}] }}",
      "['a<b', \"it's\", None, (1,), {'a': 1}]" },
    { "methods of strings",
      "{{ ' a,b '.strip().split(',')[1] }}{{ t.startswith('a') }}{{ t.replace('<', '-') }}"
      "{{ 'xxaxx'.lstrip('x') }}{{ 'a b'.title() }}{{ t.find('b') }}{{ '-'.join(words) }}",
      "bTruea-baxxA B2b-a-c" },
    { "methods of mappings", "{{ m.get('k') }}{{ m.get('z', 4) }}{{ m.keys() | list }}",
      "v4['k', 'items']" },
    { "filters by name",
      "{{ people | map(attribute='name') | join('+') }}{{ words | map('upper') | list }}"
      "{{ people | selectattr('age', 'equalto', 2) | map(attribute='name') | first }}"
      "{{ list | reject('odd') | list }}",
      "Ann+Bo['B', 'A', 'C']Bo[2, 4]" },
    { "numbers", "{{ '12' | int + 1 }}{{ 'x' | int(7) }}{{ '1.5' | float }}{{ 3.9 | int }}",
      "1371.53" },
    { "defaults",
      "{{ zz | default('d') }}{{ empty | default('d', true) }}{{ empty | default('d') }}", "dd" },
    { "lines", "{{ 'a\\nb\\n\\nc' | indent(2) }}|{{ 'a\\nb' | indent(2, true) }}",
      "a\n  b\n\n  c|  a\n  b" },
    { "a text that grows keeps its beginnings",
      "{% set a = 'x' ~ n %}{% set b = a ~ 'y' %}{% set c = a ~ 'z' %}{% set d = b ~ c %}{% set e "
      "= b ~ 1 %}"
      "{{ a }} {{ b }} {{ c }} {{ d }} {{ e }}",
      "x3 x3y x3z x3yx3z x3y1" },
    { "sorted mappings",
      "{{ {'b': 1, 'A': 2, 'a': 3} | dictsort }}{{ m | dictsort(reverse=true) }}",
      "[('A', 2), ('a', 3), ('b', 1)][('k', 'v'), ('items', 1)]" },
    { "line ends",
      "{{ 'a\\u2028b\\x0bc\\r\\nd\\n'.splitlines() | length }}{{ 'a\\nb'.splitlines(true) }}",
      "4['a\\n', 'b']" },
    { "whole numbers of texts", "{{ '9007199254740993' | int }}{{ '1e3' | int }}",
      "90071992547409931000" },
    { "by place", "{{ [[1, 2], [3, 4]] | map(attribute='1') | list }}", "[2, 4]" },
    { "by a place cut out of a text", "{{ [[1, 2]] | map(attribute='12'[:1]) | list }}", "[2]" },
    { "the same thing", "{{ 1 is sameas true }}{{ 1 == true }}", "FalseTrue" },
    { "tests",
      "{{ zz is defined }}{{ nil is none }}{{ t is string }}{{ m is mapping }}{{ list is iterable "
      "}}"
      "{{ 4 is divisibleby 2 }}{{ n is not even }}{{ yes is true }}",
      "FalseTrueTrueTrueTrueTrueTrueTrue" },
    { "a marker for training", "{% generation %}a{% endgeneration %}b", "ab" },
    { "today", "{{ strftime_now('%d %B %Y') }}{{ strftime_now is defined }}",
      "01 January 1970True" },
    { "a range", "{{ range(3) | list }}{{ range(5, 1, -2) | list }}", "[0, 1, 2][5, 3]" },
};

enum { BYTES = 1 << 24, STEPS = 400000 };

Test(jinja, renders_as_jinja2)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        rendered r = render(cases[i].source, BYTES, STEPS);
        cr_assert(r.compiled == FG_OK && r.status == FG_OK, "%s: %s", cases[i].name, r.err.text);
        cr_assert_str_eq(r.text.data, cases[i].want, "%s", cases[i].name);
        drop(&r);
    }
}

static const struct {
    const char *name, *source, *want;
} refused[] = {
    { "a tag without an end", "{% if yes", "does not end" },
    { "an output without an end", "{{ n", "does not end" },
    { "a comment without an end", "a{# b", "a comment does not end" },
    { "raw without an end", "{% raw %}a", "'raw' does not end" },
    { "a string without an end", "{{ 'a }}", "a string does not end" },
    { "an escape of nothing", "{{ '\\u12' }}", "an escape" },
    { "half of a pair", "{{ '\\ud800' }}", "an escape" },
    { "no expression", "{{ }}", "an expression is missing" },
    { "a block that is not closed", "{% for x in list %}a", "'endfor' is missing" },
    { "another one is closed", "{% for x in list %}{% endif %}", "no tag 'endif'" },
    { "on which line", "a\nb\n{{ 1 | zz }}", "line 3: there is no filter 'zz'" },
    { "no such test", "{{ 1 is zz }}", "there is no test 'zz'" },
    { "no such tag", "{% import 'a' %}", "there is no tag 'import'" },
    { "a keyword as a name", "{% set if = 1 %}", "a name is missing" },
    { "break alone", "{% break %}", "need a loop" },
    { "a macro in a loop is no loop",
      "{% for x in list %}{% macro f() %}{% break %}{% endmacro %}{% endfor %}", "need a loop" },
    { "recursive", "{% for x in list recursive %}{% endfor %}", "recursive loops" },
    { "a bracket too many", "{{ n) }}", "closes nothing" },
    { "a strange sign", "{{ n ? 1 }}", "means nothing here" },
    { "a large number", "{{ 99999999999999999999 }}", "too large" },
    { "letters behind a number", "{{ 1a }}", "behind a number" },
    { "names first", "{{ f(a=1, 2) }}", "without a name" },
};

Test(jinja, refuses_what_it_does_not_know)
{
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        rendered r = render(refused[i].source, BYTES, STEPS);
        cr_assert_eq(r.compiled, FG_BAD_INPUT, "%s", refused[i].name);
        cr_assert_not_null(strstr(r.err.text, refused[i].want), "%s: %s", refused[i].name,
                           r.err.text);
        drop(&r);
    }
}

static const struct {
    const char *name, *source, *want;
} failing[] = {
    { "raised", "a\n{{ raise_exception('no ' ~ n) }}", "line 2: no 3" },
    { "a member of nothing", "{{ zz.a }}", "'zz' is undefined" },
    { "of a member that is not there", "{{ m.zz.a }}", "'zz' is undefined" },
    { "a sum with nothing", "{{ 'a' + zz }}", "'zz' is undefined" },
    { "text and number", "{{ 'a' + 1 }}", "a string and an integer" },
    { "text and None", "{{ t + nil }}", "a string and none" },
    { "an order of nothing", "{{ n < t }}", "have no order" },
    { "division by zero", "{{ 1 // 0 }}{{ 1 }}", "division by zero" },
    { "too large", "{{ 9 * 10 ** 18 + 9 * 10 ** 18 }}", "too large" },
    { "a call of a text", "{{ t() }}", "a string cannot be called" },
    { "a call of nothing", "{{ zz() }}", "'zz' is undefined" },
    { "items of a number", "{% for x in n %}{% endfor %}", "an integer has no items" },
    { "too few values", "{% for a, b in [[1]] %}{% endfor %}", "1 values for 2 names" },
    { "a member of a mapping", "{% set m.k = 1 %}", "only a namespace" },
    { "endless",
      "{% set l = range(1000) %}{% for a in l %}{% for b in l %}{% endfor %}{% endfor %}",
      "too many steps" },
    { "without end", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "nested deeper" },
    { "a call's body calls", "{% macro f() %}{% call f() %}{% endcall %}{% endmacro %}{{ f() }}",
      "nested deeper" },
    { "a list in a list in a list",
      "{% set a = namespace(x=[]) %}{% set b = namespace(x=[]) %}{% for i in range(2000) %}"
      "{% set a.x = [a.x] %}{% set b.x = [b.x] %}{% endfor %}{{ a.x == b.x }}",
      "nested deeper" },
    { "the same in order",
      "{% set a = namespace(x=[1]) %}{% set b = namespace(x=[2]) %}{% for i in range(2000) %}"
      "{% set a.x = [a.x] %}{% set b.x = [b.x] %}{% endfor %}{{ a.x < b.x }}",
      "nested deeper" },
    { "affixes in lists",
      "{% set a = namespace(x=['z']) %}{% for i in range(2000) %}{% set a.x = [a.x] %}{% endfor %}"
      "{{ t.startswith(a.x) }}",
      "nested deeper" },
    { "map of map",
      "{% set a = namespace(x=[1]) %}{% for i in range(1000) %}{% set a.x = [a.x] %}"
      "{% endfor %}{{ a.x | map(*(['map'] * 900 + ['list'])) | list }}",
      "nested deeper" },
    { "an argument that nobody takes", "{% macro f(a) %}{% endmacro %}{{ f(b=1) }}",
      "no argument 'b'" },
    { "a client's separators", "{{ [1, 2] | tojson(separators=words[:2]) }}", "own text" },
    { "an indent of tabs", "{{ [1] | tojson(indent='\t') }}", "an integer as its indent" },
    { "sorted by value", "{{ m | dictsort(by='value') }}", "by key alone" },
    { "a large range", "{{ range(100001) }}", "a range of more" },
    { "arguments too many", "{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}", "2 arguments" },
    { "JSON of a macro", "{% macro f() %}{% endmacro %}{{ f | tojson }}", "cannot be written" },
};

Test(jinja, a_run_fails_with_a_reason)
{
    for (size_t i = 0; i < sizeof failing / sizeof failing[0]; i++) {
        rendered r = render(failing[i].source, BYTES, STEPS);
        cr_assert_eq(r.compiled, FG_OK, "%s: %s", failing[i].name, r.err.text);
        cr_assert_eq(r.status, FG_BAD_INPUT, "%s", failing[i].name);
        cr_assert_not_null(strstr(r.err.text, failing[i].want), "%s: %s", failing[i].name,
                           r.err.text);
        drop(&r);
    }
}

/* Of the rendered text, what the client wrote and nothing else. */
static const struct {
    const char *source, *client;
} writers[] = {
    { "<{{ t }}>", "a<b" },
    { "{{ '<' + t + '>' }}", "a<b" },
    { "{{ '<' ~ pad | trim ~ '>' }}", "x" },
    { "{{ t.split('<')[0] ~ '|' ~ t[-1:] }}", "ab" },
    { "{{ t.replace('<', '>') }}", "ab" },
    { "{{ 'x<y'.replace('<', t) }}", "a<b" },
    { "{{ t | upper }}{{ 'c' | upper }}", "A<B" },
    { "{{ m | tojson }}", "kvitems" },
    { "{{ [t] }}", "a<b" },
    { "{% for k in m %}({{ k }}){% endfor %}", "kitems" },
    { "{{ words | join('-') }}", "bac" },
    { "{% set x %}<{{ t }}>{% endset %}{{ x }}", "a<b" },
    { "{% macro f(a) %}<{{ a }}>{% endmacro %}{{ f(t) }}", "a<b" },
    { "{{ {t: 1} }}", "a<b" },
    { "{{ 'a<b' if t == 'a<b' }}", "" },
    { "{{ n }}{{ t | length }}", "" },
    { "{{ (t ~ '\\n' ~ t) | indent(2) }}", "a<ba<b" },
    { "{% for c in t %}[{{ c }}]{% endfor %}", "a<b" },
    { "{{ t[::-1] }}", "b<a" },
    { "{{ strftime_now(t) }}", "a<b" },
    { "{{ {'x': t} | dictsort }}", "a<b" },
    { "{% set ns = namespace(s='') %}{% for w in words %}{% set ns.s = ns.s + '[' + w %}{% endfor "
      "%}{{ ns.s }}",
      "bac" },
};

Test(jinja, every_piece_says_who_wrote_it)
{
    for (size_t i = 0; i < sizeof writers / sizeof writers[0]; i++) {
        rendered r = render(writers[i].source, BYTES, STEPS);
        cr_assert(r.compiled == FG_OK && r.status == FG_OK, "%s: %s", writers[i].source,
                  r.err.text);
        cr_assert_str_eq(r.client.data, writers[i].client, "%s", writers[i].source);
        drop(&r);
    }
}

Test(jinja, takes_no_more_memory_and_steps_than_it_may)
{
    static const char source[] =
        "{% set ns = namespace(x='aa') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}"
        "{% endfor %}{{ ns.x | length }}";
    rendered r = render(source, BYTES, UINT64_MAX);
    cr_assert_eq(r.status, FG_BAD_INPUT, "%s", r.err.text);
    cr_assert_not_null(strstr(r.err.text, "too much memory"), "%s", r.err.text);
    drop(&r);
    r = render(source, (size_t)1 << 34, 10000);
    cr_assert_eq(r.status, FG_BAD_INPUT, "%s", r.err.text);
    cr_assert_not_null(strstr(r.err.text, "too many steps"), "%s", r.err.text);
    drop(&r);
    static char deep[4096];
    memset(deep, '(', 200);
    memcpy(deep, "{{", 2);
    r = render(deep, BYTES, STEPS);
    cr_assert_eq(r.compiled, FG_BAD_INPUT);
    cr_assert_not_null(strstr(r.err.text, "nested deeper"), "%s", r.err.text);
    drop(&r);
    char *large = malloc(FG_JINJA_SOURCE_MAX + 2);
    memset(large, 'a', FG_JINJA_SOURCE_MAX + 1);
    large[FG_JINJA_SOURCE_MAX + 1] = '\0';
    r = render(large, BYTES, STEPS);
    cr_assert_eq(r.compiled, FG_BAD_INPUT);
    drop(&r);
    large[FG_JINJA_SOURCE_MAX] = '\0';
    r = render(large, BYTES, STEPS);
    cr_assert_eq(r.compiled, FG_OK, "%s", r.err.text);
    drop(&r);
    free(large);
}

static const char everything[] =
    "{% macro f(a, b=2) %}{{ a }}{{ b }}{{ caller() if caller }}{% endmacro %}"
    "{% set x = ['a' 'b', {'k': t, 'l': [1.5, -n]}] %}{% set y %}{{ x | tojson(indent=1) }}{% "
    "endset %}"
    "{% for p in people if p.age > 1 %}{{ p.name | upper ~ loop.index }}{{ p.items() | list }}"
    "{% endfor %}{% call f(1) %}z{% endcall %}{{ f(*words[:2]) }}{{ y.split('a') | join('-') }}"
    "{{ pad.strip().replace('x', t) | indent(3, true) }}{{ people | map(attribute='name') | list }}"
    "{{ m | dictsort }}{{ words | unique | reverse | list }}{% filter title %}q{% endfilter %}";

static bool try_all(void *ctx)
{
    (void)ctx;
    fg_jinja *template = NULL;
    fg_json *json = NULL;
    fg_error err;
    uint64_t left = fg_fault_hold();
    cr_assert_eq(fg_json_parse(VARIABLES, sizeof VARIABLES - 1, &json, &err), FG_OK);
    fg_fault_resume(left);
    fg_status status = fg_jinja_compile(everything, sizeof everything - 1, &template, &err);
    fg_jinja_run *run = status == FG_OK ? fg_jinja_run_create(BYTES, STEPS, 0) : NULL;
    if (run != NULL) {
        const fg_jinja_piece *pieces;
        size_t count;
        status = fg_jinja_render(template, run, fg_jinja_json(run, fg_json_root(json)), &pieces,
                                 &count, &err);
        cr_assert(status == FG_OK || status == FG_AGAIN, "%s", err.text);
    }
    bool done = run != NULL && status == FG_OK;
    fg_jinja_run_destroy(run);
    fg_jinja_destroy(template);
    fg_json_destroy(json);
    return done;
}

Test(jinja, survives_every_failed_allocation)
{
    cr_assert(fg_fault_each(try_all, NULL) >= 6);
}

static const struct {
    const char *source;
    bool reads;
} readers[] = {
    { "{{ tools }}", true },
    { "{% for t in tools %}{% endfor %}", true },
    { "{% if a is defined and not tools %}{% endif %}", true },
    { "{% set x = f(1, b=tools | length) %}", true },
    { "{% macro m() %}{{ x[tools] }}{% endmacro %}", true },
    { "{{ x.tools }}{{ x['tools'] }}", false },
    { "{% set tools = 1 %}", false },
    { "{{ f(tools=1) }}", false },
    { "tools {# tools #}{{ 'tools' }}{{ toolss }}", false },
    { "", false },
};

Test(jinja, a_template_says_what_it_reads)
{
    for (size_t i = 0; i < sizeof readers / sizeof readers[0]; i++) {
        fg_jinja *template = NULL;
        fg_error err = { 0 };
        cr_assert_eq(
            fg_jinja_compile(readers[i].source, strlen(readers[i].source), &template, &err), FG_OK,
            "%s: %s", readers[i].source, err.text);
        cr_assert_eq(fg_jinja_reads(template, "tools"), readers[i].reads, "%s", readers[i].source);
        fg_jinja_destroy(template);
    }
}
