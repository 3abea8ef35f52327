#include "common/base/shared.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <unistd.h>

#include "common/base/fault.h"
#include "common/base/mem.h"
#include "tests/support/test.h"

enum { SIZE = 3 * 4096 };

static fg_shared make(void)
{
    fg_error err;
    fg_shared shared;
    cr_assert_eq(fg_shared_create(SIZE, true, &shared, &err), FG_OK, "%s", err.text);
    return shared;
}

Test(shared, what_one_writes_the_other_reads)
{
    fg_error err;
    fg_shared first = make(), second;
    memset(first.memory, 7, SIZE);
    fg_shared_name name = fg_shared_find(first.memory);
    cr_assert_eq(name.kind, FG_SHARED_FILE);
    cr_assert_eq(fg_shared_attach(name, SIZE, &second, &err), FG_OK, "%s", err.text);
    cr_assert_neq(first.memory, second.memory);
    cr_assert_eq(memcmp(first.memory, second.memory, SIZE), 0);
    /* A mapping needs no other to live on. */
    fg_shared_close(&first);
    cr_assert_eq(((unsigned char *)second.memory)[SIZE - 1], 7);
    fg_shared_close(&second);
    fg_shared_close(&second);
    cr_assert_eq(second.fd, -1);
}

Test(shared, it_is_zeroed_and_goes_to_no_child_by_itself)
{
    fg_shared shared = make();
    const unsigned char *bytes = shared.memory;
    for (size_t i = 0; i < SIZE; i++) {
        cr_assert_eq(bytes[i], 0);
    }
    cr_assert_neq(fcntl(shared.fd, F_GETFD) & FD_CLOEXEC, 0);
    fg_shared_close(&shared);
}

Test(shared, a_system_v_segment_is_found_and_attached)
{
    fg_error err;
    fg_shared shared;
    int id = shmget(IPC_PRIVATE, SIZE, IPC_CREAT | 0600);
    cr_assert_neq(id, -1);
    char *memory = shmat(id, NULL, 0);
    cr_assert_eq(shmctl(id, IPC_RMID, NULL), 0); /* goes with its last user */
    fg_shared_name name = fg_shared_find(memory);
    cr_assert_eq(name.kind, FG_SHARED_SYSV);
    cr_assert_eq(name.id, id);
    cr_assert_eq(fg_shared_attach(name, SIZE, &shared, &err), FG_OK, "%s", err.text);
    memory[5] = 9;
    cr_assert_eq(((char *)shared.memory)[5], 9);
    fg_shared_close(&shared);
    cr_assert_eq(fg_shared_attach(name, SIZE + 4096, &shared, &err), FG_BAD_INPUT);
    shmdt(memory);
    cr_assert_eq(fg_shared_attach(name, SIZE, &shared, &err), FG_BAD_INPUT);
}

Test(shared, private_memory_and_parts_have_no_name)
{
    fg_shared shared = make();
    void *anonymous = fg_mem_map(SIZE);
    void *nameless =
        mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, shared.fd, 0); /* but kept open */
    cr_assert_eq(fg_shared_find(anonymous).kind, FG_SHARED_NONE);
    cr_assert_eq(fg_shared_find((char *)shared.memory + 4096).kind, FG_SHARED_NONE);
    cr_assert_eq(fg_shared_find(NULL).kind, FG_SHARED_NONE);
    cr_assert_eq(fg_shared_find(nameless).kind, FG_SHARED_FILE);
    fg_shared_close(&shared);
    cr_assert_eq(fg_shared_find(nameless).kind, FG_SHARED_NONE, "nobody has it open any more");
    munmap(nameless, SIZE);
    fg_mem_unmap(anonymous, SIZE);
}

Test(shared, names_that_are_nothing_are_refused)
{
    fg_error err;
    fg_shared shared = make(), other;
    int pipes[2];
    cr_assert_eq(pipe(pipes), 0);
    const fg_shared_name names[] = { { FG_SHARED_NONE, 0 },       { FG_SHARED_FILE, -1 },
                                     { FG_SHARED_FILE, 1000000 }, { FG_SHARED_FILE, pipes[0] },
                                     { FG_SHARED_SYSV, -1 },      { 99, 0 } };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        cr_assert_eq(fg_shared_attach(names[i], SIZE, &other, &err), FG_BAD_INPUT, "name %zu", i);
        cr_assert_null(other.memory);
    }
    fg_shared_name name = fg_shared_find(shared.memory);
    cr_assert_eq(fg_shared_attach(name, SIZE * 2, &other, &err), FG_BAD_INPUT);
    fg_shared_close(&shared);
}

Test(shared, no_memory_is_said)
{
    fg_error err;
    fg_shared shared;
    cr_assert_eq(fg_shared_create(1ull << 60, true, &shared, &err), FG_AGAIN);
    for (uint64_t failing = 1; failing <= 2; failing++) {
        fg_fault_arm(failing);
        cr_assert_eq(fg_shared_create(SIZE, false, &shared, &err), FG_AGAIN);
        fg_fault_arm(0);
        cr_assert_null(shared.memory);
    }
}
