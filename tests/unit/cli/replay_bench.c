#include "tests/unit/cli/replay_bench.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/sim.h"
#include "common/base/hash.h"
#include "tests/support/test.h"

fg_buf replay_kept(const fg_flight *flight)
{
    fg_buf out;
    fg_buf_init(&out, 0);
    cr_assert(fg_flight_render(flight, &out));
    return out;
}

fg_flight_file replay_parsed(const fg_buf *bytes)
{
    fg_flight_file file;
    fg_error err;
    cr_assert_eq(fg_replay_parse(bytes->data, bytes->size, &file, &err), FG_OK, "%s", err.text);
    return file;
}

int replay_code(const fg_buf *bytes)
{
    char path[] = "/tmp/forge-replay-XXXXXX";
    int file = mkstemp(path);
    cr_assert_eq(write(file, bytes->data, bytes->size), (ssize_t)bytes->size);
    close(file);
    int out = dup(STDOUT_FILENO), err = dup(STDERR_FILENO), nowhere = open("/dev/null", O_WRONLY);
    fflush(stdout);
    dup2(nowhere, STDOUT_FILENO);
    dup2(nowhere, STDERR_FILENO);
    const char *const argv[] = { "--replay", path };
    const char *const environment[] = { NULL };
    int code = fg_cli_sim(2, argv, environment);
    fflush(stdout);
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    close(out);
    close(err);
    close(nowhere);
    unlink(path);
    return code;
}

fg_replay_progress replay_run(const fg_buf *bytes)
{
    fg_flight_file file = replay_parsed(bytes);
    fg_replay_progress progress = { 0 };
    fg_replay_options options = { .progress = &progress };
    fg_error err;
    cr_assert_eq(fg_replay_run(&file, &options, &err), FG_OK, "%s", err.text);
    return progress;
}

void *replay_find(fg_buf *bytes, uint32_t kind)
{
    fg_flight_file file = replay_parsed(bytes);
    fg_flight *scan;
    const fg_flight_record *record;
    cr_assert_eq(fg_flight_check(&file, &scan, NULL), FG_OK);
    while ((record = fg_flight_peek(scan)) != NULL && record->kind != kind) {
        fg_flight_skip(scan);
    }
    fg_flight_destroy(scan);
    cr_assert_not_null(record, "no %s", fg_replay_name(&file, kind));
    return (char *)record + sizeof *record;
}

void replay_seal(fg_buf *bytes)
{
    fg_flight_header *header = (fg_flight_header *)bytes->data;
    size_t at = sizeof *header + ((header->preface_bytes + 7u) & ~7u);
    header->preface_hash = fg_hash64(header + 1, header->preface_bytes, 0);
    for (int i = 0; i < 2; i++) {
        header->chunks[i].hash = fg_hash64(bytes->data + at, header->chunks[i].bytes, 0);
        at += header->chunks[i].bytes;
    }
}

void replay_each_prefix(fg_buf *bytes)
{
    fg_flight_header *header = (fg_flight_header *)bytes->data;
    fg_flight_file file = replay_parsed(bytes);
    uint64_t at = 0, whole = header->chunks[1].bytes;
    cr_assert_eq(header->chunks[0].bytes, 0u);
    while (at < whole) {
        const fg_flight_record *record = (const fg_flight_record *)(file.chunks[1] + at);
        header->chunks[1].bytes = at;
        bytes->size -= whole - at;
        replay_seal(bytes);
        fg_replay_progress progress = replay_run(bytes);
        cr_assert(progress.ended, "%llu: %s", (unsigned long long)at, progress.text);
        bytes->size += whole - at;
        at += sizeof *record + ((record->bytes + 7u) & ~7u);
    }
}

bool replay_contains(const fg_buf *bytes, const void *what, size_t size_bytes)
{
    return memmem(bytes->data, bytes->size, what, size_bytes) != NULL;
}

void replay_end_inside(fg_buf *bytes)
{
    fg_flight_header *header = (fg_flight_header *)bytes->data;
    header->signal = SIGABRT;
    header->inside = 1;
}

void replay_check_cases(const fg_flight *flight, const replay_case *cases, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        fg_buf bytes = replay_kept(flight);
        cases[i].change(&bytes);
        replay_seal(&bytes);
        cr_assert_eq(replay_code(&bytes), cases[i].code, "%s", cases[i].name);
        fg_buf_deinit(&bytes);
    }
}
