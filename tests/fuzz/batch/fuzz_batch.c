/*
 * fuzz_batch - any bytes as the body of a batch. The first byte says how much room dispatch has, how
 * fast it is and when the client leaves. What is accepted is answered, once, with a line for each, and
 * nothing stays behind.
 */
#include <stddef.h>
#include <stdint.h>

#include "common/base/json.h"
#include "common/base/log.h"
#include "tests/unit/router/crowd.h"

enum { EXCHANGE = 0, TURNS_MAX = 40000 };

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes);

static size_t count_lines(const char *text, size_t length, const char *key)
{
    fg_json *json;
    fg_error err = { 0 };
    FG_ASSERT(fg_json_parse(text, length, &json, &err) == FG_OK, "%s", err.text);
    const fg_json_node *root = fg_json_root(json);
    size_t count = fg_json_size(fg_json_is(root, FG_JSON_OBJECT) ? fg_json_get(root, key) : root);
    fg_json_destroy(json);
    return count;
}

static void run(const char *body, size_t length, unsigned speed, bool leaves)
{
    const fg_http_exchange *exchange = &the_crowd.exchanges[EXCHANGE];
    for (int turn = 0; turn < TURNS_MAX && !exchange->ended; turn++) {
        if (leaves && turn == (int)speed) {
            FG_ASSERT(fg_batches_gone(the_crowd.batches, &the_crowd.exchanges[EXCHANGE]), "left");
            return;
        }
        crowd_turn(speed);
        the_crowd.now_ns += 60000000;
    }
    FG_ASSERT(exchange->ended && exchange->status == 200, "never answered");
    FG_ASSERT(count_lines(exchange->body.data, exchange->body.size, "data") ==
                  count_lines(body, length, "requests"),
              "lines lost: %s", exchange->body.data);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes)
{
    if (size_bytes == 0) {
        return 0;
    }
    fg_log_set_level(FG_LOG_ERROR);
    const char *body = (const char *)bytes + 1;
    fg_api_error error = { 0 };
    crowd_open();
    the_crowd.room = 1 + (bytes[0] & 7);
    fg_status status = fg_batch_open(the_crowd.batches, &the_crowd.exchanges[EXCHANGE],
                                     "/forge/v1/batch", "b", body, size_bytes - 1, &error);
    if (status == FG_OK) {
        run(body, size_bytes - 1, 1 + (bytes[0] >> 3 & 7), (bytes[0] & 0x80) != 0);
    } else {
        FG_ASSERT(status == FG_BAD_INPUT && error.http_status == 400 && error.text[0] != '\0',
                  "an unexplained refusal");
    }
    FG_ASSERT(fg_batches_count(the_crowd.batches) == 0, "a batch stays behind");
    crowd_close();
    return 0;
}
