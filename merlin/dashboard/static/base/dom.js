// Elements and text. Data never becomes markup: nothing in these files assigns innerHTML.

const SVG = "http://www.w3.org/2000/svg";
const ATTRIBUTES = new Set(
  (
    "class id href src alt title for type value min max name role tabindex datetime scope width height loading open " +
    "placeholder autocomplete spellcheck hidden download viewBox d x y x1 y1 x2 y2 cx cy r rx transform text-anchor"
  ).split(" "),
);

/** An HTML element: `h("a.small", {href, on: {click}}, "text", child)`. Strings become text, null and false nothing. */
export const h = (tag, ...rest) => made((name) => document.createElement(name), tag, rest);

/** The same for SVG. */
export const s = (tag, ...rest) => made((name) => document.createElementNS(SVG, name), tag, rest);

function made(create, tag, rest) {
  const [name, ...classes] = tag.split(".");
  const node = create(name || "div");
  const { on = {}, ...attributes } = rest[0]?.constructor === Object ? rest.shift() : {};
  if (classes.length) set(node, "class", classes.join(" "));
  for (const [attribute, value] of Object.entries(attributes)) set(node, attribute, value);
  for (const [event, listener] of Object.entries(on)) node.addEventListener(event, listener);
  node.append(...given(rest));
  return node;
}

const given = (children) => children.flat(3).filter((child) => child != null && child !== false);

/** Sets an attribute if it is another one than before; null and false remove it. */
export function set(node, name, value) {
  if (!ATTRIBUTES.has(name) && !/^(aria|data)-[a-z-]+$/.test(name)) throw new Error(`${name} is no attribute of ours`);
  if (value == null || value === false) {
    if (node.hasAttribute(name)) node.removeAttribute(name);
    return;
  }
  const text = value === true ? "" : String(value);
  if ((name === "href" || name === "src") && new URL(text, document.baseURI).origin !== location.origin) {
    throw new Error("links lead to this server and nowhere else");
  }
  if (node.getAttribute(name) !== text) node.setAttribute(name, text);
}

/** Sets the text of a node if it is another one than before. */
export function write(node, value) {
  const text = value == null ? "" : String(value);
  if (node.textContent !== text) node.textContent = text;
}

/** Replaces what a node holds. */
export function fill(node, ...children) {
  node.replaceChildren(...given(children));
}

export function show(node, isShown) {
  node.hidden = !isShown;
}

const partsOf = new WeakMap(); // parent -> its parts by key

/**
 * Keeps the children of `parent` as `items` say: `make(item)` returns `{node, update(item)}`, once for each key.
 * What is there already stays the same element, so focus, selection and open details survive.
 */
export function keyed(parent, items, key, make) {
  const before = partsOf.get(parent) ?? new Map();
  const parts = new Map();
  let place = parent.firstChild;
  for (const item of items) {
    let name = key(item);
    while (parts.has(name)) name = `${name}·`; // of two with the same key both are shown
    const part = before.get(name) ?? make(item);
    before.delete(name);
    parts.set(name, part);
    part.update?.(item);
    if (part.node === place) place = place.nextSibling;
    else parent.insertBefore(part.node, place);
  }
  for (const { node } of before.values()) node.remove();
  partsOf.set(parent, parts);
}

/** Makes parts of one element: `update(node, item)`. */
export function part(tag, attributes, update) {
  return () => {
    const node = h(tag, attributes);
    return { node, update: (item) => update(node, item) };
  };
}
