/*
 * Any bytes as a model file: opened, read as a model, every tensor touched at both ends, every metadata
 * entry that the rest of Forge asks for read. Refusal is fine; a crash or an over-read is not.
 */
#include <stdlib.h>
#include <string.h>

#include "common/base/dtype.h"
#include "common/model/hparams.h"
#include "common/model/weights.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void touch_tensors(const fg_weights *weights)
{
    for (uint64_t i = 0; i < fg_weights_tensor_count(weights); i++) {
        const fg_tensor *tensor = fg_weights_tensor(weights, i);
        uint32_t block_bytes = fg_dtype_block_bytes(tensor->type);
        float values[256];
        if (fg_weights_find(weights, tensor->name) != tensor || tensor->size_bytes < block_bytes) {
            abort();
        }
        const char *end = (const char *)tensor->data + tensor->size_bytes;
        fg_dequant(tensor->type, tensor->data, values, fg_dtype_block_count(tensor->type));
        fg_dequant(tensor->type, end - block_bytes, values, fg_dtype_block_count(tensor->type));
    }
}

static uint64_t touch_metadata(const fg_weights *weights)
{
    static const char *const keys[] = { "tokenizer.ggml.tokens", "tokenizer.ggml.scores",
                                        "tokenizer.ggml.token_type", "tokenizer.ggml.merges" };
    uint64_t sum = 0;
    for (size_t k = 0; k < sizeof keys / sizeof keys[0]; k++) {
        fg_meta_type type;
        uint64_t count = 0;
        fg_weights_get_array(weights, keys[k], &type, &count);
        for (uint64_t i = 0; i < count; i++) {
            const char *text;
            size_t length;
            int64_t whole = 0;
            float real = 0;
            if (fg_weights_array_string(weights, keys[k], i, &text, &length) && length > 0) {
                sum += (unsigned char)text[0] + (unsigned char)text[length - 1];
            }
            fg_weights_array_i64(weights, keys[k], i, &whole);
            fg_weights_array_f32(weights, keys[k], i, &real);
            sum += (uint64_t)whole + (real > 0);
        }
    }
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    /* An exact copy: aligned as a mapping is, and its end is where the sanitizer watches. */
    void *bytes = malloc(size == 0 ? 1 : size);
    if (bytes == NULL) {
        return 0;
    }
    memcpy(bytes, data, size);
    fg_weights *weights;
    fg_hparams hp;
    fg_error err;
    if (fg_weights_open_memory(bytes, size, &weights, &err) == FG_OK) {
        fg_hparams_read(weights, &hp, &err);
        fg_weights_fingerprint(weights);
        touch_tensors(weights);
        volatile uint64_t sum = touch_metadata(weights);
        (void)sum;
        fg_weights_close(weights);
    }
    free(bytes);
    return 0;
}
