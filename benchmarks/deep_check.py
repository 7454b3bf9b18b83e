"""Does `check --deep` accept every module of the catalogue, and how long does it take for each?

    python -m benchmarks.deep_check [--thin K] [MIXER ...]

Every K-th draw is tried; by default every draw, as the command does. A line for each module: its
seconds of processor time, how many proofs hold, and what fails or is not checked, with the reason.
"""

from __future__ import annotations

import argparse
import sys
import time

import costmodel as cm
from benchmarks.timing import environment
from costmodel.mixers import names
from profiler.modules.registry import implementations
from profiler.proofs.deep import deep_proofs


def main() -> None:
    """Print a line for each module, and fail where one is refused."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--thin", type=int, default=1)
    parser.add_argument("mixers", nargs="*")
    asked = parser.parse_args()
    share = f" whose number is a multiple of {asked.thin}" * (asked.thin > 1)
    print(f"{environment('torch')}; every draw{share}")
    refused = modules = 0
    for name in asked.mixers or names():
        mixer = cm.mixer(name)
        for own, described in implementations(mixer).items():
            begun = time.process_time()
            found = list(deep_proofs(mixer, described, 0, asked.thin))
            holds = sum(proof.passed is True for proof in found)
            took = time.process_time() - begun
            print(f"{name} {own}: {took:.0f} s, {holds} hold", flush=True)
            for proof in found:
                if not proof.passed:
                    verdict = "FAILS" if proof.passed is False else "not checked"
                    print(f"    {verdict}: {proof.name}: {proof.detail}", flush=True)
            refused += any(proof.passed is False for proof in found)
            modules += 1
    print(f"{refused} of {modules} modules are refused")
    sys.exit(1 if refused else 0)


if __name__ == "__main__":
    main()
