/* What was probably meant: by edit distance in the same section, or by the same name in another one. */
#include "train/config_internal.h"

#include <ctype.h>
#include <string.h>

enum { LONGEST = 48 };

static char folded(char c) {
    return c == '-' ? '_' : (char)tolower((unsigned char)c);
}

static size_t min2(size_t a, size_t b) {
    return a < b ? a : b;
}

/* Optimal string alignment (a swapped pair is one edit); SIZE_MAX for words too long to compare and from `most` edits
 * on: two rows that are all above it only grow. */
static size_t distance(const char *a, size_t n, const char *b, size_t m, size_t most) {
    size_t row[3][LONGEST + 1], *before = row[0], *last = row[1], *now = row[2];
    if (n > LONGEST || m > LONGEST) return SIZE_MAX;
    for (size_t j = 0; j <= m; j++) last[j] = before[j] = j;
    for (size_t i = 1, least = 0, lesser = 0; i <= n; i++, lesser = least) {
        least = now[0] = i;
        for (size_t j = 1; j <= m; j++) {
            bool same = folded(a[i - 1]) == folded(b[j - 1]);
            now[j] = min2(min2(last[j], now[j - 1]) + 1, last[j - 1] + !same);
            if (i > 1 && j > 1 && folded(a[i - 1]) == folded(b[j - 2]) && folded(a[i - 2]) == folded(b[j - 1]))
                now[j] = min2(now[j], before[j - 2] + 1);
            least = min2(least, now[j]);
        }
        if (min2(least, lesser) >= most && i > 1) return SIZE_MAX;
        size_t *spare = before;
        before = last, last = now, now = spare;
    }
    return last[m];
}

/* Which letters a word has: one that the other lacks is an edit at least, so that most words need not be compared. */
static uint64_t letters(const char *word, size_t n) {
    uint64_t set = 0;
    for (size_t i = 0; i < n; i++) set |= (uint64_t)1 << (folded(word[i]) & 63);
    return set;
}

static size_t least_distance(uint64_t a, size_t n, uint64_t b, size_t m) {
    size_t longer = n > m ? n - m : m - n, other = (size_t)__builtin_popcountll(n > m ? a & ~b : b & ~a);
    return longer > other ? longer : other;
}

static const char *leaf_of(const char *path) {
    const char *dot = strrchr(path, '.');
    return dot ? dot + 1 : path;
}

static bool in_section(const char *path, const char *section) {
    size_t n = strlen(section);
    if (!n) return !strchr(path, '.');
    return !strncmp(path, section, n) && path[n] == '.' && !strchr(path + n + 1, '.');
}

/* The row in `section` (NULL: anywhere) whose last name is nearest; at most 1 + a third of the key's length away. */
static const schema_row *nearest(const char *section, const char *key) {
    size_t len = strlen(key), best = 2 + len / 3;
    if (len > LONGEST) return NULL;
    uint64_t set = letters(key, len);
    const schema_row *found = NULL;
    for (size_t i = 0; i < schema_row_count; i++) {
        const schema_row *row = &schema_rows[i];
        if (row->kind == K_REFUSED || row->kind == K_LATER || (section && !in_section(row->path, section))) continue;
        const char *leaf = leaf_of(row->path);
        size_t n = strlen(leaf), d = least_distance(set, len, letters(leaf, n), n);
        if (d < best) d = distance(key, len, leaf, n, best);
        if (d < best) best = d, found = row;
    }
    return found;
}

static const schema_row *same_name(const char *section, const char *key) {
    for (size_t i = 0; i < schema_row_count; i++) {
        const char *leaf = leaf_of(schema_rows[i].path);
        if (!strcmp(leaf, key) && !in_section(schema_rows[i].path, section)) return &schema_rows[i];
    }
    return NULL;
}

tm_status config_suggest_key(tm_buf *out, const char *section, const char *key) {
    const schema_row *row = same_name(section, key);
    if (row) {
        size_t under = (size_t)(leaf_of(row->path) - row->path);
        if (!under) return tm_buf_printf(out, "; it belongs at top level");
        return tm_buf_printf(out, "; it belongs under \"%.*s\"", (int)under - 1, row->path);
    }
    row = nearest(section, key);
    if (row) return tm_buf_printf(out, "; did you mean \"%s\"?", leaf_of(row->path));
    row = strlen(key) > 4 ? nearest(NULL, key) : NULL;
    if (row) return tm_buf_printf(out, "; did you mean \"%s\"?", row->path);
    return TM_OK;
}

tm_status config_suggest_value(tm_buf *out, const schema_row *row, const char *value) {
    size_t len = strlen(value), best = 2 + len / 3, n = 0;
    const char *found = NULL;
    for (const char *c = row->choices; c && *c; c += strcspn(c, "|"), c += *c == '|') {
        size_t word = strcspn(c, "=|"), d = distance(value, len, c, word, best);
        if (d < best) best = d, found = c, n = word;
    }
    if (!found) return TM_OK;
    return tm_buf_printf(out, "; did you mean \"%.*s\"?", (int)n, found);
}
