#include "router/registry.h"

#include <stdio.h>
#include <string.h>

#include "common/base/mem.h"
#include "common/kv/layout.h"

struct fg_registry {
    fg_registry_options options;
    fg_reg_worker *workers[FG_LIMIT_WORKERS];
    uint32_t count;
    /* What all workers must agree on, learned from the first of those alive. */
    fg_wire_hello shape;
    char numerics_class[FG_LIMIT_CLASS_BYTES + 1];
    bool has_shape;
};

fg_status fg_registry_create(const fg_registry_options *options, fg_registry **registry_out,
                             fg_error *err)
{
    fg_registry *registry = fg_mem_alloc(sizeof *registry);
    if (registry == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for the registry");
    }
    registry->options = *options;
    *registry_out = registry;
    return FG_OK;
}

void fg_registry_destroy(fg_registry *registry)
{
    if (registry == NULL) {
        return;
    }
    while (registry->count > 0) {
        fg_registry_remove(registry, registry->workers[registry->count - 1]);
    }
    fg_mem_free(registry);
}

static fg_status check_alone(const fg_registry *registry, const fg_wire_hello *hello, fg_error *err)
{
    if (hello->protocol != FG_PROTOCOL_VERSION) {
        return fg_fail(err, FG_BAD_INPUT,
                       "protocol version %u, this router speaks %u: run the same "
                       "release everywhere",
                       hello->protocol, FG_PROTOCOL_VERSION);
    }
    if (hello->fingerprint_low != registry->options.fingerprint.low ||
        hello->fingerprint_high != registry->options.fingerprint.high) {
        return fg_fail(err, FG_BAD_INPUT,
                       "another model file: fingerprint %016llx, the router's is "
                       "%016llx",
                       (unsigned long long)hello->fingerprint_low,
                       (unsigned long long)registry->options.fingerprint.low);
    }
    if (hello->roles == 0 || hello->block_size == 0 || hello->block_count == 0 ||
        hello->max_seqs == 0 || hello->context_max == 0) {
        return fg_fail(err, FG_BAD_INPUT, "no role or no capacity");
    }
    if (registry->count == FG_LIMIT_WORKERS) {
        return fg_fail(err, FG_BAD_INPUT, "this router has its %u workers already",
                       FG_LIMIT_WORKERS);
    }
    return FG_OK;
}

static fg_status check_with_others(const fg_registry *registry, const fg_wire_hello *hello,
                                   fg_error *err)
{
    if (fg_registry_by_name(registry, hello->self.name) != NULL) {
        return fg_fail(err, FG_BAD_INPUT, "a worker named %s is alive", hello->self.name);
    }
    if (registry->count == 0) {
        return FG_OK;
    }
    const fg_wire_hello *shape = &registry->shape;
    if (hello->layer_count != shape->layer_count || hello->kv_head_count != shape->kv_head_count ||
        hello->head_dim != shape->head_dim || hello->kv_dtype != shape->kv_dtype ||
        (hello->kv_layout ^ shape->kv_layout) & ~FG_KV_LAYOUT_IN_DEVICE) {
        return fg_fail(err, FG_BAD_INPUT, "another KV layout than the workers that are here");
    }
    if (hello->kv_layout != shape->kv_layout) {
        bool in_device = (hello->kv_layout & FG_KV_LAYOUT_IN_DEVICE) != 0;
        return fg_fail(err, FG_BAD_INPUT,
                       "its KV blocks are in %s memory, those of the workers that are here in %s: "
                       "give all of them the same --kv-device-memory",
                       in_device ? "a device's" : "the host's",
                       in_device ? "the host's" : "a device's");
    }
    if (hello->block_size != shape->block_size) {
        return fg_fail(err, FG_BAD_INPUT, "block size %u, the workers that are here use %u",
                       hello->block_size, shape->block_size);
    }
    if (strcmp(hello->numerics_class, registry->numerics_class) != 0) {
        return fg_fail(err, FG_BAD_INPUT,
                       "numerics class %s, the workers that are here have %s: "
                       "answers would differ",
                       hello->numerics_class, registry->numerics_class);
    }
    return FG_OK;
}

fg_status fg_registry_join(fg_registry *registry, const fg_wire_hello *hello, uint32_t peer,
                           uint64_t now_ns, fg_reg_worker **worker_out, fg_error *err)
{
    fg_status status = check_alone(registry, hello, err);
    if (status == FG_OK) {
        status = check_with_others(registry, hello, err);
    }
    if (status != FG_OK) {
        return status;
    }
    fg_reg_worker *worker = fg_mem_alloc(sizeof *worker);
    void *record = fg_mem_dup(hello->link_record, hello->link_record_bytes);
    if (worker == NULL || record == NULL) {
        fg_mem_free(worker);
        fg_mem_free(record);
        return fg_fail(err, FG_AGAIN, "router is out of memory");
    }
    *worker = (fg_reg_worker){ .epoch = hello->self.epoch,
                               .peer = peer,
                               .roles = hello->roles,
                               .able = hello->able,
                               .speed = hello->speed,
                               .pid = hello->pid,
                               .block_size = hello->block_size,
                               .block_count = hello->block_count,
                               .max_seqs = hello->max_seqs,
                               .context_max = hello->context_max,
                               .link_record = record,
                               .link_record_bytes = hello->link_record_bytes,
                               .load = { .total = hello->block_count, .free = hello->block_count },
                               .joined_ns = now_ns,
                               .seen_ns = now_ns,
                               .moved_ns = now_ns };
    snprintf(worker->name, sizeof worker->name, "%s", hello->self.name);
    if (registry->count == 0) {
        registry->shape = *hello;
        registry->has_shape = true;
        snprintf(registry->numerics_class, sizeof registry->numerics_class, "%s",
                 hello->numerics_class);
    }
    registry->workers[registry->count++] = worker;
    *worker_out = worker;
    return FG_OK;
}

void fg_registry_remove(fg_registry *registry, fg_reg_worker *worker)
{
    uint32_t at = 0;
    while (registry->workers[at] != worker) {
        at++;
        FG_ASSERT(at < registry->count, "a worker that never joined");
    }
    memmove(registry->workers + at, registry->workers + at + 1,
            (registry->count - at - 1) * sizeof *registry->workers);
    registry->count--;
    fg_mem_free(worker->link_record);
    fg_mem_free(worker);
}

void fg_registry_seen(fg_reg_worker *worker, uint64_t now_ns)
{
    worker->seen_ns = now_ns;
}

void fg_registry_update(fg_reg_worker *worker, const fg_wire_load *load, uint64_t now_ns)
{
    if (load->sequence > worker->load.sequence) {
        if (load->steps != worker->load.steps || load->running == 0 || worker->load.running == 0) {
            worker->moved_ns = now_ns;
            worker->stalled = false;
        }
        worker->load = *load;
        worker->full = false;
    }
}

const fg_wire_hello *fg_registry_shape(const fg_registry *registry, const char **class_out)
{
    *class_out = registry->numerics_class;
    return &registry->shape;
}

fg_reg_worker *fg_registry_expired(const fg_registry *registry, uint64_t now_ns)
{
    for (uint32_t i = 0; i < registry->count; i++) {
        if (now_ns - registry->workers[i]->seen_ns > registry->options.lease_ns) {
            return registry->workers[i];
        }
    }
    return NULL;
}

fg_reg_worker *fg_registry_stuck(const fg_registry *registry, uint64_t now_ns)
{
    uint64_t limit = registry->options.stuck_ns;
    for (uint32_t i = 0; limit > 0 && i < registry->count; i++) {
        fg_reg_worker *worker = registry->workers[i];
        uint64_t still = worker->load.running > 0 ? now_ns - worker->moved_ns : 0;
        worker->stalled = still > limit / 4;
        if (still > limit) {
            return worker;
        }
    }
    return NULL;
}

void fg_registry_forgive(fg_registry *registry, uint64_t gap_ns, uint64_t now_ns)
{
    for (uint32_t i = 0; i < registry->count; i++) {
        fg_reg_worker *worker = registry->workers[i];
        uint64_t *times[] = { &worker->seen_ns, &worker->moved_ns };
        for (int t = 0; t < 2; t++) {
            *times[t] = *times[t] + gap_ns < now_ns ? *times[t] + gap_ns : now_ns;
        }
    }
}

bool fg_registry_namer(const fg_registry *registry, fg_block_namer *namer_out)
{
    if (registry->has_shape) {
        *namer_out = (fg_block_namer){ .identity = fg_block_identity(registry->options.fingerprint,
                                                                     registry->numerics_class,
                                                                     registry->shape.kv_dtype),
                                       .block_size = registry->shape.block_size };
    }
    return registry->has_shape;
}

fg_reg_worker *fg_registry_deaf(const fg_registry *registry)
{
    for (uint32_t i = 0; i < registry->count; i++) {
        if (registry->workers[i]->deaf) {
            return registry->workers[i];
        }
    }
    return NULL;
}

fg_reg_worker *fg_registry_by_peer(const fg_registry *registry, uint32_t peer)
{
    for (uint32_t i = 0; i < registry->count; i++) {
        if (registry->workers[i]->peer == peer) {
            return registry->workers[i];
        }
    }
    return NULL;
}

fg_reg_worker *fg_registry_by_name(const fg_registry *registry, const char *name)
{
    for (uint32_t i = 0; i < registry->count; i++) {
        if (strcmp(registry->workers[i]->name, name) == 0) {
            return registry->workers[i];
        }
    }
    return NULL;
}

uint32_t fg_registry_count(const fg_registry *registry)
{
    return registry->count;
}

fg_reg_worker *fg_registry_at(const fg_registry *registry, uint32_t index)
{
    FG_ASSERT(index < registry->count);
    return registry->workers[index];
}
