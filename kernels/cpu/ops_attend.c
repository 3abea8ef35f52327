/*
 * Attention on the CPU: rows that follow each other in one sequence become tiles, a tile is computed once
 * per KV head, and where tiles are few (decode of a long sequence) their chunks are shared out too. The
 * team's members take these units as they become free, heavy ones first. Who takes what never shows in a
 * result: records are merged in the order of chunks, whoever wrote them.
 */
#include <stdatomic.h>
#include <string.h>

#include "common/base/mem.h"
#include "kernels/cpu/attend.h"
#include "kernels/cpu/op_clock.h"
#include "kernels/ops.h"

enum {
    /* Below this many multiply-adds the caller works alone: a fork costs more than it saves. */
    ALONE_MACS = 65536,
    HUGE_PAGE = 2u << 20u, /* a mapping of whole ones gets them, which fill the caches evenly */
    UNITS_PER_MEMBER = 12, /* that tiles of few rows are cut into */
    UNITS_LEAST = 6,       /* per member, of several KV heads: fewer do not share out evenly */
    UNITS_MOST = 16,       /* per member, that tiles get smaller for */
    WHOLE_PER_MEMBER = 3,  /* units of whole tiles that are enough */
    TILE_LEAST = 96,       /* (row, head)s; tiles get no smaller to be shared out evenly */
    TILE_MORE =
        11, /* what a tile costs beside its own, in (row, head)s: K and V are copied for it */
    TILES_MAX = 256,           /* more rows go in several rounds */
    SPLIT_MACS = 8u << 20u,    /* of a unit at least that is split, so that members end together */
    SPLIT_AHEAD = 2,           /* units of each member that are left when one is split */
    RECORD_FLOATS = 2u << 20u, /* of chunks that are shared out; beyond it tiles stay whole */
    SHARED_MAX = 1024,         /* (tile, part of heads) that are shared out */
    /* Small units are claimed so many at once, of so many multiply-adds together: each one's beginning is
     * fetched while the one before is computed. */
    CLAIM_UNITS = 4,
    CLAIM_MACS = 1u << 20u,
};

typedef struct tile {
    uint32_t row;
    uint32_t row_count;
    uint32_t chunk_first;
    uint32_t chunk_end;
    uint64_t cost;       /* slots that its rows see, of one part */
    uint32_t part_first; /* parts of heads, all or some of them */
    uint32_t part_count;
    uint32_t parts;      /* that a unit has side by side; the last one may have fewer */
    uint32_t span;       /* chunks per unit */
    uint32_t unit_first; /* of all units */
    uint32_t unit_count; /* for the same parts */
    uint32_t shared;     /* index of the first parts' `left`, when there are several units */
    size_t record;       /* of the first part, in records */
} tile;

struct fg_cpu_attend_plan {
    fg_cpu_attend_scratch *scratch; /* one per member */
    size_t scratch_bytes;
    float *records;
    tile tiles[TILES_MAX];
    _Atomic uint32_t left[SHARED_MAX]; /* units of shared parts that have not ended */
};

typedef struct attend_job {
    const fg_cpu_kernels *kernels;
    fg_cpu_attend_plan *plan;
    const fg_paged_kv *kv;
    const fg_attend *attend;
    uint32_t group;       /* query heads of a KV head */
    uint32_t part_heads;  /* query heads of one part */
    uint32_t group_parts; /* parts of a group: 1 unless a group is larger than a tile */
    uint32_t part_count;  /* group_parts of all KV heads */
    uint32_t row_max;     /* of a tile */
    uint32_t tile_count;
    size_t record_floats;
    uint32_t unit_count;
    uint32_t claim_units;
} attend_job;

fg_cpu_attend_plan *fg_cpu_attend_plan_create(uint32_t member_count)
{
    fg_cpu_attend_plan *plan = fg_mem_alloc(sizeof *plan);
    if (plan == NULL) {
        return NULL;
    }
    /* Mapped, so that only what is used takes memory. */
    size_t scratch_bytes = member_count * sizeof *plan->scratch;
    plan->scratch_bytes = (scratch_bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    plan->scratch = fg_mem_map(plan->scratch_bytes);
    plan->records = fg_mem_map(RECORD_FLOATS * sizeof(float));
    if (plan->scratch == NULL || plan->records == NULL) {
        fg_cpu_attend_plan_destroy(plan);
        return NULL;
    }
    return plan;
}

void fg_cpu_attend_plan_destroy(fg_cpu_attend_plan *plan)
{
    if (plan == NULL) {
        return;
    }
    if (plan->scratch != NULL) {
        fg_mem_unmap(plan->scratch, plan->scratch_bytes);
    }
    if (plan->records != NULL) {
        fg_mem_unmap(plan->records, RECORD_FLOATS * sizeof(float));
    }
    fg_mem_free(plan);
}

/* Slots that rows at rising positions see. */
static uint64_t seen_slots(uint64_t position, uint64_t row_count, uint64_t window)
{
    uint64_t end = position + row_count;
    if (window == 0 || window > end) {
        window = end;
    }
    /* Rows that see all before them. */
    uint64_t rising = position >= window ? 0 : window - position;
    return rising * position + rising * (rising + 1) / 2 + (row_count - rising) * window;
}

/* Rows of one sequence at rising positions, with all parts of heads. */
static tile tile_at(const attend_job *job, uint32_t first, uint32_t row_count)
{
    uint32_t position = job->attend->kv_rows[first].position;
    uint32_t window = job->attend->window;
    uint32_t least = window == 0 || position < window ? 0 : position + 1 - window;
    return (tile){ .row = first,
                   .row_count = row_count,
                   .chunk_first = least / FG_ATTEND_CHUNK,
                   .chunk_end = (position + row_count - 1) / FG_ATTEND_CHUNK + 1,
                   .cost = seen_slots(position, row_count, window),
                   .part_count = job->part_count };
}

/* The tile that begins at `first`: as many rows as fit. */
static tile next_tile(const attend_job *job, uint32_t first, uint32_t rows)
{
    const fg_kv_row *at = &job->attend->kv_rows[first];
    uint32_t count = 1;
    while (count < job->row_max && first + count < rows && at[count].block_ids == at->block_ids &&
           at[count].position == at->position + count) {
        count++;
    }
    return tile_at(job, first, count);
}

/* Rows of a tile at most: as many as fit, or fewer where the members' shares are more even then. */
static uint32_t tile_rows(const attend_job *job, uint32_t rows, uint32_t member_count)
{
    uint32_t most = fg_cpu_attend_tile(job->kernels, job->kv->head_dim) / job->part_heads;
    uint32_t tiles = (rows + most - 1) / most;
    uint32_t size = (rows + tiles - 1) / tiles;
    uint32_t best = most;
    uint64_t least_cost = UINT64_MAX;
    do {
        uint64_t units = (uint64_t)tiles * job->part_count;
        uint64_t share = (units + member_count - 1) / member_count;
        uint64_t cost = share * ((uint64_t)size * job->part_heads + TILE_MORE);
        if (cost < least_cost) {
            least_cost = cost;
            best = size;
        }
        tiles++;
        size = (rows + tiles - 1) / tiles;
    } while (tiles <= rows && size * job->part_heads >= TILE_LEAST &&
             (uint64_t)tiles * job->part_count <= (uint64_t)UNITS_MOST * member_count);
    return best;
}

/* Takes tiles from row `first` on, heavy ones before light ones; returns the first row that is left. */
static uint32_t take_tiles(attend_job *job, uint32_t first, uint32_t rows, uint64_t *cost_out)
{
    tile *tiles = job->plan->tiles;
    uint64_t cost = 0;
    job->tile_count = 0;
    while (first < rows && job->tile_count < TILES_MAX) {
        tile t = next_tile(job, first, rows);
        uint32_t at = job->tile_count++;
        first += t.row_count;
        cost += t.cost;
        for (; at > 0 && tiles[at - 1].cost < t.cost; at--) {
            tiles[at] = tiles[at - 1];
        }
        tiles[at] = t;
    }
    *cost_out = cost;
    return first;
}

/* Chunks of a unit, at most `most`, so that a tile's last unit is not much lighter than the others. */
static uint32_t even_span(uint32_t chunks, uint32_t most)
{
    uint32_t units = (chunks + most - 1) / most;
    return (chunks + units - 1) / units;
}

/* Units of a tile for the same chunks. */
static uint32_t units_across(const tile *t)
{
    return (t->part_count + t->parts - 1) / t->parts;
}

/* Parts that a unit of a small tile has side by side: KV heads whose K and V lie together in memory, which is read
 * quicker in that order than a head at a time; but not so many that units are few. */
static uint32_t parts_of(const attend_job *job, const tile *t, uint64_t chunks_of_all,
                         uint32_t member_count)
{
    uint64_t room = FG_ATTEND_UNDER_WAY / (t->row_count * job->part_heads);
    uint64_t spare = chunks_of_all * job->part_count / ((uint64_t)member_count * UNITS_LEAST);
    uint64_t most = room < spare || member_count == 1 ? room : spare;
    if (job->group_parts > 1 || most <= 1) {
        return 1;
    }
    uint32_t across = (uint32_t)((job->part_count + most - 1) / most);
    return (job->part_count + across - 1) / across;
}

/* Whether whole tiles are too few units. */
static bool has_few_units(const attend_job *job, uint32_t member_count)
{
    return job->tile_count * job->part_count < member_count * WHOLE_PER_MEMBER;
}

/* The tile at `at` keeps so many parts; the others become two tiles of half its rows behind it. */
static void split_tile(attend_job *job, uint32_t at, uint32_t whole)
{
    tile *tiles = job->plan->tiles;
    tile *kept = &tiles[at];
    uint32_t half = kept->row_count / 2;
    tile first = tile_at(job, kept->row, half);
    tile second = tile_at(job, kept->row + half, kept->row_count - half);
    first.part_first = second.part_first = kept->part_first + whole;
    first.part_count = second.part_count = kept->part_count - whole;
    kept->part_count = whole;
    uint32_t to = whole > 0 ? at + 1 : at; /* one without parts is not kept */
    memmove(&tiles[to + 2], &tiles[at + 1], (job->tile_count - at - 1) * sizeof *tiles);
    tiles[to] = first;
    tiles[to + 1] = second;
    job->tile_count += to + 1 - at;
}

/* Members are not equally quick, as others use their cores too: of the last units some are split, in halves and these
 * again, so that nobody waits for a whole one. The first ones are not, as K and V are copied for each half. */
static void split_last(attend_job *job, uint64_t cost, uint32_t member_count)
{
    const tile *tiles = job->plan->tiles;
    uint64_t left = cost * job->part_count; /* of units from the tile on */
    uint64_t kept = (uint64_t)SPLIT_AHEAD * member_count;
    for (uint32_t i = 0; i < job->tile_count;) {
        uint64_t unit = tiles[i].cost;
        uint64_t macs = unit * job->part_heads * job->kv->head_dim * 2;
        uint64_t whole = left / unit < kept ? 0 : left / unit - kept + 1;
        if (whole < tiles[i].part_count && macs >= SPLIT_MACS &&
            tiles[i].row_count / 2 * job->part_heads >= TILE_LEAST &&
            job->tile_count + 2 <= TILES_MAX) {
            split_tile(job, i, (uint32_t)whole);
            if (whole == 0) {
                continue;
            }
        }
        uint64_t all = unit * tiles[i++].part_count;
        left = left > all ? left - all : 0;
    }
}

/* Cuts tiles into units of about equal cost where whole ones would be too few. */
static void cut_tiles(attend_job *job, uint64_t cost, uint32_t member_count)
{
    uint64_t unit_cost =
        cost * job->part_count / ((uint64_t)member_count * UNITS_PER_MEMBER) + FG_ATTEND_CHUNK;
    size_t record = 0;
    uint32_t shared = 0;
    uint32_t units = 0;
    uint64_t chunks_of_all = 0;
    bool few = has_few_units(job, member_count);
    for (uint32_t i = 0; i < job->tile_count; i++) {
        chunks_of_all += job->plan->tiles[i].chunk_end - job->plan->tiles[i].chunk_first;
    }
    for (uint32_t i = 0; i < job->tile_count; i++) {
        tile *t = &job->plan->tiles[i];
        uint32_t chunks = t->chunk_end - t->chunk_first;
        t->parts = parts_of(job, t, chunks_of_all, member_count);
        uint64_t span = unit_cost / ((uint64_t)t->row_count * t->parts * FG_ATTEND_CHUNK);
        size_t needed = (size_t)chunks * t->row_count * job->part_heads * job->part_count;
        bool small = t->row_count * job->part_heads < TILE_LEAST;
        bool cut = member_count > 1 && (few || small) && span < chunks &&
                   shared + units_across(t) <= SHARED_MAX &&
                   (record + needed) * job->record_floats <= RECORD_FLOATS;
        t->span = cut ? even_span(chunks, span == 0 ? 1 : (uint32_t)span) : chunks;
        t->unit_first = units;
        t->unit_count = (chunks + t->span - 1) / t->span;
        units += t->unit_count * units_across(t);
        if (t->unit_count > 1) {
            t->record = record;
            t->shared = shared;
            for (uint32_t across = 0; across < units_across(t); across++) {
                atomic_init(&job->plan->left[shared++], t->unit_count);
            }
            record += needed;
        }
    }
    job->unit_count = units;
}

static const tile *tile_of(const attend_job *job, uint32_t unit)
{
    const tile *tiles = job->plan->tiles;
    uint32_t low = 0;
    uint32_t high = job->tile_count;
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        if (tiles[middle].unit_first <= unit) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return &tiles[low];
}

/* Which parts of the tile a unit has. */
static uint32_t across_of(const tile *t, uint32_t unit)
{
    return (unit - t->unit_first) / t->unit_count;
}

/* A unit's arguments for the `side`th part of those that it has. */
static fg_cpu_attend args_of(const attend_job *job, uint32_t unit, uint32_t side,
                             fg_cpu_attend_scratch *scratch)
{
    const fg_attend *attend = job->attend;
    const tile *t = tile_of(job, unit);
    uint32_t part = t->part_first + across_of(t, unit) * t->parts + side;
    uint32_t parts_left = t->part_first + t->part_count - part;
    uint32_t piece = (unit - t->unit_first) % t->unit_count;
    uint32_t scratch_first = side * t->row_count * job->part_heads;
    uint32_t kv_head = part / job->group_parts;
    uint32_t head = part % job->group_parts * job->part_heads;
    uint32_t heads_left = job->group - head;
    size_t row_stride = (size_t)attend->head_count * job->kv->head_dim;
    size_t at = t->row * row_stride + ((size_t)kv_head * job->group + head) * job->kv->head_dim;
    uint32_t chunks = t->chunk_end - t->chunk_first;
    uint32_t end = t->chunk_first + (piece + 1) * t->span;
    fg_cpu_attend args = {
        .kv = job->kv,
        .block_ids = attend->kv_rows[t->row].block_ids,
        .q = attend->q + at,
        .out = attend->out + at,
        .row_stride = row_stride,
        .position = attend->kv_rows[t->row].position,
        .row_count = t->row_count,
        .head_count = heads_left < job->part_heads ? heads_left : job->part_heads,
        .kv_head = kv_head,
        .kv_head_count = parts_left < t->parts ? parts_left : t->parts,
        .scratch_first = scratch_first,
        .window = attend->window,
        .scale = attend->scale,
        .chunk_first = t->chunk_first + piece * t->span,
        .chunk_end = end < t->chunk_end ? end : t->chunk_end,
        .records = scratch->records + scratch_first * job->record_floats,
        .record_first = t->chunk_first,
        .record_count = 1,
        .finish = t->unit_count == 1,
        .scratch = scratch,
    };
    if (t->unit_count > 1) {
        size_t part_records = (size_t)chunks * t->row_count * job->part_heads;
        args.records = job->plan->records + (t->record + part * part_records) * job->record_floats;
        args.record_count = chunks;
    }
    return args;
}

static void attend_unit(const attend_job *job, uint32_t unit, fg_cpu_attend *args)
{
    const tile *t = tile_of(job, unit);
    job->kernels->attend(args);
    if (t->unit_count > 1 &&
        atomic_fetch_sub_explicit(&job->plan->left[t->shared + across_of(t, unit)], 1,
                                  memory_order_acq_rel) == 1) {
        for (uint32_t side = 0; side < args->kv_head_count; side++) {
            args[side].chunk_end = args[side].chunk_first;
            args[side].finish = true;
        }
        job->kernels->attend(args);
    }
}

static void attend_claim(void *ctx, uint32_t claim, uint32_t member)
{
    const attend_job *job = ctx;
    fg_cpu_attend_scratch *scratch = &job->plan->scratch[member];
    uint32_t unit = claim * job->claim_units;
    uint32_t left = job->unit_count - unit;
    uint32_t end = unit + (left < job->claim_units ? left : job->claim_units);
    fg_cpu_attend args[FG_ATTEND_UNDER_WAY];
    fg_cpu_attend next = args_of(job, unit, 0, scratch);
    for (; unit < end; unit++) {
        args[0] = next;
        for (uint32_t side = 1; side < args[0].kv_head_count; side++) {
            args[side] = args_of(job, unit, side, scratch);
        }
        if (unit + 1 < job->unit_count) {
            next = args_of(job, unit + 1, 0, scratch);
            args[0].next = &next;
        }
        attend_unit(job, unit, args);
    }
}

/* Small units are claimed some at a time, but so that every member has its share of claims. */
static uint32_t claim_units(const attend_job *job, uint64_t macs, uint32_t member_count)
{
    uint64_t fair = job->unit_count / (member_count * UNITS_PER_MEMBER);
    uint64_t small = CLAIM_MACS / (macs / job->unit_count + 1);
    uint64_t units = fair < small ? fair : small;
    return units < 1 ? 1 : units > CLAIM_UNITS ? CLAIM_UNITS : (uint32_t)units;
}

void fg_cpu_op_attend(fg_device_stream *stream, const fg_paged_kv *kv, const fg_attend *args,
                      uint32_t rows)
{
    uint64_t began_ns = fg_op_clock_begin();
    FG_ASSERT(kv->head_dim <= FG_ATTEND_DIMS, "head size beyond the KV layout's");
    fg_team *team = stream->device->team;
    uint32_t group = args->head_count / kv->kv_head_count;
    uint32_t tile_most = fg_cpu_attend_tile(stream->device->kernels, kv->head_dim);
    uint32_t group_parts = (group + tile_most - 1) / tile_most;
    attend_job job = { .kernels = stream->device->kernels,
                       .plan = stream->attend_plan,
                       .kv = kv,
                       .attend = args,
                       .group = group,
                       .part_heads = (group + group_parts - 1) / group_parts,
                       .group_parts = group_parts,
                       .part_count = group_parts * kv->kv_head_count,
                       .record_floats = fg_cpu_record_floats(kv->head_dim) };
    job.row_max = tile_rows(&job, rows, fg_team_size(team));
    stream->sequence++;
    for (uint32_t first = 0; first < rows;) {
        uint64_t cost;
        first = take_tiles(&job, first, rows, &cost);
        uint64_t macs = cost * args->head_count * kv->head_dim * 2;
        uint32_t members = macs < ALONE_MACS ? 1 : fg_team_size(team);
        if (members > 1 && !has_few_units(&job, members)) {
            split_last(&job, cost, members);
        }
        cut_tiles(&job, cost, members);
        if (members > 1 && job.unit_count > 1) {
            job.claim_units = claim_units(&job, macs, members);
            uint32_t claims = (job.unit_count + job.claim_units - 1) / job.claim_units;
            fg_team_for(team, claims, attend_claim, &job);
        } else {
            job.claim_units = job.unit_count;
            attend_claim(&job, 0, 0);
        }
    }
    fg_op_clock_end(FG_OP_KIND_ATTEND, began_ns);
}
