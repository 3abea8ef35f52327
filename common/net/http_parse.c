#include "common/net/http_parse.h"

#include <string.h>
#include <strings.h>

#include <llhttp.h>

#include "common/base/buf.h"
#include "common/base/mem.h"

enum {
    TARGET_MAX = 8 * 1024,      /* longest request target */
    LINE_MAX_BYTES = 16 * 1024, /* longest header line */
    HOST_MAX = 255,
    KEEP_BYTES = 4 * 1024, /* a larger head buffer is given back between requests */
    /* Chunked framing may cost this much, and this many times the body, before it is an attack: a body
     * of one-byte chunks costs five. */
    CHUNK_SLACK_BYTES = 16 * 1024,
    CHUNK_OVERHEAD = 8,
};

typedef enum parse_state { IN_HEAD, IN_BODY, IS_READY, IS_REFUSED } parse_state;

/* Offsets into the head buffer; name and value end in NUL after parsing. */
typedef struct header_field {
    size_t name, name_length;
    size_t value, value_length;
} header_field;

struct fg_http_parser {
    fg_http_parse_limits limits;
    parse_state state;
    fg_http_refusal refusal;

    fg_buf head; /* the raw header block */
    size_t line_start;
    uint32_t line_count; /* complete lines, the request line included */
    bool skipped_empty_line;
    size_t target, target_length;
    const char *method;
    bool is_http10;

    llhttp_t llhttp;
    header_field *fields; /* limits.header_count */
    size_t field_count;
    bool field_open; /* its value has not ended yet */

    fg_buf body;
    size_t body_wire_bytes; /* as they came, framing included */
    bool keep_alive, waits;
    fg_http_request request;
};

static fg_http_step refuse(fg_http_parser *parser, int status, const char *message)
{
    if (parser->state != IS_REFUSED) {
        parser->state = IS_REFUSED;
        parser->refusal = (fg_http_refusal){ status, message };
    }
    return FG_HTTP_REFUSED;
}

/* --- characters --- */

static bool is_token_char(unsigned char c)
{
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
           (c != '\0' && strchr("!#$%&'*+-.^_`|~", c) != NULL);
}

static int hex_value(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    if (c >= 'a' && c <= 'f') {
        return c - 'a' + 10;
    }
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* --- llhttp's callbacks --- */

static int on_field(llhttp_t *llhttp, const char *at, size_t length)
{
    fg_http_parser *parser = llhttp->data;
    if (parser->state == IN_BODY) {
        refuse(parser, 400, "trailer fields are not accepted");
        return HPE_USER;
    }
    if (!parser->field_open) {
        if (parser->field_count == parser->limits.header_count) {
            refuse(parser, 431, "too many header fields");
            return HPE_USER;
        }
        parser->fields[parser->field_count] =
            (header_field){ .name = (size_t)(at - parser->head.data) };
        parser->field_open = true;
    }
    parser->fields[parser->field_count].name_length += length;
    return 0;
}

static int on_value(llhttp_t *llhttp, const char *at, size_t length)
{
    fg_http_parser *parser = llhttp->data;
    if (parser->state == IN_BODY || !parser->field_open) {
        refuse(parser, 400, "malformed header field");
        return HPE_USER;
    }
    header_field *field = &parser->fields[parser->field_count];
    if (field->value == 0) {
        field->value = (size_t)(at - parser->head.data);
    }
    field->value_length += length;
    return 0;
}

static int on_value_end(llhttp_t *llhttp)
{
    fg_http_parser *parser = llhttp->data;
    if (!parser->field_open) {
        return HPE_USER;
    }
    header_field *field = &parser->fields[parser->field_count];
    const char *value = parser->head.data + field->value;
    while (field->value_length > 0 &&
           (value[field->value_length - 1] == ' ' || value[field->value_length - 1] == '\t')) {
        field->value_length--;
    }
    parser->field_count++;
    parser->field_open = false;
    return 0;
}

static int on_body(llhttp_t *llhttp, const char *at, size_t length)
{
    fg_http_parser *parser = llhttp->data;
    if (length > parser->limits.body_bytes - parser->body.size) {
        refuse(parser, 413, "request body is too large");
        return HPE_USER;
    }
    if (!fg_buf_append(&parser->body, at, length)) {
        refuse(parser, 503, "out of memory");
        return HPE_USER;
    }
    return 0;
}

static int on_chunk_header(llhttp_t *llhttp)
{
    fg_http_parser *parser = llhttp->data;
    if (llhttp->content_length > parser->limits.body_bytes - parser->body.size) {
        refuse(parser, 413, "request body is too large");
        return HPE_USER;
    }
    return 0;
}

/* An offer to speak another protocol, as Java's client makes with every request, may be left alone (RFC 9110 7.8): the
 * reply is HTTP/1.1. Without this llhttp would leave the body unread. */
static int on_headers_complete(llhttp_t *llhttp)
{
    llhttp->upgrade = 0;
    return 0;
}

static int on_complete(llhttp_t *llhttp)
{
    return HPE_PAUSED;
}

static const llhttp_settings_t settings = {
    .on_header_field = on_field,
    .on_header_value = on_value,
    .on_header_value_complete = on_value_end,
    .on_headers_complete = on_headers_complete,
    .on_body = on_body,
    .on_chunk_header = on_chunk_header,
    .on_message_complete = on_complete,
};

/* --- life --- */

static void begin(fg_http_parser *parser)
{
    parser->state = IN_HEAD;
    parser->line_start = 0;
    parser->line_count = 0;
    parser->skipped_empty_line = false;
    parser->method = NULL;
    parser->is_http10 = false;
    parser->field_count = 0;
    parser->field_open = false;
    parser->body_wire_bytes = 0;
    parser->keep_alive = false;
    parser->waits = false;
    parser->request = (fg_http_request){ 0 };
    llhttp_init(&parser->llhttp, HTTP_REQUEST, &settings);
    parser->llhttp.data = parser;
}

fg_http_parser *fg_http_parser_create(const fg_http_parse_limits *limits)
{
    fg_http_parser *parser = fg_mem_alloc(sizeof *parser);
    if (parser == NULL) {
        return NULL;
    }
    parser->limits = *limits;
    parser->fields = fg_mem_array(limits->header_count, sizeof *parser->fields);
    if (parser->fields == NULL) {
        fg_mem_free(parser);
        return NULL;
    }
    fg_buf_init(&parser->head, limits->header_bytes);
    fg_buf_init(&parser->body, limits->body_bytes);
    begin(parser);
    return parser;
}

void fg_http_parser_destroy(fg_http_parser *parser)
{
    if (parser != NULL) {
        fg_buf_deinit(&parser->head);
        fg_buf_deinit(&parser->body);
        fg_mem_free(parser->fields);
        fg_mem_free(parser);
    }
}

void fg_http_parser_reset(fg_http_parser *parser)
{
    fg_buf_clear(&parser->head);
    if (parser->head.capacity > KEEP_BYTES) {
        fg_buf_deinit(&parser->head);
        fg_buf_init(&parser->head, parser->limits.header_bytes);
    }
    fg_http_parser_drop_body(parser);
    begin(parser);
}

void fg_http_parser_drop_body(fg_http_parser *parser)
{
    fg_buf_deinit(&parser->body);
    fg_buf_init(&parser->body, parser->limits.body_bytes);
    parser->request.body = "";
    parser->request.body_bytes = 0;
}

/* --- the request line --- */

static const struct {
    const char *name;
    size_t length;
} methods[] = {
    { "GET", 3 },    { "POST", 4 },    { "HEAD", 4 },  { "PUT", 3 },
    { "DELETE", 6 }, { "OPTIONS", 7 }, { "PATCH", 5 },
};

static fg_http_step check_method(fg_http_parser *parser, const char *line, size_t length)
{
    for (size_t i = 0; i < length; i++) {
        if (!is_token_char((unsigned char)line[i])) {
            return refuse(parser, 400, "malformed request line");
        }
    }
    for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++) {
        if (methods[i].length == length && memcmp(methods[i].name, line, length) == 0) {
            parser->method = methods[i].name;
            return FG_HTTP_MORE;
        }
    }
    return refuse(parser, length == 0 ? 400 : 501, "method is not supported");
}

/* A name, an IPv4 address or a bracketed IPv6 address, then perhaps a port. Nothing that could make a
 * part of a URL of it. */
static bool host_valid(const char *host, size_t length)
{
    size_t at = 0;
    if (length == 0 || length > HOST_MAX) {
        return false;
    }
    if (host[0] == '[') {
        for (at = 1;
             at < length && (hex_value(host[at]) >= 0 || host[at] == ':' || host[at] == '.');
             at++) {
        }
        if (at < 3 || at == length || host[at] != ']') {
            return false;
        }
        at++;
    } else {
        while (at < length && host[at] != ':') {
            char c = host[at];
            if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                  c == '-' || c == '.' || c == '_')) {
                return false;
            }
            at++;
        }
        if (at == 0) {
            return false;
        }
    }
    if (at == length) {
        return true;
    }
    unsigned port = 0;
    size_t digits = length - at - 1;
    if (host[at] != ':' || digits == 0 || digits > 5) {
        return false;
    }
    for (at++; at < length; at++) {
        if (host[at] < '0' || host[at] > '9') {
            return false;
        }
        port = port * 10 + (unsigned)(host[at] - '0');
    }
    return port <= 65535;
}

/* Bytes of an absolute target before its path, as a proxy's clients send it: the host is not looked at further, whoever
 * reaches this server means it. 0: it is no such target. */
static size_t authority_length(const char *target, size_t length)
{
    static const char *const schemes[] = { "http://", "https://" };
    for (size_t i = 0; i < sizeof schemes / sizeof schemes[0]; i++) {
        size_t before = strlen(schemes[i]), at = before;
        if (length <= before || strncasecmp(target, schemes[i], before) != 0) {
            continue;
        }
        while (at < length && target[at] != '/' && target[at] != '?') {
            at++;
        }
        return host_valid(target + before, at - before) ? at : 0;
    }
    return 0;
}

/* Origin form, "/path?query", or absolute form: visible ASCII, every '%' followed by two hex digits, no %00. */
static fg_http_step check_target(fg_http_parser *parser, const char *target, size_t length)
{
    if (length > TARGET_MAX) {
        return refuse(parser, 414, "request target is too long");
    }
    size_t skipped = authority_length(target, length);
    target += skipped;
    length -= skipped;
    if (skipped == 0 && (length == 0 || target[0] != '/')) {
        return refuse(parser, 400, "request target must be a path or an http URL");
    }
    for (size_t i = 0; i < length; i++) {
        unsigned char c = (unsigned char)target[i];
        if (c <= 0x20 || c >= 0x7F || c == '#') {
            return refuse(parser, 400, "request target has a forbidden character");
        }
        if (c == '%' &&
            (length - i < 3 || hex_value(target[i + 1]) < 0 || hex_value(target[i + 2]) < 0 ||
             (target[i + 1] == '0' && target[i + 2] == '0'))) {
            return refuse(parser, 400, "request target has a malformed escape");
        }
    }
    parser->target = (size_t)(target - parser->head.data);
    parser->target_length = length;
    return FG_HTTP_MORE;
}

static fg_http_step check_request_line(fg_http_parser *parser, const char *line, size_t length)
{
    const char *first = memchr(line, ' ', length);
    const char *last = memrchr(line, ' ', length);
    if (first == NULL || last == first) {
        return refuse(parser, 400, "malformed request line");
    }
    const char *version = last + 1;
    size_t version_length = (size_t)(line + length - version);
    if (version_length != 8 || memcmp(version, "HTTP/", 5) != 0 || version[5] < '0' ||
        version[5] > '9' || version[6] != '.' || version[7] < '0' || version[7] > '9') {
        return refuse(parser, 400, "malformed request line");
    }
    if (memcmp(version, "HTTP/1.1", 8) != 0 && memcmp(version, "HTTP/1.0", 8) != 0) {
        return refuse(parser, 505, "HTTP version is not supported");
    }
    fg_http_step step = check_method(parser, line, (size_t)(first - line));
    if (step == FG_HTTP_MORE) {
        step = check_target(parser, first + 1, (size_t)(last - first - 1));
    }
    parser->is_http10 = version[7] == '0';
    return step;
}

/* --- raw header lines --- */

static fg_http_step on_line_end(fg_http_parser *parser, bool *complete_out)
{
    size_t length = parser->head.size - 2 - parser->line_start; /* without CR LF */
    if (length == 0) {
        if (parser->line_count > 0) {
            *complete_out = true;
            return FG_HTTP_MORE;
        }
        /* Some clients send one empty line after a body; RFC 9112 asks to pass over it. */
        if (parser->skipped_empty_line) {
            return refuse(parser, 400, "empty lines before the request");
        }
        parser->skipped_empty_line = true;
        fg_buf_clear(&parser->head);
        return FG_HTTP_MORE;
    }
    if (parser->line_count == 0) {
        fg_http_step step =
            check_request_line(parser, parser->head.data + parser->line_start, length);
        if (step != FG_HTTP_MORE) {
            return step;
        }
    } else if (parser->line_count > parser->limits.header_count) {
        return refuse(parser, 431, "too many header fields");
    }
    parser->line_count++;
    parser->line_start = parser->head.size;
    return FG_HTTP_MORE;
}

static fg_http_step check_head_char(fg_http_parser *parser, unsigned char c, unsigned char before)
{
    size_t column = parser->head.size - parser->line_start;
    bool in_request_line = parser->line_count == 0;
    if ((before == '\r') != (c == '\n')) {
        return refuse(parser, 400, "line does not end in CR LF");
    }
    if ((c < 0x20 && c != '\t' && c != '\r' && c != '\n') || c == 0x7F) {
        return refuse(parser, 400, "control character in the header");
    }
    if (column == 0 && !in_request_line && (c == ' ' || c == '\t' || c == ':')) {
        return refuse(parser, 400, "folded header line or empty header name");
    }
    if (in_request_line && column > TARGET_MAX + 32) {
        return refuse(parser, 414, "request target is too long");
    }
    if (column > LINE_MAX_BYTES || parser->head.size == parser->limits.header_bytes) {
        return refuse(parser, 431, "header is too large");
    }
    return FG_HTTP_MORE;
}

/* Collects the header block. *complete_out: the empty line has come. */
static fg_http_step take_head(fg_http_parser *parser, const char *bytes, size_t size_bytes,
                              size_t *used_out, bool *complete_out)
{
    size_t used = 0;
    fg_http_step step = FG_HTTP_MORE;
    while (used < size_bytes && step == FG_HTTP_MORE && !*complete_out) {
        unsigned char c = (unsigned char)bytes[used];
        size_t size = parser->head.size;
        unsigned char before = size > 0 ? (unsigned char)parser->head.data[size - 1] : '\0';
        step = check_head_char(parser, c, before);
        if (step != FG_HTTP_MORE) {
            break;
        }
        if (!fg_buf_putc(&parser->head, (char)c)) {
            step = refuse(parser, 503, "out of memory");
            break;
        }
        used++;
        if (c == '\n') {
            step = on_line_end(parser, complete_out);
        }
    }
    *used_out = used;
    return step;
}

/* --- meaning of the head --- */

/* The value of the only field of that name; NULL with *count_out 0 or more than 1. */
static const header_field *find_field(const fg_http_parser *parser, const char *name,
                                      size_t *count_out)
{
    const header_field *found = NULL;
    size_t length = strlen(name);
    size_t count = 0;
    for (size_t i = 0; i < parser->field_count; i++) {
        const header_field *field = &parser->fields[i];
        if (field->name_length == length &&
            strncasecmp(parser->head.data + field->name, name, length) == 0) {
            found = found == NULL ? field : found;
            count++;
        }
    }
    if (count_out != NULL) {
        *count_out = count;
    }
    return found;
}

static bool value_is(const fg_http_parser *parser, const header_field *field, const char *text)
{
    size_t length = strlen(text);
    return field->value_length == length &&
           strncasecmp(parser->head.data + field->value, text, length) == 0;
}

static fg_http_step check_host(fg_http_parser *parser)
{
    size_t count;
    const header_field *host = find_field(parser, "host", &count);
    if (count > 1 || (count == 0 && !parser->is_http10)) {
        return refuse(parser, 400, "exactly one Host header is needed");
    }
    if (host != NULL && !host_valid(parser->head.data + host->value, host->value_length)) {
        return refuse(parser, 400, "malformed Host header");
    }
    return FG_HTTP_MORE;
}

static fg_http_step check_framing(fg_http_parser *parser)
{
    size_t coding_count, length_count;
    const header_field *coding = find_field(parser, "transfer-encoding", &coding_count);
    find_field(parser, "content-length", &length_count);
    if (length_count > 1 || (length_count > 0 && coding_count > 0)) {
        return refuse(parser, 400, "ambiguous message length");
    }
    if (coding_count > 0) {
        if (parser->is_http10 || coding_count > 1) {
            return refuse(parser, 400, "ambiguous message length");
        }
        if (!value_is(parser, coding, "chunked")) {
            return refuse(parser, 501, "transfer coding is not supported");
        }
    }
    if (length_count > 0 && parser->llhttp.content_length > parser->limits.body_bytes) {
        return refuse(parser, 413, "request body is too large");
    }
    return FG_HTTP_MORE;
}

/* Two of them would let each reader take another one. */
static fg_http_step check_authorization(fg_http_parser *parser)
{
    size_t count;
    find_field(parser, "authorization", &count);
    return count > 1 ? refuse(parser, 400, "at most one Authorization header") : FG_HTTP_MORE;
}

static fg_http_step check_expectations(fg_http_parser *parser)
{
    size_t count;
    const header_field *field = find_field(parser, "content-encoding", &count);
    if (count > 1 || (field != NULL && !value_is(parser, field, "identity"))) {
        return refuse(parser, 415, "compressed request bodies are not accepted");
    }
    field = find_field(parser, "expect", &count);
    if (field == NULL || parser->is_http10) {
        return FG_HTTP_MORE;
    }
    if (count > 1 || !value_is(parser, field, "100-continue")) {
        return refuse(parser, 417, "expectation is not supported");
    }
    parser->waits = true;
    return FG_HTTP_MORE;
}

/* Ends names and values in NUL and makes names lower case; nobody reads the raw block after this. */
static void seal_fields(fg_http_parser *parser)
{
    char *head = parser->head.data;
    for (size_t i = 0; i < parser->field_count; i++) {
        header_field *field = &parser->fields[i];
        for (size_t at = field->name; at < field->name + field->name_length; at++) {
            head[at] = head[at] >= 'A' && head[at] <= 'Z' ? (char)(head[at] + 32) : head[at];
        }
        head[field->name + field->name_length] = '\0';
        /* An empty value has no place of its own: the NUL after the name serves. */
        if (field->value_length == 0) {
            field->value = field->name + field->name_length;
        }
        head[field->value + field->value_length] = '\0';
    }
}

/* Splits off the query and decodes the path where it stands. */
static void seal_target(fg_http_parser *parser)
{
    char *path = parser->head.data + parser->target;
    path[parser->target_length] = '\0';
    char *query = strchr(path, '?');
    if (query != NULL) {
        *query++ = '\0';
    }
    char *to = path;
    for (const char *from = path; *from != '\0'; from++) {
        if (*from == '%') {
            *to++ = (char)(hex_value(from[1]) << 4 | hex_value(from[2]));
            from += 2;
        } else {
            *to++ = *from;
        }
    }
    *to = '\0';
    parser->request.method = parser->method;
    parser->request.path = *path == '\0' ? "/" : path; /* of a URL it may be left out */
    parser->request.query = query != NULL ? query : "";
    parser->request.body = "";
}

static fg_http_step on_ready(fg_http_parser *parser)
{
    parser->request.body = parser->body.data != NULL ? parser->body.data : "";
    parser->request.body_bytes = parser->body.size;
    parser->state = IS_READY;
    return FG_HTTP_READY;
}

static fg_http_step on_head(fg_http_parser *parser)
{
    llhttp_errno_t code = llhttp_execute(&parser->llhttp, parser->head.data, parser->head.size);
    if (parser->state == IS_REFUSED) {
        return FG_HTTP_REFUSED;
    }
    fg_http_step step = FG_HTTP_MORE;
    if (code != HPE_OK && code != HPE_PAUSED) {
        step = refuse(parser, 400, "malformed header");
    }
    if (step == FG_HTTP_MORE) {
        step = check_host(parser);
    }
    if (step == FG_HTTP_MORE) {
        step = check_framing(parser);
    }
    if (step == FG_HTTP_MORE) {
        step = check_authorization(parser);
    }
    if (step == FG_HTTP_MORE) {
        step = check_expectations(parser);
    }
    if (step != FG_HTTP_MORE) {
        return step;
    }
    /* HTTP/1.0 always ends with its reply. */
    parser->keep_alive = !parser->is_http10 && (parser->llhttp.flags & F_CONNECTION_CLOSE) == 0;
    seal_fields(parser);
    seal_target(parser);
    if (code == HPE_PAUSED) {
        return on_ready(parser);
    }
    parser->state = IN_BODY;
    return FG_HTTP_HEAD;
}

static fg_http_step take_body(fg_http_parser *parser, const char *bytes, size_t size_bytes,
                              size_t *used_out)
{
    *used_out = 0;
    if (size_bytes == 0) {
        return FG_HTTP_MORE;
    }
    llhttp_errno_t code = llhttp_execute(&parser->llhttp, bytes, size_bytes);
    if (parser->state == IS_REFUSED) {
        return FG_HTTP_REFUSED;
    }
    if (code != HPE_OK && code != HPE_PAUSED) {
        return refuse(parser, 400, "malformed request body");
    }
    size_t used =
        code == HPE_PAUSED ? (size_t)(llhttp_get_error_pos(&parser->llhttp) - bytes) : size_bytes;
    parser->body_wire_bytes += used;
    *used_out = used;
    if (parser->body_wire_bytes / CHUNK_OVERHEAD > parser->body.size + CHUNK_SLACK_BYTES) {
        return refuse(parser, 400, "chunked framing is out of proportion to the body");
    }
    return code == HPE_PAUSED ? on_ready(parser) : FG_HTTP_MORE;
}

fg_http_step fg_http_parser_feed(fg_http_parser *parser, const char *bytes, size_t size_bytes,
                                 size_t *used_out)
{
    size_t head_used = 0;
    *used_out = 0;
    if (parser->state == IN_HEAD) {
        bool complete = false;
        fg_http_step step = take_head(parser, bytes, size_bytes, &head_used, &complete);
        *used_out = head_used;
        if (step != FG_HTTP_MORE || !complete) {
            return step;
        }
        step = on_head(parser);
        if (step != FG_HTTP_MORE) {
            return step;
        }
    }
    if (parser->state == IN_BODY) {
        size_t body_used;
        fg_http_step step =
            take_body(parser, bytes + head_used, size_bytes - head_used, &body_used);
        *used_out = head_used + body_used;
        return step;
    }
    return parser->state == IS_READY ? FG_HTTP_READY : FG_HTTP_REFUSED;
}

/* --- what a connection asks --- */

bool fg_http_parser_started(const fg_http_parser *parser)
{
    return parser->state != IN_HEAD || parser->head.size > 0;
}

bool fg_http_parser_in_body(const fg_http_parser *parser)
{
    return parser->state == IN_BODY;
}

bool fg_http_parser_waits(const fg_http_parser *parser)
{
    return parser->waits;
}

size_t fg_http_parser_held(const fg_http_parser *parser)
{
    return parser->head.capacity + parser->body.capacity;
}

const fg_http_request *fg_http_parser_request(const fg_http_parser *parser)
{
    return &parser->request;
}

const char *fg_http_parser_header(const fg_http_parser *parser, const char *name)
{
    const header_field *field = find_field(parser, name, NULL);
    return field == NULL ? NULL : parser->head.data + field->value;
}

bool fg_http_parser_keep_alive(const fg_http_parser *parser)
{
    return parser->keep_alive;
}

bool fg_http_parser_is_head(const fg_http_parser *parser)
{
    return parser->method != NULL && strcmp(parser->method, "HEAD") == 0;
}

bool fg_http_parser_is_http10(const fg_http_parser *parser)
{
    return parser->is_http10;
}

fg_http_refusal fg_http_parser_refusal(const fg_http_parser *parser)
{
    return parser->refusal;
}
