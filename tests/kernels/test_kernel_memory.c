/* What kernels hold: attention's scratch grows with the length, never with its square, and is all that is touched; the
 * loss holds a block of logits whatever the vocabulary and the length. */
#include "kernels/kernels.h"
#include "model/model.h"

#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static tm_attention shape(uint32_t seq, uint32_t window) {
    return (tm_attention){.rows = 1,
                          .seq = seq,
                          .padded = seq,
                          .heads = 2,
                          .kv_heads = 1,
                          .head_dim = 16,
                          .window = window,
                          .scale = 0.25F,
                          .type = TM_ELEM_F32};
}

/* 512 to 16,384: four times the length, at most four times the scratch. */
static void attention_scratch_is_linear(void **state) {
    (void)state;
    for (int backward = 0; backward < 2; backward++) {
        tm_attention a = shape(512, 0), b = shape(1024, 0);
        uint64_t x = tm_attention_workspace(&a, backward), slope = tm_attention_workspace(&b, backward) - x;
        for (uint32_t seq = 2048; seq <= 16384; seq *= 2) {
            tm_attention c = shape(seq, 0);
            uint64_t bytes = tm_attention_workspace(&c, backward);
            printf("%s, %u positions: %.1f KB\n", backward ? "backward" : "forward", seq, (double)bytes / 1e3);
            assert_int_equal(bytes, x + (seq / 512 - 1) * slope);
        }
    }
}

/* The largest: resident memory grows by what was handed over, and by less than a hundredth of S x S. The window keeps
 * it quick; the tiles outside it are not visited. */
static void attention_touches_nothing_else(void **state) {
    (void)state;
    enum { SEQ = 16384 };
    tm_attention a = shape(SEQ, 200);
    uint64_t scratch = tm_max_u64(tm_attention_workspace(&a, false), tm_attention_workspace(&a, true));
    float *qkv = malloc(SEQ * 64 * 4), *o = malloc(SEQ * 32 * 4), *dqkv = malloc(SEQ * 64 * 4), *lse = malloc(SEQ * 8);
    a.workspace = aligned_alloc(64, tm_round_up(scratch, 64));
    for (size_t i = 0; i < SEQ * 64; i++) qkv[i] = (float)(i * 7 % 31) / 31;
    memset(o, 1, SEQ * 32 * 4), memset(dqkv, 1, SEQ * 64 * 4), memset(lse, 1, SEQ * 8);
    memset(a.workspace, 1, scratch);
    a.o = o, a.lse = lse, a.d_o = o;
    tm_attention_fuse(&a, qkv, dqkv);
    uint64_t before = tm_mem_resident_peak_bytes();
    tm_attention_forward(&a);
    tm_attention_backward(&a);
    uint64_t grown = tm_mem_resident_peak_bytes() - before;
    printf("%d positions: %.1f KB more than the caller gave\n", SEQ, (double)grown / 1e3);
    assert_true(grown < (uint64_t)SEQ * SEQ * 4 / 100); /* the kernel may make a huge page of a thread's stack */
    for (size_t i = 0; i < SEQ * 64; i++) assert_true(isfinite(dqkv[i]));
    free(qkv), free(o), free(dqkv), free(lse), free(a.workspace);
}

static uint64_t head_bytes(unsigned vocabulary, uint32_t rows, uint32_t seq, bool backward) {
    char json[256];
    int n = snprintf(json, sizeof json,
                     "{\"model_type\":\"llama\",\"vocab_size\":%u,\"hidden_size\":64,\"intermediate_size\":128,"
                     "\"num_hidden_layers\":1,\"num_attention_heads\":2,\"num_key_value_heads\":2,"
                     "\"max_position_embeddings\":65536}",
                     vocabulary);
    tm_model_config config;
    tm_model *m;
    assert_int_equal(tm_model_config_parse(&config, json, (size_t)n, "head"), TM_OK);
    assert_int_equal(tm_model_create(&m, &config, TM_F32), TM_OK);
    uint32_t unit = tm_model_units(m) - 1;
    uint64_t most = 0;
    for (uint32_t s = 0; s < tm_model_unit(m, unit)->n_stages; s++)
        most = tm_max_u64(most, tm_stage_workspace(m, unit, s, backward, rows, seq));
    tm_model_free(m);
    return most;
}

/* 4 bytes a token beside a block that depends on neither. */
static void loss_memory(void **state) {
    (void)state;
    for (int backward = 0; backward < 2; backward++) {
        uint64_t small = head_bytes(32000, 1, 512, backward);
        assert_int_equal(head_bytes(152000, 1, 512, backward), small);
        assert_int_equal(head_bytes(256000, 4, 4096, backward), small + (4 * 4096 - 512) * 4);
        printf("%s: %.1f KB at 32,000 x 512 and at 152,000 x 512\n", backward ? "backward" : "forward",
               (double)small / 1e3);
        assert_true(small < (uint64_t)32000 * 512 * 4 / 8);
    }
}

int main(void) {
    if (tm_kernels_init(2, TM_ELEM_F32) != TM_OK) return 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(attention_scratch_is_linear),
                                       cmocka_unit_test(attention_touches_nothing_else), cmocka_unit_test(loss_memory)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    tm_kernels_close();
    return failed;
}
