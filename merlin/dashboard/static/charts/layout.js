// Where the nodes of a graph of steps stand: in layers, with few crossings. Pure.

const SWEEPS = 6;

/**
 * `names` in the plan's order, `edges` {source, target}. Returns {layer, row} by name, the number of layers, and of
 * rows in the fullest one. Rows may be halves: a layer stands centred beside fuller ones.
 */
export function layered(names, edges) {
  const known = new Set(names);
  const inner = edges.filter(({ source, target }) => known.has(source) && known.has(target) && source !== target);
  const [before, after] = [neighbours(inner, "target", "source"), neighbours(inner, "source", "target")];
  const layerOf = depths(names, before);
  const layers = [];
  for (const name of names) (layers[layerOf.get(name)] ??= []).push(name);
  for (let round = 0; round < SWEEPS; round += 1) {
    const isForth = round % 2 === 0;
    for (const layer of isForth ? layers : [...layers].reverse()) sort(layer, layers, isForth ? before : after);
  }
  const most = Math.max(1, ...layers.map((layer) => layer.length));
  const place = (name, layer, row) => [name, { layer, row: row + (most - layers[layer].length) / 2 }];
  const places = new Map(layers.flatMap((layer, index) => layer.map((name, row) => place(name, index, row))));
  return { places, numLayers: layers.length, numRows: most };
}

function neighbours(edges, from, to) {
  const found = new Map();
  for (const edge of edges) found.set(edge[from], [...(found.get(edge[from]) ?? []), edge[to]]);
  return found;
}

/** The layer of each: one more than the deepest that it waits for. */
function depths(names, before) {
  const found = new Map();
  const visit = (name) => {
    if (found.has(name)) return found.get(name);
    found.set(name, 0); // a plan has no circle; a damaged answer does not hang the page
    const depth = Math.max(0, ...(before.get(name) ?? []).map((other) => visit(other) + 1));
    found.set(name, depth);
    return depth;
  };
  names.forEach(visit);
  const used = [...new Set(found.values())].sort((one, other) => one - other);
  return new Map([...found].map(([name, depth]) => [name, used.indexOf(depth)]));
}

/** Orders a layer by the middle of its neighbours. */
function sort(layer, layers, near) {
  const rows = new Map(layers.flatMap((one) => one.map((name, row) => [name, row - one.length / 2])));
  const middle = (name) => {
    const around = near.get(name) ?? [name];
    return around.reduce((sum, other) => sum + rows.get(other), 0) / around.length;
  };
  const keys = new Map(layer.map((name) => [name, middle(name)]));
  layer.sort((one, other) => keys.get(one) - keys.get(other));
}
