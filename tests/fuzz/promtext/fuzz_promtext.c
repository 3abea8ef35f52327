/*
 * Any bytes as a page of metrics: no crash, nothing read outside, no more samples than lines, and a sample
 * that was taken is taken again from its own line.
 */
#include <stdlib.h>
#include <string.h>

#include "cli/promtext.h"
#include "common/base/status.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes)
{
    /* A copy of the exact size, so that a sanitizer sees every byte too far. */
    char *text = malloc(size_bytes + 1);
    if (text == NULL) {
        return 0;
    }
    memcpy(text, bytes, size_bytes);
    text = realloc(text, size_bytes == 0 ? 1 : size_bytes);
    size_t lines = 1, samples = 0;
    for (size_t i = 0; i < size_bytes; i++) {
        lines += text[i] == '\n';
    }
    fg_prom_reader reader = fg_prom_open(text, size_bytes);
    fg_prom_sample sample, again;
    while (fg_prom_next(&reader, &sample)) {
        char value[8];
        samples++;
        FG_ASSERT(sample.name_length > 0 && sample.name >= text && reader.at <= text + size_bytes);
        if (fg_prom_label(&sample, "le", value, sizeof value)) {
            FG_ASSERT(strlen(value) < sizeof value);
        }
        fg_prom_label(&sample, "absent", value, sizeof value);
        fg_prom_reader one = fg_prom_open(sample.name, (size_t)(reader.at - sample.name));
        FG_ASSERT(fg_prom_next(&one, &again) && again.name_length == sample.name_length &&
                  again.labels_length == sample.labels_length);
    }
    FG_ASSERT(samples + reader.refused <= lines);
    free(text);
    return 0;
}
