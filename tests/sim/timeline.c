#include "tests/sim/timeline.h"

#include "common/base/mem.h"

enum { CAPACITY_FIRST = 256 };

static bool before(const fg_timeline_event *a, const fg_timeline_event *b)
{
    return a->at_ns != b->at_ns ? a->at_ns < b->at_ns : a->order < b->order;
}

void fg_timeline_init(fg_timeline *timeline, size_t count_max, void *ctx)
{
    *timeline = (fg_timeline){ .ctx = ctx, .count_max = count_max };
}

fg_status fg_timeline_reserve(fg_timeline *timeline, size_t count)
{
    if (count <= timeline->capacity) {
        return FG_OK;
    }
    fg_timeline_event *heap = fg_mem_resize(timeline->heap, count, sizeof *heap);
    if (heap == NULL) {
        return FG_AGAIN;
    }
    timeline->heap = heap;
    timeline->capacity = count;
    return FG_OK;
}

static fg_status grow(fg_timeline *timeline)
{
    return fg_timeline_reserve(timeline,
                               timeline->capacity == 0 ? CAPACITY_FIRST : timeline->capacity * 2);
}

fg_status fg_timeline_push(fg_timeline *timeline, const fg_timeline_event *event)
{
    if (timeline->count == timeline->count_max ||
        (timeline->count == timeline->capacity && grow(timeline) != FG_OK)) {
        return FG_AGAIN;
    }
    fg_timeline_event e = *event;
    e.at_ns = e.at_ns > timeline->now_ns ? e.at_ns : timeline->now_ns;
    e.order = timeline->next_order++;
    fg_timeline_event *heap = timeline->heap;
    size_t at = timeline->count++;
    while (at > 0 && before(&e, &heap[(at - 1) / 2])) {
        heap[at] = heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap[at] = e;
    return FG_OK;
}

static fg_timeline_event pop(fg_timeline *timeline)
{
    fg_timeline_event *heap = timeline->heap;
    fg_timeline_event top = heap[0];
    fg_timeline_event last = heap[--timeline->count];
    size_t at = 0;
    for (;;) {
        size_t child = at * 2 + 1;
        if (child >= timeline->count) {
            break;
        }
        if (child + 1 < timeline->count && before(&heap[child + 1], &heap[child])) {
            child++;
        }
        if (!before(&heap[child], &last)) {
            break;
        }
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = last;
    return top;
}

void fg_timeline_deinit(fg_timeline *timeline)
{
    while (timeline->count > 0) {
        fg_timeline_event e = pop(timeline);
        if (e.drop != NULL) {
            e.drop(e.arg);
        }
    }
    fg_mem_free(timeline->heap);
    timeline->heap = NULL;
    timeline->capacity = 0;
}

uint64_t fg_timeline_next_ns(const fg_timeline *timeline)
{
    return timeline->count == 0 ? UINT64_MAX : timeline->heap[0].at_ns;
}

bool fg_timeline_step(fg_timeline *timeline)
{
    if (timeline->count == 0) {
        return false;
    }
    fg_timeline_event e = pop(timeline);
    timeline->now_ns = e.at_ns;
    timeline->fired++;
    e.fire(timeline->ctx, &e);
    return true;
}
