#include "common/conf/options.h"

#include <stdio.h>
#include <string.h>

#include "common/base/dtype.h"
#include "common/base/log.h"
#include "tests/support/test.h"

static fg_status parse(int argc, const char *const *argv, fg_serve_config *conf, fg_error *err)
{
    fg_conf_input input = { .argc = argc, .argv = argv };
    fg_conf_asked asked;
    return fg_conf_parse(&fg_serve_spec, &input, conf, &asked, err);
}

Test(options, defaults_are_the_documented_ones)
{
    fg_serve_config conf;
    cr_assert_eq(parse(0, NULL, &conf, NULL), FG_OK);
    cr_assert_null(conf.model);
    cr_assert_eq(conf.mode, FG_MODE_STANDALONE);
    cr_assert_str_eq(conf.host, "127.0.0.1");
    cr_assert_eq(conf.port, 8080);
    cr_assert_eq(conf.status_port, -1);
    cr_assert_eq(conf.control.port, 8090);
    cr_assert_str_eq(conf.router.items[0].host, "127.0.0.1");
    cr_assert_eq(conf.threads, 0);
    cr_assert_eq(conf.max_seqs, 64);
    cr_assert_eq(conf.kv_blocks, 0);
    cr_assert_eq(conf.prefill_chunk_size, 512);
    cr_assert_eq(conf.max_batch_tokens, 4096);
    cr_assert_eq(conf.max_tokens_default, 512);
    cr_assert_eq(conf.queue_limit, 256);
    cr_assert_eq(conf.drain_seconds, 10);
    cr_assert_eq(conf.lease_ms, 2000);
    cr_assert_eq((uint32_t)conf.kv_dtype, FG_DTYPE_AUTO);
    cr_assert_eq(conf.kv_transport, FG_KV_AUTO);
    cr_assert_eq(conf.cpu_isa, FG_ISA_AUTO);
    cr_assert_eq(conf.log_level, FG_LOG_INFO);
    cr_assert(!conf.insecure_network);
}

Test(options, the_old_names_still_work)
{
    static const char *const argv[] = { "--mode", "scheduler", "--scheduler", "10.1.2.3:99" };
    fg_serve_config conf;
    cr_assert_eq(parse(4, argv, &conf, NULL), FG_OK);
    cr_assert_eq(conf.mode, FG_MODE_ROUTER);
    cr_assert_str_eq(conf.router.items[0].host, "10.1.2.3");
    cr_assert_eq(conf.router.items[0].port, 99);
}

Test(options, a_worker_names_up_to_eight_routers)
{
    static const struct {
        const char *text;
        uint32_t count; /* 0: refused */
    } rows[] = {
        { "tcp://a:1", 1 },
        { "tcp://a:1,b:2", 2 },
        { "a:1,[::1]:1", 2 },
        { "a:1,a:2,a:3,a:4,a:5,a:6,a:7,a:8", 8 },
        { "a:1,a:2,a:3,a:4,a:5,a:6,a:7,a:8,a:9", 0 },
        { "a:1,b:2,a:1", 0 },
        { "a:1,", 0 },
        { ",a:1", 0 },
        { "a:1,b", 0 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const char *const argv[] = { "--router", rows[i].text };
        fg_serve_config conf;
        fg_error err;
        fg_status status = parse(2, argv, &conf, &err);
        cr_assert_eq(status, rows[i].count > 0 ? FG_OK : FG_BAD_INPUT, "%s", rows[i].text);
        if (status == FG_OK) {
            cr_assert_eq(conf.router.count, rows[i].count, "%s", rows[i].text);
        }
    }
}

Test(options, every_row_is_whole_and_named_once)
{
    const fg_option *options = fg_serve_spec.options;
    for (size_t i = 0; i < fg_serve_spec.option_count; i++) {
        size_t length = strlen(options[i].help);
        cr_assert(length > 0 && options[i].help[length - 1] == '.', "--%s", options[i].name);
        cr_assert_not_null(options[i].group, "--%s", options[i].name);
        for (size_t k = 0; k < i; k++) {
            cr_assert(strcmp(options[i].name, options[k].name) != 0, "--%s", options[i].name);
            cr_assert(options[i].offset != options[k].offset, "--%s", options[i].name);
        }
        /* A group that is left and taken up again would have two headings. */
        for (size_t k = 0; k + 1 < i; k++) {
            cr_assert(options[k].group != options[i].group ||
                          options[i - 1].group == options[i].group,
                      "--%s", options[i].name);
        }
    }
}

Test(options, documentation_names_every_flag_and_variable)
{
    const fg_conf_spec *specs[] = { &fg_serve_spec };
    fg_buf out;
    fg_buf_init(&out, 0);
    fg_conf_render_markdown(specs, 1, &out);
    cr_assert(!out.failed);
    for (size_t i = 0; i < fg_serve_spec.option_count; i++) {
        const fg_option *option = &fg_serve_spec.options[i];
        char wanted[128];
        char brief[] = { '-', option->brief, ',', ' ', '\0' };
        snprintf(wanted, sizeof wanted, "| `%s--%s", option->brief == '\0' ? "" : brief,
                 option->name);
        cr_assert_not_null(strstr(out.data, wanted), "%s", wanted);
    }
    cr_assert_not_null(strstr(out.data, "`FORGE_PREFILL_CHUNK_SIZE` | `512`"));
    /* Every row of a table has four cells; bars inside cells are escaped. */
    for (const char *line = out.data; line != NULL && *line != '\0';) {
        const char *end = strchr(line, '\n');
        int bars = 0;
        for (const char *at = line; line[0] == '|' && at < end; at++) {
            bars += *at == '|' && at[-1] != '\\' ? 1 : 0;
        }
        cr_assert(line[0] != '|' || bars == 5, "%.*s", (int)(end - line), line);
        line = end + 1;
    }
    fg_buf_deinit(&out);
}

Test(options, letters_are_not_shared)
{
    bool taken[128] = { ['h'] = true };
    for (size_t i = 0; i < fg_serve_spec.option_count; i++) {
        unsigned char brief = (unsigned char)fg_serve_spec.options[i].brief;
        cr_assert(brief < sizeof taken && (brief == '\0' || !taken[brief]), "-%c", brief);
        taken[brief] = brief != '\0';
    }
}

Test(options, help_keeps_within_a_terminal)
{
    fg_buf out;
    fg_buf_init(&out, 0);
    cr_assert_eq(fg_conf_render_help(&fg_serve_spec, NULL, &out), fg_serve_spec.option_count);
    for (const char *line = out.data; *line != '\0'; line = strchr(line, '\n') + 1) {
        cr_assert(strchr(line, '\n') - line <= 100, "%.*s", 100, line);
    }
    fg_buf_deinit(&out);
}
