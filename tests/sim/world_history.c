/*
 * The history of a world: a line per event. Nothing in it depends on addresses, real time or the order of
 * a hash table, so that one seed prints the same bytes every time.
 */
#include <inttypes.h>
#include <stdarg.h>

#include "common/base/fault.h"
#include "router/dispatch_internal.h"
#include "tests/sim/world_internal.h"

void sim_note(const sim_world *w, const char *who, const char *what, const char *format, ...)
{
    if (w->options.history == NULL) {
        return;
    }
    va_list args;
    va_start(args, format);
    fprintf(w->options.history, "%13.6f %-6s %-10s ", (double)sim_now(w) / 1e6, who, what);
    vfprintf(w->options.history, format, args);
    fputc('\n', w->options.history);
    va_end(args);
}

void sim_note_frame(const sim_world *w, const char *who, const char *what, const char *peer,
                    const void *bytes, size_t size_bytes)
{
    if (w->options.history == NULL) {
        return;
    }
    uint64_t left = fg_fault_hold(); /* looking must not change what is seen */
    fg_error err;
    fg_msg msg = { 0 };
    fg_arena_reset(w->inbox);
    if (fg_wire_decode(bytes, size_bytes, w->inbox, &msg, &err) != FG_OK) {
        sim_note(w, who, what, "unreadable peer=%s", peer);
    } else if (msg.request != 0) {
        sim_note(w, who, what, "%s peer=%s req=%016" PRIx64 " attempt=%u", fg_msg_name(msg.kind),
                 peer, msg.request, msg.attempt);
    } else {
        sim_note(w, who, what, "%s peer=%s", fg_msg_name(msg.kind), peer);
    }
    fg_fault_resume(left);
}

void sim_note_states(sim_world *w)
{
    if (w->options.history == NULL) {
        return;
    }
    for (uint32_t i = 0; i < w->request_count; i++) {
        sim_request *r = &w->requests[i];
        const sim_router *router = &w->routers[r->router];
        const fg_job *job = router->dispatch != NULL && sim_request_live(r)
                                ? fg_map_get(router->dispatch->by_id, r->id)
                                : NULL;
        if (job == NULL ||
            (r->shown_attempt == job->attempt && r->shown_state == job->life.state)) {
            continue;
        }
        r->shown_attempt = job->attempt;
        r->shown_state = (uint8_t)job->life.state;
        sim_note(w, router->process.name, "state",
                 "%s request=%u req=%016" PRIx64 " attempt=%u prefill=%s decode=%s",
                 fg_life_name(job->life.state), i, r->id, job->attempt,
                 job->prefill != NULL ? job->prefill->name : "-",
                 job->decode != NULL ? job->decode->name : "-");
    }
}

static void describe_worker(const sim_worker *s, FILE *out)
{
    fg_worker_stats stats;
    if (!s->alive) {
        fprintf(out, "  %s: dead\n", s->process.name);
        return;
    }
    fg_worker_stats_get(s->worker, &stats);
    fprintf(out,
            "  %s: joined=%d free=%u cached=%u/%u held=%u pinned=%u quarantined=%u promised=%u "
            "running=%u waiting=%u closing=%u\n",
            s->process.name, fg_worker_joined(s->worker), stats.pool.free, stats.pool.cached,
            stats.pool.total, stats.pool.held, stats.pool.pinned, stats.pool.quarantined,
            stats.pool.promised, stats.running, stats.waiting, stats.closing);
}

void sim_describe(const sim_world *w, FILE *out)
{
    fg_buf state;
    fg_buf_init(&state, 0);
    for (uint32_t i = 0; i < w->router_count; i++) {
        fg_buf_clear(&state);
        if (w->routers[i].dispatch != NULL &&
            fg_dispatch_render_state(w->routers[i].dispatch, &state)) {
            fprintf(out, "%s: %s\n", w->routers[i].process.name, state.data);
        }
    }
    fg_buf_deinit(&state);
    for (uint32_t i = 0; i < w->worker_count; i++) {
        describe_worker(&w->workers[i], out);
    }
    for (uint32_t i = 0; i < w->request_count; i++) {
        const sim_request *r = &w->requests[i];
        if (sim_request_open(r)) {
            fprintf(out, "  request %u: started=%d tokens=%u\n", i, r->started,
                    r->count - r->prompt_count);
        }
    }
}
