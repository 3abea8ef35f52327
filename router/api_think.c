/* Where what a model thinks goes. */
#include "router/api_internal.h"

static fg_status read_format(fg_api_reading *r, fg_reasoning_format *format)
{
    static const struct {
        const char *word;
        fg_reasoning_format format;
    } words[] = { { "auto", FG_REASONING_AUTO },
                  { "none", FG_REASONING_NONE },
                  { "deepseek", FG_REASONING_APART } };
    static const char name[] = "reasoning_format";
    const fg_json_node *node = fg_api_value(r, FG_PARAM_REASONING_FORMAT);
    *format = r->server->reasoning;
    if (node == NULL) {
        return FG_OK;
    }
    for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
        if (fg_api_string_is(node, words[i].word)) {
            *format = words[i].format;
            return FG_OK;
        }
    }
    return fg_api_wrong_value(
        r, name, "'%.32s' is not a format of reasoning: use 'auto', 'none' or 'deepseek'",
        fg_json_string(node, NULL));
}

fg_status fg_api_read_reasoning(fg_api_reading *r)
{
    fg_reasoning_format format;
    fg_request_thoughts *thoughts = &r->request->thoughts;
    fg_status status = read_format(r, &format);
    /* A text that is held to a format has no place for thoughts. */
    bool held = r->request->params.grammar != NULL;
    if (status != FG_OK || r->kind != FG_API_CHAT || held || format == FG_REASONING_NONE) {
        return status;
    }
    thoughts->split = format == FG_REASONING_APART || fg_chat_thinks(r->server->chat);
    thoughts->opened = thoughts->split && r->thought_opened;
    thoughts->hidden = thoughts->split && r->given[FG_PARAM_INCLUDE_REASONING] &&
                       !r->flag[FG_PARAM_INCLUDE_REASONING];
    return FG_OK;
}
