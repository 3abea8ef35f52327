/*
 * fuzz_panel_file - any bytes as the header of a sidecar file: as they are, and as changes (three bytes
 * each: where, what) of the right header, its digest made right again. What is accepted differs from the
 * right one in digests only.
 */
#include <stdlib.h>
#include <string.h>

#include "common/base/dtype.h"
#include "common/base/hash.h"
#include "common/engine/panel_file.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes);

static const fg_panel_source sources[] = {
    { .name = "a", .rows = { .type = FG_Q4_K, .outputs = 2048, .columns = 2048 } },
    { .name = "b", .rows = { .type = FG_Q8_0, .outputs = 100, .columns = 64 } },
    { .name = "c", .rows = { .type = FG_F16, .outputs = 2048, .columns = 1024 } },
};
static const fg_panel_model model = { .size_bytes = 123456,
                                      .modified_ns = 987654321,
                                      .fingerprint = { 11, 22 } };

static void check(const fg_panel_plan *plan, const uint8_t *right, const uint8_t *bytes,
                  size_t size_bytes)
{
    const uint64_t *digests = NULL;
    fg_error err = { 0 };
    fg_status status = fg_panel_header_check(plan, &model, bytes, size_bytes, &digests, &err);
    if (status != FG_OK) {
        FG_ASSERT(err.text[0] != '\0');
        return;
    }
    size_t first = (size_t)((const uint8_t *)digests - bytes);
    FG_ASSERT(size_bytes >= plan->header_bytes && memcmp(bytes, right, first) == 0);
    FG_ASSERT(first + (plan->piece_count + 1) * sizeof(uint64_t) == plan->header_bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes)
{
    fg_panel_plan plan;
    FG_ASSERT(fg_panel_plan_init(&plan, sources, 3, NULL) == FG_OK);
    uint64_t *digests = calloc(plan.piece_count, sizeof *digests);
    uint8_t *right = malloc(plan.header_bytes), *changed = malloc(plan.header_bytes);
    uint8_t *copy = malloc(size_bytes + 1); /* exactly as long as it says: over-reads show */
    fg_panel_header_make(&plan, &model, digests, right);
    memcpy(changed, right, plan.header_bytes);
    memcpy(copy, bytes, size_bytes);
    check(&plan, right, copy, size_bytes);
    for (size_t i = 0; i + 3 <= size_bytes; i += 3) {
        changed[(bytes[i] | (size_t)bytes[i + 1] << 8) % plan.header_bytes] = bytes[i + 2];
    }
    check(&plan, right, changed, plan.header_bytes);
    uint64_t digest = fg_hash64(changed, plan.header_bytes - sizeof digest, 0);
    memcpy(changed + plan.header_bytes - sizeof digest, &digest, sizeof digest);
    check(&plan, right, changed, plan.header_bytes);
    free(copy);
    free(changed);
    free(right);
    free(digests);
    fg_panel_plan_deinit(&plan);
    return 0;
}
