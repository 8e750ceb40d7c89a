"""The command line: data on stdout, everything else on stderr, one sentence for every mistake."""
