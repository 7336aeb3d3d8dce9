// Addresses: of pages, relative to the base of the document, and of the server's answers. They hold below any sub-path.

const code = encodeURIComponent;

const query = (values) => {
  const given = Object.entries(values).filter(([, value]) => value != null && value !== "");
  return given.length ? `?${new URLSearchParams(given)}` : "";
};

const study = (id, rest = "", values = {}) => `study/${code(id)}${rest}${query(values)}`;
const keyOf = (key) => (key == null ? "" : `/${code(key)}`);

export const place = {
  studies: () => "",
  workers: () => "workers",
  study: (id, values) => study(id, "", values),
  tasks: (id, values) => study(id, "/tasks", values),
  failures: (id) => study(id, "/failures"),
  studyWorkers: (id) => study(id, "/workers"),
  data: (id, key) => study(id, `/data${keyOf(key)}`),
  training: (id, key) => study(id, `/training${keyOf(key)}`),
  task: (id, instance, task) => study(id, `/task/${code(instance)}/${task}`),
};

export const api = {
  session: () => "api/session",
  studies: () => "api/studies",
  studiesStream: () => "api/events",
  workers: () => "api/workers",
  /** Of a study: `what` may be events, heat, tasks, task, file, raw, failures, report. */
  study: (id, what, values) => `api/${study(id, what ? `/${what}` : "", values)}`,
  data: (id, key) => `api/${study(id, `/data/${code(key)}`)}`,
  image: (id, key, field, row) => `api/${study(id, `/data/${code(key)}/image`, { field, row })}`,
  training: (id, key) => `api/${study(id, `/training/${code(key)}`)}`,
  action: (id, name) => `api/${study(id, `/actions/${name}`)}`,
};

const TABS = ["overview", "tasks", "failures", "workers", "data", "training"];

/** What an address below the base shows: `{page, id, tab, …, asked}`; page "" if there is no such page. */
export function parse(url) {
  const root = new URL(document.baseURI).pathname;
  const parts = url.pathname.startsWith(root) ? url.pathname.slice(root.length).split("/").filter(Boolean) : [""];
  const asked = Object.fromEntries(url.searchParams);
  if (!parts.length) return { page: "studies", asked };
  if (parts[0] === "workers" && parts.length === 1) return { page: "workers", asked };
  const [id, tab = "overview", ...rest] = parts.slice(1).map(decoded);
  return parts[0] === "study" && id ? { ...inside(tab, rest), id, asked } : { page: "" };
}

function inside(tab, rest) {
  // a proxy may have decoded the slashes of an instance's name
  if (tab === "task" && rest.length > 1)
    return { page: "study", tab, instance: rest.slice(0, -1).join("/"), task: rest.at(-1) };
  if (["data", "training"].includes(tab) && rest.length) return { page: "study", tab, key: rest.join("/") };
  return { page: TABS.includes(tab) && !rest.length ? "study" : "", tab };
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}
