/*
 * json_walk - follows one JSON object byte by byte and says where the members of the outermost one are. Pure.
 *
 * A byte below 0x20 inside a string is taken, though JSON wants it escaped: models write line ends so. All else is RFC
 * 8259's, nested at most FG_LIMIT_JSON_DEPTH deep.
 */
#ifndef FORGE_COMMON_MODEL_JSON_WALK_H
#define FORGE_COMMON_MODEL_JSON_WALK_H

#include <stdbool.h>
#include <stdint.h>

/* What a byte was. A member is one of the outermost object. */
typedef enum fg_json_step {
    FG_JSON_STEP_INSIDE,
    FG_JSON_STEP_KEY_BEGIN,   /* the quote in front of a member's key */
    FG_JSON_STEP_KEY_END,     /* the quote behind it */
    FG_JSON_STEP_VALUE_BEGIN, /* the first byte of a member's value */
    FG_JSON_STEP_VALUE_END, /* the last one of a string, an object or an array; others end silently */
    FG_JSON_STEP_DONE,      /* the outermost object's last byte */
    FG_JSON_STEP_BAD,       /* not of this object: nothing may follow */
} fg_json_step;

typedef struct fg_json_walk {
    uint64_t objects; /* of the open levels, the outermost in bit 0: whether it is an object */
    uint8_t depth;
    uint8_t state;
    uint8_t part;     /* of a number, or hex digits that are missing */
    bool in_key;      /* of the string at hand */
    const char *word; /* what is missing of true, false or null */
} fg_json_walk;

/* In front of the first byte, which must be `{`. */
void fg_json_walk_init(fg_json_walk *walk);
fg_json_step fg_json_walk_push(fg_json_walk *walk, char c);
/* Whether the next byte is inside a string. */
bool fg_json_walk_in_string(const fg_json_walk *walk);

#endif
