/*
 * Any bytes as a file of API keys. What is accepted has names, scopes and ends that the text shows, and reads the same
 * when it is written out again; what is refused is explained with its line.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/buf.h"
#include "common/net/api_keys.h"
#include "common/net/keys.h"

enum { KEYS_MAX = 16 };

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes);

static void write_entry(fg_buf *text, const fg_api_entry *entry)
{
    static const struct {
        uint32_t scope;
        const char *name;
    } scopes[] = { { FG_API_INFER, "infer" },
                   { FG_API_METRICS, "metrics" },
                   { FG_API_ADMIN, "admin" } };
    const char *comma = "";
    FG_ASSERT(fg_keys_name_valid(entry->name, strlen(entry->name)), "a bad name");
    FG_ASSERT(entry->scopes != 0 && (entry->scopes & ~(uint32_t)FG_API_ALL) == 0, "a bad scope");
    fg_buf_puts(text, "key ");
    for (size_t i = 0; i < FG_API_DIGEST_BYTES; i++) {
        fg_buf_printf(text, "%02x", entry->digest[i]);
    }
    fg_buf_printf(text, " %s ", entry->name);
    for (size_t i = 0; i < sizeof scopes / sizeof scopes[0]; i++) {
        if ((entry->scopes & scopes[i].scope) != 0) {
            fg_buf_printf(text, "%s%s", comma, scopes[i].name);
            comma = ",";
        }
    }
    if (entry->until_s != INT64_MAX) {
        FG_ASSERT(entry->until_s > 0 && entry->until_s % 86400 == 0, "no whole day");
        time_t last = (time_t)(entry->until_s - 1);
        struct tm day;
        FG_ASSERT(gmtime_r(&last, &day) != NULL);
        fg_buf_printf(text, " until %04d-%02d-%02d", day.tm_year + 1900, day.tm_mon + 1,
                      day.tm_mday);
    }
    fg_buf_putc(text, '\n');
}

static void write_again(const fg_api_entry *entries, uint32_t count)
{
    fg_api_entry again[KEYS_MAX];
    uint32_t again_count = 0;
    fg_error err;
    fg_buf text;
    fg_buf_init(&text, 0);
    for (uint32_t i = 0; i < count; i++) {
        write_entry(&text, &entries[i]);
    }
    FG_ASSERT(fg_api_keys_parse("again", text.data == NULL ? "" : text.data, text.size, again,
                                KEYS_MAX, &again_count, &err) == FG_OK,
              "%s", err.text);
    FG_ASSERT(again_count == count, "another number of keys");
    for (uint32_t i = 0; i < count; i++) {
        FG_ASSERT(memcmp(again[i].digest, entries[i].digest, FG_API_DIGEST_BYTES) == 0 &&
                      strcmp(again[i].name, entries[i].name) == 0 &&
                      again[i].scopes == entries[i].scopes &&
                      again[i].until_s == entries[i].until_s,
                  "another key");
    }
    fg_buf_deinit(&text);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes)
{
    /* A copy of exactly this size, so that reading past its end is seen. */
    char *copy = malloc(size_bytes + (size_bytes == 0));
    if (copy == NULL) {
        return 0;
    }
    memcpy(copy, bytes, size_bytes);
    fg_api_entry entries[KEYS_MAX];
    uint32_t count = UINT32_MAX;
    fg_error err = { 0 };
    memset(entries, 0, sizeof entries);
    fg_status status = fg_api_keys_parse("file", copy, size_bytes, entries, KEYS_MAX, &count, &err);
    if (status == FG_OK) {
        FG_ASSERT(count <= KEYS_MAX, "too many keys");
        write_again(entries, count);
    } else {
        FG_ASSERT(status == FG_BAD_INPUT && strncmp(err.text, "file:", 5) == 0, "no line named");
    }
    free(copy);
    return 0;
}
