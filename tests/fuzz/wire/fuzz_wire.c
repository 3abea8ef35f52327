/*
 * Any bytes as a bus frame: no crash, no more memory than the bound, and what decodes encodes again
 * to a frame that says the same.
 */
#include <stdlib.h>
#include <string.h>

#include "common/base/limits.h"
#include "proto/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes)
{
    fg_arena *arena = fg_arena_create(FG_LIMIT_FRAME_ARENA_BYTES);
    fg_arena *arena_again = fg_arena_create(FG_LIMIT_FRAME_ARENA_BYTES);
    fg_msg msg, again;
    fg_error err;
    fg_status status = fg_wire_decode(bytes, size_bytes, arena, &msg, &err);
    FG_ASSERT(fg_arena_used(arena) <= 16 * size_bytes + 16384, "%zu bytes took %zu", size_bytes,
              fg_arena_used(arena));
    if (status == FG_OK) {
        fg_buf first, second;
        fg_buf_init(&first, 0);
        fg_buf_init(&second, 0);
        FG_ASSERT(fg_wire_encode(&msg, &first), "encode");
        status = fg_wire_decode(first.data, first.size, arena_again, &again, &err);
        FG_ASSERT(status == FG_OK, "%s", err.text);
        FG_ASSERT(fg_wire_encode(&again, &second), "encode again");
        FG_ASSERT(first.size == second.size && memcmp(first.data, second.data, first.size) == 0,
                  "two encodings of one message differ");
        fg_buf_deinit(&first);
        fg_buf_deinit(&second);
    }
    fg_arena_destroy(arena);
    fg_arena_destroy(arena_again);
    return 0;
}
