/*
 * json_text - a parsed JSON value as text again, on one line. Pure.
 */
#ifndef FORGE_CLI_JSON_TEXT_H
#define FORGE_CLI_JSON_TEXT_H

#include "common/base/buf.h"
#include "common/base/json.h"

/* Members keep their order, numbers their value to the last bit. False: out of memory. */
bool fg_json_text_write(const fg_json_node *node, fg_buf *out);

#endif
