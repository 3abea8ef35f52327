#include "common/model/weights.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/mem.h"
#include "common/model/weights_internal.h"

/* Tensors up to this size enter the fingerprint whole; of larger ones, pages spread from the first
 * byte to the last. */
enum { FINGERPRINT_WHOLE_BYTES = 65536, FINGERPRINT_PAGES = 16, FINGERPRINT_PAGE_BYTES = 4096 };

uint32_t fg_meta_type_bytes(fg_meta_type type)
{
    switch (type) {
    case FG_META_U8:
    case FG_META_I8:
    case FG_META_BOOL:
        return 1;
    case FG_META_U16:
    case FG_META_I16:
        return 2;
    case FG_META_U32:
    case FG_META_I32:
    case FG_META_F32:
        return 4;
    case FG_META_U64:
    case FG_META_I64:
    case FG_META_F64:
        return 8;
    default:
        return 0;
    }
}

bool fg_name_table_init(fg_name_table *table, uint32_t count)
{
    uint32_t size = 8;
    while (size / 2 < count) {
        size *= 2;
    }
    table->slots = fg_mem_array(size, sizeof *table->slots);
    table->mask = size - 1;
    return table->slots != NULL;
}

/* The entry of that name, or the empty slot where it would go. */
static uint32_t *meta_slot(const fg_weights *weights, const char *key, size_t length)
{
    const fg_name_table *table = &weights->meta_table;
    uint32_t at = (uint32_t)fg_hash64(key, length, 0) & table->mask;
    while (table->slots[at] != 0) {
        const fg_meta *meta = &weights->metas[table->slots[at] - 1];
        if (meta->key_length == length && memcmp(meta->key, key, length) == 0) {
            break;
        }
        at = (at + 1) & table->mask;
    }
    return &table->slots[at];
}

static uint32_t *tensor_slot(const fg_weights *weights, const char *name)
{
    const fg_name_table *table = &weights->tensor_table;
    uint32_t at = (uint32_t)fg_hash64(name, strlen(name), 0) & table->mask;
    while (table->slots[at] != 0 &&
           strcmp(weights->tensors[table->slots[at] - 1].name, name) != 0) {
        at = (at + 1) & table->mask;
    }
    return &table->slots[at];
}

bool fg_weights_index_meta(fg_weights *weights, uint32_t index)
{
    const fg_meta *meta = &weights->metas[index];
    uint32_t *slot = meta_slot(weights, meta->key, meta->key_length);
    if (*slot != 0) {
        return false;
    }
    *slot = index + 1;
    return true;
}

bool fg_weights_index_tensor(fg_weights *weights, uint32_t index)
{
    uint32_t *slot = tensor_slot(weights, weights->tensors[index].name);
    if (*slot != 0) {
        return false;
    }
    *slot = index + 1;
    return true;
}

/* Takes over the mapping in every case. */
static fg_status open_bytes(const void *bytes, size_t size_bytes, bool mapped,
                            fg_weights **weights_out, fg_error *err)
{
    fg_weights *weights = fg_mem_alloc(sizeof *weights);
    if (weights == NULL) {
        if (mapped) {
            munmap((void *)(uintptr_t)bytes, size_bytes);
        }
        return fg_fail(err, FG_AGAIN, "out of memory for the model file's tables");
    }
    weights->bytes = bytes;
    weights->size_bytes = size_bytes;
    weights->mapped = mapped;
    fg_status status = fg_weights_parse_gguf(weights, err);
    if (status != FG_OK) {
        fg_weights_close(weights);
        return status;
    }
    *weights_out = weights;
    return FG_OK;
}

fg_status fg_weights_open(const char *path, fg_weights **weights_out, fg_error *err)
{
    struct stat info;
    if (stat(path, &info) == 0 && S_ISDIR(info.st_mode)) {
        return fg_folder_open(path, weights_out, err);
    }
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return fg_fail(err, FG_BAD_INPUT, "cannot open model file '%s': %s", path, strerror(errno));
    }
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        close(fd);
        return fg_fail(err, FG_BAD_INPUT, "model file '%s' is not a regular file", path);
    }
    if (info.st_size == 0) {
        close(fd);
        return fg_fail(err, FG_BAD_INPUT, "model file '%s' is empty", path);
    }
    size_t size_bytes = (size_t)info.st_size;
    void *bytes = mmap(NULL, size_bytes, PROT_READ, MAP_SHARED, fd, 0);
    int map_errno = errno;
    close(fd);
    if (bytes == MAP_FAILED) {
        return fg_fail(err, FG_AGAIN, "cannot map model file '%s': %s", path, strerror(map_errno));
    }
    fg_error cause = { .status = FG_OK };
    fg_weights *weights = NULL;
    fg_status status = open_bytes(bytes, size_bytes, true, &weights, &cause);
    if (status != FG_OK) {
        return fg_fail(err, status, "model file '%s': %s", path, cause.text);
    }
    weights->file = (fg_weights_file){ .path = fg_mem_strdup(path),
                                       .size_bytes = size_bytes,
                                       .modified_ns = (int64_t)info.st_mtim.tv_sec * 1000000000 +
                                                      info.st_mtim.tv_nsec,
                                       .owner = info.st_uid,
                                       .mode = info.st_mode & 07777 };
    if (weights->file.path == NULL) {
        fg_weights_close(weights);
        return fg_fail(err, FG_AGAIN, "out of memory for the model file's name");
    }
    *weights_out = weights;
    return FG_OK;
}

fg_status fg_weights_open_memory(const void *bytes, size_t size_bytes, fg_weights **weights_out,
                                 fg_error *err)
{
    FG_ASSERT((uintptr_t)bytes % 8 == 0, "tensors are read in place");
    return open_bytes(bytes, size_bytes, false, weights_out, err);
}

void fg_weights_close(fg_weights *weights)
{
    if (weights == NULL) {
        return;
    }
    for (uint32_t i = 0; weights->metas != NULL && i < weights->meta_count; i++) {
        fg_mem_free(weights->metas[i].item_offsets);
    }
    fg_mem_free(weights->metas);
    fg_mem_free(weights->meta_table.slots);
    fg_mem_free(weights->tensors);
    fg_mem_free(weights->tensor_table.slots);
    fg_mem_free(weights->tensor_names);
    fg_mem_free((void *)(uintptr_t)weights->file.path);
    if (weights->mapped) {
        munmap((void *)(uintptr_t)weights->bytes, weights->size_bytes);
    }
    fg_folder_close(weights->folder);
    fg_mem_free(weights);
}

const fg_tensor *fg_weights_find(const fg_weights *weights, const char *name)
{
    uint32_t slot = *tensor_slot(weights, name);
    return slot == 0 ? NULL : &weights->tensors[slot - 1];
}

uint64_t fg_weights_tensor_count(const fg_weights *weights)
{
    return weights->tensor_count;
}

const fg_tensor *fg_weights_tensor(const fg_weights *weights, uint64_t index)
{
    FG_ASSERT(index < weights->tensor_count);
    return &weights->tensors[index];
}

uint64_t fg_weights_size_bytes(const fg_weights *weights)
{
    return weights->folder != NULL ? fg_folder_size_bytes(weights->folder) : weights->size_bytes;
}

static void advise_range(const void *data, uint64_t size_bytes, int advice)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t first = ((uintptr_t)data + page - 1) & ~(page - 1);
    uintptr_t end = ((uintptr_t)data + size_bytes) & ~(page - 1);
    if (first < end) {
        madvise((void *)first, end - first, advice);
    }
}

/* Advice about the whole pages inside a tensor; it may be ignored, so no answer is looked at. */
static void advise(const fg_weights *weights, const fg_tensor *tensor, int advice)
{
    if (weights->folder != NULL && !fg_folder_is_mapped(weights->folder, tensor)) {
        return; /* what is in memory of its own would be lost */
    }
    if (tensor->rows != NULL) {
        for (uint64_t i = 0; i < tensor->dims[2]; i++) {
            advise_range(tensor->rows->matrices[i], tensor->size_bytes / tensor->dims[2], advice);
        }
    } else if (weights->mapped || weights->folder != NULL) {
        advise_range(tensor->data, tensor->size_bytes, advice);
    }
}

static const char *row_at(const fg_tensor *tensor, uint64_t index, uint64_t row_bytes)
{
    const fg_tensor_rows *rows = tensor->rows;
    if (rows == NULL) {
        return (const char *)tensor->data + index * row_bytes;
    }
    uint64_t row = index % tensor->dims[1];
    if (rows->head_rows > 0) {
        uint64_t turn = row % rows->head_rows;
        row += turn % 2 * (rows->head_rows / 2) + turn / 2 - turn;
    }
    return (const char *)rows->matrices[index / tensor->dims[1]] + row * row_bytes;
}

void fg_tensor_copy_rows(const fg_tensor *tensor, uint64_t first, uint64_t count, void *out)
{
    uint64_t row_count = tensor->dims[1] * tensor->dims[2];
    uint64_t row_bytes = tensor->size_bytes / row_count;
    FG_ASSERT(first + count <= row_count);
    for (uint64_t i = 0; i < count; i++) {
        memcpy((char *)out + i * row_bytes, row_at(tensor, first + i, row_bytes), row_bytes);
    }
}

void fg_weights_release(const fg_weights *weights, const fg_tensor *tensor)
{
    advise(weights, tensor, MADV_DONTNEED);
}

void fg_weights_prefetch(const fg_weights *weights, const fg_tensor *tensor)
{
    advise(weights, tensor, MADV_WILLNEED);
}

const fg_weights_file *fg_weights_file_of(const fg_weights *weights)
{
    return weights->file.path == NULL ? NULL : &weights->file;
}

const fg_meta *fg_weights_meta(const fg_weights *weights, const char *key)
{
    uint32_t slot = *meta_slot(weights, key, strlen(key));
    return slot == 0 ? NULL : &weights->metas[slot - 1];
}

/* A number of type T at `data`, which need not be aligned. */
#define LOAD(T, data) (*(T *)memcpy(&(T){ 0 }, (data), sizeof(T)))

/* One integer as sign and magnitude's two's complement; false for another kind. A U64 above INT64_MAX
 * is refused: nothing that is asked for as an integer comes near. */
static bool load_i64(fg_meta_type type, const unsigned char *data, int64_t *out)
{
    switch (type) {
    case FG_META_U8:
        *out = data[0];
        return true;
    case FG_META_I8:
        *out = (int8_t)data[0];
        return true;
    case FG_META_U16:
        *out = LOAD(uint16_t, data);
        return true;
    case FG_META_I16:
        *out = LOAD(int16_t, data);
        return true;
    case FG_META_U32:
        *out = LOAD(uint32_t, data);
        return true;
    case FG_META_I32:
        *out = LOAD(int32_t, data);
        return true;
    case FG_META_I64:
        *out = LOAD(int64_t, data);
        return true;
    case FG_META_U64: {
        uint64_t value = LOAD(uint64_t, data);
        if (value > INT64_MAX) {
            return false;
        }
        *out = (int64_t)value;
        return true;
    }
    default:
        return false;
    }
}

static bool load_f32(fg_meta_type type, const unsigned char *data, float *out)
{
    if (type == FG_META_F32) {
        *out = LOAD(float, data);
        return true;
    }
    if (type == FG_META_F64) {
        *out = (float)LOAD(double, data);
        return true;
    }
    return false;
}

bool fg_weights_get_u32(const fg_weights *weights, const char *key, uint32_t *out)
{
    const fg_meta *meta = fg_weights_meta(weights, key);
    int64_t value;
    if (meta == NULL || !load_i64(meta->type, meta->data, &value) || value < 0 ||
        value > UINT32_MAX) {
        return false;
    }
    *out = (uint32_t)value;
    return true;
}

bool fg_weights_get_f32(const fg_weights *weights, const char *key, float *out)
{
    const fg_meta *meta = fg_weights_meta(weights, key);
    return meta != NULL && load_f32(meta->type, meta->data, out);
}

bool fg_weights_get_bool(const fg_weights *weights, const char *key, bool *out)
{
    const fg_meta *meta = fg_weights_meta(weights, key);
    if (meta == NULL || meta->type != FG_META_BOOL) {
        return false;
    }
    *out = meta->data[0] != 0;
    return true;
}

bool fg_weights_get_string(const fg_weights *weights, const char *key, const char **text_out,
                           size_t *length_out)
{
    const fg_meta *meta = fg_weights_meta(weights, key);
    if (meta == NULL || meta->type != FG_META_STRING) {
        return false;
    }
    *text_out = (const char *)meta->data + sizeof(uint64_t);
    *length_out = meta->count;
    return true;
}

bool fg_weights_get_array(const fg_weights *weights, const char *key, fg_meta_type *type_out,
                          uint64_t *count_out)
{
    const fg_meta *meta = fg_weights_meta(weights, key);
    if (meta == NULL || meta->type != FG_META_ARRAY) {
        return false;
    }
    *type_out = meta->item_type;
    *count_out = meta->count;
    return true;
}

/* The array's item `index`, or NULL. */
static const unsigned char *array_item(const fg_weights *weights, const char *key, uint64_t index,
                                       fg_meta_type *type_out)
{
    const fg_meta *meta = fg_weights_meta(weights, key);
    if (meta == NULL || meta->type != FG_META_ARRAY || index >= meta->count) {
        return NULL;
    }
    *type_out = meta->item_type;
    return meta->item_type == FG_META_STRING
               ? meta->data + meta->item_offsets[index]
               : meta->data + index * fg_meta_type_bytes(meta->item_type);
}

bool fg_weights_array_string(const fg_weights *weights, const char *key, uint64_t index,
                             const char **text_out, size_t *length_out)
{
    fg_meta_type type;
    const unsigned char *item = array_item(weights, key, index, &type);
    if (item == NULL || type != FG_META_STRING) {
        return false;
    }
    *length_out = LOAD(uint64_t, item);
    *text_out = (const char *)item + sizeof(uint64_t);
    return true;
}

bool fg_weights_array_i64(const fg_weights *weights, const char *key, uint64_t index, int64_t *out)
{
    fg_meta_type type;
    const unsigned char *item = array_item(weights, key, index, &type);
    return item != NULL && load_i64(type, item, out);
}

bool fg_weights_array_f32(const fg_weights *weights, const char *key, uint64_t index, float *out)
{
    fg_meta_type type;
    const unsigned char *item = array_item(weights, key, index, &type);
    return item != NULL && load_f32(type, item, out);
}

/* Names, authors and the like do not change an answer; the architecture does. */
static bool meta_matters(const fg_meta *meta)
{
    static const char general[] = "general.", architecture[] = "general.architecture";
    if (meta->key_length < sizeof general - 1 ||
        memcmp(meta->key, general, sizeof general - 1) != 0) {
        return true;
    }
    return meta->key_length == sizeof architecture - 1 &&
           memcmp(meta->key, architecture, sizeof architecture - 1) == 0;
}

/* Digests are chained: each seeds the next, so that order and boundaries count. */
static void chain(fg_digest128 *digest, const void *bytes, size_t size_bytes)
{
    fg_digest128 next = fg_hash128(bytes, size_bytes, digest->low ^ fg_hash_mix(digest->high));
    digest->low = next.low;
    digest->high ^= fg_hash_mix(next.high + size_bytes);
}

/* A tensor's bytes as they are in the file, from the `at`th on; as far as one matrix goes. */
static void chain_bytes(fg_digest128 *digest, const fg_tensor *tensor, uint64_t at,
                        uint64_t size_bytes)
{
    if (tensor->rows == NULL) {
        chain(digest, (const unsigned char *)tensor->data + at, size_bytes);
        return;
    }
    uint64_t each = tensor->size_bytes / tensor->dims[2], within = at % each;
    uint64_t left = each - within < size_bytes ? each - within : size_bytes;
    chain(digest, (const unsigned char *)tensor->rows->matrices[at / each] + within, left);
}

static void chain_values(fg_digest128 *digest, const fg_tensor *tensor)
{
    if (tensor->rows != NULL && tensor->rows->head_rows > 0) {
        chain(digest, &tensor->rows->head_rows, sizeof tensor->rows->head_rows);
    }
    if (tensor->size_bytes <= FINGERPRINT_WHOLE_BYTES) {
        uint64_t each =
            tensor->rows == NULL ? tensor->size_bytes : tensor->size_bytes / tensor->dims[2];
        for (uint64_t at = 0; at < tensor->size_bytes; at += each) {
            chain_bytes(digest, tensor, at, each);
        }
        return;
    }
    uint64_t last = tensor->size_bytes - FINGERPRINT_PAGE_BYTES;
    for (uint64_t page = 0; page < FINGERPRINT_PAGES; page++) {
        uint64_t at = last / (FINGERPRINT_PAGES - 1) * page;
        at = page == FINGERPRINT_PAGES - 1 ? last : at;
        chain_bytes(digest, tensor, at, FINGERPRINT_PAGE_BYTES);
    }
}

fg_digest128 fg_weights_fingerprint(const fg_weights *weights)
{
    fg_digest128 digest = { 0, 0 };
    for (uint32_t i = 0; i < weights->meta_count; i++) {
        const fg_meta *meta = &weights->metas[i];
        if (meta_matters(meta)) {
            uint64_t kind[3] = { meta->type, meta->item_type, meta->count };
            chain(&digest, meta->key, meta->key_length);
            chain(&digest, kind, sizeof kind);
            chain(&digest, meta->data, meta->size_bytes);
        }
    }
    for (uint32_t i = 0; i < weights->tensor_count; i++) {
        const fg_tensor *tensor = &weights->tensors[i];
        uint64_t shape[6] = { tensor->type,    tensor->dims[0], tensor->dims[1],
                              tensor->dims[2], tensor->dims[3], tensor->size_bytes };
        chain(&digest, tensor->name, strlen(tensor->name));
        chain(&digest, shape, sizeof shape);
        chain_values(&digest, tensor);
    }
    return digest;
}
