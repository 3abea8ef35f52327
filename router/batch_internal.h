/*
 * batch_internal - what the files of batch share: its lines (batch_line.c), their lives (batch.c). Not
 * for others.
 */
#ifndef FORGE_ROUTER_BATCH_INTERNAL_H
#define FORGE_ROUTER_BATCH_INTERNAL_H

#include "common/base/buf.h"
#include "common/base/json.h"
#include "common/base/limits.h"
#include "router/batch.h"

struct fg_batch;

typedef enum fg_line_state { FG_LINE_WAITING, FG_LINE_RUNNING, FG_LINE_DONE } fg_line_state;

/* One request of a batch. */
typedef struct fg_line {
    struct fg_batch *batch;
    fg_line_state state;
    fg_api_kind kind;
    const char *custom_id; /* in the batch's JSON; NULL: it has none that is valid */
    size_t custom_id_length;
    const fg_json_node *body; /* in the batch's JSON */
    char request_id[48];      /* "": it was refused before it got one */
    uint32_t choice_count;
    fg_stream *stream; /* while RUNNING */
    int http_status;   /* when DONE */
    char *answer;      /* its JSON; NULL: there was no room for it */
    size_t answer_bytes;
} fg_line;

/* Reads all lines of a batch. A line that is no request is refused alone: DONE with its error. */
fg_status fg_lines_read(struct fg_batch *batch, fg_api_error *error_out);
/* Ends a line with a copy of its answer, or with an error where the batch's answer has no room. */
void fg_line_finish(fg_line *line, int http_status, const char *body, size_t body_bytes);
void fg_line_refuse(fg_line *line, const fg_api_error *error);
/* Appends the whole answer, giving up the memory of each line as it goes. */
void fg_lines_render(struct fg_batch *batch, fg_buf *out);

struct fg_batch {
    fg_batches *owner;
    struct fg_batch *next;
    fg_http_exchange *exchange;
    const char *route;
    char name[48];
    char caller[FG_LIMIT_NAME_BYTES + 1];
    fg_json *json;
    fg_line *lines;
    uint32_t line_count;
    uint32_t next_line; /* lines before it are RUNNING or DONE */
    uint32_t done_count;
    uint32_t running_choices;
    size_t answer_bytes;
    fg_request_trace trace;
    uint64_t started_ns;

    fg_request request; /* of next_line, while it waits for room; with its arena */
    bool request_read;
    bool blocked;         /* dispatch had no room */
    uint64_t try_at_ns;   /* when blocked: not before, unless a line has ended */
    uint64_t progress_ns; /* when a line was last started or ended */
    fg_buf scratch;       /* one error */
};

struct fg_batches {
    fg_batches_options options;
    struct fg_batch *first;
    uint32_t count;
};

#endif
