#include "common/base/topology.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Enough for a list of every second processor; a longer file is no list of ours. */
enum { TEXT_MAX = 8192, NODES_MAX = 1024 };

/* Reads a small file whole, with a 0 behind it. */
static bool read_text(const char *path, char text[TEXT_MAX])
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return false;
    }
    ssize_t size = read(fd, text, TEXT_MAX - 1);
    close(fd);
    if (size < 0 || size == TEXT_MAX - 1) {
        return false;
    }
    text[size] = '\0';
    return true;
}

/* A number of at most nine digits; moves *at behind it. */
static bool read_number(const char **at, uint32_t *out)
{
    uint32_t value = 0, digits = 0;
    while (**at >= '0' && **at <= '9' && digits < 9) {
        value = value * 10 + (uint32_t)(**at - '0');
        (*at)++;
        digits++;
    }
    *out = value;
    return digits != 0 && !(**at >= '0' && **at <= '9');
}

bool fg_topology_parse_list(const char *text, cpu_set_t *out)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    const char *at = text;
    while (*at != '\0' && *at != '\n') {
        uint32_t first, last;
        if (!read_number(&at, &first)) {
            return false;
        }
        last = first;
        if (*at == '-') {
            at++;
            if (!read_number(&at, &last) || last < first) {
                return false;
            }
        }
        for (uint32_t cpu = first; cpu <= last && cpu < CPU_SETSIZE; cpu++) {
            CPU_SET(cpu, &set);
        }
        if (*at == ',') {
            at++;
            if (*at == '\0' || *at == '\n') {
                return false;
            }
        } else if (*at != '\0' && *at != '\n') {
            return false;
        }
    }
    if (*at == '\n' && at[1] != '\0') {
        return false;
    }
    *out = set;
    return true;
}

static bool read_list(const char *path, cpu_set_t *out)
{
    char text[TEXT_MAX];
    return read_text(path, text) && fg_topology_parse_list(text, out);
}

static uint16_t lowest_of(const cpu_set_t *set)
{
    uint16_t cpu = 0;
    while (cpu < CPU_SETSIZE - 1 && !CPU_ISSET(cpu, set)) {
        cpu++;
    }
    return cpu;
}

/* The lowest processor of the group in `file`; `cpu` itself when the file says nothing that holds. */
static uint16_t group_of(const char *root, uint16_t cpu, const char *file)
{
    char path[PATH_MAX];
    cpu_set_t group;
    snprintf(path, sizeof path, "%s/sys/devices/system/cpu/cpu%u/%s", root, cpu, file);
    return read_list(path, &group) && CPU_ISSET(cpu, &group) ? lowest_of(&group) : cpu;
}

static void read_nodes(const char *root, fg_topology *out)
{
    char path[PATH_MAX];
    cpu_set_t nodes;
    snprintf(path, sizeof path, "%s/sys/devices/system/node/online", root);
    if (!read_list(path, &nodes)) {
        return;
    }
    for (uint16_t node = 0; node < NODES_MAX; node++) {
        cpu_set_t members;
        if (!CPU_ISSET(node, &nodes)) {
            continue;
        }
        snprintf(path, sizeof path, "%s/sys/devices/system/node/node%u/cpulist", root, node);
        if (!read_list(path, &members)) {
            continue;
        }
        for (uint32_t i = 0; i < out->cpu_count; i++) {
            if (CPU_ISSET(out->cpus[i].cpu, &members)) {
                out->cpus[i].node = node;
            }
        }
    }
}

/* "150000 100000" (v2) or two files (v1) as thousandths of a processor; 0 for "max" and nonsense. */
static uint32_t quota_of(uint64_t quota_us, uint64_t period_us)
{
    if (period_us == 0 || quota_us == 0 || quota_us > UINT32_MAX) {
        return 0;
    }
    uint64_t millicpus = quota_us * 1000 / period_us;
    return millicpus == 0 ? 1 : millicpus > UINT32_MAX ? UINT32_MAX : (uint32_t)millicpus;
}

static uint32_t read_v2_quota(const char *path)
{
    char text[TEXT_MAX];
    unsigned long quota, period;
    return read_text(path, text) && text[0] >= '0' && text[0] <= '9' &&
                   sscanf(text, "%lu %lu", &quota, &period) == 2
               ? quota_of(quota, period)
               : 0;
}

static uint32_t read_v1_quota(const char *root)
{
    char path[PATH_MAX];
    char text[TEXT_MAX];
    snprintf(path, sizeof path, "%s/sys/fs/cgroup/cpu/cpu.cfs_quota_us", root);
    long long quota = read_text(path, text) ? strtoll(text, NULL, 10) : 0;
    snprintf(path, sizeof path, "%s/sys/fs/cgroup/cpu/cpu.cfs_period_us", root);
    long long period = read_text(path, text) ? strtoll(text, NULL, 10) : 0;
    return quota > 0 && period > 0 ? quota_of((uint64_t)quota, (uint64_t)period) : 0;
}

/* This process's group and every group around it may set a limit; the smallest one holds. */
static uint32_t read_quota(const char *root)
{
    char text[TEXT_MAX];
    char group[TEXT_MAX] = "";
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    const char *line = read_text(path, text) ? strstr(text, "0::/") : NULL;
    if (line != NULL) {
        snprintf(group, sizeof group, "%s", line + 3);
        group[strcspn(group, "\n")] = '\0';
    }
    uint32_t smallest = read_v1_quota(root);
    for (;;) {
        int length = snprintf(path, sizeof path, "%s/sys/fs/cgroup%s/cpu.max", root, group);
        uint32_t quota = length > 0 && (size_t)length < sizeof path ? read_v2_quota(path) : 0;
        if (quota != 0 && (smallest == 0 || quota < smallest)) {
            smallest = quota;
        }
        char *slash = strrchr(group, '/');
        if (slash == NULL) {
            return smallest;
        }
        *slash = '\0';
    }
}

static int in_order(const void *a, const void *b)
{
    const fg_topology_cpu *x = a, *y = b;
    const int differences[] = { x->sibling - y->sibling, x->node - y->node, x->cache - y->cache,
                                x->cpu - y->cpu };
    for (size_t i = 0; i < sizeof differences / sizeof differences[0]; i++) {
        if (differences[i] != 0) {
            return differences[i];
        }
    }
    return 0;
}

/* Who is the how-manieth of its core, and how many cores and nodes there are. */
static void count(fg_topology *out)
{
    for (uint32_t i = 0; i < out->cpu_count; i++) {
        bool new_node = true;
        for (uint32_t other = 0; other < i; other++) {
            if (out->cpus[other].core == out->cpus[i].core) {
                out->cpus[i].sibling++;
            }
            new_node = new_node && out->cpus[other].node != out->cpus[i].node;
        }
        out->core_count += out->cpus[i].sibling == 0;
        out->node_count += new_node;
    }
}

static void read_allowed(cpu_set_t *out)
{
    CPU_ZERO(out);
    if (sched_getaffinity(0, sizeof *out, out) == 0) {
        return;
    }
    /* More processors than a cpu_set_t holds: the first ones will do. */
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    for (long cpu = 0; cpu < CPU_SETSIZE && cpu < online; cpu++) {
        CPU_SET((size_t)cpu, out);
    }
}

void fg_topology_read(const char *root, const cpu_set_t *allowed, fg_topology *out)
{
    cpu_set_t usable, online;
    char path[PATH_MAX];
    memset(out, 0, sizeof *out);
    if (allowed != NULL) {
        usable = *allowed;
    } else {
        read_allowed(&usable);
    }
    snprintf(path, sizeof path, "%s/sys/devices/system/cpu/online", root);
    if (read_list(path, &online)) {
        cpu_set_t both;
        CPU_AND(&both, &usable, &online);
        usable = CPU_COUNT(&both) != 0 ? both : usable;
    }
    if (CPU_COUNT(&usable) == 0) {
        CPU_SET(0, &usable);
    }
    for (uint16_t cpu = 0; cpu < FG_TOPOLOGY_CPUS_MAX; cpu++) {
        if (CPU_ISSET(cpu, &usable)) {
            out->cpus[out->cpu_count++] = (fg_topology_cpu){
                .cpu = cpu,
                .core = group_of(root, cpu, "topology/thread_siblings_list"),
                .cache = group_of(root, cpu, "cache/index3/shared_cpu_list"),
            };
        }
    }
    read_nodes(root, out);
    count(out);
    qsort(out->cpus, out->cpu_count, sizeof out->cpus[0], in_order);
    out->quota_millicpus = read_quota(root);
}

uint32_t fg_topology_thread_count(const fg_topology *topology)
{
    uint32_t paid = topology->quota_millicpus / 1000;
    uint32_t threads = topology->core_count;
    if (topology->quota_millicpus != 0 && paid < threads) {
        threads = paid;
    }
    return threads == 0 ? 1 : threads;
}

bool fg_topology_describe(const fg_topology *topology, fg_buf *out)
{
    const fg_topology *t = topology;
    bool fine = fg_buf_printf(
        out, "%u core%s of %u node%s, %u processor%s", t->core_count, t->core_count == 1 ? "" : "s",
        t->node_count, t->node_count == 1 ? "" : "s", t->cpu_count, t->cpu_count == 1 ? "" : "s");
    if (t->quota_millicpus != 0) {
        fine = fine && fg_buf_printf(out, ", quota %.1f", t->quota_millicpus / 1000.0);
    }
    return fine;
}
