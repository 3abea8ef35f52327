/*
 * stream_internal - what the files of stream share: one choice (stream_choice.c), what is written of
 * all of them (stream_write.c), their lives (stream.c). Not for others.
 */
#ifndef FORGE_ROUTER_STREAM_INTERNAL_H
#define FORGE_ROUTER_STREAM_INTERNAL_H

#include "common/base/buf.h"
#include "common/base/limits.h"
#include "common/model/stop.h"
#include "common/model/think_parse.h"
#include "common/model/tool_parse.h"
#include "router/stream.h"

/* The calls of tools in an answer (stream_tools.c). */
typedef struct fg_choice_tools {
    fg_tool_parse *parse; /* NULL: none are looked for, and the rest is not used */
    fg_buf shown;         /* text that no stop string begins in, on its way to the parser */
    fg_buf parts;         /* fg_api_call_part each, not yet written */
    fg_buf text;          /* of these */
    uint32_t begun, whole;
} fg_choice_tools;

/* What is thought in an answer (stream_think.c). */
typedef struct fg_choice_think {
    fg_think_parse parse; /* used where the request's thoughts are split; the rest too */
    fg_buf shown;         /* text that no stop string begins in, on its way to the parser */
    fg_buf text;          /* thought, not yet written */
    uint32_t tokens;      /* up to the one that showed the end of the thought */
} fg_choice_think;

/* One of the n answers of a request. */
typedef struct fg_choice {
    fg_stream *stream;
    uint32_t index;
    uint64_t dispatch_id;
    bool dispatched;  /* the workers have it: on_end or cancel must follow */
    fg_finish finish; /* NONE while running */

    fg_detok detok;
    fg_stop *stop;
    fg_choice_think think;
    fg_choice_tools tools;
    fg_buf text;        /* shown, not yet written */
    fg_buf ids;         /* uint32_t each, where asked for; not yet written */
    fg_buf digests;     /* uint64_t each, beside ids */
    fg_buf logprobs;    /* fg_logprobs each, beside ids; only where asked for */
    size_t text_offset; /* characters of the tokens written */
    uint64_t rolling_digest;
    uint32_t completion_tokens;

    size_t echoed_bytes; /* of the prompt's text, written */
    uint32_t echoed;     /* of its tokens, likewise */

    bool role_named;   /* its first chunk has gone out */
    bool finish_named; /* its last one too */
    uint64_t first_token_ns, last_token_ns;
    bool reported; /* `report` is dispatch's own */
    fg_dispatch_report report;
} fg_choice;

/* Which list a stream is on. */
typedef enum fg_stream_place {
    FG_STREAM_AT_REST,
    FG_STREAM_WITH_NEWS,
    FG_STREAM_BLOCKED,
} fg_stream_place;

struct fg_stream {
    fg_streams *owner;
    fg_stream *next, *previous; /* all streams */
    fg_stream *list_next, *list_previous;
    fg_stream_place place;

    fg_stream_sink sink;
    fg_request request; /* with its arena */
    bool failed;        /* and all choices are over */
    fg_api_error failure;

    bool answered; /* the status line has gone out */
    bool gone;     /* nobody waits any more */
    bool writing;  /* inside flush: closing waits until it returns */
    uint32_t turn; /* the choice that is written next */
    uint64_t started_ns;
    uint32_t window; /* choices that dispatch has at a time, of the `started` first ones */
    uint32_t started;
    size_t gathered_bytes; /* of owner->gathered_bytes */
    fg_scores *scores; /* of each prompt's tokens but the first, as they come; NULL: nobody asks */
    fg_choice choices[]; /* request.choice_count of them */
};

typedef struct fg_stream_list {
    fg_stream *first, *last;
} fg_stream_list;

struct fg_streams {
    fg_streams_options options;
    fg_stream *all;
    uint32_t count;
    size_t gathered_bytes; /* of all streams */
    fg_stream_list news;
    fg_stream_list blocked;
    fg_buf chunk;  /* what is being written */
    char *scratch; /* one token's characters */
    size_t scratch_bytes;
    bool strip_leading_space; /* encoding puts a space in front, so a text of its own loses it */
};

/* stream.c */
void fg_stream_move(fg_stream *stream, fg_stream_place to);
/* Puts a stream on the list of those with news, from dispatch's callbacks. */
void fg_stream_has_news(fg_stream *stream);
/* Ends it with an error; what is pending is still written. */
void fg_stream_fail(fg_stream *stream, fg_status status, const char *text);
/* So much more is gathered for its whole answer. */
void fg_stream_gather(fg_stream *stream, size_t bytes);
/* True when no choice goes on. */
bool fg_stream_ended(const fg_stream *stream);

/* stream_choice.c. FG_BAD_INPUT: a stop string cannot be one; FG_AGAIN: out of memory. */
fg_status fg_choice_init(fg_choice *choice, fg_stream *stream, uint32_t index, fg_error *err);
/* Also of one whose init failed. */
void fg_choice_deinit(fg_choice *choice);
/* What it asks of the dispatcher, but for the sink. */
fg_dispatch_job fg_choice_job(const fg_choice *choice);
fg_status fg_choice_start(fg_choice *choice, fg_error *err);
/* Tells dispatch that nobody waits for it any more, unless dispatch knows. */
void fg_choice_let_go(fg_choice *choice, fg_finish reason);
/* How it went; NULL where the client did not ask. */
const fg_dispatch_report *fg_choice_report(const fg_choice *choice);

/* stream_scores.c: what is told of prompts. False: out of memory; give back in any case. */
bool fg_stream_scores_take(fg_stream *stream);
size_t fg_stream_scores_bytes(const fg_request *request); /* of them */
void fg_stream_scores_give(fg_stream *stream);
/* Which of the request's prompts a choice answers, and as the how-manieth. */
fg_prompt fg_choice_prompt(const fg_choice *choice);
uint32_t fg_choice_prompt_index(const fg_choice *choice);
uint32_t fg_choice_number(const fg_choice *choice);
/* fg_dispatch_sink.on_scores of the first choice of a prompt. */
void fg_choice_take_scores(void *ctx, uint32_t first, const fg_scores *scores);
/* The answer's own tokens stand behind the prompt's. */
void fg_choice_echo_init(fg_choice *choice);
/* False: what comes first of it is not known yet. */
bool fg_choice_may_show(const fg_choice *choice);
/* Whether something of its prompt is left to write, behind `piece` if that is not NULL. */
bool fg_choice_has_echo(const fg_choice *choice, const fg_api_piece *piece);
/* Adds what is next of it, in place of the answer where that has to wait. */
void fg_choice_add_echo(const fg_choice *choice, fg_api_piece *piece);
/* It was written. */
void fg_choice_book_echo(fg_choice *choice, const fg_api_piece *piece);

/* stream_think.c: the way of a choice's text, through thoughts and calls. */
void fg_choice_think_init(fg_choice *choice, size_t text_bytes);
void fg_choice_think_deinit(fg_choice *choice);
/* Where text is put that may be shown. */
fg_buf *fg_choice_shown(fg_choice *choice);
/* What is in fg_choice_shown becomes thoughts, text and calls. */
void fg_choice_take(fg_choice *choice);
/* So does what was held back: no more will come. */
void fg_choice_end(fg_choice *choice);
/* Whether a token's name means something there, although it has no text. */
bool fg_choice_wants(const fg_choice *choice, uint32_t id);
void fg_choice_take_token(fg_choice *choice, uint32_t id);
/* A token has gone that way: was it a part of the thought? `before`: where the answer was. */
void fg_choice_think_count(fg_choice *choice, fg_think_place before);
bool fg_choice_think_failed(const fg_choice *choice);

/* stream_tools.c. FG_AGAIN: out of memory. Each accepts a choice that looks for no calls. */
fg_status fg_choice_tools_init(fg_choice *choice, size_t text_bytes, fg_error *err);
void fg_choice_tools_deinit(fg_choice *choice);
/* Where text is put that is no thought. */
fg_buf *fg_choice_answer(fg_choice *choice);
/* Whether a control token of this name means something in calls. */
bool fg_choice_tools_want(const fg_choice *choice, const char *name, size_t length);
void fg_choice_tools_token(fg_choice *choice, const char *name, size_t length);
/* What is in fg_choice_answer becomes text and calls. */
void fg_choice_tools_take(fg_choice *choice);
/* So does what was held back: no more will come. */
void fg_choice_tools_end(fg_choice *choice);
bool fg_choice_tools_failed(const fg_choice *choice);
/* All calls that are pending. */
fg_api_calls fg_choice_tools_calls(const fg_choice *choice);
/* The first of them (there is one) as `part`, with at most so many bytes of arguments, cut between characters. */
fg_api_calls fg_choice_tools_next(const fg_choice *choice, size_t bytes_max,
                                  fg_api_call_part *part);
/* It was written. */
void fg_choice_tools_book(fg_choice *choice, const fg_api_call_part *part);

/* stream_write.c: writes until nothing is left or the reader is full. True when the stream has ended. */
bool fg_stream_write_events(fg_stream *stream);
/* The whole answer, or an error with its own status: nothing has been sent before it. */
void fg_stream_write_answer(fg_stream *stream);
/* An error's body into owner->chunk; how long to wait before trying again, 0: it does not help. */
uint32_t fg_stream_render_error(fg_streams *streams, const fg_api_error *error);
/* What it has cost so far. */
fg_api_usage fg_stream_usage(const fg_stream *stream);
void fg_stream_count_http(const fg_stream *stream, int http_status);

#endif
