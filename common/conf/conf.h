/*
 * conf - one table of options gives the flags, their environment twins, the help text and
 * docs/CONFIG.md. Pure but for the warning about unknown FORGE_ variables. Used before threads
 * start.
 *
 * A value comes from the flag, else from the environment, else from the table's default; a flag
 * given twice counts the last time. `--kv-blocks` is FORGE_KV_BLOCKS in the environment, where an
 * empty value counts as not set. Every row names a member of the caller's config struct by its
 * offset.
 */
#ifndef FORGE_COMMON_CONF_CONF_H
#define FORGE_COMMON_CONF_CONF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/base/buf.h"
#include "common/base/limits.h"
#include "common/base/status.h"

typedef enum fg_option_type {
    FG_OPTION_BOOL,      /* bool; `--x` alone means true */
    FG_OPTION_U32,       /* uint32_t */
    FG_OPTION_U64,       /* uint64_t */
    FG_OPTION_SIZE,      /* uint64_t bytes; K, M, G are 1024, 1024^2, 1024^3 */
    FG_OPTION_FLOAT,     /* double; min and max are whole numbers */
    FG_OPTION_STRING,    /* const char *, borrowed from where it was given; NULL: not given */
    FG_OPTION_CHOICE,    /* int: the chosen word's value */
    FG_OPTION_NAMES,     /* fg_conf_names: words separated by commas */
    FG_OPTION_ADDRESS,   /* fg_conf_address: host:port, tcp://host:port or [v6]:port */
    FG_OPTION_ADDRESSES, /* fg_conf_addresses: such, separated by commas */
    FG_OPTION_PORT,      /* int32_t: 0..65535, or -1 for `none` where min is -1 */
} fg_option_type;

enum { FG_CONF_HOST_MAX = 255 };

typedef struct fg_conf_names {
    uint32_t count;
    char items[FG_LIMIT_WORKERS][FG_LIMIT_NAME_BYTES + 1];
} fg_conf_names;

typedef struct fg_conf_address {
    char host[FG_CONF_HOST_MAX + 1]; /* without brackets; empty: not given */
    uint16_t port;
} fg_conf_address;

enum { FG_CONF_ADDRESSES_MAX = 8 };
typedef struct fg_conf_addresses {
    uint32_t count;
    fg_conf_address items[FG_CONF_ADDRESSES_MAX];
} fg_conf_addresses;

typedef struct fg_conf_choice {
    const char *word;
    int value; /* a second word with the same value is an alias of the first */
} fg_conf_choice;

typedef struct fg_option {
    const char *name;  /* "kv-blocks" */
    const char *alias; /* a second name with its own environment twin, or NULL */
    char brief;        /* 'm' for -m, or 0 */
    fg_option_type type;
    const char *default_text;      /* parsed like a given value; NULL: empty */
    int64_t min, max;              /* numbers, inclusive; both 0: no bounds */
    const fg_conf_choice *choices; /* FG_OPTION_CHOICE; ends with a NULL word */
    const char *group;             /* heading in the help; rows of a group are neighbours */
    const char *roles;             /* which modes use it, for the help; NULL: all */
    const char *value_name;        /* "N", "ADDR"; NULL: by type */
    const char *help;              /* sentences, without the default */
    size_t offset;                 /* offsetof(config struct, member) */
} fg_option;

typedef struct fg_conf_spec {
    const char *command; /* "forge serve" */
    const char *intro;   /* what the command does and how to begin; lines */
    const fg_option *options;
    size_t option_count;
    /* FORGE_ variables that mean something to others and are no mistake; ends with NULL; may be
     * NULL. */
    const char *const *known_environment;
} fg_conf_spec;

typedef struct fg_conf_input {
    int argc; /* what follows the command's name */
    const char *const *argv;
    const char *const *environment; /* "NAME=value", ends with NULL; may be NULL */
} fg_conf_input;

typedef struct fg_conf_asked {
    bool help;             /* --help, -h or --help=WORD was given */
    const char *help_word; /* NULL for all */
} fg_conf_asked;

/* Fills every option's member of *config (others stay). FG_BAD_INPUT is one line that says what to
 * do; *config is then partly filled. When help was asked for, only
 * the defaults are filled in. */
fg_status fg_conf_parse(const fg_conf_spec *spec, const fg_conf_input *input, void *config,
                        fg_conf_asked *asked_out, fg_error *err);

/* The option that "-m" means, or NULL. */
const fg_option *fg_conf_find_brief(const fg_conf_spec *spec, const char *argument);

/* Options whose name, alias, group or help contains `word` (any case), or all for NULL. Returns how
 * many were shown; the text says so when there were none. */
size_t fg_conf_render_help(const fg_conf_spec *spec, const char *word, fg_buf *out);
/* docs/CONFIG.md: one section per command, one table per group. */
void fg_conf_render_markdown(const fg_conf_spec *const *specs, size_t spec_count, fg_buf *out);

#endif
