#include "common/model/weights.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/base/dtype.h"
#include "common/base/fault.h"
#include "common/model/hparams.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/test.h"

/* A small model with one metadata entry of every type, its fields known. */
static fg_gguf_builder *small_model(void **bytes_out, size_t *size_bytes_out)
{
    fg_gguf_builder *builder = fg_gguf_builder_create();
    fg_gguf_add_tiny_llama(builder, &(fg_tiny_llama){ .vocab = FG_TINY_BARE,
                                                      .weight_type = FG_Q4_0,
                                                      .layer_count = 1,
                                                      .embedding_length = 32,
                                                      .head_count = 2,
                                                      .kv_head_count = 2,
                                                      .head_dim = 16,
                                                      .ffn_length = 32 });
    fg_gguf_add_value(builder, "t.u8", FG_META_U8, &(uint8_t){ 200 }, 1);
    fg_gguf_add_value(builder, "t.i8", FG_META_I8, &(int8_t){ -3 }, 1);
    fg_gguf_add_value(builder, "t.u16", FG_META_U16, &(uint16_t){ 65000 }, 2);
    fg_gguf_add_value(builder, "t.i16", FG_META_I16, &(int16_t){ 1234 }, 2);
    fg_gguf_add_value(builder, "t.i32", FG_META_I32, &(int32_t){ 77 }, 4);
    fg_gguf_add_value(builder, "t.u64", FG_META_U64, &(uint64_t){ 4294967295u }, 8);
    fg_gguf_add_value(builder, "t.u64.large", FG_META_U64, &(uint64_t){ 4294967296u }, 8);
    fg_gguf_add_value(builder, "t.i64", FG_META_I64, &(int64_t){ 5 }, 8);
    fg_gguf_add_value(builder, "t.f64", FG_META_F64, &(double){ 0.5 }, 8);
    fg_gguf_add_bool(builder, "t.yes", true);
    fg_gguf_add_string(builder, "t.text", "hello");
    fg_gguf_add_strings(builder, "t.words", (const char *const[]){ "one", "", "three" }, 3);
    fg_gguf_add_strings(builder, "t.nothing", NULL, 0);
    fg_gguf_add_array(builder, "t.numbers", FG_META_I16, (const int16_t[]){ 7, -8, 9 }, 3);
    fg_gguf_add_array(builder, "t.floats", FG_META_F32, (const float[]){ 1.5f, -2.0f }, 2);
    *bytes_out = fg_gguf_finish(builder, size_bytes_out);
    return builder;
}

/* Opens bytes and, when they are accepted, uses everything that is there. */
static fg_status try_bytes(const void *bytes, size_t size_bytes, fg_error *err)
{
    fg_weights *weights = NULL;
    fg_hparams hp;
    fg_status status = fg_weights_open_memory(bytes, size_bytes, &weights, err);
    if (status != FG_OK) {
        cr_assert_null(weights);
        cr_assert(err->text[0] != '\0' && strchr(err->text, '\n') == NULL, "%s", err->text);
        return status;
    }
    fg_hparams_read(weights, &hp, &(fg_error){ 0 });
    fg_weights_fingerprint(weights);
    for (uint64_t i = 0; i < fg_weights_tensor_count(weights); i++) {
        const fg_tensor *tensor = fg_weights_tensor(weights, i);
        uint32_t block = fg_dtype_block_count(tensor->type);
        uint64_t block_count = tensor->size_bytes / fg_dtype_block_bytes(tensor->type);
        const char *last =
            (const char *)tensor->data + tensor->size_bytes - fg_dtype_block_bytes(tensor->type);
        float values[256];
        cr_assert(block_count > 0);
        fg_dequant(tensor->type, tensor->data, values, block);
        fg_dequant(tensor->type, last, values, block);
    }
    fg_weights_close(weights);
    return FG_OK;
}

Test(weights, reads_metadata_of_every_type)
{
    void *bytes;
    size_t size_bytes;
    fg_weights *weights;
    fg_error err;
    fg_gguf_builder_destroy(small_model(&bytes, &size_bytes));
    cr_assert_eq(fg_weights_open_memory(bytes, size_bytes, &weights, &err), FG_OK, "%s", err.text);
    static const struct {
        const char *key;
        bool found;
        uint32_t value;
    } numbers[] = {
        { "t.u8", true, 200 },          { "t.u16", true, 65000 },
        { "t.i16", true, 1234 },        { "t.i32", true, 77 },
        { "t.u64", true, 4294967295u }, { "t.i64", true, 5 },
        { "t.i8", false, 0 },           { "t.u64.large", false, 0 },
        { "t.f64", false, 0 },          { "t.yes", false, 0 },
        { "t.text", false, 0 },         { "t.numbers", false, 0 },
        { "t.absent", false, 0 },       { "", false, 0 },
    };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        uint32_t value = 12345;
        cr_assert_eq(fg_weights_get_u32(weights, numbers[i].key, &value), numbers[i].found, "%s",
                     numbers[i].key);
        cr_assert_eq(value, numbers[i].found ? numbers[i].value : 12345u, "%s", numbers[i].key);
    }
    float real;
    bool flag;
    cr_assert(fg_weights_get_f32(weights, "t.f64", &real) && real == 0.5f);
    cr_assert(fg_weights_get_f32(weights, "llama.rope.freq_base", &real) && real == 10000.0f);
    cr_assert(!fg_weights_get_f32(weights, "t.u8", &real));
    cr_assert(fg_weights_get_bool(weights, "t.yes", &flag) && flag);
    cr_assert(!fg_weights_get_bool(weights, "t.u8", &flag));
    const char *text;
    size_t length;
    cr_assert(fg_weights_get_string(weights, "t.text", &text, &length));
    cr_assert(length == 5 && memcmp(text, "hello", 5) == 0);
    cr_assert(!fg_weights_get_string(weights, "t.words", &text, &length));
    fg_weights_close(weights);
    free(bytes);
}

Test(weights, reads_arrays_item_by_item)
{
    void *bytes;
    size_t size_bytes, length;
    fg_weights *weights;
    fg_error err;
    fg_meta_type type;
    uint64_t count;
    const char *text;
    int64_t whole;
    float real;
    fg_gguf_builder_destroy(small_model(&bytes, &size_bytes));
    cr_assert_eq(fg_weights_open_memory(bytes, size_bytes, &weights, &err), FG_OK, "%s", err.text);
    cr_assert(fg_weights_get_array(weights, "t.words", &type, &count));
    cr_assert(type == FG_META_STRING && count == 3);
    cr_assert(fg_weights_array_string(weights, "t.words", 2, &text, &length));
    cr_assert(length == 5 && memcmp(text, "three", 5) == 0);
    cr_assert(fg_weights_array_string(weights, "t.words", 1, &text, &length) && length == 0);
    cr_assert(!fg_weights_array_string(weights, "t.words", 3, &text, &length));
    cr_assert(!fg_weights_array_string(weights, "t.nothing", 0, &text, &length));
    cr_assert(!fg_weights_array_string(weights, "t.numbers", 0, &text, &length));
    cr_assert(fg_weights_array_i64(weights, "t.numbers", 1, &whole) && whole == -8);
    cr_assert(!fg_weights_array_i64(weights, "t.numbers", UINT64_MAX, &whole));
    cr_assert(!fg_weights_array_i64(weights, "t.words", 0, &whole));
    cr_assert(fg_weights_array_f32(weights, "t.floats", 1, &real) && real == -2.0f);
    cr_assert(!fg_weights_array_f32(weights, "t.numbers", 1, &real));
    cr_assert(!fg_weights_get_array(weights, "t.text", &type, &count));
    fg_weights_close(weights);
    free(bytes);
}

Test(weights, finds_tensors_by_name)
{
    size_t size_bytes;
    fg_weights *weights;
    fg_error err;
    void *bytes = fg_gguf_build_tiny_llama(&(fg_tiny_llama){ .layer_count = 40 }, &size_bytes);
    cr_assert_eq(fg_weights_open_memory(bytes, size_bytes, &weights, &err), FG_OK, "%s", err.text);
    cr_assert_eq(fg_weights_tensor_count(weights), 2 + 40 * 9);
    for (uint64_t i = 0; i < fg_weights_tensor_count(weights); i++) {
        const fg_tensor *tensor = fg_weights_tensor(weights, i);
        cr_assert_eq(fg_weights_find(weights, tensor->name), tensor);
    }
    cr_assert_null(fg_weights_find(weights, "blk.40.attn_q.weight"));
    cr_assert_null(fg_weights_find(weights, ""));
    const fg_tensor *q = fg_weights_find(weights, "blk.39.attn_k.weight");
    cr_assert(q->dims[0] == 64 && q->dims[1] == 32 && q->dims[2] == 1 && q->dim_count == 2);
    cr_assert_eq(q->size_bytes, 64 * 32 * 4);
    fg_weights_close(weights);
    free(bytes);
}

Test(weights, every_truncation_is_refused_without_reading_beyond)
{
    void *bytes;
    size_t size_bytes;
    fg_error err = { 0 };
    fg_gguf_builder_destroy(small_model(&bytes, &size_bytes));
    for (size_t cut = 0; cut <= size_bytes; cut++) {
        void *exact = malloc(cut == 0 ? 1 : cut);
        memcpy(exact, bytes, cut);
        fg_status status = try_bytes(exact, cut, &err);
        /* The last tensor ends with the file, so nothing can be missing. */
        cr_assert_eq(status, cut == size_bytes ? FG_OK : FG_BAD_INPUT, "cut at %zu: %s", cut,
                     err.text);
        free(exact);
    }
    free(bytes);
}

Test(weights, every_number_of_the_file_at_its_extremes_is_survived)
{
    static const uint64_t extremes[] = {
        0,
        1,
        2,
        3,
        4,
        5,
        6,
        8,
        9,
        12,
        13,
        16,
        31,
        32,
        33,
        63,
        64,
        65,
        255,
        256,
        65535,
        65536,
        1u << 20,
        0x7FFFFFFF,
        0x80000000,
        0xFFFFFFFE,
        0xFFFFFFFF,
        0x100000000,
        1ull << 40,
        1ull << 60,
        1ull << 61,
        1ull << 62,
        1ull << 63,
        INT64_MAX,
        UINT64_MAX - 31,
        UINT64_MAX - 7,
        UINT64_MAX - 1,
        UINT64_MAX,
    };
    void *bytes;
    size_t size_bytes, field_count;
    fg_error err = { 0 };
    fg_gguf_builder *builder = small_model(&bytes, &size_bytes);
    const fg_gguf_field *fields = fg_gguf_fields(builder, &field_count);
    uint32_t accepted = 0, refused = 0;
    for (size_t f = 0; f < field_count; f++) {
        unsigned char *at = (unsigned char *)bytes + fields[f].at;
        uint64_t original = 0;
        memcpy(&original, at, fields[f].size_bytes);
        for (size_t e = 0; e < sizeof extremes / sizeof extremes[0] + 2; e++) {
            uint64_t value = e < sizeof extremes / sizeof extremes[0] ? extremes[e]
                             : e % 2 == 0                             ? original - 1
                                                                      : original + 1;
            memcpy(at, &value, fields[f].size_bytes);
            fg_status status = try_bytes(bytes, size_bytes, &err);
            cr_assert(status == FG_OK || status == FG_BAD_INPUT, "%s = %llu: %s", fields[f].what,
                      (unsigned long long)value, err.text);
            accepted += status == FG_OK;
            refused += status != FG_OK;
        }
        memcpy(at, &original, fields[f].size_bytes);
    }
    cr_log_info("%zu fields: %u files accepted, %u refused", field_count, accepted, refused);
    cr_assert_eq(try_bytes(bytes, size_bytes, &err), FG_OK, "%s", err.text);
    fg_gguf_builder_destroy(builder);
    free(bytes);
}

/* Sets one number of the small model: the `nth` field (from 0) called `what`. */
static const struct {
    const char *name, *what;
    int nth;
    uint64_t value;
    const char *want; /* in the error line */
} field_cases[] = {
    { "old version", "version", 0, 2, "version 2" },
    { "big-endian", "version", 0, 0x03000000, "big-endian" },
    { "no tensor", "tensor count", 0, 0, NULL }, /* a vocabulary alone is a file, if no model */
    { "one tensor too many", "tensor count", 0, 12, "tensor" },
    { "tensors beyond the file", "tensor count", 0, UINT64_MAX, "too many" },
    { "tensors beyond memory", "tensor count", 0, 1ull << 60, "too many" },
    { "metadata beyond the file", "metadata count", 0, UINT64_MAX, "too many" },
    { "metadata into tensors", "metadata count", 0, 40, "metadata" },
    { "empty key", "key length", 0, 0, "not a name" },
    { "key beyond the file", "key length", 0, UINT64_MAX, "ends inside" },
    { "value of unknown type", "metadata type", 2, 13, "unknown type 13" },
    { "text beyond the file", "text length", 0, UINT64_MAX, "beyond" },
    { "strings beyond the file", "item count", 0, UINT64_MAX, "more than the file" },
    { "strings whose lengths overflow", "item count", 0, 1ull << 61, "more than the file" },
    { "numbers whose size overflows", "item count", 2, 1ull << 63, "more than the file" },
    { "a string beyond the file", "item length", 1, UINT64_MAX - 8, "beyond" },
    { "nested array", "item type", 0, 9, "array of arrays" },
    { "array of unknown type", "item type", 0, 99, "unknown type" },
    { "tensor without a name", "name length", 0, 0, "not a name" },
    { "tensor of no dimension", "dim count", 0, 0, "dimensions" },
    { "tensor of five dimensions", "dim count", 0, 5, "dimensions" },
    { "empty tensor", "dim", 0, 0, "impossible" },
    { "row of half a block", "dim", 0, 48, "whole q4_0 blocks" },
    { "size overflow", "dim", 1, 1ull << 60, "impossible" },
    { "tensor larger than the file", "dim", 1, 1u << 30, "beyond the end" },
    { "foreign type", "tensor type", 0, 10, "Q2_K" },
    { "unknown type", "tensor type", 0, 1000, "unknown (1000)" },
    { "offset off the grid", "tensor offset", 0, 8, "alignment" },
    { "offset beyond the file", "tensor offset", 0, 1ull << 40, "beyond the end" },
    { "offset overflow", "tensor offset", 0, UINT64_MAX - 31, "beyond the end" },
    { "overlap", "tensor offset", 1, 0, "overlap" },
};

Test(weights, a_wrong_number_is_refused_by_name)
{
    void *bytes;
    size_t size_bytes, field_count;
    fg_gguf_builder *builder = small_model(&bytes, &size_bytes);
    const fg_gguf_field *fields = fg_gguf_fields(builder, &field_count);
    for (size_t c = 0; c < sizeof field_cases / sizeof field_cases[0]; c++) {
        int left = field_cases[c].nth;
        size_t f = 0;
        while (f < field_count &&
               (strcmp(fields[f].what, field_cases[c].what) != 0 || left-- > 0)) {
            f++;
        }
        cr_assert(f < field_count, "%s", field_cases[c].name);
        unsigned char *copy = malloc(size_bytes);
        memcpy(copy, bytes, size_bytes);
        memcpy(copy + fields[f].at, &field_cases[c].value, fields[f].size_bytes);
        fg_error err = { 0 };
        fg_status status = try_bytes(copy, size_bytes, &err);
        cr_assert_eq(status, field_cases[c].want == NULL ? FG_OK : FG_BAD_INPUT, "%s: %s",
                     field_cases[c].name, err.text);
        cr_assert(field_cases[c].want == NULL || strstr(err.text, field_cases[c].want) != NULL,
                  "%s: got \"%s\"", field_cases[c].name, err.text);
        free(copy);
    }
    fg_gguf_builder_destroy(builder);
    free(bytes);
}

/* Each case adds something to the small model. */
typedef void (*spoil_fn)(fg_gguf_builder *builder);

static void spoil_key_twice(fg_gguf_builder *b)
{
    fg_gguf_add_u32(b, "general.name", 1);
}

static void spoil_tensor_twice(fg_gguf_builder *b)
{
    fg_gguf_add_tensor(b, "output_norm.weight", FG_F32, 1, &(uint64_t){ 4 }, NULL);
}

static void spoil_long_name(fg_gguf_builder *b)
{
    char name[66];
    memset(name, 'x', 65);
    name[65] = '\0';
    fg_gguf_add_tensor(b, name, FG_F32, 1, &(uint64_t){ 4 }, NULL);
}

static void spoil_strange_name(fg_gguf_builder *b)
{
    fg_gguf_add_tensor(b, "a\nb", FG_F32, 1, &(uint64_t){ 4 }, NULL);
}

static void spoil_bool(fg_gguf_builder *b)
{
    fg_gguf_add_value(b, "t.bool", FG_META_BOOL, &(unsigned char){ 2 }, 1);
}

static void spoil_split(fg_gguf_builder *b)
{
    fg_gguf_add_value(b, "split.count", FG_META_U16, &(uint16_t){ 2 }, 2);
}

static void spoil_alignment_odd(fg_gguf_builder *b)
{
    fg_gguf_add_u32(b, "general.alignment", 24);
}

static void spoil_alignment_zero(fg_gguf_builder *b)
{
    fg_gguf_add_u32(b, "general.alignment", 0);
}

static void spoil_alignment_huge(fg_gguf_builder *b)
{
    fg_gguf_add_u32(b, "general.alignment", 1u << 21);
}

static void spoil_alignment_text(fg_gguf_builder *b)
{
    fg_gguf_add_string(b, "general.alignment", "32");
}

static void allow_alignment(fg_gguf_builder *b)
{
    fg_gguf_add_u32(b, "general.alignment", 16);
}

static void allow_name_of_64(fg_gguf_builder *b)
{
    char name[65];
    memset(name, 'x', 64);
    name[64] = '\0';
    fg_gguf_add_tensor(b, name, FG_F32, 1, &(uint64_t){ 4 }, NULL);
}

static void allow_split_of_one(fg_gguf_builder *b)
{
    fg_gguf_add_value(b, "split.count", FG_META_U16, &(uint16_t){ 1 }, 2);
}

static const struct {
    const char *name;
    spoil_fn spoil;
    const char *want;
} addition_cases[] = {
    { "a key twice", spoil_key_twice, "'general.name' is there twice" },
    { "a tensor twice", spoil_tensor_twice, "'output_norm.weight' is there twice" },
    { "name of 65 bytes", spoil_long_name, "not a name" },
    { "name with a newline", spoil_strange_name, "not a name" },
    { "bool of 2", spoil_bool, "bool" },
    { "split model", spoil_split, "split into several files" },
    { "alignment 24", spoil_alignment_odd, "'general.alignment' is 24" },
    { "alignment 0", spoil_alignment_zero, "'general.alignment' is 0" },
    { "alignment 2 MiB", spoil_alignment_huge, "'general.alignment' is 2097152" },
    { "alignment as text", spoil_alignment_text, "not a number" },
    { "alignment 16", allow_alignment, NULL },
    { "name of 64 bytes", allow_name_of_64, NULL },
    { "one part", allow_split_of_one, NULL },
};

Test(weights, a_spoiled_file_is_refused_by_name)
{
    for (size_t c = 0; c < sizeof addition_cases / sizeof addition_cases[0]; c++) {
        void *bytes;
        size_t size_bytes;
        fg_error err = { 0 };
        fg_gguf_builder *builder = small_model(&bytes, &size_bytes);
        free(bytes);
        addition_cases[c].spoil(builder);
        bytes = fg_gguf_finish(builder, &size_bytes);
        fg_status status = try_bytes(bytes, size_bytes, &err);
        cr_assert_eq(status, addition_cases[c].want == NULL ? FG_OK : FG_BAD_INPUT, "%s: %s",
                     addition_cases[c].name, err.text);
        cr_assert(addition_cases[c].want == NULL ||
                      strstr(err.text, addition_cases[c].want) != NULL,
                  "%s: got \"%s\"", addition_cases[c].name, err.text);
        fg_gguf_builder_destroy(builder);
        free(bytes);
    }
}

static fg_digest128 fingerprint_of(const void *bytes, size_t size_bytes)
{
    fg_weights *weights;
    fg_error err;
    fg_status status = fg_weights_open_memory(bytes, size_bytes, &weights, &err);
    cr_assert_eq(status, FG_OK, "%s", err.text);
    fg_digest128 digest = fg_weights_fingerprint(weights);
    fg_weights_close(weights);
    return digest;
}

static bool same(fg_digest128 a, fg_digest128 b)
{
    return a.low == b.low && a.high == b.high;
}

Test(weights, fingerprint_follows_what_matters)
{
    void *bytes;
    size_t size_bytes, other_bytes;
    fg_gguf_builder *builder = small_model(&bytes, &size_bytes);
    fg_digest128 first = fingerprint_of(bytes, size_bytes);
    cr_assert(same(first, fingerprint_of(bytes, size_bytes)));
    /* The last byte belongs to a matrix. */
    ((unsigned char *)bytes)[size_bytes - 1] ^= 1;
    cr_assert(!same(first, fingerprint_of(bytes, size_bytes)), "a weight");
    ((unsigned char *)bytes)[size_bytes - 1] ^= 1;
    fg_gguf_add_string(builder, "general.author", "nobody");
    void *other = fg_gguf_finish(builder, &other_bytes);
    cr_assert(same(first, fingerprint_of(other, other_bytes)), "an author changes no answer");
    free(other);
    fg_gguf_add_u32(builder, "llama.extra", 1);
    other = fg_gguf_finish(builder, &other_bytes);
    cr_assert(!same(first, fingerprint_of(other, other_bytes)), "a parameter");
    free(other);
    free(bytes);
    fg_gguf_builder_destroy(builder);
}

/* Writes a file under the test's own name; removed by the caller. */
static void write_file(const char *path, const void *bytes, size_t size_bytes)
{
    FILE *file = fopen(path, "wb");
    cr_assert_not_null(file);
    cr_assert_eq(fwrite(bytes, 1, size_bytes, file), size_bytes);
    cr_assert_eq(fclose(file), 0);
}

Test(weights, opens_a_file_and_names_one_that_it_refuses)
{
    char path[] = "/tmp/forge-test-weights-XXXXXX";
    int fd = mkstemp(path);
    cr_assert(fd >= 0);
    close(fd);
    void *bytes;
    size_t size_bytes;
    fg_weights *weights = NULL;
    fg_error err;
    fg_gguf_builder_destroy(small_model(&bytes, &size_bytes));
    write_file(path, bytes, size_bytes);
    cr_assert_eq(fg_weights_open(path, &weights, &err), FG_OK, "%s", err.text);
    cr_assert_eq(fg_weights_size_bytes(weights), size_bytes);
    fg_digest128 digest = fg_weights_fingerprint(weights);
    cr_assert(same(digest, fingerprint_of(bytes, size_bytes)));
    fg_weights_close(weights);
    write_file(path, bytes, size_bytes / 2);
    cr_assert_eq(fg_weights_open(path, &weights, &err), FG_BAD_INPUT);
    cr_assert_not_null(strstr(err.text, path));
    write_file(path, "", 0);
    cr_assert_eq(fg_weights_open(path, &weights, &err), FG_BAD_INPUT);
    cr_assert_not_null(strstr(err.text, "empty"));
    write_file(path, "<html>", 6);
    cr_assert_eq(fg_weights_open(path, &weights, &err), FG_BAD_INPUT);
    cr_assert_not_null(strstr(err.text, "not a GGUF file"));
    unlink(path);
    cr_assert_eq(fg_weights_open(path, &weights, &err), FG_BAD_INPUT);
    cr_assert_not_null(strstr(err.text, "cannot open"));
    cr_assert_eq(fg_weights_open("/", &weights, &err), FG_BAD_INPUT);
    cr_assert_not_null(strstr(err.text, "config.json")); /* a folder, but of no model */
    cr_assert_eq(fg_weights_open("/dev/null", &weights, &err), FG_BAD_INPUT);
    cr_assert_not_null(strstr(err.text, "regular file"));
    free(bytes);
}

typedef struct memory_file {
    const void *bytes;
    size_t size_bytes;
} memory_file;

static bool open_once(void *ctx)
{
    memory_file *file = ctx;
    fg_weights *weights = NULL;
    fg_error err;
    fg_status status = fg_weights_open_memory(file->bytes, file->size_bytes, &weights, &err);
    cr_assert(status == FG_OK || (status == FG_AGAIN && weights == NULL));
    fg_weights_close(weights);
    return status == FG_OK;
}

Test(weights, open_survives_each_failed_allocation)
{
    void *bytes;
    memory_file file;
    fg_gguf_builder_destroy(small_model(&bytes, &file.size_bytes));
    file.bytes = bytes;
    cr_assert(fg_fault_each(open_once, &file) >= 8);
    free(bytes);
}

Test(weights, reads_the_corpus_models)
{
    const char *corpus = getenv("FORGE_CORPUS");
    if (corpus == NULL) {
        cr_skip("FORGE_CORPUS is not set");
    }
    static const struct {
        const char *file;
        uint32_t layer_count, embedding_length, vocab_size;
    } models[] = {
        { "stories260K-f32.gguf", 5, 64, 512 },
        { "llama-2-tiny-random.gguf", 1, 8, 32000 },
    };
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        char path[1024];
        fg_weights *weights;
        fg_hparams hp;
        fg_error err;
        snprintf(path, sizeof path, "%s/models/%s", corpus, models[i].file);
        cr_assert_eq(fg_weights_open(path, &weights, &err), FG_OK, "%s", err.text);
        cr_assert_eq(fg_hparams_read(weights, &hp, &err), FG_OK, "%s", err.text);
        cr_assert_eq(hp.layer_count, models[i].layer_count);
        cr_assert_eq(hp.embedding_length, models[i].embedding_length);
        cr_assert_eq(hp.vocab_size, models[i].vocab_size);
        fg_weights_close(weights);
    }
}
