/* Flight records of routers in words. */
#include <inttypes.h>
#include <string.h>

#include "common/base/arena.h"
#include "common/base/limits.h"
#include "router/flight_records.h"
#include "tests/sim/replay_show.h"

bool fg_replay_router_is_sound(const fg_flight_record *record)
{
    const void *bytes = fg_flight_bytes(record);
    uint32_t size = record->bytes;
    switch (record->kind) {
    case FG_RECORD_UP:
    case FG_RECORD_ROLE:
        return size > sizeof(fg_record_peer) &&
               fg_replay_ends((const fg_record_peer *)bytes + 1, size - sizeof(fg_record_peer));
    case FG_RECORD_FRAME:
        return size >= sizeof(fg_record_peer);
    case FG_RECORD_BAD_FRAME:
    case FG_RECORD_DOWN:
    case FG_RECORD_CANCEL:
        return size == sizeof(fg_record_peer);
    case FG_RECORD_TOKENS:
        return size >= sizeof(fg_record_tokens) &&
               size ==
                   sizeof(fg_record_tokens) +
                       (uint64_t)((const fg_record_tokens *)bytes)->count * sizeof(fg_record_token);
    case FG_RECORD_FIRST:
        return size == sizeof(fg_record_first);
    case FG_RECORD_SCORES:
        return size == sizeof(fg_record_scores);
    case FG_RECORD_TICKET:
        return size >= sizeof(fg_record_ticket) &&
               size ==
                   sizeof(fg_record_ticket) +
                       (uint64_t)((const fg_record_ticket *)bytes)->block_count * sizeof(uint32_t);
    case FG_RECORD_TICK:
    case FG_RECORD_CLEAR:
    case FG_RECORD_ABORT:
        return size == sizeof(fg_flight_call);
    case FG_RECORD_START:
        return size == sizeof(fg_record_start);
    case FG_RECORD_SENT:
        return size == sizeof(fg_record_sent) &&
               ((const fg_record_sent *)bytes)->status <= (uint32_t)FG_BROKEN;
    case FG_RECORD_ENDED:
        return size == sizeof(fg_record_ended);
    case FG_RECORD_ANSWERED:
        return size == sizeof(fg_record_answered);
    case FG_RECORD_SPAN:
    case FG_RECORD_HEAT:
    case FG_RECORD_NEWS:
    case FG_RECORD_LOST:
    case FG_RECORD_DROPPED:
        return size == sizeof(uint64_t);
    case FG_RECORD_KEYS:
        return size > 0 && size % sizeof(uint64_t) == 0;
    case FG_RECORD_HITS:
        return size % sizeof(fg_residency_hit) == 0;
    case FG_RECORD_REST:
    case FG_RECORD_IDENTITY:
    case FG_RECORD_MEMBER:
    case FG_RECORD_DEBT:
        return true; /* fg_dispatch_restore judges */
    default:
        return false;
    }
}

static void describe_frame(const fg_record_peer *head, uint32_t size, char *text, size_t capacity)
{
    fg_msg msg;
    fg_arena *arena = fg_arena_create(FG_LIMIT_FRAME_ARENA_BYTES);
    bool read =
        arena != NULL && fg_wire_decode(head + 1, size - sizeof *head, arena, &msg, NULL) == FG_OK;
    snprintf(text, capacity, "frame %s peer=%u", read ? fg_msg_name(msg.kind) : "unread",
             head->peer);
    fg_arena_destroy(arena);
}

static void describe_call(uint32_t kind, const void *bytes, uint32_t size, char *text,
                          size_t capacity)
{
    const fg_record_peer *head = bytes;
    const fg_record_tokens *tokens = bytes;
    const fg_record_first *first = bytes;
    const fg_record_ticket *ticket = bytes;
    const fg_record_scores *scores = bytes;
    const fg_record_start *start = bytes;
    switch (kind) {
    case FG_RECORD_UP:
        snprintf(text, capacity, "up peer=%u %s", head->peer, (const char *)(head + 1));
        break;
    case FG_RECORD_DOWN:
        snprintf(text, capacity, "down peer=%u", head->peer);
        break;
    case FG_RECORD_FRAME:
        describe_frame(head, size, text, capacity);
        break;
    case FG_RECORD_BAD_FRAME:
        snprintf(text, capacity, "frame %s peer=%u", head->unread ? "unreadable" : "unexpected",
                 head->peer);
        break;
    case FG_RECORD_TOKENS:
        snprintf(text, capacity, "frame tokens peer=%u rows=%u", tokens->peer, tokens->count);
        break;
    case FG_RECORD_FIRST:
        snprintf(text, capacity, "frame first peer=%u req=%016" PRIx64 " attempt=%u cached=%u",
                 first->peer, first->request, first->attempt, first->cached_tokens);
        break;
    case FG_RECORD_SCORES:
        snprintf(text, capacity, "frame scores peer=%u req=%016" PRIx64 " attempt=%u %u+%u",
                 scores->peer, scores->request, scores->attempt, scores->first, scores->count);
        break;
    case FG_RECORD_TICKET:
        snprintf(text, capacity, "frame ticket peer=%u req=%016" PRIx64 " attempt=%u %s blocks=%u",
                 ticket->peer, ticket->request, ticket->attempt,
                 ticket->granted == 0 ? "refused"
                 : ticket->local != 0 ? "local"
                                      : "granted",
                 ticket->block_count);
        break;
    case FG_RECORD_START:
        snprintf(text, capacity, "start prompt=%u max=%u priority=%d", start->token_count,
                 start->params.max_tokens, start->params.priority);
        break;
    case FG_RECORD_CANCEL:
        snprintf(text, capacity, "cancel req=%016" PRIx64 " reason=%u", head->id, head->peer);
        break;
    case FG_RECORD_ROLE:
        snprintf(text, capacity, "role worker=%s roles=%u", (const char *)(head + 1), head->peer);
        break;
    default:
        snprintf(text, capacity, "%s", fg_record_name(kind));
        break;
    }
}

void fg_replay_router_describe(uint32_t kind, const void *bytes, uint32_t size, char *text,
                               size_t capacity)
{
    uint64_t number = 0;
    if (size == sizeof number) {
        memcpy(&number, bytes, sizeof number);
    }
    if (kind < FG_RECORD_CALLS) {
        describe_call(kind, bytes, size, text, capacity);
    } else if (kind == FG_RECORD_SENT) {
        const fg_record_sent *sent = bytes;
        snprintf(text, capacity, "sent %s peer=%u %s hash=%016" PRIx64,
                 fg_msg_name((fg_msg_kind)sent->kind), sent->peer,
                 fg_status_name((fg_status)sent->status), sent->hash);
    } else if (kind == FG_RECORD_ENDED) {
        const fg_record_ended *ended = bytes;
        snprintf(text, capacity,
                 "ended req=%016" PRIx64 " finish=%u status=%s tokens=%u attempts=%u", ended->id,
                 ended->finish, fg_status_name((fg_status)ended->status), ended->tokens,
                 ended->attempts);
    } else if (kind == FG_RECORD_ANSWERED) {
        const fg_record_answered *answered = bytes;
        snprintf(text, capacity, "answered req=%016" PRIx64 " status=%u", answered->id,
                 answered->status);
    } else if (kind == FG_RECORD_KEYS || kind == FG_RECORD_HITS) {
        size_t each = kind == FG_RECORD_KEYS ? sizeof(uint64_t) : sizeof(fg_residency_hit);
        snprintf(text, capacity, "%s count=%zu", fg_record_name(kind), size / each);
    } else if (kind == FG_RECORD_DROPPED) {
        snprintf(text, capacity, "dropped peer=%" PRIu64, number);
    } else {
        snprintf(text, capacity, "%s value=%" PRIu64, fg_record_name(kind), number);
    }
}
