/*
 * crowd - dispatch with many jobs and little room, and HTTP exchanges, played by the test: for requests
 * of several choices and for batches. A job's answer is a function of its prompt and seed, as a real
 * one's is. Linked instead of the real ones.
 */
#ifndef FORGE_TESTS_UNIT_ROUTER_CROWD_H
#define FORGE_TESTS_UNIT_ROUTER_CROWD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/net/http.h"
#include "router/batch.h"
#include "router/dispatch.h"
#include "router/stream.h"
#include "tests/unit/router/tiny_model.h"

enum { CROWD_JOBS_MAX = 25000, CROWD_TOKENS = 6, CROWD_EXCHANGES = 6, CROWD_EMBEDDING = 6 };

typedef struct crowd_job {
    bool running; /* neither ended nor cancelled */
    fg_dispatch_job job;
    uint32_t sent;       /* tokens */
    fg_finish cancelled; /* the reason given, NONE when it was not */
} crowd_job;

struct fg_http_exchange {
    void *user;
    int status; /* 0: not answered */
    fg_buf headers;
    fg_buf body;
    bool streaming;
    bool ended;             /* the reply is complete: no call may follow */
    fg_status write_status; /* what stream_write answers */
    uint32_t write_count;
};

typedef struct crowd {
    /* What dispatch answers, and what it has seen. Ids are the index of the job plus one. */
    uint32_t room;    /* jobs at a time; one more is FG_AGAIN */
    uint32_t at_once; /* room that it says to have when nobody is there */
    fg_status start_status;
    uint32_t pooling; /* of the model */
    fg_dispatch_report report;
    crowd_job *jobs;
    uint32_t job_count, running, refused;
    bool inside; /* a sink callback runs: no call back into dispatch is allowed */

    tiny_model model;
    fg_metrics *metrics;
    fg_meter *meter;
    fg_streams *streams;
    fg_batches *batches;
    uint64_t now_ns;
    uint32_t news;                   /* calls of on_news */
    uint32_t calls;                  /* drawn ids */
    size_t answer_max, gathered_max; /* kept by crowd_open */
    fg_http_exchange exchanges[CROWD_EXCHANGES];
} crowd;

extern crowd the_crowd;

void crowd_open(void);
/* Checks that nothing runs any more. */
void crowd_close(void);

/* Parses a body as the front would and opens its stream; the server's seed is `seed`. */
fg_status crowd_request(int exchange, fg_api_kind kind, const char *body, uint64_t seed,
                        fg_api_error *error_out);
void crowd_must_request(int exchange, fg_api_kind kind, const char *body, uint64_t seed);
const char *crowd_body(int exchange);

void crowd_token(uint32_t job, uint32_t id);
/* What is said of the tokens `from` to before `until` of a job's prompt: chosen is minus their number, likely ones are 'x' and
 * what follows. */
void crowd_scores(uint32_t job, uint32_t from, uint32_t until);
void crowd_end(uint32_t job, fg_finish finish, fg_status status, const char *text);
/* The CROWD_EMBEDDING numbers that a prompt has. */
void crowd_embedding(const uint32_t *tokens, uint32_t count, float *out);
/* Sends its embedding, where it asks for that, what is missing of the job's answer of CROWD_TOKENS
 * tokens, and its end. */
void crowd_finish(uint32_t job);
/* Finishes the running jobs, oldest first, up to `count`; then flush and pump as the front does. */
void crowd_turn(uint32_t count);

#endif
