/* What one of libgomp's threads does in a round, beside looking for work. */

#if defined(__x86_64__)
#define PAUSE __builtin_ia32_pause()
#else
#define PAUSE __asm__ volatile("" ::: "memory")
#endif
void opbox_pauses(long count)
{
    for (long i = 0; i < count; i++) PAUSE;
}
