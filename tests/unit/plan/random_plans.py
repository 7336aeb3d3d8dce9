"""Plans drawn at random."""

from __future__ import annotations

from hypothesis import strategies as st
from msgspec.structs import replace
from small_plans import every, gather, plan, same, step

from merlin.plan.plan import Edge, Plan, StepInstance, StepKind


@st.composite
def plans(draw: st.DrawFn) -> Plan:
    """A random DAG in two queues: per-sample steps, single steps, function steps, aggregates with their manifests."""
    num_samples = draw(st.integers(1, 40))
    instances: list[StepInstance] = []
    for index in range(draw(st.integers(1, 6))):
        kind = draw(st.sampled_from([StepKind.CMD, StepKind.FUNCTION, StepKind.AGGREGATE]))
        per_sample = [i for i in instances if i.per_sample]
        if kind is StepKind.AGGREGATE and per_sample:
            instances += _aggregate(draw, f"s{index}", per_sample, instances)
            continue
        kind = StepKind.CMD if kind is StepKind.AGGREGATE else kind
        n = draw(st.sampled_from([1, num_samples]))
        edges: list[Edge] = []
        for source in instances:
            choice = draw(st.sampled_from(["", "", "same", "all", "all"]))
            if choice == "same" and source.per_sample and source.num_tasks == n:
                edges.append(same(source.id))
            elif choice == "all":
                edges.append(every(source.id, draw(st.sampled_from(["g", "h"]))))
        more = {
            "crash_limit": draw(st.integers(1, 3)),
            "on_failure": draw(st.sampled_from(["skip", "continue"])),
            "queue": draw(st.sampled_from(["cpu", "gpu"])),
            "resources": draw(st.sampled_from([{}, {}, {"procs": 3}, {"gpus": 0.5}])),
        }
        made = step(f"s{index}", n, *edges, kind=kind, canary=0, **more)
        instances.append(replace(made, per_sample=n == num_samples))
    return plan(*instances)


def _aggregate(
    draw: st.DrawFn, id: str, sources: list[StepInstance], instances: list[StepInstance]
) -> list[StepInstance]:
    first = draw(st.sampled_from(sources))
    chosen = tuple(s.id for s in sources if s.num_tasks == first.num_tasks)
    shards = gather(id, chosen, len(chosen) * first.num_tasks, draw(st.integers(1, 12)))
    waits = [every(i.id, "g") for i in instances if i.id not in chosen and draw(st.booleans())]
    shards = replace(shards, edges=(*shards.edges, *waits), per_sample=False, canary=0)
    manifest = replace(
        shards, id=f"{id}/manifest", kind=StepKind.MANIFEST, num_tasks=1, edges=(every(id, id),)
    )
    return [shards, manifest]
