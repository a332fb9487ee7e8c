#include "world.h"
#include "io/file/file.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char *slot(void) {
    static char slots[16][1024];
    static unsigned next;
    return slots[next++ % 16];
}

static char scratch_dir[256];

const char *fixture(const char *name) {
    char *s = slot();
    snprintf(s, 1024, "%s/%s", TM_TEST_FIXTURES, name);
    return s;
}
const char *shared(const char *name) {
    char *s = slot();
    snprintf(s, 1024, "%s/%s", TM_TEST_SHARED, name);
    return s;
}
const char *scratch(const char *name) {
    char *s = slot();
    snprintf(s, 1024, "%s/%s", scratch_dir, name);
    return s;
}

int make_scratch(void **state) {
    (void)state;
    const char *tmp = getenv("TMPDIR");
    snprintf(scratch_dir, sizeof scratch_dir, "%s/tidemill-format-XXXXXX", tmp ? tmp : "/tmp");
    return mkdtemp(scratch_dir) ? 0 : -1;
}

int remove_scratch(void **state) {
    (void)state;
    return tm_remove_tree(scratch_dir) == TM_OK ? 0 : -1;
}

void expect_ok(tm_status got, const char *expr) {
    const tm_error e = *tm_error_get();
    if (got == TM_OK) return;
    tm_error_clear();
    fail_msg("%s: %s: %s", expr, tm_status_name(got), e.text);
}

void expect_error(tm_status got, tm_status wanted, const char *text) {
    const tm_error kept = *tm_error_get(), *e = &kept;
    tm_error_clear();
    if (got != wanted || e->code != wanted || !strstr(e->text, text))
        fail_msg("got %s '%s', wanted %s with '%s'", tm_status_name(got), e->text, tm_status_name(wanted), text);
    if (strchr(e->text, '\n')) fail_msg("more than one line: %s", e->text);
}

void slurp(const char *path, tm_buf *out) {
    OK(tm_file_slurp(path, 512 << 20, out));
}

void write_file(const char *path, const void *bytes, size_t n) {
    remove(path); /* a file that is cut and written again would be flushed to disk by ext4 */
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

tm_json_doc *parse_file(const char *path) {
    tm_buf text = {0};
    tm_json_doc *doc;
    slurp(path, &text);
    OK(tm_json_parse(&doc, text.data, text.len, path, 0, 0));
    tm_buf_free(&text);
    return doc;
}

static tm_status count_tmp(void *ctx, const char *name, bool is_dir) {
    (void)is_dir;
    if (strstr(name, "tmp")) ++*(int *)ctx;
    return TM_OK;
}

int leftovers(const char *dir) {
    int n = 0;
    OK(tm_list_dir(dir, count_tmp, &n));
    return n;
}

float pattern(uint64_t i) {
    return (float)((int64_t)(i * 2654435761u % 20011) - 10005) * 0x1p-13f;
}

/* FIPS 180-4. The constants are the fractional parts of the square and cube roots of the first primes. */
static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

static uint32_t rotate(uint32_t x, int n) {
    return x >> n | x << (32 - n);
}

static void sha256_block(uint32_t h[8], const uint8_t *p) {
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)p[4 * i] << 24 | (uint32_t)p[4 * i + 1] << 16 | (uint32_t)p[4 * i + 2] << 8 | p[4 * i + 3];
    for (int i = 16; i < 64; i++) {
        uint32_t a = w[i - 15], b = w[i - 2];
        w[i] =
            w[i - 16] + (rotate(a, 7) ^ rotate(a, 18) ^ a >> 3) + w[i - 7] + (rotate(b, 17) ^ rotate(b, 19) ^ b >> 10);
    }
    memcpy(v, h, sizeof v);
    for (int i = 0; i < 64; i++) {
        uint32_t s1 = rotate(v[4], 6) ^ rotate(v[4], 11) ^ rotate(v[4], 25), ch = (v[4] & v[5]) ^ (~v[4] & v[6]);
        uint32_t t1 = v[7] + s1 + ch + K[i] + w[i];
        uint32_t s0 = rotate(v[0], 2) ^ rotate(v[0], 13) ^ rotate(v[0], 22);
        uint32_t t2 = s0 + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof *v);
        v[4] += t1;
        v[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++) h[i] += v[i];
}

void sha256_hex(const void *bytes, size_t n, char hex[65]) {
    uint32_t h[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    uint8_t tail[128] = {0};
    size_t whole = n / 64 * 64, rest = n - whole, padded = rest < 56 ? 64 : 128;
    for (size_t i = 0; i < whole; i += 64) sha256_block(h, (const uint8_t *)bytes + i);
    if (rest) memcpy(tail, (const uint8_t *)bytes + whole, rest);
    tail[rest] = 0x80;
    for (int i = 0; i < 8; i++) tail[padded - 1 - (size_t)i] = (uint8_t)((uint64_t)n * 8 >> 8 * i);
    for (size_t i = 0; i < padded; i += 64) sha256_block(h, tail + i);
    for (int i = 0; i < 8; i++) snprintf(hex + 8 * i, 9, "%08x", h[i]);
}

void make_folder(const char *dir, const char *tokenizer, uint64_t vocab) {
    static const char *const shapes[] = {
        "input_layernorm",  "post_attention_layernorm", "self_attn.q_proj", "self_attn.k_proj",
        "self_attn.v_proj", "self_attn.o_proj",         "mlp.gate_proj",    "mlp.up_proj",
        "mlp.down_proj"};
    char names[9][64], config[512], path[1200];
    tm_hf_tensor t[11] = {{.name = "model.embed_tokens.weight", .ndim = 2, .shape = {vocab, 32}},
                          {.name = "model.norm.weight", .ndim = 1, .shape = {32}}};
    for (int i = 0; i < 9; i++) {
        snprintf(names[i], sizeof names[i], "model.layers.0.%s.weight", shapes[i]);
        t[2 + i] = (tm_hf_tensor){.name = names[i], .ndim = i < 2 ? 1 : 2, .shape = {32, i < 2 ? 0 : 32}};
    }
    OK(tm_remove_tree(dir));
    OK(tm_make_dirs(dir));
    tm_hf_writer *w;
    OK(tm_hf_writer_create(&w, dir, t, 11, TM_FMT_F32, 0));
    for (uint32_t i = 0; i < 11; i++)
        for (uint64_t e = 0, n = t[i].shape[0] * (t[i].ndim > 1 ? t[i].shape[1] : 1); e < n; e++)
            OK(tm_hf_writer_put_f32(w, i, e, 1, &(float){pattern(e + i)}));
    OK(tm_hf_writer_commit(w));
    int n = snprintf(
        config, sizeof config,
        "{\"model_type\":\"llama\",\"architectures\":[\"LlamaForCausalLM\"],\"vocab_size\":%llu,\"hidden_size\":32,"
        "\"intermediate_size\":32,\"num_hidden_layers\":1,\"num_attention_heads\":2,\"rms_norm_eps\":1e-6,"
        "\"tie_word_embeddings\":true,\"rope_theta\":10000.0,\"bos_token_id\":3}",
        (unsigned long long)vocab);
    snprintf(path, sizeof path, "%s/config.json", dir);
    write_file(path, config, (size_t)n);
    static const char *const files[] = {"tokenizer.json", "tokenizer_config.json"};
    for (size_t i = 0; i < 2 && tokenizer; i++) {
        tm_buf text = {0};
        char from[256];
        snprintf(from, sizeof from, "%s/%s", tokenizer, files[i]);
        slurp(fixture(from), &text);
        snprintf(path, sizeof path, "%s/%s", dir, files[i]);
        write_file(path, text.data, text.len);
        tm_buf_free(&text);
    }
}

void convert(const char *in, const char *out, const char *dtype) {
    OK(tm_convert(in, out, &(tm_convert_opts){.dtype = dtype}));
}

float *values_of(const tm_source *src, const char *name, uint64_t *n) {
    int64_t t = tm_source_find(src, name);
    if (t < 0) fail_msg("%s: '%s' is missing", tm_source_path(src), name);
    *n = tm_source_tensor_get(src, (uint32_t)t)->elements;
    float *v = malloc(*n * sizeof *v + 1);
    assert_non_null(v);
    OK(tm_source_read_f32(src, (uint32_t)t, 0, *n, v));
    return v;
}

void same_model(const char *a_path, const char *b_path, float bound, float norms) {
    tm_source *a, *b;
    OK(tm_source_open(&a, a_path));
    OK(tm_source_open(&b, b_path));
    assert_int_equal(tm_source_tensors(a), tm_source_tensors(b));
    for (uint32_t i = 0; i < tm_source_tensors(a); i++) {
        const tm_source_tensor *s = tm_source_tensor_get(a, i), *t = tm_source_tensor_get(b, i);
        uint64_t n;
        assert_string_equal(s->name, t->name);
        assert_int_equal(s->ndim, t->ndim);
        assert_memory_equal(s->shape, t->shape, sizeof s->shape);
        float *x = values_of(a, s->name, &n), *y = values_of(b, s->name, &n), largest = 0;
        for (uint64_t k = 0; k < n; k++) largest = fmaxf(largest, fabsf(x[k]));
        float allowed = bound * largest + (strstr(s->name, "norm.weight") ? norms : 0);
        for (uint64_t k = 0; k < n; k++)
            if (!(fabsf(x[k] - y[k]) <= allowed))
                fail_msg("%s[%llu]: %g, %g", s->name, (unsigned long long)k, (double)x[k], (double)y[k]);
        free(x);
        free(y);
    }
    tm_source_close(a);
    tm_source_close(b);
}

void same_tensor(const tm_source *a, const tm_source *b, const char *name, float bound, float relative) {
    uint64_t n, m;
    float *x = values_of(a, name, &n), *y = values_of(b, name, &m);
    assert_int_equal(n, m);
    for (uint64_t e = 0; e < n; e++)
        if (!(fabsf(x[e] - y[e]) <= bound + relative * fabsf(y[e])))
            fail_msg("%s[%llu]: %g, %g", name, (unsigned long long)e, (double)x[e], (double)y[e]);
    free(x);
    free(y);
}

tm_json_doc *json_in(const char *dir, const char *name) {
    char path[1200];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return parse_file(path);
}

bool same_json(const tm_json *a, const tm_json *b) {
    if (!a || !b || a->type != b->type) return false;
    switch (a->type) {
    case TM_JSON_NULL:
        return true;
    case TM_JSON_BOOL:
        return a->boolean == b->boolean;
    case TM_JSON_NUMBER:
        return a->number == b->number;
    case TM_JSON_STRING:
        return a->len == b->len && memcmp(a->text, b->text, a->len) == 0;
    default:
        break;
    }
    if (a->count != b->count) return false;
    const tm_json *y = b->child;
    for (const tm_json *x = a->child; x; x = x->next, y = y->next)
        if (!same_json(x, a->type == TM_JSON_OBJECT ? tm_json_get(b, x->key) : y)) return false;
    return true;
}
