#include "tests/sim/replay.h"

#include <inttypes.h>
#include <string.h>

#include "common/base/mem.h"
#include "tests/sim/replay_internal.h"

/* ---- which kind ---- */

static const fg_replay_ops *ops_of(const fg_flight_header *header)
{
    return header->shape == fg_replay_worker.shape() ? &fg_replay_worker : &fg_replay_router;
}

fg_status fg_replay_parse(const void *bytes, size_t size_bytes, fg_flight_file *file_out,
                          fg_error *err)
{
    const fg_replay_ops *ops =
        size_bytes < sizeof(fg_flight_header) ? &fg_replay_router : ops_of(bytes);
    return fg_flight_parse(bytes, size_bytes, ops->shape(), file_out, err);
}

bool fg_replay_is_worker(const fg_flight_file *file)
{
    return ops_of(file->header) == &fg_replay_worker;
}

const char *fg_replay_name(const fg_flight_file *file, uint32_t kind)
{
    return ops_of(file->header)->name(kind);
}

bool fg_replay_ends(const void *text, size_t size_bytes)
{
    return size_bytes > 0 && memchr(text, '\0', size_bytes) == (const char *)text + size_bytes - 1;
}

const fg_flight_record *fg_replay_next(fg_replay *r)
{
    const fg_flight_record *record = fg_flight_peek(r->flight);
    if (record == NULL || r->status != FG_OK) {
        return NULL;
    }
    if (!r->ops->is_sound(record)) {
        r->status = fg_fail(&r->err, FG_BAD_INPUT, "record %" PRIu64 " (%s) is damaged",
                            fg_flight_index(r->flight), r->ops->name(record->kind));
        return NULL;
    }
    return record;
}

void fg_replay_show(const fg_replay_ops *ops, FILE *out, const fg_flight_record *record,
                    uint64_t began_ns)
{
    char text[256];
    ops->describe(record->kind, fg_flight_bytes(record), record->bytes, text, sizeof text);
    if (record->kind < FG_FLIGHT_KNOWN) {
        const fg_flight_call *call = fg_flight_bytes(record);
        double ms = (double)(int64_t)(call->now_ns - began_ns) / 1e6;
        fprintf(out, "%13.6f %s%s\n", ms, call->depth > 0 ? "(inside) " : "", text);
    } else {
        fprintf(out, "%13s   %s\n", "", text);
    }
}

/* ---- telling ---- */

/* The history up to what was compared so far. */
static void show(fg_replay *r)
{
    const fg_flight_record *record, *quiet = NULL;
    FILE *out = r->options->history;
    /* What a quiet call did is shown below it; one that did nothing is not shown. */
    while (out != NULL && fg_flight_index(r->shown) < fg_flight_index(r->flight) &&
           (record = fg_flight_peek(r->shown)) != NULL) {
        if (quiet != NULL) {
            fg_replay_show(r->ops, out, quiet, r->options->progress->began_ns);
            quiet = NULL;
        }
        if (record->kind < FG_FLIGHT_KNOWN && r->ops->is_quiet(record->kind)) {
            quiet = record;
        } else {
            fg_replay_show(r->ops, out, record, r->options->progress->began_ns);
        }
        fg_flight_skip(r->shown);
    }
}

static void tell_difference(fg_replay *r, const fg_flight_record *wanted, const char *now)
{
    fg_replay_progress *progress = r->options->progress;
    char then[160] = "nothing";
    if (wanted != NULL && r->ops->is_sound(wanted)) {
        r->ops->describe(wanted->kind, fg_flight_bytes(wanted), wanted->bytes, then, sizeof then);
    }
    snprintf(progress->text, sizeof progress->text, "then: %.150s; now: %.150s", then, now);
    progress->differs = true;
}

static void look_for_difference(fg_replay *r)
{
    const fg_flight_difference *difference = fg_flight_differs(r->flight);
    if (difference->found) {
        char now[160];
        r->ops->describe(difference->kind, difference->now, difference->bytes, now, sizeof now);
        tell_difference(r, difference->wanted, now);
        return;
    }
    const fg_flight_record *record = fg_replay_next(r);
    if (record == NULL) {
        return;
    }
    bool outer = record->kind < FG_FLIGHT_KNOWN &&
                 ((const fg_flight_call *)fg_flight_bytes(record))->depth == 0;
    bool known = record->kind >= FG_FLIGHT_KNOWN && record->kind < FG_FLIGHT_TOLD;
    if (!outer && !known) {
        tell_difference(r, record, "nothing");
    }
}

/* ---- from the beginning to the end ---- */

static void run_call(fg_replay *r, const fg_flight_record *record)
{
    fg_replay_progress *progress = r->options->progress;
    const fg_flight_call *call = fg_flight_bytes(record);
    if (progress->calls++ == 0) {
        progress->began_ns = call->now_ns;
    }
    progress->now_ns = r->now_ns = call->now_ns;
    progress->last = fg_flight_index(r->flight) == r->last;
    progress->kind = record->kind;
    if (r->options->history != NULL && !r->ops->is_quiet(record->kind)) {
        /* Before it is made: it may end this process. */
        fg_replay_show(r->ops, r->options->history, record, progress->began_ns);
        fg_flight_skip(r->shown);
        fflush(r->options->history);
    }
    r->ops->call(r, record);
    progress->records = fg_flight_index(r->flight);
    look_for_difference(r);
    show(r);
}

static fg_status find_last(fg_replay *r, const fg_flight_file *file, fg_error *err)
{
    fg_flight *scan;
    const fg_flight_record *record;
    fg_status status = fg_flight_check(file, &scan, err);
    while (status == FG_OK && (record = fg_flight_peek(scan)) != NULL) {
        const fg_flight_call *call = fg_flight_bytes(record);
        if (record->kind < FG_FLIGHT_KNOWN && record->bytes >= sizeof *call && call->depth == 0) {
            r->last = fg_flight_index(scan);
        }
        fg_flight_skip(scan);
    }
    if (status == FG_OK) {
        fg_flight_destroy(scan);
    }
    return status;
}

static void run_all(fg_replay *r)
{
    fg_replay_progress *progress = r->options->progress;
    bool knows = !fg_flight_is_partial(r->flight); /* or it has to be told first */
    const fg_flight_record *record;
    while (!progress->differs && (record = fg_replay_next(r)) != NULL) {
        if (record->kind >= FG_FLIGHT_KNOWN) {
            if (!knows) {
                r->status = r->ops->restore(r, record, &r->err);
            }
            fg_flight_skip(r->flight);
            show(r);
            continue;
        }
        if (!knows) {
            r->status = r->ops->ready(r, &r->err);
            knows = true;
        }
        if (r->status == FG_OK) {
            run_call(r, record);
        }
    }
    progress->ended = r->status == FG_OK && !progress->differs;
}

static fg_status open_all(fg_replay *r, const fg_flight_file *file, fg_error *err)
{
    fg_status status = fg_flight_check(file, &r->flight, err);
    status = status != FG_OK ? status : fg_flight_check(file, &r->shown, err);
    status = status != FG_OK ? status : find_last(r, file, err);
    return status != FG_OK ? status : r->ops->open(r, file, err);
}

fg_status fg_replay_run(const fg_flight_file *file, const fg_replay_options *options, fg_error *err)
{
    fg_replay r = { .options = options, .ops = ops_of(file->header) };
    fg_status status = open_all(&r, file, err);
    if (status == FG_OK) {
        run_all(&r);
        status = r.status;
        if (status != FG_OK) {
            fg_fail(err, status, "%s", r.err.text);
        }
    }
    r.ops->close(&r);
    fg_flight_destroy(r.flight);
    fg_flight_destroy(r.shown);
    return status;
}
