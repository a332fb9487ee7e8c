/* Task files: prompts, choices and worth as lm-evaluation-harness has them (fixtures: tasks.json), the forms of rows, and
 * files that are wrong. */
#include "world.h"

#include <math.h>

/* ---- as the harness --------------------------------------------------------------------------------------------- */

static const char *lines_of(const tm_json *rows, tm_buf *out) {
    for (const tm_json *r = rows->child; r; r = r->next) {
        tm_json_writer w;
        tm_jw_init(&w, out, 0);
        tm_jw_node(&w, r);
        OK(tm_jw_end(&w));
        OK(tm_buf_append(out, "\n", 1));
    }
    return out->data;
}

/* The harness's task, and where its rows are here. */
static const char *settings_of(const tm_json *config, tm_buf *out) {
    tm_json_writer w;
    tm_jw_init(&w, out, 0);
    tm_jw_object(&w);
    tm_jw_field_str(&w, "data", "test.jsonl");
    tm_jw_field_str(&w, "fewshot_data", "train.jsonl");
    for (const tm_json *v = config->child; v; v = v->next) {
        tm_jw_key(&w, v->key);
        tm_jw_node(&w, v);
    }
    tm_jw_object_end(&w);
    OK(tm_jw_end(&w));
    return out->data;
}

static void same_requests(const tm_task *t, const tm_task_sample *s, const tm_json *arguments) {
    assert_int_equal(arguments->count, s->n_choices ? s->n_choices : 1);
    const tm_json *a = arguments->child;
    if (!s->n_choices) {
        assert_string_equal(s->prompt, a->child->text);
        const tm_json *how = a->child->next;
        assert_int_equal(t->drawing.max_new_tokens, tm_json_get(how, "max_gen_toks")->integer);
        assert_int_equal(t->drawing.n_stop, tm_json_get(how, "until")->count);
        assert_true(tm_json_is(tm_json_get(how, "until")->child, t->drawing.stop[0]));
        assert_true(t->drawing.temperature == 0);
    }
    for (uint32_t i = 0; i < s->n_choices; i++, a = a->next) {
        assert_string_equal(s->choice[i].context, a->child->text);
        assert_string_equal(s->choice[i].text, a->child->next->text);
    }
}

/* Keys are "exact_match,strict-match". */
static void same_values(const tm_task *t, const double *value, const tm_json *wanted) {
    assert_int_equal(t->n_metrics, wanted->count);
    for (uint32_t i = 0; i < t->n_metrics; i++) {
        char key[128];
        snprintf(key, sizeof key, "%s,%s", t->metric[i].name, t->metric[i].filter);
        const tm_json *v = tm_json_get(wanted, key);
        assert_non_null(v);
        if (v->number != value[i]) fail_msg("%s %s: %g, not %g", t->name, key, value[i], v->number);
    }
}

static void same_worth(const tm_task *t, const tm_task_sample *s, const tm_json *sample, tm_buf *lines) {
    double logprob[8], value[8];
    bool greedy[8];
    tm_task_answer answer = {.logprob = logprob, .greedy = greedy};
    const tm_json *a = tm_json_get(sample, "answers")->child;
    answer.text = a->text, answer.n_text = a->len;
    for (uint32_t i = 0; i < s->n_choices; i++, a = a->next)
        logprob[i] = a->child->number, greedy[i] = a->child->next->boolean;
    OK(tm_task_score(t, s, &answer, value));
    same_values(t, value, tm_json_get(sample, "values"));
    OK(tm_task_write(t, s, &answer, value, lines));
}

/* What was written is a task again: the same requests, the same worth. */
static void read_again(const tm_task *before, const tm_json *samples, const char *lines) {
    const world w = {{{"samples.jsonl", lines}}};
    tm_task_opts o = world_opts(&w);
    tm_task *t;
    tm_buf more = {0};
    if (before->n_extracts > 1) return; /* filters are not in samples */
    OK(tm_task_open(&t, "samples.jsonl", &o));
    assert_int_equal(t->n, before->n);
    const tm_json *s = samples->child;
    for (size_t i = 0; i < t->n; i++, s = s->next) {
        same_requests(t, &t->sample[i], tm_json_get(s, "arguments"));
        assert_int_equal(t->sample[i].gold[0], before->sample[i].gold[0]);
        assert_true(t->sample[i].bytes[0] == before->sample[i].bytes[0]);
    }
    tm_buf_free(&more);
    tm_task_close(t);
}

static void as_the_harness(void **state) {
    (void)state;
    tm_json_doc *doc = harness_says("tasks.json");
    tm_buf rows = {0}, shots = {0};
    lines_of(tm_json_get(tm_json_root(doc), "rows"), &rows);
    lines_of(tm_json_get(tm_json_root(doc), "shots"), &shots);
    for (const tm_json *c = tm_json_get(tm_json_root(doc), "tasks")->child; c; c = c->next) {
        tm_buf settings = {0}, lines = {0};
        const world w = {{{"task.json", settings_of(tm_json_get(c, "config"), &settings)},
                          {"test.jsonl", rows.data},
                          {"train.jsonl", shots.data}}};
        tm_task_opts o = world_opts(&w);
        tm_task *t;
        OK(tm_task_open(&t, "task.json", &o));
        const tm_json *samples = tm_json_get(c, "samples"), *s = samples->child;
        assert_int_equal(t->n, samples->count);
        for (size_t i = 0; i < t->n; i++, s = s->next) {
            same_requests(t, &t->sample[i], tm_json_get(s, "arguments"));
            same_worth(t, &t->sample[i], s, &lines);
        }
        read_again(t, samples, lines.data);
        tm_task_close(t);
        tm_buf_free(&settings);
        tm_buf_free(&lines);
    }
    tm_buf_free(&rows);
    tm_buf_free(&shots);
    tm_json_free(doc);
}

/* ---- forms ------------------------------------------------------------------------------------------------------ */

static tm_task *open_rows(const char *name, const char *rows) {
    const world w = {{{name, rows}}};
    tm_task_opts o = world_opts(&w);
    tm_task *t;
    OK(tm_task_open(&t, name, &o));
    return t;
}

static void plain_rows(void **state) {
    (void)state;
    tm_task *t =
        open_rows("dir/two.jsonl", "{\"prompt\":\"Q\",\"choices\":[\"a\",\"bb\"],\"gold\":1}\n\n"
                                   "{\"prompt\":\"R\",\"choices\":[\"a\",\"bb\"],\"gold\":\"a\"}\n"
                                   "{\"doc\":{\"query\":\"S\",\"choices\":[\"1\",\"0\"],\"gold\":[\"0\",0]}}\n");
    assert_string_equal(t->name, "two");
    assert_int_equal(t->n, 3);
    assert_string_equal(t->sample[0].choice[1].text, " bb");
    assert_string_equal(t->sample[0].choice[1].context, "Q");
    assert_true(t->sample[0].bytes[1] == 2);
    assert_int_equal(t->sample[1].gold[0], 0);
    assert_string_equal(t->sample[2].prompt, "S");
    assert_int_equal(t->sample[2].n_gold, 2);
    assert_int_equal(t->sample[2].gold[0], 1);
    assert_string_equal(t->metric[1].name, "acc_norm");
    tm_task_close(t);
    t = open_rows("rows.csv", "prompt,answer\nOne?,1\nTwo?,2\n");
    assert_int_equal(t->n, 2);
    assert_string_equal(t->sample[1].target[0], "2");
    assert_int_equal(t->drawing.max_new_tokens, 256);
    tm_task_close(t);
}

/* What the harness logs: a sample for each filter, numbers as texts. */
static void logged_samples(void **state) {
    (void)state;
    tm_task *t = open_rows("samples.jsonl",
                           "{\"doc_id\":3,\"doc\":{\"q\":1},\"target\":\"4\",\"arguments\":{\"gen_args_0\":{\"arg_0\":"
                           "\"Two and two?\",\"arg_1\":"
                           "{\"until\":[\"\\n\"],\"do_sample\":false,\"max_gen_toks\":8}}},\"filter\":\"strict\"}\n"
                           "{\"doc_id\":3,\"doc\":{\"q\":1},\"target\":\"4\",\"arguments\":{\"gen_args_0\":{\"arg_0\":"
                           "\"Two and two?\",\"arg_1\":"
                           "{\"until\":[\"\\n\"],\"do_sample\":false,\"max_gen_toks\":8}}},\"filter\":\"flexible\"}\n");
    assert_int_equal(t->n, 1);
    assert_int_equal(t->sample[0].id, 3);
    assert_int_equal(t->drawing.max_new_tokens, 8);
    assert_string_equal(t->drawing.stop[0], "\n");
    tm_task_close(t);
    t = open_rows("old.jsonl", "{\"doc\":{},\"target\":\"1\",\"arguments\":[[\"c\",\" a\"],[\"c\",\" b c\"]]}\n");
    assert_int_equal(t->sample[0].gold[0], 1);
    assert_true(t->sample[0].characters[1] == 3);
    tm_task_close(t);
    t = open_rows("lone.jsonl", "{\"doc\":{},\"target\":\"word\",\"arguments\":[[\"the last\",\" word\"]]}\n");
    const bool greedy = true;
    const double logprob = -1;
    double value[2];
    OK(tm_task_score(t, &t->sample[0], &(tm_task_answer){.logprob = &logprob, .greedy = &greedy}, value));
    assert_true(value[0] == 1);
    tm_task_close(t);
}

static void conversations(void **state) {
    (void)state;
    const world w = {
        {{"t.json", "{// how it is put\n\"data\":\"r.jsonl\",\"apply_chat_template\":true,\"num_fewshot\":1,"
                    "\"description\":\"Be short.\"}"},
         {"r.jsonl", "{\"prompt\":\"A\",\"choices\":[\"x\",\"y\"],\"gold\":0}\n"
                     "{\"prompt\":\"B\",\"choices\":[\"x\",\"y\"],\"gold\":1}\n"}}};
    tm_task_opts o = world_opts(&w);
    tm_task *t;
    OK(tm_task_open(&t, "t.json", &o));
    assert_true(t->chat);
    assert_string_equal(t->sample[0].choice[0].text, "x");
    assert_string_equal(
        t->sample[0].prompt,
        "{\"messages\": [{\"role\": \"system\", \"content\": \"Be short.\"}, {\"role\": \"user\", \"content\": \"B\"}, "
        "{\"role\": \"assistant\", \"content\": \"y\"}, {\"role\": \"user\", \"content\": \"A\"}]}");
    tm_task_close(t);
}

/* Of 40 rows 3 examples each: the question is none of them, none is there twice, another seed has others. */
static void examples_by_lot(void **state) {
    (void)state;
    tm_buf rows = {0};
    for (int i = 0; i < 40; i++) OK(tm_buf_printf(&rows, "{\"prompt\":\"<%d>\",\"answer\":\"%d\"}\n", i, i));
    const world w = {{{"t.json", "{\"data\":\"r.jsonl\",\"num_fewshot\":3,\"fewshot_sampler\":\"random\"}"},
                      {"r.jsonl", rows.data}}};
    tm_task_opts o = world_opts(&w);
    tm_task *t[3];
    for (int k = 0; k < 3; k++) {
        o.seed_given = true;
        o.seed = k == 2;
        OK(tm_task_open(&t[k], "t.json", &o));
    }
    uint64_t differ = 0, seen = 0;
    for (size_t i = 0; i < 40; i++) {
        const char *prompt = t[0]->sample[i].prompt, *at = prompt;
        uint64_t here = 0;
        assert_string_equal(prompt, t[1]->sample[i].prompt);
        differ += strcmp(prompt, t[2]->sample[i].prompt) != 0;
        for (int k = 0; k < 4; k++, at++) {
            at = strchr(at, '<');
            assert_non_null(at);
            unsigned long one = strtoul(at + 1, NULL, 10);
            assert_true(!(here >> one & 1) && (k < 3 ? one != i : one == i));
            here |= 1ull << one;
        }
        seen |= here & ~(1ull << i);
    }
    assert_true(differ > 35 && __builtin_popcountll(seen) > 30);
    for (int k = 0; k < 3; k++) tm_task_close(t[k]);
    tm_buf_free(&rows);
}

static void limits(void **state) {
    (void)state;
    const world w = {{{"r.jsonl", "{\"prompt\":\"A\",\"answer\":\"1\"}\n{\"prompt\":\"B\",\"answer\":\"2\"}\n{"
                                  "\"prompt\":\"C\",\"answer\":\"3\"}\n"}}};
    tm_task_opts o = world_opts(&w);
    tm_task *t;
    o.limit = 2;
    o.max_new_tokens = 7;
    OK(tm_task_open(&t, "r.jsonl", &o));
    assert_int_equal(t->n, 2);
    assert_int_equal(t->in_file, 3);
    assert_int_equal(t->drawing.max_new_tokens, 7);
    tm_task_close(t);
}

/* ---- what is wrong ---------------------------------------------------------------------------------------------- */

static void wrong_rows(void **state) {
    (void)state;
    static const struct {
        const char *rows, *says;
    } cases[] = {
        {"", "r.jsonl: there are no rows"},
        {"{\"prompt\":\"A\",\"answer\":\"1\"}\n[1]\n", "r.jsonl:2: "},
        {"{\"prompt\":\"A\",\"answer\":\"1\"}\n\n{\"prompt\":\"A\"\n", "r.jsonl:3"},
        {"{\"prompt\":\"A\"}\n", "r.jsonl:1: neither \"choices\" with \"gold\" nor \"answer\""},
        {"{\"question\":\"A\"}\n", "r.jsonl:1: neither \"prompt\" nor \"arguments\""},
        {"{\"prompt\":\"A\",\"answer\":[]}\n", "r.jsonl:1: \"answer\" is a list of 0"},
        {"{\"prompt\":\"A\",\"answer\":{}}\n", "r.jsonl:1: \"answer\" is no text"},
        {"{\"prompt\":\"A\",\"choices\":[\"a\",\"b\"]}\n", "r.jsonl:1: \"gold\" is missing"},
        {"{\"prompt\":\"A\",\"choices\":[\"a\",\"b\"],\"gold\":2}\n",
         "r.jsonl:1: which choice is right: its number, 0 to 1"},
        {"{\"prompt\":\"A\",\"choices\":[\"a\",\"b\"],\"gold\":-1}\n", "r.jsonl:1: which choice"},
        {"{\"prompt\":\"A\",\"choices\":[\"a\",\"b\"],\"gold\":\"c\"}\n", "r.jsonl:1: which choice"},
        {"{\"prompt\":\"A\",\"choices\":[\"a\",\"\"],\"gold\":0}\n", "r.jsonl:1: a choice is empty"},
        {"{\"prompt\":\"A\",\"choices\":\"ab\",\"gold\":0}\n", "r.jsonl:1: \"choices\" is no list"},
        {"{\"prompt\":\"A\",\"choices\":[\"a\",\"b\"],\"gold\":0}\n{\"prompt\":\"A\",\"answer\":\"1\"}\n",
         "r.jsonl:2: rows before it"},
        {"{\"doc\":{},\"arguments\":[[\"a\"]],\"target\":\"1\"}\n", "r.jsonl:1: \"arguments\": each is"},
        {"{\"doc\":{},\"arguments\":[],\"target\":\"1\"}\n", "r.jsonl:1: \"arguments\""},
        {"{\"doc\":{},\"arguments\":[[\"a\",{\"until\":3}]],\"target\":\"1\"}\n", "r.jsonl:1: \"until\" is a text"},
        {"{\"doc\":{},\"arguments\":[[\"a\",{\"num_beams\":3}]],\"target\":\"1\"}\n", "num_beams"},
    };
    for (size_t i = 0; i < TM_COUNT(cases); i++) {
        const world w = {{{"r.jsonl", cases[i].rows}}};
        tm_task_opts o = world_opts(&w);
        tm_task *t;
        tm_status rc = tm_task_open(&t, "r.jsonl", &o);
        fails_with(rc, rc == TM_EUNSUPPORTED ? rc : TM_EINPUT, cases[i].says);
        assert_null(t);
    }
}

static void wrong_settings(void **state) {
    (void)state;
    static const struct {
        const char *settings, *says;
    } cases[] = {
        {"{\"task\":\"x\"}", "t.json: \"data\" is missing"},
        {"{\"data\":\"r.jsonl\",\n\"doc_to_txt\":\"a\"}", "t.json:2: \"doc_to_txt\" is no key"},
        {"{\"data\":\"no.jsonl\"}", "no.jsonl: there is no such file"},
        {"{\"data\":\"r.jsonl\",\"num_fewshot\":-1}", "t.json:1: \"num_fewshot\" is a whole number from 0 to 1024"},
        {"{\"data\":\"r.jsonl\",\"num_fewshot\":9}", "r.jsonl: num_fewshot is 9, and there are 1"},
        {"{\"data\":\"r.jsonl\",\"doc_to_text\":\"{{prompt\"}",
         "t.json:1: doc_to_text:1: template: a tag without its end"},
        {"{\"data\":\"r.jsonl\",\"doc_to_text\":\"{{promt}}\",\"doc_to_target\":\"answer\"}",
         "r.jsonl:1: t.json:1: doc_to_text:1: template: 'promt' is undefined"},
        {"{\"data\":\"r.jsonl\",\"doc_to_text\":\"prompt\",\"doc_to_target\":\"nswer\"}",
         "r.jsonl:1: doc_to_target: the row has no \"nswer\""},
        {"{\"data\":\"r.jsonl\",\"doc_to_text\":\"{% for i in range(100000000) %}{% endfor "
         "%}\",\"doc_to_target\":\"answer\"}",
         "r.jsonl:1: "},
        {"{\"data\":\"r.jsonl\",\"metric_list\":[\"acc\"]}", "t.json:1: the rows are to be answered, not for \"acc\""},
        {"{\"data\":\"r.jsonl\",\"metric_list\":[\"bleu\"]}", "t.json:1: the metric \"bleu\" is not known here"},
        {"{\"data\":\"r.jsonl\",\"metric_list\":[{\"metric\":\"exact_match\",\"regexes_to_ignore\":[\"(\"]}]}",
         "t.json:1: the regular expression \"(\""},
        {"{\"data\":\"r.jsonl\",\"filter_list\":[{\"name\":\"a\",\"filter\":[{\"function\":\"regex\",\"regex_pattern\":"
         "\"a\",\"group\":1}]}]}",
         "no such group"},
        {"{\"data\":\"r.jsonl\",\"filter_list\":[{\"name\":\"a\",\"filter\":[{\"function\":\"majority_vote\"}]}]}",
         "t.json:1: filters here are"},
        {"{\"data\":\"r.jsonl\",\"output_type\":\"multiple_choice\"}", "r.jsonl:1: the row has no choices"},
        {"{\"data\":\"r.jsonl\",\"stop\":[\"\"]}", "t.json:1: \"stop\" is with an empty text"},
        {"{\"data\":\"r.jsonl\",\"process_results\":\"f\"}", "t.json:1: \"process_results\" is no key"},
        {"{\"data\":\"r.jsonl\",", "t.json:1"},
    };
    for (size_t i = 0; i < TM_COUNT(cases); i++) {
        const world w = {{{"t.json", cases[i].settings},
                          {"r.jsonl", "{\"prompt\":\"A\",\"answer\":\"1\"}\n{\"prompt\":\"B\",\"answer\":\"2\"}\n"}}};
        tm_task_opts o = world_opts(&w);
        tm_task *t;
        tm_status rc = tm_task_open(&t, "t.json", &o);
        fails_with(rc, rc == TM_EUNSUPPORTED ? rc : TM_EINPUT, cases[i].says);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(as_the_harness), cmocka_unit_test(plain_rows),      cmocka_unit_test(logged_samples),
        cmocka_unit_test(conversations),  cmocka_unit_test(examples_by_lot), cmocka_unit_test(limits),
        cmocka_unit_test(wrong_rows),     cmocka_unit_test(wrong_settings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
