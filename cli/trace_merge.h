/*
 * trace_merge - several Chrome traces become one. Pure.
 *
 * Processes of different containers may have one number; a viewer would mix their rows. The later one
 * then gets a number of its own.
 */
#ifndef FORGE_CLI_TRACE_MERGE_H
#define FORGE_CLI_TRACE_MERGE_H

#include "common/base/buf.h"
#include "common/base/status.h"

typedef struct fg_trace_merge fg_trace_merge;

/* NULL when out of memory. */
fg_trace_merge *fg_trace_merge_create(void);
void fg_trace_merge_destroy(fg_trace_merge *merge);
/* `label` (its URL) is shown beside the names of its processes. FG_BAD_INPUT: this is no trace; the
 * picture is as before. */
fg_status fg_trace_merge_add(fg_trace_merge *merge, const char *label, const char *text,
                             size_t size_bytes, fg_error *err);
/* The whole picture; call it last. False: out of memory. */
bool fg_trace_merge_render(fg_trace_merge *merge, fg_buf *out);

#endif
