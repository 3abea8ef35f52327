/*
 * wire_internal - what the files of this room share. Not for other rooms: it names protobuf-c.
 */
#ifndef FORGE_PROTO_WIRE_INTERNAL_H
#define FORGE_PROTO_WIRE_INTERNAL_H

#include <protobuf-c/protobuf-c.h>

#include "proto/wire.h"

enum {
    WIRE_FIELDS_MAX = 128, /* in one frame, all levels together */
    WIRE_TEXT_MAX = 512,   /* bytes of a reason or an error text */
};

/* Every limit on the content of a message, for both directions: FG_BAD_INPUT names the field. */
fg_status fg_wire_check(const fg_msg *msg, fg_error *err);

/* Reads the frame's outline without allocating: refuses a broken one, too many fields, a field
 * given twice, and two bodies. What passes unpacks into a bounded multiple of its size. */
fg_status fg_wire_scan(const ProtobufCMessageDescriptor *descriptor, const uint8_t *bytes,
                       size_t size_bytes, fg_error *err);

#endif
