#include "router/service.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/hash.h"
#include "router/queue.h"

#define NS_PER_MS 1000000ull

/* One part of a list: NAME=REST. */
typedef struct part {
    const char *name, *value;
    size_t name_length, value_length;
} part;

/* The next part, or false at the end of the list. A part without a name or '=' has no value. */
static bool next_part(const char **list, part *out)
{
    if (*list == NULL || **list == '\0') {
        return false;
    }
    size_t length = strcspn(*list, ",");
    const char *equals = memchr(*list, '=', length);
    *out = (part){ .name = *list, .name_length = length };
    if (equals != NULL) {
        out->name_length = (size_t)(equals - *list);
        out->value = equals + 1;
        out->value_length = length - out->name_length - 1;
    }
    *list += length;
    *list += **list == ',';
    return true;
}

/* Digits only, up to `most`; moves *text behind them. */
static bool read_number(const char **text, const char *end, uint64_t most, uint64_t *out)
{
    uint64_t value = 0;
    const char *at = *text;
    while (at < end && *at >= '0' && *at <= '9' && value <= most) {
        value = value * 10 + (uint64_t)(*at++ - '0');
    }
    bool fine = at > *text && value <= most && (at == end || *at < '0' || *at > '9');
    *text = at;
    *out = value;
    return fine;
}

static bool is_named(const part *p)
{
    return p->value != NULL && p->name_length > 0 && p->name_length <= FG_SERVICE_NAME_BYTES;
}

static fg_status read_class(fg_service *service, const part *p, fg_error *err)
{
    const char *at = p->value, *end = p->value == NULL ? NULL : p->value + p->value_length;
    uint64_t ttft_ms, itl_ms;
    bool fine = is_named(p) && read_number(&at, end, FG_SERVICE_MS_MAX, &ttft_ms) && at < end &&
                *at++ == '/' && read_number(&at, end, FG_SERVICE_MS_MAX, &itl_ms) && at == end;
    if (!fine) {
        return fg_fail(err, FG_BAD_INPUT,
                       "--slo: \"%.*s\" is not NAME=TTFT_MS/ITL_MS, for example chat=500/50",
                       (int)(p->name_length + p->value_length + (p->value != NULL)), p->name);
    }
    size_t at_index = service->class_count;
    char *name = service->names[at_index];
    if (at_index == FG_SERVICE_CLASSES_MAX) {
        return fg_fail(err, FG_BAD_INPUT, "--slo: more than %d classes", FG_SERVICE_CLASSES_MAX);
    }
    memcpy(name, p->name, p->name_length);
    name[p->name_length] = '\0';
    if (fg_admit_find_class(service->classes, at_index, name) != NULL) {
        return fg_fail(err, FG_BAD_INPUT, "--slo: \"%s\" is there already, or is every request's",
                       name);
    }
    service->classes[at_index] =
        (fg_admit_class){ .name = name,
                          .slo = { .ttft_ns = ttft_ms * NS_PER_MS, .itl_ns = itl_ms * NS_PER_MS } };
    service->class_count++;
    return FG_OK;
}

static fg_status read_weight(fg_service *service, const part *p, fg_error *err)
{
    const char *at = p->value, *end = p->value == NULL ? NULL : p->value + p->value_length;
    uint64_t weight = 0;
    bool fine = is_named(p) && read_number(&at, end, FG_QUEUE_WEIGHT_MAX, &weight) && at == end &&
                weight > 0;
    if (!fine) {
        return fg_fail(err, FG_BAD_INPUT,
                       "--tenant-weights: \"%.*s\" is not USER=WEIGHT with a weight of 1 to %d",
                       (int)(p->name_length + p->value_length + (p->value != NULL)), p->name,
                       FG_QUEUE_WEIGHT_MAX);
    }
    if (service->weight_count == FG_SERVICE_WEIGHTS_MAX) {
        return fg_fail(err, FG_BAD_INPUT, "--tenant-weights: more than %d users",
                       FG_SERVICE_WEIGHTS_MAX);
    }
    service->weights[service->weight_count].tenant =
        fg_service_tenant(service, p->name, p->name_length);
    service->weights[service->weight_count].weight = (uint32_t)weight;
    service->weight_count++;
    return FG_OK;
}

fg_status fg_service_init(fg_service *service, const char *classes, const char *weights,
                          uint64_t key, fg_error *err)
{
    part p;
    fg_status status = FG_OK;
    *service = (fg_service){ .key = key };
    while (status == FG_OK && next_part(&classes, &p)) {
        status = read_class(service, &p, err);
    }
    while (status == FG_OK && next_part(&weights, &p)) {
        status = read_weight(service, &p, err);
    }
    return status;
}

uint64_t fg_service_tenant(const fg_service *service, const char *user, size_t length)
{
    uint64_t tenant = length == 0 ? 0 : fg_hash64(user, length, service->key);
    return length > 0 && tenant == 0 ? 1 : tenant;
}

uint32_t fg_service_weight(const fg_service *service, uint64_t tenant)
{
    for (size_t i = 0; i < service->weight_count; i++) {
        if (service->weights[i].tenant == tenant) {
            return service->weights[i].weight;
        }
    }
    return 1;
}
