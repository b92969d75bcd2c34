// The critical path, and upper bounds on the time saved by removing a cause.

function pathCard(report) {
  const { path } = report;
  if (!path) return null;
  const { steps } = path;
  const notes = [...steps.longest.map((step) => step.text), ...path.notes];
  const about = steps.first === null
    ? "There are no steps, so all calls count as one."
    : `The average of ${counted(steps.count, "steady step")}, ${count(steps.first)} to ${count(steps.last)}.${steps.unsteady ? ` ${counted(steps.unsteady, "step")} that took more than twice the median ${steps.unsteady === 1 ? "is" : "are"} left out.` : ""}`;
  return card("critical-path", "Critical path",
    make("p", { class: "muted" }, `The chain of computing and transfers that determines how long a step takes: only a change on it makes steps shorter. ${about}`),
    facts([
      [steps.first === null ? "all calls" : "median step", duration(steps.median_ns)],
      ["computing on the path", `${duration(path.computing_ns)}, ${percent(path.computing_ns, lengthOf(path))}`],
      ["transfer on the path", `${duration(path.transfer_ns)}, ${percent(path.transfer_ns, lengthOf(path))}`],
    ]),
    path.causes.length > 0 ? gainTable(path) : steps.first !== null && empty("No rank, line or transfer stands out: without any one of them steps would hardly be shorter."),
    make("div", { class: "columns" }, pieceTable(path, report.pieces_left_out), rankTable(path)),
    notes.length > 0 && make("ul", { class: "notes muted" }, notes.map((text) => make("li", {}, named(capital(text)), "."))));
}

function gainTable(path) {
  return table({
    caption: "Upper bound on the time that a step would save without a cause, the greatest gain first",
    rows: path.causes,
    columns: [
      { name: "gain at most", isGauge: true, value: (row) => row.gain_ns, show: (row) => meter([{ share: row.gain_ns / lengthOf(path), tone: "--series-4" }], `${duration(row.gain_ns)}, ${percent(row.gain_ns, lengthOf(path))}`) },
      { name: "without this", isProse: true, value: (row) => row.text, show: (row) => named(row.text) },
    ],
  });
}

/** Return the length of the path in an average step. */
function lengthOf(path) {
  return path.computing_ns + path.transfer_ns;
}

/** Return the end of a caption: lengths are those of an average step, if there are steps. */
function each(path) {
  return path.steps.first === null ? "" : ", in an average step";
}

function pieceTable(path, leftOut) {
  return make("div", {}, table({
    caption: `Its longest parts${each(path)}`,
    rows: path.pieces,
    most: 12,
    search: (row) => `rank ${row.rank} ${row.kind} ${row.doing} ${row.call?.operation ?? ""} ${row.call?.group_name ?? ""} ${row.call?.where ?? ""}`,
    hint: "Find a rank, operation or line",
    columns: [
      { name: "share of the path", isGauge: true, value: (row) => row.ns, show: (row) => meter([{ share: row.ns / lengthOf(path), tone: row.kind === "transfer" ? "--series-0" : "--series-2" }], `${percent(row.ns, lengthOf(path))}, ${duration(row.ns)}`) },
      { name: "rank", isNumber: true, value: (row) => row.rank, show: (row) => String(row.rank) },
      { name: "what", isProse: true, value: (row) => row.kind, show: (row) => (row.kind === "transfer" ? ["transfer in ", named(row.call.operation)] : [`${row.doing || "computing"} before `, row.call ? named(row.call.operation) : "the end of the step"]) },
      { name: "group", value: (row) => row.call?.group_name ?? "", show: (row) => named(row.call?.group_name ?? "") },
      { name: "called in", value: (row) => row.call?.where ?? "", show: (row) => named(row.call?.where ?? "") },
    ],
  }), leftOut > 0 && make("p", { class: "muted small" }, `${counted(leftOut, "shorter part")} left out.`));
}

function rankTable(path) {
  const rows = [...path.ranks];
  if (rows.length > 12) rows.sort((one, other) => other.on_path_ns - one.on_path_ns || one.rank - other.rank);
  return make("div", {},
    legend([["--series-2", "computing"], ["--series-4", "waiting for another rank"], ["--series-0", "transfer"]]),
    table({
      caption: `${rows.length > 12 ? "Ranks with the largest share of the path first" : "Ranks"}${each(path)}`,
      rows,
      most: 12,
      isMarked: (row) => row.on_path_ns > (2 * path.computing_ns) / rows.length && row.on_path_ns > 0.2 * lengthOf(path),
      search: (row) => `rank ${row.rank} `,
      hint: "Find a rank",
      columns: [
        { name: "rank", isNumber: true, value: (row) => row.rank, show: (row) => String(row.rank) },
        { name: "on the path", isNumber: true, value: (row) => row.on_path_ns, show: (row) => percent(row.on_path_ns, lengthOf(path)) },
        { name: path.steps.first === null ? "its time" : "its step", isGauge: true, value: (row) => row.waiting_ns, show: (row) => partsMeter(row) },
        { name: "waits most for", value: (row) => row.waits_for[0]?.rank ?? -1, show: (row) => (row.waits_for.length ? `rank ${row.waits_for[0].rank}` : "") },
      ],
    }));
}

function partsMeter(row) {
  const whole = row.computing_ns + row.waiting_ns + row.transfer_ns || 1;
  return meter([
    { share: row.computing_ns / whole, tone: "--series-2" }, { share: row.waiting_ns / whole, tone: "--series-4" }, { share: row.transfer_ns / whole, tone: "--series-0" },
  ], `${percent(row.computing_ns, whole)} computing, ${percent(row.waiting_ns, whole)} waiting`);
}

function adviceCard(report) {
  if (!report.advice.length) return null;
  return card("advice", "Worth looking into",
    make("p", { class: "muted" }, "Measurements, and how to check them. A measurement cannot tell what to use instead."),
    report.advice.map((hint) => make("div", { class: "axis-key", "--tone": "var(--warn)" },
      make("h3", {}, capital(hint.topic)),
      make("p", {}, named(capital(hint.text)), "."),
      make("p", { class: "small" }, make("strong", {}, "Check: "), named(hint.check)),
      make("p", { class: "small muted" }, `More: ${hint.page}`))));
}
