/*
 * Any bytes as what a server answers to `forge top`: metrics, state, and both again a second later, parted
 * by NULs. No crash, no more rows than there is room for, names that end, and a line of JSON that can
 * be read.
 */
#include <stdlib.h>
#include <string.h>

#include "cli/top_model.h"
#include "common/base/json.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes);

static void check(const fg_top_sample *s)
{
    FG_ASSERT(s->worker_count <= FG_TOP_WORKERS_MAX && s->worker_count <= s->worker_total);
    FG_ASSERT(s->stream_count <= FG_TOP_STREAMS_MAX && s->stream_count <= s->stream_total);
    FG_ASSERT(s->first_token.count <= FG_TOP_BUCKETS_MAX);
    FG_ASSERT(s->inter_token.count <= FG_TOP_BUCKETS_MAX);
    for (uint32_t i = 0; i < s->worker_count; i++) {
        FG_ASSERT(memchr(s->workers[i].name, '\0', sizeof s->workers[i].name) != NULL);
    }
    for (uint32_t i = 0; i < s->stream_count; i++) {
        FG_ASSERT(memchr(s->streams[i].id, '\0', sizeof s->streams[i].id) != NULL);
    }
}

/* The bytes up to the next NUL, as a copy of exactly that size, so that reading past its end is seen. */
static char *take(const uint8_t **at, const uint8_t *end, size_t *length_out)
{
    const uint8_t *nul = *at < end ? memchr(*at, '\0', (size_t)(end - *at)) : NULL;
    const uint8_t *stop = nul == NULL ? end : nul;
    size_t length = (size_t)(stop - *at);
    char *copy = malloc(length + (length == 0));
    FG_ASSERT(copy != NULL);
    memcpy(copy, *at, length);
    *at = nul == NULL ? end : nul + 1;
    *length_out = length;
    return copy;
}

static void read_sample(const uint8_t **at, const uint8_t *end, fg_top_sample *sample)
{
    fg_error err = { 0 };
    size_t metrics_bytes, state_bytes;
    char *metrics = take(at, end, &metrics_bytes), *state = take(at, end, &state_bytes);
    memset(sample, 0, sizeof *sample);
    fg_top_read_metrics(metrics, metrics_bytes, sample);
    if (fg_top_read_state(state, state_bytes, sample, &err) != FG_OK) {
        FG_ASSERT(err.text[0] != '\0');
    }
    check(sample);
    free(metrics);
    free(state);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes)
{
    static fg_top_sample before, now; /* too large for a stack */
    const uint8_t *at = bytes, *end = bytes + size_bytes;
    fg_error err;
    fg_json *doc = NULL;
    fg_buf line;
    read_sample(&at, end, &before);
    read_sample(&at, end, &now);
    now.at_ns = 1000000000;
    fg_top_compare(&before, &now);
    fg_buf_init(&line, 0);
    FG_ASSERT(fg_top_render_json(&now, "http://127.0.0.1", &line));
    FG_ASSERT(fg_json_parse(line.data, line.size, &doc, &err) == FG_OK, "%s", err.text);
    fg_json_destroy(doc);
    fg_buf_deinit(&line);
    return 0;
}
