#include "proto/wire_internal.h"

enum { VARINT = 0, FIXED64 = 1, DELIMITED = 2, FIXED32 = 5 }; /* protobuf wire types */

typedef struct reader {
    const uint8_t *at;
    const uint8_t *end;
} reader;

/* A varint of at most ten bytes; false when it is cut off or longer. */
static bool read_varint(reader *in, uint64_t *value_out)
{
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 70 && in->at < in->end; shift += 7) {
        uint8_t byte = *in->at++;
        value |= shift < 64 ? (uint64_t)(byte & 0x7F) << shift : 0;
        if ((byte & 0x80) == 0) {
            *value_out = value;
            return true;
        }
    }
    return false;
}

/* Steps over one field's value; for a delimited one, `inner_out` is what lies inside. */
static bool skip_value(reader *in, unsigned wire_type, reader *inner_out)
{
    uint64_t length = 0;
    switch (wire_type) {
    case VARINT:
        return read_varint(in, &length);
    case FIXED64:
        length = 8;
        break;
    case FIXED32:
        length = 4;
        break;
    case DELIMITED:
        if (!read_varint(in, &length)) {
            return false;
        }
        break;
    default: /* groups: never written by anyone since 2001 */
        return false;
    }
    if (length > (uint64_t)(in->end - in->at)) {
        return false;
    }
    *inner_out = (reader){ in->at, in->at + length };
    in->at += length;
    return true;
}

/* Recursion follows the descriptor, which has four levels, and never the input. */
static fg_status scan(const ProtobufCMessageDescriptor *descriptor, reader in,
                      uint32_t *field_count, fg_error *err)
{
    uint64_t seen = 0; /* bit per field of the descriptor, all of which have fewer than 64 */
    bool has_body = false;
    while (in.at < in.end) {
        uint64_t tag;
        reader inner = { NULL, NULL };
        if (!read_varint(&in, &tag) || tag > UINT32_MAX || tag >> 3 == 0 ||
            !skip_value(&in, (unsigned)(tag & 7), &inner)) {
            return fg_fail(err, FG_BAD_INPUT, "frame is broken inside %s", descriptor->short_name);
        }
        if (++*field_count > WIRE_FIELDS_MAX) {
            return fg_fail(err, FG_BAD_INPUT, "frame has more than %d fields", WIRE_FIELDS_MAX);
        }
        const ProtobufCFieldDescriptor *field =
            protobuf_c_message_descriptor_get_field(descriptor, (unsigned)(tag >> 3));
        if (field == NULL) {
            continue;
        }
        bool is_body = (field->flags & PROTOBUF_C_FIELD_FLAG_ONEOF) != 0;
        uint64_t bit = (uint64_t)1 << (field - descriptor->fields);
        if ((seen & bit) != 0 || (is_body && has_body)) {
            return fg_fail(err, FG_BAD_INPUT, "field %s.%s is given twice", descriptor->short_name,
                           field->name);
        }
        seen |= bit;
        has_body = has_body || is_body;
        if (field->type == PROTOBUF_C_TYPE_MESSAGE && (tag & 7) == DELIMITED) {
            fg_status status = scan(field->descriptor, inner, field_count, err);
            if (status != FG_OK) {
                return status;
            }
        }
    }
    return FG_OK;
}

fg_status fg_wire_scan(const ProtobufCMessageDescriptor *descriptor, const uint8_t *bytes,
                       size_t size_bytes, fg_error *err)
{
    uint32_t field_count = 0;
    return scan(descriptor, (reader){ bytes, bytes + size_bytes }, &field_count, err);
}
