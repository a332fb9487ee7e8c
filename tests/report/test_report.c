/* What a run left: lines of a log as sums and curves, the page, and the files that other programs read. */
#include "io/file/file.h"
#include "report/report.h"
#include "tests/support/support.h"

#include <dirent.h>
#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static char dir[64];

static int make(void **state) {
    (void)state;
    snprintf(dir, sizeof dir, "./report-XXXXXX");
    return mkdtemp(dir) ? 0 : -1;
}

static int clean(void **state) {
    (void)state;
    tm_error_clear();
    return tm_remove_tree(dir) == TM_OK ? 0 : -1;
}

static const char *in_dir(const char *name) {
    static char path[4][400];
    static unsigned turn;
    char *at = path[turn++ % 4];
    snprintf(at, sizeof path[0], "%s/%s", dir, name);
    return at;
}

static void write_text(const char *name, const char *mode, const char *text) {
    FILE *f = fopen(in_dir(name), mode);
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static char *read_all(const char *path, size_t *n) {
    tm_buf b = {0};
    OK(tm_file_slurp(path, 16 * TM_MIB, &b));
    *n = b.len;
    return b.data;
}

/* A step line as a run writes it. */
static void put_step(FILE *f, int step, double loss) {
    fprintf(
        f,
        "{\"step\": %d, \"loss\": %.17g, \"grad_norm\": 1.5, \"learning_rate\": 0.001, \"tokens\": 64, "
        "\"label_tokens\": 62, "
        "\"step_seconds\": 0.25, \"predicted_step_seconds\": 0.2, \"tokens_per_second\": 256, \"read_bytes\": 1000, "
        "\"write_bytes\": 500, \"bytes_by_kind\": {\"grad\": {\"read\": 1, \"write\": 2}}, \"host_peak_bytes\": %d, "
        "\"wait_seconds\": {\"disk_read\": 0.05, \"disk_write\": 0, \"copy\": 0, \"comm\": 0, \"compute\": 0.125}}\n",
        step, loss, 1000 + step % 7);
}

static double loss_at(int step) {
    return step == 777 ? 9.5 : step == 4321 ? -3.25 : 2 + 0.001 * (step % 100);
}

static void write_log(int steps) {
    FILE *f = fopen(in_dir("log.jsonl"), "w");
    assert_non_null(f);
    for (int i = 1; i <= steps; i++) {
        put_step(f, i, loss_at(i));
        if (i % 100 == 0)
            fprintf(f,
                    "{\"event\": \"eval\", \"step\": %d, \"loss\": 1.5, \"perplexity\": 4.5, \"eval_loss\": 1.5, "
                    "\"eval_perplexity\": 4.5, \"eval_bits_per_byte\": 0.5}\n",
                    i);
        if (i % 50 == 0)
            fprintf(f, "{\"event\": \"commit\", \"step\": %d, \"commit_write_bytes\": 7, \"seconds\": 0.5}\n", i);
    }
    assert_int_equal(fclose(f), 0);
}

/* A step of 64 KiB, as lanes of it are written, and what else run.json has. */
static void write_run(void) {
    enum { LANES = 16, CLASSES = 8, COLUMNS = 480 };
    FILE *f = fopen(in_dir("run.json"), "w");
    assert_non_null(f);
    fputs("{\"status\": \"running\", \"total_steps\": 30000, \"config\": {\"model\": \"m\"}, \"step_timeline\": "
          "{\"title\": \"update F\", \"seconds\": 1, \"lanes\": [",
          f);
    for (int lane = 0; lane < LANES; lane++) {
        fprintf(f, "%s{\"name\": \"compute\", \"unit\": \"busy\", \"top\": 1, \"classes\": [", lane ? ", " : "");
        for (int c = 0; c < CLASSES; c++) {
            fprintf(f, "%s{\"name\": \"forward\", \"total\": 0.5, \"levels\": \"", c ? ", " : "");
            for (int i = 0; i < COLUMNS; i++) fputc('A' + i % 26, f);
            fputs("\"}", f);
        }
        fputs("]}", f);
    }
    fputs("]}}", f);
    assert_true(ftell(f) > 64 << 10);
    assert_int_equal(fclose(f), 0);
}

/* The first test: the peak is that of the process. At a checkpoint: all that a page takes beside the plan, the step that the run
 * has ready and the file's buffer included, has a bound (session.h: SESSION_PAGE_BYTES), however long the log. */
static void test_small_page(void **state) {
    (void)state;
    enum { PAGE_BYTES = 512 << 10, STEP_BYTES = 64 << 10 };
    uint64_t took[2];
    write_run();
    for (int i = 0; i < 2; i++) {
        tm_history *r;
        write_log(i ? 20000 : 1000);
        uint64_t before = tm_mem_live_bytes();
        OK(tm_history_open(&r, dir, 128));
        assert_in_range(tm_history_series(r, "loss")->n, 64, 128);
        OK(tm_report_write(in_dir("report.html"), (const tm_history *const[]){r}, 1));
        took[i] = tm_mem_peak_bytes() - before;
        tm_history_close(r);
    }
    assert_int_equal(unlink(in_dir("run.json")), 0);
    print_message("%llu and %llu bytes for pages of 1,000 and 20,000 steps\n", (unsigned long long)took[0],
                  (unsigned long long)took[1]);
    assert_true(took[1] + STEP_BYTES <= PAGE_BYTES);
    assert_true(took[1] < took[0] + took[0] / 50);
}

static void test_sums(void **state) {
    (void)state;
    tm_history *r;
    write_log(200);
    OK(tm_history_open(&r, dir, 0));
    assert_int_equal(r->sums.steps, 200);
    assert_int_equal(r->step, 200);
    assert_int_equal(r->committed, 200);
    assert_int_equal(r->sums.tokens, 200 * 64);
    assert_int_equal(r->sums.read_bytes, 200 * 1000);
    assert_int_equal(r->sums.commits, 4);
    assert_int_equal(r->sums.commit_bytes, 4 * 7);
    assert_int_equal(r->sums.evaluations, 2);
    assert_int_equal(r->sums.host_peak_bytes, 1006);
    assert_true(fabs(r->sums.step_seconds - 50) < 1e-9);
    assert_true(fabs(r->sums.wait_seconds[TM_WAIT_COMPUTE] - 25) < 1e-9);
    assert_true(fabs(r->sums.wait_seconds[TM_WAIT_READ] - 10) < 1e-9);
    assert_false(r->ended);
    assert_null(tm_history_series(r, "tokens"));
    assert_int_equal(tm_history_series(r, "loss")->n, 200);
    assert_int_equal(tm_history_series(r, "eval/loss")->n, 2);
    assert_true(tm_history_series(r, "eval/loss")->of_evaluation);
    assert_null(tm_history_series(r, "eval/eval_loss")); /* twice in the line, one curve */
    assert_non_null(tm_history_series(r, "eval/bits_per_byte"));
    tm_history_close(r);
}

/* However long the run: a bounded curve that has its highest and its lowest point, in the order of steps, and its end. */
static void test_curve_is_thinned(void **state) {
    (void)state;
    enum { STEPS = 10007 };
    static tm_point p[TM_SERIES_POINTS + 2];
    tm_history *r;
    write_log(STEPS);
    OK(tm_history_open(&r, dir, 0));
    const tm_series *s = tm_history_series(r, "loss");
    uint32_t n = tm_series_points(s, p);
    bool high = false, low = false;
    assert_in_range(n, TM_SERIES_POINTS / 2 - 2, TM_SERIES_POINTS + 2);
    for (uint32_t i = 0; i < n; i++) {
        high |= p[i].step == 777 && p[i].value == 9.5;
        low |= p[i].step == 4321 && p[i].value == -3.25;
        assert_true(i == 0 || p[i].step >= p[i - 1].step);
        assert_true(p[i].value == loss_at((int)p[i].step));
    }
    assert_true(high && low);
    assert_int_equal(p[n - 1].step, STEPS);
    tm_history_close(r);
}

static void test_follow(void **state) {
    (void)state;
    tm_history *r;
    write_text("log.jsonl", "w", "{\"step\": 1, \"loss\": 3}\n{\"step\": 2, \"lo");
    OK(tm_history_open(&r, dir, 0));
    assert_int_equal(r->step, 1);
    write_text("log.jsonl", "a", "ss\": 2}\n{\"event\": \"end\", \"step\": 2, \"state_hash\": \"ab\"}\n");
    OK(tm_history_follow(r));
    assert_int_equal(r->step, 2);
    assert_int_equal(r->sums.steps, 2);
    assert_true(r->ended);
    assert_string_equal(r->state_hash, "ab");
    write_text("log.jsonl", "w", "{\"step\": 1, \"loss\": 3}\n"); /* a resume cut it */
    OK(tm_history_follow(r));
    assert_int_equal(r->sums.steps, 1);
    assert_false(r->ended);
    /* cut, and by the next look longer than it was */
    write_text("log.jsonl", "w",
               "{\"step\": 1, \"loss\": 4}\n{\"event\": \"resume\", \"step\": 1}\n{\"step\": 2, \"loss\": 5}\n");
    OK(tm_history_follow(r));
    assert_int_equal(r->sums.steps, 2);
    assert_int_equal(r->sums.resumes, 1);
    assert_true(tm_history_series(r, "loss")->point[0].value == 4);
    tm_history_close(r);
}

static void test_wrong_input(void **state) {
    (void)state;
    tm_history *r;
    assert_int_equal(tm_history_open(&r, dir, 0), TM_EINPUT);
    assert_non_null(strstr(tm_error_get()->text, "there is no log.jsonl"));
    tm_error_clear();
    write_text("log.jsonl", "w", "{\"step\": 1, \"loss\": 3}\nno JSON\n");
    assert_int_equal(tm_history_open(&r, dir, 0), TM_EINPUT);
    assert_non_null(strstr(tm_error_get()->text, "log.jsonl:2"));
    tm_error_clear();
    write_text("log.jsonl", "w",
               "{\"step\": \"x\", \"loss\": [1], \"wait_seconds\": 3, \"event\": {}}\n[]\n7\n{\"step\": -5}\n");
    OK(tm_history_open(&r, dir, 0)); /* JSON, and nothing that a run says */
    assert_int_equal(r->sums.steps, 0);
    tm_history_close(r);
}

/* ---- the page ----------------------------------------------------------------------------------------------------- */

static void test_page(void **state) {
    (void)state;
    tm_history *r;
    tm_buf page = {0};
    write_log(10000);
    write_text(
        "run.json", "w",
        "{\"status\": \"running\", \"version\": \"<b>\", \"warnings\": [\"a & b </script><script>x\"], \"planned\": "
        "{\"seconds_per_step\": 0.2, \"host_peak_bytes\": 2000}, \"total_steps\": 20000, \"config\": {\"model\": "
        "\"/m/</title><img/src=x>\", \"data\": {\"train\": \"d'\\\"\"}, \"output_dir\": \"o</script>\"}}");
    OK(tm_history_open(&r, dir, 0));
    OK(tm_report_page(&page, (const tm_history *const[]){r}, 1));
    print_message("%zu bytes of a page for 10,000 steps\n", page.len);
    assert_true(page.len < 1000000);
    assert_null(strstr(page.data, "<img"));
    assert_null(strstr(page.data, "</script><script>x"));
    assert_null(strstr(page.data, "<b></"));
    assert_non_null(strstr(page.data, "10000 of 20000"));
    assert_non_null(strstr(page.data, "a &amp; b &lt;/script&gt;"));
    static const char *const outside[] = {" src=", "href=", "url(", "@import", "https:", "fetch(", "XMLHttp"};
    for (size_t i = 0; i < TM_COUNT(outside); i++)
        if (strstr(page.data, outside[i])) fail_msg("the page asks for something outside: %s", outside[i]);
    /* with the step, and with answers where the run is over */
    tm_buf_clear(&page);
    write_text(
        "run.json", "w",
        "{\"status\": \"finished\", \"step_timeline\": {\"title\": \"</script>\", \"seconds\": 1, \"lanes\": []}}");
    write_text(
        TM_REPORT_ANSWERS, "w",
        "{\"tokens\": 64, \"questions\": [{\"prompt\": \"<i>p\", \"wanted\": \"w&\", \"before\": \"b\", \"after\": "
        "\"</dd><img>\"}, {\"prompt_ids\": [1]}]}");
    OK(tm_history_follow(r));
    OK(tm_report_page(&page, (const tm_history *const[]){r}, 1));
    assert_non_null(strstr(page.data, "id=\"step\""));
    assert_non_null(strstr(page.data, "{\"title\": \"\\u003c/script>\""));
    assert_non_null(strstr(page.data, "<dd>&lt;i&gt;p</dd>"));
    assert_non_null(strstr(page.data, "<dd>&lt;/dd&gt;&lt;img&gt;</dd>"));
    write_text(TM_REPORT_ANSWERS, "w", "{\"left_out\": \"too <long>\", \"questions\": []}");
    tm_buf_clear(&page);
    OK(tm_report_page(&page, (const tm_history *const[]){r}, 1));
    assert_non_null(strstr(page.data, "too &lt;long&gt;"));
    write_text("run.json", "w", "{\"status\": \"running\"}"); /* then they are of a run before */
    OK(tm_history_follow(r));
    tm_buf_clear(&page);
    OK(tm_report_page(&page, (const tm_history *const[]){r}, 1));
    assert_null(strstr(page.data, "Held-out"));
    /* two runs over each other */
    tm_buf_clear(&page);
    OK(tm_report_page(&page, (const tm_history *const[]){r, r}, 2));
    assert_non_null(strstr(page.data, "2 runs beside each other"));
    tm_buf_free(&page);
    tm_history_close(r);
}

/* ---- other programs' files ---------------------------------------------------------------------------------------- */

static const tm_json *last_child(const tm_json *list) {
    const tm_json *last = list->child;
    while (last && last->next) last = last->next;
    return last;
}

static void test_trainer_state(void **state) {
    (void)state;
    tm_json_doc *doc;
    write_log(120);
    write_text("run.json", "w",
               "{\"total_steps\": 500, \"steps_per_epoch\": 80, \"best\": {\"step\": 100, \"loss\": 1.5}, \"config\": "
               "{\"eval_steps\": 100, \"output_dir\": \"out\"}}");
    OK(tm_trainer_state_write(dir, dir, 110));
    OK(tm_json_load(&doc, in_dir("trainer_state.json"), 16 * TM_MIB, 0));
    const tm_json *root = tm_json_root(doc), *log = tm_json_get(root, "log_history");
    assert_int_equal(tm_json_get(root, "global_step")->integer, 110);
    assert_int_equal(tm_json_get(root, "max_steps")->integer, 500);
    assert_int_equal(tm_json_get(root, "num_input_tokens_seen")->integer, 110 * 64);
    assert_true(tm_json_get(root, "epoch")->number == 110.0 / 80);
    assert_true(tm_json_is(tm_json_get(root, "best_model_checkpoint"), "out/checkpoint-100"));
    assert_int_equal(log->count, 110 + 1);
    assert_int_equal(tm_json_get(last_child(log), "step")->integer, 110);
    const tm_json *eval = log->child;
    while (eval && !tm_json_get(eval, "eval_loss")) eval = eval->next;
    assert_non_null(eval);
    assert_true(tm_json_get(eval, "eval_loss")->number == 1.5 && tm_json_get(eval, "step")->integer == 100);
    assert_null(tm_json_get(eval, "eval_eval_loss"));
    assert_true(tm_json_get(eval, "eval_bits_per_byte")->number == 0.5);
    tm_json_free(doc);
}

static void test_model_card(void **state) {
    (void)state;
    tm_history *r;
    size_t n;
    write_log(3);
    write_text("run.json", "w", "{\"config\": {\"model\": \"a\\nb\", \"adapter\": {\"r\": 8}}}");
    OK(tm_history_open(&r, dir, 0));
    OK(tm_model_card_write(dir, r));
    OK(tm_model_card_write(dir, r)); /* ours: written again */
    char *text = read_all(in_dir("README.md"), &n);
    assert_true(strncmp(text, "---\nlibrary_name: peft\n", 23) == 0);
    assert_non_null(strstr(text, "base_model: \"a_b\"\n"));
    free(text);
    write_text("README.md", "w", "mine\n");
    OK(tm_model_card_write(dir, r));
    text = read_all(in_dir("README.md"), &n);
    assert_string_equal(text, "mine\n");
    free(text);
    tm_history_close(r);
}

/* ---- TensorBoard: read by the format's definition ------------------------------------------------------------------- */

static uint32_t crc_table[256];

/* By a table, made from the polynomial x^32 + .. as RFC 3720 gives CRC-32C; its check value is that of RFC 3720, B.4. */
static uint32_t crc32c(const unsigned char *p, size_t n) {
    uint32_t crc = ~0U;
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t c = i;
        for (int k = 0; k < 8; k++) c = c & 1 ? c >> 1 ^ 0x82f63b78U : c >> 1;
        crc_table[i] = c;
    }
    while (n--) crc = crc_table[(crc ^ *p++) & 255] ^ crc >> 8;
    return ~crc;
}

static void check_masked(const unsigned char *bytes, size_t n, const unsigned char *stored) {
    uint32_t crc = crc32c(bytes, n), want = (crc >> 15 | crc << 17) + 0xa282ead8U, have;
    memcpy(&have, stored, 4);
    assert_int_equal(have, want);
}

static uint64_t varint(const unsigned char *p, size_t *at) {
    uint64_t v = 0;
    for (unsigned shift = 0;; shift += 7) {
        v |= (uint64_t)(p[*at] & 127) << shift;
        if (!(p[(*at)++] & 128)) return v;
    }
}

typedef struct scalar {
    uint64_t step;
    char tag[64];
    float value;
} scalar;

/* Event {1: double wall_time, 2: int64 step, 3: string file_version, 5: Summary {1: Value {1: string tag, 2: float}}} */
static unsigned read_event(const unsigned char *p, size_t n, scalar *out, unsigned had) {
    uint64_t step = 0;
    for (size_t at = 0; at < n;) {
        uint64_t key = varint(p, &at);
        if (key == (1 << 3 | 1)) {
            at += 8;
        } else if (key == (2 << 3 | 0)) {
            step = varint(p, &at);
        } else if (key == (3 << 3 | 2)) {
            uint64_t len = varint(p, &at);
            assert_true(had == 0 && len == 13 && memcmp(p + at, "brain.Event:2", 13) == 0);
            at += len;
        } else {
            assert_int_equal(key, 5 << 3 | 2);
            uint64_t end = varint(p, &at);
            for (end += at; at < end;) {
                scalar *s = &out[had++];
                assert_int_equal(varint(p, &at), 1 << 3 | 2);
                (void)varint(p, &at);
                assert_int_equal(varint(p, &at), 1 << 3 | 2);
                uint64_t len = varint(p, &at);
                snprintf(s->tag, sizeof s->tag, "%.*s", (int)len, (const char *)p + at);
                at += len;
                assert_int_equal(varint(p, &at), 2 << 3 | 5);
                memcpy(&s->value, p + at, 4);
                at += 4;
                s->step = step;
            }
        }
    }
    return had;
}

static char *only_file(void) {
    DIR *d = opendir(dir);
    char *found = NULL;
    for (struct dirent *e; (e = readdir(d));)
        if (strncmp(e->d_name, "events.out.tfevents.", 20) == 0) found = strdup(in_dir(e->d_name));
    closedir(d);
    assert_non_null(found);
    return found;
}

static void test_events(void **state) {
    (void)state;
    static const char *const lines[] = {"{\"step\": 1, \"loss\": 2.5, \"tokens\": 9}",
                                        "{\"event\": \"commit\", \"step\": 1, \"seconds\": 3}",
                                        "{\"step\": 300, \"loss\": 1.25, \"kl\": 0.5}",
                                        "{\"event\": \"eval\", \"step\": 300, \"loss\": 0.75, \"eval_loss\": 0.75}"};
    static const scalar want[] = {
        {1, "train/loss", 2.5F}, {300, "train/loss", 1.25F}, {300, "train/kl", 0.5F}, {300, "eval/loss", 0.75F}};
    scalar got[16];
    unsigned n_got = 0;
    tm_events *e;
    size_t n;
    assert_int_equal(crc32c((const unsigned char *)"123456789", 9), 0xe3069283U);
    OK(tm_events_open(&e, dir));
    for (size_t i = 0; i < TM_COUNT(lines); i++) OK(tm_events_line(e, lines[i], strlen(lines[i])));
    tm_events_close(e);
    char *path = only_file();
    char *data = read_all(path, &n);
    const unsigned char *p = (const unsigned char *)data;
    for (size_t at = 0; at < n;) {
        uint64_t len;
        memcpy(&len, p + at, 8);
        check_masked(p + at, 8, p + at + 8);
        assert_true(len <= n - at - 16);
        check_masked(p + at + 12, len, p + at + 12 + len);
        n_got = read_event(p + at + 12, len, got, n_got);
        at += 16 + len;
    }
    assert_int_equal(n_got, TM_COUNT(want));
    for (size_t i = 0; i < TM_COUNT(want); i++) {
        assert_int_equal(got[i].step, want[i].step);
        assert_string_equal(got[i].tag, want[i].tag);
        assert_true(got[i].value == want[i].value);
    }
    free(path);
    free(data);
}

static void test_curve_line(void **state) {
    (void)state;
    tm_buf b = {0};
    tm_point p[8];
    for (int i = 0; i < 8; i++) p[i] = (tm_point){i + 1, i};
    OK(tm_curve_line(&b, p, 8, 8));
    assert_string_equal(b.data, "▁▂▃▄▅▆▇█");
    tm_buf_clear(&b);
    OK(tm_curve_picture(&b, p, 8, 2, 1)); /* 4 x 4 dots: (0,3), (1,2), (2,1), (3,0) from the top */
    assert_string_equal(b.data, "⡠⠊\n");
    tm_buf_free(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_small_page, make, clean),
        cmocka_unit_test_setup_teardown(test_sums, make, clean),
        cmocka_unit_test_setup_teardown(test_curve_is_thinned, make, clean),
        cmocka_unit_test_setup_teardown(test_follow, make, clean),
        cmocka_unit_test_setup_teardown(test_wrong_input, make, clean),
        cmocka_unit_test_setup_teardown(test_page, make, clean),
        cmocka_unit_test_setup_teardown(test_trainer_state, make, clean),
        cmocka_unit_test_setup_teardown(test_model_card, make, clean),
        cmocka_unit_test_setup_teardown(test_events, make, clean),
        cmocka_unit_test(test_curve_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
