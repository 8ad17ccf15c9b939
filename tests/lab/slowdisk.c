/* A disk in need: the lab preloads it into every program of a host, and each fsync takes a second and a half more. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <unistd.h>

int fsync(int handle) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    if (access("/etc/lab-slow-disk", F_OK) == 0) usleep(1500000);
    return real(handle);
}
