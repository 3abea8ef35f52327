#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/mem.h"
#include "common/model/folder_internal.h"
#include "common/model/hparams.h"

enum { META_BYTES_MAX = 1 << 30, JSON_VALUES_MAX = 1 << 22, JSON_GROUPS_MAX = 1 << 20 };

/* What a folder's texts become while they are read. */
typedef struct opening {
    const fg_folder_files *files;
    fg_json *config, *tokenizer, *tokenizer_config, *generation_config, *pooling, *index;
    fg_folder_config numbers;
    fg_folder_sources sources;
    fg_meta_writer meta;
    fg_weights *weights;
    fg_error *err;
} opening;

/* ---- JSON ---- */

/* Leaves *json_out NULL where there is no such file. */
static fg_status parse(const opening *o, const fg_folder_file *file, fg_json **json_out)
{
    fg_error cause = { .status = FG_OK };
    const fg_json_limits limits = { .values_max = JSON_VALUES_MAX, .groups_max = JSON_GROUPS_MAX };
    if (file->bytes == NULL) {
        return FG_OK;
    }
    fg_status status =
        fg_json_parse_within(file->bytes, file->size_bytes, &limits, json_out, &cause);
    if (status != FG_OK) {
        return fg_fail(o->err, status, "%s: %s", file->name, cause.text);
    }
    return fg_json_is(fg_json_root(*json_out), FG_JSON_OBJECT)
               ? FG_OK
               : fg_fail(o->err, FG_BAD_INPUT, "%s: this is no object", file->name);
}

static const fg_json_node *root_of(const fg_json *json)
{
    return json == NULL ? NULL : fg_json_root(json);
}

static fg_status parse_texts(opening *o)
{
    const fg_folder_files *files = o->files;
    const struct {
        const fg_folder_file *file;
        fg_json **json;
        bool required;
    } rows[] = { { &files->config, &o->config, true },
                 { &files->tokenizer, &o->tokenizer, true },
                 { &files->tokenizer_config, &o->tokenizer_config, false },
                 { &files->generation_config, &o->generation_config, false },
                 { &files->pooling, &o->pooling, false },
                 { &files->index, &o->index, false } };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        fg_status status = parse(o, rows[i].file, rows[i].json);
        if (status == FG_OK && rows[i].required && *rows[i].json == NULL) {
            status = fg_fail(o->err, FG_BAD_INPUT, "there is no %s in it", rows[i].file->name);
        }
        if (status != FG_OK) {
            return status;
        }
    }
    return FG_OK;
}

/* ---- weights ---- */

static int by_name(const void *a, const void *b)
{
    const fg_folder_source *left = a, *right = b;
    return strcmp(left->tensor->name, right->tensor->name);
}

static fg_folder_source *find_called(const fg_folder_sources *sources, const char *name)
{
    const fg_safetensor wanted = { .name = name };
    const fg_folder_source key = { .tensor = &wanted };
    return sources->count == 0
               ? NULL
               : bsearch(&key, sources->items, sources->count, sizeof *sources->items, by_name);
}

/* Models for embeddings are kept without their head, and then without the name of what it belongs to. */
fg_folder_source *fg_folder_find(const fg_folder_sources *sources, const char *name)
{
    static const char whole[] = "model.";
    fg_folder_source *found = find_called(sources, name);
    bool may = found == NULL && strncmp(name, whole, sizeof whole - 1) == 0;
    return may ? find_called(sources, name + sizeof whole - 1) : found;
}

static fg_status parse_weights(opening *o)
{
    struct fg_folder *folder = o->weights->folder;
    uint32_t count = o->files->weight_count;
    folder->files = fg_mem_array(count + 1, sizeof(fg_safetensors *));
    if (folder->files == NULL) {
        return fg_fail(o->err, FG_AGAIN, "out of memory for a model of %u files", count);
    }
    uint32_t total = 0;
    for (uint32_t i = 0; i < count; i++) {
        const fg_folder_file *file = &o->files->weights[i];
        fg_error cause = { .status = FG_OK };
        fg_status status =
            fg_safetensors_parse(file->bytes, file->size_bytes, &folder->files[i], &cause);
        if (status != FG_OK) {
            return fg_fail(o->err, status, "%s: %s", file->name, cause.text);
        }
        folder->file_count = i + 1;
        folder->size_bytes += file->size_bytes;
        total += fg_safetensors_count(folder->files[i]);
    }
    o->sources.items = fg_mem_array(total + 1, sizeof *o->sources.items);
    if (o->sources.items == NULL) {
        return fg_fail(o->err, FG_AGAIN, "out of memory for a model of %u tensors", total);
    }
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t k = 0; k < fg_safetensors_count(folder->files[i]); k++) {
            o->sources.items[o->sources.count++] =
                (fg_folder_source){ .tensor = fg_safetensors_at(folder->files[i], k), .file = i };
        }
    }
    qsort(o->sources.items, total, sizeof *o->sources.items, by_name);
    for (uint32_t i = 1; i < total; i++) {
        if (by_name(&o->sources.items[i - 1], &o->sources.items[i]) == 0) {
            return fg_fail(o->err, FG_BAD_INPUT, "tensor '%s' is there twice",
                           o->sources.items[i].tensor->name);
        }
    }
    return FG_OK;
}

/* What the index says is where it says. */
static fg_status check_index(const opening *o)
{
    void *cursor = NULL;
    const char *name;
    const fg_json_node *map = fg_json_get(root_of(o->index), "weight_map");
    for (const fg_json_node *node; (node = fg_json_next(map, &cursor, &name)) != NULL;) {
        const fg_folder_source *source = fg_folder_find(&o->sources, name);
        const char *file = fg_json_string(node, NULL);
        if (source == NULL || file == NULL ||
            strcmp(file, o->files->weights[source->file].name) != 0) {
            return fg_fail(o->err, FG_BAD_INPUT, "%s: tensor '%.200s' is not in the file it names",
                           o->files->index.name, name);
        }
    }
    return FG_OK;
}

/* ---- together ---- */

static fg_status read_tokenizer(opening *o)
{
    const fg_folder_source *embedding = fg_folder_find(&o->sources, "model.embed_tokens.weight");
    if (embedding == NULL || embedding->tensor->dim_count != 2 ||
        embedding->tensor->dims[0] > UINT32_MAX) {
        return fg_fail(o->err, FG_BAD_INPUT,
                       "tensor 'model.embed_tokens.weight' is missing, or no matrix");
    }
    const fg_folder_texts texts = { .config = root_of(o->config),
                                    .tokenizer = root_of(o->tokenizer),
                                    .tokenizer_config = root_of(o->tokenizer_config),
                                    .generation_config = root_of(o->generation_config),
                                    .chat_template = &o->files->chat_template,
                                    .vocab_size = (uint32_t)embedding->tensor->dims[0] };
    return fg_folder_read_tokenizer(&texts, &o->meta, o->err);
}

static void write_pooling(opening *o)
{
    static const struct {
        const char *name;
        fg_pooling pooling;
    } ways[] = { { "pooling_mode_mean_tokens", FG_POOLING_MEAN },
                 { "pooling_mode_cls_token", FG_POOLING_CLS },
                 { "pooling_mode_lasttoken", FG_POOLING_LAST } };
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        bool is_so = false;
        (void)fg_json_bool(fg_folder_get(root_of(o->pooling), ways[i].name), &is_so);
        if (is_so) {
            fg_meta_u32(&o->meta, fg_folder_key_of(o->numbers.architecture, "pooling_type").text,
                        ways[i].pooling);
            return;
        }
    }
}

/* Metadata as GGUF has it, then the tensors in their places. */
static fg_status fill(opening *o)
{
    fg_weights *weights = o->weights;
    fg_meta_begin(&o->meta, META_BYTES_MAX);
    fg_meta_string(&o->meta, "general.name", o->files->name, strlen(o->files->name));
    fg_status status = fg_folder_read_config(root_of(o->config), &o->meta, &o->numbers, o->err);
    if (status == FG_OK) {
        write_pooling(o);
        status = read_tokenizer(o);
    }
    if (status == FG_OK && !fg_meta_end(&o->meta)) {
        status = fg_fail(o->err, FG_AGAIN, "out of memory for the model's metadata");
    }
    if (status != FG_OK) {
        fg_buf_deinit(&o->meta.out);
        return status;
    }
    weights->folder->meta = o->meta.out;
    weights->bytes = (const unsigned char *)o->meta.out.data;
    weights->size_bytes = o->meta.out.size;
    status = fg_weights_parse_gguf(weights, o->err);
    if (status != FG_OK) {
        return status;
    }
    /* Those of a file without tensors. */
    fg_mem_free(weights->tensors);
    fg_mem_free(weights->tensor_names);
    fg_mem_free(weights->tensor_table.slots);
    weights->tensors = NULL;
    weights->tensor_names = NULL;
    weights->tensor_table = (fg_name_table){ 0 };
    return fg_folder_place_tensors(weights, &o->numbers, &o->sources, o->err);
}

fg_status fg_folder_open_memory(const fg_folder_files *files, fg_weights **weights_out,
                                fg_error *err)
{
    fg_weights *weights = fg_mem_alloc(sizeof *weights);
    struct fg_folder *folder = fg_mem_alloc(sizeof *folder);
    if (weights == NULL || folder == NULL) {
        fg_mem_free(weights);
        fg_mem_free(folder);
        return fg_fail(err, FG_AGAIN, "out of memory for the model's tables");
    }
    weights->folder = folder;
    opening o = { .files = files, .weights = weights, .err = err };
    fg_status status = parse_texts(&o);
    status = status != FG_OK ? status : parse_weights(&o);
    status = status != FG_OK ? status : check_index(&o);
    status = status != FG_OK ? status : fill(&o);
    fg_json *const texts[] = { o.config,  o.tokenizer, o.tokenizer_config, o.generation_config,
                               o.pooling, o.index };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        fg_json_destroy(texts[i]);
    }
    fg_folder_config_deinit(&o.numbers);
    fg_mem_free(o.sources.items);
    if (status != FG_OK) {
        fg_weights_close(weights);
        return status;
    }
    *weights_out = weights;
    return FG_OK;
}

uint64_t fg_folder_size_bytes(const struct fg_folder *folder)
{
    return folder->size_bytes;
}

bool fg_folder_is_mapped(const struct fg_folder *folder, const fg_tensor *tensor)
{
    uintptr_t at = (uintptr_t)(tensor->rows != NULL ? tensor->rows->matrices[0] : tensor->data);
    for (uint32_t i = 0; i < folder->map_count; i++) {
        uintptr_t from = (uintptr_t)folder->maps[i].bytes;
        if (at >= from && at - from < folder->maps[i].size_bytes) {
            return true;
        }
    }
    return false;
}

void fg_folder_close(struct fg_folder *folder)
{
    if (folder == NULL) {
        return;
    }
    for (uint32_t i = 0; i < folder->file_count; i++) {
        fg_safetensors_close(folder->files[i]);
    }
    for (uint32_t i = 0; i < folder->block_count; i++) {
        fg_mem_free(folder->blocks[i]);
    }
    for (uint32_t i = 0; i < folder->map_count; i++) {
        munmap((void *)(uintptr_t)folder->maps[i].bytes, folder->maps[i].size_bytes);
    }
    fg_mem_free(folder->files);
    fg_mem_free(folder->blocks);
    fg_mem_free(folder->maps);
    fg_buf_deinit(&folder->meta);
    fg_mem_free(folder);
}
