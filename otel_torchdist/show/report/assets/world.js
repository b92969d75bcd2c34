// The parallel world: the ranks as a grid along its axes, and the purpose of each axis.

const CELL = { width: 46, height: 28, gap: 5, block: 26 };
// Drawn positions per axis, by number of axes. Positions in the middle of longer axes are left out.
const CAPS = [[16], [16, 16], [8, 8, 4], [4, 8, 4, 3]];

function worldCard(report) {
  const { world } = report;
  if (!world) return null;
  const namedRanks = namedIn(report);
  const total = report.matrix?.total ?? 0;
  return card("world", "Parallel world",
    make("p", { class: "sentence" }, world.shape),
    make("div", { class: "columns" },
      make("div", {}, world.axes.length ? make("div", { class: "scroll" }, gridDrawing(world, namedRanks)) : empty("There are no groups along which the ranks form a grid."), gridLegend(world, namedRanks)),
      make("div", {}, world.axes.map((axis, place) => axisKey(axis, place, total)))),
    world.remarks.length > 0 && make("ul", { class: "notes muted" }, world.remarks.map((text) => make("li", {}, named(text)))),
    world.others.length > 0 && make("details", { open: world.axes.length === 0 }, make("summary", {}, `${counted(world.others.length, "other set")} of groups`), table({
      caption: "Groups along no single axis: products of axes, and parts",
      rows: world.others,
      columns: [
        { name: "along", value: (row) => row.span, show: (row) => row.span },
        { name: "role", value: (row) => row.role, show: (row) => row.role },
        { name: "groups", isNumber: true, value: (row) => row.count, show: (row) => count(row.count) },
        { name: "ranks each", isNumber: true, value: (row) => row.size, show: (row) => count(row.size) },
        { name: "such as", show: (row) => row.examples[0] },
        { name: "bytes sent", isNumber: true, value: (row) => row.sent, show: (row) => amount(row.sent) },
        { name: "balance", show: (row) => row.balance },
        { name: "named", show: (row) => named(row.names.join(", ")) },
      ],
    })));
}

function axisKey(axis, place, total) {
  return make("div", { class: "axis-key", "--tone": `var(--series-${place % 8})` },
    make("h3", {}, `${capital(axis.span)}: ${axis.role}`),
    make("p", { class: "muted" }, `${counted(axis.count, "group")} of ${counted(axis.size, "rank")}: ${axis.examples.join(" | ")}${axis.count > axis.examples.length ? " | …" : ""}`),
    meter([{ share: total ? axis.sent / total : 0, tone: `--series-${place % 8}` }], `${amount(axis.sent)}${total ? `, ${percent(axis.sent, total)} of all bytes` : ""}`),
    axis.purposes.map((purpose) => make("p", { class: "small" }, make("strong", {}, purpose.role), " because of ", named(purpose.evidence))),
    axis.balance && make("p", { class: "small" }, named(capital(axis.balance)), "."),
    axis.across_hosts > 0 && make("p", { class: "small" }, make("span", { class: "badge warn" }, `${count(axis.across_hosts)} of ${counted(axis.count, "group")} across nodes`)),
    axis.names.length > 0 && make("p", { class: "small muted" }, "named ", named(axis.names.join(", "))));
}

/** Return the drawn positions along an axis; null stands for positions that are left out. */
function shownPlaces(size, most) {
  if (size <= most) return [...Array(size).keys()];
  return [...Array(most - 2).keys(), null, size - 1];
}

function gridDrawing(world, namedRanks) {
  const axes = world.axes;
  const width = axes.length + 1;
  const byPlace = new Map();
  for (let rank = 0; rank * width < world.coordinates.length; rank += 1) {
    byPlace.set(world.coordinates.slice(rank * width, (rank + 1) * width).join(), rank);
  }
  const caps = CAPS[Math.min(axes.length, 4) - 1];
  const places = [0, 1, 2, 3].map((axis) => (axis < axes.length ? shownPlaces(axes[axis].size, caps[axis]) : [0]));
  const block = {
    width: places[0].length * (CELL.width + CELL.gap) - CELL.gap,
    height: places[1].length * (CELL.height + CELL.gap) - CELL.gap,
  };
  const left = 12 + (axes.length > 1 ? 26 : 0) + (axes.length > 3 ? 26 : 0);
  const top = 30 + (axes.length > 2 ? 28 : 0);
  const size = {
    width: left + places[2].length * (block.width + CELL.block) - CELL.block + 12,
    height: top + places[3].length * (block.height + CELL.block) - CELL.block + 12,
  };
  const tall = axes.length > 1 ? labelOf(axes[1]).length * 7.4 - block.height : 0;
  const extra = Math.max(0, tall / 2 - 12);
  const wide = Math.max(size.width, left + labelOf(axes[0]).length * 7.6 + 12, axes.length > 2 ? left + labelOf(axes[2]).length * 7.6 + 12 : 0);
  const scale = textSize(1) / 15; // the size of the surrounding text
  const drawing = draw("svg", { viewBox: `0 ${-extra} ${wide} ${size.height + 2 * extra}`, width: Math.round(wide * scale), height: Math.round((size.height + 2 * extra) * scale), role: "img", "aria-label": `${world.shape}, drawn as a grid` });
  const x = (column, blockColumn) => left + blockColumn * (block.width + CELL.block) + column * (CELL.width + CELL.gap);
  const y = (row, blockRow) => top + blockRow * (block.height + CELL.block) + row * (CELL.height + CELL.gap);

  places[3].forEach((outerRow, blockRow) => places[2].forEach((outerColumn, blockColumn) => places[1].forEach((row, inRow) => places[0].forEach((column, inColumn) => {
    const at = [column, row, outerColumn, outerRow];
    const [left0, top0] = [x(inColumn, blockColumn), y(inRow, blockRow)];
    if (at.includes(null)) {
      drawing.append(draw("text", { class: "muted", x: left0 + CELL.width / 2, y: top0 + CELL.height / 2, "text-anchor": "middle", "dominant-baseline": "central" }, "⋯"));
      return;
    }
    const place = [...at.slice(0, Math.min(axes.length, 4)), ...Array(Math.max(0, width - Math.min(axes.length, 4))).fill(0)];
    const rank = byPlace.get(place.join());
    if (rank !== undefined) drawing.append(rankCell(world, rank, left0, top0, namedRanks));
  }))));
  axes.slice(0, 4).forEach((axis, place) => drawing.append(...dimension(axis, place, { block, size, left, top, places })));
  return drawing;
}

function labelOf(axis) {
  return `${axis.role} ${axis.size}`;
}

function rankCell(world, rank, x, y, namedRanks) {
  const host = world.hosts[rank];
  const isTinted = world.host_names.length > 1 && host >= 0;
  const kind = namedRanks.has(rank) ? " named" : world.unknown.includes(rank) ? " unknown" : isTinted ? " tinted" : "";
  const about = [`rank ${rank}`, host >= 0 ? world.host_names[host] : null, namedRanks.has(rank) ? "held others up" : null].filter(Boolean).join(", ");
  return draw("g", { class: `rank-cell${kind}`, "data-rank": rank, "--tint": isTinted && `color-mix(in srgb, var(--series-${host % 8}) 18%, var(--surface))` },
    draw("title", {}, about),
    draw("rect", { x, y, width: CELL.width, height: CELL.height, rx: 5 }),
    draw("text", { x: x + CELL.width / 2, y: y + CELL.height / 2 }, String(rank)));
}

/** Draw a line along an axis with its name, as on an engineering drawing: inner axes at the first block, outer axes around all. */
function dimension(axis, place, { block, size, left, top }) {
  const isOuter = place > 1;
  const tone = { "--tone": `var(--series-${place % 8})` };
  if (place % 2 === 0) {
    const y = isOuter ? 24 : top - 8;
    const right = isOuter ? size.width - 12 : left + block.width;
    return [
      draw("path", { class: "axis-line", ...tone, d: `M${left},${y + 4}V${y - 1}H${right}V${y + 4}` }),
      draw("text", { class: "axis-text", ...tone, x: left, y: y - 7 }, labelOf(axis)),
    ];
  }
  const x = isOuter ? 22 : left - 8;
  const bottom = isOuter ? size.height - 12 : top + block.height;
  const middle = (top + bottom) / 2;
  return [
    draw("path", { class: "axis-line", ...tone, d: `M${x + 4},${top}H${x - 1}V${bottom}H${x + 4}` }),
    draw("text", { class: "axis-text", ...tone, "text-anchor": "middle", transform: `translate(${x - 7} ${middle}) rotate(-90)` }, labelOf(axis)),
  ];
}

function gridLegend(world, namedRanks) {
  const entries = [];
  if (namedRanks.size) entries.push(["--bad", "held others up"]);
  if (world.host_names.length > 1 && world.host_names.length <= 8) {
    world.host_names.forEach((name, place) => entries.push([`--series-${place % 8}`, name]));
  }
  const notes = [];
  if (world.axes.length > 4) notes.push("Axes beyond the fourth are left out of the drawing.");
  if (world.copies > 1) notes.push(`The first of ${world.copies} grids of this shape is drawn.`);
  if (world.unknown.length) notes.push("Dashed: no records of this rank.");
  return [
    entries.length > 0 && legend(entries.map(([tone, name]) => [tone, named(name)])),
    notes.map((text) => make("p", { class: "small muted" }, text)),
  ];
}
