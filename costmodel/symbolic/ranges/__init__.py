"""The ranges of one size in which exact quantities keep their order, proven for every size."""
