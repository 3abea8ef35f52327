#include "cli/keygen.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "cli/args.h"
#include "common/base/mem.h"
#include "common/conf/options.h"
#include "common/net/api_keys.h"
#include "common/net/keys.h"

typedef struct keygen_config {
    fg_conf_names names;
    uint32_t workers;
    bool force;
    const char *api, *scopes, *until;
} keygen_config;

static const char group[] = "Keys", api_group[] = "API keys";
static const fg_option options[] = {
    { .name = "name",
      .type = FG_OPTION_NAMES,
      .group = group,
      .value_name = "NAMES",
      .offset = offsetof(keygen_config, names),
      .help =
          "Makes a key for each of these workers, separated by commas. Nobody else can be called "
          "so, and the worker can be called nothing else. With --api: for each of these clients." },
    { .name = "workers",
      .type = FG_OPTION_U32,
      .default_text = "0",
      .min = 0,
      .max = FG_LIMIT_WORKERS,
      .group = group,
      .offset = offsetof(keygen_config, workers),
      .help = "Makes so many further keys, worker-0, worker-1, ..., each good for any name that is "
              "not bound to a key. Without this and --name: prefill-0 and decode-0, as "
              "deploy/cluster calls its workers." },
    { .name = "force",
      .type = FG_OPTION_BOOL,
      .default_text = "false",
      .group = group,
      .offset = offsetof(keygen_config, force),
      .help =
          "Replaces keys that an earlier `forge keygen` made. Every process needs its new ones; "
          "with the old ones it is refused." },
    { .name = "api",
      .type = FG_OPTION_STRING,
      .group = api_group,
      .value_name = "FILE",
      .offset = offsetof(keygen_config, api),
      .help =
          "Makes API keys instead, one for each of --name's clients: prints them, a line each, and "
          "adds to FILE what a server tells them by. They can be read nowhere else." },
    { .name = "scopes",
      .type = FG_OPTION_STRING,
      .default_text = "infer",
      .group = api_group,
      .value_name = "LIST",
      .offset = offsetof(keygen_config, scopes),
      .help = "What an API key opens: infer (answers, tokens, models), metrics (/metrics, "
              "/debug/state), admin (the rest), separated by commas; or all." },
    { .name = "until",
      .type = FG_OPTION_STRING,
      .group = api_group,
      .value_name = "DATE",
      .offset = offsetof(keygen_config, until),
      .help = "The last day of an API key, as 2030-12-31, UTC. Without it: no end." },
};

const fg_conf_spec fg_keygen_spec = {
    .command = "forge keygen",
    .intro =
        "Makes the keys of a cluster: a directory for the router and one for each worker.\n"
        "With keys the control bus is encrypted, a router hears only workers that are in its\n"
        "list, and a worker speaks only to its router.\n\n"
        "  forge keygen keys                            for deploy/cluster: prefill-0, decode-0\n"
        "  forge keygen keys --name p0,d0,d1            for three workers with these names\n"
        "  forge keygen keys --workers 8                for eight workers with any names\n\n"
        "What goes where:\n\n"
        "  keys/router/   to the router's host    forge serve --mode router --keys DIR\n"
        "  keys/p0/       to the host of p0       forge serve --mode prefill --name p0 --keys "
        "DIR\n\n"
        "DIR is the copy of that one directory. Where all processes share one host, nothing is\n"
        "copied: --keys keys finds keys/router and keys/p0 itself.\n\n"
        "Each holds `secret`, which never leaves its host and has mode 0600. A worker's holds\n"
        "`router`, the router's public key; the router's holds `allowed`, one line for each\n"
        "worker. To let a worker in later, add its \"public\" line there; to shut one out, delete\n"
        "it; then send the router SIGHUP. A worker that is deleted is cut off at once.\n\n"
        "Clients of the HTTP port have keys of another kind:\n\n"
        "  key=$(forge keygen --api api-keys --name team-a)     made, printed once, known to FILE\n"
        "  forge serve --model FILE --api-key-file api-keys     and then for `curl "
        "--oauth2-bearer`",
    .options = options,
    .option_count = sizeof options / sizeof options[0],
};

/* --- files --- */

static fg_status system_failed(const char *path, fg_error *err)
{
    return fg_fail(err, FG_BROKEN, "%s: %s", path, strerror(errno));
}

static fg_status write_file(const char *path, const fg_buf *text, fg_error *err)
{
    if (text->failed) {
        return fg_fail(err, FG_AGAIN, "out of memory for %s", path);
    }
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0) {
        return system_failed(path, err);
    }
    size_t done = 0;
    while (done < text->size) {
        ssize_t wrote = write(fd, text->data + done, text->size - done);
        if (wrote < 0 && errno != EINTR) {
            break;
        }
        done += wrote > 0 ? (size_t)wrote : 0;
    }
    bool fine = done == text->size && fsync(fd) == 0;
    fg_status status = fine ? FG_OK : system_failed(path, err);
    return close(fd) == 0 || status != FG_OK ? status : system_failed(path, err);
}

/* The directory being made, and what goes into it. */
typedef struct making {
    char path[PATH_MAX]; /* of the new directory, beside the one that it will become */
    fg_key_pair router;
    fg_buf text;
    fg_buf allowed;
} making;

static void wipe_text(fg_buf *text)
{
    if (text->data != NULL) {
        fg_keys_wipe(text->data, text->capacity);
    }
    fg_buf_clear(text);
}

static fg_status put_file(making *m, const char *name, const char *file, const fg_buf *text,
                          fg_error *err)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/%s/%s", m->path, name, file) >= PATH_MAX) {
        return fg_fail(err, FG_BAD_INPUT, "the path is too long");
    }
    return write_file(path, text, err);
}

/* The directory of one process with its secret. */
static fg_status put_secret(making *m, const char *name, const fg_key_pair *pair, bool bound,
                            fg_error *err)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/%s", m->path, name) >= PATH_MAX) {
        return fg_fail(err, FG_BAD_INPUT, "the path is too long");
    }
    if (mkdir(path, 0700) != 0) {
        return system_failed(path, err);
    }
    fg_buf_clear(&m->text);
    fg_buf_printf(&m->text, "# The secret key of %s. It stays on that host; mode 0600.\nsecret ",
                  name);
    fg_buf_puts(&m->text, pair->secret_key);
    fg_buf_puts(&m->text, bound ? " " : "");
    fg_buf_puts(&m->text, bound ? name : "");
    fg_buf_putc(&m->text, '\n');
    fg_status status = put_file(m, name, "secret", &m->text, err);
    wipe_text(&m->text);
    return status;
}

static fg_status put_worker(making *m, const char *name, bool bound, fg_error *err)
{
    fg_key_pair pair = { 0 };
    fg_status status = fg_keys_make_pair(&pair, err);
    if (status == FG_OK) {
        status = put_secret(m, name, &pair, bound, err);
    }
    if (status == FG_OK) {
        fg_buf_printf(&m->text, "# The router's public key.\npublic %s\n", m->router.public_key);
        status = put_file(m, name, "router", &m->text, err);
    }
    fg_buf_printf(&m->allowed, bound ? "public %s %s\n" : "public %s\n", pair.public_key, name);
    fg_keys_wipe(&pair, sizeof pair);
    return status;
}

static fg_status put_all(making *m, const fg_keygen_options *o, fg_error *err)
{
    fg_buf_puts(&m->allowed,
                "# Who may come: \"public KEY NAME\" for the worker of that name, \"public KEY\" "
                "for any\n# name that is not bound. After a change: kill -HUP the router.\n");
    fg_status status = fg_keys_make_pair(&m->router, err);
    if (status == FG_OK) {
        status = put_secret(m, "router", &m->router, true, err);
    }
    for (uint32_t i = 0; status == FG_OK && i < o->names->count; i++) {
        status = put_worker(m, o->names->items[i], true, err);
    }
    for (uint32_t i = 0; status == FG_OK && i < o->unbound_count; i++) {
        char name[24];
        snprintf(name, sizeof name, "worker-%u", i);
        fg_buf_printf(&m->allowed, "# %s\n", name);
        status = put_worker(m, name, false, err);
    }
    return status != FG_OK ? status : put_file(m, "router", "allowed", &m->allowed, err);
}

/* --- what lies there already --- */

static bool is_ours(const char *file)
{
    return strcmp(file, "secret") == 0 || strcmp(file, "router") == 0 ||
           strcmp(file, "allowed") == 0;
}

/* Visits what keygen makes, two levels deep: looks whether there is anything else, or removes it. */
static fg_status visit(const char *path, int depth, bool remove, fg_error *err)
{
    DIR *directory = opendir(path);
    if (directory == NULL) {
        return system_failed(path, err);
    }
    fg_status status = FG_OK;
    const struct dirent *entry;
    while (status == FG_OK && (entry = readdir(directory)) != NULL) {
        char inner[PATH_MAX];
        struct stat info;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) {
            continue;
        }
        if (snprintf(inner, sizeof inner, "%s/%s", path, entry->d_name) >= PATH_MAX ||
            lstat(inner, &info) != 0) {
            status = system_failed(path, err);
        } else if (depth == 0 && S_ISDIR(info.st_mode)) {
            status = visit(inner, 1, remove, err);
        } else if (depth == 0 || !S_ISREG(info.st_mode) || !is_ours(entry->d_name)) {
            status = fg_fail(err, FG_BAD_INPUT,
                             "%s is nothing that keygen made: choose another directory, or remove "
                             "it yourself",
                             inner);
        } else if (remove && unlink(inner) != 0) {
            status = system_failed(inner, err);
        }
    }
    closedir(directory);
    return status == FG_OK && remove && rmdir(path) != 0 ? system_failed(path, err) : status;
}

/* The new directory takes its place. A rename onto a directory with something in it fails, so nobody's
 * keys are lost even when two of us run at once. */
static fg_status take_place(making *m, const char *target, bool force, fg_error *err)
{
    if (rename(m->path, target) == 0) {
        return FG_OK;
    }
    bool there = errno == ENOTEMPTY || errno == EEXIST;
    if (!there) {
        return errno == ENOTDIR ? fg_fail(err, FG_BAD_INPUT, "%s is no directory", target)
                                : system_failed(target, err);
    }
    if (!force) {
        return fg_fail(err, FG_BAD_INPUT,
                       "%s exists already: --force replaces its keys, and every process then needs "
                       "its new ones",
                       target);
    }
    fg_status status = visit(target, 0, false, err);
    if (status != FG_OK) {
        return status;
    }
    /* Now the old one has the scratch name, and goes the way of a failed attempt. */
    return renameat2(AT_FDCWD, m->path, AT_FDCWD, target, RENAME_EXCHANGE) == 0
               ? visit(m->path, 0, true, err)
               : system_failed(target, err);
}

static fg_status check_names(const fg_keygen_options *o, fg_error *err)
{
    if (o->names->count + o->unbound_count > FG_LIMIT_WORKERS) {
        return fg_fail(err, FG_BAD_INPUT, "more than %u workers", FG_LIMIT_WORKERS);
    }
    for (uint32_t i = 0; i < o->names->count; i++) {
        const char *name = o->names->items[i];
        if (!fg_keys_name_valid(name, strlen(name))) {
            return fg_fail(err, FG_BAD_INPUT,
                           "--name %s: a name is 1 to %u letters, digits, '.', '_' or '-'", name,
                           FG_LIMIT_NAME_BYTES);
        }
        for (uint32_t w = 0; w < o->unbound_count; w++) {
            char taken[24];
            snprintf(taken, sizeof taken, "worker-%u", w);
            if (strcmp(name, taken) == 0) {
                return fg_fail(err, FG_BAD_INPUT, "--name %s is also one of --workers %u", name,
                               o->unbound_count);
            }
        }
        if (is_ours(name)) {
            return fg_fail(err, FG_BAD_INPUT, "--name %s: that is the name of a file of keys%s",
                           name,
                           strcmp(name, "router") == 0 ? "; the router gets its own anyway" : "");
        }
    }
    return FG_OK;
}

static fg_status make_in(making *m, const char *target, const fg_keygen_options *o, fg_error *err)
{
    if (snprintf(m->path, sizeof m->path, "%s.XXXXXX", target) >= PATH_MAX) {
        return fg_fail(err, FG_BAD_INPUT, "the path is too long");
    }
    if (mkdtemp(m->path) == NULL) {
        return system_failed(target, err);
    }
    fg_status status = put_all(m, o, err);
    if (status == FG_OK) {
        status = take_place(m, target, o->force, err);
    }
    if (status != FG_OK && access(m->path, F_OK) == 0) {
        (void)visit(m->path, 0, true, NULL);
    }
    return status;
}

fg_status fg_keygen_make(const fg_keygen_options *o, fg_error *err)
{
    fg_status status = check_names(o, err);
    if (status != FG_OK) {
        return status;
    }
    char target[PATH_MAX];
    size_t length = strlen(o->directory);
    while (length > 1 && o->directory[length - 1] == '/') {
        length--;
    }
    if (length == 0 || length >= PATH_MAX) {
        return fg_fail(err, FG_BAD_INPUT, "name a directory of 1 to %d bytes", PATH_MAX - 1);
    }
    memcpy(target, o->directory, length);
    target[length] = '\0';
    making *m = fg_mem_alloc(sizeof *m);
    if (m == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory");
    }
    fg_buf_init(&m->text, 0);
    fg_buf_init(&m->allowed, 0);
    /* Taken at once: a buffer that grows leaves secrets behind in the heap. */
    status = fg_buf_reserve(&m->text, 1024) != NULL ? make_in(m, target, o, err)
                                                    : fg_fail(err, FG_AGAIN, "out of memory");
    wipe_text(&m->text);
    fg_buf_deinit(&m->text);
    fg_buf_deinit(&m->allowed);
    fg_keys_wipe(m, sizeof *m);
    fg_mem_free(m);
    return status;
}

/* --- API keys --- */

static fg_status check_api(const fg_keygen_api_options *o, fg_error *err)
{
    int64_t until_s;
    if (o->names->count == 0) {
        return fg_fail(err, FG_BAD_INPUT,
                       "--api %s: say with --name whom the keys are for, such as --name team-a",
                       o->file);
    }
    for (uint32_t i = 0; i < o->names->count; i++) {
        if (!fg_keys_name_valid(o->names->items[i], strlen(o->names->items[i]))) {
            return fg_fail(err, FG_BAD_INPUT,
                           "--name %s: a name is 1 to %u letters, digits, '.', '_' or '-'",
                           o->names->items[i], FG_LIMIT_NAME_BYTES);
        }
    }
    if (fg_api_scopes_parse(o->scopes, strlen(o->scopes)) == 0) {
        return fg_fail(err, FG_BAD_INPUT,
                       "--scopes %s: infer, metrics and admin are known, and all, with commas "
                       "between them",
                       o->scopes);
    }
    if (o->until != NULL && !fg_api_day_parse(o->until, strlen(o->until), &until_s)) {
        return fg_fail(err, FG_BAD_INPUT, "--until %s: give a day as 2030-12-31", o->until);
    }
    if (access(o->file, F_OK) != 0) {
        return FG_OK;
    }
    /* What a server would not read is not made longer. */
    fg_api_keys *keys = NULL;
    fg_api_keys_options there = { .file = o->file };
    fg_status status = fg_api_keys_open(&there, &keys, err);
    if (status == FG_OK && fg_api_keys_count(keys) + o->names->count > FG_LIMIT_KEYS) {
        status = fg_fail(err, FG_BAD_INPUT, "%s has %u keys, and a server reads %u: delete some",
                         o->file, fg_api_keys_count(keys), FG_LIMIT_KEYS);
    }
    fg_api_keys_close(keys);
    return status;
}

/* The keys to `shown`, their lines to `lines`. */
static fg_status make_api(const fg_keygen_api_options *o, fg_buf *shown, fg_buf *lines,
                          fg_error *err)
{
    char key[FG_API_KEY_TEXT_BYTES + 1], digest[FG_API_DIGEST_TEXT_BYTES + 1];
    fg_status status = FG_OK;
    for (uint32_t i = 0; status == FG_OK && i < o->names->count; i++) {
        status = fg_api_key_make(key, digest, err);
        if (status == FG_OK) {
            fg_buf_printf(shown, "%s\n", key);
            fg_buf_printf(lines, "key %s %s %s%s%s\n", digest, o->names->items[i], o->scopes,
                          o->until != NULL ? " until " : "", o->until != NULL ? o->until : "");
        }
        fg_keys_wipe(key, sizeof key);
    }
    return status == FG_OK && (shown->failed || lines->failed)
               ? fg_fail(err, FG_AGAIN, "out of memory")
               : status;
}

/* In one write, so that two of us at once lose nothing; what was written of it on a full disk is taken back. */
static fg_status add_lines(const char *path, const fg_buf *lines, fg_error *err)
{
    struct stat before;
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd < 0) {
        return system_failed(path, err);
    }
    bool known = fstat(fd, &before) == 0;
    ssize_t wrote = known ? write(fd, lines->data, lines->size) : -1;
    errno = wrote >= 0 && wrote < (ssize_t)lines->size ? ENOSPC : errno;
    fg_status status =
        wrote == (ssize_t)lines->size && fsync(fd) == 0 ? FG_OK : system_failed(path, err);
    if (status != FG_OK && known && wrote > 0 && ftruncate(fd, before.st_size) != 0) {
        status = fg_fail(err, FG_BROKEN, "%s: its end is cut short: delete the last line", path);
    }
    return close(fd) == 0 || status != FG_OK ? status : system_failed(path, err);
}

fg_status fg_keygen_api(const fg_keygen_api_options *o, fg_error *err)
{
    fg_buf shown, lines;
    fg_status status = check_api(o, err);
    if (status != FG_OK) {
        return status;
    }
    fg_buf_init(&shown, 0);
    fg_buf_init(&lines, 0);
    /* Taken at once: a buffer that grows leaves secrets behind in the heap. */
    status = fg_buf_reserve(&shown, (o->names->count + 1) * (FG_API_KEY_TEXT_BYTES + 1)) != NULL
                 ? make_api(o, &shown, &lines, err)
                 : fg_fail(err, FG_AGAIN, "out of memory");
    status = status != FG_OK ? status : add_lines(o->file, &lines, err);
    if (status == FG_OK) {
        bool told = fwrite(shown.data, 1, shown.size, o->out) == shown.size && fflush(o->out) == 0;
        status = told
                     ? FG_OK
                     : fg_fail(err, FG_BROKEN,
                               "the keys could not be printed, and nobody knows them: delete their "
                               "last %u lines from %s",
                               o->names->count, o->file);
    }
    wipe_text(&shown);
    fg_buf_deinit(&shown);
    fg_buf_deinit(&lines);
    return status;
}

/* --- the command --- */

static void report(const char *directory, const fg_keygen_options *o)
{
    const char *first = o->names->count > 0 ? o->names->items[0] : "worker-0";
    printf("%s/router  forge serve --mode router --keys %s/router ...\n", directory, directory);
    for (uint32_t i = 0; i < o->names->count; i++) {
        printf("%s/%s  for --name %s only\n", directory, o->names->items[i], o->names->items[i]);
    }
    for (uint32_t i = 0; i < o->unbound_count; i++) {
        printf("%s/worker-%u  for any worker\n", directory, i);
    }
    fprintf(stderr,
            "forge keygen: copy each directory to the host of its process, and nothing else:\n"
            "  scp -rp %s/%s HOST:keys      and there: forge serve --keys keys ...\n"
            "%s%s%s\n",
            directory, first, o->unbound_count == 0 ? "On one host: --keys " : "",
            o->unbound_count == 0 ? directory : "",
            o->unbound_count == 0 ? " for all of them." : "");
}

static fg_status check_words(const fg_args *args, const keygen_config *config, fg_error *err)
{
    if (config->api != NULL) {
        return args->word_count == 0 && args->passed_count == 0
                   ? FG_OK
                   : fg_fail(err, FG_BAD_INPUT, "--api FILE makes API keys, and no directory %s",
                             args->word_count > 0 ? args->words[0] : "");
    }
    return args->word_count == 1 && args->passed_count == 0
               ? FG_OK
               : fg_fail(err, FG_BAD_INPUT,
                         "name one directory: forge keygen [flags] DIR (see forge keygen --help)");
}

static fg_status do_keygen(const fg_args *args, keygen_config *config, fg_error *err)
{
    if (config->api != NULL) {
        fg_keygen_api_options api = { .file = config->api,
                                      .names = &config->names,
                                      .scopes = config->scopes,
                                      .until = config->until,
                                      .out = stdout };
        return fg_keygen_api(&api, err);
    }
    if (config->names.count == 0 && config->workers == 0) {
        strcpy(config->names.items[0], "prefill-0");
        strcpy(config->names.items[1], "decode-0");
        config->names.count = 2;
    }
    fg_keygen_options o = { .directory = args->words[0],
                            .names = &config->names,
                            .unbound_count = config->workers,
                            .force = config->force };
    fg_status status = fg_keygen_make(&o, err);
    if (status == FG_OK) {
        report(args->words[0], &o);
    }
    return status;
}

int fg_keygen_main(int argc, const char *const *argv, const char *const *environment)
{
    fg_args args = { 0 };
    fg_error err = { 0 };
    fg_conf_asked asked = { 0 };
    int code = 0;
    keygen_config *config = fg_mem_alloc(sizeof *config);
    fg_status status = config == NULL ? fg_fail(&err, FG_AGAIN, "out of memory")
                                      : fg_args_split(&fg_keygen_spec, &fg_serve_spec, argc, argv,
                                                      environment, &args, &err);
    if (status == FG_OK) {
        fg_conf_input input = { .argc = args.flag_count,
                                .argv = args.flags,
                                .environment = args.environment };
        status = fg_conf_parse(&fg_keygen_spec, &input, config, &asked, &err);
    }
    if (status == FG_OK && asked.help) {
        code = fg_args_print_help(&fg_keygen_spec, asked.help_word);
    } else {
        status = status != FG_OK ? status : check_words(&args, config, &err);
        status = status != FG_OK ? status : do_keygen(&args, config, &err);
    }
    if (status != FG_OK) {
        fprintf(stderr, "forge keygen: %s\n", err.text);
        code = status == FG_BAD_INPUT ? 2 : 1;
    }
    fg_args_free(&args);
    fg_mem_free(config);
    return code;
}
