#include "tests/sim/fleet_setup.h"

#include <string.h>

#include "tests/support/test.h"

Test(fleet_setup, reads_set_ups)
{
    fg_fleet_setup base = { .workers = { 5, 6, 7 }, .max_seqs = 64, .kv_blocks = 9 };
    fg_fleet_variant v[FG_FLEET_SETUPS_MAX];
    fg_error err = { 0 };
    size_t count;
    cr_assert_eq(
        fg_fleet_setup_parse("prefill=8,decode=4;both=16,max-seqs=2", &base, v, &count, &err),
        FG_OK, "%s", err.text);
    cr_assert_eq(count, 2);
    cr_assert_str_eq(v[0].label, "prefill=8 decode=4");
    cr_assert(v[0].setup.workers[FG_FLEET_PREFILL] == 8 &&
              v[0].setup.workers[FG_FLEET_DECODE] == 4 && v[0].setup.workers[FG_FLEET_BOTH] == 0);
    cr_assert(v[1].setup.workers[FG_FLEET_BOTH] == 16 && v[1].setup.max_seqs == 2 &&
              v[1].setup.kv_blocks == 9);
    cr_assert_eq(fg_fleet_setup_parse("both=2,routing=round-robin,split=never,queue-ahead=3", &base,
                                      v, &count, &err),
                 FG_OK, "%s", err.text);
    cr_assert(v[0].setup.routing == FG_PLACE_ROUND_ROBIN && v[0].setup.split == FG_PLACE_UNSPLIT &&
              v[0].setup.queue_ahead == 3);
    char label[FG_FLEET_LABEL_BYTES];
    fg_fleet_setup_label(&base, label);
    cr_assert_str_eq(label, "prefill=5 decode=6 both=7");
}

Test(fleet_setup, refuses_and_teaches)
{
    static const struct {
        const char *text, *want;
    } cases[] = {
        { "", "an empty set-up" },
        { "both=1;", "an empty set-up" },
        { "workers=3", "\"workers=3\" is none of prefill, decode, both" },
        { "both", "wants a whole number" },
        { "both=", "wants a whole number, as in both=4" },
        { "both=-1", "wants a whole number" },
        { "both=2x", "wants a whole number" },
        { "both=2,routing=3", "wants one of cost, cache, least-loaded, round-robin, two-choices" },
        { "both=2,split", "wants one of auto, always, never" },
        { "both=1;both=1;both=1;both=1;both=1;both=1;both=1;both=1;both=1", "more than 8" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fg_fleet_setup base = { 0 };
        fg_fleet_variant v[FG_FLEET_SETUPS_MAX];
        fg_error err = { 0 };
        size_t count;
        cr_assert_eq(fg_fleet_setup_parse(cases[i].text, &base, v, &count, &err), FG_BAD_INPUT,
                     "%s", cases[i].text);
        cr_assert(strstr(err.text, cases[i].want) != NULL, "%s: %s", cases[i].text, err.text);
    }
}
