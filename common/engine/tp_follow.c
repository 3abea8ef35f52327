#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/engine/forward.h"
#include "common/engine/tp_region.h"

/* One rank that computes what rank 0 is given. */
typedef struct follower {
    fg_tp tp;
    fg_shared arena;
    fg_weights *weights;
    fg_hparams hparams;
    fg_core_share *share;
    char device[FG_TP_DEVICE_MAX];
    fg_forward *forward;
} follower;

static fg_status attach(follower *f, int region_fd, uint32_t rank, fg_error *err)
{
    struct stat file;
    if (fstat(region_fd, &file) != 0 || !S_ISREG(file.st_mode) ||
        (size_t)file.st_size < sizeof(fg_tp_region)) {
        return fg_fail(err, FG_BAD_INPUT, "ranks are started by the process that needs them");
    }
    fg_shared_name name = { .kind = FG_SHARED_FILE, .id = region_fd };
    fg_status status = fg_shared_attach(name, (size_t)file.st_size, &f->tp.shared, err);
    if (status != FG_OK) {
        return status;
    }
    fg_tp_region *region = f->tp.shared.memory;
    const fg_tp_orders *orders = &region->orders;
    if (orders->magic != FG_TP_MAGIC || orders->size > FG_TP_RANKS_MAX || rank == 0 ||
        rank >= orders->size ||
        fg_tp_lay_out(orders, region, &f->tp.memory) != f->tp.shared.size_bytes) {
        return fg_fail(err, FG_BAD_INPUT, "these are another program's ranks");
    }
    char process[FG_TP_WORD_MAX + 32];
    snprintf(process, sizeof process, "%.*s/rank-%u", FG_TP_WORD_MAX - 1, orders->process, rank);
    fg_log_set_process(process);
    fg_log_set_level((fg_log_level)orders->log_level);
    f->tp.region = region;
    f->tp.size = orders->size;
    f->tp.rank = rank;
    return FG_OK;
}

/* Whoever ends rank 0 ends this one; what a terminal or a supervisor tells all of them, rank 0 decides. */
static fg_status follow_leader(const follower *f, fg_error *err)
{
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != f->tp.region->orders.leader) {
        return fg_fail(err, FG_PEER_LOST, "rank 0 is gone");
    }
    static const int ignored[] = { SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGPIPE };
    for (size_t i = 0; i < sizeof ignored / sizeof ignored[0]; i++) {
        signal(ignored[i], SIG_IGN);
    }
    return FG_OK;
}

static fg_status open_model(follower *f, fg_error *err)
{
    const fg_tp_orders *orders = &f->tp.region->orders;
    fg_status status = fg_weights_open(orders->model, &f->weights, err);
    if (status != FG_OK) {
        return status;
    }
    const fg_weights_file *file = fg_weights_file_of(f->weights);
    if (file->size_bytes != orders->model_bytes || file->modified_ns != orders->model_modified_ns) {
        return fg_fail(err, FG_BAD_INPUT, "%s has changed meanwhile", orders->model);
    }
    return fg_hparams_read(f->weights, &f->hparams, err);
}

/* Without it all works as well, as rank 0 has said. */
static void open_share(follower *f)
{
    const fg_tp_orders *orders = &f->tp.region->orders;
    fg_core_share_options options = { .directory = orders->share_directory[0] != '\0'
                                                       ? orders->share_directory
                                                       : NULL,
                                      .cpus = &orders->share_cpus,
                                      .cores = orders->share_cores,
                                      .threads = orders->thread_count,
                                      .rank = orders->share_rank };
    if (orders->has_share) {
        (void)fg_core_share_open(&options, &f->share, NULL);
    }
}

static fg_status open_forward(follower *f, fg_error *err)
{
    const fg_tp_orders *orders = &f->tp.region->orders;
    fg_status status = fg_tp_device(orders->devices, f->tp.size, f->tp.rank, f->device, err);
    if (status != FG_OK) {
        return status;
    }
    if (fg_device_kind_is_host(f->device) != orders->is_host) {
        return fg_fail(err, FG_BAD_INPUT,
                       "%s: its work cannot be shared with another kind of device", f->device);
    }
    fg_engine_options options = {
        .device = f->device,
        .arena_is_shared = orders->arena_is_shared,
        .weights = f->weights,
        .hparams = &f->hparams,
        .layout = orders->layout,
        .arena = f->arena.memory,
        .block_count = orders->block_count,
        .limits = orders->limits,
        .thread_count = orders->thread_count,
        .places = orders->has_places ? orders->places + orders->thread_count * f->tp.rank : NULL,
        .share = f->share,
        .cpu_isa = orders->cpu_isa,
        .fingerprint = orders->has_fingerprint ? &orders->fingerprint : NULL,
        .weights_cache = orders->has_cache ? orders->weights_cache : NULL,
    };
    return fg_forward_create(&options, &f->tp, &f->forward, err);
}

static fg_status load(follower *f, int arena_fd, fg_error *err)
{
    const fg_tp_orders *orders = &f->tp.region->orders;
    fg_shared_name arena = orders->arena;
    arena.id = arena.kind == FG_SHARED_FILE ? arena_fd : arena.id;
    size_t arena_bytes;
    if (__builtin_mul_overflow(orders->layout.block_bytes, (size_t)orders->block_count,
                               &arena_bytes)) {
        return fg_fail(err, FG_BAD_INPUT, "too many KV blocks");
    }
    fg_status status = follow_leader(f, err);
    status = status != FG_OK ? status : open_model(f, err);
    status = status != FG_OK ? status : fg_shared_attach(arena, arena_bytes, &f->arena, err);
    if (status != FG_OK) {
        return status;
    }
    open_share(f);
    return open_forward(f, err);
}

static void run_steps(follower *f)
{
    fg_tp_region *region = f->tp.region;
    for (;;) {
        fg_tp_wait(&f->tp, &region->begun, ++f->tp.begun, 0);
        if (atomic_load(&region->stop) != 0) {
            return;
        }
        if (f->share != NULL) {
            fg_core_share_begin(f->share);
        }
        fg_forward_follow(f->forward, region->step);
        if (f->share != NULL) {
            fg_core_share_end(f->share);
        }
    }
}

static void close_all(follower *f)
{
    fg_forward_destroy(f->forward);
    fg_core_share_close(f->share);
    if (f->weights != NULL) {
        fg_weights_close(f->weights);
    }
    fg_shared_close(&f->arena);
    fg_shared_close(&f->tp.shared);
}

int fg_tp_follow(int region_fd, int arena_fd, uint32_t rank)
{
    fg_error err;
    follower f = { .tp = { .shared = { .fd = -1 } }, .arena = { .fd = -1 } };
    fg_status status = attach(&f, region_fd, rank, &err);
    if (status != FG_OK) {
        fprintf(stderr, "forge rank: %s\n", err.text);
        close_all(&f);
        return 2;
    }
    fg_tp_slot *slot = &f.tp.region->slots[rank];
    status = load(&f, arena_fd, &err);
    if (status == FG_OK) {
        snprintf(slot->numerics, sizeof slot->numerics, "%s",
                 fg_device_numerics(fg_forward_device(f.forward)));
        fg_tp_tell(&f.tp, &slot->state, FG_TP_READY);
        run_steps(&f);
    } else {
        slot->status = (uint32_t)status;
        snprintf(slot->why, sizeof slot->why, "%s", err.text);
        fg_tp_tell(&f.tp, &slot->state, FG_TP_FAILED);
    }
    close_all(&f);
    return status == FG_OK ? 0 : 1;
}

int fg_tp_follow_main(int argc, const char *const *argv)
{
    char *end = NULL;
    unsigned long rank = argc == 1 ? strtoul(argv[0], &end, 10) : 0;
    if (argc != 1 || end == argv[0] || *end != '\0' || rank >= FG_TP_RANKS_MAX) {
        fprintf(stderr,
                "forge rank: ranks are started by `forge serve --tensor-parallel-size N`\n");
        return 2;
    }
    return fg_tp_follow(FG_TP_REGION_FD, FG_TP_ARENA_FD, (uint32_t)rank);
}
