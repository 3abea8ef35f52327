#include "cli/sim.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/sim/world.h"
#include "tests/support/test.h"

enum { WORDS_MAX = 24, TEXT_MAX = 1 << 20 };

/* What a command printed. */
typedef struct printed {
    int code;
    char *out, *err;
} printed;

static char *take_text(FILE *file)
{
    char *text = calloc(1, TEXT_MAX);
    cr_assert(text != NULL);
    rewind(file);
    size_t size = fread(text, 1, TEXT_MAX - 1, file);
    text[size] = '\0';
    fclose(file);
    return text;
}

/* `line` is what follows "forge sim". */
static printed run(const char *line)
{
    char copy[512];
    const char *words[WORDS_MAX];
    const char *const environment[] = { NULL };
    int count = 0;
    snprintf(copy, sizeof copy, "%s", line);
    for (char *word = strtok(copy, " "); word != NULL; word = strtok(NULL, " ")) {
        cr_assert(count < WORDS_MAX);
        words[count++] = word;
    }
    FILE *out = tmpfile(), *err = tmpfile();
    cr_assert(out != NULL && err != NULL);
    fflush(NULL);
    int old_out = dup(STDOUT_FILENO), old_err = dup(STDERR_FILENO);
    dup2(fileno(out), STDOUT_FILENO);
    dup2(fileno(err), STDERR_FILENO);
    printed p = { .code = fg_cli_sim(count, words, environment) };
    fflush(NULL);
    dup2(old_out, STDOUT_FILENO);
    dup2(old_err, STDERR_FILENO);
    close(old_out);
    close(old_err);
    p.out = take_text(out);
    p.err = take_text(err);
    return p;
}

static void forget(printed *p)
{
    free(p->out);
    free(p->err);
}

Test(cli_sim, one_seed_prints_the_same_history_every_time)
{
    static const char *const lines[] = { "--seed 3", "--seed 4", "--seed 46",
                                         "--seed 5 --fault all --requests 0-9" };
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        printed a = run(lines[i]), b = run(lines[i]);
        cr_assert(a.code == 0 && b.code == 0, "%s: %s", lines[i], a.err);
        cr_assert(strcmp(a.out, b.out) == 0 && strlen(a.out) > 2000, "%s", lines[i]);
        cr_assert(strstr(a.out, "every rule held") != NULL);
        cr_assert(strstr(a.out, " state ") != NULL && strstr(a.out, " token ") != NULL);
        cr_assert(a.err[0] == '\0', "%s", a.err);
        forget(&a);
        forget(&b);
    }
}

Test(cli_sim, many_seeds_print_a_summary)
{
    printed p = run("--seeds 30 --seed 100");
    cr_assert(p.code == 0, "%s", p.err);
    cr_assert(strstr(p.out, "30 passed, 0 failed\n") != NULL, "%s", p.out);
    cr_assert(strstr(p.out, "ratio=") != NULL && strstr(p.out, "faults: crash=") != NULL);
    forget(&p);
}

static bool has_fault(const char *history, const char *kind)
{
    char word[32];
    snprintf(word, sizeof word, "kind=%s ", kind);
    return strstr(history, word) != NULL;
}

Test(cli_sim, kinds_of_faults_are_chosen)
{
    printed none = run("--seed 4 --no-fault all");
    cr_assert(none.code == 0 && strstr(none.out, " fault ") == NULL);
    printed only = run("--seed 4 --fault cut,jump");
    cr_assert(only.code == 0 && has_fault(only.out, "cut") && has_fault(only.out, "jump"));
    cr_assert(!has_fault(only.out, "crash") && !has_fault(only.out, "double"));
    forget(&none);
    forget(&only);
}

Test(cli_sim, a_broken_rule_is_one_line_a_command_and_exit_code_1)
{
    fg_sim_planted = true;
    printed many = run("--seeds 20 --seed 1 --failures-max 1");
    cr_assert(many.code == 1);
    const char *again = strstr(many.err, "forge sim: again: forge sim ");
    cr_assert(again != NULL && strstr(many.err, "planted, request") != NULL, "%s", many.err);
    const char *smallest = strstr(many.out, "smallest: forge sim ");
    cr_assert(smallest != NULL && strstr(smallest, "--requests ") != NULL, "%s", many.out);
    char line[512];
    snprintf(line, sizeof line, "%s", smallest + strlen("smallest: forge sim "));
    line[strcspn(line, "\n")] = '\0';
    printed small = run(line), twice = run(line);
    cr_assert(small.code == 1 && strcmp(small.out, twice.out) == 0, "%s", line);
    cr_assert(strstr(small.err, "planted, request") != NULL, "%s", small.err);
    fg_sim_planted = false;
    printed fine = run(line);
    cr_assert(fine.code == 0, "%s", fine.err);
    forget(&many);
    forget(&small);
    forget(&twice);
    forget(&fine);
}

Test(cli_sim, bad_arguments_are_refused_with_what_to_do)
{
    static const struct {
        const char *line, *says;
    } refused[] = {
        { "--seed x", "seed" },
        { "--seeds -1", "seeds" },
        { "--requests 48", "0 to 47" },
        { "--requests 5-3", "0,3,7-9" },
        { "--workers 0", "workers" },
        { "--workers 6", "workers" },
        { "--fault earthquake", "--help=fault" },
        { "--no-fault ,", "--help=fault" },
        { "--fault cut --no-fault crash", "exclude each other" },
        { "--faults-until 0", "faults-until" },
        { "--prompt-max 0", "prompt-max" },
        { "--nonsense", "nonsense" },
        { "46", "--seed N" },
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        printed p = run(refused[i].line);
        cr_assert(p.code == 2 && p.out[0] == '\0', "%s", refused[i].line);
        cr_assert(strstr(p.err, refused[i].says) != NULL, "%s: %s", refused[i].line, p.err);
        cr_assert(strchr(p.err, '\n') == p.err + strlen(p.err) - 1, "%s", p.err);
        forget(&p);
    }
}

Test(cli_sim, help_lists_the_flags)
{
    printed p = run("--help");
    cr_assert(p.code == 0 && strstr(p.out, "--no-fault") != NULL);
    cr_assert(strstr(p.out, "--trace") != NULL);
    forget(&p);
}
