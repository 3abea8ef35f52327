#include "cli/recorder.h"

#include <errno.h>
#include <string.h>

#include "common/base/log.h"

/* A folder that takes no files would be found out by the first crash, which could not say so. The default, where the process
 * was started, is nobody's wish: without it all else goes on. */
static fg_status check_folder(const fg_serve_config *config, const fg_flight *flight, fg_error *err)
{
    if (fg_flight_can_write(flight)) {
        return FG_OK;
    }
    const char *why = strerror(errno);
    if (strcmp(config->flight_dir, ".") != 0) {
        return fg_fail(err, FG_BAD_INPUT, "--flight-dir %s takes no files: %s", config->flight_dir,
                       why);
    }
    fg_warn("serve", "event=no_flight_file why=\"%s\" do=\"name a folder with --flight-dir\"", why);
    return FG_OK;
}

fg_status fg_recorder_open(const fg_serve_config *config, const char *process, uint64_t shape,
                           const void *preface, size_t preface_bytes, fg_flight **flight_out,
                           fg_error *err)
{
    if (config->flight_recorder_mb == 0) {
        *flight_out = NULL;
        return FG_OK;
    }
    fg_flight_options options = { .bytes = (size_t)config->flight_recorder_mb << 20,
                                  .shape = shape,
                                  .process = process,
                                  .directory = config->flight_dir,
                                  .preface = preface,
                                  .preface_bytes = preface_bytes };
    fg_flight *flight;
    fg_status status = fg_flight_create(&options, &flight, err);
    if (status != FG_OK) {
        return status;
    }
    status = check_folder(config, flight, err);
    if (status != FG_OK) {
        fg_flight_destroy(flight);
        return status;
    }
    fg_flight_on_crash(flight);
    *flight_out = flight;
    return FG_OK;
}

void fg_recorder_close(fg_flight *flight)
{
    if (flight != NULL) {
        fg_flight_off_crash(flight);
        fg_flight_destroy(flight);
    }
}

void fg_recorder_write(const fg_flight *flight, const char *who)
{
    if (flight == NULL) {
        fg_info(who, "event=user_signal ignored=yes why=\"--flight-recorder-mb 0\"");
    } else if (fg_flight_write(flight, 0)) {
        fg_info(who, "event=flight_written file=\"%s\"", fg_flight_path(flight));
    } else {
        fg_err(who, "event=flight_not_written file=\"%s\" why=\"%s\"", fg_flight_path(flight),
               strerror(errno));
    }
}
