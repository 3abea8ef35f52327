#include "cli/client.h"

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <curl/curl.h>

#include "common/base/buf.h"
#include "common/base/mem.h"

enum { CONNECT_S = 10, ANSWER_BYTES_MAX = 64 << 20, NO_PROXY_MAX = 1024 };

typedef struct slot {
    CURL *easy;
    bool busy;
    fg_buf sent, answer;
    void *user;
    char problem[CURL_ERROR_SIZE];
} slot;

struct fg_client {
    fg_client_options options;
    CURLM *multi;
    struct curl_slist *headers;
    char no_proxy[NO_PROXY_MAX];
    slot *slots;
};

static size_t on_bytes(char *bytes, size_t size, size_t count, void *user)
{
    slot *s = user;
    return fg_buf_append(&s->answer, bytes, size * count) ? size * count : 0;
}

/* A proxy of the environment is for the world outside; this machine is reached directly. */
static void set_no_proxy(fg_client *client)
{
    const char *given = getenv("no_proxy");
    given = given == NULL ? getenv("NO_PROXY") : given;
    snprintf(client->no_proxy, sizeof client->no_proxy, "127.0.0.1,localhost,::1%s%s",
             given == NULL ? "" : ",", given == NULL ? "" : given);
}

static bool open_slot(fg_client *client, slot *s)
{
    fg_buf_init(&s->answer, ANSWER_BYTES_MAX);
    s->easy = curl_easy_init();
    if (s->easy == NULL) {
        return false;
    }
    const struct {
        CURLoption option;
        long value;
    } numbers[] = {
        { CURLOPT_NOSIGNAL, 1 },
        { CURLOPT_CONNECTTIMEOUT, CONNECT_S },
        { CURLOPT_TIMEOUT, (long)client->options.timeout_s },
        { CURLOPT_TCP_KEEPALIVE, 1 },
        { CURLOPT_HTTP_VERSION, CURL_HTTP_VERSION_1_1 },
    };
    bool fine = true;
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        fine = fine && curl_easy_setopt(s->easy, numbers[i].option, numbers[i].value) == CURLE_OK;
    }
    return fine && curl_easy_setopt(s->easy, CURLOPT_PROTOCOLS_STR, "http,https") == CURLE_OK &&
           curl_easy_setopt(s->easy, CURLOPT_NOPROXY, client->no_proxy) == CURLE_OK &&
           curl_easy_setopt(s->easy, CURLOPT_HTTPHEADER, client->headers) == CURLE_OK &&
           curl_easy_setopt(s->easy, CURLOPT_ERRORBUFFER, s->problem) == CURLE_OK &&
           curl_easy_setopt(s->easy, CURLOPT_WRITEFUNCTION, on_bytes) == CURLE_OK &&
           curl_easy_setopt(s->easy, CURLOPT_WRITEDATA, s) == CURLE_OK &&
           curl_easy_setopt(s->easy, CURLOPT_PRIVATE, s) == CURLE_OK;
}

/* An empty "Expect" keeps libcurl from asking whether a long body is welcome. */
static bool make_headers(fg_client *client)
{
    fg_buf key;
    fg_buf_init(&key, 0);
    if (client->options.api_key != NULL) {
        fg_buf_printf(&key, "Authorization: Bearer %s", client->options.api_key);
    }
    const char *lines[] = { "Content-Type: application/json", "Expect:", key.data };
    bool fine = !key.failed;
    for (size_t i = 0; fine && i < sizeof lines / sizeof lines[0]; i++) {
        struct curl_slist *longer =
            lines[i] == NULL ? client->headers : curl_slist_append(client->headers, lines[i]);
        fine = longer != NULL;
        client->headers = fine ? longer : client->headers;
    }
    fg_buf_deinit(&key);
    return fine;
}

fg_status fg_client_create(const fg_client_options *options, fg_client **client_out, fg_error *err)
{
    fg_client *client = fg_mem_alloc(sizeof *client);
    if (client == NULL) {
        return fg_fail(err, FG_AGAIN, "out of memory for the HTTP client");
    }
    client->options = *options;
    set_no_proxy(client);
    client->slots = fg_mem_array(options->max, sizeof *client->slots);
    bool fine = client->slots != NULL && curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK;
    client->multi = fine ? curl_multi_init() : NULL;
    fine = client->multi != NULL && make_headers(client) &&
           curl_multi_setopt(client->multi, CURLMOPT_MAXCONNECTS, (long)options->max) == CURLM_OK;
    for (uint32_t i = 0; fine && i < options->max; i++) {
        fine = open_slot(client, &client->slots[i]);
    }
    if (!fine) {
        fg_client_destroy(client);
        return fg_fail(err, FG_AGAIN, "out of memory for the HTTP client");
    }
    *client_out = client;
    return FG_OK;
}

void fg_client_destroy(fg_client *client)
{
    if (client == NULL) {
        return;
    }
    for (uint32_t i = 0; client->slots != NULL && i < client->options.max; i++) {
        slot *s = &client->slots[i];
        if (s->busy) {
            curl_multi_remove_handle(client->multi, s->easy);
        }
        curl_easy_cleanup(s->easy);
        fg_buf_deinit(&s->sent);
        fg_buf_deinit(&s->answer);
    }
    curl_multi_cleanup(client->multi);
    curl_slist_free_all(client->headers);
    fg_mem_free(client->slots);
    fg_mem_free(client);
}

static slot *free_slot(fg_client *client)
{
    for (uint32_t i = 0; i < client->options.max; i++) {
        if (!client->slots[i].busy) {
            return &client->slots[i];
        }
    }
    return NULL;
}

fg_status fg_client_send(fg_client *client, const char *url, const char *body, size_t body_bytes,
                         void *user, fg_error *err)
{
    slot *s = free_slot(client);
    if (s == NULL) {
        return fg_fail(err, FG_AGAIN, "%u requests are under way already", client->options.max);
    }
    fg_buf_clear(&s->answer);
    fg_buf_clear(&s->sent);
    s->problem[0] = '\0';
    s->user = user;
    bool fine = fg_buf_append(&s->answer, "", 0) &&
                (body == NULL || fg_buf_append(&s->sent, body, body_bytes)) &&
                curl_easy_setopt(s->easy, CURLOPT_URL, url) == CURLE_OK;
    if (fine && body == NULL) {
        fine = curl_easy_setopt(s->easy, CURLOPT_HTTPGET, 1L) == CURLE_OK;
    } else if (fine) {
        fine = curl_easy_setopt(s->easy, CURLOPT_POST, 1L) == CURLE_OK &&
               curl_easy_setopt(s->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)body_bytes) ==
                   CURLE_OK &&
               curl_easy_setopt(s->easy, CURLOPT_POSTFIELDS, s->sent.data) == CURLE_OK;
    }
    if (!fine || curl_multi_add_handle(client->multi, s->easy) != CURLM_OK) {
        return fg_fail(err, FG_AGAIN, "out of memory for a request");
    }
    s->busy = true;
    return FG_OK;
}

static void end_slot(fg_client *client, slot *s, CURLcode result)
{
    long status = 0;
    curl_off_t retry_after_s = 0;
    struct curl_header *request_id = NULL;
    fg_client_answer answer = { .problem = "", .body = s->answer.data, .request_id = "" };
    if (result == CURLE_OK && curl_easy_getinfo(s->easy, CURLINFO_RESPONSE_CODE, &status) == 0) {
        answer.status = (int)status;
        answer.body_bytes = s->answer.size;
        if (curl_easy_header(s->easy, "x-request-id", 0, CURLH_HEADER, -1, &request_id) ==
            CURLHE_OK) {
            answer.request_id = request_id->value;
        }
        if (curl_easy_getinfo(s->easy, CURLINFO_RETRY_AFTER, &retry_after_s) == CURLE_OK &&
            retry_after_s > 0) {
            answer.retry_after_s = retry_after_s < UINT32_MAX ? (uint32_t)retry_after_s : 0;
        }
    } else {
        answer.problem = s->answer.failed     ? "the answer is longer than 64 MiB"
                         : s->problem[0] != 0 ? s->problem
                                              : curl_easy_strerror(result);
    }
    client->options.on_end(client->options.ctx, s->user, &answer);
    /* Only now: removing the handle ends the header's life. */
    curl_multi_remove_handle(client->multi, s->easy);
    s->busy = false;
}

fg_status fg_client_wait(fg_client *client, uint32_t wait_ms, fg_error *err)
{
    int running = 0;
    int left = 0;
    CURLMcode code = curl_multi_perform(client->multi, &running);
    CURLMsg *message = code == CURLM_OK ? curl_multi_info_read(client->multi, &left) : NULL;
    if (code == CURLM_OK && message == NULL) {
        code = curl_multi_poll(client->multi, NULL, 0, (int)(wait_ms & INT_MAX), NULL);
        code = code == CURLM_OK ? curl_multi_perform(client->multi, &running) : code;
        message = code == CURLM_OK ? curl_multi_info_read(client->multi, &left) : NULL;
    }
    for (; message != NULL; message = curl_multi_info_read(client->multi, &left)) {
        slot *s = NULL;
        if (message->msg == CURLMSG_DONE &&
            curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &s) == CURLE_OK) {
            end_slot(client, s, message->data.result);
        }
    }
    return code == CURLM_OK ? FG_OK : fg_fail(err, FG_BROKEN, "%s", curl_multi_strerror(code));
}

const char *fg_client_advice(int status)
{
    switch (status) {
    case 401:
        return ": it wants an API key that it knows, as FORGE_API_KEY or --api-key";
    case 403:
        return ": this API key is for something else";
    default:
        return "";
    }
}

fg_status fg_client_check_url(const char *url, fg_error *err)
{
    char *scheme = NULL;
    CURLU *parsed = curl_url();
    CURLUcode code = parsed == NULL ? CURLUE_OUT_OF_MEMORY
                                    : curl_url_set(parsed, CURLUPART_URL, url, CURLU_GUESS_SCHEME);
    code = code == CURLUE_OK ? curl_url_get(parsed, CURLUPART_SCHEME, &scheme, 0) : code;
    bool fine = code == CURLUE_OK && (strcmp(scheme, "http") == 0 || strcmp(scheme, "https") == 0);
    curl_free(scheme);
    curl_url_cleanup(parsed);
    if (fine) {
        return FG_OK;
    }
    return fg_fail(err, FG_BAD_INPUT, "\"%.200s\" is no address of a server: %s", url,
                   code == CURLUE_OK ? "it must begin with http://" : curl_url_strerror(code));
}
