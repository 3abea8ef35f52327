/*
 * kernel_data - seeded data for the kernel tests: floats, weight matrices of every type with sane
 * scales, devices of every kind that this machine has.
 */
#ifndef FORGE_TESTS_UNIT_KERNELS_KERNEL_DATA_H
#define FORGE_TESTS_UNIT_KERNELS_KERNEL_DATA_H

#include "common/base/rng.h"
#include "kernels/cpu/cpu.h"
#include "kernels/ops.h"

typedef struct test_device {
    fg_device *device;
    fg_device_stream *stream;
} test_device;

/* Every instruction set; plain is first, which the others are held against. */
enum { TEST_ISAS = 9 };
extern const char *const test_isas[TEST_ISAS];

/* False when this machine lacks the instruction set and the tests have no emulation of it. */
bool open_test_device(const char *isa, uint32_t threads, test_device *out);
void close_test_device(test_device *device);

static inline bool pairs_apart(const test_device *device)
{
    const fg_cpu_kernels *kernels = device->device->kernels;
    return kernels->product_pairs != kernels->pair_row;
}

float random_float(fg_rng *rng, float span); /* uniform in [-span, span] */
float *random_floats(fg_rng *rng, size_t count, float span);
/* Weights of about unit size; freed by fg_mem_free. */
void *random_matrix(fg_rng *rng, uint32_t type, uint32_t outputs, uint32_t columns,
                    fg_matrix *matrix_out);

/* The matrix in panels; freed by free_panels. */
fg_panels pack_panels(const fg_matrix *matrix);
void free_panels(fg_panels *panels);

/* Room for `rows` rows; the caller fills values. Freed by free_activations. */
fg_activations make_activations(uint32_t rows, uint32_t columns);
void free_activations(fg_activations *activations);
/* The tile that has the `index`-th group of all rows'. */
const fg_quant_tile *tile_of_group(const fg_activations *a, uint32_t index);
/* Quants and groups out of tiles: a group's offset as it is there, its sums anew. */
void quants_from_tiles(fg_activations *a, uint32_t rows);
/* The same where a device has made nothing but tiles of so many rows. */
void find_quants(const test_device *device, fg_activations *a, uint32_t rows);

/* The bf16 of column k in a row of pairs, which are columns 16 `apart` or neighbours (kernels/cpu/cpu.h,
 * product_pairs). */
static inline uint16_t paired_column(const uint32_t *pairs, bool apart, uint32_t k)
{
    uint32_t pair = apart ? pairs[k / 32 * 16 + k % 16] : pairs[k / 2];
    bool upper = apart ? k % 32 < 16 : k % 2 == 0;
    return (uint16_t)(upper ? pair >> 16 : pair);
}

#endif
