#include "common/conf/conf_internal.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static fg_status refuse(const fg_option *option, const char *source, const char *text,
                        const char *wanted, fg_error *err)
{
    return fg_fail(err, FG_BAD_INPUT, "%s: '%.60s' is not %s", source, text, wanted);
}

static fg_status out_of_bounds(const fg_option *option, const char *source, const char *text,
                               fg_error *err)
{
    return fg_fail(err, FG_BAD_INPUT, "%s: %.60s is out of range, give %lld to %lld", source, text,
                   (long long)option->min, (long long)option->max);
}

static bool has_bounds(const fg_option *option)
{
    return option->min != 0 || option->max != 0;
}

/* Digits only: strtoull alone would also take signs, spaces and wrap negatives around. */
static bool read_digits(const char *text, uint64_t *value_out, const char **rest_out)
{
    uint64_t value = 0;
    const char *at = text;
    for (; *at >= '0' && *at <= '9'; at++) {
        if (__builtin_mul_overflow(value, 10u, &value) ||
            __builtin_add_overflow(value, (uint64_t)(*at - '0'), &value)) {
            return false;
        }
    }
    *value_out = value;
    *rest_out = at;
    return at != text;
}

static fg_status set_bool(const fg_option *option, const char *source, const char *text, bool *out,
                          fg_error *err)
{
    static const struct {
        const char *word;
        bool value;
    } words[] = {
        { "true", true }, { "false", false }, { "1", true },  { "0", false },
        { "yes", true },  { "no", false },    { "on", true }, { "off", false },
    };
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (strcasecmp(text, words[i].word) == 0) {
            *out = words[i].value;
            return FG_OK;
        }
    }
    return refuse(option, source, text, "true or false", err);
}

static fg_status set_number(const fg_option *option, const char *source, const char *text,
                            uint64_t *out, fg_error *err)
{
    uint64_t value;
    const char *rest;
    if (!read_digits(text, &value, &rest)) {
        return refuse(option, source, text, "a whole number in range", err);
    }
    if (option->type == FG_OPTION_SIZE && *rest != '\0') {
        static const char suffixes[] = "KMGT";
        const char *suffix = strchr(suffixes, *rest >= 'a' ? *rest - 32 : *rest);
        unsigned shift = suffix == NULL ? 0 : 10 * (unsigned)(suffix - suffixes + 1);
        if (suffix == NULL || value > UINT64_MAX >> shift) {
            return refuse(option, source, text, "a size such as 512M or 2G", err);
        }
        value <<= shift;
        rest++;
        /* "KiB" and "KB" are written too. */
        rest += *rest == 'i' ? 1 : 0;
        rest += *rest == 'B' || *rest == 'b' ? 1 : 0;
    }
    if (*rest != '\0') {
        return refuse(
            option, source, text,
            option->type == FG_OPTION_SIZE ? "a size such as 512M or 2G" : "a whole number", err);
    }
    if (has_bounds(option) && (value < (uint64_t)option->min || value > (uint64_t)option->max)) {
        return out_of_bounds(option, source, text, err);
    }
    if (option->type == FG_OPTION_U32 && value > UINT32_MAX) {
        return refuse(option, source, text, "a number below 2^32", err);
    }
    *out = value;
    return FG_OK;
}

static fg_status set_float(const fg_option *option, const char *source, const char *text,
                           double *out, fg_error *err)
{
    char *rest;
    double value = strtod(text, &rest);
    if (rest == text || *rest != '\0' || !isfinite(value)) {
        return refuse(option, source, text, "a number", err);
    }
    if (has_bounds(option) && (value < (double)option->min || value > (double)option->max)) {
        return out_of_bounds(option, source, text, err);
    }
    *out = value;
    return FG_OK;
}

static fg_status set_choice(const fg_option *option, const char *source, const char *text, int *out,
                            fg_error *err)
{
    for (const fg_conf_choice *choice = option->choices; choice->word != NULL; choice++) {
        if (strcmp(choice->word, text) == 0) {
            *out = choice->value;
            return FG_OK;
        }
    }
    fg_buf words;
    fg_buf_init(&words, FG_ERROR_TEXT_MAX / 2);
    fg_conf_choice_words(option, &words);
    fg_status status = fg_fail(err, FG_BAD_INPUT, "%s: '%.60s' is not one of %s", source, text,
                               words.data == NULL ? "the known words" : words.data);
    fg_buf_deinit(&words);
    return status;
}

static fg_status set_names(const fg_option *option, const char *source, const char *text,
                           fg_conf_names *out, fg_error *err)
{
    out->count = 0;
    while (*text != '\0') {
        size_t length = strcspn(text, ",");
        if (out->count == FG_LIMIT_WORKERS) {
            return fg_fail(err, FG_BAD_INPUT, "%s: more than %u names", source, FG_LIMIT_WORKERS);
        }
        bool fine = length > 0 && length <= FG_LIMIT_NAME_BYTES;
        for (size_t i = 0; fine && i < length; i++) {
            fine = text[i] > 0x20 && text[i] < 0x7F && text[i] != '#';
        }
        if (!fine) {
            return fg_fail(err, FG_BAD_INPUT,
                           "%s: give names separated by commas, each 1 to %u printable characters "
                           "without spaces or '#'",
                           source, FG_LIMIT_NAME_BYTES);
        }
        for (uint32_t i = 0; i < out->count; i++) {
            if (strlen(out->items[i]) == length && memcmp(out->items[i], text, length) == 0) {
                return fg_fail(err, FG_BAD_INPUT, "%s: the name %.*s is given twice", source,
                               (int)length, text);
            }
        }
        memcpy(out->items[out->count], text, length);
        out->items[out->count][length] = '\0';
        out->count++;
        text += length;
        if (*text == ',' && *++text == '\0') {
            return fg_fail(err, FG_BAD_INPUT, "%s: a name is missing after the last comma", source);
        }
    }
    return FG_OK;
}

static bool read_port(const char *text, uint64_t *port_out)
{
    const char *rest;
    return read_digits(text, port_out, &rest) && *rest == '\0' && *port_out <= 65535;
}

static fg_status set_address(const fg_option *option, const char *source, const char *text,
                             fg_conf_address *out, fg_error *err)
{
    static const char wanted[] = "an address such as 127.0.0.1:8090";
    const char *host = strncmp(text, "tcp://", 6) == 0 ? text + 6 : text;
    const char *colon = strrchr(host, ':');
    uint64_t port;
    if (*text == '\0') {
        *out = (fg_conf_address){ 0 };
        return FG_OK;
    }
    if (colon == NULL || !read_port(colon + 1, &port)) {
        return refuse(option, source, text, wanted, err);
    }
    size_t length = (size_t)(colon - host);
    bool bracketed = length >= 2 && host[0] == '[' && host[length - 1] == ']';
    if (bracketed) {
        host++;
        length -= 2;
    }
    bool fine = length > 0 && length <= FG_CONF_HOST_MAX;
    for (size_t i = 0; fine && i < length; i++) {
        /* An IPv6 address needs its brackets: otherwise its last group would read as the port. */
        fine = host[i] > 0x20 && host[i] < 0x7F && strchr("[]/", host[i]) == NULL &&
               (host[i] != ':' || bracketed);
    }
    if (!fine) {
        return refuse(option, source, text, wanted, err);
    }
    memset(out, 0, sizeof *out);
    memcpy(out->host, host, length);
    out->port = (uint16_t)port;
    return FG_OK;
}

static fg_status set_addresses(const fg_option *option, const char *source, const char *text,
                               fg_conf_addresses *out, fg_error *err)
{
    fg_conf_addresses found = { .count = 0 };
    const char *at = text;
    while (*text != '\0') {
        char one[FG_CONF_HOST_MAX + 32];
        size_t length = strcspn(at, ",");
        if (found.count == FG_CONF_ADDRESSES_MAX) {
            return fg_fail(err, FG_BAD_INPUT, "%s: more than %d addresses", source,
                           FG_CONF_ADDRESSES_MAX);
        }
        if (length == 0 || length >= sizeof one) {
            return refuse(option, source, text, "addresses separated by commas", err);
        }
        memcpy(one, at, length);
        one[length] = '\0';
        fg_conf_address *address = &found.items[found.count];
        fg_status status = set_address(option, source, one, address, err);
        if (status != FG_OK) {
            return status;
        }
        for (uint32_t i = 0; i < found.count; i++) {
            if (found.items[i].port == address->port &&
                strcmp(found.items[i].host, address->host) == 0) {
                return fg_fail(err, FG_BAD_INPUT, "%s: %s is named twice", source, one);
            }
        }
        found.count++;
        at += length;
        if (*at == '\0') {
            break;
        }
        at++;
    }
    *out = found;
    return FG_OK;
}

static fg_status set_port(const fg_option *option, const char *source, const char *text,
                          int32_t *out, fg_error *err)
{
    uint64_t port;
    if (option->min < 0 && strcmp(text, "none") == 0) {
        *out = -1;
        return FG_OK;
    }
    if (!read_port(text, &port)) {
        return refuse(option, source, text,
                      option->min < 0 ? "a port, 0 to 65535, or none" : "a port, 0 to 65535", err);
    }
    *out = (int32_t)port;
    return FG_OK;
}

fg_status fg_conf_set(const fg_option *option, const char *source, const char *text, void *config,
                      fg_error *err)
{
    void *member = (char *)config + option->offset;
    uint64_t number;
    fg_status status;
    switch (option->type) {
    case FG_OPTION_BOOL:
        return set_bool(option, source, text, member, err);
    case FG_OPTION_U32:
        status = set_number(option, source, text, &number, err);
        if (status == FG_OK) {
            *(uint32_t *)member = (uint32_t)number;
        }
        return status;
    case FG_OPTION_U64:
    case FG_OPTION_SIZE:
        return set_number(option, source, text, member, err);
    case FG_OPTION_FLOAT:
        return set_float(option, source, text, member, err);
    case FG_OPTION_STRING:
        *(const char **)member = text;
        return FG_OK;
    case FG_OPTION_CHOICE:
        return set_choice(option, source, text, member, err);
    case FG_OPTION_NAMES:
        return set_names(option, source, text, member, err);
    case FG_OPTION_ADDRESS:
        return set_address(option, source, text, member, err);
    case FG_OPTION_ADDRESSES:
        return set_addresses(option, source, text, member, err);
    case FG_OPTION_PORT:
        return set_port(option, source, text, member, err);
    }
    FG_ASSERT(false, "option type %d", (int)option->type);
}
