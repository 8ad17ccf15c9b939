/* A disk in need: the lab preloads it into every program of a host, and each fsync of what lies below /home takes a
   second and a half more. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

int fsync(int handle) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
    char link[64], path[4096] = "";
    snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
    if (readlink(link, path, sizeof path - 1) > 0 && strncmp(path, "/home/", 6) == 0 &&
        access("/etc/lab-slow-disk", F_OK) == 0)
        usleep(1500000);
    return real(handle);
}
