/*
 * gpu_times - when a process's GPU was busy: a library that CUDA loads into it, asked by CUDA_INJECTION64_PATH.
 *
 * When the process ends, the file that GPU_TIMES names has a line for each piece of work, in no order: what it was
 * (graph, kernel, copy, set), and when it began and ended there, in ns. A graph is one piece, so the kernels within it
 * are not slowed down by being watched. With GPU_TIMES_KERNELS in the environment each kernel of a graph is a piece, with
 * its own name: what a step is made of, and how kernels that begin early overlap. tests/gpu/bench compiles it where it is
 * needed and reads the file:
 *
 *   cc -shared -fPIC -I CUPTI/include -o gpu_times.so gpu_times.c -L CUPTI/lib -l:libcupti.so.13
 */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include <cupti.h>

enum { BUFFER_BYTES = 1 << 20, BUFFER_ALIGN = 8 };

static FILE *out;
static bool names; /* of kernels, also of those within graphs */

static void take_buffer(uint8_t **buffer_out, size_t *size_out, size_t *record_max_out)
{
    *buffer_out = aligned_alloc(BUFFER_ALIGN, BUFFER_BYTES);
    *size_out = *buffer_out != NULL ? BUFFER_BYTES : 0;
    *record_max_out = 0; /* as many as there is room for */
}

static void put(const char *what, uint64_t begin_ns, uint64_t end_ns)
{
    fprintf(out, "%s %llu %llu\n", what, (unsigned long long)begin_ns, (unsigned long long)end_ns);
}

static void put_record(const CUpti_Activity *record)
{
    switch (record->kind) {
    case CUPTI_ACTIVITY_KIND_GRAPH_TRACE: {
        const CUpti_ActivityGraphTrace2 *graph = (const void *)record;
        put("graph", graph->start, graph->end);
        break;
    }
    case CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL: {
        const CUpti_ActivityKernel9 *kernel = (const void *)record;
        put(names ? kernel->name : "kernel", kernel->start, kernel->end);
        break;
    }
    case CUPTI_ACTIVITY_KIND_MEMCPY: {
        const CUpti_ActivityMemcpy6 *copy = (const void *)record;
        put("copy", copy->start, copy->end);
        break;
    }
    case CUPTI_ACTIVITY_KIND_MEMSET: {
        const CUpti_ActivityMemset4 *set = (const void *)record;
        put("set", set->start, set->end);
        break;
    }
    default:
        break;
    }
}

static void give_buffer(CUcontext context, uint32_t stream, uint8_t *buffer, size_t size_bytes,
                        size_t used_bytes)
{
    CUpti_Activity *record = NULL;
    while (cuptiActivityGetNextRecord(buffer, used_bytes, &record) == CUPTI_SUCCESS) {
        put_record(record);
    }
    free(buffer);
}

static void finish(void)
{
    (void)cuptiActivityFlushAll(CUPTI_ACTIVITY_FLAG_FLUSH_FORCED);
    fclose(out);
}

/* CUDA calls it before anything else is done. */
int InitializeInjection(void);
int InitializeInjection(void)
{
    static const CUpti_ActivityKind kinds[] = { CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL,
                                                CUPTI_ACTIVITY_KIND_MEMCPY,
                                                CUPTI_ACTIVITY_KIND_MEMSET };
    names = getenv("GPU_TIMES_KERNELS") != NULL;
    const char *path = getenv("GPU_TIMES");
    out = path != NULL ? fopen(path, "w") : NULL;
    if (out == NULL) {
        fprintf(stderr, "gpu_times: GPU_TIMES names no file that can be written\n");
        return 0;
    }
    CUptiResult result = cuptiActivityRegisterCallbacks(take_buffer, give_buffer);
    if (result == CUPTI_SUCCESS && !names) {
        result = cuptiActivityEnable(CUPTI_ACTIVITY_KIND_GRAPH_TRACE);
    }
    for (size_t i = 0; result == CUPTI_SUCCESS && i < sizeof kinds / sizeof *kinds; i++) {
        result = cuptiActivityEnable(kinds[i]);
    }
    if (result != CUPTI_SUCCESS) {
        const char *why = NULL;
        (void)cuptiGetResultString(result, &why);
        fprintf(stderr, "gpu_times: CUPTI says %s\n", why != NULL ? why : "nothing");
    }
    atexit(finish);
    return 1;
}
