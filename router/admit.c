#include "router/admit.h"

fg_status fg_admit_offer(const fg_admit_load *load, const fg_admit_limits *limits,
                         uint32_t prompt_tokens)
{
    if (load->queued >= limits->queued_max || load->live >= limits->live_max ||
        load->queued_tokens + prompt_tokens > limits->queued_tokens_max) {
        return FG_AGAIN;
    }
    return FG_OK;
}

uint32_t fg_admit_retry_after(const fg_admit_load *load)
{
    if (load->ended_per_second <= 0.0) {
        return 1;
    }
    /* Half of the queue gone is a fair chance to get in. */
    double seconds = (double)load->queued / 2.0 / load->ended_per_second;
    return seconds < 1.0 ? 1 : seconds > 60.0 ? 60 : (uint32_t)seconds;
}
