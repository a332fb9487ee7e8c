/* The module itself, loaded by the program's own loader, on libraries that pretend to be the driver and cuBLASLt (in
 * LD_LIBRARY_PATH, made of fake_driver.c and fake_lt.c): device.h from outside. */
#include "device/device.h"
#include "kernels/kernels.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

enum { PAGE = 4096, M = 8, N = 16, K = 32 };

static tm_device *open_cuda(uint64_t bytes) {
    tm_device *d = NULL;
    if (tm_device_open(&d, &(tm_device_opts){.name = "cuda:0", .arena_bytes = bytes}) != TM_OK)
        fail_msg("%s", tm_error_get()->text);
    return d;
}

static void move(tm_device *d, tm_device_way way, void *host, uint64_t offset, uint64_t bytes) {
    tm_event e = {0};
    assert_int_equal(tm_device_copy(d, &(tm_device_transfer){way, host, offset, bytes}, &e), TM_OK);
    assert_int_equal(tm_event_wait(d, &e), TM_OK);
}

static void test_look(void **state) {
    (void)state;
    tm_device_info info;
    assert_int_equal(tm_device_look("cuda", 0, &info), TM_OK);
    assert_string_equal(info.name, "cuda:0");
    assert_non_null(strstr(info.about, "compute capability"));
    assert_int_equal(tm_device_look("cuda", 7, &info), TM_EINPUT);
    tm_error_clear();
}

/* y = silu(x w) on the device, by the library's product and our kernel. */
typedef struct job {
    tm_device *d;
    const tm_kernel_table *k;
} job;
static tm_status layer(void *ctx) {
    const job *j = ctx;
    tm_gemm_args g = {.m = M, .n = 2 * N, .k = K, .alpha = 1, .lda = K, .ldb = 2 * N, .ldc = 2 * N};
    g.a = tm_device_at(j->d, 0), g.b = tm_device_at(j->d, PAGE), g.c = tm_device_at(j->d, 2 * PAGE);
    j->k->gemm(&g);
    j->k->glu_forward(
        &(tm_glu){.type = TM_ELEM_F32, .rows = M, .width = N, .x = g.c, .y = tm_device_at(j->d, 3 * PAGE)});
    return TM_OK;
}

static void test_operation(void **state) {
    (void)state;
    static _Alignas(PAGE) float host[4][PAGE / 4], want[2][PAGE / 4];
    tm_device *d = open_cuda(4 * PAGE);
    job j = {d, tm_device_kernels(d)};
    tm_device_frame frame = {0, 4 * PAGE};
    assert_non_null(j.k);
    assert_true(tm_device_get_caps(d)->traits.own_processors);
    for (int i = 0; i < PAGE / 4; i++) host[0][i] = (float)(i % 7 - 3), host[1][i] = (float)(i % 5 - 2) / 8;
    assert_int_equal(tm_device_register(d, host, sizeof host), TM_OK);
    move(d, TM_DEVICE_IN, host, 0, sizeof host);
    assert_int_equal(tm_device_run(d, &frame, 1, layer, &j), TM_OK);
    move(d, TM_DEVICE_OUT, host[2], 2 * PAGE, 2 * PAGE);
    tm_device_unregister(d, host);
    tm_gemm(&(tm_gemm_args){.m = M,
                            .n = 2 * N,
                            .k = K,
                            .alpha = 1,
                            .lda = K,
                            .ldb = 2 * N,
                            .ldc = 2 * N,
                            .a = host[0],
                            .b = host[1],
                            .c = want[0]});
    tm_glu_forward(&(tm_glu){.type = TM_ELEM_F32, .rows = M, .width = N, .x = want[0], .y = want[1]});
    for (int i = 0; i < 2 * M * N; i++) assert_true(host[2][i] == want[0][i]); /* halves and wholes: exact */
    for (int i = 0; i < M * N; i++) assert_float_equal(host[3][i], want[1][i], 1e-5F);
    tm_device_close(d);
}

/* A failure crosses from the module: status and text. */
static tm_status failing(void *ctx) {
    (void)ctx;
    return tm_fail(TM_ECORRUPT, "the operation's own words");
}
static void test_errors(void **state) {
    (void)state;
    tm_device *d = open_cuda(PAGE), *second = NULL;
    tm_device_frame frame = {0, PAGE};
    assert_int_equal(tm_device_run(d, &frame, 1, failing, NULL), TM_ECORRUPT);
    assert_string_equal(tm_error_get()->text, "the operation's own words");
    tm_error_clear();
    tm_device_opts much = {.name = "cuda:0", .arena_bytes = (uint64_t)1 << 40};
    assert_int_equal(tm_device_open(&second, &much), TM_ENOMEM);
    assert_non_null(strstr(tm_error_get()->text, "cannot give 1024.00 GiB"));
    tm_error_clear();
    tm_device_close(d);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_look), cmocka_unit_test(test_operation),
                                       cmocka_unit_test(test_errors)};
    if (tm_kernels_init(1, TM_ELEM_F32) != TM_OK) return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    tm_kernels_close();
    return failed;
}
