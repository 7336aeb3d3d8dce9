"""The page for a browser without a token."""

from __future__ import annotations

from starlette.responses import HTMLResponse, Response

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
{again}<title>Merlin: sign in</title>
</head>
<body>
<main>
<h1>Merlin</h1>
<p role="alert">{message}</p>
<p>Open the address that <code>merlin dashboard</code> printed: it ends in
<code>?token=…</code>. Or give the token here.</p>
<form method="get">
<p><label for="token">Token</label>
<input id="token" name="token" type="password" autocomplete="current-password" required>
<button>Sign in</button></p>
</form>
<p>The token is in <code>~/.merlin/dashboard-token</code> on the machine of the dashboard, unless it was started with
<code>--token-file</code>.</p>
</main>
</body>
</html>
"""
_AGAIN = '<meta http-equiv="refresh" content="0">\n'


def sign_in_page(*, is_refused: bool = False, asks_again: bool = False) -> Response:
    """`asks_again`: the page asks for the same address once more, by itself."""
    message = "This token is not the dashboard's." if is_refused else "This browser is not signed in."
    return HTMLResponse(_PAGE.format(message=message, again=_AGAIN if asks_again else ""), 401)
