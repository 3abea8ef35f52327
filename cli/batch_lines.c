#include "cli/batch_lines.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#include "cli/json_text.h"
#include "common/base/hash.h"
#include "common/base/json.h"
#include "common/base/mem.h"

enum { READ_BYTES = 1 << 18, ITEMS_FIRST = 256, ID_BYTES_MAX = 512 };
#define ITEMS_MAX (1u << 26)

static fg_status out_of_memory(const char *name, fg_error *err)
{
    return fg_fail(err, FG_AGAIN, "%s: out of memory", name);
}

/* Appends what the next read brings. */
static fg_status read_some(int fd, const char *name, fg_buf *out, bool *ended_out, fg_error *err)
{
    char *place = fg_buf_reserve(out, READ_BYTES);
    if (place == NULL) {
        return out_of_memory(name, err);
    }
    ssize_t got;
    do {
        got = read(fd, place, READ_BYTES);
    } while (got < 0 && errno == EINTR);
    if (got < 0) {
        return fg_fail(err, FG_BAD_INPUT, "%s: cannot be read: %s", name, strerror(errno));
    }
    out->size += (size_t)got;
    *ended_out = got == 0;
    return FG_OK;
}

/* ---- custom_id -> request ---- */

/* Two ids may have one hash: then the second lies at the hash with the next seed, and so on. Finds
 * where `id` is, or where it would go. */
static uint64_t place_of(const fg_lines *lines, const char *id, size_t *index_out)
{
    for (uint64_t seed = 0;; seed++) {
        uint64_t key = fg_hash64(id, strlen(id), seed);
        uintptr_t found = (uintptr_t)fg_map_get(lines->by_id, key);
        if (found == 0 || strcmp(fg_lines_id(lines, found - 1), id) == 0) {
            *index_out = found == 0 ? SIZE_MAX : found - 1;
            return key;
        }
    }
}

const char *fg_lines_id(const fg_lines *lines, size_t index)
{
    return lines->ids.data + lines->items[index].id_at;
}

/* ---- one request ---- */

static fg_status bad(const fg_lines *lines, uint32_t number, fg_error *err, const char *what)
{
    return fg_fail(err, FG_BAD_INPUT, lines->array ? "%s: request %u: %s" : "%s:%u: %s",
                   lines->name, number, what);
}

static bool is_path(const char *text)
{
    for (const char *c = text; *c != '\0'; c++) {
        if ((unsigned char)*c <= ' ' || (unsigned char)*c >= 0x7F) {
            return false;
        }
    }
    return text[0] == '/';
}

/* NULL when the request is fine. */
static const char *fault_of(const fg_json_node *request)
{
    if (!fg_json_is(request, FG_JSON_OBJECT)) {
        return "a request is a JSON object with custom_id, method, url and body";
    }
    size_t id_bytes = 0;
    const char *id = fg_json_string(fg_json_get(request, "custom_id"), &id_bytes);
    const char *method = fg_json_string(fg_json_get(request, "method"), NULL);
    const char *url = fg_json_string(fg_json_get(request, "url"), NULL);
    const fg_json_node *body = fg_json_get(request, "body");
    bool stream = false;
    if (id == NULL || id_bytes == 0 || id_bytes > ID_BYTES_MAX) {
        return "\"custom_id\" must be there, a text of 1 to 512 bytes";
    }
    if (method == NULL || strcmp(method, "POST") != 0) {
        return "\"method\" must be there, and \"POST\"";
    }
    if (url == NULL || !is_path(url)) {
        return "\"url\" must be there, a path such as \"/v1/chat/completions\"";
    }
    if (!fg_json_is(body, FG_JSON_OBJECT)) {
        return "\"body\" must be there, the request as a JSON object";
    }
    if (fg_json_bool(fg_json_get(body, "stream"), &stream) && stream) {
        return "\"stream\": true has no meaning in a batch: leave it out";
    }
    return NULL;
}

static fg_status add(fg_lines *lines, const fg_json_node *request, fg_line line, fg_error *err)
{
    const char *fault = fault_of(request);
    if (fault != NULL) {
        return bad(lines, line.number, err, fault);
    }
    if (lines->count == lines->capacity) {
        size_t capacity = lines->capacity == 0 ? ITEMS_FIRST : lines->capacity * 2;
        fg_line *items = fg_mem_resize(lines->items, capacity, sizeof *items);
        if (items == NULL) {
            return out_of_memory(lines->name, err);
        }
        lines->items = items;
        lines->capacity = capacity;
    }
    const char *id = fg_json_string(fg_json_get(request, "custom_id"), NULL);
    size_t index;
    uint64_t key = place_of(lines, id, &index);
    if (index != SIZE_MAX) {
        return fg_fail(err, FG_BAD_INPUT,
                       lines->array ? "%s: request %u: custom_id \"%.100s\" is that of request %u"
                                    : "%s:%u: custom_id \"%.100s\" is that of line %u",
                       lines->name, line.number, id, lines->items[index].number);
    }
    line.id_at = lines->ids.size;
    if (!fg_buf_append(&lines->ids, id, strlen(id) + 1) ||
        fg_map_put(lines->by_id, key, (void *)(uintptr_t)(lines->count + 1)) != FG_OK) {
        return out_of_memory(lines->name, err);
    }
    lines->items[lines->count++] = line;
    return FG_OK;
}

/* ---- both forms ---- */

static size_t skip_space(const fg_buf *text, size_t at)
{
    while (at < text->size && strchr(" \t\r\n", text->data[at]) != NULL && text->data[at] != '\0') {
        at++;
    }
    return at;
}

static fg_status load_line(fg_lines *lines, size_t at, size_t length, uint32_t number,
                           fg_error *err)
{
    fg_json *json = NULL;
    fg_error why = { 0 };
    fg_status status = fg_json_parse(lines->text.data + at, length, &json, &why);
    if (status != FG_OK) {
        return fg_fail(err, status, "%s:%u: %s", lines->name, number, why.text);
    }
    status = add(lines, fg_json_root(json),
                 (fg_line){ .at = at, .length = length, .number = number }, err);
    fg_json_destroy(json);
    return status;
}

static fg_status load_lines(fg_lines *lines, size_t at, fg_error *err)
{
    fg_status status = FG_OK;
    const fg_buf *text = &lines->text;
    for (uint32_t number = 1; status == FG_OK && at < text->size; number++) {
        const char *end = memchr(text->data + at, '\n', text->size - at);
        size_t length = end == NULL ? text->size - at : (size_t)(end - (text->data + at));
        if (skip_space(text, at) < at + length) {
            status = load_line(lines, at, length, number, err);
        }
        at += length + 1;
    }
    return status;
}

/* The elements are written anew, one after the other, so that both forms look the same later. */
static fg_status load_array(fg_lines *lines, size_t at, fg_error *err)
{
    fg_json *json = NULL;
    fg_error why = { 0 };
    fg_buf text = lines->text;
    fg_status status = fg_json_parse(text.data + at, text.size - at, &json, &why);
    if (status != FG_OK) {
        return fg_fail(err, status, "%s: %s", lines->name, why.text);
    }
    lines->array = true;
    fg_buf_init(&lines->text, 0);
    for (size_t i = 0; status == FG_OK && i < fg_json_size(fg_json_root(json)); i++) {
        const fg_json_node *request = fg_json_at(fg_json_root(json), i);
        fg_line line = { .at = lines->text.size, .number = (uint32_t)i + 1 };
        if (!fg_json_text_write(request, &lines->text)) {
            status = out_of_memory(lines->name, err);
            break;
        }
        line.length = lines->text.size - line.at;
        status = add(lines, request, line, err);
    }
    fg_json_destroy(json);
    fg_buf_deinit(&text);
    return status;
}

fg_status fg_lines_load(fg_lines *lines, int fd, const char *name, fg_error *err)
{
    static const char mark[] = "\xEF\xBB\xBF"; /* some editors begin UTF-8 so */
    *lines = (fg_lines){ .name = name };
    fg_buf_init(&lines->text, 0);
    fg_buf_init(&lines->ids, 0);
    lines->by_id = fg_map_create(ITEMS_MAX);
    if (lines->by_id == NULL) {
        return out_of_memory(name, err);
    }
    bool ended = false;
    fg_status status = FG_OK;
    while (status == FG_OK && !ended) {
        status = read_some(fd, name, &lines->text, &ended, err);
    }
    if (status != FG_OK) {
        return status;
    }
    size_t at = 0;
    if (lines->text.size >= 3 && memcmp(lines->text.data, mark, 3) == 0) {
        at = 3;
    }
    size_t begin = skip_space(&lines->text, at);
    if (begin < lines->text.size && lines->text.data[begin] == '[') {
        status = load_array(lines, begin, err);
    } else {
        status = load_lines(lines, at, err);
    }
    if (status == FG_OK && lines->count == 0) {
        status = fg_fail(err, FG_BAD_INPUT, "%s: there is no request in it", name);
    }
    return status;
}

void fg_lines_free(fg_lines *lines)
{
    fg_buf_deinit(&lines->text);
    fg_buf_deinit(&lines->ids);
    fg_mem_free(lines->items);
    fg_map_destroy(lines->by_id);
    *lines = (fg_lines){ 0 };
}

fg_status fg_lines_request(const fg_lines *lines, size_t index, fg_buf *path_out, fg_buf *body_out,
                           fg_error *err)
{
    const fg_line *line = &lines->items[index];
    fg_json *json = NULL;
    fg_status status = fg_json_parse(lines->text.data + line->at, line->length, &json, err);
    if (status != FG_OK) {
        return status;
    }
    const fg_json_node *request = fg_json_root(json);
    fg_buf_puts(path_out, fg_json_string(fg_json_get(request, "url"), NULL));
    fg_json_text_write(fg_json_get(request, "body"), body_out);
    fg_json_destroy(json);
    return path_out->failed || body_out->failed ? out_of_memory(lines->name, err) : FG_OK;
}

/* ---- what is done already ---- */

/* Marks the request that this line answers. FG_BAD_INPUT: it is no whole answer. */
static fg_status take_answer(fg_lines *lines, const char *text, size_t length,
                             fg_lines_resumed *resumed)
{
    fg_json *json = NULL;
    fg_status status = fg_json_parse(text, length, &json, NULL);
    if (status != FG_OK) {
        return status;
    }
    const fg_json_node *answer = fg_json_root(json);
    const char *id = fg_json_string(fg_json_get(answer, "custom_id"), NULL);
    size_t index = SIZE_MAX;
    if (id == NULL || fg_json_get(answer, "response") == NULL) {
        status = FG_BAD_INPUT;
    } else {
        place_of(lines, id, &index);
    }
    if (status == FG_OK && index == SIZE_MAX) {
        resumed->foreign++;
    } else if (status == FG_OK && !lines->items[index].done) {
        lines->items[index].done = true;
        lines->done_count++;
    }
    fg_json_destroy(json);
    return status;
}

/* Could this be the begin of a line of ours? */
static bool is_torn(const char *text, size_t length)
{
    size_t common = sizeof FG_LINES_ANSWER_BEGIN - 1;
    return text[0] == '\0' ||
           memcmp(text, FG_LINES_ANSWER_BEGIN, length < common ? length : common) == 0;
}

/* The last line, which has no end. A whole answer stays; a piece of one, or the zeros that a crash
 * of the machine may leave, goes; anything else belongs to somebody. */
static fg_status take_tail(fg_lines *lines, const char *text, size_t length,
                           fg_lines_resumed *resumed)
{
    fg_status status = take_answer(lines, text, length, resumed);
    if (status == FG_OK) {
        resumed->needs_newline = true;
        resumed->keep_bytes += length;
    } else if (status == FG_BAD_INPUT && is_torn(text, length)) {
        resumed->torn_bytes = length;
        status = FG_OK;
    }
    return status;
}

static fg_status refuse_answers(const char *name, uint64_t number, fg_status status, fg_error *err)
{
    if (status == FG_AGAIN) {
        return out_of_memory(name, err);
    }
    return fg_fail(err, status,
                   "%s:%" PRIu64 ": no answer of a batch, so nothing is added to this file: name "
                   "another one",
                   name, number);
}

/* Takes the whole lines at the front of `text` out of it. */
static fg_status take_answers(fg_lines *lines, const char *name, fg_buf *text, uint64_t *number,
                              fg_lines_resumed *resumed, fg_error *err)
{
    size_t at = 0;
    const char *end;
    while ((end = memchr(text->data + at, '\n', text->size - at)) != NULL) {
        size_t length = (size_t)(end - (text->data + at));
        ++*number;
        fg_status status =
            length == 0 ? FG_OK : take_answer(lines, text->data + at, length, resumed);
        if (status != FG_OK) {
            return refuse_answers(name, *number, status, err);
        }
        resumed->keep_bytes += length + 1;
        at += length + 1;
    }
    fg_buf_consume(text, at);
    return FG_OK;
}

fg_status fg_lines_resume(fg_lines *lines, int fd, const char *name, fg_lines_resumed *resumed_out,
                          fg_error *err)
{
    fg_buf text;
    fg_lines_resumed resumed = { 0 };
    fg_buf_init(&text, 0);
    fg_status status = FG_OK;
    uint64_t number = 0;
    bool ended = false;
    while (status == FG_OK && !ended) {
        status = read_some(fd, name, &text, &ended, err);
        if (status == FG_OK && !ended) {
            status = take_answers(lines, name, &text, &number, &resumed, err);
        }
    }
    if (status == FG_OK && text.size > 0) {
        status = take_tail(lines, text.data, text.size, &resumed);
        if (status != FG_OK) {
            refuse_answers(name, number + 1, status, err);
        }
    }
    fg_buf_deinit(&text);
    if (status == FG_OK) {
        *resumed_out = resumed;
    }
    return status;
}
