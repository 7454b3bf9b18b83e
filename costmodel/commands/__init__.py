"""Options, output and error sentences that the commands share."""
