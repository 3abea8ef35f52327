/* Embeddings: what a client asks for, and how they are written. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common/base/limits.h"
#include "common/model/hparams.h"
#include "router/api_internal.h"

/* Numbers of one answer, which is held as a whole: some 50 MB of text. */
enum { FLOATS_MAX = 1 << 22 };
/* A number as text, with what stands between it and the next one. */
enum { FLOAT_BYTES = 17 };

/* Embeddings are the last token's state. A model that was trained for something else would give numbers that mean little. */
static fg_status check_model(fg_api_reading *r)
{
    static const char *const ways[] = { [FG_POOLING_MEAN] = "the mean of a text's states",
                                        [FG_POOLING_CLS] = "its first token's state",
                                        [FG_POOLING_RANK] = "a score" };
    uint32_t pooling = r->server->pooling;
    if (pooling == FG_POOLING_NONE || pooling == FG_POOLING_LAST) {
        return FG_OK;
    }
    const char *way = pooling <= FG_POOLING_RANK ? ways[pooling] : "something else";
    return fg_api_refuse(r->error, FG_BAD_INPUT, 400, "model", "unsupported_model",
                         "the model's file says that it gives %s (pooling_type %" PRIu32
                         "); this server gives the state of a text's last token",
                         way, pooling);
}

static fg_status read_encoding(fg_api_reading *r)
{
    const fg_json_node *node = fg_api_value(r, FG_PARAM_ENCODING_FORMAT);
    r->request->as_base64 = fg_api_string_is(node, "base64");
    if (node == NULL || r->request->as_base64 || fg_api_string_is(node, "float")) {
        return FG_OK;
    }
    return fg_api_wrong_value(r, "encoding_format",
                              "'%.32s' is not a format of embeddings: use 'float' or 'base64'",
                              fg_json_string(node, NULL));
}

static fg_status read_dimensions(fg_api_reading *r)
{
    fg_request *request = r->request;
    uint32_t most = r->server->embedding_length;
    const fg_json_node *node = fg_api_value(r, FG_PARAM_DIMENSIONS);
    int64_t wanted = most;
    if (node != NULL && !fg_api_read_integer(node, &wanted)) {
        return fg_api_wrong_type(r, "dimensions", "an integer", node);
    }
    if (wanted < 1 || wanted > most) {
        return fg_api_wrong_value(
            r, "dimensions",
            "'dimensions' must be between 1 and %" PRIu32 ", which is what this model has", most);
    }
    request->dimensions = (uint32_t)wanted;
    return FG_OK;
}

static fg_status check_room(fg_api_reading *r)
{
    const fg_request *request = r->request;
    uint64_t all = (uint64_t)request->prompt_count * request->dimensions;
    if (all <= FLOATS_MAX) {
        return FG_OK;
    }
    return fg_api_wrong_value(r, "input",
                              "%" PRIu32 " texts with %" PRIu32
                              " numbers each: an answer has at most %d numbers; send fewer texts",
                              request->prompt_count, request->dimensions, FLOATS_MAX);
}

fg_status fg_api_read_input(fg_api_reading *r)
{
    fg_request *request = r->request;
    /* Nobody works for no token: one is chosen, and not shown. */
    request->no_answer = true;
    request->choice_count = 1;
    request->params.max_tokens = 1;
    request->params.temperature = 0;
    request->params.want_embedding = true;
    fg_status (*const steps[])(fg_api_reading *) = { check_model, read_encoding, read_dimensions,
                                                     fg_api_read_prompt, check_room };
    fg_status status = FG_OK;
    for (size_t i = 0; i < sizeof steps / sizeof steps[0] && status == FG_OK; i++) {
        status = steps[i](r);
    }
    return status;
}

/* Little-endian floats, as those who ask for base64 read them. */
static void put_base64(fg_buf *out, const float *numbers, uint32_t count)
{
    static const char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const size_t size = (size_t)count * sizeof *numbers;
    for (size_t at = 0; at < size; at += 3) {
        uint32_t three = 0;
        size_t left = size - at < 3 ? size - at : 3;
        for (size_t i = 0; i < left; i++) {
            uint32_t bits;
            memcpy(&bits, &numbers[(at + i) / 4], sizeof bits);
            three |= (bits >> 8 * ((at + i) % 4) & 255) << 8 * (2 - i);
        }
        for (size_t i = 0; i < 4; i++) {
            fg_buf_putc(out, i <= left ? letters[three >> 6 * (3 - i) & 63] : '=');
        }
    }
}

size_t fg_api_embedding_bytes(const fg_request *request)
{
    return (size_t)request->dimensions * FLOAT_BYTES + 16;
}

void fg_api_put_embedding(fg_buf *out, const fg_request *request, const float *embedding)
{
    enum { PART = 256 };
    float numbers[3 * PART]; /* whole threes of bytes */
    double squares = 0;
    for (uint32_t i = 0; i < request->dimensions; i++) {
        squares += (double)embedding[i] * embedding[i];
    }
    const double length = squares > 0 ? sqrt(squares) : 1;
    fg_buf_putc(out, request->as_base64 ? '"' : '[');
    for (uint32_t at = 0; at < request->dimensions; at += 3 * PART) {
        uint32_t left = request->dimensions - at;
        uint32_t count = left < 3 * PART ? left : 3 * PART;
        for (uint32_t i = 0; i < count; i++) {
            numbers[i] = (float)(embedding[at + i] / length);
        }
        if (request->as_base64) {
            put_base64(out, numbers, count);
            continue;
        }
        for (uint32_t i = 0; i < count; i++) {
            fg_buf_printf(out, at + i == 0 ? "%.9g" : ",%.9g", (double)numbers[i]);
        }
    }
    fg_buf_putc(out, request->as_base64 ? '"' : ']');
}

static void put_text(fg_buf *out, const char *text)
{
    fg_buf_putc(out, '"');
    fg_buf_json_escape(out, text, strlen(text));
    fg_buf_putc(out, '"');
}

void fg_api_begin_embeddings(fg_buf *out, const fg_request *request)
{
    fg_buf_puts(out, "{\"object\":\"list\",\"id\":");
    put_text(out, request->id);
    fg_buf_printf(out, ",\"created\":%" PRId64 ",\"model\":", request->created_s);
    put_text(out, request->model);
    fg_buf_puts(out, ",\"data\":[");
}

void fg_api_add_embedding(fg_buf *out, uint32_t index, const char *text, size_t length)
{
    fg_buf_printf(out, "%s{\"object\":\"embedding\",\"index\":%" PRIu32 ",\"embedding\":",
                  index == 0 ? "" : ",", index);
    fg_buf_append(out, text, length);
    fg_buf_putc(out, '}');
}

void fg_api_end_embeddings(fg_buf *out, const fg_request *request, const fg_api_usage *usage)
{
    uint64_t tokens = fg_request_prompt_tokens(request);
    fg_buf_printf(out,
                  "],\"usage\":{\"prompt_tokens\":%" PRIu64 ",\"total_tokens\":%" PRIu64
                  ",\"prompt_tokens_details\":{\"cached_tokens\":%" PRIu32 "}}}",
                  tokens, tokens, usage->cached_tokens);
}
