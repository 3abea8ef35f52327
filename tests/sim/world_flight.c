/* The flight records of a world's router and workers are run again when those end: they must do the same. */
#include "common/base/mem.h"
#include "common/worker/worker_records.h"
#include "router/flight_records.h"
#include "tests/sim/replay.h"
#include "tests/sim/world_internal.h"

static fg_flight *open_flight(const sim_world *w, const char *process, uint64_t shape,
                              const void *preface, size_t preface_bytes)
{
    fg_flight *flight;
    fg_error err;
    fg_flight_options with = { .bytes = w->options.flight_bytes,
                               .shape = shape,
                               .process = process,
                               .directory = ".",
                               .preface = preface,
                               .preface_bytes = preface_bytes };
    fg_status status = fg_flight_create(&with, &flight, &err);
    FG_ASSERT(status == FG_OK, "%s", err.text);
    return flight;
}

fg_flight *sim_open_flight(sim_world *w, const fg_dispatch_options *options)
{
    if (w->options.flight_bytes == 0) {
        return NULL;
    }
    fg_buf preface;
    fg_buf_init(&preface, 0);
    FG_ASSERT(fg_record_put_options(options, &preface));
    fg_flight *flight = open_flight(w, "router", fg_record_shape(), preface.data, preface.size);
    fg_buf_deinit(&preface);
    return flight;
}

fg_flight *sim_open_worker_flight(sim_world *w, const fg_worker_options *options)
{
    if (w->options.flight_bytes == 0) {
        return NULL;
    }
    fg_work_options preface = fg_work_put_options(options);
    return open_flight(w, options->name, fg_work_shape(), &preface, sizeof preface);
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
    fg_status status = fg_replay_parse(bytes.data, bytes.size, &file, &err);
    FG_ASSERT(status == FG_OK, "%s", err.text);
    if (file.can_run) {
        status = fg_replay_run(&file, &options, &err);
        FG_ASSERT(status == FG_OK, "%s", err.text);
        FG_ASSERT(!progress.differs, "%s, call %llu: %s", file.header->process,
                  (unsigned long long)progress.calls, progress.text);
        bool rest = file.header->chunks[file.first].kind == FG_FLIGHT_REST;
        bool worker = fg_replay_is_worker(&file);
        w->report->replayed += !worker;
        w->report->replayed_workers += worker;
        w->report->replayed_rest += rest && !worker;
        w->report->replayed_workers_rest += rest && worker;
        w->report->replayed_calls += progress.calls;
    }
    fg_buf_deinit(&bytes);
    fg_flight_destroy(flight);
}
