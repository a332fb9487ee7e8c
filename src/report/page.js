'use strict';
// Curves of RUNS: [{name, series: {curve: [[steps], [values]]}}]. All charts share one range of steps: drag to zoom, double-click to go back.
(() => {
  const NS = 'http://www.w3.org/2000/svg', COLOURS = 6, HEIGHT = 220, PAD = { left: 58, right: 10, top: 8, bottom: 22 };
  const charts = [];
  let range = null; // of steps; null: all

  const add = (parent, tag, attributes, text) => {
    const e = document.createElementNS(NS, tag);
    for (const k in attributes) e.setAttribute(k, attributes[k]);
    if (text !== undefined) e.textContent = text;
    parent.appendChild(e);
    return e;
  };
  const short = v => {
    if (v === 0) return '0';
    const a = Math.abs(v);
    if (a >= 1e9) return (v / 1e9).toPrecision(3) + ' G';
    if (a >= 1e6) return (v / 1e6).toPrecision(3) + ' M';
    if (a >= 1e4) return (v / 1e3).toPrecision(3) + ' k';
    if (a < 1e-3) return v.toExponential(1);
    return String(+v.toPrecision(4));
  };
  const ticks = (from, to, wanted) => {
    const raw = (to - from) / Math.max(1, wanted), power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].map(m => m * power).find(s => s >= raw) || power * 10, out = [];
    for (let t = Math.ceil(from / step) * step; t <= to + step * 1e-9; t += step) out.push(t);
    return out;
  };
  // A noisy curve shows where it goes: the mean of a mean that forgets what was and one that forgets what comes.
  const smooth = ys => {
    const keep = 1 - 2 / (Math.min(ys.length / 20, 50) + 1);
    const forward = list => {
      let mean = 0, weight = 0;
      return list.map(y => { mean = keep * mean + (1 - keep) * y; weight = keep * weight + (1 - keep); return mean / weight; });
    };
    const there = forward(ys), back = forward([...ys].reverse()).reverse();
    return ys.map((y, i) => (there[i] + back[i]) / 2);
  };
  const nearest = (xs, x) => {
    let low = 0, high = xs.length - 1;
    while (high - low > 1) { const m = (low + high) >> 1; if (xs[m] < x) low = m; else high = m; }
    return Math.abs(xs[low] - x) <= Math.abs(xs[high] - x) ? low : high;
  };

  function Chart(host, title, lines) {
    const legend = document.createElement('div'), heading = document.createElement('h3');
    heading.textContent = title;
    legend.className = 'legend';
    const svg = document.createElementNS(NS, 'svg');
    svg.setAttribute('role', 'img');
    svg.setAttribute('aria-label', title);
    host.append(heading, legend, svg);
    let place = null, from = null;

    const label = values => {
      legend.textContent = '';
      lines.forEach((l, i) => {
        const item = document.createElement('span'), mark = document.createElement('i');
        mark.style.background = `var(--c${l.colour})`;
        item.append(mark, l.name + (values && values[i] !== undefined ? ': ' + short(values[i]) : ''));
        legend.append(item);
      });
      if (values) { const s = document.createElement('span'); s.textContent = 'step ' + values.step; legend.append(s); }
    };

    const draw = () => {
      const width = Math.max(260, host.clientWidth - 24);
      let [x0, x1] = range || [Infinity, -Infinity], y0 = Infinity, y1 = -Infinity;
      if (!range) for (const l of lines) { x0 = Math.min(x0, l.x[0]); x1 = Math.max(x1, l.x[l.x.length - 1]); }
      for (const l of lines)
        l.x.forEach((x, i) => { if (x >= x0 && x <= x1) { y0 = Math.min(y0, l.y[i]); y1 = Math.max(y1, l.y[i]); } });
      if (y0 > y1) { y0 = 0; y1 = 1; }
      if (y1 - y0 < 1e-12 * Math.max(1, Math.abs(y1))) { y0 -= Math.abs(y0) * 0.1 || 1; y1 += Math.abs(y1) * 0.1 || 1; }
      if (x1 <= x0) { x0 -= 1; x1 += 1; }
      const X = x => PAD.left + (x - x0) / (x1 - x0) * (width - PAD.left - PAD.right);
      const Y = y => HEIGHT - PAD.bottom - (y - y0) / (y1 - y0) * (HEIGHT - PAD.top - PAD.bottom);
      place = { x0, x1, X, Y, width, step: px => x0 + (px - PAD.left) / (width - PAD.left - PAD.right) * (x1 - x0) };
      svg.textContent = '';
      svg.setAttribute('viewBox', `0 0 ${width} ${HEIGHT}`);
      for (const t of ticks(y0, y1, 5)) {
        add(svg, 'line', { x1: PAD.left, x2: width - PAD.right, y1: Y(t), y2: Y(t), stroke: 'var(--grid)' });
        add(svg, 'text', { x: PAD.left - 6, y: Y(t) + 4, 'text-anchor': 'end' }, short(t));
      }
      for (const t of ticks(x0, x1, width / 110))
        if (Number.isInteger(t)) add(svg, 'text', { x: X(t), y: HEIGHT - 6, 'text-anchor': 'middle' }, short(t));
      for (const l of lines) {
        const path = ys => l.x.map((x, i) => (i ? 'L' : 'M') + X(x).toFixed(1) + ' ' + Y(ys[i]).toFixed(1)).join('');
        const clip = { fill: 'none', stroke: `var(--c${l.colour})`, 'stroke-linejoin': 'round', 'clip-path': 'inset(0)' };
        const box = add(svg, 'svg', { x: PAD.left, y: 0, width: width - PAD.left - PAD.right, height: HEIGHT, overflow: 'hidden',
                                      viewBox: `${PAD.left} 0 ${width - PAD.left - PAD.right} ${HEIGHT}` });
        const calm = l.x.length > 60 && !l.evaluation && title !== 'learning rate';
        add(box, 'path', { ...clip, d: path(l.y), 'stroke-width': calm ? 1 : 2, opacity: calm ? 0.35 : 1 });
        if (calm) add(box, 'path', { ...clip, d: path(smooth(l.y)), 'stroke-width': 2 });
        if (l.x.length <= 60)
          l.x.forEach((x, i) => add(box, 'circle', { cx: X(x), cy: Y(l.y[i]), r: 2.5, fill: `var(--c${l.colour})` }));
      }
      label(null);
    };

    const at = e => { const r = svg.getBoundingClientRect(); return (e.clientX - r.left) / r.width * place.width; };
    const mark = step => {
      svg.querySelectorAll('.mark').forEach(m => m.remove());
      if (step === null) return label(null);
      const values = { step: Math.round(step) };
      lines.forEach((l, i) => {
        if (!l.x.length) return;
        const k = nearest(l.x, step);
        values[i] = l.y[k];
        if (i === 0) values.step = l.x[k];
      });
      const x = place.X(values.step);
      add(svg, 'line', { class: 'mark', x1: x, x2: x, y1: PAD.top, y2: HEIGHT - PAD.bottom, stroke: 'var(--soft)', 'stroke-dasharray': '3 3' });
      label(values);
    };
    svg.addEventListener('pointermove', e => {
      const px = at(e);
      charts.forEach(c => c.mark(place.step(px)));
      svg.querySelectorAll('.drag').forEach(m => m.remove());
      if (from !== null)
        add(svg, 'rect', { class: 'drag', x: Math.min(from, px), width: Math.abs(px - from), y: PAD.top, height: HEIGHT - PAD.top - PAD.bottom, fill: 'var(--soft)', opacity: 0.18 });
    });
    svg.addEventListener('pointerdown', e => { from = at(e); });
    svg.addEventListener('pointerup', e => {
      const to = at(e), a = place.step(Math.min(from ?? to, to)), b = place.step(Math.max(from ?? to, to));
      if (from !== null && Math.abs(to - from) > 8) { range = [a, b]; charts.forEach(c => c.draw()); }
      from = null;
    });
    svg.addEventListener('pointerleave', () => { from = null; charts.forEach(c => c.mark(null)); });
    svg.addEventListener('dblclick', () => { range = null; charts.forEach(c => c.draw()); });
    new ResizeObserver(draw).observe(host);
    charts.push({ draw, mark });
    draw();
  }

  // One chart a curve; an evaluation's lies on the training's of the same name.
  const host = document.getElementById('charts'), names = [];
  for (const r of RUNS) for (const n in r.series) if (!names.includes(n)) names.push(n);
  const first = ['loss', 'grad_norm', 'learning_rate', 'tokens_per_second', 'step_seconds'];
  const base = n => n.replace(/^eval\//, '');
  const shown = [...new Set(names.map(base))].sort((a, b) => {
    const i = first.indexOf(a), k = first.indexOf(b);
    return i < 0 && k < 0 ? (a < b ? -1 : 1) : i < 0 ? 1 : k < 0 ? -1 : i - k;
  });
  for (const n of shown) {
    const lines = [];
    RUNS.forEach((r, i) => [n, 'eval/' + n].forEach((key, e) => {
      const s = r.series[key];
      if (!s || !s[0].length) return;
      const name = (RUNS.length > 1 ? r.name + (e ? ', ' : '') : e ? '' : 'training') + (e ? 'evaluation' : '');
      lines.push({ name, x: s[0], y: s[1], evaluation: !!e, colour: (RUNS.length > 1 ? 2 * i + e : e) % COLOURS });
    }));
    if (!lines.length) continue;
    const card = document.createElement('div');
    card.className = 'chart';
    host.append(card);
    Chart(card, n.replace(/_/g, ' '), lines);
  }

  // One step: a picture a lane, each a stack of what an engine does (or what is in memory), column by column.
  const LEVELS = 'ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_';
  const size = v => v >= 2 ** 30 ? (v / 2 ** 30).toPrecision(3) + ' GiB' : v >= 2 ** 20 ? (v / 2 ** 20).toPrecision(3) + ' MiB' : (v / 1024).toPrecision(3) + ' KiB';
  const time = v => v < 0.1 ? (v * 1000).toPrecision(3) + ' ms' : v.toPrecision(3) + ' s';
  const colour = c => /^#[0-9a-f]{6}$/i.test(c) ? c : '#888888';
  const lane = (host, l, seconds) => {
    const HIGH = l.unit === 'busy' ? 34 : 60, row = document.createElement('div'), head = document.createElement('div'), legend = document.createElement('div');
    row.className = 'lane';
    head.append(Object.assign(document.createElement('b'), { textContent: l.name }), ' ' + l.note);
    legend.className = 'legend';
    const classes = l.classes.map(c => ({ name: c.name, colour: colour(c.colour), total: c.total, at: [...c.levels].map(x => Math.max(0, LEVELS.indexOf(x)) / 63) }));
    const n = classes.length ? classes[0].at.length : 0;
    const svg = document.createElementNS(NS, 'svg');
    svg.setAttribute('viewBox', `0 0 ${n} ${HIGH}`);
    svg.setAttribute('preserveAspectRatio', 'none');
    svg.setAttribute('role', 'img');
    svg.setAttribute('aria-label', l.name);
    svg.style.height = HIGH + 'px';
    const Y = v => ((1 - v) * HIGH).toFixed(1);
    [...classes].reverse().forEach(c =>
      add(svg, 'path', { fill: c.colour, d: `M0 ${HIGH}` + c.at.map((v, i) => `V${Y(v)}H${i + 1}`).join('') + `V${HIGH}Z` }));
    if (l.limit > 0) add(svg, 'path', { d: `M0 ${Y(l.limit / l.top)}H${n}`, fill: 'none', stroke: 'var(--ink)', 'stroke-dasharray': '4 3', 'vector-effect': 'non-scaling-stroke' });
    const amount = v => l.unit === 'busy' ? (100 * v).toFixed(0) + '%' : size(v * l.top) + (l.unit === 'rate' ? '/s' : '');
    const total = c => l.unit === 'busy' ? ' ' + time(c.total) : l.unit === 'rate' ? ' ' + size(c.total) : '';
    const label = i => {
      legend.textContent = '';
      if (i !== null) legend.append(Object.assign(document.createElement('span'), { textContent: 'at ' + time((i + 0.5) / n * seconds) }));
      classes.forEach((c, k) => {
        const item = document.createElement('span'), mark = document.createElement('i');
        const v = i === null ? null : c.at[i] - (k ? classes[k - 1].at[i] : 0);
        if (v === 0) return;
        mark.style.background = c.colour;
        item.append(mark, c.name + (v === null ? total(c) : ' ' + amount(v)));
        legend.append(item);
      });
    };
    const mark = i => {
      svg.querySelectorAll('.mark').forEach(m => m.remove());
      if (i !== null) add(svg, 'path', { class: 'mark', d: `M${i + 0.5} 0V${HIGH}`, stroke: 'var(--ink)', 'vector-effect': 'non-scaling-stroke' });
      label(i);
    };
    svg.addEventListener('pointermove', e => {
      const r = svg.getBoundingClientRect();
      host.marks.forEach(m => m(Math.min(n - 1, Math.max(0, Math.floor((e.clientX - r.left) / r.width * n)))));
    });
    svg.addEventListener('pointerleave', () => host.marks.forEach(m => m(null)));
    host.marks.push(mark);
    label(null);
    row.append(head, svg, legend);
    host.append(row);
  };
  const step = document.getElementById('step');
  if (step && STEP) {
    step.marks = [];
    step.append(Object.assign(document.createElement('h3'), { textContent: STEP.title }));
    const axis = document.createElement('div');
    axis.className = 'axis';
    for (let i = 0; i <= 4; i++) axis.append(Object.assign(document.createElement('span'), { textContent: time(STEP.seconds * i / 4) }));
    STEP.lanes.forEach(l => lane(step, l, STEP.seconds));
    step.append(axis);
  }
})();
