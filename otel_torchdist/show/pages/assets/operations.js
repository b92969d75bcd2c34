// The color of an operation, the same on all pages: families of collectives share one.

const FAMILIES = {
  all_reduce: 0, all_gather: 1, reduce_scatter: 2, all_to_all: 3, broadcast: 4, scatter: 4, gather: 4, reduce: 4, send: 5, recv: 5, barrier: 7, monitored_barrier: 7,
};
const OTHER_FAMILY = 6; // gray: backward passes and other activities fill most of a lane
const FAMILY_NAMES = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast, gather, …", "send, recv", "other", "barrier"];
const MAX_OTHERS = 4;

/** Return the color variable of a family: `--series-0` for `all_reduce`. */
function toneOf(family) {
  return `--series-${FAMILIES[family] ?? OTHER_FAMILY}`;
}

/** Build the entries of a legend for operations, given as `[name, family]`. Names without a family share the last entry. */
function operationEntries(operations) {
  const used = [...new Set(operations.map(([, family]) => FAMILIES[family] ?? OTHER_FAMILY))].sort();
  const others = [...new Set(operations.filter(([, family]) => !(family in FAMILIES)).map(([name]) => name))].slice(0, MAX_OTHERS);
  return used.map((place) => [`--series-${place}`, place === OTHER_FAMILY ? named(others.join(", ")) : FAMILY_NAMES[place]]);
}
