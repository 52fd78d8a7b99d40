"""What was ever asked for, what there is of it, and how it is got rid of: ledger, inventory, cleanup."""
