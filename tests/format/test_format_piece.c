/* Tensors in place: the bytes that tm_source_piece_of names, read from the file by the test itself, decode to the values
 * of tm_source_read_f32, rounded once. Every fixture's model as folder and as GGUF, every block type, random ranges. */
#include "gguf_bytes.h"
#include "io/file/file.h"
#include "kernels/kernels.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t seed = 7;
static uint32_t draw(void) {
    seed = seed * 1664525u + 1013904223u;
    return seed >> 8;
}

/* ---- one range of one tensor ---- */

/* The ranges' bytes, each in a block of its own that ends where the range does, at an odd address now and then. */
typedef struct piece_bytes {
    uint8_t *block[TM_PIECE_RANGES];
    const void *raw[TM_PIECE_RANGES];
} piece_bytes;

static piece_bytes read_piece(const tm_source_piece *p) {
    piece_bytes b = {0};
    for (uint32_t i = 0; i < p->n; i++) {
        const tm_raw_range *r = &p->range[i];
        size_t shift = draw() % 4;
        FILE *f = fopen(r->path, "rb");
        assert_non_null(f);
        b.block[i] = malloc(r->bytes + shift + 1);
        assert_non_null(b.block[i]);
        assert_int_equal(fseek(f, (long)r->offset, SEEK_SET), 0);
        assert_int_equal(fread(b.block[i] + shift, 1, r->bytes, f), r->bytes);
        assert_int_equal(fclose(f), 0);
        b.raw[i] = b.block[i] + shift;
    }
    return b;
}

static bool is_nan16(tm_fmt to, uint16_t v) {
    return to == TM_FMT_BF16 ? (v & 0x7fff) > 0x7f80 : (v & 0x7fff) > 0x7c00;
}

/* NaN is NaN; everything else to the bit. */
static bool same_bits(tm_fmt to, const void *a, const void *b, uint64_t i) {
    if (to == TM_FMT_F32) {
        float x = ((const float *)a)[i], y = ((const float *)b)[i];
        return (isnan(x) && isnan(y)) || memcmp(&x, &y, sizeof x) == 0;
    }
    uint16_t x = ((const uint16_t *)a)[i], y = ((const uint16_t *)b)[i];
    return x == y || (is_nan16(to, x) && is_nan16(to, y));
}

static void decodes(const tm_source *src, uint32_t t, const tm_source_piece *p, const piece_bytes *b, uint64_t first,
                    uint64_t n) {
    static const tm_fmt types[] = {TM_FMT_F32, TM_FMT_BF16, TM_FMT_F16};
    float *values = malloc(n * 4 + 1);
    void *wanted = malloc(n * 4 + 1), *got = malloc(n * 4 + 1);
    assert_true(values && wanted && got);
    OK(tm_source_read_f32(src, t, first, n, values));
    for (size_t k = 0; k < TM_COUNT(types); k++) {
        OK(tm_fmt_encode(types[k], values, n, wanted));
        memset(got, 0xa5, n * 4);
        OK(tm_source_decode(src, t, p, b->raw, first, n, types[k], got));
        for (uint64_t i = 0; i < n; i++)
            if (!same_bits(types[k], got, wanted, i))
                fail_msg("%s (%s) to %s: element %llu", tm_source_tensor_get(src, t)->name,
                         tm_fmt_get(tm_source_tensor_get(src, t)->fmt)->name, tm_fmt_get(types[k])->name,
                         (unsigned long long)(first + i));
    }
    free(values);
    free(wanted);
    free(got);
}

static void a_range(const tm_source *src, uint32_t t, uint64_t first, uint64_t n) {
    const tm_source_tensor *info = tm_source_tensor_get(src, t);
    tm_source_piece p, again;
    OK(tm_source_piece_of(src, t, first, n, &p));
    assert_true(p.first <= first && first + n <= p.first + p.elements && p.first + p.elements <= info->elements);
    assert_true(p.n >= 1 && p.n <= TM_PIECE_RANGES);
    OK(tm_source_piece_of(src, t, p.first, p.elements, &again)); /* the least */
    assert_true(again.first == p.first && again.elements == p.elements);
    for (uint32_t i = 0; i < p.n; i++) assert_memory_equal(&p.range[i], &again.range[i], sizeof p.range[i]);
    piece_bytes b = read_piece(&p);
    decodes(src, t, &p, &b, first, n);
    if (p.elements) { /* any part of it */
        uint64_t from = draw() % p.elements;
        decodes(src, t, &p, &b, p.first + from, draw() % (p.elements - from + 1));
    }
    uint64_t bytes;
    if (p.in_order) assert_true(p.n == 1 && tm_fmt_bytes(info->fmt, p.elements, &bytes) && bytes == p.range[0].bytes);
    for (uint32_t i = 0; i < p.n; i++) free(b.block[i]);
}

static void every_tensor(const char *path, int ranges) {
    tm_source *src;
    OK(tm_source_open(&src, path));
    for (uint32_t t = 0; t < tm_source_tensors(src); t++) {
        uint64_t all = tm_source_tensor_get(src, t)->elements;
        tm_source_piece p;
        a_range(src, t, 0, all);
        for (int i = 0; i < ranges && all; i++) {
            uint64_t first = draw() % all;
            a_range(src, t, first, i % 2 ? draw() % (all - first + 1) : draw() % tm_min_u64(300, all - first + 1));
        }
        expect_error(tm_source_piece_of(src, t, all, 1, &p), TM_EINPUT, "not there");
        expect_error(tm_source_piece_of(src, t, 1, UINT64_MAX, &p), TM_EINPUT, "not there");
    }
    tm_source_close(src);
}

/* ---- models ---- */

static void folders_and_their_ggufs(void **state) {
    (void)state;
    static const char *const folders[] = {"arch_llama",  "arch_qwen2", "arch_phi3",
                                          "arch_gemma2", "arch_gpt2",  "safetensors_sharded"};
    static const char *const types[] = {"f32", "bf16", "f16", "q8_0", "q5_0", "q5_1", "q4_0", "q4_1"};
    for (size_t i = 0; i < TM_COUNT(folders); i++) {
        every_tensor(fixture(folders[i]), 4);
        for (size_t k = 0; k < TM_COUNT(types) && strncmp(folders[i], "arch_", 5) == 0; k++) {
            (void)remove(scratch("m.gguf"));
            convert(fixture(folders[i]), scratch("m.gguf"), types[k]);
            every_tensor(scratch("m.gguf"), 4);
        }
    }
}

/* Every dtype of safetensors, a scalar, an empty tensor. */
static void every_plain_type(void **state) {
    (void)state;
    tm_buf file = {0};
    OK(tm_make_dirs(scratch("special")));
    slurp(fixture("safetensors_special/tensors.safetensors"), &file);
    write_file(scratch("special/model.safetensors"), file.data, file.len);
    write_file(scratch("special/config.json"), "{}", 2);
    every_tensor(scratch("special"), 6);
    tm_buf_free(&file);
}

enum { HIDDEN = 256, FEW = 64 };
static const struct layer_tensor {
    const char *name;
    uint64_t rows;
} layer[] = {{"token_embd.weight", 8},          {"output_norm.weight", 0},
             {"blk.0.attn_norm.weight", 0},     {"blk.0.ffn_norm.weight", 0},
             {"blk.0.attn_q.weight", HIDDEN},   {"blk.0.attn_k.weight", FEW},
             {"blk.0.attn_v.weight", FEW},      {"blk.0.attn_output.weight", HIDDEN},
             {"blk.0.ffn_gate.weight", HIDDEN}, {"blk.0.ffn_up.weight", HIDDEN},
             {"blk.0.ffn_down.weight", HIDDEN}};

/* A llama whose matrices are random bytes of this type: 8 heads of 32 rows, whose order GGUF has changed. */
static void write_llama(const char *path, tm_fmt fmt) {
    static uint8_t bytes[HIDDEN * HIDDEN * 8];
    gguf_bytes g = {0};
    g_kv_text(&g, "general.architecture", "llama");
    g_kv_u32(&g, "llama.block_count", 1);
    g_kv_u32(&g, "llama.context_length", 64);
    g_kv_u32(&g, "llama.embedding_length", HIDDEN);
    g_kv_u32(&g, "llama.feed_forward_length", HIDDEN);
    g_kv_u32(&g, "llama.attention.head_count", 8);
    g_kv_u32(&g, "llama.attention.head_count_kv", 2);
    g_kv_f32(&g, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    for (size_t i = 0; i < TM_COUNT(layer); i++) {
        tm_fmt f = layer[i].rows ? fmt : TM_FMT_F32;
        uint64_t n = HIDDEN * (layer[i].rows ? layer[i].rows : 1), size = 0;
        assert_true(tm_fmt_bytes(f, n, &size) && size <= sizeof bytes);
        for (uint64_t k = 0; k < size; k++) bytes[k] = (uint8_t)draw();
        g_tensor(&g, layer[i].name, layer[i].rows ? 2 : 1, (uint64_t[]){HIDDEN, layer[i].rows},
                 (uint32_t)tm_fmt_get(f)->ggml, bytes, size);
    }
    g_write(&g, path);
}

static void every_block_type(void **state) {
    (void)state;
    for (int f = 0; f < TM_FMT_COUNT; f++) {
        const tm_fmt_info *t = tm_fmt_get((tm_fmt)f);
        if (!t->readable || t->ggml < 0) continue;
        write_llama(scratch("block.gguf"), (tm_fmt)f);
        every_tensor(scratch("block.gguf"), 6);
    }
}

/* What a piece is: no more than whole blocks; whole heads of q and k; in order where nothing is moved or added. */
static void pieces_are_small(void **state) {
    (void)state;
    tm_source *src;
    tm_source_piece p;
    write_llama(scratch("small.gguf"), TM_FMT_Q6_K);
    OK(tm_source_open(&src, scratch("small.gguf")));
    uint32_t v = (uint32_t)tm_source_find(src, "model.layers.0.self_attn.v_proj.weight");
    OK(tm_source_piece_of(src, v, 300, 10, &p));
    assert_true(p.first == 256 && p.elements == 256 && p.range[0].bytes == 210 && p.in_order);
    assert_int_equal(p.range[0].offset, tm_source_tensor_get(src, v)->offset + 210);
    assert_string_equal(p.range[0].path, scratch("small.gguf"));
    uint32_t q = (uint32_t)tm_source_find(src, "model.layers.0.self_attn.q_proj.weight");
    OK(tm_source_piece_of(src, q, 32 * HIDDEN + 5, 1, &p));
    assert_true(p.first == 32 * HIDDEN && p.elements == 32 * HIDDEN && !p.in_order);
    OK(tm_source_piece_of(src, q, 77, 0, &p));
    assert_true(p.elements == 0 && p.range[0].bytes == 0);
    tm_source_close(src);
    (void)remove(scratch("n.gguf"));
    convert(fixture("arch_gemma2"), scratch("n.gguf"), "f32");
    OK(tm_source_open(&src, scratch("n.gguf"))); /* the file has 1 + w */
    OK(tm_source_piece_of(src, (uint32_t)tm_source_find(src, "model.norm.weight"), 3, 2, &p));
    assert_true(p.first == 3 && p.elements == 2 && !p.in_order);
    tm_source_close(src);
}

/* A type that has a name here and no values. */
static void what_cannot_be_read_is_refused(void **state) {
    (void)state;
    static const char header[] = "{\"c\":{\"dtype\":\"C64\",\"shape\":[2],\"data_offsets\":[0,16]}}";
    uint8_t file[8 + sizeof header - 1 + 16] = {sizeof header - 1};
    tm_source *src;
    tm_source_piece p;
    memcpy(file + 8, header, sizeof header - 1);
    OK(tm_make_dirs(scratch("complex")));
    write_file(scratch("complex/config.json"), "{}", 2);
    write_file(scratch("complex/model.safetensors"), file, sizeof file);
    OK(tm_source_open(&src, scratch("complex")));
    expect_error(tm_source_piece_of(src, 0, 0, 1, &p), TM_EUNSUPPORTED, "C64");
    tm_source_close(src);
}

/* Until tm_kernels_init conversions are those of the column ref. */
static int start_kernels(void **state) {
    setenv("TIDEMILL_GEMM", "builtin", 1); /* no library is needed here */
    return tm_kernels_init(1, TM_ELEM_F32) == TM_OK ? make_scratch(state) : -1;
}
static int stop_kernels(void **state) {
    tm_kernels_close();
    return remove_scratch(state);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(folders_and_their_ggufs),
        cmocka_unit_test(every_plain_type),
        cmocka_unit_test(every_block_type),
        cmocka_unit_test(pieces_are_small),
        cmocka_unit_test(what_cannot_be_read_is_refused),
    };
    int failed = cmocka_run_group_tests_name("ref", tests, make_scratch, remove_scratch);
    return failed + cmocka_run_group_tests_name("this CPU's kernels", tests, start_kernels, stop_kernels);
}
