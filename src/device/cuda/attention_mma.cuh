/* Attention by tensor cores, for 16-bit types and heads of exactly 64 or 128 columns: the same walk over tiles as
 * attention.cuh, with products of 16 x 16 by 16 x 8 in fp32 (mma, layer.cuh). What is multiplied is of the type:
 * probabilities and their gradients are rounded to it first, as every such implementation does; so their exponentials
 * are the device's own, in powers of two.
 *
 * A block is 4 warps; a warp owns 16 rows of the 64 that its block owns (queries, or keys for dK and dV) and meets the
 * others Met at a time, which are copied into shared memory while it works on those before. Lane (g, t) = (lane / 4,
 * lane % 4) holds of a 16 x 8 result rows g and g + 8, columns 2 t and 2 t + 1. Operands lie in shared memory by rows of
 * D + MMA_PAD, whose eights are in different banks, and are turned as they are read where a product sums over rows. */
#include "attention.cuh"

enum { MMA_THREADS = CUDA_MMA_THREADS, MMA_OWN = 64, MMA_MET = 32, MMA_PAD = 8 };
#define MMA_LOG2_E 1.44269504f
#define MMA_LN_2 0.693147181f

struct mma_lane {
    uint32_t warp, g, t, i, r; /* i, r: row r of the i-th matrix of four (load_matrices) */
};
DEVICE mma_lane mma_here() {
    uint32_t lane = thread_of_block() % CUDA_WARP;
    return {thread_of_block() / CUDA_WARP, lane / 4, lane % 4, lane / 8, lane % 8};
}

/* N rows of a head on their way into shared memory; zeros past the end. */
template <int D, int N> DEVICE void mma_fetch(const att_rows &from, uint16_t *to) {
    enum { STEP = MMA_THREADS / (D / 8) }; /* rows that all threads fetch at once, 8 columns each */
    uint32_t row = thread_of_block() / (D / 8), column = thread_of_block() % (D / 8) * 8;
    const uint16_t *x = static_cast<const uint16_t *>(from.x) + from.first + column;
    UNROLL for (uint32_t k = 0; k < N / STEP; k++, row += STEP) {
        bool there = row < from.rows;
        copy_async<16>(to + row * (D + MMA_PAD) + column, x + (there ? row : 0) * from.ld, there);
    }
}

/* The 16 x 16 of x as a first operand. */
template <int D> DEVICE void mma_first(const mma_lane &l, const uint16_t *x, uint32_t a[4]) {
    load_matrices<false>(x + (l.i % 2 * 8 + l.r) * (D + MMA_PAD) + l.i / 2 * 8, a);
}

/* s = X Y^T for 16 rows of X, as first operands, and Met of Y. */
template <typename T, int D, int Met>
DEVICE void mma_scores(const mma_lane &l, const uint32_t x[D / 16][4], const uint16_t *y, float s[Met / 8][4]) {
    const uint16_t *met = y + (l.i / 2 * 8 + l.r) * (D + MMA_PAD) + l.i % 2 * 8;
    UNROLL for (int n = 0; n < Met / 8; n++)
        UNROLL for (int e = 0; e < 4; e++) s[n][e] = 0.0f;
    UNROLL for (int k = 0; k < D / 16; k++)
        UNROLL for (int n = 0; n < Met / 16; n++) {
            uint32_t b[4];
            load_matrices<false>(met + n * 16 * (D + MMA_PAD) + k * 16, b);
            mma<T>(s[2 * n], x[k], b);
            mma<T>(s[2 * n + 1], x[k], b + 2);
        }
}
/* A warp's own rows as first operands: kept in registers, or read anew for each product where there are none left. */
template <int D, bool Kept> struct mma_own_rows {
    const uint16_t *x;
    uint32_t kept[Kept ? D / 16 : 1][4];
};
template <int D, bool Kept> DEVICE void mma_keep(const mma_lane &l, mma_own_rows<D, Kept> *own) {
    if constexpr (Kept)
        UNROLL for (int k = 0; k < D / 16; k++) mma_first<D>(l, own->x + k * 16, own->kept[k]);
}
template <typename T, int D, int Met, bool Kept>
DEVICE void mma_scores_of(const mma_lane &l, const mma_own_rows<D, Kept> &own, const uint16_t *y, float s[Met / 8][4]) {
    if constexpr (Kept) {
        mma_scores<T, D, Met>(l, own.kept, y, s);
    } else {
        uint32_t x[D / 16][4];
        UNROLL for (int k = 0; k < D / 16; k++) mma_first<D>(l, own.x + k * 16, x[k]);
        mma_scores<T, D, Met>(l, x, y, s);
    }
}

/* acc += S Z for 16 rows of S, which is rounded, and Met of Z. */
template <typename T, int D, int Met>
DEVICE void mma_apply(const mma_lane &l, const float s[Met / 8][4], const uint16_t *z, float acc[D / 8][4]) {
    const uint16_t *met = z + (l.i % 2 * 8 + l.r) * (D + MMA_PAD) + l.i / 2 * 8;
    UNROLL for (int k = 0; k < Met / 16; k++) {
        const float *low = s[2 * k], *high = s[2 * k + 1];
        uint32_t a[4] = {pair_of<T>(low[0], low[1]), pair_of<T>(low[2], low[3]), pair_of<T>(high[0], high[1]),
                         pair_of<T>(high[2], high[3])};
        UNROLL for (int n = 0; n < D / 16; n++) {
            uint32_t b[4];
            load_matrices<true>(met + k * 16 * (D + MMA_PAD) + n * 16, b);
            mma<T>(acc[2 * n], a, b);
            mma<T>(acc[2 * n + 1], a, b + 2);
        }
    }
}

/* Of queries [q, q + nq) and keys [k, k + nk): whether each query sees every key, or none does. */
DEVICE bool mma_all_seen(const cuda_attention_args &a, uint32_t q, uint32_t nq, uint32_t k, uint32_t nk) {
    return !a.key_mask && q + nq <= a.seq && k + nk <= q + 1 && (!a.window || (uint64_t)k + a.window >= (uint64_t)q + nq);
}
DEVICE bool mma_none_seen(const cuda_attention_args &a, uint32_t q, uint32_t nq, uint32_t k, uint32_t nk) {
    return q >= a.seq || k >= q + nq || (a.window && (uint64_t)k + nk + a.window <= (uint64_t)q + 1);
}

/* ---- forward: grid (query tiles, heads, rows) ---- */

DEVICE float quad_max(float x) {
    x = largest(x, shuffle_xor(x, 1));
    return largest(x, shuffle_xor(x, 2));
}
DEVICE float quad_sum(float x) {
    x += shuffle_xor(x, 1);
    return x + shuffle_xor(x, 2);
}

/* Half a lane's scores, row g (half 0) or g + 8 (half 1), to probabilities; *max is in powers of two. */
template <int Met, bool All>
DEVICE float mma_softmax_row(const cuda_attention_args &a, uint32_t batch, uint32_t q, uint32_t k0, const mma_lane &l,
                             int half, float s[Met / 8][4], float *max, float *sum) {
    float m = *max, old = *max, part = 0.0f, scale = a.scale * MMA_LOG2_E;
    UNROLL for (int n = 0; n < Met / 8; n++)
        UNROLL for (int e = 0; e < 2; e++) {
            float *x = &s[n][2 * half + e];
            bool sees = All || att_sees(a, batch, q, k0 + (uint32_t)(n * 8 + e) + l.t * 2);
            *x = sees ? *x * scale : minus_infinity();
            m = largest(*x, m);
        }
    m = quad_max(m);
    bool nothing = m == minus_infinity();
    UNROLL for (int n = 0; n < Met / 8; n++)
        UNROLL for (int e = 0; e < 2; e++) {
            float *x = &s[n][2 * half + e];
            *x = nothing ? 0.0f : exp2_of(*x - m);
            part += *x;
        }
    part = quad_sum(part);
    if (nothing) return 1.0f;
    float back = exp2_of(old - m);
    *max = m;
    *sum = *sum * back + part;
    return back;
}

/* Both halves, and what was summed so far to the new maximum. All: each of these queries sees each of these keys. */
template <int D, int Met, bool All>
DEVICE void mma_softmax(const cuda_attention_args &a, uint32_t batch, uint32_t row, uint32_t k0, const mma_lane &l,
                        float s[Met / 8][4], float acc[D / 8][4], float max[2], float sum[2]) {
    UNROLL for (int half = 0; half < 2; half++) {
        float back =
            mma_softmax_row<Met, All>(a, batch, row + 8 * (uint32_t)half, k0, l, half, s, &max[half], &sum[half]);
        UNROLL for (int n = 0; n < D / 8; n++)
            UNROLL for (int e = 0; e < 2; e++) acc[n][2 * half + e] *= back;
    }
}

template <typename T, int D>
DEVICE void mma_store_output(const cuda_attention_args &a, uint32_t batch, uint32_t head, uint32_t row, uint32_t end,
                             const mma_lane &l, int half, float acc[D / 8][4], float max, float sum) {
    if (row >= end) return;
    uint64_t token = (uint64_t)batch * a.seq + row, at = (token * a.heads + head) * D;
    float scale = sum > 0.0f ? 1.0f / sum : 0.0f;
    UNROLL for (int n = 0; n < D / 8; n++)
        UNROLL for (int e = 0; e < 2; e++)
            store<T>(acc[n][2 * half + e] * scale, a.out, at + (uint32_t)(n * 8 + e) + l.t * 2);
    if (l.t == 0 && a.lse) a.lse[token * a.heads + head] = sum > 0.0f ? max * MMA_LN_2 + log_of(sum) : 0.0f;
}

template <typename T, int D, int Met> DEVICE void mma_forward_block(const cuda_attention_args &a) {
    shared_pool pool;
    enum { LD = D + MMA_PAD };
    uint16_t *sq = pool.take<uint16_t>(MMA_OWN * LD), *sk = pool.take<uint16_t>(2 * Met * LD);
    uint16_t *sv = pool.take<uint16_t>(2 * Met * LD);
    mma_lane l = mma_here();
    uint32_t q0 = (blocks_x() - 1 - block_x()) * MMA_OWN, head = block_y(), batch = block_z();
    uint32_t kv = a.heads + head / (a.heads / a.kv_heads), nq = att_count(a, q0), first = att_first_key(a, q0);
    uint32_t own = q0 + l.warp * 16, row = own + l.g, at = 0, q[D / 16][4] = {};
    float acc[D / 8][4] = {}, max[2] = {minus_infinity(), minus_infinity()}, sum[2] = {};
    mma_fetch<D, MMA_OWN>(att_qkv(a, batch, q0, nq, head), sq);
    mma_fetch<D, Met>(att_qkv(a, batch, first, a.seq - first, kv), sk);
    mma_fetch<D, Met>(att_qkv(a, batch, first, a.seq - first, kv + a.kv_heads), sv);
    for (uint32_t k0 = first; k0 < q0 + nq; k0 += Met, at ^= 1) {
        float s[Met / 8][4];
        uint32_t next = k0 + Met;
        copy_async_wait();
        barrier(); /* the tile is here, and nobody reads the one before any more */
        if (next < q0 + nq) {
            mma_fetch<D, Met>(att_qkv(a, batch, next, a.seq - next, kv), sk + (at ^ 1) * Met * LD);
            mma_fetch<D, Met>(att_qkv(a, batch, next, a.seq - next, kv + a.kv_heads), sv + (at ^ 1) * Met * LD);
        }
        if (k0 == first)
            UNROLL for (int k = 0; k < D / 16; k++) mma_first<D>(l, sq + l.warp * 16 * LD + k * 16, q[k]);
        if (mma_none_seen(a, own, 16, k0, Met)) continue;
        bool all = mma_all_seen(a, own, 16, k0, Met);
        mma_scores<T, D, Met>(l, q, sk + at * Met * LD, s);
        if (all)
            mma_softmax<D, Met, true>(a, batch, row, k0, l, s, acc, max, sum);
        else
            mma_softmax<D, Met, false>(a, batch, row, k0, l, s, acc, max, sum);
        mma_apply<T, D, Met>(l, s, sv + at * Met * LD, acc);
    }
    UNROLL for (int half = 0; half < 2; half++)
        mma_store_output<T, D>(a, batch, head, row + 8 * (uint32_t)half, q0 + nq, l, half, acc, max[half], sum[half]);
}

/* Blocks that are to fit a processor: where that has only 100 KiB of shared memory, no more than those leave room for. */
#if defined(__CUDACC__) && (__CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200)
#define MMA_FIT(most) ((most) < 2 ? (most) : 2)
#else
#define MMA_FIT(most) (most)
#endif

/* A kernel for heads of D columns, and so with the registers that those need; `blocks` of it are to fit a processor. */
#define MMA_KERNEL(name, body, D, blocks, ...)                                                                         \
    KERNEL(name##_##D, cuda_attention_args, MMA_THREADS, MMA_FIT(blocks)) {                                            \
        if (a.type == CUDA_BF16)                                                                                       \
            body<bf16, D, __VA_ARGS__>(a);                                                                             \
        else                                                                                                           \
            body<fp16, D, __VA_ARGS__>(a);                                                                             \
    }
MMA_KERNEL(attention_forward_mma, mma_forward_block, 64, 3, 64)
MMA_KERNEL(attention_forward_mma, mma_forward_block, 128, 2, MMA_MET)

/* ---- backward ---- */

/* Of a product's element: p = e^(scale s - lse), and the score's gradient p (dp - delta) scale. `lse` is in powers of
 * two. */
DEVICE void mma_gradient(float scale, bool sees, float lse, float delta, float *s, float *dp) {
    float p = sees ? exp2_of(fmaf(*s, scale * MMA_LOG2_E, -lse)) : 0.0f;
    *dp = sees ? p * (*dp - delta) * scale : 0.0f;
    *s = p;
}

/* One row of a gradient: turned back by the rotation of its position, then rounded. */
template <typename T, int D>
DEVICE void mma_store_row(const cuda_attention_args &a, uint32_t batch, uint32_t row, uint32_t slot, bool rotated,
                          const mma_lane &l, int half, float acc[D / 8][4]) {
    if (row >= a.seq) return;
    uint64_t at = ((uint64_t)batch * a.seq + row) * qkv_ld(a) + (uint64_t)slot * D;
    UNROLL for (int n = 0; n < D / 16; n++)
        UNROLL for (int e = 0; e < 2; e++) {
            uint32_t column = (uint32_t)(n * 8 + e) + l.t * 2;
            float low = acc[n][2 * half + e], high = acc[n + D / 16][2 * half + e], c = 1.0f, s = 0.0f;
            if (rotated && a.rope_table) {
                angle_of(a.rope_table, a.rope_inv_freq, a.rope_cached, D / 2, row, column, &c, &s);
                float turned = low * c + high * s;
                high = high * c - low * s;
                low = turned;
            }
            store<T>(low, a.d_qkv, at + column);
            store<T>(high, a.d_qkv, at + column + D / 2);
        }
}

/* Queries from q0 on of a head, what their outputs get, and lse and delta of each. */
template <int D>
DEVICE void mma_fetch_queries(const cuda_attention_args &a, uint32_t batch, uint32_t head, uint32_t q0, uint16_t *sq,
                              uint16_t *so, float *numbers) {
    mma_fetch<D, MMA_MET>(att_qkv(a, batch, q0, a.seq - q0, head), sq);
    mma_fetch<D, MMA_MET>(att_output(a, a.d_o, batch, q0, a.seq - q0, head), so);
    uint32_t i = thread_of_block(), q = q0 + i % MMA_MET;
    if (i >= 2 * MMA_MET) return;
    const float *of = i < MMA_MET ? a.lse : a.delta;
    bool there = q < a.seq;
    copy_async<4>(numbers + i, of + ((uint64_t)batch * a.seq + (there ? q : 0)) * a.heads + head, there);
}

/* Of a lane's keys, key and key + 8, and the queries from q0 on. All: each of these queries sees each of these keys. */
template <bool All>
DEVICE void mma_keys_gradients(const cuda_attention_args &a, uint32_t batch, uint32_t q0, uint32_t key,
                               const mma_lane &l, const float *lse, const float *delta, float s[MMA_MET / 8][4],
                               float dp[MMA_MET / 8][4]) {
    UNROLL for (int n = 0; n < MMA_MET / 8; n++)
        UNROLL for (int e = 0; e < 4; e++) {
            uint32_t column = (uint32_t)(n * 8 + e % 2) + l.t * 2, k = key + 8 * (uint32_t)(e / 2);
            bool sees = All || (k < a.seq && att_sees(a, batch, q0 + column, k));
            mma_gradient(a.scale, sees, lse[column] * MMA_LOG2_E, delta[column], &s[n][e], &dp[n][e]);
        }
}

/* grid (key tiles, key-value heads, rows): rows are keys, columns queries */
template <typename T, int D, bool Kept> DEVICE void mma_keys_block(const cuda_attention_args &a) {
    shared_pool pool;
    enum { LD = D + MMA_PAD, TILE = MMA_MET * LD };
    uint16_t *sk = pool.take<uint16_t>(MMA_OWN * LD), *sv = pool.take<uint16_t>(MMA_OWN * LD);
    uint16_t *sq = pool.take<uint16_t>(2 * TILE), *so = pool.take<uint16_t>(2 * TILE);
    float *numbers = pool.take<float>(4 * MMA_MET);
    mma_lane l = mma_here();
    uint32_t k0 = block_x() * MMA_OWN, kv = block_y(), batch = block_z(), group = a.heads / a.kv_heads;
    uint32_t nk = att_count(a, k0), own = k0 + l.warp * 16, key = own + l.g, at = 0;
    uint32_t end = att_last_query(a, k0), head = kv * group, q0 = k0, next;
    float dk[D / 8][4] = {}, dv[D / 8][4] = {};
    mma_own_rows<D, Kept> keys = {sk + l.warp * 16 * LD, {}}, values = {sv + l.warp * 16 * LD, {}};
    mma_fetch<D, MMA_OWN>(att_qkv(a, batch, k0, nk, a.heads + kv), sk);
    mma_fetch<D, MMA_OWN>(att_qkv(a, batch, k0, nk, a.heads + a.kv_heads + kv), sv);
    mma_fetch_queries<D>(a, batch, head, k0, sq, so, numbers);
    for (bool begins = true, more = true; more; q0 = next, begins = false, at ^= 1) {
        float s[MMA_MET / 8][4], dp[MMA_MET / 8][4];
        uint32_t other = at ^ 1;
        const float *lse = numbers + at * 2 * MMA_MET, *delta = lse + MMA_MET;
        copy_async_wait();
        barrier(); /* the tile is here, and nobody reads the one before any more */
        next = q0 + MMA_MET;
        if (next >= end) {
            next = k0;
            head++;
        }
        more = head < (kv + 1) * group;
        if (more)
            mma_fetch_queries<D>(a, batch, head, next, sq + other * TILE, so + other * TILE,
                                 numbers + other * 2 * MMA_MET);
        if (begins) {
            mma_keep(l, &keys);
            mma_keep(l, &values);
        }
        if (mma_none_seen(a, q0, MMA_MET, own, 16)) continue;
        bool all = mma_all_seen(a, q0, MMA_MET, own, 16);
        mma_scores_of<T, D, MMA_MET>(l, keys, sq + at * TILE, s);
        mma_scores_of<T, D, MMA_MET>(l, values, so + at * TILE, dp);
        if (all)
            mma_keys_gradients<true>(a, batch, q0, key, l, lse, delta, s, dp);
        else
            mma_keys_gradients<false>(a, batch, q0, key, l, lse, delta, s, dp);
        mma_apply<T, D, MMA_MET>(l, s, so + at * TILE, dv);
        mma_apply<T, D, MMA_MET>(l, dp, sq + at * TILE, dk);
    }
    UNROLL for (int half = 0; half < 2; half++) {
        mma_store_row<T, D>(a, batch, key + 8 * (uint32_t)half, a.heads + kv, true, l, half, dk);
        mma_store_row<T, D>(a, batch, key + 8 * (uint32_t)half, a.heads + a.kv_heads + kv, false, l, half, dv);
    }
}
MMA_KERNEL(attention_keys_mma, mma_keys_block, 64, 3, true)
MMA_KERNEL(attention_keys_mma, mma_keys_block, 128, 2, false)

/* Of a lane's queries, row and row + 8, and the keys from k0 on: likewise. */
template <bool All>
DEVICE void mma_queries_gradients(const cuda_attention_args &a, uint32_t batch, uint32_t row, uint32_t k0,
                                  const mma_lane &l, const float lse[2], const float delta[2], float s[MMA_MET / 8][4],
                                  float dp[MMA_MET / 8][4]) {
    UNROLL for (int n = 0; n < MMA_MET / 8; n++)
        UNROLL for (int e = 0; e < 4; e++) {
            uint32_t k = k0 + (uint32_t)(n * 8 + e % 2) + l.t * 2, q = row + 8 * (uint32_t)(e / 2);
            bool sees = All || (k < a.seq && att_sees(a, batch, q, k));
            mma_gradient(a.scale, sees, lse[e / 2], delta[e / 2], &s[n][e], &dp[n][e]);
        }
}

/* grid (query tiles, heads, rows) */
template <typename T, int D, bool Kept> DEVICE void mma_queries_block(const cuda_attention_args &a) {
    shared_pool pool;
    enum { LD = D + MMA_PAD, TILE = MMA_MET * LD };
    uint16_t *sq = pool.take<uint16_t>(MMA_OWN * LD), *so = pool.take<uint16_t>(MMA_OWN * LD);
    uint16_t *sk = pool.take<uint16_t>(2 * TILE), *sv = pool.take<uint16_t>(2 * TILE);
    mma_lane l = mma_here();
    uint32_t q0 = (blocks_x() - 1 - block_x()) * MMA_OWN, head = block_y(), batch = block_z(), at = 0;
    uint32_t kv = a.heads + head / (a.heads / a.kv_heads), nq = att_count(a, q0), first = att_first_key(a, q0);
    uint32_t own = q0 + l.warp * 16, row = own + l.g;
    float dq[D / 8][4] = {}, lse[2], delta[2];
    mma_own_rows<D, Kept> queries = {sq + l.warp * 16 * LD, {}}, outputs = {so + l.warp * 16 * LD, {}};
    UNROLL for (int half = 0; half < 2; half++) {
        uint32_t q = row + 8 * (uint32_t)half;
        uint64_t of = ((uint64_t)batch * a.seq + (q < a.seq ? q : 0)) * a.heads + head;
        lse[half] = a.lse[of] * MMA_LOG2_E;
        delta[half] = a.delta[of];
    }
    mma_fetch<D, MMA_OWN>(att_qkv(a, batch, q0, nq, head), sq);
    mma_fetch<D, MMA_OWN>(att_output(a, a.d_o, batch, q0, nq, head), so);
    mma_fetch<D, MMA_MET>(att_qkv(a, batch, first, a.seq - first, kv), sk);
    mma_fetch<D, MMA_MET>(att_qkv(a, batch, first, a.seq - first, kv + a.kv_heads), sv);
    for (uint32_t k0 = first; k0 < q0 + nq; k0 += MMA_MET, at ^= 1) {
        float s[MMA_MET / 8][4], dp[MMA_MET / 8][4];
        uint32_t next = k0 + MMA_MET, other = at ^ 1;
        copy_async_wait();
        barrier(); /* the tile is here, and nobody reads the one before any more */
        if (next < q0 + nq) {
            mma_fetch<D, MMA_MET>(att_qkv(a, batch, next, a.seq - next, kv), sk + other * TILE);
            mma_fetch<D, MMA_MET>(att_qkv(a, batch, next, a.seq - next, kv + a.kv_heads), sv + other * TILE);
        }
        if (k0 == first) {
            mma_keep(l, &queries);
            mma_keep(l, &outputs);
        }
        if (mma_none_seen(a, own, 16, k0, MMA_MET)) continue;
        bool all = mma_all_seen(a, own, 16, k0, MMA_MET);
        mma_scores_of<T, D, MMA_MET>(l, queries, sk + at * TILE, s);
        mma_scores_of<T, D, MMA_MET>(l, outputs, sv + at * TILE, dp);
        if (all)
            mma_queries_gradients<true>(a, batch, row, k0, l, lse, delta, s, dp);
        else
            mma_queries_gradients<false>(a, batch, row, k0, l, lse, delta, s, dp);
        mma_apply<T, D, MMA_MET>(l, dp, sk + at * TILE, dq);
    }
    UNROLL for (int half = 0; half < 2; half++)
        mma_store_row<T, D>(a, batch, row + 8 * (uint32_t)half, head, true, l, half, dq);
}
MMA_KERNEL(attention_queries_mma, mma_queries_block, 64, 4, true)
MMA_KERNEL(attention_queries_mma, mma_queries_block, 128, 3, false)
