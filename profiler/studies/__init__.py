"""Questions put to a machine as a whole: a plan, and a page from its records alone."""
