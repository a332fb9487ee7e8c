/* What a person sees on a terminal: the live line fits it at every moment and is never glued to anything. */
#include "world.h"
#include "tests/support/screen.h"

#include <signal.h>
#include <time.h>

static int real_stderr = -1;

static void on_screen(screen *s, unsigned columns) {
    memset(s, 0, sizeof *s);
    s->columns = columns;
    assert_true(screen_open(s));
    fflush(stderr);
    real_stderr = dup(STDERR_FILENO);
    assert_true(real_stderr >= 0 && dup2(s->slave, STDERR_FILENO) >= 0);
    assert_int_equal(setenv("TERM", "xterm", 1), 0);
}

static void off_screen(screen *s) {
    (void)screen_take(s);
    assert_true(dup2(real_stderr, STDERR_FILENO) >= 0);
    close(real_stderr);
    screen_close(s);
    if (*s->strange) fail_msg("a control character that terminals do not agree on: %s", s->strange);
}

static void wait_ms(long ms) {
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

/* The live line, whatever was drawn a moment before. */
static void live(const char *a, const char *b, const char *c) {
    tm_live_part part[] = {{a, 0}, {b, 2}, {c, 1}};
    wait_ms(110);
    tm_live(part, TM_COUNT(part));
}

static void least_important_parts_go_first(void **state) {
    (void)state;
    char out[64];
    tm_live_part part[] = {{"step 3/10", 0}, {"0.52 s/step", 2}, {"", 9}, {"left 0:00:04", 1}};
    struct {
        unsigned columns;
        const char *want;
    } row[] = {{80, "step 3/10  0.52 s/step  left 0:00:04"},
               {36, "step 3/10  0.52 s/step  left 0:00:04"},
               {35, "step 3/10  left 0:00:04"},
               {23, "step 3/10  left 0:00:04"},
               {22, "step 3/10"},
               {9, "step 3/10"},
               {8, "step 3/1"},
               {1, "s"}};
    for (size_t i = 0; i < TM_COUNT(row); i++) {
        assert_int_equal(tm_live_fit(part, TM_COUNT(part), row[i].columns, out, sizeof out), strlen(row[i].want));
        assert_string_equal(out, row[i].want);
    }
}

static void characters_are_cut_whole(void **state) {
    (void)state;
    assert_int_equal(tm_live_cut("ab\xC3\xA4z", 2), 2);
    assert_int_equal(tm_live_cut("ab\xC3\xA4z", 3), 4);      /* ä is one column */
    assert_int_equal(tm_live_cut("\xE6\xBD\xAE\xE6", 1), 0); /* 潮 is two */
    assert_int_equal(tm_live_cut("\xE6\xBD\xAEz", 2), 3);
    assert_int_equal(tm_live_cut("\xFFz", 2), 2); /* no UTF-8: a column a byte */
}

static void live_line_fits_and_is_overwritten(void **state) {
    (void)state;
    screen s;
    on_screen(&s, 30);
    live("step 1/10", "a part that is much too long for it", "left 0:00:09");
    (void)screen_take(&s);
    assert_string_equal(screen_line(&s, 0), "step 1/10  left 0:00:09");
    live("step 2/10", "", "");
    (void)screen_take(&s);
    assert_string_equal(screen_line(&s, 0), "step 2/10"); /* no half of the first is left */
    live("\xE6\xBD\xAE\xE6\xBD\xAE\xE6\xBD\xAE\xE6\xBD\xAE\xE6\xBD\xAE\xE6\xBD\xAE\xE6\xBD\xAE\xE6\xBD\xAE"
         "\xE6\xBD\xAE\xE6\xBD\xAE\xE6\xBD\xAE\xE6\xBD\xAE\xE6\xBD\xAE\xE6\xBD\xAE\xE6\xBD\xAE\xE6\xBD\xAE",
         "", "");
    (void)screen_take(&s);
    assert_int_equal(s.wrapped, 0);
    assert_int_equal(strlen(screen_line(&s, 0)), 28);
    off_screen(&s);
}

static void what_is_said_has_a_line_of_its_own(void **state) {
    (void)state;
    screen s;
    on_screen(&s, 60);
    live("step 1/10", "", "left 0:00:09");
    tm_say("a checkpoint\n");
    live("step 2/10", "", "");
    tm_log(TM_LOG_WARN, "a warning");
    live("step 3/10", "", "");
    tm_say_in_handler("stopping after this step\n");
    tm_say("last word\n");
    off_screen(&s);
    assert_string_equal(screen_line(&s, 0), "a checkpoint");
    assert_string_equal(screen_line(&s, 1), "warning: a warning");
    assert_string_equal(screen_line(&s, 2), "stopping after this step");
    assert_string_equal(screen_line(&s, 3), "last word");
    assert_string_equal(screen_line(&s, 4), "");
}

/* The terminal wraps what is there when it becomes narrower: all of it is overwritten, and what lies above stays. */
static void a_narrower_terminal_leaves_no_halves(void **state) {
    (void)state;
    screen s;
    on_screen(&s, 80);
    tm_say("above\n");
    live("step 1/10", "loss 2.3456  norm 1.234  lr 1e-05  1234 tok/s", "left 0:00:09");
    (void)screen_take(&s);
    screen_resize(&s, 30);
    assert_string_equal(screen_line(&s, 2), ".234  lr 1e-05  1234 tok/s  le"); /* columns 31 to 60 */
    live("step 2/10", "loss 2.3456  norm 1.234  lr 1e-05  1234 tok/s", "left 0:00:08");
    off_screen(&s);
    assert_string_equal(screen_line(&s, 0), "above");
    assert_string_equal(screen_line(&s, 1), "step 2/10  left 0:00:08");
    assert_string_equal(screen_line(&s, 2), "");
    assert_int_equal(s.wrapped, 0);
}

static void phase_shows_how_far_it_is(void **state) {
    (void)state;
    screen s;
    tm_phase p;
    on_screen(&s, 60);
    tm_phase_begin(&p, "reading", "rows", 100);
    tm_phase_at(&p, 10);
    (void)screen_take(&s);
    assert_string_equal(screen_line(&s, 0), ""); /* what is over soon shows nothing */
    p.began_ns -= 1000000000;                    /* a second ago */
    tm_phase_at(&p, 25);
    (void)screen_take(&s);
    assert_int_equal(strncmp(screen_line(&s, 0), "reading: 25 rows  25%  2", 24), 0);
    assert_non_null(strstr(screen_line(&s, 0), " rows/s  left 0:00:0"));
    p.began_ns -= 9000000000;
    p.done = 100;
    tm_phase_end(&p);
    tm_say("next\n");
    off_screen(&s);
    assert_int_equal(strncmp(screen_line(&s, 0), "reading: 100 rows  in 10.", 25), 0);
    assert_string_equal(screen_line(&s, 1), "next");
}

/* Piped into a file: no control character, no line before there is something to wait for. */
static void plain_lines_elsewhere(void **state) {
    (void)state;
    int end[2];
    char buf[512] = "";
    tm_phase p;
    assert_int_equal(pipe(end), 0);
    real_stderr = dup(STDERR_FILENO);
    assert_true(dup2(end[1], STDERR_FILENO) >= 0);
    live("step 1/10", "", "");
    tm_phase_begin(&p, "reading", NULL, 4000000000);
    tm_phase_at(&p, 1000000000);
    p.began_ns -= 20000000000;
    tm_phase_at(&p, 2000000000);
    tm_phase_at(&p, 2100000000); /* half a minute is not over */
    assert_true(dup2(real_stderr, STDERR_FILENO) >= 0);
    close(real_stderr);
    close(end[1]);
    assert_true(read(end[0], buf, sizeof buf - 1) > 0);
    close(end[0]);
    assert_string_equal(buf, "reading: 2.00 GB  50%  0.1 GB/s  left 0:00:20\n");
}

static void time_left_is_short(void **state) {
    (void)state;
    char buf[24];
    assert_string_equal(tm_format_left(0, buf, sizeof buf), "0:00:00");
    assert_string_equal(tm_format_left(90.9, buf, sizeof buf), "0:01:30");
    assert_string_equal(tm_format_left(99 * 3600.0 + 59, buf, sizeof buf), "99:00:59");
    assert_string_equal(tm_format_left(12 * 86400.0 + 3 * 3600, buf, sizeof buf), "12d03h");
    assert_true(strlen(tm_format_left(1e300, buf, sizeof buf)) < 16);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(least_important_parts_go_first),
        cmocka_unit_test(characters_are_cut_whole),
        cmocka_unit_test(live_line_fits_and_is_overwritten),
        cmocka_unit_test(what_is_said_has_a_line_of_its_own),
        cmocka_unit_test(a_narrower_terminal_leaves_no_halves),
        cmocka_unit_test(phase_shows_how_far_it_is),
        cmocka_unit_test(plain_lines_elsewhere),
        cmocka_unit_test(time_left_is_short),
    };
    return cmocka_run_group_tests_name("base_terminal", tests, NULL, NULL);
}
