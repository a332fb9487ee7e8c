/* Real file systems: sectors of 512 bytes and of 4 KiB, places beyond 4 GiB, a store over several file systems at once.
 * What is mounted lies on loop devices in a mount namespace of a child; rows that need root skip loudly. */
#include "offload/exec/exec.h"
#include "offload/store/store_internal.h"
#include "tests/io/world.h"
#include "tests/support/leave.h"
#include "tests/support/skip.h"

#include <errno.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/wait.h>

enum { SKIPPED = 77 };
static char dir[64];

static const char *at(const char *name) {
    static char paths[4][256];
    static unsigned next;
    char *p = paths[next++ % 4];
    snprintf(p, sizeof paths[0], "%s/%s", dir, name);
    return p;
}

#define CHECK(cond)                                                                                                    \
    do {                                                                                                               \
        if (!(cond)) {                                                                                                 \
            fprintf(stderr, "line %d: %s (%s)\n", __LINE__, #cond, tm_error_get()->text);                              \
            return 1;                                                                                                  \
        }                                                                                                              \
    } while (0)

/* ---- mounting -------------------------------------------------------------------------------------------------- */

static int own_mounts(void) {
    if (unshare(CLONE_NEWNS) == 0 && mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0) return 0;
    fprintf(stderr, "mounting needs root: %s\n", strerror(errno));
    return -1;
}

/* An ext4 of `mib` MiB on a disk with sectors of `sector` bytes, at dir/NAME. The device goes with the mount. */
static int mount_disk(const char *name, unsigned sector, unsigned mib) {
    char command[1024];
    if (mkdir(at(name), 0700) != 0) return -1;
    snprintf(command, sizeof command,
             "exec 2>&1; cd %s && truncate -s %uM %s.img && mkfs.ext4 -q -F -O ^has_journal -b 4096 %s.img && "
             "L=$(losetup --show -f -b %u %s.img) && { mount $L %s; rc=$?; losetup -d $L; exit $rc; }",
             dir, mib, name, name, sector, name, name);
    FILE *p = popen(command, "r");
    char said[256] = "";
    size_t n = p ? fread(said, 1, sizeof said - 1, p) : 0;
    if (p && pclose(p) == 0) return 0;
    fprintf(stderr, "no loop device with sectors of %u bytes: %.*s\n", sector, (int)n, said);
    return -1;
}

static void child_row(int (*fn)(void)) {
    fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(1, 2); /* a skip is to be seen */
        leave(fn());
    }
    int status = -1;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) == SKIPPED) TEST_SKIP_PART("a row that mounts file systems: takes root and loop devices");
    if (WEXITSTATUS(status) != SKIPPED) assert_int_equal(WEXITSTATUS(status), 0);
    OK(tm_remove_tree(dir));
    assert_int_equal(mkdir(dir, 0700), 0);
}

/* ---- sectors --------------------------------------------------------------------------------------------------- */

static int one(tm_io *io, tm_io_op op, tm_io_file f, uint64_t offset, void *buf, uint32_t len) {
    tm_io_req r = {.op = op, .file = f, .offset = offset, .buf = buf, .len = len}, *batch[] = {&r}, *done[1];
    unsigned n = 0;
    CHECK(tm_io_submit(io, batch, 1) == TM_OK);
    while (!n) CHECK(tm_io_wait(io, done, 1, &n, true) == TM_OK);
    CHECK(r.status == TM_OK && r.done == len);
    return 0;
}

/* Odd multiples of the sector, three of them at a time, with every engine; smaller units are refused, not tried. */
static int sectors(uint32_t sector, uint32_t expected) {
    tm_io_run *run;
    tm_io_file f;
    char *buf = test_memory(8 * 4096);
    if (own_mounts() != 0 || mount_disk("disk", sector, 48) != 0) return SKIPPED;
    CHECK(tm_io_run_create(&run, at("disk"), NULL) == TM_OK);
    CHECK(tm_io_run_direct(run) && tm_io_run_alignment(run) == expected);
    CHECK(tm_io_file_create(run, "x", 1 << 20, false, &f) == TM_OK && f.alignment == expected);
    for (unsigned e = 0; e < N_ENGINES; e++) {
        tm_io *io = test_engine(&engine_cases[e], e % 2 ? 1 : 3, 4096);
        if (!io) continue;
        for (unsigned i = 0; i < 8; i++) {
            uint64_t offset = (2 * i + 1) * (uint64_t)expected * 4;
            fill(buf, 0, 3 * expected, e * 8 + i);
            CHECK(one(io, TM_IO_WRITE, f, offset, buf, 3 * expected) == 0);
            memset(buf, 0, 3 * expected);
            CHECK(one(io, TM_IO_READ, f, offset, buf + 4 * (size_t)expected, 3 * expected) == 0);
            CHECK(matches(buf + 4 * (size_t)expected, 0, 3 * expected, e * 8 + i));
        }
        tm_io_req r = {.op = TM_IO_READ, .file = f, .offset = expected / 2, .buf = buf, .len = expected}, *b[] = {&r};
        CHECK(tm_io_submit(io, b, 1) == TM_EBUG);
        tm_error_clear();
        tm_io_close(io);
    }
    CHECK(tm_io_run_remove(run) == TM_OK);
    free(buf);
    return 0;
}

static int sectors_512(void) {
    return sectors(512, 512);
}
static int sectors_4096(void) {
    return sectors(4096, 4096);
}

static void test_sectors(void **state) {
    (void)state;
    child_row(sectors_512);
    child_row(sectors_4096);
}

/* ---- a store --------------------------------------------------------------------------------------------------- */

typedef struct state_on_disk {
    tm_layout *layout;
    tm_store *store;
    uint64_t bytes; /* of each object */
    char *frame;
} state_on_disk;

static int open_state(state_on_disk *s, const char *const *paths, unsigned n_paths, unsigned objects, uint64_t bytes) {
    *s = (state_on_disk){.bytes = bytes, .frame = test_memory(bytes)};
    CHECK(tm_layout_create(&s->layout) == TM_OK);
    for (unsigned i = 0; i < objects; i++)
        CHECK(tm_layout_object(s->layout,
                               &(tm_object){.kind = TM_KIND_EXP_AVG, .bundle = i, .bytes = bytes, .pageable = true}) ==
              i);
    s->layout->chosen = true; /* nothing is resident */
    const tm_store_opts o = {
        .paths = paths, .n_paths = n_paths, .slots = 1, .allow_tmpfs = true, .io = {.queue_depth = 2}};
    CHECK(tm_store_open(&s->store, s->layout, &o) == TM_OK);
    return 0;
}

static int close_state(state_on_disk *s) {
    CHECK(tm_store_remove(s->store) == TM_OK);
    tm_layout_free(s->layout);
    free(s->frame);
    return 0;
}

static int move(state_on_disk *s, uint32_t object, bool write) {
    store_target t = {.object = object};
    tm_io_req r = {0}, *batch[] = {&r}, *done[1];
    unsigned n = 0;
    if (write) {
        fill(s->frame, 0, s->bytes, object);
        store_prepare_write(s->store, &t, s->frame, &r);
    } else {
        memset(s->frame, 0, s->bytes);
        CHECK(store_prepare_read(s->store, &t, s->frame, &r) == TM_OK);
    }
    CHECK(tm_io_submit(store_io(s->store), batch, 1) == TM_OK);
    while (!n) CHECK(tm_io_wait(store_io(s->store), done, 1, &n, true) == TM_OK);
    CHECK(r.status == TM_OK);
    if (write) return 0;
    CHECK(store_check_read(s->store, &t, s->frame, &r) == TM_OK);
    CHECK(matches(s->frame, 0, s->bytes, object));
    return 0;
}

/* ---- beyond 4 GiB ---------------------------------------------------------------------------------------------- */

static int beyond(tm_io_file f, tm_io *io, unsigned seed) {
    enum { N = 1 << 20 };
    static const uint64_t high[] = {4 * TM_GIB - N / 2, 4 * TM_GIB + N, 5 * TM_GIB - N};
    char *buf = test_memory(N);
    for (unsigned i = 0; i < TM_COUNT(high); i++) {
        /* where it would go if the upper half were lost; of what crosses the border, the second half */
        uint64_t low = i ? high[i] - 4 * TM_GIB : 0;
        fill(buf, 0, N, seed + i);
        CHECK(one(io, TM_IO_WRITE, f, low, buf, N) == 0);
        fill(buf, 0, N, seed + 50 + i);
        CHECK(one(io, TM_IO_WRITE, f, high[i], buf, N) == 0);
        CHECK(one(io, TM_IO_READ, f, low, buf, N) == 0);
        CHECK(matches(buf, 0, N, seed + i));
        CHECK(one(io, TM_IO_READ, f, high[i], buf, N) == 0);
        CHECK(matches(buf, 0, N, seed + 50 + i));
    }
    free(buf);
    return 0;
}

static bool room_for(uint64_t bytes) {
    struct statfs st;
    bool fits = statfs(dir, &st) == 0 && (uint64_t)st.f_bavail * (uint64_t)st.f_bsize > bytes;
    if (!fits) TEST_SKIP_PART("places beyond 4 GiB need %.0f GiB of free disk", (double)bytes / (double)TM_GIB);
    return fits;
}

static void test_beyond_4_gib(void **state) {
    (void)state;
    tm_io_file f;
    if (!room_for(8 * TM_GIB)) return;
    tm_io_run *run;
    OK(tm_io_run_create(&run, dir, &(tm_io_run_opts){.allow_tmpfs = true}));
    OK(tm_io_file_create(run, "x", 5 * TM_GIB, false, &f));
    for (unsigned e = 0; e < N_ENGINES; e++) {
        tm_io *io = test_engine(&engine_cases[e], 4, 256 << 10);
        if (io) assert_int_equal(beyond(f, io, e * 10), 0);
        tm_io_close(io);
    }
    OK(tm_io_run_remove(run));
}

/* Extents of one kind that fill more than 4 GiB: the ones on either side of the border, the first and the last. */
static void test_store_beyond_4_gib(void **state) {
    (void)state;
    static const uint32_t object[] = {0, 1, 1022, 1023, 1024, 1025, 1099};
    const char *paths[] = {dir};
    state_on_disk s;
    if (!room_for(8 * TM_GIB)) return;
    assert_int_equal(open_state(&s, paths, 1, 1100, 4 * TM_MIB), 0);
    assert_true(s.store->extent[1099].offset > 4 * TM_GIB);
    for (int write = 1; write >= 0; write--)
        for (size_t i = 0; i < TM_COUNT(object); i++) assert_int_equal(move(&s, object[i], write), 0);
    assert_int_equal(close_state(&s), 0);
}

/* ---- several file systems -------------------------------------------------------------------------------------- */

/* This disk, one with sectors of 4 KiB, one of 512 bytes with little room, and a tmpfs where O_DIRECT may not be had:
 * each takes its part, the small ones what fits, and every object comes back. */
static int over_several(void) {
    enum { OBJECTS = 80 };
    if (own_mounts() != 0 || mount_disk("large", 4096, 96) != 0 || mount_disk("small", 512, 16) != 0) return SKIPPED;
    if (mkdir(at("memory"), 0700) != 0 || mount("tmpfs", at("memory"), "tmpfs", 0, "size=4m") != 0) return SKIPPED;
    const char *paths[] = {dir, at("large"), at("small"), at("memory")};
    state_on_disk s;
    uint64_t each[4] = {0};
    CHECK(open_state(&s, paths, 4, OBJECTS, TM_MIB) == 0);
    for (uint32_t i = 0; i < OBJECTS; i++) each[s.store->extent[i].path] += TM_MIB;
    CHECK(each[0] > 20 * TM_MIB && each[1] > 20 * TM_MIB);
    CHECK(each[2] >= 4 * TM_MIB && each[2] < 16 * TM_MIB && each[3] >= TM_MIB && each[3] < 4 * TM_MIB);
    for (int round = 0; round < 2; round++)
        for (uint32_t i = 0; i < OBJECTS; i++) CHECK(move(&s, i * 37 % OBJECTS, true) == 0);
    for (uint32_t i = 0; i < OBJECTS; i++) CHECK(move(&s, i, false) == 0);
    for (unsigned p = 0; p < 4; p++) CHECK(tm_store_written(s.store, p) == 2 * each[p]);
    CHECK(close_state(&s) == 0);
    return 0;
}

static void test_several(void **state) {
    (void)state;
    child_row(over_several);
}

/* Two folders of a small file system and this disk: the small one's room is there once. */
static int two_folders_of_one(void) {
    enum { OBJECTS = 60 };
    state_on_disk s;
    uint64_t each[3] = {0};
    if (own_mounts() != 0 || mkdir(at("memory"), 0700) != 0) return SKIPPED;
    if (mount("tmpfs", at("memory"), "tmpfs", 0, "size=24m") != 0) return SKIPPED;
    const char *paths[] = {at("memory/a"), at("memory/b"), dir};
    CHECK(mkdir(paths[0], 0700) == 0 && mkdir(paths[1], 0700) == 0);
    CHECK(open_state(&s, paths, 3, OBJECTS, TM_MIB) == 0);
    for (uint32_t i = 0; i < OBJECTS; i++) each[s.store->extent[i].path] += TM_MIB;
    CHECK(each[0] + each[1] > 16 * TM_MIB && each[0] + each[1] < 24 * TM_MIB);
    for (uint32_t i = 0; i < OBJECTS; i++) CHECK(move(&s, i, true) == 0);
    for (uint32_t i = 0; i < OBJECTS; i++) CHECK(move(&s, i, false) == 0);
    CHECK(close_state(&s) == 0);
    return 0;
}

/* ---- temporaries where there is little room --------------------------------------------------------------------- */

enum { TEMPS = 64, TEMP_BYTES = 256 << 10 };

static tm_status spill_handler(void *ctx, const tm_op *op, void *const *operand) {
    unsigned *wrong = ctx;
    if (op->code == 1)
        fill(operand[0], 0, TEMP_BYTES, op->arg[0]);
    else
        *wrong += !matches(operand[0], 0, TEMP_BYTES, op->arg[0]);
    return TM_OK;
}

/* Written one after the other, read in the same order: all of them lie on disk in between. */
static int spill_plan(tm_layout *l, tm_plan **plan) {
    tm_program *p;
    uint32_t temp[TEMPS];
    tm_plan_opts o = {.choose_residency = true, .spill = true};
    CHECK(tm_program_create(&p, l, "spill") == TM_OK);
    for (uint32_t i = 0; i < 2 * TEMPS; i++) {
        if (i < TEMPS)
            temp[i] =
                tm_program_temp(p, &(tm_object){.kind = TM_KIND_ACTIVATION, .bytes = TEMP_BYTES, .pageable = true});
        uint32_t v = tm_program_interval(p, temp[i % TEMPS], 1);
        tm_program_op(p, &(tm_op){.code = i < TEMPS ? 1 : 2, .arg = {i % TEMPS}});
        tm_program_use(p, v, i < TEMPS ? TM_USE_WRITE : TM_USE_READ);
    }
    CHECK(tm_plan_minimum(l, p, &o, &o.slab_bytes) == TM_OK);
    CHECK(tm_plan_compile(plan, l, p, &o, NULL) == TM_OK);
    tm_program_free(p);
    return 0;
}

/* 16 MiB of them over this disk and 6 MiB of memory: the small path takes what fits, and all come back, twice. */
static int spill_over_small(void) {
    tm_layout *l;
    tm_plan *plan;
    tm_store *store;
    tm_exec *exec;
    unsigned wrong = 0;
    if (own_mounts() != 0 || mkdir(at("memory"), 0700) != 0) return SKIPPED;
    if (mount("tmpfs", at("memory"), "tmpfs", 0, "size=6m") != 0) return SKIPPED;
    const char *paths[] = {dir, at("memory")};
    CHECK(tm_layout_create(&l) == TM_OK);
    if (spill_plan(l, &plan) != 0) return 1;
    const tm_plan_info *info = tm_plan_get_info(plan);
    CHECK(info->spill_file_bytes > 12 * TM_MIB && info->spill_largest_bytes == TEMP_BYTES);
    const tm_store_opts o = {.paths = paths,
                             .n_paths = 2,
                             .allow_tmpfs = true,
                             .spill_bytes = info->spill_file_bytes,
                             .spill_largest = info->spill_largest_bytes};
    CHECK(tm_store_open(&store, l, &o) == TM_OK);
    CHECK(tm_store_disk_bytes(store) == tm_store_spill_bytes(2, o.spill_bytes, o.spill_largest));
    CHECK(tm_exec_open(&exec, &(tm_exec_opts){.slab_bytes = info->slab_bytes, .store = store}) == TM_OK);
    for (int i = 0; i < 2; i++) CHECK(tm_exec_run(exec, plan, spill_handler, &wrong) == TM_OK);
    CHECK(wrong == 0);
    CHECK(tm_store_written(store, 1) >= 2 * 3 * TM_MIB && tm_store_written(store, 1) < 2 * 6 * TM_MIB);
    uint64_t written = 0;
    for (int k = 0; k < TM_KINDS; k++) written += info->write_bytes[k];
    CHECK(tm_store_written(store, 0) + tm_store_written(store, 1) == 2 * written);
    tm_exec_close(exec);
    CHECK(tm_store_remove(store) == TM_OK);
    tm_plan_free(plan);
    tm_layout_free(l);
    return 0;
}

/* ---- a disk that takes pages and loses them ---------------------------------------------------------------------- */

/* Of a disk of 48 MiB only 5 are there: the cache takes every write, the disk does not. Whoever drops pages from the
 * cache hears of it first; the sync must still fail. */
static int lost_pages(void) {
    enum { N = 1 << 20, BLOCKS = 24 };
    tm_io_run *run;
    tm_io_file f;
    tm_io *io;
    if (own_mounts() != 0 || mkdir(at("host"), 0700) != 0) return SKIPPED;
    if (mount("tmpfs", at("host"), "tmpfs", 0, "size=5m") != 0 || mount_disk("host/disk", 512, 48) != 0) return SKIPPED;
    char *buf = test_memory(N);
    memset(buf, 7, N);
    CHECK(tm_io_run_create(&run, at("host/disk"), NULL) == TM_OK);
    CHECK(tm_io_file_create(run, "x", BLOCKS * N, true, &f) == TM_OK);
    CHECK(tm_io_open(&io, &(tm_io_opts){.engine = "sync"}) == TM_OK);
    for (unsigned i = 0; i < BLOCKS; i++) CHECK(one(io, TM_IO_WRITE, f, (uint64_t)i * N, buf, N) == 0);
    tm_io_req s = {.op = TM_IO_SYNC, .file = f}, *batch[] = {&s}, *done[1];
    unsigned n = 0;
    CHECK(tm_io_submit(io, batch, 1) == TM_OK);
    while (!n) CHECK(tm_io_wait(io, done, 1, &n, true) == TM_OK);
    CHECK(s.status != TM_OK);
    tm_io_close(io);
    if (tm_io_run_remove(run) != TM_OK) tm_error_clear(); /* of a file system that has lost some of itself */
    free(buf);
    return 0;
}

static void test_small_paths(void **state) {
    (void)state;
    child_row(two_folders_of_one);
    child_row(spill_over_small);
}

static void test_lost_pages(void **state) {
    (void)state;
    child_row(lost_pages);
}

static int set_up(void **state) {
    (void)state;
    strcpy(dir, test_dir());
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sectors), cmocka_unit_test(test_beyond_4_gib), cmocka_unit_test(test_store_beyond_4_gib),
        cmocka_unit_test(test_several), cmocka_unit_test(test_small_paths),  cmocka_unit_test(test_lost_pages),
    };
    return cmocka_run_group_tests(tests, set_up, test_tear_down);
}
