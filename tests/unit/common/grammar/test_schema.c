#include "common/grammar/grammar.h"

#include <stdlib.h>
#include <string.h>

#include "tests/unit/common/grammar/rig.h"

#define MOST 20

/* Texts are JSON with ' for ". */
static const struct {
    const char *schema;
    const char *yes[MOST];
    const char *no[MOST];
} cases[] = {
    { "{'type':'object','properties':{'a':{'type':'integer'},'b':{'type':'string'}},'required':['b'"
      "]}",
      { "{'a':1,'b':''}", "{'b':'x'}", "{ 'a': -12,\n  'b':'\\n\\u00e9\\ud83d\\ude00' }",
        "{\n\t\t'b': 'x'\n}" },
      { "{}", "{'a':1}", "{'b':'x','a':1}", "{'a':1,'b':'','c':2}", "{'a':1,,'b':''}",
        "{'a':01,'b':''}", "{'a':1 ,'b':''}", " {'b':'x'}", "{'b':'x'} ", "{  'b':'x'}",
        "{'b' :'x'}", "{'b':'\\ud83d'}", "{'b':'\n'}", "{'b':'\\u0000'}", "{'b':'\x80'}",
        "{'a':1.0,'b':''}", "{'a':-0,'b':''}" } },
    { "{}",
      { "1", "-0.5e+10", "'x'", "[1, [], {'a':{}}]", "null", "true" },
      { "", "nul", "01", "1.", ".5", "+1", "NaN", "[1,]", "{'a'}", "1234567890123456789",
        "1e100" } },
    { "true", { "1", "{}" }, { "x" } },
    { "{'type':'object','additionalProperties':{'type':'boolean'}}",
      { "{}", "{'a':true}", "{'a':true,'b':false}", "{'':true}" },
      { "{'a':1}", "{'\\n':true}" } },
    { "{'properties':{'ab':{},'\xc3\xa9':{},'':{}},'additionalProperties':{'type':'null'}}",
      { "{'ab':1}", "{'a':null}", "{'abc':null}", "{'ab':1,'\xc3\xa8':null}", "{'\xc3\xa9':[]}",
        "{'\xc3\xa9\xc3\xa9':null}", "{'':1}" },
      { "{'a':1}", "{'ab':1,'ab':null}", "{'\xc3\xa9':1,'\xc3\xa8':1}", "{'b':null,'ab':1}",
        "[]" } },
    { "{'type':'object','required':['x'],'properties':{'y':{'type':'null'}}}",
      { "{'x':1}", "{'y':null,'x':[]}" },
      { "{}", "{'y':null}", "{'x':1,'z':1}" } },
    { "{'type':'object','properties':{'a':{'const':1},'b':{'const':2},'c':{'const':3}},'"
      "minProperties':2,"
      "'maxProperties':2}",
      { "{'a':1,'b':2}", "{'b':2,'c':3}", "{'a':1,'c':3}" },
      { "{}", "{'a':1}", "{'a':1,'b':2,'c':3}" } },
    { "{'type':'object','maxProperties':1,'additionalProperties':{'const':0}}",
      { "{}", "{'k':0}" },
      { "{'k':0,'l':0}" } },
    { "{'type':'array','items':{'type':'integer','minimum':3},'minItems':1,'maxItems':3}",
      { "[3]", "[3, 4,\n55]", "[ 10 ]" },
      { "[]", "[2]", "[3,3,3,3]", "[3 ,3]", "[,3]" } },
    { "{'prefixItems':[{'const':1},{'enum':['a','b']}],'items':{'type':'null'}}",
      { "[]", "[1]", "[1,'a']", "[1,'b',null,null]" },
      { "['a']", "[1,null]", "[1,'a',1]" } },
    { "{'items':[{'const':1}],'additionalItems':false}", { "[]", "[1]" }, { "[1,1]" } },
    { "{'prefixItems':[true],'minItems':2}", { "[1,2]", "[1,2,3]" }, { "[1]", "[]" } },
    { "{'type':['string','null'],'maxLength':2}",
      { "null", "''", "'ab'", "'\xf0\x9f\x98\x80\\u00e9'", "'\\ud83d\\ude00\\n'" },
      { "'abc'", "1" } },
    { "{'type':'string','minLength':2}", { "'ab'", "'abc'" }, { "'a'", "''" } },
    { "{'type':'string','pattern':'^[a-c]{2}$'}", { "'ab'" }, { "'abc'", "'a'", "'\\u0061b'" } },
    { "{'type':'string','pattern':'x\\\\.y'}",
      { "'x.y'", "'ax.yb'", "'\\nx.y'" },
      { "'xzy'", "'x'" } },
    { "{'type':'string','pattern':'^(\\\\\\\\|\\\"|\\\\n)$'}",
      { "'\\\\'", "'\\''", "'\\n'" },
      { "'n'" } },
    { "{'type':'string','format':'date'}",
      { "'2024-02-29'", "'2026-12-31'" },
      { "'2023-02-29'", "'2026-13-01'", "'2026-04-31'", "'0000-01-01'" } },
    { "{'type':'string','format':'date-time'}",
      { "'2026-11-28T10:00:00Z'", "'2026-11-28T10:00:00.5+01:00'" },
      { "'2026-11-28 10:00:00Z'", "'2026-11-28T24:00:00Z'" } },
    { "{'type':'string','format':'ipv4'}",
      { "'127.0.0.1'", "'255.255.255.255'" },
      { "'256.0.0.1'", "'1.2.3'" } },
    { "{'type':'string','format':'uuid'}",
      { "'2eb8aa08-aa98-11ea-b4aa-73b441d16380'" },
      { "'2eb8aa08'" } },
    { "{'type':'integer','format':'int64'}", { "5" }, { "'5'" } },
    { "{'type':'integer','minimum':-12,'exclusiveMaximum':105}",
      { "-12", "-1", "0", "9", "99", "104" },
      { "-13", "105", "-0", "00", "1000", "-112" } },
    { "{'type':'integer','minimum':98,'maximum':10203}",
      { "98", "99", "100", "9999", "10203", "10199" },
      { "97", "10204", "9", "11000" } },
    { "{'type':'integer','minimum':1.5,'maximum':3.5}", { "2", "3" }, { "1", "4", "2.0" } },
    { "{'type':'number','minimum':0,'maximum':1}",
      { "0", "0.5", "1", "1.0", "0.000001", "1.000000" },
      { "-0.1", "1.1", "1.000001", "2", "0.0000001", "1e0", "-0" } },
    { "{'type':'number','exclusiveMinimum':-2.25,'exclusiveMaximum':10.5}",
      { "-2.249", "-2", "-0", "0", "10.499999", "9.9", "-1.999999" },
      { "-2.25", "-2.250", "10.5", "-3", "11" } },
    { "{'type':'number','exclusiveMinimum':0}",
      { "0.1", "0.000001", "123456789.5" },
      { "0", "0.0", "-1", "-0.0" } },
    { "{'type':['integer','string'],'minimum':3}", { "3", "'x'" }, { "2", "3.5" } },
    { "{'enum':['a','ab',1,-2.5,1e30,true,null,[1,{'k':[]}]]}",
      { "'a'", "'ab'", "1", "-2.5", "1e+30", "true", "null", "[1,{'k':[]}]", "[ 1,\n{'k': []}\n]" },
      { "'b'", "2", "1.0", "[]", "[1,{'k':[1]}]" } },
    { "{'type':'string','enum':['a',1,'bcd'],'maxLength':2}", { "'a'" }, { "1", "'bcd'" } },
    { "{'const':1.0}", { "1" }, { "2" } },
    { "{'anyOf':[{'type':'integer'},{'type':'string','maxLength':1}]}",
      { "12", "'x'" },
      { "'xy'", "null" } },
    { "{'type':'object','properties':{'a':{'type':'null'},'b':{'type':'null'}},"
      "'anyOf':[{'required':['a']},{'required':['b']}]}",
      { "{'a':null}", "{'b':null}", "{'a':null,'b':null}" },
      { "{}" } },
    { "{'oneOf':[{'type':'object','properties':{'t':{'const':'x'},'v':{'type':'integer'}},'"
      "required':['t','v']},"
      "{'type':'object','properties':{'t':{'enum':['y','z']}},'required':['t']}]}",
      { "{'t':'x','v':1}", "{'t':'z'}" },
      { "{'t':'x'}", "{'t':'y','v':1}", "{}" } },
    { "{'oneOf':[{'type':'null'},{'$ref':'#/$defs/n'}],'$defs':{'n':{'type':'integer'}}}",
      { "null", "5" },
      { "'x'" } },
    { "{'allOf':[{'type':'object','properties':{'a':{'minimum':3}},'required':['a']},"
      "{'properties':{'b':{},'a':{'type':'integer','maximum':4}}}]}",
      { "{'a':3}", "{'a':4,'b':1}" },
      { "{'a':5}", "{'a':2}", "{'b':1}", "{'a':3.5}" } },
    { "{'$ref':'#/definitions/a~1b/properties/c%25','definitions':{'a/"
      "b':{'properties':{'c%':{'const':7}}}}}",
      { "7" },
      { "8" } },
    { "{'type':'object','properties':{'v':{'type':'integer'},'next':{'anyOf':[{'$ref':'#'},{'type':"
      "'null'}]}},"
      "'required':['v','next']}",
      { "{'v':1,'next':null}", "{'v':1,'next':{'v':2,'next':{'v':3,'next':null}}}" },
      { "{'v':1}", "{'v':1,'next':{}}" } },
    { "{'$ref':'#/$defs/t','$defs':{'t':{'type':'array','items':{'$ref':'#/$defs/t'}}}}",
      { "[]", "[[],[[]]]" },
      { "[1]", "[[]" } },
    { "{'type':'integer','nullable':true}", { "1", "null" }, { "''" } },
    { "{'type':'object'}", { "{}", "{'a':[1]}" }, { "[]" } },
    { "{'type':'array'}", { "[]", "[{},1]" }, { "{}" } },
    { "{'properties':{'a':false,'b':true}}", { "{}", "{'b':1}" }, { "{'a':1}" } },
    { "{'type':'array','uniqueItems':false,'maxItems':1}", { "[1]" }, { "1" } },
    { "{'title':'t','description':'d','default':1,'examples':[1],'x-note':1,'$schema':'s','$"
      "comment':'',"
      "'deprecated':true,'type':'boolean'}",
      { "true", "false" },
      { "1" } },
};

/* What is refused, and what the reason contains. */
static const struct {
    const char *schema;
    const char *why;
} refused[] = {
    { "", "" },
    { "[]", "#: not a schema" },
    { "{'type':'object','properties':{'a':{'items':{'not':{}}}}}",
      "#/properties/a/items/not: \"not\" is not supported" },
    { "{'patternProperties':{}}", "#/patternProperties" },
    { "{'if':{},'then':{}}", "#/if" },
    { "{'uniqueItems':true}", "#/uniqueItems" },
    { "{'dependentRequired':{}}", "#/dependentRequired" },
    { "{'contains':{}}", "#/contains" },
    { "{'multipleOf':2}", "#/multipleOf" },
    { "{'propertyNames':{}}", "#/propertyNames" },
    { "{'unevaluatedProperties':false}", "#/unevaluatedProperties" },
    { "{'wrong':1}", "\"wrong\" is not supported" },
    { "{'type':'text'}", "#/type: not a type" },
    { "{'type':7}", "#/type" },
    { "{'type':'string','pattern':'a(?=b)'}",
      "#/pattern: groups such as (?= are not supported at byte 1" },
    { "{'type':'string','pattern':'a','maxLength':3}", "#/pattern" },
    { "{'type':'string','format':'ipv6'}", "format \"ipv6\" is not supported" },
    { "{'type':'string','minLength':-1}", "#/minLength: not a count" },
    { "{'type':'string','minLength':1000000}", "#/minLength: too large" },
    { "{'type':'string','minLength':3,'maxLength':2}", "no text" },
    { "{'type':'integer','minimum':3,'maximum':2}", "no text" },
    { "{'type':'number','minimum':0.0000001}", "#/minimum: limits of numbers" },
    { "{'minimum':'x'}", "#/minimum: not a number" },
    { "false", "no text" },
    { "{'allOf':[{'type':'string'},{'type':'null'}]}", "no text" },
    { "{'type':'object','properties':{'a':{'$ref':'#'}},'required':['a']}", "no text" },
    { "{'enum':[]}", "#/enum" },
    { "{'enum':['a'],'pattern':'a'}", "#/enum: given values beside a pattern" },
    { "{'anyOf':[]}", "#/anyOf" },
    { "{'oneOf':[{'type':'integer'},{'type':'number'}]}",
      "#/oneOf: branches 0 and 1 may both match" },
    { "{'oneOf':[{'properties':{'a':{'const':1}}},{'properties':{'a':{'const':2}}}]}", "#/oneOf" },
    { "{'$ref':'other.json'}", "#/$ref: only references inside" },
    { "{'$ref':'#/$defs/a'}", "#/$ref: there is nothing at \"#/$defs/a\"" },
    { "{'$ref':'#/$defs/a','$defs':{'a':{'$ref':'#/$defs/a'}}}", "lead to each other" },
    { "{'$ref':'#','type':'string'}", "lead to each other" },
    { "{'anyOf':[{'$ref':'#'},{'type':'null'}]}", "left recursion" },
    { "{'properties':[]}", "#/properties: not an object" },
    { "{'required':'a'}", "#/required: not a list" },
    { "{'properties':{'a':3}}", "#/properties/a: not a schema" },
    { "{'properties':{'a':{'$id':'x'}}}", "$id" },
    { "{'additionalProperties':true,'minProperties':2}", "minProperties" },
    { "{'type':'array','items':{'type':'array','minItems':16000,'items':{'type':'array','minItems':"
      "16000}},"
      "'minItems':9,'prefixItems':[{'enum':['a','b'],'minItems':2}],'maxItems':-3}",
      "maxItems" },
};

static char *with_quotes(const char *text)
{
    char *copy = strdup(text);
    for (char *c = copy; *c != '\0'; c++) {
        *c = *c == '\'' ? '"' : *c;
    }
    return copy;
}

Test(schema, texts_are_taken_and_refused)
{
    fg_lexicon *bytes = lexicon_of(NULL);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *schema = with_quotes(cases[i].schema);
        fg_grammar *grammar = grammar_of(FG_GRAMMAR_SCHEMA, schema);
        fg_automaton *a = automaton_of(grammar, bytes);
        for (int wanted = 0; wanted < 2; wanted++) {
            const char *const *texts = wanted ? cases[i].yes : cases[i].no;
            for (int j = 0; j < MOST && texts[j] != NULL; j++) {
                char *text = with_quotes(texts[j]);
                fg_state state = fg_automaton_feed(a, fg_automaton_start(a), text, strlen(text));
                cr_assert_eq(fg_automaton_may_end(a, state), wanted, "%s %s %s", schema,
                             wanted ? "refuses" : "takes", text);
                free(text);
            }
        }
        fg_automaton_destroy(a);
        fg_grammar_destroy(grammar);
        free(schema);
    }
    fg_lexicon_destroy(bytes);
}

Test(schema, what_is_refused_says_where_and_why)
{
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        char *schema = with_quotes(refused[i].schema);
        fg_grammar *grammar = NULL;
        fg_error err = { 0 };
        cr_assert_eq(fg_grammar_compile(FG_GRAMMAR_SCHEMA, schema, strlen(schema), &grammar, &err),
                     FG_BAD_INPUT, "%s", schema);
        cr_assert_null(grammar);
        cr_assert_not_null(strstr(err.text, refused[i].why), "%s: \"%s\"", schema, err.text);
        free(schema);
    }
}
