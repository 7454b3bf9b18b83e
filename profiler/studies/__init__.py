"""Studies: a plan of measurements that answers a question, and a page made from its records."""
