/* A run goes on where its commit lies: a path that the configuration names and the commit does not is warned of. */
#include "commit_world.h"

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

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test_setup_teardown(unused_paths_are_named, fresh, clean)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
