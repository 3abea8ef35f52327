/* What an answer tells of its prompts: their text, and what the model says of their tokens. */
#include <string.h>

#include "common/base/mem.h"
#include "router/stream_internal.h"

/* One write carries at most this much of a prompt. */
enum { ECHO_BYTES = 4096, ECHO_SCORES = 32 };

static uint32_t choices_each(const fg_stream *stream)
{
    return stream->request.choice_count / fg_request_prompts(&stream->request);
}

uint32_t fg_choice_prompt_index(const fg_choice *choice)
{
    return choice->index / choices_each(choice->stream);
}

uint32_t fg_choice_number(const fg_choice *choice)
{
    return choice->index % choices_each(choice->stream);
}

fg_prompt fg_choice_prompt(const fg_choice *choice)
{
    return fg_request_prompt(&choice->stream->request, fg_choice_prompt_index(choice));
}

size_t fg_stream_scores_bytes(const fg_request *request)
{
    const fg_scores *one = NULL;
    size_t want = request->params.want_scores;
    size_t row_bytes = sizeof *one->chosen + sizeof *one->ranks + want * sizeof *one->likely;
    return want == 0 ? 0 : fg_request_prompt_tokens(request) * row_bytes;
}

bool fg_stream_scores_take(fg_stream *stream)
{
    const fg_request *request = &stream->request;
    uint32_t count = fg_request_prompts(request);
    uint32_t want = request->params.want_scores;
    if (want == 0) {
        return true;
    }
    stream->scores = fg_mem_array(count, sizeof *stream->scores);
    bool made = stream->scores != NULL;
    for (uint32_t i = 0; made && i < count; i++) {
        fg_scores *scores = &stream->scores[i];
        size_t rows = fg_request_prompt(request, i).token_count; /* one more than are told */
        scores->likely_count = want - 1;
        scores->chosen = fg_mem_array(rows, sizeof *scores->chosen);
        scores->ranks = fg_mem_array(rows, sizeof *scores->ranks);
        scores->likely = fg_mem_array(rows * want, sizeof *scores->likely);
        made = scores->chosen != NULL && scores->ranks != NULL && scores->likely != NULL;
    }
    return made;
}

void fg_stream_scores_give(fg_stream *stream)
{
    for (uint32_t i = 0; stream->scores != NULL && i < fg_request_prompts(&stream->request); i++) {
        fg_mem_free(stream->scores[i].chosen);
        fg_mem_free(stream->scores[i].ranks);
        fg_mem_free(stream->scores[i].likely);
    }
    fg_mem_free(stream->scores);
}

void fg_choice_take_scores(void *ctx, uint32_t first, const fg_scores *scores)
{
    fg_choice *choice = ctx;
    fg_scores *all = &choice->stream->scores[fg_choice_prompt_index(choice)];
    FG_ASSERT(first == all->count + 1 && scores->likely_count == all->likely_count &&
                  first + scores->count <= fg_choice_prompt(choice).token_count,
              "scores out of order");
    size_t likely = all->likely_count;
    memcpy(all->chosen + all->count, scores->chosen, scores->count * sizeof *scores->chosen);
    memcpy(all->ranks + all->count, scores->ranks, scores->count * sizeof *scores->ranks);
    if (likely > 0) {
        memcpy(all->likely + all->count * likely, scores->likely,
               scores->count * likely * sizeof *scores->likely);
    }
    all->count += scores->count;
}

/* The first choice of a prompt asks for all of them. */
static bool scores_known(const fg_choice *choice)
{
    const fg_stream *stream = choice->stream;
    return stream->scores == NULL || stream->scores[fg_choice_prompt_index(choice)].count + 1 >=
                                         fg_choice_prompt(choice).token_count;
}

/* Tokens that are told of in front of the answer's own. */
static uint32_t echoed_tokens(const fg_choice *choice, const fg_prompt *prompt)
{
    const fg_request *request = &choice->stream->request;
    return request->echo && request->params.want_logprobs > 0 ? prompt->token_count : 0;
}

bool fg_choice_may_show(const fg_choice *choice)
{
    return !choice->stream->request.echo || scores_known(choice);
}

bool fg_choice_has_echo(const fg_choice *choice, const fg_api_piece *piece)
{
    fg_prompt prompt = fg_choice_prompt(choice);
    size_t bytes = choice->echoed_bytes + (piece != NULL ? piece->echo_length : 0);
    uint32_t tokens = choice->echoed + (piece != NULL ? piece->echo_count : 0);
    return choice->stream->request.echo &&
           (bytes < prompt.text_length || tokens < echoed_tokens(choice, &prompt));
}

void fg_choice_echo_init(fg_choice *choice)
{
    fg_prompt prompt = fg_choice_prompt(choice);
    if (prompt.offsets != NULL) {
        choice->text_offset = prompt.offsets[prompt.token_count];
    }
}

/* So much of a prompt's text that one write carries it, cut between characters. */
static size_t cut_length(const fg_prompt *prompt, size_t from)
{
    size_t left = prompt->text_length - from;
    size_t length = left < ECHO_BYTES ? left : ECHO_BYTES;
    while (length < left && length > ECHO_BYTES - 4 &&
           (prompt->text[from + length] & 0xC0) == 0x80) {
        length--;
    }
    return length;
}

void fg_choice_add_echo(const fg_choice *choice, fg_api_piece *piece)
{
    const fg_stream *stream = choice->stream;
    piece->prompt = fg_choice_prompt(choice);
    piece->scores = stream->scores != NULL ? &stream->scores[fg_choice_prompt_index(choice)] : NULL;
    if (!fg_choice_has_echo(choice, NULL)) {
        return;
    }
    size_t bytes = piece->prompt.text_length - choice->echoed_bytes;
    uint32_t tokens = echoed_tokens(choice, &piece->prompt);
    tokens -= tokens > 0 ? choice->echoed : 0;
    if (stream->request.stream) {
        bytes = cut_length(&piece->prompt, choice->echoed_bytes);
        tokens = tokens < ECHO_SCORES ? tokens : ECHO_SCORES;
        piece->text_length = piece->thought_length = 0; /* their turn comes */
        piece->token_count = 0;
    }
    piece->echo = piece->prompt.text + choice->echoed_bytes;
    piece->echo_length = bytes;
    piece->echo_first = choice->echoed;
    piece->echo_count = tokens;
}

void fg_choice_book_echo(fg_choice *choice, const fg_api_piece *piece)
{
    choice->echoed_bytes += piece->echo_length;
    choice->echoed += piece->echo_count;
}
