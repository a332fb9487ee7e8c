/* A terminal for tests: a pseudo terminal, and what a person would see of the bytes that come out of it.
 *
 *     screen s = {.columns = 80};
 *     screen_open(&s);                  // s.slave is the terminal's end: to be a program's stderr
 *     ...
 *     screen_take(&s);                  // draws what has come so far
 *     screen_line(&s, 0)                // the first row, without trailing blanks
 *     screen_resize(&s, 40);            // rows that are too long wrap, as most terminals do it
 *
 * Endlessly many rows; UTF-8, Chinese and the like two columns wide; knows \r, \n, \b, ESC[J, ESC[K, and fails the
 * test (s.strange) at any other control character. s.wrapped counts lines that ran over the right edge. */
#ifndef TESTS_SCREEN_H
#define TESTS_SCREEN_H

#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

enum { SCREEN_ROWS = 400, SCREEN_COLUMNS = 300 };

typedef struct screen {
    unsigned columns, row, column;
    int master, slave;
    char cell[SCREEN_ROWS][SCREEN_COLUMNS + 1]; /* what is no ASCII is '?' */
    unsigned wrapped;
    char strange[32]; /* "": none */
    char escape[8];
    unsigned n_escape;
} screen;

static inline bool screen_open(screen *s) {
    struct winsize size = {.ws_row = 50, .ws_col = (unsigned short)s->columns};
    const char *name;
    s->master = posix_openpt(O_RDWR | O_NOCTTY);
    if (s->master < 0 || grantpt(s->master) != 0 || unlockpt(s->master) != 0 || !(name = ptsname(s->master)))
        return false;
    s->slave = open(name, O_RDWR | O_NOCTTY);
    for (unsigned r = 0; r < SCREEN_ROWS; r++) memset(s->cell[r], ' ', SCREEN_COLUMNS);
    return s->slave >= 0 && ioctl(s->slave, TIOCSWINSZ, &size) == 0;
}

static inline const char *screen_line(screen *s, unsigned row) {
    size_t n = SCREEN_COLUMNS;
    while (n > 0 && (s->cell[row][n - 1] == ' ' || s->cell[row][n - 1] == 0)) n--;
    s->cell[row][n] = 0;
    return s->cell[row];
}

static inline void screen_wipe(screen *s, unsigned row, unsigned from) {
    memset(s->cell[row] + from, ' ', SCREEN_COLUMNS - from);
}

static inline void screen_glyph(screen *s, char c, unsigned wide) {
    if (s->column + wide > s->columns) {
        s->wrapped++;
        s->column = 0;
        s->row++;
    }
    for (unsigned i = 0; i < wide && s->row < SCREEN_ROWS; i++) {
        char *cell = &s->cell[s->row][s->column++];
        *cell = c;
    }
}

static inline void screen_escape(screen *s, unsigned char c) {
    s->escape[s->n_escape++] = (char)c;
    if (s->n_escape == 2 && c == '[') return;
    if (s->n_escape == 3 && c == 'J') {
        screen_wipe(s, s->row, s->column);
        for (unsigned r = s->row + 1; r < SCREEN_ROWS; r++) screen_wipe(s, r, 0);
    } else if (s->n_escape == 3 && c == 'K') {
        screen_wipe(s, s->row, s->column);
    } else if (s->n_escape > 1 && s->n_escape < 7 && ((c >= '0' && c <= '9') || c == ';')) {
        return;
    } else if (c != 'm') { /* colours */
        snprintf(s->strange, sizeof s->strange, "ESC%.*s", (int)s->n_escape - 1, s->escape + 1);
    }
    s->n_escape = 0;
}

static inline void screen_byte(screen *s, unsigned char c) {
    if (s->row + 1 >= SCREEN_ROWS) return;
    if (s->n_escape > 0) {
        screen_escape(s, c);
    } else if (c == 033) {
        s->escape[s->n_escape++] = 033;
    } else if (c == '\r') {
        s->column = 0;
    } else if (c == '\n') {
        s->row++;
    } else if (c < 0x20) {
        snprintf(s->strange, sizeof s->strange, "0x%02x", c);
    } else if (c < 0x80) {
        screen_glyph(s, (char)c, 1);
    } else if ((c & 0xC0) !=
               0x80) { /* the first byte of several; what begins with E3 or more is Chinese and the like */
        screen_glyph(s, '?', c >= 0xE3 ? 2 : 1);
    }
}

/* Draws what has come within a moment. False: the other end is closed. */
static inline bool screen_take(screen *s) {
    char buf[4096];
    struct pollfd p = {.fd = s->master, .events = POLLIN};
    while (poll(&p, 1, 50) > 0) {
        ssize_t n = read(s->master, buf, sizeof buf);
        if (n <= 0) return false;
        for (ssize_t i = 0; i < n; i++) screen_byte(s, (unsigned char)buf[i]);
    }
    return true;
}

static inline void screen_resize(screen *s, unsigned columns) {
    struct winsize size = {.ws_row = 50, .ws_col = (unsigned short)columns};
    screen *old = malloc(sizeof *old);
    if (!old) abort();
    memcpy(old, s, sizeof *old);
    unsigned to = 0;
    for (unsigned r = 0; r < SCREEN_ROWS; r++) screen_wipe(s, r, 0);
    for (unsigned r = 0; r <= old->row + 1; r++) {
        const char *line = screen_line(old, r);
        size_t n = strlen(line), at = 0;
        if (r == old->row) s->row = to + old->column / columns, s->column = old->column % columns;
        do {
            size_t part = n - at < columns ? n - at : columns;
            memcpy(s->cell[to++], line + at, part);
            at += part;
        } while (at < n);
    }
    s->columns = columns;
    free(old);
    (void)ioctl(s->slave, TIOCSWINSZ, &size);
}

static inline void screen_close(screen *s) {
    if (s->slave >= 0) close(s->slave);
    close(s->master);
}

#endif
