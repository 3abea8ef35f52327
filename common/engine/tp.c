#include "common/engine/tp.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/thread.h"
#include "common/engine/tp_region.h"
#include "kernels/ops.h"

extern char **environ;

/* As long as a team's threads look: the gaps between a step's operations, much less than a time slice. */
enum { SPIN_NS = 20000, SPIN_LOOKS = 16 };

/* The others end with rank 0, without looking. */
enum { SELDOM_NS = 900000000 };

enum { END_MS = 5000, END_LOOK_MS = 2 };

/* Of a rank that was started as this program. */
enum { FIRST_FREE_FD = FG_TP_ARENA_FD + 1 };

/* --- memory --- */

/* Takes `count` items, on a cache line of their own. */
static void *take(uint8_t *base, size_t *at, size_t count, size_t item_bytes, bool *overflow)
{
    size_t size_bytes;
    *overflow |= __builtin_mul_overflow(count, item_bytes, &size_bytes) ||
                 size_bytes > SIZE_MAX / 2 || *at > SIZE_MAX / 4;
    void *taken = *overflow || base == NULL ? NULL : base + *at;
    *at += *overflow ? 0 : (size_bytes + 63) & ~(size_t)63;
    return taken;
}

size_t fg_tp_lay_out(const fg_tp_orders *orders, void *region, fg_tp_memory *memory)
{
    const fg_engine_limits *limits = &orders->limits;
    /* A few may be padded. */
    size_t rows =
        limits->step_tokens_max > FG_CHOSEN_ROWS ? limits->step_tokens_max : FG_CHOSEN_ROWS;
    size_t tables = (size_t)limits->step_seqs_max *
                    fg_kv_blocks_for(limits->context_max, orders->layout.block_size);
    size_t at = (sizeof(fg_tp_region) + 63) & ~(size_t)63;
    bool overflow = false;
    const struct {
        void **target;
        size_t count;
    } parts[] = {
        { (void **)&memory->tokens, rows },
        { (void **)&memory->positions, rows },
        { (void **)&memory->tables, rows },
        { (void **)&memory->block_ids, tables },
        { (void **)&memory->row_ids, rows },
        { (void **)&memory->kinds, rows },
        { (void **)&memory->residual, rows * orders->embedding_length },
        { (void **)&memory->attended, (size_t)orders->tile_rows * orders->q_columns },
        { (void **)&memory->hidden, (size_t)orders->tile_rows * orders->hidden_columns },
        { (void **)&memory->added, (size_t)orders->tile_rows * orders->embedding_length },
        { (void **)&memory->logits, (size_t)FG_TP_HEAD_ROWS * orders->vocab_size },
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        *parts[i].target = take(region, &at, parts[i].count, sizeof(uint32_t), &overflow);
    }
    for (uint32_t rank = 0; rank < orders->size; rank++) {
        memory->choices[rank] =
            take(region, &at, FG_TP_HEAD_ROWS, sizeof *memory->choices[0], &overflow);
        memory->tops[rank] = take(region, &at, FG_TP_HEAD_ROWS, sizeof *memory->tops[0], &overflow);
    }
    memory->copies = take(region, &at, FG_TP_LIST_MAX, sizeof *memory->copies, &overflow);
    memory->digests = take(region, &at, FG_TP_LIST_MAX, sizeof *memory->digests, &overflow);
    return overflow ? 0 : at;
}

/* --- waiting --- */

/* False: in all that time nothing happened. No call that is private to a process: the words are in memory that several map. */
static bool sleep_while(_Atomic uint32_t *word, uint32_t value, long most_ns)
{
    struct timespec wait = { .tv_nsec = most_ns };
    long woken = syscall(SYS_futex, (void *)word, FUTEX_WAIT, value, &wait, NULL, 0);
    return woken == 0 || errno != ETIMEDOUT;
}

void fg_tp_tell(fg_tp *tp, _Atomic uint32_t *word, uint32_t value)
{
    atomic_store(word, value);
    for (uint32_t i = 0; i < tp->size; i++) {
        if (i != tp->rank && atomic_load(&tp->region->slots[i].sleeps) != 0) {
            syscall(SYS_futex, (void *)word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
            return;
        }
    }
}

static bool is_there(_Atomic uint32_t *word, uint32_t least)
{
    return (int32_t)(atomic_load(word) - least) >= 0;
}

static bool spin_for(_Atomic uint32_t *word, uint32_t least)
{
    fg_clock clock = fg_clock_real();
    uint64_t until_ns = fg_clock_now_ns(&clock) + SPIN_NS;
    do {
        for (int look = 0; look < SPIN_LOOKS; look++) {
            if (is_there(word, least)) {
                return true;
            }
            fg_thread_relax();
        }
    } while (fg_clock_now_ns(&clock) < until_ns);
    return false;
}

static bool has_ended(pid_t pid)
{
    siginfo_t info = { .si_pid = 0 };
    return waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid != 0;
}

/* What runs cannot be finished, and whoever is asked next could not compute: the cluster gives it to another worker. */
static _Noreturn void give_up(const fg_tp *tp, uint32_t rank, const char *why)
{
    fg_err("engine", "event=rank_lost rank=%u pid=%d why=\"%s: this worker ends\"", rank,
           (int)tp->pids[rank], why);
    _exit(1);
}

/* Rank 0 looks at those it has started; they end with it without looking. */
static void check_rank(const fg_tp *tp, uint32_t rank, uint32_t looks)
{
    if (tp->rank != 0) {
        if (getppid() != tp->region->orders.leader) {
            _exit(1);
        }
        return;
    }
    if (has_ended(tp->pids[rank])) {
        give_up(tp, rank, "its process has ended");
    }
    if (looks >= FG_TP_LOOKS_MAX) {
        give_up(tp, rank, "it has not answered for a minute");
    }
}

void fg_tp_wait(fg_tp *tp, _Atomic uint32_t *word, uint32_t least, uint32_t rank)
{
    if (spin_for(word, least)) {
        return;
    }
    _Atomic uint32_t *sleeps = &tp->region->slots[tp->rank].sleeps;
    uint32_t looks = 0;
    atomic_store(sleeps, 1);
    for (;;) {
        uint32_t value = atomic_load(word);
        if ((int32_t)(value - least) >= 0) {
            break;
        }
        bool woken = sleep_while(word, value, tp->rank == 0 ? FG_TP_LOOK_NS : SELDOM_NS);
        if (!woken && !is_there(word, least)) {
            check_rank(tp, rank, looks++);
        }
    }
    atomic_store(sleeps, 0);
}

void fg_tp_meet(fg_tp *tp)
{
    if (tp == NULL) {
        return;
    }
    fg_tp_slot *slots = tp->region->slots;
    fg_tp_tell(tp, &slots[tp->rank].met, ++tp->met);
    for (uint32_t i = 0; i < tp->size; i++) {
        if (i != tp->rank) {
            fg_tp_wait(tp, &slots[i].met, tp->met, i);
        }
    }
}

/* --- parts --- */

uint32_t fg_tp_size(const fg_tp *tp)
{
    return tp == NULL ? 1 : tp->size;
}

uint32_t fg_tp_rank(const fg_tp *tp)
{
    return tp == NULL ? 0 : tp->rank;
}

const fg_tp_memory *fg_tp_memory_of(const fg_tp *tp)
{
    return &tp->memory;
}

const fg_shared *fg_tp_shared(const fg_tp *tp)
{
    return &tp->shared;
}

uint32_t fg_tp_first_of(const fg_tp *tp, uint32_t rank, uint32_t count, uint32_t unit)
{
    uint64_t units = ((uint64_t)count + unit - 1) / unit;
    uint64_t first = units * rank / tp->size * unit;
    return first < count ? (uint32_t)first : count;
}

fg_tp_part fg_tp_part_of(const fg_tp *tp, uint32_t count, uint32_t unit)
{
    if (tp == NULL) {
        return (fg_tp_part){ .count = count };
    }
    uint32_t first = fg_tp_first_of(tp, tp->rank, count, unit);
    return (fg_tp_part){ .first = first,
                         .count = fg_tp_first_of(tp, tp->rank + 1, count, unit) - first };
}

uint32_t fg_tp_widest(const fg_tp *tp, uint32_t count, uint32_t unit)
{
    uint32_t widest = 0;
    for (uint32_t rank = 0; rank < tp->size; rank++) {
        uint32_t own =
            fg_tp_first_of(tp, rank + 1, count, unit) - fg_tp_first_of(tp, rank, count, unit);
        widest = own > widest ? own : widest;
    }
    return widest;
}

typedef struct put_work {
    const fg_tp_columns *columns;
    uint32_t rows, rows_each;
} put_work;

static void put_rows(void *ctx, uint32_t piece, uint32_t member)
{
    const put_work *work = ctx;
    const fg_tp_columns *c = work->columns;
    uint32_t end = (piece + 1) * work->rows_each;
    for (uint32_t row = piece * work->rows_each; row < end && row < work->rows; row++) {
        memcpy(c->common + (size_t)row * c->columns + c->part.first,
               c->own + (size_t)row * c->part.count, c->part.count * sizeof(float));
    }
}

static void put_host(fg_device_stream *stream, const fg_tp_columns *columns, uint32_t rows)
{
    enum { ROWS_EACH = 8 };
    if (columns->own != NULL) {
        put_work work = { .columns = columns, .rows = rows, .rows_each = ROWS_EACH };
        fg_device_share_work(stream, (rows + ROWS_EACH - 1) / ROWS_EACH, put_rows, &work);
    }
}

/* From a device's memory, which is done when it is there. */
static void put_device(fg_tp *tp, fg_device_stream *stream, const fg_tp_columns *c, uint32_t rows)
{
    bool apart = c->own != NULL;
    uint32_t stride = apart ? c->part.count : c->columns;
    const fg_copy_rows copy = { .target = c->common + c->part.first,
                                .target_stride = c->columns * sizeof(float),
                                .source = apart ? c->own : c->all + c->part.first,
                                .source_stride = stride * sizeof(float),
                                .row_bytes = c->part.count * sizeof(float),
                                .rows = rows };
    fg_device_copy_rows(stream, &copy);
    fg_tp_wait_device(tp, stream, fg_device_event_record(stream));
}

/* From device to device. */
static void put_everywhere(const fg_tp *tp, const fg_tp_columns *c, uint32_t rows)
{
    fg_comm_gather gather = { .own = c->own, .all = c->all };
    FG_ASSERT(c->own != NULL, "a device sends what lies together");
    for (uint32_t rank = 0; rank <= tp->size; rank++) {
        gather.firsts[rank] = fg_tp_first_of(tp, rank, c->columns, c->unit);
    }
    fg_comm_gather_rows(tp->comm, &gather, rows);
}

/* What a device still reads of `common` when this returns, it has read before its rank puts anything else; and nobody
 * writes there again before all have put something else. */
void fg_tp_gather(fg_tp *tp, fg_device_stream *stream, const fg_tp_columns *columns, uint32_t rows)
{
    if (tp == NULL) {
        return;
    }
    if (columns->all == NULL) {
        put_host(stream, columns, rows);
        fg_tp_meet(tp);
        return;
    }
    if (tp->comm != NULL && !columns->for_host) {
        put_everywhere(tp, columns, rows);
        return;
    }
    put_device(tp, stream, columns, rows);
    fg_tp_meet(tp);
    if (!columns->for_host) {
        fg_device_copy(stream, columns->all, columns->common,
                       (size_t)rows * columns->columns * sizeof(float));
    }
}

/* --- devices --- */

/* The part of `text` behind `count` commas, its length in *length_out; NULL: there are fewer. */
static const char *item_of(const char *text, uint32_t count, size_t *length_out)
{
    for (; count > 0 && text != NULL; count--) {
        const char *comma = strchr(text, ',');
        text = comma == NULL ? NULL : comma + 1;
    }
    *length_out = text == NULL ? 0 : strcspn(text, ",");
    return text;
}

static bool has_items(const char *text, uint32_t count)
{
    size_t unused;
    return item_of(text, count - 1, &unused) != NULL && item_of(text, count, &unused) == NULL;
}

fg_status fg_tp_device(const char *devices, uint32_t size, uint32_t rank,
                       char device_out[FG_TP_DEVICE_MAX], fg_error *err)
{
    size_t length = 0;
    devices = devices == NULL ? "cpu" : devices;
    if (strchr(devices, ',') != NULL) {
        const char *item = item_of(devices, rank, &length);
        if (!has_items(devices, size) || length >= FG_TP_DEVICE_MAX) {
            return fg_fail(err, FG_BAD_INPUT,
                           "--device %.60s: with commas it names one device for each of %u "
                           "processes (--tensor-parallel-size)",
                           devices, size);
        }
        snprintf(device_out, FG_TP_DEVICE_MAX, "%.*s", (int)length, item);
        return FG_OK;
    }
    unsigned first = 0;
    bool numbered = strcmp(devices, "cuda") == 0;
    if (strncmp(devices, "cuda:", 5) == 0 && devices[5] != '\0' && strlen(devices) < 5 + 6) {
        numbered = devices[5 + strspn(devices + 5, "0123456789")] == '\0';
        first = numbered ? (unsigned)strtoul(devices + 5, NULL, 10) : 0;
    }
    if (numbered && size > 1) {
        snprintf(device_out, FG_TP_DEVICE_MAX, "cuda:%u", first + rank);
    } else {
        snprintf(device_out, FG_TP_DEVICE_MAX, "%.*s", FG_TP_DEVICE_MAX - 1, devices);
    }
    return FG_OK;
}

uint32_t fg_tp_device_count(const char *devices, uint32_t size)
{
    char names[FG_TP_RANKS_MAX][FG_TP_DEVICE_MAX];
    uint32_t count = 0;
    for (uint32_t rank = 0; rank < size && rank < FG_TP_RANKS_MAX; rank++) {
        uint32_t same = 0;
        if (fg_tp_device(devices, size, rank, names[count], NULL) != FG_OK) {
            break;
        }
        while (strcmp(names[same], names[count]) != 0) {
            same++;
        }
        count += same == count;
    }
    return count;
}

/* --- rank 0 --- */

static bool put_text(char *target, size_t room, const char *text)
{
    return (size_t)snprintf(target, room, "%s", text) < room;
}

static fg_status write_orders(const fg_engine_options *options, fg_tp_orders *orders, fg_error *err)
{
    const fg_weights_file *file = fg_weights_file_of(options->weights);
    const fg_core_share_options *share = options->tp->share;
    const fg_hparams *h = options->hparams;
    uint64_t threads = (uint64_t)options->thread_count * options->tp->size;
    if (file == NULL || !put_text(orders->model, sizeof orders->model, file->path)) {
        return fg_fail(err, FG_BAD_INPUT, "the model's file is needed by every rank");
    }
    if (threads > FG_TEAM_THREADS_MAX) {
        return fg_fail(err, FG_BAD_INPUT, "%u ranks with %u threads each are more than %d threads",
                       options->tp->size, options->thread_count, FG_TEAM_THREADS_MAX);
    }
    orders->magic = FG_TP_MAGIC;
    orders->size = options->tp->size;
    orders->leader = getpid();
    orders->model_bytes = file->size_bytes;
    orders->model_modified_ns = file->modified_ns;
    orders->has_fingerprint = options->fingerprint != NULL;
    if (orders->has_fingerprint) {
        orders->fingerprint = *options->fingerprint;
    }
    orders->thread_count = options->thread_count;
    orders->has_places = options->places != NULL;
    if (orders->has_places) {
        memcpy(orders->places, options->places, threads * sizeof *options->places);
    }
    orders->has_share = share != NULL;
    if (orders->has_share) {
        orders->share_cpus = *share->cpus;
        orders->share_cores = share->cores;
        orders->share_rank = share->rank;
    }
    orders->layout = options->layout;
    orders->block_count = options->block_count;
    orders->limits = options->limits;
    orders->embedding_length = h->embedding_length;
    orders->q_columns = h->head_count * h->head_dim;
    orders->hidden_columns = h->ffn_length * fg_hparams_hidden_rows(h);
    orders->vocab_size = h->vocab_size;
    orders->tile_rows =
        fg_device_kind_is_host(options->device) ? FG_TP_TILE_ROWS : options->limits.step_tokens_max;
    orders->is_host = fg_device_kind_is_host(options->device);
    orders->log_level = (int32_t)fg_log_get_level();
    (void)put_text(orders->process, sizeof orders->process, fg_log_process());
    orders->arena_is_shared = options->arena_is_shared || options->tier_arena != NULL;
    orders->has_cache = options->weights_cache != NULL;
    bool fits = put_text(orders->devices, sizeof orders->devices,
                         options->tp->devices == NULL ? "cpu" : options->tp->devices) &&
                put_text(orders->cpu_isa, sizeof orders->cpu_isa,
                         options->cpu_isa == NULL ? "auto" : options->cpu_isa) &&
                put_text(orders->weights_cache, sizeof orders->weights_cache,
                         orders->has_cache ? options->weights_cache : "") &&
                put_text(orders->share_directory, sizeof orders->share_directory,
                         share == NULL || share->directory == NULL ? "" : share->directory);
    return fits ? FG_OK : fg_fail(err, FG_BAD_INPUT, "a directory's name is too long");
}

/* What cannot be cut into so many parts. */
static fg_status check_size(const fg_engine_options *options, fg_error *err)
{
    const fg_hparams *h = options->hparams;
    uint32_t size = options->tp->size;
    uint32_t least = h->embedding_length < h->ffn_length ? h->embedding_length : h->ffn_length;
    bool is_least = h->shared_ffn_length > 0 && h->shared_ffn_length < least;
    least = is_least ? h->shared_ffn_length : least;
    least = least < h->vocab_size ? least : h->vocab_size;
    uint32_t most = least / FG_TP_PANEL < h->kv_head_count ? least / FG_TP_PANEL : h->kv_head_count;
    most = most < FG_TP_RANKS_MAX ? most : FG_TP_RANKS_MAX;
    if (options->tp->way == FG_TP_WAY_NCCL && fg_device_kind_is_host(options->device)) {
        return fg_fail(err, FG_BAD_INPUT, "--tp-gather nccl: on a CPU there is only host memory");
    }
    if (size > most) {
        return fg_fail(
            err, FG_BAD_INPUT,
            "--tensor-parallel-size %u: at most %u can share this model, which has %u KV "
            "heads and %u columns",
            size, most == 0 ? 1 : most, h->kv_head_count, least);
    }
    return FG_OK;
}

static fg_status start_program(void *ctx, uint32_t rank, int region_fd, int arena_fd,
                               pid_t *pid_out, fg_error *err)
{
    char number[16];
    snprintf(number, sizeof number, "%u", rank);
    char *argv[] = { "forge", "rank", number, NULL };
    /* Out of the way of what they become. */
    int region = fcntl(region_fd, F_DUPFD_CLOEXEC, FIRST_FREE_FD);
    int arena = arena_fd < 0 ? region : fcntl(arena_fd, F_DUPFD_CLOEXEC, FIRST_FREE_FD);
    posix_spawn_file_actions_t actions;
    int failed = region < 0 || arena < 0 ? errno : posix_spawn_file_actions_init(&actions);
    if (failed == 0) {
        failed = posix_spawn_file_actions_adddup2(&actions, region, FG_TP_REGION_FD);
        failed = failed != 0 ? failed
                             : posix_spawn_file_actions_adddup2(&actions, arena, FG_TP_ARENA_FD);
        failed = failed != 0 ? failed
                             : posix_spawn_file_actions_addclosefrom_np(&actions, FIRST_FREE_FD);
        failed = failed != 0
                     ? failed
                     : posix_spawn(pid_out, "/proc/self/exe", &actions, NULL, argv, environ);
        posix_spawn_file_actions_destroy(&actions);
    }
    if (arena != region) {
        close(arena);
    }
    close(region);
    return failed == 0
               ? FG_OK
               : fg_fail(err, FG_AGAIN, "rank %u did not start: %s", rank, strerror(failed));
}

static fg_status start_ranks(fg_tp *tp, const fg_tp_options *options, fg_error *err)
{
    fg_tp_start_fn start = options->start != NULL ? options->start : start_program;
    fg_shared_name arena = tp->region->orders.arena;
    int arena_fd = arena.kind == FG_SHARED_FILE ? arena.id : -1;
    for (uint32_t rank = 1; rank < tp->size; rank++) {
        fg_status status = start(options->ctx, rank, tp->shared.fd, arena_fd, &tp->pids[rank], err);
        if (status != FG_OK) {
            return status;
        }
        tp->started++;
        fg_info("engine", "event=rank_started rank=%u pid=%d", rank, (int)tp->pids[rank]);
    }
    return FG_OK;
}

fg_status fg_tp_lead(const fg_engine_options *options, fg_tp **tp_out, fg_error *err)
{
    fg_status status = check_size(options, err);
    if (status != FG_OK) {
        return status;
    }
    fg_tp *tp = fg_mem_alloc(sizeof *tp);
    fg_tp_orders *orders = fg_mem_alloc(sizeof *orders);
    if (tp == NULL || orders == NULL) {
        status = fg_fail(err, FG_AGAIN, "out of memory for the ranks");
        goto free;
    }
    orders->arena = fg_shared_find(options->arena);
    if (orders->arena.kind == FG_SHARED_NONE) {
        status = fg_fail(err, FG_BAD_INPUT,
                         "the processes of --tensor-parallel-size cannot share the KV blocks that "
                         "the link has taken: use --kv-transport tcp");
        goto free;
    }
    status = write_orders(options, orders, err);
    if (status != FG_OK) {
        goto free;
    }
    size_t size_bytes = fg_tp_lay_out(orders, NULL, &tp->memory);
    status = size_bytes == 0
                 ? fg_fail(err, FG_BAD_INPUT, "the step limits and the model's sizes overflow")
                 : fg_shared_create(size_bytes, false, &tp->shared, err);
    if (status != FG_OK) {
        goto free;
    }
    tp->region = tp->shared.memory;
    tp->region->orders = *orders;
    tp->size = orders->size;
    (void)fg_tp_lay_out(orders, tp->region, &tp->memory);
    status = start_ranks(tp, options->tp, err);
    if (status != FG_OK) {
        fg_tp_close(tp);
        tp = NULL;
        goto free;
    }
    fg_mem_free(orders);
    *tp_out = tp;
    return FG_OK;

free:
    fg_mem_free(orders);
    fg_mem_free(tp);
    return status;
}

static fg_status wait_for_one(const fg_tp *tp, uint32_t rank, const char *numerics, fg_error *err)
{
    fg_tp_slot *slot = &tp->region->slots[rank];
    /* A large model takes minutes to pack: only its end is waited for. */
    while (atomic_load(&slot->state) == FG_TP_LOADS) {
        sleep_while(&slot->state, FG_TP_LOADS, FG_TP_LOOK_NS);
        if (atomic_load(&slot->state) == FG_TP_LOADS && has_ended(tp->pids[rank])) {
            return fg_fail(err, FG_AGAIN, "rank %u ended while it loaded the model", rank);
        }
    }
    if (atomic_load(&slot->state) == FG_TP_FAILED) {
        return fg_fail(err, (fg_status)slot->status, "rank %u: %.*s", rank,
                       (int)sizeof slot->why - 1, slot->why);
    }
    if (strncmp(slot->numerics, numerics, sizeof slot->numerics) != 0) {
        return fg_fail(err, FG_BAD_INPUT,
                       "rank %u computes as %.*s, rank 0 as %s: answers would be neither's; give "
                       "all of them devices of one kind",
                       rank, (int)sizeof slot->numerics - 1, slot->numerics, numerics);
    }
    return FG_OK;
}

fg_status fg_tp_wait_ready(fg_tp *tp, const char *numerics, fg_error *err)
{
    fg_status status = FG_OK;
    atomic_store(&tp->region->slots[0].sleeps, 1);
    for (uint32_t rank = 1; rank < tp->size && status == FG_OK; rank++) {
        status = wait_for_one(tp, rank, numerics, err);
    }
    atomic_store(&tp->region->slots[0].sleeps, 0);
    return status;
}

void fg_tp_look(const fg_tp *tp)
{
    for (uint32_t rank = 1; tp != NULL && rank < tp->size; rank++) {
        if (has_ended(tp->pids[rank])) {
            give_up(tp, rank, "its process has ended");
        }
    }
}

void fg_tp_begin(fg_tp *tp, fg_tp_step step)
{
    tp->region->step = step;
    fg_tp_tell(tp, &tp->region->begun, ++tp->begun);
}

/* Who does not end by itself in `left_ms`, or still loads, is ended. */
static void end_rank(const fg_tp *tp, uint32_t rank, int *left_ms)
{
    pid_t pid = tp->pids[rank];
    bool loads = atomic_load(&tp->region->slots[rank].state) == FG_TP_LOADS;
    while (!has_ended(pid)) {
        if (loads || *left_ms <= 0) {
            kill(pid, SIGKILL);
            break;
        }
        usleep(END_LOOK_MS * 1000);
        *left_ms -= END_LOOK_MS;
    }
    waitpid(pid, NULL, 0);
}

void fg_tp_end(fg_tp *tp)
{
    if (tp != NULL && atomic_exchange(&tp->region->stop, 1) == 0) {
        fg_tp_tell(tp, &tp->region->begun, ++tp->begun);
    }
}

void fg_tp_close(fg_tp *tp)
{
    if (tp == NULL) {
        return;
    }
    fg_tp_end(tp);
    int left_ms = END_MS;
    for (uint32_t i = 1; i <= tp->started; i++) {
        end_rank(tp, i, &left_ms);
    }
    fg_shared_close(&tp->shared);
    fg_mem_free(tp);
}
