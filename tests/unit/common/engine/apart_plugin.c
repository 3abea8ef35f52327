/*
 * apart_plugin - a back end with memory of its own, made of the CPU's operations: for tests of whoever uses such
 * devices. Its memory can be read and written only while an operation or a copy runs, so that a host that looks into it
 * crashes; rows of a step are read from where they were staged; replays run what was recorded.
 *
 * Operations run when they are given. Or late (apart_is_late): when an event behind them is waited for, or is found to
 * have ended. A device may do either, and whoever uses it must not see which.
 */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/base/fault.h"
#include "common/base/mem.h"
#include "common/model/sampler.h"
#include "kernels/backend.h"
#include "tests/support/exchange.h"

enum { STAGED_ROWS = 256, STAGED_BLOCKS = 64, RECORDED_OPS = 128, RECORDINGS = 72, LINEARS = 8 };
/* Of a late one: operations that have not run, and steps that they are of. */
enum { LATE_OPS = 1024, LATE_STEPS = 4 };
/* Rows with such a top-k are left to the host. */
enum { LEFT_TOP_K = 20 };
#define REGION_BYTES ((size_t)64 << 20)

typedef enum op_kind {
    OP_PREPARE,
    OP_LINEAR,
    OP_GATED,
    OP_HIGHEST,
    OP_CHOOSE,
    OP_EMBED,
    OP_RMSNORM,
    OP_FINITE,
    OP_ROPE_TABLE,
    OP_ROPE_STORE,
    OP_ATTEND,
    OP_DIGEST,
    OP_COPY,
    OP_STAGE,
    OP_GATHER,
} op_kind;

/* An operation with all its arguments. */
typedef struct op {
    op_kind kind;
    uint32_t rows, count;
    fg_activations in;
    fg_linear linears[LINEARS];
    fg_gated gated;
    fg_panels weight;
    fg_matrix table;
    fg_rmsnorm norm;
    fg_paged_kv kv;
    fg_rope_store store;
    fg_attend attend;
    fg_choose choose;
    const uint32_t *numbers; /* tokens, positions */
    const float *values;
    fg_rope_turns turns;
    float scale;
    uint32_t *choices;
    float *out;
    fg_copy_rows copy;
    fg_digest_blocks digest;
    struct staged *staged;
    fg_comm *comm;
    fg_comm_gather gather;
} op;

typedef struct recording {
    uint64_t key;
    uint32_t count;
    op ops[RECORDED_OPS];
} recording;

/* The rows of the step, as the device has them. */
typedef struct staged {
    fg_step_rows host;
    uint32_t tokens[STAGED_ROWS], positions[STAGED_ROWS], row_ids[STAGED_ROWS];
    fg_kv_row kv_rows[STAGED_ROWS];
    uint32_t blocks[STAGED_ROWS][STAGED_BLOCKS];
    uint32_t real_rows; /* before those that pad */
} staged;

struct fg_device {
    const fg_backend *backend;
    fg_device *cpu;
    uint8_t *region;
    size_t used;
    uint32_t held; /* allocations that were not freed yet */
};

struct fg_device_stream {
    const fg_backend *backend;
    fg_device *device;
    fg_device_stream *cpu;
    staged staged; /* of the step whose operations run */
    uint32_t chosen[FG_CHOSEN_ROWS];
    /* Operations that have not run, of which number n is at n % LATE_OPS. */
    op *late;
    staged *late_steps;
    uint64_t given, ran, staged_count, events;
    uint32_t asked; /* how often the newest event was asked for */
    recording *recordings;
    uint32_t recording_count;
    recording *recording; /* NULL: none is made */
};

struct fg_comm {
    const fg_backend *backend;
    fg_device_stream *stream;
    uint32_t rank, ranks;
    exchange *exchange;
    float *sent, *got; /* of STAGED_ROWS */
};

static const fg_backend apart;

/* For tests: steps that were recorded, those that were started again, rows that were chosen from here, rows
 * with such a token, memory of the host that was to be pinned, and gatherings by communicators. */
uint32_t apart_recorded, apart_replayed, apart_chosen, apart_followed, apart_pins, apart_gathered;
/* What tests set: memory that another device of this process took, without a guard; whether operations run late or communicators are broken, and how often the newest event is not found to have ended. */
uint8_t *apart_lent;
size_t apart_lent_bytes;
bool apart_is_late;
bool apart_comm_is_broken;
uint32_t apart_patience;

/* fg_fault_each with what this side takes, the device's memory too: its code has a countdown of its own. */
int apart_fault_each(bool (*attempt)(void *ctx), void *ctx);
int apart_fault_each(bool (*attempt)(void *ctx), void *ctx)
{
    return fg_fault_each(attempt, ctx);
}

/* ---- memory ---- */

static void open_region(fg_device *device)
{
    FG_ASSERT(mprotect(device->region, REGION_BYTES, PROT_READ | PROT_WRITE) == 0);
}

static void close_region(fg_device *device)
{
    FG_ASSERT(mprotect(device->region, REGION_BYTES, PROT_NONE) == 0);
}

static bool is_apart(const fg_device *device, const void *memory)
{
    const uint8_t *at = memory;
    return (at >= device->region && at < device->region + REGION_BYTES) ||
           (uintptr_t)at - (uintptr_t)apart_lent < apart_lent_bytes;
}

static void *take(fg_device *device, size_t size_bytes)
{
    size_t padded = (size_bytes + 63) / 64 * 64;
    if (padded > REGION_BYTES - device->used || fg_fault_hit()) {
        return NULL;
    }
    void *memory = device->region + device->used;
    device->used += padded;
    return memory;
}

static void *apart_alloc(fg_device *device, fg_memory_kind kind, size_t size_bytes)
{
    void *memory = kind == FG_MEMORY_SHARED ? fg_mem_map(size_bytes) : take(device, size_bytes);
    device->held += memory != NULL;
    return memory;
}

/* The region goes as a whole. */
static void apart_free(fg_device *device, fg_memory_kind kind, void *memory, size_t size_bytes)
{
    device->held -= memory != NULL;
    if (kind == FG_MEMORY_SHARED) {
        fg_mem_unmap(memory, size_bytes);
    }
}

static fg_status apart_load(fg_device *device, const void *host, size_t size_bytes,
                            const void **device_out, fg_error *err)
{
    void *memory = take(device, size_bytes);
    if (memory == NULL) {
        return fg_fail(err, FG_AGAIN, "the region is full");
    }
    open_region(device);
    memcpy(memory, host, size_bytes);
    close_region(device);
    *device_out = memory;
    return FG_OK;
}

static fg_status apart_pack(fg_device *device, const fg_matrix *rows, fg_panels *panels_out,
                            fg_error *err)
{
    uint32_t count = fg_panel_count(rows->outputs);
    void *memory = take(device, count * fg_panel_bytes(rows->type, rows->columns));
    if (memory == NULL) {
        return fg_fail(err, FG_AGAIN, "the region is full");
    }
    open_region(device);
    fg_panel_pack(rows, 0, count, memory);
    close_region(device);
    *panels_out = (fg_panels){
        .data = memory, .type = rows->type, .outputs = rows->outputs, .columns = rows->columns
    };
    return FG_OK;
}

static fg_status apart_pin(fg_device *device, void *memory, size_t size_bytes, fg_error *err)
{
    apart_pins++;
    return fg_fail(err, FG_BAD_INPUT, "nothing is pinned here");
}

static void apart_unpin(fg_device *device, void *memory)
{
    FG_ASSERT(false, "nothing was pinned");
}

/* ---- device and stream ---- */

static uint32_t apart_count(fg_error *err)
{
    return 1;
}

static fg_status apart_describe(uint32_t index, fg_device_info *info_out, fg_error *err)
{
    *info_out = (fg_device_info){
        .name = "apart", .isa = "apart", .memory_bytes = REGION_BYTES, .free_bytes = REGION_BYTES
    };
    return FG_OK;
}

static fg_status apart_open(const fg_device_options *options, fg_device **device_out, fg_error *err)
{
    FG_ASSERT(options->step_rows_max % 64 == 0 && options->step_rows_max <= STAGED_ROWS);
    FG_ASSERT(options->context_max <= options->block_size * STAGED_BLOCKS);
    fg_device *device = fg_mem_alloc(sizeof *device);
    if (device == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for a device");
    }
    void *region = mmap(NULL, REGION_BYTES, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    FG_ASSERT(region != MAP_FAILED);
    *device = (fg_device){ .backend = &apart, .region = region };
    fg_status status = fg_cpu_backend.open(options, &device->cpu, err);
    if (status != FG_OK) {
        munmap(region, REGION_BYTES);
        fg_mem_free(device);
        return status;
    }
    *device_out = device;
    return FG_OK;
}

static void apart_close(fg_device *device)
{
    FG_ASSERT(device->held == 0, "%u allocations are left", device->held);
    fg_cpu_backend.close(device->cpu);
    munmap(device->region, REGION_BYTES);
    fg_mem_free(device);
}

static const char *apart_isa(const fg_device *device)
{
    return "apart";
}

static const char *apart_numerics(const fg_device *device)
{
    return "apart/k6";
}

static uint32_t apart_thread_count(const fg_device *device)
{
    return fg_cpu_backend.thread_count(device->cpu);
}

static fg_device_reach apart_memory_reach(const fg_device *device)
{
    return FG_REACH_CUDA;
}

static void apart_bind_thread(const fg_device *device)
{
}

static void free_stream(fg_device_stream *stream)
{
    fg_mem_free(stream->recordings);
    fg_mem_free(stream->late);
    fg_mem_free(stream->late_steps);
    fg_mem_free(stream);
}

static fg_status apart_stream_open(fg_device *device, fg_device_stream **stream_out, fg_error *err)
{
    fg_device_stream *stream = fg_mem_alloc(sizeof *stream);
    if (stream == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for a stream");
    }
    stream->backend = &apart;
    stream->device = device;
    stream->recordings = fg_mem_array(RECORDINGS, sizeof *stream->recordings);
    stream->late = fg_mem_array(LATE_OPS, sizeof *stream->late);
    stream->late_steps = fg_mem_array(LATE_STEPS, sizeof *stream->late_steps);
    fg_status status = FG_OK;
    if (stream->recordings == NULL || stream->late == NULL || stream->late_steps == NULL) {
        status = fg_fail(err, FG_AGAIN, "out of memory for a stream");
    }
    status = status != FG_OK ? status : fg_cpu_backend.stream_open(device->cpu, &stream->cpu, err);
    if (status != FG_OK) {
        free_stream(stream);
        return status;
    }
    *stream_out = stream;
    return FG_OK;
}

static void apart_stream_close(fg_device_stream *stream)
{
    FG_ASSERT(stream->ran == stream->given, "operations that nobody has waited for");
    fg_cpu_backend.stream_close(stream->cpu);
    free_stream(stream);
}

static void give(fg_device_stream *stream, op *o);
static void run_late(fg_device_stream *stream, uint64_t until);

static void apart_copy_rows(fg_device_stream *stream, const fg_copy_rows *copy)
{
    FG_ASSERT(stream->recording == NULL ||
              (is_apart(stream->device, copy->target) && is_apart(stream->device, copy->source)));
    give(stream, &(op){ .kind = OP_COPY, .copy = *copy });
}

static void apart_copy(fg_device_stream *stream, void *target, const void *source,
                       size_t size_bytes)
{
    apart_copy_rows(
        stream,
        &(fg_copy_rows){ .target = target, .source = source, .row_bytes = size_bytes, .rows = 1 });
}

/* An event is how many operations were given before it. */
static fg_device_event apart_event_record(fg_device_stream *stream)
{
    FG_ASSERT(stream->recording == NULL);
    stream->asked = 0;
    stream->events = stream->given;
    return (fg_device_event){ .sequence = stream->given };
}

static void apart_event_wait(fg_device_stream *stream, fg_device_event event)
{
    FG_ASSERT(stream->recording == NULL && event.sequence <= stream->given);
    run_late(stream, event.sequence);
}

static bool apart_event_ended(fg_device_stream *stream, fg_device_event event)
{
    FG_ASSERT(stream->recording == NULL && event.sequence <= stream->given);
    if (event.sequence == stream->events && stream->asked++ < apart_patience) {
        return false;
    }
    run_late(stream, event.sequence);
    return true;
}

static void apart_share_work(fg_device_stream *stream, uint32_t pieces,
                             void (*work)(void *ctx, uint32_t piece, uint32_t member), void *ctx)
{
    FG_ASSERT(stream->recording == NULL);
    fg_cpu_backend.share_work(stream->cpu, pieces, work, ctx);
}

/* ---- the rows of a step ---- */

static void stage_rows(const fg_step_rows *rows, staged *s)
{
    FG_ASSERT(rows->rows <= STAGED_ROWS && rows->row_id_count <= rows->rows);
    s->host = *rows;
    s->real_rows = 0;
    memcpy(s->tokens, rows->tokens, rows->rows * sizeof *s->tokens);
    memcpy(s->positions, rows->positions, rows->rows * sizeof *s->positions);
    memcpy(s->row_ids, rows->row_ids, rows->row_id_count * sizeof *s->row_ids);
    for (uint32_t i = 0; i < rows->rows; i++) {
        const fg_kv_row *row = &rows->kv_rows[i];
        s->kv_rows[i] = *row;
        FG_ASSERT(row->twin == NULL && row->position == rows->positions[i]);
        if (row->block_ids == NULL) {
            continue;
        }
        FG_ASSERT(s->real_rows == i, "rows that pad come last");
        s->real_rows = i + 1;
        bool same = i > 0 && rows->kv_rows[i - 1].block_ids == row->block_ids;
        s->kv_rows[i].block_ids = same ? s->kv_rows[i - 1].block_ids : s->blocks[i];
        uint32_t *ids = (uint32_t *)(uintptr_t)s->kv_rows[i].block_ids;
        memcpy(ids, row->block_ids, (row->position / 16 + 1) * sizeof *ids);
    }
}

static void apart_stage(fg_device_stream *stream, const fg_step_rows *rows)
{
    FG_ASSERT(stream->recording == NULL);
    staged *s = &stream->staged;
    if (apart_is_late) {
        s = &stream->late_steps[stream->staged_count++ % LATE_STEPS];
    }
    stage_rows(rows, s);
    give(stream, &(op){ .kind = OP_STAGE, .staged = s });
}

/* The block tables are where the rows were staged: that place is not used again before the step's operations have run. */
static void take_stage(fg_device_stream *stream, const staged *from)
{
    if (from != &stream->staged) {
        stream->staged = *from;
    }
}

/* Where the device has what the host calls this. */
static const uint32_t *numbers_of(const staged *s, const uint32_t *host)
{
    uintptr_t at = (uintptr_t)host;
    if (at >= (uintptr_t)s->host.tokens && at < (uintptr_t)(s->host.tokens + s->host.rows)) {
        return s->tokens + (host - s->host.tokens);
    }
    if (at >= (uintptr_t)s->host.positions && at < (uintptr_t)(s->host.positions + s->host.rows)) {
        return s->positions + (host - s->host.positions);
    }
    FG_ASSERT(at >= (uintptr_t)s->host.row_ids &&
                  at < (uintptr_t)(s->host.row_ids + s->host.row_id_count),
              "numbers that were not staged");
    return s->row_ids + (host - s->host.row_ids);
}

static const fg_kv_row *kv_rows_of(const staged *s, const fg_kv_row *host)
{
    FG_ASSERT(host >= s->host.kv_rows && host < s->host.kv_rows + s->host.rows);
    return s->kv_rows + (host - s->host.kv_rows);
}

/* ---- operations ---- */

static void run_attention(fg_device_stream *stream, op *o)
{
    const staged *s = &stream->staged;
    fg_paged_kv kv = o->kv;
    const fg_kv_row *kv_rows =
        kv_rows_of(s, o->kind == OP_ATTEND ? o->attend.kv_rows : o->store.kv_rows);
    uint32_t first = (uint32_t)(kv_rows - s->kv_rows);
    uint32_t rows = first < s->real_rows ? s->real_rows - first : 0;
    rows = rows < o->rows ? rows : o->rows;
    FG_ASSERT(is_apart(stream->device, kv.arena), "the arena is the host's");
    if (rows > 0 && o->kind == OP_ATTEND) {
        fg_attend attend = o->attend;
        attend.kv_rows = kv_rows;
        /* The CPU makes its form of whole rows. */
        float *kept = NULL;
        if (attend.out == NULL) {
            kept = calloc((size_t)rows * attend.head_count * kv.head_dim, sizeof *kept);
            FG_ASSERT(kept != NULL);
            attend.out = kept;
        }
        fg_cpu_backend.attend(stream->cpu, &kv, &attend, rows);
        if (attend.pairs != NULL) {
            fg_activations out = { .values = attend.out,
                                   .pairs = attend.pairs,
                                   .columns = attend.head_count * kv.head_dim };
            fg_cpu_backend.prepare(stream->cpu, &out, FG_FORM_PAIRS, rows);
        }
        free(kept);
    } else if (rows > 0) {
        fg_rope_store store = o->store;
        store.kv_rows = kv_rows;
        fg_cpu_backend.rope_store(stream->cpu, &kv, &store, rows);
    }
}

static void choose_there(fg_device_stream *stream, uint32_t row, uint32_t token)
{
    if (row < FG_CHOSEN_ROWS) {
        stream->chosen[row] = token;
    }
}

/* Tokens as they were staged, or as they have been chosen meanwhile. */
static void run_embed(fg_device_stream *stream, const op *o)
{
    const uint32_t *tokens = numbers_of(&stream->staged, o->numbers);
    for (uint32_t row = 0; row < o->rows; row++) {
        uint32_t token = tokens[row];
        if ((token & FG_TOKEN_CHOSEN) != 0) {
            token = stream->chosen[token & ~FG_TOKEN_CHOSEN];
            token = token < o->table.outputs ? token : 0;
            apart_followed++;
        }
        fg_cpu_backend.embed(stream->cpu, &o->table, &token, 1, o->scale,
                             o->out + (size_t)row * o->table.columns);
    }
}

static void run_choose(fg_device_stream *stream, const fg_choose *args, uint32_t rows)
{
    FG_ASSERT(is_apart(stream->device, args->logits) && !is_apart(stream->device, args->wanted) &&
              !is_apart(stream->device, args->choices) && !is_apart(stream->device, args->tops));
    fg_sampler *sampler = fg_sampler_create(args->columns);
    FG_ASSERT(sampler != NULL);
    for (uint32_t row = 0; row < rows; row++) {
        const fg_choice_row *want = &args->wanted[row];
        const float *logits = args->logits + (size_t)row * args->columns;
        fg_sampling sampling = { .temperature = want->temperature,
                                 .top_p = want->top_p,
                                 .min_p = want->min_p,
                                 .top_k = want->top_k,
                                 .seed = want->seed };
        if (want->wanted != 0 && want->top_k == LEFT_TOP_K) {
            args->choices[row] = FG_CHOICE_NONE;
            choose_there(stream, row, FG_CHOICE_NONE);
        } else if (want->wanted != 0) {
            args->choices[row] =
                fg_sampler_pick(sampler, logits, &sampling, want->choice, want->position);
            args->tops[row] = logits[args->choices[row]];
            choose_there(stream, row, args->choices[row]);
            apart_chosen++;
        }
    }
    fg_sampler_destroy(sampler);
}

/* Parts are sent as they lie, with as many columns as the widest rank has. */
static void run_gather(const fg_comm *comm, const fg_comm_gather *gather, uint32_t rows)
{
    const uint32_t *firsts = gather->firsts;
    uint32_t columns = firsts[comm->ranks], widest = 0;
    for (uint32_t rank = 0; rank < comm->ranks; rank++) {
        uint32_t own = firsts[rank + 1] - firsts[rank];
        widest = own > widest ? own : widest;
    }
    FG_ASSERT(is_apart(comm->stream->device, gather->own) &&
              is_apart(comm->stream->device, gather->all));
    memcpy(comm->sent, gather->own, (size_t)rows * widest * sizeof(float));
    exchange_all(comm->exchange, comm->sent, comm->got, (size_t)rows * widest * sizeof(float));
    for (uint32_t rank = 0; rank < comm->ranks; rank++) {
        uint32_t own = firsts[rank + 1] - firsts[rank];
        for (uint32_t row = 0; row < rows; row++) {
            memcpy(gather->all + (size_t)row * columns + firsts[rank],
                   comm->got + (size_t)rank * rows * widest + (size_t)row * own,
                   own * sizeof(float));
        }
    }
    apart_gathered++;
}

static void run_op(fg_device_stream *stream, op *o)
{
    const staged *s = &stream->staged;
    fg_rmsnorm norm = o->norm;
    switch (o->kind) {
    case OP_PREPARE:
        fg_cpu_backend.prepare(stream->cpu, &o->in, o->count, o->rows);
        break;
    case OP_LINEAR:
        fg_cpu_backend.linear(stream->cpu, o->linears, o->count, &o->in, o->rows);
        break;
    case OP_GATED:
        fg_cpu_backend.gated(stream->cpu, &o->gated, &o->in, o->rows);
        break;
    case OP_HIGHEST:
        FG_ASSERT(!is_apart(stream->device, o->choices) && !is_apart(stream->device, o->out));
        for (uint32_t row = 0; row < o->rows; row++) {
            size_t at = (size_t)row * o->in.columns;
            fg_activations in = o->in;
            in.values += at;
            in.quants += at;
            in.groups += at / FG_QUANT_GROUP;
            in.pairs += (size_t)row * fg_pair_stride(o->in.columns);
            fg_cpu_backend.highest(stream->cpu, &o->weight, &in, 1, o->choices + row, o->out + row);
            choose_there(stream, row, o->choices[row]);
        }
        break;
    case OP_CHOOSE:
        run_choose(stream, &o->choose, o->rows);
        break;
    case OP_EMBED:
        run_embed(stream, o);
        break;
    case OP_RMSNORM:
        norm.row_ids = norm.row_ids == NULL ? NULL : numbers_of(s, norm.row_ids);
        fg_cpu_backend.rmsnorm(stream->cpu, &norm, o->rows);
        break;
    case OP_FINITE:
        FG_ASSERT(!is_apart(stream->device, o->choices));
        fg_cpu_backend.finite(stream->cpu, o->values, o->count, o->rows, o->choices);
        break;
    case OP_ROPE_TABLE:
        fg_cpu_backend.rope_table(stream->cpu, numbers_of(s, o->numbers), o->rows, &o->turns,
                                  o->out);
        break;
    case OP_ROPE_STORE:
    case OP_ATTEND:
        run_attention(stream, o);
        break;
    case OP_DIGEST:
        FG_ASSERT(is_apart(stream->device, o->digest.base) &&
                  !is_apart(stream->device, o->digest.ids) &&
                  !is_apart(stream->device, o->digest.digests));
        fg_cpu_backend.digest(stream->cpu, &o->digest, o->count);
        break;
    case OP_COPY:
        fg_cpu_backend.copy_rows(stream->cpu, &o->copy);
        break;
    case OP_STAGE:
        take_stage(stream, o->staged);
        break;
    case OP_GATHER:
        run_gather(o->comm, &o->gather, o->rows);
        break;
    }
}

static void run_late(fg_device_stream *stream, uint64_t until)
{
    open_region(stream->device);
    for (; stream->ran < until; stream->ran++) {
        run_op(stream, &stream->late[stream->ran % LATE_OPS]);
    }
    close_region(stream->device);
}

/* Runs it, now or later, and writes it down where a recording is made. */
static void give(fg_device_stream *stream, op *o)
{
    if (stream->recording != NULL) {
        FG_ASSERT(stream->recording->count < RECORDED_OPS);
        stream->recording->ops[stream->recording->count++] = *o;
    }
    FG_ASSERT(stream->given - stream->ran < LATE_OPS, "nobody waits for what is given");
    stream->late[stream->given++ % LATE_OPS] = *o;
    if (!apart_is_late) {
        run_late(stream, stream->given);
    }
}

static bool apart_replay_begin(fg_device_stream *stream, uint64_t key)
{
    FG_ASSERT(stream->recording == NULL);
    for (uint32_t i = 0; i < stream->recording_count; i++) {
        recording *r = &stream->recordings[i];
        for (uint32_t at = 0; r->key == key && at < r->count; at++) {
            give(stream, &r->ops[at]);
        }
        if (r->key == key) {
            apart_replayed++;
            return true;
        }
    }
    FG_ASSERT(stream->recording_count < RECORDINGS, "more shapes of steps than expected");
    stream->recording = &stream->recordings[stream->recording_count++];
    stream->recording->key = key;
    apart_recorded++;
    return false;
}

static void apart_replay_end(fg_device_stream *stream)
{
    FG_ASSERT(stream->recording != NULL);
    stream->recording = NULL;
}

static void apart_prepare(fg_device_stream *stream, const fg_activations *activations,
                          uint32_t forms, uint32_t rows)
{
    give(stream, &(op){ .kind = OP_PREPARE, .in = *activations, .count = forms, .rows = rows });
}

static void apart_linear(fg_device_stream *stream, const fg_linear *linears, uint32_t linear_count,
                         const fg_activations *in, uint32_t rows)
{
    op o = { .kind = OP_LINEAR, .in = *in, .count = linear_count, .rows = rows };
    FG_ASSERT(linear_count <= LINEARS);
    memcpy(o.linears, linears, linear_count * sizeof *linears);
    give(stream, &o);
}

static void apart_gated(fg_device_stream *stream, const fg_gated *gated, const fg_activations *in,
                        uint32_t rows)
{
    give(stream, &(op){ .kind = OP_GATED, .gated = *gated, .in = *in, .rows = rows });
}

static void apart_highest(fg_device_stream *stream, const fg_panels *weight,
                          const fg_activations *in, uint32_t rows, uint32_t *choices, float *tops)
{
    give(stream, &(op){ .kind = OP_HIGHEST,
                        .weight = *weight,
                        .in = *in,
                        .rows = rows,
                        .choices = choices,
                        .out = tops });
}

static void apart_choose(fg_device_stream *stream, const fg_choose *args, uint32_t rows)
{
    give(stream, &(op){ .kind = OP_CHOOSE, .choose = *args, .rows = rows });
}

static void apart_embed(fg_device_stream *stream, const fg_matrix *table, const uint32_t *tokens,
                        uint32_t rows, float scale, float *out)
{
    give(stream, &(op){ .kind = OP_EMBED,
                        .table = *table,
                        .numbers = tokens,
                        .rows = rows,
                        .scale = scale,
                        .out = out });
}

static void apart_rmsnorm(fg_device_stream *stream, const fg_rmsnorm *args, uint32_t rows)
{
    give(stream, &(op){ .kind = OP_RMSNORM, .norm = *args, .rows = rows });
}

static void apart_finite(fg_device_stream *stream, const float *values, uint32_t columns,
                         uint32_t rows, uint32_t *finite)
{
    give(stream, &(op){ .kind = OP_FINITE,
                        .values = values,
                        .count = columns,
                        .rows = rows,
                        .choices = finite });
}

static void apart_rope_table(fg_device_stream *stream, const uint32_t *positions, uint32_t rows,
                             const fg_rope_turns *turns, float *table)
{
    give(stream, &(op){ .kind = OP_ROPE_TABLE,
                        .numbers = positions,
                        .rows = rows,
                        .turns = *turns,
                        .out = table });
}

static void apart_rope_store(fg_device_stream *stream, const fg_paged_kv *kv,
                             const fg_rope_store *args, uint32_t rows)
{
    give(stream, &(op){ .kind = OP_ROPE_STORE, .kv = *kv, .store = *args, .rows = rows });
}

static void apart_attend(fg_device_stream *stream, const fg_paged_kv *kv, const fg_attend *args,
                         uint32_t rows)
{
    give(stream, &(op){ .kind = OP_ATTEND, .kv = *kv, .attend = *args, .rows = rows });
}

static void apart_digest(fg_device_stream *stream, const fg_digest_blocks *args, uint32_t count)
{
    give(stream, &(op){ .kind = OP_DIGEST, .digest = *args, .count = count });
}

static uint32_t apart_linear_form(uint32_t type)
{
    return fg_cpu_backend.linear_form(type);
}

/* ---- communicators: there are some where APART_COMM is set; "1": but rank 1 cannot open its own ---- */

static fg_status apart_comm_make_name(fg_device *device, fg_comm_name *name_out, fg_error *err)
{
    if (getenv("APART_COMM") == NULL) {
        return fg_fail(err, FG_BAD_INPUT, "no communicators are wanted");
    }
    exchange_make_name((char *)name_out->bytes);
    return FG_OK;
}

static void apart_comm_close(fg_comm *comm)
{
    comm->stream->recording_count = 0;
    exchange_leave(comm->exchange);
    fg_mem_free(comm->sent);
    fg_mem_free(comm->got);
    fg_mem_free(comm);
}

static fg_status apart_comm_open(fg_device_stream *stream, const fg_comm_options *options,
                                 fg_comm **comm_out, fg_error *err)
{
    if (atoi(getenv("APART_COMM")) == 1 && options->rank == 1) {
        return fg_fail(err, FG_BAD_INPUT, "it was told not to");
    }
    fg_comm *comm = fg_mem_alloc(sizeof *comm);
    if (comm == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for a communicator");
    }
    comm->backend = &apart;
    comm->stream = stream;
    comm->rank = options->rank;
    comm->ranks = options->ranks;
    comm->sent = fg_mem_array(options->row_max, STAGED_ROWS * sizeof(float));
    comm->got = fg_mem_array(options->row_max, STAGED_ROWS * sizeof(float));
    if (comm->sent == NULL || comm->got == NULL) {
        apart_comm_close(comm);
        return fg_fail(err, FG_AGAIN, "out of memory for a communicator");
    }
    comm->exchange =
        exchange_join((const char *)options->name.bytes, options->rank, options->ranks);
    *comm_out = comm;
    return FG_OK;
}

static bool apart_comm_is_open(fg_comm *comm, fg_status *status_out, fg_error *err)
{
    *status_out = FG_OK;
    return exchange_is_met(comm->exchange);
}

static const char *apart_comm_way(const fg_comm *comm)
{
    return "memory";
}

static fg_status apart_comm_check(fg_comm *comm, fg_error *err)
{
    return apart_comm_is_broken ? fg_fail(err, FG_BROKEN, "it was told to break") : FG_OK;
}

static void apart_comm_gather(fg_comm *comm, const fg_comm_gather *gather, uint32_t rows)
{
    give(comm->stream, &(op){ .kind = OP_GATHER, .comm = comm, .gather = *gather, .rows = rows });
}

static const fg_backend apart = {
    .abi = FG_BACKEND_ABI,
    .table_bytes = sizeof(fg_backend),
    .kind = "cuda",
    .host_memory = false,
    .device_count = apart_count,
    .device_describe = apart_describe,
    .open = apart_open,
    .close = apart_close,
    .isa = apart_isa,
    .numerics = apart_numerics,
    .thread_count = apart_thread_count,
    .memory_reach = apart_memory_reach,
    .bind_thread = apart_bind_thread,
    .alloc = apart_alloc,
    .free = apart_free,
    .pin = apart_pin,
    .unpin = apart_unpin,
    .load = apart_load,
    .pack = apart_pack,
    .stream_open = apart_stream_open,
    .stream_close = apart_stream_close,
    .copy = apart_copy,
    .copy_rows = apart_copy_rows,
    .event_record = apart_event_record,
    .event_wait = apart_event_wait,
    .event_ended = apart_event_ended,
    .share_work = apart_share_work,
    .replay_begin = apart_replay_begin,
    .replay_end = apart_replay_end,
    .linear_form = apart_linear_form,
    .stage = apart_stage,
    .prepare = apart_prepare,
    .linear = apart_linear,
    .gated = apart_gated,
    .highest = apart_highest,
    .choose = apart_choose,
    .embed = apart_embed,
    .rmsnorm = apart_rmsnorm,
    .finite = apart_finite,
    .rope_table = apart_rope_table,
    .rope_store = apart_rope_store,
    .attend = apart_attend,
    .comm_make_name = apart_comm_make_name,
    .comm_open = apart_comm_open,
    .comm_is_open = apart_comm_is_open,
    .comm_way = apart_comm_way,
    .comm_check = apart_comm_check,
    .comm_close = apart_comm_close,
    .comm_gather = apart_comm_gather,
    .digest = apart_digest,
};

const fg_backend *forge_backend(void);
const fg_backend *forge_backend(void)
{
    return &apart;
}
