// Lanes of bars over time on a canvas, with zoom, pan and selection by mouse and keyboard, and the same bars as a table.
//
// A model:
//   from, until   the whole time span, in nanoseconds from the origin
//   lanes         [{title, note, noteTone, isFirst, isNamed, bars}]; isFirst: first lane of a rank; isNamed: a verdict or
//                 a long wait names the rank
//   lane.bars     [{begin, end, waited, tone, label, ...}], ascending; end null: open, drawn to the right edge;
//                 waited: end of the wait for other ranks, or null
//   marks         [{at, label, tone}] vertical lines, such as the ends of steps
//   path          [{lane, begin, end}] pieces of a line over the bars, or empty
//   describe      (bar, lane) => [[name, value], ...] for the readout
//   origin        description of time 0

const MIN_SPAN_NS = 200;
const MAX_ROWS = 200;
const KEYS = "Arrows: another operation or lane · + and −: zoom · A and D: earlier, later · 0: everything · Esc: none";

const HINT = "Point at an operation, or select one with the arrow keys, to see its figures.";

/** A timeline: a ruler, a canvas with lanes, a readout of the selected bar, and a table. */
class Timeline {
  constructor(model, label) {
    this.ruler = make("canvas", { "aria-hidden": "true" });
    this.canvas = make("canvas", { tabindex: "0", role: "application", "aria-label": `${label}. ${KEYS}` });
    this.canvas.drawn = () => this.drawn;
    this.readout = make("div", { class: "readout", role: "status", "aria-live": "polite" });
    this.rows = make("div", { class: "scroll" });
    this.table = make("details", { toggle: () => this.tabulate() }, make("summary", {}, "Operations in view, as a table"), this.rows);
    this.tools = make("div", { class: "tools", role: "toolbar", "aria-label": "View" },
      make("button", { type: "button", "aria-label": "Zoom in", click: () => this.zoom(0.5) }, "+"),
      make("button", { type: "button", "aria-label": "Zoom out", click: () => this.zoom(2) }, "−"),
      make("button", { type: "button", click: () => this.pan(-0.5) }, "← Earlier"),
      make("button", { type: "button", click: () => this.pan(0.5) }, "Later →"),
      make("button", { type: "button", click: () => this.showAll() }, "Everything"),
      make("span", { class: "muted small help-keys" }, "Drag to move, Ctrl and wheel to zoom; with the keyboard: + − A D, arrows, 0"));
    this.frame = make("div", { class: "frame" }, this.ruler, make("div", { class: "lanes" }, this.canvas));
    this.element = make("div", { class: "timeline" }, this.tools, this.frame, this.readout, this.table);
    this.selected = null;
    this.listen();
    this.update(model);
    this.describe(null);
    theme.follow(() => this.paint());
    new ResizeObserver(() => this.paint()).observe(this.frame);
  }

  /** Show another model. The view stays, or follows the newest time if it ended there. */
  update(model) {
    const before = this.model;
    this.model = model;
    if (before === undefined || (this.view.from <= before.from && this.view.until >= before.until)) {
      this.view = { from: model.from, until: Math.max(model.until, model.from + MIN_SPAN_NS) };
    } else if (this.view.until >= before.until) {
      this.moveTo(this.view.from + model.until - before.until);
    }
    if (this.selected && !model.lanes[this.selected.lane]?.bars[this.selected.place]) this.selected = null;
    this.paint();
    this.tabulate();
  }

  // The view.

  showAll() {
    this.view = { from: this.model.from, until: Math.max(this.model.until, this.model.from + MIN_SPAN_NS) };
    this.changed();
  }

  /** Zoom by a factor around a time. By default: around the selected bar, or around the middle if none is selected. */
  zoom(factor, around) {
    const { from, until } = this.view;
    const bar = this.selectedBar();
    const fixed = around ?? (bar && bar.begin >= from && bar.begin <= until ? bar.begin : (from + until) / 2);
    const whole = Math.max(this.model.until - this.model.from, MIN_SPAN_NS);
    const span = Math.min(whole, Math.max(MIN_SPAN_NS, (until - from) * factor));
    const share = (fixed - from) / (until - from);
    this.view = { from: fixed - share * span, until: fixed + (1 - share) * span };
    this.moveTo(this.view.from);
    this.changed();
  }

  pan(share) {
    this.moveTo(this.view.from + share * (this.view.until - this.view.from));
    this.changed();
  }

  moveTo(from) {
    const span = this.view.until - this.view.from;
    const start = Math.max(this.model.from, Math.min(from, this.model.until - span));
    this.view = { from: start, until: start + span };
  }

  /** Show a time span, such as a step. */
  show(from, until) {
    const margin = (until - from) * 0.02;
    this.view = { from: Math.max(this.model.from, from - margin), until: Math.min(this.model.until, until + margin) };
    if (this.view.until - this.view.from < MIN_SPAN_NS) this.view.until = this.view.from + MIN_SPAN_NS;
    this.changed();
  }

  changed() {
    this.paint();
    clearTimeout(this.later);
    this.later = setTimeout(() => this.tabulate(), 150);
  }

  paint() {
    this.drawn = paintTimeline(this);
  }

  // The selected bar.

  selectedBar() {
    return this.selected ? this.model.lanes[this.selected.lane].bars[this.selected.place] : null;
  }

  select(lane, place) {
    this.selected = lane === null ? null : { lane, place };
    this.describe(this.selectedBar(), this.selected?.lane);
    const bar = this.selectedBar();
    if (bar) {
      const end = bar.end ?? this.model.until;
      if (end < this.view.from || bar.begin > this.view.until) this.moveTo((bar.begin + end - (this.view.until - this.view.from)) / 2);
      this.reveal(lane);
    }
    this.changed();
  }

  /** Scroll the frame, not the page, to a lane. */
  reveal(lane) {
    const box = this.canvas.parentElement;
    const top = lane * this.drawn.laneHeight;
    if (top < box.scrollTop) box.scrollTop = top;
    else if (top + this.drawn.laneHeight > box.scrollTop + box.clientHeight) box.scrollTop = top + this.drawn.laneHeight - box.clientHeight;
  }

  describe(bar, lane) {
    this.readout.replaceChildren(bar ? facts(this.model.describe(bar, this.model.lanes[lane])) : make("p", { class: "muted small" }, HINT));
  }

  /** Select the next bar of the lane, or the bar at the same time in the next lane that has bars. */
  step(lanes, places) {
    const all = this.model.lanes;
    if (!this.selected) {
      const first = this.drawn.bars[0];
      if (first) this.select(first.lane, first.place);
      return;
    }
    const { lane, place } = this.selected;
    if (!lanes) {
      this.select(lane, Math.max(0, Math.min(all[lane].bars.length - 1, place + places)));
      return;
    }
    for (let other = lane + lanes; other >= 0 && other < all.length; other += lanes) {
      if (!all[other].bars.length) continue;
      this.select(other, firstAt(all[other].bars, all[lane].bars[place].begin));
      return;
    }
  }

  // Mouse and keyboard.

  listen() {
    const canvas = this.canvas;
    const keys = {
      ArrowLeft: () => this.step(0, -1), ArrowRight: () => this.step(0, 1), ArrowUp: () => this.step(-1, 0), ArrowDown: () => this.step(1, 0),
      "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), w: () => this.zoom(0.5), "-": () => this.zoom(2), s: () => this.zoom(2),
      a: () => this.pan(-0.25), d: () => this.pan(0.25), 0: () => this.showAll(), Escape: () => this.select(null),
    };
    canvas.addEventListener("keydown", (event) => {
      const act = keys[event.key.length === 1 ? event.key.toLowerCase() : event.key];
      if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      act();
    });
    canvas.addEventListener("wheel", (event) => {
      if (event.ctrlKey) this.zoom(1.002 ** event.deltaY, this.timeAt(event.offsetX));
      else if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) this.pan((event.deltaX || event.deltaY) / 800);
      else return; // let the page scroll
      event.preventDefault();
    }, { passive: false });
    canvas.addEventListener("dblclick", (event) => this.zoom(0.4, this.timeAt(event.offsetX)));
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      this.grabbed = { x: event.offsetX, from: this.view.from, isMoved: false };
    });
    canvas.addEventListener("pointermove", (event) => this.moved(event));
    canvas.addEventListener("pointerup", (event) => {
      const hit = this.hit(event.offsetX, event.offsetY);
      if (this.grabbed && !this.grabbed.isMoved) this.select(hit ? hit.lane : null, hit?.place);
      this.grabbed = null;
    });
    canvas.addEventListener("pointercancel", () => { this.grabbed = null; });
    canvas.addEventListener("pointerleave", () => this.describe(this.selectedBar(), this.selected?.lane));
  }

  moved(event) {
    if (!this.grabbed) {
      const hit = this.hit(event.offsetX, event.offsetY);
      const bar = hit ? this.model.lanes[hit.lane].bars[hit.place] : this.selectedBar();
      this.describe(bar, hit ? hit.lane : this.selected?.lane);
      return;
    }
    const distance = event.offsetX - this.grabbed.x;
    if (!this.grabbed.isMoved && Math.abs(distance) < 4) return;
    this.grabbed.isMoved = true;
    this.moveTo(this.grabbed.from - (distance * (this.view.until - this.view.from)) / this.drawn.plotWidth);
    this.changed();
  }

  timeAt(x) {
    return this.view.from + ((x - this.drawn.left) / this.drawn.plotWidth) * (this.view.until - this.view.from);
  }

  hit(x, y) {
    const lane = Math.floor(y / this.drawn.laneHeight);
    const found = this.drawn.bars.filter((bar) => bar.lane === lane && x >= bar.x - 2 && x <= bar.x + bar.width + 2);
    return found.length ? found[found.length - 1] : null;
  }

  // The table.

  tabulate() {
    if (!this.table.open) return;
    const { from, until } = this.view;
    const rows = [];
    let more = 0;
    for (const lane of this.model.lanes) {
      for (const bar of lane.bars) {
        if (bar.begin > until) break;
        if ((bar.end ?? this.model.until) < from) continue;
        if (rows.length < MAX_ROWS) rows.push([lane, bar]);
        else more += 1;
      }
    }
    const described = rows.map(([lane, bar]) => new Map(this.model.describe(bar, lane)));
    const names = [...new Set(described.flatMap((one) => [...one.keys()]))];
    this.rows.replaceChildren(
      make("table", {},
        make("caption", {}, more ? `${counted(rows.length, "operation")}; ${count(more)} more are in view: zoom in` : counted(rows.length, "operation")),
        make("thead", {}, make("tr", {}, names.map((name) => make("th", { scope: "col" }, name)))),
        make("tbody", {}, described.map((one) => make("tr", {}, names.map((name) => make("td", {}, one.get(name) ?? "")))))));
  }
}

/** Return the index of the bar that covers a time; of the next bar if none does; of the last bar if none follows. */
function firstAt(bars, time) {
  const place = bars.findIndex((bar) => bar.end === null || bar.end >= time);
  return place < 0 ? bars.length - 1 : place;
}
