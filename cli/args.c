#include "cli/args.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"

static bool takes_next_word(const fg_conf_spec *spec, const char *argument)
{
    const fg_option *brief = fg_conf_find_brief(spec, argument);
    if (brief != NULL || argument[1] != '-') {
        return brief != NULL && brief->type != FG_OPTION_BOOL;
    }
    const char *name = argument + 2;
    for (size_t i = 0; i < spec->option_count; i++) {
        const fg_option *option = &spec->options[i];
        if (strcmp(option->name, name) == 0 ||
            (option->alias != NULL && strcmp(option->alias, name) == 0)) {
            return option->type != FG_OPTION_BOOL;
        }
    }
    return false; /* unknown, or with its value behind "=" */
}

static bool names_twin(const char *option, const char *entry)
{
    static const char prefix[] = "FORGE_";
    if (option == NULL || strncmp(entry, prefix, sizeof prefix - 1) != 0) {
        return false;
    }
    for (entry += sizeof prefix - 1; *option != '\0'; option++, entry++) {
        if (*entry != (*option == '-' ? '_' : (char)toupper((unsigned char)*option))) {
            return false;
        }
    }
    return *entry == '=' || *entry == '\0';
}

bool fg_args_is_twin(const fg_conf_spec *spec, const char *entry)
{
    for (size_t i = 0; i < spec->option_count; i++) {
        if (names_twin(spec->options[i].name, entry) || names_twin(spec->options[i].alias, entry)) {
            return true;
        }
    }
    return false;
}

static bool is_known(const fg_conf_spec *spec, const char *entry)
{
    size_t length = strcspn(entry, "=");
    for (const char *const *known = spec->known_environment; known != NULL && *known != NULL;
         known++) {
        if (strlen(*known) == length && memcmp(*known, entry, length) == 0) {
            return true;
        }
    }
    return false;
}

static bool copy_environment(const fg_conf_spec *spec, const fg_conf_spec *other,
                             const char *const *environment, fg_args *args)
{
    size_t count = 0;
    while (environment != NULL && environment[count] != NULL) {
        count++;
    }
    args->environment = fg_mem_array(count + 1, sizeof *args->environment);
    if (args->environment == NULL) {
        return false;
    }
    size_t kept = 0;
    for (size_t i = 0; i < count; i++) {
        const char *entry = environment[i];
        bool foreign = other != NULL && !fg_args_is_twin(spec, entry) &&
                       (fg_args_is_twin(other, entry) || is_known(other, entry));
        if (!foreign) {
            args->environment[kept++] = environment[i];
        }
    }
    return true;
}

fg_status fg_args_split(const fg_conf_spec *spec, const fg_conf_spec *other, int argc,
                        const char *const *argv, const char *const *environment, fg_args *args_out,
                        fg_error *err)
{
    size_t room = (size_t)argc + 1;
    fg_args args = {
        .flags = fg_mem_array(room, sizeof *args.flags),
        .words = fg_mem_array(room, sizeof *args.words),
    };
    if (args.flags == NULL || args.words == NULL ||
        !copy_environment(spec, other, environment, &args)) {
        fg_args_free(&args);
        return fg_fail(err, FG_AGAIN, "out of memory for the command line");
    }
    for (int i = 0; i < argc; i++) {
        if (strcmp(argv[i], "--") == 0) {
            args.passed = argv + i + 1;
            args.passed_count = argc - i - 1;
            break;
        }
        if (argv[i][0] != '-' || argv[i][1] == '\0') {
            args.words[args.word_count++] = argv[i];
            continue;
        }
        args.flags[args.flag_count++] = argv[i];
        if (i + 1 < argc && takes_next_word(spec, argv[i])) {
            args.flags[args.flag_count++] = argv[++i];
        }
    }
    *args_out = args;
    return FG_OK;
}

void fg_args_free(fg_args *args)
{
    fg_mem_free(args->flags);
    fg_mem_free(args->words);
    fg_mem_free(args->environment);
    *args = (fg_args){ 0 };
}

int fg_args_print_help(const fg_conf_spec *spec, const char *word)
{
    fg_buf out;
    fg_buf_init(&out, 0);
    size_t shown = fg_conf_render_help(spec, word, &out);
    fwrite(out.data, 1, out.size, stdout);
    fg_buf_deinit(&out);
    return shown > 0 ? 0 : 2;
}
