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

/* The block of an id's first token adds all tokens of that id, in their order; the others have nothing to do. */
template <typename T> DEVICE void embed_columns(const cuda_embed_args &a, uint64_t r) {
    int32_t id = a.ids[r];
    float *grad = a.grad + (uint64_t)((uint32_t)id - a.first) * a.n;
    for (uint64_t i = thread_of_block(); i < a.n; i += threads_of_block()) {
        float sum = grad[i];
        for (uint64_t s = r; s < a.rows; s++)
            if (a.ids[s] == id) sum += load<T>(a.x, s * a.n + i);
        grad[i] = sum;
    }
}

KERNEL(embed_backward, cuda_embed_args, CUDA_THREADS) {
    shared_pool pool;
    float *scratch = pool.take<float>(CUDA_WARP);
    for (uint64_t r = block_x(); r < a.rows; r += blocks_x()) {
        bool wanted = inside(a.ids[r], a.first, a.count);
        float earlier = 0.0f;
        for (uint64_t s = thread_of_block(); wanted && s < r; s += threads_of_block())
            if (a.ids[s] == a.ids[r]) earlier = 1.0f;
        earlier = block_reduce<max_op>(earlier, scratch);
        if (wanted && earlier == 0.0f) WITH_TYPE(a.type, embed_columns<T>(a, r));
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
    for (uint32_t at = 0; at < a.count; at += threads_of_block()) {
        uint32_t i = at + thread_of_block();
        float g = i < a.count ? c * exp_of(x[i] - lse) : 0.0f;
        if (i == column) g -= c;
        if (sizeof(T) < 4) barrier();
        if (i < a.count) store<T>(g, x, i);
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
