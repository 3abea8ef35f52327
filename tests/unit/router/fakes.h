/*
 * fakes - dispatch and http as the router's outside sees them, played by the test: it says what start
 * answers, sends tokens and ends, refuses writes, and reads what was sent. Linked instead of the real
 * ones.
 */
#ifndef FORGE_TESTS_UNIT_ROUTER_FAKES_H
#define FORGE_TESTS_UNIT_ROUTER_FAKES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/net/http.h"
#include "router/dispatch.h"

enum { FAKE_JOBS_MAX = 16 };

typedef struct fake_job {
    bool running; /* neither ended nor cancelled */
    fg_dispatch_job job;
    uint32_t sent;       /* tokens */
    fg_finish cancelled; /* the reason given, NONE when it was not */
} fake_job;

/* What the fake dispatch answers and has seen. Ids are the index of the job plus one. */
typedef struct fake_dispatch {
    fg_status start_status;
    const char *start_text;
    bool ready;
    uint32_t context_max;
    uint32_t retry_after; /* by the load */
    uint32_t refused_s;   /* of the request that start refuses */
    uint32_t at_once;     /* room that it says to have when nobody is there */
    fake_job jobs[FAKE_JOBS_MAX];
    uint32_t job_count;
    bool inside;               /* a sink callback runs: no call back into dispatch is allowed */
    fg_dispatch_report report; /* what fake_end tells of a request, beside its attempt and prompt */
    uint32_t workers;          /* what a clear answers */
    uint32_t clear_count;
} fake_dispatch;

extern fake_dispatch fake_dispatch_state;

void fake_dispatch_reset(void);
/* To be given as the fg_dispatch pointer. */
fg_dispatch *fake_dispatch_handle(void);
void fake_token(uint32_t job, uint32_t id, uint64_t digest);
void fake_end(uint32_t job, fg_finish finish, fg_status status, const char *text);
uint32_t fake_running_count(void);

/* One exchange: what the client sent, and what was sent back. */
struct fg_http_exchange {
    const char *content_type;  /* NULL: none */
    const char *fetch_site;    /* sec-fetch-site; NULL: none */
    const char *authorization; /* NULL: none */
    void *user;
    fg_buf headers; /* "name: value\n" of the reply */
    int status;     /* 0: not answered */
    char reply_type[64];
    fg_buf body;
    bool streaming;
    bool ended;             /* the reply is complete: no call may follow */
    fg_status write_status; /* what stream_write answers */
    uint32_t write_count;
};

void fake_exchange_init(fg_http_exchange *exchange);
void fake_exchange_deinit(fg_http_exchange *exchange);

/* The handler that the front gave to fg_http_listen. */
extern fg_http_handler fake_http_handler;
extern bool fake_http_draining;
extern bool fake_http_closed;

#endif
