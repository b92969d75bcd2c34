// A heat map: numbers as colored cells, with a readout for the cell under the mouse or selected by keyboard.

/**
 * Build a heat map.
 *
 * @param names  names of the rows, and likewise of the columns
 * @param cells  [[row, column, value], ...]
 * @param show   value => text
 * @param label  description for screen readers
 */
function heatmap({ names, cells, show, label, rowName = "from", columnName = "to" }) {
  const canvas = make("canvas", { tabindex: "0", role: "application", "aria-label": `${label}. Arrows move from cell to cell.` });
  const readout = make("p", { class: "readout", role: "status", "aria-live": "polite" });
  const most = cells.reduce((highest, [, , value]) => Math.max(highest, value), 0);
  const values = new Map(cells.map(([row, column, value]) => [row * names.length + column, value]));
  let geometry = null;
  let at = null;

  const describe = () => {
    if (!at) {
      readout.replaceChildren(`Most: ${show(most)}`);
      return;
    }
    const value = values.get(at.row * names.length + at.column);
    readout.replaceChildren(`${rowName} `, named(names[at.row]), ` ${columnName} `, named(names[at.column]), `: ${value === undefined ? "nothing" : show(value)}`);
  };
  const paint = () => {
    const available = Math.min(canvas.parentElement?.clientWidth || 600, 46 * textSize(1));
    const size = textSize();
    const font = `${size}px ${getComputedStyle(document.body).fontFamily}`;
    let context = canvas.getContext("2d");
    context.font = font;
    const widest = names.reduce((most, name) => Math.max(most, context.measureText(name).width), 0);
    const room = Math.ceil(Math.min(available * 0.3, 11 * size, widest + 14));
    const cell = Math.max(0.5, Math.min((available - room) / names.length, 2.2 * size));
    const side = room + cell * names.length;
    context = prepared(canvas, side, side);
    canvas.style.width = `${side}px`;
    geometry = { room, cell };
    context.font = font;
    context.fillStyle = color("--sunken");
    context.fillRect(room, room, cell * names.length, cell * names.length);
    context.fillStyle = color("--accent");
    const gap = cell > 5 ? 1 : 0;
    for (const [row, column, value] of cells) {
      context.globalAlpha = 0.12 + 0.88 * (value / most);
      context.fillRect(room + column * cell, room + row * cell, Math.max(cell - gap, 0.5), Math.max(cell - gap, 0.5));
    }
    context.globalAlpha = 1;
    paintNames(context, names, { room, cell, size });
    if (at) {
      context.strokeStyle = color("--ink");
      context.lineWidth = 2;
      context.strokeRect(room + at.column * cell, room + at.row * cell, Math.max(cell, 3), Math.max(cell, 3));
    }
    describe();
  };
  const move = (rows, columns) => {
    at = at ?? { row: 0, column: 0 };
    const within = (number) => Math.max(0, Math.min(names.length - 1, number));
    at = { row: within(at.row + rows), column: within(at.column + columns) };
    paint();
  };
  const keys = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  canvas.addEventListener("keydown", (event) => {
    if (!keys[event.key]) return;
    event.preventDefault();
    move(...keys[event.key]);
  });
  canvas.addEventListener("pointermove", (event) => {
    const column = Math.floor((event.offsetX - geometry.room) / geometry.cell);
    const row = Math.floor((event.offsetY - geometry.room) / geometry.cell);
    const isInside = Math.min(row, column) >= 0 && Math.max(row, column) < names.length;
    at = isInside ? { row, column } : null;
    paint();
  });
  canvas.addEventListener("pointerleave", () => { at = null; paint(); });
  canvas.drawn = () => ({ cells: cells.length, most, names: names.length, at, value: at ? values.get(at.row * names.length + at.column) ?? 0 : null });
  theme.follow(paint);
  const element = make("div", {}, make("div", {}, canvas), readout);
  new ResizeObserver(paint).observe(element);
  return element;
}

/** Paint as many names as fit: every one, or every second, fifth, tenth, … */
function paintNames(context, names, { room, cell, size }) {
  const every = Math.max(1, roundStep((size * 1.3) / cell));
  context.fillStyle = color("--muted");
  context.textBaseline = "middle";
  for (let place = 0; place < names.length; place += every) {
    const middle = room + (place + 0.5) * cell;
    const text = fitting(context, names[place], room - 10);
    context.textAlign = "right";
    context.fillText(text, room - 6, middle);
    context.save();
    context.translate(middle, room - 6);
    context.rotate(-Math.PI / 2);
    context.textAlign = "left";
    context.fillText(text, 0, 0);
    context.restore();
  }
}
