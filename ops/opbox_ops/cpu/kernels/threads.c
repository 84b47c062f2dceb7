/* The threads of kernels that are built with the distribution: libgomp's, by the functions that the process has of it.

   A library of such kernels does not link libgomp: a wheel would have to bring one of its own, whose threads would take
   the cores from those of the process's. What GCC makes of OpenMP's pragmas calls the functions below. Before
   `opbox_use_threads`, and on a machine without libgomp, a region has one thread. */

#define HIDDEN __attribute__((visibility("hidden")))
#define SHOWN __attribute__((visibility("default")))

typedef struct {
    void (*parallel)(void (*)(void *), void *, unsigned, unsigned);
    int (*number)(void), (*most)(void), (*count)(void);
    void (*barrier)(void);
} Threads;

static void in_one_thread(void (*function)(void *), void *data, unsigned threads, unsigned flags) { function(data); }
static int none(void) { return 0; }
static int one(void) { return 1; }
static void nothing(void) {}

static Threads in_use = {in_one_thread, none, one, one, nothing};

SHOWN void opbox_use_threads(const Threads *threads);
void opbox_use_threads(const Threads *threads) { in_use = *threads; }

HIDDEN void GOMP_parallel(void (*function)(void *), void *data, unsigned threads, unsigned flags);
void GOMP_parallel(void (*function)(void *), void *data, unsigned threads, unsigned flags)
{
    in_use.parallel(function, data, threads, flags);
}

HIDDEN void GOMP_barrier(void);
void GOMP_barrier(void) { in_use.barrier(); }

HIDDEN int omp_get_thread_num(void);
int omp_get_thread_num(void) { return in_use.number(); }

HIDDEN int omp_get_max_threads(void);
int omp_get_max_threads(void) { return in_use.most(); }

HIDDEN int omp_get_num_threads(void);
int omp_get_num_threads(void) { return in_use.count(); }
