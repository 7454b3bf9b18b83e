"""Questions asked backwards: for which sizes, for how many, for which mixer does a figure hold?"""
