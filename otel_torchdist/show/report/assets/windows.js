// The timeline of the report. Converts one window at a time from columns to bars.

/** Convert a window of the document to a model of a timeline. */
function modelOf(window, namedRanks) {
  const lanes = [];
  let before = null;
  for (const lane of window.lanes) {
    let at = 0;
    const loose = new Set(lane.loose);
    const bars = lane.kind.map((kind, place) => {
      at += lane.begin[place];
      const length = lane.length[place];
      const waited = lane.waited[place];
      return {
        begin: at,
        end: length < 0 ? null : at + length,
        waited: waited < 0 ? null : at + waited,
        tone: toneOf(window.kinds[kind].family),
        label: window.kinds[kind].name,
        kind: window.kinds[kind],
        sequence: lane.sequence[place],
        step: lane.step[place],
        isLoose: loose.has(place),
      };
    });
    const isFirst = lane.rank !== before;
    lanes.push({ title: isFirst ? `rank ${lane.rank}` : "", rank: lane.rank, note: lane.group < 0 ? "activities" : window.groups[lane.group], isFirst, isNamed: isFirst && namedRanks.has(lane.rank), bars });
    before = lane.rank;
  }
  return { from: 0, until: window.length_ns, lanes, marks: window.marks.map((mark) => ({ at: mark.at_ns, label: mark.label, tone: mark.is_late ? "--bad" : undefined })), describe: described, path: pathOver(lanes, window) };
}

/** Return the critical path, along the first lane of each of its ranks. */
function pathOver(lanes, window) {
  const first = new Map();
  for (const [place, lane] of lanes.entries()) if (!first.has(lane.rank)) first.set(lane.rank, place);
  return window.path.filter((piece) => first.has(piece.rank)).map((piece) => ({ lane: first.get(piece.rank), begin: piece.at_ns, end: piece.at_ns + piece.length_ns }));
}

function described(bar, lane) {
  const length = bar.end === null ? null : bar.end - bar.begin;
  const waited = bar.waited === null ? null : bar.waited - bar.begin;
  return [
    ["rank", String(lane.rank)],
    ["operation", named(bar.label + (bar.sequence ? ` #${bar.sequence}` : ""))],
    ["group", named(lane.note)],
    ["begin", `+${duration(bar.begin)}`],
    ["duration", length === null ? "no end recorded" : `${bar.isLoose ? "≤ " : ""}${duration(length)}`],
    ["waited for others", waited === null ? "" : `${duration(waited)}${length ? `, ${percent(waited, length)}` : ""}`],
    ["transfer", waited === null || length === null ? "" : duration(length - waited)],
    ["bytes of this rank", bar.kind.message_bytes ? amount(bar.kind.message_bytes) : ""],
    ["step", bar.step < 0 ? "" : count(bar.step)],
    ["called in", bar.kind.site ? named(bar.kind.site) : ""],
  ];
}

function legendOf(window) {
  const isWaiting = window.lanes.some((lane) => lane.waited.some((waited) => waited > 0));
  const isOpen = window.lanes.some((lane) => lane.length.includes(-1));
  return make("ul", { class: "legend", "aria-label": "Colors" },
    operationEntries(window.kinds.map((kind) => [kind.name, kind.family])).map(([tone, name]) => make("li", {}, make("span", { class: "swatch", "--tone": `var(${tone})` }), name)),
    isWaiting && make("li", {}, make("span", { class: "swatch waiting" }), "waits for another rank"),
    window.path.length > 0 && make("li", {}, make("span", { class: "swatch line" }), "critical path, once zoomed in far enough"),
    isOpen && make("li", {}, make("span", { class: "swatch", "--tone": "var(--warn)" }), "no end recorded"));
}

function timelineCard(report) {
  const { windows } = report;
  if (!windows.length) {
    return { card: card("timeline", "Timeline", empty("There are no calls with times to draw.")), show: () => {} };
  }
  const legendBox = make("div");
  const about = make("p", { class: "muted" });
  const remarks = make("ul", { class: "notes muted" });
  const models = new Map();
  const model = (place) => {
    if (!models.has(place)) models.set(place, modelOf(windows[place], namedIn(report)));
    return models.get(place);
  };
  const timeline = new Timeline(model(0), "Operations of ranks over time");
  const choice = make("select", { "aria-label": "What is shown", change: () => choose(Number(choice.value)) },
    windows.map((window, place) => make("option", { value: String(place) }, window.title)));
  const find = make("select", { "aria-label": "Rank to scroll to", change: () => scrollTo(find.value) });

  const choose = (place) => {
    const window = windows[place];
    choice.value = String(place);
    timeline.select(null);
    timeline.model = undefined;
    timeline.update(model(place));
    legendBox.replaceChildren(legendOf(window));
    about.replaceChildren(`${capital(window.title)}; ${counted(window.ranks, "rank")}; 0 is ${window.origin}. A bar is a call. Stripes: known to be waiting for another rank.`);
    remarks.replaceChildren(...window.remarks.map((text) => make("li", {}, named(text))));
    const ranks = [...new Set(window.lanes.map((lane) => lane.rank))];
    find.replaceChildren(...ranks.map((rank) => make("option", { value: String(rank) }, `go to rank ${rank}`)));
    find.hidden = ranks.length < 8;
  };
  const scrollTo = (rank) => timeline.reveal(timeline.model.lanes.findIndex((lane) => String(lane.rank) === rank));
  timeline.tools.prepend(...[windows.length > 1 && choice, find].filter(Boolean));
  const found = card("timeline", "Timeline", about, legendBox, timeline.element, remarks);
  choose(0);
  return {
    card: found,
    show: (place) => {
      choose(place);
      found.scrollIntoView();
      timeline.canvas.focus({ preventScroll: true });
    },
  };
}
