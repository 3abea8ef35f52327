/*
 * Products of more rows with quantised weights on Hopper, as wide.cuh says: a unit (quant.cuh) is a stage of a strip. It
 * comes into shared memory as it lies in memory; a warp makes bf16 of its codes in registers, two steps at a time, while
 * the products of the two before run. That is done anew for each tile of rows: with very many rows weights that
 * expand.cu has made are quicker.
 */
#include "kernels/cuda/product.cuh"

#ifdef FG_GPU_EMULATED

bool fg_gpu_wide_quant(fg_device_stream *stream, uint32_t type, const fg_gpu_products &set,
                       uint32_t strips, bool gated, bool may_split)
{
    return false;
}

void fg_gpu_wide_quant_prepare(void)
{
}

#else

#include "kernels/cuda/quant.cuh"
#include "kernels/cuda/wide.cuh"

enum { NARROW = 64, BROAD = 128 /* rows of a tile */ };

/* What follows each fourth unit. */
template <uint32_t type>
constexpr uint32_t tail_bytes_of =
    fg_gpu_quant<type>::is_super ? fg_gpu_quant<type>::super_bytes - fg_gpu_quant<type>::tail_at
                                 : 0;

/* A warp's unit. */
template <uint32_t type> struct unit_weights {
    typedef fg_gpu_quant<type> quant;
    uint32_t low_at, high_at, scales_at,
        tail_at; /* where the lane finds its own, from a stage's strips on */
    fg_gpu_codes<type> codes;
    fg_gpu_raw_scales<type> raw;

    __device__ __forceinline__ void find(uint32_t index, uint32_t lane)
    {
        uint32_t strip = index * (quant::unit_bytes + tail_bytes_of<type>);
        low_at = fg_keep(strip + lane * 16);
        high_at = fg_keep(strip + quant::high_at + lane * 4 * quant::high_bits);
        scales_at = fg_keep(strip + quant::scales_at + lane / 4 * quant::scale_bytes);
        tail_at = fg_keep(strip + quant::unit_bytes + lane / 4 * (tail_bytes_of<type> / 8));
    }

    __device__ __forceinline__ void open(const uint8_t *strips)
    {
        const uint4 *low = (const uint4 *)(strips + low_at);
        codes.low[0] = low[0];
        if constexpr (quant::is_bytes) {
            codes.low[1] = low[32];
        }
        if constexpr (quant::high_bits == 1) {
            codes.high[0] = *(const uint32_t *)(strips + high_at);
        } else if constexpr (quant::high_bits == 2) {
            uint2 high = *(const uint2 *)(strips + high_at);
            codes.high[0] = high.x;
            codes.high[1] = high.y;
        }
        open_scales(strips);
    }

    __device__ __forceinline__ void open_scales(const uint8_t *strips)
    {
        if constexpr (quant::scale_bytes == 16) {
            uint4 words = *(const uint4 *)(strips + scales_at);
            raw.words[0] = words.x;
            raw.words[1] = words.y;
            raw.more[0] = words.z;
            raw.more[1] = words.w;
        } else {
            uint2 words = *(const uint2 *)(strips + scales_at);
            raw.words[0] = words.x;
            raw.words[1] = words.y;
        }
        if constexpr (quant::is_super && quant::has_minima) {
            uint2 more = *(const uint2 *)(strips + tail_at);
            raw.more[0] = more.x;
            raw.more[1] = more.y;
        } else if constexpr (quant::is_super) {
            raw.more[0] = *(const uint32_t *)(strips + tail_at);
        }
    }

    template <int half> __device__ __forceinline__ void make(uint32_t (*a)[4]) const
    {
        uint4 scales = fg_gpu_step_scales<type>(raw, half);
        fg_gpu_weights<type>(a[0], codes, scales, 2 * half);
        fg_gpu_weights<type>(a[1], codes, scales, 2 * half + 1);
    }
};

template <uint32_t type, int rows> struct quant_shape {
    typedef fg_gpu_quant<type> quant;
    typedef unit_weights<type> weights;
    static_assert((int)FG_GPU_UNIT_STEPS == WIDE_STEPS, "a unit is a stage");
    static constexpr int width = rows;
    static constexpr uint32_t unit_bytes = quant::unit_bytes;
    static constexpr uint32_t tail_bytes = tail_bytes_of<type>;
    static constexpr uint32_t strip_bytes = unit_bytes + tail_bytes;
    static_assert(unit_bytes % 16 == 0 && tail_bytes % 16 == 0, "what bulk copies copy");
    /* As many as fit, and no more than help. */
    static constexpr uint32_t stage_bytes = width * FG_GPU_BLOCK * 2 + WIDE_STRIPS * strip_bytes;
    static constexpr uint32_t room = (WIDE_MEMORY - sizeof(wide_passed)) / (stage_bytes + 16);
    static constexpr uint32_t stages = room < 12 ? room : 12;

    static __device__ __forceinline__ size_t unit_at(uint32_t stage)
    {
        return fg_gpu_unit_at<type>(stage);
    }
};

/* ---- who computes what ---- */

/* How a product is cut into tiles. */
typedef struct quant_plan {
    int width;
    uint32_t parts_each; /* of a block */
    uint64_t cycles;
} quant_plan;

/* About how long it takes, in cycles: tensor cores take one for each row of a step. What is taken in for it, and a tile's
 * beginning and end, cost as much as MORE rows; sums of parts are written and read at PART_SUMS a cycle and
 * multiprocessor, by a kernel of their own. */
static uint64_t cycles_of(const fg_device_stream *stream, const fg_gpu_products &set,
                          uint32_t strips, bool gated, int width, uint32_t parts_each)
{
    enum { MORE = 32, PART_SUMS = 3, PART_KERNEL = 2500 };
    wide_split split = make_split(stream, set, strips, parts_each);
    uint64_t blocks = (uint32_t)stream->device->multiprocessors;
    uint64_t turns = (uint64_t)count_tiles(set, strips, gated, width).count * split.shares;
    uint64_t steps = (uint64_t)parts_each * set.part_steps;
    uint64_t cycles =
        (turns + blocks - 1) / blocks * (width + MORE) * (steps < set.steps ? steps : set.steps);
    if (split.shares > 1) {
        uint64_t sums = (uint64_t)set.rows * split.all_outputs *
                        ((set.steps + set.part_steps - 1) / set.part_steps);
        cycles += PART_KERNEL + sums / (blocks * PART_SUMS);
    }
    return cycles;
}

/* The quickest one. */
static quant_plan make_plan(const fg_device_stream *stream, const fg_gpu_products &set,
                            uint32_t strips, bool gated, bool may_split)
{
    may_split = may_split && !gated && has_room(stream, set, make_split(stream, set, strips, 1));
    quant_plan best = {};
    for (int width = NARROW; width <= BROAD; width += BROAD - NARROW) {
        for (uint32_t each = FG_GPU_PARTS; each > 0; each = may_split ? each / 2 : 0) {
            uint64_t cycles = cycles_of(stream, set, strips, gated, width, each);
            if (best.width == 0 || cycles < best.cycles) {
                best = { width, each, cycles };
            }
        }
    }
    return best;
}

template <uint32_t type, int width>
static void launch_width(fg_device_stream *stream, const fg_gpu_products &set, uint32_t strips,
                         bool gated, uint32_t parts_each)
{
    typedef quant_shape<type, width> shape;
    wide_split split = make_split(stream, set, strips, parts_each);
    if (gated) {
        launch<shape, true, false>(stream, set, strips, split);
    } else if (split.shares == 1) {
        launch<shape, false, false>(stream, set, strips, split);
    } else {
        launch<shape, false, true>(stream, set, strips, split);
        fg_gpu_sum_parts(stream, set, split.all_outputs);
    }
}

template <uint32_t type>
static void launch_type(fg_device_stream *stream, const fg_gpu_products &set, uint32_t strips,
                        bool gated, const quant_plan &plan)
{
    if (plan.width == NARROW) {
        launch_width<type, NARROW>(stream, set, strips, gated, plan.parts_each);
    } else {
        launch_width<type, BROAD>(stream, set, strips, gated, plan.parts_each);
    }
}

static void launch_plan(fg_device_stream *stream, uint32_t type, const fg_gpu_products &set,
                        uint32_t strips, bool gated, const quant_plan &plan)
{
    FG_GPU_QUANT_SWITCH(type, launch_type, stream, set, strips, gated, plan);
}

bool fg_gpu_wide_quant(fg_device_stream *stream, uint32_t type, const fg_gpu_products &set,
                       uint32_t strips, bool gated, bool may_split)
{
    if (!fits_wide(stream, set)) {
        return false;
    }
    launch_plan(stream, type, set, strips, gated, make_plan(stream, set, strips, gated, may_split));
    return true;
}

template <typename shape> static void prepare_shape(void)
{
    prepare<shape, false, false>();
    prepare<shape, true, false>();
    prepare<shape, false, true>();
}

template <uint32_t type> static void prepare_type(void)
{
    prepare_shape<quant_shape<type, NARROW>>();
    prepare_shape<quant_shape<type, BROAD>>();
}

void fg_gpu_wide_quant_prepare(void)
{
    prepare_type<FG_Q4_0>();
    prepare_type<FG_Q4_1>();
    prepare_type<FG_Q5_0>();
    prepare_type<FG_Q5_1>();
    prepare_type<FG_Q8_0>();
    prepare_type<FG_Q4_K>();
    prepare_type<FG_Q5_K>();
    prepare_type<FG_Q6_K>();
}

#endif
