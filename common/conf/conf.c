#include "common/conf/conf_internal.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "common/base/log.h"

static const char env_prefix[] = "FORGE_";

void fg_conf_env_name(const char *name, char *out)
{
    size_t used = (size_t)snprintf(out, FG_CONF_ENV_NAME_MAX, "%s", env_prefix);
    for (; *name != '\0' && used < FG_CONF_ENV_NAME_MAX - 1; name++) {
        out[used++] = *name == '-' ? '_' : (char)toupper((unsigned char)*name);
    }
    out[used] = '\0';
}

/* Edits (insert, delete, replace) that turn `a` into `b`; long names are cut, which only makes the
 * suggestion worse. */
static size_t edit_distance(const char *a, const char *b)
{
    enum { CUT = 40 };
    size_t row[CUT + 1];
    size_t a_length = strnlen(a, CUT);
    size_t b_length = strnlen(b, CUT);
    for (size_t j = 0; j <= b_length; j++) {
        row[j] = j;
    }
    for (size_t i = 1; i <= a_length; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= b_length; j++) {
            size_t above = row[j];
            size_t best = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
            best = above + 1 < best ? above + 1 : best;
            best = row[j - 1] + 1 < best ? row[j - 1] + 1 : best;
            diagonal = above;
            row[j] = best;
        }
    }
    return row[b_length];
}

/* The closest option name, or NULL when none is close enough to be meant. */
static const char *nearest(const fg_conf_spec *spec, const char *name)
{
    const char *best = NULL;
    size_t best_distance = strlen(name) / 3 + 2;
    for (size_t i = 0; i < spec->option_count; i++) {
        const char *names[] = { spec->options[i].name, spec->options[i].alias };
        for (size_t k = 0; k < 2 && names[k] != NULL; k++) {
            size_t distance = edit_distance(name, names[k]);
            if (distance < best_distance) {
                best_distance = distance;
                best = names[k];
            }
        }
    }
    return best;
}

static const fg_option *find(const fg_conf_spec *spec, const char *name, size_t length)
{
    for (size_t i = 0; i < spec->option_count; i++) {
        const fg_option *option = &spec->options[i];
        if ((strlen(option->name) == length && memcmp(option->name, name, length) == 0) ||
            (option->alias != NULL && strlen(option->alias) == length &&
             memcmp(option->alias, name, length) == 0)) {
            return option;
        }
    }
    return NULL;
}

const fg_option *fg_conf_find_brief(const fg_conf_spec *spec, const char *argument)
{
    if (argument[0] != '-' || argument[1] == '\0' || argument[2] != '\0') {
        return NULL;
    }
    for (size_t i = 0; i < spec->option_count; i++) {
        if (spec->options[i].brief == argument[1]) {
            return &spec->options[i];
        }
    }
    return NULL;
}

static fg_status unknown_flag(const fg_conf_spec *spec, const char *name, size_t length,
                              fg_error *err)
{
    char word[64];
    snprintf(word, sizeof word, "%.*s", (int)(length < 60 ? length : 60), name);
    const char *meant = nearest(spec, word);
    if (meant != NULL) {
        return fg_fail(err, FG_BAD_INPUT, "unknown flag --%s, did you mean --%s?", word, meant);
    }
    return fg_fail(err, FG_BAD_INPUT, "unknown flag --%s, see %s --help", word, spec->command);
}

static const char *environment_value(const char *const *environment, const char *name)
{
    char wanted[FG_CONF_ENV_NAME_MAX];
    fg_conf_env_name(name, wanted);
    size_t length = strlen(wanted);
    for (const char *const *entry = environment; entry != NULL && *entry != NULL; entry++) {
        if (strncmp(*entry, wanted, length) == 0 && (*entry)[length] == '=') {
            return *entry + length + 1;
        }
    }
    return NULL;
}

static fg_status set_from_environment(const fg_conf_spec *spec, const char *const *environment,
                                      void *config, fg_error *err)
{
    for (size_t i = 0; i < spec->option_count; i++) {
        const fg_option *option = &spec->options[i];
        /* The alias first: the proper name wins when both are set. */
        const char *names[] = { option->alias, option->name };
        for (size_t k = 0; k < 2; k++) {
            const char *value = names[k] == NULL ? NULL : environment_value(environment, names[k]);
            if (value == NULL || *value == '\0') {
                continue;
            }
            char source[FG_CONF_ENV_NAME_MAX];
            fg_conf_env_name(names[k], source);
            fg_status status = fg_conf_set(option, source, value, config, err);
            if (status != FG_OK) {
                return status;
            }
        }
    }
    return FG_OK;
}

/* A misspelt variable would otherwise be ignored without a word. */
static void warn_unknown_environment(const fg_conf_spec *spec, const char *const *environment)
{
    for (const char *const *entry = environment; entry != NULL && *entry != NULL; entry++) {
        size_t length = strcspn(*entry, "=");
        if (strncmp(*entry, env_prefix, sizeof env_prefix - 1) != 0) {
            continue;
        }
        bool known = false;
        for (size_t i = 0; !known && i < spec->option_count; i++) {
            char name[FG_CONF_ENV_NAME_MAX];
            const char *names[] = { spec->options[i].name, spec->options[i].alias };
            for (size_t k = 0; !known && k < 2 && names[k] != NULL; k++) {
                fg_conf_env_name(names[k], name);
                known = strlen(name) == length && memcmp(name, *entry, length) == 0;
            }
        }
        for (const char *const *other = spec->known_environment;
             !known && other != NULL && *other != NULL; other++) {
            known = strlen(*other) == length && memcmp(*other, *entry, length) == 0;
        }
        if (!known) {
            fg_warn("conf", "event=unknown_environment name=%.*s",
                    (int)(length < 100 ? length : 100), *entry);
        }
    }
}

static fg_status set_defaults(const fg_conf_spec *spec, void *config, fg_error *err)
{
    for (size_t i = 0; i < spec->option_count; i++) {
        const fg_option *option = &spec->options[i];
        if (option->type == FG_OPTION_STRING) {
            *(const char **)((char *)config + option->offset) = option->default_text;
            continue;
        }
        const char *text = option->default_text;
        if (text == NULL) {
            FG_ASSERT(option->type == FG_OPTION_NAMES || option->type == FG_OPTION_ADDRESS ||
                          option->type == FG_OPTION_ADDRESSES,
                      "--%s needs a default", option->name);
            text = "";
        }
        fg_status status = fg_conf_set(option, option->name, text, config, err);
        FG_ASSERT(status == FG_OK, "the default of --%s is refused", option->name);
    }
    return FG_OK;
}

/* Reads argv[*at] and, where the value is the next word, that one too. */
static fg_status set_from_argument(const fg_conf_spec *spec, const fg_conf_input *input, int *at,
                                   void *config, fg_error *err)
{
    const char *argument = input->argv[*at];
    const fg_option *option = fg_conf_find_brief(spec, argument);
    if (option == NULL && (strncmp(argument, "--", 2) != 0 || argument[2] == '\0')) {
        return fg_fail(err, FG_BAD_INPUT,
                       "unexpected argument '%.60s', flags begin with --: see "
                       "%s --help",
                       argument, spec->command);
    }
    const char *name = option == NULL ? argument + 2 : option->name;
    size_t length = strcspn(name, "=");
    option = option == NULL ? find(spec, name, length) : option;
    if (option == NULL) {
        return unknown_flag(spec, name, length, err);
    }
    const char *value = NULL;
    if (name[length] == '=') {
        value = name + length + 1;
    } else if (option->type == FG_OPTION_BOOL) {
        value = "true";
    } else if (*at + 1 < input->argc) {
        value = input->argv[++*at];
    } else {
        return fg_fail(err, FG_BAD_INPUT, "--%.*s needs a value: --%.*s %s", (int)length, name,
                       (int)length, name, fg_conf_value_name(option));
    }
    char source[FG_CONF_ENV_NAME_MAX];
    snprintf(source, sizeof source, "--%.*s", (int)length, name);
    return fg_conf_set(option, source, value, config, err);
}

fg_status fg_conf_parse(const fg_conf_spec *spec, const fg_conf_input *input, void *config,
                        fg_conf_asked *asked_out, fg_error *err)
{
    fg_status status = set_defaults(spec, config, err);
    *asked_out = (fg_conf_asked){ 0 };
    /* Help first, wherever it stands: someone who asks for it is not told about other mistakes. */
    for (int i = 0; i < input->argc; i++) {
        const char *argument = input->argv[i];
        if (strcmp(argument, "--help") == 0 || strcmp(argument, "-h") == 0) {
            asked_out->help = true;
            return FG_OK;
        }
        if (strncmp(argument, "--help=", 7) == 0) {
            *asked_out = (fg_conf_asked){ .help = true, .help_word = argument + 7 };
            return FG_OK;
        }
    }
    warn_unknown_environment(spec, input->environment);
    if (status == FG_OK) {
        status = set_from_environment(spec, input->environment, config, err);
    }
    for (int at = 0; status == FG_OK && at < input->argc; at++) {
        status = set_from_argument(spec, input, &at, config, err);
    }
    return status;
}
