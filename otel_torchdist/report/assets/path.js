// The critical path: what determines how long a step takes, and what the removal of a cause would bring at most.

function pathCard(report) {
  const { path } = report;
  if (!path) return null;
  const about = path.first_step === null
    ? "There are no steps, so all calls count as one."
    : `The average of ${counted(path.steps, "steady step")}, ${count(path.first_step)} to ${count(path.last_step)}.${path.unsteady ? ` ${counted(path.unsteady, "step")} that took more than twice the median ${path.unsteady === 1 ? "is" : "are"} left out.` : ""}`;
  return card("critical-path", "Critical path",
    make("p", { class: "muted" }, `The chain of computing and transfers that determines how long a step takes: only a change on it makes steps shorter. ${about}`),
    facts([
      [path.first_step === null ? "all calls" : "median step", duration(path.step_ns)],
      ["computing on the path", `${duration(path.computing_ns)}, ${percent(path.computing_ns, path.path_ns)}`],
      ["transfer on the path", `${duration(path.transfer_ns)}, ${percent(path.transfer_ns, path.path_ns)}`],
    ]),
    path.gains.length > 0 ? gainTable(path) : path.first_step !== null && empty("No rank, line or transfer stands out: without any one of them steps would hardly be shorter."),
    make("div", { class: "columns" }, partTable(path), rankParts(path)),
    path.notes.length > 0 && make("ul", { class: "notes muted" }, path.notes.map((text) => make("li", {}, named(capital(text)), "."))));
}

function gainTable(path) {
  return table({
    caption: "What a step would be shorter at most without a cause, the greatest gain first",
    rows: path.gains,
    columns: [
      { name: "gain at most", isGauge: true, value: (row) => row.gain_ns, show: (row) => meter([{ share: row.gain_ns / path.path_ns, tone: "--series-4" }], `${duration(row.gain_ns)}, ${percent(row.gain_ns, path.path_ns)}`) },
      { name: "without this", value: (row) => row.sentence, show: (row) => named(row.sentence) },
    ],
  });
}

/** What lengths are those of. */
function each(path) {
  return path.first_step === null ? "" : ", in an average step";
}

function partTable(path) {
  return make("div", {}, table({
    caption: `Its longest parts${each(path)}`,
    rows: path.parts,
    most: 12,
    search: (row) => `rank ${row.rank} ${row.kind} ${row.doing} ${row.operation} ${row.group} ${row.site}`,
    hint: "Find a rank, operation or line",
    columns: [
      { name: "share of the path", isGauge: true, value: (row) => row.length_ns, show: (row) => meter([{ share: row.length_ns / path.path_ns, tone: row.kind === "transfer" ? "--series-0" : "--series-2" }], `${percent(row.length_ns, path.path_ns)}, ${duration(row.length_ns)}`) },
      { name: "rank", isNumber: true, value: (row) => row.rank, show: (row) => String(row.rank) },
      { name: "what", value: (row) => row.kind, show: (row) => (row.kind === "transfer" ? ["transfer in ", named(row.operation)] : [`${row.doing || "computing"} before `, row.operation ? named(row.operation) : "the end of the step"]) },
      { name: "group", value: (row) => row.group, show: (row) => named(row.group) },
      { name: "called in", value: (row) => row.site, show: (row) => named(row.site) },
    ],
  }), path.parts_left_out > 0 && make("p", { class: "muted small" }, `${counted(path.parts_left_out, "shorter part")} left out.`));
}

function rankParts(path) {
  const { ranks } = path;
  const rows = ranks.rank.map((rank, place) => Object.fromEntries(Object.entries(ranks).map(([name, column]) => [name, column[place]])));
  if (rows.length > 12) rows.sort((one, other) => other.on_path_ns - one.on_path_ns || one.rank - other.rank);
  return make("div", {},
    legend([["--series-2", "computing"], ["--series-4", "waiting for another rank"], ["--series-0", "transfer"]]),
    table({
      caption: `${rows.length > 12 ? "Ranks with the largest share of the path first" : "Ranks"}${each(path)}`,
      rows,
      most: 12,
      isMarked: (row) => row.on_path_ns > (2 * path.computing_ns) / rows.length && row.on_path_ns > 0.2 * path.path_ns,
      search: (row) => `rank ${row.rank} `,
      hint: "Find a rank",
      columns: [
        { name: "rank", isNumber: true, value: (row) => row.rank, show: (row) => String(row.rank) },
        { name: "on the path", isNumber: true, value: (row) => row.on_path_ns, show: (row) => percent(row.on_path_ns, path.path_ns) },
        { name: path.first_step === null ? "its time" : "its step", isGauge: true, value: (row) => row.waiting_ns, show: (row) => partsMeter(row) },
        { name: "waits most for", value: (row) => row.waits_for, show: (row) => (row.waits_for < 0 ? "" : `rank ${row.waits_for}`) },
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
    make("p", { class: "muted" }, "What was measured, and how to check it; what to use instead is not for a measurement to say."),
    report.advice.map((hint) => make("div", { class: "axis-key", "--tone": "var(--warn)" },
      make("h3", {}, capital(hint.topic)),
      make("p", {}, named(capital(hint.text)), "."),
      make("p", { class: "small" }, make("strong", {}, "Check: "), named(hint.check)),
      make("p", { class: "small muted" }, `More: ${hint.page}`))));
}
