/*
 * grammar - what a client asks an answer to look like, compiled to a network of rules over bytes.
 *
 * A rule is a small program of positions: take a byte of a set, go on at one of two places, call a rule, return.
 * Which texts it allows is a function of the text it was compiled from and nothing else. A compiled grammar is
 * immutable and may be shared between threads; automaton.h walks it.
 *
 * Every allowed text is valid UTF-8. No place of a grammar is a dead end: from each text that it allows as a beginning
 * some end can be reached (up to FG_GRAMMAR_STACK_MAX calls inside each other).
 *
 * JSON is written so:
 *   - no white space before the value or behind it. After { [ , and before } ] there is none, or one space, or a line
 *     end with up to 64 spaces or 16 tabs; after : none or one space; before , and : none;
 *   - strings have no raw control characters, no lone surrogates, no \u0000;
 *   - numbers have at most 18 digits before the point, 18 behind it and 2 in the exponent, so that they fit 64 bits
 *     and a double. Numbers with limits have 9, 6 and no exponent. Integers are written without point, exponent
 *     and "-0";
 *   - values of which nothing is known nest at most 32 deep.
 *
 * Of a schema:
 *   - properties come in the order of `properties`, those that only `required` names behind them;
 *   - additionalProperties absent means false where there are `properties`, true where there are none. Keys of other
 *     properties have no escapes and are none of the named. They may be said twice: no grammar can tell;
 *   - no `type`: the types that the other keywords are about (`minLength`: a string); none of them: any value;
 *   - items absent behind prefixItems: none but those that minItems wants;
 *   - maxLength, maxItems and maxProperties above 16384 count as that;
 *   - minLength and maxLength count characters, an escape being one. They go with no pattern and no format;
 *   - a pattern is searched, as the standard says; what must be escaped in a string is escaped in the shortest way;
 *   - oneOf is taken only where no two branches can both match: other types, values, or a property that both
 *     require with other values;
 *   - siblings of $ref, allOf, anyOf and oneOf are merged with them;
 *   - a keyword that is not known, and not known to say nothing, is refused with its path.
 *
 * Regular expressions match the whole text. Classes \d \w \s are ASCII, and \S has no other white space either; . is no
 * line end. A GBNF grammar starts with `root`. Left recursion is refused.
 */
#ifndef FORGE_COMMON_GRAMMAR_GRAMMAR_H
#define FORGE_COMMON_GRAMMAR_GRAMMAR_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

enum {
    FG_GRAMMAR_TEXT_MAX = 256 * 1024,
    FG_GRAMMAR_POSITIONS_MAX = 1 << 18, /* after repetitions have been written out */
    FG_GRAMMAR_REPEAT_MAX = 65536,      /* {n} */
    FG_GRAMMAR_NESTING_MAX = 64,        /* of groups in an expression */
    FG_GRAMMAR_BUILD_BYTES_MAX = 64 << 20,
    FG_GRAMMAR_STACK_MAX = 1024, /* rules that have been called and not returned */
};

typedef struct fg_grammar fg_grammar;

typedef enum fg_grammar_kind {
    FG_GRAMMAR_NONE = 0,
    FG_GRAMMAR_JSON,   /* any JSON object; the text is not read */
    FG_GRAMMAR_SCHEMA, /* text: a JSON schema */
    FG_GRAMMAR_REGEX,
    FG_GRAMMAR_CHOICE, /* text: a JSON array of strings */
    FG_GRAMMAR_GBNF,
    FG_GRAMMAR_CALLS, /* text: calls of tools, see below */
} fg_grammar_kind;

/*
 * Calls of tools are texts around values of schemas:
 *
 *   {"open": TEXT, "between": TEXT, "close": TEXT, "many": BOOL,
 *    "calls": [{"before": TEXT, "schema": SCHEMA, "after": TEXT}, ...]}
 *
 * One of the calls, or with `many` one after the other with `between`, all inside `open` and `close`. Paths in errors are
 * those of a call's own schema.
 */

/* FG_BAD_INPUT: `err` says what is wrong or not supported, with a JSON path (schema, choice), a byte (regex) or a line
 * (GBNF). FG_AGAIN: out of memory. `text` is borrowed during the call. */
fg_status fg_grammar_compile(fg_grammar_kind kind, const char *text, size_t length,
                             fg_grammar **grammar_out, fg_error *err);
void fg_grammar_destroy(fg_grammar *grammar);
/* Memory that it holds. */
size_t fg_grammar_bytes(const fg_grammar *grammar);

#endif
