/*
 * stream_talk - one front's streams over a small model: requests go in as JSON, tokens as bytes, and what comes out is told
 * in one form for whole answers and events. Dispatch and HTTP are played by fakes.
 */
#ifndef FORGE_TESTS_UNIT_ROUTER_STREAM_TALK_H
#define FORGE_TESTS_UNIT_ROUTER_STREAM_TALK_H

#include "router/stream.h"
#include "tests/unit/router/fakes.h"
#include "tests/unit/router/tiny_model.h"

typedef struct stream_talk {
    tiny_model model;
    fg_streams *streams;
    uint64_t now_ns;
    fg_http_exchange exchanges[2];
} stream_talk;

/* The vocabulary ends with two control tokens of these names. */
void stream_talk_open(stream_talk *w, const char *chat_template, const char *const controls[2]);
void stream_talk_close(stream_talk *w);

fg_status stream_talk_ask(stream_talk *w, int index, const char *body, fg_api_error *error);
void stream_talk_must_ask(stream_talk *w, int index, const char *body);
/* Each byte as a token; \1 and \2 are the two control tokens. */
void stream_talk_send(uint32_t job, const char *text);
/* The whole answer of job 0, as far as that is not ended here; `finish` FG_FINISH_NONE: it ends no other way. */
void stream_talk_answer(stream_talk *w, const char *text, fg_finish finish, bool flush_each);

const char *stream_talk_body(const stream_talk *w, int index);
/* What an answer or its events say, told alike: (thought) content, [id name arguments]..., finish. */
void stream_talk_tell(const char *body, fg_buf *out);
/* Without the ids, whose form is checked. */
void stream_talk_forget_ids(fg_buf *told);

#endif
