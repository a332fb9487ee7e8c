/* tidemill data: what the model will see of a configuration's data. */
#include "session/session.h"
#include "tools/tools.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { MOST_BINS = 12, MOST_PROBLEMS = 1000, SHOWN_PROBLEMS = 20, BAR = 40 };

typedef struct problem {
    tm_data_notice what;
    char *place, *why;
} problem;
/* Of one dataset. */
typedef struct problems {
    problem item[MOST_PROBLEMS];
    size_t n, more;
    bool failed; /* out of memory */
} problems;

typedef struct look {
    session s;
    tm_train_args args;
    problems found; /* of both datasets */
    int64_t samples, first;
    bool json;
} look;

static const char *const words[] = {[TM_DATA_BAD] = "left out",
                                    [TM_DATA_DROPPED] = "left out: longer than seq_len",
                                    [TM_DATA_TRUNCATED] = "cut: longer than seq_len",
                                    [TM_DATA_NOTHING_LEARNED] = "left out: nothing to learn"};
static const char *const names[] = {[TM_DATA_BAD] = "bad",
                                    [TM_DATA_DROPPED] = "dropped",
                                    [TM_DATA_TRUNCATED] = "truncated",
                                    [TM_DATA_NOTHING_LEARNED] = "nothing_learned"};

static void note(void *ctx, tm_data_notice what, const char *place, const char *why) {
    problems *p = ctx;
    if (p->n == MOST_PROBLEMS) {
        p->more++;
        return;
    }
    problem *item = &p->item[p->n++];
    *item = (problem){what, tm_strdup(place), tm_strdup(why)};
    p->failed |= !item->place || !item->why;
}

/* ---- what a dataset is --------------------------------------------------------------------------------------------- */

typedef struct bins {
    uint32_t width, n;
    uint64_t count[MOST_BINS];
} bins;

/* 1, 2 or 5 times a power of ten. */
static uint32_t round_width(uint32_t least) {
    uint32_t ten = 1;
    while (10 * ten < least) ten *= 10;
    return least <= ten ? ten : least <= 2 * ten ? 2 * ten : least <= 5 * ten ? 5 * ten : 10 * ten;
}

static bins count_lengths(const tm_dataset *ds) {
    uint32_t longest = tm_dataset_get_counts(ds)->longest;
    bins b = {.width = round_width(longest / MOST_BINS + 1)};
    b.n = longest / b.width + 1;
    TM_ASSERT(b.n <= MOST_BINS);
    for (uint64_t i = 0; i < tm_dataset_rows(ds); i++) b.count[tm_dataset_row_tokens(ds, i) / b.width]++;
    return b;
}

/* Over the first epoch: how many tokens of what is computed are not padding. */
typedef struct epoch {
    uint64_t steps, rows;
    double used;
} epoch;

static epoch first_epoch(const session *s, const tm_dataset *ds) {
    epoch e = {.steps = tm_dataset_steps_per_epoch(ds)};
    uint64_t tokens = 0, computed = 0;
    for (uint64_t step = 0; step < e.steps; step++)
        for (uint32_t k = 0; k < s->cfg->accumulation_steps; k++) {
            tm_batch_shape shape;
            tm_dataset_shape(ds, step, k, 0, &shape);
            e.rows += shape.rows;
            tokens += shape.mask_tokens;
            computed += shape.tokens;
        }
    e.used = computed ? (double)tokens / (double)computed : 0;
    return e;
}

/* ---- text ----------------------------------------------------------------------------------------------------------- */

static void print_lengths(const tm_dataset *ds) {
    static const char *const part[] = {"", "▏", "▎", "▍", "▌", "▋", "▊", "▉"};
    bins b = count_lengths(ds);
    uint64_t most = 1;
    for (uint32_t i = 0; i < b.n; i++) most = tm_max_u64(most, b.count[i]);
    printf("  tokens a row\n");
    for (uint32_t i = 0; i < b.n; i++) {
        uint64_t eighths = (b.count[i] * BAR * 8 + most - 1) / most;
        printf("    %7u..%-7u ", i * b.width, (i + 1) * b.width - 1);
        for (uint64_t k = 0; k < eighths / 8; k++) printf("█");
        printf("%s %" PRIu64 "\n", part[eighths % 8], b.count[i]);
    }
}

static void print_set(const look *l, data_file *f, const char *what) {
    const tm_dataset *ds = data_set(f);
    const tm_dataset_counts *c = tm_dataset_get_counts(ds);
    epoch e = first_epoch(&l->s, ds);
    printf("%s: %s\n", what, data_name(f));
    printf("  %" PRIu64 " samples of %" PRIu64 " records, %" PRIu64 " tokens, %" PRIu64 " learned; longest %u\n",
           c->samples, c->lines, c->tokens, c->label_tokens, c->longest);
    printf("  left out: %" PRIu64 " bad, %" PRIu64 " longer than seq_len %u, %" PRIu64
           " with nothing to learn; cut: %" PRIu64 "\n",
           c->bad, c->dropped, l->s.cfg->data.seq_len, c->no_labels, c->truncated);
    if (c->split) printf("  divided into several rows: %" PRIu64 "\n", c->split);
    if (c->identical) printf("  pairs of two equal answers: %" PRIu64 "\n", c->identical);
    print_lengths(ds);
    printf("  an epoch: %" PRIu64 " steps, %" PRIu64 " %s; %.1f%% of the tokens computed are no padding\n\n", e.steps,
           e.rows, l->s.cfg->data.packing ? "packed rows" : "rows", 100 * e.used);
}

static void print_problems(const problems *p) {
    for (size_t i = 0; i < p->n && i < SHOWN_PROBLEMS; i++)
        printf("%s: %s%s%s\n", p->item[i].place, words[p->item[i].what], *p->item[i].why ? ": " : "", p->item[i].why);
    size_t more = p->more + (p->n > SHOWN_PROBLEMS ? p->n - SHOWN_PROBLEMS : 0);
    if (more) printf("and %zu more (--json lists %d)\n", more, MOST_PROBLEMS);
    if (p->n) printf("\n");
}

/* Of a dataset whose tokens were forgotten: read again, the beginning of its files alone. */
static tm_status show_samples(look *l) {
    tm_buf out = {0};
    tm_dataset *ds = data_set(l->s.train);
    uint64_t there = tm_dataset_get_counts(ds)->samples;
    tm_status rc = TM_OK;
    if (l->samples && (uint64_t)l->first >= there)
        return tm_fail(TM_EINPUT, "--from %" PRIu64 ": there are %" PRIu64 " samples", (uint64_t)l->first + 1, there);
    for (int64_t i = 0; i < l->samples && (uint64_t)(l->first + i) < there; i++) {
        TM_GO(tm_dataset_preview(ds, (uint64_t)(l->first + i), l->s.text.tokenizer, isatty(1), &out));
        TM_GO(tm_buf_append(&out, "\n", 1));
    }
    if (out.len) fwrite(out.data, 1, out.len, stdout);
done:
    tm_buf_free(&out);
    return rc;
}

/* ---- JSON ----------------------------------------------------------------------------------------------------------- */

static void json_lengths(tm_json_writer *w, const tm_dataset *ds) {
    bins b = count_lengths(ds);
    tm_jw_field_array(w, "lengths");
    for (uint32_t i = 0; i < b.n; i++) {
        tm_jw_object(w);
        tm_jw_field_uint(w, "from", i * b.width);
        tm_jw_field_uint(w, "to", (i + 1) * b.width - 1);
        tm_jw_field_uint(w, "rows", b.count[i]);
        tm_jw_object_end(w);
    }
    tm_jw_array_end(w);
}

static void json_set(const look *l, tm_json_writer *w, data_file *f, const char *what) {
    const tm_dataset *ds = data_set(f);
    const tm_dataset_counts *c = tm_dataset_get_counts(ds);
    epoch e = first_epoch(&l->s, ds);
    tm_jw_field_object(w, what);
    tm_jw_field_str(w, "name", data_name(f));
    const struct {
        const char *key;
        uint64_t value;
    } all[] = {{"records", c->lines},       {"samples", c->samples},
               {"tokens", c->tokens},       {"label_tokens", c->label_tokens},
               {"longest", c->longest},     {"bad", c->bad},
               {"dropped", c->dropped},     {"truncated", c->truncated},
               {"split", c->split},         {"no_labels", c->no_labels},
               {"identical", c->identical}, {"steps_per_epoch", e.steps},
               {"rows_per_epoch", e.rows}};
    for (size_t i = 0; i < TM_COUNT(all); i++) tm_jw_field_uint(w, all[i].key, all[i].value);
    tm_jw_field_double(w, "used", e.used);
    json_lengths(w, ds);
    tm_jw_object_end(w);
}

static void json_problems(tm_json_writer *w, const problems *p) {
    tm_jw_field_array(w, "problems");
    for (size_t i = 0; i < p->n; i++) {
        tm_jw_object(w);
        tm_jw_field_str(w, "kind", names[p->item[i].what]);
        tm_jw_field_str(w, "place", p->item[i].place);
        tm_jw_field_str(w, "why", p->item[i].why);
        tm_jw_object_end(w);
    }
    tm_jw_array_end(w);
    tm_jw_field_uint(w, "problems_left_off", p->more);
}

static tm_status print_json(const look *l) {
    tm_json_writer w;
    tm_cli_json(&w, 1);
    json_set(l, &w, l->s.train, "train");
    if (l->s.eval) json_set(l, &w, l->s.eval, "eval");
    json_problems(&w, &l->found);
    return tm_cli_print_json(&w);
}

/* ---- command -------------------------------------------------------------------------------------------------------- */

static tm_status open_session(look *l, uint64_t most_bytes, bool noted) {
    l->s = (session){.args = &l->args};
    TM_TRY(session_load_config(&l->s, true));
    if (!l->s.cfg->data.train)
        return tm_fail(TM_EINPUT, "%s: it names no data.train, of which something could be said; --dataset FILE",
                       l->args.config ? l->args.config : "command line");
    return session_read_data(&l->s, most_bytes, noted ? note : NULL, &l->found);
}

static tm_status print_text(look *l) {
    enum { HEAD_MIB = 4 };
    print_set(l, l->s.train, "train");
    if (l->s.eval) print_set(l, l->s.eval, l->s.cfg->data.split > 0 ? "held out of it" : "eval");
    print_problems(&l->found);
    if (tm_dataset_spilled_bytes(data_set(l->s.train))) {
        session_close(&l->s);
        TM_TRY(open_session(l, HEAD_MIB * TM_MIB, false));
    }
    return show_samples(l);
}

static tm_status run(look *l) {
    tm_status rc = open_session(l, 0, true);
    if (rc == TM_OK && l->found.failed) rc = tm_nomem(sizeof l->found);
    if (rc == TM_OK) rc = l->json ? print_json(l) : print_text(l);
    session_close(&l->s);
    for (size_t i = 0; i < l->found.n; i++) TM_FREE_ALL(l->found.item[i].place, l->found.item[i].why);
    return rc;
}

int tm_cmd_data(int argc, char **argv) {
    static look l;
    const char *set[256], *word[1], *config = NULL;
    tm_opt_list sets = {.value = set, .cap = TM_COUNT(set)};
    l = (look){.samples = 3, .first = 1};
    const tm_opt opts[] = {
        TM_CONFIG_OPTION(&config),
        TM_OPTION("set", TM_OPT_LIST, &sets, "KEY=VALUE", "override one key of the configuration; may be repeated"),
        TM_OPTION("samples", TM_OPT_INT, &l.samples, "N", "samples to show (3)"),
        TM_OPTION("from", TM_OPT_INT, &l.first, "I", "the first of them, counted from 1"),
        TM_FLAG("json", &l.json, "print one JSON object, with the problems and without the samples"),
    };
    const tm_cli cli = {
        .usage = "data [CONFIG] [--KEY VALUE]... [--set key.path=value]... [--samples N] [--from I] [--json]",
        .about = "Reads all data of a configuration and says what the model will see: counts, lengths, how much is "
                 "padding, what is cut or left out and why, and samples, with what is not learned dimmed. Needs the "
                 "model's config.json, tokenizer and template.",
        .example = "tidemill data config.json --samples 5\n"
                   "tidemill data --model DIR --dataset more.csv --columns '{\"q\": \"prompt\", \"a\": "
                   "\"completion\"}'",
        TM_CLI_OPTIONS(opts),
        .keys = &sets,
        TM_CLI_WORDS(word, 0, 1),
    };
    int rc = tm_cli_parse(&cli, argc, argv);
    if (rc >= 0) return rc;
    rc = tm_cli_config("data", &config, word[0], &sets);
    if (rc >= 0) return rc;
    if (l.samples < 0 || l.first < 1) return tm_cli_wrong("data", "--samples is at least 0, and --from at least 1");
    l.first--;
    l.args = (tm_train_args){.config = config, .set = set, .n_set = sets.count, .quiet = true};
    return run(&l) == TM_OK ? TM_EXIT_DONE : tm_cmd_fail();
}
