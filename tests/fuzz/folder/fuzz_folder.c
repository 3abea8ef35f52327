/*
 * Any bytes as one file of a Hugging Face folder whose other files are good: refused, or a model all of which can be read.
 *
 * Byte 0 chooses the class of config.json, byte 1 the file that the rest becomes: config.json, tokenizer.json,
 * tokenizer_config.json, generation_config.json, the index, the chat template, the weights, tokenizer.json beside
 * SentencePiece's configuration, or what sentence-transformers keep.
 */
#include <stdlib.h>
#include <string.h>

#include "common/base/dtype.h"
#include "common/model/chat.h"
#include "common/model/hparams.h"
#include "common/model/tokenizer.h"
#include "tests/support/small_folder.h"

enum { HEAD = 2, FILES = 9, SPM = 7, TEXT_MAX = 1 << 16 };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void touch_tensors(const fg_weights *weights)
{
    for (uint64_t i = 0; i < fg_weights_tensor_count(weights); i++) {
        const fg_tensor *tensor = fg_weights_tensor(weights, i);
        uint64_t rows = tensor->dims[1] * tensor->dims[2];
        void *copy = malloc((size_t)tensor->size_bytes); /* exact */
        FG_ASSERT(copy != NULL && fg_weights_find(weights, tensor->name) == tensor);
        FG_ASSERT(tensor->size_bytes ==
                  rows * tensor->dims[0] * fg_dtype_block_bytes(tensor->type));
        fg_tensor_copy_rows(tensor, 0, rows, copy);
        free(copy);
    }
}

static void touch_text(const fg_weights *weights)
{
    static const char text[] = "hello <tool>\n 12 ab<turn> \xC3\xA9 he's";
    fg_tokenizer *tokenizer = NULL;
    fg_chat *chat = NULL;
    fg_error err;
    uint32_t ids[sizeof text + 8];
    size_t count;
    const fg_encode_options options = { .parse_special = true, .add_bos = true };
    if (fg_tokenizer_open(weights, &tokenizer, &err) == FG_OK) {
        (void)fg_tokenizer_encode(tokenizer, text, sizeof text - 1, options, ids,
                                  sizeof ids / sizeof ids[0], &count, &err);
        for (size_t i = 0; i < count && i < sizeof ids / sizeof ids[0]; i++) {
            FG_ASSERT(ids[i] < fg_tokenizer_vocab_size(tokenizer));
        }
        fg_tokenizer_close(tokenizer);
    }
    if (fg_chat_open(weights, &chat, &err) == FG_OK) {
        fg_chat_close(chat);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t classes = 0;
    while (small_folder_classes[classes] != NULL) {
        classes++;
    }
    if (size < HEAD + 1 || size > TEXT_MAX) {
        return 0;
    }
    small_folder folder;
    uint8_t which = data[1] % FILES;
    small_folder_make(&folder, small_folder_classes[data[0] % classes]);
    if (which == SPM) {
        small_folder_make_spm(&folder);
    }
    fg_folder_files *files = &folder.files;
    fg_folder_file *const targets[FILES] = {
        &files->config, &files->tokenizer,     &files->tokenizer_config, &files->generation_config,
        &files->index,  &files->chat_template, &folder.weight_file,      &files->tokenizer,
        &files->pooling
    };
    char *bytes = malloc(size - HEAD); /* its own block, so that an over-read is seen */
    FG_ASSERT(bytes != NULL);
    memcpy(bytes, data + HEAD, size - HEAD);
    targets[which]->bytes = bytes;
    targets[which]->size_bytes = size - HEAD;
    fg_weights *weights = NULL;
    fg_hparams hp;
    fg_error err = { .status = FG_OK };
    fg_status status = fg_folder_open_memory(files, &weights, &err);
    FG_ASSERT(status == FG_OK || (err.text[0] != '\0' && strchr(err.text, '\n') == NULL));
    if (status == FG_OK) {
        (void)fg_hparams_read(weights, &hp, &err);
        (void)fg_weights_fingerprint(weights);
        touch_tensors(weights);
        touch_text(weights);
        fg_weights_close(weights);
    }
    free(bytes);
    small_folder_free(&folder);
    return 0;
}
