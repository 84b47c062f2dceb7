"""README's commands on a minimal Debian that has README's packages, as a user without rights: `make test-bare`."""
