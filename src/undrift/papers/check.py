import sys
from pathlib import Path

from undrift.papers.claims import holds
from undrift.papers.file import read
from undrift.papers.scales import SCALES, plan
from undrift.runs.jobs import jobs

bad = 0
for name in sys.argv[1:]:
    try:
        p = read(Path(name))
        print("ok  ", name, len(p.cells), "cells", len(p.claims), "claims")
        for c in p.claims:
            look = {(x.panel, x.method): x.value for x in p.cells if (x.quantity == c.quantity)}
            got = holds(c, p, lambda a, b: look.get((a, b)))
            if (got is False) != c.contradicted:
                bad += 1
                print("  claim is", got, "of the published numbers:", c.text)
        if p.experiment is not None:
            for s in SCALES:
                runs = plan(p, s)
                print(
                    "  ", s, len(runs), "panels", sum(len(jobs(r.experiment)) for r in runs), "jobs"
                )
    except Exception as e:
        bad += 1
        print("BAD ", name, type(e).__name__, e)
sys.exit(bad > 0)
