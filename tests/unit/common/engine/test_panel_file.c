#include "common/engine/panel_file.h"

#include <stdlib.h>
#include <string.h>

#include "common/base/dtype.h"
#include "common/base/fault.h"
#include "kernels/panel.h"
#include "tests/support/gguf_builder.h"
#include "tests/support/test.h"

enum { SOURCES = 5 };

/* Matrices whose panels cross the edges of pieces, with a last panel that is not full, and one panel
 * larger than a page. */
static const struct {
    const char *name;
    uint32_t type, outputs, columns;
} shapes[SOURCES] = {
    { "a", FG_Q4_0, 1000, 2048 }, { "b", FG_Q8_0, 33, 32 },   { "c", FG_BF16, 2000, 1055 },
    { "d", FG_Q6_K, 15, 256 },    { "e", FG_Q4_K, 48, 4096 },
};

static void make_sources(fg_panel_source *sources)
{
    fg_rng rng = { .state = 5 };
    for (int i = 0; i < SOURCES; i++) {
        uint64_t count = (uint64_t)shapes[i].outputs * shapes[i].columns;
        void *rows = malloc(count / fg_dtype_block_count(shapes[i].type) *
                            fg_dtype_block_bytes(shapes[i].type));
        fg_gguf_fill_random(shapes[i].type, rows, count, 1, &rng);
        sources[i] = (fg_panel_source){ .name = shapes[i].name,
                                        .rows = { .data = rows,
                                                  .type = shapes[i].type,
                                                  .outputs = shapes[i].outputs,
                                                  .columns = shapes[i].columns } };
    }
}

static void free_sources(fg_panel_source *sources)
{
    for (int i = 0; i < SOURCES; i++) {
        free((void *)(uintptr_t)sources[i].rows.data);
    }
}

Test(panel_file, pieces_hold_what_packing_a_whole_matrix_gives)
{
    fg_panel_source sources[SOURCES];
    fg_panel_plan plan;
    fg_error err;
    make_sources(sources);
    cr_assert_eq(fg_panel_plan_init(&plan, sources, SOURCES, &err), FG_OK);
    cr_assert_gt(plan.piece_count, 2u);
    cr_assert_eq(plan.data_offset % FG_PIECE_BYTES, 0u);
    size_t bytes = (size_t)plan.piece_count * FG_PIECE_BYTES;
    uint8_t *data = aligned_alloc(4096, bytes);
    uint8_t *scratch = aligned_alloc(4096, (plan.scratch_bytes + 4095) / 4096 * 4096);
    memset(data, 0xAA, bytes);
    for (uint32_t i = plan.piece_count; i-- > 0;) {
        fg_panel_plan_fill(&plan, i, scratch, data + (size_t)i * FG_PIECE_BYTES);
    }
    for (int i = 0; i < SOURCES; i++) {
        uint32_t count = fg_panel_count(shapes[i].outputs);
        size_t size = count * fg_panel_bytes(shapes[i].type, shapes[i].columns);
        uint8_t *whole = aligned_alloc(64, size);
        fg_panel_pack(&sources[i].rows, 0, count, whole);
        cr_assert_eq(plan.offsets[i] % 64, 0u);
        cr_assert_eq(memcmp(data + plan.offsets[i], whole, size), 0, "matrix %s", shapes[i].name);
        uint64_t end = plan.offsets[i] + size;
        uint64_t next = i + 1 < SOURCES ? plan.offsets[i + 1] : plan.data_bytes;
        for (uint64_t at = end; at < next; at++) {
            cr_assert_eq(data[at], 0, "the gap behind matrix %s", shapes[i].name);
        }
        free(whole);
    }
    for (uint64_t at = plan.data_bytes; at < bytes; at++) {
        cr_assert_eq(data[at], 0xAA, "written behind the end");
    }
    free(scratch);
    free(data);
    fg_panel_plan_deinit(&plan);
    free_sources(sources);
}

/* A header with room for changes, of a plan whose matrices have no rows: headers read none. */
typedef struct header {
    fg_panel_source sources[SOURCES];
    fg_panel_plan plan;
    fg_panel_model model;
    uint64_t bytes[256];
} header;

static void make_header(header *h)
{
    uint64_t digests[16];
    fg_error err;
    for (int i = 0; i < SOURCES; i++) {
        h->sources[i] = (fg_panel_source){ .name = shapes[i].name,
                                           .rows = { .type = shapes[i].type,
                                                     .outputs = shapes[i].outputs,
                                                     .columns = shapes[i].columns } };
    }
    cr_assert_eq(fg_panel_plan_init(&h->plan, h->sources, SOURCES, &err), FG_OK);
    cr_assert(h->plan.header_bytes <= sizeof h->bytes && h->plan.piece_count <= 16);
    h->model = (fg_panel_model){ .size_bytes = 77,
                                 .modified_ns = 1234567890123,
                                 .fingerprint = { .low = 3, .high = 4 } };
    for (uint32_t i = 0; i < h->plan.piece_count; i++) {
        digests[i] = 1000 + i;
    }
    fg_panel_header_make(&h->plan, &h->model, digests, h->bytes);
}

static fg_status check(const header *h, size_t size_bytes, fg_error *err)
{
    const uint64_t *digests = NULL;
    fg_status status =
        fg_panel_header_check(&h->plan, &h->model, h->bytes, size_bytes, &digests, err);
    for (uint32_t i = 0; status == FG_OK && i < h->plan.piece_count; i++) {
        cr_assert_eq(digests[i], 1000 + i);
    }
    return status;
}

Test(panel_file, a_header_is_read_back)
{
    header h;
    fg_error err = { 0 };
    make_header(&h);
    cr_assert_eq(check(&h, h.plan.header_bytes, &err), FG_OK, "%s", err.text);
    fg_panel_plan_deinit(&h.plan);
}

Test(panel_file, no_byte_and_no_length_of_a_header_is_free)
{
    header h;
    fg_error err;
    make_header(&h);
    for (size_t i = 0; i < h.plan.header_bytes; i++) {
        ((uint8_t *)h.bytes)[i] ^= 0x10;
        cr_assert_eq(check(&h, h.plan.header_bytes, &err), FG_BAD_INPUT, "byte %zu", i);
        ((uint8_t *)h.bytes)[i] ^= 0x10;
        cr_assert_eq(check(&h, i, &err), FG_BAD_INPUT, "length %zu", i);
    }
    fg_panel_plan_deinit(&h.plan);
}

static void other_size(header *h)
{
    h->model.size_bytes++;
}
static void other_time(header *h)
{
    h->model.modified_ns++;
}
static void other_content(header *h)
{
    h->model.fingerprint.high++;
}
static void other_name(header *h)
{
    h->sources[2].name = "z";
}
static void other_type(header *h)
{
    h->sources[1].rows.type = FG_Q5_0;
}
static void other_outputs(header *h)
{
    h->sources[1].rows.outputs++; /* in the same panel: nothing moves */
}
static void other_format(header *h)
{
    ((uint32_t *)h->bytes)[2]++;
}
static void other_panels(header *h)
{
    ((uint32_t *)h->bytes)[3]++;
}
static void other_magic(header *h)
{
    memcpy(h->bytes, "GGUF", 4);
}

Test(panel_file, what_is_wrong_is_said)
{
    static const struct {
        const char *name;
        void (*change)(header *h);
        const char *want;
    } cases[] = {
        { "size", other_size, "another model" },
        { "time", other_time, "older than the model file" },
        { "content", other_content, "another model" },
        { "name", other_name, "other matrices (z)" },
        { "type", other_type, "other matrices" },
        { "outputs", other_outputs, "other matrices (b)" },
        { "format", other_format, "has format 2." },
        { "panels", other_panels, "has format 1." },
        { "magic", other_magic, "not a file of packed weights" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        header h;
        fg_error err = { 0 };
        make_header(&h);
        cases[i].change(&h);
        cr_assert_eq(check(&h, h.plan.header_bytes, &err), FG_BAD_INPUT, "%s", cases[i].name);
        cr_assert_not_null(strstr(err.text, cases[i].want), "%s: %s", cases[i].name, err.text);
        fg_panel_plan_deinit(&h.plan);
    }
}

static bool plan_again(void *ctx)
{
    fg_panel_plan plan;
    if (fg_panel_plan_init(&plan, ((header *)ctx)->sources, SOURCES, NULL) != FG_OK) {
        return false;
    }
    fg_panel_plan_deinit(&plan);
    return true;
}

Test(panel_file, every_allocation_may_fail)
{
    header h;
    make_header(&h);
    cr_assert_gt(fg_fault_each(plan_again, &h), 0);
    fg_panel_plan_deinit(&h.plan);
}
