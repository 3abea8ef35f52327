/*
 * promtext - reads Prometheus' text exposition, sample by sample. Pure; keeps nothing, allocates nothing.
 *
 * Tolerant: comments, blank lines and lines that are no samples are stepped over, and the latter are
 * counted. Nothing is believed about the text: it may end anywhere and hold any bytes.
 */
#ifndef FORGE_CLI_PROMTEXT_H
#define FORGE_CLI_PROMTEXT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct fg_prom_reader {
    const char *at, *end;
    uint64_t refused; /* lines that were no samples */
} fg_prom_reader;

/* One sample; it points into the text. */
typedef struct fg_prom_sample {
    const char *name;
    size_t name_length;
    const char *labels; /* between the braces, well formed; length 0: none */
    size_t labels_length;
    double value; /* NaN and infinities are possible */
} fg_prom_sample;

fg_prom_reader fg_prom_open(const char *text, size_t length);
/* The next sample; false at the end. */
bool fg_prom_next(fg_prom_reader *reader, fg_prom_sample *sample_out);
bool fg_prom_is(const fg_prom_sample *sample, const char *name);
/* The value of a label, unescaped, cut to fit; false when there is none of this name. */
bool fg_prom_label(const fg_prom_sample *sample, const char *name, char *out, size_t capacity);

#endif
