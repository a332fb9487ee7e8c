#include "tools/terms.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

extern const char *const tm_glossary[]; /* the lines of docs/GLOSSARY.md, NULL behind the last (cmake/embed.cmake) */

enum { WIDTH = 96, INDENT = 4 };

typedef struct cell {
    const char *text;
    size_t n;
} cell;

/* "| word | means |"; not the head of a table. */
static bool is_row(const char *line, cell *word, cell *means) {
    const char *end = line[0] == '|' ? strstr(line + 1, " | ") : NULL;
    if (!end || strncmp(line, "| ", 2) != 0 || !strncmp(line, "| word |", 8)) return false;
    *word = (cell){line + 2, (size_t)(end - line) - 2};
    *means = (cell){end + 3, strlen(end + 3)};
    while (means->n && strchr(" |", means->text[means->n - 1])) means->n--;
    return true;
}

static bool has_word(const cell *in, const char *word) {
    size_t n = strlen(word);
    for (size_t i = 0; i + n <= in->n; i++) {
        bool begins = i == 0 || !isalnum((unsigned char)in->text[i - 1]);
        bool ends = i + n == in->n || !isalnum((unsigned char)in->text[i + n]);
        if (begins && ends && !strncasecmp(in->text + i, word, n)) return true;
    }
    return false;
}

/* Without what only Markdown shows; lines of WIDTH columns. */
static void print_means(const cell *c) {
    size_t column = 0;
    for (size_t i = 0; i < c->n;) {
        size_t blank = strspn(c->text + i, " "), n = 0, shown = 0;
        i += blank;
        while (i + n < c->n && c->text[i + n] != ' ') shown += !strchr("`*", c->text[i + n]), n++;
        bool fresh = column == 0 || column + 1 + shown > WIDTH;
        if (fresh && column) putchar('\n');
        if (fresh) printf("%*s", INDENT, "");
        if (!fresh) putchar(' ');
        column = fresh ? INDENT + shown : column + 1 + shown;
        for (size_t k = 0; k < n; k++)
            if (!strchr("`*", c->text[i + k])) putchar(c->text[i + k]);
        i += n;
    }
    putchar('\n');
}

static void print_term(const cell *word, const cell *means) {
    printf("  ");
    for (size_t i = 0; i < word->n; i++)
        if (!strchr("`*", word->text[i])) putchar(word->text[i]);
    putchar('\n');
    print_means(means);
}

bool tm_terms_print(const char *word) {
    cell name, means;
    bool any = false;
    for (const char *const *line = tm_glossary; *line; line++) {
        if (!word && !strncmp(*line, "## ", 3)) printf("%s%s\n", any ? "\n" : "", *line + 3);
        if (!is_row(*line, &name, &means) || (word && !has_word(&name, word))) continue;
        print_term(&name, &means);
        any = true;
    }
    return any;
}
