/* What a page codec would save, and what it would cost: entropy, ratio and speed on offload files of a real run.
 *
 *     cc -O3 -march=x86-64-v3 -I. tests/bench/codec.c -lzstd -lm -o codec
 *     codec FILE:WIDTH...       WIDTH 2 or 4: bytes of an element, e.g. run-x/exp_avg:4 run-x/weight_hi:2
 *
 * Two codecs, on tiles of 2^20 elements, one thread, everything in memory:
 *   zstd      levels 1 to 3 of what the byte-plane shuffle gives (byte 0 of every element, then byte 1, ...)
 *   exponent  fp32 and bf16: sign and mantissa as they are, in planes; exponents in blocks of 128: the largest one,
 *             then for each how far it lies below, in K bits; what does not fit is escaped (all ones) and follows whole
 *
 * Speeds are bytes of the state a second, the best of three; every tile is restored and compared. */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <zstd.h>

enum { TILE = 1 << 20, BLOCK = 128, MOST_TILES = 24, ROUNDS = 3 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void die(const char *what, const char *name) {
    fprintf(stderr, "%s: %s\n", name, what);
    exit(1);
}

/* ---- byte planes ---- */

static void shuffle(const uint8_t *in, uint8_t *out, size_t n, int width) {
    if (width == 2)
        for (size_t i = 0; i < n; i++) out[i] = in[2 * i], out[n + i] = in[2 * i + 1];
    else
        for (size_t i = 0; i < n; i++)
            for (int k = 0; k < 4; k++) out[(size_t)k * n + i] = in[4 * i + (size_t)k];
}

static void unshuffle(const uint8_t *in, uint8_t *out, size_t n, int width) {
    if (width == 2)
        for (size_t i = 0; i < n; i++) out[2 * i] = in[i], out[2 * i + 1] = in[n + i];
    else
        for (size_t i = 0; i < n; i++)
            for (int k = 0; k < 4; k++) out[4 * i + (size_t)k] = in[(size_t)k * n + i];
}

/* Bits a symbol, order 0. */
static double entropy(const uint64_t count[256]) {
    double all = 0, bits = 0;
    for (int i = 0; i < 256; i++) all += (double)count[i];
    for (int i = 0; i < 256; i++)
        if (count[i]) bits -= (double)count[i] / all * log2((double)count[i] / all);
    return bits;
}

/* ---- exponents ---- */

/* Distances from the block's largest exponent, `top` where they do not fit. Returns how many do not. */
static int distances(const uint8_t *e, uint8_t *d, uint8_t top, uint8_t *largest) {
    uint8_t most = 0;
    int escapes = 0;
    for (int i = 0; i < BLOCK; i++) most = e[i] > most ? e[i] : most;
    for (int i = 0; i < BLOCK; i++) {
        uint8_t below = (uint8_t)(most - e[i]);
        d[i] = below < top ? below : top;
    }
    for (int i = 0; i < BLOCK; i++) escapes += d[i] == top;
    *largest = most;
    return escapes;
}

/* Fields of 1, 2 or 4 bits of BLOCK values, none beside its neighbour: plain loops over bytes are vectors then. */
static inline void put_bits(const uint8_t *d, uint8_t *out, int shift, int bits) {
    int per = 8 / bits, rows = BLOCK / per;
    for (int i = 0; i < rows; i++) {
        unsigned x = 0;
        for (int k = 0; k < per; k++) x |= (unsigned)((d[i + k * rows] >> shift) & ((1 << bits) - 1)) << (k * bits);
        out[i] = (uint8_t)x;
    }
}
static inline void get_bits(uint8_t *d, const uint8_t *in, int shift, int bits) {
    int per = 8 / bits, rows = BLOCK / per;
    for (int k = 0; k < per; k++)
        for (int i = 0; i < rows; i++)
            d[i + k * rows] |= (uint8_t)(((in[i] >> (k * bits)) & ((1 << bits) - 1)) << shift);
}
static inline void pack(const uint8_t *d, uint8_t *out, int k) {
    if (k == 4) put_bits(d, out, 0, 4);
    if (k == 3) put_bits(d, out, 0, 2), put_bits(d, out + 32, 2, 1);
    if (k == 5) put_bits(d, out, 0, 4), put_bits(d, out + 64, 4, 1);
}
static inline void unpack(uint8_t *d, const uint8_t *in, int k) {
    memset(d, 0, BLOCK);
    if (k == 4) get_bits(d, in, 0, 4);
    if (k == 3) get_bits(d, in, 0, 2), get_bits(d, in + 32, 2, 1);
    if (k == 5) get_bits(d, in, 0, 4), get_bits(d, in + 64, 4, 1);
}

/* The rest: fp32 in planes of 2 bytes and 1, bf16 in one of 1. Returns the bytes of the tile. */
static inline size_t encode(const void *in, uint8_t *out, size_t n, int width, int k) {
    uint8_t *low = out, *high = out + (width == 4 ? 2 * n : 0), *codes = high + n, *heads = codes + n * (size_t)k / 8,
            *escape = heads + n / BLOCK, e[BLOCK], d[BLOCK];
    for (size_t at = 0; at < n; at += BLOCK) {
        if (width == 4) {
            const uint32_t *x = (const uint32_t *)in + at;
            uint16_t *low16 = (uint16_t *)low + at;
            for (int i = 0; i < BLOCK; i++) low16[i] = (uint16_t)x[i];
            for (int i = 0; i < BLOCK; i++) high[at + (size_t)i] = (uint8_t)((x[i] >> 16 & 0x7f) | (x[i] >> 24 & 0x80));
            for (int i = 0; i < BLOCK; i++) e[i] = (uint8_t)(x[i] >> 23);
        } else {
            const uint16_t *x = (const uint16_t *)in + at;
            for (int i = 0; i < BLOCK; i++) high[at + (size_t)i] = (uint8_t)((x[i] & 0x7f) | (x[i] >> 8 & 0x80));
            for (int i = 0; i < BLOCK; i++) e[i] = (uint8_t)(x[i] >> 7);
        }
        uint8_t top = (uint8_t)((1 << k) - 1);
        if (distances(e, d, top, &heads[at / BLOCK]))
            for (int i = 0; i < BLOCK; i++)
                if (d[i] == top) *escape++ = e[i];
        pack(d, codes + at * (size_t)k / 8, k);
    }
    return (size_t)(escape - out);
}

static inline void decode(const uint8_t *in, void *out, size_t n, int width, int k) {
    const uint8_t *low = in, *high = in + (width == 4 ? 2 * n : 0), *codes = high + n,
                  *heads = codes + n * (size_t)k / 8, *escape = heads + n / BLOCK;
    uint8_t e[BLOCK], d[BLOCK], top = (uint8_t)((1 << k) - 1);
    for (size_t at = 0; at < n; at += BLOCK) {
        unsigned escapes = 0;
        unpack(d, codes + at * (size_t)k / 8, k);
        for (int i = 0; i < BLOCK; i++) e[i] = (uint8_t)(heads[at / BLOCK] - d[i]);
        for (int i = 0; i < BLOCK; i++) escapes += d[i] == top;
        for (int i = 0; i < BLOCK && escapes; i++)
            if (d[i] == top) e[i] = *escape++, escapes--;
        if (width == 4) {
            uint32_t *x = (uint32_t *)out + at;
            const uint16_t *low16 = (const uint16_t *)low + at;
            for (int i = 0; i < BLOCK; i++) {
                uint32_t h = high[at + (size_t)i];
                x[i] = low16[i] | (h & 0x7f) << 16 | (h & 0x80) << 24 | (uint32_t)e[i] << 23;
            }
        } else {
            uint16_t *x = (uint16_t *)out + at;
            for (int i = 0; i < BLOCK; i++) {
                unsigned h = high[at + (size_t)i];
                x[i] = (uint16_t)((h & 0x7f) | (h & 0x80) << 8 | (unsigned)e[i] << 7);
            }
        }
    }
}

/* So that K is a constant in the loops. */
static size_t encode_k(const void *in, uint8_t *out, size_t n, int width, int k) {
    if (width == 4)
        return k == 3 ? encode(in, out, n, 4, 3) : k == 4 ? encode(in, out, n, 4, 4) : encode(in, out, n, 4, 5);
    return k == 3 ? encode(in, out, n, 2, 3) : k == 4 ? encode(in, out, n, 2, 4) : encode(in, out, n, 2, 5);
}
static void decode_k(const uint8_t *in, void *out, size_t n, int width, int k) {
    if (width == 4) {
        if (k == 3)
            decode(in, out, n, 4, 3);
        else if (k == 4)
            decode(in, out, n, 4, 4);
        else
            decode(in, out, n, 4, 5);
    } else {
        if (k == 3)
            decode(in, out, n, 2, 3);
        else if (k == 4)
            decode(in, out, n, 2, 4);
        else
            decode(in, out, n, 2, 5);
    }
}

/* ---- one file ---- */

typedef struct sample {
    const char *name;
    int width;
    uint8_t *bytes;
    size_t tiles;
} sample;

typedef struct codec_buffers {
    uint8_t *planes, *packed, *back;
    size_t cap;
} codec_buffers;

/* Tiles that are not all zeros, at even distances through the file. */
static sample load(char *argument) {
    sample s = {.name = argument};
    char *colon = strrchr(argument, ':');
    if (!colon) die("expected FILE:WIDTH", argument);
    *colon = 0;
    s.width = atoi(colon + 1);
    FILE *f = fopen(argument, "rb");
    if (!f || (s.width != 2 && s.width != 4)) die("cannot be opened, or WIDTH is not 2 or 4", argument);
    fseek(f, 0, SEEK_END);
    size_t tile = (size_t)TILE * (size_t)s.width, all = (size_t)ftell(f) / tile, step = all / MOST_TILES + 1;
    s.bytes = malloc(tile * MOST_TILES);
    for (size_t i = 0; i < all && s.tiles < MOST_TILES; i += step) {
        uint8_t *to = s.bytes + s.tiles * tile;
        fseek(f, (long)(i * tile), SEEK_SET);
        if (fread(to, 1, tile, f) != tile) die("cannot be read", argument);
        size_t zeros = 0;
        for (size_t k = 0; k < tile; k++) zeros += to[k] == 0;
        s.tiles += zeros < tile / 16; /* slots that were never written, moments of words that were never seen */
    }
    fclose(f);
    if (!s.tiles) die("no tile with anything in it", argument);
    return s;
}

static void say_entropy(const sample *s) {
    size_t n = s->tiles * TILE;
    double all = 0;
    printf("%-12s planes, bits of 8:", strrchr(s->name, '/') ? strrchr(s->name, '/') + 1 : s->name);
    for (int k = 0; k < s->width; k++) {
        uint64_t count[256] = {0};
        for (size_t i = 0; i < n; i++) count[s->bytes[i * (size_t)s->width + (size_t)k]]++;
        printf(" %.2f", entropy(count));
        all += entropy(count);
    }
    uint64_t count[256] = {0};
    for (size_t i = 0; i < n; i++) {
        if (s->width == 4)
            count[((const uint32_t *)s->bytes)[i] >> 23 & 0xff]++;
        else
            count[((const uint16_t *)s->bytes)[i] >> 7 & 0xff]++;
    }
    printf("; exponent field %.2f; ratio at best, plane by plane %.3f\n", entropy(count), all / 8 / s->width);
}

typedef struct speed {
    double ratio, in_bps, out_bps;
} speed;

static speed run_zstd(const sample *s, codec_buffers *b, int level) {
    size_t tile = (size_t)TILE * (size_t)s->width, packed = 0;
    double in = 1e9, out = 1e9;
    for (int round = 0; round < ROUNDS; round++) {
        double coding = 0, decoding = 0;
        packed = 0;
        for (size_t i = 0; i < s->tiles; i++) {
            double t0 = now();
            shuffle(s->bytes + i * tile, b->planes, TILE, s->width);
            size_t n = ZSTD_compress(b->packed, b->cap, b->planes, tile, level);
            double t1 = now();
            if (ZSTD_isError(n)) die(ZSTD_getErrorName(n), s->name);
            packed += n;
            n = ZSTD_decompress(b->planes, tile, b->packed, n);
            unshuffle(b->planes, b->back, TILE, s->width);
            decoding += now() - t1;
            coding += t1 - t0;
            if (n != tile || memcmp(b->back, s->bytes + i * tile, tile) != 0) die("zstd: not restored", s->name);
        }
        in = coding < in ? coding : in;
        out = decoding < out ? decoding : out;
    }
    double all = (double)(tile * s->tiles);
    return (speed){(double)packed / all, all / in, all / out};
}

static speed run_exponent(const sample *s, codec_buffers *b, int k) {
    size_t tile = (size_t)TILE * (size_t)s->width, packed = 0;
    double in = 1e9, out = 1e9;
    for (int round = 0; round < ROUNDS; round++) {
        double coding = 0, decoding = 0;
        packed = 0;
        for (size_t i = 0; i < s->tiles; i++) {
            double t0 = now();
            packed += encode_k(s->bytes + i * tile, b->packed, TILE, s->width, k);
            double t1 = now();
            decode_k(b->packed, b->back, TILE, s->width, k);
            decoding += now() - t1;
            coding += t1 - t0;
            if (memcmp(b->back, s->bytes + i * tile, tile) != 0) die("exponent code: not restored", s->name);
        }
        in = coding < in ? coding : in;
        out = decoding < out ? decoding : out;
    }
    double all = (double)(tile * s->tiles);
    return (speed){(double)packed / all, all / in, all / out};
}

/* Moving a byte on a disk of `bps` costs 1/bps; coded, ratio/bps. A core has to code it meanwhile: the codec keeps up,
 * and does not hold the disk up, if it is faster than bps/ratio. */
static void say_speed(const char *codec, speed s) {
    printf("    %-12s ratio %.3f   in %6.2f GB/s   out %6.2f GB/s   CPU s/GB %.3f + %.3f   core keeps up with a disk "
           "of %.2f "
           "GB/s\n",
           codec, s.ratio, s.in_bps * 1e-9, s.out_bps * 1e-9, 1e9 / s.in_bps, 1e9 / s.out_bps,
           1e-9 * s.ratio / (0.5 / s.in_bps + 0.5 / s.out_bps));
}

int main(int argc, char **argv) {
    codec_buffers b = {.cap = ZSTD_compressBound(4 * TILE)};
    b.planes = malloc(b.cap), b.packed = malloc(b.cap + 2 * TILE), b.back = malloc(b.cap);
    if (argc < 2 || !b.planes || !b.packed || !b.back) die("FILE:WIDTH...", argv[0]);
    memset(b.planes, 1, b.cap), memset(b.packed, 1, b.cap), memset(b.back, 1, b.cap);
    for (int i = 1; i < argc; i++) {
        sample s = load(argv[i]);
        say_entropy(&s);
        for (int level = 1; level <= 3; level++) {
            char name[16];
            snprintf(name, sizeof name, "zstd %d", level);
            say_speed(name, run_zstd(&s, &b, level));
        }
        for (int k = 3; k <= 5; k++) {
            char name[16];
            snprintf(name, sizeof name, "exponent %d", k);
            say_speed(name, run_exponent(&s, &b, k));
        }
        free(s.bytes);
    }
    return 0;
}
