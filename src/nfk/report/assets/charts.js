// Curves as SVG, drawn to the width at hand; the pointer or the arrow keys read them point by point.

const SVG = 'http://www.w3.org/2000/svg';
const DASHES = ['', '7 4', '2 3', '9 3 2 3'];

function shape(tag, attributes, text) {
  const made = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

/** A scale from values to pixels, with the values that get a tick. */
function scale(low, high, from, to, logarithmic) {
  const [a, b] = logarithmic ? [Math.log(low), Math.log(high)] : [low, high];
  const place = (value) => from + (((logarithmic ? Math.log(value) : value) - a) / (b - a || 1)) * (to - from);
  return { place, low, high };
}

function powers(low, high, base, most) {
  const [first, last] = [Math.ceil(Math.log(low) / Math.log(base) - 1e-9), Math.floor(Math.log(high) / Math.log(base) + 1e-9)];
  const step = Math.max(1, Math.ceil((last - first + 1) / most));
  return Array.from({ length: Math.max(0, Math.floor((last - first) / step) + 1) }, (_, i) => base ** (first + i * step));
}

/** Values for a logarithmic axis: powers of ten, and where these are few, twice and five times as much, too. */
function decades(low, high, most) {
  if (Math.log10(high / low) > 2.2) return powers(low, high, 10, most);
  const first = Math.floor(Math.log10(low));
  const all = Array.from({ length: 5 }, (_, i) => 10 ** (first + i)).flatMap((unit) => [unit, 2 * unit, 5 * unit]);
  const found = all.filter((value) => value >= low * 0.999 && value <= high * 1.001);
  return found.length > 2 ? found : round(low, high, 4).filter((value) => value > 0);
}

function round(low, high, most) {
  const rough = (high - low) / most;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * unit).find((candidate) => candidate >= rough);
  const first = Math.ceil(low / step - 1e-9);
  return Array.from({ length: Math.floor(high / step + 1e-9) - first + 1 }, (_, i) => (first + i) * step);
}

function written(value) {
  if (value === 0) return '0';
  const size = Math.abs(value);
  if (size >= 1e5 || size < 1e-3) return value.toExponential(0).replace('e', ' · 10^').replace('^+', '^');
  return Number(value.toPrecision(3)).toLocaleString('en');
}

const SUPERSCRIPTS = { '-': '⁻', 0: '⁰', 1: '¹', 2: '²', 3: '³', 4: '⁴', 5: '⁵', 6: '⁶', 7: '⁷', 8: '⁸', 9: '⁹' };
function power(value) {
  if (value >= 0.01 && value <= 1000) return String(Number(value.toPrecision(2)));
  const exponent = Math.floor(Math.log10(value) + 1e-9);
  const factor = Number((value / 10 ** exponent).toPrecision(2));
  return (factor !== 1 ? `${factor}·` : '') + '10' + [...String(exponent)].map((digit) => SUPERSCRIPTS[digit]).join('');
}

/**
 * A chart of several lines.
 * lines: [{name, run, points: [[x, y, low?, high?]], say: (i) => text}]
 * axes: {x: label, logX, logY, low, high, tick: (y) => text}
 */
class Chart {
  constructor(root, lines, axes, summary) {
    Object.assign(this, { root, lines: lines.filter((line) => line.points.length), axes, at: null });
    this.readout = element('p', { class: 'readout', 'aria-live': 'polite' });
    this.svg = shape('svg', { role: 'img', tabindex: 0, 'aria-label': `${summary} Arrow keys read the points.` });
    root.append(this.svg, this.readout);
    new ResizeObserver(() => this.draw()).observe(root);
    this.svg.addEventListener('pointermove', (event) => this.point(this.nearest(event.offsetX)));
    this.svg.addEventListener('pointerleave', () => this.point(null));
    this.svg.addEventListener('blur', () => this.point(null));
    this.svg.addEventListener('keydown', (event) => this.key(event));
    this.say(null);
  }

  get xs() {
    return this.lines.reduce((longest, { points }) => (points.length > longest.length ? points : longest), []).map(([x]) => x);
  }

  draw() {
    const width = this.root.clientWidth;
    const height = Math.round(Math.min(280, Math.max(200, width * 0.55)));
    if (!width) return;
    const { axes } = this;
    const all = this.lines.flatMap(({ points }) => points);
    const values = all.flatMap(([, y, low, high]) => [y, low ?? y, high ?? y]).filter((y) => !axes.logY || y > 0);
    const low = axes.low ?? Math.min(...values);
    const high = axes.high ?? Math.max(...values);
    this.across = scale(1, Math.max(2, ...this.xs), 46, width - 12, axes.logX);
    this.up = scale(low, high > low ? high : low + 1, height - 40, 12, axes.logY);
    this.svg.replaceChildren();
    this.svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
    this.svg.setAttribute('height', height);
    this.grid(width, height);
    for (const line of this.lines) this.line(line);
    this.cursor = shape('g', { class: 'cursor' });
    this.svg.append(this.cursor);
    this.point(this.at);
  }

  grid(width, height) {
    const { axes, across, up } = this;
    for (const value of axes.logY ? decades(up.low, up.high, 6) : round(up.low, up.high, 5)) {
      const y = up.place(value);
      this.svg.append(shape('line', { class: 'grid', x1: 46, x2: width - 12, y1: y, y2: y }));
      this.svg.append(shape('text', { x: 40, y: y + 4, 'text-anchor': 'end' }, axes.logY ? power(value) : written(value)));
    }
    for (const value of axes.logX ? powers(1, across.high, 2, width / 42) : round(1, across.high, 6).filter((x) => x >= 1)) {
      this.svg.append(shape('text', { x: across.place(value), y: height - 22, 'text-anchor': 'middle' }, written(value)));
    }
    this.svg.append(shape('text', { class: 'axis', x: width - 12, y: height - 4, 'text-anchor': 'end' }, axes.x));
  }

  line({ run, points }) {
    const { across, up } = this;
    const drawn = points.filter(([, y]) => !this.axes.logY || y > 0);
    const at = (x, y) => `${across.place(x).toFixed(1)},${up.place(y).toFixed(1)}`;
    if (drawn.length && drawn[0].length > 2) {
      const edge = [...drawn.map(([x, , low]) => at(x, low)), ...drawn.map(([x, , , high]) => at(x, high)).reverse()];
      this.svg.append(shape('polygon', { class: `band run-${run % 4}`, points: edge.join(' ') }));
    }
    this.svg.append(shape('polyline', { class: `line run-${run % 4}`, 'stroke-dasharray': DASHES[run % 4], points: drawn.map(([x, y]) => at(x, y)).join(' ') }));
    if (drawn.length <= 40) {
      for (const [x, y] of drawn) this.svg.append(shape('circle', { class: `dot run-${run % 4}`, cx: across.place(x), cy: up.place(y), r: 2.6 }));
    }
  }

  nearest(pixel) {
    const gaps = this.xs.map((x) => Math.abs(this.across.place(x) - pixel));
    return gaps.indexOf(Math.min(...gaps));
  }

  key(event) {
    const last = this.xs.length - 1;
    const now = this.at ?? -1;
    const next = { ArrowRight: Math.min(now + 1, last), ArrowLeft: Math.max(now - 1, 0), Home: 0, End: last, Escape: null }[event.key];
    if (next === undefined) return;
    event.preventDefault();
    this.point(next);
  }

  point(at) {
    this.at = at;
    if (!this.cursor) return;
    this.cursor.replaceChildren();
    this.say(at);
    if (at === null) return;
    const x = this.across.place(this.xs[at]);
    this.cursor.append(shape('line', { x1: x, x2: x, y1: this.up.place(this.up.low), y2: 12 }));
    for (const { run, points } of this.lines) {
      if (points[at] && (!this.axes.logY || points[at][1] > 0)) {
        this.cursor.append(shape('circle', { class: `dot run-${run % 4}`, cx: x, cy: this.up.place(points[at][1]), r: 4.5 }));
      }
    }
  }

  say(at) {
    const several = this.lines.length > 1;
    const said = this.lines.filter(({ points }) => at !== null && points[at]).map((line) => {
      const name = several ? [element('span', { class: `swatch run-${line.run % 4}` }), `${line.name}: `] : [];
      return element('span', {}, ...name, line.say(at));
    });
    this.readout.replaceChildren(...said);
    if (!said.length && !several) this.readout.append('Point at the curve to read it.');
    if (!said.length && several) {
      this.readout.append(...this.lines.map(({ name, run }) => element('span', {}, element('span', { class: `swatch run-${run % 4}` }), name)));
    }
  }
}
