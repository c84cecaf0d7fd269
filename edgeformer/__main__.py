"""`python -m edgeformer` is the command `edgeformer`."""

from edgeformer.cli.start import main

main()
