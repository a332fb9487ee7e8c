/* The socket that is listened on. */
#include "serve/http_internal.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static tm_status look_up(const char *host, uint16_t port, struct addrinfo **found) {
    const struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE | AI_NUMERICSERV};
    char number[8];
    (void)snprintf(number, sizeof number, "%u", (unsigned)port);
    int rc = getaddrinfo(host, number, &hints, found);
    if (rc) return tm_fail(TM_EINPUT, "--host %s: %s; give an address of this machine", host, gai_strerror(rc));
    return TM_OK;
}

static int bound(const struct addrinfo *at) {
    int on = 1, fd = socket(at->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0) return -1;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, at->ai_addr, at->ai_addrlen) == 0) return fd;
    int keep = errno;
    (void)close(fd);
    errno = keep;
    return -1;
}

static uint16_t port_of(int fd) {
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    if (getsockname(fd, (struct sockaddr *)&a, &n)) return 0;
    return ntohs(a.ss_family == AF_INET6 ? ((const struct sockaddr_in6 *)(const void *)&a)->sin6_port
                                         : ((const struct sockaddr_in *)(const void *)&a)->sin_port);
}

tm_status serve_bind(const char *host, uint16_t *port, int *out, bool *ipv6) {
    struct addrinfo *found;
    *out = -1;
    TM_TRY(look_up(host, *port, &found));
    for (const struct addrinfo *at = found; at && *out < 0; at = at->ai_next) {
        *out = bound(at);
        *ipv6 = at->ai_family == AF_INET6;
    }
    int why = errno;
    freeaddrinfo(found);
    if (*out < 0)
        return tm_fail_sys(TM_EINPUT, why, "bind", "", -1, "%s port %u cannot be listened on; give another --port",
                           host, (unsigned)*port);
    *port = port_of(*out);
    return TM_OK;
}

tm_status serve_listen(int listener) {
    if (listen(listener, SOMAXCONN) == 0) return TM_OK;
    return tm_fail_sys(TM_EIO, errno, "listen", "", -1, "the port cannot be listened on");
}

bool serve_is_loopback(int listener) {
    struct sockaddr_storage a;
    socklen_t n = sizeof a;
    if (getsockname(listener, (struct sockaddr *)&a, &n)) return false;
    if (a.ss_family == AF_INET6)
        return IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)(const void *)&a)->sin6_addr);
    return ntohl(((const struct sockaddr_in *)(const void *)&a)->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
}
