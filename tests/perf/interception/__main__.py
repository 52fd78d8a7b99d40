"""`python -m tests.perf.interception`."""

from tests.perf.interception.bench import main

main()
