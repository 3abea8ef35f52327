/* Flight records of workers in words. */
#include <inttypes.h>
#include <string.h>

#include "common/base/arena.h"
#include "common/base/limits.h"
#include "common/worker/worker_records.h"
#include "tests/sim/replay_show.h"

static bool is_step(const void *bytes, uint32_t size)
{
    const fg_work_step *step = bytes;
    return size >= sizeof *step && size == sizeof *step + (uint64_t)step->item_count +
                                               step->digest_count + step->copy_count +
                                               step->ask_count * (uint64_t)sizeof(fg_work_ask);
}

bool fg_replay_worker_is_sound(const fg_flight_record *record)
{
    const void *bytes = fg_flight_bytes(record);
    const fg_work_news *news = bytes;
    uint32_t size = record->bytes;
    switch (record->kind) {
    case FG_WORK_UP:
    case FG_WORK_BAD_FRAME:
    case FG_WORK_DOWN:
    case FG_WORK_ENGINE:
    case FG_WORK_TICK:
    case FG_WORK_DRAIN:
    case FG_WORK_CLEAR:
        return size == sizeof(fg_flight_call);
    case FG_WORK_FRAME:
        return size >= sizeof(fg_work_frame) &&
               ((const fg_work_frame *)bytes)->token_count <= FG_LIMIT_CONTEXT_TOKENS;
    case FG_WORK_COMMIT:
        return size == sizeof *news && news->count <= FG_LIMIT_CONTEXT_TOKENS;
    case FG_WORK_FENCED:
    case FG_WORK_DRAINED:
        return size == sizeof *news;
    case FG_WORK_ANSWER:
        return size >= sizeof *news &&
               size == sizeof *news + (uint64_t)news->count * sizeof(uint32_t);
    case FG_WORK_ABORT:
        return size > sizeof(fg_flight_call) &&
               fg_replay_ends((const fg_flight_call *)bytes + 1, size - sizeof(fg_flight_call));
    case FG_WORK_REST:
    case FG_WORK_PEER:
    case FG_WORK_PIN:
    case FG_WORK_POOL:
    case FG_WORK_PREFIX:
    case FG_WORK_TIER:
        return true; /* fg_worker_restore judges */
    case FG_WORK_PROMPT:
        return size >= sizeof(fg_work_prompt) && size % sizeof(fg_digest128) == 0;
    case FG_WORK_KEYS:
        return size % sizeof(fg_digest128) == 0;
    case FG_WORK_STEP:
        return is_step(bytes, size);
    case FG_WORK_TRANSPORT:
        return fg_replay_ends(bytes, size);
    case FG_WORK_GUESS:
        return size > 0 && size % sizeof(fg_work_guess) == 0;
    case FG_WORK_SENT:
        return size == sizeof(fg_work_sent) &&
               ((const fg_work_sent *)bytes)->status <= (uint32_t)FG_BROKEN;
    case FG_WORK_BEGAN:
        return size == sizeof(fg_work_began);
    case FG_WORK_LINKED:
        return size == sizeof(fg_work_linked) &&
               ((const fg_work_linked *)bytes)->answer <= (uint32_t)FG_BROKEN;
    case FG_WORK_RECONNECT:
        return size == sizeof(uint64_t);
    default:
        return false;
    }
}

static void describe_frame(const fg_work_frame *head, uint32_t size, char *text, size_t capacity)
{
    fg_msg msg;
    fg_arena *arena = fg_arena_create(FG_LIMIT_FRAME_ARENA_BYTES);
    bool read =
        arena != NULL && fg_wire_decode(head + 1, size - sizeof *head, arena, &msg, NULL) == FG_OK;
    if (!read) {
        snprintf(text, capacity, "frame unread");
    } else if (msg.kind == FG_MSG_PREFILL || msg.kind == FG_MSG_RESERVE) {
        snprintf(text, capacity, "frame %s req=%016" PRIx64 " attempt=%u prompt=%u",
                 fg_msg_name(msg.kind), msg.request, msg.attempt, head->token_count);
    } else if (msg.kind == FG_MSG_CANCEL) {
        snprintf(text, capacity, "frame %s req=%016" PRIx64 " attempt=%u", fg_msg_name(msg.kind),
                 msg.request, msg.attempt);
    } else {
        snprintf(text, capacity, "frame %s", fg_msg_name(msg.kind));
    }
    fg_arena_destroy(arena);
}

static void describe_step(const fg_work_step *step, char *text, size_t capacity)
{
    const fg_work_ask *asks = (const fg_work_ask *)(step + 1);
    const unsigned char *flag = (const unsigned char *)(asks + step->ask_count);
    uint32_t ends = 0, guessed = 0, bad = 0, changed = 0;
    for (uint32_t i = 0; i < step->item_count; i++, flag++) {
        ends += (*flag & (FG_WORK_ENDED | FG_WORK_BROKE)) != 0;
        guessed += *flag >> FG_WORK_ACCEPTED_SHIFT;
    }
    for (uint32_t i = 0; i < step->digest_count; i++) {
        bad += *flag++ != 0;
    }
    for (uint32_t i = 0; i < step->copy_count; i++) {
        changed += *flag++ != 0;
    }
    snprintf(
        text, capacity,
        "step ended us=%.1f items=%u ends=%u guessed=%u digests=%u bad=%u copies=%u changed=%u "
        "asks=%u draft_us=%.1f",
        (double)step->compute_ns / 1e3, step->item_count, ends, guessed, step->digest_count, bad,
        step->copy_count, changed, step->ask_count, (double)step->drafted.ns / 1e3);
}

static void describe_linked(const fg_work_linked *linked, char *text, size_t capacity)
{
    bool plain = linked->asked == FG_ASKED_RECORD || linked->asked == FG_ASKED_USABLE;
    snprintf(text, capacity, "link %s peer=%u %s hash=%016" PRIx64,
             fg_work_asked_name(linked->asked), linked->peer,
             plain ? (linked->answer != 0 ? "yes" : "no")
                   : fg_status_name((fg_status)linked->answer),
             linked->hash);
}

void fg_replay_worker_describe(uint32_t kind, const void *bytes, uint32_t size, char *text,
                               size_t capacity)
{
    const fg_work_news *news = bytes;
    const fg_work_sent *sent = bytes;
    const fg_work_began *began = bytes;
    uint64_t number = 0;
    switch (kind) {
    case FG_WORK_FRAME:
        describe_frame(bytes, size, text, capacity);
        break;
    case FG_WORK_COMMIT:
    case FG_WORK_FENCED:
    case FG_WORK_ANSWER:
    case FG_WORK_DRAINED:
        snprintf(text, capacity, "link says %s ticket=%" PRIx64 " count=%u", fg_work_name(kind),
                 news->ticket, news->count);
        break;
    case FG_WORK_PROMPT:
        snprintf(text, capacity, "prompt keys=%zu",
                 (size - sizeof(fg_work_prompt)) / sizeof(fg_digest128));
        break;
    case FG_WORK_KEYS:
        snprintf(text, capacity, "keys count=%zu", size / sizeof(fg_digest128));
        break;
    case FG_WORK_STEP:
        describe_step(bytes, text, capacity);
        break;
    case FG_WORK_TRANSPORT:
        snprintf(text, capacity, "transport %s", (const char *)bytes);
        break;
    case FG_WORK_GUESS:
        snprintf(text, capacity, "guesses of=%zu", size / sizeof(fg_work_guess));
        break;
    case FG_WORK_SENT:
        snprintf(text, capacity, "sent %s %s hash=%016" PRIx64,
                 fg_msg_name((fg_msg_kind)sent->kind), fg_status_name((fg_status)sent->status),
                 sent->hash);
        break;
    case FG_WORK_BEGAN:
        snprintf(text, capacity,
                 "step begins items=%u tokens=%u digests=%u copies=%u hash=%016" PRIx64,
                 began->items, began->tokens, began->digests, began->copies, began->hash);
        break;
    case FG_WORK_LINKED:
        describe_linked(bytes, text, capacity);
        break;
    case FG_WORK_RECONNECT:
        memcpy(&number, bytes, sizeof number);
        snprintf(text, capacity, "reconnect epoch=%" PRIu64, number);
        break;
    default:
        snprintf(text, capacity, "%s", fg_work_name(kind));
        break;
    }
}
