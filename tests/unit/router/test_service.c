#include "router/service.h"

#include <stdio.h>
#include <string.h>

#include "common/base/rng.h"
#include "tests/support/test.h"

static const struct {
    const char *name, *classes, *weights;
    fg_status want;
    size_t class_count, weight_count;
    const char *says;
} cases[] = {
    { "nothing", NULL, NULL, FG_OK, 0, 0, "" },
    { "empty", "", "", FG_OK, 0, 0, "" },
    { "two classes", "chat=500/50,batch=60000/0", NULL, FG_OK, 2, 0, "" },
    { "a comma at the end", "chat=500/50,", "a=2,", FG_OK, 1, 1, "" },
    { "weights", NULL, "alice=4,bob=1,x y=1024", FG_OK, 0, 3, "" },
    { "no value", "chat", NULL, FG_BAD_INPUT, 0, 0, "\"chat\" is not NAME=" },
    { "no name", "=1/1", NULL, FG_BAD_INPUT, 0, 0, "\"=1/1\"" },
    { "nothing between commas", "a=1/1,,b=1/1", NULL, FG_BAD_INPUT, 0, 0, "\"\"" },
    { "one number", "chat=5", NULL, FG_BAD_INPUT, 0, 0, "chat=5" },
    { "three numbers", "chat=5/5/5", NULL, FG_BAD_INPUT, 0, 0, "chat=5/5/5" },
    { "a fraction", "chat=0.5/5", NULL, FG_BAD_INPUT, 0, 0, "chat=0.5/5" },
    { "a sign", "chat=-5/5", NULL, FG_BAD_INPUT, 0, 0, "chat=-5/5" },
    { "longer than a day", "chat=86400001/5", NULL, FG_BAD_INPUT, 0, 0, "chat" },
    { "a number without end", "chat=99999999999999999999999/5", NULL, FG_BAD_INPUT, 0, 0, "chat" },
    { "twice", "chat=5/5,chat=6/6", NULL, FG_BAD_INPUT, 0, 0, "is there already" },
    { "none is everybody's", "none=5/5", NULL, FG_BAD_INPUT, 0, 0, "is there already" },
    { "weight 0", NULL, "a=0", FG_BAD_INPUT, 0, 0, "1 to 1024" },
    { "weight too high", NULL, "a=1025", FG_BAD_INPUT, 0, 0, "1 to 1024" },
    { "weight of a word", NULL, "a=much", FG_BAD_INPUT, 0, 0, "a=much" },
};

Test(service, reads_what_is_promised_and_refuses_the_rest)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static fg_service service;
        fg_error err = { 0 };
        fg_status status = fg_service_init(&service, cases[i].classes, cases[i].weights, 7, &err);
        cr_assert_eq(status, cases[i].want, "%s: %s", cases[i].name, err.text);
        if (status != FG_OK) {
            cr_assert_not_null(strstr(err.text, cases[i].says), "%s: %s", cases[i].name, err.text);
            continue;
        }
        cr_assert_eq(service.class_count, cases[i].class_count, "%s", cases[i].name);
        cr_assert_eq(service.weight_count, cases[i].weight_count, "%s", cases[i].name);
    }
}

Test(service, names_and_numbers_are_those_given)
{
    static fg_service service;
    cr_assert_eq(fg_service_init(&service, "chat=500/50,batch=60000/0", "alice=4", 7, NULL), FG_OK);
    const fg_admit_slo *chat = fg_admit_find_class(service.classes, service.class_count, "chat");
    cr_assert(chat != NULL && chat->ttft_ns == 500000000u && chat->itl_ns == 50000000u);
    const fg_admit_slo *batch = fg_admit_find_class(service.classes, service.class_count, "batch");
    cr_assert(batch != NULL && batch->ttft_ns == 60000000000u && batch->itl_ns == 0);
    cr_assert_null(fg_admit_find_class(service.classes, service.class_count, "other"));
    cr_assert_eq(fg_service_weight(&service, fg_service_tenant(&service, "alice", 5)), 4u);
    cr_assert_eq(fg_service_weight(&service, fg_service_tenant(&service, "bob", 3)), 1u);
    cr_assert_eq(fg_service_tenant(&service, "", 0), 0u);
}

Test(service, tenants_of_one_key_are_strangers_under_another)
{
    static fg_service one, other;
    cr_assert_eq(fg_service_init(&one, NULL, NULL, 7, NULL), FG_OK);
    cr_assert_eq(fg_service_init(&other, NULL, NULL, 8, NULL), FG_OK);
    cr_assert_eq(fg_service_tenant(&one, "alice", 5), fg_service_tenant(&one, "alice", 5));
    cr_assert_neq(fg_service_tenant(&one, "alice", 5), fg_service_tenant(&other, "alice", 5));
}

Test(service, lists_are_bounded)
{
    static fg_service service;
    char list[8192] = "";
    for (int i = 0; i < FG_SERVICE_CLASSES_MAX + 1; i++) {
        sprintf(list + strlen(list), "c%d=1/1,", i);
    }
    cr_assert_eq(fg_service_init(&service, list, NULL, 7, NULL), FG_BAD_INPUT);
    list[0] = '\0';
    for (int i = 0; i < FG_SERVICE_WEIGHTS_MAX + 1; i++) {
        sprintf(list + strlen(list), "u%d=1,", i);
    }
    cr_assert_eq(fg_service_init(&service, NULL, list, 7, NULL), FG_BAD_INPUT);
}

/* No text makes it read or write beyond its end; ASan watches. */
Test(service, any_text_is_read_or_refused)
{
    static const char letters[] = "ab=,/019 \n\xff";
    static fg_service service;
    fg_rng rng = { 11 };
    for (int i = 0; i < 200000; i++) {
        char text[24];
        size_t length = fg_rng_below(&rng, sizeof text);
        for (size_t j = 0; j < length; j++) {
            text[j] = letters[fg_rng_below(&rng, sizeof letters - 1)];
        }
        text[length] = '\0';
        char *exact = strdup(text);
        fg_service_init(&service, exact, NULL, 1, NULL);
        fg_service_init(&service, NULL, exact, 1, NULL);
        free(exact);
    }
}
