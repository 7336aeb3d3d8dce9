// Ticks and places on axes. Pure.

const roundStep = (rough, factors) => {
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * factors.find((factor) => factor * power >= rough * 0.9999);
};

/** About `most` round numbers from `lo` to `hi`. */
export function ticks(lo, hi, most = 5) {
  if (!(hi > lo)) return [lo];
  const step = roundStep((hi - lo) / most, [1, 2, 5, 10]);
  const first = Math.ceil(lo / step - 1e-9);
  return Array.from({ length: Math.floor(hi / step + 1e-9) - first + 1 }, (_, at) =>
    Number(((first + at) * step).toPrecision(12)),
  );
}

/** The powers of ten from `lo` to `hi`, thinned out; round numbers where there is at most one. */
export function logTicks(lo, hi, most = 5) {
  const [first, last] = [Math.ceil(Math.log10(lo) - 1e-9), Math.floor(Math.log10(hi) + 1e-9)];
  if (last - first < 1) return ticks(lo, hi, most);
  const every = Math.ceil((last - first) / most);
  return Array.from({ length: Math.floor((last - first) / every) + 1 }, (_, at) => 10 ** (first + at * every));
}

/** A round number that is not below `value`. */
export const roundUp = (value) => (value > 0 ? roundStep(value, [1, 1.5, 2, 3, 4, 5, 6, 8, 10]) : 1);

const DAY = 86400;
const STEPS_S = [
  1,
  2,
  5,
  10,
  15,
  30,
  60,
  120,
  300,
  600,
  900,
  1800,
  3600,
  7200,
  10800,
  21600,
  43200,
  DAY,
  2 * DAY,
  7 * DAY,
];

/** Epoch seconds at round local times, and the seconds between them. */
export function timeTicks(lo, hi, most = 6) {
  const step = STEPS_S.find((one) => (hi - lo) / one <= most) ?? Math.ceil((hi - lo) / most / (7 * DAY)) * 7 * DAY;
  const shift = new Date(lo * 1e3).getTimezoneOffset() * 60;
  const first = Math.ceil((lo - shift) / step);
  const num = Math.floor((hi - shift) / step) - first + 1;
  return { step, at: Array.from({ length: Math.max(0, num) }, (_, at) => (first + at) * step + shift) };
}

/** From values to pixels. */
export function linear(lo, hi, from, to) {
  const scale = hi > lo ? (to - from) / (hi - lo) : 0;
  return (value) => from + (value - lo) * scale;
}

export function logarithmic(lo, hi, from, to) {
  const inner = linear(Math.log10(lo), Math.log10(hi), from, to);
  return (value) => inner(Math.log10(value));
}
