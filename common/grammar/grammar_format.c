/* The values of `format` that are offered, as expressions. */
#include <string.h>

#include "common/grammar/grammar_internal.h"

#define YEAR    "(?:[1-9]\\d{3}|0[1-9]\\d{2}|00[1-9]\\d|000[1-9])"
#define OF_FOUR "(?:0[48]|[2468][048]|[13579][26])"
#define LEAP    "(?:\\d{2}" OF_FOUR "|" OF_FOUR "00)"
#define DATE                                                                                       \
    "(?:" YEAR "-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])"                                   \
    "|(?:0[469]|11)-(?:0[1-9]|[12]\\d|30)|02-(?:0[1-9]|1\\d|2[0-8]))|" LEAP "-02-29)"
#define TIME                                                                                       \
    "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d{1,9})?(?:Z|[+-](?:[01]\\d|2[0-3]):[0-5]\\d)"
#define BYTE  "(?:25[0-5]|2[0-4]\\d|1\\d{2}|[1-9]?\\d)"
#define HEX   "[0-9a-fA-F]"
#define LABEL "(?:[A-Za-z0-9]{1,60}|[A-Za-z0-9]{1,19}(?:-[A-Za-z0-9]{1,19}){1,2})"
#define NAME  "[A-Za-z0-9_+-]"
#define HOST  LABEL "(?:\\." LABEL "){0,3}"
#define PATH  "[A-Za-z0-9._~-]"

static const struct {
    const char *name;
    const char *expression;
} formats[] = {
    { "date", DATE },
    { "time", TIME },
    { "date-time", DATE "T" TIME },
    { "uuid", HEX "{8}-" HEX "{4}-" HEX "{4}-" HEX "{4}-" HEX "{12}" },
    { "ipv4", "(?:" BYTE "\\.){3}" BYTE },
    { "hostname", HOST },
    { "email", "(?:" NAME "{1,64}|" NAME "{1,31}\\." NAME "{1,31}|" NAME "{1,15}(?:\\." NAME
               "{1,15}){2,3})@" HOST },
    { "uri", "https?://" HOST "(?::[1-9]\\d{0,3})?(?:/" PATH "{0,64}){0,16}"
             "(?:\\?[A-Za-z0-9._~=&-]{0,256})?(?:#" PATH "{0,64})?" },
};

fg_gnode *fg_format_node(fg_build *build, const char *format)
{
    for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++) {
        if (strcmp(formats[i].name, format) == 0) {
            fg_gnode *quote = fg_build_text(build, "\"");
            fg_gnode *text =
                fg_regex_build(build, formats[i].expression, strlen(formats[i].expression),
                               FG_SPELL_JSON, false, "format");
            return fg_build_seq(build, 3, quote, text, quote);
        }
    }
    return NULL;
}
