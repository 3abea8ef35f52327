#include "common/base/topology.h"

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "tests/support/test.h"

typedef struct fake_file {
    const char *path;
    const char *text;
} fake_file;

enum { FILES_MAX = 40, ORDER_MAX = 8 };

#define CPU  "/sys/devices/system/cpu/"
#define NODE "/sys/devices/system/node/"
#define SMT(cpu, list)                                                                             \
    {                                                                                              \
        CPU "cpu" cpu "/topology/thread_siblings_list", list "\n"                                  \
    }
#define L3(cpu, list)                                                                              \
    {                                                                                              \
        CPU "cpu" cpu "/cache/index3/shared_cpu_list", list "\n"                                   \
    }

static const struct {
    const char *name;
    const char *allowed;
    fake_file files[FILES_MAX];
    uint32_t cores, nodes, quota, threads;
    uint16_t order[ORDER_MAX]; /* of processors */
} cases[] = {
    { "nothing to read", "0-1", { { NULL, NULL } }, 2, 1, 0, 2, { 0, 1 } },
    { "one node",
      "0-3",
      { { CPU "online", "0-3\n" }, { NODE "online", "0\n" }, { NODE "node0/cpulist", "0-3\n" } },
      4,
      1,
      0,
      4,
      { 0, 1, 2, 3 } },
    { "siblings beside each other",
      "0-3",
      { SMT("0", "0-1"), SMT("1", "0-1"), SMT("2", "2-3"), SMT("3", "2-3") },
      2,
      1,
      0,
      2,
      { 0, 2, 1, 3 } },
    { "siblings far apart, one forbidden",
      "0-2",
      { SMT("0", "0,2"), SMT("1", "1,3"), SMT("2", "0,2") },
      2,
      1,
      0,
      2,
      { 0, 1, 2 } },
    { "only second siblings allowed",
      "2-3",
      { SMT("2", "0,2"), SMT("3", "1,3") },
      2,
      1,
      0,
      2,
      { 2, 3 } },
    { "two nodes, numbered in turns",
      "0-3",
      { { NODE "online", "0-1\n" },
        { NODE "node0/cpulist", "0,2\n" },
        { NODE "node1/cpulist", "1,3\n" } },
      4,
      2,
      0,
      4,
      { 0, 2, 1, 3 } },
    { "two nodes, the second has only memory",
      "0-1",
      { { NODE "online", "0-1\n" },
        { NODE "node0/cpulist", "0-1\n" },
        { NODE "node1/cpulist", "\n" } },
      2,
      1,
      0,
      2,
      { 0, 1 } },
    { "two caches on one node",
      "0-3",
      { L3("0", "0,2"), L3("1", "1,3"), L3("2", "0,2"), L3("3", "1,3") },
      4,
      1,
      0,
      4,
      { 0, 2, 1, 3 } },
    { "one offline", "0-3", { { CPU "online", "0,2-3\n" } }, 3, 1, 0, 3, { 0, 2, 3 } },
    { "quota 1.5",
      "0-3",
      { { "/sys/fs/cgroup/cpu.max", "150000 100000\n" } },
      4,
      1,
      1500,
      1,
      { 0, 1, 2, 3 } },
    { "quota 0.2",
      "0-1",
      { { "/sys/fs/cgroup/cpu.max", "20000 100000\n" } },
      2,
      1,
      200,
      1,
      { 0, 1 } },
    { "no quota", "0-1", { { "/sys/fs/cgroup/cpu.max", "max 100000\n" } }, 2, 1, 0, 2, { 0, 1 } },
    { "more quota than cores",
      "0-1",
      { { "/sys/fs/cgroup/cpu.max", "800000 100000\n" } },
      2,
      1,
      8000,
      2,
      { 0, 1 } },
    { "the tightest group around",
      "0-3",
      { { "/proc/self/cgroup", "0::/pod/box\n" },
        { "/sys/fs/cgroup/pod/box/cpu.max", "max 100000\n" },
        { "/sys/fs/cgroup/pod/cpu.max", "200000 100000\n" },
        { "/sys/fs/cgroup/cpu.max", "400000 100000\n" } },
      4,
      1,
      2000,
      2,
      { 0, 1, 2, 3 } },
    { "quota of the older kind",
      "0-3",
      { { "/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "300000\n" },
        { "/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n" } },
      4,
      1,
      3000,
      3,
      { 0, 1, 2, 3 } },
    { "older kind without a limit",
      "0-1",
      { { "/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n" },
        { "/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n" } },
      2,
      1,
      0,
      2,
      { 0, 1 } },
    { "garbage everywhere",
      "0-1",
      { { CPU "online", "all of them" },
        SMT("0", "1-0"),
        SMT("1", "x"),
        L3("0", "1"),
        { NODE "online", "0-" },
        { "/sys/fs/cgroup/cpu.max", "-5 0\n" },
        { "/proc/self/cgroup", "0::/../../.." } },
      2,
      1,
      0,
      2,
      { 0, 1 } },
    { "none of the allowed is online", "0-1", { { CPU "online", "7\n" } }, 2, 1, 0, 2, { 0, 1 } },
    { "siblings of which it is none",
      "0-1",
      { SMT("0", "1"), SMT("1", "0") },
      2,
      1,
      0,
      2,
      { 0, 1 } },
    { "none allowed", "", { { NULL, NULL } }, 1, 1, 0, 1, { 0 } },
};

static void write_file(const char *root, const fake_file *file)
{
    char path[512];
    snprintf(path, sizeof path, "%s%s", root, file->path);
    for (char *slash = path + strlen(root) + 1; (slash = strchr(slash, '/')) != NULL; slash++) {
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
    }
    FILE *out = fopen(path, "w");
    cr_assert_not_null(out, "%s", path);
    fputs(file->text, out);
    fclose(out);
}

static int remove_one(const char *path, const struct stat *stat, int kind, struct FTW *at)
{
    return remove(path);
}

Test(topology, reads_fake_machines)
{
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char root[] = "/tmp/forge-topology-XXXXXX";
        cr_assert_not_null(mkdtemp(root));
        for (const fake_file *file = cases[i].files; file->path != NULL; file++) {
            write_file(root, file);
        }
        cpu_set_t allowed;
        cr_assert(fg_topology_parse_list(cases[i].allowed, &allowed));
        fg_topology t;
        fg_topology_read(root, &allowed, &t);
        const char *name = cases[i].name;
        cr_assert_eq(t.core_count, cases[i].cores, "%s: %u cores", name, t.core_count);
        cr_assert_eq(t.node_count, cases[i].nodes, "%s: %u nodes", name, t.node_count);
        cr_assert_eq(t.quota_millicpus, cases[i].quota, "%s: quota %u", name, t.quota_millicpus);
        uint32_t threads = fg_topology_thread_count(&t);
        cr_assert_eq(threads, cases[i].threads, "%s: %u threads", name, threads);
        for (uint32_t at = 0; at < t.cpu_count; at++) {
            cr_assert_eq(t.cpus[at].cpu, cases[i].order[at], "%s: place %u is processor %u", name,
                         at, t.cpus[at].cpu);
        }
        nftw(root, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    }
}

Test(topology, knows_this_machine)
{
    cpu_set_t mine;
    cr_assert_eq(sched_getaffinity(0, sizeof mine, &mine), 0);
    fg_topology t;
    fg_topology_read("", NULL, &t);
    cr_assert_eq((int)t.cpu_count, CPU_COUNT(&mine));
    for (uint32_t i = 0; i < t.cpu_count; i++) {
        cr_assert(CPU_ISSET(t.cpus[i].cpu, &mine));
    }
    uint32_t threads = fg_topology_thread_count(&t);
    cr_assert(threads >= 1 && threads <= t.cpu_count);
}

Test(topology, parses_lists)
{
    static const struct {
        const char *text;
        int count; /* -1: refused */
    } lists[] = {
        { "", 0 },
        { "\n", 0 },
        { "0", 1 },
        { "0-3,8", 5 },
        { "0-3,8\n", 5 },
        { "3,1", 2 },
        { "5-5", 1 },
        { "1-2,2-3", 3 },
        { "1020-2000", 4 },
        { "999999999", 0 },
        { "0-999999999", 1024 },
        { ",", -1 },
        { "0,", -1 },
        { "0,\n", -1 },
        { "-1", -1 },
        { "1-", -1 },
        { "3-1", -1 },
        { "1 2", -1 },
        { "0x1", -1 },
        { "0\n1", -1 },
        { " 0", -1 },
        { "9999999999", -1 },
        { "0-1-2", -1 },
    };
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(77, &set);
        bool fine = fg_topology_parse_list(lists[i].text, &set);
        cr_assert_eq(fine, lists[i].count >= 0, "\"%s\"", lists[i].text);
        int count = fine ? lists[i].count : 1;
        cr_assert_eq(CPU_COUNT(&set), count, "\"%s\": %d", lists[i].text, CPU_COUNT(&set));
    }
}

Test(topology, describes_itself)
{
    static const struct {
        fg_topology t;
        const char *text;
    } described[] = {
        { { .cpu_count = 4, .core_count = 2, .node_count = 1, .quota_millicpus = 1500 },
          "2 cores of 1 node, 4 processors, quota 1.5" },
        { { .cpu_count = 1, .core_count = 1, .node_count = 1 }, "1 core of 1 node, 1 processor" },
    };
    for (size_t i = 0; i < sizeof described / sizeof described[0]; i++) {
        fg_buf text;
        fg_buf_init(&text, 0);
        cr_assert(fg_topology_describe(&described[i].t, &text));
        cr_assert_str_eq(text.data, described[i].text);
        fg_buf_deinit(&text);
    }
}
