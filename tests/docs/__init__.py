"""The documentation: the examples of the operators' pages, drawings, and the site as make docs builds it."""
