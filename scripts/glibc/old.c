/* Functions that glibc 2.34 moved between its libraries, under the versions that
 * they have had since before 2.28. The linker finds them here first, so that the
 * program asks for no newer version; at run time the node's own libraries answer.
 * Nothing of this file is ever executed. */
#define GIVE(name) void name(void) {}
#ifdef PTHREAD
/* libc's own: a second library of its name would hide all the others. The dynamic
 * linker goes by the version and not by the library that is named with it. */
GIVE(__libc_start_main)
GIVE(pthread_create)
GIVE(pthread_key_create)
GIVE(pthread_setspecific)
GIVE(pthread_sigmask)
GIVE(pthread_attr_getstack)
GIVE(pthread_attr_getstacksize)
GIVE(pthread_getattr_np)
#endif
#ifdef DL
GIVE(dlopen)
GIVE(dlsym)
GIVE(dlclose)
GIVE(dlerror)
GIVE(dlinfo)
#endif
