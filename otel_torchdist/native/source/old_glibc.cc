// A symbol of glibc 2.32 that libstdc++'s shared_ptr reads where the headers have it; wheels must load on glibc 2.28.
// Ours is always false: a process with torch has threads, so references are counted atomically in any case.

extern "C" __attribute__((visibility("hidden"))) char __libc_single_threaded;
char __libc_single_threaded = 0;
