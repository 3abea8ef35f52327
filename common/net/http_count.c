#include "common/net/http_count.h"

#include <string.h>

#include "common/base/mem.h"

enum { ROUTES_MAX = 31 };

static const struct {
    uint32_t bit;
    int status;
    const char *text;
} codes[] = {
    { FG_HTTP_200, 200, "200" }, { FG_HTTP_400, 400, "400" }, { FG_HTTP_401, 401, "401" },
    { FG_HTTP_403, 403, "403" }, { FG_HTTP_404, 404, "404" }, { FG_HTTP_405, 405, "405" },
    { FG_HTTP_408, 408, "408" }, { FG_HTTP_409, 409, "409" }, { FG_HTTP_413, 413, "413" },
    { FG_HTTP_414, 414, "414" }, { FG_HTTP_415, 415, "415" }, { FG_HTTP_417, 417, "417" },
    { FG_HTTP_429, 429, "429" }, { FG_HTTP_431, 431, "431" }, { FG_HTTP_499, 499, "499" },
    { FG_HTTP_500, 500, "500" }, { FG_HTTP_501, 501, "501" }, { FG_HTTP_503, 503, "503" },
    { FG_HTTP_505, 505, "505" },
};
enum { CODE_COUNT = sizeof codes / sizeof codes[0] };

/* No such route, and what a connection refuses by itself (http_parse, http_conn). */
static const fg_http_route other = { FG_HTTP_OTHER, FG_HTTP_400 | FG_HTTP_401 | FG_HTTP_404 |
                                                        FG_HTTP_408 | FG_HTTP_413 | FG_HTTP_414 |
                                                        FG_HTTP_415 | FG_HTTP_417 | FG_HTTP_431 |
                                                        FG_HTTP_501 | FG_HTTP_503 | FG_HTTP_505 };

typedef struct counted_route {
    const char *route;
    fg_metric *metrics[CODE_COUNT];
} counted_route;

struct fg_http_count {
    counted_route routes[ROUTES_MAX + 1];
    size_t route_count;
};

static void add_route(fg_http_count *count, fg_metrics *metrics, const fg_http_route *from)
{
    counted_route *to = &count->routes[count->route_count++];
    to->route = from->route;
    for (size_t c = 0; c < CODE_COUNT; c++) {
        fg_metric_spec spec = {
            .name = "http_requests_total",
            .help = "HTTP requests answered, by route and status (499: the client left first).",
            .labels = { { "route", from->route }, { "code", codes[c].text } },
        };
        if ((from->statuses & codes[c].bit) != 0) {
            to->metrics[c] = fg_metrics_counter(metrics, &spec);
        }
    }
}

fg_status fg_http_count_create(fg_metrics *metrics, const fg_http_route *routes, size_t route_count,
                               fg_http_count **count_out, fg_error *err)
{
    FG_ASSERT(route_count <= ROUTES_MAX, "%zu routes", route_count);
    fg_http_count *count = fg_mem_alloc(sizeof *count);
    if (count == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for the counts of HTTP requests");
    }
    for (size_t i = 0; i < route_count; i++) {
        add_route(count, metrics, &routes[i]);
    }
    add_route(count, metrics, &other);
    if (!fg_metrics_ok(metrics)) {
        fg_mem_free(count);
        return fg_fail(err, FG_AGAIN, "no room for the counts of HTTP requests");
    }
    *count_out = count;
    return FG_OK;
}

void fg_http_count_destroy(fg_http_count *count)
{
    fg_mem_free(count);
}

static fg_metric *find(const fg_http_count *count, const char *route, int http_status)
{
    for (size_t r = 0; r < count->route_count; r++) {
        if (strcmp(count->routes[r].route, route) != 0) {
            continue;
        }
        for (size_t c = 0; c < CODE_COUNT; c++) {
            if (codes[c].status == http_status) {
                return count->routes[r].metrics[c];
            }
        }
    }
    return NULL;
}

void fg_http_count_add(fg_http_count *count, const char *route, int http_status)
{
    if (count != NULL) {
        fg_metric *metric = find(count, route, http_status);
        FG_ASSERT_SLOW(metric != NULL, "%s %d is not counted", route, http_status);
        fg_metric_add(metric, 1);
    }
}
