/* One choice: its tokens become text, up to a stop string or its end. */
#include <string.h>

#include "common/base/utf8.h"
#include "router/stream_internal.h"

/* Tokens whose logprobs wait for the reader of a stream. */
enum { UNREAD_TOKENS = 4096 };

static bool wants_logprobs(const fg_request *request)
{
    return request->params.want_logprobs > 0;
}

static bool wants_tokens(const fg_request *request)
{
    return request->return_token_ids || request->logits_digest || wants_logprobs(request);
}

/* Shows a token's characters, as far as no stop string can begin in them. */
static void add_text(fg_choice *choice, size_t length)
{
    const fg_request *request = &choice->stream->request;
    bool stopped = length > 0 && fg_stop_push(choice->stop, choice->stream->owner->scratch, length,
                                              fg_choice_shown(choice));
    if (stopped && request->show_stop) {
        int found = fg_stop_matched(choice->stop);
        fg_buf_append(fg_choice_shown(choice), request->stops[found], request->stop_lengths[found]);
    }
    fg_choice_take(choice);
    if (stopped && choice->finish == FG_FINISH_NONE) {
        fg_choice_end(choice);
        choice->finish = FG_FINISH_STOP;
    }
}

/* A control token that marks thoughts or calls: what was held back before it is shown, no stop string goes over it. */
static void add_marker(fg_choice *choice, uint32_t id)
{
    fg_streams *owner = choice->stream->owner;
    add_text(choice, fg_detok_finish(&choice->detok, owner->scratch, owner->scratch_bytes));
    if (choice->finish == FG_FINISH_NONE) {
        fg_stop_finish(choice->stop, fg_choice_shown(choice));
        fg_choice_take(choice);
        fg_choice_take_token(choice, id);
    }
}

static void count_token(fg_choice *choice)
{
    fg_stream *stream = choice->stream;
    fg_meter *meter = stream->owner->options.meter;
    uint64_t now = fg_clock_now_ns(&stream->owner->options.clock);
    if (choice->completion_tokens == 0) {
        choice->first_token_ns = now;
        fg_meter_first_token(meter, now - stream->started_ns);
    } else {
        fg_meter_next_token(meter, now - choice->last_token_ns);
    }
    choice->last_token_ns = now;
    choice->completion_tokens++;
}

/* Keeps what the client wants to know of a token. False: it is not all there. */
static bool keep_token(fg_choice *choice, uint32_t id, uint64_t digest, const fg_logprobs *logprobs)
{
    const fg_request *request = &choice->stream->request;
    if (!wants_tokens(request)) {
        return true;
    }
    fg_buf_append(&choice->ids, &id, sizeof id);
    fg_buf_append(&choice->digests, &digest, sizeof digest);
    if (!wants_logprobs(request)) {
        return true;
    }
    if (!request->stream) {
        fg_stream_gather(choice->stream, sizeof *logprobs);
    }
    return logprobs != NULL && fg_buf_append(&choice->logprobs, logprobs, sizeof *logprobs);
}

/* Whether the client wants an answer to end with this token; the first min_tokens end none. */
static bool is_stop(const fg_choice *choice, uint32_t id)
{
    const fg_request *request = &choice->stream->request;
    bool found = false;
    for (size_t i = 0; i < request->stop_id_count && !found; i++) {
        found = request->stop_ids[i] == id;
    }
    return found && choice->completion_tokens > request->params.min_tokens;
}

/* The answer ends here: what was held back is shown. */
static void stop_here(fg_choice *choice)
{
    fg_streams *owner = choice->stream->owner;
    add_text(choice, fg_detok_finish(&choice->detok, owner->scratch, owner->scratch_bytes));
    if (choice->finish == FG_FINISH_NONE) {
        fg_stop_finish(choice->stop, fg_choice_shown(choice));
        fg_choice_take(choice);
        fg_choice_end(choice);
        choice->finish = FG_FINISH_STOP;
    }
}

static void on_token(void *ctx, uint32_t index, uint32_t id, uint64_t digest,
                     const fg_logprobs *logprobs)
{
    fg_choice *choice = ctx;
    fg_stream *stream = choice->stream;
    fg_streams *owner = stream->owner;
    if (choice->finish != FG_FINISH_NONE || stream->failed) {
        return; /* ended in this very turn; the flush will tell dispatch */
    }
    FG_ASSERT(index == choice->completion_tokens, "token out of order");
    if (stream->request.no_answer) {
        return; /* the end follows */
    }
    count_token(choice);
    bool kept = keep_token(choice, id, digest, logprobs);
    fg_think_place before = choice->think.parse.place;
    bool last = is_stop(choice, id);
    bool quiet = last && !stream->request.show_stop; /* as an end token is */
    if (!quiet && fg_choice_wants(choice, id)) {
        add_marker(choice, id);
    } else if (!quiet && (stream->request.params.ignore_eos ||
                          !fg_tokenizer_is_end(owner->options.tokenizer, id))) {
        add_text(choice, fg_detok_push(&choice->detok, owner->options.tokenizer, id, owner->scratch,
                                       owner->scratch_bytes));
    }
    if (last && choice->finish == FG_FINISH_NONE) {
        stop_here(choice);
    }
    fg_choice_think_count(choice, before);
    if (!kept || fg_choice_think_failed(choice) || fg_choice_tools_failed(choice) ||
        choice->text.failed || choice->ids.failed || choice->digests.failed) {
        choice->finish = FG_FINISH_ERROR;
        fg_stream_fail(stream, FG_CANCELLED,
                       stream->request.stream ? "the client reads too slowly"
                                              : "out of memory for the answer");
    }
    fg_stream_has_news(stream);
}

/* What the answer says of it is all that is kept. */
static void on_embedding(void *ctx, const float *embedding, uint32_t count)
{
    fg_choice *choice = ctx;
    const fg_request *request = &choice->stream->request;
    if (choice->finish != FG_FINISH_NONE || choice->stream->failed) {
        return; /* ended in this very turn */
    }
    if (count < request->dimensions) {
        choice->finish = FG_FINISH_ERROR;
        fg_stream_fail(choice->stream, FG_BROKEN, "a worker's embedding is not the model's");
        fg_stream_has_news(choice->stream);
        return;
    }
    fg_api_put_embedding(&choice->text, request, embedding);
    if (choice->text.failed) {
        choice->finish = FG_FINISH_ERROR;
        fg_stream_fail(choice->stream, FG_CANCELLED, "out of memory for the answer");
        fg_stream_has_news(choice->stream);
    }
}

static void on_end(void *ctx, fg_finish finish, fg_status status, const char *text,
                   const fg_dispatch_report *report)
{
    fg_choice *choice = ctx;
    fg_stream *stream = choice->stream;
    choice->dispatched = false;
    if (report != NULL) {
        choice->report = *report;
        choice->reported = true;
        fg_meter_report(stream->owner->options.meter, report);
    }
    bool good = finish == FG_FINISH_STOP || finish == FG_FINISH_LENGTH;
    if (choice->finish == FG_FINISH_NONE && !stream->failed) {
        /* What was held back, half a character or the beginning of a stop string, is shown now. */
        add_text(choice, fg_detok_finish(&choice->detok, stream->owner->scratch,
                                         stream->owner->scratch_bytes));
        if (choice->finish == FG_FINISH_NONE) {
            fg_stop_finish(choice->stop, fg_choice_shown(choice));
            fg_choice_take(choice);
            fg_choice_end(choice);
            choice->finish = choice->finish == FG_FINISH_NONE ? finish : choice->finish;
        }
        if (good && stream->request.no_answer) {
            choice->finish = FG_FINISH_LENGTH;
        }
        if (!good) {
            choice->finish = FG_FINISH_ERROR;
            fg_stream_fail(stream, status == FG_OK ? FG_BROKEN : status,
                           text == NULL ? "the request ended unexpectedly" : text);
        }
    }
    fg_stream_has_news(stream);
}

/* A whole answer's text is bounded by what its tokens can spell; a stream's by its reader. */
static size_t text_limit(const fg_streams *streams, const fg_request *request)
{
    if (request->kind == FG_API_EMBEDDING) {
        return fg_api_embedding_bytes(request);
    }
    size_t piece = fg_tokenizer_piece_max(streams->options.tokenizer) + 16;
    size_t all = ((size_t)request->params.max_tokens + 1) * piece;
    size_t share = FG_LIMIT_STREAM_BYTES / request->choice_count;
    return request->stream && all > share ? share : all;
}

fg_status fg_choice_init(fg_choice *choice, fg_stream *stream, uint32_t index, fg_error *err)
{
    const fg_streams *streams = stream->owner;
    const fg_request *request = &stream->request;
    choice->stream = stream;
    choice->index = index;
    fg_buf_init(&choice->text, text_limit(streams, request));
    size_t token_max = (size_t)request->params.max_tokens + 1;
    fg_buf_init(&choice->ids, token_max * sizeof(uint32_t));
    fg_buf_init(&choice->digests, token_max * sizeof(uint64_t));
    /* Of a stream as much as the text that its reader leaves: far more than a chunk takes along. */
    size_t logprobs_max = request->stream && token_max > UNREAD_TOKENS ? UNREAD_TOKENS : token_max;
    fg_buf_init(&choice->logprobs, logprobs_max * sizeof(fg_logprobs));
    /* An answer to nothing but BOS, or to a chat, is a text of its own, not a continuation. */
    fg_prompt prompt = fg_choice_prompt(choice);
    bool after_bos =
        prompt.token_count == 1 && prompt.tokens[0] == fg_tokenizer_bos(streams->options.tokenizer);
    fg_choice_echo_init(choice);
    fg_detok_init(&choice->detok,
                  streams->strip_leading_space && (request->kind == FG_API_CHAT || after_bos));
    fg_choice_think_init(choice, text_limit(streams, request));
    fg_status status = fg_choice_tools_init(choice, text_limit(streams, request), err);
    return status != FG_OK ? status
                           : fg_stop_create(request->stops, request->stop_lengths,
                                            request->stop_count, &choice->stop, err);
}

void fg_choice_deinit(fg_choice *choice)
{
    fg_stop_destroy(choice->stop);
    fg_choice_think_deinit(choice);
    fg_choice_tools_deinit(choice);
    fg_buf_deinit(&choice->text);
    fg_buf_deinit(&choice->ids);
    fg_buf_deinit(&choice->digests);
    fg_buf_deinit(&choice->logprobs);
}

fg_dispatch_job fg_choice_job(const fg_choice *choice)
{
    const fg_request *request = &choice->stream->request;
    fg_prompt prompt = fg_choice_prompt(choice);
    uint32_t number = fg_choice_number(choice);
    fg_dispatch_job job = {
        .tokens = prompt.tokens,
        .token_count = prompt.token_count,
        .params = request->params,
        .tenant = request->tenant,
        .slo = request->slo,
        .deadline_ns = request->deadline_ns,
    };
    /* One that starts later has less of it. */
    uint64_t now = fg_clock_now_ns(&choice->stream->owner->options.clock);
    uint64_t gone = now - choice->stream->started_ns;
    if (job.deadline_ns > 0) {
        job.deadline_ns = gone < job.deadline_ns ? job.deadline_ns - gone : 1;
    }
    job.params.seed += number;
    job.params.family += job.params.family > 0 ? fg_choice_prompt_index(choice) : 0;
    /* The same prompt is asked about once. */
    job.params.want_scores = number == 0 ? job.params.want_scores : 0;
    return job;
}

fg_status fg_choice_start(fg_choice *choice, fg_error *err)
{
    fg_dispatch_job job = fg_choice_job(choice);
    job.sink = (fg_dispatch_sink){ .on_token = on_token,
                                   .on_scores = fg_choice_take_scores,
                                   .on_embedding = on_embedding,
                                   .on_end = on_end,
                                   .ctx = choice };
    fg_status status =
        fg_dispatch_start(choice->stream->owner->options.dispatch, &job, &choice->dispatch_id, err);
    choice->dispatched = status == FG_OK;
    return status;
}

void fg_choice_let_go(fg_choice *choice, fg_finish reason)
{
    fg_streams *owner = choice->stream->owner;
    if (!choice->dispatched) {
        return;
    }
    choice->dispatched = false;
    if (fg_dispatch_cancel(owner->options.dispatch, choice->dispatch_id, reason, &choice->report)) {
        choice->reported = true;
        fg_meter_report(owner->options.meter, &choice->report);
    }
}

const fg_dispatch_report *fg_choice_report(const fg_choice *choice)
{
    return choice->stream->request.return_timings ? &choice->report : NULL;
}
