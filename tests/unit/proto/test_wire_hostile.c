#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/limits.h"
#include "proto/wire.h"
#include "tests/support/test.h"
#include "tests/unit/proto/wire_samples.h"

/* T18: what a frame makes us hold is at most this multiple of its size, plus a constant. */
enum { AMPLIFICATION_MAX = 16, CONSTANT_BYTES = 16384 };

static fg_arena *arena;

/* Decodes, checks the memory bound, and drops the result. */
static fg_status decode(const void *bytes, size_t size_bytes, fg_error *err)
{
    fg_msg msg;
    if (arena == NULL) {
        arena = fg_arena_create(FG_LIMIT_FRAME_ARENA_BYTES);
    }
    fg_arena_reset(arena);
    fg_status status = fg_wire_decode(bytes, size_bytes, arena, &msg, err);
    cr_assert(fg_arena_used(arena) <= AMPLIFICATION_MAX * size_bytes + CONSTANT_BYTES,
              "%zu bytes took %zu", size_bytes, fg_arena_used(arena));
    return status;
}

/* A frame written by hand: protobuf's wire format. */
static void put_varint(fg_buf *out, uint64_t value)
{
    while (value >= 0x80) {
        fg_buf_putc(out, (char)(value | 0x80));
        value >>= 7;
    }
    fg_buf_putc(out, (char)value);
}

static void put_number(fg_buf *out, uint32_t field, uint64_t value)
{
    put_varint(out, field << 3);
    put_varint(out, value);
}

static void put_float(fg_buf *out, uint32_t field, uint32_t bits)
{
    put_varint(out, field << 3 | 5);
    fg_buf_append(out, &bits, 4);
}

static void put_bytes(fg_buf *out, uint32_t field, const void *bytes, size_t size_bytes)
{
    put_varint(out, field << 3 | 2);
    put_varint(out, size_bytes);
    fg_buf_append(out, bytes, size_bytes);
}

static void put_inner(fg_buf *out, uint32_t field, fg_buf *inner)
{
    put_bytes(out, field, inner->data, inner->size);
    fg_buf_deinit(inner);
}

static fg_buf begin(void)
{
    fg_buf out;
    fg_buf_init(&out, 0);
    fg_buf_puts(&out, "");
    return out;
}

static fg_status decode_and_drop(fg_buf *frame, fg_error *err)
{
    fg_status status = decode(frame->data, frame->size, err);
    fg_buf_deinit(frame);
    return status;
}

enum {
    HELLO = 16,
    WELCOME,
    REFUSE,
    LOAD,
    PEER,
    PEER_LOST,
    RESERVE,
    TICKET,
    PREFILL,
    FIRST,
    PUSHED,
    TOKENS,
    DONE,
    CANCEL,
    DRAIN,
    CLEAR,
    NEWS,
    RESYNC,
    ROLE,
    SCORES
};

Test(wire_hostile, no_beginning_of_a_frame_is_over_read)
{
    fg_rng rng = { 8 };
    fg_arena *samples = fg_arena_create(1 << 20);
    fg_buf frame;
    fg_buf_init(&frame, 0);
    for (int kind = FG_MSG_HELLO; kind <= FG_MSG_SCORES; kind++) {
        fg_msg msg = wire_sample((fg_msg_kind)kind, &rng, samples, 60);
        fg_buf_clear(&frame);
        cr_assert(fg_wire_encode(&msg, &frame));
        for (size_t size_bytes = 0; size_bytes < frame.size; size_bytes++) {
            /* A copy of exactly this size, so that ASan sees one byte too many. */
            char *exact = malloc(size_bytes == 0 ? 1 : size_bytes);
            memcpy(exact, frame.data, size_bytes);
            fg_error err = { 0 };
            cr_assert_eq(decode(exact, size_bytes, &err), FG_BAD_INPUT, "%s cut at %zu of %zu",
                         fg_msg_name(msg.kind), size_bytes, frame.size);
            cr_assert(err.text[0] != '\0');
            free(exact);
        }
    }
    fg_buf_deinit(&frame);
    fg_arena_destroy(samples);
}

Test(wire_hostile, damaged_frames_do_no_harm)
{
    uint64_t seed = 20261122;
    cr_log_info("seed %llu", (unsigned long long)seed);
    fg_rng rng = { seed };
    fg_arena *samples = fg_arena_create(1 << 20);
    fg_buf frame;
    fg_buf_init(&frame, 0);
    for (int i = 0; i < 30000; i++) {
        fg_msg_kind kind = (fg_msg_kind)(1 + fg_rng_below(&rng, FG_MSG_SCORES));
        fg_msg msg = wire_sample(kind, &rng, samples, 20);
        fg_buf_clear(&frame);
        cr_assert(fg_wire_encode(&msg, &frame));
        for (uint64_t hits = 1 + fg_rng_below(&rng, 4); hits > 0; hits--) {
            frame.data[fg_rng_below(&rng, frame.size)] = (char)fg_rng_next(&rng);
        }
        decode(frame.data, frame.size, NULL);
        fg_arena_reset(samples);
    }
    fg_buf_deinit(&frame);
    fg_arena_destroy(samples);
}

/* --- whole frames --- */

static void no_body(fg_buf *f)
{
    put_number(f, 1, FG_PROTOCOL_VERSION);
}
static void no_version(fg_buf *f)
{
    put_bytes(f, DRAIN, "", 0);
}
static void next_version(fg_buf *f)
{
    put_number(f, 1, FG_PROTOCOL_VERSION + 1);
    put_bytes(f, DRAIN, "", 0);
}
static void last_version(fg_buf *f)
{
    put_number(f, 1, FG_PROTOCOL_VERSION - 1);
    put_bytes(f, DRAIN, "", 0);
}
static void unknown_body(fg_buf *f)
{
    put_number(f, 1, FG_PROTOCOL_VERSION);
    put_bytes(f, 99, "", 0);
}
static void two_bodies(fg_buf *f)
{
    put_number(f, 1, FG_PROTOCOL_VERSION);
    put_bytes(f, DRAIN, "", 0);
    put_bytes(f, CANCEL, "", 0);
}
static void one_body_twice(fg_buf *f)
{
    put_number(f, 1, FG_PROTOCOL_VERSION);
    put_bytes(f, DRAIN, "", 0);
    put_bytes(f, DRAIN, "", 0);
}
static void version_twice(fg_buf *f)
{
    put_number(f, 1, FG_PROTOCOL_VERSION);
    put_number(f, 1, FG_PROTOCOL_VERSION);
    put_bytes(f, DRAIN, "", 0);
}
static void many_unknown_fields(fg_buf *f)
{
    put_number(f, 1, FG_PROTOCOL_VERSION);
    put_bytes(f, DRAIN, "", 0);
    for (uint32_t i = 0; i < 127; i++) {
        put_number(f, 1000 + i, 1);
    }
}
static void length_of_4_gib(fg_buf *f)
{
    fg_buf_append(f, "\x82\x01\xFF\xFF\xFF\xFF\x0F", 7);
}
static void length_beyond_64_bits(fg_buf *f)
{
    fg_buf_append(f, "\x82\x01\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF\xFF", 12);
}
static void field_zero(fg_buf *f)
{
    put_number(f, 0, 1);
}
static void group(fg_buf *f)
{
    put_varint(f, 16 << 3 | 3);
    put_varint(f, 16 << 3 | 4);
}
static void body_is_a_number(fg_buf *f)
{
    put_number(f, 1, FG_PROTOCOL_VERSION);
    put_number(f, DRAIN, 1);
}
static void random_text(fg_buf *f)
{
    fg_buf_puts(f, "GET / HTTP/1.1\r\nHost: x\r\n\r\n");
}

static const struct {
    const char *name;
    void (*write)(fg_buf *frame);
} frames[] = {
    { "no body", no_body },
    { "no version", no_version },
    { "the next version", next_version },
    { "the version before", last_version },
    { "unknown body", unknown_body },
    { "two bodies", two_bodies },
    { "one body twice", one_body_twice },
    { "version twice", version_twice },
    { "129 fields", many_unknown_fields },
    { "length of 4 GiB", length_of_4_gib },
    { "length beyond 64 bits", length_beyond_64_bits },
    { "field zero", field_zero },
    { "a group", group },
    { "body is a number", body_is_a_number },
    { "http", random_text },
};

Test(wire_hostile, refuses_frames)
{
    for (size_t i = 0; i < sizeof frames / sizeof frames[0]; i++) {
        fg_buf frame = begin();
        fg_error err = { 0 };
        frames[i].write(&frame);
        cr_assert_eq(decode_and_drop(&frame, &err), FG_BAD_INPUT, "%s", frames[i].name);
        cr_assert(err.text[0] != '\0', "%s", frames[i].name);
    }
}

Test(wire_hostile, unknown_fields_are_dropped)
{
    fg_buf frame = begin();
    fg_buf inner = begin();
    put_number(&inner, 1, 5);
    put_number(&inner, 2, 100);
    put_bytes(&inner, 77, "future", 6);
    put_number(&frame, 1, FG_PROTOCOL_VERSION);
    put_inner(&frame, WELCOME, &inner);
    put_float(&frame, 500, 1);
    fg_error err = { 0 };
    cr_assert_eq(decode_and_drop(&frame, &err), FG_OK, "%s", err.text);
}

Test(wire_hostile, refuses_sizes_out_of_range)
{
    fg_error err = { 0 };
    char *zeros = calloc(1, FG_LIMIT_FRAME_BYTES + 1);
    cr_assert_eq(decode(zeros, 0, &err), FG_BAD_INPUT);
    cr_assert_eq(decode(zeros, FG_LIMIT_FRAME_BYTES + 1, &err), FG_BAD_INPUT);
    free(zeros);
}

/* --- fields --- */

typedef struct change {
    const char *field; /* must be in the error text */
    fg_msg_kind kind;
    void (*apply)(fg_buf *body); /* writes the body by hand */
} change;

static void peer_named(fg_buf *body, uint32_t field, const char *name, size_t length)
{
    fg_buf peer = begin();
    put_bytes(&peer, 1, name, length);
    put_inner(body, field, &peer);
}

static void sampling_with(fg_buf *body, uint32_t field, uint32_t temperature, uint32_t top_p,
                          uint32_t min_p, uint64_t max_tokens)
{
    fg_buf sampling = begin();
    put_float(&sampling, 1, temperature);
    put_float(&sampling, 2, top_p);
    put_float(&sampling, 3, min_p);
    put_number(&sampling, 6, max_tokens);
    put_inner(body, field, &sampling);
}

enum { F_ZERO = 0, F_ONE = 0x3F800000, F_TWO = 0x40000000, F_INF = 0x7F800000, F_NAN = 0x7FC00000 };
#define F_MINUS_ONE 0xBF800000u

static void reserve_with(fg_buf *body, uint32_t temperature, uint32_t top_p, uint32_t min_p,
                         uint64_t max_tokens)
{
    peer_named(body, 1, "p0", 2);
    put_bytes(body, 2, "\x01\0\0\0\x02\0\0\0", 8);
    sampling_with(body, 3, temperature, top_p, min_p, max_tokens);
}

static void temperature_nan(fg_buf *b)
{
    reserve_with(b, F_NAN, F_ONE, F_ZERO, 1);
}
static void temperature_inf(fg_buf *b)
{
    reserve_with(b, F_INF, F_ONE, F_ZERO, 1);
}
static void temperature_negative(fg_buf *b)
{
    reserve_with(b, F_MINUS_ONE, F_ONE, F_ZERO, 1);
}
static void top_p_two(fg_buf *b)
{
    reserve_with(b, F_ONE, F_TWO, F_ZERO, 1);
}
static void min_p_nan(fg_buf *b)
{
    reserve_with(b, F_ONE, F_ONE, F_NAN, 1);
}
static void max_tokens_huge(fg_buf *b)
{
    reserve_with(b, F_ONE, F_ONE, F_ZERO, FG_LIMIT_CONTEXT_TOKENS + 1);
}
/* One more field of the parameters, by number. */
static void params_with(fg_buf *b, uint32_t field, uint64_t value)
{
    peer_named(b, 1, "p0", 2);
    put_bytes(b, 2, "\x01\0\0\0", 4);
    fg_buf params = begin();
    put_float(&params, 1, F_ONE);
    put_float(&params, 2, F_ONE);
    put_number(&params, field, value);
    put_inner(b, 3, &params);
}
/* sint32 travels in zigzag: 0, -1, 1, -2, 2. */
static void priority_low(fg_buf *b)
{
    params_with(b, 9, 4);
}
static void priority_high(fg_buf *b)
{
    params_with(b, 9, 3);
}
static void priority_least(fg_buf *b)
{
    params_with(b, 9, UINT32_MAX);
}
static void cache_mode_unknown(fg_buf *b)
{
    params_with(b, 10, 3);
}
static void cache_mode_huge(fg_buf *b)
{
    params_with(b, 10, UINT32_MAX);
}
/* fixed64; 15 is half of a trace id, 16 the span. */
static void params_traced(fg_buf *b, uint32_t field)
{
    peer_named(b, 1, "p0", 2);
    put_bytes(b, 2, "\x01\0\0\0", 4);
    fg_buf params = begin();
    put_float(&params, 1, F_ONE);
    put_float(&params, 2, F_ONE);
    put_varint(&params, field << 3 | 1);
    fg_buf_append(&params, "\1\2\3\4\5\6\7\10", 8);
    put_inner(b, 3, &params);
}
static void trace_without_span(fg_buf *b)
{
    params_traced(b, 15);
}
static void span_without_trace(fg_buf *b)
{
    params_traced(b, 16);
}
static void scores_wanted_of_too_likely(fg_buf *b)
{
    params_with(b, 27, FG_LOGPROBS_MAX + 2);
}
static void embedding_beside_tokens(fg_buf *b)
{
    peer_named(b, 1, "p0", 2);
    put_bytes(b, 2, "\x01\0\0\0", 4);
    fg_buf params = begin();
    put_number(&params, 6, 2);
    put_number(&params, 28, 1);
    put_inner(b, 3, &params);
}
static void pinned_too_long(fg_buf *b)
{
    peer_named(b, 1, "p0", 2);
    put_bytes(b, 2, "\x01\0\0\0", 4);
    fg_buf params = begin();
    put_number(&params, 6, 1);
    put_number(&params, 17, FG_LIMIT_PIN_MS + 1);
    put_inner(b, 3, &params);
}
static void no_tokens(fg_buf *b)
{
    peer_named(b, 1, "p0", 2);
    sampling_with(b, 3, F_ONE, F_ONE, F_ZERO, 1);
}
static void too_many_tokens(fg_buf *b)
{
    size_t size_bytes = 4 * ((size_t)FG_LIMIT_CONTEXT_TOKENS + 1);
    char *ones = malloc(size_bytes);
    memset(ones, 1, size_bytes);
    peer_named(b, 1, "p0", 2);
    put_bytes(b, 2, ones, size_bytes);
    sampling_with(b, 3, F_ONE, F_ONE, F_ZERO, 1);
    free(ones);
}
/* One token that was said, of an answer that may have as many as `max_tokens`. */
static void one_said(fg_buf *b, uint32_t field, uint64_t max_tokens)
{
    fg_buf params = begin();
    if (max_tokens > 0) {
        put_number(&params, 6, max_tokens);
    }
    put_inner(b, 3, &params);
    put_bytes(b, field, "\x01\0\0\0", 4);
}
static void more_said_than_asked(fg_buf *b)
{
    peer_named(b, 1, "p0", 2);
    put_bytes(b, 2, "\x01\0\0\0", 4);
    one_said(b, 4, 0);
}
static void said_beyond_the_context(fg_buf *b)
{
    size_t size_bytes = 4 * (size_t)FG_LIMIT_CONTEXT_TOKENS;
    char *ones = malloc(size_bytes);
    memset(ones, 1, size_bytes);
    peer_named(b, 1, "p0", 2);
    put_bytes(b, 2, ones, size_bytes);
    one_said(b, 4, 1);
    free(ones);
}
static void said_cut_off(fg_buf *b)
{
    peer_named(b, 1, "p0", 2);
    put_bytes(b, 2, "\x01\0\0\0", 4);
    sampling_with(b, 3, F_ONE, F_ONE, F_ZERO, 1);
    put_bytes(b, 4, "\x01\0\0", 3);
}
static void no_sampling(fg_buf *b)
{
    peer_named(b, 1, "p0", 2);
    put_bytes(b, 2, "\x01\0\0\0", 4);
}
static void no_writer(fg_buf *b)
{
    put_bytes(b, 2, "\x01\0\0\0", 4);
    sampling_with(b, 3, F_ONE, F_ONE, F_ZERO, 1);
}
static void name_empty(fg_buf *b)
{
    peer_named(b, 1, "", 0);
}
static void name_long(fg_buf *b)
{
    char name[FG_LIMIT_NAME_BYTES + 1];
    memset(name, 'n', sizeof name);
    peer_named(b, 1, name, sizeof name);
}
static void name_with_hash(fg_buf *b)
{
    peer_named(b, 1, "p#0", 3);
}
static void name_with_space(fg_buf *b)
{
    peer_named(b, 1, "p 0", 3);
}
static void name_with_nul(fg_buf *b)
{
    peer_named(b, 1, "p\0q", 3);
}
static void name_not_ascii(fg_buf *b)
{
    peer_named(b, 1, "p\xC3\xA9", 3);
}
static void block_huge(fg_buf *b)
{
    fg_buf packed = begin();
    put_varint(&packed, FG_LIMIT_BLOCKS);
    put_inner(b, 4, &packed);
}
static void packed_cut_off(fg_buf *b)
{
    put_bytes(b, 4, "\x01\x80", 2);
}
static void first_block_huge(fg_buf *b)
{
    put_number(b, 3, FG_LIMIT_BLOCKS + 1);
}
static void blocks_not_packed(fg_buf *b)
{
    for (int i = 0; i < 3; i++) {
        put_number(b, 4, 7);
    }
}
static void finish_zero(fg_buf *b)
{
    put_number(b, 1, 0);
}
static void finish_unknown(fg_buf *b)
{
    put_number(b, 1, FG_FINISH_HANDED_OVER + 1);
}
static void finish_huge(fg_buf *b)
{
    put_number(b, 1, UINT32_MAX);
}
static void text_long(fg_buf *b)
{
    char text[513];
    memset(text, 't', sizeof text);
    put_number(b, 1, 1);
    put_bytes(b, 2, text, sizeof text);
}
static void lease_zero(fg_buf *b)
{
    put_number(b, 1, 9);
}
static void lease_huge(fg_buf *b)
{
    put_number(b, 2, UINT32_MAX);
}
static void load_huge(fg_buf *b)
{
    put_number(b, 4, FG_LIMIT_BLOCKS + 1);
}
static void choice_huge(fg_buf *b)
{
    put_number(b, 1, 5000);
}
static void cached_huge(fg_buf *b)
{
    put_number(b, 6, FG_LIMIT_CONTEXT_TOKENS + 1);
}
static void chunks_huge(fg_buf *b)
{
    put_number(b, 7, UINT32_MAX);
}
static void embedding_of(fg_buf *b, size_t count, float last)
{
    float *numbers = calloc(count, sizeof *numbers);
    numbers[count - 1] = last;
    put_bytes(b, 10, numbers, count * sizeof *numbers);
    free(numbers);
}
static void embedding_huge(fg_buf *b)
{
    embedding_of(b, FG_WIRE_EMBEDDING_MAX + 1, 1);
}
static void embedding_not_finite(fg_buf *b)
{
    embedding_of(b, 4, NAN);
}
static void embedding_infinite(fg_buf *b)
{
    embedding_of(b, 4, -INFINITY);
}
static void tier_huge(fg_buf *b)
{
    put_number(b, 18, FG_LIMIT_BLOCKS + 1);
}
static void local_not_granted(fg_buf *b)
{
    put_number(b, 5, 1);
}
static void refused_without_error(fg_buf *b)
{
    put_number(b, 1, FG_FINISH_STOP);
    put_number(b, 5, 1);
}
static void broken_without_error(fg_buf *b)
{
    put_number(b, 1, FG_FINISH_LENGTH);
    put_number(b, 6, 1);
}
static void transport_binary(fg_buf *b)
{
    put_bytes(b, 3, "shm\x01", 4);
}
static void columns_differ(fg_buf *b)
{
    for (uint32_t field = 1; field <= 5; field++) {
        put_bytes(b, field, "\x01\x01", field == 3 ? 1 : 2);
    }
}
static void digests_differ(fg_buf *b)
{
    for (uint32_t field = 1; field <= 5; field++) {
        put_bytes(b, field, "\x01\x01", 2);
    }
    put_bytes(b, 6, "12345678", 8);
}
static void index_huge(fg_buf *b)
{
    for (uint32_t field = 1; field <= 5; field++) {
        fg_buf packed = begin();
        put_varint(&packed, field == 4 ? FG_LIMIT_CONTEXT_TOKENS + 1 : 1);
        put_inner(b, field, &packed);
    }
}
/* `counts`: of chosen, ranks and likely tokens. */
static void scores_with(fg_buf *b, uint32_t first, uint32_t likely, const uint32_t counts[3])
{
    char *zeros = calloc(8, counts[0] + counts[1] + counts[2] + 1);
    put_number(b, 1, first);
    put_number(b, 2, likely);
    put_bytes(b, 3, zeros, 4 * (size_t)counts[0]);
    put_bytes(b, 4, zeros, counts[1]);
    put_bytes(b, 5, zeros, 8 * (size_t)counts[2]);
    free(zeros);
}
static void scores_of_the_first(fg_buf *b)
{
    scores_with(b, 0, 1, (const uint32_t[]){ 2, 2, 2 });
}
static void scores_behind_all(fg_buf *b)
{
    scores_with(b, FG_LIMIT_CONTEXT_TOKENS, 1, (const uint32_t[]){ 2, 2, 2 });
}
static void scores_of_none(fg_buf *b)
{
    scores_with(b, 1, 1, (const uint32_t[]){ 0, 0, 0 });
}
static void scores_of_many(fg_buf *b)
{
    const uint32_t many = FG_WIRE_SCORES_MAX + 1;
    scores_with(b, 1, 0, (const uint32_t[]){ many, many, 0 });
}
static void scores_short_of_ranks(fg_buf *b)
{
    scores_with(b, 1, 1, (const uint32_t[]){ 2, 1, 2 });
}
static void scores_short_of_likely(fg_buf *b)
{
    scores_with(b, 1, 2, (const uint32_t[]){ 2, 2, 3 });
}
static void scores_of_likely_that_overflow(fg_buf *b)
{
    scores_with(b, 1, UINT32_MAX, (const uint32_t[]){ 2, 2, 2 });
}
static void scores_of_too_likely(fg_buf *b)
{
    scores_with(b, 1, FG_LOGPROBS_MAX + 1, (const uint32_t[]){ 1, 1, FG_LOGPROBS_MAX + 1 });
}
static void news_with(fg_buf *b, uint64_t sequence, uint8_t kind, uint8_t tier, uint8_t keys)
{
    put_number(b, 1, sequence);
    put_bytes(b, 2, &kind, 1);
    put_bytes(b, 3, &tier, 1);
    put_bytes(b, 4, "12345678", 8);
    put_bytes(b, 5, &keys, 1);
    put_bytes(b, 6, "1234567812345678", 16);
}
static void news_unnumbered(fg_buf *b)
{
    news_with(b, 0, FG_NEWS_STORED, 0, 2);
}
static void news_of_nothing(fg_buf *b)
{
    news_with(b, 1, 0, 0, 2);
}
static void news_unknown(fg_buf *b)
{
    news_with(b, 1, FG_NEWS_CLEARED + 1, 0, 2);
}
static void news_tier_unknown(fg_buf *b)
{
    news_with(b, 1, FG_NEWS_REMOVED, 2, 2);
}
static void news_short_of_keys(fg_buf *b)
{
    news_with(b, 1, FG_NEWS_STORED, 0, 3);
}
static void news_left_over_keys(fg_buf *b)
{
    news_with(b, 1, FG_NEWS_STORED, 0, 1);
}
static void news_reset_with_keys(fg_buf *b)
{
    news_with(b, 1, FG_NEWS_RESET, 0, 2);
}
static void news_no_columns(fg_buf *b)
{
    put_number(b, 1, 1);
    put_bytes(b, 2, "\x02", 1);
}
static void role_none(fg_buf *b)
{
    put_number(b, 1, 0);
}
static void role_unknown(fg_buf *b)
{
    put_number(b, 1, 7);
}
static void hello_with(fg_buf *b, uint32_t field, uint64_t value)
{
    peer_named(b, 1, "p0", 2);
    put_number(b, 2, field == 2 ? value : 1);
    put_number(b, 16, 3);
    if (field != 2) {
        put_number(b, field, value);
    }
}
static void roles_none(fg_buf *b)
{
    hello_with(b, 2, 0);
}
static void roles_unknown(fg_buf *b)
{
    hello_with(b, 2, 4);
}
static void roles_beyond_able(fg_buf *b)
{
    peer_named(b, 1, "p0", 2);
    put_number(b, 2, 3);
    put_number(b, 16, 1);
}
static void layers_huge(fg_buf *b)
{
    hello_with(b, 7, UINT32_MAX);
}
static void dtype_unknown(fg_buf *b)
{
    hello_with(b, 11, 5);
}
static void dtype_not_of_kv(fg_buf *b)
{
    hello_with(b, 11, 8); /* Q8_0 */
}
static void block_count_huge(fg_buf *b)
{
    hello_with(b, 12, FG_LIMIT_BLOCKS + 1);
}
static void context_huge(fg_buf *b)
{
    hello_with(b, 14, FG_LIMIT_CONTEXT_TOKENS + 1);
}

static const change changes[] = {
    { "temperature", FG_MSG_RESERVE, temperature_nan },
    { "temperature", FG_MSG_RESERVE, temperature_inf },
    { "temperature", FG_MSG_RESERVE, temperature_negative },
    { "top_p", FG_MSG_RESERVE, top_p_two },
    { "min_p", FG_MSG_RESERVE, min_p_nan },
    { "max_tokens", FG_MSG_RESERVE, max_tokens_huge },
    { "priority", FG_MSG_RESERVE, priority_low },
    { "priority", FG_MSG_RESERVE, priority_high },
    { "priority", FG_MSG_RESERVE, priority_least },
    { "cache_mode", FG_MSG_RESERVE, cache_mode_unknown },
    { "cache_mode", FG_MSG_RESERVE, cache_mode_huge },
    { "trace_span", FG_MSG_RESERVE, trace_without_span },
    { "trace_span", FG_MSG_RESERVE, span_without_trace },
    { "pin_ms", FG_MSG_RESERVE, pinned_too_long },
    { "tokens", FG_MSG_RESERVE, no_tokens },
    { "tokens", FG_MSG_RESERVE, too_many_tokens },
    { "said", FG_MSG_RESERVE, more_said_than_asked },
    { "said", FG_MSG_RESERVE, said_beyond_the_context },
    { "unpack", FG_MSG_RESERVE, said_cut_off },
    { "sampling", FG_MSG_RESERVE, no_sampling },
    { "writer", FG_MSG_RESERVE, no_writer },
    { "name", FG_MSG_PEER, name_empty },
    { "name", FG_MSG_PEER, name_long },
    { "name", FG_MSG_PEER_LOST, name_with_hash },
    { "name", FG_MSG_PEER_LOST, name_with_space },
    { "name", FG_MSG_PEER, name_with_nul },
    { "name", FG_MSG_HELLO, name_not_ascii },
    { "blocks", FG_MSG_TICKET, block_huge },
    { "unpack", FG_MSG_TICKET, packed_cut_off },
    { "first_block", FG_MSG_TICKET, first_block_huge },
    { "twice", FG_MSG_TICKET, blocks_not_packed },
    { "finish", FG_MSG_DONE, finish_zero },
    { "finish", FG_MSG_DONE, finish_unknown },
    { "finish", FG_MSG_DONE, finish_huge },
    { "text", FG_MSG_DONE, text_long },
    { "lease_ms", FG_MSG_WELCOME, lease_zero },
    { "lease_ms", FG_MSG_WELCOME, lease_huge },
    { "held", FG_MSG_LOAD, load_huge },
    { "choice", FG_MSG_FIRST, choice_huge },
    { "cached_tokens", FG_MSG_FIRST, cached_huge },
    { "chunks", FG_MSG_FIRST, chunks_huge },
    { "embedding", FG_MSG_FIRST, embedding_huge },
    { "embedding", FG_MSG_FIRST, embedding_not_finite },
    { "embedding", FG_MSG_FIRST, embedding_infinite },
    { "embedding", FG_MSG_RESERVE, embedding_beside_tokens },
    { "tier_blocks", FG_MSG_LOAD, tier_huge },
    { "local", FG_MSG_TICKET, local_not_granted },
    { "refused", FG_MSG_DONE, refused_without_error },
    { "broken", FG_MSG_DONE, broken_without_error },
    { "transport", FG_MSG_PUSHED, transport_binary },
    { "columns", FG_MSG_TOKENS, columns_differ },
    { "columns", FG_MSG_TOKENS, digests_differ },
    { "index", FG_MSG_TOKENS, index_huge },
    { "first", FG_MSG_SCORES, scores_of_the_first },
    { "first", FG_MSG_SCORES, scores_behind_all },
    { "count", FG_MSG_SCORES, scores_of_none },
    { "count", FG_MSG_SCORES, scores_of_many },
    { "columns", FG_MSG_SCORES, scores_short_of_ranks },
    { "columns", FG_MSG_SCORES, scores_short_of_likely },
    { "columns", FG_MSG_SCORES, scores_of_likely_that_overflow },
    { "columns", FG_MSG_SCORES, scores_of_too_likely },
    { "want_scores", FG_MSG_RESERVE, scores_wanted_of_too_likely },
    { "roles", FG_MSG_HELLO, roles_none },
    { "roles", FG_MSG_HELLO, roles_unknown },
    { "able", FG_MSG_HELLO, roles_beyond_able },
    { "layer_count", FG_MSG_HELLO, layers_huge },
    { "sequence", FG_MSG_NEWS, news_unnumbered },
    { "change", FG_MSG_NEWS, news_of_nothing },
    { "change", FG_MSG_NEWS, news_unknown },
    { "tier", FG_MSG_NEWS, news_tier_unknown },
    { "columns", FG_MSG_NEWS, news_short_of_keys },
    { "columns", FG_MSG_NEWS, news_left_over_keys },
    { "key_count", FG_MSG_NEWS, news_reset_with_keys },
    { "columns", FG_MSG_NEWS, news_no_columns },
    { "roles", FG_MSG_ROLE, role_none },
    { "roles", FG_MSG_ROLE, role_unknown },
    { "kv_dtype", FG_MSG_HELLO, dtype_unknown },
    { "kv_dtype", FG_MSG_HELLO, dtype_not_of_kv },
    { "block_count", FG_MSG_HELLO, block_count_huge },
    { "context_max", FG_MSG_HELLO, context_huge },
};

Test(wire_hostile, refuses_fields_and_names_them)
{
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        fg_buf frame = begin();
        fg_buf body = begin();
        fg_error err = { 0 };
        changes[i].apply(&body);
        put_number(&frame, 1, FG_PROTOCOL_VERSION);
        put_inner(&frame, (uint32_t)changes[i].kind + 15, &body);
        cr_assert_eq(decode_and_drop(&frame, &err), FG_BAD_INPUT, "case %zu (%s)", i,
                     changes[i].field);
        cr_assert_not_null(strstr(err.text, changes[i].field), "case %zu wants %s: %s", i,
                           changes[i].field, err.text);
    }
}

/* The densest frames that there are: every byte of them asks for as much memory as it can. */
Test(wire_hostile, dense_frames_stay_within_the_memory_bound)
{
    enum { COUNT = 60000 };
    char *ones = malloc(COUNT);
    memset(ones, 1, COUNT);
    static const struct {
        uint32_t body, first, last;
    } cases[] = {
        { TOKENS, 1, 5 },  { TOKENS, 1, 1 },  { TOKENS, 2, 2 }, { TICKET, 4, 4 },
        { PREFILL, 1, 1 }, { PREFILL, 7, 7 }, { SCORES, 4, 4 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fg_buf frame = begin();
        fg_buf body = begin();
        for (uint32_t field = cases[i].first; field <= cases[i].last; field++) {
            put_bytes(&body, field, ones, COUNT);
        }
        put_number(&frame, 1, FG_PROTOCOL_VERSION);
        put_inner(&frame, cases[i].body, &body);
        decode_and_drop(&frame, NULL); /* checks the bound */
    }
    /* As many fields as pass, all unknown and empty, at every level. */
    fg_buf frame = begin();
    put_number(&frame, 1, FG_PROTOCOL_VERSION);
    fg_buf body = begin();
    for (int i = 0; i < 120; i++) {
        put_bytes(&body, 99, "", 0);
    }
    put_inner(&frame, CANCEL, &body);
    cr_assert_eq(decode_and_drop(&frame, NULL), FG_OK);
    free(ones);
}
