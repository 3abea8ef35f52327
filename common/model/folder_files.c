#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "common/model/folder_internal.h"

#define MIB (1024u * 1024u)

static const char ONE_FILE[] = "model.safetensors";
static const char INDEX[] = "model.safetensors.index.json";

enum { NAME_BYTES_MAX = 255 };

/* A folder on the disk while it is opened. */
typedef struct visit {
    const char *path;
    fg_folder_files files;
    fg_folder_file *weights; /* names are own memory */
    uint32_t weight_count, mapped_count;
    fg_weights_file state;
    fg_error *err;
} visit;

/* ---- one file ---- */

/* FG_OK with *fd_out -1 where there is none. */
static fg_status open_file(visit *v, const char *name, uint64_t size_max, int *fd_out,
                           size_t *size_out)
{
    char path[PATH_MAX];
    struct stat info;
    *fd_out = -1;
    if (snprintf(path, sizeof path, "%s/%s", v->path, name) >= (int)sizeof path) {
        return fg_fail(v->err, FG_BAD_INPUT, "the path of %s is too long", name);
    }
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* not to wait for a pipe's writer */
    if (fd < 0 && (errno == ENOENT || errno == ENOTDIR)) {
        return FG_OK;
    }
    if (fd < 0) {
        return fg_fail(v->err, FG_BAD_INPUT, "cannot open %s: %s", name, strerror(errno));
    }
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        close(fd);
        return fg_fail(v->err, FG_BAD_INPUT, "%s is not a regular file", name);
    }
    if (info.st_size == 0 || (uint64_t)info.st_size > size_max) {
        close(fd);
        return fg_fail(v->err, FG_BAD_INPUT, "%s is %s", name,
                       info.st_size == 0 ? "empty" : "too large");
    }
    int64_t modified_ns = (int64_t)info.st_mtim.tv_sec * 1000000000 + info.st_mtim.tv_nsec;
    v->state.size_bytes += (uint64_t)info.st_size;
    v->state.modified_ns = v->state.modified_ns > modified_ns ? v->state.modified_ns : modified_ns;
    v->state.owner = info.st_uid;
    v->state.mode = info.st_mode & 07777;
    *fd_out = fd;
    *size_out = (size_t)info.st_size;
    return FG_OK;
}

static fg_status read_all(visit *v, int fd, const char *name, char *out, size_t size_bytes)
{
    for (size_t done = 0; done < size_bytes;) {
        ssize_t got = read(fd, out + done, size_bytes - done);
        if (got < 0 && errno == EINTR) {
            continue;
        }
        if (got <= 0) {
            return fg_fail(v->err, FG_BAD_INPUT, "cannot read %s: %s", name,
                           got == 0 ? "it became shorter" : strerror(errno));
        }
        done += (size_t)got;
    }
    return FG_OK;
}

/* A text, into own memory; file->bytes NULL where there is none. */
static fg_status read_text(visit *v, const char *name, uint64_t size_max, fg_folder_file *file)
{
    int fd;
    size_t size;
    *file = (fg_folder_file){ .name = name };
    fg_status status = open_file(v, name, size_max, &fd, &size);
    if (status != FG_OK || fd < 0) {
        return status;
    }
    char *text = fg_mem_alloc(size);
    status = text == NULL ? fg_fail(v->err, FG_AGAIN, "out of memory for %s", name)
                          : read_all(v, fd, name, text, size);
    close(fd);
    if (status != FG_OK) {
        fg_mem_free(text);
        return status;
    }
    file->bytes = text;
    file->size_bytes = size;
    return FG_OK;
}

/* ---- weights ---- */

static fg_status map_weights(visit *v, fg_folder_file *file)
{
    int fd;
    size_t size;
    fg_status status = open_file(v, file->name, INT64_MAX, &fd, &size);
    if (status != FG_OK) {
        return status;
    }
    if (fd < 0) {
        return fg_fail(v->err, FG_BAD_INPUT, "there is no %s in it", file->name);
    }
    void *bytes = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
    int map_errno = errno;
    close(fd);
    if (bytes == MAP_FAILED) {
        return fg_fail(v->err, FG_AGAIN, "cannot map %s: %s", file->name, strerror(map_errno));
    }
    file->bytes = bytes;
    file->size_bytes = size;
    v->mapped_count++;
    return FG_OK;
}

/* A file beside the index, and nothing else: not a path out of the folder. */
static bool is_plain_name(const char *name)
{
    size_t length = strlen(name);
    if (length == 0 || length > NAME_BYTES_MAX || name[0] == '.') {
        return false;
    }
    for (size_t i = 0; i < length; i++) {
        if (name[i] <= 0x20 || name[i] >= 0x7F || name[i] == '/' || name[i] == '\\') {
            return false;
        }
    }
    static const char suffix[] = ".safetensors";
    size_t behind = sizeof suffix - 1;
    return length > behind && strcmp(name + length - behind, suffix) == 0;
}

static fg_status add_name(visit *v, const char *name)
{
    for (uint32_t i = 0; i < v->weight_count; i++) {
        if (strcmp(v->weights[i].name, name) == 0) {
            return FG_OK;
        }
    }
    if (v->weight_count == FG_FOLDER_WEIGHT_FILES_MAX) {
        return fg_fail(v->err, FG_BAD_INPUT, "%s names more than %d files", INDEX,
                       FG_FOLDER_WEIGHT_FILES_MAX);
    }
    char *copy = fg_mem_strdup(name);
    if (copy == NULL) {
        return fg_fail(v->err, FG_AGAIN, "out of memory for names of files");
    }
    v->weights[v->weight_count++].name = copy;
    return FG_OK;
}

static int by_name(const void *a, const void *b)
{
    const fg_folder_file *left = a, *right = b;
    return strcmp(left->name, right->name);
}

/* The files that the index names, each once. */
static fg_status list_weights(visit *v)
{
    fg_error cause = { .status = FG_OK };
    fg_json *json;
    if (v->files.index.bytes == NULL) {
        return add_name(v, ONE_FILE);
    }
    fg_status status =
        fg_json_parse(v->files.index.bytes, v->files.index.size_bytes, &json, &cause);
    if (status != FG_OK) {
        return fg_fail(v->err, status, "%s: %s", INDEX, cause.text);
    }
    const fg_json_node *map = fg_json_get(fg_json_root(json), "weight_map");
    if (!fg_json_is(map, FG_JSON_OBJECT) || fg_json_size(map) == 0) {
        status = fg_fail(v->err, FG_BAD_INPUT, "%s has no weight_map", INDEX);
    }
    void *cursor = NULL;
    const char *key;
    for (const fg_json_node *node;
         status == FG_OK && (node = fg_json_next(map, &cursor, &key)) != NULL;) {
        const char *name = fg_json_string(node, NULL);
        status = name != NULL && is_plain_name(name)
                     ? add_name(v, name)
                     : fg_fail(v->err, FG_BAD_INPUT,
                               "%s: tensor '%.200s' is in no .safetensors file of this folder",
                               INDEX, key);
    }
    fg_json_destroy(json);
    qsort(v->weights, v->weight_count, sizeof *v->weights, by_name);
    return status;
}

/* ---- all of them ---- */

/* Without config.json it is some other folder. */
static fg_status read_texts(visit *v)
{
    fg_folder_files *files = &v->files;
    const struct {
        const char *name;
        uint64_t size_max;
        fg_folder_file *file;
    } rows[] = { { "config.json", MIB, &files->config },
                 { "tokenizer.json", 128u * MIB, &files->tokenizer },
                 { "tokenizer_config.json", 16u * MIB, &files->tokenizer_config },
                 { "generation_config.json", MIB, &files->generation_config },
                 { "chat_template.jinja", MIB, &files->chat_template },
                 { "1_Pooling/config.json", MIB, &files->pooling },
                 { INDEX, 64u * MIB, &files->index } };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        fg_status status = read_text(v, rows[i].name, rows[i].size_max, rows[i].file);
        if (status == FG_OK && i == 0 && files->config.bytes == NULL) {
            status = fg_fail(v->err, FG_BAD_INPUT,
                             "there is no config.json in it: a GGUF file, or a folder as Hugging "
                             "Face keeps it, is a model");
        }
        if (status != FG_OK) {
            return status;
        }
    }
    return files->tokenizer.bytes != NULL
               ? FG_OK
               : fg_fail(v->err, FG_BAD_INPUT,
                         "there is no tokenizer.json in it (tokenizer.model alone is not read)");
}

static fg_status visit_all(visit *v)
{
    fg_status status = read_texts(v);
    v->weights = fg_mem_array(FG_FOLDER_WEIGHT_FILES_MAX, sizeof *v->weights);
    if (status == FG_OK && v->weights == NULL) {
        status = fg_fail(v->err, FG_AGAIN, "out of memory for names of files");
    }
    status = status != FG_OK ? status : list_weights(v);
    for (uint32_t i = 0; i < v->weight_count && status == FG_OK; i++) {
        status = map_weights(v, &v->weights[i]);
    }
    v->files.weights = v->weights;
    v->files.weight_count = v->weight_count;
    return status;
}

/* The folder's own name, also where it was given as "." or by a link. */
static const char *name_of(const char *real)
{
    const char *slash = strrchr(real, '/');
    return slash != NULL && slash[1] != '\0' ? slash + 1 : real;
}

/* `weights` has its files' mappings from now on. */
static fg_status hand_over(visit *v, const char *real, fg_weights *weights, fg_error *err)
{
    struct fg_folder *folder = weights->folder;
    v->state.path = fg_mem_strdup(real);
    folder->maps = fg_mem_dup(v->weights, v->weight_count * sizeof *v->weights);
    if (v->state.path == NULL || folder->maps == NULL) {
        fg_mem_free((void *)(uintptr_t)v->state.path);
        return fg_fail(err, FG_AGAIN, "out of memory for the model's files");
    }
    folder->map_count = v->mapped_count;
    weights->file = v->state;
    v->mapped_count = 0;
    return FG_OK;
}

fg_status fg_folder_open(const char *path, fg_weights **weights_out, fg_error *err)
{
    char real[PATH_MAX];
    fg_error cause = { .status = FG_OK };
    fg_weights *weights = NULL;
    visit v = { .path = path, .err = &cause };
    if (realpath(path, real) == NULL) {
        return fg_fail(err, FG_BAD_INPUT, "model folder '%s': %s", path, strerror(errno));
    }
    v.files.name = name_of(real);
    fg_status status = visit_all(&v);
    status = status != FG_OK ? status : fg_folder_open_memory(&v.files, &weights, &cause);
    if (status == FG_OK) {
        status = hand_over(&v, real, weights, &cause);
    }
    if (status != FG_OK) {
        fg_weights_close(weights);
        fg_fail(err, status, "model folder '%s': %s", path, cause.text);
    } else {
        *weights_out = weights;
    }
    for (uint32_t i = 0; i < v.mapped_count; i++) {
        munmap((void *)(uintptr_t)v.weights[i].bytes, v.weights[i].size_bytes);
    }
    for (uint32_t i = 0; i < v.weight_count; i++) {
        fg_mem_free((void *)(uintptr_t)v.weights[i].name);
    }
    fg_mem_free(v.weights);
    const fg_folder_file *texts[] = { &v.files.config,
                                      &v.files.tokenizer,
                                      &v.files.tokenizer_config,
                                      &v.files.generation_config,
                                      &v.files.chat_template,
                                      &v.files.pooling,
                                      &v.files.index };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        fg_mem_free((void *)(uintptr_t)texts[i]->bytes);
    }
    return status;
}
