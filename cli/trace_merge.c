#include "cli/trace_merge.h"

#include <inttypes.h>
#include <string.h>

#include "cli/json_text.h"
#include "common/base/json.h"
#include "common/base/mem.h"

enum { PROCESSES_FIRST = 16 };

/* One process of one source. */
typedef struct process {
    uint32_t source;
    int64_t given, shown;
} process;

struct fg_trace_merge {
    fg_buf events; /* without the outer brackets, each with a comma and a newline before it */
    process *processes;
    size_t count, capacity;
    uint32_t source; /* the one being added */
    int64_t next_free;
};

fg_trace_merge *fg_trace_merge_create(void)
{
    fg_trace_merge *merge = fg_mem_alloc(sizeof *merge);
    if (merge != NULL) {
        fg_buf_init(&merge->events, 0);
        /* Beyond every number that Linux gives. */
        merge->next_free = 1 << 23;
    }
    return merge;
}

void fg_trace_merge_destroy(fg_trace_merge *merge)
{
    if (merge != NULL) {
        fg_buf_deinit(&merge->events);
        fg_mem_free(merge->processes);
        fg_mem_free(merge);
    }
}

static const process *find(const fg_trace_merge *merge, bool any_source, int64_t number)
{
    for (size_t i = 0; i < merge->count; i++) {
        const process *p = &merge->processes[i];
        if (any_source ? p->shown == number : p->source == merge->source && p->given == number) {
            return p;
        }
    }
    return NULL;
}

/* The process with this number in the present source; new ones are labelled. NULL: out of memory. */
static const process *process_of(fg_trace_merge *merge, const char *label, int64_t given)
{
    const process *known = find(merge, false, given);
    if (known != NULL) {
        return known;
    }
    if (merge->count == merge->capacity) {
        size_t capacity = merge->capacity == 0 ? PROCESSES_FIRST : merge->capacity * 2;
        process *grown = fg_mem_resize(merge->processes, capacity, sizeof *grown);
        if (grown == NULL) {
            return NULL;
        }
        merge->processes = grown;
        merge->capacity = capacity;
    }
    int64_t shown = given;
    while (find(merge, true, shown) != NULL) {
        shown = merge->next_free++;
    }
    merge->processes[merge->count] =
        (process){ .source = merge->source, .given = given, .shown = shown };
    fg_buf_printf(&merge->events,
                  ",\n{\"ph\":\"M\",\"pid\":%" PRId64
                  ",\"tid\":0,\"name\":\"process_labels\",\"args\":{\"labels\":\"",
                  shown);
    fg_buf_json_escape(&merge->events, label, strlen(label));
    fg_buf_puts(&merge->events, "\"}}");
    return &merge->processes[merge->count++];
}

static fg_status out_of_memory(fg_error *err)
{
    return fg_fail(err, FG_AGAIN, "out of memory for the trace");
}

static fg_status add_event(fg_trace_merge *merge, const char *label, const fg_json_node *event,
                           fg_error *err)
{
    int64_t given = 0;
    void *cursor = NULL;
    const char *key = NULL;
    const fg_json_node *member;
    const char *between = "";
    if (!fg_json_is(event, FG_JSON_OBJECT) ||
        !fg_json_is(fg_json_get(event, "ph"), FG_JSON_STRING)) {
        return fg_fail(err, FG_BAD_INPUT, "an entry of its traceEvents is no event");
    }
    if (!fg_json_integer(fg_json_get(event, "pid"), &given)) {
        return fg_fail(err, FG_BAD_INPUT, "an entry of its traceEvents names no process");
    }
    const process *p = process_of(merge, label, given);
    if (p == NULL) {
        return out_of_memory(err);
    }
    fg_buf_puts(&merge->events, ",\n{");
    while ((member = fg_json_next(event, &cursor, &key)) != NULL) {
        fg_buf_printf(&merge->events, "%s\"", between);
        fg_buf_json_escape(&merge->events, key, strlen(key));
        fg_buf_puts(&merge->events, "\":");
        if (strcmp(key, "pid") == 0) {
            fg_buf_printf(&merge->events, "%" PRId64, p->shown);
        } else {
            fg_json_text_write(member, &merge->events);
        }
        between = ",";
    }
    fg_buf_putc(&merge->events, '}');
    return merge->events.failed ? out_of_memory(err) : FG_OK;
}

fg_status fg_trace_merge_add(fg_trace_merge *merge, const char *label, const char *text,
                             size_t size_bytes, fg_error *err)
{
    fg_json *json = NULL;
    fg_error why = { 0 };
    fg_status status = fg_json_parse(text, size_bytes, &json, &why);
    if (status != FG_OK) {
        return fg_fail(err, status, "its answer is no JSON (%.200s)", why.text);
    }
    const fg_json_node *events = fg_json_get(fg_json_root(json), "traceEvents");
    if (!fg_json_is(events, FG_JSON_ARRAY)) {
        status = fg_fail(err, FG_BAD_INPUT, "its answer is JSON, but no trace of a Forge");
    }
    size_t size_before = merge->events.size;
    size_t count_before = merge->count;
    for (size_t i = 0; status == FG_OK && i < fg_json_size(events); i++) {
        status = add_event(merge, label, fg_json_at(events, i), err);
    }
    if (status != FG_OK) {
        merge->count = count_before;
        merge->events.size = size_before;
        merge->events.failed = false;
    }
    merge->source++;
    fg_json_destroy(json);
    return status;
}

bool fg_trace_merge_render(fg_trace_merge *merge, fg_buf *out)
{
    fg_buf_puts(out, "{\"traceEvents\":[");
    if (merge->events.size > 0) {
        fg_buf_append(out, merge->events.data + 1, merge->events.size - 1); /* no first comma */
    }
    fg_buf_puts(out, "\n],\"displayTimeUnit\":\"ms\"}\n");
    return !out->failed;
}
