"""A function step that does nothing."""


def nothing(inputs, context):
    return {}
