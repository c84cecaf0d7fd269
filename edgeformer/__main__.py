"""`python -m edgeformer` is the command `edgeformer`."""

from edgeformer.cli.main import main

main()
