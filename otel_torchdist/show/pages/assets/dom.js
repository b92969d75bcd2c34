// Builds elements. Strings from a job are inserted as text nodes; no script of the page parses markup.

/** Build an element: `make("td", {class: "number"}, "12")`. Attributes that are null or false are left out. */
function make(tag, attributes = {}, ...children) {
  return filled(document.createElement(tag), attributes, children);
}

/** Build an SVG element. */
function draw(tag, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
}

function filled(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("--")) element.style.setProperty(name, value);
    else if (typeof value === "function") element.addEventListener(name, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  for (const child of children.flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) element.append(child);
  }
  return element;
}

/** Build an element for a name from a job. `bdi` isolates its text direction from the text around it. */
function named(text) {
  return make("bdi", { class: "name" }, text);
}

/** Return a text with a capital first letter. */
function capital(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** Build a text from a job whose commands stand between backticks. */
function withCode(text) {
  return text.split("`").map((part, nth) => (nth % 2 ? make("code", {}, part) : named(part)));
}

/** Build the paragraphs of a verdict, `rank 2 …. next: find out …`: its sentence, and the next step. */
function verdictText(text) {
  const at = text.lastIndexOf(" next: ");
  const [sentence, next] = at < 0 ? [text, ""] : [text.slice(0, at), text.slice(at + " next: ".length)];
  const paragraph = (kind, name, words) => make("p", { class: kind }, name, withCode(words), /[.…]$/.test(words) ? "" : ".");
  return [paragraph("sentence", null, capital(sentence)), next && paragraph("next", make("strong", {}, "Next: "), next)];
}

/** Build a list of named facts. Facts without a value are left out. */
function facts(pairs) {
  const known = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return make("dl", { class: "facts" }, known.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
}

/** Build a bar with shares of a whole: `meter([{share: 0.4, tone: "--bad"}], "40%")`. */
function meter(parts, text) {
  const bar = make("span", { class: "meter", "aria-hidden": "true" }, parts.map((part) => {
    const piece = make("span", { "--tone": `var(${part.tone ?? "--series-0"})` });
    piece.style.width = `${Math.max(0, Math.min(100, part.share * 100))}%`;
    return piece;
  }));
  return make("span", { class: "gauge" }, bar, make("span", { class: "small number" }, text));
}

/** Build a legend of colors: `legend([["--series-0", "all_reduce"]])`. Entries that are false are left out. */
function legend(entries) {
  return make("ul", { class: "legend" }, entries.filter(Boolean).map(([tone, name]) => make("li", {}, make("span", { class: "swatch", "--tone": `var(${tone})` }), name)));
}

/** Build the text of a section without data. */
function empty(text) {
  return make("p", { class: "empty" }, text);
}
