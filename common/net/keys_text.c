/* The format of key files, and the making of keys. */
#include <string.h>

#include <zmq.h>

#include "common/base/fault.h"
#include "common/net/key_file.h"
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

/* Fills `entry`; NULL when the line is good, else what is wrong with it. Never shows what it read. */
static const char *read_line(const fg_key_line *line, fg_key_kind kind, fg_key_entry *entry)
{
    static const char *const labels[] = { [FG_KEY_SECRET] = "secret", [FG_KEY_PUBLIC] = "public" };
    if (!fg_key_word_is(line, 0, labels[kind])) {
        if (fg_key_word_is(line, 0, labels[!kind])) {
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

typedef struct reading {
    fg_key_kind kind;
    fg_key_entry *entries;
    uint32_t max, count;
} reading;

static const char *on_line(void *ctx, const fg_key_line *line)
{
    reading *r = ctx;
    if (r->count == r->max) {
        return r->max == 1 ? "one key is all that may be here" : "too many keys";
    }
    fg_key_entry *entry = &r->entries[r->count];
    *entry = (fg_key_entry){ .line = line->number };
    const char *why = read_line(line, r->kind, entry);
    r->count += why == NULL;
    return why;
}

fg_status fg_keys_parse(const fg_key_text *text, fg_key_entry *entries, uint32_t max,
                        uint32_t *count_out, fg_error *err)
{
    reading r = { .kind = text->kind, .entries = entries, .max = max };
    fg_status status = fg_key_lines(text->label, text->text, text->size_bytes, on_line, &r, err);
    if (status == FG_OK) {
        *count_out = r.count;
    }
    return status;
}
