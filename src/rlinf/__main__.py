"""`python -m rlinf`: the `rlinf` command, where a module's name is wanted, as of `python -m pdb -m`."""

from rlinf_scheduler.cli.main import main

if __name__ == "__main__":
    main()
