/* Log lines to stderr, each in one write so that lines of several threads and ranks do not mix. */
#include "base/base.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LEVEL_UNSET = -1, ONCE_KEYS = 256 };
static atomic_int threshold = LEVEL_UNSET;

static int level_from_environment(void) {
    static const char *const names[] = {"error", "warn", "info", "debug"};
    const char *wanted = getenv("TIDEMILL_LOG");
    for (int i = 0; wanted && i < (int)TM_COUNT(names); i++) {
        if (strcmp(wanted, names[i]) == 0) return i;
    }
    return TM_LOG_INFO;
}

static int current_level(void) {
    int level = atomic_load_explicit(&threshold, memory_order_relaxed);
    if (level == LEVEL_UNSET) {
        level = level_from_environment();
        atomic_store_explicit(&threshold, level, memory_order_relaxed);
    }
    return level;
}

void tm_log_set_level(tm_log_level level) {
    atomic_store_explicit(&threshold, (int)level, memory_order_relaxed);
}

enum { KEPT = 32, KEPT_BYTES = 512 };
static char kept[KEPT][KEPT_BYTES];
static atomic_uint n_kept;

/* For a report; the end of a longer one is cut. */
static void keep(const char *text, size_t n) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    unsigned at = atomic_load(&n_kept);
    if (at < KEPT) {
        snprintf(kept[at], KEPT_BYTES, "%.*s", (int)n, text);
        atomic_store(&n_kept, at + 1);
    }
    pthread_mutex_unlock(&lock);
}

const char *tm_log_warning(unsigned i) {
    return i < atomic_load(&n_kept) ? kept[i] : NULL;
}

static void log_line(tm_log_level level, const char *format, va_list ap) {
    static const char *const prefixes[] = {"error: ", "warning: ", "", "debug: "};
    char line[2048];
    int head = snprintf(line, sizeof line, "%s", prefixes[level]);
    size_t room = sizeof line - 1 - (size_t)head; /* one byte is the newline's */
    int body = vsnprintf(line + head, room, format, ap);
    size_t len = (size_t)head + (body < 0 ? 0 : (size_t)body < room ? (size_t)body : room - 1);
    if (level == TM_LOG_WARN) keep(line + head, len - (size_t)head);
    line[len++] = '\n';
    tm_say_text(line, len);
}

void tm_log(tm_log_level level, const char *format, ...) {
    if ((int)level > current_level()) return;
    va_list ap;
    va_start(ap, format);
    log_line(level, format, ap);
    va_end(ap);
}

/* Hashes of the keys seen; a full table says everything again rather than nothing. */
static bool first_time(const char *key) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static uint64_t seen[ONCE_KEYS];
    static size_t count;
    uint64_t hash = tm_hash64(key, strlen(key), 0);
    bool found = false;
    pthread_mutex_lock(&lock);
    for (size_t i = 0; i < count && !found; i++) found = seen[i] == hash;
    if (!found && count < ONCE_KEYS) seen[count++] = hash;
    pthread_mutex_unlock(&lock);
    return !found;
}

void tm_warn_once(const char *key, const char *format, ...) {
    if (!first_time(key) || (int)TM_LOG_WARN > current_level()) return;
    va_list ap;
    va_start(ap, format);
    log_line(TM_LOG_WARN, format, ap);
    va_end(ap);
}
