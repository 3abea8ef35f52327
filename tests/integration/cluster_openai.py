#!/usr/bin/env python3
"""The unmodified openai package against a standalone Forge and against a cluster: the checks are in
tests/conformance/openai_client.py, this starts what they need."""
# needs: openai
# needs-model
import re
import subprocess
import sys

from _forge import ROOT, Suite


def conformance(suite, name, shape):
    """Each check of the client counts as a case of its own."""
    with suite.cluster(model=suite.smollm2(), **shape) as cluster:
        done = subprocess.run([sys.executable, str(ROOT / "tests/conformance/openai_client.py"),
                               cluster.url], capture_output=True, text=True, timeout=600, check=False)
        print("".join(f"  {line}\n" for line in done.stdout.splitlines()), end="")
        match = re.search(r"(\d+) passed, (\d+) failed, (\d+) skipped", done.stdout)
        assert match, f"no count at the end (status {done.returncode}): {done.stderr[-500:]}"
        passed, failed, skipped = map(int, match.groups())
        suite.passed += passed
        suite.failed += failed
        suite.skipped += skipped
        assert done.returncode == 0 and failed == 0, f"{failed} checks failed over {name}"
        cluster.wait_at_rest()


def main():
    suite = Suite(__doc__)
    suite.case("standalone", conformance, suite, "standalone", dict(standalone=True))
    suite.case("1P+1D", conformance, suite, "the cluster", dict(prefill=1, decode=1))
    suite.end()


if __name__ == "__main__":
    main()
