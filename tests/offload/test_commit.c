/* Commits through the store's own interface: what they hold, what they survive, what is noticed. */
#include "commit_world.h"
#include "io/file/file.h"

#include <errno.h>
#include <fcntl.h>

static char dir[] = "test_commit.offload";

static int fresh(void **state) {
    (void)state;
    tm_error_clear();
    return tm_remove_tree(dir) != TM_OK;
}

static const uint64_t slabs[] = {0, 700000, 64 << 20}; /* paged; in part; resident */

/* Another residency, engine and set of state objects at each turn; the state goes on as if nothing had been. */
static void a_run_goes_on_from_its_commit(void **state) {
    (void)state;
    static const char *const engines[] = {"sync", "threads", "uring"};
    world w;
    char path[4096] = "";
    tm_commit *c = NULL;
    for (unsigned turn = 0; turn < 9; turn++) {
        world_opts o = {.path = dir,
                        .resume = c,
                        .engine = engines[turn / 3],
                        .slab = slabs[(turn * 2 + 1) % 3],
                        .parks = turn % 2};
        OK(world_open(&w, &o));
        tm_commit_close(c);
        assert_int_equal(w.step, turn * 3);
        world_check(&w);
        world_step(&w);
        OK(world_commit(&w, NULL));
        world_step(&w);
        world_step(&w);
        OK(world_commit(&w, NULL));
        world_step(&w); /* lost */
        world_step(&w);
        snprintf(path, sizeof path, "%s", tm_store_path(w.store, 0));
        world_close(&w, true);
        OK(tm_commit_open(&c, path, NULL));
        assert_int_equal(tm_commit_step(c), turn * 3 + 3);
        assert_int_equal(tm_json_get(tm_commit_info(c), "step")->integer, turn * 3 + 3);
    }
    tm_commit_close(c);
    OK(tm_remove_tree(path));
    assert_int_equal(rmdir(dir), 0); /* nothing else was left */
}

/* What is paged has been written already; what is resident and did not change stays where it is. */
static void a_commit_writes_what_changed(void **state) {
    (void)state;
    tm_commit_stats first, second, third;
    for (int resident = 0; resident < 2; resident++) {
        world w;
        OK(world_open(&w, &(world_opts){.path = dir, .slab = slabs[resident ? 2 : 0]}));
        world_step(&w);
        OK(world_commit(&w, &first));
        OK(world_commit(&w, &second));
        world_step(&w);
        OK(world_commit(&w, &third));
        uint64_t bytes = 0;
        for (uint32_t i = 0; i < tm_layout_objects(w.layout); i++)
            bytes += tm_layout_get(w.layout, i)->resident ? tm_layout_get(w.layout, i)->frame_bytes : 0;
        assert_true(resident == (bytes > 0));
        assert_true(second.write_bytes < 4096);
        assert_int_equal(first.write_bytes, bytes + second.write_bytes);
        assert_int_equal(third.write_bytes, bytes + second.write_bytes);
        world_close(&w, false);
    }
}

static void space_is_what_was_said(void **state) {
    (void)state;
    world w;
    OK(world_open(&w, &(world_opts){.path = dir, .slab = slabs[2], .parks = true}));
    assert_int_equal(tm_store_disk_bytes(w.store), tm_store_state_bytes(w.layout, 2, true));
    uint64_t state_bytes = 0;
    for (uint32_t i = 0; i < tm_layout_objects(w.layout); i++) {
        const tm_object *o = tm_layout_get(w.layout, i);
        if (o->kind != TM_KIND_GRAD) state_bytes += o->frame_bytes;
    }
    assert_int_equal(tm_store_state_bytes(w.layout, 2, true), 2 * state_bytes); /* all of it is resident */
    assert_int_equal(tm_store_state_bytes(w.layout, 2, false), 0);
    world_close(&w, false);
}

static void fails(tm_status rc, tm_status want, const char *word) {
    if (rc != want || !strstr(tm_error_get()->text, word))
        fail_msg("%s: %s (expected %s, \"%s\")", tm_status_name(rc), tm_error_get()->text, tm_status_name(want), word);
    tm_error_clear();
}

static void what_is_no_commit_is_refused(void **state) {
    (void)state;
    world w;
    tm_commit *c;
    char path[4096];
    fails(tm_commit_open(&c, "test_commit.absent", NULL), TM_EINPUT, "no such directory");
    OK(world_open(&w, &(world_opts){.path = dir}));
    snprintf(path, sizeof path, "%s", tm_store_path(w.store, 0));
    world_close(&w, true);
    fails(tm_commit_open(&c, path, NULL), TM_EINPUT, "holds no commit");
    OK(tm_remove_tree(path));
    fails(tm_commit_open(&c, dir, NULL), TM_EINPUT, "not a run directory");
}

/* ---- damage ---------------------------------------------------------------------------------------------------- */

/* A directory with one commit of step 2, everything in it on disk. */
static void committed(char path[4096], uint64_t slab) {
    world w;
    OK(world_open(&w, &(world_opts){.path = dir, .slab = slab}));
    world_step(&w);
    world_step(&w);
    OK(world_commit(&w, NULL));
    snprintf(path, 4096, "%s", tm_store_path(w.store, 0));
    world_close(&w, true);
}

static tm_status open_only(const char *path) {
    tm_commit *c;
    tm_status rc = tm_commit_open(&c, path, NULL);
    if (rc == TM_OK) tm_commit_close(c);
    return rc;
}

static size_t slurp(const char *path, const char *name, unsigned char **out) {
    char full[4200];
    tm_buf b = {0};
    snprintf(full, sizeof full, "%s/%s", path, name);
    OK(tm_file_slurp(full, 64 << 20, &b));
    *out = (unsigned char *)b.data;
    return b.len;
}

static int open_rw(const char *path, const char *name) {
    char full[4200];
    snprintf(full, sizeof full, "%s/%s", path, name);
    int fd = open(full, O_RDWR | O_CLOEXEC);
    assert_true(fd >= 0);
    return fd;
}

static void flip(int fd, uint64_t at, unsigned bit) {
    unsigned char c;
    assert_int_equal(pread(fd, &c, 1, (off_t)at), 1);
    c ^= (unsigned char)(1u << bit);
    assert_int_equal(pwrite(fd, &c, 1, (off_t)at), 1);
}

static void every_bit_of_the_manifest_counts(void **state) {
    (void)state;
    char path[4096];
    unsigned char *bytes;
    committed(path, slabs[1]);
    size_t n = slurp(path, "manifest", &bytes);
    int fd = open_rw(path, "manifest");
    assert_in_range(n, 200, 4000);
    for (size_t at = 0; at < n; at++) {
        unsigned bit = (unsigned)(at * 2654435761u >> 7) % 8;
        flip(fd, at, bit);
        tm_status rc = open_only(path);
        if (rc != TM_ECORRUPT) fail_msg("bit %u of byte %zu: %s", bit, at, tm_status_name(rc));
        tm_error_clear();
        flip(fd, at, bit);
    }
    OK(open_only(path));
    for (size_t cut = 0; cut < n; cut += 1 + cut / 40) {
        assert_int_equal(ftruncate(fd, (off_t)cut), 0);
        fails(open_only(path), TM_ECORRUPT, "damaged");
        assert_int_equal(pwrite(fd, bytes, n, 0), n);
    }
    assert_int_equal(pwrite(fd, "x", 1, (off_t)n), 1);
    fails(open_only(path), TM_ECORRUPT, "damaged"); /* a byte too many */
    close(fd);
    tm_free(bytes);
}

/* Opens the commit, restores and walks all of it. */
static tm_status read_all(const char *path, uint64_t slab, uint64_t *step) {
    world w;
    tm_commit *c;
    TM_TRY(tm_commit_open(&c, path, NULL));
    tm_status rc = world_open(&w, &(world_opts){.resume = c, .slab = slab});
    tm_commit_close(c);
    if (rc == TM_OK) rc = tm_exec_run(w.exec, w.check_plan, world_op, &w);
    if (rc == TM_OK && w.wrong) fail_msg("%u objects of step %llu differ", w.wrong, (unsigned long long)w.step);
    *step = w.step;
    tm_error said = *tm_error_get();
    world_close(&w, true);
    tm_error_clear();
    tm_error_set(&said);
    return rc;
}

static const char *const files[] = {"weight_hi", "weight_lo", "exp_avg", "exp_avg_sq"};

/* One bit of every page of both slots: a committed page is noticed, the other slot does not matter. */
static void damaged_pages_of_a_commit_are_noticed(void **state) {
    (void)state;
    char path[4096];
    uint64_t step;
    unsigned noticed = 0, other = 0;
    committed(path, slabs[0]);
    for (unsigned f = 0; f < TM_COUNT(files); f++) {
        int fd = open_rw(path, files[f]);
        uint64_t size = (uint64_t)lseek(fd, 0, SEEK_END);
        for (uint64_t at = 977; at < size; at += 65536) {
            flip(fd, at, (unsigned)at % 8);
            tm_status rc = read_all(path, slabs[(at / 65536) % 3], &step);
            if (rc != TM_OK) fails(rc, TM_ECORRUPT, files[f]);
            *(rc == TM_OK ? &other : &noticed) += 1;
            flip(fd, at, (unsigned)at % 8);
        }
        close(fd);
    }
    assert_true(noticed >= 12);
    assert_in_range(other, noticed / 2, noticed * 2); /* half of the room is the other slot's */
    OK(read_all(path, slabs[0], &step));
    assert_int_equal(step, 2);
}

/* Pages that lie in each other's place, and a slot put back to what an earlier commit had. */
static void swapped_and_rolled_back_pages_are_noticed(void **state) {
    (void)state;
    char path[4096];
    world w;
    uint64_t step;
    unsigned char *before[TM_COUNT(files)];
    OK(world_open(&w, &(world_opts){.path = dir}));
    world_step(&w);
    OK(world_commit(&w, NULL));
    snprintf(path, sizeof path, "%s", tm_store_path(w.store, 0));
    for (unsigned f = 0; f < TM_COUNT(files); f++) (void)slurp(path, files[f], &before[f]);
    world_step(&w); /* fills the other slot */
    OK(world_commit(&w, NULL));
    world_step(&w); /* and this one again: the same slot as step 1 */
    OK(world_commit(&w, NULL));
    world_close(&w, true);
    for (unsigned f = 0; f < TM_COUNT(files); f++) {
        unsigned char *now;
        size_t n = slurp(path, files[f], &now);
        int fd = open_rw(path, files[f]);
        assert_int_equal(pwrite(fd, before[f], n, 0), n);
        fails(read_all(path, slabs[f % 3], &step), TM_ECORRUPT, files[f]);
        for (unsigned swap = 0; swap < 2; swap++) { /* halves: other objects, other slots */
            assert_int_equal(pwrite(fd, now + n / 2 / 4096 * 4096, n / 2 / 4096 * 4096, 0), n / 2 / 4096 * 4096);
            fails(read_all(path, slabs[(f + swap) % 3], &step), TM_ECORRUPT, files[f]);
        }
        assert_int_equal(pwrite(fd, now, n, 0), n);
        close(fd);
        tm_free(now);
        tm_free(before[f]);
    }
    OK(read_all(path, 0, &step));
    assert_int_equal(step, 3);
    int fd = open_rw(path, files[0]);
    assert_int_equal(ftruncate(fd, 65536), 0);
    close(fd);
    fails(read_all(path, 0, &step), TM_ECORRUPT, "cut off");
}

/* An I/O error anywhere in a commit: that commit fails, says why, and the one before is whole. */
static void a_failed_commit_leaves_the_one_before(void **state) {
    (void)state;
    static const char *const calls[] = {"pwrite", "fdatasync", "fsync", "rename", "openat"};
    char spec[64], path[4096];
    for (unsigned call = 0; call < TM_COUNT(calls); call++) {
        unsigned failed = 0;
        for (unsigned i = 1;; i++) {
            world w;
            uint64_t step;
            OK(world_open(&w, &(world_opts){.path = dir, .slab = slabs[1]}));
            world_step(&w);
            OK(world_commit(&w, NULL));
            world_step(&w);
            snprintf(spec, sizeof spec, "%s:%u:%s:once", calls[call], i, i % 2 ? "eio" : "enospc");
            OK(tm_fault_set(spec));
            tm_status rc = world_commit(&w, NULL);
            OK(tm_fault_set(NULL));
            snprintf(path, sizeof path, "%s", tm_store_path(w.store, 0));
            if (rc != TM_OK) {
                failed++;
                fails(rc, i % 2 ? TM_EIO : TM_ENOSPC, "");
                fails(world_commit(&w, NULL), TM_EIO, "failed before"); /* a failed sync is final */
            }
            world_close(&w, true);
            OK(read_all(path, slabs[i % 3], &step));
            bool last = rc == TM_OK;
            if (last) assert_int_equal(step, 2);
            bool after = strcmp(calls[call], "fsync") == 0 || strcmp(calls[call], "openat") == 0;
            if (!last && !after) assert_int_equal(step, 1); /* those two come after the rename too */
            assert_true(step == 1 || step == 2);
            OK(tm_remove_tree(path));
            if (last) break;
        }
        assert_true(failed >= 1);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_run_goes_on_from_its_commit, fresh, fresh),
        cmocka_unit_test_setup_teardown(a_commit_writes_what_changed, fresh, fresh),
        cmocka_unit_test_setup_teardown(space_is_what_was_said, fresh, fresh),
        cmocka_unit_test_setup_teardown(what_is_no_commit_is_refused, fresh, fresh),
        cmocka_unit_test_setup_teardown(every_bit_of_the_manifest_counts, fresh, fresh),
        cmocka_unit_test_setup_teardown(damaged_pages_of_a_commit_are_noticed, fresh, fresh),
        cmocka_unit_test_setup_teardown(swapped_and_rolled_back_pages_are_noticed, fresh, fresh),
        cmocka_unit_test_setup_teardown(a_failed_commit_leaves_the_one_before, fresh, fresh),
    };
    return cmocka_run_group_tests_name("commit", tests, NULL, NULL);
}
