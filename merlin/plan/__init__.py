"""What a study is going to do: the plan, how a spec becomes one, and the decisions about what runs next. Pure."""
