#include "common/obs/metrics.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/fault.h"
#include "tests/support/test.h"

/* --- a small checker of the text exposition format, written from its grammar --- */

static bool is_letter(char c, bool colon)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (colon && c == ':');
}

static const char *skip_name(const char *at, bool colon)
{
    const char *begin = at;
    while (is_letter(*at, colon) || (at > begin && *at >= '0' && *at <= '9')) {
        at++;
    }
    return at == begin ? NULL : at;
}

/* From `{` behind `}`; NULL when it is malformed. */
static const char *skip_labels(const char *at)
{
    do {
        at = skip_name(at + 1, false);
        if (at == NULL || at[0] != '=' || at[1] != '"') {
            return NULL;
        }
        for (at += 2; *at != '"'; at++) {
            if (*at == '\n' || *at == '\0') {
                return NULL;
            }
            if (*at == '\\') {
                at++;
                if (strchr("\\\"n", *at) == NULL) {
                    return NULL;
                }
            }
        }
        at++;
    } while (*at == ',');
    return *at == '}' ? at + 1 : NULL;
}

/* Checks one sample line; it must belong to `family`. */
static bool sample_is_fine(const char *line, const char *end, const char *family, const char *type)
{
    static const char *const suffixes[] = { "", "_bucket", "_sum", "_count" };
    const char *at = skip_name(line, true);
    size_t family_length = strlen(family);
    if (at == NULL || strncmp(line, family, family_length) != 0) {
        return false;
    }
    bool suffix_fine = false;
    for (size_t i = 0; i < 4; i++) {
        size_t length = strlen(suffixes[i]);
        bool of_type = (i == 0) == (strcmp(type, "histogram") != 0);
        suffix_fine = suffix_fine || (of_type && (size_t)(at - line) == family_length + length &&
                                      memcmp(line + family_length, suffixes[i], length) == 0);
    }
    at = *at == '{' ? skip_labels(at) : at;
    if (!suffix_fine || at == NULL || *at != ' ') {
        return false;
    }
    char *rest;
    strtod(at + 1, &rest);
    return rest > at + 1 && rest == end;
}

/* NULL, or the first line that is wrong. */
static const char *check_exposition(const char *text)
{
    static char family[128], type[32], seen[8192];
    family[0] = type[0] = seen[0] = '\0';
    for (const char *line = text; *line != '\0';) {
        const char *end = strchr(line, '\n');
        if (end == NULL) {
            return line; /* the last line is ended, too */
        }
        if (strncmp(line, "# HELP ", 7) == 0) {
            if (sscanf(line, "# HELP %127s", family) != 1 || strstr(seen, family) != NULL) {
                return line; /* a family comes once */
            }
            strncat(seen, family, sizeof seen - strlen(seen) - 2);
            strcat(seen, " ");
        } else if (strncmp(line, "# TYPE ", 7) == 0) {
            char name[128];
            if (sscanf(line, "# TYPE %127s %31s", name, type) != 2 || strcmp(name, family) != 0) {
                return line;
            }
        } else if (!sample_is_fine(line, end, family, type)) {
            return line;
        }
        line = end + 1;
    }
    return NULL;
}

static const double bounds[] = { 0.1, 1, 10 };

Test(metrics, renders_every_type)
{
    fg_metrics *metrics = fg_metrics_create(10);
    fg_metric *ok = fg_metrics_counter(
        metrics, &(fg_metric_spec){ .name = "request_success_total",
                                    .help = "Requests by end.",
                                    .labels = { { "finished_reason", "stop" } } });
    fg_metric *running = fg_metrics_gauge(
        metrics, &(fg_metric_spec){ .name = "num_requests_running", .help = "Running now." });
    fg_metric *length = fg_metrics_counter(
        metrics, &(fg_metric_spec){ .name = "request_success_total",
                                    .help = "Requests by end.",
                                    .labels = { { "finished_reason", "length" } } });
    fg_metric *ttft =
        fg_metrics_histogram(metrics,
                             &(fg_metric_spec){ .name = "time_to_first_token_seconds",
                                                .help = "First token.",
                                                .labels = { { "mode", "a\\b\"c\nd" } } },
                             bounds, 3);
    cr_assert(fg_metrics_ok(metrics));
    fg_metric_add(ok, 3);
    fg_metric_add(length, 1);
    fg_metric_set(running, 7);
    fg_metric_add(running, -2);
    fg_metric_observe(ttft, 0.05);
    fg_metric_observe(ttft, 0.1); /* bounds are inclusive */
    fg_metric_observe(ttft, 2.5);
    fg_metric_observe(ttft, 100);
    fg_metric_observe(ttft, NAN);
    fg_buf out;
    fg_buf_init(&out, 0);
    cr_assert(fg_metrics_render(metrics, &out));
    cr_assert_str_eq(
        out.data,
        "# HELP forge:request_success_total Requests by end.\n"
        "# TYPE forge:request_success_total counter\n"
        "forge:request_success_total{finished_reason=\"stop\"} 3\n"
        "forge:request_success_total{finished_reason=\"length\"} 1\n"
        "# HELP forge:num_requests_running Running now.\n"
        "# TYPE forge:num_requests_running gauge\n"
        "forge:num_requests_running 5\n"
        "# HELP forge:time_to_first_token_seconds First token.\n"
        "# TYPE forge:time_to_first_token_seconds histogram\n"
        "forge:time_to_first_token_seconds_bucket{mode=\"a\\\\b\\\"c\\nd\",le=\"0.1\"} 2\n"
        "forge:time_to_first_token_seconds_bucket{mode=\"a\\\\b\\\"c\\nd\",le=\"1\"} 2\n"
        "forge:time_to_first_token_seconds_bucket{mode=\"a\\\\b\\\"c\\nd\",le=\"10\"} 3\n"
        "forge:time_to_first_token_seconds_bucket{mode=\"a\\\\b\\\"c\\nd\",le=\"+Inf\"} 4\n"
        "forge:time_to_first_token_seconds_sum{mode=\"a\\\\b\\\"c\\nd\"} 102.65\n"
        "forge:time_to_first_token_seconds_count{mode=\"a\\\\b\\\"c\\nd\"} 4\n");
    const char *wrong = check_exposition(out.data);
    cr_assert_null(wrong, "%s", wrong);
    cr_assert_eq(fg_metric_value(ttft), 4);
    cr_assert_eq(fg_metric_value(ok), 3);
    fg_buf_deinit(&out);
    fg_metrics_destroy(metrics);
    fg_metrics_destroy(NULL);
}

Test(metrics, the_checker_sees_mistakes)
{
    static const char *const texts[] = {
        "forge:x 1\n",
        "# HELP forge:x h\n# TYPE forge:x counter\nforge:x 1",
        "# HELP forge:x h\n# TYPE forge:x counter\nforge:x one\n",
        "# HELP forge:x h\n# TYPE forge:x counter\nforge:y 1\n",
        "# HELP forge:x h\n# TYPE forge:x counter\nforge:x{a=b} 1\n",
        "# HELP forge:x h\n# TYPE forge:x counter\nforge:x{a=\"b} 1\n",
        "# HELP forge:x h\n# TYPE forge:x counter\nforge:x_sum 1\n",
        "# HELP forge:x h\n# TYPE forge:x histogram\nforge:x 1\n",
        "# HELP forge:x h\n# TYPE forge:x counter\nforge:x 1\n# HELP forge:x h\n",
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        cr_assert_not_null(check_exposition(texts[i]), "text %zu", i);
    }
}

Test(metrics, numbers_read_back_exactly)
{
    static const double values[] = { 0,         1,       -1,     0.1,      1e300,
                                     123456789, 1 / 3.0, 5e-324, 1e15 + 1, 9007199254740992.0 };
    fg_metrics *metrics = fg_metrics_create(1);
    fg_metric *gauge =
        fg_metrics_gauge(metrics, &(fg_metric_spec){ .name = "value", .help = "A\nvalue \\ it." });
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        fg_buf out;
        fg_buf_init(&out, 0);
        fg_metric_set(gauge, values[i]);
        cr_assert(fg_metrics_render(metrics, &out));
        cr_assert_null(check_exposition(out.data), "%s", out.data);
        cr_assert_eq(strtod(strrchr(out.data, ' '), NULL), values[i], "%s", out.data);
        fg_buf_deinit(&out);
    }
    static const struct {
        double value;
        const char *text;
    } special[] = { { (double)NAN, " NaN\n" },
                    { (double)INFINITY, " +Inf\n" },
                    { -(double)INFINITY, " -Inf\n" } };
    for (size_t i = 0; i < 3; i++) {
        fg_buf out;
        fg_buf_init(&out, 0);
        fg_metric_set(gauge, special[i].value);
        cr_assert(fg_metrics_render(metrics, &out));
        cr_assert_str_eq(strrchr(out.data, ' '), special[i].text);
        fg_buf_deinit(&out);
    }
    fg_metrics_destroy(metrics);
}

Test(metrics, standard_bounds_rise)
{
    const fg_metric_bounds all[] = { fg_metric_bounds_first_token(), fg_metric_bounds_inter_token(),
                                     fg_metric_bounds_request() };
    fg_metrics *metrics = fg_metrics_create(3);
    static const char *const names[] = { "a_seconds", "b_seconds", "c_seconds" };
    for (size_t i = 0; i < 3; i++) {
        fg_metric *histogram =
            fg_metrics_histogram(metrics, &(fg_metric_spec){ .name = names[i], .help = "h" },
                                 all[i].values, all[i].count);
        cr_assert_not_null(histogram);
        for (size_t k = 0; k < all[i].count; k++) {
            fg_metric_observe(histogram, all[i].values[k]);
        }
        fg_buf out;
        fg_buf_init(&out, 0);
        cr_assert(fg_metrics_render(metrics, &out));
        cr_assert_null(check_exposition(out.data), "%s", check_exposition(out.data));
        fg_buf_deinit(&out);
    }
    fg_metrics_destroy(metrics);
}

Test(metrics, a_full_registry_is_remembered_and_harmless)
{
    fg_metrics *metrics = fg_metrics_create(1);
    cr_assert_not_null(fg_metrics_gauge(metrics, &(fg_metric_spec){ .name = "a", .help = "h" }));
    cr_assert(fg_metrics_ok(metrics));
    fg_metric *none =
        fg_metrics_histogram(metrics, &(fg_metric_spec){ .name = "b", .help = "h" }, bounds, 3);
    cr_assert_null(none);
    cr_assert(!fg_metrics_ok(metrics));
    fg_metric_observe(none, 1);
    fg_metric_add(none, 1);
    fg_metric_set(none, 1);
    cr_assert_eq(fg_metric_value(none), 0);
    fg_metrics_destroy(metrics);
}

Test(metrics, a_full_buffer_is_false)
{
    fg_metrics *metrics = fg_metrics_create(1);
    fg_metrics_gauge(metrics, &(fg_metric_spec){ .name = "a", .help = "h" });
    fg_buf out;
    fg_buf_init(&out, 10);
    cr_assert(!fg_metrics_render(metrics, &out));
    fg_buf_deinit(&out);
    fg_metrics_destroy(metrics);
}

static bool build(void *ctx)
{
    fg_metrics *metrics = fg_metrics_create(4);
    if (metrics == NULL) {
        return false;
    }
    fg_metrics_counter(metrics, &(fg_metric_spec){ .name = "a_total",
                                                   .help = "h",
                                                   .labels = { { "x", "y" }, { "z", "w" } } });
    fg_metrics_histogram(metrics,
                         &(fg_metric_spec){ .name = "b", .help = "h", .labels = { { "x", "y" } } },
                         bounds, 3);
    bool fine = fg_metrics_ok(metrics);
    fg_metrics_destroy(metrics);
    return fine;
}

Test(metrics, survives_every_failed_allocation)
{
    cr_assert_eq(fg_fault_each(build, NULL), 5);
}
