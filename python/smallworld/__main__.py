"""python -m smallworld is the command smallworld."""

from .program import main

main()
