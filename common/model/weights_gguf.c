/*
 * GGUF version 3, little endian (ggml's docs/gguf.md):
 *
 *   "GGUF" u32 version, u64 tensor count, u64 metadata count
 *   metadata:  string key, u32 type, value        string = u64 length, bytes
 *   tensors:   string name, u32 dim count, u64 dims[], u32 type, u64 offset into the data
 *   padding to general.alignment (32), then the data
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/dtype.h"
#include "common/base/mem.h"
#include "common/model/weights_internal.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "GGUF is read in place");

enum {
    NAME_BYTES_MAX = 64,
    KEY_BYTES_MAX = 65535,
    ENTRIES_MAX = 65536, /* metadata entries, and tensors; real files have a few hundred */
    META_BYTES_MIN = 8 + 1 + 4 + 1,
    TENSOR_BYTES_MIN = 8 + 1 + 4 + 8 + 4 + 8,
    ALIGNMENT_DEFAULT = 32,
    ALIGNMENT_MIN = 8, /* the format's own rule; tensors of floats are read in place */
    ALIGNMENT_MAX = 1 << 20,
};

/* A cursor that never passes the end. */
typedef struct reader {
    const unsigned char *at;
    uint64_t left;
} reader;

static bool take(reader *in, void *out, size_t size_bytes)
{
    if (in->left < size_bytes) {
        return false;
    }
    memcpy(out, in->at, size_bytes);
    in->at += size_bytes;
    in->left -= size_bytes;
    return true;
}

static bool skip(reader *in, uint64_t size_bytes)
{
    if (in->left < size_bytes) {
        return false;
    }
    in->at += size_bytes;
    in->left -= size_bytes;
    return true;
}

static bool take_string(reader *in, const char **text_out, uint64_t *length_out)
{
    uint64_t length;
    if (!take(in, &length, sizeof length)) {
        return false;
    }
    *text_out = (const char *)in->at;
    *length_out = length;
    return skip(in, length);
}

/* Keys and tensor names are printable ASCII, so that they can be shown and compared as C strings. */
static bool is_name(const char *text, uint64_t length, uint64_t length_max)
{
    if (length == 0 || length > length_max) {
        return false;
    }
    for (uint64_t i = 0; i < length; i++) {
        if (text[i] <= 0x20 || text[i] >= 0x7F) {
            return false;
        }
    }
    return true;
}

/* Names of types that other programs write and Forge does not read. */
static const char *foreign_type_name(uint32_t type)
{
    static const struct {
        uint32_t type;
        const char *name;
    } names[] = {
        { 4, "Q4_2" },    { 5, "Q4_3" },     { 9, "Q8_1" },    { 10, "Q2_K" },    { 11, "Q3_K" },
        { 15, "Q8_K" },   { 16, "IQ2_XXS" }, { 17, "IQ2_XS" }, { 18, "IQ3_XXS" }, { 19, "IQ1_S" },
        { 20, "IQ4_NL" }, { 21, "IQ3_S" },   { 22, "IQ2_S" },  { 23, "IQ4_XS" },  { 24, "I8" },
        { 25, "I16" },    { 26, "I32" },     { 27, "I64" },    { 28, "F64" },     { 29, "IQ1_M" },
        { 34, "TQ1_0" },  { 35, "TQ2_0" },   { 39, "MXFP4" },
    };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (names[i].type == type) {
            return names[i].name;
        }
    }
    return "unknown";
}

static fg_status cut_off(const char *where, fg_error *err)
{
    return fg_fail(err, FG_BAD_INPUT, "the file ends inside %s (cut off or damaged)", where);
}

/* Names the entry in an error line; a key may be long. */
#define KEY_FORMAT     "metadata '%.*s'"
#define KEY_ARGS(meta) (int)((meta)->key_length < 80 ? (meta)->key_length : 80), (meta)->key

static fg_status parse_string_array(reader *in, fg_meta *meta, fg_error *err)
{
    /* Each item takes at least its length field, so the index is no larger than the file. */
    if (meta->count > in->left / sizeof(uint64_t)) {
        return fg_fail(err, FG_BAD_INPUT,
                       KEY_FORMAT " claims %" PRIu64 " strings, more than the file can hold",
                       KEY_ARGS(meta), meta->count);
    }
    meta->item_offsets = fg_mem_array(meta->count, sizeof *meta->item_offsets);
    if (meta->item_offsets == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for the model file's strings");
    }
    for (uint64_t i = 0; i < meta->count; i++) {
        const char *text;
        uint64_t length;
        meta->item_offsets[i] = (uint64_t)(in->at - meta->data);
        if (!take_string(in, &text, &length)) {
            return fg_fail(err, FG_BAD_INPUT,
                           KEY_FORMAT ": string %" PRIu64 " goes beyond the end of the file",
                           KEY_ARGS(meta), i);
        }
    }
    return FG_OK;
}

static fg_status parse_array(reader *in, fg_meta *meta, fg_error *err)
{
    uint32_t item_type;
    if (!take(in, &item_type, sizeof item_type) || !take(in, &meta->count, sizeof meta->count)) {
        return cut_off("an array of the metadata", err);
    }
    meta->data = in->at;
    meta->item_type = (fg_meta_type)item_type;
    if (item_type == FG_META_ARRAY) {
        return fg_fail(err, FG_BAD_INPUT, KEY_FORMAT " is an array of arrays, which is not read",
                       KEY_ARGS(meta));
    }
    if (item_type == FG_META_STRING) {
        return parse_string_array(in, meta, err);
    }
    uint32_t item_bytes = item_type > FG_META_F64 ? 0 : fg_meta_type_bytes(meta->item_type);
    if (item_bytes == 0) {
        return fg_fail(err, FG_BAD_INPUT, KEY_FORMAT " is an array of unknown type %u",
                       KEY_ARGS(meta), item_type);
    }
    if (meta->count > in->left / item_bytes) {
        return fg_fail(err, FG_BAD_INPUT,
                       KEY_FORMAT " claims %" PRIu64 " items, more than the file can hold",
                       KEY_ARGS(meta), meta->count);
    }
    skip(in, meta->count * item_bytes);
    return FG_OK;
}

static fg_status parse_value(reader *in, fg_meta *meta, uint32_t type, fg_error *err)
{
    meta->type = (fg_meta_type)type;
    meta->data = in->at;
    meta->count = 1;
    if (type > FG_META_F64) {
        return fg_fail(err, FG_BAD_INPUT, KEY_FORMAT " has unknown type %u", KEY_ARGS(meta), type);
    }
    fg_status status = FG_OK;
    if (type == FG_META_ARRAY) {
        status = parse_array(in, meta, err);
    } else if (type == FG_META_STRING) {
        const char *text;
        if (!take_string(in, &text, &meta->count)) {
            status = fg_fail(err, FG_BAD_INPUT, KEY_FORMAT ": its text goes beyond the file's end",
                             KEY_ARGS(meta));
        }
    } else if (!skip(in, fg_meta_type_bytes(meta->type))) {
        status = cut_off("the metadata", err);
    } else if (type == FG_META_BOOL && meta->data[0] > 1) {
        status = fg_fail(err, FG_BAD_INPUT, KEY_FORMAT " is a bool of value %u", KEY_ARGS(meta),
                         meta->data[0]);
    }
    meta->size_bytes = (uint64_t)(in->at - meta->data);
    return status;
}

static fg_status parse_metadata(fg_weights *weights, reader *in, uint64_t count, fg_error *err)
{
    if (count > ENTRIES_MAX || count > in->left / META_BYTES_MIN) {
        return fg_fail(err, FG_BAD_INPUT, "the file claims %" PRIu64 " metadata entries, too many",
                       count);
    }
    weights->metas = fg_mem_array(count, sizeof *weights->metas);
    if (weights->metas == NULL || !fg_name_table_init(&weights->meta_table, (uint32_t)count)) {
        return fg_fail(err, FG_AGAIN, "out of memory for the model file's metadata");
    }
    for (uint32_t i = 0; i < count; i++) {
        fg_meta *meta = &weights->metas[i];
        uint64_t key_length;
        uint32_t type;
        if (!take_string(in, &meta->key, &key_length)) {
            return cut_off("the metadata", err);
        }
        if (!is_name(meta->key, key_length, KEY_BYTES_MAX)) {
            return fg_fail(err, FG_BAD_INPUT, "the key of metadata entry %u is not a name", i);
        }
        meta->key_length = (uint32_t)key_length;
        /* Counted before its value is parsed: close() then frees what a failure leaves behind. */
        weights->meta_count = i + 1;
        if (!fg_weights_index_meta(weights, i)) {
            return fg_fail(err, FG_BAD_INPUT, KEY_FORMAT " is there twice", KEY_ARGS(meta));
        }
        if (!take(in, &type, sizeof type)) {
            return cut_off("the metadata", err);
        }
        fg_status status = parse_value(in, meta, type, err);
        if (status != FG_OK) {
            return status;
        }
    }
    return FG_OK;
}

/* Reads dims; fills dims, size_bytes. */
static fg_status parse_shape(reader *in, fg_tensor *tensor, fg_error *err)
{
    uint32_t dim_count, type;
    if (!take(in, &dim_count, sizeof dim_count)) {
        return cut_off("the tensor table", err);
    }
    if (dim_count < 1 || dim_count > 4) {
        return fg_fail(err, FG_BAD_INPUT, "tensor '%s' has %u dimensions (1 to 4 are read)",
                       tensor->name, dim_count);
    }
    uint64_t element_count = 1;
    for (uint32_t d = 0; d < 4; d++) {
        tensor->dims[d] = 1;
        if (d < dim_count && !take(in, &tensor->dims[d], sizeof tensor->dims[d])) {
            return cut_off("the tensor table", err);
        }
        if (tensor->dims[d] == 0 ||
            __builtin_mul_overflow(element_count, tensor->dims[d], &element_count)) {
            return fg_fail(err, FG_BAD_INPUT, "tensor '%s' has an impossible size", tensor->name);
        }
    }
    if (!take(in, &type, sizeof type)) {
        return cut_off("the tensor table", err);
    }
    uint32_t block_count = fg_dtype_block_count(type);
    if (block_count == 0) {
        return fg_fail(err, FG_BAD_INPUT,
                       "tensor '%s' has type %s (%u), which is not supported (supported: F32, F16, "
                       "BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, Q6_K)",
                       tensor->name, foreign_type_name(type), type);
    }
    if (tensor->dims[0] % block_count != 0) {
        return fg_fail(err, FG_BAD_INPUT,
                       "tensor '%s': rows of %" PRIu64 " elements are no whole %s blocks of %u",
                       tensor->name, tensor->dims[0], fg_dtype_name(type), block_count);
    }
    if (__builtin_mul_overflow(element_count / block_count, fg_dtype_block_bytes(type),
                               &tensor->size_bytes)) {
        return fg_fail(err, FG_BAD_INPUT, "tensor '%s' has an impossible size", tensor->name);
    }
    tensor->dim_count = dim_count;
    tensor->type = type;
    return FG_OK;
}

/* Reads the table. `offsets` receives each tensor's offset from the start of the data. */
static fg_status parse_tensors(fg_weights *weights, reader *in, uint64_t count, uint64_t *offsets,
                               fg_error *err)
{
    char *name = weights->tensor_names;
    for (uint32_t i = 0; i < count; i++) {
        fg_tensor *tensor = &weights->tensors[i];
        const char *text;
        uint64_t length;
        if (!take_string(in, &text, &length)) {
            return cut_off("the tensor table", err);
        }
        if (!is_name(text, length, NAME_BYTES_MAX)) {
            return fg_fail(err, FG_BAD_INPUT,
                           "the name of tensor %u is not a name of 1 to %d printable characters", i,
                           NAME_BYTES_MAX);
        }
        memcpy(name, text, length);
        tensor->name = name;
        name += length + 1;
        if (!fg_weights_index_tensor(weights, i)) {
            return fg_fail(err, FG_BAD_INPUT, "tensor '%s' is there twice", tensor->name);
        }
        weights->tensor_count = i + 1;
        fg_status status = parse_shape(in, tensor, err);
        if (status != FG_OK) {
            return status;
        }
        if (!take(in, &offsets[i], sizeof offsets[i])) {
            return cut_off("the tensor table", err);
        }
    }
    return FG_OK;
}

static fg_status read_alignment(const fg_weights *weights, uint32_t *alignment_out, fg_error *err)
{
    uint32_t alignment = ALIGNMENT_DEFAULT;
    if (fg_weights_meta(weights, "general.alignment") != NULL &&
        !fg_weights_get_u32(weights, "general.alignment", &alignment)) {
        return fg_fail(err, FG_BAD_INPUT, "metadata 'general.alignment' is not a number");
    }
    if (alignment < ALIGNMENT_MIN || alignment > ALIGNMENT_MAX ||
        (alignment & (alignment - 1)) != 0) {
        return fg_fail(err, FG_BAD_INPUT,
                       "metadata 'general.alignment' is %u (a power of two from %d to %d is read)",
                       alignment, ALIGNMENT_MIN, ALIGNMENT_MAX);
    }
    *alignment_out = alignment;
    return FG_OK;
}

static int by_data(const void *a, const void *b)
{
    uintptr_t left = (uintptr_t)(*(const fg_tensor *const *)a)->data;
    uintptr_t right = (uintptr_t)(*(const fg_tensor *const *)b)->data;
    return (left > right) - (left < right);
}

static fg_status refuse_overlap(const fg_weights *weights, fg_error *err)
{
    const fg_tensor **order = fg_mem_array(weights->tensor_count, sizeof(const fg_tensor *));
    if (order == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for the model file's tensor table");
    }
    for (uint32_t i = 0; i < weights->tensor_count; i++) {
        order[i] = &weights->tensors[i];
    }
    qsort(order, weights->tensor_count, sizeof(const fg_tensor *), by_data);
    fg_status status = FG_OK;
    for (uint32_t i = 1; i < weights->tensor_count && status == FG_OK; i++) {
        const unsigned char *end = (const unsigned char *)order[i - 1]->data;
        if (end + order[i - 1]->size_bytes > (const unsigned char *)order[i]->data) {
            status = fg_fail(err, FG_BAD_INPUT, "tensors '%s' and '%s' overlap", order[i - 1]->name,
                             order[i]->name);
        }
    }
    fg_mem_free(order);
    return status;
}

/* Points every tensor into the data and checks that it lies there. */
static fg_status place_tensors(fg_weights *weights, const reader *in, const uint64_t *offsets,
                               fg_error *err)
{
    uint32_t alignment = ALIGNMENT_DEFAULT;
    fg_status status = read_alignment(weights, &alignment, err);
    if (status != FG_OK || weights->tensor_count == 0) {
        return status;
    }
    uint64_t header_bytes = weights->size_bytes - in->left;
    uint64_t padding = (alignment - header_bytes % alignment) % alignment;
    if (in->left < padding) {
        return cut_off("the padding before the tensors", err);
    }
    const unsigned char *data = in->at + padding;
    uint64_t data_bytes = in->left - padding;
    for (uint32_t i = 0; i < weights->tensor_count; i++) {
        fg_tensor *tensor = &weights->tensors[i];
        if (offsets[i] % alignment != 0) {
            return fg_fail(err, FG_BAD_INPUT,
                           "tensor '%s' begins at %" PRIu64 ", no multiple of the alignment %u",
                           tensor->name, offsets[i], alignment);
        }
        if (offsets[i] > data_bytes || tensor->size_bytes > data_bytes - offsets[i]) {
            return fg_fail(err, FG_BAD_INPUT,
                           "tensor '%s' goes beyond the end of the file (cut off or damaged)",
                           tensor->name);
        }
        tensor->data = data + offsets[i];
    }
    return refuse_overlap(weights, err);
}

static fg_status refuse_split(const fg_weights *weights, fg_error *err)
{
    uint32_t part_count = 1;
    if (fg_weights_meta(weights, "split.count") != NULL &&
        (!fg_weights_get_u32(weights, "split.count", &part_count) || part_count > 1)) {
        return fg_fail(err, FG_BAD_INPUT,
                       "the model is split into several files, which is not supported: join them "
                       "first (llama-gguf-split --merge)");
    }
    return FG_OK;
}

static fg_status parse_tensor_table(fg_weights *weights, reader *in, uint64_t count, fg_error *err)
{
    if (count > ENTRIES_MAX || count > in->left / TENSOR_BYTES_MIN) {
        return fg_fail(err, FG_BAD_INPUT, "the file claims %" PRIu64 " tensors, too many", count);
    }
    fg_status status;
    uint64_t *offsets = fg_mem_array(count, sizeof *offsets);
    weights->tensors = fg_mem_array(count, sizeof *weights->tensors);
    weights->tensor_names = fg_mem_array(count, NAME_BYTES_MAX + 1);
    if (offsets == NULL || weights->tensors == NULL || weights->tensor_names == NULL ||
        !fg_name_table_init(&weights->tensor_table, (uint32_t)count)) {
        status = fg_fail(err, FG_AGAIN, "out of memory for the model file's tensor table");
        goto free_offsets;
    }
    status = parse_tensors(weights, in, count, offsets, err);
    if (status == FG_OK) {
        status = place_tensors(weights, in, offsets, err);
    }

free_offsets:
    fg_mem_free(offsets);
    return status;
}

fg_status fg_weights_parse_gguf(fg_weights *weights, fg_error *err)
{
    reader in = { .at = weights->bytes, .left = weights->size_bytes };
    char magic[4];
    uint32_t version;
    uint64_t tensor_count, meta_count;
    if (!take(&in, magic, sizeof magic) || memcmp(magic, "GGUF", sizeof magic) != 0) {
        return fg_fail(err, FG_BAD_INPUT, "not a GGUF file");
    }
    if (!take(&in, &version, sizeof version)) {
        return cut_off("the header", err);
    }
    if (version != 3) {
        return fg_fail(err, FG_BAD_INPUT, "GGUF version %u is not supported (supported: 3)%s",
                       version, version == 0x03000000 ? "; the file is big-endian" : "");
    }
    if (!take(&in, &tensor_count, sizeof tensor_count) ||
        !take(&in, &meta_count, sizeof meta_count)) {
        return cut_off("the header", err);
    }
    fg_status status = parse_metadata(weights, &in, meta_count, err);
    if (status != FG_OK) {
        return status;
    }
    status = refuse_split(weights, err);
    if (status != FG_OK) {
        return status;
    }
    return parse_tensor_table(weights, &in, tensor_count, err);
}
