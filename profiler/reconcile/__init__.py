"""What stands on each rung of a reconciliation, and what explains the gaps?"""
