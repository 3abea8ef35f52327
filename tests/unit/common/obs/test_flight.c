#include "common/obs/flight.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/fault.h"
#include "common/base/hash.h"
#include "common/base/mem.h"
#include "tests/support/test.h"

enum { CHUNK = 1024, SHAPE = 7 };

static const fg_flight_options plain = { .bytes = 2 * CHUNK,
                                         .shape = SHAPE,
                                         .process = "p",
                                         .directory = "/tmp",
                                         .preface = "hello",
                                         .preface_bytes = 6 };

static fg_flight *made(void)
{
    fg_flight *flight;
    fg_error err;
    cr_assert_eq(fg_flight_create(&plain, &flight, &err), FG_OK);
    return flight;
}

/* The record of number `n`: its kind and length vary with it. */
static void note(fg_flight *flight, uint32_t n)
{
    unsigned char bytes[16];
    memset(bytes, (int)n, sizeof bytes);
    fg_flight_note(flight, 1 + n % 3, bytes, n % 14);
}

static fg_buf rendered(const fg_flight *flight)
{
    fg_buf out;
    fg_buf_init(&out, 0);
    cr_assert(fg_flight_render(flight, &out));
    return out;
}

static fg_flight_file parsed(const fg_buf *out)
{
    fg_flight_file file;
    fg_error err;
    cr_assert_eq(fg_flight_parse(out->data, out->size, SHAPE, &file, &err), FG_OK, "%s", err.text);
    return file;
}

Test(flight, what_was_noted_is_read_again)
{
    fg_flight *flight = made();
    for (uint32_t n = 0; n < 20; n++) {
        note(flight, n);
    }
    fg_buf out = rendered(flight);
    fg_flight_file file = parsed(&out);
    cr_assert(file.can_run);
    cr_assert_eq(file.records, 20u);
    cr_assert_eq(file.header->chunks[file.first].kind, (uint32_t)FG_FLIGHT_START);
    cr_assert_eq(memcmp(file.preface, "hello", 6), 0);
    fg_flight *check;
    cr_assert_eq(fg_flight_check(&file, &check, NULL), FG_OK);
    cr_assert(!fg_flight_is_partial(check));
    for (uint32_t n = 0; n < 20; n++) {
        const fg_flight_record *record = fg_flight_peek(check);
        cr_assert(record != NULL && record->kind == 1 + n % 3 && record->bytes == n % 14);
        note(check, n);
        cr_assert(!fg_flight_differs(check)->found);
    }
    cr_assert_null(fg_flight_peek(check));
    note(check, 3); /* nothing is left to compare with */
    cr_assert(fg_flight_differs(check)->beyond && !fg_flight_differs(check)->found);
    fg_flight_destroy(check);
    fg_flight_destroy(flight);
    fg_buf_deinit(&out);
}

Test(flight, the_first_difference_is_told)
{
    static const struct {
        const char *name;
        uint32_t kind, bytes;
        char text[8];
    } cases[] = { { "another kind", 3, 4, "abc" },
                  { "longer", 2, 5, "abc" },
                  { "shorter", 2, 3, "abc" },
                  { "other bytes", 2, 4, "abd" } };
    fg_flight *flight = made();
    fg_flight_note(flight, 1, "", 0);
    fg_flight_note(flight, 2, "abc", 4);
    fg_flight_note(flight, 1, "", 0);
    fg_buf out = rendered(flight);
    fg_flight_file file = parsed(&out);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fg_flight *check;
        size_t bytes;
        cr_assert_eq(fg_flight_check(&file, &check, NULL), FG_OK);
        fg_flight_note(check, 1, "", 0);
        cr_assert_null(fg_flight_told(check, 1, &bytes));
        cr_assert_eq(memcmp(fg_flight_told(check, 2, &bytes), "abc", 4), 0);
        fg_flight_note(check, cases[i].kind, cases[i].text, cases[i].bytes);
        const fg_flight_difference *difference = fg_flight_differs(check);
        cr_assert(difference->found, "%s", cases[i].name);
        cr_assert(difference->index == 1 && difference->wanted->kind == 2 &&
                  difference->kind == cases[i].kind && difference->bytes == cases[i].bytes);
        cr_assert_null(fg_flight_peek(check));
        fg_flight_note(check, 1, "", 0); /* is not looked at any more */
        cr_assert_eq(difference->index, 1u);
        fg_flight_destroy(check);
    }
    fg_flight_destroy(flight);
    fg_buf_deinit(&out);
}

/* However many were noted: what is kept is an unbroken end of them, whole and bounded. */
Test(flight, the_beginning_is_lost_and_a_rest_begins_anew)
{
    fg_flight *flight = made();
    cr_assert(!fg_flight_wants_rest(flight));
    uint32_t n = 0;
    for (; n < 500; n++) {
        note(flight, n);
        fg_buf out = rendered(flight);
        fg_flight_file file = parsed(&out);
        cr_assert(out.size <= sizeof(fg_flight_header) + 8 + 2 * CHUNK);
        cr_assert_eq(file.can_run, n < 60 || file.first == 0, "record %u", n);
        fg_buf_deinit(&out);
    }
    cr_assert(fg_flight_wants_rest(flight), "nothing that is kept can be run");
    fg_flight_rest(flight);
    uint32_t from = n;
    for (; n < 530; n++) {
        note(flight, n);
    }
    fg_buf out = rendered(flight);
    fg_flight_file file = parsed(&out);
    cr_assert(file.can_run && file.first == 1 && file.records == n - from);
    fg_flight *check;
    cr_assert_eq(fg_flight_check(&file, &check, NULL), FG_OK);
    cr_assert(fg_flight_is_partial(check));
    for (uint32_t i = from; i < n; i++) {
        note(check, i);
    }
    cr_assert(!fg_flight_differs(check)->found && !fg_flight_differs(check)->beyond);
    cr_assert_null(fg_flight_peek(check));
    fg_flight_destroy(check);
    fg_flight_destroy(flight);
    fg_buf_deinit(&out);
}

Test(flight, what_is_too_large_leaves_a_gap_that_nobody_runs_across)
{
    static const unsigned char large[CHUNK] = { 1 };
    fg_flight *flight = made();
    note(flight, 1);
    fg_flight_note(flight, 1, large, sizeof large);
    note(flight, 2);
    fg_buf out = rendered(flight);
    fg_flight_file file = parsed(&out);
    cr_assert(!file.can_run && file.header->dropped == 1);
    fg_flight *check;
    cr_assert_eq(fg_flight_check(&file, &check, NULL), FG_BAD_INPUT);
    cr_assert(fg_flight_wants_rest(flight));
    fg_flight_destroy(flight);
    fg_buf_deinit(&out);
}

Test(flight, notes_take_no_memory_and_null_keeps_nothing)
{
    fg_flight *flight = made();
    uint64_t before = fg_mem_count();
    for (uint32_t n = 0; n < 1000; n++) {
        note(flight, n);
    }
    cr_assert_eq(fg_mem_count(), before);
    fg_flight_destroy(flight);
    note(NULL, 1);
    fg_flight_inside(NULL, true);
    cr_assert(!fg_flight_wants_rest(NULL) && fg_flight_peek(NULL) == NULL &&
              !fg_flight_is_partial(NULL) && !fg_flight_write(NULL, 0));
}

/* ---- refused files ---- */

static void check_refused(const char *name, const void *bytes, size_t size_bytes, const char *why)
{
    fg_flight_file file;
    fg_error err = { 0 };
    /* At its very end, so that a sanitizer sees a byte too far. */
    char *copy = malloc(size_bytes + 1);
    memcpy(copy, bytes, size_bytes);
    cr_assert_eq(fg_flight_parse(copy, size_bytes, SHAPE, &file, &err), FG_BAD_INPUT, "%s", name);
    cr_assert_not_null(strstr(err.text, why), "%s: %s", name, err.text);
    free(copy);
}

Test(flight, damaged_files_are_refused)
{
    fg_flight *flight = made();
    for (uint32_t n = 0; n < 30; n++) {
        note(flight, n);
    }
    fg_buf out = rendered(flight);
    fg_flight_header *header = (fg_flight_header *)out.data;
    check_refused("nothing", "", 0, "no flight record");
    check_refused("a text", "FGFLIGHT and no more", 20, "no flight record");
    for (size_t size = sizeof *header; size < out.size; size++) {
        check_refused("cut", out.data, size, "cut off");
    }
    for (size_t at = sizeof *header; at < out.size; at++) {
        out.data[at] ^= 1;
        /* The zeros behind the preface are nobody's. */
        if (at < sizeof *header + 6 || at >= sizeof *header + 8) {
            check_refused("a bit", out.data, out.size, "damaged");
        }
        out.data[at] ^= 1;
    }
    header->version++;
    char version[16];
    snprintf(version, sizeof version, "version %u", FG_FLIGHT_VERSION + 1);
    check_refused("version", out.data, out.size, version);
    header->version--;
    header->shape++;
    check_refused("shape", out.data, out.size, "another build");
    header->shape--;
    header->preface_bytes = UINT32_MAX;
    check_refused("preface", out.data, out.size, "nonsense");
    header->preface_bytes = 6;
    for (int i = 0; i < 2; i++) {
        uint64_t bytes = header->chunks[i].bytes;
        header->chunks[i].bytes = UINT64_MAX - 7;
        check_refused("length", out.data, out.size, "cut off");
        header->chunks[i].bytes = bytes;
    }
    /* A record that says that it is longer than its chunk, under a hash that says that it is right. */
    char *chunk = out.data + sizeof *header + 8;
    ((fg_flight_record *)chunk)->bytes = UINT32_MAX - 3;
    header->chunks[1].hash = fg_hash64(chunk, header->chunks[1].bytes, 0);
    check_refused("record", out.data, out.size, "damaged");
    fg_flight_destroy(flight);
    fg_buf_deinit(&out);
}

/* Seeds of another version would be refused at their first bytes, and the fuzz target would begin with nothing. */
Test(flight, what_the_fuzz_target_begins_with_is_of_this_version)
{
    static const char *const seeds[] = { "standalone_crash", "worker_crash" };
    static char bytes[65536] __attribute__((aligned(8)));
    for (size_t i = 0; i < sizeof seeds / sizeof seeds[0]; i++) {
        char path[512];
        fg_flight_file file;
        fg_error err;
        snprintf(path, sizeof path, "%s/%s", FLIGHT_SEEDS, seeds[i]);
        FILE *in = fopen(path, "rb");
        cr_assert_not_null(in, "%s", path);
        size_t size = fread(bytes, 1, sizeof bytes, in);
        fclose(in);
        cr_assert_eq(fg_flight_parse(bytes, size, 0, &file, &err), FG_OK, "%s: %s", path, err.text);
    }
}

/* ---- files ---- */

static bool is_there(const char *path, uint32_t number)
{
    fg_flight_header header;
    FILE *file = fopen(path, "rb");
    bool good = file != NULL && fread(&header, sizeof header, 1, file) == 1 &&
                memcmp(header.magic, FG_FLIGHT_MAGIC, 8) == 0 && header.signal == number;
    if (file != NULL) {
        fclose(file);
    }
    return good;
}

static const char *folder_for(char folder[32])
{
    snprintf(folder, 32, "/tmp/forge-flight-XXXXXX");
    cr_assert_not_null(mkdtemp(folder));
    return folder;
}

Test(flight, a_file_is_new_and_for_its_owner_alone)
{
    char folder[32];
    fg_flight_options options = plain;
    options.directory = folder_for(folder);
    fg_flight *flight;
    cr_assert_eq(fg_flight_create(&options, &flight, NULL), FG_OK);
    const char *path = fg_flight_path(flight);
    /* Somebody has put a link there: what it leads to is left alone. */
    cr_assert_eq(symlink("/dev/full", path), 0);
    struct stat about;
    for (int i = 0; i < 2; i++) {
        note(flight, 1);
        cr_assert(fg_flight_write(flight, 0) && is_there(path, 0));
        cr_assert_eq(lstat(path, &about), 0);
        cr_assert(S_ISREG(about.st_mode) && (about.st_mode & 0777) == 0600);
    }
    cr_assert_eq(unlink(path), 0);
    cr_assert_eq(rmdir(folder), 0);
    cr_assert(!fg_flight_write(flight, 0), "its folder is gone");
    fg_flight_destroy(flight);
}

Test(flight, whether_it_could_be_written_is_known_before)
{
    char folder[32], file[40];
    fg_flight_options options = plain;
    fg_flight *flight, *into_file;
    struct stat about;
    options.directory = folder_for(folder);
    cr_assert_eq(fg_flight_create(&options, &flight, NULL), FG_OK);
    const char *path = fg_flight_path(flight);
    cr_assert(fg_flight_can_write(flight));
    cr_assert_eq(lstat(path, &about), -1, "nothing is left there");
    note(flight, 1);
    cr_assert(fg_flight_write(flight, 0) && fg_flight_can_write(flight));
    cr_assert(is_there(path, 0), "a record that is there stays");
    cr_assert_eq(unlink(path), 0);
    snprintf(file, sizeof file, "%s/file", folder);
    int made = open(file, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    cr_assert(made >= 0);
    close(made);
    options.directory = file;
    cr_assert_eq(fg_flight_create(&options, &into_file, NULL), FG_OK);
    cr_assert(!fg_flight_can_write(into_file) && errno == ENOTDIR);
    fg_flight_destroy(into_file);
    cr_assert_eq(unlink(file), 0);
    cr_assert_eq(rmdir(folder), 0);
    cr_assert(!fg_flight_can_write(flight) && errno == ENOENT);
    fg_flight_destroy(flight);
}

Test(flight, a_crash_leaves_a_file_and_ends_by_its_signal)
{
    char folder[32];
    fg_flight_options options = plain;
    options.directory = folder_for(folder);
    fg_flight *flight;
    cr_assert_eq(fg_flight_create(&options, &flight, NULL), FG_OK);
    note(flight, 1);
    pid_t child = fork();
    if (child == 0) {
        fg_flight_on_crash(flight);
        abort();
    }
    int ended;
    cr_assert_eq(waitpid(child, &ended, 0), child);
    cr_assert(WIFSIGNALED(ended) && WTERMSIG(ended) == SIGABRT);
    cr_assert(is_there(fg_flight_path(flight), SIGABRT));
    cr_assert_eq(unlink(fg_flight_path(flight)), 0);
    cr_assert_eq(rmdir(folder), 0);
    fg_flight_destroy(flight);
}

static bool make(void *ctx)
{
    fg_flight *flight;
    if (fg_flight_create(&plain, &flight, NULL) != FG_OK) {
        return false;
    }
    fg_flight_destroy(flight);
    return true;
}

Test(flight, without_memory_there_is_none)
{
    cr_assert_gt(fg_fault_each(make, NULL), 2);
    static char folder[2000];
    memset(folder, 'x', sizeof folder - 1);
    fg_flight_options options = plain;
    fg_flight *flight;
    options.directory = folder;
    cr_assert_eq(fg_flight_create(&options, &flight, NULL), FG_BAD_INPUT);
}
