#include "router/admit.h"

#include <string.h>

#define NS_PER_S 1e9
#define NEVER    ((double)FG_ADMIT_RETRY_MAX_S) /* waiting does not help */

/* ---- bounds ---- */

/* Seconds until `excess` of something has gone at `rate`; 0 when the rate is not known. */
static double drained_in(double excess, double rate)
{
    return rate > 0.0 ? excess / rate : 0.0;
}

/* Seconds until a request finds room beside `used` in `max`; negative: it does now. */
static double room_in(uint64_t used, uint64_t wanted, uint64_t max, double rate)
{
    if (wanted > max) {
        return NEVER;
    }
    return used <= max - wanted ? -1.0 : drained_in((double)(used - (max - wanted)), rate);
}

static double later(double a, double b)
{
    return a > b ? a : b;
}

static double queue_room_in(const fg_admit_request *request, const fg_admit_load *load,
                            const fg_admit_limits *limits)
{
    double requests = room_in(load->queued, 1, limits->queued_max, load->ended_per_second);
    double live = room_in(load->live, 1, limits->live_max, load->ended_per_second);
    double tokens = room_in(load->queued_tokens, request->prompt_tokens, limits->queued_tokens_max,
                            load->prompt_tokens_per_second);
    return later(requests, later(live, tokens));
}

static double tenant_room_in(const fg_admit_request *request, const fg_admit_load *load,
                             const fg_admit_limits *limits)
{
    double share = load->tenant_share > 0.0 && load->tenant_share < 1.0 ? load->tenant_share : 1.0;
    double room = -1.0;
    if (limits->tenant_queued_max > 0) {
        room = room_in(load->tenant_queued, 1, limits->tenant_queued_max,
                       share * load->ended_per_second);
    }
    if (limits->tenant_queued_tokens_max > 0) {
        room = later(room, room_in(load->tenant_queued_tokens, request->prompt_tokens,
                                   limits->tenant_queued_tokens_max,
                                   share * load->prompt_tokens_per_second));
    }
    return room;
}

/* ---- times ---- */

/* Without its wait in the line; or negative when unknown. */
static double bare_ttft_s(const fg_admit_request *request)
{
    if (request->start_ns == FG_ADMIT_UNKNOWN || request->prefill_ns == FG_ADMIT_UNKNOWN) {
        return -1.0;
    }
    return ((double)request->start_ns + (double)request->prefill_ns) / NS_PER_S;
}

/* How long the line, and what the workers have, must shrink until what takes `takes_s` in all, of which
 * `fixed_s` is its own, fits `target_ns`. Negative: it fits now. */
static double fits_in(double takes_s, double fixed_s, uint64_t target_ns)
{
    double target_s = (double)target_ns / NS_PER_S;
    return takes_s <= target_s ? -1.0 : fixed_s > target_s ? NEVER : takes_s - target_s;
}

/* Steps get shorter as answers end: in proportion, at best. */
static double itl_in(const fg_admit_request *request, const fg_admit_load *load)
{
    uint64_t target = request->slo.itl_ns, itl = request->itl_ns;
    if (target == 0 || itl == FG_ADMIT_UNKNOWN || itl <= target) {
        return -1.0;
    }
    double must_end = (double)load->live * (1.0 - (double)target / (double)itl);
    return must_end > 0.0 ? drained_in(must_end, load->ended_per_second) : NEVER;
}

/* Seconds from its first token to its last. */
static double decode_s(const fg_admit_request *request)
{
    uint64_t itl = request->itl_ns == FG_ADMIT_UNKNOWN ? 0 : request->itl_ns;
    return request->output_tokens > 1
               ? (double)(request->output_tokens - 1) * (double)itl / NS_PER_S
               : 0.0;
}

static uint32_t whole_seconds(double seconds)
{
    if (!(seconds > 1.0)) {
        return 1;
    }
    if (seconds >= FG_ADMIT_RETRY_MAX_S) {
        return FG_ADMIT_RETRY_MAX_S;
    }
    uint32_t down = (uint32_t)seconds;
    return down + ((double)down < seconds);
}

void fg_admit_judge(const fg_admit_request *request, const fg_admit_load *load,
                    const fg_admit_limits *limits, fg_admit_verdict *verdict_out)
{
    double ttft = bare_ttft_s(request);
    double own = (double)request->prefill_ns / NS_PER_S;
    bool known = ttft >= 0.0;
    ttft += drained_in((double)load->tokens_ahead, load->prompt_tokens_per_second);
    bool has_target = known && request->slo.ttft_ns > 0;
    bool has_deadline = known && request->deadline_ns > 0;
    double decode = decode_s(request);
    const double ins[] = {
        [FG_ADMIT_OK] = -1.0,
        [FG_ADMIT_QUEUE_FULL] = queue_room_in(request, load, limits),
        [FG_ADMIT_TENANT_CAP] = tenant_room_in(request, load, limits),
        [FG_ADMIT_TTFT] = has_target ? fits_in(ttft, own, request->slo.ttft_ns) : -1.0,
        [FG_ADMIT_ITL] = itl_in(request, load),
        [FG_ADMIT_DEADLINE] =
            has_deadline ? fits_in(ttft + decode, own + decode, request->deadline_ns) : -1.0,
    };
    fg_admit_verdict verdict = { .reason = FG_ADMIT_OK, .ttft_ns = FG_ADMIT_UNKNOWN };
    double last = -1.0;
    for (uint32_t reason = FG_ADMIT_QUEUE_FULL; reason <= FG_ADMIT_DEADLINE; reason++) {
        if (ins[reason] >= 0.0 && verdict.reason == FG_ADMIT_OK) {
            verdict.reason = (fg_admit_reason)reason;
        }
        last = later(last, ins[reason]);
    }
    if (verdict.reason != FG_ADMIT_OK) {
        verdict.retry_after_s = whole_seconds(last);
    }
    if (known && ttft < 1e9) {
        verdict.ttft_ns = (uint64_t)(ttft * NS_PER_S);
    }
    *verdict_out = verdict;
}

uint32_t fg_admit_retry_s(const fg_admit_load *load, const fg_admit_limits *limits)
{
    const fg_admit_request smallest = { .prompt_tokens = 1 };
    return whole_seconds(queue_room_in(&smallest, load, limits));
}

const char *fg_admit_reason_text(fg_admit_reason reason)
{
    switch (reason) {
    case FG_ADMIT_QUEUE_FULL:
        return "the queue is full";
    case FG_ADMIT_TENANT_CAP:
        return "this user has as much in the queue as one user may";
    case FG_ADMIT_TTFT:
        return "the first token would come later than its class promises";
    case FG_ADMIT_ITL:
        return "tokens would come slower than its class promises";
    case FG_ADMIT_DEADLINE:
        return "it would not be done by its deadline";
    default:
        return "";
    }
}

const fg_admit_slo *fg_admit_find_class(const fg_admit_class *classes, size_t count,
                                        const char *name)
{
    static const fg_admit_slo none = { 0, 0 };
    if (name == NULL || name[0] == '\0' || strcmp(name, "none") == 0) {
        return &none;
    }
    for (size_t i = 0; i < count; i++) {
        if (strcmp(classes[i].name, name) == 0) {
            return &classes[i].slo;
        }
    }
    return NULL;
}

/* The last moment at which what takes `takes_ns` may begin; 1 rather than 0, which means never. */
static uint64_t last_start(uint64_t arrived_ns, uint64_t within_ns, double takes_ns)
{
    double spare = (double)within_ns - takes_ns;
    if (spare >= 0x1p64) {
        return UINT64_MAX; /* as a double, the longest of times is one more than it is */
    }
    uint64_t at = spare > 0.0 ? arrived_ns + (uint64_t)spare : arrived_ns;
    return at < arrived_ns ? UINT64_MAX : at > 0 ? at : 1;
}

uint64_t fg_admit_give_up_ns(const fg_admit_request *request, uint64_t arrived_ns)
{
    uint64_t first = 0;
    double prefill = request->prefill_ns == FG_ADMIT_UNKNOWN ? 0.0 : (double)request->prefill_ns;
    if (request->slo.ttft_ns > 0) {
        first = last_start(arrived_ns, request->slo.ttft_ns, prefill);
    }
    if (request->deadline_ns > 0) {
        double takes = prefill + decode_s(request) * NS_PER_S;
        uint64_t at = last_start(arrived_ns, request->deadline_ns, takes);
        first = first == 0 || at < first ? at : first;
    }
    return first;
}

/* ---- late reservation ---- */

fg_admit_move fg_admit_hold(const fg_admit_times *times, uint64_t *again_ns_out)
{
    *again_ns_out = 0;
    if (times->decode_free_ns > 0) {
        *again_ns_out = times->decode_free_ns == FG_ADMIT_UNKNOWN ? 0 : times->decode_free_ns;
        return FG_ADMIT_HOLD_DECODE;
    }
    if (times->unsplit || times->ample || times->prefill_free_ns == FG_ADMIT_UNKNOWN ||
        times->prefill_free_ns <= times->lead_ns || times->held_ns >= times->held_max_ns) {
        return FG_ADMIT_PLACE;
    }
    uint64_t until_lead = times->prefill_free_ns - times->lead_ns;
    uint64_t may_hold = times->held_max_ns - times->held_ns;
    *again_ns_out = until_lead < may_hold ? until_lead : may_hold;
    return FG_ADMIT_HOLD_PREFILL;
}
