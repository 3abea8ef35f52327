#include "common/net/api_keys.h"

#include <string.h>
#include <strings.h>
#include <time.h>

#include <sodium.h>

#include "common/base/fault.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/net/key_file.h"
#include "common/net/keys.h"

#define PREFIX "forge-"
enum { DAY_S = 24 * 3600, SHORT_KEY_BYTES = 20, RANDOM_BYTES = 32 };

struct fg_api_keys {
    char *file; /* NULL: none */
    fg_api_entry plain;
    bool has_plain;
    fg_api_entry *entries; /* the file's */
    uint32_t count;
};

static bool ready(void)
{
    return !fg_fault_hit() && sodium_init() >= 0;
}

static void digest(const char *text, size_t length, uint8_t digest_out[FG_API_DIGEST_BYTES])
{
    (void)crypto_generichash(digest_out, FG_API_DIGEST_BYTES, (const unsigned char *)text, length,
                             NULL, 0);
}

/* --- the format --- */

uint32_t fg_api_scopes_parse(const char *text, size_t length)
{
    static const struct {
        const char *name;
        uint32_t scope;
    } all[] = { { "infer", FG_API_INFER },
                { "metrics", FG_API_METRICS },
                { "admin", FG_API_ADMIN },
                { "all", FG_API_ALL } };
    uint32_t scopes = 0;
    for (size_t at = 0; at <= length;) {
        const char *comma = memchr(text + at, ',', length - at);
        size_t bytes = comma != NULL ? (size_t)(comma - text) - at : length - at;
        uint32_t scope = 0;
        for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
            if (strlen(all[i].name) == bytes && memcmp(all[i].name, text + at, bytes) == 0) {
                scope = all[i].scope;
            }
        }
        if (scope == 0) {
            return 0;
        }
        scopes |= scope;
        at += bytes + 1;
    }
    return scopes;
}

static int digits(const char *text, size_t count)
{
    int value = 0;
    for (size_t i = 0; i < count; i++) {
        if (text[i] < '0' || text[i] > '9') {
            return -1;
        }
        value = 10 * value + (text[i] - '0');
    }
    return value;
}

bool fg_api_day_parse(const char *text, size_t length, int64_t *until_s_out)
{
    if (length != 10 || text[4] != '-' || text[7] != '-') {
        return false;
    }
    int year = digits(text, 4), month = digits(text + 5, 2), day = digits(text + 8, 2);
    if (year < 1970 || month < 1 || day < 1) {
        return false;
    }
    struct tm wanted = { .tm_year = year - 1900, .tm_mon = month - 1, .tm_mday = day };
    struct tm same = wanted;
    int64_t first_s = (int64_t)timegm(&same); /* a day that is none becomes another one */
    *until_s_out = first_s + DAY_S;
    return same.tm_year == wanted.tm_year && same.tm_mon == month - 1 && same.tm_mday == day;
}

/* One way of writing each digest: small letters. */
static bool read_digest(const char *text, size_t length, uint8_t digest_out[FG_API_DIGEST_BYTES])
{
    size_t bytes = 0;
    if (length != FG_API_DIGEST_TEXT_BYTES) {
        return false;
    }
    for (size_t i = 0; i < length; i++) {
        if (text[i] >= 'A' && text[i] <= 'F') {
            return false;
        }
    }
    return sodium_hex2bin(digest_out, FG_API_DIGEST_BYTES, text, length, NULL, &bytes, NULL) == 0 &&
           bytes == FG_API_DIGEST_BYTES;
}

typedef struct reading {
    fg_api_entry *entries;
    uint32_t max, count;
} reading;

static const char *read_entry(const fg_key_line *line, fg_api_entry *entry)
{
    if (!fg_key_word_is(line, 0, "key") || line->count < 3) {
        return "a line is `key DIGEST NAME [SCOPE,SCOPE] [until YYYY-MM-DD]`";
    }
    if (!read_digest(line->start[1], line->length[1], entry->digest)) {
        return "a digest is 64 digits of 0 to 9 and a to f, BLAKE2b-256 of the key "
               "(`forge keygen --api` makes both)";
    }
    if (!fg_keys_name_valid(line->start[2], line->length[2])) {
        return "a name is 1 to 64 letters, digits, '.', '_' or '-'";
    }
    memcpy(entry->name, line->start[2], line->length[2]);
    uint32_t at = 3;
    if (at < line->count && !fg_key_word_is(line, at, "until")) {
        entry->scopes = fg_api_scopes_parse(line->start[at], line->length[at]);
        if (entry->scopes == 0) {
            return "scopes are infer, metrics, admin or all, with commas between them and no "
                   "spaces";
        }
        at++;
    }
    if (at == line->count) {
        return NULL;
    }
    if (!fg_key_word_is(line, at, "until") || line->count != at + 2 ||
        !fg_api_day_parse(line->start[at + 1], line->length[at + 1], &entry->until_s)) {
        return "the line ends with `until YYYY-MM-DD`, the key's last day, or without it";
    }
    return NULL;
}

static const char *on_line(void *ctx, const fg_key_line *line)
{
    reading *r = ctx;
    if (r->count == r->max) {
        return "too many keys";
    }
    fg_api_entry *entry = &r->entries[r->count];
    *entry = (fg_api_entry){ .scopes = FG_API_INFER, .until_s = INT64_MAX };
    const char *why = read_entry(line, entry);
    for (uint32_t i = 0; why == NULL && i < r->count; i++) {
        if (memcmp(r->entries[i].digest, entry->digest, sizeof entry->digest) == 0) {
            why = "the same key once more";
        }
    }
    r->count += why == NULL;
    return why;
}

fg_status fg_api_keys_parse(const char *label, const char *text, size_t size_bytes,
                            fg_api_entry *entries, uint32_t max, uint32_t *count_out, fg_error *err)
{
    reading r = { .entries = entries, .max = max };
    fg_status status = fg_key_lines(label, text, size_bytes, on_line, &r, err);
    if (status == FG_OK) {
        *count_out = r.count;
    }
    return status;
}

fg_status fg_api_key_make(char key_out[FG_API_KEY_TEXT_BYTES + 1],
                          char digest_out[FG_API_DIGEST_TEXT_BYTES + 1], fg_error *err)
{
    uint8_t bytes[RANDOM_BYTES], sum[FG_API_DIGEST_BYTES];
    size_t prefix = sizeof PREFIX - 1;
    if (!ready()) {
        return fg_fail(err, FG_BROKEN, "no key: libsodium could not start");
    }
    randombytes_buf(bytes, sizeof bytes);
    memcpy(key_out, PREFIX, prefix);
    sodium_bin2base64(key_out + prefix, FG_API_KEY_TEXT_BYTES + 1 - prefix, bytes, sizeof bytes,
                      sodium_base64_VARIANT_URLSAFE_NO_PADDING);
    digest(key_out, strlen(key_out), sum);
    sodium_bin2hex(digest_out, FG_API_DIGEST_TEXT_BYTES + 1, sum, sizeof sum);
    fg_keys_wipe(bytes, sizeof bytes);
    return FG_OK;
}

/* --- the keys in force --- */

/* An operator who wonders why nobody is let in finds it in the log. */
static void tell_ended(const fg_api_keys *keys)
{
    int64_t now_s = (int64_t)time(NULL);
    for (uint32_t i = 0; i < keys->count; i++) {
        if (keys->entries[i].until_s <= now_s) {
            fg_warn("api-keys", "event=api_key_ended name=%s", keys->entries[i].name);
        }
    }
}

fg_status fg_api_keys_reload(fg_api_keys *keys, fg_error *err)
{
    FG_ASSERT(keys->file != NULL, "there is no file");
    char *text = NULL;
    size_t size = 0;
    uint32_t count = 0;
    fg_api_entry *entries = fg_mem_array(FG_LIMIT_KEYS, sizeof *entries);
    if (entries == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for %s", keys->file);
    }
    fg_status status = fg_key_file_read(
        keys->file, false, " (`forge keygen --api FILE --name NAME` makes it)", &text, &size, err);
    if (status == FG_OK) {
        status = fg_api_keys_parse(keys->file, text, size, entries, FG_LIMIT_KEYS, &count, err);
        fg_key_file_drop(text);
    }
    if (status != FG_OK) {
        fg_mem_free(entries);
        return status;
    }
    fg_mem_free(keys->entries);
    keys->entries = entries;
    keys->count = count;
    tell_ended(keys);
    return FG_OK;
}

static fg_status take_plain(fg_api_keys *keys, const char *key, fg_error *err)
{
    size_t length = strlen(key);
    for (size_t i = 0; i < length; i++) {
        if (key[i] <= ' ' || key[i] > '~') {
            return fg_fail(err, FG_BAD_INPUT,
                           "--api-key: a key has no spaces, and ASCII's characters alone");
        }
    }
    if (length == 0 || length > FG_API_KEY_BYTES_MAX) {
        return fg_fail(err, FG_BAD_INPUT, "--api-key: a key has 1 to %u characters",
                       FG_API_KEY_BYTES_MAX);
    }
    if (length < SHORT_KEY_BYTES) {
        fg_warn("api-keys",
                "event=short_api_key bytes=%zu why=\"it can be guessed: `forge keygen "
                "--api` makes good ones\"",
                length);
    }
    keys->has_plain = true;
    keys->plain = (fg_api_entry){ .scopes = FG_API_ALL, .until_s = INT64_MAX };
    digest(key, length, keys->plain.digest);
    return FG_OK;
}

fg_status fg_api_keys_open(const fg_api_keys_options *options, fg_api_keys **keys_out,
                           fg_error *err)
{
    if (!ready()) {
        return fg_fail(err, FG_BROKEN, "no API keys: libsodium could not start");
    }
    fg_api_keys *keys = fg_mem_alloc(sizeof *keys);
    if (keys == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for the API keys");
    }
    fg_status status = options->key != NULL ? take_plain(keys, options->key, err) : FG_OK;
    if (status == FG_OK && options->file != NULL) {
        keys->file = fg_mem_strdup(options->file);
        status = keys->file == NULL ? fg_fail(err, FG_AGAIN, "out of memory for the API keys")
                                    : fg_api_keys_reload(keys, err);
    }
    if (status != FG_OK) {
        fg_api_keys_close(keys);
        return status;
    }
    *keys_out = keys;
    return FG_OK;
}

void fg_api_keys_close(fg_api_keys *keys)
{
    if (keys != NULL) {
        fg_mem_free(keys->file);
        fg_mem_free(keys->entries);
        fg_mem_free(keys);
    }
}

uint32_t fg_api_keys_count(const fg_api_keys *keys)
{
    return keys->count + keys->has_plain;
}

bool fg_api_keys_have_file(const fg_api_keys *keys)
{
    return keys != NULL && keys->file != NULL;
}

/* In words, without a way out before the end: libsodium's goes byte by byte, 0.1 ms for a full list. */
static bool is_same(const uint8_t a[FG_API_DIGEST_BYTES], const uint8_t b[FG_API_DIGEST_BYTES])
{
    uint64_t x[FG_API_DIGEST_BYTES / 8], y[FG_API_DIGEST_BYTES / 8], differ = 0;
    memcpy(x, a, sizeof x);
    memcpy(y, b, sizeof y);
    for (size_t i = 0; i < sizeof x / sizeof x[0]; i++) {
        differ |= x[i] ^ y[i];
    }
    return differ == 0;
}

/* The key that a header shows; "" for none. */
static const char *shown_key(const char *authorization)
{
    static const char scheme[] = "bearer";
    size_t length = sizeof scheme - 1;
    if (authorization == NULL || strncasecmp(authorization, scheme, length) != 0 ||
        authorization[length] != ' ') {
        return "";
    }
    return authorization + length + strspn(authorization + length, " ");
}

fg_api_verdict fg_api_keys_check(const fg_api_keys *keys, const char *authorization, uint32_t scope,
                                 int64_t unix_s, const char **name_out)
{
    *name_out = "";
    if (keys == NULL) {
        return FG_API_FINE;
    }
    uint8_t sum[FG_API_DIGEST_BYTES];
    const char *key = shown_key(authorization);
    digest(key, strnlen(key, FG_API_KEY_BYTES_MAX + 1), sum);
    const fg_api_entry *found = NULL;
    if (keys->has_plain && is_same(sum, keys->plain.digest)) {
        found = &keys->plain;
    }
    for (uint32_t i = 0; i < keys->count; i++) { /* to the end, wherever it is */
        if (is_same(sum, keys->entries[i].digest)) {
            found = &keys->entries[i];
        }
    }
    if (found == NULL || unix_s >= found->until_s) {
        return scope == FG_API_ANYONE ? FG_API_FINE : FG_API_UNKNOWN;
    }
    *name_out = found->name;
    return (found->scopes & scope) == scope ? FG_API_FINE : FG_API_NOT_FOR;
}
