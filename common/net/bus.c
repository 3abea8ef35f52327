#include "common/net/bus.h"

#include <inttypes.h>

#include "common/base/limits.h"
#include "common/base/log.h"
#include "common/net/bus_internal.h"

fg_status fg_bus_send(fg_bus *bus, uint32_t peer, const void *bytes, size_t size_bytes)
{
    if (size_bytes == 0 || size_bytes > FG_LIMIT_FRAME_BYTES) {
        return FG_BAD_INPUT;
    }
    return bus->ops->send(bus, peer, bytes, size_bytes);
}

void fg_bus_drop(fg_bus *bus, uint32_t peer)
{
    bus->ops->drop(bus, peer);
}

void fg_bus_close(fg_bus *bus)
{
    if (bus != NULL) {
        bus->ops->close(bus);
    }
}

const char *fg_bus_endpoint(const fg_bus *bus)
{
    return bus->ops->endpoint(bus);
}

uint64_t fg_bus_dropped(const fg_bus *bus)
{
    return bus->dropped;
}

bool fg_bus_identity_valid(const void *bytes, size_t size_bytes)
{
    const unsigned char *text = bytes;
    if (size_bytes == 0 || size_bytes > FG_BUS_IDENTITY_MAX) {
        return false;
    }
    for (size_t i = 0; i < size_bytes; i++) {
        if (text[i] <= 0x20 || text[i] >= 0x7F) {
            return false;
        }
    }
    return true;
}

void fg_bus_count_dropped(fg_bus *bus, const char *why)
{
    bus->dropped++;
    if ((bus->dropped & (bus->dropped - 1)) == 0) {
        fg_warn("bus", "frame dropped why=\"%s\" total=%" PRIu64, why, bus->dropped);
    }
}
