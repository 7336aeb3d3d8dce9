// Asking the server. An answer that is none becomes an error with a sentence for the reader.

const AGAIN_MS = 600;
const SIGNED_OUT = "This browser is not signed in any more. Open the address that merlin dashboard printed again.";
const SILENT = "The dashboard's server does not answer. Does merlin dashboard still run?";

/** The JSON at an address; asked for twice, because a network that changes ends what is under way. */
export async function ask(path, { signal } = {}) {
  try {
    return await answer(await reach(path, { signal }));
  } catch (error) {
    if (error.message !== SILENT) throw error;
    await new Promise((resolve) => setTimeout(resolve, AGAIN_MS));
    signal?.throwIfAborted();
    return answer(await reach(path, { signal }));
  }
}

/** Asks for something to be done, and returns what the server says that it did. */
export async function act(path, body, csrf) {
  const headers = { "Content-Type": "application/json", "X-Merlin-CSRF": csrf };
  return answer(await reach(path, { method: "POST", headers, body: JSON.stringify(body) }));
}

async function reach(path, options) {
  try {
    return await fetch(path, { ...options, credentials: "same-origin", cache: "no-store" });
  } catch (error) {
    throw error.name === "AbortError" ? error : new Error(SILENT);
  }
}

async function answer(response) {
  if (response.status === 401) throw new Error(SIGNED_OUT);
  const body = await response.json().catch((error) => {
    throw error.name === "AbortError" ? error : new Error(`The server answered ${response.status} and no JSON.`);
  });
  if (!response.ok) throw new Error(body.error ?? `The server answered ${response.status}.`);
  return body;
}
