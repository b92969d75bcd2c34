// Dark and light theme: the system's setting until the user clicks the switch. The choice is not stored.

const theme = {
  listeners: new Set(),
  dark: matchMedia("(prefers-color-scheme: dark)"),
  chosen: null,

  /** Return whether the page is dark. */
  isDark() {
    return (this.chosen ?? (this.dark.matches ? "dark" : "light")) === "dark";
  },

  /** Use `dark` or `light`; null for the system's setting. */
  choose(scheme) {
    this.chosen = scheme;
    document.documentElement.style.colorScheme = scheme ?? "";
    this.changed();
  },

  /** Register a function to call when colors change, so that canvases are drawn again. */
  follow(listener) {
    this.listeners.add(listener);
  },

  changed() {
    colors.clear();
    for (const listener of this.listeners) listener();
  },

  /** Build the switch. */
  button() {
    const button = make("button", { type: "button", click: () => this.choose(this.isDark() ? "light" : "dark") });
    const show = () => {
      button.textContent = this.isDark() ? "Light" : "Dark";
      button.setAttribute("aria-label", `Switch to ${this.isDark() ? "light" : "dark"} colors`);
    };
    this.follow(show);
    show();
    return button;
  },
};
theme.dark.addEventListener("change", () => theme.changed());

// Paper is white, so canvases are drawn in light colors for printing.
addEventListener("beforeprint", () => {
  theme.before = theme.chosen;
  theme.choose("light");
});
addEventListener("afterprint", () => theme.choose(theme.before ?? null));

// Canvases do not resolve CSS variables and functions such as `light-dark()`, so an element resolves them.
const colors = new Map();

/** Return the current value of a color variable: `color("--ink")`. */
function color(variable) {
  let value = colors.get(variable);
  if (value === undefined) {
    const probe = make("span", { hidden: true });
    probe.style.color = `var(${variable})`;
    document.body.append(probe);
    value = getComputedStyle(probe).color;
    probe.remove();
    colors.set(variable, value);
  }
  return value;
}

/** Resize a canvas to a size in CSS pixels, at the screen's resolution. Return its context. */
function prepared(canvas, width, height) {
  const ratio = Math.min(devicePixelRatio || 1, 3);
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(height * ratio));
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

/** Return a font size in CSS pixels. */
function textSize(rem = 0.8) {
  return rem * parseFloat(getComputedStyle(document.documentElement).fontSize);
}
