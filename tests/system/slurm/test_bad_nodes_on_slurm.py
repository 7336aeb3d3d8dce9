"""A node on which everything fails that succeeds elsewhere."""

from __future__ import annotations

import json

from waiting import wait_until

BROKEN = "/tmp/broken"  # /tmp is a node's own
SPEC = f"""
description: {{name: fickle, description: fails on a node that is broken}}
study:
  - name: work
    description: the last samples wait until they are let go
    run:
      cmd: |
        sleep 0.1
        test ! -e {BROKEN} || exit 1
        while test $(MERLIN_SAMPLE_ID) -ge 40 -a -e $(SPECROOT)/hold; do sleep 0.1; done
merlin:
  samples: {{generate: {{method: uniform, num: 60, bounds: {{X: [0, 1]}}, seed: 1}}, column_labels: [X]}}
"""


def test_a_bad_node_is_quarantined_and_named_and_what_failed_there_runs_elsewhere(site):
    (site.folder / "fickle.yaml").write_text(SPEC)
    (site.folder / "hold").touch()
    site.cluster.nodes["node2"].run("touch", BROKEN)
    try:
        published = json.loads(site.merlin("run", "fickle.yaml", "--json").stdout)
        job = site.submit_workers(site.folder / "fickle.yaml", "--nodes=2")

        def explained() -> str:
            return site.merlin("workers", "explain", published["workspace"], code=None).stdout

        wait_until(
            lambda: "node2 gets nothing more" in explained(), lambda: f"{explained()}\n{site.describe()}"
        )
        (site.folder / "hold").unlink()
        report = json.loads(site.merlin("monitor", published["workspace"], "--json").stdout)
        assert (report["planned"], report["ok"]) == (60, 60)
    finally:
        site.cluster.nodes["node2"].run("rm", BROKEN)
    tasks = json.loads(site.merlin("detailed-status", published["workspace"], "--json").stdout)
    assert {task["host"] for task in tasks} == {"node1"}
    assert site.cluster.wait_until_over(job) == {job: "COMPLETED"}
