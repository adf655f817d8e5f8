"""Build the decoding kernels for this machine's CPU, once: they are kept in ~/.cache/pasta.

    python -m jobs.kernels

Needs torch and a C++ compiler, and a CPU with AVX2 and FMA or with AVX-512. Decoding works without them, slower.
"""

from pasta.entrypoint import CommandParser, run_main


def main(arguments: list[str] | None = None) -> int:
    CommandParser(prog="python -m jobs.kernels", description=__doc__).parse_args(arguments)
    from pasta.engine import kernels  # it imports torch

    print(f"kernels: {kernels.build_extension()}")
    return 0


if __name__ == "__main__":
    run_main(main)
