/*
 * Any text as a list of processors: what is accepted reads the same when it is written out again; what
 * is refused writes nothing.
 */
#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/status.h"
#include "common/base/topology.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes)
{
    /* A copy of the exact size, so that a sanitizer sees every byte too far. */
    char *text = malloc(size_bytes + 1);
    if (text == NULL) {
        return 0;
    }
    memcpy(text, bytes, size_bytes);
    text[size_bytes] = '\0';
    cpu_set_t set, again;
    memset(&set, 0x5A, sizeof set);
    again = set;
    if (!fg_topology_parse_list(text, &set)) {
        FG_ASSERT(CPU_EQUAL(&set, &again));
        free(text);
        return 0;
    }
    fg_buf list;
    fg_buf_init(&list, 0);
    fg_buf_puts(&list, "");
    for (size_t cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        if (CPU_ISSET(cpu, &set)) {
            fg_buf_printf(&list, list.size == 0 ? "%zu" : ",%zu", cpu);
        }
    }
    FG_ASSERT(fg_topology_parse_list(list.size == 0 ? "" : list.data, &again));
    FG_ASSERT(CPU_EQUAL(&set, &again));
    fg_buf_deinit(&list);
    free(text);
    return 0;
}
