/* Keys as options of a command: --key value, --key=value, --key a b. */
#include "config/config_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { LONGEST = 160 };

/* Sections whose keys need not be told apart from others: of those the last name is enough. */
static const char *const sections[] = {"data.", "memory.", "objective.", "adapter.", "quantization."};

/* The row that "--NAME" names, and its path as it is written; NULL: none. */
static const schema_row *find(const char *name, size_t n, char path[LONGEST]) {
    char word[LONGEST / 2];
    if (n == 0 || n >= sizeof word) return NULL;
    for (size_t i = 0; i < n; i++) word[i] = (char)(name[i] == '-' ? '_' : name[i]);
    word[n] = 0;
    snprintf(path, LONGEST, "%s", word);
    const schema_row *row = schema_find(path);
    for (size_t i = 0; !row && i < TM_COUNT(sections); i++) {
        snprintf(path, LONGEST, "%s%s", sections[i], word);
        row = schema_find(path);
    }
    return row && row->alias_of ? schema_find(row->alias_of) : row;
}

/* Of "data" as an option the files are meant, unless an object is given. */
static const schema_row *meant(const schema_row *row, const char *value, char path[LONGEST]) {
    if (!row || strcmp(row->path, "data") || !value || *value == '{') return row;
    snprintf(path, LONGEST, "data.train");
    return schema_find(path);
}

/* ---- which of the words that follow are its value ----------------------------------------------------------------- */

static bool is_number(const char *word) {
    char *end;
    (void)strtod(word, &end);
    return end != word && !*end;
}

/* An option and not a value: "-1" is one. */
static bool is_option(const char *word) {
    return word[0] == '-' && word[1] && !is_number(word);
}

static bool is_truth(const char *word) {
    return !strcasecmp(word, "true") || !strcasecmp(word, "false");
}

/* A key that takes no file leaves it to the command. */
static bool is_configuration(const char *word) {
    return tm_ends_with(word, ".json") || cfg_is_yaml(word);
}

/* true or false, or nothing behind it for true. */
static bool is_switch(const schema_row *row) {
    return row->types & T_BOOL && !(row->types & (T_STR | T_LIST | T_ENUM));
}

/* What is known by its name alone: anything may follow. */
static bool is_loose(const schema_row *row) {
    return row->types & T_ANY && !(row->types & T_STR);
}

static bool takes(const schema_row *row, const char *word, size_t taken) {
    bool several = row->types & (T_LIST | T_FILES | T_PAIR) || is_loose(row);
    if (is_option(word) || (taken && !several)) return false;
    if (is_switch(row)) return is_truth(word) || !strcmp(word, "auto") || !strcmp(word, "None") || *word == '{';
    if (row->types & T_PAIR && taken) return is_number(word);
    if (row->types & (T_LIST | T_ANY) && !(row->types & T_STR)) return !is_configuration(word);
    if (row->types & T_FILES && taken) return !cfg_is_yaml(word);
    return true;
}

/* ---- its value ---------------------------------------------------------------------------------------------------- */

/* Python's words are JSON's where a string would mean nothing. */
static const char *as_json(const schema_row *row, const char *word) {
    if (!strcmp(word, "None")) return "null";
    if (row->types & (T_BOOL | T_ANY) && is_truth(word)) return strcasecmp(word, "true") ? "false" : "true";
    return word;
}

static tm_status several(const schema_row *row, const char *const *word, size_t n, tm_buf *out) {
    bool numbers = !(row->types & (T_LIST | T_FILES));
    tm_json_writer w;
    tm_jw_init(&w, out, 0);
    tm_jw_array(&w);
    for (size_t i = 0; i < n; i++)
        if (numbers && is_number(word[i]))
            tm_jw_double(&w, strtod(word[i], NULL));
        else
            tm_jw_str(&w, word[i]);
    tm_jw_array_end(&w);
    return tm_jw_end(&w);
}

tm_status tm_config_option(int argc, const char *const *argv, int *at, tm_buf *out, bool *is_key) {
    const char *name = argv[*at] + 2, *equals = strchr(name, '=');
    char path[LONGEST], expects[512];
    const schema_row *row = find(name, equals ? (size_t)(equals - name) : strlen(name), path);
    size_t n = 0;
    row = meant(row, equals ? equals + 1 : *at + 1 < argc ? argv[*at + 1] : NULL, path);
    *is_key = row != NULL;
    if (!row) return TM_OK;
    TM_TRY(tm_buf_printf(out, "--%s=", path));
    if (equals) return tm_buf_printf(out, "%s", as_json(row, equals + 1));
    const char *const *word = argv + *at + 1;
    while (*at + 1 + (int)n < argc && takes(row, word[n], n)) n++;
    *at += (int)n;
    if (n > 1) return several(row, word, n, out);
    if (n == 1) return tm_buf_printf(out, "%s", as_json(row, word[0]));
    if (is_switch(row) || is_loose(row)) return tm_buf_printf(out, "true");
    return tm_fail(TM_EINPUT, "--%s needs a value, %s", path, schema_expects(row, expects, sizeof expects));
}
