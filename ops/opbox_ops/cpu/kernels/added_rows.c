/* Rows added at positions, of the type NUMBER; `added_rows` says what is computed. */

typedef NUMBER number;

void add_rows(long count, long width, const long *where, const number *restrict rows, number *restrict total)
{
    for (long r = 0; r < count; r++) {
        const number *restrict row = rows + r * width;
        number *restrict sum = total + where[r] * width;
        for (long c = 0; c < width; c++) sum[c] += row[c];
    }
}
