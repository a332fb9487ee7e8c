/* reader: records of each form against expectations written by hand; packed files; what cannot be read. */
#include "tests/support/mem_file.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

static int clean_record(void **state) {
    (void)state;
    tm_error_clear();
    tm_log_set_level(TM_LOG_ERROR);
    return 0;
}

/* All of a file's records as text, a line each: NUMBER TEXT, or NUMBER !WHY. A failure ends it: "? WHY". */
static char *read_all(const char *name, mem_file b, const tm_reader_opts *opts) {
    static char out[4096];
    size_t at = 0;
    tm_reader *r = NULL;
    tm_record record;
    uint64_t live = tm_mem_live_bytes();
    const tm_data_source source = mem_file_source(&b, name);
    out[0] = 0;
    tm_status rc = tm_reader_open(&r, &source, opts);
    while (rc == TM_OK && (rc = tm_reader_next(r, &record)) == TM_OK && record.text)
        at += (size_t)snprintf(out + at, sizeof out - at, "%llu %s%s\n", (unsigned long long)record.number,
                               record.wrong ? "!" : "", record.wrong ? record.wrong : record.text);
    if (rc == TM_OK) assert_true(tm_reader_bytes(r) <= b.n);
    if (rc != TM_OK) snprintf(out + at, sizeof out - at, "? %s", tm_error_get()->text);
    tm_error_clear();
    tm_reader_close(r);
    assert_int_equal(tm_mem_live_bytes(), live);
    return out;
}

static void check(const char *name, const char *file, const char *want) {
    assert_string_equal(read_all(name, (mem_file){file, strlen(file)}, &(tm_reader_opts){0}), want);
}

/* ---- lines ------------------------------------------------------------------------------------------------------- */

static void test_lines(void **state) {
    (void)state;
    check("a.jsonl", "{\"a\": 1}\n\n  \n{\"b\": 2}\r\n{\"c\": 3}", "1 {\"a\": 1}\n4 {\"b\": 2}\n5 {\"c\": 3}\n");
    check("a.jsonl", "\xEF\xBB\xBF{\"a\": 1}\n", "1 {\"a\": 1}\n");
    check("a.jsonl", "", "");
    check("a.jsonl", "\n\n", "");
    check("noname", "{\"a\": 1}\n{\"b\": 2}\n", "1 {\"a\": 1}\n2 {\"b\": 2}\n");
    check("a.json", "{\"a\": 1}\n{\"b\": 2}\n", "1 {\"a\": 1}\n2 {\"b\": 2}\n"); /* lines under the other name */
    char *out = read_all("a.jsonl", (mem_file){"{\"a\":1}\n{\"abcdefghij\":1}\n{}\n", 28},
                         &(tm_reader_opts){.max_record_bytes = 8});
    assert_string_equal(out, "1 {\"a\":1}\n2 !longer than 8 bytes\n3 {}\n");
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static void test_list(void **state) {
    (void)state;
    static const char pretty[] = "[\n  {\n    \"a\": \"x]}\\\"\"\n  },\n  {\"b\": [1, {\"c\": 2}]}\n]\n";
    check("a.json", pretty, "1 {\n    \"a\": \"x]}\\\"\"\n  }\n2 {\"b\": [1, {\"c\": 2}]}\n");
    check("a.jsonl", "[{\"a\": 1}, {\"b\": 2},]",
          "1 {\"a\": 1}\n2 {\"b\": 2}\n"); /* named as lines; a comma too many */
    check("a.json", "[]", "");
    check("a.json", "[1, \"two\", {\"c\": 3}]", "1 1\n2 \"two\"\n3 {\"c\": 3}\n");
    check("a.json", "[{\"a\": 1} {\"b\": 2}]", "1 {\"a\": 1}\n? a.json: element 1: neither , nor ] follows it");
    check("a.json", "[{\"a\": 1}, {\"b\": ", "1 {\"a\": 1}\n? a.json: element 2: the file ends here; it is cut off");
    check("a.json", "[{\"a\": 1}", "1 {\"a\": 1}\n? a.json: element 1: the list does not end; the file is cut off");
    check(
        "a.json", "[{\"a\": 1}] [{}]",
        "1 {\"a\": 1}\n? a.json: more follows behind the end of its list, which has 1 elements; a file is one list, or "
        "an object a line");
    char *out = read_all("a.json", (mem_file){"[{\"abcdefghij\":1},{}]", 21}, &(tm_reader_opts){.max_record_bytes = 8});
    assert_string_equal(out, "1 !longer than 8 bytes\n2 {}\n");
}

static void test_member(void **state) {
    (void)state;
    check("a.json", "{\"version\": \"1\", \"names\": [\"x\", \"y\"], \"data\": [{\"a\": 1},\n {\"b\": 2}], \"end\": 0}",
          "1 {\"a\": 1}\n2 {\"b\": 2}\n");
}

static void test_one_object(void **state) {
    (void)state;
    check("a.json", "{\n \"messages\": [{\"role\": \"user\"}]\n}\n", "1 {\n \"messages\": [{\"role\": \"user\"}]\n}\n");
    check("a.json", "{\"messages\": [{\"role\": \"user\"}]}", "1 {\"messages\": [{\"role\": \"user\"}]}\n");
    check("a.json", "{\"messages\": [{}], \"rejected_messages\": [{}], \"rejected_response\": [{}]}",
          "1 {\"messages\": [{}], \"rejected_messages\": [{}], \"rejected_response\": [{}]}\n");
    check("a.json", "{\n\"a\": 1}\n{\n\"b\": 2}\n", "1 {\n\"a\": 1}\n2 {\n\"b\": 2}\n");
    check("a.json", "{\n\"a\": 1}}",
          "1 {\n\"a\": 1}\n? a.json: what follows object 1 is none; a file is a list of objects, or an object a line");
}

/* A list of elements that straddle the blocks that the file is read by. */
static void test_list_of_blocks(void **state) {
    (void)state;
    enum { N = 3000 };
    tm_buf file = {0};
    tm_reader *r;
    tm_record record;
    assert_int_equal(tm_buf_append(&file, "[", 1), TM_OK);
    for (int i = 0; i < N; i++)
        assert_int_equal(tm_buf_printf(&file, "%s{\"n\": %d, \"text\": \"%0*d\"}", i ? ",\n" : "", i, i % 700 + 1, i),
                         TM_OK);
    assert_int_equal(tm_buf_append(&file, "]", 1), TM_OK);
    mem_file b = {file.data, file.len};
    const tm_data_source source = mem_file_source(&b, "a.json");
    assert_int_equal(tm_reader_open(&r, &source, &(tm_reader_opts){0}), TM_OK);
    for (int i = 0; i < N; i++) {
        char want[800];
        assert_int_equal(tm_reader_next(r, &record), TM_OK);
        snprintf(want, sizeof want, "{\"n\": %d, \"text\": \"%0*d\"}", i, i % 700 + 1, i);
        assert_string_equal(record.text, want);
        assert_int_equal(record.number, i + 1);
    }
    assert_int_equal(tm_reader_next(r, &record), TM_OK);
    assert_null(record.text);
    tm_reader_close(r);
    tm_buf_free(&file);
}

/* ---- CSV --------------------------------------------------------------------------------------------------------- */

static void test_csv(void **state) {
    (void)state;
    check("a.csv", "prompt,completion\r\nhi,there\r\n\"a, \"\"b\"\"\",\"two\nlines\"\r\n",
          "1 {\"prompt\": \"hi\", \"completion\": \"there\"}\n"
          "2 {\"prompt\": \"a, \\\"b\\\"\", \"completion\": \"two\\nlines\"}\n");
    check("a.csv", "a,b\n1,\n\n\"\",\"2\"",
          "1 {\"a\": \"1\", \"b\": \"\"}\n2 {\"a\": \"\", \"b\": \"2\"}\n"); /* blank; no end */
    check("a.csv", "\xEF\xBB\xBFtext\nx\n", "1 {\"text\": \"x\"}\n");
    check("a.csv", "text\n5\" disk\nx\"y\"\n", "1 {\"text\": \"5\\\" disk\"}\n2 {\"text\": \"x\\\"y\\\"\"}\n");
    check("a.csv", "a;b\n1,2;3\n", "1 {\"a\": \"1,2\", \"b\": \"3\"}\n");
    check("a.tsv", "a,x\tb\n1\t2\n", "1 {\"a,x\": \"1\", \"b\": \"2\"}\n");
    check("a.csv", "", "");
    check("a.csv", "a,b\n", "");
}

static void test_csv_mistakes(void **state) {
    (void)state;
    check("a.csv", "a,b\n1\n1,2,3\n1,2\n",
          "1 !1 cells where the header row has 2 columns\n"
          "2 !3 cells where the header row has 2 columns\n3 {\"a\": \"1\", \"b\": \"2\"}\n");
    check("a.csv", "a,b\n1,2\n\"x,y\n", "1 {\"a\": \"1\", \"b\": \"2\"}\n2 !a quoted cell is not closed\n");
    check("a.csv", "a,a\n", "? a.csv: two columns are named \"a\"; the first row names the columns");
    check("a.csv", "\"a,b\n", "? a.csv: a quote of the header row is not closed; is it CSV?");
}

/* What a column means decides whether a cell is JSON. */
static void test_csv_cells(void **state) {
    (void)state;
    check("a.csv", "messages,note\n\"[{\"\"role\"\": \"\"user\"\"}]\",[1]\n",
          "1 {\"messages\": [{\"role\": \"user\"}], \"note\": \"[1]\"}\n");
    check(
        "a.csv", "messages\n[{'role': 'user'}]\n",
        "1 !the cell of column messages is no JSON ([{'role': 'user'}]); write lists with json.dumps, not with str\n");
    check("a.csv", "prompt,label\n[1] is a list,True\n\"[{\"\"a\"\": 1}]\",0\n",
          "1 {\"prompt\": \"[1] is a list\", \"label\": true}\n2 {\"prompt\": [{\"a\": 1}], \"label\": false}\n");
    check("a.csv", "rejected_response,kto_tag\n[1],False\n\"[{\"\"a\"\": 1}]\",1\n",
          "1 {\"rejected_response\": \"[1]\", \"kto_tag\": false}\n"
          "2 {\"rejected_response\": [{\"a\": 1}], \"kto_tag\": true}\n");
    static const char *const theirs[] = {"turns"}, *const ours[] = {"messages"};
    const tm_data_columns columns = {theirs, ours, 1};
    static const char file[] = "turns\n[1]\n";
    assert_string_equal(read_all("a.csv", (mem_file){file, sizeof file - 1}, &(tm_reader_opts){.columns = &columns}),
                        "1 {\"turns\": [1]}\n");
}

/* ---- text -------------------------------------------------------------------------------------------------------- */

static void test_text(void **state) {
    (void)state;
    static const char file[] = "One \"line\".\nTwo.\r\n\n \nThree\n";
    mem_file b = {file, sizeof file - 1};
    assert_string_equal(read_all("a.txt", b, &(tm_reader_opts){0}),
                        "1 {\"text\": \"One \\\"line\\\".\"}\n2 {\"text\": \"Two.\"}\n5 {\"text\": \"Three\"}\n");
    assert_string_equal(read_all("a.txt", b, &(tm_reader_opts){.sample_by = TM_SAMPLE_BY_PARAGRAPH}),
                        "1 {\"text\": \"One \\\"line\\\".\\nTwo.\"}\n5 {\"text\": \"Three\"}\n");
    assert_string_equal(read_all("a.txt", b, &(tm_reader_opts){.sample_by = TM_SAMPLE_BY_DOCUMENT}),
                        "1 {\"text\": \"One \\\"line\\\".\\nTwo.\\r\\n\\n \\nThree\\n\"}\n");
    assert_string_equal(read_all("a.txt", (mem_file){"ab\ncd\nefg\xC3\xA4\xC3\xA4", 13},
                                 &(tm_reader_opts){.sample_by = TM_SAMPLE_BY_DOCUMENT, .max_record_bytes = 6}),
                        "1 {\"text\": \"ab\\ncd\\n\"}\n2 {\"text\": \"efg\xC3\xA4\"}\n3 {\"text\": \"\xC3\xA4\"}\n");
}

#define NOT_UTF8(byte, before)                                                                                         \
    "byte 0x" byte " is not valid UTF-8 (" before " bytes before it are); what has another encoding is rewritten by "  \
    "iconv -f ENCODING -t UTF-8"

/* As JSON lines are, of which whoever parses them says so. */
static void test_not_utf8(void **state) {
    (void)state;
    char *out = read_all("a.txt", (mem_file){"caf\xE9\n\xC3\xA4\n", 8}, &(tm_reader_opts){0});
    assert_string_equal(out, "1 !" NOT_UTF8("e9", "3") "\n2 {\"text\": \"\xC3\xA4\"}\n");
    check("a.csv", "a,b\nx,caf\xE9\nx,\xC3\xA4\n",
          "1 !" NOT_UTF8("e9", "5") "\n2 {\"a\": \"x\", \"b\": \"\xC3\xA4\"}\n");
    check("a.csv", "a,caf\xE9\nx,y\n", "? a.csv: the header row: " NOT_UTF8("e9", "5"));
}

/* ---- packed ------------------------------------------------------------------------------------------------------ */

/* gzip -n and zstd -19 of "{\"a\":1}\n" and "{\"b\":2}\n", one member or frame each. */
static const char
    gz_a[] = "\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\xabVJT\xb2\x32\xac\xe5\x02\x00\x46\xa3\xe8t\x08\x00\x00\x00",
    gz_b[] = "\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\xabVJR\xb2\x32\xaa\xe5\x02\x00\xb1o:\xf0\x08\x00\x00\x00",
    zst_a[] = "(\xb5/\xfd\x04hA\x00\x00{\x22\x61\x22:1}\x0a\xe2\xef\xec\xe0",
    zst_b[] = "(\xb5/\xfd\x04hA\x00\x00{\x22\x62\x22:2}\x0a\x04\xeeW\xc0";

static char both[256];
static mem_file join(const char *a, size_t n, const char *b, size_t m) {
    memcpy(both, a, n);
    memcpy(both + n, b, m);
    return (mem_file){both, n + m};
}
#define SIZE(a) (sizeof(a) - 1)

static void check_packed(const char *name, mem_file b, const char *want) {
    assert_string_equal(read_all(name, b, &(tm_reader_opts){0}), want);
}

static void test_gzip(void **state) {
    (void)state;
    static const char zeros[8], junk[] = "junk";
    check_packed("a.jsonl.gz", (mem_file){gz_a, SIZE(gz_a)}, "1 {\"a\":1}\n");
    check_packed("a.jsonl", (mem_file){gz_a, SIZE(gz_a)}, "1 {\"a\":1}\n"); /* told by its bytes */
    check_packed("a.jsonl.gz", join(gz_a, SIZE(gz_a), gz_b, SIZE(gz_b)), "1 {\"a\":1}\n2 {\"b\":2}\n");
    check_packed("a.jsonl.gz", join(gz_a, SIZE(gz_a), zeros, 8), "1 {\"a\":1}\n"); /* padding */
    assert_non_null(
        strstr(read_all("a.gz", join(gz_a, SIZE(gz_a), junk, 4), &(tm_reader_opts){0}), "? a.gz: damaged gzip data"));
    check_packed("a.gz", (mem_file){gz_a, SIZE(gz_a) - 1},
                 "? a.gz: the packed file is cut off after 27 bytes; fetch it again");
    check_packed(
        "a.jsonl.gz", (mem_file){"{\"a\":1}", 7},
        "? a.jsonl.gz: named as if gzip had packed it, but it does not begin so; fetch it again, or rename it");
}

static void test_zstd(void **state) {
    (void)state;
    static const char skipped[] = "\x50\x2a\x4d\x18\x02\x00\x00\x00xy";
    check_packed("a.jsonl.zst", (mem_file){zst_a, SIZE(zst_a)}, "1 {\"a\":1}\n");
    check_packed("a.jsonl.zst", join(zst_a, SIZE(zst_a), zst_b, SIZE(zst_b)), "1 {\"a\":1}\n2 {\"b\":2}\n");
    check_packed("a.jsonl.zst", join(skipped, 10, zst_b, SIZE(zst_b)), "1 {\"b\":2}\n");
    assert_non_null(strstr(read_all("a.zst", (mem_file){zst_a, SIZE(zst_a) - 2}, &(tm_reader_opts){0}), "is cut off"));
}

/* A frame that asks for a window of 2 GiB: refused, without taking it. */
static void test_zstd_window(void **state) {
    (void)state;
    static const char frame[] = "\x28\xb5\x2f\xfd\x00\xa8\x01\x00\x00";
    assert_non_null(strstr(read_all("a.zst", (mem_file){frame, SIZE(frame)}, &(tm_reader_opts){0}),
                           "? a.zst: its Zstandard window is larger than the 128.00 MiB that unpacking may take"));
}

/* Blocks that repeat a byte 131,072 times each take four bytes: read by blocks, in memory that does not grow. */
static void test_bomb(void **state) {
    (void)state;
    enum { LINES = 400 };
    static const char head[] = "\x28\xb5\x2f\xfd\x00\x38", line[] = "\x10\x00\x00{}\x02\x00\x10\n";
    static char bomb[6 + LINES * 9 + 3];
    uint64_t n = 0, live = tm_mem_live_bytes();
    tm_reader *r;
    tm_record record;
    memcpy(bomb, head, 6);
    for (int i = 0; i < LINES; i++) memcpy(bomb + 6 + 9 * i, line, 9);
    memcpy(bomb + 6 + 9 * LINES, "\x01\x00\x00", 3);
    mem_file b = {bomb, sizeof bomb};
    const tm_data_source source = mem_file_source(&b, "bomb");
    assert_int_equal(tm_reader_open(&r, &source, &(tm_reader_opts){0}), TM_OK);
    do {
        assert_int_equal(tm_reader_next(r, &record), TM_OK);
        n += record.text && !strcmp(record.text, "{}");
    } while (record.text);
    assert_int_equal(n, LINES);
    assert_true(tm_reader_packed(r));
    tm_reader_close(r);
    assert_true(tm_mem_peak_bytes() - live < 4 * TM_MIB);
}

/* ---- what cannot be read ------------------------------------------------------------------------------------------ */

static void check_refused(const char *name, const char *file, size_t n, const char *what, const char *advice) {
    char *out = read_all(name, (mem_file){file, n}, &(tm_reader_opts){0});
    if (!strstr(out, what) || !strstr(out, advice)) fail_msg("\"%s\" and \"%s\" not in: %s", what, advice, out);
}
#define REFUSED(name, file, what, advice) check_refused(name, file, sizeof file - 1, what, advice)

static void test_refused(void **state) {
    (void)state;
    REFUSED("a.parquet", "PAR1\x15\x04\x15\x10", "? a.parquet: a Parquet file, which is not read here",
            "pd.read_parquet(\"FILE\").to_json(\"data.jsonl\", orient=\"records\", lines=True)");
    REFUSED("a.jsonl", "PAR1\x15\x04\x15\x10", "a.jsonl: a Parquet file", "python3 -c"); /* whatever its name */
    REFUSED("a.arrow", "ARROW1\0\0\xff\xff", "an Arrow (Feather) file", "read_feather");
    REFUSED("a.arrow", "\xff\xff\xff\xff\x10\0\0\0", "an Arrow stream", "Dataset.from_file(\"FILE\").to_json");
    REFUSED("a.pkl", "\x80\x04\x95\x10", "a Python pickle", "read_pickle");
    REFUSED("a.npy", "\x93NUMPY\x01\0", "a NumPy array", ".safetensors");
    REFUSED("a.npz", "PK\x03\x04\x14", "NumPy arrays", ".safetensors");
    REFUSED("a.xlsx", "PK\x03\x04\x14", "an Excel sheet", "read_excel");
    REFUSED("a.zip", "PK\x03\x04\x14", "a zip archive", "unpack it");
    REFUSED("a.jsonl.xz", "\xfd\x37zXZ\0", "packed by xz", "xz -d");
    REFUSED("a.jsonl.bz2", "BZh91AY&SY\x01", "packed by bzip2", "bzip2 -d");
    REFUSED("a.txt", "\xff\xfeh\0i\0", "UTF-16 text", "iconv -f UTF-16 -t UTF-8");
    REFUSED("a.bin", "ab\0cd", "binary data, of no kind that is known here", "JSONL, JSON, CSV, text");
    check("a.txt", "ORC is a word, as are\nPAR1 and BZh.\n",
          "1 {\"text\": \"ORC is a word, as are\"}\n2 {\"text\": \"PAR1 and BZh.\"}\n");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_lines, clean_record),
        cmocka_unit_test_setup(test_list, clean_record),
        cmocka_unit_test_setup(test_member, clean_record),
        cmocka_unit_test_setup(test_one_object, clean_record),
        cmocka_unit_test_setup(test_list_of_blocks, clean_record),
        cmocka_unit_test_setup(test_csv, clean_record),
        cmocka_unit_test_setup(test_csv_mistakes, clean_record),
        cmocka_unit_test_setup(test_csv_cells, clean_record),
        cmocka_unit_test_setup(test_text, clean_record),
        cmocka_unit_test_setup(test_not_utf8, clean_record),
        cmocka_unit_test_setup(test_gzip, clean_record),
        cmocka_unit_test_setup(test_zstd, clean_record),
        cmocka_unit_test_setup(test_zstd_window, clean_record),
        cmocka_unit_test_setup(test_bomb, clean_record),
        cmocka_unit_test_setup(test_refused, clean_record),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
