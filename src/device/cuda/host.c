/* The functions of base that this module uses, as the program gives them: a module links nothing of tidemill. */
#include "device/cuda/host.h"

#include <stdio.h>

static const device_host *host;

void cuda_host_set(const device_host *h) {
    host = h;
}

tm_status tm_fail(tm_status code, const char *format, ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return host->fail(code, "%s", text);
}
tm_status tm_nomem(size_t bytes) {
    return tm_fail(TM_ENOMEM, "out of memory: %zu bytes", bytes);
}
const tm_error *tm_error_get(void) {
    return host->error_get();
}
void tm_error_set(const tm_error *error) {
    host->error_set(error);
}
void tm_error_clear(void) {
    host->error_clear();
}
void tm_log(tm_log_level level, const char *format, ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    host->log(level, "%s", text);
}
uint64_t tm_now_ns(void) {
    return host->now_ns();
}
void *tm_calloc(size_t count, size_t bytes) {
    return host->calloc(count, bytes);
}
void tm_free(void *p) {
    host->free(p);
}
tm_status tm_thread_start(pthread_t *thread, void *(*body)(void *), void *arg, const char *what) {
    return host->thread_start(thread, body, arg, what);
}
