/* The HTTP front over real loopback sockets: what is refused, what is answered, and in which order. */
#include "tests/unit/common/net/http_world.h"

/* --- a table of raw requests --- */

/* Status of the first reply; 0: closed without one. */
static const struct {
    const char *name;
    const char *bytes;
    int want;
} probes[] = {
    { "plain get", "GET /a HTTP/1.1\r\n" H "\r\n", 200 },
    { "one empty line first", "\r\nGET /a HTTP/1.1\r\n" H "\r\n", 200 },
    { "many empty lines first", "\r\n\r\n\r\nGET /a HTTP/1.1\r\n" H "\r\n", 400 },
    { "post with length", POST "Content-Length: 3\r\n\r\nabc", 200 },
    { "post chunked", POST "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", 200 },
    { "post chunked, odd case", POST "transfer-encoding:  Chunked \r\n\r\n3\r\nabc\r\n0\r\n\r\n",
      200 },
    { "chunk extension", POST "Transfer-Encoding: chunked\r\n\r\n3;a=b\r\nabc\r\n0\r\n\r\n", 200 },
    { "length and chunked", POST "Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
      400 },
    { "chunked and length", POST "Transfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n",
      400 },
    { "two lengths", POST "Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd", 400 },
    { "two equal lengths", POST "Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", 400 },
    { "length with sign", POST "Content-Length: +3\r\n\r\nabc", 400 },
    { "negative length", POST "Content-Length: -3\r\n\r\nabc", 400 },
    { "length list", POST "Content-Length: 3, 3\r\n\r\nabc", 400 },
    { "length with space inside", POST "Content-Length: 3 3\r\n\r\nabc", 400 },
    { "hex length", POST "Content-Length: 0x3\r\n\r\nabc", 400 },
    { "empty length", POST "Content-Length: \r\n\r\nabc", 400 },
    { "length over 2^64", POST "Content-Length: 18446744073709551619\r\n\r\nabc", 400 },
    { "length 2^64-1", POST "Content-Length: 18446744073709551615\r\n\r\nabc", 413 },
    { "length one over the limit", POST "Content-Length: 8388609\r\n\r\n", 413 },
    { "coding xchunked", POST "Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n", 400 },
    { "coding chunked, identity", POST "Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
      400 },
    { "coding gzip, chunked", POST "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n", 501 },
    { "coding identity", POST "Transfer-Encoding: identity\r\n\r\n", 400 },
    { "coding twice",
      POST "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400 },
    { "coding empty", POST "Transfer-Encoding: \r\n\r\n0\r\n\r\n", 501 },
    { "coding with vertical tab", POST "Transfer-Encoding: \vchunked\r\n\r\n0\r\n\r\n", 400 },
    { "coding in 1.0", "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400 },
    { "space before colon", POST "Content-Length : 3\r\n\r\nabc", 400 },
    { "bare LF", "GET / HTTP/1.1\nHost: x\n\n", 400 },
    { "bare LF in headers", "GET / HTTP/1.1\r\n" H "A: b\nC: d\r\n\r\n", 400 },
    { "bare CR in value", "GET / HTTP/1.1\r\n" H "A: b\rC: d\r\n\r\n", 400 },
    { "bare CR smuggles a field (CVE-2023-30589)",
      "GET / HTTP/1.1\r\n" H "A:\rTransfer-Encoding: chunked\r\n\r\n", 400 },
    { "control in value", "GET / HTTP/1.1\r\n" H "A: b\001\r\n\r\n", 400 },
    { "delete in value", "GET / HTTP/1.1\r\n" H "A: b\177\r\n\r\n", 400 },
    { "folded line", "GET / HTTP/1.1\r\n" H "A: b\r\n c\r\n\r\n", 400 },
    { "folded line with tab", "GET / HTTP/1.1\r\n" H "A: b\r\n\tc\r\n\r\n", 400 },
    { "first line begins with space (CVE-2024-27982)", "GET / HTTP/1.1\r\n Host: x\r\n" H "\r\n",
      400 },
    { "hidden length after space", POST " Content-Length: 3\r\n\r\nabc", 400 },
    { "no Host", "GET / HTTP/1.1\r\n\r\n", 400 },
    { "no Host in 1.0", "GET / HTTP/1.0\r\n\r\n", 200 },
    { "two Hosts", "GET / HTTP/1.1\r\n" H H "\r\n", 400 },
    { "two Hosts in 1.0", "GET / HTTP/1.0\r\n" H H "\r\n", 400 },
    { "empty Host", "GET / HTTP/1.1\r\nHost: \r\n\r\n", 400 },
    { "Host with port", "GET / HTTP/1.1\r\nHost: a-b.c:8080\r\n\r\n", 200 },
    { "Host IPv6", "GET / HTTP/1.1\r\nHost: [::1]:80\r\n\r\n", 200 },
    { "Host IPv6 open", "GET / HTTP/1.1\r\nHost: [::1\r\n\r\n", 400 },
    { "Host port too large", "GET / HTTP/1.1\r\nHost: a:65536\r\n\r\n", 400 },
    { "Host port empty", "GET / HTTP/1.1\r\nHost: a:\r\n\r\n", 400 },
    { "Host with slash", "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400 },
    { "Host with query", "GET / HTTP/1.1\r\nHost: a?b\r\n\r\n", 400 },
    { "Host with hash", "GET / HTTP/1.1\r\nHost: a#b\r\n\r\n", 400 },
    { "Host with at", "GET / HTTP/1.1\r\nHost: u@a\r\n\r\n", 400 },
    { "Host with space", "GET / HTTP/1.1\r\nHost: a b\r\n\r\n", 400 },
    { "Host with tab", "GET / HTTP/1.1\r\nHost: a\tb\r\n\r\n", 400 },
    { "Host with comma", "GET / HTTP/1.1\r\nHost: a, b\r\n\r\n", 400 },
    { "empty header name", "GET / HTTP/1.1\r\n" H ": b\r\n\r\n", 400 },
    { "header without colon", "GET / HTTP/1.1\r\n" H "abc\r\n\r\n", 400 },
    { "header name with bracket", "GET / HTTP/1.1\r\n" H "a[b: c\r\n\r\n", 400 },
    { "header name with high byte", "GET / HTTP/1.1\r\n" H "a\xC3\xA4: c\r\n\r\n", 400 },
    { "value with high byte", "GET / HTTP/1.1\r\n" H "X-Probe: \xC3\xA4\r\n\r\n", 200 },
    { "bad chunk size", POST "Transfer-Encoding: chunked\r\n\r\nzz\r\nabc\r\n0\r\n\r\n", 400 },
    { "chunk size with sign", POST "Transfer-Encoding: chunked\r\n\r\n+3\r\nabc\r\n0\r\n\r\n",
      400 },
    { "chunk size 0x3", POST "Transfer-Encoding: chunked\r\n\r\n0x3\r\nabc\r\n0\r\n\r\n", 400 },
    { "chunk size with space before",
      POST "Transfer-Encoding: chunked\r\n\r\n 3\r\nabc\r\n0\r\n\r\n", 400 },
    { "chunk size empty", POST "Transfer-Encoding: chunked\r\n\r\n\r\nabc\r\n0\r\n\r\n", 400 },
    { "chunk size 2^64+7",
      POST "Transfer-Encoding: chunked\r\n\r\n10000000000000007\r\nabc\r\n0\r\n\r\n", 400 },
    { "chunk size 2^64-1",
      POST "Transfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\nabc\r\n0\r\n\r\n", 413 },
    { "chunk longer than said", POST "Transfer-Encoding: chunked\r\n\r\n2\r\nabc\r\n0\r\n\r\n",
      400 },
    { "chunk line ends in LF", POST "Transfer-Encoding: chunked\r\n\r\n3\nabc\r\n0\r\n\r\n", 400 },
    { "chunk data ends in LF", POST "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\n0\r\n\r\n", 400 },
    { "trailer field", POST "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nA: b\r\n\r\n",
      400 },
    { "trailer smuggles",
      POST "Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nContent-Length: 3\r\n\r\n", 400 },
    { "unknown method", "GETT / HTTP/1.1\r\n" H "\r\n", 501 },
    { "lower-case method", "get / HTTP/1.1\r\n" H "\r\n", 501 },
    { "CONNECT", "CONNECT x:80 HTTP/1.1\r\n" H "\r\n", 501 },
    { "TRACE", "TRACE / HTTP/1.1\r\n" H "\r\n", 501 },
    { "RTSP method", "DESCRIBE / RTSP/1.0\r\n" H "\r\n", 400 },
    { "ICE", "SOURCE / ICE/1.0\r\n" H "\r\n", 400 },
    { "method with slash", "GE/T / HTTP/1.1\r\n" H "\r\n", 400 },
    { "no method", " / HTTP/1.1\r\n" H "\r\n", 400 },
    { "HTTP/2 preface", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505 },
    { "HTTP/0.9", "GET /\r\n", 400 },
    { "version 1.2", "GET / HTTP/1.2\r\n" H "\r\n", 505 },
    { "version lower case", "GET / http/1.1\r\n" H "\r\n", 400 },
    { "version 1.10", "GET / HTTP/1.10\r\n" H "\r\n", 400 },
    { "two spaces", "GET  / HTTP/1.1\r\n" H "\r\n", 400 },
    { "space at line end", "GET / HTTP/1.1 \r\n" H "\r\n", 400 },
    { "space in target", "GET /a b HTTP/1.1\r\n" H "\r\n", 400 },
    { "tab in request line", "GET\t/ HTTP/1.1\r\n" H "\r\n", 400 },
    { "absolute target", "GET http://x/ HTTP/1.1\r\n" H "\r\n", 200 },
    { "absolute target with port", "GET HTTP://a-b.c:80/d HTTP/1.1\r\n" H "\r\n", 200 },
    { "absolute target of IPv6", "GET https://[::1]:8080/d HTTP/1.1\r\n" H "\r\n", 200 },
    { "absolute target without a path", "GET http://x HTTP/1.1\r\n" H "\r\n", 200 },
    { "absolute target, query alone", "GET http://x?a=b HTTP/1.1\r\n" H "\r\n", 200 },
    { "absolute target without a host", "GET http:///a HTTP/1.1\r\n" H "\r\n", 400 },
    { "absolute target, nothing more", "GET http:// HTTP/1.1\r\n" H "\r\n", 400 },
    { "absolute target with a user", "GET http://u@x/ HTTP/1.1\r\n" H "\r\n", 400 },
    { "absolute target, bad port", "GET http://x:99999/ HTTP/1.1\r\n" H "\r\n", 400 },
    { "absolute target with fragment", "GET http://x/#a HTTP/1.1\r\n" H "\r\n", 400 },
    { "absolute target, bad escape", "GET http://x/%4 HTTP/1.1\r\n" H "\r\n", 400 },
    { "absolute target without Host", "GET http://x/ HTTP/1.1\r\n\r\n", 400 },
    { "target of another scheme", "GET ftp://x/ HTTP/1.1\r\n" H "\r\n", 400 },
    { "authority target", "GET x:80 HTTP/1.1\r\n" H "\r\n", 400 },
    { "star target", "OPTIONS * HTTP/1.1\r\n" H "\r\n", 400 },
    { "star target of a GET", "GET * HTTP/1.1\r\n" H "\r\n", 400 },
    { "fragment", "GET /a#b HTTP/1.1\r\n" H "\r\n", 400 },
    { "escape of NUL", "GET /%00 HTTP/1.1\r\n" H "\r\n", 400 },
    { "half escape", "GET /%4 HTTP/1.1\r\n" H "\r\n", 400 },
    { "bad escape in query", "GET /?a=%zz HTTP/1.1\r\n" H "\r\n", 400 },
    { "high byte in target", "GET /\xC3\xA4 HTTP/1.1\r\n" H "\r\n", 400 },
    { "upgrade", "GET / HTTP/1.1\r\n" H "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n", 200 },
    { "upgrade with body",
      POST "Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 3\r\n\r\nabc", 200 },
    { "two keys", GET "Authorization: Bearer a\r\nAuthorization: Bearer a\r\n\r\n", 400 },
    { "unknown expectation", POST "Expect: tea\r\nContent-Length: 3\r\n\r\nabc", 417 },
    { "compressed body", POST "Content-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc", 415 },
    { "identity body", POST "Content-Encoding: identity\r\nContent-Length: 3\r\n\r\nabc", 200 },
    { "binary", "\x16\x03\x01\x02\x01\x01", 400 },
};

static int probe(world *w, const char *bytes, size_t size_bytes, size_t split, fg_buf *reply)
{
    int fd = dial(w);
    put(w, fd, bytes, split);
    if (split > 0 && split < size_bytes) {
        int before = w->requests;
        for (int i = 0; i < 3 && w->requests == before; i++) {
            turn(w); /* the server sees the first part alone */
        }
    }
    put(w, fd, bytes + split, size_bytes - split);
    fg_buf_clear(reply);
    read_until(w, fd, reply, "\r\n\r\n");
    close(fd);
    return status_of(reply);
}

Test(http, probes_are_answered_by_the_book)
{
    world w;
    fg_buf reply;
    open_world(&w, NULL);
    fg_buf_init(&reply, 0);
    for (size_t i = 0; i < sizeof probes / sizeof probes[0]; i++) {
        size_t size = strlen(probes[i].bytes);
        size_t splits[] = { size, 1, size / 2, size - 1 };
        for (size_t s = 0; s < sizeof splits / sizeof splits[0]; s++) {
            int answers = w.requests + w.refused;
            int got = probe(&w, probes[i].bytes, size, splits[s], &reply);
            cr_assert_eq(w.requests + w.refused, answers + 1, "%s: told once", probes[i].name);
            cr_assert(got == 200 || w.refused_status == got, "%s: said to be %d", probes[i].name,
                      w.refused_status);
            cr_assert_eq(got, probes[i].want, "%s split at %zu: %d instead of %d", probes[i].name,
                         splits[s], got, probes[i].want);
            if (got != 200) {
                cr_assert_not_null(strstr(reply.data, "Connection: close\r\n"), "%s",
                                   probes[i].name);
            }
        }
    }
    fg_buf_deinit(&reply);
    close_world(&w);
}

/* The verdict of the parser alone, fed `step` bytes at a time. */
static int verdict(const char *bytes, size_t size_bytes, size_t step)
{
    fg_http_parse_limits limits = { 64 * 1024, 100, 8 * 1024 * 1024 };
    fg_http_parser *parser = fg_http_parser_create(&limits);
    int status = 0;
    for (size_t at = 0; at < size_bytes && status == 0;) {
        size_t used;
        size_t count = size_bytes - at < step ? size_bytes - at : step;
        fg_http_step result = fg_http_parser_feed(parser, bytes + at, count, &used);
        cr_assert(used <= count);
        at += used;
        if (result == FG_HTTP_READY) {
            status = 200;
        } else if (result == FG_HTTP_REFUSED) {
            status = fg_http_parser_refusal(parser).status;
        }
    }
    fg_http_parser_destroy(parser);
    return status;
}

Test(http, verdict_does_not_depend_on_packet_borders)
{
    for (size_t i = 0; i < sizeof probes / sizeof probes[0]; i++) {
        size_t size = strlen(probes[i].bytes);
        for (size_t step = 1; step <= size; step++) {
            int got = verdict(probes[i].bytes, size, step);
            cr_assert_eq(got, probes[i].want, "%s by %zu: %d", probes[i].name, step, got);
        }
    }
}

Test(http, nul_in_the_header_is_refused)
{
    static const char bytes[] = "GET / HTTP/1.1\r\n" H "A: b\0c\r\n\r\n";
    cr_assert_eq(verdict(bytes, sizeof bytes - 1, 1), 400);
    cr_assert_eq(verdict(bytes, sizeof bytes - 1, sizeof bytes), 400);
}

Test(http, path_query_body_and_headers_arrive)
{
    world w;
    fg_buf reply;
    open_world(&w, NULL);
    fg_buf_init(&reply, 0);
    const char *request = "PUT /a%2Fb%20c?d=%20e HTTP/1.1\r\nhOST: x\r\nX-PROBE: \t v w \t\r\n"
                          "Content-Length: 5\r\n\r\nhello";
    cr_assert_eq(probe(&w, request, strlen(request), strlen(request), &reply), 200);
    cr_assert_not_null(strstr(reply.data, "PUT /a/b c?d=%20e [hello] v w"), "%s", reply.data);
    cr_assert_not_null(strstr(reply.data, "X-Echo: a  b\r\n"), "%s", reply.data);
    fg_buf_deinit(&reply);
    close_world(&w);
}

Test(http, of_an_absolute_target_the_path_counts)
{
    static const struct {
        const char *target, *path;
    } cases[] = {
        { "http://h/health", "GET /health" },
        { "HTTPS://h:1/a%20b?c=d", "GET /a b?c=d" },
        { "http://h", "GET /" },
        { "http://h?c=d", "GET /?c=d" },
        { "http://h//a", "GET //a" },
    };
    world w;
    fg_buf reply;
    open_world(&w, NULL);
    fg_buf_init(&reply, 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char request[128];
        int length =
            snprintf(request, sizeof request, "GET %s HTTP/1.1\r\n" H "\r\n", cases[i].target);
        cr_assert_eq(probe(&w, request, (size_t)length, (size_t)length, &reply), 200);
        cr_assert_not_null(strstr(reply.data, cases[i].path), "%s: %s", cases[i].target,
                           reply.data);
    }
    fg_buf_deinit(&reply);
    close_world(&w);
}

/* --- sizes --- */

typedef struct generated {
    const char *name, *head, *unit;
    size_t count;
    const char *tail;
    int want;
} generated;

static int send_generated(world *w, const generated *g, fg_buf *reply)
{
    fg_buf bytes;
    fg_buf_init(&bytes, 0);
    fg_buf_puts(&bytes, g->head);
    for (size_t i = 0; i < g->count; i++) {
        fg_buf_puts(&bytes, g->unit);
    }
    fg_buf_puts(&bytes, g->tail);
    int status = probe(w, bytes.data, bytes.size, bytes.size, reply);
    fg_buf_deinit(&bytes);
    return status;
}

Test(http, sizes_are_bounded)
{
    static const generated cases[] = {
        { "target just fits", "GET /", "a", 8191, " HTTP/1.1\r\n" H "\r\n", 200 },
        { "target one over", "GET /", "a", 8192, " HTTP/1.1\r\n" H "\r\n", 414 },
        { "endless target", "GET /", "a", MIB, "", 414 },
        { "endless method", "", "A", 64 * 1024, "", 414 },
        { "header line fits", GET "A: ", "a", 16000, "\r\n\r\n", 200 },
        { "endless header line", GET "A: ", "a", MIB, "", 431 },
        { "100 fields", GET, "A: b\r\n", 99, "\r\n", 200 },
        { "101 fields", GET, "A: b\r\n", 100, "\r\n", 431 },
        { "2000 fields", GET, "A: b\r\n", 2000, "\r\n", 431 },
        { "endless fields", GET, "A: b\r\n", MIB, "", 431 },
        { "body just fits", POST "Content-Length: 2097152\r\n\r\n", "0123456789abcdef", 131072, "",
          200 },
        { "length one over", POST "Content-Length: 2097153\r\n\r\n", "", 0, "", 413 },
        { "chunks just fit", CHUNKED, "10\r\n0123456789abcdef\r\n", 131072, "0\r\n\r\n", 200 },
        { "chunks one over", CHUNKED, "10\r\n0123456789abcdef\r\n", 131072, "1\r\n", 413 },
        { "endless chunks", CHUNKED, "1\r\na\r\n", 3 * MIB, "", 413 },
        { "one-byte chunks", CHUNKED, "1\r\na\r\n", 5000, "0\r\n\r\n", 200 },
        { "fat chunk extensions", CHUNKED,
          "1;abcdefghijklmnopqrstuvwxyzabcdefghijklmnopqrstuvwxyz\r\na\r\n", 20000, "", 400 },
        { "endless chunk extension", CHUNKED "1;", "a", MIB, "", 400 },
    };
    world w;
    fg_buf reply;
    fg_http_limits limits = { .body_bytes = 2 * MIB };
    open_world(&w, &limits);
    fg_buf_init(&reply, 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int got = send_generated(&w, &cases[i], &reply);
        cr_assert_eq(got, cases[i].want, "%s: %d instead of %d", cases[i].name, got, cases[i].want);
    }
    fg_buf_deinit(&reply);
    close_world(&w);
}

Test(http, header_block_is_bounded_as_a_whole)
{
    fg_buf bytes;
    fg_buf_init(&bytes, 0);
    fg_buf_puts(&bytes, GET);
    for (int i = 0; i < 70; i++) {
        fg_buf_printf(&bytes, "A: %01000d\r\n", 0);
    }
    fg_buf_puts(&bytes, "\r\n");
    cr_assert_eq(verdict(bytes.data, bytes.size, 4096), 431);
    fg_buf_deinit(&bytes);
}

/* --- order and the end of connections --- */

Test(http, pipelined_requests_are_answered_in_order)
{
    world w;
    fg_buf reply;
    open_world(&w, NULL);
    fg_buf_init(&reply, 0);
    int fd = dial(&w);
    puts_all(&w, fd,
             "GET /later HTTP/1.1\r\n" H "\r\n" POST "Content-Length: 3\r\n\r\none"
             "POST /echo HTTP/1.1\r\n" H "Transfer-Encoding: chunked\r\n\r\n3\r\ntwo\r\n0\r\n\r\n"
             "\r\nGET /three HTTP/1.1\r\n" H "Connection: close\r\n\r\n"
             "GET /never HTTP/1.1\r\n" H "\r\n");
    while (w.pending == NULL) {
        turn(&w);
    }
    for (int i = 0; i < 5; i++) {
        turn(&w);
    }
    cr_assert_eq(w.requests, 1, "the second waits for the first reply");
    cr_assert_eq(fg_http_exchange_count(w.server), 1);
    fg_http_reply(w.pending, 200, "text/plain", "zero", 4);
    cr_assert_eq(w.requests, 1, "no request comes from inside a reply");
    read_to_end(&w, fd, &reply);
    const char *zero = strstr(reply.data, "\r\n\r\nzero");
    const char *one = strstr(reply.data, "[one]");
    const char *two = strstr(reply.data, "[two]");
    const char *three = strstr(reply.data, "GET /three");
    cr_assert(zero != NULL && zero < one && one < two && two < three, "%s", reply.data);
    cr_assert_null(strstr(reply.data, "never"));
    cr_assert_eq(w.requests, 4);
    cr_assert_eq(w.gone, 0);
    cr_assert_eq(fg_http_exchange_count(w.server), 0);
    close(fd);
    fg_buf_deinit(&reply);
    close_world(&w);
}

Test(http, a_refused_request_ends_the_connection_after_the_earlier_replies)
{
    world w;
    fg_buf reply;
    open_world(&w, NULL);
    fg_buf_init(&reply, 0);
    int fd = dial(&w);
    puts_all(&w, fd, GET "\r\n" GET "A: b\n\r\n" GET "\r\n");
    read_to_end(&w, fd, &reply);
    cr_assert_eq(count_text(reply.data, "HTTP/1.1 200"), 1, "%s", reply.data);
    cr_assert_eq(count_text(reply.data, "HTTP/1.1 400"), 1);
    cr_assert_not_null(strstr(reply.data, "{\"error\":{\"message\":\"line does not end in CR LF\","
                                          "\"type\":\"invalid_request_error\",\"param\":null,"
                                          "\"code\":null}}"));
    close(fd);
    fg_buf_deinit(&reply);
    close_world(&w);
}

Test(http, old_http_ends_with_its_reply)
{
    world w;
    fg_buf reply;
    open_world(&w, NULL);
    fg_buf_init(&reply, 0);
    int fd = dial(&w);
    puts_all(&w, fd, "GET /a HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    read_to_end(&w, fd, &reply);
    cr_assert_not_null(strstr(reply.data, "Connection: close\r\n"));
    close(fd);
    /* A stream towards HTTP/1.0 has no chunks. */
    fg_buf_clear(&reply);
    fd = dial(&w);
    puts_all(&w, fd, "GET /stream HTTP/1.0\r\n\r\n");
    while (w.pending == NULL) {
        turn(&w);
    }
    cr_assert_eq(fg_http_stream_write(w.pending, "data: x\n\n", 9), FG_OK);
    fg_http_stream_end(w.pending);
    read_to_end(&w, fd, &reply);
    cr_assert_not_null(strstr(reply.data, "\r\n\r\ndata: x\n\n"), "%s", reply.data);
    cr_assert_null(strstr(reply.data, "chunked"));
    close(fd);
    fg_buf_deinit(&reply);
    close_world(&w);
}

Test(http, head_has_the_length_and_no_body)
{
    world w;
    fg_buf reply;
    open_world(&w, NULL);
    fg_buf_init(&reply, 0);
    int fd = dial(&w);
    puts_all(&w, fd, "HEAD /a HTTP/1.1\r\n" H "\r\nHEAD /stream HTTP/1.1\r\n" H "\r\n");
    while (w.pending == NULL) {
        turn(&w);
    }
    cr_assert_eq(fg_http_stream_write(w.pending, "x", 1), FG_OK);
    fg_http_stream_end(w.pending);
    puts_all(&w, fd, "HEAD /a HTTP/1.1\r\n" H "A: b\n");
    read_to_end(&w, fd, &reply);
    cr_assert_eq(count_text(reply.data, "Content-Length: 13\r\n"), 1, "%s", reply.data);
    cr_assert_eq(count_text(reply.data, "HTTP/1.1 200"), 2);
    cr_assert_eq(count_text(reply.data, "\r\n\r\nHTTP/1.1"), 2, "no body: %s", reply.data);
    cr_assert_eq(strcmp(reply.data + reply.size - 4, "\r\n\r\n"), 0);
    close(fd);
    fg_buf_deinit(&reply);
    close_world(&w);
}

Test(http, continue_is_sent_only_to_a_client_that_waits)
{
    world w;
    fg_buf reply;
    open_world(&w, NULL);
    fg_buf_init(&reply, 0);
    int fd = dial(&w);
    puts_all(&w, fd, POST "Expect: 100-Continue\r\nContent-Length: 3\r\n\r\n");
    read_until(&w, fd, &reply, "\r\n\r\n");
    cr_assert_str_eq(reply.data, "HTTP/1.1 100 Continue\r\n\r\n");
    puts_all(&w, fd, "abc");
    read_until(&w, fd, &reply, "[abc]");
    fg_buf_clear(&reply);
    puts_all(&w, fd, POST "Expect: 100-continue\r\nContent-Length: 3\r\n\r\nabc");
    read_until(&w, fd, &reply, "[abc]");
    cr_assert_null(strstr(reply.data, "100 Continue"));
    /* Too large is said before the body is sent. */
    fg_buf_clear(&reply);
    puts_all(&w, fd, POST "Expect: 100-continue\r\nContent-Length: 99999999\r\n\r\n");
    read_to_end(&w, fd, &reply);
    cr_assert_eq(status_of(&reply), 413);
    close(fd);
    fg_buf_deinit(&reply);
    close_world(&w);
}

/* --- deadlines --- */

Test(http, slow_clients_are_told_and_idle_ones_closed)
{
    static const struct {
        const char *name, *first, *drip;
        int want;
    } cases[] = {
        { "silent", "", "", 0 },
        { "idle after a reply", GET "\r\n", "", 200 },
        { "half a header", "GET / HTTP/1.1\r\n", "", 408 },
        { "dripping header", "GET / HTTP/1.1\r\nA: ", "a", 408 },
        { "half a body", POST "Content-Length: 1000\r\n\r\n", "", 408 },
        { "dripping body", POST "Content-Length: 100000\r\n\r\n", "a", 408 },
    };
    world w;
    fg_buf reply;
    fg_clock clock = fg_clock_real();
    fg_http_limits limits = { .header_ms = 40, .body_ms = 50, .idle_ms = 60 };
    open_world(&w, &limits);
    fg_buf_init(&reply, 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        int fd = dial(&w);
        fg_buf_clear(&reply);
        puts_all(&w, fd, cases[i].first);
        /* A drop a millisecond: a quick machine would fill the header before its time is over. */
        uint64_t dripped_ns = 0;
        while (take(fd, &reply)) {
            uint64_t now_ns = fg_clock_now_ns(&clock);
            if (now_ns - dripped_ns >= 1000000) {
                puts_all(&w, fd, cases[i].drip);
                dripped_ns = now_ns;
            }
            turn(&w);
        }
        cr_assert_eq(status_of(&reply), cases[i].want, "%s: %d", cases[i].name, status_of(&reply));
        close(fd);
    }
    cr_assert_eq(w.gone, 0);
    fg_buf_deinit(&reply);
    close_world(&w);
}

Test(http, a_body_that_nobody_wants_is_not_received)
{
    static const struct {
        const char *name, *text;
        const char *wanted; /* a part of the answer */
        bool unwanted;
    } cases[] = {
        { "all at once", POST "Content-Length: 3\r\n\r\nabc", "POST /echo? []", true },
        { "nothing of it sent", POST "Content-Length: 9999\r\n\r\n", "POST /echo? []", true },
        { "in chunks", CHUNKED "3\r\nabc\r\n0\r\n\r\n", "POST /echo? []", true },
        { "waiting", POST "Expect: 100-continue\r\nContent-Length: 3\r\n\r\n", "POST /echo? []",
          true },
        { "another one says yes", POST "Authorization: Bearer yess\r\nContent-Length: 3\r\n\r\nabc",
          "POST /echo? []", true },
        { "wanted", POST "Authorization: Bearer yes\r\nContent-Length: 3\r\n\r\nabc",
          "POST /echo? [abc]", false },
        { "no body", POST "\r\n", "POST /echo? []", false },
        { "an empty one", POST "Content-Length: 0\r\n\r\n", "POST /echo? []", false },
        { "another path", "POST /else HTTP/1.1\r\n" H "Content-Length: 3\r\n\r\nabc",
          "POST /else? [abc]", false },
    };
    world w;
    fg_buf reply;
    fg_buf_init(&reply, 0);
    open_choosy_world(&w, NULL, true);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int unwanted = w.unwanted, requests = w.requests;
        int fd = dial(&w);
        fg_buf_clear(&reply);
        puts_all(&w, fd, cases[i].text);
        if (cases[i].unwanted) {
            read_to_end(&w, fd, &reply); /* the connection is not used again */
            cr_assert(strstr(reply.data, "Connection: close") != NULL, "%s: %s", cases[i].name,
                      reply.data);
        } else {
            read_until(&w, fd, &reply, "] -");
        }
        cr_assert(strstr(reply.data, cases[i].wanted) != NULL, "%s: %s", cases[i].name, reply.data);
        cr_assert(strstr(reply.data, "100 Continue") == NULL, "%s", cases[i].name);
        cr_assert_eq(w.unwanted - unwanted, cases[i].unwanted, "%s", cases[i].name);
        cr_assert_eq(w.requests - requests, 1, "%s", cases[i].name);
        close(fd);
    }
    /* What follows on the same connection is no request. */
    int fd = dial(&w), requests = w.requests;
    fg_buf_clear(&reply);
    puts_all(&w, fd, POST "Content-Length: 60\r\n\r\n" GET "\r\n" GET "\r\n");
    read_to_end(&w, fd, &reply);
    cr_assert_eq(w.requests - requests, 1, "%s", reply.data);
    cr_assert_eq(count_text(reply.data, "HTTP/1.1"), 1, "%s", reply.data);
    close(fd);
    fg_buf_deinit(&reply);
    close_world(&w);
}
