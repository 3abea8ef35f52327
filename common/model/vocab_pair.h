/*
 * vocab_pair - whether two models speak of the same tokens: what one of them chooses can be said to the other as a number.
 * Pure.
 */
#ifndef FORGE_COMMON_MODEL_VOCAB_PAIR_H
#define FORGE_COMMON_MODEL_VOCAB_PAIR_H

#include "common/base/status.h"
#include "common/model/weights.h"

/* FG_BAD_INPUT, saying what differs first: kind, number, texts, kinds of tokens, or those that end an answer. Weights
 * without a vocabulary match nothing. One of them may have more tokens at the end than the other, if these are unused:
 * families of models pad their vocabularies differently. */
fg_status fg_vocab_pair_check(const fg_weights *model, const fg_weights *draft, fg_error *err);

#endif
