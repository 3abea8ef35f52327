"""counts.py LOG - reads what one test program printed and says how many cases passed, failed and were
skipped, as "PASSED FAILED SKIPPED", followed by one line "skip NAME: REASON" for each skip and by
"fail WHAT IT SAID" for each failed case that said something.

Knows Criterion's TAP, the plain runner ("N tests passed") and programs that end with the line
"N passed, N failed[, N skipped]". A log that is none of these counts as nothing.
"""
import re
import sys

PLAN = re.compile(r"^1\.\.(\d+)")
CASE = re.compile(r"^(ok|not ok) (?:\d+ )?- (\S+)(?:.*# SKIP ?(.*))?")
SUMMARY = re.compile(r"^(\d+) passed, (\d+) failed(?:, (\d+) skipped)?$")
PLAIN = re.compile(r"^(\d+) tests passed$")
FAILURES_MAX, FAILURE_CHARACTERS = 5, 900  # more is in the log


def main():
    passed = failed = planned = 0
    skips, failures = [], []
    summary = None
    with open(sys.argv[1], encoding="utf-8", errors="replace") as log:
        for line in log:
            line = line.rstrip("\n")
            case = CASE.match(line)
            if case and case[3] is not None:
                skips.append((case[2], case[3] or "no reason given"))
            elif case:
                if case[1] == "not ok":
                    failures.append(line.removeprefix("not ok - "))
                passed += case[1] == "ok"
                failed += case[1] == "not ok"
            elif PLAN.match(line):
                planned += int(PLAN.match(line)[1])
            elif PLAIN.match(line):
                passed += int(PLAIN.match(line)[1])
            elif SUMMARY.match(line):
                summary = [int(number or 0) for number in SUMMARY.match(line).groups()]
            elif line.startswith("skip: "):
                name, _, reason = line[6:].partition(": ")
                skips.append((name, reason))
    if summary:
        passed, failed, skipped = summary
    else:
        skipped = len(skips)
    # Cases that were announced and never reported died with the program.
    failed += max(0, planned - passed - failed - skipped) if not summary else 0
    print(passed, failed, skipped)
    for name, reason in skips:
        print(f"skip {name}: {reason}")
    for what in failures[:FAILURES_MAX]:
        print(f"fail {what[:FAILURE_CHARACTERS]}")


if __name__ == "__main__":
    main()
