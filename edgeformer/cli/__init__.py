"""The command line: one file per subcommand, each a parser of options for a public Python function."""
