/* Bytes to the HTTP request parser, without sockets. The first byte says how to cut the rest into
 * packets. Checks what the connection relies on: progress is bounded by the input, a request is well
 * formed, and the verdict is the same for the bytes in one piece. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/status.h"
#include "common/net/http_parse.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const fg_http_parse_limits limits = { 4096, 16, 4096 };

typedef struct outcome {
    int ready; /* requests read before the end or the refusal */
    int refused;
} outcome;

static void check_request(const fg_http_parser *parser)
{
    const fg_http_request *request = fg_http_parser_request(parser);
    FG_ASSERT(request->path[0] == '/' && strlen(request->path) < limits.header_bytes);
    FG_ASSERT(strlen(request->query) < limits.header_bytes);
    FG_ASSERT(request->body_bytes <= limits.body_bytes);
    FG_ASSERT(request->body[request->body_bytes] == '\0');
    FG_ASSERT(request->method[0] >= 'A' && request->method[0] <= 'Z');
    const char *host = fg_http_parser_header(parser, "host");
    FG_ASSERT(host != NULL || fg_http_parser_is_http10(parser));
    FG_ASSERT(host == NULL || strpbrk(host, "/?#@ \t\r\n") == NULL);
    FG_ASSERT(fg_http_parser_header(parser, "transfer-encoding") == NULL ||
              fg_http_parser_header(parser, "content-length") == NULL);
}

static outcome run(const uint8_t *data, size_t size, size_t step)
{
    outcome result = { 0, 0 };
    fg_http_parser *parser = fg_http_parser_create(&limits);
    FG_ASSERT(parser != NULL);
    /* Each packet is a copy of its own size, so that ASan sees a read beyond it. */
    for (size_t at = 0; at < size && result.refused == 0;) {
        size_t count = size - at < step ? size - at : step;
        char *packet = malloc(count);
        FG_ASSERT(packet != NULL);
        memcpy(packet, data + at, count);
        size_t taken = 0;
        while (taken < count && result.refused == 0) {
            size_t used;
            fg_http_step verdict =
                fg_http_parser_feed(parser, packet + taken, count - taken, &used);
            FG_ASSERT(used <= count - taken);
            FG_ASSERT(verdict != FG_HTTP_MORE || used == count - taken);
            FG_ASSERT(verdict == FG_HTTP_REFUSED || used > 0);
            taken += used;
            if (verdict == FG_HTTP_READY) {
                check_request(parser);
                result.ready++;
                fg_http_parser_reset(parser);
            } else if (verdict == FG_HTTP_REFUSED) {
                result.refused = fg_http_parser_refusal(parser).status;
            }
        }
        free(packet);
        at += count;
    }
    fg_http_parser_destroy(parser);
    return result;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2) {
        return 0;
    }
    outcome cut = run(data + 1, size - 1, (size_t)data[0] % 37 + 1);
    outcome whole = run(data + 1, size - 1, size);
    FG_ASSERT(cut.ready == whole.ready && cut.refused == whole.refused);
    return 0;
}
