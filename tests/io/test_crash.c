/* Crash states of the commit protocol. What the store asks of the system while it makes a commit is recorded; then the
 * machine is stopped after every call, and what was not yet synced is lost, kept or torn at random. What is found on
 * disk afterwards is always the commit before or this one, whole.
 *
 * TIDEMILL_CRASH_STATES=N TIDEMILL_CRASH_SEED=S: that many random states (default 300, 1). */
#include "tests/offload/commit_world.h"

#include "io/io_internal.h"
#include "io/file/file.h"
#include "tests/support/support.h"

#include <errno.h>
#include <fcntl.h>

static char dir[] = "test_crash.offload", replay_dir[] = "test_crash.replay/run-replay";

/* ---- the recording --------------------------------------------------------------------------------------------- */

typedef enum rec_kind {
    REC_WRITE,
    REC_CREATE,
    REC_RENAME,
    REC_UNLINK,
    REC_SYNC_FILE,
    REC_SYNC_DIR,
    REC_NOTHING
} rec_kind;
typedef struct record {
    rec_kind kind;
    unsigned file; /* index of the inode */
    char name[64], to[64];
    uint64_t offset;
    size_t n;
    char *bytes;
} record;

enum { MAX_RECORDS = 4096, MAX_INODES = 64 };
static record rec[MAX_RECORDS];
static unsigned n_rec;
static ino_t inode[MAX_INODES];
static unsigned n_inodes;
static bool recording;
static const io_sys *real;

static unsigned inode_of(int fd, bool *is_dir) {
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    *is_dir = S_ISDIR(st.st_mode);
    for (unsigned i = 0; i < n_inodes; i++)
        if (inode[i] == st.st_ino) return i;
    assert_true(n_inodes < MAX_INODES);
    inode[n_inodes] = st.st_ino;
    return n_inodes++;
}

static record *add(rec_kind kind) {
    assert_true(n_rec < MAX_RECORDS);
    rec[n_rec] = (record){.kind = kind};
    return &rec[n_rec++];
}

static ssize_t on_pwrite(int fd, const void *buf, size_t n, off_t offset) {
    bool is_dir;
    if (recording) {
        record *r = add(REC_WRITE);
        r->file = inode_of(fd, &is_dir);
        r->offset = (uint64_t)offset;
        r->n = n;
        r->bytes = malloc(n);
        assert_non_null(r->bytes);
        memcpy(r->bytes, buf, n);
    }
    return real->pwrite(fd, buf, n, offset);
}

static void on_sync(int fd) {
    bool is_dir;
    if (!recording) return;
    unsigned f = inode_of(fd, &is_dir);
    add(is_dir ? REC_SYNC_DIR : REC_SYNC_FILE)->file = f;
}
static int on_fsync(int fd) {
    on_sync(fd);
    return real->fsync(fd);
}
static int on_fdatasync(int fd) {
    on_sync(fd);
    return real->fdatasync(fd);
}

static int on_openat(int at, const char *path, int flags, mode_t mode) {
    int fd = real->openat(at, path, flags, mode);
    bool is_dir;
    if (recording && fd >= 0 && (flags & O_CREAT)) {
        record *r = add(REC_CREATE);
        r->file = inode_of(fd, &is_dir);
        snprintf(r->name, sizeof r->name, "%s", path);
    }
    return fd;
}

static int on_renameat(int from_dir, const char *from, int to_dir, const char *to) {
    if (recording) {
        record *r = add(REC_RENAME);
        snprintf(r->name, sizeof r->name, "%s", from);
        snprintf(r->to, sizeof r->to, "%s", to);
    }
    return real->renameat(from_dir, from, to_dir, to);
}

static int on_unlinkat(int at, const char *path, int flags) {
    if (recording) snprintf(add(REC_UNLINK)->name, sizeof rec[0].name, "%s", path);
    return real->unlinkat(at, path, flags);
}

/* ---- a disk in memory ------------------------------------------------------------------------------------------ */

typedef struct image {
    char *bytes;
    size_t n;
} image;
typedef struct entry {
    char name[64];
    unsigned file;
} entry;
typedef struct disk {
    image file[MAX_INODES];
    entry entry[MAX_INODES];
    unsigned entries;
} disk;

static image *grown(disk *d, unsigned file, size_t n) {
    image *m = &d->file[file];
    if (n > m->n) {
        m->bytes = realloc(m->bytes, n);
        assert_non_null(m->bytes);
        memset(m->bytes + m->n, 0, n - m->n);
        m->n = n;
    }
    return m;
}

static void disk_copy(disk *to, const disk *from) {
    *to = *from;
    for (unsigned i = 0; i < MAX_INODES; i++) {
        if (!from->file[i].bytes) continue;
        to->file[i].bytes = malloc(from->file[i].n + 1);
        assert_non_null(to->file[i].bytes);
        memcpy(to->file[i].bytes, from->file[i].bytes, from->file[i].n);
    }
}

static void disk_free(disk *d) {
    for (unsigned i = 0; i < MAX_INODES; i++) free(d->file[i].bytes);
    *d = (disk){0};
}

static entry *find_entry(disk *d, const char *name) {
    for (unsigned i = 0; i < d->entries; i++)
        if (strcmp(d->entry[i].name, name) == 0) return &d->entry[i];
    return NULL;
}

static void link_name(disk *d, const char *name, unsigned file) {
    entry *e = find_entry(d, name);
    if (!e) e = &d->entry[d->entries++];
    assert_true(d->entries < MAX_INODES);
    snprintf(e->name, sizeof e->name, "%s", name);
    e->file = file;
}

static void drop_name(disk *d, const char *name) {
    entry *e = find_entry(d, name);
    if (e) *e = d->entry[--d->entries];
}

/* A torn write: each sector is there or not. */
static void apply(disk *d, const record *r, uint64_t (*coin)(void), bool torn) {
    entry *e;
    switch (r->kind) {
    case REC_WRITE: {
        image *m = grown(d, r->file, r->offset + r->n);
        for (size_t at = 0; at < r->n; at += 512)
            if (!torn || coin() % 2) memcpy(m->bytes + r->offset + at, r->bytes + at, tm_min_u64(512, r->n - at));
        break;
    }
    case REC_CREATE:
        link_name(d, r->name, r->file);
        break;
    case REC_RENAME:
        e = find_entry(d, r->name);
        if (!e) break; /* its creation was lost */
        link_name(d, r->to, e->file);
        drop_name(d, r->name);
        break;
    case REC_UNLINK:
        drop_name(d, r->name);
        break;
    default:
        break;
    }
}

static bool is_entry(const record *r) {
    return r->kind == REC_CREATE || r->kind == REC_RENAME || r->kind == REC_UNLINK;
}

/* A sync before the stop that covers call i: of its file, or, for names, of a directory. */
static bool synced(unsigned i, unsigned stop) {
    for (unsigned k = i + 1; k < stop; k++) {
        if (is_entry(&rec[i]) && rec[k].kind == REC_SYNC_DIR) return true;
        if (rec[i].kind == REC_WRITE && rec[k].kind == REC_SYNC_FILE && rec[k].file == rec[i].file) return true;
    }
    return false;
}

static uint64_t seed, drawn;
static uint64_t draw(void) {
    uint32_t r[4];
    tm_philox(seed, 0, drawn++, r);
    return r[0];
}

/* What is on disk after the first `stop` calls. At random: unsynced calls are done, lost or torn, each on its own
 * (names in order: a journal loses the end of what it was told, not the middle). */
static void crash(disk *d, const disk *base, unsigned stop, bool random) {
    bool names_end = false;
    disk_copy(d, base);
    for (unsigned i = 0; i < stop; i++) {
        uint64_t r = random && !synced(i, stop) ? draw() % 4 : 0;
        if (is_entry(&rec[i])) {
            names_end = names_end || r == 1;
            if (!names_end) apply(d, &rec[i], draw, false);
        } else if (r != 1) {
            apply(d, &rec[i], draw, r == 2);
        }
    }
}

/* ---- from a directory and back --------------------------------------------------------------------------------- */

static tm_status take_file(void *ctx, const char *name, bool is_dir) {
    disk *d = ctx;
    char path[4200];
    tm_buf b = {0};
    bool dummy;
    if (is_dir) return TM_OK;
    snprintf(path, sizeof path, "%s", name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    assert_true(fd >= 0);
    unsigned f = inode_of(fd, &dummy);
    close(fd);
    TM_TRY(tm_file_slurp(path, 64 << 20, &b));
    image *m = grown(d, f, b.len);
    if (b.len) memcpy(m->bytes, b.data, b.len);
    tm_buf_free(&b);
    link_name(d, name, f);
    return TM_OK;
}

static void take_directory(disk *d, const char *path) {
    char here[4096];
    assert_non_null(getcwd(here, sizeof here));
    assert_int_equal(chdir(path), 0);
    OK(tm_list_dir(".", take_file, d));
    assert_int_equal(chdir(here), 0);
}

static void put_directory(const disk *d) {
    char path[4200];
    OK(tm_remove_tree("test_crash.replay"));
    assert_int_equal(mkdir("test_crash.replay", 0700), 0);
    assert_int_equal(mkdir(replay_dir, 0700), 0);
    for (unsigned i = 0; i < d->entries; i++) {
        const image *m = &d->file[d->entry[i].file];
        snprintf(path, sizeof path, "%s/%s", replay_dir, d->entry[i].name);
        int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
        assert_true(fd >= 0);
        if (m->n) assert_int_equal(pwrite(fd, m->bytes, m->n, 0), m->n);
        close(fd);
    }
}

/* The step of the commit that is found, all of its bytes checked. */
static uint64_t found(const disk *d, unsigned residency) {
    static const uint64_t slabs[] = {0, 700000, 64 << 20};
    tm_commit *c;
    world w;
    put_directory(d);
    OK(tm_commit_open(&c, replay_dir, NULL));
    OK(world_open(&w, &(world_opts){.resume = c, .slab = slabs[residency % 3]}));
    tm_commit_close(c);
    world_check(&w);
    uint64_t step = w.step;
    world_close(&w, true);
    return step;
}

/* ---- the test -------------------------------------------------------------------------------------------------- */

/* One step and its commit, recorded over a base that holds the commit of the step before. */
static void record_commit(disk *base, uint64_t slab) {
    world w;
    io_sys table = *(real = io_sys_table);
    table.pwrite = on_pwrite;
    table.fsync = on_fsync;
    table.fdatasync = on_fdatasync;
    table.openat = on_openat;
    table.renameat = on_renameat;
    table.unlinkat = on_unlinkat;
    OK(world_open(&w, &(world_opts){.path = dir, .slab = slab}));
    world_step(&w);
    OK(world_commit(&w, NULL));
    take_directory(base, tm_store_path(w.store, 0));
    io_sys_table = &table;
    recording = true;
    world_step(&w);
    OK(world_commit(&w, NULL));
    recording = false;
    io_sys_table = real;
    world_close(&w, false);
}

static void forget(void) {
    for (unsigned i = 0; i < n_rec; i++) free(rec[i].bytes);
    n_rec = n_inodes = 0;
}

static void explore(uint64_t slab, uint64_t samples) {
    disk base = {0}, d;
    unsigned before = 0, after = 0, renames = 0;
    record_commit(&base, slab);
    for (unsigned i = 0; i < n_rec; i++) renames += rec[i].kind == REC_RENAME;
    assert_int_equal(renames, 1);
    for (unsigned stop = 0; stop <= n_rec; stop++) { /* every prefix */
        crash(&d, &base, stop, false);
        uint64_t step = found(&d, stop);
        disk_free(&d);
        assert_true(step == 1 || step == 2);
        assert_true(step == 2 || !after); /* once there, it stays */
        *(step == 2 ? &after : &before) += 1;
    }
    assert_true(before > 10 && after >= 1);
    before = after = 0;
    for (uint64_t i = 0; i < samples; i++) {
        unsigned stop = (unsigned)(draw() % (n_rec + 1));
        if (draw() % 3 == 0) stop = n_rec - (unsigned)(draw() % 4); /* about the rename */
        crash(&d, &base, stop, true);
        uint64_t step = found(&d, (unsigned)i);
        disk_free(&d);
        assert_true(step == 1 || step == 2);
        if (stop == n_rec) assert_int_equal(step, 2); /* the commit had returned */
        *(step == 2 ? &after : &before) += 1;
    }
    assert_true(samples < 50 || (before > 0 && after > 0));
    disk_free(&base);
    forget();
}

static void every_crash_state_holds_one_whole_commit(void **state) {
    (void)state;
    static const uint64_t slabs[] = {0, 700000, 64 << 20}; /* paged; in part; resident */
    uint64_t samples = test_option("TIDEMILL_CRASH_STATES", 300);
    seed = test_option("TIDEMILL_CRASH_SEED", 1);
    for (unsigned i = 0; i < TM_COUNT(slabs); i++) explore(slabs[i], samples / TM_COUNT(slabs));
}

/* The exploration notices a protocol that is wrong: without its syncs, a state is found that holds no commit. */
static void a_protocol_without_syncs_is_noticed(void **state) {
    (void)state;
    disk base = {0}, d;
    unsigned broken = 0;
    record_commit(&base, 64 << 20);
    for (unsigned i = 0; i < n_rec; i++)
        if (rec[i].kind == REC_SYNC_FILE) rec[i].kind = REC_NOTHING;
    seed = 3;
    for (unsigned i = 0; i < 20; i++) {
        world w;
        tm_commit *c;
        crash(&d, &base, n_rec, true);
        put_directory(&d);
        disk_free(&d);
        tm_status rc = tm_commit_open(&c, replay_dir, NULL);
        if (rc == TM_OK) {
            rc = world_open(&w, &(world_opts){.resume = c, .slab = 64 << 20});
            tm_commit_close(c);
            world_close(&w, true);
        }
        broken += rc != TM_OK;
        tm_error_clear();
    }
    assert_true(broken > 10);
    disk_free(&base);
    forget();
}

static int clean(void **state) {
    (void)state;
    tm_error_clear();
    return tm_remove_tree("test_crash.replay") != TM_OK || tm_remove_tree(dir) != TM_OK;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_crash_state_holds_one_whole_commit, clean, clean),
        cmocka_unit_test_setup_teardown(a_protocol_without_syncs_is_noticed, clean, clean),
    };
    return cmocka_run_group_tests_name("crash", tests, NULL, NULL);
}
