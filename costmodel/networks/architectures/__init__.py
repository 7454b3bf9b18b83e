"""One reader a file: the configuration of a family of models in, its blocks out."""
