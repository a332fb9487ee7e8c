/* Hardware files, the profile of this machine, and what tm_machine_of makes of it. */
#include "io/file/file.h"
#include "offload/machine/machine.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

static void write_text(const char *path, const char *text) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

/* ---- hardware files ------------------------------------------------------------------------------------------ */

static unsigned loaded;

static tm_status load_one(void *ctx, const char *name, bool is_dir) {
    char path[512];
    tm_machine m;
    size_t n = strlen(name);
    (void)ctx;
    if (is_dir || n < 5 || strcmp(name + n - 5, ".json") != 0) return TM_OK;
    snprintf(path, sizeof path, "%s/%s", TM_TEST_HARDWARE, name);
    TM_TRY(tm_machine_load(path, &m));
    assert_true(m.name[0] && m.cores > 0 && m.host_bytes > 0 && m.cpu_flops_fp32 > 0 && m.cpu_flops_bf16 > 0);
    assert_true(m.disk.read_bps > 1e9 && m.disk.write_bps > 1e9 && m.disk.bytes > 0 && m.disk.tbw > 0);
    assert_false(m.measured);
    assert_int_equal(m.ranks_per_node, m.gpus ? m.gpus : 1);
    unsigned gpus = 0, gb = 0; /* the name promises them */
    if (sscanf(name, "%ux%ugb", &gpus, &gb) == 2) {
        assert_int_equal(m.gpus, gpus);
        assert_int_equal(m.gpu_bytes, gb * TM_GIB);
    }
    loaded++;
    return TM_OK;
}

static void every_file_of_ours_loads(void **state) {
    (void)state;
    if (tm_list_dir(TM_TEST_HARDWARE, load_one, NULL) != TM_OK) fail_msg("%s", tm_error_get()->text);
    assert_true(loaded >= 8);
}

/* 1, 2, 4 or 8 GPUs, three sizes of memory and three numbers of drives: one file and settings. */
static void settings_make_other_machines(void **state) {
    (void)state;
    static const char *const file = TM_TEST_HARDWARE "/1x24gb.json";
    for (unsigned i = 0; i < 36; i++) {
        unsigned gpus = 1u << i % 4, gib = 64u << i / 4 % 3, drives = 1u << i / 12;
        char text[3][64];
        tm_machine m;
        snprintf(text[0], sizeof text[0], "gpu.count=%u", gpus);
        snprintf(text[1], sizeof text[1], "host_memory=%uGiB", gib);
        snprintf(text[2], sizeof text[2], "disk.count=%u", drives);
        if (tm_machine_load_with(file, (const char *const[]){text[0], text[1], text[2]}, 3, &m) != TM_OK)
            fail_msg("%s", tm_error_get()->text);
        assert_true(m.gpus == gpus && m.ranks_per_node == gpus && m.gpu_bytes == 24 * TM_GIB);
        assert_int_equal(m.host_bytes, gib * TM_GIB);
        assert_true(m.disk.read_bps == drives * 6.2e9 && m.disk.bytes == drives * 2000000000000ull);
        assert_non_null(strstr(m.name, text[1]));
    }
}

static const char *const good = "{\n"
                                " \"name\": \"box\", // a comment\n"
                                " \"host_memory\": \"64GiB\",\n"
                                " \"cpu\": {\"cores\": 4, \"flops_fp32\": 3e11, \"memory_bytes_per_second\": 2e10},\n"
                                " \"disk\": {\"count\": 3, \"read_bytes_per_second\": 2e9, "
                                "\"write_bytes_per_second\": 1e9, \"size\": \"1TB\", \"terabytes_written\": 600}\n"
                                "}\n";

/* A setting, and what its refusal has to say. */
static const struct {
    const char *set, *said[2];
} bad_settings[] = {
    {"gpu.cuont=2", {"--set-hardware gpu.cuont=2", "gpu.count"}},
    {"gpu.count=two", {"--set-hardware gpu.count=two", "number"}},
    {"gpu.count=0", {"gpu.count", "not plausible"}},
    {"gpu.count", {"KEY=VALUE", "gpu.count"}},
    {"=2", {"KEY=VALUE", ""}},
    {"nodes=", {"nodes", "number"}},
    {"host_memory=64 apples", {"host_memory", "64GiB"}},
    {"gpu={\"count\": 2}", {"unknown key \"gpu\"", ""}},
    {"nodes=2", {"2 nodes", "\"network\""}},
    {"network.latency_seconds=1e-5", {"network.bytes_per_second", "missing"}},
};

static void bad_settings_are_refused(void **state) {
    (void)state;
    write_text("hw.json", good);
    for (size_t i = 0; i < TM_COUNT(bad_settings); i++) {
        tm_machine m;
        if (tm_machine_load_with("hw.json", &bad_settings[i].set, 1, &m) != TM_EINPUT)
            fail_msg("%s is taken", bad_settings[i].set);
        for (int k = 0; k < 2; k++)
            if (!strstr(tm_error_get()->text, bad_settings[i].said[k]))
                fail_msg("%s: \"%s\" does not say %s", bad_settings[i].set, tm_error_get()->text,
                         bad_settings[i].said[k]);
        tm_error_clear();
    }
    assert_int_equal(unlink("hw.json"), 0);
}

static void what_is_left_out_follows(void **state) {
    (void)state;
    tm_machine m;
    write_text("hw.json", good);
    if (tm_machine_load("hw.json", &m) != TM_OK) fail_msg("%s", tm_error_get()->text);
    assert_string_equal(m.name, "box");
    assert_int_equal(m.host_bytes, 64 * TM_GIB);
    assert_int_equal(m.nodes, 1);
    assert_int_equal(m.ranks_per_node, 1);
    assert_int_equal(m.gpus, 0);
    assert_true(m.cpu_flops_bf16 == 3e11);
    assert_true(m.disk.read_bps == 6e9 && m.disk.write_bps == 3e9 && m.disk.tbw == 1800);
    assert_int_equal(m.disk.bytes, 3000000000000ull);
    assert_true(m.disk.duplex > 0 && m.disk.latency > 0);
}

/* Every key, there and back. */
static void what_is_saved_loads(void **state) {
    (void)state;
    const tm_machine m = {.name = "a \"box\"",
                          .nodes = 2,
                          .ranks_per_node = 3,
                          .cores = 16,
                          .host_bytes = 12345678901,
                          .cpu_flops_fp32 = 1.2345678e12,
                          .cpu_flops_bf16 = 9.87654321e8,
                          .cpu_bps = 3e10,
                          .disk = {.read_bps = 2e9,
                                   .write_bps = 1e9,
                                   .duplex = 0.25,
                                   .latency = 8e-5,
                                   .cpu_per_byte = 1.5e-10,
                                   .bytes = 2000000000000,
                                   .tbw = 600},
                          .gpus = 3,
                          .gpu_name = "g",
                          .gpu_bytes = 24 * TM_GIB,
                          .gpu_flops_fp32 = 5e13,
                          .gpu_flops_bf16 = 1e14,
                          .gpu_bps = 9e11,
                          .h2d_bps = 2.5e10,
                          .d2h_bps = 2.4e10,
                          .link_bps = 1e10,
                          .link_latency = 1e-6,
                          .network_bps = 1e9,
                          .network_latency = 3e-5};
    tm_machine l;
    if (tm_machine_save("saved.json", &m) != TM_OK || tm_machine_load("saved.json", &l) != TM_OK)
        fail_msg("%s", tm_error_get()->text);
    assert_string_equal(l.name, m.name);
    assert_string_equal(l.gpu_name, m.gpu_name);
    assert_true(l.nodes == 2 && l.ranks_per_node == 3 && l.cores == 16 && l.gpus == 3);
    assert_true(l.host_bytes == m.host_bytes && l.disk.bytes == m.disk.bytes && l.gpu_bytes == m.gpu_bytes);
    assert_true(l.cpu_flops_fp32 == 1.235e12 && l.cpu_flops_bf16 == 9.877e8 && l.cpu_bps == m.cpu_bps);
    assert_true(l.disk.read_bps == m.disk.read_bps && l.disk.write_bps == m.disk.write_bps && l.disk.tbw == 600);
    assert_true(l.disk.duplex == 0.25 && l.disk.latency == 8e-5 && l.disk.cpu_per_byte == 1.5e-10);
    assert_true(l.gpu_flops_fp32 == 5e13 && l.gpu_flops_bf16 == 1e14 && l.gpu_bps == 9e11);
    assert_true(l.h2d_bps == 2.5e10 && l.d2h_bps == 2.4e10 && l.link_bps == 1e10 && l.link_latency == 1e-6);
    assert_true(l.network_bps == 1e9 && l.network_latency == 3e-5);
    l.gpus = 0; /* the others are of one node */
    l.disk.read_bps = l.link_bps = l.network_bps = 0;
    l.nodes = l.ranks_per_node = 1;
    if (tm_machine_save("saved.json", &l) != TM_OK || tm_machine_load("saved.json", &l) != TM_OK)
        fail_msg("%s", tm_error_get()->text);
    assert_true(l.gpus == 0 && l.disk.read_bps == 0 && l.link_bps == 0 && l.network_bps == 0);
    l.cpu_bps = 0;
    assert_int_equal(tm_machine_save("saved.json", &l), TM_EINPUT);
    assert_non_null(strstr(tm_error_get()->text, "cpu.memory_bytes_per_second"));
    tm_error_clear();
}

/* `good` with `from` replaced by `to`, and what the message has to say. */
static const struct change {
    const char *from, *to, *said[3];
} bad[] = {
    {"\"disk\": {\"count\"", "\"disk\": {\"cuont\"", {"hw.json:5", "unknown key \"disk.cuont\"", "\"disk.count\""}},
    {"read_bytes_per_second", "read_bps", {"hw.json:5", "unknown key \"disk.read_bps\"", "hardware/README.md"}},
    {"\"host_memory\"", "\"host_mem\"", {"hw.json:3", "unknown key \"host_mem\"", "\"host_memory\""}},
    {"\"disk\": {", "\"disc\": {", {"hw.json:5", "unknown key \"disc\"", "\"disk\""}},
    {"\"host_memory\"", "\"cores\"", {"hw.json:3", "unknown key \"cores\"", "\"cpu.cores\""}},
    {"\"64GiB\"", "\"64 apples\"", {"hw.json:3", "\"host_memory\"", "64GiB"}},
    {"\"64GiB\"", "64.5", {"hw.json:3", "\"host_memory\"", "64GiB"}},
    {"\"64GiB\"", "64", {"hw.json:3", "\"host_memory\"", "not plausible"}},
    {"\"64GiB\"", "\"9999999TiB\"", {"hw.json:3", "\"host_memory\"", ""}},
    {"\"cores\": 4", "\"cores\": 4.5", {"hw.json:4", "\"cpu.cores\"", "whole number"}},
    {"\"cores\": 4", "\"cores\": 0", {"hw.json:4", "\"cpu.cores\"", "not plausible"}},
    {"\"cores\": 4", "\"cores\": \"4\"", {"hw.json:4", "\"cpu.cores\"", "number"}},
    {"\"cores\": 4, ", "", {"hw.json:4", "\"cpu.cores\"", "missing"}},
    {"2e9", "7", {"hw.json:5", "\"disk.read_bytes_per_second\"", "7e9"}},
    {"2e9", "1e99", {"hw.json:5", "\"disk.read_bytes_per_second\"", "not plausible"}},
    {"2e9", "-1", {"hw.json:5", "\"disk.read_bytes_per_second\"", "not plausible"}},
    {"\"name\": \"box\"", "\"name\": 7", {"hw.json:2", "\"name\"", "text"}},
    {"\"name\": \"box\", // a comment\n", "", {"hw.json:1", "\"name\"", "missing"}},
    {"\"cpu\": {", "\"cpu\": 3, \"gpu\": {", {"hw.json:4", "\"cpu\"", "object"}},
    {"\"name\"", "\"nodes\": 4, \"name\"", {"hw.json", "\"network\"", "4 nodes"}},
    {"\"name\"", "\"ranks_per_node\": 4, \"name\"", {"hw.json", "\"link\"", "4 ranks"}},
    {"\"name\"", "\"name\": \"again\", \"name\"", {"hw.json:2", "", ""}},
    {"{\n", "[]", {"hw.json:1", "", ""}},
};

static void bad_files_are_refused(void **state) {
    (void)state;
    for (size_t i = 0; i < TM_COUNT(bad); i++) {
        char text[2048];
        tm_machine m;
        const char *at = strstr(good, bad[i].from);
        assert_non_null(at);
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - good), good, bad[i].to, at + strlen(bad[i].from));
        write_text("hw.json", text);
        if (tm_machine_load("hw.json", &m) != TM_EINPUT) fail_msg("%s -> %s is taken", bad[i].from, bad[i].to);
        for (int k = 0; k < 3; k++)
            if (!strstr(tm_error_get()->text, bad[i].said[k]))
                fail_msg("%s -> %s: \"%s\" does not say %s", bad[i].from, bad[i].to, tm_error_get()->text,
                         bad[i].said[k]);
        tm_error_clear();
    }
    tm_machine m;
    assert_int_equal(tm_machine_load("there-is-no-such-file.json", &m), TM_EINPUT);
    tm_error_clear();
    assert_int_equal(unlink("hw.json"), 0);
}

/* ---- the profile --------------------------------------------------------------------------------------------- */

static const tm_disk measured = {.read_bps = 1.25e9 / 3,
                                 .write_bps = 7e8,
                                 .duplex = 0.25,
                                 .latency = 1e-4,
                                 .cpu_per_byte = 3e-10,
                                 .bytes = 123456789012,
                                 .tbw = 600,
                                 .queue_depth = 24,
                                 .block_bytes = 3 << 20};

static int fresh_profile(void **state) {
    (void)state;
    assert_int_equal(tm_remove_tree("profile.dir"), TM_OK);
    assert_int_equal(setenv("TIDEMILL_PROFILE", "profile.dir/of/profile.json", 1), 0);
    return 0;
}

static void disks_are_kept_by_device(void **state) {
    (void)state;
    tm_disk got;
    assert_false(tm_profile_get_disk(".", &got));
    assert_int_equal(tm_profile_put_disk("not/there/yet", &measured), TM_OK);
    assert_true(tm_profile_get_disk(".", &got)); /* the same device */
    assert_true(got.read_bps == measured.read_bps && got.write_bps == measured.write_bps);
    assert_true(got.duplex == measured.duplex && got.latency == measured.latency && got.tbw == measured.tbw);
    assert_true(got.cpu_per_byte == measured.cpu_per_byte && got.bytes == measured.bytes);
    assert_true(got.queue_depth == measured.queue_depth && got.block_bytes == measured.block_bytes);
    struct stat here, proc;
    if (stat(".", &here) == 0 && stat("/proc", &proc) == 0 && here.st_dev != proc.st_dev)
        assert_false(tm_profile_get_disk("/proc", &got));
}

/* Duplex is 0.25 as its definition has it: half reads, half writes by bytes. */
static void a_disk_takes_so_long(void **state) {
    (void)state;
    const tm_disk one = {.read_bps = 100, .write_bps = 50}, both = {.read_bps = 100, .write_bps = 50, .duplex = 1};
    const tm_disk some = {.read_bps = 100, .write_bps = 100, .duplex = 0.25};
    assert_true(tm_disk_seconds(&one, 300, 0) == 3 && tm_disk_seconds(&one, 300, 100) == 5);
    assert_true(tm_disk_seconds(&both, 300, 100) == 3 && tm_disk_seconds(&both, 100, 100) == 2);
    assert_true(tm_disk_seconds(&some, 500, 500) == 8 && tm_disk_seconds(&some, 500, 0) == 5);
}

static void runs_teach_the_disk(void **state) {
    (void)state;
    const char *here[] = {"."};
    tm_machine m;
    tm_disk d;
    assert_int_equal(tm_profile_teach_disk(".", 100, 100, 1), TM_OK);
    assert_false(tm_path_exists(tm_profile_path())); /* never measured */
    tm_disk even = measured;
    even.read_bps = 1e9, even.write_bps = 2e9, even.duplex = 0;
    assert_int_equal(tm_profile_put_disk(".", &even), TM_OK);
    assert_int_equal(tm_profile_teach_disk(".", 1000000000, 1000000000, 3), TM_OK); /* 1.5 s at those rates */
    assert_true(tm_profile_get_disk(".", &d) && d.in_training == 0.5 && d.read_bps == 1e9);
    assert_int_equal(tm_machine_of(here, 1, &m), TM_OK);
    assert_true(m.disk.read_bps == 0.5e9 && m.disk.write_bps == 1e9 && m.path[0].rates.read_bps == 0.5e9);
    assert_int_equal(tm_profile_teach_disk(".", 1000000000, 0, 1), TM_OK); /* half of the way to 1 */
    assert_true(tm_profile_get_disk(".", &d) && d.in_training == 0.75);
    assert_int_equal(tm_profile_put_disk(".", &even), TM_OK); /* measured anew */
    assert_true(tm_profile_get_disk(".", &d) && d.in_training == 0);
    assert_int_equal(tm_profile_teach_disk(".", 1000000000, 0, 1e6), TM_OK);
    assert_true(tm_profile_get_disk(".", &d) && d.in_training > 0.1 && d.in_training < 0.5); /* not beyond belief */
}

static void put_and_save(const char *backend, const char *key, double seconds) {
    tm_profile *p;
    assert_int_equal(tm_profile_open(&p, backend), TM_OK);
    assert_int_equal(tm_profile_put(p, key, seconds), TM_OK);
    assert_int_equal(tm_profile_save(p), TM_OK);
    tm_profile_close(p);
}

static bool get(const char *backend, const char *key, double *seconds) {
    tm_profile *p;
    assert_int_equal(tm_profile_open(&p, backend), TM_OK);
    bool known = tm_profile_get(p, key, seconds);
    tm_profile_close(p);
    return known;
}

static void seconds_are_kept_by_backend(void **state) {
    (void)state;
    double s;
    tm_profile *early;
    assert_int_equal(tm_profile_open(&early, "avx2 4 threads"), TM_OK);
    assert_int_equal(tm_profile_save(early), TM_OK);
    assert_false(tm_path_exists(tm_profile_path())); /* nothing to say: nothing is written */
    put_and_save("avx2 4 threads", "forward \"block\" 2", 1.0 / 3);
    put_and_save("avx2 8 threads", "forward \"block\" 2", 0.125);
    assert_int_equal(tm_profile_put_disk(".", &measured), TM_OK);
    assert_int_equal(tm_profile_put(early, "head", 2), TM_OK); /* opened before the others: merges */
    assert_int_equal(tm_profile_put(early, "head", 3), TM_OK);
    assert_true(tm_profile_get(early, "head", &s) && s == 3);
    assert_int_equal(tm_profile_save(early), TM_OK);
    tm_profile_close(early);
    assert_true(get("avx2 4 threads", "forward \"block\" 2", &s) && s == 1.0 / 3);
    assert_true(get("avx2 8 threads", "forward \"block\" 2", &s) && s == 0.125);
    assert_true(get("avx2 4 threads", "head", &s) && s == 3);
    assert_false(get("avx2 8 threads", "head", &s));
    tm_disk d;
    assert_true(tm_profile_get_disk(".", &d));
    for (int i = 0; i < 500; i++) { /* many keys */
        char key[32];
        tm_profile *p;
        if (i % 100) continue;
        assert_int_equal(tm_profile_open(&p, "many"), TM_OK);
        for (int k = i; k < i + 100; k++) {
            snprintf(key, sizeof key, "key %d", k);
            assert_int_equal(tm_profile_put(p, key, k), TM_OK);
        }
        assert_int_equal(tm_profile_save(p), TM_OK);
        tm_profile_close(p);
    }
    for (int k = 0; k < 500; k += 7) {
        char key[32];
        snprintf(key, sizeof key, "key %d", k);
        assert_true(get("many", key, &s) && s == k);
    }
}

/* So that the file, and who reads it, stay small: the oldest go, of the back-end that was put to longest ago. */
static void the_latest_are_kept(void **state) {
    (void)state;
    enum { OLD = 300, NEW = 400, MOST = 512 };
    static const struct {
        const char *backend;
        int keys;
    } put[] = {{"b", OLD}, {"a", NEW}, {"b", 1}};
    char key[32];
    tm_profile *p;
    double s;
    for (size_t i = 0; i < TM_COUNT(put); i++) {
        assert_int_equal(tm_profile_open(&p, put[i].backend), TM_OK);
        for (int k = 0; k < put[i].keys; k++) {
            snprintf(key, sizeof key, "key %d", k);
            assert_int_equal(tm_profile_put(p, key, k + 1), TM_OK);
        }
        assert_int_equal(tm_profile_save(p), TM_OK);
        tm_profile_close(p);
    }
    for (int k = 0; k < NEW; k++) { /* one made room for what was put at last */
        snprintf(key, sizeof key, "key %d", k);
        assert_int_equal(get("a", key, &s), k > 0);
        if (k > 0) assert_true(s == k + 1);
    }
    for (int k = 0; k < OLD; k++) { /* those made room for NEW */
        snprintf(key, sizeof key, "key %d", k);
        assert_int_equal(get("b", key, &s), k == 0 || k >= OLD - (MOST - NEW));
    }
}

static void a_damaged_profile_is_ignored(void **state) {
    (void)state;
    static const char *const damaged[] = {"",
                                          "{",
                                          "[]",
                                          "{\"version\": 2}",
                                          "{\"version\": 1, \"disks\": [{}]}",
                                          "{\"version\": 1, \"seconds\": {\"a\": {\"b\": \"c\"}}}",
                                          "{\"version\": 1, \"seconds\": {\"a\": {\"b\": -1}}}"};
    double s;
    tm_disk d;
    tm_machine m;
    const char *paths[] = {"."};
    for (size_t i = 0; i < TM_COUNT(damaged); i++) {
        put_and_save("a", "b", 1);
        write_text(tm_profile_path(), damaged[i]);
        assert_false(get("a", "b", &s));
        assert_false(tm_profile_get_disk(".", &d));
        assert_int_equal(tm_machine_of(paths, 1, &m), TM_OK);
        assert_int_equal(tm_error_get()->code, TM_OK);
        put_and_save("a", "b", 2); /* and replaced */
        assert_true(get("a", "b", &s) && s == 2);
    }
}

/* `text` with `from` replaced by `to`. */
static void write_changed(const char *text, const char *from, const char *to) {
    char changed[4096];
    const char *at = strstr(text, from);
    if (!at) fail_msg("%s is not in %s", from, text);
    snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    write_text(tm_profile_path(), changed);
}

/* A profile that was right but for one value: nothing of it is believed. */
static void one_wrong_value_is_enough(void **state) {
    (void)state;
    static const struct change wrong[] = {
        {"\"disk\": \"", "\"disk\": 5, \"was\": \"", {NULL}},
        {"\"disk\":", "\"disc\":", {NULL}},
        {"\"read_bps\": ", "\"read_bps\": -", {NULL}},
        {"\"read_bps\":", "\"rate\":", {NULL}},
        {"\"write_bps\": ", "\"write_bps\": -", {NULL}},
        {"\"write_bps\": ", "\"write_bps\": \"1\", \"w\": ", {NULL}},
        {"\"duplex\": 0.25", "\"duplex\": 1.25", {NULL}},
        {"\"duplex\": 0.25", "\"duplex\": -0.25", {NULL}},
        {"\"latency\": ", "\"latency\": -", {NULL}},
        {"\"cpu_per_byte\": ", "\"cpu_per_byte\": -", {NULL}},
        {"\"tbw\": ", "\"tbw\": -", {NULL}},
        {"\"tbw\":", "\"in_training\": -1, \"tbw\":", {NULL}},
        {"\"tbw\":", "\"in_training\": \"half\", \"tbw\":", {NULL}},
        {"\"version\": 1", "\"version\": \"1\"", {NULL}},
        {"\"version\": 1", "\"versions\": 1", {NULL}},
        {"\"seconds\": {", "\"seconds\": {\"z\": 7, ", {NULL}},
    };
    /* What only says how requests are made is left out where it is no good. */
    static const struct change harmless[] = {{"\"bytes\": ", "\"bytes\": -", {NULL}},
                                             {"\"bytes\": ", "\"bytes\": \"1\", \"b\": ", {NULL}},
                                             {"\"queue_depth\": ", "\"queue_depth\": -", {NULL}},
                                             {"\"queue_depth\": ", "\"queue_depth\": \"1\", \"q\": ", {NULL}},
                                             {"\"block_size\": ", "\"block_size\": 99999999999, \"b\": ", {NULL}}};
    tm_disk d;
    double s;
    tm_buf text = {0};
    put_and_save("a", "b", 1);
    assert_int_equal(tm_profile_put_disk(".", &measured), TM_OK);
    assert_int_equal(tm_file_slurp(tm_profile_path(), 1 << 16, &text), TM_OK);
    for (size_t i = 0; i < TM_COUNT(wrong); i++) {
        write_changed(text.data, wrong[i].from, wrong[i].to);
        if (tm_profile_get_disk(".", &d) || get("a", "b", &s)) fail_msg("%s is believed", wrong[i].to);
    }
    for (size_t i = 0; i < TM_COUNT(harmless); i++) {
        write_changed(text.data, harmless[i].from, harmless[i].to);
        if (!tm_profile_get_disk(".", &d)) fail_msg("%s", harmless[i].to);
        assert_true(d.read_bps == measured.read_bps);
        assert_int_equal(d.bytes, i < 2 ? 0 : measured.bytes);
        assert_int_equal(d.queue_depth, i == 2 || i == 3 ? 0 : measured.queue_depth);
        assert_int_equal(d.block_bytes, i == 4 ? 0 : measured.block_bytes);
    }
    tm_buf_free(&text);
}

static void the_path_comes_from_the_environment(void **state) {
    (void)state;
    assert_string_equal(tm_profile_path(), "profile.dir/of/profile.json");
    unsetenv("TIDEMILL_PROFILE");
    setenv("XDG_CACHE_HOME", "/cache", 1);
    assert_string_equal(tm_profile_path(), "/cache/tidemill/profile.json");
    setenv("XDG_CACHE_HOME", "", 1);
    setenv("HOME", "/home/me", 1);
    assert_string_equal(tm_profile_path(), "/home/me/.cache/tidemill/profile.json");
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HOME");
    assert_string_equal(tm_profile_path(), "");
    assert_int_equal(tm_profile_put_disk(".", &measured), TM_EINPUT);
    tm_error_clear();
}

/* ---- this machine -------------------------------------------------------------------------------------------- */

static void paths_of_one_disk_count_once(void **state) {
    (void)state;
    const char *paths[] = {".", "here", "profile.dir"};
    tm_machine m, nominal;
    tm_machine_nominal(&nominal);
    assert_true(nominal.cores > 0 && nominal.host_bytes > 0 && !nominal.measured && nominal.disk.read_bps > 0);
    assert_int_equal(tm_machine_of(NULL, 0, &m), TM_OK);
    assert_true(m.disk.read_bps == nominal.disk.read_bps && !m.measured);
    assert_int_equal(tm_machine_of(paths, 3, &m), TM_OK);
    assert_true(m.disk.read_bps == nominal.disk.read_bps && m.disk.latency == nominal.disk.latency && !m.measured);
    assert_true(m.disk.bytes > 0); /* what is free */
    assert_int_equal(tm_profile_put_disk(".", &measured), TM_OK);
    assert_int_equal(tm_machine_of(paths, 3, &m), TM_OK);
    assert_true(m.measured && m.disk.read_bps == measured.read_bps && m.disk.duplex == measured.duplex);
    struct stat here, proc;
    const char *two[] = {".", "/proc"};
    if (stat(".", &here) != 0 || stat("/proc", &proc) != 0 || here.st_dev == proc.st_dev) return;
    assert_int_equal(tm_machine_of(two, 2, &m), TM_OK);
    assert_true(m.disk.read_bps == measured.read_bps + nominal.disk.read_bps && !m.measured);
    assert_true(m.disk.duplex > measured.duplex && m.disk.duplex < nominal.disk.duplex);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_file_of_ours_loads),
        cmocka_unit_test(settings_make_other_machines),
        cmocka_unit_test(bad_settings_are_refused),
        cmocka_unit_test(what_is_left_out_follows),
        cmocka_unit_test(what_is_saved_loads),
        cmocka_unit_test(bad_files_are_refused),
        cmocka_unit_test_setup(disks_are_kept_by_device, fresh_profile),
        cmocka_unit_test_setup(a_disk_takes_so_long, fresh_profile),
        cmocka_unit_test_setup(runs_teach_the_disk, fresh_profile),
        cmocka_unit_test_setup(seconds_are_kept_by_backend, fresh_profile),
        cmocka_unit_test_setup(the_latest_are_kept, fresh_profile),
        cmocka_unit_test_setup(one_wrong_value_is_enough, fresh_profile),
        cmocka_unit_test_setup(a_damaged_profile_is_ignored, fresh_profile),
        cmocka_unit_test_setup(paths_of_one_disk_count_once, fresh_profile),
        cmocka_unit_test_setup(the_path_comes_from_the_environment, fresh_profile),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    return failed | (tm_remove_tree("profile.dir") != TM_OK);
}
