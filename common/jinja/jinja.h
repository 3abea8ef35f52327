/*
 * jinja - runs the chat templates that model files carry: the part of Jinja2 that they use, set up as those
 * who made them do (trim_blocks, lstrip_blocks, break and continue, no escaping). Pure.
 *
 * A template is compiled once, never changes afterwards, and any thread may run it. A run has an arena and a
 * number of steps, and never takes more. Every piece of text says who wrote it, the template or a client,
 * and keeps saying so through sums, slices and filters: so that no message can write control tokens. Numbers
 * and the signs of JSON count as the template's.
 */
#ifndef FORGE_COMMON_JINJA_JINJA_H
#define FORGE_COMMON_JINJA_JINJA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/json.h"
#include "common/base/status.h"

typedef struct fg_jinja fg_jinja;
/* One rendering: its values, its output and what it may still take. One owner. */
typedef struct fg_jinja_run fg_jinja_run;
/* A value of a run, which owns it. */
typedef struct fg_jinja_value fg_jinja_value;

/* Bytes of a template that is compiled. */
enum { FG_JINJA_SOURCE_MAX = 256 * 1024 };

/* FG_BAD_INPUT names the line, and what is wrong there or not known here: tags, filters and tests are all
 * looked up now, so that a run cannot meet an unknown one. FG_AGAIN: out of memory. */
fg_status fg_jinja_compile(const char *source, size_t length, fg_jinja **template_out,
                           fg_error *err);
void fg_jinja_destroy(fg_jinja *template);
/* Whether the template reads a variable of this name somewhere: one that it only sets is not read. */
bool fg_jinja_reads(const fg_jinja *template, const char *name);

/* A statement, an expression, an item, or 8 to 64 bytes of text that is looked at are a step. `now_s` is what
 * strftime_now shows, in UTC: seconds since 1970. NULL: out of memory. */
fg_jinja_run *fg_jinja_run_create(size_t bytes_max, uint64_t steps_max, int64_t now_s);
void fg_jinja_run_destroy(fg_jinja_run *run);

/* Makers of values. They return NULL when there is no memory for it, and the run then fails; NULL as an argument
 * is passed on. Texts are borrowed until the run is destroyed. */
fg_jinja_value *fg_jinja_text(fg_jinja_run *run, const char *text, size_t length, bool of_client);
fg_jinja_value *fg_jinja_none_value(fg_jinja_run *run);
fg_jinja_value *fg_jinja_bool(fg_jinja_run *run, bool value);
fg_jinja_value *fg_jinja_list(fg_jinja_run *run);
void fg_jinja_list_add(fg_jinja_run *run, fg_jinja_value *list, const fg_jinja_value *item);
fg_jinja_value *fg_jinja_map(fg_jinja_run *run);
/* `key` is borrowed too. A key that is there gets the new value. */
void fg_jinja_map_put(fg_jinja_run *run, fg_jinja_value *map, const char *key,
                      const fg_jinja_value *item);
/* A client's value; `node` must stay until the run is destroyed. */
fg_jinja_value *fg_jinja_json(fg_jinja_run *run, const fg_json_node *node);

/* A stretch of the rendered text, all of one writer. */
typedef struct fg_jinja_piece {
    const char *text;
    size_t length;
    bool of_client;
} fg_jinja_piece;

/* Renders with the members of the map `globals` as the template's variables; once per run. The pieces stay until the
 * run is destroyed. FG_BAD_INPUT: what the template raised, or what is wrong with the values that it was given, or
 * more steps or memory than there were; FG_AGAIN: the system has no memory. */
fg_status fg_jinja_render(const fg_jinja *template, fg_jinja_run *run,
                          const fg_jinja_value *globals, const fg_jinja_piece **pieces_out,
                          size_t *count_out, fg_error *err);

#endif
