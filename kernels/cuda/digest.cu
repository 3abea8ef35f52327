/*
 * Digests of blocks of device memory: XXH3 of 64 bits with seed 0, as fg_hash64 gives for the same bytes. Written from
 * the published algorithm.
 *
 * XXH3 of long inputs has eight accumulators of 64 bits. 64 bytes of input, a stripe, are one word for each of them; what
 * a stripe adds depends on its place in its kibibyte, not on the accumulators. So the sums of all kibibytes are made at
 * once, by as many warps as there is work for, and only what happens between two of them (a scramble) is a chain: one
 * step a kibibyte, of which eight threads a block walk along.
 */
#include "kernels/cuda/cuda.h"

enum {
    LANES = 8, /* accumulators */
    CHUNK_BYTES = 1024,
    CHUNK_STRIPES = 16,
    STRIPE_BYTES = 64,
    SUM_WARPS = 8,
    WARP_CHUNKS = 4,  /* of a warp of sum_chunks */
    CHAIN_BLOCKS = 4, /* of a warp of chain_sums */
    CHAIN_AHEAD = 8,  /* sums that a thread has asked for before it needs them */
};

/* The algorithm's default secret, as words. */
static __device__ const uint64_t secret[24] = {
    0xBE4BA423396CFEB8u, 0x1CAD21F72C81017Cu, 0xDB979083E96DD4DEu, 0x1F67B3B7A4A44072u,
    0x78E5C0CC4EE679CBu, 0x2172FFCC7DD05A82u, 0x8E2443F7744608B8u, 0x4C263A81E69035E0u,
    0xCB00C391BB52283Cu, 0xA32E531B8B65D088u, 0x4EF90DA297486471u, 0xD8ACDEA946EF1938u,
    0x3F349CE33F76FAA8u, 0x1D4F0BC7C7BBDCF9u, 0x3159B4CD4BE0518Au, 0x647378D9C97E9FC8u,
    0xC3EBD33483ACC5EAu, 0xEB6313FAFFA081C5u, 0x49DAF0B751DD0D17u, 0x9E68D429265516D3u,
    0xFCA1477D58BE162Bu, 0xCE31D07AD1B8F88Fu, 0x280416958F3ACB45u, 0x7E404BBBCAFBD7AFu,
};

static const uint64_t PRIME32_1 = 0x9E3779B1u, PRIME32_2 = 0x85EBCA77u, PRIME32_3 = 0xC2B2AE3Du,
                      PRIME64_1 = 0x9E3779B185EBCA87u, PRIME64_2 = 0xC2B2AE3D27D4EB4Fu,
                      PRIME64_3 = 0x165667B19E3779F9u, PRIME64_4 = 0x85EBCA77C2B2AE63u,
                      PRIME64_5 = 0x27D4EB2F165667C5u, PRIME_MX1 = 0x165667919E3779F9u;

/* Eight bytes of the secret that begin `shift` bits into a word. */
static __device__ __forceinline__ uint64_t secret_at(uint32_t word, uint32_t shift)
{
    return secret[word] >> shift | secret[word + 1] << (64 - shift);
}

/* What two words of a stripe add to their accumulators: each its neighbour's, and a product of its own halves. */
static __device__ __forceinline__ void add_pair(uint64_t sums[2], uint4 in, const uint64_t key[2])
{
    uint64_t even = (uint64_t)in.y << 32 | in.x, odd = (uint64_t)in.w << 32 | in.z;
    uint64_t mixed_even = even ^ key[0], mixed_odd = odd ^ key[1];
    sums[0] += odd + (mixed_even & 0xFFFFFFFFu) * (mixed_even >> 32);
    sums[1] += even + (mixed_odd & 0xFFFFFFFFu) * (mixed_odd >> 32);
}

/* A chunk's last stripe in the input is counted from its end, and has a part of the secret of its own. */
static __device__ void add_last_chunk(uint64_t sums[2], const uint8_t *block, size_t block_bytes,
                                      uint32_t chunk, const uint64_t keys[2][2])
{
    uint32_t row = threadIdx.x % 32 / 4, pair = threadIdx.x % 4;
    const uint8_t *at = block + (size_t)chunk * CHUNK_BYTES;
    uint32_t stripes = (uint32_t)((block_bytes - 1 - (size_t)chunk * CHUNK_BYTES) / STRIPE_BYTES);
    for (uint32_t half = 0; half < 2; half++) {
        uint32_t stripe = row + 8 * half;
        if (stripe < stripes) {
            add_pair(sums, fg_load16_once(at + stripe * STRIPE_BYTES + pair * 16), keys[half]);
        }
    }
    if (row == 0) {
        const uint64_t key[2] = { secret_at(15 + 2 * pair, 8), secret_at(16 + 2 * pair, 8) };
        add_pair(sums, fg_load16_once(block + block_bytes - STRIPE_BYTES + pair * 16), key);
    }
}

/* sums[block of the list][chunk][accumulator]. A lane has two words, of stripes l / 4 and l / 4 + 8. */
static __global__ __launch_bounds__(SUM_WARPS * 32) void sum_chunks(const uint8_t *base,
                                                                    size_t block_bytes,
                                                                    const uint32_t *ids,
                                                                    uint32_t chunks, uint64_t *sums)
{
    uint32_t row = threadIdx.x % 32 / 4, pair = threadIdx.x % 4;
    const uint8_t *block = base + ids[blockIdx.y] * block_bytes;
    uint32_t first = (blockIdx.x * SUM_WARPS + threadIdx.x / 32) * WARP_CHUNKS;
    uint64_t keys[2][2];
    for (uint32_t i = 0; i < 4; i++) {
        keys[i / 2][i % 2] = secret[row + 8 * (i / 2) + 2 * pair + i % 2];
    }
    uint4 in[WARP_CHUNKS][2];
#pragma unroll
    for (uint32_t i = 0; i < WARP_CHUNKS; i++) {
        const uint8_t *at =
            block + (size_t)(first + i) * CHUNK_BYTES + row * STRIPE_BYTES + pair * 16;
        if (first + i + 1 < chunks) {
            in[i][0] = fg_load16_once(at);
            in[i][1] = fg_load16_once(at + CHUNK_BYTES / 2);
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < WARP_CHUNKS; i++) {
        if (first + i >= chunks) {
            return; /* the whole warp */
        }
        uint64_t own[2] = { 0, 0 };
        if (first + i + 1 < chunks) {
            add_pair(own, in[i][0], keys[0]);
            add_pair(own, in[i][1], keys[1]);
        } else {
            add_last_chunk(own, block, block_bytes, first + i, keys);
        }
        for (int apart = 4; apart < 32; apart *= 2) {
            own[0] += __shfl_xor_sync(0xFFFFFFFFu, own[0], apart);
            own[1] += __shfl_xor_sync(0xFFFFFFFFu, own[1], apart);
        }
        if (row == 0) {
            uint64_t *out = sums + ((size_t)blockIdx.y * chunks + first + i) * LANES + 2 * pair;
            out[0] = own[0];
            out[1] = own[1];
        }
    }
}

static __device__ __forceinline__ uint64_t scramble(uint64_t sum, uint64_t key)
{
    return (sum ^ sum >> 47 ^ key) * PRIME32_1;
}

/* Accumulators of a block become its digest, in all of its eight lanes. */
static __device__ uint64_t merge(uint64_t sum, uint32_t lane, size_t block_bytes)
{
    uint64_t mixed = sum ^ secret_at(1 + lane, 24);
    uint64_t other = __shfl_xor_sync(0xFFFFFFFFu, mixed, 1);
    uint64_t folded = mixed * other ^ __umul64hi(mixed, other);
    folded += __shfl_xor_sync(0xFFFFFFFFu, folded, 2);
    folded += __shfl_xor_sync(0xFFFFFFFFu, folded, 4);
    uint64_t digest = block_bytes * PRIME64_1 + folded;
    digest = (digest ^ digest >> 37) * PRIME_MX1;
    return digest ^ digest >> 32;
}

/* Eight lanes a block. */
static __global__ __launch_bounds__(32) void chain_sums(const uint64_t *sums, size_t block_bytes,
                                                        uint32_t chunks, uint32_t count,
                                                        uint64_t *digests)
{
    const uint64_t first[LANES] = { PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3,
                                    PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1 };
    uint32_t lane = threadIdx.x % LANES;
    uint32_t block = blockIdx.x * CHAIN_BLOCKS + threadIdx.x / LANES;
    bool real = block < count; /* the others keep the last one company */
    const uint64_t *own = sums + (size_t)(real ? block : count - 1) * chunks * LANES + lane;
    uint64_t sum = first[lane], key = secret[16 + lane];
    for (uint32_t from = 0; from < chunks - 1; from += CHAIN_AHEAD) {
        uint64_t ahead[CHAIN_AHEAD];
#pragma unroll
        for (uint32_t i = 0; i < CHAIN_AHEAD; i++) {
            ahead[i] = from + i < chunks - 1 ? own[(size_t)(from + i) * LANES] : 0;
        }
#pragma unroll
        for (uint32_t i = 0; i < CHAIN_AHEAD; i++) {
            sum = from + i < chunks - 1 ? scramble(sum + ahead[i], key) : sum;
        }
    }
    uint64_t digest = merge(sum + own[(size_t)(chunks - 1) * LANES], lane, block_bytes);
    if (real && lane == 0) {
        digests[block] = digest;
    }
}

void fg_cuda_digest(fg_device_stream *stream, const fg_digest_blocks *args, uint32_t count)
{
    uint32_t chunks = (uint32_t)((args->block_bytes - 1) / CHUNK_BYTES + 1);
    size_t room = stream->work_floats * sizeof(float) / ((size_t)chunks * LANES * sizeof(uint64_t));
    uint32_t most = room < 65535 ? (uint32_t)room : 65535; /* blocks at a time */
    uint64_t *sums = (uint64_t *)(void *)stream->work;
    const uint32_t wide = SUM_WARPS * WARP_CHUNKS;
    fg_gpu_use(stream->device);
    for (uint32_t from = 0; from < count; from += most) {
        uint32_t part = count - from < most ? count - from : most;
        stream->sequence++;
        FG_LAUNCH(sum_chunks, dim3((chunks + wide - 1) / wide, part), dim3(SUM_WARPS * 32), 0,
                  stream->stream, false, (const uint8_t *)args->base, args->block_bytes,
                  args->ids + from, chunks, sums);
        FG_LAUNCH(chain_sums, dim3((part + CHAIN_BLOCKS - 1) / CHAIN_BLOCKS), dim3(32), 0,
                  stream->stream, false, (const uint64_t *)sums, args->block_bytes, chunks, part,
                  args->digests + from);
    }
}
