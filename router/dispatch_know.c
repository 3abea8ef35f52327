/* What the router knows about its workers beyond their reports: what they have cached, and how fast they
 * are. All of it is a hint: it makes a choice better or worse, never an answer wrong. */
#include "router/dispatch_internal.h"

#include <math.h>

#include "common/base/log.h"
#include "common/base/mem.h"

/* A worker is not asked more often to tell everything again. */
#define RESYNC_NS (1000ull * 1000 * 1000)
/* Blocks of a request that was just placed count as there for so long, besides twice its predicted time. */
#define FORESEEN_NS (1000ull * 1000 * 1000)
/* What a worker did so long ago counts e times less: longer than a long prompt, shorter than a change of
 * load. At first it is taken for half, as placement does. */
#define PROMPT_LATELY_NS   16e9
#define PROMPT_SHARE_FIRST 0.5
#define PROMPT_SHARE_MIN   0.01

/* Key 0 is nobody's in the tree. */
static uint64_t key_of(fg_digest128 key)
{
    return key.low != 0 ? key.low : 1;
}

/* ---- names of blocks ---- */

void fg_dispatch_name_blocks(fg_dispatch *dispatch, fg_job *job)
{
    fg_block_namer namer;
    if (job->keys != NULL || job->input.params.cache_mode == FG_CACHE_DISABLE ||
        fg_dispatch_told_keys(dispatch, job) || !fg_registry_namer(dispatch->registry, &namer)) {
        return;
    }
    namer.secret = dispatch->options.cache_key;
    uint32_t count = job->input.token_count / namer.block_size;
    job->keys = count == 0 ? NULL : fg_mem_array(count, sizeof *job->keys);
    if (job->keys == NULL) {
        return; /* placed as if nobody had anything */
    }
    fg_digest128 parent =
        fg_block_root(&namer, job->input.params.salt_low, job->input.params.salt_high);
    job->root = key_of(parent);
    for (uint32_t i = 0; i < count; i++) {
        parent = fg_block_key(&namer, parent, i, job->input.tokens + (size_t)i * namer.block_size);
        job->keys[i] = key_of(parent);
    }
    job->key_count = count;
    fg_flight_note(dispatch->options.flight, FG_RECORD_KEYS, job->keys, count * sizeof *job->keys);
}

/* ---- who has them ---- */

const fg_place_hit *fg_dispatch_hits(fg_dispatch *dispatch, fg_job *job, uint32_t worker_count)
{
    fg_dispatch_name_blocks(dispatch, job);
    if (job->key_count == 0 || fg_job_unscored(job) > 0) {
        return NULL; /* it is computed whole */
    }
    uint32_t found = fg_residency_match(dispatch->residency, job->keys, job->key_count,
                                        fg_dispatch_now(dispatch), dispatch->found);
    found = fg_dispatch_tell_hits(dispatch, found);
    if (found == 0) {
        return NULL;
    }
    for (uint32_t i = 0; i < worker_count; i++) {
        dispatch->hits[i] = (fg_place_hit){ 0 };
    }
    for (uint32_t i = 0; i < found; i++) {
        const fg_residency_hit *hit = &dispatch->found[i];
        dispatch->hits[dispatch->index_of[hit->slot]] =
            (fg_place_hit){ .device_blocks = hit->device, .tier_blocks = hit->total };
    }
    return dispatch->hits;
}

double fg_dispatch_heat(fg_dispatch *dispatch, const fg_job *job)
{
    if (job->key_count == 0) {
        return 0;
    }
    uint32_t heat = fg_residency_heat(dispatch->residency, job->keys, 1, fg_dispatch_now(dispatch));
    return (double)fg_dispatch_tell(dispatch, FG_RECORD_HEAT, heat) / FG_RESIDENCY_HEAT;
}

/* The blocks that a request will leave on its workers: siblings that come at once go there too. */
void fg_dispatch_foresee(fg_dispatch *dispatch, const fg_job *job)
{
    if (job->key_count == 0) {
        return;
    }
    uint64_t now = fg_dispatch_now(dispatch);
    if (job->input.params.pin_ms >
        0) { /* its workers keep it, so what is known of it is kept too */
        fg_residency_pin(dispatch->residency, job->keys, job->key_count,
                         now + (uint64_t)job->input.params.pin_ms * 1000000u, now);
    }
    uint64_t until = now + FORESEEN_NS + 2 * job->record.predicted_ttft_ns;
    fg_residency_event blocks = { .parent = 0, .keys = job->keys, .count = job->key_count };
    fg_residency_predict(dispatch->residency, job->prefill->peer, &blocks, until, now);
    if (job->decode != job->prefill) {
        fg_residency_predict(dispatch->residency, job->decode->peer, &blocks, until, now);
    }
}

static void ask_again(fg_dispatch *dispatch, fg_reg_worker *worker)
{
    uint64_t now = fg_dispatch_now(dispatch);
    if (worker->resync_ns != 0 && now - worker->resync_ns < RESYNC_NS) {
        return;
    }
    worker->resync_ns = now;
    dispatch->stats.resyncs++;
    fg_info("registry", "event=resync worker=%s", worker->name);
    fg_dispatch_send(dispatch, worker, &(fg_msg){ .kind = FG_MSG_RESYNC });
}

void fg_dispatch_on_news(fg_dispatch *dispatch, fg_reg_worker *worker, const fg_msg *msg)
{
    static const uint32_t kinds[] = { [FG_NEWS_RESET] = FG_RESIDENCY_RESET,
                                      [FG_NEWS_STORED] = FG_RESIDENCY_STORED,
                                      [FG_NEWS_REMOVED] = FG_RESIDENCY_REMOVED,
                                      [FG_NEWS_CLEARED] = FG_RESIDENCY_CLEARED };
    fg_residency_event *events =
        fg_arena_array(dispatch->inbox, msg->news.count + 1, sizeof *events);
    fg_status status = FG_AGAIN;
    if (events != NULL) {
        for (uint32_t i = 0; i < msg->news.count; i++) {
            const fg_wire_news *row = &msg->news.rows[i];
            events[i] = (fg_residency_event){ .kind = kinds[row->change],
                                              .tier = row->tier,
                                              .parent = row->parent,
                                              .keys = row->keys,
                                              .count = row->key_count };
        }
        fg_residency_frame frame = { .epoch = worker->epoch,
                                     .number = msg->news.sequence,
                                     .events = events,
                                     .count = msg->news.count };
        status = fg_residency_apply(dispatch->residency, worker->peer, &frame,
                                    fg_dispatch_now(dispatch));
    }
    status = (fg_status)fg_dispatch_tell(dispatch, FG_RECORD_NEWS, (uint64_t)status);
    worker->news_sequence = msg->news.sequence;
    if (status == FG_AGAIN || status == FG_BAD_INPUT) {
        dispatch->stats.frames_refused += status == FG_BAD_INPUT;
        ask_again(dispatch, worker);
    }
}

/* Frames of one connection come in order: whoever says that it has sent more than came has lost some. */
void fg_dispatch_check_news(fg_dispatch *dispatch, fg_reg_worker *worker)
{
    bool lost = fg_residency_is_lost(dispatch->residency, worker->peer);
    lost = fg_dispatch_tell(dispatch, FG_RECORD_LOST, lost) != 0;
    if (worker->load.news_sequence > worker->news_sequence || lost) {
        ask_again(dispatch, worker);
    }
}

/* ---- how fast they are ---- */

void fg_dispatch_know_worker(fg_dispatch *dispatch, fg_reg_worker *worker)
{
    const fg_wire_speed *said = &worker->speed;
    fg_speed_claim claim = { .prefill_ns_base = (double)said->prefill_ns_base,
                             .prefill_ns_per_token = (double)said->prefill_ns_per_token,
                             .prefill_ns_per_kv = (double)said->prefill_ps_per_kv / 1000,
                             .step_ns_base = (double)said->step_ns_base,
                             .step_ns_per_row = (double)said->step_ns_per_row,
                             .push_ns_per_block = (double)said->push_ns_per_block };
    fg_speed_init(&worker->pace, &claim);
    worker->prompt_ns = PROMPT_SHARE_FIRST * PROMPT_LATELY_NS;
    worker->prompt_at_ns = fg_dispatch_now(dispatch);
    fg_residency_join(dispatch->residency, worker->peer, worker->epoch);
}

void fg_dispatch_forget_worker(fg_dispatch *dispatch, const fg_reg_worker *worker)
{
    fg_residency_forget(dispatch->residency, worker->peer);
}

static double recent_prompt_ns(const fg_reg_worker *worker, uint64_t now)
{
    return worker->prompt_ns * exp(-(double)(now - worker->prompt_at_ns) / PROMPT_LATELY_NS);
}

double fg_dispatch_prompt_share(const fg_reg_worker *worker, uint64_t now)
{
    double share = recent_prompt_ns(worker, now) / PROMPT_LATELY_NS;
    return share < PROMPT_SHARE_MIN ? PROMPT_SHARE_MIN : share < 1 ? share : 1;
}

static void note_prompt(fg_reg_worker *worker, uint64_t took_ns, uint64_t now)
{
    worker->prompt_ns = recent_prompt_ns(worker, now) + (double)took_ns;
    worker->prompt_at_ns = now;
}

void fg_dispatch_learn_first(fg_dispatch *dispatch, fg_job *job, const fg_msg *msg)
{
    uint32_t cached = job->record.cached_tokens;
    fg_speed_first first = { .position = cached,
                             .tokens = job->input.token_count - cached,
                             .ahead_tokens = job->before_tokens,
                             .queue_ns = msg->first.queue_ns,
                             .compute_ns = msg->first.share_ns,
                             .seen_ns = fg_dispatch_now(dispatch) - job->record.placed_ns,
                             .predicted_ns = job->record.predicted_ttft_ns,
                             .correction = job->record.correction };
    if (job->input.params.want_scores == 0) { /* else its rows did more than those of others */
        fg_speed_learn_first(&job->prefill->pace, &first);
    }
    note_prompt(job->prefill, first.compute_ns < first.seen_ns ? first.compute_ns : first.seen_ns,
                fg_dispatch_now(dispatch));
}

void fg_dispatch_learn_push(fg_job *job, const fg_msg *msg)
{
    uint32_t computed = job->computed_tokens, chunks = job->record.chunks;
    uint32_t last = computed / (chunks > 0 ? chunks : 1) / job->prefill->block_size + 1;
    fg_speed_learn_push(&job->prefill->pace, msg->pushed.blocks, last,
                        (double)job->record.prefill_compute_ns, msg->pushed.exposed_ns);
}

/* A gap between two messages tells a step's time only where nothing but the same sequences ran. Where guesses were right a
 * step brought several tokens of one: what is learned is what one of each takes, for that is asked of it. */
void fg_dispatch_learn_step(fg_dispatch *dispatch, fg_reg_worker *worker, const fg_msg *msg)
{
    uint64_t now = fg_dispatch_now(dispatch);
    uint32_t tokens = msg->tokens.count, rows = tokens > 0;
    for (uint32_t i = 1; i < tokens; i++) { /* those of one sequence lie together */
        rows += msg->tokens.tokens[i].request != msg->tokens.tokens[i - 1].request;
    }
    if (worker->tokens_ns != 0 && worker->ahead == 0 && worker->tokens_rows == rows && rows > 0 &&
        worker->tokens_decodes == worker->decodes) {
        uint64_t gap = now - worker->tokens_ns;
        gap = tokens == rows ? gap : (uint64_t)((double)gap * rows / tokens);
        fg_speed_learn_step(&worker->pace, rows, worker->context_tokens, gap);
    }
    worker->tokens_ns = worker->ahead == 0 ? now : 0;
    worker->tokens_rows = rows;
    worker->tokens_decodes = worker->decodes;
}
