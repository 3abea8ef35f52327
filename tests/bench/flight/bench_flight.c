/*
 * bench_flight [COUNT] - what the flight recorder costs: processor time of one record by its size, and of calls
 * into the dispatcher with a recorder and without. Best of five rounds.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/base/log.h"
#include "router/flight_records.h"

enum { ROUNDS = 5, ROWS = 64 };

static uint64_t cpu_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (uint64_t)time.tv_sec * 1000000000u + (uint64_t)time.tv_nsec;
}

static void must(bool good, const char *what)
{
    if (!good) {
        fprintf(stderr, "bench_flight: %s failed\n", what);
        exit(1);
    }
}

static fg_flight *recorder(void)
{
    fg_flight *flight;
    fg_flight_options options = { .bytes = 16 << 20,
                                  .shape = 1,
                                  .process = "bench",
                                  .directory = ".",
                                  .preface = "",
                                  .preface_bytes = 1 };
    must(fg_flight_create(&options, &flight, NULL) == FG_OK, "the recorder");
    return flight;
}

static void time_notes(fg_flight *flight, size_t bytes, uint32_t count)
{
    static const unsigned char data[4096];
    uint64_t best = UINT64_MAX;
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t from = cpu_ns();
        for (uint32_t i = 0; i < count; i++) {
            fg_flight_note(flight, 1, data, bytes);
        }
        uint64_t took = cpu_ns() - from;
        best = took < best ? took : best;
    }
    printf("| record of %zu bytes | | %.1f |\n", bytes, (double)best / count);
}

static fg_status swallow(void *ctx, uint32_t peer, const void *bytes, size_t size_bytes)
{
    return FG_OK;
}

static void drop(void *ctx, uint32_t peer)
{
}

typedef struct call {
    const char *name;
    fg_msg msg;
    fg_buf frame;
} call;

static double time_call(fg_flight *flight, const call *what, uint32_t count)
{
    uint64_t now = 1, best = UINT64_MAX;
    fg_dispatch *dispatch;
    fg_dispatch_options options = { .clock = fg_clock_manual(&now),
                                    .flight = flight,
                                    .lease_ms = 1000000,
                                    .place = fg_place_defaults(),
                                    .limits = { 10, 1000, 10, 0, 0 },
                                    .send = swallow,
                                    .drop = drop };
    must(fg_dispatch_create(&options, &dispatch, NULL) == FG_OK, "the dispatcher");
    fg_msg hello = { .kind = FG_MSG_HELLO };
    hello.hello = (fg_wire_hello){ .protocol = FG_PROTOCOL_VERSION,
                                   .self = { .name = "w", .epoch = 1 },
                                   .roles = FG_ROLE_PREFILL | FG_ROLE_DECODE,
                                   .able = FG_ROLE_PREFILL | FG_ROLE_DECODE,
                                   .numerics_class = "c",
                                   .layer_count = 1,
                                   .kv_head_count = 1,
                                   .head_dim = 8,
                                   .block_size = 16,
                                   .kv_dtype = 1,
                                   .block_count = 100,
                                   .max_seqs = 8,
                                   .context_max = 1000,
                                   .link_record = "r",
                                   .link_record_bytes = 1 };
    fg_buf frame;
    fg_buf_init(&frame, 0);
    must(fg_wire_encode(&hello, &frame), "encoding");
    fg_dispatch_on_up(dispatch, 3, "w#1");
    fg_dispatch_on_frame(dispatch, 3, frame.data, frame.size);
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t from = cpu_ns();
        for (uint32_t i = 0; i < count; i++) {
            if (what->frame.size == 0) {
                fg_dispatch_tick(dispatch);
            } else {
                fg_dispatch_on_frame(dispatch, 3, what->frame.data, what->frame.size);
            }
        }
        uint64_t took = cpu_ns() - from;
        best = took < best ? took : best;
    }
    fg_dispatch_destroy(dispatch);
    fg_buf_deinit(&frame);
    return (double)best / count;
}

int main(int argc, char **argv)
{
    uint32_t count = argc > 1 ? (uint32_t)strtoul(argv[1], NULL, 10) : 200000;
    static fg_wire_token rows[ROWS];
    fg_log_set_level(FG_LOG_OFF);
    if (count == 0) {
        fprintf(stderr, "usage: bench_flight [COUNT]\n");
        return 2;
    }
    for (uint32_t i = 0; i < ROWS; i++) {
        rows[i] = (fg_wire_token){ .request = 0x123456789ABCDEFu + i, .attempt = 1, .id = 7 + i };
    }
    call calls[] = {
        { .name = "tick" },
        { .name = "LOAD", .msg = { .kind = FG_MSG_LOAD, .load = { .total = 100, .free = 90 } } },
        { .name = "TOKENS of 64 rows",
          .msg = { .kind = FG_MSG_TOKENS, .tokens = { .tokens = rows, .count = ROWS } } },
    };
    fg_flight *flight = recorder();
    printf("| what | without ns | with ns |\n| --- | ---: | ---: |\n");
    time_notes(flight, 16, count);
    time_notes(flight, 128, count);
    time_notes(flight, 2048, count);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        fg_buf_init(&calls[i].frame, 0);
        must(calls[i].msg.kind == 0 || fg_wire_encode(&calls[i].msg, &calls[i].frame), "encoding");
        double without = time_call(NULL, &calls[i], count);
        double with = time_call(flight, &calls[i], count);
        printf("| %s | %.1f | %.1f |\n", calls[i].name, without, with);
        fg_buf_deinit(&calls[i].frame);
    }
    fg_flight_destroy(flight);
    return 0;
}
