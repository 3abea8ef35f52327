/*
 * bench - what the benches of the KV link share: a clock, medians, pipes between two processes, and how their links meet.
 * A bench whose ground gives way ends.
 */
#ifndef FORGE_TESTS_BENCH_LINK_BENCH_H
#define FORGE_TESTS_BENCH_LINK_BENCH_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/link/link.h"

static inline void must(bool good, const char *what)
{
    if (!good) {
        fprintf(stderr, "%s: %s failed\n", program_invocation_short_name, what);
        exit(1);
    }
}

static inline uint64_t now_ns(void)
{
    fg_clock clock = fg_clock_real();
    return fg_clock_now_ns(&clock);
}

/* In seconds. */
static inline double now(void)
{
    return 1e-9 * (double)now_ns();
}

static inline int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static inline double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, compare_doubles);
    return values[count / 2];
}

static inline void read_all(int fd, void *bytes, size_t size)
{
    for (size_t got = 0; got < size;) {
        ssize_t n = read(fd, (char *)bytes + got, size - got);
        must(n > 0, "read");
        got += (size_t)n;
    }
}

static inline void write_all(int fd, const void *bytes, size_t size)
{
    for (size_t put = 0; put < size;) {
        ssize_t n = write(fd, (const char *)bytes + put, size - put);
        must(n > 0, "write");
        put += (size_t)n;
    }
}

/* Exchanges introductions with the process at the other end of two pipes; what the link calls it from then on. */
static inline uint32_t meet_peer(fg_link *link, int in, int out)
{
    fg_buf record;
    fg_error err = { 0 };
    char theirs[16384];
    uint32_t peer;
    fg_buf_init(&record, 0);
    must(fg_link_describe(link, &record), "describe");
    uint32_t size = (uint32_t)record.size;
    write_all(out, &size, sizeof size);
    write_all(out, record.data, record.size);
    fg_buf_deinit(&record);
    read_all(in, &size, sizeof size);
    must(size <= sizeof theirs, "record");
    read_all(in, theirs, size);
    must(fg_link_add_peer(link, "other", 1, 1, theirs, size, &peer, &err) == FG_OK, err.text);
    return peer;
}

#endif
