/* A run goes on where its commit lies: a path that the configuration names and the commit does not is warned of. */
#include "commit_world.h"
#include "io/file/file.h"

#include <fcntl.h>

static char first[] = "test_resume.first", other[] = "test_resume.other";

static int fresh(void **state) {
    (void)state;
    tm_error_clear();
    return tm_remove_tree(first) != TM_OK || tm_remove_tree(other) != TM_OK || mkdir(other, 0700) != 0;
}

static int clean(void **state) {
    (void)state;
    return tm_remove_tree(first) != TM_OK || tm_remove_tree(other) != TM_OK;
}

/* What going on with `path` in the configuration says on stderr. */
static void go_on(const char *commit, const char *path, tm_buf *said) {
    world w;
    tm_commit *c;
    OK(tm_commit_open(&c, commit, NULL));
    fflush(stderr);
    int keep = dup(2), fd = open("test_resume.said", O_RDWR | O_CREAT | O_TRUNC, 0600);
    assert_true(keep >= 0 && fd >= 0 && dup2(fd, 2) == 2);
    tm_status rc = world_open(&w, &(world_opts){.path = path, .resume = c});
    fflush(stderr);
    assert_int_equal(dup2(keep, 2), 2);
    close(keep);
    close(fd);
    tm_commit_close(c);
    OK(rc);
    world_check(&w);
    world_close(&w, true);
    tm_buf_clear(said);
    OK(tm_file_slurp("test_resume.said", 1 << 16, said));
    assert_int_equal(unlink("test_resume.said"), 0);
}

static void unused_paths_are_named(void **state) {
    (void)state;
    world w;
    char commit[4096];
    tm_buf said = {0};
    OK(world_open(&w, &(world_opts){.path = first}));
    world_step(&w);
    OK(world_commit(&w, NULL));
    snprintf(commit, sizeof commit, "%s", tm_store_path(w.store, 0));
    world_close(&w, true);
    go_on(commit, "./test_resume.first/../test_resume.first", &said); /* the same folder by another name */
    assert_true(!said.data || !strstr(said.data, "is not used"));
    go_on(commit, other, &said);
    assert_non_null(strstr(said.data, "nvme_path test_resume.other is not used"));
    assert_non_null(strstr(said.data, commit));
    tm_buf_free(&said);
}

/* What a manifest names beside the first directory is asked for its key, and has to lie in a configured path. */
static void other_directories_are_asked(void **state) {
    (void)state;
    world w = {0};
    tm_commit *c;
    tm_commit_stats stats;
    char key[TM_IO_KEY_CHARS + 1], run[2][4096];
    const char *paths[] = {first, other};
    tm_io_claim claim = {.key = key, .paths = paths, .n_paths = 2};
    tm_io_make_key(key);
    assert_int_equal(mkdir(first, 0700), 0);
    world_layout(&w, false);
    w.step_plan = world_plan(&w, W_OP_FILL, 200000, true);
    OK(tm_store_open(
        &w.store, w.layout,
        &(tm_store_opts){
            .commits = true, .paths = paths, .n_paths = 2, .key = key, .allow_tmpfs = true, .io = {.engine = "sync"}}));
    OK(tm_exec_open(&w.exec, &(tm_exec_opts){.slab_bytes = 200000, .store = w.store}));
    OK(tm_exec_run(w.exec, w.step_plan, world_op, &w));
    OK(tm_store_commit(w.store, tm_exec_slab(w.exec), &(tm_commit_opts){.info = "{}", .info_bytes = 2}, &stats));
    for (unsigned i = 0; i < 2; i++) snprintf(run[i], sizeof run[i], "%s", tm_store_path(w.store, i));
    tm_exec_close(w.exec);
    tm_store_close(w.store);
    tm_plan_free(w.step_plan);
    tm_layout_free(w.layout);
    claim.n_paths = 1;
    assert_int_equal(tm_commit_open(&c, run[0], &claim), TM_EINPUT);
    assert_non_null(strstr(tm_error_get()->text, "none of the configured offload paths"));
    assert_non_null(strstr(tm_error_get()->text, "--resume never starts over"));
    tm_error_clear();
    claim.n_paths = 2;
    OK(tm_commit_open(&c, run[0], &claim));
    tm_commit_close(c);
    tm_io_run *taken; /* another run's directory has taken its place */
    OK(tm_io_run_reopen(&taken, run[1], &claim, true, 0));
    OK(tm_io_run_remove(taken));
    OK(tm_io_run_create(&taken, other, &(tm_io_run_opts){.id = strrchr(run[1], '/') + 5, .allow_tmpfs = true}));
    tm_io_run_keep(taken);
    tm_io_run_close(taken);
    assert_int_equal(tm_commit_open(&c, run[0], &claim), TM_EINPUT);
    assert_non_null(strstr(tm_error_get()->text, "belongs to another run"));
    assert_non_null(strstr(tm_error_get()->text, "--resume never starts over"));
    tm_error_clear();
    assert_true(tm_path_is_dir(run[1]));
}

/* Files are removed by name, and io does not know the kinds. */
static void names_are_known(void **state) {
    (void)state;
    for (int k = 0; k < TM_KINDS; k++) /* what is frozen has no file of ours */
        assert_true(k == TM_KIND_FROZEN || tm_io_run_makes(tm_kind_name((tm_kind)k)));
    assert_true(tm_io_run_makes("manifest") && tm_io_run_makes("manifest.next"));
    assert_true(tm_io_run_makes("part-of") && tm_io_run_makes("spill") && !tm_io_run_makes("thesis"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(unused_paths_are_named, fresh, clean),
        cmocka_unit_test_setup_teardown(other_directories_are_asked, fresh, clean),
        cmocka_unit_test(names_are_known),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
