/*
 * top_draw - a screen of `forge top`: a model and a size become lines. Pure: no clock, no terminal.
 *
 * What always holds: at most `height` lines, each at most `width` columns wide, ended by '\n', whole
 * characters only, and no control character: what a server calls itself cannot steer the terminal. A
 * character that takes two columns counts two; one that takes none, or is no valid UTF-8, is shown
 * as '?'.
 */
#ifndef FORGE_CLI_TOP_DRAW_H
#define FORGE_CLI_TOP_DRAW_H

#include <stdbool.h>
#include <stdint.h>

#include "cli/top_model.h"

typedef enum fg_top_sort {
    FG_TOP_BY_NAME = 0,
    FG_TOP_BY_BUSY,
    FG_TOP_BY_RUNNING,
    FG_TOP_BY_BLOCKS,
    FG_TOP_SORT_COUNT,
} fg_top_sort;

typedef struct fg_top_view {
    uint32_t width, height; /* height 0: as many lines as it takes */
    const char *url;
    fg_top_sort sort;
    bool paused, help, keys; /* keys: the line that names them */
    const char *problem;     /* the server is away; NULL: it is not */
    uint32_t retry_s;        /* until it is asked again */
} fg_top_view;

/* `sample` may be NULL while there is none. False: out of memory. */
bool fg_top_draw(const fg_top_sample *sample, const fg_top_view *view, fg_buf *out);
/* "name", "busy", ... */
const char *fg_top_sort_name(fg_top_sort sort);

/* Appends `text` up to `columns` columns; returns how many it took. */
uint32_t fg_top_put_text(fg_buf *out, const char *text, uint32_t columns);

#endif
