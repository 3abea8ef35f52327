/*
 * small_vocab - model files in memory that hold nothing but a small vocabulary, for tests that
 * know every token. The file's bytes are appended to `out`.
 */
#ifndef FORGE_TESTS_SUPPORT_SMALL_VOCAB_H
#define FORGE_TESTS_SUPPORT_SMALL_VOCAB_H

#include <stdbool.h>
#include <stdint.h>

#include "common/base/buf.h"

/* Byte-level BPE: ids 0..255 are the bytes in order, then SMALL_BPE_*. `chat_template` may be NULL. */
enum {
    SMALL_BPE_HE = 256,
    SMALL_BPE_LL,
    SMALL_BPE_HELL,
    SMALL_BPE_HELLO,
    SMALL_BPE_SPACE_W,
    SMALL_BPE_AA,
    SMALL_BPE_AAAA,
    SMALL_BPE_LO,
    SMALL_BPE_END_OF_TEXT, /* control: BOS and EOS */
    SMALL_BPE_IM_START,    /* control */
    SMALL_BPE_IM_END,      /* marked normal by mistake: must count as control */
    SMALL_BPE_IM,          /* control "<|im", a beginning of the two above */
    SMALL_BPE_TOOL,        /* user-defined "<tool>" */
    SMALL_BPE_USER,        /* control "<|user|>" */
    SMALL_BPE_COUNT,
};
void small_bpe(fg_buf *out, const char *pre, const char *chat_template);
/* With up to SMALL_BPE_MORE_MAX control tokens more: ids SMALL_BPE_COUNT and up. */
enum { SMALL_BPE_MORE_MAX = 4 };
void small_bpe_with(fg_buf *out, const char *pre, const char *chat_template,
                    const char *const *controls, size_t control_count);

/* SPM: <unk> 0, <s> 1, </s> 2, then the 256 bytes, then SMALL_SPM_*. */
enum {
    SMALL_SPM_SPACE = 259,
    SMALL_SPM_A,
    SMALL_SPM_B,
    SMALL_SPM_AB,
    SMALL_SPM_SPACE_A,
    SMALL_SPM_SPACE_AB,
    SMALL_SPM_BA,
    SMALL_SPM_LESS,
    SMALL_SPM_SLASH_S_MORE, /* "/s>": with "<" it would spell the control token </s> */
    SMALL_SPM_SLASH,
    SMALL_SPM_S,
    SMALL_SPM_MORE,
    SMALL_SPM_S_MORE,
    SMALL_SPM_E_ACUTE,
    SMALL_SPM_COUNT,
};
void small_spm(fg_buf *out, bool add_space_prefix);

#endif
