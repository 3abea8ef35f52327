/*
 * http_parse - bytes to one strictly checked HTTP/1.1 request. No sockets, no clock: the connection
 * (http_conn) and the fuzz target feed it. One owner.
 *
 * The header block is collected whole and its raw lines are checked first (bare CR or LF, controls,
 * folded lines, empty names, sizes, counts); then llhttp in strict mode reads it, and after it the body.
 * So what is answered does not depend on how the bytes were cut into packets.
 *
 *   HEAD -> BODY -> READY        any -> REFUSED
 *   fg_http_parser_reset: READY -> HEAD
 */
#ifndef FORGE_COMMON_NET_HTTP_PARSE_H
#define FORGE_COMMON_NET_HTTP_PARSE_H

#include <stdbool.h>
#include <stddef.h>

#include "common/net/http.h"

typedef struct fg_http_parser fg_http_parser;

typedef struct fg_http_parse_limits {
    size_t
        header_bytes; /* request line and header lines together: 431 (a long target alone: 414) */
    size_t header_count; /* 431 */
    size_t body_bytes;   /* 413 */
} fg_http_parse_limits;

typedef enum fg_http_step {
    FG_HTTP_MORE,    /* everything was taken; more is needed */
    FG_HTTP_HEAD,    /* the head is good, and a body follows: all but the request's body is known */
    FG_HTTP_READY,   /* one whole request */
    FG_HTTP_REFUSED, /* answer fg_http_parser_refusal() and close */
} fg_http_step;

typedef struct fg_http_refusal {
    int status;
    const char *message; /* constant text */
} fg_http_refusal;

/* NULL when out of memory. */
fg_http_parser *fg_http_parser_create(const fg_http_parse_limits *limits);
void fg_http_parser_destroy(fg_http_parser *parser);
/* Takes at most `size_bytes` and says how many in `*used_out`. After READY or REFUSED it takes nothing
 * until the reset; after HEAD feed the rest. */
fg_http_step fg_http_parser_feed(fg_http_parser *parser, const char *bytes, size_t size_bytes,
                                 size_t *used_out);
/* Makes room for the next request of the connection and gives large buffers back. */
void fg_http_parser_reset(fg_http_parser *parser);
/* The request has no body any more: whoever wanted it has read it. */
void fg_http_parser_drop_body(fg_http_parser *parser);

/* Bytes of a request have arrived; its head is complete. */
bool fg_http_parser_started(const fg_http_parser *parser);
bool fg_http_parser_in_body(const fg_http_parser *parser);
/* After HEAD: the client wants 100 Continue before it sends the body. */
bool fg_http_parser_waits(const fg_http_parser *parser);
/* Heap bytes held now. */
size_t fg_http_parser_held(const fg_http_parser *parser);

/* After HEAD and READY, valid until the reset. */
const fg_http_request *fg_http_parser_request(const fg_http_parser *parser);
const char *fg_http_parser_header(const fg_http_parser *parser, const char *name);
bool fg_http_parser_keep_alive(const fg_http_parser *parser);
/* After the request line: what the reply's framing depends on. */
bool fg_http_parser_is_head(const fg_http_parser *parser);
bool fg_http_parser_is_http10(const fg_http_parser *parser);
/* After REFUSED. */
fg_http_refusal fg_http_parser_refusal(const fg_http_parser *parser);

#endif
