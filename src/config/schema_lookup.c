/* Rows of the table by name; words of a choice. */
#include "config/config_internal.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>

/* Open addressing, at most half full: a configuration asks some hundred times. */
enum { SLOTS = 2048 };
static uint16_t slot[SLOTS]; /* row + 1 */
static pthread_once_t once = PTHREAD_ONCE_INIT;

static size_t first_slot(const char *path) {
    return (size_t)tm_hash64(path, strlen(path), 0) % SLOTS;
}

static void fill(void) {
    TM_ASSERT(schema_row_count <= SLOTS / 2);
    for (size_t i = 0; i < schema_row_count; i++) {
        size_t at = first_slot(schema_rows[i].path);
        while (slot[at]) at = (at + 1) % SLOTS;
        slot[at] = (uint16_t)(i + 1);
    }
}

const schema_row *schema_find(const char *path) {
    (void)pthread_once(&once, fill);
    for (size_t at = first_slot(path); slot[at]; at = (at + 1) % SLOTS)
        if (!strcmp(schema_rows[slot[at] - 1].path, path)) return &schema_rows[slot[at] - 1];
    return NULL;
}

bool tm_config_is_key(const char *path) {
    return schema_find(path) != NULL;
}

/* A section that is free has free keys: what it says of itself holds for all that is in it. */
tm_config_change tm_config_change_of(const char *path) {
    char above[160];
    snprintf(above, sizeof above, "%s", path);
    for (char *end = above + strlen(above); end; end = strrchr(above, '.')) {
        *end = 0;
        const schema_row *row = schema_find(above);
        if (row && row->alias_of) row = schema_find(row->alias_of);
        if (row && row->change != TM_CHANGE_NEVER) return row->change;
    }
    return TM_CHANGE_NEVER;
}

bool tm_config_is_of_method(const char *path) {
    char section[160];
    const schema_row *row = schema_find(path);
    if (row && row->alias_of) row = schema_find(row->alias_of);
    if (row && row->method) return true;
    if (row) path = row->path;
    snprintf(section, sizeof section, "%.*s", (int)strcspn(path, "."), path);
    row = schema_find(section);
    return row && row->method;
}

size_t schema_index(const char *path) {
    const schema_row *row = schema_find(path);
    TM_ASSERT(row && !row->alias_of);
    return (size_t)(row - schema_rows);
}

int schema_choice(const schema_row *row, const char *value, size_t len) {
    int index = 0;
    TM_ASSERT(row->choices);
    for (const char *c = row->choices; *c; c += strcspn(c, "|"), c += *c == '|', index++)
        for (const char *w = c, *end = c + strcspn(c, "|"); w < end; w += strcspn(w, "=|") + 1)
            if (strcspn(w, "=|") == len && !strncmp(w, value, len)) return index;
    return -1;
}

const char *schema_choice_name(const schema_row *row, int index, char *buf, size_t cap) {
    const char *c = row->choices;
    TM_ASSERT(c && index >= 0);
    for (; index > 0; index--) c += strcspn(c, "|") + 1;
    snprintf(buf, cap, "%.*s", (int)strcspn(c, "=|"), c);
    return buf;
}

static void add(char *buf, size_t cap, const char *what) {
    size_t n = strlen(buf);
    snprintf(buf + n, cap - n, "%s%s", n ? " or " : "", what);
}

const char *schema_expects(const schema_row *row, char *buf, size_t cap) {
    buf[0] = 0;
    if (row->types & T_BOOL) add(buf, cap, "true or false");
    if (row->types & T_INT) add(buf, cap, "an integer");
    if (row->types & T_NUM) add(buf, cap, "a number");
    if (row->types & T_SIZE)
        add(buf, cap, "a size (bytes, or like \"3GiB\")");
    else if (row->types & T_STR)
        add(buf, cap, "a string");
    if (row->types & T_PAIR) add(buf, cap, "two numbers");
    if (row->types & T_LIST && !(row->types & T_ENUM)) add(buf, cap, "a string or a list of strings");
    if (row->types & T_OBJ) add(buf, cap, "an object");
    if (row->types & T_FILES) add(buf, cap, "a path, an object with one, or a list of these");
    if (row->types & T_NAMES) add(buf, cap, "an object of names, each with another name");
    if (row->types & T_TABLE) add(buf, cap, "an object of names, each with a number");
    if (row->types & T_ENUM) {
        add(buf, cap, "one of ");
        for (const char *c = row->choices; *c; c += strcspn(c, "|"), c += *c == '|') {
            size_t n = strlen(buf);
            snprintf(buf + n, cap - n, "%s%.*s", c == row->choices ? "" : ", ", (int)strcspn(c, "=|"), c);
        }
    }
    if (row->types & T_LIST && row->types & T_ENUM) add(buf, cap, "a list of these");
    if (row->types & T_AUTO) add(buf, cap, "\"auto\"");
    return buf;
}
