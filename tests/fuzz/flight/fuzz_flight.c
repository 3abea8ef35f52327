/*
 * fuzz_flight - any bytes as a flight record: as they are, and as the parts of a file whose hashes are right. What
 * is accepted can be walked and described, as a router's and as a worker's; the options in it make a dispatcher or a
 * worker or are refused. Calls are not made: a record that lies may break an assertion, which is why `forge sim` makes them in a child process.
 */
#include <stdlib.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/worker/worker_records.h"
#include "router/flight_records.h"
#include "tests/sim/replay_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes);

static void walk(const fg_flight_file *file, const fg_replay_ops *ops)
{
    fg_error err;
    fg_flight *flight;
    const fg_flight_record *record;
    uint64_t count = 0;
    if (fg_flight_check(file, &flight, &err) != FG_OK) {
        FG_ASSERT(!file->can_run);
        return;
    }
    for (; (record = fg_flight_peek(flight)) != NULL; count++) {
        char text[256];
        if (ops->is_sound(record)) {
            ops->describe(record->kind, fg_flight_bytes(record), record->bytes, text, sizeof text);
        }
        fg_flight_skip(flight);
    }
    FG_ASSERT(count == file->records);
    fg_flight_destroy(flight);
}

static void read_options(const fg_flight_file *file)
{
    static const char *prefill[FG_LIMIT_WORKERS], *decode[FG_LIMIT_WORKERS];
    const fg_work_options *work;
    fg_dispatch_options dispatch;
    fg_worker_options worker;
    fg_error err;
    fg_record_get_options(file->preface, file->header->preface_bytes, prefill, decode, &dispatch,
                          &err);
    fg_work_get_options(file->preface, file->header->preface_bytes, &work, &worker, &err);
}

static void parse(const void *bytes, size_t size_bytes)
{
    fg_flight_file file;
    fg_error err;
    void *copy = malloc(size_bytes + 1);
    memcpy(copy, bytes, size_bytes);
    if (fg_flight_parse(copy, size_bytes, 0, &file, &err) == FG_OK) {
        read_options(&file);
        walk(&file, &fg_replay_router);
        walk(&file, &fg_replay_worker);
    }
    free(copy);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes)
{
    parse(bytes, size_bytes);
    if (size_bytes < 8) {
        return 0;
    }
    /* The first bytes say where the parts begin. */
    size_t rest = (size_bytes - 8) & ~(size_t)7;
    size_t preface = rest * bytes[0] / 256 & ~(size_t)7;
    size_t first = (rest - preface) * bytes[1] / 256 & ~(size_t)7;
    size_t second = rest - preface - first;
    fg_flight_header header = { .version = FG_FLIGHT_VERSION,
                                .header_bytes = sizeof header,
                                .preface_bytes = (uint32_t)preface };
    memcpy(header.magic, FG_FLIGHT_MAGIC, 8);
    header.preface_hash = fg_hash64(bytes + 8, preface, 0);
    header.chunks[0] = (fg_flight_chunk){ .bytes = first, .kind = bytes[2] % 4 };
    header.chunks[1] = (fg_flight_chunk){ .bytes = second, .kind = bytes[3] % 4 };
    header.chunks[0].hash = fg_hash64(bytes + 8 + preface, first, 0);
    header.chunks[1].hash = fg_hash64(bytes + 8 + preface + first, second, 0);
    char *file = malloc(sizeof header + rest);
    memcpy(file, &header, sizeof header);
    memcpy(file + sizeof header, bytes + 8, rest);
    parse(file, sizeof header + rest);
    free(file);
    return 0;
}
