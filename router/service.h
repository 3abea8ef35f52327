/*
 * service - what an operator promises to whom: classes of service by name, weights of tenants. Parsed once
 * from two options; a value afterwards. Tenants are known by a keyed hash of the name that requests give,
 * so nobody can make two of them meet, and no name is kept.
 */
#ifndef FORGE_ROUTER_SERVICE_H
#define FORGE_ROUTER_SERVICE_H

#include <stddef.h>
#include <stdint.h>

#include "common/base/status.h"
#include "router/admit.h"

enum {
    FG_SERVICE_CLASSES_MAX = 16,
    FG_SERVICE_WEIGHTS_MAX = 256,
    FG_SERVICE_NAME_BYTES = 64,
    FG_SERVICE_MS_MAX = 24 * 3600 * 1000,
};

typedef struct fg_service {
    uint64_t key; /* of the tenants' hash */
    fg_admit_class classes[FG_SERVICE_CLASSES_MAX];
    char names[FG_SERVICE_CLASSES_MAX][FG_SERVICE_NAME_BYTES + 1];
    size_t class_count;
    struct {
        uint64_t tenant;
        uint32_t weight;
    } weights[FG_SERVICE_WEIGHTS_MAX];
    size_t weight_count;
} fg_service;

/* `classes`: NAME=TTFT_MS/ITL_MS,... with 0 for no promise; `weights`: USER=WEIGHT,... NULL and "": none.
 * FG_BAD_INPUT says which part is wrong. The service must not be moved afterwards: classes point at their
 * names inside. */
fg_status fg_service_init(fg_service *service, const char *classes, const char *weights,
                          uint64_t key, fg_error *err);
/* 0 for no name: those share one part. */
uint64_t fg_service_tenant(const fg_service *service, const char *user, size_t length);
uint32_t fg_service_weight(const fg_service *service, uint64_t tenant);

#endif
