#include "tests/support/exchange.h"

#include <fcntl.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PIECE_BYTES = 1 << 16 };

/* What all have mapped. */
typedef struct shared {
    _Atomic uint32_t joined;
    _Atomic uint64_t arrived; /* of all, ever */
    size_t bytes[EXCHANGE_RANKS_MAX];
    uint8_t pieces[EXCHANGE_RANKS_MAX][PIECE_BYTES];
} shared;

struct exchange {
    shared *shared;
    uint32_t rank, ranks;
    uint64_t met; /* how often */
    _Atomic bool stopped;
};

/* A file without a name, which ends with the process that made it. */
void exchange_make_name(char name[EXCHANGE_NAME_BYTES])
{
    int fd = memfd_create("exchange", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, sizeof(shared)) != 0) {
        abort();
    }
    memset(name, 0, EXCHANGE_NAME_BYTES);
    snprintf(name, EXCHANGE_NAME_BYTES, "/proc/%d/fd/%d", (int)getpid(), fd);
}

exchange *exchange_join(const char name[EXCHANGE_NAME_BYTES], uint32_t rank, uint32_t ranks)
{
    exchange *e = calloc(1, sizeof *e);
    int fd = open(name, O_RDWR | O_CLOEXEC);
    if (e == NULL || fd < 0) {
        abort();
    }
    e->shared = mmap(NULL, sizeof(shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (e->shared == MAP_FAILED) {
        abort();
    }
    e->rank = rank;
    e->ranks = ranks;
    atomic_fetch_add(&e->shared->joined, 1);
    return e;
}

bool exchange_is_met(exchange *e)
{
    return atomic_load(&e->shared->joined) == e->ranks;
}

static bool meet(exchange *e)
{
    uint64_t all = ++e->met * e->ranks;
    atomic_fetch_add(&e->shared->arrived, 1);
    while (atomic_load(&e->shared->arrived) < all) {
        if (atomic_load(&e->stopped)) {
            return false;
        }
        sched_yield();
    }
    return true;
}

bool exchange_all(exchange *e, const void *own, void *all, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += PIECE_BYTES) {
        size_t count = bytes - at < PIECE_BYTES ? bytes - at : PIECE_BYTES;
        e->shared->bytes[e->rank] = bytes;
        memcpy(e->shared->pieces[e->rank], (const uint8_t *)own + at, count);
        if (!meet(e)) {
            return false;
        }
        for (uint32_t rank = 0; rank < e->ranks; rank++) {
            if (e->shared->bytes[rank] != bytes) {
                fprintf(stderr, "exchange: rank %u sends %zu bytes, rank %u %zu\n", e->rank, bytes,
                        rank, e->shared->bytes[rank]);
                abort();
            }
            memcpy((uint8_t *)all + rank * bytes + at, e->shared->pieces[rank], count);
        }
        if (!meet(e)) {
            return false;
        }
    }
    return true;
}

void exchange_stop(exchange *e)
{
    atomic_store(&e->stopped, true);
}

void exchange_leave(exchange *e)
{
    if (e != NULL) {
        munmap(e->shared, sizeof(shared));
        free(e);
    }
}
