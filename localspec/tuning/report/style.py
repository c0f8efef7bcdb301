"""The style sheet of the tuning report; drawings that stand alone take its colours and marks."""

COLOURS = """
:root {
  color-scheme: light dark;
  --page: #f6f7f9; --card: #ffffff; --ink: #1b2330; --soft: #5b6676; --rule: #e2e6ec; --grid: #e9ecf1;
  --a: #0b6bcb; --b: #d1570b; --c: #0a8f6a; --d: #a8489b; --muted: #a7b0bd; --band: #0b6bcb1a;
  --good: #e3f1fd; --warn: #fdf1dd; --warn-ink: #7a4a00; --ring: #d1570b;
  --h0: #f3f7e4; --h1: #e0f0d0; --h2: #c4e5c5; --h3: #9dd6bf; --h4: #72c4bd;
  --h5: #3f9dad; --h6: #2c84a5; --h7: #226899; --h8: #1d4d86; --h9: #17336b;
  --low-ink: #17324a; --high-ink: #ffffff;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --page: #11151b; --card: #1a2029; --ink: #e7ebf1; --soft: #9ba7b7; --rule: #2c3542; --grid: #28303c;
    --a: #5fb0f7; --b: #f79a5b; --c: #46cfa4; --d: #dc8fd0; --muted: #64707f; --band: #5fb0f722;
    --good: #17314b; --warn: #3a2c12; --warn-ink: #f3cf8f; --ring: #ff8a3d;
    --h0: #182742; --h1: #193557; --h2: #1a466c; --h3: #1d5a7e; --h4: #23708d;
    --h5: #3b9aa4; --h6: #57b0a5; --h7: #7fc5a5; --h8: #aed9a8; --h9: #e3eebb;
    --low-ink: #dfe9f3; --high-ink: #0e1a24;
  }
}
"""

_PAGE = """\
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif;
}
main, header, footer { max-width: 1120px; margin: 0 auto; padding: 0 20px; }
header { padding-top: 40px; }
h1 { margin: 0 0 4px; font-size: 30px; line-height: 1.2; letter-spacing: -.02em; }
h2 { margin: 52px 0 10px; font-size: 22px; line-height: 1.25; letter-spacing: -.01em; }
h3 { margin: 0; font-size: 16px; line-height: 1.35; }
p { margin: 6px 0; }
.lead, .soft, figcaption p, caption { color: var(--soft); }
main .lead { max-width: 86ch; }
nav { margin-top: 14px; display: flex; flex-wrap: wrap; gap: 6px 18px; }
a { color: var(--a); text-underline-offset: 3px; }
.grid { display: grid; gap: 18px; margin-top: 16px;
  grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); }
.card, figure {
  margin: 0; padding: 18px 20px; background: var(--card); border: 1px solid var(--rule); border-radius: 12px;
  min-width: 0; display: flex; flex-direction: column;
}
.headline { display: flex; flex-wrap: wrap; gap: 0 14px; align-items: baseline; margin: 4px 0 2px; }
.big { font-size: 34px; font-weight: 650; letter-spacing: -.02em; line-height: 1.15; }
.big small { white-space: nowrap; font-size: 15px; font-weight: 400; letter-spacing: 0; color: var(--soft); }
.gain { padding: 2px 10px; border-radius: 99px; background: var(--good); font-size: 14px; }
.card > dl, .card table { margin-top: 0; }
.top { display: flex; justify-content: space-between; align-items: start; gap: 10px; }
.badge {
  flex: none; margin-top: 1px; padding: 0 8px; border: 1px solid var(--rule); border-radius: 99px;
  color: var(--soft); font-size: 12px; font-weight: 400; line-height: 20px;
}
.callout {
  margin-top: 16px; padding: 12px 18px; border-radius: 12px;
  background: var(--warn); color: var(--warn-ink);
}
.meaning { margin: 16px 0 0; padding: 0; list-style: none; display: grid; gap: 10px; }
.meaning li { padding: 2px 0 2px 16px; border-left: 3px solid var(--a); max-width: 86ch; }
figcaption { margin-bottom: 8px; }
figure svg { margin: 4px 0; } figure details { margin-top: auto; padding-top: 6px; }
figcaption p { margin: 2px 0 0; font-size: 14px; line-height: 1.45; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 16px; margin: 8px 0 4px; align-items: center;
  font-size: 13px; color: var(--soft); }
.legend span { display: inline-flex; align-items: center; gap: 6px; }
.legend svg { width: 26px; height: 12px; margin: 0; overflow: hidden; }
.legend svg.ramp { width: 140px; height: 10px; }
svg { display: block; width: 100%; max-width: 560px; height: auto; overflow: visible; }
"""

MARKS = """\
svg text { font-size: 11px; fill: var(--soft); font-variant-numeric: tabular-nums; }
svg .strong { fill: var(--ink); font-weight: 600; }
svg .figure { fill: var(--ink); }
svg .marked { paint-order: stroke; stroke: var(--card); stroke-width: 4px; stroke-linejoin: round; }
svg .on-low { fill: var(--low-ink); font-size: 10px; }
svg .on-high { fill: var(--high-ink); font-size: 10px; }
.a { --hue: var(--a); } .b { --hue: var(--b); } .c { --hue: var(--c); } .d { --hue: var(--d); }
.muted { --hue: var(--muted); }
path { fill: none; }
.grid-line { stroke: var(--grid); }
.base, .tickmark { stroke: var(--muted); }
.line { stroke: var(--hue); stroke-width: 2; stroke-linejoin: round; stroke-linecap: round; }
.dashed .line { stroke-dasharray: 6 4; }
.thin .line { stroke-width: 1; opacity: .75; }
.dot { fill: var(--hue); stroke: transparent; stroke-width: 10; pointer-events: all; }
.dashed .dot { fill: var(--card); stroke: var(--hue); stroke-width: 1.6; }
.cloud { stroke: var(--hue); stroke-width: 3; stroke-linecap: round; opacity: .8; }
.whisker { stroke: var(--ink); stroke-width: 1.4; }
.dot + .whisker, .cross .whisker { stroke: var(--hue); }
.guide { stroke: var(--ring); stroke-dasharray: 2 4; }
.ring { fill: none; stroke: var(--ring); stroke-width: 2.5; }
.band { fill: var(--band); }
.bar { fill: var(--hue); }
.compare { stroke: var(--ink); stroke-dasharray: 3 2; }
.h0 { fill: var(--h0); } .h1 { fill: var(--h1); } .h2 { fill: var(--h2); } .h3 { fill: var(--h3); }
.h4 { fill: var(--h4); } .h5 { fill: var(--h5); } .h6 { fill: var(--h6); } .h7 { fill: var(--h7); }
.h8 { fill: var(--h8); } .h9 { fill: var(--h9); }
"""

_TEXTS = """\
details { margin-top: 10px; font-size: 14px; }
summary { cursor: pointer; color: var(--soft); width: fit-content; }
summary:focus-visible, a:focus-visible, .scroll:focus-visible {
  outline: 2px solid var(--a); outline-offset: 3px;
}
.scroll { overflow-x: auto; }
table {
  border-collapse: collapse; width: 100%; margin-top: 8px;
  font-size: 14px; font-variant-numeric: tabular-nums;
}
caption { text-align: left; padding-bottom: 4px; font-size: 13px; }
th, td {
  padding: 6px 14px 6px 0; border-bottom: 1px solid var(--rule);
  text-align: left; vertical-align: top;
}
thead th { color: var(--soft); font-weight: 500; white-space: nowrap; }
tbody th { font-weight: 600; width: 1%; white-space: nowrap; padding-right: 28px; }
.bars { list-style: none; margin: 12px 0 0; padding: 0; }
.bars li { display: flex; flex-wrap: wrap; justify-content: space-between; gap: 0 14px; margin: 0 0 8px;
  max-width: none; font-size: 13.5px; font-variant-numeric: tabular-nums; }
.bars svg { flex: 0 0 100%; max-width: none; height: 16px; }
.bars path { vector-effect: non-scaling-stroke; }
.bars .chosen { font-weight: 600; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 4px 22px; margin: 16px 0 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
ul { padding-left: 20px; } ul li { margin: 4px 0; max-width: 92ch; }
footer { margin-top: 44px; padding-bottom: 40px; color: var(--soft); font-size: 14px; }
@media (min-width: 980px) {
  .grid > figure:last-child:nth-child(odd) {
    grid-column: 1 / -1; display: grid; grid-template: auto auto 1fr / 1fr 1fr; column-gap: 40px;
  }
  .grid > figure:last-child:nth-child(odd) > svg { grid-area: 1 / 2 / span 3 / 2; }
  .grid > figure:last-child:nth-child(odd) > details { grid-column: 1; margin-top: 0; }
}
@media (max-width: 560px) {
  main, header, footer { padding: 0 14px; } header { padding-top: 22px; }
  h1 { font-size: 25px; } h2 { margin-top: 38px; }
  .card, figure { padding: 14px; } dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: 8px; }
  svg text { font-size: 12.5px; }
}
@media print {
  body { background: none; font-size: 11pt; } nav, details { display: none; }
  .card, figure { break-inside: avoid; border-color: #bbb; } h2, h3 { break-after: avoid; }
  .grid { grid-template-columns: 1fr 1fr; gap: 10px; }
  .big { font-size: 24px; } .big small { font-size: 13px; }
  header { padding-top: 0; } h2 { margin-top: 26px; font-size: 18px; } .card, figure { padding: 12px 14px; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
"""

STYLE = COLOURS + _PAGE + MARKS + _TEXTS
