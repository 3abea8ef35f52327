/* Expressions of a template, computed. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/jinja/jinja_internal.h"

/* Trees, calls and values inside one another: each level takes some of the thread's stack, of which there may be 1 MiB. */
enum { RUN_DEPTH_MAX = 300 };

void fg_jinja_fail(fg_jinja_run *run, const char *format, ...)
{
    if (fg_jinja_failed(run)) {
        return;
    }
    char text[FG_ERROR_TEXT_MAX / 2];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    run->status = run->line == 0 ? fg_fail(&run->error, FG_BAD_INPUT, "chat template: %s", text)
                                 : fg_fail(&run->error, FG_BAD_INPUT, "chat template, line %u: %s",
                                           run->line, text);
}

void fg_jinja_no_memory(fg_jinja_run *run)
{
    if (!fg_jinja_failed(run)) {
        run->status = fg_fail(&run->error, FG_AGAIN, "chat: no memory for the template's values");
    }
}

bool fg_jinja_step(fg_jinja_run *run, size_t steps)
{
    if (fg_jinja_failed(run)) {
        return false;
    }
    if (steps > run->steps_left) {
        fg_jinja_fail(run, "the template takes too many steps for these messages");
        return false;
    }
    run->steps_left -= steps;
    return true;
}

bool fg_jinja_deepen(fg_jinja_run *run)
{
    if (fg_jinja_failed(run)) {
        return false;
    }
    if (run->depth == RUN_DEPTH_MAX) {
        fg_jinja_fail(run, "nested deeper than %d", RUN_DEPTH_MAX);
        return false;
    }
    run->depth++;
    return true;
}

void *fg_jinja_take(fg_jinja_run *run, size_t count, size_t item_bytes)
{
    if (fg_jinja_failed(run)) {
        return NULL;
    }
    size_t size_bytes;
    bool overflow = __builtin_mul_overflow(count, item_bytes, &size_bytes);
    if (overflow || size_bytes > run->bytes_left) {
        fg_jinja_fail(run, "the template takes too much memory for these messages");
        return NULL;
    }
    run->bytes_left -= size_bytes;
    void *memory = fg_arena_array(run->arena, count == 0 ? 1 : count, item_bytes);
    if (memory == NULL) {
        fg_jinja_no_memory(run);
    }
    return memory;
}

/* ---- names and members ---- */

static fg_jinja_value missing(fg_jinja_run *run, fg_jinja_name name)
{
    fg_jinja_name *kept = fg_jinja_take(run, 1, sizeof *kept);
    if (kept != NULL) {
        *kept = name;
    }
    return (fg_jinja_value){ .kind = FG_JINJA_UNDEFINED, .missing = kept };
}

static fg_jinja_value look_up(fg_jinja_run *run, fg_jinja_name name)
{
    for (const fg_jinja_scope *scope = run->scope; scope != NULL; scope = scope->outer) {
        if (!fg_jinja_step(run, 1 + scope->count / 8)) {
            return fg_jinja_undefined();
        }
        for (size_t i = 0; i < scope->count; i++) {
            if (fg_jinja_name_equal(scope->variables[i].name, name)) {
                return scope->variables[i].value;
            }
        }
    }
    const fg_jinja_value *global = fg_jinja_get(run, run->globals, name);
    if (global != NULL) {
        return *global;
    }
    int function = fg_jinja_function_find(name);
    if (function >= 0) {
        return (fg_jinja_value){ .kind = FG_JINJA_FUNCTION, .function = function };
    }
    return missing(run, name);
}

static bool complain_of_undefined(fg_jinja_run *run, fg_jinja_value value)
{
    if (value.kind != FG_JINJA_UNDEFINED) {
        return false;
    }
    if (value.missing == NULL) {
        fg_jinja_fail(run, "something here is undefined");
    } else {
        fg_jinja_fail(run, "'%.*s' is undefined", (int)value.missing->length, value.missing->text);
    }
    return true;
}

/* A method of this name, or undefined. */
static fg_jinja_value method_of(fg_jinja_run *run, fg_jinja_value object, fg_jinja_name name)
{
    int index = fg_jinja_method_find(object.kind, name);
    if (index < 0) {
        return missing(run, name);
    }
    fg_jinja_method *method = fg_jinja_take(run, 1, sizeof *method);
    fg_jinja_value *self = fg_jinja_take(run, 1, sizeof *self);
    if (method == NULL || self == NULL) {
        return fg_jinja_undefined();
    }
    *self = object;
    *method = (fg_jinja_method){ .self = self, .index = index };
    return (fg_jinja_value){ .kind = FG_JINJA_METHOD, .method = method };
}

fg_jinja_value fg_jinja_attribute(fg_jinja_run *run, fg_jinja_value object, fg_jinja_name name)
{
    fg_jinja_value found;
    if (object.kind == FG_JINJA_LOOP && fg_jinja_loop_member(object.loop, name, &found)) {
        return found;
    }
    if (object.kind == FG_JINJA_MAP || object.kind == FG_JINJA_NAMESPACE) {
        /* x.items is the method even where there is a member of that name. */
        bool is_method =
            object.kind == FG_JINJA_MAP && fg_jinja_method_find(object.kind, name) >= 0;
        const fg_jinja_value *member = is_method ? NULL : fg_jinja_get(run, object.map, name);
        if (member != NULL) {
            return *member;
        }
    }
    return method_of(run, object, name);
}

/* Where index `index` of so many lies; false: outside. */
static bool place(int64_t index, size_t count, size_t *at_out)
{
    int64_t at = index < 0 ? index + (int64_t)count : index;
    if (at < 0 || (uint64_t)at >= count) {
        return false;
    }
    *at_out = (size_t)at;
    return true;
}

static fg_jinja_value item_of(fg_jinja_run *run, fg_jinja_value object, fg_jinja_value index)
{
    size_t at;
    if (complain_of_undefined(run, object)) {
        return fg_jinja_undefined();
    }
    if (index.kind == FG_JINJA_TEXT) {
        const char *key = fg_jinja_flat(run, index.text);
        if (key == NULL) {
            return fg_jinja_undefined();
        }
        fg_jinja_name name = fg_jinja_name_of(key, index.text->length);
        bool has_members = object.kind == FG_JINJA_MAP || object.kind == FG_JINJA_NAMESPACE;
        const fg_jinja_value *member = has_members ? fg_jinja_get(run, object.map, name) : NULL;
        return member != NULL ? *member : method_of(run, object, name);
    }
    if (index.kind == FG_JINJA_INTEGER && object.kind == FG_JINJA_LIST) {
        return place(index.integer, object.list->count, &at) ? object.list->items[at]
                                                             : fg_jinja_undefined();
    }
    if (index.kind == FG_JINJA_INTEGER && object.kind == FG_JINJA_TEXT) {
        if (!place(index.integer, fg_jinja_characters(run, object.text), &at)) {
            return fg_jinja_undefined();
        }
        size_t start = fg_jinja_character_at(run, object.text, at);
        return fg_jinja_cut(run, object.text, start,
                            fg_jinja_character_at(run, object.text, at + 1));
    }
    return fg_jinja_undefined();
}

/* A bound of a slice over `count` items with this step, as Python moves it inside. */
static int64_t bound(fg_jinja_run *run, const fg_jinja_node *node, int64_t count, int64_t step,
                     bool is_start)
{
    int64_t low = step > 0 ? 0 : -1;
    int64_t high = step > 0 ? count : count - 1;
    fg_jinja_value value = node == NULL ? fg_jinja_none() : fg_jinja_evaluate(run, node);
    if (value.kind == FG_JINJA_NONE) {
        return is_start == (step > 0) ? low : high;
    }
    if (value.kind != FG_JINJA_INTEGER) {
        fg_jinja_fail(run, "a slice needs integers, not %s", fg_jinja_kind_name(value));
        return 0;
    }
    int64_t at = value.integer < 0 ? value.integer + count : value.integer;
    return at < low ? low : at > high ? high : at;
}

static fg_jinja_value slice_of(fg_jinja_run *run, fg_jinja_value object, const fg_jinja_node *node)
{
    fg_jinja_value step_value = node->d == NULL ? fg_jinja_none() : fg_jinja_evaluate(run, node->d);
    int64_t step = step_value.kind == FG_JINJA_NONE ? 1 : step_value.integer;
    bool is_text = object.kind == FG_JINJA_TEXT;
    if (complain_of_undefined(run, object)) {
        return fg_jinja_undefined();
    }
    if (!is_text && object.kind != FG_JINJA_LIST) {
        fg_jinja_fail(run, "%s has no slices", fg_jinja_kind_name(object));
        return fg_jinja_undefined();
    }
    if ((step_value.kind != FG_JINJA_NONE && step_value.kind != FG_JINJA_INTEGER) || step == 0 ||
        step > INT32_MAX || step < -INT32_MAX) {
        fg_jinja_fail(run, "a slice needs a step that is an integer and not 0");
        return fg_jinja_undefined();
    }
    int64_t count = (int64_t)(is_text ? fg_jinja_characters(run, object.text) : object.list->count);
    int64_t start = bound(run, node->b, count, step, true);
    int64_t end = bound(run, node->c, count, step, false);
    if (is_text && step == 1) {
        size_t from = fg_jinja_character_at(run, object.text, (size_t)start);
        size_t to = fg_jinja_character_at(run, object.text, (size_t)(end < start ? start : end));
        return fg_jinja_cut(run, object.text, from, to);
    }
    fg_jinja_items *items = fg_jinja_iterate(run, object);
    fg_jinja_value result = fg_jinja_list_new(run, 0, !is_text && object.list->is_tuple);
    fg_jinja_output output = { .count = 0 };
    for (int64_t i = start; !fg_jinja_failed(run) && (step > 0 ? i < end : i > end); i += step) {
        if (is_text) {
            fg_jinja_emit_text(run, &output, items->items[i].text);
        } else {
            fg_jinja_list_push(run, result.list, items->items[i]);
        }
    }
    return is_text ? fg_jinja_text_of_output(run, &output) : result;
}

/* ---- operators ---- */

static fg_jinja_value real(double value)
{
    return (fg_jinja_value){ .kind = FG_JINJA_REAL, .real = value };
}

static int64_t integer_of(fg_jinja_value value)
{
    return value.kind == FG_JINJA_BOOL ? value.flag : value.integer;
}

static fg_jinja_value power(fg_jinja_run *run, int64_t base, int64_t exponent)
{
    int64_t result = 1;
    if (exponent < 0) {
        return real(pow((double)base, (double)exponent));
    }
    for (; exponent > 0 && fg_jinja_step(run, 1); exponent--) {
        if (__builtin_mul_overflow(result, base, &result)) {
            fg_jinja_fail(run, "an integer is too large");
        }
        if (result == 0 || (base == 1 && exponent > 1)) {
            break;
        }
    }
    return fg_jinja_of_integer(result);
}

static fg_jinja_value integers(fg_jinja_run *run, fg_jinja_op op, int64_t a, int64_t b)
{
    int64_t result = 0;
    bool overflow = false;
    bool divides = op == OP_FLOOR_DIVIDE || op == OP_MODULO || op == OP_DIVIDE;
    if (divides && b == 0) {
        fg_jinja_fail(run, "a division by zero");
        return fg_jinja_undefined();
    }
    switch (op) {
    case OP_ADD:
        overflow = __builtin_add_overflow(a, b, &result);
        break;
    case OP_SUBTRACT:
        overflow = __builtin_sub_overflow(a, b, &result);
        break;
    case OP_MULTIPLY:
        overflow = __builtin_mul_overflow(a, b, &result);
        break;
    case OP_DIVIDE:
        return real((double)a / (double)b);
    case OP_POWER:
        return power(run, a, b);
    default: /* the floor, and what is left of it: with the divisor's sign */
        overflow = b == -1 && a == INT64_MIN;
        if (!overflow && op == OP_FLOOR_DIVIDE) {
            result = a / b - (a % b != 0 && (a < 0) != (b < 0));
        } else if (!overflow) {
            result = a % b + (a % b != 0 && (a < 0) != (b < 0) ? b : 0);
        }
        break;
    }
    if (overflow) {
        fg_jinja_fail(run, "an integer is too large");
    }
    return fg_jinja_of_integer(result);
}

static fg_jinja_value reals(fg_jinja_run *run, fg_jinja_op op, double a, double b)
{
    bool divides = op == OP_FLOOR_DIVIDE || op == OP_MODULO || op == OP_DIVIDE;
    if (divides && b == 0.0) {
        fg_jinja_fail(run, "a division by zero");
        return fg_jinja_undefined();
    }
    switch (op) {
    case OP_ADD:
        return real(a + b);
    case OP_SUBTRACT:
        return real(a - b);
    case OP_MULTIPLY:
        return real(a * b);
    case OP_DIVIDE:
        return real(a / b);
    case OP_POWER:
        return real(pow(a, b));
    case OP_FLOOR_DIVIDE:
        return real(floor(a / b));
    default: {
        double rest = fmod(a, b);
        rest = rest == 0.0 ? copysign(0.0, b) : rest;
        return real((rest < 0.0) != (b < 0.0) && rest != 0.0 ? rest + b : rest);
    }
    }
}

static fg_jinja_value joined_lists(fg_jinja_run *run, const fg_jinja_items *a,
                                   const fg_jinja_items *b)
{
    fg_jinja_value all = fg_jinja_list_new(run, a->count + b->count, a->is_tuple);
    for (size_t i = 0; i < a->count + b->count && !fg_jinja_failed(run); i++) {
        fg_jinja_list_push(run, all.list, i < a->count ? a->items[i] : b->items[i - a->count]);
    }
    return all;
}

/* A text or a list again and again. */
static fg_jinja_value repeated(fg_jinja_run *run, fg_jinja_value value, int64_t times)
{
    fg_jinja_output output = { .count = 0 };
    if (value.kind == FG_JINJA_LIST) {
        fg_jinja_value all = fg_jinja_list_new(run, 0, value.list->is_tuple);
        for (; times > 0 && fg_jinja_step(run, 1); times--) {
            for (size_t i = 0; i < value.list->count; i++) {
                fg_jinja_list_push(run, all.list, value.list->items[i]);
            }
        }
        return all;
    }
    for (; times > 0 && fg_jinja_step(run, 1); times--) {
        fg_jinja_emit_text(run, &output, value.text);
    }
    return fg_jinja_text_of_output(run, &output);
}

static fg_jinja_value arithmetic(fg_jinja_run *run, fg_jinja_op op, fg_jinja_value a,
                                 fg_jinja_value b)
{
    if (complain_of_undefined(run, a) || complain_of_undefined(run, b)) {
        return fg_jinja_undefined();
    }
    if (fg_jinja_is_number(a) && fg_jinja_is_number(b)) {
        return a.kind == FG_JINJA_REAL || b.kind == FG_JINJA_REAL
                   ? reals(run, op, fg_jinja_number(a), fg_jinja_number(b))
                   : integers(run, op, integer_of(a), integer_of(b));
    }
    if (op == OP_ADD && a.kind == FG_JINJA_TEXT && b.kind == FG_JINJA_TEXT) {
        return fg_jinja_join(run, a.text, b.text);
    }
    if (op == OP_ADD && a.kind == FG_JINJA_LIST && b.kind == FG_JINJA_LIST &&
        a.list->is_tuple == b.list->is_tuple) {
        return joined_lists(run, a.list, b.list);
    }
    bool a_repeats = a.kind == FG_JINJA_TEXT || a.kind == FG_JINJA_LIST;
    bool b_repeats = b.kind == FG_JINJA_TEXT || b.kind == FG_JINJA_LIST;
    bool a_counts = a.kind == FG_JINJA_INTEGER || a.kind == FG_JINJA_BOOL;
    bool b_counts = b.kind == FG_JINJA_INTEGER || b.kind == FG_JINJA_BOOL;
    if (op == OP_MULTIPLY && ((a_repeats && b_counts) || (a_counts && b_repeats))) {
        return repeated(run, a_repeats ? a : b, integer_of(a_counts ? a : b));
    }
    fg_jinja_fail(run, "%s and %s do not go together with this operator", fg_jinja_kind_name(a),
                  fg_jinja_kind_name(b));
    return fg_jinja_undefined();
}

static fg_jinja_value binary(fg_jinja_run *run, const fg_jinja_node *node)
{
    fg_jinja_value a = fg_jinja_evaluate(run, node->a);
    fg_jinja_value b = fg_jinja_evaluate(run, node->b);
    if (fg_jinja_failed(run)) {
        return fg_jinja_undefined();
    }
    switch (node->op) {
    case OP_CONCAT: {
        fg_jinja_value one = fg_jinja_to_text(run, a);
        fg_jinja_value other = fg_jinja_to_text(run, b);
        return fg_jinja_failed(run) ? fg_jinja_undefined()
                                    : fg_jinja_join(run, one.text, other.text);
    }
    case OP_EQUAL:
        return fg_jinja_of_bool(fg_jinja_equal(run, a, b));
    case OP_NOT_EQUAL:
        return fg_jinja_of_bool(!fg_jinja_equal(run, a, b));
    case OP_LESS:
        return fg_jinja_of_bool(fg_jinja_compare(run, a, b) < 0);
    case OP_LESS_EQUAL:
        return fg_jinja_of_bool(fg_jinja_compare(run, a, b) <= 0);
    case OP_GREATER:
        return fg_jinja_of_bool(fg_jinja_compare(run, a, b) > 0);
    case OP_GREATER_EQUAL:
        return fg_jinja_of_bool(fg_jinja_compare(run, a, b) >= 0);
    case OP_IN:
        return fg_jinja_of_bool(fg_jinja_contains(run, b, a));
    case OP_NOT_IN:
        return fg_jinja_of_bool(!fg_jinja_contains(run, b, a));
    default:
        return arithmetic(run, node->op, a, b);
    }
}

static fg_jinja_value unary(fg_jinja_run *run, const fg_jinja_node *node)
{
    fg_jinja_value value = fg_jinja_evaluate(run, node->a);
    if (node->op == OP_NOT) {
        return fg_jinja_of_bool(!fg_jinja_is_true(value));
    }
    if (complain_of_undefined(run, value)) {
        return fg_jinja_undefined();
    }
    if (!fg_jinja_is_number(value)) {
        fg_jinja_fail(run, "%s has no sign", fg_jinja_kind_name(value));
        return fg_jinja_undefined();
    }
    if (value.kind == FG_JINJA_REAL) {
        return real(node->op == OP_NEGATE ? -value.real : value.real);
    }
    int64_t integer = integer_of(value);
    return integers(run, OP_SUBTRACT, node->op == OP_NEGATE ? 0 : integer,
                    node->op == OP_NEGATE ? integer : 0);
}

/* ---- calls ---- */

fg_jinja_arguments fg_jinja_evaluate_arguments(fg_jinja_run *run, const fg_jinja_node *list)
{
    fg_jinja_arguments all = { .count = 0 };
    fg_jinja_items values = { .count = 0 };
    size_t named_max = 0;
    for (const fg_jinja_node *node = list; node != NULL; node = node->next) {
        named_max += node->kind == NODE_KEYWORD;
    }
    all.named = named_max == 0 ? NULL : fg_jinja_take(run, named_max, sizeof *all.named);
    for (const fg_jinja_node *node = list; node != NULL && !fg_jinja_failed(run);
         node = node->next) {
        if (node->kind == NODE_KEYWORD) {
            all.named[all.named_count++] =
                (fg_jinja_variable){ .name = node->name, .value = fg_jinja_evaluate(run, node->a) };
        } else if (node->kind == NODE_SPREAD) {
            const fg_jinja_items *items = fg_jinja_iterate(run, fg_jinja_evaluate(run, node->a));
            for (size_t i = 0; items != NULL && i < items->count; i++) {
                fg_jinja_list_push(run, &values, items->items[i]);
            }
        } else {
            fg_jinja_list_push(run, &values, fg_jinja_evaluate(run, node));
        }
    }
    all.values = values.items;
    all.count = values.count;
    return all;
}

fg_jinja_value fg_jinja_argument(const fg_jinja_arguments *arguments, size_t index,
                                 const char *name, fg_jinja_value otherwise)
{
    if (index < arguments->count) {
        return arguments->values[index];
    }
    for (size_t i = 0; i < arguments->named_count; i++) {
        if (fg_jinja_name_is(arguments->named[i].name, name)) {
            return arguments->named[i].value;
        }
    }
    return otherwise;
}

static fg_jinja_value call(fg_jinja_run *run, const fg_jinja_node *node)
{
    fg_jinja_value callee = fg_jinja_evaluate(run, node->a);
    if (complain_of_undefined(run, callee)) {
        return fg_jinja_undefined();
    }
    fg_jinja_arguments arguments = fg_jinja_evaluate_arguments(run, node->list);
    if (fg_jinja_failed(run)) {
        return fg_jinja_undefined();
    }
    switch (callee.kind) {
    case FG_JINJA_METHOD:
        return fg_jinja_call_method(run, callee.method, &arguments);
    case FG_JINJA_MACRO:
        return fg_jinja_call_macro(run, callee.macro, &arguments, NULL);
    case FG_JINJA_FUNCTION:
        return fg_jinja_call_function(run, callee.function, &arguments);
    default:
        fg_jinja_fail(run, "%s cannot be called", fg_jinja_kind_name(callee));
        return fg_jinja_undefined();
    }
}

static fg_jinja_value list_of(fg_jinja_run *run, const fg_jinja_node *node)
{
    fg_jinja_value list = fg_jinja_list_new(run, 0, node->flag);
    for (const fg_jinja_node *item = node->list; item != NULL && !fg_jinja_failed(run);
         item = item->next) {
        fg_jinja_list_push(run, list.list, fg_jinja_evaluate(run, item));
    }
    return list;
}

static fg_jinja_value map_of(fg_jinja_run *run, const fg_jinja_node *node)
{
    fg_jinja_value map = fg_jinja_map_new(run);
    for (const fg_jinja_node *pair = node->list; pair != NULL && !fg_jinja_failed(run);
         pair = pair->next) {
        fg_jinja_value key = fg_jinja_evaluate(run, pair->a);
        fg_jinja_value value = fg_jinja_evaluate(run, pair->b);
        if (fg_jinja_failed(run)) {
            break;
        }
        if (key.kind != FG_JINJA_TEXT) {
            fg_jinja_fail(run, "only strings are supported as keys");
            break;
        }
        const char *flat = fg_jinja_flat(run, key.text);
        bool of_client = fg_jinja_is_of_client(key.text);
        if (flat != NULL) {
            fg_jinja_put(run, map.map, fg_jinja_name_of(flat, key.text->length), of_client, value);
        }
    }
    return map;
}

static fg_jinja_value filtered(fg_jinja_run *run, const fg_jinja_node *node)
{
    fg_jinja_value value = fg_jinja_evaluate(run, node->a);
    fg_jinja_arguments arguments = fg_jinja_evaluate_arguments(run, node->list);
    return fg_jinja_failed(run) ? fg_jinja_undefined()
                                : fg_jinja_filter(run, node->index, value, &arguments);
}

static fg_jinja_value tested(fg_jinja_run *run, const fg_jinja_node *node)
{
    fg_jinja_value value = fg_jinja_evaluate(run, node->a);
    fg_jinja_arguments arguments = fg_jinja_evaluate_arguments(run, node->list);
    return fg_jinja_of_bool(!fg_jinja_failed(run) &&
                            fg_jinja_test(run, node->index, value, &arguments) != node->flag);
}

static fg_jinja_value evaluate(fg_jinja_run *run, const fg_jinja_node *node)
{
    fg_jinja_value value;
    switch (node->kind) {
    case NODE_CONSTANT:
        return node->constant;
    case NODE_NAME:
        return look_up(run, node->name);
    case NODE_LIST:
        return list_of(run, node);
    case NODE_DICT:
        return map_of(run, node);
    case NODE_ATTRIBUTE:
        value = fg_jinja_evaluate(run, node->a);
        return complain_of_undefined(run, value) ? fg_jinja_undefined()
                                                 : fg_jinja_attribute(run, value, node->name);
    case NODE_ITEM:
        value = fg_jinja_evaluate(run, node->a);
        return item_of(run, value, fg_jinja_evaluate(run, node->b));
    case NODE_SLICE:
        return slice_of(run, fg_jinja_evaluate(run, node->a), node);
    case NODE_CALL:
        return call(run, node);
    case NODE_FILTER:
        return filtered(run, node);
    case NODE_TEST:
        return tested(run, node);
    case NODE_UNARY:
        return unary(run, node);
    case NODE_AND:
        value = fg_jinja_evaluate(run, node->a);
        return fg_jinja_is_true(value) ? fg_jinja_evaluate(run, node->b) : value;
    case NODE_OR:
        value = fg_jinja_evaluate(run, node->a);
        return fg_jinja_is_true(value) ? value : fg_jinja_evaluate(run, node->b);
    case NODE_CHOICE:
        if (fg_jinja_is_true(fg_jinja_evaluate(run, node->a))) {
            return fg_jinja_evaluate(run, node->b);
        }
        return node->c == NULL ? fg_jinja_undefined() : fg_jinja_evaluate(run, node->c);
    case NODE_CAPTURED:
        return run->captured;
    default:
        return binary(run, node);
    }
}

fg_jinja_value fg_jinja_evaluate(fg_jinja_run *run, const fg_jinja_node *node)
{
    if (node == NULL || !fg_jinja_step(run, 1) || !fg_jinja_deepen(run)) {
        return fg_jinja_undefined();
    }
    fg_jinja_value value = evaluate(run, node);
    fg_jinja_rise(run);
    return value;
}
