#include "tests/sim/workload.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/base/json.h"
#include "common/base/limits.h"
#include "common/base/map.h"
#include "common/base/mem.h"

#define SECOND_NS     1000000000ull
#define ARRIVAL_MAX_S 1e10 /* three hundred years */
enum { LINE_BYTES_MAX = 1 << 20 };

typedef struct reader {
    fg_workload *workload;
    uint32_t capacity, id_capacity, line;
    fg_error *err;
} reader;

/* ---- growing ---- */

static fg_status add_request(reader *r, const fg_workload_request *request)
{
    fg_workload *w = r->workload;
    if (w->count == r->capacity) {
        uint32_t capacity = r->capacity == 0 ? 1024 : r->capacity * 2;
        void *grown = fg_mem_resize(w->requests, capacity, sizeof *w->requests);
        if (grown == NULL) {
            return fg_fail(r->err, FG_AGAIN, "out of memory for the trace");
        }
        w->requests = grown;
        r->capacity = capacity;
    }
    w->requests[w->count++] = *request;
    return FG_OK;
}

static fg_status add_id(reader *r, uint64_t id)
{
    fg_workload *w = r->workload;
    if (w->id_count == r->id_capacity) {
        uint32_t capacity = r->id_capacity == 0 ? 4096 : r->id_capacity * 2;
        void *grown = fg_mem_resize(w->ids, capacity, sizeof *w->ids);
        if (grown == NULL) {
            return fg_fail(r->err, FG_AGAIN, "out of memory for the trace");
        }
        w->ids = grown;
        r->id_capacity = capacity;
    }
    w->ids[w->id_count++] = id;
    return FG_OK;
}

/* ---- JSON lines ---- */

static fg_status read_length(const reader *r, const fg_json_node *object, const char *key,
                             uint32_t *value_out)
{
    int64_t value;
    if (!fg_json_integer(fg_json_get(object, key), &value) || value < 1 ||
        value > FG_LIMIT_CONTEXT_TOKENS) {
        return fg_fail(r->err, FG_BAD_INPUT, "line %u: \"%s\" must be a whole number of 1 to %u",
                       r->line, key, FG_LIMIT_CONTEXT_TOKENS);
    }
    *value_out = (uint32_t)value;
    return FG_OK;
}

static fg_status read_ids(reader *r, const fg_json_node *ids, fg_workload_request *request)
{
    uint32_t want =
        (request->prompt_tokens + FG_WORKLOAD_BLOCK_TOKENS - 1) / FG_WORKLOAD_BLOCK_TOKENS;
    if (fg_json_is(ids, FG_JSON_ABSENT)) {
        return FG_OK;
    }
    if (!fg_json_is(ids, FG_JSON_ARRAY) || fg_json_size(ids) != want) {
        return fg_fail(r->err, FG_BAD_INPUT,
                       "line %u: \"hash_ids\" must be a list of %u numbers, one per %d tokens of "
                       "input_length",
                       r->line, want, FG_WORKLOAD_BLOCK_TOKENS);
    }
    request->first_id = r->workload->id_count;
    request->id_count = want;
    for (uint32_t i = 0; i < want; i++) {
        int64_t id;
        if (!fg_json_integer(fg_json_at(ids, i), &id)) {
            return fg_fail(r->err, FG_BAD_INPUT, "line %u: \"hash_ids\" holds more than numbers",
                           r->line);
        }
        fg_status status = add_id(r, (uint64_t)id);
        if (status != FG_OK) {
            return status;
        }
    }
    return FG_OK;
}

static fg_status read_object(reader *r, const fg_json_node *object)
{
    fg_workload_request request = { 0 };
    double ms;
    if (!fg_json_is(object, FG_JSON_OBJECT)) {
        return fg_fail(r->err, FG_BAD_INPUT, "line %u is no JSON object", r->line);
    }
    if (!fg_json_number(fg_json_get(object, "timestamp"), &ms) || !(ms >= 0) ||
        ms > ARRIVAL_MAX_S * 1e3) {
        return fg_fail(r->err, FG_BAD_INPUT, "line %u: \"timestamp\" must be milliseconds from 0",
                       r->line);
    }
    request.arrival_ns = (uint64_t)llround(ms * 1e6);
    fg_status status = read_length(r, object, "input_length", &request.prompt_tokens);
    status =
        status != FG_OK ? status : read_length(r, object, "output_length", &request.output_tokens);
    status = status != FG_OK ? status : read_ids(r, fg_json_get(object, "hash_ids"), &request);
    return status != FG_OK ? status : add_request(r, &request);
}

static fg_status read_json_line(reader *r, const char *text, size_t length)
{
    fg_json *json;
    fg_error why;
    fg_status status = fg_json_parse(text, length, &json, &why);
    if (status != FG_OK) {
        return fg_fail(r->err, status, "line %u: %s", r->line, why.text);
    }
    status = read_object(r, fg_json_root(json));
    fg_json_destroy(json);
    return status;
}

/* ---- CSV ---- */

/* Days from 1970-01-01 to a date of the Gregorian calendar: years begin in March, so that the day that
 * comes and goes is the last one. */
static int64_t days_to(int64_t year, int64_t month, int64_t day)
{
    year -= month <= 2;
    int64_t era = year / 400, of_era = year % 400;
    int64_t of_year = (153 * (month + (month > 2 ? -3 : 9)) + 2) / 5 + day - 1;
    return era * 146097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719468;
}

static bool in_range(const int *fields)
{
    static const int low[5] = { 1970, 1, 1, 0, 0 }, high[5] = { 2200, 12, 31, 23, 59 };
    for (int i = 0; i < 5; i++) {
        if (fields[i] < low[i] || fields[i] > high[i]) {
            return false;
        }
    }
    return true;
}

/* A date with its time, or seconds. */
static bool read_time(const char *text, uint64_t *ns_out)
{
    int f[5], used = 0;
    double seconds;
    char rest;
    if (sscanf(text, "%4d-%2d-%2d %2d:%2d:%n", &f[0], &f[1], &f[2], &f[3], &f[4], &used) == 5 &&
        used > 0) {
        if (!in_range(f) || text[used] < '0' || text[used] > '9' ||
            sscanf(text + used, "%12lf%c", &seconds, &rest) != 1 || !(seconds < 61)) {
            return false;
        }
        int64_t whole = days_to(f[0], f[1], f[2]) * 86400 + f[3] * 3600 + f[4] * 60;
        *ns_out = (uint64_t)whole * SECOND_NS + (uint64_t)llround(seconds * 1e9);
        return true;
    }
    if (text[0] < '0' || text[0] > '9' || sscanf(text, "%24lf%c", &seconds, &rest) != 1 ||
        !(seconds < ARRIVAL_MAX_S)) {
        return false;
    }
    *ns_out = (uint64_t)llround(seconds * 1e9);
    return true;
}

static bool read_count(const char *text, uint32_t *value_out)
{
    char *end;
    if (text[0] < '0' || text[0] > '9') {
        return false;
    }
    unsigned long value = strtoul(text, &end, 10);
    *value_out = (uint32_t)value;
    return *end == '\0' && value >= 1 && value <= FG_LIMIT_CONTEXT_TOKENS;
}

static fg_status read_csv_line(reader *r, const char *text, size_t length)
{
    char line[128];
    fg_workload_request request = { 0 };
    if (length >= sizeof line) {
        return fg_fail(r->err, FG_BAD_INPUT, "line %u is too long for arrival,prompt,answer",
                       r->line);
    }
    memcpy(line, text, length);
    line[length] = '\0';
    char *prompt = strchr(line, ',');
    char *output = prompt == NULL ? NULL : strchr(prompt + 1, ',');
    if (output == NULL || strlen(line) != length) {
        return fg_fail(r->err, FG_BAD_INPUT,
                       "line %u: three columns are wanted: arrival,prompt "
                       "tokens,answer tokens",
                       r->line);
    }
    *prompt++ = '\0';
    *output++ = '\0';
    if (!read_time(line, &request.arrival_ns)) {
        return fg_fail(r->err, FG_BAD_INPUT,
                       "line %u: the arrival must be seconds or like 2023-11-16 18:17:03.97",
                       r->line);
    }
    if (!read_count(prompt, &request.prompt_tokens) ||
        !read_count(output, &request.output_tokens)) {
        return fg_fail(r->err, FG_BAD_INPUT, "line %u: token counts must be 1 to %u", r->line,
                       FG_LIMIT_CONTEXT_TOKENS);
    }
    return add_request(r, &request);
}

/* ---- the whole ---- */

static int by_arrival(const void *left, const void *right)
{
    const fg_workload_request *a = left, *b = right;
    return (a->arrival_ns > b->arrival_ns) - (a->arrival_ns < b->arrival_ns);
}

/* qsort need not keep the order of equals. */
static fg_status sort(reader *r)
{
    fg_workload *w = r->workload;
    bool sorted = true;
    for (uint32_t i = 1; i < w->count; i++) {
        sorted = sorted && w->requests[i - 1].arrival_ns <= w->requests[i].arrival_ns;
    }
    if (sorted) {
        return FG_OK;
    }
    fg_workload_request *half = fg_mem_array(w->count, sizeof *half);
    if (half == NULL) {
        return fg_fail(r->err, FG_AGAIN, "out of memory for the trace");
    }
    for (uint32_t width = 1; width < w->count; width *= 2) {
        for (uint32_t from = 0; from < w->count; from += 2 * width) {
            uint32_t middle = from + width < w->count ? from + width : w->count;
            uint32_t end = middle + width < w->count ? middle + width : w->count;
            for (uint32_t i = from, j = middle, k = from; k < end; k++) {
                bool left =
                    j == end || (i < middle && by_arrival(&w->requests[i], &w->requests[j]) <= 0);
                half[k] = w->requests[left ? i++ : j++];
            }
        }
        memcpy(w->requests, half, w->count * sizeof *half);
    }
    fg_mem_free(half);
    return FG_OK;
}

/* What a cache without limit would have found: the leading blocks that came before. An id stands for its
 * own tokens and, as in the trace's making, for all before it. */
static fg_status count_known(reader *r)
{
    static char seen;
    fg_workload *w = r->workload;
    fg_map *ids = fg_map_create((size_t)w->id_count + 1);
    fg_status status = ids == NULL ? FG_AGAIN : FG_OK;
    for (uint32_t i = 0; status == FG_OK && i < w->count; i++) {
        const fg_workload_request *request = &w->requests[i];
        bool known = true;
        w->prompt_tokens += request->prompt_tokens;
        w->output_tokens += request->output_tokens;
        for (uint32_t j = 0; status == FG_OK && j < request->id_count; j++) {
            uint64_t id = w->ids[request->first_id + j];
            uint32_t before = j * FG_WORKLOAD_BLOCK_TOKENS;
            uint32_t left = request->prompt_tokens - before;
            known = known && fg_map_get(ids, id) != NULL;
            w->known_tokens += !known                            ? 0
                               : left < FG_WORKLOAD_BLOCK_TOKENS ? left
                                                                 : FG_WORKLOAD_BLOCK_TOKENS;
            status = fg_map_put(ids, id, &seen);
        }
    }
    fg_map_destroy(ids);
    return status == FG_OK ? FG_OK : fg_fail(r->err, FG_AGAIN, "out of memory for the trace");
}

static fg_status finish(reader *r)
{
    fg_workload *w = r->workload;
    if (w->count == 0) {
        return fg_fail(r->err, FG_BAD_INPUT, "there are no requests in it");
    }
    fg_status status = sort(r);
    uint64_t first_ns = w->requests[0].arrival_ns;
    for (uint32_t i = 0; i < w->count; i++) {
        w->requests[i].arrival_ns -= first_ns;
    }
    return status != FG_OK ? status : count_known(r);
}

fg_status fg_workload_parse(const char *text, size_t size_bytes, uint32_t count_max,
                            fg_workload *workload_out, fg_error *err)
{
    fg_workload workload = { 0 };
    reader r = { .workload = &workload, .err = err };
    fg_status status = FG_OK;
    bool json = false, began = false;
    const char *end = text + size_bytes;
    while (status == FG_OK && text < end && workload.count < count_max) {
        const char *stop = memchr(text, '\n', (size_t)(end - text));
        size_t length = (size_t)((stop == NULL ? end : stop) - text);
        const char *line = text;
        text += length + (stop != NULL);
        r.line++;
        while (length > 0 && (line[length - 1] == '\r' || line[length - 1] == ' ')) {
            length--;
        }
        if (length == 0) {
            continue;
        }
        if (length > LINE_BYTES_MAX) {
            status = fg_fail(err, FG_BAD_INPUT, "line %u is longer than a mebibyte", r.line);
        } else if (!began) {
            began = true;
            json = line[0] == '{';
            bool heading = !json && (line[0] < '0' || line[0] > '9');
            status = json      ? read_json_line(&r, line, length)
                     : heading ? FG_OK
                               : read_csv_line(&r, line, length);
        } else {
            status = json ? read_json_line(&r, line, length) : read_csv_line(&r, line, length);
        }
    }
    status = status != FG_OK ? status : finish(&r);
    if (status != FG_OK) {
        fg_workload_free(&workload);
        return status;
    }
    *workload_out = workload;
    return FG_OK;
}

void fg_workload_free(fg_workload *workload)
{
    fg_mem_free(workload->requests);
    fg_mem_free(workload->ids);
    *workload = (fg_workload){ 0 };
}

void fg_workload_tokens(const fg_workload *workload, uint32_t index, uint64_t seed,
                        uint32_t vocab_size, uint32_t *tokens_out)
{
    const fg_workload_request *request = &workload->requests[index];
    for (uint32_t at = 0; at < request->prompt_tokens; at++) {
        uint32_t block = at / FG_WORKLOAD_BLOCK_TOKENS;
        bool own = request->id_count == 0;
        uint64_t id = own ? index : workload->ids[request->first_id + block];
        uint64_t place = own ? at : at % FG_WORKLOAD_BLOCK_TOKENS;
        uint64_t key = fg_hash_mix(id + seed) ^ (own ? 0x4F776E546F6B656Eull : 0);
        tokens_out[at] = (uint32_t)(fg_hash_mix(key + place) % vocab_size);
    }
}
