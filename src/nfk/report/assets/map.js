// The map: dots on one canvas, what is pointed at and chosen on another above it.

const VIRIDIS = [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]];
const COLOURS = 10;
const REACH = 14; // pixels between the pointer and a dot

function ramp(share) {
  const at = share * (VIRIDIS.length - 1);
  const low = Math.min(Math.floor(at), VIRIDIS.length - 2);
  const mixed = VIRIDIS[low].map((value, i) => Math.round(value + (VIRIDIS[low + 1][i] - value) * (at - low)));
  return `rgb(${mixed.join(',')})`;
}

class Run {
  constructor(packed) {
    Object.assign(this, packed);
    this.neighbours = numbers(packed.neighbours, Uint32Array);
    this.similarities = numbers(packed.similarities, Uint8Array);
    this.strangeness = numbers(packed.strangeness, Uint8Array);
    this.maps = packed.maps.map((map) => ({ ...map, positions: numbers(map.positions, Uint16Array) }));
  }

  /** The nearest examples of one, nearest first. */
  nearest(place) {
    const first = place * this.neighbourCount;
    return Array.from({ length: this.neighbourCount }, (_, i) => ({
      place: this.neighbours[first + i], similarity: this.similarities[first + i] / 255,
    }));
  }
}

class EmbeddingMap {
  constructor(figure, run, data, view, events) {
    Object.assign(this, { run, data, view, events, zoom: 1, centre: [0.5, 0.5] });
    this.frame = figure.querySelector('.frame');
    this.dots = figure.querySelector('.dots');
    this.marks = figure.querySelector('.marks');
    this.tip = figure.querySelector('.tip');
    this.hovered = null;
    this.chosen = null;
    new ResizeObserver(() => this.resize()).observe(this.frame);
    this.marks.addEventListener('pointermove', (event) => this.move(event));
    this.marks.addEventListener('pointerdown', (event) => this.press(event));
    this.marks.addEventListener('pointerup', (event) => this.release(event));
    this.marks.addEventListener('pointerleave', () => this.events.hover(this, null));
    this.marks.addEventListener('blur', () => this.events.hover(this, null));
    this.marks.addEventListener('keydown', (event) => this.key(event));
    this.marks.addEventListener('wheel', (event) => this.wheel(event), { passive: false });
    figure.querySelector('.zoom').addEventListener('click', ({ target }) => this.zoomBy({ in: 1.6, out: 1 / 1.6, reset: 0 }[target.dataset.zoom]));
    this.resize();
  }

  get positions() {
    return this.run.maps[Math.min(this.view.projection, this.run.maps.length - 1)].positions;
  }

  resize() {
    const { clientWidth: width, clientHeight: height } = this.frame;
    if (!width || (width === this.width && height === this.height)) return;
    Object.assign(this, { width, height });
    const ratio = window.devicePixelRatio || 1;
    for (const canvas of [this.dots, this.marks]) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.getContext('2d').setTransform(ratio, 0, 0, ratio, 0, 0);
    }
    this.draw();
  }

  /** Where an example is on the canvas. */
  at(place) {
    const size = (Math.min(this.width, this.height) - 36) * this.zoom;
    const stretch = Math.min(1.5, Math.max(1, (this.width - 36) / (this.height - 36)));
    return [
      this.width / 2 + (this.positions[2 * place] / 65535 - this.centre[0]) * size * stretch,
      this.height / 2 - (this.positions[2 * place + 1] / 65535 - this.centre[1]) * size,
    ];
  }

  alone(place) {
    return this.view.only === null || this.view.colour !== 'label' || !this.data.codes || this.data.label(place) === this.view.only;
  }

  /** Places in groups of one colour: drawing changes colour a few times, not ten thousand. */
  groups() {
    const { data, run, view } = this;
    const groups = new Map();
    const kind = view.colour === 'label' && data.labels ? data.labels.kind : 'strangeness';
    const last = data.labels ? Math.max(data.labels.names.length - 1, 1) : 1;
    for (let place = 0; place < data.count; place += 1) {
      let key = 0;
      if (kind === 'classes') key = view.slots.get(data.label(place));
      else if (kind === 'numbers') key = Math.round((31 * data.codes[place]) / last);
      else if (kind === 'strangeness') key = Math.round((31 * run.strangeness[place]) / 255);
      if (!groups.has(key)) groups.set(key, []);
      groups.get(key).push(place);
    }
    const paint = kind === 'classes' ? (key) => colour(`--class-${key}`) : kind === 'names' ? () => colour('--class-0') : (key) => ramp(key / 31);
    return [...groups].sort(([a], [b]) => a - b).map(([key, places]) => ({ fill: paint(key), places }));
  }

  draw() {
    const pen = this.dots.getContext('2d');
    const radius = Math.max(1.5, Math.min(4.5, 130 / Math.sqrt(this.data.count))) * Math.min(1.6, Math.sqrt(this.zoom));
    pen.clearRect(0, 0, this.width, this.height);
    for (const { fill, places } of this.groups()) {
      pen.fillStyle = fill;
      for (const [alpha, kept] of [[0.1, places.filter((place) => !this.alone(place))], [0.78, places.filter((place) => this.alone(place))]]) {
        pen.globalAlpha = alpha;
        for (const place of kept) {
          const [x, y] = this.at(place);
          pen.beginPath();
          pen.arc(x, y, radius, 0, 7);
          pen.fill();
        }
      }
    }
    pen.globalAlpha = 1;
    this.names(pen);
    this.mark();
  }

  /** The name of each class at the middle of its dots, so that colour is not the only way to tell. */
  names(pen) {
    const { data, view } = this;
    if (view.colour !== 'label' || !data.labels || data.labels.kind !== 'classes' || data.labels.names.length > 20) return;
    const members = data.labels.names.map(() => []);
    data.codes.forEach((code, place) => members[code].push(this.at(place)));
    const middle = (values) => values.sort((a, b) => a - b)[values.length >> 1];
    pen.font = '600 13px system-ui, sans-serif';
    pen.textAlign = 'center';
    pen.textBaseline = 'middle';
    pen.lineJoin = 'round';
    members.forEach((places, code) => {
      if (!places.length || (view.only !== null && view.only !== data.labels.names[code])) return;
      const [x, y] = [middle(places.map(([left]) => left)), middle(places.map(([, top]) => top))];
      const text = data.labels.names[code].length > 16 ? `${data.labels.names[code].slice(0, 15)}…` : data.labels.names[code];
      pen.strokeStyle = colour('--surface');
      pen.lineWidth = 5;
      pen.strokeText(text, x, y);
      pen.fillStyle = colour('--ink');
      pen.fillText(text, x, y);
    });
  }

  /** The chosen example with lines to its neighbours, and the one under the pointer. */
  mark() {
    const pen = this.marks.getContext('2d');
    pen.clearRect(0, 0, this.width, this.height);
    pen.strokeStyle = colour('--ink');
    if (this.chosen !== null) {
      const [x, y] = this.at(this.chosen);
      for (const { place } of this.run.nearest(this.chosen)) {
        const [left, top] = this.at(place);
        pen.globalAlpha = 0.45;
        pen.lineWidth = 1;
        pen.beginPath();
        pen.moveTo(x, y);
        pen.lineTo(left, top);
        pen.stroke();
        this.ring(pen, place, 4, 1.2);
      }
      this.ring(pen, this.chosen, 8, 2.5);
    }
    if (this.hovered !== null) this.ring(pen, this.hovered, 7, 2);
  }

  ring(pen, place, radius, width) {
    const [x, y] = this.at(place);
    pen.globalAlpha = 1;
    pen.beginPath();
    pen.arc(x, y, radius, 0, 7);
    pen.strokeStyle = colour('--surface');
    pen.lineWidth = width + 2;
    pen.stroke();
    pen.strokeStyle = colour('--ink');
    pen.lineWidth = width;
    pen.stroke();
  }

  show(place) {
    this.hovered = place;
    this.mark();
    this.tip.hidden = place === null;
    if (place === null) return;
    this.tip.replaceChildren(this.data.picture(place), element('p', {}, this.data.name(place)));
    const [x, y] = this.at(place);
    const { offsetWidth: width, offsetHeight: height } = this.tip;
    this.tip.style.left = `${Math.max(4, Math.min(x - width / 2, this.width - width - 4))}px`;
    this.tip.style.top = `${y - height - 14 > 4 ? y - height - 14 : y + 14}px`;
  }

  choose(place) {
    this.chosen = place;
    this.mark();
  }

  nearestTo(x, y, reach) {
    let best = null;
    let least = reach * reach;
    for (let place = 0; place < this.data.count; place += 1) {
      const [left, top] = this.at(place);
      const gap = (left - x) ** 2 + (top - y) ** 2;
      if (gap < least && this.alone(place)) [best, least] = [place, gap];
    }
    return best;
  }

  move(event) {
    if (this.pressed && event.buttons) {
      const [dx, dy] = [event.offsetX - this.pressed.x, event.offsetY - this.pressed.y];
      if (this.pressed.moved || Math.hypot(dx, dy) > 5) {
        this.pressed = { x: event.offsetX, y: event.offsetY, moved: true };
        this.shift(-dx, dy);
        return;
      }
    }
    this.events.hover(this, this.nearestTo(event.offsetX, event.offsetY, REACH));
  }

  press(event) {
    this.pressed = { x: event.offsetX, y: event.offsetY, moved: false };
  }

  release(event) {
    const moved = this.pressed?.moved;
    this.pressed = null;
    if (!moved) this.events.choose(this, this.nearestTo(event.offsetX, event.offsetY, event.pointerType === 'touch' ? 2 * REACH : REACH));
  }

  wheel(event) {
    if (!event.ctrlKey) return; // a plain wheel scrolls the page
    event.preventDefault();
    this.zoomBy(event.deltaY < 0 ? 1.2 : 1 / 1.2);
  }

  zoomBy(factor) {
    if (factor === undefined) return;
    this.zoom = factor === 0 ? 1 : Math.min(40, Math.max(1, this.zoom * factor));
    if (this.zoom === 1) this.centre = [0.5, 0.5];
    else if (this.hovered ?? this.chosen) this.look(this.hovered ?? this.chosen);
    this.draw();
  }

  look(place) {
    this.centre = [this.positions[2 * place] / 65535, this.positions[2 * place + 1] / 65535];
  }

  shift(dx, dy) {
    const size = (Math.min(this.width, this.height) - 36) * this.zoom;
    this.centre = [this.centre[0] + dx / size, this.centre[1] + dy / size].map((value) => Math.min(1, Math.max(0, value)));
    this.draw();
  }

  key(event) {
    const way = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (way) this.events.hover(this, this.step(way), true);
    else if (event.key === 'Enter' || event.key === ' ') this.events.choose(this, this.hovered);
    else if (event.key === 'Escape') this.events.choose(this, null);
    else if (event.key === '+' || event.key === '=') this.zoomBy(1.6);
    else if (event.key === '-') this.zoomBy(1 / 1.6);
    else if (event.key === '0') this.zoomBy(0);
    else return;
    event.preventDefault();
  }

  /** The nearest dot in a direction: those aside count as further away. */
  step([dx, dy]) {
    const from = this.hovered ?? this.chosen;
    if (from === null) return this.nearestTo(this.width / 2, this.height / 2, Infinity);
    const [x, y] = this.at(from);
    let best = from;
    let least = Infinity;
    for (let place = 0; place < this.data.count; place += 1) {
      const [left, top] = this.at(place);
      const ahead = (left - x) * dx + (top - y) * dy;
      const aside = Math.abs((left - x) * dy) + Math.abs((top - y) * dx);
      if (ahead > 0.5 && ahead >= aside && ahead + 2 * aside < least && this.alone(place)) {
        best = place;
        least = ahead + 2 * aside;
      }
    }
    return best;
  }
}
