"""SQL as text: its tokens, the columns it mentions, the FROM that may be left out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from merlin.shards.reading.sql_text import mentioned, quote, quote_dotted, quote_keywords, tokens, with_from


@given(st.text(alphabet=st.sampled_from("ab'\"-/*.( \n1é;"), max_size=40))
def test_tokens_are_the_text_again(sql):
    assert "".join(text for _, text in tokens(sql)) == sql


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("select a", "select a FROM rows"),
        ("select a;", "select a FROM rows ;"),
        ("select a where b > 1", "select a FROM rows where b > 1"),
        (
            "select max(case when a then 1 end) group by all",
            "select max(case when a then 1 end) FROM rows group by all",
        ),
        (
            "select (select 1 from b limit 1), c order by c",
            "select (select 1 from b limit 1), c FROM rows order by c",
        ),
        (
            "select a, order, group where a order by order",
            "select a, order, group FROM rows where a order by order",
        ),
        ("select a from b", "select a from b"),
        ("from b select a", "from b select a"),
        ("describe rows", "describe rows"),
        ("select 'from x' as y limit 1", "select 'from x' as y FROM rows limit 1"),
    ],
)
def test_from_is_put_where_it_belongs(sql, expected):
    assert with_from(sql, "rows") == expected


NAMES = ["yield", "order", "g.targets", "a-b", "x"]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ('select yield, "order" from rows', ["yield", "order"]),
        ("select rows.YIELD + 1, 'order'", ["yield"]),
        ("select g.targets", ["g.targets"]),
        ("select * from rows", NAMES),
        ("select count(*) from rows", []),
        ("select 2 * x", ["x"]),
        ("select distinct * from rows", NAMES),
        ("from rows", NAMES),
        ("summarize select 1", NAMES),
        ('select "a-b"', ["a-b"]),
        ("select x * 2, (x) * 2, x ** 2, count( /* all */ * ) * 2, 2 * x from rows", ["x"]),
        ("from rows select x", ["x"]),
        ("select r.x, rows.x from rows as r join rows using (x)", ["x"]),
        ("select sum(x) over (rows between 1 preceding and current row) from rows", ["x"]),
        ("select $$it's$$, x, e'it\\'s' from rows where 'a' = 'a'", ["x"]),
        ("select x) * 2 from rows", NAMES),
    ],
)
def test_only_columns_that_are_mentioned_are_read(sql, expected):
    assert mentioned(sql, NAMES, "rows") == expected


def test_quotes_are_put_around_names_only():
    assert quote('a"b') == '"a""b"'
    assert quote_dotted("g.targets > x.y", NAMES) == '"g.targets" > x.y'
    assert (
        quote_keywords("order > 3 ORDER BY order, 'order'", NAMES)
        == '"order" > 3 ORDER BY "order", \'order\''
    )
    assert quote_keywords("rows.order", NAMES) == 'rows."order"'
