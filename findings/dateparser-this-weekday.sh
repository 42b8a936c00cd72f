#!/usr/bin/env bash
# "wed 10:15", asked on a Wednesday at 10:30, is a week ago for dateparser, though "10:15" is today.
#
# Versions: dateparser 1.5.0, on Python 3.11.
# Behaviour: PREFER_DATES_FROM="past" is the setting for questions about what happened. It looks at
#   the clock for a time alone ("10:15" is today, "10:45" yesterday) and for a date ("25 nov 10:45"
#   is last year's), but not for a weekday: the present day's name always means a week ago, also with
#   a clock time that has passed. What does not fit is dropped without an error: the year of
#   "14:05 2026", both clock times of "1 year ago 3am 4pm"; "a" is January, and "5" is May.
# Seen (2026-11-29), with 2026-11-25 10:30, a Wednesday, as the present:
#   10:15              2026-11-25 10:15
#   10:45              2026-11-24 10:45
#   wed 10:15          2026-11-18 10:15
#   today 10:15        2026-11-25 10:15
#   25 nov 10:15       2026-11-25 10:15
#   25 nov 10:45       2025-11-25 10:45
#   14:05 2026         2026-11-25 14:05
#   1 year ago 3am 4pm 2025-11-25 10:30
#   a                  2026-01-25 00:00
#   5                  2026-05-25 00:00
# Needs: python3 with venv. Takes half a minute.
set -euo pipefail

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check dateparser==1.5.0

"$work/venv/bin/python" - > "$work/seen" << 'PYTHON'
from datetime import datetime

import dateparser

settings = {"RELATIVE_BASE": datetime(2026, 11, 25, 10, 30), "PREFER_DATES_FROM": "past"}
for text in (
    "10:15", "10:45", "wed 10:15", "today 10:15", "25 nov 10:15", "25 nov 10:45",
    "14:05 2026", "1 year ago 3am 4pm", "a", "5",
):
    found = dateparser.parse(text, languages=["en"], settings=settings)
    print(f"{text:18} {found:%Y-%m-%d %H:%M}")
PYTHON
cat "$work/seen"
sed -n '/^# Seen/,/^# Needs/{s/^#   //p}' "$0" | diff - "$work/seen" && echo "as the head of this file says"
