/*
 * batch_lines - the requests of a batch file, and which of them an answer file has already. The whole
 * input is checked before anything runs, and held in memory. One owner.
 *
 * A request is {"custom_id": TEXT, "method": "POST", "url": "/v1/...", "body": {...}}: one per line,
 * or all of them in one JSON array. Each custom_id occurs once.
 */
#ifndef FORGE_CLI_BATCH_LINES_H
#define FORGE_CLI_BATCH_LINES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/map.h"
#include "common/base/status.h"

typedef struct fg_line {
    size_t at, length; /* in `text` */
    size_t id_at;      /* in `ids`, NUL-terminated */
    uint32_t number;   /* line of the file, or place in the array, from 1 */
    bool done;
} fg_line;

typedef struct fg_lines {
    const char *name; /* of the file, for error texts; borrowed */
    bool array;
    fg_buf text, ids;
    fg_line *items;
    size_t count, capacity, done_count;
    fg_map *by_id;
} fg_lines;

/* Reads all of `fd`. FG_BAD_INPUT names the line ("in.jsonl:12: ..."). Afterwards `lines` wants
 * fg_lines_free, whatever came out. */
fg_status fg_lines_load(fg_lines *lines, int fd, const char *name, fg_error *err);
void fg_lines_free(fg_lines *lines);

const char *fg_lines_id(const fg_lines *lines, size_t index);
/* Appends the request's path and its body, on one line. FG_AGAIN: out of memory. */
fg_status fg_lines_request(const fg_lines *lines, size_t index, fg_buf *path_out, fg_buf *body_out,
                           fg_error *err);

/* How each line of the answer file begins: what a torn end is known by. */
#define FG_LINES_ANSWER_BEGIN "{\"id\":\"batch_req_"

typedef struct fg_lines_resumed {
    uint64_t keep_bytes; /* where the next answer goes; what lies behind is torn */
    bool needs_newline;  /* the last line is whole but for its end */
    uint64_t torn_bytes;
    uint64_t foreign; /* lines that answer no request of this batch */
} fg_lines_resumed;

/* Reads the answers in `fd` from its beginning and marks their requests as done. FG_BAD_INPUT: some
 * whole line is no answer, so this is another kind of file, which nobody should write to. */
fg_status fg_lines_resume(fg_lines *lines, int fd, const char *name, fg_lines_resumed *resumed_out,
                          fg_error *err);

#endif
