/* Fibers, their scheduler, and what a block shares. One launch at a time. */
#include "emulate.h"

#include "args.h"

#include <stdio.h>
#include <stdlib.h>
#if defined(__SANITIZE_ADDRESS__)
#define WITH_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define WITH_ASAN 1
#endif
#endif
#ifdef WITH_ASAN
#include <sanitizer/common_interface_defs.h>
#endif
#ifndef __x86_64__
#include <ucontext.h>
#endif

enum { STACK_BYTES = 64 << 10, MOST_THREADS = 1024, MOST_ARRAYS = 16, LANES = 32, EXCHANGE_BYTES = 64, MOST_COPIES = 96 };

enum fiber_state { READY, AT_BARRIER, IN_EXCHANGE, ENDED };

/* ---- switching --------------------------------------------------------------------------------------------- */

struct context {
#ifdef __x86_64__
    void *stack_pointer;
#else
    ucontext_t machine;
#endif
    const void *stack;
    size_t stack_bytes;
    void *fake_stack;
};

struct fiber {
    context at;
    char *stack;
    fiber_state state;
    uint32_t exchanges;
};

static fiber fibers[MOST_THREADS];
static context scheduler;
static uint32_t running;
static emulate_kernel kernel_now;
static const void *args_now;
emulate_place emulate_here;

#ifdef __x86_64__
/* Saves what a call must keep on the stack that is left, and takes it from the one that is entered. */
extern "C" void emulate_switch(void **save, void *load);
asm(".text\n.globl emulate_switch\n.type emulate_switch, @function\nemulate_switch:\n"
    "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
    "mov %rsp, (%rdi)\nmov %rsi, %rsp\n"
    "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\nret\n"
    ".size emulate_switch, .-emulate_switch\n");
#endif

static void go(context *from, context *to, bool for_good) {
    (void)for_good;
#ifdef WITH_ASAN
    __sanitizer_start_switch_fiber(for_good ? nullptr : &from->fake_stack, to->stack, to->stack_bytes);
#endif
#ifdef __x86_64__
    emulate_switch(&from->stack_pointer, to->stack_pointer);
#else
    swapcontext(&from->machine, &to->machine);
#endif
#ifdef WITH_ASAN
    __sanitizer_finish_switch_fiber(from->fake_stack, nullptr, nullptr);
#endif
}

static void leave(fiber_state state) {
    fiber *f = &fibers[running];
    f->state = state;
    go(&f->at, &scheduler, state == ENDED);
}

static void check_copies();

static void begin() {
#ifdef WITH_ASAN
    __sanitizer_finish_switch_fiber(nullptr, &scheduler.stack, &scheduler.stack_bytes);
#endif
    kernel_now(args_now);
    check_copies();
    leave(ENDED);
    abort();
}

static void prepare(fiber *f) {
    if (!f->stack) f->stack = static_cast<char *>(malloc(STACK_BYTES));
    f->state = READY;
    f->exchanges = 0;
    f->at.stack = f->stack;
    f->at.stack_bytes = STACK_BYTES;
    f->at.fake_stack = nullptr;
#ifdef __x86_64__
    void **top = reinterpret_cast<void **>(f->stack + STACK_BYTES);
    *--top = nullptr; /* begin has no caller; and the stack is aligned as a call leaves it */
    *--top = reinterpret_cast<void *>(begin);
    for (int i = 0; i < 6; i++) *--top = nullptr;
    f->at.stack_pointer = top;
#else
    getcontext(&f->at.machine);
    f->at.machine.uc_stack.ss_sp = f->stack;
    f->at.machine.uc_stack.ss_size = STACK_BYTES;
    f->at.machine.uc_link = nullptr;
    makecontext(&f->at.machine, begin, 0);
#endif
}

/* ---- what a block shares ----------------------------------------------------------------------------------- */

struct shared_array {
    void *bytes;
    size_t size;
};
static shared_array shared_arrays[MOST_ARRAYS];
static size_t shared_used, shared_limit;

[[noreturn]] static void stop(const char *what) {
    fprintf(stderr, "emulated block (%u, %u, %u), thread %u: %s\n", emulate_here.block[0], emulate_here.block[1],
            emulate_here.block[2], running, what);
    abort();
}

void *emulate_shared(uint32_t i, size_t bytes) {
    if (i >= MOST_ARRAYS) stop("too many arrays of shared memory");
    shared_array *s = &shared_arrays[i];
    if (!s->bytes) {
        s->bytes = malloc(bytes);
        s->size = bytes;
        memset(s->bytes, 0xff, bytes);
        shared_used += (bytes + 15) / 16 * 16;
        if (shared_used > shared_limit) stop("more shared memory than the launch gave");
    }
    if (s->size != bytes) stop("threads do not agree on the shared memory that they ask for");
    return s->bytes;
}

static void forget_shared() {
    for (shared_array &s : shared_arrays) {
        free(s.bytes);
        s = {nullptr, 0};
    }
    shared_used = 0;
}

/* ---- warps ------------------------------------------------------------------------------------------------- */

struct warp_board {
    char lane[2][LANES][EXCHANGE_BYTES];
    char together[2][LANES * EXCHANGE_BYTES];
};
static warp_board boards[MOST_THREADS / LANES];

/* ---- copies under way -------------------------------------------------------------------------------------- */

struct copy {
    void *to;
    const void *from;
    uint32_t bytes;
};
static copy copies[MOST_THREADS][MOST_COPIES];
static uint32_t n_copies[MOST_THREADS];

void emulate_copy(void *to, const void *from, uint32_t bytes) {
    uint32_t *n = &n_copies[running];
    if (*n == MOST_COPIES) stop("too many copies under way");
    if (reinterpret_cast<uintptr_t>(to) % bytes || reinterpret_cast<uintptr_t>(from) % bytes)
        stop("a copy that is not at a multiple of its bytes");
    copies[running][(*n)++] = {to, from, bytes};
}

void emulate_copy_wait(void) {
    for (uint32_t i = 0; i < n_copies[running]; i++) {
        const copy &c = copies[running][i];
        if (c.from)
            memcpy(c.to, c.from, c.bytes);
        else
            memset(c.to, 0, c.bytes);
    }
    n_copies[running] = 0;
}

static void check_copies() {
    if (n_copies[running]) stop("it ends with copies under way");
}

void emulate_stop(const char *why) {
    stop(why);
}

void emulate_barrier(void) {
    leave(AT_BARRIER);
}

/* Two sides in turn: a lane may be a whole exchange ahead of one that has not read yet, never two. */
const void *emulate_exchange(const void *mine, size_t bytes) {
    warp_board *w = &boards[running / LANES];
    uint32_t side = fibers[running].exchanges++ % 2;
    if (bytes > EXCHANGE_BYTES) stop("an exchange of too many bytes");
    memcpy(w->lane[side][running % LANES], mine, bytes);
    leave(IN_EXCHANGE);
    for (uint32_t l = 0; l < LANES; l++) memcpy(w->together[side] + l * bytes, w->lane[side][l], bytes);
    return w->together[side];
}

uint32_t emulate_shuffle(uint32_t x, uint32_t from_lane) {
    return static_cast<const uint32_t *>(emulate_exchange(&x, sizeof x))[from_lane % LANES];
}

/* ---- the scheduler ----------------------------------------------------------------------------------------- */

static emulate_order_of order_now;
static uint64_t shuffle_state;

void emulate_order(emulate_order_of order) {
    order_now = order;
    shuffle_state = 1;
}

static uint32_t random_below(uint32_t n) {
    shuffle_state = shuffle_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((shuffle_state >> 33) % n);
}

static void put_in_order(uint32_t *order, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) order[i] = order_now == EMULATE_BACKWARD ? n - 1 - i : i;
    if (order_now != EMULATE_SHUFFLED) return;
    for (uint32_t i = n; i > 1; i--) {
        uint32_t k = random_below(i), t = order[i - 1];
        order[i - 1] = order[k];
        order[k] = t;
    }
}

static uint32_t count(uint32_t first, uint32_t n, fiber_state state) {
    uint32_t c = 0;
    for (uint32_t i = first; i < first + n; i++) c += fibers[i].state == state;
    return c;
}

static bool set_ready(uint32_t first, uint32_t n, fiber_state from) {
    if (count(first, n, from) < n) return false;
    for (uint32_t i = first; i < first + n; i++) fibers[i].state = READY;
    return true;
}

static void run_lanes(uint32_t warp) {
    uint32_t order[LANES];
    put_in_order(order, LANES);
    for (uint32_t i = 0; i < LANES; i++) {
        running = warp * LANES + order[i];
        if (fibers[running].state != READY) continue;
        emulate_here.thread = running;
        go(&scheduler, &fibers[running].at, false);
    }
}

/* Forward and backward a warp runs as far ahead of the others as barriers let it; shuffled, none is more than an
 * exchange ahead. */
static void run_warp(uint32_t warp) {
    do run_lanes(warp);
    while (set_ready(warp * LANES, LANES, IN_EXCHANGE) && order_now != EMULATE_SHUFFLED);
}

/* False: every thread has ended. */
static bool release(uint32_t threads) {
    if (count(0, threads, ENDED) == threads) return false;
    if (count(0, threads, READY) == 0 && !set_ready(0, threads, AT_BARRIER))
        stop("its threads part: some wait at a barrier or an exchange that others do not reach");
    return true;
}

static void run_block(uint32_t threads) {
    uint32_t order[MOST_THREADS / LANES], warps = threads / LANES;
    for (uint32_t t = 0; t < threads; t++) prepare(&fibers[t]);
    do {
        put_in_order(order, warps);
        for (uint32_t i = 0; i < warps; i++) run_warp(order[i]);
    } while (release(threads));
    forget_shared();
}

void emulate_launch(emulate_kernel kernel, const void *args, const uint32_t grid[3], uint32_t threads,
                    uint32_t shared_bytes) {
    emulate_place *p = &emulate_here;
    if (threads == 0 || threads > MOST_THREADS || threads % LANES) stop("a block of no whole warps, or of too many");
    kernel_now = kernel;
    args_now = args;
    shared_limit = shared_bytes;
    p->threads = threads;
    memcpy(p->grid, grid, sizeof p->grid);
    for (p->block[2] = 0; p->block[2] < grid[2]; p->block[2]++)
        for (p->block[1] = 0; p->block[1] < grid[1]; p->block[1]++)
            for (p->block[0] = 0; p->block[0] < grid[0]; p->block[0]++) run_block(threads);
}

#define DECLARE(name, args, threads) extern "C" void tidemill_##name(const void *p);
CUDA_KERNELS(DECLARE)
#define ENTRY(name, args, threads) tidemill_##name,
emulate_kernel emulate_kernel_of(unsigned kernel) {
    static const emulate_kernel table[] = {CUDA_KERNELS(ENTRY)};
    return kernel < CUDA_KERNEL_COUNT ? table[kernel] : nullptr;
}
