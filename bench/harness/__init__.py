"""The benchmark harness: counters, interleaved rounds, statistics, the report. The loads stand in ../loads."""
