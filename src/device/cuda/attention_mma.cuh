/* Attention by tensor cores, for 16-bit types and heads of exactly 64 or 128 columns: the same walk over tiles as
 * attention.cuh, with products of 16 x 16 by 16 x 8 in fp32 (mma, layer.cuh). What is multiplied is of the type:
 * probabilities and their gradients are rounded to it first, as every such implementation does.
 *
 * A block is 4 warps; a warp owns 16 rows of the 64 that its block owns (queries, or keys for dK and dV) and meets the
 * others 32 at a time. Lane (g, t) = (lane / 4, lane % 4) holds of a 16 x 8 result rows g and g + 8, columns 2 t and
 * 2 t + 1. Operands lie in shared memory by rows, and transposed where a product sums over their rows. */
#include "attention.cuh"

enum { MMA_THREADS = CUDA_MMA_THREADS, MMA_OWN = 64, MMA_MET = 32, MMA_PAD = 8, MMA_MET_LD = MMA_MET + MMA_PAD };

struct mma_lane {
    uint32_t warp, g, t;
};
DEVICE mma_lane mma_here() {
    uint32_t lane = thread_of_block() % CUDA_WARP;
    return {thread_of_block() / CUDA_WARP, lane / 4, lane % 4};
}

DEVICE uint32_t pair_at(const uint16_t *x) {
    uint32_t p;
    memcpy(&p, x, 4);
    return p;
}
template <typename T> DEVICE uint32_t pair_of(float low, float high) {
    T l, h;
    narrow(low, &l);
    narrow(high, &h);
    return (uint32_t)h.bits << 16 | l.bits;
}

/* `n` rows of a head into shared memory, by rows of D + MMA_PAD, and transposed; zeros past the end. NULL: not so. */
template <int D> DEVICE void mma_stage(const att_rows &r, uint32_t n, uint16_t *rows, uint16_t *transposed) {
    for (uint32_t i = thread_of_block(); i < n * (D / 2); i += MMA_THREADS) {
        uint32_t row = i / (D / 2), column = i % (D / 2) * 2;
        uint32_t p = row < r.rows ? pair_at(static_cast<const uint16_t *>(r.x) + r.first + row * r.ld + column) : 0;
        if (rows) memcpy(rows + row * (D + MMA_PAD) + column, &p, 4);
        if (transposed) {
            transposed[column * MMA_MET_LD + row] = (uint16_t)p;
            transposed[(column + 1) * MMA_MET_LD + row] = (uint16_t)(p >> 16);
        }
    }
}

/* s = X Y^T for the warp's 16 rows of X and all of Y, both by rows. */
template <typename T, int D>
DEVICE void mma_scores(const mma_lane &l, const uint16_t *x, const uint16_t *y, float s[MMA_MET / 8][4]) {
    const uint16_t *own = x + (l.warp * 16 + l.g) * (D + MMA_PAD) + l.t * 2;
    UNROLL for (int n = 0; n < MMA_MET / 8; n++)
        UNROLL for (int e = 0; e < 4; e++) s[n][e] = 0.0f;
    UNROLL for (int k = 0; k < D; k += 16) {
        uint32_t a[4] = {pair_at(own + k), pair_at(own + 8 * (D + MMA_PAD) + k), pair_at(own + k + 8),
                         pair_at(own + 8 * (D + MMA_PAD) + k + 8)};
        UNROLL for (int n = 0; n < MMA_MET / 8; n++) {
            const uint16_t *met = y + (n * 8 + l.g) * (D + MMA_PAD) + k + l.t * 2;
            uint32_t b[2] = {pair_at(met), pair_at(met + 8)};
            mma<T>(s[n], a, b);
        }
    }
}

/* acc += S Z for the warp's 16 rows of S, which is rounded; Z transposed. */
template <typename T, int D>
DEVICE void mma_apply(const mma_lane &l, const float s[MMA_MET / 8][4], const uint16_t *z, float acc[D / 8][4]) {
    UNROLL for (int k = 0; k < MMA_MET / 16; k++) {
        const float *low = s[2 * k], *high = s[2 * k + 1];
        uint32_t a[4] = {pair_of<T>(low[0], low[1]), pair_of<T>(low[2], low[3]), pair_of<T>(high[0], high[1]),
                         pair_of<T>(high[2], high[3])};
        UNROLL for (int n = 0; n < D / 8; n++) {
            const uint16_t *met = z + (n * 8 + l.g) * MMA_MET_LD + k * 16 + l.t * 2;
            uint32_t b[2] = {pair_at(met), pair_at(met + 8)};
            mma<T>(acc[n], a, b);
        }
    }
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

/* Half a lane's scores: row g (half 0) or g + 8 (half 1). */
DEVICE float mma_softmax_row(const cuda_attention_args &a, uint32_t batch, uint32_t q, uint32_t k0, const mma_lane &l,
                             int half, float s[MMA_MET / 8][4], float *max, float *sum) {
    float m = *max, old = *max, part = 0.0f;
    UNROLL for (int n = 0; n < MMA_MET / 8; n++)
        UNROLL for (int e = 0; e < 2; e++) {
            float *x = &s[n][2 * half + e];
            *x = att_sees(a, batch, q, k0 + (uint32_t)(n * 8 + e) + l.t * 2) ? *x * a.scale : minus_infinity();
            m = largest(*x, m);
        }
    m = quad_max(m);
    bool nothing = m == minus_infinity();
    UNROLL for (int n = 0; n < MMA_MET / 8; n++)
        UNROLL for (int e = 0; e < 2; e++) {
            float *x = &s[n][2 * half + e];
            *x = nothing ? 0.0f : exp_of(*x - m);
            part += *x;
        }
    part = quad_sum(part);
    if (nothing) return 1.0f;
    float back = exp_of(old - m);
    *max = m;
    *sum = *sum * back + part;
    return back;
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
    if (l.t == 0 && a.lse) a.lse[token * a.heads + head] = sum > 0.0f ? max + log_of(sum) : 0.0f;
}

template <typename T, int D> DEVICE void mma_forward_block(const cuda_attention_args &a) {
    shared_pool pool;
    uint16_t *sq = pool.take<uint16_t>(MMA_OWN * (D + MMA_PAD)), *sk = pool.take<uint16_t>(MMA_MET * (D + MMA_PAD));
    uint16_t *sv = pool.take<uint16_t>(D * MMA_MET_LD);
    mma_lane l = mma_here();
    uint32_t q0 = (blocks_x() - 1 - block_x()) * MMA_OWN, head = block_y(), batch = block_z();
    uint32_t kv = head / (a.heads / a.kv_heads), nq = att_count(a, q0), row = q0 + l.warp * 16 + l.g;
    float acc[D / 8][4] = {}, max[2] = {minus_infinity(), minus_infinity()}, sum[2] = {};
    mma_stage<D>(att_qkv(a, batch, q0, nq, head), MMA_OWN, sq, nullptr);
    for (uint32_t k0 = att_first_key(a, q0); k0 < q0 + nq; k0 += MMA_MET) {
        float s[MMA_MET / 8][4];
        uint32_t nk = a.seq - k0;
        mma_stage<D>(att_qkv(a, batch, k0, nk, a.heads + kv), MMA_MET, sk, nullptr);
        mma_stage<D>(att_qkv(a, batch, k0, nk, a.heads + a.kv_heads + kv), MMA_MET, nullptr, sv);
        barrier();
        mma_scores<T, D>(l, sq, sk, s);
        UNROLL for (int half = 0; half < 2; half++) {
            float back = mma_softmax_row(a, batch, row + 8 * (uint32_t)half, k0, l, half, s, &max[half], &sum[half]);
            UNROLL for (int n = 0; n < D / 8; n++)
                UNROLL for (int e = 0; e < 2; e++) acc[n][2 * half + e] *= back;
        }
        mma_apply<T, D>(l, s, sv, acc);
        barrier();
    }
    UNROLL for (int half = 0; half < 2; half++)
        mma_store_output<T, D>(a, batch, head, row + 8 * (uint32_t)half, q0 + nq, l, half, acc, max[half], sum[half]);
}

/* Runs body<T, D>: a 16-bit type, heads of 64 or 128. */
#define MMA_WITH(a, body)                                                                                              \
    do {                                                                                                               \
        if ((a).type == CUDA_BF16) {                                                                                   \
            if ((a).head_dim == 64)                                                                                    \
                body<bf16, 64>(a);                                                                                     \
            else                                                                                                       \
                body<bf16, 128>(a);                                                                                    \
        } else if ((a).head_dim == 64) {                                                                               \
            body<fp16, 64>(a);                                                                                         \
        } else {                                                                                                       \
            body<fp16, 128>(a);                                                                                        \
        }                                                                                                              \
    } while (0)

KERNEL(attention_forward_mma, cuda_attention_args, MMA_THREADS) {
    MMA_WITH(a, mma_forward_block);
}

/* ---- backward ---- */

/* Of a product's element: its query and key; p = e^(scale s - lse), and the score's gradient p (dp - delta) scale. */
DEVICE void mma_gradients(const cuda_attention_args &a, uint32_t batch, uint32_t head, uint32_t q, uint32_t key,
                          float *s, float *dp) {
    bool sees = key < a.seq && att_sees(a, batch, q, key);
    uint64_t at = ((uint64_t)batch * a.seq + (sees ? q : 0)) * a.heads + head;
    float p = sees ? exp_of(*s * a.scale - a.lse[at]) : 0.0f;
    *dp = sees ? p * (*dp - a.delta[at]) * a.scale : 0.0f;
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

/* grid (key tiles, key-value heads, rows): rows are keys, columns queries */
template <typename T, int D> DEVICE void mma_keys_block(const cuda_attention_args &a) {
    shared_pool pool;
    uint16_t *sk = pool.take<uint16_t>(MMA_OWN * (D + MMA_PAD)), *sv = pool.take<uint16_t>(MMA_OWN * (D + MMA_PAD));
    uint16_t *sq = pool.take<uint16_t>(MMA_MET * (D + MMA_PAD)), *so = pool.take<uint16_t>(MMA_MET * (D + MMA_PAD));
    uint16_t *tq = pool.take<uint16_t>(D * MMA_MET_LD), *to = pool.take<uint16_t>(D * MMA_MET_LD);
    mma_lane l = mma_here();
    uint32_t k0 = block_x() * MMA_OWN, kv = block_y(), batch = block_z(), group = a.heads / a.kv_heads;
    uint32_t nk = att_count(a, k0), key = k0 + l.warp * 16 + l.g, end = att_last_query(a, k0);
    float dk[D / 8][4] = {}, dv[D / 8][4] = {};
    mma_stage<D>(att_qkv(a, batch, k0, nk, a.heads + kv), MMA_OWN, sk, nullptr);
    mma_stage<D>(att_qkv(a, batch, k0, nk, a.heads + a.kv_heads + kv), MMA_OWN, sv, nullptr);
    for (uint32_t head = kv * group; head < (kv + 1) * group; head++)
        for (uint32_t q0 = k0; q0 < end; q0 += MMA_MET) {
            float s[MMA_MET / 8][4], dp[MMA_MET / 8][4];
            mma_stage<D>(att_qkv(a, batch, q0, a.seq - q0, head), MMA_MET, sq, tq);
            mma_stage<D>(att_output(a, a.d_o, batch, q0, a.seq - q0, head), MMA_MET, so, to);
            barrier();
            mma_scores<T, D>(l, sk, sq, s);
            mma_scores<T, D>(l, sv, so, dp);
            UNROLL for (int n = 0; n < MMA_MET / 8; n++)
                UNROLL for (int e = 0; e < 4; e++)
                    mma_gradients(a, batch, head, q0 + (uint32_t)(n * 8 + e % 2) + l.t * 2,
                                  key + 8 * (uint32_t)(e / 2), &s[n][e], &dp[n][e]);
            mma_apply<T, D>(l, s, to, dv);
            mma_apply<T, D>(l, dp, tq, dk);
            barrier();
        }
    UNROLL for (int half = 0; half < 2; half++) {
        mma_store_row<T, D>(a, batch, key + 8 * (uint32_t)half, a.heads + kv, true, l, half, dk);
        mma_store_row<T, D>(a, batch, key + 8 * (uint32_t)half, a.heads + a.kv_heads + kv, false, l, half, dv);
    }
}
KERNEL(attention_keys_mma, cuda_attention_args, MMA_THREADS) {
    MMA_WITH(a, mma_keys_block);
}

/* grid (query tiles, heads, rows) */
template <typename T, int D> DEVICE void mma_queries_block(const cuda_attention_args &a) {
    shared_pool pool;
    uint16_t *sq = pool.take<uint16_t>(MMA_OWN * (D + MMA_PAD)), *so = pool.take<uint16_t>(MMA_OWN * (D + MMA_PAD));
    uint16_t *sk = pool.take<uint16_t>(MMA_MET * (D + MMA_PAD)), *sv = pool.take<uint16_t>(MMA_MET * (D + MMA_PAD));
    uint16_t *tk = pool.take<uint16_t>(D * MMA_MET_LD);
    mma_lane l = mma_here();
    uint32_t q0 = (blocks_x() - 1 - block_x()) * MMA_OWN, head = block_y(), batch = block_z();
    uint32_t kv = head / (a.heads / a.kv_heads), nq = att_count(a, q0), row = q0 + l.warp * 16 + l.g;
    float dq[D / 8][4] = {};
    mma_stage<D>(att_qkv(a, batch, q0, nq, head), MMA_OWN, sq, nullptr);
    mma_stage<D>(att_output(a, a.d_o, batch, q0, nq, head), MMA_OWN, so, nullptr);
    for (uint32_t k0 = att_first_key(a, q0); k0 < q0 + nq; k0 += MMA_MET) {
        float s[MMA_MET / 8][4], dp[MMA_MET / 8][4];
        mma_stage<D>(att_qkv(a, batch, k0, a.seq - k0, a.heads + kv), MMA_MET, sk, tk);
        mma_stage<D>(att_qkv(a, batch, k0, a.seq - k0, a.heads + a.kv_heads + kv), MMA_MET, sv, nullptr);
        barrier();
        mma_scores<T, D>(l, sq, sk, s);
        mma_scores<T, D>(l, so, sv, dp);
        UNROLL for (int n = 0; n < MMA_MET / 8; n++)
            UNROLL for (int e = 0; e < 4; e++)
                mma_gradients(a, batch, head, row + 8 * (uint32_t)(e / 2), k0 + (uint32_t)(n * 8 + e % 2) + l.t * 2,
                              &s[n][e], &dp[n][e]);
        mma_apply<T, D>(l, dp, tk, dq);
        barrier();
    }
    UNROLL for (int half = 0; half < 2; half++)
        mma_store_row<T, D>(a, batch, row + 8 * (uint32_t)half, head, true, l, half, dq);
}
KERNEL(attention_queries_mma, cuda_attention_args, MMA_THREADS) {
    MMA_WITH(a, mma_queries_block);
}
