/* Skips that nobody takes for a pass, and the one switch of the long tests.
 *
 * Every test, or part of one, that is left out says so by one of these: the reason is printed and, where tests/run.sh
 * names a file in TIDEMILL_SKIPS, appended there as "PROGRAM: TEST: REASON"; run.sh prints that list in its last lines.
 * A bare skip() is refused by tests/check_skips.sh.
 *
 *   TEST_SKIP("no mpirun");                   ends this cmocka test as skipped
 *   TEST_SKIP_PART("%s: not on this CPU", x); goes on; this part was left out
 *   TEST_SKIP_PROGRAM("no %s", path);         leaves main() with 77
 *   TEST_SKIP_UNLESS_LONG("every strategy");  TEST_SKIP unless TIDEMILL_LONG=1
 *   TEST_SKIP_SANITIZED("every column");      TEST_SKIP_UNLESS_LONG, under sanitizers alone
 *   if (TEST_LONG("every budget")) ...        that part only with TIDEMILL_LONG=1; TEST_SKIP_PART without
 *
 * TIDEMILL_LONG=1 runs everything that continuous integration has no time for. */
#ifndef TESTS_SKIP_H
#define TESTS_SKIP_H

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Said once a process: a reason that is met in a loop is one line. */
__attribute__((format(printf, 2, 3), unused)) static void test_skip_say(const char *test, const char *format, ...) {
    static unsigned long long said[32]; /* FNV-1a of the lines */
    static unsigned n_said;
    unsigned long long sum = 0xcbf29ce484222325;
    char reason[400], line[700];
    va_list list;
    va_start(list, format);
    vsnprintf(reason, sizeof reason, format, list);
    va_end(list);
    snprintf(line, sizeof line, "%s: %s: %s\n", program_invocation_short_name, test, reason);
    for (const char *c = line; *c; c++) sum = (sum ^ (unsigned char)*c) * 0x100000001b3;
    for (unsigned i = 0; i < n_said; i++)
        if (said[i] == sum) return;
    if (n_said < sizeof said / sizeof *said) said[n_said++] = sum;
    printf("SKIP %s", line);
    fflush(stdout);
    const char *path = getenv("TIDEMILL_SKIPS");
    FILE *f = path && *path ? fopen(path, "ae") : NULL;
    if (!f) return;
    fputs(line, f);
    fclose(f);
}

__attribute__((unused)) static bool long_run(void) {
    const char *text = getenv("TIDEMILL_LONG");
    return text && *text && strcmp(text, "0") != 0;
}

/* How many times a test does what it does: environment variable `name`, else `often`, with TIDEMILL_LONG=1 `many`. */
__attribute__((unused)) static unsigned long test_amount(const char *name, unsigned long often, unsigned long many) {
    const char *text = getenv(name);
    return text && *text ? strtoul(text, NULL, 10) : long_run() ? many : often;
}

#define TEST_SKIP(...)                                                                                                 \
    do {                                                                                                               \
        test_skip_say(__func__, __VA_ARGS__);                                                                          \
        skip();                                                                                                        \
    } while (0)
#define TEST_SKIP_PART(...) test_skip_say(__func__, __VA_ARGS__)
#define TEST_SKIP_PROGRAM(...) return test_skip_say("all of it", __VA_ARGS__), 77
#define TEST_LONG(what) (long_run() || (TEST_SKIP_PART("%s: with TIDEMILL_LONG=1", what), false))
#define TEST_SKIP_UNLESS_LONG(what)                                                                                    \
    do {                                                                                                               \
        if (!long_run()) TEST_SKIP("%s: with TIDEMILL_LONG=1", what);                                                  \
    } while (0)
#ifdef TIDEMILL_SANITIZED
#define TEST_SKIP_SANITIZED(what) TEST_SKIP_UNLESS_LONG(what)
#else
#define TEST_SKIP_SANITIZED(what) ((void)0)
#endif

#endif
