/*
 * dequant_tool - the reference dequantiser as a filter, for tests/integration/dequant_vs_gguf.py.
 * Standard input: "TYPE COUNT\n" (GGUF's type number, elements), then the raw blocks; standard output:
 * the floats. Repeats until the input ends.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "common/base/dtype.h"
#include "common/model/weights.h"

static bool convert(uint32_t type, uint64_t count)
{
    uint32_t block_count = fg_dtype_block_count(type);
    if (block_count == 0 || count == 0 || count % block_count != 0 || count > 1u << 28) {
        fprintf(stderr, "dequant_tool: no such type, or not whole blocks\n");
        return false;
    }
    size_t size_bytes = count / block_count * fg_dtype_block_bytes(type);
    void *blocks = malloc(size_bytes);
    float *values = malloc(count * sizeof *values);
    bool done = false;
    if (blocks != NULL && values != NULL && fread(blocks, 1, size_bytes, stdin) == size_bytes) {
        fg_dequant(type, blocks, values, count);
        done = fwrite(values, sizeof *values, count, stdout) == count;
    }
    free(blocks);
    free(values);
    return done;
}

int main(void)
{
    uint32_t type;
    uint64_t count;
    /* No white space at the end of the format: it would swallow bytes of the blocks. */
    while (scanf("%" SCNu32 " %" SCNu64, &type, &count) == 2) {
        if (getchar() != '\n' || !convert(type, count)) {
            return 1;
        }
    }
    return fflush(stdout) == 0 ? 0 : 1;
}
