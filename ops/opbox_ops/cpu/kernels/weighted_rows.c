/* Weighted sums of rows, of the type NUMBER; `weighted_rows` says what is computed. */

typedef NUMBER number;

void gather(long first, long last, long n, long taps, long channels, const long *places, const number *weights,
            const number *restrict table, number *restrict out, number *unused)
{
    for (long r = first; r < last; r++) {
        number *restrict sum = out + r * channels;
        for (long c = 0; c < channels; c++) sum[c] = 0;
        for (long k = 0; k < taps; k++) {
            const number weight = weights[k * n + r], *restrict row = table + places[k * n + r] * channels;
            for (long c = 0; c < channels; c++) sum[c] += weight * row[c];
        }
    }
}

void spread(long first, long last, long n, long taps, long channels, const long *places, const number *weights,
            number *restrict table, const number *restrict rows, number *unused)
{
    for (long r = first; r < last; r++) {
        const number *restrict row = rows + r * channels;
        for (long k = 0; k < taps; k++) {
            const number weight = weights[k * n + r];
            number *restrict sum = table + places[k * n + r] * channels;
            for (long c = 0; c < channels; c++) sum[c] += weight * row[c];
        }
    }
}

void products(long first, long last, long n, long taps, long channels, const long *places, const number *unused,
              const number *restrict table, const number *restrict rows, number *restrict out)
{
    for (long r = first; r < last; r++) {
        const number *restrict one = rows + r * channels;
        for (long k = 0; k < taps; k++) {
            const number *restrict other = table + places[k * n + r] * channels;
            number sums[16] = {0}, sum = 0;
            long c = 0;
            for (; c + 16 <= channels; c += 16)
                for (long j = 0; j < 16; j++) sums[j] += one[c + j] * other[c + j];
            for (; c < channels; c++) sum += one[c] * other[c];
            for (long j = 0; j < 16; j++) sum += sums[j];
            out[k * n + r] = sum;
        }
    }
}
