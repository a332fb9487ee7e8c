/* The engine of sequences: what one answers is the same whatever runs beside it; log-probabilities are the reference's;
 * text, stop strings, ends, refusals. */
#include "infer/engine.h"
#include "run.h"
#include "session/text.h"
#include "tests/support/forced.h"
#include "tests/support/skip.h"

#include <glob.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define LLAMA TM_TEST_FIXTURES "/arch_llama"
#define TINY TM_TEST_FIXTURES "/../../examples/tiny"

/* ---- what sequences answered ------------------------------------------------------------------------------------ */

enum { MOST = 400, TOPS = 3 };
typedef struct told {
    int32_t id[MOST], prompt_id[MOST], top[MOST][TOPS];
    float logprob[MOST], prompt_logprob[MOST], top_logprob[MOST][TOPS];
    bool greedy[MOST], prompt_greedy[MOST];
    size_t n, n_prompt, first_prompt;
    char text[4096];
    size_t n_text;
    tm_finish finish;
    unsigned ends;
} told;

static void take(void *ctx, const tm_token_event *t) {
    told *o = (told *)ctx + t->answer;
    assert_int_equal(o->ends, 0);
    memcpy(o->text + o->n_text, t->text ? t->text : "", t->n_text);
    o->n_text += t->n_text;
    if (t->of_prompt) {
        if (o->n_prompt == 0) o->first_prompt = t->index;
        assert_int_equal(t->index, o->first_prompt + o->n_prompt);
        o->prompt_id[o->n_prompt] = t->id, o->prompt_logprob[o->n_prompt] = t->logprob;
        o->prompt_greedy[o->n_prompt++] = t->greedy;
    } else if (t->id >= 0) {
        assert_int_equal(t->index, o->n);
        o->id[o->n] = t->id, o->logprob[o->n] = t->logprob, o->greedy[o->n] = t->greedy;
        for (uint32_t i = 0; i < t->n_top; i++)
            o->top[o->n][i] = t->top[i].id, o->top_logprob[o->n][i] = t->top[i].logprob;
        o->n++;
    }
    o->finish = t->finish;
    o->ends += t->finish != TM_GOES_ON;
}

static tm_engine *open_engine(const tm_engine_opts *opts) {
    tm_engine *e;
    RUN_EXPECT_STATUS(tm_engine_open(&e, opts));
    return e;
}

static void add(tm_engine *e, tm_request r, told *o) {
    uint64_t number;
    r.take = take, r.ctx = o;
    RUN_EXPECT_STATUS(tm_engine_add(e, &r, &number));
}

static void run_all(tm_engine *e) {
    bool busy = true;
    while (busy) RUN_EXPECT_STATUS(tm_engine_step(e, &busy));
}

/* ---- alone and in company --------------------------------------------------------------------------------------- */

enum { REQUESTS = 11 };
static const size_t lengths[REQUESTS] = {1, 7, 64, 65, 100, 3, 17, 100, 80, 101, 101};

/* Requests of every sort; the ids do not matter. The last four begin like the fifth. */
static tm_request request_of(uint32_t i, int32_t *prompt) {
    uint32_t like = i > 6 ? 4 : i;
    for (size_t k = 0; k < lengths[i]; k++) prompt[k] = (int32_t)((k * 37 + like * 11 + 5) % 256);
    if (i > 6) prompt[lengths[i] - i] = 3;
    tm_request r = {.prompt = prompt, .n_prompt = lengths[i], .max_new_tokens = 12, .ignore_eos = true, .top = TOPS};
    r.sampling.seed = i;
    if (i % 2) r.sampling.temperature = 0.9, r.sampling.top_p = 0.9;
    if (i == 3) r.sampling = (tm_sampling){.repetition_penalty = 1.3, .frequency_penalty = 0.2};
    if (i == 4 || i == 7) r.score_from = i * i - 11;
    if (i == 5) r.sampling = (tm_sampling){.temperature = 2, .top_k = 20, .min_p = 0.01, .seed = 7};
    return r;
}

static void same(const told *a, const told *b) {
    assert_int_equal(a->n, b->n);
    assert_int_equal(a->n_prompt, b->n_prompt);
    assert_int_equal(a->finish, b->finish);
    assert_memory_equal(a->id, b->id, a->n * sizeof *a->id);
    assert_memory_equal(a->logprob, b->logprob, a->n * sizeof *a->logprob);
    assert_memory_equal(a->top, b->top, sizeof a->top);
    assert_memory_equal(a->top_logprob, b->top_logprob, sizeof a->top_logprob);
    assert_memory_equal(a->prompt_logprob, b->prompt_logprob, sizeof a->prompt_logprob);
}

static void check_company(tm_dtype precision) {
    static told alone[REQUESTS], beside[REQUESTS];
    int32_t prompt[REQUESTS][MOST];
    memset(alone, 0, sizeof alone), memset(beside, 0, sizeof beside);
    tm_engine_opts one = {.model = LLAMA, .precision = precision, .precision_given = true, .positions = 128};
    tm_engine_opts many = one;
    many.sequences = 3, many.chunk = 64; /* prompts in pieces, some side by side; a queue */
    for (uint32_t i = 0; i < REQUESTS; i++) {
        tm_engine *e = open_engine(&one);
        add(e, request_of(i, prompt[i]), &alone[i]);
        run_all(e);
        assert_int_equal(alone[i].n, 12);
        tm_engine_close(e);
    }
    tm_engine *e = open_engine(&many);
    for (uint32_t i = 0; i < REQUESTS; i++) {
        bool busy;
        add(e, request_of(i, prompt[i]), &beside[i]);
        if (i % 3 == 0) RUN_EXPECT_STATUS(tm_engine_step(e, &busy)); /* some join while others answer */
    }
    run_all(e);
    tm_engine_counts c = tm_engine_count(e);
    assert_int_equal(c.running + c.waiting, 0);
    assert_true(c.shared_tokens > 150);
    tm_engine_close(e);
    for (uint32_t i = 0; i < REQUESTS; i++) same(&alone[i], &beside[i]);
}

/* ---- windows keep their window ---------------------------------------------------------------------------------- */

/* A folder's model with room for more positions than its golden values needed. */
static const char *longer(const char *model, const char *config) {
    const char *dir = run_dir();
    char *json = run_read(run_path(model, config), NULL), *at = strstr(json, "\"max_position_embeddings\": ");
    assert_non_null(at);
    size_t before = (size_t)(strchr(at, ':') - json) + 1;
    run_copy(run_path(model, "model.safetensors"), run_path(dir, "model.safetensors"));
    run_write(run_path(dir, "config.json"), run_format("%.*s 512%s", (int)before, json, strchr(at, ',')));
    free(json);
    return dir;
}

/* Prompts of up to 330 tokens, with what earlier ones began with, each said twice. */
static tm_request long_request(uint32_t i, uint32_t vocab, int32_t *prompt) {
    static const size_t length[] = {330, 300, 200, 331, 90, 330, 250, 332, 64, 320};
    static const size_t shared[] = {0, 280, 60, 325, 30, 329, 190, 331, 0, 319};
    size_t n = length[i % TM_COUNT(length)], like = shared[i % TM_COUNT(length)];
    for (size_t k = 0; k < n; k++) prompt[k] = (int32_t)((k * k + k * 37 + (k < like ? 0 : i * 11) + 5) % vocab);
    tm_request r = {.prompt = prompt, .n_prompt = n, .max_new_tokens = 20 + i, .ignore_eos = true, .top = TOPS};
    if (i % 3 == 1) r.score_from = n - 20;
    return r;
}

/* What its refusal at one byte names. */
static uint64_t least_of(tm_engine_opts opts) {
    tm_engine *e;
    opts.tiers.host_budget = 1;
    assert_int_equal(tm_engine_open(&e, &opts), TM_EBUDGET);
    uint64_t bytes = train_minimum(tm_error_get()->text);
    tm_error_clear();
    return bytes;
}

enum { LONG = 10 };
/* Alone, with a cache of all positions: a pass may have so many tokens. */
static void answer_alone(tm_engine_opts opts, uint32_t vocab, told *whole) {
    static int32_t prompt[MOST];
    opts.chunk = opts.positions, opts.sequences = 1;
    for (uint32_t i = 0; i < LONG; i++) {
        tm_engine *e = open_engine(&opts);
        add(e, long_request(i, vocab, prompt), &whole[i]);
        run_all(e);
        tm_engine_close(e);
    }
}

/* Side by side, some joining while others answer. */
static void answer_in_company(tm_engine *e, uint32_t vocab, told *beside) {
    static int32_t prompt[MOST];
    for (uint32_t i = 0; i < LONG; i++) {
        bool busy;
        add(e, long_request(i, vocab, prompt), &beside[i]);
        for (uint32_t k = 0; k < 2 * i; k++) RUN_EXPECT_STATUS(tm_engine_step(e, &busy));
    }
    run_all(e);
    assert_true(tm_engine_count(e).shared_tokens > 600);
}

/* With all in memory and whole, and with rings of 192 or pages in files. */
static void check_long(const char *model, tm_dtype precision, uint32_t vocab, const char *path) {
    static told whole[LONG], part[LONG];
    memset(whole, 0, sizeof whole), memset(part, 0, sizeof part);
    tm_engine_opts opts = {.model = model, .precision = precision, .precision_given = true, .positions = 400};
    answer_alone(opts, vocab, whole);
    opts.chunk = 64, opts.sequences = 3;
    opts.tiers.offload_path = path;
    if (path) opts.tiers.host_budget = least_of(opts);
    tm_engine *e = open_engine(&opts);
    answer_in_company(e, vocab, part);
    tm_engine_close(e);
    for (uint32_t i = 0; i < LONG; i++) same(&whole[i], &part[i]);
}

static uint64_t least(const char *model, uint32_t positions) {
    return least_of((tm_engine_opts){.model = model, .positions = positions, .chunk = 64, .sequences = 8});
}

/* Mistral's blocks all look through a window of 8; of Gemma 3's three one does not. 8 rows of 256 bytes a position. */
static void test_rings_memory(void **state) {
    (void)state;
    const char *mistral = longer(TM_TEST_FIXTURES "/arch_mistral", "config.json");
    const char *gemma3 = longer(TM_TEST_FIXTURES "/arch_gemma3", "config.json");
    assert_int_equal(least(mistral, 512), least(mistral, 192));
    assert_in_range(least(gemma3, 512) - least(gemma3, 256), 8 * 256 * 256, 8 * 256 * 256 + 4096);
}

static void test_rings(void **state) {
    (void)state;
    const char *gemma3 = longer(TM_TEST_FIXTURES "/arch_gemma3", "config.json");
    check_long(gemma3, TM_F32, 256, NULL);
    check_long(gemma3, TM_BF16, 256, NULL);
    check_long(longer(TM_TEST_FIXTURES "/arch_mistral", "config.json"), TM_F32, 256, NULL);
    check_long(longer(TM_TEST_FIXTURES "/arch_gemma4", "config.json"), TM_F32, 70, NULL);
}

/* ---- pages in files --------------------------------------------------------------------------------------------- */

/* Bytes of the cache's file below an offload path; 0: there is none. */
static uint64_t cache_file(const char *path) {
    glob_t found;
    struct stat st = {0};
    if (glob(run_format("%s/run-infer-*/kv_cache", path), 0, NULL, &found) == 0) {
        assert_int_equal(found.gl_pathc, 1);
        assert_int_equal(stat(found.gl_pathv[0], &st), 0);
    }
    globfree(&found);
    return (uint64_t)st.st_size;
}

static const tm_engine_opts small = {.model = LLAMA, .positions = 128, .chunk = 64, .sequences = 16};

static tm_engine *open_small(const char *path) {
    tm_engine_opts opts = small;
    opts.tiers.offload_path = path;
    opts.tiers.host_budget = least_of(opts);
    return open_engine(&opts);
}

/* With the least budget, whatever attention looks through and whoever shares whose keys. */
static void test_paged(void **state) {
    (void)state;
    const char *path = run_dir();
    check_long(longer(LLAMA, "config.json"), TM_F32, 256, path);
    check_long(longer(LLAMA, "config.json"), TM_BF16, 256, path);
    check_long(longer(TM_TEST_FIXTURES "/arch_gemma3", "config.json"), TM_F32, 256, path);
    check_long(longer(TM_TEST_FIXTURES "/arch_gemma4", "config.json"), TM_F32, 70, path);
    assert_int_equal(run_entries(path), 0);
}

/* The file has all pages that are not in memory; with it less memory is enough, and with much there is none. */
static void test_paged_counts(void **state) {
    (void)state;
    const uint64_t unit = (uint64_t)16 * 128 * 2 * 2 * 16 * sizeof(float); /* of two layers */
    const char *path = run_dir();
    tm_engine_opts opts = small;
    uint64_t in_memory = least_of(opts);
    tm_engine *e;
    opts.tiers.host_budget = in_memory - 1;
    assert_int_equal(tm_engine_open(&e, &opts), TM_EBUDGET);
    assert_non_null(strstr(tm_error_get()->text, "--offload-path"));
    tm_error_clear();
    opts.tiers.offload_path = path;
    uint64_t in_files = least_of(opts);
    assert_in_range(in_memory - in_files, unit / 2, 2 * unit); /* a page has a price, too */
    e = open_small(path);
    assert_int_equal(cache_file(path), 2 * unit);
    tm_engine_close(e);
    assert_int_equal(run_entries(path), 0);
    opts.tiers.host_budget = 2 * in_memory;
    e = open_engine(&opts);
    assert_int_equal(cache_file(path), 0);
    tm_engine_close(e);
}

/* What a killed one left is gone once the next one starts; what one that lives has stays. First of all tests: there are
 * no threads yet. */
static void test_paged_killed(void **state) {
    (void)state;
    static told o;
    int32_t prompt[] = {5, 6, 7};
    const char *path = run_dir();
    int status;
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        (void)open_small(path);
        (void)raise(SIGKILL);
    }
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    assert_int_equal(run_entries(path), 1);
    assert_true(cache_file(path) > 0);
    tm_engine *one = open_small(path);
    assert_int_equal(run_entries(path), 1);
    tm_engine *other = open_small(path);
    assert_int_equal(run_entries(path), 2);
    tm_engine_close(other);
    memset(&o, 0, sizeof o);
    add(one, (tm_request){.prompt = prompt, .n_prompt = 3, .max_new_tokens = 9, .ignore_eos = true}, &o);
    run_all(one);
    assert_int_equal(o.n, 9);
    tm_engine_close(one);
    assert_int_equal(run_entries(path), 0);
}

/* ---- in its types ----------------------------------------------------------------------------------------------- */

static void test_company_fp32(void **state) {
    (void)state;
    check_company(TM_F32);
}
static void test_company_bf16(void **state) {
    (void)state;
    check_company(TM_BF16);
}

/* Where OpenBLAS adds up rows by where they are. */
static void test_company_avx2(void **state) {
    (void)state;
    const char *given = getenv("TIDEMILL_ISA"), *forced = getenv("TIDEMILL_GEMM");
    if (given || !__builtin_cpu_supports("avx2")) TEST_SKIP("the CPU has no AVX2, or its kernels are chosen already");
    char *kept = forced ? strdup(forced) : NULL;
    drop_products_of_one_column();
    setenv("TIDEMILL_ISA", "avx2", 1);
    check_company(TM_F32);
    unsetenv("TIDEMILL_ISA");
    if (kept) setenv("TIDEMILL_GEMM", kept, 1);
    free(kept);
}

/* ---- log-probabilities ------------------------------------------------------------------------------------------ */

/* An answer of 8 tokens, which is in the prompt behind its first n, has the log-probabilities that it has there. */
static void read_again(tm_engine *e, const int32_t *prompt, size_t n, const told *o, told *again) {
    memset(again, 0, sizeof *again);
    add(e, (tm_request){.prompt = prompt, .n_prompt = n + 8, .score_from = n}, again);
    run_all(e);
    assert_int_equal(again->n, 0);
    assert_int_equal(again->n_prompt, 8);
    assert_int_equal(again->first_prompt, n);
    for (int i = 0; i < 8; i++) assert_true(fabsf(again->prompt_logprob[i] - o->logprob[i]) < 2e-5F);
}

/* PyTorch's, of a prompt; of answers: they are those of the answer read as a prompt. */
static void test_logprobs(void **state) {
    (void)state;
    enum { N = 32 };
    static told o, again;
    int32_t prompt[MOST];
    tm_st *golden = tensors_open(LLAMA "/golden.safetensors");
    size_t n;
    int64_t *ids = tensor_ints(golden, "input_ids", &n);
    tensor nll = tensor_read(golden, "token_nll");
    for (int i = 0; i < N; i++) prompt[i] = (int32_t)ids[i];
    tm_engine *e = open_engine(&(tm_engine_opts){.model = LLAMA, .positions = 64, .sequences = 2});
    tm_request r = {.prompt = prompt, .n_prompt = N, .max_new_tokens = 8, .ignore_eos = true, .score_from = 1};
    memset(&o, 0, sizeof o);
    add(e, r, &o);
    run_all(e);
    assert_int_equal(o.n_prompt, N - 1);
    assert_int_equal(o.first_prompt, 1);
    for (int i = 0; i < N - 1; i++) {
        assert_int_equal(o.prompt_id[i], prompt[i + 1]);
        if (nll.v[i] != 0) assert_true(fabsf(o.prompt_logprob[i] + nll.v[i]) < 2e-5F);
    }
    for (size_t i = 0; i < o.n; i++) prompt[N + i] = o.id[i];
    read_again(e, prompt, N, &o, &again);
    for (int i = 0; i < 8; i++) assert_true(again.prompt_greedy[i] && o.greedy[i]);
    memset(&o, 0, sizeof o);
    r.sampling.frequency_penalty = -50; /* the first token for ever: no penalty is in what is told */
    add(e, r, &o);
    run_all(e);
    for (size_t i = 0; i < o.n; i++) prompt[N + i] = o.id[i];
    for (int i = 1; i < 8; i++) assert_int_equal(o.id[i], o.id[0]);
    read_again(e, prompt, N, &o, &again);
    tm_engine_close(e);
    free(ids), free(nll.v);
    tm_st_close(golden);
}

/* ---- text ------------------------------------------------------------------------------------------------------- */

static tm_ids encode(tm_engine *e, const char *text) {
    tm_ids ids = {0};
    RUN_EXPECT_STATUS(tm_tokenizer_encode(tm_engine_text(e)->tokenizer, text, strlen(text), true, &ids));
    return ids;
}

/* Piece by piece it is the text of all ids; with a stop string it ends before that, wherever tokens do. */
static void test_text(void **state) {
    (void)state;
    static told whole, cut;
    tm_engine *e = open_engine(&(tm_engine_opts){.model = TINY, .positions = 200});
    tm_ids prompt = encode(e, "The tide");
    tm_request r = {.prompt = prompt.id, .n_prompt = prompt.n, .max_new_tokens = 60, .ignore_eos = true};
    r.sampling = (tm_sampling){.temperature = 3, .seed = 5}; /* all sorts of bytes */
    memset(&whole, 0, sizeof whole);
    add(e, r, &whole);
    run_all(e);
    tm_buf text = {0};
    RUN_EXPECT_STATUS(tm_tokenizer_decode(tm_engine_text(e)->tokenizer, whole.id, whole.n, true, &text));
    assert_int_equal(text.len, whole.n_text);
    assert_memory_equal(text.data, whole.text, text.len);
    assert_int_equal(whole.finish, TM_FINISH_LENGTH);
    for (size_t at = 20; at + 5 < text.len; at += 13) {
        char stop[6] = {0};
        const char *all[] = {"never there", stop};
        memcpy(stop, text.data + at, 5);
        if ((stop[0] & 0xC0) == 0x80 || (text.data[at + 5] & 0xC0) == 0x80) continue; /* no whole characters */
        size_t first = (size_t)((char *)memmem(text.data, text.len, stop, 5) - text.data);
        r.stop = all, r.n_stop = 2;
        memset(&cut, 0, sizeof cut);
        add(e, r, &cut);
        run_all(e);
        assert_int_equal(cut.n_text, first);
        assert_memory_equal(cut.text, text.data, first);
        assert_int_equal(cut.finish, TM_FINISH_STOP);
        assert_true(cut.n < whole.n || first + 5 > text.len - 8);
    }
    tm_buf_free(&text);
    tm_ids_free(&prompt);
    tm_engine_close(e);
}

/* What turns text into tokens is in the budget: about twice its file. */
static void test_text_memory(void **state) {
    (void)state;
    const char *dir = run_path(run_dir(), "model");
    size_t size;
    free(run_read(TINY "/tokenizer.json", &size));
    run_copy_model(TINY, dir);
    uint64_t with = least(dir, 64);
    run_remove(run_path(dir, "tokenizer.json"));
    assert_in_range(with - least(dir, 64), 2 * size, 4 * size);
}

/* ---- adapters --------------------------------------------------------------------------------------------------- */

#define PEFT TM_TEST_FIXTURES "/peft_base"
enum { ADAPTERS = 3, SEQ = 32, HALF = 4 };

/* peft_lora's first ranks, as a folder: scale 3 / 4. */
static const char *half_an_adapter(void) {
    const char *dir = run_dir();
    tm_st *from = tensors_open(TM_TEST_FIXTURES "/peft_lora/adapter_model.safetensors");
    tm_st_writer *w;
    uint32_t at[64], n = tm_st_count(from);
    float *half[64];
    assert_in_range(n, 1, 64);
    RUN_EXPECT_STATUS(tm_st_writer_create(&w, run_path(dir, "adapter_model.safetensors")));
    for (uint32_t i = 0; i < n; i++) {
        const tm_st_info *t = tm_st_get(from, i);
        tensor all = tensor_read(from, t->name);
        bool a = strstr(t->name, "lora_A") != NULL;
        uint64_t rows = a ? HALF : t->shape[0], columns = a ? t->shape[1] : HALF;
        half[i] = malloc(rows * columns * sizeof(float));
        for (uint64_t k = 0; k < rows * columns; k++) half[i][k] = all.v[k / columns * t->shape[1] + k % columns];
        RUN_EXPECT_STATUS(tm_st_writer_add(w, t->name, TM_FMT_F32, 2, (uint64_t[]){rows, columns}, &at[i]));
        free(all.v);
    }
    for (uint32_t i = 0; i < n; i++) {
        const tm_st_info *t = tm_st_get(from, i);
        uint64_t elements = strstr(t->name, "lora_A") ? HALF * t->shape[1] : t->shape[0] * HALF;
        RUN_EXPECT_STATUS(tm_st_writer_write_f32(w, at[i], 0, elements, half[i]));
        free(half[i]);
    }
    RUN_EXPECT_STATUS(tm_st_writer_commit(w));
    tm_st_close(from);
    run_write(run_path(dir, "adapter_config.json"),
              "{\"peft_type\": \"LORA\", \"r\": 4, \"lora_alpha\": 3, \"target_modules\": [\"q_proj\", \"k_proj\", "
              "\"v_proj\", \"o_proj\", \"gate_proj\", \"up_proj\", \"down_proj\"]}");
    return dir;
}

static tm_request scored(uint32_t adapter, int32_t *prompt) {
    tm_st *golden = tensors_open(PEFT "/golden.safetensors");
    size_t n;
    int64_t *ids = tensor_ints(golden, "input_ids", &n);
    for (size_t k = 0; k < SEQ; k++) prompt[k] = (int32_t)ids[k];
    free(ids);
    tm_st_close(golden);
    return (tm_request){.prompt = prompt,
                        .n_prompt = SEQ,
                        .max_new_tokens = 6,
                        .ignore_eos = true,
                        .score_from = 1,
                        .adapter = adapter};
}

/* Log-probabilities of the first row of a golden file's logits. */
static void check_logits(const char *folder, const int32_t *prompt, const told *o) {
    tm_st *golden = tensors_open(run_format("%s/golden.safetensors", folder));
    tensor l = tensor_read(golden, "logits");
    for (size_t k = 0; k + 1 < SEQ; k++) {
        double sum = 0;
        for (int v = 0; v < 256; v++) sum += exp((double)l.v[k * 256 + (size_t)v]);
        double want = (double)l.v[k * 256 + (size_t)prompt[k + 1]] - log(sum);
        if (!(fabs((double)o->prompt_logprob[k] - want) < 5e-5))
            fail_msg("%s, token %zu: %g, not %g", folder, k + 1, (double)o->prompt_logprob[k], want);
    }
    free(l.v);
    tm_st_close(golden);
}

/* PEFT's logits of each, and the base's own: requests of all of them side by side, several times each. */
static void test_adapters(void **state) {
    (void)state;
    static told o[2 * (ADAPTERS + 1)], half;
    const char *const adapters[ADAPTERS] = {TM_TEST_FIXTURES "/peft_lora", half_an_adapter(),
                                            TM_TEST_FIXTURES "/peft_rslora"};
    int32_t prompt[SEQ];
    memset(o, 0, sizeof o), memset(&half, 0, sizeof half);
    tm_engine_opts opts = {.model = PEFT, .positions = 64, .sequences = 3};
    tm_engine_opts alone = opts;
    opts.adapters = adapters, opts.n_adapters = ADAPTERS;
    alone.tiers.adapter = adapters[1];
    tm_engine *e = open_engine(&opts);
    for (uint32_t i = 0; i < TM_COUNT(o); i++) add(e, scored(i % (ADAPTERS + 1), prompt), &o[i]);
    run_all(e);
    tm_engine_close(e);
    for (uint32_t i = 0; i <= ADAPTERS; i++) same(&o[i], &o[i + ADAPTERS + 1]);
    check_logits(PEFT, prompt, &o[0]);
    check_logits(adapters[0], prompt, &o[1]);
    check_logits(adapters[2], prompt, &o[3]);
    e = open_engine(&alone);
    add(e, scored(0, prompt), &half);
    run_all(e);
    tm_engine_close(e);
    assert_memory_equal(half.id, o[2].id, sizeof half.id);
    for (size_t k = 0; k + 1 < SEQ; k++) assert_true(fabsf(half.prompt_logprob[k] - o[2].prompt_logprob[k]) < 2e-5F);
    assert_true(fabsf(half.prompt_logprob[3] - o[0].prompt_logprob[3]) > 1e-4F);
}

static void test_adapters_refused(void **state) {
    (void)state;
    const char *const dora[] = {TM_TEST_FIXTURES "/peft_lora", TM_TEST_FIXTURES "/peft_dora"};
    tm_engine *e;
    const tm_engine_opts opts = {.model = PEFT, .positions = 64, .adapters = dora, .n_adapters = 2};
    assert_int_equal(tm_engine_open(&e, &opts), TM_EUNSUPPORTED);
    assert_non_null(strstr(tm_error_get()->text, "use_dora"));
    tm_error_clear();
}

/* ---- several answers, cancelled ones, refusals ------------------------------------------------------------------- */

static void test_answers(void **state) {
    (void)state;
    static told three[3], one[3];
    int32_t prompt[] = {5, 6, 7};
    tm_engine *e = open_engine(&(tm_engine_opts){.model = LLAMA, .positions = 64, .sequences = 2});
    tm_request r = {.prompt = prompt, .n_prompt = 3, .max_new_tokens = 9, .answers = 3, .score_from = 1};
    r.sampling = (tm_sampling){.temperature = 1, .seed = 40};
    memset(three, 0, sizeof three), memset(one, 0, sizeof one);
    add(e, r, three);
    run_all(e);
    r.answers = 1;
    for (uint32_t i = 0; i < 3; i++) {
        r.sampling.seed = 40 + i;
        r.score_from = i ? 0 : 1;
        add(e, r, &one[i]);
        run_all(e);
        same(&one[i], &three[i]);
    }
    assert_memory_not_equal(three[0].id, three[1].id, sizeof three[0].id);
    tm_engine_close(e);
}

static void test_cancelled(void **state) {
    (void)state;
    static told runs, waits, goes_on;
    int32_t prompt[] = {5, 6, 7};
    bool busy;
    uint64_t number[2];
    tm_engine *e = open_engine(&(tm_engine_opts){.model = LLAMA, .positions = 64});
    tm_request r = {.prompt = prompt, .n_prompt = 3, .max_new_tokens = 9, .ignore_eos = true, .take = take};
    memset(&runs, 0, sizeof runs), memset(&waits, 0, sizeof waits), memset(&goes_on, 0, sizeof goes_on);
    r.ctx = &runs;
    RUN_EXPECT_STATUS(tm_engine_add(e, &r, &number[0]));
    r.ctx = &waits;
    RUN_EXPECT_STATUS(tm_engine_add(e, &r, &number[1]));
    add(e, r, &goes_on);
    for (int i = 0; i < 3; i++) RUN_EXPECT_STATUS(tm_engine_step(e, &busy));
    tm_engine_cancel(e, number[0]), tm_engine_cancel(e, number[1]);
    run_all(e);
    assert_int_equal(runs.finish, TM_FINISH_CANCELLED);
    assert_int_equal(waits.finish, TM_FINISH_CANCELLED);
    assert_int_equal(runs.n, 3);
    assert_int_equal(waits.n, 0);
    assert_int_equal(goes_on.n, 9);
    tm_engine_close(e);
}

static void refused(tm_engine *e, tm_request r, const char *why) {
    uint64_t number;
    assert_int_equal(tm_engine_add(e, &r, &number), TM_EINPUT);
    if (!strstr(tm_error_get()->text, why)) fail_msg("%s, not: %s", why, tm_error_get()->text);
    tm_error_clear();
}

static void test_refusals(void **state) {
    (void)state;
    static const char *const empty[] = {""}, *const broken[] = {"\xff"};
    int32_t prompt[] = {5, 6, 256}, good[] = {5, 6, 7};
    tm_engine *e = open_engine(&(tm_engine_opts){.model = LLAMA, .positions = 10}), *t;
    tm_request r = {.prompt = good, .n_prompt = 3, .max_new_tokens = 7}, x;
    x = r, x.n_prompt = 0, refused(e, x, "empty");
    x = r, x.prompt = prompt, refused(e, x, "token 2");
    x = r, x.max_new_tokens = 8, refused(e, x, "room for 10");
    x = r, x.top = 21, refused(e, x, "at most 20");
    x = r, x.adapter = 1, refused(e, x, "adapter 1");
    x = r, x.sampling.temperature = -1, refused(e, x, "temperature");
    x = r, x.sampling.temperature = NAN, refused(e, x, "temperature");
    x = r, x.sampling.top_p = 1.5, refused(e, x, "top_p");
    x = r, x.sampling.repetition_penalty = -1, refused(e, x, "repetition_penalty");
    x = r, x.n_stop = 1, x.stop = empty, refused(e, x, "tokenizer.json");
    t = open_engine(&(tm_engine_opts){.model = TINY, .positions = 10});
    refused(t, x, "stop string 1");
    x.stop = broken, refused(t, x, "stop string 1");
    tm_engine_close(t);
    tm_engine_close(e);
}

int main(int argc, char **argv) {
    if (argc > 1) cmocka_set_test_filter(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(test_paged_killed, run_clean),
        cmocka_unit_test(test_company_fp32),
        cmocka_unit_test(test_company_bf16),
        cmocka_unit_test(test_company_avx2),
        cmocka_unit_test_teardown(test_rings, run_clean),
        cmocka_unit_test_teardown(test_paged, run_clean),
        cmocka_unit_test_teardown(test_paged_counts, run_clean),
        cmocka_unit_test_teardown(test_rings_memory, run_clean),
        cmocka_unit_test(test_logprobs),
        cmocka_unit_test(test_text),
        cmocka_unit_test_teardown(test_text_memory, run_clean),
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_cancelled),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test_teardown(test_adapters, run_clean),
        cmocka_unit_test(test_adapters_refused),
    };
    return cmocka_run_group_tests_name("engine", tests, NULL, NULL);
}
