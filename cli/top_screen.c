#include "cli/top_screen.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "common/base/buf.h"

static const char enter_text[] = "\x1b[?1049h\x1b[?25l\x1b[2J";
static const char leave_text[] = "\x1b[0m\x1b[?25h\x1b[?1049l";

/* What a signal handler may touch is static. */
static struct termios found, raw;
static volatile sig_atomic_t is_open;
static int news[2] = { -1, -1 }; /* a byte per signal, so that a wait ends */

/* Nothing can be done about a terminal that does not take it. */
static void write_all(const char *text, size_t length)
{
    while (length > 0) {
        ssize_t count = write(STDOUT_FILENO, text, length);
        if (count < 0 && errno == EAGAIN) {
            struct pollfd out = { .fd = STDOUT_FILENO, .events = POLLOUT };
            if (poll(&out, 1, 1000) <= 0) {
                return;
            }
            continue;
        }
        if (count < 0 && errno != EINTR) {
            return;
        }
        text += count > 0 ? count : 0;
        length -= count > 0 ? (size_t)count : 0;
    }
}

static void enter(void)
{
    tcsetattr(STDIN_FILENO, TCSAFLUSH, &raw);
    write_all(enter_text, sizeof enter_text - 1);
}

static void leave(void)
{
    write_all(leave_text, sizeof leave_text - 1);
    tcsetattr(STDIN_FILENO, TCSAFLUSH, &found);
}

/* tcsetattr, write, raise and sigaction are safe here. */
static void on_stop(int number)
{
    int saved = errno;
    leave();
    /* With the default action and the signal let through, this line is where the process stops. */
    struct sigaction plain = { .sa_handler = SIG_DFL }, mine;
    sigset_t this;
    sigemptyset(&this);
    sigaddset(&this, number);
    sigaction(number, &plain, &mine);
    raise(number);
    sigprocmask(SIG_UNBLOCK, &this, NULL);
    /* Back: SIGCONT came. */
    sigprocmask(SIG_BLOCK, &this, NULL);
    sigaction(number, &mine, NULL);
    if (is_open) {
        enter();
    }
    if (write(news[1], "r", 1) < 0) {
        /* the pipe is full: there is news enough */
    }
    errno = saved;
}

static void on_signal(int number)
{
    int saved = errno;
    if (write(news[1], number == SIGWINCH ? "r" : "e", 1) < 0) {
        /* likewise */
    }
    errno = saved;
}

bool fg_top_screen_possible(void)
{
    return isatty(STDIN_FILENO) == 1 && isatty(STDOUT_FILENO) == 1;
}

static void set_handlers(void (*normal)(int), void (*stop)(int))
{
    static const int normals[] = { SIGWINCH, SIGINT, SIGTERM, SIGHUP };
    struct sigaction action = { .sa_handler = normal };
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof normals / sizeof normals[0]; i++) {
        sigaction(normals[i], &action, NULL);
    }
    action.sa_handler = stop;
    sigaction(SIGTSTP, &action, NULL);
}

fg_status fg_top_screen_open(fg_error *err)
{
    if (tcgetattr(STDIN_FILENO, &found) != 0 || pipe2(news, O_NONBLOCK | O_CLOEXEC) != 0) {
        return fg_fail(err, FG_BROKEN, "the terminal: %s", strerror(errno));
    }
    raw = found;
    raw.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
    raw.c_cc[VMIN] = 0;
    raw.c_cc[VTIME] = 0;
    is_open = 1;
    set_handlers(on_signal, on_stop);
    enter();
    return FG_OK;
}

void fg_top_screen_close(void)
{
    if (!is_open) {
        return;
    }
    is_open = 0;
    leave();
    set_handlers(SIG_DFL, SIG_DFL);
    close(news[0]);
    close(news[1]);
    news[0] = news[1] = -1;
}

void fg_top_screen_size(uint32_t *width_out, uint32_t *height_out)
{
    struct winsize size;
    bool known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 && size.ws_row > 0;
    *width_out = known ? size.ws_col : 80;
    *height_out = known ? size.ws_row : 24;
}

/* Every line is put in its place and cleared to its end, so that nothing flickers or is left over; and
 * no line ends the screen, so that nothing scrolls. */
void fg_top_screen_show(const char *lines, size_t length)
{
    fg_buf out;
    fg_buf_init(&out, 0);
    fg_buf_puts(&out, "\x1b[H");
    bool first = true;
    for (const char *at = lines, *end = lines + length; at < end;) {
        const char *stop = memchr(at, '\n', (size_t)(end - at));
        size_t count = (size_t)((stop == NULL ? end : stop) - at);
        fg_buf_puts(&out, first ? "\x1b[7m" : "\r\n");
        fg_buf_append(&out, at, count);
        fg_buf_puts(&out, first ? "\x1b[0m\x1b[K" : "\x1b[K");
        first = false;
        at += count + 1;
    }
    fg_buf_puts(&out, "\x1b[J");
    if (!out.failed) {
        write_all(out.data, out.size);
    }
    fg_buf_deinit(&out);
}

fg_top_event fg_top_screen_wait(uint32_t wait_ms, char *key_out)
{
    struct pollfd from[2] = { { .fd = STDIN_FILENO, .events = POLLIN },
                              { .fd = news[0], .events = POLLIN } };
    int ready = poll(from, 2, (int)wait_ms);
    if (ready < 0 && errno != EINTR) {
        return FG_TOP_END;
    }
    fg_top_event event = FG_TOP_NOTHING;
    char byte;
    while (read(news[0], &byte, 1) == 1) {
        if (byte == 'e') {
            return FG_TOP_END;
        }
        event = FG_TOP_RESIZED;
    }
    if (event != FG_TOP_NOTHING || ready <= 0) {
        return event;
    }
    if ((from[0].revents & (POLLHUP | POLLERR | POLLNVAL)) != 0) {
        return FG_TOP_END;
    }
    if ((from[0].revents & POLLIN) != 0) {
        return read(STDIN_FILENO, key_out, 1) == 1 ? FG_TOP_KEY : FG_TOP_END;
    }
    return FG_TOP_NOTHING;
}
