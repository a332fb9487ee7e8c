/* A server over the fake engine: serve_fake MODEL SEQUENCES [KEY]. It has an adapter "low". */
#include "serve/serve.h"

#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv) {
    static const char *const folders[] = {"unused"}, *const names[] = {"low"};
    if (argc < 3) return 2;
    const tm_serve_args a = {.engine = {.model = argv[1],
                                        .sequences = (uint32_t)strtoul(argv[2], NULL, 10),
                                        .adapters = folders,
                                        .n_adapters = 1},
                             .names = names,
                             .name = "tide",
                             .api_key = argc > 3 ? argv[3] : NULL,
                             .grace_s = 2,
                             .receive_s = 2};
    tm_status rc = tm_serve_run(&a);
    if (rc != TM_OK) (void)fprintf(stderr, "tidemill: %s\n", tm_error_get()->text);
    return rc == TM_OK ? 0 : 1;
}
