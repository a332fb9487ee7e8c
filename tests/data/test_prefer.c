/* Preference rows: every form against rows written by hand, cuts, KTO's mismatched rows, rows of ids. */
#include "by_hand.h"
#include "golden_lines.h"

#include <stdlib.h>

#define USER(text) "<|im_start|>user\n" text "<|im_end|>\n"
#define SYSTEM(text) "<|im_start|>system\n" text "<|im_end|>\n"
#define TO_ANSWER "<|im_start|>assistant\n"
#define ANSWER(text) text "<|im_end|>\n"

enum { ROOM = 2048, ROWS = 16 };

/* A micro-batch with all of its columns. */
typedef struct batch {
    int32_t ids[ROOM], labels[ROOM];
    uint8_t mask[ROOM], completion[ROOM], desirable[ROWS];
    uint64_t sample[ROWS];
    tm_batch_shape shape;
} batch;

static tm_batch_arrays columns(batch *b) {
    memset(b, 0x55, sizeof *b);
    return (tm_batch_arrays){.capacity = ROOM,
                             .ids = b->ids,
                             .labels = b->labels,
                             .key_mask = b->mask,
                             .completion = b->completion,
                             .desirable = b->desirable,
                             .sample = b->sample};
}

static void draw(tm_dataset *ds, uint64_t step, uint32_t k, uint32_t rank, batch *b) {
    tm_batch_arrays to = columns(b);
    assert_int_equal(tm_dataset_batch(ds, step, k, rank, &to, &b->shape), TM_OK);
}

/* Row r is `prompt`, then `completion`, which is learned; `whole`: the prompt, too. */
static void check_row(const batch *b, uint32_t r, const char *prompt, const char *completion, bool whole) {
    int32_t want[ROOM];
    size_t p = ids_of(prompt, want), n = p + ids_of(completion, want + p), at = (size_t)r * b->shape.seq;
    assert_true(n <= b->shape.seq);
    assert_memory_equal(b->ids + at, want, n * sizeof *want);
    for (size_t t = 0; t < b->shape.seq; t++) {
        bool of_completion = t + 1 >= p && t + 1 < n, of_row = t + 1 < n;
        assert_int_equal(b->mask[at + t], t < n);
        assert_int_equal(b->completion[at + t], of_completion);
        assert_int_equal(b->labels[at + t], of_completion || (whole && of_row) ? want[t + 1] : X);
    }
}

static tm_dataset_opts of_kind(tm_rows rows) {
    tm_dataset_opts opts = defaults();
    opts.rows = rows;
    opts.strict = true;
    return opts;
}

/* ---- pairs ------------------------------------------------------------------------------------------------------ */

static void check_pair(const char *line, const char *prompt, const char *chosen, const char *rejected) {
    tm_dataset_opts opts = of_kind(TM_ROWS_PAIRS);
    tm_dataset *ds = open_text(line, &opts);
    const tm_dataset_counts *n = tm_dataset_get_counts(ds);
    batch b;
    assert_int_equal(n->samples, 1);
    assert_int_equal(tm_dataset_set_batches(ds, 1, 1, 1), TM_OK);
    draw(ds, 0, 0, 0, &b);
    assert_int_equal(b.shape.rows, 2);
    assert_int_equal(b.shape.samples, 1);
    assert_int_equal(b.shape.mask_tokens, n->tokens);
    assert_int_equal(b.shape.label_tokens, n->label_tokens);
    check_row(&b, 0, prompt, chosen, false);
    check_row(&b, 1, prompt, rejected, false);
    assert_int_equal(b.desirable[0] + b.desirable[1], 0);
    tm_dataset_close(ds);
}

#define SAYS(role, text) "{\"role\": \"" role "\", \"content\": \"" text "\"}"
#define FROM(role, text) "{\"from\": \"" role "\", \"value\": \"" text "\"}"

static void test_text_pairs(void **state) {
    (void)state;
    check_pair("{\"prompt\": \"2+2=\", \"chosen\": \" 4\", \"rejected\": \" 55\"}", "<bos>2+2=", " 4<eos>", " 55<eos>");
    check_pair("{\"prompt\": \"p\", \"chosen\": \"c<eos>\", \"rejected\": \"r\"}", "<bos>p", "c<eos>", "r<eos>");
    /* "ab" straddles the border: prompt and chosen part where "a" is no token of its own, and so does the other row */
    check_pair("{\"prompt\": \"xa\", \"chosen\": \"by\", \"rejected\": \"z\"}", "<bos>x", "aby<eos>", "az<eos>");
    check_pair("{\"prompt\": \"\", \"chosen\": \"c\", \"rejected\": \"r\"}", "<bos>", "c<eos>", "r<eos>");
    /* what both begin with is the prompt, without the space at its end */
    check_pair("{\"chosen\": \"a sea of tea\", \"rejected\": \"a sea of salt\"}", "<bos>a sea of", " tea<eos>",
               " salt<eos>");
    check_pair("{\"chosen\": \"one\", \"rejected\": \"onetwo\"}", "<bos>on", "e<eos>", "etwo<eos>");
    check_pair("{\"chosen\": \"\\u00e9\", \"rejected\": \"\\u00e8\"}", "<bos>", "\xC3\xA9<eos>", "\xC3\xA8<eos>");
}

static void test_message_pairs(void **state) {
    static const char prompt[] = USER("hi") TO_ANSWER, yes[] = ANSWER("cab"), no[] = ANSWER("no");
    (void)state;
    check_pair("{\"prompt\": [" SAYS("user", "hi") "], \"chosen\": [" SAYS(
                   "assistant", "cab") "],"
                                       " \"rejected\": [" SAYS("assistant", "no") "]}",
               prompt, yes, no);
    check_pair("{\"chosen\": [" SAYS("user", "hi") ", " SAYS(
                   "assistant", "cab") "],"
                                       " \"rejected\": [{\"content\": \"hi\", \"role\": \"user\"}, " SAYS("assistant",
                                                                                                          "no") "]}",
               prompt, yes, no);
    /* the prompt once more as text, as UltraFeedback has it */
    check_pair("{\"prompt\": \"hi\", \"chosen\": [" SAYS("user", "hi") ", " SAYS(
                   "assistant", "cab") "],"
                                       " \"rejected\": [" SAYS("user", "hi") ", " SAYS("assistant", "no") "]}",
               prompt, yes, no);
    check_pair(
        "{\"prompt\": \"hi\", \"chosen\": [" SAYS("assistant", "cab") "],"
                                                                      " \"rejected\": [" SAYS("assistant", "no") "]}",
        prompt, yes, no);
    check_pair("{\"prompt\": [" SAYS("user", "hi") "], \"chosen\": \"cab\", \"rejected\": " SAYS("assistant", "no") "}",
               prompt, yes, no);
    /* one conversation is the other's beginning: its last message is its answer */
    check_pair("{\"chosen\": [" SAYS("user", "hi") ", " SAYS("assistant",
                                                             "cab") "],"
                                                                    " \"rejected\": [" SAYS("user", "hi") ", " SAYS(
                                                                        "assistant", "cab") ", " SAYS("user", "x") "]}",
               prompt, yes, ANSWER("cab") USER("x"));
}

/* ms-swift's: the answer is what follows the last user's message. */
static void test_rejected_response(void **state) {
    static const char prompt[] = SYSTEM("s") USER("1") TO_ANSWER ANSWER("2") USER("3") TO_ANSWER;
    (void)state;
#define TALK SAYS("user", "1") ", " SAYS("assistant", "2") ", " SAYS("user", "3") ", " SAYS("assistant", "4")
    check_pair("{\"system\": \"s\", \"messages\": [" TALK "], \"rejected_response\": \"5\"}", prompt, ANSWER("4"),
               ANSWER("5"));
    check_pair("{\"messages\": [" SAYS("system", "s") ", " TALK
                                                      "], \"rejected_response\": [" SAYS("assistant", "5") "]}",
               prompt, ANSWER("4"), ANSWER("5"));
    check_pair("{\"messages\": [" SAYS("user", "3") ", " SAYS("assistant", "4") "], \"rejected_messages\": [" SAYS(
                   "user", "3") ", " SAYS("assistant", "5") "]}",
               USER("3") TO_ANSWER, ANSWER("4"), ANSWER("5"));
    check_pair("{\"query\": \"3\", \"response\": \"4\", \"rejected_response\": \"5\"}", USER("3") TO_ANSWER,
               ANSWER("4"), ANSWER("5"));
}

/* LLaMA-Factory's, and columns that others have. */
static void test_older_pairs(void **state) {
    (void)state;
    check_pair("{\"conversations\": [" FROM("system", "s") ", " FROM("human", "q") "], \"chosen\": " FROM(
                   "gpt", "y") ", \"rejected\": " FROM("gpt", "n") "}",
               SYSTEM("s") USER("q") TO_ANSWER, ANSWER("y"), ANSWER("n"));
    check_pair(
        "{\"instruction\": \"go\", \"input\": \"on\", \"chosen\": \"y\", \"rejected\": \"n\", \"system\": \"s\"}",
        SYSTEM("s") USER("go\non") TO_ANSWER, ANSWER("y"), ANSWER("n"));
    check_pair("{\"instruction\": \"q\", \"chosen_response\": \"y\", \"rejected_response\": \"n\"}",
               USER("q") TO_ANSWER, ANSWER("y"), ANSWER("n"));
    check_pair("{\"system\": \"\", \"question\": \"q\", \"chosen\": \"y\", \"rejected\": \"n\"}", USER("q") TO_ANSWER,
               ANSWER("y"), ANSWER("n"));
}

static void check_bad(tm_rows rows, const char *line, const char *says) {
    tm_dataset_opts opts = of_kind(rows);
    tm_dataset *ds;
    assert_int_equal(open_bytes(&ds, line, strlen(line), &opts), TM_EINPUT);
    assert_null(ds);
    if (!strstr(tm_error_get()->text, says)) fail_msg("%s: %s", line, tm_error_get()->text);
    assert_non_null(strstr(tm_error_get()->text, "train.jsonl:1: "));
    tm_error_clear();
}

/* What LLaMA-Factory's converters make of dataset_info.json's `ranking: true` (its data/converter.py): ShareGPT conversations of
 * an odd number of turns with an answer each, alpaca columns with a history; a `system` column, or the first turn. */
static void test_factory(void **state) {
    (void)state;
#define ASKED FROM("human", "1") ", " FROM("gpt", "2") ", " FROM("human", "3")
#define BOTH(yes, no) "\"chosen\": " FROM("gpt", yes) ", \"rejected\": " FROM("gpt", no)
    check_pair("{\"conversations\": [" ASKED "], " BOTH("y", "n") ", \"system\": \"s\", \"tools\": \"\"}",
               SYSTEM("s") USER("1") TO_ANSWER ANSWER("2") USER("3") TO_ANSWER, ANSWER("y"), ANSWER("n"));
    check_pair("{\"conversations\": [" FROM("system", "t") ", " ASKED "], " BOTH("y", "n") ", \"system\": \"s\"}",
               SYSTEM("t") USER("1") TO_ANSWER ANSWER("2") USER("3") TO_ANSWER, ANSWER("y"), ANSWER("n"));
    check_pair("{\"messages\": [" SAYS("user", "3") "], \"chosen\": " SAYS("assistant", "y") ", \"rejected\": " SAYS(
                   "assistant", "n") "}",
               USER("3") TO_ANSWER, ANSWER("y"), ANSWER("n"));
    check_pair("{\"instruction\": \"3\", \"input\": \"\", \"history\": [[\"1\", \"2\"]], \"chosen\": \"y\", "
               "\"rejected\": \"n\"}",
               USER("1") TO_ANSWER ANSWER("2") USER("3") TO_ANSWER, ANSWER("y"), ANSWER("n"));
    /* what it drops */
    check_bad(TM_ROWS_PAIRS, "{\"conversations\": [" FROM("human", "1") ", " FROM("gpt", "2") "], " BOTH("y", "n") "}",
              "\"chosen\" ends with no turn that it answers");
    check_bad(TM_ROWS_PAIRS, "{\"conversations\": [" FROM("system", "1") "], " BOTH("y", "n") "}", "ends with no turn");
    check_bad(TM_ROWS_PAIRS,
              "{\"conversations\": [" ASKED
              "], \"chosen\": " FROM("gpt", "y") ", \"rejected\": " FROM("human", "n") "}",
              "\"rejected\" is no turn of the assistant's");
    check_bad(TM_ROWS_PAIRS, "{\"conversations\": [" ASKED "], \"chosen\": {\"value\": \"y\"}, \"rejected\": {}}",
              "\"chosen\" is no turn of the assistant's");
    check_bad(TM_ROWS_LABELLED, "{\"conversations\": [], " BOTH("y", "n") "}", "no message before");
}

/* Turns of calls and of what they gave, where the template shows them: an answer may be a call. */
static void test_factory_calls(void **state) {
    static const char template[] =
        "{% for m in messages %}{% if m.tool_calls %}<|im_start|>{{ m.role }}:{{ m.tool_calls[0].function.name }}"
        "<|im_end|>{% else %}<|im_start|>{{ m.role }}:{{ m.content }}<|im_end|>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant:{% endif %}";
    tm_chat *of_the_others = chat;
    (void)state;
#define CALL "{\"from\": \"function_call\", \"value\": \"{\\\"name\\\": \\\"f\\\", \\\"arguments\\\": {}}\"}"
    assert_int_equal(tm_chat_open(&chat, tokenizer, template, sizeof template - 1, "calls", NULL), TM_OK);
    check_pair("{\"conversations\": [" FROM("human", "h") ", " CALL
                                                          ", " FROM("observation", "7") "], " BOTH("y", "n") "}",
               "<|im_start|>user:h<|im_end|><|im_start|>assistant:f<|im_end|><|im_start|>tool:7<|im_end|>"
               "<|im_start|>assistant:",
               "y<|im_end|>", "n<|im_end|>");
    check_pair("{\"conversations\": [" FROM("human", "h") "], \"chosen\": " CALL
                                                          ", \"rejected\": " FROM("gpt", "n") "}",
               "<|im_start|>user:h<|im_end|><|im_start|>assistant:", "f<|im_end|>", "n<|im_end|>");
    tm_chat_close(chat);
    chat = of_the_others;
}

/* A template that is told of tools, and of what the line wants. */
static void test_beside(void **state) {
    static const char template[] = "{% if tools %}{{ tools | tojson }}{% endif %}{{ mood }}{% for m in messages %}"
                                   "<|im_start|>{{ m.role }}:{{ m.content }}<|im_end|>{% endfor %}"
                                   "{% if add_generation_prompt %}<|im_start|>assistant:{% endif %}";
    tm_chat *of_the_others = chat;
    (void)state;
    assert_int_equal(tm_chat_open(&chat, tokenizer, template, sizeof template - 1, "tools", NULL), TM_OK);
    check_pair(
        "{\"tools\": \"[{\\\"t\\\": 1}]\", \"chat_template_kwargs\": {\"mood\": \"!\"}, \"prompt\": [" SAYS(
            "user", "u") "], \"chosen\": [" SAYS("assistant", "y") "], \"rejected\": [" SAYS("assistant", "n") "]}",
        "[{\"t\": 1}]!<|im_start|>user:u<|im_end|><|im_start|>assistant:", "y<|im_end|>", "n<|im_end|>");
    tm_chat_close(chat);
    chat = of_the_others;
}

/* ORPO's: labels on all of a chosen row; the completion is marked as before. */
static void test_labels_of_prompt(void **state) {
    tm_dataset_opts opts = of_kind(TM_ROWS_PAIRS);
    batch b;
    (void)state;
    opts.labels_of_prompt = true;
    tm_dataset *ds = open_text("{\"prompt\": \"pq\", \"chosen\": \"c\", \"rejected\": \"r\"}", &opts);
    assert_int_equal(tm_dataset_set_batches(ds, 1, 1, 1), TM_OK);
    draw(ds, 0, 0, 0, &b);
    check_row(&b, 0, "<bos>pq", "c<eos>", true);
    check_row(&b, 1, "<bos>pq", "r<eos>", false);
    assert_int_equal(b.shape.label_tokens, 4 + 2);
    tm_dataset_close(ds);
}

/* ---- labelled rows ---------------------------------------------------------------------------------------------- */

typedef struct labelled {
    const char *prompt, *completion;
    bool desirable;
} labelled;

static void check_labelled(const char *line, const labelled *want, uint32_t n) {
    tm_dataset_opts opts = of_kind(TM_ROWS_LABELLED);
    tm_dataset *ds = open_text(line, &opts);
    uint64_t desirable = 0;
    batch b;
    assert_int_equal(tm_dataset_get_counts(ds)->samples, n);
    assert_int_equal(tm_dataset_set_batches(ds, n, 1, 1), TM_OK);
    draw(ds, 0, 0, 0, &b);
    assert_int_equal(b.shape.rows, n);
    for (uint32_t i = 0; i < n; i++) {
        check_row(&b, i, want[i].prompt, want[i].completion, false);
        assert_int_equal(b.desirable[i], want[i].desirable);
        assert_int_equal(b.sample[i], i);
        desirable += want[i].desirable;
    }
    assert_int_equal(tm_dataset_get_counts(ds)->desirable, desirable);
    tm_dataset_close(ds);
}

static void test_labelled(void **state) {
    (void)state;
    check_labelled(
        "{\"prompt\": \"p\", \"completion\": \"y\", \"label\": true}\n"
        "{\"prompt\": \"p\", \"completion\": \"n\", \"label\": false}\n"
        "{\"prompt\": [" SAYS("user", "u") "], \"completion\": [" SAYS(
            "assistant", "a") "], \"label\": true}\n"
                              "{\"messages\": [" SAYS("user", "u") ", " SAYS(
                                  "assistant",
                                  "a") "], \"label\": 0}\n"
                                       "{\"conversations\": [" FROM("human", "u") ", " FROM(
                                           "gpt",
                                           "a") "], \"kto_tag\": true}\n"
                                                "{\"instruction\": \"u\", \"output\": \"a\", \"kto_tag\": false}\n",
        (labelled[]){{"<bos>p", "y<eos>", true},
                     {"<bos>p", "n<eos>", false},
                     {USER("u") TO_ANSWER, ANSWER("a"), true},
                     {USER("u") TO_ANSWER, ANSWER("a"), false},
                     {USER("u") TO_ANSWER, ANSWER("a"), true},
                     {USER("u") TO_ANSWER, ANSWER("a"), false}},
        6);
}

/* A pair is two labelled samples; each has the prompt that its own completion leaves. */
static void test_unpaired(void **state) {
    (void)state;
    check_labelled("{\"prompt\": \"xa\", \"chosen\": \"by\", \"rejected\": \"z\"}",
                   (labelled[]){{"<bos>x", "aby<eos>", true}, {"<bos>xa", "z<eos>", false}}, 2);
}

/* ---- bad lines -------------------------------------------------------------------------------------------------- */

static void test_bad_lines(void **state) {
    (void)state;
    check_bad(TM_ROWS_PAIRS, "{\"text\": \"x\"}", "no pair");
    check_bad(TM_ROWS_PAIRS, "[1]", "not a JSON object");
    check_bad(TM_ROWS_PAIRS, "{\"prompt\": \"p\", \"chosen\": \"c\"}", "no \"rejected\"");
    check_bad(TM_ROWS_PAIRS, "{\"prompt\": \"p\", \"rejected\": \"c\", \"chosen\": null}", "no \"chosen\"");
    check_bad(TM_ROWS_PAIRS, "{\"prompt\": \"p\", \"chosen\": \"\", \"rejected\": \"r\"}", "\"chosen\" is empty");
    check_bad(TM_ROWS_PAIRS, "{\"prompt\": [" SAYS("user", "u") "], \"chosen\": \"c\", \"rejected\": []}",
              "\"rejected\" is empty");
    check_bad(TM_ROWS_PAIRS, "{\"prompt\": [], \"chosen\": \"c\", \"rejected\": \"r\"}", "no message before");
    check_bad(TM_ROWS_PAIRS, "{\"prompt\": 7, \"chosen\": \"c\", \"rejected\": \"r\"}", "neither text nor messages");
    check_bad(TM_ROWS_PAIRS, "{\"prompt\": \"p\", \"chosen\": \"c\", \"rejected\": 7}", "neither text nor messages");
    check_bad(TM_ROWS_PAIRS, "{\"chosen\": [" SAYS("user", "u") "], \"rejected\": [" SAYS("user", "v") "]}",
              "do not begin with the same message");
    check_bad(TM_ROWS_PAIRS, "{\"chosen\": \"c\", \"rejected\": []}", "not both text");
    check_bad(TM_ROWS_PAIRS, "{\"rejected_response\": \"r\"}", "without what it answers");
    check_bad(TM_ROWS_PAIRS, "{\"messages\": [" SAYS("user", "u") "], \"rejected_response\": \"r\"}",
              "no answer after");
    check_bad(TM_ROWS_LABELLED, "{\"prompt\": \"p\", \"completion\": \"c\"}", "no \"label\"");
    check_bad(TM_ROWS_LABELLED, "{\"prompt\": \"p\", \"completion\": \"c\", \"label\": \"yes\"}",
              "\"label\" is neither true nor false");
    check_bad(TM_ROWS_LABELLED, "{\"prompt\": \"p\", \"completion\": \"c\", \"label\": 2}", "neither true nor false");
    check_bad(TM_ROWS_LABELLED, "{\"completion\": \"c\", \"label\": true}", "no \"prompt\"");
    check_bad(TM_ROWS_LABELLED, "{\"prompt\": \"p\", \"completion\": \"\", \"label\": true}", "is empty");
}

static void check_options(const tm_dataset_opts *opts, const char *says) {
    static const char line[] = "{\"prompt\": \"p\", \"chosen\": \"c\", \"rejected\": \"r\"}";
    tm_dataset *ds;
    assert_int_equal(open_bytes(&ds, line, sizeof line - 1, opts), TM_EINPUT);
    if (!strstr(tm_error_get()->text, says)) fail_msg("%s", tm_error_get()->text);
    tm_error_clear();
}

static void test_options(void **state) {
    tm_dataset_opts opts = of_kind(TM_ROWS_PAIRS);
    (void)state;
    opts.labels.train_on_inputs = true;
    check_options(&opts, "train_on_inputs");
    opts.labels = (tm_chat_labels){.mask_history = true};
    check_options(&opts, "mask_history");
    opts.labels = (tm_chat_labels){0};
    opts.format = TM_DATA_TEXT;
    check_options(&opts, "format text");
    opts.format = TM_DATA_AUTO;
    opts.packing = true;
    check_options(&opts, "packing");
}

/* Bad lines are left out, and what is strange but can be used is counted. */
static void test_counts(void **state) {
    tm_dataset_opts opts = of_kind(TM_ROWS_PAIRS);
    (void)state;
    opts.strict = false;
    tm_dataset *ds = open_text("{\"prompt\": \"p\", \"chosen\": \"same\", \"rejected\": \"same\"}\n\n"
                               "{\"prompt\": \"p\", \"chosen\": \"c\"}\n"
                               "{\"prompt\": \"p\", \"chosen\": \"c\", \"rejected\": \"rr\"}\n",
                               &opts);
    const tm_dataset_counts *n = tm_dataset_get_counts(ds);
    assert_int_equal(n->lines, 3);
    assert_int_equal(n->samples, 2);
    assert_int_equal(n->bad, 1);
    assert_int_equal(n->first_bad_line, 3);
    assert_int_equal(n->identical, 1);
    assert_int_equal(n->tokens, 7 + 7 + 4 + 5);
    assert_int_equal(n->label_tokens, 5 + 5 + 2 + 3);
    assert_int_equal(n->longest, 7);
    tm_dataset_close(ds);
}

/* ---- cuts ------------------------------------------------------------------------------------------------------- */

static void check_cut(const char *line, tm_rows rows, uint32_t seq_len, const labelled *want, uint32_t n) {
    tm_dataset_opts opts = of_kind(rows);
    batch b;
    opts.seq_len = seq_len;
    tm_dataset *ds = open_text(line, &opts);
    assert_int_equal(tm_dataset_get_counts(ds)->truncated, 1);
    assert_int_equal(tm_dataset_set_batches(ds, 8, 1, 1), TM_OK);
    draw(ds, 0, 0, 0, &b);
    assert_int_equal(b.shape.rows, n);
    for (uint32_t i = 0; i < n; i++) check_row(&b, i, want[i].prompt, want[i].completion, false);
    tm_dataset_close(ds);
}

static void test_cuts(void **state) {
    static const char line[] = "{\"prompt\": \"12345\", \"chosen\": \"c\", \"rejected\": \"6789\"}";
    tm_dataset_opts opts = of_kind(TM_ROWS_PAIRS);
    tm_dataset *ds;
    (void)state;
    /* the prompt first, as much as the longer answer needs */
    check_cut(line, TM_ROWS_PAIRS, 8, (labelled[]){{"345", "c<eos>", 0}, {"345", "6789<eos>", 0}}, 2);
    /* of the prompt a token stays, which the completion's first is told by; then the end of the completion goes */
    check_cut(line, TM_ROWS_PAIRS, 4, (labelled[]){{"5", "c<eos>", 0}, {"5", "678", 0}}, 2);
    check_cut("{\"prompt\": \"12345\", \"completion\": \"67\", \"label\": true}", TM_ROWS_LABELLED, 5,
              (labelled[]){{"45", "67<eos>", true}}, 1);
    opts.seq_len = 8;
    opts.overlong = TM_OVERLONG_ERROR;
    assert_int_equal(open_bytes(&ds, line, strlen(line), &opts), TM_EINPUT);
    assert_non_null(strstr(tm_error_get()->text, "train.jsonl:1: 11 tokens, but seq_len is 8"));
    tm_error_clear();
    opts.overlong = TM_OVERLONG_DROP;
    assert_int_equal(open_bytes(&ds, line, strlen(line), &opts), TM_EINPUT);
    assert_non_null(strstr(tm_error_get()->text, "1 longer than seq_len"));
    tm_error_clear();
}

/* ---- order ------------------------------------------------------------------------------------------------------ */

/* Pairs "000", "001", ...: each once an epoch, both rows side by side, whatever the batches. */
static void check_pairs_once(tm_dataset *ds, uint32_t n, uint32_t B, uint32_t A, uint32_t R) {
    uint8_t seen[64] = {0};
    batch b;
    assert_int_equal(tm_dataset_set_batches(ds, B, A, R), TM_OK);
    uint64_t steps = tm_dataset_steps_per_epoch(ds), place = 0;
    tm_batch_limits limits;
    assert_int_equal(steps, (n + A * B * R - 1) / (A * B * R));
    tm_dataset_limits(ds, 0, steps, &limits);
    assert_int_equal(limits.rows, 2 * B);
    for (uint64_t s = 0; s < steps; s++)
        for (uint32_t k = 0; k < A; k++)
            for (uint32_t r = 0; r < R; r++) {
                draw(ds, s, k, r, &b);
                assert_true(b.shape.seq <= limits.seq && b.shape.tokens <= limits.tokens);
                assert_int_equal(b.shape.rows, 2 * b.shape.samples);
                for (uint32_t i = 0; i < b.shape.rows; i++) {
                    const int32_t *row = b.ids + (size_t)i * b.shape.seq;
                    uint64_t number = (uint64_t)((row[1] - '0') * 10 + row[2] - '0');
                    assert_int_equal(b.sample[i], number);
                    assert_int_equal(number, tm_dataset_order(ds, 0, place + i / 2));
                    assert_int_equal(row[3], i % 2 ? 'r' : 'c');
                    seen[number]++;
                }
                place += b.shape.samples;
            }
    for (uint32_t i = 0; i < n; i++) assert_int_equal(seen[i], 2);
}

static void test_order_of_pairs(void **state) {
    enum { N = 23 };
    tm_dataset_opts opts = of_kind(TM_ROWS_PAIRS);
    tm_buf file = {0};
    (void)state;
    opts.shuffle = true;
    opts.seed = 5;
    for (unsigned i = 0; i < N; i++)
        assert_int_equal(tm_buf_printf(&file, "{\"prompt\": \"%02u\", \"chosen\": \"c%.*s\", \"rejected\": \"r\"}\n", i,
                                       (int)(i % 7), "......."),
                         TM_OK);
    tm_dataset *ds = open_text(file.data, &opts);
    check_pairs_once(ds, N, 1, 1, 1);
    check_pairs_once(ds, N, 2, 3, 1);
    check_pairs_once(ds, N, 3, 1, 2);
    tm_dataset_close(ds);
    tm_buf_free(&file);
}

/* ---- mismatched rows -------------------------------------------------------------------------------------------- */

static const char numbered[] = "{\"prompt\": \"000\", \"completion\": \"a\", \"label\": true}\n"
                               "{\"prompt\": \"11\", \"completion\": \"bb\", \"label\": false}\n"
                               "{\"prompt\": \"2\", \"completion\": \"ccc\", \"label\": true}\n"
                               "{\"prompt\": \"3333\", \"completion\": \"d\", \"label\": true}\n"
                               "{\"prompt\": \"44\", \"completion\": \"eeeee\", \"label\": false}\n";

/* The mismatched rows of a step that is one micro-batch of one rank, in the order of the file. */
static void check_mismatched(tm_dataset *ds, uint64_t step, const labelled *want, uint32_t n) {
    batch b;
    tm_batch_arrays to = columns(&b);
    tm_batch_limits limits;
    uint64_t tokens = 0;
    assert_int_equal(tm_dataset_batch_mismatched(ds, step, 0, 0, &to, &b.shape), TM_OK);
    assert_int_equal(b.shape.rows, n);
    for (uint32_t i = 0; i < n; i++) {
        int32_t ids[64];
        check_row(&b, i, want[i].prompt, want[i].completion, false);
        assert_int_equal(b.desirable[i], want[i].desirable);
        tokens += ids_of(want[i].prompt, ids) + ids_of(want[i].completion, ids);
    }
    assert_int_equal(b.shape.mask_tokens, tokens);
    tm_dataset_limits_mismatched(ds, step, 1, &limits);
    assert_int_equal(limits.seq, b.shape.seq);
    assert_int_equal(limits.tokens, b.shape.tokens);
}

static void test_mismatched(void **state) {
    tm_dataset_opts opts = of_kind(TM_ROWS_LABELLED);
    (void)state;
    tm_dataset *ds = open_text(numbered, &opts);
    assert_int_equal(tm_dataset_set_batches(ds, 3, 1, 1), TM_OK);
    check_mismatched(ds, 0,
                     (labelled[]){{"<bos>000", "ccc<eos>", 1}, {"<bos>11", "a<eos>", 0}, {"<bos>2", "bb<eos>", 1}}, 3);
    check_mismatched(ds, 1, (labelled[]){{"<bos>3333", "eeeee<eos>", 1}, {"<bos>44", "d<eos>", 0}}, 2); /* the rest */
    tm_dataset_close(ds);
    opts.seq_len = 8; /* 44 has lost its <bos> to its own answer; 3333 loses more of its to the same one */
    ds = open_text(numbered, &opts);
    assert_int_equal(tm_dataset_set_batches(ds, 3, 1, 1), TM_OK);
    check_mismatched(ds, 1, (labelled[]){{"33", "eeeee<eos>", 1}, {"44", "d<eos>", 0}}, 2);
    tm_dataset_close(ds);
}

/* The step's rows are the same however it is divided. */
static void test_mismatched_geometry(void **state) {
    static const uint32_t shapes[][3] = {{6, 1, 1}, {1, 6, 1}, {1, 1, 6}, {2, 3, 1}, {1, 3, 2}, {3, 1, 2}};
    tm_dataset_opts opts = of_kind(TM_ROWS_LABELLED);
    int32_t first[4][8][16] = {{{0}}};
    (void)state;
    opts.shuffle = true;
    tm_dataset *ds = open_text(numbered, &opts);
    for (size_t g = 0; g < TM_COUNT(shapes); g++) {
        uint32_t B = shapes[g][0], A = shapes[g][1], R = shapes[g][2];
        assert_int_equal(tm_dataset_set_batches(ds, B, A, R), TM_OK);
        for (uint64_t s = 0; s < 4; s++)
            for (uint32_t k = 0, place = 0; k < A; k++)
                for (uint32_t r = 0; r < R; r++) {
                    batch b;
                    tm_batch_arrays to = columns(&b);
                    assert_int_equal(tm_dataset_batch_mismatched(ds, s, k, r, &to, &b.shape), TM_OK);
                    for (uint32_t i = 0; i < b.shape.rows; i++, place++) {
                        int32_t row[16] = {0};
                        memcpy(row, b.ids + (size_t)i * b.shape.seq, b.shape.seq * sizeof *row);
                        if (g == 0) memcpy(first[s][place], row, sizeof row);
                        assert_memory_equal(row, first[s][place], sizeof row);
                    }
                }
    }
    assert_true(memcmp(first[0], first[1], sizeof first[0]) != 0); /* another epoch, other neighbours */
    tm_dataset_close(ds);
}

/* ---- rows of ids ------------------------------------------------------------------------------------------------ */

typedef struct table {
    int32_t ids[4][6], labels[4][6];
    uint8_t mask[4][6];
    bool desirable[2];
} table;

static tm_status table_row(void *ctx, uint64_t row, int32_t *ids, int32_t *labels, uint8_t *mask) {
    const table *t = ctx;
    memcpy(ids, t->ids[row], sizeof t->ids[row]);
    memcpy(labels, t->labels[row], sizeof t->labels[row]);
    memcpy(mask, t->mask[row], sizeof t->mask[row]);
    return TM_OK;
}

static tm_status table_desirable(void *ctx, uint64_t sample, bool *desirable) {
    *desirable = ((const table *)ctx)->desirable[sample];
    return TM_OK;
}

static tm_status open_table(tm_dataset **ds, table *t, const tm_dataset_opts *opts) {
    return tm_dataset_open_rows(ds,
                                &(tm_row_source){.ctx = t,
                                                 .get_row = table_row,
                                                 .get_desirable = table_desirable,
                                                 .n_rows = 4,
                                                 .seq = 6,
                                                 .name = "rows.safetensors"},
                                opts);
}

/* A hole in the second row's completion. */
static const table rows_table = {{{1, 2, 3, 4, 0, 0}, {1, 2, 5, 6, 7, 8}, {9, 8, 7, 6, 5, 4}, {9, 3, 0, 0, 0, 0}},
                                 {{X, X, 3, 4, X, X}, {X, X, 5, X, 7, 8}, {X, X, X, X, 5, 4}, {X, 3, X, X, X, X}},
                                 {{1, 1, 1, 1, 0, 0}, {1, 1, 1, 1, 1, 1}, {1, 1, 1, 1, 1, 1}, {1, 1, 0, 0, 0, 0}},
                                 {true, false}};

static void check_ids(const batch *b, uint32_t r, const int32_t *ids, const int32_t *labels,
                      const uint8_t *completion) {
    size_t n = b->shape.seq, at = r * n;
    assert_memory_equal(b->ids + at, ids, n * sizeof *ids);
    assert_memory_equal(b->labels + at, labels, n * sizeof *labels);
    assert_memory_equal(b->completion + at, completion, n);
}
#define IDS(...)                                                                                                       \
    (const int32_t[]) {                                                                                                \
        __VA_ARGS__                                                                                                    \
    }
#define MARKS(...)                                                                                                     \
    (const uint8_t[]) {                                                                                                \
        __VA_ARGS__                                                                                                    \
    }

static void test_pairs_of_ids(void **state) {
    tm_dataset_opts opts = {.rows = TM_ROWS_PAIRS, .vocab_size = 10};
    table t = rows_table;
    tm_dataset *ds;
    batch b;
    (void)state;
    assert_int_equal(open_table(&ds, &t, &opts), TM_OK);
    assert_int_equal(tm_dataset_get_counts(ds)->samples, 2);
    assert_int_equal(tm_dataset_set_batches(ds, 1, 1, 1), TM_OK);
    draw(ds, 0, 0, 0, &b);
    assert_int_equal(b.shape.mask_tokens, 10);
    assert_int_equal(b.shape.label_tokens, 5);
    check_ids(&b, 0, IDS(1, 2, 3, 4, 0, 0), IDS(X, 3, 4, X, X, X), MARKS(0, 1, 1, 0, 0, 0));
    check_ids(&b, 1, IDS(1, 2, 5, 6, 7, 8), IDS(X, 5, X, 7, 8, X), MARKS(0, 1, 0, 1, 1, 0));
    draw(ds, 3, 0, 0, &b); /* in order, and again */
    check_ids(&b, 0, IDS(9, 8, 7, 6, 5, 4), IDS(X, X, X, 5, 4, X), MARKS(0, 0, 0, 1, 1, 0));
    assert_int_equal(b.sample[0], 1);
    assert_int_equal(b.sample[1], 1);
    tm_dataset_close(ds);
}

static void test_pairs_of_ids_with_prompts(void **state) {
    tm_dataset_opts opts = {.rows = TM_ROWS_PAIRS, .labels_of_prompt = true};
    table t = rows_table;
    tm_dataset *ds;
    batch b;
    (void)state;
    assert_int_equal(open_table(&ds, &t, &opts), TM_OK);
    assert_int_equal(tm_dataset_set_batches(ds, 1, 1, 1), TM_OK);
    draw(ds, 0, 0, 0, &b);
    check_ids(&b, 0, IDS(1, 2, 3, 4, 0, 0), IDS(2, 3, 4, X, X, X), MARKS(0, 1, 1, 0, 0, 0));
    check_ids(&b, 1, IDS(1, 2, 5, 6, 7, 8), IDS(X, 5, X, 7, 8, X), MARKS(0, 1, 0, 1, 1, 0));
    assert_int_equal(b.shape.label_tokens, 3 + 3);
    tm_dataset_close(ds);
}

/* The pair's prompts lose the same; the rest of a row that is too long goes at its end. */
static void test_cuts_of_ids(void **state) {
    tm_dataset_opts opts = {.rows = TM_ROWS_PAIRS, .seq_len = 4};
    table t = rows_table;
    tm_dataset *ds;
    batch b;
    (void)state;
    assert_int_equal(open_table(&ds, &t, &opts), TM_OK);
    assert_int_equal(tm_dataset_set_batches(ds, 2, 1, 1), TM_OK);
    draw(ds, 0, 0, 0, &b);
    assert_int_equal(b.shape.seq, 4);
    check_ids(&b, 0, IDS(2, 3, 4, 0), IDS(3, 4, X, X), MARKS(1, 1, 0, 0));
    check_ids(&b, 1, IDS(2, 5, 6, 7), IDS(5, X, 7, X), MARKS(1, 0, 1, 0));
    check_ids(&b, 2, IDS(7, 6, 5, 4), IDS(X, 5, 4, X), MARKS(0, 1, 1, 0));
    check_ids(&b, 3, IDS(9, 3, 0, 0), IDS(3, X, X, X), MARKS(1, 0, 0, 0));
    tm_dataset_close(ds);
}

static void test_labelled_ids(void **state) {
    tm_dataset_opts opts = {.rows = TM_ROWS_LABELLED};
    table t = rows_table;
    tm_dataset *ds;
    batch b;
    (void)state;
    assert_int_equal(open_table(&ds, &t, &opts), TM_OK);
    assert_int_equal(tm_dataset_get_counts(ds)->samples, 2);
    assert_int_equal(tm_dataset_get_counts(ds)->desirable, 1);
    assert_int_equal(tm_dataset_set_batches(ds, 2, 1, 1), TM_OK);
    draw(ds, 0, 0, 0, &b);
    assert_int_equal(b.shape.rows, 2);
    check_ids(&b, 0, IDS(1, 2, 3, 4, 0, 0), IDS(X, 3, 4, X, X, X), MARKS(0, 1, 1, 0, 0, 0));
    check_ids(&b, 1, IDS(9, 8, 7, 6, 5, 4), IDS(X, X, X, 5, 4, X), MARKS(0, 0, 0, 1, 1, 0));
    assert_memory_equal(b.desirable, MARKS(1, 0), 2);
    tm_batch_arrays to = columns(&b);
    assert_int_equal(tm_dataset_batch_mismatched(ds, 0, 0, 0, &to, &b.shape), TM_OK);
    check_ids(&b, 0, IDS(1, 2, 5, 6, 7, 8), IDS(X, 5, X, 7, 8, X), MARKS(0, 1, 0, 1, 1, 0));
    check_ids(&b, 1, IDS(9, 3, 0, 0, 0, 0), IDS(3, X, X, X, X, X), MARKS(1, 0, 0, 0, 0, 0));
    assert_int_equal(b.shape.label_tokens, 4);
    tm_dataset_close(ds);
}

static void test_ids_without_completion(void **state) {
    tm_dataset_opts opts = {.rows = TM_ROWS_PAIRS};
    table t = rows_table;
    tm_dataset *ds;
    (void)state;
    t.labels[3][1] = X;
    assert_int_equal(open_table(&ds, &t, &opts), TM_EINPUT);
    assert_non_null(strstr(tm_error_get()->text, "rows.safetensors: rejected row 1: no label"));
    tm_error_clear();
}

/* ---- TRL -------------------------------------------------------------------------------------------------------- */

typedef struct reference {
    tm_tokenizer *tokenizer;
    tm_chat *chat;
    char name[512];
    unsigned rows;
} reference;

static void close_reference(reference *r) {
    tm_chat_close(r->chat);
    tm_tokenizer_close(r->tokenizer);
}

/* The folder's, with another template where the case has one. */
static void open_reference(reference *r, const tm_json *row) {
    const tm_json *template = tm_json_get(row, "template");
    const char *folder = tm_json_get(row, "folder")->text;
    char dir[512];
    tm_buf jinja = {0}, config = {0};
    if (!template && !strcmp(r->name, folder)) return;
    close_reference(r);
    (void)snprintf(r->name, sizeof r->name, "%s", template ? "" : folder);
    (void)snprintf(dir, sizeof dir, "%s/%s", TM_TEST_FIXTURES, folder);
    assert_true(read_file(dir, "tokenizer_config.json", &config));
    if (template) OK(tm_buf_append(&jinja, template->text, template->len));
    assert_true(template || read_file(dir, "chat_template.jinja", &jinja));
    r->tokenizer = open_tokenizer(dir);
    const tm_chat_opts opts = {.tokenizer_config = config.data, .tokenizer_config_len = config.len};
    OK(tm_chat_open(&r->chat, r->tokenizer, jinja.data, jinja.len, "chat_template.jinja", &opts));
    tm_buf_free(&jinja);
    tm_buf_free(&config);
}

static void compare_row(const batch *b, uint32_t r, const tm_json *want) {
    const tm_json *ids = tm_json_get(want, "ids"), *id = ids->child;
    int64_t prompt = tm_json_get(want, "prompt")->integer;
    for (uint32_t t = 0; t < b->shape.seq; t++, id = id ? id->next : NULL) {
        size_t at = (size_t)r * b->shape.seq + t;
        assert_int_equal(b->mask[at], t < ids->count);
        assert_int_equal(b->ids[at], id ? id->integer : 0);
        assert_int_equal(b->completion[at], t + 1 >= prompt && t + 1 < ids->count);
    }
}

static void compare_case(const tm_json *row, void *ctx) {
    reference *r = ctx;
    const tm_json *rows = tm_json_get(row, "rows"), *want = rows->child;
    bool pairs = tm_json_is(tm_json_get(row, "kind"), "pairs");
    tm_json_writer w;
    tm_buf line = {0};
    batch b;
    open_reference(r, row);
    tm_jw_init(&w, &line, 0);
    tm_jw_node(&w, tm_json_get(row, "line"));
    OK(tm_jw_end(&w));
    const tm_dataset_opts opts = {.rows = pairs ? TM_ROWS_PAIRS : TM_ROWS_LABELLED,
                                  .tokenizer = r->tokenizer,
                                  .chat = r->chat,
                                  .eos_id = (int32_t)tm_json_get(row, "eos")->integer,
                                  .strict = true};
    tm_dataset *ds = open_text(line.data, &opts);
    assert_int_equal(tm_dataset_set_batches(ds, 2, 1, 1), TM_OK);
    draw(ds, 0, 0, 0, &b);
    assert_int_equal(b.shape.rows, rows->count);
    for (uint32_t i = 0; i < b.shape.rows; i++, want = want->next, r->rows++) {
        compare_row(&b, i, want);
        if (!pairs) assert_int_equal(b.desirable[i], tm_json_get(want, "desirable")->boolean);
    }
    tm_dataset_close(ds);
    tm_buf_free(&line);
}

/* The rows that TRL makes of its forms. */
static void test_trl(void **state) {
    reference r = {0};
    (void)state;
    assert_int_equal(for_each_line(TM_TEST_FIXTURES "/prefer_cases", "cases.jsonl", compare_case, &r), 110);
    assert_int_equal(r.rows, 4 * (2 * 20 + 8) + 2 * 6);
    close_reference(&r);
}

/* ---- the rest --------------------------------------------------------------------------------------------------- */

/* What a sample is enters: the same ids with another border, or another flag, are other data. */
static void test_fingerprint(void **state) {
    static const char *const lines[] = {"{\"prompt\": \"p\", \"completion\": \"qc\", \"label\": true}",
                                        "{\"prompt\": \"pq\", \"completion\": \"c\", \"label\": true}",
                                        "{\"prompt\": \"pq\", \"completion\": \"c\", \"label\": false}"};
    uint64_t seen[TM_COUNT(lines)];
    (void)state;
    for (size_t i = 0; i < TM_COUNT(lines); i++) {
        tm_dataset_opts opts = of_kind(TM_ROWS_LABELLED);
        tm_dataset *ds = open_text(lines[i], &opts);
        seen[i] = tm_dataset_fingerprint(ds);
        for (size_t k = 0; k < i; k++) assert_true(seen[k] != seen[i]);
        tm_dataset_close(ds);
    }
}

static void test_preview(void **state) {
    tm_dataset_opts opts = of_kind(TM_ROWS_PAIRS);
    tm_buf out = {0};
    (void)state;
    tm_dataset *ds = open_text("{\"prompt\": \"p\", \"chosen\": \"c\", \"rejected\": \"rr\"}", &opts);
    assert_int_equal(tm_dataset_preview(ds, 0, tokenizer, false, &out), TM_OK);
    assert_string_equal(out.data,
                        "sample 1 of 1, chosen: 4 tokens, 2 of them learned (text between ⟦ and ⟧ is read only)\n"
                        "  | ⟦<bos>p⟧c<eos>\n"
                        "sample 1 of 1, rejected: 5 tokens, 3 of them learned (text between ⟦ and ⟧ is read only)\n"
                        "  | ⟦<bos>p⟧rr<eos>\n");
    tm_dataset_close(ds);
    tm_buf_clear(&out);
    opts.rows = TM_ROWS_LABELLED;
    ds = open_text("{\"prompt\": \"p\", \"completion\": \"c\", \"label\": false}", &opts);
    assert_int_equal(tm_dataset_preview(ds, 0, tokenizer, false, &out), TM_OK);
    assert_non_null(strstr(out.data, "sample 1 of 1, undesirable: 4 tokens"));
    tm_dataset_close(ds);
    tm_buf_free(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(test_text_pairs, clean_record),
        cmocka_unit_test_setup(test_message_pairs, clean_record),
        cmocka_unit_test_setup(test_rejected_response, clean_record),
        cmocka_unit_test_setup(test_older_pairs, clean_record),
        cmocka_unit_test_setup(test_factory, clean_record),
        cmocka_unit_test_setup(test_factory_calls, clean_record),
        cmocka_unit_test_setup(test_beside, clean_record),
        cmocka_unit_test_setup(test_labels_of_prompt, clean_record),
        cmocka_unit_test_setup(test_labelled, clean_record),
        cmocka_unit_test_setup(test_unpaired, clean_record),
        cmocka_unit_test_setup(test_bad_lines, clean_record),
        cmocka_unit_test_setup(test_options, clean_record),
        cmocka_unit_test_setup(test_counts, clean_record),
        cmocka_unit_test_setup(test_cuts, clean_record),
        cmocka_unit_test_setup(test_order_of_pairs, clean_record),
        cmocka_unit_test_setup(test_mismatched, clean_record),
        cmocka_unit_test_setup(test_mismatched_geometry, clean_record),
        cmocka_unit_test_setup(test_pairs_of_ids, clean_record),
        cmocka_unit_test_setup(test_pairs_of_ids_with_prompts, clean_record),
        cmocka_unit_test_setup(test_cuts_of_ids, clean_record),
        cmocka_unit_test_setup(test_labelled_ids, clean_record),
        cmocka_unit_test_setup(test_ids_without_completion, clean_record),
        cmocka_unit_test_setup(test_trl, clean_record),
        cmocka_unit_test_setup(test_fingerprint, clean_record),
        cmocka_unit_test_setup(test_preview, clean_record),
    };
    return cmocka_run_group_tests_name("prefer", tests, set_up, tear_down);
}
