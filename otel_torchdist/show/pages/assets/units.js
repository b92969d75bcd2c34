// Formats of numbers: three digits and a unit, as in the output of commands.

const TIME_UNITS = [[1e3, "ns"], [1e6, "µs"], [1e9, "ms"]];
const SIZE_UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
const RATE_UNITS = ["B/s", "kB/s", "MB/s", "GB/s", "TB/s", "PB/s"];

/** Format a duration in nanoseconds: `812 µs`, `4.03 ms`, `61.0 s`; "" for null. */
function duration(ns) {
  if (ns === null || ns === undefined) return "";
  for (const [limit, unit] of TIME_UNITS) {
    if (Math.abs(ns) < 0.9995 * limit) return unit === "ns" ? `${Math.round(ns)} ns` : `${threeDigits((ns * 1e3) / limit)} ${unit}`;
  }
  return `${threeDigits(ns / 1e9)} s`;
}

/** Format bytes: `16 B`, `4.00 KiB`, `1.25 GiB`; "" for null. */
function amount(bytes) {
  if (bytes === null || bytes === undefined) return "";
  const [size, unit] = scaled(bytes, 1024, SIZE_UNITS);
  return unit === "B" ? `${Math.round(size)} B` : `${threeDigits(size)} ${unit}`;
}

/** Format bytes per second in powers of ten, as nccl-tests prints them. */
function rate(bytesPerSecond) {
  if (bytesPerSecond === null || bytesPerSecond === undefined) return "";
  const [size, unit] = scaled(bytesPerSecond, 1000, RATE_UNITS);
  return `${threeDigits(size)} ${unit}`;
}

/** Format a share of a whole: `63%`; "" if the whole is 0. */
function percent(part, whole = 1) {
  if (part === null || part === undefined || !whole) return "";
  const value = (part / whole) * 100;
  if (value > 0 && value < 0.05) return "< 0.1%";
  return value > 0 && value < 0.95 ? `${value.toFixed(1)}%` : `${Math.round(value)}%`;
}

/** Format a number with commas; "" for null. */
function count(number) {
  return number === null || number === undefined ? "" : number.toLocaleString("en");
}

/** Format a count with its noun: `1 rank`, `4 ranks`. */
function counted(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}

function scaled(number, base, units) {
  let place = 0;
  let size = number;
  while (size >= 999.5 && place < units.length - 1) {
    size /= base;
    place += 1;
  }
  return [size, units[place]];
}

function threeDigits(number) {
  const size = Math.abs(number);
  if (size >= 99.95) return Math.round(number).toLocaleString("en");
  return number.toFixed(size >= 9.995 ? 1 : 2);
}

/** Return a round distance between marks of an axis: 1, 2 or 5 times a power of ten, at least `least`. */
function roundStep(least) {
  const power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map((factor) => factor * power).find((step) => step >= least * 0.999);
}
