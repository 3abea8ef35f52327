/*
 * forge - one binary for every role. Start reading here: each subcommand has a file of its own.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "cli/batch.h"
#include "cli/bench.h"
#include "cli/keygen.h"
#include "cli/serve.h"
#include "cli/sim.h"
#include "cli/top.h"
#include "cli/trace.h"
#include "common/base/buf.h"
#include "common/conf/options.h"
#include "common/engine/tp.h"
#include "common/link/link.h"
#include "kernels/cpu/isa.h"
#include "kernels/device.h"

/* What each thread may count on; usually there is eight times as much. */
#define STACK_BYTES (1024u * 1024u)

extern char **environ;

static const char help[] =
    "forge - an LLM serving cluster in one binary\n"
    "\n"
    "  forge serve --model FILE            answer HTTP requests on http://127.0.0.1:8080\n"
    "  forge serve --mode router ...       the front door of a cluster\n"
    "  forge serve --mode prefill ...      a worker that computes prompts\n"
    "  forge serve --mode decode ...       a worker that computes answers\n"
    "  forge serve --help[=WORD]           every flag, or those about WORD\n"
    "  forge batch --model FILE IN OUT     answer a file of requests, resumable\n"
    "  forge bench throughput --model F    how fast a model is here, offline, against the limits\n"
    "  forge keygen DIR                    keys for the processes of a cluster\n"
    "  forge trace URL...                  what a cluster did lately, as a picture for Perfetto\n"
    "  forge top [--url URL]               what a server does now, in the terminal\n"
    "  forge sim --seeds 100               whole clusters in a simulator, from seeds\n"
    "  forge sim --trace FILE              what a cluster would make of a trace of real requests\n"
    "  forge COMMAND --help                what a command takes and writes\n"
    "  forge --version                     what was compiled in\n"
    "  forge --config-docs                 all flags as Markdown (docs/CONFIG.md)\n"
    "\n"
    "deploy/get-model fetches a small chat model; deploy/cluster starts a whole cluster on this "
    "host.\n";

static void print_kernels(void)
{
    const fg_cpu_kernels *chosen;
    fg_cpu_facts facts = fg_cpu_facts_read();
    fg_status status = fg_cpu_find_kernels("auto", &facts, &chosen, NULL);
    printf("cpu kernels:");
    const char *name;
    for (size_t i = 0; (name = fg_cpu_kernels_name(i)) != NULL; i++) {
        printf("%s %s", i == 0 ? "" : ",", name);
    }
    printf("; %s here\n", status == FG_OK ? chosen->name : "none");
}

static void print_cuda(void)
{
    enum { DEVICES_MAX = 64 };
    fg_device_info infos[DEVICES_MAX];
    fg_error err = { 0 };
    uint32_t count = fg_device_list("cuda", infos, DEVICES_MAX, &err);
    if (count == 0) {
        printf("cuda: none (%s)\n", err.text);
    }
    for (uint32_t i = 0; i < count; i++) {
        printf("cuda:%u: %s, %s\n", i, infos[i].name, infos[i].isa);
    }
}

static int print_version(void)
{
    printf("forge %s\n", FORGE_VERSION);
    printf("compiler: %s\n", __VERSION__);
    print_kernels();
    print_cuda();
    printf("control plane: zeromq, protobuf-c; kv transfer: ucx (shared memory, tcp)\n");
    return 0;
}

static int print_config_docs(void)
{
    const fg_conf_spec *const specs[] = { &fg_serve_spec,
                                          &fg_batch_spec,
                                          &fg_trace_spec,
                                          &fg_top_spec,
                                          &fg_keygen_spec,
                                          &fg_sim_spec,
                                          &fg_bench_throughput_spec,
                                          &fg_bench_peak_spec };
    fg_buf out;
    fg_buf_init(&out, 0);
    fg_conf_render_markdown(specs, sizeof specs / sizeof specs[0], &out);
    fwrite(out.data, 1, out.size, stdout);
    fg_buf_deinit(&out);
    return 0;
}

static int run(int argc, char **argv)
{
    const char *word = argc > 1 ? argv[1] : "--help";
    if (strcmp(word, "serve") == 0) {
        return fg_serve_main(argc - 2, (const char *const *)argv + 2, (const char *const *)environ);
    }
    if (strcmp(word, "batch") == 0) {
        return fg_batch_main(argc - 2, (const char *const *)argv + 2, (const char *const *)environ);
    }
    if (strcmp(word, "rank") == 0) { /* by `serve` alone, and so not in the help */
        return fg_tp_follow_main(argc - 2, (const char *const *)argv + 2);
    }
    if (strcmp(word, "trace") == 0) {
        return fg_trace_main(argc - 2, (const char *const *)argv + 2, (const char *const *)environ);
    }
    if (strcmp(word, "top") == 0) {
        return fg_top_main(argc - 2, (const char *const *)argv + 2, (const char *const *)environ);
    }
    if (strcmp(word, "keygen") == 0) {
        return fg_keygen_main(argc - 2, (const char *const *)argv + 2,
                              (const char *const *)environ);
    }
    if (strcmp(word, "bench") == 0) {
        return fg_bench_main(argc - 2, (const char *const *)argv + 2, (const char *const *)environ);
    }
    if (strcmp(word, "sim") == 0) {
        return fg_cli_sim(argc - 2, (const char *const *)argv + 2, (const char *const *)environ);
    }
    if (strcmp(word, "--version") == 0 || strcmp(word, "version") == 0) {
        return print_version();
    }
    if (strcmp(word, "--config-docs") == 0) {
        return print_config_docs();
    }
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "help") == 0) {
        fputs(help, stdout);
        return 0;
    }
    fprintf(stderr, "forge: unknown command \"%s\": `forge --help` lists them\n", word);
    return 2;
}

/* A standard file that was closed would be the next one that is opened: the log would be written into
 * a file of ours. Its place is taken; what is printed to it fails, as it would have. */
static void hold_standard_files(void)
{
    static const int how[] = { O_WRONLY, O_RDONLY, O_WRONLY };
    for (int fd = 0; fd <= STDERR_FILENO; fd++) {
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF) {
            (void)!open("/dev/null", how[fd]); /* the lowest that is free: this one */
        }
    }
}

/* A small limit of the stack is raised, for this thread and for those to come; without it they would end
 * somewhere, without a word. False: the system does not let us. */
static bool find_stack(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_STACK, &limit) != 0 || limit.rlim_cur >= STACK_BYTES) {
        return true;
    }
    pthread_attr_t each;
    limit.rlim_cur = STACK_BYTES;
    bool raised = limit.rlim_max >= STACK_BYTES && setrlimit(RLIMIT_STACK, &limit) == 0;
    if (raised && pthread_attr_init(&each) == 0) {
        raised = pthread_attr_setstacksize(&each, STACK_BYTES) == 0 &&
                 pthread_setattr_default_np(&each) == 0;
        pthread_attr_destroy(&each);
    }
    return raised;
}

/* Whether all that was printed has arrived, whoever printed it; a reader that left has seen enough. */
static int check_output(int code)
{
    struct pollfd out = { .fd = STDOUT_FILENO, .events = POLLOUT };
    bool lost = fflush(stdout) != 0;
    const char *why = lost ? strerror(errno) : "not all was written";
    if ((!lost && ferror(stdout) == 0) ||
        (poll(&out, 1, 0) == 1 && (out.revents & (POLLERR | POLLHUP)) != 0)) {
        return code;
    }
    fprintf(stderr, "forge: standard output: %s\n", why);
    return code != 0 ? code : 1;
}

int main(int argc, char **argv)
{
    hold_standard_files();
    fg_link_give_back_signals();
    if (!find_stack()) {
        fprintf(stderr, "forge: the limit of the stack is too small: `ulimit -s %u` at least\n",
                STACK_BYTES / 1024);
        return 2;
    }
    return check_output(run(argc, argv));
}
