"use strict";
const form = document.getElementById("filter");
const findings = [...document.querySelectorAll(".finding")];
const files = [...document.querySelectorAll(".file")];
form.hidden = false;

function apply() {
  const data = new FormData(form);
  const rule = data.get("rule"), path = data.get("path").toLowerCase();
  const kinds = new Set(data.getAll("kind"));
  let shown = 0;
  for (const item of findings) {
    const fits = (!rule || item.dataset.rule === rule) && kinds.has(item.dataset.kind) &&
      item.dataset.path.toLowerCase().includes(path);
    item.classList.toggle("away", !fits);
    if (fits && item.closest(".file")) shown += 1;
  }
  for (const file of files) {
    const inner = file.querySelectorAll(".finding");
    const some = file.querySelector(".finding:not(.away)");
    const bare = !inner.length && !rule && file.dataset.path.toLowerCase().includes(path);
    file.classList.toggle("away", !some && !bare);
  }
  document.getElementById("shown").textContent = `${shown} of ` +
    `${findings.filter((item) => item.closest(".file")).length} findings shown`;
}

form.addEventListener("input", apply);
form.addEventListener("submit", (event) => event.preventDefault());
document.getElementById("open").addEventListener("click", (event) => {
  const open = files.some((file) => !file.open && !file.classList.contains("away"));
  for (const file of files) file.open = open;
  event.target.textContent = open ? "Close all files" : "Open all files";
});

// A link to a file opens it.
function reveal() {
  const target = location.hash && document.getElementById(location.hash.slice(1));
  if (target && target.classList.contains("file")) target.open = true;
}
addEventListener("hashchange", reveal);
reveal();

let memory = null;
try { memory = window.localStorage; } catch (error) { memory = null; }
for (const box of document.querySelectorAll("[data-task]")) {
  const key = "xla2tpu:" + box.dataset.task;
  if (memory && memory.getItem(key)) box.checked = true;
  box.addEventListener("change", () => {
    if (!memory) return;
    if (box.checked) memory.setItem(key, "1"); else memory.removeItem(key);
  });
}

// On paper every file is open.
let closed = [];
addEventListener("beforeprint", () => {
  closed = files.filter((file) => !file.open);
  for (const file of closed) file.open = true;
});
addEventListener("afterprint", () => { for (const file of closed) file.open = false; });
apply();
