/* What BatchNorm by its moving statistics multiplies by and adds; `norm_numbers` says what is computed. */

void opbox_norm_numbers(const float *restrict gamma, const float *restrict beta, const float *restrict mean,
                        const float *restrict variance, float *restrict numbers, long row, long channels, int fixes,
                        float eps)
{
    for (long j = 0; j < channels; j++) {
        numbers[j] = mean[j];
        const float inverse = 1 / __builtin_sqrtf(variance[j] + eps);
        numbers[row + j] = fixes ? inverse : inverse * gamma[j];
        numbers[2 * row + j] = beta[j];
    }
}
