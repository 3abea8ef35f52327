/*
 * chat_template - recognises the ChatML family among the templates that model files carry. Part of
 * chat. Pure.
 *
 * A template is brought to a plain form (Jinja's white-space control applied, string literals that
 * are printed turned into text, subscripts into dots) and compared with the known shapes. It is not
 * run: what is not one of them is not guessed at.
 */
#ifndef FORGE_COMMON_MODEL_CHAT_TEMPLATE_H
#define FORGE_COMMON_MODEL_CHAT_TEMPLATE_H

#include <stdbool.h>
#include <stddef.h>

#include "common/base/buf.h"

/* Appends the plain form of `source` to `out`; false when it uses syntax outside of what the known
 * shapes need, or memory ran out (out->failed). */
bool fg_chat_template_plain(const char *source, size_t length, fg_buf *out);

/* Whether a plain form is ChatML. `system_out` is set to the system message that it puts before a
 * conversation that has none (inside `plain`), NULL for none. */
bool fg_chat_template_is_chatml(const char *plain, size_t length, const char **system_out,
                                size_t *system_length_out);

#endif
