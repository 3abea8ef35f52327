#include <stdio.h>
#include <string.h>

#include "common/base/limits.h"
#include "common/base/mem.h"
#include "common/model/folder_internal.h"

enum { PAIRS_MAX = 256 };
#define LN_2   0.6931471805599453
#define TWO_PI 6.283185307179586

typedef struct reading {
    const fg_folder_rope *rope;
    const fg_json_node *scaling; /* NULL: none */
    fg_folder_config *config;
    fg_meta_writer *out;
    double theta;
    fg_error *err;
} reading;

/* libm's results depend on the machine; these do not. */
static double log_of(double x)
{
    int halvings = 0;
    for (; x > 1.5; halvings++) {
        x /= 2.0;
    }
    double t = (x - 1.0) / (x + 1.0), power = t, sum = 0.0;
    for (int k = 1; k < 60; k += 2) {
        sum += power / k;
        power *= t * t;
    }
    return 2.0 * sum + halvings * LN_2;
}

/* e^-y for y in [0, 100) or so. */
static double exp_minus(double y)
{
    int halvings = (int)(y / LN_2);
    double r = halvings * LN_2 - y, term = 1.0, sum = 1.0;
    for (int k = 1; k < 24; k++) {
        term *= r / k;
        sum += term;
    }
    for (int i = 0; i < halvings; i++) {
        sum /= 2.0;
    }
    return sum;
}

static fg_folder_key key_of(const reading *r, const char *name)
{
    return fg_folder_key_of(r->rope->architecture, name);
}

/* In the scaling; FG_BAD_INPUT where it is no number of the range. */
static fg_status read_number(const reading *r, const fg_json_node *object, const char *name,
                             double least, double most, double *out)
{
    double value = *out;
    const fg_json_node *node = fg_folder_get(object, name);
    if (node == NULL) {
        return FG_OK;
    }
    if (!fg_json_number(node, &value) || !(value >= least && value <= most)) {
        return fg_fail(r->err, FG_BAD_INPUT, "config.json: '%s' is not a number from %g to %g",
                       name, least, most);
    }
    *out = value;
    return FG_OK;
}

static void write_type(const reading *r, const char *type)
{
    fg_meta_string(r->out, key_of(r, "rope.scaling.type").text, type, strlen(type));
}

/* Of the context that a model was first trained for; where nobody says so, of all. */
static fg_status read_original(const reading *r, double *out)
{
    *out = r->rope->context;
    fg_status status = read_number(r, r->rope->root, "original_max_position_embeddings", 1.0,
                                   FG_LIMIT_CONTEXT_TOKENS, out);
    return status != FG_OK ? status
                           : read_number(r, r->scaling, "original_max_position_embeddings", 1.0,
                                         FG_LIMIT_CONTEXT_TOKENS, out);
}

static fg_status write_linear(const reading *r)
{
    double factor = 1.0;
    fg_status status = read_number(r, r->scaling, "factor", 1.0, 1e6, &factor);
    write_type(r, "linear");
    fg_meta_f32(r->out, key_of(r, "rope.scaling.factor").text, (float)factor);
    return status;
}

static fg_status write_yarn(const reading *r)
{
    static const char *const others[] = { "attention_factor", "mscale", "mscale_all_dim",
                                          "truncate" };
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        bool truncates = false;
        (void)fg_json_bool(fg_folder_get(r->scaling, others[i]), &truncates);
        if (fg_folder_get(r->scaling, others[i]) != NULL && !truncates) {
            return fg_fail(r->err, FG_BAD_INPUT,
                           "config.json: '%s' of yarn's rope scaling is not supported", others[i]);
        }
    }
    double factor = 1.0, fast = 32.0, slow = 1.0, original;
    fg_status status = read_number(r, r->scaling, "factor", 1.0, 1e6, &factor);
    status = status != FG_OK ? status : read_number(r, r->scaling, "beta_fast", 1e-3, 1e6, &fast);
    status = status != FG_OK ? status : read_number(r, r->scaling, "beta_slow", 1e-3, 1e6, &slow);
    status = status != FG_OK ? status : read_original(r, &original);
    if (status != FG_OK) {
        return status;
    }
    write_type(r, "yarn");
    fg_meta_f32(r->out, key_of(r, "rope.scaling.factor").text, (float)factor);
    fg_meta_f32(r->out, key_of(r, "rope.scaling.yarn_beta_fast").text, (float)fast);
    fg_meta_f32(r->out, key_of(r, "rope.scaling.yarn_beta_slow").text, (float)slow);
    fg_meta_u32(r->out, key_of(r, "rope.scaling.original_context_length").text, (uint32_t)original);
    return FG_OK;
}

/* Llama 3.1's: quick turns stay, slow ones are divided, those between by something between. */
static fg_status read_llama3(const reading *r)
{
    double factor = 8.0, low = 1.0, high = 4.0, original;
    fg_status status = read_number(r, r->scaling, "factor", 1.0, 1e6, &factor);
    status =
        status != FG_OK ? status : read_number(r, r->scaling, "low_freq_factor", 1e-3, 1e6, &low);
    status =
        status != FG_OK ? status : read_number(r, r->scaling, "high_freq_factor", 1e-3, 1e6, &high);
    status = status != FG_OK ? status : read_original(r, &original);
    if (status != FG_OK) {
        return status;
    }
    if (high <= low) {
        return fg_fail(r->err, FG_BAD_INPUT,
                       "config.json: 'high_freq_factor' is not above 'low_freq_factor'");
    }
    uint32_t pairs = r->config->head_dim / 2;
    float *divisors = fg_mem_array(pairs + 1, sizeof *divisors);
    if (divisors == NULL) {
        return fg_fail(r->err, FG_AGAIN, "out of memory for %u divisors", pairs);
    }
    double step = log_of(r->theta) * 2.0 / r->config->head_dim;
    for (uint32_t i = 0; i < pairs; i++) {
        double wave = TWO_PI / exp_minus(step * i);
        double share = (original / wave - low) / (high - low);
        divisors[i] = (float)(wave < original / high  ? 1.0
                              : wave > original / low ? factor
                                                      : 1.0 / ((1.0 - share) / factor + share));
    }
    r->config->rope_freqs = divisors;
    r->config->rope_count = pairs;
    return FG_OK;
}

static fg_status read_factors(const reading *r, const char *name, uint32_t count, float **out)
{
    const fg_json_node *list = fg_folder_get(r->scaling, name);
    if (fg_json_size(list) != count) {
        return fg_fail(r->err, FG_BAD_INPUT, "config.json: '%s' is not a list of %u numbers", name,
                       count);
    }
    *out = fg_mem_array(count + 1, sizeof **out);
    if (*out == NULL) {
        return fg_fail(r->err, FG_AGAIN, "out of memory for %u divisors", count);
    }
    for (uint32_t i = 0; i < count; i++) {
        double value;
        if (!fg_json_number(fg_json_at(list, i), &value) || !(value > 0.0 && value < 1e30)) {
            return fg_fail(r->err, FG_BAD_INPUT, "config.json: '%s' has an item that is no divisor",
                           name);
        }
        (*out)[i] = (float)value;
    }
    return FG_OK;
}

/* Phi's: a divisor for each pair, by how long the context is. */
static fg_status write_longrope(const reading *r, uint32_t rotated)
{
    double original, magnitude = 1.0;
    uint32_t pairs = rotated / 2;
    if ((r->rope->traits & FG_TRAIT_LONGROPE) == 0) {
        return fg_fail(r->err, FG_BAD_INPUT, "config.json: longrope is not supported for %s",
                       r->config->class_name);
    }
    fg_status status = read_original(r, &original);
    status =
        status != FG_OK ? status : read_factors(r, "long_factor", pairs, &r->config->rope_long);
    status =
        status != FG_OK ? status : read_factors(r, "short_factor", pairs, &r->config->rope_short);
    if (status != FG_OK) {
        return status;
    }
    double scale = r->rope->context / original;
    if (scale > 1.0 && original > 1.0) {
        magnitude = __builtin_sqrt(1.0 + log_of(scale) / log_of(original));
    }
    status = read_number(r, r->scaling, "attention_factor", 1e-3, 1e3, &magnitude);
    r->config->rope_count = pairs;
    fg_meta_f32(r->out, key_of(r, "rope.scaling.attn_factor").text, (float)magnitude);
    fg_meta_u32(r->out, key_of(r, "rope.scaling.original_context_length").text, (uint32_t)original);
    return status;
}

static fg_status write_scaling(const reading *r, uint32_t rotated)
{
    const fg_json_node *node = fg_folder_get(r->scaling, "rope_type");
    node = node == NULL ? fg_folder_get(r->scaling, "type") : node;
    size_t length = 0;
    const char *type = fg_json_string(node, &length);
    if (node == NULL || (type != NULL && strcmp(type, "default") == 0)) {
        return FG_OK;
    }
    if (type != NULL && strcmp(type, "linear") == 0) {
        return write_linear(r);
    }
    if (type != NULL && strcmp(type, "yarn") == 0) {
        return write_yarn(r);
    }
    if (type != NULL && strcmp(type, "llama3") == 0) {
        return read_llama3(r);
    }
    if (type != NULL && (strcmp(type, "longrope") == 0 || strcmp(type, "su") == 0)) {
        return write_longrope(r, rotated);
    }
    return fg_fail(r->err, FG_BAD_INPUT,
                   "config.json: rope scaling '%.*s' is not supported (linear, yarn, llama3, "
                   "longrope)",
                   (int)(length < 32 ? length : 32), type != NULL ? type : "");
}

/* Gemma 3's layers with a window have turns of their own; newer files keep both kinds in one table. */
static fg_status read_thetas(reading *r, double *window_theta)
{
    const fg_json_node *root = r->rope->root, *table = fg_folder_get(root, "rope_parameters");
    *window_theta = 10000.0;
    r->theta = r->rope->theta;
    r->scaling = table != NULL ? table : fg_folder_get(root, "rope_scaling");
    const fg_json_node *windows = fg_folder_get(table, "sliding_attention");
    if (fg_folder_get(table, "full_attention") != NULL) {
        r->scaling = fg_folder_get(table, "full_attention");
    }
    if (r->scaling != NULL && !fg_json_is(r->scaling, FG_JSON_OBJECT)) {
        return fg_fail(r->err, FG_BAD_INPUT, "config.json: its rope scaling is no object");
    }
    fg_status status = read_number(r, root, "rope_theta", 1.0, 1e30, &r->theta);
    status =
        status != FG_OK ? status : read_number(r, r->scaling, "rope_theta", 1.0, 1e30, &r->theta);
    status = status != FG_OK
                 ? status
                 : read_number(r, root, "rope_local_base_freq", 1.0, 1e30, window_theta);
    return status != FG_OK ? status
                           : read_number(r, windows, "rope_theta", 1.0, 1e30, window_theta);
}

fg_status fg_folder_write_rope(const fg_folder_rope *rope, fg_folder_config *config,
                               fg_meta_writer *out, fg_error *err)
{
    reading r = { .rope = rope, .config = config, .out = out, .err = err };
    double window_theta, partial = 1.0;
    fg_status status = read_thetas(&r, &window_theta);
    if (status == FG_OK) {
        status = read_number(&r, rope->root, "partial_rotary_factor", 1e-3, 1.0, &partial);
    }
    if (status == FG_OK) {
        status = read_number(&r, r.scaling, "partial_rotary_factor", 1e-3, 1.0, &partial);
    }
    if (status != FG_OK) {
        return status;
    }
    if (config->head_dim == 0 || config->head_dim > 2 * PAIRS_MAX) {
        return fg_fail(err, FG_BAD_INPUT, "config.json: heads of %u values are not supported",
                       config->head_dim);
    }
    if (partial != 1.0 && (rope->traits & FG_TRAIT_FUSED) == 0) {
        return fg_fail(err, FG_BAD_INPUT,
                       "config.json: 'partial_rotary_factor' is %g (only 1 is supported for %s)",
                       partial, config->class_name);
    }
    uint32_t rotated = (uint32_t)(partial * config->head_dim);
    fg_meta_u32(out, key_of(&r, "rope.dimension_count").text, rotated);
    fg_meta_f32(out, key_of(&r, "rope.freq_base").text, (float)r.theta);
    if ((rope->traits & FG_TRAIT_POST_NORMS) != 0) {
        fg_meta_f32(out, key_of(&r, "rope.freq_base_swa").text, (float)window_theta);
    }
    return r.scaling == NULL ? FG_OK : write_scaling(&r, rotated);
}
