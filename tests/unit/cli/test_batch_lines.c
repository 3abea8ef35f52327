#include "cli/batch_lines.h"

#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/fault.h"
#include "tests/support/test.h"

#define REST "\"method\":\"POST\",\"url\":\"/v1/x\",\"body\":{}}"

/* A file in memory with this content, read from its beginning. */
static int file_with(const void *text, size_t size)
{
    int fd = memfd_create("lines", MFD_CLOEXEC);
    cr_assert(fd >= 0);
    cr_assert_eq(write(fd, text, size), (ssize_t)size);
    cr_assert_eq(lseek(fd, 0, SEEK_SET), 0);
    return fd;
}

static fg_status load(fg_lines *lines, const char *text, fg_error *err)
{
    int fd = file_with(text, strlen(text));
    fg_status status = fg_lines_load(lines, fd, "in", err);
    close(fd);
    return status;
}

Test(batch_lines, reads_lines_and_arrays)
{
    static const struct {
        const char *name, *text;
    } rows[] = {
        { "lines", "{\"custom_id\":\"a\"," REST "\n{\"custom_id\":\"b\"," REST "\n" },
        { "no newline at the end", "{\"custom_id\":\"a\"," REST "\n{\"custom_id\":\"b\"," REST },
        { "empty lines",
          "\n  \n{\"custom_id\":\"a\"," REST "\n\n\n{\"custom_id\":\"b\"," REST "\n \t\n" },
        { "lines of another system",
          "{\"custom_id\":\"a\"," REST "\r\n{\"custom_id\":\"b\"," REST "\r\n" },
        { "a byte order mark",
          "\xEF\xBB\xBF{\"custom_id\":\"a\"," REST "\n{\"custom_id\":\"b\"," REST "\n" },
        { "array", "[{\"custom_id\":\"a\"," REST ",{\"custom_id\":\"b\"," REST "]" },
        { "array over lines",
          "\n [ {\"custom_id\":\"a\"," REST ",\n\n{\"custom_id\":\"b\",\n" REST "\n]\n" },
        { "array behind a mark",
          "\xEF\xBB\xBF[{\"custom_id\":\"a\"," REST ",{\"custom_id\":\"b\"," REST "]" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fg_lines lines;
        fg_error err = { 0 };
        cr_assert_eq(load(&lines, rows[i].text, &err), FG_OK, "%s: %s", rows[i].name, err.text);
        cr_assert_eq(lines.count, 2u, "%s", rows[i].name);
        cr_assert_str_eq(fg_lines_id(&lines, 0), "a");
        cr_assert_str_eq(fg_lines_id(&lines, 1), "b");
        fg_lines_free(&lines);
    }
}

Test(batch_lines, gives_path_and_body_on_one_line)
{
    static const char *const texts[] = {
        "{\"body\": {\"b\": [1, 2.5, \"x\\ny\"],\"a\":null}, \"url\": \"/v1/y?z=1\","
        "\"custom_id\":\"a\",\"method\":\"POST\",\"more\":1}",
        "[{\"body\": {\"b\": [1, 2.5,\n\"x\\ny\"],\n\"a\":null}, \"url\": \"/v1/y?z=1\","
        "\"custom_id\":\"a\",\"method\":\"POST\",\"more\":1}]",
    };
    for (size_t i = 0; i < 2; i++) {
        fg_lines lines;
        fg_error err = { 0 };
        fg_buf path, body;
        fg_buf_init(&path, 0);
        fg_buf_init(&body, 0);
        cr_assert_eq(load(&lines, texts[i], &err), FG_OK, "%s", err.text);
        cr_assert_eq(fg_lines_request(&lines, 0, &path, &body, &err), FG_OK);
        cr_assert_str_eq(path.data, "/v1/y?z=1");
        cr_assert_str_eq(body.data, "{\"b\":[1,2.5,\"x\\ny\"],\"a\":null}");
        fg_buf_deinit(&path);
        fg_buf_deinit(&body);
        fg_lines_free(&lines);
    }
}

Test(batch_lines, refuses_what_is_no_batch)
{
    static const struct {
        const char *text, *words; /* words: what the message must contain */
    } rows[] = {
        { "", "in: there is no request" },
        { " \n\n", "in: there is no request" },
        { "[]", "in: there is no request" },
        { "{", "in:1: " },
        { "hello", "in:1: " },
        { "{\"custom_id\":\"a\"," REST "\n{\"custom_id\":\"b\"" REST "\n", "in:2: " },
        { "\n\n{\"custom_id\":1," REST, "in:3: \"custom_id\"" },
        { "{" REST, "in:1: \"custom_id\"" },
        { "{\"custom_id\":\"\"," REST, "in:1: \"custom_id\"" },
        { "{\"custom_id\":null," REST, "in:1: \"custom_id\"" },
        { "{\"custom_id\":\"a\",\"url\":\"/v1/x\",\"body\":{}}", "in:1: \"method\"" },
        { "{\"custom_id\":\"a\",\"method\":\"GET\",\"url\":\"/v1/x\",\"body\":{}}", "\"method\"" },
        { "{\"custom_id\":\"a\",\"method\":\"POST\",\"body\":{}}", "in:1: \"url\"" },
        { "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"\",\"body\":{}}", "\"url\"" },
        { "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"http://x/\",\"body\":{}}",
          "\"url\"" },
        { "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/a b\",\"body\":{}}", "\"url\"" },
        { "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/a\\r\\nX: y\",\"body\":{}}",
          "\"url\"" },
        { "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/x\"}", "in:1: \"body\"" },
        { "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/x\",\"body\":[]}", "\"body\"" },
        { "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/x\",\"body\":"
          "{\"stream\":true}}",
          "\"stream\"" },
        { "1\n", "in:1: a request is a JSON object" },
        { "\"x\"\n", "in:1: a request is a JSON object" },
        { "{\"custom_id\":\"a\"," REST "{\"custom_id\":\"b\"," REST, "in:1: " },
        { "{\"custom_id\":\"a\"," REST "\n{\"custom_id\":\"b\"," REST
          "\n{\"custom_id\":\"a\"," REST,
          "in:3: custom_id \"a\" is that of line 1" },
        { "[{\"custom_id\":\"a\"," REST ",{\"custom_id\":\"a\"," REST "]",
          "in: request 2: custom_id \"a\" is that of request 1" },
        { "[{\"custom_id\":\"a\"," REST ",3]", "in: request 2: a request is a JSON object" },
        { "[{\"custom_id\":\"a\"," REST ",", "in: " },
        { "[{\"custom_id\":\"a\"," REST "]\n{}", "in: " },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fg_lines lines;
        fg_error err = { 0 };
        cr_assert_eq(load(&lines, rows[i].text, &err), FG_BAD_INPUT, "row %zu", i);
        cr_assert_not_null(strstr(err.text, rows[i].words), "row %zu: %s", i, err.text);
        fg_lines_free(&lines);
    }
}

Test(batch_lines, an_id_has_a_bound)
{
    for (size_t length = 511; length <= 513; length++) {
        char text[800];
        snprintf(text, sizeof text, "{\"custom_id\":\"%0*d\"," REST, (int)length, 0);
        fg_lines lines;
        fg_error err = { 0 };
        cr_assert_eq(load(&lines, text, &err), length <= 512 ? FG_OK : FG_BAD_INPUT, "%zu", length);
        fg_lines_free(&lines);
    }
}

Test(batch_lines, holds_many)
{
    enum { MANY = 5000 };
    int fd = memfd_create("many", MFD_CLOEXEC);
    FILE *file = fdopen(fd, "w+");
    for (int i = 0; i < MANY; i++) {
        fprintf(file, "{\"custom_id\":\"id-%d\"," REST "\n", i);
    }
    rewind(file);
    fg_lines lines;
    fg_error err = { 0 };
    cr_assert_eq(fg_lines_load(&lines, fd, "in", &err), FG_OK, "%s", err.text);
    cr_assert_eq(lines.count, (size_t)MANY);
    cr_assert_str_eq(fg_lines_id(&lines, MANY - 1), "id-4999");
    fclose(file);
    fg_lines_free(&lines);
}

/* ---- what is done already ---- */

#define THREE                                                                                      \
    "{\"custom_id\":\"a\"," REST "\n{\"custom_id\":\"b\"," REST "\n{\"custom_id\":\"c\"," REST "\n"
#define ANSWER(id) FG_LINES_ANSWER_BEGIN "1\",\"custom_id\":\"" id "\",\"response\":{}}"
#define SIZE       (sizeof ANSWER("a")) /* of one with its newline */

Test(batch_lines, resumes_behind_whole_answers)
{
    static const struct {
        const char *name, *text;
        size_t size; /* 0: by strlen */
        const char *done;
        uint64_t keep, torn, foreign;
        bool needs_newline;
    } rows[] = {
        { "nothing", "", 0, "", 0, 0, 0, false },
        { "one", ANSWER("b") "\n", 0, "b", SIZE, 0, 0, false },
        { "two, torn", ANSWER("b") "\n" FG_LINES_ANSWER_BEGIN "2\"", 0, "b", SIZE, 19, 0, false },
        { "torn at its first byte", ANSWER("b") "\n{", 0, "b", SIZE, 1, 0, false },
        { "only a torn one", "{\"id\":\"", 0, "", 0, 7, 0, false },
        { "whole without its newline", ANSWER("a") "\n" ANSWER("c"), 0, "ac", 2 * SIZE - 1, 0, 0,
          true },
        { "twice the same", ANSWER("a") "\n" ANSWER("a") "\n", 0, "a", 2 * SIZE, 0, 0, false },
        { "an answer to somebody else", ANSWER("z") "\n" ANSWER("a") "\n", 0, "a", 2 * SIZE, 0, 1,
          false },
        { "empty lines", "\n" ANSWER("a") "\n\n", 0, "a", SIZE + 2, 0, 0, false },
        { "zeros after a crash of the machine", ANSWER("a") "\n\0\0\0\0", SIZE + 4, "a", SIZE, 4, 0,
          false },
        { "all", ANSWER("c") "\n" ANSWER("a") "\n" ANSWER("b") "\n", 0, "abc", 3 * SIZE, 0, 0,
          false },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fg_lines lines;
        fg_error err = { 0 };
        fg_lines_resumed resumed;
        cr_assert_eq(load(&lines, THREE, &err), FG_OK, "%s", err.text);
        int fd = file_with(rows[i].text, rows[i].size != 0 ? rows[i].size : strlen(rows[i].text));
        cr_assert_eq(fg_lines_resume(&lines, fd, "out", &resumed, &err), FG_OK, "%s: %s",
                     rows[i].name, err.text);
        close(fd);
        cr_assert_eq(resumed.keep_bytes, rows[i].keep, "%s: %zu", rows[i].name,
                     (size_t)resumed.keep_bytes);
        cr_assert_eq(resumed.torn_bytes, rows[i].torn, "%s", rows[i].name);
        cr_assert_eq(resumed.foreign, rows[i].foreign, "%s", rows[i].name);
        cr_assert_eq(resumed.needs_newline, rows[i].needs_newline, "%s", rows[i].name);
        cr_assert_eq(lines.done_count, strlen(rows[i].done), "%s", rows[i].name);
        for (size_t k = 0; k < lines.count; k++) {
            cr_assert_eq(lines.items[k].done,
                         strchr(rows[i].done, fg_lines_id(&lines, k)[0]) != NULL, "%s",
                         rows[i].name);
        }
        fg_lines_free(&lines);
    }
}

Test(batch_lines, nobody_elses_file_is_continued)
{
    static const struct {
        const char *text, *words;
    } rows[] = {
        { "hello\n", "out:1: " },
        { "hello", "out:1: " },
        { "[]\n", "out:1: " },
        { "{\"a\":1}", "out:1: " },
        { "{\"id\":1}", "out:1: " },
        { "{\"cust", "out:1: " },
        { "{\"id\":\"batch_x", "out:1: " },
        { "{}\n", "out:1: " },
        { "{\"custom_id\":\"a\"}\n", "out:1: " }, /* the input, perhaps */
        { THREE, "out:1: " },
        { ANSWER("a") "\n{\"custom_id\":\"b\",\"resp\n" ANSWER("c") "\n", "out:2: " },
        { ANSWER("a") "\n\n\nnotes", "out:4: " },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        fg_lines lines;
        fg_error err = { 0 };
        fg_lines_resumed resumed;
        cr_assert_eq(load(&lines, THREE, &err), FG_OK);
        int fd = file_with(rows[i].text, strlen(rows[i].text));
        cr_assert_eq(fg_lines_resume(&lines, fd, "out", &resumed, &err), FG_BAD_INPUT, "row %zu",
                     i);
        cr_assert_not_null(strstr(err.text, rows[i].words), "row %zu: %s", i, err.text);
        close(fd);
        fg_lines_free(&lines);
    }
}

/* Every cut of an answer file leaves a file that can be continued, and no answer counts by half. */
Test(batch_lines, any_cut_of_the_answers_resumes)
{
    static const char text[] = ANSWER("a") "\n" ANSWER("c") "\n" ANSWER("b") "\n";
    for (size_t cut = 0; cut < sizeof text; cut++) {
        fg_lines lines;
        fg_error err = { 0 };
        fg_lines_resumed resumed;
        cr_assert_eq(load(&lines, THREE, &err), FG_OK);
        int fd = file_with(text, cut);
        cr_assert_eq(fg_lines_resume(&lines, fd, "out", &resumed, &err), FG_OK, "%zu: %s", cut,
                     err.text);
        cr_assert_eq(lines.done_count, (cut + 1) / SIZE, "cut at %zu", cut);
        cr_assert_eq(resumed.keep_bytes + resumed.torn_bytes, cut);
        cr_assert_eq(resumed.needs_newline, cut % SIZE == SIZE - 1);
        close(fd);
        fg_lines_free(&lines);
    }
}

static bool load_and_resume(void *ctx)
{
    fg_lines lines;
    fg_lines_resumed resumed;
    int in = file_with(ctx, strlen(ctx));
    int out = file_with(ANSWER("a") "\n", SIZE);
    fg_buf path, body;
    fg_buf_init(&path, 0);
    fg_buf_init(&body, 0);
    fg_status status = fg_lines_load(&lines, in, "in", NULL);
    status = status != FG_OK ? status : fg_lines_resume(&lines, out, "out", &resumed, NULL);
    status = status != FG_OK ? status : fg_lines_request(&lines, 1, &path, &body, NULL);
    bool fine = status == FG_OK;
    cr_assert(fine || status == FG_AGAIN, "%s", fg_status_name(status));
    fg_lines_free(&lines);
    fg_buf_deinit(&path);
    fg_buf_deinit(&body);
    close(in);
    close(out);
    return fine;
}

Test(batch_lines, survives_every_failed_allocation)
{
    static char lines[] = THREE;
    static char array[] = "[{\"custom_id\":\"a\"," REST ",{\"custom_id\":\"b\"," REST "]";
    cr_assert(fg_fault_each(load_and_resume, lines) > 8);
    cr_assert(fg_fault_each(load_and_resume, array) > 8);
}
