#include "tests/sim/workload.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/fault.h"
#include "tests/support/test.h"

static fg_status parse(const char *text, fg_workload *workload, fg_error *err)
{
    return fg_workload_parse(text, strlen(text), 100, workload, err);
}

Test(workload, accepts_both_forms)
{
    static const struct {
        const char *name, *text;
        uint32_t count, prompt, output;
        uint64_t arrival_ns; /* of the last one */
    } cases[] = {
        { "json", "{\"timestamp\":5,\"input_length\":3,\"output_length\":4,\"hash_ids\":[9]}\n", 1,
          3, 4, 0 },
        { "json without ids and without a last line's end",
          "{\"timestamp\":5,\"input_length\":3,\"output_length\":4}\n\n"
          "{\"timestamp\":7.5,\"input_length\":600,\"output_length\":1,\"hash_ids\":[1,-2]}",
          2, 600, 1, 2500000 },
        { "csv of a cloud",
          "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
          "2023-11-16 18:59:59.9799600,10,11\r\n2023-11-16 19:00:00.0799600,12,13\r\n",
          2, 12, 13, 100000000 },
        { "over the end of a leap year's february",
          "2024-02-28 23:59:59,1,1\n2024-03-01 00:00:00,2,2\n", 2, 2, 2, 86401ull * 1000000000 },
        { "seconds", "0.5,10,11\n2,12,13\n", 2, 12, 13, 1500000000 },
        { "sorted by arrival", "3,1,1\n1,2,2\n3,5,6\n", 3, 5, 6, 2000000000 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fg_workload w;
        fg_error err = { 0 };
        cr_assert_eq(parse(cases[i].text, &w, &err), FG_OK, "%s: %s", cases[i].name, err.text);
        const fg_workload_request *last = &w.requests[w.count - 1];
        cr_assert_eq(w.count, cases[i].count, "%s: %u", cases[i].name, w.count);
        cr_assert_eq(w.requests[0].arrival_ns, 0, "%s", cases[i].name);
        cr_assert(last->prompt_tokens == cases[i].prompt && last->output_tokens == cases[i].output,
                  "%s: %u, %u", cases[i].name, last->prompt_tokens, last->output_tokens);
        cr_assert_eq(last->arrival_ns, cases[i].arrival_ns, "%s: %llu", cases[i].name,
                     (unsigned long long)last->arrival_ns);
        fg_workload_free(&w);
    }
}

Test(workload, refuses_and_names_the_line)
{
    static const struct {
        const char *name, *text, *want;
    } cases[] = {
        { "nothing", "", "no requests" },
        { "a heading alone", "a,b,c\n", "no requests" },
        { "broken json", "{\"timestamp\":0,\n", "line 1: " },
        { "no length", "{\"timestamp\":0,\"output_length\":4}\n", "line 1: \"input_length\"" },
        { "an empty answer", "{\"timestamp\":0,\"input_length\":3,\"output_length\":0}\n",
          "\"output_length\" must be a whole number of 1" },
        { "a length without end",
          "{\"timestamp\":0,\"input_length\":99999999,\"output_length\":1}\n", "\"input_length\"" },
        { "a time before the beginning",
          "{\"timestamp\":-1,\"input_length\":3,\"output_length\":4}\n", "\"timestamp\"" },
        { "too few ids",
          "{\"timestamp\":0,\"input_length\":513,\"output_length\":4,\"hash_ids\":[1]}\n",
          "a list of 2 numbers" },
        { "ids that are words",
          "{\"timestamp\":0,\"input_length\":5,\"output_length\":4,\"hash_ids\":[\"a\"]}\n",
          "\"hash_ids\" holds" },
        { "json, then csv", "{\"timestamp\":0,\"input_length\":3,\"output_length\":4}\n1,2,3\n",
          "line 2: " },
        { "two columns", "1,2\n", "line 1: three columns" },
        { "four columns", "1,2,3,4\n", "line 1: token counts" },
        { "no prompt", "h\n1,0,3\n", "line 2: token counts" },
        { "half a token", "1,1.5,3\n", "line 1: token counts" },
        { "a month too many", "2023-13-01 00:00:00,1,1\n", "line 1: the arrival" },
        { "seconds that are none", "2023-12-01 00:00:xx,1,1\n", "line 1: the arrival" },
        { "a negative arrival", "h\n-5,1,1\n", "line 2: the arrival" },
        { "infinity", "h\ninf,1,1\n", "line 2: the arrival" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fg_workload w;
        fg_error err = { 0 };
        cr_assert_eq(parse(cases[i].text, &w, &err), FG_BAD_INPUT, "%s", cases[i].name);
        cr_assert(strstr(err.text, cases[i].want) != NULL, "%s: %s", cases[i].name, err.text);
    }
}

Test(workload, takes_no_more_than_asked)
{
    fg_workload w;
    fg_error err;
    cr_assert_eq(fg_workload_parse("1,1,1\n2,2,2\nnonsense\n", 23, 2, &w, &err), FG_OK);
    cr_assert_eq(w.count, 2);
    fg_workload_free(&w);
}

Test(workload, equal_ids_are_equal_tokens)
{
    static const char text[] =
        "{\"timestamp\":0,\"input_length\":1100,\"output_length\":1,\"hash_ids\":[1,2,3]}\n"
        "{\"timestamp\":0,\"input_length\":1200,\"output_length\":1,\"hash_ids\":[1,2,4]}\n"
        "{\"timestamp\":0,\"input_length\":1200,\"output_length\":1}\n"
        "{\"timestamp\":0,\"input_length\":1200,\"output_length\":1}\n";
    static uint32_t a[1200], b[1200];
    fg_workload w;
    fg_error err;
    cr_assert_eq(parse(text, &w, &err), FG_OK);
    cr_assert_eq(w.known_tokens, 1024);
    fg_workload_tokens(&w, 0, 7, 500, a);
    fg_workload_tokens(&w, 1, 7, 500, b);
    cr_assert(memcmp(a, b, 1024 * sizeof *a) == 0);
    cr_assert(memcmp(a + 1024, b + 1024, 76 * sizeof *a) != 0);
    fg_workload_tokens(&w, 2, 7, 500, a);
    fg_workload_tokens(&w, 3, 7, 500, b);
    cr_assert(memcmp(a, b, 64 * sizeof *a) != 0);
    for (int i = 0; i < 1200; i++) {
        cr_assert(b[i] < 500);
    }
    fg_workload_free(&w);
}

static bool parse_once(void *ctx)
{
    fg_workload w;
    fg_error err;
    bool fine = parse(ctx, &w, &err) == FG_OK;
    if (fine) {
        fg_workload_free(&w);
    }
    return fine;
}

Test(workload, survives_every_failed_allocation)
{
    static char json[] =
        "{\"timestamp\":9,\"input_length\":600,\"output_length\":4,\"hash_ids\":[9,7]}\n";
    static char csv[] = "9,2,3\n1,2,3\n";
    cr_assert(fg_fault_each(parse_once, json) >= 3);
    cr_assert(fg_fault_each(parse_once, csv) >= 2);
}

Test(workload, reads_files)
{
    fg_workload w;
    fg_error err = { 0 };
    cr_assert_eq(fg_workload_read(SIM_DATA "/tiny.jsonl", 100, &w, &err), FG_OK, "%s", err.text);
    cr_assert_eq(w.count, 8);
    fg_workload_free(&w);
    cr_assert_eq(fg_workload_read(SIM_DATA "/nowhere", 100, &w, &err), FG_BAD_INPUT);
    cr_assert(strstr(err.text, "nowhere: ") != NULL, "%s", err.text);
}

Test(workload, reads_the_corpus)
{
    const char *corpus = getenv("FORGE_CORPUS");
    if (corpus == NULL) {
        cr_skip("FORGE_CORPUS is not set");
    }
    static const struct {
        const char *file;
        uint32_t count, known_per_thousand;
    } cases[] = {
        { "conversation_trace.jsonl.xz", 12031, 373 },
        { "AzureLLMInferenceTrace_code.csv.xz", 8819, 0 },
        { "AzureLLMInferenceTrace_conv.csv.xz", 19366, 0 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char path[512];
        fg_workload w;
        fg_error err = { 0 };
        snprintf(path, sizeof path, "%s/traces/%s", corpus, cases[i].file);
        cr_assert_eq(fg_workload_read(path, FG_WORKLOAD_REQUESTS_MAX, &w, &err), FG_OK, "%s",
                     err.text);
        cr_assert_eq(w.count, cases[i].count, "%s: %u", path, w.count);
        cr_assert_eq(w.known_tokens * 1000 / w.prompt_tokens, cases[i].known_per_thousand, "%llu",
                     (unsigned long long)(w.known_tokens * 1000 / w.prompt_tokens));
        fg_workload_free(&w);
    }
}

Test(workload, draws_what_was_asked_for)
{
    fg_workload w, again;
    fg_error err = { 0 };
    const char *text = "requests=1000,rate=50,prefixes=4,prefix-tokens=1024,hot=60,tail-tokens=100,"
                       "answer-tokens=10,spread=0,long=10,long-tokens=3000,long-answer=2";
    cr_assert_eq(fg_workload_draw(text, 7, &w, &err), FG_OK, "%s", err.text);
    cr_assert_eq(fg_workload_draw(text, 7, &again, &err), FG_OK);
    cr_assert(w.count == 1000 && again.count == 1000);
    cr_assert(memcmp(w.requests, again.requests, w.count * sizeof *w.requests) == 0);
    cr_assert(memcmp(w.ids, again.ids, w.id_count * sizeof *w.ids) == 0);
    uint32_t longs = 0, hot = 0;
    uint64_t prompts = 0;
    for (uint32_t i = 0; i < w.count; i++) {
        const fg_workload_request *r = &w.requests[i];
        bool is_long = r->prompt_tokens == 3000;
        cr_assert(is_long || r->prompt_tokens == 1124);
        cr_assert_eq(r->output_tokens, is_long ? 2 : 10);
        cr_assert_eq(r->id_count, (r->prompt_tokens + 511) / 512);
        cr_assert(i == 0 || r->arrival_ns >= r[-1].arrival_ns);
        longs += is_long;
        hot += !is_long && w.ids[r->first_id] == 0;
        prompts += r->prompt_tokens;
    }
    cr_assert(longs > 60 && longs < 150, "%u", longs);
    cr_assert(hot > 550 && hot < 800, "%u: 60 %% and what else falls on the first", hot);
    cr_assert(w.prompt_tokens == prompts && w.known_tokens == (1000 - longs - 4) * 1024ull);
    cr_assert(w.requests[999].arrival_ns > 15e9 && w.requests[999].arrival_ns < 25e9);
    fg_workload_free(&w);
    fg_workload_free(&again);
}

Test(workload, refuses_what_cannot_be_drawn)
{
    static const struct {
        const char *text, *want;
    } cases[] = {
        { "reqests=3", "none of its keys" },
        { "requests", "requests must be a number" },
        { "requests=0", "requests must be a number" },
        { "rate=-1", "rate must be a number" },
        { "rate=1x", "rate must be a number" },
        { "hot=101", "hot must be a number of 0 to 100" },
        { "rate=nan", "rate must be a number" },
        { "tail-tokens=1000000,prefix-tokens=2000000", "more tokens than fit" },
        { "answer-tokens=10000000000000000000000000000000000000000000000000000000000000000000000",
          "none of its keys" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fg_workload w;
        fg_error err = { 0 };
        cr_assert_eq(fg_workload_draw(cases[i].text, 1, &w, &err), FG_BAD_INPUT, "%s",
                     cases[i].text);
        cr_assert(strstr(err.text, cases[i].want) != NULL, "%s: %s", cases[i].text, err.text);
    }
}
