/* Panels of bf16 multiplied by AMX, whose register tiles they are. The instruction takes denormals for zero, and makes none. */
#include "kernels/attention_internal.h"
#include "kernels/gemm_bf16_internal.h"

#if defined(__x86_64__) && !defined(TIDEMILL_PORTABLE)
#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#define AMX __attribute__((target("amx-tile,amx-bf16")))

enum { QUARTER = BF16_TILE / 2, STEP = 2 * BF16_TILE }; /* sums 16 x 16; 32 depths of a panel */

/* ---- what the CPU and the system have ---- */

enum { TILE_DATA = 18, TILE_STATES = 3 << 17, ASK_PERMISSION = 0x1023 }; /* XCR0's bits 17, 18; arch_prctl(2) */
enum { HAS_BF16_TILES = 1 << 22, HAS_TILES = 1 << 24 };                  /* CPUID 7, EDX */

static bool system_saves_tiles(void) {
    unsigned low, high;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & TILE_STATES) == TILE_STATES;
}

/* Linux gives room for tiles to a process that asks, all of its threads, those there are too, and its children. A system
 * that refuses has none, so that another product is preferred, and room is looked for that one. */
static bool has_amx(void) {
    unsigned a, b, c, d;
    return kernels.level == KERNELS_AVX512 && kernels_has_bf16() && __get_cpuid_count(7, 0, &a, &b, &c, &d) &&
           (d & HAS_BF16_TILES) && (d & HAS_TILES) && system_saves_tiles() &&
           syscall(SYS_arch_prctl, ASK_PERMISSION, TILE_DATA) == 0;
}

/* ---- register tiles ---- */

enum { TILES = 8, OF_ROWS = 4, OF_COLUMNS = 6 }; /* from 0 on sums, then left operands, then right ones */
typedef struct tile_config {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
} tile_config;

AMX void amx_begin_tiles(size_t side) {
    tile_config c = {.palette = 1};
    for (size_t i = 0; i < TILES; i++) {
        bool left = i >= OF_ROWS && i < OF_COLUMNS;
        c.row_bytes[i] = (uint16_t)(left ? BF16_ROW_BYTES : 4 * side);
        c.rows[i] = BF16_TILE_ROWS;
    }
    __asm__ volatile("" ::"m"(c) : "memory"); /* gcc does not know that the instruction reads more than a word of it */
    _tile_loadconfig(&c);
}
AMX void amx_end_tiles(void) {
    _tile_release();
}

AMX static void begin_sums(const float *sums, bool add) {
    if (add) {
        _tile_loadd(0, sums, BF16_ROW_BYTES);
        _tile_loadd(1, sums + QUARTER, BF16_ROW_BYTES);
        _tile_loadd(2, sums + 2 * QUARTER, BF16_ROW_BYTES);
        _tile_loadd(3, sums + 3 * QUARTER, BF16_ROW_BYTES);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
}

/* sums = or += the product of two panels. */
AMX static void multiply_panels(const uint16_t *a, const uint16_t *b, size_t depth, bool add, float *sums,
                                bf16_ahead asked[BF16_ASKED]) {
    __asm__ volatile("" ::: "memory"); /* what was packed is stored: nothing says that loading a tile reads it */
    begin_sums(sums, add);
    for (size_t k = 0; k < depth; k += BF16_DEPTHS, a += STEP, b += STEP) {
        _tile_loadd(4, a, BF16_ROW_BYTES);
        _tile_loadd(6, b, BF16_ROW_BYTES);
        bf16_ask(&asked[BF16_NEXT_A]);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(7, b + BF16_TILE, BF16_ROW_BYTES);
        bf16_ask(&asked[BF16_NEXT_B]);
        _tile_dpbf16ps(1, 4, 7);
        _tile_loadd(5, a + BF16_TILE, BF16_ROW_BYTES);
        bf16_ask(&asked[BF16_ROWS_OF_C]);
        _tile_dpbf16ps(2, 5, 6);
        bf16_ask_near(&asked[BF16_NEXT_SUMS]);
        _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, sums, BF16_ROW_BYTES);
    _tile_stored(1, sums + QUARTER, BF16_ROW_BYTES);
    _tile_stored(2, sums + 2 * QUARTER, BF16_ROW_BYTES);
    _tile_stored(3, sums + 3 * QUARTER, BF16_ROW_BYTES);
}

/* B's rows are left operands as they lie. */
AMX static void multiply_few(const bf16_few_rows *f) {
    size_t bytes = 4 * f->side, quarter = BF16_TILE_ROWS * f->side;
    const uint16_t *b = f->b, *a = f->a;
    __asm__ volatile("" ::: "memory"); /* what was packed is stored: nothing says that loading a tile reads it */
    if (f->add) {
        _tile_loadd(0, f->sums, bytes);
        _tile_loadd(1, f->sums + quarter, bytes);
        _tile_loadd(2, f->sums + 2 * quarter, bytes);
        _tile_loadd(3, f->sums + 3 * quarter, bytes);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (size_t i = 0; i < f->steps; i++, b += BF16_DEPTHS, a += BF16_DEPTHS * f->side) {
        _tile_loadd(6, a, bytes);
        _tile_loadd(4, b, 2 * f->ld);
        _tile_dpbf16ps(0, 4, 6);
        _tile_loadd(5, b + 16 * f->ld, 2 * f->ld);
        _tile_dpbf16ps(1, 5, 6);
        _tile_loadd(4, b + 32 * f->ld, 2 * f->ld);
        _tile_dpbf16ps(2, 4, 6);
        _tile_loadd(5, b + 48 * f->ld, 2 * f->ld);
        _tile_dpbf16ps(3, 5, 6);
    }
    _tile_stored(0, f->sums, bytes);
    _tile_stored(1, f->sums + quarter, bytes);
    _tile_stored(2, f->sums + 2 * quarter, bytes);
    _tile_stored(3, f->sums + 3 * quarter, bytes);
}

static const bf16_way way = {.name = "amx2", /* with attention of its own */
                             .passes = 1,
                             .there = has_amx,
                             .begin = amx_begin_tiles,
                             .end = amx_end_tiles,
                             .multiply = multiply_panels,
                             .multiply_few = multiply_few};

static gemm_opened open_amx(unsigned threads, tm_elem products) {
    return bf16_open(&way, threads, products);
}
static uint64_t resident(unsigned threads, const tm_products *p) {
    return bf16_resident_bytes(threads, p) + 3 * TM_MIB / 8; /* attention's code, and its check of a start */
}
static int preference(tm_elem products) {
    return products == TM_ELEM_BF16 && has_amx() ? 40 : 0;
}
const gemm_backend gemm_amx = {.name = "amx",
                               .preference = preference,
                               .open = open_amx,
                               .run = bf16_run,
                               .describe = bf16_describe,
                               .resident_bytes = resident,
                               .attention = &attention_by_amx,
                               .close = bf16_close};
#endif
