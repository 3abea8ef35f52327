/* A worker's record: the calls are made on a worker whose engine, link and bus answer what they answered then. */
#include <inttypes.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/worker/worker_records.h"
#include "decode-worker/decode.h"
#include "prefill-worker/prefill.h"
#include "tests/sim/replay_show.h"

/* Tokens as the worker gets them: none is known but for what follows from it. */
enum { PLAIN_TOKEN = 0, END_TOKEN = 1, OTHER_TOKEN = 2, BAD_TOKEN = INT32_MAX };

typedef struct subject {
    fg_engine engine; /* first: the worker's engine is this */
    fg_replay *r;
    fg_worker *worker;
    fg_tier *tier;
    fg_link_events link;
    fg_step *steps[FG_ENGINE_STEPS_MAX]; /* begun, the oldest first */
    uint32_t step_count;
    fg_arena *arena;
    fg_buf frame;
    uint32_t router_count;
    uint64_t restored; /* a bit for each kind of record */
    bool wants_tier;
} subject;

/* ---- around the worker ---- */

static fg_status on_send(void *ctx, uint32_t router, const void *bytes, size_t size_bytes)
{
    subject *s = ctx;
    const fg_flight_record *record = fg_replay_next(s->r);
    if (record == NULL || record->kind != FG_WORK_SENT) {
        return FG_OK; /* the note that follows finds the difference */
    }
    s->r->options->progress->sent++;
    return (fg_status)((const fg_work_sent *)fg_flight_bytes(record))->status;
}

static void on_reconnect(void *ctx, uint32_t router, uint64_t epoch)
{
}

static bool is_end(void *ctx, uint32_t token)
{
    return token == END_TOKEN;
}

/* ---- the engine ---- */

static fg_status begin(fg_engine *engine, fg_step *step, fg_error *err)
{
    subject *s = (subject *)engine;
    if (s->step_count == FG_ENGINE_STEPS_MAX) {
        return fg_fail(err, FG_AGAIN, "too many steps");
    }
    s->steps[s->step_count++] = step;
    return FG_OK;
}

/* What was chosen, so far as it matters: an end, and whether guesses were right. Tokens are compared with those of cached
 * blocks, so all that are chosen are alike; what was not right is another guess, put in its place in the sequence. */
static void choose(fg_step_seq *item, unsigned char byte)
{
    uint32_t accepted = byte >> FG_WORK_ACCEPTED_SHIFT;
    uint32_t drafts = item->sample_rows > 0 ? item->sample_rows - 1 : 0;
    uint32_t *guesses = (uint32_t *)(uintptr_t)(item->tokens + item->token_count - drafts);
    uint32_t end = (byte & FG_WORK_ENDED) != 0 ? END_TOKEN : PLAIN_TOKEN;
    item->broken_out = (byte & FG_WORK_BROKE) != 0;
    item->token_out = end;
    if (item->sample && drafts == 0) {
        guesses[0] = (byte & FG_WORK_RIGHT) != 0 ? end : OTHER_TOKEN;
    }
    for (uint32_t i = 0; i <= drafts && drafts > 0; i++) {
        item->tokens_out[i] = i < accepted ? PLAIN_TOKEN : end;
        if (i < drafts) {
            guesses[i] = i < accepted ? PLAIN_TOKEN : OTHER_TOKEN;
        }
        if (item->digests_out != NULL) {
            item->digests_out[i] = 0;
        }
    }
}

/* The oldest step ends as the record says, if that says that one has ended. Digests that were as expected are 0, as
 * everything that they are compared with. */
static fg_step *poll(fg_engine *engine)
{
    subject *s = (subject *)engine;
    const fg_flight_record *record = s->step_count > 0 ? fg_replay_next(s->r) : NULL;
    if (record == NULL || record->kind != FG_WORK_STEP) {
        return NULL;
    }
    const fg_work_step *told = fg_flight_bytes(record);
    const fg_work_ask *ask = (const fg_work_ask *)(told + 1);
    const unsigned char *flag = (const unsigned char *)(ask + told->ask_count);
    fg_step *step = s->steps[0];
    if (told->ask_count != step->ask_count || told->item_count != step->seq_count ||
        told->digest_count != step->digest_count || told->copy_count != step->copy_count) {
        return NULL; /* what was begun is not what was begun then; that was found already */
    }
    step->began_ns_out = 0;
    step->compute_ns_out = told->compute_ns;
    step->copy_ns_out = told->copy_ns;
    step->drafted_out = told->drafted;
    for (uint32_t i = 0; i < step->ask_count; i++) {
        step->asks[i].known_out = ask[i].known;
        step->asks[i].count_out = 0; /* the record says what was guessed in the end */
    }
    for (uint32_t i = 0; i < step->seq_count; i++) {
        choose(&step->seqs[i], *flag++);
        step->seqs[i].digest_out = 0;
    }
    for (uint32_t i = 0; i < step->digest_count; i++) {
        step->digests[i].digest_out = *flag++ != 0;
    }
    for (uint32_t i = 0; i < step->copy_count; i++) {
        step->copies[i].digest_out = *flag++ != 0;
    }
    s->steps[0] = s->steps[1];
    s->step_count--;
    return step;
}

static void close_engine(fg_engine *engine)
{
}

static const fg_engine_ops engine_ops = { .begin = begin, .poll = poll, .close = close_engine };

/* ---- the calls ---- */

static void no_memory(subject *s)
{
    s->r->status = fg_fail(&s->r->err, FG_AGAIN, "out of memory for a frame");
}

/* The frame with as many tokens as there were. */
static void give_frame(subject *s, const fg_flight_record *record)
{
    const fg_work_frame *head = fg_flight_bytes(record);
    fg_msg msg;
    fg_error err;
    fg_arena_reset(s->arena);
    fg_status status = fg_wire_decode(head + 1, record->bytes - sizeof *head, s->arena, &msg, &err);
    if (status != FG_OK) {
        s->r->status =
            fg_fail(&s->r->err, FG_BAD_INPUT, "it is damaged: a frame says: %s", err.text);
        return;
    }
    if (msg.kind == FG_MSG_PREFILL || msg.kind == FG_MSG_RESERVE) {
        uint32_t *tokens = fg_arena_array(s->arena, head->token_count + 1u, sizeof *tokens);
        if (tokens == NULL) {
            no_memory(s);
            return;
        }
        memset(tokens, 0, (head->token_count + 1u) * sizeof *tokens);
        tokens[0] = head->bad_token != 0 ? BAD_TOKEN : PLAIN_TOKEN;
        bool prefill = msg.kind == FG_MSG_PREFILL;
        *(prefill ? &msg.prefill.tokens : &msg.reserve.tokens) = tokens;
        *(prefill ? &msg.prefill.token_count : &msg.reserve.token_count) = head->token_count;
        s->r->options->progress->starts++;
    }
    fg_buf_clear(&s->frame);
    if (!fg_wire_encode(&msg, &s->frame)) {
        no_memory(s);
        return;
    }
    fg_worker_on_frame(s->worker, head->call.sunken, s->frame.data, s->frame.size);
}

static void give_commit(subject *s, const fg_work_news *news)
{
    uint64_t *zeros = fg_mem_array(news->count + 1u, sizeof *zeros);
    if (zeros == NULL) {
        no_memory(s);
        return;
    }
    fg_link_commit commit = { .ticket = news->ticket,
                              .block_count = news->count,
                              .digests = zeros,
                              .first_token = news->bad_token != 0 ? BAD_TOKEN : PLAIN_TOKEN };
    s->link.on_commit(s->link.ctx, &commit);
    fg_mem_free(zeros);
}

static void call(fg_replay *r, const fg_flight_record *record)
{
    subject *s = r->subject;
    const fg_work_news *news = fg_flight_bytes(record);
    const fg_flight_call *called = fg_flight_bytes(record);
    if (called->sunken >= s->router_count) {
        s->r->status = fg_fail(&s->r->err, FG_BAD_INPUT, "it is damaged: a router is unknown");
        return;
    }
    switch (record->kind) {
    case FG_WORK_UP:
        fg_worker_on_up(s->worker, called->sunken);
        break;
    case FG_WORK_FRAME:
        give_frame(s, record);
        break;
    case FG_WORK_BAD_FRAME:
        fg_worker_on_frame(s->worker, called->sunken, "\xFF", 1);
        break;
    case FG_WORK_DOWN:
        fg_worker_on_down(s->worker, called->sunken);
        break;
    case FG_WORK_ENGINE:
        fg_worker_on_engine(s->worker);
        break;
    case FG_WORK_TICK:
        fg_worker_tick(s->worker);
        break;
    case FG_WORK_COMMIT:
        give_commit(s, news);
        break;
    case FG_WORK_FENCED:
        s->link.on_fenced(s->link.ctx, news->ticket);
        break;
    case FG_WORK_ANSWER:
        s->link.on_answer(s->link.ctx, news->ticket, (const uint32_t *)(news + 1), news->count);
        break;
    case FG_WORK_DRAINED:
        s->link.on_drained(s->link.ctx, news->ticket, FG_CANCELLED);
        break;
    case FG_WORK_DRAIN:
        fg_worker_drain(s->worker);
        break;
    case FG_WORK_ABORT:
        fg_worker_abort_all(s->worker,
                            (const char *)fg_flight_bytes(record) + sizeof(fg_flight_call));
        break;
    default:
        fg_worker_clear_cache(s->worker);
        break;
    }
}

/* ---- its life ---- */

static bool was_restored(const subject *s, fg_work_kind kind)
{
    return (s->restored >> kind & 1) != 0;
}

/* The order in which a worker notes them; only peers and pins come more than once. */
static bool is_next(const subject *s, uint32_t kind)
{
    bool pool = was_restored(s, FG_WORK_POOL);
    switch (kind) {
    case FG_WORK_REST:
        return s->restored == 0;
    case FG_WORK_PEER:
    case FG_WORK_PIN:
    case FG_WORK_POOL:
        return was_restored(s, FG_WORK_REST) && !pool;
    case FG_WORK_PREFIX:
    case FG_WORK_TIER:
        return pool && !was_restored(s, (fg_work_kind)kind);
    default:
        return false;
    }
}

static fg_status restore(fg_replay *r, const fg_flight_record *record, fg_error *err)
{
    subject *s = r->subject;
    if (!is_next(s, record->kind)) {
        return fg_fail(err, FG_BAD_INPUT, "it is damaged: its beginning is out of order");
    }
    s->restored |= (uint64_t)1 << record->kind;
    return fg_worker_restore(s->worker, record, err);
}

static fg_status ready(fg_replay *r, fg_error *err)
{
    const subject *s = r->subject;
    bool all = was_restored(s, FG_WORK_REST) && was_restored(s, FG_WORK_POOL) &&
               was_restored(s, FG_WORK_PREFIX) && was_restored(s, FG_WORK_TIER) == s->wants_tier;
    return all ? FG_OK : fg_fail(err, FG_BAD_INPUT, "it is damaged: its beginning is not whole");
}

static bool is_quiet(uint32_t kind)
{
    return kind == FG_WORK_TICK || kind == FG_WORK_ENGINE;
}

static fg_status open_tier(subject *s, const fg_work_options *record, fg_error *err)
{
    s->wants_tier = record->tier_slots > 0;
    fg_tier_options options = { .block_bytes = 1, /* nothing is copied */
                                .block_count = record->tier_slots,
                                .block_size = record->layout.block_size };
    return s->wants_tier ? fg_tier_open(&options, &s->tier, err) : FG_OK;
}

static fg_status open_worker(fg_replay *r, const fg_flight_file *file, fg_error *err)
{
    const fg_work_options *record;
    fg_worker_options options;
    subject *s = fg_mem_alloc(sizeof *s);
    if (s == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory");
    }
    r->subject = s;
    s->r = r;
    s->engine.ops = &engine_ops;
    fg_buf_init(&s->frame, FG_LIMIT_FRAME_BYTES);
    s->arena = fg_arena_create(FG_LIMIT_FRAME_ARENA_BYTES);
    if (s->arena == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory");
    }
    fg_status status =
        fg_work_get_options(file->preface, file->header->preface_bytes, &record, &options, err);
    status = status != FG_OK ? status : open_tier(s, record, err);
    if (status != FG_OK) {
        return status;
    }
    memcpy(s->engine.numerics_class, record->numerics_class, sizeof s->engine.numerics_class);
    s->router_count = record->router_count;
    options.clock = fg_clock_manual(&r->now_ns);
    options.engine = &s->engine;
    options.tier = s->tier;
    options.flight = r->flight;
    options.prefill = record->hands_over != 0 ? fg_prefill_policy() : NULL;
    options.decode = record->hands_over != 0 ? fg_decode_policy() : NULL;
    options.is_end = is_end;
    options.send = on_send;
    options.reconnect = on_reconnect;
    options.ctx = s;
    status = fg_worker_create(&options, &s->worker, err);
    if (status == FG_OK) {
        s->link = fg_worker_link_events(s->worker);
    }
    return status;
}

static void close_worker(fg_replay *r)
{
    subject *s = r->subject;
    if (s != NULL) {
        fg_worker_destroy(s->worker);
        fg_tier_close(s->tier);
        fg_arena_destroy(s->arena);
        fg_buf_deinit(&s->frame);
        fg_mem_free(s);
    }
}

const fg_replay_ops fg_replay_worker = { .shape = fg_work_shape,
                                         .name = fg_work_name,
                                         .is_sound = fg_replay_worker_is_sound,
                                         .describe = fg_replay_worker_describe,
                                         .is_quiet = is_quiet,
                                         .open = open_worker,
                                         .restore = restore,
                                         .ready = ready,
                                         .call = call,
                                         .close = close_worker };
