/* Attention over a cache of keys and values, forward only: what is new is stored at its position (attention_store);
 * several queries then meet the cache by tiles, as attention.cuh's do (attention_cached), and one query a row meets it
 * key by key (attention_decode). A row's result depends on that row alone. */
#include "attention.cuh"

/* Keys and values of the new tokens, next to each other in qkv as in an entry: a block a token, strided. Nothing is
 * written past the row's end, which the caller promises not to reach. */
template <typename T> DEVICE void store_token(const cuda_attention_args &a, uint64_t r) {
    uint64_t batch = r / a.seq, at = att_position(a, (uint32_t)batch) + r % a.seq, n = att_entry(a);
    const T *from = static_cast<const T *>(a.qkv) + r * qkv_ld(a) + (uint64_t)a.heads * a.head_dim;
    if (at >= a.capacity) return;
    T *to = static_cast<T *>(a.cache) + (att_cache_row(a, (uint32_t)batch) * a.capacity + at) * n;
    for (uint64_t i = thread_of_block(); i < n; i += threads_of_block()) to[i] = from[i];
}
/* What another row of the cache has computed before this one's position. */
template <typename T> DEVICE void share_entries(const cuda_attention_args &a, uint32_t batch) {
    uint64_t n = att_entry(a), to = att_cache_row(a, batch) * a.capacity, from = (uint64_t)a.cache_from[batch] * a.capacity;
    T *cache = static_cast<T *>(a.cache);
    for (uint64_t at = block_x(); at < att_position(a, batch); at += blocks_x())
        for (uint64_t i = thread_of_block(); i < n; i += threads_of_block())
            cache[(to + at) * n + i] = cache[(from + at) * n + i];
}
KERNEL(attention_store, cuda_attention_args, CUDA_THREADS) {
    for (uint32_t b = 0; a.cache_from && b < a.rows; b++)
        if (a.cache_from[b] != ~0u) WITH_TYPE(a.type, share_entries<T>(a, b));
    for (uint64_t r = block_x(); r < (uint64_t)a.rows * a.seq; r += blocks_x()) WITH_TYPE(a.type, store_token<T>(a, r));
}

/* grid (query tiles, heads, rows) */
KERNEL(attention_cached, cuda_attention_args, CUDA_THREADS) {
    ATT_WITH_SIZE(a, attention_forward_block<D, true>(a, t));
}

/* ---- one query: grid (heads, rows) ---- */

enum { DECODE_KEYS = CUDA_THREADS }; /* that are met at a time */

/* Scores of n keys from k0 on: a warp a key. Leaves behind no barrier. */
template <typename T>
DEVICE void decode_scores(const cuda_attention_args &a, const att_rows &keys, const float *query, uint32_t n,
                          float *score) {
    uint32_t lane = thread_of_block() % CUDA_WARP, warps = threads_of_block() / CUDA_WARP;
    for (uint32_t j = thread_of_block() / CUDA_WARP; j < n; j += warps) {
        float s = 0.0f;
        for (uint32_t d = lane; d < a.head_dim; d += CUDA_WARP)
            s = fmaf(query[d], load<T>(keys.x, keys.first + j * keys.ld + d), s);
        UNROLL for (unsigned d = CUDA_WARP / 2; d > 0; d /= 2) s += shuffle_xor(s, d);
        if (lane == 0) score[j] = s * a.scale;
    }
}

/* Of 256 threads as many groups of head_dim as there are: a group sums every so many-th key's values, a thread a
 * column; the groups' sums are added in order. */
template <typename T> DEVICE void decode_head(const cuda_attention_args &a) {
    shared_pool pool;
    float *query = pool.take<float>(CUDA_THREADS), *p = pool.take<float>(DECODE_KEYS);
    float *part = pool.take<float>(CUDA_THREADS), *scratch = pool.take<float>(2 * CUDA_WARP);
    uint32_t head = block_x(), batch = block_y(), kv = head / (a.heads / a.kv_heads), thread = thread_of_block();
    uint32_t end = att_position(a, batch) + 1, groups = CUDA_THREADS / a.head_dim, group = thread / a.head_dim;
    float max = minus_infinity(), sum = 0.0f, acc = 0.0f;
    if (thread < a.head_dim) query[thread] = load<T>(a.qkv, batch * qkv_ld(a) + (uint64_t)head * a.head_dim + thread);
    barrier();
    for (uint32_t k0 = a.window && end > a.window ? end - a.window : 0; k0 < end; k0 += DECODE_KEYS) {
        uint32_t n = (uint32_t)least(DECODE_KEYS, end - k0);
        att_rows values = att_cache(a, batch, k0, n, a.kv_heads + kv);
        decode_scores<T>(a, att_cache(a, batch, k0, n, kv), query, n, p);
        barrier();
        float s = thread < n ? p[thread] : minus_infinity();
        float m = largest(max, block_reduce<max_op>(s, scratch));
        float from = m == minus_infinity() ? 0.0f : m, back = exp_of(max - from);
        s = thread < n ? exp_of(s - from) : 0.0f;
        sum = sum * back + block_reduce<add_op>(s, scratch + CUDA_WARP);
        p[thread] = s;
        barrier();
        acc *= back;
        for (uint32_t j = group; group < groups && j < n; j += groups)
            acc = fmaf(p[j], load<T>(values.x, values.first + j * values.ld + thread % a.head_dim), acc);
        max = m;
        barrier();
    }
    part[thread] = acc;
    barrier();
    if (thread >= a.head_dim) return;
    float all = part[thread];
    for (uint32_t g = 1; g < groups; g++) all += part[g * a.head_dim + thread];
    store<T>(all * (sum > 0.0f ? 1.0f / sum : 0.0f), a.out, ((uint64_t)batch * a.heads + head) * a.head_dim + thread);
    if (thread == 0 && a.lse) a.lse[(uint64_t)batch * a.heads + head] = sum > 0.0f ? max + log_of(sum) : 0.0f;
}
KERNEL(attention_decode, cuda_attention_args, CUDA_THREADS) {
    WITH_TYPE(a.type, decode_head<T>(a));
}
