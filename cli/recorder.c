#include "cli/recorder.h"

#include <errno.h>
#include <string.h>

#include "common/base/log.h"

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
    fg_status status = fg_flight_create(&options, flight_out, err);
    if (status == FG_OK) {
        fg_flight_on_crash(*flight_out);
    }
    return status;
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
