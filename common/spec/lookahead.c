#include "common/spec/lookahead.h"

#include "common/base/status.h"

uint32_t fg_lookahead_for(uint32_t accepted, uint32_t rejected)
{
    if (rejected == 0) {
        return accepted == 0 ? FG_LOOKAHEAD_DEFAULT : FG_LOOKAHEAD_MAX;
    }
    /* 1 / (1 - a) is looked / rejected. */
    uint64_t looked = (uint64_t)accepted + rejected;
    uint64_t drafts = (looked + rejected - 1) / rejected;
    return drafts < FG_LOOKAHEAD_MAX ? (uint32_t)drafts : FG_LOOKAHEAD_MAX;
}

uint32_t fg_lookahead_next(const fg_lookahead *lookahead, uint32_t tokens_left)
{
    FG_ASSERT(lookahead->fixed <= FG_LOOKAHEAD_MAX, "%u tokens ahead", lookahead->fixed);
    uint32_t drafts = lookahead->fixed;
    if (drafts == 0) {
        uint32_t accepted = (uint32_t)__builtin_popcountll(lookahead->accepted);
        drafts = fg_lookahead_for(accepted, lookahead->count - accepted);
    }
    uint32_t room = tokens_left == 0 ? 0 : tokens_left - 1;
    return drafts < room ? drafts : room;
}

static void push(fg_lookahead *lookahead, uint32_t bit)
{
    lookahead->accepted = lookahead->accepted << 1 | bit;
    lookahead->count += lookahead->count < FG_LOOKAHEAD_WINDOW;
}

void fg_lookahead_note_seen(fg_lookahead *lookahead, bool right)
{
    push(lookahead, right);
}

void fg_lookahead_note(fg_lookahead *lookahead, const fg_verdict *verdict)
{
    for (uint32_t i = 0; i < verdict->accepted; i++) {
        push(lookahead, 1);
    }
    if (verdict->rejected) {
        push(lookahead, 0);
    }
}
