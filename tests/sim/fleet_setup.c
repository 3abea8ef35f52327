#include "tests/sim/fleet_setup.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const fg_conf_choice fg_fleet_routings[] = { { "cost", FG_PLACE_COST },
                                             { "cache", FG_PLACE_CACHE_ONLY },
                                             { "least-loaded", FG_PLACE_LEAST_LOADED },
                                             { "round-robin", FG_PLACE_ROUND_ROBIN },
                                             { "two-choices", FG_PLACE_TWO_CHOICES },
                                             { NULL, 0 } };
const fg_conf_choice fg_fleet_splits[] = { { "auto", FG_PLACE_AUTO },
                                           { "always", FG_PLACE_ALWAYS },
                                           { "never", FG_PLACE_UNSPLIT },
                                           { NULL, 0 } };

/* Names are those of the flags. */
static const struct {
    const char *name;
    size_t offset;
    const fg_conf_choice *words; /* NULL: it is a number */
} keys[] = {
    { "prefill", offsetof(fg_fleet_setup, workers[FG_FLEET_PREFILL]), NULL },
    { "decode", offsetof(fg_fleet_setup, workers[FG_FLEET_DECODE]), NULL },
    { "both", offsetof(fg_fleet_setup, workers[FG_FLEET_BOTH]), NULL },
    { "kv-blocks", offsetof(fg_fleet_setup, kv_blocks), NULL },
    { "block-size", offsetof(fg_fleet_setup, block_size), NULL },
    { "max-seqs", offsetof(fg_fleet_setup, max_seqs), NULL },
    { "prefill-chunk-size", offsetof(fg_fleet_setup, prefill_chunk_size), NULL },
    { "max-batch-tokens", offsetof(fg_fleet_setup, max_batch_tokens), NULL },
    { "step-ms", offsetof(fg_fleet_setup, step_ms), NULL },
    { "local-prefill-tokens", offsetof(fg_fleet_setup, local_prefill_tokens), NULL },
    { "queue-limit", offsetof(fg_fleet_setup, queue_limit), NULL },
    { "queue-ahead", offsetof(fg_fleet_setup, queue_ahead), NULL },
    { "residency-mb", offsetof(fg_fleet_setup, residency_mb), NULL },
    { "slow", offsetof(fg_fleet_setup, slow), NULL },
    { "slow-percent", offsetof(fg_fleet_setup, slow_percent), NULL },
    { "routing", offsetof(fg_fleet_setup, routing), fg_fleet_routings },
    { "split", offsetof(fg_fleet_setup, split), fg_fleet_splits },
};
enum { KEYS = sizeof keys / sizeof *keys };

static fg_status read_word(const char *pair, const char *text, const fg_conf_choice *words,
                           uint32_t *value_out, fg_error *err)
{
    char known[120] = "";
    for (size_t i = 0; words[i].word != NULL; i++) {
        if (strcmp(words[i].word, text) == 0) {
            *value_out = (uint32_t)words[i].value;
            return FG_OK;
        }
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", i == 0 ? "" : ", ", words[i].word);
    }
    return fg_fail(err, FG_BAD_INPUT, "--compare: \"%s\" wants one of %s", pair, known);
}

static fg_status read_pair(const char *pair, fg_fleet_setup *setup, fg_error *err)
{
    size_t length = strcspn(pair, "=");
    for (size_t i = 0; i < KEYS; i++) {
        if (strlen(keys[i].name) != length || memcmp(keys[i].name, pair, length) != 0) {
            continue;
        }
        const char *digits = pair + length + (pair[length] == '=');
        uint32_t number = 0;
        if (keys[i].words != NULL) {
            fg_status status = read_word(pair, digits, keys[i].words, &number, err);
            memcpy((char *)setup + keys[i].offset, &number, status == FG_OK ? sizeof number : 0);
            return status;
        }
        char *end;
        unsigned long value = strtoul(digits, &end, 10);
        if (digits[0] < '0' || digits[0] > '9' || *end != '\0' || value > UINT32_MAX) {
            return fg_fail(err, FG_BAD_INPUT, "--compare: \"%s\" wants a whole number, as in %s=4",
                           pair, keys[i].name);
        }
        number = (uint32_t)value;
        memcpy((char *)setup + keys[i].offset, &number, sizeof number);
        return FG_OK;
    }
    char known[320] = "";
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
