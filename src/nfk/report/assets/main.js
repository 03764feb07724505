// The page: reads its data, draws what can be seen, and joins the maps, the lists and the dialog.

const packed = JSON.parse(document.getElementById('data').textContent);
const datasets = packed.datasets.map((data) => new Dataset(data));
const runs = packed.runs.map((run) => new Run(run));

// --- light and dark

const root = document.documentElement;
const remembered = { get: () => { try { return localStorage.getItem('nfk-theme'); } catch { return null; } },
  set: (theme) => { try { localStorage.setItem('nfk-theme', theme); } catch { /* a browser may forbid it */ } } };
const prefersDark = matchMedia('(prefers-color-scheme: dark)');
const isDark = () => (root.style.colorScheme || (prefersDark.matches ? 'dark' : 'light')) === 'dark';
function setTheme(theme) {
  root.style.colorScheme = theme ?? '';
  root.className = isDark() ? 'dark' : 'light';
  known.clear();
}
setTheme(remembered.get());

// --- maps

const view = {
  projection: 0,
  colour: document.querySelector('input[name=colour]:checked').value,
  only: null,
  slots: slots(datasets.filter(({ labels }) => labels?.kind === 'classes')),
};

/** Which of the ten colours a class has, in all data alike: of too many classes the small ones share the last. */
function slots(labelled) {
  const sizes = new Map();
  for (const { labels, codes } of labelled) {
    for (const name of labels.names) sizes.set(name, sizes.get(name) ?? 0);
    for (const code of codes) sizes.set(labels.names[code], sizes.get(labels.names[code]) + 1);
  }
  const names = [...sizes.keys()];
  if (names.length > COLOURS) names.sort((a, b) => sizes.get(b) - sizes.get(a));
  return new Map(names.map((name, rank) => [name, Math.min(rank, COLOURS - 1)]));
}

const panel = document.getElementById('detail');
const hint = panel.firstElementChild;
const linked = (map) => maps.filter((other) => other.run.data === map.run.data);

const events = {
  hover(map, place, spoken = false) {
    for (const other of linked(map)) other.show(place);
    if (spoken && place !== null) map.marks.setAttribute('aria-label', datasets[map.run.data].name(place));
  },
  choose(map, place) {
    for (const other of maps) other.choose(linked(map).includes(other) ? place : null);
    if (place === null) panel.replaceChildren(hint);
    else panel.replaceChildren(...detail(runs, datasets, map.run.data, place));
  },
};

const maps = [...document.querySelectorAll('figure.map')].map((figure) => {
  const run = runs[Number(figure.dataset.run)];
  return new EmbeddingMap(figure, run, datasets[run.data], view, events);
});

function drawLegend() {
  const legend = document.getElementById('legend');
  const data = datasets.find(({ labels }) => labels);
  legend.replaceChildren();
  if (view.colour === 'label' && data && data.labels.kind === 'classes') {
    const names = [...view.slots.keys()];
    const shown = names.filter((name) => names.length <= 20 || view.slots.get(name) < COLOURS - 1);
    for (const name of shown) {
      const swatch = element('span', { class: 'swatch', style: `background:var(--class-${view.slots.get(name)})` });
      const button = element('button', { type: 'button', 'aria-pressed': String(view.only === name) }, swatch, name);
      button.addEventListener('click', () => {
        view.only = view.only === name ? null : name;
        for (const other of legend.children) other.setAttribute('aria-pressed', String(other === button && view.only !== null));
        maps.forEach((map) => map.draw());
      });
      legend.append(button);
    }
    if (shown.length < names.length) legend.append(element('span', {}, element('span', { class: 'swatch', style: `background:var(--class-${COLOURS - 1})` }), `${names.length - shown.length} others`));
    return;
  }
  if (view.colour === 'label' && data?.labels.kind === 'names') return;
  const bar = element('span', { class: 'ramp', style: `background:linear-gradient(90deg,${[0, 0.25, 0.5, 0.75, 1].map(ramp).join(',')})` });
  const numbersOf = view.colour === 'label' && data ? [data.labels.names[0], data.labels.names.at(-1)] : ['usual', 'unusual'];
  legend.append(element('span', {}, numbersOf[0], bar, numbersOf[1]));
}

for (const input of document.querySelectorAll('.tools input[type=radio]')) {
  input.addEventListener('change', () => {
    if (input.name === 'projection') view.projection = Number(input.value);
    else view.colour = input.value;
    for (const note of document.querySelectorAll('.map-note')) note.hidden = Number(note.dataset.projection) !== view.projection;
    drawLegend();
    maps.forEach((map) => map.draw());
  });
}

function showOnMap(number, place) {
  const map = maps.find((each) => each.run.data === number);
  events.choose(map, place);
  map.frame.scrollIntoView({ block: 'center' });
  map.marks.focus({ preventScroll: true });
}

document.getElementById('find').addEventListener('submit', (event) => {
  event.preventDefault();
  const field = event.target.elements.number;
  const number = datasets.findIndex((data) => data.find(Number(field.value)) >= 0 && field.value.trim() !== '');
  field.setCustomValidity(number < 0 ? 'There is no example with that number on this page.' : '');
  if (number < 0) field.reportValidity();
  else showOnMap(number, datasets[number].find(Number(field.value)));
});
document.getElementById('find-number').addEventListener('input', (event) => event.target.setCustomValidity(''));

// --- examples in lists: a click opens one with its neighbours

const dialog = document.getElementById('dialog');
let opened = null;

function open(number, place) {
  opened = [number, place];
  dialog.querySelector('.detail').replaceChildren(...detail(runs, datasets, number, place));
  dialog.setAttribute('aria-label', datasets[number].name(place));
  if (!dialog.open) dialog.showModal();
}

document.addEventListener('click', (event) => {
  const button = event.target.closest('button.example');
  if (!button) {
    if (event.target === dialog) dialog.close();
    return;
  }
  const [number, place] = [Number(button.dataset.data), Number(button.dataset.place)];
  if (panel.contains(button)) events.choose(maps.find((map) => map.run.data === number), place);
  else open(number, place);
});
document.getElementById('locate').addEventListener('click', () => {
  dialog.close();
  showOnMap(...opened);
});

for (const more of document.querySelectorAll('[data-more]')) {
  more.addEventListener('click', () => {
    const all = document.getElementById(more.dataset.more).classList.toggle('all');
    more.setAttribute('aria-expanded', String(all));
    more.textContent = all ? 'Show fewer components' : 'Show more components';
  });
}

/** The section that is being read is marked in the navigation. */
const links = new Map([...document.querySelectorAll('.top a')].map((link) => [link.hash.slice(1), link]));
const reading = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (isIntersecting) links.get(target.id).setAttribute('aria-current', 'true');
    else links.get(target.id).removeAttribute('aria-current');
  }
}, { rootMargin: '-40% 0px -59% 0px' });
for (const id of links.keys()) reading.observe(document.getElementById(id));

function drawExamples() {
  for (const canvas of document.querySelectorAll('button.example canvas')) {
    const { data, place } = canvas.parentElement.dataset;
    datasets[Number(data)].draw(canvas, Number(place));
  }
}

// --- curves

const percent = (share) => `${(100 * share).toFixed(share > 0 && share < 0.001 ? 3 : 1)}\u00a0%`;

function drawCharts() {
  const cumulative = runs.map(({ shares }) => shares.reduce((sums, share) => [...sums, (sums.at(-1) ?? 0) + share], []));
  const kinds = {
    eigenvalues: () => [
      runs.map((run, i) => ({ name: run.name, run: i, points: run.eigenvalues.map((value, k) => [k + 1, value]),
        say: (k) => `component ${k + 1}: eigenvalue ${written(run.eigenvalues[k])}, right to within ${written(100 * run.residuals[k])} %` })),
      { x: 'component', logX: true, logY: true }, 'The eigenvalues in falling order.',
    ],
    cumulative: () => [
      runs.map((run, i) => ({ name: run.name, run: i, points: cumulative[i].map((share, k) => [k + 1, 100 * share]),
        say: (k) => `the first ${k + 1} explain ${percent(cumulative[i][k])}` })),
      { x: 'components', logX: false, low: 0, high: 100 }, 'The share of the variance that the first components explain together.',
    ],
    probe: () => [
      runs.map((run, i) => ({ name: run.name, run: i, points: run.probe.map(([k, ...values]) => [k, ...values.map((value) => 100 * value)]),
        say: (at) => `first ${run.probe[at][0]}: ${percent(run.probe[at][1])} right (${percent(run.probe[at][2])} to ${percent(run.probe[at][3])})` })),
      { x: 'components', logX: true, high: 100 }, 'The accuracy of a classifier against the number of components it sees.',
    ],
  };
  for (const place of document.querySelectorAll('.chart')) new Chart(place, ...kinds[place.dataset.chart]());
}

// --- what depends on the theme is drawn again when it changes

function redraw() {
  drawLegend();
  maps.forEach((map) => map.draw());
  if (datasets.some(({ kind }) => kind === 'lines')) drawExamples();
}

document.getElementById('theme').addEventListener('click', () => {
  setTheme(isDark() ? 'light' : 'dark');
  remembered.set(root.style.colorScheme);
  redraw();
});
prefersDark.addEventListener('change', () => {
  setTheme(root.style.colorScheme);
  redraw();
});

drawLegend();
drawCharts();
Promise.all(datasets.map((data) => data.ready())).then(() => {
  drawExamples();
  events.choose(maps[0], maps[0].run.begin);
  requestAnimationFrame(() => setTimeout(() => {
    performance.mark('drawn');
    root.dataset.ready = 'yes';
  }));
});
