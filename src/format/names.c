#include "format/format_internal.h"
#include "base/ordered.h"

#include <stdio.h>
#include <string.h>

static void sift_down(uint32_t *a, uint32_t root, uint32_t n, tm_less_fn less, const void *ctx) {
    while (root < n / 2) {
        uint32_t child = 2 * root + 1;
        if (child + 1 < n && less(ctx, a[child], a[child + 1])) child++;
        if (!less(ctx, a[root], a[child])) return;
        uint32_t t = a[root];
        a[root] = a[child];
        a[child] = t;
        root = child;
    }
}

void tm_sort_indices(uint32_t *order, uint32_t n, tm_less_fn less, const void *ctx) {
    for (uint32_t i = n / 2; i-- > 0;) sift_down(order, i, n, less, ctx);
    for (uint32_t end = n; end > 1; end--) {
        uint32_t t = order[0];
        order[0] = order[end - 1];
        order[end - 1] = t;
        sift_down(order, 0, end - 1, less, ctx);
    }
}

typedef struct by_name {
    tm_name_fn name;
    const void *ctx;
} by_name;

static bool name_less(const void *ctx, uint32_t a, uint32_t b) {
    const by_name *n = ctx;
    return strcmp(n->name(n->ctx, a), n->name(n->ctx, b)) < 0;
}

bool tm_sort_names(uint32_t *order, uint32_t n, tm_name_fn name, const void *ctx, uint32_t *dup) {
    for (uint32_t i = 0; i < n; i++) order[i] = i;
    tm_sort_indices(order, n, name_less, &(by_name){name, ctx});
    for (uint32_t i = 0; i + 1 < n; i++)
        if (strcmp(name(ctx, order[i]), name(ctx, order[i + 1])) == 0) {
            *dup = i;
            return false;
        }
    return true;
}

typedef struct name_wanted {
    const uint32_t *order;
    tm_name_fn name;
    const void *ctx;
    const char *wanted;
} name_wanted;

static bool name_before(const void *ctx, size_t i) {
    const name_wanted *w = ctx;
    return strcmp(w->name(w->ctx, w->order[i]), w->wanted) < 0;
}

int64_t tm_find_name(const uint32_t *order, uint32_t n, tm_name_fn name, const void *ctx, const char *wanted) {
    size_t at = tm_lower_bound(n, name_before, &(name_wanted){order, name, ctx, wanted});
    return at < n && strcmp(name(ctx, order[at]), wanted) == 0 ? (int64_t)order[at] : -1;
}

/* Length of the sequence that begins at s, 0 if it is not UTF-8 (overlong forms, surrogates, above U+10FFFF). */
static size_t utf8_sequence(const unsigned char *s, size_t n) {
    unsigned char c = s[0];
    if (c < 0x80) return c != 0;
    size_t len = c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2;
    if (c < 0xc2 || c > 0xf4 || len > n) return 0;
    for (size_t i = 1; i < len; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    if ((c == 0xe0 && s[1] < 0xa0) || (c == 0xed && s[1] > 0x9f)) return 0;
    if ((c == 0xf0 && s[1] < 0x90) || (c == 0xf4 && s[1] > 0x8f)) return 0;
    return len;
}

bool tm_utf8_valid(const char *s, size_t n) {
    for (size_t i = 0; i < n;) {
        size_t len = utf8_sequence((const unsigned char *)s + i, n - i);
        if (len == 0) return false;
        i += len;
    }
    return true;
}

bool tm_shape_elements(const uint64_t *shape, uint32_t ndim, uint64_t *elements) {
    *elements = 1;
    for (uint32_t d = 0; d < ndim; d++)
        if (!tm_mul_u64(*elements, shape[d], elements)) return false;
    return true;
}

char *tm_path_join(const char *dir, const char *name) {
    size_t n = strlen(dir) + strlen(name) + 2;
    char *path = tm_malloc(n);
    if (path) snprintf(path, n, "%s/%s", dir, name);
    return path;
}

tm_status tm_format_write_file(const char *dir, const char *name, const void *bytes, size_t n) {
    tm_out *out;
    char *path = tm_path_join(dir, name);
    if (!path) return tm_nomem(strlen(dir));
    tm_status rc = tm_out_create(&out, path);
    tm_free(path);
    TM_TRY(rc);
    rc = tm_out_append(out, bytes, n);
    if (rc == TM_OK) return tm_out_commit(out);
    tm_out_abandon(out);
    return rc;
}
