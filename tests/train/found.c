/* How the tables of test_resume*.c are held against what a start does (found.h). */
#define XXH_INLINE_ALL
#include "found.h"

#include "io/file/file.h"
#include "offload/store/manifest_internal.h"
#include "tests/support/leave.h"
#include "tests/support/walk.h"
#include "train/train.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <xxhash.h>

/* ---- the run ----------------------------------------------------------------------------------------------------- */

found_scene found;

static void in_child(const found_start *o) {
    size_t n = 0;
    while (n < TM_COUNT(o->set) && o->set[n]) n++;
    if (dup2(found.err, 2) < 0) _exit(9);
    (void)setenv("TIDEMILL_PROFILE", "/nonexistent/profile.json", 1); /* not the user's */
    (void)!tm_fault_set(o->fault);
    found.report->status = tm_train_run(&(tm_train_args){.config = found.config,
                                                         .set = o->set,
                                                         .n_set = n,
                                                         .resume = o->resume,
                                                         .allow_numerics_change = o->numerics,
                                                         .quiet = true});
    found.report->calls = tm_fault_calls();
    (void)!tm_fault_set(NULL);
    snprintf(found.report->text, sizeof found.report->text, "%s", tm_error_get()->text);
    leave(0);
}

/* The signal that ended it; 0: none. */
int found_run(const found_start *o) {
    int status;
    memset(found.report, 0, sizeof *found.report);
    assert_int_equal(ftruncate(found.err, 0), 0);
    (void)lseek(found.err, 0, SEEK_SET);
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) in_child(o);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

const char *found_said(void) {
    static char text[8000];
    ssize_t n = pread(found.err, text, sizeof text - 1, 0);
    text[n > 0 ? n : 0] = 0;
    return text;
}

static void copy_tree(const char *from, const char *to) {
    walk_gone(to);
    if (system(run_format("cp -a %s %s", from, to)) != 0) fail_msg("%s: cannot be copied", from);
}

void found_put_back(void) {
    copy_tree(run_path(found.saved, "out"), found.output);
    copy_tree(run_path(found.saved, "offload"), found.offload);
}

static void find_runs(void) {
    tm_json_doc *doc;
    size_t n, i = 0;
    char *text = run_read(run_path(found.output, "run.json"), &n);
    RUN_EXPECT_STATUS(tm_json_parse(&doc, text, n, "run.json", 0, 0));
    const tm_json *list = tm_json_get(tm_json_root(doc), "run_directories");
    for (const tm_json *d = list->child; d && i < TM_COUNT(found.run); d = d->next, i++)
        snprintf(found.run[i], sizeof found.run[i], "%s", d->text);
    tm_json_free(doc);
    free(text);
}

static void write_config(const char *dir) {
    const char *rows = run_path(dir, "rows.safetensors");
    tm_st *golden = tensors_open(TM_TEST_FIXTURES "/arch_llama/golden.safetensors");
    rows_write(rows, golden, 0, 2, 8, false);
    tm_st_close(golden);
    run_write(
        found.config,
        run_format("{\"model\": \"%s/arch_llama\", \"data\": {\"train\": \"%s\", \"seq_len\": 8},"
                   " \"precision\": \"bf16\", \"commit_steps\": 1, \"max_steps\": %d, \"train_batch_size\": 2,"
                   " \"per_device_train_batch_size\": 1, \"lr_scheduler_type\": \"constant\","
                   " \"learning_rate\": 0.01, \"memory\": {\"allow_tmpfs\": true, \"io_engine\": \"sync\"},"
                   " \"output_dir\": \"%s\", \"zero_optimization\": {\"offload_param\": {\"device\": \"nvme\","
                   " \"nvme_path\": \"%s\"}, \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"%s\"}}}\n",
                   TM_TEST_FIXTURES, rows, FOUND_STEPS, found.output, found.offload, found.offload));
}

void found_open(void) {
    found.dir = walk_dir();
    walk_clear(found.dir);
    found.config = run_path(found.dir, "config.json"), found.output = run_path(found.dir, "out");
    found.offload = run_path(found.dir, "offload"), found.saved = run_path(found.dir, "saved");
    found.err = memfd_create("err", MFD_CLOEXEC);
    found.report = mmap(NULL, sizeof *found.report, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_int_equal(mkdir(found.offload, 0700), 0);
    assert_true(found.err >= 0 && found.report != MAP_FAILED && mkdir(found.saved, 0700) == 0);
    write_config(found.dir);
}

void found_save(void) {
    find_runs();
    copy_tree(found.output, run_path(found.saved, "out"));
    copy_tree(found.offload, run_path(found.saved, "offload"));
}

void found_two_ranks(void) {
    run_result r =
        run((run_opts){.ranks = 2, .fault = "kill_prepared:3:kill:once", .fault_rank = 1}, "train", found.config,
            "--quiet", "--set", "strategy=zero3", "--set", "save_state=true", "--set", "save_steps=2", NULL);
    if (r.status == 0) fail_msg("nobody died: %s", r.err);
    run_free(&r);
    found_save();
}

int found_close(void **state) {
    walk_gone(found.dir);
    return run_clean(state);
}

/* ---- damage that a checksum does not see ------------------------------------------------------------------------- */

/* `path` ("a.b") is set to `value`, JSON; NULL: it goes. */
static void put_members(tm_json_writer *w, const tm_json *node, const char *path, const char *value) {
    size_t n = strcspn(path, ".");
    bool seen = false;
    tm_jw_object(w);
    for (const tm_json *m = node->child; m; m = m->next) {
        bool here = strlen(m->key) == n && strncmp(m->key, path, n) == 0;
        seen |= here;
        if (here && !path[n] && !value) continue;
        tm_jw_key(w, m->key);
        if (here && path[n])
            put_members(w, m, path + n + 1, value);
        else if (here)
            tm_jw_raw(w, value, strlen(value));
        else
            tm_jw_node(w, m);
    }
    if (!seen && value) tm_jw_key(w, path), tm_jw_raw(w, value, strlen(value));
    tm_jw_object_end(w);
}

static void edit_json(const char *json, size_t n, const char *path, const char *value, tm_buf *out) {
    tm_json_doc *doc;
    tm_json_writer w;
    RUN_EXPECT_STATUS(tm_json_parse(&doc, json, n, "json", 0, 0));
    tm_jw_init(&w, out, 0);
    put_members(&w, tm_json_root(doc), path, value);
    RUN_EXPECT_STATUS(tm_jw_end(&w));
    tm_json_free(doc);
}

static void write_bytes(const char *path, const void *bytes, size_t n) {
    FILE *f = fopen(path, "w");
    if (!f || fwrite(bytes, 1, n, f) != n || fclose(f) != 0) fail_msg("%s: cannot be written", path);
}

/* What the commit says of its job; the manifest's sum is that of its new content. */
void found_edit_commit(const char *directory, const char *key, const char *value) {
    const char *path = run_path(directory, "manifest");
    manifest_head head;
    tm_buf was = {0}, info = {0}, all = {0};
    XXH128_canonical_t sum;
    RUN_EXPECT_STATUS(tm_file_slurp(path, TM_MIB, &was));
    memcpy(&head, was.data, sizeof head);
    edit_json(was.data + sizeof head, head.info_bytes, key, value, &info);
    const char *rest = was.data + sizeof head + head.info_bytes;
    head.info_bytes = (uint32_t)info.len;
    RUN_EXPECT_STATUS(tm_buf_append(&all, &head, sizeof head));
    RUN_EXPECT_STATUS(tm_buf_append(&all, info.data, info.len));
    RUN_EXPECT_STATUS(tm_buf_append(&all, rest, (size_t)(was.data + was.len - rest) - sizeof sum));
    XXH128_canonicalFromHash(&sum, XXH3_128bits(all.data, all.len));
    RUN_EXPECT_STATUS(tm_buf_append(&all, &sum, sizeof sum));
    write_bytes(path, all.data, all.len);
    tm_buf_free(&was);
    tm_buf_free(&info);
    tm_buf_free(&all);
}

void found_edit_run_json(const char *key, const char *value) {
    const char *path = run_path(found.output, "run.json");
    tm_buf out = {0};
    size_t n;
    char *was = run_read(path, &n);
    edit_json(was, n, key, value, &out);
    write_bytes(path, out.data, out.len);
    tm_buf_free(&out);
    free(was);
}

/* ---- one start --------------------------------------------------------------------------------------------------- */

static void remove_manifest(unsigned rank) {
    const char *path = run_path(found.run[rank], "manifest");
    if (unlink(path) != 0) fail_msg("%s is not there", path);
}

void found_no_second_manifest(void) {
    remove_manifest(1);
}

void found_no_manifests(void) {
    remove_manifest(0), remove_manifest(1);
}

void found_bad_manifests(void) {
    for (unsigned i = 0; i < 2; i++) run_write(run_path(found.run[i], "manifest"), "tidemill commit, half of");
}

const char *found_hash(void) {
    static const char key[] = "\"state_hash\":";
    const char *hash = "", *log = run_path(found.output, "log.jsonl");
    if (access(log, R_OK) != 0) return hash;
    char *text = run_read(log, NULL), *at = strstr(text, key);
    if (at && (at = strchr(at + sizeof key - 1, '"'))) hash = run_format("%.32s", at + 1);
    free(text);
    return hash;
}

static uint64_t hash_of_manifests(void) {
    uint64_t h = 0;
    for (size_t i = 0; i < TM_COUNT(found.run) && found.run[i][0]; i++) {
        const char *path = run_path(found.run[i], "manifest");
        tm_buf bytes = {0};
        if (access(path, R_OK) != 0) continue;
        RUN_EXPECT_STATUS(tm_file_slurp(path, TM_MIB, &bytes));
        h = tm_hash64(bytes.data, bytes.len, h + i);
        tm_buf_free(&bytes);
    }
    return h;
}

static void check_row(const found_row *f, size_t i) {
    found_put_back();
    if (f->commit) found_edit_commit(found.run[0], f->commit, f->value);
    if (f->run_json) found_edit_run_json(f->run_json, f->value);
    if (f->damage) f->damage();
    uint64_t manifests = hash_of_manifests();
    int signal = found_run(&f->with);
    const found_report *r = found.report;
    const char *text = r->status == TM_OK ? found_said() : r->text;
    if (signal || r->status != f->status || (f->says && !strstr(text, f->says)))
        fail_msg("row %zu (%s%s): signal %d, %s: \"%s\", stderr: %s", i, f->commit ? f->commit : "",
                 f->run_json ? f->run_json : "", signal, tm_status_name(r->status), r->text, found_said());
    if (r->status != TM_OK && !f->gone && hash_of_manifests() != manifests)
        fail_msg("row %zu: what was refused is not left as it was", i);
    if (r->status != TM_OK) return;
    if (strcmp(found_hash(), found.hash) != 0) fail_msg("row %zu: the state's hash is %s", i, found_hash());
    if (run_entries(found.offload) != f->left) fail_msg("row %zu: %u entries left", i, run_entries(found.offload));
}

void found_check(const found_row *rows, size_t n) {
    for (size_t i = 0; i < n; i++) check_row(&rows[i], i);
}

/* ---- a call fails ------------------------------------------------------------------------------------------------ */

static void lay_out(void (*damage)(void)) {
    found_put_back();
    if (damage) damage();
}

static void fails_at(const found_start *with, void (*damage)(void), const char *call, uint64_t i) {
    found_start o = *with;
    o.fault = run_format("%s:%llu:eio:once", call, (unsigned long long)i);
    lay_out(damage);
    if (found_run(&o) != 0) fail_msg("%s: it ended by a signal: %s", o.fault, found_said());
    if (found.report->status != TM_OK) {
        if (!*found.report->text || strchr(found.report->text, '\n')) fail_msg("%s: no error of one line", o.fault);
        const char *first = run_format("%s", found.report->text);
        if (found_run(with) != 0 || (found.report->status != TM_OK && !strstr(found.report->text, "a finished run")))
            fail_msg("%s: %s; then: %s", o.fault, first, found.report->text);
    }
    if (strcmp(found_hash(), found.hash) != 0) fail_msg("%s: the state's hash is %s", o.fault, found_hash());
}

void found_walk(const found_start *with, void (*damage)(void)) {
    static const char *const calls[] = {"openat", "pread", "fstat", "rename", "unlink", "fsync"};
    for (size_t c = 0; c < TM_COUNT(calls); c++) {
        found_start o = *with;
        o.fault = run_format("%s:999999999:eio:once", calls[c]);
        lay_out(damage);
        if (found_run(&o) != 0 || found.report->status != TM_OK) fail_msg("without a fault: %s", found.report->text);
        uint64_t n = found.report->calls, points = walk_points(1), stride = points && n > points ? n / points : 1;
        for (uint64_t i = (stride + 1) / 2; i <= n; i += stride) fails_at(with, damage, calls[c], i);
    }
}
