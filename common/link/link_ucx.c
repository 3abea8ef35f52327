/*
 * link_ucx - KV transfer over UCX: context, arena, progress. Owned by the loop thread.
 */
#include "common/link/link_ucx.h"

#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/statvfs.h>
#include <ucs/debug/debug.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/rng.h"

enum {
    PUMP_MAX = 1024, /* progress calls in one turn; the loop has other work as well */
    /* After a peer died with operations in flight, arming answers BUSY until its endpoint is closed:
     * an unbounded loop would hang. */
    ARM_MAX = 64,
    CLOSE_ROUNDS_MAX = 10000,
};

/* What UCX itself takes of /dev/shm, wherever the arena is: a queue and the first of its buffers (5 MiB in
 * UCX 1.13), and what it may take when there is much to move. */
#define SHM_FIRST_BYTES (8u * 1024u * 1024u)
#define SHM_SPARE_BYTES (32u * 1024u * 1024u)

fg_status ucx_status(ucs_status_t status, const char *what, fg_error *err)
{
    if (status == UCS_OK) {
        return FG_OK;
    }
    fg_status as = FG_BROKEN;
    switch (status) {
    case UCS_ERR_NO_MEMORY:
    case UCS_ERR_NO_RESOURCE:
    case UCS_ERR_BUSY:
        as = FG_AGAIN;
        break;
    case UCS_ERR_UNREACHABLE:
    case UCS_ERR_CONNECTION_RESET:
    case UCS_ERR_ENDPOINT_TIMEOUT:
    case UCS_ERR_NOT_CONNECTED:
        as = FG_PEER_LOST;
        break;
    case UCS_ERR_INVALID_ADDR:
    case UCS_ERR_INVALID_PARAM:
        as = FG_BAD_INPUT;
        break;
    default:
        break;
    }
    return fg_fail(err, as, "link: ucx %s: %s", what, ucs_status_string(status));
}

void fg_link_give_back_signals(void)
{
    static const int taken[] = { SIGSEGV, SIGBUS, SIGILL, SIGFPE, SIGHUP };
    for (size_t i = 0; i < sizeof taken / sizeof taken[0]; i++) {
        struct sigaction now;
        Dl_info owner;
        if (sigaction(taken[i], NULL, &now) == 0 && now.sa_handler != SIG_DFL &&
            now.sa_handler != SIG_IGN && dladdr((void *)now.sa_sigaction, &owner) != 0 &&
            strstr(owner.dli_fname, "libucs") != NULL) {
            ucs_debug_disable_signal(taken[i]);
        }
    }
}

/* --- context --- */

typedef enum ucx_wants { WANTS_SHM = 1, WANTS_TCP = 2 } ucx_wants;

static fg_status set_config(ucp_config_t *config, const char *name, const char *value,
                            fg_error *err)
{
    ucs_status_t status = ucp_config_modify(config, name, value);
    if (status != UCS_OK) {
        return fg_fail(err, FG_BAD_INPUT, "link: ucx option %s=%s: %s", name, value,
                       ucs_status_string(status));
    }
    return FG_OK;
}

/* UCX 1.14 and newer want the transport's name before its options. */
#if UCP_API_VERSION >= UCP_VERSION(1, 14)
#define OF_TCP(option) "TCP_" option
#else
#define OF_TCP(option) option
#endif

static const char *transports_of(unsigned wants, bool device)
{
    switch (wants) {
    case WANTS_SHM:
        return device ? "posix,sysv,self,cuda_copy,cuda_ipc" : "posix,sysv,self";
    case WANTS_TCP:
        return device ? "tcp,self,cuda_copy" : "tcp,self";
    default:
        return device ? "posix,sysv,tcp,self,cuda_copy,cuda_ipc" : "posix,sysv,tcp,self";
    }
}

/* By options of this context, never by environment variables: two links of one process may differ. */
static fg_status open_context(ucx_link *link, unsigned wants, const char *host, bool sysv_arena,
                              fg_error *err)
{
    const struct {
        unsigned when;
        const char *name, *value;
    } options[] = {
        { 0, "TLS", transports_of(wants, link->is_device) },
        /* The receiver's side writes, and only for an open receive. Between devices on this host other schemes are
         * as good, since a peer there says itself when it writes no more, and they are what UCX takes lanes of
         * cuda_ipc for. TCP has no other scheme without PUT. */
        { 0, "RNDV_SCHEME", link->is_device && (wants & WANTS_SHM) != 0 ? "auto" : "am" },
        { 0, "KEEPALIVE_INTERVAL", "1s" },
        { WANTS_SHM, "MM_ERROR_HANDLING", "y" },
        { WANTS_SHM, "ALLOC_PRIO", sysv_arena ? "md:sysv" : "md:posix" },
        /* Data goes in segments of this size: 512k pushed 1.7 times as fast as 64k. The receiver's
         * buffer must hold a sender's segment and its header, so both belong to FG_LINK_VERSION. */
        { WANTS_TCP, OF_TCP("TX_SEG_SIZE"), "512k" },
        { WANTS_TCP, OF_TCP("RX_SEG_SIZE"), "520k" },
        { WANTS_TCP, OF_TCP("PUT_ENABLE"), "n" },
    };
    ucp_config_t *config;
    fg_status status = ucx_status(ucp_config_read(NULL, NULL, &config), "config", err);
    if (status != FG_OK) {
        return status;
    }
    for (size_t i = 0; status == FG_OK && i < sizeof options / sizeof options[0]; i++) {
        if (options[i].when == 0 || (wants & options[i].when) != 0) {
            status = set_config(config, options[i].name, options[i].value, err);
        }
    }
    bool loopback =
        strncmp(host, "127.", 4) == 0 || strcmp(host, "localhost") == 0 || strcmp(host, "::1") == 0;
    if (status == FG_OK && (wants & WANTS_TCP) != 0 && loopback) {
        status = set_config(config, "NET_DEVICES", "lo", err);
    }
    if (status == FG_OK) {
        ucp_params_t params = {
            .field_mask = UCP_PARAM_FIELD_FEATURES,
            .features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP |
                        ((wants & WANTS_SHM) != 0 ? UCP_FEATURE_RMA : 0),
        };
        status = ucx_status(ucp_init(&params, config, &link->context), "context", err);
    }
    ucp_config_release(config);
    return status;
}

static fg_status check_device_memory(ucp_context_h context, fg_error *err)
{
    ucp_context_attr_t attr = { .field_mask = UCP_ATTR_FIELD_MEMORY_TYPES };
    fg_status status = ucx_status(ucp_context_query(context, &attr), "context", err);
    if (status == FG_OK && (attr.memory_types >> UCS_MEMORY_TYPE_CUDA & 1) == 0) {
        status = fg_fail(err, FG_BAD_INPUT, "UCX %s does not reach GPU memory here",
                         ucp_get_version_string());
    }
    return status;
}

/* With a context of its own for all transports: UCX grumbles when it is told of some that it has not. */
fg_status fg_link_reaches_devices(fg_error *err)
{
    ucp_config_t *config;
    ucp_context_h context;
    fg_link_give_back_signals();
    fg_status status = ucx_status(ucp_config_read(NULL, NULL, &config), "config", err);
    if (status != FG_OK) {
        return status;
    }
    ucp_params_t params = { .field_mask = UCP_PARAM_FIELD_FEATURES,
                            .features = UCP_FEATURE_AM | UCP_FEATURE_RMA };
    status = ucx_status(ucp_init(&params, config, &context), "context", err);
    ucp_config_release(config);
    if (status == FG_OK) {
        status = check_device_memory(context, err);
        ucp_cleanup(context);
    }
    return status;
}

/* --- arena --- */

static uint64_t shm_room_bytes(void)
{
    struct statvfs room;
    if (statvfs("/dev/shm", &room) != 0) {
        return 0;
    }
    return (uint64_t)room.f_bavail * room.f_frsize;
}

/* A segment beyond shmmax is refused by the kernel, with a clear status; only its total is asked. */
static uint64_t sysv_room_bytes(void)
{
    FILE *file = fopen("/proc/sys/kernel/shmmax", "re");
    unsigned long long value = 0;
    if (file != NULL) {
        if (fscanf(file, "%llu", &value) != 1) {
            value = 0;
        }
        fclose(file);
    }
    return value;
}

/* Takes the arena from UCX, so that it is shared memory that a peer maps. UCX reserves all of a POSIX
 * segment now: a /dev/shm that is full later would be a SIGBUS in the middle of a step. */
static fg_status open_shared_arena(ucx_link *link, fg_error *err)
{
    ucp_mem_map_params_t params = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                      UCP_MEM_MAP_PARAM_FIELD_FLAGS,
        .address = NULL,
        .length = link->arena_bytes,
        .flags = UCP_MEM_MAP_ALLOCATE,
    };
    ucs_status_t mapped = ucp_mem_map(link->context, &params, &link->memory);
    if (mapped != UCS_OK) {
        return fg_fail(err, FG_AGAIN, "link: no shared memory for an arena of %zu bytes: %s",
                       link->arena_bytes, ucs_status_string(mapped));
    }
    ucp_mem_attr_t attr = { .field_mask = UCP_MEM_ATTR_FIELD_ADDRESS };
    fg_status status = ucx_status(ucp_mem_query(link->memory, &attr), "arena", err);
    if (status == FG_OK) {
        link->base.arena = attr.address;
        return FG_OK;
    }
    ucp_mem_unmap(link->context, link->memory);
    link->memory = NULL;
    return status;
}

/* Whether other processes can be given a key of it: a system may forbid that of a device's memory. */
static fg_status try_key(ucx_link *link, fg_error *err)
{
    void *key;
    size_t key_bytes;
    ucs_status_t packed = ucp_rkey_pack(link->context, link->memory, &key, &key_bytes);
    if (packed == UCS_OK) {
        ucp_rkey_buffer_release(key);
        return FG_OK;
    }
    ucp_mem_unmap(link->context, link->memory);
    link->memory = NULL;
    return fg_fail(err, FG_BAD_INPUT, "UCX %s cannot share the arena with other processes: %s",
                   ucp_get_version_string(), ucs_status_string(packed));
}

/* What was lent, so that peers' puts and our own messages find it. */
static fg_status map_lent_arena(ucx_link *link, fg_error *err)
{
    ucp_mem_map_params_t params = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                      UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE,
        .address = link->base.arena,
        .length = link->arena_bytes,
        .memory_type = link->is_device ? UCS_MEMORY_TYPE_CUDA : UCS_MEMORY_TYPE_HOST,
    };
    ucs_status_t mapped = ucp_mem_map(link->context, &params, &link->memory);
    if (mapped != UCS_OK) {
        link->memory = NULL;
        return fg_fail(err, FG_BAD_INPUT, "UCX %s cannot map an arena of %zu MiB: %s",
                       ucp_get_version_string(), link->arena_bytes >> 20,
                       ucs_status_string(mapped));
    }
    return link->shm ? try_key(link, err) : FG_OK;
}

static fg_status open_arena(ucx_link *link, bool shared, fg_error *err)
{
    if (link->lent) {
        return map_lent_arena(link, err);
    }
    if (link->shm) {
        return open_shared_arena(link, err);
    }
    if (shared) {
        fg_status status = fg_shared_create(link->arena_bytes, true, &link->shared, err);
        link->base.arena = link->shared.memory;
        link->mapped = status == FG_OK;
        return status;
    }
    link->base.arena = fg_mem_map(link->arena_bytes);
    if (link->base.arena == NULL) {
        return fg_fail(err, FG_AGAIN, "link: no memory for an arena of %zu bytes",
                       link->arena_bytes);
    }
    link->mapped = true;
    return FG_OK;
}

static void close_arena(ucx_link *link)
{
    if (link->shared.memory != NULL) {
        fg_shared_close(&link->shared);
    } else if (link->mapped) {
        fg_mem_unmap(link->base.arena, link->arena_bytes);
    } else if (link->memory != NULL) {
        ucp_mem_unmap(link->context, link->memory);
    }
    link->mapped = false;
    link->memory = NULL;
}

/* --- progress --- */

bool ucx_pump(ucx_link *link)
{
    for (int i = 0; i < PUMP_MAX; i++) {
        if (ucp_worker_progress(link->worker) == 0) {
            return false;
        }
    }
    return true;
}

/* With a loop: until nothing moves, then armed, so that the event descriptor tells of what comes. */
static bool ucx_progress(fg_link *base)
{
    ucx_link *link = (ucx_link *)base;
    bool cold = ucx_warm_turn(link);
    if (base->loop == NULL) {
        ucx_poll_exits(link);
        return ucx_pump(link) || cold;
    }
    for (int i = 0; i < ARM_MAX; i++) {
        /* A device's copies end within less than a wake-up takes. */
        if (ucx_pump(link) || cold || link->device_copies > 0) {
            return true;
        }
        if (ucp_worker_arm(link->worker) != UCS_ERR_BUSY) {
            return false;
        }
    }
    return true;
}

/* Nothing to do but turn: the hook makes the progress. */
static void on_event(void *ctx)
{
}

static bool ucx_idle(const fg_link *base)
{
    const ucx_link *link = (const ucx_link *)base;
    return link->ops_open == 0 && link->closing == 0;
}

/* --- life --- */

static void ucx_close(fg_link *base)
{
    ucx_link *link = (ucx_link *)base;
    for (uint32_t i = 0; i < FG_LIMIT_WORKERS; i++) {
        fg_link_peer *peer = base->peers[i];
        if (peer != NULL && !peer->close_started) {
            peer->mute = true;
            peer->close_started = true;
            ucx_close_peer(base, peer);
        }
    }
    for (int i = 0; i < CLOSE_ROUNDS_MAX && !ucx_idle(base); i++) {
        ucp_worker_progress(link->worker);
    }
    if (link->watch != NULL) {
        fg_watch_close(link->watch);
    }
    /* Messages to a peer that froze before it died may never end in UCX 1.13, and its worker aborts the
     * process when it is destroyed with them: its objects are left to the end of the process, then. */
    bool clean = ucx_idle(base);
    if (clean) {
        ucp_worker_destroy(link->worker);
    } else {
        fg_warn("link", "event=left_open operations=%u endpoints=%u", link->ops_open,
                link->closing);
    }
    for (uint32_t i = 0; i < FG_LIMIT_WORKERS; i++) {
        if (base->peers[i] != NULL) {
            ucx_free_peer(base, base->peers[i]);
        }
    }
    fg_link_core_deinit(base);
    if (clean) {
        close_arena(link);
        ucp_cleanup(link->context);
    }
    ucx_free_ops(link);
    fg_mem_free(link->warm_map);
    fg_mem_free(link);
}

static const fg_link_port ucx_port = {
    .describe = ucx_describe,
    .open_peer = ucx_open_peer,
    .close_peer = ucx_close_peer,
    .free_peer = ucx_free_peer,
    .put = ucx_put,
    .arena = ucx_arena,
    .prepare = ucx_prepare,
    .flush = ucx_flush,
    .send = ucx_send,
    .progress = ucx_progress,
    .transport = ucx_transport,
    .idle = ucx_idle,
    .close = ucx_close,
};

/* Without enough shared memory a worker is slower to reach, and otherwise the same. */
static void warn_of_room(const ucx_link *link)
{
    fg_warn("link",
            "event=no_shared_memory dev_shm_free_mib=%llu arena_mib=%zu why=\"KV blocks travel "
            "over TCP: "
            "/dev/shm is too small or full; give it more room (--shm-size of docker), or fewer "
            "blocks\"",
            (unsigned long long)(shm_room_bytes() >> 20), link->arena_bytes >> 20);
}

/* What the options ask for and this machine can give. */
static fg_status choose(ucx_link *link, const fg_link_options *options, unsigned *wants_out,
                        bool *sysv_out, fg_error *err)
{
    unsigned wants;
    if (strcmp(options->transport, "auto") == 0) {
        wants = WANTS_SHM | WANTS_TCP;
    } else if (strcmp(options->transport, "shm") == 0) {
        wants = WANTS_SHM;
    } else if (strcmp(options->transport, "tcp") == 0) {
        wants = WANTS_TCP;
    } else {
        return fg_fail(err, FG_BAD_INPUT, "link: transport '%s', known are auto, shm and tcp",
                       options->transport);
    }
    bool sysv = false;
    uint64_t room = shm_room_bytes();
    size_t shared_bytes = link->lent ? 0 : link->arena_bytes;
    if ((wants & WANTS_SHM) != 0 && shared_bytes + SHM_SPARE_BYTES > room) {
        sysv = true;
        if (room < SHM_FIRST_BYTES || shared_bytes > sysv_room_bytes() ||
            shared_bytes > fg_mem_available_bytes()) {
            if (wants == WANTS_SHM) {
                return fg_fail(err, FG_AGAIN,
                               "link: an arena of %zu MiB does not fit into shared memory "
                               "(/dev/shm has %llu MiB free): more room there (--shm-size of "
                               "docker), fewer blocks, or transport tcp",
                               shared_bytes >> 20, (unsigned long long)(room >> 20));
            }
            warn_of_room(link);
            wants = WANTS_TCP;
            sysv = false;
        }
    }
    *wants_out = wants;
    *sysv_out = sysv;
    return FG_OK;
}

static fg_status open_worker(ucx_link *link, fg_error *err)
{
    ucp_worker_params_t params = {
        .field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
        .thread_mode = UCS_THREAD_MODE_SINGLE,
    };
    fg_status status =
        ucx_status(ucp_worker_create(link->context, &params, &link->worker), "worker", err);
    if (status != FG_OK) {
        return status;
    }
    status = ucx_status(ucp_worker_get_efd(link->worker, &link->event_fd), "event fd", err);
    if (status == FG_OK) {
        status = ucx_listen(link, err);
    }
    if (status != FG_OK) {
        ucp_worker_destroy(link->worker);
    }
    return status;
}

/* Context, arena and worker over the transports that are wanted. */
static fg_status open_parts(ucx_link *link, const fg_link_options *options, unsigned wants,
                            bool sysv, fg_error *err)
{
    link->shm = (wants & WANTS_SHM) != 0;
    link->tcp = (wants & WANTS_TCP) != 0;
    link->medium = !link->shm        ? FG_LINK_PRIVATE
                   : link->is_device ? FG_LINK_CUDA
                   : link->lent      ? FG_LINK_PLAIN
                   : sysv            ? FG_LINK_SYSV
                                     : FG_LINK_POSIX;
    fg_status status = open_context(link, wants, options->host, sysv, err);
    if (status != FG_OK) {
        return status;
    }
    status = link->is_device ? check_device_memory(link->context, err) : FG_OK;
    status = status != FG_OK ? status : open_arena(link, options->shared, err);
    if (status != FG_OK) {
        goto cleanup_context;
    }
    status = open_worker(link, err);
    if (status != FG_OK) {
        goto close_arena;
    }
    return FG_OK;

close_arena:
    close_arena(link);
cleanup_context:
    ucp_cleanup(link->context);
    return status;
}

/* What the options say of the arena. */
static fg_status take_options(ucx_link *link, const fg_link_options *options, fg_error *err)
{
    link->lent = options->memory_kind != FG_LINK_OWN;
    link->is_device = options->memory_kind == FG_LINK_DEVICE;
    link->base.arena = options->memory;
    size_t blocks = (size_t)options->block_count + (link->lent ? FG_LINK_SPARE_BLOCKS : 0);
    if (options->block_count == 0 || options->block_count > FG_LIMIT_BLOCKS ||
        options->block_bytes == 0 || link->lent != (options->memory != NULL) ||
        __builtin_mul_overflow(options->block_bytes, blocks, &link->arena_bytes) ||
        link->arena_bytes > SIZE_MAX / 2) {
        return fg_fail(err, FG_BAD_INPUT, "link: %u blocks of %zu bytes", options->block_count,
                       options->block_bytes);
    }
    return FG_OK;
}

fg_status fg_link_open_ucx(const fg_link_options *options, fg_link **link_out, fg_error *err)
{
    ucx_link *link = fg_mem_alloc(sizeof *link);
    if (link == NULL) {
        return fg_fail(err, FG_AGAIN, "link: out of memory");
    }
    unsigned wants = 0;
    bool sysv = false;
    fg_link_give_back_signals();
    fg_status status = take_options(link, options, err);
    status = status != FG_OK ? status : choose(link, options, &wants, &sysv, err);
    if (status != FG_OK) {
        goto free_link;
    }
    link->host_id = ucx_host_id();
    link->base.id = fg_rng_entropy() | 1;
    status = open_parts(link, options, wants, sysv, err);
    if (status == FG_AGAIN && wants == (WANTS_SHM | WANTS_TCP)) {
        /* Another process took the room that was there a moment ago. */
        warn_of_room(link);
        status = open_parts(link, options, WANTS_TCP, false, err);
    }
    if (status != FG_OK) {
        goto free_link;
    }
    status = fg_link_core_init(&link->base, &ucx_port, options, err);
    if (status != FG_OK) {
        goto destroy_worker;
    }
    if (options->loop != NULL &&
        fg_watch_start(options->loop, link->event_fd, on_event, link, &link->watch) != FG_OK) {
        status = fg_fail(err, FG_AGAIN, "link: the loop takes no more");
        goto deinit_core;
    }
    link->warm_map = link->shm && !link->lent ? ucx_warm_map(options->block_count) : NULL;
    *link_out = &link->base;
    return FG_OK;

deinit_core:
    fg_link_core_deinit(&link->base);
destroy_worker:
    ucp_worker_destroy(link->worker);
    close_arena(link);
    ucp_cleanup(link->context);
free_link:
    fg_mem_free(link);
    return status;
}
