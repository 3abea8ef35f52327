/* Statements of a template, carried out. */
#include <string.h>

#include "common/base/mem.h"
#include "common/jinja/jinja_internal.h"

fg_jinja_run *fg_jinja_run_create(size_t bytes_max, uint64_t steps_max, int64_t now_s)
{
    fg_jinja_run *run = fg_mem_alloc(sizeof *run);
    if (run == NULL) {
        return NULL;
    }
    run->bytes_left = bytes_max;
    run->steps_left = steps_max;
    run->now_s = now_s;
    /* Twice: chunks have ends that are left over, and what fails there is the system's memory. */
    run->arena = fg_arena_create(bytes_max < SIZE_MAX / 4 ? 2 * bytes_max + 65536 : SIZE_MAX / 2);
    if (run->arena == NULL) {
        fg_mem_free(run);
        return NULL;
    }
    return run;
}

void fg_jinja_run_destroy(fg_jinja_run *run)
{
    if (run == NULL) {
        return;
    }
    fg_arena_destroy(run->arena);
    fg_mem_free(run);
}

/* ---- makers of values ---- */

static fg_jinja_value *keep(fg_jinja_run *run, fg_jinja_value value)
{
    fg_jinja_value *kept = fg_jinja_take(run, 1, sizeof *kept);
    if (kept != NULL) {
        *kept = value;
    }
    return kept;
}

fg_jinja_value *fg_jinja_text(fg_jinja_run *run, const char *text, size_t length, bool of_client)
{
    return keep(run, fg_jinja_text_of(run, text, length, of_client));
}

fg_jinja_value *fg_jinja_none_value(fg_jinja_run *run)
{
    return keep(run, fg_jinja_none());
}

fg_jinja_value *fg_jinja_bool(fg_jinja_run *run, bool value)
{
    return keep(run, fg_jinja_of_bool(value));
}

fg_jinja_value *fg_jinja_list(fg_jinja_run *run)
{
    return keep(run, fg_jinja_list_new(run, 0, false));
}

void fg_jinja_list_add(fg_jinja_run *run, fg_jinja_value *list, const fg_jinja_value *item)
{
    if (list != NULL && item != NULL) {
        fg_jinja_list_push(run, list->list, *item);
    }
}

fg_jinja_value *fg_jinja_map(fg_jinja_run *run)
{
    return keep(run, fg_jinja_map_new(run));
}

void fg_jinja_map_put(fg_jinja_run *run, fg_jinja_value *map, const char *key,
                      const fg_jinja_value *item)
{
    if (map != NULL && item != NULL) {
        fg_jinja_put(run, map->map, fg_jinja_name_of(key, strlen(key)), false, *item);
    }
}

static fg_jinja_value json_value(fg_jinja_run *run, const fg_json_node *node);

static fg_jinja_value json_map(fg_jinja_run *run, const fg_json_node *node)
{
    fg_jinja_value map = fg_jinja_map_new(run);
    void *cursor = NULL;
    const char *key;
    for (const fg_json_node *member;
         !fg_jinja_failed(run) && (member = fg_json_next(node, &cursor, &key)) != NULL;) {
        fg_jinja_value value = json_value(run, member);
        if (!fg_jinja_failed(run)) {
            size_t length = strlen(key);
            fg_jinja_step(run, length / 64);
            fg_jinja_put(run, map.map, fg_jinja_name_of(key, length), true, value);
        }
    }
    return map;
}

static fg_jinja_value json_list(fg_jinja_run *run, const fg_json_node *node)
{
    size_t count = fg_json_size(node);
    fg_jinja_value list = fg_jinja_list_new(run, count, false);
    for (size_t i = 0; i < count && !fg_jinja_failed(run); i++) {
        fg_jinja_value item = json_value(run, fg_json_at(node, i));
        if (!fg_jinja_failed(run)) {
            fg_jinja_list_push(run, list.list, item);
        }
    }
    return list;
}

/* Depth is bounded by the parser of JSON. */
static fg_jinja_value json_value(fg_jinja_run *run, const fg_json_node *node)
{
    fg_jinja_value value = fg_jinja_none();
    switch (fg_json_type_of(node)) {
    case FG_JSON_OBJECT:
        return json_map(run, node);
    case FG_JSON_ARRAY:
        return json_list(run, node);
    case FG_JSON_STRING: {
        size_t length;
        const char *text = fg_json_string(node, &length);
        return fg_jinja_text_of(run, text, length, true);
    }
    case FG_JSON_INTEGER:
        value.kind = FG_JINJA_INTEGER;
        fg_json_integer(node, &value.integer);
        return value;
    case FG_JSON_REAL:
        value.kind = FG_JINJA_REAL;
        fg_json_number(node, &value.real);
        return value;
    case FG_JSON_BOOL:
        value.kind = FG_JINJA_BOOL;
        fg_json_bool(node, &value.flag);
        return value;
    default:
        return value;
    }
}

fg_jinja_value *fg_jinja_json(fg_jinja_run *run, const fg_json_node *node)
{
    return keep(run, json_value(run, node));
}

/* ---- scopes ---- */

void fg_jinja_assign(fg_jinja_run *run, fg_jinja_name name, fg_jinja_value value)
{
    fg_jinja_scope *scope = run->scope;
    if (!fg_jinja_step(run, 1 + scope->count / 8)) {
        return;
    }
    for (size_t i = 0; i < scope->count; i++) {
        if (fg_jinja_name_equal(scope->variables[i].name, name)) {
            scope->variables[i].value = value;
            return;
        }
    }
    if (scope->count == scope->capacity) {
        size_t capacity = scope->capacity == 0 ? 4 : 2 * scope->capacity;
        fg_jinja_variable *variables = fg_jinja_take(run, capacity, sizeof *variables);
        if (variables == NULL) {
            return;
        }
        if (scope->count > 0) {
            memcpy(variables, scope->variables, scope->count * sizeof *variables);
        }
        scope->variables = variables;
        scope->capacity = capacity;
    }
    scope->variables[scope->count++] = (fg_jinja_variable){ .name = name, .value = value };
}

/* A scope inside `outer`; NULL after a failure. A macro keeps the one it was met in, so it is the run's memory. */
static fg_jinja_scope *open_scope(fg_jinja_run *run, fg_jinja_scope *outer)
{
    fg_jinja_scope *scope = fg_jinja_take(run, 1, sizeof *scope);
    if (scope != NULL) {
        scope->outer = outer;
    }
    return scope;
}

/* A scope inside `outer` that is empty: the one at hand again, unless it is NULL or a macro has kept it. */
static fg_jinja_scope *next_scope(fg_jinja_run *run, fg_jinja_scope *outer)
{
    if (run->scope == NULL || run->scope->is_kept) {
        return open_scope(run, outer);
    }
    run->scope->count = 0;
    return run->scope;
}

/* One value to one name, or a list's items to as many names. */
static void assign_targets(fg_jinja_run *run, const fg_jinja_node *targets, bool is_list,
                           fg_jinja_value value)
{
    if (!is_list) {
        fg_jinja_assign(run, targets->name, value);
        return;
    }
    const fg_jinja_items *items = fg_jinja_iterate(run, value);
    size_t count = 0;
    for (const fg_jinja_node *target = targets; target != NULL && items != NULL;
         target = target->next, count++) {
        if (count < items->count) {
            fg_jinja_assign(run, target->name, items->items[count]);
        }
    }
    if (items != NULL && count != items->count) {
        fg_jinja_fail(run, "%zu values for %zu names", items->count, count);
    }
}

/* What a body writes, as a text. */
static fg_jinja_value capture(fg_jinja_run *run, const fg_jinja_node *body)
{
    fg_jinja_output output = { .count = 0 };
    fg_jinja_output *outer = run->output;
    run->output = &output;
    fg_jinja_run_body(run, body);
    run->output = outer;
    return fg_jinja_text_of_output(run, &output);
}

/* ---- statements ---- */

static void run_set(fg_jinja_run *run, const fg_jinja_node *node)
{
    if (node->body != NULL) {
        fg_jinja_scope *outer = run->scope;
        run->scope = open_scope(run, outer);
        run->captured = run->scope == NULL ? fg_jinja_undefined() : capture(run, node->body);
        run->scope = outer;
    }
    fg_jinja_value value = fg_jinja_evaluate(run, node->a);
    if (fg_jinja_failed(run)) {
        return;
    }
    const fg_jinja_node *member = node->list->a;
    if (member == NULL) {
        assign_targets(run, node->list, node->flag, value);
        return;
    }
    const fg_jinja_node name = { .kind = NODE_NAME, .name = node->list->name };
    fg_jinja_value space = fg_jinja_evaluate(run, &name);
    if (space.kind != FG_JINJA_NAMESPACE) {
        fg_jinja_fail(run, "only a namespace's members can be set, and '%.*s' is %s",
                      (int)name.name.length, name.name.text, fg_jinja_kind_name(space));
        return;
    }
    fg_jinja_put(run, space.map, member->name, false, value);
}

bool fg_jinja_loop_member(const fg_jinja_loop *loop, fg_jinja_name name, fg_jinja_value *value_out)
{
    const fg_jinja_items *items = loop->items;
    int64_t index = (int64_t)loop->index;
    int64_t count = (int64_t)items->count;
    const struct {
        const char *name;
        fg_jinja_value value;
    } members[] = {
        { "index", fg_jinja_of_integer(index + 1) },
        { "index0", fg_jinja_of_integer(index) },
        { "revindex", fg_jinja_of_integer(count - index) },
        { "revindex0", fg_jinja_of_integer(count - index - 1) },
        { "first", fg_jinja_of_bool(index == 0) },
        { "last", fg_jinja_of_bool(index + 1 == count) },
        { "length", fg_jinja_of_integer(count) },
        { "depth", fg_jinja_of_integer(1) },
        { "depth0", fg_jinja_of_integer(0) },
        { "previtem", index > 0 ? items->items[index - 1] : fg_jinja_undefined() },
        { "nextitem", index + 1 < count ? items->items[index + 1] : fg_jinja_undefined() },
    };
    for (size_t i = 0; i < sizeof members / sizeof members[0]; i++) {
        if (fg_jinja_name_is(name, members[i].name)) {
            *value_out = members[i].value;
            return true;
        }
    }
    return false;
}

/* The items that the loop's condition lets through. */
static const fg_jinja_items *chosen(fg_jinja_run *run, const fg_jinja_node *node,
                                    const fg_jinja_items *items)
{
    fg_jinja_value list = fg_jinja_list_new(run, items->count, false);
    fg_jinja_scope *outer = run->scope;
    run->scope = NULL;
    for (size_t i = 0; i < items->count && !fg_jinja_failed(run); i++) {
        run->scope = next_scope(run, outer);
        if (run->scope == NULL) {
            break;
        }
        assign_targets(run, node->list, node->flag, items->items[i]);
        if (fg_jinja_is_true(fg_jinja_evaluate(run, node->b)) && !fg_jinja_failed(run)) {
            fg_jinja_list_push(run, list.list, items->items[i]);
        }
    }
    run->scope = outer;
    return fg_jinja_failed(run) ? NULL : list.list;
}

static void run_for(fg_jinja_run *run, const fg_jinja_node *node)
{
    static const char loop_name[] = "loop";
    const fg_jinja_items *items = fg_jinja_iterate(run, fg_jinja_evaluate(run, node->a));
    if (items != NULL && node->b != NULL) {
        items = chosen(run, node, items);
    }
    if (items == NULL || fg_jinja_failed(run)) {
        return;
    }
    fg_jinja_scope *outer = run->scope;
    fg_jinja_loop *loop = fg_jinja_take(run, 1, sizeof *loop);
    run->scope = NULL;
    for (size_t i = 0; i < items->count && fg_jinja_step(run, 1); i++) {
        run->scope = next_scope(run, outer);
        if (run->scope == NULL) {
            break;
        }
        *loop = (fg_jinja_loop){ .items = items, .index = i };
        fg_jinja_assign(run, fg_jinja_name_of(loop_name, sizeof loop_name - 1),
                        (fg_jinja_value){ .kind = FG_JINJA_LOOP, .loop = loop });
        assign_targets(run, node->list, node->flag, items->items[i]);
        fg_jinja_run_body(run, node->body);
        bool over = run->leaving == LEAVE_BREAK;
        run->leaving = LEAVE_NOT;
        if (over) {
            break;
        }
    }
    run->scope = outer;
    if (items->count == 0) {
        fg_jinja_run_body(run, node->other);
    }
}

/* What a macro may look at later. */
static void keep_scopes(fg_jinja_run *run)
{
    for (fg_jinja_scope *scope = run->scope; scope != NULL && !scope->is_kept;
         scope = scope->outer) {
        scope->is_kept = true;
    }
}

static void define_macro(fg_jinja_run *run, const fg_jinja_node *node)
{
    fg_jinja_macro *macro = fg_jinja_take(run, 1, sizeof *macro);
    if (macro != NULL) {
        *macro = (fg_jinja_macro){ .node = node, .scope = run->scope };
        keep_scopes(run);
        fg_jinja_assign(run, node->name,
                        (fg_jinja_value){ .kind = FG_JINJA_MACRO, .macro = macro });
    }
}

/* Parameters get their arguments or defaults; the same number of names as there are arguments at most. */
static void bind_parameters(fg_jinja_run *run, const fg_jinja_node *parameters,
                            const fg_jinja_arguments *arguments)
{
    size_t index = 0;
    for (const fg_jinja_node *node = parameters; node != NULL; node = node->next, index++) {
        fg_jinja_value value = fg_jinja_undefined();
        bool found = index < arguments->count;
        if (found) {
            value = arguments->values[index];
        }
        for (size_t i = 0; i < arguments->named_count && !found; i++) {
            found = fg_jinja_name_equal(arguments->named[i].name, node->name);
            value = found ? arguments->named[i].value : value;
        }
        if (!found && node->a != NULL) {
            value = fg_jinja_evaluate(run, node->a);
        }
        fg_jinja_assign(run, node->name, value);
    }
    if (arguments->count > index) {
        fg_jinja_fail(run, "%zu arguments where at most %zu are taken", arguments->count, index);
    }
    for (size_t i = 0; i < arguments->named_count; i++) {
        fg_jinja_name name = arguments->named[i].name;
        const fg_jinja_node *node = parameters;
        while (node != NULL && !fg_jinja_name_equal(node->name, name)) {
            node = node->next;
        }
        if (node == NULL) {
            fg_jinja_fail(run, "there is no argument '%.*s' here", (int)name.length, name.text);
        }
    }
}

fg_jinja_value fg_jinja_call_macro(fg_jinja_run *run, const fg_jinja_macro *macro,
                                   const fg_jinja_arguments *arguments,
                                   const fg_jinja_value *caller)
{
    static const char caller_name[] = "caller";
    fg_jinja_scope *outer = run->scope;
    run->scope = open_scope(run, macro->scope);
    fg_jinja_value text = fg_jinja_undefined();
    if (run->scope != NULL) {
        if (caller != NULL) {
            fg_jinja_assign(run, fg_jinja_name_of(caller_name, sizeof caller_name - 1), *caller);
        }
        bind_parameters(run, macro->node->list, arguments);
        text = capture(run, macro->node->body);
    }
    run->scope = outer;
    return text;
}

/* {% call f(x) %} body {% endcall %}: the macro f may call the body as caller(). */
static void run_call_block(fg_jinja_run *run, const fg_jinja_node *node)
{
    fg_jinja_value callee = fg_jinja_evaluate(run, node->a->a);
    fg_jinja_arguments arguments = fg_jinja_evaluate_arguments(run, node->a->list);
    fg_jinja_macro *body = fg_jinja_take(run, 1, sizeof *body);
    if (body == NULL) {
        return;
    }
    if (callee.kind != FG_JINJA_MACRO) {
        fg_jinja_fail(run, "only a macro can be called with a body, not %s",
                      fg_jinja_kind_name(callee));
        return;
    }
    *body = (fg_jinja_macro){ .node = node, .scope = run->scope };
    keep_scopes(run);
    fg_jinja_value caller = { .kind = FG_JINJA_MACRO, .macro = body };
    fg_jinja_value text = fg_jinja_call_macro(run, callee.macro, &arguments, &caller);
    if (text.kind == FG_JINJA_TEXT) {
        fg_jinja_emit_text(run, run->output, text.text);
    }
}

static void print(fg_jinja_run *run, fg_jinja_value value)
{
    fg_jinja_value text = fg_jinja_failed(run) ? value : fg_jinja_to_text(run, value);
    if (text.kind == FG_JINJA_TEXT) {
        fg_jinja_emit_text(run, run->output, text.text);
    }
}

static void run_filter_block(fg_jinja_run *run, const fg_jinja_node *node)
{
    run->captured = capture(run, node->body);
    print(run, fg_jinja_evaluate(run, node->a));
}

static void run_statement(fg_jinja_run *run, const fg_jinja_node *node)
{
    switch (node->kind) {
    case NODE_DATA:
        if (node->constant.kind == FG_JINJA_TEXT) {
            fg_jinja_emit(run, run->output, node->constant.text->flat, node->constant.text->length,
                          false);
        }
        break;
    case NODE_OUTPUT:
        print(run, fg_jinja_evaluate(run, node->a));
        break;
    case NODE_IF: {
        bool holds = fg_jinja_is_true(fg_jinja_evaluate(run, node->a));
        fg_jinja_run_body(run, holds ? node->body : node->other);
        break;
    }
    case NODE_FOR:
        run_for(run, node);
        break;
    case NODE_SET:
        run_set(run, node);
        break;
    case NODE_MACRO:
        define_macro(run, node);
        break;
    case NODE_CALL_BLOCK:
        run_call_block(run, node);
        break;
    case NODE_FILTER_BLOCK:
        run_filter_block(run, node);
        break;
    case NODE_BREAK:
        run->leaving = LEAVE_BREAK;
        break;
    default:
        run->leaving = LEAVE_CONTINUE;
        break;
    }
}

void fg_jinja_run_body(fg_jinja_run *run, const fg_jinja_node *body)
{
    if (!fg_jinja_deepen(run)) {
        return;
    }
    for (const fg_jinja_node *node = body;
         node != NULL && run->leaving == LEAVE_NOT && fg_jinja_step(run, 1); node = node->next) {
        run->line = node->line;
        run_statement(run, node);
    }
    fg_jinja_rise(run);
}

fg_status fg_jinja_render(const fg_jinja *template, fg_jinja_run *run,
                          const fg_jinja_value *globals, const fg_jinja_piece **pieces_out,
                          size_t *count_out, fg_error *err)
{
    FG_ASSERT(globals == NULL || globals->kind == FG_JINJA_MAP, "variables that are no map");
    fg_jinja_output *output = fg_jinja_take(run, 1, sizeof *output);
    run->scope = open_scope(run, NULL);
    if (globals != NULL && !fg_jinja_failed(run)) {
        run->output = output;
        run->globals = globals->map;
        fg_jinja_run_body(run, template->body);
    }
    if (fg_jinja_failed(run)) {
        if (err != NULL) {
            *err = run->error;
        }
        return run->status;
    }
    *pieces_out = output->pieces;
    *count_out = output->count;
    return FG_OK;
}
