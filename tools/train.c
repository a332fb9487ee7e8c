/* tidemill train */
#include "tools/tools.h"
#include "config/config.h"
#include "infer/infer.h"
#include "tools/plan.h"
#include "tools/report.h"
#include "train/train.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int print_keys(void) {
    tm_buf text = {0};
    if (tm_config_help(&text) != TM_OK) return tm_cmd_fail();
    fwrite(text.data, 1, text.len, stdout);
    tm_buf_free(&text);
    return TM_EXIT_DONE;
}

int tm_cmd_train(int argc, char **argv) {
    const char *set[256], *word[1], *config = NULL, *resume = "auto";
    tm_opt_list sets = {.value = set, .cap = TM_COUNT(set)};
    const char *trace = NULL;
    bool profile = false, quiet = false, keys = false, dry_run = false, allow = false, resumable = false,
         reported = false;
    double grace = 30;
    char ended[TM_ENDED_PATH] = "";
    int64_t replay = 0;
    const tm_opt opts[] = {
        TM_CONFIG_OPTION(&config),
        TM_OPTION("set", TM_OPT_LIST, &sets, "KEY=VALUE", "override one key of the configuration; may be repeated"),
        TM_OPTION("resume", TM_OPT_STRING, &resume, "auto|never|DIR",
                  "auto: go on from the output_dir's latest commit; never: start over; DIR: go on from there"),
        TM_FLAG("allow-numerics-change", &allow, "go on with another instruction set, library or number of threads"),
        TM_OPTION("grace", TM_OPT_DOUBLE, &grace, "SECONDS",
                  "after a signal that asks to stop: how long the step under way may take to end (30)"),
        TM_OPTION("replay-every", TM_OPT_INT, &replay, "N",
                  "compute every N-th step twice and compare the bits: finds a processor or memory that errs"),
        TM_OPTION("trace", TM_OPT_STRING, &trace, "FILE",
                  "write a Chrome trace (ui.perfetto.dev): every operation of every step, as simulated and as it ran"),
        TM_FLAG("profile", &profile,
                "say at the end, and in log.jsonl, where the seconds of a step went: by operation and by resource"),
        TM_FLAG("quiet", &quiet, "no first sample and no progress on stderr"),
        TM_FLAG("dry-run", &dry_run, "plan it, say what `tidemill plan` says, and stop before anything is made"),
        TM_FLAG("keys", &keys, "list every key of the configuration with its default and meaning"),
    };
    const tm_cli cli = {
        .usage = "train [CONFIG] [--KEY VALUE]... [--set key.path=value]... [--resume auto|never|DIR]",
        .about = "Fine-tunes a model. CONFIG holds tidemill's keys, a DeepSpeed configuration, or both; keys may be "
                 "options as well; "
                 "parameters and Adam "
                 "states are paged between the offload path and memory.host_budget. Writes OUTPUT_DIR/log.jsonl, one "
                 "line a step, "
                 "and a Hugging Face folder into OUTPUT_DIR.",
        .example = "tidemill train --model DIR --dataset train.jsonl --tuner_type lora --lora_rank 8\n"
                   "tidemill train config.json --memory.host_budget 512MiB --dry-run\n"
                   "tidemill train --keys",
        TM_CLI_OPTIONS(opts),
        .keys = &sets,
        TM_CLI_WORDS(word, 0, 1),
    };
    int rc = tm_cli_parse(&cli, argc, argv);
    if (rc >= 0) return rc;
    if (keys) return print_keys();
    if (!(grace >= 0)) return tm_cli_wrong("train", "--grace is a number of seconds, 0 at the least");
    if (replay < 0) return tm_cli_wrong("train", "--replay-every is a number of steps; 0: none is computed twice");
    rc = tm_cli_config("train", &config, word[0], &sets);
    if (rc >= 0) return rc;
    tm_train_args args = {.config = config,
                          .set = set,
                          .n_set = sets.count,
                          .resume = resume,
                          .quiet = quiet,
                          .trace = trace,
                          .profile = profile,
                          .allow_numerics_change = allow,
                          .replay_every = replay,
                          .scorer = &tm_task_scorer,
                          .grace_seconds = grace > 0 ? grace : 1e-9,
                          .reported = &reported,
                          .ended = ended,
                          .resumable = &resumable};
    if (dry_run) {
        args.dry_run = args.quiet = true;
        return tm_plan_show(&(tm_plan_args){.train = args}, false);
    }
    const char *seed = getenv("TIDEMILL_ORDER_SEED"); /* tests: run the plan in a random legal order */
    if (seed) args.order_seed = strtoull(seed, NULL, 10);
    if (tm_train_run(&args) == TM_OK) {
        if (*ended) tm_report_ended(ended);
        return TM_EXIT_DONE;
    }
    int failed = reported ? tm_exit_status(tm_error_get()->code) : tm_cmd_fail();
    return resumable ? TM_EXIT_SIGNAL : failed;
}
