#include "safetensors_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void die(const char *what, const char *path) {
    fprintf(stderr, "%s: %s\n", path, what);
    abort();
}

char *read_text(const char *path, size_t *len) {
    FILE *f = fopen(path, "rb");
    if (!f) die("cannot be opened", path);
    fseek(f, 0, SEEK_END);
    *len = (size_t)ftell(f);
    rewind(f);
    char *text = tm_malloc(*len + 1);
    if (fread(text, 1, *len, f) != *len) die("cannot be read", path);
    text[*len] = 0;
    fclose(f);
    return text;
}

st_file st_open(const char *path) {
    st_file f = {0};
    uint64_t header;
    f.bytes = read_text(path, &f.size);
    memcpy(&header, f.bytes, 8);
    if (tm_json_parse(&f.doc, f.bytes + 8, header, path, 0, 0) != TM_OK) die(tm_error_get()->text, path);
    f.data = f.bytes + 8 + header;
    return f;
}

void st_close(st_file *f) {
    tm_json_free(f->doc);
    tm_free(f->bytes);
}

static const char *find(const st_file *f, const char *name, const char **dtype, size_t *bytes) {
    const tm_json *t = tm_json_get(tm_json_root(f->doc), name);
    if (!t) return NULL;
    const tm_json *range = tm_json_get(t, "data_offsets")->child;
    *dtype = tm_json_get(t, "dtype")->text;
    *bytes = (size_t)(range->next->integer - range->integer);
    return f->data + range->integer;
}

float *st_floats(const st_file *f, const char *name, size_t *n) {
    const char *dtype, *at;
    size_t bytes;
    if (!(at = find(f, name, &dtype, &bytes))) return NULL;
    bool wide = !strcmp(dtype, "F32");
    if (!wide && strcmp(dtype, "BF16")) die("neither F32 nor BF16", name);
    *n = bytes / (wide ? 4 : 2);
    float *out = tm_malloc(*n * sizeof *out);
    for (size_t i = 0; i < *n; i++) {
        uint32_t bits = 0;
        memcpy(wide ? (char *)&bits : (char *)&bits + 2, at + i * (wide ? 4 : 2), wide ? 4 : 2);
        memcpy(&out[i], &bits, 4);
    }
    return out;
}

int32_t *st_ints(const st_file *f, const char *name, size_t *n) {
    const char *dtype, *at;
    size_t bytes;
    if (!(at = find(f, name, &dtype, &bytes))) return NULL;
    size_t width = strcmp(dtype, "I64") ? 4 : 8;
    *n = bytes / width;
    int32_t *out = tm_malloc(*n * sizeof *out);
    for (size_t i = 0; i < *n; i++) memcpy(&out[i], at + i * width, 4);
    return out;
}
