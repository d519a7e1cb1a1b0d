"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const at = (id) => document.getElementById(id);
  const verdicts = { match: "m1", mismatch: "n2", unsure: "u3" };
  const kinds = [...at("kinds").children].map((kind) => kind.value);
  let done = new Set(data.done);
  let current = null;
  let since = 0;
  let busy = false;

  // A verdict counts once the server has synced it to its disk.
  async function ask(path, body) {
    const answer = await fetch(path, {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body),
    });
    if (answer.status === 409) {
      location.reload();
      throw new Error("This pair was judged in another window. Reloading.");
    }
    if (!answer.ok) throw new Error(await answer.text());
    return answer.json();
  }

  function warn(text) {
    at("problem").textContent = text;
    at("problem").hidden = !text;
  }

  function show(key, note) {
    const left = data.items.filter((item) => !done.has(item.key));
    current = left.find((item) => item.key === key) || left[0] || null;
    const judged = data.items.length - left.length;
    at("count").textContent = `${judged} of ${data.items.length} judged`;
    at("progress").max = data.items.length;
    at("progress").value = judged;
    at("pair").hidden = !current;
    at("end").hidden = Boolean(current);
    at("undo").disabled = !judged;
    if (!current) return;
    const picture = at("picture");
    ready(false);
    picture.src = current.picture;
    picture.alt = `Screenshot of a page on ${current.site}`;
    at("caption").textContent = current.caption;
    at("caption").lang = current.lang || "";
    at("lang").textContent = current.lang || "und";
    at("site").textContent = current.site;
    at("flags").textContent = current.flags;
    at("flags").hidden = !current.flags;
    at("visit").hidden = !current.href;
    if (current.href) at("visit").href = current.href;
    at("note").value = note ?? current.kind;
    at("before").hidden = !current.verdict;
    at("before").textContent = `Judged before: ${[current.verdict, current.kind].filter(Boolean).join(", ")}`;
    for (const verdict of Object.keys(verdicts)) {
      at(verdict).setAttribute("aria-pressed", String(verdict === current.verdict));
    }
    window.scrollTo(0, 0);
    since = performance.now();
    const next = left[left.indexOf(current) + 1];
    if (next) new Image().src = next.picture;
  }

  // Verdicts are disabled until the picture has loaded.
  function ready(yes) {
    for (const verdict of Object.keys(verdicts)) at(verdict).disabled = !yes;
  }

  async function once(work) {
    if (busy) return;
    busy = true;
    try {
      await work();
      warn("");
    } catch (error) {
      warn(`Not stored: ${error.message} Is the server still running?`);
      if (current) ready(true);
    } finally {
      busy = false;
    }
  }

  const judge = (matched) => once(async () => {
    if (!current || at(matched).disabled) return;
    ready(false);
    const seconds = Math.round((performance.now() - since) / 100) / 10;
    const typed = at("note").value.replace(/\s+/g, " ").trim();
    // A match has no kind of mismatch: remove the one that the page filled in.
    const turned = matched === "match" && current.verdict !== "match";
    const note = turned && [...kinds, current.kind].includes(typed) ? "" : typed;
    const answer = await ask("verdict", { key: current.key, matched, seconds, note });
    done = new Set(answer.done);
    at("note").blur();
    show();
  });

  const undo = () => once(async () => {
    const answer = await ask("undo", {});
    done = new Set(answer.done);
    show(answer.key, answer.note);
  });

  for (const verdict of Object.keys(verdicts)) at(verdict).addEventListener("click", () => judge(verdict));
  at("undo").addEventListener("click", undo);
  for (const kind of at("kinds").children) kind.addEventListener("click", () => { at("note").value = kind.value; });
  at("back").addEventListener("click", undo);
  for (const event of ["load", "error"]) at("picture").addEventListener(event, () => current && ready(true));
  document.addEventListener("keydown", (event) => {
    if (event.repeat || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (event.target.tagName === "INPUT") {
      if (event.key === "Escape" || event.key === "Enter") event.target.blur();
      return;
    }
    const key = event.key.toLowerCase();
    const verdict = Object.keys(verdicts).find((name) => verdicts[name].includes(key));
    if (verdict) judge(verdict);
    else if ("4567890".includes(key)) at("note").value = kinds["4567890".indexOf(key)];
    else if (key === "z" || key === "backspace") undo();
    else if (key === "o" && current) at("note").focus();
    else return;
    event.preventDefault();
  });

  if (matchMedia("(max-width: 46rem)").matches) at("rules").open = false;
  show();
})();
