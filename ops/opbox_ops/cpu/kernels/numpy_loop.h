/* A loop of NumPy's, and the data that it is called with: `Loop`. */
#pragma once

typedef struct {
    void (*function)(char **, const long *, const long *, void *);
    void *data;
} Loop;
