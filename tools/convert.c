/* tidemill convert IN OUT: GGUF <-> Hugging Face folder. */
#include "format/format.h"
#include "tools/tools.h"

#include <signal.h>
#include <stdio.h>
#include <unistd.h>

/* What one conversion needs whatever the model's size: buffers, the table of tensors, the tokenizer's text. */
#define CONVERT_MINIMUM (64 * TM_MIB)

static volatile sig_atomic_t stop;

static void on_signal(int number) {
    (void)number;
    stop = 1;
}

/* Stopping goes through the ordinary way out, which removes what was begun. */
static void catch_signals(void) {
    const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE};
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    for (size_t i = 0; i < TM_COUNT(numbers); i++) (void)sigaction(numbers[i], &action, NULL);
}

static void show(void *ctx, uint64_t done, uint64_t total) {
    tm_phase *p = ctx;
    p->total = total;
    tm_phase_at(p, done);
}

int tm_cmd_convert(int argc, char **argv) {
    const char *place[2] = {NULL, NULL}, *dtype = NULL, *offload = NULL;
    uint64_t host_budget = UINT64_MAX;
    const tm_opt opts[] = {
        TM_OPTION("dtype", TM_OPT_STRING, &dtype, "TYPE",
                  "f32, bf16, f16, and to GGUF q8_0, q4_0, q4_1; default: f32 to a folder, the source's to GGUF"),
        TM_OPTION("host-budget", TM_OPT_SIZE, &host_budget, "SIZE", "limit of host memory; at least 64MiB"),
        TM_OPTION("offload-path", TM_OPT_STRING, &offload, "PATH",
                  "taken, but nothing is offloaded: tensors are streamed")};
    const tm_cli cli = {.usage = "convert IN OUT [--dtype TYPE] [--host-budget SIZE] [--offload-path PATH]",
                        .about =
                            "Converts a .gguf file or a Hugging Face folder (IN) into a folder, or into GGUF where OUT "
                            "ends in .gguf. OUT appears when it is complete.",
                        .example = "tidemill convert SmolLM2-135M-Instruct.Q4_1.gguf smollm2",
                        TM_CLI_OPTIONS(opts),
                        TM_CLI_WORDS(place, 2, 2)};
    int rc = tm_cli_parse(&cli, argc, argv);
    if (rc >= 0) return rc;
    if (host_budget < CONVERT_MINIMUM) {
        (void)tm_fail(TM_EBUDGET, "convert needs a host budget of %llu bytes (64MiB)",
                      (unsigned long long)CONVERT_MINIMUM);
        return tm_cmd_fail();
    }
    tm_phase p;
    const tm_convert_opts c = {.dtype = dtype, .progress = show, .ctx = &p, .stop = &stop};
    tm_phase_begin(&p, "converting", NULL, 0);
    catch_signals();
    tm_status status = tm_convert(place[0], place[1], &c);
    tm_phase_end(&p);
    return status == TM_OK ? 0 : tm_cmd_fail();
}
