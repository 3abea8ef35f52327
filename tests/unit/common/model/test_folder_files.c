#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/base/fault.h"
#include "common/model/hparams.h"
#include "tests/support/small_folder.h"
#include "tests/support/test.h"

static const char INDEX[] = "model.safetensors.index.json";

/* A folder on the disk, with the files of a small one. */
typedef struct disk {
    char path[64];
    small_folder folder;
} disk;

static void put(const disk *d, const char *name, const void *bytes, size_t size_bytes)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", d->path, name);
    FILE *file = fopen(path, "w");
    cr_assert_not_null(file);
    cr_assert_eq(fwrite(bytes, 1, size_bytes, file), size_bytes);
    cr_assert_eq(fclose(file), 0);
}

static void drop(const disk *d, const char *name)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", d->path, name);
    (void)unlink(path);
}

static void make_disk(disk *d)
{
    snprintf(d->path, sizeof d->path, "/tmp/forge-folder-XXXXXX");
    cr_assert_not_null(mkdtemp(d->path));
    small_folder_make(&d->folder, "LlamaForCausalLM");
    const fg_folder_files *files = &d->folder.files;
    const fg_folder_file *texts[] = { &files->config, &files->tokenizer, &files->tokenizer_config,
                                      &files->generation_config, &d->folder.weight_file };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        put(d, texts[i]->name, texts[i]->bytes, texts[i]->size_bytes);
    }
}

static void free_disk(disk *d)
{
    static const char *const names[] = { "config.json",
                                         "tokenizer.json",
                                         "tokenizer_config.json",
                                         "generation_config.json",
                                         "model.safetensors",
                                         "chat_template.jinja",
                                         "blob",
                                         "model.safetensors.index.json" };
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        drop(d, names[i]);
    }
    cr_assert_eq(rmdir(d->path), 0);
    small_folder_free(&d->folder);
}

static fg_weights *open_disk(const disk *d)
{
    fg_weights *weights = NULL;
    fg_error err = { .status = FG_OK };
    cr_assert_eq(fg_weights_open(d->path, &weights, &err), FG_OK, "%s", err.text);
    return weights;
}

Test(folder_files, a_folder_is_a_model)
{
    disk d;
    fg_hparams hp;
    make_disk(&d);
    fg_weights *weights = open_disk(&d), *same = open_disk(&d);
    cr_assert_eq(fg_hparams_read(weights, &hp, NULL), FG_OK);
    cr_assert(strncmp(hp.name, "forge-folder-", 13) == 0);
    const fg_weights_file *file = fg_weights_file_of(weights);
    cr_assert_str_eq(file->path, d.path);
    cr_assert_eq(fg_weights_size_bytes(weights), d.folder.weights.size);
    cr_assert_gt(file->size_bytes, d.folder.weights.size);
    for (uint64_t i = 0; i < fg_weights_tensor_count(weights); i++) {
        const fg_tensor *tensor = fg_weights_tensor(weights, i);
        fg_weights_prefetch(weights, tensor);
        fg_weights_release(weights, tensor); /* what is in memory of its own stays */
    }
    fg_digest128 a = fg_weights_fingerprint(weights), b = fg_weights_fingerprint(same);
    cr_assert(a.low != b.low || a.high == b.high);
    cr_assert(a.low == b.low && a.high == b.high);
    fg_weights_close(weights);
    fg_weights_close(same);
    free_disk(&d);
}

/* What sentence-transformers keep lies in a folder of its own. */
Test(folder_files, pooling_has_a_folder)
{
    static const char text[] = "{\"pooling_mode_mean_tokens\":true}";
    disk d;
    fg_hparams hp;
    char folder[128];
    make_disk(&d);
    put(&d, "1_Pooling", text, sizeof text - 1); /* a file of that name is none of ours */
    fg_weights *weights = open_disk(&d);
    cr_assert_eq(fg_hparams_read(weights, &hp, NULL), FG_OK);
    cr_assert_eq(hp.pooling, FG_POOLING_NONE);
    fg_weights_close(weights);
    drop(&d, "1_Pooling");
    snprintf(folder, sizeof folder, "%s/1_Pooling", d.path);
    cr_assert_eq(mkdir(folder, 0700), 0);
    put(&d, "1_Pooling/config.json", text, sizeof text - 1);
    weights = open_disk(&d);
    cr_assert_eq(fg_hparams_read(weights, &hp, NULL), FG_OK);
    cr_assert_eq(hp.pooling, FG_POOLING_MEAN);
    fg_weights_close(weights);
    drop(&d, "1_Pooling/config.json");
    cr_assert_eq(rmdir(folder), 0);
    free_disk(&d);
}

/* The first tensors of a file in one file, the others in another, say the same. */
Test(folder_files, an_index_names_its_files)
{
    disk d;
    char text[512], from[256], to[256];
    make_disk(&d);
    fg_weights *weights = open_disk(&d);
    fg_digest128 want = fg_weights_fingerprint(weights);
    fg_weights_close(weights);
    snprintf(text, sizeof text, "{\"weight_map\":{\"model.norm.weight\":\"blob.safetensors\"}}");
    put(&d, INDEX, text, strlen(text));
    snprintf(from, sizeof from, "%s/model.safetensors", d.path);
    snprintf(to, sizeof to, "%s/blob", d.path);
    cr_assert_eq(rename(from, to), 0);
    snprintf(from, sizeof from, "%s/blob.safetensors", d.path);
    cr_assert_eq(symlink("blob", from), 0); /* as a cache of downloads has them */
    weights = open_disk(&d);
    fg_digest128 have = fg_weights_fingerprint(weights);
    cr_assert(have.low == want.low && have.high == want.high);
    fg_weights_close(weights);
    cr_assert_eq(unlink(from), 0);
    free_disk(&d);
}

Test(folder_files, one_changed_weight_is_another_model)
{
    disk d;
    make_disk(&d);
    fg_weights *weights = open_disk(&d);
    fg_digest128 want = fg_weights_fingerprint(weights);
    fg_weights_close(weights);
    d.folder.weights.data[d.folder.weights.size - 1] ^= 1;
    put(&d, "model.safetensors", d.folder.weights.data, d.folder.weights.size);
    weights = open_disk(&d);
    fg_digest128 have = fg_weights_fingerprint(weights);
    cr_assert(have.low != want.low);
    fg_weights_close(weights);
    free_disk(&d);
}

#define MAP(name) "{\"weight_map\":{\"model.norm.weight\":\"" name "\"}}"

Test(folder_files, an_index_names_no_paths)
{
    static const struct {
        const char *index;
        const char *text;
    } rows[] = {
        { MAP("../model.safetensors"), "in no .safetensors file of this folder" },
        { MAP("/etc/model.safetensors"), "in no .safetensors file of this folder" },
        { MAP("a/model.safetensors"), "in no .safetensors file of this folder" },
        { MAP(".model.safetensors"), "in no .safetensors file of this folder" },
        { MAP("a\\\\model.safetensors"), "in no .safetensors file of this folder" },
        { MAP("config.json"), "in no .safetensors file of this folder" },
        { MAP(".safetensors"), "in no .safetensors file of this folder" },
        { MAP(""), "in no .safetensors file of this folder" },
        { "{\"weight_map\":{\"model.norm.weight\":1}}", "in no .safetensors file of this folder" },
        { "{\"weight_map\":{}}", "has no weight_map" },
        { "{\"weight_map\":[]}", "has no weight_map" },
        { "[]", "has no weight_map" },
        { "{", "model.safetensors.index.json: " },
        { MAP("other.safetensors"), "there is no other.safetensors in it" },
        { "{\"weight_map\":{\"nobody\":\"model.safetensors\"}}", "'nobody' is not in the file" },
    };
    disk d;
    make_disk(&d);
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        fg_weights *weights = NULL;
        fg_error err = { .status = FG_OK };
        put(&d, INDEX, rows[i].index, strlen(rows[i].index));
        cr_assert_eq(fg_weights_open(d.path, &weights, &err), FG_BAD_INPUT, "row %d", (int)i);
        cr_assert(strstr(err.text, rows[i].text) != NULL, "row %d: %s", (int)i, err.text);
    }
    free_disk(&d);
}

Test(folder_files, a_missing_or_odd_file_is_named)
{
    static const char *const names[] = { "config.json", "tokenizer.json", "model.safetensors" };
    for (size_t i = 0; i < 3; i++) {
        for (int odd = 0; odd < 3; odd++) {
            disk d;
            char path[256];
            fg_weights *weights = NULL;
            fg_error err = { .status = FG_OK };
            make_disk(&d);
            drop(&d, names[i]);
            snprintf(path, sizeof path, "%s/%s", d.path, names[i]);
            if (odd == 1) {
                cr_assert_eq(mkfifo(path, 0600), 0); /* nobody waits for its writer */
            } else if (odd == 2) {
                put(&d, names[i], "", 0);
            }
            static const char *const texts[] = { "there is no", "not a regular file", "is empty" };
            cr_assert_eq(fg_weights_open(d.path, &weights, &err), FG_BAD_INPUT);
            cr_assert(strstr(err.text, names[i]) != NULL && strstr(err.text, texts[odd]) != NULL,
                      "%s", err.text);
            free_disk(&d);
        }
    }
}

static bool open_once(void *ctx)
{
    const disk *d = ctx;
    fg_weights *weights = NULL;
    fg_error err;
    fg_status status = fg_weights_open(d->path, &weights, &err);
    cr_assert(status == FG_OK || status == FG_AGAIN, "%s", err.text);
    fg_weights_close(weights);
    return status == FG_OK;
}

Test(folder_files, survives_each_failed_allocation)
{
    disk d;
    make_disk(&d);
    put(&d, INDEX, MAP("model.safetensors"), strlen(MAP("model.safetensors")));
    cr_assert_gt(fg_fault_each(open_once, &d), 50);
    free_disk(&d);
}
