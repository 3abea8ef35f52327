/*
 * The functions of device.h, ops.h and comm.h: each goes to the table of the back end that the device, stream or
 * communicator is of.
 * Here too: which back end a device kind means, and where the plugin of one that is not linked in lies.
 */
#include "kernels/backend.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- finding a back end ---- */

#define PLUGIN_VARIABLE "FORGE_CUDA_PLUGIN"
#define PLUGIN_FILE     "forge_cuda.so"

/* Beside the running program, or where an installation has it, from there. */
static const char *const plugin_places[] = { "", "../lib/forge/" };

/* Where the plugin lies; false when it is in none of its places. */
static bool find_plugin(char *path, size_t size)
{
    const char *named = getenv(PLUGIN_VARIABLE);
    if (named != NULL && named[0] != '\0') {
        return snprintf(path, size, "%s", named) < (int)size;
    }
    char program[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length <= 0) {
        return false;
    }
    program[length] = '\0';
    char *slash = strrchr(program, '/');
    int folder = slash == NULL ? 0 : (int)(slash - program) + 1;
    for (size_t i = 0; i < sizeof plugin_places / sizeof plugin_places[0]; i++) {
        int written =
            snprintf(path, size, "%.*s%s%s", folder, program, plugin_places[i], PLUGIN_FILE);
        if (written > 0 && written < (int)size && access(path, F_OK) == 0) {
            return true;
        }
    }
    return false;
}

/* It stays loaded: devices and pages of their drivers outlive what the program knows of them. */
static fg_status load_plugin(const fg_backend **backend_out, fg_error *err)
{
    char path[PATH_MAX];
    if (!find_plugin(path, sizeof path)) {
        return fg_fail(err, FG_BAD_INPUT,
                       "no CUDA back end here: %s is neither beside this program nor in "
                       "../lib/forge; build it with -DFORGE_CUDA=ON, name it in "
                       "%s, or use --device cpu",
                       PLUGIN_FILE, PLUGIN_VARIABLE);
    }
    void *plugin = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (plugin == NULL) {
        return fg_fail(err, FG_BAD_INPUT,
                       "the CUDA back end cannot be loaded: %s; build it again, "
                       "or use --device cpu",
                       dlerror());
    }
    const fg_backend *(*entry)(void);
    void *symbol = dlsym(plugin, FG_BACKEND_ENTRY);
    if (symbol == NULL) {
        return fg_fail(
            err, FG_BAD_INPUT,
            "%s is no back end of Forge's: it has no function %s; build it again, or use "
            "--device cpu",
            path, FG_BACKEND_ENTRY);
    }
    memcpy(&entry, &symbol, sizeof entry);
    const fg_backend *backend = entry();
    if (backend == NULL || backend->abi != FG_BACKEND_ABI ||
        backend->table_bytes != sizeof(fg_backend)) {
        return fg_fail(err, FG_BAD_INPUT,
                       "%s was built for another version of this program (its interface is %u with "
                       "%u bytes, this program's %u with %zu); build both from the same source",
                       path, backend == NULL ? 0 : backend->abi,
                       backend == NULL ? 0 : backend->table_bytes, FG_BACKEND_ABI,
                       sizeof(fg_backend));
    }
    *backend_out = backend;
    return FG_OK;
}

bool fg_device_kind_is_host(const char *kind)
{
    return kind == NULL || strcmp(kind, "cpu") == 0;
}

/* Which back end, and which of its devices. */
static fg_status find_backend(const char *kind, const fg_backend **backend_out, uint32_t *index_out,
                              fg_error *err)
{
    if (fg_device_kind_is_host(kind)) {
        *backend_out = &fg_cpu_backend;
        *index_out = 0;
        return FG_OK;
    }
    const char *digits = kind + strlen("cuda");
    bool known = strncmp(kind, "cuda", strlen("cuda")) == 0 &&
                 (digits[0] == '\0' || (digits[0] == ':' && digits[1] != '\0'));
    unsigned long index = 0;
    for (const char *at = digits + 1; known && digits[0] == ':' && *at != '\0'; at++) {
        known = *at >= '0' && *at <= '9' && index < 100000;
        index = index * 10 + (unsigned long)(*at - '0');
    }
    if (!known) {
        return fg_fail(err, FG_BAD_INPUT, "unknown device \"%.40s\" (known: cpu, cuda, cuda:N)",
                       kind);
    }
    *index_out = (uint32_t)index;
    return load_plugin(backend_out, err);
}

/* FG_BAD_INPUT where this machine has no such device. */
static fg_status check_index(const fg_backend *backend, uint32_t index, fg_error *err)
{
    fg_error why = { 0 };
    uint32_t count = backend->device_count(&why);
    if (count == 0) {
        return fg_fail(err, FG_BAD_INPUT, "this machine has no %s device: %s; use --device cpu",
                       backend->kind, why.text[0] == '\0' ? "the driver found none" : why.text);
    }
    if (index >= count) {
        return fg_fail(err, FG_BAD_INPUT,
                       "there is no %s:%u: this machine has %u, the last is %s:%u", backend->kind,
                       index, count, backend->kind, count - 1);
    }
    return FG_OK;
}

uint32_t fg_device_list(const char *kind, fg_device_info *infos_out, uint32_t max, fg_error *err)
{
    const fg_backend *backend;
    uint32_t index;
    if (find_backend(kind, &backend, &index, err) != FG_OK ||
        check_index(backend, 0, err) != FG_OK) {
        return 0;
    }
    uint32_t count = backend->device_count(err);
    for (uint32_t i = 0; i < count && i < max; i++) {
        if (backend->device_describe(i, &infos_out[i], err) != FG_OK) {
            return i;
        }
    }
    return count < max ? count : max;
}

fg_status fg_device_describe(const char *kind, fg_device_info *info_out, fg_error *err)
{
    const fg_backend *backend;
    uint32_t index;
    fg_status status = find_backend(kind, &backend, &index, err);
    status = status != FG_OK ? status : check_index(backend, index, err);
    return status != FG_OK ? status : backend->device_describe(index, info_out, err);
}

fg_status fg_device_open(const fg_device_options *options, fg_device **device_out, fg_error *err)
{
    const fg_backend *backend;
    uint32_t index;
    fg_status status = find_backend(options->kind, &backend, &index, err);
    status = status != FG_OK ? status : check_index(backend, index, err);
    return status != FG_OK ? status : backend->open(options, device_out, err);
}

/* ---- device.h ---- */

static const fg_backend *of_device(const fg_device *device)
{
    return ((const fg_backend_object *)(const void *)device)->backend;
}

static const fg_backend *of_stream(const fg_device_stream *stream)
{
    return ((const fg_backend_object *)(const void *)stream)->backend;
}

void fg_device_close(fg_device *device)
{
    if (device != NULL) {
        of_device(device)->close(device);
    }
}

bool fg_device_is_host(const fg_device *device)
{
    return of_device(device)->host_memory;
}

bool fg_device_mixes_experts(const fg_device *device)
{
    return of_device(device)->gated_experts != NULL;
}

const char *fg_device_numerics(const fg_device *device)
{
    return of_device(device)->numerics(device);
}

const char *fg_device_isa(const fg_device *device)
{
    return of_device(device)->isa(device);
}

uint32_t fg_device_thread_count(const fg_device *device)
{
    return of_device(device)->thread_count(device);
}

fg_device_reach fg_device_memory_reach(const fg_device *device)
{
    return of_device(device)->memory_reach(device);
}

void fg_device_bind_thread(const fg_device *device)
{
    of_device(device)->bind_thread(device);
}

void *fg_device_alloc(fg_device *device, fg_memory_kind kind, size_t size_bytes)
{
    return of_device(device)->alloc(device, kind, size_bytes);
}

void fg_device_free(fg_device *device, fg_memory_kind kind, void *memory, size_t size_bytes)
{
    of_device(device)->free(device, kind, memory, size_bytes);
}

fg_status fg_device_load(fg_device *device, const void *host, size_t size_bytes,
                         const void **device_out, fg_error *err)
{
    return of_device(device)->load(device, host, size_bytes, device_out, err);
}

fg_status fg_device_pin(fg_device *device, void *memory, size_t size_bytes, fg_error *err)
{
    return of_device(device)->pin(device, memory, size_bytes, err);
}

void fg_device_unpin(fg_device *device, void *memory)
{
    of_device(device)->unpin(device, memory);
}

fg_status fg_device_pack(fg_device *device, const fg_matrix *rows, fg_panels *panels_out,
                         fg_error *err)
{
    FG_ASSERT(!fg_device_is_host(device),
              "the weight store packs for a device with the host's memory");
    return of_device(device)->pack(device, rows, panels_out, err);
}

fg_status fg_device_stream_open(fg_device *device, fg_device_stream **stream_out, fg_error *err)
{
    return of_device(device)->stream_open(device, stream_out, err);
}

void fg_device_stream_close(fg_device_stream *stream)
{
    if (stream != NULL) {
        of_stream(stream)->stream_close(stream);
    }
}

void fg_device_copy(fg_device_stream *stream, void *target, const void *source, size_t size_bytes)
{
    of_stream(stream)->copy(stream, target, source, size_bytes);
}

void fg_device_copy_rows(fg_device_stream *stream, const fg_copy_rows *copy)
{
    of_stream(stream)->copy_rows(stream, copy);
}

fg_device_event fg_device_event_record(fg_device_stream *stream)
{
    return of_stream(stream)->event_record(stream);
}

void fg_device_event_wait(fg_device_stream *stream, fg_device_event event)
{
    of_stream(stream)->event_wait(stream, event);
}

bool fg_device_event_ended(fg_device_stream *stream, fg_device_event event)
{
    return of_stream(stream)->event_ended(stream, event);
}

bool fg_device_replay_begin(fg_device_stream *stream, uint64_t key)
{
    return of_stream(stream)->replay_begin(stream, key);
}

void fg_device_replay_end(fg_device_stream *stream)
{
    of_stream(stream)->replay_end(stream);
}

void fg_device_share_work(fg_device_stream *stream, uint32_t pieces,
                          void (*work)(void *ctx, uint32_t piece, uint32_t member), void *ctx)
{
    of_stream(stream)->share_work(stream, pieces, work, ctx);
}

/* ---- ops.h ---- */

uint32_t fg_op_linear_form(const fg_device_stream *stream, uint32_t type)
{
    return of_stream(stream)->linear_form(type);
}

void fg_op_stage(fg_device_stream *stream, const fg_step_rows *rows)
{
    of_stream(stream)->stage(stream, rows);
}

void fg_op_prepare(fg_device_stream *stream, const fg_activations *activations, uint32_t forms,
                   uint32_t rows)
{
    of_stream(stream)->prepare(stream, activations, forms, rows);
}

void fg_op_linear(fg_device_stream *stream, const fg_linear *linears, uint32_t linear_count,
                  const fg_activations *in, uint32_t rows)
{
    of_stream(stream)->linear(stream, linears, linear_count, in, rows);
}

void fg_op_gated(fg_device_stream *stream, const fg_gated *gated, const fg_activations *in,
                 uint32_t rows)
{
    of_stream(stream)->gated(stream, gated, in, rows);
}

void fg_op_choose_experts(fg_device_stream *stream, const fg_choose_experts *args, uint32_t rows)
{
    of_stream(stream)->choose_experts(stream, args, rows);
}

void fg_op_gated_experts(fg_device_stream *stream, const fg_gated_experts *args,
                         const fg_activations *in, uint32_t rows)
{
    of_stream(stream)->gated_experts(stream, args, in, rows);
}

void fg_op_add_experts(fg_device_stream *stream, const fg_add_experts *args,
                       const fg_activations *in, uint32_t rows)
{
    of_stream(stream)->add_experts(stream, args, in, rows);
}

void fg_op_highest(fg_device_stream *stream, const fg_panels *weight, const fg_activations *in,
                   uint32_t rows, uint32_t *choices, float *tops)
{
    of_stream(stream)->highest(stream, weight, in, rows, choices, tops);
}

void fg_op_choose(fg_device_stream *stream, const fg_choose *args, uint32_t rows)
{
    FG_ASSERT(!of_stream(stream)->host_memory, "the host chooses where the logits are its own");
    of_stream(stream)->choose(stream, args, rows);
}

void fg_op_embed(fg_device_stream *stream, const fg_matrix *table, const uint32_t *tokens,
                 uint32_t rows, float scale, float *out)
{
    of_stream(stream)->embed(stream, table, tokens, rows, scale, out);
}

void fg_op_rmsnorm(fg_device_stream *stream, const fg_rmsnorm *args, uint32_t rows)
{
    of_stream(stream)->rmsnorm(stream, args, rows);
}

void fg_op_finite(fg_device_stream *stream, const float *values, uint32_t columns, uint32_t rows,
                  uint32_t *finite)
{
    of_stream(stream)->finite(stream, values, columns, rows, finite);
}

void fg_op_rope_table(fg_device_stream *stream, const uint32_t *positions, uint32_t rows,
                      const fg_rope_turns *turns, float *table)
{
    of_stream(stream)->rope_table(stream, positions, rows, turns, table);
}

void fg_op_rope_store(fg_device_stream *stream, const fg_paged_kv *kv, const fg_rope_store *args,
                      uint32_t rows)
{
    of_stream(stream)->rope_store(stream, kv, args, rows);
}

void fg_op_attend(fg_device_stream *stream, const fg_paged_kv *kv, const fg_attend *args,
                  uint32_t rows)
{
    of_stream(stream)->attend(stream, kv, args, rows);
}

/* ---- comm.h ---- */

static const fg_backend *of_comm(const fg_comm *comm)
{
    return ((const fg_backend_object *)(const void *)comm)->backend;
}

fg_status fg_comm_make_name(fg_device *device, fg_comm_name *name_out, fg_error *err)
{
    const fg_backend *backend = of_device(device);
    if (backend->comm_make_name == NULL) {
        return fg_fail(err, FG_BAD_INPUT, "%s devices have no way to each other", backend->kind);
    }
    return backend->comm_make_name(device, name_out, err);
}

fg_status fg_comm_open(fg_device_stream *stream, const fg_comm_options *options, fg_comm **comm_out,
                       fg_error *err)
{
    FG_ASSERT(of_stream(stream)->comm_open != NULL, "this back end has no communicators");
    return of_stream(stream)->comm_open(stream, options, comm_out, err);
}

bool fg_comm_is_open(fg_comm *comm, fg_status *status_out, fg_error *err)
{
    return of_comm(comm)->comm_is_open(comm, status_out, err);
}

const char *fg_comm_way(const fg_comm *comm)
{
    return of_comm(comm)->comm_way(comm);
}

fg_status fg_comm_check(fg_comm *comm, fg_error *err)
{
    return of_comm(comm)->comm_check(comm, err);
}

void fg_comm_close(fg_comm *comm)
{
    if (comm != NULL) {
        of_comm(comm)->comm_close(comm);
    }
}

void fg_comm_gather_rows(fg_comm *comm, const fg_comm_gather *gather, uint32_t rows)
{
    of_comm(comm)->comm_gather(comm, gather, rows);
}

void fg_op_digest(fg_device_stream *stream, const fg_digest_blocks *args, uint32_t count)
{
    FG_ASSERT(args->block_bytes > 240 && args->block_bytes % 16 == 0, "blocks of %zu bytes",
              args->block_bytes);
    of_stream(stream)->digest(stream, args, count);
}
