/*
 * fake_nccl - what comm.cu uses of NCCL, for the emulation: ranks on one or several emulated devices pass their rows through
 * shared memory, in the order of their streams, when the stream runs or the graph that was recorded. FORGE_NCCL names this
 * library.
 *
 * FORGE_FAKE_NCCL=WHAT:RANK has one rank fail: `init` cannot open, `duplicate` says that its device is taken, `hang` never
 * meets the others, `die` ends while it opens, `garble` receives what nobody sent, `gather` is refused a gathering in the
 * middle of a step.
 */
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/exchange.h"

enum { SUCCESS = 0, UNHANDLED_CUDA_ERROR = 1, SYSTEM_ERROR = 2, INVALID_ARGUMENT = 4 };
enum { INVALID_USAGE = 5, FLOAT32 = 7 };
/* Gatherings of a communicator after which one is refused: some steps. */
enum { REFUSED_GATHER = 40 };

typedef struct id {
    char internal[EXCHANGE_NAME_BYTES];
} id;

typedef struct gathering gathering;

typedef struct comm {
    exchange *exchange;
    int rank;
    int given;
    gathering *gatherings; /* graphs may run them again */
} comm;

struct gathering {
    gathering *next;
    comm *comm;
    const void *own;
    void *all;
    size_t bytes;
};

/* What the emulation has for us. */
static void (*emulated_call)(void *stream, void (*call)(void *ctx), void *ctx);
static bool (*emulated_has)(const void *at, size_t bytes);

static const char *last_error = "";

/* The streams are the plugin's; it is loaded already. */
static bool find_emulation(void)
{
    const char *path = getenv("FORGE_CUDA_PLUGIN");
    void *plugin = path == NULL ? NULL : dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    void *call = plugin == NULL ? NULL : dlsym(plugin, "fg_emulated_call");
    void *has = plugin == NULL ? NULL : dlsym(plugin, "fg_emulated_has");
    memcpy(&emulated_call, &call, sizeof call);
    memcpy(&emulated_has, &has, sizeof has);
    return call != NULL && has != NULL;
}

static bool fails(const char *what, int rank)
{
    char wanted[32];
    const char *text = getenv("FORGE_FAKE_NCCL");
    snprintf(wanted, sizeof wanted, "%s:%d", what, rank);
    return text != NULL && strcmp(text, wanted) == 0;
}

int ncclGetVersion(int *version);
int ncclGetVersion(int *version)
{
    *version = 29900;
    return SUCCESS;
}

const char *ncclGetErrorString(int error);
const char *ncclGetErrorString(int error)
{
    static const char *const names[] = {
        "no error",       "unhandled cuda error", "system error",
        "internal error", "invalid argument",     "invalid usage"
    };
    return error >= 0 && error <= INVALID_USAGE ? names[error] : "unknown result";
}

const char *ncclGetLastError(comm *of);
const char *ncclGetLastError(comm *of)
{
    return last_error;
}

int ncclGetUniqueId(id *out);
int ncclGetUniqueId(id *out)
{
    exchange_make_name(out->internal);
    return SUCCESS;
}

int ncclCommAbort(comm *c);
int ncclCommAbort(comm *c)
{
    exchange_stop(c->exchange);
    return SUCCESS;
}

int ncclCommInitRank(comm **out, int ranks, id name, int rank);
int ncclCommInitRank(comm **out, int ranks, id name, int rank)
{
    if (!find_emulation()) {
        last_error = "no emulation";
        return UNHANDLED_CUDA_ERROR;
    }
    if (fails("die", rank)) {
        raise(SIGKILL);
    }
    if (fails("init", rank)) {
        last_error = "the network is down";
        return SYSTEM_ERROR;
    }
    if (fails("duplicate", rank)) {
        last_error = "Duplicate GPU detected";
        return INVALID_USAGE;
    }
    for (bool forever = fails("hang", rank); forever;) {
        pause();
    }
    comm *c = calloc(1, sizeof *c);
    c->exchange = exchange_join(name.internal, (uint32_t)rank, (uint32_t)ranks);
    c->rank = rank;
    while (!exchange_is_met(c->exchange)) {
        usleep(100);
    }
    *out = c;
    return SUCCESS;
}

static void run(void *ctx)
{
    gathering *g = ctx;
    exchange_all(g->comm->exchange, g->own, g->all, g->bytes);
    if (fails("garble", g->comm->rank)) {
        memset(g->all, 0x5A, g->bytes);
    }
}

int ncclAllGather(const void *own, void *all, size_t count, int type, comm *c, void *stream);
int ncclAllGather(const void *own, void *all, size_t count, int type, comm *c, void *stream)
{
    size_t bytes = count * sizeof(float);
    /* Own and all may only be one where own is in its place. */
    const char *at = own, *place = (char *)all + (size_t)c->rank * bytes;
    gathering *g = calloc(1, sizeof *g);
    *g = (gathering){ .next = c->gatherings, .comm = c, .own = own, .all = all, .bytes = bytes };
    c->gatherings = g;
    if (type != FLOAT32 || !emulated_has(own, bytes) || !emulated_has(all, bytes) ||
        (at != place && at + bytes > (char *)all && at < (char *)all + bytes)) {
        last_error = "not a device's memory";
        return INVALID_ARGUMENT;
    }
    if (fails("gather", c->rank) && ++c->given == REFUSED_GATHER) {
        last_error = "a gathering too many";
        return SYSTEM_ERROR;
    }
    emulated_call(stream, run, g);
    return SUCCESS;
}

int ncclCommGetAsyncError(comm *c, int *error);
int ncclCommGetAsyncError(comm *c, int *error)
{
    *error = SUCCESS;
    return SUCCESS;
}

int ncclCommDestroy(comm *c);
int ncclCommDestroy(comm *c)
{
    while (c->gatherings != NULL) {
        gathering *next = c->gatherings->next;
        free(c->gatherings);
        c->gatherings = next;
    }
    exchange_leave(c->exchange);
    free(c);
    return SUCCESS;
}
