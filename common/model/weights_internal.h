/*
 * weights_internal - what weights.c (lookups) and weights_gguf.c (the parser) share. Private to the
 * room.
 */
#ifndef FORGE_COMMON_MODEL_WEIGHTS_INTERNAL_H
#define FORGE_COMMON_MODEL_WEIGHTS_INTERNAL_H

#include "common/model/weights.h"

/* One checked metadata entry. Pointers go into the mapping, except `item_offsets`. */
typedef struct fg_meta {
    const char *key; /* not NUL-terminated */
    uint32_t key_length;
    fg_meta_type type;
    fg_meta_type item_type; /* of an array */
    uint64_t count;         /* items of an array, bytes of a string, else 1 */
    const unsigned char *data;
    uint64_t size_bytes;    /* of `data`, length fields of strings included */
    uint64_t *item_offsets; /* string arrays: where in `data` item i begins */
} fg_meta;

/* Open-addressed table of item numbers + 1 (0: empty), at most half full. */
typedef struct fg_name_table {
    uint32_t *slots;
    uint32_t mask;
} fg_name_table;

/* What a folder needs beside its tables (folder_internal.h). */
struct fg_folder;

struct fg_weights {
    struct fg_folder *folder;   /* NULL: of one file */
    const unsigned char *bytes; /* of a folder, metadata alone */
    size_t size_bytes;
    bool mapped;          /* by us: unmapped at close */
    fg_weights_file file; /* path NULL: bytes in memory */
    fg_meta *metas;
    uint32_t meta_count;
    fg_name_table meta_table;
    fg_tensor *tensors;
    uint32_t tensor_count;
    fg_name_table tensor_table;
    char *tensor_names; /* NUL-terminated, one after the other */
};

/* Opens the folder at `path`, a directory. */
fg_status fg_folder_open(const char *path, fg_weights **weights_out, fg_error *err);
void fg_folder_close(struct fg_folder *folder);
uint64_t fg_folder_size_bytes(const struct fg_folder *folder); /* of all files */
/* Whether a tensor's values are in files that were mapped. */
bool fg_folder_is_mapped(const struct fg_folder *folder, const fg_tensor *tensor);

/* Fills metas and tensors from `bytes`. What was filled before a failure is the caller's to free. */
fg_status fg_weights_parse_gguf(fg_weights *weights, fg_error *err);

/* Room for `count` names; false when out of memory. */
bool fg_name_table_init(fg_name_table *table, uint32_t count);

/* Adds metas[index] or tensors[index]; false when its name is there already. */
bool fg_weights_index_meta(fg_weights *weights, uint32_t index);
bool fg_weights_index_tensor(fg_weights *weights, uint32_t index);

/* NULL: absent. */
const fg_meta *fg_weights_meta(const fg_weights *weights, const char *key);

/* Bytes of a fixed-width metadata type; 0 for strings and arrays. */
uint32_t fg_meta_type_bytes(fg_meta_type type);

#endif
