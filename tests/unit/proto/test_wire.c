#include "proto/wire.h"

#include <string.h>

#include "common/base/fault.h"
#include "common/base/limits.h"
#include "tests/support/test.h"
#include "tests/unit/proto/wire_samples.h"

enum { ARENA_BYTES = 16 << 20 };

/* Encodes and decodes; the decoded message lives in `arena`. */
static fg_msg there_and_back(const fg_msg *msg, fg_arena *arena, fg_buf *frame)
{
    fg_msg back;
    fg_error err = { 0 };
    fg_buf_clear(frame);
    cr_assert(fg_wire_encode(msg, frame));
    fg_status status = fg_wire_decode(frame->data, frame->size, arena, &back, &err);
    cr_assert_eq(status, FG_OK, "%s: %s", fg_msg_name(msg->kind), err.text);
    return back;
}

Test(wire, every_kind_comes_back_as_it_was)
{
    uint64_t seed = 20261121;
    cr_log_info("seed %llu", (unsigned long long)seed);
    fg_rng rng = { seed };
    fg_arena *samples = fg_arena_create(ARENA_BYTES);
    fg_arena *decoded = fg_arena_create(ARENA_BYTES);
    fg_buf frame;
    fg_buf_init(&frame, 0);
    for (int kind = FG_MSG_HELLO; kind <= FG_MSG_SCORES; kind++) {
        for (int i = 0; i < 300; i++) {
            fg_msg msg = wire_sample((fg_msg_kind)kind, &rng, samples, i < 290 ? 40 : 5000);
            fg_msg back = there_and_back(&msg, decoded, &frame);
            const char *field = wire_difference(&msg, &back);
            cr_assert_null(field, "%s sample %d differs in %s", fg_msg_name(msg.kind), i, field);
            fg_arena_reset(samples);
            fg_arena_reset(decoded);
        }
    }
    fg_buf_deinit(&frame);
    fg_arena_destroy(samples);
    fg_arena_destroy(decoded);
}

Test(wire, the_largest_prompt_passes)
{
    fg_rng rng = { 5 };
    fg_arena *samples = fg_arena_create(FG_LIMIT_FRAME_ARENA_BYTES);
    fg_arena *decoded = fg_arena_create(FG_LIMIT_FRAME_ARENA_BYTES);
    fg_buf frame;
    fg_buf_init(&frame, FG_LIMIT_FRAME_BYTES);
    fg_msg msg = wire_sample(FG_MSG_RESERVE, &rng, samples, 1);
    uint32_t *tokens = fg_arena_array(samples, FG_LIMIT_CONTEXT_TOKENS, sizeof *tokens);
    memset(tokens, 0xFF, FG_LIMIT_CONTEXT_TOKENS * sizeof *tokens);
    msg.reserve.tokens = tokens;
    msg.reserve.token_count = FG_LIMIT_CONTEXT_TOKENS - 9;
    msg.reserve.said = tokens;
    msg.reserve.said_count = 9;
    msg.reserve.sampling.max_tokens = 9;
    msg.reserve.sampling.min_tokens = 9;
    fg_msg back = there_and_back(&msg, decoded, &frame);
    cr_assert_null(wire_difference(&msg, &back));
    fg_buf_deinit(&frame);
    fg_arena_destroy(samples);
    fg_arena_destroy(decoded);
}

Test(wire, appends_to_what_is_there)
{
    fg_buf frame;
    fg_buf_init(&frame, 0);
    fg_msg msg = { .kind = FG_MSG_DRAIN };
    fg_buf_puts(&frame, "before");
    cr_assert(fg_wire_encode(&msg, &frame));
    cr_assert_eq(memcmp(frame.data, "before", 6), 0);
    fg_arena *arena = fg_arena_create(ARENA_BYTES);
    cr_assert_eq(fg_wire_decode(frame.data + 6, frame.size - 6, arena, &msg, NULL), FG_OK);
    cr_assert_eq(msg.kind, FG_MSG_DRAIN);
    fg_arena_destroy(arena);
    fg_buf_deinit(&frame);
}

Test(wire, a_full_buffer_is_false)
{
    fg_buf frame;
    fg_buf_init(&frame, 4);
    fg_msg msg = { .kind = FG_MSG_REFUSE, .refuse = { "no room for this" } };
    cr_assert(!fg_wire_encode(&msg, &frame));
    fg_buf_deinit(&frame);
}

/* Rule 5: a step's message costs no heap once the buffer has grown. */
Test(wire, step_messages_do_not_allocate)
{
    fg_rng rng = { 11 };
    fg_arena *samples = fg_arena_create(ARENA_BYTES);
    fg_buf frame;
    fg_buf_init(&frame, 0);
    static const fg_msg_kind kinds[] = { FG_MSG_TOKENS, FG_MSG_LOAD, FG_MSG_FIRST, FG_MSG_DONE,
                                         FG_MSG_NEWS };
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        fg_msg msg = wire_sample(kinds[i], &rng, samples, 300);
        fg_buf_clear(&frame);
        cr_assert(fg_wire_encode(&msg, &frame));
        fg_buf_clear(&frame);
        fg_fault_arm(1);
        bool fine = fg_wire_encode(&msg, &frame);
        bool allocated = fg_fault_fired();
        fg_fault_arm(0);
        cr_assert(fine && !allocated, "%s", fg_msg_name(kinds[i]));
    }
    fg_buf_deinit(&frame);
    fg_arena_destroy(samples);
}

Test(wire, texts_for_people_are_cut_and_cleaned)
{
    char text[1000];
    fg_arena *arena = fg_arena_create(ARENA_BYTES);
    fg_buf frame;
    fg_buf_init(&frame, 0);
    /* 511 letters, then a character of three bytes across the limit. */
    memset(text, 'x', sizeof text);
    memcpy(text + 511, "\xE2\x82\xAC", 3);
    text[900] = '\0';
    fg_msg msg = { .kind = FG_MSG_REFUSE, .refuse = { text } };
    fg_msg back = there_and_back(&msg, arena, &frame);
    cr_assert_eq(strlen(back.refuse.reason), 511);
    msg.refuse.reason = "a\nb\xFF\xC3\xA9\x7F\xE2\x82";
    back = there_and_back(&msg, arena, &frame);
    cr_assert_str_eq(back.refuse.reason, "a b?\xC3\xA9 ??");
    msg.refuse.reason = NULL;
    back = there_and_back(&msg, arena, &frame);
    cr_assert_str_eq(back.refuse.reason, "");
    fg_buf_deinit(&frame);
    fg_arena_destroy(arena);
}

Test(wire, an_unsplit_prefill_carries_no_ticket)
{
    fg_rng rng = { 3 };
    fg_arena *arena = fg_arena_create(ARENA_BYTES);
    fg_buf frame;
    fg_buf_init(&frame, 0);
    fg_msg msg = wire_sample(FG_MSG_PREFILL, &rng, arena, 4);
    msg.prefill.has_ticket = false;
    msg.prefill.target.name = NULL;
    msg.prefill.ticket = 99;
    fg_msg back = there_and_back(&msg, arena, &frame);
    cr_assert(!back.prefill.has_ticket);
    cr_assert_eq(back.prefill.ticket, 0);
    cr_assert_str_eq(back.prefill.target.name, "");
    fg_buf_deinit(&frame);
    fg_arena_destroy(arena);
}

Test(wire, a_hello_of_another_version_can_be_answered)
{
    fg_rng rng = { 4 };
    fg_arena *arena = fg_arena_create(ARENA_BYTES);
    fg_buf frame;
    fg_buf_init(&frame, 0);
    fg_msg msg = wire_sample(FG_MSG_HELLO, &rng, arena, 4);
    msg.hello.protocol = 77;
    msg.hello.roles = 1 << 20; /* a role of the future */
    fg_msg back = there_and_back(&msg, arena, &frame);
    cr_assert_eq(back.hello.protocol, 77);
    cr_assert_str_eq(back.hello.self.name, msg.hello.self.name);
    cr_assert_eq(back.hello.self.epoch, msg.hello.self.epoch);
    cr_assert_eq(back.hello.roles, 0);
    fg_buf_deinit(&frame);
    fg_arena_destroy(arena);
}

Test(wire, names_are_all_different)
{
    for (int a = FG_MSG_HELLO; a <= FG_MSG_SCORES; a++) {
        for (int b = FG_MSG_HELLO; b < a; b++) {
            cr_assert(strcmp(fg_msg_name((fg_msg_kind)a), fg_msg_name((fg_msg_kind)b)) != 0);
        }
    }
    cr_assert_str_eq(fg_msg_name((fg_msg_kind)99), "unknown");
}

typedef struct walk {
    const fg_buf *frame;
} walk;

static bool decode_once(void *ctx)
{
    const walk *w = ctx;
    fg_arena *arena = fg_arena_create(ARENA_BYTES);
    fg_msg msg;
    fg_status status = arena == NULL
                           ? FG_AGAIN
                           : fg_wire_decode(w->frame->data, w->frame->size, arena, &msg, NULL);
    fg_arena_destroy(arena);
    cr_assert(status == FG_OK || status == FG_AGAIN, "status %s", fg_status_name(status));
    return status == FG_OK;
}

Test(wire, decoding_survives_every_failed_allocation)
{
    fg_rng rng = { 6 };
    fg_arena *samples = fg_arena_create(ARENA_BYTES);
    fg_buf frame;
    fg_buf_init(&frame, 0);
    for (int kind = FG_MSG_HELLO; kind <= FG_MSG_SCORES; kind++) {
        fg_msg msg = wire_sample((fg_msg_kind)kind, &rng, samples, 9000);
        fg_buf_clear(&frame);
        cr_assert(fg_wire_encode(&msg, &frame));
        walk w = { &frame };
        cr_assert(fg_fault_each(decode_once, &w) > 0, "%s", fg_msg_name(msg.kind));
    }
    fg_buf_deinit(&frame);
    fg_arena_destroy(samples);
}
