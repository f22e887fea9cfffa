/* Holds each TCP connection of a program to PACED_BYTES bytes a second, as networks do that give each a share of the link.
 *
 * usage: LD_PRELOAD=paced.so PACED_BYTES=N PROGRAM
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/socket.h>

static void pace(int socket) {
    const char *bytes = getenv("PACED_BYTES");
    unsigned long rate = bytes ? strtoul(bytes, NULL, 10) : 0;
    /* TCP does it by itself, without a queue that paces. Other sockets refuse it. */
    if (rate) setsockopt(socket, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate);
}

int connect(int socket, const struct sockaddr *address, socklen_t length) {
    int (*next)(int, const struct sockaddr *, socklen_t) = dlsym(RTLD_NEXT, "connect");
    pace(socket);
    return next(socket, address, length);
}

int accept(int socket, struct sockaddr *address, socklen_t *length) {
    int (*next)(int, struct sockaddr *, socklen_t *) = dlsym(RTLD_NEXT, "accept");
    int accepted = next(socket, address, length);
    if (accepted >= 0) pace(accepted);
    return accepted;
}

int accept4(int socket, struct sockaddr *address, socklen_t *length, int flags) {
    int (*next)(int, struct sockaddr *, socklen_t *, int) = dlsym(RTLD_NEXT, "accept4");
    int accepted = next(socket, address, length, flags);
    if (accepted >= 0) pace(accepted);
    return accepted;
}
