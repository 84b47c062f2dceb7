"""Tests of the page in a real browser: `make test-page`, after `make browser`."""
