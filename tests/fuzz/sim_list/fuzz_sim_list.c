/*
 * Any text as one of the lists of `forge sim`; the first byte says which. What is accepted is some of what
 * there is, and the same when it is written out again; what is refused is explained and writes nothing.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/sim_list.h"
#include "common/base/buf.h"
#include "tests/sim/world.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes);

static void read_requests(const char *text)
{
    uint64_t bits = 1ull << 63, again = 0;
    fg_error err = { 0 };
    fg_status status = fg_sim_list_requests(text, &bits, &err);
    if (status != FG_OK) {
        FG_ASSERT(status == FG_BAD_INPUT && bits == 1ull << 63 && err.text[0] != '\0');
        return;
    }
    FG_ASSERT(bits != 0 && bits >> FG_SIM_REQUESTS_MAX == 0);
    fg_buf list;
    fg_buf_init(&list, 0);
    for (uint32_t i = 0; i < FG_SIM_REQUESTS_MAX; i++) {
        if (bits >> i & 1) {
            fg_buf_printf(&list, list.size == 0 ? "%u" : ",%u", i);
        }
    }
    FG_ASSERT(fg_sim_list_requests(list.data, &again, &err) == FG_OK && again == bits);
    fg_buf_deinit(&list);
}

static void read_faults(const char *text)
{
    uint32_t bits = 1u << 31, again = 0;
    fg_error err = { 0 };
    fg_status status = fg_sim_list_faults("--fault", text, &bits, &err);
    if (status != FG_OK) {
        FG_ASSERT(status == FG_BAD_INPUT && bits == 1u << 31);
        FG_ASSERT(strncmp(err.text, "--fault:", 8) == 0);
        return;
    }
    FG_ASSERT(bits != 0 && (bits & ~FG_SIM_FAULTS_ALL) == 0);
    fg_buf list;
    fg_buf_init(&list, 0);
    for (uint32_t kind = 0; kind < FG_SIM_FAULT_COUNT; kind++) {
        if (bits >> kind & 1) {
            fg_buf_printf(&list, list.size == 0 ? "%s" : ",%s",
                          fg_sim_fault_name((fg_sim_fault)kind));
        }
    }
    FG_ASSERT(fg_sim_list_faults("--fault", list.data, &again, &err) == FG_OK && again == bits);
    fg_buf_deinit(&list);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes)
{
    if (size_bytes == 0) {
        return 0;
    }
    /* A copy of exactly this size, so that reading past its end is seen. */
    char *text = strndup((const char *)bytes + 1, size_bytes - 1);
    if (text == NULL) {
        return 0;
    }
    if (bytes[0] & 1) {
        read_requests(text);
    } else {
        read_faults(text);
    }
    free(text);
    return 0;
}
