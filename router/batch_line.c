/* The lines of a batch: from JSON, and back with their answers. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "router/batch_internal.h"

/* Where a line may go. */
typedef struct target {
    const char *url;
    fg_api_kind kind;
} target;

static const target targets[] = {
    { "/v1/chat/completions", FG_API_CHAT },
    { "/v1/completions", FG_API_COMPLETION },
    { "/v1/embeddings", FG_API_EMBEDDING },
};

static const target *find_target(const fg_json_node *url)
{
    const char *text = fg_json_string(url, NULL);
    for (size_t i = 0; i < sizeof targets / sizeof targets[0] && text != NULL; i++) {
        if (strcmp(text, targets[i].url) == 0) {
            return &targets[i];
        }
    }
    return NULL;
}

static void end_line(fg_line *line, int http_status)
{
    FG_ASSERT(line->state != FG_LINE_DONE, "a line that ends twice");
    line->state = FG_LINE_DONE;
    line->http_status = http_status;
    line->stream = NULL;
    line->batch->done_count++;
}

/* Copies the answer if the batch has room for it. */
static bool keep_answer(fg_line *line, const char *body, size_t body_bytes)
{
    struct fg_batch *batch = line->batch;
    size_t limit = batch->owner->options.answer_max;
    if (body_bytes == 0 || body_bytes > limit - batch->answer_bytes) {
        return false;
    }
    line->answer = fg_mem_dup(body, body_bytes);
    if (line->answer == NULL) {
        return false;
    }
    line->answer_bytes = body_bytes;
    batch->answer_bytes += body_bytes;
    return true;
}

void fg_line_finish(fg_line *line, int http_status, const char *body, size_t body_bytes)
{
    end_line(line, keep_answer(line, body, body_bytes) ? http_status : 413);
}

void fg_line_refuse(fg_line *line, const fg_api_error *error)
{
    fg_buf *out = &line->batch->scratch;
    fg_buf_clear(out);
    fg_api_render_error(out, error);
    fg_line_finish(line, error->http_status, out->data, out->failed ? 0 : out->size);
}

/* What is wrong with a line before its request is looked at. */
static fg_status check_line(fg_line *line, const fg_json_node *node, fg_api_error *error_out)
{
    if (!fg_json_is(node, FG_JSON_OBJECT)) {
        return fg_api_refuse(error_out, FG_BAD_INPUT, 400, NULL, "invalid_type",
                             "a line of a batch must be an object, not %s",
                             fg_json_type_name(fg_json_type_of(node)));
    }
    size_t length = 0;
    const char *custom_id = fg_json_string(fg_json_get(node, "custom_id"), &length);
    if (custom_id == NULL || length == 0 || length > FG_LIMIT_CUSTOM_ID_BYTES) {
        return fg_api_refuse(error_out, FG_BAD_INPUT, 400, "custom_id", "invalid_value",
                             "'custom_id' must be a string of 1 to %u bytes",
                             FG_LIMIT_CUSTOM_ID_BYTES);
    }
    line->custom_id = custom_id;
    line->custom_id_length = length;
    const char *method = fg_json_string(fg_json_get(node, "method"), NULL);
    if (method == NULL || strcmp(method, "POST") != 0) {
        return fg_api_refuse(error_out, FG_BAD_INPUT, 405, "method", "invalid_value",
                             "'method' must be \"POST\"");
    }
    const target *to = find_target(fg_json_get(node, "url"));
    if (to == NULL) {
        return fg_api_refuse(error_out, FG_BAD_INPUT, 404, "url", "invalid_value",
                             "'url' must be \"%s\", \"%s\" or \"%s\"", targets[0].url,
                             targets[1].url, targets[2].url);
    }
    line->kind = to->kind;
    line->body = fg_json_get(node, "body");
    if (line->body == NULL) {
        return fg_api_refuse(error_out, FG_BAD_INPUT, 400, "body", "missing_required_parameter",
                             "'body' is required");
    }
    return FG_OK;
}

static int compare_ids(const void *left, const void *right)
{
    const fg_line *a = *(const fg_line *const *)left;
    const fg_line *b = *(const fg_line *const *)right;
    if (a->custom_id_length != b->custom_id_length) {
        return a->custom_id_length < b->custom_id_length ? -1 : 1;
    }
    return memcmp(a->custom_id, b->custom_id, a->custom_id_length);
}

/* Two lines of one name could not be told apart in the answer. */
static fg_status check_ids(struct fg_batch *batch, fg_api_error *error_out)
{
    fg_status status = FG_OK;
    size_t count = 0;
    fg_line **named = fg_mem_array(batch->line_count, sizeof(fg_line *));
    if (named == NULL) {
        return fg_api_refuse(error_out, FG_AGAIN, 503, NULL, NULL, "out of memory for the batch");
    }
    for (uint32_t i = 0; i < batch->line_count; i++) {
        if (batch->lines[i].custom_id != NULL) {
            named[count++] = &batch->lines[i];
        }
    }
    qsort(named, count, sizeof(fg_line *), compare_ids);
    for (size_t i = 1; i < count && status == FG_OK; i++) {
        if (compare_ids(&named[i - 1], &named[i]) == 0) {
            status = fg_api_refuse(error_out, FG_BAD_INPUT, 400, "custom_id", "invalid_value",
                                   "'custom_id' %.64s is that of two lines, %td and %td",
                                   named[i]->custom_id, named[i - 1] - batch->lines,
                                   named[i] - batch->lines);
        }
    }
    fg_mem_free(named);
    return status;
}

fg_status fg_lines_read(struct fg_batch *batch, fg_api_error *error_out)
{
    const fg_json_node *root = fg_json_root(batch->json);
    const fg_json_node *array = root;
    if (fg_json_is(root, FG_JSON_OBJECT)) {
        array = fg_json_get(root, "requests");
    }
    if (!fg_json_is(array, FG_JSON_ARRAY)) {
        return fg_api_refuse(error_out, FG_BAD_INPUT, 400, "requests", "invalid_type",
                             "a batch must be an array, or an object with an array 'requests'");
    }
    size_t count = fg_json_size(array);
    if (count == 0 || count > FG_LIMIT_BATCH_ITEMS) {
        return fg_api_refuse(error_out, FG_BAD_INPUT, 400, "requests", "invalid_value",
                             "a batch must have 1 to %u lines, not %zu", FG_LIMIT_BATCH_ITEMS,
                             count);
    }
    batch->lines = fg_mem_array(count, sizeof *batch->lines);
    if (batch->lines == NULL) {
        return fg_api_refuse(error_out, FG_AGAIN, 503, NULL, NULL, "out of memory for the batch");
    }
    batch->line_count = (uint32_t)count;
    for (uint32_t i = 0; i < batch->line_count; i++) {
        fg_api_error error;
        fg_line *line = &batch->lines[i];
        line->batch = batch;
        if (check_line(line, fg_json_at(array, i), &error) != FG_OK) {
            fg_line_refuse(line, &error);
        }
    }
    return check_ids(batch, error_out);
}

static void render_line(fg_line *line, uint32_t index, fg_buf *out)
{
    char id[96];
    snprintf(id, sizeof id, "batch_req_%s_%u", line->batch->name, index);
    fg_buf_printf(out, "{\"id\":\"%s\",\"custom_id\":", id);
    if (line->custom_id == NULL) {
        fg_buf_puts(out, "null");
    } else {
        fg_buf_putc(out, '"');
        fg_buf_json_escape(out, line->custom_id, line->custom_id_length);
        fg_buf_putc(out, '"');
    }
    fg_buf_printf(out, ",\"response\":{\"status_code\":%d,\"request_id\":\"%s\",\"body\":",
                  line->http_status, line->request_id[0] == '\0' ? id : line->request_id);
    if (line->answer != NULL) {
        fg_buf_append(out, line->answer, line->answer_bytes);
    } else {
        fg_api_error error;
        fg_api_refuse(&error, FG_AGAIN, line->http_status, NULL, "batch_answer_too_large",
                      "the batch's answer has no room left for this line (%zu bytes at most): send "
                      "it again in another batch",
                      line->batch->owner->options.answer_max);
        fg_api_render_error(out, &error);
    }
    fg_buf_puts(out, "},\"error\":null}");
    fg_mem_free(line->answer);
    line->answer = NULL;
}

void fg_lines_render(struct fg_batch *batch, fg_buf *out)
{
    fg_buf_puts(out, "{\"object\":\"list\",\"data\":[");
    for (uint32_t i = 0; i < batch->line_count; i++) {
        if (i > 0) {
            fg_buf_putc(out, ',');
        }
        render_line(&batch->lines[i], i, out);
    }
    fg_buf_puts(out, "]}");
}
