/* gzip (RFC 1952, by zlib) and Zstandard (RFC 8878, by libzstd) as a stream: memory is the codec's window. */
#include "data/reader_internal.h"

#include <string.h>
#ifdef TIDEMILL_ZLIB
#include <zlib.h>
#endif
#ifdef TIDEMILL_ZSTD
#include <zstd.h>
#include <zstd_errors.h>
#endif

struct data_unpack {
    data_packing packing;
    bool inside, any; /* any: something was unpacked */
    const char *name;
    uint64_t window_bytes;
#ifdef TIDEMILL_ZLIB
    z_stream gz;
#endif
#ifdef TIDEMILL_ZSTD
    ZSTD_DCtx *zstd;
#endif
};

data_packing data_packing_of(const uint8_t *head, size_t n) {
    static const uint8_t gzip[] = {0x1f, 0x8b}, zstd[] = {0x28, 0xb5, 0x2f, 0xfd}, skipped[] = {0x2a, 0x4d, 0x18};
    if (n >= 2 && !memcmp(head, gzip, 2)) return DATA_GZIP;
    if (n >= 4 && !memcmp(head, zstd, 4)) return DATA_ZSTD;
    return n >= 4 && (head[0] & 0xf0) == 0x50 && !memcmp(head + 1, skipped, 3) ? DATA_ZSTD : DATA_PLAIN;
}

bool data_unpack_inside(const data_unpack *u) {
    return u->inside;
}

/* ---- gzip ------------------------------------------------------------------------------------------------------- */

#ifdef TIDEMILL_ZLIB
static void *gz_alloc(void *ctx, unsigned count, unsigned bytes) {
    (void)ctx;
    return tm_calloc(count, bytes);
}

static void gz_free(void *ctx, void *p) {
    (void)ctx;
    tm_free(p);
}

static tm_status gz_open(data_unpack *u) {
    u->gz = (z_stream){.zalloc = gz_alloc, .zfree = gz_free};
    return inflateInit2(&u->gz, 15 + 16) == Z_OK ? TM_OK : tm_nomem(64 * TM_KIB);
}

/* Members follow each other; zeros after one are padding. */
static tm_status gz_run(data_unpack *u, const uint8_t *in, size_t n, size_t *used, void *out, size_t cap,
                        size_t *made) {
    size_t zeros = 0;
    while (!u->inside && u->any && zeros < n && !in[zeros]) zeros++;
    *used = zeros;
    *made = 0;
    if (zeros == n) return TM_OK;
    if (!u->inside && u->any && inflateReset(&u->gz) != Z_OK) return tm_fail(TM_EBUG, "zlib takes no second member");
    u->inside = u->any = true;
    u->gz.next_in = (Bytef *)(uintptr_t)(in + zeros);
    u->gz.avail_in = (uInt)(n - zeros);
    u->gz.next_out = out;
    u->gz.avail_out = (uInt)cap;
    int rc = inflate(&u->gz, Z_NO_FLUSH);
    *used = n - u->gz.avail_in;
    *made = cap - u->gz.avail_out;
    if (rc == Z_STREAM_END) u->inside = false;
    if (rc == Z_MEM_ERROR) return tm_nomem(64 * TM_KIB);
    if (rc == Z_OK || rc == Z_STREAM_END || rc == Z_BUF_ERROR) return TM_OK;
    return tm_fail(TM_EINPUT, "%s: damaged gzip data (%s); fetch the file again, or try gzip -t", u->name,
                   u->gz.msg ? u->gz.msg : "a dictionary is asked for");
}
#endif

/* ---- Zstandard --------------------------------------------------------------------------------------------------- */

#ifdef TIDEMILL_ZSTD
static tm_status zstd_open(data_unpack *u) {
    int log = 10;
    while (log < 30 && UINT64_C(2) << log <= u->window_bytes) log++;
    u->zstd = ZSTD_createDCtx();
    if (!u->zstd) return tm_nomem(TM_MIB);
    if (ZSTD_isError(ZSTD_DCtx_setParameter(u->zstd, ZSTD_d_windowLogMax, log)))
        return tm_fail(TM_EBUG, "libzstd takes no window of 2^%d bytes", log);
    return TM_OK;
}

static tm_status zstd_failure(const data_unpack *u, size_t code) {
    char most[32];
    switch (ZSTD_getErrorCode(code)) {
    case ZSTD_error_memory_allocation:
        return tm_nomem(u->window_bytes);
    case ZSTD_error_frameParameter_windowTooLarge:
        return tm_fail(TM_EINPUT,
                       "%s: its Zstandard window is larger than the %s that unpacking may take; pack it again "
                       "without --long (zstd -d --long=31, then zstd -19)",
                       u->name, tm_format_size(u->window_bytes, most, sizeof most));
    default:
        return tm_fail(TM_EINPUT, "%s: damaged Zstandard data (%s); fetch the file again, or try zstd -t", u->name,
                       ZSTD_getErrorName(code));
    }
}

static tm_status zstd_run(data_unpack *u, const uint8_t *in, size_t n, size_t *used, void *out, size_t cap,
                          size_t *made) {
    ZSTD_inBuffer from = {in, n, 0};
    ZSTD_outBuffer to = {out, cap, 0};
    if (!n && !u->inside) return TM_OK; /* a call would begin a frame */
    size_t left = ZSTD_decompressStream(u->zstd, &to, &from);
    *used = from.pos;
    *made = to.pos;
    if (ZSTD_isError(left)) return zstd_failure(u, left);
    u->inside = left != 0;
    return TM_OK;
}
#endif

/* ---- either ------------------------------------------------------------------------------------------------------ */

#if !defined TIDEMILL_ZLIB || !defined TIDEMILL_ZSTD
static tm_status without(const char *name, const char *what, const char *unpacker, const char *package) {
    return tm_fail(TM_EUNSUPPORTED,
                   "%s: packed by %s, which this build of tidemill does not read; unpack it (%s), or build tidemill "
                   "again with %s installed",
                   name, what, unpacker, package);
}
#endif

static tm_status open_codec(data_unpack *u) {
    if (u->packing == DATA_GZIP) {
#ifdef TIDEMILL_ZLIB
        return gz_open(u);
#else
        return without(u->name, "gzip", "gzip -d", "zlib1g-dev");
#endif
    }
#ifdef TIDEMILL_ZSTD
    return zstd_open(u);
#else
    return without(u->name, "Zstandard", "zstd -d", "libzstd-dev");
#endif
}

tm_status data_unpack_open(data_unpack **out, data_packing packing, const char *name, uint64_t window_bytes) {
    data_unpack *u = tm_calloc(1, sizeof *u);
    *out = u;
    if (!u) return tm_nomem(sizeof *u);
    *u = (data_unpack){.packing = packing,
                       .name = name,
                       .window_bytes = window_bytes ? tm_max_u64(window_bytes, TM_MIB) : 128 * TM_MIB};
    return open_codec(u);
}

tm_status data_unpack_run(data_unpack *u, const uint8_t *in, size_t n, size_t *used, void *out, size_t cap,
                          size_t *made) {
    *used = *made = 0;
#ifdef TIDEMILL_ZLIB
    if (u->packing == DATA_GZIP) return gz_run(u, in, n, used, out, cap, made);
#endif
#ifdef TIDEMILL_ZSTD
    if (u->packing == DATA_ZSTD) return zstd_run(u, in, n, used, out, cap, made);
#endif
    return tm_fail(TM_EBUG, "%s: nothing of %zu bytes unpacks to %zu at %p, %p", u->name, n, cap, (const void *)in,
                   out);
}

void data_unpack_close(data_unpack *u) {
    if (!u) return;
#ifdef TIDEMILL_ZLIB
    if (u->packing == DATA_GZIP) (void)inflateEnd(&u->gz);
#endif
#ifdef TIDEMILL_ZSTD
    ZSTD_freeDCtx(u->zstd);
#endif
    tm_free(u);
}
