/* OpenBLAS, found at run time. Its core type has to be in the environment before it is loaded (0.3.21 takes CPUs that
 * are younger than it for much older ones), and its thread pool is never started: tiles are single-threaded calls from
 * our own team, so that their shapes, and with them the order of every sum, are ours. */
#include "kernels/kernels_internal.h"

#include <dlfcn.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROW_MAJOR = 101, NO_TRANS = 111, TRANS = 112 };
/* A tile of C is at most M_TILE x N_TILE; operands of 16 bits are widened K_PANEL deep. */
enum { M_TILE = 512, N_TILE = 512, K_PANEL = 512, AHEAD = 6 };

typedef void sgemm_fn(int order, int trans_a, int trans_b, int m, int n, int k, float alpha, const float *a, int lda,
                      const float *b, int ldb, float beta, float *c, int ldc);

static struct {
    void *handle;
    sgemm_fn *sgemm;
    const char *core; /* that it was loaded for */
    char name[96];
    float *scratch; /* per thread: A panel, B panel, C tile */
    unsigned threads;
} lib;

/* That of the column in use. ref on a CPU that has more (it was forced, or the others are wrong) is x86-64 with SSE3;
 * on one that has not the library chooses itself. A column that is emulated (tests) has the core of the CPU. */
static const char *core_type(void) {
    if (!kernels_has_avx2()) return NULL;
    if (kernels.level == KERNELS_REF) return "PRESCOTT";
    return kernels.level == KERNELS_AVX512 && kernels_has_avx512() ? "SKYLAKEX" : "HASWELL";
}

static void *open_first(void) {
    static const char *const names[] = {"libopenblas.so.0",
                                        "/usr/lib/x86_64-linux-gnu/openblas-pthread/libopenblas.so.0",
                                        "/usr/lib/x86_64-linux-gnu/openblas-openmp/libopenblas.so.0", "libopenblas.so"};
    for (size_t i = 0; i < TM_COUNT(names); i++) {
        void *h = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
        if (h) return h;
    }
    return NULL;
}

/* With OPENBLAS_NUM_THREADS=1 the library creates no threads and touches one buffer a calling thread. */
static void *load_library(void) {
    const char *core = core_type(), *user = getenv("OPENBLAS_NUM_THREADS");
    char *kept = user ? tm_strdup(user) : NULL;
    if (core) setenv("OPENBLAS_CORETYPE", core, 0);
    setenv("OPENBLAS_NUM_THREADS", "1", 1);
    void *h = open_first();
    if (kept)
        setenv("OPENBLAS_NUM_THREADS", kept, 1);
    else
        unsetenv("OPENBLAS_NUM_THREADS");
    tm_free(kept);
    return h;
}

/* "OpenBLAS 0.3.21 ..." and the core's name. */
static void name_library(void *h) {
    char *(*config)(void);
    char *(*core)(void);
    *(void **)&config = dlsym(h, "openblas_get_config");
    *(void **)&core = dlsym(h, "openblas_get_corename");
    const char *text = config ? config() : "", *version = strchr(text, ' ');
    int n = version ? (int)strcspn(version + 1, " ") : 0;
    snprintf(lib.name, sizeof lib.name, "openblas-%.*s-%s", n ? n : 7, n ? version + 1 : "unknown",
             core ? core() : "?");
}

/* Another core's code cannot be had in the same process. */
static bool load(void) {
    if (lib.handle && lib.core == core_type()) return true;
    if (lib.handle) return tm_warn_once("core", "OpenBLAS was loaded for %s already", lib.name), false;
    void *h = load_library();
    if (!h) {
        tm_warn_once("openblas", "OpenBLAS is not installed (libopenblas0-pthread): matrix products use our own code");
        return false;
    }
    *(void **)&lib.sgemm = dlsym(h, "cblas_sgemm");
    void (*set_threads)(int);
    *(void **)&set_threads = dlsym(h, "openblas_set_num_threads");
    if (!lib.sgemm || !set_threads) {
        tm_warn_once("openblas", "libopenblas.so.0 lacks cblas_sgemm: matrix products use our own code");
        dlclose(h);
        return false;
    }
    set_threads(1);
    name_library(h);
    lib.handle = h, lib.core = core_type();
    return true;
}

static size_t scratch_floats(void) {
    return (size_t)M_TILE * K_PANEL + (size_t)N_TILE * K_PANEL + (size_t)M_TILE * N_TILE;
}

static gemm_opened open_library(unsigned threads, tm_elem products) {
    (void)products;
    if (!load()) return GEMM_ABSENT;
    lib.threads = threads;
    lib.scratch = tm_malloc(threads * scratch_floats() * sizeof(float));
    return lib.scratch ? GEMM_READY : GEMM_NO_MEMORY;
}

static void close_library(void) {
    tm_free(lib.scratch); /* the library itself stays loaded: it cannot be unloaded safely */
    lib.scratch = NULL;
}

/* Pieces of one dimension: as equal as multiples of 16 allow, none above `most`. */
static uint64_t pieces(uint64_t n, uint64_t most) {
    return (n + most - 1) / most;
}
static uint64_t piece_start(uint64_t n, uint64_t count, uint64_t i) {
    return i == count ? n : tm_min_u64(n, i * tm_round_up((n + count - 1) / count, 16));
}

typedef struct tile {
    uint64_t i0, j0;
    int m, n;
} tile;

static int ld_int(uint64_t ld) {
    TM_ASSERT(ld <= INT32_MAX);
    return (int)ld;
}

/* An operand's block op(X)[rows, k] for one sgemm: in place for fp32, widened into buf from 16 bits. */
typedef struct operand {
    const float *data;
    int ld;
} operand;
static operand load_operand(const void *x, tm_elem t, uint64_t ld, bool k_is_row, uint64_t at, uint64_t n, uint64_t k0,
                            uint64_t k, float *buf) {
    uint64_t rows = k_is_row ? k : n, columns = k_is_row ? n : k, first = k_is_row ? k0 * ld + at : at * ld + k0;
    if (t == TM_ELEM_F32) return (operand){(const float *)x + first, ld_int(ld)};
    for (uint64_t r = 0; r < rows; r++) {
        kernels_prefetch((const uint16_t *)x + first + (r + AHEAD) * ld, columns * 2);
        kernels_widen(t, (const uint16_t *)x + first + r * ld, buf + r * columns, columns);
    }
    return (operand){buf, (int)columns};
}

/* The same of B's block where that is packed: decoded into its type, then as any other. */
static operand load_packed(const tm_gemm_args *g, const tile *t, uint64_t k0, uint64_t k, float *buf) {
    uint16_t half[K_PANEL > N_TILE ? K_PANEL : N_TILE];
    uint64_t rows = g->b_trans ? (uint64_t)t->n : k, row = g->b_trans ? t->j0 : k0;
    uint64_t columns = g->b_trans ? k : (uint64_t)t->n, column = g->b_trans ? k0 : t->j0;
    for (uint64_t r = 0; r < rows; r++) {
        bool wide = g->b_type == TM_ELEM_F32;
        tm_packed_values(g->b_packed, row + r, column, columns, g->b_type, wide ? (void *)(buf + r * columns) : half);
        if (!wide) kernels_widen(g->b_type, half, buf + r * columns, columns);
    }
    return (operand){buf, (int)columns};
}

static void tile_product(const tm_gemm_args *g, tile t, float *c, int ldc, float beta, float *scratch) {
    bool widened = g->a_type != TM_ELEM_F32 || g->b_type != TM_ELEM_F32 || g->b_packed;
    uint64_t step = widened ? K_PANEL : g->k;
    for (uint64_t k0 = 0; k0 < g->k; k0 += step) {
        uint64_t k = tm_min_u64(step, g->k - k0);
        operand a = load_operand(g->a, g->a_type, g->lda, g->a_trans, t.i0, (uint64_t)t.m, k0, k, scratch);
        float *buf = scratch + (size_t)M_TILE * K_PANEL;
        operand b = g->b_packed ? load_packed(g, &t, k0, k, buf)
                                : load_operand(g->b, g->b_type, g->ldb, !g->b_trans, t.j0, (uint64_t)t.n, k0, k, buf);
        lib.sgemm(ROW_MAJOR, g->a_trans ? TRANS : NO_TRANS, g->b_trans ? TRANS : NO_TRANS, t.m, t.n, (int)k, g->alpha,
                  a.data, a.ld, b.data, b.ld, k0 ? 1.0F : beta, c, ldc);
    }
}

/* A C of 16 bits is made in fp32 beside it, and rounded once. */
static void tile_to_16(const tm_gemm_args *g, tile t, float *scratch) {
    float *c = scratch + ((size_t)M_TILE + N_TILE) * K_PANEL, old[N_TILE];
    tile_product(g, t, c, t.n, 0.0F, scratch);
    for (int i = 0; i < t.m; i++) {
        uint16_t *out = (uint16_t *)g->c + (t.i0 + (uint64_t)i) * g->ldc + t.j0;
        float *row = c + (size_t)i * (size_t)t.n;
        if (g->beta != 0.0F) {
            kernels_widen(g->c_type, out, old, (size_t)t.n);
            kernels.axpy(g->beta, old, row, (size_t)t.n);
        }
        kernels_narrow(g->c_type, row, out, (size_t)t.n);
    }
}

static void run_tile(const tm_gemm_args *g, uint64_t i, uint64_t tiles_m, uint64_t j, uint64_t tiles_n) {
    float *scratch = lib.scratch + (size_t)omp_get_thread_num() * scratch_floats();
    tile t = {.i0 = piece_start(g->m, tiles_m, i), .j0 = piece_start(g->n, tiles_n, j)};
    t.m = (int)(piece_start(g->m, tiles_m, i + 1) - t.i0);
    t.n = (int)(piece_start(g->n, tiles_n, j + 1) - t.j0);
    if (t.m <= 0 || t.n <= 0) return;
    if (g->c_type == TM_ELEM_F32)
        tile_product(g, t, (float *)g->c + t.i0 * g->ldc + t.j0, ld_int(g->ldc), g->beta, scratch);
    else
        tile_to_16(g, t, scratch);
}

/* Up to some 100^3 multiply-adds the library (SkylakeX) has other kernels, with other bits: what may be below that in so
 * many rows is computed so many rows at a time. */
enum { APART_ROWS = 16, APART_PRODUCTS = 4 << 20 };
static bool is_cut_by_rows(const tm_gemm_args *g) {
    return gemm_rows_apart > 0 && !g->a_trans && tm_min_u64(g->n, N_TILE) * g->k * APART_ROWS <= APART_PRODUCTS;
}

/* Of C's columns, for at least one tile a thread where C is large enough. */
static uint64_t tiles_across(uint64_t n, uint64_t tiles_m, unsigned threads) {
    uint64_t tiles = pieces(n, N_TILE);
    while ((tiles_m * tiles) % threads && n / (tiles + 1) >= 64) tiles++;
    return tiles;
}

/* Tiles are never more than M_TILE x N_TILE. */
static void run(const tm_gemm_args *g) {
    TM_ASSERT(g->k > 0 && g->k <= INT32_MAX);
    bool by_rows = is_cut_by_rows(g);
    uint64_t tiles_m = pieces(g->m, by_rows ? APART_ROWS : M_TILE);
    uint64_t tiles_n = by_rows ? pieces(g->n, N_TILE) : tiles_across(g->n, tiles_m, lib.threads);
    while (!by_rows && (tiles_m * tiles_n) % lib.threads && g->narrow && g->m / (tiles_m + 1) >= 64) tiles_m++;
#pragma omp parallel for schedule(dynamic, 1) num_threads(lib.threads) if (tiles_m * tiles_n > 1)
    for (uint64_t x = 0; x < tiles_m * tiles_n; x++) run_tile(g, x % tiles_m, tiles_m, x / tiles_m, tiles_n);
}

static const char *describe(void) {
    return lib.name;
}

/* The widest tile of a C of `n` columns, whose rows are those of activations, or of a matrix: of that one side is `hidden`. */
static uint64_t tile_width(const tm_products *p, uint64_t n, unsigned threads) {
    uint64_t tiles = UINT64_MAX;
    for (uint64_t down = 1; down <= pieces(p->rows, M_TILE); down++)
        tiles = tm_min_u64(tiles, tiles_across(n, down, threads));
    tiles = tm_min_u64(tiles, tiles_across(n, pieces(p->hidden, M_TILE), threads));
    for (uint32_t i = 0; n == p->hidden && i < p->n_widths; i++)
        tiles = tm_min_u64(tiles, tiles_across(n, pieces(p->width[i], M_TILE), threads));
    return tm_min_u64(n, tm_round_up((n + tiles - 1) / tiles, 16));
}

/* What a thread touches of its scratch: products of activations are `rows` high, those of gradients `rows` deep; of each
 * matrix one side is `hidden`, and results of a block of the vocabulary, which are fp32, are as wide as a tile. */
static uint64_t touched_floats(const tm_products *p, unsigned threads) {
    uint64_t m = tm_min_u64(p->rows, M_TILE), k = tm_min_u64(p->rows, K_PANEL), h = tm_min_u64(p->hidden, K_PANEL);
    uint64_t a = tm_max_u64(m * K_PANEL, M_TILE * k), widest = p->n_widths ? 0 : N_TILE;
    for (uint32_t i = 0; i < p->n_widths; i++) widest = tm_max_u64(widest, tile_width(p, p->width[i], threads));
    if (h == 0) return a + (uint64_t)N_TILE * K_PANEL + m * N_TILE;
    uint64_t b = tm_max_u64(widest * tm_max_u64(h, k), h * N_TILE); /* h * K_PANEL: what comes back to `hidden` */
    return a + b + m * widest;
}

/* Measured with 0.3.21: 2.7 MB of code and data (0.3 more where its file was just read), and 0.44 MB (64 rows) to 0.81 MB
 * (512) of packing buffers for each calling thread on AVX2; on AVX-512 (SkylakeX) 0.40 to 0.82, to which a quarter is
 * added. */
static uint64_t resident(unsigned threads, const tm_products *p) {
    uint64_t packed = TM_MIB * 2 / 5 + TM_MIB / 2 * tm_min_u64(p->rows, M_TILE) / M_TILE;
    if (kernels.level == KERNELS_AVX512) packed += packed / 4;
    uint64_t scratch = p->type == TM_ELEM_F32 && !p->packed ? 0 : touched_floats(p, threads) * sizeof(float);
    return 13 * TM_MIB / 4 + threads * (scratch + packed);
}

/* It has kernels for AVX-512, ours has not. Those for AVX2 (Haswell, Zen: twelve rows at a time, six and six) add up in an
 * order that depends on where in the product a row is; cut by rows they would be half as fast as ours. */
static int preference(tm_elem products) {
    enum { BELOW_OURS = 3 };
    (void)products;
    if (kernels.level == KERNELS_AVX2 && gemm_rows_apart > 0) return BELOW_OURS;
    return kernels.level == KERNELS_AVX512 ? 20 : 10;
}

const gemm_backend gemm_openblas = {.name = "openblas",
                                    .preference = preference,
                                    .open = open_library,
                                    .run = run,
                                    .describe = describe,
                                    .resident_bytes = resident,
                                    .close = close_library};
