/*
 * api_internal - one reading of a request body, shared by the files of api: the table of parameters
 * (api_params.c), prompts (api_prompt.c), the rest (api.c). Not for others.
 */
#ifndef FORGE_ROUTER_API_INTERNAL_H
#define FORGE_ROUTER_API_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/json.h"
#include "common/grammar/grammar.h"
#include "router/api.h"

/* The parameters that have a value; the table begins with them, in this order. */
typedef enum fg_api_param {
    FG_PARAM_MODEL,
    FG_PARAM_MESSAGES,
    FG_PARAM_PROMPT,
    FG_PARAM_MAX_TOKENS,
    FG_PARAM_MAX_COMPLETION_TOKENS,
    FG_PARAM_TEMPERATURE,
    FG_PARAM_TOP_P,
    FG_PARAM_TOP_K,
    FG_PARAM_MIN_P,
    FG_PARAM_SEED,
    FG_PARAM_N,
    FG_PARAM_STOP,
    FG_PARAM_STOP_TOKEN_IDS,
    FG_PARAM_INCLUDE_STOP,
    FG_PARAM_IGNORE_EOS,
    FG_PARAM_STREAM,
    FG_PARAM_STREAM_OPTIONS,
    FG_PARAM_USER,
    FG_PARAM_PRIORITY,
    FG_PARAM_PREFIX_CACHE,
    FG_PARAM_CACHE_SALT,
    FG_PARAM_LOGITS_DIGEST,
    FG_PARAM_RETURN_TOKEN_IDS,
    FG_PARAM_RETURN_TIMINGS,
    FG_PARAM_SLO,
    FG_PARAM_DEADLINE,
    FG_PARAM_CACHE_TTL,
    FG_PARAM_TEMPLATE_KWARGS,
    FG_PARAM_REPETITION,
    FG_PARAM_FREQUENCY,
    FG_PARAM_PRESENCE,
    FG_PARAM_MIN_TOKENS,
    FG_PARAM_LOGIT_BIAS,
    FG_PARAM_LOGPROBS,
    FG_PARAM_TOP_LOGPROBS,
    FG_PARAM_RESPONSE_FORMAT,
    FG_PARAM_STRUCTURED,
    FG_PARAM_GUIDED_JSON,
    FG_PARAM_GUIDED_REGEX,
    FG_PARAM_GUIDED_CHOICE,
    FG_PARAM_GUIDED_GRAMMAR,
    FG_PARAM_JSON_SCHEMA,
    FG_PARAM_REGEX,
    FG_PARAM_GRAMMAR,
    FG_PARAM_EBNF,
    FG_PARAM_TOOLS,
    FG_PARAM_TOOL_CHOICE,
    FG_PARAM_PARALLEL_TOOL_CALLS,
    FG_PARAM_REASONING_FORMAT,
    FG_PARAM_INCLUDE_REASONING,
    FG_PARAM_ECHO,
    FG_PARAM_PROMPT_LOGPROBS,
    FG_PARAM_INPUT,
    FG_PARAM_ENCODING_FORMAT,
    FG_PARAM_DIMENSIONS,
    FG_PARAM_COUNT,
} fg_api_param;

/* Ids of a prompt that are counted, beyond two contexts of them: the loop has others to serve. */
enum { FG_API_COUNTED_MORE = 4096 };
/* Values of a body, beyond two contexts of ids: what else it has. */
enum { FG_API_OTHER_VALUES = 1 << 18 };

/* How a prompt's text becomes ids. */
typedef struct fg_api_text {
    bool add_bos, parse_special; /* of a raw text */
    bool is_whole;               /* a raw text that is not to be continued */
    bool add_generation_prompt;  /* of messages */
    bool may_be_empty;
    uint32_t ids_end; /* so many are too many */
} fg_api_text;

/* What is read so far. */
typedef struct fg_api_reading {
    const fg_api_server *server;
    const char *caller; /* of fg_api_call */
    fg_api_kind kind;
    fg_arena *arena;
    const fg_json_node *root;
    fg_request *request;
    fg_api_error *error;
    bool given[FG_PARAM_COUNT]; /* present, and not null */
    float number[FG_PARAM_COUNT];
    int64_t integer[FG_PARAM_COUNT];
    bool flag[FG_PARAM_COUNT];
    fg_api_text text;
    int64_t now_s;                /* since 1970: some chat templates name the day */
    fg_prompt *prompts;           /* the request's, of a completion */
    bool thought_opened;          /* by the prompt */
    const fg_json_node *tools;    /* that the template shows; NULL: none */
    struct fg_api_parsed *parsed; /* JSON inside of texts, while the messages are encoded */
} fg_api_reading;

/* Every row of the table against the body: fills given, number, integer and flag. */
fg_status fg_api_read_params(fg_api_reading *r);
const char *fg_api_param_name(fg_api_param id);
/* NULL when it was not given. */
const fg_json_node *fg_api_value(const fg_api_reading *r, fg_api_param id);

/* The served name, or that of the body, which must be the same. */
fg_status fg_api_read_model(fg_api_reading *r);
/* As prompts of requests are read. */
fg_api_text fg_api_text_defaults(uint32_t ids_end);
/* `messages` or `prompt`, as token ids in the request. */
fg_status fg_api_read_messages(fg_api_reading *r);
fg_status fg_api_read_prompt(fg_api_reading *r);
/* `input` and what an embedding is to look like (api_embed.c). */
fg_status fg_api_read_input(fg_api_reading *r);
/* `tools`, `tool_choice` and `parallel_tool_calls`, which belong to messages. */
fg_status fg_api_read_tools(fg_api_reading *r);
/* What a message says of calls and thoughts, beside its content. */
fg_status fg_api_read_message_tools(fg_api_reading *r, const fg_json_node *node, size_t index,
                                    fg_chat_message *message);
/* Once the messages are encoded, or refused. */
void fg_api_forget_parsed(fg_api_reading *r);
/* The text of parameter `name`, likewise. */
fg_status fg_api_encode_text(fg_api_reading *r, const char *name, const char *text, size_t length);

/* What is changed in the logits, and told of them (api_shape.c); after max_tokens is known. */
fg_status fg_api_read_shape(fg_api_reading *r);

/* What the client wants back of its prompts (api_echo.c); after those. */
fg_status fg_api_read_echo(fg_api_reading *r);

/* What the answer is held to (api_grammar.c); after those. */
fg_status fg_api_read_grammar(fg_api_reading *r);
/* Whether what it thinks is told from it (api_think.c); after that. */
fg_status fg_api_read_reasoning(fg_api_reading *r);
/* Holds it to calls of the tools that it has to call (api_tools.c). */
fg_status fg_api_force_calls(fg_api_reading *r);
/* Holds it to a grammar, `text` living in the arena, if it is one; `name` is the parameter that asks for it. */
fg_status fg_api_hold_to(fg_api_reading *r, const char *name, fg_grammar_kind kind,
                         const char *text, size_t length);

/* api_calls.c: a list of whole calls of choice `index`; and what an event says of a part, its name or its arguments. */
void fg_api_put_calls(fg_buf *out, const fg_request *request, uint32_t index,
                      const fg_api_calls *calls);
void fg_api_put_call_name(fg_buf *out, const fg_request *request, uint32_t index,
                          const fg_api_call_part *part, const char *name);
void fg_api_put_call_arguments(fg_buf *out, const fg_api_call_part *part, const char *arguments);

/* An integer, or a real number that is one: some clients send 1.0 for 1. */
bool fg_api_read_integer(const fg_json_node *node, int64_t *value_out);
bool fg_api_string_is(const fg_json_node *node, const char *text);
/* null, or an empty text, array or object. */
bool fg_api_is_empty(const fg_json_node *node);

/* Each fills r->error and returns its status. */
fg_status fg_api_no_memory(fg_api_reading *r);
/* The prompt in `name` is longer than the context: `about` is "" or "at least " and the like. */
fg_status fg_api_too_long(fg_api_reading *r, const char *name, const char *about, size_t count);
fg_status fg_api_unsupported(fg_api_reading *r, const char *name);
fg_status fg_api_wrong_type(fg_api_reading *r, const char *name, const char *want,
                            const fg_json_node *node);
fg_status fg_api_wrong_value(fg_api_reading *r, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
