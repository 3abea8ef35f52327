#include <math.h>
#include <string.h>

#include "common/base/dtype.h"
#include "common/base/mem.h"
#include "tests/support/test.h"
#include "tests/unit/kernels/kernel_data.h"

/* What products take a bf16 weight for. */
static uint16_t taken(uint16_t brain)
{
    float value = fg_bf16_to_f32(brain);
    return fabsf(value) < 0x1p-50f ? 0 : brain;
}

static uint16_t bf16_at(const fg_matrix *matrix, uint32_t output, uint32_t column)
{
    if (output >= matrix->outputs || column >= matrix->columns) {
        return 0;
    }
    return taken(((const uint16_t *)matrix->data)[(size_t)output * matrix->columns + column]);
}

/* Every bit pattern of a bf16: subnormals, infinities and NaN as well. */
Test(panel, bf16_columns_lie_in_pairs_and_have_no_tiny_values)
{
    static const struct {
        uint32_t outputs, columns;
    } shapes[] = { { 1, 1 }, { 16, 2 }, { 17, 3 }, { 5, 33 }, { 300, 255 }, { 256, 256 } };
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
        uint32_t outputs = shapes[s].outputs;
        uint32_t columns = shapes[s].columns;
        uint16_t *rows = fg_mem_array((size_t)outputs * columns, sizeof *rows);
        for (uint32_t i = 0; i < outputs * columns; i++) {
            rows[i] = (uint16_t)(i * 257 + s);
        }
        fg_matrix matrix = {
            .data = rows, .type = FG_BF16, .outputs = outputs, .columns = columns
        };
        fg_panels panels = pack_panels(&matrix);
        size_t panel_words = fg_panel_bytes(FG_BF16, columns) / sizeof(uint32_t);
        cr_assert_eq(panel_words, (columns + 1) / 2 * 16);
        for (uint32_t o = 0; o < fg_panel_count(outputs) * FG_PANEL_OUTPUTS; o++) {
            const uint32_t *panel = (const uint32_t *)panels.data + o / 16 * panel_words;
            for (uint32_t k = 0; k < columns; k += 2) {
                uint32_t want = (uint32_t)bf16_at(&matrix, o, k) << 16 | bf16_at(&matrix, o, k + 1);
                cr_assert_eq(panel[k / 2 * 16 + o % 16], want, "%u x %u: output %u, column %u",
                             outputs, columns, o, k);
            }
        }
        free_panels(&panels);
        fg_mem_free(rows);
    }
}
