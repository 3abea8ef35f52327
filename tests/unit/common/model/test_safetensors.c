#include "common/model/safetensors.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/buf.h"
#include "common/base/fault.h"
#include "tests/support/test.h"

/* A file of this header, with so many bytes of data. */
static void make_file(fg_buf *out, const char *header, size_t data_bytes)
{
    const uint64_t length = strlen(header);
    fg_buf_init(out, 0);
    fg_buf_append(out, &length, sizeof length);
    fg_buf_puts(out, header);
    for (size_t i = 0; i < data_bytes; i++) {
        fg_buf_putc(out, (char)i);
    }
}

#define ONE(name, dtype, shape, from, to)                                                          \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" from "," to "]" \
    "}"

Test(safetensors, reads_a_table_in_the_order_of_its_data)
{
    fg_buf file;
    fg_safetensors *table = NULL;
    fg_error err;
    make_file(&file,
              "{\"__metadata__\":{\"format\":\"pt\"}," ONE("b", "BF16", "[2,3]", "4", "16") "," ONE(
                  "a", "F32", "[]", "0", "4") "," ONE("c", "U8", "[0]", "16", "16") "}   ",
              16);
    cr_assert_eq(fg_safetensors_parse(file.data, file.size, &table, &err), FG_OK, "%s", err.text);
    cr_assert_eq(fg_safetensors_count(table), 3);
    const fg_safetensor *a = fg_safetensors_at(table, 0), *b = fg_safetensors_at(table, 1);
    cr_assert_str_eq(a->name, "a");
    cr_assert_eq(a->dim_count, 0);
    cr_assert_eq(a->size_bytes, 4);
    cr_assert_str_eq(b->name, "b");
    cr_assert_str_eq(b->dtype, "BF16");
    cr_assert(b->dim_count == 2 && b->dims[0] == 2 && b->dims[1] == 3);
    cr_assert_eq(((const char *)b->data)[0], 4);
    cr_assert_eq(fg_safetensors_at(table, 2)->size_bytes, 0);
    fg_safetensors_close(table);
    fg_buf_deinit(&file);
}

Test(safetensors, refuses_what_is_not_as_the_format_says)
{
    static const struct {
        const char *header;
        size_t data_bytes;
        const char *text;
    } rows[] = {
        { " {}", 0, "does not begin with '{'" },
        { "", 0, "does not begin with '{'" },
        { "{", 0, "its header:" },
        { "{}x", 0, "its header:" },
        { "{" ONE("a", "U8", "[1]", "0", "1") "," ONE("a", "U8", "[1]", "1", "2") "}", 2,
          "duplicate" },
        { "{\"a\":1}", 0, "no dtype that is known" },
        { "{" ONE("", "U8", "[1]", "0", "1") "}", 1, "printable" },
        { "{" ONE("a b", "U8", "[1]", "0", "1") "}", 1, "printable" },
        { "{" ONE("a", "Q4", "[1]", "0", "1") "}", 1, "no dtype that is known" },
        { "{" ONE("a", "U8", "1", "0", "1") "}", 1, "not a list of sizes" },
        { "{" ONE("a", "U8", "[-1]", "0", "1") "}", 1, "not a list of sizes" },
        { "{" ONE("a", "U8", "[1.5]", "0", "1") "}", 1, "not a list of sizes" },
        { "{" ONE("a", "U8", "[1,1,1,1,1,1,1,1,1]", "0", "1") "}", 1, "not a list of sizes" },
        { "{" ONE("a", "F64", "[4294967296,4294967296]", "0", "1") "}", 1, "not a list of sizes" },
        { "{" ONE("a", "F4", "[3]", "0", "1") "}", 1, "values take 1" },
        { "{" ONE("a", "BF16", "[2]", "0", "3") "}", 3, "values take 4" },
        { "{" ONE("a", "U8", "[2]", "0", "2") "}", 1, "beyond the end of the file" },
        { "{" ONE("a", "U8", "[1]", "1", "0") "}", 1, "no range" },
        { "{" ONE("a", "U8", "[1]", "-1", "0") "}", 1, "no range" },
        { "{" ONE("a", "U8", "[1]", "0", "1e3") "}", 1, "no range" },
        { "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1,2]}}", 1, "no range" },
        { "{" ONE("a", "U8", "[2]", "0", "2") "," ONE("b", "U8", "[2]", "1", "3") "}", 3,
          "'a' and 'b' overlap" },
        { "{" ONE("a", "U8", "[1]", "0", "1") "," ONE("b", "U8", "[1]", "2", "3") "}", 3,
          "no tensor before 'b'" },
        { "{" ONE("a", "U8", "[1]", "1", "2") "}", 2, "no tensor before 'a'" },
        { "{" ONE("a", "U8", "[1]", "0", "1") "}", 2, "no tensor at its end" },
        { "{}", 1, "no tensor at its end" },
        { "{\"__metadata__\":{\"a\":1}}", 0, "no table of texts" },
        { "{\"__metadata__\":[]}", 0, "no table of texts" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        fg_buf file;
        fg_safetensors *table = NULL;
        fg_error err = { .status = FG_OK };
        make_file(&file, rows[i].header, rows[i].data_bytes);
        cr_assert_eq(fg_safetensors_parse(file.data, file.size, &table, &err), FG_BAD_INPUT,
                     "row %zu", i);
        cr_assert(strstr(err.text, rows[i].text) != NULL, "row %zu: %s", i, err.text);
        cr_assert_null(table);
        fg_buf_deinit(&file);
    }
}

Test(safetensors, refuses_lengths_that_cannot_be)
{
    static const struct {
        uint64_t length;
        size_t size_bytes;
        const char *text;
    } rows[] = {
        { 0, 0, "too short" },        { 2, 7, "too short" },       { 3, 10, "ends inside" },
        { UINT64_MAX, 10, "claims" }, { 100000001, 10, "claims" }, { 100000000, 10, "ends inside" },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        unsigned char bytes[10] = { 0 };
        fg_safetensors *table = NULL;
        fg_error err;
        memcpy(bytes, &rows[i].length, sizeof rows[i].length);
        memcpy(bytes + 8, "{}", 2);
        cr_assert_eq(fg_safetensors_parse(bytes, rows[i].size_bytes, &table, &err), FG_BAD_INPUT);
        cr_assert(strstr(err.text, rows[i].text) != NULL, "row %zu: %s", i, err.text);
    }
}

static bool parse_once(void *ctx)
{
    const fg_buf *file = ctx;
    fg_safetensors *table = NULL;
    fg_error err;
    fg_status status = fg_safetensors_parse(file->data, file->size, &table, &err);
    cr_assert(status == FG_OK || status == FG_AGAIN, "%s", err.text);
    fg_safetensors_close(table);
    return status == FG_OK;
}

Test(safetensors, survives_each_failed_allocation)
{
    fg_buf file;
    make_file(&file, "{" ONE("a", "U8", "[1]", "0", "1") "," ONE("b", "U8", "[1]", "1", "2") "}",
              2);
    cr_assert_gt(fg_fault_each(parse_once, &file), 8);
    fg_buf_deinit(&file);
}
