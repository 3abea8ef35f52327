/*
 * batch_out - the answer file: whole lines only, each in one write, in the order in which they come.
 * A file is locked against a second writer and may be continued; standard output may not. One owner.
 */
#ifndef FORGE_CLI_BATCH_OUT_H
#define FORGE_CLI_BATCH_OUT_H

#include <stdbool.h>
#include <stdint.h>

#include "cli/batch_lines.h"
#include "cli/client.h"

typedef struct fg_answers {
    int fd;
    bool file;
    bool dirty;    /* written and not yet synced */
    uint64_t size; /* of a file: where the next line begins */
    const char *name;
    fg_buf line;
    uint64_t prompt_tokens, completion_tokens; /* of the answers written */
} fg_answers;

/* `name` "-" is standard output. A file that is there is continued: its answers are marked in
 * `lines`, a torn end is cut off. FG_BAD_INPUT: it cannot be opened, is `in_fd`'s file, is being
 * written, or holds something else. Close it whatever came out. */
fg_status fg_answers_open(fg_answers *answers, const char *name, int in_fd, fg_lines *lines,
                          fg_lines_resumed *resumed_out, fg_error *err);
void fg_answers_close(fg_answers *answers);
/* FG_BROKEN: nothing more can be written (disk full, reader gone); a file ends with a whole line. */
fg_status fg_answers_write(fg_answers *answers, const char *custom_id,
                           const fg_client_answer *answer, fg_error *err);
/* Brings what was written to the disk. */
fg_status fg_answers_sync(fg_answers *answers, fg_error *err);

/* One line of the answer file. False: out of memory. `prompt` and `completion` get the token counts
 * that the answer names. */
bool fg_answers_render(const char *custom_id, const fg_client_answer *answer, uint64_t *prompt,
                       uint64_t *completion, fg_buf *out);

#endif
