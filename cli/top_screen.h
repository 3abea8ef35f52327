/*
 * top_screen - the terminal under `forge top`: its size, its keys, and how it is left as it was found.
 * One per process, one thread.
 *
 * From open to close the terminal shows the other screen, without a cursor, and gives keys one by one.
 * It is put back by close, and by SIGTSTP until SIGCONT. The signals that would end the process are news.
 */
#ifndef FORGE_CLI_TOP_SCREEN_H
#define FORGE_CLI_TOP_SCREEN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"

typedef enum fg_top_event {
    FG_TOP_NOTHING = 0, /* the time is over */
    FG_TOP_KEY,
    FG_TOP_RESIZED, /* or back from a stop: draw anew */
    FG_TOP_END,     /* SIGINT, SIGTERM, SIGHUP, or the terminal is gone */
} fg_top_event;

/* Standard input and output are a terminal. */
bool fg_top_screen_possible(void);
fg_status fg_top_screen_open(fg_error *err);
void fg_top_screen_close(void);
void fg_top_screen_size(uint32_t *width_out, uint32_t *height_out);
/* Shows lines (each ends with '\n'), the first in reverse. */
void fg_top_screen_show(const char *lines, size_t length);
/* Waits up to `wait_ms` for something to happen. */
fg_top_event fg_top_screen_wait(uint32_t wait_ms, char *key_out);

#endif
