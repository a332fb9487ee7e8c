/* Embedding rows, and the vocabulary loss of a part at a time. */
#include "layer.cuh"

DEVICE bool inside(int32_t id, uint32_t first, uint32_t count) {
    return id >= 0 && (uint32_t)id >= first && (uint32_t)id - first < count;
}

/* ---- embedding: a block per token row ---- */

template <typename Bits> DEVICE void embed_row(const cuda_embed_args &a, uint64_t r) {
    const Bits *weight = static_cast<const Bits *>(a.x);
    Bits *out = static_cast<Bits *>(a.out) + r * a.n;
    bool here = r < a.rows && inside(a.ids[r], a.first, a.count);
    if (!here && !a.clear) return;
    uint64_t from = here ? (uint64_t)((uint32_t)a.ids[r] - a.first) * a.n : 0;
    for (uint64_t i = thread_of_block(); i < a.n; i += threads_of_block()) out[i] = here ? weight[from + i] : (Bits)0;
}

KERNEL(embed_forward, cuda_embed_args, CUDA_THREADS) {
    for (uint64_t r = block_x(); r < a.padded; r += blocks_x()) {
        if (a.type == CUDA_F32)
            embed_row<uint32_t>(a, r);
        else
            embed_row<uint16_t>(a, r);
    }
}

/* The block of an id's first token adds all tokens of that id, in their order; the others have nothing to do. It lists
 * them a window of tokens at a time, and has CUDA_EMBED_COLUMNS columns. grid: tokens, blocks of columns */
enum {
    EMBED_WINDOW = CUDA_EMBED_WINDOW,
    EMBED_MASKS = EMBED_WINDOW / CUDA_WARP,
    EMBED_EACH = CUDA_EMBED_COLUMNS / CUDA_THREADS
};

/* Which of the window's tokens from s0 on are `id`; returns how many. The list is there until the next call. */
DEVICE uint32_t embed_list(const cuda_embed_args &a, int32_t id, uint64_t s0, uint32_t *mask, uint32_t *list) {
    uint32_t t = thread_of_block(), before = 0, found = 0;
    for (uint32_t i = 0; i < EMBED_WINDOW; i += CUDA_THREADS) {
        uint64_t s = s0 + i + t;
        uint32_t same = ballot_of(s < a.rows && a.ids[s] == id);
        if (t % CUDA_WARP == 0) mask[(i + t) / CUDA_WARP] = same;
    }
    barrier(); /* the masks are there, and nobody reads the list before any more */
    for (uint32_t k = 0; k < EMBED_MASKS; k++) {
        if (k == t) before = found;
        found += ones_of(mask[k]);
    }
    if (t < EMBED_MASKS)
        for (uint32_t bits = mask[t], k = 0; bits; bits >>= 1, k++)
            if (bits & 1) list[before++] = t * CUDA_WARP + k;
    barrier();
    return found;
}

template <typename T> DEVICE void embed_columns(const cuda_embed_args &a, uint64_t r, uint32_t *mask, uint32_t *list) {
    int32_t id = a.ids[r];
    uint64_t first = (uint64_t)block_y() * CUDA_EMBED_COLUMNS + thread_of_block(), column[EMBED_EACH];
    float *grad = a.grad + (uint64_t)((uint32_t)id - a.first) * a.n, sum[EMBED_EACH];
    UNROLL for (uint32_t j = 0; j < EMBED_EACH; j++) {
        column[j] = least(first + j * CUDA_THREADS, a.n - 1);
        sum[j] = grad[column[j]];
    }
    for (uint64_t s0 = r; s0 < a.rows; s0 += EMBED_WINDOW) {
        uint32_t n = embed_list(a, id, s0, mask, list);
        UNROLL_4 for (uint32_t k = 0; k < n; k++) {
            uint64_t row = (s0 + list[k]) * a.n;
            UNROLL for (uint32_t j = 0; j < EMBED_EACH; j++) sum[j] += load<T>(a.x, row + column[j]);
        }
    }
    UNROLL for (uint32_t j = 0; j < EMBED_EACH; j++) if (first + j * CUDA_THREADS < a.n) grad[column[j]] = sum[j];
}

KERNEL(embed_backward, cuda_embed_args, CUDA_THREADS) {
    shared_pool pool;
    float *scratch = pool.take<float>(CUDA_WARP);
    uint32_t *mask = pool.take<uint32_t>(EMBED_MASKS), *list = pool.take<uint32_t>(EMBED_WINDOW);
    for (uint64_t r = block_x(); r < a.rows; r += blocks_x()) {
        float earlier = 0.0f;
        if (!inside(a.ids[r], a.first, a.count)) continue;
        for (uint64_t s = thread_of_block(); s < r && earlier == 0.0f; s += threads_of_block())
            if (a.ids[s] == a.ids[r]) earlier = 1.0f;
        earlier = block_reduce<max_op>(earlier, scratch);
        if (earlier == 0.0f) WITH_TYPE(a.type, embed_columns<T>(a, r, mask, list));
        barrier();
    }
}

/* ---- loss: a block per row of logits ---- */

DEVICE uint32_t label_column(int32_t label, uint32_t first, uint32_t count) {
    return inside(label, first, count) ? (uint32_t)label - first : count;
}

KERNEL(head_begin, cuda_head_args, CUDA_THREADS) {
    for (uint64_t i = thread_of_grid(); i < 4 * a.rows; i += threads_of_grid())
        a.state[i] = i % 4 ? 0.0f : minus_infinity();
}

KERNEL(head_update, cuda_head_args, CUDA_THREADS) {
    shared_pool pool;
    float *scratch = pool.take<float>(2 * CUDA_WARP);
    for (uint64_t r = block_x(); r < a.rows; r += blocks_x()) {
        const float *x = a.logits + r * a.ld;
        float *state = a.state + (uint64_t)a.row[r] * 4, top = minus_infinity(), sum = 0.0f;
        float old = state[0];
        for (uint32_t i = thread_of_block(); i < a.count; i += threads_of_block()) top = largest(x[i], top);
        top = largest(block_reduce<max_op>(top, scratch), old);
        for (uint32_t i = thread_of_block(); i < a.count; i += threads_of_block()) sum += exp_of(x[i] - top);
        sum = block_reduce<add_op>(sum, scratch + CUDA_WARP);
        if (thread_of_block() == 0) {
            uint32_t column = label_column(a.labels[a.row[r]], a.first, a.count);
            state[1] = state[1] * exp_of(old - top) + sum;
            state[0] = top;
            if (column < a.count) state[2] = x[column];
        }
    } /* two halves of scratch in turn: the barrier of one stands before the next use of the other */
}

/* Rounded rows lie at the front of where they were: a block reads a piece of its row whole before it writes it, and
 * writes never reach what is still to be read. */
template <typename T>
DEVICE void head_gradient_row(const cuda_head_args &a, float *x, float lse, float c, uint32_t column) {
    enum { EACH = 4 };
    for (uint32_t at = thread_of_block(); at - thread_of_block() < a.count; at += EACH * threads_of_block()) {
        float g[EACH];
        UNROLL for (uint32_t j = 0; j < EACH; j++) {
            uint32_t i = at + j * threads_of_block();
            g[j] = i < a.count ? c * exp_of(x[i] - lse) : 0.0f;
            if (i == column) g[j] -= c;
        }
        if (sizeof(T) < 4) barrier();
        UNROLL for (uint32_t j = 0; j < EACH; j++) if (at + j * threads_of_block() < a.count)
            store<T>(g[j], x, at + j * threads_of_block());
    }
}

KERNEL(head_gradient, cuda_head_args, CUDA_THREADS) {
    for (uint64_t r = block_x(); r < a.rows; r += blocks_x()) {
        const float *state = a.state + (uint64_t)a.row[r] * 4;
        uint32_t column = label_column(a.labels[a.row[r]], a.first, a.count);
        float lse = state[0] + log_of(state[1]), c = a.coefficient[a.row[r]];
        WITH_TYPE(a.type, head_gradient_row<T>(a, a.logits + r * a.ld, lse, c, column));
    }
}
