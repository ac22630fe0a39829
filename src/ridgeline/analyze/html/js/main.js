// Everything in order: what is read first is drawn first, charts follow when they come into view.

function drawNav() {
  const sections = [...document.querySelectorAll("main > section")];
  const links = new Map(sections.map((section) => [section, el("a", { href: `#${section.id}` }, section.dataset.title ?? "Overview")]));
  byId("nav").append(...links.values());
  const seen = new Set();
  const watch = new IntersectionObserver((changes) => {
    for (const change of changes) {
      if (change.isIntersecting) seen.add(change.target);
      else seen.delete(change.target);
    }
    const current = sections.find((section) => seen.has(section));
    for (const [section, link] of links) link.setAttribute("aria-current", String(section === current));
    // on a phone the sections stand in one line that scrolls
    if (current) byId("nav").scrollTo({ left: links.get(current).offsetLeft - 60 });
  }, { rootMargin: "-90px 0px -55% 0px" });
  for (const section of sections) watch.observe(section);
}

drawHeader();
drawCards();
drawNotes();
drawHotSpots();
drawFindings();
drawRoofline();
drawLayers();
drawSteps();
drawTimeline();
drawMemory();
drawGraph();
drawMaps();
drawRefused();
drawKernels();
drawVerification();
drawEnvironment();
drawNav();
window.ridge = { data, charts, graphView, openStep };
