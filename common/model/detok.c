#include "common/model/tokenizer.h"

#include <string.h>

#include "common/base/utf8.h"

static const char REPLACEMENT[] = "\xEF\xBF\xBD";
enum { REPLACEMENT_BYTES = 3 };

void fg_detok_init(fg_detok *detok, bool strip_leading_space)
{
    *detok = (fg_detok){ .started = !strip_leading_space };
}

static size_t put(char *out, size_t capacity, size_t at, const char *bytes, size_t count)
{
    FG_ASSERT(count <= capacity - at, "buffer smaller than fg_tokenizer_piece_max() + 8");
    memcpy(out + at, bytes, count);
    return at + count;
}

/* Adds one byte; what is pending is always the possible beginning of a character. */
static size_t push_byte(fg_detok *detok, char byte, char *out, size_t capacity, size_t at)
{
    detok->pending[detok->pending_count++] = byte;
    for (;;) {
        size_t count = detok->pending_count;
        if (fg_utf8_length(detok->pending, count) == count && count > 0) {
            detok->pending_count = 0;
            return put(out, capacity, at, detok->pending, count);
        }
        if (count == 0 || fg_utf8_is_prefix(detok->pending, count)) {
            return at;
        }
        /* Without its last byte this was a beginning: that is one U+FFFD, the byte starts anew. */
        at = put(out, capacity, at, REPLACEMENT, REPLACEMENT_BYTES);
        detok->pending[0] = byte;
        detok->pending_count = count == 1 ? 0 : 1;
    }
}

size_t fg_detok_push(fg_detok *detok, const fg_tokenizer *tokenizer, uint32_t id, char *out,
                     size_t capacity)
{
    size_t length;
    const char *piece = fg_tokenizer_piece(tokenizer, id, false, &length);
    size_t at = 0;
    bool strip = !detok->started && fg_tokenizer_adds_space(tokenizer);
    for (size_t i = 0; i < length; i++) {
        bool leading_space = strip && i == 0 && piece[i] == ' ';
        detok->started = true;
        if (!leading_space) {
            at = push_byte(detok, piece[i], out, capacity, at);
        }
    }
    return at;
}

size_t fg_detok_finish(fg_detok *detok, char *out, size_t capacity)
{
    size_t at = 0;
    if (detok->pending_count > 0) {
        at = put(out, capacity, at, REPLACEMENT, REPLACEMENT_BYTES);
        detok->pending_count = 0;
    }
    return at;
}
