/* What goes out: events as they come, or one answer at the end. */
#include <string.h>

#include "common/base/utf8.h"
#include "router/stream_internal.h"

/* One write carries at most this much text and this many tokens, so that it fits into the queue of an
 * exchange however its text is escaped. */
enum { PIECE_BYTES = 4096, PIECE_TOKENS = 256, PIECE_LOGPROBS = 32 };
/* Some whole answers are far larger than others: what they took is not kept. */
enum { CHUNK_KEPT_BYTES = 1 << 20 };

void fg_stream_count_http(const fg_stream *stream, int http_status)
{
    if (stream->sink.route != NULL) {
        fg_meter_http(stream->owner->options.meter, stream->sink.route, http_status);
    }
}

uint32_t fg_stream_render_error(fg_streams *streams, const fg_api_error *error)
{
    fg_buf_clear(&streams->chunk);
    fg_api_render_error(&streams->chunk, error);
    if (error->http_status != 429 && error->http_status != 503) {
        return 0;
    }
    return error->wait_s > 0 ? error->wait_s : fg_dispatch_retry_after(streams->options.dispatch);
}

/* Of a prompt, which all its choices share, as much was cached as the choice that found least says. */
fg_api_usage fg_stream_usage(const fg_stream *stream)
{
    fg_api_usage usage = { 0 };
    uint32_t least = 0; /* of the prompt so far */
    bool known = false;
    for (uint32_t i = 0; i < stream->request.choice_count; i++) {
        const fg_choice *choice = &stream->choices[i];
        usage.completion_tokens += choice->completion_tokens;
        usage.reasoning_tokens += choice->think.tokens;
        if (fg_choice_number(choice) == 0) {
            usage.cached_tokens += least;
            least = 0;
            known = false;
        }
        if (choice->reported && (!known || choice->report.cached_tokens < least)) {
            least = choice->report.cached_tokens;
            known = true;
        }
    }
    usage.cached_tokens += least;
    return usage;
}

/* So much of a text that one write carries it, cut between characters. */
static size_t cut_length(const fg_buf *text)
{
    size_t length = text->size;
    if (length > PIECE_BYTES) {
        length = PIECE_BYTES;
        while (length > PIECE_BYTES - 4 && (text->data[length] & 0xC0) == 0x80) {
            length--;
        }
    }
    return length;
}

/* The next stretch of what a choice thinks or answers, with the tokens that came with it. */
static fg_api_piece next_piece(const fg_choice *choice)
{
    const fg_buf *thought = &choice->think.text;
    size_t thought_length = thought->size;
    size_t length = choice->text.size;
    size_t token_count = choice->ids.size / sizeof(uint32_t);
    if (choice->stream->request.stream) {
        thought_length = cut_length(thought);
        length = thought->size > 0 ? 0 : cut_length(&choice->text);
        size_t most = choice->logprobs.size > 0 ? PIECE_LOGPROBS : PIECE_TOKENS;
        token_count = token_count > most ? most : token_count;
    }
    fg_api_piece piece = {
        .text = choice->text.size == 0 ? "" : choice->text.data,
        .text_length = length,
        .thought = thought->size == 0 ? "" : thought->data,
        .thought_length = thought_length,
        .ids = (const uint32_t *)(const void *)choice->ids.data,
        .digests = (const uint64_t *)(const void *)choice->digests.data,
        .logprobs = (const fg_logprobs *)(const void *)choice->logprobs.data,
        .token_count = token_count,
        .rolling_digest = choice->rolling_digest,
        .text_offset = choice->text_offset,
        .tokenizer = choice->stream->owner->options.tokenizer,
    };
    fg_choice_add_echo(choice, &piece);
    for (size_t i = 0; i < piece.token_count; i++) {
        piece.rolling_digest = fg_api_roll_digest(piece.rolling_digest, piece.digests[i]);
    }
    return piece;
}

static bool ended_well(const fg_choice *choice)
{
    return choice->finish == FG_FINISH_STOP || choice->finish == FG_FINISH_LENGTH;
}

static bool has_more(const fg_choice *choice)
{
    if (!fg_choice_may_show(choice)) {
        return false;
    }
    bool role = choice->stream->request.kind == FG_API_CHAT && !choice->role_named &&
                choice->completion_tokens > 0;
    bool begun = choice->completion_tokens > 0 || ended_well(choice);
    return role || (begun && fg_choice_has_echo(choice, NULL)) || choice->think.text.size > 0 ||
           choice->text.size > 0 || choice->ids.size > 0 || choice->tools.parts.size > 0 ||
           (ended_well(choice) && !choice->finish_named);
}

/* The next choice with something to tell, each in its turn; NULL: none but `except`, or none. */
static fg_choice *next_choice(fg_stream *stream, const fg_choice *except)
{
    uint32_t count = stream->request.choice_count;
    for (uint32_t i = 0; i < count; i++) {
        fg_choice *choice = &stream->choices[(stream->turn + i) % count];
        if (choice != except && has_more(choice)) {
            return choice;
        }
    }
    return NULL;
}

/* What one write carries, so that it can be booked once it has gone out. */
typedef struct write {
    fg_choice *choice; /* NULL: none, only the end */
    fg_api_piece piece;
    fg_api_call_part call; /* with no bytes: none */
    bool finish;           /* of the choice */
    bool last;             /* of the stream */
} write;

static void compose_choice(fg_stream *stream, write *next)
{
    fg_buf *out = &stream->owner->chunk;
    const fg_request *request = &stream->request;
    fg_choice *choice = next->choice;
    next->piece = next_piece(choice);
    bool text = next->piece.thought_length > 0 || next->piece.text_length > 0 ||
                next->piece.token_count > 0 || next->piece.echo_length > 0 ||
                next->piece.echo_count > 0;
    bool calls = choice->tools.parts.size > 0;
    bool all = !calls && next->piece.thought_length == choice->think.text.size &&
               next->piece.text_length == choice->text.size &&
               next->piece.token_count * sizeof(uint32_t) == choice->ids.size;
    all = all && !fg_choice_has_echo(choice, &next->piece);
    next->finish = all && ended_well(choice);
    if (!choice->role_named && request->kind == FG_API_CHAT) {
        fg_api_event_role(out, request, choice->index);
    }
    if (calls && !text) {
        /* A call waits until the text before it is out, and the finish until all calls are. */
        fg_api_calls part = fg_choice_tools_next(choice, PIECE_BYTES, &next->call);
        fg_api_event_calls(out, request, choice->index, &part);
    }
    if (text || next->finish) {
        /* A single choice's timings belong to the last chunk, which may be that of the usage. */
        bool timings = next->finish && (request->choice_count > 1 || !request->include_usage);
        fg_api_choice shown = {
            .index = choice->index,
            .piece = next->piece,
            .finish = next->finish ? choice->finish : FG_FINISH_NONE,
            .called = choice->tools.whole > 0,
            .report = timings ? fg_choice_report(choice) : NULL,
        };
        fg_api_event_choice(out, request, &shown);
    }
    next->last = all && fg_stream_ended(stream) && next_choice(stream, choice) == NULL;
}

/* Renders what is next into owner->chunk; nothing of the stream changes until it has been written. */
static bool compose(fg_stream *stream, write *next)
{
    fg_buf *out = &stream->owner->chunk;
    fg_buf_clear(out);
    *next = (write){ .choice = next_choice(stream, NULL) };
    if (next->choice != NULL) {
        compose_choice(stream, next);
    } else {
        next->last = fg_stream_ended(stream);
    }
    if (next->last && stream->failed) {
        fg_api_event_error(out, &stream->failure);
    } else if (next->last && stream->request.include_usage) {
        fg_api_usage usage = fg_stream_usage(stream);
        bool single = stream->request.choice_count == 1;
        fg_api_event_usage(out, &stream->request, &usage,
                           single ? fg_choice_report(&stream->choices[0]) : NULL);
    }
    if (next->last) {
        fg_api_event_done(out);
    }
    return !out->failed;
}

static void book(fg_stream *stream, const write *next)
{
    fg_choice *choice = next->choice;
    if (choice == NULL) {
        return;
    }
    choice->role_named = true;
    choice->finish_named = choice->finish_named || next->finish;
    choice->rolling_digest = next->piece.rolling_digest;
    if (next->call.name_length + next->call.arguments_length > 0) {
        fg_choice_tools_book(choice, &next->call);
    }
    fg_choice_book_echo(choice, &next->piece);
    fg_buf_consume(&choice->think.text, next->piece.thought_length);
    fg_buf_consume(&choice->text, next->piece.text_length);
    if (choice->logprobs.size > 0) {
        for (size_t i = 0; i < next->piece.token_count; i++) {
            choice->text_offset += fg_api_characters_of(next->piece.tokenizer, next->piece.ids[i]);
        }
        fg_buf_consume(&choice->logprobs, next->piece.token_count * sizeof(fg_logprobs));
    }
    fg_buf_consume(&choice->ids, next->piece.token_count * sizeof(uint32_t));
    fg_buf_consume(&choice->digests, next->piece.token_count * sizeof(uint64_t));
    stream->turn = (choice->index + 1) % stream->request.choice_count;
}

bool fg_stream_write_events(fg_stream *stream)
{
    const fg_stream_sink *sink = &stream->sink;
    const fg_buf *chunk = &stream->owner->chunk;
    if (!stream->answered) {
        sink->begin(sink->ctx);
        stream->answered = true;
        fg_stream_count_http(stream, 200);
    }
    for (;;) {
        write next;
        if (!compose(stream, &next)) {
            fg_stream_move(stream, FG_STREAM_BLOCKED); /* no memory: as if the reader were slow */
            return false;
        }
        if (chunk->size == 0) {
            return false;
        }
        fg_status status = sink->write(sink->ctx, chunk->data, chunk->size);
        if (status == FG_AGAIN) {
            fg_stream_move(stream, FG_STREAM_BLOCKED);
            return false;
        }
        if (status != FG_OK || stream->gone) {
            /* on_gone comes, or came during the write. */
            for (uint32_t i = 0; i < stream->request.choice_count; i++) {
                fg_choice_let_go(&stream->choices[i], FG_FINISH_CANCELLED);
            }
            return false;
        }
        book(stream, &next);
        if (next.last) {
            return true;
        }
    }
}

static void render_texts(const fg_stream *stream, fg_buf *out)
{
    fg_api_choice choices[FG_LIMIT_CHOICES];
    for (uint32_t i = 0; i < stream->request.choice_count; i++) {
        const fg_choice *choice = &stream->choices[i];
        choices[i] = (fg_api_choice){ .index = i,
                                      .piece = next_piece(choice),
                                      .finish = choice->finish,
                                      .called = choice->tools.whole > 0,
                                      .calls = fg_choice_tools_calls(choice),
                                      .report = fg_choice_report(choice) };
    }
    fg_api_usage usage = fg_stream_usage(stream);
    fg_api_render_answer(out, &stream->request, choices, &usage);
}

static void render_embeddings(const fg_stream *stream, fg_buf *out)
{
    fg_api_begin_embeddings(out, &stream->request);
    for (uint32_t i = 0; i < stream->request.choice_count; i++) {
        const fg_buf *text = &stream->choices[i].text;
        fg_api_add_embedding(out, i, text->data, text->size);
    }
    fg_api_usage usage = fg_stream_usage(stream);
    fg_api_end_embeddings(out, &stream->request, &usage);
}

void fg_stream_write_answer(fg_stream *stream)
{
    fg_streams *owner = stream->owner;
    fg_buf *out = &owner->chunk;
    uint32_t wait_s = 0;
    stream->answered = true;
    if (!stream->failed) {
        fg_buf_clear(out);
        if (stream->request.kind == FG_API_EMBEDDING) {
            render_embeddings(stream, out);
        } else {
            render_texts(stream, out);
        }
        if (out->failed) {
            fg_stream_fail(stream, FG_CANCELLED, "out of memory for the answer");
        }
    }
    if (stream->failed) {
        wait_s = fg_stream_render_error(owner, &stream->failure);
    }
    int http_status = stream->failed ? stream->failure.http_status : 200;
    fg_stream_count_http(stream, http_status);
    stream->sink.reply(stream->sink.ctx, http_status, wait_s, out->data == NULL ? "" : out->data,
                       out->size);
    if (out->capacity > CHUNK_KEPT_BYTES) {
        fg_buf_deinit(out);
        fg_buf_init(out, 0);
    }
}
