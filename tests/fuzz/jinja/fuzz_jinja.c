/*
 * Any bytes as a template: it is compiled, or refused with a reason, and run over a conversation with little memory
 * and few steps, twice: to the same pieces or the same reason.
 */
#include <stdlib.h>
#include <string.h>

#include "common/base/hash.h"
#include "common/jinja/jinja.h"

enum { BYTES_MAX = 1 << 20, STEPS_MAX = 20000 };

static const char VARIABLES[] =
    "{\"messages\":[{\"role\":\"user\",\"content\":\" Hi "
    "<b>\\n\"},{\"role\":\"assistant\",\"content\":"
    "\"<think>a</"
    "think>b\"},{\"role\":\"user\",\"content\":\"\xe2\x82\xac\"}],\"tools\":[{\"function\":{"
    "\"name\":"
    "\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\"}}}}}],"
    "\"add_generation_prompt\":true,\"bos_token\":\"<s>\",\"n\":-3,\"r\":1.5,\"nil\":null}";

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes);

/* A number that stands for the outcome. */
static uint64_t run_once(const fg_jinja *template, const fg_json *json)
{
    fg_jinja_run *run = fg_jinja_run_create(BYTES_MAX, STEPS_MAX, 0);
    const fg_jinja_piece *pieces = NULL;
    size_t count = 0;
    fg_error err = { 0 };
    FG_ASSERT(run != NULL);
    fg_status status = fg_jinja_render(template, run, fg_jinja_json(run, fg_json_root(json)),
                                       &pieces, &count, &err);
    uint64_t sum = (uint64_t)status;
    if (status != FG_OK) {
        FG_ASSERT(err.status == status && err.text[0] != '\0');
        sum = fg_hash64(err.text, strlen(err.text), sum);
    } else {
        for (size_t i = 0; i < count; i++) {
            FG_ASSERT(pieces[i].length > 0);
            sum = fg_hash64(pieces[i].text, pieces[i].length, sum + pieces[i].of_client);
        }
    }
    fg_jinja_run_destroy(run);
    return sum;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes)
{
    /* A copy of the exact size, so that a sanitizer sees every byte too far. */
    char *source = malloc(size_bytes == 0 ? 1 : size_bytes);
    fg_json *json = NULL;
    fg_jinja *template = NULL;
    fg_error err = { 0 };
    FG_ASSERT(source != NULL &&
              fg_json_parse(VARIABLES, sizeof VARIABLES - 1, &json, NULL) == FG_OK);
    memcpy(source, bytes, size_bytes);
    fg_status status = fg_jinja_compile(source, size_bytes, &template, &err);
    free(source);
    if (status == FG_OK) {
        FG_ASSERT(run_once(template, json) == run_once(template, json));
        fg_jinja_destroy(template);
    } else {
        FG_ASSERT(err.text[0] != '\0');
    }
    fg_json_destroy(json);
    return 0;
}
