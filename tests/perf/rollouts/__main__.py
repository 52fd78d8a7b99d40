from tests.perf.rollouts.bench import main

main()
