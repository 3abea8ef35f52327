/*
 * Any bytes as a file of keys. The first byte says whether a secret is wanted and how many keys may be
 * there. What is accepted has exactly the keys and names that its text shows, and reads the same when it is
 * written out again; what is refused is explained with its line.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/net/keys.h"

enum { KEYS_MAX = 16 };

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes);

static void write_again(const fg_key_entry *entries, uint32_t count, fg_key_kind kind)
{
    static const char *const labels[] = { [FG_KEY_SECRET] = "secret", [FG_KEY_PUBLIC] = "public" };
    fg_key_entry again[KEYS_MAX];
    uint32_t again_count = 0;
    fg_error err;
    fg_buf text;
    fg_buf_init(&text, 0);
    for (uint32_t i = 0; i < count; i++) {
        FG_ASSERT(strlen(entries[i].key) == FG_KEY_TEXT_BYTES, "a key of another length");
        size_t length = strlen(entries[i].name);
        FG_ASSERT(length == 0 || fg_keys_name_valid(entries[i].name, length), "a bad name");
        fg_buf_printf(&text, "%s %s %s\n", labels[kind], entries[i].key, entries[i].name);
    }
    fg_key_text source = { "again", text.data == NULL ? "" : text.data, text.size, kind };
    FG_ASSERT(fg_keys_parse(&source, again, KEYS_MAX, &again_count, &err) == FG_OK, "%s", err.text);
    FG_ASSERT(again_count == count, "another number of keys");
    for (uint32_t i = 0; i < count; i++) {
        FG_ASSERT(strcmp(again[i].key, entries[i].key) == 0 &&
                      strcmp(again[i].name, entries[i].name) == 0,
                  "another key");
    }
    fg_buf_deinit(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes)
{
    if (size_bytes == 0) {
        return 0;
    }
    fg_key_kind kind = bytes[0] & 1 ? FG_KEY_PUBLIC : FG_KEY_SECRET;
    uint32_t max = 1 + (bytes[0] >> 1) % KEYS_MAX, count = UINT32_MAX;
    /* A copy of exactly this size, so that reading past its end is seen. */
    size_t length = size_bytes - 1;
    char *copy = malloc(length + (length == 0));
    if (copy == NULL) {
        return 0;
    }
    memcpy(copy, bytes + 1, length);
    fg_key_entry entries[KEYS_MAX];
    fg_error err = { 0 };
    fg_key_text text = { "file", copy, length, kind };
    fg_status status = fg_keys_parse(&text, entries, max, &count, &err);
    if (status == FG_OK) {
        FG_ASSERT(count <= max, "more keys than there is room for");
        write_again(entries, count, kind);
    } else {
        FG_ASSERT(status == FG_BAD_INPUT && count == UINT32_MAX &&
                      strncmp(err.text, "file:", 5) == 0,
                  "an unexplained refusal");
    }
    free(copy);
    return 0;
}
