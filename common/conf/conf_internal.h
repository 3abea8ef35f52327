/*
 * conf_internal - shared by the files of this room.
 */
#ifndef FORGE_COMMON_CONF_CONF_INTERNAL_H
#define FORGE_COMMON_CONF_CONF_INTERNAL_H

#include "common/conf/conf.h"

/* Parses `text` into the member of `config`. `source` is how the user wrote it ("--port" or
 * "FORGE_PORT") and begins the error line. */
fg_status fg_conf_set(const fg_option *option, const char *source, const char *text, void *config,
                      fg_error *err);

/* "--kv-blocks" -> "FORGE_KV_BLOCKS"; `out` has room for FG_CONF_ENV_NAME_MAX bytes. */
enum { FG_CONF_ENV_NAME_MAX = 80 };
void fg_conf_env_name(const char *name, char *out);

/* What stands after the flag in the help: "N", "WORD", ...; "" for a switch. */
const char *fg_conf_value_name(const fg_option *option);
/* "standalone|router|..." without aliases. */
void fg_conf_choice_words(const fg_option *option, fg_buf *out);

#endif
