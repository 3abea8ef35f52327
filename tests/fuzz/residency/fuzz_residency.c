/*
 * Any bytes as a history of the tree: workers come and go, frames of any number, epoch, kind and keys,
 * predictions, pins, lookups, time that jumps. No crash, the books are right at the end, and no worker is
 * said to hold more than the chain asked for.
 */
#include <string.h>

#include "router/residency.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes);

enum { KEYS = 300, EVENTS = 3 };

typedef struct input {
    const uint8_t *bytes;
    size_t size, at;
} input;

static uint8_t next(input *in)
{
    return in->at < in->size ? in->bytes[in->at++] : 0;
}

/* Few different keys, so that they meet: a walk up or down from a start, or a repeated one. Key 0 too. */
static uint32_t take_keys(input *in, uint64_t *keys, uint64_t *parent_out)
{
    uint32_t start = next(in) * 2u, count = next(in), shape = next(in);
    count = shape & 0x80 ? count + KEYS - 255 : count & 31;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t step = shape % 8 == 0 ? 0 : shape % 8 == 1 ? 0 - i : i;
        /* From key 40 on there are four prompts that share what comes before. */
        uint64_t branch = start + step > 40 ? (shape >> 4 & 3) : 0;
        keys[i] = (uint32_t)(start + step) | branch << 32;
    }
    *parent_out = shape & 8 ? next(in) : count != 0 && keys[0] != 0 ? keys[0] - 1 : 0;
    return count;
}

static void send(fg_residency *tree, input *in, uint32_t slot, uint64_t *numbers, uint64_t now_ns)
{
    static uint64_t keys[EVENTS][KEYS];
    fg_residency_event events[EVENTS];
    uint32_t how = next(in), count = how % (EVENTS + 1);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t kind = next(in);
        events[i] = (fg_residency_event){ .kind = kind % 16 > 5 ? 1 + kind % 2 : kind % 6,
                                          .tier = kind / 16 > 13 ? kind : kind / 16 % 2,
                                          .keys = keys[i] };
        events[i].count = take_keys(in, keys[i], &events[i].parent);
    }
    numbers[slot % 4] += 1 + (how > 250) - (how == 240);
    fg_residency_frame frame = { how == 230, numbers[slot % 4], events, count };
    frame.number = how == 231 ? UINT64_MAX : frame.number;
    fg_residency_apply(tree, slot, &frame, now_ns);
}

static void look(fg_residency *tree, const uint64_t *keys, uint32_t count, uint64_t now_ns)
{
    fg_residency_hit hits[70];
    uint32_t hit_count = fg_residency_match(tree, keys, count, now_ns, hits);
    for (uint32_t i = 0; i < hit_count; i++) {
        FG_ASSERT(hits[i].slot < 70 && (i == 0 || hits[i].slot > hits[i - 1].slot));
        FG_ASSERT(hits[i].total != 0 && hits[i].total <= count && hits[i].device <= hits[i].total);
    }
    fg_residency_heat(tree, keys, count, now_ns);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size_bytes)
{
    static const uint32_t slots[] = { 0, 1, 63, 69, 64, 100 };
    input in = { bytes, size_bytes, 0 };
    fg_residency_options options = { .bytes_max = FG_RESIDENCY_BYTES_MIN, .slot_count = 70 };
    fg_residency *tree = NULL;
    if (fg_residency_create(&options, &tree, NULL) != FG_OK) {
        return 0;
    }
    uint64_t numbers[4] = { 0 }, now_ns = 0, keys[KEYS];
    for (uint32_t i = 0; i < 4; i++) {
        fg_residency_join(tree, slots[i], 0);
    }
    while (in.at < in.size) {
        uint32_t what = next(&in), slot = slots[what / 16 % 6];
        fg_residency_event blocks = { .keys = keys };
        now_ns += what == 255 ? 1ull << 62 : what % 3 * 1000000u;
        switch (what % 16) {
        case 0:
            fg_residency_join(tree, slot % 70, 0);
            numbers[slot % 4] = 0;
            break;
        case 1:
            fg_residency_forget(tree, slot % 70);
            break;
        case 2:
        case 3:
            blocks.count = take_keys(&in, keys, &blocks.parent);
            fg_residency_predict(tree, slot, &blocks, now_ns + next(&in) * 1000000u, now_ns);
            break;
        case 4:
            blocks.count = take_keys(&in, keys, &blocks.parent);
            fg_residency_pin(tree, keys, blocks.count, now_ns + next(&in) * 10000000u, now_ns);
            break;
        case 5:
        case 6:
        case 7:
            blocks.count = take_keys(&in, keys, &blocks.parent);
            look(tree, keys, blocks.count, now_ns);
            break;
        default:
            send(tree, &in, slot, numbers, now_ns);
        }
    }
    fg_residency_check(tree);
    fg_residency_destroy(tree);
    return 0;
}
