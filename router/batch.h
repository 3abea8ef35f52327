/*
 * batch - many requests in one body, answered together: POST /forge/v1/batch. Owned by the loop thread.
 *
 *   {"requests":[LINE, ...]} or [LINE, ...], each LINE of OpenAI's batch format:
 *   {"custom_id":"a","method":"POST","url":"/v1/chat/completions","body":{...}}
 *
 * A line's request is read when its turn comes, and started as soon as dispatch takes it; so a batch may
 * be longer than the queue. It gets the answer that it would have got alone, an error included, and no
 * line's fate touches another's. The answer lists all lines in the order of the body:
 *
 *   WAITING --dispatch takes it--> RUNNING --its stream replies--> DONE
 *   WAITING --refused--> DONE                  all DONE: one reply; client gone: all cancelled
 *
 * Everything is done by fg_batches_pump, called once per turn of the loop after the streams' flush:
 * neither a stream's reply nor a bad line changes a batch from inside the other's call.
 */
#ifndef FORGE_ROUTER_BATCH_H
#define FORGE_ROUTER_BATCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/net/http.h"
#include "router/api.h"
#include "router/meter.h"
#include "router/stream.h"

typedef struct fg_batches fg_batches; /* all batches of one front */

typedef struct fg_batches_options {
    fg_streams *streams;
    fg_meter *meter; /* may be NULL */
    fg_spans *spans; /* gets the spans of traced requests; may be NULL */
    fg_clock clock;
    /* What a request is measured against now, and what is drawn for it; call_out->id is valid until
     * the next call. */
    void (*on_call)(void *ctx, fg_api_kind kind, fg_api_server *server_out, fg_api_call *call_out);
    /* There is work: call fg_batches_pump soon, but not from here. */
    void (*on_news)(void *ctx);
    void *ctx;
    size_t answer_max; /* bytes of one batch's answers; 0: FG_LIMIT_BATCH_BYTES */
} fg_batches_options;

/* FG_AGAIN: out of memory. What the options point at outlives the batches. */
fg_status fg_batches_create(const fg_batches_options *options, fg_batches **batches_out,
                            fg_error *err);
/* Cancels what runs, touches no exchange; before the streams are destroyed. NULL is fine. */
void fg_batches_destroy(fg_batches *batches);

/* Reads the body and answers `exchange` later. `name` is the batch's, in the ids of its lines. Refused
 * as a whole (FG_BAD_INPUT, FG_AGAIN: too many batches, or out of memory), the caller answers with
 * *error_out. The exchange's user pointer is not used. */
fg_status fg_batch_open(fg_batches *batches, fg_http_exchange *exchange, const char *route,
                        const char *name, const char *body, size_t body_bytes,
                        fg_api_error *error_out);
/* The trace of the batch that was just opened for this exchange; its state is not kept. */
void fg_batch_trace(fg_batches *batches, const fg_http_exchange *exchange,
                    const fg_request_trace *trace);
/* Whose lines they are, whatever they say ("": as they say); copied. */
void fg_batch_caller(fg_batches *batches, const fg_http_exchange *exchange, const char *caller);
/* For on_gone: true when the exchange was a batch's. */
bool fg_batches_gone(fg_batches *batches, fg_http_exchange *exchange);

/* Starts what can be started, and answers batches that are done. */
void fg_batches_pump(fg_batches *batches);
/* True while a line waits for room in the queue: fg_batches_pump should be called again soon. */
bool fg_batches_blocked(const fg_batches *batches);

uint32_t fg_batches_count(const fg_batches *batches);

#endif
