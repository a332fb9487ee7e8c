/* State that is read where it lies: a store without paths, over a file that may not be written. The bytes are the
 * file's, wherever it ends; what is resident is filled before the first run; a page that changes while a run reads it is
 * named; the file is never touched. */
#include "offload/store/store_internal.h"
#include "tests/support/support.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <fcntl.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    PAGES = 70,
    REST = 777,
    BYTES = PAGES * 4096 + REST,
    FIRST = 33 * 4096,
    MIDDLE = 20 * 4096,
    OBJECTS = 3,
    ROOM = (PAGES + 2) * 4096
};

typedef struct scene {
    char dir[64], path[80];
    char *bytes; /* of the file */
    tm_layout *layout;
    tm_store *store;
    char *frame; /* room for each object */
    struct stat made;
} scene;

static char byte_at(uint64_t i) {
    return (char)(i * 2654435761U >> 13);
}

/* Three objects one after the other; the last one ends where the file does. */
static void open_scene(scene *s, const char *engine, bool resident) {
    static const uint64_t at[] = {0, FIRST, FIRST + MIDDLE, BYTES};
    uint32_t file;
    memset(s, 0, sizeof *s);
    snprintf(s->dir, sizeof s->dir, "/tmp/tidemill_frozen_XXXXXX");
    assert_non_null(mkdtemp(s->dir));
    snprintf(s->path, sizeof s->path, "%s/weights", s->dir);
    s->bytes = malloc(BYTES);
    for (uint64_t i = 0; i < BYTES; i++) s->bytes[i] = byte_at(i);
    FILE *f = fopen(s->path, "wb");
    assert_int_equal(fwrite(s->bytes, 1, BYTES, f), BYTES);
    fclose(f);
    assert_int_equal(chmod(s->path, 0444), 0);
    assert_int_equal(stat(s->path, &s->made), 0);
    assert_int_equal(tm_layout_create(&s->layout), TM_OK);
    assert_int_equal(tm_layout_file(s->layout, s->path, &file), TM_OK);
    for (uint32_t i = 0; i < OBJECTS; i++) {
        const tm_object o = {.kind = TM_KIND_FROZEN, .bundle = i, .bytes = at[i + 1] - at[i], .pageable = true};
        assert_int_equal(tm_layout_object(s->layout, &o), i);
        assert_int_equal(tm_layout_home(s->layout, i, file, at[i]), TM_OK);
        s->layout->object[i].resident = resident;
        s->layout->object[i].address = at[i];
    }
    s->layout->chosen = true;
    s->frame = aligned_alloc(4096, ROOM);
    const tm_store_opts opts = {.io = {.engine = engine}};
    assert_int_equal(tm_store_open(&s->store, s->layout, &opts), TM_OK);
    assert_int_equal(tm_store_disk_bytes(s->store), 0);
}

static void close_scene(scene *s) {
    struct stat now;
    assert_int_equal(stat(s->path, &now), 0);
    assert_int_equal(now.st_mtim.tv_sec, s->made.st_mtim.tv_sec);
    assert_int_equal(now.st_mtim.tv_nsec, s->made.st_mtim.tv_nsec);
    assert_int_equal(tm_store_remove(s->store), TM_OK);
    tm_layout_free(s->layout);
    free(s->bytes);
    free(s->frame);
    assert_int_equal(unlink(s->path), 0);
    assert_int_equal(rmdir(s->dir), 0); /* and nothing else was made */
}

static tm_status read_object(scene *s, uint32_t object) {
    store_target t = {.object = object};
    tm_io_req req = {0}, *batch[] = {&req}, *done[1];
    unsigned n = 0;
    memset(s->frame, 0x55, ROOM);
    assert_int_equal(store_prepare_read(s->store, &t, s->frame, &req), TM_OK);
    assert_int_equal(tm_io_submit(store_io(s->store), batch, 1), TM_OK);
    while (!n) assert_int_equal(tm_io_wait(store_io(s->store), done, 1, &n, true), TM_OK);
    assert_int_equal(req.status, TM_OK);
    return store_check_read(s->store, &t, s->frame, &req);
}

static void reads_where_it_lies(void **state) {
    static const char *const engines[] = {"sync", "threads", NULL};
    (void)state;
    for (size_t e = 0; e < TM_COUNT(engines); e++) {
        scene s;
        open_scene(&s, engines[e], false);
        for (int again = 0; again < 2; again++) {
            assert_int_equal(read_object(&s, 0), TM_OK);
            assert_memory_equal(s.frame, s.bytes, FIRST);
            assert_int_equal(read_object(&s, 2), TM_OK);
            assert_memory_equal(s.frame, s.bytes + FIRST + MIDDLE, BYTES - FIRST - MIDDLE);
            for (uint64_t i = BYTES - FIRST - MIDDLE; i % 4096; i++) assert_int_equal(s.frame[i], 0);
        }
        close_scene(&s);
    }
}

static void resident_is_filled(void **state) {
    (void)state;
    scene s;
    open_scene(&s, NULL, true);
    memset(s.frame, 0x55, ROOM);
    assert_int_equal(tm_store_load_frozen(s.store, s.frame), TM_OK);
    assert_memory_equal(s.frame, s.bytes, BYTES);
    close_scene(&s);
}

/* A byte in the second page of object 1, later than what was written before by more than a clock's tick. */
static void change_a_byte(scene *s) {
    usleep(20000);
    assert_int_equal(chmod(s->path, 0644), 0);
    FILE *f = fopen(s->path, "r+b");
    fseek(f, FIRST + TM_PAGE_BYTES + 5, SEEK_SET);
    fputc(byte_at(FIRST + TM_PAGE_BYTES + 5) ^ 1, f);
    fclose(f);
}

static void a_change_is_noticed(void **state) {
    (void)state;
    scene s;
    open_scene(&s, "sync", false);
    for (uint32_t i = 0; i < OBJECTS; i++) assert_int_equal(read_object(&s, i), TM_OK);
    assert_int_equal(read_object(&s, 1), TM_OK); /* some of its pages */
    change_a_byte(&s);
    assert_int_equal(stat(s.path, &s.made), 0);
    assert_int_equal(read_object(&s, 0), TM_OK);
    assert_int_equal(read_object(&s, 1), TM_ECORRUPT);
    assert_non_null(strstr(tm_error_get()->text, s.path));
    assert_non_null(strstr(tm_error_get()->text, "changed"));
    tm_error_clear();
    close_scene(&s);
}

/* As a disk that fails does it: the file looks untouched. Within eight reads, and only where that page's turn is. */
static void a_change_without_a_trace_is_noticed(void **state) {
    (void)state;
    scene s;
    open_scene(&s, "sync", false);
    assert_int_equal(read_object(&s, 1), TM_OK);
    change_a_byte(&s);
    const struct timespec was[2] = {s.made.st_atim, s.made.st_mtim};
    assert_int_equal(utimensat(AT_FDCWD, s.path, was, 0), 0);
    int reads = 0;
    while (read_object(&s, 1) == TM_OK) assert_true(++reads < 8);
    assert_int_equal(tm_error_get()->code, TM_ECORRUPT);
    tm_error_clear();
    close_scene(&s);
}

/* A file that was written to, with the bytes that it had, is checked whole once and goes on. */
static void a_touch_is_no_change(void **state) {
    (void)state;
    scene s;
    open_scene(&s, "sync", false);
    assert_int_equal(read_object(&s, 0), TM_OK);
    uint64_t before = s.store->checksum_bytes;
    assert_int_equal(read_object(&s, 0), TM_OK);
    assert_true(s.store->checksum_bytes - before < FIRST / 4);
    const struct timespec now[2] = {{.tv_nsec = UTIME_NOW}, {.tv_nsec = UTIME_NOW}};
    usleep(20000);
    assert_int_equal(chmod(s.path, 0644), 0);
    assert_int_equal(utimensat(AT_FDCWD, s.path, now, 0), 0);
    assert_int_equal(stat(s.path, &s.made), 0);
    before = s.store->checksum_bytes;
    assert_int_equal(read_object(&s, 0), TM_OK);
    assert_true(s.store->checksum_bytes - before >= FIRST);
    close_scene(&s);
}

static void missing_file(void **state) {
    (void)state;
    scene s;
    open_scene(&s, "sync", false);
    assert_int_equal(tm_store_remove(s.store), TM_OK);
    assert_int_equal(rename(s.path, "/tmp/tidemill_frozen_away"), 0);
    assert_int_equal(tm_store_open(&s.store, s.layout, &(tm_store_opts){.io = {.engine = "sync"}}), TM_EINPUT);
    assert_non_null(strstr(tm_error_get()->text, "no such file"));
    tm_error_clear();
    assert_int_equal(rename("/tmp/tidemill_frozen_away", s.path), 0);
    assert_int_equal(tm_store_open(&s.store, s.layout, &(tm_store_opts){.io = {.engine = "sync"}}), TM_OK);
    close_scene(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_where_it_lies),  cmocka_unit_test(resident_is_filled),
        cmocka_unit_test(a_change_is_noticed),  cmocka_unit_test(a_change_without_a_trace_is_noticed),
        cmocka_unit_test(a_touch_is_no_change), cmocka_unit_test(missing_file)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
