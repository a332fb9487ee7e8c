/* base: what every folder may use, and nothing above itself.
 *
 * Owns: status and error record, logging, the allocation seam, byte buffers, the clock, counter-based
 * random numbers, and JSON (a streaming reader, a small tree for configurations, a writer).
 * Knows nothing of files, tensors or training.
 *
 * Threads: the error record is thread-local; everything else is safe on distinct objects. An object is used by
 * one thread at a time. tm_log and the allocation functions may be called from any thread.
 *
 * A function that can fail returns tm_status and says why in the error record:
 *
 *     tm_status load(const char *path) {
 *         TM_TRY(open_it(path));                          // hands the failure up, the record stays as it is
 *         if (bad) return tm_fail(TM_EINPUT, "%s: header of %zu bytes is cut off; fetch the file again", path, n);
 *         return TM_OK;
 *     }
 */
#ifndef TIDEMILL_BASE_H
#define TIDEMILL_BASE_H

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define TM_MUST_USE __attribute__((warn_unused_result))
#define TM_PRINTF(f, a) __attribute__((format(printf, f, a)))
#define TM_KIB ((uint64_t)1024)
#define TM_MIB (1024 * TM_KIB)
#define TM_GIB (1024 * TM_MIB)
#define TM_COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* ---- status ------------------------------------------------------------------------------------------------ */

typedef enum tm_status {
    TM_OK = 0,
    TM_EINPUT,       /* bad argument, configuration, model or data file: the user can mend it; exit 2 */
    TM_EUNSUPPORTED, /* well-formed, but not something this program does; exit 2 */
    TM_EBUDGET,      /* does not fit the given budget; exit 2 */
    TM_EIO,          /* a system call failed while running; exit 1 */
    TM_ENOSPC,       /* the disk is full; exit 1 (2 when found before anything was started) */
    TM_ENOMEM,       /* an allocation failed; exit 1 */
    TM_ECORRUPT,     /* bytes read back are not those that were written; exit 1 */
    TM_ESIGNAL,      /* stopped by a signal */
    TM_EBUG          /* an invariant of ours does not hold; exit 1 */
} tm_status;

/* What went wrong, beside the status. One record per thread; the first failure is kept until it is cleared, so that
 * clean-up that fails too does not hide the cause. */
typedef struct tm_error {
    tm_status code;
    int sys_errno;      /* 0 if no system call was involved */
    char operation[32]; /* "pwrite", "" */
    char path[256];     /* file concerned, "" */
    int64_t offset;     /* byte offset in it, -1 */
    char text
        [2048]; /* the line for the user: what, where, what to do; several problems of a configuration: a line each */
} tm_error;

/* Records a failure (unless one is pending on this thread) and returns `code`. */
tm_status tm_fail(tm_status code, const char *format, ...) TM_PRINTF(2, 3);
/* The same for a failed system call: appends strerror(sys_errno); fills operation, path, offset (-1: none). */
tm_status tm_fail_sys(tm_status code, int sys_errno, const char *operation, const char *path, int64_t offset,
                      const char *format, ...) TM_PRINTF(6, 7);
const tm_error *tm_error_get(void);                    /* never NULL; code TM_OK if nothing is pending */
void tm_error_clear(void);                             /* the failure was handled */
void tm_error_set(const tm_error *error);              /* moves a record to this thread (from a worker) */
tm_status tm_first(tm_status first, tm_status second); /* `first` unless it is TM_OK; for clean-up paths */
const char *tm_status_name(tm_status s);

#define TM_TRY(expr)                                                                                                   \
    do {                                                                                                               \
        tm_status tm_try_ = (expr);                                                                                    \
        if (tm_try_ != TM_OK) return tm_try_;                                                                          \
    } while (0)
/* For functions with one clean-up exit: needs `tm_status rc` and a label `done`. */
#define TM_GO(expr)                                                                                                    \
    do {                                                                                                               \
        rc = (expr);                                                                                                   \
        if (rc != TM_OK) goto done;                                                                                    \
    } while (0)

/* Our own invariants only; never around system calls or input. Stays on in release builds. */
#define TM_ASSERT(cond) ((cond) ? (void)0 : tm_assert_failed(#cond, __FILE__, __LINE__))
_Noreturn void tm_assert_failed(const char *cond, const char *file, int line);

/* ---- log: one line each, to stderr ---------------------------------------------------------------------------- */

typedef enum tm_log_level { TM_LOG_ERROR, TM_LOG_WARN, TM_LOG_INFO, TM_LOG_DEBUG } tm_log_level;
void tm_log_set_level(tm_log_level level); /* default TM_LOG_INFO; TIDEMILL_LOG=error|warn|info|debug at start */
void tm_log(tm_log_level level, const char *format, ...) TM_PRINTF(2, 3);
void tm_warn_once(const char *key, const char *format, ...) TM_PRINTF(2, 3); /* at most one line per key */

/* The first warnings that were said, in their order and without "warning: "; NULL: no more, or beyond the first 32. */
const char *tm_log_warning(unsigned i);

/* ---- stderr: lines that stay, and one that is overwritten (terminal.c) ------------------------------------------ */

/* All that people read on stderr goes through here: what is said wipes the live line first, so that nothing is glued to
 * it. `format` gives whole lines, the last ends in '\n'. Any thread; one write, so that lines do not mix. */
void tm_say(const char *format, ...) TM_PRINTF(1, 2);
void tm_say_text(const char *text, size_t n);
/* The same from a signal handler: `line` ends in '\n'. Calls nothing but write. */
void tm_say_in_handler(const char *line);

/* The live line, where stderr is a terminal: parts with two spaces between them. It is as wide as the terminal is at
 * that moment at most: the parts of the highest rank go first, the one of the lowest rank is cut. Drawn ten times a
 * second at most. A part may be "". */
enum { TM_LIVE_PARTS = 16 };
typedef struct tm_live_part {
    const char *text; /* UTF-8, no control characters */
    unsigned rank;    /* 0: most important */
} tm_live_part;
bool tm_live_possible(void);    /* stderr is a terminal that can */
unsigned tm_live_columns(void); /* of it, now */
bool tm_terminal_is_utf8(void); /* LC_ALL, LC_CTYPE or LANG say so */
void tm_live(const tm_live_part *part, size_t n);
void tm_live_end(void); /* wipes it: something else is about to use the terminal */
/* What tm_live would show in so many columns; its length. `cap` > 0. */
size_t tm_live_fit(const tm_live_part *part, size_t n, unsigned columns, char *out, size_t cap);
size_t tm_live_cut(const char *text, unsigned columns); /* bytes of `text` that fit */

/* A sign of life of what takes long (phase.c): a live line with share, rate and time left; where stderr is no terminal
 * a plain line every half minute. What ends within a moment shows nothing. One phase at a time.
 *
 *     tm_phase_begin(&p, "reading the model", NULL, bytes);
 *     while (read_more(&done)) tm_phase_at(&p, done); // cheap; any thread
 *     tm_phase_end(&p);                               // also after a failure
 */
typedef struct tm_phase {
    const char *what, *unit; /* unit NULL: bytes; texts outlive it */
    uint64_t total, done;    /* total 0: not known */
    uint64_t began_ns, said_ns;
} tm_phase;
void tm_phase_begin(tm_phase *p, const char *what, const char *unit, uint64_t total);
void tm_phase_at(tm_phase *p, uint64_t done);
void tm_phase_step(tm_phase *p); /* one more */
void tm_phase_end(tm_phase *p);
void tm_phase_silence(bool on);                                    /* --quiet: phases show nothing */
const char *tm_format_left(double seconds, char *buf, size_t cap); /* "0:01:30", "12d03h" */

/* ---- memory: every allocation goes through here (counted; the seam of fault tests) ----------------------------- */

void *tm_malloc(size_t bytes) TM_MUST_USE; /* NULL on failure, nothing recorded */
void *tm_calloc(size_t count, size_t bytes) TM_MUST_USE;
void *tm_realloc(void *p, size_t bytes) TM_MUST_USE; /* on failure p stays valid */
/* Room for `need` elements in an array that grows by half of itself: `array` is the address of its pointer. */
tm_status tm_grow(void *array, size_t *cap, size_t need, size_t element_bytes) TM_MUST_USE;
void tm_free(void *p); /* NULL is fine */
/* Each of several. */
#define TM_FREE_ALL(...) tm_free_all((void *[]){__VA_ARGS__}, sizeof((void *[]){__VA_ARGS__}) / sizeof(void *))
void tm_free_all(void *const *p, size_t n);
char *tm_strdup(const char *s) TM_MUST_USE;
char *tm_strndup(const char *s, size_t n) TM_MUST_USE;
bool tm_ends_with(const char *s, const char *suffix);
size_t tm_utf8_encode(char out[4], uint32_t code); /* as UTF-8 (RFC 3629); its bytes. `code` is at most U+10FFFF */
tm_status tm_nomem(size_t bytes);                  /* records TM_ENOMEM with the size */
uint64_t tm_mem_live_bytes(void);                  /* now held through these functions */
uint64_t tm_mem_peak_bytes(void);
uint64_t tm_mem_allocations(void);         /* calls so far; tests prove that it stands still after warm-up */
uint64_t tm_mem_resident_peak_bytes(void); /* VmHWM of the process; 0 if unknown */
/* How long this thread was ready to run while others had the processors, since it began; 0 if unknown. */
uint64_t tm_run_delay_ns(void);
uint64_t tm_mem_total_bytes(void); /* smaller of MemTotal and the cgroup's (v1, v2) limit; UINT64_MAX: unknown */
/* The smallest of MemAvailable, the cgroup's (v1, v2) headroom and the address space that is left. */
uint64_t tm_mem_available_bytes(void);
/* Under `ulimit -v`: what neither is in use nor was asked for; UINT64_MAX: there is no limit. */
uint64_t tm_address_left(void);
/* Before `what` takes that much address space and cannot cope with having less: TM_EINPUT, with what to do. */
tm_status tm_address_need(uint64_t bytes, const char *what) TM_MUST_USE;
tm_status tm_stack_need(void) TM_MUST_USE; /* of the first thread, for main: TM_EINPUT under a small `ulimit -s` */

/* A part of tidemill that is a shared library, libtidemill_KIND.so, loaded when it is needed: its path. Looked for in
 * <the program's folder>/../lib/tidemill (a build folder, or where it is installed), then where it was to be installed
 * (for those who link the library); with TIDEMILL_MODULES=FOLDER only there. False: it is not there; `path` is the last
 * place. */
enum { TM_MODULE_PATH = 4096 };
bool tm_module_find(const char *kind, char path[TM_MODULE_PATH]);

/* The driver of fault tests: CALL:I:KIND:once|sticky (I from 1, or 0 for none) makes the I-th CALL of the process fail
 * in the way KIND says (sticky: that one and every later one). Each seam asks this once a call with the call's name
 * ("alloc" here, "pread" and so on in io); true: fail now, *kind (may be NULL) says how. Nothing is counted while no
 * spec is set. Built without TIDEMILL_FAULTS it is always false. Of any call: the kind "kill" is SIGKILL in its place,
 * "stop" SIGSTOP before it (the call is made when somebody sends SIGCONT). "clock" is asked once a tm_now_ns: "forward"
 * and "back" are ten years off. */
bool tm_fault_hit(const char *call, const char **kind);
/* For unit tests: takes `spec` in place of the one before and starts counting again; NULL: none. TM_EINPUT if it is not
 * in the form above. The kind is kept by reference to our own copy, valid until the next call. */
tm_status tm_fault_set(const char *spec);
uint64_t tm_fault_calls(void); /* of the call that the spec names, since then */
/* With the spec "*:0:none:once" nothing fails and every call is counted: the i-th name that was met, and how often.
 * False: no more. Nobody else runs meanwhile. */
bool tm_fault_tally(unsigned i, const char **call, uint64_t *n);
/* The environment (TIDEMILL_FAULT, TIDEMILL_CHECKSUMS) has a say only after this call, which the test build of the
 * program makes before main (tests/fault_environment.c) and nothing else does: neither the program that is installed
 * nor one that links the library. */
void tm_fault_use_environment(void);
bool tm_fault_environment_used(void);
/* What main refuses to start with: one of them is set where it has no say, or the spec is malformed. NULL: nothing. */
const char *tm_fault_environment_wrong(void);

/* ---- threads ------------------------------------------------------------------------------------------------- */

/* Every thread of the program is started here (fault seam "thread"); it takes no signals but its own mistakes'. TM_EIO
 * with what to do where the limit of threads is reached; `what` says whose it was ("the disk thread"). */
tm_status tm_thread_start(pthread_t *thread, void *(*body)(void *), void *arg, const char *what) TM_MUST_USE;
/* Can there be n more at a time? For a library that ends the process, or hangs, where it cannot start its own. */
tm_status tm_threads_try(unsigned n, const char *what) TM_MUST_USE;

/* ---- a request to stop ----------------------------------------------------------------------------------------- */

/* SIGINT, SIGTERM, SIGHUP (unless it was ignored, as under nohup), SIGUSR1, and SIGPIPE where nobody reads stdout or
 * stderr any more are a request to stop from here on. A command that would leave something behind calls it first; others
 * keep what the system does. The first SIGINT is acknowledged on stderr at once; the third ends the process wherever it
 * is, as SIGKILL would.
 *
 *     for (size_t i = 0; i < n; i++) {
 *         TM_TRY(tm_stop_check()); // cheap
 *         TM_TRY(work(i));         // what may take longer than a moment
 *     }
 */
void tm_stop_catch(void);
tm_status tm_stop_check(void) TM_MUST_USE; /* TM_ESIGNAL: stop here */
int tm_stop_signal(void);                  /* the first that came, 0: none */
bool tm_stop_at_once(void);                /* SIGINT came twice */
/* Off: tm_stop_check has nothing to say, somebody else decides where to stop (training, between steps). */
void tm_stop_polled(bool on);
void tm_stop_silent(bool on); /* nothing is acknowledged: another rank does */

/* Bytes with a growing end. `data` is NUL-terminated whenever it is not NULL. Zero it to start. */
typedef struct tm_buf {
    char *data;
    size_t len, cap;
} tm_buf;
tm_status tm_buf_reserve(tm_buf *b, size_t more) TM_MUST_USE;
tm_status tm_buf_append(tm_buf *b, const void *bytes, size_t n) TM_MUST_USE;
tm_status tm_buf_printf(tm_buf *b, const char *format, ...) TM_PRINTF(2, 3) TM_MUST_USE;
void tm_buf_clear(tm_buf *b); /* keeps the memory */
void tm_buf_free(tm_buf *b);

/* ---- numbers, clock, random ------------------------------------------------------------------------------------ */

/* "3GiB", "512 MiB", "3G" (as "3GiB"), "2GB" (decimal), "1048576". TM_EINPUT on anything else or on overflow. */
tm_status tm_parse_size(const char *text, uint64_t *bytes) TM_MUST_USE;
/* "1.50 GiB" into buf; returns buf. */
const char *tm_format_size(uint64_t bytes, char *buf, size_t cap);
/* Shortest decimal that strtod reads back as x ("0.1", "1e-05"); "null" for NaN and infinities.
 * Returns buf; cap >= 32. */
const char *tm_format_double(double x, char *buf, size_t cap);
/* Shortest decimal that strtof reads back as x. */
const char *tm_format_float(float x, char *buf, size_t cap);
/* Levenshtein's distance, for "did you mean"; SIZE_MAX / 2 where a word is longer than 64 bytes. */
size_t tm_edit_distance(const char *a, const char *b);
double tm_median(double *v, size_t n); /* sorts v; n > 0; of an even number the mean of the two in the middle */
uint64_t tm_now_ns(void);              /* monotonic */
static inline double tm_seconds(uint64_t ns) {
    return (double)ns * 1e-9;
}

/* Philox4x32-10 (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3"): 128 bits for (key, counter). */
void tm_philox(uint64_t key, uint64_t counter_hi, uint64_t counter_lo, uint32_t out[4]);
/* Two standard normals from one Philox block (Box-Muller in double). Element 2i, 2i+1 of stream `key`. */
void tm_philox_normal2(uint64_t key, uint64_t block, double out[2]);
uint64_t tm_hash64(const void *bytes, size_t n, uint64_t seed); /* XXH3-64 */

static inline uint64_t tm_round_up(uint64_t x, uint64_t to) {
    return (x + to - 1) / to * to;
}
static inline uint64_t tm_min_u64(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}
static inline uint64_t tm_max_u64(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}
/* a*b and a+b with overflow reported as false. For sizes that come from files. */
static inline bool tm_mul_u64(uint64_t a, uint64_t b, uint64_t *r) {
    return !__builtin_mul_overflow(a, b, r);
}
static inline bool tm_add_u64(uint64_t a, uint64_t b, uint64_t *r) {
    return !__builtin_add_overflow(a, b, r);
}

/* ---- JSON (RFC 8259) ------------------------------------------------------------------------------------------- *
 * Depth is limited to 64, strings must be valid UTF-8 (unpaired \u surrogates become U+FFFD), duplicate keys are
 * errors, NaN and Infinity are errors. Errors read "NAME:LINE:COLUMN: what". No recursion; time is linear.          */

enum {
    TM_JSON_RELAXED = 1, /* HJSON-like, as DeepSpeed takes: // # and block comments, trailing commas */
    TM_JSON_LINES = 2,   /* reader only: several values one after another; TM_JSON_EOF only at the end of input */
    TM_JSON_DUPLICATES_OK = 4
};

typedef enum tm_json_type {
    TM_JSON_NULL,
    TM_JSON_BOOL,
    TM_JSON_NUMBER,
    TM_JSON_STRING,
    TM_JSON_ARRAY,
    TM_JSON_OBJECT,
    /* events of the streaming reader only: */
    TM_JSON_KEY,
    TM_JSON_ARRAY_END,
    TM_JSON_OBJECT_END,
    TM_JSON_EOF
} tm_json_type;

/* Tree for small files (configurations, one JSONL line). The document owns all nodes and strings. Memory is at most
 * about 100 bytes a node; `max_bytes` (0: 64 MiB) bounds it. */
typedef struct tm_json tm_json;
struct tm_json {
    tm_json_type type;
    uint32_t line, column; /* of the value, from 1 */
    const char *key;       /* NUL-terminated; NULL in arrays and at the root */
    size_t key_len;
    const char *text; /* string: decoded bytes, NUL-terminated; number: as written */
    size_t len;
    bool boolean;
    bool is_integer; /* written without '.', and fits int64 ("5e8" counts: integral and below 2^53) */
    int64_t integer;
    double number;
    const tm_json *child; /* first member or element */
    const tm_json *next;  /* next sibling */
    size_t count;         /* members or elements */
};
typedef struct tm_json_doc tm_json_doc;
tm_status tm_json_parse(tm_json_doc **out, const char *text, size_t len, const char *name, unsigned flags,
                        size_t max_bytes) TM_MUST_USE;
const tm_json *tm_json_root(const tm_json_doc *doc);
void tm_json_free(tm_json_doc *doc);
const tm_json *tm_json_get(const tm_json *object, const char *key); /* NULL if absent or not an object */
/* Members of the root object whose key is from[i] have the key to[i] from then on, [n] each, which outlive the document;
 * one that has such a key already, and another name is not given to it, has the key "". */
void tm_json_rename(tm_json_doc *doc, const char *const *from, const char *const *to, size_t n);
bool tm_json_is(const tm_json *node, const char *string); /* node is a string equal to `string` */

/* Streaming reader: bounded memory whatever the file's size. One token is buffered, of at most `max_token` bytes (0:
 * 16 MiB); finding duplicates keeps 8-byte hashes of the open objects' keys, in tables 3/8 to 3/4 full. `read` delivers
 * up to cap bytes, *got = 0 at the end. A byte order mark in front is skipped; columns count bytes. */
typedef tm_status (*tm_read_fn)(void *ctx, void *buf, size_t cap, size_t *got);
typedef struct tm_json_reader tm_json_reader;
typedef struct tm_json_event {
    tm_json_type type;
    const char *text; /* KEY, STRING: decoded; NUMBER: as written; NUL-terminated; valid until the next call */
    size_t len;
    bool boolean, is_integer;
    int64_t integer;
    double number;
    uint32_t line, column;
    uint64_t offset; /* of the token's first byte */
    unsigned depth;  /* containers open around this token */
} tm_json_event;
tm_status tm_json_reader_open(tm_json_reader **out, tm_read_fn read, void *ctx, const char *name, unsigned flags,
                              size_t max_token) TM_MUST_USE;
tm_status tm_json_next(tm_json_reader *r, tm_json_event *event) TM_MUST_USE;
/* After an ARRAY or OBJECT event: reads on past its end. After a KEY: skips the value. Otherwise nothing. */
tm_status tm_json_skip(tm_json_reader *r, const tm_json_event *event) TM_MUST_USE;
void tm_json_reader_close(tm_json_reader *r);

/* A tree of events that somebody else makes, in the order of the reader's, EOF at the end: at most 64 containers are open at
 * a time, and no key is twice in an object. Texts are copied. */
typedef tm_status (*tm_json_next_fn)(void *ctx, tm_json_event *event);
tm_status tm_json_from_events(tm_json_doc **out, tm_json_next_fn next, void *ctx) TM_MUST_USE;

/* A tm_read_fn over bytes in memory. */
typedef struct tm_mem_source {
    const char *data;
    size_t len, pos;
} tm_mem_source;
tm_status tm_mem_source_read(void *ctx, void *buf, size_t cap, size_t *got);

/* Writer into a tm_buf. Commas, indentation (indent 0: one line) and escapes are its business; the first failed append
 * is kept and returned by tm_json_end. Doubles are written so that they round-trip. */
typedef struct tm_json_writer {
    tm_buf *out;
    int indent, depth;
    bool first[66];
    bool after_key;
    bool ascii; /* escape everything above U+007F */
    tm_status status;
} tm_json_writer;
void tm_jw_init(tm_json_writer *w, tm_buf *out, int indent);
void tm_jw_object(tm_json_writer *w);
void tm_jw_object_end(tm_json_writer *w);
void tm_jw_array(tm_json_writer *w);
void tm_jw_array_end(tm_json_writer *w);
void tm_jw_key(tm_json_writer *w, const char *key);
void tm_jw_str(tm_json_writer *w, const char *s); /* NULL: null */
void tm_jw_strn(tm_json_writer *w, const char *s, size_t n);
void tm_jw_int(tm_json_writer *w, int64_t v);
void tm_jw_uint(tm_json_writer *w, uint64_t v);
void tm_jw_double(tm_json_writer *w, double v);
void tm_jw_bool(tm_json_writer *w, bool v);
void tm_jw_null(tm_json_writer *w);
/* key and value */
void tm_jw_field_str(tm_json_writer *w, const char *key, const char *v);
void tm_jw_field_uint(tm_json_writer *w, const char *key, uint64_t v);
void tm_jw_field_double(tm_json_writer *w, const char *key, double v);
void tm_jw_field_bool(tm_json_writer *w, const char *key, bool v);
void tm_jw_field_int(tm_json_writer *w, const char *key, int64_t v);
void tm_jw_field_strn(tm_json_writer *w, const char *key, const char *v, size_t n);
void tm_jw_field_object(tm_json_writer *w, const char *key); /* begins it */
void tm_jw_field_array(tm_json_writer *w, const char *key);
void tm_jw_raw(tm_json_writer *w, const char *json, size_t n); /* one value, already JSON */
void tm_jw_node(tm_json_writer *w, const tm_json *node);       /* a tree, verbatim numbers */
tm_status tm_jw_end(tm_json_writer *w) TM_MUST_USE;

#endif
