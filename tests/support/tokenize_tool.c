/*
 * tokenize_tool - the text half of common/model for test programs in other languages.
 *
 *   tokenize_tool MODEL encode    texts in, a line of ids out for each; special tokens not parsed
 *   tokenize_tool MODEL special   the same with special tokens parsed
 *   tokenize_tool MODEL bos       the first with BOS in front where the model asks for it
 *   tokenize_tool MODEL decode    texts in, encoded and decoded again out
 *   tokenize_tool MODEL chat      conversations in, the rendered text and its ids out
 *
 * A text is a 32-bit little-endian length and its bytes, on both sides. A conversation is a text
 * ("1" or "0": with generation prompt or not), then a text with the number of messages, then for each
 * a role and a content. Exit 2: bad use or a refused model.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/model/chat.h"
#include "common/model/tokenizer.h"
#include "tests/support/text_pipe.h"

enum { MESSAGES_MAX = 256 };

__attribute__((noreturn)) static void die(const char *what)
{
    fg_pipe_die("tokenize_tool", what);
}

static void print_ids(const uint32_t *ids, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        printf(i == 0 ? "%u" : " %u", ids[i]);
    }
    putchar('\n');
}

static void decode_ids(const fg_tokenizer *tokenizer, const uint32_t *ids, size_t count)
{
    fg_buf out;
    fg_buf_init(&out, 0);
    fg_detok detok;
    fg_detok_init(&detok, true);
    size_t room = fg_tokenizer_piece_max(tokenizer) + 8;
    for (size_t i = 0; i < count; i++) {
        char *place = fg_buf_reserve(&out, room);
        out.size += fg_detok_push(&detok, tokenizer, ids[i], place, room);
    }
    char *place = fg_buf_reserve(&out, 16);
    out.size += fg_detok_finish(&detok, place, 16);
    fg_pipe_write(out.data, out.size);
    fg_buf_deinit(&out);
}

static void run_texts(const fg_tokenizer *tokenizer, const char *mode)
{
    char *text;
    size_t length;
    fg_error err;
    while ((text = fg_pipe_read("tokenize_tool", &length)) != NULL) {
        size_t capacity = 3 * length + 8;
        uint32_t *ids = fg_mem_array(capacity, sizeof(*ids));
        size_t count;
        fg_encode_options options = { .parse_special = strcmp(mode, "special") == 0,
                                      .add_bos = strcmp(mode, "bos") == 0 };
        if (ids == NULL || fg_tokenizer_encode(tokenizer, text, length, options, ids, capacity,
                                               &count, &err) != FG_OK) {
            die(ids == NULL ? "out of memory" : err.text);
        }
        if (strcmp(mode, "decode") == 0) {
            decode_ids(tokenizer, ids, count);
        } else {
            print_ids(ids, count);
        }
        fg_mem_free(ids);
        fg_mem_free(text);
    }
}

static void run_chat(const fg_tokenizer *tokenizer, const fg_chat *chat)
{
    char *flag;
    size_t length;
    fg_error err;
    while ((flag = fg_pipe_read("tokenize_tool", &length)) != NULL) {
        char *number = fg_pipe_read("tokenize_tool", &length);
        unsigned long count = number == NULL ? MESSAGES_MAX + 1 : strtoul(number, NULL, 10);
        if (count > MESSAGES_MAX) {
            die("bad conversation");
        }
        fg_chat_message messages[MESSAGES_MAX];
        for (unsigned long i = 0; i < count; i++) {
            messages[i] = (fg_chat_message){ 0 };
            messages[i].role = fg_pipe_read("tokenize_tool", &messages[i].role_length);
            messages[i].content = fg_pipe_read("tokenize_tool", &messages[i].content_length);
        }
        fg_buf out;
        fg_buf_init(&out, 0);
        static uint32_t ids[1 << 16];
        size_t id_count;
        fg_chat_options options = { .add_generation_prompt = flag[0] == '1' };
        if (fg_chat_render(chat, messages, count, &options, &out, &err) != FG_OK ||
            fg_chat_encode(chat, tokenizer, messages, count, &options, ids, 1 << 16, 0, &id_count,
                           &err) != FG_OK) {
            die(err.text);
        }
        fg_pipe_write(out.size == 0 ? "" : out.data, out.size);
        print_ids(ids, id_count);
        fg_buf_deinit(&out);
        for (unsigned long i = 0; i < count; i++) {
            fg_mem_free((void *)messages[i].role);
            fg_mem_free((void *)messages[i].content);
        }
        fg_mem_free(number);
        fg_mem_free(flag);
    }
}

int main(int argc, char **argv)
{
    if (argc != 3) {
        die("usage: tokenize_tool MODEL encode|special|bos|decode|chat");
    }
    const char *mode = argv[2];
    fg_weights *weights = NULL;
    fg_tokenizer *tokenizer = NULL;
    fg_chat *chat = NULL;
    fg_error err;
    if (fg_weights_open(argv[1], &weights, &err) != FG_OK ||
        fg_tokenizer_open(weights, &tokenizer, &err) != FG_OK ||
        fg_chat_open(weights, &chat, &err) != FG_OK) {
        die(err.text);
    }
    fg_weights_close(weights);
    if (strcmp(mode, "chat") == 0) {
        run_chat(tokenizer, chat);
    } else {
        run_texts(tokenizer, mode);
    }
    fg_chat_close(chat);
    fg_tokenizer_close(tokenizer);
    return 0;
}
