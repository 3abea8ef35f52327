/*
 * link_ucx_move - bytes through UCX: puts into shared memory, data by active message, messages.
 */
#include <string.h>

#include "common/base/log.h"
#include "common/base/mem.h"
#include "common/link/link_ucx.h"

/* One data message carries at most this much: a refused one wastes little, and a slow peer does not
 * hold one receive for long. UCX reaches its full rate on loopback from 1 MiB. */
#define DATA_BYTES_MAX (8u * 1024u * 1024u)

/* --- operations --- */

static ucx_op *take_op(ucx_link *link, ucx_peer *peer, fg_ticket *ticket)
{
    ucx_op *op = link->free_ops;
    if (op != NULL) {
        link->free_ops = op->next;
    } else {
        op = fg_mem_alloc(sizeof *op);
        if (op == NULL) {
            return NULL;
        }
    }
    *op = (ucx_op){ .link = link, .peer = peer, .ticket = ticket };
    link->ops_open++;
    return op;
}

void ucx_free_ops(ucx_link *link)
{
    while (link->free_ops != NULL) {
        ucx_op *op = link->free_ops;
        link->free_ops = op->next;
        fg_mem_free(op);
    }
}

/* The end of every operation: gives it back and tells the tickets. */
static void end_op(ucx_op *op, ucs_status_t status)
{
    ucx_link *link = op->link;
    ucx_peer *peer = op->peer;
    fg_ticket *ticket = op->ticket;
    uint32_t put_blocks = op->put_blocks;
    bool rehearses = op->rehearses;
    fg_link_message_free(op->message);
    op->next = link->free_ops;
    link->free_ops = op;
    link->ops_open--;
    link->device_copies -= op->on_device;
    /* While an endpoint is being closed, its operations end as cancelled: nothing new. */
    if (status != UCS_OK && !peer->base.close_started) {
        fg_link_peer_broken(&link->base, &peer->base, ucs_status_string(status));
    }
    if (ticket != NULL) {
        fg_link_op_done(&link->base, ticket, put_blocks);
    }
    if (rehearses && status == UCS_OK) {
        ucx_look_at_way(peer);
    }
}

static void on_sent(void *request, ucs_status_t status, void *user_data)
{
    ucp_request_free(request);
    end_op(user_data, status);
}

static void on_received(void *request, ucs_status_t status, size_t length, void *user_data)
{
    ucp_request_free(request);
    end_op(user_data, status);
}

/* What UCX returned for the operation: ended at once, failed, or to be ended by its callback. */
static void started(ucx_op *op, ucs_status_ptr_t request)
{
    if (request == NULL) {
        end_op(op, UCS_OK);
    } else if (UCS_PTR_IS_ERR(request)) {
        end_op(op, UCS_PTR_STATUS(request));
    }
}

/* Of the host's memory, as messages are: UCX need not ask for each whether it is a device's. */
static ucp_request_param_t send_param(ucx_op *op)
{
    return (ucp_request_param_t){
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                        UCP_OP_ATTR_FIELD_MEMORY_TYPE,
        .cb.send = on_sent,
        .user_data = op,
        .memory_type = UCS_MEMORY_TYPE_HOST,
    };
}

/* Of the arena. */
static void say_memory(const ucx_link *link, ucp_request_param_t *param)
{
    if (!link->is_device) {
        return;
    }
    param->op_attr_mask |= UCP_OP_ATTR_FIELD_MEMORY_TYPE | UCP_OP_ATTR_FIELD_MEMH;
    param->memory_type = UCS_MEMORY_TYPE_CUDA;
    param->memh = link->memory;
}

/* --- sending --- */

static void send_data(ucx_peer *peer, ucx_op *op, const fg_ticket *ticket, uint32_t first_index,
                      uint32_t target_block, const uint8_t *source, size_t size_bytes)
{
    fg_link_wire wire = {
        .kind = FG_LINK_DATA,
        .from = peer->link->base.id,
        .to = peer->base.link_id,
        .ticket = ticket->id,
        .count = op->put_blocks,
        .first = first_index,
        .first_block = target_block,
    };
    fg_link_wire_header(&wire, op->header);
    ucp_request_param_t param = send_param(op);
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_AM_SEND_FLAG_RNDV;
    say_memory(peer->link, &param);
    started(op, ucp_am_send_nbx(peer->ep, UCX_AM_DATA, op->header, sizeof op->header, source,
                                size_bytes, &param));
}

/* Into the peer's arena, by its key. */
static void put(ucx_peer *peer, ucx_op *op, const uint8_t *source, uint32_t target_block,
                size_t size_bytes)
{
    ucx_link *link = peer->link;
    ucp_request_param_t param = send_param(op);
    say_memory(link, &param);
    op->on_device = link->is_device;
    link->device_copies += op->on_device;
    started(op, ucp_put_nbx(peer->ep, source, size_bytes,
                            peer->arena_base + target_block * link->base.block_bytes, peer->key,
                            &param));
}

void ucx_rehearse(ucx_link *link, ucx_peer *peer)
{
    ucx_op *op = take_op(link, peer, NULL);
    if (op != NULL) {
        op->rehearses = true;
        put(peer, op, link->base.arena, peer->base.block_count, link->base.block_bytes);
    }
}

void ucx_put(fg_link *base, fg_ticket *ticket, uint32_t first_index, const uint32_t *source_blocks,
             const uint32_t *target_blocks, uint32_t count)
{
    ucx_link *link = (ucx_link *)base;
    ucx_peer *peer = (ucx_peer *)ticket->peer;
    size_t block_bytes = base->block_bytes;
    uint32_t run_max = count;
    if (peer->key == NULL) {
        run_max = block_bytes >= DATA_BYTES_MAX ? 1 : (uint32_t)(DATA_BYTES_MAX / block_bytes);
    }
    uint32_t run;
    for (uint32_t i = 0; i < count; i += run) {
        run = 1;
        while (run < run_max && i + run < count &&
               source_blocks[i + run] == source_blocks[i] + run &&
               target_blocks[i + run] == target_blocks[i] + run) {
            run++;
        }
        if (peer->base.mute) {
            return; /* broken by an earlier run: the ticket is on its way to on_drained */
        }
        ucx_op *op = take_op(link, peer, ticket);
        if (op == NULL) {
            fg_link_peer_broken(base, &peer->base, "out of memory for a put");
            return;
        }
        op->put_blocks = run;
        base->stats.pushed_runs++;
        ticket->in_flight++;
        peer->base.flight_blocks += run;
        const uint8_t *source = base->arena + source_blocks[i] * block_bytes;
        if (peer->key == NULL) {
            send_data(peer, op, ticket, first_index + i, target_blocks[i], source,
                      run * block_bytes);
            continue;
        }
        put(peer, op, source, target_blocks[i], run * block_bytes);
    }
}

void *ucx_arena(const fg_link *base, const fg_link_peer *base_peer)
{
    const ucx_peer *peer = (const ucx_peer *)base_peer;
    return peer->mapped;
}

void ucx_flush(fg_link *base, fg_ticket *ticket)
{
    ucx_peer *peer = (ucx_peer *)ticket->peer;
    ticket->in_flight++;
    if (peer->key == NULL) {
        /* A rendezvous send ends when the receiver has all of it. */
        fg_link_op_done(base, ticket, 0);
        return;
    }
    ucx_op *op = take_op(peer->link, peer, ticket);
    if (op == NULL) {
        fg_link_peer_broken(base, &peer->base, "out of memory for a flush");
        fg_link_op_done(base, ticket, 0);
        return;
    }
    ucp_request_param_t param = send_param(op);
    started(op, ucp_ep_flush_nbx(peer->ep, &param));
}

void ucx_send(fg_link *base, fg_link_peer *base_peer, fg_link_message *message)
{
    ucx_peer *peer = (ucx_peer *)base_peer;
    ucx_op *op = take_op(peer->link, peer, NULL);
    if (op == NULL) {
        fg_link_message_free(message);
        fg_link_peer_broken(base, base_peer, "out of memory for a message");
        return;
    }
    op->message = message;
    ucp_request_param_t param = send_param(op);
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = UCP_AM_SEND_FLAG_EAGER;
    started(op, ucp_am_send_nbx(peer->ep, UCX_AM_MESSAGE, NULL, 0, message->bytes,
                                message->size_bytes, &param));
}

void ucx_greet(ucx_link *link, ucx_peer *peer)
{
    ucx_op *op = take_op(link, peer, NULL);
    if (op == NULL) {
        return; /* the first push connects, then */
    }
    ucp_request_param_t param = send_param(op);
    started(op, ucp_am_send_nbx(peer->ep, UCX_AM_GREETING, NULL, 0, NULL, 0, &param));
}

/* --- receiving --- */

static ucs_status_t on_greeting(void *arg, const void *header, size_t header_length, void *data,
                                size_t length, const ucp_am_recv_param_t *param)
{
    return UCS_OK;
}

static ucs_status_t on_message(void *arg, const void *header, size_t header_length, void *data,
                               size_t length, const ucp_am_recv_param_t *param)
{
    ucx_link *link = arg;
    if (header_length != 0 || (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0) {
        link->base.stats.stale_dropped++;
        return UCS_OK;
    }
    fg_link_got_message(&link->base, data, length);
    return UCS_OK;
}

static ucs_status_t on_data(void *arg, const void *header, size_t header_length, void *data,
                            size_t length, const ucp_am_recv_param_t *param)
{
    ucx_link *link = arg;
    uint8_t *target;
    fg_ticket *ticket = fg_link_got_data(&link->base, header, header_length, length, &target);
    if (ticket == NULL) {
        return UCS_OK; /* UCX drops it; the sender's send ends as usual */
    }
    if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0) {
        if (link->is_device) { /* whoever sends so is none of ours */
            link->base.stats.stale_dropped++;
        } else {
            memcpy(target, data, length);
        }
        fg_link_op_done(&link->base, ticket, 0);
        return UCS_OK;
    }
    ucx_peer *peer = (ucx_peer *)ticket->peer;
    ucx_op *op = take_op(link, peer, ticket);
    if (op == NULL) {
        fg_link_peer_broken(&link->base, &peer->base, "out of memory for a receive");
        fg_link_op_done(&link->base, ticket, 0);
        return UCS_OK;
    }
    ucp_request_param_t receive = {
        .op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA,
        .cb.recv_am = on_received,
        .user_data = op,
    };
    if (link->is_device) {
        receive.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMORY_TYPE;
        receive.memory_type = UCS_MEMORY_TYPE_CUDA;
    }
    started(op, ucp_am_recv_data_nbx(link->worker, data, target, length, &receive));
    return UCS_OK;
}

fg_status ucx_listen(ucx_link *link, fg_error *err)
{
    const struct {
        unsigned id;
        ucp_am_recv_callback_t fn;
    } handlers[] = { { UCX_AM_DATA, on_data },
                     { UCX_AM_MESSAGE, on_message },
                     { UCX_AM_GREETING, on_greeting } };
    for (size_t i = 0; i < sizeof handlers / sizeof handlers[0]; i++) {
        ucp_am_handler_param_t param = {
            .field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                          UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG,
            .id = handlers[i].id,
            .flags = UCP_AM_FLAG_WHOLE_MSG,
            .cb = handlers[i].fn,
            .arg = link,
        };
        fg_status status =
            ucx_status(ucp_worker_set_am_recv_handler(link->worker, &param), "AM handler", err);
        if (status != FG_OK) {
            return status;
        }
    }
    return FG_OK;
}
