/* The format of key files, and the making of keys. */
#include <string.h>

#include <zmq.h>

#include "common/base/fault.h"
#include "common/net/keys.h"

void fg_keys_wipe(void *memory, size_t size_bytes)
{
    explicit_bzero(memory, size_bytes);
}

bool fg_keys_name_valid(const char *name, size_t length)
{
    if (length == 0 || length > FG_LIMIT_NAME_BYTES || (length == 1 && name[0] == '.') ||
        (length == 2 && name[0] == '.' && name[1] == '.')) {
        return false;
    }
    for (size_t i = 0; i < length; i++) {
        char c = name[i];
        bool fine = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                    c == '.' || c == '_' || c == '-';
        if (!fine) {
            return false;
        }
    }
    return true;
}

fg_status fg_keys_make_pair(fg_key_pair *pair_out, fg_error *err)
{
    fg_key_pair pair = { 0 };
    if (fg_fault_hit() || zmq_curve_keypair(pair.public_key, pair.secret_key) != 0) {
        return fg_fail(err, FG_BROKEN, "no key pair: this build of ZeroMQ has no CURVE");
    }
    *pair_out = pair;
    fg_keys_wipe(&pair, sizeof pair);
    return FG_OK;
}

/* One line, its words found. */
typedef struct words {
    const char *start[4];
    size_t length[4];
    uint32_t count; /* 4: too many */
} words;

static void split(const char *line, size_t length, words *out)
{
    out->count = 0;
    for (size_t i = 0; i < length && out->count < 4;) {
        if (line[i] == ' ' || line[i] == '\t') {
            i++;
            continue;
        }
        out->start[out->count] = line + i;
        size_t begin = i;
        while (i < length && line[i] != ' ' && line[i] != '\t') {
            i++;
        }
        out->length[out->count++] = i - begin;
    }
}

static bool is_word(const words *line, uint32_t index, const char *word)
{
    return line->length[index] == strlen(word) &&
           memcmp(line->start[index], word, line->length[index]) == 0;
}

/* Fills `entry`; NULL when the line is good, else what is wrong with it. Never shows what it read. */
static const char *read_line(const words *line, fg_key_kind kind, fg_key_entry *entry)
{
    static const char *const labels[] = { [FG_KEY_SECRET] = "secret", [FG_KEY_PUBLIC] = "public" };
    if (!is_word(line, 0, labels[kind])) {
        if (is_word(line, 0, labels[!kind])) {
            return kind == FG_KEY_PUBLIC
                       ? "this is a secret key; it must not lie here: give the public one"
                       : "this is a public key; the secret one is needed";
        }
        return kind == FG_KEY_PUBLIC ? "a line is `public KEY` or `public KEY NAME`"
                                     : "a line is `secret KEY` or `secret KEY NAME`";
    }
    if (line->count < 2 || line->length[1] != FG_KEY_TEXT_BYTES) {
        return "a key has 40 characters";
    }
    if (line->count > 3) {
        return "more than a key and a name";
    }
    unsigned char bytes[FG_KEY_BYTES];
    memcpy(entry->key, line->start[1], FG_KEY_TEXT_BYTES);
    entry->key[FG_KEY_TEXT_BYTES] = '\0';
    bool fine = zmq_z85_decode(bytes, entry->key) != NULL;
    /* A group of five digits can say more than 32 bits: one key has one spelling. */
    char again[FG_KEY_TEXT_BYTES + 1];
    fine = fine && zmq_z85_encode(again, bytes, sizeof bytes) != NULL &&
           memcmp(again, entry->key, sizeof again) == 0;
    fg_keys_wipe(bytes, sizeof bytes);
    fg_keys_wipe(again, sizeof again);
    if (!fine) {
        return "the key is not Z85";
    }
    if (line->count == 3) {
        if (!fg_keys_name_valid(line->start[2], line->length[2])) {
            return "a name is 1 to 64 letters, digits, '.', '_' or '-'";
        }
        memcpy(entry->name, line->start[2], line->length[2]);
    }
    return NULL;
}

fg_status fg_keys_parse(const fg_key_text *text, fg_key_entry *entries, uint32_t max,
                        uint32_t *count_out, fg_error *err)
{
    uint32_t number = 0, count = 0;
    for (size_t at = 0; at < text->size_bytes;) {
        number++;
        const char *line = text->text + at;
        const char *end = memchr(line, '\n', text->size_bytes - at);
        const char *why = NULL;
        size_t length = end != NULL ? (size_t)(end - line) : text->size_bytes - at;
        words found;
        if (end == NULL) {
            why = "the last line has no newline: the file may be cut short";
        } else if (memchr(line, '\r', length) != NULL) {
            why = "a carriage return: save the file with plain newlines (sed -i 's/\\r$//')";
        } else if (memchr(line, '\0', length) != NULL) {
            why = "a NUL byte: this is no text file";
        } else if (length > 0 && line[0] != '#') {
            split(line, length, &found);
            if (found.count > 0 && count == max) {
                why = max == 1 ? "one key is all that may be here" : "too many keys";
            } else if (found.count > 0) {
                entries[count] = (fg_key_entry){ .line = number };
                why = read_line(&found, text->kind, &entries[count]);
                count += why == NULL;
            }
        }
        if (why != NULL) {
            return fg_fail(err, FG_BAD_INPUT, "%s:%u: %s", text->label, number, why);
        }
        at += length + 1;
    }
    *count_out = count;
    return FG_OK;
}
