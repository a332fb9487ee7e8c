/* What was probably meant: by edit distance in the same section, or by the same name in another one. */
#include "train/config_internal.h"

#include <ctype.h>
#include <pthread.h>
#include <string.h>

enum { LONGEST = 64 };

static unsigned char folded(char c) {
    return c == '-' ? '_' : (unsigned char)tolower((unsigned char)c);
}

/* Where each letter stands in the word that was given, a bit a place; `letters`: which there are. */
typedef struct given {
    size_t n;
    uint64_t at[256], letters;
} given;

static uint64_t letters(const char *word, size_t n) {
    uint64_t set = 0;
    for (size_t i = 0; i < n; i++) set |= (uint64_t)1 << (folded(word[i]) & 63);
    return set;
}

static bool take(given *g, const char *word) {
    *g = (given){.n = strlen(word)};
    if (g->n == 0 || g->n > LONGEST) return false;
    for (size_t i = 0; i < g->n; i++) g->at[folded(word[i])] |= (uint64_t)1 << i;
    g->letters = letters(word, g->n);
    return true;
}

/* A letter that the other word lacks is an edit at least, so that most words need not be compared. */
static size_t least_distance(const given *g, uint64_t set, size_t n) {
    size_t longer = n > g->n ? n - g->n : g->n - n;
    size_t other = (size_t)__builtin_popcountll(n > g->n ? set & ~g->letters : g->letters & ~set);
    return longer > other ? longer : other;
}

/* Optimal string alignment (a swapped pair is one edit): a column of the table at once, as differences from place to
 * place, one bit each (Hyyro 2003, "A bit-vector algorithm for computing Levenshtein and Damerau edit distances"). */
static size_t distance(const given *g, const char *word, size_t n) {
    uint64_t up = ~(uint64_t)0, down = 0, diagonal = 0, before = 0, last = (uint64_t)1 << (g->n - 1);
    size_t d = g->n;
    for (size_t i = 0; i < n; i++) {
        uint64_t same = g->at[folded(word[i])], swapped = ((~diagonal & same) << 1) & before;
        diagonal = (((same & up) + up) ^ up) | same | down | swapped;
        uint64_t more = down | ~(diagonal | up), less = diagonal & up;
        d += (more & last) != 0;
        d -= (less & last) != 0;
        more = more << 1 | 1;
        less <<= 1;
        up = less | ~(diagonal | more);
        down = diagonal & more;
        before = same;
    }
    return d;
}

/* What every key is compared with, taken from the table once. */
enum { MOST_ROWS = 512 };
typedef struct word {
    const char *leaf; /* the last name of the row's path */
    size_t n, section;
    uint64_t letters;
} word;
static word words[MOST_ROWS];
static pthread_once_t once = PTHREAD_ONCE_INIT;

static void fill(void) {
    TM_ASSERT(schema_row_count <= MOST_ROWS);
    for (size_t i = 0; i < schema_row_count; i++) {
        const char *path = schema_rows[i].path, *dot = strrchr(path, '.'), *leaf = dot ? dot + 1 : path;
        size_t n = strlen(leaf);
        words[i] = (word){leaf, n, dot ? (size_t)(dot - path) : 0, letters(leaf, n)};
    }
}

static bool in_section(size_t row, const char *section, size_t n) {
    return words[row].section == n && !strncmp(schema_rows[row].path, section, n);
}

/* The row in `section` (NULL: anywhere) whose last name is nearest; at most 1 + a third of the key's length away. */
static const schema_row *nearest(const char *section, const char *key) {
    given g;
    if (!take(&g, key)) return NULL;
    size_t best = 2 + g.n / 3, n = section ? strlen(section) : 0;
    const schema_row *found = NULL;
    for (size_t i = 0; i < schema_row_count; i++) {
        const schema_row *row = &schema_rows[i];
        if (row->kind == K_REFUSED || row->kind == K_LATER || (section && !in_section(i, section, n))) continue;
        size_t d = least_distance(&g, words[i].letters, words[i].n);
        if (d < best) d = distance(&g, words[i].leaf, words[i].n);
        if (d < best) best = d, found = row;
    }
    return found;
}

static const schema_row *same_name(const char *section, const char *key) {
    size_t len = strlen(key), n = strlen(section);
    for (size_t i = 0; i < schema_row_count; i++)
        if (words[i].n == len && !memcmp(words[i].leaf, key, len) && !in_section(i, section, n)) return &schema_rows[i];
    return NULL;
}

static const char *leaf_of(const schema_row *row) {
    return words[row - schema_rows].leaf;
}

tm_status config_suggest_key(tm_buf *out, const char *section, const char *key) {
    (void)pthread_once(&once, fill);
    const schema_row *row = same_name(section, key);
    if (row) {
        size_t under = (size_t)(leaf_of(row) - row->path);
        if (!under) return tm_buf_printf(out, "; it belongs at top level");
        return tm_buf_printf(out, "; it belongs under \"%.*s\"", (int)under - 1, row->path);
    }
    row = nearest(section, key);
    if (row) return tm_buf_printf(out, "; did you mean \"%s\"?", leaf_of(row));
    row = strlen(key) > 4 ? nearest(NULL, key) : NULL;
    if (row) return tm_buf_printf(out, "; did you mean \"%s\"?", row->path);
    return TM_OK;
}

tm_status config_suggest_value(tm_buf *out, const schema_row *row, const char *value) {
    given g;
    if (!take(&g, value)) return TM_OK;
    size_t best = 2 + g.n / 3, n = 0;
    const char *found = NULL;
    for (const char *c = row->choices; c && *c; c += strcspn(c, "|"), c += *c == '|') {
        size_t len = strcspn(c, "=|"), d = distance(&g, c, len);
        if (d < best) best = d, found = c, n = len;
    }
    if (!found) return TM_OK;
    return tm_buf_printf(out, "; did you mean \"%.*s\"?", (int)n, found);
}
