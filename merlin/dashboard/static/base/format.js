// Numbers, durations and times as people read them. Pure.

const THIN = "\u202f"; // a narrow space that does not break
const NONE = "–";

/** 1234567 as "1 234 567". */
export function num(value) {
  return value == null ? NONE : String(Math.round(value)).replace(/\B(?=(\d{3})+$)/g, THIN);
}

/** "1 task", "2 000 tasks". */
export function count(value, noun, plural = `${noun}s`) {
  return `${num(value)} ${value === 1 ? noun : plural}`;
}

/** 1200000 as "1.2 M", where there is little room. */
export function brief(value) {
  const [size, unit] = [
    [1e9, "G"],
    [1e6, "M"],
    [1e3, "k"],
  ].find(([one]) => value >= 10 * one || (value >= one && one > 1e3)) ?? [1, ""];
  return unit ? `${Number((value / size).toPrecision(3))}${THIN}${unit}` : value >= 1e3 ? num(value) : String(value);
}

/** A measured number with four digits that count. */
export function real(value) {
  if (value == null || !Number.isFinite(value)) return NONE;
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1e15) return size < 1e4 ? String(value) : num(value);
  return size >= 1e6 || size < 1e-3 ? value.toExponential(3).replace("e+", "e") : String(Number(value.toPrecision(4)));
}

/** 3900 as "1 h 5 min"; never more than two units. */
export function duration(seconds) {
  if (seconds == null || !Number.isFinite(seconds)) return NONE;
  if (seconds < 0.0005) return "0 s";
  if (seconds < 0.9995) return `${seconds < 0.01 ? (seconds * 1e3).toPrecision(1) : Math.round(seconds * 1e3)} ms`;
  if (seconds < 9.95) return `${seconds.toFixed(1)} s`;
  if (seconds < 59.5) return `${Math.round(seconds)} s`;
  if (seconds < 599.5) return pair(seconds, 60, "min", 1, "s");
  if (seconds < 3570) return `${Math.round(seconds / 60)} min`;
  return seconds < 86370 ? pair(seconds, 3600, "h", 60, "min") : pair(seconds, 86400, "d", 3600, "h");
}

function pair(seconds, large, its, small, other) {
  const whole = Math.round(seconds / small) * small;
  const rest = Math.round((whole % large) / small);
  return `${num(Math.floor(whole / large))} ${its}${rest ? ` ${rest} ${other}` : ""}`;
}

/** Tasks per second, or per minute or hour where that is easier to think of. */
export function rate(perSecond) {
  if (perSecond == null) return NONE;
  if (perSecond >= 9.95 || perSecond === 0) return `${num(perSecond)}/s`;
  const [times, unit] = perSecond >= 0.995 ? [1, "s"] : perSecond * 60 >= 0.995 ? [60, "min"] : [3600, "h"];
  return `${Number((perSecond * times).toPrecision(2))}/${unit}`;
}

/** "99.9 %" until all are done; never rounded up to a claim. */
export function percent(part, whole) {
  if (!whole) return NONE;
  if (part >= whole || part === 0) return part ? "100 %" : "0 %";
  const floor = Math.floor((part / whole) * 1000) / 10;
  return floor === 0 ? "< 0.1 %" : `${floor.toFixed(1)} %`;
}

export function bytes(size) {
  if (size == null) return NONE;
  const power = [1e3, 1e6, 1e9, 1e12, 1e15].filter((one) => size >= one * 0.9995).length;
  const value = size / 1000 ** power;
  return `${power && value < 9.95 ? value.toFixed(1) : num(value)} ${["B", "kB", "MB", "GB", "TB", "PB"][power]}`;
}

const format = (options) => new Intl.DateTimeFormat("en-GB", options);
const HOUR = { hour: "2-digit", minute: "2-digit" };
const [CLOCK, SECONDS] = [format(HOUR), format({ ...HOUR, second: "2-digit" })];
const [DAY, YEAR] = [{}, { year: "numeric" }].map((more) => format({ day: "numeric", month: "short", ...more }));

/** The local time of an epoch second: "14:03" today, "23 Nov 14:03" this year. */
export function clock(epoch, { now = Date.now() / 1e3, seconds = false } = {}) {
  if (epoch == null) return NONE;
  const [date, today] = [new Date(epoch * 1e3), new Date(now * 1e3)];
  const time = (seconds ? SECONDS : CLOCK).format(date);
  return date.toDateString() === today.toDateString() ? time : `${day(date, today)} ${time}`;
}

export function day(date, today = new Date()) {
  return (date.getFullYear() === today.getFullYear() ? DAY : YEAR).format(date);
}

/** "2026-11-23 18:49:44 UTC". */
export function utc(epoch) {
  return epoch == null ? "" : `${new Date(epoch * 1e3).toISOString().slice(0, 19).replace("T", " ")} UTC`;
}

/** The epoch second of "2026-11-23 18:49:44", a local time, or of a time with its zone; null if it is none. */
export function epochOf(stamp) {
  const time = Date.parse(String(stamp).replace(" ", "T"));
  return Number.isNaN(time) ? null : time / 1e3;
}

/** The name of a worker without Celery's prefix. */
export const shortName = (worker) => worker.replace(/^celery@/, "");

/** A value of a sample or parameter, with all its digits. */
export function value(given) {
  return typeof given === "string" ? given : JSON.stringify(given);
}
