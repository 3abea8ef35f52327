#include "common/conf/conf_internal.h"

#include <string.h>
#include <strings.h>

enum { HELP_WIDTH = 96, HELP_INDENT = 8 };

const char *fg_conf_value_name(const fg_option *option)
{
    static const char *const names[] = { "",     "N",     "N",    "SIZE",  "X",   "TEXT",
                                         "WORD", "NAMES", "ADDR", "ADDRS", "PORT" };
    return option->value_name != NULL ? option->value_name : names[option->type];
}

/* The first word that has this choice's value. */
static const char *proper_word(const fg_option *option, const fg_conf_choice *choice)
{
    const fg_conf_choice *first = option->choices;
    while (first->value != choice->value) {
        first++;
    }
    return first->word;
}

void fg_conf_choice_words(const fg_option *option, fg_buf *out)
{
    const char *between = "";
    for (const fg_conf_choice *choice = option->choices; choice->word != NULL; choice++) {
        if (proper_word(option, choice) == choice->word) {
            fg_buf_printf(out, "%s%s", between, choice->word);
            between = "|";
        }
    }
}

static bool contains(const char *text, const char *word)
{
    return text != NULL && strcasestr(text, word) != NULL;
}

static bool matches(const fg_option *option, const char *word)
{
    return word == NULL || contains(option->name, word) || contains(option->alias, word) ||
           contains(option->group, word) || contains(option->help, word);
}

/* Appends `text` in lines of HELP_WIDTH, each behind HELP_INDENT spaces. */
static void append_wrapped(const char *text, fg_buf *out)
{
    size_t column = 0;
    while (*text != '\0') {
        size_t length = strcspn(text, " ");
        if (column == 0 || column + 1 + length > HELP_WIDTH) {
            fg_buf_printf(out, "%s%*s", column == 0 ? "" : "\n", HELP_INDENT, "");
            column = HELP_INDENT;
        } else {
            fg_buf_putc(out, ' ');
            column++;
        }
        fg_buf_append(out, text, length);
        column += length;
        text += length;
        text += strspn(text, " ");
    }
    fg_buf_putc(out, '\n');
}

static void append_facts(const fg_option *option, fg_buf *out)
{
    const char *between = " (";
    if (option->default_text != NULL && option->type != FG_OPTION_BOOL) {
        fg_buf_printf(out, "%sdefault %s", between, option->default_text);
        between = "; ";
    }
    bool numeric = option->type >= FG_OPTION_U32 && option->type <= FG_OPTION_FLOAT;
    if (numeric && (option->min != 0 || option->max != 0)) {
        fg_buf_printf(out, "%s%lld to %lld", between, (long long)option->min,
                      (long long)option->max);
        between = "; ";
    }
    for (const fg_conf_choice *choice = option->choices; choice != NULL && choice->word != NULL;
         choice++) {
        const char *proper = proper_word(option, choice);
        if (proper != choice->word) {
            fg_buf_printf(out, "%s%s means %s", between, choice->word, proper);
            between = "; ";
        }
    }
    if (option->roles != NULL) {
        fg_buf_printf(out, "%sused by %s", between, option->roles);
        between = "; ";
    }
    fg_buf_puts(out, *between == ' ' ? "" : ")");
}

static void append_usage(const fg_option *option, fg_buf *out)
{
    if (option->brief != '\0') {
        fg_buf_printf(out, "-%c, ", option->brief);
    }
    fg_buf_printf(out, "--%s", option->name);
    if (option->type == FG_OPTION_CHOICE) {
        fg_buf_putc(out, ' ');
        fg_conf_choice_words(option, out);
    } else if (option->type != FG_OPTION_BOOL) {
        fg_buf_printf(out, " %s", fg_conf_value_name(option));
    }
    if (option->alias != NULL) {
        fg_buf_printf(out, ", --%s", option->alias);
    }
}

size_t fg_conf_render_help(const fg_conf_spec *spec, const char *word, fg_buf *out)
{
    const char *group = "";
    size_t shown = 0;
    if (word == NULL) {
        fg_buf_printf(out, "usage: %s [--flag value ...]\n\n%s\n", spec->command, spec->intro);
    }
    for (size_t i = 0; i < spec->option_count; i++) {
        const fg_option *option = &spec->options[i];
        if (!matches(option, word)) {
            continue;
        }
        if (strcmp(group, option->group) != 0) {
            group = option->group;
            fg_buf_printf(out, "\n%s\n", group);
        }
        fg_buf text;
        fg_buf_init(&text, 0);
        fg_buf_puts(out, "    ");
        append_usage(option, out);
        fg_buf_putc(out, '\n');
        fg_buf_puts(&text, option->help);
        append_facts(option, &text);
        append_wrapped(text.failed ? option->help : text.data, out);
        fg_buf_deinit(&text);
        shown++;
    }
    if (shown == 0) {
        fg_buf_printf(out, "no flag of `%s` mentions '%s'; --help lists all\n", spec->command,
                      word == NULL ? "" : word);
    } else if (word == NULL) {
        fg_buf_puts(out,
                    "\n--flag=value works too; `--help=WORD` shows the flags that mention WORD. "
                    "Each flag has an\nenvironment twin: --kv-blocks is FORGE_KV_BLOCKS; a flag "
                    "beats it.\n");
    }
    return shown;
}

/* A cell of a Markdown table: `|` would end it. */
static void append_cell(const char *text, fg_buf *out)
{
    for (; *text != '\0'; text++) {
        if (*text == '|') {
            fg_buf_putc(out, '\\');
        }
        fg_buf_putc(out, *text);
    }
}

static void append_row(const fg_option *option, fg_buf *out)
{
    char name[FG_CONF_ENV_NAME_MAX];
    fg_buf text;
    fg_buf_init(&text, 0);
    append_usage(option, &text);
    fg_buf_puts(out, "| `");
    append_cell(text.failed ? option->name : text.data, out);
    fg_conf_env_name(option->name, name);
    fg_buf_printf(out, "` | `%s` | ", name);
    if (option->default_text != NULL) {
        fg_buf_printf(out, "`%s`", option->default_text);
    }
    fg_buf_puts(out, " | ");
    append_cell(option->help, out);
    fg_buf_clear(&text);
    fg_option without_default = *option;
    without_default.default_text = NULL;
    append_facts(&without_default, &text);
    append_cell(text.failed || text.data == NULL ? "" : text.data, out);
    fg_buf_puts(out, " |\n");
    fg_buf_deinit(&text);
}

void fg_conf_render_markdown(const fg_conf_spec *const *specs, size_t spec_count, fg_buf *out)
{
    fg_buf_puts(out,
                "# Configuration\n\n"
                "Written by `forge --config-docs` from the option tables; edit those instead.\n\n"
                "A flag beats its environment variable, which beats the default. An empty "
                "variable counts as not set.\n"
                "Unknown flags and bad values end the start with one line and exit code 2.\n");
    for (size_t s = 0; s < spec_count; s++) {
        const char *group = "";
        fg_buf_printf(out, "\n## `%s`\n", specs[s]->command);
        for (size_t i = 0; i < specs[s]->option_count; i++) {
            const fg_option *option = &specs[s]->options[i];
            if (strcmp(group, option->group) != 0) {
                group = option->group;
                fg_buf_printf(out,
                              "\n### %s\n\n| flag | environment | default | meaning |\n"
                              "| --- | --- | --- | --- |\n",
                              group);
            }
            append_row(option, out);
        }
    }
}
