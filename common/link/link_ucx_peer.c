/*
 * link_ucx_peer - who a link is, endpoints to peers, and how their end is noticed.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/base/hash.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/rng.h"
#include "common/link/link_ucx.h"

/* --- this process --- */

/* Equal for two processes exactly when UCX's shared memory works between them: same boot of the same
 * machine, same namespaces (a wake-up is lost across network namespaces, a segment is not found across
 * the others), same user. */
uint64_t ucx_host_id(void)
{
    char text[512];
    size_t used = 0;
    FILE *file = fopen("/proc/sys/kernel/random/boot_id", "re");
    if (file != NULL) {
        used = fread(text, 1, 64, file);
        fclose(file);
    }
    if (used == 0) {
        return fg_rng_entropy(); /* unknown: like nobody else */
    }
    static const char *const spaces[] = { "ipc", "pid", "net" };
    for (size_t i = 0; i < sizeof spaces / sizeof spaces[0]; i++) {
        char path[32];
        snprintf(path, sizeof path, "/proc/self/ns/%s", spaces[i]);
        ssize_t length = readlink(path, text + used, 64);
        if (length <= 0) {
            return fg_rng_entropy();
        }
        used += (size_t)length;
    }
    used += (size_t)snprintf(text + used, sizeof text - used, "uid %u", (unsigned)geteuid());
    return fg_hash64(text, used, 0);
}

/* When the process began, in ticks since boot (field 22 of its stat); 0: no such process. */
static uint64_t process_started_at(uint32_t pid)
{
    char path[40], text[1024];
    snprintf(path, sizeof path, "/proc/%u/stat", pid);
    FILE *file = fopen(path, "re");
    if (file == NULL) {
        return 0;
    }
    size_t size = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[size] = '\0';
    /* The name in field 2 may hold spaces and parentheses: count from its last one. */
    char *at = strrchr(text, ')');
    for (int field = 2; at != NULL && field < 22; field++) {
        at = strchr(at + 1, ' ');
    }
    return at != NULL ? strtoull(at, NULL, 10) : 0;
}

bool ucx_describe(const fg_link *base, fg_buf *out)
{
    const ucx_link *link = (const ucx_link *)base;
    ucp_address_t *address;
    size_t address_bytes;
    void *key = NULL;
    size_t key_bytes = 0;
    if (ucp_worker_get_address(link->worker, &address, &address_bytes) != UCS_OK) {
        return false;
    }
    if (link->shm && ucp_rkey_pack(link->context, link->memory, &key, &key_bytes) != UCS_OK) {
        ucp_worker_release_address(link->worker, address);
        return false;
    }
    fg_link_record record = {
        .link_id = base->id,
        .host_id = link->host_id,
        .pid = (uint32_t)getpid(),
        .started_at = process_started_at((uint32_t)getpid()),
        .block_bytes = base->block_bytes,
        .block_count = base->block_count,
        .arena_base = (uint64_t)(uintptr_t)base->arena,
        .address = (const uint8_t *)address,
        .address_bytes = (uint32_t)address_bytes,
        .key = key,
        .key_bytes = (uint32_t)key_bytes,
        .medium = link->medium,
    };
    bool fits = address_bytes <= FG_LINK_ADDRESS_MAX && key_bytes <= FG_LINK_KEY_MAX &&
                fg_link_record_encode(&record, out);
    if (key != NULL) {
        ucp_rkey_buffer_release(key);
    }
    ucp_worker_release_address(link->worker, address);
    return fits;
}

/* --- the end of a peer's process --- */

static void on_exit_seen(void *ctx)
{
    ucx_peer *peer = ctx;
    if (peer->pid_watch != NULL) {
        fg_watch_close(peer->pid_watch);
        peer->pid_watch = NULL;
    }
    close(peer->pid_fd);
    peer->pid_fd = -1;
    /* What it sent before it died lies in our queue: a commit among it still counts. */
    ucx_pump(peer->link);
    fg_link_peer_exited(&peer->link->base, &peer->base);
    fg_link_stir(&peer->link->base);
}

void ucx_poll_exits(ucx_link *link)
{
    for (uint32_t i = 0; i < FG_LIMIT_WORKERS; i++) {
        ucx_peer *peer = (ucx_peer *)link->base.peers[i];
        if (peer == NULL || peer->pid_fd < 0) {
            continue;
        }
        struct pollfd watch = { .fd = peer->pid_fd, .events = POLLIN };
        if (poll(&watch, 1, 0) > 0) {
            on_exit_seen(peer);
        }
    }
}

/* Begins to watch the process of a peer that can write our memory. Its start time tells whether the
 * pid is still the one of the record; it is read after the descriptor is held. */
static fg_status watch_exit(ucx_link *link, ucx_peer *peer, const fg_link_record *record,
                            fg_error *err)
{
    if (record->pid == (uint32_t)getpid()) {
        return FG_OK; /* a test with two links in one process */
    }
    peer->pid_fd = (int)syscall(SYS_pidfd_open, (pid_t)record->pid, 0);
    if (peer->pid_fd < 0 && errno != ESRCH) {
        fg_warn("link", "pid=%u exit cannot be confirmed cause=\"%s\"", record->pid,
                strerror(errno));
        return FG_OK; /* its tickets stay quarantined until it answers */
    }
    if (peer->pid_fd < 0 || process_started_at(record->pid) != record->started_at) {
        peer->base.exited = true;
        return FG_OK;
    }
    return link->base.loop == NULL ? FG_OK
                                   : fg_watch_start(link->base.loop, peer->pid_fd, on_exit_seen,
                                                    peer, &peer->pid_watch);
}

/* --- endpoints --- */

static void on_error(void *arg, ucp_ep_h ep, ucs_status_t status)
{
    ucx_peer *peer = arg;
    peer->failed = true;
    fg_link_peer_broken(&peer->link->base, &peer->base, ucs_status_string(status));
}

static fg_status open_endpoint(ucx_link *link, ucx_peer *peer, const fg_link_record *record,
                               fg_error *err)
{
    ucp_ep_params_t params = {
        .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER,
        .address = (const ucp_address_t *)record->address,
        .err_mode = UCP_ERR_HANDLING_MODE_PEER,
        .err_handler = { .cb = on_error, .arg = peer },
    };
    if (record->address_bytes == 0) {
        return fg_fail(err, FG_BAD_INPUT, "link record: no UCX address");
    }
    return ucx_status(ucp_ep_create(link->worker, &params, &peer->ep), "endpoint", err);
}

/* In UCX 1.13 a flush behind puts that the peer's side carries out does not end when that side is closed. */
#if UCP_API_VERSION >= UCP_VERSION(1, 14)
#define PUTS_END true
#else
#define PUTS_END false
#endif

/* Unpacks the peer's memory key where a put is a true remote write, or as good as one; else blocks go as active
 * messages. */
static void take_key(ucx_peer *peer, const fg_link_record *record)
{
    void *local;
    bool is_device = record->medium == FG_LINK_CUDA, is_plain = record->medium == FG_LINK_PLAIN;
    if (is_device != peer->link->is_device || (is_plain && !PUTS_END)) {
        return;
    }
    if (ucp_ep_rkey_unpack(peer->ep, record->key, &peer->key) != UCS_OK) {
        peer->key = NULL;
        return;
    }
    peer->lent = is_device || is_plain;
    if (peer->lent) {
        return;
    }
    if (ucp_rkey_ptr(peer->key, record->arena_base, &local) != UCS_OK) {
        ucp_rkey_destroy(peer->key);
        peer->key = NULL;
        return;
    }
    peer->mapped = local;
    peer->warm_map = ucx_warm_map(record->block_count);
}

fg_status ucx_open_peer(fg_link *base, const fg_link_record *record, const char *name,
                        uint64_t epoch, fg_link_peer **peer_out, fg_error *err)
{
    ucx_link *link = (ucx_link *)base;
    bool near = link->shm && record->key_bytes > 0 && record->host_id == link->host_id;
    if (!near && !link->tcp) {
        return fg_fail(err, FG_BAD_INPUT,
                       "link peer %s: not reachable by shared memory (another host, namespace or "
                       "user, or it was started without)",
                       name);
    }
    ucx_peer *peer = fg_mem_alloc(sizeof *peer);
    if (peer == NULL) {
        return fg_fail(err, FG_AGAIN, "link peer %s: out of memory", name);
    }
    peer->link = link;
    peer->pid_fd = -1;
    peer->arena_base = record->arena_base;
    peer->medium = record->medium;
    peer->base.writes_here = near;
    fg_status status = open_endpoint(link, peer, record, err);
    if (status != FG_OK) {
        goto free_peer;
    }
    if (near) {
        take_key(peer, record);
        status = watch_exit(link, peer, record, err);
        if (status != FG_OK) {
            goto close_endpoint;
        }
    }
    *peer_out = &peer->base;
    return FG_OK;

close_endpoint:
    peer->base.close_started = true;
    ucx_close_peer(base, &peer->base);
    while (!peer->base.closed) {
        ucp_worker_progress(link->worker);
    }
free_peer:
    ucx_free_peer(base, &peer->base);
    return status;
}

static void on_closed(void *request, ucs_status_t status, void *user_data)
{
    ucx_peer *peer = user_data;
    ucp_request_free(request);
    peer->ep = NULL;
    peer->link->closing--;
    fg_link_peer_closed(&peer->link->base, &peer->base);
}

/* A peer that is well is flushed first, so that our last words leave; any other is cut off, which ends
 * all its operations as cancelled. */
void ucx_close_peer(fg_link *base, fg_link_peer *base_peer)
{
    ucx_peer *peer = (ucx_peer *)base_peer;
    peer->lent = false;
    bool well = !peer->failed && !base_peer->exited && !base_peer->mute && base_peer->writes_here;
    if (peer->key != NULL) {
        ucp_rkey_destroy(peer->key);
        peer->key = NULL;
        peer->mapped = NULL;
    }
    ucp_request_param_t param = {
        .op_attr_mask =
            UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS,
        .cb.send = on_closed,
        .user_data = peer,
        .flags = well ? 0 : UCP_EP_CLOSE_FLAG_FORCE,
    };
    ucs_status_ptr_t request = ucp_ep_close_nbx(peer->ep, &param);
    if (UCS_PTR_IS_PTR(request)) {
        peer->link->closing++;
        return;
    }
    peer->ep = NULL;
    fg_link_peer_closed(base, base_peer);
}

void ucx_free_peer(fg_link *base, fg_link_peer *base_peer)
{
    ucx_peer *peer = (ucx_peer *)base_peer;
    if (peer->pid_watch != NULL) {
        fg_watch_close(peer->pid_watch);
    }
    if (peer->pid_fd >= 0) {
        close(peer->pid_fd);
    }
    fg_mem_free(peer->warm_map);
    fg_mem_free(peer);
}

/* --- what UCX chose --- */

/* The way that blocks take into such memory, as lanes are named; NULL: as messages. */
static const char *lane_of(fg_link_medium medium)
{
    switch (medium) {
    case FG_LINK_POSIX:
        return "posix/";
    case FG_LINK_SYSV:
        return "sysv/";
    case FG_LINK_CUDA:
        return "cuda_ipc/";
    default:
        return NULL;
    }
}

/* UCX tells its choice only in print, one line per lane, e.g.
 * "# lane[0]:  1:sysv/memory.0 md[1]  -> md[1]/sysv/sysdev[255] am am_bw#0 keepalive". Blocks that are
 * put take the lane of the arena's own kind of memory, others the one for active messages. */
static void parse_lanes(const char *text, const char *wanted, char *out, size_t out_bytes)
{
    const char *lane = text;
    while ((lane = strstr(lane, "lane[")) != NULL) {
        lane += 5;
        const char *end = strchr(lane, '\n');
        const char *name = strchr(lane, ':');
        name = name != NULL ? strchr(name + 1, ':') : NULL;
        if (end == NULL || name == NULL || name > end) {
            continue;
        }
        name++;
        const char *use = strstr(name, wanted != NULL ? wanted : " am ");
        if (use == NULL || use > end || (wanted != NULL && use != name)) {
            continue;
        }
        snprintf(out, out_bytes, "%.*s", (int)strcspn(name, ". \n"), name);
        return;
    }
}

const char *ucx_transport(const fg_link *base, const fg_link_peer *base_peer)
{
    ucx_peer *peer = (ucx_peer *)base_peer;
    if (peer->transport[0] != '\0' || peer->ep == NULL) {
        return peer->transport;
    }
    char *text = NULL;
    size_t size = 0;
    FILE *stream = open_memstream(&text, &size);
    if (stream == NULL) {
        return "";
    }
    ucp_ep_print_info(peer->ep, stream);
    fclose(stream);
    const char *wanted = peer->key != NULL ? lane_of(peer->medium) : NULL;
    parse_lanes(text, wanted, peer->transport, sizeof peer->transport);
    if (wanted != NULL && peer->lent && peer->transport[0] == '\0') {
        parse_lanes(text, NULL, peer->transport,
                    sizeof peer->transport); /* UCX found no better way */
    }
    free(text);
    return peer->transport;
}

void ucx_look_at_way(ucx_peer *peer)
{
    const char *way = ucx_transport(&peer->link->base, &peer->base);
    if (peer->link->is_device && !peer->base.close_started &&
        strncmp(way, lane_of(FG_LINK_CUDA), strlen(lane_of(FG_LINK_CUDA))) != 0) {
        fg_warn("link",
                "event=device_memory_staged peer=%s transport=%s why=\"UCX finds no way from its "
                "GPU to ours, and copies through the host: --kv-device-memory off may be quicker\"",
                peer->base.name, way);
    }
}
