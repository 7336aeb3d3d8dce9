// Failures, grouped by their cause.

import { fill, h, keyed, write } from "../base/dom.js";
import { clock, count, num, percent, real, value } from "../base/format.js";
import { Refresher } from "../base/refresh.js";
import { api, place } from "../base/routes.js";
import { ask } from "../base/server.js";
import { rerunStep } from "../parts/actions.js";
import { button, section } from "../parts/section.js";
import { attempt, copyable, facts, log, nothing, waiting } from "../parts/text.js";

const MOST_HOSTS = 8;

export function failuresTab(app, { id }) {
  const groups = failureGroups(app, id);
  const box = section("Failures by cause", [], groups.node);
  const draw = ({ page }) => {
    groups.update(page);
    box.say(page.num_failures ? `${count(page.num_failures, "task")} failed` : "");
  };
  app.feed.listen(draw, app.signal);
  return { node: h(".stack", box.node) };
}

/** The largest groups, `most` at most; asked for again when more has failed. `update(page)`. */
export function failureGroups(app, id, most = Infinity) {
  const [note, list] = [h("div", waiting()), h("ul.groups")];
  const node = h("div", note, list);
  const load = async () => {
    const { groups, is_current } = await ask(api.study(id, "failures"), app);
    const shown = groups.slice(0, most);
    keyed(
      list,
      shown,
      (group) => `${group.extension}/${group.id}`,
      (group) => groupPart(group, app, id),
    );
    fill(note, !shown.length && nothing("Nothing has failed."));
    return is_current;
  };
  const refresher = new Refresher(node, () => attempt(note, app, load), app);
  return { node, update: (page) => refresher.want(page.num_failures) };
}

function groupPart(group, app, id) {
  const many = h("b.group-count");
  const what = h("code.group-what", group.signature || group.cause || "no message");
  const title = h("summary", many, h("span.group-where", h("b", group.step), h("span", group.exit_class)), what);
  const body = h(".group-body");
  const details = h("details", title, body);
  let latest = group;
  details.addEventListener("toggle", () => details.open && fill(body, groupBody(latest, app, id)));
  const update = (found) => {
    latest = found;
    write(many, num(found.count));
  };
  return { node: h("li", details), update };
}

function groupBody(group, app, id) {
  const [first, last] = [group.first, group.last].map((at) => clock(at, { seconds: true }));
  const hosts = group.hosts.slice(0, MOST_HOSTS).join(", ");
  const more = group.hosts.length - MOST_HOSTS;
  return [
    facts(
      ["Cause", group.cause],
      ["When", first === last ? first : `${first} to ${last}`],
      ["Hosts", more > 0 ? `${hosts} and ${more} more` : hosts],
      [
        "Fails more",
        group.ranges.length
          ? h(
              "ul",
              group.ranges.map((range) => h("li", rangeText(range))),
            )
          : null,
      ],
      [
        "Examples",
        h(
          "span.links",
          group.examples.map((example) => exampleLink(example, id)),
        ),
      ],
      ["Run again", again(group, app)],
    ),
    group.log_tail && log("End of a log", group.log_tail),
  ];
}

/** Values of an input with which tasks fail in this way more often than chance explains. */
function rangeText({ input, low, high, rate_inside, rate_outside, p }) {
  const chance = p < 0.001 ? "p < 0.001" : `p = ${p.toPrecision(2)}`;
  const where = `${input} from ${real(low)} to ${real(high)}`;
  return `${where}: ${percent(rate_inside, 1)} of the tasks fail so, of others ${percent(rate_outside, 1)} (${chance})`;
}

function exampleLink({ instance, task, sample_id, inputs }, id) {
  const words = sample_id == null ? `task ${num(task)}` : `sample ${num(sample_id)}`;
  const title = Object.entries(inputs)
    .map(([name, one]) => `${name} = ${value(one)}`)
    .join(", ");
  return h("a", { href: place.task(id, instance, task), title: title || null }, words);
}

function again({ rerun, step }, { session, feed }) {
  const done = h("span.done");
  const said = (sentence) => write(done, sentence);
  const act = session.actions && button("Rerun …", () => rerunStep(feed.page, step, session, said));
  return h("span.links", copyable(rerun), act, done);
}
