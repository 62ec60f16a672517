"""The style sheet of a report: a paper's supplement, by day and by night, on a phone and in print."""

STYLE = """
:root {
  --paper: #fff; --ink: #1c1b19; --soft: #66625c; --rule: #dcd8d0; --strong: #1c1b19;
  --grid: #e6e3dc; --link: #0b5394; --bar: #0072b2;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #161719; --ink: #e8e5df; --soft: #a29d94; --rule: #37383b; --strong: #b9b4aa;
    --grid: #303236; --link: #8ab8ea; --bar: #4aa3dd;
  }
}
* { box-sizing: border-box; }
html {
  font: 17px/1.5 Charter, "Bitstream Charter", "Iowan Old Style", "Source Serif 4", Palatino, Georgia, serif;
  color: var(--ink); background: var(--paper); -webkit-text-size-adjust: 100%;
}
body { max-width: 66rem; margin: 0 auto; padding: 2.6rem 1.5rem 3rem; }
header { border-bottom: 2px solid var(--strong); padding-bottom: 1rem; }
h1 { font-size: 1.9rem; line-height: 1.2; font-weight: 600; margin: 0 0 .5rem; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; line-height: 1.3; font-weight: 600; margin: 3rem 0 .6rem; }
ul, ol { list-style: none; margin: 0; padding: 0; }
.facts { display: flex; flex-wrap: wrap; gap: .1rem 1.4rem; color: var(--soft); overflow-wrap: anywhere; }
.facts li { min-width: 0; }
nav ol { display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; font-size: .88rem; padding-top: .8rem; }
a { color: var(--link); text-decoration: none; }
a:hover, a:focus-visible { text-decoration: underline; }
:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }

.caption, figcaption { font-size: .88rem; line-height: 1.45; color: var(--soft); max-width: 46rem; }
.caption { margin: 0 0 .6rem; break-inside: avoid; }
.caption b, figcaption b { color: var(--ink); font-weight: 600; }
.scroll { overflow-x: auto; max-width: 100%; }
table {
  border-collapse: collapse; border-bottom: 1.5px solid var(--strong); font-size: .92rem;
  font-variant-numeric: lining-nums tabular-nums;
}
th, td { padding: .34rem .8rem; text-align: right; vertical-align: top; white-space: nowrap; }
thead th {
  border-top: 1.5px solid var(--strong); border-bottom: 1px solid var(--strong);
  font-weight: 600; vertical-align: bottom;
}
th:first-child { text-align: left; padding-left: 0; position: sticky; left: 0; background: var(--paper); }
tbody th {
  font-weight: 400; white-space: normal; min-width: 9rem; max-width: 19rem; overflow-wrap: anywhere;
}
tbody tr + tr > * { border-top: 1px solid var(--rule); }
tbody tr:not(.total) + tr.total > * { border-top: 1px solid var(--strong); }
td:last-child, thead th:last-child { padding-right: .1rem; }
td b { font-weight: 700; }
.std { color: var(--soft); }
small { display: block; font-size: .78rem; line-height: 1.35; color: var(--soft); font-weight: 400; }
td > small:only-child { line-height: 1.9; }
thead small { max-width: 12rem; white-space: normal; margin-left: auto; }
.accuracy th[scope=row] small, .vtab th[scope=row] small, .fewshot th[scope=row] small,
.evaluated th[scope=row] small {
  display: inline; margin-left: .5em;
}
.runs td:last-child, .left_out td { white-space: normal; min-width: 11rem; }
.left_out td, .left_out thead th { text-align: left; }
progress {
  display: block; width: 9rem; height: .4rem; margin: .3rem 0 .15rem auto; appearance: none; border: 0;
  border-radius: .2rem; background: var(--grid); overflow: hidden;
}
progress::-webkit-progress-bar { background: var(--grid); }
progress::-webkit-progress-value { background: var(--bar); }
progress::-moz-progress-bar { background: var(--bar); }

.figures {
  display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 27rem), 1fr));
  gap: 2rem 2.4rem; align-items: start; margin-top: 1.4rem;
}
figure { margin: 0; min-width: 0; }
figure.wide { grid-column: 1 / -1; max-width: 44rem; }
.picture { overflow-x: auto; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: currentColor; }
.paper .picture { background: #fff; color: #000; border-radius: 3px; }
.legend { display: flex; flex-wrap: wrap; gap: .1rem 1.1rem; font-size: .82rem; margin: .5rem 0 .1rem; }
.legend li { display: flex; align-items: baseline; gap: .45rem; overflow-wrap: anywhere; }
.key { flex: none; width: 1.3rem; height: .2rem; transform: translateY(-.22rem); }
figcaption { margin-top: .45rem; overflow-wrap: anywhere; }
footer {
  margin-top: 3.5rem; border-top: 1px solid var(--rule); padding-top: .8rem; font-size: .82rem;
  color: var(--soft); overflow-wrap: anywhere;
}
footer p { margin: .2rem 0; }

@media (max-width: 40rem) {
  html { font-size: 16px; }
  body { padding: 1.6rem 1rem 2rem; }
  h1 { font-size: 1.5rem; }
  h2 { margin-top: 2.3rem; }
  th, td { padding: .34rem .55rem; }
  tbody th { min-width: 7.2rem; max-width: 9.5rem; }
  .paper svg { min-width: 30rem; }
  .wide.paper svg { min-width: 46rem; }
  .wide:not(.paper) svg { min-width: 34rem; }
}
@media print {
  :root {
    --paper: #fff; --ink: #000; --soft: #444; --rule: #ccc; --strong: #000; --grid: #ddd; --link: #000;
    --bar: #0072b2;
  }
  @page { margin: 16mm 14mm; }
  html { font-size: 10pt; }
  body { max-width: none; padding: 0; }
  nav { display: none; }
  .scroll, .picture { overflow: visible; }
  table { font-size: 8pt; }
  th, td { padding: .2rem .4rem; white-space: normal; }
  tbody th { min-width: 0; }
  th:first-child { position: static; }
  figure, tr { break-inside: avoid; }
  h2, .caption { break-after: avoid; }
  .figures { grid-template-columns: 1fr 1fr; }
  .key, progress, svg { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
"""
