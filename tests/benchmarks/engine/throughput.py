"""Throughput of the engine by each way to reach it; --help says how. The work is done by aphrodited.bench.throughput."""

from aphrodited.bench.throughput import main

if __name__ == "__main__":
    main()
