/* The flight record of a world's router is run again when that router ends: it must do the same. */
#include "common/base/mem.h"
#include "router/flight_records.h"
#include "tests/sim/replay.h"
#include "tests/sim/world_internal.h"

fg_flight *sim_open_flight(sim_world *w, const fg_dispatch_options *options)
{
    if (w->options.flight_bytes == 0) {
        return NULL;
    }
    fg_buf preface;
    fg_flight *flight;
    fg_error err;
    fg_buf_init(&preface, 0);
    FG_ASSERT(fg_record_put_options(options, &preface));
    fg_flight_options with = { .bytes = w->options.flight_bytes,
                               .shape = fg_record_shape(),
                               .process = "router",
                               .directory = ".",
                               .preface = preface.data,
                               .preface_bytes = preface.size };
    fg_status status = fg_flight_create(&with, &flight, &err);
    FG_ASSERT(status == FG_OK, "%s", err.text);
    fg_buf_deinit(&preface);
    return flight;
}

void sim_close_flight(sim_world *w, fg_flight *flight)
{
    if (flight == NULL) {
        return;
    }
    fg_buf bytes;
    fg_flight_file file;
    fg_error err = { 0 };
    fg_replay_progress progress = { 0 };
    fg_replay_options options = { .progress = &progress };
    fg_buf_init(&bytes, 0);
    FG_ASSERT(fg_flight_render(flight, &bytes));
    fg_status status = fg_flight_parse(bytes.data, bytes.size, fg_record_shape(), &file, &err);
    FG_ASSERT(status == FG_OK, "%s", err.text);
    if (file.can_run) {
        status = fg_replay_run(&file, &options, &err);
        FG_ASSERT(status == FG_OK, "%s", err.text);
        FG_ASSERT(!progress.differs, "call %llu: %s", (unsigned long long)progress.calls,
                  progress.text);
        bool rest = file.header->chunks[file.first].kind == FG_FLIGHT_REST;
        w->report->replayed++;
        w->report->replayed_rest += rest;
        w->report->replayed_calls += progress.calls;
    }
    fg_buf_deinit(&bytes);
    fg_flight_destroy(flight);
}
