/*
 * front - the router's door: routes of HTTP requests, and the glue between http, api, stream, batch and
 * dispatch. Owned by the loop thread.
 *
 * Every exchange is answered exactly once: here at once, or by the stream or batch that took it over.
 */
#ifndef FORGE_ROUTER_FRONT_H
#define FORGE_ROUTER_FRONT_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/clock.h"
#include "common/base/rng.h"
#include "common/base/status.h"
#include "common/model/chat.h"
#include "common/model/tokenizer.h"
#include "common/net/api_keys.h"
#include "common/net/http.h"
#include "common/net/loop.h"
#include "common/obs/metrics.h"
#include "common/obs/trace.h"
#include "router/api.h"
#include "router/dispatch.h"
#include "router/service.h"

typedef struct fg_front fg_front;

typedef struct fg_front_options {
    fg_loop *loop;
    const char *host;
    uint16_t port;                     /* 0 picks one */
    const fg_http_limits *http_limits; /* NULL: the defaults */
    const fg_api_keys *api_keys;       /* that clients must show; NULL: nobody is asked */
    const fg_tokenizer *tokenizer;
    const fg_chat *chat;
    fg_dispatch *dispatch;
    fg_metrics *metrics;             /* NULL: nothing is counted, /metrics is empty */
    const fg_trace *trace;           /* for /debug/trace; NULL: that is 404 */
    const fg_flight *flight;         /* for /debug/flight; NULL: that is 404 */
    fg_spans *spans;                 /* gets the spans of traced requests; NULL: nobody looks */
    const char *served_model_name;   /* copied */
    const char *system_fingerprint;  /* copied; NULL: null in answers */
    uint32_t context_max;            /* of the model; workers may hold less */
    uint32_t embedding_length;       /* of the model */
    uint32_t pooling;                /* likewise, fg_pooling */
    const fg_service *service;       /* tenants and classes; NULL: none; borrowed */
    uint32_t max_tokens_default;     /* for requests that give none; 0: 512 */
    fg_reasoning_format reasoning;   /* of requests that do not say */
    fg_rng rng;                      /* ids and missing seeds are drawn from it */
    fg_clock clock;                  /* monotonic: waiting times */
    int64_t (*unix_time)(void *ctx); /* seconds since 1970; NULL: the machine's */
    void *unix_time_ctx;
} fg_front_options;

/* Listens. FG_BAD_INPUT when host or port cannot be bound. What the options point at outlives the
 * front. */
fg_status fg_front_create(const fg_front_options *options, fg_front **front_out, fg_error *err);
/* Closes every connection; requests still running are cancelled. */
void fg_front_destroy(fg_front *front);
uint16_t fg_front_port(const fg_front *front);
/* Not ready any more, no new connections; what runs is finished. */
void fg_front_drain(fg_front *front);
/* Exchanges not yet answered to their end; 0 after a drain means that the process may go. */
uint32_t fg_front_busy_count(const fg_front *front);
/* Connections that were turned away because there were too many. */
uint64_t fg_front_refused_count(const fg_front *front);

#endif
