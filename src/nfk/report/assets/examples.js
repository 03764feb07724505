// Examples as they are shown: a thumbnail from a sheet, a line, a text, or a number where there is nothing to show.

function bytes(text) {
  const letters = atob(text);
  const found = new Uint8Array(letters.length);
  for (let i = 0; i < letters.length; i += 1) found[i] = letters.charCodeAt(i);
  return found;
}

const numbers = (text, Type) => new Type(bytes(text).buffer);

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name === 'class') made.className = value;
    else made.setAttribute(name, value);
  }
  made.append(...children);
  return made;
}

/** The colour that a custom property of the style sheet has in the theme of the moment; forgotten when that changes. */
const known = new Map();
function colour(name) {
  if (!known.has(name)) {
    const probe = document.getElementById('theme');
    probe.style.color = `var(${name})`;
    known.set(name, getComputedStyle(probe).color);
    probe.style.color = '';
  }
  return known.get(name);
}

class Dataset {
  constructor(packed) {
    this.count = packed.count;
    this.rows = numbers(packed.rows, Uint32Array);
    this.labels = packed.labels;
    this.codes = packed.labels ? numbers(packed.labels.codes, Uint32Array) : null;
    this.gallery = packed.gallery;
    this.kind = packed.gallery ? packed.gallery.kind : 'none';
    if (this.kind === 'lines') this.values = numbers(packed.gallery.values, Uint8Array);
    if (this.kind === 'images') this.sheets = packed.gallery.sheets.map((address) => Object.assign(new Image(), { src: address }));
  }

  label(place) {
    return this.labels ? this.labels.names[this.codes[place]] : null;
  }

  /** The place of the example with that number in the data, or -1. */
  find(number) {
    return this.rows.indexOf(number);
  }

  name(place) {
    const label = this.label(place);
    return `Example ${this.rows[place]}` + (label === null ? '' : `, label ${label}`);
  }

  /** Resolves when pictures can be drawn. */
  ready() {
    return this.kind === 'images' ? Promise.all(this.sheets.map((sheet) => sheet.decode())) : Promise.resolve();
  }

  draw(canvas, place) {
    if (this.kind === 'images') this.drawImage(canvas, place);
    else this.drawLine(canvas, place);
  }

  drawImage(canvas, place) {
    const { width, height, columns, perSheet, ink } = this.gallery;
    const within = place % perSheet;
    canvas.width = width;
    canvas.height = height;
    canvas.classList.toggle('ink', ink);
    canvas.style.setProperty('--ratio', width / height);
    const left = (within % columns) * width;
    const top = Math.floor(within / columns) * height;
    canvas.getContext('2d').drawImage(this.sheets[Math.floor(place / perSheet)], left, top, width, height, 0, 0, width, height);
  }

  drawLine(canvas, place) {
    const { points } = this.gallery;
    const values = this.values.subarray(place * points, (place + 1) * points);
    [canvas.width, canvas.height] = [160, 80];
    canvas.classList.add('line');
    const pen = canvas.getContext('2d');
    pen.strokeStyle = colour('--ink');
    pen.lineWidth = 2.5;
    pen.lineJoin = 'round';
    pen.beginPath();
    values.forEach((value, i) => pen.lineTo(4 + (152 * i) / Math.max(points - 1, 1), 74 - (68 * value) / 255));
    pen.stroke();
  }

  /** A picture or a text of one example; never markup, whatever the text says. */
  picture(place) {
    if (this.kind === 'texts') return element('span', { class: 'text' }, this.gallery.texts[place]);
    if (this.kind === 'none') return element('span', { class: 'bare' }, String(this.rows[place]));
    const canvas = element('canvas');
    this.draw(canvas, place);
    return canvas;
  }

  button(number, place, caption) {
    const words = this.name(place) + (caption ? `, ${caption}` : '');
    const label = this.label(place);
    const button = element('button', {
      class: 'example', type: 'button', 'data-data': number, 'data-place': place, 'data-kind': this.kind, 'aria-label': words,
    }, this.picture(place));
    if (label !== null) button.append(element('span', { class: 'caption' }, label));
    return button;
  }
}

/** An example, and for every run on its data the examples nearest to it. */
function detail(runs, datasets, number, place) {
  const data = datasets[number];
  const label = data.label(place);
  const parts = [element('div', { class: 'chosen' }, data.picture(place), element('p', {},
    element('strong', {}, `Example ${data.rows[place]}`), ...(label === null ? [] : [element('br'), `label ${label}`])))];
  const concerned = runs.filter((run) => run.data === number && run.neighbourCount);
  for (const run of concerned) {
    const title = concerned.length > 1 ? `Nearest in ${run.name}` : 'Nearest neighbours';
    const list = element('div', { class: `examples ${data.kind}` });
    for (const { place: other, similarity } of run.nearest(place)) {
      list.append(data.button(number, other, `similarity ${similarity.toFixed(2)}`));
    }
    parts.push(element('h4', {}, title), list);
  }
  return parts;
}
