#include "tests/unit/kernels/kernel_data.h"

#include <string.h>

#include "common/base/dtype.h"
#include "common/base/mem.h"
#include "kernels/cpu/cpu.h"

#define EMULATED " emulated"

const char *const test_isas[TEST_ISAS] = { "plain",
                                           "avx2",
                                           "avx_vnni",
                                           "avx512",
                                           "avx512_bf16",
                                           "amx",
                                           "neon",
                                           "avx512" EMULATED,
                                           "avx512_bf16" EMULATED };

#if defined(FG_EMULATED_AVX512)
void fg_emulated_avx_vnni_linear(const fg_linear *linear, const fg_activations *in, uint32_t rows,
                                 uint32_t first, uint32_t count);
extern const fg_cpu_kernels fg_emulated_avx512;
extern const fg_cpu_kernels fg_emulated_avx512_bf16;
extern const fg_cpu_kernels fg_emulated_amx;
#endif

#if defined(FG_EMULATED_AVX512)
/* All but the products of bytes is AVX2's. */
static const fg_cpu_kernels *emulated_avx_vnni(void)
{
    static fg_cpu_kernels table;
    table = fg_cpu_avx2;
    table.name = "avx_vnni";
    table.linear = fg_emulated_avx_vnni_linear;
    return &table;
}
#endif

/* A device whose kernels are emulated, which needs AVX2. */
static bool open_emulated(const char *isa, uint32_t threads, test_device *out)
{
#if defined(FG_EMULATED_AVX512)
    fg_device_options options = { .kind = "cpu", .isa = "avx2", .thread_count = threads };
    const fg_cpu_kernels *const tables[] = { emulated_avx_vnni(), &fg_emulated_avx512,
                                             &fg_emulated_avx512_bf16, &fg_emulated_amx };
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        if (strncmp(isa, tables[i]->name, strcspn(isa, " ")) == 0 &&
            tables[i]->name[strcspn(isa, " ")] == '\0') {
            bool opened = fg_device_open(&options, &out->device, NULL) == FG_OK;
            if (opened) {
                out->device->kernels = tables[i];
            }
            return opened;
        }
    }
#endif
    return false;
}

/* Kernels choose by the processor's maker, emulated ones the opposite: so both are met where a processor has the
 * instructions, too. Where it has not, their own name has brought them already. */
static bool open_opposite(const char *isa, uint32_t threads, test_device *out)
{
    char name[16] = "";
    strncpy(name, isa, strcspn(isa, " "));
    fg_device_options options = { .kind = "cpu", .isa = name, .thread_count = 1 };
    fg_device *native;
    if (fg_device_open(&options, &native, NULL) != FG_OK) {
        return false;
    }
    fg_device_close(native);
    return open_emulated(isa, threads, out);
}

bool open_test_device(const char *isa, uint32_t threads, test_device *out)
{
    fg_device_options options = { .kind = "cpu", .isa = isa, .thread_count = threads };
    if (strchr(isa, ' ') != NULL) {
        if (!open_opposite(isa, threads, out)) {
            return false;
        }
    } else if (fg_device_open(&options, &out->device, NULL) != FG_OK &&
               !open_emulated(isa, threads, out)) {
        return false;
    }
    FG_ASSERT(fg_device_stream_open(out->device, &out->stream, NULL) == FG_OK, "stream");
    return true;
}

void close_test_device(test_device *device)
{
    fg_device_stream_close(device->stream);
    fg_device_close(device->device);
}

float random_float(fg_rng *rng, float span)
{
    float unit = (float)(fg_rng_next(rng) >> 40) * 0x1p-23f - 1.0f;
    return unit * span;
}

float *random_floats(fg_rng *rng, size_t count, float span)
{
    float *values = fg_mem_array(count, sizeof *values);
    for (size_t i = 0; i < count; i++) {
        values[i] = random_float(rng, span);
    }
    return values;
}

static void put_half(uint8_t *bytes, float value)
{
    uint16_t half = fg_f16_from_f32(value);
    memcpy(bytes, &half, sizeof half);
}

static void random_element(fg_rng *rng, uint32_t type, uint8_t *bytes)
{
    float value = random_float(rng, 1.0f);
    uint32_t bits = fg_f32_bits(value);
    if (type == FG_F32) {
        memcpy(bytes, &bits, sizeof bits);
    } else if (type == FG_F16) {
        put_half(bytes, value);
    } else {
        bits >>= 16;
        memcpy(bytes, &bits, 2);
    }
}

/* All bits random except the scales, which would be NaN or huge. */
static void random_block(fg_rng *rng, uint32_t type, uint8_t *block)
{
    uint32_t block_bytes = fg_dtype_block_bytes(type);
    if (fg_dtype_block_count(type) == 1) {
        random_element(rng, type, block);
        return;
    }
    for (uint32_t i = 0; i < block_bytes; i++) {
        block[i] = (uint8_t)fg_rng_next(rng);
    }
    float scale = 0.002f + 0.02f * (float)fg_rng_below(rng, 100) * 0.01f;
    if (type == FG_Q6_K) {
        put_half(block + 208, scale * 0.01f);
        return;
    }
    bool super = type == FG_Q4_K || type == FG_Q5_K;
    put_half(block, super ? scale * 0.1f : scale);
    if (super || type == FG_Q4_1 || type == FG_Q5_1) {
        put_half(block + 2, super ? scale * 0.1f : -8.0f * scale);
    }
}

void *random_matrix(fg_rng *rng, uint32_t type, uint32_t outputs, uint32_t columns,
                    fg_matrix *matrix_out)
{
    size_t blocks = (size_t)outputs * (columns / fg_dtype_block_count(type));
    uint8_t *data = fg_mem_array(blocks, fg_dtype_block_bytes(type));
    for (size_t i = 0; i < blocks; i++) {
        random_block(rng, type, data + i * fg_dtype_block_bytes(type));
    }
    *matrix_out = (fg_matrix){ .data = data, .type = type, .outputs = outputs, .columns = columns };
    return data;
}

static size_t panels_bytes(const fg_panels *panels)
{
    return fg_panel_count(panels->outputs) * fg_panel_bytes(panels->type, panels->columns);
}

fg_panels pack_panels(const fg_matrix *matrix)
{
    fg_panels panels = { .type = matrix->type,
                         .outputs = matrix->outputs,
                         .columns = matrix->columns };
    void *data = fg_mem_map(panels_bytes(&panels));
    FG_ASSERT(data != NULL, "panels");
    fg_panel_pack(matrix, 0, fg_panel_count(matrix->outputs), data);
    panels.data = data;
    return panels;
}

void free_panels(fg_panels *panels)
{
    fg_mem_unmap((void *)(uintptr_t)panels->data, panels_bytes(panels));
}

fg_activations make_activations(uint32_t rows, uint32_t columns)
{
    return (fg_activations){
        .values = fg_mem_array((size_t)rows * columns, sizeof(float)),
        .quants = fg_mem_array((size_t)rows * columns, 1),
        .groups =
            fg_mem_array((size_t)rows * (columns / FG_QUANT_GROUP) + 1, sizeof(fg_quant_group)),
        .supers =
            fg_mem_array((size_t)rows * (columns / FG_QUANT_SUPER) + 1, sizeof(fg_quant_super)),
        .pairs = fg_mem_array((size_t)rows * fg_pair_stride(columns), sizeof(uint32_t)),
        .quant_tiles = fg_mem_array(fg_quant_tile_count(rows, columns) + 1, sizeof(fg_quant_tile)),
        .columns = columns,
    };
}

const fg_quant_tile *tile_of_group(const fg_activations *a, uint32_t index)
{
    uint32_t group_count = a->columns / FG_QUANT_GROUP;
    uint32_t row = index / group_count;
    return &a->quant_tiles[row / FG_TILE_ROWS * group_count + index % group_count];
}

void quants_from_tiles(fg_activations *a, uint32_t rows)
{
    uint32_t group_count = a->columns / FG_QUANT_GROUP;
    for (uint32_t i = 0; i < rows * group_count; i++) {
        uint32_t row = i / group_count;
        uint32_t place = row % FG_TILE_ROWS;
        const fg_quant_tile *tile = tile_of_group(a, i);
        int8_t *quants = a->quants + (size_t)i * FG_QUANT_GROUP;
        memcpy(quants, tile->quants[place], FG_QUANT_GROUP);
        int32_t sums[2] = { 0, 0 };
        for (uint32_t k = 0; k < FG_QUANT_GROUP; k++) {
            sums[k / 16] += quants[k];
        }
        size_t half = place / FG_TILE_HALF, at = place % FG_TILE_HALF;
        a->groups[i] = fg_cpu_quant_group(tile->halves[half].scales[at], sums[0], sums[1]);
        a->groups[i].offset = tile->halves[half].offsets[at];
    }
}

void find_quants(const test_device *device, fg_activations *a, uint32_t rows)
{
    if (fg_cpu_tiles_alone(device->device->kernels, a, rows)) {
        quants_from_tiles(a, rows);
    }
}

void free_activations(fg_activations *activations)
{
    fg_mem_free(activations->values);
    fg_mem_free(activations->quants);
    fg_mem_free(activations->groups);
    fg_mem_free(activations->supers);
    fg_mem_free(activations->pairs);
    fg_mem_free(activations->quant_tiles);
}
