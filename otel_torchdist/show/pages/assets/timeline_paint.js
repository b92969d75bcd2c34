// Paints a timeline: only bars in view, and only one bar per pixel.

// Minimum widths in CSS pixels: of a bar with a label, between two marks, and of a piece of the path on average.
const MIN_LABEL = 18;
const MIN_BETWEEN_MARKS = 24;
const MIN_PIECE = 8;

/** Paint a timeline. Return the positions of lanes and bars, in CSS pixels. */
function paintTimeline(timeline) {
  const { model, view, canvas, ruler, selected } = timeline;
  const width = timeline.frame.clientWidth || 800;
  const size = textSize();
  const laneHeight = Math.round(size * (model.lanes.length > 120 ? 1.15 : 1.75));
  const height = Math.max(1, model.lanes.length) * laneHeight;
  const context = prepared(canvas, width, height);
  context.font = `${size}px ${getComputedStyle(document.body).fontFamily}`;
  context.textBaseline = "middle";
  const left = gutter(context, model.lanes, width);
  const plotWidth = Math.max(10, width - left - 8);
  const x = (time) => left + ((time - view.from) / (view.until - view.from)) * plotWidth;
  const drawn = { from: view.from, until: view.until, left, plotWidth, laneHeight, width, height, bars: [], path: 0, selected };

  const every = roundStep(((view.until - view.from) / plotWidth) * size * 7);
  paintGrid(context, { view, every, x, height, left, width });
  for (const [place, lane] of model.lanes.entries()) {
    const top = place * laneHeight;
    if (lane.isFirst && place) {
      context.fillStyle = color("--line");
      context.fillRect(0, top, width, 1);
    }
    paintTitle(context, lane, { top, laneHeight, left, size });
    context.save();
    context.beginPath();
    context.rect(left, top, plotWidth + 8, laneHeight);
    context.clip();
    drawn.bars.push(...paintBars(context, lane.bars, { place, top, laneHeight, x, view, until: model.until, left, right: left + plotWidth, selected, size }));
    context.restore();
  }
  drawn.path = paintPath(context, model.path ?? [], { x, laneHeight, left, right: left + plotWidth, view });
  paintMarks(context, model.marks ?? [], { view, x, height });
  paintRuler(ruler, model, { view, every, x, width, left, size });
  return drawn;
}

function gutter(context, lanes, width) {
  const widest = lanes.reduce((most, lane) => Math.max(most, context.measureText(`${lane.title}  ${lane.note ?? ""}`).width), 0);
  return Math.ceil(Math.min(widest + 20, Math.max(width * 0.28, 10.5 * textSize())));
}

function paintGrid(context, { view, every, x, height, left, width }) {
  context.fillStyle = color("--line");
  context.globalAlpha = 0.6;
  for (let time = Math.ceil(view.from / every) * every; time <= view.until; time += every) context.fillRect(Math.round(x(time)), 0, 1, height);
  context.globalAlpha = 1;
  context.fillRect(left - 1, 0, 1, height);
  context.clearRect(width, 0, 1, height);
}

function paintTitle(context, lane, { top, laneHeight, left, size }) {
  const middle = top + laneHeight / 2;
  context.fillStyle = color(lane.isNamed ? "--bad" : "--ink");
  context.textAlign = "left";
  const title = lane.title ?? "";
  if (title) context.fillText(title, 6, middle, left - 12);
  const room = left - 12 - (title ? context.measureText(title).width + size : 0);
  if (!lane.note || room < size * 2) return;
  context.fillStyle = color(lane.noteTone ?? "--muted");
  context.textAlign = "right";
  context.fillText(fitting(context, lane.note, room), left - 8, middle);
}

function fitting(context, text, room) {
  if (context.measureText(text).width <= room) return text;
  let kept = text.length;
  while (kept > 1 && context.measureText(`${text.slice(0, kept)}…`).width > room) kept -= 1;
  return `${text.slice(0, kept)}…`;
}

function paintBars(context, bars, at) {
  const found = [];
  let painted = -1;
  for (let place = firstInView(bars, at.view.from); place < bars.length; place += 1) {
    const bar = bars[place];
    if (bar.begin > at.view.until) break;
    const end = bar.end ?? at.until;
    if (end < at.view.from) continue;
    const begin = Math.max(at.x(bar.begin), at.left);
    const stop = Math.min(Math.max(at.x(end), begin + 1.5), at.right + 8);
    const isSelected = at.selected?.lane === at.place && at.selected.place === place;
    if (stop - begin <= 2 && begin < painted + 0.5 && bar.end !== null && !isSelected) continue;
    painted = stop;
    paintBar(context, bar, { ...at, begin, stop, isSelected });
    found.push({ lane: at.place, place, label: bar.label, x: begin, width: stop - begin, begin: bar.begin, end: bar.end });
  }
  return found;
}

/** Find the first bar in view. Bars of a lane do not overlap, so their ends ascend too; an open bar is the last. */
function firstInView(bars, from) {
  let low = 0;
  let high = bars.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (bars[middle].end !== null && bars[middle].end < from) low = middle + 1;
    else high = middle;
  }
  return low;
}

function paintBar(context, bar, at) {
  const top = at.top + 2;
  const height = at.laneHeight - 4;
  const tone = color(bar.end === null ? "--warn" : bar.tone);
  const width = at.stop - at.begin;
  const waited = bar.waited === null || bar.waited === undefined ? at.begin : Math.min(Math.max(at.x(bar.waited), at.begin), at.stop);
  context.fillStyle = tone;
  context.globalAlpha = 0.25;
  context.fillRect(at.begin, top, waited - at.begin, height);
  context.globalAlpha = 1;
  context.fillRect(waited, top, at.stop - waited, height);
  hatch(context, at.begin, waited, top, height, tone);
  if (bar.end === null) paintOpenEnd(context, at.stop, top, height);
  if (at.isSelected) {
    context.strokeStyle = color("--ink");
    context.lineWidth = 2;
    context.strokeRect(at.begin - 1, top - 1, width + 2, height + 2);
  }
  if (width < MIN_LABEL || at.laneHeight < at.size * 1.3) return;
  const isPale = waited - at.begin > (at.stop - waited);
  const [from, room] = isPale ? [at.begin, waited - at.begin] : [waited, at.stop - waited];
  if (context.measureText(bar.label).width > room - 8) return;
  context.textAlign = "left";
  if (isPale) { // a plain background, because text on stripes is hard to read
    context.fillStyle = color("--surface");
    context.globalAlpha = 0.8;
    context.fillRect(from + 2, top + 2, context.measureText(bar.label).width + 4, height - 4);
    context.globalAlpha = 1;
  }
  context.fillStyle = color(isPale ? "--ink" : "--surface");
  context.fillText(bar.label, from + 4, top + height / 2 + 0.5);
}

/** Draw stripes on the part in which an operation only waited. */
function hatch(context, from, until, top, height, tone) {
  if (until - from < 3) return;
  context.save();
  context.beginPath();
  context.rect(from, top, until - from, height);
  context.clip();
  context.strokeStyle = tone;
  context.globalAlpha = 0.55;
  context.lineWidth = 1;
  context.beginPath();
  for (let at = Math.floor((from - height) / 6) * 6; at < until; at += 6) {
    context.moveTo(at, top + height);
    context.lineTo(at + height, top);
  }
  context.stroke();
  context.restore();
}

/** Draw a ragged edge for a bar that has not ended. */
function paintOpenEnd(context, right, top, height) {
  context.fillStyle = color("--surface");
  context.beginPath();
  context.moveTo(right, top);
  for (let tooth = 0; tooth < 4; tooth += 1) {
    context.lineTo(right - 6, top + (height * (tooth + 0.5)) / 4);
    context.lineTo(right, top + (height * (tooth + 1)) / 4);
  }
  context.closePath();
  context.fill();
}

function paintPath(context, path, { x, laneHeight, left, right, view }) {
  const seen = path.filter((part) => part.end >= view.from && part.begin <= view.until);
  if (!seen.length || seen.length * MIN_PIECE > right - left) return 0; // a denser line would hide the bars
  context.save();
  context.beginPath();
  context.rect(left, 0, right - left + 8, context.canvas.height);
  context.clip();
  context.lineJoin = "round";
  for (const [tone, width] of [["--surface", 5], ["--ink", 2]]) {
    context.strokeStyle = color(tone);
    context.lineWidth = width;
    context.beginPath();
    for (const [nth, part] of seen.entries()) {
      const foot = (part.lane + 1) * laneHeight - 4; // below the names
      if (nth) context.lineTo(x(part.begin), foot);
      else context.moveTo(x(part.begin), foot);
      context.lineTo(x(part.end), foot);
    }
    context.stroke();
  }
  context.restore();
  return seen.length;
}

function paintMarks(context, marks, { view, x, height }) {
  context.save();
  context.setLineDash([4, 3]);
  context.globalAlpha = 0.7;
  let free = -Infinity;
  for (const mark of marks) {
    if (mark.at < view.from || mark.at > view.until || (!mark.tone && x(mark.at) < free)) continue;
    if (!mark.tone) free = x(mark.at) + MIN_BETWEEN_MARKS;
    context.strokeStyle = color(mark.tone ?? "--muted");
    context.beginPath();
    context.moveTo(Math.round(x(mark.at)) + 0.5, 0);
    context.lineTo(Math.round(x(mark.at)) + 0.5, height);
    context.stroke();
  }
  context.restore();
}

function paintRuler(ruler, model, { view, every, x, width, left, size }) {
  const context = prepared(ruler, width, Math.round(size * 3.1));
  context.font = `${size}px ${getComputedStyle(document.body).fontFamily}`;
  context.textBaseline = "middle";
  context.fillStyle = color("--sunken");
  context.fillRect(0, 0, width, size * 3.1);
  context.fillStyle = color("--muted");
  context.textAlign = "center";
  for (let time = Math.ceil(view.from / every) * every; time <= view.until; time += every) {
    const text = tick(time, every, Math.max(-view.from, view.until));
    const half = context.measureText(text).width / 2;
    context.fillText(text, Math.min(Math.max(x(time), left + half), width - half - 4), size * 2.3);
  }
  const taken = [];
  const marks = [...(model.marks ?? [])].sort((one, other) => Boolean(other.tone) - Boolean(one.tone)); // earlier marks get room for their labels first
  context.textAlign = "left";
  for (const mark of marks) {
    if (mark.at < view.from || mark.at > view.until) continue;
    const wide = context.measureText(mark.label).width;
    const begin = Math.max(left, Math.min(x(mark.at) - wide / 2, width - wide - 4));
    if (taken.some(([from, until]) => begin < until + size && begin + wide + size > from)) continue;
    taken.push([begin, begin + wide]);
    context.fillStyle = color(mark.tone ?? "--ink");
    context.fillText(mark.label, begin, size * 0.95);
  }
}

/** Format a time on the ruler in the unit of the largest time, with as many digits as the marks need. */
function tick(ns, every, largest) {
  const [unit, name] = largest >= 1e9 ? [1e9, "s"] : largest >= 1e6 ? [1e6, "ms"] : largest >= 1e3 ? [1e3, "µs"] : [1, "ns"];
  const digits = Math.max(0, -Math.floor(Math.log10(every / unit) + 1e-9));
  return `${(ns / unit).toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits })} ${name}`;
}
