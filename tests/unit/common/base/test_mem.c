#include "common/base/mem.h"

#include <stdint.h>
#include <string.h>

#include "common/base/fault.h"
#include "tests/support/test.h"

Test(mem, zeroes_what_it_gives)
{
    unsigned char *bytes = fg_mem_array(33, 7);
    cr_assert_not_null(bytes);
    for (size_t i = 0; i < 33 * 7; i++) {
        cr_assert_eq(bytes[i], 0, "byte %zu", i);
    }
    fg_mem_free(bytes);
}

Test(mem, refuses_sizes_that_overflow)
{
    static const struct {
        size_t count, item_bytes;
    } cases[] = { { SIZE_MAX, 2 },
                  { SIZE_MAX / 2 + 1, 2 },
                  { 2, SIZE_MAX },
                  { (size_t)1 << 32, (size_t)1 << 32 } };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *kept = fg_mem_strdup("kept");
        cr_assert_null(fg_mem_array(cases[i].count, cases[i].item_bytes), "case %zu", i);
        cr_assert_null(fg_mem_resize(kept, cases[i].count, cases[i].item_bytes), "case %zu", i);
        cr_assert_str_eq(kept, "kept");
        fg_mem_free(kept);
    }
}

Test(mem, gives_something_for_nothing)
{
    void *nothing = fg_mem_alloc(0);
    cr_assert_not_null(nothing);
    nothing = fg_mem_resize(nothing, 0, 8);
    cr_assert_not_null(nothing);
    fg_mem_free(nothing);
    fg_mem_free(NULL);
}

Test(mem, copies)
{
    char *text = fg_mem_strdup("forge");
    unsigned char *bytes = fg_mem_dup("a\0b", 3);
    cr_assert_str_eq(text, "forge");
    cr_assert_eq(memcmp(bytes, "a\0b", 3), 0);
    fg_mem_free(text);
    fg_mem_free(bytes);
}

Test(mem, maps_zeroed_pages)
{
    size_t size_bytes = 3 * 4096;
    unsigned char *pages = fg_mem_map(size_bytes);
    cr_assert_not_null(pages);
    cr_assert_eq((uintptr_t)pages % 4096, 0);
    cr_assert_eq(pages[0] + pages[size_bytes - 1], 0);
    pages[size_bytes - 1] = 1;
    fg_mem_unmap(pages, size_bytes);
    fg_mem_unmap(NULL, size_bytes);
    cr_assert_null(fg_mem_map(SIZE_MAX / 2));
}

Test(mem, knows_that_some_memory_is_left)
{
    uint64_t bytes = fg_mem_available_bytes();
    cr_assert(bytes > 1024 * 1024 && bytes < (uint64_t)1 << 50, "%llu", (unsigned long long)bytes);
}

Test(mem, fails_when_told_to)
{
    fg_fault_arm(2);
    void *first = fg_mem_alloc(8);
    void *second = fg_mem_alloc(8);
    void *third = fg_mem_alloc(8);
    fg_fault_arm(0);
    cr_assert_not_null(first);
    cr_assert_null(second);
    cr_assert_not_null(third);
    fg_mem_free(first);
    fg_mem_free(third);
}

Test(mem, every_taking_is_counted)
{
    uint64_t before = fg_mem_count();
    void *block = fg_mem_alloc(8);
    void *array = fg_mem_array(2, 8);
    array = fg_mem_resize(array, 4, 8);
    void *map = fg_mem_map(4096);
    cr_assert_eq(fg_mem_count() - before, 4u);
    fg_mem_unmap(map, 4096);
    fg_mem_free(array);
    fg_mem_free(block);
    cr_assert_eq(fg_mem_count() - before, 4u, "giving back is no taking");
}
