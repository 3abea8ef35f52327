#include "common/engine/weight_store.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/base/team.h"
#include "common/engine/weight_cache.h"

/* "auto" keeps no file for less: packing it takes a tenth of a second. */
#define WORTH_A_FILE_BYTES (32ull << 20)
/* Longer than packing the largest model that a host of this kind serves. */
enum { WAIT_MS = 120 * 1000, PROGRESS_MS = 1000 };

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 /* Linux 5.14 */
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1 */
#endif

struct fg_weight_store {
    uint64_t *offsets; /* [source_count] */
    uint32_t source_count;
    uint8_t *data;
    bool own; /* from fg_mem_map */
    fg_weight_report report;
};

/* What opening works with. */
typedef struct opening {
    const fg_weight_store_options *options;
    fg_panel_plan plan;
    fg_panel_model model;
    const fg_weights_file *file;
    fg_team *team;
    fg_clock clock;
    fg_weight_store *store;
} opening;

/* One run of the team over all pieces. */
typedef struct work {
    opening *open;
    _Atomic bool failed;
    _Atomic uint32_t done;
    /* Filling: scratch of each member, a piece's bytes first; where the pieces go. */
    uint8_t *scratch;
    size_t scratch_stride;
    uint8_t *target;         /* NULL: into a file */
    fg_cache_writer *writer; /* with digests */
    uint64_t *digests;
    fg_error *errors; /* one per member */
    /* Checking. */
    const uint8_t *data;
    const uint64_t *wanted;
    uint64_t started_ns, spoke_ns;
} work;

static uint64_t now_ns(const opening *open)
{
    return fg_clock_now_ns(&open->clock);
}

/* ---- packing ---- */

static void speak(work *w)
{
    opening *open = w->open;
    uint64_t total = open->plan.data_bytes;
    uint64_t done = (uint64_t)atomic_load(&w->done) * FG_PIECE_BYTES;
    done = done < total ? done : total;
    if (open->options->on_progress != NULL) {
        open->options->on_progress(open->options->ctx, done, total);
    }
    uint64_t now = now_ns(open);
    if (now - w->spoke_ns >= PROGRESS_MS * 1000000ull) {
        w->spoke_ns = now;
        fg_info("weights", "event=packing mib=%llu of=%llu seconds=%.1f",
                (unsigned long long)(done >> 20), (unsigned long long)(total >> 20),
                (double)(now - w->started_ns) / 1e9);
    }
}

static void fill_piece(void *ctx, uint32_t piece, uint32_t member)
{
    work *w = ctx;
    const fg_panel_plan *plan = &w->open->plan;
    if (atomic_load(&w->failed)) {
        return;
    }
    uint8_t *scratch = w->scratch + member * w->scratch_stride;
    uint64_t at = (uint64_t)piece * FG_PIECE_BYTES;
    size_t size = fg_panel_piece_bytes(plan, piece);
    if (w->target != NULL) {
        fg_panel_plan_fill(plan, piece, scratch, w->target + at);
    } else {
        uint8_t *bytes = scratch + w->scratch_stride - FG_PIECE_BYTES;
        fg_panel_plan_fill(plan, piece, scratch, bytes);
        w->digests[piece] = fg_hash64(bytes, size, 0);
        if (fg_cache_write(w->writer, plan->data_offset + at, bytes, size, &w->errors[member]) !=
            FG_OK) {
            atomic_store(&w->failed, true);
        }
    }
    atomic_fetch_add(&w->done, 1);
    if (member == 0) {
        speak(w);
    }
}

/* Packs everything: into w->target, or through w->writer. FG_BAD_INPUT when it could not be written. */
static fg_status fill(work *w, fg_error *err)
{
    opening *open = w->open;
    uint32_t members = fg_team_size(open->team);
    size_t panel = (open->plan.scratch_bytes + 4095) & ~(size_t)4095;
    w->scratch_stride = panel + (w->target == NULL ? FG_PIECE_BYTES : 0);
    w->scratch = fg_mem_map(w->scratch_stride * members);
    w->errors = fg_mem_array(members, sizeof *w->errors);
    w->started_ns = w->spoke_ns = now_ns(open);
    fg_status status = FG_OK;
    if (w->scratch == NULL || w->errors == NULL) {
        status = fg_fail(err, FG_AGAIN, "out of memory for packing weights");
    } else {
        fg_team_for(open->team, open->plan.piece_count, fill_piece, w);
    }
    for (uint32_t i = 0; w->errors != NULL && i < members && status == FG_OK; i++) {
        if (w->errors[i].text[0] != '\0') {
            status = fg_fail(err, FG_BAD_INPUT, "%s", w->errors[i].text);
        }
    }
    fg_mem_free(w->errors);
    fg_mem_unmap(w->scratch, w->scratch_stride * members);
    return status;
}

static fg_status pack_in_memory(opening *open, fg_error *err)
{
    fg_weight_store *store = open->store;
    uint64_t from = now_ns(open);
    store->data = fg_mem_map(open->plan.data_bytes);
    if (store->data == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for %llu MiB of packed weights",
                       (unsigned long long)(open->plan.data_bytes >> 20));
    }
    store->own = true;
    work w = { .open = open, .target = store->data };
    fg_status status = fill(&w, err);
    store->report.origin = FG_WEIGHTS_PACKED;
    store->report.pack_ns = now_ns(open) - from;
    return status;
}

/* ---- a sidecar that is there ---- */

static void check_piece(void *ctx, uint32_t piece, uint32_t member)
{
    work *w = ctx;
    size_t size = fg_panel_piece_bytes(&w->open->plan, piece);
    const uint8_t *bytes = w->data + (uint64_t)piece * FG_PIECE_BYTES;
    /* Where this kernel cannot, the reading below brings the pages. An error here is one that would be a
     * SIGBUS there. */
    if (madvise((void *)(uintptr_t)bytes, size, MADV_POPULATE_READ) != 0 && errno == EFAULT) {
        atomic_store(&w->failed, true);
    }
    if (!atomic_load(&w->failed) && fg_hash64(bytes, size, 0) != w->wanted[piece]) {
        atomic_store(&w->failed, true);
    }
}

/* Maps at an address that huge pages can be mapped at; not every file system sees to that. */
static void *map_aligned(int fd, off_t offset, size_t size_bytes)
{
    size_t room_bytes = size_bytes + FG_PIECE_BYTES;
    uint8_t *room =
        mmap(NULL, room_bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (room == MAP_FAILED) {
        return MAP_FAILED;
    }
    uint8_t *at = room + (FG_PIECE_BYTES - (uintptr_t)room % FG_PIECE_BYTES) % FG_PIECE_BYTES;
    void *data = mmap(at, size_bytes, PROT_READ, MAP_SHARED | MAP_FIXED, fd, offset);
    if (data == MAP_FAILED) {
        munmap(room, room_bytes);
        return MAP_FAILED;
    }
    /* What is left over on both sides; the mapping ends in the middle of a page. */
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    uint8_t *end = at + (size_bytes + page - 1) / page * page;
    if (at > room) {
        munmap(room, (size_t)(at - room));
    }
    munmap(end, (size_t)(room + room_bytes - end));
    return data;
}

static fg_status map_file(opening *open, int fd, fg_error *err)
{
    size_t size = open->plan.data_bytes;
    void *data = map_aligned(fd, (off_t)open->plan.data_offset, size);
    if (data == MAP_FAILED) {
        return fg_fail(err, FG_BAD_INPUT, "cannot be mapped: %s", strerror(errno));
    }
    /* A file system that can will keep it in huge pages, which all processes share. */
    madvise(data, size, MADV_HUGEPAGE);
    open->store->data = data;
    return FG_OK;
}

static void unmap_file(opening *open)
{
    munmap(open->store->data, open->plan.data_bytes);
    open->store->data = NULL;
}

/* Maps the sidecar at `path` and checks every byte. FG_AGAIN: there is none. */
static fg_status use_file(opening *open, const char *path, fg_error *err)
{
    uint64_t from = now_ns(open);
    int fd;
    void *header;
    work w = { .open = open };
    fg_status status = fg_cache_open(path, &open->plan, &open->model, open->file->owner, &fd,
                                     &header, &w.wanted, err);
    if (status != FG_OK) {
        return status;
    }
    status = map_file(open, fd, err);
    if (status == FG_OK) {
        w.data = open->store->data;
        fg_team_for(open->team, open->plan.piece_count, check_piece, &w);
        if (atomic_load(&w.failed)) {
            status = fg_fail(err, FG_BAD_INPUT, "is damaged");
            unmap_file(open);
        }
    }
    fg_mem_free(header);
    close(fd);
    open->store->report.check_ns += now_ns(open) - from;
    if (status == FG_OK) {
        open->store->report.origin = FG_WEIGHTS_MAPPED;
        snprintf(open->store->report.path, sizeof open->store->report.path, "%s", path);
    }
    return status;
}

/* ---- a new sidecar ---- */

static fg_status write_all(opening *open, fg_cache_writer *writer, fg_error *err)
{
    const fg_panel_plan *plan = &open->plan;
    work w = { .open = open, .writer = writer };
    void *header = fg_mem_alloc(plan->header_bytes);
    w.digests = fg_mem_array(plan->piece_count, sizeof *w.digests);
    fg_status status = header == NULL || w.digests == NULL
                           ? fg_fail(err, FG_AGAIN, "out of memory for packing weights")
                           : fill(&w, err);
    if (status == FG_OK) {
        fg_panel_header_make(plan, &open->model, w.digests, header);
        status = fg_cache_write(writer, 0, header, plan->header_bytes, err);
    }
    fg_mem_free(w.digests);
    fg_mem_free(header);
    return status;
}

static fg_status make_file(opening *open, const char *path, fg_error *err)
{
    fg_weight_report *report = &open->store->report;
    uint32_t wait_ms = open->options->wait_ms != 0 ? open->options->wait_ms : WAIT_MS;
    fg_cache_writer writer;
    fg_status status = fg_cache_begin(path, &open->plan, open->file->mode, wait_ms, &writer, err);
    if (status != FG_OK) {
        return status;
    }
    if (writer.waited && use_file(open, path, err) == FG_OK) {
        fg_cache_end(&writer, false);
        return FG_OK;
    }
    uint64_t from = now_ns(open);
    status = write_all(open, &writer, err);
    uint64_t written = now_ns(open);
    if (status == FG_OK) {
        status = fg_cache_publish(&writer, err);
    }
    bool published = status == FG_OK;
    report->pack_ns += written - from;
    report->sync_ns = now_ns(open) - written;
    if (published) {
        status = map_file(open, writer.fd, err);
    }
    if (status == FG_OK) {
        /* In shared memory (a directory on tmpfs) huge pages come only when asked for so, once for all
         * processes; elsewhere this is refused at once. */
        madvise(open->store->data, open->plan.data_bytes, MADV_COLLAPSE);
        madvise(open->store->data, open->plan.data_bytes, MADV_POPULATE_READ);
        report->origin = FG_WEIGHTS_MADE;
        snprintf(report->path, sizeof report->path, "%s", path);
    }
    fg_cache_end(&writer, published);
    return status;
}

/* ---- choosing ---- */

/* One line: which file was refused (path NULL: none was), and why none could be made (NULL: one was). */
static void warn_of(fg_weight_store *store, const char *path, const fg_error *refused,
                    const fg_error *unwritten)
{
    fg_weight_report *report = &store->report;
    if (unwritten == NULL) {
        snprintf(report->warning, sizeof report->warning, "%s %s: it was made again", path,
                 refused->text);
        fg_warn("weights", "event=sidecar_rebuilt why=\"%s\"", report->warning);
        return;
    }
    if (path == NULL) {
        snprintf(report->warning, sizeof report->warning, "%s", unwritten->text);
    } else {
        snprintf(report->warning, sizeof report->warning, "%s %s; %s", path, refused->text,
                 unwritten->text);
    }
    fg_warn("weights",
            "event=no_sidecar why=\"%s\" effect=\"every start packs again, in memory of its own\" "
            "do=\"give --weights-cache DIR, or off\"",
            report->warning);
}

static fg_status open_cached(opening *open, const char *directory)
{
    fg_cache_places places;
    fg_error refused = { 0 }, unwritten = { .text = "no place for it has a usable name" };
    const char *refused_path = NULL;
    fg_cache_places_find(open->file, &open->model, directory, &places);
    for (uint32_t i = 0; i < places.count; i++) {
        fg_error cause = { 0 };
        fg_status status = use_file(open, places.paths[i], &cause);
        if (status == FG_OK) {
            return FG_OK;
        }
        if (status != FG_AGAIN && refused_path == NULL) {
            refused = cause;
            refused_path = places.paths[i];
        }
    }
    for (uint32_t i = 0; i < places.count; i++) {
        if (make_file(open, places.paths[i], &unwritten) == FG_OK) {
            if (refused_path != NULL) {
                warn_of(open->store, refused_path, &refused, NULL);
            }
            return FG_OK;
        }
    }
    warn_of(open->store, refused_path, &refused, &unwritten);
    return FG_AGAIN;
}

static fg_status open_somehow(opening *open, fg_error *err)
{
    const char *cache = open->options->cache;
    const fg_weights *weights = open->options->weights;
    bool automatic = strcmp(cache, "auto") == 0;
    open->file = weights == NULL ? NULL : fg_weights_file_of(weights);
    bool wanted = open->file != NULL && strcmp(cache, "off") != 0 &&
                  !(automatic && open->plan.data_bytes < WORTH_A_FILE_BYTES);
    if (wanted) {
        open->model = (fg_panel_model){ .size_bytes = open->file->size_bytes,
                                        .modified_ns = open->file->modified_ns,
                                        .fingerprint = open->options->fingerprint != NULL
                                                           ? *open->options->fingerprint
                                                           : fg_weights_fingerprint(weights) };
        if (open_cached(open, automatic ? NULL : cache) == FG_OK) {
            return FG_OK;
        }
    }
    if (open->options->only_file) {
        return fg_fail(err, FG_CANCELLED, "no file of packed weights is kept");
    }
    return pack_in_memory(open, err);
}

/* ---- the page table, asked ---- */

static uint64_t huge_bytes_at(const void *data, uint64_t size_bytes)
{
    FILE *file = fopen("/proc/self/smaps", "re");
    char line[256];
    unsigned long begin = 0, end = 0, from, to;
    unsigned long long kib, total = 0;
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "%lx-%lx ", &from, &to) == 2) {
            begin = from;
            end = to;
        } else if (begin < (uintptr_t)data + size_bytes && end > (uintptr_t)data &&
                   (sscanf(line, "AnonHugePages: %llu kB", &kib) == 1 ||
                    sscanf(line, "ShmemPmdMapped: %llu kB", &kib) == 1 ||
                    sscanf(line, "FilePmdMapped: %llu kB", &kib) == 1)) {
            total += kib * 1024;
        }
    }
    if (file != NULL) {
        fclose(file);
    }
    return total < size_bytes ? total : size_bytes;
}

/* ---- open, close ---- */

fg_status fg_weight_store_open(const fg_weight_store_options *options,
                               const fg_panel_source *sources, uint32_t count,
                               fg_weight_store **store_out, fg_error *err)
{
    FG_ASSERT(count > 0, "a model has matrices");
    opening open = { .options = options, .clock = fg_clock_real() };
    fg_weight_store *store = fg_mem_alloc(sizeof *store);
    if (store == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for the table of weights");
    }
    open.store = store;
    fg_status status = fg_panel_plan_init(&open.plan, sources, count, err);
    if (status != FG_OK) {
        goto free_store;
    }
    store->report.bytes = open.plan.data_bytes;
    store->source_count = count;
    status = fg_team_create(options->thread_count, NULL, &open.team, err);
    if (status != FG_OK) {
        goto free_plan;
    }
    status = open_somehow(&open, err);
    fg_team_destroy(open.team);
    store->offsets = open.plan.offsets;
    if (status != FG_OK) {
        fg_weight_store_close(store);
        return status;
    }
    store->report.huge_bytes = huge_bytes_at(store->data, store->report.bytes);
    *store_out = store;
    return FG_OK;

free_plan:
    fg_panel_plan_deinit(&open.plan);
free_store:
    fg_mem_free(store);
    return status;
}

void fg_weight_store_close(fg_weight_store *store)
{
    if (store == NULL) {
        return;
    }
    if (store->own) {
        fg_mem_unmap(store->data, store->report.bytes);
    } else if (store->data != NULL) {
        munmap(store->data, store->report.bytes);
    }
    fg_mem_free(store->offsets);
    fg_mem_free(store);
}

const void *fg_weight_store_panels(const fg_weight_store *store, uint32_t index)
{
    FG_ASSERT(index < store->source_count);
    return store->data + store->offsets[index];
}

const fg_weight_report *fg_weight_store_report(const fg_weight_store *store)
{
    return &store->report;
}
