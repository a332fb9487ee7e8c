/* In place of http.c in a build without libmicrohttpd. */
#include "serve/http_internal.h"

bool serve_http_here(void) {
    return false;
}

tm_status serve_http_start(serve_http **out, const serve_http_opts *opts) {
    (void)opts;
    *out = NULL;
    return tm_fail(TM_EUNSUPPORTED,
                   "this build has no `serve`: libmicrohttpd was not there; install libmicrohttpd-dev (tools/deps.sh "
                   "build) and configure and build again");
}

void serve_http_stop(serve_http *h) {
    (void)h;
}
