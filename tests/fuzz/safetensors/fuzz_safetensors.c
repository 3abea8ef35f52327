/*
 * Any bytes as a .safetensors file: what is accepted lies in the file, side by side, and fills it. Refusal is fine.
 */
#include <stdlib.h>
#include <string.h>

#include "common/model/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const fg_safetensors *file, const unsigned char *bytes, size_t size)
{
    const unsigned char *at = NULL;
    for (uint32_t i = 0; i < fg_safetensors_count(file); i++) {
        const fg_safetensor *tensor = fg_safetensors_at(file, i);
        const unsigned char *begin = tensor->data;
        FG_ASSERT(begin >= bytes + 8 && begin + tensor->size_bytes <= bytes + size);
        FG_ASSERT(at == NULL || begin == at, "a hole or an overlap");
        FG_ASSERT(tensor->name[0] != '\0' && tensor->dim_count <= FG_SAFETENSORS_DIMS_MAX);
        at = begin + tensor->size_bytes;
    }
    FG_ASSERT(at == NULL || at == bytes + size, "bytes of no tensor");
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    unsigned char *exact =
        malloc(size == 0 ? 1 : size); /* its own block, so that an over-read is seen */
    fg_safetensors *file = NULL;
    fg_error err;
    if (exact == NULL) {
        return 0;
    }
    memcpy(exact, data, size);
    if (fg_safetensors_parse(exact, size, &file, &err) == FG_OK) {
        check(file, exact, size);
        fg_safetensors_close(file);
    }
    free(exact);
    return 0;
}
