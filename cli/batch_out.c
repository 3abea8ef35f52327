#include "cli/batch_out.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/hash.h"
#include "common/base/json.h"

static fg_status refuse(fg_answers *answers, fg_error *err, const char *why)
{
    return fg_fail(err, FG_BAD_INPUT, "%s: %s", answers->name, why);
}

/* Cuts off a torn end and completes a last line that lacks only its newline. */
static fg_status mend(fg_answers *answers, const fg_lines_resumed *resumed, fg_error *err)
{
    answers->size = resumed->keep_bytes;
    if (resumed->torn_bytes > 0 && ftruncate(answers->fd, (off_t)answers->size) != 0) {
        return refuse(answers, err, strerror(errno));
    }
    if (lseek(answers->fd, (off_t)answers->size, SEEK_SET) < 0) {
        return refuse(answers, err, strerror(errno));
    }
    if (resumed->needs_newline) {
        if (write(answers->fd, "\n", 1) != 1) {
            return refuse(answers, err, strerror(errno));
        }
        answers->size++;
        answers->dirty = true;
    }
    return FG_OK;
}

fg_status fg_answers_open(fg_answers *answers, const char *name, int in_fd, fg_lines *lines,
                          fg_lines_resumed *resumed_out, fg_error *err)
{
    struct stat in, out;
    *resumed_out = (fg_lines_resumed){ 0 };
    *answers = (fg_answers){ .fd = -1, .name = name };
    fg_buf_init(&answers->line, 0);
    if (strcmp(name, "-") == 0) {
        answers->fd = STDOUT_FILENO;
        return FG_OK;
    }
    answers->fd = open(name, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (answers->fd < 0 || fstat(answers->fd, &out) != 0) {
        return refuse(answers, err, strerror(errno));
    }
    if (fstat(in_fd, &in) == 0 && in.st_dev == out.st_dev && in.st_ino == out.st_ino) {
        return refuse(answers, err, "this is the file with the requests; name another one");
    }
    answers->file = S_ISREG(out.st_mode);
    if (!answers->file) {
        return FG_OK; /* a pipe or a terminal: as standard output */
    }
    if (flock(answers->fd, LOCK_EX | LOCK_NB) != 0) {
        return refuse(answers, err,
                      errno == EWOULDBLOCK ? "another `forge batch` is writing it"
                                           : strerror(errno));
    }
    fg_status status = fg_lines_resume(lines, answers->fd, name, resumed_out, err);
    return status != FG_OK ? status : mend(answers, resumed_out, err);
}

void fg_answers_close(fg_answers *answers)
{
    if (answers->fd >= 0 && answers->fd != STDOUT_FILENO) {
        close(answers->fd);
    }
    fg_buf_deinit(&answers->line);
    answers->fd = -1;
}

static uint64_t count_of(const fg_json_node *usage, const char *name)
{
    int64_t count = 0;
    fg_json_integer(fg_json_get(usage, name), &count);
    return count > 0 ? (uint64_t)count : 0;
}

/* JSON as the server wrote it, on one line: a newline in JSON text is never inside a string. What is
 * no JSON is kept as a text. */
static bool put_body(const fg_client_answer *answer, uint64_t *prompt, uint64_t *completion,
                     fg_buf *out)
{
    fg_json *json = NULL;
    fg_status status = fg_json_parse(answer->body, answer->body_bytes, &json, NULL);
    if (status == FG_AGAIN) {
        return false;
    }
    if (status != FG_OK) {
        fg_buf_putc(out, '"');
        fg_buf_json_escape(out, answer->body, answer->body_bytes);
        return fg_buf_putc(out, '"');
    }
    const fg_json_node *usage = fg_json_get(fg_json_root(json), "usage");
    *prompt = count_of(usage, "prompt_tokens");
    *completion = count_of(usage, "completion_tokens");
    fg_json_destroy(json);
    for (size_t at = 0; at < answer->body_bytes;) {
        size_t length = strcspn(answer->body + at, "\r\n");
        fg_buf_append(out, answer->body + at, length);
        at += length + 1;
    }
    return !out->failed;
}

bool fg_answers_render(const char *custom_id, const fg_client_answer *answer, uint64_t *prompt,
                       uint64_t *completion, fg_buf *out)
{
    /* The same request gets the same name in every run. */
    fg_digest128 name = fg_hash128(custom_id, strlen(custom_id), 0);
    *prompt = *completion = 0;
    fg_buf_printf(out, FG_LINES_ANSWER_BEGIN "%016" PRIx64 "%016" PRIx64 "\",\"custom_id\":\"",
                  name.high, name.low);
    fg_buf_json_escape(out, custom_id, strlen(custom_id));
    fg_buf_printf(out, "\",\"response\":{\"status_code\":%d,\"request_id\":\"", answer->status);
    fg_buf_json_escape(out, answer->request_id, strlen(answer->request_id));
    fg_buf_puts(out, "\",\"body\":");
    return put_body(answer, prompt, completion, out) && fg_buf_puts(out, "},\"error\":null}\n");
}

fg_status fg_answers_write(fg_answers *answers, const char *custom_id,
                           const fg_client_answer *answer, fg_error *err)
{
    uint64_t prompt, completion;
    fg_buf_clear(&answers->line);
    if (!fg_answers_render(custom_id, answer, &prompt, &completion, &answers->line)) {
        return fg_fail(err, FG_BROKEN, "out of memory for an answer");
    }
    size_t done = 0;
    while (done < answers->line.size) {
        ssize_t wrote = write(answers->fd, answers->line.data + done, answers->line.size - done);
        if (wrote < 0 && errno == EINTR) {
            continue;
        }
        if (wrote < 0) {
            int cause = errno;
            /* Half a line on a full disk is taken back; where even that fails, the next run does. */
            if (answers->file && ftruncate(answers->fd, (off_t)answers->size) != 0) {
                cause = errno;
            }
            return fg_fail(err, FG_BROKEN, "%s: %s", answers->name, strerror(cause));
        }
        done += (size_t)wrote;
    }
    answers->size += done;
    answers->dirty = true;
    answers->prompt_tokens += prompt;
    answers->completion_tokens += completion;
    return FG_OK;
}

fg_status fg_answers_sync(fg_answers *answers, fg_error *err)
{
    if (!answers->file || !answers->dirty) {
        return FG_OK;
    }
    answers->dirty = false;
    if (fdatasync(answers->fd) != 0) {
        return fg_fail(err, FG_BROKEN, "%s: %s", answers->name, strerror(errno));
    }
    return FG_OK;
}
