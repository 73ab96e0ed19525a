"""One file a load. Each has run(context), which gives rows: title, rounds, and what restitch reported."""
