#include "tests/sim/steptable.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/sched/cost.h"

enum { TEXT_BYTES_MAX = 1 << 16, LINE_BYTES_MAX = 256 };
#define VALUE_MAX 1e15 /* eleven days */

static const fg_steptable built_in[] = {
    {
        .name = "gpu-8b-assumed",
        .note =
            "ASSUMED, not measured: 8B weights in 16 bits on one accelerator with 400 Tflop/s and "
            "2.4 TB/s in use, hand-over at 20 GB/s",
        .prefill_base = 3.0e6,
        .prefill_token = 40000,
        .prefill_pair = 1.7,
        .decode_base = 6.7e6,
        .decode_row = 20000,
        .decode_kv = 55,
        .copy_block = 20000,
        .push_block = 2000,
        .push_token = 6554,
        .message = 50000,
        .kv_token_bytes = 131072,
    },
    {
        .name = "smollm2-135m-cpu1",
        .note = "measured by bench_steps: SmolLM2-135M Q4_1, F16 cache, one AVX2 thread of an "
                "EPYC; push by "
                "bench_link over shared memory; messages a guess",
        .prefill_base = 41.0e6,
        .prefill_token = 3057396,
        .prefill_pair = 3281.2,
        .decode_base = 13046591,
        .decode_row = 2815202,
        .decode_kv = 5990.7,
        .copy_block = 45000,
        .push_token = 2954,
        .message = 50000,
        .kv_token_bytes = 23040,
    },
};

typedef struct field {
    const char *name;
    size_t offset;
} field;

#define AT(member) offsetof(fg_steptable, member)
static const field fields[] = {
    { "prefill-base-ns", AT(prefill_base) },  { "prefill-token-ns", AT(prefill_token) },
    { "prefill-pair-ns", AT(prefill_pair) },  { "decode-base-ns", AT(decode_base) },
    { "decode-row-ns", AT(decode_row) },      { "decode-kv-ns", AT(decode_kv) },
    { "copy-block-ns", AT(copy_block) },      { "push-block-ns", AT(push_block) },
    { "push-token-ns", AT(push_token) },      { "message-ns", AT(message) },
    { "kv-token-bytes", AT(kv_token_bytes) },
};
enum { FIELDS = sizeof fields / sizeof *fields };

const fg_steptable *fg_steptable_built_in(size_t index)
{
    return index < sizeof built_in / sizeof *built_in ? &built_in[index] : NULL;
}

const fg_steptable *fg_steptable_find(const char *name)
{
    for (size_t i = 0; fg_steptable_built_in(i) != NULL; i++) {
        if (strcmp(built_in[i].name, name) == 0) {
            return &built_in[i];
        }
    }
    return NULL;
}

static fg_status read_number(const char *key, const char *value, uint32_t line, fg_steptable *table,
                             fg_error *err)
{
    size_t i = 0;
    while (i < FIELDS && strcmp(fields[i].name, key) != 0) {
        i++;
    }
    if (i == FIELDS) {
        return fg_fail(err, FG_BAD_INPUT,
                       "line %u: \"%s\" is none of name, note, {prefill,decode}-base-ns, "
                       "prefill-{token,pair}-ns, decode-{row,kv}-ns, copy-block-ns, "
                       "push-{block,token}-ns, message-ns, kv-token-bytes",
                       line, key);
    }
    char *end;
    double number = strtod(value, &end);
    if (end == value || *end != '\0' || !(number >= 0) || number > VALUE_MAX) {
        return fg_fail(err, FG_BAD_INPUT, "line %u: %s must be a number from 0, not \"%s\"", line,
                       key, value);
    }
    memcpy((char *)table + fields[i].offset, &number, sizeof number);
    return FG_OK;
}

/* `line` is NUL-terminated and the caller's to change. */
static fg_status read_line(char *line, uint32_t number, fg_steptable *table, fg_error *err)
{
    line[strcspn(line, "#\r")] = '\0';
    char *key = line + strspn(line, " \t");
    char *value = key + strcspn(key, " \t=");
    if (*key == '\0') {
        return FG_OK;
    }
    if (*value != '\0') {
        *value++ = '\0';
        value += strspn(value, " \t=");
    }
    size_t length = strlen(value);
    while (length > 0 && (value[length - 1] == ' ' || value[length - 1] == '\t')) {
        value[--length] = '\0';
    }
    if (strcmp(key, "name") == 0) {
        snprintf(table->name, sizeof table->name, "%s", value);
        return FG_OK;
    }
    if (strcmp(key, "note") == 0) {
        snprintf(table->note, sizeof table->note, "%s", value);
        return FG_OK;
    }
    return read_number(key, value, number, table, err);
}

static fg_status check(const fg_steptable *table, fg_error *err)
{
    if (table->prefill_base + table->decode_base <= 0 || table->prefill_token <= 0 ||
        table->decode_row <= 0) {
        return fg_fail(
            err, FG_BAD_INPUT,
            "a table needs a base (prefill-base-ns, decode-base-ns), prefill-token-ns and "
            "decode-row-ns above 0");
    }
    return FG_OK;
}

fg_status fg_steptable_parse(const char *text, size_t size_bytes, fg_steptable *table_out,
                             fg_error *err)
{
    fg_steptable table = { .name = "own" };
    const char *end = text + size_bytes;
    fg_status status = FG_OK;
    for (uint32_t number = 1; status == FG_OK && text < end; number++) {
        char line[LINE_BYTES_MAX];
        const char *stop = memchr(text, '\n', (size_t)(end - text));
        size_t length = (size_t)((stop == NULL ? end : stop) - text);
        if (length >= sizeof line || memchr(text, '\0', length) != NULL) {
            return fg_fail(err, FG_BAD_INPUT, "line %u is too long or no text", number);
        }
        memcpy(line, text, length);
        line[length] = '\0';
        status = read_line(line, number, &table, err);
        text += length + (stop != NULL);
    }
    status = status != FG_OK ? status : check(&table, err);
    if (status == FG_OK) {
        *table_out = table;
    }
    return status;
}

fg_status fg_steptable_open(const char *name, fg_steptable *table_out, fg_error *err)
{
    static char text[TEXT_BYTES_MAX]; /* start of the process, one thread */
    const fg_steptable *known = fg_steptable_find(name);
    if (known != NULL) {
        *table_out = *known;
        return FG_OK;
    }
    FILE *file = fopen(name, "rb");
    if (file == NULL) {
        char names[sizeof built_in / sizeof *built_in * (FG_STEPTABLE_NAME_BYTES + 2)] = "";
        for (size_t i = 0; fg_steptable_built_in(i) != NULL; i++) {
            size_t used = strlen(names);
            snprintf(names + used, sizeof names - used, "%s%.*s", i == 0 ? "" : ", ",
                     FG_STEPTABLE_NAME_BYTES - 1, built_in[i].name);
        }
        return fg_fail(err, FG_BAD_INPUT, "%s: %s; it is neither a file nor one of %s", name,
                       strerror(errno), names);
    }
    size_t size = fread(text, 1, sizeof text, file);
    bool whole = feof(file) != 0 && !ferror(file);
    fclose(file);
    fg_error why;
    fg_status status = whole ? fg_steptable_parse(text, size, table_out, &why)
                             : fg_fail(&why, FG_BAD_INPUT, "cannot be read, or is too long");
    return status == FG_OK ? FG_OK : fg_fail(err, status, "%s: %s", name, why.text);
}

uint64_t fg_steptable_step_ns(const fg_steptable *table, const fg_step *step)
{
    uint64_t tokens = 0, pairs = 0, rows = 0, slots = 0;
    for (uint32_t i = 0; i < step->seq_count; i++) {
        const fg_step_seq *seq = &step->seqs[i];
        if (seq->token_count == 1) {
            rows++;
            slots += (uint64_t)seq->first_position + 1;
        } else {
            tokens += seq->token_count;
            pairs += fg_cost_chunk_kv(seq->first_position, seq->token_count);
        }
    }
    double base = tokens > 0 ? table->prefill_base : 0;
    base = rows > 0 && table->decode_base > base ? table->decode_base : base;
    double ns = base + (double)tokens * table->prefill_token + (double)pairs * table->prefill_pair +
                (double)rows * table->decode_row + (double)slots * table->decode_kv +
                (double)step->copy_count * table->copy_block;
    return (uint64_t)llround(ns);
}

uint64_t fg_steptable_push_ns(const fg_steptable *table, uint32_t block_size)
{
    return (uint64_t)llround(table->push_block + table->push_token * block_size);
}
