// The top of the report: its subject, the verdict, and past incidents.

function headingCard(report) {
  const { heading } = report;
  const hosts = heading.hosts.slice(0, 6).map(([host, ranks], place) => [place ? ", " : "", named(host), heading.hosts.length > 1 ? ` (${ranks})` : ""]);
  if (heading.hosts.length > 6) hosts.push(`, and ${heading.hosts.length - 6} more`);
  return card("heading", null,
    make("h1", {}, named(heading.title)),
    facts([
      ["ranks with records", `${count(heading.known_ranks)} of ${count(heading.world_size)}`],
      [heading.hosts.length === 1 ? "node" : "nodes", heading.hosts.length ? make("span", {}, hosts) : "not recorded"],
      ["started", heading.began],
      ["newest record", heading.seen_until],
      ["calls", count(heading.calls) + (heading.lost ? `, and ${count(heading.lost)} lost` : "")],
    ]),
    make("details", {}, make("summary", {}, "About this report"), facts([
      ["run id", heading.run && make("code", {}, heading.run)],
      ["read from", named(heading.place)],
      ["report made", `${heading.made} by ${heading.made_by}`],
    ])),
    report.notes.length > 0 && make("details", { open: report.notes.length < 4 }, make("summary", {}, counted(report.notes.length, "note")),
      make("ul", { class: "notes" }, report.notes.map((note) => make("li", {}, named(note))))));
}

/** Return the ranks that verdicts and the longest waits name. */
function namedIn(report) {
  return new Set([...report.conclusions.flatMap((one) => one.ranks), ...report.incidents.slice(0, 3).map((one) => one.rank)]);
}

function conclusionCards(report) {
  if (!report.conclusions.length) {
    return [card("verdict", "No verdict", make("p", {}, "The records do not suffice to judge the run."))];
  }
  return report.conclusions.map((one, place) => {
    const found = card(place ? `verdict-${place + 1}` : "verdict", TITLES[one.title] ?? capital(one.title),
      verdictText(one.sentence),
      one.more.length > 0 && make("ul", { class: "notes" }, one.more.map((text) => make("li", {}, named(capital(text)), /[.…]$/.test(text) ? "" : "."))),
      one.details && make("details", {}, make("summary", {}, "What each rank was doing last"), make("pre", { tabindex: "0" }, one.details)));
    found.classList.add("banner", one.tone);
    return found;
  });
}

const TITLES = { "verdict": "Verdict", "no verdict": "No verdict", "ended together": "Ended together", "undecided": "Undecided" };

function incidentCard(report, show) {
  if (!report.incidents.length) return null;
  const rows = report.incidents.map((incident, place) => ({ ...incident, window: report.windows.findIndex((one) => one.incident === place) }));
  const worst = rows[0];
  const found = card("incidents", "Long waits that are over",
    make("p", { class: "sentence" }, make("strong", {}, `Rank ${worst.rank}`), ` kept ${counted(worst.waited, "rank")} waiting for `,
      make("strong", {}, duration(worst.wait_ns)), " in ", named(worst.operation), worst.step === null ? "" : ` of step ${count(worst.step)}`,
      worst.site ? [", which it calls in ", named(worst.site)] : "", "."),
    table({
      caption: "Operations in which ranks waited for a late rank, the longest wait first",
      rows,
      columns: [
        { name: "late rank", isNumber: true, value: (row) => row.rank, show: (row) => String(row.rank) },
        { name: "node", value: (row) => row.host, show: (row) => named(row.host) },
        { name: "waited", isNumber: true, value: (row) => row.wait_ns, show: (row) => duration(row.wait_ns) },
        { name: "ranks that waited", isNumber: true, value: (row) => row.waited, show: (row) => count(row.waited) },
        { name: "in", isProse: true, value: (row) => row.operation, show: (row) => named(row.operation) },
        { name: "called in", value: (row) => row.site, show: (row) => named(row.site) },
        { name: "step", isNumber: true, value: (row) => row.step, show: (row) => count(row.step) },
        { name: "since", value: (row) => row.began, show: (row) => row.began },
        { name: "", show: (row) => row.window >= 0 && make("button", { type: "button", click: () => show(row.window) }, "Timeline") },
      ],
    }));
  found.classList.add("banner", "warn");
  return found;
}
