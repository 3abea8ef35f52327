/*
 * think_parse - tells what a model thinks from what it answers, while it is being written. Pure; one owner per parser;
 * it takes no memory.
 *
 *   BEFORE --white space, then <think>--> INSIDE --</think>--> BEHIND
 *   BEFORE --anything else--> NONE
 *
 * An answer begins BEFORE, or INSIDE where its prompt has opened the thought; `<think>` as the first thing there is the
 * same mark again. BEHIND and NONE are for good: all that follows is text, whatever marks are in it.
 *
 * What the model wrote comes out exactly once and in its order, as a thought or as text, however it was cut into pieces.
 * Not shown are the two marks, white space before the first one, white space of the thought beside them, and line ends
 * right behind it. Of white space that may be beside a mark no more than FG_THINK_HELD_MAX bytes are held back; of more
 * the first are shown. An answer that ends INSIDE, or in half a mark, loses nothing.
 */
#ifndef FORGE_COMMON_MODEL_THINK_PARSE_H
#define FORGE_COMMON_MODEL_THINK_PARSE_H

#include <stdbool.h>
#include <stddef.h>

enum { FG_THINK_HELD_MAX = 256 };

/* Where an answer is. */
typedef enum fg_think_place {
    FG_THINK_BEFORE = 0, /* nothing is known yet */
    FG_THINK_INSIDE,
    FG_THINK_BEHIND,
    FG_THINK_NONE, /* it has no thought */
} fg_think_place;

/* What is told, from inside push, token and finish. Texts are borrowed until the callback returns, and never empty. */
typedef struct fg_think_events {
    void (*on_thought)(void *ctx, const char *text, size_t length);
    void (*on_text)(void *ctx, const char *text, size_t length);
    void *ctx;
} fg_think_events;

/* Read by think_parse only, but for place. */
typedef struct fg_think_parse {
    fg_think_events events;
    fg_think_place place;
    bool may_open;    /* INSIDE: <think> would be the mark of the prompt again */
    bool fresh;       /* INSIDE, BEHIND: nothing of it was shown */
    const char *mark; /* that has begun; its first `matched` bytes are held */
    size_t matched;
    size_t space_count; /* held before these */
    char spaces[FG_THINK_HELD_MAX];
} fg_think_parse;

/* Whether a model of this chat template thinks between these marks: the template names one of them. */
bool fg_think_known(const char *source, size_t length);
/* Whether a prompt ends with <think>, but for white space; *mark_at_out is where the mark is. */
bool fg_think_opened(const char *prompt, size_t length, size_t *mark_at_out);

/* `inside`: the prompt has opened the thought. */
void fg_think_parse_init(fg_think_parse *parse, bool inside, const fg_think_events *events);
/* The next bytes of the answer: whole characters, for what comes out to be so. */
void fg_think_parse_push(fg_think_parse *parse, const char *text, size_t length);
/* True for the name of a control token, which has no text, that is a mark. */
bool fg_think_parse_knows(const char *name, size_t length);
/* A control token was written here. True: it is a mark, or lies in a thought; false: it belongs to the answer, and what
 * was held before it is shown. */
bool fg_think_parse_token(fg_think_parse *parse, const char *name, size_t length);
/* The answer ends here. */
void fg_think_parse_finish(fg_think_parse *parse);

#endif
