/* Max pooling; `max_pooling` says what is computed. FLOAT16, BFLOAT16 or neither is defined: the type is float32 then.

   Numbers of 16 bits are compared as integers, which have their order: the size with its sign, NaN above all. Gradients
   are added up in float32. */

#if defined(FLOAT16) || defined(BFLOAT16)
#include "half_numbers.h"

#if defined(FLOAT16)
#define INFINITE 0x7c00
#define WIDEN widen_float16
#else
#define INFINITE 0x7f80
#define WIDEN widen_bfloat16
#endif

typedef unsigned short Number;
typedef short Key;
static inline Key key_of(Number x)
{
    const Key size = x & 0x7fff, own = x & 0x8000 ? -size : size;
    return size > INFINITE ? 0x7fff : own;
}
static inline Key larger(Key one, Key other) { return one > other ? one : other; }
#define LOWEST (-0x7fff)
#define LARGER(x, most) larger(key_of(x), most)
#define NUMBER_OF(key) ((key) < 0 ? 0x8000 | -(key) : (key))
#define SAME(x, y) ((((x) == (y)) | !(((x) | (y)) & 0x7fff)) & (((x) & 0x7fff) <= INFINITE))
#define WIDE(from, scratch, count) (WIDEN(scratch, from, count), scratch)
#else
typedef float Number, Key;
#define LOWEST (-__builtin_inff())
#define LARGER(x, most) (((x) > (most)) | ((x) != (x)) ? (x) : (most))
#define NUMBER_OF(key) (key)
#define SAME(x, y) ((x) == (y))
#define WIDE(from, scratch, count) ((void)(scratch), (from))
#endif

#include "loops.h"
#include "windows.h"

/* So many CHANNELS at a time stay in registers; a thread has a BAND of rows of data, or of some of out, at a time; work
   of up to ALONE numbers is one thread's. */
enum { CHANNELS = 32, BAND = 16, ALONE = 1 << 15 };
#define MIN(x, y) ((x) < (y) ? (x) : (y))
#define MAX(x, y) ((x) > (y) ? (x) : (y))

/* What is inside of data, of a window that begins at `start`: from its tap `first` to before `end`. */
typedef struct {
    long start, first, end;
} Reach;

static inline Reach reach(long at, long step, long before, long kernel, long size)
{
    const long start = at * step - before;
    return (Reach){start, MAX(0, -start), MIN(kernel, size - start)};
}

void opbox_max_pooling(const Number *restrict data, Number *restrict out, const Windows *windows)
{
    const Windows w = *windows;
    const long rows = w.batch * w.out_height, row = w.width * w.channels;
    const int threads = w.batch * w.height * row > ALONE ? omp_get_max_threads() : 1;
    IN_THREADS(n, rows, 1) {
        const Number *image = data + n / w.out_height * w.height * row;
        const Reach down = reach(n % w.out_height, w.down, w.above, w.down_kernel, w.height);
        for (long x = 0; x < w.out_width; x++) {
            const Reach right = reach(x, w.across, w.before, w.across_kernel, w.width);
            Number *to = out + (n * w.out_width + x) * w.channels;
            for (long c = 0; c < w.channels; c += CHANNELS) {
                const long count = MIN(w.channels - c, CHANNELS);
                Key most[CHANNELS];
                for (int k = 0; k < CHANNELS; k++) most[k] = LOWEST;
                for (long i = down.first; i < down.end; i++)
                    for (long j = right.first; j < right.end; j++) {
                        const Number *from = image + (down.start + i) * row + (right.start + j) * w.channels + c;
                        if (count == CHANNELS)
                            for (int k = 0; k < CHANNELS; k++) most[k] = LARGER(from[k], most[k]);
                        else
                            for (long k = 0; k < count; k++) most[k] = LARGER(from[k], most[k]);
                    }
                for (long k = 0; k < count; k++) to[c + k] = NUMBER_OF(most[k]);
            }
        }
    }
}

/* Adds a row of gout to the rows of an image from `low` to before `high`. */
static inline void add_windows(const Windows *w, long y, const Number *restrict gout, const Number *restrict data,
                               const Number *restrict out, float *restrict gdata, long low, long high)
{
    const Reach down = reach(y, w->down, w->above, w->down_kernel, w->height);
    const long row = w->width * w->channels;
    for (long x = 0; x < w->out_width; x++) {
        const Reach right = reach(x, w->across, w->before, w->across_kernel, w->width);
        const long window = (y * w->out_width + x) * w->channels;
        for (long c = 0; c < w->channels; c += CHANNELS) {
            const long count = MIN(w->channels - c, CHANNELS);
            float scratch[CHANNELS];
            const float *share = WIDE(gout + window + c, scratch, count);
            const Number *top = out + window + c;
            int left[CHANNELS];
            for (int k = 0; k < CHANNELS; k++) left[k] = 1;
            for (long i = down.first; i < down.end; i++) {
                const long r = down.start + i;
                const int own = r >= low && r < high;
                for (long j = right.first; j < right.end; j++) {
                    const long place = r * row + (right.start + j) * w->channels + c;
                    const Number *from = data + place;
                    float *to = gdata + place;
                    if (own)
                        for (long k = 0; k < count; k++) {
                            const int here = SAME(from[k], top[k]) & left[k];
                            to[k] += here ? share[k] : 0;
                            left[k] ^= here;
                        }
                    else
                        for (long k = 0; k < count; k++) left[k] &= !SAME(from[k], top[k]);
                }
            }
        }
    }
}

void opbox_max_pooling_gradient(const Number *restrict gout, const Number *restrict data, const Number *restrict out,
                                float *restrict gdata, const Windows *windows)
{
    const Windows w = *windows;
    const long row = w.width * w.channels, bands = (w.height + BAND - 1) / BAND;
    const int threads = w.batch * w.height * row > ALONE ? omp_get_max_threads() : 1;
    IN_THREADS(band, w.batch * bands, 1) {
        const long n = band / bands, low = band % bands * BAND, high = MIN(w.height, low + BAND);
        const long small = n * w.out_height * w.out_width * w.channels, large = n * w.height * row;
        long clean = low;
        for (long y = 0; y < w.out_height; y++) {
            const long start = y * w.down - w.above, end = MIN(high, start + w.down_kernel);
            if (end <= low || start >= high) continue;
            for (; clean < end; clean++)
                for (long k = 0; k < row; k++) gdata[large + clean * row + k] = 0;
            add_windows(&w, y, gout + small, data + large, out + small, gdata + large, low, high);
        }
        for (; clean < high; clean++)
            for (long k = 0; k < row; k++) gdata[large + clean * row + k] = 0;
    }
}
