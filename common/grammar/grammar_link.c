/* From rules to positions: writes them out, finds what is dead, refuses left recursion. */
#include <string.h>

#include "common/base/mem.h"
#include "common/grammar/grammar_internal.h"

typedef struct linker {
    fg_build *build;
    fg_position *positions;
    uint32_t count;
    uint32_t capacity;
    uint32_t *entries; /* of each rule; 0: not yet written */
    uint32_t *pending; /* rules that are called and not yet written */
    uint32_t pending_count;
    uint32_t *rule_of; /* of each position */
    uint32_t rule;     /* being written */
} linker;

enum { DEPTH_MAX = 2000 };

static uint32_t put(linker *l, fg_op op, uint32_t a, uint32_t b)
{
    if (l->count == l->capacity) {
        uint32_t larger = l->capacity == 0 ? 256 : l->capacity * 2;
        fg_position *positions = (fg_position *)fg_build_alloc(l->build, larger, sizeof *positions);
        uint32_t *rule_of = (uint32_t *)fg_build_alloc(l->build, larger, sizeof *rule_of);
        if (positions == NULL || rule_of == NULL) {
            return FG_AT_DEAD;
        }
        if (l->count > 0) {
            memcpy(positions, l->positions, l->count * sizeof *positions);
            memcpy(rule_of, l->rule_of, l->count * sizeof *rule_of);
        }
        l->positions = positions;
        l->rule_of = rule_of;
        l->capacity = larger;
    }
    if (l->count >= FG_GRAMMAR_POSITIONS_MAX) {
        fg_build_fail(l->build, "the grammar is too large (more than %d positions)",
                      FG_GRAMMAR_POSITIONS_MAX);
        return FG_AT_DEAD;
    }
    l->positions[l->count] = (fg_position){ op, a, b };
    l->rule_of[l->count] = l->rule;
    return l->count++;
}

static uint32_t write_node(linker *l, const fg_gnode *node, uint32_t next, unsigned depth);

static uint32_t write_bytes(linker *l, const fg_gnode *node, uint32_t next)
{
    for (uint32_t i = node->number; i > 0 && fg_build_ok(l->build); i--) {
        fg_byte_set set = { { 0 } };
        fg_byte_set_add(&set, (unsigned char)node->bytes[i - 1], (unsigned char)node->bytes[i - 1]);
        const fg_gnode *one = fg_build_set(l->build, &set);
        next = one == NULL ? FG_AT_DEAD : put(l, FG_OP_SET, one->number, next);
    }
    return next;
}

static uint32_t write_repeat(linker *l, const fg_gnode *node, uint32_t next, unsigned depth)
{
    const fg_gnode *item = node->items[0];
    uint32_t at = next;
    uint32_t least = node->number;
    if (node->most == FG_REPEAT_ENDLESS) {
        uint32_t loop = put(l, FG_OP_SPLIT, FG_AT_DEAD, next);
        uint32_t body = write_node(l, item, loop, depth);
        if (!fg_build_ok(l->build)) {
            return FG_AT_DEAD;
        }
        l->positions[loop].a = body;
        at = least == 0 ? loop : body;
        least -= least > 0;
    } else {
        for (uint32_t i = least; i < node->most && fg_build_ok(l->build); i++) {
            at = put(l, FG_OP_SPLIT, write_node(l, item, at, depth), next);
        }
    }
    for (uint32_t i = 0; i < least && fg_build_ok(l->build); i++) {
        at = write_node(l, item, at, depth);
    }
    return at;
}

/* Writes what comes before `next`, from its end to its beginning; returns where it begins. */
static uint32_t write_node(linker *l, const fg_gnode *node, uint32_t next, unsigned depth)
{
    if (!fg_build_ok(l->build) || depth > DEPTH_MAX) {
        fg_build_fail(l->build, "the grammar nests too deeply");
        return FG_AT_DEAD;
    }
    uint32_t at = FG_AT_DEAD;
    switch (node->kind) {
    case FG_NODE_EMPTY:
        return next;
    case FG_NODE_NEVER:
        return FG_AT_DEAD;
    case FG_NODE_SET:
        return put(l, FG_OP_SET, node->number, next);
    case FG_NODE_BYTES:
        return write_bytes(l, node, next);
    case FG_NODE_CAT:
        for (uint32_t i = node->number; i > 0; i--) {
            next = write_node(l, node->items[i - 1], next, depth + 1);
        }
        return next;
    case FG_NODE_ALT:
        for (uint32_t i = node->number; i > 0; i--) {
            uint32_t item = write_node(l, node->items[i - 1], next, depth + 1);
            at = i == node->number ? item : put(l, FG_OP_SPLIT, item, at);
        }
        return at;
    case FG_NODE_REPEAT:
        return write_repeat(l, node, next, depth + 1);
    case FG_NODE_CALL:
        if (l->entries[node->number] == 0) {
            l->entries[node->number] = UINT32_MAX;
            l->pending[l->pending_count++] = node->number;
        }
        return put(l, FG_OP_CALL, node->number, next);
    }
    return FG_AT_DEAD;
}

/* All rules that the root needs. Calls name rules until all are written. */
static void write_rules(linker *l, uint32_t root)
{
    fg_build *build = l->build;
    uint32_t rules = build->rule_count;
    l->entries = (uint32_t *)fg_build_alloc(build, rules, sizeof *l->entries);
    l->pending = (uint32_t *)fg_build_alloc(build, rules, sizeof *l->pending);
    put(l, FG_OP_DEAD, 0, 0);
    put(l, FG_OP_ACCEPT, 0, 0);
    put(l, FG_OP_RETURN, 0, 0);
    if (!fg_build_ok(build)) {
        return;
    }
    l->entries[root] = UINT32_MAX;
    l->pending[l->pending_count++] = root;
    while (l->pending_count > 0 && fg_build_ok(build)) {
        l->rule = l->pending[--l->pending_count];
        const fg_gnode *node = build->rules[l->rule];
        uint32_t entry = node == NULL ? FG_AT_DEAD : write_node(l, node, FG_AT_RETURN, 0);
        if (entry < FG_AT_FIRST) { /* a rule begins at a place of its own */
            entry = put(l, FG_OP_SPLIT, entry, entry);
        }
        l->entries[l->rule] = entry;
    }
    for (uint32_t i = FG_AT_FIRST; i < l->count && fg_build_ok(build); i++) {
        fg_position *position = &l->positions[i];
        if (position->op == FG_OP_CALL) {
            position->a = l->entries[position->a];
            if (position->b == FG_AT_RETURN) {
                position->op = FG_OP_TAIL;
            }
        }
    }
}

/* --- what holds at which position ------------------------------------------------------------------ */

/* Who depends on a position: lists of predecessors, one after the other. */
typedef struct uses {
    uint32_t *first; /* count + 1 of them */
    uint32_t *users;
} uses;

static unsigned targets_of(const fg_position *position, uint32_t targets[2])
{
    targets[0] = position->op == FG_OP_SET ? position->b : position->a;
    targets[1] = position->b;
    switch ((fg_op)position->op) {
    case FG_OP_SPLIT:
    case FG_OP_CALL:
        return 2;
    case FG_OP_SET:
    case FG_OP_TAIL:
        return 1;
    default:
        return 0;
    }
}

static bool find_uses(linker *l, uses *u)
{
    u->first = (uint32_t *)fg_build_alloc(l->build, l->count + 2, sizeof *u->first);
    u->users = (uint32_t *)fg_build_alloc(l->build, (size_t)l->count * 2, sizeof *u->users);
    if (!fg_build_ok(l->build)) {
        return false;
    }
    uint32_t targets[2];
    for (uint32_t i = 0; i < l->count; i++) {
        for (unsigned t = targets_of(&l->positions[i], targets); t > 0; t--) {
            u->first[targets[t - 1] + 2]++;
        }
    }
    for (uint32_t i = 2; i < l->count + 2; i++) {
        u->first[i] += u->first[i - 1];
    }
    for (uint32_t i = 0; i < l->count; i++) {
        for (unsigned t = targets_of(&l->positions[i], targets); t > 0; t--) {
            u->users[u->first[targets[t - 1] + 1]++] = i;
        }
    }
    return true;
}

/* Whether the end of the rule is reached from here: over bytes too (`over_bytes`), or with none at all. */
static bool reaches(const fg_position *position, const bool *holds, bool over_bytes)
{
    switch ((fg_op)position->op) {
    case FG_OP_SET:
        return over_bytes && holds[position->b];
    case FG_OP_SPLIT:
        return holds[position->a] || holds[position->b];
    case FG_OP_CALL:
        return holds[position->a] && holds[position->b];
    case FG_OP_TAIL:
        return holds[position->a];
    case FG_OP_RETURN:
    case FG_OP_ACCEPT:
        return true;
    case FG_OP_DEAD:
        return false;
    }
    return false;
}

static bool *find_reaching(linker *l, const uses *u, bool over_bytes)
{
    bool *holds = (bool *)fg_build_alloc(l->build, l->count, sizeof *holds);
    uint32_t *queue = (uint32_t *)fg_build_alloc(l->build, l->count, sizeof *queue);
    if (!fg_build_ok(l->build)) {
        return NULL;
    }
    uint32_t queued = 0;
    holds[FG_AT_ACCEPT] = holds[FG_AT_RETURN] = true;
    queue[queued++] = FG_AT_ACCEPT;
    queue[queued++] = FG_AT_RETURN;
    for (uint32_t done = 0; done < queued; done++) {
        /* A tail call depends on nothing that it names but its rule's entry. */
        for (uint32_t i = u->first[queue[done]]; i < u->first[queue[done] + 1]; i++) {
            uint32_t user = u->users[i];
            if (!holds[user] && reaches(&l->positions[user], holds, over_bytes)) {
                holds[user] = true;
                queue[queued++] = user;
            }
        }
    }
    return holds;
}

/* --- left recursion ---------------------------------------------------------------------------------- */

/* Tarjan's strongly connected components over the steps that take no byte, without recursion. */
typedef struct search {
    uint32_t *order; /* when first seen; 0: not yet */
    uint32_t *low;
    uint32_t *stack; /* of the components under way */
    uint32_t *path;  /* of the walk */
    uint8_t *next;   /* target to look at */
    bool *on_stack;
    uint32_t clock;
    uint32_t stacked;
    uint32_t component_clock;
    uint32_t *component;
} search;

static unsigned steps_of(const linker *l, const bool *live, const bool *empty, uint32_t at,
                         uint32_t targets[2])
{
    const fg_position *position = &l->positions[at];
    unsigned count = 0;
    if (!live[at] || position->op == FG_OP_SET) {
        return 0;
    }
    if (position->op == FG_OP_SPLIT || position->op == FG_OP_CALL || position->op == FG_OP_TAIL) {
        targets[count++] = position->a;
    }
    if (position->op == FG_OP_SPLIT || (position->op == FG_OP_CALL && empty[position->a])) {
        targets[count++] = position->b;
    }
    return count;
}

static void close_component(search *s, uint32_t at)
{
    if (s->low[at] != s->order[at]) {
        return;
    }
    s->component_clock++;
    uint32_t member;
    do {
        member = s->stack[--s->stacked];
        s->on_stack[member] = false;
        s->component[member] = s->component_clock;
    } while (member != at);
}

static void see(search *s, uint32_t at)
{
    s->order[at] = s->low[at] = ++s->clock;
    s->stack[s->stacked++] = at;
    s->on_stack[at] = true;
}

static void walk_from(const linker *l, const bool *live, const bool *empty, search *s,
                      uint32_t from)
{
    uint32_t depth = 0;
    s->path[depth++] = from;
    see(s, from);
    while (depth > 0) {
        uint32_t at = s->path[depth - 1];
        uint32_t targets[2];
        unsigned count = steps_of(l, live, empty, at, targets);
        if (s->next[at] < count) {
            uint32_t to = targets[s->next[at]++];
            if (s->order[to] == 0) {
                s->path[depth++] = to;
                see(s, to);
            } else if (s->on_stack[to] && s->order[to] < s->low[at]) {
                s->low[at] = s->order[to];
            }
            continue;
        }
        close_component(s, at);
        depth--;
        if (depth > 0 && s->low[at] < s->low[s->path[depth - 1]]) {
            s->low[s->path[depth - 1]] = s->low[at];
        }
    }
}

static void refuse_left_recursion(linker *l, const bool *live, const bool *empty)
{
    fg_build *build = l->build;
    search s = { 0 };
    s.order = (uint32_t *)fg_build_alloc(build, l->count, sizeof *s.order);
    s.low = (uint32_t *)fg_build_alloc(build, l->count, sizeof *s.low);
    s.stack = (uint32_t *)fg_build_alloc(build, l->count, sizeof *s.stack);
    s.path = (uint32_t *)fg_build_alloc(build, l->count, sizeof *s.path);
    s.component = (uint32_t *)fg_build_alloc(build, l->count, sizeof *s.component);
    s.next = (uint8_t *)fg_build_alloc(build, l->count, sizeof *s.next);
    s.on_stack = (bool *)fg_build_alloc(build, l->count, sizeof *s.on_stack);
    for (uint32_t i = FG_AT_FIRST; i < l->count && fg_build_ok(build); i++) {
        if (s.order[i] == 0) {
            walk_from(l, live, empty, &s, i);
        }
    }
    for (uint32_t i = FG_AT_FIRST; i < l->count && fg_build_ok(build); i++) {
        const fg_position *p = &l->positions[i];
        if ((p->op == FG_OP_CALL || p->op == FG_OP_TAIL) && live[i] &&
            s.component[i] == s.component[p->a]) {
            fg_build_fail(build, "left recursion: rule \"%s\" can begin with itself",
                          build->rule_names[l->rule_of[p->a]]);
        }
    }
}

/* --- the end ------------------------------------------------------------------------------------------ */

static void classify(fg_grammar *grammar)
{
    /* Bytes start in one class; each set splits those of which it has some. */
    uint32_t count = 1;
    for (uint32_t s = 0; s < grammar->set_count && count < 256; s++) {
        uint16_t moved[256] = { 0 }; /* class + 1 that members inside the set go to */
        bool outside[256] = { false };
        for (unsigned byte = 0; byte < 256; byte++) {
            outside[grammar->class_of[byte]] |= !fg_byte_set_has(&grammar->sets[s], byte);
        }
        for (unsigned byte = 0; byte < 256; byte++) {
            uint8_t old = grammar->class_of[byte];
            if (!outside[old] || !fg_byte_set_has(&grammar->sets[s], byte)) {
                continue;
            }
            if (moved[old] == 0) {
                moved[old] = (uint16_t)(++count);
            }
            grammar->class_of[byte] = (uint8_t)(moved[old] - 1);
        }
    }
    grammar->class_count = count;
    for (unsigned byte = 0; byte < 256; byte++) {
        grammar->member[grammar->class_of[byte]] = (uint8_t)byte;
    }
}

static fg_status copy_out(linker *l, uint32_t root, fg_grammar **grammar_out)
{
    fg_grammar *grammar = (fg_grammar *)fg_mem_alloc(sizeof *grammar);
    if (grammar == NULL) {
        goto fail;
    }
    grammar->positions = (fg_position *)fg_mem_dup(l->positions, l->count * sizeof *l->positions);
    grammar->sets = (fg_byte_set *)fg_mem_array(l->build->set_count + 1, sizeof *grammar->sets);
    if (grammar->positions == NULL || grammar->sets == NULL) {
        goto fail;
    }
    if (l->build->set_count > 0) {
        memcpy(grammar->sets, l->build->sets, l->build->set_count * sizeof *grammar->sets);
    }
    grammar->count = l->count;
    grammar->set_count = l->build->set_count;
    grammar->start = l->entries[root];
    classify(grammar);
    *grammar_out = grammar;
    return FG_OK;
fail:
    fg_grammar_destroy(grammar);
    l->build->status = fg_fail(l->build->err, FG_AGAIN, "no memory for a grammar");
    return l->build->status;
}

fg_status fg_build_link(fg_build *build, uint32_t root, fg_grammar **grammar_out)
{
    linker l = { .build = build };
    uses u = { 0 };
    if (!fg_build_ok(build)) {
        return build->status;
    }
    write_rules(&l, root);
    if (!fg_build_ok(build) || !find_uses(&l, &u)) {
        return build->status;
    }
    const bool *live = find_reaching(&l, &u, true);
    const bool *empty = live == NULL ? NULL : find_reaching(&l, &u, false);
    if (empty == NULL) {
        return build->status;
    }
    if (!live[l.entries[root]]) {
        fg_build_fail(build, "no text can be all that is asked for");
        return build->status;
    }
    refuse_left_recursion(&l, live, empty);
    if (!fg_build_ok(build)) {
        return build->status;
    }
    for (uint32_t i = FG_AT_FIRST; i < l.count; i++) {
        if (!live[i]) {
            l.positions[i].op = FG_OP_DEAD;
        }
    }
    return copy_out(&l, root, grammar_out);
}
