// The last minute: the operations of a few ranks on a timeline, and for many ranks a strip of seconds each.

const SECOND_NS = 1e9;
const MINUTE_S = 60;
const UNIT_NS = 1e4; // unit of times in the document: 10 µs
const ROWS_OF_A_RANK = 4;
const STRIP_LABEL = 74; // width of the label of a strip, in CSS pixels

/** The section with the last minute: a timeline of some ranks, and the strips of all ranks. */
class Minute {
  /** `choose` is called with the rank that the user clicks. */
  constructor(choose) {
    this.timeline = new Timeline({ from: -MINUTE_S * SECOND_NS, until: 0, lanes: [], describe: described }, "Operations of the last minute");
    this.strips = new Strips(choose);
    this.note = make("p", { class: "small muted" });
    this.legend = make("div");
    this.element = make("section", { class: "card", "aria-labelledby": "minute" }, make("h2", { id: "minute" }, "Last minute"),
      this.note, this.legend, this.timeline.element, this.strips.element);
  }

  show(run, at) {
    const { lanes, strips } = run.timeline;
    const isWhole = lanes.length === strips.length;
    const blamed = new Map(run.ranks.filter((row) => row.named).map((row) => [row.rank, row.state]));
    const rows = lanes.flatMap((lane) => rowsOf(lane, run.timeline.names, blamed.get(lane.rank)));
    this.showLanes(rows, at);
    this.showLegend(rows.flatMap((row) => row.bars));
    this.strips.show(strips, isWhole);
    const isRemote = run.ranks.some((row) => row.communicating === null && row.state === "running") && lanes.some((lane) => !lane.bars.length);
    write(this.note, [
      lanes.length && !isWhole ? `Operations of ${ranksNamed(span(lanes.map((lane) => lane.rank)))}.` : "",
      isRemote ? "For ranks on other nodes, only open operations are known here." : "",
    ].filter(Boolean).join(" "));
  }

  showLegend(bars) {
    const entries = operationEntries(bars.filter((bar) => bar.end !== null).map((bar) => [bar.label, bar.family]));
    const isOpen = bars.some((bar) => bar.end === null);
    rewrite(this.legend, [entries.map(([tone, name]) => [tone, name.textContent ?? name]), isOpen], () => legend([...entries, isOpen && ["--warn", "waiting or stalled"]]));
  }

  /** Show new lanes, and keep the selected bar. Times are relative to now, so its start and index have changed. */
  showLanes(lanes, at) {
    const { timeline } = this;
    const chosen = timeline.selectedBar();
    const isSame = (bar) => chosen && bar.rank === chosen.rank && bar.label === chosen.label && Math.abs(bar.begin + at - (chosen.begin + this.at)) < 1e4;
    timeline.selected = null;
    lanes.forEach((lane, place) => {
      const found = chosen ? lane.bars.findIndex(isSame) : -1;
      if (found >= 0) timeline.selected = { lane: place, place: found };
    });
    this.at = at;
    timeline.update({ ...timeline.model, lanes });
  }
}

/** Distribute the bars of a rank over rows without overlaps. */
function rowsOf(lane, names, blamedState) {
  const rows = [[]];
  let begin = -lane.since * UNIT_NS;
  for (const [step, length, place] of lane.bars) {
    begin += step * UNIT_NS;
    const isOpen = length < 0;
    const bar = {
      rank: lane.rank, begin: Math.max(begin, -MINUTE_S * SECOND_NS), end: isOpen ? (begin < -SECOND_NS ? null : 0) : begin + length * UNIT_NS,
      length: isOpen ? -begin : length * UNIT_NS, isOpen, label: names[place][0], group: names[place][1], family: names[place][2], tone: toneOf(names[place][2]),
    };
    let row = rows.find((bars) => !bars.length || (bars.at(-1).end !== null && bars.at(-1).end <= bar.begin));
    if (!row && rows.length < ROWS_OF_A_RANK) rows.push(row = []);
    row?.push(bar);
  }
  return rows.map((bars, nth) => ({ title: nth ? "" : `rank ${lane.rank}`, note: nth ? "" : blamedState ?? "", noteTone: "--bad", isFirst: !nth, isNamed: !nth && blamedState !== undefined, bars }));
}

function described(bar) {
  return [
    ["rank", String(bar.rank)], ["operation", named(bar.label)], ["group", bar.group && named(bar.group)],
    [bar.isOpen ? "open for" : "duration", bar.length >= SECOND_NS ? age(bar.length / 1e9) : duration(bar.length)],
    ["ended", bar.isOpen ? "" : `${age(-bar.end / 1e9)} ago`],
  ];
}

/** A row for each rank with a cell for each second: pale for computing, dark for communication. */
class Strips {
  constructor(choose) {
    this.list = [];
    this.canvas = make("canvas", { role: "img", "aria-label": "Share of communication in each second of the last minute, for each rank; the table of ranks has its present value",
      pointermove: (event) => this.point(event), pointerleave: () => write(this.readout, ""), click: (event) => this.pick(event, choose) });
    this.canvas.drawn = () => ({ strips: this.list.length, thick: this.thick });
    this.frame = make("div", { class: "frame strips" }, this.canvas);
    this.readout = make("p", { class: "small muted strip-readout" });
    this.hint = make("li", {}, "A click shows a rank's operations above.");
    const legend = make("ul", { class: "legend" }, make("li", {}, "communicating: never", make("span", { class: "shade" }), "always"), this.hint);
    this.element = make("div", {}, make("h3", {}, "Communication in each second"), legend, this.frame, this.readout);
    theme.follow(() => this.paint());
    new ResizeObserver(() => this.paint()).observe(this.frame);
  }

  show(list, isWhole) {
    this.list = list;
    this.hint.hidden = isWhole;
    this.element.hidden = list.length === 0;
    this.paint();
  }

  paint() {
    const width = this.frame.clientWidth;
    if (!this.list.length || !width) return;
    const size = textSize();
    this.thick = Math.max(2, Math.min(Math.round(size * 1.5), Math.floor(400 / this.list.length)));
    this.cell = (width - STRIP_LABEL - 8) / MINUTE_S;
    const height = this.list.length * this.thick;
    const context = prepared(this.canvas, width, height);
    context.font = `${size}px ${getComputedStyle(document.body).fontFamily}`;
    context.textBaseline = "middle";
    const every = Math.ceil((size * 1.4) / this.thick);
    const gap = this.thick > 4 ? 1 : 0;
    this.list.forEach((strip, place) => {
      const top = place * this.thick;
      context.fillStyle = color("--muted");
      if (place % every === 0) context.fillText(`rank ${strip.rank}`, 6, top + Math.max(this.thick, size) / 2);
      this.paintCells(context, strip.cells, top, gap);
    });
    context.globalAlpha = 1;
  }

  paintCells(context, cells, top, gap) {
    for (let from = 0; from < cells.length; ) {
      let until = from + 1;
      while (until < cells.length && cells[until] === cells[from]) until += 1;
      if (cells[from] !== ".") {
        const [left, width] = [STRIP_LABEL + from * this.cell, (until - from) * this.cell];
        context.globalAlpha = 1;
        context.fillStyle = color("--sunken");
        context.fillRect(left, top, width, this.thick - gap);
        context.globalAlpha = Number(cells[from]) / 9;
        context.fillStyle = color("--series-0");
        context.fillRect(left, top, width, this.thick - gap);
        context.globalAlpha = 1;
      }
      from = until;
    }
  }

  stripAt(event) {
    return this.list[Math.floor(event.offsetY / this.thick)];
  }

  point(event) {
    const strip = this.stripAt(event);
    const second = Math.floor((event.offsetX - STRIP_LABEL) / this.cell);
    const digit = strip?.cells[second];
    write(this.readout, digit === undefined ? "" : `rank ${strip.rank}, ${MINUTE_S - second} s ago: ${digit === "." ? "not known" : `about ${percent(Number(digit), 9)} communication`}`);
  }

  pick(event, choose) {
    const strip = this.stripAt(event);
    if (strip && !this.hint.hidden) choose(strip.rank);
  }
}

/** Format ascending numbers as `0-3,7`. */
function span(ranks) {
  const parts = [];
  for (const rank of ranks) {
    const last = parts.at(-1);
    if (last && last[1] === rank - 1) last[1] = rank;
    else parts.push([rank, rank]);
  }
  return parts.map(([first, last]) => (first === last ? first : `${first}-${last}`)).join(",");
}
