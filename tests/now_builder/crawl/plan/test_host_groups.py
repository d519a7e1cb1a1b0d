"""Host groups: two workers never crawl the same host."""

from hypothesis import given, settings
from hypothesis import strategies as st

from now_builder.crawl.plan.planning import (
    assign_host_groups,
    extend_plan,
    host_groups,
    join_into_tasks,
)
from now_builder.formats.shard import Planned

URLS = st.lists(
    st.tuples(st.integers(0, 40), st.integers(0, 99)).map(
        lambda at: f"http://site{at[0]}.test/{at[1]}"
    ),
    min_size=1,
    max_size=120,
)


def hosts(plan: list[Planned], shards: set[int]) -> set[str]:
    return {line.site for line in plan if line.shard in shards}


@settings(max_examples=25)
@given(URLS, st.integers(1, 40))
def test_two_host_groups_share_no_host_and_every_shard_is_in_one(
    urls: list[str], size: int
) -> None:
    plan = assign_host_groups(extend_plan([], urls, size), set())
    groups = [set(group) for group in host_groups(plan)]
    assert sorted(shard for group in groups for shard in group) == sorted(
        {line.shard for line in plan}
    )
    sites = [hosts(plan, group) for group in groups]
    assert sum(map(len, sites)) == len(set().union(*sites))


@settings(max_examples=25)
@given(URLS, URLS, st.randoms())
def test_host_groups_of_an_extended_plan_keep_hosts_of_unfinished_shards_together(
    urls: list[str], later: list[str], rng
) -> None:
    plan = assign_host_groups(extend_plan([], urls, 16), set())
    shards = {line.shard for line in plan}
    finished = {shard for shard in shards if rng.random() < 0.5}
    extended = assign_host_groups(extend_plan(plan, urls + later, 16), finished)
    assert [line.key for line in extended[: len(plan)]] == [line.key for line in plan]
    before = {line.shard: line.host_group for line in plan}
    assert all(line.host_group == before[line.shard] for line in extended if line.shard in finished)
    group_of_host: dict[str, int] = {}
    for line in extended:
        if line.shard not in finished:
            assert group_of_host.setdefault(line.site, line.host_group) == line.host_group


def test_a_finished_sample_does_not_join_all_host_groups() -> None:
    sample = [f"http://site{n}.test/" for n in range(100)]
    rest = [f"http://site{n}.test/{page}" for n in range(100) for page in range(10)]
    plan = assign_host_groups(extend_plan([], sample, 50), set())
    finished = {line.shard for line in plan}
    extended = assign_host_groups(extend_plan(plan, sample + rest, 50), finished)
    new = {line.host_group for line in extended if line.shard not in finished}
    assert len(new) > 8


def test_tasks_contain_whole_host_groups_without_finished_shards() -> None:
    tasks = join_into_tasks([[0, 3], [1], [2], [4, 5]], {0: 5, 3: 5, 1: 4, 4: 4, 5: 9}, 8)
    assert tasks == [(0, 3), (1, 4, 5)]
    assert join_into_tasks([[0]], {}, 8) == []
