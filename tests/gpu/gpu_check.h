/*
 * gpu_check - what the files of gpu_check share: one device at a time, memory on it, and how a case is told.
 */
#ifndef FORGE_TESTS_GPU_GPU_CHECK_H
#define FORGE_TESTS_GPU_GPU_CHECK_H

#include "kernels/ops.h"
#include "tests/unit/kernels/kernel_data.h"

typedef struct check {
    const char *device_name;
    const char *only;
    bool quick;
    fg_rng rng;
    uint32_t passed, failed;
    fg_device *device;
    fg_device_stream *stream;
} check;

enum { STEP_ROWS = 1024, CONTEXT = 4096, BLOCK = 16 };

/* Counts a case, and says what failed. */
void tell(check *c, bool good, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* For steps of such heads; ends the program when there is no device. */
void open_device(check *c, uint32_t heads, uint32_t kv_heads, uint32_t dim, uint32_t block_size);
void close_device(check *c);
void wait_for(check *c);

/* Device memory, filled from the host unless that is NULL. */
void *put(check *c, const void *host, size_t bytes);
void drop(check *c, void *memory);
void get(check *c, void *host, const void *memory, size_t bytes);
/* Fills what an operation is to write with NaN. */
void poison(check *c, float *memory, size_t count);

/* To bf16 and back. */
float brain(float x);
/* A matrix as floats: what the CPU's embedding reads. */
float *unpacked(const fg_matrix *matrix);

enum { TYPES = 11 };
extern const uint32_t types[TYPES];

/* Activations on the device. */
typedef struct rows_in {
    fg_activations a;
    float *host;
    uint32_t rows;
} rows_in;

size_t pair_words(uint32_t rows, uint32_t columns);
rows_in make_rows(check *c, uint32_t rows, uint32_t columns);
void drop_rows(check *c, rows_in *in);
/* The bf16 of a row and column in the order of products on the device, in which columns are filled up to a step of 16. */
float pair_value(const uint32_t *pairs, uint32_t row, uint32_t k, uint32_t columns);

void check_products(check *c);
void check_weights(check *c);
void check_highest(check *c);
void check_choose(check *c);
void check_attention(check *c);
void check_stores(check *c);

#endif
