/*
 * http_count - an HTTP server's answers as metrics: `http_requests_total{route,code}`. Owned by the loop
 * thread. What belongs to no route (no such one, or refused before a request was read) is counted under
 * "other".
 */
#ifndef FORGE_COMMON_NET_HTTP_COUNT_H
#define FORGE_COMMON_NET_HTTP_COUNT_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "common/obs/metrics.h"

/* The statuses that a route may answer with. */
enum {
    FG_HTTP_200 = 1u << 0,
    FG_HTTP_400 = 1u << 1,
    FG_HTTP_401 = 1u << 2,
    FG_HTTP_403 = 1u << 3,
    FG_HTTP_404 = 1u << 4,
    FG_HTTP_405 = 1u << 5,
    FG_HTTP_408 = 1u << 6,
    FG_HTTP_409 = 1u << 7,
    FG_HTTP_413 = 1u << 8,
    FG_HTTP_414 = 1u << 9,
    FG_HTTP_415 = 1u << 10,
    FG_HTTP_417 = 1u << 11,
    FG_HTTP_429 = 1u << 12,
    FG_HTTP_431 = 1u << 13,
    FG_HTTP_499 = 1u << 14, /* the client left before its answer */
    FG_HTTP_500 = 1u << 15,
    FG_HTTP_501 = 1u << 16,
    FG_HTTP_503 = 1u << 17,
    FG_HTTP_505 = 1u << 18,
};

#define FG_HTTP_OTHER "other"

typedef struct fg_http_route {
    const char *route; /* a constant */
    uint32_t statuses;
} fg_http_route;

typedef struct fg_http_count fg_http_count;

/* "other" need not be named. FG_AGAIN: out of memory, or no room for so many series. */
fg_status fg_http_count_create(fg_metrics *metrics, const fg_http_route *routes, size_t route_count,
                               fg_http_count **count_out, fg_error *err);
void fg_http_count_destroy(fg_http_count *count);
/* One answer. NULL counts nothing. */
void fg_http_count_add(fg_http_count *count, const char *route, int http_status);

#endif
