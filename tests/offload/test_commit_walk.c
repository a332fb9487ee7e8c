/* Every call of a commit's life fails in turn (tests/walk.h): state over two paths is written, committed, gone back to,
 * copied, read by others, removed. What passes all the same has the right bytes; what fails says why and holds nothing,
 * and what was committed by then, or the step that was being committed, can be restored from what is left. */
#include "commit_world.h"
#include "tests/support/walk.h"

static char a[128], b[128]; /* offload paths */
enum { SLAB = 200000 };

/* Made once: plans are not what fails here. */
typedef struct life {
    world w;
    tm_plan *fill;
    const char *engine;
    char run[4096];
    uint64_t committed; /* the step whose commit has returned; 0: none yet, or it is being removed */
} life;

static tm_status bad(const char *what) {
    fail_msg("%s, and no error", what);
    return TM_EBUG;
}

static tm_status open_state(life *l, tm_commit *resume) {
    const char *paths[] = {a, b};
    world *w = &l->w;
    TM_TRY(tm_make_dirs(a));
    TM_TRY(tm_make_dirs(b));
    TM_TRY(tm_store_open(&w->store, w->layout,
                         &(tm_store_opts){.commits = true,
                                          .resume = resume,
                                          .paths = paths,
                                          .n_paths = 2,
                                          .name = "walk",
                                          .allow_tmpfs = true,
                                          .io = {.engine = l->engine, .block_bytes = 65536}}));
    return tm_exec_open(&w->exec, &(tm_exec_opts){.slab_bytes = SLAB, .store = w->store});
}

static tm_status step_and_commit(world *w) {
    tm_commit_stats s;
    TM_TRY(tm_exec_run(w->exec, w->step_plan, world_op, w));
    w->step++;
    if (w->wrong) return bad("another state was read");
    return world_commit(w, &s);
}

static tm_status step_and_note(life *l) {
    TM_TRY(step_and_commit(&l->w));
    l->committed = l->w.step;
    return TM_OK;
}

/* The state's files stay, as after a kill. */
static tm_status close_state(world *w, tm_status rc) {
    tm_error said = *tm_error_get();
    tm_exec_close(w->exec);
    tm_store_close(w->store);
    w->exec = NULL, w->store = NULL;
    if (rc != TM_OK) tm_error_clear(), tm_error_set(&said);
    return rc;
}

static tm_status first_process(life *l) {
    world *w = &l->w;
    tm_status rc = open_state(l, NULL);
    if (rc == TM_OK) snprintf(l->run, sizeof l->run, "%s", tm_store_path(w->store, 0));
    if (rc == TM_OK) rc = tm_exec_run(w->exec, l->fill, world_op, w);
    if (rc == TM_OK) tm_store_mark_committed(w->store);
    for (int i = 0; i < 2 && rc == TM_OK; i++) rc = step_and_note(l);
    return close_state(w, rc);
}

static const char *prepared(void) {
    static char path[160];
    snprintf(path, sizeof path, "%s/prepared", walk_dir());
    return path;
}

/* Prepared and not published, as by a rank that was killed between the two: who closes a store takes it back, so it has
 * a second name meanwhile. */
static tm_status prepare_only(life *l) {
    world *w = &l->w;
    tm_commit_stats s;
    char next[4200];
    TM_TRY(tm_exec_run(w->exec, w->step_plan, world_op, w));
    w->step++;
    TM_TRY(tm_store_commit_prepare(w->store, tm_exec_slab(w->exec),
                                   &(tm_commit_opts){.step = w->step, .info = "{}", .info_bytes = 2}, &s));
    snprintf(next, sizeof next, "%s/manifest.next", l->run);
    return link(next, prepared()) == 0 ? TM_OK : bad("nothing is prepared");
}

static tm_status roll_forward(life *l) {
    char next[4200];
    snprintf(next, sizeof next, "%s/manifest.next", l->run);
    if (rename(prepared(), next) != 0) return bad("what was prepared is gone");
    TM_TRY(tm_commit_roll_forward(l->run, 3, NULL));
    l->committed = 3;
    return TM_OK;
}

static tm_status go_on(life *l, tm_commit *c, tm_status (*more)(life *)) {
    world *w = &l->w;
    w->step = tm_commit_step(c);
    tm_status rc = open_state(l, c);
    if (rc == TM_OK) rc = tm_store_restore(w->store, tm_exec_slab(w->exec));
    if (rc == TM_OK) rc = tm_exec_run(w->exec, w->check_plan, world_op, w);
    if (rc == TM_OK && w->wrong) rc = bad("another state was restored");
    if (rc == TM_OK && more) rc = more(l);
    return close_state(w, rc);
}

static tm_status from(life *l, const char *directory, uint64_t step, tm_status (*more)(life *)) {
    tm_commit *c;
    TM_TRY(tm_commit_open(&c, directory, NULL));
    tm_status rc = tm_commit_step(c) == step ? TM_OK : bad("a commit of another step");
    if (rc == TM_OK) rc = go_on(l, c, more);
    tm_commit_close(c);
    return rc;
}

static tm_status read_by_others(life *l) {
    static char got[160000], want[160000];
    tm_commit_reader *r;
    TM_TRY(tm_commit_reader_open(&r, l->run));
    uint64_t step = tm_commit_step(tm_commit_reader_commit(r)), n = w_bytes[2] + 4096;
    tm_status rc = tm_commit_read(r, (tm_kind)2, 1, 100, got, n - 100);
    world_fill(want, n, step, 2, 1);
    if (rc == TM_OK && memcmp(got, want + 100, n - 100) != 0) rc = bad("other bytes were read");
    tm_commit_reader_close(r);
    return rc;
}

static tm_status remove_commit(const char *directory) {
    tm_commit *c;
    TM_TRY(tm_commit_open(&c, directory, NULL));
    return tm_commit_remove(c);
}

static tm_status all_of_it(life *l, const char *copy) {
    const char *to = b;
    TM_TRY(first_process(l));
    TM_TRY(from(l, l->run, 2, prepare_only));
    TM_TRY(roll_forward(l));
    TM_TRY(read_by_others(l));
    TM_TRY(tm_commit_copy(l->run, &(tm_commit_copy_opts){.paths = &to, .n_paths = 1, .id = "copy", .slots = 2}));
    l->committed = 0;
    TM_TRY(remove_commit(l->run));
    TM_TRY(from(l, copy, 3, NULL));
    TM_TRY(remove_commit(copy));
    return access(copy, F_OK) && access(l->run, F_OK) ? TM_OK : bad("a removed state is still there");
}

/* As the next process would: the commit of the step that was noted last, or of the one after it, whole. */
static void expect_commit(life *l) {
    tm_error said = *tm_error_get();
    uint64_t noted = l->committed;
    tm_commit *c;
    (void)!tm_fault_set(NULL);
    tm_error_clear();
    if (tm_commit_open(&c, l->run, NULL) != TM_OK)
        fail_msg("after \"%s\" the commit of step %u is lost: %s", said.text, (unsigned)noted, tm_error_get()->text);
    uint64_t step = tm_commit_step(c);
    if (step != noted && step != noted + 1)
        fail_msg("after \"%s\" step %u is committed, not %u", said.text, (unsigned)step, (unsigned)noted);
    if (go_on(l, c, NULL) != TM_OK) fail_msg("after \"%s\": %s", said.text, tm_error_get()->text);
    tm_commit_close(c);
    tm_error_set(&said);
}

static tm_status commit_life(void *ctx) {
    life *l = ctx;
    char copy[4096];
    l->w.step = 0, l->w.wrong = 0, l->committed = 0;
    walk_clear(walk_dir());
    snprintf(copy, sizeof copy, "%s/run-copy", b);
    tm_status rc = all_of_it(l, copy);
    if (rc != TM_OK && l->committed) expect_commit(l);
    return rc;
}

static void test_lives(void **state) {
    static const char *const kinds[] = {"eio", "enospc"}, *const engines[] = {"sync", "threads"};
    (void)state;
    snprintf(a, sizeof a, "%s/a", walk_dir());
    snprintf(b, sizeof b, "%s/b", walk_dir());
    life l = {.engine = engines[0]};
    world_layout(&l.w, false);
    l.w.step_plan = world_plan(&l.w, W_OP_STEP, SLAB, true);
    l.w.check_plan = world_plan(&l.w, W_OP_CHECK, SLAB, false);
    l.fill = world_plan(&l.w, W_OP_FILL, SLAB, false);
    for (size_t i = 0; i < TM_COUNT(engines); i++) {
        l.engine = engines[i];
        assert_true(walk_every(commit_life, &l, kinds, TM_COUNT(kinds), walk_points(i ? 1 : 3)) >= 10);
    }
    tm_plan_free(l.fill);
    tm_plan_free(l.w.step_plan);
    tm_plan_free(l.w.check_plan);
    tm_layout_free(l.w.layout);
}

static int gone(void **state) {
    (void)state;
    walk_gone(walk_dir());
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_lives)};
    tm_log_set_level(TM_LOG_ERROR);
    return cmocka_run_group_tests_name("commit_walk", tests, NULL, gone);
}
