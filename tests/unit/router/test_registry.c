#include "router/registry.h"

#include <string.h>

#include "common/base/fault.h"
#include "common/kv/layout.h"
#include "router/journal.h"
#include "tests/support/test.h"

static fg_wire_hello hello_of(const char *name, uint64_t epoch)
{
    return (fg_wire_hello){ .protocol = FG_PROTOCOL_VERSION,
                            .self = { .name = name, .epoch = epoch },
                            .roles = FG_ROLE_DECODE,
                            .able = FG_ROLE_PREFILL | FG_ROLE_DECODE,
                            .fingerprint_low = 1,
                            .fingerprint_high = 2,
                            .numerics_class = "cpu/k1",
                            .layer_count = 2,
                            .kv_head_count = 2,
                            .head_dim = 16,
                            .block_size = 16,
                            .kv_dtype = 1,
                            .block_count = 10,
                            .max_seqs = 4,
                            .context_max = 100,
                            .link_record = "record",
                            .link_record_bytes = 6 };
}

static fg_registry *make_registry(void)
{
    fg_registry_options options = { .fingerprint = { 1, 2 }, .lease_ns = 1000 };
    fg_registry *registry = NULL;
    cr_assert_eq(fg_registry_create(&options, &registry, NULL), FG_OK);
    return registry;
}

typedef void (*change_fn)(fg_wire_hello *hello);
static void other_protocol(fg_wire_hello *h)
{
    h->protocol++;
}
static void other_model(fg_wire_hello *h)
{
    h->fingerprint_high++;
}
static void other_layers(fg_wire_hello *h)
{
    h->layer_count++;
}
static void other_block_size(fg_wire_hello *h)
{
    h->block_size = 32;
}
static void other_dtype(fg_wire_hello *h)
{
    h->kv_dtype = 0;
}
static void other_layout(fg_wire_hello *h)
{
    h->kv_layout++;
}
static void blocks_in_device(fg_wire_hello *h)
{
    h->kv_layout |= FG_KV_LAYOUT_IN_DEVICE;
}
static void other_class(fg_wire_hello *h)
{
    h->numerics_class = "cpu/k2";
}
/* Of the longest that the wire lets pass, the last character. */
#define PART      "cpu/k1/kv-bf16/tp1/a-class-that-goes-on-for-as-long-as-it-may/"
#define CLASS_127 PART PART "xyz"
static const char long_class[] = CLASS_127 "1";
static void cut_class(fg_wire_hello *h)
{
    static char cut[64];
    memcpy(cut, long_class, sizeof cut - 1);
    h->numerics_class = cut;
}
static void other_end(fg_wire_hello *h)
{
    h->numerics_class = CLASS_127 "2";
}
static void same_class(fg_wire_hello *h)
{
    h->numerics_class = long_class;
}
static void no_role(fg_wire_hello *h)
{
    h->roles = 0;
}
static void taken_name(fg_wire_hello *h)
{
    h->self.name = "first";
}

static const struct {
    const char *name;
    change_fn change;
    const char *word; /* the reason names it */
} refusals[] = {
    { "protocol", other_protocol, "protocol" },
    { "model", other_model, "model" },
    { "layers", other_layers, "layout" },
    { "block size", other_block_size, "block size" },
    { "dtype", other_dtype, "layout" },
    { "layout", other_layout, "layout" },
    { "memory", blocks_in_device, "in a device's memory" },
    { "class", other_class, "numerics class" },
    { "no role", no_role, "role" },
    { "name", taken_name, "first" },
};

Test(registry, refuses_what_does_not_fit_and_says_why)
{
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        fg_registry *registry = make_registry();
        fg_error err = { 0 };
        fg_reg_worker *worker;
        fg_wire_hello first = hello_of("first", 1), second = hello_of("second", 1);
        cr_assert_eq(fg_registry_join(registry, &first, 0, 0, &worker, &err), FG_OK);
        refusals[i].change(&second);
        cr_assert_eq(fg_registry_join(registry, &second, 1, 0, &worker, &err), FG_BAD_INPUT, "%s",
                     refusals[i].name);
        cr_assert(strstr(err.text, refusals[i].word) != NULL, "%s: %s", refusals[i].name, err.text);
        cr_assert_eq(fg_registry_count(registry), 1u);
        fg_registry_destroy(registry);
    }
}

static const struct {
    const char *name;
    change_fn change;
    fg_status want;
} long_classes[] = {
    { "the same", same_class, FG_OK },
    { "its beginning", cut_class, FG_BAD_INPUT },
    { "another end", other_end, FG_BAD_INPUT },
};

Test(registry, a_numerics_class_counts_to_its_last_character)
{
    cr_assert_eq(sizeof long_class - 1, FG_LIMIT_CLASS_BYTES);
    for (size_t i = 0; i < sizeof long_classes / sizeof *long_classes; i++) {
        fg_registry *registry = make_registry();
        fg_reg_worker *worker;
        fg_block_namer first_namer, namer;
        const char *class;
        fg_wire_hello first = hello_of("first", 1), second = hello_of("second", 1);
        first.numerics_class = long_class;
        long_classes[i].change(&second);
        cr_assert_eq(fg_registry_join(registry, &first, 0, 0, &worker, NULL), FG_OK);
        fg_registry_shape(registry, &class);
        cr_assert_str_eq(class, long_class);
        cr_assert(fg_registry_namer(registry, &first_namer));
        cr_assert_eq(fg_registry_join(registry, &second, 1, 0, &worker, NULL), long_classes[i].want,
                     "%s", long_classes[i].name);
        fg_registry_destroy(registry);
        registry = make_registry();
        cr_assert_eq(fg_registry_join(registry, &second, 0, 0, &worker, NULL), FG_OK);
        cr_assert(fg_registry_namer(registry, &namer));
        cr_assert_eq(namer.identity.low == first_namer.identity.low, long_classes[i].want == FG_OK,
                     "%s: blocks of one name", long_classes[i].name);
        fg_registry_destroy(registry);
    }
}

Test(registry, leases_run_out_unless_renewed)
{
    fg_registry *registry = make_registry();
    fg_reg_worker *a, *b;
    fg_wire_hello ha = hello_of("a", 1), hb = hello_of("b", 1);
    cr_assert_eq(fg_registry_join(registry, &ha, 0, 0, &a, NULL), FG_OK);
    cr_assert_eq(fg_registry_join(registry, &hb, 1, 0, &b, NULL), FG_OK);
    fg_registry_seen(b, 900);
    cr_assert_null(fg_registry_expired(registry, 1000));
    cr_assert_eq(fg_registry_expired(registry, 1001), a);
    fg_registry_remove(registry, a);
    cr_assert_null(fg_registry_expired(registry, 1001));
    cr_assert_eq(fg_registry_by_peer(registry, 1), b);
    cr_assert_null(fg_registry_by_peer(registry, 0));
    cr_assert_eq(fg_registry_by_name(registry, "b"), b);
    fg_registry_destroy(registry);
}

Test(registry, an_older_report_does_not_replace_a_newer_one)
{
    fg_registry *registry = make_registry();
    fg_reg_worker *w;
    fg_wire_hello hello = hello_of("a", 1);
    cr_assert_eq(fg_registry_join(registry, &hello, 0, 0, &w, NULL), FG_OK);
    w->full = true;
    fg_registry_update(w, &(fg_wire_load){ .sequence = 2, .free = 5, .cache_hit_tokens = 7 }, 1);
    cr_assert(!w->full && w->load.cache_hit_tokens == 7);
    w->full = true;
    fg_registry_update(w, &(fg_wire_load){ .sequence = 1, .free = 9 }, 1);
    cr_assert(w->load.free == 5 && w->full, "an old report says nothing about now");
    fg_registry_destroy(registry);
}

static bool join_once(void *ctx)
{
    fg_registry_options options = { .fingerprint = { 1, 2 }, .lease_ns = 1000 };
    fg_registry *registry = NULL;
    fg_reg_worker *w;
    fg_wire_hello hello = hello_of("a", 1);
    if (fg_registry_create(&options, &registry, NULL) != FG_OK) {
        return false;
    }
    bool joined = fg_registry_join(registry, &hello, 0, 0, &w, NULL) == FG_OK;
    fg_registry_destroy(registry);
    return joined;
}

Test(registry, survives_each_failed_allocation)
{
    cr_assert_eq(fg_fault_each(join_once, NULL), 3);
}

static fg_journal_news append(fg_journal *journal, uint32_t index, uint32_t id, uint64_t digest)
{
    return fg_journal_append(journal, index, &(fg_journal_token){ .id = id, .digest = digest });
}

Test(journal, reads_in_order_whatever_the_order_of_arrival_and_drops_doubles)
{
    fg_journal *journal = fg_journal_begin(4);
    uint32_t index;
    fg_journal_token read;
    cr_assert(append(journal, 1, 11, 0) == FG_JOURNAL_NEW);
    cr_assert(!fg_journal_read(journal, &index, &read));
    cr_assert(append(journal, 0, 10, 7) == FG_JOURNAL_NEW);
    cr_assert(append(journal, 1, 99, 0) == FG_JOURNAL_DROPPED);
    cr_assert(append(journal, 4, 99, 0) == FG_JOURNAL_DROPPED);
    cr_assert(fg_journal_read(journal, &index, &read) && index == 0 && read.id == 10 &&
              read.digest == 7);
    cr_assert(fg_journal_read(journal, &index, &read) && index == 1 && read.id == 11);
    cr_assert(!fg_journal_read(journal, &index, &read));
    cr_assert(append(journal, 0, 10, 7) == FG_JOURNAL_DROPPED);
    cr_assert(append(journal, 2, 12, 0) == FG_JOURNAL_NEW &&
              append(journal, 3, 13, 0) == FG_JOURNAL_NEW);
    cr_assert(fg_journal_read(journal, &index, &read) && fg_journal_read(journal, &index, &read) &&
              read.id == 13);
    cr_assert(!fg_journal_read(journal, &index, &read));
    cr_assert_eq(fg_journal_count(journal), 4u);
    fg_journal_end(journal);
}

Test(journal, another_attempt_must_say_what_was_read)
{
    fg_journal *journal = fg_journal_begin(4);
    uint32_t index;
    fg_journal_token read;
    for (uint32_t i = 0; i < 3; i++) {
        cr_assert_eq(append(journal, i, 10 + i, i), FG_JOURNAL_NEW);
    }
    cr_assert(fg_journal_read(journal, &index, &read));
    cr_assert(fg_journal_read(journal, &index, &read));
    fg_journal_again(journal);
    cr_assert_eq(fg_journal_count(journal), 2u);
    cr_assert(!fg_journal_read(journal, &index, &read), "what was not read is forgotten");
    cr_assert_eq(append(journal, 2, 99, 9), FG_JOURNAL_NEW);
    cr_assert_eq(append(journal, 0, 10, 0), FG_JOURNAL_KNOWN);
    cr_assert_eq(append(journal, 0, 10, 0), FG_JOURNAL_DROPPED);
    cr_assert_eq(append(journal, 1, 12, 1), FG_JOURNAL_OTHER);
    fg_journal_again(journal);
    cr_assert_eq(append(journal, 1, 11, 2), FG_JOURNAL_OTHER, "another digest");
    cr_assert_eq(append(journal, 2, 12, 2), FG_JOURNAL_NEW);
    cr_assert(fg_journal_read(journal, &index, &read) && index == 2 && read.id == 12);
    fg_journal_end(journal);
}

Test(journal, logprobs_come_out_with_their_token_and_leave_nothing_behind)
{
    fg_journal *journal = fg_journal_begin(4);
    uint32_t index;
    fg_journal_token read;
    for (uint32_t i = 3; i-- > 0;) {
        fg_logprobs logprobs = { .chosen = -(float)i, .count = i };
        fg_journal_token token = { .id = 10 + i, .logprobs = i == 1 ? NULL : &logprobs };
        cr_assert_eq(fg_journal_append(journal, i, &token), FG_JOURNAL_NEW);
    }
    cr_assert(fg_journal_read(journal, &index, &read) && read.logprobs->count == 0);
    cr_assert(fg_journal_read(journal, &index, &read) && read.logprobs == NULL);
    fg_journal_again(journal); /* one that was not read */
    cr_assert_eq(append(journal, 2, 12, 0), FG_JOURNAL_NEW);
    cr_assert(fg_journal_read(journal, &index, &read) && read.logprobs == NULL);
    fg_logprobs last = { .chosen = -3 };
    fg_journal_token token = { .id = 13, .logprobs = &last };
    cr_assert_eq(fg_journal_append(journal, 3, &token), FG_JOURNAL_NEW);
    fg_journal_end(journal); /* with one that was not read */
}
