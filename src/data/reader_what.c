/* Files that hold no records of ours, told by their first bytes, and what makes JSONL of them. */
#include "data/reader_internal.h"

#include <string.h>

/* Python's, in one line; %s: the file. Quotes stand as a shell wants them. */
#define BY(code) "python3 -c 'import pandas as pd; pd." code ".to_json(\"data.jsonl\", orient=\"records\", lines=True)'"
#define UNPACK "unpack it first"
#define OWN "write its samples as JSONL, one {\"messages\": ...} or {\"text\": ...} a line"

static const struct {
    const char *bytes;
    size_t n;
    const char *what, *advice;
} others[] = {
    {"PAR1", 4, "a Parquet file", BY("read_parquet(\"FILE\")")},
    {"ARROW1", 6, "an Arrow (Feather) file", BY("read_feather(\"FILE\")")},
    {"\xff\xff\xff\xff", 4, "an Arrow stream, as datasets keep their caches",
     "python3 -c 'from datasets import Dataset; Dataset.from_file(\"FILE\").to_json(\"data.jsonl\")'"},
    {"\x93NUMPY", 6, "a NumPy array", "give token ids as .safetensors: input_ids and labels, [rows, positions]"},
    {"\x80\x02", 2, "a Python pickle", BY("read_pickle(\"FILE\")")},
    {"\x80\x03", 2, "a Python pickle", BY("read_pickle(\"FILE\")")},
    {"\x80\x04", 2, "a Python pickle", BY("read_pickle(\"FILE\")")},
    {"\x80\x05", 2, "a Python pickle", BY("read_pickle(\"FILE\")")},
    {"\x89HDF", 4, "an HDF5 file", BY("read_hdf(\"FILE\")")},
    {"ORC", 3, "an ORC file", BY("read_orc(\"FILE\")")},
    {"Obj\x01", 4, "an Avro file", OWN},
    {"SQLite format 3", 15, "an SQLite database", OWN},
    {"\xd0\xcf\x11\xe0", 4, "an old Office file", BY("read_excel(\"FILE\")")},
    {"%PDF", 4, "a PDF", OWN},
    {"\xfd"
     "7zXZ",
     5, "packed by xz", UNPACK " (xz -d), or pack it by zstd"},
    {"BZh", 3, "packed by bzip2", UNPACK " (bzip2 -d), or pack it by zstd"},
    {"\x04\x22\x4d\x18", 4, "packed by lz4", UNPACK " (lz4 -d), or pack it by zstd"},
    {"7z\xbc\xaf", 4, "a 7z archive", UNPACK},
    {"Rar!", 4, "a RAR archive", UNPACK},
    {"\xff\xfe", 2, "UTF-16 text", "iconv -f UTF-16 -t UTF-8 \"FILE\" > data.jsonl"},
    {"\xfe\xff", 2, "UTF-16 text", "iconv -f UTF-16 -t UTF-8 \"FILE\" > data.jsonl"},
    {"\x1f\x8b", 2, "packed by gzip twice", UNPACK " (gzip -d)"},
    {"\x28\xb5\x2f\xfd", 4, "packed by zstd twice", UNPACK " (zstd -d)"},
    {"\x89PNG", 4, "an image", "text is what is learned here"},
    {"\xff\xd8\xff", 3, "an image", "text is what is learned here"},
};

/* A zip holds anything: spreadsheets, arrays, models and archives are told by its first name. */
static tm_status refuse_zip(const char *name, const char *head, size_t n) {
    static const char excel[] = "[Content_Types].xml";
    bool is_excel = tm_reader_name_ends(name, ".xlsx") || memmem(head, n, excel, sizeof excel - 1);
    if (is_excel)
        return tm_fail(TM_EINPUT,
                       "%s: an Excel sheet, which is not read here; make JSONL of it: %s, with \"FILE\" its name", name,
                       BY("read_excel(\"FILE\")"));
    if (tm_reader_name_ends(name, ".npz"))
        return tm_fail(TM_EINPUT, "%s: NumPy arrays, which are not read here; give token ids as .safetensors", name);
    return tm_fail(TM_EINPUT, "%s: a zip archive, which is not read here; unpack it and name what is in it", name);
}

static bool is_tar(const char *head, size_t n) {
    return n >= 262 && !memcmp(head + 257, "ustar", 5);
}

static bool is_safetensors(const char *head, size_t n) {
    return n >= 10 && head[8] == '{' && head[9] == '"' && !head[6] && !head[7];
}

static bool is_control(unsigned char c) {
    return c < 0x20 && c != '\t' && c != '\n' && c != '\r' && c != '\f' && c != 0x1b;
}

static bool has_control(const char *text, size_t n) {
    for (size_t i = 0; i < n && i < 4096; i++)
        if (is_control((unsigned char)text[i])) return true;
    return false;
}

/* A text may well begin with ORC: what begins with letters alone is told by what follows them, too. */
static bool begins(const char *head, size_t n, const char *bytes, size_t len) {
    bool letters = bytes[0] != '%';
    if (n < len || memcmp(head, bytes, len) != 0) return false;
    for (size_t i = 0; i < len; i++) letters &= bytes[i] >= 0x20 && bytes[i] < 0x7f;
    return !letters || has_control(head, n);
}

tm_status data_refuse(const char *name, const char *head, size_t n) {
    for (size_t i = 0; i < TM_COUNT(others); i++)
        if (begins(head, n, others[i].bytes, others[i].n))
            return tm_fail(TM_EINPUT, "%s: %s, which is not read here; %s%s%s", name, others[i].what,
                           strstr(others[i].advice, "FILE") ? "make JSONL of it: " : "", others[i].advice,
                           strstr(others[i].advice, "FILE") ? ", with \"FILE\" its name" : "");
    if (n >= 4 && !memcmp(head, "PK\x03\x04", 4)) return refuse_zip(name, head, n);
    if (is_tar(head, n))
        return tm_fail(TM_EINPUT, "%s: a tar archive, which is not read here; unpack it and name its folder", name);
    if (is_safetensors(head, n))
        return tm_fail(TM_EINPUT, "%s: a safetensors file by its content; give it a name that ends in .safetensors",
                       name);
    if (n && *head != '{' && *head != '[' && memchr(head, 0, n < 4096 ? n : 4096))
        return tm_fail(TM_EINPUT,
                       "%s: binary data, of no kind that is known here; JSONL, JSON, CSV, text and "
                       ".safetensors are read",
                       name);
    return TM_OK;
}
