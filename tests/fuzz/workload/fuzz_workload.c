/*
 * fuzz_workload - any bytes as a trace, a table of step times or set-ups; the first byte says which. What
 * is accepted keeps the promises of its header.
 */
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "tests/sim/fleet_setup.h"
#include "tests/sim/steptable.h"
#include "tests/sim/workload.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes);

static void read_workload(const char *text, size_t size_bytes)
{
    fg_workload w;
    fg_error err;
    if (fg_workload_parse(text, size_bytes, 1000, &w, &err) != FG_OK) {
        return;
    }
    uint64_t before = 0;
    FG_ASSERT(w.count > 0 && w.count <= 1000 && w.known_tokens <= w.prompt_tokens);
    for (uint32_t i = 0; i < w.count; i++) {
        const fg_workload_request *r = &w.requests[i];
        FG_ASSERT(r->prompt_tokens > 0 && r->output_tokens > 0 && r->arrival_ns >= before);
        FG_ASSERT((uint64_t)r->first_id + r->id_count <= w.id_count);
        before = r->arrival_ns;
    }
    fg_workload_free(&w);
}

static void read_setups(const char *text, size_t size_bytes)
{
    char word[1024];
    fg_fleet_variant variants[FG_FLEET_SETUPS_MAX];
    fg_fleet_setup base = { 0 };
    size_t count, length = size_bytes < sizeof word ? size_bytes : sizeof word - 1;
    fg_error err;
    memcpy(word, text, length);
    word[length] = '\0';
    if (fg_fleet_setup_parse(word, &base, variants, &count, &err) == FG_OK) {
        FG_ASSERT(count > 0 && count <= FG_FLEET_SETUPS_MAX);
        for (size_t i = 0; i < count; i++) {
            fg_fleet_check(&variants[i].setup, &err);
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes)
{
    if (size_bytes == 0) {
        return 0;
    }
    const char *text = (const char *)bytes + 1;
    fg_steptable table;
    fg_error err;
    switch (bytes[0] % 3) {
    case 0:
        read_workload(text, size_bytes - 1);
        break;
    case 1:
        if (fg_steptable_parse(text, size_bytes - 1, &table, &err) == FG_OK) {
            FG_ASSERT(table.prefill_token > 0 && table.decode_row > 0);
        }
        break;
    default:
        read_setups(text, size_bytes - 1);
        break;
    }
    return 0;
}
