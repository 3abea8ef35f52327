/*
 * tool_parse - finds the calls of tools in an answer while it is being written. Pure; one owner per parser.
 *
 *   text --marker, or `{` of a whole answer--> region --name and `{` of the arguments--> call --`}`--> region
 *   region --end marker, or what is no call--> text
 *
 * What the model wrote comes out exactly once and in its order, as text or as a call, however it was cut into pieces.
 * What may still become a call is held back, at most FG_TOOL_HELD_MAX bytes, and comes out unchanged as text when it
 * does not. The form of a call (markers, commas, members beside name and arguments, white space around it) is not
 * shown. Once its name has been told a call stays one: a mistake in its arguments ends it as unfinished, and what
 * follows is text again.
 *
 * Arguments are the model's own bytes, but for control characters in strings, which are escaped: with them it would be
 * no JSON. Arguments that are absent or null are told as {}, those inside a string (JSON in JSON) without it.
 */
#ifndef FORGE_COMMON_MODEL_TOOL_PARSE_H
#define FORGE_COMMON_MODEL_TOOL_PARSE_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/status.h"

enum { FG_TOOL_HELD_MAX = 64 * 1024 };

/* How a model writes its calls. */
typedef enum fg_tool_dialect {
    FG_TOOLS_NONE = 0, /* its template shows no tools */
    FG_TOOLS_UNKNOWN,  /* it does, but how calls are written is not known here */
    FG_TOOLS_HERMES,   /* <tool_call>{"name":...,"arguments":{...}}</tool_call>: Hermes, Qwen */
    FG_TOOLS_LLAMA, /* all of the answer, or behind <|python_tag|>: {"name":...,"parameters":{...}}; {...} */
    FG_TOOLS_MISTRAL, /* [TOOL_CALLS][{"name":...,"arguments":{...}},...] */
    FG_TOOLS_GRANITE, /* <|tool_call|>[{...},...], with or without <|/tool_call|>: granite */
} fg_tool_dialect;

/* How an answer that is nothing but calls is written: `open`, then for each call `name` its name `arguments` its arguments
 * `end`, with `between` between two, then `close`. */
typedef struct fg_tool_writing {
    const char *open, *name, *arguments, *end, *between, *close;
    bool unmarked; /* the marker before it is left out */
} fg_tool_writing;

/* `marker_is_text`: the dialect's marker can be written as text; control tokens cannot. */
fg_tool_writing fg_tool_writing_of(fg_tool_dialect dialect, bool marker_is_text);
/* The marker that calls begin with. */
const char *fg_tool_marker(fg_tool_dialect dialect);

/* By what a chat template says of calls; one that mentions no tools is FG_TOOLS_NONE already. */
fg_tool_dialect fg_tool_dialect_of(const char *source, size_t length);

/* What is told, from inside push, token and finish. Texts are borrowed until the callback returns, and never empty. */
typedef struct fg_tool_events {
    void (*on_text)(void *ctx, const char *text, size_t length);
    void (*on_call)(void *ctx, const char *name, size_t length);
    void (*on_arguments)(void *ctx, const char *text, size_t length);
    /* `whole`: its arguments are a JSON object. */
    void (*on_call_end)(void *ctx, bool whole);
    void *ctx;
} fg_tool_events;

typedef struct fg_tool_name {
    const char *text;
    size_t length;
} fg_tool_name;

typedef struct fg_tool_parse fg_tool_parse;

/* `names` are the tools that were shown; borrowed. `unmarked`: the answer begins as if a marker had been there. Behind a marker a call of any name is one; JSON without a marker
 * could be an answer, and is a call only of one of these. FG_AGAIN: out of memory. */
fg_status fg_tool_parse_create(fg_tool_dialect dialect, bool unmarked, const fg_tool_name *names,
                               size_t count, const fg_tool_events *events,
                               fg_tool_parse **parse_out, fg_error *err);
void fg_tool_parse_destroy(fg_tool_parse *parse);
/* The next bytes of the answer: whole characters, for what comes out to be so. */
void fg_tool_parse_push(fg_tool_parse *parse, const char *text, size_t length);
/* True for a control token, which has no text, that means something in this dialect. Its name is a marker. */
bool fg_tool_parse_knows(const fg_tool_parse *parse, const char *name, size_t length);
/* Such a token was written here. */
void fg_tool_parse_token(fg_tool_parse *parse, const char *name, size_t length);
/* The answer ends here. */
void fg_tool_parse_finish(fg_tool_parse *parse);
/* Out of memory: something is missing in what was told. */
bool fg_tool_parse_failed(const fg_tool_parse *parse);

#endif
