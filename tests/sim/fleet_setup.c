#include "tests/sim/fleet_setup.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Names are those of the flags. How the dispatcher chooses will be one more row here. */
static const struct {
    const char *name;
    size_t offset;
} keys[] = {
    { "prefill", offsetof(fg_fleet_setup, workers[FG_FLEET_PREFILL]) },
    { "decode", offsetof(fg_fleet_setup, workers[FG_FLEET_DECODE]) },
    { "both", offsetof(fg_fleet_setup, workers[FG_FLEET_BOTH]) },
    { "kv-blocks", offsetof(fg_fleet_setup, kv_blocks) },
    { "block-size", offsetof(fg_fleet_setup, block_size) },
    { "max-seqs", offsetof(fg_fleet_setup, max_seqs) },
    { "prefill-chunk-size", offsetof(fg_fleet_setup, prefill_chunk_size) },
    { "max-batch-tokens", offsetof(fg_fleet_setup, max_batch_tokens) },
    { "step-ms", offsetof(fg_fleet_setup, step_ms) },
    { "local-prefill-tokens", offsetof(fg_fleet_setup, local_prefill_tokens) },
    { "queue-limit", offsetof(fg_fleet_setup, queue_limit) },
};
enum { KEYS = sizeof keys / sizeof *keys };

static fg_status read_pair(const char *pair, fg_fleet_setup *setup, fg_error *err)
{
    size_t length = strcspn(pair, "=");
    for (size_t i = 0; i < KEYS; i++) {
        if (strlen(keys[i].name) != length || memcmp(keys[i].name, pair, length) != 0) {
            continue;
        }
        const char *digits = pair + length + (pair[length] == '=');
        char *end;
        unsigned long value = strtoul(digits, &end, 10);
        if (digits[0] < '0' || digits[0] > '9' || *end != '\0' || value > UINT32_MAX) {
            return fg_fail(err, FG_BAD_INPUT, "--compare: \"%s\" wants a whole number, as in %s=4",
                           pair, keys[i].name);
        }
        uint32_t number = (uint32_t)value;
        memcpy((char *)setup + keys[i].offset, &number, sizeof number);
        return FG_OK;
    }
    char known[200] = "";
    for (size_t i = 0; i < KEYS; i++) {
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", i == 0 ? "" : ", ", keys[i].name);
    }
    return fg_fail(err, FG_BAD_INPUT, "--compare: \"%s\" is none of %s", pair, known);
}

static fg_status read_variant(char *text, fg_fleet_variant *variant, fg_error *err)
{
    fg_status status = FG_OK;
    char *rest;
    for (char *pair = strtok_r(text, ", ", &rest); status == FG_OK && pair != NULL;
         pair = strtok_r(NULL, ", ", &rest)) {
        size_t used = strlen(variant->label);
        snprintf(variant->label + used, sizeof variant->label - used, "%s%s", used == 0 ? "" : " ",
                 pair);
        status = read_pair(pair, &variant->setup, err);
    }
    if (status == FG_OK && variant->label[0] == '\0') {
        status = fg_fail(err, FG_BAD_INPUT,
                         "--compare: an empty set-up; write it as "
                         "\"prefill=8,decode=8;both=16\"");
    }
    return status;
}

fg_status fg_fleet_setup_parse(const char *text, const fg_fleet_setup *base,
                               fg_fleet_variant variants_out[FG_FLEET_SETUPS_MAX],
                               size_t *count_out, fg_error *err)
{
    fg_status status = FG_OK;
    size_t count = 0;
    while (status == FG_OK) {
        char word[512];
        size_t length = strcspn(text, ";");
        if (count == FG_FLEET_SETUPS_MAX || length >= sizeof word) {
            return fg_fail(err, FG_BAD_INPUT, "--compare: more than %d set-ups, or a very long one",
                           FG_FLEET_SETUPS_MAX);
        }
        memcpy(word, text, length);
        word[length] = '\0';
        fg_fleet_variant *variant = &variants_out[count++];
        *variant = (fg_fleet_variant){ .setup = *base };
        memset(variant->setup.workers, 0, sizeof variant->setup.workers);
        status = read_variant(word, variant, err);
        if (text[length] == '\0') {
            break;
        }
        text += length + 1;
    }
    if (status == FG_OK) {
        *count_out = count;
    }
    return status;
}

void fg_fleet_setup_label(const fg_fleet_setup *setup, char label_out[FG_FLEET_LABEL_BYTES])
{
    size_t used = 0;
    label_out[0] = '\0';
    for (int role = 0; role < FG_FLEET_ROLES; role++) {
        if (setup->workers[role] > 0) {
            used += (size_t)snprintf(label_out + used, FG_FLEET_LABEL_BYTES - used, "%s%s=%u",
                                     used == 0 ? "" : " ", keys[role].name, setup->workers[role]);
        }
    }
}
