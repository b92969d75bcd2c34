// Traffic, steps, ranks, calls and groups.

function trafficCard(report) {
  const { matrix } = report;
  if (!matrix) return null;
  const cells = [];
  for (let at = 0; at < matrix.cells.length; at += 3) cells.push(matrix.cells.slice(at, at + 3));
  const unit = matrix.unit === "ranks" ? "ranks" : matrix.unit;
  const largest = [...cells].sort((one, other) => other[2] - one[2]).slice(0, 200);
  const name = (place) => (matrix.unit === "host" ? matrix.names[place] : `${unit} ${matrix.names[place]}`);
  return card("traffic", `Traffic from ${matrix.unit === "host" ? "node to node" : "rank to rank"}`,
    make("p", { class: "muted" }, "The fewest bytes that each operation can move, along a ring in the order of the ranks; libraries may take other routes."),
    facts([
      ["all bytes", amount(matrix.total)],
      ["between nodes", matrix.between_hosts === null ? null : `${amount(matrix.between_hosts)}, ${percent(matrix.between_hosts, matrix.total)}`],
      ["in no cell: all_to_all of large groups", matrix.unattributed ? amount(matrix.unattributed) : null],
    ]),
    cells.length ? make("div", { class: "columns" },
      heatmap({ names: matrix.names, cells, show: amount, label: `Bytes from ${unit} to ${unit}`, rowName: `from ${unit}`, columnName: `to ${unit}` }),
      table({
        caption: "Most bytes first",
        most: 12,
        rows: largest,
        search: ([row, column]) => `${name(row)} ${name(column)}`,
        hint: "Find a rank or node",
        columns: [
          { name: "from", value: ([row]) => row, show: ([row]) => named(name(row)) },
          { name: "to", value: ([, column]) => column, show: ([, column]) => named(name(column)) },
          { name: "bytes", isNumber: true, value: ([, , bytes]) => bytes, show: ([, , bytes]) => amount(bytes) },
          { name: "share", isGauge: true, value: ([, , bytes]) => bytes, show: ([, , bytes]) => meter([{ share: bytes / matrix.total, tone: "--accent" }], percent(bytes, matrix.total)) },
        ],
      })) : empty("No bytes are attributed to pairs of ranks."));
}

function stepsCard(report) {
  const { steps } = report;
  if (!steps) return card("steps", "Steps", empty("No step was recorded from its beginning to its end, so there are no step times."));
  const longest = steps.most_ns.indexOf(Math.max(...steps.most_ns));
  const sorted = [...steps.median_ns].sort((one, other) => one - other);
  return card("steps", "Step times",
    facts([
      ["median step", duration(sorted[Math.floor((sorted.length - 1) / 2)])],
      ["longest", `${duration(steps.most_ns[longest])}, ${stepName(steps, longest)}, ${whose(steps, longest)}`],
      ["steps", `${count(steps.first[0])} to ${count(steps.last[steps.last.length - 1])}`],
    ]),
    fitted((width) => stepsChart(steps, width)),
    make("p", { class: "muted small" }, `Line: the median over all ranks. Band: from the fastest rank to the slowest.${isLogarithmic(steps) ? " The axis is logarithmic." : ""}`),
    make("details", {}, make("summary", {}, "Step times, as a table"), table({
      caption: "Step times over all ranks",
      rows: steps.first.map((_, place) => place),
      columns: [
        { name: "step", isNumber: true, value: (place) => steps.first[place], show: (place) => stepName(steps, place) },
        { name: "fastest", isNumber: true, value: (place) => steps.least_ns[place], show: (place) => duration(steps.least_ns[place]) },
        { name: "median", isNumber: true, value: (place) => steps.median_ns[place], show: (place) => duration(steps.median_ns[place]) },
        { name: "slowest", isNumber: true, value: (place) => steps.most_ns[place], show: (place) => duration(steps.most_ns[place]) },
        { name: "slowest rank", isNumber: true, value: (place) => steps.slowest[place], show: (place) => (isAlike(steps, place) ? "alike" : String(steps.slowest[place])) },
      ],
    })));
}

function stepName(steps, place) {
  return steps.first[place] === steps.last[place] ? `step ${count(steps.first[place])}` : `steps ${count(steps.first[place])} to ${count(steps.last[place])}`;
}

/** Return whether a step took nearly equally long on all ranks, because they wait for each other. Then no rank is named. */
function isAlike(steps, place) {
  return steps.first[place] === steps.last[place] && steps.least_ns[place] >= 0.9 * steps.most_ns[place];
}

function whose(steps, place) {
  return isAlike(steps, place) ? "on all ranks alike" : `on rank ${steps.slowest[place]}`;
}

/** A drawing that is redrawn for the available width. */
function fitted(drawing) {
  const place = make("div", { class: "chart" });
  let width = 0;
  new ResizeObserver(() => {
    if (place.clientWidth === width || !place.clientWidth) return;
    width = place.clientWidth;
    place.replaceChildren(drawing(width));
  }).observe(place);
  return place;
}

function isLogarithmic(steps) {
  return Math.max(...steps.most_ns) / Math.max(1, Math.min(...steps.least_ns)) > 20;
}

function stepsChart(steps, width) {
  const [height, left, bottom, top] = [230, 76, 28, 10];
  const most = Math.max(...steps.most_ns);
  const least = Math.max(1, Math.min(...steps.least_ns));
  const isLog = isLogarithmic(steps);
  const low = isLog ? 10 ** Math.floor(Math.log10(least)) : 0;
  const high = isLog ? most * 1.15 : most * 1.06;
  const share = (ns) => (isLog ? Math.log(Math.max(ns, low) / low) / Math.log(high / low) : ns / high);
  const y = (ns) => height - bottom - share(ns) * (height - bottom - top);
  const first = steps.first[0];
  const last = Math.max(steps.last[steps.last.length - 1], first + 1);
  const x = (place) => left + (((steps.first[place] + steps.last[place]) / 2 - first) / (last - first)) * (width - left - 16);
  const places = steps.first.map((_, place) => place);
  const line = (values) => places.map((place) => `${x(place).toFixed(1)},${y(values[place]).toFixed(1)}`);
  const ticks = [];
  if (isLog) for (let at = low; at <= high; at *= 10) ticks.push(at);
  else for (let every = roundStep(high / 5), at = 0; at <= high; at += every) ticks.push(at);
  const chart = draw("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Step times; the same figures are in the table below" },
    ticks.map((at) => [
      draw("line", { class: "grid", x1: left, x2: width - 16, y1: y(at), y2: y(at) }),
      draw("text", { class: "muted", x: left - 8, y: y(at) + 4, "text-anchor": "end" }, duration(at)),
    ]),
    draw("polygon", { class: "band", points: [...line(steps.most_ns), ...line(steps.least_ns).reverse()].join(" ") }),
    draw("polyline", { class: "median", points: line(steps.median_ns).join(" ") }));
  const longest = steps.most_ns.indexOf(most);
  chart.append(draw("circle", { class: "peak", cx: x(longest), cy: y(most), r: 4 }, draw("title", {}, `${stepName(steps, longest)}: ${duration(most)}, ${whose(steps, longest)}`)));
  const every = Math.max(1, roundStep((last - first) / 10));
  for (let step = Math.ceil(first / every) * every; step <= last; step += every) {
    chart.append(draw("text", { class: "muted", x: left + ((step - first) / (last - first)) * (width - left - 16), y: height - 8, "text-anchor": "middle" }, count(step)));
  }
  return chart;
}

function ranksCard(report) {
  const { ranks, world } = report;
  const namedRanks = namedIn(report);
  const rows = ranks.rank.map((rank, place) => Object.fromEntries(Object.entries(ranks).map(([name, column]) => [name, column[place]])));
  const hostOf = (row) => (row.host >= 0 && world ? world.host_names[row.host] : "");
  if (rows.length > 40) rows.sort((one, other) => other.came_last - one.came_last || one.rank - other.rank);
  const hasHosts = (world?.host_names.length ?? 0) > 1;
  const parts = (row) => {
    const waiting = row.waiting_ns ?? 0;
    const moving = Math.max(0, (row.communicating_ns ?? 0) - waiting);
    return [waiting, moving, Math.max(0, row.span_ns - waiting - moving)];
  };
  const columns = [
    { name: "rank", isNumber: true, value: (row) => row.rank, show: (row) => String(row.rank) },
    hasHosts && { name: "node", value: hostOf, show: (row) => named(hostOf(row)) },
    { name: "where its time went", isGauge: true, value: (row) => (row.waiting_ns === null ? null : row.waiting_ns / row.span_ns), show: (row) => (row.communicating_ns === null || !row.span_ns ? "not known" : timeMeter(parts(row), row)) },
    { name: "waiting", isNumber: true, value: (row) => row.waiting_ns, show: (row) => duration(row.waiting_ns) },
    { name: "last to arrive", isNumber: true, value: (row) => (row.compared ? row.came_last / row.compared : null), show: (row) => (row.compared ? `${count(row.came_last)} of ${count(row.compared)}` : "") },
    { name: "median step", isNumber: true, value: (row) => row.step_ns, show: (row) => duration(row.step_ns) },
    { name: "p99 step", isNumber: true, value: (row) => row.step_p99_ns, show: (row) => duration(row.step_p99_ns) },
    { name: "calls", isNumber: true, value: (row) => row.calls, show: (row) => count(row.calls) },
    { name: "open", isNumber: true, value: (row) => row.open, show: (row) => (row.open ? count(row.open) : "") },
    ranks.lost.some(Boolean) && { name: "lost", isNumber: true, value: (row) => row.lost, show: (row) => (row.lost ? count(row.lost) : "") },
    { name: "bytes", isNumber: true, value: (row) => row.bytes, show: (row) => amount(row.bytes) },
  ].filter(Boolean);
  return card("ranks", "Ranks",
    rows.length > 40 && quantiles(rows),
    legend([
      rows.some((row) => row.waiting_ns !== null) && ["--series-4", "waiting for another rank"], rows.some(isSplit) && ["--series-0", "transfer"],
      rows.some((row) => !isSplit(row)) && ["--series-6", "communicating; the share of waiting is unknown"], ["--line", "not communicating"],
    ]),
    table({
      caption: rows.length > 40 ? "Ranks that arrived last most often come first" : "All ranks",
      rows, columns,
      isMarked: (row) => namedRanks.has(row.rank),
      search: (row) => `rank ${row.rank} ${hostOf(row)}`,
      hint: "Find a rank or node",
    }));
}

/** Return whether waits are known for nearly all calls of a rank. They are not if other ranks have unrelated clocks. */
function isSplit(row) {
  return row.waiting_ns !== null && row.compared >= 0.95 * (row.calls - row.open);
}

function timeMeter([waiting, moving, rest], row) {
  const whole = waiting + moving + rest;
  const known = row.waiting_ns === null ? "" : `${percent(waiting, whole)} waiting, `;
  return meter([
    { share: waiting / whole, tone: "--series-4" }, { share: moving / whole, tone: isSplit(row) ? "--series-0" : "--series-6" }, { share: rest / whole, tone: "--line" },
  ], `${known}${percent(moving, whole)} ${isSplit(row) ? "transfer" : known ? "waiting or transfer" : "communicating"}`);
}

/** Build a table of quantiles over thousands of ranks. */
function quantiles(rows) {
  const figures = [
    ["share of time waiting", (row) => (row.waiting_ns === null || !row.span_ns ? null : row.waiting_ns / row.span_ns), (value) => percent(value)],
    ["share of time in transfers", (row) => (row.communicating_ns === null || !row.span_ns || !isSplit(row) ? null : Math.max(0, row.communicating_ns - row.waiting_ns) / row.span_ns), (value) => percent(value)],
    ["share of arrivals that were last", (row) => (row.compared ? row.came_last / row.compared : null), (value) => percent(value)],
    ["median step", (row) => row.step_ns, duration],
    ["bytes contributed", (row) => row.bytes, amount],
  ];
  const shares = [["lowest", 0], ["10%", 0.1], ["median", 0.5], ["90%", 0.9], ["99%", 0.99], ["highest", 1]];
  const known = figures.map(([name, value, show]) => [name, rows.map(value).filter((one) => one !== null).sort((one, other) => one - other), show]).filter(([, values]) => values.length);
  return table({
    caption: `Quantiles over ${counted(rows.length, "rank")}`,
    rows: known,
    columns: [
      { name: "figure", show: ([name]) => name },
      ...shares.map(([name, share]) => ({ name, isNumber: true, show: ([, values, show]) => show(values[Math.max(0, Math.ceil(share * values.length) - 1)]) })),
    ],
  });
}

function callsCard(report) {
  const { calls } = report;
  const hasGroups = calls.some((row) => row.group !== null);
  const hasSites = calls.some((row) => row.call_site !== null);
  const all = calls.reduce((sum, row) => sum + row.time_ns, 0);
  const columns = [
    { name: "operation", value: (row) => row.operation, show: (row) => named(row.operation) },
    hasGroups && { name: "group", value: (row) => row.group?.name, show: (row) => named(row.group?.name ?? "") },
    hasSites && { name: "called in", value: siteOf, show: (row) => named(siteOf(row)) },
    { name: "size", value: (row) => row.message_bytes / row.calls, show: (row) => row.size_class },
    { name: "calls", isNumber: true, value: (row) => row.calls, show: (row) => count(row.calls) },
    { name: "per rank", isNumber: true, value: (row) => row.calls_of_a_rank_max, show: (row) => (row.calls_of_a_rank_min === row.calls_of_a_rank_max ? count(row.calls_of_a_rank_max) : `${count(row.calls_of_a_rank_min)}–${count(row.calls_of_a_rank_max)}${row.counts_differ ? " ≠" : ""}`) },
    { name: "bytes", isNumber: true, value: (row) => row.message_bytes, show: (row) => amount(row.message_bytes) },
    { name: "share of all time", isGauge: true, value: (row) => row.time_ns, show: (row) => (row.time_ns ? waitMeter(row, all) : "not timed") },
    { name: "median", isNumber: true, value: (row) => row.median_ns, show: (row) => duration(row.median_ns) },
    { name: "p99", isNumber: true, value: (row) => row.p99_ns, show: (row) => duration(row.p99_ns) },
    { name: "bus bandwidth", isNumber: true, value: (row) => row.bandwidth?.bus_bytes_per_second ?? null, show: (row) => (row.bandwidth === null ? "" : `${row.bandwidth.over === "duration" ? "≥ " : ""}${rate(row.bandwidth.bus_bytes_per_second)}`) },
    { name: "last to arrive", value: (row) => (row.latecomers[0]?.times ?? 0) / (row.compared || 1), show: (row) => row.latecomers.map((last) => `rank ${last.rank}, ${count(last.times)} of ${count(row.compared)}, ${duration(last.median_ns)}`).join() },
    { name: "open", isNumber: true, value: (row) => row.open, show: (row) => (row.open ? count(row.open) : "") },
    calls.some((row) => row.failed) && { name: "failed", isNumber: true, value: (row) => row.failed, show: (row) => (row.failed ? count(row.failed) : "") },
  ].filter(Boolean);
  return card("calls", "Calls",
    report.differences.length > 0 && [
      make("p", {}, make("span", { class: "badge bad" }, "not called equally often"), " Members of a group have called these a different number of times:"),
      make("ul", { class: "notes" }, report.differences.map((text) => make("li", {}, named(text)))),
    ],
    legend([
      calls.some((row) => row.wait_ns) && ["--series-4", "waiting for another rank"], calls.some((row) => row.transfer_ns) && ["--series-0", "transfer"],
      calls.some((row) => row.time_ns > row.wait_ns + row.transfer_ns) && ["--series-6", "not known which"],
    ]),
    table({
      caption: "Most time first. Bandwidth as in nccl-tests; ≥: a lower bound, because the time includes the wait for other ranks; ≠: members have not called it equally often",
      rows: calls, columns,
      isMarked: (row) => row.counts_differ && row.open > 0,
      search: (row) => `${row.operation} ${row.group?.name ?? ""} ${siteOf(row)} ${row.size_class}`,
      hint: "Find an operation, group or line",
    }),
    report.calls_left_out > 0 && make("p", { class: "muted" }, `${counted(report.calls_left_out, "row")} with less time are left out; otel-torchdist analyze --only calls lists them.`));
}

/** Format a call site: `forward at model.py:88`. `__init__.py` is shown with its folder. */
function siteOf(row) {
  if (!row.call_site?.file) return "";
  const parts = row.call_site.file.split("/");
  const name = parts.slice(parts.at(-1) === "__init__.py" ? -2 : -1).join("/");
  return `${row.call_site.function.replaceAll(".<locals>", "")} at ${name}:${row.call_site.line}`;
}

function waitMeter(row, all) {
  const known = row.wait_ns + row.transfer_ns;
  const share = row.time_ns / all;
  const part = (ns) => (row.time_ns ? (ns / row.time_ns) * share : 0);
  const text = `${percent(share)}${known ? `, ${percent(row.wait_ns, known)} of it waiting` : ""}`;
  return meter([
    { share: part(row.wait_ns), tone: "--series-4" }, { share: part(row.transfer_ns), tone: "--series-0" }, { share: part(Math.max(0, row.time_ns - known)), tone: "--series-6" },
  ], text);
}

function groupsCard(report) {
  if (!report.skews.length) return null;
  const hasTimes = report.skews.some((row) => row.skew_median_ns !== null);
  const number = (name, value, show = (ns) => (ns ? count(ns) : "")) => ({ name, isNumber: true, value, show: (row) => show(value(row)) });
  return card("groups", "Groups",
    make("p", { class: "muted" }, hasTimes ? "Skew is the time between the first arrival at an operation and the last." : "Members of these groups have no common clock, so their arrivals are not compared."),
    table({
      caption: "Groups with missing calls first, then by decreasing skew",
      rows: report.skews,
      search: (row) => row.group.name,
      hint: "Find a group",
      isMarked: (row) => row.mismatched > 0 || row.incomplete > 0,
      columns: [
        { name: "group", value: (row) => row.group.name, show: (row) => [named(row.group.name), row.point_to_point ? ", send/recv" : ""] },
        number("ranks", (row) => row.group.members),
        number("complete", (row) => row.complete),
        number("open", (row) => row.open),
        number("incomplete", (row) => row.incomplete),
        number("mismatched", (row) => row.mismatched),
        ...(hasTimes ? [number("skew, median", (row) => row.skew_median_ns, duration), number("p99", (row) => row.skew_p99_ns, duration), number("longest", (row) => row.skew_max_ns, duration)] : []),
      ],
    }),
    report.skews_left_out > 0 && make("p", { class: "muted" }, `${counted(report.skews_left_out, "more group")} are left out; otel-torchdist analyze --only calls lists them.`));
}
