/* The allocation seam: every allocation of the program is counted here, and can be made to fail here. */
#include "base/base.h"

#include <malloc.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static atomic_uint_least64_t live_bytes, peak_bytes, allocations;

/* Counted as malloc_usable_size says, so that no header has to be stored in front of a block. */
static void count_in(void *p) {
    uint64_t size = malloc_usable_size(p);
    uint64_t live = atomic_fetch_add_explicit(&live_bytes, size, memory_order_relaxed) + size;
    uint64_t peak = atomic_load_explicit(&peak_bytes, memory_order_relaxed);
    while (live > peak && !atomic_compare_exchange_weak_explicit(&peak_bytes, &peak, live, memory_order_relaxed,
                                                                 memory_order_relaxed)) {
    }
}

static void count_out(size_t size) {
    atomic_fetch_sub_explicit(&live_bytes, size, memory_order_relaxed);
}

/* Every call passes here once: it is counted, and refused if it is the one that a test wants to fail. */
static bool admit(void) {
    atomic_fetch_add_explicit(&allocations, 1, memory_order_relaxed);
    return !tm_fault_hit("alloc", NULL);
}

void *tm_malloc(size_t bytes) {
    if (!admit()) return NULL;
    void *p = malloc(bytes ? bytes : 1); /* NULL means failure, never "nothing was asked for" */
    if (p) count_in(p);
    return p;
}

void *tm_calloc(size_t count, size_t bytes) {
    if (!admit()) return NULL;
    void *p = count && bytes ? calloc(count, bytes) : calloc(1, 1);
    if (p) count_in(p);
    return p;
}

void *tm_realloc(void *p, size_t bytes) {
    if (!admit()) return NULL;
    size_t before = p ? malloc_usable_size(p) : 0;
    void *q = realloc(p, bytes ? bytes : 1);
    if (!q) return NULL;
    count_out(before);
    count_in(q);
    return q;
}

void tm_free_all(void *const *p, size_t n) {
    for (size_t i = 0; i < n; i++) tm_free(p[i]);
}

void tm_free(void *p) {
    if (!p) return;
    count_out(malloc_usable_size(p));
    free(p);
}

char *tm_strdup(const char *s) {
    return tm_strndup(s, strlen(s));
}

char *tm_strndup(const char *s, size_t n) {
    size_t len = strnlen(s, n);
    char *copy = tm_malloc(len + 1);
    if (!copy) return NULL;
    memcpy(copy, s, len);
    copy[len] = 0;
    return copy;
}

bool tm_ends_with(const char *s, const char *suffix) {
    size_t n = strlen(s), m = strlen(suffix);
    return n >= m && memcmp(s + n - m, suffix, m) == 0;
}

tm_status tm_nomem(size_t bytes) {
    return tm_fail(TM_ENOMEM, "out of memory: %zu bytes could not be allocated; free some or lower memory.host_budget",
                   bytes);
}

uint64_t tm_mem_live_bytes(void) {
    return atomic_load_explicit(&live_bytes, memory_order_relaxed);
}
uint64_t tm_mem_peak_bytes(void) {
    return atomic_load_explicit(&peak_bytes, memory_order_relaxed);
}
uint64_t tm_mem_allocations(void) {
    return atomic_load_explicit(&allocations, memory_order_relaxed);
}

tm_status tm_buf_reserve(tm_buf *b, size_t more) {
    uint64_t need;
    if (!tm_add_u64(b->len, more, &need) || !tm_add_u64(need, 1, &need)) return tm_nomem(SIZE_MAX);
    if (need <= b->cap) return TM_OK;
    uint64_t cap = tm_max_u64(need, tm_max_u64(64, b->cap + b->cap / 2));
    char *data = tm_realloc(b->data, cap);
    if (!data) return tm_nomem(cap);
    if (!b->data) data[0] = 0;
    b->data = data;
    b->cap = cap;
    return TM_OK;
}

tm_status tm_buf_append(tm_buf *b, const void *bytes, size_t n) {
    TM_TRY(tm_buf_reserve(b, n));
    if (n) memcpy(b->data + b->len, bytes, n);
    b->len += n;
    b->data[b->len] = 0;
    return TM_OK;
}

tm_status tm_buf_printf(tm_buf *b, const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    int n = vsnprintf(NULL, 0, format, ap);
    va_end(ap);
    if (n < 0) return tm_fail(TM_EBUG, "cannot format \"%s\"", format);
    TM_TRY(tm_buf_reserve(b, (size_t)n));
    va_start(ap, format);
    vsnprintf(b->data + b->len, (size_t)n + 1, format, ap);
    va_end(ap);
    b->len += (size_t)n;
    return TM_OK;
}

void tm_buf_clear(tm_buf *b) {
    b->len = 0;
    if (b->data) b->data[0] = 0;
}

void tm_buf_free(tm_buf *b) {
    tm_free(b->data);
    *b = (tm_buf){0};
}

tm_status tm_grow(void *array, size_t *cap, size_t need, size_t element_bytes) {
    if (need <= *cap) return TM_OK;
    size_t more = *cap < 8 ? 8 : *cap + *cap / 2;
    if (more < need) more = need;
    uint64_t bytes;
    if (!tm_mul_u64(more, element_bytes, &bytes)) return tm_nomem(SIZE_MAX);
    void *p;
    memcpy(&p, array, sizeof p);
    p = tm_realloc(p, bytes);
    if (p == NULL) return tm_nomem(bytes);
    memcpy(array, &p, sizeof p);
    *cap = more;
    return TM_OK;
}
