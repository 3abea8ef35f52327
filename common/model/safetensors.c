#include "common/model/safetensors.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/json.h"
#include "common/base/mem.h"

enum {
    HEADER_BYTES_MAX = 100 * 1000 * 1000, /* the format's own rule */
    TENSORS_MAX = 65536,
    NAME_BYTES_MAX = 255,
    LENGTH_BYTES = 8,
};

static const char METADATA[] = "__metadata__";

struct fg_safetensors {
    fg_json *json; /* names and types live in it */
    fg_safetensor *tensors;
    uint32_t count;
    const unsigned char *data;
    uint64_t data_bytes;
};

/* A tensor of its own type. */
typedef struct dtype_bits {
    const char *name;
    uint32_t bits;
} dtype_bits;

static const dtype_bits dtypes[] = {
    { "BOOL", 8 },    { "U8", 8 },      { "I8", 8 },      { "F4", 4 },      { "F6_E2M3", 6 },
    { "F6_E3M2", 6 }, { "F8_E4M3", 8 }, { "F8_E5M2", 8 }, { "F8_E8M0", 8 }, { "F8_E4M3FNUZ", 8 },
    { "I16", 16 },    { "U16", 16 },    { "F16", 16 },    { "BF16", 16 },   { "F8_E5M2FNUZ", 8 },
    { "I32", 32 },    { "U32", 32 },    { "F32", 32 },    { "C64", 64 },    { "I64", 64 },
    { "U64", 64 },    { "F64", 64 },
};

static const dtype_bits *find_dtype(const fg_json_node *node)
{
    const char *name = fg_json_string(node, NULL);
    for (size_t i = 0; name != NULL && i < sizeof dtypes / sizeof dtypes[0]; i++) {
        if (strcmp(dtypes[i].name, name) == 0) {
            return &dtypes[i];
        }
    }
    return NULL;
}

static bool is_name(const char *text)
{
    size_t length = strlen(text);
    for (size_t i = 0; i < length; i++) {
        if (text[i] <= 0x20 || text[i] >= 0x7F) {
            return false;
        }
    }
    return length > 0 && length <= NAME_BYTES_MAX;
}

/* Fills dims; the bits that the tensor takes. False when that is more than can be. */
static bool read_shape(const fg_json_node *node, const dtype_bits *dtype, fg_safetensor *tensor,
                       uint64_t *bits_out)
{
    if (!fg_json_is(node, FG_JSON_ARRAY) || fg_json_size(node) > FG_SAFETENSORS_DIMS_MAX) {
        return false;
    }
    tensor->dim_count = (uint32_t)fg_json_size(node);
    uint64_t bits = dtype->bits;
    for (uint32_t i = 0; i < tensor->dim_count; i++) {
        int64_t dim;
        if (!fg_json_integer(fg_json_at(node, i), &dim) || dim < 0 ||
            __builtin_mul_overflow(bits, (uint64_t)dim, &bits)) {
            return false;
        }
        tensor->dims[i] = (uint64_t)dim;
    }
    *bits_out = bits;
    return true;
}

static fg_status read_tensor(const fg_safetensors *file, const char *name, const fg_json_node *node,
                             fg_safetensor *tensor, fg_error *err)
{
    if (!is_name(name)) {
        return fg_fail(err, FG_BAD_INPUT,
                       "a tensor's name is not 1 to %d printable characters without spaces",
                       NAME_BYTES_MAX);
    }
    const dtype_bits *dtype = find_dtype(fg_json_get(node, "dtype"));
    if (dtype == NULL) {
        return fg_fail(err, FG_BAD_INPUT, "tensor '%s' has no dtype that is known", name);
    }
    uint64_t bits;
    *tensor = (fg_safetensor){ .name = name, .dtype = dtype->name };
    if (!read_shape(fg_json_get(node, "shape"), dtype, tensor, &bits)) {
        return fg_fail(err, FG_BAD_INPUT, "tensor '%s': its shape is not a list of sizes", name);
    }
    const fg_json_node *offsets = fg_json_get(node, "data_offsets");
    int64_t begin, end;
    if (fg_json_size(offsets) != 2 || !fg_json_integer(fg_json_at(offsets, 0), &begin) ||
        !fg_json_integer(fg_json_at(offsets, 1), &end) || begin < 0 || end < begin) {
        return fg_fail(err, FG_BAD_INPUT, "tensor '%s': its data_offsets are no range", name);
    }
    if ((uint64_t)end > file->data_bytes) {
        return fg_fail(err, FG_BAD_INPUT,
                       "tensor '%s' goes beyond the end of the file (cut off or damaged)", name);
    }
    tensor->size_bytes = (uint64_t)(end - begin);
    if (bits % 8 != 0 || tensor->size_bytes != bits / 8) {
        return fg_fail(err, FG_BAD_INPUT,
                       "tensor '%s' has %" PRIu64 " bytes, but its %s values take %" PRIu64, name,
                       tensor->size_bytes, dtype->name, bits / 8);
    }
    tensor->data = file->data + begin;
    return FG_OK;
}

/* Texts alone, which nothing depends on. */
static fg_status check_metadata(const fg_json_node *node, fg_error *err)
{
    void *cursor = NULL;
    const char *key;
    bool fits = fg_json_is(node, FG_JSON_OBJECT);
    for (const fg_json_node *value; fits && (value = fg_json_next(node, &cursor, &key)) != NULL;) {
        fits = fg_json_is(value, FG_JSON_STRING);
    }
    return fits ? FG_OK : fg_fail(err, FG_BAD_INPUT, "__metadata__ is no table of texts");
}

static fg_status read_table(fg_safetensors *file, fg_error *err)
{
    const fg_json_node *root = fg_json_root(file->json);
    if (!fg_json_is(root, FG_JSON_OBJECT)) {
        return fg_fail(err, FG_BAD_INPUT, "its header is no JSON object");
    }
    if (fg_json_size(root) > TENSORS_MAX) {
        return fg_fail(err, FG_BAD_INPUT, "it has more than %d tensors", TENSORS_MAX);
    }
    file->tensors = fg_mem_array(fg_json_size(root) + 1, sizeof *file->tensors);
    if (file->tensors == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for its table of tensors");
    }
    void *cursor = NULL;
    const char *name;
    fg_status status = FG_OK;
    for (const fg_json_node *node;
         status == FG_OK && (node = fg_json_next(root, &cursor, &name)) != NULL;) {
        status = strcmp(name, METADATA) == 0
                     ? check_metadata(node, err)
                     : read_tensor(file, name, node, &file->tensors[file->count++], err);
    }
    return status;
}

static int by_place(const void *a, const void *b)
{
    const fg_safetensor *left = a, *right = b;
    uintptr_t from = (uintptr_t)left->data, other = (uintptr_t)right->data;
    if (from != other) {
        return from > other ? 1 : -1;
    }
    /* Empty ones come before the one that begins there. */
    return (left->size_bytes > right->size_bytes) - (left->size_bytes < right->size_bytes);
}

static fg_status check_places(fg_safetensors *file, fg_error *err)
{
    qsort(file->tensors, file->count, sizeof *file->tensors, by_place);
    const unsigned char *at = file->data;
    for (uint32_t i = 0; i < file->count; i++) {
        const fg_safetensor *tensor = &file->tensors[i];
        if ((const unsigned char *)tensor->data < at) {
            return fg_fail(err, FG_BAD_INPUT, "tensors '%s' and '%s' overlap",
                           file->tensors[i - 1].name, tensor->name);
        }
        if ((const unsigned char *)tensor->data > at) {
            return fg_fail(err, FG_BAD_INPUT, "there are bytes of no tensor before '%s'",
                           tensor->name);
        }
        at += tensor->size_bytes;
    }
    return at == file->data + file->data_bytes
               ? FG_OK
               : fg_fail(err, FG_BAD_INPUT, "there are bytes of no tensor at its end");
}

fg_status fg_safetensors_parse(const void *bytes, size_t size_bytes, fg_safetensors **file_out,
                               fg_error *err)
{
    uint64_t length;
    if (size_bytes < LENGTH_BYTES) {
        return fg_fail(err, FG_BAD_INPUT, "it is too short for a safetensors file");
    }
    memcpy(&length, bytes, sizeof length);
    if (length > HEADER_BYTES_MAX) {
        return fg_fail(err, FG_BAD_INPUT, "its header claims %" PRIu64 " bytes (at most %d)",
                       length, HEADER_BYTES_MAX);
    }
    if (length > size_bytes - LENGTH_BYTES) {
        return fg_fail(err, FG_BAD_INPUT, "the file ends inside its header (cut off or damaged)");
    }
    const char *header = (const char *)bytes + LENGTH_BYTES;
    if (length == 0 || header[0] != '{') {
        return fg_fail(err, FG_BAD_INPUT, "its header does not begin with '{'");
    }
    fg_safetensors *file = fg_mem_alloc(sizeof *file);
    if (file == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for its table of tensors");
    }
    file->data = (const unsigned char *)header + length;
    file->data_bytes = size_bytes - LENGTH_BYTES - length;
    fg_error cause = { .status = FG_OK };
    fg_status status = fg_json_parse(header, length, &file->json, &cause);
    if (status != FG_OK) {
        fg_fail(err, status, "its header: %s", cause.text);
        goto close;
    }
    status = read_table(file, err);
    if (status == FG_OK) {
        status = check_places(file, err);
    }
    if (status == FG_OK) {
        *file_out = file;
        return FG_OK;
    }

close:
    fg_safetensors_close(file);
    return status;
}

void fg_safetensors_close(fg_safetensors *file)
{
    if (file != NULL) {
        fg_json_destroy(file->json);
        fg_mem_free(file->tensors);
        fg_mem_free(file);
    }
}

uint32_t fg_safetensors_count(const fg_safetensors *file)
{
    return file->count;
}

const fg_safetensor *fg_safetensors_at(const fg_safetensors *file, uint32_t index)
{
    FG_ASSERT(index < file->count);
    return &file->tensors[index];
}
