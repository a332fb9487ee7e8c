/* libmicrohttpd, loaded when a server starts: with what it needs in its turn (TLS, which is not used) it would take 3 MiB of
 * every process. */
#ifndef TIDEMILL_SERVE_HTTP_LIBRARY_INTERNAL_H
#define TIDEMILL_SERVE_HTTP_LIBRARY_INTERNAL_H

#include "base/base.h"

#include <microhttpd.h>

/* Its calls, by their names less MHD_. */
#define HTTP_LIBRARY_CALLS(X)                                                                                          \
    X(add_response_header)                                                                                             \
    X(create_response_from_buffer_with_free_callback)                                                                  \
    X(create_response_from_callback)                                                                                   \
    X(destroy_response)                                                                                                \
    X(get_connection_info)                                                                                             \
    X(get_daemon_info)                                                                                                 \
    X(get_timeout)                                                                                                     \
    X(lookup_connection_value)                                                                                         \
    X(queue_response)                                                                                                  \
    X(quiesce_daemon)                                                                                                  \
    X(resume_connection)                                                                                               \
    X(run)                                                                                                             \
    X(start_daemon)                                                                                                    \
    X(stop_daemon)                                                                                                     \
    X(suspend_connection)

typedef struct http_library {
#define HTTP_LIBRARY_MEMBER(name) __typeof__(&MHD_##name) name;
    HTTP_LIBRARY_CALLS(HTTP_LIBRARY_MEMBER)
#undef HTTP_LIBRARY_MEMBER
} http_library;
extern http_library mhd; /* once http_library_load returned TM_OK */

/* For the life of the process. TM_EUNSUPPORTED: it is not installed, with what to do. Not from several threads at a time. */
tm_status http_library_load(void) TM_MUST_USE;

#endif
