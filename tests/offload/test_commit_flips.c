/* A single bit of a commit that is not as it was written: whoever reads the page that it is in is told so. Of a small
 * commit every bit and every length of every file, of a large one a sample. Pages are read as those read them who lay a
 * state out anew (tm_commit_read), a page a flip, so that a million is a matter of a minute;
 * tests/offload/test_commit.c flips bits under a whole restore.
 *
 * TIDEMILL_FLIPS=N TIDEMILL_FLIP_SEED=S TIDEMILL_FLIP_MIB=M: that many (default 4000, 7), of a commit of M MiB (8). */
#include "io/file/file.h"
#include "offload/exec/exec.h"
#include "offload/plan/plan.h"
#include "offload/store/store.h"
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
#include <unistd.h>

enum { KINDS = 4, TILE_BYTES = 1 << 20, SMALL_BYTES = 4096, PAGE_BYTES = 64 << 10 }; /* weights and moments */

typedef struct large {
    char path[64], directory[4096];
    uint32_t tiles, tile_bytes;
    uint64_t seed, draws;
    tm_commit_reader *reader;
    int fd[KINDS];
} large;

static uint32_t draw(large *l, uint32_t below) {
    uint32_t r[4];
    tm_philox(2026, l->seed, l->draws++, r);
    return (uint32_t)((uint64_t)r[0] * below >> 32);
}

/* No two words of the state are alike. */
static uint64_t word_at(uint32_t kind, uint32_t tile, uint64_t i) {
    return ((uint64_t)kind << 62 | (uint64_t)tile << 32 | i) * 0x9e3779b97f4a7c15;
}

static tm_status fill(void *ctx, const tm_op *op, void *const *operand) {
    const large *l = ctx;
    uint64_t *to = operand[0];
    for (uint64_t i = 0; i < l->tile_bytes / sizeof *to; i++) to[i] = word_at(op->arg[0], op->arg[1], i);
    return TM_OK;
}

static void make_plan(tm_layout *layout, tm_plan **plan, uint64_t *slab) {
    tm_program *p;
    OK(tm_program_create(&p, layout, "fill"));
    for (uint32_t i = 0; i < tm_layout_objects(layout); i++) {
        uint32_t v = tm_program_interval(p, i, 1);
        tm_program_op(p, &(tm_op){.code = 1, .arg = {i % KINDS, i / KINDS}});
        tm_program_use(p, v, TM_USE_WRITE);
    }
    tm_plan_opts o = {.choose_residency = true};
    OK(tm_plan_minimum(layout, p, &o, slab));
    o.slab_bytes = *slab;
    OK(tm_plan_compile(plan, layout, p, &o, NULL));
    tm_program_free(p);
}

static void make_commit(large *l) {
    static const char info[] = "{\"step\": 1}";
    const char *path = l->path;
    tm_layout *layout;
    tm_plan *plan;
    tm_store *store;
    tm_exec *exec;
    tm_commit_stats stats;
    uint64_t slab = 0;
    OK(tm_layout_create(&layout));
    for (uint32_t i = 0; i < l->tiles * KINDS; i++)
        assert_int_equal(tm_layout_object(layout, &(tm_object){.kind = (tm_kind)(i % KINDS),
                                                               .unit = i / KINDS,
                                                               .bundle = i,
                                                               .bytes = l->tile_bytes,
                                                               .pageable = true}),
                         i);
    make_plan(layout, &plan, &slab);
    OK(tm_store_open(
        &store, layout,
        &(tm_store_opts){
            .commits = true, .paths = &path, .n_paths = 1, .allow_tmpfs = true, .io = {.engine = "sync"}}));
    OK(tm_exec_open(&exec, &(tm_exec_opts){.slab_bytes = slab, .store = store}));
    OK(tm_exec_run(exec, plan, fill, l));
    OK(tm_store_commit(store, tm_exec_slab(exec),
                       &(tm_commit_opts){.step = 1, .info = info, .info_bytes = sizeof info - 1}, &stats));
    snprintf(l->directory, sizeof l->directory, "%s", tm_store_path(store, 0));
    tm_exec_close(exec);
    tm_store_close(store);
    tm_plan_free(plan);
    tm_layout_free(layout);
}

static void open_files(large *l) {
    OK(tm_commit_reader_open(&l->reader, l->directory));
    for (int k = 0; k < KINDS; k++) {
        char path[4200];
        snprintf(path, sizeof path, "%s/%s", l->directory, tm_kind_name((tm_kind)k));
        l->fd[k] = open(path, O_RDWR | O_CLOEXEC);
        assert_true(l->fd[k] >= 0);
    }
}

/* Where the tile lies in its file: its slot is the commit's business, its first word says where it is. */
static off_t place_of(const large *l, uint32_t kind, uint32_t tile) {
    off_t size = lseek(l->fd[kind], 0, SEEK_END), at = 0;
    uint64_t want = word_at(kind, tile, 1), have = ~want;
    for (; at < size; at += l->tile_bytes) {
        assert_int_equal(pread(l->fd[kind], &have, sizeof have, at + (off_t)sizeof have), sizeof have);
        if (have == want) break;
    }
    assert_int_equal(have, want);
    return at;
}

static void flip(const large *l, uint32_t kind, off_t at, unsigned bit) {
    unsigned char c;
    assert_int_equal(pread(l->fd[kind], &c, 1, at), 1);
    c ^= (unsigned char)(1u << bit);
    assert_int_equal(pwrite(l->fd[kind], &c, 1, at), 1);
}

static tm_status read_word(const large *l, uint32_t kind, uint32_t tile, uint64_t at) {
    uint64_t have, first = at / sizeof have;
    tm_status rc = tm_commit_read(l->reader, (tm_kind)kind, tile, first * sizeof have, &have, sizeof have);
    if (rc == TM_OK) assert_int_equal(have, word_at(kind, tile, first));
    return rc;
}

/* The flip is read where it is, or by the word at the other end of its page: a page is whole or it is not. */
static void one_flip(large *l, const off_t *place) {
    uint32_t kind = draw(l, KINDS), tile = draw(l, l->tiles), at = draw(l, TILE_BYTES);
    uint64_t read = draw(l, 2) ? at : at / PAGE_BYTES * PAGE_BYTES + PAGE_BYTES - 1 - at % PAGE_BYTES;
    unsigned bit = draw(l, 8);
    off_t where = place[tile * KINDS + kind] + (off_t)at;
    flip(l, kind, where, bit);
    tm_status rc = read_word(l, kind, tile, read);
    if (rc != TM_ECORRUPT)
        fail_msg("bit %u of byte %u of %s %u: %s", bit, at, tm_kind_name((tm_kind)kind), tile, tm_status_name(rc));
    tm_error_clear();
    flip(l, kind, where, bit);
    if (l->draws % 64 == 0) OK(read_word(l, kind, tile, read));
}

static large open_commit(uint32_t tiles, uint32_t tile_bytes) {
    large l = {.tiles = tiles, .tile_bytes = tile_bytes, .seed = test_option("TIDEMILL_FLIP_SEED", 7)};
    /* a reader gives its pages back: on a disk each flip would have to be written and read again */
    snprintf(l.path, sizeof l.path, "%stidemill-flips-XXXXXX", tm_path_is_dir("/dev/shm") ? "/dev/shm/" : "");
    assert_non_null(mkdtemp(l.path));
    make_commit(&l);
    open_files(&l);
    return l;
}

static void close_commit(large *l) {
    for (uint32_t i = 0; i < l->tiles * KINDS; i++) OK(read_word(l, i % KINDS, i / KINDS, 0)); /* all as it was */
    for (int k = 0; k < KINDS; k++) close(l->fd[k]);
    tm_commit_reader_close(l->reader);
    OK(tm_remove_tree(l->path));
}

static void every_flip_is_noticed(void **state) {
    (void)state;
    uint64_t flips = test_option("TIDEMILL_FLIPS", 4000);
    large l = open_commit((uint32_t)test_option("TIDEMILL_FLIP_MIB", 8) / KINDS, TILE_BYTES);
    assert_true(l.tiles > 0);
    off_t *place = calloc(l.tiles * (size_t)KINDS, sizeof *place);
    assert_non_null(place);
    for (uint32_t i = 0; i < l.tiles * KINDS; i++) place[i] = place_of(&l, i % KINDS, i / KINDS);
    for (uint64_t i = 0; i < flips; i++) one_flip(&l, place);
    free(place);
    close_commit(&l);
}

/* ---- all of a small one ---------------------------------------------------------------------------------------- */

/* Sanitizers make it slow: a part of the bits there, others in each byte. */
#ifdef TIDEMILL_SANITIZED
enum { BIT_STEP = 3 };
#else
enum { BIT_STEP = 1 };
#endif

static tm_status open_only(const large *l) {
    tm_commit *c = NULL;
    tm_status rc = tm_commit_open(&c, l->directory, NULL);
    tm_commit_close(c);
    return rc;
}

static void noticed(tm_status rc, const char *what, uint64_t at) {
    if (rc != TM_ECORRUPT) fail_msg("%s %llu: %s", what, (unsigned long long)at, tm_status_name(rc));
    tm_error_clear();
}

static void every_bit_of_the_state(void **state) {
    (void)state;
    large l = open_commit(1, SMALL_BYTES);
    for (uint32_t kind = 0; kind < KINDS; kind++) {
        off_t place = place_of(&l, kind, 0);
        for (uint64_t bit = kind; bit < 8 * SMALL_BYTES; bit += BIT_STEP) {
            flip(&l, kind, place + (off_t)(bit / 8), (unsigned)bit % 8);
            noticed(read_word(&l, kind, 0, bit % SMALL_BYTES), tm_kind_name((tm_kind)kind), bit);
            flip(&l, kind, place + (off_t)(bit / 8), (unsigned)bit % 8);
        }
    }
    close_commit(&l);
}

static void every_bit_and_length_of_the_manifest(void **state) {
    (void)state;
    large l = open_commit(1, SMALL_BYTES);
    unsigned char whole[4096];
    char path[4200];
    int states = l.fd[0];
    snprintf(path, sizeof path, "%s/manifest", l.directory);
    l.fd[0] = open(path, O_RDWR | O_CLOEXEC); /* for flip() */
    ssize_t n = pread(l.fd[0], whole, sizeof whole, 0);
    assert_in_range(n, 200, sizeof whole - 1);
    for (ssize_t bit = 0; bit < 8 * n; bit += BIT_STEP) {
        flip(&l, 0, bit / 8, (unsigned)bit % 8);
        noticed(open_only(&l), "manifest, bit", (uint64_t)bit);
        flip(&l, 0, bit / 8, (unsigned)bit % 8);
    }
    OK(open_only(&l));
    for (ssize_t cut = n - 1; cut >= 0; cut--) {
        assert_int_equal(ftruncate(l.fd[0], cut), 0);
        noticed(open_only(&l), "manifest of bytes", (uint64_t)cut);
    }
    assert_int_equal(pwrite(l.fd[0], whole, (size_t)n, 0), n);
    OK(open_only(&l));
    close(l.fd[0]);
    l.fd[0] = states;
    close_commit(&l);
}

static void every_length_of_the_state(void **state) {
    (void)state;
    large l = open_commit(1, SMALL_BYTES);
    static unsigned char whole[64 * SMALL_BYTES];
    for (uint32_t kind = 0; kind < KINDS; kind++) {
        ssize_t n = pread(l.fd[kind], whole, sizeof whole, 0);
        assert_in_range(n, SMALL_BYTES, sizeof whole - 1);
        for (ssize_t cut = n - 1; cut >= 0; cut -= BIT_STEP) {
            assert_int_equal(ftruncate(l.fd[kind], cut), 0);
            noticed(tm_commit_present(l.directory), tm_kind_name((tm_kind)kind), (uint64_t)cut);
        }
        assert_int_equal(pwrite(l.fd[kind], whole, (size_t)n, 0), n);
        OK(tm_commit_present(l.directory));
    }
    close_commit(&l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_flip_is_noticed), cmocka_unit_test(every_bit_of_the_state),
        cmocka_unit_test(every_bit_and_length_of_the_manifest), cmocka_unit_test(every_length_of_the_state)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
