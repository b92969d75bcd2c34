// A symbol of glibc 2.32 that libstdc++'s shared_ptr reads. Wheels must load on glibc 2.28, which lacks it. It is always
// false: a process with torch has threads, so references must be counted atomically.

extern "C" __attribute__((visibility("hidden"))) char __libc_single_threaded;
char __libc_single_threaded = 0;
