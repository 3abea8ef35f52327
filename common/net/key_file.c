#include "common/net/key_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/limits.h"
#include "common/base/mem.h"
#include "common/net/keys.h"

/* --- lines --- */

bool fg_key_word_is(const fg_key_line *line, uint32_t index, const char *word)
{
    return index < line->count && line->length[index] == strlen(word) &&
           memcmp(line->start[index], word, line->length[index]) == 0;
}

static void split(const char *text, size_t length, fg_key_line *out)
{
    for (size_t i = 0; i < length && out->count < FG_KEY_WORDS_MAX;) {
        if (text[i] == ' ' || text[i] == '\t') {
            i++;
            continue;
        }
        size_t begin = i;
        while (i < length && text[i] != ' ' && text[i] != '\t') {
            i++;
        }
        out->start[out->count] = text + begin;
        out->length[out->count++] = i - begin;
    }
}

fg_status fg_key_lines(const char *label, const char *text, size_t size_bytes,
                       fg_key_line_fn on_line, void *ctx, fg_error *err)
{
    uint32_t number = 0;
    for (size_t at = 0; at < size_bytes;) {
        const char *line = text + at;
        const char *end = memchr(line, '\n', size_bytes - at);
        const char *why = NULL;
        size_t length = end != NULL ? (size_t)(end - line) : size_bytes - at;
        number++;
        if (end == NULL) {
            why = "the last line has no newline: the file may be cut short";
        } else if (memchr(line, '\r', length) != NULL) {
            why = "a carriage return: save the file with plain newlines (sed -i 's/\\r$//')";
        } else if (memchr(line, '\0', length) != NULL) {
            why = "a NUL byte: this is no text file";
        } else if (length > 0 && line[0] != '#') {
            fg_key_line found = { .number = number };
            split(line, length, &found);
            why = found.count > 0 ? on_line(ctx, &found) : NULL;
        }
        if (why != NULL) {
            return fg_fail(err, FG_BAD_INPUT, "%s:%u: %s", label, number, why);
        }
        at += length + 1;
    }
    return FG_OK;
}

/* --- files --- */

/* Who may read a secret beside its owner. Container platforms give a file to root and to a group, which the process is
 * in: then it has no other way to it. */
static mode_t forbidden_bits(const struct stat *info)
{
    return info->st_uid == 0 && geteuid() != 0 ? 037 : 077;
}

static fg_status check_file(const char *path, const struct stat *info, bool secret, fg_error *err)
{
    if (!S_ISREG(info->st_mode)) {
        return fg_fail(err, FG_BAD_INPUT, "%s is not a file", path);
    }
    if (secret && (info->st_mode & forbidden_bits(info)) != 0) {
        return fg_fail(err, FG_BAD_INPUT,
                       "%s is a secret, and others than its owner can get at it: chmod 600 %s",
                       path, path);
    }
    if ((info->st_mode & 022) != 0) {
        return fg_fail(err, FG_BAD_INPUT, "others than its owner can write %s: chmod go-w %s", path,
                       path);
    }
    if (info->st_size > (off_t)FG_LIMIT_KEY_FILE_BYTES) {
        return fg_fail(err, FG_BAD_INPUT, "%s is larger than %u KiB: no file of keys", path,
                       FG_LIMIT_KEY_FILE_BYTES / 1024);
    }
    return FG_OK;
}

static fg_status read_text(int fd, const char *path, char *text, size_t *size_out, fg_error *err)
{
    size_t size = 0;
    while (size <= FG_LIMIT_KEY_FILE_BYTES) {
        ssize_t got = read(fd, text + size, FG_LIMIT_KEY_FILE_BYTES + 1 - size);
        if (got < 0 && errno != EINTR) {
            return fg_fail(err, FG_BAD_INPUT, "%s: %s", path, strerror(errno));
        }
        if (got == 0) {
            *size_out = size;
            return FG_OK;
        }
        size += got > 0 ? (size_t)got : 0;
    }
    return fg_fail(err, FG_BAD_INPUT, "%s is too large", path);
}

/* What counts is the file that a link leads to. It is asked through the descriptor, so nothing can be put
 * in its place between the question and the reading; a pipe does not make the open wait. */
fg_status fg_key_file_read(const char *path, bool secret, const char *hint, char **text_out,
                           size_t *size_out, fg_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0) {
        return fg_fail(err, FG_BAD_INPUT, "%s: %s%s", path, strerror(errno),
                       errno == ENOENT ? hint : "");
    }
    struct stat info;
    char *text = NULL;
    fg_status status = fstat(fd, &info) == 0
                           ? check_file(path, &info, secret, err)
                           : fg_fail(err, FG_BAD_INPUT, "%s: %s", path, strerror(errno));
    if (status == FG_OK) {
        text = fg_mem_alloc(FG_LIMIT_KEY_FILE_BYTES + 1);
        status = text == NULL ? fg_fail(err, FG_AGAIN, "out of memory for %s", path)
                              : read_text(fd, path, text, size_out, err);
    }
    close(fd);
    if (status != FG_OK) {
        fg_key_file_drop(text);
        return status;
    }
    *text_out = text;
    return FG_OK;
}

void fg_key_file_drop(char *text)
{
    if (text != NULL) {
        fg_keys_wipe(text, FG_LIMIT_KEY_FILE_BYTES + 1);
        fg_mem_free(text);
    }
}
