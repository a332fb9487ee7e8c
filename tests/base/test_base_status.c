/* The error record and the log. */
#include "world.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void first_failure_is_kept(void **state) {
    (void)state;
    tm_error_clear();
    assert_int_equal(tm_error_get()->code, TM_OK);
    assert_int_equal(tm_error_get()->offset, -1);
    assert_int_equal(tm_fail(TM_EINPUT, "first %d", 1), TM_EINPUT);
    assert_int_equal(tm_fail(TM_EIO, "second"), TM_EIO);
    assert_int_equal(tm_fail_sys(TM_EIO, EIO, "write", "p", 3, "third"), TM_EIO);
    assert_int_equal(tm_error_get()->code, TM_EINPUT);
    assert_string_equal(tm_error_get()->text, "first 1");
    assert_int_equal(tm_error_get()->sys_errno, 0);
    tm_error_clear();
    assert_string_equal(tm_error_get()->text, "");
    assert_int_equal(tm_first(TM_EIO, TM_ENOMEM), TM_EIO);
    assert_int_equal(tm_first(TM_OK, TM_ENOMEM), TM_ENOMEM);
}

static void system_failure_names_its_cause(void **state) {
    (void)state;
    tm_error_clear();
    assert_int_equal(tm_fail_sys(TM_ENOSPC, ENOSPC, "pwrite", "/d/f", 4096, "/d/f: cannot write 12 bytes"), TM_ENOSPC);
    const tm_error *e = tm_error_get();
    assert_string_equal(e->text, "/d/f: cannot write 12 bytes: No space left on device");
    assert_string_equal(e->operation, "pwrite");
    assert_string_equal(e->path, "/d/f");
    assert_int_equal(e->offset, 4096);
    assert_int_equal(e->sys_errno, ENOSPC);
    tm_error_clear();
}

static void long_and_multi_line_texts_stay_one_line(void **state) {
    (void)state;
    char text[4096];
    memset(text, 'x', sizeof text - 1);
    text[sizeof text - 1] = 0;
    text[10] = '\n';
    text[11] = '\033';
    tm_error_clear();
    tm_fail_sys(TM_EIO, EIO, text, text, 1, "%s", text);
    const tm_error *e = tm_error_get();
    assert_int_equal(strlen(e->text), sizeof e->text - 1);
    assert_null(strchr(e->text, '\n'));
    assert_null(strchr(e->text, '\033'));
    assert_int_equal(strlen(e->path), sizeof e->path - 1);
    tm_error_clear();
}

static void *fail_elsewhere(void *out) {
    if (tm_error_get()->code != TM_OK) return "a new thread sees another's record";
    tm_fail(TM_ECORRUPT, "from the worker");
    *(tm_error *)out = *tm_error_get();
    return NULL;
}

static void record_belongs_to_its_thread(void **state) {
    (void)state;
    tm_error_clear();
    tm_fail(TM_EINPUT, "here");
    pthread_t thread;
    tm_error moved;
    void *complaint;
    assert_int_equal(pthread_create(&thread, NULL, fail_elsewhere, &moved), 0);
    assert_int_equal(pthread_join(thread, &complaint), 0);
    assert_null(complaint);
    assert_string_equal(tm_error_get()->text, "here");
    tm_error_set(&moved);
    assert_int_equal(tm_error_get()->code, TM_ECORRUPT);
    assert_string_equal(tm_error_get()->text, "from the worker");
    tm_error_clear();
}

static tm_status through_try(tm_status s) {
    TM_TRY(s);
    return TM_EBUG;
}

static void macros_hand_failures_up(void **state) {
    (void)state;
    assert_int_equal(through_try(TM_EIO), TM_EIO);
    assert_int_equal(through_try(TM_OK), TM_EBUG);
    for (int s = TM_OK; s <= TM_EBUG; s++) assert_string_not_equal(tm_status_name((tm_status)s), "unknown status");
    assert_string_equal(tm_status_name((tm_status)99), "unknown status");
}

/* Runs `say` with stderr in a file; the text is in `out`. */
static void captured(void (*say)(void), char *out, size_t cap) {
    FILE *f = tmpfile();
    assert_non_null(f);
    fflush(stderr);
    int saved = dup(STDERR_FILENO);
    dup2(fileno(f), STDERR_FILENO);
    say();
    dup2(saved, STDERR_FILENO);
    close(saved);
    rewind(f);
    out[fread(out, 1, cap - 1, f)] = 0;
    fclose(f);
}

static void say_at_all_levels(void) {
    tm_log_set_level(TM_LOG_WARN);
    tm_log(TM_LOG_ERROR, "e %d", 1);
    tm_log(TM_LOG_WARN, "w");
    tm_log(TM_LOG_INFO, "i");
    tm_log_set_level(TM_LOG_DEBUG);
    tm_log(TM_LOG_DEBUG, "d");
    tm_log_set_level(TM_LOG_INFO);
    tm_log(TM_LOG_DEBUG, "hidden");
    tm_log(TM_LOG_INFO, "shown");
}

static void say_again_and_again(void) {
    for (int i = 0; i < 3; i++) {
        tm_warn_once("key a", "a %d", i);
        tm_warn_once("key b", "b %d", i);
    }
}

static void say_much(void) {
    char text[5000];
    memset(text, 'y', sizeof text - 1);
    text[sizeof text - 1] = 0;
    tm_log(TM_LOG_INFO, "%s", text);
}

static void log_lines(void **state) {
    (void)state;
    char out[8192];
    captured(say_at_all_levels, out, sizeof out);
    assert_string_equal(out, "error: e 1\nwarning: w\ndebug: d\nshown\n");
    captured(say_again_and_again, out, sizeof out);
    assert_string_equal(out, "warning: a 0\nwarning: b 0\n");
    captured(say_much, out, sizeof out);
    size_t n = strlen(out);
    assert_true(n > 1000 && n < 2500);
    assert_ptr_equal(strchr(out, '\n'), out + n - 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_failure_is_kept),
        cmocka_unit_test(system_failure_names_its_cause),
        cmocka_unit_test(long_and_multi_line_texts_stay_one_line),
        cmocka_unit_test(record_belongs_to_its_thread),
        cmocka_unit_test(macros_hand_failures_up),
        cmocka_unit_test(log_lines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
