"""What `vf-tui doctor` looks at: what this machine can do, and what is missing or broken."""
