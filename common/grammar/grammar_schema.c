#include "common/grammar/grammar_internal.h"

uint32_t fg_schema_build(fg_build *build, const fg_json_node *schema)
{
    (void)schema;
    fg_build_fail(build, "schemas are not supported yet");
    return 0;
}
