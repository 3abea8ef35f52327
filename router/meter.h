/*
 * meter - what the router's outside counts: requests, tokens and waiting times, under names that stay.
 * Owned by the loop thread. Every call takes NULL and then does nothing.
 */
#ifndef FORGE_ROUTER_METER_H
#define FORGE_ROUTER_METER_H

#include <stdint.h>

#include "common/base/status.h"
#include "common/obs/metrics.h"
#include "proto/wire.h"
#include "router/dispatch.h"

typedef struct fg_meter fg_meter;

/* At most so many series are registered. */
enum { FG_METER_SERIES_MAX = 160 };

/* FG_AGAIN when `metrics` has no room for the series; it outlives the meter. */
fg_status fg_meter_create(fg_metrics *metrics, fg_meter **meter_out, fg_error *err);
void fg_meter_destroy(fg_meter *meter);

/* One HTTP answer. `route` is one of a fixed set of constants, never the client's own path. */
void fg_meter_http(fg_meter *meter, const char *route, int http_status);
/* A request of `choices` began (its prompt was accepted), and ended in whatever way; so much of the
 * prompt was found in the cache. */
void fg_meter_begin(fg_meter *meter, uint32_t prompt_tokens, uint32_t choices);
void fg_meter_end(fg_meter *meter, fg_finish finish, uint64_t duration_ns, uint32_t cached_tokens);
/* How dispatch says that one of its choices went. */
void fg_meter_report(fg_meter *meter, const fg_dispatch_report *report);
/* A choice's first token after `wait_ns`; a later token `gap_ns` after the one before. */
void fg_meter_first_token(fg_meter *meter, uint64_t wait_ns);
void fg_meter_next_token(fg_meter *meter, uint64_t gap_ns);

#endif
