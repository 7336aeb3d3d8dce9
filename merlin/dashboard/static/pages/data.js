// The data sets of a study: what is in them, what was left out, and pictures.

import { fill, h, part, show, write } from "../base/dom.js";
import { bytes, count, epochOf, num, percent, real } from "../base/format.js";
import { api, place } from "../base/routes.js";
import { ask } from "../base/server.js";
import { outcomeBar } from "../parts/outcomes.js";
import { button, card, choice, section } from "../parts/section.js";
import { cell, link, number, table, text } from "../parts/table.js";
import { attempt, copyable, facts, moment, nothing, path, waiting } from "../parts/text.js";

const NUM_IMAGES = 24; // at first, and with each "more"

export function dataTab(app, { id, key: first }) {
  const none = nothing("No data set is finished yet. Each appears here when its last shard is written.");
  const [list, note, body] = [setTable(id), h("div"), h(".stack")];
  let [key, loaded] = [first, null];
  const look = ({ page }) => {
    const shown = key ?? page.data_sets[0]?.key; // the one that was asked for, else the first
    show(none, !page.data_sets.length);
    show(list.node, page.data_sets.length > 0);
    list.update(page.data_sets.map((one) => ({ ...one, isShown: one.key === shown })));
    const line = page.data_sets.find((one) => one.key === shown);
    const version = line && `${shown} ${Object.values(line.samples)}`; // it grows with an extension
    if (!line || version === loaded) return;
    loaded = version;
    fill(note, !body.hasChildNodes() && waiting());
    attempt(note, app, async () => fill(body, drawn(await ask(api.data(id, shown), app), id, shown)));
  };
  const turn = ({ key: other }) => {
    key = other;
    if (app.feed.page) look(app.feed);
  };
  app.feed.listen(look, app.signal);
  return { node: h(".stack", card("Data sets", none, list.node), note, body), turn };
}

function setTable(id) {
  const bar = () => {
    const { node, update } = outcomeBar();
    return { node, update: ({ samples }) => update(samples) };
  };
  const many = (head, name) => number(head, ({ samples }) => samples[name]);
  const columns = [
    cell(
      "Data set",
      link(({ key, aggregate }) => [place.data(id, key), aggregate]),
      "name",
    ),
    cell("Samples", bar, "bar-cell"),
    many("Rows", "ok"),
    many("Failed", "failed"),
    many("Filtered", "filtered"),
    many("Missing", "missing"),
    text("Place", "path", "wide"),
  ];
  return table("Data sets", "key", columns, ({ isShown }) => (isShown ? "is-chosen" : ""));
}

function drawn({ description: found, images }, id, key) {
  return [
    summary(found),
    images.length > 0 && imageSection(images, id, key),
    fieldSection("Fields", found.fields),
    fieldSection("Inputs", found.inputs),
    leftOut(found, id),
  ];
}

function summary(found) {
  const splits = Object.entries(found.splits ?? {}).map(([name, split]) => `${name} ${num(split.num)}`);
  const rows = `${count(found.num_rows, "row")} in ${count(found.num_shards, "shard")}`;
  const place = /^[\w@%+=:,./-]+$/.test(found.path) ? found.path : `'${found.path.replaceAll("'", `'"'"'`)}'`;
  const list = facts(
    ["Size", `${rows}, ${bytes(found.size_bytes)} (${bytes(found.bytes_per_sample)} a row)`],
    ["Splits", splits.join(", ")],
    ["Finished", found.study?.finished && moment(epochOf(found.study.finished))],
    ["Extensions", found.extensions?.length ? num(found.extensions.length) : null],
    ["Digest", path(found.content_digest)],
    ["In Python", copyable(`merlin.open_shards(${JSON.stringify(found.path)})`, "line")],
    ["Proof", copyable(`merlin shards verify ${place}`)],
  );
  return card("What it is", list);
}

/** A row for each channel of each field, with its statistics; columns that say nothing are left out. */
function fieldSection(title, fields = []) {
  const rows = fields.flatMap(channelsOf);
  const statistic = (head, name) => number(head, ({ of }) => of[name], real);
  const columns = [
    text("Name", "name", "name"),
    text("Kind", "kind"),
    text("Shape", "shape"),
    text("Units", "units"),
    statistic("Least", "min"),
    statistic("Mean", "mean"),
    statistic("Deviation", "std"),
    statistic("Greatest", "max"),
    number("On disk", "stored", (size) => `${bytes(size)} a row`, "wide"),
    text("What it is", "about", "why"),
  ].filter(({ of }) => rows.some((row) => of(row)));
  const list = table(title, "key", columns);
  list.update(rows);
  return rows.length > 0 && card(title, list.node);
}

const KINDS = { f: "float", i: "int", u: "uint", c: "complex", b: "bool" };

/** "<f8" as "float64". */
const typeOf = (dtype) =>
  dtype.replace(/^[<>|=]?([a-z])(\d+)$/, (whole, kind, size) => (kind in KINDS ? KINDS[kind] + 8 * size : whole));

function channelsOf(field) {
  const statistics = field.statistics ?? {};
  const first = {
    kind: field.kind ?? typeOf(field.dtype),
    shape: (field.shape ?? []).join(" × "),
    units: field.units,
    about: field.description,
    stored: field.stored_bytes_per_sample,
  };
  const many = Math.max(1, statistics.mean?.length ?? 1);
  return Array.from({ length: many }, (_, at) => ({
    ...(at ? {} : first),
    key: `${field.name}/${at}`,
    name: many > 1 ? `${field.name} [${field.channels?.[at] ?? at}]` : field.name,
    of: Object.fromEntries(Object.entries(statistics).map(([name, values]) => [name, values?.[at]])),
  }));
}

function leftOut({ left_out: groups = [], counts }, id) {
  const toTasks = (source) => (sample) =>
    h("a", { href: place.tasks(id, { sample, step: source.split("/")[0] }) }, num(sample));
  const examples = part("span.links", {}, (node, group) => fill(node, group.examples.map(toTasks(group.source))));
  const list = table(
    "Samples that are not in the data set",
    ({ outcome, source, cause }) => `${outcome}/${source}/${cause}`,
    [
      text("Outcome", "outcome", "name"),
      number("Samples", "num"),
      number("Share", "num", (many) => percent(many, counts.planned)),
      text("Step", "source"),
      text("Why", "cause", "why"),
      cell("Examples", examples),
    ],
  );
  list.update(groups);
  return groups.length > 0 && card("Left out", list.node);
}

function imageSection(images, id, key) {
  const grid = h(".images");
  const more = button("", () => add());
  const pick = choice("Field of the images", (name) => begin(images.find((one) => one.field === name)));
  const box = section("Images", [pick.node], grid, more);
  let [image, num_] = [images[0], 0];
  const add = () => {
    const to = Math.min(num_ + NUM_IMAGES, image.rows);
    for (; num_ < to; num_ += 1) grid.append(picture(image, num_, id, key));
    show(more, num_ < image.rows);
    write(more, `Show more of ${num(image.rows)}`);
  };
  const begin = (chosen) => {
    [image, num_] = [chosen, 0];
    const { height, width, units, channels } = image;
    fill(grid);
    grid.style.setProperty("--tile", `${110 * Math.max(1.2, channels.length)}px`);
    box.say(
      `${height} × ${width}${units && ` in ${units}`}${channels.length > 1 ? `, side by side: ${channels.join(", ")}` : ""}`,
    );
    add();
  };
  pick.update(
    images.map(({ field }) => [field]),
    image.field,
  );
  begin(image);
  return box.node;
}

function picture({ field, height, width, channels }, row, id, key) {
  const size = { width: width * Math.max(1, channels.length), height };
  const image = h("img", {
    src: api.image(id, key, field, row),
    alt: `${field} of row ${row}`,
    loading: "lazy",
    ...size,
  });
  return h("figure", image, h("figcaption", `row ${num(row)}`));
}
