// The last minute: a lane for each operation of a few ranks, and a strip of seconds for each of many.

const MINUTE_US = 60e6;
const LANE = 20;
const LABEL = 74;
const AXIS = 20;
const SERIES = 8;
const MAX_NAMES = 64;
const seriesOfNames = new Map();

/** The colour of an operation: the same as long as the page is open. */
function seriesOf(name) {
  if (!seriesOfNames.has(name)) {
    if (seriesOfNames.size >= MAX_NAMES) seriesOfNames.clear();
    seriesOfNames.set(name, seriesOfNames.size % SERIES);
  }
  return `--series-${seriesOfNames.get(name)}`;
}

class Minute {
  /** `choose` is called with the first of the ranks whose operations should be shown. */
  constructor(choose) {
    this.choose = choose;
    this.run = null;
    this.lanes = make("canvas", { role: "img", "aria-label": "Operations of the last minute; the table of ranks says what each does now.",
      mousemove: (event) => this.point(event), mouseleave: () => write(this.readout, "") });
    this.strips = make("canvas", { role: "img", "aria-label": "Share of communication in each second of the last minute, for each rank",
      mousemove: (event) => this.pointStrip(event), mouseleave: () => write(this.readout, ""), click: (event) => this.pick(event) });
    this.readout = make("p", { class: "readout small muted" });
    this.legend = make("ul", { class: "legend" });
    this.lanesFrame = make("div", { class: "frame" }, this.lanes);
    this.stripsFrame = make("div", { class: "frame strips" }, this.strips);
    this.shades = make("ul", { class: "legend" }, make("li", {}, "communicating: none", make("span", { class: "shade" }), "all of a second; click a rank to see its operations"));
    this.note = make("p", { class: "small muted" });
    this.element = make("section", { class: "card", "aria-labelledby": "minute" }, make("h2", { id: "minute" }, "Last minute"),
      this.note, this.legend, this.lanesFrame, this.shades, this.stripsFrame, this.readout);
    theme.follow(() => this.draw());
    new ResizeObserver(() => this.draw()).observe(this.element);
  }

  show(run) {
    this.run = run;
    this.draw();
    const { lanes, names, strips } = run.timeline;
    const used = new Set(lanes.flatMap((lane) => lane.bars.map((bar) => bar[2])));
    const shown = [...new Set([...used].map((place) => names[place][0]))];
    rewrite(this.legend, shown, () => shown.map((name) => make("li", {}, make("span", { class: "swatch", "--tone": `var(${seriesOf(name)})` }), named(name))));
    this.stripsFrame.hidden = this.shades.hidden = strips.length === 0;
    const remote = run.ranks.some((row) => row.communicating === null && row.state === "running");
    write(this.note, [lanes.length && strips.length ? `Operations of ${ranksNamed(span(lanes.map((lane) => lane.rank)))}; all ranks below.` : "",
      remote ? "Of ranks on other nodes only what is still going on is known here." : ""].filter(Boolean).join(" "));
  }

  draw() {
    if (!this.run || !this.element.isConnected) return;
    this.drawLanes(this.run.timeline, new Set(this.run.ranks.filter((row) => row.named).map((row) => row.rank)));
    if (this.run.timeline.strips.length) this.drawStrips(this.run.timeline.strips);
  }

  drawLanes({ lanes, names }, blamed) {
    const width = Math.max(this.lanesFrame.clientWidth, 200);
    const height = lanes.length * LANE + AXIS;
    const context = prepared(this.lanes, width, height);
    const scale = (width - LABEL - 8) / MINUTE_US;
    context.font = `${textSize(0.78)}px ${getComputedStyle(document.body).fontFamily}`;
    context.textBaseline = "middle";
    drawAxis(context, width, height);
    this.boxes = [];
    lanes.forEach((lane, place) => {
      const top = place * LANE;
      context.fillStyle = color(blamed.has(lane.rank) ? "--bad" : "--ink");
      context.fillText(`rank ${lane.rank}`, 8, top + LANE / 2);
      for (const [begin, end, name] of lane.bars) {
        const left = LABEL + Math.max(MINUTE_US - begin, 0) * scale;
        const right = LABEL + (MINUTE_US - Math.max(end, 0)) * scale;
        context.fillStyle = color(seriesOf(names[name][0]));
        context.globalAlpha = end < 0 ? 0.55 : 1;
        context.fillRect(left, top + 3, Math.max(right - left, 1), LANE - 6);
        context.globalAlpha = 1;
        if (end < 0) {
          context.strokeStyle = color(seriesOf(names[name][0]));
          context.strokeRect(left + 0.5, top + 3.5, Math.max(right - left - 1, 1), LANE - 7);
        }
        this.boxes.push([left, Math.max(right, left + 1), place, lane.rank, begin, end, names[name]]);
      }
    });
  }

  drawStrips(strips) {
    const width = Math.max(this.stripsFrame.clientWidth, 200);
    const thick = Math.max(2, Math.min(12, Math.floor(420 / strips.length)));
    const height = strips.length * thick + AXIS;
    const context = prepared(this.strips, width, height);
    const cell = (width - LABEL - 8) / 60;
    context.font = `${textSize(0.78)}px ${getComputedStyle(document.body).fontFamily}`;
    context.textBaseline = "middle";
    drawAxis(context, width, height);
    const every = Math.max(1, Math.ceil(14 / thick));
    strips.forEach((strip, place) => {
      const top = place * thick;
      if (place % every === 0) {
        context.fillStyle = color("--muted");
        context.fillText(String(strip.rank), 8, top + Math.max(thick, 12) / 2);
      }
      for (let second = 0; second < 60; second += 1) {
        const digit = strip.cells[second];
        if (digit === ".") continue;
        context.fillStyle = color("--sunken");
        context.fillRect(LABEL + second * cell, top, cell + 0.5, thick - (thick > 4 ? 1 : 0));
        context.globalAlpha = Number(digit) / 9;
        context.fillStyle = color("--series-0");
        context.fillRect(LABEL + second * cell, top, cell + 0.5, thick - (thick > 4 ? 1 : 0));
        context.globalAlpha = 1;
      }
    });
    this.thick = thick;
    this.cell = cell;
  }

  point(event) {
    const found = this.boxes.findLast((box) => Math.floor(event.offsetY / LANE) === box[2] && event.offsetX >= box[0] - 1 && event.offsetX <= box[1] + 1);
    if (!found) return write(this.readout, "");
    const [, , , rank, begin, end, [name, group]] = found;
    const length = duration((begin - Math.max(end, 0)) * 1e3);
    write(this.readout, `rank ${rank}: ${name}${group ? ` (${group})` : ""}, ${end < 0 ? `for ${length} so far` : `${length}, ended ${age(end / 1e6)} ago`}`);
  }

  stripAt(event) {
    return this.run.timeline.strips[Math.floor(event.offsetY / this.thick)];
  }

  pointStrip(event) {
    const strip = this.stripAt(event);
    const second = Math.floor((event.offsetX - LABEL) / this.cell);
    const digit = strip?.cells[second];
    if (digit === undefined) return write(this.readout, "");
    write(this.readout, `rank ${strip.rank}, ${60 - second} s ago: ${digit === "." ? "not known" : `about ${Math.round((Number(digit) / 9) * 100)} % communication`}`);
  }

  pick(event) {
    const strip = this.stripAt(event);
    if (strip) this.choose(strip.rank);
  }
}

/** `0-3,7` of ascending numbers. */
function span(ranks) {
  const parts = [];
  for (const rank of ranks) {
    const last = parts.at(-1);
    if (last && last[1] === rank - 1) last[1] = rank;
    else parts.push([rank, rank]);
  }
  return parts.map(([first, last]) => (first === last ? first : `${first}-${last}`)).join(",");
}

function drawAxis(context, width, height) {
  const scale = (width - LABEL - 8) / 60;
  context.textAlign = "center";
  for (let second = 0; second <= 60; second += 10) {
    const x = LABEL + second * scale;
    context.fillStyle = color("--line");
    context.fillRect(Math.round(x), 0, 1, height - AXIS);
    context.fillStyle = color("--muted");
    context.textAlign = second === 60 ? "right" : "center";
    context.fillText(second === 60 ? "now" : `−${60 - second} s`, second === 60 ? width - 4 : x, height - AXIS / 2);
  }
  context.textAlign = "left";
}
