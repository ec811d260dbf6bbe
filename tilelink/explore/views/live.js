// Turns knobs into numbers, asks for what they make, and asks again when the file was saved.
(function () {
  "use strict";
  const $ = (id) => document.getElementById(id);
  let turned = {}, pinned = null, names = "", asking = null, moving = false, unfinished = false;

  function address() {
    const fields = new URLSearchParams(turned);
    if (pinned) for (const [name, at] of Object.entries(pinned)) fields.set("pinned." + name, at);
    fields.set("rank", $("rank").value || 0);
    if (moving) fields.set("moving", 1);
    return "/view?" + fields;
  }

  async function refresh() {
    if (asking) asking.abort();
    const mine = (asking = new AbortController());
    const begin = performance.now();
    $("view").classList.add("stale");
    try {
      let reply = await fetch(address(), { signal: mine.signal });
      if (reply.status === 400) { turned = {}; pinned = null; reply = await fetch(address(), { signal: mine.signal }); }
      show(await reply.json(), begin);
    } catch (error) {
      if (error.name !== "AbortError") lost();
    }
  }

  function lost() {
    $("state").textContent = "tilelink watch has ended";
    $("state").classList.add("lost");
  }

  function show(found, begin) {
    $("title").textContent = found.title || $("title").textContent;
    document.title = found.title || "tilelink watch";
    $("imports").textContent = found.imports.length ? "Each save runs the file, which imports " + found.imports.join(", ") + "." : "";
    $("schedule").textContent = found.schedule;
    knobs(found.knobs);
    ranks(found.ranks || 0);
    const open = [...document.querySelectorAll("#view details")].map((d) => [d.firstChild.textContent, d.open]);
    const scrolled = [...document.querySelectorAll("#view .source > .code")].map((c) => c.scrollTop);
    $("view").innerHTML = found.html;
    for (const [title, was] of open)
      for (const d of document.querySelectorAll("#view details")) if (d.firstChild.textContent === title) d.open = was;
    window.tilelinkReady($("view"));
    document.querySelectorAll("#view .source > .code").forEach((c, k) => { if (k in scrolled) c.scrollTop = scrolled[k]; });
    $("view").classList.remove("stale");
    $("unpin").hidden = !pinned;
    $("state").classList.remove("lost");
    const ms = found.ms === undefined ? "" : ", worked out in " + Math.round(found.ms) + " ms, shown in " + Math.round(performance.now() - begin);
    $("state").textContent = "load " + found.version + ms;
    unfinished = Boolean(found.unfinished);
    if (unfinished && !moving) refresh();
  }

  const step_of = (name) => name.slice(0, Math.max(name.lastIndexOf("."), 0));

  function knobs(found) {
    found = found.filter((knob) => knob.values.length > 1);
    turned = Object.fromEntries(found.map((knob) => [knob.name, knob.at]));
    const now = JSON.stringify(found.map((knob) => [knob.name, knob.values]));
    if (now !== names) {
      names = now;
      $("knobs").replaceChildren();
      let step = "";
      for (const knob of found) {
        if (step_of(knob.name) !== step) {
          step = step_of(knob.name);
          const head = document.createElement("div");
          head.className = "step";
          head.textContent = step || "all of it";
          $("knobs").append(head);
        }
        const label = document.createElement("label"), said = document.createElement("output"), slider = document.createElement("input");
        label.className = "knob";
        slider.type = "range";
        slider.min = 0;
        slider.max = knob.values.length - 1;
        slider.dataset.name = knob.name;
        slider.addEventListener("input", () => {
          // What a step runs on decides which other knobs it has: they start anew.
          if (knob.name.endsWith(".on")) for (const name of Object.keys(turned)) if (name.startsWith(step_of(knob.name) + ".")) delete turned[name];
          turned[knob.name] = +slider.value;
          said.textContent = knob.values[slider.value];
          moving = true;
          refresh();
        });
        slider.addEventListener("change", () => {
          moving = false;
          if (unfinished) refresh();
        });
        label.append(document.createTextNode(knob.name.slice(knob.name.lastIndexOf(".") + 1)), said, slider);
        $("knobs").append(label);
      }
    }
    for (const knob of found) {
      const slider = document.querySelector(`input[data-name="${CSS.escape(knob.name)}"]`);
      slider.value = knob.at;
      slider.previousSibling.textContent = knob.values[knob.at];
    }
  }

  function ranks(count) {
    if ($("rank").options.length === count) return;
    $("rank").replaceChildren(...Array.from({ length: count }, (_, k) => new Option("rank " + k, k)));
  }

  $("rank").addEventListener("change", refresh);
  $("reset").addEventListener("click", () => { turned = {}; refresh(); });
  $("pin").addEventListener("click", () => { pinned = { ...turned }; refresh(); });
  $("unpin").addEventListener("click", () => { pinned = null; refresh(); });
  $("copy").addEventListener("click", () => navigator.clipboard.writeText($("schedule").textContent));
  const events = new EventSource("/events");
  events.onmessage = refresh;
  events.onerror = lost;
})();
