/*
 * Attention over an int8 cache with AMX, for heads of a multiple of 64: the products of strip.c as tiles, exact
 * as ever. K lies in the cache as a tile wants it, a piece of 64 dimensions is one; so does V, 64 slots of 16
 * dimensions. Everything else, and tiles of few (row, head)s, are AVX-512's.
 */
#include <string.h>

#include "kernels/cpu/amx_strip.h"
#include "kernels/cpu/avx512_attend.h"
#include "kernels/cpu/avx512_attend_bf16.h"

enum {
    STRIP_ROWS = FG_STRIP_MAX,
    FEW = FG_STRIP_DIRECT * STRIP_ROWS, /* (row, head)s that read no copy */
};

static void amx_scores(const fg_strip *s, uint32_t begin, uint32_t end)
{
    fg_amx_scores(FG_AMX_KEYS_I8, s, begin, end, s->args->kv->head_dim / FG_AMX_ROW_BYTES);
}

enum { BEYOND_MAX = FG_AMX_ROW_BYTES - FG_KV_PIECE };
_Static_assert((FG_ATTEND_CHUNK + BEYOND_MAX) * FG_ATTEND_COPY_DIMS <= FG_ATTEND_COPY,
               "tiles read beyond a copy's values");
_Static_assert(FG_ATTEND_CHUNK + BEYOND_MAX <= FG_ATTEND_SCORES * 4, "weights go beyond a row's");

/* The last 64 slots may go beyond those that have weights, into what lies behind a copy: it weighs nothing. */
static void end_weights(const fg_strip *s, fg_cpu_slots slots)
{
    uint32_t beyond = -(slots.end - slots.begin) % FG_AMX_ROW_BYTES;
    for (uint32_t m = 0; m < s->count; m++) {
        memset((uint8_t *)(s->scores + (size_t)m * FG_ATTEND_SCORES) + slots.end, 0, beyond);
    }
}

static void amx_values(const fg_strip *s, uint32_t begin, uint32_t end)
{
    fg_cpu_slots slots = fg_strip_seen_slots(s, begin, end);
    if (slots.begin >= slots.end) {
        return;
    }
    end_weights(s, slots);
    fg_amx_add_values(FG_AMX_VALUES_I8, s, s->scores + slots.begin / 4,
                      fg_strip_values(s, slots.begin / FG_KV_PIECE),
                      (slots.end - slots.begin + FG_AMX_ROW_BYTES - 1) / FG_AMX_ROW_BYTES);
}

static const fg_strip_products *products_of(uint32_t dtype)
{
    (void)dtype;
    static const fg_strip_products products[] = FG_AMX_PRODUCTS(amx_scores, amx_values);
    return products;
}

static void weigh(uint32_t dtype, const fg_strip_rows *rows, uint32_t begin, uint32_t end)
{
    if (dtype == FG_BF16) {
        fg_cpu_avx512_weigh_words(rows, begin, end);
    } else {
        fg_cpu_avx512_strip.weigh(dtype, rows, begin, end);
    }
}

void fg_cpu_amx_attend(const fg_cpu_attend *args)
{
    const fg_paged_kv *kv = args->kv;
    bool tiles = kv->head_dim % FG_AMX_ROW_BYTES == 0 && args->row_count * args->head_count > FEW;
    if (tiles && kv->dtype == FG_BF16) {
        fg_cpu_amx_attend_bf16(args);
        return;
    }
    if (kv->head_dim % FG_AVX512_LANES != 0) {
        fg_cpu_avx512_attend(args);
        return;
    }
    fg_strip_kernels kernels = fg_cpu_avx512_strip;
    if (!tiles || kv->dtype != FG_I8) {
        /* The processors that have tiles widen bf16 quicker than they multiply it. */
        kernels.weigh = weigh;
        fg_strip_attend(&kernels, args);
        return;
    }
    kernels.strip_max = STRIP_ROWS;
    kernels.begins = false;
    kernels.set_rows = fg_amx_set_strip_rows;
    kernels.products = products_of;
    fg_strip_attend(&kernels, args);
}
