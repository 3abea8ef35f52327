/*
 * least - how many ids a text has at least, told from its bytes without encoding it. Part of tokenizer.
 *
 * An id that begins at a byte covers no more bytes than the longest token that begins with this byte and the
 * next one. So the first n ids together reach no further than n jumps do that each begin at the best place
 * within reach. However the text is cut into tokens, it has no fewer.
 */
#ifndef FORGE_COMMON_MODEL_LEAST_H
#define FORGE_COMMON_MODEL_LEAST_H

#include <stddef.h>

#include "common/base/status.h"
#include "common/model/vocab.h"

/* Fills vocab->reach; the texts of all tokens are there. FG_AGAIN: out of memory. */
fg_status fg_least_build(fg_vocab *vocab, fg_error *err);
/* Of ordinary text, where SPM's spaces are spaces. One look at each byte. */
size_t fg_least_ids(const fg_vocab *vocab, const char *text, size_t length);

#endif
