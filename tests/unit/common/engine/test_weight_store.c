/*
 * The store against files of every kind: whatever lies where a sidecar should be, the weights are right,
 * and somebody is told once.
 */
#include "common/engine/weight_store.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/dtype.h"
#include "common/base/fault.h"
#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "kernels/panel.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/test.h"

enum { SOURCES_MAX = 64, CHILDREN = 4 };

typedef struct rig {
    char folder[64], model[96], cache[96], sidecar[256];
    fg_weights *weights;
    fg_panel_source sources[SOURCES_MAX];
    uint32_t count;
    uint64_t digest; /* of the packed weights */
} rig;

static uint64_t digest_of(const rig *r, const fg_weight_store *store)
{
    uint64_t digest = 0;
    for (uint32_t i = 0; i < r->count; i++) {
        const fg_matrix *rows = &r->sources[i].rows;
        size_t size = fg_panel_count(rows->outputs) * fg_panel_bytes(rows->type, rows->columns);
        digest = fg_hash64(fg_weight_store_panels(store, i), size, digest);
    }
    return digest;
}

static fg_status open_store(const rig *r, const char *cache, fg_weight_store **store_out)
{
    fg_weight_store_options options = { .weights = r->weights, .cache = cache, .thread_count = 2 };
    return fg_weight_store_open(&options, r->sources, r->count, store_out, NULL);
}

/* Opens, looks and closes. */
static fg_weight_report must_open(const rig *r, const char *cache, const char *name)
{
    fg_weight_store *store;
    cr_assert_eq(open_store(r, cache, &store), FG_OK, "%s", name);
    cr_assert_eq(digest_of(r, store), r->digest, "%s: the weights are not the model's", name);
    fg_weight_report report = *fg_weight_store_report(store);
    fg_weight_store_close(store);
    return report;
}

static void write_file(const char *path, const void *bytes, size_t size_bytes)
{
    FILE *file = fopen(path, "we");
    cr_assert_not_null(file);
    cr_assert_eq(fwrite(bytes, 1, size_bytes, file), size_bytes);
    fclose(file);
}

static void open_model(rig *r)
{
    fg_weights_close(r->weights);
    r->weights = NULL;
    r->count = 0;
    cr_assert_eq(fg_weights_open(r->model, &r->weights, NULL), FG_OK);
    for (uint64_t i = 0; i < fg_weights_tensor_count(r->weights); i++) {
        const fg_tensor *tensor = fg_weights_tensor(r->weights, i);
        if (tensor->type == FG_Q8_0) {
            r->sources[r->count++] =
                (fg_panel_source){ .name = tensor->name,
                                   .rows = { .data = tensor->data,
                                             .type = tensor->type,
                                             .outputs = (uint32_t)tensor->dims[1],
                                             .columns = (uint32_t)tensor->dims[0] } };
        }
    }
}

static void set_up(rig *r, uint64_t seed)
{
    memset(r, 0, sizeof *r);
    fg_log_set_level(FG_LOG_OFF);
    snprintf(r->folder, sizeof r->folder, "/tmp/forge-store-XXXXXX");
    cr_assert_not_null(mkdtemp(r->folder));
    snprintf(r->model, sizeof r->model, "%s/tiny.gguf", r->folder);
    snprintf(r->cache, sizeof r->cache, "%s/cache", r->folder);
    size_t size;
    void *bytes = fg_gguf_build_tiny_llama(&(fg_tiny_llama){ .seed = seed,
                                                             .vocab = FG_TINY_BARE,
                                                             .weight_type = FG_Q8_0,
                                                             .embedding_length = 512,
                                                             .head_count = 8,
                                                             .kv_head_count = 4,
                                                             .head_dim = 64,
                                                             .ffn_length = 1376 },
                                           &size);
    write_file(r->model, bytes, size);
    free(bytes);
    open_model(r);
    fg_weight_store *store;
    cr_assert_eq(open_store(r, "off", &store), FG_OK);
    cr_assert_eq(fg_weight_store_report(store)->origin, FG_WEIGHTS_PACKED);
    cr_assert_gt(fg_weight_store_report(store)->bytes, 2u * FG_PIECE_BYTES);
    r->digest = digest_of(r, store);
    fg_weight_store_close(store);
}

/* A rig whose cache holds the sidecar. */
static void set_up_cached(rig *r)
{
    set_up(r, 1);
    fg_weight_report report = must_open(r, r->cache, "first");
    cr_assert_eq(report.origin, FG_WEIGHTS_MADE, "%s", report.warning);
    cr_assert_str_eq(report.warning, "");
    snprintf(r->sidecar, sizeof r->sidecar, "%s", report.path);
}

static void tear_down(rig *r)
{
    char command[96];
    fg_weights_close(r->weights);
    snprintf(command, sizeof command, "rm -rf %s", r->folder);
    cr_assert_eq(system(command), 0);
}

static bool exists(const char *path, const char *suffix)
{
    char room[300];
    struct stat info;
    snprintf(room, sizeof room, "%s%s", path, suffix);
    return lstat(room, &info) == 0;
}

Test(weight_store, packs_what_the_kernels_pack)
{
    rig r;
    set_up(&r, 1);
    uint64_t digest = 0;
    for (uint32_t i = 0; i < r.count; i++) {
        const fg_matrix *rows = &r.sources[i].rows;
        uint32_t panels = fg_panel_count(rows->outputs);
        size_t size = panels * fg_panel_bytes(rows->type, rows->columns);
        void *whole = aligned_alloc(64, size);
        fg_panel_pack(rows, 0, panels, whole);
        digest = fg_hash64(whole, size, digest);
        free(whole);
    }
    cr_assert_eq(r.digest, digest);
    tear_down(&r);
}

Test(weight_store, a_sidecar_is_made_once_and_then_mapped)
{
    rig r;
    set_up_cached(&r);
    struct stat info;
    cr_assert_eq(stat(r.sidecar, &info), 0);
    cr_assert_eq(info.st_mode & 07777, 0644u);
    cr_assert(!exists(r.sidecar, ".tmp"));
    for (int i = 0; i < 2; i++) {
        fg_weight_report report = must_open(&r, r.cache, "again");
        cr_assert_eq(report.origin, FG_WEIGHTS_MAPPED);
        cr_assert_str_eq(report.warning, "");
        cr_assert_str_eq(report.path, r.sidecar);
    }
    tear_down(&r);
}

Test(weight_store, a_private_model_has_a_private_sidecar)
{
    rig r;
    struct stat info;
    set_up(&r, 1);
    cr_assert_eq(chmod(r.model, 0600), 0);
    open_model(&r);
    fg_weight_report report = must_open(&r, r.cache, "first");
    cr_assert_eq(stat(report.path, &info), 0);
    cr_assert_eq(info.st_mode & 07777, 0600u);
    tear_down(&r);
}

Test(weight_store, small_models_get_no_file_unless_asked_for)
{
    rig r;
    set_up(&r, 1);
    cr_assert_eq(must_open(&r, "auto", "auto").origin, FG_WEIGHTS_PACKED);
    cr_assert(!exists(r.model, ".fgp"));
    tear_down(&r);
}

/* ---- files that are no good ---- */

static void change_byte(const char *path, off_t at)
{
    int fd = open(path, O_RDWR);
    uint8_t byte;
    cr_assert_eq(pread(fd, &byte, 1, at), 1);
    byte ^= 0x01;
    cr_assert_eq(pwrite(fd, &byte, 1, at), 1);
    close(fd);
}

static off_t size_of(const char *path)
{
    struct stat info;
    cr_assert_eq(stat(path, &info), 0);
    return info.st_size;
}

static void cut_one_byte(const rig *r)
{
    cr_assert_eq(truncate(r->sidecar, size_of(r->sidecar) - 1), 0);
}
static void cut_to_header(const rig *r)
{
    cr_assert_eq(truncate(r->sidecar, FG_PIECE_BYTES), 0);
}
static void cut_to_nothing(const rig *r)
{
    cr_assert_eq(truncate(r->sidecar, 0), 0);
}
static void grow(const rig *r)
{
    cr_assert_eq(truncate(r->sidecar, size_of(r->sidecar) + 1), 0);
}
static void change_format(const rig *r)
{
    change_byte(r->sidecar, 12);
}
/* As a forge whose panels had one version less wrote it: nothing else in the file is wrong. */
static void make_older(const rig *r)
{
    enum { PANEL_FORMAT_AT = 12 };
    fg_panel_plan plan;
    cr_assert_eq(fg_panel_plan_init(&plan, r->sources, r->count, NULL), FG_OK);
    uint8_t *header = malloc(plan.header_bytes);
    int fd = open(r->sidecar, O_RDWR);
    cr_assert_eq(pread(fd, header, plan.header_bytes, 0), (ssize_t)plan.header_bytes);
    uint32_t format;
    memcpy(&format, header + PANEL_FORMAT_AT, sizeof format);
    cr_assert_eq(format, FG_PANEL_FORMAT);
    format--;
    memcpy(header + PANEL_FORMAT_AT, &format, sizeof format);
    size_t checked = plan.header_bytes - sizeof(uint64_t);
    uint64_t digest = fg_hash64(header, checked, 0);
    memcpy(header + checked, &digest, sizeof digest);
    cr_assert_eq(pwrite(fd, header, plan.header_bytes, 0), (ssize_t)plan.header_bytes);
    close(fd);
    free(header);
    fg_panel_plan_deinit(&plan);
}
static void change_header(const rig *r)
{
    change_byte(r->sidecar, 100);
}
static void change_first(const rig *r)
{
    change_byte(r->sidecar, FG_PIECE_BYTES);
}
static void change_last(const rig *r)
{
    change_byte(r->sidecar, size_of(r->sidecar) - 1);
}
static void write_text(const rig *r)
{
    write_file(r->sidecar, "no weights at all, and much too short for any", 45);
}
static void let_others_write(const rig *r)
{
    cr_assert_eq(chmod(r->sidecar, 0666), 0);
}
static void make_pipe(const rig *r)
{
    cr_assert_eq(unlink(r->sidecar), 0);
    cr_assert_eq(mkfifo(r->sidecar, 0600), 0);
}
static void take_strangers(const rig *r)
{
    rig other;
    set_up(&other, 2);
    fg_weight_report report = must_open(&other, other.cache, "the other model");
    cr_assert_eq(rename(report.path, r->sidecar), 0);
    tear_down(&other);
}

/* Opens twice; returns how many warnings were logged meanwhile. */
static int warnings_of(const rig *r, const char *name, fg_weight_report *first_out,
                       fg_weight_report *second_out)
{
    char path[96], text[4096] = { 0 };
    snprintf(path, sizeof path, "%s/log", r->folder);
    int kept = dup(STDERR_FILENO), log = open(path, O_RDWR | O_CREAT | O_TRUNC, 0600);
    cr_assert(kept >= 0 && log >= 0 && dup2(log, STDERR_FILENO) == STDERR_FILENO);
    fg_log_set_level(FG_LOG_WARN);
    *first_out = must_open(r, r->cache, name);
    *second_out = must_open(r, r->cache, name);
    fg_log_set_level(FG_LOG_OFF);
    dup2(kept, STDERR_FILENO);
    close(kept);
    cr_assert_geq(pread(log, text, sizeof text - 1, 0), 0);
    close(log);
    int count = 0;
    for (const char *at = text; (at = strstr(at, "level=warn")) != NULL; at++) {
        count++;
    }
    return count;
}

Test(weight_store, a_file_that_is_no_good_is_made_again)
{
    static const struct {
        const char *name;
        void (*spoil)(const rig *r);
        const char *want;
    } cases[] = {
        { "a byte short", cut_one_byte, "is truncated" },
        { "header only", cut_to_header, "is truncated" },
        { "empty", cut_to_nothing, "is truncated" },
        { "a byte long", grow, "is truncated" },
        { "another version", change_format, "has format" },
        { "an older version, whole", make_older, "has format" },
        { "header changed", change_header, "is damaged" },
        { "first byte changed", change_first, "is damaged" },
        { "last byte changed", change_last, "is damaged" },
        { "another file", write_text, "is " },
        { "open to all", let_others_write, "may be written by others" },
        { "a pipe", make_pipe, "not a regular file" },
        { "another model's", take_strangers, "another model" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        rig r;
        set_up_cached(&r);
        cases[i].spoil(&r);
        fg_weight_report report, later;
        cr_assert_eq(warnings_of(&r, cases[i].name, &report, &later), 1, "%s", cases[i].name);
        cr_assert_eq(report.origin, FG_WEIGHTS_MADE, "%s: %s", cases[i].name, report.warning);
        cr_assert_not_null(strstr(report.warning, cases[i].want), "%s: %s", cases[i].name,
                           report.warning);
        cr_assert_eq(later.origin, FG_WEIGHTS_MAPPED, "%s", cases[i].name);
        cr_assert_str_eq(later.warning, "");
        tear_down(&r);
    }
}

Test(weight_store, an_older_file_that_cannot_be_replaced_is_not_used)
{
    rig r;
    char temporary[300];
    set_up_cached(&r);
    make_older(&r);
    snprintf(temporary, sizeof temporary, "%s.tmp", r.sidecar);
    cr_assert_eq(symlink(r.model, temporary), 0); /* is not followed: nothing can be written */
    fg_weight_report report = must_open(&r, r.cache, "an older version");
    cr_assert_eq(report.origin, FG_WEIGHTS_PACKED);
    cr_assert(strstr(report.warning, "has format") && strstr(report.warning, "cannot write"), "%s",
              report.warning);
    cr_assert_str_eq(report.path, "");
    tear_down(&r);
}

Test(weight_store, a_changed_model_file_is_packed_again)
{
    rig r;
    set_up_cached(&r);
    struct timespec times[2] = { { .tv_sec = 1000 }, { .tv_sec = 1000 } };
    cr_assert_eq(utimensat(AT_FDCWD, r.model, times, 0), 0);
    open_model(&r);
    fg_weight_report report = must_open(&r, r.cache, "another time");
    cr_assert_eq(report.origin, FG_WEIGHTS_MADE);
    cr_assert_not_null(strstr(report.warning, "older than"), "%s", report.warning);
    tear_down(&r);
}

/* ---- places that are no good ---- */

static void serve_without(const rig *r, const char *cache, const char *want)
{
    fg_weight_report report = must_open(r, cache, cache);
    cr_assert_eq(report.origin, FG_WEIGHTS_PACKED, "%s", cache);
    cr_assert_not_null(strstr(report.warning, want), "%s: %s", cache, report.warning);
    cr_assert_str_eq(report.path, "");
}

Test(weight_store, without_a_place_weights_are_packed_in_memory)
{
    rig r;
    set_up(&r, 1);
    serve_without(&r, "/sys", "cannot write /sys/tiny.gguf");
    serve_without(&r, r.model, "Not a directory");
    tear_down(&r);
}

Test(weight_store, a_full_disk_leaves_nothing_behind)
{
    rig r;
    char command[160];
    set_up(&r, 1);
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit before, small;
    cr_assert_eq(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = (struct rlimit){ .rlim_cur = 3u << 20, .rlim_max = before.rlim_max };
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
    serve_without(&r, r.cache, "File too large");
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &before), 0);
    snprintf(command, sizeof command, "test -z \"$(ls -A %s)\"", r.cache);
    cr_assert_eq(system(command), 0);
    tear_down(&r);
}

Test(weight_store, links_under_the_temporary_name_are_not_followed)
{
    static const char text[] = "somebody's letters";
    for (int hard = 0; hard < 2; hard++) {
        rig r;
        char victim[128], temporary[300], read[64] = { 0 };
        set_up_cached(&r);
        snprintf(victim, sizeof victim, "%s/victim", r.folder);
        snprintf(temporary, sizeof temporary, "%s.tmp", r.sidecar);
        write_file(victim, text, sizeof text);
        cr_assert_eq(unlink(r.sidecar), 0);
        cr_assert_eq(hard ? link(victim, temporary) : symlink(victim, temporary), 0);
        serve_without(&r, r.cache, "cannot write");
        FILE *file = fopen(victim, "re");
        cr_assert_eq(fread(read, 1, sizeof read, file), sizeof text);
        cr_assert_str_eq(read, text);
        fclose(file);
        tear_down(&r);
    }
}

/* ---- several processes ---- */

Test(weight_store, of_several_processes_one_packs)
{
    rig r;
    pid_t children[CHILDREN];
    int made = 0;
    set_up(&r, 1);
    for (int i = 0; i < CHILDREN; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            fg_weight_store *store;
            if (open_store(&r, r.cache, &store) != FG_OK || digest_of(&r, store) != r.digest ||
                fg_weight_store_report(store)->warning[0] != '\0') {
                _exit(99);
            }
            _exit((int)fg_weight_store_report(store)->origin);
        }
    }
    for (int i = 0; i < CHILDREN; i++) {
        int how;
        cr_assert_eq(waitpid(children[i], &how, 0), children[i]);
        cr_assert(WIFEXITED(how) && WEXITSTATUS(how) != 99 && WEXITSTATUS(how) != FG_WEIGHTS_PACKED,
                  "child %d: %x", i, (unsigned)how);
        made += WEXITSTATUS(how) == FG_WEIGHTS_MADE;
    }
    cr_assert_eq(made, 1);
    fg_weight_report report = must_open(&r, r.cache, "later");
    cr_assert_eq(report.origin, FG_WEIGHTS_MAPPED);
    cr_assert(!exists(report.path, ".tmp"));
    tear_down(&r);
}

static void on_progress(void *ctx, uint64_t done_bytes, uint64_t total_bytes)
{
    if (done_bytes < total_bytes) {
        raise(*(int *)ctx);
    }
}

/* A child that meets this signal in the middle of writing; it packs with one thread, so that some is
 * left to do when the first piece is done. */
static pid_t interrupt_writer(const rig *r, int signal)
{
    pid_t child = fork();
    if (child == 0) {
        fg_weight_store *store;
        fg_weight_store_options options = { .weights = r->weights,
                                            .cache = r->cache,
                                            .thread_count = 1,
                                            .on_progress = on_progress,
                                            .ctx = &signal };
        fg_weight_store_open(&options, r->sources, r->count, &store, NULL);
        _exit(0);
    }
    int how;
    cr_assert_eq(waitpid(child, &how, WUNTRACED), child);
    cr_assert(signal == SIGKILL ? WIFSIGNALED(how) : WIFSTOPPED(how));
    return child;
}

Test(weight_store, what_a_killed_writer_left_is_written_over)
{
    rig r;
    set_up_cached(&r);
    cr_assert_eq(unlink(r.sidecar), 0);
    interrupt_writer(&r, SIGKILL);
    cr_assert(!exists(r.sidecar, "") && exists(r.sidecar, ".tmp"));
    fg_weight_report report = must_open(&r, r.cache, "after the kill");
    cr_assert_eq(report.origin, FG_WEIGHTS_MADE);
    cr_assert_str_eq(report.warning, "");
    cr_assert(!exists(r.sidecar, ".tmp"));
    cr_assert_eq(must_open(&r, r.cache, "later").origin, FG_WEIGHTS_MAPPED);
    tear_down(&r);
}

Test(weight_store, a_stopped_writer_is_not_waited_for_without_end)
{
    rig r;
    set_up(&r, 1);
    pid_t child = interrupt_writer(&r, SIGSTOP);
    fg_weight_store *store;
    fg_weight_store_options options = {
        .weights = r.weights, .cache = r.cache, .thread_count = 2, .wait_ms = 30
    };
    cr_assert_eq(fg_weight_store_open(&options, r.sources, r.count, &store, NULL), FG_OK);
    const fg_weight_report *report = fg_weight_store_report(store);
    cr_assert_eq(report->origin, FG_WEIGHTS_PACKED);
    cr_assert_not_null(strstr(report->warning, "another process"), "%s", report->warning);
    cr_assert_eq(digest_of(&r, store), r.digest);
    fg_weight_store_close(store);
    kill(child, SIGKILL);
    cr_assert_eq(waitpid(child, NULL, 0), child);
    tear_down(&r);
}

/* ---- memory ---- */

static bool open_in_memory(void *ctx)
{
    fg_weight_store *store;
    if (open_store(ctx, "off", &store) != FG_OK) {
        return false;
    }
    fg_weight_store_close(store);
    return true;
}

Test(weight_store, every_allocation_may_fail)
{
    rig r;
    set_up(&r, 1);
    cr_assert_gt(fg_fault_each(open_in_memory, &r), 0);
    tear_down(&r);
}

/* With a file, much can fail and the weights are still had another way. */
Test(weight_store, no_allocation_that_fails_gives_other_weights)
{
    for (int cached = 0; cached < 2; cached++) {
        rig r;
        int opened = 0;
        bool fired = true;
        set_up_cached(&r);
        for (uint64_t nth = 1; fired; nth++) {
            fg_weight_store *store = NULL;
            if (!cached) {
                unlink(r.sidecar);
            }
            fg_fault_arm(nth);
            fg_status status = open_store(&r, r.cache, &store);
            fired = fg_fault_fired();
            fg_fault_arm(0);
            cr_assert(status == FG_OK || status == FG_AGAIN);
            cr_assert(fired || status == FG_OK);
            if (status == FG_OK) {
                cr_assert_eq(digest_of(&r, store), r.digest);
                fg_weight_store_close(store);
                opened++;
            }
            cr_assert(!exists(r.sidecar, ".tmp"), "failing %d", (int)nth);
        }
        cr_assert_gt(opened, 1);
        tear_down(&r);
    }
}
