/* The sizes of a convolution's or a pooling's windows over an array whose channels lie last: `WindowSizes`. */
#pragma once

typedef struct {
    long batch, height, width, channels, out_height, out_width, down_kernel, across_kernel, down, across, dilate_down,
        dilate_across, above, before, first;
} Windows;
