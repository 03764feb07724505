"""`python -m nfk.demo`."""

import tyro

from nfk.demo.show import show

if __name__ == "__main__":
    tyro.cli(show, prog="python -m nfk.demo")
