#include "cli/batch_out.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/json.h"
#include "tests/support/test.h"

#define LINE(id) "{\"custom_id\":\"" id "\",\"method\":\"POST\",\"url\":\"/v1/x\",\"body\":{}}\n"

static char folder[] = "/tmp/forge-batch-XXXXXX";

static const char *path_of(const char *name)
{
    static char path[100];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    cr_assert_not_null(file);
    fputs(text, file);
    fclose(file);
}

static void expect_file(const char *path, const char *text)
{
    char have[4000];
    FILE *file = fopen(path, "r");
    cr_assert_not_null(file);
    have[fread(have, 1, sizeof have - 1, file)] = '\0';
    fclose(file);
    cr_assert_str_eq(have, text);
}

/* An input of three requests, and a folder for the answers. */
static int begin(fg_lines *lines)
{
    fg_error err = { 0 };
    strcpy(folder,
           "/tmp/forge-batch-XXXXXX"); /* anew: the plain runner runs all tests in one process */
    cr_assert_not_null(mkdtemp(folder));
    write_file(path_of("in"), LINE("a") LINE("b") LINE("c"));
    int in = open(path_of("in"), O_RDONLY | O_CLOEXEC);
    cr_assert_eq(fg_lines_load(lines, in, "in", &err), FG_OK, "%s", err.text);
    return in;
}

static void finish(fg_lines *lines, int in)
{
    char command[60];
    snprintf(command, sizeof command, "rm -r %s", folder);
    cr_assert_eq(system(command), 0);
    close(in);
    fg_lines_free(lines);
}

static fg_client_answer answer_with(int status, const char *body)
{
    return (fg_client_answer){
        .status = status, .body = body, .body_bytes = strlen(body), .request_id = "req \"1\""
    };
}

Test(batch_out, an_answer_is_one_line_of_json)
{
    static const struct {
        const char *name;
        int status;
        const char *body, *shown;
        uint64_t prompt, completion;
    } rows[] = {
        { "an answer", 200, "{\"x\":0.10,\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":9}}",
          "{\"x\":0.10,\"usage\":{\"prompt_tokens\":7,\"completion_tokens\":9}}", 7, 9 },
        { "an error", 400, "{\"error\":{\"message\":\"no\"}}", "{\"error\":{\"message\":\"no\"}}",
          0, 0 },
        { "over several lines", 200, "{\r\n \"x\":\n1}\n", "{ \"x\":1}", 0, 0 },
        { "no JSON", 500, "<p>\"oops\"\n</p>", "\"<p>\\\"oops\\\"\\n</p>\"", 0, 0 },
        { "empty", 204, "", "\"\"", 0, 0 },
        { "strange counts", 200, "{\"usage\":{\"prompt_tokens\":-1,\"completion_tokens\":\"x\"}}",
          "{\"usage\":{\"prompt_tokens\":-1,\"completion_tokens\":\"x\"}}", 0, 0 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fg_buf out;
        fg_buf_init(&out, 0);
        uint64_t prompt, completion;
        fg_client_answer answer = answer_with(rows[i].status, rows[i].body);
        cr_assert(fg_answers_render("id \"x\"", &answer, &prompt, &completion, &out));
        cr_assert_eq(prompt, rows[i].prompt, "%s", rows[i].name);
        cr_assert_eq(completion, rows[i].completion, "%s", rows[i].name);
        cr_assert_eq(strcspn(out.data, "\n"), out.size - 1, "one line: %s", out.data);
        char end[200];
        snprintf(end, sizeof end,
                 "\"custom_id\":\"id \\\"x\\\"\",\"response\":{\"status_code\":%d,"
                 "\"request_id\":\"req \\\"1\\\"\",\"body\":%s},\"error\":null}\n",
                 rows[i].status, rows[i].shown);
        cr_assert_not_null(strstr(out.data, end), "%s: %s", rows[i].name, out.data);
        fg_json *json = NULL;
        fg_error err = { 0 };
        cr_assert_eq(fg_json_parse(out.data, out.size, &json, &err), FG_OK, "%s", err.text);
        fg_json_destroy(json);
        fg_buf_deinit(&out);
    }
}

Test(batch_out, writes_resumes_and_counts)
{
    fg_lines lines;
    fg_answers answers;
    fg_lines_resumed resumed;
    fg_error err = { 0 };
    int in = begin(&lines);
    char out[100];
    strcpy(out, path_of("out"));
    cr_assert_eq(fg_answers_open(&answers, out, in, &lines, &resumed, &err), FG_OK, "%s", err.text);
    fg_client_answer answer =
        answer_with(200, "{\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":4}}");
    cr_assert_eq(fg_answers_write(&answers, "b", &answer, &err), FG_OK);
    cr_assert_eq(fg_answers_write(&answers, "a", &answer, &err), FG_OK);
    cr_assert_eq(fg_answers_sync(&answers, &err), FG_OK);
    cr_assert_eq(answers.prompt_tokens, 6u);
    cr_assert_eq(answers.completion_tokens, 8u);
    uint64_t size = answers.size;
    fg_answers_close(&answers);
    /* A kill in the middle of the third. */
    FILE *file = fopen(out, "a");
    fputs("{\"id\":\"batch_r", file);
    fclose(file);
    cr_assert_eq(fg_answers_open(&answers, out, in, &lines, &resumed, &err), FG_OK, "%s", err.text);
    cr_assert_eq(lines.done_count, 2u);
    cr_assert_eq(answers.size, size);
    cr_assert_eq(lseek(answers.fd, 0, SEEK_END), (off_t)size, "the torn end is off");
    lseek(answers.fd, (off_t)size, SEEK_SET);
    cr_assert_eq(fg_answers_write(&answers, "c", &answer, &err), FG_OK);
    fg_answers_close(&answers);
    cr_assert_eq(fg_answers_open(&answers, out, in, &lines, &resumed, &err), FG_OK, "%s", err.text);
    cr_assert_eq(lines.done_count, 3u);
    cr_assert_eq(resumed.torn_bytes, 0u);
    fg_answers_close(&answers);
    finish(&lines, in);
}

Test(batch_out, a_last_line_without_its_end_is_completed)
{
    fg_lines lines;
    fg_answers answers;
    fg_lines_resumed resumed;
    fg_error err = { 0 };
    int in = begin(&lines);
    char out[100];
    strcpy(out, path_of("out"));
    write_file(out, "{\"custom_id\":\"b\",\"response\":{}}");
    cr_assert_eq(fg_answers_open(&answers, out, in, &lines, &resumed, &err), FG_OK, "%s", err.text);
    fg_answers_close(&answers);
    expect_file(out, "{\"custom_id\":\"b\",\"response\":{}}\n");
    finish(&lines, in);
}

Test(batch_out, refuses_files_that_are_not_for_it)
{
    fg_lines lines;
    fg_answers answers, second;
    fg_lines_resumed resumed;
    fg_error err = { 0 };
    int in = begin(&lines);
    char out[100];

    cr_assert_eq(fg_answers_open(&answers, path_of("in"), in, &lines, &resumed, &err),
                 FG_BAD_INPUT);
    cr_assert_not_null(strstr(err.text, "the file with the requests"), "%s", err.text);
    fg_answers_close(&answers);

    cr_assert_eq(fg_answers_open(&answers, path_of("no/out"), in, &lines, &resumed, &err),
                 FG_BAD_INPUT);
    fg_answers_close(&answers);
    cr_assert_eq(fg_answers_open(&answers, folder, in, &lines, &resumed, &err), FG_BAD_INPUT);
    fg_answers_close(&answers);

    strcpy(out, path_of("notes"));
    write_file(out, "milk\neggs");
    cr_assert_eq(fg_answers_open(&answers, out, in, &lines, &resumed, &err), FG_BAD_INPUT);
    fg_answers_close(&answers);
    expect_file(out, "milk\neggs");

    strcpy(out, path_of("out"));
    cr_assert_eq(fg_answers_open(&answers, out, in, &lines, &resumed, &err), FG_OK, "%s", err.text);
    cr_assert_eq(fg_answers_open(&second, out, in, &lines, &resumed, &err), FG_BAD_INPUT);
    cr_assert_not_null(strstr(err.text, "another"), "%s", err.text);
    fg_answers_close(&second);
    fg_answers_close(&answers);
    finish(&lines, in);
}

Test(batch_out, a_full_disk_is_said)
{
    fg_lines lines;
    fg_answers answers;
    fg_lines_resumed resumed;
    fg_error err = { 0 };
    int in = begin(&lines);
    if (access("/dev/full", W_OK) == 0) {
        cr_assert_eq(fg_answers_open(&answers, "/dev/full", in, &lines, &resumed, &err), FG_OK);
        fg_client_answer answer = answer_with(200, "{}");
        cr_assert_eq(fg_answers_write(&answers, "a", &answer, &err), FG_BROKEN);
        cr_assert_not_null(strstr(err.text, "/dev/full: "), "%s", err.text);
        fg_answers_close(&answers);
    }
    finish(&lines, in);
}
