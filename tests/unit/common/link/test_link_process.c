/* Two processes, one end each: deaths, freezes and their fences, as UCX really has them. The child is
 * forked before anything of UCX runs in this process (each test has a process of its own). */
#include "tests/unit/common/link/rig.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BLOCK_BYTES = 1 << 20, TICKET = 77, COUNT = 24 };

typedef enum script {
    SENDS_ALL,      /* pushes, commits, pushes again what is refused, ends when accepted */
    SENDS_HALF,     /* pushes half, says 'p', then only makes progress */
    SENDS_FOR_EVER, /* pushes the same blocks again and again */
    SENDS_LATE,     /* waits for 'g', then pushes; says 'c' when refused, 'o' when not */
    RECEIVES,       /* expects, says 'e', then only makes progress */
} script;

typedef struct pair {
    end e; /* this process's end; its peer is the other process */
    pid_t child;
    int in, out;
} pair;

static void must(bool good, const char *what)
{
    if (!good) {
        fprintf(stderr, "child: %s failed (%s)\n", what, strerror(errno));
        _exit(3);
    }
}

static bool write_all(int fd, const void *bytes, size_t size)
{
    return write(fd, bytes, size) == (ssize_t)size;
}

static bool read_all(int fd, void *bytes, size_t size)
{
    size_t got = 0;
    while (got < size) {
        ssize_t n = read(fd, (char *)bytes + got, size - got);
        if (n <= 0) {
            return false;
        }
        got += (size_t)n;
    }
    return true;
}

/* Opens this process's end and swaps records over the pipes. */
static bool meet(pair *p, const char *transport, uint64_t *their_start_time)
{
    fg_error err = { 0 };
    fg_link_options options = rig_options(&p->e, transport, BLOCK_BYTES);
    if (fg_link_open_ucx(&options, &p->e.link, &err) != FG_OK) {
        fprintf(stderr, "%s\n", err.text);
        return false;
    }
    fg_buf record;
    fg_buf_init(&record, 0);
    uint32_t size;
    char theirs[16384];
    bool good = fg_link_describe(p->e.link, &record);
    size = (uint32_t)record.size;
    good = good && write_all(p->out, &size, sizeof size) &&
           write_all(p->out, record.data, record.size) && read_all(p->in, &size, sizeof size) &&
           size <= sizeof theirs && read_all(p->in, theirs, size);
    fg_buf_deinit(&record);
    fg_link_record parsed;
    good = good && fg_link_record_parse(theirs, size, &parsed, &err) == FG_OK;
    if (good && their_start_time != NULL) { /* pretend that the pid was reused since */
        parsed.started_at = *their_start_time;
        fg_buf_init(&record, 0);
        good = fg_link_record_encode(&parsed, &record) && record.size == size;
        memcpy(theirs, record.data, size);
        fg_buf_deinit(&record);
    }
    return good &&
           fg_link_add_peer(p->e.link, "other", 1, 1, theirs, size, &p->e.peer, &err) == FG_OK;
}

static void block_list(uint32_t *blocks, uint32_t from)
{
    for (uint32_t i = 0; i < COUNT; i++) {
        blocks[i] = (from + i) % RIG_BLOCKS;
    }
}

/* What block i of the ticket holds in attempt n. */
static uint8_t salt_of(uint32_t i, uint32_t attempt)
{
    return (uint8_t)(i * 7 + attempt * 101 + 1);
}

static fg_status push_some(pair *p, uint32_t count)
{
    uint32_t source[COUNT], target[COUNT];
    block_list(source, 0);
    block_list(target, 5);
    return fg_link_push(p->e.link, p->e.peer, TICKET, 0, source, target, count);
}

static void child_sends_all(pair *p)
{
    char byte;
    uint64_t digests[COUNT];
    must(read_all(p->in, &byte, 1), "go");
    for (uint32_t attempt = 0; p->e.answers == 0 || p->e.bad_count > 0; attempt++) {
        for (uint32_t i = 0; i < COUNT; i++) {
            fill_block(&p->e, i, salt_of(i, attempt));
            digests[i] = block_digest(&p->e, i);
        }
        must(push_some(p, COUNT) == FG_OK, "push");
        fg_link_commit commit = {
            .ticket = TICKET,
            .block_count = COUNT,
            .digests = digests,
            .first_token = attempt,
        };
        must(fg_link_commit_ticket(p->e.link, p->e.peer, &commit) == FG_OK, "commit");
        must(wait_for(&p->e, NULL, &p->e.answers, (int)attempt + 1), "answer");
    }
    must(tickets_open(&p->e) == 0, "no ticket left");
    fg_link_close(p->e.link);
    _exit(0);
}

static void progress_for_ever(pair *p)
{
    for (;;) {
        fg_link_progress(p->e.link);
        poll(NULL, 0, 1);
    }
}

static void child_main(pair *p, script what, const char *transport)
{
    char byte;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    must(meet(p, transport, NULL), "meet");
    switch (what) {
    case SENDS_ALL:
        child_sends_all(p);
        break;
    case SENDS_HALF:
        must(read_all(p->in, &byte, 1), "go");
        must(push_some(p, COUNT / 2) == FG_OK, "push");
        for (int i = 0; i < 1000; i++) {
            fg_link_progress(p->e.link);
        }
        must(write_all(p->out, "p", 1), "say");
        progress_for_ever(p);
        break;
    case SENDS_FOR_EVER:
        must(read_all(p->in, &byte, 1), "go");
        for (;;) {
            fg_status status = push_some(p, COUNT);
            must(status != FG_BAD_INPUT, "push");
            fg_link_progress(p->e.link);
        }
        break;
    case SENDS_LATE:
        must(read_all(p->in, &byte, 1), "go");
        must(write_all(p->out, push_some(p, 1) == FG_CANCELLED ? "c" : "o", 1), "say");
        progress_for_ever(p);
        break;
    case RECEIVES: {
        uint32_t blocks[COUNT];
        fg_error err;
        block_list(blocks, 5);
        must(fg_link_expect(p->e.link, p->e.peer, TICKET, blocks, COUNT, &err) == FG_OK, "expect");
        must(write_all(p->out, "e", 1), "say");
        progress_for_ever(p);
        break;
    }
    }
    _exit(4);
}

static void open_pair(pair *p, script what, const char *transport, uint64_t *their_start_time)
{
    int down[2], up[2];
    *p = (pair){ 0 };
    cr_assert(pipe(down) == 0 && pipe(up) == 0);
    p->child = fork();
    cr_assert(p->child >= 0);
    if (p->child == 0) {
        pair mine = { .in = down[0], .out = up[1] };
        close(down[1]);
        close(up[0]);
        child_main(&mine, what, transport);
    }
    close(down[0]);
    close(up[1]);
    p->in = up[0];
    p->out = down[1];
    cr_assert(meet(p, transport, their_start_time));
}

static void expect_ticket(pair *p)
{
    uint32_t blocks[COUNT];
    fg_error err = { 0 };
    block_list(blocks, 5);
    cr_assert_eq(fg_link_expect(p->e.link, p->e.peer, TICKET, blocks, COUNT, &err), FG_OK, "%s",
                 err.text);
    cr_assert(write_all(p->out, "g", 1));
}

/* Turns our end until the child says something. */
static char hear(pair *p)
{
    fg_clock clock = fg_clock_real();
    uint64_t end_ms = fg_clock_now_ms(&clock) + 10000;
    struct pollfd watch = { .fd = p->in, .events = POLLIN };
    while (poll(&watch, 1, 0) == 0 && fg_clock_now_ms(&clock) < end_ms) {
        fg_link_progress(p->e.link);
    }
    char byte = '?';
    cr_assert(read_all(p->in, &byte, 1));
    return byte;
}

static void kill_child(pair *p)
{
    kill(p->child, SIGKILL);
    cr_assert_eq(waitpid(p->child, NULL, 0), p->child);
    p->child = 0;
}

static void close_pair(pair *p)
{
    if (p->child > 0) {
        kill_child(p);
    }
    fg_link_close(p->e.link);
    rig_give_memory(&p->e);
    close(p->in);
    close(p->out);
}

static const char *const transports[] = { "shm", "tcp", "auto", "lent shm" };

static bool is_shm(size_t t)
{
    return t != 1;
}

/* --- tests; one body for the transports, one test (one process) for each --- */

static void run_transfer(const char *transport)
{
    pair p;
    open_pair(&p, SENDS_ALL, transport, NULL);
    expect_ticket(&p);
    for (uint32_t attempt = 0; attempt < 3; attempt++) {
        cr_assert(wait_for(&p.e, NULL, &p.e.commits, (int)attempt + 1), "%s", transport);
        cr_assert_eq(p.e.first_token, attempt);
        for (uint32_t i = 0; i < COUNT; i++) {
            cr_assert_eq(block_digest(&p.e, (5 + i) % RIG_BLOCKS), p.e.digests[i], "%s block %u",
                         transport, i);
        }
        const uint32_t bad[] = { 1, COUNT - 1 };
        cr_assert_eq(fg_link_answer(p.e.link, TICKET, bad, attempt < 2 ? 2 : 0), FG_OK);
    }
    int status = -1;
    while (waitpid(p.child, &status, WNOHANG) == 0) {
        fg_link_progress(p.e.link);
    }
    p.child = 0;
    cr_assert_eq(status, 0);
    cr_assert_eq(tickets_open(&p.e), 0);
    close_pair(&p);
}

Test(link_process, transfers_over_shm)
{
    run_transfer("shm");
}

Test(link_process, transfers_over_tcp)
{
    run_transfer("tcp");
}

Test(link_process, transfers_by_choice)
{
    run_transfer("auto");
}

Test(link_process, transfers_between_lent_memory_over_shm)
{
    run_transfer("lent shm");
}

Test(link_process, transfers_between_lent_memory_over_tcp)
{
    run_transfer("lent tcp");
}

/* A killed sender fences its tickets, in the middle of its writing too. */
static void run_kill_sender(size_t t, script what)
{
    pair p;
    open_pair(&p, what, transports[t], NULL);
    expect_ticket(&p);
    if (what == SENDS_HALF) {
        cr_assert_eq(hear(&p), 'p');
    } else {
        turn_both(&p.e, NULL, 5000);
    }
    cr_assert_eq(p.e.fenced, 0);
    kill_child(&p);
    cr_assert(wait_for(&p.e, NULL, &p.e.fenced, 1), "%s", transports[t]);
    cr_assert_eq(tickets_open(&p.e), 0);
    close_pair(&p);
}

Test(link_process, death_of_the_sender_fences_shm)
{
    run_kill_sender(0, SENDS_HALF);
}

Test(link_process, death_of_the_sender_fences_tcp)
{
    run_kill_sender(1, SENDS_HALF);
}

Test(link_process, death_while_writing_fences_shm)
{
    run_kill_sender(0, SENDS_FOR_EVER);
}

Test(link_process, death_while_writing_fences_lent_memory)
{
    run_kill_sender(3, SENDS_FOR_EVER);
}

Test(link_process, death_while_writing_fences_tcp)
{
    run_kill_sender(1, SENDS_FOR_EVER);
}

static void run_kill_receiver(size_t t)
{
    pair p;
    uint64_t digests[COUNT] = { 0 };
    open_pair(&p, RECEIVES, transports[t], NULL);
    cr_assert_eq(hear(&p), 'e');
    cr_assert_eq(push_some(&p, COUNT), FG_OK);
    fg_link_commit commit = { .ticket = TICKET, .block_count = COUNT, .digests = digests };
    cr_assert_eq(fg_link_commit_ticket(p.e.link, p.e.peer, &commit), FG_OK);
    turn_both(&p.e, NULL, 1000);
    kill_child(&p);
    cr_assert(wait_for(&p.e, NULL, &p.e.drained, 1), "%s", transports[t]);
    cr_assert_eq(p.e.why, FG_PEER_LOST);
    cr_assert_eq(push_some(&p, 1), FG_PEER_LOST);
    fg_link_lose_peer(p.e.link, p.e.peer);
    turn_both(&p.e, NULL, 1000);
    cr_assert_eq(tickets_open(&p.e), 0);
    cr_assert_null(p.e.link->peers[p.e.peer]);
    close_pair(&p);
}

Test(link_process, death_of_the_receiver_drains_shm)
{
    run_kill_receiver(0);
}

Test(link_process, death_of_the_receiver_drains_lent_memory)
{
    run_kill_receiver(3);
}

Test(link_process, death_of_the_receiver_drains_tcp)
{
    run_kill_receiver(1);
}

/* A sender that is frozen in the middle and declared dead. Over shared memory its blocks stay ours
 * alone until it thaws and answers, or has ended; over TCP the closed endpoint is fence enough. */
static void run_frozen_sender(size_t t, bool thaw)
{
    pair p;
    open_pair(&p, SENDS_FOR_EVER, transports[t], NULL);
    expect_ticket(&p);
    if (is_shm(t)) {
        turn_both(&p.e, NULL, 20000);
    } else { /* frozen while a receive writes into our arena */
        fg_clock clock = fg_clock_real();
        uint64_t end_ms = fg_clock_now_ms(&clock) + 10000;
        const fg_ticket *ticket = fg_book_find(p.e.link->book, FG_TICKET_IN, 0, TICKET);
        while (ticket->in_flight == 0 && fg_clock_now_ms(&clock) < end_ms) {
            fg_link_progress(p.e.link);
        }
        cr_assert(ticket->in_flight > 0);
    }
    kill(p.child, SIGSTOP);
    cr_assert_eq(waitpid(p.child, NULL, WUNTRACED), p.child);
    fg_link_lose_peer(p.e.link, p.e.peer);
    cr_assert_eq(p.e.fenced, 0, "a callback from inside a call");
    if (is_shm(t)) {
        turn_both(&p.e, NULL, 50000);
        cr_assert_eq(p.e.fenced, 0, "fenced while the writer may be inside its copy");
        cr_assert_eq(tickets_open(&p.e), 1);
        if (thaw) {
            kill(p.child, SIGCONT);
        } else {
            kill_child(&p);
        }
    }
    cr_assert(wait_for(&p.e, NULL, &p.e.fenced, 1), "%s", transports[t]);
    /* Our arena is written no more, whatever the sender does now. */
    memset(fg_link_arena(p.e.link), 0xA5, (size_t)RIG_BLOCKS * BLOCK_BYTES);
    if (p.child > 0) {
        kill(p.child, SIGCONT);
    }
    turn_both(&p.e, NULL, 50000);
    const uint8_t *arena = fg_link_arena(p.e.link);
    for (size_t i = 0; i < (size_t)RIG_BLOCKS * BLOCK_BYTES; i++) {
        cr_assert_eq(arena[i], 0xA5, "byte %zu written after the fence", i);
    }
    cr_assert_eq(tickets_open(&p.e), 0);
    close_pair(&p);
}

Test(link_process, a_frozen_writer_over_shm_is_fenced_when_it_thaws)
{
    run_frozen_sender(0, true);
}

Test(link_process, a_frozen_writer_over_shm_is_fenced_by_its_death)
{
    run_frozen_sender(0, false);
}

Test(link_process, a_frozen_writer_of_lent_memory_is_fenced_when_it_thaws)
{
    run_frozen_sender(3, true);
}

Test(link_process, a_frozen_writer_of_lent_memory_is_fenced_by_its_death)
{
    run_frozen_sender(3, false);
}

Test(link_process, a_frozen_writer_over_tcp_is_fenced_at_once)
{
    run_frozen_sender(1, true);
}

/* A fence that overtakes the first push. */
static void run_fence_first(size_t t)
{
    pair p;
    uint32_t blocks[COUNT];
    fg_error err;
    open_pair(&p, SENDS_LATE, transports[t], NULL);
    block_list(blocks, 5);
    cr_assert_eq(fg_link_expect(p.e.link, p.e.peer, TICKET, blocks, COUNT, &err), FG_OK);
    fg_link_fence(p.e.link, TICKET);
    /* The child makes progress only inside its read of "go": so ask after the message is under way. */
    turn_both(&p.e, NULL, 1000);
    cr_assert_eq(p.e.fenced, is_shm(t) ? 0 : 1);
    cr_assert(write_all(p.out, "g", 1));
    char said = hear(&p);
    cr_assert(wait_for(&p.e, NULL, &p.e.fenced, 1), "%s", transports[t]);
    /* It may have pushed before it looked at its messages; then the fence waited for that push. */
    cr_assert(said == 'c' || said == 'o');
    cr_assert_eq(tickets_open(&p.e), 0);
    close_pair(&p);
}

Test(link_process, a_fence_may_overtake_the_first_push_shm)
{
    run_fence_first(0);
}

Test(link_process, a_fence_may_overtake_the_first_push_tcp)
{
    run_fence_first(1);
}

/* A record whose pid now belongs to another process: its own has ended, so it writes no more. */
Test(link_process, a_reused_pid_counts_as_ended)
{
    pair p;
    uint64_t other_start = 1;
    uint32_t block = 3;
    fg_error err;
    open_pair(&p, SENDS_HALF, "shm", &other_start);
    cr_assert_eq(fg_link_expect(p.e.link, p.e.peer, TICKET, &block, 1, &err), FG_PEER_LOST);
    turn_both(&p.e, NULL, 100);
    fg_link_lose_peer(p.e.link, p.e.peer);
    turn_both(&p.e, NULL, 100);
    close_pair(&p);
}
