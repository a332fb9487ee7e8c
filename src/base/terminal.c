/* stderr: lines that stay, and below them one live line that is overwritten. Nobody else moves the cursor.
 *
 * The live line is written as "\r", its text, "\033[J", "\r": the cursor rests on its first column, so that whoever
 * comes next overwrites it whole, also where the terminal became narrower meanwhile and wrapped it. */
#include "base/base_internal.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/uio.h>
#include <unistd.h>

enum { USUAL_COLUMNS = 80, LINE_BYTES = 1024, LIVE_MS = 100, WIDE_FROM = 0x1100 };
enum { BLOCKS_FROM = 0x2580, BLOCKS_TO = 0x259f }; /* what curves are drawn with: one column */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_bool shown; /* there is a live line */
static uint64_t drawn_ns; /* when it was drawn last */
static const char WIPE[] = "\r\033[J";

/* Whatever stderr is, there is nobody to complain to if it fails. */
static void put(const char *text, size_t n) {
    while (n > 0) {
        ssize_t done = write(STDERR_FILENO, text, n);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) return;
        text += done;
        n -= (size_t)done;
    }
}

/* In one call if the system takes it at once, so that lines of several ranks do not mix. */
static void put_after_wipe(const char *text, size_t n) {
    size_t wipe = atomic_exchange(&shown, false) ? sizeof WIPE - 1 : 0;
    struct iovec part[] = {{(void *)(uintptr_t)WIPE, wipe}, {(void *)(uintptr_t)text, n}};
    ssize_t done;
    fflush(stderr); /* what others printed in pieces comes first */
    do done = writev(STDERR_FILENO, part, 2);
    while (done < 0 && errno == EINTR);
    if (done < 0) return;
    if ((size_t)done < wipe) put(WIPE + done, wipe - (size_t)done);
    size_t of_text = (size_t)done > wipe ? (size_t)done - wipe : 0;
    put(text + of_text, n - of_text);
}

void tm_say_text(const char *text, size_t n) {
    pthread_mutex_lock(&lock);
    put_after_wipe(text, n);
    pthread_mutex_unlock(&lock);
}

void tm_say(const char *format, ...) {
    char line[4096], *text = line;
    va_list ap;
    va_start(ap, format);
    int n = vsnprintf(line, sizeof line, format, ap);
    va_end(ap);
    if (n >= (int)sizeof line && (text = tm_malloc((size_t)n + 1))) {
        va_start(ap, format);
        n = vsnprintf(text, (size_t)n + 1, format, ap);
        va_end(ap);
    }
    if (n > 0) tm_say_text(text ? text : line, text ? (size_t)n : sizeof line - 1);
    if (text != line) tm_free(text);
}

void tm_say_in_handler(const char *line) {
    int keep = errno;
    if (atomic_exchange(&shown, false)) put(WIPE, sizeof WIPE - 1);
    put(line, strlen(line));
    errno = keep;
}

bool tm_live_possible(void) {
    const char *term = getenv("TERM");
    return isatty(STDERR_FILENO) == 1 && !(term && strcmp(term, "dumb") == 0);
}

/* As the C library decides it, without asking it to change what it does. */
bool tm_terminal_is_utf8(void) {
    static const char *const names[] = {"LC_ALL", "LC_CTYPE", "LANG"};
    const char *value = NULL;
    for (size_t i = 0; i < TM_COUNT(names) && !(value && *value); i++) value = getenv(names[i]);
    return value && (strcasestr(value, "UTF-8") || strcasestr(value, "UTF8"));
}

unsigned tm_live_columns(void) {
    struct winsize size = {0};
    if (ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
    const char *columns = getenv("COLUMNS");
    int n = columns ? atoi(columns) : 0;
    return n > 0 ? (unsigned)n : USUAL_COLUMNS;
}

/* Columns of the character at `text`, and its bytes; what is no UTF-8 is one byte of one column. The scripts that are
 * two columns wide begin at U+1100: what lies above and is narrow is left a column too many, never too few. */
static unsigned columns_of(const char *text, size_t n, size_t *bytes) {
    uint32_t c = 0;
    *bytes = base_utf8_decode(text, n, &c);
    if (*bytes == 0) *bytes = 1;
    return c >= WIDE_FROM && !(c >= BLOCKS_FROM && c <= BLOCKS_TO) ? 2 : 1;
}

size_t tm_live_cut(const char *text, unsigned columns) {
    size_t n = strlen(text), at = 0, bytes;
    for (unsigned used = 0; at < n; at += bytes) {
        used += columns_of(text + at, n - at, &bytes);
        if (used > columns) break;
    }
    return at;
}

static unsigned width(const char *text) {
    size_t n = strlen(text), bytes;
    unsigned all = 0;
    for (size_t at = 0; at < n; at += bytes) all += columns_of(text + at, n - at, &bytes);
    return all;
}

/* The least important part goes first; of equals the last. */
static void drop_until(bool *keep, const tm_live_part *part, size_t n, unsigned columns) {
    for (;;) {
        size_t worst = n, kept = 0;
        unsigned all = 0;
        for (size_t i = 0; i < n; i++) {
            if (!keep[i]) continue;
            all += width(part[i].text) + (kept++ ? 2 : 0);
            if (worst == n || part[i].rank >= part[worst].rank) worst = i;
        }
        if (all <= columns || kept <= 1) return;
        keep[worst] = false;
    }
}

size_t tm_live_fit(const tm_live_part *part, size_t n, unsigned columns, char *out, size_t cap) {
    bool keep[TM_LIVE_PARTS];
    size_t len = 0;
    if (n > TM_LIVE_PARTS) n = TM_LIVE_PARTS;
    for (size_t i = 0; i < n; i++) keep[i] = *part[i].text != 0;
    drop_until(keep, part, n, columns);
    out[0] = 0;
    for (size_t i = 0; i < n; i++)
        if (keep[i] && len < cap) len += (size_t)snprintf(out + len, cap - len, "%s%s", len ? "  " : "", part[i].text);
    if (len >= cap) len = cap - 1;
    out[len] = 0;
    len = tm_live_cut(out, columns);
    out[len] = 0;
    return len;
}

void tm_live(const tm_live_part *part, size_t n) {
    char line[LINE_BYTES + 16];
    uint64_t now = tm_now_ns();
    if (!tm_live_possible()) return;
    pthread_mutex_lock(&lock);
    if (!atomic_load(&shown) || now - drawn_ns >= LIVE_MS * 1000000ULL) {
        unsigned columns = tm_live_columns(); /* the last one stays free: some terminals wrap when it is filled */
        line[0] = '\r';
        size_t len = 1 + tm_live_fit(part, n, columns > 1 ? columns - 1 : 1, line + 1, LINE_BYTES);
        memcpy(line + len, "\033[J\r", 4);
        atomic_store(&shown, true);
        put(line, len + 4);
        drawn_ns = now;
    }
    pthread_mutex_unlock(&lock);
}

void tm_live_end(void) {
    tm_say_text("", 0);
}
