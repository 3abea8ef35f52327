#include "common/engine/panel_file.h"

#include <string.h>

#include "common/base/dtype.h"
#include "common/base/mem.h"
#include "kernels/panel.h"

/* Counts up with every change of what is written here; FG_PANEL_FORMAT does so inside a panel. */
enum { FILE_FORMAT = 1 };
/* Matrices begin at two cache lines, which the hardware fetches together. */
enum { SOURCE_ALIGN = 128 };

static const char file_magic[8] = { 'F', 'G', 'P', 'A', 'N', 'E', 'L', 'S' };

typedef struct file_fixed {
    char magic[8];
    uint32_t file_format;
    uint32_t panel_format;
    uint64_t model_bytes;
    int64_t model_modified_ns;
    uint64_t fingerprint[2];
    uint64_t data_offset;
    uint64_t data_bytes;
    uint64_t header_bytes;
    uint32_t source_count;
    uint32_t piece_count;
} file_fixed;

typedef struct file_entry {
    uint64_t name_hash;
    uint32_t type;
    uint32_t outputs;
    uint32_t columns;
    uint32_t zero;
    uint64_t offset;
} file_entry;

/* Written as they are: no hole may hold what was in memory before. */
_Static_assert(sizeof(file_fixed) == 80 && sizeof(file_entry) == 32, "padding in a file");

static uint64_t round_up(uint64_t value, uint64_t unit)
{
    return (value + unit - 1) / unit * unit;
}

static size_t row_bytes(const fg_matrix *rows)
{
    return (size_t)(rows->columns / fg_dtype_block_count(rows->type)) *
           fg_dtype_block_bytes(rows->type);
}

void fg_panel_source_cut(fg_panel_source *source, uint32_t first, uint32_t count)
{
    if (source->scattered != NULL) {
        source->first += first;
    } else {
        source->rows.data = (const uint8_t *)source->rows.data + first * row_bytes(&source->rows);
    }
    source->rows.outputs = count;
}

static uint64_t source_bytes(const fg_panel_source *source)
{
    return (uint64_t)fg_panel_count(source->rows.outputs) *
           fg_panel_bytes(source->rows.type, source->rows.columns);
}

fg_status fg_panel_plan_init(fg_panel_plan *plan, const fg_panel_source *sources, uint32_t count,
                             fg_error *err)
{
    uint64_t *offsets = fg_mem_array(count, sizeof *offsets);
    if (offsets == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for the table of %u matrices", count);
    }
    *plan = (fg_panel_plan){ .sources = sources, .source_count = count, .offsets = offsets };
    uint64_t at = 0;
    for (uint32_t i = 0; i < count; i++) {
        size_t panel_bytes = fg_panel_bytes(sources[i].rows.type, sources[i].rows.columns);
        size_t rows_bytes =
            sources[i].scattered == NULL ? 0 : FG_PANEL_OUTPUTS * row_bytes(&sources[i].rows);
        plan->scratch_bytes = panel_bytes + rows_bytes > plan->scratch_bytes
                                  ? panel_bytes + rows_bytes
                                  : plan->scratch_bytes;
        at = round_up(at, SOURCE_ALIGN);
        offsets[i] = at;
        /* Packed panels are hardly larger than the rows, which are in a file: no overflow. */
        at += source_bytes(&sources[i]);
    }
    plan->data_bytes = at;
    plan->piece_count = (uint32_t)(round_up(at, FG_PIECE_BYTES) / FG_PIECE_BYTES);
    plan->header_bytes = sizeof(file_fixed) + count * sizeof(file_entry) +
                         ((size_t)plan->piece_count + 1) * sizeof(uint64_t);
    plan->data_offset = round_up(plan->header_bytes, FG_PIECE_BYTES);
    return FG_OK;
}

void fg_panel_plan_deinit(fg_panel_plan *plan)
{
    fg_mem_free(plan->offsets);
    plan->offsets = NULL;
}

size_t fg_panel_piece_bytes(const fg_panel_plan *plan, uint32_t piece)
{
    FG_ASSERT(piece < plan->piece_count);
    uint64_t left = plan->data_bytes - (uint64_t)piece * FG_PIECE_BYTES;
    return left < FG_PIECE_BYTES ? (size_t)left : FG_PIECE_BYTES;
}

/* Packs panels of the source; `scratch` has room for the rows of one. */
static void pack(const fg_panel_source *source, uint32_t panel, uint32_t count, uint8_t *scratch,
                 uint8_t *out)
{
    if (source->scattered == NULL) {
        fg_panel_pack(&source->rows, panel, count, out);
        return;
    }
    size_t panel_bytes = fg_panel_bytes(source->rows.type, source->rows.columns);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t first = (panel + i) * FG_PANEL_OUTPUTS, left = source->rows.outputs - first;
        fg_matrix rows = source->rows;
        rows.data = scratch;
        rows.outputs = left < FG_PANEL_OUTPUTS ? left : FG_PANEL_OUTPUTS;
        fg_tensor_copy_rows(source->scattered, source->first + first, rows.outputs, scratch);
        fg_panel_pack(&rows, 0, 1, out + i * panel_bytes);
    }
}

/* The part of one source that lies between `begin` and `end` of the data, put at `out`, where `begin`
 * goes. Panels that reach over an edge are packed aside, by both pieces. */
static void fill_source(const fg_panel_source *source, uint64_t offset, uint64_t begin,
                        uint64_t end, uint8_t *scratch, uint8_t *out)
{
    size_t panel_bytes = fg_panel_bytes(source->rows.type, source->rows.columns);
    uint32_t panel_count = fg_panel_count(source->rows.outputs);
    uint32_t panel = begin <= offset ? 0 : (uint32_t)((begin - offset) / panel_bytes);
    while (panel < panel_count && offset + (uint64_t)panel * panel_bytes < end) {
        uint64_t at = offset + (uint64_t)panel * panel_bytes;
        if (at >= begin && at + panel_bytes <= end) {
            uint64_t whole = (end - at) / panel_bytes;
            uint32_t run = whole < panel_count - panel ? (uint32_t)whole : panel_count - panel;
            pack(source, panel, run, scratch + panel_bytes, out + (at - begin));
            panel += run;
            continue;
        }
        pack(source, panel, 1, scratch + panel_bytes, scratch);
        uint64_t from = at < begin ? begin : at;
        uint64_t to = at + panel_bytes < end ? at + panel_bytes : end;
        memcpy(out + (from - begin), scratch + (from - at), to - from);
        panel++;
    }
}

void fg_panel_plan_fill(const fg_panel_plan *plan, uint32_t piece, void *scratch, void *out)
{
    uint64_t begin = (uint64_t)piece * FG_PIECE_BYTES;
    uint64_t end = begin + fg_panel_piece_bytes(plan, piece);
    uint64_t written = begin;
    for (uint32_t i = 0; i < plan->source_count && plan->offsets[i] < end; i++) {
        uint64_t offset = plan->offsets[i];
        uint64_t stop = offset + source_bytes(&plan->sources[i]);
        if (stop <= begin) {
            continue;
        }
        if (offset > written) {
            memset((uint8_t *)out + (written - begin), 0, offset - written); /* alignment */
        }
        fill_source(&plan->sources[i], offset, begin, end, scratch, out);
        written = stop;
    }
    if (written < end) {
        memset((uint8_t *)out + (written - begin), 0, end - written);
    }
}

static file_fixed fixed_of(const fg_panel_plan *plan, const fg_panel_model *model)
{
    file_fixed fixed = { .file_format = FILE_FORMAT,
                         .panel_format = FG_PANEL_FORMAT,
                         .model_bytes = model->size_bytes,
                         .model_modified_ns = model->modified_ns,
                         .fingerprint = { model->fingerprint.low, model->fingerprint.high },
                         .data_offset = plan->data_offset,
                         .data_bytes = plan->data_bytes,
                         .header_bytes = plan->header_bytes,
                         .source_count = plan->source_count,
                         .piece_count = plan->piece_count };
    memcpy(fixed.magic, file_magic, sizeof fixed.magic);
    return fixed;
}

static file_entry entry_of(const fg_panel_plan *plan, uint32_t index)
{
    const fg_panel_source *source = &plan->sources[index];
    return (file_entry){ .name_hash = fg_hash64(source->name, strlen(source->name), 0),
                         .type = source->rows.type,
                         .outputs = source->rows.outputs,
                         .columns = source->rows.columns,
                         .offset = plan->offsets[index] };
}

void fg_panel_header_make(const fg_panel_plan *plan, const fg_panel_model *model,
                          const uint64_t *digests, void *out)
{
    uint8_t *at = out;
    file_fixed fixed = fixed_of(plan, model);
    memcpy(at, &fixed, sizeof fixed);
    at += sizeof fixed;
    for (uint32_t i = 0; i < plan->source_count; i++) {
        file_entry entry = entry_of(plan, i);
        memcpy(at, &entry, sizeof entry);
        at += sizeof entry;
    }
    memcpy(at, digests, plan->piece_count * sizeof *digests);
    at += plan->piece_count * sizeof *digests;
    uint64_t digest = fg_hash64(out, (size_t)(at - (uint8_t *)out), 0);
    memcpy(at, &digest, sizeof digest);
}

static fg_status check_fixed(const file_fixed *found, const file_fixed *wanted, fg_error *err)
{
    if (memcmp(found->magic, wanted->magic, sizeof found->magic) != 0) {
        return fg_fail(err, FG_BAD_INPUT, "is not a file of packed weights");
    }
    if (found->file_format != wanted->file_format || found->panel_format != wanted->panel_format) {
        return fg_fail(err, FG_BAD_INPUT, "has format %u.%u, this forge reads %u.%u",
                       found->file_format, found->panel_format, wanted->file_format,
                       wanted->panel_format);
    }
    if (memcmp(found->fingerprint, wanted->fingerprint, sizeof found->fingerprint) != 0 ||
        found->model_bytes != wanted->model_bytes) {
        return fg_fail(err, FG_BAD_INPUT, "belongs to another model");
    }
    if (found->model_modified_ns != wanted->model_modified_ns) {
        return fg_fail(err, FG_BAD_INPUT, "is older than the model file's last change");
    }
    return FG_OK;
}

fg_status fg_panel_header_check(const fg_panel_plan *plan, const fg_panel_model *model,
                                const void *bytes, size_t size_bytes, const uint64_t **digests_out,
                                fg_error *err)
{
    file_fixed wanted = fixed_of(plan, model);
    if (size_bytes < sizeof wanted) {
        return fg_fail(err, FG_BAD_INPUT, "is truncated");
    }
    fg_status status = check_fixed(bytes, &wanted, err);
    if (status != FG_OK) {
        return status;
    }
    if (size_bytes < plan->header_bytes) {
        return fg_fail(err, FG_BAD_INPUT, "is truncated");
    }
    const uint8_t *at = bytes;
    uint64_t digest;
    memcpy(&digest, at + plan->header_bytes - sizeof digest, sizeof digest);
    if (fg_hash64(bytes, plan->header_bytes - sizeof digest, 0) != digest) {
        return fg_fail(err, FG_BAD_INPUT, "is damaged (its header)");
    }
    if (memcmp(bytes, &wanted, sizeof wanted) != 0) {
        return fg_fail(err, FG_BAD_INPUT, "holds other matrices");
    }
    at += sizeof wanted;
    for (uint32_t i = 0; i < plan->source_count; i++) {
        file_entry entry = entry_of(plan, i);
        if (memcmp(at, &entry, sizeof entry) != 0) {
            return fg_fail(err, FG_BAD_INPUT, "holds other matrices (%s)", plan->sources[i].name);
        }
        at += sizeof entry;
    }
    *digests_out = (const uint64_t *)(const void *)at;
    return FG_OK;
}
